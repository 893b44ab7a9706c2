/* prompt_images.c - see prompt_images.h. As in datasets: `<image>` in a text, or images before what a user says. */
#include "prompt_images.h"

#include <stdlib.h>
#include <string.h>

dt_err prompt_add_image(dt_prompt *p, const char *folder, int n_folder, const char *path)
{
    char **more = realloc(p->image, ((size_t)p->n_images + 1) * sizeof *more), *name = NULL;
    if (more) p->image = more;
    if (asprintf(&name, "%.*s%s", path[0] == '/' ? 0 : n_folder, folder, path) < 0) name = NULL;
    if (!more) free(name);
    DT_CHECK(more && name, DT_ERR_MEMORY, "out of memory for the images of a prompt");
    p->image[p->n_images++] = name;
    return DT_OK;
}

dt_err prompt_add_given(dt_prompt *p, const dt_prompt_reader *r)
{
    for (int i = 0; i < r->n_images; i++) DT_TRY(prompt_add_image(p, "", 0, r->image[i]));
    return DT_OK;
}

static dt_err add_named(dt_prompt *p, const char *file, const char *path, const char *key)
{
    const char *slash = strrchr(file, '/');
    DT_CHECK(path && path[0], DT_ERR_DATA, "%s: expected a path, or a list of them", key);
    return prompt_add_image(p, file, slash ? (int)(slash - file) + 1 : 0, path);
}

/* A path, or {path}. */
static const char *path_of(const json_t *image)
{
    return json_string_value(json_is_object(image) ? json_object_get(image, "path") : image);
}

dt_err prompt_list_images(dt_prompt *p, const json_t *record, const char *file, const dt_prompt_reader *r)
{
    static const char *const keys[] = {"image", "images"};
    for (size_t k = 0; r->n_image_tokens > 0 && k < sizeof keys / sizeof keys[0]; k++) {
        const json_t *one, *list = json_object_get(record, keys[k]);
        size_t i;
        if (!list || json_is_null(list)) continue;
        DT_CHECK(p->n_images == 0, DT_ERR_DATA, "image and images: expected one of them");
        if (!json_is_array(list)) DT_TRY(add_named(p, file, path_of(list), keys[k]));
        json_array_foreach(list, i, one) DT_TRY(add_named(p, file, path_of(one), keys[k]));
    }
    return DT_OK;
}

dt_err prompt_place_images(dt_prompt *p, dt_messages *m, const char *file)
{
    bool any = false;
    for (int i = 0; i < m->n_images; i++) any |= m->image[i] != NULL;
    if (!any) return m->image_text ? dt_messages_place_images(m, p->n_images) : DT_OK;
    DT_CHECK(p->n_images == 0, DT_ERR_DATA, "the record lists its images, and its messages name them: expected one");
    for (int i = 0; i < m->n_images; i++) DT_TRY(add_named(p, file, m->image[i], "a part of type image"));
    return DT_OK;
}

dt_err prompt_image_text(const dt_prompt *p, const dt_prompt_reader *r, const char *text, size_t *nbytes, char **with)
{
    const size_t n_text = *nbytes;
    *with = NULL;
    if (p->n_images == 0 || !r->image_text || memmem(text, n_text, r->image_text, strlen(r->image_text))) return DT_OK;
    *nbytes += (size_t)p->n_images * (strlen(r->image_text) + 1);
    char *to = *with = malloc(*nbytes + 1);
    DT_CHECK(to, DT_ERR_MEMORY, "out of memory for a prompt of %zu bytes", *nbytes);
    for (int i = 0; i < p->n_images; i++) to += sprintf(to, "%s\n", r->image_text);
    memcpy(to, text, n_text);
    return DT_OK;
}

dt_err prompt_expand(dt_prompt *p, const dt_prompt_reader *r, bool given)
{
    size_t found = 0;
    if (r->n_image_tokens == 0) return DT_OK;
    for (size_t i = 0; i < p->ids.n; i++) found += p->ids.id[i] == r->image_token;
    if (given && found == (size_t)p->n_images * (size_t)r->n_image_tokens) return DT_OK;
    DT_CHECK(found == (size_t)p->n_images, DT_ERR_DATA, "the text has %zu places of images, for %d images", found,
             p->n_images);
    return dt_expand_placeholders(r->image_token, r->n_image_tokens, p->n_images, &p->ids, NULL, 0);
}

void prompt_free_images(dt_prompt *p)
{
    for (int i = 0; i < p->n_images; i++) free(p->image[i]);
    free(p->image);
}
