/* seal.h - a checksum of everything in a dataset file except the arrays: HDF5's superblock, groups, attributes. It
 * stands behind HDF5's end of the file, which HDF5 leaves alone: older programs and other readers see nothing of it. */
#ifndef DTRAIN_DATA_SEAL_H
#define DTRAIN_DATA_SEAL_H

#include "dtrain/core.h"

typedef struct dt_byte_range {
    int64_t offset, nbytes;
} dt_byte_range;
enum { DT_SEAL_RANGES = 16 };

/** Add the seal to a closed file whose arrays lie in ranges [n], in any order. DT_ERR_WRITE. */
dt_err dt_seal_write(const char *path, const dt_byte_range *ranges, int n);
/** *sealed false: the file has no seal. DT_ERR_DATA: it has one, and a byte outside of the arrays was changed. Reads
 *  those bytes alone. */
dt_err dt_seal_check(int fd, const char *path, int64_t file_nbytes, bool *sealed);

#endif
