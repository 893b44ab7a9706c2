/* hdf5.c - HDF5's lock and messages, and attributes, which are validated before use.
 *
 * Text is written as a fixed-length UTF-8 string. Such strings are stored in object headers, which have checksums in
 * files of the 1.8 format. A variable-length string is stored in a heap without a checksum, where a flipped bit made
 * HDF5 1.10 loop forever. In older formats a header holds at most 64 KiB, so longer text is written with variable
 * length there. Both forms can be read.
 *
 * Numbers are read through the widest type of their own signedness, because HDF5 silently clips values that do not
 * fit. */
#include "dtrain/io/io.h"
#include "dtrain/io/seal.h"
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_TEXT = 256 << 20 }; /* bytes; a longer attribute is treated as corrupt */
enum { HEADER_TEXT = 60000 };  /* bytes of text that fit an object header of the old format */

static pthread_mutex_t h5_mutex = PTHREAD_MUTEX_INITIALIZER;

void dt_h5_lock(void)
{
    pthread_mutex_lock(&h5_mutex);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

void dt_h5_unlock(void) { pthread_mutex_unlock(&h5_mutex); }

/* The walk starts at the innermost entry, which names the cause. HDF5 adds outer messages ("can't open file"). */
static herr_t take_first(unsigned n, const H5E_error2_t *e, void *out)
{
    char *text = out;
    if (n == 0 && e->desc) snprintf(text, 400, "%s", e->desc);
    return 0;
}

dt_err(dt_h5_fail)(dt_err err, const char *path, const char *what)
{
    char text[400] = "";
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first, text);
    H5Eclear2(H5E_DEFAULT);
    return dt_fail(err, "%s: %s%s%s", path, what, text[0] ? ": " : "", text);
}

/* Checks the raw bytes first, because HDF5 may crash on corrupt metadata. */
dt_err dt_h5_check_seal(const char *path, bool *sealed)
{
    struct stat st;
    *sealed = false;
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    DT_CHECK_ERRNO(fd >= 0, DT_ERR_DATA, path, "cannot be opened");
    dt_err err = DT_OK;
    if (fstat(fd, &st) != 0)
        err = dt_fail_errno(DT_ERR_DATA, path, NULL);
    else if (!S_ISREG(st.st_mode))
        err = dt_fail(DT_ERR_DATA, "%s: expected an HDF5 file, found a %s", path,
                      S_ISDIR(st.st_mode) ? "directory" : "special file");
    else if ((err = dt_refuse_stand_in_file(path, fd)) == DT_OK)
        err = dt_seal_check(fd, path, (int64_t)st.st_size, sealed);
    close(fd);
    return err;
}

static dt_err open_file(const char *path, hid_t *file)
{
    DT_CHECK(H5Fis_hdf5(path) != 0, DT_ERR_DATA,
             "%s: expected an HDF5 file, found another format or a damaged beginning", path);
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (access >= 0 && H5Pset_file_locking(access, false, true) >= 0) *file = H5Fopen(path, H5F_ACC_RDONLY, access);
    const dt_err err = *file >= 0
                           ? DT_OK
                           : dt_h5_fail(DT_ERR_DATA, path,
                                        "cannot be opened: the file was cut short, is damaged, or needs a later HDF5");
    if (access >= 0) H5Pclose(access);
    return err;
}

dt_err dt_h5_open(const char *path, hid_t *file, bool *sealed)
{
    bool has_seal;
    *file = -1;
    DT_TRY(dt_h5_check_seal(path, &has_seal));
    DT_TRY(open_file(path, file));
    if (sealed) *sealed = has_seal;
    if (has_seal || !dt_h5_has(*file, "sealed")) return DT_OK;
    H5Fclose(*file);
    *file = -1;
    return dt_fail(DT_ERR_DATA,
                   "%s: the checksum of the header is missing: the file was cut short or changed by another program; "
                   "restore or recreate it (after an intended change, delete its attribute `sealed`)",
                   path);
}

bool dt_h5_has(hid_t obj, const char *name) { return H5Aexists(obj, name) > 0; }

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct attribute {
    hid_t id, type;
    H5T_class_t class;
} attribute;

static void close_attribute(attribute *a)
{
    if (a->type >= 0) H5Tclose(a->type);
    if (a->id >= 0) H5Aclose(a->id);
}

static dt_err fail_attribute(dt_err err, const char *path, const char *name, const char *done)
{
    char what[200];
    snprintf(what, sizeof what, "attribute `%s` cannot be %s", name, done);
    return dt_h5_fail(err, path, what);
}

/* A scalar, or an array with one element, as some programs write scalars. */
static bool is_single(hid_t attr)
{
    hid_t space = H5Aget_space(attr);
    if (space < 0) return false;
    const bool single = H5Sget_simple_extent_type(space) != H5S_NULL && H5Sget_simple_extent_npoints(space) == 1;
    H5Sclose(space);
    return single;
}

static dt_err open_attribute(hid_t obj, const char *path, const char *name, attribute *a)
{
    *a = (attribute){.id = -1, .type = -1};
    const htri_t there = H5Aexists(obj, name);
    if (there == 0) return dt_fail(DT_ERR_DATA, "%s: attribute `%s` is missing", path, name);
    if (there > 0) a->id = H5Aopen(obj, name, H5P_DEFAULT);
    if (a->id >= 0) a->type = H5Aget_type(a->id);
    if (a->type < 0) {
        const dt_err err = fail_attribute(DT_ERR_DATA, path, name, "opened");
        close_attribute(a);
        return err;
    }
    a->class = H5Tget_class(a->type);
    if (is_single(a->id)) return DT_OK;
    close_attribute(a);
    return dt_fail(DT_ERR_DATA, "%s: attribute `%s`: expected one value, found an array", path, name);
}

static dt_err read_variable_text(const attribute *a, const char *path, const char *name, char **text)
{
    char *inside = NULL; /* HDF5's allocation, NULL for an empty string */
    if (H5Aread(a->id, a->type, &inside) < 0) return fail_attribute(DT_ERR_DATA, path, name, "read");
    *text = strdup(inside ? inside : "");
    if (inside) H5free_memory(inside);
    return *text ? DT_OK : dt_fail(DT_ERR_MEMORY, "%s: attribute `%s`: out of memory for its text", path, name);
}

static dt_err read_fixed_text(const attribute *a, const char *path, const char *name, char **text)
{
    const size_t size = H5Tget_size(a->type);
    DT_CHECK(size > 0 && size <= MAX_TEXT && H5Aget_storage_size(a->id) == size, DT_ERR_DATA,
             "%s: attribute `%s`: the file is damaged: found a text of %zu bytes", path, name, size);
    char *t = calloc(size + 1, 1);
    DT_CHECK(t, DT_ERR_MEMORY, "%s: attribute `%s`: out of memory for %zu bytes", path, name, size);
    if (H5Aread(a->id, a->type, t) < 0) {
        free(t);
        return fail_attribute(DT_ERR_DATA, path, name, "read");
    }
    if (H5Tget_strpad(a->type) == H5T_STR_SPACEPAD)
        for (size_t n = strlen(t); n > 0 && t[n - 1] == ' ';) t[--n] = '\0';
    *text = t;
    return DT_OK;
}

dt_err dt_h5_read_text(hid_t obj, const char *path, const char *name, char **text)
{
    attribute a;
    *text = NULL;
    DT_TRY(open_attribute(obj, path, name, &a));
    dt_err err;
    if (a.class != H5T_STRING)
        err = dt_fail(DT_ERR_DATA, "%s: attribute `%s`: expected a text", path, name);
    else if (H5Tis_variable_str(a.type) > 0)
        err = read_variable_text(&a, path, name, text);
    else
        err = read_fixed_text(&a, path, name, text);
    close_attribute(&a);
    return err;
}

/* An integer attribute as sign and magnitude, so that nothing is clipped. */
static dt_err read_integer(hid_t obj, const char *path, const char *name, bool *negative, uint64_t *magnitude)
{
    attribute a;
    DT_TRY(open_attribute(obj, path, name, &a));
    dt_err err = DT_OK;
    int64_t value = 0;
    *negative = false;
    if (a.class != H5T_INTEGER || H5Tget_size(a.type) > 8)
        err = dt_fail(DT_ERR_DATA, "%s: attribute `%s`: expected an integer of at most 64 bits", path, name);
    else if (H5Tget_sign(a.type) == H5T_SGN_NONE)
        err = H5Aread(a.id, H5T_NATIVE_UINT64, magnitude) < 0 ? fail_attribute(DT_ERR_DATA, path, name, "read") : DT_OK;
    else if (H5Aread(a.id, H5T_NATIVE_INT64, &value) < 0)
        err = fail_attribute(DT_ERR_DATA, path, name, "read");
    else {
        *negative = value < 0;
        *magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    }
    close_attribute(&a);
    return err;
}

dt_err dt_h5_read_u64(hid_t obj, const char *path, const char *name, uint64_t *value)
{
    bool negative;
    DT_TRY(read_integer(obj, path, name, &negative, value));
    DT_CHECK(!negative, DT_ERR_DATA, "%s: attribute `%s`: expected 0 or more, found -%" PRIu64, path, name, *value);
    return DT_OK;
}

dt_err dt_h5_read_i64(hid_t obj, const char *path, const char *name, int64_t *value)
{
    bool negative;
    uint64_t magnitude;
    DT_TRY(read_integer(obj, path, name, &negative, &magnitude));
    DT_CHECK(negative || magnitude <= INT64_MAX, DT_ERR_DATA, "%s: attribute `%s`: %" PRIu64 " is too large", path,
             name, magnitude);
    *value = negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    return DT_OK;
}

dt_err dt_h5_read_f64(hid_t obj, const char *path, const char *name, double *value)
{
    attribute a;
    DT_TRY(open_attribute(obj, path, name, &a));
    dt_err err = DT_OK;
    if ((a.class != H5T_FLOAT && a.class != H5T_INTEGER) || H5Tget_size(a.type) > 8)
        err = dt_fail(DT_ERR_DATA, "%s: attribute `%s`: expected a number", path, name);
    else if (H5Aread(a.id, H5T_NATIVE_DOUBLE, value) < 0)
        err = fail_attribute(DT_ERR_DATA, path, name, "read");
    close_attribute(&a);
    return err;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Overwrite an attribute of the same name. If dtrain wrote it, its type is the same. */
static dt_err write_attribute(hid_t obj, const char *path, const char *name, hid_t file_type, hid_t mem_type,
                              const void *value)
{
    hid_t space = H5Screate(H5S_SCALAR), attr = -1;
    dt_err err = DT_OK;
    if (space >= 0)
        attr = H5Aexists(obj, name) > 0 ? H5Aopen(obj, name, H5P_DEFAULT)
                                        : H5Acreate2(obj, name, file_type, space, H5P_DEFAULT, H5P_DEFAULT);
    if (attr < 0 || H5Awrite(attr, mem_type, value) < 0) err = fail_attribute(DT_ERR_WRITE, path, name, "written");
    if (attr >= 0 && H5Aclose(attr) < 0 && err == DT_OK) err = fail_attribute(DT_ERR_WRITE, path, name, "written");
    if (space >= 0) H5Sclose(space);
    return err;
}

static dt_err write_text_of_size(hid_t obj, const char *path, const char *name, size_t size, const void *value)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    dt_err err;
    if (type < 0 || H5Tset_size(type, size) < 0 || H5Tset_cset(type, H5T_CSET_UTF8) < 0)
        err = dt_h5_fail(DT_ERR_FAULT, path, "no text type");
    else
        err = write_attribute(obj, path, name, type, type, value);
    if (type >= 0) H5Tclose(type);
    return err;
}

/* In HDF5's first format an object header cannot store attributes above 64 KiB. */
static bool has_old_header(hid_t obj)
{
#if H5_VERSION_GE(1, 12, 0)
    H5O_native_info_t info;
    return H5Oget_native_info(obj, &info, H5O_NATIVE_INFO_HDR) < 0 || info.hdr.version < 2;
#else
    H5O_info_t info;
    return H5Oget_info2(obj, &info, H5O_INFO_HDR) < 0 || info.hdr.version < 2;
#endif
}

dt_err dt_h5_write_text(hid_t obj, const char *path, const char *name, const char *text)
{
    const size_t size = strlen(text) + 1;
    if (H5Aexists(obj, name) > 0) H5Adelete(obj, name); /* its length may differ */
    if (has_old_header(obj) && size > HEADER_TEXT) return write_text_of_size(obj, path, name, H5T_VARIABLE, &text);
    return write_text_of_size(obj, path, name, size, text);
}

dt_err dt_h5_write_u64(hid_t obj, const char *path, const char *name, uint64_t value)
{
    return write_attribute(obj, path, name, H5T_STD_U64LE, H5T_NATIVE_UINT64, &value);
}

dt_err dt_h5_write_i64(hid_t obj, const char *path, const char *name, int64_t value)
{
    return write_attribute(obj, path, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
}

dt_err dt_h5_write_f64(hid_t obj, const char *path, const char *name, double value)
{
    return write_attribute(obj, path, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value);
}
