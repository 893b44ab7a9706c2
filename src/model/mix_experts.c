/* mix_experts.c - a mixture of experts as the mixer of a branch: y_t = sum over the k experts e of token t of
 * w_te down_e(act(gate_e(x_t)) * up_e(x_t)), with the weights w of the router (dt_routing). A shared expert is an MLP
 * of all tokens, added to y (mix_mlp.c).
 *
 * The rows of all tokens are gathered in the order of their experts, so that one grouped matmul computes all experts.
 * No token is dropped. There are T k rows in any case, so the host need not know how many each expert gets. Sums over a
 * token's experts have a fixed order: results do not depend on the number of threads, nor on other tokens.
 *
 * Backward computes the gradient of a weight from the inputs of down_e, which exist anyway:
 * dw_te = dy_t . (D_e act + b_e) = (D_e^T dy_t) . act + dy_t . b_e, for down_e with the matrix D_e and the bias b_e, if
 * it has one. The outputs of the experts are therefore not kept. */
#include "mixer.h"

static dt_routing route_of(const dt_model *m, const struct block *b, const dt_param_view *w)
{
    const dt_model_config *mc = m->mc;
    return (dt_routing){.n_tok = m->n_tok,
                        .n_experts = (int32_t)m->E,
                        .k = (int32_t)m->k,
                        .normalise = mc->norm_topk_prob,
                        .sigmoid = mc->sigmoid_router,
                        .n_groups = (int32_t)mc->n_group,
                        .k_groups = (int32_t)mc->topk_group,
                        .group_best = (int32_t)mc->group_best,
                        .scale = (float)mc->routed_scaling_factor,
                        .correction = dt_weight(w, b->correction)};
}

static bool shares(const struct block *b) { return dt_exists(b->linear[SLOT_UP].w); }

static int64_t n_rows(const dt_model *m) { return m->n_tok * m->k; }

/* act from up. */
static dt_err make_act(const dt_model *m, const struct expert_acts *a)
{
    return m->ops->glu_forward(m->dev, m->mc->act, (float)m->mc->swiglu_limit, a->up, a->act, m->opt.dtype, n_rows(m),
                               m->X, m->stream);
}

/* s.rows = the row of x of each assignment's token. */
static dt_err gather(const dt_model *m, const struct expert_acts *a, const void *x)
{
    return m->ops->gather_rows(m->dev, x, a->token, m->s.rows, n_rows(m), m->C, m->opt.dtype, m->stream);
}

/* ---- matmuls of all experts -------------------------------------------------------------------------------------- */

static const struct expert_part *part_of(const struct block *b, enum slot slot, int i)
{
    return &b->parts[(slot == SLOT_EXPERT_DOWN ? b->n_parts : 0) + i];
}

/* As dt_linear_forward for the rows of all experts; if these are in several units, one unit after the other. */
static dt_err forward(const dt_model *m, const struct block *b, enum slot slot, const dt_param_view *w, const void *x,
                      int64_t x_ld, void *y, int64_t y_ld, struct with_matmul with)
{
    const struct linear *whole = &b->linear[slot];
    const char *bias = dt_weight(w, whole->b);
    const int32_t *start = with.group_start;
    if (b->n_parts == 0) return dt_linear_forward(m, whole, w, x, x_ld, y, y_ld, n_rows(m), with);
    for (int i = 0; i < b->n_parts; i++) {
        const struct expert_part *p = part_of(b, slot, i);
        dt_param_view own;
        with.group_start = start + p->first;
        with.bias = bias ? bias + (size_t)(p->first * whole->n_out) * m->elem : NULL;
        DT_TRY(dt_params_acquire(m, p->unit, &own));
        DT_TRY(dt_linear_forward(m, &p->linear, &own, x, x_ld, y, y_ld, n_rows(m), with));
        DT_TRY(dt_params_release(m, p->unit));
    }
    return dt_low_rank_forward(m, whole, w, x, y, y_ld, dt_low_rank_tokens(m, n_rows(m), start), with.low);
}

/* As dt_linear_input_gradient. The last unit of forward is first, because it may still be gathered. */
static dt_err input_gradient(const dt_model *m, const struct block *b, enum slot slot, const dt_param_view *w,
                             const void *dy, int64_t dy_ld, void *dx, int64_t dx_ld, struct with_matmul with)
{
    const int32_t *start = with.group_start;
    if (b->n_parts == 0) return dt_linear_input_gradient(m, &b->linear[slot], w, dy, dy_ld, dx, dx_ld, with, n_rows(m));
    for (int i = b->n_parts - 1; i >= 0; i--) {
        const struct expert_part *p = part_of(b, slot, i);
        dt_param_view own;
        with.group_start = start + p->first;
        DT_TRY(dt_params_acquire(m, p->unit, &own));
        DT_TRY(dt_linear_input_gradient(m, &p->linear, &own, dy, dy_ld, dx, dx_ld, with, n_rows(m)));
        DT_TRY(dt_params_release(m, p->unit));
    }
    return DT_OK;
}

/* As dt_linear_weight_gradient. */
static dt_err weight_gradient(const dt_model *m, const struct block *b, enum slot slot, const dt_grad_view *g,
                              const void *x, int64_t x_ld, const void *dy, int64_t dy_ld, const int32_t *start)
{
    if (b->n_parts == 0) return dt_linear_weight_gradient(m, &b->linear[slot], g, x, x_ld, dy, dy_ld, n_rows(m), start);
    for (int i = b->n_parts - 1; i >= 0; i--) {
        const struct expert_part *p = part_of(b, slot, i);
        dt_grad_view own;
        DT_TRY(dt_grads_acquire(m, p->unit, &own));
        DT_TRY(dt_linear_weight_gradient(m, &p->linear, &own, x, x_ld, dy, dy_ld, n_rows(m), start + p->first));
        DT_TRY(dt_grads_release(m, p->unit));
    }
    return DT_OK;
}

/* The same calls of the units, in the same order, by a rank without tokens. */
static dt_err skip_params(const dt_model *m, const struct block *b, enum slot slot, bool back)
{
    for (int i = 0; i < b->n_parts; i++) {
        const struct expert_part *p = part_of(b, slot, back ? b->n_parts - 1 - i : i);
        dt_param_view own;
        DT_TRY(dt_params_acquire(m, p->unit, &own));
        DT_TRY(dt_params_release(m, p->unit));
    }
    return DT_OK;
}

static dt_err skip_grads(const dt_model *m, const struct block *b, enum slot slot)
{
    for (int i = b->n_parts - 1; i >= 0; i--) {
        const struct expert_part *p = part_of(b, slot, i);
        dt_grad_view own;
        DT_TRY(dt_grads_acquire(m, p->unit, &own));
        DT_TRY(dt_model_clear_grads(m, p->unit, &own));
        DT_TRY(dt_grads_release(m, p->unit));
    }
    return DT_OK;
}

static dt_err skip(const dt_model *m, const struct block *b, bool want_output)
{
    DT_TRY(skip_params(m, b, SLOT_EXPERT_UP, false));
    return want_output ? skip_params(m, b, SLOT_EXPERT_DOWN, false) : DT_OK;
}

static dt_err skip_backward(const dt_model *m, const struct block *b)
{
    DT_TRY(skip_params(m, b, SLOT_EXPERT_DOWN, true));
    DT_TRY(skip_grads(m, b, SLOT_EXPERT_DOWN));
    DT_TRY(skip_grads(m, b, SLOT_EXPERT_UP));
    return skip_params(m, b, SLOT_EXPERT_UP, true);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static dt_err route(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *acts,
                    const void *x)
{
    const struct expert_acts *a = &acts->experts;
    const dt_routing r = route_of(m, b, w);
    DT_TRY(dt_slot_forward(m, b, SLOT_ROUTER, w, acts, x, a->prob));
    DT_TRY(
        m->ops->route(m->dev, &r, a->prob, a->expert, a->weight, m->train && dt_squares(m) ? a->lse : NULL, m->stream));
    DT_TRY(m->ops->order_experts(m->dev, &r, a->expert, a->start, a->row, a->assignment, a->token, m->load, m->stream));
    return dt_balance_count(m, a);
}

static dt_err mix(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a,
                  const void *x, void *cache, const void **inner)
{
    const struct expert_acts *k = &a->experts;
    const struct with_matmul each = {.group_start = k->start, .low = a->low[SLOT_EXPERT_UP]};
    if (shares(b)) DT_TRY(dt_mlp_mixer.forward(m, b, w, a, x, cache, inner));
    *inner = k->act;
    DT_TRY(route(m, b, w, a, x));
    DT_TRY(gather(m, k, x));
    DT_TRY(forward(m, b, SLOT_EXPERT_UP, w, m->s.rows, m->C, k->up, 2 * m->X, each));
    return make_act(m, k);
}

static dt_err finish(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a,
                     const void *addend, void *y)
{
    const struct expert_acts *k = &a->experts;
    const struct with_matmul each = {.group_start = k->start, .low = a->low[SLOT_EXPERT_DOWN]},
                             shared = {.addend = addend, .low = a->low[SLOT_DOWN]};
    const struct linear *down = &b->linear[SLOT_DOWN];
    if (!y) return dt_low_rank_project(m, down, w, a->act, dt_low_rank_tokens(m, m->n_tok, NULL), shared.low);
    if (shares(b)) {
        DT_TRY(dt_linear_forward(m, down, w, a->act, down->n_in, y, m->C, m->n_tok, shared));
        addend = y;
    }
    DT_TRY(forward(m, b, SLOT_EXPERT_DOWN, w, k->act, m->X, m->s.rows, m->C, each));
    return m->ops->combine_rows(m->dev, m->s.rows, k->row, k->weight, addend, y, m->n_tok, m->k, m->C, m->opt.dtype,
                                m->stream);
}

/* The gradient of the layer's bias from dy, rows of its output. weight: the rows have weights, whose gradients get the
 * bias's part; NULL: they have none. */
static dt_err bias_backward(const dt_model *m, const struct linear *l, const dt_param_view *w, const dt_grad_view *g,
                            const struct expert_acts *a, const void *dy, const float *weight)
{
    void *dbias = dt_gradient(g, l->b);
    if (!dt_exists(l->b) || (!dbias && !weight)) return DT_OK;
    return m->ops->group_bias_backward(m->dev, dy, a->start, weight ? a->assignment : NULL, weight,
                                       weight ? dt_weight(w, l->b) : NULL, weight ? m->s.dweight : NULL, dbias,
                                       g->dtype, g->accumulate, n_rows(m), m->E, l->n_out, m->opt.dtype, m->stream);
}

/* From dy: the gradients of down, of the weights (s.dweight), and of up's output, which replaces it. */
static dt_err down_backward(const dt_model *m, const struct block *b, const dt_param_view *w, const dt_grad_view *g,
                            const struct expert_acts *a, const void *dy, void *low)
{
    const struct linear *down = &b->linear[SLOT_EXPERT_DOWN];
    const bool adapted = down->n_low > 0;
    const struct with_matmul each = {.group_start = a->start, .addend = adapted ? m->s.drows : NULL};
    const struct low_rows rows = dt_low_rank_tokens(m, n_rows(m), a->start);
    if (dt_model_remakes(m)) DT_TRY(make_act(m, a));
    DT_TRY(gather(m, a, dy));
    if (adapted) DT_TRY(dt_low_rank_input_gradient(m, down, w, m->s.rows, m->C, m->s.drows, rows));
    DT_TRY(input_gradient(m, b, SLOT_EXPERT_DOWN, w, m->s.rows, m->C, m->s.drows, m->X, each));
    DT_TRY(m->ops->weigh_rows(m->dev, a->act, m->s.drows, a->assignment, a->weight, m->s.dweight, n_rows(m), m->X,
                              m->opt.dtype, m->stream));
    DT_TRY(bias_backward(m, down, w, g, a, m->s.rows, a->weight));
    DT_TRY(weight_gradient(m, b, SLOT_EXPERT_DOWN, g, a->act, m->X, m->s.rows, m->C, a->start));
    if (adapted) DT_TRY(dt_low_rank_weight_gradient(m, down, w, g, a->act, m->s.rows, m->C, rows, low));
    return m->ops->glu_backward(m->dev, m->mc->act, (float)m->mc->swiglu_limit, a->up, m->s.drows, a->up, m->opt.dtype,
                                n_rows(m), m->X, m->stream);
}

/* The gradients of up, and s.dnorm = its part of the gradient of x, plus addend (NULL: 0). */
static dt_err up_backward(const dt_model *m, const struct block *b, const dt_param_view *w, const dt_grad_view *g,
                          const struct expert_acts *a, const void *x, const void *addend, void *low)
{
    const struct linear *up = &b->linear[SLOT_EXPERT_UP];
    const struct with_matmul each = {.group_start = a->start, .addend = up->n_low > 0 ? m->s.rows : NULL};
    const struct low_rows rows = dt_low_rank_tokens(m, n_rows(m), a->start);
    DT_TRY(bias_backward(m, up, w, g, a, a->up, NULL));
    if (dt_linear_keeps_input(up)) DT_TRY(gather(m, a, x));
    DT_TRY(weight_gradient(m, b, SLOT_EXPERT_UP, g, m->s.rows, m->C, a->up, 2 * m->X, a->start));
    if (up->n_low > 0) DT_TRY(dt_low_rank_backward(m, up, w, g, m->s.rows, a->up, 2 * m->X, m->s.rows, rows, low));
    DT_TRY(input_gradient(m, b, SLOT_EXPERT_UP, w, a->up, 2 * m->X, m->s.rows, m->C, each));
    return m->ops->combine_rows(m->dev, m->s.rows, a->row, NULL, addend, m->s.dnorm, m->n_tok, m->k, m->C, m->opt.dtype,
                                m->stream);
}

/* s.dnorm += the gradient of x through the router. */
static dt_err router_backward(const dt_model *m, const struct block *b, const dt_param_view *w, const dt_grad_view *g,
                              const void *x, void *low)
{
    const struct linear *router = &b->linear[SLOT_ROUTER];
    const bool adapted = router->n_low > 0; /* its adapter replaces the addend */
    const struct with_matmul with = {.addend = adapted ? NULL : m->s.dnorm, .low = low};
    void *dx = adapted ? m->s.rows : m->s.dnorm;
    DT_TRY(dt_linear_backward(m, router, w, g, x, m->C, m->s.dlogits, m->E, dx, m->C, with, m->n_tok));
    if (!adapted) return DT_OK;
    return m->ops->add(m->dev, m->s.dnorm, dx, m->s.dnorm, m->opt.dtype, m->n_tok * m->C, m->stream);
}

static dt_err mix_backward(const dt_model *m, const struct block *b, int i, const dt_param_view *w,
                           const dt_grad_view *g, const struct block_acts *a, const void *dy)
{
    const struct expert_acts *k = &a->experts;
    const dt_routing r = route_of(m, b, w);
    const struct load_gradient d = dt_balance_gradient(m);
    if (shares(b)) DT_TRY(dt_mlp_mixer.backward(m, b, i, w, g, a, dy));
    DT_TRY(down_backward(m, b, w, g, k, dy, a->low[SLOT_EXPERT_DOWN]));
    DT_TRY(dt_mixer_remake_input(m, b, i, w, a));
    DT_TRY(up_backward(m, b, w, g, k, dt_mixer_input(b, i, a), shares(b) ? m->s.dnorm : NULL, a->low[SLOT_EXPERT_UP]));
    DT_TRY(m->ops->route_backward(m->dev, &r, k->prob, k->expert, m->s.dweight, d.prob, k->lse, d.square, m->s.dlogits,
                                  m->opt.dtype, m->stream));
    return router_backward(m, b, w, g, dt_mixer_input(b, i, a), a->low[SLOT_ROUTER]);
}

const struct mixer dt_experts_mixer = {.reads =
                                           1 << SLOT_UP | 1 << SLOT_MLP_GATE | 1 << SLOT_ROUTER | 1 << SLOT_EXPERT_UP,
                                       .last = SLOT_EXPERT_DOWN,
                                       .site = SITE_MLP,
                                       .forward = mix,
                                       .backward = mix_backward,
                                       .finish = finish,
                                       .skip = skip,
                                       .skip_backward = skip_backward};
