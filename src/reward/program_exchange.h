/* program_exchange.h - runs the reward programs of all ranks concurrently. Private to src/reward. */
#ifndef DTRAIN_REWARD_EXCHANGE_H
#define DTRAIN_REWARD_EXCHANGE_H

#include "dtrain/comm/comm.h"
#include "program.h"

/** Completions that this rank's programs score. */
typedef struct dt_questions {
    int64_t n;
    dt_request_fn request;
    void *self; /* argument of request */
    int stride; /* distance between consecutive answers of a program */
} dt_questions;

/** Send all requests to each program; answer i of program k is stored in reward[k][i * stride]. err: this rank's error
 *  so far. timeout_s: maximum time without an answer. Collective, agreed. Ranks vote every half second, so an error or
 *  a stop request (DT_ERR_STOP) on one rank ends the call on all. The watchdog of a rank whose programs are done sees
 *  progress while other ranks' programs are slow. */
dt_err dt_programs_ask(dt_program *const *programs, int n_programs, const dt_questions *q, double *const *reward,
                       double timeout_s, dt_err err, dt_comm *comm, dt_phase *phase);

#endif
