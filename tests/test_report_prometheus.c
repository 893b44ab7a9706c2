/* test_report_prometheus.c - the file for Prometheus: its contents, its replacement, and the end. */
#include "cases.h"
#include "report_fixture.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* The file without the texts of HELP, each of which precedes the TYPE of its family. */
static char *read_families(const char *path)
{
    size_t n;
    char *text = slurp(path, &n), *to = text;
    assert_non_null(text);
    for (char *line = text, *next; *line; line = next) {
        next = line + strcspn(line, "\n") + 1;
        if (next[-1] != '\n') fail_msg("%s: the last line is incomplete", path);
        if (!strncmp(line, "# HELP ", 7)) {
            const size_t name = strcspn(line + 7, " \n");
            if (line[7 + name] != ' ' || strncmp(next, "# TYPE ", 7) || strncmp(next + 7, line + 7, name + 1))
                fail_msg("%s: HELP without a text, or without TYPE after it: %s", path, line);
        } else {
            memmove(to, line, (size_t)(next - line));
            to += next - line;
        }
    }
    *to = '\0';
    return text;
}

/* The value of a family's first sample. */
static double value_of(const char *path, const char *family)
{
    char *text = read_families(path), want[80];
    snprintf(want, sizeof want, "\n%s{", family);
    const char *sample = strstr(text, want), *value = sample ? strstr(sample, "} ") : NULL;
    if (!value) fail_msg("%s: no %s", path, family);
    const double x = strtod(value + 2, NULL);
    free(text);
    return x;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

typedef struct prom_fixture {
    char file[128]; /* metrics.prom of the fixture's directory */
    dt_config cfg;
    dt_report *r;
} prom_fixture;

static void open_prom(prom_fixture *p, const struct fixture *f, const char *path)
{
    *p = (prom_fixture){.cfg = {.run_output_dir = f->dir, .log_report_to = "prometheus", .log_prometheus_path = path}};
    snprintf(p->file, sizeof p->file, "%s/metrics.prom", f->dir);
    const dt_report_options opt = {.cfg = &p->cfg, .total_steps = 100};
    assert_int_equal(dt_report_open(&p->r, &opt), DT_OK);
}

/* metric: the label name of a metric's sample. Only the first sample of a family follows a TYPE. */
typedef struct sample {
    const char *family, *value, *metric;
    bool counter, again;
} sample;

static void print_sample(FILE *out, const sample *s, const char *dir)
{
    if (!s->again) fprintf(out, "# TYPE dtrain_%s %s\n", s->family, s->counter ? "counter" : "gauge");
    fprintf(out, "dtrain_%s{output_dir=\"%s\"", s->family, dir);
    if (s->metric) fprintf(out, ",name=\"%s\"", s->metric);
    fprintf(out, "} %s\n", s->value);
}

TEST_WITH(a_record_has_a_family_for_each_field, setup, teardown)
{
    static const sample samples[] = {
        {.family = "running", .value = "1"},
        {.family = "steps", .value = "100"},
        {.family = "step", .value = "7"},
        {.family = "loss", .value = "2.83333333"},
        {.family = "learning_rate", .value = "0.0003"},
        {.family = "grad_norm", .value = "0.5"},
        {.family = "tokens_total", .value = "7168", .counter = true},
        {.family = "samples_total", .value = "56", .counter = true},
        {.family = "step_seconds", .value = "0.25"},
        {.family = "tokens_per_second", .value = "4096"},
        {.family = "memory_device_bytes", .value = "1048576"},
        {.family = "memory_pinned_bytes", .value = "1024"},
        {.family = "memory_host_bytes", .value = "21474836480"},
        {.family = "mfu_ratio", .value = "0.375"},
        {.family = "skipped", .value = "0"},
        {.family = "metric", .value = "0.25", .metric = "dpo/rewards/margins"},
        {.family = "metric", .value = "2", .metric = "twice", .again = true},
        {.family = "metric", .value = "1e-30", .metric = "\\\\ \\\"x\\\"\\n\xef\xbf\xbd", .again = true},
        {.family = "validation_step", .value = "6"},
        {.family = "validation_loss", .value = "0.666666667"},
        {.family = "validation_metric", .value = "0.25", .metric = "dpo/rewards/margins"}};
    prom_fixture p;
    struct fixture *f = *state;
    const dt_metric more[] = {{"dpo/rewards/margins", 0.25}, {"twice", 1}, {"twice", 2}, {"\\ \"x\"\n\xff", 1e-30}};
    dt_train_record rec = record_of(7);
    char full[PATH_MAX], *wanted;
    size_t nbytes;
    open_prom(&p, f, "");
    assert_true(value_of(p.file, "dtrain_steps") == 100);
    rec.more = more, rec.n_more = 4, rec.mfu = 0.375;
    assert_int_equal(dt_report_train(p.r, &rec), DT_OK);
    assert_int_equal(dt_report_validation(p.r, 6, 2.0 / 3, more, 1), DT_OK);
    assert_non_null(realpath(f->dir, full));
    FILE *out = open_memstream(&wanted, &nbytes);
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) print_sample(out, &samples[i], full);
    fclose(out);
    char *found = read_families(p.file);
    assert_string_equal(found, wanted);
    free(wanted);
    free(found);
    dt_report_close(p.r);
}

TEST_WITH(values_that_are_no_numbers_have_the_names_of_the_format, setup, teardown)
{
    prom_fixture p;
    dt_train_record rec = record_of(1);
    open_prom(&p, *state, "");
    rec.loss = -NAN, rec.grad_norm = INFINITY, rec.lr = -INFINITY;
    assert_int_equal(dt_report_train(p.r, &rec), DT_OK);
    static const char *const wanted[][2] = {
        {"\ndtrain_loss{", "} NaN\n"}, {"\ndtrain_grad_norm{", "} +Inf\n"}, {"\ndtrain_learning_rate{", "} -Inf\n"}};
    char *text = read_families(p.file);
    for (int i = 0; i < 3; i++) {
        const char *line = strstr(text, wanted[i][0]), *value = line ? strstr(line, "} ") : NULL;
        assert_true(value && !strncmp(value, wanted[i][1], strlen(wanted[i][1])));
    }
    free(text);
    dt_report_close(p.r);
}

TEST_WITH(a_directory_with_any_name_is_a_label, setup, teardown)
{
    prom_fixture p;
    struct fixture *f = *state;
    struct fixture odd;
    snprintf(odd.dir, sizeof odd.dir, "%.50s/a \"b\"\\\n", f->dir);
    assert_int_equal(mkdir(odd.dir, 0777), 0);
    open_prom(&p, &odd, "");
    char *text = read_families(p.file);
    assert_non_null(strstr(text, "/a \\\"b\\\"\\\\\\n\"} "));
    free(text);
    dt_report_close(p.r);
    unlink(p.file);
    rmdir(odd.dir);
}

TEST_WITH(short_steps_replace_the_file_once_a_second, setup, teardown)
{
    prom_fixture p;
    open_prom(&p, *state, "");
    train(p.r, 1, 3);
    assert_true(value_of(p.file, "dtrain_step") == 1);
    assert_int_equal(dt_report_flush(p.r), DT_OK); /* before a checkpoint */
    assert_true(value_of(p.file, "dtrain_step") == 3);
    train(p.r, 4, 4);
    assert_int_equal(dt_report_validation(p.r, 4, 1, NULL, 0), DT_OK);
    assert_true(value_of(p.file, "dtrain_step") == 4);
    train(p.r, 5, 5);
    usleep(1050000);
    train(p.r, 6, 6);
    assert_true(value_of(p.file, "dtrain_step") == 6);
    dt_report_close(p.r);
}

/* The reader's file always has as many metrics as the validation that it names. */
typedef struct reader {
    const char *path;
    atomic_bool stop;
    const char *wrong;
    int n_reads, n_changes;
} reader;

static int n_metrics_of(int64_t step) { return (int)(step % 50); }

static void *read_on(void *arg)
{
    static const char metric[] = "\ndtrain_validation_metric{", of[] = "\ndtrain_validation_step{";
    reader *r = arg;
    double before = -1;
    for (; !r->wrong && !atomic_load(&r->stop); r->n_reads++) {
        size_t nbytes;
        int n = 0;
        char *text = slurp(r->path, &nbytes), *line = text ? strstr(text, of) : NULL;
        const double step = line ? strtod(strstr(line, "} ") + 2, NULL) : 0;
        for (const char *at = text; line && (at = strstr(at, metric)); at++) n++;
        if (!text || nbytes == 0 || text[nbytes - 1] != '\n') r->wrong = "an incomplete file";
        if (line && n != n_metrics_of((int64_t)step)) r->wrong = "metrics of another validation";
        r->n_changes += line && step != before;
        before = step;
        free(text);
    }
    return NULL;
}

TEST_WITH(a_reader_never_sees_a_part_of_the_file, setup, teardown)
{
    enum { N_STEPS = 400 };
    prom_fixture p;
    pthread_t thread;
    char names[50][16];
    dt_metric more[50];
    for (int i = 0; i < 50; i++) {
        snprintf(names[i], sizeof names[i], "metric/%d", i);
        more[i] = (dt_metric){names[i], i};
    }
    open_prom(&p, *state, "");
    reader r = {.path = p.file};
    assert_int_equal(pthread_create(&thread, NULL, read_on, &r), 0);
    for (int64_t s = 1; s <= N_STEPS; s++)
        assert_int_equal(dt_report_validation(p.r, s, 1.0 / (double)s, more, n_metrics_of(s)), DT_OK);
    atomic_store(&r.stop, true);
    pthread_join(thread, NULL);
    if (r.wrong) fail_msg("read %d: %s", r.n_reads, r.wrong);
    assert_true(r.n_changes > 10);
    dt_report_close(p.r);
}

/* ---- errors and the end ------------------------------------------------------------------------------------------ */

TEST_WITH(the_file_in_output_dir_stays_and_says_that_the_run_has_ended, setup, teardown)
{
    prom_fixture p;
    open_prom(&p, *state, "");
    train(p.r, 1, 2);
    dt_report_close(p.r);
    assert_true(value_of(p.file, "dtrain_running") == 0 && value_of(p.file, "dtrain_step") == 2);
}

TEST_WITH(a_file_for_a_collector_is_removed_at_the_end, setup, teardown)
{
    prom_fixture p;
    char path[128], part[136];
    struct fixture *f = *state;
    snprintf(path, sizeof path, "%s/node.prom", f->dir);
    snprintf(part, sizeof part, "%s.part", path);
    open_prom(&p, f, path);
    train(p.r, 1, 1);
    assert_true(value_of(path, "dtrain_step") == 1);
    assert_int_not_equal(access(p.file, F_OK), 0);
    assert_int_not_equal(access(part, F_OK), 0);
    dt_report_close(p.r);
    assert_int_not_equal(access(path, F_OK), 0);
}

TEST_WITH(without_any_directory_there_is_no_file, setup, teardown)
{
    dt_report *r = NULL;
    dt_config cfg;
    assert_int_equal(dt_config_parse(&cfg, "here", "[log]\nreport_to = prometheus\n", 0, NULL), DT_OK);
    assert_int_equal(dt_report_open(&r, &(dt_report_options){.cfg = &cfg}), DT_OK);
    train(r, 1, 1);
    assert_int_equal(dt_report_flush(r), DT_OK);
    dt_report_close(r);
    dt_config_free(&cfg);
}

TEST_WITH(a_full_disk_is_an_error_and_the_last_file_stays, setup, teardown)
{
    prom_fixture p;
    open_prom(&p, *state, "");
    assert_int_equal(dt_report_validation(p.r, 1, 1, NULL, 0), DT_OK);
    struct rlimit old, tight;
    getrlimit(RLIMIT_FSIZE, &old);
    tight = old, tight.rlim_cur = 100;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &tight);
    const dt_err err = dt_report_validation(p.r, 2, 1, NULL, 0);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, handler);
    assert_fails(err, DT_ERR_WRITE, p.file);
    assert_true(value_of(p.file, "dtrain_validation_step") == 1);
    assert_int_equal(dt_report_validation(p.r, 3, 1, NULL, 0), DT_OK);
    assert_true(value_of(p.file, "dtrain_validation_step") == 3);
    dt_report_close(p.r);
}

TEST_WITH(a_run_outlives_the_directory_of_a_collector, setup, teardown)
{
    prom_fixture p;
    struct fixture *f = *state;
    char dir[128], path[140];
    snprintf(dir, sizeof dir, "%.100s/node", f->dir);
    snprintf(path, sizeof path, "%s/x.prom", dir);
    assert_int_equal(mkdir(dir, 0777), 0);
    open_prom(&p, f, path);
    assert_int_equal(unlink(path) | rmdir(dir), 0);
    for (int step = 1; step <= 2; step++) assert_int_equal(dt_report_validation(p.r, step, 1, NULL, 0), DT_OK);
    train(p.r, 3, 1);
    assert_int_equal(dt_report_flush(p.r), DT_OK);
    assert_int_equal(mkdir(dir, 0777), 0);
    assert_int_equal(dt_report_validation(p.r, 4, 1, NULL, 0), DT_OK);
    assert_true(value_of(path, "dtrain_validation_step") == 4);
    dt_report_close(p.r);
    assert_int_equal(rmdir(dir), 0);
}

TEST_WITH(a_file_that_cannot_be_written_is_named_and_nothing_is_removed, setup, teardown)
{
    struct fixture *f = *state;
    dt_report *r = NULL;
    char path[128];
    snprintf(path, sizeof path, "%s/node.prom", f->dir);
    mkdir(path, 0777);
    const dt_config cfg = {.run_output_dir = f->dir, .log_report_to = "prometheus", .log_prometheus_path = path};
    assert_fails(dt_report_open(&r, &(dt_report_options){.cfg = &cfg}), DT_ERR_WRITE, path);
    assert_null(r);
    assert_int_equal(rmdir(path), 0);
}

static dt_err check_path(const char *path)
{
    dt_config cfg;
    char text[300];
    snprintf(text, sizeof text, "[log]\nreport_to = prometheus\nprometheus_path = %s\n", path);
    assert_int_equal(dt_config_parse(&cfg, "here", text, 0, NULL), DT_OK);
    const dt_err err = dt_report_check(&cfg);
    dt_config_free(&cfg);
    return err;
}

TEST(names_that_a_collector_would_not_read_are_refused)
{
    assert_int_equal(check_path("/tmp/x.prom"), DT_OK);
    assert_int_equal(check_path("x.prom"), DT_OK);
    assert_fails(check_path("/tmp/x.txt"), DT_ERR_USAGE, "here:3: [log] prometheus_path: expected the name of a file");
    assert_fails(check_path("/nowhere/x.prom"), DT_ERR_USAGE, "found no directory /nowhere");
}

int main(void) { return run_listed("prometheus", NULL, NULL); }
