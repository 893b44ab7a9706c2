/* embed.c - forward and backward of the first unit, and gradient, dropout and noise helpers that all units share.
 *
 * The table's gradient is sparse but its buffer is dense. Rows of tokens that do not occur must be zero, so the first
 * write clears the buffer. A tied table may hold the head's gradient in fp32 (head.c). The embedding's gradient is then
 * added there, and the sum is rounded once. */
#include "vision/vision_private.h"

static uint64_t key_of(const dt_model *m, dt_rng_purpose purpose, uint64_t where)
{
    return dt_mix64(dt_mix64(dt_rng_key(m->opt.seed, purpose) ^ (uint64_t)m->step) + where);
}

uint64_t dt_dropout_key(const dt_model *m, int64_t layer, enum dropout_site site)
{
    return key_of(m, DT_RNG_DROPOUT, (uint64_t)layer * N_SITES + (uint64_t)site);
}

uint64_t dt_adapter_dropout_key(const dt_model *m, int64_t layer, enum slot site)
{
    enum { FIRST = SLOT_DOWN + 1 }; /* the first slots of a layer, then the others: keys are distinct */
    const uint64_t others = (uint64_t)(site / FIRST) << 32;
    return key_of(m, DT_RNG_LORA_DROPOUT, (uint64_t)layer * FIRST + (uint64_t)(site % FIRST) + others);
}

dt_err dt_model_clear_grads(const dt_model *m, int unit, const dt_grad_view *g)
{
    const int64_t len = m->units[unit].flat_len[DT_TRAINED];
    if (g->accumulate || len == 0) return DT_OK;
    return m->ops->zero(m->dev, g->data, (size_t)len * dt_dtype_size(g->dtype), m->stream);
}

/* zero has already checked the types of codes. */
static bool fits(const dt_model *m, int part, dt_dtype dtype)
{
    const bool is_float = part == DT_SCALES || part == DT_EXACT;
    return part == DT_CODES || part == DT_BLOCKS || dtype == (is_float ? DT_F32 : m->opt.dtype);
}

dt_err dt_params_acquire(const dt_model *m, int unit, dt_param_view *w)
{
    DT_TRY(m->source->params_acquire(m->source->self, m->opt.first_unit + unit, w));
    for (int p = 0; p < DT_N_PARTS; p++) DT_EXPECT(!w->part[p].data || fits(m, p, w->part[p].dtype));
    return DT_OK;
}

dt_err dt_params_release(const dt_model *m, int unit)
{
    return m->source->params_release(m->source->self, m->opt.first_unit + unit);
}

dt_err dt_grads_acquire(const dt_model *m, int unit, dt_grad_view *g)
{
    *g = (dt_grad_view){0};
    if (m->units[unit].flat_len[DT_TRAINED] == 0) return DT_OK;
    DT_TRY(m->source->grads_acquire(m->source->self, m->opt.first_unit + unit, g));
    DT_EXPECT(g->dtype == m->opt.grad_dtype);
    return DT_OK;
}

dt_err dt_grads_release(const dt_model *m, int unit)
{
    if (m->units[unit].flat_len[DT_TRAINED] == 0) return DT_OK;
    return m->source->grads_release(m->source->self, m->opt.first_unit + unit);
}

static dt_err embed_dropout(const dt_model *m, void *x)
{
    const float p = m->train ? (float)m->mc->embd_pdrop : 0;
    if (p == 0) return DT_OK;
    return m->ops->dropout(m->dev, x, NULL, x, p, dt_dropout_key(m, 0, SITE_EMBED), m->device.token_key, m->n_tok, m->C,
                           m->opt.dtype, m->stream);
}

/* The noise is a constant, so backward ignores it. */
static dt_err add_noise(const dt_model *m, void *x)
{
    if (!m->train || m->opt.neftune_alpha <= 0) return DT_OK;
    return m->ops->add_noise(m->dev, x, m->device.noise, key_of(m, DT_RNG_NEFTUNE, 0), m->device.token_key, m->n_tok,
                             m->C, m->opt.dtype, m->stream);
}

/* Forward and backward alike. */
static dt_err scale(const dt_model *m, void *x)
{
    float factor = (float)m->mc->embedding_multiplier;
    if (m->mc->embedding_multiplier_rounded) {
        dt_set_element(&factor, m->opt.dtype, 0, factor);
        factor = dt_element(&factor, m->opt.dtype, 0);
    }
    return factor == 1 ? DT_OK : m->ops->scale(m->dev, x, factor, x, m->opt.dtype, m->n_tok * m->C, m->stream);
}

dt_err dt_embed_forward(dt_model *m, void *x)
{
    dt_param_view w;
    DT_TRY(dt_params_acquire(m, m->embed_unit, &w));
    if (m->n_tok > 0) {
        void *table_rows = m->opt.tower ? dt_patches_input(m, x) : x;
        if (m->grids)
            DT_TRY(dt_patches_positions(m, &w, table_rows));
        else
            DT_TRY(m->ops->embedding_forward(m->dev, m->device.token, m->device.pos, dt_weight(&w, m->wte),
                                             dt_weight(&w, m->wpe), table_rows, m->n_tok, m->C, m->opt.dtype,
                                             m->stream));
        if (m->opt.tower) DT_TRY(dt_patches_forward(m, &w, x));
        for (int t = 0; t < N_LOW_TABLES; t++) DT_TRY(dt_low_table_forward(m, (enum low_of)t, &w, x));
        DT_TRY(scale(m, x));
        DT_TRY(add_noise(m, x));
        if (m->vision) DT_TRY(dt_placeholders_scatter(m, x)); /* rows of images have neither factor nor noise */
        DT_TRY(embed_dropout(m, x));
    }
    return dt_params_release(m, m->embed_unit);
}

/* Clear what this micro-step has not written yet: the whole unit, or, if tied, everything but the token table, which
 * the head's gradient fills. */
static dt_err clear_tables(const dt_model *m, const dt_grad_view *g)
{
    const dt_unit *u = &m->units[m->embed_unit];
    const size_t size = dt_dtype_size(g->dtype);
    if (!dt_has_tied_grads(m)) return dt_model_clear_grads(m, m->embed_unit, g);
    for (int i = 0; i < u->n_tensors && !g->accumulate; i++) {
        const dt_tensor *t = &u->tensors[i];
        if (t->part != DT_TRAINED || t->offset == m->wte.offset) continue;
        DT_TRY(m->ops->zero(m->dev, dt_at(g->data, t->offset, size), (size_t)t->n_elems * size, m->stream));
    }
    return DT_OK;
}

static dt_err token_table_backward(const dt_model *m, const dt_grad_view *g)
{
    float *sum = dt_has_tied_grads(m) ? m->h.sums.tied : NULL;
    void *grad = dt_gradient(g, m->wte);
    if (m->n_learned > 0 && grad)
        DT_TRY(m->ops->embedding_backward(m->dev, m->s.dx, m->device.token, m->device.order, sum ? sum : grad,
                                          m->n_learned, m->C, m->opt.dtype, sum ? DT_F32 : g->dtype, m->stream));
    return sum ? m->ops->add_into(m->dev, sum, DT_F32, grad, g->dtype, g->accumulate, m->V * m->C, m->stream) : DT_OK;
}

dt_err dt_embed_backward(dt_model *m)
{
    dt_grad_view g = m->tied_grads;
    dt_param_view w;
    if (m->opt.tower) DT_TRY(dt_params_acquire(m, m->embed_unit, &w)); /* its unit contains more than tables */
    if (!dt_has_tied_grads(m)) DT_TRY(dt_grads_acquire(m, m->embed_unit, &g));
    DT_TRY(clear_tables(m, &g));
    if (m->n_tok > 0) DT_TRY(embed_dropout(m, m->s.dx));
    if (m->n_tok > 0 && m->vision) DT_TRY(dt_placeholders_gather(m));
    if (m->n_tok > 0) DT_TRY(scale(m, m->s.dx));
    if (m->n_tok > 0 && m->opt.tower) DT_TRY(dt_patches_backward(m, &w, &g));
    if (m->grids)
        DT_TRY(m->n_tok > 0 ? dt_patches_positions_backward(m, &g) : DT_OK);
    else
        DT_TRY(token_table_backward(m, &g));
    if (m->n_tok > 0 && dt_is_trained(m->wpe))
        DT_TRY(m->ops->embedding_backward(m->dev, m->s.dx, m->device.pos, m->device.pos_order, dt_gradient(&g, m->wpe),
                                          m->n_tok, m->C, m->opt.dtype, g.dtype, m->stream));
    for (int t = 0; m->n_tok > 0 && t < N_LOW_TABLES; t++) DT_TRY(dt_low_table_backward(m, (enum low_of)t, &g));
    DT_TRY(dt_grads_release(m, m->embed_unit));
    return m->opt.tower ? dt_params_release(m, m->embed_unit) : DT_OK;
}
