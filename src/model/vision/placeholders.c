/* placeholders.c - tokens of a batch that stand for images. Each receives a row of the projector's output for its image
 * and returns the gradient to it. Placeholder k of image i refers to row i n_tokens + k, wherever it occurs. */
#include "vision_private.h"
#include "dtrain/core/plural.h"
#include <inttypes.h>
#include <string.h>

static int64_t n_shown(const struct vision *v) { return v->n_images * v->config->n_tokens; }

void dt_placeholders_place(const dt_model *m, struct arena *host)
{
    struct placeholders *p = &m->vision->placeholders;
    p->run = dt_take(host, m->opt.max_seq, 1, sizeof *p->run);
    p->row_end = dt_take(host, m->opt.max_images * m->vision->config->n_tokens + 1, 1, sizeof *p->row_end);
}

int32_t dt_placeholders_first(const dt_model *m, int64_t row)
{
    return m->host.shown_order[row > 0 ? m->vision->placeholders.row_end[row - 1] : 0];
}

bool dt_placeholders_is(const dt_model *m, const dt_batch *b, int32_t s, int32_t t)
{
    const struct vision *v = m->vision;
    const int32_t end = b->prompt_len && b->prompt_len[s] > 0 ? b->prompt_len[s] : INT32_MAX;
    return b->token[t] == v->config->image_token && b->pos[t] < end;
}

static void add_run(struct placeholders *p, int64_t first, int64_t row, int64_t n)
{
    struct run *last = p->n_runs > 0 ? &p->run[p->n_runs - 1] : NULL;
    if (last && last->row + last->n == row)
        last->n += n;
    else
        p->run[p->n_runs++] = (struct run){first, row, n};
}

/* Append the placeholders of a sequence and their rows: all those of its own images, and no others. */
static dt_err find_placeholders(dt_model *m, const dt_batch *b, int32_t s)
{
    const struct vision *v = m->vision;
    struct placeholders *p = &m->vision->placeholders;
    const dt_batch_images *images = v->n_images > 0 ? dt_images_of(b) : NULL;
    const int64_t per_image = v->config->n_tokens, row = images ? images->first[s] * per_image : 0;
    const int32_t n_images = images ? images->count[s] : 0;
    int32_t n = 0;
    for (int32_t t = b->seq_start[s]; t < b->seq_start[s + 1]; t++) n += dt_placeholders_is(m, b, s, t);
    DT_CHECK(n == n_images * per_image, DT_ERR_DATA,
             "a sequence has %" PRId32 " placeholder%s (token %" PRId32 ") for %" PRId32 " image%s: expected %" PRId64
             " for each image",
             n, dt_plural(n), v->config->image_token, n_images, dt_plural(n_images), per_image);
    DT_CHECK(row >= 0 && row + n <= n_shown(v), DT_ERR_DATA,
             "a sequence has %" PRId32 " placeholders (token %" PRId32 ") for %" PRId32 " images, from image %" PRId64
             " of %" PRId32 ": expected only images of the batch",
             n, v->config->image_token, n_images, row / per_image, v->n_images);
    if (n == 0) return DT_OK;
    add_run(p, p->n, row, n);
    n = 0;
    for (int32_t t = b->seq_start[s]; t < b->seq_start[s + 1]; t++) {
        if (!dt_placeholders_is(m, b, s, t)) continue;
        m->host.shown_at[p->n++] = t;
        m->host.shown[t] = (int32_t)row + n++;
    }
    return DT_OK;
}

static dt_err order_shown(dt_model *m)
{
    const struct vision *v = m->vision;
    const struct placeholders *p = &v->placeholders;
    if (n_shown(v) == 0) return DT_OK;
    dt_sort_tokens(m->host.shown, n_shown(v), m->host.shown_at, p->n, p->row_end, m->host.shown_order);
    for (int32_t i = 0; i < v->n_images; i++) {
        const int64_t row = i * v->config->n_tokens;
        DT_CHECK(p->row_end[row] > (i > 0 ? p->row_end[row - 1] : 0), DT_ERR_DATA,
                 "image %d of a batch of %d has no placeholders (token %d)", i, v->n_images, v->config->image_token);
    }
    return DT_OK;
}

/* A chunk of a prompt contains complete images, so no later chunk continues one. */
static void stage_ahead(dt_model *m, const dt_batch *b)
{
    int32_t *ahead = m->host.ahead;
    memset(ahead, 0, (size_t)(b->n_tok + m->n_fill) * sizeof *ahead);
    for (int32_t s = 0; s < b->n_seq; s++)
        for (int32_t t = b->seq_start[s + 1] - 2; t >= b->seq_start[s]; t--) {
            if (!dt_placeholders_is(m, b, s, t) || !dt_placeholders_is(m, b, s, t + 1)) continue;
            ahead[t] = ahead[t + 1] + 1;
            if (ahead[t] > m->max_ahead) m->max_ahead = ahead[t];
        }
}

dt_err dt_placeholders_find(dt_model *m, const dt_batch *b)
{
    struct placeholders *p = &m->vision->placeholders;
    p->n = p->n_runs = 0;
    m->max_ahead = 0;
    for (int32_t s = 0; b->n_tok > 0 && s < b->n_seq; s++) DT_TRY(find_placeholders(m, b, s));
    if (p->n > 0 && m->vision->config->both_ways) stage_ahead(m, b);
    return order_shown(m);
}

dt_err dt_placeholders_scatter(const dt_model *m, void *x)
{
    const struct placeholders *p = &m->vision->placeholders;
    for (int32_t i = 0; i < p->n_runs; i++) {
        const struct run *k = &p->run[i];
        DT_TRY(m->ops->scatter_rows(m->dev, dt_at(m->vision->projector->out, k->row * m->C, m->elem),
                                    m->device.shown_at + k->first, x, k->n, m->C, m->opt.dtype, m->stream));
    }
    return DT_OK;
}

dt_err dt_placeholders_add(const dt_model *m, const struct projector *j, void *x)
{
    const struct placeholders *p = &m->vision->placeholders;
    void *rows = m->vision->shown;
    for (int32_t i = 0; i < p->n_runs; i++) {
        const struct run *k = &p->run[i];
        const int32_t *at = m->device.shown_at + k->first;
        DT_TRY(m->ops->gather_rows(m->dev, x, at, rows, k->n, m->C, m->opt.dtype, m->stream));
        DT_TRY(m->ops->add(m->dev, rows, dt_at(j->out, k->row * m->C, m->elem), rows, m->opt.dtype, k->n * m->C,
                           m->stream));
        DT_TRY(m->ops->scatter_rows(m->dev, rows, at, x, k->n, m->C, m->opt.dtype, m->stream));
    }
    return DT_OK;
}

dt_err dt_placeholders_collect(const dt_model *m, const struct projector *j)
{
    const struct vision *v = m->vision;
    DT_TRY(m->ops->zero(m->dev, j->dout, (size_t)(n_shown(v) * m->C) * m->elem, m->stream));
    return m->ops->embedding_backward(m->dev, m->s.dx, m->device.shown, m->device.shown_order, j->dout,
                                      v->placeholders.n, m->C, m->opt.dtype, m->opt.dtype, m->stream);
}

dt_err dt_placeholders_gather(const dt_model *m)
{
    const struct vision *v = m->vision;
    const struct projector *j = v->projector;
    if (n_shown(v) == 0) return DT_OK;
    if (dt_vision_trains(m)) DT_TRY(dt_placeholders_collect(m, j));
    if (m->low_table[LOW_TOKENS].low.r == 0) return DT_OK;
    /* out is no longer needed */
    DT_TRY(m->ops->zero(m->dev, j->out, (size_t)(n_shown(v) * m->C) * m->elem, m->stream));
    return dt_placeholders_scatter(m, m->s.dx);
}
