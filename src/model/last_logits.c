/* last_logits.c - the last token of each sequence: its logits, tokens sampled from them, and lists of the most likely.
 *
 * Rows are those of the sequences that have tokens, in order. Results are stored at the index of their sequence. If
 * steps run as graphs, unused rows follow (dt_step_rows). Logits are computed in chunks as for the loss (head.c). A
 * generation step consumes each chunk before the next one. */
#include "head.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

static bool has_tokens(const dt_batch *b, int32_t s) { return b->n_tok > 0 && b->seq_start[s + 1] > b->seq_start[s]; }

/* Stage the last row of each sequence that has tokens, in order, and their number. The first row is repeated until the
 * step is full. */
static dt_err stage_last_rows(dt_model *m, const dt_batch *b, int64_t *n_rows)
{
    *n_rows = 0;
    DT_EXPECT(m->have_hidden && dt_model_in_use(m) && b->n_tok == m->n_tok && b->n_seq == m->n_seq);
    DT_EXPECT(m->n_labels == 0);
    DT_TRY(dt_span_wait(m, &m->rows_span));
    m->have_results = false;
    dt_model_place_rows(m, m->rows_span.host, m->opt.max_tok, &m->host_rows);
    dt_model_place_rows(m, m->rows_span.device, m->opt.max_tok, &m->device_rows);
    int32_t *row = m->host_rows.row;
    for (int32_t s = 0; s < b->n_seq; s++)
        if (has_tokens(b, s)) row[(*n_rows)++] = b->seq_start[s + 1] - 1;
    const int64_t n = dt_step_rows(m, (int32_t)*n_rows);
    for (int64_t i = *n_rows; i < n; i++) row[i] = row[0];
    return n > 0 ? dt_span_to_device(m, &m->rows_span, (size_t)n * sizeof *row) : DT_OK;
}

dt_err dt_model_last_logits(dt_model *m, const dt_batch *b, float *logits)
{
    struct head_weights w;
    int64_t n_rows;
    DT_TRY(stage_last_rows(m, b, &n_rows));
    DT_TRY(dt_head_acquire(m, &w));
    int32_t s = 0; /* sequence of the next row; sequences without tokens get zeros */
    memset(logits, 0, (size_t)b->n_seq * (size_t)m->V * sizeof *logits);
    for (int64_t i = 0; i < n_rows; i++) {
        const int64_t in_chunk = i % m->h.n_rows, left = n_rows - i;
        if (in_chunk == 0)
            DT_TRY(dt_head_logits(m, &w, m->device_rows.row + i, NULL, left < m->h.n_rows ? left : m->h.n_rows));
        while (!has_tokens(b, s)) s++;
        DT_TRY(m->ops->copy(m->dev, logits + s++ * m->V, m->h.logits + in_chunk * m->h.logits_ld,
                            (size_t)m->V * sizeof *logits, m->stream));
    }
    DT_TRY(dt_head_release(m));
    return dt_model_sync(m);
}

/* Copy the mask rows of sequences with tokens to pinned memory, in order, and repeat the first to fill the step. flip:
 * use the complement within the vocabulary. within: NULL, or a mask that is ANDed with each row. */
static dt_err stage_mask(dt_model *m, const dt_batch *b, const uint32_t *mask, bool flip, const uint32_t *within,
                         uint32_t *host, uint32_t *device)
{
    const int64_t ld = m->host_draws.seen_ld;
    int64_t i = 0;
    for (int32_t s = 0; s < b->n_seq; s++) {
        if (!has_tokens(b, s)) continue;
        uint32_t *row = host + i++ * ld;
        for (int64_t w = 0; w < ld; w++)
            row[w] = (flip ? ~mask[s * ld + w] : mask[s * ld + w]) & (within ? within[s * ld + w] : UINT32_MAX);
    }
    const int64_t n = dt_step_rows(m, (int32_t)i);
    for (; i < n; i++) memcpy(host + i * ld, host, (size_t)ld * sizeof *host);
    return m->ops->copy(m->dev, device, host, (size_t)(n * ld) * sizeof *host, m->stream);
}

dt_err dt_model_set_lists(dt_model *m, const int32_t *token, int32_t n)
{
    DT_EXPECT(n > 0 && n <= m->opt.max_listed);
    for (int32_t i = 0; i < n; i++) DT_EXPECT(token[i] >= 0 && token[i] < m->V);
    m->n_listed = n;
    DT_TRY(m->ops->copy(m->dev, m->listed, token, (size_t)n * sizeof *token, m->stream));
    return dt_model_sync(m);
}

/* Stage the location of the lists of sequences with tokens, in order, and repeat the first to fill the step. */
static dt_err stage_lists(dt_model *m, const dt_batch *b, const int32_t *start, const int32_t *len)
{
    const struct draws *host = &m->host_draws, *device = &m->device_draws;
    int64_t i = 0;
    for (int32_t s = 0; s < b->n_seq; s++) {
        if (!has_tokens(b, s)) continue;
        DT_EXPECT(start[s] >= 0 && len[s] >= 0 && start[s] <= m->n_listed - len[s]);
        host->list_start[i] = start[s];
        host->list_len[i++] = len[s];
    }
    const int64_t n = dt_step_rows(m, (int32_t)i);
    for (; i < n; i++) host->list_start[i] = host->list_start[0], host->list_len[i] = host->list_len[0];
    DT_TRY(m->ops->copy(m->dev, device->list_start, host->list_start, (size_t)n * sizeof(int32_t), m->stream));
    return m->ops->copy(m->dev, device->list_len, host->list_len, (size_t)n * sizeof(int32_t), m->stream);
}

/* Restrict a chunk of rows, starting at row `first`, to their lists. */
static void add_lists(const dt_model *m, dt_token_rows *rows, int64_t first)
{
    rows->list = m->listed;
    rows->list_start = m->device_draws.list_start + first;
    rows->list_len = m->device_draws.list_len + first;
}

/* Stage the sampling inputs of the sequences that have tokens, in order. */
static dt_err stage_draws(dt_model *m, const dt_batch *b, const dt_draw *d, int64_t n_rows)
{
    const struct draws *host = &m->host_draws, *device = &m->device_draws;
    const int64_t n = dt_step_rows(m, (int32_t)n_rows);
    int64_t i = 0;
    for (int32_t s = 0; d->uniform && i < n_rows; s++)
        if (has_tokens(b, s)) host->uniform[i++] = d->uniform[s];
    for (; d->uniform && i < n; i++) host->uniform[i] = 0;
    if (d->uniform) DT_TRY(m->ops->copy(m->dev, device->uniform, host->uniform, (size_t)n * sizeof(double), m->stream));
    if (d->list_start) DT_TRY(stage_lists(m, b, d->list_start, d->list_len));
    if (d->allowed) DT_TRY(stage_mask(m, b, d->allowed, false, NULL, host->allowed, device->allowed));
    return d->seen ? stage_mask(m, b, d->seen, false, NULL, host->seen, device->seen) : DT_OK;
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
        const int64_t n = u->n_rows - at < m->h.n_rows ? u->n_rows - at : m->h.n_rows;
        DT_TRY(dt_head_logits(m, &w, m->device_rows.row + at, NULL, n));
        DT_TRY(u->use(m, u->how, at, n));
    }
    return dt_head_release(m);
}

static dt_err queue_draws(dt_model *m, const dt_draw *d, int64_t n_rows)
{
    const int32_t n = dt_step_rows(m, (int32_t)n_rows);
    const struct use_of_logits use = {n, draw_chunk, d};
    const struct step_key key = {.what = STEP_DRAW,
                                 .n = n,
                                 .masked = d->seen,
                                 .limited = d->allowed,
                                 .listed = d->list_start,
                                 .uniform = d->uniform,
                                 .logp = d->logp,
                                 .logp_temperature = d->logp_temperature,
                                 .how = d->how};
    return n_rows > 0 ? dt_step_run(m, &key, use_last_logits, &use) : use_last_logits(m, &use);
}

static dt_err check_seqs(const dt_model *m, const dt_batch *b)
{
    DT_EXPECT(m->cache && b->n_seq <= m->opt.cache_seqs);
    return DT_OK;
}

dt_err dt_model_draw(dt_model *m, const dt_batch *b, const dt_draw *d)
{
    const struct draws *host = &m->host_draws, *device = &m->device_draws;
    int64_t n_rows;
    DT_TRY(check_seqs(m, b));
    DT_TRY(stage_last_rows(m, b, &n_rows));
    if (n_rows > 0) DT_TRY(stage_draws(m, b, d, n_rows));
    DT_TRY(queue_draws(m, d, n_rows));
    if (n_rows > 0)
        DT_TRY(m->ops->copy(m->dev, host->token, device->token, (size_t)n_rows * sizeof(int32_t), m->stream));
    if (n_rows > 0 && d->logp)
        DT_TRY(m->ops->copy(m->dev, host->logp, device->logp, (size_t)n_rows * sizeof(double), m->stream));
    DT_TRY(dt_model_sync(m));
    for (int32_t s = 0, i = 0; s < b->n_seq; s++) {
        const bool any = has_tokens(b, s);
        d->token[s] = any ? host->token[i] : -1;
        if (d->logp) d->logp[s] = any ? host->logp[i] : NAN;
        i += any;
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

static dt_err queue_lists(dt_model *m, const dt_top *t, int64_t n_rows)
{
    const int32_t n = dt_step_rows(m, (int32_t)n_rows);
    const struct use_of_logits use = {n, top_chunk, t};
    const struct step_key key = {.what = STEP_TOP,
                                 .n = n,
                                 .len = t->k,
                                 .masked = t->seen,
                                 .limited = t->allowed,
                                 .listed = t->list_start,
                                 .logp_temperature = t->logp_temperature};
    return n_rows > 0 ? dt_step_run(m, &key, use_last_logits, &use) : use_last_logits(m, &use);
}

static dt_err bring_lists(dt_model *m, const dt_top *t, int64_t n_rows)
{
    const struct draws *host = &m->host_draws, *device = &m->device_draws;
    for (int list = 0; n_rows > 0 && list < n_lists(t); list++) {
        const int64_t from = list_at(m, t, list, 0);
        const size_t n = (size_t)(n_rows * t->k);
        DT_TRY(m->ops->copy(m->dev, host->top_token + from, device->top_token + from, n * sizeof(int32_t), m->stream));
        DT_TRY(m->ops->copy(m->dev, host->top_logp + from, device->top_logp + from, n * sizeof(double), m->stream));
    }
    return dt_model_sync(m);
}

dt_err dt_model_top(dt_model *m, const dt_batch *b, const dt_top *t)
{
    const struct draws *host = &m->host_draws, *device = &m->device_draws;
    int64_t n_rows;
    DT_TRY(check_seqs(m, b));
    DT_EXPECT(t->k > 0 && t->k <= m->opt.max_top);
    DT_TRY(stage_last_rows(m, b, &n_rows));
    if (n_rows > 0 && t->list_start) DT_TRY(stage_lists(m, b, t->list_start, t->list_len));
    if (n_rows > 0 && t->seen) {
        DT_TRY(stage_mask(m, b, t->seen, false, t->allowed, host->seen, device->seen));
        DT_TRY(stage_mask(m, b, t->seen, true, t->allowed, host->unseen, device->unseen));
    } else if (n_rows > 0 && t->allowed) {
        DT_TRY(stage_mask(m, b, t->allowed, false, NULL, host->allowed, device->allowed));
    }
    DT_TRY(queue_lists(m, t, n_rows));
    DT_TRY(bring_lists(m, t, n_rows));
    for (int32_t s = 0, i = 0; s < b->n_seq; s++) {
        const bool any = has_tokens(b, s);
        for (int list = 0; list < n_lists(t); list++)
            for (int32_t j = 0; j < t->k; j++) {
                const int64_t from = list_at(m, t, list, i) + j, to = ((int64_t)s * n_lists(t) + list) * t->k + j;
                t->token[to] = any ? host->top_token[from] : -1;
                t->logp[to] = any ? host->top_logp[from] : NAN;
            }
        i += any;
    }
    return DT_OK;
}
