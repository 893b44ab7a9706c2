/* temp_array.c - the arrays of the final file must be contiguous, so that runs can read them with pread. An HDF5 array
 * that grows is chunked. Arrays therefore grow in temporary files and are copied when their length is known. The
 * unnamed file disappears when the process ends, also after a kill. */
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
    *s = (dt_temp_array){.elem_size = elem_size, .path = path};
    DT_ALLOC(s->buffer, BUFFER_NBYTES, "%s: out of memory for a buffer", path);
    const int fd = open_unnamed_near(path);
    s->file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (s->file) return setvbuf(s->file, s->buffer, _IOFBF, BUFFER_NBYTES), DT_OK;
    const dt_err err = dt_fail_errno(DT_ERR_WRITE, s->path, "cannot write in its directory");
    if (fd >= 0) close(fd);
    return err;
}

dt_err dt_temp_array_add(dt_temp_array *s, const void *elems, int64_t n)
{
    s->n_elems += n;
    DT_CHECK_ERRNO(fwrite_unlocked(elems, (size_t)s->elem_size, (size_t)n, s->file) == (size_t)n, DT_ERR_WRITE, s->path,
                   "cannot write");
    return DT_OK;
}

dt_err dt_temp_array_finish(dt_temp_array *s)
{
    DT_CHECK_ERRNO(fflush(s->file) == 0, DT_ERR_WRITE, s->path, "cannot write");
    return DT_OK;
}

dt_err dt_temp_array_read(const dt_temp_array *s, int64_t first, int64_t n, void *out)
{
    const size_t size = (size_t)s->elem_size;
    if (dt_read_at(fileno(s->file), s->path, first * s->elem_size, out, (size_t)n * size) == DT_OK) return DT_OK;
    return dt_error_replace(DT_ERR_WRITE, "%s: cannot read back the written data", s->path);
}

void dt_temp_array_close(dt_temp_array *s)
{
    if (s->file) fclose(s->file);
    free(s->buffer);
    *s = (dt_temp_array){0};
}
