/* product.cu - matrix products: which way each takes, and the passes around it.
 *
 * cuBLASLt computes what it has one kernel for. What it lacks of a product, as an activation, is a pass over C where that
 * rounds nothing twice; else our own kernels take the whole. They also take every product that is to be batch-invariant,
 * and all of them where there is no library, or DTRAIN_CUDA_PRODUCT=own says so. Gradients of biases are passes of their
 * own, with the bits of bias_backward. */
#include "product_tile.cuh"
#include <stdlib.h>
#include <string.h>

struct cuda_products {
    cuda_library *library; /* NULL: our own kernels alone */
};

dt_err cuda_products_open(cuda_state *cuda)
{
    cuda->products = (cuda_products *)calloc(1, sizeof *cuda->products);
    DT_CHECK(cuda->products, DT_ERR_MEMORY, "cuda device: no memory for matrix products");
    const char *way = getenv("DTRAIN_CUDA_PRODUCT");
    if (cuda->planning || (way && !strcmp(way, "own"))) return DT_OK;
    return cuda_library_open(&cuda->products->library);
}

void cuda_products_close(cuda_state *cuda)
{
    if (cuda->products) cuda_library_close(cuda->products->library);
    free(cuda->products);
    cuda->products = NULL;
}

/* ---- our own kernels --------------------------------------------------------------------------------------------- */

static bool rows_fit(const void *p, int64_t ld, dt_dtype dt)
{
    return !p || vectors_fit((size_t)ld * dt_dtype_size(dt), p);
}

static product describe(const dt_matmul *mm, const void *a, const void *b, void *c)
{
    product p = {};
    p.m = mm->m, p.n = mm->n, p.k = mm->k;
    p.a = a, p.lda = mm->lda, p.b = b, p.ldb = mm->ldb, p.c = c, p.ldc = mm->ldc;
    p.c_float = mm->c_dtype == DT_F32;
    p.d = mm->accumulate ? c : mm->addend;
    p.ldd = mm->accumulate ? mm->ldc : mm->ldd;
    p.d_float = (mm->accumulate ? mm->c_dtype : mm->addend_dtype) == DT_F32;
    p.bias = mm->bias;
    p.epilogue = mm->epilogue, p.act = mm->act, p.aux = mm->aux, p.ld_aux = mm->ld_aux;
    p.vectors = rows_fit(c, p.ldc, mm->c_dtype) && rows_fit(p.d, p.ldd, p.d_float ? DT_F32 : mm->dt) &&
                rows_fit(p.bias, 0, mm->dt) && (p.epilogue == DT_EPILOGUE_NONE || rows_fit(p.aux, p.ld_aux, mm->dt));
    return p;
}

/* A product without terms, C = end of (D + bias): a block for a piece of a row, a thread for 8 elements of it. */
template <class T> __global__ void finish_kernel(product p)
{
    enum { N = 8 };
    const int64_t row = blockIdx.x, col = (blockIdx.y * (int64_t)blockDim.x + threadIdx.x) * N, left = p.n - col;
    if (left <= 0) return;
    float x[N] = {};
    finish_elements<T, N>(p, row, col, x, left < N ? (int)left : N);
}

static dt_err finish(const product &p, dt_dtype dt, dt_stream *s)
{
    enum { MOST = 256 };
    const int64_t n_threads = ceil_div(ceil_div(p.n, 8), WARP) * WARP;
    const int threads = n_threads < MOST ? (int)n_threads : MOST;
    const dim3 grid((unsigned)p.m, (unsigned)ceil_div(n_threads, threads));
    CUDA_BY_DTYPE(dt, T, "matmul", { launch(s, grid, threads, 0, finish_kernel<T>, p); });
    CUDA_LAUNCHED();
    return DT_OK;
}

static dt_err own_product(dt_device *dev, const dt_matmul *mm, const void *a, const void *b, void *c, dt_stream *s)
{
    const product p = describe(mm, a, b, c);
    if (mm->k == 0) return finish(p, mm->dt, s);
    if (mm->dt == DT_F32) return cuda_product_fma(dev, p, mm->trans_a, mm->trans_b, s);
    return cuda_product_mma(dev, p, mm->dt, mm->trans_a, mm->trans_b, s);
}

/* ---- sums for gradients of biases -------------------------------------------------------------------------------- */

/* sums[r] (+)= sum of row r of x, a warp for each row. */
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

/* ---- which way --------------------------------------------------------------------------------------------------- */

/* The product that the library may have a kernel for where it has none for the whole: P goes to where the activation
 * wants it. What is left is a pass over C: an activation, which starts from P as it was rounded, or a bias of another
 * type than C, which is fp32 and rounds nothing. */
static dt_err library_with_pass(dt_device *dev, const dt_matmul *mm, const void *a, const void *b, void *c,
                                dt_stream *s, bool *taken)
{
    const bool bias_is_left = mm->bias && mm->c_dtype != mm->dt, act = mm->epilogue == DT_EPILOGUE_ACT;
    if (mm->epilogue == DT_EPILOGUE_NONE && !bias_is_left) return DT_OK;
    void *to = act && mm->aux ? mm->aux : c;
    dt_matmul part = *mm, rest = *mm;
    if (mm->accumulate) part.addend = c, part.ldd = mm->ldc, part.addend_dtype = mm->c_dtype;
    part.accumulate = rest.accumulate = false;
    part.epilogue = DT_EPILOGUE_NONE;
    part.ldc = to == c ? mm->ldc : mm->ld_aux;
    (bias_is_left ? part.bias : rest.bias) = NULL;
    DT_TRY(cuda_library_product(cuda_of(dev)->products->library, &part, a, b, to, s, taken));
    if (!*taken) return DT_OK;
    rest.addend = to, rest.ldd = part.ldc, rest.addend_dtype = mm->c_dtype;
    if (act) rest.aux = NULL; /* it is written */
    return finish(describe(&rest, NULL, NULL, c), mm->dt, s);
}

static dt_err run_product(dt_device *dev, const dt_matmul *mm, const void *a, const void *b, void *c, dt_stream *s)
{
    cuda_library *library = cuda_of(dev)->products->library;
    bool taken = false;
    if (library && !mm->batch_invariant && mm->k > 0) {
        DT_TRY(cuda_library_product(library, mm, a, b, c, s, &taken));
        if (!taken) DT_TRY(library_with_pass(dev, mm, a, b, c, s, &taken));
    }
    return taken ? DT_OK : own_product(dev, mm, a, b, c, s);
}

dt_err cuda_matmul(dt_device *dev, const dt_matmul *mm, const void *a, const void *b, void *c, dt_stream *stream)
{
    DT_CHECK(mm->dt == DT_F32 || mm->dt == DT_BF16 || mm->dt == DT_F16, DT_ERR_ARG, "matmul: matrices of %s",
             dt_dtype_name(mm->dt));
    DT_TRY(dt_matmul_check(mm, "cuda"));
    dt_stream *s = cuda_stream(dev, stream, "matmul");
    if (mm->sums_of != DT_SUMS_OF_C) DT_TRY(make_sums(dev, mm, a, b, c, s));
    if (mm->m > 0 && mm->n > 0) DT_TRY(run_product(dev, mm, a, b, c, s));
    return mm->sums_of == DT_SUMS_OF_C ? make_sums(dev, mm, a, b, c, s) : DT_OK;
}
