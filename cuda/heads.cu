/* heads.cu - norm and rotary embedding of q, k and v, and the copy into the cache, in one pass (dt_heads); and its
 * backward.
 *
 * Arrays    those of dt_heads.
 * Threads   `lanes` threads share a head: lane l has a vector of its lower half and the corresponding vector of its
 *           upper half. One thread thus has both elements of a rotated pair, and the sums of a norm need few shuffles.
 * Numerics  The split of a head over threads depends only on its width. Its bits therefore do not depend on the other
 *           tokens of the call. */
#include "each.cuh"
#include "sums.cuh"

enum { THREADS = 256 };
/* Heads that a thread loads together, limited by its registers. */
template <bool norm> constexpr int heads_at_once = norm ? 2 : 1;

/* The halves of a head: `half` elements, then width - half. If the width is odd, the head is not rotated. */
struct head_shape {
    int width, half, lanes;
    bool fits; /* all arrays are aligned for vectors */
};

/* A thread's vectors of a head. */
template <class T> struct pair {
    vec<T, vector_elems<T>> low, high;
};

template <class T> __device__ inline pair<T> load_pair(const head_shape &s, const T *head, int col, bool there)
{
    constexpr int V = vector_elems<T>;
    const int low = there ? elems_left(col, s.half, V) : 0, high = there ? elems_left(col, s.width - s.half, V) : 0;
    return {load_vec<V>(head + col, low, s.fits && low == V),
            load_vec<V>(head + s.half + col, high, s.fits && high == V)};
}
template <class T> __device__ inline void store_pair(const head_shape &s, T *head, int col, const pair<T> &x)
{
    constexpr int V = vector_elems<T>;
    const int low = elems_left(col, s.half, V), high = elems_left(col, s.width - s.half, V);
    store_vec(head + col, x.low, low, s.fits && low == V);
    store_vec(head + s.half + col, x.high, high, s.fits && high == V);
}

/* Cosines and sines of the thread's pairs. */
template <class T> struct angles {
    static constexpr int V = vector_elems<T>;
    vec<float, 4> cosine[V / 4], sine[V / 4];

    __device__ void load(const head_shape &s, const float *row, int col)
    {
        const int count = elems_left(col, s.half, V);
#pragma unroll
        for (int i = 0; i < V / 4; i++) {
            cosine[i] = load_vec<4>(row + col + 4 * i, count - 4 * i, s.fits && count == V);
            sine[i] = load_vec<4>(row + s.half + col + 4 * i, count - 4 * i, s.fits && count == V);
        }
    }
    /* x_i' = x_i cos - x_(half+i) sin, x_(half+i)' = x_(half+i) cos + x_i sin; sign -1: the inverse rotation */
    __device__ pair<T> turned(const pair<T> &x, float sign) const
    {
        pair<T> y;
#pragma unroll
        for (int j = 0; j < V; j++) {
            const float low = to_float(x.low.x[j]), high = to_float(x.high.x[j]);
            const float c = cosine[j / 4].x[j % 4], n = sign * sine[j / 4].x[j % 4];
            y.low.x[j] = from_float<T>(low * c - high * n);
            y.high.x[j] = from_float<T>(high * c + low * n);
        }
        return y;
    }
};

__device__ inline float lanes_sum(float x, int lanes)
{
    for (int d = lanes / 2; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

/* The factor of dt_rmsnorm, and xhat times it. */
template <bool plus_one, class T> __device__ inline float factor_of(T weight)
{
    return plus_one ? 1.0f + to_float(weight) : to_float(weight);
}
template <bool plus_one, class T> __device__ inline T scaled(float xhat, T weight)
{
    return from_float<T>((plus_one ? xhat : to_float(from_float<T>(xhat))) * factor_of<plus_one>(weight));
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

template <class T> struct forward_heads {
    head_shape shape;
    int64_t n; /* heads of all tokens */
    int n_heads, n_kv_heads, per_token;
    int64_t q_from_ld, kv_from_ld, q_ld, kv_ld;
    const T *q_from, *kv_from, *q_norm, *k_norm;
    T *q, *k, *v;
    float *rstd_q, *rstd_k;
    const int32_t *kv_row, *pos;
    const float *cos_sin, *q_cos_sin; /* NULL: no rotation */
    int rotary;                       /* columns of a table */
    float sign, eps;

    /* Source and destination of head i; v has no weight and no rotation. */
    struct way {
        const T *from, *weight;
        T *to;
        float *rstd;
        const float *turn;
    };
    __device__ way way_of(int64_t i) const
    {
        const row_place p = place_of(i, (unsigned)per_token);
        const int64_t t = p.row, D = shape.width, j = p.in_row - n_heads; /* index among the heads of k, then of v */
        const float *table = j < 0 ? q_cos_sin : cos_sin, *turn = table ? table + pos[t] * (int64_t)rotary : nullptr;
        if (j < 0)
            return {q_from + t * q_from_ld + p.in_row * D, q_norm, q + t * q_ld + p.in_row * D,
                    rstd_q ? rstd_q + t * n_heads + p.in_row : nullptr, turn};
        const T *from = kv_from + t * kv_from_ld + j * D;
        const int64_t row = (kv_row ? kv_row[t] : t) * kv_ld;
        if (j >= n_kv_heads) return {from, nullptr, v + row + (j - n_kv_heads) * D, nullptr, nullptr};
        return {from, k_norm, k + row + j * D, rstd_k ? rstd_k + t * n_kv_heads + j : nullptr, turn};
    }
};

/* Forward. Block b processes heads b R G, ... with G = blockDim / lanes; a thread's heads are G apart. */
template <class T, bool norm, bool plus_one>
__global__ void __launch_bounds__(THREADS, norm ? 2 : 4) heads_forward_kernel(const forward_heads<T> f)
{
    constexpr int V = vector_elems<T>, R = heads_at_once<norm>;
    const head_shape &s = f.shape;
    const int lane = threadIdx.x % s.lanes, n_groups = blockDim.x / s.lanes, col = lane * V;
    const int64_t first = blockIdx.x * (int64_t)(n_groups * R) + threadIdx.x / s.lanes;
    typename forward_heads<T>::way way[R];
    pair<T> x[R];
    float squares[R] = {};
#pragma unroll
    for (int r = 0; r < R; r++) { /* threads without a head only take part in shuffles */
        const int64_t i = first + r * n_groups;
        way[r] = f.way_of(i < f.n ? i : 0);
        x[r] = load_pair(s, way[r].from, col, i < f.n);
    }
    if (norm) {
#pragma unroll
        for (int r = 0; r < R; r++) {
#pragma unroll
            for (int j = 0; j < V; j++) {
                const float low = to_float(x[r].low.x[j]), high = to_float(x[r].high.x[j]);
                squares[r] = fmaf(high, high, fmaf(low, low, squares[r]));
            }
            squares[r] = lanes_sum(squares[r], s.lanes);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        if (first + r * n_groups >= f.n) continue;
        if (norm && way[r].weight) {
            const float rs = 1.0f / sqrtf(fmaf(squares[r], 1.0f / (float)s.width, f.eps));
            const pair<T> w = load_pair(s, way[r].weight, col, true);
            if (lane == 0 && way[r].rstd) *way[r].rstd = rs;
#pragma unroll
            for (int j = 0; j < V; j++) {
                x[r].low.x[j] = scaled<plus_one>(to_float(x[r].low.x[j]) * rs, w.low.x[j]);
                x[r].high.x[j] = scaled<plus_one>(to_float(x[r].high.x[j]) * rs, w.high.x[j]);
            }
        }
        if (way[r].turn) {
            angles<T> a;
            a.load(s, way[r].turn, col);
            x[r] = a.turned(x[r], f.sign);
        }
        store_pair(s, way[r].to, col, x[r]);
    }
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

template <class T> struct backward_heads {
    head_shape shape;
    int64_t n_tok;
    int n_heads[2]; /* of q, and of k */
    int64_t x_ld, ld[2];
    const T *x[2], *weight[2];
    const float *rstd[2];
    T *dy[2];
    const int32_t *pos;
    const float *cos_sin[2];
};

/* Backward of norm and rotation. Block b processes heads b G, ... of q, then advances by gridDim G, then those of k. A
 * thread has the same columns of all its heads, so it sums dy xhat in registers. Then the block adds the G sums of
 * each column in shared memory, and stores them in part[0][b] for q and part[1][b] for k, [width]. */
template <class T, bool plus_one>
__global__ void __launch_bounds__(THREADS, 2) heads_backward_kernel(const backward_heads<T> f, float *part)
{
    constexpr int V = vector_elems<T>;
    __shared__ float sums[THREADS * 2 * V]; /* [G][width] */
    const head_shape &s = f.shape;
    const int lane = threadIdx.x % s.lanes, group = threadIdx.x / s.lanes, n_groups = blockDim.x / s.lanes,
              col = lane * V;
    const float inv_width = 1.0f / (float)s.width;
    for (int which = 0; which < 2; which++) {
        const int64_t n = f.n_tok * f.n_heads[which], step = gridDim.x * (int64_t)n_groups;
        const pair<T> w = load_pair(s, f.weight[which], col, true);
        float acc_low[V] = {}, acc_high[V] = {};
        for (int64_t base = blockIdx.x * (int64_t)n_groups; base < n; base += step) {
            const bool there = base + group < n;
            const row_place p = place_of(there ? base + group : 0, (unsigned)f.n_heads[which]);
            T *at = f.dy[which] + p.row * f.ld[which] + p.in_row * s.width;
            const pair<T> x = load_pair(s, f.x[which] + p.row * f.x_ld + p.in_row * s.width, col, there);
            pair<T> d = load_pair(s, at, col, there);
            const float rs = there ? f.rstd[which][base + group] : 0.0f;
            if (f.cos_sin[which]) {
                angles<T> a;
                a.load(s, f.cos_sin[which] + f.pos[p.row] * (int64_t)s.width, col);
                d = a.turned(d, -1.0f);
            }
            float dot = 0.0f;
#pragma unroll
            for (int j = 0; j < V; j++) {
                const float low = to_float(d.low.x[j]), high = to_float(d.high.x[j]);
                const float xlow = to_float(x.low.x[j]) * rs, xhigh = to_float(x.high.x[j]) * rs;
                acc_low[j] = fmaf(low, xlow, acc_low[j]);
                acc_high[j] = fmaf(high, xhigh, acc_high[j]);
                dot = fmaf(low * factor_of<plus_one>(w.low.x[j]), xlow, dot);
                dot = fmaf(high * factor_of<plus_one>(w.high.x[j]), xhigh, dot);
            }
            dot = lanes_sum(dot, s.lanes) * inv_width;
            if (!there) continue;
#pragma unroll
            for (int j = 0; j < V; j++) {
                const float low = to_float(d.low.x[j]) * factor_of<plus_one>(w.low.x[j]),
                            high = to_float(d.high.x[j]) * factor_of<plus_one>(w.high.x[j]);
                d.low.x[j] = from_float<T>(rs * fmaf(-(to_float(x.low.x[j]) * rs), dot, low));
                d.high.x[j] = from_float<T>(rs * fmaf(-(to_float(x.high.x[j]) * rs), dot, high));
            }
            store_pair(s, at, col, d);
        }
        __syncthreads(); /* the sums of q have been read */
#pragma unroll
        for (int j = 0; j < V; j++) {
            if (col + j < s.half) sums[group * s.width + col + j] = acc_low[j];
            if (s.half + col + j < s.width) sums[group * s.width + s.half + col + j] = acc_high[j];
        }
        __syncthreads();
        for (int c = threadIdx.x; c < s.width; c += blockDim.x) {
            float sum = 0.0f;
            for (int g = 0; g < n_groups; g++) sum += sums[g * s.width + c];
            part[(which * (int64_t)gridDim.x + blockIdx.x) * s.width + c] = sum;
        }
    }
}

/* ---- other rotations --------------------------------------------------------------------------------------------- */

/* Rotation of the first elements of a head, or of neighbours, without norms. A head has `lanes` items of two vectors.
 * The first `turning` items cover the elements that rotate, in two parts: vector l of `first` elements, and vector l of
 * the others. Pairs are between the parts, or, as neighbours, inside a vector. The other items cover the elements that
 * do not rotate, in the same way. in_place: these are not copied. */
template <class T, bool neighbours> struct turn_heads {
    static constexpr int V = vector_elems<T>, TURNS = 2;
    forward_heads<T> f;
    int lanes, turning, first, rest;
    bool in_place, fits;

    struct item {
        T *to;
        const float *turn;
        int low_at, high_at, low_n, high_n;
        vec<T, V> low, high;
    };
    __device__ item load(int64_t i) const
    {
        const row_place p = place_of(i, (unsigned)lanes);
        const typename forward_heads<T>::way w = f.way_of(p.row);
        const bool turns = p.in_row < turning;
        const int col = (int)(turns ? p.in_row : p.in_row - turning) * V, begin = turns ? 0 : f.rotary,
                  n_low = turns ? first : rest, n = turns ? f.rotary : f.shape.width - f.rotary;
        item t;
        t.to = w.to;
        t.turn = turns && w.turn ? w.turn + (neighbours ? col / 2 : col) : nullptr;
        t.low_at = begin + col, t.high_at = begin + n_low + col;
        t.low_n = elems_left(col, n_low, V), t.high_n = elems_left(col, n - n_low, V);
        const T *from = in_place ? w.to : w.from;
        t.low = load_vec<V>(from + t.low_at, t.low_n, fits && t.low_n == V);
        t.high = load_vec<V>(from + t.high_at, t.high_n, fits && t.high_n == V);
        return t;
    }
    /* Rotate (a, b) by angle k, counted from the first pair of the vector of the lower part. */
    __device__ void pair_of(const item &t, int k, T &a, T &b) const
    {
        const float x = to_float(a), y = to_float(b), c = t.turn[k], s = f.sign * t.turn[f.rotary / 2 + k];
        a = from_float<T>(x * c - y * s);
        b = from_float<T>(y * c + x * s);
    }
    __device__ void store(const item &t) const
    {
        item y = t;
#pragma unroll
        for (int j = 0; j < V && !neighbours; j++)
            if (t.turn && j < t.high_n) pair_of(t, j, y.low.x[j], y.high.x[j]);
#pragma unroll
        for (int j = 0; j < V && neighbours; j += 2) {
            if (t.turn && j < t.low_n) pair_of(t, j / 2, y.low.x[j], y.low.x[j + 1]);
            if (t.turn && j < t.high_n) pair_of(t, (first + j) / 2, y.high.x[j], y.high.x[j + 1]);
        }
        store_vec(t.to + t.low_at, y.low, t.low_n, fits && t.low_n == V);
        store_vec(t.to + t.high_at, y.high, t.high_n, fits && t.high_n == V);
    }
};

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* With norms the number of lanes is a power of 2, because of the shuffles. It is at most a warp, because heads have at
 * most 256 elements. */
template <class T> static head_shape shape_of(const dt_heads *h, bool pow2, bool fits)
{
    const int half = (h->head_dim + 1) / 2, n = (half + vector_elems<T> - 1) / vector_elems<T>;
    int lanes = n;
    for (int p = 1; pow2 && p < 2 * n; p *= 2) lanes = p;
    return {h->head_dim, half, lanes, fits && h->head_dim % 2 == 0 && vectors_fit((size_t)half * sizeof(T), nullptr)};
}

/* Are all arrays aligned for vectors? q and kv: their sources. */
template <class T>
static bool vectors_in(const dt_heads *h, const T *q, const T *kv, const T *to_q, const T *to_k, const T *to_v)
{
    return vectors_fit((size_t)(h->x_ld | h->q_ld | h->kv_ld) * sizeof(T), q, kv, to_q, to_k) &&
           vectors_fit(0, to_v, h->q_norm, h->k_norm, h->cos_sin);
}

/* The table of q. */
static const float *q_table(const dt_heads *h) { return h->q_cos_sin ? h->q_cos_sin : h->cos_sin; }

/* Does only turn_heads compute this rotation? */
static bool turns_apart(const dt_heads *h)
{
    return h->cos_sin && (h->neighbours || dt_heads_rotary_dim(h) < h->head_dim);
}

template <class T> static void describe(const dt_heads *h, forward_heads<T> *f)
{
    f->n_heads = h->n_heads, f->n_kv_heads = h->n_kv_heads;
    f->per_token = h->n_heads + (f->v ? 2 : 1) * h->n_kv_heads;
    f->n = h->n_tok * f->per_token;
    f->q_ld = h->q_ld, f->kv_ld = h->kv_ld;
    f->pos = h->pos, f->cos_sin = h->cos_sin, f->q_cos_sin = q_table(h), f->rotary = dt_heads_rotary_dim(h);
    f->eps = h->eps;
}

template <class T, bool neighbours>
static dt_err launch_turn(dt_stream *s, const dt_heads *h, forward_heads<T> f, bool in_place)
{
    typedef turn_heads<T, neighbours> op;
    describe(h, &f);
    f.shape = shape_of<T>(h, false, false);
    const int half = f.rotary / 2, first = neighbours ? (half + 1) / 2 * 2 : half,
              rest = (h->head_dim - f.rotary + 1) / 2, turning = (int)ceil_div(first, op::V),
              lanes = turning + (in_place ? 0 : (int)ceil_div(rest, op::V));
    const bool fits = vectors_in(h, f.q_from, f.kv_from, f.q, f.k, f.v) &&
                      vectors_fit((size_t)(first | f.rotary | rest | h->head_dim) * sizeof(T), nullptr);
    return launch_each(s, op{f, lanes, turning, first, rest, in_place, fits}, f.n * lanes);
}
/* f: destinations, and unless in_place, sources. */
template <class T> static dt_err turn(dt_stream *s, const dt_heads *h, const forward_heads<T> &f, bool in_place)
{
    return h->neighbours ? launch_turn<T, true>(s, h, f, in_place) : launch_turn<T, false>(s, h, f, in_place);
}

template <class T> static dt_err launch_forward(dt_stream *s, const dt_heads *h, forward_heads<T> f)
{
    const bool norm = f.q_norm != NULL;
    describe(h, &f);
    f.shape = shape_of<T>(h, norm, vectors_in(h, f.q_from, f.kv_from, f.q, f.k, f.v));
    const int groups = THREADS / f.shape.lanes, threads = groups * f.shape.lanes;
    if (f.n == 0) return DT_OK;
    if (norm)
        launch(s, (unsigned)ceil_div(f.n, groups * heads_at_once<true>), threads, 0,
               h->plus_one ? heads_forward_kernel<T, true, true> : heads_forward_kernel<T, true, false>, f);
    else
        launch(s, (unsigned)ceil_div(f.n, groups * heads_at_once<false>), threads, 0,
               heads_forward_kernel<T, false, false>, f);
    CUDA_LAUNCHED();
    return DT_OK;
}

static int64_t q_width(const dt_heads *h) { return h->n_heads * (int64_t)h->head_dim; }

static dt_heads unrotated(const dt_heads *h)
{
    dt_heads plain = *h;
    plain.cos_sin = plain.q_cos_sin = NULL;
    return plain;
}

template <class T> static dt_err forward(dt_stream *s, const dt_heads *h, forward_heads<T> f)
{
    if (!turns_apart(h)) return launch_forward(s, h, f);
    if (!h->q_norm) return turn(s, h, f, false);
    const dt_heads plain = unrotated(h);
    DT_TRY(launch_forward(s, &plain, f));
    f.v = NULL;
    return turn(s, h, f, true);
}

dt_err cuda_heads_forward(dt_device *dev, const dt_heads *h, const void *x, void *q, void *k, void *v, float *rstd_q,
                          float *rstd_k, dt_stream *stream)
{
    DT_TRY(dt_heads_check(h, v != NULL));
    dt_stream *s = cuda_stream(dev, stream, "heads_forward");
    CUDA_BY_DTYPE(h->dt, T, s->last, {
        forward_heads<T> f = {};
        f.q_from = (const T *)x, f.kv_from = f.q_from + q_width(h);
        f.q_from_ld = f.kv_from_ld = h->x_ld;
        f.q_norm = (const T *)h->q_norm, f.k_norm = (const T *)h->k_norm;
        f.q = (T *)q, f.k = (T *)k, f.v = (T *)v, f.kv_row = h->kv_row;
        f.rstd_q = rstd_q, f.rstd_k = rstd_k, f.sign = 1.0f;
        return forward(s, h, f);
    });
    return DT_OK;
}

/* Backward without norms: apply the inverse rotation in place. */
template <class T> static dt_err turn_back(dt_stream *s, const dt_heads *h, T *dq, T *dk)
{
    forward_heads<T> f = {};
    if (!h->cos_sin) return DT_OK;
    f.q_from = f.q = dq, f.q_from_ld = h->q_ld;
    f.kv_from = f.k = dk, f.kv_from_ld = h->kv_ld;
    f.sign = -1.0f;
    return turns_apart(h) ? turn(s, h, f, true) : launch_forward(s, h, f);
}

template <class T>
static dt_err backward(dt_device *dev, dt_stream *s, const dt_heads *h, const T *x, const float *rstd_q,
                       const float *rstd_k, T *dq, T *dk, void *dq_norm, void *dk_norm, dt_dtype gt, bool accumulate,
                       float *scratch)
{
    const bool apart = turns_apart(h);
    const dt_heads plain = unrotated(h);
    if (!h->q_norm || apart) DT_TRY(turn_back<T>(s, h, dq, dk));
    if (!h->q_norm) return DT_OK;
    if (apart) h = &plain;
    const T *x_k = x + q_width(h);
    const backward_heads<T> f = {shape_of<T>(h, true, vectors_in<T>(h, x, x_k, dq, dk, NULL)),
                                 h->n_tok,
                                 {h->n_heads, h->n_kv_heads},
                                 h->x_ld,
                                 {h->q_ld, h->kv_ld},
                                 {x, x_k},
                                 {(const T *)h->q_norm, (const T *)h->k_norm},
                                 {rstd_q, rstd_k},
                                 {dq, dk},
                                 h->pos,
                                 {q_table(h), h->cos_sin}};
    const int64_t turns = ceil_div(h->n_tok * h->n_heads, THREADS / f.shape.lanes),
                  n_parts = dt_min_i64(turns, cuda_norm_parts(dev));
    if (n_parts > 0)
        launch(s, (unsigned)n_parts, THREADS, 0,
               h->plus_one ? heads_backward_kernel<T, true> : heads_backward_kernel<T, false>, f, scratch);
    CUDA_LAUNCHED();
    return cuda_add_parts(s, scratch, n_parts, h->head_dim, dq_norm, dk_norm, gt, accumulate);
}

dt_err cuda_heads_backward(dt_device *dev, const dt_heads *h, const void *x, const float *rstd_q, const float *rstd_k,
                           void *dq, void *dk, void *dq_norm, void *dk_norm, dt_dtype gt, bool accumulate,
                           float *scratch, dt_stream *stream)
{
    DT_TRY(dt_heads_check(h, false));
    dt_stream *s = cuda_stream(dev, stream, "heads_backward");
    CUDA_BY_DTYPE(h->dt, T, s->last, {
        return backward<T>(dev, s, h, (const T *)x, rstd_q, rstd_k, (T *)dq, (T *)dk, dq_norm, dk_norm, gt, accumulate,
                           scratch);
    });
    return DT_OK;
}
