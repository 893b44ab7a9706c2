/* stalled.c - a start that stops before it saves anything new makes no progress. If start-up takes longer than the
 * job's time limit, every start ends this way, and a job script would requeue the run forever. */
#include "run.h"
#include "dtrain/io/io.h"
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_STARTS = 3 };
#define COUNT_FILE "starts_without_progress"

static bool path_of(const dt_run *run, char path[PATH_MAX])
{
    return *run->cfg.run_output_dir && snprintf(path, PATH_MAX, "%s/" COUNT_FILE, run->cfg.run_output_dir) < PATH_MAX;
}

void run_count_progress(dt_run *run)
{
    char path[PATH_MAX];
    run->has_progressed = true;
    if (dt_comm_first(run->comm) && path_of(run, path)) unlink(path);
}

/* A run without the lock was stopped before it took the directory, which may belong to another run. */
static bool is_others(const dt_run *run)
{
    char holder[512];
    return !run->lock && dt_lock_look(run->cfg.run_output_dir, holder, sizeof holder) == DT_LOCK_HELD;
}

static int read_count(const char *path)
{
    char text[16] = "";
    FILE *f = fopen(path, "r");
    if (f && !fgets(text, sizeof text, f)) *text = '\0';
    if (f) fclose(f);
    const long n = strtol(text, NULL, 10);
    return n > 0 && n < INT_MAX ? (int)n : 0;
}

/* Number of consecutive starts without progress, including this one; 0: unknown. */
static int64_t count_start(const dt_run *run)
{
    char path[PATH_MAX], text[16];
    if (!path_of(run, path) || is_others(run)) return 0;
    const int n = read_count(path) + 1, len = snprintf(text, sizeof text, "%d\n", n);
    dt_err err = dt_make_dirs(run->cfg.run_output_dir);
    if (err == DT_OK) err = dt_write_file_atomic(path, text, (size_t)len);
    if (err == DT_OK) return n;
    dt_error_clear(); /* a full disk must not hide the stop */
    return 0;
}

/* Repeat the stop message without the advice to start the run again. */
static dt_err refuse(const dt_run *run, int64_t n, const char *message)
{
    char took[24];
    const char *advice = strstr(message, "; start it again");
    return dt_fail(DT_ERR_USAGE,
                   "%.*s. This is start %d in a row without a new checkpoint, and it ran for %s; another start would "
                   "not help. Give the job more time, or shorten the work before the first step (data.verify, slow "
                   "storage of model and data, a validation or rollout)",
                   advice ? (int)(advice - message) : (int)strlen(message), message, (int)n,
                   dt_format_duration(dt_now_s() - run->start_s, took));
}

static dt_err warn(const dt_run *run, dt_err err, int64_t n, const char *message)
{
    if (dt_comm_first(run->comm) && n > 0)
        DT_WARN("start %d in a row without a new checkpoint; the third ends with exit code 64 instead of 75", (int)n);
    return dt_fail(err, "%s", message);
}

dt_err run_count_stop(dt_run *run, dt_err err)
{
    int64_t n = 0;
    if (err == DT_OK) run_count_progress(run);
    if (err != DT_ERR_STOP || run->has_progressed || !dt_comm_failed_together(run->comm)) return err;
    char message[1024]; /* must not fail on a single rank */
    snprintf(message, sizeof message, "%s", dt_error_message());
    if (dt_comm_first(run->comm)) n = count_start(run);
    const dt_err shared = dt_comm_broadcast_host(run->comm, &n, sizeof n, 0);
    dt_error_clear();
    if (shared == DT_OK) err = n < MOST_STARTS ? warn(run, err, n, message) : refuse(run, n, message);
    return shared == DT_OK ? dt_comm_agree(run->comm, err) : shared;
}
