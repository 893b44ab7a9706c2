/* stop.c - early end of a run: a signal, or the time limit.
 *
 * The limit is run.time_limit, or the end of the job if the scheduler reports it (in rank 0's environment). A save must
 * still fit before that, and so must the rest of a save in flight: 1.5 times the duration of the last save is reserved
 * for each. Before the first save its duration is estimated from its size and from the loading time. */
#include "run.h"
#include <math.h>
#include <stdlib.h>
#include <time.h>

/* time for the processes and the launcher to end after the save */
enum { END_MARGIN_S = 2, JOB_END_MARGIN_S = 5 };
static const double FIRST_SAVE_RATE = 5e8; /* bytes per second and node: a slow shared disk */
static const double SAVE_SHARE = 1.5;      /* the speed of a shared disk varies */

/* Seconds since the epoch, 0: unknown. */
static double job_end(void)
{
    const char *text = getenv("SLURM_JOB_END_TIME");
    char *end;
    const long long at = text ? strtoll(text, &end, 10) : 0;
    return text && *text && !*end && at > 0 ? (double)at : 0;
}

void run_stop_open(dt_time_limit *l, double time_limit, double start_s, bool sees_job)
{
    if (time_limit > 0) {
        l->at_s = start_s + time_limit - fmin(END_MARGIN_S, time_limit / 10);
        l->name = "run.time_limit";
        return;
    }
    const double end = job_end(), now = (double)time(NULL);
    if (!sees_job || end <= now) return;
    l->at_s = dt_now_s() + end - now - JOB_END_MARGIN_S;
    l->name = "the end of the Slurm job";
    DT_INFO("the Slurm job ends in %.0f s; a checkpoint will be saved before its end", end - now);
}

void run_stop_estimate(dt_time_limit *l, double nbytes, int n_nodes)
{
    l->save_s = fmax(nbytes / (FIRST_SAVE_RATE * n_nodes), l->load_s);
    if (l->at_s > 0) { /* the estimate must not consume a short run */
        const double left = l->at_s - dt_now_s();
        if (l->save_s > left / 4) l->save_s = left > 0 ? left / 4 : 0;
    }
}

void run_stop_measure(dt_time_limit *l, double save_s)
{
    l->save_s = l->save_is_measured && l->save_s * 0.9 > save_s ? l->save_s * 0.9 : save_s;
    l->save_is_measured = true;
}

double run_stop_at(const dt_run *run)
{
    const int n_saves = run->cfg.checkpoint_save_on_signal + dt_saver_state_of(run->saving.saver).in_progress;
    return run->limit.at_s > 0 ? run->limit.at_s - n_saves * SAVE_SHARE * run->limit.save_s : 0;
}

int run_stop_request(const dt_run *run, double more_s)
{
    if (dt_signals_pending()) return STOP_SIGNAL;
    if (run->limit.at_s <= 0) return STOP_NO;
    return dt_now_s() + more_s > run_stop_at(run) ? STOP_TIME_LIMIT : STOP_NO;
}

dt_err run_stop_too_late(const dt_run *run)
{
    char took[24];
    if (run_stop_request(run, 0) != STOP_TIME_LIMIT) return DT_OK;
    return dt_fail(DT_ERR_USAGE,
                   "start-up took %s, which leaves no time for a step before %s; give the run more time, or shorten "
                   "its start-up. Another start would end the same way",
                   dt_format_duration(dt_now_s() - run->start_s, took), run_stop_name(&run->limit, STOP_TIME_LIMIT));
}

const char *run_stop_name(const dt_time_limit *l, int stop)
{
    if (stop == STOP_SIGNAL) return "a signal";
    return l->name ? l->name : "the time limit";
}

dt_err run_agree(dt_run *run, dt_err err)
{
    if (err == DT_OK) err = dt_fault("start.agree");
    if (err == DT_OK && dt_signals_pending())
        err = dt_fail(DT_ERR_STOP,
                      "stopped by a signal during start-up, before the first step; start it again to continue");
    return dt_comm_agree(run->comm, err);
}
