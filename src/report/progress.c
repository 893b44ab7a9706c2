/* progress.c - the sink "stdout": the progress line. isatty() does not suffice to recognise a terminal: mpirun always
 * gives its ranks a pseudo-terminal. The width is nonzero only if mpirun itself has a terminal. A pipe, a file or a
 * batch log gets plain lines through the log. */
#include "progress.h"
#include "sink.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define SPACED_S 10   /* minimum interval between activity lines */
#define REWRITE_S 0.1 /* minimum interval between updates of the live line; more often is not visible */

typedef struct progress {
    bool live; /* one line is rewritten; otherwise each record is a line */
    int64_t total_steps;
    double every_s;                  /* minimum time between two lines; < 0: dt_cadence_shows chooses it */
    int64_t first_step;              /* of the first record seen, -1 before it */
    double open_s, first_s, shown_s; /* clock at the opening, at the first record and at the last rewriting */
    dt_cadence train, validation, activity;
    dt_text line; /* text of the last record */
    bool pending; /* the last record is not displayed yet, or is in the live line without a newline */
} progress;

static int terminal_columns(void)
{
    struct winsize size = {0};
    const char *term = getenv("TERM");
    if (!isatty(STDOUT_FILENO) || (term && strcmp(term, "dumb") == 0)) return 0;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

/* If the terminal is closed, output is lost with one warning; the run continues. */
static void show(const char *data, size_t nbytes)
{
    while (nbytes > 0) {
        const ssize_t n = write(STDOUT_FILENO, data, nbytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            dt_log_stdout_lost();
            return;
        }
        data += n;
        nbytes -= (size_t)n;
    }
}

/* Append "  reward 0.31" for grpo/reward. Names that the record does not contain are omitted. */
static void put_watched(dt_text *out, const dt_train_record *rec, const char *name)
{
    const char *slash = strrchr(name, '/');
    for (int i = 0; i < rec->n_more; i++) {
        if (strcmp(rec->more[i].name, name) != 0) continue;
        const double value = rec->more[i].value;
        dt_text_printf(out, isnan(value) ? "  %s -" : "  %s %.4g", slash ? slash + 1 : name, value);
    }
}

void dt_progress_format(dt_text *out, const dt_train_record *rec, int64_t total_steps, double left_s)
{
    char text[24];
    out->n = 0;
    dt_text_printf(out, "step %" PRId64, rec->step);
    if (total_steps > 0)
        dt_text_printf(out, "/%" PRId64 " (%.0f%%)", total_steps,
                       floor(100.0 * (double)rec->step / (double)total_steps));
    dt_text_printf(out, "  loss %.4f", dt_unsigned_nan(rec->loss));
    for (int i = 0; rec->watch && rec->watch[i]; i++) put_watched(out, rec, rec->watch[i]);
    dt_text_printf(out, "  grad %.3g  lr %.2e  %s tok/s", dt_unsigned_nan(rec->grad_norm), rec->lr,
                   dt_format_count(rec->tokens_per_second, text));
    if (left_s >= 0) dt_text_printf(out, "  left %s", dt_format_duration(left_s, text));
    const int64_t held = rec->memory_device > 0 ? rec->memory_device : rec->memory_host;
    if (held > 0) dt_text_printf(out, "  mem %s", dt_format_bytes((double)held, text));
    if (rec->flops_per_second > 0) dt_text_printf(out, "  %sflop/s", dt_format_count(rec->flops_per_second, text));
    if (rec->mfu > 0) dt_text_printf(out, "  MFU %.1f %%", 100 * rec->mfu);
    if (rec->skipped) dt_text_printf(out, "  skipped");
}

bool dt_cadence_shows(dt_cadence *c, double every_s, double start_s, double now_s)
{
    enum { FIRST = 10 };
    const double share_s = 0.02 * (now_s - start_s), spaced_s = fmin(fmax(share_s, 10), 600);
    if (every_s < 0 && c->n_shown < FIRST)
        ; /* all of them */
    else if (c->n_shown > 0 && now_s - c->last_s < (every_s < 0 ? spaced_s : every_s))
        return false;
    c->n_shown++;
    c->last_s = now_s;
    return true;
}

static dt_err progress_open(void *self, const dt_report_options *opt)
{
    progress *p = self;
    *p = (progress){.live = terminal_columns() > 0,
                    .total_steps = opt->total_steps,
                    .every_s = opt->cfg->log_stdout_every,
                    .open_s = dt_now_s(),
                    .first_step = -1};
    dt_text_reserve(&p->line, DT_RECORD_NBYTES);
    return DT_OK;
}

/* Estimated from the wall clock since the first record of this process, which includes validations and checkpoints.
 * With a single record: from the duration of that step. */
static double time_left(progress *p, const dt_train_record *rec, double now)
{
    if (p->total_steps <= 0) return -1;
    if (p->first_step < 0) {
        p->first_step = rec->step;
        p->first_s = now;
    }
    const int64_t n = rec->step - p->first_step;
    const double step_s = n > 0 ? (now - p->first_s) / (double)n : rec->step_time;
    return step_s * (double)(p->total_steps > rec->step ? p->total_steps - rec->step : 0);
}

static void rewrite(progress *p, const char *end)
{
    static const char erase[] = "\r\033[K";
    const int columns = terminal_columns();
    size_t n = p->line.n;
    if (columns > 1 && n > (size_t)columns - 1) n = (size_t)columns - 1; /* a wrapped line could not be overwritten */
    dt_text text = {0};
    dt_text_append(&text, erase, sizeof erase - 1);
    dt_text_append(&text, p->line.bytes, n);
    dt_text_append(&text, end, strlen(end));
    show(text.bytes, text.n);
    dt_text_free(&text);
}

/* Show the last record if it is not displayed yet. */
static void progress_last_line(void *self)
{
    progress *p = self;
    if (p->pending && p->live) rewrite(p, "\n");
    if (p->pending && !p->live) DT_INFO("%.*s", (int)p->line.n, p->line.bytes);
    p->pending = false;
    p->line.n = 0;
}

/* End the live line, if any; the next record starts a new one. */
static void progress_end_line(void *self)
{
    if (((progress *)self)->live) progress_last_line(self);
}

static dt_err progress_train(void *self, const dt_train_record *rec)
{
    progress *p = self;
    const double now = dt_now_s();
    if (rec->total_steps > 0) p->total_steps = rec->total_steps;
    dt_progress_format(&p->line, rec, p->total_steps, time_left(p, rec, now));
    if (p->line.failed) return DT_OK;
    p->pending = true;
    if (!p->live) {
        if (dt_cadence_shows(&p->train, p->every_s, p->open_s, now)) progress_last_line(p);
    } else if (now - p->shown_s >= REWRITE_S || rec->step >= p->total_steps) {
        p->shown_s = now;
        rewrite(p, "");
    }
    return DT_OK;
}

static bool is_of_benchmark(const dt_metric *m) { return strncmp(m->name, "eval/", 5) == 0; }

/* Append a value with its unit and format, for example " 12 samples". */
static void put_validation_metric(dt_text *out, const dt_metric *m)
{
    const char *const of_items[][2] = {{"rec/hr@", "HR@"}, {"rec/ndcg@", "NDCG@"}, {"rec/", ""}};
    for (size_t i = 0; i < sizeof of_items / sizeof of_items[0]; i++) {
        const size_t n = strlen(of_items[i][0]);
        if (strncmp(m->name, of_items[i][0], n) != 0) continue;
        dt_text_printf(out, "  %s%s %.4g", of_items[i][1], m->name + n, dt_unsigned_nan(m->value));
        return;
    }
    static const struct {
        const char *name, *format;
        double scale;
    } known[] = {{"accuracy", "  accuracy %.1f %%", 100},
                 {"entropy", "  entropy %.4g nats", 1},
                 {"targets", "  %.0f target tokens", 1},
                 {"samples", "  %.0f samples", 1},
                 {"time", "  in %.3g s", 1}};
    const char *name = m->name + (strncmp(m->name, "validation_", 11) == 0 ? 11 : is_of_benchmark(m) ? 5 : 0);
    if (is_of_benchmark(m) && strstr(name, "_stderr")) return;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].name, name) != 0) continue;
        dt_text_printf(out, known[i].format, dt_unsigned_nan(m->value * known[i].scale));
        return;
    }
    dt_text_printf(out, "  %s %.4g", name, dt_unsigned_nan(m->value));
}

/* True if one of the metrics is the negative of the loss. The loss is then not displayed. */
static bool has_gain(const dt_metric *more, int n_more)
{
    for (int i = 0; i < n_more; i++)
        if (strncmp(more[i].name, "rec/", 4) == 0 || strcmp(more[i].name, "grpo/validation_reward") == 0) return true;
    return false;
}

void dt_progress_format_validation(dt_text *out, int64_t step, int64_t total_steps, double loss, const dt_metric *more,
                                   int n_more)
{
    out->n = 0;
    dt_text_printf(out, "step %" PRId64, step);
    if (total_steps > 0) dt_text_printf(out, "/%" PRId64, total_steps);
    if (isnan(loss) && n_more > 0 && is_of_benchmark(more))
        dt_text_printf(out, "  evaluation");
    else if (has_gain(more, n_more))
        dt_text_printf(out, "  validation");
    else
        dt_text_printf(out, "  validation loss %.4f", dt_unsigned_nan(loss));
    for (int i = 0; i < n_more; i++) put_validation_metric(out, &more[i]);
}

static dt_err progress_validation(void *self, const dt_validation *v)
{
    progress *p = self;
    const bool last = p->total_steps <= 0 || v->step >= p->total_steps;
    if (!dt_cadence_shows(&p->validation, p->every_s, p->open_s, dt_now_s()) && !last) return DT_OK;
    dt_text text = {0};
    dt_progress_format_validation(&text, v->step, p->total_steps, v->loss, v->more, v->n_more);
    progress_last_line(p); /* the training record stays readable above */
    if (!text.failed) DT_INFO("%.*s", (int)text.n, text.bytes);
    dt_text_free(&text);
    return DT_OK;
}

/* Show the present activity of a step: in the live line at most every 100 ms, otherwise in a separate line at most
 * every 10 s. */
static void progress_activity(void *self, int64_t step, const char *text)
{
    progress *p = self;
    const double now = dt_now_s();
    dt_text line = {0};
    dt_text_printf(&line, "step %" PRId64, step);
    if (p->total_steps > 0) dt_text_printf(&line, "/%" PRId64, p->total_steps);
    dt_text_printf(&line, "  %s", text);
    if (line.failed || (p->live && now - p->shown_s < REWRITE_S)) {
        dt_text_free(&line);
        return;
    }
    if (p->live) {
        const dt_text before = p->line;
        p->line = line;
        p->shown_s = now;
        rewrite(p, "");
        p->line = before;
        p->pending = true;
    } else if (dt_cadence_shows(&p->activity, fmax(p->every_s, SPACED_S), p->open_s, now)) {
        DT_INFO("%.*s", (int)line.n, line.bytes);
    }
    dt_text_free(&line);
}

static void progress_close(void *self)
{
    progress_last_line(self);
    dt_text_free(&((progress *)self)->line);
}

const dt_sink dt_sink_stdout = {.nbytes = sizeof(progress),
                                .open = progress_open,
                                .train = progress_train,
                                .validation = progress_validation,
                                .activity = progress_activity,
                                .end_line = progress_end_line,
                                .last_line = progress_last_line,
                                .close = progress_close};
