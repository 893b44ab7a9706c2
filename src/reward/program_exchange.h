/* program_exchange.h - the programs of all ranks at work at the same time. Private to src/reward. */
#ifndef DTRAIN_REWARD_EXCHANGE_H
#define DTRAIN_REWARD_EXCHANGE_H

#include "dtrain/comm/comm.h"
#include "program.h"

/** Completions that this rank's programs are to judge. */
typedef struct dt_questions {
    int64_t n;
    dt_request_fn request;
    void *self; /* of request */
    int stride; /* from one answer of a program to its next */
} dt_questions;

/** Ask each of the programs about all of the questions; answer i of program k goes to reward[k][i * stride]. err: what
 *  has gone wrong on this rank before. timeout_s: the longest without an answer. Collective, agreed: ranks meet in a
 *  vote every half second, so one that fails or hears a signal (DT_ERR_STOP) is not waited for, and the watchdog of one
 *  whose programs are done sees progress while others' are slow. */
dt_err dt_programs_ask(dt_program *const *programs, int n_programs, const dt_questions *q, double *const *reward,
                       double timeout_s, dt_err err, dt_comm *comm, dt_phase *phase);

#endif
