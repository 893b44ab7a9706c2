/* matrix_file.h - a matrix in a file, read a few rows at a time: a NumPy array (.npy) or an array of an HDF5 file.
 * Every function is Local. */
#ifndef DTRAIN_ROWS_H
#define DTRAIN_ROWS_H

#include "dtrain/io/io.h"

/** An open matrix. {0} to begin; closed with dt_matrix_file_close. */
typedef struct dt_matrix_file {
    int64_t n, width;
    const char *path; /* borrowed */
    char *name;       /* of the array, for messages; "" for NumPy's */
    dt_h5_type type;
    size_t elem_size;
    int64_t offset; /* bytes of the first row in the file; -1: read through HDF5 */
    int fd;
    bool is_open;
    hid_t file, dset;
    dt_h5_array array;
    void *raw; /* a row in the file's type */
    size_t raw_nbytes;
} dt_matrix_file;

/** Open a two-dimensional matrix in C order, of little-endian fp16, bf16 (HDF5 only), fp32 or fp64. path: borrowed.
 *  array: full name in an HDF5 file; NULL: its only matrix. DT_ERR_DATA naming the file: missing, of another kind,
 *  truncated, no or several matrices. */
dt_err dt_matrix_file_open(dt_matrix_file *r, const char *path, const char *array);
/** Read rows first .. first+n-1 as floats. out: out [n, width]. One thread at a time. DT_ERR_DATA naming file, row and
 *  column: a value is not finite. */
dt_err dt_matrix_file_read(dt_matrix_file *r, int64_t first, int64_t n, float *out);
/** Close the file. Safe on {0} and after an error. */
void dt_matrix_file_close(dt_matrix_file *r);

/** Write the header of a .npy file of fp32 [n, width]; the rows follow it. Always DT_NPY_HEADER bytes. */
enum { DT_NPY_HEADER = 128 };
void dt_npy_header(int64_t n, int64_t width, char out[DT_NPY_HEADER]);

#endif
