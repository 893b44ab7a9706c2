/* hdf5_array.c - arrays in an HDF5 file: their description, and reads of any range of elements.
 *
 * A contiguous array without filters is read by pread at its offset: at the speed of the disk, by any number of ranks
 * and threads, and without HDF5's lock. Arrays that another program has chunked, compressed or stored big-endian are
 * read through HDF5. External links and external storage are rejected, so that an untrusted file cannot make dtrain
 * read other files. */
#include "dtrain/io/io.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_CHUNK = 256 << 20, VERIFY_BYTES = 8 << 20 };

/* The type of an array's elements in memory: little-endian, in any case. The caller closes it. Negative on error.
 * little: out, they are stored so; may be NULL. */
static hid_t memory_type(hid_t dset, bool *little)
{
    const hid_t stored = H5Dget_type(dset), type = stored < 0 ? stored : H5Tcopy(stored);
    const bool number = type >= 0 && (H5Tget_class(type) == H5T_INTEGER || H5Tget_class(type) == H5T_FLOAT),
               big = number && H5Tget_order(type) == H5T_ORDER_BE;
    if (stored >= 0) H5Tclose(stored);
    if (little) *little = !big || H5Tget_size(type) == 1;
    if (!big || H5Tset_order(type, H5T_ORDER_LE) >= 0) return type;
    H5Tclose(type);
    return -1;
}

static bool is_ieee_half(hid_t type)
{
    size_t spos, epos, esize, mpos, msize;
    return H5Tget_fields(type, &spos, &epos, &esize, &mpos, &msize) >= 0 && spos == 15 && epos == 10 && esize == 5 &&
           mpos == 0 && msize == 10 && H5Tget_ebias(type) == 15;
}

static bool says_bf16(hid_t dset, const char *path)
{
    char *text = NULL;
    if (!dt_h5_has(dset, "dtype")) return false;
    const bool yes = dt_h5_read_text(dset, path, "dtype", &text) == DT_OK && strcmp(text, "bf16") == 0;
    free(text);
    return yes;
}

static dt_h5_type element_type(hid_t dset, hid_t type, const char *path)
{
    const size_t size = H5Tget_size(type);
    const H5T_class_t class = H5Tget_class(type);
    if ((class != H5T_FLOAT && class != H5T_INTEGER) || (size > 1 && H5Tget_order(type) != H5T_ORDER_LE))
        return DT_H5_OTHER;
    if (class == H5T_FLOAT)
        return H5Tequal(type, H5T_IEEE_F32LE) > 0   ? DT_H5_F32
               : H5Tequal(type, H5T_IEEE_F64LE) > 0 ? DT_H5_F64
               : size == 2 && is_ieee_half(type)    ? DT_H5_F16
                                                    : DT_H5_OTHER;
    const hid_t whole[] = {H5T_STD_U8LE, H5T_STD_U16LE, H5T_STD_U32LE, H5T_STD_U64LE,
                           H5T_STD_I8LE, H5T_STD_I16LE, H5T_STD_I32LE, H5T_STD_I64LE};
    for (int k = 0; k < 8; k++)
        if (H5Tequal(type, whole[k]) > 0)
            return k == 1 && says_bf16(dset, path) ? DT_H5_BF16 : (dt_h5_type)(DT_H5_U8 + k);
    return DT_H5_OTHER;
}

const char *dt_h5_type_name(dt_h5_type t)
{
    static const char *const names[] = {"another type", "fp32",   "fp16", "bf16",  "fp64",  "uint8", "uint16",
                                        "uint32",       "uint64", "int8", "int16", "int32", "int64"};
    return names[t];
}

/* Read dimensions and number of elements, with overflow checks. */
static dt_err read_shape(hid_t dset, const char *path, const char *name, dt_h5_array *a)
{
    hsize_t dims[H5S_MAX_RANK];
    hid_t space = H5Dget_space(dset);
    const int n = space < 0 ? -1 : H5Sget_simple_extent_dims(space, dims, NULL);
    const bool empty = space >= 0 && H5Sget_simple_extent_type(space) == H5S_NULL;
    if (space >= 0) H5Sclose(space);
    DT_CHECK(n >= 0 && n <= DT_H5_MAX_DIMS && !empty, DT_ERR_DATA,
             "%s: `%s`: expected an array of at most %d dimensions", path, name, (int)DT_H5_MAX_DIMS);
    a->n_dims = n;
    a->n_elems = 1;
    for (int d = 0; d < n; d++) {
        const bool fits = dims[d] <= INT64_MAX && !__builtin_mul_overflow(a->n_elems, (int64_t)dims[d], &a->n_elems);
        DT_CHECK(fits, DT_ERR_DATA, "%s: `%s`: the file is damaged: expected at most 2^63 - 1 elements, found more",
                 path, name);
        a->shape[d] = (int64_t)dims[d];
    }
    int64_t nbytes;
    DT_CHECK(!__builtin_mul_overflow(a->n_elems, (int64_t)a->elem_size, &nbytes), DT_ERR_DATA,
             "%s: `%s`: the file is damaged: expected at most 2^63 - 1 bytes, found more", path, name);
    return DT_OK;
}

/* Find the elements: the offset of a contiguous array that lies inside the file, or -1 if HDF5 must read it. */
static dt_err read_location(hid_t dset, const char *path, const char *name, dt_h5_array *a)
{
    hid_t plist = H5Dget_create_plist(dset);
    const H5D_layout_t layout = plist < 0 ? H5D_LAYOUT_ERROR : H5Pget_layout(plist);
    const int n_external = plist < 0 ? -1 : H5Pget_external_count(plist);
    hsize_t chunk[H5S_MAX_RANK], chunk_elems = 1;
    if (layout == H5D_CHUNKED)
        for (int d = H5Pget_chunk(plist, H5S_MAX_RANK, chunk) - 1; d >= 0; d--)
            if (__builtin_mul_overflow(chunk_elems, chunk[d], &chunk_elems)) chunk_elems = UINT64_MAX;
    if (plist >= 0) H5Pclose(plist);
    DT_CHECK(n_external == 0 && (layout == H5D_CONTIGUOUS || layout == H5D_CHUNKED || layout == H5D_COMPACT),
             DT_ERR_DATA, "%s: `%s`: expected an array stored in this file, found external or virtual storage", path,
             name);
    DT_CHECK(chunk_elems <= MAX_CHUNK / a->elem_size, DT_ERR_DATA,
             "%s: `%s`: chunks of more than %d MiB are not supported", path, name, MAX_CHUNK >> 20);
    a->offset = -1;
    if (layout != H5D_CONTIGUOUS || a->n_elems == 0) return DT_OK;

    struct stat st;
    const haddr_t offset = H5Dget_offset(dset);
    DT_CHECK(offset != HADDR_UNDEF, DT_ERR_DATA, "%s: `%s`: the array has never been written", path, name);
    DT_CHECK_ERRNO(stat(path, &st) == 0, DT_ERR_DATA, path, NULL);
    const int64_t nbytes = a->n_elems * (int64_t)a->elem_size;
    DT_CHECK(offset <= INT64_MAX && nbytes <= st.st_size && (int64_t)offset <= st.st_size - nbytes, DT_ERR_DATA,
             "%s: `%s`: the array extends beyond the end of the file (%lld bytes)", path, name, (long long)st.st_size);
    a->offset = (int64_t)offset;
    return DT_OK;
}

dt_err dt_h5_inspect(hid_t dset, const char *path, const char *name, dt_h5_array *a)
{
    *a = (dt_h5_array){.offset = -1};
    bool little;
    hid_t type = memory_type(dset, &little);
    if (type < 0) return dt_h5_fail(DT_ERR_DATA, path, name);
    a->type = element_type(dset, type, path);
    a->elem_size = H5Tget_size(type);
    H5Tclose(type);
    DT_CHECK(a->type != DT_H5_OTHER, DT_ERR_DATA,
             "%s: `%s`: expected numbers of 1, 2, 4 or 8 bytes, found another type", path, name);
    DT_TRY(read_shape(dset, path, name, a));
    DT_TRY(read_location(dset, path, name, a));
    if (!little) a->offset = -1;
    a->has_checksum = dt_h5_has(dset, "checksum");
    if (a->has_checksum) DT_TRY(dt_h5_read_u64(dset, path, "checksum", &a->checksum));
    return DT_OK;
}

hid_t dt_h5_open_array(hid_t file, const char *name)
{
    H5L_info_t link;
    /* Each component of the name must be a hard link; H5Lget_info checks only the last one. */
    char part[512];
    const size_t len = strlen(name);
    if (len >= sizeof part) return -1;
    memcpy(part, name, len + 1);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (H5Lget_info(file, part, &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD) return -1;
        *slash = '/';
    }
    if (H5Lget_info(file, part, &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD) return -1;
    return H5Dopen2(file, part, H5P_DEFAULT);
}

/* ---- ranges of elements ------------------------------------------------------------------------------------------ */

dt_err dt_read_at(int fd, const char *path, int64_t offset, void *out, size_t nbytes)
{
    char *p = out;
    for (size_t done = 0; done < nbytes;) {
        /* one call moves less than 2 GiB */
        const size_t ask = nbytes - done < (size_t)1 << 30 ? nbytes - done : (size_t)1 << 30;
        const ssize_t n = pread(fd, p + done, ask, (off_t)(offset + (int64_t)done));
        if (n < 0 && errno == EINTR) continue;
        DT_CHECK(n >= 0, DT_ERR_DATA, "%s: reading at byte %" PRId64 " failed: %s", path, offset + (int64_t)done,
                 strerror(errno));
        DT_CHECK(n > 0, DT_ERR_DATA, "%s: the file ends at byte %" PRId64 ", inside an array", path,
                 offset + (int64_t)done);
        done += (size_t)n;
    }
    return DT_OK;
}

/* A hyperslab of a range: start and count in each dimension, read to the current position of out. */
typedef struct box_reader {
    hid_t dset, type, space;
    const dt_h5_array *a;
    hsize_t start[DT_H5_MAX_DIMS], count[DT_H5_MAX_DIMS];
    char *out;
} box_reader;

static bool read_box(box_reader *r)
{
    hsize_t n = 1;
    for (int d = 0; d < r->a->n_dims; d++) n *= r->count[d];
    hid_t mem = H5Screate_simple(1, &n, NULL);
    const bool ok =
        mem >= 0 &&
        (r->a->n_dims == 0 || H5Sselect_hyperslab(r->space, H5S_SELECT_SET, r->start, NULL, r->count, NULL) >= 0) &&
        H5Dread(r->dset, r->type, mem, r->space, H5P_DEFAULT, r->out) >= 0;
    if (mem >= 0) H5Sclose(mem);
    r->out += n * r->a->elem_size;
    return ok;
}

/* Read elements first .. first+n-1 of the sub-array that the indices of dimensions below d select: the end of a row,
 * whole rows, the start of a row. */
static bool read_boxes(box_reader *r, int d, int64_t first, int64_t n)
{
    if (d >= r->a->n_dims) return n == 0 || read_box(r);
    int64_t row = 1;
    for (int k = d + 1; k < r->a->n_dims; k++) row *= r->a->shape[k];
    while (n > 0) {
        const int64_t in_row = first % row, whole = in_row == 0 ? n / row : 0;
        r->start[d] = (hsize_t)(first / row);
        if (whole > 0) {
            r->count[d] = (hsize_t)whole;
            for (int k = d + 1; k < r->a->n_dims; k++) r->start[k] = 0, r->count[k] = (hsize_t)r->a->shape[k];
            if (!read_box(r)) return false;
            first += whole * row;
            n -= whole * row;
            continue;
        }
        const int64_t part = row - in_row < n ? row - in_row : n;
        r->count[d] = 1;
        if (!read_boxes(r, d + 1, in_row, part)) return false;
        first += part;
        n -= part;
    }
    return true;
}

dt_err dt_h5_read_run(hid_t dset, const char *path, const char *name, const dt_h5_array *a, int64_t first, int64_t n,
                      void *out)
{
    DT_CHECK(first >= 0 && n >= 0 && first <= a->n_elems - n, DT_ERR_ARG,
             "internal: dt_h5_read_run: %s: `%s`: elements %" PRId64 " to %" PRId64
             " are outside the array of %" PRId64,
             path, name, first, first + n, a->n_elems);
    box_reader r = {.dset = dset, .type = memory_type(dset, NULL), .space = H5Dget_space(dset), .a = a, .out = out};
    const bool ok = r.type >= 0 && r.space >= 0 && read_boxes(&r, 0, first, n);
    const dt_err err = ok ? DT_OK : dt_h5_fail(DT_ERR_DATA, path, name);
    if (r.type >= 0) H5Tclose(r.type);
    if (r.space >= 0) H5Sclose(r.space);
    return err;
}

dt_err dt_h5_checksum(hid_t dset, const char *path, const char *name, const dt_h5_array *a, uint64_t *sum)
{
    const int64_t step = VERIFY_BYTES / (int64_t)a->elem_size;
    char *buffer = malloc(VERIFY_BYTES);
    DT_CHECK(buffer, DT_ERR_MEMORY, "out of memory for a buffer of %d bytes", VERIFY_BYTES);
    dt_err err = DT_OK;
    *sum = 0;
    for (int64_t at = 0; at < a->n_elems && err == DT_OK; at += step) {
        const int64_t n = a->n_elems - at < step ? a->n_elems - at : step;
        if ((err = dt_h5_read_run(dset, path, name, a, at, n, buffer)) == DT_OK)
            *sum += dt_checksum(buffer, at, n, a->elem_size);
    }
    free(buffer);
    return err;
}

/* ---- all arrays of a file ---------------------------------------------------------------------------------------- */

typedef struct walk {
    const char *path;
    dt_h5_visit visit;
    void *ctx;
    dt_err err;
} walk;

static dt_err visit_object(const walk *w, hid_t file, const char *name)
{
    enum { MAX_DEPTH = 8 };
    int depth = 0;
    for (const char *c = name; *c; c++) depth += *c == '/';
    DT_CHECK(depth <= MAX_DEPTH, DT_ERR_DATA, "%s: groups are nested too deeply at `%s`", w->path, name);
    hid_t obj = H5Oopen(file, name, H5P_DEFAULT);
    if (obj < 0) return dt_h5_fail(DT_ERR_DATA, w->path, name);
    const dt_err err = H5Iget_type(obj) == H5I_DATASET ? w->visit(obj, name, w->ctx) : DT_OK;
    H5Oclose(obj);
    return err;
}

static herr_t visit_link(hid_t file, const char *name, const H5L_info_t *info, void *ctx)
{
    walk *w = ctx;
    if (info->type == H5L_TYPE_HARD) w->err = visit_object(w, file, name);
    return w->err == DT_OK ? 0 : -1;
}

/* H5Lvisit enters each group once, so cycles of hard links end. */
dt_err dt_h5_each_array(hid_t file, const char *path, dt_h5_visit visit, void *ctx)
{
    walk w = {.path = path, .visit = visit, .ctx = ctx};
    if (H5Lvisit(file, H5_INDEX_NAME, H5_ITER_INC, visit_link, &w) < 0 && w.err == DT_OK)
        w.err = dt_h5_fail(DT_ERR_DATA, path, "its contents cannot be listed");
    return w.err;
}
