/* fuzz_rows.c - any bytes as rows of recommendation data, as an index, as an item file and as templates: a dataset that
 * verifies, and that is the same with another number of threads, or an error with a reason. The first two bytes choose
 * how. */
#include "dtrain/dataset.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FILES "tests/data/rec/"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) abort();
}

/* What `file` is is chosen, too; the other files are whole ones. */
static dt_make_options options(unsigned how, unsigned more, const char *file, const char **inputs)
{
    static const char *const recipes[] = {"sft", "rl", "eval", "sft"};
    static const char *const tasks[] = {NULL, "sids-sid,sids-title:2", "titles-title,titles-sid:1", "description-sid"};
    const bool index = !(more & 1), items = index && !(more & 2);
    dt_make_options o = {.inputs = inputs,
                         .n_inputs = 1,
                         .kind = "auto",
                         .format = "minionerec",
                         .documents = "files",
                         .tokenizer = FILES "qwen2",
                         .chat_template = "auto",
                         .mask = "auto",
                         .prefer = "better",
                         .truncate = more & 4 ? "keep_start" : "auto",
                         .max_length = more & 8 ? 50 : 0,
                         .append_eos = more & 16,
                         .skip_bad = more & 32,
                         .rec = {.recipe = recipes[how / 4 % 4],
                                 .tasks = tasks[how / 16 % 4],
                                 .index = index ? FILES "x.index.json" : NULL,
                                 .items = items ? FILES "x.item.json" : NULL,
                                 .category = more & 64 ? "Books" : NULL,
                                 .longest = more & 128}};
    inputs[0] = how % 4 == 0 ? file : FILES "x.csv";
    if (how % 4 == 1) o.rec.index = file;
    if (how % 4 == 2) o.rec.items = file;
    if (how % 4 == 3) o.chat_template = file;
    return o;
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
    char file[64], output[2][64], reason[1024];
    snprintf(file, sizeof file, "/tmp/dtrain-fuzz-%d.json", (int)getpid()); /* templates are known by their ending */
    for (int i = 0; i < 2; i++) snprintf(output[i], sizeof output[i], "/tmp/dtrain-fuzz-%d-%d.h5", (int)getpid(), i);
    FILE *f = fopen(file, "wb");
    must(f && fwrite(data + 2, 1, size - 2, f) == size - 2 && fclose(f) == 0);
    const char *inputs[1];
    dt_make_options o = options(data[0], data[1], file, inputs);
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
    unlink(file);
    return 0;
}
