/* embedding.cu - embedding lookup by token and position, and its gradient. */
#include "each.cuh"

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* out[t,:] = wte[token[t],:] + wpe[pos[t],:]. Arrays: out [n_tok, width]; wpe may be NULL. Threads: each.cuh. */
template <class T> struct add_rows {
    static constexpr int V = vector_elems<T>, TURNS = 2;
    const int32_t *token, *pos;
    const T *wte, *wpe;
    T *out;
    int64_t width;
    unsigned per_row; /* vectors */
    bool fits;

    struct item {
        int64_t row, col;
        vec<T, V> word, place;
    };
    __device__ item load(int64_t i) const
    {
        const row_place at = place_of(i, per_row);
        const int64_t col = at.in_row * V;
        const int count = elems_left(col, width, V);
        const bool whole = fits && count == V;
        return {at.row, col, load_vec<V>(wte + token[at.row] * width + col, count, whole),
                load_vec<V>(wpe + pos[at.row] * width + col, count, whole)};
    }
    __device__ void store(const item &t) const
    {
        const int count = elems_left(t.col, width, V);
        vec<T, V> sum;
#pragma unroll
        for (int j = 0; j < V; j++) sum.x[j] = from_float<T>(to_float(t.word.x[j]) + to_float(t.place.x[j]));
        store_vec(out + t.row * width + t.col, sum, count, fits && count == V);
    }
};

dt_err cuda_embedding_forward(dt_device *dev, const int32_t *token, const int32_t *pos, const void *wte,
                              const void *wpe, void *out, int64_t n_tok, int64_t width, dt_dtype dt, dt_stream *stream)
{
    dt_stream *s = cuda_stream(dev, stream, "embedding_forward");
    CUDA_BY_DTYPE(dt, T, "embedding_forward", {
        if (!wpe) return cuda_gather_rows(dev, wte, token, out, n_tok, width, dt, stream);
        const int64_t per_row = ceil_div(width, add_rows<T>::V);
        const bool fits = vectors_fit((size_t)width * sizeof(T), wte, wpe, out);
        const add_rows<T> op = {token, pos, (const T *)wte, (const T *)wpe, (T *)out, width, (unsigned)per_row, fits};
        return launch_each(s, op, n_tok * per_row);
    });
    return DT_OK;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* table_grad[id,:] += sum of dout[t,:] over the tokens t with this id, in ascending t. The sorted tokens (order) are
 * divided into chunks, one per warp. Equal ids are adjacent, so a chunk consists of a few runs. A warp adds runs inside
 * its chunk directly to the table. For other runs it stores partial sums: part[chunk][0] of a run that continues from
 * the previous chunk, part[chunk][1] of a run that begins in this chunk and continues in the next. A second kernel adds
 * the partial sums of a run in order. The work is thus balanced even if one id occurs often, and each element of the
 * table is written once. */
enum { RUN_WARPS = 8, RUN_ROWS = 4, MIN_CHUNK = 32 }; /* warps of a block; rows that a lane loads at once */

struct embedding_runs {
    const int32_t *id, *order;
    int64_t n_tok, chunk;

    __device__ int32_t token(int64_t place) const { return id[order[place]]; }
    /** Does the run at this position begin earlier? Does it continue after this position? */
    __device__ bool from_before(int64_t place) const { return place > 0 && token(place - 1) == token(place); }
    __device__ bool goes_on(int64_t place) const { return place + 1 < n_tok && token(place + 1) == token(place); }
    __device__ int64_t first(int64_t c) const { return c * chunk; }
    __device__ int64_t last(int64_t c) const { return (c + 1) * chunk < n_tok ? (c + 1) * chunk - 1 : n_tok - 1; }
};

/* row[j] = (add ? row[j] : 0) + sum[j] for the first count of V elements, rounded once. */
template <bool add, class G, int V>
__device__ inline void sum_to_row(G *row, const float (&sum)[V], int count, bool fits)
{
#pragma unroll
    for (int first = 0; first < V; first += 4) { /* 4 elements: 8 or 16 bytes */
        const int left = count - first;
        vec<G, 4> g = {};
        if (add) g = load_vec<4>(row + first, left, fits && left >= 4);
#pragma unroll
        for (int j = 0; j < 4; j++) g.x[j] = from_float<G>(add ? to_float(g.x[j]) + sum[first + j] : sum[first + j]);
        store_vec(row + first, g, left, fits && left >= 4);
    }
}

/* First step: a warp processes a chunk and 32 vectors of columns. */
template <class T, class G>
__global__ void __launch_bounds__(RUN_WARPS *WARP, 3)
    embedding_backward_kernel(const T *dout, embedding_runs runs, G *table, int64_t width, unsigned n_stripes,
                              int64_t n_warps, bool fits, float *part)
{
    constexpr int V = vector_elems<T>;
    const int lane = threadIdx.x % WARP;
    const int64_t number = blockIdx.x * (int64_t)RUN_WARPS + threadIdx.x / WARP;
    if (number >= n_warps) return;
    const row_place at = place_of(number, n_stripes); /* chunk and stripe */
    const int64_t c = (at.in_row * WARP + lane) * V, first = runs.first(at.row), last = runs.last(at.row);
    const int count = elems_left(c, width, V) > 0 ? elems_left(c, width, V) : 0;
    const bool whole = fits && count == V;
    bool continued = runs.from_before(first);
    int32_t token = runs.token(first);
    float sum[V] = {};
    auto flush = [&](float *where) { /* to the table, or to a partial sum */
                                     if (where)
                                         sum_to_row<false>(where + c, sum, count, fits);
                                     else
                                         sum_to_row<true>(table + token * width + c, sum, count, fits);
    };
    for (int64_t base = first; base <= last; base += WARP) {
        /* each lane reads one position for the whole warp */
        const int64_t mine = base + lane <= last ? base + lane : last;
        const int32_t my_row = runs.order[mine], my_token = runs.id[my_row];
        const int n = last - base + 1 < WARP ? (int)(last - base + 1) : WARP;
        for (int i = 0; i < n; i += RUN_ROWS) {
            vec<T, V> x[RUN_ROWS];
#pragma unroll
            for (int k = 0; k < RUN_ROWS; k++) {
                const int64_t row = __shfl_sync(0xffffffffu, my_row, (i + k) % WARP);
                const int n_here = i + k < n ? count : 0;
                x[k] = load_vec<V>(dout + row * width + c, n_here, whole && i + k < n);
            }
#pragma unroll
            for (int k = 0; k < RUN_ROWS; k++) {
                const int32_t next = __shfl_sync(0xffffffffu, my_token, (i + k) % WARP);
                if (i + k < n && next != token) {
                    flush(continued ? part + at.row * 2 * width : nullptr);
                    continued = false;
                    token = next;
#pragma unroll
                    for (int j = 0; j < V; j++) sum[j] = 0.0f;
                }
#pragma unroll
                for (int j = 0; j < V; j++) sum[j] += to_float(x[k].x[j]);
            }
        }
    }
    const int which = continued ? 0 : 1;
    flush(continued || runs.goes_on(last) ? part + (at.row * 2 + which) * width : nullptr);
}

/* Second step: block (chunk, stripe of 256 columns) adds the partial sums of the run that begins in this chunk and
 * continues in the next, if there is one. */
template <class G>
__global__ void __launch_bounds__(256)
    embedding_join_kernel(embedding_runs runs, G *table, int64_t width, unsigned n_stripes, const float *part)
{
    const row_place at = place_of(blockIdx.x, n_stripes);
    const int64_t c = at.in_row * blockDim.x + threadIdx.x;
    int64_t chunk = at.row, last = runs.last(chunk);
    const int32_t token = runs.token(last);
    if (!runs.goes_on(last)) return;
    if (runs.token(runs.first(chunk)) == token && runs.from_before(runs.first(chunk))) return; /* began earlier */
    float sum = c < width ? part[(chunk * 2 + 1) * width + c] : 0.0f;
    do {
        chunk++;
        last = runs.last(chunk);
        if (c < width) sum += part[chunk * 2 * width + c];
    } while (runs.token(last) == token && runs.goes_on(last));
    if (c < width) table[token * width + c] = from_float<G>(to_float(table[token * width + c]) + sum);
}

template <class T, class G>
static dt_err backward(dt_stream *s, const T *dout, const int32_t *id, const int32_t *order, G *table, int64_t n_tok,
                       int64_t width)
{
    if (n_tok == 0 || width == 0) return DT_OK;
    embedding_runs runs = {id, order, n_tok, MIN_CHUNK};
    const int64_t room = (int64_t)(DT_GPU_WORKSPACE_NBYTES / sizeof(float)) / (2 * width);
    DT_CHECK(room > 0, DT_ERR_ARG, "internal: embedding_backward: rows of %lld elements are too long",
             (long long)width);
    while (ceil_div(n_tok, runs.chunk) > room) runs.chunk *= 2;
    const int64_t n_chunks = ceil_div(n_tok, runs.chunk), n_stripes = ceil_div(width, WARP * vector_elems<T>),
                  n_warps = n_chunks * n_stripes, n_join = ceil_div(width, 256);
    const bool fits = vectors_fit((size_t)width * sizeof(T), dout) && vectors_fit((size_t)width * sizeof(G), table);
    float *part = (float *)s->workspace;
    launch(s, (unsigned)ceil_div(n_warps, RUN_WARPS), RUN_WARPS * WARP, 0, embedding_backward_kernel<T, G>, dout, runs,
           table, width, (unsigned)n_stripes, n_warps, fits, part);
    if (n_chunks > 1)
        launch(s, (unsigned)(n_chunks * n_join), 256, 0, embedding_join_kernel<G>, runs, table, width, (unsigned)n_join,
               (const float *)part);
    CUDA_LAUNCHED();
    return DT_OK;
}

dt_err cuda_embedding_backward(dt_device *dev, const void *dout, const int32_t *id, const int32_t *order,
                               void *table_grad, int64_t n_tok, int64_t width, dt_dtype dt, dt_dtype gt,
                               dt_stream *stream)
{
    dt_stream *s = cuda_stream(dev, stream, "embedding_backward");
    CUDA_BY_DTYPE(dt, T, "embedding_backward", {
        CUDA_BY_DTYPE(gt, G, "embedding_backward",
                      { return backward(s, (const T *)dout, id, order, (G *)table_grad, n_tok, width); });
    });
    return DT_OK;
}
