/* fuzz_records.c - any bytes as JSON lines, as a JSON array and as text, without images and with: a dataset that
 * verifies, and that is the same with another number of threads, or an error with a reason. The first two bytes choose
 * how. */
#include "make_twice.h"
#include <sys/mman.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* For kinds 5 and 6, the latter as captions. A token of bytes is a byte; wide.ppm and high.ppm are in the folder. */
static dt_image_options images(unsigned kind)
{
    if (kind != 5 && kind != 6) return (dt_image_options){0};
    return (dt_image_options){.preprocessor = "tests/data/vision_data/model/preprocessor_config.json",
                              .folder = "tests/data/vision_data",
                              .token = "~",
                              .n_tokens = 3,
                              .token_id = -1,
                              .captions = kind == 6};
}

/* Options from two bytes; every value of each is reached. */
static dt_make_options options(unsigned how, unsigned more, const char *const *inputs)
{
    static const char *const templates[] = {"plain", "chatml",     "alpaca",  "llama-2",
                                            "qwen3", "mistral-v3", "llama-3", "auto"};
    static const dt_dataset_kind kinds[] = {DT_ANY_KIND,        DT_DATASET_SFT,    DT_DATASET_PREFERENCE,
                                            DT_DATASET_PROMPTS, DT_DATASET_TOKENS, DT_ANY_KIND,
                                            DT_ANY_KIND,        DT_DATASET_SFT};
    return (dt_make_options){.inputs = inputs,
                             .n_inputs = 1,
                             .kind = kinds[how % 8],
                             .images = images(how % 8),
                             .format = how & 8 ? DT_INPUT_TEXT : DT_INPUT_JSON,
                             .documents = (dt_documents)(how / 16 % 4),
                             .separator = "ab",
                             .tokenizer = "bytes",
                             .chat_template = templates[how / 16 % 8],
                             .mask = (dt_mask)(more % 4),
                             .prefer = more & 4 ? DT_PREFER_SAFER : DT_PREFER_BETTER,
                             .truncate = (dt_truncate)(more / 8 % 4),
                             .append_eos = how & 64,
                             .max_length = more & 32 ? 20 : 0,
                             .turn_budgets = (more & 96) == 96,
                             .as_chat = more & 64,
                             .weight_key = how & 128 && how % 8 == 1 ? "w" : NULL,
                             .skip_bad = more & 128};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    char input[64];
    snprintf(input, sizeof input, "/proc/self/fd/%d", fd);
    must(write(fd, data + 2, size - 2) == (ssize_t)(size - 2));
    const char *inputs[] = {input};
    dt_make_options o = options(data[0], data[1], inputs);
    make_and_check(&o, size % 8 == 0);
    close(fd);
    return 0;
}
