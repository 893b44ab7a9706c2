/* rqvae.c - a batch passes through the network in blocks of rows. Each block computes its gradient into its part of a
 * sum over blocks (blocked_sums.h). Every rank then takes the same optimizer step. Memory holds the activations of only
 * one block.
 *
 *     Y = act(X W^T + b)        dP = dY act'(P)        dW = dP^T X        db = sum of rows of dP        dX = dP W */
#include "points.h"
#include "blocked_sums.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAYERS = 64, ALIGN = 16 };

typedef struct layer {
    int64_t in, out, w, b; /* sizes; offsets of weight and bias in the parameters */
    bool relu;
    dt_buf before, y; /* [block, out]; before: input of the activation */
} layer;

struct dt_rqvae {
    const dt_sid *s;
    dt_rqvae_options opt;
    layer layers[MAX_LAYERS]; /* encoder, then decoder */
    int n_layers;
    int64_t codebooks, n_param; /* offset of the codebooks; number of parameters */
    dt_buf param, m, v, norm;
    sid_sums grad;
    int64_t step;
    dt_sid_book books[DT_SID_MAX_LEVELS];
    sid_choice choice;
    dt_buf x, xq, r, e, commit; /* [block, width]; [block, dim]: sum of codes, residual, codes, z - e_0 */
    dt_buf d[2];                /* gradients, [block, widest] */
    dt_buf sum, order;          /* a double; [block] */
    float *staging;             /* [block, width] */
    int32_t *order_host;
    int64_t *count;
};

static int64_t codebook_elems(const dt_rqvae *v) { return v->s->n_codes * v->opt.dim; }
static float *at(const dt_buf *b, int64_t i) { return (float *)b->ptr + i; }

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static int64_t aligned(int64_t n) { return dt_ceil_div(n, ALIGN) * ALIGN; }

static dt_err lay_out(dt_rqvae *v)
{
    const dt_rqvae_options *o = &v->opt;
    const int n = o->n_hidden + 1; /* layers of encoder or decoder */
    DT_CHECK(2 * n <= MAX_LAYERS, DT_ERR_USAGE, "expected at most %d hidden layers, found %d", MAX_LAYERS / 2 - 1,
             o->n_hidden);
    DT_CHECK(!o->residual || o->dim == o->width, DT_ERR_USAGE,
             "the quantised vectors are as wide as the embeddings: expected %" PRId64 ", found %" PRId64, o->width,
             o->dim);
    v->n_layers = 2 * n;
    for (int i = 0; i < n; i++) {
        const int64_t in = i == 0 ? o->width : o->hidden[i - 1], out = i == n - 1 ? o->dim : o->hidden[i];
        v->layers[i] = (layer){.in = in, .out = out, .relu = i < n - 1};
        v->layers[2 * n - 1 - i] = (layer){.in = out, .out = in, .relu = i > 0};
    }
    for (int i = 0; i < v->n_layers; i++) {
        layer *l = &v->layers[i];
        l->w = v->n_param;
        l->b = aligned(l->w + l->in * l->out);
        v->n_param = aligned(l->b + l->out);
    }
    v->codebooks = v->n_param;
    v->n_param += v->s->n_levels * codebook_elems(v);
    return DT_OK;
}

static dt_err alloc_rows(const dt_rqvae *v, dt_buf *b, int64_t width)
{
    return dt_buf_alloc(b, v->s->dev, DT_ON_DEVICE, (size_t)(v->s->block * width) * sizeof(float), DT_MEM_ACTIVATIONS);
}

static dt_err alloc_activations(dt_rqvae *v)
{
    const dt_sid *s = v->s;
    const int64_t dim = v->opt.dim;
    int64_t widest = 0;
    for (int i = 0; i < v->n_layers; i++) {
        layer *l = &v->layers[i];
        widest = dt_max_i64(widest, dt_max_i64(l->in, l->out));
        DT_TRY(alloc_rows(v, &l->y, l->out));
        if (l->relu) DT_TRY(alloc_rows(v, &l->before, l->out));
    }
    DT_TRY(alloc_rows(v, &v->x, v->opt.width));
    DT_TRY(alloc_rows(v, &v->xq, dim));
    DT_TRY(alloc_rows(v, &v->r, dim));
    DT_TRY(alloc_rows(v, &v->e, dim));
    DT_TRY(alloc_rows(v, &v->commit, dim));
    DT_TRY(alloc_rows(v, &v->d[0], widest));
    DT_TRY(alloc_rows(v, &v->d[1], widest));
    DT_TRY(alloc_rows(v, &v->order, 1));
    DT_TRY(dt_buf_alloc(&v->sum, s->dev, DT_ON_DEVICE, sizeof(double), DT_MEM_ACTIVATIONS));
    v->staging = malloc((size_t)(s->block * v->opt.width) * sizeof *v->staging);
    v->order_host = malloc((size_t)s->block * sizeof *v->order_host);
    v->count = malloc((size_t)(s->n_codes + 1) * sizeof *v->count);
    DT_CHECK(v->staging && v->order_host && v->count, DT_ERR_MEMORY, "out of memory for a block of rows");
    return DT_OK;
}

static dt_err alloc_params(dt_rqvae *v)
{
    const size_t nbytes = (size_t)v->n_param * sizeof(float);
    DT_TRY(dt_buf_alloc_zeroed(&v->param, v->s->dev, DT_ON_DEVICE, nbytes, DT_MEM_PARAMS));
    DT_TRY(dt_buf_alloc_zeroed(&v->m, v->s->dev, DT_ON_DEVICE, nbytes, DT_MEM_OPTIMIZER));
    DT_TRY(dt_buf_alloc_zeroed(&v->v, v->s->dev, DT_ON_DEVICE, nbytes, DT_MEM_OPTIMIZER));
    DT_TRY(dt_buf_alloc(&v->norm, v->s->dev, DT_ON_DEVICE, sizeof(double), DT_MEM_OPTIMIZER));
    return sid_sums_alloc(v->s, &v->grad, v->n_param, DT_MEM_GRADS);
}

static dt_err init_weights(dt_rqvae *v)
{
    float *host = calloc((size_t)v->n_param, sizeof *host);
    DT_CHECK(host, DT_ERR_MEMORY, "out of memory for %" PRId64 " parameters", v->n_param);
    for (int i = 0; i < v->n_layers; i++) {
        const layer *l = &v->layers[i];
        const double std = sqrt(2.0 / (double)(l->in + l->out));
        if (v->opt.residual && i == v->n_layers / 2 - 1) continue;
        dt_rng_normal(dt_rng_key(v->s->seed, DT_RNG_INIT), (uint64_t)i, 0, l->in * l->out, (float)std, host + l->w);
    }
    dt_err err = v->s->dev->ops->copy(v->s->dev, v->param.ptr, host, v->param.nbytes, v->s->stream);
    if (err == DT_OK) err = v->s->dev->ops->stream_sync(v->s->dev, v->s->stream);
    free(host);
    return err;
}

static dt_err open_all(dt_rqvae *v)
{
    DT_TRY(lay_out(v));
    DT_TRY(alloc_params(v));
    DT_TRY(alloc_activations(v));
    DT_TRY(sid_choice_alloc(v->s, &v->choice));
    for (int l = 0; l < v->s->n_levels; l++) DT_TRY(dt_sid_book_alloc(v->s, &v->books[l], v->opt.dim));
    return init_weights(v);
}

dt_err dt_rqvae_open(dt_rqvae **out, const dt_sid *s, const dt_rqvae_options *o)
{
    dt_rqvae *v = *out = calloc(1, sizeof *v);
    DT_CHECK(v, DT_ERR_MEMORY, "out of memory for an RQ-VAE");
    v->s = s;
    v->opt = *o;
    const dt_err err = open_all(v);
    if (err == DT_OK) return DT_OK;
    dt_rqvae_close(v);
    *out = NULL;
    return err;
}

void dt_rqvae_close(dt_rqvae *v)
{
    if (!v) return;
    dt_buf *all[] = {&v->param, &v->m,      &v->v,    &v->norm, &v->x,   &v->xq,   &v->r,
                     &v->e,     &v->commit, &v->d[0], &v->d[1], &v->sum, &v->order};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) dt_buf_free(all[i]);
    for (int i = 0; i < v->n_layers; i++) {
        dt_buf_free(&v->layers[i].before);
        dt_buf_free(&v->layers[i].y);
    }
    for (int l = 0; l < DT_SID_MAX_LEVELS; l++) dt_sid_book_free(&v->books[l]);
    sid_choice_free(&v->choice);
    sid_sums_free(&v->grad);
    free(v->staging);
    free(v->order_host);
    free(v->count);
    free(v);
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

int64_t dt_rqvae_n_param(const dt_rqvae *v)
{
    int64_t n = v->s->n_levels * codebook_elems(v);
    for (int i = 0; i < v->n_layers; i++) n += (v->layers[i].in + 1) * v->layers[i].out;
    return n;
}

/* Copy values with padding on the device from or to packed values on the host. */
static dt_err move(const dt_rqvae *v, void *device, float *host, bool to_host)
{
    const dt_sid *s = v->s;
    int64_t used = 0;
    for (int i = 0; i <= v->n_layers; i++) {
        const layer *l = &v->layers[i];
        const int64_t first[2] = {i < v->n_layers ? l->w : v->codebooks, l->b},
                      n[2] = {i < v->n_layers ? l->in * l->out : s->n_levels * codebook_elems(v),
                              i < v->n_layers ? l->out : 0};
        for (int k = 0; k < 2; k++) {
            float *there = (float *)device + first[k], *here = host + used;
            const size_t nbytes = (size_t)n[k] * sizeof *here;
            if (nbytes > 0)
                DT_TRY(s->dev->ops->copy(s->dev, to_host ? here : there, to_host ? there : here, nbytes, s->stream));
            used += n[k];
        }
    }
    return s->dev->ops->stream_sync(s->dev, s->stream);
}

dt_err dt_rqvae_get(const dt_rqvae *v, float *param) { return move(v, v->param.ptr, param, true); }
dt_err dt_rqvae_put(dt_rqvae *v, const float *param) { return move(v, v->param.ptr, (float *)param, false); }
dt_err dt_rqvae_get_gradient(const dt_rqvae *v, float *grad) { return move(v, v->grad.whole.ptr, grad, true); }

dt_err dt_rqvae_books(const dt_rqvae *v, dt_sid_book *books)
{
    const dt_sid *s = v->s;
    for (int l = 0; l < s->n_levels; l++) {
        const float *from = at(&v->param, v->codebooks + l * codebook_elems(v));
        DT_TRY(s->dev->ops->copy(s->dev, books[l].host, from, (size_t)codebook_elems(v) * sizeof *from, s->stream));
        DT_TRY(s->dev->ops->stream_sync(s->dev, s->stream));
        DT_TRY(dt_sid_book_set(s, &books[l]));
    }
    return DT_OK;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Copy rows to the device through staging. Wait for the stream before staging is reused. */
static dt_err bring_rows(dt_rqvae *v, dt_matrix_file *rows, const int64_t *item, int64_t first, int64_t m)
{
    const dt_sid *s = v->s;
    for (int64_t i = 0; i < m; i++)
        DT_TRY(dt_matrix_file_read(rows, item ? item[first + i] : first + i, 1, v->staging + i * v->opt.width));
    const size_t nbytes = (size_t)(m * v->opt.width) * sizeof *v->staging;
    return s->dev->ops->copy(s->dev, v->x.ptr, v->staging, nbytes, s->stream);
}

static dt_err layer_forward(const dt_rqvae *v, const layer *l, const void *x, int64_t m)
{
    const dt_matmul mm = {.m = m,
                          .n = l->out,
                          .k = l->in,
                          .trans_b = true,
                          .lda = l->in,
                          .ldb = l->in,
                          .ldc = l->out,
                          .dt = DT_F32,
                          .c_dtype = DT_F32,
                          .bias = at(&v->param, l->b),
                          .epilogue = l->relu ? DT_EPILOGUE_ACT : DT_EPILOGUE_NONE,
                          .act = DT_ACT_RELU,
                          .aux = l->before.ptr,
                          .ld_aux = l->out};
    return v->s->dev->ops->matmul(v->s->dev, &mm, x, at(&v->param, l->w), l->y.ptr, v->s->stream);
}

/* Input of a layer. */
static void *input_of(const dt_rqvae *v, int i)
{
    return i == 0 ? v->x.ptr : i == v->n_layers / 2 ? v->xq.ptr : v->layers[i - 1].y.ptr;
}

static dt_err layers_forward(const dt_rqvae *v, int first, int end, int64_t m)
{
    for (int i = first; i < end; i++) DT_TRY(layer_forward(v, &v->layers[i], input_of(v, i), m));
    return DT_OK;
}

static dt_buf *latent(dt_rqvae *v) { return &v->layers[v->n_layers / 2 - 1].y; }

/* A residual adds a constant, so backward ignores it. */
static dt_err encode(dt_rqvae *v, int64_t m)
{
    void *z = latent(v)->ptr;
    DT_TRY(layers_forward(v, 0, v->n_layers / 2, m));
    if (!v->opt.residual) return DT_OK;
    return v->s->dev->ops->add(v->s->dev, z, v->x.ptr, z, DT_F32, m * v->opt.dim, v->s->stream);
}

dt_err dt_rqvae_encode(dt_rqvae *v, dt_matrix_file *rows, const int64_t *item, dt_sid_points *p)
{
    const dt_sid *s = v->s;
    for (int64_t round = 0, first; round < dt_sid_rounds(s, p->n); round++) {
        const int64_t m = sid_block_of(s, p->n, round, &first);
        if (m == 0) continue;
        const size_t nbytes = (size_t)(m * p->width) * sizeof(float);
        dt_phase_enter(s->phase, "encode", "");
        dt_err err = bring_rows(v, rows, item, first, m);
        if (err == DT_OK) err = encode(v, m);
        if (err == DT_OK) err = s->dev->ops->copy(s->dev, sid_rows_of(s, p, round), latent(v)->ptr, nbytes, s->stream);
        DT_TRY(sid_wait(s, err));
    }
    return DT_OK;
}

/* c = a - b, using c as scratch. */
static dt_err subtract(const dt_rqvae *v, const void *a, const void *b, void *c, int64_t n)
{
    const dt_device_ops *ops = v->s->dev->ops;
    DT_TRY(ops->scale(v->s->dev, b, -1, c, DT_F32, n, v->s->stream));
    return ops->add(v->s->dev, a, c, c, DT_F32, n, v->s->stream);
}

/* *sum is valid after a wait. */
static dt_err sum_of_squares(const dt_rqvae *v, const void *x, int64_t n, double *sum)
{
    const dt_sid *s = v->s;
    DT_TRY(s->dev->ops->sum_squares(s->dev, x, DT_F32, n, v->sum.ptr, s->stream));
    return s->dev->ops->copy(s->dev, sum, v->sum.ptr, sizeof *sum, s->stream);
}

/* Gradient of a codebook: the sum over its items of factor * (e - r), where -r_(l+1) = e - r. order_host
 * is free, because sid_choose of this level has waited. */
static dt_err codebook_backward(dt_rqvae *v, int level, int64_t m, double factor)
{
    const dt_sid *s = v->s;
    const dt_device_ops *ops = s->dev->ops;
    const int64_t n = m * v->opt.dim;
    sid_sort_by_code(v->choice.token_host, m, s->n_codes, v->count, v->order_host);
    DT_TRY(ops->copy(s->dev, v->order.ptr, v->order_host, (size_t)m * sizeof *v->order_host, s->stream));
    DT_TRY(ops->scale(s->dev, v->r.ptr, (float)-factor, v->e.ptr, DT_F32, n, s->stream));
    return ops->embedding_backward(s->dev, v->e.ptr, v->choice.token.ptr, v->order.ptr,
                                   at(&v->grad.part, v->codebooks + level * codebook_elems(v)), m, v->opt.dim, DT_F32,
                                   DT_F32, s->stream);
}

/* Quantise all levels: xq is the sum of codes, commit the residual after the first level, sums[1 + l] the
 * squared norm of the residual after level l. */
static dt_err quantise(dt_rqvae *v, int64_t m, double factor, double *sums)
{
    const dt_sid *s = v->s;
    const dt_device_ops *ops = s->dev->ops;
    const int64_t dim = v->opt.dim, n = m * dim;
    const size_t nbytes = (size_t)n * sizeof(float);
    DT_TRY(ops->copy(s->dev, v->r.ptr, latent(v)->ptr, nbytes, s->stream));
    for (int l = 0; l < s->n_levels; l++) {
        DT_TRY(sid_choose(s, &v->books[l], v->r.ptr, m, &v->choice));
        for (int64_t i = 0; i < m; i++)
            DT_CHECK(v->choice.token_host[i] >= 0, DT_ERR_NONFINITE,
                     "the encoder's values are no longer finite; try a smaller learning rate");
        DT_TRY(
            ops->gather_rows(s->dev, v->books[l].rows.ptr, v->choice.token.ptr, v->e.ptr, m, dim, DT_F32, s->stream));
        if (l == 0)
            DT_TRY(ops->copy(s->dev, v->xq.ptr, v->e.ptr, nbytes, s->stream));
        else
            DT_TRY(ops->add(s->dev, v->xq.ptr, v->e.ptr, v->xq.ptr, DT_F32, n, s->stream));
        DT_TRY(subtract(v, v->r.ptr, v->e.ptr, v->e.ptr, n));
        DT_TRY(ops->copy(s->dev, v->r.ptr, v->e.ptr, nbytes, s->stream));
        if (l == 0) DT_TRY(ops->copy(s->dev, v->commit.ptr, v->r.ptr, nbytes, s->stream));
        DT_TRY(sum_of_squares(v, v->r.ptr, n, &sums[1 + l]));
        DT_TRY(codebook_backward(v, l, m, factor));
    }
    return DT_OK;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* dp: gradient of the input of layer i's activation, or of its output without activation. dx: the same for
 * the layer below; NULL: not needed. */
static dt_err layer_backward(const dt_rqvae *v, int i, const void *dp, void *dx, int64_t m)
{
    const layer *l = &v->layers[i], *below = i > 0 && i != v->n_layers / 2 ? &v->layers[i - 1] : NULL;
    const dt_device_ops *ops = v->s->dev->ops;
    const dt_matmul dw = {.m = l->out,
                          .n = l->in,
                          .k = m,
                          .trans_a = true,
                          .lda = l->out,
                          .ldb = l->in,
                          .ldc = l->in,
                          .dt = DT_F32,
                          .c_dtype = DT_F32,
                          .sums_of = DT_SUMS_OF_A,
                          .sums = at(&v->grad.part, l->b),
                          .sums_dtype = DT_F32};
    dt_matmul to_x = {
        .m = m, .n = l->in, .k = l->out, .lda = l->out, .ldb = l->in, .ldc = l->in, .dt = DT_F32, .c_dtype = DT_F32};
    if (below && below->relu) {
        to_x.epilogue = DT_EPILOGUE_ACT_BACKWARD;
        to_x.act = DT_ACT_RELU;
        to_x.aux = below->before.ptr;
        to_x.ld_aux = below->out;
    }
    DT_TRY(ops->matmul(v->s->dev, &dw, dp, input_of(v, i), at(&v->grad.part, l->w), v->s->stream));
    return dx ? ops->matmul(v->s->dev, &to_x, dp, at(&v->param, l->w), dx, v->s->stream) : DT_OK;
}

/* Compute the gradient of the block in v->x into the part, and its sums of squares into sums[1 + L]. n:
 * rows of the batch. */
static dt_err queue_block(dt_rqvae *v, int64_t m, int64_t n, double *sums)
{
    const dt_sid *s = v->s;
    const dt_device_ops *ops = s->dev->ops;
    const int64_t dim = v->opt.dim, width = v->opt.width;
    const double of_level = 2.0 / ((double)n * (double)dim * s->n_levels);
    const int half = v->n_layers / 2;
    void *from = v->d[0].ptr, *to = v->d[1].ptr;
    DT_TRY(encode(v, m));
    DT_TRY(quantise(v, m, of_level, sums));
    DT_TRY(layers_forward(v, half, v->n_layers, m));
    DT_TRY(subtract(v, v->layers[v->n_layers - 1].y.ptr, v->x.ptr, from, m * width));
    DT_TRY(sum_of_squares(v, from, m * width, &sums[0]));
    DT_TRY(ops->scale(s->dev, from, (float)(2.0 / ((double)n * (double)width)), from, DT_F32, m * width, s->stream));
    for (int i = v->n_layers - 1; i >= 0; i--) {
        DT_TRY(layer_backward(v, i, from, i > 0 ? to : NULL, m));
        void *swap = from;
        from = to;
        to = swap;
        if (i != half) continue; /* straight-through estimator, plus the first level's commitment loss */
        DT_TRY(
            ops->scale(s->dev, v->commit.ptr, (float)(v->opt.beta * of_level), v->e.ptr, DT_F32, m * dim, s->stream));
        DT_TRY(ops->add(s->dev, from, v->e.ptr, from, DT_F32, m * dim, s->stream));
    }
    return DT_OK;
}

static dt_err all_blocks(dt_rqvae *v, dt_matrix_file *rows, const int64_t *item, int64_t n, double *sums)
{
    const dt_sid *s = v->s;
    DT_TRY(sid_sums_begin(s, &v->grad));
    for (int64_t round = 0, first; round < dt_sid_rounds(s, n); round++) {
        const int64_t m = sid_block_of(s, n, round, &first), b = first / s->block;
        dt_err err = dt_fault("sid.step");
        if (err == DT_OK) err = sid_sums_clear(s, &v->grad);
        if (err == DT_OK && m > 0) err = bring_rows(v, rows, item, first, m);
        if (err == DT_OK && m > 0) err = queue_block(v, m, n, sums + b * (1 + s->n_levels));
        DT_TRY(dt_comm_agree(s->comm, sid_wait(s, err)));
        DT_TRY(sid_sums_add(s, &v->grad));
    }
    return sid_sums_end(s, &v->grad);
}

dt_err dt_rqvae_backward(dt_rqvae *v, dt_matrix_file *rows, const int64_t *item, int64_t n, dt_rqvae_loss *loss)
{
    const dt_sid *s = v->s;
    const int64_t n_sums = 1 + s->n_levels, n_blocks = dt_sid_blocks(s, n);
    const size_t nbytes = (size_t)(n_blocks * n_sums) * sizeof(double);
    dt_phase_enter(s->phase, "step", "");
    double *sums = calloc(1, nbytes);
    dt_err err = sums ? dt_rqvae_books(v, v->books) : dt_fail(DT_ERR_MEMORY, "out of memory for the sums of a batch");
    err = dt_comm_agree(s->comm, err);
    if (err == DT_OK) err = all_blocks(v, rows, item, n, sums);
    if (err == DT_OK) err = dt_comm_join_host(&s->comm->mesh.data, sums, nbytes);
    *loss = (dt_rqvae_loss){0};
    for (int64_t b = 0; b < n_blocks && err == DT_OK; b++) {
        loss->reconstruction += sums[b * n_sums];
        for (int l = 0; l < s->n_levels; l++) loss->quantisation += sums[b * n_sums + 1 + l];
    }
    loss->reconstruction /= (double)n * (double)v->opt.width;
    loss->quantisation *= (1 + v->opt.beta) / ((double)n * (double)v->opt.dim * s->n_levels);
    loss->total = loss->reconstruction + loss->quantisation;
    free(sums);
    return err;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

dt_err dt_rqvae_update(dt_rqvae *v)
{
    const dt_sid *s = v->s;
    const dt_rqvae_options *o = &v->opt;
    double squares;
    DT_TRY(s->dev->ops->sum_squares(s->dev, v->grad.whole.ptr, DT_F32, v->n_param, v->norm.ptr, s->stream));
    DT_TRY(s->dev->ops->copy(s->dev, &squares, v->norm.ptr, sizeof squares, s->stream));
    DT_TRY(s->dev->ops->stream_sync(s->dev, s->stream));
    DT_CHECK(isfinite(squares), DT_ERR_NONFINITE, "step %" PRId64 ": the gradient is not finite", v->step + 1);
    const double norm = sqrt(squares), scale = o->clip > 0 ? fmin(1, o->clip / (norm + 1e-6)) : 1;
    const double warm = v->step < o->warmup_steps ? (double)v->step / (double)o->warmup_steps : 1;
    v->step++;
    const dt_adamw opt = {.lr = (float)(o->lr * warm),
                          .beta1 = 0.9f,
                          .beta2 = 0.999f,
                          .eps = 1e-8f,
                          .weight_decay = (float)o->weight_decay,
                          .fix1 = (float)(1 - pow((double)0.9f, (double)v->step)),
                          .fix2 = (float)(1 - pow((double)0.999f, (double)v->step)),
                          .grad_scale = (float)scale};
    return s->dev->ops->adamw_step(s->dev, &opt, v->grad.whole.ptr, DT_F32, v->param.ptr, v->m.ptr, v->v.ptr, NULL,
                                   DT_F32, v->n_param, s->stream);
}

static dt_err seed_levels(dt_rqvae *v, dt_sid_points *p, dt_sid_kmeans how, int32_t *code)
{
    const dt_sid *s = v->s;
    const size_t nbytes = (size_t)codebook_elems(v) * sizeof(float);
    double objective;
    for (int l = 0; l < s->n_levels; l++) {
        dt_sid_book *b = &v->books[l];
        how.level = l;
        DT_TRY(dt_sid_points_measure(s, p));
        DT_TRY(dt_sid_kmeans_fit(s, &how, p, b, code, &objective));
        dt_err err = s->dev->ops->copy(s->dev, at(&v->param, v->codebooks + l * codebook_elems(v)), b->rows.ptr, nbytes,
                                       s->stream);
        if (err == DT_OK) err = dt_sid_points_subtract(s, p, b->rows.ptr, code);
        DT_TRY(dt_comm_agree(s->comm, err));
    }
    return DT_OK;
}

dt_err dt_rqvae_seed(dt_rqvae *v, dt_matrix_file *rows, const int64_t *item, int64_t n, const dt_sid_kmeans *how)
{
    dt_sid_points p = {0};
    int32_t *code = malloc((size_t)n * sizeof *code);
    dt_err err =
        code ? dt_sid_points_alloc(v->s, &p, n, v->opt.dim) : dt_fail(DT_ERR_MEMORY, "out of memory for codes");
    if (err == DT_OK) err = dt_rqvae_encode(v, rows, item, &p);
    err = dt_comm_agree(v->s->comm, err);
    if (err == DT_OK) err = seed_levels(v, &p, *how, code);
    dt_sid_points_free(v->s, &p);
    free(code);
    return err;
}
