/* regex.c - the tokenizer's regular expressions: rewritten for PCRE2 and matched by it; plain texts are searched. */
#include "regex.h"
#include "dtrain/text/pattern.h"
#include "dtrain/text/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PATTERN = 16384 };

struct dt_regex {
    dt_pattern *pattern;
    char *literal; /* [n_literal] the text itself; NULL: pattern */
    size_t n_literal;
    dt_char_table chars; /* the byte that PCRE2 sees for each character; empty: PCRE2 sees the text */
};

struct dt_matcher {
    dt_pattern_memory *memory;
    dt_text buffer;
};

static dt_err compile(dt_regex *r, const char *pattern, size_t n, dt_regex_syntax syntax)
{
    dt_text translated = {0};
    if (syntax == DT_REGEX_LITERAL) {
        r->n_literal = n;
        r->literal = strndup(pattern, n);
        DT_CHECK(r->literal, DT_ERR_MEMORY, "out of memory for a regular expression");
        return DT_OK;
    }
    dt_err err = dt_regex_translate(pattern, n, syntax == DT_REGEX_OURS, &translated, &r->chars);
    if (err == DT_OK) err = dt_pattern_compile(&r->pattern, translated.bytes, translated.n, DT_PATTERN_SEARCH);
    free(translated.bytes);
    return err;
}

dt_err dt_regex_compile(dt_regex **out, const char *pattern, size_t n, dt_regex_syntax syntax)
{
    *out = NULL;
    DT_CHECK(n <= MAX_PATTERN, DT_ERR_DATA, "an expression of at most %d bytes, found %zu", MAX_PATTERN, n);
    dt_regex *r = calloc(1, sizeof *r);
    DT_CHECK(r, DT_ERR_MEMORY, "out of memory for a regular expression");
    const dt_err err = compile(r, pattern, n, syntax);
    if (err == DT_OK)
        *out = r;
    else
        dt_regex_free(r);
    return err;
}

void dt_regex_free(dt_regex *r)
{
    if (!r) return;
    dt_pattern_free(r->pattern);
    free(r->literal);
    dt_char_table_free(&r->chars);
    free(r);
}

dt_err dt_matcher_open(dt_matcher **out)
{
    dt_matcher *m = *out = calloc(1, sizeof *m);
    DT_CHECK(m, DT_ERR_MEMORY, "out of memory for matching");
    const dt_err err = dt_pattern_memory_open(&m->memory);
    if (err == DT_OK) return DT_OK;
    free(m);
    *out = NULL;
    return err;
}

void dt_matcher_close(dt_matcher *m)
{
    if (!m) return;
    dt_pattern_memory_close(m->memory);
    free(m->buffer.bytes);
    free(m);
}

/* Write the byte of each character, preceded by the offsets of the characters in the text, which need alignment. */
static dt_err write_subject(dt_matches *s, const dt_char_table *chars, dt_text *out)
{
    const size_t n = s->n;
    DT_CHECK(n < UINT32_MAX, DT_ERR_DATA, "a text of %zu bytes is too long for the tokenizer's regular expressions", n);
    out->n = 0;
    dt_text_reserve(out, (n + 1) * sizeof *s->char_at + n);
    DT_CHECK(!out->failed, DT_ERR_MEMORY, "out of memory for a text of %zu bytes", n);
    uint32_t *char_at = (uint32_t *)(void *)out->bytes;
    char *subject = out->bytes + (n + 1) * sizeof *char_at;
    size_t k = 0;
    for (size_t i = 0, len; i < n; i += len, k++) {
        char_at[k] = (uint32_t)i;
        subject[k] = (char)dt_char_value(chars, dt_utf8_decode(s->text + i, &len));
    }
    char_at[k] = (uint32_t)n;
    s->char_at = char_at;
    s->subject = subject;
    s->n_subject = k;
    return DT_OK;
}

static bool is_ascii(const char *text, size_t n)
{
    uint64_t word, all = 0;
    size_t i = 0;
    for (; n - i >= sizeof word; i += sizeof word) memcpy(&word, text + i, sizeof word), all |= word;
    for (; i < n; i++) all |= (unsigned char)text[i];
    return !(all & 0x8080808080808080u);
}

dt_err dt_matches_begin(dt_matches *s, const dt_regex *r, dt_matcher *m, const char *text, size_t n, dt_text *buffer)
{
    *s = (dt_matches){.regex = r, .matcher = m, .text = text, .subject = text, .n = n, .n_subject = n};
    if (!r->chars.cell || is_ascii(text, n)) return DT_OK;
    if (!buffer) buffer = &m->buffer;
    return write_subject(s, &r->chars, buffer);
}

/* Offset in the text of the character at a position of the subject. */
static size_t offset_in_text(const dt_matches *s, size_t at) { return s->char_at ? s->char_at[at] : at; }

static dt_err find(const dt_matches *s, size_t *begin, size_t *end, bool *found)
{
    const dt_regex *r = s->regex;
    if (!r->literal)
        return dt_pattern_find(r->pattern, s->matcher->memory, s->subject, s->n_subject, s->at, begin, end, found);
    const char *hit = memmem(s->subject + s->at, s->n_subject - s->at, r->literal, r->n_literal);
    *found = hit != NULL;
    *begin = hit ? (size_t)(hit - s->subject) : 0;
    *end = *begin + r->n_literal;
    return DT_OK;
}

dt_err dt_regex_next(dt_matches *s, bool *found)
{
    *found = false;
    while (s->at <= s->n_subject) {
        size_t begin, end;
        const dt_err err = find(s, &begin, &end, found);
        if (err != DT_OK) {
            const size_t at = offset_in_text(s, s->at), shown = s->n - at < 40 ? s->n - at : 40;
            return dt_error_lead(
                err, "the tokenizer's regular expression fails at byte %zu of a text of %zu, \"%.*s\": ", at, s->n,
                (int)shown, s->text + at);
        }
        if (!*found) return DT_OK;
        if (end > begin || !s->any || s->last_end != end) {
            s->begin = offset_in_text(s, begin);
            s->end = offset_in_text(s, end);
            s->at = s->last_end = end;
            s->any = true;
            return DT_OK;
        }
        s->at++; /* skip an empty match at the end of the previous match */
        *found = false;
    }
    return DT_OK;
}
