/* pattern.c - regular expressions by PCRE2, with its just-in-time compiler if the machine has one.
 *
 * The length of the text limits the number of steps of a match. Expressions of known tokenizers take a few steps per
 * byte. An expression with nested repetition may take exponentially many. */
#include "dtrain/text/pattern.h"

#ifndef DT_HAVE_PCRE2

dt_err dt_pattern_compile(dt_pattern **p, const char *text, size_t n, dt_pattern_use use)
{
    *p = NULL;
    return dt_fail(DT_ERR_USAGE, "regular expressions need PCRE2, and this program was built without it: install "
                                 "PCRE2 (Debian: libpcre2-dev), then make");
}

void dt_pattern_free(dt_pattern *p) {}

dt_err dt_pattern_matches(const dt_pattern *p, const char *text, size_t from, bool *matches)
{
    return dt_fail(DT_ERR_FAULT, "internal: dt_pattern_matches without PCRE2");
}

dt_err dt_pattern_memory_open(dt_pattern_memory **m)
{
    *m = NULL;
    return DT_OK;
}

void dt_pattern_memory_close(dt_pattern_memory *m) {}

dt_err dt_pattern_find(const dt_pattern *p, dt_pattern_memory *m, const char *text, size_t n, size_t from,
                       size_t *begin, size_t *end, bool *found)
{
    return dt_fail(DT_ERR_FAULT, "internal: dt_pattern_find without PCRE2");
}

#else

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_MIN = 20000, STEPS_A_BYTE = 16, JIT_STACK_MIN = 32 << 10, JIT_STACK_MAX = 16 << 20, HEAP_KIB = 64 << 10 };

struct dt_pattern {
    pcre2_code *code;
    bool jit;
};

struct dt_pattern_memory {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    const PCRE2_SIZE *match; /* begin and end of the last match */
    uint32_t steps;          /* the limit that is set in context */
};

static const uint32_t options[] = {
    [DT_PATTERN_SEARCH] = PCRE2_NEVER_BACKSLASH_C | PCRE2_NEVER_UTF | PCRE2_MULTILINE,
    [DT_PATTERN_WHOLE] = PCRE2_ANCHORED | PCRE2_ENDANCHORED,
    [DT_PATTERN_WHOLE_UTF8] = PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_DOTALL | PCRE2_UTF,
};

static dt_err compile(dt_pattern *p, const char *text, size_t n, dt_pattern_use use)
{
    int code;
    PCRE2_SIZE at;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    DT_CHECK(context, DT_ERR_MEMORY, "out of memory for a regular expression");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    p->code = pcre2_compile((PCRE2_SPTR)text, n, options[use], &code, &at, context);
    pcre2_compile_context_free(context);
    if (!p->code) {
        char why[160];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return dt_fail(DT_ERR_DATA, "'%.100s' is not a valid regular expression: %s at byte %zu", text, why,
                       (size_t)at);
    }
    p->jit = use == DT_PATTERN_SEARCH && pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
    return DT_OK;
}

dt_err dt_pattern_compile(dt_pattern **out, const char *text, size_t n, dt_pattern_use use)
{
    dt_pattern *p = *out = calloc(1, sizeof *p);
    DT_CHECK(p, DT_ERR_MEMORY, "out of memory for a regular expression");
    const dt_err err = compile(p, text, n, use);
    if (err != DT_OK) {
        free(p);
        *out = NULL;
    }
    return err;
}

void dt_pattern_free(dt_pattern *p)
{
    if (!p) return;
    pcre2_code_free(p->code);
    free(p);
}

dt_err dt_pattern_matches(const dt_pattern *p, const char *text, size_t from, bool *matches)
{
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(p->code, NULL);
    DT_CHECK(data, DT_ERR_MEMORY, "out of memory to match a regular expression");
    *matches = pcre2_match(p->code, (PCRE2_SPTR)text, strlen(text), from, 0, data, NULL) >= 0;
    pcre2_match_data_free(data);
    return DT_OK;
}

dt_err dt_pattern_memory_open(dt_pattern_memory **out)
{
    dt_pattern_memory *m = *out = calloc(1, sizeof *m);
    DT_CHECK(m, DT_ERR_MEMORY, "out of memory for matching");
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, NULL);
    if (m->data && m->context) {
        if (m->stack) pcre2_jit_stack_assign(m->context, NULL, m->stack);
        pcre2_set_heap_limit(m->context, HEAP_KIB);
        m->match = pcre2_get_ovector_pointer(m->data);
        return DT_OK;
    }
    dt_pattern_memory_close(m);
    *out = NULL;
    return dt_fail(DT_ERR_MEMORY, "out of memory for matching");
}

void dt_pattern_memory_close(dt_pattern_memory *m)
{
    if (!m) return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    free(m);
}

static dt_err match_failed(int code)
{
    char why[160];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    return dt_fail(code == PCRE2_ERROR_NOMEMORY ? DT_ERR_MEMORY : DT_ERR_DATA, "%s", why);
}

dt_err dt_pattern_find(const dt_pattern *p, dt_pattern_memory *m, const char *text, size_t n, size_t from,
                       size_t *begin, size_t *end, bool *found)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    const uint64_t wanted = STEPS_MIN + (uint64_t)STEPS_A_BYTE * n;
    const uint32_t steps = wanted < UINT32_MAX ? (uint32_t)wanted : UINT32_MAX;
    if (m->steps != steps) pcre2_set_match_limit(m->context, m->steps = steps);
    const int code = p->jit ? pcre2_jit_match(p->code, subject, n, from, 0, m->data, m->context)
                            : pcre2_match(p->code, subject, n, from, 0, m->data, m->context);
    *found = code >= 0;
    if (code == PCRE2_ERROR_NOMATCH) return DT_OK;
    if (code < 0) return match_failed(code);
    *begin = m->match[0];
    *end = m->match[1];
    return *begin < from || *end < *begin || *end > n ? match_failed(PCRE2_ERROR_INTERNAL) : DT_OK;
}

#endif
