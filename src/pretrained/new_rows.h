/* new_rows.h - the rows that a vocabulary's matrices have for new tokens (new_tokens.h). Private to pretrained. */
#ifndef DTRAIN_PRETRAINED_NEW_ROWS_H
#define DTRAIN_PRETRAINED_NEW_ROWS_H

#include "dtrain/pretrained/new_tokens.h"
#include "dtrain/checkpoint/stored.h"

/** Rows needed by a vocabulary matrix that has n. A matrix may be larger than its tokenizer and is never shrunk. t
 *  NULL: n. */
int64_t new_rows_needed(int64_t n, const dt_new_tokens *t);
/** The first row of a new token, in a matrix of n rows. */
int64_t new_rows_first(int64_t n, const dt_new_tokens *t);
/** Grow the tensor to that number if it is a vocabulary matrix (dt_model_is_vocabulary). */
void new_rows_grow(dt_tensor *tensor, const dt_new_tokens *t);

/** The initial row of every new token: the mean of rows 0 .. n-1, the rows of existing tokens, n = new_rows_first. Rows
 *  beyond them belong to no token and do not count.
 *
 *      row[c] = 1/n * sum over r < n of W[r][c]
 *
 *  Elements are summed as integer multiples of a unit that is below 2^-40 of the maximum for up to 2^21 rows. The bits
 *  therefore do not depend on the number of ranks. row: malloc'ed float [shape[1]]. Collective, agreed. DT_ERR_DATA: an
 *  element is not finite, or the tokenizer has ids beyond the rows. */
dt_err new_rows_mean(dt_comm *comm, const dt_stored_slot *s, const dt_new_tokens *t, dt_chunks *chunks, float **row);

#endif
