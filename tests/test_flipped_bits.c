/* test_flipped_bits.c - files with one flipped bit, each opened and read whole by a child: none crashes or hangs it,
 * and of a sealed file each is refused.
 *
 * FLIP_FILES: files to be tried (blanks between them) instead of those that are made here; FLIP_EVERY: every so
 * many bits (31); FLIP_MOST: of the first and last so many bytes of each file (all). */
#include "cases.h"
#include <fcntl.h>
#include <hdf5.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/data/dataset.h"
#include "dtrain/io/io.h"

enum { PROCESSORS = 2, SECONDS = 20 };
static char dir[64];

static int64_t setting(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atoll(text) : otherwise;
}

static dt_err add_sum(hid_t dset, const char *name, void *ctx)
{
    dt_h5_array a;
    uint64_t sum;
    DT_TRY(dt_h5_inspect(dset, ctx, name, &a));
    DT_TRY(dt_h5_checksum(dset, ctx, name, &a, &sum));
    return a.has_checksum && sum != a.checksum ? dt_fail(DT_ERR_DATA, "%s: altered", name) : DT_OK;
}

/* As dtrain-info does: what has no seal is tried first. */
static dt_err read_whole(const char *path)
{
    hid_t file;
    char *format = NULL;
    dt_h5_lock();
    dt_err err = dt_h5_survives(path);
    if (err == DT_OK) err = dt_h5_open(path, &file, NULL);
    if (err == DT_OK) {
        err = dt_h5_read_text(file, path, "format", &format);
        const dt_err listed = dt_h5_each_array(file, path, add_sum, (void *)path);
        if (err == DT_OK) err = listed;
        H5Fclose(file);
    }
    dt_h5_unlock();
    if (err == DT_OK && strcmp(format, "dtrain-checkpoint") == 0) err = dt_checkpoint_verify(path, NULL);
    if (err == DT_OK && strcmp(format, "dtrain-dataset") == 0) {
        dt_dataset *d;
        err = dt_dataset_open(&d, path);
        if (err == DT_OK) err = dt_dataset_verify(d, NULL, NULL), dt_dataset_close(d);
    }
    free(format);
    return err;
}

typedef struct counts {
    int64_t n, refused, crashed, hung, taken;
} counts;

/* Bits first, first + PROCESSORS * every, ... of a copy; a crash in the reading shows in the child's status. */
static counts flip(const char *path, int fd, int64_t first, int64_t every, int64_t nbytes, int64_t most)
{
    counts c = {0};
    for (int64_t bit = first; bit < 8 * nbytes; bit += every) {
        const int64_t at = bit / 8;
        unsigned char byte, flipped;
        int status = 0;
        if (most && at >= most && at < nbytes - most) continue;
        if (pread(fd, &byte, 1, at) != 1) continue;
        flipped = (unsigned char)(byte ^ 1 << bit % 8);
        if (pwrite(fd, &flipped, 1, at) != 1) continue;
        const pid_t child = fork();
        if (child == 0) {
            alarm(SECONDS);
            _exit(read_whole(path) == DT_OK ? 0 : 1);
        }
        waitpid(child, &status, 0);
        c.n++;
        c.refused += WIFEXITED(status) && WEXITSTATUS(status) == 1;
        c.taken += WIFEXITED(status) && WEXITSTATUS(status) == 0;
        c.hung += WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
        c.crashed += WIFSIGNALED(status) && WTERMSIG(status) != SIGALRM;
        if (pwrite(fd, &byte, 1, at) != 1) break;
    }
    return c;
}

static counts flip_all(const char *of, int64_t every, int64_t most)
{
    counts all = {0}, one;
    int ends[2];
    struct stat st;
    assert_int_equal(stat(of, &st), 0);
    assert_int_equal(pipe(ends), 0);
    for (int p = 0; p < PROCESSORS; p++) {
        if (fork() != 0) continue;
        char copy[128];
        snprintf(copy, sizeof copy, "%s/copy-%d", dir, p);
        if (dt_copy_file(of, copy) != DT_OK) _exit(1);
        const int fd = open(copy, O_RDWR);
        one = flip(copy, fd, p * every, PROCESSORS * every, st.st_size, most);
        unlink(copy);
        _exit(write(ends[1], &one, sizeof one) == sizeof one ? 0 : 1);
    }
    for (int p = 0; p < PROCESSORS; p++) {
        int status;
        wait(&status);
        assert_int_equal(status, 0);
        assert_int_equal(read(ends[0], &one, sizeof one), sizeof one);
        all.n += one.n, all.refused += one.refused, all.crashed += one.crashed, all.hung += one.hung;
        all.taken += one.taken;
    }
    close(ends[0]), close(ends[1]);
    print_message("%s: %lld bits: %lld refused, %lld taken, %lld crashes, %lld hang\n", of, (long long)all.n,
                  (long long)all.refused, (long long)all.taken, (long long)all.crashed, (long long)all.hung);
    return all;
}

static void must_be_refused(const char *path)
{
    const counts c = flip_all(path, setting("FLIP_EVERY", 31), setting("FLIP_MOST", 0));
    assert_true(c.n > 0);
    assert_int_equal(c.crashed + c.hung, 0);
    assert_int_equal(c.taken, 0);
}

TEST(each_bit_of_a_sealed_file_is_refused)
{
    char path[128];
    const char *files = getenv("FLIP_FILES");
    if (files && *files) {
        char *list = strdup(files), *rest = list;
        for (char *one; (one = strsep(&rest, " "));)
            if (*one) must_be_refused(one);
        free(list);
        return;
    }
    snprintf(path, sizeof path, "%s/set.h5", dir);
    dt_dataset_writer *w;
    assert_int_equal(dt_dataset_create(&w, path, DT_DATASET_TOKENS, 100, "", false), DT_OK);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(dt_dataset_add(w, (const int32_t[]){1, 2, 3, i}, NULL, 4), DT_OK);
        assert_int_equal(dt_dataset_end_document(w, 1), DT_OK);
    }
    assert_int_equal(dt_datasets_commit(&w, NULL, 1), DT_OK);
    must_be_refused(path);
}

/* As another program may have made it, in HDF5's first format, which has no checksums of its own. */
TEST(no_bit_of_a_file_without_a_seal_brings_the_process_down)
{
    char path[128];
    const hsize_t n = 16;
    const float x[16] = {1, 2, 3};
    snprintf(path, sizeof path, "%s/foreign.h5", dir);
    dt_h5_lock();
    const hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), space = H5Screate_simple(1, &n, NULL);
    assert_int_equal(dt_h5_write_text(file, path, "format", "dtrain-checkpoint"), DT_OK);
    const hid_t group = H5Gcreate2(file, "model", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    for (int i = 0; i < 3; i++) {
        const char *const names[] = {"a", "b", "c"};
        const hid_t d = H5Dcreate2(group, names[i], H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
        H5Dwrite(d, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, x);
        H5Dclose(d);
    }
    H5Gclose(group), H5Sclose(space), H5Fclose(file);
    dt_h5_unlock();
    const counts c = flip_all(path, setting("FLIP_EVERY", 31), 0);
    assert_int_equal(c.crashed + c.hung, 0);
}

int main(void)
{
    setenv("DTRAIN_LOG", "error", 0);
    dt_log_open(0, 1, "test");
    strcpy(dir, access("/dev/shm", W_OK) == 0 ? "/dev/shm/dtrain-flip-XXXXXX" : "/tmp/dtrain-flip-XXXXXX");
    if (!mkdtemp(dir)) return 1;
    const int failed = run_listed(NULL, NULL, NULL);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) == 0 ? failed : 1;
}
