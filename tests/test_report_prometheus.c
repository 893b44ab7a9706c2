/* test_report_prometheus.c - the file for Prometheus: its format, by a strict parser; replacement; the end. */
#include "cases.h"
#include "report_fixture.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "dtrain/text/utf8.h"

/* ---- a parser of the text format 0.0.4 --------------------------------------------------------------------------- */

enum { MOST_SAMPLES = 128 };
typedef struct sample {
    char family[64];
    char dir[256], name[256]; /* the labels output_dir and name, without escapes */
    double value;
} sample;

typedef struct parsed {
    sample sample[MOST_SAMPLES];
    int n;
    char family[64]; /* the present one */
    bool is_typed;   /* its TYPE is known */
} parsed;

static bool is_name(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isalpha((unsigned char)text[i]) && text[i] != '_' && (i == 0 || !isdigit((unsigned char)text[i])))
            return false;
    return n > 0;
}

/* Each of these returns NULL, or what is wrong. */
static const char *parse_label_value(const char **at, char out[256])
{
    size_t n = 0;
    const char *p = *at;
    if (*p++ != '"') return "a label without quotes";
    for (; *p != '"'; p++) {
        if (*p == '\n' || !*p || n == 255) return "a label without an end";
        if (*p == '\\' && (!*++p || !strchr("\\\"n", *p))) return "an unknown escape";
        out[n++] = (char)(p[-1] == '\\' && *p == 'n' ? '\n' : *p);
    }
    *at = p + 1;
    return dt_utf8_valid(out, n) == n ? NULL : "a label that is not UTF-8";
}

static const char *parse_label(const char **at, sample *s)
{
    const size_t n = strcspn(*at, "=\n");
    if (!is_name(*at, n)) return "a label without a name";
    char *to = n == 10 && !strncmp(*at, "output_dir", n) ? s->dir : n == 4 && !strncmp(*at, "name", n) ? s->name : NULL;
    if (!to) return "an unknown label";
    if (*to) return "a label twice";
    *at += n + 1;
    return parse_label_value(at, to);
}

static const char *parse_value(const char *text, size_t n, double *value)
{
    char *end;
    if (n == 3 && !strncmp(text, "NaN", n)) return *value = NAN, NULL;
    if (n == 4 && !strncmp(text, "+Inf", n)) return *value = INFINITY, NULL;
    if (n == 4 && !strncmp(text, "-Inf", n)) return *value = -INFINITY, NULL;
    *value = strtod(text, &end);
    return n > 0 && strspn(text, "0123456789+-.e") == n && end == text + n ? NULL : "no number, or a time after it";
}

static const char *parse_sample(const char *line, parsed *out)
{
    const size_t n = strlen(out->family);
    sample *s = &out->sample[out->n];
    if (out->n == MOST_SAMPLES) return "too many samples";
    if (!out->is_typed || strncmp(line, out->family, n) != 0 || line[n] != '{') return "a sample of another family";
    *s = (sample){0};
    memcpy(s->family, out->family, sizeof s->family);
    const char *p = line + n, *wrong;
    do {
        p++;
        if ((wrong = parse_label(&p, s))) return wrong;
    } while (*p == ',');
    if (strncmp(p, "} ", 2) != 0) return "labels without an end";
    if ((wrong = parse_value(p + 2, strcspn(p + 2, "\n"), &s->value))) return wrong;
    for (int i = 0; i < out->n; i++)
        if (!strcmp(out->sample[i].family, s->family) && !strcmp(out->sample[i].name, s->name)) return "a sample twice";
    out->n++;
    return NULL;
}

/* A family begins with HELP, then TYPE. */
static const char *parse_comment(const char *line, parsed *out)
{
    const bool help = !strncmp(line, "# HELP ", 7);
    if (!help && strncmp(line, "# TYPE ", 7) != 0) return "neither HELP nor TYPE";
    const char *name = line + 7, *rest = name + strcspn(name, " \n");
    const size_t n = (size_t)(rest - name);
    if (!is_name(name, n) || n >= sizeof out->family || *rest++ != ' ') return "a family without a name";
    if (!help) {
        const bool total = n > 6 && !strncmp(rest - 7, "_total", 6);
        if (out->is_typed || strlen(out->family) != n || strncmp(out->family, name, n) != 0) return "TYPE without HELP";
        if (strncmp(rest, total ? "counter\n" : "gauge\n", total ? 8 : 6) != 0) return "a wrong TYPE";
        out->is_typed = true;
        return NULL;
    }
    if (*rest == '\n') return "HELP without a text";
    if (*out->family && (out->n == 0 || strcmp(out->sample[out->n - 1].family, out->family) != 0)) return "no sample";
    snprintf(out->family, sizeof out->family, "%.*s", (int)n, name);
    out->is_typed = false;
    for (int i = 0; i < out->n; i++)
        if (!strcmp(out->sample[i].family, out->family)) return "a family in two places";
    return NULL;
}

static const char *parse(const char *text, size_t nbytes, parsed *out)
{
    *out = (parsed){0};
    if (nbytes == 0 || text[nbytes - 1] != '\n' || strlen(text) != nbytes) return "an incomplete text";
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        const char *wrong = *line == '#' ? parse_comment(line, out) : parse_sample(line, out);
        if (wrong) return wrong;
    }
    return out->n > 0 && !strcmp(out->sample[out->n - 1].family, out->family) ? NULL : "no sample";
}

static const char *parse_file(const char *path, parsed *out)
{
    size_t n;
    char *text = slurp(path, &n);
    const char *wrong = text ? parse(text, n, out) : "no file";
    free(text);
    return wrong;
}

static const sample *find(const parsed *p, const char *family, const char *name)
{
    for (int i = 0; i < p->n; i++)
        if (!strcmp(p->sample[i].family, family) && !strcmp(p->sample[i].name, name)) return &p->sample[i];
    return NULL;
}

static double value_of(const char *path, const char *family, const char *name)
{
    parsed p;
    const char *wrong = parse_file(path, &p);
    if (wrong) fail_msg("%s: %s", path, wrong);
    const sample *s = find(&p, family, name);
    if (!s) fail_msg("%s: no %s{name=\"%s\"}", path, family, name);
    return s->value;
}

TEST(the_parser_is_strict)
{
#define HEAD "# HELP a x\n# TYPE a gauge\n"
    static const char *const wrong[] = {"",
                                        HEAD,
                                        HEAD "a{name=\"b\"} 1",
                                        HEAD "a 1\n",
                                        HEAD "b{name=\"b\"} 1\n",
                                        HEAD "a{name=\"b\"} 1 2\n",
                                        HEAD "a{name=\"b\"} nan\n",
                                        HEAD "a{name=\"b\"} Inf\n",
                                        HEAD "a{name=\"b\"} \n",
                                        HEAD "a{name=\"\\t\"} 1\n",
                                        HEAD "a{name=\"b} 1\n",
                                        HEAD "a{name=\"\xff\"} 1\n",
                                        HEAD "a{name=\"b\",name=\"c\"} 1\n",
                                        HEAD "a{1=\"b\"} 1\n",
                                        HEAD "a{name=\"b\"} 1\na{name=\"b\"} 2\n",
                                        HEAD "a{name=\"b\"} 1\n\n",
                                        HEAD HEAD "a{name=\"b\"} 1\n",
                                        HEAD "a{name=\"b\"} 1\n# HELP b x\n# TYPE b gauge\nb{name=\"b\"} 1\n" HEAD
                                             "a{name=\"c\"} 1\n",
                                        "# TYPE a gauge\na{name=\"b\"} 1\n",
                                        "# HELP a x\n# TYPE a counter\na{name=\"b\"} 1\n",
                                        "# HELP a_total x\n# TYPE a_total gauge\na_total{name=\"b\"} 1\n",
                                        "# HELP a\n# TYPE a gauge\na{name=\"b\"} 1\n"};
    parsed p;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (!parse(wrong[i], strlen(wrong[i]), &p)) fail_msg("accepted: %s", wrong[i]);
    static const char right[] = HEAD "a{output_dir=\"/x\",name=\"b\\\\\\\"\\n\"} -1.5e-3\n"
                                     "# HELP b_total x\n# TYPE b_total counter\nb_total{name=\"b\"} +Inf\n";
    assert_null(parse(right, sizeof right - 1, &p));
    assert_int_equal(p.n, 2);
    assert_string_equal(p.sample[0].name, "b\\\"\n");
    assert_true(p.sample[0].value == -1.5e-3 && p.sample[1].value == INFINITY);
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

TEST_WITH(a_record_has_a_family_for_each_field, setup, teardown)
{
    prom_fixture p;
    struct fixture *f = *state;
    const dt_metric more[] = {{"dpo/rewards/margins", 0.25}, {"twice", 1}, {"twice", 2}, {"\\ \"x\"\n\xff", 1e-30}};
    dt_train_record rec = record_of(7);
    char full[PATH_MAX];
    parsed out;
    open_prom(&p, f, "");
    assert_true(value_of(p.file, "dtrain_running", "") == 1 && value_of(p.file, "dtrain_steps", "") == 100);
    rec.more = more, rec.n_more = 4, rec.mfu = 0.375;
    assert_int_equal(dt_report_train(p.r, &rec), DT_OK);
    assert_int_equal(dt_report_validation(p.r, 6, 2.0 / 3, more, 1), DT_OK);
    assert_null(parse_file(p.file, &out));
    const struct {
        const char *family, *name;
        double value;
    } expected[] = {{"step", "", 7},
                    {"loss", "", 2.83333333},
                    {"learning_rate", "", 3e-4},
                    {"grad_norm", "", 0.5},
                    {"tokens_total", "", 7168},
                    {"samples_total", "", 56},
                    {"step_seconds", "", 0.25},
                    {"tokens_per_second", "", 4096},
                    {"memory_device_bytes", "", 1 << 20},
                    {"memory_pinned_bytes", "", 1 << 10},
                    {"memory_host_bytes", "", 21474836480},
                    {"mfu_ratio", "", 0.375},
                    {"skipped", "", 0},
                    {"metric", "dpo/rewards/margins", 0.25},
                    {"metric", "twice", 2},
                    {"metric", "\\ \"x\"\n\xef\xbf\xbd", 1e-30},
                    {"validation_step", "", 6},
                    {"validation_loss", "", 0.666666667},
                    {"validation_metric", "dpo/rewards/margins", 0.25}};
    assert_non_null(realpath(f->dir, full));
    assert_int_equal(out.n, sizeof expected / sizeof expected[0] + 2);
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        char family[64];
        snprintf(family, sizeof family, "dtrain_%s", expected[i].family);
        const sample *s = find(&out, family, expected[i].name);
        if (!s || s->value != expected[i].value || strcmp(s->dir, full) != 0)
            fail_msg("%s{name=\"%s\"}: %s", family, expected[i].name, s ? "another value" : "missing");
    }
    dt_report_close(p.r);
}

TEST_WITH(values_that_are_no_numbers_have_the_names_of_the_format, setup, teardown)
{
    prom_fixture p;
    dt_train_record rec = record_of(1);
    open_prom(&p, *state, "");
    rec.loss = -NAN, rec.grad_norm = INFINITY, rec.lr = -INFINITY;
    assert_int_equal(dt_report_train(p.r, &rec), DT_OK);
    assert_true(isnan(value_of(p.file, "dtrain_loss", "")));
    assert_true(value_of(p.file, "dtrain_grad_norm", "") == INFINITY);
    assert_true(value_of(p.file, "dtrain_learning_rate", "") == -INFINITY);
    dt_report_close(p.r);
}

TEST_WITH(a_directory_with_any_name_is_a_label, setup, teardown)
{
    prom_fixture p;
    struct fixture *f = *state;
    struct fixture odd;
    parsed out;
    snprintf(odd.dir, sizeof odd.dir, "%.50s/a \"b\"\\\n", f->dir);
    assert_int_equal(mkdir(odd.dir, 0777), 0);
    open_prom(&p, &odd, "");
    assert_null(parse_file(p.file, &out));
    assert_string_equal(strrchr(out.sample[0].dir, '/'), "/a \"b\"\\\n");
    dt_report_close(p.r);
    unlink(p.file);
    rmdir(odd.dir);
}

TEST_WITH(short_steps_replace_the_file_once_a_second, setup, teardown)
{
    prom_fixture p;
    open_prom(&p, *state, "");
    train(p.r, 1, 3);
    assert_true(value_of(p.file, "dtrain_step", "") == 1);
    assert_int_equal(dt_report_flush(p.r), DT_OK); /* before a checkpoint */
    assert_true(value_of(p.file, "dtrain_step", "") == 3);
    train(p.r, 4, 4);
    assert_int_equal(dt_report_validation(p.r, 4, 1, NULL, 0), DT_OK);
    assert_true(value_of(p.file, "dtrain_step", "") == 4);
    train(p.r, 5, 5);
    usleep(1050000);
    train(p.r, 6, 6);
    assert_true(value_of(p.file, "dtrain_step", "") == 6);
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
    reader *r = arg;
    static parsed p;
    double before = -1;
    for (; !r->wrong && !atomic_load(&r->stop); r->n_reads++) {
        if ((r->wrong = parse_file(r->path, &p))) break;
        const sample *step = find(&p, "dtrain_validation_step", "");
        int n = 0;
        if (!step) continue;
        for (int i = 0; i < p.n; i++) n += !strcmp(p.sample[i].family, "dtrain_validation_metric");
        if (n != n_metrics_of((int64_t)step->value)) r->wrong = "metrics of another validation";
        r->n_changes += step->value != before;
        before = step->value;
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
    assert_true(value_of(p.file, "dtrain_running", "") == 0 && value_of(p.file, "dtrain_step", "") == 2);
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
    assert_true(value_of(path, "dtrain_step", "") == 1);
    assert_int_not_equal(access(p.file, F_OK), 0);
    assert_int_not_equal(access(part, F_OK), 0);
    dt_report_close(p.r);
    assert_int_not_equal(access(path, F_OK), 0);
}

TEST_WITH(without_any_directory_there_is_no_file, setup, teardown)
{
    dt_report *r = NULL;
    const dt_config cfg = {.run_output_dir = "", .log_report_to = "prometheus", .log_prometheus_path = ""};
    assert_int_equal(dt_report_open(&r, &(dt_report_options){.cfg = &cfg}), DT_OK);
    train(r, 1, 1);
    assert_int_equal(dt_report_flush(r), DT_OK);
    dt_report_close(r);
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
    assert_true(value_of(p.file, "dtrain_validation_step", "") == 1);
    assert_int_equal(dt_report_validation(p.r, 3, 1, NULL, 0), DT_OK);
    assert_true(value_of(p.file, "dtrain_validation_step", "") == 3);
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
    assert_true(value_of(path, "dtrain_validation_step", "") == 4);
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
