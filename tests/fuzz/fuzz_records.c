/* fuzz_records.c - any bytes as JSON lines, as a JSON array and as text: a dataset that verifies, or an error with a reason. The first byte chooses how. */
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const documents[] = {"files", "lines", "paragraphs", "separator"}, *const templates[] = {"plain", "chatml",
                                                                                                                "alpaca"};
    if (size == 0) return 0;
    const unsigned how = data[0];
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    char input[64], output[64];
    snprintf(input, sizeof input, "/proc/self/fd/%d", fd);
    snprintf(output, sizeof output, "/tmp/dtrain-fuzz-%d.h5", (int)getpid());
    must(write(fd, data + 1, size - 1) == (ssize_t)(size - 1));
    const char *inputs[] = {input};
    const dt_make_options o = {.output = output,
                               .inputs = inputs,
                               .n_inputs = 1,
                               .kind = how & 1 ? "auto" : "sft",
                               .format = how & 2 ? "json" : "text",
                               .documents = documents[how / 4 % 4],
                               .separator = "ab",
                               .tokenizer = "bytes",
                               .chat_template = templates[how / 16 % 3],
                               .append_eos = how & 64,
                               .max_length = how & 128 ? 20 : 0,
                               .skip_bad = how & 128};
    dt_make_stats stats;
    dt_error_clear();
    const dt_err err = dt_make_datasets(&o, &stats);
    must(err == DT_OK || (err == DT_ERR_DATA && dt_error_message()[0]));
    if (err == DT_OK) {
        dt_dataset *d;
        must(dt_dataset_open(&d, output) == DT_OK && dt_dataset_verify(d) == DT_OK);
        must(dt_dataset_get_info(d)->n_documents == stats.n_documents && dt_dataset_get_info(d)->n_tokens == stats.n_tokens);
        dt_dataset_close(d);
        unlink(output);
    }
    close(fd);
    return 0;
}
