/* fault.c - faults that tests inject with DTRAIN_FAULT. The list is read once, when the first fault point is passed.
 * Without a list each later pass costs one load. Passes are counted per process, so the state is global. */
#include "dtrain/core/core.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core_private.h"

enum { MAX_FAULTS = 16 };

static struct {
    atomic_int n; /* -1: the environment is not read yet */
    struct {
        char point[48], kind[16];
        int rank; /* -1: every rank ("*") */
        long long nth;
        atomic_llong passed;
    } fault[MAX_FAULTS];
} armed = {.n = -1};

static bool kind_is_known(const char *kind)
{
    static const char *const kinds[] = {"error", "nospace", "short", "hang", "slow", "stop", "signal", "kill", "exit"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kind, kinds[i]) == 0) return true;
    return false;
}

static void read_environment(void)
{
    int n = 0;
    const char *p = getenv("DTRAIN_FAULT");
    while (p && *p && n < MAX_FAULTS) {
        char rank[12];
        long long nth = 0;
        int used = 0;
        if (sscanf(p, "%47[^:,]:%11[^:,]:%lld:%15[a-z]%n", armed.fault[n].point, rank, &nth, armed.fault[n].kind,
                   &used) == 4 &&
            used > 0 && (p[used] == ',' || p[used] == '\0') && nth > 0 && kind_is_known(armed.fault[n].kind)) {
            armed.fault[n].rank = strcmp(rank, "*") == 0 ? -1 : atoi(rank);
            armed.fault[n++].nth = nth;
        } else {
            DT_WARN(
                "DTRAIN_FAULT: expected POINT:RANK:NTH:error|nospace|short|hang|slow|stop|signal|kill|exit, found '%s'",
                p);
        }
        p += strcspn(p, ",");
        p += *p == ',';
    }
    atomic_store_explicit(&armed.n, n, memory_order_release);
}

/* Stop until SIGCONT, then stay busy for a while: the watchdog then observes the stop before this rank progresses. */
static void be_stopped(void)
{
    raise(SIGSTOP);
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    const double end_s = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec + 0.2;
    while ((double)now.tv_sec + 1e-9 * (double)now.tv_nsec < end_s) clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
}

/* Send this process a stop request. Returns once the signal thread has received it. */
static void signal_self(void)
{
    sigset_t pending;
    kill(getpid(), SIGUSR1);
    do nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    while (sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1));
}

/* Perform faults that end this process or delay it. Return any other fault, which the caller must simulate; NULL:
 * none. */
static const char *happen(const char *kind)
{
    if (strcmp(kind, "kill") == 0) raise(SIGKILL);
    if (strcmp(kind, "exit") == 0) _exit(3);
    while (strcmp(kind, "hang") == 0) pause();
    if (strcmp(kind, "slow") == 0)
        sleep(1);
    else if (strcmp(kind, "stop") == 0)
        be_stopped();
    else if (strcmp(kind, "signal") == 0)
        signal_self();
    else
        return kind;
    return NULL;
}

static const char *pass(const char *point)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int n = atomic_load_explicit(&armed.n, memory_order_acquire);
    if (n == 0) return NULL;
    if (n < 0) {
        pthread_once(&once, read_environment);
        n = atomic_load_explicit(&armed.n, memory_order_acquire);
    }
    const char *kind = NULL;
    for (int i = 0; i < n; i++) { /* every matching fault counts the pass */
        if (strcmp(point, armed.fault[i].point) != 0) continue;
        if (armed.fault[i].rank >= 0 && armed.fault[i].rank != dt_log_rank()) continue;
        if (atomic_fetch_add(&armed.fault[i].passed, 1) + 1 == armed.fault[i].nth) kind = armed.fault[i].kind;
    }
    return kind ? happen(kind) : NULL;
}

dt_err dt_fault(const char *point)
{
    const char *kind = pass(point);
    if (!kind) return DT_OK;
    if (strcmp(kind, "nospace") == 0)
        return dt_fail(DT_ERR_WRITE, "%s: no space left on device (injected by DTRAIN_FAULT)", point);
    return dt_fail(DT_ERR_FAULT, "%s: a fault injected by DTRAIN_FAULT", point);
}

int dt_fault_errno(const char *point)
{
    const char *kind = pass(point);
    if (!kind) return 0;
    return strcmp(kind, "nospace") == 0 ? ENOSPC : strcmp(kind, "short") == 0 ? -1 : EIO;
}
