/* regex.h - regular expressions as tokenizer.json writes them (Oniguruma's syntax), matched with PCRE2.
 *
 * Syntax that the two libraries interpret differently is rewritten (regex_syntax.c) or refused. Oniguruma itself is
 * not used: its classes depend on the installed version, and so would ids; and byte-level tokenizers encode at half
 * the speed with it. */
#ifndef DTRAIN_TEXT_REGEX_H
#define DTRAIN_TEXT_REGEX_H

#include "dtrain/text/unicode.h"
#include "dtrain/text/utf8.h"

typedef struct dt_regex dt_regex;     /* shared by threads */
typedef struct dt_matcher dt_matcher; /* what matching needs besides; one a thread */

typedef enum dt_regex_syntax {
    DT_REGEX_LITERAL, /* the text itself */
    DT_REGEX_ONIGURUMA,
    DT_REGEX_OURS /* the same with \p{numeric} and \p{punct}: what the steps Digits and Punctuation take for that */
} dt_regex_syntax;

/** DT_ERR_DATA with the reason: not valid or not supported. DT_ERR_MEMORY. */
dt_err dt_regex_compile(dt_regex **r, const char *pattern, size_t n, dt_regex_syntax syntax);
void dt_regex_free(dt_regex *r); /* safe on NULL */

dt_err dt_matcher_open(dt_matcher **m);
void dt_matcher_close(dt_matcher *m); /* safe on NULL */

/** Where a search for all matches stands. */
typedef struct dt_matches {
    const dt_regex *regex;
    dt_matcher *matcher;
    const char *text, *subject; /* what PCRE2 sees: the text, or a byte for each of its characters */
    size_t n, n_subject;
    const uint32_t *char_at; /* [n_subject + 1] where characters begin in the text; NULL: subject is the text */
    size_t at, last_end;     /* in subject */
    bool any;
    size_t begin, end; /* the match found, in text */
} dt_matches;

/** Begin a search in a text that is valid UTF-8. buffer: for what PCRE2 sees, until the search is over; NULL: the
 *  matcher's own, and no other search meanwhile. DT_ERR_MEMORY. */
dt_err dt_matches_begin(dt_matches *s, const dt_regex *r, dt_matcher *m, const char *text, size_t n, dt_text *buffer);

/** The next match, from left to right, none overlapping; an empty one does not follow another at its end. *found: is
 *  there one? DT_ERR_DATA: a limit on steps or stack was met, which bounds the time that an expression may take. */
dt_err dt_regex_next(dt_matches *s, bool *found);

/** Rewrite an expression of Oniguruma's for PCRE2, which is to match bytes: table gives the byte that stands for a
 *  character (regex_syntax.c). DT_ERR_DATA naming what is not supported. Free the table after success. */
dt_err dt_regex_translate(const char *pattern, size_t n, bool ours, dt_text *out, dt_char_table *table);

#endif
