/* experts.cu - routing of tokens to experts, the order of their rows, and their weighted sums (dt_routing).
 *
 * The host never learns how many rows an expert has: sizes depend on the number of assignments only. */
#include "each.cuh"

/* ---- routing ----------------------------------------------------------------------------------------------------- */

enum { ROUTE_WARPS = 4 };

/* NaN sorts last. */
__device__ inline float order_of(float p) { return p != p ? -1.0f : p; }

/* The largest p after (value, last) in descending order, ties by number; -1: none. The same in every lane. */
__device__ inline int next_largest(const float *p, int n, float value, int last)
{
    float best = -2.0f;
    int at = n;
    for (int e = threadIdx.x % WARP; e < n; e += WARP) {
        const float x = order_of(p[e]);
        const bool after = last < 0 || x < value || (x == value && e > last);
        if (after && x > best) best = x, at = e;
    }
    const float most = warp_reduce(best, larger());
    return warp_reduce(best == most ? at : n, [](int a, int b) { return a < b ? a : b; });
}

/* A warp per token: softmax of its row of prob in place, then its k experts and their weights. A lane reads its own
 * elements only. */
__global__ void route_kernel(dt_routing r, float *prob, int32_t *expert, float *weight)
{
    const int64_t t = blockIdx.x * (int64_t)ROUTE_WARPS + threadIdx.x / WARP;
    const int lane = threadIdx.x % WARP, n = r.n_experts;
    if (t >= r.n_tok) return;
    float *p = prob + t * n;
    float most = -INFINITY, sum = 0, chosen = 0, value = 0;
    for (int e = lane; e < n; e += WARP) most = larger()(most, p[e]);
    most = warp_reduce(most, larger());
    for (int e = lane; e < n; e += WARP) sum += p[e] = expf(p[e] - most);
    sum = warp_sum(sum);
    for (int e = lane; e < n; e += WARP) p[e] /= sum;
    __syncwarp();
    for (int j = 0, last = -1; j < r.k; j++) {
        last = next_largest(p, n, value, last);
        const float w = p[last];
        value = order_of(w);
        chosen += w;
        if (lane == 0) expert[t * r.k + j] = last, weight[t * r.k + j] = w;
    }
    if (!r.normalise || lane > 0) return;
    for (int j = 0; j < r.k; j++) weight[t * r.k + j] /= chosen;
}

dt_err cuda_route(dt_device *dev, const dt_routing *r, float *prob, int32_t *expert, float *weight, dt_stream *stream)
{
    dt_stream *s = cuda_stream(dev, stream, "route");
    DT_TRY(dt_routing_check(r));
    if (r->n_tok == 0) return DT_OK;
    launch(s, (unsigned)ceil_div(r->n_tok, ROUTE_WARPS), ROUTE_WARPS * WARP, 0, route_kernel, *r, prob, expert, weight);
    CUDA_LAUNCHED();
    return DT_OK;
}

/* A warp per token. With w_j = p_j / S: dp_j = (dw_j - sum_i w_i dw_i) / S; then dz_e = p_e (dp_e - sum_f p_f dp_f). dp
 * is dprob, plus dp_j for the k experts, which each lane looks up among them. */
template <class T>
__global__ void route_backward_kernel(dt_routing r, const float *prob, const int32_t *expert, const float *dweight,
                                      const float *dprob, T *dlogits)
{
    const int64_t t = blockIdx.x * (int64_t)ROUTE_WARPS + threadIdx.x / WARP;
    const int lane = threadIdx.x % WARP, n = r.n_experts;
    if (t >= r.n_tok) return;
    const float *p = prob + t * n, *dw = dweight + t * r.k;
    const int32_t *chosen = expert + t * r.k;
    float sum = 0, mean = 0, all = 0;
    for (int j = 0; j < r.k; j++) sum += p[chosen[j]], mean += p[chosen[j]] * dw[j];
    const float scale = r.normalise ? 1 / sum : 1, shift = r.normalise ? mean / sum : 0;
    const auto gradient = [&](int e) {
        float d = dprob ? dprob[e] : 0;
        for (int j = 0; j < r.k; j++)
            if (chosen[j] == e) d += (dw[j] - shift) * scale;
        return d;
    };
    for (int e = lane; e < n; e += WARP) all += p[e] * gradient(e);
    all = warp_sum(all);
    for (int e = lane; e < n; e += WARP) dlogits[t * n + e] = from_float<T>(p[e] * (gradient(e) - all));
}

dt_err cuda_route_backward(dt_device *dev, const dt_routing *r, const float *prob, const int32_t *expert,
                           const float *dweight, const float *dprob, void *dlogits, dt_dtype dt, dt_stream *stream)
{
    dt_stream *s = cuda_stream(dev, stream, "route_backward");
    DT_TRY(dt_routing_check(r));
    if (r->n_tok == 0) return DT_OK;
    CUDA_BY_DTYPE(dt, T, "route_backward", {
        launch(s, (unsigned)ceil_div(r->n_tok, ROUTE_WARPS), ROUTE_WARPS * WARP, 0, route_backward_kernel<T>, *r, prob,
               expert, dweight, dprob, (T *)dlogits);
    });
    CUDA_LAUNCHED();
    return DT_OK;
}

/* ---- order of rows ----------------------------------------------------------------------------------------------- */

enum { ORDER_THREADS = 256, ORDER_WARPS = ORDER_THREADS / WARP };

/* A block per expert reads all assignments twice: first it counts those of lower experts, then it lists its own in
 * order. Without atomic operations the order is that of the assignments. */
__global__ void order_experts_kernel(dt_routing r, int64_t n, const int32_t *expert, int32_t *start, int32_t *row,
                                     int32_t *assignment, int32_t *token, float *load)
{
    __shared__ int in_warp[ORDER_WARPS];
    const int own = (int)blockIdx.x, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int lower = 0;
    for (int64_t i = threadIdx.x; i < n; i += ORDER_THREADS) lower += expert[i] < own;
    const int begin = block_sum(lower);
    int at = begin;
    if (threadIdx.x == 0) start[own] = at;
    if (threadIdx.x == 0 && own == r.n_experts - 1) start[r.n_experts] = (int32_t)n;
    for (int64_t first = 0; first < n; first += ORDER_THREADS) {
        const int64_t i = first + threadIdx.x;
        const bool mine = i < n && expert[i] == own;
        const uint32_t all = __ballot_sync(0xffffffffu, mine);
        if (lane == 0) in_warp[warp] = __popc(all);
        __syncthreads();
        int before = at + __popc(all & ((1u << lane) - 1));
        for (int w = 0; w < ORDER_WARPS; w++) {
            if (w < warp) before += in_warp[w];
            at += in_warp[w];
        }
        if (mine) row[i] = before, assignment[before] = (int32_t)i, token[before] = (int32_t)(i / r.k);
        __syncthreads(); /* in_warp is overwritten */
    }
    if (load && threadIdx.x == 0) load[own] += (float)(at - begin);
}

dt_err cuda_order_experts(dt_device *dev, const dt_routing *r, const int32_t *expert, int32_t *start, int32_t *row,
                          int32_t *assignment, int32_t *token, float *load, dt_stream *stream)
{
    dt_stream *s = cuda_stream(dev, stream, "order_experts");
    DT_TRY(dt_routing_check(r));
    launch(s, (unsigned)r->n_experts, ORDER_THREADS, 0, order_experts_kernel, *r, r->n_tok * r->k, expert, start, row,
           assignment, token, load);
    CUDA_LAUNCHED();
    return DT_OK;
}

/* ---- weighted sums ----------------------------------------------------------------------------------------------- */

/* out[t,:] = sum over j of weight[t,j] y[row[t,j],:] + addend[t,:]. Threads: each.cuh. */
template <class T> struct combine {
    static constexpr int V = vector_elems<T>, TURNS = 1;
    const T *y;
    const int32_t *row;
    const float *weight;
    const T *addend;
    T *out;
    int64_t k, width;
    unsigned per_row; /* vectors */
    bool fits;

    struct item {
        int64_t t, col;
    };
    __device__ item load(int64_t i) const
    {
        const row_place at = place_of(i, per_row);
        return {at.row, at.in_row * V};
    }
    __device__ void add(float *sum, const T *from, float w, int count, bool whole) const
    {
        const vec<T, V> v = load_vec<V>(from, count, whole);
#pragma unroll
        for (int e = 0; e < V; e++) sum[e] = fmaf(w, to_float(v.x[e]), sum[e]);
    }
    __device__ void store(const item &x) const
    {
        const int count = elems_left(x.col, width, V);
        const bool whole = fits && count == V;
        float sum[V] = {};
        for (int64_t j = x.t * k; j < (x.t + 1) * k; j++)
            add(sum, y + row[j] * width + x.col, weight ? weight[j] : 1.0f, count, whole);
        if (addend) add(sum, addend + x.t * width + x.col, 1.0f, count, whole);
        vec<T, V> v;
#pragma unroll
        for (int e = 0; e < V; e++) v.x[e] = from_float<T>(sum[e]);
        store_vec(out + x.t * width + x.col, v, count, whole);
    }
};

dt_err cuda_combine_rows(dt_device *dev, const void *y, const int32_t *row, const float *weight, const void *addend,
                         void *out, int64_t n_tok, int64_t k, int64_t width, dt_dtype dt, dt_stream *stream)
{
    dt_stream *s = cuda_stream(dev, stream, "combine_rows");
    CUDA_BY_DTYPE(dt, T, "combine_rows", {
        typedef combine<T> op;
        const int64_t per_row = ceil_div(width, op::V);
        const bool fits = vectors_fit((size_t)width * sizeof(T), y, addend, out);
        return launch_each(
            s, op{(const T *)y, row, weight, (const T *)addend, (T *)out, k, width, (unsigned)per_row, fits},
            n_tok * per_row);
    });
    return DT_OK;
}

enum { WEIGH_WARPS = 4 };

/* A warp per row: the sum of x dy, then both times the row's weight. */
template <class T>
__global__ void weigh_rows_kernel(T *x, T *dy, const int32_t *assignment, const float *weight, float *dweight,
                                  int64_t n_rows, int64_t width, bool fits)
{
    constexpr int V = vector_elems<T>;
    const int64_t r = blockIdx.x * (int64_t)WEIGH_WARPS + threadIdx.x / WARP;
    if (r >= n_rows) return;
    const int32_t i = assignment[r];
    const float w = weight[i];
    float sum = 0;
    for (int64_t c = threadIdx.x % WARP * V; c < width; c += WARP * V) {
        const int count = elems_left(c, width, V);
        const bool whole = fits && count == V;
        vec<T, V> a = load_vec<V>(x + r * width + c, count, whole), b = load_vec<V>(dy + r * width + c, count, whole);
#pragma unroll
        for (int e = 0; e < V; e++) {
            const float p = to_float(a.x[e]), q = to_float(b.x[e]);
            sum = fmaf(p, q, sum);
            a.x[e] = from_float<T>(p * w), b.x[e] = from_float<T>(q * w);
        }
        store_vec(x + r * width + c, a, count, whole);
        store_vec(dy + r * width + c, b, count, whole);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) dweight[i] = sum;
}

dt_err cuda_weigh_rows(dt_device *dev, void *x, void *dy, const int32_t *assignment, const float *weight,
                       float *dweight, int64_t n_rows, int64_t width, dt_dtype dt, dt_stream *stream)
{
    dt_stream *s = cuda_stream(dev, stream, "weigh_rows");
    if (n_rows == 0) return DT_OK;
    CUDA_BY_DTYPE(dt, T, "weigh_rows", {
        launch(s, (unsigned)ceil_div(n_rows, WEIGH_WARPS), WEIGH_WARPS * WARP, 0, weigh_rows_kernel<T>, (T *)x, (T *)dy,
               assignment, weight, dweight, n_rows, width, vectors_fit((size_t)width * sizeof(T), x, dy));
    });
    CUDA_LAUNCHED();
    return DT_OK;
}

/* ---- gates of rows ----------------------------------------------------------------------------------------------- */

/* A warp per row: y *= s with s = sigmoid(gate), and if asked for dgate = s (1 - s) times the sum of x y before. x may
 * be y. */
template <class T>
__global__ void row_gate_kernel(const float *gate, const T *x, T *y, T *dgate, int64_t n_rows, int64_t width, bool fits)
{
    constexpr int V = vector_elems<T>;
    const int64_t r = blockIdx.x * (int64_t)WEIGH_WARPS + threadIdx.x / WARP;
    if (r >= n_rows) return;
    const float s = 1.0f / (1.0f + expf(-gate[r]));
    float sum = 0;
    for (int64_t c = threadIdx.x % WARP * V; c < width; c += WARP * V) {
        const int count = elems_left(c, width, V);
        const bool whole = fits && count == V;
        const vec<T, V> a = load_vec<V>(x + r * width + c, count, whole);
        vec<T, V> b = load_vec<V>(y + r * width + c, count, whole);
#pragma unroll
        for (int e = 0; e < V; e++) {
            const float q = to_float(b.x[e]);
            sum = fmaf(to_float(a.x[e]), q, sum);
            b.x[e] = from_float<T>(q * s);
        }
        store_vec(y + r * width + c, b, count, whole);
    }
    sum = warp_sum(sum);
    if (dgate && threadIdx.x % WARP == 0) dgate[r] = from_float<T>(sum * (s * (1.0f - s)));
}

static dt_err row_gate(dt_device *dev, dt_stream *stream, const char *name, const float *gate, const void *x, void *y,
                       void *dgate, int64_t n_rows, int64_t width, dt_dtype dt)
{
    dt_stream *s = cuda_stream(dev, stream, name);
    if (n_rows == 0) return DT_OK;
    CUDA_BY_DTYPE(dt, T, name, {
        launch(s, (unsigned)ceil_div(n_rows, WEIGH_WARPS), WEIGH_WARPS * WARP, 0, row_gate_kernel<T>, gate,
               (const T *)x, (T *)y, (T *)dgate, n_rows, width, vectors_fit((size_t)width * sizeof(T), x, y));
    });
    CUDA_LAUNCHED();
    return DT_OK;
}

dt_err cuda_row_gate_forward(dt_device *dev, const float *gate, void *x, int64_t n_rows, int64_t width, dt_dtype dt,
                             dt_stream *stream)
{
    return row_gate(dev, stream, "row_gate_forward", gate, x, x, NULL, n_rows, width, dt);
}

dt_err cuda_row_gate_backward(dt_device *dev, const float *gate, const void *x, void *dx, void *dgate, int64_t n_rows,
                              int64_t width, dt_dtype dt, dt_stream *stream)
{
    return row_gate(dev, stream, "row_gate_backward", gate, x, dx, dgate, n_rows, width, dt);
}
