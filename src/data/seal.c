/* seal.c - the layout of a seal: the ranges of the arrays (offset and length each), how many, the checksum, a mark; all
 * little-endian 64 bits. The checksum covers every byte before it that lies in no range, each with its place. */
#include "seal.h"
#include "dtrain/io.h"
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WORD = 8, END_NBYTES = 3 * WORD, BUFFER_NBYTES = 1 << 16 };
static const char mark[WORD + 1] = "dtrainSL";

static int by_offset(const void *a, const void *b)
{
    const dt_byte_range *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

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

/* Of bytes 0 .. end-1 outside of sorted ranges. */
static dt_err sum_outside(int fd, const char *path, const dt_byte_range *ranges, int n, int64_t end, uint64_t *sum)
{
    int64_t at = 0;
    *sum = dt_mix64((uint64_t)end);
    for (int i = 0; i < n; i++) {
        DT_TRY(sum_run(fd, path, at, ranges[i].offset, sum));
        at = ranges[i].offset + ranges[i].nbytes;
    }
    return sum_run(fd, path, at, end, sum);
}

/* Behind the file's end: ranges, their number (both covered by the checksum), the checksum, the mark. */
static dt_err write_seal(int fd, const char *path, const dt_byte_range *ranges, int n)
{
    dt_byte_range sorted[DT_SEAL_RANGES];
    uint64_t words[2 * DT_SEAL_RANGES + 3], sum;
    struct stat st;
    DT_CHECK(n <= DT_SEAL_RANGES && fstat(fd, &st) == 0, DT_ERR_WRITE, "%s: cannot be sealed", path);
    for (int i = 0; i < n; i++) sorted[i] = ranges[i];
    qsort(sorted, (size_t)n, sizeof *sorted, by_offset);
    for (int i = 0; i < n; i++)
        words[2 * i] = htole64((uint64_t)sorted[i].offset), words[2 * i + 1] = htole64((uint64_t)sorted[i].nbytes);
    words[2 * n] = htole64((uint64_t)n);
    const size_t covered = (size_t)(2 * n + 1) * WORD;
    DT_TRY(dt_write_at(fd, path, st.st_size, words, covered));
    DT_TRY(sum_outside(fd, path, sorted, n, st.st_size + (int64_t)covered, &sum));
    words[0] = htole64(sum);
    memcpy(&words[1], mark, WORD);
    return dt_write_at(fd, path, st.st_size + (int64_t)covered, words, 2 * WORD);
}

dt_err dt_seal_write(const char *path, const dt_byte_range *ranges, int n)
{
    const int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    DT_CHECK_ERRNO(fd >= 0, DT_ERR_WRITE, path, "cannot be opened");
    dt_err err = write_seal(fd, path, ranges, n);
    if (close(fd) != 0 && err == DT_OK) err = dt_fail_errno(DT_ERR_WRITE, path, "close failed");
    return err;
}

static dt_err fail_seal(const char *path)
{
    return dt_fail(DT_ERR_DATA,
                   "%s: its header (groups, attributes, places of arrays) was altered: the checksum does not match; "
                   "make the file again with dtrain-data",
                   path);
}

dt_err dt_seal_check(int fd, const char *path, int64_t file_nbytes, bool *sealed)
{
    uint64_t end[3], words[2 * DT_SEAL_RANGES], sum = 0;
    dt_byte_range ranges[DT_SEAL_RANGES];
    *sealed = false;
    if (file_nbytes < END_NBYTES) return DT_OK;
    DT_TRY(dt_read_at(fd, path, file_nbytes - END_NBYTES, end, END_NBYTES));
    if (memcmp(&end[2], mark, WORD) != 0) return DT_OK;
    const uint64_t n = le64toh(end[0]);
    if (n > DT_SEAL_RANGES || file_nbytes < END_NBYTES + 2 * WORD * (int64_t)n) return fail_seal(path);
    const int64_t begin = file_nbytes - END_NBYTES - 2 * WORD * (int64_t)n;
    DT_TRY(dt_read_at(fd, path, begin, words, 2 * WORD * (size_t)n));
    int64_t at = 0;
    for (uint64_t i = 0; i < n; i++) {
        ranges[i] = (dt_byte_range){(int64_t)le64toh(words[2 * i]), (int64_t)le64toh(words[2 * i + 1])};
        if (ranges[i].offset < at || ranges[i].nbytes < 0 || ranges[i].offset > begin ||
            ranges[i].nbytes > begin - ranges[i].offset)
            return fail_seal(path);
        at = ranges[i].offset + ranges[i].nbytes;
    }
    DT_TRY(sum_outside(fd, path, ranges, (int)n, file_nbytes - 2 * WORD, &sum));
    if (sum != le64toh(end[1])) return fail_seal(path);
    *sealed = true;
    return DT_OK;
}
