/* check_images.c - check that a dataset's image preprocessing and number of placeholders match this model's tower and
 * projector. */
#include "dtrain/image/image.h"
#include "dtrain/io/io.h"
#include "dtrain/step/step.h"
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

/* The command that recreates such a dataset, with the directory of the model or its tower if that defines the
 * preprocessing. */
typedef struct remake {
    char command[PATH_MAX + 128];
} remake;

static remake remake_of(const char *dir, int64_t n_tokens)
{
    char file[PATH_MAX], number[48] = "";
    remake r;
    const bool known =
        dir && (dt_is_in(file, dir, "preprocessor_config.json") || dt_is_in(file, dir, "processor_config.json"));
    if (n_tokens > 0) snprintf(number, sizeof number, " --image-tokens %" PRId64, n_tokens);
    snprintf(r.command, sizeof r.command, "dtrain-data%s --images %s", number, known ? dir : "DIR");
    return r;
}

/* A new model has no preprocessor, so it uses that of its training images. */
static dt_err settle_preprocessor(const char *where, const dt_data_info *info, dt_model_config *mc, const char *name,
                                  const char *dir)
{
    if (!*info->images.preprocessor) return DT_OK; /* unknown */
    const dt_preprocessor *p = &mc->vision->preprocessor;
    const bool known = p->out_width > 0;
    char file[PATH_MAX + 256], expected[PATH_MAX + 256];
    snprintf(file, sizeof file, "%s: %s%s", where, info->image_path, known ? "" : ": attribute preprocessor");
    if (!known) return dt_model_config_set_preprocessor(mc, file, info->images.preprocessor);
    snprintf(expected, sizeof expected, "the output of %s", remake_of(dir, 0).command);
    return dt_image_form_check(&info->images, file, p, name, expected);
}

dt_err dt_settle_images(const char *where, const dt_data_info *info, dt_model_config *mc, const char *name,
                        const char *dir)
{
    const dt_image_form *form = &info->images;
    const dt_vision_config *v = mc->vision;
    const char *path = info->image_path;
    if (!path) return DT_OK;
    DT_CHECK(v, DT_ERR_DATA,
             "%s: %s has images, and %s has no vision tower; expected a dataset without images, or a vision-language "
             "model",
             where, path, name);
    DT_CHECK(form->grids == dt_vision_has_cells(v), DT_ERR_DATA,
             "%s: %s has images of %s, but the tower of %s takes images of %s; create the dataset again with %s", where,
             path, form->grids ? "different sizes" : "one size", name,
             dt_vision_has_cells(v) ? "different sizes" : "one size", remake_of(dir, 0).command);
    DT_CHECK(form->size == v->image_size, DT_ERR_DATA,
             "%s: %s has images of %" PRId64 " x %" PRId64 " pixels, but vision_config.image_size of %s is %" PRId64
             "; create the dataset again with %s",
             where, path, form->size, form->size, name, v->image_size, remake_of(dir, 0).command);
    DT_CHECK(form->token == v->image_token, DT_ERR_DATA,
             "%s: %s: attribute image_token: placeholders are token %" PRId32
             ", but image_token_id or image_token_index of %s is %" PRId32,
             where, path, form->token, name, v->image_token);
    DT_CHECK(form->n_tokens == v->n_tokens, DT_ERR_DATA,
             "%s: %s: attribute image_tokens: %" PRId64 " placeholder%s per image, but %s computes %" PRId64
             " row%s (vision_config.patch_size, vision_feature_select_strategy, projector); create the dataset again "
             "with %s",
             where, path, form->n_tokens, form->n_tokens == 1 ? "" : "s", name, v->n_tokens,
             v->n_tokens == 1 ? "" : "s", remake_of(dir, v->n_tokens).command);
    return settle_preprocessor(where, info, mc, name, dir);
}
