/* queue.c - a device that is honest about time, for tests: another's operations, run as late and in as odd an order as
 * the contract allows.
 *
 * On the CPU device all is done when a call returns, and the host can read what it likes, so a missing event, copy or
 * synchronisation never shows. Here an operation only joins its stream. Streams run by turns drawn from
 * DTRAIN_QUEUE_SEED: at once, now and then, or not before somebody waits; with seed 0 never before somebody waits. An
 * event is the only order between two of them. Copies from and to the host read and write when they run, not when they
 * are called. Device memory is out of the host's reach: addresses carry a bit that no mapping has, so touching one
 * ends the program, and an operation that is handed host memory is refused. Fresh memory is full of NaN. What fails in
 * a queue is returned by the next synchronisation. Memory that is freed while a queued operation has its address ends
 * the program, and so does a stream that is destroyed with operations on it. Waits of the host, and copies that are not
 * from or to pinned memory, are counted.
 *
 * The device below is the CPU, or the one that DTRAIN_QUEUE_BELOW names: CUDA's simulator gets late streams so.
 *
 * DTRAIN_DEVICE=queue puts it in the place of the CPU device. A node has DTRAIN_QUEUE_DEVICES of it (1), each with
 * DTRAIN_QUEUE_MEMORY bytes (as much as is free): a rank gets no more than what it does not hold itself. Tests may give
 * it an order, and work of their own (queue.h). */
#include "queue_private.h"

/* ---- operations: a struct of arguments, the call when its turn comes, and the entry of the table ----------------- */

#define CALL(op, fields, ...)                                                                                          \
    typedef struct op##_call {                                                                                         \
        fields;                                                                                                        \
    } op##_call;                                                                                                       \
    static dt_err op##_run(dt_device *below, const void *args)                                                         \
    {                                                                                                                  \
        const op##_call *x = args;                                                                                     \
        return below->ops->op(below, __VA_ARGS__, NULL);                                                               \
    }
#define PUSH(op, ...) queue_push(dev, s, #op, op##_run, &(op##_call){__VA_ARGS__}, sizeof(op##_call))
#define AT(p) queue_arg(dev, p)

CALL(zero, void *dst; size_t nbytes, x->dst, x->nbytes)
static dt_err queue_zero(dt_device *dev, void *dst, size_t nbytes, dt_stream *s) { return PUSH(zero, AT(dst), nbytes); }

CALL(convert, const void *src; dt_dtype src_dt; void *dst; dt_dtype dst_dt;
     int64_t n, x->src, x->src_dt, x->dst, x->dst_dt, x->n)
static dt_err queue_convert(dt_device *dev, const void *src, dt_dtype src_dt, void *dst, dt_dtype dst_dt, int64_t n,
                            dt_stream *s)
{
    return PUSH(convert, AT(src), src_dt, AT(dst), dst_dt, n);
}

CALL(add_into, const void *src; dt_dtype src_dt; void *dst; dt_dtype dst_dt; bool accumulate;
     int64_t n, x->src, x->src_dt, x->dst, x->dst_dt, x->accumulate, x->n)
static dt_err queue_add_into(dt_device *dev, const void *src, dt_dtype src_dt, void *dst, dt_dtype dst_dt,
                             bool accumulate, int64_t n, dt_stream *s)
{
    return PUSH(add_into, AT(src), src_dt, AT(dst), dst_dt, accumulate, n);
}

CALL(add, const void *a; const void *b; void *c; dt_dtype dt; int64_t n, x->a, x->b, x->c, x->dt, x->n)
static dt_err queue_add(dt_device *dev, const void *a, const void *b, void *c, dt_dtype dt, int64_t n, dt_stream *s)
{
    return PUSH(add, AT(a), AT(b), AT(c), dt, n);
}

CALL(scale, const void *in; float factor; void *y; dt_dtype dt; int64_t n, x->in, x->factor, x->y, x->dt, x->n)
static dt_err queue_scale(dt_device *dev, const void *x, float factor, void *y, dt_dtype dt, int64_t n, dt_stream *s)
{
    return PUSH(scale, AT(x), factor, AT(y), dt, n);
}

CALL(gather_rows, const void *src; const int32_t *index; void *dst; int64_t n_rows; int64_t width;
     dt_dtype dt, x->src, x->index, x->dst, x->n_rows, x->width, x->dt)
static dt_err queue_gather_rows(dt_device *dev, const void *src, const int32_t *index, void *dst, int64_t n_rows,
                                int64_t width, dt_dtype dt, dt_stream *s)
{
    return PUSH(gather_rows, AT(src), AT(index), AT(dst), n_rows, width, dt);
}

CALL(scatter_rows, const void *src; const int32_t *index; void *dst; int64_t n_rows; int64_t width;
     dt_dtype dt, x->src, x->index, x->dst, x->n_rows, x->width, x->dt)
static dt_err queue_scatter_rows(dt_device *dev, const void *src, const int32_t *index, void *dst, int64_t n_rows,
                                 int64_t width, dt_dtype dt, dt_stream *s)
{
    return PUSH(scatter_rows, AT(src), AT(index), AT(dst), n_rows, width, dt);
}

CALL(patches, dt_patches p; const uint8_t *pixels; void *out, &x->p, x->pixels, x->out)
static dt_err queue_patches(dt_device *dev, const dt_patches *p, const uint8_t *pixels, void *out, dt_stream *s)
{
    return PUSH(patches, *p, AT(pixels), AT(out));
}

/* What a description points to is device memory, too. */
static dt_matmul near_matmul(dt_device *dev, const dt_matmul *mm)
{
    dt_matmul mine = *mm;
    mine.bias = AT(mm->bias);
    mine.addend = AT(mm->addend);
    mine.aux = AT(mm->aux);
    mine.sums = AT(mm->sums);
    mine.a_scaled.scale = AT(mm->a_scaled.scale);
    mine.b_scaled.scale = AT(mm->b_scaled.scale);
    mine.b_scaled.blocks = AT(mm->b_scaled.blocks);
    return mine;
}

CALL(matmul, dt_matmul mm; const void *a; const void *b; void *c, &x->mm, x->a, x->b, x->c)
static dt_err queue_matmul(dt_device *dev, const dt_matmul *mm, const void *a, const void *b, void *c, dt_stream *s)
{
    return PUSH(matmul, near_matmul(dev, mm), AT(a), AT(b), AT(c));
}

CALL(bias_backward, const void *dy; int64_t m; int64_t n; int64_t ld; dt_dtype dt; void *dbias; dt_dtype gt;
     bool accumulate, x->dy, x->m, x->n, x->ld, x->dt, x->dbias, x->gt, x->accumulate)
static dt_err queue_bias_backward(dt_device *dev, const void *dy, int64_t m, int64_t n, int64_t ld, dt_dtype dt,
                                  void *dbias, dt_dtype gt, bool accumulate, dt_stream *s)
{
    return PUSH(bias_backward, AT(dy), m, n, ld, dt, AT(dbias), gt, accumulate);
}

CALL(embedding_forward, const int32_t *token; const int32_t *pos; const void *wte; const void *wpe; void *out;
     int64_t n_tok; int64_t width; dt_dtype dt, x->token, x->pos, x->wte, x->wpe, x->out, x->n_tok, x->width, x->dt)
static dt_err queue_embedding_forward(dt_device *dev, const int32_t *token, const int32_t *pos, const void *wte,
                                      const void *wpe, void *out, int64_t n_tok, int64_t width, dt_dtype dt,
                                      dt_stream *s)
{
    return PUSH(embedding_forward, AT(token), AT(pos), AT(wte), AT(wpe), AT(out), n_tok, width, dt);
}

CALL(embedding_backward, const void *dout; const int32_t *id; const int32_t *order; void *grad; int64_t n_tok;
     int64_t width; dt_dtype dt; dt_dtype gt, x->dout, x->id, x->order, x->grad, x->n_tok, x->width, x->dt, x->gt)
static dt_err queue_embedding_backward(dt_device *dev, const void *dout, const int32_t *id, const int32_t *order,
                                       void *table_grad, int64_t n_tok, int64_t width, dt_dtype dt, dt_dtype gt,
                                       dt_stream *s)
{
    return PUSH(embedding_backward, AT(dout), AT(id), AT(order), AT(table_grad), n_tok, width, dt, gt);
}

CALL(rmsnorm_forward, const void *in; const void *weight; void *y; float *rstd; int64_t n_rows; int64_t width;
     int64_t group; int64_t group_ld; int64_t y_group_ld; float eps;
     dt_dtype dt, x->in, x->weight, x->y, x->rstd, x->n_rows, x->width, x->group, x->group_ld, x->y_group_ld, x->eps,
     x->dt)
static dt_err queue_rmsnorm_forward(dt_device *dev, const void *x, const void *weight, void *y, float *rstd,
                                    int64_t n_rows, int64_t width, int64_t group, int64_t group_ld, int64_t y_group_ld,
                                    float eps, dt_dtype dt, dt_stream *s)
{
    return PUSH(rmsnorm_forward, AT(x), AT(weight), AT(y), AT(rstd), n_rows, width, group, group_ld, y_group_ld, eps,
                dt);
}

CALL(rmsnorm_backward, const void *in; const void *weight; const float *rstd; const void *dy; void *dx; bool add_to_dx;
     void *dweight; dt_dtype gt; bool accumulate; int64_t n_rows; int64_t width; int64_t group; int64_t group_ld;
     int64_t y_group_ld; float *scratch;
     dt_dtype dt, x->in, x->weight, x->rstd, x->dy, x->dx, x->add_to_dx, x->dweight, x->gt, x->accumulate, x->n_rows,
     x->width, x->group, x->group_ld, x->y_group_ld, x->scratch, x->dt)
static dt_err queue_rmsnorm_backward(dt_device *dev, const void *x, const void *weight, const float *rstd,
                                     const void *dy, void *dx, bool add_to_dx, void *dweight, dt_dtype gt,
                                     bool accumulate, int64_t n_rows, int64_t width, int64_t group, int64_t group_ld,
                                     int64_t y_group_ld, float *scratch, dt_dtype dt, dt_stream *s)
{
    return PUSH(rmsnorm_backward, AT(x), AT(weight), AT(rstd), AT(dy), AT(dx), add_to_dx, AT(dweight), gt, accumulate,
                n_rows, width, group, group_ld, y_group_ld, AT(scratch), dt);
}

CALL(layernorm_forward, const void *in; const void *weight; const void *bias; void *y; float *mean; float *rstd;
     int64_t n_rows; int64_t width; float eps;
     dt_dtype dt, x->in, x->weight, x->bias, x->y, x->mean, x->rstd, x->n_rows, x->width, x->eps, x->dt)
static dt_err queue_layernorm_forward(dt_device *dev, const void *x, const void *weight, const void *bias, void *y,
                                      float *mean, float *rstd, int64_t n_rows, int64_t width, float eps, dt_dtype dt,
                                      dt_stream *s)
{
    return PUSH(layernorm_forward, AT(x), AT(weight), AT(bias), AT(y), AT(mean), AT(rstd), n_rows, width, eps, dt);
}

CALL(layernorm_backward, const void *in; const void *weight; const float *mean; const float *rstd; const void *dy;
     void *dx; bool add_to_dx; void *dweight; void *dbias; dt_dtype gt; bool accumulate; int64_t n_rows; int64_t width;
     float *scratch; dt_dtype dt, x->in, x->weight, x->mean, x->rstd, x->dy, x->dx, x->add_to_dx, x->dweight, x->dbias,
                     x->gt, x->accumulate, x->n_rows, x->width, x->scratch, x->dt)
static dt_err queue_layernorm_backward(dt_device *dev, const void *x, const void *weight, const float *mean,
                                       const float *rstd, const void *dy, void *dx, bool add_to_dx, void *dweight,
                                       void *dbias, dt_dtype gt, bool accumulate, int64_t n_rows, int64_t width,
                                       float *scratch, dt_dtype dt, dt_stream *s)
{
    return PUSH(layernorm_backward, AT(x), AT(weight), AT(mean), AT(rstd), AT(dy), AT(dx), add_to_dx, AT(dweight),
                AT(dbias), gt, accumulate, n_rows, width, AT(scratch), dt);
}

static int64_t queue_norm_scratch_elems(const dt_device *dev, int64_t width)
{
    return queue_below(dev)->ops->norm_scratch_elems(queue_below(dev), width);
}

static dt_heads near_heads(dt_device *dev, const dt_heads *h)
{
    dt_heads mine = *h;
    mine.kv_row = AT(h->kv_row);
    mine.q_norm = AT(h->q_norm);
    mine.k_norm = AT(h->k_norm);
    mine.pos = AT(h->pos);
    mine.cos_sin = AT(h->cos_sin);
    return mine;
}

CALL(heads_forward, dt_heads h; const void *in; void *q; void *k; void *v; float *rstd_q;
     float *rstd_k, &x->h, x->in, x->q, x->k, x->v, x->rstd_q, x->rstd_k)
static dt_err queue_heads_forward(dt_device *dev, const dt_heads *h, const void *x, void *q, void *k, void *v,
                                  float *rstd_q, float *rstd_k, dt_stream *s)
{
    return PUSH(heads_forward, near_heads(dev, h), AT(x), AT(q), AT(k), AT(v), AT(rstd_q), AT(rstd_k));
}

CALL(heads_backward, dt_heads h; const void *in; const float *rstd_q; const float *rstd_k; void *dq; void *dk;
     void *dq_norm; void *dk_norm; dt_dtype gt; bool accumulate;
     float *scratch, &x->h, x->in, x->rstd_q, x->rstd_k, x->dq, x->dk, x->dq_norm, x->dk_norm, x->gt, x->accumulate,
     x->scratch)
static dt_err queue_heads_backward(dt_device *dev, const dt_heads *h, const void *x, const float *rstd_q,
                                   const float *rstd_k, void *dq, void *dk, void *dq_norm, void *dk_norm, dt_dtype gt,
                                   bool accumulate, float *scratch, dt_stream *s)
{
    return PUSH(heads_backward, near_heads(dev, h), AT(x), AT(rstd_q), AT(rstd_k), AT(dq), AT(dk), AT(dq_norm),
                AT(dk_norm), gt, accumulate, AT(scratch));
}

static dt_attention near_attention(dt_device *dev, const dt_attention *at)
{
    dt_attention mine = *at;
    mine.q_start = AT(at->q_start);
    mine.kv_start = AT(at->kv_start);
    mine.kv_len = AT(at->kv_len);
    mine.shared_start = AT(at->shared_start);
    mine.shared_len = AT(at->shared_len);
    mine.token_key = AT(at->token_key);
    return mine;
}

CALL(attention_forward, dt_attention at; const void *q; const void *k; const void *v; void *out;
     float *lse, &x->at, x->q, x->k, x->v, x->out, x->lse)
static dt_err queue_attention_forward(dt_device *dev, const dt_attention *at, const void *q, const void *k,
                                      const void *v, void *out, float *lse, dt_stream *s)
{
    return PUSH(attention_forward, near_attention(dev, at), AT(q), AT(k), AT(v), AT(out), AT(lse));
}

CALL(attention_backward, dt_attention at; const void *q; const void *k; const void *v; const void *out;
     const float *lse; const void *dout; void *dq; void *dk; void *dv;
     float *scratch, &x->at, x->q, x->k, x->v, x->out, x->lse, x->dout, x->dq, x->dk, x->dv, x->scratch)
static dt_err queue_attention_backward(dt_device *dev, const dt_attention *at, const void *q, const void *k,
                                       const void *v, const void *out, const float *lse, const void *dout, void *dq,
                                       void *dk, void *dv, float *scratch, dt_stream *s)
{
    return PUSH(attention_backward, near_attention(dev, at), AT(q), AT(k), AT(v), AT(out), AT(lse), AT(dout), AT(dq),
                AT(dk), AT(dv), AT(scratch));
}

static int64_t queue_classifier_rows(const dt_device *dev, int64_t n_vocab, int64_t n_tok)
{
    return queue_below(dev)->ops->classifier_rows(queue_below(dev), n_vocab, n_tok);
}

static int64_t queue_attention_scratch_elems(const dt_device *dev, const dt_attention *at)
{
    return queue_below(dev)->ops->attention_scratch_elems(queue_below(dev), at);
}

CALL(act_forward, dt_activation act; const void *in; void *y; dt_dtype dt; int64_t n, x->act, x->in, x->y, x->dt, x->n)
static dt_err queue_act_forward(dt_device *dev, dt_activation act, const void *x, void *y, dt_dtype dt, int64_t n,
                                dt_stream *s)
{
    return PUSH(act_forward, act, AT(x), AT(y), dt, n);
}

CALL(act_backward, dt_activation act; const void *in; const void *dy; void *dx; dt_dtype dt;
     int64_t n, x->act, x->in, x->dy, x->dx, x->dt, x->n)
static dt_err queue_act_backward(dt_device *dev, dt_activation act, const void *x, const void *dy, void *dx,
                                 dt_dtype dt, int64_t n, dt_stream *s)
{
    return PUSH(act_backward, act, AT(x), AT(dy), AT(dx), dt, n);
}

CALL(glu_forward, dt_activation act; const void *gate_up; void *y; dt_dtype dt; int64_t n_rows;
     int64_t width, x->act, x->gate_up, x->y, x->dt, x->n_rows, x->width)
static dt_err queue_glu_forward(dt_device *dev, dt_activation act, const void *gate_up, void *y, dt_dtype dt,
                                int64_t n_rows, int64_t width, dt_stream *s)
{
    return PUSH(glu_forward, act, AT(gate_up), AT(y), dt, n_rows, width);
}

CALL(glu_backward, dt_activation act; const void *gate_up; const void *dy; void *dgate_up; dt_dtype dt; int64_t n_rows;
     int64_t width, x->act, x->gate_up, x->dy, x->dgate_up, x->dt, x->n_rows, x->width)
static dt_err queue_glu_backward(dt_device *dev, dt_activation act, const void *gate_up, const void *dy, void *dgate_up,
                                 dt_dtype dt, int64_t n_rows, int64_t width, dt_stream *s)
{
    return PUSH(glu_backward, act, AT(gate_up), AT(dy), AT(dgate_up), dt, n_rows, width);
}

CALL(dropout, const void *in; const void *addend; void *y; float p; uint64_t key; const uint64_t *token_key;
     int64_t n_tok; int64_t width;
     dt_dtype dt, x->in, x->addend, x->y, x->p, x->key, x->token_key, x->n_tok, x->width, x->dt)
static dt_err queue_dropout(dt_device *dev, const void *x, const void *addend, void *y, float p, uint64_t key,
                            const uint64_t *token_key, int64_t n_tok, int64_t width, dt_dtype dt, dt_stream *s)
{
    return PUSH(dropout, AT(x), AT(addend), AT(y), p, key, AT(token_key), n_tok, width, dt);
}

static dt_classifier near_classifier(dt_device *dev, const dt_classifier *cl)
{
    dt_classifier mine = *cl;
    mine.target = AT(cl->target);
    mine.weight = AT(cl->weight);
    mine.entropy_weight = AT(cl->entropy_weight);
    mine.kl_weight = AT(cl->kl_weight);
    mine.ref_logits = AT(cl->ref_logits);
    mine.logp = AT(cl->logp);
    mine.hit = AT(cl->hit);
    mine.entropy = AT(cl->entropy);
    mine.kl = AT(cl->kl);
    mine.loss = AT(cl->loss);
    mine.log_sum_squares = AT(cl->log_sum_squares);
    mine.mean_logit = AT(cl->mean_logit);
    return mine;
}

CALL(classifier, dt_classifier cl; float *logits, &x->cl, x->logits)
static dt_err queue_classifier(dt_device *dev, const dt_classifier *cl, float *logits, dt_stream *s)
{
    return PUSH(classifier, near_classifier(dev, cl), AT(logits));
}

static dt_token_rows near_token_rows(dt_device *dev, const dt_token_rows *rows)
{
    dt_token_rows mine = *rows;
    mine.allowed = AT(rows->allowed);
    mine.seen = AT(rows->seen);
    mine.list = AT(rows->list);
    mine.list_start = AT(rows->list_start);
    mine.list_len = AT(rows->list_len);
    return mine;
}

CALL(draw_tokens, dt_token_rows rows; dt_choice how; const float *logits; const double *uniform; int32_t * token;
     void *scratch, &x->rows, &x->how, x->logits, x->uniform, x->token, x->scratch)
static dt_err queue_draw_tokens(dt_device *dev, const dt_token_rows *rows, const dt_choice *how, const float *logits,
                                const double *uniform, int32_t *token, void *scratch, dt_stream *s)
{
    return PUSH(draw_tokens, near_token_rows(dev, rows), *how, AT(logits), AT(uniform), AT(token), AT(scratch));
}

static size_t queue_draw_scratch_nbytes(const dt_device *dev, const dt_token_rows *rows)
{
    return queue_below(dev)->ops->draw_scratch_nbytes(queue_below(dev), rows);
}

CALL(top_tokens, dt_token_rows rows; const float *logits; int64_t k; int32_t * token;
     float *logit, &x->rows, x->logits, x->k, x->token, x->logit)
static dt_err queue_top_tokens(dt_device *dev, const dt_token_rows *rows, const float *logits, int64_t k,
                               int32_t *token, float *logit, dt_stream *s)
{
    return PUSH(top_tokens, near_token_rows(dev, rows), AT(logits), k, AT(token), AT(logit));
}

CALL(log_softmax_at, dt_token_rows rows; const float *logits; double inv_temperature; int64_t k; const int32_t *token;
     double *logp, &x->rows, x->logits, x->inv_temperature, x->k, x->token, x->logp)
static dt_err queue_log_softmax_at(dt_device *dev, const dt_token_rows *rows, const float *logits,
                                   double inv_temperature, int64_t k, const int32_t *token, double *logp, dt_stream *s)
{
    return PUSH(log_softmax_at, near_token_rows(dev, rows), AT(logits), inv_temperature, k, AT(token), AT(logp));
}

CALL(adamw_step, dt_adamw opt; const void *grad; dt_dtype gt; float *master; float *m; float *v; void *param;
     dt_dtype param_dt; int64_t n, &x->opt, x->grad, x->gt, x->master, x->m, x->v, x->param, x->param_dt, x->n)
static dt_err queue_adamw_step(dt_device *dev, const dt_adamw *opt, const void *grad, dt_dtype gt, float *master,
                               float *m, float *v, void *param, dt_dtype param_dt, int64_t n, dt_stream *s)
{
    return PUSH(adamw_step, *opt, AT(grad), gt, AT(master), AT(m), AT(v), AT(param), param_dt, n);
}

CALL(sgd_step, dt_sgd opt; const void *grad; dt_dtype gt; float *master; float *momentum; void *param;
     dt_dtype param_dt; int64_t n, &x->opt, x->grad, x->gt, x->master, x->momentum, x->param, x->param_dt, x->n)
static dt_err queue_sgd_step(dt_device *dev, const dt_sgd *opt, const void *grad, dt_dtype gt, float *master,
                             float *momentum, void *param, dt_dtype param_dt, int64_t n, dt_stream *s)
{
    return PUSH(sgd_step, *opt, AT(grad), gt, AT(master), AT(momentum), AT(param), param_dt, n);
}

CALL(sum_squares, const void *in; dt_dtype dt; int64_t n; double *result, x->in, x->dt, x->n, x->result)
static dt_err queue_sum_squares(dt_device *dev, const void *x, dt_dtype dt, int64_t n, double *result, dt_stream *s)
{
    return PUSH(sum_squares, AT(x), dt, n, AT(result));
}

CALL(abs_max, const void *in; dt_dtype dt; int64_t n; float *result, x->in, x->dt, x->n, x->result)
static dt_err queue_abs_max(dt_device *dev, const void *x, dt_dtype dt, int64_t n, float *result, dt_stream *s)
{
    return PUSH(abs_max, AT(x), dt, n, AT(result));
}

CALL(sum_squares_fixed, const void *in; dt_dtype dt; int64_t n; int shift;
     uint64_t * result, x->in, x->dt, x->n, x->shift, x->result)
static dt_err queue_sum_squares_fixed(dt_device *dev, const void *x, dt_dtype dt, int64_t n, int shift,
                                      uint64_t result[2], dt_stream *s)
{
    return PUSH(sum_squares_fixed, AT(x), dt, n, shift, AT(result));
}

const dt_device_ops dt_device_queue_ops = {
    .name = "queue",
    .open = queue_open,
    .plan = queue_plan,
    .close = queue_close,
    .make_reproducible = queue_make_reproducible,
    .describe = queue_describe,
    .kernels = queue_kernels,
    .chip_name = queue_chip_name,
    .versions = queue_versions,
    .distrust = queue_distrust,
    .own_memory = true,
    .identity = queue_identity,
    .memory_free = queue_memory_free,
    .overhead = queue_overhead,
    .alloc = queue_alloc,
    .free = queue_free,
    .host_accessible = false,
    .stream_create = queue_stream_create,
    .stream_destroy = queue_stream_destroy,
    .stream_sync = queue_stream_sync,
    .event_create = queue_event_create,
    .event_destroy = queue_event_destroy,
    .event_record = queue_event_record,
    .event_wait = queue_event_wait,
    .event_sync = queue_event_sync,
    .event_query = queue_event_query,
    .event_elapsed_ms = queue_event_elapsed_ms,
    .event_time = queue_event_time,
    .graph_begin = queue_graph_begin,
    .graph_end = queue_graph_end,
    .graph_launch = queue_graph_launch,
    .graph_destroy = queue_graph_destroy,
    .copy = queue_copy,
    .zero = queue_zero,
    .convert = queue_convert,
    .add_into = queue_add_into,
    .add = queue_add,
    .scale = queue_scale,
    .gather_rows = queue_gather_rows,
    .scatter_rows = queue_scatter_rows,
    .patches = queue_patches,
    .matmul = queue_matmul,
    .bias_backward = queue_bias_backward,
    .embedding_forward = queue_embedding_forward,
    .embedding_backward = queue_embedding_backward,
    .rmsnorm_forward = queue_rmsnorm_forward,
    .rmsnorm_backward = queue_rmsnorm_backward,
    .layernorm_forward = queue_layernorm_forward,
    .layernorm_backward = queue_layernorm_backward,
    .norm_scratch_elems = queue_norm_scratch_elems,
    .heads_forward = queue_heads_forward,
    .heads_backward = queue_heads_backward,
    .attention_forward = queue_attention_forward,
    .attention_backward = queue_attention_backward,
    .attention_scratch_elems = queue_attention_scratch_elems,
    .classifier_rows = queue_classifier_rows,
    .act_forward = queue_act_forward,
    .act_backward = queue_act_backward,
    .glu_forward = queue_glu_forward,
    .glu_backward = queue_glu_backward,
    .dropout = queue_dropout,
    .classifier = queue_classifier,
    .draw_tokens = queue_draw_tokens,
    .draw_scratch_nbytes = queue_draw_scratch_nbytes,
    .top_tokens = queue_top_tokens,
    .log_softmax_at = queue_log_softmax_at,
    .adamw_step = queue_adamw_step,
    .sgd_step = queue_sgd_step,
    .sum_squares = queue_sum_squares,
    .abs_max = queue_abs_max,
    .sum_squares_fixed = queue_sum_squares_fixed,
};
