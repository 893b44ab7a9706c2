/* blocks.h - checksums of the blocks of an array: a damaged block is found the first time it is read.
 *
 * A block is DT_BLOCK_NBYTES of an array, the last one less. Its checksum is the block's part of the checksum of the
 * array (dt_checksum), so the checksums of all blocks add up to the array's. /block_checksums holds those of all
 * arrays of a file, and is covered by the file's seal; the attribute first_block of an array is the index of its
 * first. One checksum in 64 KiB costs 1/8192 of the file, and a sample read at random at most 64 KiB more, once. */
#ifndef DTRAIN_DATA_BLOCKS_H
#define DTRAIN_DATA_BLOCKS_H

#include "pread_array.h"

enum { DT_BLOCK_NBYTES = 1 << 16 };

/** Number of blocks of an array of that many bytes. */
static inline int64_t dt_blocks_of(int64_t nbytes) { return (nbytes + DT_BLOCK_NBYTES - 1) / DT_BLOCK_NBYTES; }

/** Sums the blocks of an array that comes in pieces, in order. {0} to start from. */
typedef struct dt_block_sums {
    uint64_t open;  /* of the block that the last piece left unfinished */
    uint64_t total; /* of all pieces so far: at the end the checksum of the array */
} dt_block_sums;
/** Add elements first .. first+n-1; sums: those of the blocks that end in this piece. last: no piece follows.
 *  elem_size, images: as dt_array_checksum. Returns how many, at most n * elem_size / DT_BLOCK_NBYTES + 2. */
int dt_block_sums_add(dt_block_sums *s, const void *elems, int64_t first, int64_t n, int elem_size, bool images,
                      bool last, uint64_t *sums);

/** Verify the blocks of an array as they are read from now on. sums: /block_checksums, open; nothing happens where one
 *  of the two is not contiguous, or where the array has no attribute first_block. DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_blocks_attach(dt_array *a, const dt_array *sums);
/** Verify those blocks of elements first .. first+n-1 that were not verified before. elems: what was read of them; of
 *  blocks that begin before or end after, the rest is read here. Threads may call this at the same time. DT_ERR_DATA
 *  naming file, array and block. */
dt_err dt_blocks_verify(const dt_array *a, int64_t first, int64_t n, const void *elems);

#endif
