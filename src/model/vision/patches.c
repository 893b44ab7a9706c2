/* patches.c - input stage of a vision tower, in addition to its position table: a matmul over the patches of each
 * image, a class token before them, and a norm. CLIP has class token and norm, SigLIP neither.
 *
 *     x = norm(patches Wt + b + positions),   in the class token's row norm(class + its position)
 *
 * The rows of class tokens are zero in the patch matrix, so they do not contribute to the gradient of its weights. */
#include "../model_private.h"
#include <string.h>

void *dt_patches_input(const dt_model *m, void *x) { return dt_exists(m->patches.pre.w) ? m->patches.x : x; }

static dt_err class_forward(const dt_model *m, const dt_param_view *w, void *x)
{
    const struct tower_input *k = &m->patches;
    if (!dt_exists(k->token)) return DT_OK;
    DT_TRY(m->ops->embedding_forward(m->dev, k->zero, k->zero, dt_weight(w, k->token), dt_weight(w, m->wte),
                                     k->class_row, m->n_seq, m->C, m->opt.dtype, m->stream));
    return m->ops->scatter_rows(m->dev, k->class_row, k->class_at, x, m->n_seq, m->C, m->opt.dtype, m->stream);
}

dt_err dt_patches_positions(const dt_model *m, const dt_param_view *w, void *out)
{
    const struct grid_arrays *a = &m->patches.device_arrays;
    if (m->patches.config->table_side == 0) return DT_OK;
    return m->ops->combine_rows(m->dev, dt_weight(w, m->wte), a->tap, a->weight, NULL, out, m->n_tok, N_TAPS, m->C,
                                m->opt.dtype, m->stream);
}

/* The gradient of the table, neighbour by neighbour, so that the weighted rows need no more memory than x. */
dt_err dt_patches_positions_backward(const dt_model *m, const dt_grad_view *g)
{
    const struct grid_arrays *a = &m->patches.device_arrays;
    for (int k = 0; k < N_TAPS && dt_is_trained(m->wte); k++) {
        DT_TRY(m->ops->combine_rows(m->dev, m->s.dx, a->in_order, a->weight_of[k], NULL, m->s.dnorm, m->n_tok, 1, m->C,
                                    m->opt.dtype, m->stream));
        DT_TRY(m->ops->embedding_backward(m->dev, m->s.dnorm, a->tap_of[k], a->order[k], dt_gradient(g, m->wte),
                                          m->n_tok, m->C, m->opt.dtype, g->dtype, m->stream));
    }
    return DT_OK;
}

/* The patches as rows of the matmul. As an image has no time, the patch of each time is the same. */
static dt_err fill_rows(const dt_model *m, const dt_patches *p, const void **rows)
{
    const struct tower_input *k = &m->patches;
    const int64_t n = k->config->grids ? k->config->n_frames : 1, P = p->patch * p->patch;
    const dt_blocks each = {m->n_tok, 3, P, 3 * P, P, 3 * n * P, n * P, m->opt.dtype};
    *rows = n > 1 ? k->frames : k->rows;
    DT_TRY(m->ops->patches(m->dev, p, (const uint8_t *)k->pixels.device, k->rows, m->stream));
    for (int64_t f = 0; n > 1 && f < n; f++)
        DT_TRY(m->ops->copy_blocks(m->dev, &each, k->rows, dt_at(k->frames, f * P, m->elem), m->stream));
    return DT_OK;
}

dt_err dt_patches_forward(const dt_model *m, const dt_param_view *w, void *x)
{
    const struct tower_input *k = &m->patches;
    const dt_vision_config *v = k->config;
    const void *rows;
    dt_patches p = {.n_images = m->n_tok / k->n_rows,
                    .size = v->image_size,
                    .patch = v->patch_size,
                    .lead = dt_exists(k->token),
                    .dt = m->opt.dtype};
    void *in = dt_patches_input(m, x);
    memcpy(p.scale, v->scale, sizeof p.scale);
    memcpy(p.shift, v->shift, sizeof p.shift);
    DT_TRY(fill_rows(m, &p, &rows));
    DT_TRY(dt_linear_forward(m, &k->conv, w, rows, k->conv.n_in, in, m->C, m->n_tok,
                             (struct with_matmul){.addend = dt_exists(m->wte) ? in : NULL}));
    DT_TRY(class_forward(m, w, in));
    return in == x ? DT_OK : dt_norm_forward(m, &k->pre, w, in, x, k->stats, m->n_tok);
}

static dt_err class_backward(const dt_model *m, const dt_grad_view *g)
{
    const struct tower_input *k = &m->patches;
    if (!dt_is_trained(k->token)) return DT_OK;
    DT_TRY(m->ops->gather_rows(m->dev, m->s.dx, k->class_at, k->class_row, m->n_seq, m->C, m->opt.dtype, m->stream));
    return m->ops->embedding_backward(m->dev, k->class_row, k->zero, k->in_order, dt_gradient(g, k->token), m->n_seq,
                                      m->C, m->opt.dtype, g->dtype, m->stream);
}

/* Move the class tokens' rows of s.dx to s.dnorm, because they have no bias of the patches. */
static dt_err clear_class_rows(const dt_model *m)
{
    const struct tower_input *k = &m->patches;
    DT_TRY(m->ops->gather_rows(m->dev, m->s.dx, k->class_at, m->s.dnorm, m->n_seq, m->C, m->opt.dtype, m->stream));
    DT_TRY(m->ops->zero(m->dev, k->class_row, (size_t)(m->n_seq * m->C) * m->elem, m->stream));
    return m->ops->scatter_rows(m->dev, k->class_row, k->class_at, m->s.dx, m->n_seq, m->C, m->opt.dtype, m->stream);
}

dt_err dt_patches_backward(const dt_model *m, const dt_param_view *w, const dt_grad_view *g)
{
    const struct tower_input *k = &m->patches;
    /* added to the cleared buffer */
    const dt_grad_view more = {.data = g->data, .dtype = g->dtype, .accumulate = true};
    if (dt_exists(k->pre.w))
        DT_TRY(dt_norm_backward(m, &k->pre, w, &more, k->x, k->stats, m->s.dx, m->s.dx, false, m->n_tok));
    const void *rows = k->config->grids && k->config->n_frames > 1 ? k->frames : k->rows;
    const bool apart = dt_exists(k->token) && dt_is_trained(k->conv.b);
    if (apart) DT_TRY(clear_class_rows(m));
    DT_TRY(dt_linear_backward(m, &k->conv, w, &more, rows, k->conv.n_in, m->s.dx, m->C, NULL, 0,
                              (struct with_matmul){0}, m->n_tok));
    if (apart)
        DT_TRY(m->ops->scatter_rows(m->dev, m->s.dnorm, k->class_at, m->s.dx, m->n_seq, m->C, m->opt.dtype, m->stream));
    return class_backward(m, &more);
}
