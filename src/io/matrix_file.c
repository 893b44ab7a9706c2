/* matrix_file.c - contiguous matrices are read by pread. Ranks then share the file's page cache, and need not hold a
 * matrix that is larger than a node's memory.
 *
 * Source   NumPy Enhancement Proposal 1 and numpy.lib.format: magic, version, length, and a Python dictionary. */
#include "dtrain/io/matrix_file.h"
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_HEADER = 1 << 16, MAGIC = 8 };
static const char NPY_MAGIC[] = "\x93NUMPY", HDF5_MAGIC[] = "\x89HDF\r\n\x1a\n";

/* ---- NumPy ------------------------------------------------------------------------------------------------------- */

void dt_npy_header(int64_t n, int64_t width, char out[DT_NPY_HEADER])
{
    const uint16_t len = DT_NPY_HEADER - 10;
    memset(out, ' ', DT_NPY_HEADER);
    memcpy(out, NPY_MAGIC, 6);
    out[6] = 1, out[7] = 0, out[8] = (char)(len & 0xff), out[9] = (char)(len >> 8);
    char text[DT_NPY_HEADER];
    const int k = snprintf(text, sizeof text,
                           "{'descr': '<f4', 'fortran_order': False, 'shape': (%" PRId64 ", %" PRId64 "), }", n, width);
    memcpy(out + 10, text, (size_t)k);
    out[DT_NPY_HEADER - 1] = '\n';
}

/* The value of a key of the dictionary, after its colon and blanks; NULL: the key is missing. */
static const char *value_of(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    if (!at) return NULL;
    for (at += strlen(key); *at == ' ' || *at == ':'; at++) continue;
    return at;
}

static dt_err parse_header(dt_matrix_file *r, const char *text)
{
    static const struct {
        const char *word;
        dt_h5_type type;
        size_t size;
    } types[] = {{"'<f4'", DT_H5_F32, 4}, {"'<f8'", DT_H5_F64, 8}, {"'<f2'", DT_H5_F16, 2}};
    const char *type = value_of(text, "'descr'"), *order = value_of(text, "'fortran_order'"),
               *shape = value_of(text, "'shape'");
    DT_CHECK(type && order && shape, DT_ERR_DATA,
             "%s: not a NumPy array: its header lacks descr, fortran_order or shape", r->path);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strncmp(type, types[i].word, 5) == 0) r->type = types[i].type, r->elem_size = types[i].size;
    DT_CHECK(r->type != DT_H5_OTHER, DT_ERR_DATA,
             "%s: expected elements of type '<f4', '<f8' or '<f2' (fp32, fp64, fp16), found %.12s", r->path, type);
    DT_CHECK(strncmp(order, "False", 5) == 0, DT_ERR_DATA,
             "%s: expected an array in row-major order, found column-major; save it with numpy.ascontiguousarray",
             r->path);
    int end = 0; /* end of the pair in whichever form matches completely */
    sscanf(shape, "(%" SCNd64 " , %" SCNd64 " )%n", &r->n, &r->width, &end);
    if (end == 0) sscanf(shape, "(%" SCNd64 " , %" SCNd64 " , )%n", &r->n, &r->width, &end);
    DT_CHECK(end > 0, DT_ERR_DATA, "%s: expected an array of two dimensions, found one of shape %.40s", r->path, shape);
    return DT_OK;
}

static dt_err open_npy(dt_matrix_file *r, int64_t file_size)
{
    unsigned char head[12];
    DT_TRY(dt_read_at(r->fd, r->path, 0, head, sizeof head));
    const bool long_length = head[6] > 1;
    const size_t len = long_length ? head[8] | (size_t)head[9] << 8 | (size_t)head[10] << 16 | (size_t)head[11] << 24
                                   : head[8] | (size_t)head[9] << 8;
    DT_CHECK(head[6] >= 1 && head[6] <= 3 && len <= MAX_HEADER, DT_ERR_DATA,
             "%s: unsupported NumPy format: version %d with a header of %zu bytes", r->path, head[6], len);
    char *text = calloc(len + 1, 1);
    DT_CHECK(text, DT_ERR_MEMORY, "%s: out of memory for the header", r->path);
    r->offset = (long_length ? 12 : 10) + (int64_t)len;
    dt_err err = dt_read_at(r->fd, r->path, long_length ? 12 : 10, text, len);
    if (err == DT_OK) err = parse_header(r, text);
    free(text);
    DT_TRY(err);
    int64_t nbytes;
    const bool fits = r->n >= 0 && r->width >= 0 && !__builtin_mul_overflow(r->n, r->width, &nbytes) &&
                      !__builtin_mul_overflow(nbytes, (int64_t)r->elem_size, &nbytes) &&
                      nbytes <= file_size - r->offset;
    DT_CHECK(fits, DT_ERR_DATA,
             "%s: the file was cut short: %" PRId64 " x %" PRId64 " values do not fit in its %" PRId64 " bytes",
             r->path, r->n, r->width, file_size);
    return DT_OK;
}

/* ---- HDF5 -------------------------------------------------------------------------------------------------------- */

struct search {
    const char *path;
    char *name;
    int n_found;
};

static dt_err look_at(hid_t dset, const char *name, void *ctx)
{
    struct search *s = ctx;
    dt_h5_array a;
    if (dt_h5_inspect(dset, s->path, name, &a) != DT_OK) {
        dt_error_clear(); /* other types, such as text, are skipped */
        return DT_OK;
    }
    if (a.n_dims != 2 || a.type > DT_H5_F64) return DT_OK;
    if (++s->n_found > 1) return DT_OK;
    DT_COPY_TEXT(s->name, name, "%s: out of memory", s->path);
    return DT_OK;
}

static dt_err open_h5(dt_matrix_file *r, const char *array)
{
    struct search s = {.path = r->path};
    DT_TRY(dt_h5_open(r->path, &r->file, NULL));
    if (array)
        r->name = strdup(array);
    else
        DT_TRY(dt_h5_each_array(r->file, r->path, look_at, &s));
    if (!array) r->name = s.name;
    DT_CHECK(array || s.n_found == 1, DT_ERR_DATA,
             "%s: expected one two-dimensional floating-point array, found %d; give the name of one", r->path,
             s.n_found);
    DT_CHECK(r->name, DT_ERR_MEMORY, "%s: out of memory", r->path);
    r->dset = dt_h5_open_array(r->file, r->name);
    DT_CHECK(r->dset >= 0, DT_ERR_DATA, "%s: array `%s` is missing", r->path, r->name);
    DT_TRY(dt_h5_inspect(r->dset, r->path, r->name, &r->array));
    DT_CHECK(r->array.n_dims == 2 && r->array.type <= DT_H5_F64, DT_ERR_DATA,
             "%s: `%s`: expected a two-dimensional floating-point array, found %d dimensions of %s", r->path, r->name,
             r->array.n_dims, dt_h5_type_name(r->array.type));
    r->n = r->array.shape[0], r->width = r->array.shape[1];
    r->type = r->array.type, r->elem_size = r->array.elem_size, r->offset = r->array.offset;
    return DT_OK;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static dt_err open_by_magic(dt_matrix_file *r, const char *array)
{
    char magic[MAGIC] = "";
    struct stat st;
    DT_CHECK_ERRNO(fstat(r->fd, &st) == 0, DT_ERR_DATA, r->path, NULL);
    DT_CHECK(S_ISREG(st.st_mode), DT_ERR_DATA, "%s: expected a regular file", r->path);
    if (st.st_size >= 12) DT_TRY(dt_read_at(r->fd, r->path, 0, magic, sizeof magic));
    if (memcmp(magic, NPY_MAGIC, 6) == 0) {
        DT_CHECK(!array, DT_ERR_DATA, "%s: a NumPy file has no named array; remove the name `%s`", r->path, array);
        return open_npy(r, st.st_size);
    }
    DT_CHECK(memcmp(magic, HDF5_MAGIC, MAGIC) == 0, DT_ERR_DATA,
             "%s: expected a NumPy array (.npy) or an HDF5 file, found neither", r->path);
    dt_h5_lock();
    const dt_err err = open_h5(r, array);
    dt_h5_unlock();
    return err;
}

dt_err dt_matrix_file_open(dt_matrix_file *r, const char *path, const char *array)
{
    *r = (dt_matrix_file){.path = path, .file = -1, .dset = -1, .is_open = true};
    r->fd = open(path, O_RDONLY | O_CLOEXEC);
    DT_CHECK_ERRNO(r->fd >= 0, DT_ERR_DATA, path, "cannot read");
    DT_TRY(open_by_magic(r, array));
    DT_CHECK(r->n > 0 && r->width > 0, DT_ERR_DATA, "%s: the array is empty (%" PRId64 " x %" PRId64 ")", path, r->n,
             r->width);
    r->raw_nbytes = (size_t)r->width * r->elem_size;
    r->raw = malloc(r->raw_nbytes);
    DT_CHECK(r->raw, DT_ERR_MEMORY, "%s: out of memory for a row of %zu bytes", path, r->raw_nbytes);
    return DT_OK;
}

static float number(const dt_matrix_file *r, int64_t i)
{
    switch (r->type) {
    case DT_H5_F64:
        return (float)((const double *)r->raw)[i];
    case DT_H5_F32:
        return ((const float *)r->raw)[i];
    case DT_H5_F16:
        return dt_f16_to_float(((const uint16_t *)r->raw)[i]);
    default:
        return dt_bf16_to_float(((const uint16_t *)r->raw)[i]);
    }
}

static dt_err read_row(dt_matrix_file *r, int64_t row)
{
    if (r->offset >= 0)
        return dt_read_at(r->fd, r->path, r->offset + row * (int64_t)r->raw_nbytes, r->raw, r->raw_nbytes);
    dt_h5_lock();
    const dt_err err = dt_h5_read_run(r->dset, r->path, r->name, &r->array, row * r->width, r->width, r->raw);
    dt_h5_unlock();
    return err;
}

dt_err dt_matrix_file_read(dt_matrix_file *r, int64_t first, int64_t n, float *out)
{
    DT_CHECK(first >= 0 && n >= 0 && first <= r->n - n, DT_ERR_ARG,
             "internal: dt_matrix_file_read: %s: rows %" PRId64 " to %" PRId64 " are outside the array of %" PRId64,
             r->path, first, first + n, r->n);
    for (int64_t i = 0; i < n; i++) {
        DT_TRY(read_row(r, first + i));
        float *row = out + i * r->width;
        for (int64_t c = 0; c < r->width; c++) {
            row[c] = number(r, c);
            DT_CHECK(isfinite(row[c]), DT_ERR_DATA,
                     "%s: row %" PRId64 ", column %" PRId64 " (from 0): expected a finite number, found %g", r->path,
                     first + i, c, dt_unsigned_nan((double)row[c]));
        }
    }
    return DT_OK;
}

void dt_matrix_file_close(dt_matrix_file *r)
{
    if (!r->is_open) return;
    dt_h5_lock();
    if (r->dset >= 0) H5Dclose(r->dset);
    if (r->file >= 0) H5Fclose(r->file);
    dt_h5_unlock();
    if (r->fd >= 0) close(r->fd);
    free(r->raw);
    free(r->name);
    *r = (dt_matrix_file){0};
}
