/* delta.cu - the gated delta rule (dt_delta): in chunks, forward and backward, and token by token. The formulas are in
 * docs/algorithms.md, 8.8, and the order of steps is that of src/device/isa/delta.c.
 *
 * Arrays    those of dt_delta. A block's tiles are in scratch, in global memory, and stay in the L2 cache.
 * Threads   A block takes one sequence and value head after the other: gridDim blocks, pairs blockIdx, + gridDim, ...
 *           Its chunks are sequential. Matmuls are in float, in tiles of 64 x 64 with 4 x 4 sums per thread.
 * Numerics  float, sums in a fixed order; sums of g in double. */
#include "kernel.cuh"

namespace
{

enum { CHUNK = DT_DELTA_CHUNK, THREADS = 256, N_WARPS = THREADS / WARP, STEP = 16, TILE_LD = 64 + 4 };
constexpr float NORM_EPS = 1e-6f;

/* ---- matmuls of a block ------------------------------------------------------------------------------------------ */

/* Element (i, j) of a matrix is p[i row + j col]. */
struct matrix {
    const float *p;
    int row, col;
};
__device__ inline matrix plain(const float *p, int ld) { return {p, ld, 1}; }
__device__ inline matrix turned(const float *p, int ld) { return {p, 1, ld}; }

struct tiles {
    float a[STEP][TILE_LD], b[STEP][TILE_LD];
};

/* Load a 64 x 16 block of A, or of B transposed, into t [16][64]. Consecutive threads read consecutive addresses. */
__device__ inline void load_tile(float (*t)[TILE_LD], const matrix &x, int first, int n, int p0, int k, int stride_i,
                                 int stride_p)
{
    for (int e = threadIdx.x; e < 64 * STEP; e += THREADS) {
        const int i = stride_i == 1 ? e % 64 : e / STEP, p = stride_i == 1 ? e / 64 : e % STEP;
        t[p][i] =
            first + i < n && p0 + p < k ? x.p[(int64_t)(first + i) * stride_i + (int64_t)(p0 + p) * stride_p] : 0.0f;
    }
}

/* C [m][n] = (add ? C : 0) + A B, with row distance ldc. Begins and ends with a barrier. */
__device__ __noinline__ void multiply(tiles &t, int m, int n, int k, matrix a, matrix b, float *c, int ldc, bool add)
{
    const int y = threadIdx.x / 16, x = threadIdx.x % 16;
    for (int i0 = 0; i0 < m; i0 += 64)
        for (int j0 = 0; j0 < n; j0 += 64) {
            float sum[4][4] = {};
            for (int p0 = 0; p0 < k; p0 += STEP) {
                __syncthreads();
                load_tile(t.a, a, i0, m, p0, k, a.row, a.col);
                load_tile(t.b, b, j0, n, p0, k, b.col, b.row);
                __syncthreads();
#pragma unroll
                for (int p = 0; p < STEP; p++) {
                    float u[4], w[4];
#pragma unroll
                    for (int r = 0; r < 4; r++) u[r] = t.a[p][y + 16 * r], w[r] = t.b[p][x + 16 * r];
#pragma unroll
                    for (int r = 0; r < 4; r++)
#pragma unroll
                        for (int s = 0; s < 4; s++) sum[r][s] = fmaf(u[r], w[s], sum[r][s]);
                }
            }
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int s = 0; s < 4; s++) {
                    const int i = i0 + y + 16 * r, j = j0 + x + 16 * s;
                    if (i < m && j < n) c[i * ldc + j] = (add ? c[i * ldc + j] : 0.0f) + sum[r][s];
                }
        }
    __syncthreads();
}

/* ---- one chunk --------------------------------------------------------------------------------------------------- */

struct arrays {
    elements q, k, v;
    const float *g, *beta;
    elements out;
    float *state;
    elements dout, dv;
    float *dg, *dbeta, *dq_heads, *dk_heads;
};

/* Pointers into a block's scratch; of which dt_gpu_delta_work_elems is the size. */
struct work {
    int dk, dv;
    float *q, *k, *u, *n, *tmp, *low, *p, *decay, *state;
    float *dq, *dk_row, *dk_col, *dout, *w, *m, *dstate, *states;
};

struct decays {
    float e[CHUNK], f[CHUNK], beta[CHUNK];
    double sum[CHUNK], of_e[CHUNK], of_f[CHUNK], of_d[CHUNK]; /* G; gradients of log E, log F and, summed, log D */
};

__device__ work carve(float *s, const dt_delta &d, bool backward)
{
    work w = {};
    w.dk = d.k_dim, w.dv = d.v_dim;
    float **const of_k[] = {&w.q, &w.k, &w.dq, &w.dk_row, &w.dk_col},
                  **const of_v[] = {&w.u, &w.n, &w.tmp, &w.dout, &w.w},
                  **const squares[] = {&w.low, &w.p, &w.decay, &w.m}, **const of_state[] = {&w.state, &w.dstate};
    for (int i = 0; i < (backward ? 5 : 2); i++, s += CHUNK * w.dk) *of_k[i] = s;
    for (int i = 0; i < (backward ? 5 : 3); i++, s += CHUNK * w.dv) *of_v[i] = s;
    for (int i = 0; i < (backward ? 4 : 3); i++, s += CHUNK * CHUNK) *squares[i] = s;
    for (int i = 0; i < (backward ? 2 : 1); i++, s += w.dk * w.dv) *of_state[i] = s;
    w.states = s;
    return w;
}

struct chunk {
    int64_t row;
    int n, head, k_head;
};

__device__ chunk chunk_at(const dt_delta &d, int seq, int head, int first)
{
    const int len = d.q_start[seq + 1] - d.q_start[seq];
    return {(int64_t)d.q_start[seq] + first, len - first < CHUNK ? len - first : CHUNK, head,
            head / (d.n_v_heads / d.n_k_heads)};
}

/* x / |x| factor, for n rows: a warp per row. */
__device__ void load_normalised(float *to, elements from, int64_t ld, int n, int width, float factor)
{
    for (int i = threadIdx.x / WARP; i < n; i += N_WARPS) {
        float ss = 0.0f;
        for (int c = threadIdx.x % WARP; c < width; c += WARP) {
            const float x = from[i * ld + c];
            ss = fmaf(x, x, ss);
        }
        const float r = factor / sqrtf(warp_sum(ss) + NORM_EPS);
        for (int c = threadIdx.x % WARP; c < width; c += WARP) to[i * width + c] = from[i * ld + c] * r;
    }
}
__device__ void load_rows(float *to, elements from, int64_t ld, int n, int width)
{
    for (int e = threadIdx.x; e < n * width; e += THREADS) to[e] = from[e / width * ld + e % width];
}
__device__ void store_rows(elements to, const float *from, int64_t ld, int n, int width)
{
    for (int e = threadIdx.x; e < n * width; e += THREADS) to.set(e / width * ld + e % width, from[e]);
}

/* The chunk's k, v (in n) and decays, and q if requested. */
__device__ __noinline__ void load_chunk(const work &w, decays &s, const dt_delta &d, const arrays &a, const chunk &c,
                                        bool with_q)
{
    const int64_t at = c.row * d.x_ld, of_k = at + (int64_t)c.k_head * w.dk;
    __syncthreads();
    if ((int)threadIdx.x < c.n) s.beta[threadIdx.x] = a.beta[(c.row + threadIdx.x) * d.n_v_heads + c.head];
    if (threadIdx.x == 0) {
        double sum = 0;
        for (int i = 0; i < c.n; i++) s.sum[i] = sum += (double)a.g[(c.row + i) * d.n_v_heads + c.head];
    }
    load_normalised(w.k, a.k + of_k, d.x_ld, c.n, w.dk, 1.0f);
    if (with_q) load_normalised(w.q, a.q + of_k, d.x_ld, c.n, w.dk, 1.0f / sqrtf((float)w.dk));
    load_rows(w.n, a.v + at + (int64_t)c.head * w.dv, d.x_ld, c.n, w.dv);
    __syncthreads();
    if ((int)threadIdx.x < c.n) {
        s.e[threadIdx.x] = expf((float)s.sum[threadIdx.x]);
        s.f[threadIdx.x] = expf((float)(s.sum[c.n - 1] - s.sum[threadIdx.x]));
    }
    for (int e = threadIdx.x; e < c.n * CHUNK; e += THREADS) {
        const int i = e / CHUNK, j = e % CHUNK;
        w.decay[e] = j <= i ? expf((float)(s.sum[i] - s.sum[j])) : 0.0f;
    }
    __syncthreads();
}

/* rows [n][width] times a factor each; to may be rows. Ends with a barrier. */
__device__ __noinline__ void scale_rows(float *to, const float *rows, const float *factor, int n, int width)
{
    for (int e = threadIdx.x; e < n * width; e += THREADS) to[e] = rows[e] * factor[e / width];
    __syncthreads();
}

/* (1 + L) X = X in place, or its transpose: a thread per column. low: -L. */
__device__ __noinline__ void solve(const work &w, int n, float *x, bool transposed)
{
    const int c = threadIdx.x;
    if (c < w.dv)
        for (int r = 1; r < n; r++) {
            const int i = transposed ? n - 1 - r : r;
            float sum = x[i * w.dv + c];
            if (transposed)
                for (int j = i + 1; j < n; j++) sum = fmaf(w.low[j * CHUNK + i], x[j * w.dv + c], sum);
            else
                for (int j = 0; j < i; j++) sum = fmaf(w.low[i * CHUNK + j], x[j * w.dv + c], sum);
            x[i * w.dv + c] = sum;
        }
    __syncthreads();
}

/* N, then U, from V in N. */
__device__ __noinline__ void new_values(const work &w, const decays &s, tiles &t, int n)
{
    multiply(t, n, n, w.dk, plain(w.k, w.dk), turned(w.k, w.dk), w.low, CHUNK, false);
    for (int e = threadIdx.x; e < n * CHUNK; e += THREADS) {
        const int i = e / CHUNK, j = e % CHUNK;
        w.low[e] = j < i ? -s.beta[i] * w.decay[e] * w.low[e] : 0.0f;
    }
    multiply(t, n, w.dv, w.dk, plain(w.k, w.dk), plain(w.state, w.dv), w.tmp, w.dv, false);
    for (int e = threadIdx.x; e < n * w.dv; e += THREADS) {
        w.n[e] = fmaf(-s.e[e / w.dv], w.tmp[e], w.n[e]);
        w.u[e] = s.beta[e / w.dv] * w.n[e];
    }
    __syncthreads();
    solve(w, n, w.u, false);
}

__device__ __noinline__ void advance(const work &w, const decays &s, tiles &t, int n)
{
    for (int e = threadIdx.x; e < w.dk * w.dv; e += THREADS) w.state[e] *= s.e[n - 1];
    scale_rows(w.tmp, w.u, s.f, n, w.dv);
    multiply(t, w.dk, w.dv, n, turned(w.k, w.dk), plain(w.tmp, w.dv), w.state, w.dv, true);
}

__device__ __noinline__ void pair_queries(const work &w, tiles &t, int n)
{
    multiply(t, n, n, w.dk, plain(w.q, w.dk), turned(w.k, w.dk), w.p, CHUNK, false);
    for (int e = threadIdx.x; e < n * CHUNK; e += THREADS)
        if (e % CHUNK < n) w.p[e] *= w.decay[e];
    __syncthreads();
}

__device__ void fill(float *to, int n, float x)
{
    for (int e = threadIdx.x; e < n; e += THREADS) to[e] = x;
}
__device__ void copy(float *to, const float *from, int n)
{
    for (int e = threadIdx.x; e < n; e += THREADS) to[e] = from[e];
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

__device__ float *state_of(const dt_delta &d, float *state, int seq, int head)
{
    const int64_t row = d.state_row ? d.state_row[seq] : seq;
    return state ? state + (row * d.n_v_heads + head) * d.k_dim * d.v_dim : nullptr;
}

__global__ void __launch_bounds__(THREADS) delta_forward_kernel(dt_delta d, arrays a, float *scratch, int64_t each)
{
    __shared__ tiles t;
    __shared__ decays s;
    __shared__ work w;
    if (threadIdx.x == 0) w = carve(scratch + blockIdx.x * each, d, false);
    __syncthreads();
    for (int64_t pair = blockIdx.x; pair < (int64_t)d.n_seq * d.n_v_heads; pair += gridDim.x) {
        const int seq = (int)(pair / d.n_v_heads), head = (int)(pair % d.n_v_heads);
        const int len = d.q_start[seq + 1] - d.q_start[seq];
        float *kept = state_of(d, a.state, seq, head);
        __syncthreads();
        if (kept)
            copy(w.state, kept, w.dk * w.dv);
        else
            fill(w.state, w.dk * w.dv, 0.0f);
        for (int first = 0; first < len; first += CHUNK) {
            const chunk c = chunk_at(d, seq, head, first);
            load_chunk(w, s, d, a, c, true);
            new_values(w, s, t, c.n);
            pair_queries(w, t, c.n);
            multiply(t, c.n, w.dv, w.dk, plain(w.q, w.dk), plain(w.state, w.dv), w.tmp, w.dv, false);
            scale_rows(w.tmp, w.tmp, s.e, c.n, w.dv);
            multiply(t, c.n, w.dv, c.n, plain(w.p, CHUNK), plain(w.u, w.dv), w.tmp, w.dv, true);
            store_rows(a.out + c.row * d.o_ld + (int64_t)head * w.dv, w.tmp, d.o_ld, c.n, w.dv);
            __syncthreads();
            advance(w, s, t, c.n);
        }
        if (kept) copy(kept, w.state, w.dk * w.dv);
    }
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The state before each chunk, in states. */
__device__ void keep_states(const work &w, decays &s, tiles &t, const dt_delta &d, const arrays &a, int seq, int head,
                            int len)
{
    fill(w.state, w.dk * w.dv, 0.0f);
    for (int first = 0; first < len; first += CHUNK) {
        const chunk c = chunk_at(d, seq, head, first);
        copy(w.states + (int64_t)(first / CHUNK) * w.dk * w.dv, w.state, w.dk * w.dv);
        if (first + CHUNK >= len) break;
        load_chunk(w, s, d, a, c, false);
        new_values(w, s, t, c.n);
        advance(w, s, t, c.n);
    }
    __syncthreads();
}

/* Sum over the columns of x_i y_i: a warp per row; every thread of it gets the result. */
__device__ inline float dot(const float *x, const float *y, int n)
{
    float sum = 0.0f;
    for (int c = threadIdx.x % WARP; c < n; c += WARP) sum = fmaf(x[c], y[c], sum);
    return warp_sum(sum);
}

/* m <- sign m D below the diagonal, or with it. */
__device__ void decayed(const work &w, int n, float sign, bool diagonal)
{
    for (int e = threadIdx.x; e < n * CHUNK; e += THREADS) {
        const int i = e / CHUNK, j = e % CHUNK;
        w.m[e] = j < i || (diagonal && j == i) ? sign * w.decay[e] * w.m[e] : 0.0f;
    }
    __syncthreads();
}

/* to[i] += x_i y_i for rows of length k. Ends with a barrier. */
__device__ __noinline__ void add_dots(double *to, const float *x, const float *y, int n, int k)
{
    for (int i = threadIdx.x / WARP; i < n; i += N_WARPS) {
        const float sum = dot(x + i * k, y + i * k, k);
        if (threadIdx.x % WARP == 0) to[i] += (double)sum;
    }
    __syncthreads();
}

/* to = x m + (add ? to : 0), for squares with n rows, below the diagonal. Ends with a barrier. */
__device__ void pair_gradients(float *to, const float *x, const float *m, int n, bool add)
{
    for (int e = threadIdx.x; e < n * CHUNK; e += THREADS)
        if (e % CHUNK < e / CHUNK) to[e] = fmaf(x[e], m[e], add ? to[e] : 0.0f);
    __syncthreads();
}

/* As read_backward of isa/delta.c. */
__device__ double read_backward(const work &w, decays &s, tiles &t, int n)
{
    if ((int)threadIdx.x < CHUNK) s.of_e[threadIdx.x] = s.of_f[threadIdx.x] = 0;
    multiply(t, n, n, w.dv, plain(w.dout, w.dv), turned(w.u, w.dv), w.m, CHUNK, false);
    multiply(t, n, w.dv, w.dk, plain(w.k, w.dk), plain(w.dstate, w.dv), w.w, w.dv, false);
    scale_rows(w.w, w.w, s.f, n, w.dv);
    multiply(t, n, w.dv, n, turned(w.p, CHUNK), plain(w.dout, w.dv), w.w, w.dv, true);
    pair_gradients(w.p, w.p, w.m, n, false);
    decayed(w, n, 1.0f, true);
    multiply(t, n, w.dk, w.dv, plain(w.dout, w.dv), turned(w.state, w.dv), w.dq, w.dk, false);
    scale_rows(w.dq, w.dq, s.e, n, w.dk);
    add_dots(s.of_e, w.q, w.dq, n, w.dk);
    multiply(t, n, w.dk, n, plain(w.m, CHUNK), plain(w.k, w.dk), w.dq, w.dk, true);
    double of_end = 0;
    for (int e = threadIdx.x; e < w.dk * w.dv; e += THREADS) of_end += (double)(s.e[n - 1] * w.dstate[e] * w.state[e]);
    multiply(t, n, w.dk, w.dv, plain(w.u, w.dv), turned(w.dstate, w.dv), w.dk_col, w.dk, false);
    scale_rows(w.dk_col, w.dk_col, s.f, n, w.dk);
    add_dots(s.of_f, w.k, w.dk_col, n, w.dk);
    multiply(t, n, w.dk, n, turned(w.m, CHUNK), plain(w.q, w.dk), w.dk_col, w.dk, true);
    return block_sum(of_end);
}

/* As write_backward of isa/delta.c; tmp: - beta E W. */
__device__ void write_backward(const work &w, decays &s, tiles &t, const dt_delta &d, const arrays &a, const chunk &c)
{
    const int n = c.n;
    solve(w, n, w.w, true);
    multiply(t, n, n, w.dv, plain(w.w, w.dv), turned(w.u, w.dv), w.m, CHUNK, false);
    pair_gradients(w.p, w.low, w.m, n, true);
    decayed(w, n, -1.0f, false);
    multiply(t, n, w.dk, n, plain(w.m, CHUNK), plain(w.k, w.dk), w.dk_row, w.dk, false);
    for (int i = threadIdx.x / WARP; i < n; i += N_WARPS) {
        const float sum = dot(w.k + i * w.dk, w.dk_row + i * w.dk, w.dk) + dot(w.w + i * w.dv, w.n + i * w.dv, w.dv);
        if (threadIdx.x % WARP == 0) a.dbeta[(c.row + i) * d.n_v_heads + c.head] = sum;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < n * w.dk; e += THREADS)
        w.dk_col[e] = fmaf(s.beta[e / w.dk], w.dk_row[e], w.dk_col[e]);
    scale_rows(w.m, w.m, s.beta, n, CHUNK);
    multiply(t, n, w.dk, n, turned(w.m, CHUNK), plain(w.k, w.dk), w.dk_col, w.dk, true);
    for (int e = threadIdx.x; e < n * w.dv; e += THREADS) w.tmp[e] = w.w[e] * (-s.beta[e / w.dv] * s.e[e / w.dv]);
    multiply(t, n, w.dk, w.dv, plain(w.tmp, w.dv), turned(w.state, w.dv), w.dk_row, w.dk, false);
    add_dots(s.of_e, w.k, w.dk_row, n, w.dk);
}

__device__ void state_backward(const work &w, const decays &s, tiles &t, int n)
{
    for (int e = threadIdx.x; e < w.dk * w.dv; e += THREADS) w.dstate[e] *= s.e[n - 1];
    multiply(t, w.dk, w.dv, n, turned(w.k, w.dk), plain(w.tmp, w.dv), w.dstate, w.dv, true);
    scale_rows(w.tmp, w.dout, s.e, n, w.dv);
    multiply(t, w.dk, w.dv, n, turned(w.q, w.dk), plain(w.tmp, w.dv), w.dstate, w.dv, true);
}

/* As store_decay_gradients of isa/delta.c: sums over l >= i, in p, then over j < i. */
__device__ void store_decay_gradients(const work &w, decays &s, const dt_delta &d, const arrays &a, const chunk &c,
                                      double of_end)
{
    const int column = threadIdx.x, lane = threadIdx.x % WARP;
    float sum = 0.0f;
    if (column < c.n)
        for (int i = c.n - 1; i > column; i--) w.p[i * CHUNK + column] = sum += w.p[i * CHUNK + column];
    __syncthreads();
    for (int i = threadIdx.x / WARP; i < c.n; i += N_WARPS) {
        float pairs = 0.0f;
        for (int j = lane; j < i; j += WARP) pairs += w.p[i * CHUNK + j];
        pairs = warp_sum(pairs);
        if (lane == 0) s.of_d[i] = (double)pairs;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double of_e = 0;
        for (int i = 0; i < c.n; i++) s.of_d[i] += of_end, of_end += s.of_f[i];
        for (int i = c.n - 1; i >= 0; i--)
            a.dg[(c.row + i) * d.n_v_heads + c.head] = (float)(s.of_d[i] + (of_e += s.of_e[i]));
    }
}

__device__ void store_gradients(const work &w, const decays &s, const dt_delta &d, const arrays &a, const chunk &c)
{
    for (int e = threadIdx.x; e < c.n * w.dk; e += THREADS) {
        const int64_t at = ((c.row + e / w.dk) * d.n_v_heads + c.head) * w.dk + e % w.dk;
        a.dq_heads[at] = w.dq[e];
        a.dk_heads[at] = w.dk_row[e] + w.dk_col[e];
    }
    scale_rows(w.w, w.w, s.beta, c.n, w.dv);
    store_rows(a.dv + c.row * d.x_ld + (int64_t)c.head * w.dv, w.w, d.x_ld, c.n, w.dv);
    __syncthreads();
}

__global__ void __launch_bounds__(THREADS) delta_backward_kernel(dt_delta d, arrays a, float *scratch, int64_t each)
{
    __shared__ tiles t;
    __shared__ decays s;
    __shared__ work w;
    if (threadIdx.x == 0) w = carve(scratch + blockIdx.x * each, d, true);
    __syncthreads();
    for (int64_t pair = blockIdx.x; pair < (int64_t)d.n_seq * d.n_v_heads; pair += gridDim.x) {
        const int seq = (int)(pair / d.n_v_heads), head = (int)(pair % d.n_v_heads);
        const int len = d.q_start[seq + 1] - d.q_start[seq];
        if (len == 0) continue;
        keep_states(w, s, t, d, a, seq, head, len);
        fill(w.dstate, w.dk * w.dv, 0.0f);
        for (int first = (len - 1) / CHUNK * CHUNK; first >= 0; first -= CHUNK) {
            const chunk c = chunk_at(d, seq, head, first);
            __syncthreads();
            copy(w.state, w.states + (int64_t)(first / CHUNK) * w.dk * w.dv, w.dk * w.dv);
            load_rows(w.dout, a.dout + c.row * d.o_ld + (int64_t)head * w.dv, d.o_ld, c.n, w.dv);
            load_chunk(w, s, d, a, c, true);
            new_values(w, s, t, c.n);
            pair_queries(w, t, c.n);
            const double of_end = read_backward(w, s, t, c.n);
            write_backward(w, s, t, d, a, c);
            state_backward(w, s, t, c.n);
            store_decay_gradients(w, s, d, a, c, of_end);
            store_gradients(w, s, d, a, c);
        }
    }
}

/* The gradient of x from that of factor x / |x|, summed over `group` value heads: a warp per row and key head. */
__device__ void norm_backward(elements x, const float *dy, int group, int width, float factor, elements dx)
{
    float ss = 0.0f, along = 0.0f;
    for (int c = threadIdx.x % WARP; c < width; c += WARP) {
        const float v = x[c];
        float sum = 0.0f;
        for (int h = 0; h < group; h++) sum += dy[(int64_t)h * width + c];
        ss = fmaf(v, v, ss);
        along = fmaf(v, sum, along);
    }
    const float r = 1.0f / sqrtf(warp_sum(ss) + NORM_EPS), by = warp_sum(along) * r * r;
    for (int c = threadIdx.x % WARP; c < width; c += WARP) {
        float sum = 0.0f;
        for (int h = 0; h < group; h++) sum += dy[(int64_t)h * width + c];
        dx.set(c, factor * r * fmaf(-x[c], by, sum));
    }
}

__global__ void __launch_bounds__(THREADS) delta_qk_kernel(dt_delta d, arrays a, elements dq, elements dk)
{
    const int64_t i = blockIdx.x * (int64_t)N_WARPS + threadIdx.x / WARP;
    if (i >= (int64_t)d.n_tok * d.n_k_heads) return;
    const int group = d.n_v_heads / d.n_k_heads;
    const int64_t row = i / d.n_k_heads, head = i % d.n_k_heads, at = row * d.x_ld + head * d.k_dim,
                  of_heads = (row * d.n_v_heads + head * group) * d.k_dim;
    norm_backward(a.q + at, a.dq_heads + of_heads, group, d.k_dim, 1.0f / sqrtf((float)d.k_dim), dq + at);
    norm_backward(a.k + at, a.dk_heads + of_heads, group, d.k_dim, 1.0f, dk + at);
}

/* ---- token by token ---------------------------------------------------------------------------------------------- */

/* A thread per column of the state: it reads and writes only this column. */
__global__ void __launch_bounds__(THREADS) delta_step_kernel(dt_delta d, arrays a)
{
    __shared__ float q[DT_DELTA_MAX_DIM], k[DT_DELTA_MAX_DIM];
    const int64_t pair = blockIdx.x;
    const int seq = (int)(pair / d.n_v_heads), head = (int)(pair % d.n_v_heads), dk = d.k_dim, dv = d.v_dim;
    const int len = d.q_start[seq + 1] - d.q_start[seq], c = threadIdx.x;
    float *state = state_of(d, a.state, seq, head);
    for (int i = 0; i < len; i++) {
        const chunk at = chunk_at(d, seq, head, i);
        const int64_t row = at.row * d.x_ld, of_k = row + (int64_t)at.k_head * dk;
        __syncthreads();
        load_normalised(k, a.k + of_k, d.x_ld, 1, dk, 1.0f);
        load_normalised(q, a.q + of_k, d.x_ld, 1, dk, 1.0f / sqrtf((float)dk));
        __syncthreads();
        if (c >= dv) continue;
        const float keep = expf(a.g[at.row * d.n_v_heads + head]), beta = a.beta[at.row * d.n_v_heads + head];
        float read = 0.0f, out = 0.0f;
        for (int j = 0; j < dk; j++) read = fmaf(k[j], keep * state[j * dv + c], read);
        const float u = beta * (a.v[row + (int64_t)head * dv + c] - read);
        for (int j = 0; j < dk; j++) {
            const float x = fmaf(k[j], u, keep * state[j * dv + c]);
            state[j * dv + c] = x;
            out = fmaf(q[j], x, out);
        }
        a.out.set(at.row * d.o_ld + (int64_t)head * dv + c, out);
    }
}

} // namespace

/* ---- entries of the table ---------------------------------------------------------------------------------------- */

dt_err cuda_delta_forward(dt_device *dev, const dt_delta *d, const void *q, const void *k, const void *v,
                          const float *g, const float *beta, void *out, float *state, float *scratch, dt_stream *stream)
{
    DT_TRY(dt_delta_check(d));
    dt_stream *s = cuda_stream(dev, stream, "delta_forward");
    if (d->n_tok == 0) return DT_OK;
    const arrays a = {elements(q, d->dt), elements(k, d->dt), elements(v, d->dt), g, beta, elements(out, d->dt), state};
    launch(s, (unsigned)dt_gpu_delta_blocks(d), THREADS, 0, delta_forward_kernel, *d, a, scratch,
           dt_gpu_delta_work_elems(d, false));
    CUDA_LAUNCHED();
    return DT_OK;
}

dt_err cuda_delta_backward(dt_device *dev, const dt_delta *d, const void *q, const void *k, const void *v,
                           const float *g, const float *beta, const void *dout, void *dq, void *dk, void *dv, float *dg,
                           float *dbeta, float *scratch, dt_stream *stream)
{
    DT_TRY(dt_delta_check(d));
    dt_stream *s = cuda_stream(dev, stream, "delta_backward");
    const int64_t of_heads = (int64_t)d->n_tok * d->n_v_heads * d->k_dim;
    if (d->n_tok == 0) return DT_OK;
    arrays a = {elements(q, d->dt), elements(k, d->dt), elements(v, d->dt), g, beta};
    a.dout = elements(dout, d->dt), a.dv = elements(dv, d->dt), a.dg = dg, a.dbeta = dbeta;
    a.dq_heads = scratch, a.dk_heads = scratch + of_heads;
    launch(s, (unsigned)dt_gpu_delta_blocks(d), THREADS, 0, delta_backward_kernel, *d, a, scratch + 2 * of_heads,
           dt_gpu_delta_work_elems(d, true));
    launch(s, (unsigned)ceil_div((int64_t)d->n_tok * d->n_k_heads, N_WARPS), THREADS, 0, delta_qk_kernel, *d, a,
           elements(dq, d->dt), elements(dk, d->dt));
    CUDA_LAUNCHED();
    return DT_OK;
}

dt_err cuda_delta_step(dt_device *dev, const dt_delta *d, const void *q, const void *k, const void *v, const float *g,
                       const float *beta, void *out, float *state, dt_stream *stream)
{
    DT_TRY(dt_delta_check(d));
    DT_CHECK(state || d->n_tok == 0, DT_ERR_ARG, "internal: delta_step: state is NULL");
    dt_stream *s = cuda_stream(dev, stream, "delta_step");
    if (d->n_tok == 0) return DT_OK;
    const arrays a = {elements(q, d->dt), elements(k, d->dt), elements(v, d->dt), g, beta, elements(out, d->dt), state};
    launch(s, (unsigned)((int64_t)d->n_seq * d->n_v_heads), THREADS, 0, delta_step_kernel, *d, a);
    CUDA_LAUNCHED();
    return DT_OK;
}
