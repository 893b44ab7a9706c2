/* parquet.h - the rows of a Parquet file as JSON records: the text that the equal line of JSON lines would be, so that
 * all that is known of records holds for rows. What JSON has no value for, bytes, comes behind the text. */
#ifndef DTRAIN_DATA_MAKE_PARQUET_H
#define DTRAIN_DATA_MAKE_PARQUET_H

#include "input.h"

/** Receives a row: nbytes of JSON, and behind them n_behind bytes that it refers to. Rows count from 1. */
typedef dt_err dt_row_fn(void *self, const char *text, size_t nbytes, size_t n_behind, int64_t row);

/** By its name or its first bytes; only a file that can be sought in can be one. */
bool dt_is_parquet(const dt_input *in);

/** All rows of an open file, in order. A column is a key, null where a row has none; numbers, texts, lists and structs
 *  are JSON's, dates and what else JSON has not are texts wherever they are, and bytes are {DT_IMAGE_OF_ROW: name}. It
 *  holds one chunk of the file at a time: up to 2048 rows, or a page where that has more.
 *
 *  DT_ERR_DATA: no DuckDB library (duckdb.h), with what to do; not Parquet, cut short, damaged. DT_ERR_STOP. An error
 *  of fn ends the reading. */
dt_err dt_parquet_each_row(dt_input *in, dt_row_fn *fn, void *self);

/** Where the bytes of this name are behind a row's JSON; false: it is no such name. n_behind: 0 for records that are no
 *  rows, whose names are all paths. */
bool dt_row_bytes(const char *name, size_t n_behind, size_t *first, size_t *nbytes);

#endif
