/* mpi_checkpoint_writes.c - every call of a save that changes the disk fails in turn, with every errno that disks
 * and quotas give: all ranks get DT_ERR_WRITE, the failing rank's message names errno and path, and the checkpoint
 * before is what the folder holds.
 *
 * The calls below take the C library's place for the whole process, the libraries included; only files in the test's
 * folder are looked at. That the process ends with 0 is part of the test: HDF5 faults in its exit handler when it
 * was kept from writing.
 * NP: 1 2 3 */
#include "cases.h"
#include "checkpoint_fixture.h"
#include <errno.h>
#include <sys/syscall.h>

static struct {
    char dir[64];
    int countdown, error; /* the countdown-th call from now fails; 0: none */
    bool hit;
} fail_at;

static bool is_ours(const char *path) { return fail_at.dir[0] && strncmp(path, fail_at.dir, strlen(fail_at.dir)) == 0; }

static bool fails(const char *path)
{
    if (!fail_at.countdown || !is_ours(path) || --fail_at.countdown > 0) return false;
    fail_at.hit = true;
    errno = fail_at.error;
    return true;
}

static bool fd_fails(int fd)
{
    char link[32], path[PATH_MAX];
    if (!fail_at.countdown) return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return false;
    path[n] = '\0';
    return fails(path);
}

ssize_t write(int fd, const void *bytes, size_t n) { return fd_fails(fd) ? -1 : syscall(SYS_write, fd, bytes, n); }
ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at)
{
    return fd_fails(fd) ? -1 : syscall(SYS_pwrite64, fd, bytes, n, at);
}
ssize_t pwrite64(int fd, const void *bytes, size_t n, off_t at) { return pwrite(fd, bytes, n, at); }
int fsync(int fd) { return fd_fails(fd) ? -1 : (int)syscall(SYS_fsync, fd); }
int ftruncate(int fd, off_t n) { return fd_fails(fd) ? -1 : (int)syscall(SYS_ftruncate, fd, n); }
int ftruncate64(int fd, off_t n) { return ftruncate(fd, n); }
int truncate(const char *path, off_t n) { return fails(path) ? -1 : (int)syscall(SYS_truncate, path, n); }
int fallocate(int fd, int mode, off_t at, off_t n)
{
    return fd_fails(fd) ? -1 : (int)syscall(SYS_fallocate, fd, mode, at, n);
}
int rename(const char *from, const char *to)
{
    return fails(from) ? -1 : (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
}

static bool is_valid_as_before(const fixture *f)
{
    char path[PATH_MAX];
    return folder_is_as_before(f) && dt_checkpoint_verify(in_folder(f->dir, "step-00000001.h5", path), NULL) == DT_OK;
}

/* The sync of the folder is the last call: after it the new checkpoint is complete and `latest` names it. */
static bool folder_is_as_after(const fixture *f)
{
    char path[PATH_MAX], *newest = NULL;
    const bool ok = dt_checkpoint_find(f->dir, &newest) == DT_OK &&
                    !strcmp(newest, in_folder(f->dir, "step-00000002.h5", path)) &&
                    dt_checkpoint_verify(newest, NULL) == DT_OK && !exists_in(f->dir, "latest.part");
    free(newest);
    return ok;
}

static void arm(const fixture *f, int rank, int countdown, int error)
{
    if (f->comm.rank != rank) return;
    snprintf(fail_at.dir, sizeof fail_at.dir, "%s", f->dir);
    fail_at.countdown = countdown, fail_at.error = error, fail_at.hit = false;
}

/* Concurrent with training, or synchronous. */
static dt_err save_second(fixture *f, dt_saver *s)
{
    const dt_ckpt_meta meta = meta_of(2);
    const dt_saved_model model = {.zero = f->z, .with_states = true, .state_updates = meta.states.updates};
    if (!s) return save_step(f, 2, 0);
    dt_err err = dt_saver_begin(s, &model, 1, &meta, f->dir, 0);
    if (err == DT_OK) err = dt_saver_finish(s, NULL);
    MPI_Barrier(f->mpi);
    return err;
}

/* One save in which the n-th call fails on one rank; false: it makes fewer than n such calls. */
static bool a_save_fails(fixture *f, dt_saver *s, int rank, int n, int error)
{
    arm(f, rank, n, error);
    const dt_err err = save_second(f, s);
    fail_at.countdown = 0;
    char text[600];
    int hit = fail_at.hit;
    fail_at.hit = false;
    snprintf(text, sizeof text, "%s", dt_error_message());
    dt_error_clear();
    MPI_Bcast(&hit, 1, MPI_INT, rank, f->mpi);
    if (!hit) {
        assert_all(f->mpi, err == DT_OK);
        return false;
    }
    assert_all(f->mpi, err == DT_ERR_WRITE);
    assert_all(f->mpi, f->comm.rank != rank || (strstr(text, strerror(error)) && strstr(text, f->dir)));
    assert_all(f->mpi, f->comm.rank != 0 || is_valid_as_before(f) || folder_is_as_after(f));
    dt_error_clear();
    MPI_Barrier(f->mpi);
    assert_all(f->mpi, f->comm.rank != 0 ||
                           shell("cd '%s' && rm -f step-00000002.h5 && printf step-00000001.h5 >latest", f->dir));
    return true;
}

TEST_WITH(every_write_that_fails_leaves_the_checkpoint_before, make_dir, remove_dir)
{
    fixture *f = *state;
    const int errors[] = {EIO, ENOSPC, EDQUOT}, last = f->comm.nranks - 1;
    int n_failed = 0;
    dt_saver *s = NULL;
    assert_all(f->mpi, open_zero(f, 1, DT_F32, false));
    assert_all(f->mpi, fill_states(f->z, true, 1));
    assert_all(f->mpi, dt_saver_open(&s, &f->comm, &f->dev, NULL, dt_zero_saved_nbytes(f->z, DT_TRAINED)) ==
                           DT_OK); /* for every other */
    for (int e = 0; e < 3; e++)
        for (int rank = 0; rank <= last; rank += last > 0 ? last : 1) {
            assert_all(f->mpi, f->comm.rank != 0 || shell("rm -rf '%s'/*", f->dir));
            assert_all(f->mpi, save_step(f, 1, 0) == DT_OK);
            for (int n = 1; a_save_fails(f, e % 2 ? s : NULL, rank, n, errors[e]); n++) n_failed++;
        }
    assert_all(f->mpi, n_failed >= 3 * 8);
    dt_saver_close(s);
    if (f->comm.rank == 0) print_message("%d calls failed in turn\n", n_failed);
}

MPI_TEST_MAIN(open_fixture, close_fixture)
