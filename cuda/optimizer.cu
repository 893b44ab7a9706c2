/* optimizer.cu - Adam, gradient descent, and the reductions of an optimizer step.
 *
 * Threads   Limited by memory: one pass, 16 bytes at a time if all arrays are aligned.
 * Numerics  Compiled without contraction (-fmad=false), with explicit fused operations like the CPU's kernels, so that
 *           a step has the CPU's bits. */
#include "kernel.cuh"
#include "philox.cuh"
extern "C" {
#include "dtrain/device/block8.h"
}

enum { THREADS = 256, EACH = 4 }; /* EACH: elements per thread of a step */

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* The EACH elements of this thread. They are adjacent if they form an aligned vector, else THREADS apart, so that a
 * warp's loads are coalesced. */
template <bool vectors> struct own_elements {
    static constexpr int STEP = vectors ? 1 : THREADS;
    int64_t first, n;

    __device__ own_elements(int64_t n_elems)
        : first((int64_t)blockIdx.x * (THREADS * EACH) + (int64_t)threadIdx.x * (vectors ? EACH : 1)), n(n_elems)
    {
    }
    __device__ bool whole() const { return vectors && first + EACH <= n; }

    template <class T> __device__ void load(const T *x, float out[EACH]) const
    {
        if (whole()) {
            const vec<T, EACH> v = *reinterpret_cast<const vec<T, EACH> *>(x + first);
#pragma unroll
            for (int k = 0; k < EACH; k++) out[k] = to_float(v.x[k]);
        } else {
#pragma unroll
            for (int k = 0; k < EACH; k++) out[k] = first + k * STEP < n ? to_float(x[first + k * STEP]) : 0.0f;
        }
    }
    template <class T> __device__ void store(T *x, const float in[EACH]) const
    {
        if (whole()) {
            vec<T, EACH> v;
#pragma unroll
            for (int k = 0; k < EACH; k++) v.x[k] = from_float<T>(in[k]);
            *reinterpret_cast<vec<T, EACH> *>(x + first) = v;
        } else {
#pragma unroll
            for (int k = 0; k < EACH; k++)
                if (first + k * STEP < n) x[first + k * STEP] = from_float<T>(in[k]);
        }
    }
};

/* Factors of a step that do not depend on the element. */
typedef struct adamw_factors {
    float b1, b2, c1, c2, scale, eps, l2, keep, step, root;
} adamw_factors;

static adamw_factors factors_of(const dt_adamw *o)
{
    adamw_factors f;
    f.b1 = o->beta1, f.b2 = o->beta2, f.c1 = 1.0f - o->beta1, f.c2 = 1.0f - o->beta2;
    f.scale = o->grad_scale, f.eps = o->eps, f.l2 = o->l2;
    f.keep = 1.0f - o->lr * o->weight_decay, f.step = o->lr / o->fix1, f.root = 1.0f / sqrtf(o->fix2);
    return f;
}

/* AdamW, see dt_adamw, with c = 1 - b, keep = 1 - lr wd, step = lr / fix1, root = 1 / sqrt(fix2):
 *
 *     g = scale grad + l2 p;  m <- b1 m + c1 g;  v <- b2 v + c2 g^2;  p <- keep p - step m / (sqrt(v) root + eps)
 *
 * Arrays: grad, p, m, v, param [n]; param may be NULL. Threads: EACH elements per thread. */
template <class G, class P, bool vectors>
__global__ void __launch_bounds__(THREADS)
    adamw_kernel(adamw_factors f, const G *grad, float *master, float *m, float *v, P *param, int64_t n)
{
    const own_elements<vectors> own(n);
    float g[EACH], p[EACH], mi[EACH], vi[EACH];
    own.load(grad, g);
    own.load(master, p);
    own.load(m, mi);
    own.load(v, vi);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const float scaled = g[k] * f.scale, gk = f.l2 == 0.0f ? scaled : fmaf(f.l2, p[k], scaled);
        mi[k] = fmaf(f.b1, mi[k], f.c1 * gk);
        vi[k] = fmaf(f.b2, vi[k], f.c2 * gk * gk);
        p[k] = fmaf(f.keep, p[k], -f.step * (mi[k] / fmaf(sqrtf(vi[k]), f.root, f.eps)));
    }
    own.store(m, mi);
    own.store(v, vi);
    own.store(master, p);
    if (param) own.store(param, p);
}

/* Gradient descent, see dt_sgd: g = scale grad + l2 p;  b <- momentum b + g;  p <- p - lr b. Arrays and threads as
 * above; momentum NULL: b is g. */
template <class G, class P, bool vectors>
__global__ void __launch_bounds__(THREADS)
    sgd_kernel(dt_sgd o, const G *grad, float *master, float *momentum, P *param, int64_t n)
{
    const own_elements<vectors> own(n);
    float g[EACH], p[EACH], b[EACH];
    own.load(grad, g);
    own.load(master, p);
    if (momentum) own.load(momentum, b);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const float gk = fmaf(o.l2, p[k], g[k] * o.grad_scale);
        b[k] = momentum ? fmaf(o.momentum, b[k], gk) : gk;
        p[k] = fmaf(-o.lr, b[k], p[k]);
    }
    if (momentum) own.store(momentum, b);
    own.store(master, p);
    if (param) own.store(param, p);
}

/* Is p aligned for accesses of EACH elements? Also true for NULL. */
static bool fits(const void *p, dt_dtype dt) { return ((size_t)p & (EACH * dt_dtype_size(dt) - 1)) == 0; }

dt_err cuda_adamw_step(dt_device *dev, const dt_adamw *opt, const void *grad, dt_dtype gt, float *master, float *m,
                       float *v, void *param, dt_dtype param_dt, int64_t n, dt_stream *stream)
{
    if (n == 0) return DT_OK;
    if (!param) param_dt = DT_F32;
    dt_stream *s = cuda_stream(dev, stream, "adamw_step");
    const adamw_factors f = factors_of(opt);
    const bool vectors =
        fits(grad, gt) && fits(master, DT_F32) && fits(m, DT_F32) && fits(v, DT_F32) && fits(param, param_dt);
    CUDA_BY_DTYPE(gt, G, "adamw_step", {
        CUDA_BY_DTYPE(param_dt, P, "adamw_step", {
            launch(s, (unsigned)ceil_div(n, THREADS * EACH), THREADS, 0,
                   vectors ? adamw_kernel<G, P, true> : adamw_kernel<G, P, false>, f, (const G *)grad, master, m, v,
                   (P *)param, n);
        });
    });
    CUDA_LAUNCHED();
    return DT_OK;
}

dt_err cuda_sgd_step(dt_device *dev, const dt_sgd *opt, const void *grad, dt_dtype gt, float *master, float *momentum,
                     void *param, dt_dtype param_dt, int64_t n, dt_stream *stream)
{
    if (n == 0) return DT_OK;
    if (!param) param_dt = DT_F32;
    dt_stream *s = cuda_stream(dev, stream, "sgd_step");
    const bool vectors = fits(grad, gt) && fits(master, DT_F32) && fits(momentum, DT_F32) && fits(param, param_dt);
    CUDA_BY_DTYPE(gt, G, "sgd_step", {
        CUDA_BY_DTYPE(param_dt, P, "sgd_step", {
            launch(s, (unsigned)ceil_div(n, THREADS * EACH), THREADS, 0,
                   vectors ? sgd_kernel<G, P, true> : sgd_kernel<G, P, false>, *opt, (const G *)grad, master, momentum,
                   (P *)param, n);
        });
    });
    CUDA_LAUNCHED();
    return DT_OK;
}

/* out = a x + b y. Arrays: x, y, out [n]. Threads: EACH elements per thread. */
template <class X, class Y, class O, bool vectors>
__global__ void __launch_bounds__(THREADS)
    add_scaled_kernel(float a, const X *x, float b, const Y *y, O *out, int64_t n)
{
    const own_elements<vectors> own(n);
    float xi[EACH], yi[EACH], r[EACH];
    own.load(x, xi);
    own.load(y, yi);
#pragma unroll
    for (int k = 0; k < EACH; k++) r[k] = fmaf(a, xi[k], b * yi[k]);
    own.store(out, r);
}

dt_err cuda_add_scaled(dt_device *dev, float a, const void *x, dt_dtype x_dt, float b, const void *y, dt_dtype y_dt,
                       void *out, dt_dtype out_dt, int64_t n, dt_stream *stream)
{
    if (n == 0) return DT_OK;
    dt_stream *s = cuda_stream(dev, stream, "add_scaled");
    const bool vectors = fits(x, x_dt) && fits(y, y_dt) && fits(out, out_dt);
    CUDA_BY_DTYPE(x_dt, X, "add_scaled", {
        CUDA_BY_DTYPE(y_dt, Y, "add_scaled", {
            CUDA_BY_DTYPE(out_dt, O, "add_scaled", {
                launch(s, (unsigned)ceil_div(n, THREADS * EACH), THREADS, 0,
                       vectors ? add_scaled_kernel<X, Y, O, true> : add_scaled_kernel<X, Y, O, false>, a, (const X *)x,
                       b, (const Y *)y, (O *)out, n);
            });
        });
    });
    CUDA_LAUNCHED();
    return DT_OK;
}

/* ---- states of fewer bits ---------------------------------------------------------------------------------------- */

/* See op_list.h. Threads: one per counter, so up to four elements. */
__global__ void __launch_bounds__(THREADS)
    round_stochastic_kernel(const float *x, uint16_t *y, uint64_t key, uint64_t counter, uint64_t first, int64_t n)
{
    const uint64_t quad = first / 4 + (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (quad * 4 >= first + (uint64_t)n) return;
    const philox_words r = philox(key, counter, quad);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int64_t i = (int64_t)(quad * 4 + k - first);
        if (i < 0 || i >= n) continue;
        const uint32_t u = __float_as_uint(x[i]);
        const bool finite = (u & 0x7f800000u) != 0x7f800000u;
        y[i] = (uint16_t)(finite ? (u + (r.w[k] & 0xffffu)) >> 16 : x[i] != x[i] ? (u >> 16) | 0x40u : u >> 16);
    }
}

dt_err cuda_round_stochastic(dt_device *dev, const float *x, void *y, uint64_t key, uint64_t counter, uint64_t first,
                             int64_t n, dt_stream *stream)
{
    if (n == 0) return DT_OK;
    dt_stream *s = cuda_stream(dev, stream, "round_stochastic");
    const uint64_t quads = (first + (uint64_t)n + 3) / 4 - first / 4;
    launch(s, (unsigned)ceil_div((int64_t)quads, THREADS), THREADS, 0, round_stochastic_kernel, x, (uint16_t *)y, key,
           counter, first, n);
    CUDA_LAUNCHED();
    return DT_OK;
}

struct larger_bits {
    __device__ uint32_t operator()(uint32_t a, uint32_t b) const { return a > b ? a : b; }
};

/* The CPU's search and sign; see optimizer_kernels.c. Threads: one block of states per block, one element each. */
__global__ void __launch_bounds__(DT_BLOCK8)
    quantise_blocks_kernel(dt_map8 map, bool positive, const float *x, uint8_t *codes, float *absmax, int64_t n)
{
    __shared__ dt_map8 own;
    const int64_t i = (int64_t)blockIdx.x * DT_BLOCK8 + threadIdx.x;
    const float xi = i < n ? x[i] : 0.0f;
    own.value[threadIdx.x] = map.value[threadIdx.x];
    if (threadIdx.x < 255) own.between[threadIdx.x] = map.between[threadIdx.x];
    const uint32_t max = block_reduce(__float_as_uint(xi) & 0x7fffffffu, larger_bits());
    __shared__ uint32_t shared_max;
    if (threadIdx.x == 0) {
        shared_max = max;
        absmax[blockIdx.x] = __uint_as_float(max);
    }
    __syncthreads();
    if (i >= n) return;
    const float y = shared_max ? xi / __uint_as_float(shared_max) : xi;
    int code = 0;
    for (int step = 128; step; step >>= 1) code += y > own.between[code + step - 1] ? step : 0;
    const bool is_negative = own.value[code] < 0, want_negative = xi < 0;
    codes[i] = (uint8_t)(code + (positive || is_negative == want_negative ? 0 : want_negative ? -1 : 1));
}

__global__ void __launch_bounds__(DT_BLOCK8)
    dequantise_blocks_kernel(dt_map8 map, const uint8_t *codes, const float *absmax, float *x, int64_t n)
{
    __shared__ float value[256];
    const int64_t i = (int64_t)blockIdx.x * DT_BLOCK8 + threadIdx.x;
    value[threadIdx.x] = map.value[threadIdx.x];
    __syncthreads();
    if (i < n) x[i] = value[codes[i]] * absmax[blockIdx.x];
}

dt_err cuda_quantise_blocks(dt_device *dev, const float *x, uint8_t *codes, float *absmax, bool positive, int64_t n,
                            dt_stream *stream)
{
    if (n == 0) return DT_OK;
    dt_map8 map;
    dt_map8_make(&map, positive);
    launch(cuda_stream(dev, stream, "quantise_blocks"), (unsigned)ceil_div(n, DT_BLOCK8), DT_BLOCK8, 0,
           quantise_blocks_kernel, map, positive, x, codes, absmax, n);
    CUDA_LAUNCHED();
    return DT_OK;
}

dt_err cuda_dequantise_blocks(dt_device *dev, const uint8_t *codes, const float *absmax, float *x, bool positive,
                              int64_t n, dt_stream *stream)
{
    if (n == 0) return DT_OK;
    dt_map8 map;
    dt_map8_make(&map, positive);
    launch(cuda_stream(dev, stream, "dequantise_blocks"), (unsigned)ceil_div(n, DT_BLOCK8), DT_BLOCK8, 0,
           dequantise_blocks_kernel, map, codes, absmax, x, n);
    CUDA_LAUNCHED();
    return DT_OK;
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

/* Operations of a reduction: `add` adds an element to a thread's sum, `merge` adds one sum to another, `of_block`
 * combines the sums of a block's threads. */
struct squares {
    typedef double sum;
    static __device__ sum zero() { return 0; }
    __device__ void add(sum &s, float x) const { s = fma((double)x, (double)x, s); }
    static __device__ void merge(sum &s, sum other) { s += other; }
    static __device__ sum of_block(sum s) { return block_sum(s); }
    static __device__ void store(double *result, sum s) { *result = s; }
};

/* Bits of floats without sign are ordered like integers; NaN is above Inf. */
struct largest {
    typedef uint32_t sum;
    static __device__ sum zero() { return 0; }
    __device__ void add(sum &s, float x) const
    {
        uint32_t u;
        memcpy(&u, &x, sizeof u);
        merge(s, u & 0x7fffffffu);
    }
    static __device__ void merge(sum &s, sum other) { s = other > s ? other : s; }
    static __device__ sum of_block(sum s) { return block_reduce(s, larger_bits()); }
    static __device__ void store(float *result, sum s)
    {
        const uint32_t u = s > 0x7f800000u ? 0x7f800000u : s;
        memcpy(result, &u, sizeof u);
    }
};

/* Sums of squares as exact 128-bit integers. x^2 is exact in double, and so is its product with 2^shift. Adding 2^52
 * rounds a value in [0, 2^52) to an integer, ties to even, in the low bits. */
struct fixed_point {
    double scale; /* 2^shift */
    struct sum {
        uint64_t low, high;
    };
    static __device__ sum zero() { return sum{0, 0}; }
    __device__ void add(sum &s, float x) const
    {
        const double y = (double)x * (double)x * scale + 0x1p52;
        uint64_t u;
        memcpy(&u, &y, sizeof u);
        merge(s, sum{u - 0x4330000000000000u, 0});
    }
    static __device__ void merge(sum &s, sum other)
    {
        s.low += other.low;
        s.high += other.high + (s.low < other.low);
    }
    /* The two halves of the low words are summed separately: a sum of 2^10 halves stays below 2^64. */
    static __device__ sum of_block(sum s)
    {
        const uint64_t half0 = block_sum(s.low & 0xffffffffu), half1 = block_sum(s.low >> 32);
        sum all = {half0, block_sum(s.high)};
        merge(all, sum{half1 << 32, half1 >> 32});
        return all;
    }
    static __device__ void store(uint64_t *result, sum s)
    {
        result[0] = s.low;
        result[1] = s.high;
    }
};

/* Eight blocks per multiprocessor of an H100. The number of blocks, and so the order of a sum, depends only on n. */
enum { MAX_BLOCKS = 8 * 132, LOADS = 4 };

template <class T> static int n_blocks(int64_t n)
{
    const int64_t blocks = ceil_div(n, (int64_t)THREADS * LOADS * vec16<T>::N);
    return (int)(blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS);
}

template <class T, bool vectors> __device__ inline vec16<T> load_16(const T *x)
{
    vec16<T> v;
    if (vectors) {
        v = *reinterpret_cast<const vec16<T> *>(x);
    } else {
#pragma unroll
        for (int k = 0; k < vec16<T>::N; k++) v.x[k] = x[k];
    }
    return v;
}

/* part[block] = sum over the block's elements of x [n]. Threads: grid-stride over 16-byte vectors, with LOADS of them
 * in flight per thread; the first threads process the last n % N elements. The order does not depend on `vectors`. */
template <class Op, class T, bool vectors>
__global__ void __launch_bounds__(THREADS) reduce_kernel(Op op, const T *x, int64_t n, typename Op::sum *part)
{
    constexpr int N = vec16<T>::N;
    const int64_t me = (int64_t)blockIdx.x * THREADS + threadIdx.x, all = (int64_t)gridDim.x * THREADS, n_vecs = n / N;
    typename Op::sum s = Op::zero();
    int64_t i = me;
    for (; i + (LOADS - 1) * all < n_vecs; i += LOADS * all) {
        vec16<T> v[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; l++) v[l] = load_16<T, vectors>(x + (i + l * all) * N);
#pragma unroll
        for (int l = 0; l < LOADS; l++)
#pragma unroll
            for (int k = 0; k < N; k++) op.add(s, to_float(v[l].x[k]));
    }
    for (; i < n_vecs; i += all) {
        const vec16<T> v = load_16<T, vectors>(x + i * N);
#pragma unroll
        for (int k = 0; k < N; k++) op.add(s, to_float(v.x[k]));
    }
    if (me < n % N) op.add(s, to_float(x[n_vecs * N + me]));
    s = Op::of_block(s);
    if (threadIdx.x == 0) part[blockIdx.x] = s;
}

/* result = sum of part [n_parts]; one block. */
template <class Op, class R>
__global__ void __launch_bounds__(THREADS) finish_kernel(const typename Op::sum *part, int n_parts, R *result)
{
    typename Op::sum s = Op::zero();
    for (int i = threadIdx.x; i < n_parts; i += THREADS) Op::merge(s, part[i]);
    s = Op::of_block(s);
    if (threadIdx.x == 0) Op::store(result, s);
}

template <class Op, class R> static dt_err reduce(dt_stream *s, Op op, const void *x, dt_dtype dt, int64_t n, R *result)
{
    typename Op::sum *part = (typename Op::sum *)s->workspace;
    static_assert(MAX_BLOCKS * sizeof *part <= DT_GPU_WORKSPACE_NBYTES, "partial sums fit");
    int n_parts = 0;
    CUDA_BY_DTYPE(dt, T, s->last, {
        n_parts = n_blocks<T>(n);
        if (n_parts > 0)
            launch(s, (unsigned)n_parts, THREADS, 0,
                   vectors_fit(0, x) ? reduce_kernel<Op, T, true> : reduce_kernel<Op, T, false>, op, (const T *)x, n,
                   part);
    });
    launch(s, 1, THREADS, 0, finish_kernel<Op, R>, (const typename Op::sum *)part, n_parts, result);
    CUDA_LAUNCHED();
    return DT_OK;
}

dt_err cuda_sum_squares(dt_device *dev, const void *x, dt_dtype dt, int64_t n, double *result, dt_stream *stream)
{
    return reduce(cuda_stream(dev, stream, "sum_squares"), squares(), x, dt, n, result);
}

dt_err cuda_abs_max(dt_device *dev, const void *x, dt_dtype dt, int64_t n, float *result, dt_stream *stream)
{
    return reduce(cuda_stream(dev, stream, "abs_max"), largest(), x, dt, n, result);
}

dt_err cuda_sum_squares_fixed(dt_device *dev, const void *x, dt_dtype dt, int64_t n, int shift, uint64_t *result,
                              dt_stream *stream)
{
    fixed_point op;
    op.scale = ldexp(1.0, shift);
    return reduce(cuda_stream(dev, stream, "sum_squares_fixed"), op, x, dt, n, result);
}
