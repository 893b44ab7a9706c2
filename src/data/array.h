/* array.h - one one-dimensional array of a dataset file. */
#ifndef DTRAIN_DATA_ARRAY_H
#define DTRAIN_DATA_ARRAY_H

#include "dtrain/io.h"

/* Element types that a place of the file format allows; the number of an unsigned one is its size in bytes. */
enum { DT_ARRAY_U8 = 1, DT_ARRAY_U16 = 2, DT_ARRAY_U32 = 4, DT_ARRAY_U64 = 8, DT_ARRAY_F32 = 16 };

typedef struct dt_array {
    const char *path, *name; /* of the file, of the dataset in it: for messages; borrowed */
    hid_t dset;              /* open when the array is read through HDF5, else H5I_INVALID_HID */
    int fd;                  /* borrowed */
    int64_t offset;          /* of the first byte in the file; -1: read through HDF5 */
    int64_t n_elems;
    int type, elem_size;
    bool has_checksum;
    uint64_t checksum;
} dt_array;

/** Open /name of an HDF5 file and check that it is one-dimensional, of one of the types, and wholly inside the file.
 *  file_nbytes: size of the file that fd reads. dt_array_close is safe on {0} and after a failure. */
dt_err dt_array_open(dt_array *a, hid_t file, int fd, int64_t file_nbytes, const char *path, const char *name,
                     int types);
void dt_array_close(dt_array *a);

/** Elements first .. first+n-1 in the machine's byte order. DT_ERR_DATA when the file gives fewer. */
dt_err dt_array_read(const dt_array *a, int64_t first, int64_t n, void *out);

#endif
