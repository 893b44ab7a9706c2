/* cpu_kernels.h - the inner loops of the CPU device: one table per instruction set, chosen when the device is opened.
 *
 * Kernels work on a range in one thread; who does which range is decided in cpu_*.c, so that results do not depend on
 * the instruction set's file being asked for more or fewer threads. Types and conventions are those of
 * dtrain/device/device.h. */
#ifndef DTRAIN_CPU_KERNELS_H
#define DTRAIN_CPU_KERNELS_H

#include "dtrain/device/device.h"

/** Columns summed at once by column_sums. */
#define DT_CPU_COLS 64

/** Matmuls of bf16 tiles with float sums: C[m,n] (+)= A B; A [m][k]; B in pairs along k: b[p * ldb + j] holds B[2p][j]
 *  below and B[2p+1][j] above. m and n are multiples of 16, k of 32. begin and end bracket a thread's use. */
typedef struct dt_bf16_unit {
    const char *name;
    void (*begin)(void);
    void (*end)(void);
    void (*matmul)(int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint32_t *b, int64_t ldb,
                   float *c, int64_t ldc, bool accumulate);
} dt_bf16_unit;

/** A matrix that is stored with scales (dt_scaled): elements by rows, ld apart. */
typedef struct dt_stored {
    const void *p;
    int64_t ld;
    dt_scaled how;
} dt_stored;

/** A matmul of matrices without its epilogue, and what one thread computes of it: rows and columns of C, cut between
 *  tiles. */
typedef struct dt_matmul_call {
    const dt_matmul *mm;
    const void *a, *b;
    void *c;
} dt_matmul_call;
typedef struct dt_matmul_block {
    int64_t first_row, end_row, first_col, end_col;
    void *scratch;            /* this thread's, matmul_scratch() bytes, on a cache line: for matmul_bf16 */
    const dt_bf16_unit *unit; /* for matmul: multiplies bf16; NULL: as floats */
} dt_matmul_block;
enum { DT_TILE_ROWS = 8, DT_TILE_COLS = 48 }; /* a tile of C */

/** What one thread does of an attention call: some rows of one sequence and one head; see isa/attention.c. */
typedef struct dt_attention_part {
    int seq, head;    /* head: of queries for forward and dq, of keys for dk and dv */
    int32_t first, n; /* rows within the sequence: queries for forward and dq, keys for dk and dv */
    float *scratch;   /* this thread's, [attention_scratch(head_dim)] */
    float *dkv;       /* float [2][n up to whole tiles][padded head_dim]: sums of dk and dv, for backward_kv */
    bool with_dq;     /* backward_kv covers all keys of the sequence and writes dq too */
    const struct dt_bf16_unit *unit; /* for the _bf16 kernels */
} dt_attention_part;

/** A batch-invariant matmul (dt_matmul.batch_invariant): plain A, B either way, also stored with scales. */
enum { DT_ROWS_BLOCK = 64 /* rows of C that use a part of B together */ };
typedef struct dt_rows_matmul {
    dt_matmul_call g;
    bool pairs; /* bf16 by the processor's pairwise dot products, where B is stored [n,k] */
} dt_rows_matmul;

typedef struct dt_attention_args {
    const void *q, *k, *v;
    void *out_w; /* forward */
    float *lse_w;
    const void *dout;         /* backward */
    const float *lse, *delta; /* [n_tok, n_heads]; delta = sum over c of dout * out */
    void *dq, *dk, *dv;
} dt_attention_args;

/** Rows of queries and of keys in a tile; head_dim is padded to a multiple of DT_ATTENTION_PAD. */
enum { DT_ATTENTION_Q_TILE = 64, DT_ATTENTION_K_TILE = 64, DT_ATTENTION_PAD = 32 };

typedef struct dt_cpu_kernels {
    const char *isa;

    /* elementwise.c */
    void (*convert)(const void *src, dt_dtype src_dt, void *dst, dt_dtype dst_dt, int64_t n);
    void (*add_into)(const void *src, dt_dtype src_dt, void *dst, dt_dtype dst_dt, bool accumulate, int64_t n);
    void (*add)(const void *a, const void *b, void *c, dt_dtype dt, int64_t n);
    void (*scale)(const void *x, float factor, void *y, dt_dtype dt, int64_t n);
    void (*add_rows)(float *sum, const void *row, dt_dtype dt, int64_t n); /* sum[i] += row[i] */
    /* n_cols <= DT_CPU_COLS */
    void (*column_sums)(const void *x, dt_dtype dt, int64_t m, int64_t ld, int64_t n_cols, float *sum);
    float (*row_sum)(const void *x, dt_dtype dt, int64_t n);
    void (*act_forward)(dt_activation act, const void *x, void *y, dt_dtype dt, int64_t n);
    void (*act_backward)(dt_activation act, const void *x, const void *dy, void *dx, dt_dtype dt, int64_t n);
    void (*glu_forward)(dt_activation act, const void *gate, const void *up, void *y, dt_dtype dt, int64_t n);
    void (*glu_backward)(dt_activation act, const void *gate, const void *up, const void *dy, void *dgate, void *dup,
                         dt_dtype dt, int64_t n);
    void (*dropout)(const void *x, const void *addend, void *y, float p, uint64_t key, uint64_t token_key, dt_dtype dt,
                    int64_t width);
    void (*rope)(void *x, const float *cos_sin, int64_t half, bool inverse, dt_dtype dt);

    /* dequantise.c: n elements of a row, from column col on, as numbers of dt */
    void (*dequantise)(const dt_stored *b, int64_t row, int64_t col, int64_t n, void *dst, dt_dtype dt);

    /* norm.c: one row; backward adds to the block's float sums */
    float (*rmsnorm_forward)(const void *x, const void *weight, void *y, int64_t width, float eps, dt_dtype dt);
    void (*rmsnorm_backward)(const void *x, const void *weight, float rstd, const void *dy, void *dx, bool add_to_dx,
                             float *dweight, int64_t width, dt_dtype dt);
    void (*layernorm_forward)(const void *x, const void *weight, const void *bias, void *y, float *mean, float *rstd,
                              int64_t width, float eps, dt_dtype dt);
    void (*layernorm_backward)(const void *x, const void *weight, float mean, float rstd, const void *dy, void *dx,
                               bool add_to_dx, float *dweight, float *dbias, int64_t width, dt_dtype dt);

    void (*classifier)(const dt_classifier *cl, float *logits, int64_t row); /* classifier.c: one row */

    /* optimizer_kernels.c */
    void (*adamw)(const dt_adamw *opt, const void *grad, dt_dtype gt, float *master, float *m, float *v, void *param,
                  dt_dtype param_dt, int64_t n);
    void (*sgd)(const dt_sgd *opt, const void *grad, dt_dtype gt, float *master, float *momentum, void *param,
                dt_dtype param_dt, int64_t n); /* momentum may be NULL */
    double (*sum_squares)(const void *x, dt_dtype dt, int64_t n);
    float (*abs_max)(const void *x, dt_dtype dt, int64_t n);
    void (*sum_squares_fixed)(const void *x, dt_dtype dt, int64_t n, int shift, uint64_t sum[2]); /* n <= 2^11 */

    /* matmul_any.c: any form, size and type */
    void (*matmul)(const dt_matmul_call *g, const dt_matmul_block *part);

    /* matmul_rows.c, attention_rows.c: for generation */
    void (*matmul_rows)(const dt_rows_matmul *p, int64_t first, int64_t n); /* n columns of C from first on */
    /* head: of keys */
    void (*attention_rows)(const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part);

    /* attention.c, attention_backward.c */
    int64_t (*attention_scratch)(int head_dim);
    void (*attention_forward)(const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part);
    /** delta[t, h] for n tokens from first on */
    void (*attention_delta)(const dt_attention *at, const void *out, const void *dout, int64_t first, int64_t n,
                            float *delta);
    void (*attention_backward_q)(const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part);
    void (*attention_backward_kv)(const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part);

    /* attention_bf16.c, matmul_x86.c: the same on bf16 units, NULL in sets without them. Probabilities and their
     * gradients are rounded to bf16 before they are multiplied, as on GPUs. */
    void (*attention_forward_bf16)(const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part);
    void (*attention_backward_q_bf16)(const dt_attention *at, const dt_attention_args *a,
                                      const dt_attention_part *part);
    void (*attention_backward_kv_bf16)(const dt_attention *at, const dt_attention_args *a,
                                       const dt_attention_part *part);
    /* bf16 for these units, which take what is below 2^-126 for 0 */
    void (*dequantise_pairs)(const dt_stored *b, int64_t row, int64_t col, int64_t n, void *dst, dt_dtype dt);
    const dt_bf16_unit *dot_unit, *amx_unit;

    /* matmul_bf16.c: where x86 has dot_unit; NULL elsewhere */
    size_t (*matmul_scratch)(void);
    void (*matmul_bf16)(const dt_matmul_call *g, const dt_matmul_block *part);
} dt_cpu_kernels;

/* The Makefile defines DT_HAVE_ISA_<name> for each set it compiles. */
extern const dt_cpu_kernels dt_cpu_kernels_v2, dt_cpu_kernels_v3, dt_cpu_kernels_v4, dt_cpu_kernels_base;
extern const dt_cpu_kernels dt_cpu_kernels_neon, dt_cpu_kernels_neon_bf16, dt_cpu_kernels_sve, dt_cpu_kernels_sve_bf16;

#endif
