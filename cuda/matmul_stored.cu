/* matmul_stored.cu - matmuls of few rows of a 16-bit A with a quantised B [n, k], on tensor cores.
 *
 * Threads   Few rows are limited by memory, so as many bytes of B should be in flight as with a 16-bit B. B therefore
 *           passes through the ring in its quantised form (cp.async), next to the tile of A. Each warp has its own
 *           columns of C. It dequantises and rounds its part of B into fragments in registers, immediately before it
 *           multiplies them. Scales are prepared STAGES - 1 steps ahead: they are loaded before a step's matmuls, and
 *           written to shared memory after them.
 * Numerics  An element of C is the same chain of sums, with the same pieces, as with a matrix of the rounded values.
 *
 * A B that this kernel cannot read is dequantised first (matmul.cu). */
#include "matmul_mma.cuh"
#include "stored.cuh"

/* Tile shape for m <= BM rows. A stage of the ring contains a tile of A, BK quantised elements of each of BN rows of B,
 * and their scales: a float per thread. */
template <class Q, int BM, int BK, int STAGES> struct stored_rows : tile_shape<BM, 64, BM, 16, BK, STAGES, 4> {
    typedef tile_shape<BM, 64, BM, 16, BK, STAGES, 4> tile;
    enum {
        IN_CHUNK = 128 / Q::BITS, /* elements in 16 bytes */
        CHUNKS = BK / IN_CHUNK,
        SCALES = (BK + Q::BLOCK - 1) / Q::BLOCK, /* scales per row */
        B_AT = BM * BK * 2,
        SCALES_AT = B_AT + tile::BN * CHUNKS * 16,
        STAGE = SCALES_AT + tile::THREADS * 4,
        ENOUGH = 8, /* dequantisation needs more warps: two blocks per multiprocessor, of the four that fit */
    };
    static constexpr size_t shared_nbytes = (size_t)STAGES * STAGE;
    static_assert(shared_nbytes >= tile::c_nbytes, "the tile of C fits where the ring was");
    static_assert(tile::BN * SCALES <= tile::THREADS, "a thread makes one scale of a stage");
};

/* The rows of B starting at row0, in steps of BK terms. */
template <class Q, class S> struct stored_operand {
    Q matrix;
    int64_t n_terms;
    int n_rows;

    __device__ stored_operand(const Q &b, const matmul &p, int64_t row0, const terms &k)
        : matrix(b), n_terms(k.n), n_rows(p.n - row0 < S::BN ? (int)(p.n - row0) : S::BN)
    {
        matrix.move(row0, k.first);
    }
    /* No chunk is partial: cuda_stored_fits. */
    __device__ void copy(unsigned char *stage, int64_t step) const
    {
        constexpr int TURN = S::THREADS / S::CHUNKS /* rows between a thread's chunks */;
        static_assert(S::BN % TURN == 0 && TURN % 8 == 0, "threads fill a tile in equal turns");
        const int row = threadIdx.x / S::CHUNKS, q = threadIdx.x % S::CHUNKS;
        const int64_t term = step * S::BK + q * S::IN_CHUNK;
        unsigned char *to = stage + S::B_AT + chunk_place<S::CHUNKS>(row, q) * 16;
#pragma unroll
        for (int i = 0; i < S::BN; i += TURN) {
            const bool there = row + i < n_rows && term < n_terms;
            copy_async_16(to + i * S::CHUNKS * 16, matrix.bytes(there ? row + i : 0, there ? term : 0), there);
        }
    }
    /* The scale that this thread loads for a step; 0 beyond the matrix. */
    __device__ typename Q::stored_scale load_scale(int64_t step) const
    {
        return has_scale(step) ? matrix.scale_at(scale_row(), scale_term(step)) : typename Q::stored_scale();
    }
    __device__ void put_scale(unsigned char *stage, int64_t step, const typename Q::stored_scale &s) const
    {
        reinterpret_cast<float *>(stage + S::SCALES_AT)[threadIdx.x] = has_scale(step) ? s.value() : 0.0f;
    }
    __device__ int scale_row() const { return threadIdx.x / S::SCALES; }
    __device__ int64_t scale_term(int64_t step) const { return step * S::BK + threadIdx.x % S::SCALES * Q::BLOCK; }
    __device__ bool has_scale(int64_t step) const { return scale_row() < n_rows && scale_term(step) < n_terms; }
};

/* Multiply a stage: all rows of A by the warp's columns. */
template <class T, class Q, class S>
__device__ inline void multiply_stored(float (&sum)[S::WM / 16][S::WN / 8][4], const unsigned char *stage,
                                       const typename Q::codes &codes)
{
    const int lane = threadIdx.x % WARP, col = threadIdx.x / WARP * S::WN + lane / 4;
    const float *scale = reinterpret_cast<const float *>(stage + S::SCALES_AT) + col * S::SCALES;
    float by[S::WN / 8];
#pragma unroll
    for (int k = 0; k < S::BK; k += 16) {
        uint32_t a[S::WM / 16][4];
#pragma unroll
        for (int i = 0; i < S::WM / 16; i++)
            load_fragment<T, S::BM, S::BK, true>(a[i], reinterpret_cast<const T *>(stage), 16 * i, k);
#pragma unroll
        for (int j = 0; j < S::WN / 8; j++) {
            const int at = chunk_place<S::CHUNKS>(col + 8 * j, k / S::IN_CHUNK) * 16 + k % S::IN_CHUNK * Q::BITS / 8;
            if (k % Q::BLOCK == 0) by[j] = scale[8 * j * S::SCALES + k / Q::BLOCK];
            float x[4];
            codes.read(x, stage + S::B_AT + at, lane % 4);
            const uint32_t b[2] = {pack_pair<T>(__fmul_rn(x[0], by[j]), __fmul_rn(x[1], by[j])),
                                   pack_pair<T>(__fmul_rn(x[2], by[j]), __fmul_rn(x[3], by[j]))};
#pragma unroll
            for (int i = 0; i < S::WM / 16; i++) mma_16816(sum[i][j], a[i], b, T());
        }
    }
}

/* C = end of (A B^T + D + bias), BN columns of C per block. */
template <class T, class Q, class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) matmul_stored_kernel(matmul p, Q matrix)
{
    DYNAMIC_SHARED(unsigned char, shared);
    const terms mine(p);
    const int64_t col0 = blockIdx.x * (int64_t)S::BN, n_steps = (mine.n + S::BK - 1) / S::BK;
    operand<T, S::BM, S::BK, true> a(p.a, p.lda, 0, p.m, mine);
    const stored_operand<Q, S> b(matrix, p, col0, mine);
    const typename Q::codes codes;
    const auto stage_of = [&](int64_t step) { return shared + (int)step % S::STAGES * S::STAGE; };
    const auto copy = [&](int64_t step) {
        if (step < n_steps) {
            a.template load<S::THREADS>(reinterpret_cast<T *>(stage_of(step)), true);
            b.copy(stage_of(step), step);
        }
        copy_async_commit(); /* empty groups at the end keep the wait count correct */
    };
    tile_sums<S, true> sum(p);
    for (int step = 0; step < S::STAGES - 1; step++) copy(step);
    for (int step = 0; step < S::STAGES - 1; step++) b.put_scale(stage_of(step), step, b.load_scale(step));
    for (int64_t step = 0; step < n_steps; step++) {
        const int64_t ahead = step + S::STAGES - 1;
        copy_async_wait<S::STAGES - 2>();
        __syncthreads(); /* this step's stage has arrived, and all warps have read the previous step's */
        copy(ahead);
        const typename Q::stored_scale scale = b.load_scale(ahead);
        multiply_stored<T, Q, S>(sum.chain, stage_of(step), codes);
        sum.end_step(p, step + 1 == n_steps);
        b.put_scale(stage_of(ahead), ahead, scale);
    }
    __syncthreads(); /* the tile of C replaces the ring */
    finish_tile<T, S, true>(p, reinterpret_cast<float *>(shared), sum, 0, col0);
}

/* ---- the choice of a kernel -------------------------------------------------------------------------------------- */

template <class T, class Q, int BM, int BK, int STAGES> static dt_err run(dt_device *dev, const matmul &p, dt_stream *s)
{
    typedef stored_rows<Q, BM, BK, STAGES> S;
    static bool allowed;
    if (!allowed) CUDA_ALLOW_SHARED((matmul_stored_kernel<T, Q, S>), S::shared_nbytes);
    allowed = true;
    return launch_tiles<T, S, true>(dev, p, s, matmul_stored_kernel<T, Q, S>, Q(p.b, p.ldb, p.b_scaled));
}

/* Four blocks fit on a multiprocessor, each with two or three steps in flight. */
template <class T, class Q> static dt_err run_rows(dt_device *dev, const matmul &p, dt_stream *s)
{
    if (p.m <= 16) return run<T, Q, 16, 128, 4>(dev, p, s);
    if (p.m <= 32) return run<T, Q, 32, 128, 3>(dev, p, s);
    return run<T, Q, FEW_ROWS, 64, 4>(dev, p, s);
}

template <class T> static dt_err run_stored(dt_device *dev, const matmul &p, dt_stream *s)
{
    return p.b_scaled.how == dt_scaled::DT_SCALE_NF4 ? run_rows<T, nf4_matrix>(dev, p, s)
                                                     : run_rows<T, int8_matrix>(dev, p, s);
}

bool cuda_stored_fits(const matmul &p, bool trans_b)
{
    const bool nf4 = p.b_scaled.how == dt_scaled::DT_SCALE_NF4;
    return trans_b && p.m <= FEW_ROWS && vectors_fit((size_t)p.lda * 2, p.a, p.b) &&
           (p.k | p.ldb) % (nf4 ? nf4_matrix::BLOCK : 16) == 0;
}

dt_err cuda_matmul_stored(dt_device *dev, const matmul &p, dt_dtype dt, dt_stream *s)
{
    return dt == DT_BF16 ? run_stored<bf16>(dev, p, s) : run_stored<__half>(dev, p, s);
}

/* ---- dequantised matrix ------------------------------------------------------------------------------------------ */

/* out [rows][cols] = the dequantised matrix, contiguous. */
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
