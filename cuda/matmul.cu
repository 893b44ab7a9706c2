/* matmul.cu - matmuls (dt_matmul): the choice of a kernel, and the passes before and after it.
 *
 * cuBLASLt computes a matmul if one of its kernels does so completely. If it lacks a step, such as an activation, a
 * second pass over C adds it, provided that nothing is rounded twice. The library's kernels are slow for large matmuls
 * with odd extents, such as a vocabulary of 50257 (94 of 670 TFLOP/s on an H100). Such a matmul is divided, and the
 * library computes the part whose extents are multiples of 8. dtrain's kernels compute all other matmuls. They also
 * compute batch-invariant matmuls, and all matmuls if there is no library or with DTRAIN_CUDA_PRODUCT=own. Separate
 * passes compute gradients of biases, with the bits of bias_backward. */
#include "matmul_tile.cuh"
#include "dtrain/device/nf4.h"
#include <stdlib.h>
#include <string.h>

struct cuda_matmuls {
    cuda_library *library; /* NULL: only dtrain's own kernels */
};

dt_err cuda_matmuls_open(cuda_state *cuda)
{
    cuda->matmuls = (cuda_matmuls *)calloc(1, sizeof *cuda->matmuls);
    DT_CHECK(cuda->matmuls, DT_ERR_MEMORY, "cuda device: out of memory for matmuls");
    const char *way = getenv("DTRAIN_CUDA_PRODUCT");
    if (cuda->planning || (way && !strcmp(way, "own"))) return DT_OK;
    return cuda_library_open(&cuda->matmuls->library);
}

void cuda_matmuls_close(cuda_state *cuda)
{
    if (cuda->matmuls) cuda_library_close(cuda->matmuls->library);
    free(cuda->matmuls);
    cuda->matmuls = NULL;
}

size_t cuda_matmuls_version(const cuda_state *cuda) { return cuda->matmuls->library ? cuda_library_version() : 0; }

bool cuda_distrust(dt_device *dev, const dt_matmul *mm)
{
    cuda_library *library = cuda_of(dev)->matmuls->library;
    return library && cuda_library_distrust(library, mm);
}

/* ---- dtrain's kernels -------------------------------------------------------------------------------------------- */

static bool rows_fit(const void *p, int64_t ld, dt_dtype dt)
{
    return !p || vectors_fit((size_t)ld * dt_dtype_size(dt), p);
}

/* Terms per piece (matmul.h); 0: no pieces. Batch-invariant rows are summed in pieces. So are few rows with a quantised
 * B, so that each piece can have its own block. */
static int64_t piece_of(const dt_matmul *mm)
{
    enum { PIECES = 8, DEPTH = 128 };
    if (!mm->batch_invariant && mm->b_scaled.how == dt_scaled::DT_SCALE_NONE) return 0;
    return ceil_div(ceil_div(mm->k, PIECES), DEPTH) * DEPTH;
}

static matmul describe(const dt_matmul *mm, const void *a, const void *b, void *c)
{
    matmul p = {};
    p.piece = piece_of(mm);
    p.m = mm->m, p.n = mm->n, p.k = mm->k;
    p.a = a, p.lda = mm->lda, p.b = b, p.ldb = mm->ldb, p.c = c, p.ldc = mm->ldc;
    p.c_float = mm->c_dtype == DT_F32;
    p.d = mm->accumulate ? c : mm->addend;
    p.ldd = mm->accumulate ? mm->ldc : mm->ldd;
    p.d_float = (mm->accumulate ? mm->c_dtype : mm->addend_dtype) == DT_F32;
    p.bias = mm->bias;
    p.b_scaled = mm->b_scaled;
    p.n_groups = mm->n_groups, p.group_start = mm->group_start, p.group_stride = mm->group_stride;
    p.epilogue = mm->epilogue, p.act = mm->act, p.aux = mm->aux, p.ld_aux = mm->ld_aux;
    p.vectors = rows_fit(c, p.ldc, mm->c_dtype) && rows_fit(p.d, p.ldd, p.d_float ? DT_F32 : mm->dt) &&
                rows_fit(p.bias, mm->n_groups > 1 ? mm->n : 0, mm->dt) &&
                (!mm->trans_a || rows_fit(c, mm->group_stride, mm->c_dtype)) &&
                (p.epilogue == DT_EPILOGUE_NONE || rows_fit(p.aux, p.ld_aux, mm->dt));
    return p;
}

/* C = end of (sum of the parts + D + bias). Threads: 8 elements of a row per thread. A matmul with k = 0 has no
 * parts. */
template <class T> __global__ void finish_kernel(matmul p)
{
    enum { N = 8 };
    const int64_t row = blockIdx.x, col = (blockIdx.y * (int64_t)blockDim.x + threadIdx.x) * N, left = p.n - col;
    if (left <= 0) return;
    float x[N] = {};
    const float *part = p.parts + row * p.ld_parts + col;
#pragma unroll 4
    for (int i = 0; i < p.n_parts; i++, part += p.m * p.ld_parts) add_elements<N>(x, part, N, true);
    finish_elements<T, N>(p, row, col, x, left < N ? (int)left : N);
}

dt_err cuda_matmul_finish(const matmul &p, dt_dtype dt, dt_stream *s)
{
    enum { MAX_THREADS = 128 };
    const int64_t n_threads = ceil_div(ceil_div(p.n, 8), WARP) * WARP;
    const int threads = n_threads < MAX_THREADS ? (int)n_threads : MAX_THREADS;
    const dim3 grid((unsigned)p.m, (unsigned)ceil_div(n_threads, threads));
    CUDA_BY_DTYPE(dt, T, "matmul", { launch(s, grid, threads, 0, finish_kernel<T>, p); });
    CUDA_LAUNCHED();
    return DT_OK;
}

/* A matmul and its matrices. */
struct task {
    dt_matmul mm;
    const void *a, *b;
    void *c;
};

static dt_err own_matmul(dt_device *dev, const task &t, dt_stream *s)
{
    const matmul p = describe(&t.mm, t.a, t.b, t.c);
    if (p.k == 0 && p.n_groups == 0) return cuda_matmul_finish(p, t.mm.dt, s);
    if (t.mm.dt == DT_F32) return cuda_matmul_fma(dev, p, t.mm.trans_a, t.mm.trans_b, s);
    if (p.b_scaled.how != dt_scaled::DT_SCALE_NONE) return cuda_matmul_stored(dev, p, t.mm.dt, s);
    return cuda_matmul_mma(dev, p, t.mm.dt, t.mm.trans_a, t.mm.trans_b, s);
}

/* ---- sums for gradients of biases -------------------------------------------------------------------------------- */

/* sums[r] (+)= sum of row r of x; a warp per row. */
template <class T, class G>
__global__ void row_sums_kernel(const T *x, int64_t n_rows, int64_t n, int64_t ld, G *sums, bool accumulate)
{
    const int64_t row = blockIdx.x * (int64_t)(blockDim.x / WARP) + threadIdx.x / WARP;
    if (row >= n_rows) return;
    float sum = 0;
    for (int64_t i = threadIdx.x % WARP; i < n; i += WARP) sum += to_float(x[row * ld + i]);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) sums[row] = from_float<G>(sum + (accumulate ? to_float(sums[row]) : 0.0f));
}

static dt_err row_sums(const dt_matmul *mm, const void *x, int64_t n_rows, int64_t n, int64_t ld, dt_stream *s)
{
    enum { THREADS = 256 };
    if (n_rows == 0) return DT_OK;
    const unsigned grid = (unsigned)ceil_div(n_rows, THREADS / WARP);
    CUDA_BY_DTYPE(mm->dt, T, "matmul", {
        CUDA_BY_DTYPE(mm->sums_dtype, G, "sums of matmul", {
            launch(s, grid, THREADS, 0, row_sums_kernel<T, G>, (const T *)x, n_rows, n, ld, (G *)mm->sums,
                   mm->accumulate_sums);
        });
    });
    CUDA_LAUNCHED();
    return DT_OK;
}

static dt_err column_sums(dt_device *dev, const dt_matmul *mm, const void *x, dt_dtype dt, int64_t n_rows, int64_t n,
                          int64_t ld, dt_stream *s)
{
    if (n == 0) return DT_OK;
    return cuda_bias_backward(dev, x, n_rows, n, ld, dt, mm->sums, mm->sums_dtype, mm->accumulate_sums, s);
}

static dt_err make_sums(dt_device *dev, const dt_matmul *mm, const void *a, const void *b, const void *c, dt_stream *s)
{
    switch (mm->sums_of) {
    case DT_SUMS_NONE:
        break;
    case DT_SUMS_OF_A:
        return mm->trans_a ? column_sums(dev, mm, a, mm->dt, mm->k, mm->m, mm->lda, s)
                           : row_sums(mm, a, mm->m, mm->k, mm->lda, s);
    case DT_SUMS_OF_B:
        return mm->trans_b ? row_sums(mm, b, mm->n, mm->k, mm->ldb, s)
                           : column_sums(dev, mm, b, mm->dt, mm->k, mm->n, mm->ldb, s);
    case DT_SUMS_OF_C:
        return column_sums(dev, mm, c, mm->c_dtype, mm->m, mm->n, mm->ldc, s);
    }
    return DT_OK;
}

/* ---- the library, and the passes after it ------------------------------------------------------------------------ */

static dt_err by_one_kernel(dt_device *dev, const task &t, size_t workspace_nbytes, dt_stream *s, bool *taken)
{
    return cuda_library_matmul(cuda_of(dev)->matmuls->library, &t.mm, t.a, t.b, t.c, workspace_nbytes, s, taken);
}

/* The library writes P, which is the activation's input. A pass over C then adds the rest: an activation of the rounded
 * P, or a bias if C has another type than the bias. Such a C is fp32, so P is not rounded. */
static dt_err with_pass(dt_device *dev, const task &t, dt_stream *s, bool *taken)
{
    const dt_matmul *mm = &t.mm;
    const bool bias_is_left = mm->bias && mm->c_dtype != mm->dt, act = mm->epilogue == DT_EPILOGUE_ACT;
    if (mm->epilogue == DT_EPILOGUE_NONE && !bias_is_left) return DT_OK;
    task part = t, rest = t;
    if (act && mm->aux) part.c = mm->aux, part.mm.ldc = mm->ld_aux;
    if (mm->accumulate) part.mm.addend = t.c, part.mm.ldd = mm->ldc, part.mm.addend_dtype = mm->c_dtype;
    part.mm.accumulate = rest.mm.accumulate = false;
    part.mm.epilogue = DT_EPILOGUE_NONE;
    (bias_is_left ? part : rest).mm.bias = NULL;
    DT_TRY(by_one_kernel(dev, part, DT_GPU_WORKSPACE_NBYTES, s, taken));
    if (!*taken) return DT_OK;
    rest.mm.addend = part.c, rest.mm.ldd = part.mm.ldc, rest.mm.addend_dtype = mm->c_dtype;
    rest.mm.k = 0;
    if (act) rest.mm.aux = NULL; /* already written */
    return own_matmul(dev, rest, s);
}

static dt_err by_library(dt_device *dev, const task &t, dt_stream *s, bool *taken)
{
    DT_TRY(by_one_kernel(dev, t, DT_GPU_WORKSPACE_NBYTES, s, taken));
    return *taken ? DT_OK : with_pass(dev, t, s, taken);
}

/* ---- odd extents ------------------------------------------------------------------------------------------------- */

enum { WHOLE = 8 /* 16-bit elements in the 16 bytes that the library's fast kernels load at once */ };

static const void *moved_bytes(const void *p, int64_t n) { return (const char *)p + n; }

static void *element(const void *p, dt_dtype dt, int64_t i)
{
    return p ? (char *)p + i * (int64_t)dt_dtype_size(dt) : NULL;
}

/* Rows i0 .. i0+m-1 and columns j0 .. j0+n-1 of C. */
static task block_of(const task &t, int64_t i0, int64_t m, int64_t j0, int64_t n)
{
    task x = t;
    dt_matmul *mm = &x.mm;
    mm->m = m, mm->n = n;
    x.a = element(t.a, mm->dt, mm->trans_a ? i0 : i0 * mm->lda);
    x.b = element(t.b, mm->dt, mm->trans_b ? j0 * mm->ldb : j0);
    x.c = element(t.c, mm->c_dtype, i0 * mm->ldc + j0);
    mm->bias = element(mm->bias, mm->dt, j0);
    mm->addend = element(mm->addend, mm->addend_dtype, i0 * mm->ldd + j0);
    mm->aux = element(mm->aux, mm->dt, i0 * mm->ld_aux + j0);
    return x;
}

/* Terms p0 .. p0+k-1 of the sums. */
static task terms_of(const task &t, int64_t p0, int64_t k)
{
    task x = t;
    x.mm.k = k;
    x.a = element(t.a, x.mm.dt, x.mm.trans_a ? p0 * x.mm.lda : p0);
    x.b = element(t.b, x.mm.dt, x.mm.trans_b ? p0 : p0 * x.mm.ldb);
    return x;
}

/* The library sums most terms, in float, into half of the workspace: as many rows of C at a time as fit. A kernel of
 * dtrain then adds the last terms and everything else, and rounds once. The other half is the library's workspace. */
static dt_err cut_terms(dt_device *dev, const task &t, dt_stream *s, bool *taken)
{
    const size_t half = DT_GPU_WORKSPACE_NBYTES / 2;
    const int64_t k = t.mm.k - t.mm.k % WHOLE, room = (int64_t)(half / sizeof(float)) / t.mm.n;
    if (t.mm.accumulate || t.mm.addend || room == 0) return DT_OK;
    for (int64_t i = 0; i < t.mm.m; i += room) {
        const task rows = block_of(t, i, t.mm.m - i < room ? t.mm.m - i : room, 0, t.mm.n);
        task most = terms_of(rows, 0, k), rest = terms_of(rows, k, t.mm.k - k);
        most.c = (char *)s->workspace + half;
        most.mm.ldc = t.mm.n, most.mm.c_dtype = DT_F32;
        most.mm.bias = NULL, most.mm.epilogue = DT_EPILOGUE_NONE;
        rest.mm.addend = most.c, rest.mm.ldd = most.mm.ldc, rest.mm.addend_dtype = DT_F32;
        bool by_it = false;
        DT_TRY(by_one_kernel(dev, most, half, s, &by_it));
        if (!by_it && i == 0) return DT_OK;
        DT_TRY(own_matmul(dev, by_it ? rest : rows, s));
        *taken = true;
    }
    return DT_OK;
}

/* The same for a float C: the library computes C, and a kernel of dtrain adds the last terms to it. */
static dt_err cut_terms_of_float(dt_device *dev, const task &t, dt_stream *s, bool *taken)
{
    const int64_t k = t.mm.k - t.mm.k % WHOLE;
    task rest = terms_of(t, k, t.mm.k - k);
    DT_TRY(by_library(dev, terms_of(t, 0, k), s, taken));
    if (!*taken) return DT_OK;
    rest.mm.accumulate = true;
    rest.mm.addend = rest.mm.bias = NULL;
    return own_matmul(dev, rest, s);
}

/* True if k needs no division: rows of A and B that run along k have a multiple of WHOLE terms. */
static bool whole_terms(const dt_matmul *mm) { return mm->k % WHOLE == 0 || mm->trans_a; }

/* The library computes the extents that are multiples of 8. dtrain's kernels compute the last rows and columns of C. */
static dt_err cut(dt_device *dev, const task &t, dt_stream *s, bool *taken)
{
    const int64_t m = t.mm.m - (t.mm.trans_a ? t.mm.m % WHOLE : 0), n = t.mm.n - t.mm.n % WHOLE;
    const task most = block_of(t, 0, m, 0, n);
    if (m == 0 || n == 0 || t.mm.k < WHOLE) return DT_OK;
    if (whole_terms(&t.mm)) {
        DT_TRY(by_library(dev, most, s, taken));
    } else if (t.mm.c_dtype == DT_F32) {
        DT_TRY(cut_terms_of_float(dev, most, s, taken));
    } else {
        DT_TRY(cut_terms(dev, most, s, taken));
    }
    if (!*taken) return DT_OK;
    if (n < t.mm.n) DT_TRY(own_matmul(dev, block_of(t, 0, t.mm.m, n, t.mm.n - n), s));
    return m < t.mm.m ? own_matmul(dev, block_of(t, m, t.mm.m - m, 0, n), s) : DT_OK;
}

/* ---- quantised B ------------------------------------------------------------------------------------------------- */

/* Dequantise op(B) in panels of columns into half of the workspace, and multiply by each panel, with the library or
 * with dtrain's kernels. The other half is the library's workspace. */
static dt_err by_panels(dt_device *dev, const task &t, bool library, dt_stream *s, bool *taken)
{
    const size_t half = DT_GPU_WORKSPACE_NBYTES / 2;
    const int64_t fit = (int64_t)(half / dt_dtype_size(t.mm.dt)) / t.mm.k,
                  most = fit < WHOLE ? fit : fit / WHOLE * WHOLE;
    const bool tb = t.mm.trans_b;
    for (int64_t j = 0; most > 0 && j < t.mm.n; j += most) {
        const int64_t n = t.mm.n - j < most ? t.mm.n - j : most;
        task panel = block_of(t, 0, t.mm.m, j, n);
        panel.b = (char *)s->workspace + half;
        panel.mm.b_scaled = {};
        panel.mm.ldb = tb ? t.mm.k : n;
        if (library && j == 0 &&
            !cuda_library_takes(cuda_of(dev)->matmuls->library, &panel.mm, panel.a, panel.b, panel.c, s))
            return DT_OK;
        DT_TRY(cuda_dequantise(t.b, t.mm.ldb, &t.mm.b_scaled, tb ? j : 0, tb ? 0 : j, tb ? n : t.mm.k, tb ? t.mm.k : n,
                               (char *)s->workspace + half, t.mm.dt, s));
        bool by_it = false;
        if (library) DT_TRY(by_one_kernel(dev, panel, half, s, &by_it));
        if (!by_it) DT_TRY(own_matmul(dev, panel, s));
        *taken = true;
    }
    return DT_OK;
}

/* For few rows of A, a kernel reads B in its quantised form. If it cannot read B, B is dequantised first. With at least
 * MANY_ROWS rows, B is dequantised and the library multiplies.
 *
 * MANY_ROWS is derived, not measured. On an H200 dequantising 45M weights took 50 to 140 us (1024 rows of bf16 by
 * panels, less the same with an unquantised matrix: docs/data/h200-quantized.csv). The library's matmul of 64 rows took
 * 27 to 32 us. The predecessor of the kernel for few rows took 190 to 540 us. */
static dt_err stored_matmul(dt_device *dev, const task &t, bool library, dt_stream *s)
{
    enum { MANY_ROWS = 16 };
    bool taken = false;
    if (library && t.mm.m >= MANY_ROWS) DT_TRY(by_panels(dev, t, true, s, &taken));
    if (taken) return DT_OK;
    if (t.mm.k == 0 || t.mm.dt == DT_F32 || cuda_stored_fits(describe(&t.mm, t.a, t.b, t.c), t.mm.trans_b))
        return own_matmul(dev, t, s);
    DT_TRY(by_panels(dev, t, false, s, &taken));
    DT_CHECK(taken, DT_ERR_ARG,
             "matmul: weights that are stored with scales: %lld terms of a sum, expected at most %lld",
             (long long)t.mm.k, (long long)(DT_GPU_WORKSPACE_NBYTES / 2 / dt_dtype_size(t.mm.dt)));
    return DT_OK;
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

/* Group g of a grouped matmul with a quantised B, as one with a single group, in panels of columns: dequantise the
 * panel into half of the workspace, and multiply. The rows of the group are known to the device only. */
static dt_err stored_group(dt_device *dev, const task &t, int g, dt_stream *s)
{
    const dt_matmul *mm = &t.mm;
    const bool tb = mm->trans_b;
    const int64_t rows = tb ? mm->n : mm->k, own = g * mm->group_stride,
                  fit = (int64_t)(DT_GPU_WORKSPACE_NBYTES / 2 / dt_dtype_size(mm->dt)) / (mm->k > 0 ? mm->k : 1),
                  most = fit < WHOLE ? fit : fit / WHOLE * WHOLE;
    dt_scaled how = mm->b_scaled;
    const void *b = moved_bytes(t.b, how.how == dt_scaled::DT_SCALE_NF4 ? own / 2 : own);
    if (how.how == dt_scaled::DT_SCALE_ROWS) how.scale += g * rows;
    if (how.how == dt_scaled::DT_SCALE_NF4) {
        how.blocks += own / DT_NF4_BLOCK;
        how.scale += 2 * (own / DT_NF4_BLOCK >> dt_nf4_shift(how.finer));
    }
    DT_CHECK(most > 0, DT_ERR_ARG, "matmul: weights that are stored with scales: %lld terms of a sum are too many",
             (long long)mm->k);
    for (int64_t j = 0; j < mm->n; j += most) {
        const int64_t n = mm->n - j < most ? mm->n - j : most;
        task panel = block_of(t, 0, mm->m, j, n);
        panel.mm.bias = element(mm->bias, mm->dt, g * mm->n + j);
        panel.b = (char *)s->workspace + DT_GPU_WORKSPACE_NBYTES / 2;
        panel.mm.b_scaled = {};
        panel.mm.ldb = tb ? mm->k : n;
        panel.mm.n_groups = 1, panel.mm.group_start = mm->group_start + g, panel.mm.group_stride = 0;
        DT_TRY(cuda_dequantise(b, mm->ldb, &how, tb ? j : 0, tb ? 0 : j, tb ? n : mm->k, tb ? mm->k : n,
                               (char *)s->workspace + DT_GPU_WORKSPACE_NBYTES / 2, mm->dt, s));
        DT_TRY(own_matmul(dev, panel, s));
    }
    return DT_OK;
}

static dt_err grouped_matmul(dt_device *dev, const task &t, dt_stream *s)
{
    if (t.mm.b_scaled.how == dt_scaled::DT_SCALE_NONE) return own_matmul(dev, t, s);
    for (int g = 0; g < t.mm.n_groups; g++) DT_TRY(stored_group(dev, t, g, s));
    return DT_OK;
}

/* ---- choice of a kernel ------------------------------------------------------------------------------------------ */

static dt_err run_matmul(dt_device *dev, const task &t, dt_stream *s)
{
    bool taken = false;
    if (t.mm.n_groups > 0) return grouped_matmul(dev, t, s);
    const bool library = cuda_of(dev)->matmuls->library && !t.mm.batch_invariant && t.mm.k > 0;
    if (t.mm.b_scaled.how != dt_scaled::DT_SCALE_NONE) return stored_matmul(dev, t, library, s);
    if (library) {
        DT_TRY(by_library(dev, t, s, &taken));
        if (!taken && dt_gpu_is_worth_cutting(&t.mm)) DT_TRY(cut(dev, t, s, &taken));
    }
    return taken ? DT_OK : own_matmul(dev, t, s);
}

dt_err cuda_matmul(dt_device *dev, const dt_matmul *mm, const void *a, const void *b, void *c, dt_stream *stream)
{
    DT_CHECK(mm->dt == DT_F32 || mm->dt == DT_BF16 || mm->dt == DT_F16, DT_ERR_ARG,
             "internal: matmul: matrices of type %s are not supported", dt_dtype_name(mm->dt));
    DT_TRY(dt_matmul_check(mm));
    dt_stream *s = cuda_stream(dev, stream, "matmul");
    if (mm->sums_of != DT_SUMS_OF_C) DT_TRY(make_sums(dev, mm, a, b, c, s));
    if (mm->m > 0 && mm->n > 0) DT_TRY(run_matmul(dev, {*mm, a, b, c}, s));
    return mm->sums_of == DT_SUMS_OF_C ? make_sums(dev, mm, a, b, c, s) : DT_OK;
}
