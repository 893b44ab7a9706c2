/* core_private.h - shared declarations of src/core. */
#ifndef DTRAIN_CORE_PRIVATE_H
#define DTRAIN_CORE_PRIVATE_H

#include "dtrain/core/core.h"

int dt_log_rank(void); /* the argument of dt_log_open; 0 before */
bool dt_log_wants(dt_log_level level);

#endif
