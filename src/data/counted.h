/* counted.h - host memory of the loader that is accounted as DT_MEM_DATA and freed together. */
#ifndef DTRAIN_DATA_COUNTED_H
#define DTRAIN_DATA_COUNTED_H

#include "dtrain/core/core.h"

/** Initialise to {.ledger = ...}. */
typedef struct dt_counted {
    dt_ledger *ledger;
    struct dt_counted_block *blocks;
    size_t nbytes; /* of all arrays */
} dt_counted;

/** Allocate n zeroed elements. pointer: variable that gets their address, unchanged on error. The other arguments are
 *  the message of DT_ERR_MEMORY. Returns the error from the calling function, as DT_TRY does. */
#define DT_COUNTED_ALLOC(memory, pointer, n, ...)                                                                      \
    DT_CHECK(dt_counted_add(memory, &(pointer), n, sizeof *(pointer)), DT_ERR_MEMORY, __VA_ARGS__)
bool dt_counted_add(dt_counted *memory, void *pointer, int64_t n, size_t elem_size);
/** Free one array. Safe on NULL. */
void dt_counted_free(dt_counted *memory, const void *array);
/** Free all arrays. Safe on {0}. */
void dt_counted_free_all(dt_counted *memory);

#endif
