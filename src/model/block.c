/* block.c - one block of every family, forward; what differs between families is read from the configuration.
 *
 *     x_mid = x_in  + dropout(Attn(norm1(x_in)) Wo + bo)
 *     x_out = x_mid + dropout(act(norm2(x_mid) Wup + bup) Wdown + bdown)
 *
 * The residual is added by the product itself, or by the dropout behind it: passes over memory less, and in bf16 one
 * rounding less.
 * Where nothing is kept for backward, x_in, x_mid and x_out are one buffer. */
#include "model_private.h"
#include <math.h>

dt_attention dt_block_attention(const dt_model *m, const struct block *b)
{
    const dt_model_config *mc = m->mc;
    dt_attention at = {.n_seq = m->n_seq,
                       .n_heads = (int)mc->num_attention_heads,
                       .n_kv_heads = (int)mc->num_key_value_heads,
                       .head_dim = (int)mc->head_dim,
                       .q_start = m->device.q_start,
                       .kv_start = m->device.kv_start,
                       .kv_len = m->device.kv_len,
                       .n_tok = m->n_tok,
                       .max_q_len = m->max_q_len,
                       .max_kv_len = m->max_kv_len,
                       .q_ld = m->W,
                       .kv_ld = m->W,
                       .o_ld = m->Q,
                       .scale = 1,
                       .dt = m->opt.dtype,
                       .batch_invariant = dt_model_is_invariant(m)};
    if (mc->scale_attn_weights) at.scale = (float)(1 / sqrt((double)mc->head_dim));
    at.bidirectional = b->bidirectional;
    if (mc->scale_attn_by_inverse_layer_idx && !b->bidirectional) at.scale /= (float)(b->layer + 1);
    if (mc->sliding && !b->bidirectional && mc->sliding[b->layer]) at.window = (int32_t)mc->sliding_window;
    if (m->train && mc->attn_pdrop > 0) {
        at.dropout_p = (float)mc->attn_pdrop;
        at.dropout_key = dt_dropout_key(m, b->layer, SITE_SCORES);
        at.token_key = m->device.token_key;
    }
    return at;
}

/* Each head of q and k passes through an RMSNorm of width head_dim on its way from qk_raw to qkv. */
static dt_err normalise_heads(const dt_model *m, const struct block *b, const dt_param_view *w,
                              const struct block_acts *a)
{
    const dt_model_config *mc = m->mc;
    const int64_t T = m->n_tok, D = mc->head_dim, QK = m->Q + m->K, Hq = mc->num_attention_heads,
                  Hk = mc->num_key_value_heads;
    const float eps = (float)mc->norm_eps;
    DT_TRY(m->ops->rmsnorm_forward(m->dev, a->qk_raw, dt_weight(w, b->q_norm), a->qkv, a->rstd_q, T * Hq, D, Hq, QK,
                                   m->W, eps, m->opt.dtype, m->stream));
    return m->ops->rmsnorm_forward(m->dev, dt_at(a->qk_raw, m->Q, m->elem), dt_weight(w, b->k_norm),
                                   dt_at(a->qkv, m->Q, m->elem), a->rstd_k, T * Hk, D, Hk, QK, m->W, eps, m->opt.dtype,
                                   m->stream);
}

/* q and k go through qk_raw; v goes straight to qkv, and from there to where it is kept when qkv is not. */
static dt_err project_with_norms(const dt_model *m, const struct block *b, const dt_param_view *w,
                                 const struct block_acts *a)
{
    const int64_t T = m->n_tok, QK = m->Q + m->K;
    const struct linear qk = dt_linear_slice(&b->qkv, 0, QK), v = dt_linear_slice(&b->qkv, QK, m->K);
    DT_TRY(dt_linear_forward(m, &qk, w, a->norm1, m->C, a->qk_raw, QK, T, PRODUCT_ALONE));
    DT_TRY(dt_linear_forward(m, &v, w, a->norm1, m->C, dt_at(a->qkv, QK, m->elem), m->W, T, PRODUCT_ALONE));
    if (m->train && dt_model_remakes_qkv(m))
        DT_TRY(m->ops->gather_rows(m->dev, a->qkv, m->device.v_row, a->v, T, m->K, m->opt.dtype, m->stream));
    return normalise_heads(m, b, w, a);
}

static dt_err rotate(const dt_model *m, const struct block_acts *a)
{
    const dt_model_config *mc = m->mc;
    if (!m->rope) return DT_OK;
    /* k follows q in the row: the heads of both turn in one call */
    return m->ops->rope(m->dev, a->qkv, m->device.pos, m->rope, m->n_tok,
                        mc->num_attention_heads + mc->num_key_value_heads, mc->head_dim, m->W, false, m->opt.dtype,
                        m->stream);
}

dt_err dt_block_remake_qkv(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a)
{
    DT_TRY(m->ops->scatter_rows(m->dev, a->v, m->device.v_row, a->qkv, m->n_tok, m->K, m->opt.dtype, m->stream));
    DT_TRY(normalise_heads(m, b, w, a));
    return rotate(m, a);
}

dt_err dt_block_project_qkv(const dt_model *m, const struct block *b, const dt_param_view *w,
                            const struct block_acts *a)
{
    DT_TRY(dt_norm_forward(m, &b->norm1, w, a->x_in, a->norm1, a->mean1, a->rstd1, m->n_tok));
    if (m->mc->qk_norm)
        DT_TRY(project_with_norms(m, b, w, a));
    else
        DT_TRY(dt_linear_forward(m, &b->qkv, w, a->norm1, m->C, a->qkv, m->W, m->n_tok, PRODUCT_ALONE));
    return rotate(m, a);
}

/* y = x + dropout(in W + b) */
static dt_err add_branch(const dt_model *m, const struct linear *l, const dt_param_view *w, const void *in,
                         const void *x, void *y, uint64_t key)
{
    const float p = m->train ? (float)m->mc->resid_pdrop : 0;
    if (p == 0) return dt_linear_forward(m, l, w, in, l->n_in, y, m->C, m->n_tok, (struct with_product){.addend = x});
    DT_TRY(dt_linear_forward(m, l, w, in, l->n_in, m->s.drop, m->C, m->n_tok, PRODUCT_ALONE));
    return m->ops->dropout(m->dev, m->s.drop, x, y, p, key, m->device.token_key, m->n_tok, m->C, m->opt.dtype,
                           m->stream);
}

dt_err dt_block_make_act(const dt_model *m, const struct block_acts *a)
{
    if (!m->mc->gated_mlp)
        return m->ops->act_forward(m->dev, m->mc->act, a->up, a->act, m->opt.dtype, m->n_tok * m->F, m->stream);
    return m->ops->glu_forward(m->dev, m->mc->act, a->up, a->act, m->opt.dtype, m->n_tok, m->F, m->stream);
}

/* act = activation(norm2 Wup + bup), and what it was applied to where that is kept; or the gated form. */
static dt_err mlp_activation(const dt_model *m, const struct block *b, const dt_param_view *w,
                             const struct block_acts *a)
{
    const bool again = dt_model_remakes(m) || m->opt.reproducible;
    const struct with_product act = {.epilogue = DT_EPILOGUE_ACT, .act_in = a->up, .act_of_aux = again};
    if (!m->mc->gated_mlp) return dt_linear_forward(m, &b->up, w, a->norm2, m->C, a->act, m->F, m->n_tok, act);
    DT_TRY(dt_linear_forward(m, &b->up, w, a->norm2, m->C, a->up, m->U, m->n_tok, PRODUCT_ALONE));
    return dt_block_make_act(m, a);
}

dt_err dt_block_finish(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a,
                       bool want_output)
{
    DT_TRY(add_branch(m, &b->o, w, a->att, a->x_in, a->x_mid, dt_dropout_key(m, b->layer, SITE_ATTENTION)));
    DT_TRY(dt_norm_forward(m, &b->norm2, w, a->x_mid, a->norm2, a->mean2, a->rstd2, m->n_tok));
    DT_TRY(mlp_activation(m, b, w, a));
    if (!want_output) return DT_OK;
    return add_branch(m, &b->down, w, a->act, a->x_mid, a->x_out, dt_dropout_key(m, b->layer, SITE_MLP));
}

dt_err dt_block_forward(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a,
                        bool want_output)
{
    const dt_attention at = dt_block_attention(m, b);
    const void *k = dt_at(a->qkv, m->Q, m->elem), *v = dt_at(a->qkv, m->Q + m->K, m->elem);
    DT_TRY(dt_block_project_qkv(m, b, w, a));
    DT_TRY(m->ops->attention_forward(m->dev, &at, a->qkv, k, v, a->att, m->train ? a->lse : NULL, m->stream));
    return dt_block_finish(m, b, w, a, want_output);
}
