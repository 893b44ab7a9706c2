/* answer.c - finding and comparing answers. */
#include "answer.h"
#include "dtrain/text/unicode.h"
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- finding ----------------------------------------------------------------------------------------------------- */

static dt_answer trim(dt_answer a)
{
    while (a.n > 0 && isspace((unsigned char)a.at[0])) a.at++, a.n--;
    while (a.n > 0 && isspace((unsigned char)a.at[a.n - 1])) a.n--;
    return a;
}

/* The last position of a mark; NULL: none. */
static const char *find_last(dt_answer in, const char *mark)
{
    const char *last = NULL, *next = in.at;
    while ((next = memmem(next, in.n - (size_t)(next - in.at), mark, strlen(mark)))) last = next++;
    return last;
}

static dt_answer between(const char *begin, const char *end) { return (dt_answer){begin, (size_t)(end - begin)}; }

/* The last pair of tags that does not enclose another opening tag. */
static dt_answer inside_tags(dt_answer in)
{
    static const char open[] = "<answer>", close[] = "</answer>";
    const char *end = find_last(in, close);
    const char *begin = end ? find_last(between(in.at, end), open) : NULL;
    return begin ? between(begin + sizeof open - 1, end) : in;
}

/* The contents of the last \boxed{, up to its closing brace; {NULL}: none. */
static dt_answer boxed(dt_answer in)
{
    static const char mark[] = "\\boxed{";
    const char *begin = find_last(in, mark), *end = in.at + in.n;
    if (!begin) return (dt_answer){0};
    begin += sizeof mark - 1;
    int depth = 1;
    for (const char *p = begin; p < end; p++) {
        depth += (*p == '{') - (*p == '}');
        if (depth == 0) return between(begin, p);
    }
    return (dt_answer){0};
}

dt_answer dt_answer_in(const char *text)
{
    dt_answer a = inside_tags((dt_answer){text, strlen(text)});
    const char *mark = find_last(a, "####");
    if (mark) {
        const char *begin = mark + 4, *end = a.at + a.n, *line = memchr(begin, '\n', (size_t)(end - begin));
        return trim(between(begin, line ? line : end));
    }
    const dt_answer box = boxed(a);
    return trim(box.at ? box : a);
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

/* Thousands separators are followed by groups of three digits: "1,234,567". */
static bool is_separator(const char *comma)
{
    int n = 0;
    while (isdigit((unsigned char)comma[1 + n])) n++;
    return n == 3;
}

/* Parses a decimal number at *text and advances *text past it. */
static bool take_number(const char **text, double *x)
{
    char digits[128];
    size_t n = 0;
    const char *p = *text;
    bool whole = true; /* without a decimal point and an exponent so far */
    if (*p == '+' || *p == '-') digits[n++] = *p++;
    if (!isdigit((unsigned char)p[0]) && !(p[0] == '.' && isdigit((unsigned char)p[1]))) return false;
    for (; n < sizeof digits - 1; p++) {
        if (*p == ',' && whole && is_separator(p)) continue;
        const bool sign = (*p == '+' || *p == '-') && (p[-1] == 'e' || p[-1] == 'E');
        if (!isdigit((unsigned char)*p) && *p != '.' && *p != 'e' && *p != 'E' && !sign) break;
        whole &= isdigit((unsigned char)*p) != 0;
        digits[n++] = *p;
    }
    digits[n] = '\0';
    char *end;
    *x = strtod(digits, &end);
    *text = p;
    return *end == '\0' && isfinite(*x);
}

/* A number or a fraction of two numbers, optionally with a dollar sign. */
static bool is_number(const char *text, double *x)
{
    double below;
    const bool minus = text[0] == '-' && text[1] == '$';
    text += minus;
    if (*text == '$') text++;
    while (*text == ' ') text++;
    if (!take_number(&text, x)) return false;
    if (*text == '/' || (*text == ' ' && text[1] == '/')) {
        text += strcspn(text, "/") + 1;
        text += *text == ' ';
        if (!take_number(&text, &below) || below == 0) return false;
        *x /= below;
    }
    if (minus) *x = -*x;
    return *text == '\0';
}

/* Reduce white space between words to one space, and remove a final point. */
static void tidy(char *text)
{
    char *to = text;
    for (const char *from = text; *from; from++) {
        if (!isspace((unsigned char)*from))
            *to++ = *from;
        else if (to > text && to[-1] != ' ')
            *to++ = ' ';
    }
    while (to > text && (to[-1] == ' ' || to[-1] == '.')) to--;
    *to = '\0';
}

/* Malloc'ed; NULL: out of memory. Invalid UTF-8 stays unchanged. */
static char *normal_form(dt_answer a)
{
    size_t n;
    char *text;
    if (dt_unicode_form(a.at, a.n, DT_FORM_COMPATIBLE | DT_FORM_COMPOSED | DT_FORM_CASE_FOLDED, &text, &n) != DT_OK) {
        dt_error_clear();
        text = strndup(a.at, a.n);
    }
    if (text) tidy(text);
    return text;
}

/* There are at most three roundings (two values and their quotient), each with an error of half a unit: 3 * 2^-53 on
 * either side. */
static bool are_equal(double x, double y) { return fabs(x - y) <= 6 * 0x1p-53 * fmax(fabs(x), fabs(y)); }

dt_err dt_answers_equal(dt_answer a, dt_answer b, bool *equal)
{
    char *x = normal_form(a), *y = normal_form(b);
    const bool memory = x && y;
    double p, q;
    if (memory) *equal = is_number(x, &p) && is_number(y, &q) ? are_equal(p, q) : strcmp(x, y) == 0;
    free(x);
    free(y);
    DT_CHECK(memory, DT_ERR_MEMORY, "no memory to compare two answers");
    return DT_OK;
}
