/* record.c - one write() per record, without stdio's buffer: a reported record is in the kernel when the call returns.
 * A kill loses no complete record and truncates at most the current line. */
#include "record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/io/io.h"

/* O_NONBLOCK: a pipe without a reader must not block; it does not affect regular files. */
static dt_err open_kept(const char *path, int *fd)
{
    struct stat st;
    *fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC, 0666);
    DT_CHECK(*fd >= 0 || (errno != ENXIO && errno != ELOOP), DT_ERR_WRITE,
             "%s: expected a regular file or no file, found a %s; remove it or choose another directory", path,
             errno == ELOOP ? "symbolic link" : "pipe, socket or device");
    DT_CHECK_ERRNO(*fd >= 0, DT_ERR_WRITE, path, "cannot open for writing");
    DT_CHECK(fstat(*fd, &st) == 0 && S_ISREG(st.st_mode), DT_ERR_WRITE,
             "%s: expected a regular file or no file, found a pipe or device; remove it or choose another directory",
             path);
    return DT_OK;
}

dt_err dt_record_file_open(dt_record_file *f, const char *path, bool keep)
{
    *f = (dt_record_file){.fd = -1};
    DT_COPY_TEXT(f->path, path, "out of memory for the name of %s", path);
    if (!keep) DT_TRY(dt_check_replaceable(path));
    DT_TRY(keep ? open_kept(path, &f->fd) : dt_create_file(path, &f->fd));
    struct stat st;
    DT_CHECK_ERRNO(fcntl(f->fd, F_SETFL, O_APPEND) == 0 && fstat(f->fd, &st) == 0, DT_ERR_WRITE, path,
                   "cannot inspect the open file");
    f->nbytes = st.st_size;
    return DT_OK;
}

dt_err dt_record_file_write(dt_record_file *f, const dt_text *r)
{
    DT_CHECK(!r->failed, DT_ERR_MEMORY, "%s: out of memory for a record of more than %zu bytes", f->path, r->n_alloc);
    size_t done = 0;
    while (done < r->n) {
        const ssize_t n = write(f->fd, r->bytes + done, r->n - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            const int why = n < 0 ? errno : ENOSPC;
            /* Part of the record may be in the file (the disk filled up during the write): truncate to the previous
             * record. */
            const bool cut = done == 0 || ftruncate(f->fd, f->nbytes) == 0;
            return dt_fail(DT_ERR_WRITE, "%s: cannot write after byte %lld: %s%s", f->path, (long long)f->nbytes,
                           strerror(why), cut ? "" : " (the last line is incomplete)");
        }
        done += (size_t)n;
    }
    f->nbytes += (int64_t)done;
    return DT_OK;
}

dt_err dt_record_file_sync(dt_record_file *f)
{
    if (f->fd >= 0 && fsync(f->fd) != 0) return dt_fail_errno(DT_ERR_WRITE, f->path, "cannot flush to disk");
    return DT_OK;
}

void dt_record_file_close(dt_record_file *f)
{
    if (f->fd >= 0) close(f->fd);
    free(f->path);
    *f = (dt_record_file){.fd = -1};
}
