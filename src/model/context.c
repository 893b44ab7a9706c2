/* context.c - context parallelism: the ranks of the axis cp divide the tokens of a batch. Each rank has the same whole
 * batch and computes a range of its tokens. Only attention needs the tokens of other ranks: it gathers the keys and
 * values of all ranks, and backward adds their gradients on the rank that has the token.
 *
 * Ranges are contiguous and of equal length, apart from the last ones. The rows of gathered keys are therefore those of
 * the whole batch, and a sequence whose first tokens are on other ranks is one with more keys than queries. */
#include "divide.h"
#include "mixer.h"
#include "dtrain/comm/comm.h"
#include <string.h>

static const dt_axis *axis_of(const dt_model *m)
{
    const dt_axis *cp = m->opt.mesh ? &m->opt.mesh->cp : NULL;
    return cp && cp->size > 1 ? cp : NULL;
}

const char *dt_model_undivided_tokens(const dt_model_config *mc)
{
    if (mc->vision) return "the model has a vision tower; use model.vision = none for its text model";
    if (dt_model_n_linear(mc) > 0) return "the model has linear attention";
    return mc->kv_lora_rank > 0 ? "the model has latent attention" : NULL;
}

/* Rows of the keys of all ranks. */
static int64_t gathered_rows(const dt_model *m) { return axis_of(m) ? m->opt.max_tok * axis_of(m)->size : 0; }

void dt_context_place(dt_model *m, struct arena arenas[N_ARENAS])
{
    struct arena *host = &arenas[IN_STAGING];
    const int64_t all = gathered_rows(m), T = all > 0 ? m->opt.max_tok : 0, S = all > 0 ? m->opt.max_seq : 0;
    struct part *p = &m->part;
    m->s.all_kv = dt_take(&arenas[IN_ACTIVATIONS], all, m->K + m->Y, m->elem);
    p->order = dt_take(host, T, 1, sizeof *p->order);
    p->target_row = dt_take(host, T, 1, sizeof *p->target_row);
    p->seq_start = dt_take(host, S + 1, 1, sizeof *p->seq_start);
    p->full_len = dt_take(host, S, 1, sizeof *p->full_len);
    p->joined = dt_take(host, all > 0 ? all + axis_of(m)->size : 1, dt_max_i64(m->n_labels, 1), sizeof(float));
}

void dt_context_place_backward(dt_model *m, struct arena *a)
{
    m->s.all_dkv = dt_take(a, gathered_rows(m), m->K + m->Y, m->elem);
}

static void cut_sequences(struct part *p, const dt_batch *b, int32_t from, int32_t to)
{
    int32_t n = 0;
    p->n_before = 0;
    for (int32_t s = 0; s < b->n_seq; s++) {
        const int32_t first = b->seq_start[s], end = b->seq_start[s + 1];
        if (first >= to || end <= from) continue;
        if (first < from) p->n_before = from - first;
        p->full_len[n] = b->full_len && b->full_len[s] ? b->full_len[s] : b->pos[end - 1] + 1;
        p->seq_start[n++] = first < from ? 0 : first - from;
    }
    p->seq_start[n] = to - from;
    p->batch.n_seq = n;
}

const dt_batch *dt_context_cut(dt_model *m, const dt_batch *b)
{
    struct part *p = &m->part;
    const dt_axis *cp = axis_of(m);
    if (!cp) return b;
    p->n_each = (int32_t)dt_ceil_div(b->n_tok, cp->size);
    const int32_t from = (int32_t)dt_min_i64((int64_t)cp->rank * p->n_each, b->n_tok),
                  to = (int32_t)dt_min_i64((int64_t)from + p->n_each, b->n_tok);
    p->first = from;
    p->batch = (dt_batch){.n_tok = to - from,
                          .token = b->token + from,
                          .target = b->target + from,
                          .pos = b->pos + from,
                          .token_key = b->token_key + from,
                          .seq_start = p->seq_start,
                          .full_len = p->full_len,
                          .order = p->order,
                          .target_row = p->target_row};
    cut_sequences(p, b, from, to);
    for (int32_t i = 0, n = 0; i < b->n_tok; i++)
        if (b->order[i] >= from && b->order[i] < to) p->order[n++] = b->order[i] - from;
    p->first_target = 0, p->n_targets = b->n_target;
    for (int64_t i = 0; i < b->n_target; i++) {
        if (b->target_row[i] < from) p->first_target++;
        if (b->target_row[i] >= from && b->target_row[i] < to)
            p->target_row[p->batch.n_target++] = b->target_row[i] - from;
    }
    return &p->batch;
}

const dt_batch *dt_context_part(const dt_model *m, const dt_batch *b) { return axis_of(m) ? &m->part.batch : b; }

/* Each rank sets its own bytes and leaves the others 0, so a sum of words joins them. */
dt_err dt_context_join(const dt_model *m, void *x, size_t row_nbytes, int64_t first, int64_t n, int64_t n_all)
{
    const size_t nbytes = ((size_t)n_all * row_nbytes + 7) / 8 * 8;
    char *joined = m->part.joined;
    if (!axis_of(m) || !x) return DT_OK;
    memset(joined, 0, nbytes);
    if (n > 0)
        memcpy(joined + (size_t)first * row_nbytes, (char *)x + (size_t)first * row_nbytes, (size_t)n * row_nbytes);
    DT_TRY(dt_comm_join_host(axis_of(m), joined, nbytes));
    if (n_all > 0) memcpy(x, joined, (size_t)n_all * row_nbytes);
    return DT_OK;
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

static size_t own_nbytes(const dt_model *m) { return (size_t)(m->part.n_each * (m->K + m->Y)) * m->elem; }
static void *own_rows(const dt_model *m, void *all) { return (char *)all + (size_t)axis_of(m)->rank * own_nbytes(m); }

/* Keys or values of the rank's tokens, from rows of attention's inputs to gathered rows. */
static dt_blocks to_gathered(const dt_model *m, int64_t width)
{
    return (dt_blocks){m->n_tok, 1, width, m->W, width, m->K + m->Y, width, m->opt.dtype};
}

static dt_err gather(const dt_model *m)
{
    void *own = own_rows(m, m->s.all_kv);
    return dt_comm_all_gather(axis_of(m), own, m->s.all_kv, own_nbytes(m), m->stream);
}

dt_err dt_context_gather(const dt_model *m, const void *k, const void *v, dt_attention *at, struct kv *all)
{
    *all = (struct kv){k, v};
    if (!axis_of(m)) return DT_OK;
    const dt_blocks of_k = to_gathered(m, m->K), of_v = to_gathered(m, m->Y);
    void *own = own_rows(m, m->s.all_kv);
    DT_TRY(m->ops->copy_blocks(m->dev, &of_k, k, own, m->stream));
    DT_TRY(m->ops->copy_blocks(m->dev, &of_v, v, dt_at(own, m->K, m->elem), m->stream));
    at->kv_ld = m->K + m->Y;
    *all = (struct kv){m->s.all_kv, dt_at(m->s.all_kv, m->K, m->elem)};
    return gather(m);
}

/* No query of this rank may see a key of another, and the rows after the last token have none. */
static dt_err clear(const dt_model *m)
{
    return m->ops->zero(m->dev, m->s.all_dkv, (size_t)axis_of(m)->size * own_nbytes(m), m->stream);
}

dt_err dt_context_begin_backward(const dt_model *m, void *dk, void *dv, struct kv_gradients *all)
{
    *all = (struct kv_gradients){dk, dv};
    if (!axis_of(m)) return DT_OK;
    *all = (struct kv_gradients){m->s.all_dkv, dt_at(m->s.all_dkv, m->K, m->elem)};
    return clear(m);
}

static dt_err reduce(const dt_model *m)
{
    return dt_comm_reduce_scatter(axis_of(m), m->s.all_dkv, m->opt.dtype, own_rows(m, m->s.all_dkv), m->opt.dtype,
                                  m->part.n_each * (m->K + m->Y), false, m->opt.reproducible, m->stream);
}

dt_err dt_context_end_backward(const dt_model *m, void *dkv)
{
    if (!axis_of(m)) return DT_OK;
    const int64_t ld = m->K + m->Y;
    const dt_blocks both = {m->n_tok, 1, ld, ld, ld, m->W, ld, m->opt.dtype};
    DT_TRY(reduce(m));
    return m->ops->copy_blocks(m->dev, &both, own_rows(m, m->s.all_dkv), dkv, m->stream);
}

/* ---- a rank without tokens of a batch that has some -------------------------------------------------------------- */

static bool joins(const dt_model *m) { return axis_of(m) && m->part.n_each > 0; }

dt_err dt_context_skip(const dt_model *m) { return joins(m) ? gather(m) : DT_OK; }

dt_err dt_context_skip_backward(const dt_model *m, const struct block *b)
{
    if (!joins(m)) return DT_OK;
    DT_TRY(gather(m));
    DT_TRY(clear(m));
    return reduce(m);
}
