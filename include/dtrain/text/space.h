/* space.h - white space as defined by Python's str.strip. Every function is Local. */
#ifndef DTRAIN_TEXT_SPACE_H
#define DTRAIN_TEXT_SPACE_H

#include <stddef.h>

/** Bytes of the white space character at the start of a text of n bytes; 0: none. */
size_t dt_space_length(const char *text, size_t n);
/** Bytes of white space at the start of a text. */
size_t dt_space_before(const char *text, size_t n);
/** Length of a text without white space at its end. */
size_t dt_space_trimmed(const char *text, size_t n);
/** The same for characters with the property White_Space, without the separators U+001C to U+001F. */
size_t dt_white_before(const char *text, size_t n);
size_t dt_white_trimmed(const char *text, size_t n);

#endif
