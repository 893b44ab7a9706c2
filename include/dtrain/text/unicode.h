/* unicode.h - properties of characters: general category, script, case, and the effect of normal forms. Every function
 * is Local.
 *
 * The tables are part of the program, because token ids must not depend on the Unicode version of an installed library.
 * They were extracted from Hugging Face's tokenizers (tools/make_unicode.py), whose components use different versions:
 * 16.0 for classes in expressions, 17.0 for digits and lower case, 12.0 for normal forms, an older one for
 * punctuation. utf8proc computes the normal forms. */
#ifndef DTRAIN_TEXT_UNICODE_H
#define DTRAIN_TEXT_UNICODE_H

#include "dtrain/core/core.h"
#include "dtrain/text/utf8.h"

/* ---- tables (unicode_tables.c) ----------------------------------------------------------------------------------- */

/** Values of DT_UNICODE_GENERAL: a category and flags. */
/* clang-format off */
typedef enum dt_category {
    DT_CAT_LU, DT_CAT_LL, DT_CAT_LT, DT_CAT_LM, DT_CAT_LO, DT_CAT_MN, DT_CAT_MC, DT_CAT_ME, DT_CAT_ND, DT_CAT_NL,
    DT_CAT_NO, DT_CAT_PC, DT_CAT_PD, DT_CAT_PS, DT_CAT_PE, DT_CAT_PI, DT_CAT_PF, DT_CAT_PO, DT_CAT_SM, DT_CAT_SC,
    DT_CAT_SK, DT_CAT_SO, DT_CAT_ZS, DT_CAT_ZL, DT_CAT_ZP, DT_CAT_CC, DT_CAT_CF, DT_CAT_CO, DT_CAT_CN
} dt_category;
/* clang-format on */
/** Flags: alphabetic; digit and punctuation as the pre-tokenizers Digits and Punctuation define them. */
enum { DT_GENERAL_CATEGORY = 31, DT_GENERAL_ALPHABETIC = 32, DT_GENERAL_NUMERIC = 64, DT_GENERAL_PUNCTUATION = 128 };

/** Values of DT_UNICODE_NORMAL: bit k for each form NFC, NFD, NFKC, NFKD that changes the single character; it has a
 *  combining class; it may compose with a preceding character; a following character may compose with it. */
enum { DT_NORMAL_MOVES = 16, DT_NORMAL_COMPOSES = 32, DT_NORMAL_BEGINS = 64 };

typedef enum dt_unicode_kind {
    DT_UNICODE_GENERAL,
    DT_UNICODE_NORMAL,
    DT_UNICODE_SCRIPT,
    DT_UNICODE_LOWER
} dt_unicode_kind;
/** packed stores length - 1 and value of each run, and flags as the difference to those usual in the category. */
typedef struct dt_unicode_table {
    const char *packed;
    uint32_t *run; /* [n] code point * 256 + value, valid up to the next run */
    size_t n;
} dt_unicode_table;
extern dt_unicode_table dt_unicode_tables[];
/** Scripts separated by commas, aliases by spaces. Value k + 1 of DT_UNICODE_SCRIPT is script k, 0 none. */
extern const char dt_unicode_script_names[];

/** Value 2 k + s of DT_UNICODE_LOWER: the lower case is at distance k of this list, 0 first. s 1: of the run's first,
 *  third, ... character; the others have none. */
extern const int32_t dt_unicode_lower_distances[];

/* ---- lookups ----------------------------------------------------------------------------------------------------- */

/** A table. The first call unpacks all tables. */
const dt_unicode_table *dt_unicode_get(dt_unicode_kind kind);
/** The general category of a character. */
dt_category dt_unicode_category(uint32_t c);
/** Is it a letter? */
bool dt_unicode_is_letter(uint32_t c);
bool dt_unicode_is_space(uint32_t c);  /* property White_Space */
bool dt_unicode_is_word(uint32_t c);   /* alphabetic, M, Nd, Pc, and the two joiners: \w of the crate regex */
uint32_t dt_unicode_lower(uint32_t c); /* U+0130, which becomes two characters, is unchanged */

/* ---- normal forms, by utf8proc (normal_form.c) ------------------------------------------------------------------- */

/** NFD, and what changes it: NFKD, NFC; and the folding of upper and lower case. */
enum { DT_FORM_COMPATIBLE = 1, DT_FORM_COMPOSED = 2, DT_FORM_CASE_FOLDED = 4 };
/** DT_ERR_USAGE: built without utf8proc. DT_ERR_DATA: its Unicode is older than DT_UNICODE_NORMAL. */
dt_err dt_unicode_check_forms(void);
/** The form of text [n]. *formed: out, [*n_formed] and a NUL, malloc'ed. DT_ERR_DATA: not UTF-8. DT_ERR_MEMORY. */
dt_err dt_unicode_form(const char *text, size_t n, unsigned how, char **formed, size_t *n_formed);

/* ---- sets of characters ------------------------------------------------------------------------------------------ */

typedef struct dt_code_range {
    uint32_t first, last;
} dt_code_range;
/** {0} to begin; free item. */
typedef struct dt_code_ranges {
    dt_code_range *item;
    size_t n;
    bool failed; /* out of memory */
} dt_code_ranges;

/** Append the characters first .. last. Failure sets r->failed, as in the functions below. */
void dt_code_ranges_add(dt_code_ranges *r, uint32_t first, uint32_t last);
/** Append the ranges of another set. */
void dt_code_ranges_add_all(dt_code_ranges *r, const dt_code_ranges *other);
/** Add the characters of these categories, bits numbered as dt_category. */
void dt_code_ranges_add_categories(dt_code_ranges *r, uint32_t categories);
/** Add the characters with this flag. */
void dt_code_ranges_add_flag(dt_code_ranges *r, uint8_t flag);
/** Add the characters of a property by its Oniguruma name (ignoring case, spaces, - and _): a category, Alphabetic,
 *  White_Space, or a script. False: unknown. */
bool dt_code_ranges_add_property(dt_code_ranges *r, const char *name);
/** Add the white space characters. */
void dt_code_ranges_add_spaces(dt_code_ranges *r);
void dt_code_ranges_settle(dt_code_ranges *r); /* sort, and merge overlapping and adjacent ranges */
void dt_code_ranges_negate(dt_code_ranges *r); /* complement; after dt_code_ranges_settle */

/* ---- character tables -------------------------------------------------------------------------------------------- */

typedef struct dt_char_table {
    uint16_t page[0x1100];
    uint8_t (*cell)[256];
    size_t n_pages;
} dt_char_table;

static inline uint8_t dt_char_value(const dt_char_table *t, uint32_t c) { return t->cell[t->page[c >> 8]][c & 255]; }
/** Build a table from runs as in dt_unicode_table. t: out, freed with dt_char_table_free. DT_ERR_MEMORY. */
dt_err dt_char_table_make(dt_char_table *t, const uint32_t *runs, size_t n_runs);
/** Free the table. */
void dt_char_table_free(dt_char_table *t);

/** Code point of the first character of valid UTF-8; n: out, its bytes. */
static inline uint32_t dt_utf8_decode(const char *text, size_t *n)
{
    const unsigned char *p = (const unsigned char *)text;
    if (p[0] < 0x80) return *n = 1, p[0];
    if (p[0] < 0xe0) return *n = 2, (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    if (p[0] < 0xf0) return *n = 3, (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    return *n = 4, (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
}

#endif
