/* fuzz_features.c - any bytes as a file of kept features, or as a list of a dataset's images: what is found has the
 * checksum that was written with it, anything else is refused by name. The first byte chooses: 1 puts a head in front
 * that fits the rest, which no mutation would find; 2 opens the file twice; 4 takes the rest for a list of images. */
#include "dtrain/data/features.h"
#include "dtrain/io/io.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEAD = 4096, PAGE = 4096, LISTED = 24, N_ROWS = 3, WIDTH = 5 }; /* an image of the list: a hash, a checksum */
static const dt_feature_kind KIND = {.tower = 42, .dtype = DT_F32, .n_rows = N_ROWS, .width = WIDTH};

static void must(bool holds)
{
    if (!holds) abort();
}

static bool done(dt_err err, const char *path)
{
    must(err == DT_OK || (err == DT_ERR_DATA && strstr(dt_error_message(), path)));
    dt_error_clear();
    return err == DT_OK;
}

/* As many images as a list and features of so many bytes are of. */
static int64_t n_images(size_t nbytes)
{
    int64_t n = 0;
    while (((size_t)(n + 1) * LISTED + PAGE - 1) / PAGE * PAGE + (size_t)(n + 1) * dt_feature_nbytes(&KIND) <= nbytes)
        n++;
    return n;
}

static void write_head(FILE *f, const uint8_t *rest, size_t nbytes)
{
    char head[HEAD];
    const int64_t n = n_images(nbytes);
    memset(head, '\n', HEAD);
    const int len = snprintf(head, HEAD,
                             "dtrain features, version 1\ntower: %016" PRIx64
                             "\ntype: fp32\nrows: %d\nwidth: %d\nimages: %" PRId64 "\nchecksum: %016" PRIx64 "\n",
                             KIND.tower, N_ROWS, WIDTH, n, dt_checksum(rest, 0, n * LISTED / 8, 8));
    head[len] = '\n';
    must(fwrite(head, 1, HEAD, f) == HEAD);
}

static void write_file(const char *path, const uint8_t *bytes, size_t nbytes, bool with_head)
{
    FILE *f = fopen(path, "wb");
    must(f != NULL);
    if (with_head) write_head(f, bytes, nbytes);
    must(fwrite(bytes, 1, nbytes, f) == nbytes && fclose(f) == 0);
}

/* Each image that the file may list is looked for. */
static void check_features(const char *path, const uint8_t *list, size_t nbytes, bool twice)
{
    char names[160];
    dt_features *f;
    snprintf(names, sizeof names, "%s\n", path);
    if (twice) snprintf(names, sizeof names, "%s\n%s\n", path, path);
    if (!done(dt_features_open(&f, &KIND, names), path)) {
        must(f == NULL);
        return;
    }
    for (size_t at = 0; at + LISTED <= nbytes; at += LISTED) {
        dt_image_hash image;
        float features[N_ROWS * WIDTH];
        memcpy(&image, list + at, sizeof image);
        const dt_feature_slot place = dt_features_find(f, &image);
        if (place.file >= 0) done(dt_features_read(f, &place, features), path);
        must(place.file < 1 + twice);
    }
    dt_features_forget(f);
    must(dt_features_find(f, &(dt_image_hash){{1, 2}}).file == -1);
    dt_features_close(f);
}

static void check_list(const uint8_t *bytes, size_t nbytes)
{
    char path[64];
    const int64_t n = (int64_t)(nbytes / sizeof(dt_image_hash));
    const uint64_t key = (uint64_t)getpid();
    dt_image_hash *images = malloc((size_t)n * sizeof *images + 1);
    snprintf(path, sizeof path, "/tmp/images-%016" PRIx64 ".list", key);
    write_file(path, bytes, nbytes, false);
    if (dt_image_list_read("/tmp", key, images, n)) must(memcmp(images, bytes, (size_t)n * sizeof *images) == 0);
    must(!dt_image_list_read("/tmp", key, images, n / 2) || n == 0);
    free(images);
    unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    const bool with_head = data[0] & 1, twice = data[0] & 2;
    const uint8_t *rest = data + 1;
    const size_t nbytes = size - 1, list = with_head ? 0 : HEAD;
    char path[64];
    if (data[0] & 4) {
        check_list(rest, nbytes);
        return 0;
    }
    snprintf(path, sizeof path, "/tmp/dtrain-fuzz-%d.bin", (int)getpid());
    write_file(path, rest, nbytes, with_head);
    if (nbytes > list)
        check_features(path, rest + list, nbytes - list, twice);
    else
        check_features(path, rest, 0, twice);
    unlink(path);
    return 0;
}
