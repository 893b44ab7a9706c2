/* fuzz_prompts.c - any bytes as prompts for generation: ids inside the vocabulary, as many placeholders as images want,
 * or an error with a reason. The first byte chooses how. */
#include "dtrain/generate/generate.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) abort();
}

enum { RUN = 3 };

static void check(const dt_prompt *p, bool images)
{
    int n = 0;
    for (size_t t = 0; t < p->ids.n; t++) {
        must(p->ids.id[t] >= 0 && p->ids.id[t] < 300);
        n += p->ids.id[t] == '~';
    }
    must(images ? n == RUN * p->images.n : p->images.n == 0);
    for (int i = 0; i < p->images.n; i++) must(p->images.path[i][0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const dt_prompt_format formats[] = {DT_PROMPT_JSONL, DT_PROMPT_LINES, DT_PROMPT_WHOLE};
    static const char *const templates[] = {"chatml", "plain", "llama-2"};
    static dt_tokenizer *tokenizer; /* kept: it never changes */
    static dt_encoder *encoder;
    if (size == 0) return 0;
    if (!tokenizer)
        must(dt_tokenizer_open(&tokenizer, "bytes") == DT_OK && dt_encoder_open(&encoder, tokenizer) == DT_OK);
    const bool ids = data[0] & 128;
    dt_prompt_reader r = {.tokenizer = ids ? NULL : tokenizer,
                          .encoder = ids ? NULL : encoder,
                          .chat_template = templates[data[0] / 8 % 3],
                          .system = data[0] & 64 ? "s" : NULL,
                          .vocab_size = 300,
                          .image_token = '~',
                          .n_image_tokens = data[0] & 32 ? RUN : 0,
                          .image_text = ids ? NULL : "~",
                          .image = &(const char *){"a.png"},
                          .n_images = (data[0] & 48) == 48};
    dt_prompts p;
    dt_error_clear();
    const dt_err err = dt_prompts_parse(&p, "fuzz", (const char *)data + 1, size - 1, formats[data[0] % 8 % 3], &r);
    must(err == DT_OK || dt_error_message()[0]);
    for (int i = 0; err == DT_OK && i < p.n; i++) check(&p.prompt[i], r.n_image_tokens > 0);
    dt_prompts_free(&p);
    dt_prompt_reader_close(&r);
    return 0;
}
