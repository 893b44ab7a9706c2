/* mix_latent.c - multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) as the mixer of a branch. One matmul
 * computes the compressed key and value, the shared part of keys, and the compressed query. After a norm each, a matmul
 * expands the query, and one the keys and values of all heads (docs/algorithms.md, 8.9).
 *
 * Attention and the KV cache have expanded keys and values. Rows of raw have q, k and v, after rotation. */
#include "mixer.h"

/* Of the norms of compressed rows, whatever rms_norm_eps is: as in transformers. */
static const float NORM_EPS = 1e-6f;

static dt_rmsnorm norm_of(const dt_model *m, int64_t width)
{
    return (dt_rmsnorm){.n_rows = m->n_tok,
                        .width = width,
                        .group = 1,
                        .group_ld = m->A,
                        .y_group_ld = width,
                        .eps = NORM_EPS,
                        .dt = m->opt.dtype};
}

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
    const dt_rmsnorm q = norm_of(m, m->mc->q_lora_rank), kv = norm_of(m, m->mc->kv_lora_rank);
    if (m->mc->q_compressed)
        DT_TRY(
            m->ops->rmsnorm_forward(m->dev, &q, q_in(m, a->in), dt_weight(w, b->q_norm), a->q, a->rstd_q, m->stream));
    return m->ops->rmsnorm_forward(m->dev, &kv, a->in, dt_weight(w, b->k_norm), a->kv, a->rstd_k, m->stream);
}

static dt_err mix(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *acts,
                  const void *x, void *cache, const void **inner)
{
    const struct latent_acts *a = &acts->latent;
    const struct linear *q = &b->linear[SLOT_LATENT_Q], *kv = &b->linear[SLOT_LATENT_KV];
    const struct with_matmul of_in = {.low = acts->low[SLOT_LATENT_IN]}, of_q = {.low = acts->low[SLOT_LATENT_Q]},
                             of_kv = {.low = acts->low[SLOT_LATENT_KV]};
    const bool compressed = m->mc->q_compressed;
    dt_latent heads = heads_of(m);
    dt_attention at = dt_block_attention(m, b, w);
    void *k = cache ? cache : k_in(m, acts->raw), *v = cache ? dt_at(cache, m->K, m->elem) : v_in(m, acts->raw);
    *inner = acts->att;
    if (cache) heads.kv_row = m->device.cache_row, heads.kv_ld = at.kv_ld = m->K + m->Y, at.by_library = false;
    if (cache && m->opt.cache_prompts > 0)
        at.shared_start = m->device.shared_start, at.shared_len = m->device.shared_len;
    DT_TRY(dt_linear_forward(m, &b->linear[SLOT_LATENT_IN], w, x, m->C, a->in, m->A, m->n_tok, of_in));
    DT_TRY(normalise(m, b, w, a));
    if (compressed) DT_TRY(dt_linear_forward(m, q, w, a->q, q->n_in, acts->raw, m->W, m->n_tok, of_q));
    DT_TRY(dt_linear_forward(m, kv, w, a->kv, kv->n_in, m->s.latent_kv, heads.xkv_ld, m->n_tok, of_kv));
    DT_TRY(m->ops->latent_forward(m->dev, &heads, compressed ? acts->raw : q_in(m, a->in), m->s.latent_kv,
                                  shared_in(m, a->in), acts->raw, k, v, m->stream));
    return m->ops->attention_forward(m->dev, &at, acts->raw, k, v, acts->att, m->train ? acts->lse : NULL, m->stream);
}

/* From s.dqkv: the gradients of the matmuls after the norms, and s.dlatent, the gradient of latent.in. */
static dt_err expand_backward(const dt_model *m, const struct block *b, const dt_param_view *w, const dt_grad_view *g,
                              const struct block_acts *acts)
{
    const struct latent_acts *a = &acts->latent;
    const struct linear *of_q = &b->linear[SLOT_LATENT_Q], *of_kv = &b->linear[SLOT_LATENT_KV];
    const struct with_matmul with_q = {.low = acts->low[SLOT_LATENT_Q]}, with_kv = {.low = acts->low[SLOT_LATENT_KV]};
    const int64_t LQ = m->mc->q_lora_rank, LK = m->mc->kv_lora_rank;
    const dt_rmsnorm q = norm_of(m, LQ), kv = norm_of(m, LK);
    const dt_latent heads = heads_of(m);
    void *const dqkv = m->s.dqkv, *const din = m->s.dlatent;
    const bool compressed = m->mc->q_compressed;
    DT_TRY(m->ops->latent_backward(m->dev, &heads, dqkv, k_in(m, dqkv), v_in(m, dqkv), compressed ? dqkv : q_in(m, din),
                                   m->s.latent_kv, shared_in(m, din), m->stream));
    DT_TRY(dt_linear_backward(m, of_kv, w, g, a->kv, LK, m->s.latent_kv, heads.xkv_ld, m->s.dlatent_kv, LK, with_kv,
                              m->n_tok));
    DT_TRY(m->ops->rmsnorm_backward(m->dev, &kv, a->in, dt_weight(w, b->k_norm), a->rstd_k, m->s.dlatent_kv, din, false,
                                    dt_gradient(g, b->k_norm), g->dtype, g->accumulate, m->s.norm, m->stream));
    if (!compressed) return DT_OK;
    DT_TRY(dt_linear_backward(m, of_q, w, g, a->q, LQ, dqkv, m->W, m->s.dlatent_q, LQ, with_q, m->n_tok));
    return m->ops->rmsnorm_backward(m->dev, &q, q_in(m, a->in), dt_weight(w, b->q_norm), a->rstd_q, m->s.dlatent_q,
                                    q_in(m, din), false, dt_gradient(g, b->q_norm), g->dtype, g->accumulate, m->s.norm,
                                    m->stream);
}

static dt_err mix_backward(const dt_model *m, const struct block *b, int i, const dt_param_view *w,
                           const dt_grad_view *g, const struct block_acts *a, const void *dy)
{
    const dt_attention at = dt_block_attention(m, b, w);
    const struct with_matmul of_o = {.low = a->low[SLOT_O]}, of_in = {.low = a->low[SLOT_LATENT_IN]};
    void *const dqkv = m->s.dqkv;
    DT_EXPECT(m->ops->attention_scratch_elems(m->dev, &at) <= m->s.attention_elems);
    DT_TRY(dt_linear_backward(m, &b->linear[SLOT_O], w, g, a->att, m->O, dy, m->C, m->s.datt, m->O, of_o, m->n_tok));
    if (dt_model_remakes(m)) DT_TRY(normalise(m, b, w, &a->latent));
    DT_TRY(m->ops->attention_backward(m->dev, &at, a->raw, k_in(m, a->raw), v_in(m, a->raw), a->att, a->lse, m->s.datt,
                                      dqkv, k_in(m, dqkv), v_in(m, dqkv), m->s.attention, m->stream));
    DT_TRY(expand_backward(m, b, w, g, a));
    DT_TRY(dt_mixer_remake_input(m, b, i, w, a));
    return dt_linear_backward(m, &b->linear[SLOT_LATENT_IN], w, g, dt_mixer_input(b, i, a), m->C, m->s.dlatent, m->A,
                              m->s.dnorm, m->C, of_in, m->n_tok);
}

const struct mixer dt_latent_mixer = {
    .reads = 1 << SLOT_LATENT_IN, .last = SLOT_O, .site = SITE_ATTENTION, .forward = mix, .backward = mix_backward};
