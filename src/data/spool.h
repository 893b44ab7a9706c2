/* spool.h - an array that grows in an unnamed file until its length is known. */
#ifndef DTRAIN_DATA_SPOOL_H
#define DTRAIN_DATA_SPOOL_H

#include "dtrain/core.h"

typedef struct dt_spool {
    int fd;
    int elem_size;
    int64_t n_elems; /* those in the buffer included */
    char *buffer;
    size_t n_buffered; /* bytes */
    const char *path;  /* of the file it is for: messages; borrowed */
} dt_spool;

dt_err dt_spool_open(dt_spool *s, const char *path,
                     int elem_size); /* the unnamed file lies in the folder of path. DT_ERR_WRITE */
dt_err dt_spool_add(dt_spool *s, const void *elems, int64_t n);
dt_err dt_spool_finish(dt_spool *s);                                          /* all in the file */
dt_err dt_spool_read(const dt_spool *s, int64_t first, int64_t n, void *out); /* after finish */
void dt_spool_close(dt_spool *s);                                             /* safe on {0} */

#endif
