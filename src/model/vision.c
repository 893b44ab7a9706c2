/* vision.c - a tower and a projector beside a language model: from the images of a batch to rows in the place of the
 * embeddings of placeholders, and their gradients back.
 *
 *     features  what the tower's block n_used leaves, [N P, C], or what the norm behind the last makes of it
 *     x         of them the rows that are wanted, squares of shuffle x shuffle patches side by side: one gather,
 *              [R, n_in]
 *     y         = projector(x), [R, D]
 *     out       y, or the mean of each image's rows, [S, D]: placeholder k of image i gets row i n_tokens + k, wherever
 *              it is shown
 *
 * The tower is a model over the units behind the language model's, whose numbers the parameter source gets shifted. It
 * takes part in a pass whether there are images or not, so that the order of units is the same on all ranks. Where
 * features are given there is no tower: x comes with the batch. */
#include "vision_private.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = DT_MAX_PROJECTOR_LAYERS - 1, PROJECTOR_LAYER = -2 };
static const float PROJECTOR_EPS = 1e-5f;

/** The units of a source from `first` on, counted from 0. */
struct shifted {
    const dt_param_source *of;
    int first;
};

/** Consecutive placeholders of the batch, first .. first+n-1, that show consecutive rows. */
struct run {
    int64_t first, row, n;
};

/** A layer's output, on its way to the next. */
struct hidden {
    void *pre;          /* before the activation */
    void *act;          /* behind it and dropout */
    void *norm;         /* behind the norm; act where there is none */
    float *mean, *rstd; /* [R] */
};

/** From rows of y to their mean, where an image has one placeholder. */
struct pool {
    int32_t *image, *in_order; /* [R]: each row's image; 0, 1 .. */
    float *sum;                /* [N, D] */
};

struct vision {
    const dt_vision_config *config;
    dt_model *tower;
    struct tower_norm norm_stage;
    struct shifted shifted;
    dt_param_source source;
    int projector_unit;
    bool tower_trains, projector_trains;
    bool given; /* features come with the batch: no tower, nothing of feature_row */
    bool alone; /* the tower without its projector, to make features */
    struct linear layer[DT_MAX_PROJECTOR_LAYERS];
    struct norm norm[HIDDEN];
    dt_batch batch; /* of the tower: the positions of each image */
    int32_t n_images;
    int64_t n_places; /* placeholders of the batch: n_shown where no two sequences share an image */
    struct run *run;  /* [max_seq], n_runs of them used */
    int32_t n_runs;
    int32_t *row_end; /* [max S + 1]: where each row's tokens end in shown_order */
    dt_buf device, staging;
    /* device */
    int32_t *feature_row; /* [max R, shuffle^2]: which rows of the features stand side by side */
    void *x, *y, *out;
    struct hidden hidden[HIDDEN];
    void *dx, *dy, *dout, *dhidden[HIDDEN]; /* their gradients */
    struct pool pool;
    struct span keys;     /* uint64 [R]: for dropout */
    struct span features; /* where they are given; x is their place on the device */
};

static int64_t squared(int64_t n) { return n * n; }
static int64_t max_rows(const dt_model *m, const struct vision *v) { return m->opt.max_images * v->config->n_features; }
static int64_t n_rows(const struct vision *v) { return v->n_images * v->config->n_features; }
static int64_t n_shown(const struct vision *v) { return v->n_images * v->config->n_tokens; }
static bool drops(const dt_model *m, const struct vision *v)
{
    return m->opt.training && v->config->projector.dropout > 0;
}
bool dt_vision_trains(const dt_model *m)
{
    return m->vision && (m->vision->tower_trains || m->vision->projector_trains);
}

/* ---- what the tower asks for ------------------------------------------------------------------------------------- */

static dt_err shifted_params_acquire(void *self, int unit, dt_param_view *view)
{
    const struct shifted *s = self;
    return s->of->params_acquire(s->of->self, s->first + unit, view);
}
static dt_err shifted_params_release(void *self, int unit)
{
    const struct shifted *s = self;
    return s->of->params_release(s->of->self, s->first + unit);
}
static dt_err shifted_grads_acquire(void *self, int unit, dt_grad_view *view)
{
    const struct shifted *s = self;
    return s->of->grads_acquire(s->of->self, s->first + unit, view);
}
static dt_err shifted_grads_release(void *self, int unit)
{
    const struct shifted *s = self;
    return s->of->grads_release(s->of->self, s->first + unit);
}
static bool shifted_params_resident(void *self)
{
    const struct shifted *s = self;
    return s->of->params_resident(s->of->self);
}

static void shift_source(struct vision *v, const dt_param_source *of, int first)
{
    v->shifted = (struct shifted){of, first};
    v->source = (dt_param_source){.self = &v->shifted,
                                  .params_acquire = shifted_params_acquire,
                                  .params_release = shifted_params_release,
                                  .grads_acquire = shifted_grads_acquire,
                                  .grads_release = shifted_grads_release,
                                  .params_resident = of && of->params_resident ? shifted_params_resident : NULL};
}

/* ---- open -------------------------------------------------------------------------------------------------------- */

static bool any_trained(const dt_unit *units, int first, int end)
{
    bool any = false;
    for (int u = first; u < end; u++) any = any || units[u].flat_len[DT_TRAINED] > 0;
    return any;
}

static dt_err find_layers(const dt_model *m, struct vision *v, const dt_unit *u)
{
    const dt_projector_config *p = &v->config->projector;
    bool complete = true;
    for (int i = 0; i < p->n_layers; i++) {
        const bool last = i == p->n_layers - 1;
        char linear[16], weight[24], bias[24];
        snprintf(linear, sizeof linear, "linear_%d", i + 1);
        v->layer[i] = dt_linear_at(m, u, linear, i == 0 ? p->n_in : p->hidden_size, last ? p->n_out : p->hidden_size);
        complete = complete && dt_exists(v->layer[i].w);
        if (last) continue;
        snprintf(weight, sizeof weight, "norm_%d.weight", i + 1);
        snprintf(bias, sizeof bias, "norm_%d.bias", i + 1);
        v->norm[i] = dt_norm_at(u, weight, bias);
        complete = complete && dt_exists(v->norm[i].w) == p->norm;
    }
    DT_CHECK(complete, DT_ERR_ARG, "unit %s does not hold the tensors of a projector %s", u->name,
             dt_projector_name(p->type));
    return DT_OK;
}

/* Of the tower, which has the units from `first` to the projector. */
static dt_model_options tower_options(const dt_model *m, struct vision *v)
{
    /* what is not trained gives the same bits in every micro-batch, so that features can be made before */
    const bool invariant = m->opt.batch_invariant || (m->opt.reproducible && !v->tower_trains);
    const int32_t n = m->opt.max_images > 0 ? m->opt.max_images : 1;
    return (dt_model_options){.dtype = m->opt.dtype,
                              .grad_dtype = m->opt.grad_dtype,
                              .max_tok = (int32_t)(n * v->config->n_rows),
                              .max_seq = n,
                              .max_pos = (int32_t)v->config->n_rows,
                              .max_images = n,
                              .training = m->opt.training && v->tower_trains,
                              .recompute = m->opt.recompute,
                              .reproducible = m->opt.reproducible,
                              .batch_invariant = invariant,
                              .seed = m->opt.seed,
                              .borrows = !(m->opt.training && v->tower_trains) && !v->alone,
                              .own_stage = v->config->feature_norm ? &dt_tower_norm : NULL,
                              .own_stage_self = &v->norm_stage,
                              .tower = v->config};
}

static dt_err describe(const dt_model *m, struct vision *v, const dt_unit *units, int n_units, int first)
{
    const int projector = dt_units_find(units, n_units, DT_UNIT_PROJECTOR);
    v->config = m->mc->vision;
    DT_CHECK(v->config && projector > first, DT_ERR_ARG, "a tower without its configuration, or without a projector");
    DT_CHECK((int64_t)m->opt.max_images * squared(v->config->n_side + 1) <= INT32_MAX, DT_ERR_USAGE,
             "%d images of %" PRId64 " x %" PRId64 " patches in a micro-batch: rows are counted in 32 bits",
             m->opt.max_images, v->config->n_side, v->config->n_side);
    v->projector_unit = projector;
    v->tower_trains = !v->alone && any_trained(units, first, projector);
    v->projector_trains = any_trained(units, projector, projector + 1);
    v->given = v->config->features_given;
    DT_CHECK(!v->given || !v->tower_trains, DT_ERR_ARG, "features are given, and their tower is trained");
    return find_layers(m, v, &units[projector]);
}

static void place_hidden(const dt_model *m, struct vision *v, struct arena *a, int i)
{
    const int64_t R = max_rows(m, v), H = v->config->projector.hidden_size;
    struct hidden *h = &v->hidden[i];
    h->pre = dt_take(a, R, H, m->elem);
    h->act = dt_take(a, R, H, m->elem);
    h->norm = v->config->projector.norm ? dt_take(a, R, H, m->elem) : h->act;
    h->mean = dt_take(a, v->config->projector.norm ? R : 0, 1, sizeof(float));
    h->rstd = dt_take(a, v->config->projector.norm ? R : 0, 1, sizeof(float));
    v->dhidden[i] = dt_take(a, dt_vision_trains(m) && m->opt.training ? R : 0, H, m->elem);
}

/* out, which is y where nothing is pooled; the same of their gradients. */
static void place_out(const dt_model *m, struct vision *v, struct arena *a)
{
    const int64_t N = m->opt.max_images, R = max_rows(m, v), D = v->config->projector.n_out;
    const bool pools = dt_vision_pools(v->config), learns = dt_vision_trains(m) && m->opt.training;
    v->y = dt_take(a, R, D, m->elem);
    v->dy = dt_take(a, learns ? R : 0, D, m->elem);
    v->out = pools ? dt_take(a, N, D, m->elem) : v->y;
    v->dout = pools ? dt_take(a, learns ? N : 0, D, m->elem) : v->dy;
    v->pool = (struct pool){.image = dt_take(a, pools ? R : 0, 1, sizeof(int32_t)),
                            .in_order = dt_take(a, pools ? R : 0, 1, sizeof(int32_t)),
                            .sum = dt_take(a, pools ? N : 0, D, sizeof(float))};
}

static void place(const dt_model *m, struct vision *v, struct arena *device, struct arena *staging)
{
    const dt_projector_config *p = &v->config->projector;
    const int64_t R = max_rows(m, v);
    if (v->config->feature_norm && !v->given) dt_tower_norm_place(&v->norm_stage, m, v->tower_trains, device);
    v->features = dt_take_span(staging, device, v->given ? (size_t)(R * p->n_in) * m->elem : 0);
    v->feature_row = dt_take(device, v->given ? 0 : R, squared(p->shuffle), sizeof(int32_t));
    v->x = v->given ? v->features.device : dt_take(device, R, p->n_in, m->elem);
    if (v->alone) return;
    place_out(m, v, device);
    for (int i = 0; i < p->n_layers - 1; i++) place_hidden(m, v, device, i);
    v->dx = dt_take(device, v->tower_trains && m->opt.training ? R : 0, p->n_in, m->elem);
    v->keys = dt_take_span(staging, device, drops(m, v) ? (size_t)R * sizeof(uint64_t) : 0);
    v->run = dt_take(staging, m->opt.max_seq, 1, sizeof *v->run);
    v->row_end = dt_take(staging, m->opt.max_images * v->config->n_tokens + 1, 1, sizeof *v->row_end);
}

dt_err dt_vision_size(const dt_model *m, const dt_unit *units, int n_units, int first, size_t *nbytes)
{
    struct vision v = {0};
    dt_memory tower = {0};
    DT_TRY(describe(m, &v, units, n_units, first));
    dt_model_options opt = tower_options(m, &v);
    if (opt.borrows && !v.given) {
        opt.borrows = false;
        DT_TRY(dt_model_plan(v.config->blocks, &opt, units + first, v.projector_unit - first, m->dev, &tower));
    }
    *nbytes = tower.at[DT_MEM_ACTIVATIONS][DT_ON_DEVICE];
    return DT_OK;
}

dt_err dt_vision_plan(const dt_model *lm, const dt_unit *units, int n_units, int first, dt_memory *plan)
{
    dt_model m = *lm;
    struct vision v = {0};
    struct arena device = {0}, staging = {0};
    dt_memory tower = {0};
    DT_TRY(describe(&m, &v, units, n_units, first));
    const dt_model_options opt = tower_options(&m, &v);
    if (!v.given) DT_TRY(dt_model_plan(v.config->blocks, &opt, units + first, v.projector_unit - first, m.dev, &tower));
    m.vision = &v;
    place(&m, &v, &device, &staging);
    DT_CHECK(!device.overflow, DT_ERR_MEMORY, "the features of %d images do not fit into the address space",
             m.opt.max_images);
    dt_memory_add(plan, &tower);
    plan->at[DT_MEM_ACTIVATIONS][DT_ON_DEVICE] += device.used;
    plan->at[DT_MEM_STAGING][DT_ON_PINNED] += staging.used;
    if (!v.given) plan->at[DT_MEM_DATA][DT_ON_HOST] += dt_batch_nbytes(opt.max_tok, opt.max_seq);
    return DT_OK;
}

/* Row (I, J) of what the projector gets has the patches (I f + a, J f + b), a first; without a class token. */
static void list_rows(const struct vision *v, int64_t n_images, int32_t *row)
{
    const dt_vision_config *c = v->config;
    const int64_t f = c->projector.shuffle, G = c->n_side / f, lead = c->n_rows - squared(c->n_side);
    for (int64_t i = 0; i < n_images; i++) {
        const int64_t base = i * c->n_rows;
        if (f == 1)
            for (int64_t r = c->drop_first; r < c->n_rows; r++) *row++ = (int32_t)(base + r);
        else
            for (int64_t at = 0; at < squared(G * f); at++) {
                const int64_t ab = at % squared(f), I = at / squared(f) / G, J = at / squared(f) % G;
                *row++ = (int32_t)(base + lead + (I * f + ab / f) * c->n_side + J * f + ab % f);
            }
    }
}

/* The images of the projector's rows. */
static void list_images(const struct vision *v, int64_t n_images, int32_t *image)
{
    for (int64_t r = 0; r < n_images * v->config->n_features; r++) image[r] = (int32_t)(r / v->config->n_features);
}

static void list_in_order(const struct vision *v, int64_t n_images, int32_t *row)
{
    for (int64_t r = 0; r < n_images * v->config->n_features; r++) row[r] = (int32_t)r;
}

/* n numbers that stay as they are, to the device. */
static dt_err bring(const dt_model *m, const struct vision *v, int32_t *to, int64_t n,
                    void (*list)(const struct vision *v, int64_t n_images, int32_t *number))
{
    int32_t *number = malloc((size_t)n * sizeof *number);
    DT_CHECK(number, DT_ERR_MEMORY, "no memory for the numbers of %" PRId64 " features", n);
    list(v, m->opt.max_images, number);
    dt_err err = m->ops->copy(m->dev, to, number, (size_t)n * sizeof *number, m->stream);
    const dt_err waited = m->ops->stream_sync(m->dev, m->stream);
    free(number);
    return err != DT_OK ? err : waited;
}

static dt_err bring_rows(const dt_model *m, const struct vision *v)
{
    const int64_t R = max_rows(m, v);
    if (R > 0 && !v->given) DT_TRY(bring(m, v, v->feature_row, R * squared(v->config->projector.shuffle), list_rows));
    if (R == 0 || v->alone || !dt_vision_pools(v->config)) return DT_OK;
    DT_TRY(bring(m, v, v->pool.image, R, list_images));
    return bring(m, v, v->pool.in_order, R, list_in_order);
}

static dt_err allocate(dt_model *m, struct vision *v)
{
    struct arena device = {0}, staging = {0};
    place(m, v, &device, &staging);
    DT_CHECK(!device.overflow, DT_ERR_MEMORY, "the features of %d images do not fit into the address space",
             m->opt.max_images);
    DT_TRY(dt_buf_alloc(&v->device, m->dev, DT_ON_DEVICE, device.used, DT_MEM_ACTIVATIONS));
    DT_TRY(dt_buf_alloc(&v->staging, m->dev, DT_ON_PINNED, staging.used, DT_MEM_STAGING));
    device = (struct arena){.base = v->device.ptr};
    staging = (struct arena){.base = v->staging.ptr};
    place(m, v, &device, &staging);
    return bring_rows(m, v);
}

static dt_err open_tower(dt_model *m, struct vision *v, const dt_unit *units, int first)
{
    dt_model_options opt = tower_options(m, v);
    if (v->given) return DT_OK;
    opt.lender = m->opt.borrows ? m->opt.lender : m;
    shift_source(v, m->source, first);
    DT_TRY(dt_model_open(&v->tower, v->config->blocks, &opt, units + first, v->projector_unit - first, m->dev,
                         &v->source, m->stream, m->phase));
    return dt_batch_alloc(&v->batch, opt.max_tok, opt.max_seq, m->dev->ledger);
}

static dt_err open_all(dt_model *m, const dt_unit *units, int n_units, int first, bool alone)
{
    struct vision *v = m->vision = calloc(1, sizeof *v);
    DT_CHECK(v, DT_ERR_MEMORY, "no memory for a vision tower");
    v->alone = alone;
    DT_TRY(describe(m, v, units, n_units, first));
    DT_TRY(open_tower(m, v, units, first));
    return allocate(m, v);
}

dt_err dt_vision_open(dt_model *m, const dt_unit *units, int n_units, int first)
{
    return open_all(m, units, n_units, first, false);
}

void dt_vision_close(dt_model *m)
{
    struct vision *v = m->vision;
    if (!v) return;
    dt_model_close(v->tower);
    dt_batch_free(&v->batch, m->dev->ledger);
    dt_buf_free(&v->device);
    dt_buf_free(&v->staging);
    free(v);
    m->vision = NULL;
}

/* ---- placeholders ------------------------------------------------------------------------------------------------ */

/* The first token that shows a row of out. */
static int32_t first_shown(const dt_model *m, int64_t row)
{
    return m->host.shown_order[row > 0 ? m->vision->row_end[row - 1] : 0];
}

/* Of a row of the projector: that of its placeholder, or a number of it. */
static uint64_t key_of(const dt_model *m, const dt_batch *b, int64_t row)
{
    const dt_vision_config *c = m->vision->config;
    if (!dt_vision_pools(c)) return b->token_key[first_shown(m, row)];
    return dt_mix64(b->token_key[first_shown(m, row / c->n_features)] + (uint64_t)(row % c->n_features));
}

static dt_err stage_keys(dt_model *m, const dt_batch *b)
{
    struct vision *v = m->vision;
    if (!v->keys.nbytes || n_rows(v) == 0) return DT_OK;
    uint64_t *key = (uint64_t *)(void *)v->keys.host;
    for (int64_t r = 0; r < n_rows(v); r++) key[r] = key_of(m, b, r);
    return dt_span_ahead(m, &v->keys, (size_t)n_rows(v) * sizeof *key);
}

static dt_err stage_features(dt_model *m, const dt_batch *b)
{
    struct vision *v = m->vision;
    const size_t nbytes = (size_t)v->n_images * b->image_nbytes;
    if (!v->given || nbytes == 0) return DT_OK;
    memcpy(v->features.host, b->pixels, nbytes);
    return dt_span_ahead(m, &v->features, nbytes);
}

static bool is_placeholder(const struct vision *v, const dt_batch *b, int32_t s, int32_t t)
{
    const int32_t end = b->prompt_len && b->prompt_len[s] > 0 ? b->prompt_len[s] : INT32_MAX;
    return b->token[t] == v->config->image_token && b->pos[t] < end;
}

static void add_run(struct vision *v, int64_t first, int64_t row, int64_t n)
{
    struct run *last = v->n_runs > 0 ? &v->run[v->n_runs - 1] : NULL;
    if (last && last->row + last->n == row)
        last->n += n;
    else
        v->run[v->n_runs++] = (struct run){first, row, n};
}

/* The placeholders of a sequence and the rows that they show, behind those of others. */
static dt_err find_placeholders(dt_model *m, const dt_batch *b, int32_t s)
{
    struct vision *v = m->vision;
    const int64_t per_image = v->config->n_tokens;
    int32_t n = 0;
    for (int32_t t = b->seq_start[s]; t < b->seq_start[s + 1]; t++) n += is_placeholder(v, b, s, t);
    if (n == 0) return DT_OK;
    const int64_t row = v->n_images > 0 ? b->first_image[s] * per_image : 0;
    DT_CHECK(row >= 0 && n % per_image == 0 && row + n <= n_shown(v), DT_ERR_DATA,
             "a sequence has %d placeholders (token %d) for at most %" PRId64 " images of %" PRId64
             " placeholders each",
             n, v->config->image_token, v->n_images - row / per_image, per_image);
    add_run(v, v->n_places, row, n);
    n = 0;
    for (int32_t t = b->seq_start[s]; t < b->seq_start[s + 1]; t++) {
        if (!is_placeholder(v, b, s, t)) continue;
        m->host.place[v->n_places++] = t;
        m->host.shown[t] = (int32_t)row + n++;
    }
    return DT_OK;
}

static dt_err order_shown(dt_model *m)
{
    struct vision *v = m->vision;
    if (n_shown(v) == 0) return DT_OK;
    dt_sort_tokens(m->host.shown, n_shown(v), m->host.place, v->n_places, v->row_end, m->host.shown_order);
    for (int32_t i = 0; i < v->n_images; i++) {
        const int64_t row = i * v->config->n_tokens;
        DT_CHECK(v->row_end[row] > (i > 0 ? v->row_end[row - 1] : 0), DT_ERR_DATA,
                 "image %d of a batch of %d has no placeholders (token %d)", i, v->n_images, v->config->image_token);
    }
    return DT_OK;
}

static dt_err check_images(const dt_model *m, const dt_batch *b)
{
    const struct vision *v = m->vision;
    const size_t features = dt_vision_feature_nbytes(v->config, m->opt.dtype);
    DT_CHECK(!v->given || v->n_images == 0 || b->image_nbytes == features, DT_ERR_DATA,
             "features of %zu bytes for an image; the model's projector takes %zu", b->image_nbytes, features);
    DT_CHECK(v->given || v->n_images == 0 || b->image_nbytes == v->tower->patches.image_nbytes, DT_ERR_DATA,
             "images of %zu bytes; the model's tower takes %" PRId64 " x %" PRId64 " pixels of 3", b->image_nbytes,
             v->config->image_size, v->config->image_size);
    return DT_OK;
}

dt_err dt_vision_stage(dt_model *m, const dt_batch *b)
{
    struct vision *v = m->vision;
    if (!v) return DT_OK;
    v->n_places = v->n_runs = 0;
    v->n_images = b->pixels && b->n_tok > 0 ? b->n_images : 0;
    DT_CHECK(v->n_images >= 0 && v->n_images <= m->opt.max_images, DT_ERR_ARG,
             "a batch of %d images; the model was opened for %d", v->n_images, m->opt.max_images);
    DT_TRY(check_images(m, b));
    for (int32_t s = 0; b->n_tok > 0 && s < b->n_seq; s++) DT_TRY(find_placeholders(m, b, s));
    DT_TRY(order_shown(m));
    DT_TRY(stage_features(m, b));
    return stage_keys(m, b);
}

dt_err dt_vision_put(const dt_model *m, void *x)
{
    const struct vision *v = m->vision;
    for (int32_t i = 0; v && i < v->n_runs; i++) {
        const struct run *k = &v->run[i];
        DT_TRY(m->ops->scatter_rows(m->dev, dt_at(v->out, k->row * m->C, m->elem), m->device.place + k->first, x, k->n,
                                    m->C, m->opt.dtype, m->stream));
    }
    return DT_OK;
}

dt_err dt_vision_take(const dt_model *m)
{
    const struct vision *v = m->vision;
    if (!v || n_shown(v) == 0) return DT_OK;
    const size_t nbytes = (size_t)(n_shown(v) * m->C) * m->elem;
    if (dt_vision_trains(m)) {
        DT_TRY(m->ops->zero(m->dev, v->dout, nbytes, m->stream));
        DT_TRY(m->ops->embedding_backward(m->dev, m->s.dx, m->device.shown, m->device.shown_order, v->dout, v->n_places,
                                          m->C, m->opt.dtype, m->opt.dtype, m->stream));
    }
    if (m->low_table[LOW_TOKENS].low.r == 0) return DT_OK;
    DT_TRY(m->ops->zero(m->dev, v->out, nbytes, m->stream)); /* nobody needs it again */
    return dt_vision_put(m, m->s.dx);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Sequences of positions, one for each image; sorted by position, those of one position by image. A model of a tower
 * alone has no placeholders, and drops nothing. */
static void fill_batch(const dt_model *m, const dt_batch *of)
{
    struct vision *v = m->vision;
    dt_batch *b = &v->batch;
    const int32_t P = (int32_t)v->config->n_rows, N = v->n_images, per_image = (int32_t)v->config->n_tokens;
    b->n_seq = b->n_images = N;
    b->n_tok = N * P;
    b->pixels = of->pixels;
    for (int32_t i = 0; i < N; i++) {
        const uint64_t key = v->alone ? 0 : of->token_key[first_shown(m, (int64_t)i * per_image)];
        b->seq_start[i + 1] = (i + 1) * P;
        for (int32_t r = 0; r < P; r++) {
            const int32_t t = i * P + r;
            b->token[t] = b->pos[t] = r;
            b->token_key[t] = dt_mix64(key + (uint64_t)r);
            b->order[r * N + i] = t;
        }
    }
}

static dt_err run_tower(dt_model *m, const dt_batch *b)
{
    struct vision *v = m->vision;
    fill_batch(m, b);
    const dt_err err = dt_model_forward(v->tower, &v->batch, m->train && v->tower->opt.training, m->step);
    v->batch.pixels = NULL; /* the caller's */
    *m->in_use = m;         /* of what a tower borrows nothing else is in use yet */
    return err;
}

/* Of the features what the projector reads. */
static dt_err gather_features(const dt_model *m)
{
    const struct vision *v = m->vision;
    return m->ops->gather_rows(m->dev, v->tower->hidden, v->feature_row, v->x,
                               n_rows(v) * squared(v->config->projector.shuffle), v->tower->C, m->opt.dtype, m->stream);
}

static uint64_t dropout_key(const dt_model *m, int i) { return dt_dropout_key(m, PROJECTOR_LAYER - i, SITE_MLP); }

static dt_err drop(const dt_model *m, const struct vision *v, int i, void *x)
{
    const dt_projector_config *p = &v->config->projector;
    if (!m->train || !drops(m, v)) return DT_OK;
    return m->ops->dropout(m->dev, x, NULL, x, (float)p->dropout, dropout_key(m, i),
                           (const uint64_t *)(const void *)v->keys.device, n_rows(v), p->hidden_size, m->opt.dtype,
                           m->stream);
}

/* The activation, dropout and norm behind layer i. */
static dt_err leave_layer(const dt_model *m, const dt_param_view *w, int i)
{
    const struct vision *v = m->vision;
    const dt_projector_config *p = &v->config->projector;
    const struct hidden *h = &v->hidden[i];
    DT_TRY(m->ops->act_forward(m->dev, (dt_activation)p->act, h->pre, h->act, m->opt.dtype, n_rows(v) * p->hidden_size,
                               m->stream));
    DT_TRY(drop(m, v, i, h->act));
    if (!p->norm) return DT_OK;
    return m->ops->layernorm_forward(m->dev, h->act, dt_weight(w, v->norm[i].w), dt_weight(w, v->norm[i].b), h->norm,
                                     h->mean, h->rstd, n_rows(v), p->hidden_size, PROJECTOR_EPS, m->opt.dtype,
                                     m->stream);
}

static const void *input_of(const struct vision *v, int i) { return i == 0 ? v->x : v->hidden[i - 1].norm; }

/* In fp32, rounded once. */
static dt_err pool(const dt_model *m)
{
    const struct vision *v = m->vision;
    const int64_t n = v->n_images * m->C;
    if (!dt_vision_pools(v->config)) return DT_OK;
    DT_TRY(m->ops->zero(m->dev, v->pool.sum, (size_t)n * sizeof(float), m->stream));
    DT_TRY(m->ops->embedding_backward(m->dev, v->y, v->pool.image, v->pool.in_order, v->pool.sum, n_rows(v), m->C,
                                      m->opt.dtype, DT_F32, m->stream));
    DT_TRY(m->ops->scale(m->dev, v->pool.sum, 1.0f / (float)v->config->n_features, v->pool.sum, DT_F32, n, m->stream));
    return m->ops->convert(m->dev, v->pool.sum, DT_F32, v->out, m->opt.dtype, n, m->stream);
}

static dt_err pool_backward(const dt_model *m)
{
    const struct vision *v = m->vision;
    if (!dt_vision_pools(v->config)) return DT_OK;
    DT_TRY(m->ops->scale(m->dev, v->dout, 1.0f / (float)v->config->n_features, v->dout, m->opt.dtype,
                         v->n_images * m->C, m->stream));
    return m->ops->gather_rows(m->dev, v->dout, v->pool.image, v->dy, n_rows(v), m->C, m->opt.dtype, m->stream);
}

static dt_err project(const dt_model *m, const dt_param_view *w)
{
    const struct vision *v = m->vision;
    const dt_projector_config *p = &v->config->projector;
    if (!v->given) DT_TRY(gather_features(m));
    for (int i = 0; i < p->n_layers; i++) {
        const struct linear *l = &v->layer[i];
        const bool last = i == p->n_layers - 1;
        DT_TRY(dt_linear_forward(m, l, w, input_of(v, i), l->n_in, last ? v->y : v->hidden[i].pre, l->n_out, n_rows(v),
                                 (struct with_product){0}));
        if (!last) DT_TRY(leave_layer(m, w, i));
    }
    return pool(m);
}

dt_err dt_vision_forward(dt_model *m, const dt_batch *b)
{
    struct vision *v = m->vision;
    dt_param_view w;
    if (!v || (!m->train && !b->pixels)) return DT_OK;
    if (!v->given) DT_TRY(run_tower(m, b));
    dt_phase_enter(m->phase, "forward", m->units[v->projector_unit].name);
    DT_TRY(dt_params_acquire(m, v->projector_unit, &w));
    if (v->n_images > 0) DT_TRY(project(m, &w));
    return m->source->params_release(m->source->self, v->projector_unit);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* From the gradient of what layer i + 1 reads to that of what layer i gives; in place. */
static dt_err enter_layer(const dt_model *m, const dt_param_view *w, const dt_grad_view *g, int i, void *d)
{
    const struct vision *v = m->vision;
    const dt_projector_config *p = &v->config->projector;
    const struct hidden *h = &v->hidden[i];
    if (p->norm)
        DT_TRY(m->ops->layernorm_backward(m->dev, h->act, dt_weight(w, v->norm[i].w), h->mean, h->rstd, d, d, false,
                                          dt_gradient(g, v->norm[i].w), dt_gradient(g, v->norm[i].b), g->dtype,
                                          g->accumulate, n_rows(v), p->hidden_size, m->s.norm, m->opt.dtype,
                                          m->stream));
    DT_TRY(drop(m, v, i, d));
    return m->ops->act_backward(m->dev, (dt_activation)p->act, h->pre, d, d, m->opt.dtype, n_rows(v) * p->hidden_size,
                                m->stream);
}

static dt_err project_backward(const dt_model *m, const dt_param_view *w, const dt_grad_view *g)
{
    const struct vision *v = m->vision;
    const void *dy = v->dy;
    DT_TRY(pool_backward(m));
    for (int i = v->config->projector.n_layers - 1; i >= 0; i--) {
        const struct linear *l = &v->layer[i];
        void *dx = i > 0 ? v->dhidden[i - 1] : v->tower_trains ? v->dx : NULL;
        DT_TRY(dt_linear_backward(m, l, w, g, input_of(v, i), l->n_in, dy, l->n_out, dx, l->n_in,
                                  (struct with_product){0}, n_rows(v)));
        if (i > 0) DT_TRY(enter_layer(m, w, g, i - 1, dx));
        dy = dx;
    }
    return DT_OK;
}

static dt_err tower_backward(const dt_model *m)
{
    const struct vision *v = m->vision;
    dt_model *t = v->tower;
    if (v->n_images > 0) {
        DT_TRY(m->ops->zero(m->dev, t->s.dx, (size_t)(t->n_tok * t->C) * t->elem, m->stream));
        DT_TRY(m->ops->scatter_rows(m->dev, v->dx, v->feature_row, t->s.dx,
                                    n_rows(v) * squared(v->config->projector.shuffle), t->C, m->opt.dtype, m->stream));
    }
    t->have_dx = true;
    return dt_model_backward(t, &v->batch);
}

dt_err dt_vision_backward(dt_model *m)
{
    struct vision *v = m->vision;
    dt_param_view w;
    dt_grad_view g;
    if (!dt_vision_trains(m)) return DT_OK;
    dt_phase_enter(m->phase, "backward", m->units[v->projector_unit].name);
    DT_TRY(dt_params_acquire(m, v->projector_unit, &w));
    DT_TRY(dt_grads_acquire(m, v->projector_unit, &g));
    DT_TRY(v->n_images == 0 ? dt_model_clear_grads(m, v->projector_unit, &g) : project_backward(m, &w, &g));
    DT_TRY(dt_grads_release(m, v->projector_unit));
    DT_TRY(m->source->params_release(m->source->self, v->projector_unit));
    return v->tower_trains ? tower_backward(m) : DT_OK;
}

/* ---- features alone ---------------------------------------------------------------------------------------------- */

struct dt_feature_maker {
    dt_model m; /* of a language model what its tower looks at */
    dt_model_config mc;
    dt_vision_config config;
};

dt_err dt_feature_maker_open(dt_feature_maker **out, const dt_model_config *mc, const dt_feature_options *opt,
                             const dt_unit *units, int n_units, dt_device *dev, const dt_param_source *source,
                             dt_stream *compute, dt_phase *phase)
{
    const int first = dt_vision_first_unit(units, n_units);
    *out = NULL;
    DT_CHECK(mc->vision && first < n_units && opt->max_images > 0, DT_ERR_ARG, "features without a tower or images");
    dt_feature_maker *f = calloc(1, sizeof *f);
    DT_CHECK(f, DT_ERR_MEMORY, "no memory for the features of images");
    f->mc = *mc, f->config = *mc->vision;
    f->mc.vision = &f->config, f->config.features_given = false;
    f->m = (dt_model){.mc = &f->mc,
                      .opt = {.dtype = opt->dtype,
                              .grad_dtype = opt->dtype,
                              .max_images = opt->max_images,
                              .reproducible = opt->reproducible},
                      .dev = dev,
                      .ops = dev->ops,
                      .source = source,
                      .stream = compute,
                      .phase = phase,
                      .C = mc->hidden_size,
                      .elem = dt_dtype_size(opt->dtype)};
    const dt_err err = open_all(&f->m, units, n_units, first, true);
    if (err != DT_OK) return dt_feature_maker_close(f), err;
    *out = f;
    return DT_OK;
}

void dt_feature_maker_close(dt_feature_maker *f)
{
    if (!f) return;
    dt_vision_close(&f->m);
    free(f);
}

dt_err dt_feature_maker_run(dt_feature_maker *f, const uint8_t *pixels, int32_t n, void *features)
{
    dt_model *m = &f->m;
    struct vision *v = m->vision;
    const dt_batch images = {.pixels = (uint8_t *)pixels};
    DT_CHECK(n >= 0 && n <= m->opt.max_images, DT_ERR_ARG, "features of %d images at once, of at most %d", n,
             m->opt.max_images);
    v->n_images = n;
    fill_batch(m, &images);
    const dt_err err = dt_model_forward(v->tower, &v->batch, false, 0);
    v->batch.pixels = NULL; /* the caller's */
    DT_TRY(err);
    if (n == 0) return DT_OK;
    DT_TRY(gather_features(m));
    DT_TRY(
        m->ops->copy(m->dev, features, v->x, (size_t)n * dt_vision_feature_nbytes(v->config, m->opt.dtype), m->stream));
    return m->ops->stream_sync(m->dev, m->stream);
}
