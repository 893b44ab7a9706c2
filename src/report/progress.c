/* progress.c - a terminal is recognised by its width, not by isatty(): mpirun gives its ranks a pseudo-terminal whatever its own output is, and passes
 * the width through only when it has a terminal itself. A pipe, a file or a batch log gets plain lines through the log. */
#include "progress.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define REWRITE_S 0.1 /* a live line is rewritten no more often: faster than the eye only costs time */

static int terminal_columns(void)
{
    struct winsize size = {0};
    const char *term = getenv("TERM");
    if (!isatty(STDOUT_FILENO) || (term && strcmp(term, "dumb") == 0)) return 0;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

/* What cannot be shown is lost with one warning: a closed terminal is no reason to end a run. */
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

char *dt_progress_duration(double seconds, char *out)
{
    enum { SIZE = 24, MINUTE = 60, HOUR = 3600, DAY = 86400 };
    if (!(seconds >= 0) || seconds > 1e5 * DAY) {
        snprintf(out, SIZE, "?");
        return out;
    }
    const int64_t s = (int64_t)(seconds + 0.5);
    if (s < MINUTE)
        snprintf(out, SIZE, "%" PRId64 "s", s);
    else if (s < HOUR)
        snprintf(out, SIZE, "%" PRId64 "m%02" PRId64 "s", s / MINUTE, s % MINUTE);
    else if (s < DAY)
        snprintf(out, SIZE, "%" PRId64 "h%02" PRId64 "m", s / HOUR, s % HOUR / MINUTE);
    else
        snprintf(out, SIZE, "%" PRId64 "d%02" PRId64 "h", s / DAY, s % DAY / HOUR);
    return out;
}

/* 3 significant digits and a letter: "835", "12.3k", "1.20M". */
static char *rate(double x, char *out, size_t out_size)
{
    static const char letters[] = {0, 'k', 'M', 'G', 'T', 'P', 'E'};
    size_t i = 0;
    if (!isfinite(x)) x = 0;
    for (; x >= 999.5 && i + 1 < sizeof letters; i++) x /= 1000;
    const char unit[2] = {letters[i], 0};
    snprintf(out, out_size, "%.*f%s", x >= 99.95 || (i == 0 && x >= 10) ? 0 : x >= 9.995 ? 1 : 2, x, unit);
    return out;
}

void dt_progress_format(dt_record *out, const dt_train_record *rec, int64_t total_steps, double flops_per_token, double left_s)
{
    char text[24];
    out->nbytes = 0;
    dt_record_printf(out, "step %" PRId64, rec->step);
    if (total_steps > 0)
        dt_record_printf(out, "/%" PRId64 " (%.0f%%)", total_steps, floor(100.0 * (double)rec->step / (double)total_steps));
    dt_record_printf(out, "  loss %.4f  grad %.3g  lr %.2e  %s tok/s", rec->loss, rec->grad_norm, rec->lr,
                     rate(rec->tokens_per_second, text, sizeof text));
    if (left_s >= 0) dt_record_printf(out, "  left %s", dt_progress_duration(left_s, text));
    const int64_t held = rec->memory_device > 0 ? rec->memory_device : rec->memory_host;
    if (held > 0) dt_record_printf(out, "  mem %s", dt_format_bytes((double)held, text));
    if (flops_per_token > 0)
        dt_record_printf(out, "  %sflop/s", rate(flops_per_token * rec->tokens_per_second, text, sizeof text));
    if (rec->skipped) dt_record_printf(out, "  skipped");
}

void dt_progress_open(dt_progress *p, int64_t total_steps, double flops_per_token)
{
    *p = (dt_progress){
        .live = terminal_columns() > 0, .total_steps = total_steps, .flops_per_token = flops_per_token, .first_step = -1};
}

/* From the wall clock since the first record of this start, so that validation and checkpoints count; that step's own time until there are two. */
static double time_left(dt_progress *p, const dt_train_record *rec, double now)
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

static void rewrite(dt_progress *p, const char *end)
{
    static const char erase[] = "\r\033[K";
    const int columns = terminal_columns();
    size_t n = p->line.nbytes;
    if (columns > 1 && n > (size_t)columns - 1) n = (size_t)columns - 1; /* a wrapped line could not be taken back */
    dt_record text = {0};
    dt_record_bytes(&text, erase, sizeof erase - 1);
    dt_record_bytes(&text, p->line.data, n);
    dt_record_bytes(&text, end, strlen(end));
    show(text.data, text.nbytes);
    dt_record_free(&text);
}

void dt_progress_train(dt_progress *p, const dt_train_record *rec)
{
    const double now = dt_now_s();
    dt_progress_format(&p->line, rec, p->total_steps, p->flops_per_token, time_left(p, rec, now));
    if (p->line.out_of_memory) return;
    if (!p->live) {
        DT_INFO("%.*s", (int)p->line.nbytes, p->line.data);
        return;
    }
    p->pending = true;
    if (now - p->shown_s < REWRITE_S && rec->step < p->total_steps) return;
    p->shown_s = now;
    rewrite(p, "");
}

void dt_progress_validation(dt_progress *p, int64_t step, double loss, const dt_metric *more, int n_more)
{
    dt_record text = {0};
    dt_record_printf(&text, "step %" PRId64 "  validation loss %.4f", step, loss);
    for (int i = 0; i < n_more; i++)
        dt_record_printf(&text, "  %s %.4g", more[i].name + (strncmp(more[i].name, "validation_", 11) == 0 ? 11 : 0),
                         more[i].value);
    dt_progress_close(p); /* the training record stays readable above */
    if (!text.out_of_memory) DT_INFO("%.*s", (int)text.nbytes, text.data);
    dt_record_free(&text);
}

void dt_progress_close(dt_progress *p)
{
    if (p->live && p->pending) rewrite(p, "\n");
    p->pending = false;
    dt_record_free(&p->line);
}
