/* plural.h - the number of nouns in messages. */
#ifndef DTRAIN_PLURAL_H
#define DTRAIN_PLURAL_H

#include <stdint.h>

/** Ending of a noun that follows the number n: "s", or "" for 1. */
static inline const char *dt_plural(int64_t n) { return n == 1 ? "" : "s"; }

#endif
