/* items.h - named arrays of values: the state that a task stores in a checkpoint. Every function is Local. */
#ifndef DTRAIN_ITEMS_H
#define DTRAIN_ITEMS_H

#include "dtrain/core.h"

/** Element type of an item. */
typedef enum dt_item_type { DT_ITEM_I32, DT_ITEM_I64, DT_ITEM_F32, DT_ITEM_F64, DT_N_ITEM_TYPE } dt_item_type;

enum { DT_ITEM_NAME = 64 };
/** A named array. */
typedef struct dt_item {
    char name[DT_ITEM_NAME];
    dt_item_type type;
    int64_t n;
    void *data; /* [n] */
} dt_item;

/** A list of items. {0} to begin; freed with dt_items_free. room is memory lent by the caller, which holds elements as
 *  long as it lasts; the others are malloc'ed. */
typedef struct dt_items {
    dt_item *item;
    int n_items;
    char *room; /* borrowed; NULL: all elements are malloc'ed */
    size_t room_nbytes, used;
} dt_items;

/** Bytes of an element. */
size_t dt_item_size(dt_item_type type);

/** Append an item with a copy of data.
 *
 *  name  a new name, below DT_ITEM_NAME bytes, without a slash
 *  data  in  [n] of type, host; NULL: zeros
 *
 *  DT_ERR_ARG: name or n. DT_ERR_MEMORY. */
dt_err dt_items_add(dt_items *items, const char *name, dt_item_type type, int64_t n, const void *data);
/** The item of this name, borrowed until the next dt_items_add; NULL: none. */
const dt_item *dt_items_find(const dt_items *items, const char *name);
/** Copy an item that must have this type and exactly n elements. data: out [n], host; may be NULL if n is 0.
 *  DT_ERR_DATA, naming the item: it is missing or differs. */
dt_err dt_items_get(const dt_items *items, const char *name, dt_item_type type, int64_t n, void *data);
/** Free all items, but not room. Safe on {0}; leaves {0}. */
void dt_items_free(dt_items *items);

#endif
