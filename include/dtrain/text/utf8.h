/* utf8.h - UTF-8: where a character begins and ends, repair of invalid text, and text that grows. */
#ifndef DTRAIN_TEXT_UTF8_H
#define DTRAIN_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- characters -------------------------------------------------------------------------------------------------- */

/** Length of the character that begins here, 0 when none does (RFC 3629: no overlong forms, no surrogates, up to
 *  U+10FFFF). n > 0. */
size_t dt_utf8_length(const char *text, size_t n);
/** Length of what is replaced as one by U+FFFD where no character begins. n > 0. */
size_t dt_utf8_bad(const char *text, size_t n);
/** Code point of the character that begins here, in text that is valid UTF-8; *text moves behind it. */
uint32_t dt_utf8_next(const char **text);
/** Write a code point as UTF-8; returns its length. */
size_t dt_utf8_put(uint32_t code, char out[4]);

/** A copy that is valid UTF-8: U+FFFD for each longest run of bytes that begins a character and does not finish it, and
 *  for each other stray byte (Unicode 15.0, 3.9, "substitution of maximal subparts"). NULL: out of memory. */
char *dt_utf8_repair(const char *text, size_t nbytes, size_t *repaired_nbytes);

/** Length of the longest beginning that is valid UTF-8. */
size_t dt_utf8_valid(const char *text, size_t n);

/* ---- text that grows --------------------------------------------------------------------------------------------- */

typedef struct dt_text {
    char *bytes;
    size_t n, n_alloc;
    bool failed; /* out of memory: nothing more is appended */
} dt_text;
void dt_text_append(dt_text *t, const char *bytes, size_t n);
void dt_text_reserve(dt_text *t, size_t n); /* room for n more bytes and a 0 */
/** The text, with a 0 behind it, and the caller's from now on. NULL: out of memory. */
char *dt_text_finish(dt_text *t, size_t *nbytes);
/** The same, made valid UTF-8 (dt_utf8_repair). */
char *dt_text_repaired(dt_text *t, size_t *nbytes);

#endif
