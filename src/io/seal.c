/* seal.c - layout of a seal: the ranges of the arrays (offset and length each), their number, the checksum, a magic
 * number; all little-endian 64-bit words. The checksum covers every preceding byte outside the ranges, each weighted by
 * its position. */
#include "dtrain/io/seal.h"
#include "dtrain/io/io.h"
#include <endian.h>
#include <stdlib.h>
#include <string.h>

enum { WORD = 8, END_NBYTES = 3 * WORD, BUFFER_NBYTES = 1 << 16 };
static const char mark[WORD + 1] = "dtrainSL";

/* Add the checksum of bytes from .. until-1, each weighted by its position in the file. */
static dt_err sum_run(int fd, const char *path, int64_t from, int64_t until, uint64_t *sum)
{
    char buffer[BUFFER_NBYTES];
    for (int64_t at = from; at < until;) {
        const int64_t n = until - at < BUFFER_NBYTES ? until - at : BUFFER_NBYTES;
        DT_TRY(dt_read_at(fd, path, at, buffer, (size_t)n));
        *sum += dt_checksum(buffer, at, n, 1);
        at += n;
    }
    return DT_OK;
}

/* Checksum of bytes 0 .. end-1 outside of sorted ranges. */
static dt_err sum_outside(int fd, const char *path, const dt_byte_range *ranges, int64_t n, int64_t end, uint64_t *sum)
{
    int64_t at = 0;
    *sum = dt_mix64((uint64_t)end);
    for (int64_t i = 0; i < n; i++) {
        DT_TRY(sum_run(fd, path, at, ranges[i].offset, sum));
        at = ranges[i].offset + ranges[i].nbytes;
    }
    return sum_run(fd, path, at, end, sum);
}

/* Write the ranges and their number, which the checksum covers, then the checksum and the magic number. */
static dt_err write_words(int fd, const char *path, int64_t end, const dt_byte_range *ranges, int n, uint64_t *words)
{
    const size_t covered = (size_t)(2 * n + 1) * WORD;
    uint64_t sum;
    for (int i = 0; i < n; i++)
        words[2 * i] = htole64((uint64_t)ranges[i].offset), words[2 * i + 1] = htole64((uint64_t)ranges[i].nbytes);
    words[2 * n] = htole64((uint64_t)n);
    DT_TRY(dt_write_at(fd, path, end, words, covered));
    DT_TRY(sum_outside(fd, path, ranges, n, end + (int64_t)covered, &sum));
    words[0] = htole64(sum);
    memcpy(&words[1], mark, WORD);
    return dt_write_at(fd, path, end + (int64_t)covered, words, 2 * WORD);
}

static int by_offset(const void *a, const void *b)
{
    const dt_byte_range *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

void dt_byte_ranges_sort(dt_byte_range *ranges, int n) { qsort(ranges, (size_t)n, sizeof *ranges, by_offset); }

dt_err dt_seal_write(int fd, const char *path, int64_t end, const dt_byte_range *ranges, int n)
{
    uint64_t *words = malloc((size_t)dt_seal_nbytes(n));
    DT_CHECK(words, DT_ERR_MEMORY, "%s: no memory to compute the checksum of the header", path);
    const dt_err err = write_words(fd, path, end, ranges, n, words);
    free(words);
    return err;
}

static dt_err fail_seal(const char *path)
{
    return dt_fail(DT_ERR_DATA,
                   "%s: the checksum of the header (groups, attributes, array offsets) does not match: the file was "
                   "altered; restore or recreate it",
                   path);
}

/* Decode little-endian words. Returns false unless the ranges are sorted and inside the first `begin` bytes. */
static bool parse_ranges(const uint64_t *words, dt_byte_range *ranges, int64_t n, int64_t begin)
{
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        ranges[i] = (dt_byte_range){(int64_t)le64toh(words[2 * i]), (int64_t)le64toh(words[2 * i + 1])};
        if (ranges[i].offset < at || ranges[i].nbytes < 0 || ranges[i].offset > begin ||
            ranges[i].nbytes > begin - ranges[i].offset)
            return false;
        at = ranges[i].offset + ranges[i].nbytes;
    }
    return true;
}

/* expected: the stored checksum. words, ranges: space for n ranges. */
static dt_err check_sum(int fd, const char *path, int64_t file_nbytes, int64_t n, uint64_t expected, uint64_t *words,
                        dt_byte_range *ranges)
{
    const int64_t begin = file_nbytes - END_NBYTES - 2 * WORD * n;
    uint64_t sum;
    DT_TRY(dt_read_at(fd, path, begin, words, 2 * WORD * (size_t)n));
    if (!parse_ranges(words, ranges, n, begin)) return fail_seal(path);
    DT_TRY(sum_outside(fd, path, ranges, n, file_nbytes - 2 * WORD, &sum));
    return sum == expected ? DT_OK : fail_seal(path);
}

dt_err dt_seal_check(int fd, const char *path, int64_t file_nbytes, bool *sealed)
{
    uint64_t end[3];
    *sealed = false;
    if (file_nbytes < END_NBYTES) return DT_OK;
    DT_TRY(dt_read_at(fd, path, file_nbytes - END_NBYTES, end, END_NBYTES));
    if (memcmp(&end[2], mark, WORD) != 0) return DT_OK;
    const uint64_t n = le64toh(end[0]);
    if (n > (uint64_t)(file_nbytes - END_NBYTES) / (2 * WORD)) return fail_seal(path);
    uint64_t *words = malloc((size_t)(2 * n + 1) * WORD);
    dt_byte_range *ranges = malloc((size_t)(n + 1) * sizeof *ranges);
    dt_err err;
    if (words && ranges)
        err = check_sum(fd, path, file_nbytes, (int64_t)n, le64toh(end[1]), words, ranges);
    else
        err = dt_fail(DT_ERR_MEMORY, "%s: no memory to compute the checksum of the header", path);
    free(words);
    free(ranges);
    *sealed = err == DT_OK;
    return err;
}
