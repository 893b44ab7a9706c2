/* parse_images.c - which images a record has, and where they stand in its texts: `<image>`, or what the placeholder is
 * called. How many of them there are is looked at when the text has become tokens. */
#include "parse_record.h"
#include <stdlib.h>
#include <string.h>

static dt_err add_image(dt_parsed_record *r, const char *path, const char *key)
{
    DT_CHECK(path && path[0], DT_ERR_DATA, "%s: expected a path, or a list of them", key);
    if (r->n_images == r->images_alloc) {
        const int n = r->images_alloc ? 2 * r->images_alloc : 4;
        const char **more = realloc(r->images, (size_t)n * sizeof *more);
        DT_CHECK(more, DT_ERR_MEMORY, "no memory for the images of a record");
        r->images = more;
        r->images_alloc = n;
    }
    r->images[r->n_images++] = path;
    return DT_OK;
}

/* A path, or {path}, as datasets of images are written. */
static const char *path_of(const json_t *image)
{
    return json_string_value(json_is_object(image) ? json_object_get(image, "path") : image);
}

static dt_err list_key(dt_parsed_record *r, const json_t *json, const char *key)
{
    const json_t *one, *list = json_object_get(json, key);
    size_t i;
    if (!list || json_is_null(list)) return DT_OK;
    if (!json_is_array(list)) return add_image(r, path_of(list), key);
    json_array_foreach(list, i, one) DT_TRY(add_image(r, path_of(one), key));
    return DT_OK;
}

dt_err dt_list_images(dt_parsed_record *r, const json_t *json, const dt_rules *rules)
{
    const char *const keys[] = {"images", "image"};
    r->n_images = 0;
    r->images_apart = false;
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        if (!rules->image_text) {
            const json_t *any = json_object_get(json, keys[k]);
            const bool image = path_of(any) || path_of(json_array_get(any, 0));
            DT_CHECK(!image, DT_ERR_DATA, "%s: the record has an image, but --images does not say how it is prepared",
                     keys[k]);
            continue;
        }
        const int before = r->n_images;
        DT_TRY(list_key(r, json, keys[k]));
        DT_CHECK(before == 0 || r->n_images == before, DT_ERR_DATA, "image and images: expected one of them");
        if (k == 0) r->images_apart = r->n_images > 0;
    }
    return DT_OK;
}

dt_err dt_place_images(dt_parsed_record *r, dt_side side, const dt_rules *rules)
{
    return rules->image_text && r->images_apart ? dt_messages_place_images(&r->messages[side], r->n_images) : DT_OK;
}

dt_err dt_take_images(dt_parsed_record *r)
{
    const dt_messages *m = &r->messages[0];
    bool any = false;
    for (int i = 0; i < m->n_images; i++) any |= m->image[i] != NULL;
    if (!any) return DT_OK;
    DT_CHECK(r->n_images == 0, DT_ERR_DATA, "the record lists its images, and its messages name them: expected one");
    for (int i = 0; i < m->n_images; i++) DT_TRY(add_image(r, m->image[i], "a part of type image"));
    return DT_OK;
}

/* What the question says besides is not for a caption: it is one of many ways to ask for it. */
dt_err dt_render_caption(dt_parsed_record *r, const dt_rules *rules)
{
    const dt_messages *m = &r->messages[0];
    dt_text_side *side = &r->side[0];
    DT_CHECK(m->n == 2 && m->item[0].role == DT_ROLE_USER && m->item[1].role == DT_ROLE_ASSISTANT, DT_ERR_DATA,
             "expected a question with an image and its caption, found %d messages", m->n);
    const int n_images = r->n_images ? r->n_images : m->n_images;
    DT_CHECK(n_images > 0, DT_ERR_DATA, "expected a caption of an image, found a record without any");
    side->wrap = &rules->wrap;
    side->eos = side->eos_target = true;
    for (int i = 0; i < n_images; i++) {
        DT_TRY(dt_pieces_text(&side->pieces, rules->image_text, strlen(rules->image_text), false));
        DT_TRY(dt_pieces_text(&side->pieces, "\n", 1, false));
    }
    return dt_pieces_text(&side->pieces, m->item[1].text, m->item[1].nbytes, true);
}
