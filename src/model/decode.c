/* decode.c - generation with a KV cache. Only new tokens run through the blocks. Their keys (after rotation) and values
 * are appended to their sequence's slot, and attention reads the slot.
 *
 * Several sequences may share the slot of a prompt; each stores its continuation in its own slot. Attention reads the
 * prompt's slot first, then the own one. A row of a block's cache holds keys, then values. */
#include "vision/vision_private.h"
#include <inttypes.h>
#include <string.h>

/* Check the tokens that the sequence does not share, and the free rows for them. */
static dt_err check_room(const dt_model *m, int32_t slot, int32_t n, int32_t pos)
{
    const struct cached *c = &m->cached[slot];
    const int32_t room = slot < m->opt.cache_seqs ? m->opt.cache_len : m->opt.cache_prompt_len,
                  used = c->n_shared + c->n_own;
    DT_CHECK(n <= room - c->n_own, DT_ERR_DATA,
             "KV cache slot %d has %d tokens and no room for %d more: its length is %d", slot, c->n_own, n, room);
    DT_EXPECT(n == 0 || pos == used);
    DT_EXPECT(c->n_shared <= m->cached[c->prompt].n_own);
    return DT_OK;
}

/* Mark the slots of a batch, each for one sequence. */
static dt_err take_slots(dt_model *m, const dt_batch *b, const int32_t *slot)
{
    const int32_t n_slots = dt_cache_slots(&m->opt);
    for (int32_t k = 0; k < n_slots; k++) m->cached[k].in_batch = false;
    for (int32_t s = 0; s < b->n_seq; s++) {
        DT_EXPECT(slot[s] >= 0 && slot[s] < n_slots && !m->cached[slot[s]].in_batch);
        m->cached[slot[s]].in_batch = true;
        const int32_t n = b->n_tok > 0 ? b->seq_start[s + 1] - b->seq_start[s] : 0;
        DT_TRY(check_room(m, slot[s], n, n > 0 ? b->pos[b->seq_start[s]] : 0));
    }
    return DT_OK;
}

static dt_err queue_blocks(dt_model *m, const void *unused) { return dt_layers_run(m, "decode", true); }

/* One token per sequence. The operations are the same for similar numbers of sequences. */
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
    DT_EXPECT(m->cache);
    dt_model_take_activations(m);
    DT_TRY(take_slots(m, b, slot));
    DT_TRY(dt_model_stage_batch(m, b, slot));
    m->train = false;
    for (int32_t s = 0; m->H > 0 && m->n_tok > 0 && s < b->n_seq; s++)
        if (m->cached[slot[s]].n_own + m->cached[slot[s]].n_shared == 0) DT_TRY(dt_delta_cache_copy(m, -1, slot[s]));
    DT_TRY(dt_vision_forward(m, b));
    DT_TRY(dt_is_step(b) ? queue_tokens(m) : queue_blocks(m, NULL));
    for (int32_t s = 0; m->n_tok > 0 && s < b->n_seq; s++) {
        struct cached *c = &m->cached[slot[s]];
        c->n_own += b->seq_start[s + 1] - b->seq_start[s];
        c->shift = c->next_shift;
    }
    m->hidden = m->x[0];
    m->have_hidden = true;
    return DT_OK;
}

/* ---- contents of slots ------------------------------------------------------------------------------------------- */

void dt_model_cache_clear(dt_model *m, int32_t slot)
{
    for (int32_t s = 0; m->cached && s < dt_cache_slots(&m->opt); s++)
        if (slot < 0 || s == slot) m->cached[s] = (struct cached){0};
}

int32_t dt_model_cache_keep(dt_model *m, int32_t slot, int32_t n_tok)
{
    struct cached *c = &m->cached[slot];
    /* after an image, the positions of earlier tokens are not known */
    if ((m->H > 0 || c->shift != 0) && c->n_shared + c->n_own != n_tok) n_tok = 0;
    if (n_tok == 0) c->shift = 0;
    if (c->n_shared > n_tok) c->n_shared = n_tok;
    if (c->n_own > n_tok - c->n_shared) c->n_own = n_tok - c->n_shared;
    return n_tok;
}

int32_t dt_model_cache_prompt(const dt_model *m, int32_t i) { return m->opt.cache_seqs + i; }

dt_err dt_model_cache_share(dt_model *m, int32_t slot, int32_t prompt, int32_t n_tok)
{
    const int32_t n_seqs = m->cached ? m->opt.cache_seqs : 0;
    DT_EXPECT(slot >= 0 && slot < n_seqs && prompt >= n_seqs && prompt < dt_cache_slots(&m->opt));
    DT_EXPECT(n_tok >= 0 && n_tok <= m->cached[prompt].n_own);
    DT_CHECK(
        (m->H == 0 && m->cached[prompt].shift == 0) || n_tok == m->cached[prompt].n_own, DT_ERR_USAGE,
        "a text shares %d of the %d tokens of a prompt, but linear attention, or the position after images, is known "
        "after the last one only",
        n_tok, m->cached[prompt].n_own);
    const int32_t shift = m->cached[prompt].shift;
    m->cached[slot] = (struct cached){.prompt = prompt, .n_shared = n_tok, .shift = shift, .next_shift = shift};
    return m->H > 0 ? dt_delta_cache_copy(m, prompt, slot) : DT_OK;
}

/* Move rows of every block's cache, through scratch that a block's pass uses. */
static dt_err move_rows(dt_model *m, const struct tokens *rows, int32_t n)
{
    void *const between = m->sets[0].raw;
    for (int64_t layer = 0; layer < m->mc->num_hidden_layers; layer++) {
        if (dt_model_layer(m->mc, layer).linear) continue;
        DT_TRY(m->ops->gather_rows(m->dev, m->cache[layer], rows->token, between, n, m->K + m->Y, m->opt.dtype,
                                   m->stream));
        DT_TRY(m->ops->scatter_rows(m->dev, between, rows->cache_row, m->cache[layer], n, m->K + m->Y, m->opt.dtype,
                                    m->stream));
    }
    return DT_OK;
}

/* Move the next n_rows rows after the first `done`. Their indices are staged like a batch. */
static dt_err move_some(dt_model *m, const int32_t *src, const int32_t *dst, int64_t done, int32_t n_rows)
{
    struct tokens host, device;
    int64_t before = 0;
    DT_TRY(dt_span_wait(m, &m->tokens_span));
    const size_t nbytes = dt_model_place_tokens(m, m->tokens_span.host, n_rows, 0, &host);
    dt_model_place_tokens(m, m->tokens_span.device, n_rows, 0, &device);
    for (int32_t i = 0, k = 0; k < n_rows; before += m->cached[src[i++]].n_own) {
        const int32_t from = (int32_t)dt_cache_row(&m->opt, src[i]), to = (int32_t)dt_cache_row(&m->opt, dst[i]);
        for (int64_t r = done + k - before; r < m->cached[src[i]].n_own && k < n_rows; r++, k++)
            host.token[k] = from + (int32_t)r, host.cache_row[k] = to + (int32_t)r;
    }
    DT_TRY(dt_span_to_device(m, &m->tokens_span, nbytes));
    return move_rows(m, &device, n_rows);
}

dt_err dt_model_cache_move(dt_model *m, int32_t n, const int32_t *src, const int32_t *dst)
{
    const int32_t n_seqs = m->cached ? m->opt.cache_seqs : 0;
    int64_t n_rows = 0;
    for (int32_t i = 0; i < n; i++) {
        DT_EXPECT(src[i] >= 0 && src[i] < n_seqs && dst[i] >= 0 && dst[i] < n_seqs && src[i] != dst[i]);
        n_rows += m->cached[src[i]].n_own;
    }
    m->have_hidden = false; /* the staged batch is overwritten */
    for (int64_t done = 0; done < n_rows; done += m->opt.max_tok)
        DT_TRY(move_some(m, src, dst, done, (int32_t)dt_min_i64(n_rows - done, m->opt.max_tok)));
    for (int32_t i = 0; m->H > 0 && i < n; i++) DT_TRY(dt_delta_cache_copy(m, src[i], dst[i]));
    for (int32_t i = 0; i < n; i++) m->cached[dst[i]] = m->cached[src[i]];
    return DT_OK;
}
