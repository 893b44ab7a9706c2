/* space.h - white space as Python's str.strip knows it. */
#ifndef DTRAIN_TEXT_SPACE_H
#define DTRAIN_TEXT_SPACE_H

#include <stddef.h>

/** Bytes of the white space character that a text of n bytes begins with; 0: it begins with none. */
size_t dt_space_length(const char *text, size_t n);
/** Bytes of white space at the start of a text, and the length of the text without white space at its end. */
size_t dt_space_before(const char *text, size_t n);
size_t dt_space_trimmed(const char *text, size_t n);

#endif
