/* balance.c - the losses of the routers of mixtures of experts, over all layers together (algorithms.md 8.7): the
 * load-balancing loss and the z-loss,
 *
 *     L = coef E sum over e of f_e p_e,   f_e = c_e / n,   p_e = P_e / n
 *     Z = coef N Q / n
 *
 * with the number c_e of assignments to expert e, the sum P_e of its probabilities, the number N of layers, the number
 * n of tokens times layers, and the sum Q of l^2 = (log sum over e of e^z_e)^2. L has no derivative by c_e, so that by
 * a token's p_e is coef E c_e / n^2 in every layer; that of Z by l^2 is coef N / n. */
#include "model_private.h"

/* Tokens times layers. */
static double count_tokens(const dt_model_config *mc, const double *load)
{
    double n = 0;
    for (int64_t e = 0; e < mc->num_experts; e++) n += load[e] / (double)mc->num_experts_per_tok;
    return n;
}

double dt_model_balance_loss(const dt_model_config *mc, const double *load, double scale, float *dprob)
{
    const int64_t E = mc->num_experts;
    const double n = count_tokens(mc, load);
    double sum = 0;
    for (int64_t e = 0; e < E; e++) {
        const double share = n > 0 ? (double)E * load[e] / (n * n) : 0;
        sum += share * load[E + e];
        if (dprob) dprob[e] = (float)(scale * mc->router_aux_loss_coef * share);
    }
    return sum;
}

double dt_model_z_loss(const dt_model_config *mc, const double *load, double scale, float *dsquare)
{
    const double n = count_tokens(mc, load), share = n > 0 ? (double)dt_model_n_sparse(mc) / n : 0;
    if (dsquare) *dsquare = (float)(scale * mc->router_z_loss_coef * share);
    return share * load[2 * mc->num_experts];
}

bool dt_balances(const dt_model *m) { return m->E > 0 && dt_model_counts_experts(m->mc) && m->opt.training; }
bool dt_squares(const dt_model *m) { return m->mc->router_z_loss_coef > 0 && dt_balances(m); }

void dt_balance_place(dt_model *m, struct arena *host, struct arena *device)
{
    const size_t E = (size_t)m->E;
    m->load_span = dt_take_span(host, device, dt_balances(m) ? (2 * E + 1) * sizeof(float) : 0);
    m->dload_span = dt_take_span(host, device, dt_balances(m) ? (E + 1) * sizeof(float) : 0);
}

dt_err dt_balance_begin(dt_model *m)
{
    m->have_dload = false;
    m->load = m->train && dt_balances(m) ? (float *)(void *)m->load_span.device : NULL;
    return m->load ? m->ops->zero(m->dev, m->load, m->load_span.nbytes, m->stream) : DT_OK;
}

static dt_err add_columns(const dt_model *m, const float *x, int64_t n, int64_t ld, float *sum)
{
    return m->ops->bias_backward(m->dev, x, m->n_tok, n, ld, DT_F32, sum, DT_F32, true, m->stream);
}

dt_err dt_balance_count(const dt_model *m, const struct expert_acts *a)
{
    if (m->load && m->mc->router_aux_loss_coef > 0) DT_TRY(add_columns(m, a->prob, m->E, m->E, m->load + m->E));
    if (m->load && dt_squares(m)) DT_TRY(add_columns(m, a->lse + 1, 1, 2, m->load + 2 * m->E));
    return DT_OK;
}

struct load_gradient dt_balance_gradient(const dt_model *m)
{
    const float *d = (const float *)(const void *)m->dload_span.device;
    if (!m->have_dload) return (struct load_gradient){0};
    return (struct load_gradient){m->mc->router_aux_loss_coef > 0 ? d : NULL, dt_squares(m) ? d + m->E : NULL};
}

dt_err dt_model_expert_load(dt_model *m, double *load)
{
    DT_EXPECT(dt_balances(m) && m->have_hidden);
    DT_TRY(dt_span_to_host(m, &m->load_span, m->load_span.nbytes));
    DT_TRY(dt_span_wait(m, &m->load_span));
    for (int64_t e = 0; e < 2 * m->E + 1; e++) load[e] = (double)((const float *)(const void *)m->load_span.host)[e];
    return DT_OK;
}

dt_err dt_model_balance(dt_model *m, const float *dload)
{
    const float scale = dt_model_loss_scale(m);
    float *to = (float *)(void *)m->dload_span.host;
    DT_EXPECT(dt_balances(m));
    DT_TRY(dt_span_wait(m, &m->dload_span));
    for (int64_t e = 0; e < m->E + 1; e++) to[e] = scale * dload[e];
    m->have_dload = true;
    return dt_span_to_device(m, &m->dload_span, m->dload_span.nbytes);
}
