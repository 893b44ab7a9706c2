/* known_file.c - HDF5 files of known log-probabilities. HDF5 only creates and describes them: both arrays are
 * contiguous and allocated when the file is created. Every rank writes and reads its targets at known offsets. */
#include "dtrain/data/known.h"
#include "dtrain/io/io.h"
#include "dtrain/io/seal.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char FORMAT[] = "dtrain-logprobs";
enum { VERSION = 1, N_ARRAYS = 2, CHUNK = 1 << 16 };
static const char *const names[N_ARRAYS] = {"/tokens", "/logprobs"};

uint64_t dt_known_key(const dt_loader *l)
{
    return dt_loader_fingerprint(l) ^ dt_mix64((uint64_t)dt_loader_info(l)->n_samples);
}

int64_t dt_known_index(const dt_loader *l, int64_t *first)
{
    const int64_t n = dt_loader_info(l)->n_samples;
    int64_t n_targets = 0;
    for (int64_t i = 0; i < n; i++) {
        if (first) first[i] = n_targets;
        n_targets += dt_loader_n_target(l, i);
    }
    if (first) first[n] = n_targets;
    return n_targets;
}

/* ---- attributes -------------------------------------------------------------------------------------------------- */

static dt_err write_attributes(hid_t file, const char *path, const dt_known_info *x)
{
    DT_TRY(dt_h5_write_text(file, path, "format", FORMAT));
    DT_TRY(dt_h5_write_i64(file, path, "version", VERSION));
    DT_TRY(dt_h5_write_i64(file, path, "sealed", 1));
    DT_TRY(dt_h5_write_i64(file, path, "vocab_size", x->vocab_size));
    DT_TRY(dt_h5_write_i64(file, path, "seq_len", x->seq_len));
    DT_TRY(dt_h5_write_f64(file, path, "temperature", x->temperature));
    return dt_h5_write_u64(file, path, "data", x->data);
}

static dt_err read_attributes(hid_t file, const char *path, dt_known_info *x)
{
    char *format = NULL;
    int64_t version = 0;
    dt_err err = dt_h5_read_text(file, path, "format", &format);
    if (err == DT_OK && strcmp(format, FORMAT) != 0)
        err = dt_fail(DT_ERR_DATA, "%s: format: expected %s, found %s", path, FORMAT, format);
    free(format);
    DT_TRY(err);
    DT_TRY(dt_h5_read_i64(file, path, "version", &version));
    DT_CHECK(version == VERSION, DT_ERR_DATA, "%s: version: expected %d, found %" PRId64, path, (int)VERSION, version);
    DT_TRY(dt_h5_read_i64(file, path, "vocab_size", &x->vocab_size));
    DT_TRY(dt_h5_read_i64(file, path, "seq_len", &x->seq_len));
    DT_TRY(dt_h5_read_f64(file, path, "temperature", &x->temperature));
    return dt_h5_read_u64(file, path, "data", &x->data);
}

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

static dt_err create_array(hid_t file, const char *path, int i, const dt_known_info *x)
{
    const hsize_t dims[2] = {(hsize_t)x->n_targets, (hsize_t)x->k};
    const hid_t plist = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(2, dims, NULL);
    const bool ready = plist >= 0 && space >= 0 && H5Pset_layout(plist, H5D_CONTIGUOUS) >= 0 &&
                       H5Pset_alloc_time(plist, H5D_ALLOC_TIME_EARLY) >= 0 &&
                       H5Pset_fill_time(plist, H5D_FILL_TIME_NEVER) >= 0;
    const hid_t dset = ready ? H5Dcreate2(file, names[i], i == 0 ? H5T_STD_I32LE : H5T_IEEE_F32LE, space, H5P_DEFAULT,
                                          plist, H5P_DEFAULT)
                             : -1;
    dt_err err = dset < 0 ? dt_h5_fail(DT_ERR_WRITE, path, names[i]) : dt_h5_write_u64(dset, path, "checksum", 0);
    if (dset >= 0 && H5Dclose(dset) < 0 && err == DT_OK) err = dt_h5_fail(DT_ERR_WRITE, path, names[i]);
    if (space >= 0) H5Sclose(space);
    if (plist >= 0) H5Pclose(plist);
    return err;
}

static dt_err find_array(hid_t file, const char *path, int i, bool complete, dt_known_file *f)
{
    dt_h5_array a;
    const hid_t dset = dt_h5_open_array(file, names[i]);
    DT_CHECK(dset >= 0, DT_ERR_DATA, "%s: the array %s is missing", path, names[i]);
    dt_err err = dt_h5_inspect(dset, path, names[i], &a);
    H5Dclose(dset);
    DT_TRY(err);
    DT_CHECK(a.type == (i == 0 ? DT_H5_I32 : DT_H5_F32) && a.n_dims == 2 && a.offset >= 0 && a.shape[1] > 0 &&
                 (i == 0 || (a.shape[0] == f->info.n_targets && a.shape[1] == f->info.k)),
             DT_ERR_DATA, "%s: %s: expected a contiguous array of two dimensions and of its type", path, names[i]);
    DT_CHECK(a.has_checksum || !complete, DT_ERR_DATA, "%s: %s has no checksum", path, names[i]);
    f->info.n_targets = a.shape[0], f->info.k = a.shape[1];
    f->at[i] = a.offset, f->info.sum[i] = a.checksum;
    return DT_OK;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Without HDF5's own lock, as for datasets. */
static hid_t open_hdf5(const char *path, bool create)
{
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    hid_t file = -1;
    if (access >= 0 && H5Pset_file_locking(access, false, true) >= 0)
        file = create ? H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access) : H5Fopen(path, H5F_ACC_RDWR, access);
    if (access >= 0) H5Pclose(access);
    return file;
}

static dt_err close_hdf5(hid_t file, const char *path, dt_err err)
{
    if (file >= 0 && H5Fclose(file) < 0 && err == DT_OK) err = dt_h5_fail(DT_ERR_WRITE, path, "cannot close");
    dt_h5_unlock();
    return err;
}

dt_err dt_known_create(const char *path, const dt_known_info *x)
{
    const double nbytes = (double)x->n_targets * (double)x->k * (sizeof(int32_t) + sizeof(float));
    dt_h5_lock();
    const hid_t file = open_hdf5(path, true);
    dt_err err = file < 0 ? dt_h5_fail(DT_ERR_WRITE, path, "cannot create") : write_attributes(file, path, x);
    for (int i = 0; i < N_ARRAYS && err == DT_OK; i++) err = create_array(file, path, i, x);
    DT_TRY(close_hdf5(file, path, err));
    return dt_reserve_file(path, (int64_t)nbytes, "log-probabilities");
}

dt_err dt_known_open(dt_known_file *f, const char *path, bool complete)
{
    hid_t file = -1;
    bool sealed = false;
    f->path = strdup(path), f->fd = -1;
    DT_CHECK(f->path, DT_ERR_MEMORY, "out of memory for a path");
    dt_h5_lock();
    dt_err err = complete ? dt_h5_open(path, &file, &sealed) : DT_OK;
    if (!complete && (file = open_hdf5(path, false)) < 0) err = dt_h5_fail(DT_ERR_WRITE, path, "cannot open");
    if (err == DT_OK && complete && !sealed) err = dt_fail(DT_ERR_DATA, "%s: the file is incomplete", path);
    if (err == DT_OK) err = read_attributes(file, path, &f->info);
    for (int i = 0; i < N_ARRAYS && err == DT_OK; i++) err = find_array(file, path, i, complete, f);
    DT_TRY(close_hdf5(file, path, err));
    f->fd = open(path, (complete ? O_RDONLY : O_RDWR) | O_CLOEXEC);
    return f->fd >= 0 ? DT_OK : dt_fail_errno(complete ? DT_ERR_DATA : DT_ERR_WRITE, path, "cannot be opened");
}

void dt_known_close(dt_known_file *f)
{
    if (f->path && f->fd >= 0) close(f->fd);
    free(f->path);
    *f = (dt_known_file){0};
}

/* Both element types have 4 bytes. */
static int64_t offset_of(const dt_known_file *f, int array, int64_t target)
{
    return f->at[array] + target * f->info.k * (int64_t)sizeof(float);
}
static size_t nbytes_of(const dt_known_file *f, int64_t n) { return (size_t)(n * f->info.k) * sizeof(float); }

dt_err dt_known_write(const dt_known_file *f, int64_t first, int64_t n, const int32_t *token, const float *logp)
{
    DT_TRY(dt_write_at(f->fd, f->path, offset_of(f, 0, first), token, nbytes_of(f, n)));
    return dt_write_at(f->fd, f->path, offset_of(f, 1, first), logp, nbytes_of(f, n));
}

dt_err dt_known_read(const dt_known_file *f, int64_t first, int64_t n, int32_t *token, float *logp)
{
    const int64_t V = f->info.vocab_size;
    DT_TRY(dt_read_at(f->fd, f->path, offset_of(f, 0, first), token, nbytes_of(f, n)));
    DT_TRY(dt_read_at(f->fd, f->path, offset_of(f, 1, first), logp, nbytes_of(f, n)));
    for (int64_t i = 0; i < n * f->info.k; i++)
        DT_CHECK(token[i] >= -1 && token[i] < V && logp[i] <= 1e-3f, DT_ERR_DATA,
                 "%s: target %" PRId64 ": expected a token below %" PRId64 " and a logarithm of a probability, found "
                 "%d and %g",
                 f->path, first + i / f->info.k, V, (int)token[i], (double)logp[i]);
    return DT_OK;
}

dt_err dt_known_sum(const dt_known_file *f, int64_t first, int64_t n, uint64_t sum[2])
{
    const int64_t begin = first * f->info.k, end = (first + n) * f->info.k;
    uint32_t *chunk = malloc(CHUNK * sizeof *chunk);
    dt_err err = chunk ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory to verify %s", f->path);
    for (int i = 0; i < N_ARRAYS; i++)
        for (int64_t at = begin; at < end && err == DT_OK; at += CHUNK) {
            const int64_t k = dt_min_i64(CHUNK, end - at);
            err = dt_read_at(f->fd, f->path, f->at[i] + at * (int64_t)sizeof *chunk, chunk, (size_t)k * sizeof *chunk);
            if (err == DT_OK) sum[i] += dt_checksum(chunk, at, k, sizeof *chunk);
        }
    free(chunk);
    return err;
}

static dt_err store_sums(const char *path, const uint64_t sum[2])
{
    dt_h5_lock();
    const hid_t file = open_hdf5(path, false);
    dt_err err = file < 0 ? dt_h5_fail(DT_ERR_WRITE, path, "cannot open") : DT_OK;
    for (int i = 0; i < N_ARRAYS && err == DT_OK; i++) {
        const hid_t dset = H5Dopen2(file, names[i], H5P_DEFAULT);
        err = dset < 0 ? dt_h5_fail(DT_ERR_WRITE, path, names[i]) : dt_h5_write_u64(dset, path, "checksum", sum[i]);
        if (dset >= 0) H5Dclose(dset);
    }
    return close_hdf5(file, path, err);
}

dt_err dt_known_finish(const char *path, const uint64_t sum[2])
{
    dt_known_file f = {0};
    struct stat st;
    DT_TRY(store_sums(path, sum));
    dt_err err = dt_known_open(&f, path, false);
    const int64_t nbytes = (int64_t)nbytes_of(&f, f.info.n_targets);
    dt_byte_range ranges[N_ARRAYS] = {{f.at[0], nbytes}, {f.at[1], nbytes}};
    dt_byte_ranges_sort(ranges, N_ARRAYS);
    if (err == DT_OK && fstat(f.fd, &st) != 0) err = dt_fail_errno(DT_ERR_WRITE, path, NULL);
    if (err == DT_OK) err = dt_seal_write(f.fd, path, (int64_t)st.st_size, ranges, N_ARRAYS);
    if (err == DT_OK && fsync(f.fd) != 0) err = dt_fail_errno(DT_ERR_WRITE, path, "sync failed");
    dt_known_close(&f);
    return err;
}
