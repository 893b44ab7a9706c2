/* unicode.c - looking things up in the tables, and sets of characters made of them. */
#include "dtrain/text/unicode.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { LAST = 0x10ffff };

uint8_t dt_unicode_find(const uint32_t *runs, size_t n_runs, uint32_t c)
{
    size_t low = 0, high = n_runs; /* runs[low] begins at c or before */
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (runs[middle] >> 8 <= c)
            low = middle;
        else
            high = middle;
    }
    return runs[low] & 255;
}

static uint8_t general(uint32_t c) { return dt_unicode_find(dt_unicode_general, dt_unicode_general_n, c); }

bool dt_unicode_is_letter(uint32_t c) { return (general(c) & DT_GENERAL_CATEGORY) <= DT_CAT_LO; }

bool dt_unicode_is_word(uint32_t c)
{
    const uint8_t g = general(c), category = g & DT_GENERAL_CATEGORY;
    return g & DT_GENERAL_ALPHABETIC || (category >= DT_CAT_MN && category <= DT_CAT_ND) || category == DT_CAT_PC ||
           c == 0x200c || c == 0x200d;
}

uint32_t dt_unicode_lower(uint32_t c)
{
    size_t low = 0, high = dt_unicode_n_lower_runs;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (dt_unicode_lower_runs[middle].first <= c)
            low = middle;
        else
            high = middle;
    }
    const dt_lower_run *r = &dt_unicode_lower_runs[low];
    const bool has = c >= r->first && c <= r->last && (c - r->first) % (uint32_t)r->step == 0;
    return has ? (uint32_t)((int64_t)c + r->distance) : c;
}

/* ---- sets ------------------ */

void dt_code_ranges_add(dt_code_ranges *r, uint32_t first, uint32_t last)
{
    if (r->failed) return;
    if (r->n == r->n_alloc) {
        const size_t n = r->n_alloc ? 2 * r->n_alloc : 16;
        dt_code_range *more = realloc(r->item, n * sizeof *more);
        if (!more) {
            r->failed = true;
            return;
        }
        r->item = more;
        r->n_alloc = n;
    }
    r->item[r->n++] = (dt_code_range){first, last};
}

void dt_code_ranges_add_all(dt_code_ranges *r, const dt_code_ranges *other)
{
    r->failed = r->failed || other->failed;
    for (size_t i = 0; i < other->n; i++) dt_code_ranges_add(r, other->item[i].first, other->item[i].last);
}

void dt_code_ranges_add_runs(dt_code_ranges *r, const uint32_t *runs, size_t n_runs, uint8_t mask, uint64_t wanted)
{
    for (size_t i = 0; i < n_runs; i++)
        if (wanted >> (runs[i] & mask) & 1)
            dt_code_ranges_add(r, runs[i] >> 8, i + 1 < n_runs ? (runs[i + 1] >> 8) - 1 : LAST);
}

void dt_code_ranges_add_flag(dt_code_ranges *r, const uint32_t *runs, size_t n_runs, uint8_t flag)
{
    for (size_t i = 0; i < n_runs; i++)
        if (runs[i] & flag) dt_code_ranges_add(r, runs[i] >> 8, i + 1 < n_runs ? (runs[i + 1] >> 8) - 1 : LAST);
}

void dt_code_ranges_add_spaces(dt_code_ranges *r)
{
    static const dt_code_range spaces[] = {{9, 13},          {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},
                                           {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
                                           {0x205f, 0x205f}, {0x3000, 0x3000}};
    for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++)
        dt_code_ranges_add(r, spaces[i].first, spaces[i].last);
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

/* As bits of a dt_category. */
static const struct {
    const char *name, *name_too;
    uint32_t categories;
} general_names[] = {
#define BIT(cat) (1u << DT_CAT_##cat)
    {"l", "letter", BIT(LU) | BIT(LL) | BIT(LT) | BIT(LM) | BIT(LO)},
    {"m", "mark", BIT(MN) | BIT(MC) | BIT(ME)},
    {"n", "number", BIT(ND) | BIT(NL) | BIT(NO)},
    {"p", "punctuation", BIT(PC) | BIT(PD) | BIT(PS) | BIT(PE) | BIT(PI) | BIT(PF) | BIT(PO)},
    {"s", "symbol", BIT(SM) | BIT(SC) | BIT(SK) | BIT(SO)},
    {"z", "separator", BIT(ZS) | BIT(ZL) | BIT(ZP)},
    {"c", "other", BIT(CC) | BIT(CF) | BIT(CO) | BIT(CN)},
    {"lc", "casedletter", BIT(LU) | BIT(LL) | BIT(LT)},
    {"lu", "uppercaseletter", BIT(LU)},
    {"ll", "lowercaseletter", BIT(LL)},
    {"lt", "titlecaseletter", BIT(LT)},
    {"lm", "modifierletter", BIT(LM)},
    {"lo", "otherletter", BIT(LO)},
    {"mn", "nonspacingmark", BIT(MN)},
    {"mc", "spacingmark", BIT(MC)},
    {"me", "enclosingmark", BIT(ME)},
    {"nd", "decimalnumber", BIT(ND)},
    {"nl", "letternumber", BIT(NL)},
    {"no", "othernumber", BIT(NO)},
    {"pc", "connectorpunctuation", BIT(PC)},
    {"pd", "dashpunctuation", BIT(PD)},
    {"ps", "openpunctuation", BIT(PS)},
    {"pe", "closepunctuation", BIT(PE)},
    {"pi", "initialpunctuation", BIT(PI)},
    {"pf", "finalpunctuation", BIT(PF)},
    {"po", "otherpunctuation", BIT(PO)},
    {"sm", "mathsymbol", BIT(SM)},
    {"sc", "currencysymbol", BIT(SC)},
    {"sk", "modifiersymbol", BIT(SK)},
    {"so", "othersymbol", BIT(SO)},
    {"zs", "spaceseparator", BIT(ZS)},
    {"zl", "lineseparator", BIT(ZL)},
    {"zp", "paragraphseparator", BIT(ZP)},
    {"cc", "control", BIT(CC)},
    {"cf", "format", BIT(CF)},
    {"co", "privateuse", BIT(CO)},
    {"cn", "unassigned", BIT(CN)},
    {"digit", "digit", BIT(ND)},
#undef BIT
};

static bool is_script(const char *name, size_t k)
{
    for (int i = 0; i < 3 && dt_unicode_script_names[k][i]; i++)
        if (strcmp(name, dt_unicode_script_names[k][i]) == 0) return true;
    return false;
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
    for (size_t i = 0; i < sizeof general_names / sizeof general_names[0]; i++) {
        if (strcmp(name, general_names[i].name) != 0 && strcmp(name, general_names[i].name_too) != 0) continue;
        dt_code_ranges_add_runs(r, dt_unicode_general, dt_unicode_general_n, DT_GENERAL_CATEGORY,
                                general_names[i].categories);
        return true;
    }
    if (strcmp(name, "alphabetic") == 0 || strcmp(name, "alpha") == 0)
        return dt_code_ranges_add_flag(r, dt_unicode_general, dt_unicode_general_n, DT_GENERAL_ALPHABETIC), true;
    if (strcmp(name, "whitespace") == 0) return dt_code_ranges_add_spaces(r), true;
    for (size_t k = 0; k < dt_unicode_n_scripts; k++) {
        if (!is_script(name, k)) continue;
        for (size_t i = 0; i < dt_unicode_script_n; i++)
            if ((dt_unicode_script[i] & 255) == k + 1)
                dt_code_ranges_add(r, dt_unicode_script[i] >> 8,
                                   i + 1 < dt_unicode_script_n ? (dt_unicode_script[i + 1] >> 8) - 1 : LAST);
        return true;
    }
    return false;
}

/* ---- tables ------------------ */

/* Pages that are equal are kept once; neighbours mostly are. */
static bool keep_page(dt_char_table *t, size_t page, const uint8_t cells[256])
{
    size_t k = page > 0 && memcmp(t->cell[t->page[page - 1]], cells, 256) == 0 ? t->page[page - 1] : 0;
    while (k < t->n_pages && memcmp(t->cell[k], cells, 256) != 0) k++;
    if (k == t->n_pages) {
        if (t->n_pages % 64 == 0) {
            uint8_t(*more)[256] = realloc(t->cell, (t->n_pages + 64) * sizeof *more);
            if (!more) return false;
            t->cell = more;
        }
        memcpy(t->cell[t->n_pages++], cells, 256);
    }
    t->page[page] = (uint16_t)k;
    return true;
}

dt_err dt_char_table_make(dt_char_table *t, const uint32_t *runs, size_t n_runs)
{
    uint8_t cells[256];
    size_t run = 0;
    *t = (dt_char_table){.cell = NULL};
    for (uint32_t c = 0; c <= LAST; c++) {
        while (run + 1 < n_runs && runs[run + 1] >> 8 <= c) run++;
        cells[c & 255] = runs[run] & 255;
        if ((c & 255) == 255 && !keep_page(t, c >> 8, cells)) {
            dt_char_table_free(t);
            return dt_fail(DT_ERR_MEMORY, "no memory for a table of characters");
        }
    }
    return DT_OK;
}

void dt_char_table_free(dt_char_table *t)
{
    free(t->cell);
    *t = (dt_char_table){.cell = NULL};
}
