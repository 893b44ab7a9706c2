/* together.h - for programs of several ranks. */
#ifndef DTRAIN_MAIN_TOOL_TOGETHER_H
#define DTRAIN_MAIN_TOOL_TOGETHER_H

#include "dtrain/comm.h"

/** All ranks go on, or none: dt_comm_agree. After an error of communication there is no way to tell the others: main
 *  ends the job. */
static inline dt_err together(dt_comm *comm, dt_err err) { return err == DT_ERR_COMM ? err : dt_comm_agree(comm, err); }
/** Leave the function if a call failed on any rank. a: with a member comm. */
#define TOGETHER(a, call) DT_TRY(together(&(a)->comm, (call)))

#endif
