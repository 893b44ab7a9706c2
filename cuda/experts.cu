/* experts.cu - routing of tokens to experts, the order of their rows, and their weighted sums (dt_routing).
 *
 * The host never learns how many rows an expert has: sizes depend on the number of assignments only. */
#include "each.cuh"

/* ---- routing ----------------------------------------------------------------------------------------------------- */

enum { ROUTE_WARPS = 4 };

/* p of an expert, from route's prob. */
__device__ inline float score(const dt_routing &r, const float *prob, int e)
{
    return r.sigmoid ? 1 / (1 + expf(-prob[e])) : prob[e];
}

/* The values by which experts are chosen. NaN sorts last. used: the groups whose experts may be. */
struct choice {
    const dt_routing &r;
    const float *prob;
    int size; /* of a group */
    uint64_t used;
    __device__ float operator()(int e) const
    {
        const float c = score(r, prob, e) + (r.correction ? r.correction[e] : 0);
        return c != c || !(used >> e / size & 1) ? -INFINITY : c;
    }
};

/* The first of the largest values after (value, last) in descending order, ties by number, among first, first + step
 * .. below n; n: none. */
template <class C>
__device__ inline int largest_of(const C &c, int first, int n, int step, float value, int last, float *best)
{
    int at = n;
    *best = -INFINITY;
    for (int e = first; e < n; e += step) {
        const float x = c(e);
        const bool after = last < 0 || x < value || (x == value && e > last);
        if (after && (at == n || x > *best)) *best = x, at = e;
    }
    return at;
}

/* The same of all experts, in every lane. */
__device__ inline int next_largest(const choice &c, int n, float value, int last)
{
    float best;
    const int at = largest_of(c, threadIdx.x % WARP, n, WARP, value, last, &best);
    const float most = warp_reduce(best, larger());
    return warp_reduce(best == most ? at : n, [](int a, int b) { return a < b ? a : b; });
}

/* The k_groups best groups, as bits, in every lane. value: shared [DT_MAX_GROUPS] of the warp. */
__device__ inline uint64_t best_groups(const dt_routing &r, const choice &c, float *value)
{
    uint64_t used = 0;
    for (int g = threadIdx.x % WARP; g < r.n_groups; g += WARP) {
        float sum = 0, before = 0;
        for (int j = 0, last = -1; j < r.group_best; j++) {
            last = largest_of(c, g * c.size, (g + 1) * c.size, 1, before, last, &before);
            sum += before;
        }
        value[g] = sum;
    }
    __syncwarp();
    for (int g = 0; g < r.n_groups; g++) {
        int n_before = 0;
        for (int o = 0; o < r.n_groups; o++) n_before += value[o] > value[g] || (value[o] == value[g] && o < g);
        if (n_before < r.k_groups) used |= (uint64_t)1 << g;
    }
    return used;
}

/* Against a sum of 0 of sigmoids; lost in any other sum. */
__device__ inline float first_of_sum(const dt_routing &r) { return r.sigmoid ? 1e-20f : 0; }
__device__ inline float scale_of(const dt_routing &r) { return r.scale != 0 ? r.scale : 1; }

/* p of a row in place, unless it has sigmoids; lse: see route. The sum is NaN if there was a NaN. A lane reads its own
 * elements only. */
__device__ inline float scores(const dt_routing &r, float *p, float *lse)
{
    const int lane = threadIdx.x % WARP, n = r.n_experts;
    float most = -INFINITY, sum = 0, of_sigmoids = 0;
    for (int e = lane; e < n; e += WARP) most = larger()(most, p[e]);
    most = warp_reduce(most, larger());
    for (int e = lane; e < n; e += WARP) {
        const float x = expf(p[e] - most);
        sum += x;
        of_sigmoids += score(r, p, e);
        if (!r.sigmoid) p[e] = x;
    }
    sum = warp_sum(sum);
    if (lse && lane == 0) {
        const float l = most + logf(sum);
        lse[0] = l, lse[1] = l * l;
    }
    if (r.sigmoid) return warp_sum(of_sigmoids);
    for (int e = lane; e < n; e += WARP) p[e] /= sum;
    return sum;
}

/* A warp per token: scores of its row of prob in place, then its k experts and their weights. */
__global__ void route_kernel(dt_routing r, float *prob, int32_t *expert, float *weight, float *lse)
{
    __shared__ float values[ROUTE_WARPS][DT_MAX_GROUPS];
    const int64_t t = blockIdx.x * (int64_t)ROUTE_WARPS + threadIdx.x / WARP;
    const int lane = threadIdx.x % WARP, n = r.n_experts;
    if (t >= r.n_tok) return;
    float *p = prob + t * n;
    float chosen = first_of_sum(r), value = 0;
    const float sum = scores(r, p, lse ? lse + 2 * t : nullptr);
    choice c = {r, p, r.n_groups > 1 ? n / r.n_groups : n, ~(uint64_t)0};
    __syncwarp();
    if (r.n_groups > 1) c.used = best_groups(r, c, values[threadIdx.x / WARP]);
    for (int j = 0, last = -1; j < r.k; j++) {
        last = next_largest(c, n, value, last);
        value = c(last);
        const float w = score(r, p, last);
        chosen += w;
        if (lane == 0) expert[t * r.k + j] = last, weight[t * r.k + j] = w;
    }
    if (lane > 0) return;
    for (int j = 0; j < r.k; j++) {
        const float w = weight[t * r.k + j];
        weight[t * r.k + j] = sum != sum ? NAN : scale_of(r) * (r.normalise ? w / chosen : w);
    }
}

dt_err cuda_route(dt_device *dev, const dt_routing *r, float *prob, int32_t *expert, float *weight, float *lse,
                  dt_stream *stream)
{
    dt_stream *s = cuda_stream(dev, stream, "route");
    DT_TRY(dt_routing_check(r));
    if (r->n_tok == 0) return DT_OK;
    launch(s, (unsigned)ceil_div(r->n_tok, ROUTE_WARPS), ROUTE_WARPS * WARP, 0, route_kernel, *r, prob, expert, weight,
           lse);
    CUDA_LAUNCHED();
    return DT_OK;
}

/* A warp per token. With w_j = s p_j / S: dp_j = s (dw_j - sum_i dw_i p_i / S) / S; then dz_e = p_e (dp_e - sum_f p_f
 * dp_f), or of sigmoids p_e (1 - p_e) dp_e. dp is dprob, plus dp_j for the k experts, which each lane looks up among
 * them. dl: the gradient of l. */
template <class T>
__global__ void route_backward_kernel(dt_routing r, const float *prob, const int32_t *expert, const float *dweight,
                                      const float *dprob, const float *lse, const float *dsquare, T *dlogits)
{
    const int64_t t = blockIdx.x * (int64_t)ROUTE_WARPS + threadIdx.x / WARP;
    const int lane = threadIdx.x % WARP, n = r.n_experts;
    if (t >= r.n_tok) return;
    const float *row = prob + t * n, *dw = dweight + t * r.k;
    const int32_t *chosen = expert + t * r.k;
    const float l = dsquare ? lse[2 * t] : 0, dl = dsquare ? 2 * l * *dsquare : 0;
    float sum = first_of_sum(r), mean = 0, all = 0;
    for (int j = 0; j < r.k; j++) {
        const float p = score(r, row, chosen[j]);
        sum += p, mean += p * dw[j];
    }
    const float scale = scale_of(r) / (r.normalise ? sum : 1), shift = r.normalise ? mean / sum : 0;
    const auto gradient = [&](int e) {
        float d = dprob ? dprob[e] : 0;
        for (int j = 0; j < r.k; j++)
            if (chosen[j] == e) d += (dw[j] - shift) * scale;
        return d;
    };
    for (int e = lane; e < n && !r.sigmoid; e += WARP) all += row[e] * gradient(e);
    all = warp_sum(all);
    for (int e = lane; e < n; e += WARP) {
        const float p = score(r, row, e), dz = p * (r.sigmoid ? (1 - p) * gradient(e) : gradient(e) - all);
        dlogits[t * n + e] = from_float<T>(dl != 0 ? dz + dl * (r.sigmoid ? expf(row[e] - l) : p) : dz);
    }
}

dt_err cuda_route_backward(dt_device *dev, const dt_routing *r, const float *prob, const int32_t *expert,
                           const float *dweight, const float *dprob, const float *lse, const float *dsquare,
                           void *dlogits, dt_dtype dt, dt_stream *stream)
{
    dt_stream *s = cuda_stream(dev, stream, "route_backward");
    DT_TRY(dt_routing_check(r));
    if (r->n_tok == 0) return DT_OK;
    CUDA_BY_DTYPE(dt, T, "route_backward", {
        launch(s, (unsigned)ceil_div(r->n_tok, ROUTE_WARPS), ROUTE_WARPS * WARP, 0, route_backward_kernel<T>, *r, prob,
               expert, dweight, dprob, lse, dsquare, (T *)dlogits);
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

/* ---- biases ------------------------------------------------------------------------------------------------------ */

enum { BIAS_WARPS = 8, BIAS_ROWS = 32 /* of a warp, summed separately before they are added to its total */ };

/* dbias: a block has 32 vectors of columns of one group. Each warp sums every BIAS_WARPS-th row, with a vector per
 * lane. The block then adds the warps' sums in order. */
template <class T, class G>
__global__ void __launch_bounds__(BIAS_WARPS *WARP)
    group_sums_kernel(const T *dy, const int32_t *start, const int32_t *assignment, const float *weight, G *dbias,
                      bool accumulate, int64_t width, bool fits)
{
    constexpr int V = vector_elems<T>, COLUMNS = WARP * V;
    __shared__ float sums[BIAS_WARPS][COLUMNS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, last = start[blockIdx.y + 1];
    const int64_t first_column = blockIdx.x * (int64_t)COLUMNS, column = first_column + lane * V;
    const int count = elems_left(column, width, V);
    const bool whole = fits && count == V;
    float sum[V] = {};
    for (int first = start[blockIdx.y] + warp; first < last; first += BIAS_WARPS * BIAS_ROWS) {
        float part[V] = {};
        for (int i = 0, r = first; i < BIAS_ROWS && r < last; i++, r += BIAS_WARPS) {
            const float w = weight ? weight[assignment[r]] : 1.0f;
            const vec<T, V> x = load_vec<V>(dy + r * width + column, count, whole);
#pragma unroll
            for (int j = 0; j < V; j++) part[j] = fmaf(w, to_float(x.x[j]), part[j]);
        }
#pragma unroll
        for (int j = 0; j < V; j++) sum[j] += part[j];
    }
#pragma unroll
    for (int j = 0; j < V; j++) sums[warp][lane * V + j] = sum[j];
    __syncthreads();
    for (int c = threadIdx.x; c < COLUMNS && first_column + c < width; c += BIAS_WARPS * WARP) {
        G *to = dbias + blockIdx.y * width + first_column + c;
        float total = accumulate ? to_float(*to) : 0.0f;
        for (int w = 0; w < BIAS_WARPS; w++) total += sums[w][c];
        *to = from_float<G>(total);
    }
}

/* The group of row r: the last one that begins at or before it. */
__device__ inline int64_t group_of_row(const int32_t *start, int64_t n_groups, int64_t r)
{
    int64_t low = 0, high = n_groups - 1;
    while (low < high) {
        const int64_t at = (low + high + 1) / 2;
        if (start[at] <= r)
            low = at;
        else
            high = at - 1;
    }
    return low;
}

/* dweight: a warp per row. */
template <class T>
__global__ void bias_weights_kernel(const T *dy, const int32_t *start, const int32_t *assignment, const T *bias,
                                    float *dweight, int64_t n_rows, int64_t n_groups, int64_t width, bool fits)
{
    constexpr int V = vector_elems<T>;
    const int64_t r = blockIdx.x * (int64_t)WEIGH_WARPS + threadIdx.x / WARP;
    if (r >= n_rows) return;
    const T *row = dy + r * width, *own = bias + group_of_row(start, n_groups, r) * width;
    float sum = 0;
    for (int64_t c = threadIdx.x % WARP * V; c < width; c += WARP * V) {
        const int count = elems_left(c, width, V);
        const bool whole = fits && count == V;
        const vec<T, V> a = load_vec<V>(row + c, count, whole), b = load_vec<V>(own + c, count, whole);
#pragma unroll
        for (int e = 0; e < V; e++) sum = fmaf(to_float(a.x[e]), to_float(b.x[e]), sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) dweight[assignment[r]] += sum;
}

dt_err cuda_group_bias_backward(dt_device *dev, const void *dy, const int32_t *start, const int32_t *assignment,
                                const float *weight, const void *bias, float *dweight, void *dbias, dt_dtype gt,
                                bool accumulate, int64_t n_rows, int64_t n_groups, int64_t width, dt_dtype dt,
                                dt_stream *stream)
{
    dt_stream *s = cuda_stream(dev, stream, "group_bias_backward");
    if (n_groups == 0 || width == 0) return DT_OK;
    CUDA_BY_DTYPE(dt, T, "group_bias_backward", {
        const bool fits = vectors_fit((size_t)width * sizeof(T), dy, bias);
        const dim3 grid((unsigned)ceil_div(width, WARP * vector_elems<T>), (unsigned)n_groups);
        if (dbias)
            CUDA_BY_DTYPE(gt, G, "group_bias_backward", {
                launch(s, grid, BIAS_WARPS * WARP, 0, group_sums_kernel<T, G>, (const T *)dy, start, assignment, weight,
                       (G *)dbias, accumulate, width, fits);
            });
        if (weight && n_rows > 0)
            launch(s, (unsigned)ceil_div(n_rows, WEIGH_WARPS), WEIGH_WARPS * WARP, 0, bias_weights_kernel<T>,
                   (const T *)dy, start, assignment, (const T *)bias, dweight, n_rows, n_groups, width, fits);
    });
    CUDA_LAUNCHED();
    return DT_OK;
}
