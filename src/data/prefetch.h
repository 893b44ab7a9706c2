/* prefetch.h - one thread that builds batches ahead of their use. */
#ifndef DTRAIN_DATA_PREFETCH_H
#define DTRAIN_DATA_PREFETCH_H

#include "dtrain/core/token_batch.h"

typedef struct dt_request {
    int64_t step, micro; /* step DT_EVALUATION: of an evaluation */
    bool mismatched;     /* prompts with the answers of other samples */
} dt_request;

/** Callbacks of the thread. make fills *b for a request; next predicts the request that follows one. */
typedef struct dt_maker {
    void *self;
    dt_err (*make)(void *self, const dt_request *what, dt_batch *b);
    dt_request (*next)(void *self, const dt_request *what);
} dt_maker;

typedef struct dt_prefetch dt_prefetch;

/** batches: [n_batches], n_batches >= 2, owned by the caller. One is in use while the others are filled. */
dt_err dt_prefetch_open(dt_prefetch **p, const dt_maker *maker, dt_batch *batches, int n_batches);
/** Stop the thread after the batch in progress. NULL is allowed. */
void dt_prefetch_close(dt_prefetch *p);
/** Get the batch of a request, valid until the next call, or the error of building it. A request that was
 *  not predicted discards all prefetched batches. */
dt_err dt_prefetch_take(dt_prefetch *p, const dt_request *what, const dt_batch **b);

#endif
