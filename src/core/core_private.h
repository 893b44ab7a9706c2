/* core_private.h - what the files of src/core share and others need not see. */
#ifndef DTRAIN_CORE_PRIVATE_H
#define DTRAIN_CORE_PRIVATE_H

#include "dtrain/core/core.h"

int dt_log_rank(void); /* as dt_log_open was told; 0 before */
bool dt_log_wants(dt_log_level level);

#endif
