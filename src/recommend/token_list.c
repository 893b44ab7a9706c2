/* token_list.c - reads the three kinds of files that list tokens. */
#include "dtrain/recommend/token_list.h"
#include "dtrain/recommend/catalogue.h"
#include "dtrain/io/io.h"
#include "dtrain/io/spec.h"
#include "dtrain/tokenizer/tokenizer.h"
#include "dtrain/text/utf8.h"
#include "text_set.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 1 << 30 }; /* bytes */

static dt_err read_index(text_set *l, const char *path)
{
    dt_spec root;
    const char *item, *token;
    json_t *levels;
    size_t i = 0;
    DT_TRY(dt_spec_load(&root, path, MAX_FILE, DT_JSON_NUL_KEYS, NULL, NULL));
    dt_err err = DT_OK;
    json_object_foreach((json_t *)root.value, item, levels)
    {
        if (json_array_size(levels) == 0) err = dt_spec_bad(&root, item, "a list of level tokens");
        for (i = 0; i < json_array_size(levels) && err == DT_OK; i++) {
            token = json_string_value(json_array_get(levels, i));
            const size_t n = token ? strlen(token) : 0;
            err = n > 0 && dt_level_token_len(token, n) == n ? text_set_add(l, token, n)
                                                             : dt_spec_bad(&root, item, "level tokens such as <a_17>");
        }
        if (err != DT_OK) break;
    }
    dt_spec_unload(&root);
    return err;
}

static dt_err read_info(text_set *l, const char *path)
{
    dt_catalogue *c;
    DT_TRY(dt_catalogue_open(&c, path, NULL));
    dt_err err = DT_OK;
    for (int32_t i = 0; i < dt_catalogue_n_levels(c) && err == DT_OK; i++) {
        const char *level = dt_catalogue_level(c, i);
        err = text_set_add(l, level, strlen(level));
    }
    dt_catalogue_close(c);
    return err;
}

static dt_err read_lines(text_set *l, const char *path, char *text)
{
    int line = 1;
    if (strncmp(text, "\xef\xbb\xbf", 3) == 0) text += 3;
    for (char *at = text, *next; at; at = next, line++) {
        next = strchr(at, '\n');
        if (next) *next++ = '\0';
        size_t n = strlen(at);
        if (n > 0 && at[n - 1] == '\r') n--;
        DT_CHECK(dt_utf8_valid(at, n) == n, DT_ERR_DATA, "%s:%d: expected a token in UTF-8", path, line);
        if (strspn(at, " \r") < n) DT_TRY(text_set_add(l, at, n));
    }
    return DT_OK;
}

static dt_err read_tokens(text_set *l, const char *path)
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
    text_set all = {0};
    dt_err err = read_tokens(&all, path);
    text_set_sort(&all);
    if (err == DT_OK && all.n == 0) err = dt_fail(DT_ERR_DATA, "%s: expected tokens, found none", path);
    *l = (dt_token_list){all.text, all.n};
    if (err != DT_OK) dt_token_list_free(l);
    return err;
}

void dt_token_list_free(dt_token_list *l)
{
    dt_list_free(l->token, l->n);
    *l = (dt_token_list){0};
}
