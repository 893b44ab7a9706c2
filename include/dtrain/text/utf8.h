/* utf8.h - UTF-8: validation, decoding, repair, and growing text buffers. */
#ifndef DTRAIN_TEXT_UTF8_H
#define DTRAIN_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- characters -------------------------------------------------------------------------------------------------- */

/** Length of the character that starts at text; 0 if it is invalid (RFC 3629: no overlong forms, no
 *  surrogates, up to U+10FFFF). n > 0. */
size_t dt_utf8_length(const char *text, size_t n);
/** Length of the invalid sequence at text that one U+FFFD replaces. n > 0. */
size_t dt_utf8_bad(const char *text, size_t n);
/** Code point of the character at *text, which must be valid UTF-8; advances *text past it. */
uint32_t dt_utf8_next(const char **text);
/** Encode a code point as UTF-8; returns its length. */
size_t dt_utf8_put(uint32_t code, char out[4]);

/** A copy that is valid UTF-8: U+FFFD replaces each maximal subpart of an ill-formed sequence (Unicode 15.0, section
 *  3.9). Malloc'ed, terminated by 0. NULL: out of memory. */
char *dt_utf8_repair(const char *text, size_t nbytes, size_t *repaired_nbytes);

/** Length of the longest prefix that is valid UTF-8. */
size_t dt_utf8_valid(const char *text, size_t n);

/* ---- growing text buffers ---------------------------------------------------------------------------------------- */

typedef struct dt_text {
    char *bytes;
    size_t n, n_alloc;
    bool failed; /* out of memory: later appends do nothing */
} dt_text;
void dt_text_append(dt_text *t, const char *bytes, size_t n);
void dt_text_reserve(dt_text *t, size_t n); /* room for n more bytes and a terminating 0 */
/** Return the text, terminated by 0; the caller owns it. NULL: out of memory. */
char *dt_text_finish(dt_text *t, size_t *nbytes);
/** The same, repaired to valid UTF-8 (dt_utf8_repair). */
char *dt_text_repaired(dt_text *t, size_t *nbytes);

#endif
