/* records.h - reads the records of a file as JSON objects. Every function is Local. */
#ifndef DTRAIN_RECORDS_H
#define DTRAIN_RECORDS_H

#include "dtrain/core/core.h"
#include <jansson.h>

/** Receives a record, which it owns, and its line, or its row in a Parquet file. An error ends reading. */
typedef dt_err (*dt_record_fn)(void *self, json_t *record, int64_t line);
/** Read all records of a file: JSON lines, a JSON array of objects, a table of comma-separated values with a header
 *  (.csv), or Parquet. DT_ERR_DATA naming file and line: the file cannot be read, or a record is not an object.
 *  DT_ERR_MEMORY; errors of fn. */
dt_err dt_records_read(const char *path, dt_record_fn fn, void *self);

#endif
