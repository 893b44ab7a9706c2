/* unicode.c - lookups in the Unicode tables, and sets of characters from them. */
#include "dtrain/text/unicode.h"

#include <ctype.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { LAST = 0x10ffff };

/* ---- tables ------------------ */

/* Read a number of digits in base 45, the lowest first. 45 is added to each digit except the last. Symbols are the
 * printable characters in order, without space, ", ? and backslash. */
static uint32_t unpack_number(const char **p)
{
    uint32_t n = 0, digit, unit = 1;
    do {
        const int c = *(*p)++;
        digit = (uint32_t)(c - '!' - (c > '"') - (c > '?') - (c > '\\'));
        n += digit % 45 * unit;
        unit *= 45;
    } while (digit >= 45);
    return n;
}

static uint32_t usual_flags(uint32_t category)
{
    return (category <= DT_CAT_LO || category == DT_CAT_NL ? DT_GENERAL_ALPHABETIC : 0) |
           (category >= DT_CAT_ND && category <= DT_CAT_NO ? DT_GENERAL_NUMERIC : 0) |
           (category >= DT_CAT_PC && category <= DT_CAT_PO ? DT_GENERAL_PUNCTUATION : 0);
}

static void unpack_tables(void)
{
    for (int kind = DT_UNICODE_GENERAL; kind <= DT_UNICODE_LOWER; kind++) {
        dt_unicode_table *t = &dt_unicode_tables[kind];
        const char *p = t->packed;
        for (uint32_t i = 0, c = 0; i < t->n; i++) {
            const uint32_t length = unpack_number(&p) + 1, value = unpack_number(&p);
            t->run[i] =
                c << 8 | (kind == DT_UNICODE_GENERAL ? value ^ usual_flags(value & DT_GENERAL_CATEGORY) : value);
            c += length;
        }
    }
}

const dt_unicode_table *dt_unicode_get(dt_unicode_kind kind)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, unpack_tables);
    return &dt_unicode_tables[kind];
}

/* The run that contains c, as 256 * its first character + its value. */
static uint32_t run_of(dt_unicode_kind kind, uint32_t c)
{
    const dt_unicode_table *t = dt_unicode_get(kind);
    size_t low = 0, high = t->n; /* run[low] starts at c or before */
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (t->run[middle] >> 8 <= c)
            low = middle;
        else
            high = middle;
    }
    return t->run[low];
}

static uint8_t general(uint32_t c) { return run_of(DT_UNICODE_GENERAL, c) & 255; }

dt_category dt_unicode_category(uint32_t c) { return (dt_category)(general(c) & DT_GENERAL_CATEGORY); }

bool dt_unicode_is_letter(uint32_t c) { return dt_unicode_category(c) <= DT_CAT_LO; }

bool dt_unicode_is_word(uint32_t c)
{
    const uint8_t g = general(c), category = g & DT_GENERAL_CATEGORY;
    return g & DT_GENERAL_ALPHABETIC || (category >= DT_CAT_MN && category <= DT_CAT_ND) || category == DT_CAT_PC ||
           c == 0x200c || c == 0x200d;
}

uint32_t dt_unicode_lower(uint32_t c)
{
    const uint32_t run = run_of(DT_UNICODE_LOWER, c), value = run & 255;
    const bool stays = value & (c - (run >> 8)) & 1; /* in such runs, every second character maps to itself */
    return stays ? c : (uint32_t)((int32_t)c + dt_unicode_lower_distances[value / 2]);
}

bool dt_unicode_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* ---- sets ------------------ */

void dt_code_ranges_add(dt_code_ranges *r, uint32_t first, uint32_t last)
{
    r->failed = r->failed || dt_grow(&r->item, (int64_t)r->n, sizeof *r->item, "out of memory for characters") != DT_OK;
    if (!r->failed) r->item[r->n++] = (dt_code_range){first, last};
}

void dt_code_ranges_add_all(dt_code_ranges *r, const dt_code_ranges *other)
{
    r->failed = r->failed || other->failed;
    for (size_t i = 0; i < other->n; i++) dt_code_ranges_add(r, other->item[i].first, other->item[i].last);
}

/* Add the runs whose value v has bit v % 64 set in values[v / 64]. */
static void add_runs(dt_code_ranges *r, dt_unicode_kind kind, const uint64_t values[4])
{
    const dt_unicode_table *t = dt_unicode_get(kind);
    for (size_t i = 0; i < t->n; i++) {
        const uint8_t value = t->run[i] & 255;
        if (values[value / 64] >> value % 64 & 1)
            dt_code_ranges_add(r, t->run[i] >> 8, i + 1 < t->n ? (t->run[i + 1] >> 8) - 1 : LAST);
    }
}

void dt_code_ranges_add_categories(dt_code_ranges *r, uint32_t categories)
{
    const uint64_t both = (uint64_t)categories << 32 | categories; /* with any flags */
    add_runs(r, DT_UNICODE_GENERAL, (uint64_t[4]){both, both, both, both});
}

void dt_code_ranges_add_flag(dt_code_ranges *r, uint8_t flag)
{
    uint64_t values[4] = {0};
    for (unsigned v = 0; v < 256; v++) values[v / 64] |= (uint64_t)((v & flag) != 0) << v % 64;
    add_runs(r, DT_UNICODE_GENERAL, values);
}

void dt_code_ranges_add_spaces(dt_code_ranges *r)
{
    for (uint32_t c = 0; c <= 0x3000; c++)
        if (dt_unicode_is_space(c)) dt_code_ranges_add(r, c, c);
}

static int by_first(const void *a, const void *b)
{
    const dt_code_range *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

void dt_code_ranges_settle(dt_code_ranges *r)
{
    size_t n = 0;
    if (r->n) qsort(r->item, r->n, sizeof *r->item, by_first);
    for (size_t i = 0; i < r->n; i++) {
        if (n > 0 && r->item[i].first <= r->item[n - 1].last + 1) {
            if (r->item[i].last > r->item[n - 1].last) r->item[n - 1].last = r->item[i].last;
        } else {
            r->item[n++] = r->item[i];
        }
    }
    r->n = n;
}

void dt_code_ranges_negate(dt_code_ranges *r)
{
    dt_code_ranges other = {0};
    uint32_t next = 0;
    for (size_t i = 0; i < r->n; i++) {
        if (r->item[i].first > next) dt_code_ranges_add(&other, next, r->item[i].first - 1);
        next = r->item[i].last + 1;
    }
    if (next <= LAST) dt_code_ranges_add(&other, next, LAST);
    other.failed = other.failed || r->failed;
    free(r->item);
    *r = other;
}

/* ---- properties ------------------ */

/* Property names: in the order of dt_category, then of groups[], then two properties. */
static const char general_names[] =
    "lu uppercaseletter,ll lowercaseletter,lt titlecaseletter,lm modifierletter,lo otherletter,mn nonspacingmark,"
    "mc spacingmark,me enclosingmark,nd decimalnumber digit,nl letternumber,no othernumber,pc connectorpunctuation,"
    "pd dashpunctuation,ps openpunctuation,pe closepunctuation,pi initialpunctuation,pf finalpunctuation,"
    "po otherpunctuation,sm mathsymbol,sc currencysymbol,sk modifiersymbol,so othersymbol,zs spaceseparator,"
    "zl lineseparator,zp paragraphseparator,cc control,cf format,co privateuse,cn unassigned,"
    "l letter,m mark,n number,p punctuation,s symbol,z separator,c other,lc casedletter,alphabetic alpha,whitespace";
static const struct {
    dt_category first, last;
} groups[] = {{DT_CAT_LU, DT_CAT_LO}, {DT_CAT_MN, DT_CAT_ME}, {DT_CAT_ND, DT_CAT_NO}, {DT_CAT_PC, DT_CAT_PO},
              {DT_CAT_SM, DT_CAT_SO}, {DT_CAT_ZS, DT_CAT_ZP}, {DT_CAT_CC, DT_CAT_CN}, {DT_CAT_LU, DT_CAT_LT}};
enum { GROUPS = DT_CAT_CN + 1, ALPHABETIC = GROUPS + 8 };

/* Index of a name in a list like general_names, -1: missing. */
static int find_name(const char *list, const char *name)
{
    for (int at = 0;; at += *list++ == ',') {
        const size_t n = strcspn(list, " ,");
        if (n == strlen(name) && memcmp(list, name, n) == 0) return at;
        if (!*(list += n)) return -1;
    }
}

bool dt_code_ranges_add_property(dt_code_ranges *r, const char *raw)
{
    char name[40];
    size_t n = 0;
    for (; *raw; raw++) {
        if (*raw == ' ' || *raw == '-' || *raw == '_') continue;
        if (n + 1 == sizeof name) return false;
        name[n++] = (char)tolower((unsigned char)*raw);
    }
    name[n] = '\0';
    const int k = find_name(general_names, name), script = find_name(dt_unicode_script_names, name) + 1;
    uint64_t of_script[4] = {0};
    of_script[script / 64] = (uint64_t)1 << script % 64;
    if (k < 0 && script == 0) return false;
    if (k < 0)
        add_runs(r, DT_UNICODE_SCRIPT, of_script);
    else if (k < GROUPS)
        dt_code_ranges_add_categories(r, 1u << k);
    else if (k < ALPHABETIC)
        dt_code_ranges_add_categories(r, (2u << groups[k - GROUPS].last) - (1u << groups[k - GROUPS].first));
    else if (k == ALPHABETIC)
        dt_code_ranges_add_flag(r, DT_GENERAL_ALPHABETIC);
    else
        dt_code_ranges_add_spaces(r);
    return true;
}

/* ---- tables of one byte per character ----------- */

/* Equal pages are stored once. Most pages equal the previous one, which is tried first. */
static dt_err keep_page(dt_char_table *t, size_t page, const uint8_t cells[256])
{
    size_t k = page > 0 && memcmp(t->cell[t->page[page - 1]], cells, 256) == 0 ? t->page[page - 1] : 0;
    while (k < t->n_pages && memcmp(t->cell[k], cells, 256) != 0) k++;
    if (k == t->n_pages) {
        DT_GROW(t->cell, t->n_pages, "out of memory for a table of characters");
        memcpy(t->cell[t->n_pages++], cells, 256);
    }
    t->page[page] = (uint16_t)k;
    return DT_OK;
}

dt_err dt_char_table_make(dt_char_table *t, const uint32_t *runs, size_t n_runs)
{
    uint8_t cells[256];
    size_t run = 0;
    dt_err err = DT_OK;
    *t = (dt_char_table){.cell = NULL};
    for (uint32_t c = 0; c <= LAST && err == DT_OK; c++) {
        while (run + 1 < n_runs && runs[run + 1] >> 8 <= c) run++;
        cells[c & 255] = runs[run] & 255;
        if ((c & 255) == 255) err = keep_page(t, c >> 8, cells);
    }
    if (err != DT_OK) dt_char_table_free(t);
    return err;
}

void dt_char_table_free(dt_char_table *t)
{
    free(t->cell);
    *t = (dt_char_table){.cell = NULL};
}
