/* jinja.c - public functions, and global functions of templates. */
#include "jinja_private.h"

#include "dtrain/tokenizer/tokenizer.h"
#include "dtrain/text/utf8.h"

struct dt_jinja {
    char *name;
    bool strict, has_blocks;
    dt_jarena arena;
    const dt_jnode *root;
};

/* ---- global functions -------------------------------------------------------------------------------------------- */

#define FUNCTION(name) static dt_jv name(dt_jctx *x, dt_jv v, const dt_jv *a, const dt_jargs *args)

FUNCTION(raise_exception)
{
    const dt_jv given = dt_jv_str(x, a[0]);
    char text[301];
    const size_t n = given.n < sizeof text ? given.n : sizeof text - 1;
    for (size_t i = 0; i < n; i++) text[i] = (unsigned char)given.u.s[i] < ' ' ? ' ' : given.u.s[i]; /* one line */
    text[n] = '\0';
    x->raised = true;
    dt_jinja_fail(x, "the template refuses: %s", text);
}

FUNCTION(range)
{
    enum { MAX_ITEMS = 100000 }; /* limit of Jinja2's sandbox */
    const int64_t one = dt_jv_to_int(x, a[0], "range"), from = a[1].kind == DT_J_MISSING ? 0 : one,
                  to = a[1].kind == DT_J_MISSING ? one : dt_jv_to_int(x, a[1], "range"),
                  step = a[2].kind == DT_J_MISSING ? 1 : dt_jv_to_int(x, a[2], "range");
    dt_jv out = dt_jv_list(x, DT_J_LIST);
    if (step == 0) dt_jinja_fail(x, "range: the step is 0");
    for (int64_t i = from; step > 0 ? i < to : i > to;) {
        if (out.u.list->n >= MAX_ITEMS) dt_jinja_fail(x, "range: more than %d numbers", MAX_ITEMS);
        dt_jv_append(x, out, dt_jv_int(i));
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return out;
}

/* Entries of a mapping, then of the keyword arguments. */
static dt_jv pairs(dt_jctx *x, const dt_jargs *args, const char *who)
{
    dt_jv out = dt_jv_dict(x);
    for (int i = 0; i < args->n; i++) {
        const dt_jv one = args->value[i];
        if (args->key[i]) {
            dt_jv_put(x, out, dt_jv_string(args->key[i], strlen(args->key[i])), one);
            continue;
        }
        if (i > 0 || one.kind != DT_J_DICT) dt_jinja_fail(x, "%s: expected a mapping or named arguments", who);
        for (size_t k = 0; k < one.u.dict->n; k++) dt_jv_put(x, out, one.u.dict->key[k], one.u.dict->value[k]);
    }
    return out;
}
FUNCTION(dict) { return pairs(x, args, "dict"); }
FUNCTION(namespace)
{
    dt_jv out = pairs(x, args, "namespace");
    out.kind = DT_J_NAMESPACE;
    return out;
}

FUNCTION(strftime_now)
{
    char format[256], *text = dt_jinja_alloc(x, 1024);
    const dt_jv given = dt_jv_need_string(x, a[0], "strftime_now");
    struct tm when;
    x->dated = true;
    if (given.n == 0) return given;
    if (given.n >= sizeof format) dt_jinja_fail(x, "strftime_now: a format of more than 255 bytes");
    memcpy(format, given.u.s, given.n);
    format[given.n] = '\0';
    if (!localtime_r(&x->now, &when)) dt_jinja_fail(x, "strftime_now: no local time");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    const size_t n = strftime(text, 1024, format, &when);
#pragma GCC diagnostic pop
    return dt_jv_string(text, n);
}

const dt_jfunction dt_jglobals[] = {{"raise_exception", "message", 1, raise_exception},
                                    {"range", "start stop step", 1, range},
                                    {"dict", NULL, 0, dict},
                                    {"namespace", NULL, 0, namespace},
                                    {"strftime_now", "format", 1, strftime_now},
                                    {NULL, NULL, 0, NULL}};

/* ---- parsing ----------------------------------------------------------------------------------------------------- */

/* Parse with x, which is cleared. */
static dt_err parse_with(dt_jctx *x, dt_jinja *t, const char *text, size_t nbytes)
{
    DT_CHECK(dt_utf8_valid(text, nbytes) == nbytes, DT_ERR_DATA, "%s: expected text in UTF-8, found other bytes",
             t->name);
    x->name = t->name;
    x->line = 1;
    x->strict = t->strict;
    if (setjmp(x->escape) == 0) t->root = dt_jinja_template(x, dt_jinja_lex(x, text, nbytes));
    t->arena = x->arena;
    t->has_blocks = x->has_blocks;
    return x->err;
}

dt_err dt_jinja_parse(dt_jinja **out, const char *name, const char *text, size_t nbytes, bool strict)
{
    dt_jinja *t = calloc(1, sizeof *t);
    dt_jctx *x = calloc(1, sizeof *x);
    const bool room = t && x && (t->name = strdup(name));
    if (t) t->strict = strict;
    const dt_err err =
        room ? parse_with(x, t, text, nbytes) : dt_fail(DT_ERR_MEMORY, "%s: out of memory for a template", name);
    free(x);
    *out = err == DT_OK ? t : NULL;
    if (err != DT_OK) dt_jinja_close(t);
    return err;
}

void dt_jinja_close(dt_jinja *t)
{
    if (!t) return;
    dt_jinja_free_arena(&t->arena);
    free(t->name);
    free(t);
}

void dt_jinja_result_free(dt_jinja_result *r)
{
    free(r->text);
    free(r->generated);
    *r = (dt_jinja_result){0};
}

/* ---- rendering --------------------------------------------------------------------------------------------------- */

static void render(dt_jctx *x, const dt_jnode *root, const json_t *variables, dt_jbuf *out)
{
    dt_jscope *scope = dt_jinja_alloc(x, sizeof *scope);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)variables, key, value) dt_jinja_set(x, scope, key, dt_jv_from_json(x, value));
    dt_jinja_run(x, scope, root, out);
}

static void *copy(const void *from, size_t nbytes, size_t more)
{
    char *to = calloc(1, nbytes + more);
    if (to && nbytes) memcpy(to, from, nbytes);
    return to;
}

dt_err dt_jinja_render(const dt_jinja *t, const json_t *variables, time_t now, dt_jinja_result *result)
{
    dt_jbuf *out = calloc(1, sizeof *out);
    dt_jctx *x = calloc(1, sizeof *x);
    *result = (dt_jinja_result){0};
    if (!out || !x) {
        free(out);
        free(x);
        return dt_fail(DT_ERR_MEMORY, "%s: out of memory for evaluating a template", t->name);
    }
    x->name = t->name;
    x->line = 1;
    x->strict = t->strict;
    x->now = now ? now : time(NULL);
    x->output = out;
    if (setjmp(x->escape) == 0) render(x, t->root, variables, out);
    dt_err err = x->err;
    if (err == DT_OK) {
        result->text = copy(out->text, out->n, 1);
        result->nbytes = out->n;
        result->generated = copy(x->generated, (size_t)x->n_generated * sizeof *x->generated, 1);
        result->n_generated = x->n_generated;
        if (!result->text || !result->generated) err = dt_fail(DT_ERR_MEMORY, "%s: out of memory for a text", t->name);
    }
    if (err != DT_OK) dt_jinja_result_free(result);
    result->has_blocks = t->has_blocks;
    result->raised = x->raised;
    result->dated = x->dated;
    dt_jinja_free_arena(&x->arena);
    free(x);
    free(out);
    return err;
}
