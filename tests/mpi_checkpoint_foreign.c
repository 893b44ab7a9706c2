/* mpi_checkpoint_foreign.c - checkpoints from other HDF5 writers load, and damaged ones are refused with an error
 * that names the fault. Only rank 0 writes them.
 * DEVICES: cpu queue */
#include "cases.h"
#include "h5_change.h"
#include "checkpoint_fixture.h"

/* ---- files of others --------------------------------------------------------------------------------------------- */

typedef enum foreign { FOREIGN_PLAIN, FOREIGN_CHUNKED, FOREIGN_HALF, FOREIGN_COMPACT, FOREIGN_BARE_NAMES } foreign;

static bool write_foreign_tensor(hid_t file, const dt_tensor *t, foreign how)
{
    char name[256];
    hsize_t dims[DT_MAX_DIMS], chunk[DT_MAX_DIMS];
    float *x = malloc((size_t)t->n_elems * sizeof *x);
    for (int64_t i = 0; i < t->n_elems; i++) x[i] = value_of(t->name, DT_STATE_PARAM, i, 9);
    for (int d = 0; d < t->n_dims; d++)
        dims[d] = (hsize_t)t->shape[d], chunk[d] = dims[d] < 4 ? dims[d] : dims[d] / 2 + 1;
    const char *prefix = strstr(t->name, "transformer.");
    snprintf(name, sizeof name, "/model/%s",
             t->name + (how == FOREIGN_BARE_NAMES && prefix == t->name ? strlen("transformer.") : 0));
    hid_t space = H5Screate_simple(t->n_dims, dims, NULL), plist = H5Pcreate(H5P_DATASET_CREATE),
          type = H5Tcopy(H5T_IEEE_F32LE);
    if (how == FOREIGN_CHUNKED) {
        H5Pset_chunk(plist, t->n_dims, chunk);
        H5Pset_deflate(plist, 1);
    }
    if (how == FOREIGN_COMPACT) H5Pset_layout(plist, H5D_COMPACT);
    if (how == FOREIGN_HALF) {
        H5Tset_fields(type, 15, 10, 5, 0, 10);
        H5Tset_size(type, 2);
        H5Tset_ebias(type, 15);
    }
    hid_t d = H5Dcreate2(file, name, type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    const bool ok =
        d >= 0 && H5Dwrite(d, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, x) >= 0 &&
        (how != FOREIGN_CHUNKED || dt_h5_write_u64(d, name, "checksum", dt_checksum(x, 0, t->n_elems, 4)) == DT_OK);
    H5Dclose(d);
    H5Tclose(type);
    H5Pclose(plist);
    H5Sclose(space);
    free(x);
    return ok;
}

static bool write_foreign(const fixture *f, const char *path, foreign how)
{
    dt_h5_lock();
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t group = H5Gcreate2(file, "/model", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    bool ok = dt_h5_write_text(file, path, "format", "dtrain-checkpoint") == DT_OK &&
              dt_h5_write_i64(file, path, "version", 1) == DT_OK;
    for (int u = 0; u < N_UNITS; u++)
        for (int t = 0; t < f->units[u].n_tensors; t++)
            ok = ok && write_foreign_tensor(file, &f->units[u].tensors[t], how);
    H5Gclose(group);
    ok = H5Fclose(file) >= 0 && ok;
    dt_h5_unlock();
    return ok;
}

IN_DIR(files_of_other_writers_load)
{
    fixture *f = *state;
    char path[PATH_MAX];
    in_folder(f->dir, "foreign.h5", path);
    for (int how = FOREIGN_PLAIN; how <= FOREIGN_BARE_NAMES; how++)
        for (int dtype = 0; dtype < 2; dtype++) {
            assert_all(f->mpi, f->comm.rank != 0 || write_foreign(f, path, (foreign)how));
            assert_all(f->mpi, open_zero(f, 2, dtype ? DT_BF16 : DT_F32, dtype));
            assert_all(f->mpi, load_one(&f->comm, f->z, path, false, NULL) == DT_OK);
            assert_all(f->mpi, states_are(f->z, false, 9));
            close_zero(f);
        }
}

/* Half precision in all its kinds: subnormals, signed zeros, infinities, the largest. Compared with HDF5's own
 * conversion. */
IN_DIR(every_half_number_is_read_as_hdf5_reads_it)
{
    fixture *f = *state;
    enum { N = 65536 };
    char path[PATH_MAX];
    in_folder(f->dir, "half.h5", path);
    dt_unit unit = {.name = "all"};
    assert_int_equal(dt_unit_add(&unit, "w", 1, (int64_t[]){N}, true, true, 0, 0), DT_OK);
    float *expected = calloc(N, sizeof *expected);
    if (f->comm.rank == 0) {
        uint16_t *bits = malloc(N * sizeof *bits);
        /* all but NaN and Inf, which are refused */
        for (int i = 0; i < N; i++) bits[i] = (i & 0x7c00) == 0x7c00 ? 0 : (uint16_t)i;
        dt_h5_lock();
        hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), type = H5Tcopy(H5T_IEEE_F32LE);
        hid_t group = H5Gcreate2(file, "/model", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
              space = H5Screate_simple(1, (hsize_t[]){N}, NULL);
        H5Tset_fields(type, 15, 10, 5, 0, 10);
        H5Tset_size(type, 2);
        H5Tset_ebias(type, 15);
        hid_t d = H5Dcreate2(file, "/model/w", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
        H5Dwrite(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, bits);
        H5Dread(d, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, expected);
        dt_h5_write_text(file, path, "format", "dtrain-checkpoint");
        dt_h5_write_i64(file, path, "version", 1);
        H5Dclose(d), H5Sclose(space), H5Gclose(group), H5Tclose(type), H5Fclose(file);
        dt_h5_unlock();
        free(bits);
    }
    MPI_Bcast(expected, N, MPI_FLOAT, 0, f->mpi);
    const dt_zero_options opt = {.param_dtype = DT_F32,
                                 .grad_dtype = DT_F32,
                                 .reduce_bucket_size = 1 << 20,
                                 .allgather_bucket_size = 1 << 20,
                                 .prefetch_bucket_size = 1 << 20,
                                 .max_live_parameters = 1 << 24};
    assert_all(f->mpi, dt_zero_open(&f->z, &opt, &unit, 1, &f->comm, &f->dev, NULL, NULL) == DT_OK);
    assert_all(f->mpi, load_one(&f->comm, f->z, path, false, NULL) == DT_OK);
    const dt_slice p = dt_zero_slices(f->z)[0];
    float *found = calloc((size_t)p.n + 1, sizeof *found);
    bool same = dt_zero_state_read(f->z, DT_STATE_PARAM, &p, 0, p.n, found) == DT_OK;
    for (int64_t i = 0; same && i < p.n; i++) {
        const float e = expected[p.first + i];
        same = memcmp(&found[i], &e, 4) == 0;
    }
    free(found);
    free(expected);
    assert_all(f->mpi, same);
    close_zero(f);
    dt_unit_free(&unit);
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

static bool flip_bit(const char *path, int64_t offset)
{
    unsigned char byte;
    const int fd = open(path, O_RDWR);
    const bool ok = fd >= 0 && pread(fd, &byte, 1, offset) == 1 && (byte ^= 16, pwrite(fd, &byte, 1, offset) == 1);
    close(fd);
    return ok;
}

static int64_t place_in_file(const char *path, const char *name)
{
    hid_t file, d;
    int64_t offset = -1;
    dt_h5_lock();
    if (dt_h5_open(path, &file, NULL) == DT_OK && (d = H5Dopen2(file, name, H5P_DEFAULT)) >= 0) {
        offset = (int64_t)H5Dget_offset(d);
        H5Dclose(d);
    }
    H5Fclose(file);
    dt_h5_unlock();
    return offset;
}

static bool set_attribute(const char *path, const char *object, const char *name, int64_t value)
{
    dt_h5_lock();
    hid_t file = open_to_change(path), obj = H5Oopen(file, object, H5P_DEFAULT);
    if (value < 0) H5Adelete(obj, name);
    const bool ok = value < 0 || dt_h5_write_i64(obj, path, name, value) == DT_OK;
    H5Oclose(obj), H5Fclose(file);
    dt_h5_unlock();
    return ok;
}

static bool set_base(const char *path, const char *text)
{
    dt_h5_lock();
    hid_t file = open_to_change(path);
    const bool ok = dt_h5_write_text(file, path, "base", text) == DT_OK;
    H5Fclose(file);
    dt_h5_unlock();
    return ok;
}

static bool replace_tensor(const char *path, int what)
{
    const char *name = "/model/model.norm.weight";
    dt_h5_lock();
    hid_t file = open_to_change(path), space = H5Screate_simple(1, (hsize_t[]){what == 1 ? 4098 : 4099}, NULL);
    hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_alloc_time(plist, H5D_ALLOC_TIME_EARLY);
    bool ok = H5Ldelete(file, name, H5P_DEFAULT) >= 0;
    if (ok && what > 0) {
        hid_t d =
            H5Dcreate2(file, name, what == 2 ? H5T_STD_I32LE : H5T_IEEE_F32LE, space, H5P_DEFAULT, plist, H5P_DEFAULT);
        ok = d >= 0 && H5Dclose(d) >= 0;
    }
    H5Pclose(plist), H5Sclose(space), H5Fclose(file);
    dt_h5_unlock();
    return ok;
}

static const char *damaged_tensor = "/optimizer/exp_avg/model.layers.0.self_attn.q_proj.weight";

/* Damage number k to a good file; the word that the message must contain; NULL: no such k. */
static const char *damage(int k, const char *path, bool *done)
{
    *done = true;
    switch (k) {
    case 0:
        *done = flip_bit(path, place_in_file(path, damaged_tensor) + 4 * 1234 + 3);
        return damaged_tensor;
    case 1:
        *done = replace_tensor(path, 0);
        return "/model/model.norm.weight";
    case 2:
        *done = replace_tensor(path, 1);
        return "[4099]";
    case 3:
        *done = replace_tensor(path, 2);
        return "int32";
    case 4:
        *done = set_attribute(path, "/", "version", 3);
        return "version 3";
    case 5:
        *done = set_attribute(path, "/", "format", -1);
        return "`format`";
    case 6:
        *done = truncate(path, 30000) == 0;
        return "cut short";
    case 7:
        *done = truncate(path, 0) == 0;
        return "the file is empty";
    case 8:
        *done = unlink(path) == 0;
        return "No such file";
    case 9:
        *done = set_attribute(path, damaged_tensor, "checksum", 12345);
        return damaged_tensor;
    case 10:
        *done = flip_bit(path, place_in_file(path, "/optimizer/exp_avg_sq/model.norm.weight"));
        return "/optimizer/exp_avg_sq/model.norm.weight";
    case 11:
        *done = unlink(path) == 0 && mkdir(path, 0777) == 0;
        return "a directory";
    case 12:
        *done = set_base(path, "{\"path\": ]");
        return "attribute `base`: expected the path of a model";
    case 13:
        *done = set_base(path, "{\"path\": \"/models/a\", \"checksums\": {\"a\": 5}}");
        return "attribute `base`: expected the path of a model";
    default:
        return NULL;
    }
}

IN_DIR(damaged_files_are_refused_by_name)
{
    fixture *f = *state;
    char path[PATH_MAX];
    in_folder(f->dir, "step-00000004.h5", path);
    assert_all(f->mpi, open_zero(f, 1, DT_F32, false));
    assert_all(f->mpi, fill_states(f->z, true, 4));
    for (int k = 0;; k++) {
        bool done = true;
        const char *word = "";
        assert_all(f->mpi, save_step(f, 4, 0) == DT_OK);
        if (f->comm.rank == 0) word = damage(k, path, &done);
        int last = word == NULL;
        MPI_Bcast(&last, 1, MPI_INT, 0, f->mpi);
        if (last) break;
        assert_all(f->mpi, done);
        const dt_err err = load_one(&f->comm, f->z, path, true, NULL);
        assert_all(f->mpi, err == DT_ERR_DATA);
        const bool named = f->comm.rank != 0 || (strstr(dt_error_message(), word) && strstr(dt_error_message(), path));
        if (!named) print_error("damage %d: message lacks \"%s\": %s\n", k, word, dt_error_message());
        assert_all(f->mpi, named);
        dt_error_clear();
        const bool refused = f->comm.rank != 0 || (k >= 1 && k <= 3) || dt_checkpoint_verify(path, NULL) == DT_ERR_DATA;
        assert_all(f->mpi, refused); /* 1 to 3 are files that are whole in themselves */
        dt_error_clear();
        if (f->comm.rank == 0 && k == 11) assert_int_equal(rmdir(path), 0);
        MPI_Barrier(f->mpi);
    }
}

/* Flips a bit in each byte of the metadata in turn: the file is refused, or read as it was. It never crashes or
 * reads other values. */
IN_DIR(no_flipped_bit_of_metadata_changes_what_is_loaded)
{
    fixture *f = *state;
    char path[PATH_MAX];
    struct stat st;
    in_folder(f->dir, "step-00000004.h5", path);
    assert_all(f->mpi, open_zero(f, 1, DT_F32, false));
    assert_all(f->mpi, fill_states(f->z, true, 4));
    assert_all(f->mpi, save_step(f, 4, 0) == DT_OK);
    assert_all(f->mpi, stat(path, &st) == 0);
    int n_refused = 0;
    for (int64_t at = 0; at < st.st_size && f->comm.nranks < 3; at += 97) {
        assert_all(f->mpi, f->comm.rank != 0 || flip_bit(path, at));
        const dt_err err = load_one(&f->comm, f->z, path, true, NULL);
        const bool right = err == DT_ERR_DATA || (err == DT_OK && states_are(f->z, true, 4));
        if (!right) print_error("byte %" PRId64 "\n", at);
        assert_all(f->mpi, right);
        n_refused += err != DT_OK;
        dt_error_clear();
        assert_all(f->mpi, f->comm.rank != 0 || flip_bit(path, at));
    }
    assert_all(f->mpi, f->comm.nranks >= 3 || n_refused > st.st_size / 97 / 2); /* most of the file is data */
}

MPI_TEST_MAIN(open_fixture, close_fixture)
