/* temp_array.c - temporary arrays avoid growing HDF5 arrays, which must be chunked and cannot be read with
 * pread. Writing the data twice gives later runs plain contiguous arrays. The unnamed file disappears with
 * the process, however it ends. */
#include "temp_array.h"
#include "dtrain/io/io.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER_NBYTES = 1 << 20 };

static int open_unnamed_near(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    const int len = slash ? (int)(slash - path) + 1 : 0;
    if (snprintf(folder, sizeof folder, "%.*s.", len, path) >= (int)sizeof folder) return errno = ENAMETOOLONG, -1;
    return dt_open_unnamed(folder);
}

dt_err dt_temp_array_open(dt_temp_array *s, const char *path, int elem_size)
{
    *s = (dt_temp_array){.fd = -1, .elem_size = elem_size, .path = path};
    s->buffer = malloc(BUFFER_NBYTES);
    DT_CHECK(s->buffer, DT_ERR_MEMORY, "%s: no memory for a buffer", path);
    s->fd = open_unnamed_near(path);
    return s->fd >= 0 ? DT_OK : dt_fail_errno(DT_ERR_WRITE, s->path, "cannot write in its directory");
}

static dt_err flush(dt_temp_array *s)
{
    for (size_t done = 0; done < s->n_buffered;) {
        const ssize_t put = write(s->fd, s->buffer + done, s->n_buffered - done);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return dt_fail_errno(DT_ERR_WRITE, s->path, "cannot write");
        done += (size_t)put;
    }
    s->n_buffered = 0;
    return DT_OK;
}

dt_err dt_temp_array_add(dt_temp_array *s, const void *elems, int64_t n)
{
    const char *from = elems;
    s->n_elems += n;
    for (size_t left = (size_t)n * (size_t)s->elem_size; left > 0;) {
        const size_t room = BUFFER_NBYTES - s->n_buffered, nbytes = left < room ? left : room;
        memcpy(s->buffer + s->n_buffered, from, nbytes);
        s->n_buffered += nbytes;
        from += nbytes;
        left -= nbytes;
        if (s->n_buffered == BUFFER_NBYTES) DT_TRY(flush(s));
    }
    return DT_OK;
}

dt_err dt_temp_array_finish(dt_temp_array *s) { return flush(s); }

dt_err dt_temp_array_read(const dt_temp_array *s, int64_t first, int64_t n, void *out)
{
    char *to = out;
    int64_t at = first * s->elem_size, left = n * s->elem_size;
    while (left > 0) {
        const ssize_t got = pread(s->fd, to, (size_t)left, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return dt_fail_errno(DT_ERR_WRITE, s->path, "cannot read back the written data");
        to += got;
        at += got;
        left -= got;
    }
    return DT_OK;
}

void dt_temp_array_close(dt_temp_array *s)
{
    if (s->path && s->fd >= 0) close(s->fd);
    free(s->buffer);
    *s = (dt_temp_array){0};
}
