/* images.c - a dataset's images were prepared for a tower, and its texts have placeholders for a projector: are they
 * those of this model? */
#include "dtrain/image.h"
#include "dtrain/io.h"
#include "dtrain/step.h"
#include <inttypes.h>
#include <limits.h>
#include <string.h>

/* ": make it again ...", by the model's directory or its tower's, where that says how images are made. */
typedef struct remake {
    char text[PATH_MAX + 128];
} remake;

static remake make_again(const char *dir, int64_t n_tokens)
{
    char file[PATH_MAX], number[48] = "";
    remake r;
    const bool known =
        dir && (dt_is_in(file, dir, "preprocessor_config.json") || dt_is_in(file, dir, "processor_config.json"));
    if (n_tokens > 0) snprintf(number, sizeof number, " --image-tokens %" PRId64, n_tokens);
    snprintf(r.text, sizeof r.text, "; make it again: dtrain-data%s --images %s", number, known ? dir : "DIR");
    return r;
}

static dt_err check_preprocessor(const char *where, const dt_data_info *info, const dt_vision_config *v,
                                 const char *name, const char *dir)
{
    dt_preprocessor p;
    dt_preprocessor_words of_data, of_model;
    const char *path = info->image_path, *text = info->images.preprocessor;
    DT_TRY(dt_preprocessor_parse(path, text, strlen(text), &p));
    const char *key = dt_preprocessor_differs(&p, &v->preprocessor, &of_data, &of_model);
    dt_preprocessor_free(&p);
    DT_CHECK(!key, DT_ERR_DATA,
             "%s: %s: attribute preprocessor: %s: its images were made with %s; %s has %s in its "
             "preprocessor_config.json%s",
             where, path, key, of_data.text, name, of_model.text, make_again(dir, 0).text);
    return DT_OK;
}

/* A model that is begun here knows nothing of it: its images are to be made as those that it is trained on. */
static dt_err settle_preprocessor(const char *where, const dt_data_info *info, dt_model_config *mc, const char *name,
                                  const char *dir)
{
    if (!*info->images.preprocessor) return DT_OK; /* it is not known */
    if (mc->vision->preprocessor.out_width) return check_preprocessor(where, info, mc->vision, name, dir);
    return dt_model_config_set_preprocessor(mc, info->image_path, info->images.preprocessor);
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
    DT_CHECK(form->size == v->image_size, DT_ERR_DATA,
             "%s: %s: images of %" PRId64 " x %" PRId64 " pixels; vision_config.image_size of %s is %" PRId64 "%s",
             where, path, form->size, form->size, name, v->image_size, make_again(dir, 0).text);
    DT_CHECK(form->token == v->image_token, DT_ERR_DATA,
             "%s: %s: attribute image_token: placeholders are token %" PRId32 "; image_token_index of %s is %" PRId32,
             where, path, form->token, name, v->image_token);
    DT_CHECK(form->n_tokens == v->n_tokens, DT_ERR_DATA,
             "%s: %s: attribute image_tokens: %" PRId64 " placeholder%s an image; %s makes %" PRId64
             " row%s of it (vision_config.patch_size, vision_feature_select_strategy, projector)%s",
             where, path, form->n_tokens, form->n_tokens == 1 ? "" : "s", name, v->n_tokens,
             v->n_tokens == 1 ? "" : "s", make_again(dir, v->n_tokens).text);
    return settle_preprocessor(where, info, mc, name, dir);
}
