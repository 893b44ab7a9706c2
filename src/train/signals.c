/* signals.c - a signal only leaves a mark; the vote of the superstep makes it everybody's decision. The marks are the one piece of state besides
 * the log that a handler forces to be global.
 *
 * The handler has a stack of its own. oneDNN 2.6 keeps data further below the stack pointer than the 128 bytes that the kernel leaves alone; a
 * signal's frame written over it ended one run in 25 with a corrupted heap (11 of 250; none of 300 with this stack). A signal to the process
 * goes to its main thread, which is the one that installs the handler. */
#include "dtrain/train.h"
#include <signal.h>
#include <unistd.h>

enum { STACK_SIZE = 1 << 16 }; /* a frame with AVX-512 and AMX registers has 11 KiB */

static _Alignas(64) char handler_stack[STACK_SIZE];
static volatile sig_atomic_t pending_signal, n_interrupts;

static void on_signal(int sig)
{
    if (sig == SIGINT && ++n_interrupts > 1) _exit(128 + SIGINT);
    if (!pending_signal) pending_signal = sig;
}

void dt_signals_install(void)
{
    const int sigs[] = {SIGTERM, SIGUSR1, SIGINT};
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK};
    const stack_t stack = {.ss_sp = handler_stack, .ss_size = sizeof handler_stack};
    sigaltstack(&stack, NULL);
    sigemptyset(&sa.sa_mask);
    for (size_t i = 0; i < sizeof sigs / sizeof sigs[0]; i++) sigaction(sigs[i], &sa, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a file beyond the limit is then a write that fails, and is reported as one */
}

int dt_signals_pending(void) { return pending_signal; }
