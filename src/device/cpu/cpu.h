/* cpu.h - what the files of the CPU device share. */
#ifndef DTRAIN_CPU_H
#define DTRAIN_CPU_H

#include "cpu_kernels.h"
#include "dtrain/device/device.h"
#include "dtrain/device/device_check.h"

typedef struct cpu_matmul cpu_matmul; /* cpu_matmul_onednn.c */

#define CPU_MAX_PARTIALS 4096

typedef struct cpu_state {
    const dt_cpu_kernels *k;
    int n_threads;
    bool planning;            /* scratch is counted, not allocated */
    bool reproducible;        /* the same bits on any number of threads */
    const dt_bf16_unit *unit; /* what multiplies bf16 tiles in attention; NULL: they are converted to float */
    cpu_matmul *matmul;
    bool pairs;           /* batch-invariant bf16 matmuls use the processor's pairwise dot products */
    void *matmul_scratch; /* n_threads pieces of matmul_scratch_nbytes; NULL: bf16 matmuls are oneDNN's */
    size_t matmul_scratch_nbytes;
    /* n_threads pieces, of attention_scratch_elems floats each, for head_dim up to DT_ATTENTION_MAX_HEAD_DIM */
    float *attention_scratch;
    int64_t attention_scratch_elems;
    size_t nbytes_held; /* by attention and reductions; cpu_matmul counts its own */
    double partial[CPU_MAX_PARTIALS];
    float partial_max[CPU_MAX_PARTIALS];
    uint64_t partial_fixed[CPU_MAX_PARTIALS][2];
    char processor[96];
} cpu_state;

static inline cpu_state *cpu_of(const dt_device *dev) { return (cpu_state *)dev->impl; }
/** Refuse a type that is kept and not computed in. */
#define CPU_TAKES(t)                                                                                                   \
    DT_CHECK(dt_is_float(t), DT_ERR_ARG, "internal: %s: expected type fp32, bf16 or fp16, found %s", __func__,         \
             dt_dtype_name(t))

static inline const void *cpu_at(const void *p, dt_dtype dt, int64_t i)
{
    return (const char *)p + i * (int64_t)dt_dtype_size(dt);
}
static inline void *cpu_at_w(void *p, dt_dtype dt, int64_t i) { return (char *)p + i * (int64_t)dt_dtype_size(dt); }

/* Work is cut into chunks of a size that does not depend on the number of threads: so neither do results. */
#define CPU_CHUNK                                                                                                      \
    16384 /* elements: 64 KiB of float, small compared with the second-level cache, large compared with
                         * the cost of a turn */
static inline int64_t cpu_n_chunks(int64_t n, int64_t chunk) { return n / chunk + (n % chunk != 0); }

#define CPU_TEXT(...) #__VA_ARGS__
#define CPU_PRAGMA(...) _Pragma(CPU_TEXT(__VA_ARGS__))
/** for (i = 0; i < n; i++) body, on the device's threads, each taking one contiguous piece. */
#define CPU_PARALLEL_FOR(cpu, i, n)                                                                                    \
    const int64_t n_turns_ = (n);                                                                                      \
    CPU_PRAGMA(omp parallel for num_threads((cpu)->n_threads) schedule(static) if (n_turns_ > 1))                      \
    for (int64_t i = 0; i < n_turns_; i++)

/* cpu_memory.c */
dt_err cpu_alloc(dt_device *dev, dt_place place, size_t nbytes, void **ptr);
void cpu_free(dt_device *dev, dt_place place, void *ptr, size_t nbytes);
dt_err cpu_grab(size_t nbytes, int n_threads, void **ptr); /* zeroed, touched, in huge pages when large */
void cpu_drop(void *ptr, size_t nbytes);
/* Scratch memory of matmuls. It only grows: after the first step nothing is allocated. Its contents are lost. */
dt_err cpu_grow(const cpu_state *cpu, void **p, size_t *size, size_t wanted);

/* cpu_matmul_onednn.c */
dt_err cpu_matmul_open(cpu_state *cpu);
void cpu_matmul_close(cpu_state *cpu);
size_t cpu_matmul_held(const cpu_state *cpu);
dt_err cpu_matmul_run(dt_device *dev, const dt_matmul *mm, const void *a, const void *b, void *c, dt_stream *stream);

/* cpu_matmul_rows.c: dt_matmul.batch_invariant, checked by the caller */
bool cpu_rows_use_pairs(const dt_cpu_kernels *k);
void cpu_rows_matmul(const cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c);

/* cpu_epilogue.c: what comes after a matmul; the caller has checked mm */
void cpu_epilogue_act(const cpu_state *cpu, const dt_matmul *mm, void *c);
dt_err cpu_epilogue_sums(dt_device *dev, const dt_matmul *mm, const void *a, const void *b, const void *c);

/* cpu_matmul_own.c: matmuls by our own kernels; cpu_matmul_any_run takes every form */
dt_err cpu_matmul_bf16_open(cpu_state *cpu);
void cpu_matmul_bf16_close(cpu_state *cpu);
bool cpu_matmul_bf16_takes(const cpu_state *cpu, const dt_matmul *mm);
void cpu_matmul_bf16_run(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c);
void cpu_matmul_any_run(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c);

/* cpu_patches.c */
dt_err cpu_patches(dt_device *dev, const dt_patches *p, const uint8_t *pixels, void *out, dt_stream *stream);

/* cpu_layers.c, cpu_attention.c, cpu_optimizer.c fill in their part of the table */
dt_err cpu_convert(dt_device *dev, const void *src, dt_dtype src_dt, void *dst, dt_dtype dst_dt, int64_t n,
                   dt_stream *stream);
dt_err cpu_add_into(dt_device *dev, const void *src, dt_dtype src_dt, void *dst, dt_dtype dst_dt, bool accumulate,
                    int64_t n, dt_stream *stream);
dt_err cpu_add(dt_device *dev, const void *a, const void *b, void *c, dt_dtype dt, int64_t n, dt_stream *stream);
dt_err cpu_scale(dt_device *dev, const void *x, float factor, void *y, dt_dtype dt, int64_t n, dt_stream *stream);
dt_err cpu_gather_rows(dt_device *dev, const void *src, const int32_t *index, void *dst, int64_t n_rows, int64_t width,
                       dt_dtype dt, dt_stream *stream);
dt_err cpu_scatter_rows(dt_device *dev, const void *src, const int32_t *index, void *dst, int64_t n_rows, int64_t width,
                        dt_dtype dt, dt_stream *stream);
dt_err cpu_bias_backward(dt_device *dev, const void *dy, int64_t m, int64_t n, int64_t ld, dt_dtype dt, void *dbias,
                         dt_dtype gt, bool accumulate, dt_stream *stream);
dt_err cpu_embedding_forward(dt_device *dev, const int32_t *token, const int32_t *pos, const void *wte, const void *wpe,
                             void *out, int64_t n_tok, int64_t width, dt_dtype dt, dt_stream *stream);
dt_err cpu_embedding_backward(dt_device *dev, const void *dout, const int32_t *id, const int32_t *order,
                              void *table_grad, int64_t n_tok, int64_t width, dt_dtype dt, dt_dtype gt,
                              dt_stream *stream);
dt_err cpu_rmsnorm_forward(dt_device *dev, const void *x, const void *weight, void *y, float *rstd, int64_t n_rows,
                           int64_t width, int64_t group, int64_t group_ld, int64_t y_group_ld, float eps, dt_dtype dt,
                           dt_stream *stream);
dt_err cpu_rmsnorm_backward(dt_device *dev, const void *x, const void *weight, const float *rstd, const void *dy,
                            void *dx, bool add_to_dx, void *dweight, dt_dtype gt, bool accumulate, int64_t n_rows,
                            int64_t width, int64_t group, int64_t group_ld, int64_t y_group_ld, float *scratch,
                            dt_dtype dt, dt_stream *stream);
dt_err cpu_layernorm_forward(dt_device *dev, const void *x, const void *weight, const void *bias, void *y, float *mean,
                             float *rstd, int64_t n_rows, int64_t width, float eps, dt_dtype dt, dt_stream *stream);
dt_err cpu_layernorm_backward(dt_device *dev, const void *x, const void *weight, const float *mean, const float *rstd,
                              const void *dy, void *dx, bool add_to_dx, void *dweight, void *dbias, dt_dtype gt,
                              bool accumulate, int64_t n_rows, int64_t width, float *scratch, dt_dtype dt,
                              dt_stream *stream);
int64_t cpu_norm_scratch_elems(const dt_device *dev, int64_t width);
dt_err cpu_heads_forward(dt_device *dev, const dt_heads *h, const void *x, void *q, void *k, void *v, float *rstd_q,
                         float *rstd_k, dt_stream *stream);
dt_err cpu_heads_backward(dt_device *dev, const dt_heads *h, const void *x, const float *rstd_q, const float *rstd_k,
                          void *dq, void *dk, void *dq_norm, void *dk_norm, dt_dtype gt, bool accumulate,
                          float *scratch, dt_stream *stream);
dt_err cpu_act_forward(dt_device *dev, dt_activation act, const void *x, void *y, dt_dtype dt, int64_t n,
                       dt_stream *stream);
dt_err cpu_act_backward(dt_device *dev, dt_activation act, const void *x, const void *dy, void *dx, dt_dtype dt,
                        int64_t n, dt_stream *stream);
dt_err cpu_glu_forward(dt_device *dev, dt_activation act, const void *gate_up, void *y, dt_dtype dt, int64_t n_rows,
                       int64_t width, dt_stream *stream);
dt_err cpu_glu_backward(dt_device *dev, dt_activation act, const void *gate_up, const void *dy, void *dgate_up,
                        dt_dtype dt, int64_t n_rows, int64_t width, dt_stream *stream);
dt_err cpu_dropout(dt_device *dev, const void *x, const void *addend, void *y, float p, uint64_t key,
                   const uint64_t *token_key, int64_t n_tok, int64_t width, dt_dtype dt, dt_stream *stream);

dt_err cpu_attention_forward(dt_device *dev, const dt_attention *at, const void *q, const void *k, const void *v,
                             void *out, float *lse, dt_stream *stream);
dt_err cpu_attention_backward(dt_device *dev, const dt_attention *at, const void *q, const void *k, const void *v,
                              const void *out, const float *lse, const void *dout, void *dq, void *dk, void *dv,
                              float *scratch, dt_stream *stream);
int64_t cpu_attention_scratch_elems(const dt_device *dev, const dt_attention *at);

dt_err cpu_classifier(dt_device *dev, const dt_classifier *cl, float *logits, dt_stream *stream);
/* cpu_tokens.c */
dt_err cpu_draw_tokens(dt_device *dev, const dt_token_rows *rows, const dt_choice *how, const float *logits,
                       const double *uniform, int32_t *token, void *scratch, dt_stream *stream);
size_t cpu_draw_scratch_nbytes(const dt_device *dev, const dt_token_rows *rows);
dt_err cpu_top_tokens(dt_device *dev, const dt_token_rows *rows, const float *logits, int64_t k, int32_t *token,
                      float *logit, dt_stream *stream);
dt_err cpu_log_softmax_at(dt_device *dev, const dt_token_rows *rows, const float *logits, double inv_temperature,
                          int64_t k, const int32_t *token, double *logp, dt_stream *stream);
int64_t cpu_classifier_rows(const dt_device *dev, int64_t n_vocab, int64_t n_tok);
dt_err cpu_adamw_step(dt_device *dev, const dt_adamw *opt, const void *grad, dt_dtype gt, float *master, float *m,
                      float *v, void *param, dt_dtype param_dt, int64_t n, dt_stream *stream);
dt_err cpu_sgd_step(dt_device *dev, const dt_sgd *opt, const void *grad, dt_dtype gt, float *master, float *momentum,
                    void *param, dt_dtype param_dt, int64_t n, dt_stream *stream);
dt_err cpu_sum_squares(dt_device *dev, const void *x, dt_dtype dt, int64_t n, double *result, dt_stream *stream);
dt_err cpu_abs_max(dt_device *dev, const void *x, dt_dtype dt, int64_t n, float *result, dt_stream *stream);
dt_err cpu_sum_squares_fixed(dt_device *dev, const void *x, dt_dtype dt, int64_t n, int shift, uint64_t result[2],
                             dt_stream *stream);

#endif
