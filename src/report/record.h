/* record.h - a growing buffer in which one record is put together, and a file that takes whole records at its end. */
#ifndef DTRAIN_REPORT_RECORD_H
#define DTRAIN_REPORT_RECORD_H

#include "dtrain/core/core.h"

/** Bytes of one record. The memory is kept from record to record. {0} to start from. */
typedef struct dt_record {
    char *data;
    size_t nbytes, cap;
    bool out_of_memory; /* sticky; dt_record_file_write reports it */
} dt_record;

void dt_record_bytes(dt_record *r, const void *src, size_t nbytes);
void dt_record_printf(dt_record *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void dt_record_free(dt_record *r);

/** An open file to which records are appended. */
typedef struct dt_record_file {
    int fd; /* -1: closed */
    char *path;
    int64_t nbytes; /* whole records written, bytes */
} dt_record_file;

/** keep: append to an existing file; else a new file replaces it. DT_ERR_WRITE names the file; anything but a regular
 * file is refused. */
dt_err dt_record_file_open(dt_record_file *f, const char *path, bool keep);
/** Append one record with one write(), so that a crash leaves at most the last one torn. After a failure (disk full)
 *  the file ends with the record before. */
dt_err dt_record_file_write(dt_record_file *f, const dt_record *r);
dt_err dt_record_file_sync(dt_record_file *f);
void dt_record_file_close(dt_record_file *f); /* safe on a closed one */

#endif
