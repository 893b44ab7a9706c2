/* items.h - named arrays of numbers: what a task leaves in a checkpoint for its resume. */
#ifndef DTRAIN_ITEMS_H
#define DTRAIN_ITEMS_H

#include "dtrain/core.h"

typedef enum dt_item_type { DT_ITEM_I32, DT_ITEM_I64, DT_ITEM_F32, DT_ITEM_F64, DT_N_ITEM_TYPE } dt_item_type;

enum { DT_ITEM_NAME = 64 };
typedef struct dt_item {
    char name[DT_ITEM_NAME];
    dt_item_type type;
    int64_t n;
    void *data; /* [n] */
} dt_item;

/** {0} to start from. */
typedef struct dt_items {
    dt_item *item;
    int n_items;
    char *room; /* lent: elements go there as long as it lasts; what has no room is malloc'ed. NULL: all are */
    size_t room_nbytes, used;
} dt_items;

size_t dt_item_size(dt_item_type type); /* bytes of an element */

/** Add a copy of data; NULL: zeros. DT_ERR_ARG: a name that is there, too long or with a slash. DT_ERR_MEMORY. */
dt_err dt_items_add(dt_items *items, const char *name, dt_item_type type, int64_t n, const void *data);
const dt_item *dt_items_find(const dt_items *items, const char *name); /* NULL: none */
/** Copy an item of exactly n elements. DT_ERR_DATA naming what is missing, or of another type or length. */
dt_err dt_items_get(const dt_items *items, const char *name, dt_item_type type, int64_t n, void *data);
void dt_items_free(dt_items *items); /* safe on {0} */

#endif
