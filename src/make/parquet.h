/* parquet.h - converts rows of a Parquet file to JSON records, as they would appear in a JSON Lines file.
 * All rules for records thus apply to rows. Binary values, which JSON lacks, are appended after the JSON
 * text. */
#ifndef DTRAIN_DATA_MAKE_PARQUET_H
#define DTRAIN_DATA_MAKE_PARQUET_H

#include "input.h"

/** Checks the name and the first bytes. Only a seekable file can be Parquet. */
bool dt_is_parquet(const dt_input *in);

/** Read all rows of an open file, in order. Rows count from 1. A column becomes a key, null if the row has no value.
 *  Numbers, texts, lists and structs become JSON values. Dates and other types without JSON equivalent become texts,
 *  bytes become {DT_IMAGE_OF_ROW: name}. Memory: one chunk of the file, up to 2048 rows, or a page if that has more.
 *
 *  DT_ERR_DATA: the DuckDB library is missing (duckdb.h), with advice; or the file is not Parquet,
 *  truncated or corrupt. DT_ERR_STOP. An error of fn ends reading. */
dt_err dt_parquet_each_row(dt_input *in, dt_json_fn *fn, void *self);

/** Position of the bytes with this name after a row's JSON. false: not such a name. n_binary: 0 for
 *  records that are not rows, whose names are always paths. */
bool dt_row_bytes(const char *name, size_t n_binary, size_t *first, size_t *nbytes);

#endif
