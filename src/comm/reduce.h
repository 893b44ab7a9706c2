/* reduce.h - loops over values: a left fold of several arrays, and copies. Independent of ranks. */
#ifndef DTRAIN_COMM_REDUCE_H
#define DTRAIN_COMM_REDUCE_H

#include "dtrain/core/core.h"

/** dst[i] = ((start + src[0][i]) + src[1][i]) + ..., start = dst[i] if accumulate is set; otherwise the fold begins
 *  with src[0][i]. Added in float, rounded to dst_dt once. dst may be one of the src if the types are equal. n_src >=
 *  1. */
typedef struct dt_fold {
    const void *const *src; /* [n_src] */
    int n_src;
    dt_dtype src_dt;
    void *dst;
    dt_dtype dst_dt;
    bool accumulate;
    bool stream;   /* dst is larger than the cache: use non-temporal stores */
    int n_threads; /* maximum */
} dt_fold;

void dt_reduce_fold(const dt_fold *f, int64_t n);

/** memcpy by several threads, with non-temporal stores if stream is set. */
void dt_reduce_copy(void *dst, const void *src, size_t nbytes, bool stream, int n_threads);

#endif
