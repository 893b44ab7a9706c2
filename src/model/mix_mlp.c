/* mix_mlp.c - an MLP as the mixer of a branch, or as the shared expert of a mixture: act(x Wup + bup), or the gated
 * form act(x Wgate) * (x Wup). A shared expert may have a gate of its own: the rows are multiplied by sigmoid(x wt)
 * before the last layer, which has no bias. */
#include "mixer.h"

static bool has_row_gate(const struct block *b) { return dt_exists(b->linear[SLOT_MLP_GATE].w); }

/* act from up, without the gate of the rows. */
static dt_err make_plain(const dt_model *m, const struct block *b, const struct block_acts *a)
{
    const int64_t F = b->linear[SLOT_DOWN].n_in;
    if (!m->mc->gated_mlp)
        return m->ops->act_forward(m->dev, m->mc->act, a->up, a->act, m->opt.dtype, m->n_tok * F, m->stream);
    return m->ops->glu_forward(m->dev, m->mc->act, 0, a->up, a->act, m->opt.dtype, m->n_tok, F, m->stream);
}

static dt_err make_act(const dt_model *m, const struct block *b, const struct block_acts *a)
{
    DT_TRY(make_plain(m, b, a));
    if (!has_row_gate(b)) return DT_OK;
    return m->ops->row_gate_forward(m->dev, a->row_gate, a->act, m->n_tok, b->linear[SLOT_DOWN].n_in, m->opt.dtype,
                                    m->stream);
}

/* Stores the activation's input if backward needs it. Adapters add to that input. */
static dt_err mix(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a,
                  const void *x, void *cache, const void **inner)
{
    const struct linear *up = &b->linear[SLOT_UP];
    const bool again = dt_model_remakes(m) || m->opt.reproducible;
    const struct with_matmul act = {.epilogue = DT_EPILOGUE_ACT, .act_in = a->up, .act_of_aux = again};
    *inner = a->act;
    if (!m->mc->gated_mlp && up->n_low == 0 && !has_row_gate(b))
        return dt_linear_forward(m, up, w, x, m->C, a->act, up->n_out, m->n_tok, act);
    DT_TRY(dt_slot_forward(m, b, SLOT_UP, w, a, x, a->up));
    if (has_row_gate(b)) DT_TRY(dt_slot_forward(m, b, SLOT_MLP_GATE, w, a, x, a->row_gate));
    return make_act(m, b, a);
}

/* The gradient of act before the gate of its rows, in place, and of that gate. */
static dt_err row_gate_backward(const dt_model *m, const struct block *b, const struct block_acts *a)
{
    if (!has_row_gate(b)) return DT_OK;
    DT_TRY(make_plain(m, b, a));
    return m->ops->row_gate_backward(m->dev, a->row_gate, a->act, m->s.dact, m->s.dgate, m->n_tok,
                                     b->linear[SLOT_DOWN].n_in, m->opt.dtype, m->stream);
}

/* s.dnorm += the gradient of x through the gate of the rows. s.rows is free: only mixtures have such a gate. */
static dt_err add_row_gate(const dt_model *m, const struct block *b, const dt_param_view *w, const dt_grad_view *g,
                           const struct block_acts *a, const void *x)
{
    if (!has_row_gate(b)) return DT_OK;
    DT_TRY(dt_slot_backward(m, b, SLOT_MLP_GATE, w, g, a, x, m->s.dgate, m->s.rows));
    return m->ops->add(m->dev, m->s.dnorm, m->s.rows, m->s.dnorm, m->opt.dtype, m->n_tok * m->C, m->stream);
}

static dt_err mix_backward(const dt_model *m, const struct block *b, int i, const dt_param_view *w,
                           const dt_grad_view *g, const struct block_acts *a, const void *dy)
{
    const dt_model_config *mc = m->mc;
    const struct linear *down = &b->linear[SLOT_DOWN];
    const int64_t T = m->n_tok, F = down->n_in;
    void *dup = mc->gated_mlp ? a->up : m->s.dact; /* the gated form overwrites its input with its gradient */
    struct with_matmul slope = {.low = a->low[SLOT_DOWN]};
    if (!mc->gated_mlp) slope.epilogue = DT_EPILOGUE_ACT_BACKWARD, slope.act_in = a->up;
    if (dt_model_remakes(m) && dt_linear_keeps_input(down)) DT_TRY(make_act(m, b, a));
    DT_TRY(dt_linear_backward(m, down, w, g, a->act, F, dy, m->C, m->s.dact, F, slope, T));
    DT_TRY(row_gate_backward(m, b, a));
    if (mc->gated_mlp)
        DT_TRY(m->ops->glu_backward(m->dev, mc->act, 0, a->up, m->s.dact, dup, m->opt.dtype, T, F, m->stream));
    DT_TRY(dt_mixer_remake_input(m, b, i, w, a));
    const void *x = dt_mixer_input(b, i, a);
    DT_TRY(dt_slot_backward(m, b, SLOT_UP, w, g, a, x, dup, m->s.dnorm));
    return add_row_gate(m, b, w, g, a, x);
}

const struct mixer dt_mlp_mixer = {.reads = 1 << SLOT_UP | 1 << SLOT_MLP_GATE,
                                   .last = SLOT_DOWN,
                                   .site = SITE_MLP,
                                   .forward = mix,
                                   .backward = mix_backward};
