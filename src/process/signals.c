/* signals.c - a signal only sets a flag. The vote of the superstep turns it into a decision of all ranks. The flag is
 * global, because signals are sent to the process.
 *
 * There is no signal handler. All threads block the signals, and one thread waits for them. The reason is oneDNN 2.6:
 * it stores data further below the stack pointer than the 128 bytes that the kernel preserves, so a signal frame
 * corrupts its data. An alternate stack protects only its own thread, and while that thread is in its handler, the
 * kernel delivers the next signal to another thread. */
#include "dtrain/process/process.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static _Atomic int pending_signal;

static sigset_t asked_to_stop(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM), sigaddset(&set, SIGUSR1), sigaddset(&set, SIGINT);
    return set;
}

static void *wait_for_signals(void *unused)
{
    const sigset_t set = asked_to_stop();
    int n_interrupts = 0;
    for (int sig = 0; sigwait(&set, &sig) == 0;) {
        if (sig == SIGINT && ++n_interrupts > 1) _exit(128 + SIGINT);
        int none = 0;
        atomic_compare_exchange_strong(&pending_signal, &none, sig);
    }
    return unused;
}

void dt_signals_hold(void)
{
    const sigset_t set = asked_to_stop();
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

dt_err dt_signals_install(void)
{
    const sigset_t set = asked_to_stop();
    sigset_t before;
    pthread_t thread;
    signal(SIGXFSZ, SIG_IGN); /* a file above the size limit then causes a write error, which is reported */
    pthread_sigmask(SIG_BLOCK, &set, &before);
    const int number = pthread_create(&thread, NULL, wait_for_signals, NULL);
    if (number == 0) return pthread_detach(thread), DT_OK;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return dt_fail(DT_ERR_FAULT, "cannot start the signal thread: %s", strerror(number));
}

int dt_signals_pending(void) { return atomic_load(&pending_signal); }
