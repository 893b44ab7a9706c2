/* reduce.c - why the fold looks as it does.
 *
 * Sources are pieces of other ranks' buffers in shared memory and come from the outer caches or from memory, so each is read once: the fold
 * goes through blocks of a few KiB with the running sum in the first-level cache, one pass per source, and stores the block at the end.
 * The order of additions for an element is that of the sources whatever the block, the thread or the vector width: only the grouping of
 * independent elements changes. There is no product in these loops, so nothing can be contracted into a fused operation.
 *
 * Large results are stored around the cache (non-temporal stores): without them each line would be read before it is overwritten. */
#include "reduce.h"
#include <omp.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Several builds of a loop, the best one taken when the program starts: the distribution's compiler aims at the oldest x86-64. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DT_CLONES __attribute__((target_clones("default", "avx2")))
#else
#define DT_CLONES
#endif

enum { BLOCK = 2048, PARALLEL_BYTES = 64 * 1024 };

DT_CLONES static void set_bf16(float *restrict acc, const uint16_t *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) acc[i] = dt_bf16_to_float(x[i]);
}

DT_CLONES static void add_f32(float *restrict acc, const float *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) acc[i] += x[i];
}

DT_CLONES static void add_bf16(float *restrict acc, const uint16_t *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) acc[i] += dt_bf16_to_float(x[i]);
}

DT_CLONES static void sum2_f32(float *restrict acc, const float *restrict x, const float *restrict y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) acc[i] = x[i] + y[i];
}

DT_CLONES static void sum2_bf16(float *restrict acc, const uint16_t *restrict x, const uint16_t *restrict y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) acc[i] = dt_bf16_to_float(x[i]) + dt_bf16_to_float(y[i]);
}

DT_CLONES static void round_bf16(uint16_t *restrict out, const float *restrict acc, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = dt_bf16_from_float(acc[i]);
}

#ifdef __SSE2__
/* The ends that are not whole lines go through the cache. */
static void copy_around_cache(char *restrict dst, const char *restrict src, size_t nbytes)
{
    size_t head = (size_t)(-(uintptr_t)dst & 63u);
    if (head > nbytes) head = nbytes;
    memcpy(dst, src, head);
    size_t i = head;
    for (; i + 64 <= nbytes; i += 64) {
        const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(src + i));
        const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(src + i + 16));
        const __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(src + i + 32));
        const __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(src + i + 48));
        _mm_stream_si128((__m128i *)(void *)(dst + i), a);
        _mm_stream_si128((__m128i *)(void *)(dst + i + 16), b);
        _mm_stream_si128((__m128i *)(void *)(dst + i + 32), c);
        _mm_stream_si128((__m128i *)(void *)(dst + i + 48), d);
    }
    memcpy(dst + i, src + i, nbytes - i);
}
static void stores_visible(void) { _mm_sfence(); }
#else
static void copy_around_cache(char *restrict dst, const char *restrict src, size_t nbytes) { memcpy(dst, src, nbytes); }
static void stores_visible(void) {}
#endif

static const void *element(const void *base, dt_dtype dt, int64_t i) { return (const char *)base + (size_t)i * dt_dtype_size(dt); }

static void set(float *acc, const void *x, dt_dtype dt, int64_t n)
{
    if (dt == DT_F32)
        memcpy(acc, x, (size_t)n * sizeof *acc);
    else
        set_bf16(acc, x, n);
}

static void add(float *acc, const void *x, dt_dtype dt, int64_t n)
{
    if (dt == DT_F32)
        add_f32(acc, x, n);
    else
        add_bf16(acc, x, n);
}

static void store(const float *acc, void *dst, dt_dtype dt, bool stream, int64_t n)
{
    uint16_t half[BLOCK] __attribute__((aligned(64)));
    const void *from = acc;
    if (dt == DT_BF16) {
        round_bf16(half, acc, n);
        from = half;
    }
    const size_t nbytes = (size_t)n * dt_dtype_size(dt);
    if (stream)
        copy_around_cache(dst, from, nbytes);
    else
        memcpy(dst, from, nbytes);
}

static void fold_block(const dt_fold *f, int64_t first, int64_t n)
{
    float acc[BLOCK] __attribute__((aligned(64)));
    char *dst = (char *)f->dst + (size_t)first * dt_dtype_size(f->dst_dt);
    int s = 0;
    if (f->accumulate) {
        set(acc, dst, f->dst_dt, n);
    } else if (f->n_src == 1) {
        set(acc, element(f->src[0], f->src_dt, first), f->src_dt, n);
        s = 1;
    } else {
        const void *x = element(f->src[0], f->src_dt, first), *y = element(f->src[1], f->src_dt, first);
        if (f->src_dt == DT_F32)
            sum2_f32(acc, x, y, n);
        else
            sum2_bf16(acc, x, y, n);
        s = 2;
    }
    for (; s < f->n_src; s++) add(acc, element(f->src[s], f->src_dt, first), f->src_dt, n);
    store(acc, dst, f->dst_dt, f->stream, n);
}

/** The part of n_blocks that belongs to thread t of nt. */
static int64_t part(int64_t n_blocks, int t, int nt) { return n_blocks * t / nt; }

void dt_reduce_fold(const dt_fold *f, int64_t n)
{
    if (f->n_src == 1 && !f->accumulate && f->src_dt == f->dst_dt) { /* nothing to add or round */
        if (f->src[0] != f->dst) dt_reduce_copy(f->dst, f->src[0], (size_t)n * dt_dtype_size(f->dst_dt), f->stream, f->n_threads);
        return;
    }
    const int64_t n_blocks = (n + BLOCK - 1) / BLOCK;
    const bool parallel = f->n_threads > 1 && (size_t)n * sizeof(float) >= PARALLEL_BYTES;
#pragma omp parallel num_threads(f->n_threads) if (parallel)
    {
        const int64_t end = part(n_blocks, omp_get_thread_num() + 1, omp_get_num_threads());
        for (int64_t b = part(n_blocks, omp_get_thread_num(), omp_get_num_threads()); b < end; b++)
            fold_block(f, b * BLOCK, b == n_blocks - 1 ? n - b * BLOCK : BLOCK);
        if (f->stream) stores_visible();
    }
}

void dt_reduce_copy(void *dst, const void *src, size_t nbytes, bool stream, int n_threads)
{
    enum { LINES = 4096 };
    const int64_t n_blocks = (int64_t)((nbytes + LINES - 1) / LINES);
#pragma omp parallel num_threads(n_threads) if (n_threads > 1 && nbytes >= PARALLEL_BYTES)
    {
        const size_t first = (size_t)part(n_blocks, omp_get_thread_num(), omp_get_num_threads()) * LINES;
        size_t end = (size_t)part(n_blocks, omp_get_thread_num() + 1, omp_get_num_threads()) * LINES;
        if (end > nbytes) end = nbytes;
        if (first < end) {
            if (stream)
                copy_around_cache((char *)dst + first, (const char *)src + first, end - first);
            else
                memcpy((char *)dst + first, (const char *)src + first, end - first);
        }
        if (stream) stores_visible();
    }
}
