// QUICK: 2 3 4
/* mpi_checkpoint.c - a checkpoint saved on any number of ranks, at any stage, loads on any other. Also: which files
 * a folder keeps, even if its disk is full.
 *
 * Only rank 0 inspects the file, through plain HDF5, and only rank 0 writes files for loading: so a round trip at n
 * ranks covers every pair of rank counts.
 * DEVICES: cpu queue */
#include "cases.h"
#include "h5_change.h"
#include "checkpoint_fixture.h"
#include <errno.h>
#include <sys/mount.h>

/* ---- what rank 0 sees -------------------------------------------------------------------------------------------- */

enum { N_STATES = 3 }; /* AdamW's */
static const char *const groups[N_STATES] = {"/model", "/optimizer/exp_avg", "/optimizer/exp_avg_sq"};

static bool tensor_in_file_is(hid_t file, const dt_tensor *t, dt_state state, int salt)
{
    char name[256];
    float *x = calloc((size_t)t->n_elems, sizeof *x);
    snprintf(name, sizeof name, "%s/%s", groups[state], t->name);
    hid_t d = H5Dopen2(file, name, H5P_DEFAULT);
    bool same = d >= 0 && H5Dread(d, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, x) >= 0;
    for (int64_t i = 0; same && i < t->n_elems; i++) same = x[i] == value_of(t->name, state, i, salt);
    if (d >= 0) H5Dclose(d);
    free(x);
    return same;
}

static bool file_holds(const fixture *f, const char *name, int salt)
{
    char path[PATH_MAX];
    hid_t file;
    dt_h5_lock();
    bool same = dt_h5_open(in_folder(f->dir, name, path), &file, NULL) == DT_OK;
    for (int u = 0; same && u < N_UNITS; u++)
        for (int t = 0; same && t < f->units[u].n_tensors; t++)
            for (int s = 0; same && s < N_STATES; s++) same = tensor_in_file_is(file, &f->units[u].tensors[t], s, salt);
    if (file >= 0) H5Fclose(file);
    dt_h5_unlock();
    return same && dt_checkpoint_verify(path, NULL) == DT_OK;
}

/* ---- round trips ------------------------------------------------------------------------------------------------- */

IN_DIR(saved_tensors_stand_whole_and_come_back)
{
    fixture *f = *state;
    char path[PATH_MAX];
    for (int stage = 0; stage <= 3; stage++)
        for (int dtype = 0; dtype < 2; dtype++) {
            const int salt = 10 * stage + dtype;
            assert_all(f->mpi, open_zero(f, stage, dtype ? DT_BF16 : DT_F32, false));
            assert_all(f->mpi, fill_states(f->z, true, salt));
            assert_all(f->mpi, save_step(f, 100 + salt, 0) == DT_OK);
            snprintf(path, sizeof path, "step-%08d.h5", 100 + salt);
            assert_all(f->mpi, f->comm.rank != 0 || file_holds(f, path, salt));
            close_zero(f);

            char full[PATH_MAX];
            /* other stage, other precision */
            assert_all(f->mpi, open_zero(f, 3 - stage, dtype ? DT_F32 : DT_BF16, false));
            assert_all(f->mpi, load_one(&f->comm, f->z, in_folder(f->dir, path, full), true, NULL) == DT_OK);
            assert_all(f->mpi, states_are(f->z, true, salt));
            close_zero(f);
        }
}

IN_DIR(the_file_does_not_depend_on_who_wrote_it)
{
    fixture *f = *state;
    char a[PATH_MAX], b[PATH_MAX];
    for (int stage = 0; stage <= 3; stage += 3) {
        assert_all(f->mpi, open_zero(f, stage, DT_F32, false));
        assert_all(f->mpi, fill_states(f->z, true, 1));
        assert_all(f->mpi, save_step(f, 1, 0) == DT_OK);
        close_zero(f);
        if (stage == 0) usleep(1100 * 1000); /* nor on when: HDF5 counts seconds */
        if (stage == 0)
            assert_all(f->mpi, f->comm.rank != 0 ||
                                   rename(in_folder(f->dir, "step-00000001.h5", a), in_folder(f->dir, "kept", b)) == 0);
    }
    char command[3 * PATH_MAX];
    snprintf(command, sizeof command, "cmp '%s' '%s'", in_folder(f->dir, "step-00000001.h5", a),
             in_folder(f->dir, "kept", b));
    assert_all(f->mpi, f->comm.rank != 0 || system(command) == 0);
}

static void frozen_model_keeps_its_bits(fixture *f, dt_dtype dtype)
{
    char path[PATH_MAX];
    assert_all(f->mpi, open_zero(f, 3, dtype, true));
    assert_all(f->mpi, fill_states(f->z, false, 5));
    assert_all(f->mpi, save_step(f, 1, 0) == DT_OK);
    close_zero(f);
    in_folder(f->dir, "step-00000001.h5", path);
    assert_all(f->mpi, f->comm.rank != 0 || dt_checkpoint_verify(path, NULL) == DT_OK);

    for (int frozen = 0; frozen < 2; frozen++) { /* 16 bits in the file, the same and fp32 in memory */
        assert_all(f->mpi, open_zero(f, 0, frozen ? dtype : DT_F32, frozen));
        assert_all(f->mpi, load_one(&f->comm, f->z, path, false, NULL) == DT_OK);
        assert_all(f->mpi, states_are(f->z, false, 5));
        close_zero(f);
    }
    assert_all(f->mpi, open_zero(f, 0, DT_F32, false));
    assert_all(f->mpi, load_one(&f->comm, f->z, path, true, NULL) == DT_ERR_DATA);
    assert_all(f->mpi,
               f->comm.rank != 0 || strstr(dt_error_message(), "/optimizer/exp_avg/model.embed_tokens.weight") != NULL);
}

IN_DIR(a_frozen_model_keeps_its_bits)
{
    frozen_model_keeps_its_bits(*state, DT_BF16);
    close_zero(*state);
    frozen_model_keeps_its_bits(*state, DT_F16);
}

IN_DIR(meta_and_long_texts_come_back)
{
    fixture *f = *state;
    char path[PATH_MAX];
    dt_ckpt_meta meta = meta_of(3), read;
    meta.config = calloc((200 << 10) + 1, 1);
    for (int i = 0; i < 200 << 10; i++) meta.config[i] = (char)('a' + i % 23);
    assert_all(f->mpi, open_zero(f, 0, DT_F32, false));
    assert_all(f->mpi, dt_checkpoint_save(&f->comm, f->z, &meta, f->dir, 0, NULL) == DT_OK);
    const bool readable = dt_checkpoint_read_meta(in_folder(f->dir, "step-00000003.h5", path), &read) == DT_OK;
    assert_all(f->mpi, readable);
    const bool same = read.step == 3 && read.samples == 24 && read.tokens == 1536 && read.updates == 2 &&
                      read.states.updates == 1 && read.seed == UINT64_MAX - 5 && read.scale.scale == 65536.5 &&
                      strcmp(read.config, meta.config) == 0 && strcmp(read.model_config, meta.model_config) == 0 &&
                      strcmp(read.states.optimizer, "adamw") == 0 &&
                      strcmp(read.states.names, "exp_avg, exp_avg_sq") == 0;
    dt_ckpt_meta_free(&read);
    /* the estimate of disk space is sufficient */
    struct stat st;
    const size_t texts_len = strlen(meta.config) + (meta.model_config ? strlen(meta.model_config) : 0);
    const double nbytes = dt_checkpoint_nbytes(texts_len, 0) +
                          dt_checkpoint_model_nbytes(f->units, N_UNITS, &dt_optimizer_adamw, DT_F32, false);
    const bool fits = stat(path, &st) == 0 && (double)st.st_size <= nbytes;
    free(meta.config);
    assert_all(f->mpi, same && fits);
}

/* Values of every type, of any length, and NaN bit patterns; only rank 0 has them. */
static bool add_items(dt_named_arrays *items)
{
    static int32_t many[100000];
    for (int i = 0; i < 100000; i++) many[i] = (int32_t)dt_mix64((uint64_t)i);
    const float floats[] = {NAN, -INFINITY, 0x1p-140f};
    const double lambda = 0.1;
    const int64_t step = INT64_MIN;
    return dt_named_arrays_add(items, "tokens", DT_NAMED_I32, 100000, many) == DT_OK &&
           dt_named_arrays_add(items, "logp", DT_NAMED_F32, 3, floats) == DT_OK &&
           dt_named_arrays_add(items, "lambda", DT_NAMED_F64, 1, &lambda) == DT_OK &&
           dt_named_arrays_add(items, "step", DT_NAMED_I64, 1, &step) == DT_OK &&
           dt_named_arrays_add(items, "nothing", DT_NAMED_I64, 0, NULL) == DT_OK;
}

static bool are_items(const dt_named_arrays *found, const dt_named_arrays *wanted)
{
    bool ok = found->n_items == wanted->n_items;
    for (int i = 0; ok && i < wanted->n_items; i++) {
        const dt_named_array *w = &wanted->item[i], *f = dt_named_arrays_find(found, w->name);
        ok = f && f->type == w->type && f->n == w->n &&
             !memcmp(f->data, w->data, (size_t)w->n * dt_named_type_size(w->type));
    }
    return ok;
}

static bool flip_a_byte_of(const char *path, const char *item)
{
    hid_t file;
    int64_t at = -1;
    if (dt_h5_open(path, &file, NULL) != DT_OK) return false;
    const hid_t dset = H5Dopen2(file, item, H5P_DEFAULT);
    at = (int64_t)H5Dget_offset(dset);
    H5Dclose(dset), H5Fclose(file);
    unsigned char c;
    const int fd = open(path, O_RDWR);
    const bool ok = at > 0 && pread(fd, &c, 1, at) == 1 && (c ^= 4, pwrite(fd, &c, 1, at) == 1);
    return close(fd) == 0 && ok;
}

static bool add_a_link(const char *path)
{
    dt_h5_lock();
    const hid_t file = open_to_change(path);
    const bool ok = H5Lcreate_soft("/task/tokens", file, "/task/same", H5P_DEFAULT, H5P_DEFAULT) >= 0;
    H5Fclose(file);
    dt_h5_unlock();
    return ok;
}

IN_DIR(what_a_task_left_comes_back_to_the_bit)
{
    fixture *f = *state;
    char path[PATH_MAX];
    dt_ckpt_meta meta = meta_of(3), read;
    dt_named_arrays wanted = {0};
    assert_all(f->mpi, add_items(&wanted) && (f->comm.rank || add_items(&meta.items)));
    assert_all(f->mpi, open_zero(f, 0, DT_F32, false));
    assert_all(f->mpi, dt_checkpoint_save(&f->comm, f->z, &meta, f->dir, 0, NULL) == DT_OK);
    assert_all(f->mpi, dt_checkpoint_verify(in_folder(f->dir, "step-00000003.h5", path), NULL) == DT_OK);
    assert_all(f->mpi, load_one(&f->comm, f->z, path, true, NULL) == DT_OK);
    bool ok = dt_checkpoint_read_meta(path, &read) == DT_OK && are_items(&read.items, &wanted);
    int32_t few[2];
    ok = ok && dt_named_arrays_get(&read.items, "tokens", DT_NAMED_I32, 2, few) == DT_ERR_DATA &&
         strstr(dt_error_message(),
                "task item `tokens` of the checkpoint: expected 2 values of type int32, found 100000 of type int32");
    dt_error_clear();
    dt_ckpt_meta_free(&read);
    assert_all(f->mpi, ok);
    assert_all(f->mpi, f->comm.rank || flip_a_byte_of(path, "/task/tokens"));
    ok = dt_checkpoint_read_meta(path, &read) == DT_ERR_DATA && strstr(dt_error_message(), "/task/tokens` was altered");
    dt_error_clear();
    assert_all(f->mpi, ok);
    assert_all(f->mpi, f->comm.rank || (flip_a_byte_of(path, "/task/tokens") && add_a_link(path)));
    ok = dt_checkpoint_read_meta(path, &read) == DT_ERR_DATA && strstr(dt_error_message(), "found a link or a group");
    dt_error_clear();
    assert_all(f->mpi, ok);
    dt_named_arrays_free(&wanted);
    dt_named_arrays_free(&meta.items);
}

/* As a file of the time when there was one optimizer; and with a count that cannot be. */
static bool change_optimizer(const char *path, int64_t state_updates)
{
    dt_h5_lock();
    const hid_t file = open_to_change(path);
    bool ok = state_updates ? dt_h5_write_i64(file, path, "state_updates", state_updates) == DT_OK
                            : H5Adelete(file, "optimizer") >= 0 && H5Adelete(file, "optimizer_states") >= 0 &&
                                  H5Adelete(file, "state_updates") >= 0;
    ok = H5Fclose(file) >= 0 && ok;
    dt_h5_unlock();
    return ok;
}

IN_DIR(a_file_that_names_no_optimizer_is_adamws)
{
    fixture *f = *state;
    char path[PATH_MAX];
    dt_ckpt_meta meta;
    in_folder(f->dir, "step-00000005.h5", path);
    assert_all(f->mpi, open_zero(f, 0, DT_F32, false) && save_step(f, 5, 0) == DT_OK);
    close_zero(f);
    if (f->comm.rank == 0) {
        bool ok = change_optimizer(path, 5) && dt_checkpoint_read_meta(path, &meta) == DT_ERR_DATA &&
                  strstr(dt_error_message(), "attribute `state_updates`: expected 0 to 4, found 5");
        dt_error_clear();
        ok = ok && change_optimizer(path, 0) && dt_checkpoint_read_meta(path, &meta) == DT_OK;
        ok = ok && !strcmp(meta.states.optimizer, "adamw") && meta.updates == 4 && meta.states.updates == 4;
        ok = ok && dt_checkpoint_has_states(&meta.states, &dt_optimizer_adamw) &&
             dt_checkpoint_has_states(&meta.states, &dt_optimizer_adam) &&
             !dt_checkpoint_has_states(&meta.states, &dt_optimizer_sgd);
        if (ok) dt_ckpt_meta_free(&meta);
        assert_all(f->mpi, ok);
    } else {
        assert_all(f->mpi, true);
    }
}

/* A loss scale that no run can have had. */
IN_DIR(a_loss_scale_that_cannot_be_is_refused)
{
    static const double scales[] = {65536.5, 0, -1, INFINITY, NAN};
    fixture *f = *state;
    char path[PATH_MAX];
    dt_ckpt_meta meta;
    bool ok = true;
    in_folder(f->dir, "step-00000005.h5", path);
    assert_all(f->mpi, open_zero(f, 0, DT_F32, false) && save_step(f, 5, 0) == DT_OK);
    close_zero(f);
    for (size_t i = 0; i < sizeof scales / sizeof scales[0] && f->comm.rank == 0; i++) {
        dt_h5_lock();
        const hid_t file = open_to_change(path);
        ok = dt_h5_write_i64(file, path, "loss_scale_overflows_left", 1) == DT_OK &&
             dt_h5_write_f64(file, path, "loss_scale", scales[i]) == DT_OK && ok;
        ok = H5Fclose(file) >= 0 && ok;
        dt_h5_unlock();
        const dt_err err = dt_checkpoint_read_meta(path, &meta);
        ok =
            ok && (i == 0 ? err == DT_OK : err == DT_ERR_DATA && strstr(dt_error_message(), "attributes `loss_scale`"));
        dt_error_clear();
        if (err == DT_OK) dt_ckpt_meta_free(&meta);
    }
    assert_all(f->mpi, ok);
}

/* ---- the folder -------------------------------------------------------------------------------------------------- */

static bool latest_is(const fixture *f, const char *name)
{
    char path[PATH_MAX], text[64] = "";
    FILE *l = fopen(in_folder(f->dir, "latest", path), "r");
    if (!l) return false;
    const size_t n = fread(text, 1, sizeof text - 1, l);
    fclose(l);
    return n == strlen(name) && strcmp(text, name) == 0;
}

IN_DIR(the_oldest_go_and_latest_follows)
{
    fixture *f = *state;
    char path[PATH_MAX], **paths;
    int n;
    assert_all(f->mpi, dt_checkpoint_list(in_folder(f->dir, "none", path), &paths, &n) == DT_OK && n == 0);
    dt_list_free(paths, n);
    assert_all(f->mpi, open_zero(f, 1, DT_F32, false));
    if (f->comm.rank == 0) {
        assert_true(shell("touch '%s/step-00000001.h5.part'", f->dir)); /* left by a killed save */
        assert_true(shell("touch '%s/step-x.h5' '%s/other'", f->dir, f->dir));
    }
    const int64_t steps[] = {5, 100000000, 20, 30};
    for (int i = 0; i < 4; i++) assert_all(f->mpi, save_step(f, steps[i], 2) == DT_OK);
    /* 30 was written last: it stays although the other two have higher steps or were there before */
    assert_all(f->mpi, dt_checkpoint_list(f->dir, &paths, &n) == DT_OK);
    const bool right = n == 2 && strstr(paths[0], "/step-100000000.h5") && strstr(paths[1], "/step-00000030.h5");
    dt_list_free(paths, n);
    assert_all(f->mpi, right);
    assert_all(f->mpi, latest_is(f, "step-00000030.h5"));
    assert_all(f->mpi, !exists_in(f->dir, "step-00000001.h5.part") && !exists_in(f->dir, "latest.part") &&
                           exists_in(f->dir, "other"));

    assert_all(f->mpi, save_step(f, 7, 1) == DT_OK); /* older than all others */
    assert_all(f->mpi, dt_checkpoint_list(f->dir, &paths, &n) == DT_OK);
    const bool only = n == 1 && strstr(paths[0], "/step-00000007.h5");
    dt_list_free(paths, n);
    assert_all(f->mpi, only && latest_is(f, "step-00000007.h5"));
}

/* ---- a full disk ------------------------------------------------------------------------------------------------- */

IN_DIR(a_full_disk_loses_nothing)
{
    fixture *f = *state;
    char options[64], balloon[PATH_MAX];
    int64_t one = 0;
    for (int u = 0; u < N_UNITS; u++) one += f->units[u].n_param * 12;
    int mounted = 0;
    snprintf(options, sizeof options, "size=%lldk", (long long)(2 * one / 1024 + 128));
    if (f->comm.rank == 0) mounted = mount("tmpfs", f->dir, "tmpfs", 0, options) == 0 ? 1 : -errno;
    MPI_Bcast(&mounted, 1, MPI_INT, 0, f->mpi);
    skip_all_if(mounted != 1, "mounting a small tmpfs is not permitted here");

    bool ok = open_zero(f, 1, DT_F32, false) && fill_states(f->z, true, 1) && save_step(f, 1, 0) == DT_OK;
    int n_full = 0;
    in_folder(f->dir, "balloon", balloon);
    for (int64_t left = 2 * one; ok && left >= 0; left -= left > 16384 ? one / 3 : 4096) { /* room for ever less */
        if (f->comm.rank == 0) {
            const int fd = open(balloon, O_WRONLY | O_CREAT | O_TRUNC, 0666);
            int64_t nbytes = 3 * one;
            while (nbytes > 0 && fallocate(fd, 0, 0, nbytes) != 0) nbytes -= 4096; /* all that is left */
            ok = fd >= 0 && ftruncate(fd, nbytes > left ? nbytes - left : 0) == 0;
            close(fd);
        }
        MPI_Barrier(f->mpi);
        const dt_err err = save_step(f, 2, 0);
        const bool there = exists_in(f->dir, "step-00000002.h5");
        ok = ok && (err == DT_OK ? there : err == DT_ERR_WRITE && !there) &&
             !exists_in(f->dir, "step-00000002.h5.part") && !exists_in(f->dir, "latest.part");
        if (err == DT_OK && f->comm.rank == 0) ok = ok && file_holds(f, "step-00000002.h5", 1);
        ok = ok && (f->comm.rank != 0 || file_holds(f, "step-00000001.h5", 1)) &&
             latest_is(f, err == DT_OK ? "step-00000002.h5" : "step-00000001.h5");
        n_full += err != DT_OK;
        if (!ok) print_error("with %lld bytes left: %s\n", (long long)left, dt_error_message());
        int all_ok = ok;
        MPI_Allreduce(MPI_IN_PLACE, &all_ok, 1, MPI_INT, MPI_MIN, f->mpi);
        ok = all_ok;
        dt_error_clear();
        MPI_Barrier(f->mpi);
        if (f->comm.rank == 0) { /* as before the attempt */
            char path[PATH_MAX];
            unlink(in_folder(f->dir, "step-00000002.h5", path));
            dt_write_file_atomic(in_folder(f->dir, "latest", path), "step-00000001.h5", 16);
        }
        MPI_Barrier(f->mpi);
    }
    close_zero(f);
    MPI_Barrier(f->mpi);
    if (f->comm.rank == 0) ok = umount2(f->dir, MNT_DETACH) == 0 && ok;
    assert_all(f->mpi, ok);
    assert_all(f->mpi, n_full >= 3);
}

IN_DIR(a_folder_that_cannot_be_made_is_a_write_error)
{
    fixture *f = *state;
    char path[PATH_MAX];
    const dt_ckpt_meta meta = meta_of(1);
    if (f->comm.rank == 0) assert_int_equal(dt_write_file_atomic(in_folder(f->dir, "file", path), "x", 1), DT_OK);
    assert_all(f->mpi, open_zero(f, 1, DT_F32, false));
    assert_all(f->mpi, dt_checkpoint_save(&f->comm, f->z, &meta, in_folder(f->dir, "file/checkpoints", path), 0,
                                          NULL) == DT_ERR_WRITE);
}

static int asked(void) { return 1; }

/* The signal may have reached one rank alone. */
IN_DIR(a_load_ends_for_all_when_one_rank_is_asked_to_stop)
{
    fixture *f = *state;
    char path[PATH_MAX];
    for (int stage = 0; stage <= 3; stage += 3) {
        assert_all(f->mpi, open_zero(f, stage, DT_F32, false));
        assert_all(f->mpi, fill_states(f->z, stage > 0, 1));
        assert_all(f->mpi, save_step(f, 1, 0) == DT_OK);
        dt_phase phase = {.stop_asked = f->comm.rank == f->comm.nranks - 1 ? asked : NULL};
        assert_all(f->mpi,
                   load_one(&f->comm, f->z, in_folder(f->dir, "step-00000001.h5", path), true, &phase) == DT_ERR_STOP);
        assert_all(f->mpi, dt_comm_failed_together(&f->comm));
        dt_error_clear();
        assert_all(f->mpi, load_one(&f->comm, f->z, path, true, NULL) == DT_OK && states_are(f->z, stage > 0, 1));
        close_zero(f);
    }
}

static bool candidates_are(const fixture *f, const char *first, int n_expected)
{
    char **paths;
    int n;
    if (dt_checkpoint_candidates(f->dir, &paths, &n) != DT_OK) return false;
    const bool ok = n == n_expected && (n == 0 || !strcmp(strrchr(paths[0], '/') + 1, first));
    dt_list_free(paths, n);
    return ok;
}

IN_DIR(latest_decides_and_the_best_is_spared)
{
    fixture *f = *state;
    char path[PATH_MAX], *file = NULL;
    const bool first = f->comm.rank == 0;
    assert_all(f->mpi, open_zero(f, 1, DT_F32, false));
    assert_all(f->mpi, fill_states(f->z, true, 1));
    assert_all(f->mpi, save_step(f, 1, 1) == DT_OK);
    assert_all(f->mpi, !first || dt_checkpoint_point(f->dir, "best", 1) == DT_OK);
    assert_all(f->mpi, save_step(f, 2, 1) == DT_OK && save_step(f, 3, 1) == DT_OK);
    assert_all(f->mpi, exists_in(f->dir, "step-00000001.h5") && !exists_in(f->dir, "step-00000002.h5") &&
                           exists_in(f->dir, "step-00000003.h5"));
    assert_all(f->mpi, save_step(f, 2, 0) == DT_OK); /* as after going back */
    assert_all(f->mpi, candidates_are(f, "step-00000002.h5", 2));
    assert_all(f->mpi,
               dt_checkpoint_find(in_folder(f->dir, "best", path), &file) == DT_OK && strstr(file, "step-00000001.h5"));
    free(file);
    assert_all(f->mpi, dt_checkpoint_find(in_folder(f->dir, "latest", path), &file) == DT_OK &&
                           strstr(file, "step-00000002.h5"));
    free(file);
    MPI_Barrier(f->mpi);
    assert_all(f->mpi, !first || shell("rm '%s'/step-00000002.h5", f->dir));
    /* the one that latest names is gone: those before it */
    assert_all(f->mpi, candidates_are(f, "step-00000001.h5", 1));
    MPI_Barrier(f->mpi);
    assert_all(f->mpi, !first || dt_checkpoint_point(f->dir, "latest", 0) == DT_OK);
    assert_all(f->mpi, candidates_are(f, "step-00000003.h5", 2));
    MPI_Barrier(f->mpi);
    assert_all(f->mpi, !first || shell("mkfifo '%s'/latest", f->dir));
    assert_all(f->mpi, candidates_are(f, "step-00000003.h5", 2)); /* no rank blocks on a pipe that yields no data */
}

IN_DIR(the_best_is_kept_in_addition_while_it_is_older)
{
    fixture *f = *state;
    const bool first = f->comm.rank == 0;
    assert_all(f->mpi, open_zero(f, 1, DT_F32, false));
    assert_all(f->mpi, fill_states(f->z, true, 1));
    assert_all(f->mpi, save_step(f, 1, 2) == DT_OK);
    assert_all(f->mpi, !first || dt_checkpoint_point(f->dir, "best", 1) == DT_OK);
    for (int64_t step = 2; step <= 4; step++) assert_all(f->mpi, save_step(f, step, 2) == DT_OK);
    assert_all(f->mpi, exists_in(f->dir, "step-00000001.h5") && !exists_in(f->dir, "step-00000002.h5"));
    assert_all(f->mpi, exists_in(f->dir, "step-00000003.h5") && exists_in(f->dir, "step-00000004.h5"));
    MPI_Barrier(f->mpi);
    assert_all(f->mpi, !first || dt_checkpoint_point(f->dir, "best", 4) == DT_OK);
    if (first) dt_checkpoint_prune(f->dir, 2);
    MPI_Barrier(f->mpi);
    assert_all(f->mpi, !exists_in(f->dir, "step-00000001.h5") && exists_in(f->dir, "step-00000003.h5") &&
                           exists_in(f->dir, "step-00000004.h5"));
}

MPI_TEST_MAIN(open_fixture, close_fixture)
