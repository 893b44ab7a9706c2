/* math_answer.c - answers of MATH: finds them in solutions, and compares them in a normal form.
 *
 * Source   lm-evaluation-harness 0.4, tasks/hendrycks_math/utils.py, after Hendrycks et al. 2021. Where that code
 *          raises an exception, the answers are compared as they are. */
#include "dtrain/text/space.h"
#include "eval_private.h"
#include <stdlib.h>
#include <string.h>

/* A text that is rewritten step by step. */
typedef struct rewriting {
    dt_text now;
    bool raised; /* Python would raise an exception */
} rewriting;

static void take(rewriting *r, dt_text *next)
{
    next->failed |= r->now.failed;
    dt_text_free(&r->now);
    r->now = *next;
}

static void put(dt_text *t, const char *word) { dt_text_append(t, word, strlen(word)); }

static void replace(rewriting *r, const char *from, const char *to)
{
    dt_text next = {0};
    const char *at = eval_string(&r->now);
    for (const char *found; (found = strstr(at, from)); at = found + strlen(from)) {
        dt_text_append(&next, at, (size_t)(found - at));
        put(&next, to);
    }
    put(&next, at);
    take(r, &next);
}

static int count(const char *text, const char *word)
{
    int n = 0;
    for (; (text = strstr(text, word)); text += strlen(word)) n++;
    return n;
}

/* Units on the right, which \text{ begins. */
static void drop_units(rewriting *r)
{
    const char *text = eval_string(&r->now), *unit = strstr(text, "\\text{ ");
    if (!unit) return;
    r->raised |= count(text, "\\text{ ") > 1;
    r->now.n = (size_t)(unit - text);
}

/* "k = 3" is 3. */
static void drop_name(rewriting *r)
{
    const char *text = eval_string(&r->now), *sign = strchr(text, '=');
    int n = 0;
    if (!sign || strchr(sign + 1, '=')) return;
    for (const char *p = text; p < sign; p++) n += ((unsigned char)*p & 0xc0) != 0x80;
    if (n > 2) return;
    dt_text next = {0};
    put(&next, sign + 1);
    take(r, &next);
}

/* Length of the character at text. */
static size_t character(const char *text) { return dt_utf8_length(text, strlen(text)); }

/* \sqrt3 is \sqrt{3}. */
static void brace_roots(rewriting *r)
{
    dt_text next = {0};
    const char *at = eval_string(&r->now), *root = strstr(at, "\\sqrt");
    for (; root; root = strstr(at, "\\sqrt")) {
        dt_text_append(&next, at, (size_t)(root - at));
        put(&next, "\\sqrt");
        at = root + 5;
        if (!*at) r->raised = true;
        if (!*at || *at == '{') continue;
        if (!strncmp(at, "\\sqrt", 5)) r->raised = true;
        put(&next, "{");
        dt_text_append(&next, at, character(at));
        put(&next, "}");
        at += character(at);
    }
    put(&next, at);
    take(r, &next);
}

/* \frac12 is \frac{1}{2}. A fraction with a single character after it ends the rewriting. */
static void brace_fractions(rewriting *r)
{
    dt_text next = {0};
    const char *at = eval_string(&r->now), *frac = strstr(at, "\\frac");
    bool whole = true;
    for (; frac && whole; frac = strstr(at, "\\frac")) {
        dt_text_append(&next, at, (size_t)(frac - at));
        put(&next, "\\frac");
        at = frac + 5;
        const char *end = strstr(at, "\\frac");
        if (!end) end = at + strlen(at);
        if (at == end) r->raised = true;
        if (at == end || *at == '{') continue;
        const size_t a = character(at), b = at + a < end ? character(at + a) : 0;
        whole = b > 0;
        if (!whole) break;
        put(&next, "{");
        dt_text_append(&next, at, a);
        put(&next, "}");
        if (at[a] != '{') put(&next, "{");
        dt_text_append(&next, at + a, b);
        if (at[a] != '{') put(&next, "}");
        at += a + b;
    }
    put(&next, at);
    if (whole)
        take(r, &next);
    else
        dt_text_free(&next);
}

/* int() of Python for a text of ASCII characters; false: it raises. canonical: the text is how Python writes it. */
static bool is_int(const char *text, size_t n, bool *canonical)
{
    const size_t before = dt_space_before(text, n);
    const char *p = text + before, *end = text + dt_space_trimmed(text, n);
    *canonical = before == 0 && end == text + n && p < end && *p != '+';
    if (p < end && (*p == '-' || *p == '+')) p++;
    if (p >= end) return false;
    if (*p == '0' && (p + 1 < end || p[-1] == '-')) *canonical = false;
    for (const char *digit = p; p < end; p++) {
        if (*p == '_' && p > digit && p[-1] != '_' && p + 1 < end)
            *canonical = false;
        else if (*p < '0' || *p > '9')
            return false;
    }
    return true;
}

/* 3/4 is \frac{3}{4}. */
static void brace_slash(rewriting *r)
{
    const char *text = eval_string(&r->now), *slash = strchr(text, '/');
    bool one, two;
    if (!slash || strchr(slash + 1, '/')) return;
    if (!is_int(text, (size_t)(slash - text), &one) || !is_int(slash + 1, strlen(slash + 1), &two)) {
        r->raised = true;
        return;
    }
    if (!one || !two) return;
    dt_text next = {0};
    dt_text_printf(&next, "\\frac{%.*s}{%s}", (int)(slash - text), text, slash + 1);
    take(r, &next);
}

static void normalise(rewriting *r)
{
    static const char *const words[][2] = {{"\n", ""},        {"\\!", ""},    {"\\\\", "\\"},  {"tfrac", "frac"},
                                           {"dfrac", "frac"}, {"\\left", ""}, {"\\right", ""}, {"^{\\circ}", ""},
                                           {"^\\circ", ""},   {"\\$", ""}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) replace(r, words[i][0], words[i][1]);
    drop_units(r);
    replace(r, "\\%", "");
    replace(r, "\\%", ""); /* as in the source */
    replace(r, " .", " 0.");
    replace(r, "{.", "{0.");
    if (!*eval_string(&r->now)) return;
    if (*eval_string(&r->now) == '.') {
        dt_text next = {0};
        put(&next, "0");
        put(&next, eval_string(&r->now));
        take(r, &next);
    }
    drop_name(r);
    brace_roots(r);
    replace(r, " ", "");
    brace_fractions(r);
    if (!strcmp(eval_string(&r->now), "0.5")) {
        dt_text next = {0};
        put(&next, "\\frac{1}{2}");
        take(r, &next);
    }
    brace_slash(r);
}

dt_err eval_math_equal(const char *one, const char *two, bool *equal)
{
    rewriting r[2] = {{{0}, false}, {{0}, false}};
    put(&r[0].now, one), put(&r[1].now, two);
    normalise(&r[0]), normalise(&r[1]);
    const bool raised = r[0].raised || r[1].raised;
    *equal = strcmp(raised ? one : eval_string(&r[0].now), raised ? two : eval_string(&r[1].now)) == 0;
    const bool failed = r[0].now.failed || r[1].now.failed;
    dt_text_free(&r[0].now), dt_text_free(&r[1].now);
    DT_CHECK(!failed, DT_ERR_MEMORY, "out of memory for an answer");
    return DT_OK;
}

/* The last of a word's occurrences; NULL: none. */
static const char *last(const char *text, const char *word)
{
    const char *found = NULL;
    for (const char *p = text; (p = strstr(p, word)); p++) found = p;
    return found;
}

const char *eval_math_boxed(const char *solution, size_t *n)
{
    const char *blank = last(solution, "\\boxed "), *box = last(solution, "\\boxed");
    if (blank) { /* up to a dollar sign */
        const char *at = blank + 7;
        return *n = strcspn(at, "$"), at;
    }
    if (!box || strncmp(box, "\\boxed{", 7) != 0) return NULL;
    int depth = 0;
    for (const char *p = box; *p; p++) {
        depth += *p == '{';
        if (*p == '}' && --depth == 0) return *n = (size_t)(p - box) - 7, box + 7;
    }
    return NULL;
}
