/* item_texts.c - NAME.item.json: item id -> title, description, brand, categories. */
#include "dtrain/recommend/sid.h"
#include "dtrain/io/json.h"
#include "dtrain/make/rec_files.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DIGITS = 18 };

typedef struct entry {
    int64_t number, place;
    const char *id;
    json_t *item;
} entry;

bool dt_sid_item_number(const char *text, int64_t *number)
{
    const size_t len = strlen(text);
    if (len == 0 || len > MAX_DIGITS || strspn(text, "0123456789") != len || (len > 1 && text[0] == '0')) return false;
    *number = strtoll(text, NULL, 10);
    return true;
}

static int by_number(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->number != y->number) return x->number < y->number ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

static bool is_text(const json_t *value)
{
    const json_t *part;
    size_t i;
    if (!json_is_array(value)) return json_is_string(value) || json_is_null(value) || json_is_number(value);
    json_array_foreach(value, i, part) if (!is_text(part)) return false;
    return true;
}

static dt_err check_item(const char *path, const char *id, json_t *item)
{
    const char *key;
    json_t *value;
    DT_TRY(dt_check_item_id(path, id));
    DT_CHECK(json_is_object(item), DT_ERR_DATA,
             "%s: item %s: expected an object with title, description and other fields", path, id);
    json_object_foreach(item, key, value)
    {
        const bool read = strcmp(key, "title") == 0 || strcmp(key, "description") == 0 || strcmp(key, "brand") == 0 ||
                          strcmp(key, "categories") == 0;
        DT_CHECK(!read || is_text(value), DT_ERR_DATA, "%s: item %s: `%s`: expected a text or a list of texts", path,
                 id, key);
    }
    return DT_OK;
}

static dt_err take_items(dt_sid_items *items, const char *path)
{
    const char *id;
    json_t *item;
    bool numbers = true;
    int64_t i = 0;
    DT_CHECK(json_is_object(items->root), DT_ERR_DATA, "%s: expected an object: item id -> fields of the item", path);
    items->n = (int64_t)json_object_size(items->root);
    DT_CHECK(items->n > 0, DT_ERR_DATA, "%s: expected items, found none", path);
    entry *e = calloc((size_t)items->n, sizeof *e);
    items->id = calloc((size_t)items->n, sizeof *items->id);
    items->item = calloc((size_t)items->n, sizeof(json_t *));
    dt_err err = e && items->id && items->item ? DT_OK : dt_fail(DT_ERR_MEMORY, "%s: out of memory", path);
    json_object_foreach(items->root, id, item)
    {
        if (err != DT_OK) break;
        err = check_item(path, id, item);
        e[i] = (entry){.place = i, .id = id, .item = item};
        numbers = numbers && dt_sid_item_number(id, &e[i].number);
        i++;
    }
    if (err == DT_OK && numbers) qsort(e, (size_t)items->n, sizeof *e, by_number);
    for (i = 0; i < items->n && err == DT_OK; i++) {
        items->id[i] = e[i].id, items->item[i] = e[i].item;
        if (numbers && e[i].number != i)
            err =
                dt_fail(DT_ERR_DATA, "%s: item %" PRId64 " is missing; numeric ids must cover 0 to the last, %" PRId64,
                        path, i, e[items->n - 1].number);
    }
    free(e);
    return err;
}

dt_err dt_sid_items_read(dt_sid_items *items, const char *path)
{
    char *text = NULL;
    size_t nbytes = 0;
    DT_TRY(dt_read_file(path, SIZE_MAX / 2, &text, &nbytes));
    items->fingerprint = dt_checksum(text, 0, (int64_t)nbytes, 1);
    dt_err err = dt_json_parse(&items->root, path, text, nbytes, 0);
    free(text);
    return err == DT_OK ? take_items(items, path) : err;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static void put(FILE *f, const char *text, bool *any)
{
    if (!text || !*text) return;
    if (*any) fputc(' ', f);
    fputs(text, f);
    *any = true;
}

static void put_value(FILE *f, const json_t *value, bool *any)
{
    const json_t *part;
    char number[40];
    size_t i;
    if (json_is_integer(value)) snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
    if (json_is_real(value)) snprintf(number, sizeof number, "%.17g", json_real_value(value));
    if (json_is_number(value)) put(f, number, any);
    put(f, json_string_value(value), any);
    json_array_foreach(value, i, part) { put_value(f, part, any); }
}

/* Fields other than the title may be lists in Python notation. */
static void put_field(FILE *f, const char *name, const json_t *value, bool *any)
{
    const char *text = json_string_value(value);
    json_t *list = NULL;
    if (text && text[0] == '[' && strcmp(name, "title") != 0 && dt_python_list(&list, text, strlen(text)) != DT_OK)
        dt_error_clear();
    put_value(f, list ? list : value, any);
    json_decref(list);
}

char *dt_sid_item_text(const dt_sid_items *items, int64_t i, const char *const *fields, int n_fields)
{
    char *text = NULL;
    size_t nbytes = 0;
    bool any = false;
    FILE *f = open_memstream(&text, &nbytes);
    if (!f) return NULL;
    for (int k = 0; k < n_fields; k++) put_field(f, fields[k], json_object_get(items->item[i], fields[k]), &any);
    const bool ok = !ferror(f);
    if (fclose(f) == 0 && ok) return text;
    free(text);
    return NULL;
}

bool dt_sid_items_have(const dt_sid_items *items, const char *field)
{
    for (int64_t i = 0; i < items->n; i++)
        if (json_object_get(items->item[i], field)) return true;
    return false;
}

void dt_sid_items_free(dt_sid_items *items)
{
    json_decref(items->root);
    free(items->id);
    free(items->item);
    *items = (dt_sid_items){0};
}
