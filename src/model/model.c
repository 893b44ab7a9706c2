/* model.c - the layer loop. Units are taken in one order whatever the batch: under ZeRO-3 a rank with nothing to
 * compute must still take part in every gather and every reduction. */
#include "model_private.h"

/* Where block `layer` reads and writes. */
static struct block_acts acts_of(const dt_model *m, int64_t layer)
{
    const bool kept = m->train && layer >= m->first_kept;
    const int64_t i = layer - m->first_kept;
    struct block_acts a = m->sets[kept && !m->opt.checkpoint_blocks ? i : 0];
    if (kept) {
        a.x_in = m->x[i];
        a.x_out = m->x[i + 1];
    } else {
        a.x_in = a.x_mid = a.x_out = m->x[0];
    }
    return a;
}

dt_err dt_model_forward(dt_model *m, const dt_batch *b, bool train, int64_t step)
{
    const dt_param_source *src = m->source;
    DT_CHECK(!train || m->opt.training, DT_ERR_ARG, "the model was not opened for training");
    DT_TRY(dt_model_stage_batch(m, b, NULL));
    if (train) dt_model_cache_clear(m, -1); /* what backward needs takes its place */
    m->train = train;
    m->step = step;
    m->set_holds = -1;
    dt_phase_enter(m->phase, "forward", m->units[0].name);
    DT_TRY(dt_embed_forward(m, m->x[0]));
    for (int64_t layer = 0; layer < m->mc->num_hidden_layers; layer++) {
        const struct block_acts a = acts_of(m, layer);
        const int unit = (int)layer + 1;
        dt_param_view w;
        dt_phase_enter(m->phase, "forward", m->units[unit].name);
        DT_TRY(src->params_acquire(src->self, unit, &w));
        if (m->n_tok > 0) DT_TRY(dt_block_forward(m, &m->blocks[layer], &w, &a, true));
        DT_TRY(src->params_release(src->self, unit));
        m->set_holds = layer;
    }
    m->hidden = m->train ? m->x[m->n_x - 1] : m->x[0];
    m->have_hidden = true;
    return DT_OK;
}

static dt_err backward_unit(dt_model *m, int64_t layer)
{
    const dt_param_source *src = m->source;
    const int unit = (int)layer + 1;
    const struct block_acts a = acts_of(m, layer);
    const struct block *b = &m->blocks[layer];
    dt_param_view w;
    dt_grad_view g;
    dt_phase_enter(m->phase, "backward", m->units[unit].name);
    DT_TRY(src->params_acquire(src->self, unit, &w));
    DT_TRY(dt_grads_acquire(m, unit, &g));
    if (m->n_tok == 0) {
        DT_TRY(dt_model_clear_grads(m, unit, &g));
    } else {
        if (m->opt.checkpoint_blocks && m->set_holds != layer) DT_TRY(dt_block_forward(m, b, &w, &a, false));
        m->set_holds = -1; /* backward overwrites parts of it */
        DT_TRY(dt_block_backward(m, b, &w, &g, &a));
    }
    DT_TRY(dt_grads_release(m, unit));
    return src->params_release(src->self, unit);
}

dt_err dt_model_backward(dt_model *m, const dt_batch *b)
{
    DT_CHECK(m->have_dx && dt_model_in_use(m) && b->n_tok == m->n_tok, DT_ERR_ARG,
             "backward needs the head of its own batch first");
    m->have_dx = m->have_hidden = false;
    for (int64_t layer = m->mc->num_hidden_layers - 1; layer >= 0 && (int)layer + 1 >= m->first_trained; layer--)
        DT_TRY(backward_unit(m, layer));
    if (m->first_trained > 0) return DT_OK;
    dt_phase_enter(m->phase, "backward", m->units[0].name);
    return dt_embed_backward(m);
}
