/* features.c - features of a frozen tower, made before the first step.
 *
 * The different images that no file has yet are cut into files of some GiB, one after the other, and the images of a
 * file into rounds, in each of which every rank makes the features of some and writes them into the file that rank 0
 * has made. There is a vote behind each round, so that a rank that fails, or a signal, ends all of them together; what
 * was published by then is found again. */
#include "dtrain/io.h"
#include "dtrain/step.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_AT_ONCE = 4096 /* of the tower */, HASHED_AT_ONCE = 256 /* images of a rank, between votes */ };
static const int64_t FILE_NBYTES = INT64_C(4) << 30;
static const double SAY_EVERY_S = 10;

/** An image that has no features yet: the number of one that is equal. */
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
    /* to make them */
    dt_param_source source;
    dt_feature_maker *maker;
    int32_t n_at_once;
    size_t image_nbytes;
    uint8_t *pixels;
    char *features;
    uint64_t *checksums; /* [images of a file] */
    double said_s;
    int64_t n_made;
} making;

size_t dt_task_feature_nbytes(const dt_task *t)
{
    const dt_vision_config *v = t->mc->vision;
    return v && v->features_given ? dt_vision_feature_nbytes(v, t->model_opt->dtype) : 0;
}

/* ---- which tower ------------------------------------------------------------------------------------------------- */

/* The tower's own stage is its last norm. */
static bool makes_features(const dt_unit *u)
{
    return u->role == DT_UNIT_PATCHES || u->role == DT_UNIT_ENCODER || u->role == DT_UNIT_OWN;
}

static void add_number(uint64_t *hash, int64_t x) { *hash = dt_mix64(*hash ^ dt_mix64((uint64_t)x)); }
static void add_real(uint64_t *hash, double x)
{
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    add_number(hash, bits);
}

/* Weights, shape, what happens to a byte, and who computes: devices round in ways of their own. */
static dt_err hash_tower(const dt_task *t, const dt_model_config *mc, dt_zero *z, uint64_t *hash)
{
    const dt_vision_config *v = mc->vision;
    const dt_model_config *b = v->blocks;
    const int64_t numbers[] = {v->tower,
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
    *hash = dt_mix64(*hash ^ dt_hash_text(t->dev->ops->name));
    return DT_OK;
}

static dt_err check_same_towers(const making *k)
{
    for (int i = 0; i < k->t->n_same_tower; i++) {
        const dt_frozen_model *f = k->t->same_tower[i];
        uint64_t hash;
        DT_TRY(hash_tower(k->t, &f->mc, f->zero, &hash));
        DT_CONFIG_CHECK(hash == k->kind.tower, k->t->cfg, "vision", "feature_cache",
                        "%s has another vision tower than the model in training, and so other features of an image; "
                        "leave it out",
                        f->from.path);
    }
    return DT_OK;
}

/* ---- which images ------------------------------------------------------------------------------------------------ */

static int64_t n_images_of(const dt_loader *l) { return l ? dt_loader_n_images(l) : 0; }

static dt_err read_image(const making *k, int64_t i, uint8_t *pixels)
{
    const int64_t n_train = n_images_of(k->t->train);
    return i < n_train ? dt_loader_image(k->t->train, i, pixels) : dt_loader_image(k->t->valid, i - n_train, pixels);
}

/* Of this rank, from image `first` on. */
static dt_err hash_some(making *k, int64_t first, int64_t n)
{
    DT_TRY(dt_fault("features.hash"));
    for (int64_t i = first; i < first + n; i++) {
        DT_TRY(dt_phase_poll(k->t->phase));
        DT_TRY(read_image(k, i, k->pixels));
        k->images[i] = dt_image_hash_of(k->pixels, k->image_nbytes);
    }
    return DT_OK;
}

/* Images first .. end-1. */
static dt_err hash_range(making *k, int64_t first, int64_t end)
{
    dt_comm *comm = k->t->comm;
    const int64_t each = dt_min_i64(HASHED_AT_ONCE, dt_ceil_div(end - first, comm->nranks)),
                  round = each * comm->nranks;
    for (int64_t at = first; at < end; at += round) {
        const int64_t until = dt_min_i64(at + round, end), own = at + comm->rank * each,
                      n = dt_min_i64(each, until - own);
        dt_phase_enter(k->t->phase, "features", "images");
        DT_TRY(dt_comm_agree(comm, hash_some(k, own, n)));
        DT_TRY(dt_comm_join_host(comm, k->images + at, (size_t)(until - at) * sizeof *k->images));
    }
    return DT_OK;
}

/* Of one file, n from `first` on. Rank 0 alone looks for a list, and keeps one where there was none. */
static dt_err hash_file(making *k, int64_t first, int64_t n, uint64_t key)
{
    dt_comm *comm = k->t->comm;
    dt_image_hash *images = k->images + first;
    int64_t known = comm->rank == 0 && key && dt_image_list_read(k->dir, key, images, n);
    DT_TRY(dt_comm_broadcast_host(comm, &known, sizeof known, 0));
    if (known) return dt_comm_broadcast_host(comm, images, (size_t)n * sizeof *images, 0);
    memset(images, 0, (size_t)n * sizeof *images);
    DT_TRY(hash_range(k, first, first + n));
    if (!key) return DT_OK;
    return dt_comm_agree(comm, comm->rank == 0 ? dt_image_list_write(k->dir, key, images, n) : DT_OK);
}

static dt_err hash_images(making *k)
{
    const dt_loader *const loaders[] = {k->t->train, k->t->valid};
    int64_t at = 0, n;
    uint64_t key;
    for (int i = 0; i < 2; i++)
        for (int file = 0; loaders[i] && dt_loader_images_of(loaders[i], file, &n, &key); file++, at += n)
            if (n > 0) DT_TRY(hash_file(k, at, n, key));
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

/* ---- making them ------------------------------------------------------------------------------------------------- */

static void say(making *k, const char *what)
{
    const double now_s = dt_now_s();
    if (now_s - k->said_s < SAY_EVERY_S) return;
    k->said_s = now_s;
    DT_INFO("%s: %" PRId64 " of %" PRId64 " images", what, k->n_made, k->n_missing);
}

/* This rank's of a round: n from `first` on; none after an error, in a pass that it shares. */
static dt_err make_some(making *k, const dt_feature_file *f, int64_t base, int64_t first, int64_t n)
{
    dt_err err = dt_fault("features.make");
    for (int64_t i = 0; i < n && err == DT_OK; i++)
        err = read_image(k, k->missing[base + first + i].at, k->pixels + (size_t)i * k->image_nbytes);
    DT_TRY(dt_feature_maker_run(k->maker, k->pixels, err == DT_OK ? (int32_t)n : 0, k->features));
    for (int64_t i = 0; i < n && err == DT_OK; i++)
        err = dt_feature_file_write(f, first + i, &k->missing[base + first + i].image,
                                    k->features + (size_t)i * dt_feature_nbytes(&k->kind), &k->checksums[first + i]);
    return err;
}

static dt_err make_rounds(making *k, const dt_feature_file *f, int64_t base)
{
    dt_comm *comm = k->t->comm;
    const int64_t round = (int64_t)k->n_at_once * comm->nranks;
    memset(k->checksums, 0, (size_t)f->n * sizeof *k->checksums);
    for (int64_t at = 0; at < f->n; at += round) {
        const int64_t first = at + (int64_t)comm->rank * k->n_at_once, left = dt_max_i64(0, f->n - first);
        dt_phase_enter(k->t->phase, "features", "images");
        dt_err err = make_some(k, f, base, first, dt_min_i64(left, k->n_at_once));
        if (err == DT_OK) err = dt_phase_poll(k->t->phase);
        DT_TRY(dt_comm_agree(comm, err));
        k->n_made += dt_min_i64(round, f->n - at);
        say(k, "features");
    }
    DT_TRY(dt_comm_agree(comm, dt_feature_file_sync(f))); /* other nodes see what was written once it is on the disk */
    return dt_comm_join_host(comm, k->checksums, (size_t)f->n * sizeof *k->checksums);
}

static dt_err publish(const making *k, dt_feature_file *f, int64_t base)
{
    dt_image_hash *images = malloc((size_t)f->n * sizeof *images);
    DT_CHECK(images, DT_ERR_MEMORY, "no memory for the list of %" PRId64 " images", f->n);
    for (int64_t i = 0; i < f->n; i++) images[i] = k->missing[base + i].image;
    const dt_err err = dt_feature_file_publish(f, k->dir, images, k->checksums);
    free(images);
    return err;
}

/* Features of n images that have none, from the base-th on. */
static dt_err make_file(making *k, int64_t base, int64_t n)
{
    dt_comm *comm = k->t->comm;
    dt_feature_file f = {.fd = -1};
    dt_err err = comm->rank == 0 ? dt_feature_file_create(&f, &k->kind, k->dir, n) : DT_OK;
    char *part = f.part;
    err = dt_comm_agree(comm, err);
    if (err == DT_OK) err = dt_comm_share_text(comm, &part, NULL);
    if (err == DT_OK && comm->rank > 0) err = dt_feature_file_join(&f, &k->kind, part, n);
    if (comm->rank > 0) free(part);
    if (err != DT_ERR_COMM) err = dt_comm_agree(comm, err);
    if (err == DT_OK) err = make_rounds(k, &f, base);
    if (err == DT_OK) err = dt_comm_agree(comm, comm->rank == 0 ? publish(k, &f, base) : DT_OK);
    dt_feature_file_close(&f);
    return err;
}

static int64_t images_of_file(const making *k)
{
    return dt_min_i64(dt_max_i64(1, FILE_NBYTES / (int64_t)dt_feature_nbytes(&k->kind)), k->n_missing);
}

/* Local. */
static dt_err open_maker(making *k)
{
    dt_task *t = k->t;
    const dt_feature_options opt = {
        .dtype = k->kind.dtype, .max_images = k->n_at_once, .reproducible = t->model_opt->reproducible};
    k->checksums = malloc((size_t)images_of_file(k) * sizeof *k->checksums);
    k->features = malloc((size_t)k->n_at_once * dt_feature_nbytes(&k->kind));
    DT_CHECK(k->checksums && k->features, DT_ERR_MEMORY, "no memory for the features of %d images", k->n_at_once);
    k->source = dt_zero_source(t->zero);
    return dt_feature_maker_open(&k->maker, t->mc, &opt, t->units, t->n_units, t->dev, &k->source, t->compute,
                                 t->phase);
}

static dt_err make_missing(making *k)
{
    char text[24];
    const int64_t n = images_of_file(k);
    const double begin_s = k->said_s = dt_now_s();
    DT_INFO("features of %" PRId64 " of %" PRId64 " different images are made first, and kept in %s: %s", k->n_missing,
            k->n_distinct, k->dir, dt_format_bytes((double)k->n_missing * (double)dt_feature_nbytes(&k->kind), text));
    k->n_at_once = (int32_t)dt_min_i64(k->n_at_once, dt_ceil_div(k->n_missing, k->t->comm->nranks));
    DT_TRY(dt_comm_agree(k->t->comm, open_maker(k)));
    for (int64_t base = 0; base < k->n_missing; base += n)
        DT_TRY(make_file(k, base, dt_min_i64(n, k->n_missing - base)));
    DT_INFO("features were made in %.1f s", dt_now_s() - begin_s);
    return DT_OK;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

/* What files there are now, which rank 0 says: another run may add some meanwhile. */
static dt_err open_files(making *k, dt_features **f)
{
    dt_comm *comm = k->t->comm;
    char *names = NULL;
    *f = NULL;
    DT_TRY(dt_comm_agree(comm, comm->rank ? DT_OK : dt_features_list(k->dir, &k->kind, &names)));
    char *mine = names;
    dt_err err = dt_comm_share_text(comm, &names, NULL);
    if (err == DT_OK) err = dt_comm_agree(comm, dt_features_open(f, &k->kind, names));
    free(comm->rank ? names : mine);
    if (err != DT_OK) dt_features_close(*f), *f = NULL;
    return err;
}

/* Local. */
static dt_err prepare(making *k)
{
    const size_t n = (size_t)k->n_images + 1;
    k->pixels = malloc((size_t)k->n_at_once * k->image_nbytes);
    k->images = calloc(n, sizeof *k->images);
    k->missing = malloc(n * sizeof *k->missing);
    DT_CHECK(k->pixels && k->images && k->missing, DT_ERR_MEMORY, "no memory for the list of %" PRId64 " images",
             k->n_images);
    return DT_OK;
}

static void give(const making *k, dt_loader *l, const dt_image_hash *images, dt_feature_place *places)
{
    for (int64_t i = 0; i < n_images_of(l); i++) places[i] = dt_features_find(k->t->features, &images[i]);
    if (l) dt_loader_give_features(l, k->t->features, places);
}

static dt_err give_all(const making *k)
{
    dt_feature_place *places = malloc(((size_t)k->n_images + 1) * sizeof *places);
    DT_CHECK(places, DT_ERR_MEMORY, "no memory for the places of %" PRId64 " images' features", k->n_images);
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
    if (k->n_missing > 0) {
        DT_TRY(make_missing(k));
        dt_features_close(*f);
        DT_TRY(open_files(k, f));
    } else if (k->n_distinct > 0) {
        DT_INFO("features of %" PRId64 " different images are in %s", k->n_distinct, k->dir);
    }
    return dt_comm_agree(comm, give_all(k));
}

static void close_making(making *k)
{
    dt_feature_maker_close(k->maker);
    free(k->pixels);
    free(k->images);
    free(k->missing);
    free(k->features);
    free(k->checksums);
}

dt_err dt_task_make_features(dt_task *t)
{
    const dt_vision_config *v = t->mc->vision;
    if (dt_task_feature_nbytes(t) == 0) return DT_OK;
    making k = {.t = t,
                .dir = t->cfg->vision_feature_cache,
                .kind = {.dtype = t->model_opt->dtype, .n_rows = v->n_features, .width = v->projector.n_in},
                .n_images = n_images_of(t->train) + n_images_of(t->valid),
                .n_at_once = (int32_t)dt_max_i64(1, ROWS_AT_ONCE / v->n_rows),
                .image_nbytes = dt_image_nbytes(v->image_size)};
    DT_TRY(hash_tower(t, t->mc, t->zero, &k.kind.tower));
    DT_CHECK(!t->features || k.kind.tower == t->tower_hash, DT_ERR_USAGE,
             "vision.feature_cache: the reference has another vision tower than the model in training; leave it out");
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
