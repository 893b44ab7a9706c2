/* model.c - the layer loop. The order of units does not depend on the batch: under ZeRO-3 a rank with nothing to
 * compute must still enter every gather and every reduction. */
#include "vision/vision_private.h"

/* The buffers that stage i reads and writes. */
static struct block_acts acts_of(const dt_model *m, int64_t i)
{
    const bool kept = m->train && i >= m->first_kept;
    struct block_acts a = m->sets[kept && m->opt.recompute != DT_RECOMPUTE_BLOCK ? m->stages[i].set : 0];
    if (kept) {
        a.x_in = m->x[i - m->first_kept];
        a.x_out = m->x[i - m->first_kept + 1];
    } else {
        a.x_in = a.x_mid = a.x_out = m->x[0];
    }
    return a;
}

static dt_err stage_forward(const dt_model *m, const struct stage *s, const dt_param_view *w,
                            const struct block_acts *a, bool cached)
{
    if (s->role != DT_UNIT_NORM)
        return dt_block_forward(m, &s->block, w, a, cached ? m->cache[s->block.layer] : NULL, true);
    return dt_norm_forward(m, &s->norm, w, a->x_in, a->x_out, m->stage_norm, m->n_tok);
}

/* The same for a rank without tokens. */
static dt_err stage_skip(const dt_model *m, const struct stage *s, bool want_output)
{
    return s->role == DT_UNIT_NORM ? DT_OK : dt_block_skip(m, &s->block, want_output);
}

/* Runs before grads_acquire, for which the device may have to wait. */
static dt_err stage_recompute(const dt_model *m, int64_t i, const dt_param_view *w)
{
    const struct stage *s = &m->stages[i];
    if (m->opt.recompute != DT_RECOMPUTE_BLOCK || s->role == DT_UNIT_NORM || m->set_holds == i) return DT_OK;
    if (m->n_tok == 0) return stage_skip(m, s, false);
    const struct block_acts a = acts_of(m, i);
    return dt_block_forward(m, &s->block, w, &a, NULL, false);
}

static dt_err stage_backward(dt_model *m, int64_t i, const dt_param_view *w, const dt_grad_view *g)
{
    const struct stage *s = &m->stages[i];
    const struct block_acts a = acts_of(m, i);
    if (s->role == DT_UNIT_NORM)
        return dt_norm_backward(m, &s->norm, w, g, a.x_in, m->stage_norm, m->s.dx, m->s.dx, false, m->n_tok);
    m->set_holds = -1; /* backward overwrites parts of it */
    return dt_block_backward(m, &s->block, w, g, &a);
}

static dt_err stage_skip_backward(dt_model *m, int64_t i, const dt_grad_view *g)
{
    m->set_holds = -1;
    DT_TRY(dt_model_clear_grads(m, m->stages[i].unit, g));
    return m->stages[i].role == DT_UNIT_NORM ? DT_OK : dt_block_skip_backward(m, &m->stages[i].block);
}

static dt_err keep_hidden(dt_model *m)
{
    if (!m->kept_hidden) return DT_OK;
    const void *from = m->hidden;
    m->hidden = m->kept_hidden;
    return m->n_tok > 0 ? m->ops->copy(m->dev, m->hidden, from, (size_t)(m->n_tok * m->C) * m->elem, m->stream) : DT_OK;
}

dt_err dt_layers_run(dt_model *m, const char *phase, bool cached)
{
    dt_phase_enter(m->phase, phase, m->units[m->embed_unit].name);
    DT_TRY(dt_embed_forward(m, m->x[0]));
    for (int64_t i = 0; i < m->n_stages; i++) {
        const struct stage *s = &m->stages[i];
        const struct block_acts a = acts_of(m, i);
        dt_param_view w;
        dt_phase_enter(m->phase, phase, m->units[s->unit].name);
        DT_TRY(dt_params_acquire(m, s->unit, &w));
        DT_TRY(m->n_tok > 0 ? stage_forward(m, s, &w, &a, cached) : stage_skip(m, s, true));
        DT_TRY(dt_params_release(m, s->unit));
        if (m->owner) DT_TRY(dt_tower_after_block(m, s, a.x_out));
        if (m->vision) DT_TRY(dt_vision_after_block(m, s, a.x_out));
        if (s->role != DT_UNIT_NORM) m->set_holds = i;
    }
    return DT_OK;
}

dt_err dt_layers_forward(dt_model *m, const dt_batch *b, bool train, int64_t step)
{
    DT_TRY(dt_model_stage_batch(m, b, NULL));
    if (train) dt_model_cache_clear(m, -1); /* activations for backward overwrite the cache */
    m->train = train;
    m->step = step;
    m->set_holds = -1;
    DT_TRY(dt_balance_begin(m));
    DT_TRY(dt_vision_forward(m, b));
    DT_TRY(dt_layers_run(m, "forward", false));
    m->load = NULL; /* recomputation counts nothing */
    m->hidden = m->train ? m->x[m->n_x - 1] : m->x[0];
    m->have_hidden = true;
    return keep_hidden(m);
}

static dt_err backward_unit(dt_model *m, int64_t i)
{
    const int unit = m->stages[i].unit;
    dt_param_view w;
    dt_grad_view g;
    dt_phase_enter(m->phase, "backward", m->units[unit].name);
    if (m->owner) DT_TRY(dt_tower_before_backward(m, &m->stages[i]));
    if (m->vision) DT_TRY(dt_vision_before_backward(m, &m->stages[i]));
    DT_TRY(dt_params_acquire(m, unit, &w));
    DT_TRY(stage_recompute(m, i, &w));
    DT_TRY(dt_grads_acquire(m, unit, &g));
    DT_TRY(m->n_tok == 0 ? stage_skip_backward(m, i, &g) : stage_backward(m, i, &w, &g));
    DT_TRY(dt_grads_release(m, unit));
    return dt_params_release(m, unit);
}

dt_err dt_layers_backward(dt_model *m)
{
    m->have_dx = m->have_hidden = false;
    for (int64_t i = m->n_stages - 1; i >= 0 && i >= m->first_trained; i--) DT_TRY(backward_unit(m, i));
    if (m->first_trained >= 0) return DT_OK;
    dt_phase_enter(m->phase, "backward", m->units[m->embed_unit].name);
    DT_TRY(dt_embed_backward(m));
    return dt_vision_backward(m);
}
