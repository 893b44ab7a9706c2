/* blocks.c - one bit per block records that it was verified. Two threads may verify the same block: the
 * result is the same. */
#include "blocks.h"
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Images are summed by bytes, other arrays by elements. A block holds a whole number of either. */
static int unit_size(int elem_size, bool images) { return images ? 1 : elem_size; }

int dt_block_sums_add(dt_block_sums *s, const void *elems, int64_t first, int64_t n, int elem_size, bool images,
                      bool last, uint64_t *sums)
{
    const int unit = unit_size(elem_size, images);
    const int64_t per_block = DT_BLOCK_NBYTES / unit, begin = first * elem_size / unit,
                  end = begin + n * elem_size / unit;
    const char *from = elems;
    int n_sums = 0;
    for (int64_t at = begin; at < end;) {
        const int64_t block_end = (at / per_block + 1) * per_block, until = block_end < end ? block_end : end;
        const uint64_t sum = dt_checksum(from + (at - begin) * unit, at, until - at, (size_t)unit);
        s->open += sum;
        s->total += sum;
        at = until;
        if (at != block_end && !(last && at == end)) break;
        sums[n_sums++] = s->open;
        s->open = 0;
    }
    return n_sums;
}

dt_err dt_blocks_attach(dt_array *a, const dt_array *sums)
{
    const int64_t n_blocks = dt_blocks_of(a->n_elems * a->elem_size);
    if (a->offset < 0 || a->first_block < 0 || sums->offset < 0 || n_blocks == 0) return DT_OK;
    DT_CHECK(n_blocks <= sums->n_elems && a->first_block <= sums->n_elems - n_blocks, DT_ERR_DATA,
             "%s: %s: expected %" PRId64 " block checksums starting at index %" PRId64 ", but %s has only %" PRId64,
             a->path, a->name, n_blocks, a->first_block, sums->name, sums->n_elems);
    a->verified = calloc((size_t)(n_blocks + 7) / 8, 1);
    DT_CHECK(a->verified, DT_ERR_MEMORY, "%s: %s: out of memory for %" PRId64 " blocks", a->path, a->name, n_blocks);
    a->sums_offset = sums->offset + a->first_block * (int64_t)sizeof(uint64_t);
    return DT_OK;
}

/* bytes: the whole block, or NULL to read it. */
static dt_err verify_block(const dt_array *a, int64_t block, const char *bytes)
{
    char buffer[DT_BLOCK_NBYTES];
    const int unit = unit_size(a->elem_size, a->image_size > 0);
    const int64_t begin = block * DT_BLOCK_NBYTES, left = a->n_elems * a->elem_size - begin,
                  nbytes = left < DT_BLOCK_NBYTES ? left : DT_BLOCK_NBYTES;
    uint64_t expected;
    if (!bytes) DT_TRY(dt_read_at(a->fd, a->path, a->offset + begin, buffer, (size_t)nbytes));
    DT_TRY(dt_read_at(a->fd, a->path, a->sums_offset + block * (int64_t)sizeof expected, &expected, sizeof expected));
    const uint64_t found = dt_checksum(bytes ? bytes : buffer, begin / unit, nbytes / unit, (size_t)unit);
    DT_CHECK(found == expected, DT_ERR_DATA,
             "%s: %s: block %" PRId64 " (bytes %" PRId64 " to %" PRId64
             " of the file) is damaged: checksum: expected %016" PRIx64 ", found %016" PRIx64
             "; restore or recreate the file",
             a->path, a->name, block, a->offset + begin, a->offset + begin + nbytes - 1, expected, found);
    return DT_OK;
}

dt_err dt_blocks_verify(const dt_array *a, int64_t first, int64_t n, const void *elems)
{
    if (!a->verified || n == 0) return DT_OK;
    const int64_t begin = first * a->elem_size, end = begin + n * a->elem_size, size = a->n_elems * a->elem_size;
    for (int64_t b = begin / DT_BLOCK_NBYTES; b * DT_BLOCK_NBYTES < end; b++) {
        _Atomic uint8_t *bits = &a->verified[b / 8];
        const uint8_t bit = (uint8_t)(1 << b % 8);
        if (atomic_load_explicit(bits, memory_order_relaxed) & bit) continue;
        const int64_t from = b * DT_BLOCK_NBYTES, until = from + DT_BLOCK_NBYTES;
        const bool whole = from >= begin && (until <= end || end == size);
        DT_TRY(verify_block(a, b, whole ? (const char *)elems + (from - begin) : NULL));
        atomic_fetch_or_explicit(bits, bit, memory_order_relaxed);
    }
    return DT_OK;
}
