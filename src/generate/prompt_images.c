/* prompt_images.c - see prompt_images.h. */
#include "prompt_images.h"
#include "dtrain/text/utf8.h"

#include <stdlib.h>
#include <string.h>

dt_err prompt_add_given(dt_prompt *p, const dt_prompt_reader *r)
{
    for (int i = 0; i < r->n_images; i++) DT_TRY(dt_image_names_add(&p->images, r->image[i]));
    return DT_OK;
}

dt_err prompt_image_text(const dt_prompt *p, const dt_prompt_reader *r, const char *text, size_t *nbytes, char **with)
{
    *with = NULL;
    if (!r->image_text || memmem(text, *nbytes, r->image_text, strlen(r->image_text))) return DT_OK;
    bool done = !r->image_alias || dt_text_replace(text, nbytes, r->image_alias, r->image_text, with);
    if (done && !*with && p->images.n > 0) { /* without images, prompt_expand refuses placeholders */
        *with = dt_text_after_images(r->image_text, r->image_line, p->images.n, text, nbytes);
        done = *with;
    }
    DT_CHECK(done, DT_ERR_MEMORY, "out of memory for a prompt of %zu bytes", *nbytes);
    return DT_OK;
}

static dt_err count_cells(dt_prompt *p, const dt_prompt_reader *r)
{
    if (!r->n_cells || p->images.n == 0) return DT_OK;
    p->n_cells = calloc((size_t)p->images.n, sizeof *p->n_cells);
    DT_CHECK(p->n_cells, DT_ERR_MEMORY, "out of memory for %d images", p->images.n);
    for (int i = 0; i < p->images.n; i++) DT_TRY(r->n_cells(r->ctx, p, i, &p->n_cells[i]));
    return DT_OK;
}

dt_err prompt_expand(dt_prompt *p, const dt_prompt_reader *r, bool given)
{
    size_t found = 0, whole = 0;
    if (r->n_image_tokens == 0) return DT_OK;
    DT_TRY(count_cells(p, r));
    for (int i = 0; i < p->images.n; i++) whole += (size_t)r->n_image_tokens * (size_t)(p->n_cells ? p->n_cells[i] : 1);
    for (size_t i = 0; i < p->ids.n; i++) found += p->ids.id[i] == r->image_token;
    if (given && found == whole) return DT_OK;
    dt_placeholder_words words;
    DT_CHECK(found == (size_t)p->images.n, DT_ERR_DATA, "%s",
             dt_say_placeholders(&words, r->image_text, (int64_t)found, "the prompt", p->images.n));
    return dt_expand_placeholders(r->image_token, r->n_image_tokens, p->n_cells, p->images.n, &p->ids, NULL, 0);
}
