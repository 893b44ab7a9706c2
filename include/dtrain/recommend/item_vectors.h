/* item_vectors.h - embeddings of a catalogue's items, and the similarity of two items. Every function is Local. */
#ifndef DTRAIN_ITEM_VECTORS_H
#define DTRAIN_ITEM_VECTORS_H

#include "dtrain/recommend/catalogue.h"

typedef struct dt_item_vectors dt_item_vectors;

/** Read the rows of the catalogue's items, in dtrain-sid's order: if all ids are whole numbers an item's row is its id,
 *  otherwise its index in the catalogue.
 *
 *  v            out  closed with dt_item_vectors_close; NULL on error
 *  c            borrowed until then
 *  path, array  as dt_matrix_file_open (array "": NULL)
 *  describe     read only the shape, for a plan
 *  ledger       counts its memory (DT_MEM_DATA, host); may be NULL
 *
 *  DT_ERR_DATA: as dt_matrix_file_open and dt_matrix_file_read; an item without a row, a wrong number of rows (if rows
 *  go by index), a row of zeros. DT_ERR_MEMORY. */
dt_err dt_item_vectors_open(dt_item_vectors **v, const dt_catalogue *c, const char *path, const char *array,
                            bool describe, dt_ledger *ledger);
/** Free the embeddings. Safe on NULL. */
void dt_item_vectors_close(dt_item_vectors *v);
/** Bytes; 0 for NULL; if only described, as if read. */
size_t dt_item_vectors_nbytes(const dt_item_vectors *v);
uint64_t
dt_item_vectors_fingerprint(const dt_item_vectors *v); /* of the items' rows; not of one that is only described */

/** The catalogue. Borrowed. */
const dt_catalogue *dt_item_vectors_catalogue(const dt_item_vectors *v);
/** The cosine of the angle between the embeddings of two items, in double: x y / (|x| |y|). */
double dt_item_cosine(const dt_item_vectors *v, int32_t x, int32_t y);

#endif
