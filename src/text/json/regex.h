/* regex.h - regular expressions as tokenizer.json writes them (Oniguruma's syntax), matched with PCRE2.
 *
 * What the two libraries read differently is rewritten (regex_syntax.c) or refused, never passed on with another meaning. */
#ifndef DTRAIN_TEXT_REGEX_H
#define DTRAIN_TEXT_REGEX_H

#include "../tokenizer_ops.h"

typedef struct dt_regex dt_regex;     /* shared by threads */
typedef struct dt_matcher dt_matcher; /* what matching needs besides; one a thread */

typedef enum dt_regex_syntax {
    DT_REGEX_LITERAL, /* the text itself */
    DT_REGEX_ONIGURUMA,
    DT_REGEX_PCRE2
} dt_regex_syntax;

/** DT_ERR_DATA with the reason: not valid or not supported. DT_ERR_MEMORY. */
dt_err dt_regex_compile(dt_regex **r, const char *pattern, size_t n, dt_regex_syntax syntax);
void dt_regex_free(dt_regex *r); /* safe on NULL */

dt_err dt_matcher_open(dt_matcher **m);
void dt_matcher_close(dt_matcher *m); /* safe on NULL */

/** Where a search for all matches stands; {0} to begin. */
typedef struct dt_matches {
    size_t at, last_end;
    bool any;
    size_t begin, end; /* the match found */
} dt_matches;

/** The next match in a text that is valid UTF-8, from left to right, none overlapping; an empty one does not follow another at its end. *found: is there one?
 *  DT_ERR_DATA: a limit on steps or stack was met, which bounds the time that an expression may take. */
dt_err dt_regex_next(const dt_regex *r, dt_matcher *m, const char *text, size_t n, dt_matches *state, bool *found);

/** Rewrite an expression of Oniguruma's for PCRE2. DT_ERR_DATA naming what is not supported. */
dt_err dt_regex_translate(const char *pattern, size_t n, dt_text *out);

#endif
