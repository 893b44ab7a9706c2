/* program_exchange.c - alternates short intervals of work with votes. */
#include "program_exchange.h"

/* Length of an interval: half a second, or a quarter of a very short watchdog timeout. */
static double turn_s(double timeout_s) { return timeout_s / 4 < 0.5 ? timeout_s / 4 : 0.5; }

/* Wait until one of the programs can continue. */
static void wait_for_any(dt_program *const *programs, int n, double most_s)
{
    struct pollfd fds[64];
    int n_fds = 0;
    for (int k = 0; k < n && n_fds + 3 <= 64; k++) n_fds += dt_program_waits_for(programs[k], fds + n_fds);
    poll(fds, (nfds_t)n_fds, most_s > 0 ? (int)(most_s * 1e3) + 1 : 0);
}

static dt_err take_turn(dt_program *const *programs, int n_programs, const dt_questions *q, double timeout_s,
                        const dt_phase *phase, bool *done)
{
    const double until_s = dt_now_s() + turn_s(timeout_s);
    for (*done = false;;) {
        bool all = true, one;
        DT_TRY(dt_phase_poll(phase)); /* before reading from a program that the same signal has terminated */
        for (int k = 0; k < n_programs; k++) {
            DT_TRY(dt_program_go_on(programs[k], q->request, q->self, timeout_s, &one));
            all &= one;
        }
        *done = all;
        if (all || dt_now_s() >= until_s) return DT_OK;
        wait_for_any(programs, n_programs, until_s - dt_now_s());
    }
}

dt_err dt_programs_ask(dt_program *const *programs, int n_programs, const dt_questions *q, double *const *reward,
                       double timeout_s, dt_err err, dt_comm *comm, dt_phase *phase)
{
    for (int k = 0; k < n_programs; k++) dt_program_begin(programs[k], q->n, reward[k], q->stride);
    for (int64_t waiting = 1; waiting;) {
        bool done = true;
        dt_phase_enter(phase, "reward", n_programs ? programs[0]->name : NULL);
        if (err == DT_OK) err = dt_fault("reward.ask");
        if (err == DT_OK) err = take_turn(programs, n_programs, q, timeout_s, phase, &done);
        DT_TRY(dt_comm_agree(comm, err));
        waiting = !done;
        DT_TRY(dt_comm_reduce_host_i64(dt_comm_all(comm), &waiting, 1, DT_MAX));
    }
    return DT_OK;
}
