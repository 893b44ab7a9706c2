/* together.h - for programs of several ranks. */
#ifndef DTRAIN_MAIN_TOOL_TOGETHER_H
#define DTRAIN_MAIN_TOOL_TOGETHER_H

#include "dtrain/comm/comm.h"

/** All ranks continue, or none: dt_comm_agree. After a communication error the others cannot be informed, so main ends
 *  the job. */
static inline dt_err together(dt_comm *comm, dt_err err) { return err == DT_ERR_COMM ? err : dt_comm_agree(comm, err); }
/** Leave the function if a call failed on any rank. a: with a member comm. */
#define TOGETHER(a, call) DT_TRY(together(&(a)->comm, (call)))

#endif
