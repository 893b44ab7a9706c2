/* make_twice.h - for fuzz targets that make datasets: one that verifies, and that is the same with another number of
 * threads, or an error with a reason. */
#ifndef DTRAIN_TESTS_FUZZ_MAKE_TWICE_H
#define DTRAIN_TESTS_FUZZ_MAKE_TWICE_H

#include "dtrain/data/dataset.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void must(bool holds)
{
    if (!holds) abort();
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

/* twice: now and then, threads are slow to start. */
static void make_and_check(dt_make_options *o, bool twice)
{
    char output[2][64], reason[1024];
    for (int i = 0; i < 2; i++) snprintf(output[i], sizeof output[i], "/tmp/dtrain-fuzz-%d-%d.h5", (int)getpid(), i);
    dt_make_stats stats, again;
    const dt_err err = make(o, 1, output[0], &stats);
    must(err == DT_OK || ((err == DT_ERR_DATA || err == DT_ERR_USAGE) && dt_error_message()[0]));
    snprintf(reason, sizeof reason, "%s", dt_error_message());
    if (err == DT_OK) check(output[0], &stats);
    if (twice) {
        must(make(o, 3, output[1], &again) == err);
        must(err != DT_OK ? strcmp(reason, dt_error_message()) == 0 : equal_files(output[0], output[1]));
        unlink(output[1]);
    }
    unlink(output[0]);
}

#endif
