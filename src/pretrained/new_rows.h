/* new_rows.h - the rows that a vocabulary's matrices have for new tokens (new_tokens.h). Private to pretrained. */
#ifndef DTRAIN_PRETRAINED_NEW_ROWS_H
#define DTRAIN_PRETRAINED_NEW_ROWS_H

#include "dtrain/pretrained/new_tokens.h"
#include "dtrain/checkpoint/stored.h"

/** Rows of one that has n: a matrix may be larger than its tokenizer, and is never made smaller. t NULL: n. */
int64_t new_rows_needed(int64_t n, const dt_new_tokens *t);
/** The first row that is a new token's, of one that has n rows. */
int64_t new_rows_first(int64_t n, const dt_new_tokens *t);
/** Give the tensor that many, if it is one (dt_model_is_vocabulary). */
void new_rows_grow(dt_tensor *tensor, const dt_new_tokens *t);

/** What each new token has in such a matrix: the mean of rows 0 .. n-1, those of the tokens that there were:
 *  n = new_rows_first. Rows beyond them belonged to no token and do not count.
 *
 *      row[c] = 1/n * sum over r < n of W[r][c]
 *
 *  Elements are summed as whole numbers of a unit, below 2^-40 of the largest for up to 2^21 rows, so that the bits do
 *  not depend on the number of ranks. row: malloc'ed float [shape[1]]. Collective, agreed. DT_ERR_DATA: an element is
 *  not finite; the tokenizer has ids beyond the rows. */
dt_err new_rows_mean(dt_comm *comm, const dt_stored_slot *s, const dt_new_tokens *t, dt_chunks *chunks, float **row);

#endif
