/* reduce.c - the fold of reductions.
 *
 * Sources are blocks of other ranks' buffers in shared memory. They come from outer caches or from memory, so each is
 * read once. The fold processes blocks of a few KiB with the running sum in the L1 cache, one pass per source; the last
 * pass writes the result. For each element the order of additions is that of the sources, for any block, thread and
 * vector width. These loops have no products, so no fused operations can occur. A block of fp16 is widened separately,
 * because compilers do not vectorise fp16.
 *
 * Large results are written with non-temporal stores. Otherwise each cache line would be read before it is
 * overwritten. */
#include "reduce.h"
#include <omp.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Several builds of a loop; the best one is selected at program start. By default distributions compile for the oldest
 * x86-64. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&               \
    !defined(__SANITIZE_THREAD__)
#define DT_CLONES __attribute__((target_clones("default", "avx2")))
#else
#define DT_CLONES
#endif

enum { BLOCK = 2048, PARALLEL_BYTES = 64 * 1024 };

/* out[i] = expr. out may be an operand: the operations are elementwise. */
#define LOOP(name, params, expr)                                                                                       \
    DT_CLONES static void name params { _Pragma("omp simd") for (int64_t i = 0; i < n; i++) out[i] = expr; }
LOOP(widen_bf16, (float *out, const uint16_t *x, int64_t n), dt_bf16_to_float(x[i]))
LOOP(widen_f16, (float *out, const uint16_t *x, int64_t n), dt_f16_to_float(x[i]))
LOOP(round_bf16, (uint16_t * out, const float *x, int64_t n), dt_bf16_from_float(x[i]))
LOOP(round_f16, (uint16_t * out, const float *x, int64_t n), dt_f16_from_float(x[i]))
LOOP(sum_f32_f32, (float *out, const float *a, const float *b, int64_t n), a[i] + b[i])
LOOP(sum_f32_bf16, (float *out, const float *a, const uint16_t *b, int64_t n), a[i] + dt_bf16_to_float(b[i]))
LOOP(sum_bf16_bf16, (float *out, const uint16_t *a, const uint16_t *b, int64_t n),
     dt_bf16_to_float(a[i]) + dt_bf16_to_float(b[i]))

/** out = a + b, in float. Types are float and bf16; a is float if b is float. */
static void sum(float *out, const void *a, dt_dtype a_dt, const void *b, dt_dtype b_dt, int64_t n)
{
    if (b_dt == DT_F32)
        sum_f32_f32(out, a, b, n);
    else if (a_dt == DT_F32)
        sum_f32_bf16(out, a, b, n);
    else
        sum_bf16_bf16(out, a, b, n);
}

#ifdef __SSE2__
/* The unaligned ends are written through the cache. */
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

static inline __m128 load4(const void *x, dt_dtype dt, int64_t i)
{
    if (dt == DT_F32) return _mm_loadu_ps((const float *)x + i);
    const __m128i halves = _mm_loadl_epi64((const __m128i *)(const void *)((const uint16_t *)x + i));
    return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), halves)); /* bf16 is the upper half of a float */
}

/* Instantiated per pair of types, which are constants at the call. out is aligned to 16 bytes, n a multiple of 16. */
__attribute__((always_inline)) static inline void sum_lines(float *out, const void *a, dt_dtype a_dt, const void *b,
                                                            dt_dtype b_dt, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16)
        for (int k = 0; k < 16; k += 4)
            _mm_stream_ps(out + i + k, _mm_add_ps(load4(a, a_dt, i + k), load4(b, b_dt, i + k)));
}

/** Like sum(), with non-temporal stores. */
static void sum_around_cache(float *out, const void *a, dt_dtype a_dt, const void *b, dt_dtype b_dt, int64_t n)
{
    const int64_t lines = (uintptr_t)out & 15u ? 0 : n & ~(int64_t)15;
    if (b_dt == DT_F32)
        sum_lines(out, a, DT_F32, b, DT_F32, lines);
    else if (a_dt == DT_F32)
        sum_lines(out, a, DT_F32, b, DT_BF16, lines);
    else
        sum_lines(out, a, DT_BF16, b, DT_BF16, lines);
    const size_t a_nbytes = (size_t)lines * dt_dtype_size(a_dt), b_nbytes = (size_t)lines * dt_dtype_size(b_dt);
    if (lines < n) sum(out + lines, (const char *)a + a_nbytes, a_dt, (const char *)b + b_nbytes, b_dt, n - lines);
}
static void stores_visible(void) { _mm_sfence(); }
#else
static void copy_around_cache(char *restrict dst, const char *restrict src, size_t nbytes) { memcpy(dst, src, nbytes); }
static void sum_around_cache(float *out, const void *a, dt_dtype a_dt, const void *b, dt_dtype b_dt, int64_t n)
{
    sum(out, a, a_dt, b, b_dt, n);
}
static void stores_visible(void) {}
#endif

static const void *element(const void *base, dt_dtype dt, int64_t i)
{
    return (const char *)base + (size_t)i * dt_dtype_size(dt);
}

static void widen(float *out, const void *x, dt_dtype dt, int64_t n)
{
    if (dt == DT_BF16)
        widen_bf16(out, x, n);
    else
        widen_f16(out, x, n);
}

static void store_half(const float *x, void *dst, dt_dtype dt, bool stream, int64_t n)
{
    uint16_t half[BLOCK] __attribute__((aligned(64)));
    if (dt == DT_BF16)
        round_bf16(half, x, n);
    else
        round_f16(half, x, n);
    if (stream)
        copy_around_cache(dst, (const char *)half, (size_t)n * sizeof *half);
    else
        memcpy(dst, half, (size_t)n * sizeof *half);
}

/* Address and type of the elements of source s. fp16 elements are widened to float in room. */
static const void *source(const dt_fold *f, int s, int64_t first, int64_t n, float *room, dt_dtype *dt)
{
    const void *x = element(f->src[s], f->src_dt, first);
    *dt = f->src_dt;
    if (f->src_dt != DT_F16) return x;
    widen(room, x, DT_F16, n);
    *dt = DT_F32;
    return room;
}

/* a is the running sum: first a source or dst itself, unmodified, then acc. The last addition writes directly to dst if
 * that is float. */
static void fold_block(const dt_fold *f, int64_t first, int64_t n)
{
    float acc[BLOCK] __attribute__((aligned(64))), room[BLOCK] __attribute__((aligned(64)));
    void *dst = (char *)f->dst + (size_t)first * dt_dtype_size(f->dst_dt);
    int s = f->accumulate ? 0 : 1;
    const void *a = f->accumulate ? dst : element(f->src[0], f->src_dt, first);
    dt_dtype a_dt = f->accumulate ? f->dst_dt : f->src_dt, b_dt;
    const bool bf16_sum = a_dt == DT_BF16 && f->src_dt == DT_BF16 && s < f->n_src;
    if (a_dt != DT_F32 && !bf16_sum) {
        widen(acc, a, a_dt, n);
        a = acc;
        a_dt = DT_F32;
    }
    for (; s < f->n_src - (f->dst_dt == DT_F32); s++) {
        const void *b = source(f, s, first, n, room, &b_dt);
        sum(acc, a, a_dt, b, b_dt, n);
        a = acc;
        a_dt = DT_F32;
    }
    if (f->dst_dt != DT_F32) {
        store_half(a, dst, f->dst_dt, f->stream, n);
        return;
    }
    if (s == f->n_src) {
        memcpy(dst, a, (size_t)n * sizeof(float)); /* a single 16-bit source, widened */
        return;
    }
    const void *b = source(f, s, first, n, room, &b_dt);
    if (f->stream)
        sum_around_cache(dst, a, a_dt, b, b_dt, n);
    else
        sum(dst, a, a_dt, b, b_dt, n);
}

/** The part of n_blocks that belongs to thread t of nt. */
static int64_t part(int64_t n_blocks, int t, int nt) { return n_blocks * t / nt; }

void dt_reduce_fold(const dt_fold *f, int64_t n)
{
    if (f->n_src == 1 && !f->accumulate && f->src_dt == f->dst_dt) { /* nothing to add or round */
        if (f->src[0] != f->dst)
            dt_reduce_copy(f->dst, f->src[0], (size_t)n * dt_dtype_size(f->dst_dt), f->stream, f->n_threads);
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
