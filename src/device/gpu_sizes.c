/* gpu_sizes.c - sizes of a GPU's workspaces, for the CUDA device and for plans. */
#include "dtrain/device/gpu_sizes.h"

/* The workspace of the default stream, and the memory that the driver reserves per process. The workspace counts even
 * before it is allocated, so that plans and measurements agree. No call reports the driver's memory. The ledger counts
 * the other streams. */
size_t dt_gpu_overhead(const dt_device *dev)
{
    static const size_t context_nbytes = (size_t)512 << 20; /* an estimate, not measured */
    return DT_GPU_WORKSPACE_NBYTES + context_nbytes;
}

int64_t dt_gpu_norm_scratch_elems(const dt_device *dev, int64_t width) { return 2 * DT_GPU_NORM_PARTS * width; }

/* Each block of the sampling kernel keeps its data to itself, so no scratch is needed. */
size_t dt_gpu_draw_scratch_nbytes(const dt_device *dev, const dt_token_rows *rows) { return 0; }

/* At most 4096 rows and 768 MiB of logits, in chunks of equal size. Each chunk reads the vocabulary matrix twice and
 * reads and writes its gradient, so large chunks are faster. Matmuls of fewer than a few thousand rows do not fill a
 * GPU. */
int64_t dt_gpu_classifier_rows(const dt_device *dev, int64_t n_vocab, int64_t n_tok)
{
    enum { MAX_ROWS = 4096, STEP = 128 };
    const int64_t fit = ((int64_t)768 << 20) / (n_vocab * (int64_t)sizeof(float)) / STEP * STEP,
                  most = fit < STEP ? STEP : dt_min_i64(fit, MAX_ROWS), chunks = (n_tok + most - 1) / most,
                  even = (n_tok + chunks - 1) / chunks, rows = (even + STEP - 1) / STEP * STEP;
    return dt_min_i64(rows, n_tok);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* For sums in a fixed order the library stores all of dS in 16 bits, padded to whole tiles, plus up to 2 MiB. */
dt_gpu_attention_library dt_gpu_attention_library_scratch(const dt_attention *at)
{
    enum { TILE = 128, EXTRA_NBYTES = 2 << 20 };
    const int64_t len = at->max_q_len, n_seq = len > 0 ? dt_ceil_div(at->n_tok, len) : 0,
                  padded = dt_ceil_div(len, TILE) * TILE, most_nbytes = (int64_t)4 << 30;
    dt_gpu_attention_library s = {.work_nbytes = 2 * n_seq * at->n_heads * padded * padded + EXTRA_NBYTES};
    if (at->dt == DT_F32 || s.work_nbytes > most_nbytes) return (dt_gpu_attention_library){0};
    if (at->n_heads != at->n_kv_heads) s.each_nbytes = 2 * (int64_t)at->n_tok * at->n_heads * at->head_dim;
    return s;
}

/* Pairs of floats are aligned to 8 bytes, the library's memory to 256. */
int64_t dt_gpu_attention_scratch_elems(const dt_device *dev, const dt_attention *at)
{
    enum { ALIGNED = 256 };
    const int64_t pairs = 2 * (int64_t)at->n_tok * at->n_heads + 1;
    const dt_gpu_attention_library s = dt_gpu_attention_library_scratch(at);
    if (!at->by_library || s.work_nbytes == 0) return pairs;
    return pairs + (2 * s.each_nbytes + s.work_nbytes + ALIGNED) / (int64_t)sizeof(float);
}

/* ---- linear attention -------------------------------------------------------------------------------------------- */

int64_t dt_gpu_conv_scratch_elems(const dt_device *dev, const dt_conv *c)
{
    return DT_GPU_CONV_PARTS * c->width * c->kernel;
}

int64_t dt_gpu_delta_blocks(const dt_delta *d)
{
    enum { MAX_BLOCKS = 264 }; /* twice the multiprocessors of an H100 */
    return dt_min_i64((int64_t)d->n_seq * d->n_v_heads, MAX_BLOCKS);
}

/* Tiles of a chunk; backward also has the state before each chunk. */
int64_t dt_gpu_delta_work_elems(const dt_delta *d, bool backward)
{
    enum { CHUNK = DT_DELTA_CHUNK };
    const int64_t k = d->k_dim, v = d->v_dim, forward = CHUNK * (2 * k + 3 * v + 3 * CHUNK) + k * v;
    if (!backward) return forward;
    return forward + CHUNK * (3 * k + 2 * v + CHUNK) + k * v + dt_ceil_div(d->max_len, CHUNK) * k * v;
}

int64_t dt_gpu_delta_scratch_elems(const dt_device *dev, const dt_delta *d, bool backward)
{
    return dt_gpu_delta_blocks(d) * dt_gpu_delta_work_elems(d, backward) +
           (backward ? 2 * (int64_t)d->n_tok * d->n_v_heads * d->k_dim : 0);
}

/* ---- matmuls ---------------------------------------------------------------------------------------------------- */

/* cuBLASLt has GELU by tanh, applied to P before rounding. Rows of aux must be multiples of 16 bytes, and aux must not
 * be D. The derivative is supported only without bias. */
static bool has_epilogue(const dt_matmul *mm)
{
    if (mm->epilogue == DT_EPILOGUE_NONE) return true;
    if (mm->act != DT_ACT_GELU_TANH || mm->dt == DT_F32 || (mm->aux && mm->act_of_aux)) return false;
    if (mm->aux && (mm->ld_aux % 8 || (uintptr_t)mm->aux % 16 || mm->aux == mm->addend)) return false;
    return mm->epilogue == DT_EPILOGUE_ACT || !mm->bias;
}

static bool has_types(const dt_matmul *mm)
{
    return (!mm->addend || mm->addend_dtype == mm->c_dtype) && (!mm->bias || mm->c_dtype == mm->dt);
}

bool dt_gpu_whole_row(const void *p, int64_t ld, dt_dtype dt)
{
    return (((uintptr_t)p | (uintptr_t)ld * dt_dtype_size(dt)) & 15) == 0;
}

static bool is_whole(const dt_matmul *mm, const void *a, const void *b, const void *c)
{
    if (mm->dt == DT_F32) return true;
    return mm->n % 8 == 0 && (mm->m % 8 == 0 || !mm->trans_a) && (mm->k % 8 == 0 || mm->trans_a) &&
           dt_gpu_whole_row(a, mm->lda, mm->dt) && dt_gpu_whole_row(b, mm->ldb, mm->dt) &&
           dt_gpu_whole_row(c, mm->ldc, mm->c_dtype) && dt_gpu_whole_row(mm->bias, 0, mm->dt) &&
           (!mm->addend || dt_gpu_whole_row(mm->addend, mm->ldd, mm->addend_dtype));
}

bool dt_gpu_library_takes(const dt_matmul *mm, const void *a, const void *b, const void *c)
{
    return has_types(mm) && has_epilogue(mm) && is_whole(mm, a, b, c);
}

/* One call of dtrain's own kernel is faster for small matmuls. */
bool dt_gpu_is_worth_cutting(const dt_matmul *mm)
{
    const double least = 0x1p27; /* multiply-adds */
    return mm->dt != DT_F32 && (double)mm->m * (double)mm->n * (double)mm->k >= least;
}
