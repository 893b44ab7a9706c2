/* record_images.c - which images a record has, and where they stand in its texts: for datasets and prompts alike, so
 * that a record means the same in training and in generation. */
#include "dtrain/chat.h"
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

dt_err dt_image_names_add(dt_image_names *names, const char *path)
{
    if (names->n == names->n_alloc) {
        const int n = names->n_alloc ? 2 * names->n_alloc : 4;
        const char **more = realloc(names->path, (size_t)n * sizeof *more);
        DT_CHECK(more, DT_ERR_MEMORY, "no memory for the names of %d images", n);
        names->path = more;
        names->n_alloc = n;
    }
    names->path[names->n++] = path;
    return DT_OK;
}

void dt_image_names_free(dt_image_names *names)
{
    free(names->path);
    *names = (dt_image_names){0};
}

const char *dt_image_name_of(const json_t *image)
{
    const json_t *bytes = json_object_get(image, "bytes"),
                 *name = json_object_get(json_is_object(bytes) ? bytes : image, DT_IMAGE_OF_ROW);
    if (!name) name = json_is_object(image) ? json_object_get(image, "path") : image;
    const char *text = json_string_value(name);
    return text && strlen(text) == json_string_length(name) ? text : NULL;
}

static dt_err add_named(dt_image_names *names, const char *name, const char *key)
{
    DT_CHECK(name && name[0], DT_ERR_DATA, "%s: expected a path, or a list of them", key);
    return dt_image_names_add(names, name);
}

static const char *const KEYS[] = {"image", "images", "image_bytes"};
enum { N_KEYS = sizeof KEYS / sizeof KEYS[0] };

dt_err dt_image_names_list(dt_image_names *names, const json_t *record)
{
    const char *found = NULL;
    names->n = 0;
    for (size_t k = 0; k < N_KEYS; k++) {
        const json_t *one, *list = json_object_get(record, KEYS[k]);
        const int before = names->n;
        size_t i;
        if (!list || json_is_null(list)) continue;
        if (!json_is_array(list)) DT_TRY(add_named(names, dt_image_name_of(list), KEYS[k]));
        json_array_foreach(list, i, one) DT_TRY(add_named(names, dt_image_name_of(one), KEYS[k]));
        if (names->n == before) continue;
        DT_CHECK(!found, DT_ERR_DATA, "%s and %s: expected one of them", found, KEYS[k]);
        found = KEYS[k];
    }
    return DT_OK;
}

const char *dt_image_key(const json_t *record)
{
    for (size_t k = 0; k < N_KEYS; k++) {
        const json_t *any = json_object_get(record, KEYS[k]);
        if (dt_image_name_of(any) || dt_image_name_of(json_array_get(any, 0))) return KEYS[k];
    }
    return NULL;
}

dt_err dt_image_names_take(dt_image_names *names, const dt_messages *m)
{
    bool any = false;
    for (int i = 0; i < m->images.n; i++) any |= m->images.path[i] != NULL;
    if (!any) return DT_OK;
    DT_CHECK(names->n == 0, DT_ERR_DATA, "the record lists its images, and its messages name them: expected one");
    for (int i = 0; i < m->images.n; i++) DT_TRY(add_named(names, m->images.path[i], "a part of type image"));
    return DT_OK;
}

dt_err dt_messages_place_images(dt_messages *m, int n)
{
    dt_message *first = NULL;
    if (!m->image_text || n == 0) return DT_OK;
    for (int i = m->n - 1; i >= 0; i--) {
        if (memmem(m->item[i].text, m->item[i].nbytes, m->image_text, strlen(m->image_text))) return DT_OK;
        if (m->item[i].role == DT_ROLE_USER) first = &m->item[i];
    }
    if (!first) return DT_OK;
    first->text = dt_text_after_images(m->image_text, n, first->text, &first->nbytes);
    return dt_messages_own(m, (char *)first->text);
}

const char *dt_say_places(dt_place_words *out, const char *image_text, int64_t n_places, const char *owner,
                          int64_t n_images)
{
    char places[24] = "no", images[24] = "no";
    if (n_places) snprintf(places, sizeof places, "%" PRId64, n_places);
    if (n_images) snprintf(images, sizeof images, "%" PRId64, n_images);
    const char *many = !image_text && n_places > 1 ? "s" : "";
    snprintf(out->text, sizeof out->text, "the text has %s %.80s%s and %s has %s image%s", places,
             image_text ? image_text : "placeholder", many, owner, images, n_images > 1 ? "s" : "");
    return out->text;
}

char *dt_text_after_images(const char *image_text, int n, const char *text, size_t *nbytes)
{
    const size_t n_before = (size_t)n * (strlen(image_text) + 1), n_text = *nbytes;
    char *all = malloc(n_before + n_text + 1), *to = all;
    if (!all) return NULL;
    for (int i = 0; i < n; i++) to += sprintf(to, "%s\n", image_text);
    memcpy(to, text, n_text);
    to[n_text] = '\0';
    *nbytes += n_before;
    return all;
}

dt_err dt_image_path(const char *folder, const char *file, const char *name, char *path)
{
    const char *of = file ? file : "", *slash = strrchr(of, '/');
    const int n = name[0] == '/' ? snprintf(path, PATH_MAX, "%s", name)
                  : folder       ? snprintf(path, PATH_MAX, "%s/%s", folder, name)
                                 : snprintf(path, PATH_MAX, "%.*s%s", slash ? (int)(slash - of) + 1 : 0, of, name);
    DT_CHECK(n > 0 && n < PATH_MAX, DT_ERR_DATA, "%.200s...: the path of an image is too long", name);
    return DT_OK;
}
