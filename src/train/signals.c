/* signals.c - a signal only leaves a mark; the vote of the superstep makes it everybody's decision. The marks are the one piece of state besides
 * the log that a handler forces to be global. */
#include "dtrain/train.h"
#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t pending_signal, n_interrupts;

static void on_signal(int sig)
{
    if (sig == SIGINT && ++n_interrupts > 1) _exit(128 + SIGINT);
    if (!pending_signal) pending_signal = sig;
}

void dt_signals_install(void)
{
    const int sigs[] = {SIGTERM, SIGUSR1, SIGINT};
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&sa.sa_mask);
    for (size_t i = 0; i < sizeof sigs / sizeof sigs[0]; i++) sigaction(sigs[i], &sa, NULL);
}

int dt_signals_pending(void) { return pending_signal; }
