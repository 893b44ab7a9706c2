/* value.c - values with Python's semantics (truth, equality, order), and their arena. */
#include "jinja_private.h"

#include "dtrain/text/unicode.h"
#include <stdarg.h>

/* ---- errors, memory, limits -------------------------------------------------------------------------------------- */

void dt_jinja_fail(dt_jctx *x, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    x->err = dt_fail(DT_ERR_DATA, "%s: line %d: %s", x->name, x->line, text);
    longjmp(x->escape, 1);
}

static _Noreturn void no_memory(dt_jctx *x)
{
    x->err = dt_fail(DT_ERR_MEMORY, "%s: out of memory for evaluating a chat template", x->name);
    longjmp(x->escape, 1);
}

void *dt_jinja_alloc(dt_jctx *x, size_t nbytes)
{
    enum { CHUNK = 32 << 10 };
    dt_jarena *a = &x->arena;
    if (nbytes > DT_JINJA_MAX_MEMORY || a->n_total + nbytes > DT_JINJA_MAX_MEMORY)
        dt_jinja_fail(x, "the template needs more than %d MiB of memory", DT_JINJA_MAX_MEMORY >> 20);
    nbytes = (nbytes + 15) & ~(size_t)15;
    if (nbytes > a->n_free) {
        const size_t n = nbytes > CHUNK / 4 ? nbytes : CHUNK;
        dt_jchunk *c = calloc(1, sizeof *c + n);
        if (!c) no_memory(x);
        c->next = a->chunks;
        a->chunks = c;
        a->n_total += n;
        if (n == nbytes) return c->bytes; /* dedicated block; the last chunk stays in use */
        a->free = c->bytes;
        a->n_free = n;
    }
    void *at = a->free;
    a->free += nbytes;
    a->n_free -= nbytes;
    return at;
}

void *dt_jinja_grow(dt_jctx *x, void *array, size_t n, size_t elem_size)
{
    enum { FIRST = 8 };
    if (n > 0 && (n < FIRST || (n & (n - 1)) != 0)) return array;
    void *more = dt_jinja_alloc(x, (n ? 2 * n : FIRST) * elem_size);
    if (n > 0) memcpy(more, array, n * elem_size);
    return more;
}

void dt_jinja_free_arena(dt_jarena *a)
{
    while (a->chunks) {
        dt_jchunk *next = a->chunks->next;
        free(a->chunks);
        a->chunks = next;
    }
    *a = (dt_jarena){0};
}

void dt_jinja_work(dt_jctx *x, size_t n)
{
    x->steps += 1 + (int64_t)(n / 16);
    if (x->steps > DT_JINJA_MAX_STEPS) dt_jinja_fail(x, "the template takes more than %d steps", DT_JINJA_MAX_STEPS);
}

void dt_jinja_enter(dt_jctx *x)
{
    if (++x->depth > DT_JINJA_MAX_DEPTH) dt_jinja_fail(x, "the nesting exceeds %d levels", DT_JINJA_MAX_DEPTH);
}

/* ---- strings ----------------------------------------------------------------------------------------------------- */

dt_jv dt_jv_string(const char *text, size_t n) { return (dt_jv){.kind = DT_J_STRING, .n = n, .u.s = text ? text : ""}; }

void dt_jbuf_add(dt_jctx *x, dt_jbuf *b, const char *text, size_t n)
{
    dt_jinja_work(x, n);
    if (b->n + n + 1 > b->n_alloc) {
        const size_t more = 2 * b->n_alloc > b->n + n + 1 ? 2 * b->n_alloc : b->n + n + 64;
        char *grown = dt_jinja_alloc(x, more);
        if (b->n > 0) memcpy(grown, b->text, b->n);
        b->text = grown;
        b->n_alloc = more;
    }
    if (n > 0) memcpy(b->text + b->n, text, n);
    b->n += n;
    b->text[b->n] = '\0';
}

size_t dt_jinja_char(const char *text, size_t n)
{
    size_t len = 1;
    if (n == 0) return 0;
    while (len < n && len < 4 && ((unsigned char)text[len] & 0xc0) == 0x80) len++;
    return len;
}

uint32_t dt_jinja_code(const char *text, size_t n)
{
    size_t len;
    return dt_utf8_length(text, n) == n ? dt_utf8_decode(text, &len) : (unsigned char)*text;
}

void dt_jinja_put_utf8(dt_jctx *x, dt_jbuf *b, uint32_t code)
{
    char out[4];
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        dt_jinja_fail(x, "U+%04X in a string is not a character", (unsigned)code);
    dt_jbuf_add(x, b, out, dt_utf8_put(code, out));
}

dt_jv dt_jv_escape(dt_jctx *x, dt_jv v)
{
    static const char what[] = "&<>'\"";
    static const char *const with[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    dt_jbuf b = {0};
    v = dt_jv_str(x, v);
    if (v.safe) return v;
    for (size_t i = 0; i < v.n; i++) {
        const char *found = v.u.s[i] ? strchr(what, v.u.s[i]) : NULL;
        if (found)
            dt_jbuf_say(x, &b, with[found - what]);
        else
            dt_jbuf_add(x, &b, v.u.s + i, 1);
    }
    v = dt_jbuf_value(&b);
    v.safe = true;
    return v;
}

/* ---- lists and dicts --------------------------------------------------------------------------------------------- */

dt_jv dt_jv_list(dt_jctx *x, dt_jkind kind)
{
    return (dt_jv){.kind = kind, .u.list = dt_jinja_alloc(x, sizeof(dt_jlist))};
}

void dt_jv_append(dt_jctx *x, dt_jv list, dt_jv item)
{
    dt_jlist *l = list.u.list;
    dt_jinja_work(x, 0);
    l->item = dt_jinja_grow(x, l->item, l->n, sizeof *l->item);
    l->item[l->n++] = item;
}

const dt_jlist *dt_jv_items(dt_jctx *x, dt_jv v)
{
    if (v.kind == DT_J_LIST || v.kind == DT_J_TUPLE || v.kind == DT_J_VIEW) return v.u.list;
    dt_jv all = dt_jv_list(x, DT_J_LIST);
    if (v.kind == DT_J_ITERATOR) {
        *all.u.list = *v.u.list;
        *v.u.list = (dt_jlist){0};
    } else if (v.kind == DT_J_DICT) {
        for (size_t i = 0; i < v.u.dict->n; i++) dt_jv_append(x, all, v.u.dict->key[i]);
    } else if (v.kind == DT_J_STRING) {
        for (size_t i = 0, len; i < v.n; i += len) {
            len = dt_jinja_char(v.u.s + i, v.n - i);
            dt_jv_append(x, all, dt_jv_string(v.u.s + i, len));
        }
    } else if (x->strict && v.kind == DT_J_UNDEFINED) {
        dt_jinja_undefined(x, v, "it cannot be iterated");
    } else if (v.kind != DT_J_UNDEFINED) {
        dt_jinja_fail(x, "a value of type %s cannot be iterated", dt_jv_type(v));
    }
    return all.u.list;
}

dt_jv dt_jv_dict(dt_jctx *x) { return (dt_jv){.kind = DT_J_DICT, .u.dict = dt_jinja_alloc(x, sizeof(dt_jdict))}; }

const dt_jv *dt_jv_get(dt_jctx *x, dt_jv dict, dt_jv key)
{
    const dt_jdict *d = dict.u.dict;
    dt_jinja_work(x, d->n);
    for (size_t i = 0; i < d->n; i++) {
        if (key.kind == DT_J_STRING && d->key[i].kind == DT_J_STRING) {
            if (d->key[i].n != key.n) continue;
            dt_jinja_work(x, key.n);
            if (memcmp(d->key[i].u.s, key.u.s, key.n) == 0) return &d->value[i];
        } else if (dt_jv_equal(x, d->key[i], key)) {
            return &d->value[i];
        }
    }
    return NULL;
}

void dt_jv_put(dt_jctx *x, dt_jv dict, dt_jv key, dt_jv value)
{
    dt_jdict *d = dict.u.dict;
    dt_jv *known = (dt_jv *)dt_jv_get(x, dict, key);
    if (key.kind > DT_J_STRING && key.kind != DT_J_TUPLE)
        dt_jinja_fail(x, "a value of type %s cannot be a key", dt_jv_type(key));
    if (known) {
        *known = value;
        return;
    }
    d->key = dt_jinja_grow(x, d->key, d->n, sizeof *d->key);
    d->value = dt_jinja_grow(x, d->value, d->n, sizeof *d->value);
    d->key[d->n] = key;
    d->value[d->n++] = value;
}

int64_t dt_jv_length(dt_jctx *x, dt_jv v)
{
    int64_t n = 0;
    if (v.kind == DT_J_UNDEFINED) return 0;
    if (v.kind == DT_J_LIST || v.kind == DT_J_TUPLE || v.kind == DT_J_VIEW) return (int64_t)v.u.list->n;
    if (v.kind == DT_J_DICT) return (int64_t)v.u.dict->n;
    if (v.kind != DT_J_STRING) dt_jinja_fail(x, "a value of type %s has no length", dt_jv_type(v));
    dt_jinja_work(x, v.n);
    for (size_t i = 0; i < v.n; i += dt_jinja_char(v.u.s + i, v.n - i)) n++;
    return n;
}

/* ---- properties of values ---------------------------------------------------------------------------------------- */

const char *dt_jv_type(dt_jv v)
{
    static const char *const names[] = {[DT_J_MISSING] = "missing",
                                        [DT_J_UNDEFINED] = "undefined",
                                        [DT_J_NONE] = "None",
                                        [DT_J_BOOL] = "bool",
                                        [DT_J_INT] = "int",
                                        [DT_J_FLOAT] = "float",
                                        [DT_J_STRING] = "str",
                                        [DT_J_LIST] = "list",
                                        [DT_J_TUPLE] = "tuple",
                                        [DT_J_VIEW] = "view",
                                        [DT_J_ITERATOR] = "iterator",
                                        [DT_J_DICT] = "dict",
                                        [DT_J_NAMESPACE] = "namespace",
                                        [DT_J_LOOP] = "loop",
                                        [DT_J_MACRO] = "macro",
                                        [DT_J_METHOD] = "method",
                                        [DT_J_FUNCTION] = "function"};
    return names[v.kind];
}

bool dt_jv_truth(dt_jv v)
{
    switch (v.kind) {
    case DT_J_MISSING:
    case DT_J_UNDEFINED:
    case DT_J_NONE:
        return false;
    case DT_J_BOOL:
        return v.u.b;
    case DT_J_INT:
        return v.u.i != 0;
    case DT_J_FLOAT:
        return v.u.f != 0;
    case DT_J_STRING:
        return v.n > 0;
    case DT_J_LIST:
    case DT_J_TUPLE:
    case DT_J_VIEW:
        return v.u.list->n > 0;
    case DT_J_DICT:
        return v.u.dict->n > 0;
    case DT_J_LOOP:
        return v.u.loop->list->n > 0;
    default:
        return true;
    }
}

double dt_jv_number(dt_jv v)
{
    return v.kind == DT_J_FLOAT ? v.u.f : v.kind == DT_J_INT ? (double)v.u.i : (double)v.u.b;
}

int64_t dt_jv_to_int(dt_jctx *x, dt_jv v, const char *what)
{
    if (v.kind == DT_J_INT) return v.u.i;
    if (v.kind == DT_J_BOOL) return v.u.b;
    dt_jinja_fail(x, "%s: expected an integer, found a value of type %s", what, dt_jv_type(v));
}

dt_jv dt_jv_need_string(dt_jctx *x, dt_jv v, const char *what)
{
    if (v.kind != DT_J_STRING) dt_jinja_fail(x, "%s: expected a string, found a value of type %s", what, dt_jv_type(v));
    return v;
}

static bool lists_equal(dt_jctx *x, const dt_jlist *a, const dt_jlist *b)
{
    bool same = a->n == b->n;
    dt_jinja_enter(x);
    for (size_t i = 0; i < a->n && same; i++) same = dt_jv_equal(x, a->item[i], b->item[i]);
    dt_jinja_leave(x);
    return same;
}

static bool dicts_equal(dt_jctx *x, dt_jv a, dt_jv b)
{
    bool same = a.u.dict->n == b.u.dict->n;
    dt_jinja_enter(x);
    for (size_t i = 0; i < a.u.dict->n && same; i++) {
        const dt_jv *other = dt_jv_get(x, b, a.u.dict->key[i]);
        same = other && dt_jv_equal(x, a.u.dict->value[i], *other);
    }
    dt_jinja_leave(x);
    return same;
}

bool dt_jv_equal(dt_jctx *x, dt_jv a, dt_jv b)
{
    dt_jinja_work(x, 0);
    if (dt_jv_is_number(a) && dt_jv_is_number(b)) {
        if (a.kind == DT_J_INT && b.kind == DT_J_INT) return a.u.i == b.u.i;
        return dt_jv_number(a) == dt_jv_number(b);
    }
    if (a.kind != b.kind) return false;
    if (a.kind == DT_J_STRING) {
        dt_jinja_work(x, a.n);
        return a.n == b.n && memcmp(a.u.s, b.u.s, a.n) == 0;
    }
    if (a.kind == DT_J_LIST || a.kind == DT_J_TUPLE) return lists_equal(x, a.u.list, b.u.list);
    if (a.kind == DT_J_DICT) return dicts_equal(x, a, b);
    return a.kind <= DT_J_NONE || a.u.s == b.u.s;
}

int dt_jv_compare(dt_jctx *x, dt_jv a, dt_jv b)
{
    if (dt_jv_is_number(a) && dt_jv_is_number(b)) {
        if (a.kind == DT_J_INT && b.kind == DT_J_INT) return (a.u.i > b.u.i) - (a.u.i < b.u.i);
        return (dt_jv_number(a) > dt_jv_number(b)) - (dt_jv_number(a) < dt_jv_number(b));
    }
    if (a.kind == DT_J_STRING && b.kind == DT_J_STRING) {
        const int order = memcmp(a.u.s, b.u.s, a.n < b.n ? a.n : b.n);
        dt_jinja_work(x, a.n);
        return order ? order : (a.n > b.n) - (a.n < b.n);
    }
    if (a.kind == b.kind && (a.kind == DT_J_LIST || a.kind == DT_J_TUPLE)) {
        for (size_t i = 0; i < a.u.list->n && i < b.u.list->n; i++)
            if (!dt_jv_equal(x, a.u.list->item[i], b.u.list->item[i])) {
                dt_jinja_enter(x);
                const int order = dt_jv_compare(x, a.u.list->item[i], b.u.list->item[i]);
                dt_jinja_leave(x);
                return order;
            }
        return (a.u.list->n > b.u.list->n) - (a.u.list->n < b.u.list->n);
    }
    dt_jinja_fail(x, "values of types %s and %s cannot be compared", dt_jv_type(a), dt_jv_type(b));
}

bool dt_jv_in(dt_jctx *x, dt_jv item, dt_jv whole)
{
    if (whole.kind == DT_J_DICT) return dt_jv_get(x, whole, item) != NULL;
    if (whole.kind == DT_J_STRING) {
        dt_jv_need_string(x, item, "in");
        dt_jinja_work(x, whole.n);
        return item.n == 0 || memmem(whole.u.s, whole.n, item.u.s, item.n);
    }
    const dt_jlist *all = dt_jv_items(x, whole);
    for (size_t i = 0; i < all->n; i++)
        if (dt_jv_equal(x, all->item[i], item)) return true;
    return false;
}
