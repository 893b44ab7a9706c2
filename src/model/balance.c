/* balance.c - the load-balancing loss of mixtures of experts, over all layers together (algorithms.md 8.7):
 *
 *     L = coef E sum over e of f_e p_e,   f_e = c_e / n,   p_e = P_e / n
 *
 * with the number c_e of assignments to expert e, the sum P_e of its probabilities, and the number n of tokens times
 * layers. L has no derivative by c_e, so that by a token's p_e is coef E c_e / n^2 in every layer. */
#include "model_private.h"

double dt_model_balance_loss(const dt_model_config *mc, const double *load, double scale, float *dprob)
{
    const int64_t E = mc->num_experts;
    double n = 0, sum = 0;
    for (int64_t e = 0; e < E; e++) n += load[e] / (double)mc->num_experts_per_tok;
    for (int64_t e = 0; e < E; e++) {
        const double share = n > 0 ? (double)E * load[e] / (n * n) : 0;
        sum += share * load[E + e];
        if (dprob) dprob[e] = (float)(scale * mc->router_aux_loss_coef * share);
    }
    return sum;
}

bool dt_balances(const dt_model *m) { return m->mc->router_aux_loss_coef > 0 && m->E > 0; }

void dt_balance_place(dt_model *m, struct arena *host, struct arena *device)
{
    const size_t n = dt_balances(m) && m->opt.training ? (size_t)m->E : 0;
    m->load_span = dt_take_span(host, device, 2 * n * sizeof(float));
    m->dprob_span = dt_take_span(host, device, n * sizeof(float));
}

dt_err dt_balance_begin(dt_model *m)
{
    m->have_dprob = false;
    m->load = m->train && dt_balances(m) ? (float *)(void *)m->load_span.device : NULL;
    return m->load ? m->ops->zero(m->dev, m->load, m->load_span.nbytes, m->stream) : DT_OK;
}

dt_err dt_balance_count(const dt_model *m, const struct expert_acts *a)
{
    if (!m->load) return DT_OK;
    return m->ops->bias_backward(m->dev, a->prob, m->n_tok, m->E, m->E, DT_F32, m->load + m->E, DT_F32, true,
                                 m->stream);
}

dt_err dt_model_expert_load(dt_model *m, double *load)
{
    DT_EXPECT(m->opt.training && dt_balances(m) && m->have_hidden);
    DT_TRY(dt_span_to_host(m, &m->load_span, m->load_span.nbytes));
    DT_TRY(dt_span_wait(m, &m->load_span));
    for (int64_t e = 0; e < 2 * m->E; e++) load[e] = (double)((const float *)(const void *)m->load_span.host)[e];
    return DT_OK;
}

dt_err dt_model_balance(dt_model *m, const float *dprob)
{
    const float scale = dt_model_loss_scale(m);
    float *to = (float *)(void *)m->dprob_span.host;
    DT_EXPECT(m->opt.training && dt_balances(m));
    DT_TRY(dt_span_wait(m, &m->dprob_span));
    for (int64_t e = 0; e < m->E; e++) to[e] = scale * dprob[e];
    m->have_dprob = true;
    return dt_span_to_device(m, &m->dprob_span, m->dprob_span.nbytes);
}
