/* record.h - a file to which complete records are appended. The memory of a record is reused for the next. */
#ifndef DTRAIN_REPORT_RECORD_H
#define DTRAIN_REPORT_RECORD_H

#include "dtrain/core/core.h"
#include "dtrain/text/utf8.h"

/** An open file to which records are appended. */
typedef struct dt_record_file {
    int fd; /* -1: closed */
    char *path;
    int64_t nbytes; /* bytes of complete records */
} dt_record_file;

/** keep: append to an existing file; otherwise replace it by a new one. DT_ERR_WRITE, naming the file: also if it is
 *  not a regular file. */
dt_err dt_record_file_open(dt_record_file *f, const char *path, bool keep);
/** Append one record with one write(), so that a crash truncates at most the last one. After an error (disk full) the
 *  file ends with the previous record. */
dt_err dt_record_file_write(dt_record_file *f, const dt_text *r);
dt_err dt_record_file_sync(dt_record_file *f);
void dt_record_file_close(dt_record_file *f); /* safe if already closed */

#endif
