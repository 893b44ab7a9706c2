/* fuzz_request.c - any bytes as the body of a request: a request within its limits, or an error with a reason. The
 * first byte chooses completions or a conversation. */
#include "dtrain/serve/request.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const dt_sampling usual = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    const char *param;
    dt_api_request r;
    if (size == 0) return 0;
    const bool chat = data[0] & 1;
    dt_error_clear();
    const dt_err err = dt_request_parse(&r, chat, (const char *)data + 1, size - 1, &usual, &param);
    must(err == DT_OK || dt_error_message()[0]);
    if (err == DT_OK) {
        must(chat ? json_array_size(r.messages) > 0 : json_array_size(r.prompts) > 0);
        must(r.n >= 1 && r.n <= DT_MAX_CHOICES && r.max_tokens >= -1 && r.max_tokens <= INT32_MAX);
        must(r.logprobs >= -1 && r.logprobs <= DT_MAX_LOGPROBS && r.n_stop >= 0 && r.n_stop <= DT_MAX_REQUEST_STOPS);
        for (int i = 0; i < r.n_stop; i++) must(strlen(r.stop[i]) > 0);
        must(dt_sampling_check(&r.sampling) == DT_OK);
    }
    dt_request_free(&r);
    return 0;
}
