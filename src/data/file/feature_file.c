/* feature_file.c - file format of image features, little-endian: a text head, the list of images with the
 * checksums of their features, and the features. Head and list are written last, so that the file of a
 * killed process is recognised as incomplete. */
#include "dtrain/data/features.h"
#include "dtrain/io/io.h"
#include "dtrain/text/utf8.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD = 4096, PAGE = 4096 };
static const char PREFIX[] = "features-", ENDING[] = ".bin", PART[] = ".part", TITLE[] = "dtrain features, version 1";

/* One image of the list. */
typedef struct listed {
    dt_image_hash image;
    uint64_t checksum;
} listed;

typedef struct entry {
    dt_image_hash image;
    dt_feature_slot at;
} entry;

typedef struct source {
    char *path;
    int fd;
    int64_t n;
} source;

struct dt_features {
    dt_feature_kind kind;
    source *files;
    int n_files;
    entry *entries; /* sorted by image hash */
    int64_t n_entries;
};

/* Combine two checksums with different weights of the bytes. */
dt_image_hash dt_image_hash_of(const uint8_t *pixels, size_t nbytes)
{
    const int64_t n_words = (int64_t)(nbytes / 8), rest = (int64_t)nbytes - 8 * n_words;
    const uint64_t size = dt_mix64(nbytes), bytes = dt_checksum(pixels, 0, (int64_t)nbytes, 1),
                   words = dt_checksum(pixels, 0, n_words, 8) + dt_checksum(pixels + 8 * n_words, n_words, rest, 1);
    return (dt_image_hash){{dt_mix64(size ^ bytes), dt_mix64(~size ^ words)}};
}

int dt_image_hash_compare(const dt_image_hash *a, const dt_image_hash *b)
{
    const int k = a->word[0] == b->word[0];
    return (a->word[k] > b->word[k]) - (a->word[k] < b->word[k]);
}

static int64_t features_at(int64_t n, const dt_feature_kind *k, int64_t row)
{
    const int64_t list = HEAD + n * (int64_t)sizeof(listed);
    return (list + PAGE - 1) / PAGE * PAGE + row * (int64_t)dt_feature_nbytes(k);
}

/* Checksum of an image's features, combined with the image's hash. */
static uint64_t checksum_of(const dt_feature_kind *k, const dt_image_hash *image, const void *features)
{
    const uint64_t sum = dt_checksum(features, 0, (int64_t)dt_feature_nbytes(k) / 2, 2); /* elements of 2 or 4 bytes */
    return dt_mix64(sum ^ dt_mix64(image->word[0] ^ dt_mix64(image->word[1])));
}

static int print_head(const dt_feature_kind *k, int64_t n, uint64_t checksum, char head[HEAD])
{
    memset(head, '\n', HEAD);
    const int len = snprintf(head, HEAD,
                             "%s\ntower: %016" PRIx64 "\ntype: %s\nrows: %" PRId64 "\nwidth: %" PRId64
                             "\nimages: %" PRId64 "\nchecksum: %016" PRIx64 "\n",
                             TITLE, k->tower, dt_dtype_name(k->dtype), k->n_rows, k->width, n, checksum);
    head[len] = '\n';
    return len;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Call fn with the path of each file of a directory with this prefix and ending, by name. */
static dt_err each_path(const char *dir, const char *prefix, const char *ending, void (*fn)(void *, const char *),
                        void *self)
{
    struct dirent **entries;
    char path[PATH_MAX];
    const int n = scandir(dir, &entries, NULL, alphasort);
    if (n < 0 && errno == ENOENT) return DT_OK;
    DT_CHECK_ERRNO(n >= 0, DT_ERR_DATA, dir, "cannot be read");
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        const bool is_one = strncmp(name, prefix, strlen(prefix)) == 0 && dt_has_ending(name, ending);
        if (is_one && dt_join_path(path, dir, name, "")) fn(self, path);
        free(entries[i]);
    }
    free(entries);
    return DT_OK;
}

static void add_line(void *paths, const char *path) { dt_text_printf(paths, "%s\n", path); }

dt_err dt_features_list(const char *dir, const dt_feature_kind *kind, char **text)
{
    char prefix[64];
    dt_text paths = {0};
    size_t nbytes;
    snprintf(prefix, sizeof prefix, "%s%016" PRIx64 "-", PREFIX, kind->tower);
    const dt_err err = each_path(dir, prefix, ENDING, add_line, &paths);
    *text = dt_text_finish(&paths, &nbytes);
    DT_CHECK(err != DT_OK || *text, DT_ERR_MEMORY, "%s: out of memory for the names of its files", dir);
    if (err != DT_OK) free(*text), *text = NULL;
    return err;
}

static dt_err refuse(const char *path, const char *why)
{
    return dt_fail(DT_ERR_DATA, "%s: %s; remove the file to recompute its features", path, why);
}

/* Validate the head, and return the number of images and the checksum of the list. */
static dt_err read_head(const source *s, const dt_feature_kind *k, int64_t *n, uint64_t *checksum)
{
    char head[HEAD + 1] = "", expected[HEAD];
    struct stat st;
    DT_CHECK_ERRNO(fstat(s->fd, &st) == 0, DT_ERR_DATA, s->path, NULL);
    if (!S_ISREG(st.st_mode) || st.st_size < HEAD)
        return refuse(s->path, "the file was cut short or is not a feature file");
    DT_TRY(dt_read_at(s->fd, s->path, 0, head, HEAD));
    const char *at = strstr(head, "\nimages: ");
    if (!at || sscanf(at, " images: %" SCNd64 " checksum: %" SCNx64, n, checksum) != 2)
        return refuse(s->path, "not a feature file");
    print_head(k, *n, *checksum, expected);
    if (memcmp(head, expected, HEAD) != 0) return refuse(s->path, "the header is damaged or belongs to another tower");
    const int64_t most = INT32_MAX / 2, each = (int64_t)(dt_feature_nbytes(k) + sizeof(listed));
    if (*n < 1 || *n > most || *n > st.st_size / each || features_at(*n, k, *n) != st.st_size)
        return refuse(s->path, "the file was cut short or is damaged");
    return DT_OK;
}

static dt_err read_list(dt_features *f, int file, uint64_t checksum)
{
    const source *s = &f->files[file];
    listed *list;
    DT_RESIZE(f->entries, f->n_entries + s->n, "%s: out of memory for the list of its images", s->path);
    DT_ALLOC(list, s->n, "%s: out of memory for the list of its images", s->path);
    dt_err err = dt_read_at(s->fd, s->path, HEAD, list, (size_t)s->n * sizeof *list);
    if (err == DT_OK && dt_checksum(list, 0, s->n * (int64_t)(sizeof *list / 8), 8) != checksum)
        err = refuse(s->path, "the image list is damaged");
    for (int64_t i = 0; i < s->n && err == DT_OK; i++)
        f->entries[f->n_entries++] = (entry){list[i].image, {file, (int32_t)i, list[i].checksum}};
    free(list);
    return err;
}

static dt_err add_source(dt_features *f, const char *path, size_t len)
{
    uint64_t checksum;
    DT_GROW(f->files, f->n_files, "out of memory for a path");
    char *copy = strndup(path, len);
    DT_CHECK(copy, DT_ERR_MEMORY, "out of memory for a path");
    source *s = &f->files[f->n_files++];
    *s = (source){.path = copy, .fd = open(copy, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    DT_CHECK_ERRNO(s->fd >= 0, DT_ERR_DATA, copy, "cannot be opened");
    DT_TRY(read_head(s, &f->kind, &s->n, &checksum));
    return read_list(f, f->n_files - 1, checksum);
}

static int by_image(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    return dt_image_hash_compare(&x->image, &y->image);
}

dt_err dt_features_open(dt_features **out, const dt_feature_kind *kind, const char *names)
{
    dt_features *f = calloc(1, sizeof *f);
    dt_err err = DT_OK;
    *out = NULL;
    DT_CHECK(f, DT_ERR_MEMORY, "out of memory for kept features");
    f->kind = *kind;
    for (const char *end; err == DT_OK && (end = strchr(names, '\n')); names = end + 1)
        err = add_source(f, names, (size_t)(end - names));
    if (err != DT_OK) return dt_features_close(f), err;
    if (f->n_entries > 0) qsort(f->entries, (size_t)f->n_entries, sizeof *f->entries, by_image);
    *out = f;
    return DT_OK;
}

dt_feature_slot dt_features_find(const dt_features *f, const dt_image_hash *image)
{
    const entry wanted = {.image = *image};
    const entry *found =
        f->n_entries > 0 ? bsearch(&wanted, f->entries, (size_t)f->n_entries, sizeof wanted, by_image) : NULL;
    return found ? found->at : (dt_feature_slot){.file = -1};
}

void dt_features_forget(dt_features *f)
{
    free(f->entries);
    f->entries = NULL;
    f->n_entries = 0;
}

dt_err dt_features_read(const dt_features *f, const dt_feature_slot *at, void *features)
{
    DT_CHECK(at->file >= 0 && at->file < f->n_files, DT_ERR_ARG,
             "internal: dt_features_read: at: the image is in no feature file");
    const source *s = &f->files[at->file];
    listed of;
    DT_TRY(dt_read_at(s->fd, s->path, HEAD + at->row * (int64_t)sizeof of, &of, sizeof of));
    DT_TRY(dt_read_at(s->fd, s->path, features_at(s->n, &f->kind, at->row), features, dt_feature_nbytes(&f->kind)));
    if (checksum_of(&f->kind, &of.image, features) != at->checksum) return refuse(s->path, "the features are damaged");
    return DT_OK;
}

void dt_features_close(dt_features *f)
{
    if (!f) return;
    for (int i = 0; i < f->n_files; i++) {
        if (f->files[i].fd >= 0) close(f->files[i].fd);
        free(f->files[i].path);
    }
    free(f->files);
    free(f->entries);
    free(f);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void remove_left(void *self, const char *path) { dt_remove_left_part(path); }

/* Create a file with a unique name. Another process may treat it as a leftover and remove it before it is locked, hence
 * several tries. */
static dt_err create_part(dt_feature_file *f, const char *dir)
{
    enum { TRIES = 3 };
    uint64_t k = dt_mix64((uint64_t)getpid()) ^ (uint64_t)(1e9 * dt_now_s());
    dt_err err = DT_ERR_WRITE;
    for (int i = 0; i < TRIES && err == DT_ERR_WRITE; i++) {
        free(f->part);
        if (asprintf(&f->part, "%s/%s%016" PRIx64 "%s", dir, PREFIX, dt_mix64(k++), PART) < 0) f->part = NULL;
        DT_CHECK(f->part, DT_ERR_MEMORY, "out of memory for a path");
        err = dt_create_file(f->part, &f->fd);
    }
    f->made = err == DT_OK;
    if (f->made) dt_error_clear();
    return err;
}

dt_err dt_feature_file_create(dt_feature_file *f, const dt_feature_kind *kind, const char *dir, int64_t n)
{
    *f = (dt_feature_file){.kind = *kind, .n = n, .fd = -1};
    DT_TRY(dt_make_dirs(dir));
    if (each_path(dir, PREFIX, PART, remove_left, NULL) != DT_OK) dt_error_clear(); /* left by killed runs */
    DT_TRY(create_part(f, dir));
    DT_TRY(dt_fault("features.create"));
    return dt_reserve_blocks(f->fd, f->part, features_at(n, kind, n), "features of images");
}

dt_err dt_feature_file_join(dt_feature_file *f, const dt_feature_kind *kind, const char *part, int64_t n)
{
    *f = (dt_feature_file){.kind = *kind, .n = n, .fd = open(part, O_WRONLY | O_CLOEXEC)};
    DT_CHECK_ERRNO(f->fd >= 0, DT_ERR_WRITE, part, "cannot be opened");
    DT_COPY_TEXT(f->part, part, "out of memory for a path");
    return DT_OK;
}

dt_err dt_feature_file_write(const dt_feature_file *f, int64_t row, const dt_image_hash *image, const void *features,
                             uint64_t *checksum)
{
    DT_TRY(dt_fault("features.write"));
    *checksum = checksum_of(&f->kind, image, features);
    return dt_write_at(f->fd, f->part, features_at(f->n, &f->kind, row), features, dt_feature_nbytes(&f->kind));
}

dt_err dt_feature_file_sync(const dt_feature_file *f)
{
    return fsync(f->fd) == 0 ? DT_OK : dt_fail_errno(DT_ERR_WRITE, f->part, "sync failed");
}

static dt_err write_list(const dt_feature_file *f, const dt_image_hash *images, const uint64_t *checksums,
                         uint64_t *sum)
{
    const size_t nbytes = (size_t)f->n * sizeof(listed);
    listed *list = malloc(nbytes);
    DT_CHECK(list, DT_ERR_MEMORY, "%s: out of memory for the list of its images", f->part);
    for (int64_t i = 0; i < f->n; i++) list[i] = (listed){images[i], checksums[i]};
    *sum = dt_checksum(list, 0, f->n * (int64_t)(sizeof *list / 8), 8);
    const dt_err err = dt_write_at(f->fd, f->part, HEAD, list, nbytes);
    free(list);
    return err;
}

dt_err dt_feature_file_publish(dt_feature_file *f, const char *dir, const dt_image_hash *images,
                               const uint64_t *checksums)
{
    char head[HEAD], name[80], path[PATH_MAX];
    uint64_t sum = 0;
    DT_TRY(write_list(f, images, checksums, &sum));
    print_head(&f->kind, f->n, sum, head);
    DT_TRY(dt_write_at(f->fd, f->part, 0, head, HEAD));
    DT_TRY(dt_feature_file_sync(f));
    DT_TRY(dt_fault("features.publish"));
    snprintf(name, sizeof name, "%s%016" PRIx64 "-%016" PRIx64, PREFIX, f->kind.tower, sum);
    DT_CHECK(dt_join_path(path, dir, name, ENDING), DT_ERR_WRITE, "%s: its name is too long", dir);
    DT_TRY(dt_rename_durable(f->part, path));
    f->made = false;
    return DT_OK;
}

void dt_feature_file_close(dt_feature_file *f)
{
    if (f->made) dt_remove_part(f->part);
    if (f->part && f->fd >= 0) close(f->fd);
    free(f->part);
    *f = (dt_feature_file){.fd = -1};
}

/* ---- hashes of a dataset's images -------------------------------------------------------------------------------- */

static bool name_list(char path[PATH_MAX], const char *dir, uint64_t key)
{
    char name[40];
    snprintf(name, sizeof name, "images-%016" PRIx64, key);
    return dt_join_path(path, dir, name, ".list");
}

static uint64_t checksum_of_list(const dt_image_hash *images, int64_t n)
{
    return dt_checksum(images, 0, 2 * n, 8) ^ dt_mix64((uint64_t)n);
}

bool dt_image_list_read(const char *dir, uint64_t key, dt_image_hash *images, int64_t n)
{
    char path[PATH_MAX];
    uint64_t sum = 0;
    struct stat st;
    const size_t nbytes = (size_t)n * sizeof *images;
    const int fd = name_list(path, dir, key) ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    if (fd < 0) return false;
    const bool there = fstat(fd, &st) == 0 && st.st_size == (off_t)(nbytes + sizeof sum) &&
                       dt_read_at(fd, path, 0, images, nbytes) == DT_OK &&
                       dt_read_at(fd, path, (int64_t)nbytes, &sum, sizeof sum) == DT_OK;
    close(fd);
    dt_error_clear();
    return there && sum == checksum_of_list(images, n);
}

dt_err dt_image_list_write(const char *dir, uint64_t key, const dt_image_hash *images, int64_t n)
{
    char path[PATH_MAX];
    dt_feature_file f = {.fd = -1};
    const size_t nbytes = (size_t)n * sizeof *images;
    const uint64_t sum = checksum_of_list(images, n);
    DT_CHECK(name_list(path, dir, key), DT_ERR_WRITE, "%s: its name is too long", dir);
    DT_TRY(dt_make_dirs(dir));
    dt_err err = create_part(&f, dir);
    if (err == DT_OK) err = dt_write_at(f.fd, f.part, 0, images, nbytes);
    if (err == DT_OK) err = dt_write_at(f.fd, f.part, (int64_t)nbytes, &sum, sizeof sum);
    if (err == DT_OK) err = dt_feature_file_sync(&f);
    if (err == DT_OK) err = dt_rename_durable(f.part, path);
    f.made = f.made && err != DT_OK;
    dt_feature_file_close(&f);
    return err;
}
