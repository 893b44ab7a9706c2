/* upload_batch.c - validate a batch on the host and copy it to the device. One copy from pinned memory moves
 * everything, so the caller may reuse its arrays immediately. A token id outside the table or a position outside the
 * model would make a kernel read out of bounds; both are rejected here. */
#include "vision/vision_private.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

static dt_err mark_moving(dt_model *m, struct span *s)
{
    s->moving = true;
    return m->ops->event_record(m->dev, s->moved, m->stream);
}

dt_err dt_span_to_device(dt_model *m, struct span *s, size_t nbytes)
{
    DT_TRY(m->ops->copy(m->dev, s->device, s->host, nbytes, m->stream));
    return mark_moving(m, s);
}

dt_err dt_span_ahead(const dt_model *m, const struct span *s, size_t nbytes)
{
    return m->ops->copy(m->dev, s->device, s->host, nbytes, m->stream);
}

dt_err dt_span_to_host(dt_model *m, struct span *s, size_t nbytes)
{
    DT_TRY(m->ops->copy(m->dev, s->host, s->device, nbytes, m->stream));
    return mark_moving(m, s);
}

dt_err dt_span_wait(dt_model *m, struct span *s)
{
    if (!s->moving) return DT_OK;
    s->moving = false;
    return m->ops->event_sync(m->dev, s->moved);
}

dt_err dt_model_sync(dt_model *m)
{
    m->tokens_span.moving = m->rows_span.moving = m->results_span.moving = false;
    m->load_span.moving = m->dload_span.moving = false;
    return m->ops->stream_sync(m->dev, m->stream);
}

static dt_err check_shape(const dt_model *m, const dt_batch *b)
{
    DT_EXPECT(b->n_tok >= 0 && b->n_tok <= m->opt.max_tok && b->n_seq >= 0 && b->n_seq <= m->opt.max_seq);
    bool in_order = b->n_tok == 0 || (b->n_seq > 0 && b->seq_start[0] == 0 && b->seq_start[b->n_seq] == b->n_tok);
    for (int32_t s = 0; in_order && b->n_tok > 0 && s < b->n_seq; s++)
        in_order = b->seq_start[s] <= b->seq_start[s + 1];
    DT_EXPECT(in_order);
    return DT_OK;
}

static dt_err check_tokens(const dt_model *m, const dt_batch *b)
{
    const int32_t V = (int32_t)m->V;
    for (int32_t t = 0; t < b->n_tok; t++) {
        DT_CHECK(b->token[t] >= 0 && b->token[t] < V, DT_ERR_DATA,
                 "token id %d is outside the model's vocabulary of %d tokens", b->token[t], V);
        DT_CHECK(b->pos[t] >= 0 && b->pos[t] < m->opt.max_pos, DT_ERR_DATA,
                 "position %d exceeds the %d positions that the model was opened for", b->pos[t], m->opt.max_pos);
    }
    return DT_OK;
}

void dt_sort_tokens(const int32_t *key, int64_t n_keys, const int32_t *token, int64_t n, int32_t *end, int32_t *order)
{
    memset(end, 0, (size_t)(n_keys + 1) * sizeof *end);
    for (int64_t i = 0; i < n; i++) end[key[token ? token[i] : i] + 1]++;
    for (int64_t k = 0; k < n_keys; k++) end[k + 1] += end[k];
    for (int64_t i = 0; i < n; i++) {
        const int32_t t = token ? token[i] : (int32_t)i;
        order[end[key[t]]++] = t;
    }
}

/* Offsets of the table adapter's elements for each token. In training also those that receive gradients, sorted by
 * offset. */
static void stage_low(const dt_model *m, enum low_of of, const int32_t *id, const int32_t *order, int32_t n_order)
{
    const int32_t r = (int32_t)m->low_table[of].low.r, n_rows = (int32_t)m->low_table[of].n_rows;
    int32_t *at = m->host.low_at[of], *in_order = m->host.low_order[of];
    for (int32_t t = 0; r > 0 && t < m->n_tok + m->n_fill; t++)
        for (int32_t k = 0; k < r; k++) *at++ = k * n_rows + id[t];
    for (int32_t k = 0; m->opt.training && k < r; k++)
        for (int32_t i = 0; i < n_order; i++) *in_order++ = order[i] * r + k;
}

/* NEFTune's bounds: alpha / sqrt(L C) for a sequence of L tokens. Noise is added to the output of transformers' module
 * of the embedding, which multiplies by embedding_multiplier in Gemma only: in other families the noise is multiplied,
 * too. */
static void stage_noise(const dt_model *m, const dt_batch *b)
{
    const double alpha = (double)m->opt.neftune_alpha,
                 factor = m->mc->embedding_multiplier_rounded ? alpha : alpha * m->mc->embedding_multiplier;
    for (int32_t s = 0; alpha > 0 && s < b->n_seq; s++) {
        const int32_t end = b->seq_start[s + 1], given = b->full_len ? b->full_len[s] : 0;
        if (end == b->seq_start[s]) continue;
        const int32_t length = given ? given : b->pos[end - 1] + 1;
        const float bound = (float)(factor / sqrt((double)length * (double)m->C));
        for (int32_t t = b->seq_start[s]; t < end; t++) m->host.noise[t] = bound;
    }
}

/* Embeddings of padding and of placeholders receive no gradient. */
static bool learns(const dt_model *m, int32_t token)
{
    return token != m->mc->pad_token_id && !(m->vision && token == m->mc->vision->image_token);
}

/* Sort the tokens whose gradients are summed into the table. */
static void order_learned(dt_model *m, const dt_batch *b)
{
    for (int32_t i = 0; i < b->n_tok; i++)
        if (learns(m, b->token[b->order[i]])) m->host.order[m->n_learned++] = b->order[i];
}

/* If another model has used the shared activations since, cached results are invalid. */
void dt_model_take_activations(dt_model *m)
{
    if (dt_model_in_use(m)) return;
    *m->in_use = m;
    m->set_holds = -1;
    dt_model_cache_clear(m, -1);
}

/* The tokens of a batch that is not empty. nbytes: out, bytes to copy to the device. */
static dt_err stage_tokens(dt_model *m, const dt_batch *b, const int32_t *slot, size_t *nbytes)
{
    DT_TRY(dt_span_wait(m, &m->tokens_span));
    const size_t n = (size_t)b->n_tok;
    const int32_t n_tok = b->n_tok + m->n_fill, n_seq = b->n_seq + m->n_fill;
    *nbytes = dt_model_place_tokens(m, m->tokens_span.host, n_tok, n_seq, &m->host);
    dt_model_place_tokens(m, m->tokens_span.device, n_tok, n_seq, &m->device);
    memcpy(m->host.token, b->token, n * sizeof *b->token);
    memcpy(m->host.pos, b->pos, n * sizeof *b->pos);
    order_learned(m, b);
    memcpy(m->host.token_key, b->token_key, n * sizeof *b->token_key);
    if (dt_exists(m->wpe)) dt_sort_tokens(b->pos, m->opt.max_pos, NULL, b->n_tok, m->pos_count, m->host.pos_order);
    if (!slot) stage_noise(m, b);
    if (!slot) dt_attention_stage(m, b);
    if (slot) dt_slots_stage(m, b, slot);
    DT_TRY(dt_dynamic_rope_batch(m, b));
    if (m->grids) DT_TRY(dt_grids_stage_tower(m));
    if (slot) dt_slots_stage_fill(m, b);
    stage_low(m, LOW_TOKENS, m->host.token, m->host.order, m->n_learned);
    stage_low(m, LOW_POSITIONS, m->host.pos, m->host.pos_order, m->n_tok);
    return DT_OK;
}

dt_err dt_model_stage_batch(dt_model *m, const dt_batch *b, const int32_t *slot)
{
    size_t nbytes = 0;
    dt_model_take_activations(m);
    m->have_hidden = m->have_dx = m->have_results = false;
    DT_TRY(check_shape(m, b));
    DT_TRY(check_tokens(m, b));
    m->n_tok = b->n_tok;
    m->n_learned = 0;
    m->n_seq = b->n_seq;
    m->n_fill = slot ? dt_slots_count_fill(m, b) : 0;
    if (b->n_tok > 0) DT_TRY(stage_tokens(m, b, slot, &nbytes));
    if (m->vision) DT_TRY(dt_vision_stage(m, b, slot));
    return nbytes > 0 ? dt_span_to_device(m, &m->tokens_span, nbytes) : DT_OK;
}

/* Weights of the rows, multiplied by the loss scale; weight NULL: 0. */
static void put_weights(float *rows, const float *weight, int64_t n, float scale)
{
    for (int64_t i = 0; rows && i < n; i++) rows[i] = weight ? weight[i] * scale : 0;
}

dt_err dt_model_stage_rows(dt_model *m, const dt_batch *b, const dt_head_pass *pass, bool grads)
{
    static const dt_head_pass none = {0};
    struct rows *h = &m->host_rows;
    const dt_head_pass *w = grads ? pass : &none;
    const float scale = grads ? dt_model_loss_scale(m) : 1.0f;
    const int64_t n = b->n_target;
    m->have_results = false;
    DT_EXPECT(dt_model_has_hidden(m, b->n_tok));
    DT_EXPECT(m->n_labels == 0);
    DT_EXPECT(!pass->known || (pass->known->k > 0 && pass->known->k <= m->opt.max_known));
    DT_TRY(dt_span_wait(m, &m->rows_span));
    const size_t nbytes = dt_model_place_rows(m, m->rows_span.host, b->n_tok, h);
    dt_model_place_rows(m, m->rows_span.device, b->n_tok, &m->device_rows);
    DT_CHECK((h->entropy_weight || !w->entropy_weight) && (h->kl_weight || !w->kl_weight), DT_ERR_ARG,
             "internal: dt_model_head: the model was not opened for entropy or divergence weights");
    for (int64_t i = 0; i < n; i++) {
        h->target[i] = b->target[b->target_row[i]];
        DT_CHECK(h->target[i] < m->V, DT_ERR_DATA,
                 "target id %d is outside the model's vocabulary of %" PRId64 " tokens", h->target[i], m->V);
    }
    for (int64_t i = 0; h->token_key && i < n; i++) h->token_key[i] = b->token_key[b->target_row[i]];
    if (n > 0) memcpy(h->row, b->target_row, (size_t)n * sizeof *h->row);
    put_weights(h->weight, w->u, n, scale);
    put_weights(h->entropy_weight, w->entropy_weight, n, scale);
    put_weights(h->kl_weight, w->kl_weight, n, scale);
    if (pass->known && n > 0) {
        const size_t n_known = (size_t)n * (size_t)pass->known->k;
        memcpy(h->known_token, pass->known->token, n_known * sizeof *h->known_token);
        memcpy(h->known_logp, pass->known->logp, n_known * sizeof *h->known_logp);
    }
    m->n_rows = n;
    return n > 0 ? dt_span_to_device(m, &m->rows_span, nbytes) : DT_OK;
}
