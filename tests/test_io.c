/* test_io.c - the checksum against its definition, attributes of every kind, files that survive or are refused. */
#include "cases.h"
#include "dtrain/config/config.h"
#include "dtrain/io/io.h"
#include <limits.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* ---- the checksum ------------------------------------------------------------------------------------------------ */

static uint64_t word_at(const unsigned char *p, size_t size)
{
    uint64_t w = 0;
    for (size_t b = 0; b < size; b++) w |= (uint64_t)p[b] << (8 * b);
    return w;
}

/* The definition in io.h, word for word. */
static uint64_t plain_checksum(const unsigned char *p, int64_t first, int64_t n, size_t size)
{
    uint64_t sum = 0;
    for (int64_t k = 0; k < n; k++) {
        const uint64_t i = (uint64_t)(first + k);
        sum += (word_at(p + (size_t)k * size, size) + 1) * dt_checksum_block(i / 1024) * dt_checksum_lane(i % 1024);
    }
    return sum;
}

enum { N_BYTES = 33 << 20 }; /* above the size from which threads are used */

static unsigned char *random_bytes(void)
{
    uint64_t *p = malloc(N_BYTES);
    assert_non_null(p);
    for (uint64_t i = 0; i < N_BYTES / 8; i++) p[i] = dt_mix64(i + 77);
    return (unsigned char *)p;
}

TEST(checksum_is_its_definition)
{
    unsigned char *p = random_bytes();
    const int64_t firsts[] = {0, 1, 1023, 1024, 5000, ((int64_t)1 << 33) + 3},
                  counts[] = {0, 1, 2, 1023, 1024, 1025, 10007, 1 << 20};
    for (size_t size = 1; size <= 8; size *= 2)
        for (size_t f = 0; f < sizeof firsts / sizeof firsts[0]; f++)
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
                assert_int_equal(dt_checksum(p + 1, firsts[f], counts[c], size),
                                 plain_checksum(p + 1, firsts[f], counts[c], size));
    const int64_t all = N_BYTES / 4;
    assert_int_equal(dt_checksum(p, 0, all, 4), plain_checksum(p, 0, all, 4));
    free(p);
}

TEST(checksum_adds_up_over_any_cuts)
{
    unsigned char *p = random_bytes();
    for (size_t size = 1; size <= 8; size *= 2) {
        const int64_t n = (int64_t)(200001 / size);
        const uint64_t whole = dt_checksum(p, 0, n, size);
        for (uint64_t trial = 0; trial < 20; trial++) {
            uint64_t sum = 0;
            for (int64_t at = 0, k = 0; at < n; k++) {
                int64_t len = (int64_t)(dt_mix64(trial * 1000 + (uint64_t)k) % (trial % 2 ? 40000 : 900));
                if (len > n - at) len = n - at;
                sum += dt_checksum(p + (size_t)at * size, at, len, size);
                at += len;
            }
            assert_int_equal(sum, whole);
        }
    }
    free(p);
}

/* The guarantee for two elements of one block needs keys that differ. */
TEST(lanes_differ)
{
    for (uint64_t j = 0; j < DT_CHECKSUM_BLOCK; j++)
        for (uint64_t k = 0; k < j; k++) assert_int_not_equal(dt_checksum_lane(j), dt_checksum_lane(k));
}

TEST(checksum_detects_every_small_corruption)
{
    enum { N = 5000 };
    uint32_t w[N];
    for (uint32_t i = 0; i < N; i++) { /* typical initial weights: ones, zeros and small values */
        union {
            float f;
            uint32_t u;
        } x = {.f = i % 3 == 0 ? 1.0f : i % 3 == 1 ? 0.0f : (float)i * 0.001f};
        w[i] = x.u;
    }
    const uint64_t good = dt_checksum(w, 0, N, 4);
    for (uint32_t i = 0; i < N; i += 7)
        for (uint32_t bit = 0; bit < 32; bit++) {
            w[i] ^= 1u << bit;
            assert_int_not_equal(dt_checksum(w, 0, N, 4), good);
            w[i] ^= 1u << bit;
        }
    for (uint32_t i = 0; i < N; i += 13) { /* exchanges, near and far */
        const uint32_t j = (uint32_t)(dt_mix64(i) % N), wi = w[i], wj = w[j];
        if (wi == wj) continue;
        w[i] = wj, w[j] = wi;
        assert_int_not_equal(dt_checksum(w, 0, N, 4), good);
        w[i] = wi, w[j] = wj;
    }
    for (int64_t n = N - 50; n < N; n++) assert_int_not_equal(dt_checksum(w, 0, n, 4), good); /* cut short */
    assert_int_not_equal(dt_checksum(w, 1, N, 4), good);                                      /* shifted */
    uint32_t zeros[600] = {0};
    for (int64_t n = 1; n < 600; n++)
        assert_int_not_equal(dt_checksum(zeros, 0, n, 4), dt_checksum(zeros, 0, n - 1, 4));
    for (uint32_t i = 0; i + 1024 <= N; i += 512) { /* a page of the disk lost */
        uint32_t kept[1024];
        memcpy(kept, w + i, sizeof kept);
        memset(w + i, 0, sizeof kept);
        assert_int_not_equal(dt_checksum(w, 0, N, 4), good);
        memcpy(w + i, kept, sizeof kept);
    }
    assert_int_equal(dt_checksum(w, 0, N, 4), good);
}

/* ---- a folder for each test -------------------------------------------------------------------------------------- */

static char *in_folder(const char *folder, const char *name)
{
    static char path[4][PATH_MAX];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, PATH_MAX, "%s/%s", folder, name);
    return p;
}

static int make_folder(void **state)
{
    char template[] = "/tmp/dtrain-io-XXXXXX";
    *state = mkdtemp(template) ? strdup(template) : NULL;
    dt_error_clear();
    return *state ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[PATH_MAX];
    snprintf(command, sizeof command, "rm -rf '%s'", (char *)*state);
    free(*state);
    return system(command);
}

#define assert_says(part)                                                                                              \
    do {                                                                                                               \
        if (!strstr(dt_error_message(), part)) fail_msg("message \"%s\" lacks \"%s\"", dt_error_message(), part);      \
        dt_error_clear();                                                                                              \
    } while (0)

/* ---- attributes -------------------------------------------------------------------------------------------------- */

static hid_t new_file(const char *path)
{
    dt_h5_lock();
    hid_t f = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(f >= 0);
    return f;
}

TEST_WITH(attributes_come_back, make_folder, remove_folder)
{
    const char *path = in_folder(*state, "a.h5");
    const size_t lens[] = {0, 1, 100, 65535, 65536, 200 << 10};
    hid_t f = new_file(path);
    for (size_t k = 0; k < 6; k++) {
        char name[16], *text = calloc(lens[k] + 1, 1);
        snprintf(name, sizeof name, "text%zu", k);
        for (size_t i = 0; i < lens[k]; i++) text[i] = (char)('a' + i % 26);
        assert_int_equal(dt_h5_write_text(f, path, name, text), DT_OK);
        free(text);
    }
    assert_int_equal(dt_h5_write_u64(f, path, "u", UINT64_MAX), DT_OK);
    assert_int_equal(dt_h5_write_i64(f, path, "i", INT64_MIN), DT_OK);
    assert_int_equal(dt_h5_write_f64(f, path, "d", 0.1), DT_OK);
    assert_int_equal(dt_h5_write_u64(f, path, "twice", 1), DT_OK);
    assert_int_equal(dt_h5_write_u64(f, path, "twice", 2), DT_OK);
    H5Fclose(f);

    f = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    for (size_t k = 0; k < 6; k++) {
        char name[16], *text;
        snprintf(name, sizeof name, "text%zu", k);
        assert_int_equal(dt_h5_read_text(f, path, name, &text), DT_OK);
        assert_int_equal(strlen(text), lens[k]);
        for (size_t i = 0; i < lens[k]; i++) assert_true(text[i] == (char)('a' + i % 26));
        free(text);
    }
    uint64_t u;
    int64_t i;
    double d;
    assert_int_equal(dt_h5_read_u64(f, path, "u", &u), DT_OK);
    assert_true(u == UINT64_MAX);
    assert_int_equal(dt_h5_read_i64(f, path, "i", &i), DT_OK);
    assert_true(i == INT64_MIN);
    assert_int_equal(dt_h5_read_f64(f, path, "d", &d), DT_OK);
    assert_true(d == 0.1);
    assert_int_equal(dt_h5_read_u64(f, path, "twice", &u), DT_OK);
    assert_int_equal(u, 2);
    assert_true(dt_h5_has(f, "d"));
    assert_false(dt_h5_has(f, "nothing"));

    assert_int_equal(dt_h5_read_i64(f, path, "u", &i), DT_ERR_DATA);
    assert_says("too large");
    assert_int_equal(dt_h5_read_u64(f, path, "i", &u), DT_ERR_DATA);
    assert_says("found -9223372036854775808");
    assert_int_equal(dt_h5_read_u64(f, path, "d", &u), DT_ERR_DATA);
    assert_says("expected an integer");
    assert_int_equal(dt_h5_read_f64(f, path, "text1", &d), DT_ERR_DATA);
    assert_says("expected a number");
    char *text;
    assert_int_equal(dt_h5_read_text(f, path, "d", &text), DT_ERR_DATA);
    assert_null(text);
    assert_says("expected a text");
    assert_int_equal(dt_h5_read_text(f, path, "nothing", &text), DT_ERR_DATA);
    assert_says("`nothing` is missing");
    H5Fclose(f);
    dt_h5_unlock();
}

/* What other writers make: fixed-length strings with either padding, narrow integers, arrays of one, of three, of
 * none. */
TEST_WITH(foreign_attributes_are_read_or_refused, make_folder, remove_folder)
{
    const char *path = in_folder(*state, "b.h5");
    hid_t f = new_file(path), fixed = H5Tcopy(H5T_C_S1), scalar = H5Screate(H5S_SCALAR), a;
    H5Tset_size(fixed, 5);
    H5Tset_strpad(fixed, H5T_STR_SPACEPAD);
    a = H5Acreate2(f, "space", fixed, scalar, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(a, fixed, "ab   ");
    H5Aclose(a);
    H5Tset_strpad(fixed, H5T_STR_NULLPAD);
    a = H5Acreate2(f, "full", fixed, scalar, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(a, fixed, "abcde");
    H5Aclose(a);
    const hsize_t sizes[] = {1, 3};
    for (int k = 0; k < 2; k++) {
        hid_t space = H5Screate_simple(1, &sizes[k], NULL);
        a = H5Acreate2(f, k ? "three" : "one", H5T_STD_I16BE, space, H5P_DEFAULT, H5P_DEFAULT);
        H5Awrite(a, H5T_NATIVE_SHORT, (short[]){-7, 8, 9});
        H5Aclose(a);
        H5Sclose(space);
    }
    hid_t null = H5Screate(H5S_NULL);
    a = H5Acreate2(f, "none", H5T_STD_I32LE, null, H5P_DEFAULT, H5P_DEFAULT);
    H5Aclose(a);
    H5Sclose(null);
    H5Sclose(scalar);
    H5Tclose(fixed);

    char *text;
    int64_t i;
    assert_int_equal(dt_h5_read_text(f, path, "space", &text), DT_OK);
    assert_string_equal(text, "ab");
    free(text);
    assert_int_equal(dt_h5_read_text(f, path, "full", &text), DT_OK);
    assert_string_equal(text, "abcde");
    free(text);
    assert_int_equal(dt_h5_read_i64(f, path, "one", &i), DT_OK);
    assert_int_equal(i, -7);
    assert_int_equal(dt_h5_read_i64(f, path, "three", &i), DT_ERR_DATA);
    assert_says("expected one value");
    assert_int_equal(dt_h5_read_i64(f, path, "none", &i), DT_ERR_DATA);
    assert_says("expected one value");
    H5Fclose(f);
    dt_h5_unlock();
}

TEST_WITH(hdf5_errors_come_with_its_own_words, make_folder, remove_folder)
{
    const char *path = in_folder(*state, "missing.h5");
    dt_h5_lock();
    assert_true(H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT) < 0);
    assert_int_equal(dt_h5_fail(DT_ERR_DATA, path, "cannot be opened"), DT_ERR_DATA);
    dt_h5_unlock();
    assert_non_null(strstr(dt_error_message(), "No such file or directory"));
    assert_non_null(strstr(dt_error_message(), path));
    assert_says("cannot be opened: ");
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

TEST_WITH(directories_are_made_with_their_parents, make_folder, remove_folder)
{
    struct stat st;
    const char *deep = in_folder(*state, "a/b//c/d/");
    assert_int_equal(dt_make_dirs(deep), DT_OK);
    assert_int_equal(stat(deep, &st), 0);
    assert_int_equal(dt_make_dirs(deep), DT_OK);
    assert_int_equal(dt_write_file_atomic(in_folder(*state, "a/file"), "x", 1), DT_OK);
    assert_int_equal(dt_make_dirs(in_folder(*state, "a/file/below")), DT_ERR_WRITE);
    assert_says("a/file");
    assert_fails(dt_make_dirs(""), DT_ERR_WRITE, "");
}

TEST_WITH(a_file_is_replaced_atomically, make_folder, remove_folder)
{
    const char *path = in_folder(*state, "f"), *part = in_folder(*state, "f.part");
    assert_int_equal(dt_write_file_atomic(path, "first, longer", 13), DT_OK);
    assert_int_equal(dt_write_file_atomic(path, "second", 6), DT_OK);
    char text[32] = "";
    FILE *f = fopen(path, "r");
    assert_int_equal(fread(text, 1, sizeof text, f), 6);
    fclose(f);
    assert_string_equal(text, "second");
    assert_int_equal(access(part, F_OK), -1);
    assert_int_equal(dt_write_file_atomic(in_folder(*state, "no/such/f"), "x", 1), DT_ERR_WRITE);
    assert_says("No such file or directory (its directory does not exist; was it removed?)");
    assert_int_equal(dt_rename_durable(in_folder(*state, "absent"), path), DT_ERR_WRITE);
    assert_says("absent");
    const char *fifo = in_folder(*state, "fifo"); /* replaces /dev/null, which root's rename would overwrite */
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(dt_write_file_atomic(fifo, "x", 1), DT_ERR_WRITE);
    assert_says("device, pipe or socket");
    assert_int_equal(unlink(in_folder(*state, "fifo")), 0);
    assert_int_equal(mkdir(in_folder(*state, "dir"), 0777), 0); /* the rename fails: the part goes */
    assert_int_equal(dt_write_file_atomic(in_folder(*state, "dir"), "x", 1), DT_ERR_WRITE);
    assert_int_equal(access(in_folder(*state, "dir.part"), F_OK), -1);
}

TEST_WITH(a_file_of_many_pieces_is_copied, make_folder, remove_folder)
{
    enum { SIZE = (3 << 20) + 17 };
    char *bytes = malloc(SIZE), *copy, from[256], to[256];
    size_t n;
    for (int i = 0; i < SIZE; i++) bytes[i] = (char)(i * 31 + i / 1000);
    snprintf(from, sizeof from, "%s", in_folder(*state, "from"));
    snprintf(to, sizeof to, "%s", in_folder(*state, "to"));
    assert_int_equal(dt_write_file_sync(from, bytes, SIZE), DT_OK);
    assert_int_equal(dt_copy_file(from, to), DT_OK);
    assert_int_equal(dt_read_file(to, SIZE, &copy, &n), DT_OK);
    assert_int_equal(n, SIZE);
    assert_memory_equal(copy, bytes, SIZE);
    assert_int_equal(dt_copy_file(in_folder(*state, "absent"), to), DT_ERR_DATA);
    assert_says("absent");
    assert_int_equal(access(to, F_OK), 0);
    free(copy);
    free(bytes);
}

/* A child that writes PATH aside, reports it, and commits when the parent permits. */
static pid_t writer_beside(const char *path, int *ready, int *go)
{
    int up[2], down[2];
    assert_true(pipe(up) == 0 && pipe(down) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
        dt_aside a;
        char c = 'x';
        close(down[1]);
        const bool ok = dt_aside_open(&a, path) == DT_OK && dt_aside_write(&a, "child", 5) == DT_OK &&
                        write(up[1], &c, 1) == 1 && read(down[0], &c, 1) == 1 && dt_aside_commit(&a) == DT_OK;
        _exit(ok ? 0 : 1);
    }
    close(up[1]);
    close(down[0]);
    *ready = up[0];
    *go = down[1];
    char c;
    assert_int_equal(read(*ready, &c, 1), 1);
    return pid;
}

TEST_WITH(files_in_use_by_another_process_are_not_touched, make_folder, remove_folder)
{
    char path[256], part[280], *text;
    size_t n;
    int ready, go, status;
    dt_aside a;
    snprintf(path, sizeof path, "%s", in_folder(*state, "shared"));
    snprintf(part, sizeof part, "%s.part", path);
    pid_t pid = writer_beside(path, &ready, &go);
    assert_int_equal(dt_aside_open(&a, path), DT_ERR_WRITE);
    assert_says("shared.part: another process is writing this output");
    dt_remove_part(part);
    assert_int_equal(write(go, "x", 1), 1);
    assert_true(waitpid(pid, &status, 0) == pid && status == 0);
    assert_int_equal(dt_read_file(path, 100, &text, &n), DT_OK);
    assert_string_equal(text, "child");
    free(text);

    pid = writer_beside(path, &ready, &go); /* what a killed one left goes */
    assert_true(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid && access(part, F_OK) == 0);
    assert_int_equal(dt_write_file_atomic(path, "parent", 6), DT_OK);
    assert_int_equal(access(part, F_OK), -1);
}

TEST_WITH(machine_faults_are_not_blamed_on_the_file, make_folder, remove_folder)
{
    char *text;
    size_t n;
    struct rlimit files;
    const char *path = in_folder(*state, "sound");
    assert_int_equal(dt_write_file_atomic(path, "x", 1), DT_OK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, files.rlim_max}), 0);
    const dt_err err = dt_read_file(path, 100, &text, &n);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    assert_int_equal(err, DT_ERR_FAULT);
    assert_says("sound: cannot be opened: Too many open files");
    assert_fails(dt_read_file(in_folder(*state, "absent"), 100, &text, &n), DT_ERR_DATA, "");
}

TEST_WITH(only_the_file_that_was_made_is_renamed, make_folder, remove_folder)
{
    char path[256], part[280];
    dt_aside a;
    snprintf(path, sizeof path, "%s", in_folder(*state, "replaced"));
    snprintf(part, sizeof part, "%s.part", path);
    assert_int_equal(dt_aside_open(&a, path), DT_OK); /* as on a file system without locks */
    assert_int_equal(rename(part, in_folder(*state, "elsewhere")), 0);
    FILE *f = fopen(part, "w");
    assert_true(f && fclose(f) == 0);
    assert_int_equal(dt_aside_commit(&a), DT_ERR_WRITE);
    assert_says("another process replaced or removed this file");
    assert_true(access(path, F_OK) != 0 && access(part, F_OK) == 0);
}

TEST_WITH(files_are_replaced_atomically, make_folder, remove_folder)
{
    char path[256], part[280], *text;
    size_t n;
    dt_aside a = {0};
    dt_aside_drop(&a); /* nothing is open */
    snprintf(path, sizeof path, "%s", in_folder(*state, "aside"));
    snprintf(part, sizeof part, "%s.part", path);
    assert_int_equal(dt_aside_open(&a, path), DT_OK);
    assert_int_equal(dt_aside_write(&a, "one, ", 5), DT_OK);
    assert_int_equal(dt_aside_write(&a, "two", 3), DT_OK);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(dt_aside_commit(&a), DT_OK);
    dt_aside_drop(&a);
    assert_int_equal(dt_aside_open(&a, path), DT_OK);
    assert_int_equal(dt_aside_write(&a, "three", 5), DT_OK);
    dt_aside_drop(&a);
    assert_int_equal(access(part, F_OK), -1);
    assert_int_equal(dt_read_file(path, 100, &text, &n), DT_OK);
    assert_string_equal(text, "one, two");
    free(text);
}

TEST_WITH(patterns_give_files_in_order, make_folder, remove_folder)
{
    const char *names[] = {"t-2.h5", "t-10.h5", "t-1.h5", "odd[1].h5"};
    for (int i = 0; i < 4; i++) assert_int_equal(dt_write_file_atomic(in_folder(*state, names[i]), "", 0), DT_OK);
    assert_int_equal(mkdir(in_folder(*state, "t-3.h5"), 0777), 0);
    char **paths;
    int n;
    assert_int_equal(dt_glob(in_folder(*state, "t-*.h5"), &paths, &n), DT_OK);
    assert_int_equal(n, 3);
    assert_string_equal(paths[0], in_folder(*state, "t-1.h5"));
    assert_string_equal(paths[1], in_folder(*state, "t-10.h5"));
    assert_string_equal(paths[2], in_folder(*state, "t-2.h5"));
    dt_list_free(paths, n);
    assert_int_equal(dt_glob(in_folder(*state, "odd[1].h5"), &paths, &n), DT_OK);
    assert_int_equal(n, 1);
    dt_list_free(paths, n);
    assert_int_equal(dt_glob(in_folder(*state, "x*.h5"), &paths, &n), DT_ERR_DATA);
    assert_says("no file matches");
    assert_int_equal(dt_glob(in_folder(*state, "t-7.h5"), &paths, &n), DT_ERR_DATA);
    assert_says("No such file or directory");
    assert_int_equal(dt_glob(*state, &paths, &n), DT_ERR_DATA);
    assert_says("found a directory");
    assert_int_equal(n, 0);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
