/* utf8.h - UTF-8: boundaries of characters, repair of invalid text, and growing texts. Every function is Local. */
#ifndef DTRAIN_TEXT_UTF8_H
#define DTRAIN_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- characters -------------------------------------------------------------------------------------------------- */

/** Length of the character at the start of a text; 0: no valid character (RFC 3629: no overlong forms, no surrogates,
 *  up to U+10FFFF). n > 0. */
size_t dt_utf8_length(const char *text, size_t n);
/** Length of the invalid bytes at the start of a text that one U+FFFD replaces. n > 0. */
size_t dt_utf8_bad(const char *text, size_t n);
/** Code point of the first character of valid UTF-8; *text advances past it. */
uint32_t dt_utf8_next(const char **text);
/** Encode a code point as UTF-8; returns its length. */
size_t dt_utf8_put(uint32_t code, char out[4]);

/** A copy that is valid UTF-8, malloc'ed, the caller's. U+FFFD replaces each maximal incomplete prefix of a character
 *  and each other stray byte (Unicode 15.0, 3.9, "substitution of maximal subparts"). repaired_nbytes: out. NULL: out
 *  of memory. */
char *dt_utf8_repair(const char *text, size_t nbytes, size_t *repaired_nbytes);

/** Length of the longest prefix of a text of n bytes that is valid UTF-8. */
size_t dt_utf8_valid(const char *text, size_t n);

/** A copy of a text with each `what` replaced by `by`, from left to right.
 *
 *  text    in [*nbytes]
 *  nbytes  in: length of text, out: length of the copy
 *  what    not empty
 *  copy    out, malloc'ed, with a 0 appended; NULL: text does not contain `what`, and *nbytes is unchanged
 *
 *  False: out of memory. */
bool dt_text_replace(const char *text, size_t *nbytes, const char *what, const char *by, char **copy);

/* ---- growing text buffers ---------------------------------------------------------------------------------------- */

/** A growing text. {0} to begin. */
typedef struct dt_text {
    char *bytes;
    size_t n, n_alloc;
    bool failed; /* out of memory: later appends do nothing */
} dt_text;
/** Append n bytes. */
void dt_text_append(dt_text *t, const void *bytes, size_t n);
/** Append text as printf. */
void dt_text_printf(dt_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/** Free the text. Leaves {0}. */
void dt_text_free(dt_text *t);
/** Make space for n more bytes and a 0. */
void dt_text_reserve(dt_text *t, size_t n);
/** End the text: returns it with a 0 appended, malloc'ed, the caller's. nbytes: out. NULL: out of memory. */
char *dt_text_finish(dt_text *t, size_t *nbytes);
/** As dt_text_finish, repaired by dt_utf8_repair. */
char *dt_text_repaired(dt_text *t, size_t *nbytes);

#endif
