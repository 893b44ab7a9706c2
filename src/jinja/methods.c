/* methods.c - methods of strings, lists and dicts, and of `loop`. Methods that exist in Python but not
 * here are defined, and calling one is an error. */
#include "strings.h"

#include "dtrain/text/space.h"

#define METHOD(name) static dt_jv name(dt_jctx *x, dt_jv v, const dt_jv *a, const dt_jargs *args)

static bool given(dt_jv v) { return v.kind != DT_J_MISSING && v.kind != DT_J_NONE; }

/* ---- strings ----------------------------------------------------------------------------------------------------- */

METHOD(strip) { return dt_jstring_strip(x, v, a[0], DT_JSTRIP_LEFT | DT_JSTRIP_RIGHT); }
METHOD(lstrip) { return dt_jstring_strip(x, v, a[0], DT_JSTRIP_LEFT); }
METHOD(rstrip) { return dt_jstring_strip(x, v, a[0], DT_JSTRIP_RIGHT); }
METHOD(lower) { return dt_jstring_case(x, v, DT_JCASE_LOWER); }
METHOD(upper) { return dt_jstring_case(x, v, DT_JCASE_UPPER); }
METHOD(capitalize) { return dt_jstring_case(x, v, DT_JCASE_CAPITALIZE); }
METHOD(title) { return dt_jstring_case(x, v, DT_JCASE_TITLE); }
METHOD(splitlines) { return dt_jstring_lines(x, v); }
METHOD(replace)
{
    const int64_t max = given(a[2]) ? dt_jv_to_int(x, a[2], "replace") : -1;
    return dt_jstring_replace(x, v, dt_jv_need_string(x, a[0], "replace"), dt_jv_need_string(x, a[1], "replace"), max);
}

static bool begins(dt_jctx *x, dt_jv v, dt_jv with)
{
    dt_jinja_work(x, with.n);
    return v.n >= with.n && memcmp(v.u.s, with.u.s, with.n) == 0;
}
static bool ends(dt_jctx *x, dt_jv v, dt_jv with)
{
    return v.n >= with.n && begins(x, dt_jv_string(v.u.s + v.n - with.n, with.n), with);
}

/* Test with a text, or with each of a tuple. */
static dt_jv any(dt_jctx *x, dt_jv v, dt_jv with, bool (*holds)(dt_jctx *, dt_jv, dt_jv), const char *who)
{
    bool found = false;
    if (with.kind != DT_J_TUPLE) return dt_jv_bool(holds(x, v, dt_jv_need_string(x, with, who)));
    for (size_t i = 0; i < with.u.list->n && !found; i++)
        found = holds(x, v, dt_jv_need_string(x, with.u.list->item[i], who));
    return dt_jv_bool(found);
}
METHOD(startswith) { return any(x, v, a[0], begins, "startswith"); }
METHOD(endswith) { return any(x, v, a[0], ends, "endswith"); }
METHOD(removeprefix)
{
    dt_jv_need_string(x, a[0], "removeprefix");
    return begins(x, v, a[0]) ? dt_jv_string(v.u.s + a[0].n, v.n - a[0].n) : v;
}
METHOD(removesuffix)
{
    dt_jv_need_string(x, a[0], "removesuffix");
    return ends(x, v, a[0]) ? dt_jv_string(v.u.s, v.n - a[0].n) : v;
}

static const char *last_of(dt_jctx *x, dt_jv v, dt_jv word)
{
    dt_jinja_work(x, v.n);
    for (size_t i = v.n < word.n ? 0 : v.n - word.n + 1; i-- > 0;) {
        if (word.n > 0 && v.u.s[i] != *word.u.s) continue;
        if (begins(x, dt_jv_string(v.u.s + i, v.n - i), word)) return v.u.s + i;
    }
    return NULL;
}
static const char *first_of(dt_jctx *x, dt_jv v, dt_jv word)
{
    const char *found = memmem(v.u.s, v.n, word.u.s, word.n);
    dt_jinja_work(x, word.n + (found ? (size_t)(found - v.u.s) : v.n));
    return found;
}

/* Position of a word, in characters. */
static dt_jv position(dt_jctx *x, dt_jv v, dt_jv word, bool last)
{
    dt_jv_need_string(x, word, "find");
    const char *found = word.n == 0 ? v.u.s + (last ? v.n : 0) : last ? last_of(x, v, word) : first_of(x, v, word);
    return dt_jv_int(found ? dt_jv_length(x, dt_jv_string(v.u.s, (size_t)(found - v.u.s))) : -1);
}
METHOD(find) { return position(x, v, a[0], false); }
METHOD(rfind) { return position(x, v, a[0], true); }
METHOD(count_text)
{
    int64_t n = 0;
    const dt_jv word = dt_jv_need_string(x, a[0], "count");
    if (word.n == 0) return dt_jv_int(dt_jv_length(x, v) + 1);
    for (const char *found; (found = first_of(x, v, word)); n++) {
        v.n -= (size_t)(found - v.u.s) + word.n;
        v.u.s = found + word.n;
    }
    return dt_jv_int(n);
}

/* Split at white space, into at most max + 1 words. */
static dt_jv split_words(dt_jctx *x, dt_jv v, int64_t max)
{
    dt_jv out = dt_jv_list(x, DT_J_LIST);
    for (;;) {
        v = dt_jstring_strip(x, v, (dt_jv){0}, DT_JSTRIP_LEFT);
        if (v.n == 0) return out;
        size_t n = 0;
        while (n < v.n && !dt_space_length(v.u.s + n, v.n - n)) n++;
        if (max >= 0 && (int64_t)out.u.list->n >= max) n = v.n;
        dt_jinja_work(x, n);
        dt_jv_append(x, out, dt_jv_string(v.u.s, n));
        v.u.s += n;
        v.n -= n;
    }
}
METHOD(split)
{
    const int64_t max = given(a[1]) ? dt_jv_to_int(x, a[1], "split") : -1;
    if (!given(a[0])) return split_words(x, v, max);
    const dt_jv word = dt_jv_need_string(x, a[0], "split");
    dt_jv out = dt_jv_list(x, DT_J_LIST);
    if (word.n == 0) dt_jinja_fail(x, "split: an empty separator");
    for (const char *found; (max < 0 || (int64_t)out.u.list->n < max) && (found = first_of(x, v, word));) {
        const size_t n = (size_t)(found - v.u.s);
        dt_jv_append(x, out, dt_jv_string(v.u.s, n));
        v = dt_jv_string(found + word.n, v.n - n - word.n);
    }
    dt_jv_append(x, out, dt_jv_string(v.u.s, v.n));
    return out;
}
METHOD(rsplit)
{
    const int64_t max = given(a[1]) ? dt_jv_to_int(x, a[1], "rsplit") : -1;
    if (max < 0) return split(x, v, a, args);
    if (!given(a[0])) dt_jinja_fail(x, "rsplit at white space with a limit is not supported");
    const dt_jv word = dt_jv_need_string(x, a[0], "rsplit");
    dt_jv back = dt_jv_list(x, DT_J_LIST), out = dt_jv_list(x, DT_J_LIST);
    if (word.n == 0) dt_jinja_fail(x, "rsplit: an empty separator");
    for (const char *found; (int64_t)back.u.list->n < max && (found = last_of(x, v, word));) {
        const size_t n = (size_t)(found - v.u.s);
        dt_jv_append(x, back, dt_jv_string(found + word.n, v.n - n - word.n));
        v.n = n;
    }
    dt_jv_append(x, out, dt_jv_string(v.u.s, v.n));
    for (size_t i = back.u.list->n; i-- > 0;) dt_jv_append(x, out, back.u.list->item[i]);
    return out;
}

static dt_jv partition_at(dt_jctx *x, dt_jv v, dt_jv word, bool last)
{
    dt_jv_need_string(x, word, "partition");
    if (word.n == 0) dt_jinja_fail(x, "partition: an empty separator");
    const char *found = last ? last_of(x, v, word) : first_of(x, v, word);
    const size_t n = found ? (size_t)(found - v.u.s) : last ? 0 : v.n, after = n + (found ? word.n : 0);
    dt_jv out = dt_jv_list(x, DT_J_TUPLE);
    dt_jv_append(x, out, dt_jv_string(v.u.s, n));
    dt_jv_append(x, out, found ? word : dt_jv_string("", 0));
    dt_jv_append(x, out, dt_jv_string(v.u.s + after, v.n - after));
    return out;
}
METHOD(partition) { return partition_at(x, v, a[0], false); }
METHOD(rpartition) { return partition_at(x, v, a[0], true); }
METHOD(join)
{
    const dt_jlist *all = dt_jv_items(x, a[0]);
    for (size_t i = 0; i < all->n; i++) dt_jv_need_string(x, all->item[i], "join");
    return dt_jstring_join(x, v, all);
}

static bool all_of(dt_jv v, const char *set)
{
    for (size_t i = 0; i < v.n; i++)
        if (!v.u.s[i] || !strchr(set, v.u.s[i])) return false;
    return v.n > 0;
}
METHOD(is_digit)
{
    dt_jinja_work(x, v.n);
    for (size_t i = 0; i < v.n; i++)
        if (v.u.s[i] & 0x80) dt_jinja_fail(x, "isdigit beyond ASCII is not supported");
    return dt_jv_bool(all_of(v, "0123456789"));
}
METHOD(is_space)
{
    dt_jinja_work(x, v.n);
    return dt_jv_bool(v.n > 0 && dt_space_before(v.u.s, v.n) == v.n);
}

/* Argument of a field {}, {0} or {name}; *next: number of the next {}. */
static dt_jv field_of(dt_jctx *x, const dt_jargs *args, const char *name, size_t n, int *next)
{
    int number = 0, positional = 0;
    bool digits = n > 0;
    for (size_t i = 0; i < n; i++) {
        digits = digits && name[i] >= '0' && name[i] <= '9' && number < 1000;
        if (strchr(".[:!", name[i]) && name[i]) dt_jinja_fail(x, "format: only {}, {0} and {name} are supported");
        if (digits) number = 10 * number + (name[i] - '0');
    }
    if (n == 0) number = (*next)++;
    for (int i = 0; i < args->n; i++) {
        const char *key = args->key[i];
        if (key ? !digits && n > 0 && strlen(key) == n && memcmp(key, name, n) == 0
                : (digits || n == 0) && positional++ == number)
            return args->value[i];
    }
    dt_jinja_fail(x, "format: no argument for {%.*s}", (int)(n < 40 ? n : 40), name);
}
METHOD(format)
{
    dt_jbuf b = {0};
    int next = 0;
    for (size_t i = 0; i < v.n; i++) {
        const char c = v.u.s[i];
        const bool brace = c == '{' || c == '}', twice = brace && i + 1 < v.n && v.u.s[i + 1] == c;
        if (!brace || twice) {
            dt_jbuf_add(x, &b, &c, 1);
            i += twice;
            continue;
        }
        const char *name = v.u.s + i + 1, *close = c == '{' ? memchr(name, '}', v.n - i - 1) : NULL;
        if (!close) dt_jinja_fail(x, "format: a single brace");
        const dt_jv text = dt_jv_str(x, field_of(x, args, name, (size_t)(close - name), &next));
        dt_jbuf_add(x, &b, text.u.s, text.n);
        i = (size_t)(close - v.u.s);
    }
    return dt_jbuf_value(&b);
}

static const dt_jfunction of_string[] = {
    {"strip", "chars", 0, strip},
    {"lstrip", "chars", 0, lstrip},
    {"rstrip", "chars", 0, rstrip},
    {"lower", "", 0, lower},
    {"upper", "", 0, upper},
    {"capitalize", "", 0, capitalize},
    {"title", "", 0, title},
    {"splitlines", "", 0, splitlines},
    {"replace", "old new count", 2, replace},
    {"startswith", "prefix", 1, startswith},
    {"endswith", "suffix", 1, endswith},
    {"removeprefix", "prefix", 1, removeprefix},
    {"removesuffix", "suffix", 1, removesuffix},
    {"find", "sub", 1, find},
    {"rfind", "sub", 1, rfind},
    {"count", "sub", 1, count_text},
    {"split", "sep maxsplit", 0, split},
    {"rsplit", "sep maxsplit", 0, rsplit},
    {"partition", "sep", 1, partition},
    {"rpartition", "sep", 1, rpartition},
    {"join", "iterable", 1, join},
    {"isdigit", "", 0, is_digit},
    {"isspace", "", 0, is_space},
    {"format", NULL, 0, format},
    {NULL, NULL, 0, NULL},
};

/* ---- lists and dicts --------------------------------------------------------------------------------------------- */

METHOD(count_item)
{
    int64_t n = 0;
    for (size_t i = 0; i < v.u.list->n; i++) n += dt_jv_equal(x, v.u.list->item[i], a[0]);
    return dt_jv_int(n);
}
METHOD(index_item)
{
    for (size_t i = 0; i < v.u.list->n; i++)
        if (dt_jv_equal(x, v.u.list->item[i], a[0])) return dt_jv_int((int64_t)i);
    dt_jinja_fail(x, "index: the value is not in the list");
}
METHOD(get)
{
    const dt_jv *found = dt_jv_get(x, v, a[0]);
    return found ? *found : a[1].kind == DT_J_MISSING ? dt_jv_none() : a[1];
}
METHOD(keys)
{
    dt_jv out = dt_jv_list(x, DT_J_VIEW);
    for (size_t i = 0; i < v.u.dict->n; i++) dt_jv_append(x, out, v.u.dict->key[i]);
    return out;
}
METHOD(values)
{
    dt_jv out = dt_jv_list(x, DT_J_VIEW);
    for (size_t i = 0; i < v.u.dict->n; i++) dt_jv_append(x, out, v.u.dict->value[i]);
    return out;
}
METHOD(pairs)
{
    dt_jv out = dt_jinja_apply(x, dt_jfunction_find(dt_jfilters, "items"), v, args);
    out.kind = DT_J_VIEW;
    return out;
}
METHOD(copy) { return v; } /* values are immutable */

static const dt_jfunction of_list[] = {
    {"count", "value", 1, count_item}, {"index", "value", 1, index_item}, {"copy", "", 0, copy}, {NULL, NULL, 0, NULL}};
static const dt_jfunction of_dict[] = {{"get", "key default", 1, get}, {"items", "", 0, pairs}, {"keys", "", 0, keys},
                                       {"values", "", 0, values},      {"copy", "", 0, copy},   {NULL, NULL, 0, NULL}};

/* ---- loops ------------------------------------------------------------------------------------------------------- */

METHOD(cycle)
{
    if (args->n == 0) dt_jinja_fail(x, "loop.cycle: expected values");
    return args->value[v.u.loop->index % (size_t)args->n];
}
METHOD(changed)
{
    dt_jv now = dt_jv_list(x, DT_J_TUPLE), before = v.u.loop->changed;
    for (int i = 0; i < args->n; i++) dt_jv_append(x, now, args->value[i]);
    v.u.loop->changed = now;
    return dt_jv_bool(before.kind == DT_J_MISSING || !dt_jv_equal(x, before, now));
}
static const dt_jfunction of_loop[] = {{"cycle", NULL, 0, cycle}, {"changed", NULL, 0, changed}, {NULL, NULL, 0, NULL}};

/* ---- lookup ------------------------------------------------------------------------------------------------------ */

/* Methods of Python that are unsupported here. */
static const char others_of_string[] = " casefold center encode expandtabs format_map index isalnum isalpha "
                                       "isascii isdecimal isidentifier islower isnumeric isprintable istitle isupper "
                                       "ljust maketrans rindex rjust swapcase translate zfill ";
static const char others_of_dict[] = " fromkeys ";

static bool listed(const char *names, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = names; n > 0 && (at = strstr(at, name)); at += n)
        if (at > names && at[-1] == ' ' && at[n] == ' ') return true;
    return false;
}

bool dt_jinja_method(dt_jctx *x, dt_jv self, const char *name, dt_jv *method)
{
    /* modifying methods: undefined in the sandbox, even if the dict has such a key */
    static const char changes_list[] = " append clear pop reverse insert sort extend remove ",
                      changes_dict[] = " clear pop popitem setdefault update ";
    const bool list = self.kind == DT_J_LIST || self.kind == DT_J_TUPLE, dict = self.kind == DT_J_DICT;
    const dt_jfunction *f = self.kind == DT_J_STRING ? of_string
                            : list                   ? of_list
                            : dict                   ? of_dict
                            : self.kind == DT_J_LOOP ? of_loop
                                                     : NULL;
    if ((self.kind == DT_J_LIST && listed(changes_list, name)) || (dict && listed(changes_dict, name)))
        return *method = dt_jv_undefined("a method that modifies a value"), true;
    if (f) f = dt_jfunction_find(f, name);
    const bool other =
        (self.kind == DT_J_STRING && listed(others_of_string, name)) || (dict && listed(others_of_dict, name));
    if (!f && !other) return false;
    dt_jmethod *m = dt_jinja_alloc(x, sizeof *m);
    *m = (dt_jmethod){.self = self, .name = name, .function = f};
    *method = (dt_jv){.kind = DT_J_METHOD, .u.method = m};
    return true;
}
