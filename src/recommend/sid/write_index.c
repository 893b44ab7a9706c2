/* write_index.c - writes the index and info files, and statistics of code usage per level. */
#include "dtrain/recommend/sid.h"
#include "dtrain/make/rec_files.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

dt_err dt_sid_count_use(const int32_t *code, int64_t n, int64_t n_codes, dt_sid_use *use)
{
    int64_t *count = calloc((size_t)n_codes, sizeof *count);
    double entropy = 0;
    DT_CHECK(count, DT_ERR_MEMORY, "out of memory for %" PRId64 " counts", n_codes);
    *use = (dt_sid_use){0};
    for (int64_t i = 0; i < n; i++) count[code[i]]++;
    for (int64_t k = 0; k < n_codes; k++) {
        if (count[k] == 0) continue;
        const double share = (double)count[k] / (double)n;
        use->n_used++;
        use->largest = dt_max_i64(use->largest, count[k]);
        entropy -= share * log(share);
    }
    use->perplexity = exp(entropy);
    free(count);
    return DT_OK;
}

#define TOKEN "<%c_%d>" /* at most 15 bytes */

static dt_err put_index(FILE *f, const dt_sid_items *items, int32_t *const *code, int n_levels, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        fputs(i == 0 ? "{\n" : ",\n", f);
        if (items) {
            json_t *id = json_string(items->id[i]);
            const int bad = id ? json_dumpf(id, f, JSON_ENCODE_ANY) : -1;
            json_decref(id);
            DT_CHECK(bad == 0, DT_ERR_MEMORY, "out of memory for the id of item %" PRId64, i);
        } else {
            fprintf(f, "\"%" PRId64 "\"", i);
        }
        for (int l = 0; l < n_levels; l++) {
            fputs(l == 0 ? ": [\"" : "\", \"", f);
            fprintf(f, TOKEN, 'a' + l, code[l][i]);
        }
        fputs("\"]", f);
    }
    fputs("\n}\n", f);
    return DT_OK;
}

static dt_err put_info(FILE *f, const dt_sid_items *items, int32_t *const *code, int n_levels, int64_t n)
{
    char sid[DT_SID_MAX_LEVELS * 16];
    for (int64_t i = 0; i < n; i++) {
        char *title = dt_sid_item_text(items, i, &(const char *){"title"}, 1);
        DT_CHECK(title, DT_ERR_MEMORY, "out of memory for the title of item %s", items->id[i]);
        for (int l = 0, at = 0; l < n_levels; l++)
            at += snprintf(sid + at, sizeof sid - (size_t)at, TOKEN, 'a' + l, code[l][i]);
        dt_info_line(f, sid, title, items->id[i]);
        free(title);
    }
    return DT_OK;
}

typedef dt_err (*put_text)(FILE *f, const dt_sid_items *items, int32_t *const *code, int n_levels, int64_t n);

static dt_err write_text(const char *prefix, const char *ending, put_text put, const dt_sid_items *items,
                         int32_t *const *code, int n_levels, int64_t n)
{
    char path[PATH_MAX], *text = NULL;
    size_t nbytes = 0;
    DT_CHECK((size_t)snprintf(path, sizeof path, "%s%s", prefix, ending) < sizeof path, DT_ERR_USAGE,
             "%s%s: the name is too long", prefix, ending);
    FILE *f = open_memstream(&text, &nbytes);
    DT_CHECK(f, DT_ERR_MEMORY, "%s: out of memory", path);
    dt_err err = put(f, items, code, n_levels, n);
    const bool lost = ferror(f);
    if ((fclose(f) != 0 || lost) && err == DT_OK) err = dt_fail(DT_ERR_MEMORY, "%s: out of memory", path);
    if (err == DT_OK) err = dt_write_file_atomic(path, text, nbytes);
    free(text);
    return err;
}

dt_err dt_sid_write(const char *prefix, const dt_sid_items *items, int32_t *const *code, int n_levels, int64_t n)
{
    DT_TRY(write_text(prefix, ".index.json", put_index, items, code, n_levels, n));
    return items ? write_text(prefix, ".txt", put_info, items, code, n_levels, n) : DT_OK;
}
