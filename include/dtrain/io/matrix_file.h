/* matrix_file.h - a matrix in a file, read a few rows at a time: a NumPy array (.npy) or an array of an HDF5 file. */
#ifndef DTRAIN_ROWS_H
#define DTRAIN_ROWS_H

#include "dtrain/io/io.h"

/** {0} to start from. */
typedef struct dt_rows {
    int64_t n, width;
    const char *path; /* the caller's */
    char *name;       /* of the array, for messages; "" for NumPy's */
    dt_h5_type type;
    size_t elem_size;
    int64_t offset; /* of the first row in the file; -1: HDF5 fetches it */
    int fd;
    bool is_open;
    hid_t file, dset;
    dt_h5_array array;
    void *raw; /* a row as the file has it */
    size_t raw_nbytes;
} dt_rows;

/** Open a matrix of two dimensions, in C order, of little-endian fp16, bf16 (HDF5 alone), fp32 or fp64. path is
 *  borrowed. array: of an HDF5 file, by full name; NULL: the only matrix that the file has. Local. DT_ERR_DATA naming
 *  the file: missing, of another kind, cut short, no or several matrices. */
dt_err dt_rows_open(dt_rows *r, const char *path, const char *array);
/** Rows first .. first+n-1 as floats: out [n, width]. One thread at a time. DT_ERR_DATA naming file, row and column of
 *  a number that is not finite. */
dt_err dt_rows_read(dt_rows *r, int64_t first, int64_t n, float *out);
void dt_rows_close(dt_rows *r); /* safe on {0} and after an error */

/** The header of a .npy file of fp32 [n, width], behind which the rows lie. Returns its bytes, a multiple of 64. */
enum { DT_NPY_HEADER = 128 };
void dt_npy_header(int64_t n, int64_t width, char out[DT_NPY_HEADER]);

#endif
