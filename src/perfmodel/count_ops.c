/* count_ops.c - cost of each operation of the table on a CUDA device: its launches in order, with their matmul
 * operations and the minimum of bytes that they move. A launch reads or writes each array once, as if a cache held all
 * that is reused.
 *
 * The launches are those of cuda/. A test compares them with the launches that the CUDA simulator receives. All
 * sequences of a batch count as equally long, because their lengths are in device memory. */
#include "count_private.h"
#include "dtrain/device/block8.h"
#include "dtrain/device/gpu_sizes.h"

static double size_of(dt_dtype dt) { return (double)dt_dtype_size(dt); }
static double nbytes(int64_t n, dt_dtype dt) { return (double)n * size_of(dt); }
static double matrix_nbytes(int64_t n_rows, int64_t width, dt_dtype dt) { return (double)n_rows * nbytes(width, dt); }

/* Queue the launches of an operation on s; x: its arguments. */
#define COUNT(op) static void count_##op(dt_device *dev, const dt_##op##_args *x, dt_stream *s)

/* The operations of one launch. */
#define DT_MOVES(op, bytes)                                                                                            \
    COUNT(op) { count_moves(dev, s, #op, (double)(bytes)); }
#include "dtrain/device/op_list.h"

/* ---- patches, embedding ------------------------------------------------------------------------------------------ */

COUNT(patches)
{
    const double seen = (double)(dt_patches_rows(&x->p) - x->p.lead), written = (double)dt_patches_rows(&x->p);
    count_moves(dev, s, "patches",
                (double)x->p.n_images * (double)dt_patches_width(&x->p) * (seen + written * size_of(x->p.dt)));
}

/* Assumes that all tokens differ. A second launch adds the sums of tokens on both sides of a block border. */
COUNT(embedding_backward)
{
    enum { CHUNK = 32 };
    const double n = (double)x->n_tok * (double)x->width;
    count_moves(dev, s, "embedding_backward", n * (size_of(x->dt) + 2 * size_of(x->gt)));
    if (x->n_tok > CHUNK) count_moves(dev, s, "embedding_backward", n / CHUNK * sizeof(float));
}

/* ---- biases of experts ------------------------------------------------------------------------------------------- */

COUNT(group_bias_backward)
{
    const double rows = matrix_nbytes(x->n_rows, x->width, x->dt);
    if (x->dbias) count_moves(dev, s, "group_bias_backward", rows + matrix_nbytes(x->n_groups, x->width, x->gt));
    if (x->weight) count_moves(dev, s, "group_bias_backward", rows + matrix_nbytes(x->n_groups, x->width, x->dt));
}

/* ---- norms, heads ------------------------------------------------------------------------------------------------ */

/* A second launch adds the blocks' sums for the gradients of the weights. Number of blocks: that of an H100. */
static double weights_gradients(int n_gradients, int64_t width)
{
    enum { PARTS = 2 * 132 };
    return n_gradients * PARTS * (double)width * sizeof(float);
}

COUNT(rmsnorm_backward)
{
    const dt_rmsnorm *n = &x->n;
    count_moves(dev, s, "rmsnorm_backward", (x->add_to_dx ? 4 : 3) * matrix_nbytes(n->n_rows, n->width, n->dt));
    count_moves(dev, s, "rmsnorm_backward", weights_gradients(x->dweight != NULL, n->width));
}

COUNT(layernorm_backward)
{
    count_moves(dev, s, "layernorm_backward", (x->add_to_dx ? 4 : 3) * matrix_nbytes(x->n_rows, x->width, x->dt));
    count_moves(dev, s, "layernorm_backward", weights_gradients((x->dweight != NULL) + (x->dbias != NULL), x->width));
}

/* Bytes: the heads of q and k and `others` more, each moved `passes` times, and the angles of the tokens once. */
static double moved_heads(const dt_heads *h, int others, int passes)
{
    const double heads = (double)(h->n_heads + h->n_kv_heads + others),
                 angles = (h->cos_sin ? sizeof(float) : 0) + (h->q_cos_sin ? sizeof(float) : 0);
    return (double)h->n_tok * (h->head_dim * passes * heads * size_of(h->dt) + dt_heads_rotary_dim(h) * angles);
}

/* With norms, partial rotations and those of neighbours are launches of their own (cuda/heads.cu). */
static bool turns_apart(const dt_heads *h)
{
    return h->q_norm && h->cos_sin && (h->neighbours || dt_heads_rotary_dim(h) < h->head_dim);
}

COUNT(heads_forward)
{
    count_moves(dev, s, "heads_forward", moved_heads(&x->h, x->v ? x->h.n_kv_heads : 0, 2));
    if (turns_apart(&x->h)) count_moves(dev, s, "heads_forward", moved_heads(&x->h, 0, 2));
}

COUNT(heads_backward)
{
    if (!x->h.q_norm && !x->h.cos_sin) return;
    if (turns_apart(&x->h)) count_moves(dev, s, "heads_backward", moved_heads(&x->h, 0, 2));
    count_moves(dev, s, "heads_backward", moved_heads(&x->h, 0, x->h.q_norm ? 3 : 2));
    count_moves(dev, s, "heads_backward",
                weights_gradients((x->dq_norm != NULL) + (x->dk_norm != NULL), x->h.head_dim));
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* Number of pairs of a query and a visible key, for one head. */
static double n_pairs(const dt_attention *at)
{
    const double n_q = at->n_seq > 0 ? (double)at->n_tok / at->n_seq : 0;
    const double n_k = at->max_kv_len > at->max_q_len ? at->max_kv_len : n_q; /* including the cached keys */
    if (at->bidirectional) return at->n_seq * n_q * n_k;
    const double first = n_k - n_q + 1, wide = at->window > 0 && at->window < n_k ? at->window : n_k;
    const double rising = wide > first ? wide - first : 0; /* queries that see fewer keys than the window holds */
    const double in_block = at->block > 1 ? n_q * (at->block - 1) / 2 : 0; /* later keys of the query's own block */
    return at->n_seq * (rising * (first + wide - 1) / 2 + (n_q - rising) * wide + in_block);
}

/* Mean width of the heads of q and k, and of v and out: half of the matmuls have each. */
static double head_width(const dt_attention *at) { return (at->head_dim + dt_attention_v_dim(at)) / 2.0; }

static double queries_nbytes(const dt_attention *at)
{
    return (double)at->n_tok * at->n_heads * head_width(at) * size_of(at->dt);
}
static double keys_nbytes(const dt_attention *at)
{
    const double n = at->max_kv_len > at->max_q_len ? (double)at->n_seq * at->max_kv_len : at->n_tok;
    return n * at->n_kv_heads * head_width(at) * size_of(at->dt);
}

static void attends(dt_device *dev, dt_stream *s, const char *op, const dt_attention *at, int n_matmuls, double bytes)
{
    dt_count_queue(dev, s,
                   &(dt_launch){.op = op,
                                .dt = at->dt,
                                .flops = 2.0 * n_matmuls * n_pairs(at) * at->n_heads * head_width(at),
                                .memory = bytes});
}

COUNT(attention_forward)
{
    const dt_attention *at = &x->at;
    if (at->n_tok > 0) attends(dev, s, "attention_forward", at, 2, 2 * queries_nbytes(at) + 2 * keys_nbytes(at));
}

/* Three launches: the row sums of out * dout; dk and dv, with four of the five matmuls; dq, with the fifth. The
 * gradient of sinks has two more. cuda/ computes two of the matmuls twice, which is not counted. */
COUNT(attention_backward)
{
    const char *op = "attention_backward";
    const dt_attention *at = &x->at;
    const double queries = queries_nbytes(at), keys = keys_nbytes(at);
    if (at->n_tok == 0) return;
    count_moves(dev, s, op, 2 * queries);
    if (at->dsinks) {
        count_moves(dev, s, op, 2 * (double)at->n_tok * at->n_heads * sizeof(float));
        count_moves(dev, s, op, (double)at->n_heads * (sizeof(float) + size_of(at->dsinks_dtype)));
    }
    attends(dev, s, op, at, 4, 2 * queries + 4 * keys);
    if (at->dt != DT_F32 && at->head_dim > 128) count_moves(dev, s, op, 2 * queries + 4 * keys); /* dk and dv apart */
    attends(dev, s, op, at, 1, 3 * queries + 2 * keys);
}

/* ---- linear attention -------------------------------------------------------------------------------------------- */

static double conv_nbytes(const dt_conv *c) { return matrix_nbytes(c->n_tok, c->width, c->dt); }

/* A second launch moves the states. */
COUNT(conv_forward)
{
    const dt_conv *c = &x->c;
    if (c->n_tok == 0) return;
    count_moves(dev, s, "conv_forward", 2 * conv_nbytes(c));
    if (x->state && c->kernel > 1)
        count_moves(dev, s, "conv_forward", 2.0 * c->n_seq * (c->kernel - 1) * nbytes(c->width, c->dt));
}

COUNT(conv_backward)
{
    const dt_conv *c = &x->c;
    if (c->n_tok > 0) count_moves(dev, s, "conv_backward", 3 * conv_nbytes(c));
    if (x->dweight)
        count_moves(dev, s, "conv_backward", DT_GPU_CONV_PARTS * (double)c->width * c->kernel * sizeof(float));
}

/* FLOPs of a chunk of C tokens, for one head: `squares` C^2 k_dim + `solves` C^2 v_dim + `states` C k_dim v_dim. */
static void chunks(dt_device *dev, dt_stream *s, const char *op, const dt_delta *d, int squares, int solves, int states,
                   double bytes)
{
    const double len = d->max_len, chunk = len < DT_DELTA_CHUNK ? len : DT_DELTA_CHUNK, k = d->k_dim, v = d->v_dim;
    dt_count_queue(
        dev, s,
        &(dt_launch){.op = op,
                     .dt = DT_F32,
                     .flops = (double)d->n_tok * d->n_v_heads * (chunk * (squares * k + solves * v) + states * k * v),
                     .memory = bytes});
}

/* Bytes of q, k and v, or of their gradients; of out or its gradient; of g and beta. */
static double qkv_nbytes(const dt_delta *d)
{
    return matrix_nbytes(d->n_tok, 2 * (int64_t)d->n_k_heads * d->k_dim + (int64_t)d->n_v_heads * d->v_dim, d->dt);
}
static double out_nbytes(const dt_delta *d) { return matrix_nbytes(d->n_tok, (int64_t)d->n_v_heads * d->v_dim, d->dt); }
static double gates_nbytes(const dt_delta *d) { return 2 * matrix_nbytes(d->n_tok, d->n_v_heads, DT_F32); }
static double states_nbytes(const dt_delta *d)
{
    return 2.0 * d->n_seq * d->n_v_heads * d->k_dim * (double)d->v_dim * sizeof(float);
}

COUNT(delta_forward)
{
    const dt_delta *d = &x->d;
    if (d->n_tok == 0) return;
    chunks(dev, s, "delta_forward", d, 4, 3, 6,
           qkv_nbytes(d) + out_nbytes(d) + gates_nbytes(d) + (x->state ? states_nbytes(d) : 0));
}

/* The second launch: gradients of q and k from those of the normalised rows of each value head. */
COUNT(delta_backward)
{
    const dt_delta *d = &x->d;
    const double heads = 2 * matrix_nbytes(d->n_tok, (int64_t)d->n_v_heads * d->k_dim, DT_F32);
    if (d->n_tok == 0) return;
    chunks(dev, s, "delta_backward", d, 14, 9, 18, 2 * qkv_nbytes(d) + out_nbytes(d) + 2 * gates_nbytes(d) + heads);
    count_moves(dev, s, "delta_backward", heads + 2 * qkv_nbytes(d));
}

COUNT(delta_step)
{
    const dt_delta *d = &x->d;
    if (d->n_tok > 0)
        count_moves(dev, s, "delta_step", qkv_nbytes(d) + out_nbytes(d) + gates_nbytes(d) + states_nbytes(d));
}

COUNT(delta_gates_backward)
{
    const dt_delta_gates *d = &x->d;
    if (d->n_rows > 0)
        count_moves(dev, s, "delta_gates_backward",
                    3 * matrix_nbytes(d->n_rows, d->width, d->dt) + 4 * matrix_nbytes(d->n_rows, d->width, DT_F32));
    if (x->da_log || x->ddt_bias)
        count_moves(dev, s, "delta_gates_backward",
                    weights_gradients((x->da_log != NULL) + (x->ddt_bias != NULL), d->width));
}

COUNT(norm_gate_backward)
{
    const dt_rmsnorm *n = &x->n;
    if (n->n_rows > 0) count_moves(dev, s, "norm_gate_backward", 5 * matrix_nbytes(n->n_rows, n->width, n->dt));
    if (x->dweight) count_moves(dev, s, "norm_gate_backward", weights_gradients(1, n->width));
}

/* ---- classifier, sums -------------------------------------------------------------------------------------------- */

COUNT(classifier)
{
    const dt_classifier *cl = &x->cl;
    const bool writes = cl->weight || cl->entropy_weight || cl->kl_weight;
    const double size = (cl->ref_logits ? 2 : 1) * sizeof(float) + (writes ? size_of(cl->dlogits_dtype) : 0);
    count_moves(dev, s, "classifier", (double)cl->n_rows * (double)cl->n_vocab * size);
}

/* Two launches: the sums of blocks, then their sum. */
#define REDUCES(op)                                                                                                    \
    COUNT(op)                                                                                                          \
    {                                                                                                                  \
        enum { BLOCKS = 1056 }; /* at most */                                                                          \
        count_moves(dev, s, #op, nbytes(x->n, x->dt));                                                                 \
        count_moves(dev, s, #op, (double)dt_min_i64(x->n + 1, BLOCKS) * sizeof(double));                               \
    }
REDUCES(sum_squares)
REDUCES(abs_max)
REDUCES(sum_squares_fixed)

/* ---- entries of the table ---------------------------------------------------------------------------------------- */

#define DT_OP(op, ...)                                                                                                 \
    dt_err counting_##op DT_OP_PARAMS(__VA_ARGS__)                                                                     \
    {                                                                                                                  \
        count_##op(dev, &(dt_##op##_args){DT_EACH(DT_TAKE_, __VA_ARGS__)}, stream);                                    \
        return DT_OK;                                                                                                  \
    }
#include "dtrain/device/op_list.h"
