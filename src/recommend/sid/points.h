/* points.h - what the files of src/recommend/sid share: this rank's blocks of rows, and which code is nearest to each
 * row of one. */
#ifndef DTRAIN_SID_POINTS_H
#define DTRAIN_SID_POINTS_H

#include "dtrain/recommend/sid.h"

/** Items of this rank's block of a round: how many, the first in *first. 0: there is no such block. */
int64_t sid_block_of(const dt_sid *s, int64_t n, int64_t round, int64_t *first);
/** The rows of that block, on the device. */
float *sid_rows_of(const dt_sid *s, const dt_sid_points *p, int64_t round);
/** An item's row into out [width] on the host, on all ranks. Collective, agreed. */
dt_err sid_fetch_row(const dt_sid *s, const dt_sid_points *p, int64_t item, float *out);
/** Wait for the stream, after an error as well: what is queued reads memory of the host that is about to be reused or
 *  freed. Returns err, or else that of the wait. */
dt_err sid_wait(const dt_sid *s, dt_err err);

/** What a block's choice needs on the device, and on the host. {0} to start from. */
typedef struct sid_choice {
    dt_buf score, token, logit; /* [block, K], [block], [block] */
    int32_t *token_host;
    float *logit_host;
} sid_choice;

dt_err sid_choice_alloc(const dt_sid *s, sid_choice *c); /* local */
void sid_choice_free(sid_choice *c);
/** Codes of m rows x [m, width], on device and host, and x e^T - |e|^2/2 for them. Local, synchronous. */
dt_err sid_choose(const dt_sid *s, const dt_sid_book *b, const void *x, int64_t m, sid_choice *c);

#endif
