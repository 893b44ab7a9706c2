/* ranks.h - common code of programs with several ranks: start, collective errors, end. */
#ifndef DTRAIN_MAIN_TOOL_RANKS_H
#define DTRAIN_MAIN_TOOL_RANKS_H

#include "dtrain/comm/comm.h"

/** All ranks continue, or none does: dt_comm_agree. After a communication error the other ranks cannot be
 *  informed, so main ends the job. */
static inline dt_err together(dt_comm *comm, dt_err err) { return err == DT_ERR_COMM ? err : dt_comm_agree(comm, err); }
/** Return from the function if the call failed on any rank. a: has a member comm. */
#define TOGETHER(a, call) DT_TRY(together(&(a)->comm, (call)))

/** The last call in main, after tool_wait_fairly: start MPI, run the program and close everything. Returns the exit
 *  code. If run fails on one rank only, the job ends. parsed: result of the command line, which run must share
 *  (ranks_open). end: reports an error, as tool_end. */
int ranks_main(dt_comm *comm, dt_device *dev, void *app, dt_err parsed, dt_err (*run)(void *app, dt_err parsed),
               void (*close)(void *app), int (*end)(dt_err err));
/** Open comm, and share the result of the command line. Collective. */
dt_err ranks_open(dt_comm *comm, dt_phase *phase, double timeout_s, dt_err parsed);
/** Open the device with this rank's threads; threads 0: the node's cores divided by its ranks. Local. */
dt_err ranks_open_device(dt_comm *comm, dt_device *dev, dt_ledger *ledger, const char *name, int64_t threads);

#endif
