/* head.c - final norm, vocabulary matmul and classifier, in chunks of the rows that have a target.
 *
 * Logits are the largest tensor of a small model and never exist in full. Each chunk's logits are overwritten by their
 * gradient and consumed before the next chunk. Rows without a target cost nothing.
 *
 * The device determines the rows per chunk. Gradients of parameters are sums over chunks. If their type is narrower
 * than fp32 they are accumulated in fp32 and rounded once: at the end or, if tied, after the embedding has added its
 * gradient (embed.c). */
#include "divide.h"
#include "head.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/** The units of the head while they are held, and their gradients. */
struct hold {
    struct head_weights w;
    dt_grad_view g_head, g_out;
    bool grads;
    /* destination of the chunks' gradients: head unit, and unit of the vocabulary matmul */
    dt_grad_view to_head, to_out;
};

dt_err dt_head_acquire(dt_model *m, struct head_weights *w)
{
    dt_phase_enter(m->phase, "head", m->units[m->head_unit].name);
    DT_TRY(dt_params_acquire(m, m->head_unit, &w->head));
    w->out = w->head;
    return m->tied ? dt_params_acquire(m, m->embed_unit, &w->out) : DT_OK;
}

dt_err dt_head_release(dt_model *m)
{
    if (m->tied) DT_TRY(dt_params_release(m, m->embed_unit));
    return dt_params_release(m, m->head_unit);
}

static dt_err hold_units(dt_model *m, struct hold *h, bool grads)
{
    *h = (struct hold){.grads = grads};
    DT_TRY(dt_head_acquire(m, &h->w));
    if (!grads) return DT_OK;
    DT_TRY(dt_grads_acquire(m, m->head_unit, &h->g_head));
    h->g_out = h->g_head;
    if (dt_has_tied_grads(m)) {
        DT_TRY(dt_grads_acquire(m, m->embed_unit, &h->g_out));
        m->tied_grads = h->g_out; /* until dt_embed_backward releases them */
    }
    h->to_head = h->g_head;
    h->to_out = h->g_out;
    return DT_OK;
}

static dt_err release_units(dt_model *m, const struct hold *h)
{
    if (h->grads) DT_TRY(dt_grads_release(m, m->head_unit));
    return dt_head_release(m);
}

static bool sums_own(const dt_model *m, int64_t n_rows) { return m->h.sums.own && n_rows > m->h.n_rows; }

/** Does a unit below the head need the gradient of the hidden states? */
static bool below_is_trained(const dt_model *m) { return m->first_trained < m->n_stages; }

/* Gradients that several chunks add to are accumulated in fp32. A tied table is the first tensor of its unit. */
static void begin_sums(const dt_model *m, struct hold *h, int64_t n_rows)
{
    if (sums_own(m, n_rows)) h->to_head = (dt_grad_view){m->h.sums.own, DT_F32, false};
    if (!m->tied) h->to_out = h->to_head;
    if (m->h.sums.tied) h->to_out = (dt_grad_view){m->h.sums.tied, DT_F32, false};
}

/* Round the sums; a tied table's sums are kept until the embedding's backward. */
static dt_err end_sums(const dt_model *m, const struct hold *h, int64_t n_rows)
{
    const dt_unit *u = &m->units[m->head_unit];
    for (int i = 0; i < u->n_tensors && sums_own(m, n_rows); i++) {
        const dt_tensor *t = &u->tensors[i];
        const struct tensor_at at = {t->offset, t->part};
        if (t->part == DT_TRAINED)
            DT_TRY(m->ops->add_into(m->dev, m->h.sums.own + t->offset, DT_F32, dt_gradient(&h->g_head, at),
                                    h->g_head.dtype, h->g_head.accumulate, t->n_elems, m->stream));
    }
    return DT_OK;
}

/* No row has a target: clear the gradients that nothing has written. */
static dt_err zero_head_grads(const dt_model *m, const struct hold *h)
{
    DT_TRY(dt_model_clear_grads(m, m->head_unit, &h->g_head));
    if (!dt_has_tied_grads(m) || h->to_out.accumulate) return DT_OK;
    return m->ops->zero(m->dev, dt_gradient(&h->to_out, m->head.w),
                        (size_t)(m->V * m->C) * dt_dtype_size(h->to_out.dtype), m->stream);
}

/* Divide rows [n, C] by logits_scaling: the input of the logits' matmul instead of the logits, which are wider, and the
 * gradient of that input. */
static dt_err divide(const dt_model *m, void *y, int64_t n)
{
    const float factor = (float)(1 / m->mc->logits_scaling);
    return factor == 1 ? DT_OK : m->ops->scale(m->dev, y, factor, y, m->opt.dtype, n * m->C, m->stream);
}

dt_err dt_head_logits(dt_model *m, const struct head_weights *w, const int32_t *index, const uint64_t *token_key,
                      int64_t n)
{
    struct head_work *k = &m->h;
    dt_matmul mm = dt_dense_matmul(n, m->V, m->C, false, true, m->opt.dtype, DT_F32);
    mm.ldc = k->logits_ld;
    mm.batch_invariant = dt_model_is_invariant(m);
    DT_TRY(m->ops->gather_rows(m->dev, m->hidden, index, k->x, n, m->C, m->opt.dtype, m->stream));
    DT_TRY(dt_norm_forward(m, &m->final_norm, &w->head, k->x, k->y, k->stats, n));
    DT_TRY(divide(m, k->y, n));
    DT_TRY(m->ops->matmul(m->dev, &mm, k->y, dt_weight(&w->out, m->head.w), k->logits, m->stream));
    DT_TRY(dt_low_rank_forward(m, &m->head, &w->head, k->y, k->logits, k->logits_ld,
                               (struct low_rows){n, token_key, NULL, m->s.low}, k->low));
    const float cap = (float)m->mc->final_softcap;
    return cap > 0 && n > 0 ? m->ops->softcap(m->dev, k->logits, cap, n, m->V, k->logits_ld, m->stream) : DT_OK;
}

/* Compute the gradients of Wout, its adapter, the final norm and the hidden states from dlogits, which replaced the
 * logits. */
static dt_err chunk_backward(dt_model *m, struct hold *h, const int32_t *index, const uint64_t *token_key, int64_t n)
{
    struct head_work *k = &m->h;
    /* dlogits rows have the same start addresses as logits rows */
    const int64_t ld = k->logits_ld * (int64_t)(sizeof(float) / m->elem);
    dt_matmul dw = dt_dense_matmul(m->V, m->C, n, true, false, m->opt.dtype, h->to_out.dtype),
              dy = dt_dense_matmul(n, m->C, m->V, false, false, m->opt.dtype, m->opt.dtype);
    dw.lda = dy.lda = ld;
    dw.accumulate = h->to_out.accumulate;
    const dt_grad_view to_norm = h->to_head;
    void *const dout = dt_gradient(&h->to_out, m->head.w);
    if (dout) DT_TRY(m->ops->matmul(m->dev, &dw, k->logits, k->y, dout, m->stream));
    if (m->head.n_low > 0) {
        DT_TRY(dt_low_rank_backward(m, &m->head, &h->w.head, &h->to_head, k->y, k->logits, ld, k->dy,
                                    (struct low_rows){n, token_key, NULL, m->s.low}, k->low));
        dy.addend = k->dy;
        dy.ldd = m->C;
        dy.addend_dtype = m->opt.dtype;
    }
    h->to_head.accumulate = h->to_out.accumulate = true;
    if (!dt_norm_trains(&m->final_norm) && !below_is_trained(m)) return DT_OK;
    DT_TRY(m->ops->matmul(m->dev, &dy, k->logits, dt_weight(&h->w.out, m->head.w), k->dy, m->stream));
    DT_TRY(divide(m, k->dy, n));
    DT_TRY(dt_norm_backward(m, &m->final_norm, &h->w.head, &to_norm, k->x, k->stats, k->dy, k->dy, false, n));
    return m->ops->scatter_rows(m->dev, k->dy, index, m->s.dx, n, m->C, m->opt.dtype, m->stream);
}

/* ---- requested results ------------------------------------------------------------------------------------------- */

static void list_results(const dt_head_results *r, float *list[N_RESULTS])
{
    list[RESULT_LOGP] = r->logp;
    list[RESULT_ENTROPY] = r->entropy;
    list[RESULT_SUM_SQUARES] = r->log_sum_squares;
    list[RESULT_MEAN_LOGIT] = r->mean_logit;
    list[RESULT_KL] = r->kl;
}

/* Record which results in addition to logp are computed and copied to the host. */
static dt_err ask(dt_model *m, const dt_head_pass *pass, const dt_head_results *wanted)
{
    float *list[N_RESULTS] = {0};
    if (wanted) list_results(wanted, list);
    for (int i = 0; i < N_RESULTS; i++) {
        m->asked.real[i] = list[i] || i == RESULT_LOGP ? m->host_results.real[i] : NULL;
        DT_CHECK(m->asked.real[i] || !list[i], DT_ERR_ARG,
                 "internal: dt_model_head: the model was not opened for all requested results");
    }
    m->asked.hit = wanted && wanted->hit ? m->host_results.hit : NULL;
    DT_EXPECT(!pass->reference || !pass->known);
    DT_EXPECT(pass->reference || pass->known || (!pass->kl_weight && !m->asked.real[RESULT_KL]));
    return DT_OK;
}

/* Device address of a result, starting at row `at`; NULL: not requested. */
static float *result_at(const dt_model *m, enum result i, int64_t at)
{
    return m->asked.real[i] ? m->device_results.real[i] + at : NULL;
}

static const float *weight_at(const struct hold *h, const float *weight, int64_t at)
{
    return h->grads && weight ? weight + at : NULL;
}

/* The reference computes logits for the same rows, in its own buffer. */
static dt_err check_reference(const dt_model *m, const dt_model *ref)
{
    DT_EXPECT(ref != m && ref->dev == m->dev && ref->stream == m->stream && ref->n_labels == 0 && ref->V == m->V &&
              ref->h.n_rows >= m->h.n_rows);
    DT_CHECK(dt_model_has_hidden(ref, m->n_tok), DT_ERR_ARG,
             "internal: dt_model_head: the reference's forward pass of the same batch must come first, and its hidden "
             "states must be kept");
    return DT_OK;
}

static dt_err hold_reference(const dt_model *m, dt_model *ref, struct hold *h)
{
    if (!ref) return DT_OK;
    DT_TRY(check_reference(m, ref));
    DT_TRY(dt_fault("head.reference"));
    return hold_units(ref, h, false);
}

/* Logits of the distributions that are known in part, starting at row `at`. */
static dt_err fill_known(dt_model *m, const dt_head_pass *pass, int64_t at, int64_t n)
{
    const dt_token_rows rows = {.n_rows = n, .n_vocab = m->V, .logits_ld = m->h.logits_ld};
    const int64_t first = at * pass->known->k;
    return m->ops->fill_rest(m->dev, &rows, m->h.logits, pass->inv_temperature, pass->known->k,
                             m->device_rows.known_token + first, m->device_rows.known_logp + first, m->h.filled,
                             m->stream);
}

static dt_err run_chunks(dt_model *m, struct hold *h, struct hold *h_ref, const dt_head_pass *pass)
{
    dt_model *ref = pass->reference;
    const struct rows *in = &m->device_rows;
    const int64_t n_rows = m->n_rows;
    if (h->grads && n_rows < m->n_tok)
        DT_TRY(m->ops->zero(m->dev, m->s.dx, (size_t)(m->n_tok * m->C) * m->elem, m->stream));
    for (int64_t at = 0; at < n_rows; at += m->h.n_rows) {
        const int64_t n = n_rows - at < m->h.n_rows ? n_rows - at : m->h.n_rows;
        const dt_classifier cl = {.n_rows = n,
                                  .n_vocab = m->V,
                                  .logits_ld = m->h.logits_ld,
                                  .inv_temperature = pass->inv_temperature,
                                  .dlogits_dtype = m->opt.dtype,
                                  .softcap = (float)m->mc->final_softcap,
                                  .kl_mix = pass->kl_mix,
                                  .weight_by_p = pass->weight_by_p,
                                  .target = in->target + at,
                                  .weight = weight_at(h, in->weight, at),
                                  .entropy_weight = weight_at(h, pass->entropy_weight ? in->entropy_weight : NULL, at),
                                  .kl_weight = weight_at(h, pass->kl_weight ? in->kl_weight : NULL, at),
                                  .ref_logits = ref           ? ref->h.logits
                                                : pass->known ? m->h.filled
                                                              : NULL,
                                  .ref_ld = ref ? ref->h.logits_ld : m->h.logits_ld,
                                  .logp = result_at(m, RESULT_LOGP, at),
                                  .hit = m->asked.hit ? m->device_results.hit + at : NULL,
                                  .entropy = result_at(m, RESULT_ENTROPY, at),
                                  .log_sum_squares = result_at(m, RESULT_SUM_SQUARES, at),
                                  .mean_logit = result_at(m, RESULT_MEAN_LOGIT, at),
                                  .kl = result_at(m, RESULT_KL, at)};
        const uint64_t *key = in->token_key ? in->token_key + at : NULL;
        DT_TRY(dt_head_logits(m, &h->w, in->row + at, key, n));
        if (ref) DT_TRY(dt_head_logits(ref, &h_ref->w, in->row + at, NULL, n));
        if (pass->known) DT_TRY(fill_known(m, pass, at, n));
        DT_TRY(m->ops->classifier(m->dev, &cl, m->h.logits, m->stream));
        if (h->grads) DT_TRY(chunk_backward(m, h, in->row + at, key, n));
    }
    m->have_results = true;
    return n_rows > 0 ? dt_span_to_host(m, &m->results_span, m->results_span.nbytes) : DT_OK;
}

dt_err dt_head_fetch(dt_model *m, const dt_head_results *out, float *list[N_RESULTS])
{
    const size_t n = (size_t)m->n_rows;
    const int64_t first = m->part.first_target;
    list_results(out, list);
    DT_EXPECT(m->have_results);
    for (int i = 0; i < N_RESULTS; i++) DT_EXPECT(m->asked.real[i] || !list[i]);
    DT_EXPECT(m->asked.hit || !out->hit);
    DT_TRY(dt_span_wait(m, &m->results_span));
    if (m->n_rows == 0) return DT_OK;
    m->tokens_span.moving = m->rows_span.moving = false; /* queued earlier on the same stream, hence complete */
    for (int i = 0; i < N_RESULTS; i++)
        if (list[i]) memcpy(list[i] + first, m->asked.real[i], n * sizeof *list[i]);
    if (out->hit) memcpy(out->hit + first, m->asked.hit, n);
    return DT_OK;
}

dt_err dt_head_run(dt_model *m, const dt_batch *b, const dt_head_pass *pass, const dt_head_results *wanted, bool grads)
{
    struct hold h, h_ref;
    DT_TRY(dt_model_stage_rows(m, b, pass, grads));
    DT_TRY(ask(m, pass, wanted));
    DT_TRY(hold_units(m, &h, grads));
    DT_TRY(hold_reference(m, pass->reference, &h_ref));
    if (grads) begin_sums(m, &h, m->n_rows);
    if (grads && m->n_rows == 0) DT_TRY(zero_head_grads(m, &h));
    DT_TRY(run_chunks(m, &h, &h_ref, pass));
    if (grads) DT_TRY(end_sums(m, &h, m->n_rows));
    if (pass->reference) DT_TRY(release_units(pass->reference, &h_ref));
    return release_units(m, &h);
}

/* The lists of all rows, in either half of a span: log-probabilities, then tokens. */
struct tops {
    double *logp;
    int32_t *token;
};
static struct tops tops_in(const dt_model *m, char *base)
{
    double *const logp = (double *)(void *)base;
    return (struct tops){logp, (int32_t *)(void *)(logp + (int64_t)m->opt.max_tok * m->opt.max_known)};
}

static dt_err find_tops(dt_model *m, const struct head_weights *w, float inv_temperature, int64_t k)
{
    const struct tops to = tops_in(m, m->tops_span.device);
    for (int64_t at = 0; at < m->n_rows; at += m->h.n_rows) {
        const int64_t n = dt_min_i64(m->h.n_rows, m->n_rows - at);
        const dt_token_rows rows = {.n_rows = n, .n_vocab = m->V, .logits_ld = m->h.logits_ld};
        DT_TRY(dt_head_logits(m, w, m->device_rows.row + at, NULL, n));
        DT_TRY(m->ops->top_tokens(m->dev, &rows, m->h.logits, k, to.token + at * k, m->h.filled, m->stream));
        DT_TRY(m->ops->log_softmax_at(m->dev, &rows, m->h.logits, (double)inv_temperature, k, to.token + at * k,
                                      to.logp + at * k, m->stream));
    }
    return DT_OK;
}

dt_err dt_model_tops(dt_model *m, const dt_batch *b, float inv_temperature, const dt_known *top)
{
    const dt_head_pass pass = {.inv_temperature = inv_temperature};
    struct head_weights w;
    DT_EXPECT(top->k > 0 && top->k <= m->opt.max_known && !m->opt.training && dt_context_part(m, b) == b);
    DT_TRY(dt_model_stage_rows(m, b, &pass, false));
    DT_TRY(dt_head_acquire(m, &w));
    DT_TRY(find_tops(m, &w, inv_temperature, top->k));
    DT_TRY(dt_head_release(m));
    if (m->n_rows > 0)
        DT_TRY(m->ops->copy(m->dev, m->tops_span.host, m->tops_span.device, m->tops_span.nbytes, m->stream));
    DT_TRY(dt_model_sync(m));
    const struct tops found = tops_in(m, m->tops_span.host);
    for (int64_t i = 0; i < m->n_rows * top->k; i++) {
        DT_CHECK(!isnan(found.logp[i]), DT_ERR_NONFINITE, "the logits of a token are not finite");
        top->token[i] = found.token[i], top->logp[i] = (float)found.logp[i];
    }
    return DT_OK;
}
