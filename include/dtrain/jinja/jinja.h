/* jinja.h - evaluates chat templates: the subset of Jinja that published templates use, with the settings of
 * transformers (trim_blocks, lstrip_blocks, loop controls, tojson without HTML escapes, raise_exception, strftime_now,
 * generation blocks). Every function is Local.
 *
 * A template is untrusted. Nesting, evaluation steps and memory are limited, and only its variables can be accessed, no
 * files or other names. Unsupported syntax is an error that names the line in the template. */
#ifndef DTRAIN_JINJA_H
#define DTRAIN_JINJA_H

#include "dtrain/io/json.h"
#include <time.h>

typedef struct dt_jinja dt_jinja;

/** Parse a template. Nothing is borrowed.
 *
 *  t       out  closed with dt_jinja_close; NULL on error
 *  name    for messages, "chat_template.jinja"
 *  text    in  [nbytes]
 *  strict  the settings of lm-evaluation-harness, for templates of prompts: white space is kept as written, and using
 *          an undefined variable is an error
 *
 *  DT_ERR_DATA: "NAME: line N: what". DT_ERR_MEMORY. */
dt_err dt_jinja_parse(dt_jinja **t, const char *name, const char *text, size_t nbytes, bool strict);
/** Free a template. Safe on NULL. */
void dt_jinja_close(dt_jinja *t);

/** Bytes from .. to-1 of a text. */
typedef struct dt_jinja_part {
    size_t from, to;
} dt_jinja_part;

/** Result of an evaluation. */
typedef struct dt_jinja_result {
    char *text; /* malloc'ed, ends with a 0; NULL after an error */
    size_t nbytes;
    dt_jinja_part *generated; /* malloc'ed: what {% generation %} blocks wrote, in order */
    int n_generated;          /* blocks inside a macro or a block that is captured do not count, as in transformers */
    bool has_blocks;          /* the template has {% generation %} blocks, also ones that were not evaluated */
    bool raised;              /* the template called raise_exception */
    bool dated;               /* the template used the time */
} dt_jinja_result;
/** Free text and parts. Safe on {0}; leaves {0}. */
void dt_jinja_result_free(dt_jinja_result *r);

/** Evaluate a template; several threads may use the same template.
 *
 *  variables  in  object of the template's variables: messages, tools, documents, add_generation_prompt, bos_token,
 *             eos_token, enable_thinking etc. A JSON null is None, a missing key is undefined
 *  now        time for strftime_now, as local time; 0: the current time
 *  result     out  freed with dt_jinja_result_free
 *
 *  DT_ERR_DATA: "NAME: line N: what", also for a limit. DT_ERR_MEMORY. */
dt_err dt_jinja_render(const dt_jinja *t, const json_t *variables, time_t now, dt_jinja_result *result);

#endif
