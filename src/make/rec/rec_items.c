/* rec_items.c - the item catalogue: SIDs (NAME.index.json) and texts (NAME.item.json). */
#include "rec.h"
#include "dtrain/io/io.h"
#include "dtrain/make/rec_files.h"
#include <stdlib.h>
#include <string.h>

static dt_err read_json(json_t **json, const char *path)
{
    char *text;
    size_t n;
    DT_TRY(dt_read_file(path, (size_t)INT32_MAX, &text, &n));
    const dt_err err = dt_json_parse(json, path, text, n, 0);
    free(text);
    DT_TRY(err);
    DT_CHECK(json_is_object(*json), DT_ERR_DATA, "%s: expected an object of items with item ids as keys", path);
    return DT_OK;
}

/* ---- SIDs -------------------------------------------------------------------------------------------------------- */

/* A token in the vocabulary may still never result from encoding its text. Add it only if it does. */
static dt_err add_if_read(dt_rec_levels *l, dt_encoder *e, int32_t id, const char *token, dt_ids *ids)
{
    const dt_span span = {.text = token, .nbytes = strlen(token)};
    ids->n = 0;
    DT_TRY(dt_encode(e, &span, 1, DT_ENCODE_GOES_ON, ids, NULL));
    if (ids->n != 1 || ids->id[0] != id) return DT_OK;
    DT_CHECK(json_object_set_new(l->read, token, json_true()) == 0, DT_ERR_MEMORY, "out of memory for level tokens");
    return DT_OK;
}

dt_err dt_rec_levels_open(dt_rec_levels *l, const dt_tokenizer *t)
{
    dt_encoder *e = NULL;
    dt_ids ids = {0};
    *l = (dt_rec_levels){.tokenizer = t, .read = json_object()};
    dt_err err = l->read ? dt_encoder_open(&e, t) : dt_fail(DT_ERR_MEMORY, "out of memory for level tokens");
    for (int32_t id = 0; id < dt_tokenizer_get_info(t)->vocab_size && err == DT_OK; id++) {
        const char *token = dt_tokenizer_token(t, id);
        const size_t n = token ? strlen(token) : 0;
        if (n > 0 && dt_level_token_len(token, n) == n) err = add_if_read(l, e, id, token, &ids);
    }
    dt_encoder_close(e);
    free(ids.id);
    return err;
}

void dt_rec_levels_close(dt_rec_levels *l)
{
    json_decref(l->read);
    *l = (dt_rec_levels){0};
}

dt_err dt_rec_check_sid(const dt_rec_levels *l, const char *sid)
{
    char token[256];
    for (size_t at = 0, n = 0, nbytes = strlen(sid); at < nbytes || nbytes == 0; at += n) {
        n = dt_level_token_len(sid + at, nbytes - at);
        DT_CHECK(n > 0 && n < sizeof token, DT_ERR_DATA, "expected a SID such as <a_1><b_2><c_3>, found \"%.100s\"",
                 sid);
        snprintf(token, sizeof token, "%.*s", (int)n, sid + at);
        if (json_object_get(l->read, token)) continue;
        DT_CHECK(dt_tokenizer_find(l->tokenizer, token) < 0, DT_ERR_DATA,
                 "expected %s among the tokenizer's added tokens, with \"normalized\": false: the tokenizer contains "
                 "it, but does not encode its text as that single token",
                 token);
        return dt_fail(DT_ERR_DATA,
                       "%s is not one token of the tokenizer: use a model with the level tokens (add them with "
                       "dtrain-convert --add-tokens INDEX.json MODEL NEW_MODEL)",
                       token);
    }
    return DT_OK;
}

/* Concatenate the levels of an item. */
static dt_err join(const dt_rec_levels *l, const char *path, const char *id, const json_t *levels, char *sid,
                   size_t size)
{
    const json_t *level;
    size_t i, n = 0;
    DT_TRY(dt_check_item_id(path, id));
    DT_CHECK(json_array_size(levels) > 0, DT_ERR_DATA, "%s: item %s: expected a list of level tokens", path, id);
    sid[0] = '\0';
    json_array_foreach(levels, i, level)
    {
        const char *token = json_string_value(level);
        DT_CHECK(token, DT_ERR_DATA, "%s: item %s: expected a list of level tokens", path, id);
        DT_CHECK(n + strlen(token) < size, DT_ERR_DATA, "%s: item %s: expected level tokens of at most %zu bytes", path,
                 id, size - 1);
        n += (size_t)snprintf(sid + n, size - n, "%s", token);
        DT_TRY(dt_error_prefix(dt_rec_check_sid(l, token), "%s: item %s: ", path, id));
    }
    return DT_OK;
}

static dt_err join_all(dt_rec_items *items, const dt_rec_levels *l, const json_t *index)
{
    char sid[4096];
    const char *id;
    json_t *levels;
    json_object_foreach((json_t *)index, id, levels)
    {
        DT_TRY(join(l, items->index_path, id, levels, sid, sizeof sid));
        DT_CHECK(json_object_set_new(items->by_id, id, json_string(sid)) == 0 &&
                     json_object_set_new(items->by_sid, sid, json_true()) == 0,
                 DT_ERR_MEMORY, "out of memory for a catalogue");
    }
    return DT_OK;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* Returns a text value, or the first text of a list (JSON or Python notation) that is not empty. A Python list is
 * replaced in place by a JSON list. Its texts then live as long as the file. */
static const char *first_text(json_t *of, const char *key)
{
    json_t *value = json_object_get(of, key), *list;
    const char *text = json_string_value(value);
    if (text && text[0] == '[' && dt_python_list(&list, text, json_string_length(value)) == DT_OK) {
        json_object_set_new(of, key, list);
        value = list;
    } else if (text) {
        dt_error_clear();
        return text;
    }
    size_t i;
    const json_t *one;
    json_array_foreach(value, i, one) if (json_string_length(one) > 0) return json_string_value(one);
    return "";
}

static dt_err list_items(dt_rec_items *items, const char *items_path)
{
    const char *id;
    json_t *sid;
    DT_ALLOC(items->item, json_object_size(items->by_id) + 1, "out of memory for a catalogue");
    json_object_foreach(items->by_id, id, sid)
    {
        dt_rec_item *item = &items->item[items->n++];
        *item = (dt_rec_item){.id = id, .sid = json_string_value(sid), .title = "", .description = ""};
        json_t *texts = json_object_get(items->texts, id);
        if (!texts) continue;
        const json_t *title = json_object_get(texts, "title");
        DT_CHECK(json_is_object(texts) && (!title || json_is_null(title) || json_is_string(title)), DT_ERR_DATA,
                 "%s: item %s: expected an object with a string title", items_path, id);
        if (json_is_string(title)) item->title = json_string_value(title);
        item->description = first_text(texts, "description");
    }
    return DT_OK;
}

/* ---- reading and writing ----------------------------------------------------------------------------------------- */

dt_err dt_rec_items_open(dt_rec_items *items, const char *index_path, const char *items_path, const dt_rec_levels *l)
{
    *items = (dt_rec_items){.by_id = json_object(), .by_sid = json_object(), .index_path = index_path};
    json_t *index = NULL;
    dt_err err = items->by_id && items->by_sid ? read_json(&index, index_path)
                                               : dt_fail(DT_ERR_MEMORY, "out of memory for a catalogue");
    if (err == DT_OK) err = join_all(items, l, index);
    if (err == DT_OK && items_path) err = read_json(&items->texts, items_path);
    if (err == DT_OK) err = list_items(items, items_path);
    if (err == DT_OK && items->n == 0) err = dt_fail(DT_ERR_DATA, "%s: the file contains no items", index_path);
    json_decref(index);
    return err;
}

void dt_rec_items_close(dt_rec_items *items)
{
    json_decref(items->by_id);
    json_decref(items->by_sid);
    json_decref(items->texts);
    free(items->item);
    *items = (dt_rec_items){0};
}

dt_err dt_check_item_id(const char *path, const char *id)
{
    DT_CHECK(id[0] && !strpbrk(id, "\t\n\r"), DT_ERR_DATA,
             "%s: expected item ids that are not empty and contain no tabs or line ends, found \"%s\"", path, id);
    return DT_OK;
}

void dt_info_line(FILE *f, const char *sid, const char *title, const char *id)
{
    fprintf(f, "%s\t", sid);
    for (; *title; title++) putc_unlocked(strchr("\t\r\n", *title) ? ' ' : *title, f);
    fprintf(f, "\t%s\n", id);
}

dt_err dt_rec_items_write(const dt_rec_items *items, const char *path)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    DT_CHECK(f, DT_ERR_MEMORY, "out of memory for the lines of %s", path);
    for (int64_t i = 0; i < items->n; i++) dt_info_line(f, items->item[i].sid, items->item[i].title, items->item[i].id);
    const bool whole = !ferror(f) & (fclose(f) == 0);
    const dt_err err =
        whole ? dt_write_file_atomic(path, text, n) : dt_fail(DT_ERR_MEMORY, "out of memory for %s", path);
    free(text);
    return err;
}
