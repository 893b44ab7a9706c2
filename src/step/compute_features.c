/* compute_features.c - features of a frozen tower, computed before the first step.
 *
 * Distinct images without cached features are divided into files of some GiB, which are processed in sequence. The
 * images of a file are divided into rounds. In each round, every rank computes the features of some images, one
 * micro-batch at a time. It writes them to the file that rank 0 created. The ranks vote after each round. After an
 * error on one rank or a signal, all ranks therefore stop together. Completed files are reused by later runs.
 *
 * Of images that are grids, the cells are stored like images of one size. The key of a cell is that of its image and of
 * its number, because its features depend on the whole image. A pass of the tower has all cells of an image.
 *
 * The tower is that of the model in training. It uses the memory of the model's own later passes. */
#include "dtrain/io/io.h"
#include "dtrain/step/step.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_AT_ONCE = 4096 /* of the tower, of a rank, between votes */, HASHED_AT_ONCE = 256 /* images */ };
static const int64_t FILE_NBYTES = INT64_C(4) << 30;
static const double SAY_EVERY_S = 10;

/** An image without features (of a grid: its first cell), its index, and the number of entries before it. */
typedef struct missing {
    dt_image_hash image;
    int64_t at, row;
} missing;

typedef struct making {
    dt_task *t;
    dt_feature_kind kind;
    const char *dir;
    int64_t n_images;             /* of both loaders; of grids: cells, which the following arrays have, too */
    dt_image_hash *images, *keys; /* hashes of pixels, and of what determines the features; the same unless grids */
    uint32_t *grid;               /* NULL: images of one size */
    missing *missing;             /* sorted by image */
    int64_t n_missing, n_distinct, n_rows; /* n_rows: entries of the missing images */
    int64_t *pass;                         /* [n_passes + 1]: the first missing image of each pass of the tower */
    int64_t n_passes, longest;             /* longest: entries of a pass */
    /* for the computation of features */
    int32_t n_at_once; /* entries per rank and round */
    size_t image_nbytes;
    uint8_t *pixels;     /* [n_at_once] */
    uint32_t *grid_now;  /* likewise */
    char *features;      /* likewise */
    uint64_t *checksums; /* [entries of a file] */
    size_t nbytes;       /* total of these arrays, in the ledger */
    double said_s;
    int64_t n_made;
} making;

size_t dt_task_feature_nbytes(const dt_task *t)
{
    const dt_vision_config *v = t->mc->vision;
    return v && t->model_opt->features_given ? dt_vision_feature_nbytes(v, t->model_opt->dtype) : 0;
}

size_t dt_task_image_nbytes(const dt_task *t)
{
    const size_t features = dt_task_feature_nbytes(t);
    return features || !t->mc->vision ? features : dt_image_nbytes(t->mc->vision->image_size);
}

/* ---- identity of the tower --------------------------------------------------------------------------------------- */

static bool makes_features(const dt_unit *u)
{
    return u->role == DT_UNIT_PATCHES || u->role == DT_UNIT_ENCODER || u->role == DT_UNIT_NORM;
}

static void add_number(uint64_t *hash, int64_t x) { *hash = dt_mix64(*hash ^ dt_mix64((uint64_t)x)); }
static void add_real(uint64_t *hash, double x)
{
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    add_number(hash, bits);
}

/* Hash the devices, because devices and their kernels round differently. If ranks differ, the minimum and the maximum
 * are hashed; otherwise the number of ranks does not matter. */
static dt_err hash_kernels(const dt_task *t, uint64_t *hash)
{
    char kernels[256];
    t->dev->ops->kernels(t->dev, kernels, sizeof kernels);
    const int64_t own = (int64_t)(dt_hash_text(t->dev->ops->name) ^ dt_mix64(dt_hash_text(kernels)));
    int64_t ends[2] = {own, ~own};
    DT_TRY(dt_comm_reduce_host_i64(dt_comm_all(t->comm), ends, 2, DT_MAX));
    for (int i = 0; i < 2; i++) add_number(hash, ends[i]);
    return DT_OK;
}

static void hash_grids(const dt_vision_config *v, uint64_t *hash)
{
    const int64_t numbers[] = {v->n_frames, v->window, v->table_side, v->n_side, v->n_deepstack};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) add_number(hash, numbers[i]);
    for (int i = 0; i < v->n_deepstack; i++) add_number(hash, v->deepstack[i]);
    for (int64_t i = 0; i < v->n_blocks; i++) add_number(hash, dt_model_layer(v->blocks, i).windowed);
    add_real(hash, v->blocks->rope_theta);
}

/* Hash weights, shape, byte normalisation and devices. Collective. */
static dt_err hash_tower(const dt_task *t, const dt_model_config *mc, dt_zero *z, uint64_t *hash)
{
    const dt_vision_config *v = mc->vision;
    const dt_model_config *b = v->blocks;
    const int64_t numbers[] = {v->tower - dt_tower_at(0),
                               v->image_size,
                               v->patch_size,
                               v->n_used,
                               v->feature_norm,
                               v->drop_first,
                               v->n_features,
                               v->projector.shuffle,
                               b->hidden_size,
                               b->intermediate_size,
                               b->num_attention_heads,
                               b->act,
                               t->model_opt->dtype,
                               t->model_opt->reproducible};
    DT_TRY(dt_hash_parameters(z, t->comm, makes_features, hash));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) add_number(hash, numbers[i]);
    for (int c = 0; c < 3; c++) add_real(hash, (double)v->scale[c]), add_real(hash, (double)v->shift[c]);
    add_real(hash, b->norm_eps);
    if (v->grids) hash_grids(v, hash);
    return hash_kernels(t, hash);
}

dt_err dt_task_share_tower(dt_task *t, const dt_model_config *mc, dt_zero *zero, const char *name)
{
    DT_EXPECT(t->n_same_tower < DT_MAX_TASK_FILES);
    t->same_tower[t->n_same_tower++] = (struct dt_same_tower){mc, zero, name};
    return DT_OK;
}

static dt_err check_same_towers(const making *k)
{
    for (int i = 0; i < k->t->n_same_tower; i++) {
        const struct dt_same_tower *other = &k->t->same_tower[i];
        uint64_t hash;
        DT_TRY(hash_tower(k->t, other->mc, other->zero, &hash));
        dt_err err = DT_OK; /* the same on all ranks; rank 0 reports it, because it knows where the key is set */
        if (hash != k->kind.tower)
            err = dt_config_fail(k->t->cfg, "vision", "feature_cache",
                                 "%s has another vision tower than the model in training, so cached features cannot be "
                                 "shared; leave this key out",
                                 other->name);
        DT_TRY(dt_comm_agree(k->t->comm, err));
    }
    return DT_OK;
}

/* ---- identity of images ------------------------------------------------------------------------------------------ */

static int64_t n_images_of(const dt_loader *l) { return l ? dt_loader_n_images(l) : 0; }

static dt_err read_image(const making *k, int64_t i, uint8_t *pixels)
{
    const int64_t n_train = n_images_of(k->t->train);
    return i < n_train ? dt_loader_image(k->t->train, i, pixels) : dt_loader_image(k->t->valid, i - n_train, pixels);
}

/* Hash n images starting at `first`, by this rank; `at` is the image's index in its file. */
static dt_err hash_some(making *k, int64_t first, int64_t n, int64_t at, uint64_t *checksum)
{
    DT_TRY(dt_fault("features.hash"));
    for (int64_t i = 0; i < n; i++) {
        DT_TRY(dt_phase_poll(k->t->phase));
        DT_TRY(read_image(k, first + i, k->pixels));
        k->images[first + i] = dt_image_hash_of(k->pixels, k->image_nbytes);
        *checksum += dt_checksum(k->pixels, (at + i) * (int64_t)k->image_nbytes, (int64_t)k->image_nbytes, 1);
    }
    return DT_OK;
}

/* Hash the n images of a file, starting at image `first`. */
static dt_err hash_range(making *k, int64_t first, int64_t n, uint64_t *checksum)
{
    dt_comm *comm = k->t->comm;
    const int64_t each = dt_min_i64(HASHED_AT_ONCE, dt_ceil_div(n, comm->mesh.data.size)),
                  round = each * comm->mesh.data.size;
    *checksum = 0;
    for (int64_t at = 0; at < n; at += round) {
        const int64_t end = dt_min_i64(at + round, n), own = at + comm->mesh.data.rank * each;
        dt_phase_enter(k->t->phase, "features", "images");
        DT_TRY(dt_comm_agree(comm, hash_some(k, first + own, dt_min_i64(each, end - own), own, checksum)));
        DT_TRY(dt_comm_join_host(&comm->mesh.data, k->images + first + at, (size_t)(end - at) * sizeof *k->images));
    }
    return dt_comm_sum_host_u64(&comm->mesh.data, checksum, 1);
}

/* The list only saves time. If it cannot be stored, later runs hash the images again. */
static void keep_list(const making *k, uint64_t key, const dt_image_hash *images, int64_t n)
{
    if (dt_image_list_write(k->dir, key, images, n) == DT_OK) return;
    DT_WARN("the image list cannot be cached, so the next run reads all images again: %s", dt_error_message());
    dt_error_clear();
}

/* Hash the images of one file, whose first image is `first`. Only rank 0 looks for a cached list, and stores one if it
 * is missing. If the file does not match its checksum, no list is stored. */
static dt_err hash_file(making *k, int64_t first, const dt_images_of_file *f)
{
    dt_comm *comm = k->t->comm;
    dt_image_hash *images = k->images + first;
    uint64_t checksum;
    int64_t known = dt_comm_first(comm) && f->key && dt_image_list_read(k->dir, f->key, images, f->n);
    DT_TRY(dt_comm_broadcast_host(comm, &known, sizeof known, 0));
    if (known) return dt_comm_broadcast_host(comm, images, (size_t)f->n * sizeof *images, 0);
    memset(images, 0, (size_t)f->n * sizeof *images);
    DT_TRY(hash_range(k, first, f->n, &checksum));
    if (!f->key) return DT_OK;
    DT_CHECK(checksum == f->checksum, DT_ERR_DATA,
             "%s: pixels: checksum: expected %016" PRIx64 ", found %016" PRIx64 ": the file was altered", f->path,
             f->checksum, checksum);
    if (dt_comm_first(comm)) keep_list(k, f->key, images, f->n);
    return DT_OK;
}

static dt_err hash_images(making *k)
{
    const dt_loader *const loaders[] = {k->t->train, k->t->valid};
    int64_t at = 0;
    dt_images_of_file f;
    for (int i = 0; i < 2; i++)
        for (int file = 0; loaders[i] && dt_loader_images_of(loaders[i], file, &f); file++, at += f.n)
            if (f.n > 0) DT_TRY(hash_file(k, at, &f));
    return DT_OK;
}

static int by_image(const void *a, const void *b)
{
    const missing *x = a, *y = b;
    const int order = dt_image_hash_compare(&x->image, &y->image);
    return order ? order : (x->at > y->at) - (x->at < y->at);
}

/* Read the grids, and determine the keys of cells. Local. */
static dt_err find_keys(making *k)
{
    const int64_t n_train = n_images_of(k->t->train);
    if (!k->grid) return DT_OK;
    if (k->t->train) DT_TRY(dt_loader_grids(k->t->train, k->grid));
    if (k->t->valid) DT_TRY(dt_loader_grids(k->t->valid, k->grid + n_train));
    for (int64_t i = 0; i < k->n_images;) {
        const int64_t n = dt_grid_rows(k->grid[i]) * dt_grid_columns(k->grid[i]);
        uint64_t word[2] = {k->grid[i], ~(uint64_t)k->grid[i]};
        for (int64_t c = 0; c < n; c++)
            for (int w = 0; w < 2; w++) word[w] = dt_mix64(word[w] ^ dt_mix64(k->images[i + c].word[w]));
        for (int64_t c = 0; c < n; c++)
            for (int w = 0; w < 2; w++) k->keys[i + c].word[w] = dt_mix64(word[w] + (uint64_t)c);
        i += n;
    }
    return DT_OK;
}

/* Entries of the image at this index. */
static int64_t cells_of(const making *k, int64_t at)
{
    return k->grid ? dt_grid_rows(k->grid[at]) * dt_grid_columns(k->grid[at]) : 1;
}

/* An image that is larger than a batch is part of no sample. */
static bool is_missing(const making *k, const dt_features *f, int64_t at)
{
    const int64_t n = cells_of(k, at);
    bool all = true;
    for (int64_t c = 0; c < n && all; c++) all = dt_features_find(f, &k->keys[at + c]).file >= 0;
    return !all && n <= k->t->model_opt->max_images;
}

static void find_missing(making *k, const dt_features *f)
{
    int64_t n = 0, n_images = 0;
    for (int64_t i = 0; i < k->n_images; i += cells_of(k, i)) k->missing[n_images++] = (missing){k->keys[i], i, 0};
    if (n_images > 0) qsort(k->missing, (size_t)n_images, sizeof *k->missing, by_image);
    k->n_distinct = k->n_rows = 0;
    for (int64_t i = 0; i < n_images; i++) {
        const missing m = k->missing[i];
        if (i > 0 && dt_image_hash_compare(&m.image, &k->keys[k->missing[i - 1].at]) == 0) continue;
        k->n_distinct++;
        if (!is_missing(k, f, m.at)) continue;
        k->missing[n++] = (missing){m.image, m.at, k->n_rows};
        k->n_rows += cells_of(k, m.at);
    }
    k->n_missing = n;
}

/* ---- computation ------------------------------------------------------------------------------------------------- */

static void say(making *k, const char *what)
{
    const double now_s = dt_now_s();
    if (now_s - k->said_s < SAY_EVERY_S) return;
    k->said_s = now_s;
    DT_INFO("%s: %" PRId64 " of %" PRId64 " images", what, k->n_made, k->n_missing);
}

static const char *file_of(const making *k, int64_t i)
{
    const dt_loader *const loaders[] = {k->t->train, k->t->valid};
    dt_images_of_file f = {.path = ""};
    for (int at = 0; at < 2; at++)
        for (int file = 0; loaders[at] && dt_loader_images_of(loaders[at], file, &f); file++, i -= f.n)
            if (i < f.n) return f.path;
    return f.path;
}

/* Check that the image still has the cached hash: the list may be older than the file. */
static dt_err read_known(const making *k, int64_t at, uint8_t *pixels)
{
    DT_TRY(read_image(k, at, pixels));
    const dt_image_hash found = dt_image_hash_of(pixels, k->image_nbytes);
    DT_CHECK(dt_image_hash_compare(&found, &k->images[at]) == 0, DT_ERR_DATA,
             "%s: the file was altered: an image differs from the one that the file was created with", file_of(k, at));
    return DT_OK;
}

/* Entries before a missing image; before the first image of a pass. */
static int64_t row_of(const making *k, int64_t image)
{
    return image < k->n_missing ? k->missing[image].row : k->n_rows;
}
static int64_t row_of_pass(const making *k, int64_t pass) { return row_of(k, k->pass[dt_min_i64(pass, k->n_passes)]); }

/* Visit the entries of passes first .. end-1: their number from the first, and the index of the image or cell. */
static dt_err visit(making *k, int64_t first, int64_t end, dt_err (*each)(making *k, int64_t i, int64_t at, void *of),
                    void *of)
{
    int64_t row = 0;
    for (int64_t i = k->pass[first]; i < k->pass[end]; i++)
        for (int64_t at = k->missing[i].at, n = cells_of(k, at), c = 0; c < n; c++) DT_TRY(each(k, row++, at + c, of));
    return DT_OK;
}

static dt_err take_pixels(making *k, int64_t i, int64_t at, void *of)
{
    (void)of;
    k->grid_now[i] = k->grid ? k->grid[at] : 0;
    return read_known(k, at, k->pixels + (size_t)i * k->image_nbytes);
}

/* Part of a file that receives features: its entries start at `row`. */
struct writing {
    const dt_feature_file *f;
    int64_t row;
};

static dt_err write_features(making *k, int64_t i, int64_t at, void *of)
{
    const struct writing *w = of;
    return dt_feature_file_write(w->f, w->row + i, &k->keys[at], k->features + (size_t)i * dt_feature_nbytes(&k->kind),
                                 &k->checksums[w->row + i]);
}

/* Run the tower for passes first .. end-1 of this rank. All ranks run as many passes, some without images. */
static dt_err run_tower(making *k, int64_t n_passes, int64_t first, int64_t end)
{
    for (int64_t p = first; p < first + n_passes; p++) {
        const int64_t i = p < end ? row_of_pass(k, p) - row_of_pass(k, first) : 0,
                      n = p < end ? row_of_pass(k, p + 1) - row_of_pass(k, p) : 0;
        DT_TRY(dt_model_features(k->t->model, k->pixels + (size_t)i * k->image_nbytes, k->grid_now + i, (int32_t)n,
                                 k->features + (size_t)i * dt_feature_nbytes(&k->kind)));
    }
    return DT_OK;
}

/* Compute this rank's share of a round: passes first .. end-1 of at most n_passes. base: the first pass of the file.
 * After an error the rank still takes part in collective passes. */
static dt_err make_some(making *k, const dt_feature_file *f, int64_t base, int64_t n_passes, int64_t first, int64_t end)
{
    struct writing w = {f, row_of_pass(k, first) - row_of_pass(k, base)};
    dt_err err = dt_fault("features.make");
    if (err == DT_OK) err = visit(k, first, end, take_pixels, NULL);
    DT_TRY(run_tower(k, n_passes, first, err == DT_OK ? end : first));
    return err == DT_OK ? visit(k, first, end, write_features, &w) : err;
}

static dt_err make_rounds(making *k, const dt_feature_file *f, int64_t base, int64_t end)
{
    dt_comm *comm = k->t->comm;
    const int64_t each = dt_max_i64(
                      1, dt_min_i64(k->n_at_once / k->longest, dt_ceil_div(end - base, comm->mesh.data.size))),
                  round = each * comm->mesh.data.size;
    memset(k->checksums, 0, (size_t)f->n * sizeof *k->checksums);
    for (int64_t at = base; at < end; at += round) {
        const int64_t first = dt_min_i64(end, at + comm->mesh.data.rank * each);
        dt_phase_enter(k->t->phase, "features", "images");
        dt_err err = make_some(k, f, base, each, first, dt_min_i64(end, first + each));
        if (err == DT_OK) err = dt_phase_poll(k->t->phase);
        DT_TRY(dt_comm_agree(comm, err));
        k->n_made += k->pass[dt_min_i64(end, at + round)] - k->pass[at];
        say(k, "features");
    }
    DT_TRY(dt_comm_agree(comm, dt_feature_file_sync(f))); /* other nodes see the data after the sync */
    return dt_comm_join_host(&comm->mesh.data, k->checksums, (size_t)f->n * sizeof *k->checksums);
}

static dt_err list_key(making *k, int64_t i, int64_t at, void *of)
{
    ((dt_image_hash *)of)[i] = k->keys[at];
    return DT_OK;
}

static dt_err publish(making *k, dt_feature_file *f, int64_t base, int64_t end)
{
    dt_image_hash *images = malloc((size_t)f->n * sizeof *images);
    DT_CHECK(images, DT_ERR_MEMORY, "out of memory for the list of %" PRId64 " images", f->n);
    dt_err err = visit(k, base, end, list_key, images);
    if (err == DT_OK) err = dt_feature_file_publish(f, k->dir, images, k->checksums);
    free(images);
    return err;
}

/* Compute the features of passes base .. end-1. */
static dt_err make_file(making *k, int64_t base, int64_t end)
{
    dt_comm *comm = k->t->comm;
    dt_feature_file f = {.fd = -1};
    const int64_t n = row_of_pass(k, end) - row_of_pass(k, base);
    dt_err err = dt_comm_first(comm) ? dt_feature_file_create(&f, &k->kind, k->dir, n) : DT_OK;
    char *part = f.part;
    err = dt_comm_agree(comm, err);
    if (err == DT_OK) err = dt_comm_share_text(comm, &part, NULL);
    if (err == DT_OK && !dt_comm_first(comm)) err = dt_feature_file_join(&f, &k->kind, part, n);
    if (!dt_comm_first(comm)) free(part);
    if (err != DT_ERR_COMM) err = dt_comm_agree(comm, err);
    if (err == DT_OK) err = make_rounds(k, &f, base, end);
    if (err == DT_OK) err = dt_comm_agree(comm, dt_comm_first(comm) ? publish(k, &f, base, end) : DT_OK);
    dt_feature_file_close(&f);
    return err;
}

/* Entries of a file, unless one pass has more. */
static int64_t entries_of_file(const making *k)
{
    return dt_min_i64(dt_max_i64(k->longest, FILE_NBYTES / (int64_t)dt_feature_nbytes(&k->kind)), k->n_rows);
}

/* Divide the missing images into passes of whole images, so that every rank has one. */
static void plan_passes(making *k)
{
    const int64_t most = dt_min_i64(k->t->model_opt->max_images, dt_ceil_div(k->n_rows, k->t->data->size));
    k->n_passes = k->longest = 0;
    for (int64_t i = 0; i < k->n_missing;) {
        const int64_t first = i++;
        while (i < k->n_missing && row_of(k, i + 1) - row_of(k, first) <= most) i++;
        k->pass[k->n_passes++] = first;
        k->longest = dt_max_i64(k->longest, row_of(k, i) - row_of(k, first));
    }
    k->pass[k->n_passes] = k->n_missing;
}

/* Allocate an array of this rank. */
static void *take(making *k, int64_t n, size_t size)
{
    const size_t nbytes = (size_t)n * size + 1;
    void *array = calloc(1, nbytes);
    if (!array) return NULL;
    dt_ledger_add(k->t->ledger, DT_MEM_DATA, DT_ON_HOST, nbytes);
    k->nbytes += nbytes;
    return array;
}

/* Allocate the arrays for the computation. Local. */
static dt_err prepare_to_make(making *k)
{
    k->pass = take(k, k->n_missing + 1, sizeof *k->pass);
    k->grid_now = take(k, k->n_at_once, sizeof *k->grid_now);
    DT_CHECK(k->pass && k->grid_now, DT_ERR_MEMORY, "out of memory for a list of %" PRId64 " images", k->n_missing);
    plan_passes(k);
    k->n_at_once = (int32_t)dt_min_i64(k->n_at_once, k->longest * dt_ceil_div(k->n_passes, k->t->data->size));
    k->checksums = take(k, entries_of_file(k), sizeof *k->checksums);
    k->features = take(k, k->n_at_once, dt_feature_nbytes(&k->kind));
    DT_CHECK(k->checksums && k->features, DT_ERR_MEMORY, "out of memory for the features of %d images", k->n_at_once);
    return DT_OK;
}

/* What the cache counts. */
static const char *noun(const making *k)
{
    return k->t->mc->vision->tiles ? "different tiles of images" : "different images";
}

static dt_err make_missing(making *k)
{
    char text[24];
    const double begin_s = k->said_s = dt_now_s();
    DT_INFO("computing features of %" PRId64 " of %" PRId64 " %s, to be cached in %s: %s", k->n_missing, k->n_distinct,
            noun(k), k->dir, dt_format_bytes((double)k->n_rows * (double)dt_feature_nbytes(&k->kind), text));
    DT_TRY(dt_comm_agree(k->t->comm, prepare_to_make(k)));
    for (int64_t base = 0, end; base < k->n_passes; base = end) {
        for (end = base + 1; end < k->n_passes; end++)
            if (row_of_pass(k, end + 1) - row_of_pass(k, base) > entries_of_file(k)) break;
        DT_TRY(make_file(k, base, end));
    }
    DT_INFO("features computed in %.1f s", dt_now_s() - begin_s);
    return DT_OK;
}

/* ---- all steps --------------------------------------------------------------------------------------------------- */

/* Open the existing files. Rank 0 lists them, because another run may add files meanwhile. */
static dt_err open_files(making *k, dt_features **f)
{
    dt_comm *comm = k->t->comm;
    char *names = NULL;
    *f = NULL;
    DT_TRY(dt_comm_agree(comm, dt_comm_first(comm) ? dt_features_list(k->dir, &k->kind, &names) : DT_OK));
    char *mine = names;
    dt_err err = dt_comm_share_text(comm, &names, NULL);
    if (err == DT_OK) err = dt_comm_agree(comm, dt_features_open(f, &k->kind, names));
    free(dt_comm_first(comm) ? mine : names);
    if (err != DT_OK) dt_features_close(*f), *f = NULL;
    return err;
}

/* Allocate the lists of images. Local. */
static dt_err prepare(making *k)
{
    const bool grids = k->t->mc->vision->grids;
    k->pixels = take(k, k->n_at_once, k->image_nbytes);
    k->images = take(k, k->n_images, sizeof *k->images);
    k->missing = take(k, k->n_images, sizeof *k->missing);
    k->keys = grids ? take(k, k->n_images, sizeof *k->keys) : k->images;
    if (grids) k->grid = take(k, k->n_images, sizeof *k->grid);
    DT_CHECK(k->pixels && k->images && k->missing && k->keys && (k->grid || !grids), DT_ERR_MEMORY,
             "out of memory for the list of %" PRId64 " images", k->n_images);
    return DT_OK;
}

static void give(const making *k, dt_loader *l, const dt_image_hash *images, dt_feature_slot *places)
{
    for (int64_t i = 0; i < n_images_of(l); i++) places[i] = dt_features_find(k->t->features, &images[i]);
    if (l) dt_loader_set_features(l, k->t->features, places);
}

static dt_err give_all(const making *k)
{
    dt_feature_slot *places = malloc(((size_t)k->n_images + 1) * sizeof *places);
    DT_CHECK(places, DT_ERR_MEMORY, "out of memory for the offsets of %" PRId64 " images' features", k->n_images);
    give(k, k->t->train, k->keys, places);
    give(k, k->t->prompts, k->keys, places); /* of the same files */
    give(k, k->t->valid, k->keys + n_images_of(k->t->train), places);
    dt_features_forget(k->t->features);
    free(places);
    return DT_OK;
}

static dt_err make_all(making *k)
{
    dt_comm *comm = k->t->comm;
    dt_features **f = &k->t->features;
    DT_TRY(dt_comm_agree(comm, prepare(k)));
    DT_TRY(hash_images(k));
    DT_TRY(dt_comm_agree(comm, find_keys(k)));
    DT_TRY(open_files(k, f));
    find_missing(k, *f);
    if (k->t->model_opt->max_images == 0) k->n_missing = k->n_distinct = 0; /* no sample uses an image */
    if (k->n_missing > 0) {
        DT_TRY(make_missing(k));
        dt_features_close(*f);
        DT_TRY(open_files(k, f));
    } else if (k->n_distinct > 0) {
        DT_INFO("features of %" PRId64 " %s are cached in %s", k->n_distinct, noun(k), k->dir);
    }
    return dt_comm_agree(comm, give_all(k));
}

static void close_making(making *k)
{
    dt_ledger_sub(k->t->ledger, DT_MEM_DATA, DT_ON_HOST, k->nbytes);
    if (k->keys != k->images) free(k->keys);
    free(k->pixels);
    free(k->images);
    free(k->missing);
    free(k->grid);
    free(k->grid_now);
    free(k->pass);
    free(k->features);
    free(k->checksums);
}

/* Images in as many passes as give ROWS_AT_ONCE rows, at least one pass. */
static int32_t images_at_once(const dt_task *t)
{
    const int64_t most = dt_max_i64(1, t->model_opt->max_images);
    return (int32_t)(most * dt_max_i64(1, ROWS_AT_ONCE / (most * t->mc->vision->n_rows)));
}

dt_err dt_task_make_features(dt_task *t)
{
    const dt_vision_config *v = t->mc->vision;
    if (dt_task_feature_nbytes(t) == 0) return DT_OK;
    making k = {.t = t,
                .dir = t->cfg->vision_feature_cache,
                .kind = {.dtype = t->model_opt->dtype,
                         .n_rows = v->n_features,
                         .width = dt_vision_feature_elems(v) / v->n_features},
                .n_images = n_images_of(t->train) + n_images_of(t->valid),
                .n_at_once = images_at_once(t),
                .image_nbytes = dt_image_nbytes(v->image_size)};
    DT_TRY(hash_tower(t, t->mc, t->zero, &k.kind.tower));
    DT_CHECK(
        !t->features || k.kind.tower == t->tower_hash, DT_ERR_USAGE,
        "vision.feature_cache: the reference has another vision tower than the model in training; leave this key out");
    if (t->features) return DT_OK;
    DT_TRY(check_same_towers(&k));
    t->tower_hash = k.kind.tower;
    const dt_err err = make_all(&k);
    close_making(&k);
    dt_phase_enter(t->phase, "start", "");
    return err;
}

void dt_task_drop_features(dt_task *t)
{
    dt_features_close(t->features);
    t->features = NULL;
}
