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
/** Refuse types that are only for storage. */
#define CPU_TAKES(t)                                                                                                   \
    DT_CHECK(dt_is_float(t), DT_ERR_ARG, "internal: %s: expected type fp32, bf16 or fp16, found %s", __func__,         \
             dt_dtype_name(t))

static inline const void *cpu_at(const void *p, dt_dtype dt, int64_t i)
{
    return (const char *)p + i * (int64_t)dt_dtype_size(dt);
}
static inline void *cpu_at_w(void *p, dt_dtype dt, int64_t i) { return (char *)p + i * (int64_t)dt_dtype_size(dt); }

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

/* cpu_matmul_groups.c: grouped matmuls that are divided among the threads as a whole */
bool cpu_groups_take(const cpu_state *cpu, const dt_matmul *mm);
dt_err cpu_groups_run(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c);

/* cpu_matmul_rows.c: dt_matmul.batch_invariant, checked by the caller */
bool cpu_rows_use_pairs(const dt_cpu_kernels *k);
void cpu_rows_matmul(const cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c);

/* cpu_epilogue.c: epilogues; the caller has checked mm */
void cpu_epilogue_act(const cpu_state *cpu, const dt_matmul *mm, void *c);
dt_err cpu_epilogue_sums(dt_device *dev, const dt_matmul *mm, const void *a, const void *b, const void *c);

/* cpu_matmul_own.c: matmuls by dtrain's own kernels; cpu_matmul_any_run supports every form */
dt_err cpu_matmul_bf16_open(cpu_state *cpu);
void cpu_matmul_bf16_close(cpu_state *cpu);
bool cpu_matmul_bf16_takes(const cpu_state *cpu, const dt_matmul *mm);
void cpu_matmul_bf16_run(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c);
void cpu_matmul_any_run(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c);

/* The operations: matmul in cpu_matmul.c, attention in cpu_attention.c, patches in cpu_patches.c, classifier,
 * states in 8 bits and sums in cpu_optimizer.c, tokens in cpu_tokens.c, experts in cpu_experts.c, zero in cpu.c, all
 * others in cpu_layers.c. */
#define DT_OP(op, ...) dt_err cpu_##op DT_OP_PARAMS(__VA_ARGS__);
#define DT_SIZE(type, name, ...) type cpu_##name DT_SIZE_PARAMS(__VA_ARGS__);
#include "dtrain/device/op_list.h"

#endif
