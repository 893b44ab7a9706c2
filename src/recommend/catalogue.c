/* catalogue.c - a catalogue of items. The file's text stays in memory and is split into strings in place. Everything
 * else is sorted arrays of 32-bit integers, so a million items need little more memory than their text. */
#include "dtrain/recommend/catalogue.h"
#include "dtrain/io/io.h"
#include "dtrain/tokenizer/tokenizer.h"
#include "dtrain/text/utf8.h"
#include "text_set.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct row {
    uint32_t sid, title, id; /* offsets in the text, which is smaller than 4 GiB */
    int32_t line;
} row;

struct dt_catalogue {
    char *path, *text;
    size_t text_nbytes;
    uint64_t fingerprint;
    row *rows;
    int32_t n_items, n_alloc;
    int32_t *by_sid; /* [n_items] */
    int32_t n_sids;
    text_set levels;
    dt_ledger *ledger;
    size_t nbytes; /* accounted in the ledger */
};

static bool is_sid(const char *text, size_t nbytes)
{
    size_t at = 0;
    for (size_t n; at < nbytes && (n = dt_level_token_len(text + at, nbytes - at)) > 0;) at += n;
    return nbytes > 0 && at == nbytes;
}

static bool is_blank(const char *text, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r') return false;
    return true;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* A text of less than 4 GiB has fewer than 2^30 lines, because a line contains a SID, two tabs and an id. */
static dt_err add_row(dt_catalogue *c, row r)
{
    if (c->n_items == c->n_alloc) {
        const int32_t n = c->n_alloc ? 2 * c->n_alloc : 1024;
        row *grown = realloc(c->rows, (size_t)n * sizeof *grown);
        DT_CHECK(grown, DT_ERR_MEMORY, "%s: out of memory for %d items", c->path, n);
        c->rows = grown;
        c->n_alloc = n;
    }
    c->rows[c->n_items++] = r;
    return DT_OK;
}

/* Parse the line of n bytes at offset from. The byte after it may be overwritten. */
static dt_err take_line(dt_catalogue *c, size_t from, size_t n, int32_t line)
{
    char *text = c->text + from;
    if (n > 0 && text[n - 1] == '\r') n--;
    if (is_blank(text, n)) return DT_OK;
    DT_CHECK(!memchr(text, '\0', n) && dt_utf8_valid(text, n) == n, DT_ERR_DATA,
             "%s:%" PRId32 ": expected text in UTF-8", c->path, line);
    const char *first = memchr(text, '\t', n), *last = memrchr(text, '\t', n);
    DT_CHECK(first && first != last, DT_ERR_DATA,
             "%s:%" PRId32 ": expected three fields separated by tabs (SID, title, item id), found %s", c->path, line,
             first ? "one tab" : "no tab");
    const size_t sid_len = (size_t)(first - text), title = sid_len + 1, title_end = (size_t)(last - text);
    DT_CHECK(is_sid(text, sid_len), DT_ERR_DATA,
             "%s:%" PRId32 ": expected a semantic ID such as <a_17><b_203><c_5>, found \"%.*s\"", c->path, line,
             (int)dt_min_size(sid_len, 200), text);
    DT_CHECK(title_end + 1 < n, DT_ERR_DATA, "%s:%" PRId32 ": expected an item id after the last tab, found none",
             c->path, line);
    text[sid_len] = text[title_end] = text[n] = '\0';
    return add_row(c, (row){.sid = (uint32_t)from,
                            .title = (uint32_t)(from + title),
                            .id = (uint32_t)(from + title_end + 1),
                            .line = line});
}

static dt_err take_lines(dt_catalogue *c)
{
    const size_t n = c->text_nbytes;
    size_t from = n >= 3 && memcmp(c->text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    for (int32_t line = 1; from < n; line++) {
        const char *newline = memchr(c->text + from, '\n', n - from);
        const size_t end = newline ? (size_t)(newline - c->text) : n;
        DT_TRY(take_line(c, from, end - from, line));
        from = end + 1;
    }
    DT_CHECK(c->n_items > 0, DT_ERR_DATA, "%s: expected items (lines SID, tab, title, tab, item id), found none",
             c->path);
    return DT_OK;
}

/* ---- orders ------------------------------------------------------------------------------------------------------ */

typedef struct key {
    const char *text;
    int32_t item;
} key;

static int by_text(const void *a, const void *b)
{
    const key *x = a, *y = b;
    const int order = strcmp(x->text, y->text); /* bytewise */
    return order ? order : (x->item > y->item) - (x->item < y->item);
}

static dt_err sort_items(const dt_catalogue *c, bool ids, int32_t **order)
{
    const size_t n = (size_t)c->n_items;
    key *keys = malloc(n * sizeof *keys);
    *order = malloc(n * sizeof **order);
    for (size_t i = 0; keys && i < n; i++)
        keys[i] = (key){c->text + (ids ? c->rows[i].id : c->rows[i].sid), (int32_t)i};
    if (keys && *order) {
        qsort(keys, n, sizeof *keys, by_text);
        for (size_t i = 0; i < n; i++) (*order)[i] = keys[i].item;
    }
    const bool ok = keys && *order;
    free(keys);
    DT_CHECK(ok, DT_ERR_MEMORY, "%s: no memory to sort %zu items", c->path, n);
    return DT_OK;
}

static const char *sid_of(const dt_catalogue *c, int32_t item) { return c->text + c->rows[item].sid; }
static const char *id_of(const dt_catalogue *c, int32_t item) { return c->text + c->rows[item].id; }

static dt_err check_ids(const dt_catalogue *c)
{
    int32_t *by_id, i = 1;
    DT_TRY(sort_items(c, true, &by_id));
    while (i < c->n_items && strcmp(id_of(c, by_id[i - 1]), id_of(c, by_id[i])) != 0) i++;
    const int32_t a = by_id[i - 1], b = i < c->n_items ? by_id[i] : a;
    free(by_id);
    DT_CHECK(a == b, DT_ERR_DATA, "%s:%" PRId32 ": item id %s is a duplicate of line %" PRId32, c->path,
             c->rows[b].line, id_of(c, b), c->rows[a].line);
    return DT_OK;
}

/* ---- level tokens ------------------------------------------------------------------------------------------------ */

/* Equal tokens are adjacent in the order of SIDs. A token that the previous SID has at the same level is skipped. */
static dt_err collect_levels(dt_catalogue *c)
{
    const char *before = "";
    for (int32_t i = 0; i < c->n_items; i++) {
        const char *sid = sid_of(c, c->by_sid[i]), *old = before, *at = sid;
        for (size_t n; (n = dt_level_token_len(at, strlen(at))) > 0; at += n) {
            const size_t m = dt_level_token_len(old, strlen(old));
            if (m != n || memcmp(old, at, n) != 0) DT_TRY(text_set_add(&c->levels, at, n));
            old += m;
        }
        before = sid;
    }
    text_set_sort(&c->levels);
    return DT_OK;
}

/* ---- opening, reading -------------------------------------------------------------------------------------------- */

static dt_err read_file(dt_catalogue *c, const char *path)
{
    c->path = strdup(path);
    DT_CHECK(c->path, DT_ERR_MEMORY, "%s: out of memory for a path", path);
    DT_TRY(dt_read_file(path, UINT32_MAX, &c->text, &c->text_nbytes));
    c->fingerprint = dt_checksum(c->text, 0, (int64_t)c->text_nbytes, 1); /* before strings are split */
    DT_TRY(take_lines(c));
    DT_TRY(sort_items(c, false, &c->by_sid));
    DT_TRY(check_ids(c));
    for (int32_t i = 0; i < c->n_items; i++)
        c->n_sids += i == 0 || strcmp(sid_of(c, c->by_sid[i - 1]), sid_of(c, c->by_sid[i])) != 0;
    DT_TRY(collect_levels(c));
    row *fitting = realloc(c->rows, (size_t)c->n_items * sizeof *fitting);
    if (fitting) c->rows = fitting;
    return DT_OK;
}

dt_err dt_catalogue_open(dt_catalogue **out, const char *path, dt_ledger *ledger)
{
    dt_catalogue *c = calloc(1, sizeof *c);
    *out = NULL;
    DT_CHECK(c, DT_ERR_MEMORY, "%s: out of memory for a catalogue", path);
    const dt_err err = read_file(c, path);
    if (err != DT_OK) {
        dt_catalogue_close(c);
        return err;
    }
    c->ledger = ledger;
    c->nbytes = c->text_nbytes + 1 + (size_t)c->n_items * (sizeof *c->rows + sizeof *c->by_sid) +
                (size_t)c->levels.n_alloc * sizeof *c->levels.text;
    for (int32_t i = 0; i < c->levels.n; i++) c->nbytes += strlen(c->levels.text[i]) + 1;
    dt_ledger_add(ledger, DT_MEM_DATA, DT_ON_HOST, c->nbytes);
    *out = c;
    return DT_OK;
}

void dt_catalogue_close(dt_catalogue *c)
{
    if (!c) return;
    dt_ledger_sub(c->ledger, DT_MEM_DATA, DT_ON_HOST, c->nbytes);
    dt_list_free(c->levels.text, c->levels.n);
    free(c->by_sid);
    free(c->rows);
    free(c->text);
    free(c->path);
    free(c);
}

size_t dt_catalogue_nbytes(const dt_catalogue *c) { return c ? c->nbytes : 0; }

const char *dt_catalogue_path(const dt_catalogue *c) { return c->path; }
uint64_t dt_catalogue_fingerprint(const dt_catalogue *c) { return c->fingerprint; }
int32_t dt_catalogue_n_items(const dt_catalogue *c) { return c->n_items; }

dt_catalogue_item dt_catalogue_get(const dt_catalogue *c, int32_t item)
{
    const row *r = &c->rows[item];
    return (dt_catalogue_item){c->text + r->sid, c->text + r->title, c->text + r->id, r->line};
}

/* strcmp of a string and a text of n bytes. */
static int compare_to(const char *text, const char *other, size_t n)
{
    const int order = strncmp(text, other, n);
    return order ? order : text[n] != '\0';
}

int32_t dt_catalogue_find(const dt_catalogue *c, const char *sid, size_t nbytes)
{
    int32_t low = 0, high = c->n_items;
    if (memchr(sid, '\0', nbytes)) return -1;
    while (low < high) {
        const int32_t at = low + (high - low) / 2;
        if (compare_to(sid_of(c, c->by_sid[at]), sid, nbytes) < 0)
            low = at + 1;
        else
            high = at;
    }
    return low < c->n_items && compare_to(sid_of(c, c->by_sid[low]), sid, nbytes) == 0 ? c->by_sid[low] : -1;
}

const char *dt_sid_in(const char *text, size_t *nbytes)
{
    static const char around[] = " \t\r\n\"'";
    text += strspn(text, around);
    *nbytes = strlen(text);
    while (*nbytes > 0 && strchr(around, text[*nbytes - 1])) --*nbytes;
    return text;
}

const int32_t *dt_catalogue_by_sid(const dt_catalogue *c) { return c->by_sid; }
int32_t dt_catalogue_n_sids(const dt_catalogue *c) { return c->n_sids; }
int32_t dt_catalogue_n_levels(const dt_catalogue *c) { return c->levels.n; }
const char *dt_catalogue_level(const dt_catalogue *c, int32_t i) { return c->levels.text[i]; }
