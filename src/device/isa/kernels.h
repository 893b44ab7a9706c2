/* kernels.h - the kernels of one instruction set, as isa/table.c collects them. Signatures are explained in
 * cpu_kernels.h. */
#ifndef DTRAIN_ISA_KERNELS_H
#define DTRAIN_ISA_KERNELS_H

#include "isa.h"

void ISA_NAME(convert)(const void *src, dt_dtype src_dt, void *dst, dt_dtype dst_dt, int64_t n);
void ISA_NAME(dequantise)(const dt_stored *b, int64_t row, int64_t col, int64_t n, void *dst, dt_dtype dt);
void ISA_NAME(add_into)(const void *src, dt_dtype src_dt, void *dst, dt_dtype dst_dt, bool accumulate, int64_t n);
void ISA_NAME(add)(const void *a, const void *b, void *c, dt_dtype dt, int64_t n);
void ISA_NAME(scale)(const void *x, float factor, void *y, dt_dtype dt, int64_t n);
void ISA_NAME(add_rows)(float *sum, const void *row, dt_dtype dt, int64_t n);
void ISA_NAME(column_sums)(const void *x, dt_dtype dt, int64_t m, int64_t ld, int64_t n_cols, float *sum);
float ISA_NAME(row_sum)(const void *x, dt_dtype dt, int64_t n);
void ISA_NAME(act_forward)(dt_activation act, const void *x, void *y, dt_dtype dt, int64_t n);
void ISA_NAME(act_backward)(dt_activation act, const void *x, const void *dy, void *dx, dt_dtype dt, int64_t n);
void ISA_NAME(glu_forward)(dt_activation act, const void *gate, const void *up, void *y, dt_dtype dt, int64_t n);
void ISA_NAME(glu_backward)(dt_activation act, const void *gate, const void *up, const void *dy, void *dgate, void *dup,
                            dt_dtype dt, int64_t n);
void ISA_NAME(dropout)(const void *x, const void *residual, void *y, float p, uint64_t key, uint64_t token_key,
                       dt_dtype dt, int64_t width);
void ISA_NAME(rope)(void *x, const float *cos_sin, int64_t half, bool inverse, dt_dtype dt);

float ISA_NAME(rmsnorm_forward)(const void *x, const void *weight, void *y, int64_t width, float eps, dt_dtype dt);
void ISA_NAME(rmsnorm_backward)(const void *x, const void *weight, float rstd, const void *dy, void *dx, bool add_to_dx,
                                float *dweight, int64_t width, dt_dtype dt);
void ISA_NAME(layernorm_forward)(const void *x, const void *weight, const void *bias, void *y, float *mean, float *rstd,
                                 int64_t width, float eps, dt_dtype dt);
void ISA_NAME(layernorm_backward)(const void *x, const void *weight, float mean, float rstd, const void *dy, void *dx,
                                  bool add_to_dx, float *dweight, float *dbias, int64_t width, dt_dtype dt);

void ISA_NAME(classifier)(const dt_classifier *cl, float *logits, int64_t row);

void ISA_NAME(adamw)(const dt_adamw *opt, const void *grad, dt_dtype gt, float *master, float *m, float *v, void *param,
                     dt_dtype param_dt, int64_t n);
void ISA_NAME(sgd)(const dt_sgd *opt, const void *grad, dt_dtype gt, float *master, float *momentum, void *param,
                   dt_dtype param_dt, int64_t n);
double ISA_NAME(sum_squares)(const void *x, dt_dtype dt, int64_t n);
float ISA_NAME(abs_max)(const void *x, dt_dtype dt, int64_t n);
void ISA_NAME(sum_squares_fixed)(const void *x, dt_dtype dt, int64_t n, int shift, uint64_t sum[2]);

void ISA_NAME(matmul)(const dt_matmul_call *g, const dt_matmul_block *part);
void ISA_NAME(matmul_rows)(const dt_rows_matmul *p, int64_t first, int64_t n);
void ISA_NAME(attention_rows)(const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part);

int64_t ISA_NAME(attention_scratch)(int head_dim);
void ISA_NAME(attention_forward)(const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part);
void ISA_NAME(attention_delta)(const dt_attention *at, const void *out, const void *dout, int64_t first, int64_t n,
                               float *delta);
void ISA_NAME(attention_backward_q)(const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part);
void ISA_NAME(attention_backward_kv)(const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part);

/* Units that multiply bf16. On x86 they are asked for function by function, within the set that has the vectors for
 * them; on Arm they have sets of their own. */
#if defined(__x86_64__) && defined(__AVX512BW__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define HAVE_X86_UNITS 1
#else
#define HAVE_X86_UNITS 0
#endif
#if defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define HAVE_ARM_UNITS 1
#else
#define HAVE_ARM_UNITS 0
#endif
#define HAVE_BF16_UNITS (HAVE_X86_UNITS || HAVE_ARM_UNITS)
#if HAVE_BF16_UNITS
void ISA_NAME(attention_forward_bf16)(const dt_attention *at, const dt_attention_args *a,
                                      const dt_attention_part *part);
void ISA_NAME(attention_backward_q_bf16)(const dt_attention *at, const dt_attention_args *a,
                                         const dt_attention_part *part);
void ISA_NAME(attention_backward_kv_bf16)(const dt_attention *at, const dt_attention_args *a,
                                          const dt_attention_part *part);
void ISA_NAME(dequantise_pairs)(const dt_stored *b, int64_t row, int64_t col, int64_t n, void *dst, dt_dtype dt);
extern const dt_bf16_unit ISA_NAME(dot_unit);
#endif
#if HAVE_X86_UNITS
extern const dt_bf16_unit ISA_NAME(amx_unit);
size_t ISA_NAME(matmul_scratch)(void);
void ISA_NAME(matmul_bf16)(const dt_matmul_call *g, const dt_matmul_block *part);
#endif

#endif
