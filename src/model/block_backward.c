/* block_backward.c - backward of one block. s.dx always holds the gradient of the residual stream. Each half adds the
 * gradient of its branch to it, in the backward of its norm, so it is never copied.
 *
 * Selective recomputation recomputes each cheap activation immediately before it is read. Only the gradients of the
 * following matrices and their adapters read norms and activations, so frozen matrices need none. */
#include "model_private.h"

/* The gradient that enters a branch: dx itself, or dx with the forward's dropout applied to it. */
static dt_err enter_branch(const dt_model *m, uint64_t key, const void **dy)
{
    const float p = (float)m->mc->resid_pdrop;
    *dy = m->s.dx;
    if (p == 0) return DT_OK;
    *dy = m->s.drop;
    return m->ops->dropout(m->dev, m->s.dx, NULL, m->s.drop, p, key, m->device.token_key, m->n_tok, m->C, m->opt.dtype,
                           m->stream);
}

static dt_err remake_norm(const dt_model *m, const struct linear *reader, const struct norm *n, const dt_param_view *w,
                          const void *x, void *y, float *mean, float *rstd)
{
    if (!dt_model_remakes(m) || !dt_linear_keeps_input(reader)) return DT_OK;
    return dt_norm_forward(m, n, w, x, y, mean, rstd, m->n_tok);
}

static dt_err mlp_backward(const dt_model *m, const struct block *b, const dt_param_view *w, const dt_grad_view *g,
                           const struct block_acts *a)
{
    const dt_model_config *mc = m->mc;
    const int64_t T = m->n_tok;
    const void *dy;
    void *dup = mc->gated_mlp ? a->up : m->s.dact; /* the gated form overwrites its input with its gradient */
    struct with_matmul slope = {.low = a->low[SLOT_DOWN]}, alone = {.low = a->low[SLOT_UP]};
    if (!mc->gated_mlp) slope.epilogue = DT_EPILOGUE_ACT_BACKWARD, slope.act_in = a->up;
    DT_TRY(enter_branch(m, dt_dropout_key(m, b->layer, SITE_MLP), &dy));
    if (dt_model_remakes(m) && dt_linear_keeps_input(&b->linear[SLOT_DOWN])) DT_TRY(dt_block_make_act(m, a));
    DT_TRY(dt_linear_backward(m, &b->linear[SLOT_DOWN], w, g, a->act, m->F, dy, m->C, m->s.dact, m->F, slope, T));
    if (mc->gated_mlp)
        DT_TRY(m->ops->glu_backward(m->dev, mc->act, a->up, m->s.dact, dup, m->opt.dtype, T, m->F, m->stream));
    DT_TRY(remake_norm(m, &b->linear[SLOT_UP], &b->norm2, w, a->x_mid, a->norm2, a->mean2, a->rstd2));
    DT_TRY(dt_linear_backward(m, &b->linear[SLOT_UP], w, g, a->norm2, m->C, dup, m->U, m->s.dnorm, m->C, alone, T));
    const struct norm_grads dnorm = dt_norm_grads_in(&b->norm2, g);
    return dt_norm_backward(m, &b->norm2, w, &dnorm, a->x_mid, a->mean2, a->rstd2, m->s.dnorm, m->s.dx, true, T);
}

/* Gradient of norm1's output from the gradients of q, k and v as attention read them. */
static dt_err qkv_backward(const dt_model *m, const struct block *b, const dt_param_view *w, const dt_grad_view *g,
                           const struct block_acts *a)
{
    const dt_heads h = dt_block_heads(m, b, w);
    if (h.q_norm || h.cos_sin)
        DT_TRY(m->ops->heads_backward(m->dev, &h, a->raw, a->rstd_q, a->rstd_k, m->s.dqkv,
                                      dt_at(m->s.dqkv, m->Q, m->elem), dt_gradient(g, b->q_norm),
                                      dt_gradient(g, b->k_norm), g->dtype, g->accumulate, m->s.norm, m->stream));
    DT_TRY(remake_norm(m, &b->linear[SLOT_QKV], &b->norm1, w, a->x_in, a->norm1, a->mean1, a->rstd1));
    const struct with_matmul alone = {.low = a->low[SLOT_QKV]};
    return dt_linear_backward(m, &b->linear[SLOT_QKV], w, g, a->norm1, m->C, m->s.dqkv, m->W, m->s.dnorm, m->C, alone,
                              m->n_tok);
}

static dt_err attention_backward(const dt_model *m, const struct block *b, const dt_param_view *w,
                                 const dt_grad_view *g, const struct block_acts *a)
{
    const dt_attention at = dt_block_attention(m, b);
    const int64_t scratch = m->ops->attention_scratch_elems(m->dev, &at);
    const size_t e = m->elem;
    const struct with_matmul alone = {.low = a->low[SLOT_O]};
    const void *dy;
    DT_EXPECT(scratch <= m->s.attention_elems);
    DT_TRY(enter_branch(m, dt_dropout_key(m, b->layer, SITE_ATTENTION), &dy));
    DT_TRY(dt_linear_backward(m, &b->linear[SLOT_O], w, g, a->att, m->Q, dy, m->C, m->s.datt, m->Q, alone, m->n_tok));
    if (dt_model_remakes(m) && dt_model_keeps_raw(m)) DT_TRY(dt_block_make_qk(m, b, w, a));
    DT_TRY(m->ops->attention_backward(m->dev, &at, a->qk, dt_at(a->qk, m->Q, e), dt_at(a->raw, m->Q + m->K, e), a->att,
                                      a->lse, m->s.datt, m->s.dqkv, dt_at(m->s.dqkv, m->Q, e),
                                      dt_at(m->s.dqkv, m->Q + m->K, e), m->s.attention, m->stream));
    DT_TRY(qkv_backward(m, b, w, g, a));
    const struct norm_grads dnorm = dt_norm_grads_in(&b->norm1, g);
    return dt_norm_backward(m, &b->norm1, w, &dnorm, a->x_in, a->mean1, a->rstd1, m->s.dnorm, m->s.dx, true, m->n_tok);
}

dt_err dt_block_backward(const dt_model *m, const struct block *b, const dt_param_view *w, const dt_grad_view *g,
                         const struct block_acts *a)
{
    DT_TRY(mlp_backward(m, b, w, g, a));
    return attention_backward(m, b, w, g, a);
}
