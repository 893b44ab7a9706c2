/* filters.c - filters of Jinja2 that chat templates use (jinja2/filters.py), and transformers' tojson. */
#include "strings.h"

#include "dtrain/text/pattern.h"

#include <errno.h>
#include <math.h>

#define FILTER(name) static dt_jv name(dt_jctx *x, dt_jv v, const dt_jv *a, const dt_jargs *args)

static bool given(dt_jv v) { return v.kind != DT_J_MISSING; }
static bool flag(dt_jv v) { return given(v) && dt_jv_truth(v); }
static dt_jv empty(void) { return dt_jv_string("", 0); }

/* ---- text -------------------------------------------------------------------------------------------------------- */

FILTER(trim) { return dt_jstring_strip(x, dt_jv_str(x, v), a[0], DT_JSTRIP_LEFT | DT_JSTRIP_RIGHT); }
FILTER(lower) { return dt_jstring_case(x, dt_jv_str(x, v), DT_JCASE_LOWER); }
FILTER(upper) { return dt_jstring_case(x, dt_jv_str(x, v), DT_JCASE_UPPER); }
FILTER(capitalize) { return dt_jstring_case(x, dt_jv_str(x, v), DT_JCASE_CAPITALIZE); }
FILTER(title)
{
    /* words begin after white space and - ( { [ <, but not after other punctuation as in str.title */
    dt_jv s = dt_jv_str(x, v);
    dt_jbuf b = {0};
    for (size_t i = 0; i < s.n;) {
        size_t n = 0;
        while (i + n < s.n && !strchr(" \t\n\r\f\v-({[<", s.u.s[i + n])) n++;
        const dt_jv word = dt_jstring_case(x, dt_jv_string(s.u.s + i, n), DT_JCASE_CAPITALIZE);
        dt_jbuf_add(x, &b, word.u.s, word.n);
        i += n;
        if (i < s.n) dt_jbuf_add(x, &b, s.u.s + i++, 1);
    }
    return dt_jbuf_value(&b);
}
FILTER(string) { return dt_jv_str(x, v); }
FILTER(escape) { return dt_jv_escape(x, v); }
FILTER(safe)
{
    v = dt_jv_str(x, v);
    v.safe = true;
    return v;
}
FILTER(replace)
{
    const int64_t max = given(a[2]) && a[2].kind != DT_J_NONE ? dt_jv_to_int(x, a[2], "replace") : -1;
    return dt_jstring_replace(x, dt_jv_str(x, v), dt_jv_str(x, a[0]), dt_jv_str(x, a[1]), max);
}
/* Nothing but the arena outlives dt_jinja_fail. */
FILTER(regex_replace)
{
    char why[300] = "";
    const dt_jv s = dt_jv_str(x, v), pattern = dt_jv_need_string(x, a[0], "regex_replace"),
                by = dt_jv_need_string(x, a[1], "regex_replace");
    const int64_t max = given(a[2]) ? dt_jv_to_int(x, a[2], "regex_replace") : 0;
    dt_pattern *p;
    dt_text out = {0};
    dt_jinja_work(x, s.n);
    dt_err err = dt_pattern_compile(&p, pattern.u.s, pattern.n, DT_PATTERN_PYTHON);
    if (err == DT_OK) err = dt_pattern_replace(p, s.u.s, s.n, by.u.s, by.n, max, &out);
    dt_pattern_free(p);
    if (err != DT_OK) {
        snprintf(why, sizeof why, "%s", dt_error_message());
        dt_error_clear();
    } else if (out.n > (size_t)DT_JINJA_MAX_MEMORY - x->arena.n_total) {
        snprintf(why, sizeof why, "the text is too long");
    }
    char *text = *why ? NULL : dt_jinja_alloc(x, out.n + 1);
    if (text && out.n) memcpy(text, out.bytes, out.n);
    const size_t n = out.n;
    dt_text_free(&out);
    if (!text) dt_jinja_fail(x, "regex_replace: %s", why);
    return dt_jv_string(text, n);
}
FILTER(indent)
{
    const dt_jv s = dt_jv_str(x, v), lines = dt_jstring_lines(x, dt_jinja_binary(x, "+", s, dt_jv_string("\n", 1)));
    const dt_jv by = given(a[0]) ? a[0] : dt_jv_int(4);
    const dt_jv blank = dt_jinja_binary(x, "*", dt_jv_string(" ", 1), by.kind == DT_J_STRING ? dt_jv_int(0) : by),
                pad = by.kind == DT_J_STRING ? by : blank;
    dt_jbuf b = {0};
    for (size_t i = 0; i < lines.u.list->n; i++) {
        const dt_jv line = lines.u.list->item[i];
        if (i > 0) dt_jbuf_say(x, &b, "\n");
        if (i > 0 ? line.n > 0 || flag(a[2]) : flag(a[1])) dt_jbuf_add(x, &b, pad.u.s, pad.n);
        dt_jbuf_add(x, &b, line.u.s, line.n);
    }
    return dt_jbuf_value(&b);
}

static const char *separator(dt_jctx *x, dt_jv both, size_t i)
{
    if (!given(both) || both.kind == DT_J_NONE) return NULL;
    const dt_jlist *all = dt_jv_items(x, both);
    if (all->n != 2) dt_jinja_fail(x, "tojson: separators: expected two");
    const dt_jv one = dt_jv_need_string(x, all->item[i], "tojson: separators");
    char *text = dt_jinja_alloc(x, one.n + 1);
    return memcpy(text, one.u.s, one.n);
}
FILTER(tojson)
{
    const dt_jdump how = {.indent = given(a[1]) ? a[1] : dt_jv_none(),
                          .item = separator(x, a[2], 0),
                          .pair = separator(x, a[2], 1),
                          .sort = flag(a[3]),
                          .ascii = flag(a[0])};
    if (how.indent.kind != DT_J_NONE && how.indent.kind != DT_J_STRING) dt_jv_to_int(x, how.indent, "tojson: indent");
    return dt_jv_to_json(x, v, &how);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

#define LARGE_INTEGER "integers of more than 64 bits are not supported"

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Copy a text without the underscores that separate digits. False: an underscore is elsewhere, or the text has
 * characters that only C's functions accept. */
static bool copy_number(dt_jv v, char *text)
{
    for (size_t i = 0; i < v.n; i++) {
        const char c = v.u.s[i];
        const bool between = c == '_' && i > 0 && i + 1 < v.n && is_digit(v.u.s[i - 1]) && is_digit(v.u.s[i + 1]);
        if (!c || strchr("xXpP(", c) || (c == '_' && !between)) return false;
        if (c != '_') *text++ = c;
    }
    return v.n > 0;
}

/* Convert a text to a number as int() or float() does. */
static bool read_number(dt_jctx *x, dt_jv v, bool whole, dt_jv *out)
{
    char *end;
    v = dt_jstring_strip(x, v, (dt_jv){0}, DT_JSTRIP_LEFT | DT_JSTRIP_RIGHT);
    char *text = dt_jinja_alloc(x, v.n + 1);
    if (!copy_number(v, text)) return false;
    if (!whole) {
        *out = dt_jv_float(strtod(text, &end));
        return *end == '\0';
    }
    errno = 0;
    *out = dt_jv_int(strtoll(text, &end, 10));
    if (*end == '\0' && errno == ERANGE) dt_jinja_fail(x, LARGE_INTEGER);
    return *end == '\0';
}

/* int() of a float. */
static dt_jv whole_part(dt_jctx *x, double f)
{
    if (fabs(f) >= 0x1p63) dt_jinja_fail(x, LARGE_INTEGER);
    return dt_jv_int((int64_t)f);
}
FILTER(to_int)
{
    dt_jv out, otherwise = given(a[0]) ? a[0] : dt_jv_int(0);
    if (given(a[1])) dt_jinja_fail(x, "int: a base is not supported");
    if (v.kind == DT_J_BOOL) return dt_jv_int(v.u.b);
    if (v.kind == DT_J_FLOAT) return isnan(v.u.f) ? otherwise : whole_part(x, v.u.f);
    if (v.kind == DT_J_STRING && read_number(x, v, true, &out)) return out;
    if (v.kind == DT_J_STRING && read_number(x, v, false, &out) && isfinite(out.u.f)) return whole_part(x, out.u.f);
    return v.kind == DT_J_INT ? v : otherwise;
}
FILTER(to_float)
{
    dt_jv out;
    if (dt_jv_is_number(v)) return dt_jv_float(dt_jv_number(v));
    if (v.kind == DT_J_STRING && read_number(x, v, false, &out)) return out;
    return given(a[0]) ? a[0] : dt_jv_float(0);
}
FILTER(absolute)
{
    if (v.kind == DT_J_FLOAT) return dt_jv_float(fabs(v.u.f));
    v = dt_jv_int(dt_jv_to_int(x, v, "abs")); /* of True: 1 */
    return v.u.i < 0 ? dt_jinja_binary(x, "-", dt_jv_int(0), v) : v;
}
FILTER(rounded)
{
    const int64_t digits = given(a[0]) ? dt_jv_to_int(x, a[0], "round") : 0;
    const dt_jv how = given(a[1]) ? dt_jv_need_string(x, a[1], "round") : dt_jv_string("common", 6);
    if (!dt_jv_is_number(v)) dt_jinja_fail(x, "round: expected a number, found a value of type %s", dt_jv_type(v));
    if (digits < -300 || digits > 300) dt_jinja_fail(x, "round: more than 300 digits are not supported");
    const double scale = pow(10, (double)digits), f = dt_jv_number(v);
    if (strcmp(how.u.s, "ceil") == 0) return dt_jv_float(ceil(f * scale) / scale);
    if (strcmp(how.u.s, "floor") == 0) return dt_jv_float(floor(f * scale) / scale);
    if (strcmp(how.u.s, "common") != 0) dt_jinja_fail(x, "round: expected common, ceil or floor, found %.40s", how.u.s);
    if (v.kind != DT_J_FLOAT && digits >= 0) return dt_jv_int(dt_jv_to_int(x, v, "round"));
    if (v.kind != DT_J_FLOAT) dt_jinja_fail(x, "round of an integer before its point is not supported");
    if (digits < 0) return dt_jv_float(rint(f / pow(10, -(double)digits)) * pow(10, -(double)digits));
    char text[640]; /* the longest has 309 digits before the decimal point */
    snprintf(text, sizeof text, "%.*f", (int)digits, f);
    return dt_jv_float(strtod(text, NULL));
}
FILTER(sum)
{
    const dt_jlist *all = dt_jv_items(x, v);
    dt_jv total = given(a[1]) ? a[1] : dt_jv_int(0);
    for (size_t i = 0; i < all->n; i++)
        total = dt_jinja_binary(x, "+", total, given(a[0]) ? dt_jinja_path(x, all->item[i], a[0]) : all->item[i]);
    return total;
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

static dt_jv list_of(dt_jctx *x, dt_jkind kind, const dt_jlist *all)
{
    dt_jv v = dt_jv_list(x, kind);
    for (size_t i = 0; i < all->n; i++) dt_jv_append(x, v, all->item[i]);
    return v;
}
FILTER(length) { return dt_jv_int(dt_jv_length(x, v)); }
FILTER(list) { return list_of(x, DT_J_LIST, dt_jv_items(x, v)); }
FILTER(first)
{
    const dt_jlist *all = dt_jv_items(x, v);
    return all->n > 0 ? all->item[0] : dt_jv_undefined("first item of an empty list");
}
FILTER(last)
{
    const dt_jlist *all = dt_jv_items(x, v);
    return all->n > 0 ? all->item[all->n - 1] : dt_jv_undefined("last item of an empty list");
}
FILTER(join)
{
    const dt_jlist *all = dt_jv_items(x, v);
    dt_jv texts = dt_jv_list(x, DT_J_LIST);
    for (size_t i = 0; i < all->n; i++)
        dt_jv_append(
            x, texts,
            dt_jv_str(x, given(a[1]) && a[1].kind != DT_J_NONE ? dt_jinja_path(x, all->item[i], a[1]) : all->item[i]));
    return dt_jstring_join(x, given(a[0]) ? dt_jv_str(x, a[0]) : empty(), texts.u.list);
}
FILTER(reverse)
{
    const dt_jlist *all = dt_jv_items(x, v);
    dt_jv out = dt_jv_list(x, DT_J_ITERATOR);
    for (size_t i = all->n; i-- > 0;) dt_jv_append(x, out, all->item[i]);
    return v.kind == DT_J_STRING ? dt_jstring_join(x, empty(), out.u.list) : out;
}
FILTER(items)
{
    dt_jv out = dt_jv_list(x, DT_J_ITERATOR);
    if (v.kind == DT_J_UNDEFINED) return out;
    if (v.kind != DT_J_DICT) dt_jinja_fail(x, "items: expected a mapping, found a value of type %s", dt_jv_type(v));
    for (size_t i = 0; i < v.u.dict->n; i++) {
        dt_jv pair = dt_jv_list(x, DT_J_TUPLE);
        dt_jv_append(x, pair, v.u.dict->key[i]);
        dt_jv_append(x, pair, v.u.dict->value[i]);
        dt_jv_append(x, out, pair);
    }
    return out;
}

/* Key for sorting: an attribute of the item, lower case unless keep_case. */
static dt_jv sort_key(dt_jctx *x, dt_jv item, dt_jv path, bool keep_case)
{
    if (given(path) && path.kind != DT_J_NONE) item = dt_jinja_path(x, item, path);
    return item.kind == DT_J_STRING && !keep_case ? dt_jstring_case(x, item, DT_JCASE_LOWER) : item;
}

/* Merge sort: stable, with guaranteed O(n log n). keys and items are sorted together. */
static void merge_sort(dt_jctx *x, dt_jv *key, dt_jv *item, size_t n, bool back)
{
    if (n < 2) return;
    const size_t half = n / 2;
    merge_sort(x, key, item, half, back);
    merge_sort(x, key + half, item + half, n - half, back);
    dt_jv *keys = dt_jinja_alloc(x, n * sizeof *keys), *items = dt_jinja_alloc(x, n * sizeof *items);
    for (size_t i = 0, j = half, k = 0; k < n; k++) {
        bool left = i < half;
        if (left && j < n) {
            const int order = dt_jv_compare(x, key[i], key[j]);
            dt_jinja_work(x, 0);
            left = back ? order >= 0 : order <= 0;
        }
        const size_t from = left ? i++ : j++;
        keys[k] = key[from];
        items[k] = item[from];
    }
    memcpy(key, keys, n * sizeof *key);
    memcpy(item, items, n * sizeof *item);
}

static dt_jv sorted(dt_jctx *x, const dt_jlist *all, dt_jv path, bool keep_case, bool back)
{
    dt_jv out = list_of(x, DT_J_LIST, all), keys = dt_jv_list(x, DT_J_LIST);
    for (size_t i = 0; i < all->n; i++) dt_jv_append(x, keys, sort_key(x, all->item[i], path, keep_case));
    merge_sort(x, keys.u.list->item, out.u.list->item, all->n, back);
    return out;
}
FILTER(sort) { return sorted(x, dt_jv_items(x, v), a[2], flag(a[1]), flag(a[0])); }
FILTER(dictsort)
{
    const dt_jv pairs = items(x, v, NULL, NULL), by = given(a[1]) ? dt_jv_str(x, a[1]) : dt_jv_string("key", 3);
    return sorted(x, pairs.u.list, dt_jv_int(strcmp(by.u.s, "value") == 0), flag(a[0]), flag(a[2]));
}
FILTER(unique)
{
    const dt_jlist *all = dt_jv_items(x, v);
    dt_jv out = dt_jv_list(x, DT_J_ITERATOR), seen = dt_jv_list(x, DT_J_LIST);
    for (size_t i = 0; i < all->n; i++) {
        const dt_jv key = sort_key(x, all->item[i], a[1], flag(a[0]));
        if (dt_jv_in(x, key, seen)) continue;
        dt_jv_append(x, seen, key);
        dt_jv_append(x, out, all->item[i]);
    }
    return out;
}
static dt_jv extreme(dt_jctx *x, dt_jv v, const dt_jv *a, bool back)
{
    const dt_jv all = sorted(x, dt_jv_items(x, v), a[1], flag(a[0]), back);
    return all.u.list->n > 0 ? all.u.list->item[0] : dt_jv_undefined("minimum or maximum of an empty list");
}
FILTER(minimum) { return extreme(x, v, a, false); }
FILTER(maximum) { return extreme(x, v, a, true); }

/* Items to iterate over; false values, including None, have none. */
static const dt_jlist *walked(dt_jctx *x, dt_jv v) { return dt_jv_items(x, dt_jv_truth(v) ? v : empty()); }

/* ---- filters that take a filter, a test or an attribute ---------------------------------------------------------- */

static dt_jv need_argument(dt_jctx *x, const dt_jargs *args, int i, const char *who)
{
    if (i >= args->n || args->key[i]) dt_jinja_fail(x, "%s: expected argument %d", who, i + 1);
    return args->value[i];
}

static const dt_jfunction *named(dt_jctx *x, dt_jv name, const dt_jfunction *all, const char *kind)
{
    char text[64];
    name = dt_jv_need_string(x, name, kind);
    snprintf(text, sizeof text, "%.*s", (int)(name.n < 60 ? name.n : 60), name.u.s);
    const dt_jfunction *f = dt_jfunction_find(all, text);
    if (!f) dt_jinja_fail(x, "unknown or unsupported %s %s", kind, text);
    return f;
}
static dt_jargs rest(const dt_jargs *args, int from)
{
    return (dt_jargs){.value = args->value + from, .key = args->key + from, .n = args->n - from};
}

FILTER(map)
{
    const dt_jlist *all = walked(x, v);
    dt_jv out = dt_jv_list(x, DT_J_ITERATOR), path = {0}, otherwise = {0};
    for (int i = 0; i < args->n; i++) {
        if (!args->key[i]) continue;
        if (strcmp(args->key[i], "attribute") == 0) path = args->value[i];
        if (strcmp(args->key[i], "default") == 0) otherwise = args->value[i];
    }
    if (given(path)) {
        for (size_t i = 0; i < all->n; i++) {
            const dt_jv one = dt_jinja_path(x, all->item[i], path);
            dt_jv_append(x, out, one.kind == DT_J_UNDEFINED && given(otherwise) ? otherwise : one);
        }
        return out;
    }
    const dt_jfunction *f = named(x, need_argument(x, args, 0, "map"), dt_jfilters, "filter");
    const dt_jargs more = rest(args, 1);
    for (size_t i = 0; i < all->n; i++) dt_jv_append(x, out, dt_jinja_apply(x, f, all->item[i], &more));
    return out;
}

static dt_jv chosen(dt_jctx *x, dt_jv v, const dt_jargs *args, bool attribute, bool wanted)
{
    const dt_jlist *all = walked(x, v);
    const dt_jv path = attribute ? need_argument(x, args, 0, "selectattr") : (dt_jv){0};
    const bool tests = args->n > attribute;
    const dt_jfunction *f = tests ? named(x, args->value[attribute], dt_jtests, "test") : NULL;
    const dt_jargs more = tests ? rest(args, attribute + 1) : (dt_jargs){0};
    dt_jv out = dt_jv_list(x, DT_J_ITERATOR);
    for (size_t i = 0; i < all->n; i++) {
        const dt_jv one = attribute ? dt_jinja_path(x, all->item[i], path) : all->item[i];
        if (dt_jv_truth(f ? dt_jinja_apply(x, f, one, &more) : one) == wanted) dt_jv_append(x, out, all->item[i]);
    }
    return out;
}
FILTER(select_those) { return chosen(x, v, args, false, true); }
FILTER(reject) { return chosen(x, v, args, false, false); }
FILTER(selectattr) { return chosen(x, v, args, true, true); }
FILTER(rejectattr) { return chosen(x, v, args, true, false); }

FILTER(otherwise)
{
    const bool missing = v.kind == DT_J_UNDEFINED || (flag(a[1]) && !dt_jv_truth(v));
    return !missing ? v : given(a[0]) ? a[0] : empty();
}

const dt_jfunction dt_jfilters[] = {
    {"abs", "", 0, absolute},
    {"capitalize", "", 0, capitalize},
    {"count", "", 0, length},
    {"d", "default_value boolean", 0, otherwise},
    {"default", "default_value boolean", 0, otherwise},
    {"dictsort", "case_sensitive by reverse", 0, dictsort},
    {"e", "", 0, escape},
    {"escape", "", 0, escape},
    {"first", "", 0, first},
    {"float", "default", 0, to_float},
    {"indent", "width first blank", 0, indent},
    {"int", "default base", 0, to_int},
    {"items", "", 0, items},
    {"join", "d attribute", 0, join},
    {"last", "", 0, last},
    {"length", "", 0, length},
    {"list", "", 0, list},
    {"lower", "", 0, lower},
    {"map", NULL, 0, map},
    {"max", "case_sensitive attribute", 0, maximum},
    {"min", "case_sensitive attribute", 0, minimum},
    {"regex_replace", "pattern repl count", 2, regex_replace},
    {"reject", NULL, 0, reject},
    {"rejectattr", NULL, 0, rejectattr},
    {"replace", "old new count", 2, replace},
    {"reverse", "", 0, reverse},
    {"round", "precision method", 0, rounded},
    {"safe", "", 0, safe},
    {"select", NULL, 0, select_those},
    {"selectattr", NULL, 0, selectattr},
    {"sort", "reverse case_sensitive attribute", 0, sort},
    {"string", "", 0, string},
    {"sum", "attribute start", 0, sum},
    {"title", "", 0, title},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, tojson},
    {"trim", "chars", 0, trim},
    {"unique", "case_sensitive attribute", 0, unique},
    {"upper", "", 0, upper},
    {NULL, NULL, 0, NULL},
};
