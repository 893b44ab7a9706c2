/* pattern.h - regular expressions by PCRE2. Only pattern.c calls the library; without it, dt_pattern_compile fails.
 * Every function is Local. */
#ifndef DTRAIN_TEXT_PATTERN_H
#define DTRAIN_TEXT_PATTERN_H

#include "dtrain/core/core.h"
#include "dtrain/text/utf8.h"

typedef struct dt_pattern dt_pattern;               /* shared by threads */
typedef struct dt_pattern_memory dt_pattern_memory; /* memory for dt_pattern_find, one per thread */

typedef enum dt_pattern_use {
    DT_PATTERN_SEARCH,     /* dt_pattern_find in bytes; ^ and $ match at every line */
    DT_PATTERN_WHOLE,      /* dt_pattern_matches all bytes of a text */
    DT_PATTERN_WHOLE_UTF8, /* all characters of a text; the dot matches a newline */
    DT_PATTERN_PYTHON      /* dt_pattern_each in characters, as Python's module re */
} dt_pattern_use;

/** n: bytes of the text. DT_ERR_DATA with the reason: not valid. DT_ERR_USAGE: built without PCRE2. DT_ERR_MEMORY. */
dt_err dt_pattern_compile(dt_pattern **p, const char *text, size_t n, dt_pattern_use use);
void dt_pattern_free(dt_pattern *p); /* safe on NULL */

/** Does the expression match all of the text starting at byte `from`? ^ and lookbehind assertions see the text before
 *  it. A match that exceeds PCRE2's limits counts as no match. DT_ERR_MEMORY. */
dt_err dt_pattern_matches(const dt_pattern *p, const char *text, size_t from, bool *matches);

dt_err dt_pattern_memory_open(dt_pattern_memory **m); /* DT_ERR_MEMORY */
void dt_pattern_memory_close(dt_pattern_memory *m);   /* safe on NULL */

/** The first match in text [n] that begins at byte `from` or later. *begin, *end: out, if *found. DT_ERR_DATA with the
 *  reason: the match exceeds a limit on steps, in proportion to n, or on the stack. DT_ERR_MEMORY. */
dt_err dt_pattern_find(const dt_pattern *p, dt_pattern_memory *m, const char *text, size_t n, size_t from,
                       size_t *begin, size_t *end, bool *found);

/** Receives a match: begin and end of the whole match, then of each group; SIZE_MAX for a group without a match. An
 *  error ends the search. */
typedef dt_err (*dt_pattern_match)(void *self, const size_t *span, int n_groups);
/** All matches in text [n], which is valid UTF-8, from left to right, as re.finditer. max 0: no maximum. DT_ERR_DATA
 *  with the reason: the match exceeds PCRE2's limits. DT_ERR_MEMORY. */
dt_err dt_pattern_each(const dt_pattern *p, const char *text, size_t n, int64_t max, dt_pattern_match match,
                       void *self);
/** Append text with its matches replaced, as re.sub: \1 and \g<1> in `by` are groups. DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_pattern_replace(const dt_pattern *p, const char *text, size_t n, const char *by, size_t n_by, int64_t max,
                          dt_text *out);

#endif
