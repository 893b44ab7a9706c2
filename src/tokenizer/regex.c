/* regex.c - PCRE2 with its compiler to machine code where there is one.
 *
 * The number of steps of one match is limited by the length of the text: an expression of the families known takes a
 * few steps a byte, one with nested repetition may take exponentially many. */
#include "regex.h"
#include "dtrain/text/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_PATTERN = 16384,
    STEPS_MIN = 20000,
    STEPS_A_BYTE = 16,
    JIT_STACK_MIN = 32 << 10,
    JIT_STACK_MAX = 16 << 20,
    HEAP_KIB = 64 << 10
};

struct dt_regex {
    pcre2_code *code;
    bool jit;
    dt_char_table chars; /* the byte that PCRE2 sees for a character; empty: it sees the text itself */
};

struct dt_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    dt_text buffer;
};

static dt_err compile(dt_regex *r, const char *pattern, size_t n, uint32_t options)
{
    int code;
    PCRE2_SIZE at;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    DT_CHECK(context, DT_ERR_MEMORY, "no memory for a regular expression");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    r->code = pcre2_compile((PCRE2_SPTR)pattern, n, options, &code, &at, context);
    pcre2_compile_context_free(context);
    if (!r->code) {
        char why[160];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return dt_fail(DT_ERR_DATA, "%s at byte %zu of \"%.60s\"", why, (size_t)at, pattern);
    }
    r->jit = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE) == 0;
    return DT_OK;
}

dt_err dt_regex_compile(dt_regex **out, const char *pattern, size_t n, dt_regex_syntax syntax)
{
    *out = NULL;
    DT_CHECK(n <= MAX_PATTERN, DT_ERR_DATA, "an expression of at most %d bytes, found %zu", MAX_PATTERN, n);
    dt_regex *r = calloc(1, sizeof *r);
    DT_CHECK(r, DT_ERR_MEMORY, "no memory for a regular expression");
    dt_text translated = {0};
    dt_err err = DT_OK;
    if (syntax == DT_REGEX_LITERAL) {
        err = compile(r, pattern, n, PCRE2_LITERAL);
    } else {
        err = dt_regex_translate(pattern, n, syntax == DT_REGEX_OURS, &translated, &r->chars);
        if (err == DT_OK)
            err =
                compile(r, translated.bytes, translated.n, PCRE2_NEVER_BACKSLASH_C | PCRE2_NEVER_UTF | PCRE2_MULTILINE);
    }
    free(translated.bytes);
    if (err != DT_OK) {
        dt_regex_free(r);
        return err;
    }
    *out = r;
    return DT_OK;
}

void dt_regex_free(dt_regex *r)
{
    if (!r) return;
    pcre2_code_free(r->code);
    dt_char_table_free(&r->chars);
    free(r);
}

dt_err dt_matcher_open(dt_matcher **out)
{
    dt_matcher *m = *out = calloc(1, sizeof *m);
    DT_CHECK(m, DT_ERR_MEMORY, "no memory for matching");
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, NULL);
    if (m->data && m->context) {
        if (m->stack) pcre2_jit_stack_assign(m->context, NULL, m->stack);
        pcre2_set_heap_limit(m->context, HEAP_KIB);
        return DT_OK;
    }
    dt_matcher_close(m);
    *out = NULL;
    return dt_fail(DT_ERR_MEMORY, "no memory for matching");
}

void dt_matcher_close(dt_matcher *m)
{
    if (!m) return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    free(m->buffer.bytes);
    free(m);
}

static dt_err match_failed(int code, const char *text, size_t n, size_t at)
{
    char why[160];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    const size_t shown = n - at < 40 ? n - at : 40;
    return dt_fail(code == PCRE2_ERROR_NOMEMORY ? DT_ERR_MEMORY : DT_ERR_DATA,
                   "the tokenizer's regular expression fails at byte %zu of a text of %zu, \"%.*s\": %s", at, n,
                   (int)shown, text + at, why);
}

/* The byte of each character, and where in the text it begins: offsets first, for their alignment. */
static dt_err write_subject(dt_matches *s, const dt_char_table *chars, dt_text *out)
{
    const size_t n = s->n;
    DT_CHECK(n < UINT32_MAX, DT_ERR_DATA, "a text of %zu bytes is too long for the tokenizer's regular expressions", n);
    out->n = 0;
    dt_text_reserve(out, (n + 1) * sizeof *s->char_at + n);
    DT_CHECK(!out->failed, DT_ERR_MEMORY, "no memory for a text of %zu bytes", n);
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

/* Where the character at a position of the subject begins in the text. */
static size_t offset_in_text(const dt_matches *s, size_t at) { return s->char_at ? s->char_at[at] : at; }

dt_err dt_regex_next(dt_matches *s, bool *found)
{
    const dt_regex *r = s->regex;
    const dt_matcher *m = s->matcher;
    const size_t n = s->n_subject;
    PCRE2_SPTR subject = (PCRE2_SPTR)s->subject;
    const uint64_t steps = STEPS_MIN + (uint64_t)STEPS_A_BYTE * n;
    pcre2_set_match_limit(m->context, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
    *found = false;
    while (s->at <= n) {
        const int code = r->jit ? pcre2_jit_match(r->code, subject, n, s->at, 0, m->data, m->context)
                                : pcre2_match(r->code, subject, n, s->at, 0, m->data, m->context);
        if (code == PCRE2_ERROR_NOMATCH) return DT_OK;
        if (code < 0) return match_failed(code, s->text, s->n, offset_in_text(s, s->at));
        const PCRE2_SIZE *where = pcre2_get_ovector_pointer(m->data);
        const size_t begin = where[0], end = where[1];
        if (begin < s->at || end < begin || end > n)
            return match_failed(PCRE2_ERROR_INTERNAL, s->text, s->n, offset_in_text(s, s->at));
        if (end > begin || !s->any || s->last_end != end) {
            s->begin = offset_in_text(s, begin);
            s->end = offset_in_text(s, end);
            s->at = s->last_end = end;
            s->any = *found = true;
            return DT_OK;
        }
        s->at++; /* no empty match right behind the last one */
    }
    return DT_OK;
}
