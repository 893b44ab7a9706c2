/* mix_attention.c - attention as the mixer of a branch: one matmul computes q, k and v, then norms and rotation of
 * heads, then attention. With a KV cache, keys and values go to the cache, and q stays in the matmul's output. */
#include "divide.h"
#include "mixer.h"

/* ---- inputs and buffers ------------------------------------------------------------------------------------------ */

void dt_attention_stage(dt_model *m, const dt_batch *b)
{
    m->max_q_len = m->max_kv_len = 0;
    for (int32_t s = 0; s < b->n_seq; s++) {
        const int32_t first = b->seq_start[s], n = b->seq_start[s + 1] - first;
        const int32_t before = s == 0 ? m->part.n_before : 0;
        m->host.q_start[s] = first;
        m->host.kv_start[s] = m->part.first + first - before;
        m->host.kv_len[s] = before + n;
        if (n > m->max_q_len) m->max_q_len = n;
        if (before + n > m->max_kv_len) m->max_kv_len = before + n;
    }
    m->host.q_start[b->n_seq] = b->n_tok;
}

void dt_attention_place(dt_model *m, struct arena arenas[N_ARENAS])
{
    struct arena *a = &arenas[IN_ACTIVATIONS];
    const int64_t gated = m->mc->attn_output_gate ? m->opt.max_tok : 0;
    m->s.wide = dt_take(a, gated, 2 * m->Q + 2 * m->K, m->elem);
    m->s.gated = dt_take(a, gated, m->Q, m->elem);
    dt_context_place(m, arenas);
}

void dt_attention_place_backward(dt_model *m, struct arena *a)
{
    m->s.datt = dt_take(a, m->opt.max_tok, m->O, m->elem);
    m->s.dqkv = dt_take(a, m->opt.max_tok, m->W, m->elem);
    dt_context_place_backward(m, a);
}

/* ---- the call of the device -------------------------------------------------------------------------------------- */

dt_attention dt_block_attention(const dt_model *m, const struct block *b, const dt_param_view *w)
{
    const dt_model_config *mc = m->mc;
    dt_attention at = {.n_seq = m->n_seq,
                       .n_heads = (int)mc->num_attention_heads,
                       .n_kv_heads = (int)mc->num_key_value_heads,
                       .head_dim = (int)mc->head_dim,
                       .v_head_dim = (int)mc->v_head_dim,
                       .q_start = m->device.q_start,
                       .kv_start = m->device.kv_start,
                       .kv_len = m->device.kv_len,
                       .n_tok = m->n_tok,
                       .max_q_len = m->max_q_len,
                       .max_kv_len = m->max_kv_len,
                       .q_ld = m->W,
                       .kv_ld = m->W,
                       .o_ld = m->O,
                       .scale = 1,
                       .dt = m->opt.dtype,
                       .batch_invariant = dt_model_is_invariant(m)};
    if (mc->scale_attn_weights) at.scale = (float)(1 / sqrt((double)mc->head_dim));
    if (mc->attention_multiplier > 0) at.scale = (float)mc->attention_multiplier;
    at.softcap = (float)mc->attn_softcap;
    at.bidirectional = b->bidirectional;
    if (w) at.sinks = dt_weight(w, b->sinks);
    if (mc->scale_attn_by_inverse_layer_idx && !b->bidirectional) at.scale /= (float)(b->layer + 1);
    if (b->traits.slides) at.window = (int32_t)mc->sliding_window;
    if (b->traits.windowed && m->grids) {
        at.n_seq = m->n_windows;
        at.q_start = at.kv_start = m->patches.device_arrays.window_start;
        at.kv_len = m->patches.device_arrays.window_len;
        at.max_q_len = at.max_kv_len = m->longest_window;
    }
    if (m->train && mc->attn_pdrop > 0) {
        at.dropout_p = (float)mc->attn_pdrop;
        at.dropout_key = dt_dropout_key(m, b->layer, SITE_SCORES);
        at.token_key = m->device.token_key;
    }
    if (m->max_ahead > 0 && !b->bidirectional) at.ahead = m->device.ahead, at.max_ahead = m->max_ahead;
    /* only the largest batch: the library plan and its scratch were prepared for that shape */
    at.by_library = m->opt.library_attention && !at.batch_invariant && m->max_q_len == dt_model_longest(m) &&
                    m->max_kv_len == m->max_q_len && (int64_t)m->n_seq * m->max_q_len == m->n_tok &&
                    m->n_seq == m->opt.max_tok / m->max_q_len;
    return at;
}

/* Norm and rotation of the heads between the matmul and attention. */
static dt_heads heads_of(const dt_model *m, const struct block *b, const dt_param_view *w)
{
    const dt_model_config *mc = m->mc;
    return (dt_heads){.n_tok = m->n_tok,
                      .n_heads = (int)mc->num_attention_heads,
                      .n_kv_heads = (int)mc->num_key_value_heads,
                      .head_dim = (int)mc->head_dim,
                      .x_ld = m->W,
                      .q_ld = m->W,
                      .kv_ld = m->W,
                      .q_norm = mc->qk_norm_whole ? NULL : dt_weight(w, b->q_norm.w),
                      .k_norm = mc->qk_norm_whole ? NULL : dt_weight(w, b->k_norm.w),
                      .eps = (float)mc->norm_eps,
                      .plus_one = mc->norm_plus_one,
                      .pos = m->device.pos,
                      .cos_sin = b->traits.unrotated                 ? NULL
                                 : b->traits.slides && m->rope_local ? m->rope_local
                                                                     : m->rope,
                      .q_cos_sin = b->traits.unrotated ? NULL : m->rope_q,
                      .rotary_dim = (int)dt_model_rotary_dim(mc),
                      .neighbours = mc->rope_neighbours,
                      .dt = m->opt.dtype};
}

/* Norms of all heads at once: q and k from raw to `to`, rows of W. Each is rounded before the rotation. */
static dt_err norm_whole(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a,
                         void *to)
{
    const struct norm_stats of_q = {.rstd = a->rstd_q}, of_k = {.rstd = a->rstd_k};
    DT_TRY(dt_norm_forward(m, &b->q_norm, w, a->raw, to, of_q, m->n_tok));
    return dt_norm_forward(m, &b->k_norm, w, dt_at(a->raw, m->Q, m->elem), dt_at(to, m->Q, m->elem), of_k, m->n_tok);
}

/* Their backward, in place on s.dqkv. */
static dt_err norm_whole_backward(const dt_model *m, const struct block *b, const dt_param_view *w,
                                  const dt_grad_view *g, const struct block_acts *a)
{
    const struct norm_stats of_q = {.rstd = a->rstd_q}, of_k = {.rstd = a->rstd_k};
    void *dq = m->s.dqkv, *dk = dt_at(dq, m->Q, m->elem);
    DT_TRY(dt_norm_backward(m, &b->q_norm, w, g, a->raw, of_q, dq, dq, false, m->n_tok));
    return dt_norm_backward(m, &b->k_norm, w, g, dt_at(a->raw, m->Q, m->elem), of_k, dk, dk, false, m->n_tok);
}

/* Compute qk from raw. */
static dt_err make_qk(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a)
{
    const dt_heads h = heads_of(m, b, w);
    const bool whole = m->mc->qk_norm_whole;
    if (whole) DT_TRY(norm_whole(m, b, w, a, a->qk));
    if (!h.q_norm && !h.cos_sin) return DT_OK;
    return m->ops->heads_forward(m->dev, &h, whole ? a->qk : a->raw, a->qk, dt_at(a->qk, m->Q, m->elem), NULL,
                                 whole ? NULL : a->rstd_q, whole ? NULL : a->rstd_k, m->stream);
}

static dt_err attend(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a)
{
    dt_attention at = dt_block_attention(m, b, w);
    struct kv all;
    DT_TRY(make_qk(m, b, w, a));
    DT_TRY(dt_context_gather(m, dt_at(a->qk, m->Q, m->elem), dt_at(a->raw, m->Q + m->K, m->elem), &at, &all));
    return m->ops->attention_forward(m->dev, &at, a->qk, all.k, all.v, a->att, m->train ? a->lse : NULL, m->stream);
}

static dt_err attend_cache(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a,
                           void *cache)
{
    void *k = cache, *v = dt_at(k, m->K, m->elem);
    dt_attention at = dt_block_attention(m, b, w);
    dt_heads h = heads_of(m, b, w);
    h.kv_row = m->device.cache_row;
    h.kv_ld = at.kv_ld = m->K + m->Y;
    at.by_library = false; /* keys are in slots */
    if (m->opt.cache_prompts > 0) at.shared_start = m->device.shared_start, at.shared_len = m->device.shared_len;
    if (m->mc->qk_norm_whole) DT_TRY(norm_whole(m, b, w, a, a->raw));
    DT_TRY(m->ops->heads_forward(m->dev, &h, a->raw, a->raw, k, v, NULL, NULL, m->stream));
    return m->ops->attention_forward(m->dev, &at, a->raw, k, v, a->att, NULL, m->stream);
}

/* ---- attention with a gate -----------------------------------------------------------------------------------------
 * The matmul writes rows of wide: for each head its query and its gate, then k and v. */

static int64_t wide_ld(const dt_model *m) { return 2 * m->Q + 2 * m->K; }

/* The heads' queries in rows of W, or the gates in rows of Q, as x; the corresponding blocks of wide as y. */
static dt_blocks heads_of_wide(const dt_model *m, int64_t x_ld)
{
    const int64_t d = m->mc->head_dim;
    return (dt_blocks){m->n_tok, m->mc->num_attention_heads, d, x_ld, d, wide_ld(m), 2 * d, m->opt.dtype};
}
static dt_blocks turned(dt_blocks b)
{
    return (dt_blocks){b.n_rows, b.n_blocks, b.width, b.y_ld, b.y_block, b.x_ld, b.x_block, b.dt};
}
static dt_blocks keys_of_wide(const dt_model *m)
{
    return (dt_blocks){m->n_tok, 1, 2 * m->K, m->W, 2 * m->K, wide_ld(m), 2 * m->K, m->opt.dtype};
}
/* Attention's output and gate, as rows. */
static dt_blocks gate_rows(const dt_model *m)
{
    return (dt_blocks){m->n_tok, 1, m->Q, m->Q, m->Q, m->Q, m->Q, m->opt.dtype};
}

/* raw and gate from wide. */
static dt_err split_wide(const dt_model *m, const struct block_acts *a)
{
    const dt_blocks q = turned(heads_of_wide(m, m->W)), gate = turned(heads_of_wide(m, m->Q)),
                    kv = turned(keys_of_wide(m));
    DT_TRY(m->ops->copy_blocks(m->dev, &q, m->s.wide, a->raw, m->stream));
    DT_TRY(m->ops->copy_blocks(m->dev, &gate, dt_at(m->s.wide, m->mc->head_dim, m->elem), a->gate, m->stream));
    return m->ops->copy_blocks(m->dev, &kv, dt_at(m->s.wide, 2 * m->Q, m->elem), dt_at(a->raw, m->Q, m->elem),
                               m->stream);
}

/* wide's gradient from s.dqkv and the gradient of the gate. */
static dt_err join_wide(const dt_model *m, const struct block_acts *a)
{
    const dt_blocks q = heads_of_wide(m, m->W), gate = heads_of_wide(m, m->Q), kv = keys_of_wide(m);
    DT_TRY(m->ops->copy_blocks(m->dev, &q, m->s.dqkv, m->s.wide, m->stream));
    DT_TRY(m->ops->copy_blocks(m->dev, &gate, a->gate, dt_at(m->s.wide, m->mc->head_dim, m->elem), m->stream));
    return m->ops->copy_blocks(m->dev, &kv, dt_at(m->s.dqkv, m->Q, m->elem), dt_at(m->s.wide, 2 * m->Q, m->elem),
                               m->stream);
}

static dt_err make_gated(const dt_model *m, const struct block_acts *a)
{
    const dt_blocks rows = gate_rows(m);
    return m->ops->sigmoid_gate_forward(m->dev, &rows, a->att, a->gate, m->s.gated, m->stream);
}

/* ---- the mixer --------------------------------------------------------------------------------------------------- */

static dt_err mix(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a,
                  const void *x, void *cache, const void **inner)
{
    const bool gated = m->mc->attn_output_gate;
    *inner = gated ? m->s.gated : a->att;
    DT_TRY(dt_slot_forward(m, b, SLOT_QKV, w, a, x, gated ? m->s.wide : a->raw));
    if (gated) DT_TRY(split_wide(m, a));
    DT_TRY(cache ? attend_cache(m, b, w, a, cache) : attend(m, b, w, a));
    return gated ? make_gated(m, a) : DT_OK;
}

/* Convert the gradients of attention's inputs to gradients of the matmul's output. */
static dt_err heads_backward(const dt_model *m, const struct block *b, const dt_param_view *w, const dt_grad_view *g,
                             const struct block_acts *a)
{
    const dt_heads h = heads_of(m, b, w);
    const bool whole = m->mc->qk_norm_whole;
    if (h.q_norm || h.cos_sin)
        DT_TRY(m->ops->heads_backward(m->dev, &h, a->raw, a->rstd_q, a->rstd_k, m->s.dqkv,
                                      dt_at(m->s.dqkv, m->Q, m->elem), whole ? NULL : dt_gradient(g, b->q_norm.w),
                                      whole ? NULL : dt_gradient(g, b->k_norm.w), g->dtype, g->accumulate, m->s.norm,
                                      m->stream));
    return whole ? norm_whole_backward(m, b, w, g, a) : DT_OK;
}

static dt_err mix_backward(const dt_model *m, const struct block *b, int i, const dt_param_view *w,
                           const dt_grad_view *g, const struct block_acts *a, const void *dy)
{
    dt_attention at = dt_block_attention(m, b, w);
    at.dsinks = dt_gradient(g, b->sinks);
    at.dsinks_dtype = g->dtype;
    at.accumulate_dsinks = g->accumulate;
    const int64_t scratch = m->ops->attention_scratch_elems(m->dev, &at);
    const size_t e = m->elem;
    DT_EXPECT(scratch <= m->s.attention_elems);
    const bool gated = m->mc->attn_output_gate;
    const dt_blocks rows = gate_rows(m);
    if (gated && dt_linear_keeps_input(&b->linear[SLOT_O])) DT_TRY(make_gated(m, a));
    DT_TRY(dt_slot_backward(m, b, SLOT_O, w, g, a, gated ? m->s.gated : a->att, dy, m->s.datt));
    if (gated)
        DT_TRY(m->ops->sigmoid_gate_backward(m->dev, &rows, a->att, a->gate, m->s.datt, m->s.datt, a->gate, m->stream));
    if (dt_model_remakes(m) && dt_model_keeps_raw(m)) DT_TRY(make_qk(m, b, w, a));
    void *dk = dt_at(m->s.dqkv, m->Q, e), *dv = dt_at(m->s.dqkv, m->Q + m->K, e);
    struct kv all;
    struct kv_gradients to;
    DT_TRY(dt_context_gather(m, dt_at(a->qk, m->Q, e), dt_at(a->raw, m->Q + m->K, e), &at, &all));
    DT_TRY(dt_context_begin_backward(m, dk, dv, &to));
    DT_TRY(m->ops->attention_backward(m->dev, &at, a->qk, all.k, all.v, a->att, a->lse, m->s.datt, m->s.dqkv, to.k,
                                      to.v, m->s.attention, m->stream));
    DT_TRY(dt_context_end_backward(m, dk)); /* dv follows dk */
    DT_TRY(heads_backward(m, b, w, g, a));
    if (gated) DT_TRY(join_wide(m, a));
    DT_TRY(dt_mixer_remake_input(m, b, i, w, a));
    return dt_slot_backward(m, b, SLOT_QKV, w, g, a, dt_mixer_input(b, i, a), gated ? m->s.wide : m->s.dqkv,
                            m->s.dnorm);
}

static dt_err skip(const dt_model *m, const struct block *b, bool want_output) { return dt_context_skip(m); }

const struct mixer dt_attention_mixer = {.reads = 1 << SLOT_QKV,
                                         .last = SLOT_O,
                                         .site = SITE_ATTENTION,
                                         .forward = mix,
                                         .backward = mix_backward,
                                         .skip = skip,
                                         .skip_backward = dt_context_skip_backward};
