/* values.c - a scalar head: final norm and a matmul with the few rows of the score, for all tokens at once.
 *
 *     y = norm(x)        value[t, l] = sum over c of y[t, c] score[l, c] + bias[l]
 *     dscore = dvalue^T y        dbias = sum of dvalue        dy = dvalue score        dx = norm's backward of dy
 *
 * Without a score (embeddings) value = y and dy = dvalue.
 *
 * x, y [T,C]; score [n_labels, C]; value [T, n_labels], float. In 16 bits dvalue is rounded before its matmuls. */
#include "model_private.h"
#include <string.h>

static size_t nbytes_of(const dt_model *m) { return (size_t)(m->n_tok * m->n_labels) * sizeof(float); }

static dt_err norm_forward(const dt_model *m, const dt_param_view *w)
{
    return dt_norm_forward(m, &m->final_norm, w, m->hidden, m->v.y, m->v.stats, m->n_tok);
}

dt_err dt_values_forward(dt_model *m, float *value)
{
    dt_param_view w;
    dt_matmul mm = dt_dense_matmul(m->n_tok, m->n_labels, m->C, false, true, m->opt.dtype, DT_F32);
    mm.batch_invariant = dt_model_is_invariant(m);
    dt_phase_enter(m->phase, "head", m->units[m->head_unit].name);
    DT_TRY(dt_params_acquire(m, m->head_unit, &w));
    mm.bias = dt_weight(&w, m->head.b);
    if (m->n_tok > 0) {
        DT_TRY(norm_forward(m, &w));
        DT_TRY(dt_exists(m->head.w)
                   ? m->ops->matmul(m->dev, &mm, m->v.y, dt_weight(&w, m->head.w), m->v.device, m->stream)
                   : m->ops->convert(m->dev, m->v.y, m->opt.dtype, m->v.device, DT_F32, m->n_tok * m->C, m->stream));
        DT_TRY(dt_span_to_host(m, &m->values_span, nbytes_of(m)));
    }
    DT_TRY(dt_params_release(m, m->head_unit));
    DT_TRY(dt_span_wait(m, &m->values_span));
    if (m->n_tok > 0) memcpy(value, m->v.host, nbytes_of(m));
    return DT_OK;
}

static dt_err backward(dt_model *m, const dt_param_view *w, const dt_grad_view *g, const void *dvalue)
{
    const int64_t T = m->n_tok, C = m->C, n = m->n_labels;
    const dt_matmul dy = dt_dense_matmul(T, C, n, false, false, m->opt.dtype, m->opt.dtype);
    dt_matmul dscore = dt_dense_matmul(n, C, T, true, false, m->opt.dtype, g->dtype);
    dscore.accumulate = g->accumulate;
    if (dt_is_trained(m->head.b)) {
        dscore.sums_of = DT_SUMS_OF_A;
        dscore.sums = dt_gradient(g, m->head.b);
        dscore.sums_dtype = g->dtype;
        dscore.accumulate_sums = g->accumulate;
    }
    if (dt_is_trained(m->head.w))
        DT_TRY(m->ops->matmul(m->dev, &dscore, dvalue, m->v.y, dt_gradient(g, m->head.w), m->stream));
    if (!dt_norm_trains(&m->final_norm) && m->first_trained == m->n_stages) return DT_OK;
    if (dt_exists(m->head.w)) DT_TRY(m->ops->matmul(m->dev, &dy, dvalue, dt_weight(w, m->head.w), m->v.dy, m->stream));
    return dt_norm_backward(m, &m->final_norm, w, g, m->hidden, m->v.stats, dt_exists(m->head.w) ? m->v.dy : dvalue,
                            m->s.dx, false, T);
}

/* Copy to the device and convert to the type of the matmuls. */
static dt_err bring(dt_model *m, const float *dvalue, const void **on_device)
{
    *on_device = m->v.device;
    DT_TRY(dt_span_wait(m, &m->values_span));
    const float scale = dt_model_loss_scale(m);
    for (int64_t i = 0; i < m->n_tok * m->n_labels; i++) m->v.host[i] = dvalue[i] * scale;
    DT_TRY(dt_span_to_device(m, &m->values_span, nbytes_of(m)));
    if (!m->v.dvalue) return DT_OK;
    *on_device = m->v.dvalue;
    return m->ops->convert(m->dev, m->v.device, DT_F32, m->v.dvalue, m->opt.dtype, m->n_tok * m->n_labels, m->stream);
}

dt_err dt_values_backward(dt_model *m, const float *dvalue)
{
    const void *on_device;
    dt_param_view w;
    dt_grad_view g;
    dt_phase_enter(m->phase, "head", m->units[m->head_unit].name);
    DT_TRY(dt_params_acquire(m, m->head_unit, &w));
    DT_TRY(dt_grads_acquire(m, m->head_unit, &g));
    if (m->n_tok == 0) {
        DT_TRY(dt_model_clear_grads(m, m->head_unit, &g));
    } else {
        DT_TRY(bring(m, dvalue, &on_device));
        DT_TRY(norm_forward(m, &w));
        DT_TRY(backward(m, &w, &g, on_device));
    }
    DT_TRY(dt_grads_release(m, m->head_unit));
    return dt_params_release(m, m->head_unit);
}
