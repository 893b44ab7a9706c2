/* data_make_fixture.h - for tests that make datasets from an input of their own, in a folder of their own: usual
 * options, and a sample as a text. */
#ifndef DTRAIN_TESTS_DATA_MAKE_FIXTURE_H
#define DTRAIN_TESTS_DATA_MAKE_FIXTURE_H

#include "cases.h"
#include <jansson.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include "dtrain/data/data.h"
#include "dtrain/data/dataset.h"

#pragma GCC diagnostic ignored "-Wmissing-field-initializers" /* rows of tables omit default fields */

static char dir[64], input[128], output[128], other[128];

static inline dt_make_options options(void)
{
    static const char *inputs[1];
    inputs[0] = input;
    return (dt_make_options){.output = output,
                             .inputs = inputs,
                             .n_inputs = 1,
                             .kind = DT_ANY_KIND,
                             .format = DT_INPUT_JSON,
                             .documents = DT_DOCUMENTS_LINES,
                             .tokenizer = "bytes",
                             .chat_template = "plain",
                             .append_eos = true,
                             .force = true,
                             .n_threads = 2};
}

/* The kind of this name; NULL or "auto": any. */
static inline dt_dataset_kind kind_named(const char *name)
{
    int k = 0;
    while (k < DT_ANY_KIND && (!name || strcmp(name, dt_dataset_kind_name((dt_dataset_kind)k)) != 0)) k++;
    return (dt_dataset_kind)k;
}

static inline void write_input(const char *text)
{
    FILE *f = fopen(input, "w");
    fputs(text, f);
    fclose(f);
}

/* JSON may have apostrophes for quotation marks. */
static inline dt_err make(const char *text, const dt_make_options *o, dt_make_stats *stats)
{
    const bool json = o->format == DT_INPUT_JSON;
    if (text) write_input(json && strchr(text, '\'') ? quoted(text) : text);
    dt_error_clear();
    return dt_make_datasets(o, stats);
}

static inline dt_dataset *open_output(const char *path)
{
    dt_dataset *d;
    if (dt_dataset_open(&d, path) != DT_OK) print_message("%s\n", dt_error_message());
    assert_int_equal(dt_dataset_verify(d, NULL, NULL), DT_OK);
    return d;
}

/* One side of a sample; marks: from n_prompt on when that is not negative, else by the mask of sft. */
static inline void show(dt_dataset *d, dt_side side, int64_t i, int64_t n_prompt, char *out)
{
    int64_t first, n;
    assert_int_equal(dt_dataset_part(d, side, i, &first, &n), DT_OK);
    int32_t ids[4096];
    uint8_t mask[4096] = {0};
    assert_true(n < 4096);
    assert_int_equal(dt_dataset_read_side(d, side, first, n, ids), DT_OK);
    if (dt_dataset_get_info(d)->kind == DT_DATASET_SFT)
        assert_int_equal(dt_dataset_read_mask(d, first, n, mask), DT_OK);
    if (n_prompt >= 0) memset(mask + n_prompt, 1, (size_t)(n - n_prompt));
    for (int64_t k = 0; k < n; k++) {
        if (mask[k] && (k == 0 || !mask[k - 1])) *out++ = '{';
        *out++ = ids[k] == 256 ? '$' : (char)ids[k];
        if (mask[k] && (k + 1 == n || !mask[k + 1])) *out++ = '}';
    }
    *out = '\0';
}

static inline int open_folder(void **state)
{
    snprintf(dir, sizeof dir, "/tmp/dtrain-test-make-XXXXXX");
    if (!mkdtemp(dir)) return 1;
    snprintf(input, sizeof input, "%s/input", dir);
    snprintf(output, sizeof output, "%s/out.h5", dir);
    snprintf(other, sizeof other, "%s/other.json", dir);
    return 0;
}

static inline int clear(void **state) { return unlink(output), unlink(other), 0; }

static inline int remove_folder(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

#endif
