/* charsmap.c - SentencePiece's precompiled normalisation: a double array of UTF-8 texts, and their replacements.
 *
 * Source   Yata, darts-clone (units of a double array); Hugging Face's tokenizers and its crate spm_precompiled, whose
 * rule is applied: a short cluster of characters as a whole, else each character, is replaced by the entry of its
 * shortest beginning that has one. */
#include "normalizer.h"

#include <stdlib.h>
#include <string.h>

struct dt_charsmap {
    const uint32_t *unit; /* [n_units], into bytes */
    size_t n_units;
    const char *texts; /* [n_texts] replacements, each ends with a 0 */
    size_t n_texts;
    unsigned char bytes[];
};

/* A replacement has at most GROWTH times the bytes of the character: no Unicode form has more. Longer clusters are not
 * replaced as a whole. */
enum { GROWTH = 64, SHORT = 6, MAX_CHARSMAP = 64 << 20 };

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static int digit(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Decode base64; false: it is invalid. */
static bool decode(const char *text, size_t n, unsigned char *out, size_t *n_out)
{
    *n_out = 0;
    while (n > 0 && text[n - 1] == '=') n--;
    uint32_t bits = 0;
    for (size_t i = 0; i < n; i++) {
        const int d = digit(text[i]);
        if (d < 0) return false;
        bits = bits << 6 | (uint32_t)d;
        if (i % 4 > 0) out[(*n_out)++] = (unsigned char)(bits >> (6 - 2 * (i % 4)));
    }
    return n % 4 != 1;
}

dt_err dt_charsmap_read(dt_charsmap **out, const dt_spec *s)
{
    const char *text;
    size_t n;
    uint32_t n_trie = 0;
    DT_TRY(dt_spec_only(s, "type precompiled_charsmap"));
    DT_TRY(dt_spec_need_bytes(s, "precompiled_charsmap", &text, &n));
    DT_CHECK(n <= MAX_CHARSMAP, DT_ERR_DATA, "%s: %s.precompiled_charsmap: expected at most %d bytes, found %zu",
             s->file, s->where, MAX_CHARSMAP, n);
    dt_charsmap *m = *out = calloc(1, sizeof *m + n + sizeof n_trie);
    DT_CHECK(m, DT_ERR_MEMORY, "%s: out of memory for its normalizer", s->file);
    const bool valid = decode(text, n, m->bytes, &n) && n >= sizeof n_trie;
    if (valid) memcpy(&n_trie, m->bytes, sizeof n_trie); /* little-endian, as the hosts that dtrain runs on */
    DT_CHECK(valid && n_trie % sizeof(uint32_t) == 0 && n_trie > 0 && n_trie <= n - sizeof n_trie, DT_ERR_DATA,
             "%s: %s.precompiled_charsmap: expected a table in base64, found other text", s->file, s->where);
    m->unit = (const uint32_t *)(const void *)(m->bytes + sizeof n_trie);
    m->n_units = n_trie / sizeof(uint32_t);
    m->texts = (const char *)m->bytes + sizeof n_trie + n_trie;
    m->n_texts = n - sizeof n_trie - n_trie;
    DT_CHECK(dt_utf8_valid(m->texts, m->n_texts) == m->n_texts, DT_ERR_DATA,
             "%s: %s.precompiled_charsmap: expected replacements in UTF-8, found other bytes", s->file, s->where);
    return DT_OK;
}

void dt_charsmap_free(dt_charsmap *m) { free(m); }

/* ---- looking up -------------------------------------------------------------------------------------------------- */

static size_t step(uint32_t unit) { return (size_t)(unit >> 10) << ((unit & 1 << 9) >> 6); }

/* The replacement of the shortest entry with which the text begins; NULL: none. */
static const char *find(const dt_charsmap *m, const char *text, size_t n, size_t *n_found)
{
    size_t at = step(m->unit[0]);
    for (size_t i = 0; i < n && text[i]; i++) {
        at ^= (unsigned char)text[i];
        if (at >= m->n_units || (m->unit[at] & 0x800000ffu) != (unsigned char)text[i]) return NULL;
        const uint32_t unit = m->unit[at];
        at ^= step(unit);
        if (at >= m->n_units) return NULL;
        if (!(unit >> 8 & 1)) continue;
        const size_t value = m->unit[at] & 0x7fffffffu;
        if (value >= m->n_texts || ((unsigned char)m->texts[value] & 0xc0) == 0x80) return NULL;
        const char *end = memchr(m->texts + value, 0, m->n_texts - value);
        *n_found = end ? (size_t)(end - m->texts) - value : m->n_texts - value;
        return m->texts + value;
    }
    return NULL;
}

/* ---- clusters (Unicode Standard Annex 29), as far as short ones need it ------------------------------------------ */

static bool is_in(uint32_t c, const uint32_t (*ranges)[2], size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (c >= ranges[i][0] && c <= ranges[i][1]) return true;
    return false;
}

static bool is_prepended(uint32_t c)
{
    static const uint32_t ranges[][2] = {
        {0x600, 0x605}, {0x6dd, 0x6dd}, {0x70f, 0x70f}, {0x890, 0x891}, {0x8e2, 0x8e2}};
    return is_in(c, ranges, sizeof ranges / sizeof ranges[0]);
}

/* Does it continue a cluster? Some spacing marks of Myanmar and Tai scripts do not. */
static bool is_appended(uint32_t c)
{
    static const uint32_t yes[][2] = {{0x200c, 0x200d}, {0xe33, 0xe33}, {0xeb3, 0xeb3}, {0xff9e, 0xff9f}},
                          no[][2] = {{0x102b, 0x102c}, {0x1038, 0x1038}, {0x1062, 0x1064}, {0x1067, 0x106d},
                                     {0x1083, 0x1083}, {0x1087, 0x108c}, {0x108f, 0x108f}, {0x109a, 0x109c},
                                     {0x1a61, 0x1a61}, {0x1a63, 0x1a64}, {0xaa7b, 0xaa7b}, {0xaa7d, 0xaa7d}};
    const dt_category category = c < 0x300 ? DT_CAT_LL : dt_unicode_category(c);
    if (category == DT_CAT_MN || category == DT_CAT_ME) return true;
    if (category == DT_CAT_MC) return !is_in(c, no, sizeof no / sizeof no[0]);
    return c >= 0x300 && is_in(c, yes, sizeof yes / sizeof yes[0]);
}

static bool is_control(uint32_t c)
{
    const dt_category category = dt_unicode_category(c);
    return category == DT_CAT_CC || category == DT_CAT_ZL || category == DT_CAT_ZP ||
           (category == DT_CAT_CF && c != 0x200c && c != 0x200d && !is_prepended(c));
}

/* Bytes of the cluster that begins at text. */
static size_t cluster(const char *text, size_t n)
{
    size_t end, len;
    uint32_t before = dt_utf8_decode(text, &end);
    if (before == '\r' && n > 1 && text[1] == '\n') return 2;
    if (end == n || (before < 0x600 && (unsigned char)text[end] < 0x80)) return end;
    while (end < n && !is_control(before)) {
        const uint32_t c = dt_utf8_decode(text + end, &len);
        if (!is_appended(c) && !(is_prepended(before) && !is_control(c))) break;
        before = c;
        end += len;
    }
    return end;
}

/* ---- replacing --------------------------------------------------------------------------------------------------- */

typedef struct job {
    const dt_charsmap *map;
    dt_edit edit;
    size_t kept;   /* text from here is still to be copied */
    size_t origin; /* of the output, 0: it is empty so far */
} job;

static size_t first_length(const char *text, size_t n) { return n > 0 ? dt_utf8_length(text, n) : 0; }

/* The first characters of the output stem from the first one of the text, also if others were removed before them: all
 * that replace one character, or the first of those that replace several. */
static void note_origin(job *j, bool single, const char *now, size_t n_now)
{
    if (j->origin == 0) j->origin = single ? n_now : first_length(now, n_now);
}

static dt_err replace(job *j, size_t from, size_t n, bool *found)
{
    size_t n_now;
    const char *was = j->edit.piece->text + from, *now = find(j->map, was, n, &n_now);
    *found = now;
    if (!now) return DT_OK;
    DT_CHECK(n_now <= GROWTH * n, DT_ERR_DATA, "the tokenizer's normalizer makes a text more than %d times as long",
             GROWTH);
    note_origin(j, first_length(was, n) == n, now, n_now);
    dt_edit_keep(&j->edit, j->kept, from);
    dt_edit_change(&j->edit, from, from + n, now, n_now);
    j->kept = from + n;
    return DT_OK;
}

dt_err dt_charsmap_apply(const dt_charsmap *m, dt_text *out, dt_segment *p)
{
    job j = {.map = m, .edit = dt_edit_begin(out, p), .kept = p->from};
    for (size_t i = p->from, n; i < p->to; i += n) {
        bool found = false;
        n = cluster(p->text + i, p->to - i);
        if (n < SHORT) DT_TRY(replace(&j, i, n, &found));
        for (size_t k = i, len; k < i + n && !found; k += len) {
            bool one;
            len = dt_utf8_length(p->text + k, i + n - k);
            DT_TRY(replace(&j, k, len, &one));
            if (!one) note_origin(&j, true, p->text + k, len);
        }
    }
    const bool changed = j.kept > p->from;
    dt_edit_keep(&j.edit, j.kept, p->to);
    if (changed) j.edit.origin = p->from < p->origin ? j.origin : 0;
    return dt_edit_end(&j.edit);
}
