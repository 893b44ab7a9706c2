/* regex.h - regular expressions as tokenizer.json writes them (Oniguruma's syntax), matched with PCRE2.
 *
 * Syntax that the two libraries interpret differently is rewritten (regex_syntax.c) or refused. Oniguruma itself is not
 * used. Its character classes, and so the ids, would depend on the installed version: 6.9.8 (Debian 12) has Unicode 14
 * and 9272 letters fewer than the tables of unicode.h. Llama 3's expression would also split texts at a third (English)
 * to a sixth (several scripts) of the speed. */
#ifndef DTRAIN_TEXT_REGEX_H
#define DTRAIN_TEXT_REGEX_H

#include "dtrain/text/unicode.h"
#include "dtrain/text/utf8.h"

typedef struct dt_regex dt_regex;     /* shared by threads */
typedef struct dt_matcher dt_matcher; /* memory for matching; one per thread */

typedef enum dt_regex_syntax {
    DT_REGEX_LITERAL, /* the text itself */
    DT_REGEX_ONIGURUMA,
    DT_REGEX_OURS /* also \p{numeric} and \p{punct}, for the steps Digits and Punctuation */
} dt_regex_syntax;

/** DT_ERR_DATA with the reason: the expression is invalid or unsupported. DT_ERR_MEMORY. */
dt_err dt_regex_compile(dt_regex **r, const char *pattern, size_t n, dt_regex_syntax syntax);
void dt_regex_free(dt_regex *r); /* safe on NULL */

dt_err dt_matcher_open(dt_matcher **m);
void dt_matcher_close(dt_matcher *m); /* safe on NULL */

/** State of a search for all matches. */
typedef struct dt_matches {
    const dt_regex *regex;
    dt_matcher *matcher;
    const char *text, *subject; /* subject: what PCRE2 sees, the text or a byte for each character */
    size_t n, n_subject;
    const uint32_t *char_at; /* [n_subject + 1] offsets of the characters in the text; NULL: subject is the text */
    size_t at, last_end;     /* in subject */
    bool any;
    size_t begin, end; /* the last match, in text */
} dt_matches;

/** Begin a search in a text that is valid UTF-8. buffer holds the subject until the search ends. NULL: use the
 *  matcher's buffer, which allows one search at a time. DT_ERR_MEMORY. */
dt_err dt_matches_begin(dt_matches *s, const dt_regex *r, dt_matcher *m, const char *text, size_t n, dt_text *buffer);

/** Find the next match, from left to right. Matches do not overlap, and no empty match follows at another's end.
 *  *found: there is one. DT_ERR_DATA: the expression exceeded a limit on steps or stack. */
dt_err dt_regex_next(dt_matches *s, bool *found);

/** Rewrite an expression of Oniguruma for PCRE2, which matches bytes. table maps characters to these bytes
 *  (regex_syntax.c). DT_ERR_DATA names unsupported syntax. Free the table after success. */
dt_err dt_regex_translate(const char *pattern, size_t n, bool ours, dt_text *out, dt_char_table *table);

#endif
