/* blocks.h - per-block checksums of an array: a corrupt block is detected when it is first read.
 *
 * A block is DT_BLOCK_NBYTES of an array; the last block may be shorter. Its checksum is its contribution
 * to the array's checksum (dt_checksum), so the block checksums add up to the array's. /block_checksums
 * holds those of all arrays of a file and is covered by the file's seal. The attribute first_block of an
 * array is the index of its first checksum. Cost: one checksum per 64 KiB is 1/8192 of the file. The first read of a
 * block may read up to 64 KiB more than requested. */
#ifndef DTRAIN_DATA_BLOCKS_H
#define DTRAIN_DATA_BLOCKS_H

#include "pread_array.h"

enum { DT_BLOCK_NBYTES = 1 << 16 };

/** Number of blocks of an array of nbytes bytes. */
static inline int64_t dt_blocks_of(int64_t nbytes) { return (nbytes + DT_BLOCK_NBYTES - 1) / DT_BLOCK_NBYTES; }

/** Running block checksums of an array that arrives in chunks, in order. Initialise to {0}. */
typedef struct dt_block_sums {
    uint64_t open;  /* of the block that the last chunk left incomplete */
    uint64_t total; /* of all chunks so far; finally the array's checksum */
} dt_block_sums;
/** Add elements first .. first+n-1. sums receives the checksums of the blocks that end in this chunk.
 *  last: this is the last chunk. elem_size, images: as in dt_array_checksum. Returns the number of sums,
 *  at most n * elem_size / DT_BLOCK_NBYTES + 2. */
int dt_block_sums_add(dt_block_sums *s, const void *elems, int64_t first, int64_t n, int elem_size, bool images,
                      bool last, uint64_t *sums);

/** Verify the blocks of the array in all later reads. sums: the open array /block_checksums. Does nothing
 *  if one of the two arrays is not contiguous or a has no attribute first_block. DT_ERR_DATA,
 *  DT_ERR_MEMORY. */
dt_err dt_blocks_attach(dt_array *a, const dt_array *sums);
/** Verify the blocks of elements first .. first+n-1 that are not verified yet. elems: these elements as
 *  stored. Blocks that extend beyond the range are read from the file. Thread-safe. DT_ERR_DATA names
 *  file, array and block. */
dt_err dt_blocks_verify(const dt_array *a, int64_t first, int64_t n, const void *elems);

#endif
