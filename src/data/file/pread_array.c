/* pread_array.c - a contiguous array is read with pread at its file offset, which is thread-safe and avoids
 * HDF5's lock and copies. Arrays that are chunked, compressed or of foreign byte order are read through
 * HDF5, under its lock.
 *
 * Input is untrusted: the offset that HDF5 reports is checked against the file size. Storage outside the file (external
 * files, virtual datasets) is refused, because ranks compare only the size and head of one file. */
#include "pread_array.h"
#include "blocks.h"
#include "dtrain/data/dataset.h"
#include "dtrain/io/io.h"
#include "dtrain/core/plural.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { N_IMAGE_DIMS = 4 };

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

/* DT_ARRAY_ type of an open HDF5 dataset; 0: unsupported. */
static int stored_type(hid_t dset, bool *little_endian)
{
    const hid_t t = H5Dget_type(dset);
    if (t < 0) return 0;
    const size_t size = H5Tget_size(t);
    int type = 0;
    if (H5Tget_class(t) == H5T_INTEGER && H5Tget_sign(t) == H5T_SGN_NONE &&
        (size == 1 || size == 2 || size == 4 || size == 8)) {
        type = 8 * size == H5Tget_precision(t) ? (int)size : 0;
        *little_endian = size == 1 || H5Tget_order(t) == H5T_ORDER_LE;
    } else if (H5Tequal(t, H5T_IEEE_F32LE) > 0 || H5Tequal(t, H5T_IEEE_F32BE) > 0) {
        type = DT_ARRAY_F32;
        *little_endian = H5Tequal(t, H5T_IEEE_F32LE) > 0;
    }
    H5Tclose(t);
    return type;
}

/* n: the four dimensions. */
static dt_err take_image_size(dt_array *a, const hsize_t *n)
{
    DT_CHECK(n[1] >= 1 && n[1] <= DT_MAX_IMAGE_SIZE && n[1] == n[2] && n[3] == 3, DT_ERR_DATA,
             "%s: %s: expected images [n, S, S, 3] with S from 1 to %d, found [%llu, %llu, %llu, %llu]", a->path,
             a->name, DT_MAX_IMAGE_SIZE, (unsigned long long)n[0], (unsigned long long)n[1], (unsigned long long)n[2],
             (unsigned long long)n[3]);
    a->image_size = (int)n[1];
    a->elem_size = (int)dt_image_nbytes(a->image_size);
    return DT_OK;
}

static dt_err check_shape(dt_array *a)
{
    const hid_t space = H5Dget_space(a->dset);
    if (space < 0) return dt_h5_fail(DT_ERR_DATA, a->path, a->name);
    hsize_t n[N_IMAGE_DIMS] = {0};
    const bool simple = H5Sget_simple_extent_type(space) == H5S_SIMPLE, images = a->type == DT_ARRAY_IMAGES;
    const int rank = simple ? H5Sget_simple_extent_ndims(space) : 0, expected = images ? N_IMAGE_DIMS : 1;
    if (rank == expected) H5Sget_simple_extent_dims(space, n, NULL);
    H5Sclose(space);
    DT_CHECK(rank == expected, DT_ERR_DATA, "%s: %s: expected %s, found %d dimension%s", a->path, a->name,
             images ? "images, [n, S, S, 3]" : "a one-dimensional array", rank, dt_plural(rank));
    if (images) DT_TRY(take_image_size(a, n));
    DT_CHECK(n[0] <= (hsize_t)(INT64_MAX / 8 / a->elem_size), DT_ERR_DATA, "%s: %s: the size is invalid: %llu elements",
             a->path, a->name, (unsigned long long)n[0]);
    a->n_elems = (int64_t)n[0];
    return DT_OK;
}

/* Offset of contiguous storage. Storage outside the file is an error; any other layout is read through HDF5. */
static dt_err find_offset(dt_array *a, hid_t file, int64_t file_nbytes, bool little_endian)
{
    a->offset = -1;
    const hid_t plist = H5Dget_create_plist(a->dset), file_plist = H5Fget_create_plist(file);
    const H5D_layout_t layout = plist < 0 ? H5D_LAYOUT_ERROR : H5Pget_layout(plist);
    const int n_external = plist < 0 ? 0 : H5Pget_external_count(plist);
    hsize_t user_block = 1;
    if (file_plist < 0 || H5Pget_userblock(file_plist, &user_block) < 0) user_block = 1;
    if (plist >= 0) H5Pclose(plist);
    if (file_plist >= 0) H5Pclose(file_plist);

    DT_CHECK(n_external <= 0 && (layout == H5D_CONTIGUOUS || layout == H5D_CHUNKED || layout == H5D_COMPACT),
             DT_ERR_DATA, "%s: %s: expected contiguous or chunked storage in this file", a->path, a->name);
    if (layout != H5D_CONTIGUOUS || !little_endian || user_block != 0 || a->n_elems == 0) return DT_OK;
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    return DT_OK;
#endif
    const haddr_t at = H5Dget_offset(a->dset);
    if (at == HADDR_UNDEF) return DT_OK; /* never written: HDF5 returns the fill value */
    const int64_t nbytes = a->n_elems * a->elem_size;
    DT_CHECK(nbytes <= file_nbytes && at <= (haddr_t)(file_nbytes - nbytes), DT_ERR_DATA,
             "%s: %s: %" PRId64 " elements at byte %llu exceed the file (%" PRId64
             " bytes), which was cut short or damaged",
             a->path, a->name, a->n_elems, (unsigned long long)at, file_nbytes);
    a->offset = (int64_t)at;
    return DT_OK;
}

static dt_err open_locked(dt_array *a, hid_t file, int64_t file_nbytes, int types)
{
    DT_CHECK(H5Lexists(file, a->name, H5P_DEFAULT) > 0, DT_ERR_DATA, "%s: dataset %s is missing", a->path, a->name);
    a->dset = H5Dopen2(file, a->name, H5P_DEFAULT);
    if (a->dset < 0) return dt_h5_fail(DT_ERR_DATA, a->path, a->name);

    bool little_endian = false;
    a->type = stored_type(a->dset, &little_endian);
    if (a->type == DT_ARRAY_U8 && types == DT_ARRAY_IMAGES) a->type = DT_ARRAY_IMAGES;
    DT_CHECK(a->type && (a->type & types), DT_ERR_DATA, "%s: %s: expected elements of type %s", a->path, a->name,
             type_names(types));
    a->elem_size = a->type == DT_ARRAY_F32 ? 4 : a->type;
    DT_TRY(check_shape(a));
    DT_TRY(find_offset(a, file, file_nbytes, little_endian));
    a->has_checksum = dt_h5_has(a->dset, "checksum");
    if (a->has_checksum) DT_TRY(dt_h5_read_u64(a->dset, a->path, "checksum", &a->checksum));
    if (dt_h5_has(a->dset, "first_block")) DT_TRY(dt_h5_read_i64(a->dset, a->path, "first_block", &a->first_block));
    if (a->offset >= 0) {
        H5Dclose(a->dset);
        a->dset = H5I_INVALID_HID;
    }
    return DT_OK;
}

dt_err dt_array_open(dt_array *a, hid_t file, int fd, int64_t file_nbytes, const char *path, const char *name,
                     int types)
{
    *a = (dt_array){.path = path, .name = name, .dset = H5I_INVALID_HID, .fd = fd, .offset = -1, .first_block = -1};
    dt_h5_lock();
    const dt_err err = open_locked(a, file, file_nbytes, types);
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

static dt_err read_h5(const dt_array *a, int64_t first, int64_t n, void *out)
{
    const hsize_t S = (hsize_t)a->image_size, start[N_IMAGE_DIMS] = {(hsize_t)first},
                  count[N_IMAGE_DIMS] = {(hsize_t)n, S, S, 3};
    const hid_t from = H5Dget_space(a->dset), to = H5Screate_simple(a->image_size ? N_IMAGE_DIMS : 1, count, NULL);
    herr_t ok = from < 0 || to < 0 ? -1 : 0;
    if (ok >= 0) ok = H5Sselect_hyperslab(from, H5S_SELECT_SET, start, NULL, count, NULL);
    if (ok >= 0) ok = H5Dread(a->dset, dt_array_hdf5_type(a->type, false), to, from, H5P_DEFAULT, out);
    const dt_err err = ok >= 0 ? DT_OK : dt_h5_fail(DT_ERR_DATA, a->path, a->name);
    if (from >= 0) H5Sclose(from);
    if (to >= 0) H5Sclose(to);
    return err;
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
    dt_h5_lock();
    const dt_err err = read_h5(a, first, n, out);
    dt_h5_unlock();
    return err;
}
