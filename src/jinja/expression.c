/* expression.c - parses expressions, with the precedence of Jinja2 3.1 (parser.py). */
#include "jinja_private.h"

static dt_jnode *new_node(dt_jparser *p, dt_jnode_kind kind)
{
    p->x->line = p->at->line;
    return dt_jinja_node(p->x, kind, p->at->line);
}

/* Build a node for the binary operator at the previous token. */
static dt_jnode *two(dt_jparser *p, dt_jnode_kind kind, dt_jnode *left, dt_jnode *right)
{
    dt_jnode *node = new_node(p, kind);
    dt_jinja_add_kid(p->x, node, left, NULL);
    dt_jinja_add_kid(p->x, node, right, NULL);
    return node;
}

static dt_jnode *constant(dt_jparser *p, dt_jv value)
{
    dt_jnode *node = new_node(p, DT_JN_CONST);
    node->value = value;
    return node;
}

/* ---- primaries --------------------------------------------------------------------------------------------------- */

static dt_jnode *string(dt_jparser *p)
{
    dt_jbuf b = {0};
    dt_jnode *node = new_node(p, DT_JN_CONST);
    for (; p->at->kind == DT_JT_STRING; p->at++) dt_jbuf_add(p->x, &b, p->at->text, p->at->n);
    node->value = dt_jbuf_value(&b);
    return node;
}

static dt_jnode *name(dt_jparser *p)
{
    const char *word = p->at->text;
    dt_jnode *node = NULL;
    if (strcmp(word, "true") == 0 || strcmp(word, "True") == 0) node = constant(p, dt_jv_bool(true));
    if (strcmp(word, "false") == 0 || strcmp(word, "False") == 0) node = constant(p, dt_jv_bool(false));
    if (strcmp(word, "none") == 0 || strcmp(word, "None") == 0) node = constant(p, dt_jv_none());
    if (!node) {
        node = new_node(p, DT_JN_NAME);
        node->name = word;
    }
    p->at++;
    return node;
}

static dt_jnode *list(dt_jparser *p)
{
    dt_jnode *node = new_node(p, DT_JN_LIST);
    while (!dt_jinja_skip(p, DT_JT_OPERATOR, "]")) {
        if (node->n > 0) dt_jinja_expect(p, DT_JT_OPERATOR, ",");
        if (dt_jinja_skip(p, DT_JT_OPERATOR, "]")) break;
        dt_jinja_add_kid(p->x, node, dt_jinja_expression(p), NULL);
    }
    return node;
}

static dt_jnode *dict(dt_jparser *p)
{
    dt_jnode *node = new_node(p, DT_JN_DICT);
    while (!dt_jinja_skip(p, DT_JT_OPERATOR, "}")) {
        if (node->n > 0) dt_jinja_expect(p, DT_JT_OPERATOR, ",");
        if (dt_jinja_skip(p, DT_JT_OPERATOR, "}")) break;
        dt_jinja_add_kid(p->x, node, dt_jinja_expression(p), NULL);
        dt_jinja_expect(p, DT_JT_OPERATOR, ":");
        dt_jinja_add_kid(p->x, node, dt_jinja_expression(p), NULL);
    }
    return node;
}

static dt_jnode *parentheses(dt_jparser *p)
{
    if (dt_jinja_at(p, DT_JT_OPERATOR, ")")) {
        p->at++;
        return new_node(p, DT_JN_TUPLE);
    }
    dt_jnode *node = dt_jinja_tuple(p, true);
    dt_jinja_expect(p, DT_JT_OPERATOR, ")");
    return node;
}

static dt_jnode *primary(dt_jparser *p)
{
    const dt_jtoken *t = p->at;
    p->x->line = t->line;
    if (t->kind == DT_JT_NAME) return name(p);
    if (t->kind == DT_JT_STRING) return string(p);
    if (t->kind == DT_JT_INT) return p->at++, constant(p, dt_jv_int(t->i));
    if (t->kind == DT_JT_FLOAT) return p->at++, constant(p, dt_jv_float(t->f));
    if (dt_jinja_skip(p, DT_JT_OPERATOR, "(")) return parentheses(p);
    if (dt_jinja_skip(p, DT_JT_OPERATOR, "[")) return list(p);
    if (dt_jinja_skip(p, DT_JT_OPERATOR, "{")) return dict(p);
    dt_jinja_fail(p->x, "expected an expression, found %s",
                  t->kind == DT_JT_OPERATOR    ? t->text
                  : t->kind == DT_JT_PRINT_END ? "}}"
                  : t->kind == DT_JT_BLOCK_END ? "%}"
                                               : "the end of the template");
}

/* ---- after a primary --------------------------------------------------------------------------------------------- */

/* From ( to ). */
static void arguments(dt_jparser *p, dt_jnode *call)
{
    bool named = false;
    dt_jinja_expect(p, DT_JT_OPERATOR, "(");
    while (!dt_jinja_skip(p, DT_JT_OPERATOR, ")")) {
        if (call->n > 0) dt_jinja_expect(p, DT_JT_OPERATOR, ",");
        if (dt_jinja_skip(p, DT_JT_OPERATOR, ")")) break;
        const char *key = dt_jinja_skip(p, DT_JT_OPERATOR, "*")    ? DT_JINJA_ITEMS
                          : dt_jinja_skip(p, DT_JT_OPERATOR, "**") ? DT_JINJA_PAIRS
                                                                   : NULL;
        if (!key && p->at->kind == DT_JT_NAME && p->at[1].kind == DT_JT_OPERATOR && strcmp(p->at[1].text, "=") == 0) {
            key = p->at->text;
            p->at += 2;
        }
        if (named && !key) dt_jinja_fail(p->x, "expected a named argument after a named one");
        named = key && strcmp(key, DT_JINJA_ITEMS) != 0;
        dt_jinja_add_kid(p->x, call, dt_jinja_expression(p), key);
    }
}

/* x[1], x["a"], x[1:2:3] */
static dt_jnode *subscript(dt_jparser *p, dt_jnode *of)
{
    dt_jnode *node = new_node(p, DT_JN_ITEM), *part[3] = {NULL, NULL, NULL};
    int colons = 0;
    node->left = of;
    while (!dt_jinja_skip(p, DT_JT_OPERATOR, "]")) {
        if (dt_jinja_skip(p, DT_JT_OPERATOR, ":")) {
            if (++colons > 2) dt_jinja_fail(p->x, "a slice has at most two colons");
        } else {
            if (part[colons]) dt_jinja_expect(p, DT_JT_OPERATOR, "]");
            part[colons] = dt_jinja_expression(p);
        }
    }
    if (colons > 0) node->kind = DT_JN_SLICE;
    if (colons == 0 && !part[0]) dt_jinja_fail(p->x, "expected an expression, found ]");
    for (int i = 0; i < (colons ? 3 : 1); i++) dt_jinja_add_kid(p->x, node, part[i], NULL);
    return node;
}

static dt_jnode *member(dt_jparser *p, dt_jnode *of)
{
    dt_jnode *node = new_node(p, DT_JN_ATTRIBUTE);
    node->left = of;
    if (p->at->kind == DT_JT_INT) {
        node->kind = DT_JN_ITEM;
        dt_jinja_add_kid(p->x, node, primary(p), NULL);
        return node;
    }
    node->name = p->at->text;
    dt_jinja_expect(p, DT_JT_NAME, NULL);
    return node;
}

static dt_jnode *call(dt_jparser *p, dt_jnode *of)
{
    dt_jnode *node = new_node(p, DT_JN_CALL);
    node->left = of;
    arguments(p, node);
    return node;
}

static dt_jnode *postfix(dt_jparser *p, dt_jnode *node)
{
    for (int n = 0;; n++) {
        if (n == DT_JINJA_MAX_DEPTH) dt_jinja_fail(p->x, "more than %d members and calls in a row", n);
        if (dt_jinja_skip(p, DT_JT_OPERATOR, "."))
            node = member(p, node);
        else if (dt_jinja_skip(p, DT_JT_OPERATOR, "["))
            node = subscript(p, node);
        else if (dt_jinja_at(p, DT_JT_OPERATOR, "("))
            node = call(p, node);
        else
            return node;
    }
}

static dt_jnode *filters(dt_jparser *p, dt_jnode *of, bool first_has_pipe)
{
    for (int n = 0; (!first_has_pipe && n == 0) || dt_jinja_skip(p, DT_JT_OPERATOR, "|"); n++) {
        if (n == DT_JINJA_MAX_DEPTH) dt_jinja_fail(p->x, "more than %d filters in a row", n);
        dt_jnode *node = new_node(p, DT_JN_FILTER);
        node->name = p->at->text;
        dt_jinja_expect(p, DT_JT_NAME, NULL);
        node->function = dt_jfunction_find(dt_jfilters, node->name);
        node->left = of;
        if (dt_jinja_at(p, DT_JT_OPERATOR, "(")) arguments(p, node);
        of = node;
    }
    return of;
}

dt_jnode *dt_jinja_block_filters(dt_jparser *p, bool first_has_pipe)
{
    dt_jnode *text = new_node(p, DT_JN_NAME);
    text->name = DT_JINJA_BLOCK;
    return filters(p, text, first_has_pipe);
}

/* True if an argument without parentheses follows a test. */
static bool at_test_argument(const dt_jparser *p)
{
    switch (p->at->kind) {
    case DT_JT_NAME:
        return strcmp(p->at->text, "else") != 0 && strcmp(p->at->text, "or") != 0 && strcmp(p->at->text, "and") != 0;
    case DT_JT_STRING:
    case DT_JT_INT:
    case DT_JT_FLOAT:
        return true;
    case DT_JT_OPERATOR:
        return strchr("[{", p->at->text[0]) && p->at->text[0];
    default:
        return false;
    }
}

static dt_jnode *test(dt_jparser *p, dt_jnode *of)
{
    const bool negated = dt_jinja_skip(p, DT_JT_NAME, "not");
    dt_jnode *node = new_node(p, DT_JN_TEST);
    node->name = p->at->text;
    node->left = of;
    dt_jinja_expect(p, DT_JT_NAME, NULL);
    node->function = dt_jfunction_find(dt_jtests, node->name);
    if (dt_jinja_at(p, DT_JT_OPERATOR, "(")) {
        arguments(p, node);
    } else if (at_test_argument(p)) {
        if (dt_jinja_at(p, DT_JT_NAME, "is")) dt_jinja_fail(p->x, "tests cannot be chained with is");
        dt_jinja_add_kid(p->x, node, postfix(p, primary(p)), NULL);
    }
    if (!negated) return node;
    dt_jnode *not = dt_jinja_node(p->x, DT_JN_NOT, node->line);
    not ->left = node;
    return not ;
}

/* Parse the filters, tests and calls after an expression. */
static dt_jnode *filters_and_tests(dt_jparser *p, dt_jnode *node)
{
    for (int n = 0;; n++) {
        if (n == DT_JINJA_MAX_DEPTH) dt_jinja_fail(p->x, "more than %d filters and tests in a row", n);
        if (dt_jinja_at(p, DT_JT_OPERATOR, "|"))
            node = filters(p, node, true);
        else if (dt_jinja_skip(p, DT_JT_NAME, "is"))
            node = test(p, node);
        else if (dt_jinja_at(p, DT_JT_OPERATOR, "("))
            node = call(p, node);
        else
            return node;
    }
}

/* ---- operators --------------------------------------------------------------------------------------------------- */

static dt_jnode *unary(dt_jparser *p, bool with_filters)
{
    dt_jnode *node;
    dt_jinja_enter(p->x);
    const bool minus = dt_jinja_at(p, DT_JT_OPERATOR, "-"), plus = dt_jinja_at(p, DT_JT_OPERATOR, "+");
    if (minus || plus) {
        node = new_node(p, minus ? DT_JN_NEGATIVE : DT_JN_POSITIVE);
        p->at++;
        node->left = unary(p, false);
    } else {
        node = primary(p);
    }
    node = postfix(p, node);
    if (with_filters) node = filters_and_tests(p, node);
    dt_jinja_leave(p->x);
    return node;
}

/* Operators of each precedence level, loosest first; all are left-associative. */
static const char *const levels[] = {"+ -", "~", "* / // %", "**"};
enum { N_LEVELS = sizeof levels / sizeof levels[0] };

static bool at_level(const dt_jparser *p, const char *operators)
{
    if (p->at->kind != DT_JT_OPERATOR) return false;
    const size_t n = strlen(p->at->text);
    for (const char *at = operators; *at;) {
        const size_t len = strcspn(at, " ");
        if (len == n && strncmp(at, p->at->text, n) == 0) return true;
        at += len + (at[len] == ' ');
    }
    return false;
}

static dt_jnode *binary(dt_jparser *p, int level)
{
    if (level == N_LEVELS) return unary(p, true);
    dt_jnode *left = binary(p, level + 1);
    if (level == 1 && at_level(p, "~")) { /* all operands in one node */
        dt_jnode *all = new_node(p, DT_JN_CONCAT);
        dt_jinja_add_kid(p->x, all, left, NULL);
        while (dt_jinja_skip(p, DT_JT_OPERATOR, "~")) dt_jinja_add_kid(p->x, all, binary(p, level + 1), NULL);
        return all;
    }
    for (int n = 0; at_level(p, levels[level]); n++) {
        if (n == 4 * DT_JINJA_MAX_DEPTH) dt_jinja_fail(p->x, "more than %d operators in a row", n);
        const char *operator= p->at++->text;
        left = two(p, DT_JN_BINARY, left, binary(p, level + 1));
        left->name = operator;
    }
    return left;
}

static const char *comparison(dt_jparser *p)
{
    if (dt_jinja_skip(p, DT_JT_NAME, "in")) return "in";
    if (dt_jinja_at(p, DT_JT_NAME, "not") && p->at[1].kind == DT_JT_NAME && strcmp(p->at[1].text, "in") == 0)
        return p->at += 2, "not in";
    return at_level(p, "== != < <= > >=") ? p->at++->text : NULL;
}

static dt_jnode *compare(dt_jparser *p)
{
    dt_jnode *left = binary(p, 0), *node = NULL;
    for (const char *operator; (operator= comparison(p));) {
        if (!node) {
            node = new_node(p, DT_JN_COMPARE);
            dt_jinja_add_kid(p->x, node, left, NULL);
        }
        dt_jinja_add_kid(p->x, node, binary(p, 0), operator);
    }
    return node ? node : left;
}

static dt_jnode *negation(dt_jparser *p)
{
    if (!dt_jinja_at(p, DT_JT_NAME, "not")) return compare(p);
    dt_jnode *node = new_node(p, DT_JN_NOT);
    p->at++;
    dt_jinja_enter(p->x);
    node->left = negation(p);
    dt_jinja_leave(p->x);
    return node;
}

/* All operands of consecutive `and` or `or` in one node. */
static dt_jnode *logical(dt_jparser *p, bool any)
{
    dt_jnode *first = any ? logical(p, false) : negation(p), *node = NULL;
    while (dt_jinja_skip(p, DT_JT_NAME, any ? "or" : "and")) {
        if (!node) {
            node = new_node(p, any ? DT_JN_OR : DT_JN_AND);
            dt_jinja_add_kid(p->x, node, first, NULL);
        }
        dt_jinja_add_kid(p->x, node, any ? logical(p, false) : negation(p), NULL);
    }
    return node ? node : first;
}

dt_jnode *dt_jinja_expression(dt_jparser *p)
{
    dt_jinja_enter(p->x);
    dt_jnode *node = logical(p, true);
    while (dt_jinja_skip(p, DT_JT_NAME, "if")) {
        dt_jnode *whole = new_node(p, DT_JN_CONDITION);
        dt_jinja_add_kid(p->x, whole, logical(p, true), NULL);
        dt_jinja_add_kid(p->x, whole, node, NULL);
        const bool has = dt_jinja_skip(p, DT_JT_NAME, "else");
        dt_jinja_add_kid(p->x, whole, has ? dt_jinja_expression(p) : NULL, NULL);
        node = whole;
    }
    dt_jinja_leave(p->x);
    return node;
}

dt_jnode *dt_jinja_tuple(dt_jparser *p, bool conditions)
{
    dt_jinja_enter(p->x);
    dt_jnode *first = conditions ? dt_jinja_expression(p) : logical(p, true), *all = NULL;
    while (dt_jinja_skip(p, DT_JT_OPERATOR, ",")) {
        if (!all) {
            all = new_node(p, DT_JN_TUPLE);
            dt_jinja_add_kid(p->x, all, first, NULL);
        }
        if (p->at->kind == DT_JT_PRINT_END || p->at->kind == DT_JT_BLOCK_END || dt_jinja_at(p, DT_JT_OPERATOR, ")"))
            break;
        dt_jinja_add_kid(p->x, all, conditions ? dt_jinja_expression(p) : logical(p, true), NULL);
    }
    dt_jinja_leave(p->x);
    return all ? all : first;
}

static dt_jnode *target(dt_jparser *p, bool namespaces)
{
    if (p->at->kind != DT_JT_NAME && !dt_jinja_at(p, DT_JT_OPERATOR, "(")) dt_jinja_expect(p, DT_JT_NAME, NULL);
    if (dt_jinja_skip(p, DT_JT_OPERATOR, "(")) {
        dt_jinja_enter(p->x);
        dt_jnode *inner = dt_jinja_targets(p, namespaces);
        dt_jinja_leave(p->x);
        dt_jinja_expect(p, DT_JT_OPERATOR, ")");
        return inner;
    }
    dt_jnode *node = name(p);
    if (node->kind != DT_JN_NAME) dt_jinja_fail(p->x, "true, false and none cannot be set");
    if (!namespaces || !dt_jinja_skip(p, DT_JT_OPERATOR, ".")) return node;
    dt_jnode *attribute = new_node(p, DT_JN_ATTRIBUTE);
    attribute->left = node;
    attribute->name = p->at->text;
    dt_jinja_expect(p, DT_JT_NAME, NULL);
    return attribute;
}

dt_jnode *dt_jinja_targets(dt_jparser *p, bool namespaces)
{
    dt_jnode *first = target(p, namespaces), *all = NULL;
    while (dt_jinja_skip(p, DT_JT_OPERATOR, ",")) {
        if (!all) {
            all = new_node(p, DT_JN_TUPLE);
            dt_jinja_add_kid(p->x, all, first, NULL);
        }
        if (p->at->kind != DT_JT_NAME && !dt_jinja_at(p, DT_JT_OPERATOR, "(")) break;
        if (dt_jinja_at(p, DT_JT_NAME, "in")) break;
        dt_jinja_add_kid(p->x, all, target(p, namespaces), NULL);
    }
    return all ? all : first;
}
