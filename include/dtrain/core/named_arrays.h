/* named_arrays.h - named arrays: the state that a task stores in a checkpoint for its resume. Every function is
 * Local. */
#ifndef DTRAIN_ITEMS_H
#define DTRAIN_ITEMS_H

#include "dtrain/core/core.h"

/** Element type of a named array. */
typedef enum dt_named_type { DT_NAMED_I32, DT_NAMED_I64, DT_NAMED_F32, DT_NAMED_F64, DT_N_NAMED_TYPE } dt_named_type;

enum { DT_NAMED_NAME = 64 };
/** A named array. */
typedef struct dt_named_array {
    char name[DT_NAMED_NAME];
    dt_named_type type;
    int64_t n;
    void *data; /* [n] */
} dt_named_array;

/** A list of named arrays. {0} to begin; freed with dt_named_arrays_free. room is memory lent by the caller, which
 *  stores elements as long as it lasts; the others are malloc'ed. */
typedef struct dt_named_arrays {
    dt_named_array *item;
    int n_items;
    char *room; /* borrowed; NULL: all elements are malloc'ed */
    size_t room_nbytes, used;
} dt_named_arrays;

/** Bytes of an element. */
size_t dt_named_type_size(dt_named_type type);

/** Append an array with a copy of data.
 *
 *  name  a new name, below DT_NAMED_NAME bytes, without a slash
 *  data  in  [n] of type, host; NULL: zeros
 *
 *  DT_ERR_ARG: name or n. DT_ERR_MEMORY. */
dt_err dt_named_arrays_add(dt_named_arrays *items, const char *name, dt_named_type type, int64_t n, const void *data);
/** The array of this name, borrowed until the next dt_named_arrays_add; NULL: none. */
const dt_named_array *dt_named_arrays_find(const dt_named_arrays *items, const char *name);
/** Copy an array that must have this type and exactly n elements. data: out [n], host; may be NULL if n is 0.
 *  DT_ERR_DATA, naming it: it is missing or differs. */
dt_err dt_named_arrays_get(const dt_named_arrays *items, const char *name, dt_named_type type, int64_t n, void *data);
/** Free all arrays, but not room. Safe on {0}; leaves {0}. */
void dt_named_arrays_free(dt_named_arrays *items);

#endif
