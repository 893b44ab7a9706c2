/* execute.c - evaluates statements. Scopes are those of Jinja2: loops, macros, `with` and block sets have
 * one, `if` has none. A macro sees its defining scope. */
#include "jinja_private.h"

typedef enum flow { NEXT, BREAK, CONTINUE } flow;

static flow run(dt_jctx *x, dt_jscope *s, const dt_jnode *node, dt_jbuf *out);

/* Allocated in the arena, because a macro may keep it. */
static dt_jscope *new_scope(dt_jctx *x, dt_jscope *parent)
{
    dt_jscope *s = dt_jinja_alloc(x, sizeof *s);
    s->parent = parent;
    return s;
}

static void assign(dt_jctx *x, dt_jscope *s, const dt_jnode *target, dt_jv value)
{
    if (target->kind == DT_JN_NAME) {
        dt_jinja_set(x, s, target->name, value);
    } else if (target->kind == DT_JN_ATTRIBUTE) {
        const dt_jv of = dt_jinja_eval(x, s, target->left);
        if (of.kind != DT_J_NAMESPACE)
            dt_jinja_fail(x, "%s.%s cannot be set, because %s is not a namespace", target->left->name, target->name,
                          target->left->name);
        dt_jv_put(x, of, dt_jv_string(target->name, strlen(target->name)), value);
    } else {
        const dt_jlist *all = dt_jv_items(x, value);
        if (all->n != (size_t)target->n) dt_jinja_fail(x, "expected %d values to unpack, found %zu", target->n, all->n);
        for (int i = 0; i < target->n; i++) assign(x, s, target->kid[i], all->item[i]);
    }
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static flow run_body(dt_jctx *x, dt_jscope *s, const dt_jnode *body, dt_jbuf *out)
{
    flow f = NEXT;
    for (int i = 0; i < body->n && f == NEXT; i++) f = run(x, s, body->kid[i], out);
    return f;
}

/* Render a body in its own scope to a text. After a break or continue the text is not used. */
static flow capture(dt_jctx *x, dt_jscope *s, const dt_jnode *body, dt_jv *text)
{
    dt_jbuf b = {0};
    const flow f = run_body(x, new_scope(x, s), body, &b);
    *text = dt_jbuf_value(&b);
    return f;
}

/* The filters of a block, applied to its text. */
static dt_jv filtered(dt_jctx *x, dt_jscope *s, const dt_jnode *filters, dt_jv text)
{
    dt_jscope *inner = new_scope(x, s);
    dt_jinja_set(x, inner, DT_JINJA_BLOCK, text);
    return dt_jinja_eval(x, inner, filters);
}

static flow run_if(dt_jctx *x, dt_jscope *s, const dt_jnode *node, dt_jbuf *out)
{
    for (int i = 0; i + 1 < node->n; i += 2)
        if (dt_jinja_truth(x, dt_jinja_eval(x, s, node->kid[i]))) return run_body(x, s, node->kid[i + 1], out);
    return node->n % 2 ? run_body(x, s, node->kid[node->n - 1], out) : NEXT;
}

/* Items that pass the loop's own condition. */
static const dt_jlist *loop_items(dt_jctx *x, dt_jscope *s, const dt_jnode *node)
{
    const dt_jlist *all = dt_jv_items(x, dt_jinja_eval(x, s, node->kid[1]));
    const dt_jv taken = dt_jv_list(x, DT_J_LIST);
    for (size_t i = 0; i < all->n; i++) {
        dt_jscope *inner = node->kid[2] ? new_scope(x, s) : s;
        if (node->kid[2]) assign(x, inner, node->kid[0], all->item[i]);
        if (!node->kid[2] || dt_jv_truth(dt_jinja_eval(x, inner, node->kid[2]))) dt_jv_append(x, taken, all->item[i]);
    }
    return taken.u.list;
}

static flow run_for(dt_jctx *x, dt_jscope *s, const dt_jnode *node, dt_jbuf *out)
{
    dt_jloop *loop = dt_jinja_alloc(x, sizeof *loop);
    loop->list = loop_items(x, s, node);
    flow f = NEXT;
    for (; loop->index < loop->list->n && f != BREAK; loop->index++) {
        dt_jscope *inner = new_scope(x, s);
        dt_jinja_set(x, inner, "loop", (dt_jv){.kind = DT_J_LOOP, .u.loop = loop});
        assign(x, inner, node->kid[0], loop->list->item[loop->index]);
        f = run_body(x, inner, node->kid[3], out);
    }
    if (loop->list->n == 0 && node->kid[4]) return run_body(x, new_scope(x, s), node->kid[4], out);
    return NEXT;
}

static flow run_with(dt_jctx *x, dt_jscope *s, const dt_jnode *node, dt_jbuf *out)
{
    dt_jscope *inner = new_scope(x, s);
    for (int i = 0; i + 1 < node->n; i += 2) assign(x, inner, node->kid[i], dt_jinja_eval(x, s, node->kid[i + 1]));
    return run_body(x, inner, node->kid[node->n - 1], out);
}

/* A block within another one adds nothing to it. */
static flow run_generation(dt_jctx *x, dt_jscope *s, const dt_jnode *node, dt_jbuf *out)
{
    if (out != x->output || x->generates) return run_body(x, new_scope(x, s), node->left, out);
    const int part = x->n_generated;
    x->generated = dt_jinja_grow(x, x->generated, (size_t)part, sizeof *x->generated);
    x->generated[x->n_generated++].from = out->n;
    x->generates = true;
    const flow f = run_body(x, new_scope(x, s), node->left, out);
    x->generates = false;
    x->generated[part].to = out->n;
    return f;
}

/* ---- macros ------------------------------------------------------------------------------------------------------ */

static dt_jv new_macro(dt_jctx *x, dt_jscope *s, const dt_jnode *node)
{
    dt_jmacro *m = dt_jinja_alloc(x, sizeof *m);
    *m = (dt_jmacro){.node = node, .scope = s};
    return (dt_jv){.kind = DT_J_MACRO, .u.macro = m};
}

static int parameter_named(const dt_jnode *macro, const char *name)
{
    for (int i = 0; i < macro->n; i++)
        if (strcmp(macro->key[i], name) == 0) return i;
    return -1;
}

static void set_parameters(dt_jctx *x, dt_jscope *s, const dt_jnode *macro, const dt_jargs *args)
{
    dt_jv *given = dt_jinja_alloc(x, (size_t)macro->n * sizeof *given);
    for (int i = 0; i < args->n; i++) {
        const int at = args->key[i] ? parameter_named(macro, args->key[i]) : i;
        if (at < 0 || at >= macro->n)
            dt_jinja_fail(x, "macro %s: unexpected argument %s", macro->name, args->key[i] ? args->key[i] : "");
        given[at] = args->value[i];
    }
    for (int i = 0; i < macro->n; i++) {
        if (given[i].kind == DT_J_MISSING)
            given[i] = macro->kid[i] ? dt_jinja_eval(x, s, macro->kid[i]) : dt_jv_undefined(macro->key[i]);
        dt_jinja_set(x, s, macro->key[i], given[i]);
    }
}

dt_jv dt_jinja_run_macro(dt_jctx *x, const dt_jmacro *m, const dt_jargs *args, const dt_jv *caller)
{
    dt_jbuf b = {0};
    dt_jscope *inner = new_scope(x, m->scope);
    dt_jinja_enter(x);
    set_parameters(x, inner, m->node, args);
    dt_jinja_set(x, inner, "caller", caller ? *caller : dt_jv_undefined("caller"));
    run_body(x, inner, m->node->left, &b);
    dt_jinja_leave(x);
    return dt_jbuf_value(&b);
}

static void run_call_block(dt_jctx *x, dt_jscope *s, const dt_jnode *node, dt_jbuf *out)
{
    const dt_jnode *call = node->kid[0];
    const dt_jv f = dt_jinja_eval(x, s, call->left), caller = new_macro(x, s, node->kid[1]);
    const dt_jargs args = dt_jinja_passed(x, s, call);
    if (f.kind != DT_J_MACRO) dt_jinja_fail(x, "call: expected a macro");
    const dt_jv text = dt_jinja_run_macro(x, f.u.macro, &args, &caller);
    dt_jbuf_add(x, out, text.u.s, text.n);
}

/* ---- statements -------------------------------------------------------------------------------------------------- */

static void print(dt_jctx *x, dt_jbuf *out, dt_jv v)
{
    v = dt_jv_str(x, v);
    dt_jbuf_add(x, out, v.u.s, v.n);
}

/* Assign or print the text of a block after its filters. */
static flow run_filtered(dt_jctx *x, dt_jscope *s, const dt_jnode *node, dt_jbuf *out)
{
    dt_jv text;
    const flow f = capture(x, s, node->kid[1], &text);
    if (f != NEXT) return f;
    text = filtered(x, s, node->kid[2], text);
    if (node->kid[0])
        assign(x, s, node->kid[0], text);
    else
        print(x, out, text);
    return f;
}

static flow run_one(dt_jctx *x, dt_jscope *s, const dt_jnode *node, dt_jbuf *out)
{
    switch (node->kind) {
    case DT_JN_TEXT:
        dt_jbuf_add(x, out, node->value.u.s, node->value.n);
        break;
    case DT_JN_PRINT:
        print(x, out, dt_jinja_eval(x, s, node->left));
        break;
    case DT_JN_BODY:
        return run_body(x, s, node, out);
    case DT_JN_IF:
        return run_if(x, s, node, out);
    case DT_JN_FOR:
        return run_for(x, s, node, out);
    case DT_JN_WITH:
        return run_with(x, s, node, out);
    case DT_JN_SET:
        assign(x, s, node->kid[0], dt_jinja_eval(x, s, node->kid[1]));
        break;
    case DT_JN_FILTERED:
        return run_filtered(x, s, node, out);
    case DT_JN_MACRO:
        dt_jinja_set(x, s, node->name, new_macro(x, s, node));
        break;
    case DT_JN_CALL_BLOCK:
        run_call_block(x, s, node, out);
        break;
    case DT_JN_GENERATION:
        return run_generation(x, s, node, out);
    case DT_JN_BREAK:
        return BREAK;
    case DT_JN_CONTINUE:
        return CONTINUE;
    default:
        dt_jinja_fail(x, "internal: not a statement");
    }
    return NEXT;
}

static flow run(dt_jctx *x, dt_jscope *s, const dt_jnode *node, dt_jbuf *out)
{
    dt_jinja_work(x, 0);
    dt_jinja_enter(x);
    x->line = node->line;
    const flow f = run_one(x, s, node, out);
    dt_jinja_leave(x);
    return f;
}

void dt_jinja_run(dt_jctx *x, dt_jscope *s, const dt_jnode *body, dt_jbuf *out) { run_body(x, s, body, out); }
