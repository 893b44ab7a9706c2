/* cublaslt.cc - matmuls as cuBLASLt defines them, as plain loops over matrices by columns, so that cuda/matmul_lt.c
 * and what matmul.cu makes of it run without a GPU. What the caller promised when it asked for an algorithm is
 * checked when it is run, and the workspace is spoilt. */
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cublasLt.h>
#include "faults.h"
#include "library.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace
{

void demand(bool holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "cublaslt of the simulator: %s\n", what);
    abort();
}

float load(const void *p, cudaDataType type, int64_t i)
{
    if (type == CUDA_R_32F) return static_cast<const float *>(p)[i];
    if (type == CUDA_R_16F) return static_cast<const __half *>(p)[i];
    return static_cast<const __nv_bfloat16 *>(p)[i];
}
void store(void *p, cudaDataType type, int64_t i, float x)
{
    if (type == CUDA_R_32F)
        static_cast<float *>(p)[i] = x;
    else if (type == CUDA_R_16F)
        static_cast<__half *>(p)[i] = x;
    else
        static_cast<__nv_bfloat16 *>(p)[i] = x;
}

/* GELU by tanh, and its slope. */
float step(float x) { return 1 / (1 + expf(-1.59576912f * x * (1 + 0.044715f * x * x))); }
float gelu(float x) { return x * step(x); }
float gelu_slope(float x)
{
    const float s = step(x), bell = s * (1 - s);
    return s + (bell > 0 ? x * bell * 1.59576912f * (1 + 0.134145f * x * x) : bell);
}

bool layout_holds(const cublasLtMatrixLayoutOpaque_t &x) { return x.rows > 0 && x.cols > 0 && x.ld >= (int64_t)x.rows; }

size_t size_of(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

/* cols columns of `rows` elements, ld apart. */
void touches(const void *p, const cublasLtMatrixLayoutOpaque_t &x, bool write)
{
    const size_t size = size_of(x.type);
    for (uint64_t j = 0; j < x.cols; j++)
        sim_library_touches(static_cast<const char *>(p) + j * (uint64_t)x.ld * size, x.rows * size, write);
}

/* For tests: a library that leaves out the last term of long sums where its first operand is transposed, which no trial
 * of a small matmul shows. */
bool is_wrong(bool first_transposed, int64_t k)
{
    static const bool wanted = getenv("DTRAIN_SIM_WRONG_MATMULS") != nullptr;
    return wanted && first_transposed && k > 256;
}

bool holds_alignment(const void *p, uint32_t nbytes) { return reinterpret_cast<uintptr_t>(p) % nbytes == 0; }

} // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = nullptr;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
size_t cublasLtGetVersion(void) { return 0; }
const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS         ? "success"
           : status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported"
                                                   : "invalid";
}

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t x, cudaDataType type, uint64_t rows, uint64_t cols,
                                        int64_t ld)
{
    *x = {type, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t x, cublasComputeType_t, cudaDataType)
{
    *x = {};
    x->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t x, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t nbytes)
{
    void *const to = attribute == CUBLASLT_MATMUL_DESC_TRANSA                 ? (void *)&x->transposed[0]
                     : attribute == CUBLASLT_MATMUL_DESC_TRANSB               ? (void *)&x->transposed[1]
                     : attribute == CUBLASLT_MATMUL_DESC_EPILOGUE             ? (void *)&x->epilogue
                     : attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER         ? (void *)&x->bias
                     : attribute == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER ? (void *)&x->aux
                                                                              : (void *)&x->aux_ld;
    demand(nbytes == (attribute <= CUBLASLT_MATMUL_DESC_EPILOGUE ? 4u : 8u), "an attribute of another size");
    memcpy(to, value, nbytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t how)
{
    *how = {0, 7, {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t how,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t nbytes)
{
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
        demand(nbytes == sizeof how->workspace, "a preference of another size");
        memcpy(&how->workspace, value, nbytes);
        return CUBLAS_STATUS_SUCCESS;
    }
    demand(nbytes == sizeof(uint32_t), "a preference of another size");
    memcpy(attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK
               ? &how->reductions
               : &how->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
           value, nbytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t x, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t how, int,
                                              cublasLtMatmulHeuristicResult_t *results, int *n_results)
{
    const bool ta = x->transposed[0] == CUBLAS_OP_T, tb = x->transposed[1] == CUBLAS_OP_T;
    *n_results = 0;
    if (!layout_holds(*a) || !layout_holds(*b) || !layout_holds(*c) || !layout_holds(*d) ||
        (ta ? a->cols : a->rows) != d->rows || (tb ? b->rows : b->cols) != d->cols ||
        (ta ? a->rows : a->cols) != (tb ? b->cols : b->rows) || c->rows != d->rows || c->cols != d->cols)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (a->type != b->type || c->type != d->type || (x->aux && (x->aux_ld % 8 || !holds_alignment(x->aux, 16))))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    results[0] = {};
    results[0].algo.workspace = results[0].workspaceSize = how->workspace;
    memcpy(results[0].algo.alignment, how->alignment, sizeof how->alignment);
    *n_results = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t x, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb, const void *beta,
                              const void *c, cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_nbytes,
                              cudaStream_t stream)
{
    if (sim_passes("cublasLtMatmul") != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
    const bool ta = x->transposed[0] == CUBLAS_OP_T, tb = x->transposed[1] == CUBLAS_OP_T;
    const bool gelu_of_it = (x->epilogue & CUBLASLT_EPILOGUE_GELU) != 0, slope = x->epilogue == CUBLASLT_EPILOGUE_DGELU;
    const float scale = *static_cast<const float *>(alpha), add = *static_cast<const float *>(beta);
    const int64_t rows = (int64_t)ld->rows, cols = (int64_t)ld->cols, all = (int64_t)(ta ? la->rows : la->cols),
                  k = is_wrong(ta, all) ? all - 1 : all;
    demand(holds_alignment(a, algo->alignment[0]) && holds_alignment(b, algo->alignment[1]) &&
               (add == 0 || holds_alignment(c, algo->alignment[2])) && holds_alignment(d, algo->alignment[3]),
           "a matrix is aligned to less than was said");
    demand(workspace_nbytes >= algo->workspace, "the workspace is smaller than was said");
    demand(c != d || add == 0 || lc->ld == ld->ld, "C is D in another layout");
    sim_library_begins(stream, "cublasLtMatmul");
    touches(a, *la, false);
    touches(b, *lb, false);
    if (add != 0) touches(c, *lc, false);
    touches(d, *ld, true);
    if (x->epilogue & CUBLASLT_EPILOGUE_BIAS) sim_library_touches(x->bias, (size_t)rows * size_of(ld->type), false);
    if (x->aux) touches(x->aux, {ld->type, ld->rows, ld->cols, x->aux_ld}, gelu_of_it);
    sim_library_touches(workspace, algo->workspace, true);
    memset(workspace, 0xff, algo->workspace);
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = 0; i < rows; i++) {
            float sum = 0;
            for (int64_t p = 0; p < k; p++)
                sum = fmaf(load(a, la->type, ta ? i * la->ld + p : p * la->ld + i),
                           load(b, lb->type, tb ? p * lb->ld + j : j * lb->ld + p), sum);
            float y = scale * sum + (add != 0 ? add * load(c, lc->type, j * lc->ld + i) : 0);
            if (x->epilogue & CUBLASLT_EPILOGUE_BIAS) y += load(x->bias, ld->type, i);
            if (gelu_of_it && x->aux) store(x->aux, ld->type, j * x->aux_ld + i, y);
            if (gelu_of_it) y = gelu(y);
            if (slope) y *= gelu_slope(load(x->aux, ld->type, j * x->aux_ld + i));
            store(d, ld->type, j * ld->ld + i, y);
        }
    sim_library_ends();
    return CUBLAS_STATUS_SUCCESS;
}
