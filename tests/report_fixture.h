/* report_fixture.h - a report in the test's own folder, and the records written to it. */
#ifndef DTRAIN_TESTS_REPORT_FIXTURE_H
#define DTRAIN_TESTS_REPORT_FIXTURE_H

#include "cases.h"
#include <dirent.h>
#include <fcntl.h>

#include "dtrain/report/metrics.h"
#include "dtrain/report/report.h"

struct fixture {
    char dir[64], jsonl[96];
};

static inline int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    snprintf(f->dir, sizeof f->dir, "/tmp/dtrain-report-XXXXXX");
    if (!mkdtemp(f->dir)) return -1;
    snprintf(f->jsonl, sizeof f->jsonl, "%s/metrics.jsonl", f->dir);
    *state = f;
    dt_error_clear();
    return 0;
}

static inline int teardown(void **state)
{
    struct fixture *f = *state;
    DIR *d = opendir(f->dir);
    for (struct dirent *e; d && (e = readdir(d));) unlinkat(dirfd(d), e->d_name, 0);
    if (d) closedir(d);
    rmdir(f->dir);
    free(f);
    return 0;
}

static inline char *slurp(const char *path, size_t *nbytes)
{
    FILE *in = fopen(path, "rb");
    *nbytes = 0;
    if (!in) return NULL;
    char *text = calloc(1, 1 << 20);
    *nbytes = fread(text, 1, (1 << 20) - 1, in);
    fclose(in);
    return text;
}

static inline void spill(const char *path, const char *text)
{
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
}

static inline void assert_file(const char *path, const char *expected)
{
    size_t n;
    char *text = slurp(path, &n);
    assert_non_null(text);
    assert_string_equal(text, expected);
    free(text);
}

static inline dt_train_record record_of(int64_t step)
{
    return (dt_train_record){.step = step,
                             .loss = 2.5 + 1.0 / 3,
                             .lr = 3e-4,
                             .grad_norm = 0.5,
                             .tokens = 1024 * step,
                             .samples = 8 * step,
                             .step_time = 0.25,
                             .tokens_per_second = 4096,
                             .memory_device = 1 << 20,
                             .memory_pinned = 1 << 10,
                             .memory_host = 5LL << 32};
}

static inline dt_report *open_report(const struct fixture *f, const char *sinks, int64_t resume_step)
{
    dt_report *r = NULL;
    const dt_config cfg = {.run_output_dir = f->dir, .log_report_to = sinks};
    const dt_report_options opt = {.cfg = &cfg, .resume_step = resume_step, .total_steps = 100};
    assert_int_equal(dt_report_open(&r, &opt), DT_OK);
    return r;
}

static inline void train(dt_report *r, int64_t first, int64_t last)
{
    for (int64_t s = first; s <= last; s++) {
        const dt_train_record rec = record_of(s);
        assert_int_equal(dt_report_train(r, &rec), DT_OK);
    }
}

#endif
