/* tower.c - the vision tower of a language model: computes the projector's input from pixels, and the gradients.
 *
 *     features  output of the tower's block n_used, [N P, C], or of the norm after the last block
 *     x         selected rows of features, [R, n_in]: with shuffle x shuffle patches concatenated, one gather; or the
 *               means of average x average patches
 *
 * The tower is a model over the units that follow the language model's (dt_model_options.first_unit). The tower takes
 * part in every pass, with or without images, so that the order of units is the same on all ranks. */
#include "vision_private.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int64_t squared(int64_t n) { return n * n; }

/* ---- open -------------------------------------------------------------------------------------------------------- */

static bool any_trained(const dt_unit *units, int n)
{
    bool any = false;
    for (int u = 0; u < n; u++) any = any || units[u].flat_len[DT_TRAINED] > 0;
    return any;
}

static bool trains(const dt_model *m) { return m->opt.training && m->vision->tower.trains; }

static dt_model_options options(const dt_model *m)
{
    struct vision *v = m->vision;
    /* a frozen tower computes the same bits in every micro-batch, so that features can be precomputed */
    const bool invariant = m->opt.batch_invariant || (m->opt.reproducible && !trains(m));
    const int32_t n = m->opt.max_images > 0 ? m->opt.max_images : 1;
    return (dt_model_options){.dtype = m->opt.dtype,
                              .grad_dtype = m->opt.grad_dtype,
                              .max_tok = (int32_t)(n * v->config->n_rows),
                              .max_seq = n,
                              .max_pos = (int32_t)(v->config->grids ? n * v->config->n_rows : v->config->n_rows),
                              .max_images = n,
                              .training = trains(m),
                              .recompute = m->opt.recompute,
                              .reproducible = m->opt.reproducible,
                              .batch_invariant = invariant,
                              .adapter_dropout = m->opt.adapter_dropout,
                              .no_adapters = m->opt.no_adapters,
                              .seed = m->opt.seed,
                              .borrows = !trains(m),
                              .tower = v->config};
}

dt_err dt_tower_describe(const dt_model *m, const dt_unit *units, int n_units)
{
    struct vision *v = m->vision;
    struct tower *t = &v->tower;
    t->units = units;
    t->n_units = n_units;
    t->trains = any_trained(units, n_units);
    DT_CHECK((int64_t)m->opt.max_images * squared(v->config->n_side + 1) <= INT32_MAX, DT_ERR_USAGE,
             "%d images of %" PRId64 " x %" PRId64
             " patches in a micro-batch exceed 2^31 rows; lower batch.micro_batch_size",
             m->opt.max_images, v->config->n_side, v->config->n_side);
    DT_EXPECT(!m->opt.features_given || !t->trains);
    return DT_OK;
}

void dt_tower_place(const dt_model *m, struct arena *device, struct arena *staging)
{
    const dt_vision_config *c = m->vision->config;
    struct tower *t = &m->vision->tower;
    const int64_t n = dt_vision_max_rows(m), n_each = squared(dt_projector_square(&c->projector));
    const bool averages = c->projector.average > 1;
    if (c->grids) t->rows = dt_take_span(staging, device, (size_t)(n * n_each) * sizeof(int32_t));
    t->row = c->grids ? (int32_t *)(void *)t->rows.device : dt_take(device, n, n_each, sizeof(int32_t));
    t->square = dt_take(device, averages ? n : 0, n_each, sizeof(int32_t));
    t->sum = dt_take(device, averages ? n : 0, c->projector.n_in, sizeof(float));
}

dt_err dt_tower_size(const dt_model *m, size_t *nbytes)
{
    const struct vision *v = m->vision;
    dt_memory memory = {0};
    dt_model_options opt = options(m);
    if (opt.borrows) {
        opt.borrows = false;
        DT_TRY(dt_model_plan(v->config->blocks, &opt, v->tower.units, v->tower.n_units, m->dev, &memory));
    }
    *nbytes = memory.at[DT_MEM_ACTIVATIONS][DT_ON_DEVICE];
    return DT_OK;
}

dt_err dt_tower_plan(const dt_model *m, dt_memory *plan)
{
    const struct vision *v = m->vision;
    const dt_model_options opt = options(m);
    dt_memory memory;
    DT_TRY(dt_model_plan(v->config->blocks, &opt, v->tower.units, v->tower.n_units, m->dev, &memory));
    dt_memory_add(plan, &memory);
    plan->at[DT_MEM_DATA][DT_ON_HOST] += dt_batch_nbytes(opt.max_tok, opt.max_seq);
    return DT_OK;
}

dt_err dt_tower_open(dt_model *m, int first)
{
    struct vision *v = m->vision;
    struct tower *t = &v->tower;
    dt_model_options opt = options(m);
    opt.lender = m->opt.borrows ? m->opt.lender : m;
    opt.first_unit = first;
    DT_TRY(dt_model_open(&t->model, v->config->blocks, &opt, t->units, t->n_units, m->dev, m->source, m->stream,
                         m->phase));
    t->model->owner = v;
    t->model->grids = v->config->grids ? &v->grids : NULL;
    return dt_batch_alloc(&t->batch, opt.max_tok, opt.max_seq, m->dev->ledger);
}

void dt_tower_close(dt_model *m)
{
    struct tower *t = &m->vision->tower;
    dt_model_close(t->model);
    dt_batch_free(&t->batch, m->dev->ledger);
}

void dt_tower_list_rows(const struct vision *v, int64_t n_images, int32_t *row)
{
    const dt_vision_config *c = v->config;
    const int64_t f = dt_projector_square(&c->projector), G = c->n_side / f, lead = c->n_rows - squared(c->n_side);
    for (int64_t i = 0; i < n_images; i++) {
        const int64_t base = i * c->n_rows;
        if (f == 1)
            for (int64_t r = c->drop_first; r < c->n_rows; r++) *row++ = (int32_t)(base + r);
        else
            for (int64_t at = 0; at < squared(G * f); at++) {
                const int64_t ab = at % squared(f), I = at / squared(f) / G, J = at / squared(f) % G;
                *row++ = (int32_t)(base + lead + (I * f + ab / f) * c->n_side + J * f + ab % f);
            }
    }
}

/* Features are rows of all images, without a class token. */
void dt_tower_list_squares(const struct vision *v, int64_t n_images, int32_t *square)
{
    const int64_t S = v->config->n_side, f = v->config->projector.average, G = S / f;
    for (int64_t i = 0; i < n_images * S * S; i++)
        square[i] = (int32_t)(i / (S * S) * G * G + i / S % S / f * G + i % S / f);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* One sequence of patches for each image. Those of grids have positions that grids.c stages; others are sorted by
 * position, then by image. Dropout uses the keys of the tokens that refer to the image. */
static void fill_batch(const dt_model *m, const dt_batch *shown_by)
{
    const struct vision *v = m->vision;
    const bool grids = v->config->grids;
    const int32_t P = (int32_t)v->config->n_rows, N = grids ? v->grids.n : v->n_images;
    dt_batch *b = &m->vision->tower.batch;
    b->n_seq = N;
    b->n_tok = v->n_images * P;
    for (int32_t i = 0; i < N; i++) {
        const struct image_grid one = {i, 1, 1}, *of = grids ? &v->grids.image[i] : &one;
        const int32_t first = of->first * P, n = of->rows * of->columns * P;
        const int64_t row = of->first * v->config->n_tokens;
        const uint64_t key = shown_by ? shown_by->token_key[dt_placeholders_first(m, row)] : 0;
        b->seq_start[i + 1] = first + n;
        for (int32_t r = 0; r < n; r++) {
            const int32_t t = first + r;
            b->token[t] = grids ? 0 : r;
            b->pos[t] = r;
            b->token_key[t] = dt_mix64(key + (uint64_t)r);
            b->order[grids ? t : r * N + i] = t;
        }
    }
}

static int64_t n_gathered(const struct vision *v)
{
    return dt_vision_rows(v) * squared(dt_projector_square(&v->config->projector));
}

static float of_square(const struct vision *v) { return 1.0f / (float)squared(v->config->projector.average); }

/* Accumulates in fp32 and rounds once. */
static dt_err average(const dt_model *m, const void *features)
{
    const struct vision *v = m->vision;
    const struct tower *t = &v->tower;
    const int64_t C = t->model->C, n = dt_vision_rows(v) * C;
    DT_TRY(m->ops->zero(m->dev, t->sum, (size_t)n * sizeof(float), m->stream));
    DT_TRY(m->ops->embedding_backward(m->dev, features, t->square, t->row, t->sum, n_gathered(v), C, m->opt.dtype,
                                      DT_F32, m->stream));
    DT_TRY(m->ops->scale(m->dev, t->sum, of_square(v), t->sum, DT_F32, n, m->stream));
    return m->ops->convert(m->dev, t->sum, DT_F32, v->projector->x, m->opt.dtype, n, m->stream);
}

dt_err dt_tower_forward(dt_model *m, const dt_batch *shown_by)
{
    struct vision *v = m->vision;
    struct tower *t = &v->tower;
    fill_batch(m, shown_by);
    const dt_err err = dt_model_forward(t->model, &t->batch, m->train && t->model->opt.training, m->step);
    *m->in_use = m; /* the language model has not yet used the activations that the tower borrows */
    if (err != DT_OK || v->n_images == 0) return err;
    if (v->config->projector.average > 1) return average(m, t->model->hidden);
    return m->ops->gather_rows(m->dev, t->model->hidden, t->row, v->projector->x, n_gathered(v), t->model->C,
                               m->opt.dtype, m->stream);
}

/* The deepstack projector of the output of a tower's block; NULL: none. */
static const struct projector *deep_of(const dt_model *tower, const struct stage *s)
{
    const struct vision *v = tower->owner;
    for (int k = 0; v && s->role == DT_UNIT_ENCODER && k < v->config->n_deepstack; k++)
        if (v->config->deepstack[k] == s->block.layer) return &v->projector[1 + k];
    return NULL;
}

dt_err dt_tower_after_block(const dt_model *t, const struct stage *s, const void *x)
{
    const struct projector *j = deep_of(t, s);
    if (!j || t->n_tok == 0) return DT_OK;
    return t->ops->gather_rows(t->dev, x, t->owner->tower.row, j->x, t->n_tok, t->C, t->opt.dtype, t->stream);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

dt_err dt_tower_before_backward(const dt_model *t, const struct stage *s)
{
    const struct projector *j = deep_of(t, s);
    if (!j || t->n_tok == 0) return DT_OK;
    DT_TRY(
        t->ops->scatter_rows(t->dev, j->dx, t->owner->tower.row, t->s.dnorm, t->n_tok, t->C, t->opt.dtype, t->stream));
    return t->ops->add(t->dev, t->s.dx, t->s.dnorm, t->s.dx, t->opt.dtype, t->n_tok * t->C, t->stream);
}

/* Every feature is part of one square. */
static dt_err average_backward(const dt_model *m, void *dfeatures)
{
    const struct vision *v = m->vision;
    const int64_t C = v->tower.model->C;
    void *dx = v->projector->dx;
    DT_TRY(m->ops->scale(m->dev, dx, of_square(v), dx, m->opt.dtype, dt_vision_rows(v) * C, m->stream));
    return m->ops->gather_rows(m->dev, dx, v->tower.square, dfeatures, n_gathered(v), C, m->opt.dtype, m->stream);
}

dt_err dt_tower_backward(const dt_model *m)
{
    const struct vision *v = m->vision;
    dt_model *t = v->tower.model;
    if (v->n_images > 0 && v->config->projector.average > 1) {
        DT_TRY(average_backward(m, t->s.dx));
    } else if (v->n_images > 0) {
        DT_TRY(m->ops->zero(m->dev, t->s.dx, (size_t)(t->n_tok * t->C) * t->elem, m->stream));
        DT_TRY(m->ops->scatter_rows(m->dev, v->projector->dx, v->tower.row, t->s.dx, n_gathered(v), t->C, m->opt.dtype,
                                    m->stream));
    }
    t->have_dx = true;
    return dt_model_backward(t, &m->vision->tower.batch);
}
