/* int8.h - products in int8: which they are, as devices compute them and as units of a model ask for them.
 *
 * Source   LLM.int8: Dettmers et al., arXiv:2208.07339 (algorithms.md 6.3). */
#ifndef DTRAIN_INT8_H
#define DTRAIN_INT8_H

#include <stdbool.h>

/** Multiply in int8 (dt_matmul), where B is int8 with scales b of its rows, stored [n,k], and A is not transposed:
 *
 *      P_ij = S_ij (a_i/127 b_j) + sum over the outliers p of A_ip B_jp,    S_ij = sum over the other p of q_ip code_jp
 *      q_ip = 127 A_ip / a_i, halves to even,    a_i = the largest |A_ip| below the threshold (threshold 0: of all)
 *
 *  A column p of A is an outlier where one of its elements is NaN or has at least the threshold; of a row that is to be
 *  batch-invariant its own elements alone count. At the threshold 0 there is no outlier. S is exact, so it has the same
 *  bits in any order; outliers are added in float in the order of p, by numbers of B rounded to dt. A NaN or infinity
 *  in a row of A makes that row of P NaN or infinite. k is at most DT_INT8_MOST_K. */
typedef struct dt_int8_product {
    bool on;
    float threshold;
} dt_int8_product;
enum { DT_INT8_MOST_K = 1 << 17 }; /* 128 * 127 * k is an int32_t */

#endif
