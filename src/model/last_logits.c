/* last_logits.c - the last token of each sequence: its logits, tokens sampled from them, and lists of the most likely.
 *
 * Rows are those of the sequences that have tokens, in order. If steps run as graphs, unused rows follow
 * (dt_step_rows). Logits are computed in chunks as for the loss (head.c). A generation step consumes each chunk before
 * the next one. */
#include "head.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* The rows of a step. Unused ones repeat the first. */
struct last_rows {
    int32_t n, n_step;  /* rows, and rows with the unused ones */
    const int32_t *seq; /* [n_step]: their sequences; valid until the next batch is staged */
};

static dt_err stage_last_rows(dt_model *m, const dt_batch *b, struct last_rows *r)
{
    DT_EXPECT(m->have_hidden && dt_model_in_use(m) && b->n_tok == m->n_tok && b->n_seq == m->n_seq);
    DT_EXPECT(m->n_labels == 0);
    DT_TRY(dt_span_wait(m, &m->rows_span));
    m->have_results = false;
    dt_model_place_rows(m, m->rows_span.host, m->opt.max_tok, &m->host_rows);
    dt_model_place_rows(m, m->rows_span.device, m->opt.max_tok, &m->device_rows);
    int32_t *row = m->host_rows.row, *seq = m->host_rows.target; /* these rows have no targets */
    *r = (struct last_rows){.seq = seq};
    for (int32_t s = 0; b->n_tok > 0 && s < b->n_seq; s++)
        if (b->seq_start[s + 1] > b->seq_start[s]) row[r->n] = b->seq_start[s + 1] - 1, seq[r->n++] = s;
    r->n_step = dt_step_rows(m, r->n);
    for (int32_t i = r->n; i < r->n_step; i++) row[i] = row[0], seq[i] = seq[0];
    return r->n > 0 ? dt_span_to_device(m, &m->rows_span, (size_t)r->n_step * sizeof *row) : DT_OK;
}

dt_err dt_model_last_logits(dt_model *m, const dt_batch *b, float *logits)
{
    struct head_weights w;
    struct last_rows r;
    DT_TRY(stage_last_rows(m, b, &r));
    DT_TRY(dt_head_acquire(m, &w));
    memset(logits, 0, (size_t)b->n_seq * (size_t)m->V * sizeof *logits);
    for (int64_t i = 0; i < r.n; i++) {
        const int64_t in_chunk = i % m->h.n_rows;
        if (in_chunk == 0)
            DT_TRY(dt_head_logits(m, &w, m->device_rows.row + i, NULL, dt_min_i64(r.n - i, m->h.n_rows)));
        DT_TRY(m->ops->copy(m->dev, logits + r.seq[i] * m->V, m->h.logits + in_chunk * m->h.logits_ld,
                            (size_t)m->V * sizeof *logits, m->stream));
    }
    DT_TRY(dt_head_release(m));
    return dt_model_sync(m);
}

/* Copy the rows' masks by way of pinned memory. flip: use the complement within the vocabulary. within: NULL, or a mask
 * that is ANDed with each row. */
static dt_err stage_mask(dt_model *m, const struct last_rows *r, const uint32_t *mask, bool flip,
                         const uint32_t *within, uint32_t *host, uint32_t *device)
{
    const int64_t ld = m->host_draws.seen_ld;
    for (int32_t i = 0; i < r->n_step; i++) {
        const int64_t from = r->seq[i] * ld;
        for (int64_t w = 0; w < ld; w++)
            host[i * ld + w] = (flip ? ~mask[from + w] : mask[from + w]) & (within ? within[from + w] : UINT32_MAX);
    }
    return m->ops->copy(m->dev, device, host, (size_t)(r->n_step * ld) * sizeof *host, m->stream);
}

dt_err dt_model_set_lists(dt_model *m, const int32_t *token, int32_t n)
{
    DT_EXPECT(n > 0 && n <= m->opt.max_listed);
    for (int32_t i = 0; i < n; i++) DT_EXPECT(token[i] >= 0 && token[i] < m->V);
    m->n_listed = n;
    DT_TRY(m->ops->copy(m->dev, m->listed, token, (size_t)n * sizeof *token, m->stream));
    return dt_model_sync(m);
}

/* Copy the location of the rows' lists. */
static dt_err stage_lists(dt_model *m, const struct last_rows *r, const int32_t *start, const int32_t *len)
{
    const struct draws *host = &m->host_draws, *device = &m->device_draws;
    const size_t nbytes = (size_t)r->n_step * sizeof(int32_t);
    for (int32_t i = 0; i < r->n_step; i++) {
        const int32_t s = r->seq[i];
        DT_EXPECT(start[s] >= 0 && len[s] >= 0 && start[s] <= m->n_listed - len[s]);
        host->list_start[i] = start[s], host->list_len[i] = len[s];
    }
    DT_TRY(m->ops->copy(m->dev, device->list_start, host->list_start, nbytes, m->stream));
    return m->ops->copy(m->dev, device->list_len, host->list_len, nbytes, m->stream);
}

/* Restrict a chunk of rows, starting at row `first`, to their lists. */
static void add_lists(const dt_model *m, dt_token_rows *rows, int64_t first)
{
    rows->list = m->listed;
    rows->list_start = m->device_draws.list_start + first;
    rows->list_len = m->device_draws.list_len + first;
}

static dt_err stage_draws(dt_model *m, const struct last_rows *r, const dt_draw *d)
{
    const struct draws *host = &m->host_draws, *device = &m->device_draws;
    for (int32_t i = 0; d->uniform && i < r->n_step; i++) host->uniform[i] = d->uniform[r->seq[i]];
    if (d->uniform)
        DT_TRY(m->ops->copy(m->dev, device->uniform, host->uniform, (size_t)r->n_step * sizeof(double), m->stream));
    if (d->list_start) DT_TRY(stage_lists(m, r, d->list_start, d->list_len));
    if (d->allowed) DT_TRY(stage_mask(m, r, d->allowed, false, NULL, host->allowed, device->allowed));
    return d->seen ? stage_mask(m, r, d->seen, false, NULL, host->seen, device->seen) : DT_OK;
}

static double inverse(double temperature) { return temperature > 0 ? 1 / temperature : 1; }

/* Sample tokens for the rows starting at `first`, whose logits are computed. */
static dt_err draw_chunk(dt_model *m, const void *how, int64_t first, int64_t n)
{
    const struct draws *at = &m->device_draws;
    const dt_draw *d = how;
    dt_token_rows rows = {.n_rows = n,
                          .n_vocab = m->V,
                          .logits_ld = m->h.logits_ld,
                          .seen = d->seen ? at->seen + first * at->seen_ld : NULL,
                          .seen_ld = at->seen_ld,
                          .allowed = d->allowed ? at->allowed + first * at->seen_ld : NULL,
                          .allowed_ld = at->seen_ld};
    if (d->list_start) add_lists(m, &rows, first);
    DT_TRY(m->ops->draw_tokens(m->dev, &rows, &d->how, m->h.logits, d->uniform ? at->uniform + first : NULL,
                               at->token + first, m->draw_scratch, m->stream));
    if (!d->logp) return DT_OK;
    return m->ops->log_softmax_at(m->dev, &rows, m->h.logits, inverse(d->logp_temperature), 1, at->token + first,
                                  at->logp + first, m->stream);
}

/* Logits of the batch's last rows, and the function that consumes each chunk of them, starting at row `first`. */
struct use_of_logits {
    int64_t n_rows;
    dt_err (*use)(dt_model *m, const void *how, int64_t first, int64_t n);
    const void *how;
};

static dt_err use_last_logits(dt_model *m, const void *arg)
{
    const struct use_of_logits *u = arg;
    struct head_weights w;
    DT_TRY(dt_head_acquire(m, &w));
    for (int64_t at = 0; at < u->n_rows; at += m->h.n_rows) {
        const int64_t n = dt_min_i64(u->n_rows - at, m->h.n_rows);
        DT_TRY(dt_head_logits(m, &w, m->device_rows.row + at, NULL, n));
        DT_TRY(u->use(m, u->how, at, n));
    }
    return dt_head_release(m);
}

/* Queue the step: the key describes it apart from its rows. */
static dt_err queue(dt_model *m, const struct last_rows *r, struct step_key key, const struct use_of_logits *use)
{
    key.n = r->n_step;
    return r->n > 0 ? dt_step_run(m, &key, use_last_logits, use) : use_last_logits(m, use);
}

static dt_err bring(const dt_model *m, void *host, const void *device, int64_t n, size_t elem)
{
    return n > 0 ? m->ops->copy(m->dev, host, device, (size_t)n * elem, m->stream) : DT_OK;
}

dt_err dt_model_draw(dt_model *m, const dt_batch *b, const dt_draw *d)
{
    const struct draws *host = &m->host_draws, *device = &m->device_draws;
    struct last_rows r;
    DT_EXPECT(m->cache && b->n_seq <= m->opt.cache_seqs);
    DT_TRY(stage_last_rows(m, b, &r));
    if (r.n > 0) DT_TRY(stage_draws(m, &r, d));
    const struct use_of_logits use = {r.n_step, draw_chunk, d};
    const struct step_key key = {.what = STEP_DRAW,
                                 .masked = d->seen,
                                 .limited = d->allowed,
                                 .listed = d->list_start,
                                 .uniform = d->uniform,
                                 .logp = d->logp,
                                 .logp_temperature = d->logp_temperature,
                                 .how = d->how};
    DT_TRY(queue(m, &r, key, &use));
    DT_TRY(bring(m, host->token, device->token, r.n, sizeof(int32_t)));
    if (d->logp) DT_TRY(bring(m, host->logp, device->logp, r.n, sizeof(double)));
    DT_TRY(dt_model_sync(m));
    for (int32_t s = 0; s < b->n_seq; s++) {
        d->token[s] = -1;
        if (d->logp) d->logp[s] = NAN;
    }
    for (int32_t i = 0; i < r.n; i++) {
        d->token[r.seq[i]] = host->token[i];
        if (d->logp) d->logp[r.seq[i]] = host->logp[i];
    }
    return DT_OK;
}

/* ---- lists of tokens --------------------------------------------------------------------------------------------- */

static int n_lists(const dt_top *t) { return t->seen ? 2 : 1; }
/* Index at which the list of a row of the batch begins. */
static int64_t list_at(const dt_model *m, const dt_top *t, int list, int64_t row)
{
    return (list * (int64_t)m->opt.cache_seqs + row) * t->k;
}

static dt_err top_chunk(dt_model *m, const void *how, int64_t first, int64_t n)
{
    const struct draws *at = &m->device_draws;
    const dt_top *t = how;
    dt_token_rows rows = {.n_rows = n, .n_vocab = m->V, .logits_ld = m->h.logits_ld, .allowed_ld = at->seen_ld};
    if (t->list_start) add_lists(m, &rows, first);
    if (t->allowed) rows.allowed = at->allowed + first * at->seen_ld;
    for (int list = 0; list < n_lists(t); list++) {
        const int64_t from = list_at(m, t, list, first);
        if (t->seen) rows.allowed = (list == 0 ? at->unseen : at->seen) + first * at->seen_ld;
        DT_TRY(m->ops->top_tokens(m->dev, &rows, m->h.logits, t->k, at->top_token + from, at->top_logit + from,
                                  m->stream));
        DT_TRY(m->ops->log_softmax_at(m->dev, &rows, m->h.logits, inverse(t->logp_temperature), t->k,
                                      at->top_token + from, at->top_logp + from, m->stream));
    }
    return DT_OK;
}

static dt_err stage_top(dt_model *m, const struct last_rows *r, const dt_top *t)
{
    const struct draws *host = &m->host_draws, *device = &m->device_draws;
    if (t->list_start) DT_TRY(stage_lists(m, r, t->list_start, t->list_len));
    if (!t->seen) return t->allowed ? stage_mask(m, r, t->allowed, false, NULL, host->allowed, device->allowed) : DT_OK;
    DT_TRY(stage_mask(m, r, t->seen, false, t->allowed, host->seen, device->seen));
    return stage_mask(m, r, t->seen, true, t->allowed, host->unseen, device->unseen);
}

dt_err dt_model_top(dt_model *m, const dt_batch *b, const dt_top *t)
{
    const struct draws *host = &m->host_draws, *device = &m->device_draws;
    const int64_t n = (int64_t)b->n_seq * n_lists(t) * t->k;
    struct last_rows r;
    DT_EXPECT(m->cache && b->n_seq <= m->opt.cache_seqs);
    DT_EXPECT(t->k > 0 && t->k <= m->opt.max_top);
    DT_TRY(stage_last_rows(m, b, &r));
    if (r.n > 0) DT_TRY(stage_top(m, &r, t));
    const struct use_of_logits use = {r.n_step, top_chunk, t};
    const struct step_key key = {.what = STEP_TOP,
                                 .len = t->k,
                                 .masked = t->seen,
                                 .limited = t->allowed,
                                 .listed = t->list_start,
                                 .logp_temperature = t->logp_temperature};
    DT_TRY(queue(m, &r, key, &use));
    for (int list = 0; list < n_lists(t); list++) {
        const int64_t from = list_at(m, t, list, 0), n_found = (int64_t)r.n * t->k;
        DT_TRY(bring(m, host->top_token + from, device->top_token + from, n_found, sizeof(int32_t)));
        DT_TRY(bring(m, host->top_logp + from, device->top_logp + from, n_found, sizeof(double)));
    }
    DT_TRY(dt_model_sync(m));
    for (int64_t i = 0; i < n; i++) t->token[i] = -1, t->logp[i] = NAN;
    for (int32_t i = 0; i < r.n; i++)
        for (int list = 0; list < n_lists(t); list++) {
            const int64_t from = list_at(m, t, list, i), to = ((int64_t)r.seq[i] * n_lists(t) + list) * t->k;
            memcpy(t->token + to, host->top_token + from, (size_t)t->k * sizeof *t->token);
            memcpy(t->logp + to, host->top_logp + from, (size_t)t->k * sizeof *t->logp);
        }
    return DT_OK;
}
