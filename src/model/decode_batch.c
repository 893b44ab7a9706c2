/* decode_batch.c - the part of a batch that generation adds: sequences attend to slots of the KV cache, and unused
 * tokens in idle slots fill a step up to the size of its graph. */
#include "model_private.h"

static const struct cached nothing;

static void stage_shared(const dt_model *m, int32_t s, const struct cached *c)
{
    if (m->opt.cache_prompts == 0) return;
    m->host.shared_start[s] = c->n_shared > 0 ? (int32_t)dt_cache_row(&m->opt, c->prompt) : 0;
    m->host.shared_len[s] = c->n_shared;
}

void dt_slots_stage(dt_model *m, const dt_batch *b, const int32_t *slot)
{
    m->max_q_len = m->max_kv_len = 0;
    for (int32_t s = 0; s < b->n_seq; s++) {
        const int32_t first = b->seq_start[s], n = b->seq_start[s + 1] - first;
        const struct cached *c = &m->cached[slot[s]];
        const int32_t before = c->n_shared + c->n_own, start = (int32_t)dt_cache_row(&m->opt, slot[s]);
        m->host.q_start[s] = first;
        if (m->H > 0) m->host.slot[s] = slot[s];
        m->host.kv_start[s] = start;
        m->host.kv_len[s] = before + n;
        stage_shared(m, s, c);
        if (n > m->max_q_len) m->max_q_len = n;
        if (before + n > m->max_kv_len) m->max_kv_len = before + n;
        for (int32_t i = 0; i < n; i++) m->host.cache_row[first + i] = start + c->n_own + i;
    }
    m->host.q_start[b->n_seq] = b->n_tok;
}

/* The slot has a free row, and no sequence of the batch uses it. */
static bool is_idle(const dt_model *m, int32_t k)
{
    return m->cached[k].n_own < m->opt.cache_len && !m->cached[k].in_batch;
}

bool dt_is_step(const dt_batch *b)
{
    bool one = b->n_tok > 0 && b->n_tok == b->n_seq && !dt_images_of(b);
    for (int32_t s = 0; one && s < b->n_seq; s++) one = b->seq_start[s + 1] - b->seq_start[s] == 1;
    return one;
}

int32_t dt_slots_count_fill(const dt_model *m, const dt_batch *b)
{
    if (m->H > 0) return 0; /* a token would change the idle slot's states */
    const int32_t wanted = dt_is_step(b) ? dt_step_rows(m, b->n_seq) - b->n_seq : 0;
    int32_t n = 0;
    for (int32_t k = 0; k < m->opt.cache_seqs && n < wanted; k++) n += is_idle(m, k);
    return n == wanted ? n : 0;
}

void dt_slots_stage_fill(dt_model *m, const dt_batch *b)
{
    struct tokens *h = &m->host;
    for (int32_t k = 0, s = b->n_seq; s < b->n_seq + m->n_fill; k++) {
        if (!is_idle(m, k)) continue;
        h->token[s] = h->token[0], h->pos[s] = h->pos[0], h->token_key[s] = h->token_key[0], h->order[s] = s;
        h->kv_start[s] = h->cache_row[s] = (int32_t)dt_cache_row(&m->opt, k) + m->cached[k].n_own;
        h->kv_len[s] = 1;
        stage_shared(m, s, &nothing);
        s++;
        h->q_start[s] = s;
    }
}
