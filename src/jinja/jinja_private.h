/* jinja_private.h - values, syntax trees and the state of a parse or evaluation.
 *
 * All memory comes from one arena, which is freed after the parse or evaluation. Errors longjmp
 * (dt_jinja_fail) to the public functions of jinja.c, so code in between must not hold other resources. */
#ifndef DTRAIN_TEXT_JINJA_PRIVATE_H
#define DTRAIN_TEXT_JINJA_PRIVATE_H

#include "dtrain/jinja/jinja.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

/* ---- state ------------------------------------------------------------------------------------------------------- */

typedef struct dt_jchunk {
    struct dt_jchunk *next;
    _Alignas(16) char bytes[];
} dt_jchunk;

typedef struct dt_jarena {
    dt_jchunk *chunks;
    char *free;
    size_t n_free, n_total;
} dt_jarena;

typedef struct dt_jctx {
    jmp_buf escape;
    dt_jarena arena;
    const char *name; /* of the template, for messages */
    int line;
    int64_t steps;
    int depth;
    time_t now;
    bool raised, dated;
    bool strict;     /* dt_jinja_parse */
    bool generates;  /* within a generation block */
    bool has_blocks; /* the template has generation blocks */
    dt_err err;
    struct dt_jscope *globals;
    const struct dt_jbuf *output; /* of the whole template */
    dt_jinja_part *generated;
    int n_generated;
} dt_jctx;

enum { DT_JINJA_MAX_DEPTH = 200, DT_JINJA_MAX_STEPS = 20000000, DT_JINJA_MAX_MEMORY = 256 << 20 };

_Noreturn void dt_jinja_fail(dt_jctx *x, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void *dt_jinja_alloc(dt_jctx *x, size_t nbytes); /* zeroed, never NULL */
/** Make space in the arena for element n of an array that has n elements, as dt_grow does. */
void *dt_jinja_grow(dt_jctx *x, void *array, size_t n, size_t elem_size);
void dt_jinja_free_arena(dt_jarena *a);
/** Account for work proportional to n bytes or items. */
void dt_jinja_work(dt_jctx *x, size_t n);
void dt_jinja_enter(dt_jctx *x); /* enter a level of nesting */
static inline void dt_jinja_leave(dt_jctx *x) { x->depth--; }

/* ---- values ------------------------------------------------------------------------------------------------------ */

typedef enum dt_jkind {
    DT_J_MISSING, /* an argument that was not passed */
    DT_J_UNDEFINED,
    DT_J_NONE,
    DT_J_BOOL,
    DT_J_INT,
    DT_J_FLOAT,
    DT_J_STRING,
    DT_J_LIST,
    DT_J_TUPLE,
    DT_J_VIEW,     /* of a dict: has a length but no index */
    DT_J_ITERATOR, /* can be iterated once */
    DT_J_DICT,
    DT_J_NAMESPACE,
    DT_J_LOOP,
    DT_J_MACRO,
    DT_J_METHOD,
    DT_J_FUNCTION
} dt_jkind;

typedef struct dt_jv {
    dt_jkind kind;
    bool safe; /* a string marked as escaped */
    size_t n;  /* bytes of a string, or of an undefined value's name */
    union {
        bool b;
        int64_t i;
        double f;
        const char *s; /* a string, or the name of an undefined value */
        struct dt_jlist *list;
        struct dt_jdict *dict; /* of a dict or namespace */
        struct dt_jloop *loop;
        struct dt_jmacro *macro;
        struct dt_jmethod *method;
        const struct dt_jfunction *function;
    } u;
} dt_jv;

typedef struct dt_jlist {
    dt_jv *item;
    size_t n;
} dt_jlist;

typedef struct dt_jdict {
    dt_jv *key, *value;
    size_t n;
} dt_jdict;

typedef struct dt_jbuf {
    char *text;
    size_t n, n_alloc;
} dt_jbuf;

typedef struct dt_jloop {
    const dt_jlist *list;
    size_t index;
    dt_jv changed; /* the previous arguments of loop.changed */
} dt_jloop;

typedef struct dt_jargs {
    dt_jv *value;
    const char **key; /* NULL: by position */
    int n;
} dt_jargs;

enum { DT_JINJA_MAX_PARAMS = 6 };
/** params: names, separated by blanks, in order; argv has one value per name, DT_J_MISSING if not passed.
 *  NULL: the function reads the arguments itself. */
typedef struct dt_jfunction {
    const char *name, *params;
    int n_needed;
    dt_jv (*call)(dt_jctx *x, dt_jv self, const dt_jv *argv, const dt_jargs *args);
} dt_jfunction;

typedef struct dt_jmethod {
    dt_jv self;
    const char *name;             /* for messages */
    const dt_jfunction *function; /* NULL: exists in Python, unsupported here */
} dt_jmethod;

dt_jv dt_jv_string(const char *text, size_t n);
static inline dt_jv dt_jv_bool(bool b) { return (dt_jv){.kind = DT_J_BOOL, .u.b = b}; }
static inline dt_jv dt_jv_int(int64_t i) { return (dt_jv){.kind = DT_J_INT, .u.i = i}; }
static inline dt_jv dt_jv_float(double f) { return (dt_jv){.kind = DT_J_FLOAT, .u.f = f}; }
static inline dt_jv dt_jv_none(void) { return (dt_jv){.kind = DT_J_NONE}; }
static inline dt_jv dt_jv_undefined(const char *name) { return (dt_jv){.kind = DT_J_UNDEFINED, .u.s = name}; }
/** bool, int or float. */
static inline bool dt_jv_is_number(dt_jv v) { return v.kind >= DT_J_BOOL && v.kind <= DT_J_FLOAT; }
/** list, tuple, view or iterator. */
static inline bool dt_jv_has_list(dt_jv v) { return v.kind >= DT_J_LIST && v.kind <= DT_J_ITERATOR; }

const char *dt_jv_type(dt_jv v); /* Python's name */
bool dt_jv_truth(dt_jv v);
bool dt_jinja_truth(dt_jctx *x, dt_jv v); /* of a condition: an undefined value fails in a strict template */
_Noreturn void dt_jinja_undefined(dt_jctx *x, dt_jv v, const char *what); /* v is undefined */
bool dt_jv_equal(dt_jctx *x, dt_jv a, dt_jv b);
int dt_jv_compare(dt_jctx *x, dt_jv a, dt_jv b); /* negative, 0 or positive; fails where Python raises */
double dt_jv_number(dt_jv v);                    /* of a bool, int or float */
int64_t dt_jv_to_int(dt_jctx *x, dt_jv v, const char *what);
bool dt_jv_in(dt_jctx *x, dt_jv item, dt_jv whole);
dt_jv dt_jv_str(dt_jctx *x, dt_jv v); /* str() */
dt_jv dt_jv_need_string(dt_jctx *x, dt_jv v, const char *what);
dt_jv dt_jv_escape(dt_jctx *x, dt_jv v); /* HTML-escaped and marked as safe */

dt_jv dt_jv_list(dt_jctx *x, dt_jkind kind);
void dt_jv_append(dt_jctx *x, dt_jv list, dt_jv item);
/** Items of an iteration: list items, keys, characters. Fails if v is not iterable. */
const dt_jlist *dt_jv_items(dt_jctx *x, dt_jv v);
dt_jv dt_jv_dict(dt_jctx *x);
void dt_jv_put(dt_jctx *x, dt_jv dict, dt_jv key, dt_jv value);
const dt_jv *dt_jv_get(dt_jctx *x, dt_jv dict, dt_jv key); /* NULL: none */
int64_t dt_jv_length(dt_jctx *x, dt_jv v);

void dt_jbuf_add(dt_jctx *x, dt_jbuf *b, const char *text, size_t n);
static inline void dt_jbuf_say(dt_jctx *x, dt_jbuf *b, const char *text) { dt_jbuf_add(x, b, text, strlen(text)); }
static inline dt_jv dt_jbuf_value(const dt_jbuf *b) { return dt_jv_string(b->text, b->n); }

/** Length of the character at text, at most n. */
size_t dt_jinja_char(const char *text, size_t n);
uint32_t dt_jinja_code(const char *text, size_t n); /* code point of the character of n bytes */
void dt_jinja_put_utf8(dt_jctx *x, dt_jbuf *b, uint32_t code);

dt_jv dt_jv_from_json(dt_jctx *x, const json_t *json);
/** json.dumps, or Python's repr. item and pair: the separators; NULL: Python's. */
typedef struct dt_jdump {
    dt_jv indent; /* none, a number or a string */
    const char *item, *pair;
    bool sort, ascii, python;
} dt_jdump;
dt_jv dt_jv_to_json(dt_jctx *x, dt_jv v, const dt_jdump *how);

/* ---- builtins ---------------------------------------------------------------------------------------------------- */

/** Tables that end with a NULL name: filters, tests and global functions. */
extern const dt_jfunction dt_jfilters[], dt_jtests[], dt_jglobals[];
const dt_jfunction *dt_jfunction_find(const dt_jfunction *table, const char *name); /* NULL: none */
/** A method of a value; false: none. Methods that modify a list or dict are undefined, as in the sandbox. */
bool dt_jinja_method(dt_jctx *x, dt_jv self, const char *name, dt_jv *method);
/** Call a builtin with positional arguments. */
dt_jv dt_jinja_apply(dt_jctx *x, const dt_jfunction *f, dt_jv self, const dt_jargs *args);

/** Value at a dotted path ("function.name", "0"). */
dt_jv dt_jinja_path(dt_jctx *x, dt_jv v, dt_jv path);

/* ---- syntax ------------------------------------------------------------------------------------------------------ */

typedef enum dt_jtoken_kind {
    DT_JT_END,
    DT_JT_TEXT,
    DT_JT_PRINT_BEGIN,
    DT_JT_PRINT_END,
    DT_JT_BLOCK_BEGIN,
    DT_JT_BLOCK_END,
    DT_JT_NAME,
    DT_JT_STRING,
    DT_JT_INT,
    DT_JT_FLOAT,
    DT_JT_OPERATOR
} dt_jtoken_kind;

typedef struct dt_jtoken {
    dt_jtoken_kind kind;
    int line;
    const char *text; /* names and operators end with a 0 */
    size_t n;
    int64_t i;
    double f;
} dt_jtoken;

/** Tokens of a template; the last is DT_JT_END. */
const dt_jtoken *dt_jinja_lex(dt_jctx *x, const char *text, size_t n);

typedef enum dt_jnode_kind {
    DT_JN_CONST,
    DT_JN_NAME,
    DT_JN_LIST,
    DT_JN_TUPLE,
    DT_JN_DICT, /* kid: key, value, key, value, ... */
    DT_JN_ATTRIBUTE,
    DT_JN_ITEM,
    DT_JN_SLICE, /* kid: from, to, step; NULL if omitted */
    DT_JN_CALL,
    DT_JN_FILTER,
    DT_JN_TEST,
    DT_JN_NOT,
    DT_JN_NEGATIVE,
    DT_JN_POSITIVE,
    DT_JN_AND,
    DT_JN_OR,
    DT_JN_CONDITION, /* kid: test, then, else */
    DT_JN_COMPARE,   /* kid[0] key[1] kid[1] key[2] kid[2] ... */
    DT_JN_BINARY,
    DT_JN_CONCAT,
    /* statements */
    DT_JN_TEXT,
    DT_JN_PRINT,
    DT_JN_BODY,
    DT_JN_IF,         /* kid: test, body, test, body, ..., [else body] */
    DT_JN_FOR,        /* kid: target, list, filter, body, else */
    DT_JN_SET,        /* kid: target, value */
    DT_JN_FILTERED,   /* kid: target of a block set, NULL to print; body, filters */
    DT_JN_MACRO,      /* key, kid: parameters and their defaults; left: body */
    DT_JN_CALL_BLOCK, /* kid: the call, a macro */
    DT_JN_WITH,       /* kid: target, value, ..., body */
    DT_JN_GENERATION, /* left: body */
    DT_JN_BREAK,
    DT_JN_CONTINUE
} dt_jnode_kind;

typedef struct dt_jnode {
    dt_jnode_kind kind;
    int line;
    const char *name; /* of a variable, attribute, filter, test or operator */
    dt_jv value;
    struct dt_jnode *left; /* callee, filter input, or indexed value */
    struct dt_jnode **kid; /* or arguments, whose names are in key */
    const char **key;
    int n;
    const dt_jfunction *function; /* of a filter or test; NULL: unknown, an error only if it is evaluated */
} dt_jnode;

/* Keys of the arguments *x and **x of a call. */
#define DT_JINJA_ITEMS "*"
#define DT_JINJA_PAIRS "**"
/* Variable with the text of a block, to which filters are applied; no template can write the name. */
#define DT_JINJA_BLOCK "{%"

typedef struct dt_jparser {
    dt_jctx *x;
    const dt_jtoken *at;
    int n_loops; /* loops around the current position */
} dt_jparser;

dt_jnode *dt_jinja_node(dt_jctx *x, dt_jnode_kind kind, int line);
void dt_jinja_add_kid(dt_jctx *x, dt_jnode *node, dt_jnode *kid, const char *key);
dt_jnode *dt_jinja_expression(dt_jparser *p);               /* including a conditional expression */
dt_jnode *dt_jinja_tuple(dt_jparser *p, bool conditions);   /* one expression, or several separated by commas */
dt_jnode *dt_jinja_targets(dt_jparser *p, bool namespaces); /* assignment targets */
dt_jnode *dt_jinja_block_filters(dt_jparser *p, bool first_has_pipe); /* of the text of a block */
dt_jnode *dt_jinja_template(dt_jctx *x, const dt_jtoken *tokens);

static inline bool dt_jinja_at(const dt_jparser *p, dt_jtoken_kind kind, const char *text)
{
    return p->at->kind == kind && (!text || strcmp(p->at->text, text) == 0);
}
bool dt_jinja_skip(dt_jparser *p, dt_jtoken_kind kind, const char *text);
void dt_jinja_expect(dt_jparser *p, dt_jtoken_kind kind, const char *text);

/* ---- evaluation -------------------------------------------------------------------------------------------------- */

typedef struct dt_jvariable {
    const char *name;
    dt_jv value;
    struct dt_jvariable *next;
} dt_jvariable;

typedef struct dt_jscope {
    dt_jvariable *first;
    struct dt_jscope *parent;
} dt_jscope;

typedef struct dt_jmacro {
    const dt_jnode *node;
    dt_jscope *scope; /* defining scope */
} dt_jmacro;

void dt_jinja_set(dt_jctx *x, dt_jscope *s, const char *name, dt_jv value);
dt_jv dt_jinja_eval(dt_jctx *x, dt_jscope *s, const dt_jnode *node);
/** Values of the arguments of a call, a filter or a test. */
dt_jargs dt_jinja_passed(dt_jctx *x, dt_jscope *s, const dt_jnode *call);
dt_jv dt_jinja_binary(dt_jctx *x, const char *operator, dt_jv a, dt_jv b);
bool dt_jinja_compare(dt_jctx *x, const char *operator, dt_jv a, dt_jv b);
dt_jv dt_jinja_run_macro(dt_jctx *x, const dt_jmacro *m, const dt_jargs *args, const dt_jv *caller);
void dt_jinja_run(dt_jctx *x, dt_jscope *s, const dt_jnode *body, dt_jbuf *out);

#endif
