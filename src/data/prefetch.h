/* prefetch.h - one thread that makes batches ahead of their use. */
#ifndef DTRAIN_DATA_PREFETCH_H
#define DTRAIN_DATA_PREFETCH_H

#include "dtrain/core/token_batch.h"

typedef struct dt_request {
    bool eval;
    int64_t step, micro;
} dt_request;

/** What the thread works on. make fills *b for a request; next is the request that is expected after one. */
typedef struct dt_maker {
    void *self;
    dt_err (*make)(void *self, const dt_request *what, dt_batch *b);
    dt_request (*next)(void *self, const dt_request *what);
} dt_maker;

typedef struct dt_prefetch dt_prefetch;

/** batches: [n_batches], n_batches >= 2, the caller's: one is in use while the others are filled. */
dt_err dt_prefetch_open(dt_prefetch **p, const dt_maker *maker, dt_batch *batches, int n_batches);
/** Ends the thread, after the batch that it is making. NULL is fine. */
void dt_prefetch_close(dt_prefetch *p);
/** The batch of a request, valid until the next call; an error of making it. A request that was not expected throws
 *  away what was made ahead. */
dt_err dt_prefetch_take(dt_prefetch *p, const dt_request *what, const dt_batch **b);

#endif
