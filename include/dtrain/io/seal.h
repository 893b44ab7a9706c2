/* seal.h - a checksum of everything in an HDF5 file except its arrays: superblock, groups, attributes, block checksums.
 *
 * It is stored after the end of the HDF5 data, which HDF5 does not read, so other readers are not affected. HDF5 1.10
 * may crash on damaged metadata. Every HDF5 file is therefore opened through dt_h5_open (io.h), which verifies the seal
 * of the raw bytes before HDF5 reads any of them. */
#ifndef DTRAIN_SEAL_H
#define DTRAIN_SEAL_H

#include "dtrain/core/core.h"

/** The bytes of an array in a file. */
typedef struct dt_byte_range {
    int64_t offset, nbytes;
} dt_byte_range;

/** Sort ranges by offset. Local. */
void dt_byte_ranges_sort(dt_byte_range *ranges, int n);

/** Bytes of the seal of a file with n arrays. */
static inline int64_t dt_seal_nbytes(int n) { return (2 * (int64_t)n + 3) * (int64_t)sizeof(uint64_t); }

/** Write the seal at byte end of a file whose HDF5 data ends there, and whose arrays lie in ranges [n], sorted by
 *  offset, without overlap. Reads all other bytes. Local. fd: open for reading and writing. DT_ERR_WRITE. */
dt_err dt_seal_write(int fd, const char *path, int64_t end, const dt_byte_range *ranges, int n);

/** *sealed false: the file has no seal. DT_ERR_DATA: it has one, and a byte outside of the arrays was changed. Reads
 *  those bytes only. Local. */
dt_err dt_seal_check(int fd, const char *path, int64_t file_nbytes, bool *sealed);

#endif
