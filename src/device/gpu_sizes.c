/* gpu_sizes.c - sizes that a GPU of any kind has in common with a plan. */
#include "dtrain/device/gpu_sizes.h"

/* The workspace of the default stream, allocated yet or not, so that a plan and later measurements agree, and the
 * memory that the driver reserves per process, which no call reports. Other streams are in the ledger. */
size_t dt_gpu_overhead(const dt_device *dev)
{
    static const size_t context_nbytes = (size_t)512 << 20; /* an estimate, not measured */
    return DT_GPU_WORKSPACE_NBYTES + context_nbytes;
}

int64_t dt_gpu_norm_scratch_elems(const dt_device *dev, int64_t width) { return 2 * DT_GPU_NORM_PARTS * width; }

/* Where a token is drawn from a row, a block keeps all that it needs to itself. */
size_t dt_gpu_draw_scratch_nbytes(const dt_device *dev, const dt_token_rows *rows) { return 0; }

/* At most 4096 rows and 768 MiB of logits, in equal chunks. Each chunk reads the vocabulary matrix twice and reads and
 * writes its gradient, so many rows are wanted; products of fewer than some thousand rows do not fill a GPU. */
int64_t dt_gpu_classifier_rows(const dt_device *dev, int64_t n_vocab, int64_t n_tok)
{
    enum { MOST = 4096, STEP = 128 };
    const int64_t fit = ((int64_t)768 << 20) / (n_vocab * (int64_t)sizeof(float)) / STEP * STEP,
                  most = fit < STEP ? STEP : dt_min_i64(fit, MOST), chunks = (n_tok + most - 1) / most,
                  even = (n_tok + chunks - 1) / chunks, rows = (even + STEP - 1) / STEP * STEP;
    return dt_min_i64(rows, n_tok);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* For sums of a fixed order the library keeps all of dS in 16 bits, in whole tiles, and somewhat more. */
dt_gpu_attention_library dt_gpu_attention_library_scratch(const dt_attention *at)
{
    enum { TILE = 128, BESIDE_NBYTES = 2 << 20 };
    const int64_t len = at->max_q_len, n_seq = len > 0 ? dt_ceil_div(at->n_tok, len) : 0,
                  padded = dt_ceil_div(len, TILE) * TILE, most_nbytes = (int64_t)4 << 30;
    dt_gpu_attention_library s = {.work_nbytes = 2 * n_seq * at->n_heads * padded * padded + BESIDE_NBYTES};
    if (at->dt == DT_F32 || s.work_nbytes > most_nbytes) return (dt_gpu_attention_library){0};
    if (at->n_heads != at->n_kv_heads) s.each_nbytes = 2 * (int64_t)at->n_tok * at->n_heads * at->head_dim;
    return s;
}

/* Pairs of floats begin at a multiple of 8, what the library has at one of 256. */
int64_t dt_gpu_attention_scratch_elems(const dt_device *dev, const dt_attention *at)
{
    enum { ALIGNED = 256 };
    const int64_t pairs = 2 * (int64_t)at->n_tok * at->n_heads + 1;
    const dt_gpu_attention_library s = dt_gpu_attention_library_scratch(at);
    if (!at->by_library || s.work_nbytes == 0) return pairs;
    return pairs + (2 * s.each_nbytes + s.work_nbytes + ALIGNED) / (int64_t)sizeof(float);
}

/* ---- products in int8 -------------------------------------------------------------------------------------------- */

static size_t in_pieces(size_t nbytes) { return (nbytes + 255) / 256 * 256; }

dt_gpu_int8_places dt_gpu_int8_workspace(int64_t k)
{
    enum { ROWS = 64 };
    dt_gpu_int8_places w = {.ld = dt_ceil_div(k, DT_GPU_INT8_CHUNK) * DT_GPU_INT8_CHUNK};
    w.n_outliers = w.marks + in_pieces(DT_GPU_INT8_SPLITS * (size_t)k);
    w.outliers = w.n_outliers + in_pieces(sizeof(int));
    w.scale = w.outliers + in_pieces((size_t)k * sizeof(int));
    w.rows =
        (int64_t)(DT_GPU_WORKSPACE_NBYTES - w.scale - in_pieces(1)) / (w.ld + (int64_t)sizeof(float)) / ROWS * ROWS;
    w.codes = w.scale + in_pieces((size_t)w.rows * sizeof(float));
    return w;
}
