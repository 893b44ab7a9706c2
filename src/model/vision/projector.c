/* projector.c - projections of tower features to rows of the language model, and the backward pass. A projector of
 * deepstack has a norm before its first layer.
 *
 *     y    = projector(x), [R, D]
 *     out    y, or the mean of each image's rows, [S, D] */
#include "../magnitude.h"
#include "vision_private.h"
#include <stdlib.h>

enum { PROJECTOR_LAYER = -2 };
static const float PROJECTOR_EPS = 1e-5f;

static bool drops(const dt_model *m) { return m->opt.training && m->vision->config->projector.dropout > 0; }

/* Do adapters of a projector drop elements of their input? */
static bool adapters_drop(const dt_model *m)
{
    const struct vision *v = m->vision;
    bool adapted = false;
    for (int k = 0; k <= v->config->n_deepstack; k++)
        for (int i = 0; i < DT_MAX_PROJECTOR_LAYERS; i++) adapted = adapted || v->projector[k].layer[i].n_low > 0;
    return adapted && m->opt.training && m->opt.adapter_dropout > 0;
}

static bool is_main(const dt_model *m, const struct projector *j) { return j == m->vision->projector; }

/* ---- open -------------------------------------------------------------------------------------------------------- */

/* LayerNorm, or an RMSNorm whose weights are stored minus 1. */
static struct norm norm_at(const dt_model *m, const dt_unit *u, const char *name, int64_t width, float eps)
{
    struct norm n = dt_norm_at(m, u, name);
    n.width = n.x_ld = n.y_ld = width;
    n.eps = eps;
    n.rms = false, n.plus_one = true;
    return n;
}

dt_err dt_projector_describe(const dt_model *m, const dt_unit *u, int unit, struct projector *j)
{
    const dt_projector_config *p = is_main(m, j) ? &m->vision->config->projector : &m->vision->config->deep_projector;
    const int number = (int)(j - m->vision->projector); /* units also count groups of experts */
    bool complete = true;
    j->config = p;
    j->unit = unit;
    j->trains = u->flat_len[DT_TRAINED] > 0;
    j->pre = norm_at(m, u, p->pre_norm ? p->pre_norm : "none", p->n_in, p->pre_eps);
    j->pre.rms = p->average > 0;
    complete = dt_exists(j->pre.w) == (p->pre_norm != NULL);
    for (int i = 0; i < p->n_layers; i++) {
        const bool last = i == p->n_layers - 1;
        char linear[24], norm[16];
        snprintf(linear, sizeof linear,
                 p->average      ? "mm_input_projection"
                 : is_main(m, j) ? "linear_%d"
                                 : "linear_fc%d",
                 i + 1);
        j->layer[i] = dt_linear_at(m, u, linear, i == 0 ? p->n_in : p->hidden_size, last ? p->n_out : p->hidden_size);
        j->layer[i].layer = PROJECTOR_LAYER - number, j->layer[i].site = (enum slot)i; /* keys of dropout */
        complete = complete && dt_exists(j->layer[i].w);
        if (last) continue;
        snprintf(norm, sizeof norm, "norm_%d", i + 1);
        j->norm[i] = norm_at(m, u, norm, p->hidden_size, PROJECTOR_EPS);
        complete = complete && dt_exists(j->norm[i].w) == p->norm;
    }
    DT_EXPECT(complete);
    return DT_OK;
}

static bool learns(const dt_model *m) { return dt_vision_trains(m) && m->opt.training; }

static void place_hidden(const dt_model *m, struct projector *j, struct arena *a, int i)
{
    const dt_projector_config *p = j->config;
    const int64_t R = dt_vision_max_rows(m), H = p->hidden_size;
    struct hidden *h = &j->hidden[i];
    h->pre = dt_take(a, R, H, m->elem);
    h->act = dt_take(a, R, H, m->elem);
    h->norm = p->norm ? dt_take(a, R, H, m->elem) : h->act;
    h->stats = dt_take_stats(a, p->norm ? R : 0);
    j->dhidden[i] = dt_take(a, learns(m) ? R : 0, H, m->elem);
}

/* out is y unless rows are pooled; the same for the gradients. */
static void place_out(const dt_model *m, struct projector *j, struct arena *a)
{
    const dt_vision_config *c = m->vision->config;
    const int64_t N = m->opt.max_images, R = dt_vision_max_rows(m), D = j->config->n_out;
    const bool pools = dt_vision_pools(c);
    j->y = dt_take(a, R, D, m->elem);
    j->dy = dt_take(a, learns(m) ? R : 0, D, m->elem);
    j->out = pools ? dt_take(a, N, D, m->elem) : j->y;
    j->dout = pools ? dt_take(a, learns(m) ? N : 0, D, m->elem) : j->dy;
    j->pool = (struct pool){.image = dt_take(a, pools ? R : 0, 1, sizeof(int32_t)),
                            .in_order = dt_take(a, pools ? R : 0, 1, sizeof(int32_t)),
                            .sum = dt_take(a, pools ? N : 0, D, sizeof(float))};
}

static void place_adapters(const dt_model *m, struct projector *j, struct arena *a)
{
    const int64_t R = dt_vision_max_rows(m);
    int64_t most_r = 0, widest = 0, scaled = 0;
    for (int i = 0; i < j->config->n_layers; i++) {
        const struct linear *l = &j->layer[i];
        j->low[i] = dt_take(a, R, l->low_r, m->elem);
        most_r = dt_max_i64(most_r, l->low_r);
        if (l->n_low > 0) widest = dt_max_i64(widest, l->n_in);
        if (l->scaled) scaled = dt_max_i64(scaled, l->n_out);
    }
    j->low_work.x = dt_take(a, m->opt.training && m->opt.adapter_dropout > 0 ? R : 0, widest, m->elem);
    j->low_work.d = dt_take(a, m->opt.training ? R : 0, most_r, m->elem);
    dt_low_work_place(m, a, R, scaled, &j->low_work);
}

void dt_projector_place(const dt_model *m, struct projector *j, struct arena *device, struct arena *staging)
{
    const bool given = m->opt.features_given;
    const int64_t R = dt_vision_max_rows(m), n_in = j->config->n_in, normed = j->config->pre_norm ? R : 0;
    place_out(m, j, device);
    for (int i = 0; i < j->config->n_layers - 1; i++) place_hidden(m, j, device, i);
    const bool keyed = is_main(m, j) && (drops(m) || adapters_drop(m));
    j->keys = dt_take_span(staging, device, keyed ? (size_t)R * sizeof(uint64_t) : 0);
    j->features = dt_take_span(staging, device, given ? (size_t)(R * n_in) * m->elem : 0);
    j->x = given ? j->features.device : dt_take(device, R, n_in, m->elem);
    j->dx = dt_take(device, m->vision->tower.trains && m->opt.training ? R : 0, n_in, m->elem);
    j->normed = dt_take(device, normed, n_in, m->elem);
    j->pre_stats = dt_take_stats(device, normed);
    place_adapters(m, j, device);
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
    struct span *keys = &m->vision->projector->keys;
    const int64_t R = dt_vision_rows(m->vision);
    if (!keys->nbytes || R == 0) return DT_OK;
    uint64_t *key = (uint64_t *)(void *)keys->host;
    for (int64_t r = 0; r < R; r++) key[r] = key_of(m, b, r);
    return dt_span_ahead(m, keys, (size_t)R * sizeof *key);
}

static const uint64_t *keys_of(const dt_model *m)
{
    return (const uint64_t *)(const void *)m->vision->projector->keys.device;
}

static struct low_rows low_rows_of(const dt_model *m, const struct projector *j)
{
    return (struct low_rows){.n = dt_vision_rows(m->vision), .token_key = keys_of(m), .work = j->low_work};
}

static uint64_t dropout_key(const dt_model *m, int i) { return dt_dropout_key(m, PROJECTOR_LAYER - i, SITE_MLP); }

static dt_err drop(const dt_model *m, const struct projector *j, int i, void *x)
{
    const struct vision *v = m->vision;
    const dt_projector_config *p = j->config;
    if (!m->train || !is_main(m, j) || !drops(m)) return DT_OK;
    return m->ops->dropout(m->dev, x, NULL, x, (float)p->dropout, dropout_key(m, i), keys_of(m), dt_vision_rows(v),
                           p->hidden_size, m->opt.dtype, m->stream);
}

/* The activation, dropout and norm after layer i. */
static dt_err leave_layer(const dt_model *m, const struct projector *j, const dt_param_view *w, int i)
{
    const struct vision *v = m->vision;
    const dt_projector_config *p = j->config;
    const struct hidden *h = &j->hidden[i];
    DT_TRY(m->ops->act_forward(m->dev, (dt_activation)p->act, h->pre, h->act, m->opt.dtype,
                               dt_vision_rows(v) * p->hidden_size, m->stream));
    DT_TRY(drop(m, j, i, h->act));
    return p->norm ? dt_norm_forward(m, &j->norm[i], w, h->act, h->norm, h->stats, dt_vision_rows(v)) : DT_OK;
}

static const void *input_of(const struct projector *j, int i)
{
    return i > 0 ? j->hidden[i - 1].norm : dt_exists(j->pre.w) ? j->normed : j->x;
}

/* Accumulates in fp32 and rounds once. */
static dt_err pool(const dt_model *m, const struct projector *j)
{
    const struct vision *v = m->vision;
    const int64_t n = v->n_images * m->C;
    if (!dt_vision_pools(v->config)) return DT_OK;
    DT_TRY(m->ops->zero(m->dev, j->pool.sum, (size_t)n * sizeof(float), m->stream));
    DT_TRY(m->ops->embedding_backward(m->dev, j->y, j->pool.image, j->pool.in_order, j->pool.sum, dt_vision_rows(v),
                                      m->C, m->opt.dtype, DT_F32, m->stream));
    DT_TRY(m->ops->scale(m->dev, j->pool.sum, 1.0f / (float)v->config->n_features, j->pool.sum, DT_F32, n, m->stream));
    return m->ops->convert(m->dev, j->pool.sum, DT_F32, j->out, m->opt.dtype, n, m->stream);
}

dt_err dt_projector_forward(const dt_model *m, const struct projector *j, const dt_param_view *w)
{
    const int n_layers = j->config->n_layers;
    const struct low_rows rows = low_rows_of(m, j);
    if (dt_exists(j->pre.w)) DT_TRY(dt_norm_forward(m, &j->pre, w, j->x, j->normed, j->pre_stats, rows.n));
    for (int i = 0; i < n_layers; i++) {
        const struct linear *l = &j->layer[i];
        const bool last = i == n_layers - 1;
        DT_TRY(dt_linear_forward(m, l, w, input_of(j, i), l->n_in, last ? j->y : j->hidden[i].pre, l->n_out, rows.n,
                                 (struct with_matmul){.low = j->low[i], .low_rows = &rows}));
        if (!last) DT_TRY(leave_layer(m, j, w, i));
    }
    return pool(m, j);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Gradient of layer i's output from the gradient of layer i + 1's input; in place. */
static dt_err enter_layer(const dt_model *m, const struct projector *j, const dt_param_view *w, const dt_grad_view *g,
                          int i, void *d)
{
    const struct vision *v = m->vision;
    const dt_projector_config *p = j->config;
    const struct hidden *h = &j->hidden[i];
    if (p->norm) DT_TRY(dt_norm_backward(m, &j->norm[i], w, g, h->act, h->stats, d, d, false, dt_vision_rows(v)));
    DT_TRY(drop(m, j, i, d));
    return m->ops->act_backward(m->dev, (dt_activation)p->act, h->pre, d, d, m->opt.dtype,
                                dt_vision_rows(v) * p->hidden_size, m->stream);
}

static dt_err pool_backward(const dt_model *m, const struct projector *j)
{
    const struct vision *v = m->vision;
    if (!dt_vision_pools(v->config)) return DT_OK;
    DT_TRY(m->ops->scale(m->dev, j->dout, 1.0f / (float)v->config->n_features, j->dout, m->opt.dtype,
                         v->n_images * m->C, m->stream));
    return m->ops->gather_rows(m->dev, j->dout, j->pool.image, j->dy, dt_vision_rows(v), m->C, m->opt.dtype, m->stream);
}

/* With a norm before the first layer, dx of that layer replaces the norm's output, which the layer's weights no longer
 * need. The norm's backward has its own place for dx if the tower is trained. */
dt_err dt_projector_backward(const dt_model *m, const struct projector *j, const dt_param_view *w,
                             const dt_grad_view *g)
{
    const void *dy = j->dy;
    const bool normed = dt_exists(j->pre.w), deeper = m->vision->tower.trains;
    const struct low_rows rows = low_rows_of(m, j);
    DT_TRY(pool_backward(m, j));
    for (int i = j->config->n_layers - 1; i >= 0; i--) {
        const struct linear *l = &j->layer[i];
        void *dx = i > 0 ? j->dhidden[i - 1] : normed ? j->normed : deeper ? j->dx : NULL;
        DT_TRY(dt_linear_backward(m, l, w, g, input_of(j, i), l->n_in, dy, l->n_out, dx, l->n_in,
                                  (struct with_matmul){.low = j->low[i], .low_rows = &rows}, rows.n));
        if (i > 0) DT_TRY(enter_layer(m, j, w, g, i - 1, dx));
        dy = dx;
    }
    if (!normed) return DT_OK;
    return dt_norm_backward(m, &j->pre, w, g, j->x, j->pre_stats, j->normed, deeper ? j->dx : j->normed, false, rows.n);
}
