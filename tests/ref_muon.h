/* ref_muon.h - an update by Muon in plain loops. */
#ifndef DTRAIN_REF_MUON_H
#define DTRAIN_REF_MUON_H

#include "dtrain/optim/optim.h"

/** Update a matrix [rows, cols] and its momentum in place.
 *
 *      b <- mu b + (1 - mu) g      U = mu b + (1 - mu) g, or b      p <- (1 - lr wd) p - lr s NS(U)
 *
 *  NS(U) starts from X = U / |U|, transposed if it has more rows than columns, and repeats A = X X^T, X <- a X + (b A +
 *  c A A) X. U, |U|, X, A and b A + c A A are rounded to bf16, sums and other values are double. Source: Jordan et al.,
 *  2024 (coefficients); torch.optim.Muon (roundings); Liu et al., arXiv:2502.16982 (s and decay).
 *
 *  s    lr, weight_decay, grad_scale and the muon_... keys of cfg */
void ref_muon_step(const dt_optimizer_step *s, int64_t rows, int64_t cols, const float *grad, float *param,
                   float *momentum);

#endif
