/* pipeline.h - one reader, several workers, one writer. The writer receives chunks in the reader's order,
 * regardless of which worker finished first. */
#ifndef DTRAIN_DATA_MAKE_PIPELINE_H
#define DTRAIN_DATA_MAKE_PIPELINE_H

#include "chunk.h"
#include <stdatomic.h>

typedef struct dt_pipeline dt_pipeline;

typedef struct dt_pipeline_jobs {
    /** Runs on its own thread. Gets chunks (dt_pipeline_chunk), fills and submits them
     *  (dt_pipeline_submit) until the input ends. */
    dt_err (*read)(void *self, dt_pipeline *p);
    /** Runs on thread 0 .. n_threads-1. Errors are stored in the chunk. */
    void (*work)(void *self, int thread, dt_chunk *chunk);
    /** Runs on the caller's thread, in order. An error aborts the pipeline. */
    dt_err (*write)(void *self, dt_chunk *chunk);
    /** Runs on the caller's thread several times a second; may be NULL. An error aborts the pipeline. */
    dt_err (*tick)(void *self);
    void *self;
} dt_pipeline_jobs;

/** Run to the end. Returns the first error in input order: an error of read comes after all chunks
 *  submitted before it. */
dt_err dt_pipeline_run(const dt_pipeline_jobs *jobs, int n_threads);

/** For read: wait for a free chunk. NULL: the pipeline is aborting, return immediately. */
dt_chunk *dt_pipeline_chunk(dt_pipeline *p);
void dt_pipeline_submit(dt_pipeline *p);
/** For read, during its own waits: becomes true when the pipeline aborts. */
const atomic_bool *dt_pipeline_stop(const dt_pipeline *p);

#endif
