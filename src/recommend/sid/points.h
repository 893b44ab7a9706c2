/* points.h - shared by src/sid: this rank's blocks of rows, and the nearest codes of a block's rows. */
#ifndef DTRAIN_SID_POINTS_H
#define DTRAIN_SID_POINTS_H

#include "dtrain/recommend/sid.h"

/** Number of items in this rank's block of a round, and *first. 0: no block. */
int64_t sid_block_of(const dt_sid *s, int64_t n, int64_t round, int64_t *first);
/** Rows of that block, on the device. */
float *sid_rows_of(const dt_sid *s, const dt_sid_points *p, int64_t round);
/** Copy an item's row to out [width] on the host, on all ranks. Collective, agreed. */
dt_err sid_fetch_row(const dt_sid *s, const dt_sid_points *p, int64_t item, float *out);
/** Wait for the stream, also after an error: queued operations read host memory that is about to be reused
 *  or freed. Returns err, or the error of the wait. */
dt_err sid_wait(const dt_sid *s, dt_err err);

/** Device and host buffers for choosing codes. Initialise to {0}. */
typedef struct sid_choice {
    dt_buf score, token, logit; /* [block, K], [block], [block] */
    int32_t *token_host;
    float *logit_host;
} sid_choice;

dt_err sid_choice_alloc(const dt_sid *s, sid_choice *c); /* local */
void sid_choice_free(sid_choice *c);
/** Codes of m rows x [m, width], on device and host, with their x e^T - |e|^2/2. Local, synchronous. */
dt_err sid_choose(const dt_sid *s, const dt_sid_book *b, const void *x, int64_t m, sid_choice *c);

#endif
