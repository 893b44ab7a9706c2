/* nccl_fold.h - the fold of a reduce-scatter (nccl_fold.cu) for the NCCL transport (nccl.c). The transport is a
 * shared object of its own (libdtrain_nccl.so): where NCCL is missing, GPUs still exchange by MPI. */
#ifndef DTRAIN_NCCL_FOLD_H
#define DTRAIN_NCCL_FOLD_H

#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Add the pieces of all ranks in order of rank, in float, and round once:
 *
 *      recv[i] = ((accumulate ? recv[i] : 0) + p_0[i]) + p_1[i] + ..., 0 <= i < n
 *
 *  p_rank is own; the others lie in staged, stride elements apart, in order of rank. recv may be own where the types
 *  are equal. With one rank p_0 is the first of staged. */
typedef struct nccl_fold {
    const void *own, *staged;
    int64_t stride;
    int rank, nranks;
    dt_dtype send_dt, recv_dt;
    void *recv;
    bool accumulate;
    int64_t n;
} nccl_fold;
dt_err nccl_fold_pieces(dt_stream *s, const nccl_fold *fold);

#ifdef __cplusplus
}
#endif
#endif
