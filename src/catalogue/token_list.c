/* token_list.c - the three kinds of files that tokens are listed in. */
#include "dtrain/token_list.h"
#include "dtrain/catalogue.h"
#include "dtrain/io.h"
#include "dtrain/spec.h"
#include "dtrain/tokenizer.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 1 << 30 }; /* bytes */

typedef struct names {
    char **name;
    size_t n, n_alloc;
} names;

static dt_err add_name(names *l, const char *text)
{
    if (l->n == l->n_alloc) {
        const size_t n = l->n_alloc ? 2 * l->n_alloc : 256;
        char **grown = realloc(l->name, n * sizeof *grown);
        DT_CHECK(grown, DT_ERR_MEMORY, "no memory for a list of %zu tokens", n);
        l->name = grown, l->n_alloc = n;
    }
    l->name[l->n] = strdup(text);
    DT_CHECK(l->name[l->n], DT_ERR_MEMORY, "no memory for a token");
    l->n++;
    return DT_OK;
}

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void sort_names(names *l)
{
    size_t n = 0;
    if (l->n > 0) qsort(l->name, l->n, sizeof *l->name, by_bytes);
    for (size_t i = 0; i < l->n; i++) {
        if (n > 0 && strcmp(l->name[n - 1], l->name[i]) == 0)
            free(l->name[i]);
        else
            l->name[n++] = l->name[i];
    }
    l->n = n;
}

static dt_err read_index(names *l, const char *path)
{
    dt_spec root;
    const char *item, *token;
    json_t *levels;
    size_t i = 0;
    DT_TRY(dt_spec_load(&root, path, MAX_FILE, NULL, NULL));
    dt_err err = DT_OK;
    json_object_foreach((json_t *)root.value, item, levels)
    {
        if (json_array_size(levels) == 0) err = dt_spec_bad(&root, item, "a list of level tokens");
        for (i = 0; i < json_array_size(levels) && err == DT_OK; i++) {
            token = json_string_value(json_array_get(levels, i));
            const size_t n = token ? strlen(token) : 0;
            err = n > 0 && dt_level_token_len(token, n) == n ? add_name(l, token)
                                                             : dt_spec_bad(&root, item, "level tokens such as <a_17>");
        }
        if (err != DT_OK) break;
    }
    dt_spec_unload(&root);
    return err;
}

static dt_err read_info(names *l, const char *path)
{
    dt_catalogue *c;
    DT_TRY(dt_catalogue_open(&c, path, NULL));
    dt_err err = DT_OK;
    for (int32_t i = 0; i < dt_catalogue_n_levels(c) && err == DT_OK; i++) err = add_name(l, dt_catalogue_level(c, i));
    dt_catalogue_close(c);
    return err;
}

static dt_err read_lines(names *l, const char *path, char *text)
{
    int line = 1;
    for (char *at = text, *next; at; at = next, line++) {
        next = strchr(at, '\n');
        if (next) *next++ = '\0';
        size_t n = strlen(at);
        if (n > 0 && at[n - 1] == '\r') at[--n] = '\0';
        DT_CHECK(dt_utf8_valid(at, n) == n, DT_ERR_DATA, "%s:%d: expected a token in UTF-8", path, line);
        if (n > 0) DT_TRY(add_name(l, at));
    }
    return DT_OK;
}

static dt_err read_names(names *l, const char *path)
{
    char *text;
    size_t nbytes;
    if (dt_has_ending(path, ".json")) return read_index(l, path);
    DT_TRY(dt_read_file(path, MAX_FILE, &text, &nbytes));
    const bool zero = strlen(text) != nbytes, info = strchr(text, '\t');
    const dt_err err = zero   ? dt_fail(DT_ERR_DATA, "%s: expected text, found a zero byte", path)
                       : info ? read_info(l, path)
                              : read_lines(l, path, text);
    free(text);
    return err;
}

dt_err dt_token_list_read(dt_token_list *l, const char *path)
{
    names all = {0};
    dt_err err = read_names(&all, path);
    sort_names(&all);
    if (err == DT_OK && (all.n == 0 || all.n > INT32_MAX / 2))
        err = dt_fail(DT_ERR_DATA, "%s: expected tokens, found %zu", path, all.n);
    *l = (dt_token_list){all.name, (int32_t)dt_min_i64((int64_t)all.n, INT32_MAX)};
    if (err != DT_OK) dt_token_list_free(l);
    return err;
}

void dt_token_list_free(dt_token_list *l)
{
    for (int32_t i = 0; i < l->n; i++) free(l->token[i]);
    free(l->token);
    *l = (dt_token_list){0};
}
