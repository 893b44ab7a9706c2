/* normalizer.c - Unicode normal forms by utf8proc, lower case, replacing, prepending, stripping.
 *
 * Most text is already in NFC. Runs of characters that the form does not change (DT_UNICODE_NORMAL) are
 * copied. The text between them, with the character before it, is passed to the library. It contains only
 * characters of the Unicode version of that table, whose forms never change later. The library's version
 * therefore does not matter. */
#include "normalizer.h"
#include "dtrain/text/space.h"
#include "dtrain/text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* The growth of steps multiplies, so a small file could request any amount of memory. No Unicode form
 * makes a text 20 times as long. */
enum { MAX_GROWTH = 64, ALWAYS_ALLOWED = 1 << 16 };

/* ---- reading ----------------------------------------------------------------------------------------------------- */

dt_err dt_stage_read(void *stage, const dt_spec *s, const char *list, dt_read_step read)
{
    const char *type;
    char keys[32];
    dt_spec steps;
    DT_TRY(dt_spec_need_string(s, "type", &type));
    if (strcmp(type, "Sequence") != 0) return read(stage, s, type);
    snprintf(keys, sizeof keys, "type %s", list);
    DT_TRY(dt_spec_only(s, keys));
    DT_TRY(dt_spec_need(s, list, JSON_ARRAY, &steps));
    for (size_t i = 0; i < json_array_size(steps.value); i++) {
        const dt_spec item = dt_spec_item(&steps, i);
        DT_TRY(dt_stage_read(stage, &item, list, read));
    }
    return DT_OK;
}

dt_err dt_pattern_read(const dt_spec *s, dt_regex **out, const char **text, bool *literal)
{
    dt_spec p;
    DT_TRY(dt_spec_need(s, "pattern", JSON_OBJECT, &p));
    *text = NULL;
    *literal = json_object_get(p.value, "String") != NULL;
    DT_TRY(dt_spec_only(&p, "String Regex"));
    DT_TRY(dt_spec_need_string(&p, *literal ? "String" : "Regex", text));
    if (!(*text)[0]) return dt_spec_bad(&p, NULL, "a pattern that is not empty");
    const dt_regex_syntax syntax = *literal ? DT_REGEX_LITERAL : DT_REGEX_ONIGURUMA;
    return dt_error_prefix(dt_regex_compile(out, *text, strlen(*text), syntax), "%s: %s: ", s->file, p.where);
}

static dt_err read_content(const dt_spec *s, const char *key, dt_normal_step *step)
{
    const char *content;
    DT_TRY(dt_spec_need_string(s, key, &content));
    step->n_content = strlen(content);
    DT_CHECK(step->n_content <= DT_CONTENT_MAX, DT_ERR_DATA, "%s: %s.%s: expected at most %d bytes, found %zu", s->file,
             s->where, key, DT_CONTENT_MAX, step->n_content);
    DT_CHECK((step->content = strdup(content)), DT_ERR_MEMORY, "%s: no memory", s->file);
    return DT_OK;
}

static dt_err read_replace(const dt_spec *s, dt_normal_step *step)
{
    const char *text;
    bool literal;
    step->kind = DT_REPLACE;
    DT_TRY(dt_spec_only(s, "type pattern content"));
    DT_TRY(read_content(s, "content", step));
    DT_TRY(dt_pattern_read(s, &step->pattern, &text, &literal));
    if (!literal || strlen(text) != 1) return DT_OK;
    step->byte = text[0];
    dt_regex_free(step->pattern);
    step->pattern = NULL;
    return DT_OK;
}

static dt_err read_step(void *stage, const dt_spec *s, const char *type)
{
    static const struct {
        const char *type;
        dt_normal_kind kind;
    } plain[] = {{"NFC", DT_NFC}, {"NFD", DT_NFD}, {"NFKC", DT_NFKC}, {"NFKD", DT_NFKD}, {"Lowercase", DT_LOWERCASE}};
    dt_normalizer *n = stage;
    if (n->n_steps == DT_NORMAL_MAX) return dt_spec_bad(s, NULL, "at most 32 normalizers");
    dt_normal_step *step = &n->step[n->n_steps++];
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (strcmp(type, plain[i].type) == 0) return step->kind = plain[i].kind, dt_spec_only(s, "type");
    if (strcmp(type, "Replace") == 0) return read_replace(s, step);
    if (strcmp(type, "Precompiled") == 0) return step->kind = DT_PRECOMPILED, dt_charsmap_read(&step->charsmap, s);
    if (strcmp(type, "Prepend") == 0) {
        step->kind = DT_PREPEND;
        DT_TRY(dt_spec_only(s, "type prepend"));
        return read_content(s, "prepend", step);
    }
    if (strcmp(type, "Strip") != 0)
        return dt_spec_bad(s, "type",
                           "NFC, NFD, NFKC, NFKD, Lowercase, Precompiled, Prepend, Replace, Strip or Sequence");
    *step = (dt_normal_step){.kind = DT_STRIP, .left = true, .right = true};
    DT_TRY(dt_spec_only(s, "type strip_left strip_right"));
    DT_TRY(dt_spec_bool(s, "strip_left", &step->left));
    return dt_spec_bool(s, "strip_right", &step->right);
}

static dt_err make_chars(dt_normalizer *n)
{
    DT_TRY(dt_unicode_check_forms());
    const dt_unicode_table *t = dt_unicode_get(DT_UNICODE_NORMAL);
    return dt_char_table_make(&n->chars, t->run, t->n);
}

dt_err dt_normalizer_read(dt_normalizer *n, const dt_spec *root)
{
    dt_spec s;
    *n = (dt_normalizer){0};
    if (!dt_spec_get(root, "normalizer", &s)) return DT_OK;
    DT_TRY(dt_stage_read(n, &s, "normalizers", read_step));
    for (int i = 0; i < n->n_steps; i++)
        if (n->step[i].kind <= DT_NFKD && !n->chars.cell) DT_TRY(make_chars(n));
    return DT_OK;
}

void dt_normalizer_free(dt_normalizer *n)
{
    for (int i = 0; i < n->n_steps; i++) {
        free(n->step[i].content);
        dt_regex_free(n->step[i].pattern);
        dt_charsmap_free(n->step[i].charsmap);
    }
    dt_char_table_free(&n->chars);
    *n = (dt_normalizer){0};
}

bool dt_normalizer_is_local(const dt_normalizer *n)
{
    for (int i = 0; i < n->n_steps; i++)
        if (n->step[i].kind >= DT_STRIP || (n->step[i].kind == DT_REPLACE && n->step[i].pattern)) return false;
    return true;
}

/* ---- forms ------------------------------------------------------------------------------------------------------- */

/* True if the form may change the character, reorder it, or compose it with the one before. */
static bool is_active(dt_normal_kind kind, uint8_t value)
{
    const bool composes = kind == DT_NFC || kind == DT_NFKC;
    return value & (1 << kind | DT_NORMAL_MOVES | (composes ? DT_NORMAL_COMPOSES : 0));
}

/* End of the run of unchanged characters that starts at i. *last: start of its last character if a later one may
 * compose with it, else the end. */
static size_t staying(const dt_char_table *chars, const dt_segment *p, dt_normal_kind kind, size_t i, size_t *last)
{
    *last = i;
    while (i < p->to) {
        size_t n;
        const uint32_t c = dt_utf8_decode(p->text + i, &n);
        const uint8_t value = c < 0x80 ? DT_NORMAL_BEGINS : dt_char_value(chars, c);
        if (is_active(kind, value)) break;
        *last = value & DT_NORMAL_BEGINS ? i : i + n;
        i += n;
    }
    return i;
}

static size_t changing(const dt_char_table *chars, const dt_segment *p, dt_normal_kind kind, size_t i)
{
    while (i < p->to) {
        size_t n;
        const uint32_t c = dt_utf8_decode(p->text + i, &n);
        if (c < 0x80 || !is_active(kind, dt_char_value(chars, c))) break;
        i += n;
    }
    return i;
}

/* Find the end of the output that stems from the text's first character: the common prefix of its own form
 * and the output, at least one character, because others may compose with it. */
static dt_err form_origin(dt_edit *e, unsigned how, size_t from, size_t begin)
{
    char *formed;
    size_t n, same = 0;
    if (e->out->failed || e->out->n == begin) return DT_OK; /* dt_edit_end reports it */
    DT_TRY(dt_unicode_form(e->piece->text + from, e->piece->origin - from, how, &formed, &n));
    const char *out = e->out->bytes + begin;
    while (same < n && begin + same < e->out->n && out[same] == formed[same]) same++;
    while (same > 0 && begin + same < e->out->n && ((unsigned char)out[same] & 0xc0) == 0x80) same--;
    free(formed);
    e->origin = begin + (same ? same : dt_utf8_length(out, e->out->n - begin));
    return DT_OK;
}

static dt_err form_range(dt_edit *e, dt_normal_kind kind, size_t from, size_t to)
{
    const unsigned how = (kind == DT_NFKC || kind == DT_NFKD ? DT_FORM_COMPATIBLE : 0) |
                         (kind == DT_NFC || kind == DT_NFKC ? DT_FORM_COMPOSED : 0);
    const size_t begin = e->out->n;
    char *formed;
    size_t n;
    DT_TRY(dt_unicode_form(e->piece->text + from, to - from, how, &formed, &n));
    if (n == to - from && memcmp(formed, e->piece->text + from, n) == 0)
        dt_edit_keep(e, from, to);
    else
        dt_edit_change(e, from, to, formed, n);
    free(formed);
    return from < e->piece->origin && e->piece->origin < to ? form_origin(e, how, from, begin) : DT_OK;
}

static dt_err form(const dt_char_table *chars, dt_normal_kind kind, dt_text *out, dt_segment *p)
{
    size_t last, i = staying(chars, p, kind, p->from, &last);
    if (i == p->to) return DT_OK;
    dt_edit e = dt_edit_begin(out, p);
    for (size_t done = p->from; done < p->to;) {
        if (i == p->to) last = i;
        dt_edit_keep(&e, done, last);
        const size_t end = i < p->to ? changing(chars, p, kind, i) : i;
        if (end > last) DT_TRY(form_range(&e, kind, last, end));
        done = end;
        i = staying(chars, p, kind, done, &last);
    }
    return dt_edit_end(&e);
}

/* ---- other steps ------------------------------------------------------------------------------------------------- */

/* Character by character, as the reference does: no final sigma. Only U+0130 becomes two characters. */
static dt_err lowercase(dt_text *out, dt_segment *p)
{
    dt_edit e = dt_edit_begin(out, p);
    size_t kept = p->from;
    for (size_t i = p->from; i < p->to;) {
        const char *next = p->text + i;
        const uint32_t c = dt_utf8_next(&next);
        const uint32_t low = c < 0x80 ? (c >= 'A' && c <= 'Z' ? c + 32 : c) : dt_unicode_lower(c);
        const size_t end = (size_t)(next - p->text);
        if (low != c || c == 0x130) {
            char bytes[4];
            dt_edit_keep(&e, kept, i);
            if (c == 0x130)
                dt_edit_change(&e, i, end, "i\xcc\x87", 3);
            else
                dt_edit_change(&e, i, end, bytes, dt_utf8_put(low, bytes));
            kept = end;
        }
        i = end;
    }
    dt_edit_keep(&e, kept, p->to);
    return dt_edit_end(&e);
}

static dt_err within(size_t n, size_t most)
{
    DT_CHECK(n <= most, DT_ERR_DATA, "the tokenizer's normalizer makes a text more than %d times as long", MAX_GROWTH);
    return DT_OK;
}

static dt_err replace_byte(const dt_normal_step *s, size_t most, dt_text *out, dt_segment *p)
{
    dt_edit e = dt_edit_begin(out, p);
    for (size_t i = p->from; i < p->to;) {
        const char *hit = memchr(p->text + i, s->byte, p->to - i);
        const size_t end = hit ? (size_t)(hit - p->text) : p->to;
        dt_edit_keep(&e, i, end);
        if (hit) dt_edit_change(&e, end, end + 1, s->content, s->n_content);
        DT_TRY(within(out->n, most));
        i = end + (hit != NULL);
    }
    return dt_edit_end(&e);
}

static dt_err replace(const dt_normal_step *s, size_t most, dt_matcher *m, dt_text *out, dt_segment *p)
{
    if (!s->pattern) return replace_byte(s, most, out, p);
    dt_edit e = dt_edit_begin(out, p);
    dt_matches at;
    size_t kept = p->from;
    DT_TRY(dt_matches_begin(&at, s->pattern, m, p->text + p->from, p->to - p->from, NULL));
    for (bool found;;) {
        DT_TRY(dt_regex_next(&at, &found));
        if (!found) break;
        dt_edit_keep(&e, kept, p->from + at.begin);
        dt_edit_change(&e, p->from + at.begin, p->from + at.end, s->content, s->n_content);
        DT_TRY(within(out->n, most));
        kept = p->from + at.end;
    }
    dt_edit_keep(&e, kept, p->to);
    return dt_edit_end(&e);
}

static dt_err prepend(const dt_normal_step *s, dt_text *out, dt_segment *p)
{
    dt_edit e = dt_edit_begin(out, p);
    dt_edit_change(&e, p->from, p->from, s->content, s->n_content);
    dt_edit_keep(&e, p->from, p->to);
    return dt_edit_end(&e);
}

/* Marks in the stripped text move to the ends of the rest. */
static void strip(const dt_normal_step *s, dt_segment *p, bool goes_on)
{
    const size_t left = s->left && !goes_on ? dt_white_before(p->text + p->from, p->to - p->from) : 0;
    p->from += left;
    if (s->right) p->to = p->from + dt_white_trimmed(p->text + p->from, p->to - p->from);
    while (p->mark_end > p->mark && p->mark_end[-1].at >= p->to) p->mark_end--;
}

dt_err dt_normalize(const dt_normalizer *n, dt_matcher *m, dt_text buffer[2], dt_segment *p, bool goes_on)
{
    const size_t most = MAX_GROWTH * (p->to - p->from) + ALWAYS_ALLOWED;
    for (int i = 0; i < n->n_steps && p->to > p->from; i++) {
        const dt_normal_step *s = &n->step[i];
        dt_text *out = &buffer[p->text == buffer[0].bytes];
        switch (s->kind) {
        case DT_LOWERCASE:
            DT_TRY(lowercase(out, p));
            break;
        case DT_PREPEND:
            if (!goes_on) DT_TRY(prepend(s, out, p));
            break;
        case DT_REPLACE:
            DT_TRY(replace(s, most, m, out, p));
            break;
        case DT_STRIP:
            strip(s, p, goes_on);
            break;
        case DT_PRECOMPILED:
            DT_TRY(dt_charsmap_apply(s->charsmap, out, p));
            break;
        default:
            DT_TRY(form(&n->chars, s->kind, out, p));
        }
    }
    return DT_OK;
}
