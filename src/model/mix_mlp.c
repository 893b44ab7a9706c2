/* mix_mlp.c - a dense MLP as the mixer of a branch: act(x Wup + bup), or the gated form act(x Wgate) * (x Wup). */
#include "mixer.h"

/* act from up. */
static dt_err make_act(const dt_model *m, const struct block_acts *a)
{
    if (!m->mc->gated_mlp)
        return m->ops->act_forward(m->dev, m->mc->act, a->up, a->act, m->opt.dtype, m->n_tok * m->F, m->stream);
    return m->ops->glu_forward(m->dev, m->mc->act, a->up, a->act, m->opt.dtype, m->n_tok, m->F, m->stream);
}

/* Stores the activation's input if backward needs it. Adapters add to that input. */
dt_err dt_mlp_mix(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a,
                  const void *x, void *cache, const void **inner)
{
    const struct linear *up = &b->linear[SLOT_UP];
    const bool again = dt_model_remakes(m) || m->opt.reproducible;
    const struct with_matmul act = {.epilogue = DT_EPILOGUE_ACT, .act_in = a->up, .act_of_aux = again},
                             alone = {.low = a->low[SLOT_UP]};
    *inner = a->act;
    if (!m->mc->gated_mlp && up->n_low == 0) return dt_linear_forward(m, up, w, x, m->C, a->act, m->F, m->n_tok, act);
    DT_TRY(dt_linear_forward(m, up, w, x, m->C, a->up, m->U, m->n_tok, alone));
    return make_act(m, a);
}

dt_err dt_mlp_mix_backward(const dt_model *m, const struct block *b, int i, const dt_param_view *w,
                           const dt_grad_view *g, const struct block_acts *a, const void *dy)
{
    const dt_model_config *mc = m->mc;
    const struct linear *up = &b->linear[SLOT_UP], *down = &b->linear[SLOT_DOWN];
    const int64_t T = m->n_tok;
    void *dup = mc->gated_mlp ? a->up : m->s.dact; /* the gated form overwrites its input with its gradient */
    struct with_matmul slope = {.low = a->low[SLOT_DOWN]}, alone = {.low = a->low[SLOT_UP]};
    if (!mc->gated_mlp) slope.epilogue = DT_EPILOGUE_ACT_BACKWARD, slope.act_in = a->up;
    if (dt_model_remakes(m) && dt_linear_keeps_input(down)) DT_TRY(make_act(m, a));
    DT_TRY(dt_linear_backward(m, down, w, g, a->act, m->F, dy, m->C, m->s.dact, m->F, slope, T));
    if (mc->gated_mlp)
        DT_TRY(m->ops->glu_backward(m->dev, mc->act, a->up, m->s.dact, dup, m->opt.dtype, T, m->F, m->stream));
    DT_TRY(dt_mixer_remake_input(m, b, i, w, a));
    return dt_linear_backward(m, up, w, g, dt_mixer_input(b, i, a), m->C, dup, m->U, m->s.dnorm, m->C, alone, T);
}
