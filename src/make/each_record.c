/* each_record.c - reads the records of a file for callers outside of this module. */
#include "dtrain/make/records.h"
#include "csv_reader.h"
#include "dtrain/io/io.h"
#include "input.h"
#include "parquet.h"
#include <inttypes.h>

typedef struct reading {
    const char *path;
    json_t *header; /* of a table; NULL until it is read */
    dt_record_fn fn;
    void *self;
} reading;

static dt_err take(reading *r, json_t *record, int64_t line)
{
    if (json_is_object(record)) return r->fn(r->self, record, line);
    json_decref(record);
    return dt_fail(DT_ERR_DATA, "%s:%" PRId64 ": expected a JSON object", r->path, line);
}

static dt_err take_json(void *self, const char *text, size_t nbytes, size_t n_binary, int64_t line)
{
    reading *r = self;
    json_t *record;
    const dt_err err = dt_json_parse(&record, "", text, nbytes, DT_JSON_ANY | DT_JSON_LAST_KEY | DT_JSON_RECORD);
    if (err != DT_OK) return dt_error_replace(err, "%s:%" PRId64 ": %s", r->path, line, dt_error_message());
    return take(r, record, line);
}

static dt_err take_csv(void *self, const char *text, size_t nbytes, size_t n_binary, int64_t line)
{
    reading *r = self;
    json_t *record = NULL;
    const bool header = !r->header;
    const dt_err err =
        header ? dt_csv_header_parse(&r->header, text, nbytes) : dt_csv_row(&record, r->header, text, nbytes);
    if (err != DT_OK) return dt_error_replace(err, "%s:%" PRId64 ": %s", r->path, line, dt_error_message());
    return header ? DT_OK : take(r, record, line);
}

dt_err dt_records_read(const char *path, dt_record_fn fn, void *self)
{
    reading r = {.path = path, .fn = fn, .self = self};
    dt_input in;
    int64_t n_read = 0;
    const bool csv = dt_has_ending(path, ".csv");
    dt_err err = dt_input_open(&in, path, &n_read, NULL);
    const bool parquet = err == DT_OK && dt_is_parquet(&in);
    if (err == DT_OK && !parquet) err = dt_input_check_content(&in, true, false);
    if (err == DT_OK)
        err = parquet ? dt_parquet_each_row(&in, take_json, &r)
              : csv   ? dt_input_each_row(&in, take_csv, &r)
                      : dt_input_each_record(&in, take_json, &r);
    dt_input_close(&in);
    json_decref(r.header);
    return err;
}
