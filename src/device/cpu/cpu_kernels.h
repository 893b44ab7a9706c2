/* cpu_kernels.h - the inner loops of the CPU device: one table per instruction set, chosen when the device is opened.
 *
 * A kernel computes a range in one thread. cpu_*.c divide the work into ranges, in the same way for every instruction
 * set. Types and conventions are those of dtrain/device/device.h. */
#ifndef DTRAIN_CPU_KERNELS_H
#define DTRAIN_CPU_KERNELS_H

#include "dtrain/device/block8.h"
#include "dtrain/device/device.h"

/** The address of element i of an array of any type. */
static inline const void *cpu_at(const void *p, dt_dtype dt, int64_t i)
{
    return (const char *)p + i * (int64_t)dt_dtype_size(dt);
}
static inline void *cpu_at_w(void *p, dt_dtype dt, int64_t i) { return (char *)p + i * (int64_t)dt_dtype_size(dt); }

/** Columns summed at once by column_sums. */
#define DT_CPU_COLS 64

/** Matmuls of bf16 tiles with float sums: C[m,n] (+)= A B. A is stored [m][k]. B is stored in pairs along k: the low
 *  half of b[p * ldb + j] is B[2p][j], the high half B[2p+1][j]. m and n are multiples of 16, k of 32. A thread calls
 *  begin before its matmuls and end after them. */
typedef struct dt_bf16_unit {
    const char *name;
    void (*begin)(void);
    void (*end)(void);
    void (*matmul)(int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint32_t *b, int64_t ldb,
                   float *c, int64_t ldc, bool accumulate);
} dt_bf16_unit;

/** A matrix that is stored with scales (dt_scaled), row-major with stride ld. */
typedef struct dt_stored {
    const void *p;
    int64_t ld;
    dt_scaled how;
} dt_stored;

/** A matmul without its epilogue, and the block of C that one thread computes: rows and columns, cut between tiles. */
typedef struct dt_matmul_call {
    const dt_matmul *mm;
    const void *a, *b;
    void *c;
} dt_matmul_call;
typedef struct dt_matmul_block {
    int64_t first_row, end_row, first_col, end_col;
    void *scratch;            /* this thread's matmul_scratch() bytes, cache-line aligned: for matmul_bf16 */
    const dt_bf16_unit *unit; /* for matmul: multiplies bf16; NULL: as floats */
} dt_matmul_block;
enum { DT_TILE_ROWS = 8, DT_TILE_COLS = 48 }; /* a tile of C */

/** The part of an attention call that one thread computes: some rows of one sequence and one head; see
 *  isa/attention.c. */
typedef struct dt_attention_part {
    int seq, head;                   /* head: of queries for forward and dq, of keys for dk and dv */
    int32_t first, n;                /* rows within the sequence: queries for forward and dq, keys for dk and dv */
    float *scratch;                  /* this thread's, [attention_scratch(head_dim)] */
    float *dkv;                      /* float [2][n rounded up to whole tiles][padded head_dim]: sums of dk and dv */
    bool with_dq;                    /* backward_kv covers all keys of the sequence and writes dq too */
    const struct dt_bf16_unit *unit; /* for the _bf16 kernels */
} dt_attention_part;

/** A batch-invariant matmul (dt_matmul.batch_invariant). A is not transposed; B may be transposed and may be
 *  quantised. */
enum { DT_ROWS_BLOCK = 64 /* rows of C that share a block of B in cache */ };
typedef struct dt_rows_matmul {
    dt_matmul_call g;
    bool pairs; /* bf16 with B stored [n,k]: use the processor's pairwise dot products */
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

/** Rows first .. first+n-1 of sequence seq and some columns, at most DT_CPU_COLS: the part of a convolution that one
 *  thread computes at a time. */
enum { DT_CONV_ROWS = 64 };
typedef struct dt_conv_part {
    int seq;
    int32_t first, n; /* n <= DT_CONV_ROWS */
    int64_t col, n_cols;
} dt_conv_part;

/** Arrays of the delta rule; scratch of one thread. */
typedef struct dt_delta_args {
    const void *q, *k, *v;
    const float *g, *beta;
    void *out;
    float *state; /* of all sequences; NULL: none */
    const void *dout;
    void *dv;
    float *dg, *dbeta;
    float *dq_heads, *dk_heads; /* [n_tok, n_v_heads, k_dim]: gradients of q' and k' for each value head */
} dt_delta_args;

/** The kernels of an instruction set; see kernel_list.h. */
typedef struct dt_cpu_kernels {
    const char *isa;
#define KERNEL(result, name, parameters) result(*name) parameters;
#include "kernel_list.h"
    const dt_bf16_unit *dot_unit, *amx_unit; /* NULL: this set has none */
} dt_cpu_kernels;

/* The Makefile defines DT_HAVE_ISA_<name> for each set it compiles. */
extern const dt_cpu_kernels dt_cpu_kernels_v2, dt_cpu_kernels_v3, dt_cpu_kernels_v4, dt_cpu_kernels_base;
extern const dt_cpu_kernels dt_cpu_kernels_neon, dt_cpu_kernels_neon_bf16, dt_cpu_kernels_sve, dt_cpu_kernels_sve_bf16;

#endif
