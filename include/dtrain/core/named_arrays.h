/* named_arrays.h - named arrays of numbers: what a task leaves in a checkpoint for its resume. */
#ifndef DTRAIN_ITEMS_H
#define DTRAIN_ITEMS_H

#include "dtrain/core/core.h"

typedef enum dt_named_type { DT_NAMED_I32, DT_NAMED_I64, DT_NAMED_F32, DT_NAMED_F64, DT_N_NAMED_TYPE } dt_named_type;

enum { DT_NAMED_NAME = 64 };
typedef struct dt_named_array {
    char name[DT_NAMED_NAME];
    dt_named_type type;
    int64_t n;
    void *data; /* [n] */
} dt_named_array;

/** {0} to start from. */
typedef struct dt_named_arrays {
    dt_named_array *item;
    int n_items;
    char *room; /* lent: elements go there as long as it lasts; what has no room is malloc'ed. NULL: all are */
    size_t room_nbytes, used;
} dt_named_arrays;

size_t dt_named_type_size(dt_named_type type); /* bytes of an element */

/** Add a copy of data; NULL: zeros. DT_ERR_ARG: a name that is there, too long or with a slash. DT_ERR_MEMORY. */
dt_err dt_named_arrays_add(dt_named_arrays *items, const char *name, dt_named_type type, int64_t n, const void *data);
const dt_named_array *dt_named_arrays_find(const dt_named_arrays *items, const char *name); /* NULL: none */
/** Copy an item of exactly n elements. DT_ERR_DATA naming what is missing, or of another type or length. */
dt_err dt_named_arrays_get(const dt_named_arrays *items, const char *name, dt_named_type type, int64_t n, void *data);
void dt_named_arrays_free(dt_named_arrays *items); /* safe on {0} */

#endif
