/* eval.c - evaluates expressions, following Jinja2 for names, attributes and items, and Python for operators. */
#include "jinja_private.h"

#include "dtrain/core/plural.h"

#include <math.h>

/* ---- names, attributes, items ------------------------------------------------------------------------------------ */

void dt_jinja_set(dt_jctx *x, dt_jscope *s, const char *name, dt_jv value)
{
    for (dt_jvariable *v = s->first; v; v = v->next)
        if (strcmp(v->name, name) == 0) {
            v->value = value;
            return;
        }
    dt_jvariable *v = dt_jinja_alloc(x, sizeof *v);
    *v = (dt_jvariable){.name = name, .value = value, .next = s->first};
    s->first = v;
}

static dt_jv lookup(const dt_jscope *s, const char *name)
{
    for (; s; s = s->parent)
        for (const dt_jvariable *v = s->first; v; v = v->next)
            if (strcmp(v->name, name) == 0) return v->value;
    const dt_jfunction *f = dt_jfunction_find(dt_jglobals, name);
    if (f) return (dt_jv){.kind = DT_J_FUNCTION, .u.function = f};
    return dt_jv_undefined(name);
}

static dt_jv loop_attribute(dt_jctx *x, dt_jv v, const char *name)
{
    const dt_jloop *l = v.u.loop;
    const int64_t i = (int64_t)l->index, n = (int64_t)l->list->n;
    dt_jv found;
    if (strcmp(name, "index") == 0) return dt_jv_int(i + 1);
    if (strcmp(name, "index0") == 0) return dt_jv_int(i);
    if (strcmp(name, "first") == 0) return dt_jv_bool(i == 0);
    if (strcmp(name, "last") == 0) return dt_jv_bool(i + 1 == n);
    if (strcmp(name, "length") == 0) return dt_jv_int(n);
    if (strcmp(name, "revindex") == 0) return dt_jv_int(n - i);
    if (strcmp(name, "revindex0") == 0) return dt_jv_int(n - i - 1);
    if (strcmp(name, "depth") == 0) return dt_jv_int(1);
    if (strcmp(name, "depth0") == 0) return dt_jv_int(0);
    if (strcmp(name, "previtem") == 0) return i > 0 ? l->list->item[i - 1] : dt_jv_undefined("loop.previtem");
    if (strcmp(name, "nextitem") == 0) return i + 1 < n ? l->list->item[i + 1] : dt_jv_undefined("loop.nextitem");
    return dt_jinja_method(x, v, name, &found) ? found : dt_jv_undefined(name);
}

static const char *name_of(dt_jv undefined) { return undefined.u.s && *undefined.u.s ? undefined.u.s : "the value"; }

void dt_jinja_undefined(dt_jctx *x, dt_jv v, const char *what)
{
    dt_jinja_fail(x, "%.100s is undefined: %.100s", name_of(v), what);
}

bool dt_jinja_truth(dt_jctx *x, dt_jv v)
{
    if (x->strict && v.kind == DT_J_UNDEFINED) dt_jinja_undefined(x, v, "a condition needs a value");
    return dt_jv_truth(v);
}

static dt_jv key_or_undefined(dt_jctx *x, dt_jv v, dt_jv key, const char *name)
{
    const dt_jv *found = dt_jv_get(x, v, key);
    return found ? *found : dt_jv_undefined(name);
}

/* x.name as Jinja looks it up; undefined if missing. */
static dt_jv attribute(dt_jctx *x, dt_jv v, const char *name)
{
    dt_jv method;
    if (v.kind == DT_J_UNDEFINED)
        dt_jinja_fail(x, "%.100s is undefined: cannot read its attribute %.100s", name_of(v), name);
    if (v.kind == DT_J_LOOP) return loop_attribute(x, v, name);
    if (strncmp(name, "__", 2) == 0) return dt_jv_undefined(name);
    if (v.kind == DT_J_NAMESPACE) return key_or_undefined(x, v, dt_jv_string(name, strlen(name)), name);
    if (dt_jinja_method(x, v, name, &method)) return method;
    return v.kind == DT_J_DICT ? key_or_undefined(x, v, dt_jv_string(name, strlen(name)), name) : dt_jv_undefined(name);
}

/* Normalise an index; negative ones count from the end. -1: out of range. */
static int64_t place(int64_t i, int64_t n) { return i < -n || i >= n ? -1 : i < 0 ? i + n : i; }

static dt_jv character(dt_jctx *x, dt_jv v, int64_t i)
{
    size_t at = 0;
    i = place(i, dt_jv_length(x, v));
    if (i < 0) return dt_jv_undefined("an item out of range");
    while (i-- > 0) at += dt_jinja_char(v.u.s + at, v.n - at);
    return dt_jv_string(v.u.s + at, dt_jinja_char(v.u.s + at, v.n - at));
}

/* x[key] */
static dt_jv item(dt_jctx *x, dt_jv v, dt_jv key)
{
    const bool index = key.kind == DT_J_INT || key.kind == DT_J_BOOL;
    if (v.kind == DT_J_UNDEFINED) dt_jinja_undefined(x, v, "cannot take an item of it");
    if (v.kind == DT_J_DICT) {
        const dt_jv *found = dt_jv_get(x, v, key);
        if (found) return *found;
    }
    if (index && v.kind == DT_J_STRING) return character(x, v, dt_jv_to_int(x, key, "index"));
    if (index && (v.kind == DT_J_LIST || v.kind == DT_J_TUPLE)) {
        const int64_t i = place(dt_jv_to_int(x, key, "index"), (int64_t)v.u.list->n);
        return i < 0 ? dt_jv_undefined("an item out of range") : v.u.list->item[i];
    }
    if (key.kind != DT_J_STRING) return dt_jv_undefined("an item");
    char *name = dt_jinja_alloc(x, key.n + 1);
    memcpy(name, key.u.s, key.n);
    return v.kind == DT_J_DICT && !dt_jinja_method(x, v, name, &(dt_jv){0}) ? dt_jv_undefined(name)
                                                                            : attribute(x, v, name);
}

dt_jv dt_jinja_path(dt_jctx *x, dt_jv v, dt_jv path)
{
    if (path.kind == DT_J_INT) return item(x, v, path);
    path = dt_jv_need_string(x, path, "attribute");
    for (size_t from = 0; from <= path.n;) {
        const char *dot = path.n > from ? memchr(path.u.s + from, '.', path.n - from) : NULL;
        const size_t end = dot ? (size_t)(dot - path.u.s) : path.n;
        dt_jv key = dt_jv_string(path.u.s + from, end - from);
        bool digits = key.n > 0 && key.n < 10;
        int64_t i = 0;
        for (size_t k = 0; k < key.n && digits; k++) {
            digits = key.u.s[k] >= '0' && key.u.s[k] <= '9';
            i = 10 * i + (key.u.s[k] - '0');
        }
        v = item(x, v, digits ? dt_jv_int(i) : key);
        from = end + 1;
    }
    return v;
}

/* Slice bounds as in Python (PySlice_AdjustIndices). */
static int64_t bound(dt_jctx *x, dt_jv v, int64_t n, bool back, int64_t otherwise)
{
    if (v.kind == DT_J_NONE) return otherwise;
    int64_t i = dt_jv_to_int(x, v, "slice");
    if (i < 0) i += i < -n ? 0 : n;
    if (i < 0) return back ? -1 : 0;
    return i >= n ? (back ? n - 1 : n) : i;
}

static dt_jv slice(dt_jctx *x, dt_jv v, const dt_jv part[3])
{
    if (v.kind == DT_J_UNDEFINED) dt_jinja_undefined(x, v, "cannot take a slice of it");
    if (v.kind != DT_J_STRING && v.kind != DT_J_LIST && v.kind != DT_J_TUPLE)
        dt_jinja_fail(x, "a value of type %s has no slices", dt_jv_type(v));
    const dt_jlist *all = dt_jv_items(x, v);
    const int64_t step = part[2].kind == DT_J_NONE ? 1 : dt_jv_to_int(x, part[2], "slice"), n = (int64_t)all->n;
    if (step == 0) dt_jinja_fail(x, "slice: the step is 0");
    const int64_t from = bound(x, part[0], n, step < 0, step < 0 ? n - 1 : 0),
                  to = bound(x, part[1], n, step < 0, step < 0 ? -1 : n);
    dt_jv out = dt_jv_list(x, v.kind == DT_J_TUPLE ? DT_J_TUPLE : DT_J_LIST);
    for (int64_t i = from; step > 0 ? i < to : i > to;) {
        dt_jv_append(x, out, all->item[i]);
        if (step > n || step < -n) break;
        i += step;
    }
    if (v.kind != DT_J_STRING) return out;
    dt_jbuf b = {0};
    for (size_t i = 0; i < out.u.list->n; i++) dt_jbuf_add(x, &b, out.u.list->item[i].u.s, out.u.list->item[i].n);
    return dt_jbuf_value(&b);
}

/* ---- operators --------------------------------------------------------------------------------------------------- */

static dt_jv integers(dt_jctx *x, char operator, int64_t a, int64_t b)
{
    int64_t r = 0;
    bool over = false;
    if ((operator== 'd' || operator== '%') && b == 0) dt_jinja_fail(x, "division by zero");
    if (operator== '+') over = __builtin_add_overflow(a, b, &r);
    if (operator== '-') over = __builtin_sub_overflow(a, b, &r);
    if (operator== '*') over = __builtin_mul_overflow(a, b, &r);
    if (operator== 'd' || operator== '%') {
        over = b == -1 && a == INT64_MIN;
        if (!over) r = operator== 'd' ? a / b - ((a % b != 0) && ((a < 0) != (b < 0))) : a % b;
        if (!over && operator== '%' && r != 0 &&(r < 0) != (b < 0)) r += b;
    }
    if (over) dt_jinja_fail(x, "integers of more than 64 bits are not supported");
    return dt_jv_int(r);
}

/* Python raises where C returns inf for finite operands, and returns complex numbers where C returns NaN. */
static dt_jv real_power(dt_jctx *x, double base, double n)
{
    const double r = pow(base, n);
    if (base == 0 && n < 0) dt_jinja_fail(x, "0 cannot be raised to a negative power");
    if (isfinite(base) && isfinite(n) && !isfinite(r))
        dt_jinja_fail(x, isnan(r) ? "a power that is a complex number" : "a power is too large");
    return dt_jv_float(r);
}

static dt_jv power(dt_jctx *x, dt_jv a, dt_jv b)
{
    if (a.kind == DT_J_FLOAT || b.kind == DT_J_FLOAT) return real_power(x, dt_jv_number(a), dt_jv_number(b));
    dt_jv r = dt_jv_int(1);
    const int64_t base = dt_jv_to_int(x, a, "**"), n = dt_jv_to_int(x, b, "**");
    if (n < 0) return real_power(x, (double)base, (double)n);
    for (int64_t i = 0; i < n && r.u.i != 0; i++) {
        dt_jinja_work(x, 0);
        r = integers(x, '*', r.u.i, base);
    }
    return r;
}

/* As CPython's float_divmod: the quotient is derived from the remainder, which is exact. */
static dt_jv real_division(double p, double q, bool remainder)
{
    double rest = fmod(p, q), quotient = (p - rest) / q;
    if (rest != 0 && (q < 0) != (rest < 0)) rest += q, quotient -= 1;
    if (rest == 0) rest = copysign(0, q);
    double whole = floor(quotient);
    if (quotient - whole > 0.5) whole += 1;
    if (quotient == 0) whole = copysign(0, p / q);
    return dt_jv_float(remainder ? rest : whole);
}

static dt_jv numbers(dt_jctx *x, const char *operator, dt_jv a, dt_jv b)
{
    const bool real = a.kind == DT_J_FLOAT || b.kind == DT_J_FLOAT, floor_div = strcmp(operator, "//") == 0;
    if (strcmp(operator, "**") == 0) return power(x, a, b);
    const double p = dt_jv_number(a), q = dt_jv_number(b);
    const bool divides = *operator== '/' || * operator== '%';
    if (divides && q == 0) dt_jinja_fail(x, "division by zero");
    if (*operator== '/' && !floor_div) return dt_jv_float(p / q);
    if (!real)
        return integers(x, floor_div ? 'd' : *operator, dt_jv_to_int(x, a, operator), dt_jv_to_int(x, b, operator));
    if (floor_div || *operator== '%') return real_division(p, q, !floor_div);
    return dt_jv_float(*operator== '+' ? p + q : * operator== '-' ? p - q : p * q);
}

static dt_jv join_two(dt_jctx *x, dt_jv a, dt_jv b)
{
    dt_jbuf buf = {0};
    const bool safe = a.safe || b.safe;
    if (safe && !a.safe) a = dt_jv_escape(x, a);
    if (safe && !b.safe) b = dt_jv_escape(x, b);
    dt_jbuf_add(x, &buf, a.u.s, a.n);
    dt_jbuf_add(x, &buf, b.u.s, b.n);
    dt_jv v = dt_jbuf_value(&buf);
    v.safe = safe;
    return v;
}

static dt_jv repeat(dt_jctx *x, dt_jv v, int64_t n)
{
    dt_jbuf b = {0};
    dt_jv list;
    if (v.kind == DT_J_STRING) {
        for (int64_t i = 0; i < n && v.n > 0; i++) dt_jbuf_add(x, &b, v.u.s, v.n);
        list = dt_jbuf_value(&b);
        list.safe = v.safe;
        return list;
    }
    list = dt_jv_list(x, v.kind);
    for (int64_t i = 0; i < n && v.u.list->n > 0; i++)
        for (size_t k = 0; k < v.u.list->n; k++) dt_jv_append(x, list, v.u.list->item[k]);
    return list;
}

static bool repeats(dt_jv v) { return v.kind == DT_J_STRING || v.kind == DT_J_LIST || v.kind == DT_J_TUPLE; }

dt_jv dt_jinja_binary(dt_jctx *x, const char *operator, dt_jv a, dt_jv b)
{
    if (a.kind == DT_J_UNDEFINED || b.kind == DT_J_UNDEFINED)
        dt_jinja_undefined(x, a.kind == DT_J_UNDEFINED ? a : b, "an operator needs a value");
    if (dt_jv_is_number(a) && dt_jv_is_number(b)) return numbers(x, operator, a, b);
    if (*operator== '+' && a.kind == DT_J_STRING && b.kind == DT_J_STRING) return join_two(x, a, b);
    if (*operator== '+' && a.kind == b.kind && repeats(a)) {
        dt_jv list = repeat(x, a, 1);
        for (size_t i = 0; i < b.u.list->n; i++) dt_jv_append(x, list, b.u.list->item[i]);
        return list;
    }
    const bool times = strcmp(operator, "*") == 0;
    if (times && repeats(a) && (b.kind == DT_J_INT || b.kind == DT_J_BOOL))
        return repeat(x, a, dt_jv_to_int(x, b, operator));
    if (times && repeats(b) && (a.kind == DT_J_INT || a.kind == DT_J_BOOL))
        return repeat(x, b, dt_jv_to_int(x, a, operator));
    if (*operator== '%' && a.kind == DT_J_STRING) dt_jinja_fail(x, "formatting with %% is not supported");
    dt_jinja_fail(x, "values of types %s and %s have no operator %s", dt_jv_type(a), dt_jv_type(b), operator);
}

bool dt_jinja_compare(dt_jctx *x, const char *operator, dt_jv a, dt_jv b)
{
    if (strcmp(operator, "in") == 0) return dt_jv_in(x, a, b);
    if (strcmp(operator, "not in") == 0) return !dt_jv_in(x, a, b);
    if (strcmp(operator, "==") == 0) return dt_jv_equal(x, a, b);
    if (strcmp(operator, "!=") == 0) return !dt_jv_equal(x, a, b);
    if (a.kind == DT_J_UNDEFINED || b.kind == DT_J_UNDEFINED)
        dt_jinja_undefined(x, a.kind == DT_J_UNDEFINED ? a : b, "an operator needs a value");
    const int order = dt_jv_compare(x, a, b);
    if (strcmp(operator, "<") == 0) return order < 0;
    if (strcmp(operator, "<=") == 0) return order <= 0;
    return strcmp(operator, ">") == 0 ? order > 0 : order >= 0;
}

static dt_jv compare(dt_jctx *x, dt_jscope *s, const dt_jnode *node)
{
    dt_jv left = dt_jinja_eval(x, s, node->kid[0]);
    for (int i = 1; i < node->n; i++) {
        const dt_jv right = dt_jinja_eval(x, s, node->kid[i]);
        if (!dt_jinja_compare(x, node->key[i], left, right)) return dt_jv_bool(false);
        left = right;
    }
    return dt_jv_bool(true);
}

static dt_jv sign(dt_jctx *x, dt_jv v, bool negative)
{
    if (v.kind == DT_J_FLOAT) return dt_jv_float(negative ? -v.u.f : v.u.f);
    return integers(x, negative ? '-' : '+', 0, dt_jv_to_int(x, v, negative ? "-" : "+"));
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

const dt_jfunction *dt_jfunction_find(const dt_jfunction *table, const char *name)
{
    while (table->name && strcmp(table->name, name) != 0) table++;
    return table->name ? table : NULL;
}

/* Index of a name in a blank-separated list; -1: not found. *n: length of the list. */
static int parameter(const char *params, const char *name, int *n)
{
    int found = -1;
    *n = 0;
    for (const char *at = params; *at; ++*n) {
        const size_t len = strcspn(at, " ");
        if (name && strlen(name) == len && strncmp(at, name, len) == 0) found = *n;
        at += len + (at[len] == ' ');
    }
    return found;
}

dt_jv dt_jinja_apply(dt_jctx *x, const dt_jfunction *f, dt_jv self, const dt_jargs *args)
{
    dt_jv argv[DT_JINJA_MAX_PARAMS] = {{0}};
    int n_params;
    if (!f->params) return f->call(x, self, NULL, args);
    for (int i = 0; i < args->n; i++) {
        const int at = parameter(f->params, args->key[i], &n_params), to = args->key[i] ? at : i;
        if (to < 0 || to >= n_params)
            dt_jinja_fail(x, "%s: unexpected argument %s", f->name, args->key[i] ? args->key[i] : "");
        if (argv[to].kind != DT_J_MISSING) dt_jinja_fail(x, "%s: argument %d twice", f->name, to + 1);
        argv[to] = args->value[i];
    }
    for (int i = 0; i < f->n_needed; i++)
        if (argv[i].kind == DT_J_MISSING)
            dt_jinja_fail(x, "%s: expected %d argument%s, found %d", f->name, f->n_needed, dt_plural(f->n_needed), i);
    return f->call(x, self, argv, args);
}

static void add_argument(dt_jctx *x, dt_jargs *args, dt_jv value, const char *key)
{
    enum { MAX_ARGUMENTS = 1000 };
    if (args->n == MAX_ARGUMENTS) dt_jinja_fail(x, "more than %d arguments", MAX_ARGUMENTS);
    args->value = dt_jinja_grow(x, args->value, (size_t)args->n, sizeof *args->value);
    args->key = dt_jinja_grow(x, args->key, (size_t)args->n, sizeof *args->key);
    args->value[args->n] = value;
    args->key[args->n++] = key;
}

/* The key of an entry as a name that ends with a 0. */
static const char *key_name(dt_jctx *x, dt_jv key)
{
    const dt_jv text = dt_jv_need_string(x, key, "arguments with **");
    char *name = dt_jinja_alloc(x, text.n + 1);
    memcpy(name, text.u.s, text.n);
    return name;
}

dt_jargs dt_jinja_passed(dt_jctx *x, dt_jscope *s, const dt_jnode *node)
{
    dt_jargs args = {0};
    for (int i = 0; i < node->n; i++) {
        const char *key = node->key[i];
        const dt_jv value = dt_jinja_eval(x, s, node->kid[i]);
        const bool items = key && strcmp(key, DT_JINJA_ITEMS) == 0, pairs = key && strcmp(key, DT_JINJA_PAIRS) == 0;
        if (pairs && value.kind != DT_J_DICT)
            dt_jinja_fail(x, "arguments with **: expected a mapping, found a value of type %s", dt_jv_type(value));
        if (!items && !pairs) add_argument(x, &args, value, key);
        const dt_jlist *all = items ? dt_jv_items(x, value) : NULL;
        for (size_t k = 0; items && k < all->n; k++) add_argument(x, &args, all->item[k], NULL);
        for (size_t k = 0; pairs && k < value.u.dict->n; k++)
            add_argument(x, &args, value.u.dict->value[k], key_name(x, value.u.dict->key[k]));
    }
    return args;
}

/* ---- expressions ------------------------------------------------------------------------------------------------- */

static dt_jv collection(dt_jctx *x, dt_jscope *s, const dt_jnode *node)
{
    if (node->kind != DT_JN_DICT) {
        dt_jv v = dt_jv_list(x, node->kind == DT_JN_LIST ? DT_J_LIST : DT_J_TUPLE);
        for (int i = 0; i < node->n; i++) dt_jv_append(x, v, dt_jinja_eval(x, s, node->kid[i]));
        return v;
    }
    dt_jv v = dt_jv_dict(x);
    for (int i = 0; i < node->n; i += 2) {
        const dt_jv key = dt_jinja_eval(x, s, node->kid[i]);
        dt_jv_put(x, v, key, dt_jinja_eval(x, s, node->kid[i + 1]));
    }
    return v;
}

static dt_jv logical(dt_jctx *x, dt_jscope *s, const dt_jnode *node)
{
    dt_jv v = dt_jv_none();
    for (int i = 0; i < node->n; i++) {
        v = dt_jinja_eval(x, s, node->kid[i]);
        if (dt_jinja_truth(x, v) == (node->kind == DT_JN_OR)) break;
    }
    return v;
}

static dt_jv condition(dt_jctx *x, dt_jscope *s, const dt_jnode *node)
{
    if (dt_jinja_truth(x, dt_jinja_eval(x, s, node->kid[0]))) return dt_jinja_eval(x, s, node->kid[1]);
    return node->kid[2] ? dt_jinja_eval(x, s, node->kid[2]) : dt_jv_undefined("an if without else");
}

static dt_jv concat(dt_jctx *x, dt_jscope *s, const dt_jnode *node)
{
    dt_jbuf b = {0};
    for (int i = 0; i < node->n; i++) {
        const dt_jv part = dt_jv_str(x, dt_jinja_eval(x, s, node->kid[i]));
        dt_jbuf_add(x, &b, part.u.s, part.n);
    }
    return dt_jbuf_value(&b);
}

static dt_jv apply(dt_jctx *x, dt_jscope *s, const dt_jnode *node)
{
    if (!node->function)
        dt_jinja_fail(x, "unknown or unsupported %s %.60s", node->kind == DT_JN_TEST ? "test" : "filter", node->name);
    const dt_jv self = dt_jinja_eval(x, s, node->left);
    const dt_jargs args = dt_jinja_passed(x, s, node);
    const bool takes_it = node->kind == DT_JN_TEST || !strcmp(node->name, "default") || !strcmp(node->name, "d");
    x->line = node->line;
    if (x->strict && self.kind == DT_J_UNDEFINED && !takes_it) dt_jinja_undefined(x, self, "a filter needs a value");
    return dt_jinja_apply(x, node->function, self, &args);
}

static dt_jv sliced(dt_jctx *x, dt_jscope *s, const dt_jnode *node)
{
    const dt_jv v = dt_jinja_eval(x, s, node->left);
    dt_jv part[3];
    for (int i = 0; i < 3; i++) part[i] = node->kid[i] ? dt_jinja_eval(x, s, node->kid[i]) : dt_jv_none();
    return slice(x, v, part);
}

static dt_jv called(dt_jctx *x, dt_jscope *s, const dt_jnode *node)
{
    const dt_jv f = dt_jinja_eval(x, s, node->left);
    const dt_jargs args = dt_jinja_passed(x, s, node);
    x->line = node->line;
    if (f.kind == DT_J_UNDEFINED) dt_jinja_undefined(x, f, "it cannot be called");
    if (f.kind == DT_J_FUNCTION) return dt_jinja_apply(x, f.u.function, f, &args);
    if (f.kind == DT_J_MACRO) return dt_jinja_run_macro(x, f.u.macro, &args, NULL);
    if (f.kind != DT_J_METHOD) dt_jinja_fail(x, "a value of type %s cannot be called", dt_jv_type(f));
    if (!f.u.method->function) dt_jinja_fail(x, "the method %s is not supported", f.u.method->name);
    return dt_jinja_apply(x, f.u.method->function, f.u.method->self, &args);
}

static dt_jv evaluate(dt_jctx *x, dt_jscope *s, const dt_jnode *node)
{
    dt_jv v;
    switch (node->kind) {
    case DT_JN_CONST:
        return node->value;
    case DT_JN_NAME:
        return lookup(s, node->name);
    case DT_JN_LIST:
    case DT_JN_TUPLE:
    case DT_JN_DICT:
        return collection(x, s, node);
    case DT_JN_ATTRIBUTE:
        return attribute(x, dt_jinja_eval(x, s, node->left), node->name);
    case DT_JN_ITEM:
        v = dt_jinja_eval(x, s, node->left);
        return item(x, v, dt_jinja_eval(x, s, node->kid[0]));
    case DT_JN_SLICE:
        return sliced(x, s, node);
    case DT_JN_CALL:
        return called(x, s, node);
    case DT_JN_FILTER:
    case DT_JN_TEST:
        return apply(x, s, node);
    case DT_JN_NOT:
        return dt_jv_bool(!dt_jinja_truth(x, dt_jinja_eval(x, s, node->left)));
    case DT_JN_NEGATIVE:
    case DT_JN_POSITIVE:
        return sign(x, dt_jinja_eval(x, s, node->left), node->kind == DT_JN_NEGATIVE);
    case DT_JN_AND:
    case DT_JN_OR:
        return logical(x, s, node);
    case DT_JN_CONDITION:
        return condition(x, s, node);
    case DT_JN_COMPARE:
        return compare(x, s, node);
    case DT_JN_CONCAT:
        return concat(x, s, node);
    case DT_JN_BINARY:
        v = dt_jinja_eval(x, s, node->kid[0]);
        return dt_jinja_binary(x, node->name, v, dt_jinja_eval(x, s, node->kid[1]));
    default:
        dt_jinja_fail(x, "internal: not an expression");
    }
}

dt_jv dt_jinja_eval(dt_jctx *x, dt_jscope *s, const dt_jnode *node)
{
    dt_jinja_work(x, 0);
    dt_jinja_enter(x);
    x->line = node->line;
    const dt_jv v = evaluate(x, s, node);
    x->line = node->line;
    dt_jinja_leave(x);
    return v;
}
