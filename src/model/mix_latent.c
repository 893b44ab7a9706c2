/* mix_latent.c - multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) as the mixer of a branch. One matmul
 * computes the compressed key and value, the shared part of keys, and the compressed query. After a norm each, a matmul
 * expands the query, and one the keys and values of all heads (docs/algorithms.md, 8.9).
 *
 * Attention and the KV cache have expanded keys and values. Rows of raw have q, k and v, after rotation. */
#include "mixer.h"

static dt_latent heads_of(const dt_model *m)
{
    const dt_model_config *mc = m->mc;
    return (dt_latent){.n_tok = m->n_tok,
                       .n_heads = (int)mc->num_attention_heads,
                       .nope_dim = (int)(mc->head_dim - mc->qk_rope_head_dim),
                       .rope_dim = (int)mc->qk_rope_head_dim,
                       .v_dim = (int)dt_model_v_dim(mc),
                       .xq_ld = mc->q_compressed ? m->W : m->A,
                       .xkv_ld = dt_family_size(mc, SIZE_LKV),
                       .xr_ld = m->A,
                       .q_ld = m->W,
                       .kv_ld = m->W,
                       .pos = m->device.pos,
                       .cos_sin = m->rope,
                       .neighbours = mc->rope_neighbours,
                       .dt = m->opt.dtype};
}

/* Columns of a row of `in`, and of raw. */
static void *shared_in(const dt_model *m, void *in) { return dt_at(in, m->mc->kv_lora_rank, m->elem); }
static void *q_in(const dt_model *m, void *in) { return dt_at(in, dt_family_size(m->mc, SIZE_LKR), m->elem); }
static void *k_in(const dt_model *m, void *raw) { return dt_at(raw, m->Q, m->elem); }
static void *v_in(const dt_model *m, void *raw) { return dt_at(raw, m->Q + m->K, m->elem); }

/* latent.q and latent.kv from latent.in. */
static dt_err normalise(const dt_model *m, const struct block *b, const dt_param_view *w, const struct latent_acts *a)
{
    const struct norm_stats of_q = {.rstd = a->rstd_q}, of_kv = {.rstd = a->rstd_k};
    if (m->mc->q_compressed) DT_TRY(dt_norm_forward(m, &b->q_norm, w, q_in(m, a->in), a->q, of_q, m->n_tok));
    return dt_norm_forward(m, &b->k_norm, w, a->in, a->kv, of_kv, m->n_tok);
}

static dt_err mix(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *acts,
                  const void *x, void *cache, const void **inner)
{
    const struct latent_acts *a = &acts->latent;
    const struct linear *q = &b->linear[SLOT_LATENT_Q];
    const struct with_matmul of_q = {.low = acts->low[SLOT_LATENT_Q]};
    const bool compressed = m->mc->q_compressed;
    dt_latent heads = heads_of(m);
    dt_attention at = dt_block_attention(m, b, w);
    void *k = cache ? cache : k_in(m, acts->raw), *v = cache ? dt_at(cache, m->K, m->elem) : v_in(m, acts->raw);
    *inner = acts->att;
    if (cache) heads.kv_row = m->device.cache_row, heads.kv_ld = at.kv_ld = m->K + m->Y, at.by_library = false;
    if (cache && m->opt.cache_prompts > 0)
        at.shared_start = m->device.shared_start, at.shared_len = m->device.shared_len;
    DT_TRY(dt_slot_forward(m, b, SLOT_LATENT_IN, w, acts, x, a->in));
    DT_TRY(normalise(m, b, w, a));
    if (compressed) DT_TRY(dt_linear_forward(m, q, w, a->q, q->n_in, acts->raw, m->W, m->n_tok, of_q));
    DT_TRY(dt_slot_forward(m, b, SLOT_LATENT_KV, w, acts, a->kv, m->s.latent_kv));
    DT_TRY(m->ops->latent_forward(m->dev, &heads, compressed ? acts->raw : q_in(m, a->in), m->s.latent_kv,
                                  shared_in(m, a->in), acts->raw, k, v, m->stream));
    return m->ops->attention_forward(m->dev, &at, acts->raw, k, v, acts->att, m->train ? acts->lse : NULL, m->stream);
}

/* From s.dqkv: the gradients of the matmuls after the norms, and s.dlatent, the gradient of latent.in. */
static dt_err expand_backward(const dt_model *m, const struct block *b, const dt_param_view *w, const dt_grad_view *g,
                              const struct block_acts *acts)
{
    const struct latent_acts *a = &acts->latent;
    const struct linear *q = &b->linear[SLOT_LATENT_Q];
    const struct with_matmul with_q = {.low = acts->low[SLOT_LATENT_Q]};
    const struct norm_stats of_q = {.rstd = a->rstd_q}, of_kv = {.rstd = a->rstd_k};
    const int64_t LQ = m->mc->q_lora_rank;
    const dt_latent heads = heads_of(m);
    void *const dqkv = m->s.dqkv, *const din = m->s.dlatent;
    const bool compressed = m->mc->q_compressed;
    DT_TRY(m->ops->latent_backward(m->dev, &heads, dqkv, k_in(m, dqkv), v_in(m, dqkv), compressed ? dqkv : q_in(m, din),
                                   m->s.latent_kv, shared_in(m, din), m->stream));
    DT_TRY(dt_slot_backward(m, b, SLOT_LATENT_KV, w, g, acts, a->kv, m->s.latent_kv, m->s.dlatent_kv));
    DT_TRY(dt_norm_backward(m, &b->k_norm, w, g, a->in, of_kv, m->s.dlatent_kv, din, false, m->n_tok));
    if (!compressed) return DT_OK;
    DT_TRY(dt_linear_backward(m, q, w, g, a->q, LQ, dqkv, m->W, m->s.dlatent_q, LQ, with_q, m->n_tok));
    return dt_norm_backward(m, &b->q_norm, w, g, q_in(m, a->in), of_q, m->s.dlatent_q, q_in(m, din), false, m->n_tok);
}

static dt_err mix_backward(const dt_model *m, const struct block *b, int i, const dt_param_view *w,
                           const dt_grad_view *g, const struct block_acts *a, const void *dy)
{
    const dt_attention at = dt_block_attention(m, b, w);
    void *const dqkv = m->s.dqkv;
    DT_EXPECT(m->ops->attention_scratch_elems(m->dev, &at) <= m->s.attention_elems);
    DT_TRY(dt_slot_backward(m, b, SLOT_O, w, g, a, a->att, dy, m->s.datt));
    if (dt_model_remakes(m)) DT_TRY(normalise(m, b, w, &a->latent));
    DT_TRY(m->ops->attention_backward(m->dev, &at, a->raw, k_in(m, a->raw), v_in(m, a->raw), a->att, a->lse, m->s.datt,
                                      dqkv, k_in(m, dqkv), v_in(m, dqkv), m->s.attention, m->stream));
    DT_TRY(expand_backward(m, b, w, g, a));
    DT_TRY(dt_mixer_remake_input(m, b, i, w, a));
    return dt_slot_backward(m, b, SLOT_LATENT_IN, w, g, a, dt_mixer_input(b, i, a), m->s.dlatent, m->s.dnorm);
}

const struct mixer dt_latent_mixer = {
    .reads = 1 << SLOT_LATENT_IN, .last = SLOT_O, .site = SITE_ATTENTION, .forward = mix, .backward = mix_backward};
