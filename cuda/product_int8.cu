/* product_int8.cu - products of a 16-bit A with a B of int8 and scales, on tensor cores.
 *
 * What product_mma.cu does, but for the way of B: a thread loads numbers of the step that is furthest ahead into
 * registers, the block multiplies the step at hand, and then the thread multiplies its numbers by their scales, rounds
 * them and puts them into the ring. So B is read as it is stored, and an element of C is the same chain of sums as with
 * a matrix of the rounded numbers. */
#include "each.cuh"
#include "product_mma.cuh"

/* B with the outer index o (columns of op(B)), stored [o, k] where K_IN_ROWS, else [k, o]: its tiles for the BO places
 * of o from o0 on, one after the other along k. A thread's chunks lie in one column of chunks. */
template <class T, int BO, int BK, bool K_IN_ROWS, int THREADS> struct int8_operand {
    static constexpr int ROWS = K_IN_ROWS ? BO : BK, COLS = K_IN_ROWS ? BK : BO, CHUNKS = COLS / CHUNK,
                         STEP = THREADS / CHUNKS /* rows between a thread's chunks */, TURNS = ROWS / STEP;
    static_assert(THREADS % CHUNKS == 0 && ROWS % STEP == 0 && STEP % 8 == 0, "threads fill a tile in equal turns");
    const int8_t *next;
    const float *scale;
    int64_t ld, k_left;
    int o_left;
    bool scale_rows, fits; /* fits: chunks are whole words of 8 bytes */
    vec<int8_t, CHUNK> held[TURNS];
    float held_scale[TURNS];

    __device__ int8_operand(const product &p, int64_t o0, const terms &k)
        : next(static_cast<const int8_t *>(p.b) + (K_IN_ROWS ? o0 * p.ldb + k.first : k.first * p.ldb + o0)),
          scale(p.b_scale + (p.b_scale_rows ? K_IN_ROWS ? o0 : k.first : 0)), ld(p.ldb), k_left(k.n),
          o_left(p.n - o0 < BO ? (int)(p.n - o0) : BO), scale_rows(p.b_scale_rows),
          fits((((size_t)p.b | (size_t)p.ldb) & (CHUNK - 1)) == 0)
    {
    }
    /* The thread's part of the next tile, zeros beyond the matrix. */
    __device__ void fetch()
    {
        const int depth = k_left < BK ? (int)k_left : BK, rows = K_IN_ROWS ? o_left : depth,
                  cols = K_IN_ROWS ? depth : o_left;
        const int first = threadIdx.x / CHUNKS, col = threadIdx.x % CHUNKS * CHUNK;
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const int row = first + turn * STEP, count = row < rows ? elems_left(col, cols, CHUNK) : 0;
            const int8_t *from = next + row * ld + col;
            held_scale[turn] = count > 0 ? scale[scale_rows ? row : 0] : 0.0f;
            if (fits && count == CHUNK) {
                held[turn] = *reinterpret_cast<const vec<int8_t, CHUNK> *>(from);
            } else {
#pragma unroll
                for (int e = 0; e < CHUNK; e++) held[turn].x[e] = e < count ? from[e] : (int8_t)0;
            }
        }
        next += K_IN_ROWS ? BK : BK * ld;
        scale += !K_IN_ROWS && scale_rows ? BK : 0;
        k_left -= BK;
    }
    /* What was fetched, as numbers of T. */
    __device__ void put(T *tile) const
    {
        const int first = threadIdx.x / CHUNKS, q = threadIdx.x % CHUNKS;
        T *to = tile + chunk_place<CHUNKS>(first, q) * CHUNK;
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++, to += STEP * COLS) {
            vec16<T> v;
#pragma unroll
            for (int e = 0; e < CHUNK; e++) v.x[e] = from_float<T>((float)held[turn].x[e] * held_scale[turn]);
            *reinterpret_cast<vec16<T> *>(to) = v;
        }
    }
};

/* C = end of (A op(B) + D + bias), one tile of C for each block; TB: B is stored [n, k]; VECTORS: rows of A begin at
 * multiples of 16 bytes. */
template <class T, class S, bool TB, bool VECTORS, bool PIECES>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) product_int8_kernel(product p)
{
    DYNAMIC_SHARED(T, shared);
    constexpr int A_ELEMS = S::BM * S::BK, B_ELEMS = S::BN * S::BK, STAGE = A_ELEMS + B_ELEMS;
    const tile_place tile = place_of_tile(blockIdx.x, (p.m + S::BM - 1) / S::BM, (p.n + S::BN - 1) / S::BN);
    const terms mine(p);
    const int64_t row0 = tile.row * S::BM, col0 = tile.col * S::BN, n_steps = (mine.n + S::BK - 1) / S::BK;
    operand<T, S::BM, S::BK, true> a(p.a, p.lda, row0, p.m, mine);
    int8_operand<T, S::BN, S::BK, TB, S::THREADS> b(p, col0, mine);
    int filled = 0, read = 0; /* places in the ring */
    const auto load_a = [&]() {
        if (a.k_left > 0) a.template load<S::THREADS, VECTORS>(shared + filled * STAGE);
        copy_async_commit(); /* empty ones at the end, so that the wait counts right */
    };
    const auto put_b = [&](bool fetched) {
        if (fetched) b.put(shared + filled * STAGE + A_ELEMS);
        filled = filled + 1 < S::STAGES ? filled + 1 : 0;
    };
    tile_sums<S, PIECES> sum(p);
    for (int stage = 0; stage < S::STAGES - 1; stage++) {
        const bool more = b.k_left > 0;
        if (more) b.fetch();
        load_a();
        put_b(more);
    }
    for (int64_t step = 0; step < n_steps; step++) {
        const bool more = b.k_left > 0;
        copy_async_wait<S::STAGES - 2>();
        __syncthreads(); /* the step's tiles are there, and those of the step before are no longer read */
        if (more) b.fetch();
        load_a();
        multiply_tiles<T, S, false, TB>(sum.chain, shared + read * STAGE, shared + read * STAGE + A_ELEMS);
        sum.end_step(p, step + 1 == n_steps);
        put_b(more);
        read = read + 1 < S::STAGES ? read + 1 : 0;
    }
    __syncthreads(); /* the ring becomes the tile of C */
    finish_tile<T, S, PIECES>(p, reinterpret_cast<float *>(shared), sum, row0, col0);
}

/* ---- the choice of a kernel -------------------------------------------------------------------------------------- */

template <class T, class S, bool VECTORS, bool PIECES>
static dt_err run(dt_device *dev, const product &p, bool trans_b, dt_stream *s)
{
    static bool allowed;
    if (!allowed) {
        CUDA_ALLOW_SHARED((product_int8_kernel<T, S, true, VECTORS, PIECES>), S::shared_nbytes);
        CUDA_ALLOW_SHARED((product_int8_kernel<T, S, false, VECTORS, PIECES>), S::shared_nbytes);
    }
    allowed = true;
    return launch_tiles<T, S, PIECES>(dev, p, s,
                                      trans_b ? product_int8_kernel<T, S, true, VECTORS, PIECES>
                                              : product_int8_kernel<T, S, false, VECTORS, PIECES>);
}

/* As product_mma.cu chooses. */
template <class T> static dt_err run_tiles(dt_device *dev, const product &p, bool trans_b, dt_stream *s)
{
    const int64_t n_sm = cuda_of(dev)->properties.multiProcessorCount;
    const bool vectors = vectors_fit((size_t)p.lda * sizeof(T), p.a);
    if (p.piece > 0) {
        if (!vectors) return run<T, medium, false, true>(dev, p, trans_b, s);
        if (p.m <= 16) return run<T, few_rows<16, 4>, true, true>(dev, p, trans_b, s);
        if (p.m <= 32) return run<T, few_rows<32, 4>, true, true>(dev, p, trans_b, s);
        if (p.m <= FEW_ROWS) return run<T, few_rows<FEW_ROWS, 3>, true, true>(dev, p, trans_b, s);
        return run<T, medium, true, true>(dev, p, trans_b, s);
    }
    if (!vectors) return run<T, medium, false, false>(dev, p, trans_b, s);
    if (ceil_div(p.m, large::BM) * ceil_div(p.n, large::BN) >= n_sm)
        return run<T, large, true, false>(dev, p, trans_b, s);
    return run<T, medium, true, false>(dev, p, trans_b, s);
}

dt_err cuda_product_int8(dt_device *dev, const product &p, dt_dtype dt, bool trans_b, dt_stream *s)
{
    return dt == DT_BF16 ? run_tiles<bf16>(dev, p, trans_b, s) : run_tiles<__half>(dev, p, trans_b, s);
}

/* ---- a matrix of the numbers ------------------------------------------------------------------------------------- */

/* out [rows][cols], one row after the other, from rows of q ld apart. */
template <class T> struct dequantise {
    static constexpr int V = vector_elems<T>, TURNS = 2;
    const int8_t *q;
    int64_t ld;
    const float *scale;
    bool scale_rows;
    T *out;
    int64_t cols;
    unsigned per_row; /* vectors */
    bool fits_q, fits_out;

    struct item {
        int64_t row, col;
        float scale;
        vec<int8_t, V> q;
    };
    __device__ item load(int64_t i) const
    {
        const row_place at = place_of(i, per_row);
        const int64_t col = at.in_row * V;
        const int count = elems_left(col, cols, V);
        item t = {at.row, col, scale[scale_rows ? at.row : 0], {}};
        const int8_t *from = q + at.row * ld + col;
        if (fits_q && count == V) {
            t.q = *reinterpret_cast<const vec<int8_t, V> *>(from);
        } else {
#pragma unroll
            for (int j = 0; j < V; j++) t.q.x[j] = j < count ? from[j] : (int8_t)0;
        }
        return t;
    }
    __device__ void store(const item &t) const
    {
        const int count = elems_left(t.col, cols, V);
        vec<T, V> v;
#pragma unroll
        for (int j = 0; j < V; j++) v.x[j] = from_float<T>((float)t.q.x[j] * t.scale);
        store_vec(out + t.row * cols + t.col, v, count, fits_out && count == V);
    }
};

dt_err cuda_dequantise(const int8_t *q, int64_t ld, const float *scale, bool scale_rows, int64_t rows, int64_t cols,
                       void *out, dt_dtype dt, dt_stream *s)
{
    CUDA_BY_DTYPE(dt, T, "matmul", {
        typedef dequantise<T> op;
        const int64_t per_row = ceil_div(cols, op::V);
        const bool fits_q = (((size_t)q | (size_t)ld) & (op::V - 1)) == 0;
        return launch_each(s,
                           op{q, ld, scale, scale_rows, (T *)out, cols, (unsigned)per_row, fits_q,
                              vectors_fit((size_t)cols * sizeof(T), out)},
                           rows * per_row);
    });
    return DT_OK;
}
