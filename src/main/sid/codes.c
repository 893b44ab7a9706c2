/* codes.c - computes codebooks and codes with the selected method. */
#include "sid_app.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static dt_err make_room(app *a, int64_t width)
{
    const int64_t n = a->rows.n;
    DT_ALLOC(a->books, a->opt.levels, "out of memory for codebooks");
    DT_ALLOC(a->code, a->opt.levels, "out of memory for codebooks");
    for (int64_t l = 0; l < a->opt.levels; l++) {
        a->code[l] = calloc((size_t)n, sizeof **a->code);
        DT_CHECK(a->code[l], DT_ERR_MEMORY, "out of memory for the codes of %" PRId64 " items", n);
        DT_TRY(dt_sid_book_alloc(&a->sid, &a->books[l], width));
    }
    return dt_sid_points_alloc(&a->sid, &a->points, n, width);
}

/* Residual k-means. The last level's codes are not subtracted, because collisions are resolved on its input rows. */
static dt_err fit_levels(app *a)
{
    const options *o = &a->opt;
    double squares = 0;
    TOGETHER(a, make_room(a, a->rows.width));
    TOGETHER(a, dt_sid_points_read(&a->sid, &a->points, &a->rows));
    for (int l = 0; l < o->levels; l++) {
        const dt_sid_kmeans how = {
            .max_iterations = o->kmeans_iterations, .balanced = o->method == SID_BALANCED, .level = l};
        if (l > 0) TOGETHER(a, dt_sid_points_subtract(&a->sid, &a->points, a->books[l - 1].rows.ptr, a->code[l - 1]));
        DT_TRY(dt_sid_points_measure(&a->sid, &a->points));
        DT_TRY(dt_sid_kmeans_fit(&a->sid, &how, &a->points, &a->books[l], a->code[l], &squares));
        DT_INFO("level %c: mean squared distance %.6g", 'a' + l, dt_unsigned_nan(squares / (double)a->rows.n));
    }
    return DT_OK;
}

dt_err sid_collision_rate(const app *a, double *rate)
{
    dt_sid_groups g;
    int64_t n_distinct = 0;
    const dt_err err = dt_sid_group(a->code, (int)a->opt.levels, a->rows.n, &g, &n_distinct);
    dt_sid_groups_free(&g);
    *rate = (double)(a->rows.n - n_distinct) / (double)a->rows.n;
    return err;
}

/* ---- RQ-VAE ------------------------------------------------------------------------------------------------------ */

typedef struct training {
    dt_rqvae *net;
    int64_t *item; /* [n] order of an epoch */
    float *distance;
    float *best; /* parameters with the lowest collision rate so far, and that rate */
    double best_rate;
} training;

/* Compute the codes of all items with the current parameters; points: input of the last level. */
static dt_err quantise_all(app *a, training *t)
{
    dt_err err = dt_rqvae_books(t->net, a->books);
    if (err == DT_OK) err = dt_rqvae_encode(t->net, &a->rows, NULL, &a->points);
    TOGETHER(a, err);
    for (int l = 0; l < a->opt.levels; l++) {
        if (l > 0) TOGETHER(a, dt_sid_points_subtract(&a->sid, &a->points, a->books[l - 1].rows.ptr, a->code[l - 1]));
        DT_TRY(dt_sid_points_measure(&a->sid, &a->points));
        DT_TRY(dt_sid_nearest(&a->sid, &a->points, &a->books[l], a->code[l], t->distance));
    }
    return DT_OK;
}

static dt_err evaluate(app *a, training *t, int64_t epoch, const dt_rqvae_loss *loss)
{
    double rate = 0;
    DT_TRY(quantise_all(a, t));
    TOGETHER(a, sid_collision_rate(a, &rate));
    DT_INFO("epoch %" PRId64 ": loss %.6g, reconstruction %.6g, quantisation %.6g, collisions %.6f", epoch,
            dt_unsigned_nan(loss->total), dt_unsigned_nan(loss->reconstruction), dt_unsigned_nan(loss->quantisation),
            rate);
    if (rate >= t->best_rate) return DT_OK;
    t->best_rate = rate;
    return together(&a->comm, dt_rqvae_get(t->net, t->best));
}

static void shuffle(const app *a, int64_t epoch, int64_t *item)
{
    const uint64_t key = dt_mix64(dt_rng_key(a->sid.seed, DT_RNG_SHUFFLE) + (uint64_t)epoch), n = (uint64_t)a->rows.n;
    for (uint64_t i = 0; i < n; i++) item[i] = (int64_t)dt_rng_permute(key, n, i);
}

/* The codebooks start from the first batch, those of kmeans+ from balanced k-means of all items. */
static dt_err seed(app *a, training *t, int64_t n_batch)
{
    const bool all = a->opt.method == SID_KMEANS_PLUS;
    const dt_sid_kmeans how = {.max_iterations = a->opt.kmeans_iterations, .balanced = all};
    return dt_rqvae_seed(t->net, &a->rows, all ? NULL : t->item, all ? a->rows.n : n_batch, &how);
}

/* *mean: mean of the losses of its steps. */
static dt_err one_epoch(app *a, training *t, int64_t epoch, dt_rqvae_loss *mean)
{
    const int64_t n = a->rows.n, batch = a->opt.rqvae.batch, n_steps = dt_ceil_div(n, batch);
    dt_rqvae_loss loss;
    *mean = (dt_rqvae_loss){0};
    shuffle(a, epoch, t->item);
    for (int64_t at = 0; at < n; at += batch) {
        const int64_t m = dt_min_i64(batch, n - at);
        if (epoch == 0 && at == 0) DT_TRY(seed(a, t, m));
        DT_TRY(dt_rqvae_backward(t->net, &a->rows, t->item + at, m, &loss));
        TOGETHER(a, dt_rqvae_update(t->net));
        mean->total += loss.total / (double)n_steps;
        mean->reconstruction += loss.reconstruction / (double)n_steps;
        mean->quantisation += loss.quantisation / (double)n_steps;
    }
    return DT_OK;
}

static dt_err train(app *a, training *t)
{
    const int64_t epochs = a->opt.rqvae.epochs;
    dt_rqvae_loss loss = {0};
    for (int64_t e = 0; e < epochs; e++) {
        DT_TRY(one_epoch(a, t, e, &loss));
        if ((e + 1) % a->opt.rqvae.evaluate_every == 0 || e + 1 == epochs) DT_TRY(evaluate(a, t, e + 1, &loss));
    }
    TOGETHER(a, dt_rqvae_put(t->net, t->best));
    return quantise_all(a, t);
}

static dt_err open_training(app *a, training *t)
{
    const options *o = &a->opt;
    const bool plus = o->method == SID_KMEANS_PLUS;
    const int64_t n = a->rows.n, in_batch = plus ? n : dt_min_i64(n, o->rqvae.batch);
    dt_rqvae_options net = o->rqvae.net;
    net.width = a->rows.width, net.hidden = o->rqvae.hidden, net.residual = plus;
    net.warmup_steps = o->rqvae.warmup_epochs * dt_ceil_div(n, o->rqvae.batch);
    if (plus) net.dim = net.width;
    DT_CHECK(in_batch >= o->codes, DT_ERR_USAGE,
             "--batch-size: the codebooks start from means of a batch, but %" PRId64 " items are too few for %" PRId64
             " codes; raise --batch-size, or lower --codes",
             in_batch, o->codes);
    DT_TRY(dt_rqvae_open(&t->net, &a->sid, &net));
    t->best_rate = INFINITY;
    DT_ALLOC(t->item, n, "out of memory for %" PRId64 " items", n);
    DT_ALLOC(t->distance, n, "out of memory for %" PRId64 " items", n);
    DT_ALLOC(t->best, dt_rqvae_n_param(t->net), "out of memory for %" PRId64 " items", n);
    return make_room(a, net.dim);
}

static dt_err fit_rqvae(app *a)
{
    training t = {0};
    dt_err err = together(&a->comm, open_training(a, &t));
    if (err == DT_OK) err = train(a, &t);
    dt_rqvae_close(t.net);
    free(t.item);
    free(t.distance);
    free(t.best);
    return err;
}

dt_err sid_make_codes(app *a)
{
    const sid_method how = a->opt.method;
    return how == SID_RQVAE || how == SID_KMEANS_PLUS ? fit_rqvae(a) : fit_levels(a);
}
