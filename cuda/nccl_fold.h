/* nccl_fold.h - the fold of a reduce-scatter (nccl_fold.cu) for the NCCL transport (nccl.c). The transport is a
 * separate shared object (libdtrain_nccl.so): without NCCL, GPUs still communicate through MPI. */
#ifndef DTRAIN_NCCL_FOLD_H
#define DTRAIN_NCCL_FOLD_H

#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Add the blocks of all ranks in rank order, in float, and round once:
 *
 *      recv[i] = ((accumulate ? recv[i] : 0) + p_0[i]) + p_1[i] + ..., 0 <= i < n
 *
 *  p_rank is own; the others are in staged, stride elements apart, in rank order. recv may be own if the types are
 *  equal. With one rank p_0 is the first of staged. */
typedef struct nccl_fold {
    const void *own, *staged;
    int64_t stride;
    int rank, nranks;
    dt_dtype send_dt, recv_dt;
    void *recv;
    bool accumulate;
    int64_t n;
} nccl_fold;
dt_err nccl_fold_blocks(dt_stream *s, const nccl_fold *fold);

#ifdef __cplusplus
}
#endif
#endif
