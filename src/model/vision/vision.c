/* vision.c - tower and projector of a vision-language model: the images of a batch replace the embeddings of
 * placeholders, and the gradients flow back.
 *
 *     pixels --tower.c--> x [R, n_in] --projector.c--> out [S, D] --placeholders.c--> rows of the embedding
 *
 * With precomputed features, x comes with the batch. The tower then only computes features for dt_model_features. */
#include "vision_private.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int64_t dt_vision_max_rows(const dt_model *m) { return m->opt.max_images * m->vision->config->n_features; }
int64_t dt_vision_rows(const struct vision *v) { return v->n_images * v->config->n_features; }
bool dt_vision_trains(const dt_model *m)
{
    const struct vision *v = m->vision;
    bool trains = v && v->tower.trains;
    for (int k = 0; v && k <= v->config->n_deepstack; k++) trains = trains || v->projector[k].trains;
    return trains;
}

/* ---- open -------------------------------------------------------------------------------------------------------- */

/* Fill m->vision, which is empty. */
static dt_err describe(const dt_model *m, const dt_unit *units, int n_units, int first)
{
    struct vision *v = m->vision;
    const int projector = dt_units_find(units, n_units, DT_UNIT_PROJECTOR);
    v->config = m->mc->vision;
    DT_EXPECT(v->config && projector > first);
    DT_TRY(dt_tower_describe(m, units + first, projector - first));
    DT_EXPECT(projector + v->config->n_deepstack < n_units);
    for (int k = 0; k <= v->config->n_deepstack; k++)
        DT_TRY(dt_projector_describe(m, &units[projector + k], projector + k, &v->projector[k]));
    return DT_OK;
}

static dt_err place(const dt_model *m, struct arena *device, struct arena *staging)
{
    struct vision *v = m->vision;
    const int n_deep = v->config->n_deepstack;
    dt_tower_place(m, device, staging);
    for (int k = 0; k <= n_deep; k++) dt_projector_place(m, &v->projector[k], device, staging);
    dt_placeholders_place(m, staging);
    dt_grids_place(m, staging);
    v->shown = dt_take(device, n_deep > 0 ? dt_vision_max_rows(m) : 0, v->config->projector.n_out, m->elem);
    DT_CHECK(!device->overflow, DT_ERR_MEMORY, "the features of %d images exceed the address space", m->opt.max_images);
    return DT_OK;
}

dt_err dt_vision_size(const dt_model *lm, const dt_unit *units, int n_units, int first, size_t *nbytes)
{
    struct vision v = {0};
    dt_model m = *lm;
    m.vision = &v;
    DT_TRY(describe(&m, units, n_units, first));
    return dt_tower_size(&m, nbytes);
}

dt_err dt_vision_plan(const dt_model *lm, const dt_unit *units, int n_units, int first, dt_memory *plan)
{
    struct vision v = {0};
    dt_model m = *lm;
    struct arena device = {0}, staging = {0};
    m.vision = &v;
    DT_TRY(describe(&m, units, n_units, first));
    DT_TRY(dt_tower_plan(&m, plan));
    DT_TRY(place(&m, &device, &staging));
    plan->at[DT_MEM_ACTIVATIONS][DT_ON_DEVICE] += device.used;
    plan->at[DT_MEM_STAGING][DT_ON_PINNED] += staging.used;
    return DT_OK;
}

/* Copy n constant indices to the device. */
static dt_err bring(const dt_model *m, int32_t *to, int64_t n,
                    void (*list)(const struct vision *v, int64_t n_images, int32_t *number))
{
    if (n == 0) return DT_OK;
    int32_t *number = malloc((size_t)n * sizeof *number);
    DT_CHECK(number, DT_ERR_MEMORY, "out of memory for the indices of %" PRId64 " features", n);
    list(m->vision, m->opt.max_images, number);
    const dt_err err = m->ops->copy(m->dev, to, number, (size_t)n * sizeof *number, m->stream),
                 waited = m->ops->stream_sync(m->dev, m->stream);
    free(number);
    return err != DT_OK ? err : waited;
}

static dt_err bring_lists(const dt_model *m)
{
    const struct vision *v = m->vision;
    const int64_t R = dt_vision_max_rows(m), f = dt_projector_square(&v->config->projector),
                  pooled = dt_vision_pools(v->config) ? R : 0;
    DT_TRY(bring(m, v->tower.square, v->config->projector.average > 1 ? R * f * f : 0, dt_tower_list_squares));
    if (!v->config->grids) DT_TRY(bring(m, v->tower.row, R * f * f, dt_tower_list_rows));
    DT_TRY(bring(m, v->projector->pool.image, pooled, dt_projector_list_images));
    return bring(m, v->projector->pool.in_order, pooled, dt_projector_list_in_order);
}

static dt_err allocate(dt_model *m)
{
    struct vision *v = m->vision;
    struct arena device = {0}, staging = {0};
    DT_TRY(place(m, &device, &staging));
    DT_TRY(dt_buf_alloc(&v->device, m->dev, DT_ON_DEVICE, device.used, DT_MEM_ACTIVATIONS));
    DT_TRY(dt_buf_alloc(&v->staging, m->dev, DT_ON_PINNED, staging.used, DT_MEM_STAGING));
    device = (struct arena){.base = v->device.ptr};
    staging = (struct arena){.base = v->staging.ptr};
    DT_TRY(place(m, &device, &staging));
    return bring_lists(m);
}

dt_err dt_vision_open(dt_model *m, const dt_unit *units, int n_units, int first)
{
    m->vision = calloc(1, sizeof *m->vision);
    DT_CHECK(m->vision, DT_ERR_MEMORY, "out of memory for a vision tower");
    DT_TRY(describe(m, units, n_units, first));
    DT_TRY(dt_tower_open(m, first));
    return allocate(m);
}

void dt_vision_close(dt_model *m)
{
    if (!m->vision) return;
    dt_tower_close(m);
    dt_buf_free(&m->vision->device);
    dt_buf_free(&m->vision->staging);
    free(m->vision);
    m->vision = NULL;
}

/* ---- a batch ----------------------------------------------------------------------------------------------------- */

static dt_err check_images(const dt_model *m, const dt_batch_images *i)
{
    const struct vision *v = m->vision;
    const size_t features = dt_vision_feature_nbytes(v->config, m->opt.dtype);
    const bool given = m->opt.features_given;
    DT_EXPECT(v->n_images >= 0 && v->n_images <= m->opt.max_images);
    DT_CHECK(!given || v->n_images == 0 || i->image_nbytes == features, DT_ERR_DATA,
             "features of %zu bytes per image, but the model's projector expects %zu", i->image_nbytes, features);
    DT_CHECK(given || v->n_images == 0 || i->image_nbytes == v->tower.model->patches.image_nbytes, DT_ERR_DATA,
             "images of %zu bytes, but the model's tower expects %" PRId64 " x %" PRId64 " pixels of 3 bytes",
             i->image_nbytes, v->config->image_size, v->config->image_size);
    return DT_OK;
}

/* Bytes of an image's features for one projector. */
static size_t share_nbytes(const dt_model *m)
{
    return (size_t)(m->vision->config->n_features * m->vision->projector->config->n_in) * m->elem;
}

/* Copy the features of images between their order in files, image by image, and the staging of each projector. */
static void copy_features(const dt_model *m, uint8_t *images, bool stage)
{
    const struct vision *v = m->vision;
    const size_t share = share_nbytes(m);
    for (int32_t i = 0; i < v->n_images; i++)
        for (int k = 0; k <= v->config->n_deepstack; k++, images += share) {
            char *own = v->projector[k].features.host + (size_t)i * share;
            memcpy(stage ? (void *)own : images, stage ? (void *)images : own, share);
        }
}

static dt_err stage_features(const dt_model *m, uint8_t *images)
{
    const struct vision *v = m->vision;
    const size_t nbytes = (size_t)v->n_images * share_nbytes(m);
    copy_features(m, images, true);
    for (int k = 0; k <= v->config->n_deepstack; k++) DT_TRY(dt_span_ahead(m, &v->projector[k].features, nbytes));
    return DT_OK;
}

/* Queue the copy of images to the device; of cells, in the order of the tower, with the list of their feature rows. */
static dt_err stage_images(const dt_model *m, const uint8_t *pixels, size_t image_nbytes)
{
    const struct vision *v = m->vision;
    const struct span *to = &v->tower.model->patches.pixels, *rows = &v->tower.rows;
    const size_t nbytes = (size_t)v->n_images * image_nbytes;
    if (!v->config->grids) {
        memcpy(to->host, pixels, nbytes);
        return dt_span_ahead(m, to, nbytes);
    }
    dt_grids_copy_cells(v, pixels, image_nbytes, to->host);
    dt_grids_list_rows(v, (int32_t *)(void *)rows->host);
    DT_TRY(dt_span_ahead(m, rows, (size_t)(v->n_images * v->config->n_rows) * sizeof(int32_t)));
    return dt_span_ahead(m, to, nbytes);
}

dt_err dt_vision_stage(dt_model *m, const dt_batch *b, const int32_t *slot)
{
    struct vision *v = m->vision;
    const dt_batch_images *i = dt_images_of(b);
    v->n_images = i && b->n_tok > 0 ? i->n : 0;
    DT_TRY(check_images(m, i));
    DT_TRY(dt_grids_read(m, i ? i->grid : NULL));
    DT_TRY(dt_placeholders_find(m, b));
    DT_TRY(dt_grids_stage_text(m, b, slot));
    if (v->n_images > 0)
        DT_TRY(m->opt.features_given ? stage_features(m, i->pixels) : stage_images(m, i->pixels, i->image_nbytes));
    return dt_projector_stage(m, b);
}

dt_err dt_vision_forward(dt_model *m, const dt_batch *b)
{
    struct vision *v = m->vision;
    dt_param_view w;
    if (!v || (!m->train && !dt_images_of(b))) return DT_OK;
    if (!m->opt.features_given) DT_TRY(dt_tower_forward(m, b));
    for (int k = 0; k <= v->config->n_deepstack; k++) {
        const struct projector *j = &v->projector[k];
        dt_phase_enter(m->phase, "forward", m->units[j->unit].name);
        DT_TRY(dt_params_acquire(m, j->unit, &w));
        if (v->n_images > 0) DT_TRY(dt_projector_forward(m, j, &w));
        DT_TRY(dt_params_release(m, j->unit));
    }
    return DT_OK;
}

/* The deepstack projector whose rows are added after this block; NULL: none, or no images. */
static const struct projector *deep_after(const dt_model *m, const struct stage *s)
{
    const struct vision *v = m->vision;
    const bool is = v && s->role == DT_UNIT_BLOCK && v->n_images > 0 && s->block.layer < v->config->n_deepstack;
    return is ? &v->projector[1 + s->block.layer] : NULL;
}

dt_err dt_vision_after_block(const dt_model *m, const struct stage *s, void *x)
{
    const struct projector *j = deep_after(m, s);
    return j ? dt_placeholders_add(m, j, x) : DT_OK;
}

dt_err dt_vision_before_backward(const dt_model *m, const struct stage *s)
{
    const struct projector *j = dt_vision_trains(m) ? deep_after(m, s) : NULL;
    return j ? dt_placeholders_collect(m, j) : DT_OK;
}

dt_err dt_vision_backward(dt_model *m)
{
    struct vision *v = m->vision;
    dt_param_view w;
    dt_grad_view g;
    if (!dt_vision_trains(m)) return DT_OK;
    for (int k = v->config->n_deepstack; k >= 0; k--) {
        const struct projector *j = &v->projector[k];
        dt_phase_enter(m->phase, "backward", m->units[j->unit].name);
        DT_TRY(dt_params_acquire(m, j->unit, &w));
        DT_TRY(dt_grads_acquire(m, j->unit, &g));
        DT_TRY(v->n_images == 0 ? dt_model_clear_grads(m, j->unit, &g) : dt_projector_backward(m, j, &w, &g));
        DT_TRY(dt_grads_release(m, j->unit));
        DT_TRY(dt_params_release(m, j->unit));
    }
    return v->tower.trains ? dt_tower_backward(m) : DT_OK;
}

/* ---- features only ----------------------------------------------------------------------------------------------- */

dt_err dt_model_features(dt_model *m, const uint8_t *pixels, const uint32_t *grid, int32_t n, void *features)
{
    struct vision *v = m->vision;
    DT_EXPECT(v && (v->config->n_deepstack == 0 || m->opt.features_given));
    DT_EXPECT(n >= 0 && n <= m->opt.max_images);
    m->train = m->have_hidden = m->have_dx = false;
    v->n_images = n;
    DT_TRY(dt_span_wait(m, &m->tokens_span));
    DT_TRY(dt_grids_read(m, grid));
    if (n > 0) DT_TRY(stage_images(m, pixels, v->tower.model->patches.image_nbytes));
    DT_TRY(dt_tower_forward(m, NULL));
    *m->in_use = NULL; /* the tower has overwritten the model's activations */
    if (n == 0) return DT_OK;
    const bool plain = v->config->n_deepstack == 0; /* otherwise by way of the staging of precomputed features */
    for (int k = 0; k <= v->config->n_deepstack; k++) {
        const struct projector *j = &v->projector[k];
        DT_TRY(m->ops->copy(m->dev, plain ? features : (void *)j->features.host, j->x, (size_t)n * share_nbytes(m),
                            m->stream));
    }
    DT_TRY(m->ops->stream_sync(m->dev, m->stream));
    if (!plain) copy_features(m, features, false);
    return DT_OK;
}
