/* best_fit.h - best-fit decreasing bin packing: items of known length into rows of fixed capacity. */
#ifndef DTRAIN_DATA_BEST_FIT_H
#define DTRAIN_DATA_BEST_FIT_H

#include "dtrain/core/core.h"

typedef struct dt_row_list {
    int64_t n_rows, n_items;
    int64_t *row_start; /* [n_rows + 1] */
    uint32_t *item;     /* [n_items]: the items of each row, in the order in which they were placed */
} dt_row_list;

/** Place items by descending length, ties by ascending index. Each goes into the fullest row that has
 *  room, ties to the lowest row; else into a new row. 1 <= len[i] <= capacity <= 2^26; n < 2^32 - 1.
 *  O(n log n) time. Free with dt_row_list_free. DT_ERR_MEMORY. */
dt_err dt_best_fit(dt_row_list *p, const uint32_t *len, int64_t n, uint32_t capacity);
void dt_row_list_free(dt_row_list *p);

#endif
