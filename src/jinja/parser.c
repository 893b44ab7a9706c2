/* parser.c - parses statements. Grammar of Jinja2 3.1 (parser.py). */
#include "jinja_private.h"

dt_jnode *dt_jinja_node(dt_jctx *x, dt_jnode_kind kind, int line)
{
    dt_jnode *node = dt_jinja_alloc(x, sizeof *node);
    node->kind = kind;
    node->line = line;
    return node;
}

void dt_jinja_add_kid(dt_jctx *x, dt_jnode *node, dt_jnode *kid, const char *key)
{
    node->kid = dt_jinja_grow(x, node->kid, (size_t)node->n, sizeof(dt_jnode *));
    node->key = dt_jinja_grow(x, node->key, (size_t)node->n, sizeof(const char *));
    node->kid[node->n] = kid;
    node->key[node->n++] = key;
}

bool dt_jinja_skip(dt_jparser *p, dt_jtoken_kind kind, const char *text)
{
    if (!dt_jinja_at(p, kind, text)) return false;
    p->at++;
    return true;
}

static const char *say_token(const dt_jtoken *t)
{
    switch (t->kind) {
    case DT_JT_END:
        return "the end of the template";
    case DT_JT_TEXT:
        return "text";
    case DT_JT_PRINT_BEGIN:
        return "{{";
    case DT_JT_PRINT_END:
        return "}}";
    case DT_JT_BLOCK_BEGIN:
        return "{%";
    case DT_JT_BLOCK_END:
        return "%}";
    case DT_JT_STRING:
        return "a string";
    default:
        return t->text;
    }
}

void dt_jinja_expect(dt_jparser *p, dt_jtoken_kind kind, const char *text)
{
    if (dt_jinja_skip(p, kind, text)) return;
    p->x->line = p->at->line;
    const dt_jtoken wanted = {.kind = kind, .text = text ? text : "a name"};
    dt_jinja_fail(p->x, "expected %s, found %.60s", say_token(&wanted), say_token(p->at));
}

/* ---- bodies ------------------------------------------------------------------------------------------------------ */

static dt_jnode *statement(dt_jparser *p);

/* True if the current block is one of these words (blank-separated), which end a body. */
static bool at_end(const dt_jparser *p, const char *ends)
{
    if (!ends || p->at->kind != DT_JT_BLOCK_BEGIN || p->at[1].kind != DT_JT_NAME) return false;
    const char *name = p->at[1].text;
    const size_t n = strlen(name);
    for (const char *at = ends; (at = strstr(at, name)); at += n)
        if ((at == ends || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0')) return true;
    return false;
}

/* Parse up to a block with one of these names, and stop at its name; NULL: up to the template's end. */
static dt_jnode *body(dt_jparser *p, const char *ends)
{
    dt_jnode *all = dt_jinja_node(p->x, DT_JN_BODY, p->at->line);
    dt_jinja_enter(p->x);
    while (!at_end(p, ends)) {
        const dt_jtoken *t = p->at;
        p->x->line = t->line;
        if (t->kind == DT_JT_END && !ends) break;
        if (t->kind == DT_JT_END) {
            const char *last = strrchr(ends, ' ');
            dt_jinja_fail(p->x, "expected %s, found the end of the template", last ? last + 1 : ends);
        }
        dt_jnode *node = dt_jinja_node(p->x, t->kind == DT_JT_TEXT ? DT_JN_TEXT : DT_JN_PRINT, t->line);
        p->at++;
        if (t->kind == DT_JT_TEXT) {
            node->value = dt_jv_string(t->text, t->n);
        } else if (t->kind == DT_JT_PRINT_BEGIN) {
            node->left = dt_jinja_tuple(p, true);
            dt_jinja_expect(p, DT_JT_PRINT_END, NULL);
        } else {
            node = statement(p);
        }
        if (node) dt_jinja_add_kid(p->x, all, node, NULL);
    }
    dt_jinja_leave(p->x);
    if (ends) p->at++;
    return all;
}

static dt_jnode *body_after_tag(dt_jparser *p, const char *ends)
{
    dt_jinja_expect(p, DT_JT_BLOCK_END, NULL);
    return body(p, ends);
}

static void end_tag(dt_jparser *p)
{
    p->at++; /* skip the word */
    dt_jinja_expect(p, DT_JT_BLOCK_END, NULL);
}

/* ---- statements -------------------------------------------------------------------------------------------------- */

static dt_jnode *parse_if(dt_jparser *p, dt_jnode *node)
{
    node->kind = DT_JN_IF;
    for (;;) {
        dt_jinja_add_kid(p->x, node, dt_jinja_tuple(p, false), NULL);
        dt_jinja_add_kid(p->x, node, body_after_tag(p, "elif else endif"), NULL);
        if (!dt_jinja_skip(p, DT_JT_NAME, "elif")) break;
    }
    if (dt_jinja_skip(p, DT_JT_NAME, "else")) dt_jinja_add_kid(p->x, node, body_after_tag(p, "endif"), NULL);
    end_tag(p);
    return node;
}

static dt_jnode *parse_for(dt_jparser *p, dt_jnode *node)
{
    node->kind = DT_JN_FOR;
    dt_jinja_add_kid(p->x, node, dt_jinja_targets(p, false), NULL);
    dt_jinja_expect(p, DT_JT_NAME, "in");
    dt_jinja_add_kid(p->x, node, dt_jinja_tuple(p, false), NULL);
    dt_jinja_add_kid(p->x, node, dt_jinja_skip(p, DT_JT_NAME, "if") ? dt_jinja_expression(p) : NULL, NULL);
    if (dt_jinja_at(p, DT_JT_NAME, "recursive")) dt_jinja_fail(p->x, "recursive loops are not supported");
    p->n_loops++;
    dt_jinja_add_kid(p->x, node, body_after_tag(p, "else endfor"), NULL);
    p->n_loops--;
    const bool has_else = dt_jinja_skip(p, DT_JT_NAME, "else");
    dt_jinja_add_kid(p->x, node, has_else ? body_after_tag(p, "endfor") : NULL, NULL);
    end_tag(p);
    return node;
}

/* After the target, the rest of a block whose text is filtered. */
static dt_jnode *parse_filtered(dt_jparser *p, dt_jnode *node, dt_jnode *filters, const char *end)
{
    node->kind = DT_JN_FILTERED;
    dt_jinja_add_kid(p->x, node, body_after_tag(p, end), NULL);
    dt_jinja_add_kid(p->x, node, filters, NULL);
    end_tag(p);
    return node;
}

static dt_jnode *parse_set(dt_jparser *p, dt_jnode *node)
{
    dt_jinja_add_kid(p->x, node, dt_jinja_targets(p, true), NULL);
    if (dt_jinja_skip(p, DT_JT_OPERATOR, "=")) {
        node->kind = DT_JN_SET;
        dt_jinja_add_kid(p->x, node, dt_jinja_tuple(p, true), NULL);
        dt_jinja_expect(p, DT_JT_BLOCK_END, NULL);
        return node;
    }
    return parse_filtered(p, node, dt_jinja_block_filters(p, true), "endset");
}

/* (name, name=default, ...) */
static void parameters(dt_jparser *p, dt_jnode *macro)
{
    dt_jinja_expect(p, DT_JT_OPERATOR, "(");
    while (!dt_jinja_skip(p, DT_JT_OPERATOR, ")")) {
        if (macro->n > 0) dt_jinja_expect(p, DT_JT_OPERATOR, ",");
        const char *name = p->at->text;
        dt_jinja_expect(p, DT_JT_NAME, NULL);
        const bool has = dt_jinja_skip(p, DT_JT_OPERATOR, "=");
        if (!has && macro->n > 0 && macro->kid[macro->n - 1])
            dt_jinja_fail(p->x, "parameter %s: expected a default, as the one before it has", name);
        dt_jinja_add_kid(p->x, macro, has ? dt_jinja_expression(p) : NULL, name);
    }
}

static dt_jnode *parse_macro(dt_jparser *p, dt_jnode *node, const char *end)
{
    const int loops = p->n_loops;
    node->kind = DT_JN_MACRO;
    p->n_loops = 0;
    node->left = body_after_tag(p, end);
    p->n_loops = loops;
    end_tag(p);
    return node;
}

static dt_jnode *parse_call_block(dt_jparser *p, dt_jnode *node)
{
    dt_jnode *caller = dt_jinja_node(p->x, DT_JN_MACRO, node->line);
    node->kind = DT_JN_CALL_BLOCK;
    caller->name = "caller";
    if (dt_jinja_at(p, DT_JT_OPERATOR, "(")) parameters(p, caller);
    dt_jnode *call = dt_jinja_expression(p);
    if (call->kind != DT_JN_CALL) dt_jinja_fail(p->x, "call: expected a call of a macro");
    dt_jinja_add_kid(p->x, node, call, NULL);
    dt_jinja_add_kid(p->x, node, parse_macro(p, caller, "endcall"), NULL);
    return node;
}

static dt_jnode *parse_with(dt_jparser *p, dt_jnode *node)
{
    node->kind = DT_JN_WITH;
    while (!dt_jinja_at(p, DT_JT_BLOCK_END, NULL)) {
        if (node->n > 0) dt_jinja_expect(p, DT_JT_OPERATOR, ",");
        dt_jinja_add_kid(p->x, node, dt_jinja_targets(p, false), NULL);
        dt_jinja_expect(p, DT_JT_OPERATOR, "=");
        dt_jinja_add_kid(p->x, node, dt_jinja_expression(p), NULL);
    }
    dt_jinja_add_kid(p->x, node, body_after_tag(p, "endwith"), NULL);
    end_tag(p);
    return node;
}

/* {% generation %} marks what a model writes, and does not affect the text. */
static dt_jnode *parse_generation(dt_jparser *p, dt_jnode *node)
{
    node->kind = DT_JN_GENERATION;
    p->x->has_blocks = true;
    node->left = body_after_tag(p, "endgeneration");
    end_tag(p);
    return node;
}

static dt_jnode *parse_leave(dt_jparser *p, dt_jnode *node, dt_jnode_kind kind)
{
    if (p->n_loops == 0) dt_jinja_fail(p->x, "%s outside of a loop", kind == DT_JN_BREAK ? "break" : "continue");
    node->kind = kind;
    dt_jinja_expect(p, DT_JT_BLOCK_END, NULL);
    return node;
}

static dt_jnode *statement(dt_jparser *p)
{
    const char *word = p->at->text;
    dt_jnode *node = dt_jinja_node(p->x, DT_JN_IF, p->at->line);
    dt_jinja_expect(p, DT_JT_NAME, NULL);
    if (strcmp(word, "if") == 0) return parse_if(p, node);
    if (strcmp(word, "for") == 0) return parse_for(p, node);
    if (strcmp(word, "set") == 0) return parse_set(p, node);
    if (strcmp(word, "call") == 0) return parse_call_block(p, node);
    if (strcmp(word, "with") == 0) return parse_with(p, node);
    if (strcmp(word, "filter") == 0) {
        dt_jinja_add_kid(p->x, node, NULL, NULL);
        return parse_filtered(p, node, dt_jinja_block_filters(p, false), "endfilter");
    }
    if (strcmp(word, "generation") == 0) return parse_generation(p, node);
    if (strcmp(word, "break") == 0) return parse_leave(p, node, DT_JN_BREAK);
    if (strcmp(word, "continue") == 0) return parse_leave(p, node, DT_JN_CONTINUE);
    if (strcmp(word, "macro") != 0) dt_jinja_fail(p->x, "unknown or unsupported block %.60s", word);
    node->name = p->at->text;
    dt_jinja_expect(p, DT_JT_NAME, NULL);
    parameters(p, node);
    return parse_macro(p, node, "endmacro");
}

dt_jnode *dt_jinja_template(dt_jctx *x, const dt_jtoken *tokens)
{
    dt_jparser p = {.x = x, .at = tokens};
    return body(&p, NULL);
}
