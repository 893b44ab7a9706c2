/* cpu.h - declarations shared by the files of the CPU device. */
#ifndef DTRAIN_CPU_H
#define DTRAIN_CPU_H

#include "cpu_kernels.h"
#include "dtrain/device/device.h"
#include "dtrain/device/device_check.h"

typedef struct cpu_matmuls cpu_matmuls; /* cpu_matmul_onednn.c */

#define CPU_MAX_PARTIALS 4096

typedef struct cpu_state {
    const dt_cpu_kernels *k;
    int n_threads;
    bool planning;            /* scratch is counted, not allocated */
    bool reproducible;        /* the same bits on any number of threads */
    const dt_bf16_unit *unit; /* multiplies bf16 tiles; NULL: they are converted to float */
    cpu_matmuls *matmul;
    bool pairs;           /* batch-invariant bf16 matmuls use the processor's pairwise dot products */
    void *matmul_scratch; /* n_threads blocks of matmul_scratch_nbytes; NULL: see cpu_matmul_bf16_takes */
    size_t matmul_scratch_nbytes;
    /* n_threads blocks of attention_scratch_elems floats each, for head_dim up to DT_ATTENTION_MAX_HEAD_DIM */
    float *attention_scratch;
    int64_t attention_scratch_elems;
    void *panel; /* of a dequantised B: allocated by the first matmul that needs it */
    size_t panel_nbytes;
    size_t nbytes_held; /* by this struct and scratch; cpu_matmuls counts its own */
    double partial[CPU_MAX_PARTIALS];
    float partial_max[CPU_MAX_PARTIALS];
    uint64_t partial_fixed[CPU_MAX_PARTIALS][2];
    char processor[96];
} cpu_state;

static inline cpu_state *cpu_of(const dt_device *dev) { return (cpu_state *)dev->impl; }

/* A chunk of work, in elements: 64 KiB of float. That is small compared with the second-level cache, and large compared
 * with the cost of a loop turn. It does not depend on the number of threads, so neither do results. */
#define CPU_CHUNK 16384
static inline int64_t cpu_n_chunks(int64_t n, int64_t chunk) { return n / chunk + (n % chunk != 0); }

#define CPU_TEXT(...) #__VA_ARGS__
#define CPU_PRAGMA(...) _Pragma(CPU_TEXT(__VA_ARGS__))
/** for (i = 0; i < n; i++) body, on the device's threads. Each thread runs one contiguous range. */
#define CPU_PARALLEL_FOR(cpu, i, n)                                                                                    \
    const int64_t n_turns_ = (n);                                                                                      \
    CPU_PRAGMA(omp parallel for num_threads((cpu)->n_threads) schedule(static) if (n_turns_ > 1))                      \
    for (int64_t i = 0; i < n_turns_; i++)

/* cpu_memory.c */
dt_err cpu_alloc(dt_device *dev, dt_memspace space, size_t nbytes, void **ptr);
void cpu_free(dt_device *dev, dt_memspace space, void *ptr, size_t nbytes);
dt_err cpu_grab(size_t nbytes, int n_threads, void **ptr); /* zeroed, touched, in huge pages if large */
void cpu_drop(void *ptr, size_t nbytes);
/* Grow scratch of matmuls, whose contents are lost. It never shrinks, so nothing is allocated after the first step. */
dt_err cpu_grow(const cpu_state *cpu, void **p, size_t *size, size_t wanted);

/* cpu_matmul_onednn.c */
dt_err cpu_matmul_open(cpu_state *cpu);
void cpu_matmul_close(cpu_state *cpu);
size_t cpu_matmul_held(const cpu_state *cpu);
/** Compute a matmul without addend and epilogue, k > 0, B not quantised. oneDNN computes it, or dtrain's own kernels if
 *  oneDNN lacks the form or computes it incorrectly. */
dt_err cpu_matmul_library(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c);

/** Does oneDNN compute blocks of C of this form of float matmul, in the calling thread? */
bool cpu_library_takes_blocks(cpu_state *cpu, const dt_matmul *mm);
/** Rows i .. i+m-1 and columns j .. j+n-1 of C, without addend, bias and epilogue. False: oneDNN failed. */
bool cpu_library_block(const dt_matmul *mm, int64_t i, int64_t m, int64_t j, int64_t n, const void *a, const void *b,
                       void *c);

/* cpu_matmul.c: y = x, rows of another type and distance */
void cpu_convert_rows(const cpu_state *cpu, const void *x, dt_dtype x_dt, int64_t x_ld, void *y, dt_dtype y_dt,
                      int64_t y_ld, int64_t n_rows, int64_t width);

/* cpu_matmul_groups.c: grouped matmuls that are divided among the threads as a whole */
bool cpu_groups_take(const cpu_state *cpu, const dt_matmul *mm);
dt_err cpu_groups_run(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c);

/* cpu_matmul_rows.c: dt_matmul.batch_invariant, checked by the caller */
bool cpu_rows_use_pairs(const dt_cpu_kernels *k);
void cpu_rows_matmul(const cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c);

/* cpu_epilogue.c: epilogues; the caller has checked mm */
void cpu_epilogue_act(const cpu_state *cpu, const dt_matmul *mm, void *c);
void cpu_epilogue_sums(const cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, const void *c);

/* cpu_matmul_own.c: matmuls by dtrain's own kernels; cpu_matmul_any_run supports every form */
dt_err cpu_matmul_bf16_open(cpu_state *cpu);
void cpu_matmul_bf16_close(cpu_state *cpu);
bool cpu_matmul_bf16_takes(const cpu_state *cpu, const dt_matmul *mm);
void cpu_matmul_bf16_run(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c);
void cpu_matmul_any_run(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c);

/* cpu_layers.c: sums [n] (+)= column sums of x [m, n] with row distance ld */
void cpu_column_sums(const cpu_state *cpu, const void *x, dt_dtype dt, int64_t m, int64_t n, int64_t ld, void *sums,
                     dt_dtype gt, bool accumulate);

/* Backward sums a weight's gradient over rows in CPU_SUM_BLOCKS blocks. The number does not depend on the number of
 * threads. grad [n] (+)= the blocks' sums, ld apart, in order. */
enum { CPU_SUM_BLOCKS = 64 };
static inline void cpu_add_blocks(const cpu_state *cpu, const float *blocks, int64_t ld, void *grad, dt_dtype gt,
                                  bool accumulate, int64_t n)
{
    cpu_column_sums(cpu, blocks, DT_F32, CPU_SUM_BLOCKS, n, ld, grad, gt, accumulate);
}

/* Offset of row r if rows are in groups ld apart, and the rows of a group are `step` apart. */
static inline int64_t cpu_row_at(int64_t r, int64_t group, int64_t ld, int64_t step)
{
    return r / group * ld + r % group * step;
}

/* entries of the table: the operations (cpu_layers.c) and sizes */
#define DT_OP(op, ...) dt_err cpu_##op DT_OP_PARAMS(__VA_ARGS__);
#define DT_SIZE(type, name, ...) type cpu_##name DT_SIZE_PARAMS(__VA_ARGS__);
#include "dtrain/device/op_list.h"

/** The computation of an operation, whose arguments x were checked. cpu_matmul.c has matmul, cpu_attention.c attention,
 *  cpu_patches.c patches, cpu_optimizer.c the classifier, states in 8 bits and sums, cpu_delta.c linear attention and
 *  gates, cpu_experts.c experts, cpu_tokens.c tokens, cpu.c zero, cpu_layers.c all others. */
#define CPU_OP(op) dt_err cpu_run_##op(cpu_state *cpu, const dt_##op##_args *x)
#define DT_OP(op, ...) CPU_OP(op);
#define DT_OP_ELEMENTS(op, ...)
#define DT_OP_ROWS(op, ...)
#include "dtrain/device/op_list.h"

#endif
