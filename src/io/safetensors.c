/* safetensors.c - the header of one file. Every entry is validated against the file's length and its neighbours. */
#include "safetensors_private.h"
#include "dtrain/io/io.h"
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_HEADER = 100000000 }; /* bytes: the format's own limit */

static const struct dtype {
    const char *name;
    int bits;
    dt_st_type type;
} DTYPES[] = {
    {"F32", 32, DT_ST_F32},      {"F16", 16, DT_ST_F16},          {"BF16", 16, DT_ST_BF16},
    {"F64", 64, DT_ST_OTHER},    {"I64", 64, DT_ST_OTHER},        {"I32", 32, DT_ST_OTHER},
    {"I16", 16, DT_ST_OTHER},    {"I8", 8, DT_ST_OTHER},          {"U64", 64, DT_ST_OTHER},
    {"U32", 32, DT_ST_OTHER},    {"U16", 16, DT_ST_OTHER},        {"U8", 8, DT_ST_OTHER},
    {"BOOL", 8, DT_ST_OTHER},    {"F8_E4M3", 8, DT_ST_OTHER},     {"F8_E5M2", 8, DT_ST_OTHER},
    {"F8_E8M0", 8, DT_ST_OTHER}, {"F8_E4M3FNUZ", 8, DT_ST_OTHER}, {"F8_E5M2FNUZ", 8, DT_ST_OTHER},
    {"F6_E2M3", 6, DT_ST_OTHER}, {"F6_E3M2", 6, DT_ST_OTHER},     {"F4", 4, DT_ST_OTHER},
    {"C64", 64, DT_ST_OTHER},
};
enum { N_DTYPES = sizeof DTYPES / sizeof DTYPES[0] };

static dt_err bad(const char *path, const char *name, const char *key, const json_t *value, const char *expected)
{
    char *found = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    const dt_err err = dt_fail(DT_ERR_DATA, "%s: tensor `%.200s`: %s: expected %s, found %.100s", path, name, key,
                               expected, found ? found : "nothing");
    free(found);
    return err;
}

static dt_err read_dtype(const char *path, const json_t *entry, dt_st_tensor *t, int *bits)
{
    const json_t *v = json_object_get(entry, "dtype");
    const char *word = json_string_value(v);
    for (int i = 0; word && i < N_DTYPES; i++) {
        if (strcmp(word, DTYPES[i].name) != 0) continue;
        t->dtype = DTYPES[i].name;
        t->type = DTYPES[i].type;
        *bits = DTYPES[i].bits;
        return DT_OK;
    }
    return bad(path, t->name, "dtype", v, "a data type of the format (F32, F16, BF16, ...)");
}

/* bits: per element. Computes n_elems and nbytes. */
static dt_err read_shape(const char *path, const json_t *entry, dt_st_tensor *t, int bits)
{
    const json_t *v = json_object_get(entry, "shape");
    const size_t n = json_array_size(v);
    if (!json_is_array(v) || n > DT_ST_MAX_DIMS) return bad(path, t->name, "shape", v, "a list of at most 8 sizes");
    const int64_t most = INT64_MAX / 64;
    t->n_dims = (int)n;
    t->n_elems = 1;
    for (size_t d = 0; d < n; d++) {
        const json_t *size = json_array_get(v, d);
        const json_int_t len = json_integer_value(size);
        if (!json_is_integer(size) || len < 0 || len > most)
            return bad(path, t->name, "shape", v, "sizes of at least 0");
        if (len > 0 && t->n_elems > most / len) return bad(path, t->name, "shape", v, "fewer than 2^57 elements");
        t->shape[d] = len;
        t->n_elems *= len;
    }
    if (t->n_elems * bits % 8 != 0) return bad(path, t->name, "shape", v, "a whole number of bytes");
    t->nbytes = t->n_elems * bits / 8;
    return DT_OK;
}

static dt_err read_offsets(const char *path, const json_t *entry, dt_st_tensor *t)
{
    const json_t *v = json_object_get(entry, "data_offsets"), *begin = json_array_get(v, 0),
                 *end = json_array_get(v, 1);
    const json_int_t b = json_integer_value(begin), e = json_integer_value(end);
    char expected[96];
    snprintf(expected, sizeof expected, "begin and end, %" PRId64 " bytes apart for %s and this shape", t->nbytes,
             t->dtype);
    if (json_array_size(v) != 2 || !json_is_integer(begin) || !json_is_integer(end) || b < 0 || e < b ||
        e - b != t->nbytes)
        return bad(path, t->name, "data_offsets", v, expected);
    t->offset = b; /* relative to the start of the data until the header is complete */
    return DT_OK;
}

static dt_err read_entry(const char *path, const char *name, const json_t *entry, dt_st_tensor *t)
{
    int bits = 0;
    DT_COPY_TEXT(t->name, name, "%s: out of memory for the name of a tensor", path);
    if (!json_is_object(entry)) return bad(path, name, "entry", entry, "an object");
    DT_TRY(read_dtype(path, entry, t, &bits));
    DT_TRY(read_shape(path, entry, t, bits));
    return read_offsets(path, entry, t);
}

/* ---- coverage of the file ---------------------------------------------------------------------------------------- */

static int by_offset(const void *a, const void *b)
{
    const dt_st_tensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->nbytes > y->nbytes) - (x->nbytes < y->nbytes);
}

/* Each data byte must belong to exactly one tensor. */
static dt_err check_cover(const char *path, dt_st_tensor *t, int n, int64_t data_len)
{
    int64_t end = 0;
    qsort(t, (size_t)n, sizeof *t, by_offset);
    for (int i = 0; i < n; i++) {
        DT_CHECK(t[i].offset == end, DT_ERR_DATA,
                 "%s: tensor `%.200s`: its data begins at byte %" PRId64 ", but the previous tensor ends at %" PRId64
                 ": %s",
                 path, t[i].name, t[i].offset, end, t[i].offset < end ? "they overlap" : "there is a gap");
        end = t[i].offset + t[i].nbytes;
        DT_CHECK(end <= data_len, DT_ERR_DATA,
                 "%s: tensor `%.200s`: its data ends at byte %" PRId64 ", but the file has %" PRId64
                 " bytes: it was cut short",
                 path, t[i].name, end, data_len);
    }
    DT_CHECK(end == data_len, DT_ERR_DATA, "%s: found %" PRId64 " bytes after the last tensor", path, data_len - end);
    return DT_OK;
}

static dt_err read_header(int fd, const char *path, json_t **root, int64_t *data_at, int64_t *data_len)
{
    struct stat st;
    uint8_t raw[8];
    uint64_t len = 0;
    char header[PATH_MAX + 16];
    DT_CHECK(fstat(fd, &st) == 0 && S_ISREG(st.st_mode), DT_ERR_DATA, "%s: expected a regular file", path);
    DT_TRY(dt_refuse_stand_in_file(path, fd));
    DT_CHECK(st.st_size >= 8, DT_ERR_DATA, "%s: not a safetensors file: it has only %lld bytes", path,
             (long long)st.st_size);
    DT_TRY(dt_read_at(fd, path, 0, raw, sizeof raw));
    for (int i = 0; i < 8; i++) len |= (uint64_t)raw[i] << 8 * i;
    DT_CHECK(len >= 2 && len <= MAX_HEADER, DT_ERR_DATA,
             "%s: expected a safetensors header of 2 to %d bytes, found %" PRIu64, path, (int)MAX_HEADER, len);
    DT_CHECK(len <= (uint64_t)st.st_size - 8, DT_ERR_DATA,
             "%s: the file was cut short: expected a header of %" PRIu64 " bytes, found a file of %lld", path, len,
             (long long)st.st_size);

    char *text = malloc(len);
    DT_CHECK(text, DT_ERR_MEMORY, "%s: out of memory for the header of %" PRIu64 " bytes", path, len);
    dt_err err = dt_read_at(fd, path, 8, text, len);
    snprintf(header, sizeof header, "%s: header", path);
    if (err == DT_OK) err = dt_json_parse(root, header, text, len, 0);
    free(text);
    *data_at = 8 + (int64_t)len;
    *data_len = (int64_t)st.st_size - *data_at;
    return err;
}

static dt_err read_entries(const char *path, const json_t *root, dt_st_tensor **tensors, int *n)
{
    const char *name;
    json_t *entry;
    DT_CHECK(json_is_object(root), DT_ERR_DATA, "%s: header: expected an object", path);
    *tensors = calloc(json_object_size(root) + 1, sizeof **tensors);
    DT_CHECK(*tensors, DT_ERR_MEMORY, "%s: out of memory for %zu tensors", path, json_object_size(root));
    json_object_foreach((json_t *)root, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) {
            DT_CHECK(json_is_object(entry), DT_ERR_DATA, "%s: header: __metadata__: expected an object", path);
            continue;
        }
        DT_TRY(read_entry(path, name, entry, &(*tensors)[(*n)++]));
    }
    return DT_OK;
}

dt_err dt_st_read_file(const char *path, dt_st_tensor **tensors, int *n)
{
    json_t *root = NULL;
    int64_t data_at = 0, data_len = 0;
    *tensors = NULL;
    *n = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    DT_CHECK_ERRNO(fd >= 0, DT_ERR_DATA, path, "cannot be opened");
    dt_err err = read_header(fd, path, &root, &data_at, &data_len);
    if (err == DT_OK) err = read_entries(path, root, tensors, n);
    if (err == DT_OK) err = check_cover(path, *tensors, *n, data_len);
    for (int i = 0; i < *n; i++) (*tensors)[i].offset += data_at;
    json_decref(root);
    close(fd);
    return err;
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

static dt_err read_elements(int fd, const char *path, const dt_st_tensor *t, int64_t first, int64_t n, dt_st_type to,
                            char *out)
{
    enum { CHUNK = 1 << 16 };
    uint32_t raw[CHUNK];
    const size_t size = dt_st_type_size(t->type);
    for (int64_t at = 0; at < n; at += CHUNK) {
        const int64_t some = n - at < CHUNK ? n - at : CHUNK;
        DT_TRY(dt_read_at(fd, path, t->offset + (first + at) * (int64_t)size, raw, (size_t)some * size));
        dt_st_convert(raw, t->type, out + (size_t)at * dt_st_type_size(to), to, some);
    }
    return DT_OK;
}

dt_err dt_safetensors_read(const dt_safetensors *s, const dt_st_tensor *t, int64_t first, int64_t n, dt_dtype dtype,
                           void *out)
{
    const char *path = s->files[t->file];
    DT_CHECK(first >= 0 && n >= 0 && first <= t->n_elems && n <= t->n_elems - first, DT_ERR_ARG,
             "internal: dt_safetensors_read: %s: tensor `%.200s`: elements %" PRId64 " to %" PRId64
             " are outside its %" PRId64,
             path, t->name, first, first + n, t->n_elems);
    DT_CHECK(t->type != DT_ST_OTHER, DT_ERR_DATA, "%s: tensor `%.200s`: expected F32, F16 or BF16, found %s", path,
             t->name, t->dtype);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    DT_CHECK_ERRNO(fd >= 0, DT_ERR_DATA, path, "cannot be opened");
    const dt_err err = read_elements(fd, path, t, first, n, dt_st_type_of(dtype), out);
    close(fd);
    return err;
}
