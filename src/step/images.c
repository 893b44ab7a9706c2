/* images.c - a dataset's images were prepared for a tower, and its texts have placeholders for a projector: are they
 * those of this model? */
#include "dtrain/image.h"
#include "dtrain/step.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The tower gets byte * scale + shift. Both come from texts, and the model has rounded its own to 32 bits. */
static bool differs(double a, float b) { return fabs(a - (double)b) > 1e-5 * fmax(1e-3, fabs(a)); }

static dt_err check_numbers(const char *where, const char *path, const dt_preprocessor *p, const dt_vision_config *v,
                            const char *name)
{
    static const char *const colours[] = {"red", "green", "blue"};
    for (int c = 0; c < 3; c++) {
        const double scale = p->rescale_factor / p->std[c], shift = -p->mean[c] / p->std[c];
        DT_CHECK(!differs(scale, v->scale[c]) && !differs(shift, v->shift[c]), DT_ERR_DATA,
                 "%s: %s: attribute preprocessor: a byte of %s becomes %.6g byte %+.6g (rescale_factor, image_mean, "
                 "image_std), and for %s %.6g byte %+.6g",
                 where, path, colours[c], scale, shift, name, (double)v->scale[c], (double)v->shift[c]);
    }
    return DT_OK;
}

static dt_err check_preprocessor(const char *where, const dt_data_info *info, const dt_vision_config *v,
                                 const char *name)
{
    dt_preprocessor p = {0};
    const char *text = info->images.preprocessor;
    if (!*text) return DT_OK; /* it is not known */
    dt_err err = dt_preprocessor_parse(info->image_path, text, strlen(text), &p);
    if (err == DT_OK) err = check_numbers(where, info->image_path, &p, v, name);
    dt_preprocessor_free(&p);
    return err;
}

dt_err dt_check_images(const char *where, const dt_data_info *info, const dt_model_config *mc, const char *name)
{
    const dt_image_form *form = &info->images;
    const dt_vision_config *v = mc->vision;
    const char *path = info->image_path;
    if (!path) return DT_OK;
    DT_CHECK(v, DT_ERR_DATA,
             "%s: %s has images, and %s has no vision tower; expected a dataset without images, or a vision-language "
             "model",
             where, path, name);
    DT_CHECK(form->size == v->image_size, DT_ERR_DATA,
             "%s: %s: images of %" PRId64 " x %" PRId64 " pixels; vision_config.image_size of %s is %" PRId64, where,
             path, form->size, form->size, name, v->image_size);
    DT_CHECK(form->token == v->image_token, DT_ERR_DATA,
             "%s: %s: attribute image_token: placeholders are token %" PRId32 "; image_token_index of %s is %" PRId32,
             where, path, form->token, name, v->image_token);
    DT_CHECK(form->n_tokens == v->n_tokens, DT_ERR_DATA,
             "%s: %s: attribute image_tokens: %" PRId64 " placeholders an image; %s makes %" PRId64
             " rows of one (vision_config.patch_size, vision_feature_select_strategy, projector)",
             where, path, form->n_tokens, name, v->n_tokens);
    return check_preprocessor(where, info, v, name);
}
