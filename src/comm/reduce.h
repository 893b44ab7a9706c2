/* reduce.h - the loops over numbers: a left fold of several arrays, and copies. Know nothing of ranks. */
#ifndef DTRAIN_COMM_REDUCE_H
#define DTRAIN_COMM_REDUCE_H

#include "dtrain/core/core.h"

/** dst[i] = ((start + src[0][i]) + src[1][i]) + ..., start = dst[i] when accumulate, else the fold begins with
 *  src[0][i]. Added in float, rounded to dst_dt once. dst may be one of the src when the types are equal. n_src >=
 *  1. */
typedef struct dt_fold {
    const void *const *src; /* [n_src] */
    int n_src;
    dt_dtype src_dt;
    void *dst;
    dt_dtype dst_dt;
    bool accumulate;
    bool stream;   /* dst is too large to be read again from the cache: write around it */
    int n_threads; /* at most */
} dt_fold;

void dt_reduce_fold(const dt_fold *f, int64_t n);

/** memcpy by several threads, writing around the cache when stream is set. */
void dt_reduce_copy(void *dst, const void *src, size_t nbytes, bool stream, int n_threads);

#endif
