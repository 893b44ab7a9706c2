/* environment.h - a user's program as the environment of completions (turns.h). docs/environments.md. */
#ifndef DTRAIN_ENVIRONMENT_H
#define DTRAIN_ENVIRONMENT_H

#include "dtrain/rollout/turns.h"

/** In open, before dt_rollout_open: add it to the task's parts, parse the command and check it. When the run begins,
 *  each rank starts its own process (DT_ERR_FAULT: it cannot be started). Local.
 *
 *  section         of the key environment, for messages; borrowed
 *  command         grpo.environment: command:PROGRAM ARGS
 *  max_iterations  maximum number of observations of a completion; 0: no limit
 *
 *  Errors are added to t->mistakes. Returns NULL after an error; freed when the task is closed, which may take 2 s.
 *  Its `answer` fails with DT_ERR_DATA and the program's last lines: it ended, gave no answer for comm.timeout seconds,
 *  or gave an invalid or unexpected one. */
dt_turns *dt_environment_open(dt_task *t, const char *section, const char *command, int64_t max_iterations);

#endif
