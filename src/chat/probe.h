/* probe.h - conversations that tell chat templates apart, as a Jinja template writes them. */
#ifndef DTRAIN_TEXT_CHAT_PROBE_H
#define DTRAIN_TEXT_CHAT_PROBE_H

#include "chat_private.h"
#include "dtrain/jinja/jinja.h"

/** A conversation and the text that the template makes of it. */
typedef struct dt_probe {
    const char *about; /* for messages: "a system message and a question" */
    unsigned kind;     /* the kind of message that it is about; 0: what every template must write alike */
    unsigned flags;    /* DT_CHAT_GENERATE and the like */
    dt_message *message;
    int n;
    char *text; /* NULL: the template refused */
    size_t nbytes;
} dt_probe;

typedef struct dt_probes {
    dt_probe *item;
    int n;
    char **owned; /* contents that were put together */
    int n_owned;
    bool dated;    /* the template writes the date */
    int64_t steps; /* of all evaluations */
} dt_probes;

/** Evaluate the tokenizer's own template on all probes. DT_ERR_DATA: it cannot be evaluated; says where and why. */
dt_err dt_probes_make(dt_probes *p, const dt_tokenizer *t);
void dt_probes_free(dt_probes *p); /* safe on {0} */

/** The text of a conversation as dtrain's template writes it, malloc'ed. NULL: it has no place for a message. */
dt_err dt_chat_text(const dt_chat *c, const dt_message *messages, int n, unsigned flags, char **text, size_t *nbytes);

/** How a template of dtrain's compares. */
typedef struct dt_probe_match {
    const dt_probe *differs; /* the first probe of kind 0 with another text; NULL: none */
    unsigned refused;        /* kinds with another text, or that the Jinja template refuses */
    size_t n_same;           /* bytes in common, over the probes of kind 0 */
} dt_probe_match;
dt_err dt_probes_match(const dt_probes *p, const dt_chat *c, dt_probe_match *m);

/** Where two texts part, with some of what comes before: "...<|im_end|>\n" escaped. out [128]. */
void dt_probe_excerpt(const char *text, size_t nbytes, size_t at, char *out);

#endif
