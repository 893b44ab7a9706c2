/* pread_array.h - one array of a dataset file: one-dimensional, or a sequence of images. */
#ifndef DTRAIN_DATA_ARRAY_H
#define DTRAIN_DATA_ARRAY_H

#include "dtrain/io/io.h"

/* Element types that the file format allows. The value of an unsigned type is its size in bytes. */
enum {
    DT_ARRAY_U8 = 1,
    DT_ARRAY_U16 = 2,
    DT_ARRAY_U32 = 4,
    DT_ARRAY_U64 = 8,
    DT_ARRAY_F32 = 16,
    DT_ARRAY_IMAGES = 32 /* uint8 [n, S, S, 3]: an element is one image */
};

typedef struct dt_array dt_array;
struct dt_array {
    const char *path, *name; /* path of the file, name of the array in it; for messages; borrowed */
    /* of arrays of other formats: read as dt_array_read, of a range that exists; NULL: HDF5 */
    dt_err (*read)(const dt_array *a, int64_t first, int64_t n, void *out);
    const void *self;   /* the format's */
    dt_h5_array stored; /* as HDF5 describes it */
    hid_t dset;         /* open if the array is read through HDF5, else H5I_INVALID_HID */
    int fd;             /* borrowed */
    int64_t offset;     /* of the first byte in the file; -1: read through HDF5 */
    int64_t n_elems;
    int type, elem_size;
    int image_size; /* S; 0: elements are scalars */
    bool has_checksum;
    uint64_t checksum;
    int64_t first_block;       /* index of the first block's checksum in /block_checksums; -1: no block checksums */
    int64_t sums_offset;       /* file offset of that checksum, set when blocks are attached (blocks.h) */
    _Atomic uint8_t *verified; /* [blocks / 8]: one bit per block; NULL: blocks are not verified */
};

/** Open /name of an HDF5 file. Checks its dimensions, that its type is in types, and that it is inside the file, which
 *  fd reads, too. dt_array_close is safe on {0} and after an error. */
dt_err dt_array_open(dt_array *a, hid_t file, int fd, const char *path, const char *name, int types);
void dt_array_close(dt_array *a);

/** Contribution of elements first .. first+n-1, in file byte order, to the checksum of the whole array. */
static inline uint64_t dt_array_checksum(const void *elems, int64_t first, int64_t n, int elem_size, bool images)
{
    return images ? dt_checksum(elems, first * elem_size, n * elem_size, 1)
                  : dt_checksum(elems, first, n, (size_t)elem_size);
}

/** HDF5's type of an element in memory, or (in_file) in dtrain's files. */
static inline hid_t dt_array_hdf5_type(int type, bool in_file)
{
    switch (type) {
    case DT_ARRAY_U16:
        return in_file ? H5T_STD_U16LE : H5T_NATIVE_UINT16;
    case DT_ARRAY_U32:
        return in_file ? H5T_STD_U32LE : H5T_NATIVE_UINT32;
    case DT_ARRAY_U64:
        return in_file ? H5T_STD_U64LE : H5T_NATIVE_UINT64;
    case DT_ARRAY_F32:
        return in_file ? H5T_IEEE_F32LE : H5T_NATIVE_FLOAT;
    default: /* DT_ARRAY_U8, DT_ARRAY_IMAGES */
        return in_file ? H5T_STD_U8LE : H5T_NATIVE_UINT8;
    }
}

/** Read elements first .. first+n-1 in native byte order. A block with a checksum is verified when it is first read.
 *  DT_ERR_DATA: the file is too short, or a block does not match its checksum. */
dt_err dt_array_read(const dt_array *a, int64_t first, int64_t n, void *out);

#endif
