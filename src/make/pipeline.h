/* pipeline.h - one reader, several workers, one writer; the writer gets what the reader handed over in its order,
 * whoever worked on it. */
#ifndef DTRAIN_DATA_MAKE_PIPELINE_H
#define DTRAIN_DATA_MAKE_PIPELINE_H

#include "chunk.h"

typedef struct dt_pipeline dt_pipeline;

typedef struct dt_pipeline_jobs {
    /** On a thread of its own: fills chunks (dt_pipeline_chunk) and hands them over (dt_pipeline_submit) until the
     *  input ends. */
    dt_err (*read)(void *self, dt_pipeline *p);
    /** On thread 0 .. n_threads-1. What goes wrong with it is left in the chunk. */
    void (*work)(void *self, int thread, dt_chunk *chunk);
    /** On the caller's thread, in order. An error ends everything. */
    dt_err (*write)(void *self, dt_chunk *chunk);
    /** On the caller's thread, several times a second. An error ends everything; may be NULL. */
    dt_err (*tick)(void *self);
    void *self;
} dt_pipeline_jobs;

/** Run to the end. The first error in the order of the input is returned: that of read comes after all that it had
 *  handed over. */
dt_err dt_pipeline_run(const dt_pipeline_jobs *jobs, int n_threads);

/** For read: the chunk to fill, waiting for a free one; NULL: all is being given up, return at once. */
dt_chunk *dt_pipeline_chunk(dt_pipeline *p);
void dt_pipeline_submit(dt_pipeline *p);
/** For read, where it waits itself: is all being given up? */
bool dt_pipeline_stopped(dt_pipeline *p);

#endif
