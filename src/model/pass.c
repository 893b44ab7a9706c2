/* pass.c - the calls of a pass: forward, then results or gradients of the head, then backward. Here they are checked,
 * and a batch that the ranks of a team divide is cut (context.c): the functions below see the tokens of this rank.
 * Results are those of all tokens, on every rank. */
#include "divide.h"

dt_err dt_model_forward(dt_model *m, const dt_batch *b, bool train, int64_t step)
{
    DT_EXPECT(!train || m->opt.training);
    return dt_layers_forward(m, dt_context_cut(m, b), train, step);
}

/* Starting at element n. */
static const float *from(const float *x, int64_t n) { return x ? x + n : NULL; }

dt_err dt_model_results(dt_model *m, const dt_head_results *out)
{
    const struct part *p = &m->part;
    float *list[N_RESULTS];
    DT_TRY(dt_head_fetch(m, out, list));
    for (int i = 0; i < N_RESULTS; i++)
        DT_TRY(dt_context_join(m, list[i], sizeof *list[i], p->first_target, m->n_rows, p->n_targets));
    return dt_context_join(m, out->hit, sizeof *out->hit, p->first_target, m->n_rows, p->n_targets);
}

/* The arguments of this rank's targets. known: out, what is known of them, if the pass has it. */
static dt_head_pass own_pass(const dt_model *m, const dt_head_pass *all, dt_known *known)
{
    const int64_t n = m->part.first_target;
    dt_head_pass own = *all;
    own.u = from(all->u, n), own.entropy_weight = from(all->entropy_weight, n), own.kl_weight = from(all->kl_weight, n);
    if (!all->known) return own;
    *known = *all->known;
    known->token += n * known->k, known->logp += n * known->k;
    own.known = known;
    return own;
}

dt_err dt_model_predict(dt_model *m, const dt_batch *b, const dt_head_pass *pass, const dt_head_results *out)
{
    dt_known known;
    const dt_head_pass own = own_pass(m, pass, &known);
    DT_TRY(dt_head_run(m, dt_context_part(m, b), &own, out, false));
    return dt_model_results(m, out);
}

dt_err dt_model_logp(dt_model *m, const dt_batch *b, float inv_temperature, float *logp, uint8_t *hit, float *entropy)
{
    return dt_model_predict(m, b, &(dt_head_pass){.inv_temperature = inv_temperature},
                            &(dt_head_results){.logp = logp, .hit = hit, .entropy = entropy});
}

dt_err dt_model_head(dt_model *m, const dt_batch *b, const dt_head_pass *pass, const dt_head_results *wanted)
{
    dt_known known;
    const dt_head_pass own = own_pass(m, pass, &known);
    DT_EXPECT(m->train && pass->u);
    DT_TRY(dt_head_run(m, dt_context_part(m, b), &own, wanted, true));
    m->have_dx = true;
    return DT_OK;
}

static dt_err check_values(const dt_model *m, const dt_batch *b)
{
    DT_EXPECT(m->n_labels > 0);
    DT_EXPECT(m->have_hidden && dt_model_in_use(m) && dt_context_part(m, b)->n_tok == m->n_tok);
    return DT_OK;
}

dt_err dt_model_values(dt_model *m, const dt_batch *b, float *value)
{
    const int64_t first = m->part.first;
    DT_TRY(check_values(m, b));
    DT_TRY(dt_values_forward(m, value + first * m->n_labels));
    return dt_context_join(m, value, (size_t)m->n_labels * sizeof *value, first, m->n_tok, b->n_tok);
}

dt_err dt_model_value_head(dt_model *m, const dt_batch *b, const float *dvalue)
{
    DT_TRY(check_values(m, b));
    DT_EXPECT(m->train);
    DT_TRY(dt_values_backward(m, dvalue + m->part.first * m->n_labels));
    m->have_dx = true;
    return DT_OK;
}

dt_err dt_model_backward(dt_model *m, const dt_batch *b)
{
    DT_EXPECT(m->have_dx && dt_model_in_use(m) && dt_context_part(m, b)->n_tok == m->n_tok);
    return dt_layers_backward(m);
}
