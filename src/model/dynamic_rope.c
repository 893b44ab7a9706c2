/* dynamic_rope.c - the rules of rotary embedding that depend on the length of a sequence (algorithms.md 8.5). With the
 * dynamic rule, beyond max_position_embeddings, P, the frequencies of all positions depend on the length. With
 * longrope they have one value up to original_max_position_embeddings, here also P, and another beyond it.
 *
 * A sequence is a range that attends to itself: a row, or a document of a packed row. Each is rotated by its own
 * length, independently of the rest of the micro-batch and of the model's maximum length. transformers does the same
 * when the sequence is the whole batch.
 *
 * With a KV cache, tokens of a prompt rotate by the prompt's length, even if it is processed in several chunks. Each
 * new token rotates by the current length of the text. Keys in the cache keep their rotation. transformers generates in
 * the same way.
 *
 * Training on the finished text rotates all tokens by its total length. Beyond P, training and generation therefore
 * disagree on new tokens: cached states depend on lengths before the final one was known. They agree up to P, and for
 * the first token after a prompt.
 *
 * The table's first P rows are constant. With longrope a second table follows, for all positions of longer sequences.
 * With the dynamic rule, rows for longer sequences of this micro-batch follow, at most one per token. Sequences of
 * equal length share rows, and rows of the last micro-batch are reused. */
#include "model_private.h"
#include <stdlib.h>

void dt_dynamic_rope_size(dt_model *m)
{
    const int64_t P = dt_model_rope_constant_length(m->mc), longest = m->opt.max_pos;
    if (m->mc->rope_axes > 0) { /* rows of images */
        m->dynamic.base_rows = m->opt.tower ? 0 : longest;
        m->dynamic.max_rows = m->opt.max_images > 0 ? m->opt.max_tok : 0; /* sequences may share an image */
        return;
    }
    const bool grows = longest > P, two = m->mc->rope_type == DT_ROPE_LONGROPE;
    m->dynamic.base_rows = m->mc->rope_type == DT_ROPE_NONE ? 0 : grows ? P : longest;
    m->dynamic.long_rows = grows && two ? longest : 0;
    m->dynamic.max_rows = grows && !two ? m->opt.max_tok : 0;
}

dt_err dt_dynamic_rope_open(dt_model *m)
{
    if (m->dynamic.max_rows == 0 || m->mc->rope_axes > 0) return DT_OK;
    m->dynamic.have = calloc((size_t)m->opt.max_seq, sizeof *m->dynamic.have);
    DT_CHECK(m->dynamic.have, DT_ERR_MEMORY, "out of memory for the lengths of %d sequences", m->opt.max_seq);
    return DT_OK;
}

void dt_dynamic_rope_close(dt_model *m)
{
    free(m->dynamic.have);
    m->dynamic.have = NULL;
}

/* The rows that sequence s needs; n 0: only constant rows. */
static struct dynamic_rows needed(const dt_model *m, const dt_batch *b, int32_t s)
{
    const int32_t first = b->seq_start[s], n = b->seq_start[s + 1] - first;
    if (n == 0) return (struct dynamic_rows){0};
    const int32_t here = b->pos[first] + n, given = b->full_len ? b->full_len[s] : 0;
    const struct dynamic_rows need = {.length = given > here ? given : here, .first = b->pos[first], .n = n};
    return need.length > m->dynamic.base_rows ? need : (struct dynamic_rows){0};
}

static const struct dynamic_rows *find(const struct dynamic_rope *k, const struct dynamic_rows *need)
{
    for (int32_t i = 0; i < k->n_have; i++) {
        const struct dynamic_rows *h = &k->have[i];
        if (h->length == need->length && h->first <= need->first && need->first + need->n <= h->first + h->n) return h;
    }
    return NULL;
}

/* Recompute all rows for the micro-batch. Each sequence adds at most one row per token, and one entry. */
static dt_err fill(dt_model *m, const dt_batch *b)
{
    struct dynamic_rope *k = &m->dynamic;
    const int64_t width = dt_model_rotary_dim(m->mc);
    k->n_have = k->n_rows = 0;
    for (int32_t s = 0; s < b->n_seq; s++) {
        struct dynamic_rows need = needed(m, b, s);
        if (need.n == 0 || find(k, &need)) continue;
        need.row = (int32_t)k->base_rows + k->n_rows;
        dt_model_rope_rows(m->mc, false, need.length, need.first, need.n, k->host + k->n_rows * width);
        k->n_rows += need.n;
        k->have[k->n_have++] = need;
    }
    return m->ops->copy(m->dev, m->rope + k->base_rows * width, k->host, (size_t)(k->n_rows * width) * sizeof *k->host,
                        m->stream);
}

/* The second table, for sequences that are longer than the first. */
static void use_long_rows(dt_model *m, const dt_batch *b)
{
    for (int32_t s = 0; s < b->n_seq; s++)
        for (int32_t i = 0, n = needed(m, b, s).n; i < n; i++)
            m->host.pos[b->seq_start[s] + i] += (int32_t)m->dynamic.base_rows;
}

dt_err dt_dynamic_rope_batch(dt_model *m, const dt_batch *b)
{
    bool missing = false;
    if (m->dynamic.long_rows > 0) use_long_rows(m, b);
    if (m->dynamic.max_rows == 0 || m->mc->rope_axes > 0) return DT_OK;
    for (int32_t s = 0; s < b->n_seq && !missing; s++) {
        const struct dynamic_rows need = needed(m, b, s);
        missing = need.n > 0 && !find(&m->dynamic, &need);
    }
    if (missing) DT_TRY(fill(m, b));
    for (int32_t s = 0; s < b->n_seq; s++) {
        const struct dynamic_rows need = needed(m, b, s), *have = need.n > 0 ? find(&m->dynamic, &need) : NULL;
        for (int32_t i = 0; have && i < need.n; i++)
            m->host.pos[b->seq_start[s] + i] = have->row + need.first - have->first + i;
    }
    return DT_OK;
}
