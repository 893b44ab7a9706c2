/* test_features.c - files of kept features: what was written for an image is found by it, in any of several files, and
 * nothing else ever is: not what was altered, cut short or left unfinished, nor what another tower has made. */
#include "folder.h"
#include <glob.h>
#include <sys/wait.h>
#include "dtrain/data/features.h"

enum { IMAGE = 27, N_ROWS = 3, WIDTH = 5, N = 4, FEATURES = N_ROWS * WIDTH * 4 };
static const dt_feature_kind KIND = {.tower = 42, .dtype = DT_F32, .n_rows = N_ROWS, .width = WIDTH};

static dt_image_hash image(int i)
{
    uint8_t pixels[IMAGE];
    for (int t = 0; t < IMAGE; t++) pixels[t] = (uint8_t)dt_mix64((uint64_t)(1000 * i + t));
    return dt_image_hash_of(pixels, IMAGE);
}

static void features_of(int i, char out[FEATURES])
{
    for (int t = 0; t < FEATURES; t++) out[t] = (char)dt_mix64((uint64_t)(77 * i + t));
}

/* Of images first .. first+n-1, by two writers in turn. */
static void write_some(dt_feature_file *f, const dt_feature_kind *kind, int first, int n, bool publish)
{
    dt_feature_file other;
    dt_image_hash images[N];
    uint64_t checksums[N];
    assert_int_equal(dt_feature_file_create(f, kind, folder, n), DT_OK);
    assert_int_equal(dt_feature_file_join(&other, kind, f->part, n), DT_OK);
    for (int i = 0; i < n; i++) {
        char features[FEATURES];
        images[i] = image(first + i);
        features_of(first + i, features);
        assert_int_equal(dt_feature_file_write(i % 2 ? &other : f, i, &images[i], features, &checksums[i]), DT_OK);
    }
    dt_feature_file_close(&other);
    if (publish) assert_int_equal(dt_feature_file_publish(f, folder, images, checksums), DT_OK);
}

static void make(const dt_feature_kind *kind, int first, int n)
{
    dt_feature_file f;
    write_some(&f, kind, first, n, true);
    dt_feature_file_close(&f);
}

static dt_err open_all(dt_features **f, const dt_feature_kind *kind)
{
    char *names;
    assert_int_equal(dt_features_list(folder, kind, &names), DT_OK);
    const dt_err err = dt_features_open(f, kind, names);
    free(names);
    return err;
}

static int n_names(const char *pattern)
{
    char path[128];
    glob_t g;
    snprintf(path, sizeof path, "%s/%s", folder, pattern);
    const int n = glob(path, 0, NULL, &g) == 0 ? (int)g.gl_pathc : 0;
    if (n > 0) globfree(&g);
    return n;
}

static int empty(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -f %s/*", folder);
    return system(command);
}

static void assert_found(const dt_features *f, int i)
{
    char expected[FEATURES], found[FEATURES];
    const dt_image_hash hash = image(i);
    const dt_feature_slot at = dt_features_find(f, &hash);
    assert_true(at.file >= 0);
    features_of(i, expected);
    assert_int_equal(dt_features_read(f, &at, found), DT_OK);
    assert_memory_equal(found, expected, FEATURES);
}

TEST(every_byte_of_an_image_counts)
{
    uint8_t pixels[IMAGE] = {0};
    const dt_image_hash zero = dt_image_hash_of(pixels, IMAGE), shorter = dt_image_hash_of(pixels, IMAGE - 1);
    assert_int_not_equal(dt_image_hash_compare(&zero, &shorter), 0);
    for (int t = 0; t < IMAGE; t++) {
        pixels[t] = 1;
        const dt_image_hash other = dt_image_hash_of(pixels, IMAGE);
        assert_true(other.word[0] != zero.word[0] && other.word[1] != zero.word[1]);
        pixels[t] = 0;
    }
}

TEST_WITH(features_are_found_by_their_image_in_any_file, NULL, empty)
{
    dt_features *f;
    const dt_image_hash missing = image(9);
    make(&KIND, 0, N);
    make(&KIND, N, 2);
    assert_int_equal(open_all(&f, &KIND), DT_OK);
    for (int i = 0; i < N + 2; i++) assert_found(f, i);
    assert_int_equal(dt_features_find(f, &missing).file, -1);
    dt_features_close(f);
    make(&KIND, 0, N); /* again, as another run would: the same file */
    assert_int_equal(n_names("*"), 2);
}

TEST_WITH(another_kind_has_its_own, NULL, empty)
{
    dt_features *f;
    dt_feature_kind tower = KIND, type = KIND;
    const dt_image_hash first = image(0);
    tower.tower++;
    type.dtype = DT_BF16;
    make(&KIND, 0, N);
    assert_int_equal(open_all(&f, &tower), DT_OK);
    assert_int_equal(dt_features_find(f, &first).file, -1);
    dt_features_close(f);
    assert_int_equal(open_all(&f, &type), DT_ERR_DATA); /* of one tower all are of one type */
    assert_null(f);
}

TEST_WITH(unpublished_files_are_discarded, NULL, empty)
{
    dt_features *f;
    dt_feature_file left, kept;
    const pid_t killed = fork();
    if (killed == 0) {
        write_some(&left, &KIND, 0, N, false);
        _exit(0);
    }
    assert_int_equal(waitpid(killed, NULL, 0), killed);
    assert_int_equal(n_names("*.part"), 1);
    write_some(&kept, &KIND, 0, 2, false);
    assert_int_equal(n_names("*.part"), 1); /* the killed process's files are gone, and a new file exists */
    make(&KIND, N, 1);
    assert_int_equal(n_names("*.part"), 1);
    dt_feature_file_close(&kept);
    assert_int_equal(n_names("*.part"), 0);
    assert_int_equal(open_all(&f, &KIND), DT_OK);
    const dt_image_hash first = image(0);
    assert_int_equal(dt_features_find(f, &first).file, -1);
    assert_found(f, N);
    dt_features_close(f);
}

/* Changes each byte of a file in turn; the gap between the list and the features is unused. */
TEST_WITH(an_altered_byte_is_detected, NULL, empty)
{
    enum { HEAD = 4096, LIST = N * 24, AT = 8192 };
    char *names, features[FEATURES];
    make(&KIND, 0, N);
    assert_int_equal(dt_features_list(folder, &KIND, &names), DT_OK);
    *strchr(names, '\n') = '\0';
    FILE *file = fopen(names, "r+b");
    assert_non_null(file);
    setbuf(file, NULL);
    for (long at = 0; at<AT + N * FEATURES; at += at> 300 && at < HEAD - 1 ? HEAD - 1 - at : 1) {
        if (at == HEAD + LIST) at = AT;
        dt_features *f;
        fseek(file, at, SEEK_SET);
        const int byte = fgetc(file);
        fseek(file, at, SEEK_SET);
        fputc(byte ^ 1, file);
        dt_err err = open_all(&f, &KIND);
        assert_int_equal(err, at < AT ? DT_ERR_DATA : DT_OK);
        for (int i = 0; i < N && f; i++) {
            const dt_image_hash hash = image(i);
            const dt_feature_slot place = dt_features_find(f, &hash);
            assert_int_equal(dt_features_read(f, &place, features),
                             (at - AT) / FEATURES == place.row ? DT_ERR_DATA : DT_OK);
        }
        dt_features_close(f);
        fseek(file, at, SEEK_SET);
        fputc(byte, file);
    }
    fclose(file);
    for (long size = 0; size < AT + N * FEATURES; size += 501) {
        dt_features *f;
        assert_int_equal(truncate(names, AT + N * FEATURES), 0);
        assert_int_equal(truncate(names, size), 0);
        assert_int_equal(open_all(&f, &KIND), DT_ERR_DATA);
    }
    free(names);
}

int main(void) { return run_listed(NULL, make_folder, remove_folder); }
