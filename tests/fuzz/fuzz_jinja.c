/* fuzz_jinja.c - any bytes as a chat template: it is parsed and rendered on a conversation, or an error says why not,
 * and rendering it again gives the same. */
#include "dtrain/jinja/jinja.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) abort();
}

static json_t *variables(void)
{
    return json_pack("{s:[{s:s,s:s},{s:s,s:s},{s:s,s:s,s:[{s:{s:s,s:{s:i}}}]}],s:n,s:b,s:s,s:s}", "messages", "role",
                     "system", "content", " S ", "role", "user", "content", "Hi <b>\n", "role", "assistant", "content",
                     "\xe4\xbd\xa0 x", "tool_calls", "function", "name", "f", "arguments", "a", 1, "tools",
                     "add_generation_prompt", 1, "bos_token", "<s>", "eos_token", "</s>");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dt_jinja *t;
    dt_jinja_result one, two;
    dt_error_clear();
    if (dt_jinja_parse(&t, "fuzz", (const char *)data, size, false) != DT_OK) {
        must(dt_error_message()[0] != '\0');
        return 0;
    }
    json_t *all = variables();
    must(all != NULL);
    const dt_err err = dt_jinja_render(t, all, 1721995200, &one), again = dt_jinja_render(t, all, 1721995200, &two);
    must(err == again && (err == DT_OK) == (one.text != NULL));
    if (err == DT_OK) must(one.nbytes == two.nbytes && memcmp(one.text, two.text, one.nbytes) == 0);
    if (err != DT_OK) must(strncmp(dt_error_message(), "fuzz: line ", 11) == 0);
    dt_jinja_result_free(&one);
    dt_jinja_result_free(&two);
    json_decref(all);
    dt_jinja_close(t);
    return 0;
}
