/* watchdog.c - ensures that no rank waits forever. Every rank has a watchdog. At the timeout each prints its rank's
 * position, and aborts PRINT_FIRST_S later, so that all ranks report. A stopped process prints nothing; the other ranks
 * on its host name it.
 *
 * Time is counted in the watchdog's own ticks. A tick that takes much longer than requested means that this process did
 * not run (SIGSTOP, Slurm's suspend, a sleeping machine). A job that is suspended as a whole therefore resumes. If only
 * some ranks are suspended, the others keep counting and end the job after comm.timeout.
 *
 * The watchdog also polls the transport: a thread that waits for a GPU, which waits for a lost rank, cannot poll it. */
#include "dtrain/process/process.h"
#include "neighbours.h"
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PRINT_FIRST_S = 2, SUSPENDED_S = 5, MIN_CLOSING_S = 30 /* more than closing takes on a busy machine */ };

struct dt_watchdog {
    pthread_t thread;
    int stop[2]; /* pipe; a write ends the thread */
    const dt_phase *phase;
    const dt_comm *comm;
    double timeout_s;
    double seen_since_s, idle_s; /* time of the last observed phase change; idle time counted since */
    bool asked;                  /* this rank has waited for half of timeout_s and has checked the others */
    dt_phase closing;
    dt_comm closing_comm; /* description of comm, which closing frees */
    neighbours others;
};

/* Wait for s seconds. Returns true if the watchdog is to stop. */
static bool wait_or_stop(const dt_watchdog *w, double s)
{
    struct pollfd stop = {.fd = w->stop[0], .events = POLLIN};
    return poll(&stop, 1, (int)(1000 * s)) == 1;
}

/* Add up the seconds without progress, after a tick that took tick_s instead of pause_s. A tick may take longer on a
 * busy machine; at most 2 pause_s are counted. */
static double count_idle(dt_watchdog *w, double tick_s, double pause_s)
{
    const double since_s = atomic_load(&w->phase->since_s), most_s = 2 * pause_s;
    if (tick_s > most_s + SUSPENDED_S)
        DT_INFO("this process was stopped or suspended for %.0f s; comm.timeout does not count this time",
                tick_s - pause_s);
    if (since_s != w->seen_since_s)
        w->idle_s = 0;
    else
        w->idle_s += tick_s < most_s ? tick_s : most_s;
    w->seen_since_s = since_s;
    return w->idle_s;
}

/* Print `why` and this rank's position, wait for the messages of other ranks, and end the job. */
static void give_up(dt_watchdog *w, dt_err err, const char *why)
{
    const char *unit = atomic_load(&w->phase->unit);
    char where[512], missing[512], silent[1024];
    dt_log(DT_LOG_ERROR, "%s: host %s, step %lld, phase %s%s%s, %s%s%s", why, w->comm->host,
           (long long)atomic_load(&w->phase->step), atomic_load(&w->phase->name), *unit ? ", unit " : "", unit,
           dt_comm_where(w->comm, where, sizeof where), neighbours_missing(&w->others, missing, sizeof missing),
           w->asked ? dt_comm_not_waiting(w->comm, silent, sizeof silent) : "");
    if (!wait_or_stop(w, PRINT_FIRST_S)) dt_comm_abort(dt_exit_code(err));
}

/* After half of the timeout without progress: check the other processes of this host, and report to the collectors. */
static void look_for_others(dt_watchdog *w, bool waits)
{
    if (waits == w->asked) return;
    w->asked = waits;
    w->others.looked_s = 0;
    if (!waits) return dt_comm_forget_waiting(w->comm);
    neighbours_look(&w->others);
    dt_comm_report_waiting(w->comm);
}

static void *watch(void *arg)
{
    dt_watchdog *w = arg;
    const double pause_s = w->timeout_s < 4 ? w->timeout_s / 8 : 0.5;
    for (double last_s = dt_now_s(), now_s; !wait_or_stop(w, pause_s); last_s = now_s) {
        now_s = dt_now_s();
        const double idle_s = count_idle(w, now_s - last_s, pause_s);
        char why[64];
        snprintf(why, sizeof why, "no progress for %.0f s (comm.timeout)", idle_s);
        const dt_err found = dt_comm_poll(w->comm);
        if (found != DT_OK) {
            give_up(w, found, dt_error_message());
            break;
        }
        look_for_others(w, idle_s > w->timeout_s / 2);
        if (idle_s <= w->timeout_s) continue;
        give_up(w, DT_ERR_COMM, why);
        break;
    }
    return NULL;
}

static void free_watchdog(dt_watchdog *w)
{
    for (int i = 0; i < 2; i++)
        if (w->stop[i] >= 0) close(w->stop[i]);
    neighbours_close(&w->others);
    free(w);
}

static dt_err start(dt_watchdog *w, const dt_comm *comm)
{
    neighbours_open(&w->others, comm);
    w->stop[0] = w->stop[1] = -1;
    if (pipe2(w->stop, O_CLOEXEC) == 0 && pthread_create(&w->thread, NULL, watch, w) == 0) return DT_OK;
    free_watchdog(w);
    return dt_fail(DT_ERR_FAULT, "cannot start the watchdog thread");
}

dt_err dt_watchdog_start(dt_watchdog **out, const dt_phase *phase, const dt_comm *comm, double timeout_s)
{
    dt_watchdog *w = calloc(1, sizeof *w);
    DT_CHECK(w, DT_ERR_MEMORY, "out of memory for the watchdog");
    w->phase = phase, w->comm = comm, w->timeout_s = timeout_s;
    DT_TRY(start(w, comm));
    *out = w;
    return DT_OK;
}

dt_watchdog *dt_watchdog_of_closing(const dt_comm *comm)
{
    dt_watchdog *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    memcpy(w->closing_comm.host, comm->host, sizeof w->closing_comm.host);
    dt_phase_enter(&w->closing, "close", "");
    w->phase = &w->closing, w->comm = &w->closing_comm, w->timeout_s = fmax(comm->timeout_s, MIN_CLOSING_S);
    if (start(w, comm) == DT_OK) return w;
    dt_error_clear();
    return NULL;
}

void dt_watchdog_stop(dt_watchdog **w)
{
    if (!*w) return;
    if (write((*w)->stop[1], "", 1) == 1) pthread_join((*w)->thread, NULL);
    free_watchdog(*w);
    *w = NULL;
}
