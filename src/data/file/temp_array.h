/* temp_array.h - an array that grows in an unnamed file until its length is known. */
#ifndef DTRAIN_DATA_TEMP_ARRAY_H
#define DTRAIN_DATA_TEMP_ARRAY_H

#include "dtrain/core/core.h"

typedef struct dt_temp_array {
    FILE *file;
    char *buffer;
    int elem_size;
    int64_t n_elems;  /* including those in the buffer */
    const char *path; /* of the final file; for messages; borrowed */
} dt_temp_array;

dt_err dt_temp_array_open(dt_temp_array *s, const char *path,
                          int elem_size); /* the unnamed file is in the directory of path. DT_ERR_WRITE */
dt_err dt_temp_array_add(dt_temp_array *s, const void *elems, int64_t n);
dt_err dt_temp_array_finish(dt_temp_array *s); /* flush the buffer to the file */
dt_err dt_temp_array_read(const dt_temp_array *s, int64_t first, int64_t n, void *out); /* after finish */
void dt_temp_array_close(dt_temp_array *s);                                             /* safe on {0} */

#endif
