/* pread_array.c - a contiguous array is read with pread at its file offset, which is thread-safe and avoids
 * HDF5's lock and copies. Arrays that are chunked, compressed or big-endian are read through HDF5, under its lock.
 *
 * Input is untrusted: dt_h5_inspect checks that an array is inside this file, because ranks compare only the size and
 * head of one file. */
#include "pread_array.h"
#include "blocks.h"
#include "dtrain/data/dataset.h"
#include "dtrain/io/io.h"
#include "dtrain/core/plural.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *type_names(int types)
{
    switch (types) {
    case DT_ARRAY_U8:
        return "uint8";
    case DT_ARRAY_U16 | DT_ARRAY_U32:
        return "uint16 or uint32";
    case DT_ARRAY_U64:
        return "uint64";
    case DT_ARRAY_IMAGES:
        return "uint8";
    default:
        return "float32";
    }
}

/* DT_ARRAY_ type of a stored type; 0: unsupported. */
static int array_type(dt_h5_type type)
{
    static const int types[] = {[DT_H5_U8] = DT_ARRAY_U8,   [DT_H5_U16] = DT_ARRAY_U16, [DT_H5_U32] = DT_ARRAY_U32,
                                [DT_H5_U64] = DT_ARRAY_U64, [DT_H5_F32] = DT_ARRAY_F32, [DT_H5_I64] = 0};
    return types[type];
}

static dt_err take_shape(dt_array *a)
{
    const dt_h5_array *h = &a->stored;
    const int64_t *n = h->shape;
    const bool images = a->type == DT_ARRAY_IMAGES;
    DT_CHECK(h->n_dims == (images ? 4 : 1), DT_ERR_DATA, "%s: %s: expected %s, found %d dimension%s", a->path, a->name,
             images ? "images, [n, S, S, 3]" : "a one-dimensional array", h->n_dims, dt_plural(h->n_dims));
    a->n_elems = n[0];
    if (!images) return DT_OK;
    DT_CHECK(n[1] >= 1 && n[1] <= DT_MAX_IMAGE_SIZE && n[1] == n[2] && n[3] == 3, DT_ERR_DATA,
             "%s: %s: expected images [n, S, S, 3] with S from 1 to %d, found [%" PRId64 ", %" PRId64 ", %" PRId64
             ", %" PRId64 "]",
             a->path, a->name, DT_MAX_IMAGE_SIZE, n[0], n[1], n[2], n[3]);
    a->image_size = (int)n[1];
    a->elem_size = (int)dt_image_nbytes(a->image_size);
    return DT_OK;
}

/* Sums of offsets must not overflow either: a chunked array without data may have any length. */
static dt_err check_size(const dt_array *a)
{
    DT_CHECK(a->n_elems <= INT64_MAX / 8 / a->elem_size, DT_ERR_DATA,
             "%s: %s: the file is damaged: expected at most 2^60 bytes, found %" PRId64 " elements", a->path, a->name,
             a->n_elems);
    return DT_OK;
}

/* Only hard links are followed: an external link would name an array of another file. */
static dt_err open_locked(dt_array *a, hid_t file, int types)
{
    dt_h5_array *h = &a->stored;
    a->dset = dt_h5_open_array(file, a->name);
    DT_CHECK(a->dset >= 0, DT_ERR_DATA, "%s: dataset %s is missing", a->path, a->name);
    DT_TRY(dt_h5_inspect(a->dset, a->path, a->name, h));
    a->type = array_type(h->type);
    if (a->type == DT_ARRAY_U8 && types == DT_ARRAY_IMAGES) a->type = DT_ARRAY_IMAGES;
    DT_CHECK(a->type && (a->type & types), DT_ERR_DATA, "%s: %s: expected elements of type %s", a->path, a->name,
             type_names(types));
    a->elem_size = (int)h->elem_size;
    DT_TRY(take_shape(a));
    DT_TRY(check_size(a));
    a->offset = h->offset, a->has_checksum = h->has_checksum, a->checksum = h->checksum;
    if (dt_h5_has(a->dset, "first_block")) DT_TRY(dt_h5_read_i64(a->dset, a->path, "first_block", &a->first_block));
    if (a->offset >= 0) {
        H5Dclose(a->dset);
        a->dset = H5I_INVALID_HID;
    }
    return DT_OK;
}

dt_err dt_array_open(dt_array *a, hid_t file, int fd, const char *path, const char *name, int types)
{
    *a = (dt_array){.path = path, .name = name, .dset = H5I_INVALID_HID, .fd = fd, .offset = -1, .first_block = -1};
    dt_h5_lock();
    const dt_err err = open_locked(a, file, types);
    dt_h5_unlock();
    return err;
}

void dt_array_close(dt_array *a)
{
    if (a->path && !a->read && a->dset >= 0) { /* {0} has no path */
        dt_h5_lock();
        H5Dclose(a->dset);
        dt_h5_unlock();
    }
    free((void *)a->verified);
    *a = (dt_array){0};
}

static dt_err read_plain(const dt_array *a, int64_t first, int64_t n, void *out)
{
    const int64_t size = a->elem_size;
    const dt_err err = dt_read_at(a->fd, a->path, a->offset + first * size, out, (size_t)(n * size));
    if (err != DT_OK) return dt_error_replace(err, "%s (%s)", dt_error_message(), a->name);
    return dt_blocks_verify(a, first, n, out);
}

dt_err dt_array_read(const dt_array *a, int64_t first, int64_t n, void *out)
{
    DT_CHECK(first >= 0 && n >= 0 && n <= a->n_elems && first <= a->n_elems - n, DT_ERR_ARG,
             "internal: dt_array_read: %s: %s: elements from %" PRId64 ", %" PRId64
             " of them, are outside the array of %" PRId64,
             a->path, a->name, first, n, a->n_elems);
    if (n == 0) return DT_OK;
    if (a->read) return a->read(a, first, n, out);
    if (a->offset >= 0) return read_plain(a, first, n, out);
    const int64_t each = a->image_size ? a->elem_size : 1; /* stored elements of an image */
    dt_h5_lock();
    const dt_err err = dt_h5_read_run(a->dset, a->path, a->name, &a->stored, first * each, n * each, out);
    dt_h5_unlock();
    return err;
}
