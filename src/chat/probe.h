/* probe.h - conversations that distinguish chat templates, rendered by a Jinja template. */
#ifndef DTRAIN_TEXT_CHAT_PROBE_H
#define DTRAIN_TEXT_CHAT_PROBE_H

#include "chat_private.h"
#include "dtrain/jinja/jinja.h"

/** A conversation and its text as rendered by the template. */
typedef struct dt_probe {
    const char *about; /* for messages: "a system message and a question" */
    unsigned kind;     /* kind of message that it tests; 0: every template must render it identically */
    unsigned flags;    /* DT_CHAT_GENERATE and the like */
    dt_message *message;
    int n;
    char *text; /* NULL: the template refused */
    size_t nbytes;
} dt_probe;

typedef struct dt_probes {
    dt_probe *item;
    int n;
    char **owned; /* generated contents */
    int n_owned;
    bool dated;    /* the template writes the date */
    int64_t steps; /* evaluation steps of all probes */
} dt_probes;

/** Evaluate the tokenizer's own template on all probes. DT_ERR_DATA: evaluation failed; says where and why. */
dt_err dt_probes_make(dt_probes *p, const dt_tokenizer *t);
void dt_probes_free(dt_probes *p); /* safe on {0} */

/** Render a conversation with dtrain's template, malloc'ed. NULL: unsupported message. */
dt_err dt_chat_text(const dt_chat *c, const dt_message *messages, int n, unsigned flags, char **text, size_t *nbytes);

/** Result of comparing one of dtrain's templates. */
typedef struct dt_probe_match {
    const dt_probe *differs; /* the first probe of kind 0 with different text; NULL: none */
    unsigned refused;        /* kinds with different text, or that the Jinja template refuses */
    size_t n_same;           /* common bytes over the probes of kind 0 */
} dt_probe_match;
dt_err dt_probes_match(const dt_probes *p, const dt_chat *c, dt_probe_match *m);

/** Excerpt around the position where two texts diverge, escaped: "...<|im_end|>\n". out: [128]. */
void dt_probe_excerpt(const char *text, size_t nbytes, size_t at, char *out);

#endif
