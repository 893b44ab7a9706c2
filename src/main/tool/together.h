/* together.h - collective error handling for programs with several ranks. */
#ifndef DTRAIN_MAIN_TOOL_TOGETHER_H
#define DTRAIN_MAIN_TOOL_TOGETHER_H

#include "dtrain/comm/comm.h"

/** All ranks continue, or none does: dt_comm_agree. After a communication error the other ranks cannot be
 *  informed, so main ends the job. */
static inline dt_err together(dt_comm *comm, dt_err err) { return err == DT_ERR_COMM ? err : dt_comm_agree(comm, err); }
/** Return from the function if the call failed on any rank. a: has a member comm. */
#define TOGETHER(a, call) DT_TRY(together(&(a)->comm, (call)))

#endif
