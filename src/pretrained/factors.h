/* factors.h - low-rank factors of a matrix, for the first values of adapters. Private to pretrained. */
#ifndef DTRAIN_PRETRAINED_FACTORS_H
#define DTRAIN_PRETRAINED_FACTORS_H

#include "dtrain/core/core.h"

/** W [n_out, n_in] and the rank of its factors A [rank, n_in], B [n_out, rank]. rank: at most min(n_out, n_in). */
typedef struct factor_task {
    const float *w;
    int64_t n_out, n_in, rank;
    double scale;   /* s of s B A */
    int iterations; /* of factors_principal; 0: until the singular vectors no longer change */
} factor_task;

/** s B A is the best approximation of W: with W = U S V^T, A = sqrt(S / s) V^T and B = U sqrt(S / s), for the largest
 *  singular values. The component of largest size of a column of U is positive. a, b: out. Local. DT_ERR_MEMORY. */
dt_err factors_principal(const factor_task *t, float *a, float *b);
/** W = Q R, with the signs of Householder's algorithm: B has the first columns of Q, A the first rows of R. Local.
 *  DT_ERR_MEMORY. */
dt_err factors_orthogonal(const factor_task *t, float *a, float *b);

#endif
