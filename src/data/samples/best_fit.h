/* best_fit.h - best-fit decreasing: pieces of known length into rows of fixed capacity. */
#ifndef DTRAIN_DATA_BEST_FIT_H
#define DTRAIN_DATA_BEST_FIT_H

#include "dtrain/core/core.h"

typedef struct dt_row_list {
    int64_t n_rows, n_items;
    int64_t *row_start; /* [n_rows + 1] */
    uint32_t *item;     /* [n_items]: pieces of a row in the order they were placed */
} dt_row_list;

/** Pieces in the order (length descending, number ascending), each into the fullest row that has room, the lowest such
 *  row, or a new one. 1 <= len[i] <= capacity <= 2^26; n < 2^32 - 1. O(n log n) time. Free with dt_row_list_free.
 *  DT_ERR_MEMORY. */
dt_err dt_best_fit(dt_row_list *p, const uint32_t *len, int64_t n, uint32_t capacity);
void dt_row_list_free(dt_row_list *p);

#endif
