/* normalizer.c - Unicode's forms and case by utf8proc, a stretch at a time; replacing, prepending, stripping.
 *
 * Most text is in form C already. Stretches of characters that no form changes, and that no neighbour composes with, are copied; what lies between them, with the
 * character before it, is given to the library. */
#include "normalizer.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Steps multiply each other's growth, so a small file could ask for any amount of memory. No form of Unicode makes a text 20 times as long. */
enum { MAX_GROWTH = 64, ALWAYS_ALLOWED = 1 << 16 };

/* ---- reading ------------------------------------------------------------------------------------------------------------ */

dt_err dt_pattern_read(const dt_spec *s, dt_regex **out, const char **text, bool *literal)
{
    dt_spec p;
    DT_TRY(dt_spec_need(s, "pattern", JSON_OBJECT, &p));
    *text = NULL;
    *literal = json_object_get(p.value, "String") != NULL;
    DT_TRY(dt_spec_only(&p, "String Regex"));
    DT_TRY(dt_spec_need_string(&p, *literal ? "String" : "Regex", text));
    if (!(*text)[0]) return dt_spec_bad(&p, NULL, "a pattern that is not empty");
    if (dt_regex_compile(out, *text, strlen(*text), *literal ? DT_REGEX_LITERAL : DT_REGEX_ONIGURUMA) == DT_OK) return DT_OK;
    char why[256];
    snprintf(why, sizeof why, "%s", dt_error_message());
    dt_error_clear();
    return dt_fail(DT_ERR_DATA, "%s: %s: %s", s->file, p.where, why);
}

static dt_err read_content(const dt_spec *s, const char *key, dt_normal_step *step)
{
    const char *content;
    DT_TRY(dt_spec_need_string(s, key, &content));
    step->n_content = strlen(content);
    DT_CHECK(step->n_content <= DT_CONTENT_MAX, DT_ERR_DATA, "%s: %s.%s: expected at most %d bytes, found %zu", s->file, s->where, key,
             DT_CONTENT_MAX, step->n_content);
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

static dt_err read_step(dt_normalizer *n, const dt_spec *s)
{
    static const struct {
        const char *type;
        dt_normal_kind kind;
    } plain[] = {{"NFC", DT_NFC}, {"NFD", DT_NFD}, {"NFKC", DT_NFKC}, {"NFKD", DT_NFKD}, {"Lowercase", DT_LOWERCASE}};
    const char *type;
    dt_spec list;
    DT_TRY(dt_spec_need_string(s, "type", &type));
    if (strcmp(type, "Sequence") == 0) {
        DT_TRY(dt_spec_need(s, "normalizers", JSON_ARRAY, &list));
        for (size_t i = 0; i < json_array_size(list.value); i++) {
            const dt_spec item = dt_spec_item(&list, i);
            DT_TRY(read_step(n, &item));
        }
        return DT_OK;
    }
    if (n->n_steps == DT_NORMAL_MAX) return dt_spec_bad(s, NULL, "fewer normalizers");
    dt_normal_step *step = &n->step[n->n_steps++];
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (strcmp(type, plain[i].type) == 0) return step->kind = plain[i].kind, dt_spec_only(s, "type");
    if (strcmp(type, "Replace") == 0) return read_replace(s, step);
    if (strcmp(type, "Prepend") == 0) {
        step->kind = DT_PREPEND;
        DT_TRY(dt_spec_only(s, "type prepend"));
        return read_content(s, "prepend", step);
    }
    if (strcmp(type, "Strip") != 0)
        return dt_spec_bad(s, "type", "NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip or Sequence");
    *step = (dt_normal_step){.kind = DT_STRIP, .left = true, .right = true};
    DT_TRY(dt_spec_only(s, "type strip_left strip_right"));
    DT_TRY(dt_spec_bool(s, "strip_left", &step->left));
    return dt_spec_bool(s, "strip_right", &step->right);
}

dt_err dt_normalizer_read(dt_normalizer *n, const dt_spec *root)
{
    dt_spec s;
    *n = (dt_normalizer){0};
    return dt_spec_get(root, "normalizer", &s) ? read_step(n, &s) : DT_OK;
}

void dt_normalizer_free(dt_normalizer *n)
{
    for (int i = 0; i < n->n_steps; i++) {
        free(n->step[i].content);
        dt_regex_free(n->step[i].pattern);
    }
    *n = (dt_normalizer){0};
}

bool dt_normalizer_is_local(const dt_normalizer *n)
{
    for (int i = 0; i < n->n_steps; i++)
        if (n->step[i].kind == DT_STRIP || (n->step[i].kind == DT_REPLACE && n->step[i].pattern)) return false;
    return true;
}

/* ---- forms -------------------------------------------------------------------------------------------------------------- */

/* Ranges that form C leaves as they are, whatever stands before: nothing in them has a combining class, is composed away or stands second in a composition. */
static bool stays(dt_normal_kind kind, uint32_t c)
{
    if (kind != DT_NFC) return c < 0x80;
    return c < 0x300 || (c >= 0x388 && c <= 0x482) || (c >= 0x48a && c <= 0x590) || (c >= 0x2010 && c <= 0x2027) ||
           (c >= 0x3041 && c <= 0x3096) || (c >= 0x30a1 && c <= 0x30ff) || (c >= 0x3400 && c <= 0x9fff) ||
           (c >= 0xac00 && c <= 0xd7a3) || (c >= 0x1f300 && c <= 0x1faff);
}

/* Where text from i on need not be looked at by the library: the end of the stretch. *last: where its last character begins. */
static size_t staying(const dt_piece *p, dt_normal_kind kind, size_t i, size_t *last)
{
    *last = i;
    while (i < p->to) {
        const char *at = p->text + i;
        if ((unsigned char)*at < 0x80) {
            *last = i++;
            continue;
        }
        if (!stays(kind, dt_utf8_next(&at))) break;
        *last = i;
        i = (size_t)(at - p->text);
    }
    return i;
}

static size_t changing(const dt_piece *p, dt_normal_kind kind, size_t i)
{
    while (i < p->to) {
        const char *at = p->text + i;
        if (stays(kind, dt_utf8_next(&at))) break;
        i = (size_t)(at - p->text);
    }
    return i;
}

static dt_err form_stretch(dt_edit *e, dt_normal_kind kind, size_t from, size_t to)
{
    const utf8proc_option_t decompose = UTF8PROC_STABLE | (kind == DT_NFKC || kind == DT_NFKD ? UTF8PROC_COMPAT : 0);
    const utf8proc_option_t option = decompose | (kind == DT_NFC || kind == DT_NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
    utf8proc_uint8_t *formed;
    const utf8proc_uint8_t *text = (const utf8proc_uint8_t *)e->piece->text + from;
    const utf8proc_ssize_t n = utf8proc_map(text, (utf8proc_ssize_t)(to - from), &formed, option);
    DT_CHECK(n >= 0, n == UTF8PROC_ERROR_NOMEM ? DT_ERR_MEMORY : DT_ERR_DATA, "a text cannot be normalised: %s",
             utf8proc_errmsg(n));
    if ((size_t)n == to - from && memcmp(formed, text, (size_t)n) == 0)
        dt_edit_keep(e, from, to);
    else
        dt_edit_change(e, from, to, (const char *)formed, (size_t)n);
    free(formed);
    return DT_OK;
}

static dt_err form(dt_normal_kind kind, dt_text *out, dt_piece *p)
{
    size_t last, i = staying(p, kind, p->from, &last);
    if (i == p->to) return DT_OK;
    dt_edit e = dt_edit_begin(out, p);
    for (size_t done = p->from; done < p->to;) {
        if (i == p->to) last = i;
        dt_edit_keep(&e, done, last);
        const size_t end = i < p->to ? changing(p, kind, i) : i;
        if (end > last) DT_TRY(form_stretch(&e, kind, last, end));
        done = end;
        i = staying(p, kind, done, &last);
    }
    return dt_edit_end(&e);
}

/* ---- the other steps ---------------------------------------------------------------------------------------------------- */

/* One character by one, as the reference does: no final sigma. The one character that becomes two is not in the library. */
static dt_err lowercase(dt_text *out, dt_piece *p)
{
    dt_edit e = dt_edit_begin(out, p);
    size_t kept = p->from;
    for (size_t i = p->from; i < p->to;) {
        const char *next = p->text + i;
        const uint32_t c = dt_utf8_next(&next);
        const uint32_t low = c < 0x80 ? (c >= 'A' && c <= 'Z' ? c + 32 : c) : (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
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

static dt_err replace_byte(const dt_normal_step *s, size_t most, dt_text *out, dt_piece *p)
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

static dt_err replace(const dt_normal_step *s, size_t most, dt_matcher *m, dt_text *out, dt_piece *p)
{
    if (!s->pattern) return replace_byte(s, most, out, p);
    dt_edit e = dt_edit_begin(out, p);
    dt_matches at = {0};
    size_t kept = p->from;
    for (bool found;;) {
        DT_TRY(dt_regex_next(s->pattern, m, p->text + p->from, p->to - p->from, &at, &found));
        if (!found) break;
        dt_edit_keep(&e, kept, p->from + at.begin);
        dt_edit_change(&e, p->from + at.begin, p->from + at.end, s->content, s->n_content);
        DT_TRY(within(out->n, most));
        kept = p->from + at.end;
    }
    dt_edit_keep(&e, kept, p->to);
    return dt_edit_end(&e);
}

static dt_err prepend(const dt_normal_step *s, dt_text *out, dt_piece *p)
{
    dt_edit e = dt_edit_begin(out, p);
    dt_edit_change(&e, p->from, p->from, s->content, s->n_content);
    dt_edit_keep(&e, p->from, p->to);
    return dt_edit_end(&e);
}

/* Marks in what is stripped stay before and behind what is left. */
static void strip(const dt_normal_step *s, dt_piece *p, bool goes_on)
{
    const size_t left = s->left && !goes_on ? dt_spaces_at_start(p->text + p->from, p->to - p->from) : 0;
    p->from += left;
    if (s->right) p->to -= dt_spaces_at_end(p->text + p->from, p->to - p->from);
    while (p->mark_end > p->mark && p->mark_end[-1].at >= p->to) p->mark_end--;
}

dt_err dt_normalize(const dt_normalizer *n, dt_matcher *m, dt_text buffer[2], dt_piece *p, bool goes_on)
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
        default:
            DT_TRY(form(s->kind, out, p));
        }
    }
    return DT_OK;
}
