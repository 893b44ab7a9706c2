/* block.c - forward of one transformer block. Differences between families are read from the configuration.
 *
 *     x_mid = x_in  + dropout(Attn(norm1(x_in)) Wo + bo)
 *     x_out = x_mid + dropout(act(norm2(x_mid) Wup + bup) Wdown + bdown)
 *
 * The matmul itself adds the residual, or the dropout kernel after it. This saves passes over memory, and in bf16 one
 * rounding. If nothing is kept for backward, x_in, x_mid and x_out are one buffer. */
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
    if (!b->bidirectional && dt_model_layer(mc, b->layer).slides) at.window = (int32_t)mc->sliding_window;
    if (m->train && mc->attn_pdrop > 0) {
        at.dropout_p = (float)mc->attn_pdrop;
        at.dropout_key = dt_dropout_key(m, b->layer, SITE_SCORES);
        at.token_key = m->device.token_key;
    }
    /* only the largest batch: the library plan and its scratch were prepared for that shape */
    at.by_library = m->opt.library_attention && !at.batch_invariant && m->max_q_len == dt_model_longest(m) &&
                    m->max_kv_len == m->max_q_len && (int64_t)m->n_seq * m->max_q_len == m->n_tok &&
                    m->n_seq == m->opt.max_tok / m->max_q_len;
    return at;
}

dt_heads dt_block_heads(const dt_model *m, const struct block *b, const dt_param_view *w)
{
    const dt_model_config *mc = m->mc;
    return (dt_heads){.n_tok = m->n_tok,
                      .n_heads = (int)mc->num_attention_heads,
                      .n_kv_heads = (int)mc->num_key_value_heads,
                      .head_dim = (int)mc->head_dim,
                      .x_ld = m->W,
                      .q_ld = m->W,
                      .kv_ld = m->W,
                      .q_norm = dt_weight(w, b->q_norm),
                      .k_norm = dt_weight(w, b->k_norm),
                      .eps = (float)mc->norm_eps,
                      .pos = m->device.pos,
                      .cos_sin = m->rope,
                      .dt = m->opt.dtype};
}

dt_err dt_block_make_qk(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a)
{
    const dt_heads h = dt_block_heads(m, b, w);
    if (!h.q_norm && !h.cos_sin) return DT_OK;
    return m->ops->heads_forward(m->dev, &h, a->raw, a->qk, dt_at(a->qk, m->Q, m->elem), NULL, a->rstd_q, a->rstd_k,
                                 m->stream);
}

dt_err dt_block_project(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a)
{
    DT_TRY(dt_norm_forward(m, &b->norm1, w, a->x_in, a->norm1, a->mean1, a->rstd1, m->n_tok));
    const struct with_matmul alone = {.low = a->low[SLOT_QKV]};
    return dt_linear_forward(m, &b->linear[SLOT_QKV], w, a->norm1, m->C, a->raw, m->W, m->n_tok, alone);
}

/* y = x + dropout(in W + b) */
static dt_err add_branch(const dt_model *m, const struct linear *l, const dt_param_view *w, const void *in,
                         const void *x, void *y, uint64_t key, void *low)
{
    const float p = m->train ? (float)m->mc->resid_pdrop : 0;
    const struct with_matmul with = {.addend = p == 0 ? x : NULL, .low = low};
    if (p == 0) return dt_linear_forward(m, l, w, in, l->n_in, y, m->C, m->n_tok, with);
    DT_TRY(dt_linear_forward(m, l, w, in, l->n_in, m->s.drop, m->C, m->n_tok, with));
    return m->ops->dropout(m->dev, m->s.drop, x, y, p, key, m->device.token_key, m->n_tok, m->C, m->opt.dtype,
                           m->stream);
}

dt_err dt_block_make_act(const dt_model *m, const struct block_acts *a)
{
    if (!m->mc->gated_mlp)
        return m->ops->act_forward(m->dev, m->mc->act, a->up, a->act, m->opt.dtype, m->n_tok * m->F, m->stream);
    return m->ops->glu_forward(m->dev, m->mc->act, a->up, a->act, m->opt.dtype, m->n_tok, m->F, m->stream);
}

/* act = activation(norm2 Wup + bup), or the gated form. Stores the activation's input if backward needs it. Adapters
 * add to that input. */
static dt_err mlp_activation(const dt_model *m, const struct block *b, const dt_param_view *w,
                             const struct block_acts *a)
{
    const bool again = dt_model_remakes(m) || m->opt.reproducible;
    const struct with_matmul act = {.epilogue = DT_EPILOGUE_ACT, .act_in = a->up, .act_of_aux = again},
                             alone = {.low = a->low[SLOT_UP]};
    if (!m->mc->gated_mlp && b->linear[SLOT_UP].n_low == 0)
        return dt_linear_forward(m, &b->linear[SLOT_UP], w, a->norm2, m->C, a->act, m->F, m->n_tok, act);
    DT_TRY(dt_linear_forward(m, &b->linear[SLOT_UP], w, a->norm2, m->C, a->up, m->U, m->n_tok, alone));
    return dt_block_make_act(m, a);
}

dt_err dt_block_finish(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a,
                       bool want_output)
{
    DT_TRY(add_branch(m, &b->linear[SLOT_O], w, a->att, a->x_in, a->x_mid, dt_dropout_key(m, b->layer, SITE_ATTENTION),
                      a->low[SLOT_O]));
    DT_TRY(dt_norm_forward(m, &b->norm2, w, a->x_mid, a->norm2, a->mean2, a->rstd2, m->n_tok));
    DT_TRY(mlp_activation(m, b, w, a));
    if (!want_output)
        return dt_low_rank_project(m, &b->linear[SLOT_DOWN], w, a->act, dt_low_rank_tokens(m, m->n_tok),
                                   a->low[SLOT_DOWN]);
    return add_branch(m, &b->linear[SLOT_DOWN], w, a->act, a->x_mid, a->x_out, dt_dropout_key(m, b->layer, SITE_MLP),
                      a->low[SLOT_DOWN]);
}

dt_err dt_block_forward(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a,
                        bool want_output)
{
    const dt_attention at = dt_block_attention(m, b);
    const void *k = dt_at(a->qk, m->Q, m->elem), *v = dt_at(a->raw, m->Q + m->K, m->elem);
    DT_TRY(dt_block_project(m, b, w, a));
    DT_TRY(dt_block_make_qk(m, b, w, a));
    DT_TRY(m->ops->attention_forward(m->dev, &at, a->qk, k, v, a->att, m->train ? a->lse : NULL, m->stream));
    return dt_block_finish(m, b, w, a, want_output);
}
