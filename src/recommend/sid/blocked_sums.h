/* blocked_sums.h - sums over blocks of items, in block order for any number of ranks. */
#ifndef DTRAIN_SID_SUMS_H
#define DTRAIN_SID_SUMS_H

#include "dtrain/recommend/sid.h"

/** Initialise to {0}. All buffers are float on the device; all operations are asynchronous. */
typedef struct sid_sums {
    int64_t n, count; /* n: elements; count: elements of a rank's shard */
    dt_buf part;      /* [nranks * count]: contribution of a block; zeros after n */
    dt_buf piece;     /* [count]: this rank's shard */
    dt_buf whole;     /* [nranks * count]: the sums, after sid_sums_end */
} sid_sums;

dt_err sid_sums_alloc(const dt_sid *s, sid_sums *x, int64_t n, dt_memcat category); /* local */
void sid_sums_free(sid_sums *x);
dt_err sid_sums_begin(const dt_sid *s, sid_sums *x); /* local */
/** In each round every rank adds its part, zeros (sid_sums_clear) if it has no block. Collective. */
dt_err sid_sums_clear(const dt_sid *s, sid_sums *x); /* local */
dt_err sid_sums_add(const dt_sid *s, sid_sums *x);
dt_err sid_sums_end(const dt_sid *s, sid_sums *x); /* collective */

/** order [m]: 0 .. m-1 sorted by code, stable. count: [K + 1], scratch. */
void sid_sort_by_code(const int32_t *code, int64_t m, int64_t n_codes, int64_t *count, int32_t *order);

#endif
