/* pattern.c - regular expressions by PCRE2, with its just-in-time compiler if the machine has one.
 *
 * The length of the text limits the number of steps of a match. Expressions of known tokenizers take a few steps per
 * byte. An expression with nested repetition may take exponentially many. */
#include "dtrain/text/pattern.h"
#include <string.h>

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

dt_err dt_pattern_each(const dt_pattern *p, const char *text, size_t n, int64_t max, dt_pattern_match match, void *self)
{
    return dt_fail(DT_ERR_FAULT, "internal: dt_pattern_each without PCRE2");
}

#else

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>

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
    [DT_PATTERN_PYTHON] = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C,
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

/* After an empty match, the next one begins there if it is not empty, else one character later. */
static dt_err each(const dt_pattern *p, pcre2_match_data *data, const char *text, size_t n, int64_t max,
                   dt_pattern_match match, void *self)
{
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(data);
    const int n_groups = (int)pcre2_get_ovector_count(data) - 1;
    uint32_t how = 0;
    int64_t n_matches = 0;
    for (size_t at = 0; at <= n && (max <= 0 || n_matches < max); n_matches++) {
        int code = pcre2_match(p->code, (PCRE2_SPTR)text, n, at, how, data, NULL);
        while (code == PCRE2_ERROR_NOMATCH && how && at < n) {
            at += dt_utf8_length(text + at, n - at);
            code = pcre2_match(p->code, (PCRE2_SPTR)text, n, at, how = 0, data, NULL);
        }
        if (code == PCRE2_ERROR_NOMATCH) return DT_OK;
        if (code < 0) return match_failed(code);
        for (int i = 2 * code; i < 2 * n_groups + 2; i++) ((PCRE2_SIZE *)span)[i] = SIZE_MAX;
        DT_TRY(match(self, span, n_groups));
        how = span[0] == span[1] ? PCRE2_NOTEMPTY_ATSTART | PCRE2_ANCHORED : 0;
        if (how && span[1] == n) return DT_OK;
        at = span[1];
    }
    return DT_OK;
}

dt_err dt_pattern_each(const dt_pattern *p, const char *text, size_t n, int64_t max, dt_pattern_match match, void *self)
{
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(p->code, NULL);
    DT_CHECK(data, DT_ERR_MEMORY, "out of memory to match a regular expression");
    const dt_err err = each(p, data, text, n, max, match, self);
    pcre2_match_data_free(data);
    return err;
}

#endif

/* ---- replacement ------------------------------------------------------------------------------------------------- */

typedef struct replacement {
    const char *text, *by;
    size_t n_by, from; /* from: end of the last match */
    dt_text *out;
} replacement;

/* The group that a backslash at r->by[i] refers to, and the bytes of the reference; -1: none. */
static int group_at(const replacement *r, size_t i, size_t *n)
{
    const char *p = r->by + i + 1, *end = r->by + r->n_by;
    const bool named = end - p > 3 && p[0] == 'g' && p[1] == '<';
    int group = 0;
    p += named ? 2 : 0;
    const char *digits = p;
    for (; p < end && *p >= '0' && *p <= '9' && p - digits < 2; p++) group = 10 * group + (*p - '0');
    if (p == digits || (named && (p == end || *p != '>'))) return -1;
    *n = (size_t)(p - r->by) + named - i;
    return group;
}

static dt_err put_replacement(void *self, const size_t *span, int n_groups)
{
    static const char letters[] = "nrt\\", values[] = "\n\r\t\\";
    replacement *r = self;
    dt_text_append(r->out, r->text + r->from, span[0] - r->from);
    for (size_t i = 0, n; i < r->n_by; i += n) {
        const char *letter = r->by[i] == '\\' && i + 1 < r->n_by ? strchr(letters, r->by[i + 1]) : NULL;
        const int group = r->by[i] == '\\' ? group_at(r, i, &n) : -1;
        DT_CHECK(group <= n_groups, DT_ERR_DATA, "the replacement refers to group %d, but the expression has %d", group,
                 n_groups);
        if (group < 0) {
            n = letter ? 2 : 1;
            dt_text_append(r->out, letter ? &values[letter - letters] : r->by + i, 1);
        } else if (span[2 * group] != SIZE_MAX) {
            dt_text_append(r->out, r->text + span[2 * group], span[2 * group + 1] - span[2 * group]);
        }
    }
    r->from = span[1];
    return DT_OK;
}

dt_err dt_pattern_replace(const dt_pattern *p, const char *text, size_t n, const char *by, size_t n_by, int64_t max,
                          dt_text *out)
{
    replacement r = {.text = text, .by = by, .n_by = n_by, .out = out};
    DT_TRY(dt_pattern_each(p, text, n, max, put_replacement, &r));
    dt_text_append(out, text + r.from, n - r.from);
    DT_CHECK(!out->failed, DT_ERR_MEMORY, "out of memory for a text");
    return DT_OK;
}
