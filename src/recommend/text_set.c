/* text_set.c - when the list is full, it is sorted and duplicates are removed. It grows only if at least half of it
 * remains. */
#include "text_set.h"
#include <stdlib.h>
#include <string.h>

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

void text_set_sort(text_set *s)
{
    int32_t n = 0;
    if (s->n > 0) qsort(s->text, (size_t)s->n, sizeof *s->text, by_bytes);
    for (int32_t i = 0; i < s->n; i++)
        if (n > 0 && strcmp(s->text[n - 1], s->text[i]) == 0)
            free(s->text[i]);
        else
            s->text[n++] = s->text[i];
    s->n = n;
}

static dt_err make_room(text_set *s)
{
    text_set_sort(s);
    if (s->n < s->n_alloc / 2) return DT_OK;
    const int32_t n = s->n_alloc ? 2 * s->n_alloc : 4096;
    char **grown = realloc(s->text, (size_t)n * sizeof *grown);
    DT_CHECK(grown, DT_ERR_MEMORY, "out of memory for a list of %d tokens", n);
    s->text = grown;
    s->n_alloc = n;
    return DT_OK;
}

dt_err text_set_add(text_set *s, const char *text, size_t nbytes)
{
    if (s->n == s->n_alloc) DT_TRY(make_room(s));
    char *copy = strndup(text, nbytes);
    DT_CHECK(copy, DT_ERR_MEMORY, "out of memory for a token");
    s->text[s->n++] = copy;
    return DT_OK;
}
