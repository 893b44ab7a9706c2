/* decode.c - generation with a key-value cache: new tokens alone run through the blocks, their keys (after rotation)
 * and values are appended to their sequence's slot, and attention reads the slot.
 *
 * A row of a block's cache holds keys, then values. */
#include "model_private.h"
#include <inttypes.h>
#include <string.h>

static dt_err check_slots(const dt_model *m, const dt_batch *b, const int32_t *slot)
{
    for (int32_t s = 0; s < b->n_seq; s++) {
        DT_CHECK(slot[s] >= 0 && slot[s] < m->opt.cache_seqs, DT_ERR_ARG, "cache slot %d; there are %d", slot[s],
                 m->opt.cache_seqs);
        for (int32_t r = 0; r < s; r++)
            DT_CHECK(slot[r] != slot[s], DT_ERR_ARG, "two sequences of a batch share cache slot %d", slot[s]);
        const int32_t n = b->n_tok > 0 ? b->seq_start[s + 1] - b->seq_start[s] : 0, used = m->cache_used[slot[s]];
        DT_CHECK(n <= m->opt.cache_len - used, DT_ERR_DATA,
                 "cache slot %d holds %d tokens and cannot take %d more: its length is %d", slot[s], used, n,
                 m->opt.cache_len);
        DT_CHECK(n == 0 || b->pos[b->seq_start[s]] == used, DT_ERR_ARG,
                 "slot %d holds %d tokens, but the next has position %d", slot[s], used, b->pos[b->seq_start[s]]);
    }
    return DT_OK;
}

/* k and v go to the cache, q stays where the product has put it. */
static dt_err block_decode(const dt_model *m, const struct block *b, const dt_param_view *w)
{
    struct block_acts a = m->sets[0];
    void *k = m->cache[b->layer], *v = dt_at(k, m->K, m->elem);
    dt_attention at = dt_block_attention(m, b);
    dt_heads h = dt_block_heads(m, b, w);
    a.x_in = a.x_mid = a.x_out = m->x[0];
    h.kv_row = m->device.cache_row;
    h.kv_ld = at.kv_ld = 2 * m->K;
    at.by_library = false; /* keys lie in slots */
    DT_TRY(dt_block_project(m, b, w, &a));
    DT_TRY(m->ops->heads_forward(m->dev, &h, a.raw, a.raw, k, v, NULL, NULL, m->stream));
    DT_TRY(m->ops->attention_forward(m->dev, &at, a.raw, k, v, a.att, NULL, m->stream));
    return dt_block_finish(m, b, w, &a, true);
}

static dt_err queue_blocks(dt_model *m, const void *unused)
{
    const dt_param_source *src = m->source;
    DT_TRY(dt_embed_forward(m, m->x[0]));
    for (int64_t i = 0; i < m->n_stages; i++) {
        const int unit = m->stages[i].unit;
        dt_param_view w;
        dt_phase_enter(m->phase, "decode", m->units[unit].name);
        DT_TRY(dt_params_acquire(m, unit, &w));
        if (m->n_tok > 0) DT_TRY(block_decode(m, &m->stages[i].block, &w));
        DT_TRY(src->params_release(src->self, unit));
    }
    return DT_OK;
}

/* One token for each sequence: the same operations as long as there are about as many. */
static dt_err queue_tokens(dt_model *m)
{
    const int32_t n = m->n_seq;
    m->max_kv_len = dt_step_len(m, m->max_kv_len);
    m->n_seq = m->n_tok = n + m->n_fill;
    const struct step_key key = {.what = STEP_BLOCKS, .n = m->n_seq, .len = m->max_kv_len};
    const dt_err err = dt_step_run(m, &key, queue_blocks, NULL);
    m->n_seq = m->n_tok = n;
    return err;
}

dt_err dt_model_decode(dt_model *m, const dt_batch *b, const int32_t *slot)
{
    DT_CHECK(m->cache, DT_ERR_ARG, "the model was opened without a key-value cache");
    dt_model_take_activations(m);
    DT_TRY(check_slots(m, b, slot));
    DT_TRY(dt_model_stage_batch(m, b, slot));
    m->train = false;
    m->set_holds = -1;
    dt_phase_enter(m->phase, "decode", m->units[m->embed_unit].name);
    const bool tokens = m->n_tok > 0 && m->n_tok == m->n_seq && m->max_q_len == 1;
    DT_TRY(tokens ? queue_tokens(m) : queue_blocks(m, NULL));
    for (int32_t s = 0; m->n_tok > 0 && s < b->n_seq; s++)
        m->cache_used[slot[s]] += b->seq_start[s + 1] - b->seq_start[s];
    m->hidden = m->x[0];
    m->have_hidden = true;
    return DT_OK;
}

void dt_model_cache_clear(dt_model *m, int32_t slot)
{
    for (int32_t s = 0; s < m->opt.cache_seqs; s++)
        if (slot < 0 || s == slot) m->cache_used[s] = 0;
}

void dt_model_cache_keep(dt_model *m, int32_t slot, int32_t n_tok)
{
    if (m->cache_used[slot] > n_tok) m->cache_used[slot] = n_tok;
}

dt_err dt_model_cache_copy(dt_model *m, int32_t src, int32_t dst, int32_t first)
{
    const int32_t n = m->opt.cache_seqs;
    DT_CHECK(m->cache && src >= 0 && src < n && dst >= 0 && dst < n, DT_ERR_ARG, "cache slots %d and %d; there are %d",
             src, dst, n);
    DT_CHECK(first >= 0 && first <= m->cache_used[src] && first <= m->cache_used[dst], DT_ERR_ARG,
             "cache slots %d and %d hold %d and %d tokens, not %d in common", src, dst, m->cache_used[src],
             m->cache_used[dst], first);
    if (src == dst) return DT_OK;
    const int64_t row = 2 * m->K, slot = (int64_t)m->opt.cache_len * row, from = first * row;
    const size_t nbytes = (size_t)(m->cache_used[src] - first) * (size_t)row * m->elem;
    for (int64_t layer = 0; nbytes > 0 && layer < m->mc->num_hidden_layers; layer++)
        DT_TRY(m->ops->copy(m->dev, dt_at(m->cache[layer], dst * slot + from, m->elem),
                            dt_at(m->cache[layer], src * slot + from, m->elem), nbytes, m->stream));
    m->cache_used[dst] = m->cache_used[src];
    return DT_OK;
}
