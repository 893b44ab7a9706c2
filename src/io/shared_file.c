/* shared_file.c - large files that several processes write. Space is checked and reserved before anything is written,
 * so that a full disk is detected before data is lost. */
#include "dtrain/io/io.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { WRITE_BEHIND_FROM = 8 << 20 }; /* bytes */

dt_err dt_write_at(int fd, const char *path, int64_t offset, const void *bytes, size_t nbytes)
{
    for (size_t done = 0; done < nbytes;) {
        const ssize_t n = pwrite(fd, (const char *)bytes + done, nbytes - done, (off_t)(offset + (int64_t)done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return dt_fail_errno(DT_ERR_WRITE, path, "write failed");
        done += (size_t)n;
    }
    /* start writeback now; only a hint, so the result does not matter */
    if (nbytes >= WRITE_BEHIND_FROM) (void)sync_file_range(fd, (off_t)offset, (off_t)nbytes, SYNC_FILE_RANGE_WRITE);
    return DT_OK;
}

/* If the file system cannot reserve space (older Lustre, NFS before 4.2), a full disk is detected by the writes.
 * posix_fallocate would write a byte into each 4 KiB, and so write the whole file twice. */
dt_err dt_reserve_blocks(int fd, const char *path, int64_t nbytes, const char *what)
{
    int status;
    do status = fallocate(fd, 0, 0, (off_t)nbytes);
    while (status != 0 && errno == EINTR);
    if (status == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return DT_OK;
    const int number = errno;
    char size[24];
    return dt_fail(DT_ERR_WRITE, "%s: not enough space for %s of %s: %s", path, what,
                   dt_format_bytes((double)nbytes, size), strerror(number));
}

dt_err dt_reserve_file(const char *path, int64_t nbytes, const char *what)
{
    const int fd = open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return dt_fail_errno(DT_ERR_WRITE, path, "cannot be opened");
    const dt_err err = dt_reserve_blocks(fd, path, nbytes, what);
    close(fd);
    return err;
}

bool dt_free_space(const char *folder, double *nbytes)
{
    struct statvfs disk;
    if (statvfs(folder, &disk) != 0 || disk.f_blocks == 0) return false;
    *nbytes = (double)(geteuid() == 0 ? disk.f_bfree : disk.f_bavail) * (double)disk.f_frsize;
    return true;
}

dt_err dt_check_space(const char *folder, const char *path, double nbytes, const char *what)
{
    char needed[24], left[24];
    double free_bytes;
    if (!dt_free_space(folder, &free_bytes)) return DT_OK;
    DT_CHECK(free_bytes >= nbytes, DT_ERR_WRITE, "%s: not enough space for %s of %s: %s left on the disk", path, what,
             dt_format_bytes(nbytes, needed), dt_format_bytes(free_bytes, left));
    return DT_OK;
}
