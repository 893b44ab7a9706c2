/* test_report.c - metrics.jsonl, metrics.csv and the progress line. */
#include "cases.h"
#include "report_fixture.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "../src/report/metrics_jsonl.h"
#include "../src/report/progress.h"

/* ---- metrics.jsonl ----------------------------------------------------------------------------------------------- */

TEST_WITH(a_line_has_the_agreed_keys_and_nine_digits, setup, teardown)
{
    struct fixture *f = *state;
    dt_report *r = open_report(f, "jsonl", 0);
    const dt_metric more[] = {{"dpo/accuracy", 0.75}, {"odd \"name\"\\\t", 1e-30}};
    dt_train_record rec = record_of(7);
    rec.skipped = true;
    rec.more = more;
    rec.n_more = 2;
    assert_int_equal(dt_report_train(r, &rec), DT_OK);
    assert_int_equal(dt_report_validation(r, 7, 2.0 / 3, more, 1), DT_OK);
    assert_int_equal(dt_report_flush(r), DT_OK);
    dt_report_close(r);
    assert_file(f->jsonl, "{\"step\": 7, \"loss\": 2.83333333, \"lr\": 0.0003, \"grad_norm\": 0.5, \"tokens\": 7168, "
                          "\"samples\": 56, \"step_time\": 0.25, \"tokens_per_second\": 4096, \"memory_device\": "
                          "1048576, \"memory_pinned\": 1024, \"memory_host\": 21474836480, \"skipped\": true, "
                          "\"dpo/accuracy\": 0.75, \"odd \\\"name\\\"\\\\\\u0009\": 1e-30}\n"
                          "{\"step\": 7, \"validation_loss\": 0.666666667, \"dpo/accuracy\": 0.75}\n");
}

TEST_WITH(non_finite_values_become_null, setup, teardown)
{
    struct fixture *f = *state;
    dt_report *r = open_report(f, "jsonl", 0);
    dt_train_record rec = record_of(1);
    rec.loss = NAN;
    rec.grad_norm = INFINITY;
    assert_int_equal(dt_report_train(r, &rec), DT_OK);
    assert_int_equal(dt_report_validation(r, 1, -INFINITY, NULL, 0), DT_OK);
    dt_report_close(r);
    size_t n;
    char *text = slurp(f->jsonl, &n);
    assert_non_null(strstr(text, "\"loss\": null, "));
    assert_non_null(strstr(text, "\"grad_norm\": null, "));
    assert_non_null(strstr(text, "\"validation_loss\": null}"));
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    free(text);
}

TEST_WITH(a_record_is_in_the_file_when_the_call_returns, setup, teardown)
{
    struct fixture *f = *state;
    dt_report *r = open_report(f, "jsonl, tensorboard", 0);
    struct stat before, after;
    stat(f->jsonl, &before);
    train(r, 1, 1);
    stat(f->jsonl, &after);
    assert_int_equal(before.st_size, 0);
    assert_true(after.st_size > 100);
    dt_report_close(r);
}

TEST_WITH(resuming_leaves_no_gap_and_no_repeat, setup, teardown)
{
    struct fixture *f = *state;
    dt_report *r = open_report(f, "jsonl", 0);
    train(r, 1, 6);
    assert_int_equal(dt_report_validation(r, 6, 1, NULL, 0), DT_OK);
    train(r, 7, 9);
    dt_report_close(r);
    FILE *torn = fopen(f->jsonl, "a");
    fputs("{\"step\": 5, \"lo", torn);
    fclose(torn);

    r = open_report(f, "jsonl", 6);
    train(r, 7, 10);
    dt_report_close(r);

    dt_metrics m;
    assert_int_equal(dt_metrics_read(&m, f->jsonl), DT_OK);
    const double steps[] = {1, 2, 3, 4, 5, 6, 6, 7, 8, 9, 10};
    assert_int_equal(m.n_rows, 11);
    for (int i = 0; i < 11; i++) assert_true(dt_metrics_column(&m, "step")[i] == steps[i]);
    assert_true(isnan(dt_metrics_column(&m, "loss")[6]) && dt_metrics_column(&m, "validation_loss")[6] == 1);
    dt_metrics_free(&m);
    char part[128];
    snprintf(part, sizeof part, "%s.part", f->jsonl);
    assert_int_not_equal(access(part, F_OK), 0);
}

static void cut(const char *path, int64_t last_step)
{
    assert_int_equal(dt_jsonl_cut(path, &(dt_kept){.last_step = last_step, .every = 1}), DT_OK);
}

TEST_WITH(cutting_keeps_only_complete_records, setup, teardown)
{
    struct fixture *f = *state;
    spill(f->jsonl, "{\"step\": 1}\n[1]\n{\"step\": 2.5}\n\n{\"step\": -3}\n{\"loss\": 1}\n\"step\"\n{\"step\": 1, "
                    "\"step\n{\"step\": 2}\n{\"step\": 3}\n{\"step\": 2}");
    cut(f->jsonl, 2);
    assert_file(f->jsonl, "{\"step\": 1}\n{\"step\": 2}\n");
    /* nothing left to take away: the same bytes again */
    cut(f->jsonl, 2);
    assert_file(f->jsonl, "{\"step\": 1}\n{\"step\": 2}\n");
    cut(f->jsonl, 0);
    assert_file(f->jsonl, "");
}

/* A step that occurs twice, anywhere: its newest record and the validations after that are kept, in order. An
 * evaluation added later does not belong to an older branch. */
TEST_WITH(each_step_is_kept_once, setup, teardown)
{
    struct fixture *f = *state;
    spill(f->jsonl, "{\"step\": 1}\n{\"step\": 2, \"a\": 1}\n{\"step\": 2, \"validation_loss\": 1}\n{\"step\": 3}\n"
                    "{\"step\": 4, \"a\": 1}\n{\"step\": 2, \"a\": 2}\n{\"step\": 2, \"validation_loss\": 2}\n"
                    "{\"step\": 2, \"validation_loss\": 3}\n{\"step\": 4, \"a\": 2}\n{\"step\": 5}\n");
    cut(f->jsonl, 4);
    const char *once = "{\"step\": 1}\n{\"step\": 2, \"a\": 2}\n{\"step\": 2, \"validation_loss\": 2}\n"
                       "{\"step\": 2, \"validation_loss\": 3}\n{\"step\": 3}\n{\"step\": 4, \"a\": 2}\n";
    assert_file(f->jsonl, once);
    cut(f->jsonl, 4);
    assert_file(f->jsonl, once);
}

TEST(a_missing_step_is_found)
{
    const struct {
        int64_t steps[6]; /* 0: the end; below: a validation's */
        int64_t last_step, every, missing, at;
    } cases[] = {
        {{1, 2, 3}, 3, 1, 0, 0},
        {{1, 2, 5, 6}, 6, 1, 3, 2},
        {{1, 2, 3}, 5, 1, 4, 3},          /* at the end */
        {{1, 2, -3, 4}, 4, 1, 3, 3},      /* a validation is no record of its step */
        {{1, 2, 3}, INT64_MAX, 1, 0, 0},  /* of an evaluation, which has no end */
        {{10, 20, 25, 30}, 34, 10, 0, 0}, /* the stop at 25 */
        {{10, 20, 40}, 40, 10, 30, 2},
        {{10, 20, 30}, 30, 1, 0, 0}, /* log.logging_steps was 10 */
        {{0}, 7, 1, 0, 0},           /* the file was moved away */
        {{5, 6, 7}, 7, 1, 1, 0},     /* its beginning is gone */
        {{-4, 5, -5, 6, 7}, 7, 1, 1, 1},
        {{10}, 10, 1, 0, 0}, /* one alone does not tell what log.logging_steps was */
        {{10, 20}, 20, 3, 0, 0},
        {{5, 6, 7}, INT64_MAX, 1, 0, 0},
        {{1, 2}, 2, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const dt_kept kept = {.last_step = cases[i].last_step, .every = cases[i].every};
        dt_lines l = {0};
        int64_t at;
        for (int k = 0; k < 6 && cases[i].steps[k]; k++) {
            const int64_t step = cases[i].steps[k];
            const dt_line line = {.step = llabs(step), .offset = k, .is_validation = step < 0};
            assert_int_equal(dt_lines_add(&l, "", &kept, line), DT_OK);
        }
        dt_lines_settle(&l);
        const int64_t missing = dt_lines_hole(&l, &kept, &at);
        if (missing != cases[i].missing) print_message("case %zu: step %lld\n", i, (long long)missing);
        assert_int_equal(missing, cases[i].missing);
        if (missing) assert_int_equal(at, cases[i].at);
        free(l.line);
    }
}

TEST_WITH(cutting_a_long_file_keeps_every_byte, setup, teardown)
{
    struct fixture *f = *state; /* longer than one write */
    dt_report *r = open_report(f, "jsonl", 0);
    train(r, 1, 1500);
    dt_report_close(r);
    size_t before, after;
    char *a = slurp(f->jsonl, &before);
    cut(f->jsonl, 1500);
    char *b = slurp(f->jsonl, &after);
    assert_true(before > 2 << 16 && before < (1 << 20) - 1);
    assert_int_equal(before, after);
    assert_memory_equal(a, b, before);
    free(a);
    free(b);
}

TEST_WITH(fresh_start_truncates_and_resume_accepts_a_missing_file, setup, teardown)
{
    struct fixture *f = *state;
    spill(f->jsonl, "{\"step\": 99}\n");
    dt_report_close(open_report(f, "jsonl", 0));
    assert_file(f->jsonl, "");
    unlink(f->jsonl);
    dt_report *r = open_report(f, "jsonl", 5);
    train(r, 6, 6);
    dt_report_close(r);
    dt_metrics m;
    assert_int_equal(dt_metrics_read(&m, f->jsonl), DT_OK);
    assert_int_equal(m.n_rows, 1);
    dt_metrics_free(&m);
}

/* A file size limit simulates a full disk: write() takes a part of the record first and then fails. */
TEST_WITH(full_disk_is_reported_and_leaves_complete_lines, setup, teardown)
{
    struct fixture *f = *state;
    dt_report *r = open_report(f, "jsonl", 0);
    train(r, 1, 1);
    struct stat st;
    stat(f->jsonl, &st);
    const int64_t one = st.st_size;
    struct rlimit old, tight;
    getrlimit(RLIMIT_FSIZE, &old);
    tight = old;
    tight.rlim_cur = (rlim_t)(one + one / 2);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &tight);
    const dt_train_record rec = record_of(2);
    const dt_err err = dt_report_train(r, &rec);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, handler);
    stat(f->jsonl, &st);
    assert_fails(err, DT_ERR_WRITE, f->jsonl);
    assert_int_equal(st.st_size, one);
    dt_error_clear();
    train(r, 2, 2); /* space is available again: continues after the last complete line */
    dt_report_close(r);
    dt_metrics m;
    assert_int_equal(dt_metrics_read(&m, f->jsonl), DT_OK);
    assert_int_equal(m.n_rows, 2);
    dt_metrics_free(&m);
}

TEST_WITH(what_cannot_be_opened_is_named, setup, teardown)
{
    struct fixture *f = *state;
    dt_report *r = (dt_report *)state;
    mkdir(f->jsonl, 0777); /* a directory exists at the file's path */
    const dt_config cfg = {.run_output_dir = f->dir, .log_report_to = "jsonl, tensorboard"};
    const dt_report_options opt = {.cfg = &cfg};
    assert_fails(dt_report_open(&r, &opt), DT_ERR_WRITE, f->jsonl);
    assert_null(r);
    dt_error_clear();
    rmdir(f->jsonl);
}

TEST(a_closed_report_takes_everything)
{
    const dt_train_record rec = record_of(1);
    assert_int_equal(dt_report_train(NULL, &rec), DT_OK);
    assert_int_equal(dt_report_validation(NULL, 1, 1, NULL, 0), DT_OK);
    assert_int_equal(dt_report_flush(NULL), DT_OK);
    dt_report_close(NULL);
}

/* ---- metrics.csv ------------------------------------------------------------------------------------------------- */

#define CSV_FIXED                                                                                                      \
    "step,loss,lr,grad_norm,tokens,samples,step_time,tokens_per_second,memory_device,memory_host,skipped,validation_"  \
    "loss"
#define CSV_NEW CSV_FIXED ",memory_pinned"

TEST_WITH(csv_columns_keep_their_places, setup, teardown)
{
    struct fixture *f = *state;
    dt_report *r = NULL;
    char path[128];
    const dt_config cfg = {.run_output_dir = f->dir, .log_report_to = "csv"};
    dt_report_options opt = {.cfg = &cfg};
    const dt_metric first[] = {{"accuracy", 0.5}}, valid[] = {{"perplexity", NAN}, {"odd, \"name\"", -2}},
                    both[] = {{"perplexity", 4}, {"accuracy", 0.25}};
    dt_train_record rec = {
        .step = 1, .loss = 1.0 / 3, .lr = 1e-3, .tokens = 1LL << 40, .memory_pinned = 7, .more = first, .n_more = 1};
    snprintf(path, sizeof path, "%s/metrics.csv", f->dir);
    assert_int_equal(dt_report_open(&r, &opt), DT_OK);
    assert_int_equal(dt_report_train(r, &rec), DT_OK);
    assert_int_equal(dt_report_validation(r, 1, 2.5, valid, 2), DT_OK);
    rec = (dt_train_record){.step = 2, .loss = INFINITY, .skipped = true, .more = both, .n_more = 2};
    assert_int_equal(dt_report_train(r, &rec), DT_OK);
    dt_report_close(r);
    const char *const two =
        CSV_NEW ",accuracy,perplexity,\"odd, \"\"name\"\"\"\n1,0.333333333,0.001,0,1099511627776,0,0,0,0,0,0,,7,0.5,,\n"
                "1,,,,,,,,,,,2.5,,,nan,-2\n";
    char expected[1000];
    snprintf(expected, sizeof expected, "%s2,inf,0,0,0,0,0,0,0,0,1,,0,0.25,4,\n", two);
    assert_file(path, expected);

    /* a resumed run continues the file: the same columns, no duplicate row, no torn row */
    FILE *torn = fopen(path, "a");
    fputs("3,0.1", torn);
    fclose(torn);
    opt.resume_step = 1;
    assert_int_equal(dt_report_open(&r, &opt), DT_OK);
    assert_file(path, two);
    rec = (dt_train_record){.step = 2, .loss = 1, .more = first, .n_more = 1};
    assert_int_equal(dt_report_train(r, &rec), DT_OK);
    dt_report_close(r);
    snprintf(expected, sizeof expected, "%s2,1,0,0,0,0,0,0,0,0,0,,0,0.5,,\n", two);
    assert_file(path, expected);
    opt.resume_step = 0;
    assert_int_equal(dt_report_open(&r, &opt), DT_OK);
    dt_report_close(r);
    assert_file(path, CSV_NEW "\n");
}

TEST_WITH(an_older_table_gets_the_column_of_pinned_memory, setup, teardown)
{
    struct fixture *f = *state;
    dt_report *r = NULL;
    char path[128];
    const dt_config cfg = {.run_output_dir = f->dir, .log_report_to = "csv"};
    const dt_report_options opt = {.cfg = &cfg, .resume_step = 1};
    const dt_train_record rec = {.step = 2, .loss = 1, .memory_pinned = 7};
    snprintf(path, sizeof path, "%s/metrics.csv", f->dir);
    spill(path, CSV_FIXED ",accuracy\n1,2,0,0,0,0,0,0,0,0,0,,0.5\n");
    assert_int_equal(dt_report_open(&r, &opt), DT_OK);
    assert_int_equal(dt_report_train(r, &rec), DT_OK);
    dt_report_close(r);
    assert_file(path, CSV_FIXED ",accuracy,memory_pinned\n1,2,0,0,0,0,0,0,0,0,0,,0.5,\n2,1,0,0,0,0,0,0,0,0,0,,,7\n");
}

TEST_WITH(each_row_is_kept_once, setup, teardown)
{
    struct fixture *f = *state;
    dt_report *r = NULL;
    char path[128];
    const dt_config cfg = {.run_output_dir = f->dir, .log_report_to = "csv"};
    const dt_report_options opt = {.cfg = &cfg, .resume_step = 3};
    snprintf(path, sizeof path, "%s/metrics.csv", f->dir);
    spill(path, CSV_FIXED ",x\n1,9,0\n2,8,0\n2,,,,,,,,,,,5,\n3,7,0\n2,6,0\n2,,,,,,,,,,,4,\n4,5,0\n");
    assert_int_equal(dt_report_open(&r, &opt), DT_OK);
    dt_report_close(r);
    assert_file(path, CSV_FIXED ",x\n1,9,0,,,,,,,,,,\n2,6,0,,,,,,,,,,\n2,,,,,,,,,,,4,\n3,7,0,,,,,,,,,,\n");
}

TEST_WITH(a_pipe_is_not_a_metrics_file, setup, teardown)
{
    struct fixture *f = *state;
    dt_metrics m;
    unlink(f->jsonl);
    assert_int_equal(mkfifo(f->jsonl, 0600), 0);
    alarm(20); /* opened to be read, it would wait for a writer */
    assert_int_equal(dt_metrics_read(&m, f->jsonl), DT_ERR_DATA);
    alarm(0);
    assert_says("expected a file");
    dt_error_clear();
    unlink(f->jsonl);
}

TEST_WITH(a_table_of_something_else_is_refused, setup, teardown)
{
    struct fixture *f = *state;
    dt_report *r = NULL;
    char path[128];
    const dt_config cfg = {.run_output_dir = f->dir, .log_report_to = "jsonl, csv"};
    const dt_report_options opt = {.cfg = &cfg, .resume_step = 1};
    const char *records = "{\"step\": 1}\n{\"step\": 2}\n"; /* nothing was cut before it was looked at */
    snprintf(path, sizeof path, "%s/metrics.csv", f->dir);
    spill(path, "name,age\nme,3\n");
    spill(f->jsonl, records);
    assert_fails(dt_report_open(&r, &opt), DT_ERR_DATA, "column step at position 1");
    assert_file(path, "name,age\nme,3\n");
    assert_file(f->jsonl, records);
}

static dt_err check_sinks(const char *text)
{
    dt_config cfg;
    assert_int_equal(dt_config_parse(&cfg, "here", text, 0, NULL), DT_OK);
    const dt_err err = dt_report_check(&cfg);
    dt_config_free(&cfg);
    return err;
}

TEST(sinks_are_chosen_by_name)
{
    assert_int_equal(check_sinks("[log]\nreport_to = csv, stdout\n"), DT_OK);
    assert_int_equal(check_sinks("[log]\nreport_to = jsonl, comet\n"), DT_ERR_USAGE);
    assert_string_equal(dt_error_message(), "here:2: [log] report_to: expected any of stdout, jsonl, csv, tensorboard, "
                                            "prometheus, found 'comet'");
    dt_error_clear();
    assert_fails(check_sinks("[log]\nreport_to = wandb\n"), DT_ERR_USAGE, "wandb_offline.py");
}

TEST_WITH(without_a_directory_no_file_is_written, setup, teardown)
{
    struct fixture *f = *state;
    dt_report *r = NULL;
    dt_config cfg;
    assert_int_equal(dt_config_parse(&cfg, "here", "[log]\nreport_to = jsonl, csv, tensorboard\n", 0, NULL), DT_OK);
    assert_int_equal(chdir(f->dir), 0);
    assert_int_equal(dt_report_open(&r, &(dt_report_options){.cfg = &cfg}), DT_OK);
    train(r, 1, 1);
    dt_report_close(r);
    dt_config_free(&cfg);
    assert_int_equal(rmdir(f->dir), 0); /* it is empty */
    assert_int_equal(chdir("/"), 0);
}

TEST(records_that_a_resumed_run_truncates_are_listed)
{
    assert_string_equal(dt_report_record(0), "metrics.jsonl");
    assert_string_equal(dt_report_record(1), "metrics.csv");
    assert_null(dt_report_record(2));
}

/* ---- the progress line ------------------------------------------------------------------------------------------- */

TEST(the_progress_line_is_complete)
{
    dt_text text = {0};
    dt_train_record rec = record_of(25);
    rec.flops_per_second = 4.1e9;
    dt_progress_format(&text, &rec, 200, 3725);
    assert_string_equal(
        text.bytes,
        "step 25/200 (12%)  loss 2.8333  grad 0.5  lr 3.00e-04  4.10k tok/s  left 1h02m  mem 1.00 MiB  4.10Gflop/s");
    rec.memory_device = 0;
    rec.mfu = 0.4125, rec.flops_per_second = 0;
    rec.skipped = true;
    dt_progress_format(&text, &rec, 0, -1);
    assert_string_equal(text.bytes,
                        "step 25  loss 2.8333  grad 0.5  lr 3.00e-04  4.10k tok/s  mem 20.0 GiB  MFU 41.2 %  skipped");
    const dt_metric more[] = {{"grpo/rewards/reward", 1}, {"margins", NAN}, {"grpo/reward", -0.03125}};
    static const char *const watch[] = {"grpo/reward", "grpo/kl", "margins", NULL};
    rec.more = more, rec.n_more = 3, rec.watch = watch;
    dt_progress_format(&text, &rec, 0, -1);
    assert_string_equal(text.bytes, "step 25  loss 2.8333  reward -0.03125  margins -  grad 0.5  lr 3.00e-04  4.10k "
                                    "tok/s  mem 20.0 GiB  MFU 41.2 %  skipped");
    rec.n_more = 0, rec.loss = -NAN, rec.grad_norm = -NAN, rec.mfu = 0; /* a NaN has no sign there */
    dt_progress_format(&text, &rec, 0, -1);
    assert_string_equal(text.bytes, "step 25  loss nan  grad nan  lr 3.00e-04  4.10k tok/s  mem 20.0 GiB  skipped");
    dt_text_free(&text);
}

TEST(a_validation_line_has_units)
{
    dt_text text = {0};
    const dt_metric more[] = {{"perplexity", 12.25},        {"validation_accuracy", 0.305}, {"validation_entropy", 1.5},
                              {"validation_targets", 4096}, {"validation_samples", 64},     {"validation_time", 2.34},
                              {"rec/hr@10", 0.125}};
    const dt_metric bad = {"rec/hr@10", -NAN};
    dt_progress_format_validation(&text, 25, 200, 2.50553, more, 7);
    assert_string_equal(text.bytes,
                        "step 25/200  validation  perplexity 12.25  accuracy 30.5 %  entropy 1.5 nats  4096 target "
                        "tokens  64 samples  in 2.34 s  HR@10 0.125"); /* whose loss is -NDCG, and not shown */
    dt_progress_format_validation(&text, 25, 200, 2.50553, more, 6);
    assert_string_equal(text.bytes, "step 25/200  validation loss 2.5055  perplexity 12.25  accuracy 30.5 %  entropy "
                                    "1.5 nats  4096 target tokens  64 samples  in 2.34 s");
    dt_progress_format_validation(&text, 25, 200, -NAN, &bad, 1);
    assert_null(strstr(text.bytes, "-nan"));
    assert_non_null(strstr(text.bytes, "HR@10 nan"));
    dt_text_free(&text);
}

/* Reports once a second (or a tenth) for a day: a screenful a minute at the most, and never ten minutes of silence. */
TEST(lines_of_a_log_are_sparse_and_steady)
{
    const struct {
        double step_s, until_s;
        int most, least;
    } cases[] = {
        {0.1, 1.05, 10, 10}, {0.1, 60, 16, 15}, {1, 3600, 165, 150}, {1, 86400, 400, 300}, {900, 86400, 96, 95}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_cadence c = {0};
        int n = 0;
        double last = 0, longest = 0;
        for (int64_t k = 1; (double)k * cases[i].step_s < cases[i].until_s; k++) {
            const double now = (double)k * cases[i].step_s;
            if (!dt_cadence_shows(&c, -1, 0, now)) continue;
            longest = fmax(longest, now - last);
            last = now;
            n++;
        }
        assert_in_range(n, cases[i].least, cases[i].most);
        assert_true(longest <= fmax(600, cases[i].step_s) + cases[i].step_s);
    }
    dt_cadence all = {0}, minute = {0};
    int n = 0;
    for (int s = 1; s <= 600; s++) {
        assert_true(dt_cadence_shows(&all, 0, 0, s));
        n += dt_cadence_shows(&minute, 60, 0, s);
    }
    assert_int_equal(n, 10);
}

TEST(durations_are_short)
{
    const struct {
        double s;
        const char *text;
    } cases[] = {{0, "0s"},         {59.4, "59s"},    {59.6, "1m00s"}, {3599, "59m59s"}, {3600, "1h00m"},
                 {86399, "23h59m"}, {90000, "1d01h"}, {NAN, "?"},      {-1, "?"},        {INFINITY, "?"}};
    char out[24];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(dt_format_duration(cases[i].s, out), cases[i].text);
}

static dt_err write_lines(dt_journal *j, const char *lines, dt_err err)
{
    FILE *out;
    assert_int_equal(dt_journal_begin(j, &out), DT_OK);
    fputs(lines, out);
    return dt_journal_end(j, err);
}

static void add_lines(dt_journal *j, const char *lines) { assert_int_equal(write_lines(j, lines, DT_OK), DT_OK); }

/* More than its buffer holds, so that some of it is in the file already. */
TEST_WITH(abandoned_lines_leave_no_files, setup, teardown)
{
    enum { N = 100000 };
    static char many[N + 1];
    struct fixture *f = *state;
    dt_journal *j;
    memset(many, 'x', N);
    assert_int_equal(dt_journal_open(&j, f->jsonl, 0), DT_OK);
    add_lines(j, "{\"step\": 1}\n");
    assert_int_equal(write_lines(j, many, DT_ERR_DATA), DT_ERR_DATA);
    add_lines(j, "{\"step\": 2}\n");
    dt_journal_close(j);
    assert_file(f->jsonl, "{\"step\": 1}\n{\"step\": 2}\n");
}

/* Several lines per step; a resume removes those of later steps and a truncated line. */
TEST_WITH(a_journal_continues_after_a_step, setup, teardown)
{
    static const char one[] = "{\"step\": 1, \"a\": 1}\n{\"step\": 1, \"a\": 2}\n", three[] = "{\"step\": 3}\n";
    struct fixture *f = *state;
    dt_journal *j;
    for (int64_t last = 0; last <= 1; last++) {
        assert_int_equal(dt_journal_open(&j, f->jsonl, last), DT_OK);
        if (last == 0) add_lines(j, one);
        add_lines(j, three);
        add_lines(j, "{\"step\": 1, ");
        assert_int_equal(dt_journal_sync(j), DT_OK);
        dt_journal_close(j);
    }
    char expected[200];
    snprintf(expected, sizeof expected, "%s%s{\"step\": 1, ", one, three);
    assert_file(f->jsonl, expected);
    assert_int_equal(dt_journal_open(&j, f->jsonl, 0), DT_OK);
    dt_journal_close(j);
    assert_file(f->jsonl, "");
}

int main(void) { return run_listed("report", NULL, NULL); }
