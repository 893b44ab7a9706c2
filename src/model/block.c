/* block.c - forward and backward of one transformer block, from the family's list of steps. A block is two branches,
 * attention and MLP or experts, each with a residual:
 *
 *     y = x + dropout(s post(mixer(pre(x))))
 *
 * A family has one or both of the norms pre and post, and a scale s, usually 1. Without post, s and dropout the mixer's
 * last matmul itself adds the residual, otherwise a kernel after it does. This saves passes over memory, and in bf16
 * one rounding. If nothing is kept for backward, all x and y are one buffer.
 *
 * In backward s.dx always holds the gradient of the residual stream. A branch adds its gradient to it, in the backward
 * of pre, so it is never copied. Selective recomputation recomputes each cheap activation immediately before it is
 * read. Only the gradients of the following matrices and their adapters read norms and activations, so frozen matrices
 * need none. */
#include "divide.h"
#include "mixer.h"

static const struct mixer *const MIXERS[] = {[STEP_ATTENTION] = &dt_attention_mixer,
                                             [STEP_MLP] = &dt_mlp_mixer,
                                             [STEP_DELTA] = &dt_delta_mixer,
                                             [STEP_LATENT] = &dt_latent_mixer,
                                             [STEP_EXPERTS] = &dt_experts_mixer};

static const struct mixer *mixer_of(const struct block *b, int i) { return MIXERS[b->branch[i].mixer]; }

static const void *input_of(const struct block_acts *a, int i) { return i == 0 ? a->x_in : a->x_mid; }

static bool has_post(const struct block *b, int i) { return dt_exists(b->branch[i].post.w); }

static uint64_t dropout_key(const dt_model *m, const struct block *b, int i)
{
    return dt_dropout_key(m, b->layer, mixer_of(b, i)->site);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static dt_err pre_norm(const dt_model *m, const struct block *b, int i, const dt_param_view *w,
                       const struct block_acts *a)
{
    const struct branch_acts *k = &a->branch[i];
    if (!dt_exists(b->branch[i].pre.w)) return DT_OK;
    return dt_norm_forward(m, &b->branch[i].pre, w, input_of(a, i), k->norm, k->pre, m->n_tok);
}

dt_err dt_slot_forward(const dt_model *m, const struct block *b, enum slot slot, const dt_param_view *w,
                       const struct block_acts *a, const void *x, void *y)
{
    const struct linear *l = &b->linear[slot];
    return dt_linear_forward(m, l, w, x, l->n_in, y, l->n_out, m->n_tok, (struct with_matmul){.low = a->low[slot]});
}

dt_err dt_slot_backward(const dt_model *m, const struct block *b, enum slot slot, const dt_param_view *w,
                        const dt_grad_view *g, const struct block_acts *a, const void *x, const void *dy, void *dx)
{
    const struct linear *l = &b->linear[slot];
    return dt_linear_backward(m, l, w, g, x, l->n_in, dy, l->n_out, dx, l->n_in,
                              (struct with_matmul){.low = a->low[slot]}, m->n_tok);
}

const void *dt_mixer_input(const struct block *b, int i, const struct block_acts *a)
{
    return dt_exists(b->branch[i].pre.w) ? a->branch[i].norm : input_of(a, i);
}

dt_err dt_mixer_remake_input(const dt_model *m, const struct block *b, int i, const dt_param_view *w,
                             const struct block_acts *a)
{
    bool read = false;
    for (int s = 0; s < N_LINEARS; s++)
        read = read || (mixer_of(b, i)->reads & 1U << s && dt_linear_keeps_input(&b->linear[s]));
    return dt_model_remakes(m) && read ? pre_norm(m, b, i, w, a) : DT_OK;
}

/* y = x + dropout(s post(in W + b)); want_output false: only what backward needs. */
static dt_err add_branch(const dt_model *m, const struct block *b, int i, const dt_param_view *w,
                         const struct block_acts *a, const void *in, bool want_output)
{
    const enum slot last = mixer_of(b, i)->last;
    const struct linear *l = &b->linear[last];
    const struct branch_acts *k = &a->branch[i];
    const float p = m->train ? (float)m->mc->resid_pdrop : 0, scale = (float)m->mc->residual_multiplier;
    const bool post = has_post(b, i), fused = !post && p == 0 && scale == 1 && !dt_is_divided(m) && !m->has_magnitudes;
    const void *x = input_of(a, i);
    void *y = i == 0 ? a->x_mid : a->x_out, *z = post && m->opt.training ? k->out : m->s.drop;
    const struct with_matmul with = {.addend = fused ? x : NULL, .low = a->low[last]};
    const bool alone = !post && !want_output;
    if (mixer_of(b, i)->finish) {
        DT_TRY(mixer_of(b, i)->finish(m, b, w, a, with.addend, alone ? NULL : fused ? y : z));
        if (alone) return DT_OK;
    } else if (alone) {
        return dt_low_rank_project(m, l, w, in, dt_low_rank_tokens(m, m->n_tok, NULL), with.low);
    } else {
        DT_TRY(dt_linear_forward(m, l, w, in, l->n_in, fused ? y : z, m->C, m->n_tok, with));
    }
    if (fused) return DT_OK;
    DT_TRY(dt_divide_join(m, z));
    if (post) DT_TRY(dt_norm_forward(m, &b->branch[i].post, w, z, m->s.drop, k->post, m->n_tok));
    if (!want_output) return DT_OK;
    if (scale != 1)
        DT_TRY(m->ops->scale(m->dev, m->s.drop, scale, m->s.drop, m->opt.dtype, m->n_tok * m->C, m->stream));
    if (p == 0) return m->ops->add(m->dev, m->s.drop, x, y, m->opt.dtype, m->n_tok * m->C, m->stream);
    return m->ops->dropout(m->dev, m->s.drop, x, y, p, dropout_key(m, b, i), m->device.token_key, m->n_tok, m->C,
                           m->opt.dtype, m->stream);
}

dt_err dt_block_forward(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a,
                        void *cache, bool want_output)
{
    for (int i = 0; i < N_BRANCHES; i++) {
        const void *inner;
        DT_TRY(pre_norm(m, b, i, w, a));
        DT_TRY(mixer_of(b, i)->forward(m, b, w, a, dt_mixer_input(b, i, a), cache, &inner));
        DT_TRY(add_branch(m, b, i, w, a, inner, want_output || i + 1 < N_BRANCHES));
    }
    return DT_OK;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The gradient of the mixer's output: dx itself, or dx with dropout, scale and the norm's backward applied. */
static dt_err enter_branch(const dt_model *m, const struct block *b, int i, const dt_param_view *w,
                           const dt_grad_view *g, const struct block_acts *a, const void **dy)
{
    const struct branch_acts *k = &a->branch[i];
    const float p = (float)m->mc->resid_pdrop, scale = (float)m->mc->residual_multiplier;
    *dy = m->s.dx;
    if (p > 0) {
        DT_TRY(m->ops->dropout(m->dev, *dy, NULL, m->s.drop, p, dropout_key(m, b, i), m->device.token_key, m->n_tok,
                               m->C, m->opt.dtype, m->stream));
        *dy = m->s.drop;
    }
    if (scale != 1) {
        DT_TRY(m->ops->scale(m->dev, *dy, scale, m->s.drop, m->opt.dtype, m->n_tok * m->C, m->stream));
        *dy = m->s.drop;
    }
    if (!has_post(b, i)) return DT_OK;
    DT_TRY(dt_norm_backward(m, &b->branch[i].post, w, g, k->out, k->post, *dy, m->s.drop, false, m->n_tok));
    *dy = m->s.drop;
    return DT_OK;
}

/* s.dx += the gradient of the mixer's input in s.dnorm, or what pre's backward makes of it. */
static dt_err leave_branch(const dt_model *m, const struct block *b, int i, const dt_param_view *w,
                           const dt_grad_view *g, const struct block_acts *a)
{
    const struct branch *of = &b->branch[i];
    const struct branch_acts *k = &a->branch[i];
    DT_TRY(dt_divide_join(m, m->s.dnorm));
    if (!dt_exists(of->pre.w))
        return m->ops->add(m->dev, m->s.dx, m->s.dnorm, m->s.dx, m->opt.dtype, m->n_tok * m->C, m->stream);
    return dt_norm_backward(m, &of->pre, w, g, input_of(a, i), k->pre, m->s.dnorm, m->s.dx, true, m->n_tok);
}

dt_err dt_block_backward(const dt_model *m, const struct block *b, const dt_param_view *w, const dt_grad_view *g,
                         const struct block_acts *a)
{
    for (int i = N_BRANCHES - 1; i >= 0; i--) {
        const void *dy;
        DT_TRY(enter_branch(m, b, i, w, g, a, &dy));
        DT_TRY(mixer_of(b, i)->backward(m, b, i, w, g, a, dy));
        DT_TRY(leave_branch(m, b, i, w, g, a));
    }
    return DT_OK;
}

/* ---- a rank without tokens --------------------------------------------------------------------------------------- */

dt_err dt_block_skip(const dt_model *m, const struct block *b, bool want_output)
{
    for (int i = 0; i < N_BRANCHES; i++)
        if (mixer_of(b, i)->skip) DT_TRY(mixer_of(b, i)->skip(m, b, want_output || i + 1 < N_BRANCHES));
    return DT_OK;
}

dt_err dt_block_skip_backward(const dt_model *m, const struct block *b)
{
    for (int i = N_BRANCHES - 1; i >= 0; i--)
        if (mixer_of(b, i)->skip_backward) DT_TRY(mixer_of(b, i)->skip_backward(m, b));
    return DT_OK;
}
