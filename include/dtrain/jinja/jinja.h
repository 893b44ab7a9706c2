/* jinja.h - chat templates, evaluated: the part of Jinja that published chat templates use, with the settings that
 * transformers evaluates them with (trim_blocks, lstrip_blocks, loop controls, tojson without HTML escapes,
 * raise_exception, strftime_now, generation blocks).
 *
 * A template is untrusted input. Nesting, evaluation steps and memory are limited, no file or name outside of the
 * variables can be reached, and what is not supported is an error that names the line in the template. */
#ifndef DTRAIN_JINJA_H
#define DTRAIN_JINJA_H

#include "dtrain/io/json.h"
#include <time.h>

typedef struct dt_jinja dt_jinja;

/** Parse a template of nbytes bytes. name is what messages call it, "chat_template.jinja". Nothing is borrowed.
 *  DT_ERR_DATA: "NAME: line N: what"; DT_ERR_MEMORY. */
dt_err dt_jinja_parse(dt_jinja **t, const char *name, const char *text, size_t nbytes);
void dt_jinja_close(dt_jinja *t); /* safe on NULL */

/** The strings and the integers that are written in a template, in order; i from 0. false: there are no more. */
bool dt_jinja_string(const dt_jinja *t, int i, const char **text, size_t *nbytes);
bool dt_jinja_integer(const dt_jinja *t, int i, int64_t *value);

typedef struct dt_jinja_result {
    char *text; /* malloc'ed, ends with a 0; NULL after an error */
    size_t nbytes;
    bool raised;   /* the error is the template's own: it called raise_exception */
    bool dated;    /* the template asked for the time */
    int64_t steps; /* that the evaluation took */
} dt_jinja_result;

/** Evaluate a template. Local; one template may be rendered by several threads.
 *
 *  variables  object of what the template sees: messages, tools, documents, add_generation_prompt, bos_token,
 *             eos_token, enable_thinking and the like. A JSON null is None, a missing key is undefined.
 *  now        what strftime_now formats, as local time; 0: the current time
 *
 *  DT_ERR_DATA: "NAME: line N: what", also of a limit; DT_ERR_MEMORY. */
dt_err dt_jinja_render(const dt_jinja *t, const json_t *variables, time_t now, dt_jinja_result *result);

#endif
