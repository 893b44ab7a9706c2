/* item_vectors.h - an embedding for each item of a catalogue, and how alike two items are by them. */
#ifndef DTRAIN_ITEM_VECTORS_H
#define DTRAIN_ITEM_VECTORS_H

#include "dtrain/recommend/catalogue.h"

typedef struct dt_item_vectors dt_item_vectors;

/** Read the rows of the catalogue's items, as dtrain-sid orders them: where all ids are whole numbers an item's row is
 *  its id, otherwise its place in the catalogue. path, array: as dt_rows_open has them (array "": NULL). describe: the
 *  shape alone is looked at, for a plan. Local; borrows c. ledger: NULL, or told of its memory (data, on the host).
 *  DT_ERR_DATA: dt_rows_open's and dt_rows_read's; an item without a row, a number of rows that is not the number of
 *  items (where rows go by places), a row of zeros. DT_ERR_MEMORY. */
dt_err dt_item_vectors_open(dt_item_vectors **v, const dt_catalogue *c, const char *path, const char *array,
                            bool describe, dt_ledger *ledger);
void dt_item_vectors_close(dt_item_vectors *v);          /* safe on NULL */
size_t dt_item_vectors_nbytes(const dt_item_vectors *v); /* 0 for NULL; of one that is only described: as if read */
uint64_t
dt_item_vectors_fingerprint(const dt_item_vectors *v); /* of the items' rows; not of one that is only described */

const dt_catalogue *dt_item_vectors_catalogue(const dt_item_vectors *v);
/** The cosine of the angle between the embeddings of two items, in double: x y / (|x| |y|). */
double dt_item_cosine(const dt_item_vectors *v, int32_t x, int32_t y);

#endif
