/* stretch.c - the dynamic rule of rotary embedding (algorithms.md 8.5): beyond max_position_embeddings, P, the
 * frequencies of all positions depend on the length of the sequence that they stand in.
 *
 * A sequence here is what attends to itself: a row, a document of a packed row. Each is turned by its own length,
 * whatever else is in the micro-batch and however long the model's sequences may become; so is it in transformers when
 * the sequence is its whole batch. With a cache the tokens of a prompt turn by the prompt's length, in however many
 * pieces it enters, and each new token by the length of the text that ends with it; what is in the cache stays as it
 * was turned. transformers generates in the same way. Training on the finished text would turn all of it by its whole
 * length: beyond P the two cannot agree on new tokens, as the states of earlier ones, which the cache spares computing
 * again, depend on a length that was not known then. Up to P, and for the first token after a prompt, they do.
 *
 * The table's first P rows never change. Behind them stand rows for the sequences of this micro-batch that are longer,
 * at most one a token; sequences of one length share theirs, and what the last micro-batch left is used again. */
#include "model_private.h"
#include <stdlib.h>

void dt_stretch_size(dt_model *m)
{
    const int64_t P = m->mc->max_position_embeddings, longest = m->opt.max_pos;
    const bool grows = m->mc->rope_type == DT_ROPE_DYNAMIC && longest > P;
    m->stretch.base_rows = m->mc->rope_type == DT_ROPE_NONE ? 0 : grows ? P : longest;
    m->stretch.max_rows = grows ? m->opt.max_tok : 0;
}

dt_err dt_stretch_open(dt_model *m)
{
    if (m->stretch.max_rows == 0) return DT_OK;
    m->stretch.have = calloc((size_t)m->opt.max_seq, sizeof *m->stretch.have);
    DT_CHECK(m->stretch.have, DT_ERR_MEMORY, "out of memory for the lengths of %d sequences", m->opt.max_seq);
    return DT_OK;
}

void dt_stretch_close(dt_model *m)
{
    free(m->stretch.have);
    m->stretch.have = NULL;
}

/* What the tokens of sequence s need; n 0: rows that never change. */
static struct stretched_rows needed(const dt_model *m, const dt_batch *b, int32_t s)
{
    const int32_t first = b->seq_start[s], n = b->seq_start[s + 1] - first;
    if (n == 0) return (struct stretched_rows){0};
    const int32_t here = b->pos[first] + n, given = b->full_len ? b->full_len[s] : 0;
    const struct stretched_rows need = {.length = given > here ? given : here, .first = b->pos[first], .n = n};
    return need.length > m->stretch.base_rows ? need : (struct stretched_rows){0};
}

static const struct stretched_rows *find(const struct stretch *k, const struct stretched_rows *need)
{
    for (int32_t i = 0; i < k->n_have; i++) {
        const struct stretched_rows *h = &k->have[i];
        if (h->length == need->length && h->first <= need->first && need->first + need->n <= h->first + h->n) return h;
    }
    return NULL;
}

/* All rows of the micro-batch anew. Each sequence adds at most as many rows as it has tokens, and one entry. */
static dt_err fill(dt_model *m, const dt_batch *b)
{
    struct stretch *k = &m->stretch;
    const int64_t width = m->mc->head_dim;
    k->n_have = k->n_rows = 0;
    for (int32_t s = 0; s < b->n_seq; s++) {
        struct stretched_rows need = needed(m, b, s);
        if (need.n == 0 || find(k, &need)) continue;
        need.row = (int32_t)k->base_rows + k->n_rows;
        dt_model_rope_rows(m->mc, need.length, need.first, need.n, k->host + k->n_rows * width);
        k->n_rows += need.n;
        k->have[k->n_have++] = need;
    }
    return m->ops->copy(m->dev, m->rope + k->base_rows * width, k->host, (size_t)(k->n_rows * width) * sizeof *k->host,
                        m->stream);
}

dt_err dt_stretch_batch(dt_model *m, const dt_batch *b)
{
    bool missing = false;
    if (m->stretch.max_rows == 0) return DT_OK;
    for (int32_t s = 0; s < b->n_seq && !missing; s++) {
        const struct stretched_rows need = needed(m, b, s);
        missing = need.n > 0 && !find(&m->stretch, &need);
    }
    if (missing) DT_TRY(fill(m, b));
    for (int32_t s = 0; s < b->n_seq; s++) {
        const struct stretched_rows need = needed(m, b, s), *have = need.n > 0 ? find(&m->stretch, &need) : NULL;
        for (int32_t i = 0; have && i < need.n; i++)
            m->host.pos[b->seq_start[s] + i] = have->row + need.first - have->first + i;
    }
    return DT_OK;
}
