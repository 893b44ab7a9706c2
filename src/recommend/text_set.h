/* text_set.h - a set of texts, as a sorted list. */
#ifndef DTRAIN_CATALOGUE_TEXT_SET_H
#define DTRAIN_CATALOGUE_TEXT_SET_H

#include "dtrain/core/core.h"

/** Initialise to {0}. */
typedef struct text_set {
    char **text; /* [n] sorted bytewise and distinct after text_set_sort; free with dt_list_free */
    int32_t n, n_alloc;
} text_set;

/** Add a text of nbytes bytes. Memory grows with the number of distinct texts. DT_ERR_MEMORY. */
dt_err text_set_add(text_set *s, const char *text, size_t nbytes);
void text_set_sort(text_set *s);

#endif
