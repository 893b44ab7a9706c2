/* regex.c - PCRE2 with its compiler to machine code where there is one.
 *
 * The number of steps of one match is limited by the length of the text: an expression of the families known takes a few steps a byte, one with nested
 * repetition may take exponentially many. */
#include "regex.h"

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
};

struct dt_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static dt_err compile(dt_regex *r, const char *pattern, size_t n, uint32_t options)
{
    int code;
    PCRE2_SIZE at;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    DT_CHECK(context, DT_ERR_MEMORY, "no memory for a regular expression");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    r->code = pcre2_compile((PCRE2_SPTR)pattern, n, options | PCRE2_UTF, &code, &at, context);
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
    const uint32_t options = syntax == DT_REGEX_LITERAL ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    dt_text translated = {0};
    dt_err err = DT_OK;
    if (syntax == DT_REGEX_ONIGURUMA) {
        err = dt_regex_translate(pattern, n, &translated);
        if (err == DT_OK) err = compile(r, translated.bytes, translated.n, options | PCRE2_MULTILINE);
    } else {
        err = compile(r, pattern, n, options);
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
    if (r) pcre2_code_free(r->code);
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
    free(m);
}

static dt_err match_failed(int code, const char *text, size_t n, size_t at)
{
    char why[160];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    const size_t shown = n - at < 40 ? n - at : 40;
    return dt_fail(code == PCRE2_ERROR_NOMEMORY ? DT_ERR_MEMORY : DT_ERR_DATA,
                   "the tokenizer's expression fails at byte %zu of a text of %zu, \"%.*s\": %s", at, n, (int)shown, text + at,
                   why);
}

dt_err dt_regex_next(const dt_regex *r, dt_matcher *m, const char *text, size_t n, dt_matches *s, bool *found)
{
    const uint64_t steps = STEPS_MIN + (uint64_t)STEPS_A_BYTE * n;
    pcre2_set_match_limit(m->context, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
    *found = false;
    while (s->at <= n) {
        const int code = r->jit ? pcre2_jit_match(r->code, (PCRE2_SPTR)text, n, s->at, 0, m->data, m->context)
                                : pcre2_match(r->code, (PCRE2_SPTR)text, n, s->at, PCRE2_NO_UTF_CHECK, m->data, m->context);
        if (code == PCRE2_ERROR_NOMATCH) return DT_OK;
        if (code < 0) return match_failed(code, text, n, s->at);
        const PCRE2_SIZE *where = pcre2_get_ovector_pointer(m->data);
        s->begin = where[0];
        s->end = where[1];
        if (s->begin < s->at || s->end < s->begin || s->end > n) return match_failed(PCRE2_ERROR_INTERNAL, text, n, s->at);
        if (s->end > s->begin || !s->any || s->last_end != s->end) {
            s->at = s->last_end = s->end;
            s->any = *found = true;
            return DT_OK;
        }
        s->at += s->at < n ? dt_utf8_length(text + s->at, n - s->at) : 1; /* no empty match right behind the last one */
    }
    return DT_OK;
}
