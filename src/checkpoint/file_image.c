/* file_image.c - the metadata of a checkpoint as a file in memory on which HDF5 works, and its copy to disk.
 *
 * HDF5 cannot close a file whose metadata cannot be written. It keeps the blocks until the process ends and crashes in
 * its exit handler. HDF5 therefore never writes to disk. It works on an anonymous sparse file in memory, in which
 * arrays take no space. Everything between the arrays is copied to the checkpoint by our own writes, whose errors are
 * reported.
 *
 * The arrays themselves, tensors and task items, are written directly to the file (save.c). The final copy skips
 * them. */
#include "file.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

dt_err ckpt_image_open(ckpt_image *m)
{
    m->fd = memfd_create("dtrain-checkpoint", MFD_CLOEXEC);
    DT_CHECK_ERRNO(m->fd >= 0, DT_ERR_MEMORY, "a checkpoint's metadata", "cannot create a file in memory");
    snprintf(m->path, sizeof m->path, "/proc/self/fd/%d", m->fd);
    return DT_OK;
}

void ckpt_image_close(ckpt_image *m)
{
    if (m->fd >= 0) close(m->fd);
    m->fd = -1;
    free(m->arrays);
    m->arrays = NULL;
}

dt_err ckpt_image_size(const ckpt_image *m, int64_t *nbytes)
{
    struct stat st;
    DT_CHECK_ERRNO(fstat(m->fd, &st) == 0, DT_ERR_FAULT, "a checkpoint's metadata", "cannot be read back");
    *nbytes = (int64_t)st.st_size;
    return DT_OK;
}

void ckpt_image_leave_out(ckpt_image *m, dt_byte_range *arrays, int n)
{
    m->arrays = arrays, m->n_arrays = 0;
    for (int i = 0; i < n; i++)
        if (arrays[i].offset >= 0 && arrays[i].nbytes > 0) arrays[m->n_arrays++] = arrays[i];
    dt_byte_ranges_sort(arrays, m->n_arrays);
}

/* Zeros need no write: the file consists of reserved blocks and holes. */
static bool is_zero(const char *bytes, int64_t n)
{
    return n == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, (size_t)n - 1) == 0);
}

/* Copy bytes begin .. end-1 of the image to the file. */
static dt_err copy(const ckpt_image *m, int fd, const char *path, int64_t begin, int64_t end, char *buffer)
{
    for (int64_t at = begin; at < end; at += CKPT_COPY_NBYTES) {
        const int64_t n = end - at < CKPT_COPY_NBYTES ? end - at : CKPT_COPY_NBYTES;
        DT_TRY(dt_read_at(m->fd, m->path, at, buffer, (size_t)n));
        if (!is_zero(buffer, n)) DT_TRY(dt_write_at(fd, path, at, buffer, (size_t)n));
    }
    return DT_OK;
}

dt_err ckpt_image_write(const ckpt_image *m, int fd, const char *path, int64_t file_size, char *buffer)
{
    int64_t at = 0;
    for (int i = 0; i < m->n_arrays; i++) {
        DT_TRY(copy(m, fd, path, at, m->arrays[i].offset, buffer));
        at = m->arrays[i].offset + m->arrays[i].nbytes;
    }
    DT_TRY(copy(m, fd, path, at, file_size, buffer));
    return dt_seal_write(fd, path, file_size, m->arrays, m->n_arrays);
}
