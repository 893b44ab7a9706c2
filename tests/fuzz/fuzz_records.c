/* fuzz_records.c - any bytes as JSON lines, as a JSON array and as text: a dataset that verifies, and that is the same
 * with another number of threads, or an error with a reason. The first two bytes choose how. */
#include "dtrain/dataset.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) abort();
}

/* Options from two bytes; every value of each is reached. */
static dt_make_options options(unsigned how, unsigned more, const char *const *inputs)
{
    static const char *const documents[] = {"files", "lines", "paragraphs", "separator"};
    static const char *const templates[] = {"plain", "chatml",     "alpaca",  "llama-2",
                                            "qwen3", "mistral-v3", "llama-3", "auto"};
    static const char *const kinds[] = {"auto", "sft", "preference", "prompts", "tokens", "auto", "auto", "sft"};
    static const char *const masks[] = {"auto", "full", "completion", "assistant"};
    static const char *const truncations[] = {"auto", "keep_start", "keep_end", "drop"};
    return (dt_make_options){.inputs = inputs,
                             .n_inputs = 1,
                             .kind = kinds[how % 8],
                             .format = how & 8 ? "text" : "json",
                             .documents = documents[how / 16 % 4],
                             .separator = "ab",
                             .tokenizer = "bytes",
                             .chat_template = templates[how / 16 % 8],
                             .mask = masks[more % 4],
                             .prefer = more & 4 ? "safer" : "better",
                             .truncate = truncations[more / 8 % 4],
                             .append_eos = how & 64,
                             .max_length = more & 32 ? 20 : 0,
                             .turn_budgets = (more & 96) == 96,
                             .as_chat = more & 64,
                             .weight_key = how & 128 && how % 8 == 1 ? "w" : NULL,
                             .skip_bad = more & 128};
}

static dt_err make(dt_make_options *o, int n_threads, const char *output, dt_make_stats *stats)
{
    o->output = output;
    o->n_threads = n_threads;
    dt_error_clear();
    return dt_make_datasets(o, stats);
}

static void check(const char *output, const dt_make_stats *stats)
{
    dt_dataset *d;
    must(dt_dataset_open(&d, output) == DT_OK && dt_dataset_verify(d, NULL, NULL) == DT_OK);
    const dt_dataset_info *i = dt_dataset_get_info(d);
    must(i->kind == stats->kind && i->n_documents == stats->n_documents &&
         i->n_tokens + i->n_second_tokens == stats->n_tokens);
    dt_dataset_close(d);
}

static bool equal_files(const char *a, const char *b)
{
    FILE *f = fopen(a, "rb"), *g = fopen(b, "rb");
    int c, d;
    do c = getc(f), d = getc(g);
    while (c == d && c != EOF);
    fclose(f);
    fclose(g);
    return c == d;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    char input[64], output[2][64], reason[1024];
    snprintf(input, sizeof input, "/proc/self/fd/%d", fd);
    for (int i = 0; i < 2; i++) snprintf(output[i], sizeof output[i], "/tmp/dtrain-fuzz-%d-%d.h5", (int)getpid(), i);
    must(write(fd, data + 2, size - 2) == (ssize_t)(size - 2));
    const char *inputs[] = {input};
    dt_make_options o = options(data[0], data[1], inputs);
    dt_make_stats stats, again;
    const dt_err err = make(&o, 1, output[0], &stats);
    must(err == DT_OK || ((err == DT_ERR_DATA || err == DT_ERR_USAGE) && dt_error_message()[0]));
    snprintf(reason, sizeof reason, "%s", dt_error_message());
    if (err == DT_OK) check(output[0], &stats);
    if (size % 8 == 0) { /* now and then: threads are slow to start */
        must(make(&o, 3, output[1], &again) == err);
        must(err != DT_OK ? strcmp(reason, dt_error_message()) == 0 : equal_files(output[0], output[1]));
        unlink(output[1]);
    }
    unlink(output[0]);
    close(fd);
    return 0;
}
