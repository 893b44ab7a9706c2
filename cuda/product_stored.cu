/* product_stored.cu - products of a 16-bit A with a B that is stored with scales, on tensor cores.
 *
 * What product_mma.cu does, but for the way of B: a thread loads its part of the step that is furthest ahead into
 * registers, as it is stored; the block multiplies the step at hand; then the thread makes numbers of its part, rounds
 * them and puts them into the ring. So B is read as it is stored, and an element of C is the same chain of sums as
 * with a matrix of the rounded numbers. */
#include "product_mma.cuh"
#include "stored.cuh"

/* B with the outer index o (columns of op(B)), stored [o, k] where K_IN_ROWS, else [k, o]: its tiles for the BO places
 * of o from o0 on, one after the other along k. A thread's chunks lie in one column of chunks. */
template <class T, class Q, int BO, int BK, bool K_IN_ROWS, int THREADS> struct stored_operand {
    static constexpr int ROWS = K_IN_ROWS ? BO : BK, COLS = K_IN_ROWS ? BK : BO, CHUNKS = COLS / CHUNK,
                         STEP = THREADS / CHUNKS /* rows between a thread's chunks */, TURNS = ROWS / STEP;
    static_assert(THREADS % CHUNKS == 0 && ROWS % STEP == 0 && STEP % 8 == 0, "threads fill a tile in equal turns");
    Q matrix; /* from the next tile on */
    int64_t k_left;
    int o_left;
    typename Q::template chunk<CHUNK> held[TURNS];

    __device__ stored_operand(const Q &b, const product &p, int64_t o0, const terms &k)
        : matrix(b), k_left(k.n), o_left(p.n - o0 < BO ? (int)(p.n - o0) : BO)
    {
        matrix.move(K_IN_ROWS ? o0 : k.first, K_IN_ROWS ? k.first : o0);
    }
    /* The thread's part of the next tile, zeros beyond the matrix. */
    __device__ void fetch()
    {
        const int depth = k_left < BK ? (int)k_left : BK, rows = K_IN_ROWS ? o_left : depth,
                  cols = K_IN_ROWS ? depth : o_left;
        const int first = threadIdx.x / CHUNKS, col = threadIdx.x % CHUNKS * CHUNK;
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const int row = first + turn * STEP, left = row < rows ? elems_left(col, cols, CHUNK) : 0;
            matrix.load(held[turn], row, col, left);
        }
        matrix.move(K_IN_ROWS ? 0 : BK, K_IN_ROWS ? BK : 0);
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
            for (int e = 0; e < CHUNK; e++) v.x[e] = from_float<T>(held[turn].number(e));
            *reinterpret_cast<vec16<T> *>(to) = v;
        }
    }
};

/* C = end of (A op(B) + D + bias), one tile of C for each block; TB: B is stored [n, k]; VECTORS: rows of A begin at
 * multiples of 16 bytes. */
template <class T, class Q, class S, bool TB, bool VECTORS, bool PIECES>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) product_stored_kernel(product p, Q matrix)
{
    DYNAMIC_SHARED(T, shared);
    constexpr int A_ELEMS = S::BM * S::BK, B_ELEMS = S::BN * S::BK, STAGE = A_ELEMS + B_ELEMS;
    const tile_place tile = place_of_tile(blockIdx.x, (p.m + S::BM - 1) / S::BM, (p.n + S::BN - 1) / S::BN);
    const terms mine(p);
    const int64_t row0 = tile.row * S::BM, col0 = tile.col * S::BN, n_steps = (mine.n + S::BK - 1) / S::BK;
    operand<T, S::BM, S::BK, true> a(p.a, p.lda, row0, p.m, mine);
    stored_operand<T, Q, S::BN, S::BK, TB, S::THREADS> b(matrix, p, col0, mine);
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

template <class T, class Q, class S, bool VECTORS, bool PIECES>
static dt_err run(dt_device *dev, const product &p, bool trans_b, dt_stream *s)
{
    static bool allowed;
    if (!allowed) {
        CUDA_ALLOW_SHARED((product_stored_kernel<T, Q, S, true, VECTORS, PIECES>), S::shared_nbytes);
        CUDA_ALLOW_SHARED((product_stored_kernel<T, Q, S, false, VECTORS, PIECES>), S::shared_nbytes);
    }
    allowed = true;
    return launch_tiles<T, S, PIECES>(dev, p, s,
                                      trans_b ? product_stored_kernel<T, Q, S, true, VECTORS, PIECES>
                                              : product_stored_kernel<T, Q, S, false, VECTORS, PIECES>,
                                      Q(p.b, p.ldb, p.b_scaled));
}

/* As product_mma.cu chooses, but for its largest tile: with a part of B beside all its sums a thread has no registers
 * left. */
template <class T, class Q> static dt_err run_tiles(dt_device *dev, const product &p, bool trans_b, dt_stream *s)
{
    const bool vectors = vectors_fit((size_t)p.lda * sizeof(T), p.a);
    if (p.piece > 0) {
        if (!vectors) return run<T, Q, medium, false, true>(dev, p, trans_b, s);
        if (p.m <= 16) return run<T, Q, few_rows<16, 4>, true, true>(dev, p, trans_b, s);
        if (p.m <= 32) return run<T, Q, few_rows<32, 4>, true, true>(dev, p, trans_b, s);
        if (p.m <= FEW_ROWS) return run<T, Q, few_rows<FEW_ROWS, 3>, true, true>(dev, p, trans_b, s);
        return run<T, Q, medium, true, true>(dev, p, trans_b, s);
    }
    return vectors ? run<T, Q, medium, true, false>(dev, p, trans_b, s)
                   : run<T, Q, medium, false, false>(dev, p, trans_b, s);
}

template <class T> static dt_err run_stored(dt_device *dev, const product &p, bool trans_b, dt_stream *s)
{
    return p.b_scaled.how == dt_scaled::DT_SCALE_NF4 ? run_tiles<T, nf4_matrix>(dev, p, trans_b, s)
                                                     : run_tiles<T, int8_matrix>(dev, p, trans_b, s);
}

bool cuda_stored_fits(const dt_scaled *how, int64_t ld)
{
    return how->how != dt_scaled::DT_SCALE_NF4 || ld % CHUNK == 0;
}

dt_err cuda_product_stored(dt_device *dev, const product &p, dt_dtype dt, bool trans_b, dt_stream *s)
{
    return dt == DT_BF16 ? run_stored<bf16>(dev, p, trans_b, s) : run_stored<__half>(dev, p, trans_b, s);
}

/* ---- a matrix of the numbers ------------------------------------------------------------------------------------- */

/* out [rows][cols], one row after the other. */
template <class T, class Q> struct dequantise {
    static constexpr int V = vector_elems<T>, TURNS = 2;
    Q matrix;
    T *out;
    int64_t cols;
    unsigned per_row; /* vectors */
    bool by_chunks, fits_out;

    struct item {
        int64_t row, col;
        typename Q::template chunk<V> q;
    };
    __device__ item load(int64_t i) const
    {
        const row_place at = place_of(i, per_row);
        item t = {at.row, at.in_row * V, {}};
        if (by_chunks) matrix.load(t.q, t.row, t.col, elems_left(t.col, cols, V));
        return t;
    }
    __device__ void store(const item &t) const
    {
        const int count = elems_left(t.col, cols, V);
        vec<T, V> v;
#pragma unroll
        for (int j = 0; j < V; j++)
            v.x[j] = from_float<T>(by_chunks ? t.q.number(j) : j < count ? matrix.at(t.row, t.col + j) : 0.0f);
        store_vec(out + t.row * cols + t.col, v, count, fits_out && count == V);
    }
};

template <class T, class Q>
static dt_err dequantise_as(const Q &matrix, bool by_chunks, int64_t rows, int64_t cols, T *out, dt_stream *s)
{
    typedef dequantise<T, Q> op;
    const int64_t per_row = ceil_div(cols, op::V);
    const bool fits_out = vectors_fit((size_t)cols * sizeof(T), out);
    return launch_each(s, op{matrix, out, cols, (unsigned)per_row, by_chunks, fits_out}, rows * per_row);
}

dt_err cuda_dequantise(const void *q, int64_t ld, const dt_scaled *how, int64_t row0, int64_t col0, int64_t rows,
                       int64_t cols, void *out, dt_dtype dt, dt_stream *s)
{
    CUDA_BY_DTYPE(dt, T, "matmul", {
        if (how->how == dt_scaled::DT_SCALE_NF4)
            return dequantise_as(nf4_matrix(q, ld, *how, row0, col0), (ld | col0) % CHUNK == 0, rows, cols, (T *)out,
                                 s);
        return dequantise_as(int8_matrix(q, ld, *how, row0, col0), true, rows, cols, (T *)out, s);
    });
    return DT_OK;
}
