/* matmul_lt.c - matmuls by cuBLASLt.
 *
 * The library expects column-major matrices. dtrain's C [m,n] with row distance ldc is C^T in this order, and
 * C^T = op(B)^T op(A)^T. The library's first operand is therefore B and its second A; nothing is copied. A bias along
 * dtrain's rows is a bias along the library's columns, which is the form that it supports. dtrain's D is the library's
 * C, and dtrain's C its D.
 *
 * Sums are float, though some kernels round them to C's type before they add D or bias. Repeated calls give the same
 * bits: algorithms that split k are used only if they store partial sums in float and add them in a separate step.
 * Those that add them in C are excluded. fp32 is fp32, not TF32.
 *
 * The library takes about 10 us of host time to choose an algorithm for a shape, so the choices are cached. Each form
 * of matmul is verified before its first use (device_check.h).
 *
 * The library's epilogue computes GELU from P before rounding, as the tanh approximation. */
#include "matmul.h"
#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

enum {
    CACHE_SETS = 256,
    CACHE_WAYS = 8,                             /* a set's oldest entry is replaced */
    FORMS = 1 << 11,                            /* number of values of form_of */
    TRIAL_LEN = (DT_TRIAL_ELEMS + 63) / 64 * 64 /* floats per matrix of a trial */
};

/* Everything that the choice of an algorithm depends on. */
typedef struct shape_key {
    int64_t m, n, k, lda, ldb, ldc, ldd, ld_aux;
    int64_t workspace_nbytes;
    uint32_t form;
    uint16_t aligned[6]; /* A, B, C, D, bias, aux: bytes, a power of 2 up to 16 */
} shape_key;

typedef struct plan {
    uint64_t used; /* 0: empty */
    shape_key key;
    bool possible;
    cublasLtMatmulAlgo_t algo;
} plan;

typedef enum verdict { UNTRIED, RIGHT, WRONG } verdict;

struct cuda_library {
    cublasLtHandle_t handle;
    plan plans[CACHE_SETS][CACHE_WAYS];
    uint64_t clock;
    uint8_t verdicts[FORMS];
    bool warned;
    float *trial; /* five matrices of DT_TRIAL_ELEMS on the device */
};

static dt_err fail(cublasStatus_t status, const char *call)
{
    return dt_fail(DT_ERR_FAULT, "%s: %s", call, cublasLtGetStatusString(status));
}

#define DT_LT(call)                                                                                                    \
    do {                                                                                                               \
        const cublasStatus_t dt_l_ = (call);                                                                           \
        if (dt_l_ != CUBLAS_STATUS_SUCCESS) return fail(dt_l_, #call);                                                 \
    } while (0)

/* ---- a matmul as library descriptors ---------------------------------------------------------------------------- */

typedef struct call {
    cublasLtMatmulDescOpaque_t matmul;
    cublasLtMatrixLayoutOpaque_t first, second, addend, result; /* B, A, D, C */
    bool adds;
} call;

static cudaDataType type_of(dt_dtype dt)
{
    return dt == DT_BF16 ? CUDA_R_16BF : dt == DT_F16 ? CUDA_R_16F : CUDA_R_32F;
}

#define SET(attribute, value)                                                                                          \
    DT_LT(cublasLtMatmulDescSetAttribute(&x->matmul, CUBLASLT_MATMUL_DESC_##attribute, &(value), sizeof(value)))

static cublasLtEpilogue_t epilogue_of(const dt_matmul *mm)
{
    if (mm->epilogue == DT_EPILOGUE_ACT_BACKWARD) return CUBLASLT_EPILOGUE_DGELU;
    if (mm->epilogue == DT_EPILOGUE_NONE) return mm->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    if (mm->aux) return mm->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return mm->bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
}

static dt_err describe_epilogue(call *x, const dt_matmul *mm)
{
    const cublasLtEpilogue_t epilogue = epilogue_of(mm);
    SET(EPILOGUE, epilogue);
    if (mm->bias) SET(BIAS_POINTER, mm->bias);
    if (mm->epilogue == DT_EPILOGUE_NONE || !mm->aux) return DT_OK;
    SET(EPILOGUE_AUX_POINTER, mm->aux);
    SET(EPILOGUE_AUX_LD, mm->ld_aux);
    return DT_OK;
}

static dt_err describe(call *x, const dt_matmul *mm)
{
    const cublasOperation_t first = mm->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                            second = mm->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cudaDataType in = type_of(mm->dt), out = type_of(mm->c_dtype);
    const uint64_t m = (uint64_t)mm->m, n = (uint64_t)mm->n, k = (uint64_t)mm->k;
    x->adds = mm->accumulate || mm->addend;
    DT_LT(cublasLtMatmulDescInit(&x->matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    SET(TRANSA, first);
    SET(TRANSB, second);
    DT_TRY(describe_epilogue(x, mm));
    DT_LT(cublasLtMatrixLayoutInit(&x->first, in, mm->trans_b ? k : n, mm->trans_b ? n : k, mm->ldb));
    DT_LT(cublasLtMatrixLayoutInit(&x->second, in, mm->trans_a ? m : k, mm->trans_a ? k : m, mm->lda));
    DT_LT(cublasLtMatrixLayoutInit(&x->addend, out, n, m, mm->addend ? mm->ldd : mm->ldc));
    DT_LT(cublasLtMatrixLayoutInit(&x->result, out, n, m, mm->ldc));
    return DT_OK;
}

/* ---- algorithms -------------------------------------------------------------------------------------------------- */

/* Reports at most 16 bytes, which is all that the library's fast kernels need. A larger alignment of a tensor depends
 * on the number of ranks (DT_SHARD_ALIGN). The choice of an algorithm, and so the bits of a matmul, must not. */
static uint32_t alignment_of(const void *p)
{
    const uintptr_t at = (uintptr_t)p | 16;
    return (uint32_t)(at & (~at + 1));
}

static uint32_t number_of(dt_dtype dt) { return dt == DT_BF16 ? 1 : dt == DT_F16 ? 2 : 0; }

/* The form: transposes, types, addend, bias, epilogue. Verified once per form, and part of the key of a shape. */
static uint32_t form_of(const dt_matmul *mm)
{
    return (uint32_t)mm->trans_a | (uint32_t)mm->trans_b << 1 | number_of(mm->dt) << 2 | number_of(mm->c_dtype) << 4 |
           (uint32_t)(mm->accumulate || mm->addend) << 6 | (uint32_t)(mm->bias != NULL) << 7 |
           (uint32_t)mm->epilogue << 8 | (uint32_t)(mm->epilogue == DT_EPILOGUE_ACT && mm->aux) << 10;
}

static shape_key key_of(const dt_matmul *mm, const void *a, const void *b, const void *c, size_t workspace_nbytes)
{
    const bool act = mm->epilogue != DT_EPILOGUE_NONE;
    shape_key key;
    memset(&key, 0, sizeof key);
    key.m = mm->m, key.n = mm->n, key.k = mm->k;
    key.lda = mm->lda, key.ldb = mm->ldb, key.ldc = mm->ldc;
    key.ldd = mm->accumulate ? mm->ldc : mm->addend ? mm->ldd : 0;
    key.ld_aux = act && mm->aux ? mm->ld_aux : 0;
    key.workspace_nbytes = (int64_t)workspace_nbytes;
    key.form = form_of(mm);
    const void *const p[] = {a, b, c, mm->accumulate ? c : mm->addend, mm->bias, act ? mm->aux : NULL};
    for (int i = 0; i < 6; i++) key.aligned[i] = (uint16_t)alignment_of(p[i]);
    return key;
}

static dt_err describe_preference(cublasLtMatmulPreferenceOpaque_t *how, const shape_key *key)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES};
    const uint64_t workspace = (uint64_t)key->workspace_nbytes;
    const uint32_t splits = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* or no split */
    DT_LT(cublasLtMatmulPreferenceInit(how));
    DT_LT(cublasLtMatmulPreferenceSetAttribute(how, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                               sizeof workspace));
    DT_LT(
        cublasLtMatmulPreferenceSetAttribute(how, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &splits, sizeof splits));
    for (int i = 0; i < 4; i++) {
        const uint32_t nbytes = key->aligned[i];
        DT_LT(cublasLtMatmulPreferenceSetAttribute(how, alignments[i], &nbytes, sizeof nbytes));
    }
    return DT_OK;
}

/* Choose an algorithm, or record that there is none. */
static dt_err choose(cuda_library *library, call *x, plan *found)
{
    cublasLtMatmulPreferenceOpaque_t how;
    cublasLtMatmulHeuristicResult_t best;
    int n = 0;
    DT_TRY(describe_preference(&how, &found->key));
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(library->handle, &x->matmul, &x->first, &x->second,
                                                                 &x->addend, &x->result, &how, 1, &best, &n);
    found->possible = status == CUBLAS_STATUS_SUCCESS && n == 1 && best.state == CUBLAS_STATUS_SUCCESS;
    if (found->possible) found->algo = best.algo;
    return DT_OK;
}

/* The plan for this key: the cached one, or a new one that replaces the least recently used plan of its set. */
static dt_err find_plan(cuda_library *library, call *x, const shape_key *key, plan **found)
{
    uint64_t hash = 0, words[sizeof *key / sizeof(uint64_t)];
    memcpy(words, key, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) hash = dt_mix64(hash ^ words[i]);
    plan *set = library->plans[hash % CACHE_SETS], *oldest = set;
    for (plan *p = set; p < set + CACHE_WAYS; p++) {
        if (p->used && !memcmp(&p->key, key, sizeof *key)) {
            p->used = ++library->clock;
            *found = p;
            return DT_OK;
        }
        if (p->used < oldest->used) oldest = p;
    }
    oldest->used = 0;
    oldest->key = *key;
    DT_TRY(choose(library, x, oldest));
    oldest->used = ++library->clock;
    *found = oldest;
    return DT_OK;
}

static dt_err run(cuda_library *library, const dt_matmul *mm, const void *a, const void *b, void *c,
                  size_t workspace_nbytes, dt_stream *s, bool *taken)
{
    const shape_key key = key_of(mm, a, b, c, workspace_nbytes);
    call x;
    plan *p = NULL;
    DT_TRY(describe(&x, mm));
    DT_TRY(find_plan(library, &x, &key, &p));
    *taken = p->possible;
    if (!p->possible) return DT_OK;
    const float one = 1, beta = x.adds ? 1 : 0;
    DT_LT(cublasLtMatmul(library->handle, &x.matmul, &one, b, &x.first, a, &x.second, &beta,
                         mm->addend ? mm->addend : c, &x.addend, c, &x.result, &p->algo, s->workspace, workspace_nbytes,
                         s->handle));
    return DT_OK;
}

/* ---- trials ------------------------------------------------------------------------------------------------------ */

typedef struct trial {
    cuda_library *library;
    dt_stream *stream;
} trial;

/* Compute a matmul of host matrices, synchronously. */
static dt_err run_on_copies(void *of, const dt_matmul *mm, const void *a, const void *b, void *c)
{
    const trial *t = of;
    const cudaStream_t stream = t->stream->handle;
    const size_t nbytes = DT_TRIAL_ELEMS * sizeof(float);
    const void *const host[] = {a, b, c, mm->bias, mm->addend};
    float *device[5];
    dt_matmul mine = *mm;
    bool taken = false;
    for (int i = 0; i < 5; i++) {
        device[i] = t->library->trial + i * TRIAL_LEN;
        if (host[i]) DT_CUDA(cudaMemcpyAsync(device[i], host[i], nbytes, cudaMemcpyHostToDevice, stream));
    }
    if (mm->bias) mine.bias = device[3];
    if (mm->addend) mine.addend = device[4];
    DT_TRY(run(t->library, &mine, device[0], device[1], device[2], DT_GPU_WORKSPACE_NBYTES, t->stream, &taken));
    DT_CUDA(cudaMemcpyAsync(c, device[2], nbytes, cudaMemcpyDeviceToHost, stream));
    DT_CUDA(cudaStreamSynchronize(stream));
    return taken ? DT_OK : dt_fail(DT_ERR_FAULT, "cuBLASLt has no algorithm for this matmul");
}

static void warn_of_form(cuda_library *library, const dt_matmul *mm)
{
    if (library->warned) return;
    DT_INFO("cuBLASLt %zu computes wrong matmul results (first case: %s, A %s, B %s%s%s). dtrain's own kernel replaces "
            "it for such matmuls, which is slower; another version of cuBLASLt may help",
            cublasLtGetVersion(), dt_dtype_name(mm->dt), mm->trans_a ? "transposed" : "plain",
            mm->trans_b ? "transposed" : "plain", mm->accumulate || mm->addend ? ", with an addend" : "",
            mm->bias ? ", with bias" : "");
    library->warned = true;
}

/* A trial waits for all work queued before it, and may be the first call that returns an error of this work. */
static bool gpu_has_failed(const dt_stream *s)
{
    const cudaError_t state = cudaStreamQuery(s->handle);
    (void)cudaGetLastError(); /* cudaErrorNotReady is not an error of the next launch */
    return state != cudaSuccess && state != cudaErrorNotReady;
}

/* Does the library compute this form correctly? Verified once with exact sums of small integers. */
static bool computes(cuda_library *library, const dt_matmul *mm, dt_stream *s)
{
    uint8_t *v = &library->verdicts[form_of(mm)];
    if (*v == UNTRIED) {
        const dt_matmul form = dt_trial_form(mm, 40, 48, 32, 8);
        trial t = {.library = library, .stream = s};
        const bool right = dt_matmul_is_right(&form, run_on_copies, &t);
        if (!right && gpu_has_failed(s)) return false; /* dtrain's kernel, called next, reports the error */
        *v = right ? RIGHT : WRONG;
        if (*v == WRONG) warn_of_form(library, mm);
    }
    return *v == RIGHT;
}

/* Bits of a form that describe the storage of A and B: two for transposes, two for their type. */
enum { STORED = 15 };

bool cuda_library_distrust(cuda_library *library, const dt_matmul *mm)
{
    const uint32_t stored = form_of(mm) & STORED;
    bool changed = false;
    for (uint32_t form = 0; form < sizeof library->verdicts; form++) {
        if ((form & STORED) != stored || library->verdicts[form] == WRONG) continue;
        library->verdicts[form] = WRONG;
        changed = true;
    }
    return changed;
}

size_t cuda_library_version(void) { return cublasLtGetVersion(); }

/* ---- matmuls that the library supports -------------------------------------------------------------------------- */

bool cuda_library_takes(cuda_library *library, const dt_matmul *mm, const void *a, const void *b, const void *c,
                        dt_stream *s)
{
    return dt_gpu_library_takes(mm, a, b, c) && computes(library, mm, s);
}

dt_err cuda_library_matmul(cuda_library *library, const dt_matmul *mm, const void *a, const void *b, void *c,
                           size_t workspace_nbytes, dt_stream *s, bool *taken)
{
    *taken = false;
    if (!cuda_library_takes(library, mm, a, b, c, s)) return DT_OK;
    return run(library, mm, a, b, c, workspace_nbytes, s, taken);
}

dt_err cuda_library_open(cuda_library **library)
{
    cuda_library *l = *library = calloc(1, sizeof *l);
    DT_CHECK(l, DT_ERR_MEMORY, "cuda device: out of memory for %zu bytes of matmul plans", sizeof *l);
    const cublasStatus_t status = cublasLtCreate(&l->handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
        DT_INFO("cuBLASLt is not usable (%s): dtrain's own kernels compute all matmuls, which is slower",
                cublasLtGetStatusString(status));
        free(l);
        *library = NULL;
        return DT_OK;
    }
    DT_CUDA(cudaMalloc((void **)&l->trial, 5 * TRIAL_LEN * sizeof(float)));
    return DT_OK;
}

void cuda_library_close(cuda_library *library)
{
    if (!library) return;
    cudaFree(library->trial);
    cublasLtDestroy(library->handle);
    free(library);
}
