/* count_ops.c - what each operation of the table costs a CUDA device: its launches, in their order, with the matmuls
 * that they compute and the bytes that they cannot but move. An array is read or written once by a launch, as if a
 * cache held what is used again.
 *
 * The launches are those of cuda/, which a test compares with what the simulator of CUDA is given. A sequence is taken
 * to be as long as the others of its batch: their lengths are device memory. */
#include "count_private.h"
#include "dtrain/device/gpu_sizes.h"
#include <string.h>

static double size_of(dt_dtype dt) { return (double)dt_dtype_size(dt); }

#define MOVES(op, bytes) count_moves(dev, s, op, (double)(bytes))

/* ---- moving and filling ------------------------------------------------------------------------------------------ */

/* What comes to the host are numbers above 0, in every type: it goes the ordinary way with them. */
static dt_err count_copy(dt_device *dev, void *dst, const void *src, size_t nbytes, dt_stream *s)
{
    const bool inside = count_on_device(dst) && count_on_device(src);
    if (nbytes == 0 || dst == src) return DT_OK;
    if (!count_on_device(dst)) memset(dst, 0x3f, nbytes);
    dt_count_queue(
        dev, s,
        &(dt_launch){.op = "copy", .memory = (inside ? 2 : 1) * (double)nbytes, .host = inside ? 0 : (double)nbytes});
    return DT_OK;
}

static dt_err count_zero(dt_device *dev, void *dst, size_t nbytes, dt_stream *s) { return MOVES("zero", nbytes); }

static dt_err count_convert(dt_device *dev, const void *src, dt_dtype src_dt, void *dst, dt_dtype dst_dt, int64_t n,
                            dt_stream *s)
{
    return MOVES("convert", (double)n * (size_of(src_dt) + size_of(dst_dt)));
}

static dt_err count_add_into(dt_device *dev, const void *src, dt_dtype src_dt, void *dst, dt_dtype dst_dt,
                             bool accumulate, int64_t n, dt_stream *s)
{
    return MOVES("add_into", (double)n * (size_of(src_dt) + (accumulate ? 2 : 1) * size_of(dst_dt)));
}

static dt_err count_add(dt_device *dev, const void *a, const void *b, void *c, dt_dtype dt, int64_t n, dt_stream *s)
{
    return MOVES("add", 3 * (double)n * size_of(dt));
}

static dt_err count_scale(dt_device *dev, const void *x, float factor, void *y, dt_dtype dt, int64_t n, dt_stream *s)
{
    return MOVES("scale", 2 * (double)n * size_of(dt));
}

static double moved_rows(int64_t n_rows, int64_t width, dt_dtype dt)
{
    return (double)n_rows * (2 * (double)width * size_of(dt) + sizeof(int32_t));
}

static dt_err count_gather_rows(dt_device *dev, const void *src, const int32_t *index, void *dst, int64_t n_rows,
                                int64_t width, dt_dtype dt, dt_stream *s)
{
    return MOVES("gather_rows", moved_rows(n_rows, width, dt));
}

static dt_err count_scatter_rows(dt_device *dev, const void *src, const int32_t *index, void *dst, int64_t n_rows,
                                 int64_t width, dt_dtype dt, dt_stream *s)
{
    return MOVES("scatter_rows", moved_rows(n_rows, width, dt));
}

static dt_err count_patches(dt_device *dev, const dt_patches *p, const uint8_t *pixels, void *out, dt_stream *s)
{
    const double seen = (double)(dt_patches_rows(p) - p->lead), written = (double)dt_patches_rows(p);
    return MOVES("patches", (double)p->n_images * (double)dt_patches_width(p) * (seen + written * size_of(p->dt)));
}

/* ---- embedding --------------------------------------------------------------------------------------------------- */

static dt_err count_embedding_forward(dt_device *dev, const int32_t *token, const int32_t *pos, const void *wte,
                                      const void *wpe, void *out, int64_t n_tok, int64_t width, dt_dtype dt,
                                      dt_stream *s)
{
    return MOVES("embedding_forward", (wpe ? 3 : 2) * (double)n_tok * (double)width * size_of(dt));
}

/* As if no token came twice. A second launch joins the sums of tokens that lie on both sides of a cut. */
static dt_err count_embedding_backward(dt_device *dev, const void *dout, const int32_t *id, const int32_t *order,
                                       void *table_grad, int64_t n_tok, int64_t width, dt_dtype dt, dt_dtype gt,
                                       dt_stream *s)
{
    enum { CHUNK = 32 };
    const double n = (double)n_tok * (double)width;
    DT_TRY(MOVES("embedding_backward", n * (size_of(dt) + 2 * size_of(gt))));
    return n_tok > CHUNK ? MOVES("embedding_backward", n / CHUNK * sizeof(float)) : DT_OK;
}

/* ---- norms, rotation, activations -------------------------------------------------------------------------------- */

static dt_err norm_forward(dt_device *dev, const char *op, int64_t n_rows, int64_t width, dt_dtype dt, dt_stream *s)
{
    return MOVES(op, (double)n_rows * (2 * (double)width * size_of(dt) + sizeof(float)));
}

/* The sums of blocks for the weights' gradients are added by a launch of their own. Blocks: of an H100. */
enum { PARTS = 2 * 132 };

static dt_err norm_backward(dt_device *dev, const char *op, int64_t n_rows, int64_t width, bool add_to_dx,
                            int n_gradients, dt_dtype dt, dt_stream *s)
{
    DT_TRY(MOVES(op, (double)n_rows * (double)width * size_of(dt) * (add_to_dx ? 4 : 3)));
    return n_gradients > 0 ? MOVES(op, n_gradients * PARTS * (double)width * sizeof(float)) : DT_OK;
}

static dt_err count_rmsnorm_forward(dt_device *dev, const void *x, const void *weight, void *y, float *rstd,
                                    int64_t n_rows, int64_t width, int64_t group, int64_t group_ld, int64_t y_group_ld,
                                    float eps, dt_dtype dt, dt_stream *s)
{
    return norm_forward(dev, "rmsnorm_forward", n_rows, width, dt, s);
}

static dt_err count_rmsnorm_backward(dt_device *dev, const void *x, const void *weight, const float *rstd,
                                     const void *dy, void *dx, bool add_to_dx, void *dweight, dt_dtype gt,
                                     bool accumulate, int64_t n_rows, int64_t width, int64_t group, int64_t group_ld,
                                     int64_t y_group_ld, float *scratch, dt_dtype dt, dt_stream *s)
{
    return norm_backward(dev, "rmsnorm_backward", n_rows, width, add_to_dx, dweight != NULL, dt, s);
}

static dt_err count_layernorm_forward(dt_device *dev, const void *x, const void *weight, const void *bias, void *y,
                                      float *mean, float *rstd, int64_t n_rows, int64_t width, float eps, dt_dtype dt,
                                      dt_stream *s)
{
    return norm_forward(dev, "layernorm_forward", n_rows, width, dt, s);
}

static dt_err count_layernorm_backward(dt_device *dev, const void *x, const void *weight, const float *mean,
                                       const float *rstd, const void *dy, void *dx, bool add_to_dx, void *dweight,
                                       void *dbias, dt_dtype gt, bool accumulate, int64_t n_rows, int64_t width,
                                       float *scratch, dt_dtype dt, dt_stream *s)
{
    return norm_backward(dev, "layernorm_backward", n_rows, width, add_to_dx, (dweight != NULL) + (dbias != NULL), dt,
                         s);
}

/* Heads of q and k, and others, each `passes` times, with the angles of their tokens. */
static double moved_heads(const dt_heads *h, int others, int passes)
{
    const double heads = (double)(h->n_heads + h->n_kv_heads + others), angles = h->cos_sin ? sizeof(float) : 0;
    return (double)h->n_tok * h->head_dim * (passes * heads * size_of(h->dt) + angles);
}

static dt_err count_heads_forward(dt_device *dev, const dt_heads *h, const void *x, void *q, void *k, void *v,
                                  float *rstd_q, float *rstd_k, dt_stream *s)
{
    return MOVES("heads_forward", moved_heads(h, v ? h->n_kv_heads : 0, 2));
}

static dt_err count_heads_backward(dt_device *dev, const dt_heads *h, const void *x, const float *rstd_q,
                                   const float *rstd_k, void *dq, void *dk, void *dq_norm, void *dk_norm, dt_dtype gt,
                                   bool accumulate, float *scratch, dt_stream *s)
{
    if (!h->q_norm && !h->cos_sin) return DT_OK;
    DT_TRY(MOVES("heads_backward", moved_heads(h, 0, h->q_norm ? 3 : 2)));
    if (!dq_norm && !dk_norm) return DT_OK;
    return MOVES("heads_backward",
                 ((dq_norm != NULL) + (dk_norm != NULL)) * PARTS * (double)h->head_dim * sizeof(float));
}

static dt_err count_act_forward(dt_device *dev, dt_activation act, const void *x, void *y, dt_dtype dt, int64_t n,
                                dt_stream *s)
{
    return MOVES("act_forward", 2 * (double)n * size_of(dt));
}

static dt_err count_act_backward(dt_device *dev, dt_activation act, const void *x, const void *dy, void *dx,
                                 dt_dtype dt, int64_t n, dt_stream *s)
{
    return MOVES("act_backward", 3 * (double)n * size_of(dt));
}

static dt_err count_glu_forward(dt_device *dev, dt_activation act, const void *gate_up, void *y, dt_dtype dt,
                                int64_t n_rows, int64_t width, dt_stream *s)
{
    return MOVES("glu_forward", 3 * (double)n_rows * (double)width * size_of(dt));
}

static dt_err count_glu_backward(dt_device *dev, dt_activation act, const void *gate_up, const void *dy, void *dgate_up,
                                 dt_dtype dt, int64_t n_rows, int64_t width, dt_stream *s)
{
    return MOVES("glu_backward", 5 * (double)n_rows * (double)width * size_of(dt));
}

static dt_err count_dropout(dt_device *dev, const void *x, const void *addend, void *y, float p, uint64_t key,
                            const uint64_t *token_key, int64_t n_tok, int64_t width, dt_dtype dt, dt_stream *s)
{
    return MOVES("dropout", (addend ? 3 : 2) * (double)n_tok * (double)width * size_of(dt));
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* Pairs of a query and a key that it sees, of one head. */
static double n_pairs(const dt_attention *at)
{
    const double n_q = at->n_seq > 0 ? (double)at->n_tok / at->n_seq : 0;
    const double n_k = at->max_kv_len > at->max_q_len ? at->max_kv_len : n_q; /* with a cache, those before */
    if (at->bidirectional) return at->n_seq * n_q * n_k;
    const double first = n_k - n_q + 1, wide = at->window > 0 && at->window < n_k ? at->window : n_k;
    const double rising = wide > first ? wide - first : 0; /* queries that see fewer keys than the window has */
    return at->n_seq * (rising * (first + wide - 1) / 2 + (n_q - rising) * wide);
}

static double queries_nbytes(const dt_attention *at)
{
    return (double)at->n_tok * at->n_heads * at->head_dim * size_of(at->dt);
}
static double keys_nbytes(const dt_attention *at)
{
    const double n = at->max_kv_len > at->max_q_len ? (double)at->n_seq * at->max_kv_len : at->n_tok;
    return n * at->n_kv_heads * at->head_dim * size_of(at->dt);
}

static dt_err attends(dt_device *dev, dt_stream *s, const char *op, const dt_attention *at, int n_matmuls, double bytes)
{
    dt_count_queue(dev, s,
                   &(dt_launch){.op = op,
                                .dt = at->dt,
                                .flops = 2.0 * n_matmuls * n_pairs(at) * at->n_heads * at->head_dim,
                                .memory = bytes});
    return DT_OK;
}

static dt_err count_attention_forward(dt_device *dev, const dt_attention *at, const void *q, const void *k,
                                      const void *v, void *out, float *lse, dt_stream *s)
{
    if (at->n_tok == 0) return DT_OK;
    return attends(dev, s, "attention_forward", at, 2, 2 * queries_nbytes(at) + 2 * keys_nbytes(at));
}

/* Sums of out and dout; dk and dv, of four of the five matmuls that there are; dq, of the fifth. (cuda/ computes two
 * of them twice.) */
static dt_err count_attention_backward(dt_device *dev, const dt_attention *at, const void *q, const void *k,
                                       const void *v, const void *out, const float *lse, const void *dout, void *dq,
                                       void *dk, void *dv, float *scratch, dt_stream *s)
{
    const char *op = "attention_backward";
    const double queries = queries_nbytes(at), keys = keys_nbytes(at);
    if (at->n_tok == 0) return DT_OK;
    DT_TRY(MOVES(op, 2 * queries));
    DT_TRY(attends(dev, s, op, at, 4, 2 * queries + 4 * keys));
    if (at->dt != DT_F32 && at->head_dim > 128) DT_TRY(MOVES(op, 2 * queries + 4 * keys)); /* dk and dv apart */
    return attends(dev, s, op, at, 1, 3 * queries + 2 * keys);
}

/* As if the library took all that it may be given. */
static dt_err count_attention_prepare(dt_device *dev, const dt_attention *at, bool backward, int *ready, char *why,
                                      size_t why_size)
{
    *ready = DT_READY_FORWARD | DT_READY_BACKWARD;
    *why = '\0';
    return DT_OK;
}

/* ---- the classifier, choosing tokens ----------------------------------------------------------------------------- */

static dt_err count_classifier(dt_device *dev, const dt_classifier *cl, float *logits, dt_stream *s)
{
    const double n = (double)cl->n_rows * (double)cl->n_vocab;
    const bool writes = cl->weight || cl->entropy_weight || cl->kl_weight;
    return MOVES("classifier",
                 n * ((cl->ref_logits ? 2 : 1) * sizeof(float) + (writes ? size_of(cl->dlogits_dtype) : 0)));
}

static double logits_nbytes(const dt_token_rows *rows)
{
    return (double)rows->n_rows * (double)rows->n_vocab * sizeof(float);
}

static dt_err count_draw_tokens(dt_device *dev, const dt_token_rows *rows, const dt_choice *how, const float *logits,
                                const double *uniform, int32_t *token, void *scratch, dt_stream *s)
{
    return MOVES("draw_tokens", logits_nbytes(rows));
}

static dt_err count_top_tokens(dt_device *dev, const dt_token_rows *rows, const float *logits, int64_t k,
                               int32_t *token, float *logit, dt_stream *s)
{
    return MOVES("top_tokens", logits_nbytes(rows));
}

static dt_err count_log_softmax_at(dt_device *dev, const dt_token_rows *rows, const float *logits,
                                   double inv_temperature, int64_t k, const int32_t *token, double *logp, dt_stream *s)
{
    return MOVES("log_softmax_at", logits_nbytes(rows));
}

/* ---- optimizers, sums -------------------------------------------------------------------------------------------- */

static dt_err count_adamw_step(dt_device *dev, const dt_adamw *opt, const void *grad, dt_dtype gt, float *master,
                               float *m, float *v, void *param, dt_dtype param_dt, int64_t n, dt_stream *s)
{
    return MOVES("adamw_step", (double)n * (size_of(gt) + 6 * sizeof(float) + (param ? size_of(param_dt) : 0)));
}

static dt_err count_sgd_step(dt_device *dev, const dt_sgd *opt, const void *grad, dt_dtype gt, float *master,
                             float *momentum, void *param, dt_dtype param_dt, int64_t n, dt_stream *s)
{
    return MOVES("sgd_step",
                 (double)n * (size_of(gt) + (momentum ? 4 : 2) * sizeof(float) + (param ? size_of(param_dt) : 0)));
}

/* Sums of blocks, and their sum. */
static dt_err reduction(dt_device *dev, const char *op, dt_dtype dt, int64_t n, dt_stream *s)
{
    enum { BLOCKS = 1056 }; /* at most */
    DT_TRY(MOVES(op, (double)n * size_of(dt)));
    return MOVES(op, (double)dt_min_i64(n + 1, BLOCKS) * sizeof(double));
}

static dt_err count_sum_squares(dt_device *dev, const void *x, dt_dtype dt, int64_t n, double *result, dt_stream *s)
{
    return reduction(dev, "sum_squares", dt, n, s);
}

static dt_err count_abs_max(dt_device *dev, const void *x, dt_dtype dt, int64_t n, float *result, dt_stream *s)
{
    return reduction(dev, "abs_max", dt, n, s);
}

static dt_err count_sum_squares_fixed(dt_device *dev, const void *x, dt_dtype dt, int64_t n, int shift,
                                      uint64_t result[2], dt_stream *s)
{
    return reduction(dev, "sum_squares_fixed", dt, n, s);
}

/* The device is opened by dt_count_open. */
static dt_err count_device_open(dt_device *dev, int local_rank, int n_threads)
{
    return dt_fail(DT_ERR_ARG, "internal: count_device_open: expected dt_count_open for a counting device");
}

const dt_device_ops dt_device_count_ops = {
    .name = "cuda",
    .open = count_device_open,
    .close = count_close,
    .describe = count_describe,
    .kernels = count_kernels,
    .own_memory = true,
    .memory_free = count_memory_free,
    .overhead = dt_gpu_overhead,
    .memory_taken = count_memory_taken,
    .alloc = count_alloc,
    .free = count_free,
    .alloc_zeroes = true,
    .stream_nbytes = DT_GPU_WORKSPACE_NBYTES,
    .stream_create = count_stream_create,
    .stream_destroy = count_stream_destroy,
    .stream_sync = count_stream_sync,
    .event_create = count_event_create,
    .event_destroy = count_event_destroy,
    .event_record = count_event_record,
    .event_wait = count_event_wait,
    .event_sync = count_event_sync,
    .event_query = count_event_query,
    .event_elapsed_ms = count_event_elapsed_ms,
    .event_time = count_event_time,
    .copy = count_copy,
    .zero = count_zero,
    .convert = count_convert,
    .add_into = count_add_into,
    .add = count_add,
    .scale = count_scale,
    .gather_rows = count_gather_rows,
    .scatter_rows = count_scatter_rows,
    .patches = count_patches,
    .matmul = count_matmul,
    .bias_backward = count_bias_backward,
    .embedding_forward = count_embedding_forward,
    .embedding_backward = count_embedding_backward,
    .rmsnorm_forward = count_rmsnorm_forward,
    .rmsnorm_backward = count_rmsnorm_backward,
    .layernorm_forward = count_layernorm_forward,
    .layernorm_backward = count_layernorm_backward,
    .norm_scratch_elems = dt_gpu_norm_scratch_elems,
    .heads_forward = count_heads_forward,
    .heads_backward = count_heads_backward,
    .attention_forward = count_attention_forward,
    .attention_backward = count_attention_backward,
    .attention_scratch_elems = dt_gpu_attention_scratch_elems,
    .attention_prepare = count_attention_prepare,
    .act_forward = count_act_forward,
    .act_backward = count_act_backward,
    .glu_forward = count_glu_forward,
    .glu_backward = count_glu_backward,
    .dropout = count_dropout,
    .classifier = count_classifier,
    .classifier_rows = dt_gpu_classifier_rows,
    .draw_tokens = count_draw_tokens,
    .draw_scratch_nbytes = dt_gpu_draw_scratch_nbytes,
    .top_tokens = count_top_tokens,
    .log_softmax_at = count_log_softmax_at,
    .adamw_step = count_adamw_step,
    .sgd_step = count_sgd_step,
    .sum_squares = count_sum_squares,
    .abs_max = count_abs_max,
    .sum_squares_fixed = count_sum_squares_fixed,
};
