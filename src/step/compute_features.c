/* compute_features.c - features of a frozen tower, computed before the first step.
 *
 * Distinct images without cached features are divided into files of some GiB, which are processed in sequence. The
 * images of a file are divided into rounds. In each round, every rank computes the features of some images, one
 * micro-batch at a time. It writes them to the file that rank 0 created. The ranks vote after each round. After an
 * error on one rank or a signal, all ranks therefore stop together. Completed files are reused by later runs.
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

/** An image without features, and the index of an image equal to it. */
typedef struct missing {
    dt_image_hash image;
    int64_t at;
} missing;

typedef struct making {
    dt_task *t;
    dt_feature_kind kind;
    const char *dir;
    int64_t n_images; /* of both loaders */
    dt_image_hash *images;
    missing *missing; /* sorted by image */
    int64_t n_missing, n_distinct;
    /* for the computation of features */
    int32_t n_at_once; /* images per rank and round */
    size_t image_nbytes;
    uint8_t *pixels;     /* [n_at_once] */
    char *features;      /* [n_at_once] */
    uint64_t *checksums; /* [images of a file] */
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
    return hash_kernels(t, hash);
}

static dt_err check_same_towers(const making *k)
{
    for (int i = 0; i < k->t->n_same_tower; i++) {
        const dt_frozen_model *f = k->t->same_tower[i];
        uint64_t hash;
        DT_TRY(hash_tower(k->t, &f->mc, f->zero, &hash));
        dt_err err = DT_OK; /* the same on all ranks; rank 0 reports it, because it knows where the key is set */
        if (hash != k->kind.tower)
            err = dt_config_fail(k->t->cfg, "vision", "feature_cache",
                                 "%s has another vision tower than the model in training, so cached features cannot be "
                                 "shared; leave this key out",
                                 f->from.path);
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

static void find_missing(making *k, const dt_features *f)
{
    int64_t n = 0;
    for (int64_t i = 0; i < k->n_images; i++) k->missing[i] = (missing){k->images[i], i};
    if (k->n_images > 0) qsort(k->missing, (size_t)k->n_images, sizeof *k->missing, by_image);
    k->n_distinct = 0;
    for (int64_t i = 0; i < k->n_images; i++) {
        const missing *m = &k->missing[i];
        if (i > 0 && dt_image_hash_compare(&m->image, &k->missing[i - 1].image) == 0) continue;
        k->n_distinct++;
        if (dt_features_find(f, &m->image).file < 0) k->missing[n++] = *m;
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
static dt_err read_known(const making *k, const missing *m, uint8_t *pixels)
{
    DT_TRY(read_image(k, m->at, pixels));
    const dt_image_hash found = dt_image_hash_of(pixels, k->image_nbytes);
    DT_CHECK(dt_image_hash_compare(&found, &m->image) == 0, DT_ERR_DATA,
             "%s: the file was altered: an image differs from the one that the file was created with",
             file_of(k, m->at));
    return DT_OK;
}

/* Run the tower for one round. All ranks run the same number of passes; n is the number of images of this rank. */
static dt_err run_tower(making *k, int64_t n)
{
    const int32_t most = k->t->model_opt->max_images;
    for (int64_t i = 0; i < k->n_at_once; i += most) {
        const int64_t now = dt_max_i64(0, dt_min_i64(most, n - i));
        DT_TRY(dt_model_features(k->t->model, k->pixels + (size_t)i * k->image_nbytes, (int32_t)now,
                                 k->features + (size_t)i * dt_feature_nbytes(&k->kind)));
    }
    return DT_OK;
}

/* Compute this rank's share of a round: n images starting at `first`. After an error n is 0, but the rank still takes
 * part in collective passes. */
static dt_err make_some(making *k, const dt_feature_file *f, int64_t base, int64_t first, int64_t n)
{
    dt_err err = dt_fault("features.make");
    for (int64_t i = 0; i < n && err == DT_OK; i++)
        err = read_known(k, &k->missing[base + first + i], k->pixels + (size_t)i * k->image_nbytes);
    DT_TRY(run_tower(k, err == DT_OK ? n : 0));
    for (int64_t i = 0; i < n && err == DT_OK; i++)
        err = dt_feature_file_write(f, first + i, &k->missing[base + first + i].image,
                                    k->features + (size_t)i * dt_feature_nbytes(&k->kind), &k->checksums[first + i]);
    return err;
}

static dt_err make_rounds(making *k, const dt_feature_file *f, int64_t base)
{
    dt_comm *comm = k->t->comm;
    const int64_t round = (int64_t)k->n_at_once * comm->mesh.data.size;
    memset(k->checksums, 0, (size_t)f->n * sizeof *k->checksums);
    for (int64_t at = 0; at < f->n; at += round) {
        const int64_t first = at + (int64_t)comm->mesh.data.rank * k->n_at_once, left = dt_max_i64(0, f->n - first);
        dt_phase_enter(k->t->phase, "features", "images");
        dt_err err = make_some(k, f, base, first, dt_min_i64(left, k->n_at_once));
        if (err == DT_OK) err = dt_phase_poll(k->t->phase);
        DT_TRY(dt_comm_agree(comm, err));
        k->n_made += dt_min_i64(round, f->n - at);
        say(k, "features");
    }
    DT_TRY(dt_comm_agree(comm, dt_feature_file_sync(f))); /* other nodes see the data after the sync */
    return dt_comm_join_host(&comm->mesh.data, k->checksums, (size_t)f->n * sizeof *k->checksums);
}

static dt_err publish(const making *k, dt_feature_file *f, int64_t base)
{
    dt_image_hash *images = malloc((size_t)f->n * sizeof *images);
    DT_CHECK(images, DT_ERR_MEMORY, "out of memory for the list of %" PRId64 " images", f->n);
    for (int64_t i = 0; i < f->n; i++) images[i] = k->missing[base + i].image;
    const dt_err err = dt_feature_file_publish(f, k->dir, images, k->checksums);
    free(images);
    return err;
}

/* Compute features of n images without features, starting at number `base`. */
static dt_err make_file(making *k, int64_t base, int64_t n)
{
    dt_comm *comm = k->t->comm;
    dt_feature_file f = {.fd = -1};
    dt_err err = dt_comm_first(comm) ? dt_feature_file_create(&f, &k->kind, k->dir, n) : DT_OK;
    char *part = f.part;
    err = dt_comm_agree(comm, err);
    if (err == DT_OK) err = dt_comm_share_text(comm, &part, NULL);
    if (err == DT_OK && !dt_comm_first(comm)) err = dt_feature_file_join(&f, &k->kind, part, n);
    if (!dt_comm_first(comm)) free(part);
    if (err != DT_ERR_COMM) err = dt_comm_agree(comm, err);
    if (err == DT_OK) err = make_rounds(k, &f, base);
    if (err == DT_OK) err = dt_comm_agree(comm, dt_comm_first(comm) ? publish(k, &f, base) : DT_OK);
    dt_feature_file_close(&f);
    return err;
}

static int64_t images_of_file(const making *k)
{
    return dt_min_i64(dt_max_i64(1, FILE_NBYTES / (int64_t)dt_feature_nbytes(&k->kind)), k->n_missing);
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
    k->checksums = take(k, images_of_file(k), sizeof *k->checksums);
    k->features = take(k, k->n_at_once, dt_feature_nbytes(&k->kind));
    DT_CHECK(k->checksums && k->features, DT_ERR_MEMORY, "out of memory for the features of %d images", k->n_at_once);
    return DT_OK;
}

static dt_err make_missing(making *k)
{
    char text[24];
    const int64_t n = images_of_file(k);
    const double begin_s = k->said_s = dt_now_s();
    DT_INFO("computing features of %" PRId64 " of %" PRId64 " different images, to be cached in %s: %s", k->n_missing,
            k->n_distinct, k->dir, dt_format_bytes((double)k->n_missing * (double)dt_feature_nbytes(&k->kind), text));
    k->n_at_once = (int32_t)dt_min_i64(k->n_at_once, dt_ceil_div(k->n_missing, k->t->data->size));
    DT_TRY(dt_comm_agree(k->t->comm, prepare_to_make(k)));
    for (int64_t base = 0; base < k->n_missing; base += n)
        DT_TRY(make_file(k, base, dt_min_i64(n, k->n_missing - base)));
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
    k->pixels = take(k, k->n_at_once, k->image_nbytes);
    k->images = take(k, k->n_images, sizeof *k->images);
    k->missing = take(k, k->n_images, sizeof *k->missing);
    DT_CHECK(k->pixels && k->images && k->missing, DT_ERR_MEMORY, "out of memory for the list of %" PRId64 " images",
             k->n_images);
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
    give(k, k->t->train, k->images, places);
    give(k, k->t->valid, k->images + n_images_of(k->t->train), places);
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
    DT_TRY(open_files(k, f));
    find_missing(k, *f);
    if (k->t->model_opt->max_images == 0) k->n_missing = k->n_distinct = 0; /* no sample uses an image */
    if (k->n_missing > 0) {
        DT_TRY(make_missing(k));
        dt_features_close(*f);
        DT_TRY(open_files(k, f));
    } else if (k->n_distinct > 0) {
        DT_INFO("features of %" PRId64 " different images are cached in %s", k->n_distinct, k->dir);
    }
    return dt_comm_agree(comm, give_all(k));
}

static void close_making(making *k)
{
    dt_ledger_sub(k->t->ledger, DT_MEM_DATA, DT_ON_HOST, k->nbytes);
    free(k->pixels);
    free(k->images);
    free(k->missing);
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
                .kind = {.dtype = t->model_opt->dtype, .n_rows = v->n_features, .width = v->projector.n_in},
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
