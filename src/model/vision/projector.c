/* projector.c - projection of tower features to rows of the language model, and the backward pass.
 *
 *     y    = projector(x), [R, D]
 *     out    y, or the mean of each image's rows, [S, D] */
#include "vision_private.h"
#include <stdlib.h>

enum { PROJECTOR_LAYER = -2 };
static const float PROJECTOR_EPS = 1e-5f;

static bool drops(const dt_model *m) { return m->opt.training && m->vision->config->projector.dropout > 0; }

/* ---- open -------------------------------------------------------------------------------------------------------- */

dt_err dt_projector_describe(const dt_model *m, const dt_unit *u, int unit)
{
    const dt_projector_config *p = &m->vision->config->projector;
    struct projector *j = &m->vision->projector;
    bool complete = true;
    j->unit = unit;
    j->trains = u->flat_len[DT_TRAINED] > 0;
    for (int i = 0; i < p->n_layers; i++) {
        const bool last = i == p->n_layers - 1;
        char linear[16], norm[16];
        snprintf(linear, sizeof linear, "linear_%d", i + 1);
        j->layer[i] = dt_linear_at(m, u, linear, i == 0 ? p->n_in : p->hidden_size, last ? p->n_out : p->hidden_size);
        complete = complete && dt_exists(j->layer[i].w);
        if (last) continue;
        snprintf(norm, sizeof norm, "norm_%d", i + 1);
        j->norm[i] = dt_norm_at(u, norm);
        complete = complete && dt_exists(j->norm[i].w) == p->norm;
    }
    DT_EXPECT(complete);
    return DT_OK;
}

static void place_hidden(const dt_model *m, struct arena *a, int i)
{
    const dt_projector_config *p = &m->vision->config->projector;
    const int64_t R = dt_vision_max_rows(m), H = p->hidden_size;
    struct projector *j = &m->vision->projector;
    struct hidden *h = &j->hidden[i];
    h->pre = dt_take(a, R, H, m->elem);
    h->act = dt_take(a, R, H, m->elem);
    h->norm = p->norm ? dt_take(a, R, H, m->elem) : h->act;
    h->mean = dt_take(a, p->norm ? R : 0, 1, sizeof(float));
    h->rstd = dt_take(a, p->norm ? R : 0, 1, sizeof(float));
    j->dhidden[i] = dt_take(a, dt_vision_trains(m) && m->opt.training ? R : 0, H, m->elem);
}

/* out is y unless rows are pooled; the same for the gradients. */
static void place_out(const dt_model *m, struct arena *a)
{
    struct projector *j = &m->vision->projector;
    const dt_vision_config *c = m->vision->config;
    const int64_t N = m->opt.max_images, R = dt_vision_max_rows(m), D = c->projector.n_out;
    const bool pools = dt_vision_pools(c), learns = dt_vision_trains(m) && m->opt.training;
    j->y = dt_take(a, R, D, m->elem);
    j->dy = dt_take(a, learns ? R : 0, D, m->elem);
    j->out = pools ? dt_take(a, N, D, m->elem) : j->y;
    j->dout = pools ? dt_take(a, learns ? N : 0, D, m->elem) : j->dy;
    j->pool = (struct pool){.image = dt_take(a, pools ? R : 0, 1, sizeof(int32_t)),
                            .in_order = dt_take(a, pools ? R : 0, 1, sizeof(int32_t)),
                            .sum = dt_take(a, pools ? N : 0, D, sizeof(float))};
}

void dt_projector_place(const dt_model *m, struct arena *device, struct arena *staging)
{
    struct projector *j = &m->vision->projector;
    place_out(m, device);
    for (int i = 0; i < m->vision->config->projector.n_layers - 1; i++) place_hidden(m, device, i);
    j->keys = dt_take_span(staging, device, drops(m) ? (size_t)dt_vision_max_rows(m) * sizeof(uint64_t) : 0);
}

void dt_projector_list_images(const struct vision *v, int64_t n_images, int32_t *image)
{
    for (int64_t r = 0; r < n_images * v->config->n_features; r++) image[r] = (int32_t)(r / v->config->n_features);
}

void dt_projector_list_in_order(const struct vision *v, int64_t n_images, int32_t *row)
{
    for (int64_t r = 0; r < n_images * v->config->n_features; r++) row[r] = (int32_t)r;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Dropout key of a row: the key of its placeholder. With pooling it is derived from that key and the row's index. */
static uint64_t key_of(const dt_model *m, const dt_batch *b, int64_t row)
{
    const dt_vision_config *c = m->vision->config;
    if (!dt_vision_pools(c)) return b->token_key[dt_placeholders_first(m, row)];
    return dt_mix64(b->token_key[dt_placeholders_first(m, row / c->n_features)] + (uint64_t)(row % c->n_features));
}

dt_err dt_projector_stage(dt_model *m, const dt_batch *b)
{
    struct span *keys = &m->vision->projector.keys;
    const int64_t R = dt_vision_rows(m->vision);
    if (!keys->nbytes || R == 0) return DT_OK;
    uint64_t *key = (uint64_t *)(void *)keys->host;
    for (int64_t r = 0; r < R; r++) key[r] = key_of(m, b, r);
    return dt_span_ahead(m, keys, (size_t)R * sizeof *key);
}

static uint64_t dropout_key(const dt_model *m, int i) { return dt_dropout_key(m, PROJECTOR_LAYER - i, SITE_MLP); }

static dt_err drop(const dt_model *m, int i, void *x)
{
    const struct vision *v = m->vision;
    const dt_projector_config *p = &v->config->projector;
    if (!m->train || !drops(m)) return DT_OK;
    return m->ops->dropout(m->dev, x, NULL, x, (float)p->dropout, dropout_key(m, i),
                           (const uint64_t *)(const void *)v->projector.keys.device, dt_vision_rows(v), p->hidden_size,
                           m->opt.dtype, m->stream);
}

/* The activation, dropout and norm after layer i. */
static dt_err leave_layer(const dt_model *m, const dt_param_view *w, int i)
{
    const struct vision *v = m->vision;
    const dt_projector_config *p = &v->config->projector;
    const struct hidden *h = &v->projector.hidden[i];
    DT_TRY(m->ops->act_forward(m->dev, (dt_activation)p->act, h->pre, h->act, m->opt.dtype,
                               dt_vision_rows(v) * p->hidden_size, m->stream));
    DT_TRY(drop(m, i, h->act));
    if (!p->norm) return DT_OK;
    return m->ops->layernorm_forward(m->dev, h->act, dt_weight(w, v->projector.norm[i].w),
                                     dt_weight(w, v->projector.norm[i].b), h->norm, h->mean, h->rstd, dt_vision_rows(v),
                                     p->hidden_size, PROJECTOR_EPS, m->opt.dtype, m->stream);
}

static const void *input_of(const struct vision *v, int i) { return i == 0 ? v->x : v->projector.hidden[i - 1].norm; }

/* Accumulates in fp32 and rounds once. */
static dt_err pool(const dt_model *m)
{
    const struct vision *v = m->vision;
    const struct projector *j = &v->projector;
    const int64_t n = v->n_images * m->C;
    if (!dt_vision_pools(v->config)) return DT_OK;
    DT_TRY(m->ops->zero(m->dev, j->pool.sum, (size_t)n * sizeof(float), m->stream));
    DT_TRY(m->ops->embedding_backward(m->dev, j->y, j->pool.image, j->pool.in_order, j->pool.sum, dt_vision_rows(v),
                                      m->C, m->opt.dtype, DT_F32, m->stream));
    DT_TRY(m->ops->scale(m->dev, j->pool.sum, 1.0f / (float)v->config->n_features, j->pool.sum, DT_F32, n, m->stream));
    return m->ops->convert(m->dev, j->pool.sum, DT_F32, j->out, m->opt.dtype, n, m->stream);
}

dt_err dt_projector_forward(const dt_model *m, const dt_param_view *w)
{
    const struct vision *v = m->vision;
    const dt_projector_config *p = &v->config->projector;
    for (int i = 0; i < p->n_layers; i++) {
        const struct linear *l = &v->projector.layer[i];
        const bool last = i == p->n_layers - 1;
        DT_TRY(dt_linear_forward(m, l, w, input_of(v, i), l->n_in, last ? v->projector.y : v->projector.hidden[i].pre,
                                 l->n_out, dt_vision_rows(v), (struct with_matmul){0}));
        if (!last) DT_TRY(leave_layer(m, w, i));
    }
    return pool(m);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Gradient of layer i's output from the gradient of layer i + 1's input; in place. */
static dt_err enter_layer(const dt_model *m, const dt_param_view *w, const dt_grad_view *g, int i, void *d)
{
    const struct vision *v = m->vision;
    const dt_projector_config *p = &v->config->projector;
    const struct hidden *h = &v->projector.hidden[i];
    if (p->norm)
        DT_TRY(m->ops->layernorm_backward(m->dev, h->act, dt_weight(w, v->projector.norm[i].w), h->mean, h->rstd, d, d,
                                          false, dt_gradient(g, v->projector.norm[i].w),
                                          dt_gradient(g, v->projector.norm[i].b), g->dtype, g->accumulate,
                                          dt_vision_rows(v), p->hidden_size, m->s.norm, m->opt.dtype, m->stream));
    DT_TRY(drop(m, i, d));
    return m->ops->act_backward(m->dev, (dt_activation)p->act, h->pre, d, d, m->opt.dtype,
                                dt_vision_rows(v) * p->hidden_size, m->stream);
}

static dt_err pool_backward(const dt_model *m)
{
    const struct vision *v = m->vision;
    const struct projector *j = &v->projector;
    if (!dt_vision_pools(v->config)) return DT_OK;
    DT_TRY(m->ops->scale(m->dev, j->dout, 1.0f / (float)v->config->n_features, j->dout, m->opt.dtype,
                         v->n_images * m->C, m->stream));
    return m->ops->gather_rows(m->dev, j->dout, j->pool.image, j->dy, dt_vision_rows(v), m->C, m->opt.dtype, m->stream);
}

dt_err dt_projector_backward(const dt_model *m, const dt_param_view *w, const dt_grad_view *g)
{
    const struct vision *v = m->vision;
    const void *dy = v->projector.dy;
    DT_TRY(pool_backward(m));
    for (int i = v->config->projector.n_layers - 1; i >= 0; i--) {
        const struct linear *l = &v->projector.layer[i];
        void *dx = i > 0 ? v->projector.dhidden[i - 1] : v->tower.trains ? v->dx : NULL;
        DT_TRY(dt_linear_backward(m, l, w, g, input_of(v, i), l->n_in, dy, l->n_out, dx, l->n_in,
                                  (struct with_matmul){0}, dt_vision_rows(v)));
        if (i > 0) DT_TRY(enter_layer(m, w, g, i - 1, dx));
        dy = dx;
    }
    return DT_OK;
}
