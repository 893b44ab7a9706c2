/* embedding.cu - rows of a table by token and position, and their gradient. */
#include "each.cuh"

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* out[t,:] = wte[token[t],:] + wpe[pos[t],:] */
template <class T> struct add_rows {
    static constexpr int V = vector_elems<T>;
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

/* Warps of a block, vectors of a lane, rows that it loads at once, and places of a run that a warp does alone. */
enum { RUN_WARPS = 8, RUN_VECTORS = 2, RUN_ROWS = 2, RUN_ALONE = 32 };

/* One token's gradients: the run of equal ids that begins at place `first` of order. */
template <class T> struct token_run {
    static constexpr int V = vector_elems<T>, K = RUN_VECTORS;
    const T *dout;
    const int32_t *id, *order;
    int64_t n_tok, width, column; /* the lane's first column; its next vectors lie a warp's further on each */
    bool fits;

    __device__ bool has(int64_t place, int32_t token) const { return place < n_tok && id[order[place]] == token; }

    /** sum += the rows of places first, first + step, ... that are in the run of token. */
    __device__ void add(int64_t first, int step, int32_t token, float (&sum)[K][V]) const
    {
        bool more = true;
        for (int64_t at = first; more; at += RUN_ROWS * step) {
            vec<T, V> x[RUN_ROWS][K];
#pragma unroll
            for (int i = 0; i < RUN_ROWS; i++) {
                more = more && has(at + i * step, token);
                const T *row = dout + (more ? order[at + i * step] * width : 0);
#pragma unroll
                for (int k = 0; k < K; k++) {
                    const int64_t c = column + k * WARP * V;
                    const int count = more ? elems_left(c, width, V) : 0;
                    x[i][k] = load_vec<V>(row + c, count, fits && count == V);
                }
            }
#pragma unroll
            for (int i = 0; i < RUN_ROWS; i++)
#pragma unroll
                for (int k = 0; k < K; k++)
#pragma unroll
                    for (int j = 0; j < V; j++) sum[k][j] += to_float(x[i][k].x[j]);
        }
    }
};

/* row[c] += sum[c], rounded once; column is the lane's first. */
template <class G, int K, int V>
__device__ inline void add_to_row(G *row, const float (&sum)[K][V], int64_t column, int64_t width, bool fits)
{
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int64_t c = column + k * WARP * V;
#pragma unroll
        for (int first = 0; first < V; first += 4) { /* 4 elements: 8 or 16 bytes */
            const int count = elems_left(c + first, width, 4);
            vec<G, 4> g = load_vec<4>(row + c + first, count, fits && count == 4);
#pragma unroll
            for (int j = 0; j < 4; j++) g.x[j] = from_float<G>(to_float(g.x[j]) + sum[k][first + j]);
            store_vec(row + c + first, g, count, fits && count == 4);
        }
    }
}

/* A block takes 8 places of order, one for each warp, and a stripe of columns. A warp whose place begins a run of equal
 * ids adds up the run's rows, in order. A long run is left to the whole block: warp w sums its places w, w + 8, ...,
 * and the first warp adds the 8 sums. So each element of the table belongs to one thread. */
template <class T, class G>
__global__ void __launch_bounds__(RUN_WARPS *WARP, 3)
    embedding_backward_kernel(const T *dout, const int32_t *id, const int32_t *order, G *table, int64_t n_tok,
                              int64_t width, unsigned n_stripes, bool fits)
{
    constexpr int V = vector_elems<T>, K = RUN_VECTORS, COLUMNS = WARP * V * K;
    __shared__ float sums[RUN_WARPS][COLUMNS];
    __shared__ int32_t long_run[RUN_WARPS]; /* its token, or -1 */
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const row_place block = place_of(blockIdx.x, n_stripes);
    const int64_t first = block.row * RUN_WARPS, column = block.in_row * COLUMNS + lane * V;
    const token_run<T> run = {dout, id, order, n_tok, width, column, fits};

    const int64_t place = first + warp;
    const int32_t token = place < n_tok ? id[order[place]] : -1;
    const bool begins = place < n_tok && (place == 0 || id[order[place - 1]] != token);
    const bool alone = begins && !run.has(place + RUN_ALONE, token);
    if (lane == 0) long_run[warp] = begins && !alone ? token : -1;
    if (alone) {
        float sum[K][V] = {};
        run.add(place, 1, token, sum);
        add_to_row(table + token * width, sum, column, width, fits);
    }
    __syncthreads();
    for (int w = 0; w < RUN_WARPS; w++) {
        if (long_run[w] < 0) continue; /* the same for all threads */
        float sum[K][V] = {};
        run.add(first + w + warp, RUN_WARPS, long_run[w], sum);
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int j = 0; j < V; j++) sums[warp][(k * V + j) * WARP + lane] = sum[k][j];
        __syncthreads();
        if (warp == 0) {
            for (int other = 1; other < RUN_WARPS; other++)
#pragma unroll
                for (int k = 0; k < K; k++)
#pragma unroll
                    for (int j = 0; j < V; j++) sum[k][j] += sums[other][(k * V + j) * WARP + lane];
            add_to_row(table + long_run[w] * width, sum, column, width, fits);
        }
        __syncthreads(); /* sums may be used again */
    }
}

template <class T, class G>
static dt_err backward(dt_stream *s, const T *dout, const int32_t *id, const int32_t *order, G *table, int64_t n_tok,
                       int64_t width)
{
    const int64_t n_stripes = ceil_div(width, WARP * vector_elems<T> * RUN_VECTORS);
    const int64_t n_blocks = ceil_div(n_tok, RUN_WARPS) * n_stripes;
    const bool fits = vectors_fit((size_t)width * sizeof(T), dout) && vectors_fit((size_t)width * sizeof(G), table);
    if (n_blocks == 0) return DT_OK;
    launch(s, (unsigned)n_blocks, RUN_WARPS * WARP, 0, embedding_backward_kernel<T, G>, dout, id, order, table, n_tok,
           width, (unsigned)n_stripes, fits);
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
