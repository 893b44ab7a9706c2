/* attention_cudnn.c - attention of batches whose sequences have one length, by cuDNN, which fuses a graph of simple
 * operations into one kernel. With sequences b, heads h, queries i and keys j:
 *
 *     forward    S = scale Q K^T, -inf if masked;  m = max_j S;  e = exp(S - m);  l = sum_j e
 *                lse = m + log l;  P = e / l, rounded;  out = P V
 *     backward   delta = sum_c dout_c out_c;  P = exp(S - lse);  dV = P^T dout
 *                dS = scale P (dout V^T - delta);  dK = dS^T Q;  dQ = dS K
 *
 * dQ is written by its matmul instead of being accumulated: the library then uses an algorithm whose sums have a fixed
 * order. If query heads share a key head, dK and dV of each query head are stored in scratch and summed afterwards.
 *
 * The library needs lse and delta packed as [b, h, i], without checking it. dtrain's are [token, h], so they are
 * transposed.
 *
 * A shape is prepared before the first step: plans are chosen, and run twice on random input. Repeated runs must give
 * the same bits, and match dtrain's own kernels; other plans are not used. */
#include "attention_cudnn.h"

#ifdef DT_HAVE_CUDNN
#include "dnn.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

/* What a plan depends on: the description without the scale, which is passed when it runs. */
typedef struct shape {
    int64_t n_seq, len, n_heads, n_kv_heads, head_dim, q_ld, kv_ld, o_ld, bidirectional, dt;
} shape;

typedef struct prepared {
    shape shape;
    cudnn_plan forward, backward;
    char why[256]; /* why a plan is missing; empty: both exist, or backward was not requested */
} prepared;

enum { MAX_SHAPES = 64 };

struct cuda_cudnn {
    cudnn_library library;
    int n;
    prepared shapes[MAX_SHAPES];
};

static shape shape_of(const dt_attention *at)
{
    return (shape){.n_seq = at->n_seq,
                   .len = at->max_q_len,
                   .n_heads = at->n_heads,
                   .n_kv_heads = at->n_kv_heads,
                   .head_dim = at->head_dim,
                   .q_ld = at->q_ld,
                   .kv_ld = at->kv_ld,
                   .o_ld = at->o_ld,
                   .bidirectional = at->bidirectional,
                   .dt = at->dt};
}

/* Floats of lse, and of delta. */
static int64_t lse_elems(const shape *s) { return s->n_seq * s->len * s->n_heads; }

static size_t aligned(size_t n) { return (n + 255) / 256 * 256; }

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

/* Pointers of a call. */
enum { Q = 1, K, V, OUT, LSE, DOUT, DQ, DK, DV, DELTA, DK_EACH, DV_EACH, SCALE, HIDDEN, ONE, N_IDS };

typedef struct builder {
    cudnn_graph *g;
    const shape *s;
    cudnnDataType_t io;
} builder;

static const cudnnDataType_t FLOAT = CUDNN_DATA_FLOAT;

/* Rows of activations with n_heads heads each; turned: transposed. */
static cudnn_descriptor rows(const builder *b, int64_t id, int64_t n_heads, int64_t ld, bool turned)
{
    const shape *s = b->s;
    const int64_t d = s->head_dim;
    if (turned)
        return cudnn_tensor(b->g, id, (cudnn_dims){{s->n_seq, n_heads, d, s->len}},
                            (cudnn_dims){{s->len * ld, d, 1, ld}}, b->io);
    return cudnn_tensor(b->g, id, (cudnn_dims){{s->n_seq, n_heads, s->len, d}}, (cudnn_dims){{s->len * ld, d, ld, 1}},
                        b->io);
}

static cudnn_dims each_score(const builder *b)
{
    return (cudnn_dims){{b->s->n_seq, b->s->n_heads, b->s->len, b->s->len}};
}
static cudnn_dims each_query(const builder *b) { return (cudnn_dims){{b->s->n_seq, b->s->n_heads, b->s->len, 1}}; }

static cudnn_descriptor scores(const builder *b, cudnnDataType_t type)
{
    return cudnn_between(b->g, each_score(b), type);
}
static cudnn_descriptor a_float(const builder *b) { return cudnn_between(b->g, each_query(b), FLOAT); }

/* A tensor with a float per query. */
static cudnn_descriptor floats(const builder *b, int64_t id)
{
    const cudnn_dims e = each_query(b);
    return cudnn_tensor(b->g, id, e, (cudnn_dims){{e.n[1] * e.n[2], e.n[2], 1, 1}}, FLOAT);
}

static cudnn_descriptor apply(const builder *b, cudnnPointwiseMode_t mode, cudnn_descriptor x, cudnn_descriptor with,
                              cudnn_descriptor y)
{
    return cudnn_pointwise(b->g, mode, FLOAT, 0, x, with, NULL, y);
}

static cudnn_descriptor index_of(const builder *b, int axis, cudnn_descriptor s)
{
    return cudnn_pointwise(b->g, CUDNN_POINTWISE_GEN_INDEX, FLOAT, axis, s, NULL, NULL, scores(b, CUDNN_DATA_INT32));
}

/* -inf for the keys after a query. */
static cudnn_descriptor masked(const builder *b, cudnn_descriptor s)
{
    if (b->s->bidirectional) return s;
    const cudnn_descriptor row = index_of(b, 2, s), col = index_of(b, 3, s),
                           seen = cudnn_pointwise(b->g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, 0, row, col, NULL,
                                                  scores(b, CUDNN_DATA_BOOLEAN));
    return cudnn_pointwise(b->g, CUDNN_POINTWISE_BINARY_SELECT, FLOAT, 0, s, cudnn_scalar(b->g, HIDDEN), seen,
                           scores(b, FLOAT));
}

static void build_forward(const builder *b)
{
    const shape *s = b->s;
    const cudnn_descriptor q = rows(b, Q, s->n_heads, s->q_ld, false), k = rows(b, K, s->n_kv_heads, s->kv_ld, true),
                           v = rows(b, V, s->n_kv_heads, s->kv_ld, false),
                           out = rows(b, OUT, s->n_heads, s->o_ld, false);
    cudnn_descriptor x = cudnn_matmul(b->g, q, k, scores(b, FLOAT));
    x = masked(b, apply(b, CUDNN_POINTWISE_MUL, x, cudnn_scalar(b->g, SCALE), scores(b, FLOAT)));
    const cudnn_descriptor max = cudnn_reduce(b->g, CUDNN_REDUCE_TENSOR_MAX, x, a_float(b)),
                           less = apply(b, CUDNN_POINTWISE_SUB, x, max, scores(b, FLOAT)),
                           e = apply(b, CUDNN_POINTWISE_EXP, less, NULL, scores(b, FLOAT)),
                           sum = cudnn_reduce(b->g, CUDNN_REDUCE_TENSOR_ADD, e, a_float(b)),
                           log_sum = apply(b, CUDNN_POINTWISE_LOG, sum, NULL, a_float(b));
    apply(b, CUDNN_POINTWISE_ADD, max, log_sum, floats(b, LSE));
    cudnn_matmul(b->g, apply(b, CUDNN_POINTWISE_DIV, e, sum, scores(b, b->io)), v, out);
}

/* The transpose of scores, rounded. */
static cudnn_descriptor turned(const builder *b, cudnn_descriptor x)
{
    const cudnn_dims e = each_score(b);
    cudnn_graph *g = b->g;
    return cudnn_reshape(
        g, x, cudnn_between_as(g, e, (cudnn_dims){{e.n[1] * e.n[2] * e.n[3], e.n[2] * e.n[3], 1, e.n[2]}}, b->io));
}

/* The gradient of keys or values: per query head, then summed over the heads that share a key head. */
static void sum_to_keys(const builder *b, cudnn_descriptor weights, cudnn_descriptor rows_of_queries, int64_t id,
                        int64_t id_each)
{
    const shape *s = b->s;
    const cudnn_descriptor sum = rows(b, id, s->n_kv_heads, s->kv_ld, false);
    if (s->n_heads == s->n_kv_heads) {
        cudnn_matmul(b->g, weights, rows_of_queries, sum);
        return;
    }
    const int64_t d = s->head_dim;
    const cudnn_descriptor each = cudnn_tensor(b->g, id_each, (cudnn_dims){{s->n_seq, s->n_heads, s->len, d}},
                                               (cudnn_dims){{s->n_heads * s->len * d, s->len * d, d, 1}}, b->io);
    cudnn_reduce(b->g, CUDNN_REDUCE_TENSOR_ADD, cudnn_matmul(b->g, weights, rows_of_queries, each), sum);
}

static void build_backward(const builder *b)
{
    const shape *s = b->s;
    const int64_t h = s->n_heads, hk = s->n_kv_heads, d = s->head_dim;
    const cudnn_descriptor q = rows(b, Q, h, s->q_ld, false), k = rows(b, K, hk, s->kv_ld, true),
                           v = rows(b, V, hk, s->kv_ld, true), out = rows(b, OUT, h, s->o_ld, false),
                           dout = rows(b, DOUT, h, s->o_ld, false), scale = cudnn_scalar(b->g, SCALE),
                           lse = floats(b, LSE), delta = floats(b, DELTA);
    const cudnn_dims outs = {{s->n_seq, h, s->len, d}};
    cudnn_descriptor x = apply(b, CUDNN_POINTWISE_MUL, dout, out, cudnn_between(b->g, outs, FLOAT));
    x = cudnn_reduce(b->g, CUDNN_REDUCE_TENSOR_ADD, x, a_float(b));
    apply(b, CUDNN_POINTWISE_MUL, x, cudnn_scalar(b->g, ONE), delta); /* the library recognises the graph by it */

    x = cudnn_matmul(b->g, q, k, scores(b, FLOAT));
    x = apply(b, CUDNN_POINTWISE_MUL, x, scale, scores(b, FLOAT));
    x = masked(b, apply(b, CUDNN_POINTWISE_SUB, x, lse, scores(b, FLOAT)));
    const cudnn_descriptor p = apply(b, CUDNN_POINTWISE_EXP, x, NULL, scores(b, FLOAT));
    sum_to_keys(b, turned(b, p), dout, DV, DV_EACH);

    x = cudnn_matmul(b->g, dout, v, scores(b, FLOAT));
    x = apply(b, CUDNN_POINTWISE_SUB, x, delta, scores(b, FLOAT));
    x = apply(b, CUDNN_POINTWISE_MUL, x, p, scores(b, FLOAT));
    const cudnn_descriptor ds = apply(b, CUDNN_POINTWISE_MUL, x, scale, scores(b, FLOAT));
    sum_to_keys(b, turned(b, ds), q, DK, DK_EACH);

    const cudnn_dims keys = {{s->n_seq, hk, s->len, d}};
    x = cudnn_reshape(b->g, k, cudnn_between_as(b->g, keys, (cudnn_dims){{s->len * s->kv_ld, d, s->kv_ld, 1}}, b->io));
    cudnn_matmul(b->g, ds, x, rows(b, DQ, h, s->q_ld, false));
}

static void make_plan(const struct cuda_cudnn *c, const dt_attention *at, const shape *s, bool backward,
                      cudnn_plan *plan, char *why, size_t why_size)
{
    cudnn_graph *g = calloc(1, sizeof *g);
    *why = '\0';
    *plan = (cudnn_plan){0};
    if (!g) {
        snprintf(why, why_size, "out of memory for a graph");
        return;
    }
    g->library = &c->library;
    g->why = why, g->why_size = why_size;
    const builder b = {.g = g, .s = s, .io = s->dt == DT_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF};
    const size_t taken = aligned((size_t)lse_elems(s) * sizeof(float));
    if (backward)
        build_backward(&b);
    else
        build_forward(&b);
    if (backward)
        cudnn_plan_make(g, (size_t)dt_gpu_attention_library_scratch(at).work_nbytes, plan);
    else if (taken <= DT_GPU_WORKSPACE_NBYTES)
        cudnn_plan_make(g, DT_GPU_WORKSPACE_NBYTES - taken, plan);
    else
        snprintf(why, why_size, "the lse of all tokens exceeds the workspace of a stream");
    free(g);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static prepared *find(struct cuda_cudnn *c, const shape *s)
{
    for (int i = 0; c && i < c->n; i++)
        if (!memcmp(&c->shapes[i].shape, s, sizeof *s)) return &c->shapes[i];
    return NULL;
}

static const prepared *plans_for(dt_device *dev, const dt_attention *at)
{
    if (!at->by_library || !cuda_of(dev)->cudnn || dt_attention_obstacle(at)) return NULL;
    const shape s = shape_of(at);
    return find(cuda_of(dev)->cudnn, &s);
}

static bool whole(const void *a, const void *b, const void *c, const void *d)
{
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) & 15) == 0;
}

/* Pass all pointers by id, including scalars, except those that are NULL. */
static dt_err run(const struct cuda_cudnn *c, const cudnn_plan *plan, const dt_attention *at, void *given[N_IDS],
                  void *workspace, dt_stream *s)
{
    float scale = at->scale, hidden = -INFINITY, one = 1;
    int64_t ids[N_IDS];
    void *pointers[N_IDS];
    int n = 0;
    given[SCALE] = &scale;
    given[HIDDEN] = at->bidirectional ? NULL : &hidden;
    given[ONE] = given[DOUT] ? &one : NULL;
    for (int64_t id = 1; id < N_IDS; id++)
        if (given[id]) ids[n] = id, pointers[n++] = given[id];
    return cudnn_plan_run(&c->library, plan, n, ids, pointers, workspace, s);
}

static dt_err queue_forward(const struct cuda_cudnn *c, const prepared *p, const dt_attention *at, const void *q,
                            const void *k, const void *v, void *out, float *lse, dt_stream *s)
{
    const size_t nbytes = aligned((size_t)lse_elems(&p->shape) * sizeof(float));
    float *by_head = s->workspace;
    void *given[N_IDS] = {[Q] = (void *)q, [K] = (void *)k, [V] = (void *)v, [OUT] = out, [LSE] = by_head};
    DT_TRY(run(c, &p->forward, at, given, (char *)s->workspace + nbytes, s));
    return lse ? cuda_turn(by_head, lse, p->shape.n_seq, p->shape.n_heads, p->shape.len, s) : DT_OK;
}

dt_err cuda_cudnn_forward(dt_device *dev, const dt_attention *at, const void *q, const void *k, const void *v,
                          void *out, float *lse, dt_stream *s, bool *taken)
{
    const prepared *p = plans_for(dev, at);
    *taken = p && p->forward.plan && whole(q, k, v, out);
    return *taken ? queue_forward(cuda_of(dev)->cudnn, p, at, q, k, v, out, lse, s) : DT_OK;
}

static dt_err queue_backward(const struct cuda_cudnn *c, const prepared *p, const dt_attention *at, void *given[N_IDS],
                             const float *lse, float *scratch, dt_stream *s)
{
    const int64_t n = lse_elems(&p->shape);
    const dt_gpu_attention_library sizes = dt_gpu_attention_library_scratch(at);
    char *each = (char *)(scratch + 2 * n), *work = each + 2 * sizes.each_nbytes;
    given[LSE] = scratch;
    given[DELTA] = scratch + n;
    if (sizes.each_nbytes) given[DK_EACH] = each, given[DV_EACH] = each + sizes.each_nbytes;
    DT_TRY(cuda_turn(lse, scratch, p->shape.n_seq, p->shape.len, p->shape.n_heads, s));
    return run(c, &p->backward, at, given, (void *)aligned((size_t)work), s);
}

dt_err cuda_cudnn_backward(dt_device *dev, const dt_attention *at, const void *q, const void *k, const void *v,
                           const void *out, const float *lse, const void *dout, void *dq, void *dk, void *dv,
                           float *scratch, dt_stream *s, bool *taken)
{
    const prepared *p = plans_for(dev, at);
    void *given[N_IDS] = {[Q] = (void *)q,       [K] = (void *)k, [V] = (void *)v, [OUT] = (void *)out,
                          [DOUT] = (void *)dout, [DQ] = dq,       [DK] = dk,       [DV] = dv};
    *taken = p && p->backward.plan && whole(q, k, v, out) && whole(dout, dq, dk, dv) && whole(scratch, lse, NULL, NULL);
    return *taken ? queue_backward(cuda_of(dev)->cudnn, p, at, given, lse, scratch, s) : DT_OK;
}

/* ---- preparation ------------------------------------------------------------------------------------------------- */

static void leave(const struct cuda_cudnn *c, prepared *p, cudnn_plan *plan, const char *name, const char *verdict)
{
    if (!*verdict || !plan->plan) return;
    snprintf(p->why, sizeof p->why, "%s %s", name, verdict);
    cudnn_plan_drop(&c->library, plan);
}

static dt_err open_cudnn(cuda_state *cuda, char *why, size_t why_size)
{
    if (cuda->cudnn) return DT_OK;
    struct cuda_cudnn *c = calloc(1, sizeof *c);
    DT_CHECK(c, DT_ERR_MEMORY, "out of memory for cuDNN's plans");
    if (cudnn_library_open(&c->library, cuda->planning, why, why_size))
        cuda->cudnn = c;
    else
        free(c);
    return DT_OK;
}

static void tell(const struct cuda_cudnn *c, const prepared *p)
{
    const size_t version = c->library.cudnnGetVersion();
    const bool forward = p->forward.plan != NULL, backward = p->backward.plan != NULL;
    if (!forward && !backward) return;
    DT_INFO("cuDNN %zu.%zu.%zu computes attention of %lld sequence%s of %lld tokens%s", version / 10000,
            version / 100 % 100, version % 100, (long long)p->shape.n_seq, p->shape.n_seq == 1 ? "" : "s",
            (long long)p->shape.len,
            forward && backward ? ", forward and backward"
            : forward           ? ", forward"
                                : ", backward");
}

static dt_err make_ready(dt_device *dev, const dt_attention *at, bool backward, prepared *p)
{
    const struct cuda_cudnn *c = cuda_of(dev)->cudnn;
    char why[200] = "";
    attention_verdict v;
    p->shape = shape_of(at);
    make_plan(c, at, &p->shape, false, &p->forward, p->why, sizeof p->why);
    if (backward) make_plan(c, at, &p->shape, true, &p->backward, why, sizeof why);
    if (*why) snprintf(p->why, sizeof p->why, "backward: %s", why);
    if (cuda_of(dev)->planning || (!p->forward.plan && !p->backward.plan)) return DT_OK;
    DT_TRY(cuda_attention_try(dev, at, &v));
    leave(c, p, &p->backward, "backward", v.of[DIRECTION_BACKWARD]);
    leave(c, p, &p->forward, "forward", v.of[DIRECTION_FORWARD]);
    tell(c, p);
    return DT_OK;
}

/* Rows in the model's layout: q, k and v adjacent. */
static bool is_model_like(const dt_attention *at)
{
    return at->q_ld == at->kv_ld && at->q_ld >= (int64_t)(at->n_heads + 2 * at->n_kv_heads) * at->head_dim;
}

dt_err cuda_attention_prepare(dt_device *dev, const dt_attention *at, bool backward, int *ready, char *why,
                              size_t why_size)
{
    cuda_state *cuda = cuda_of(dev);
    const char *no = dt_attention_obstacle(at);
    *ready = 0;
    *why = '\0';
    if (!no && !is_model_like(at)) no = "q, k and v are not adjacent in memory";
    if (no) {
        snprintf(why, why_size, "%s", no);
        return DT_OK;
    }
    DT_TRY(open_cudnn(cuda, why, why_size));
    if (!cuda->cudnn) return DT_OK;
    const shape s = shape_of(at);
    prepared *p = find(cuda->cudnn, &s);
    if (!p && cuda->cudnn->n < MAX_SHAPES) {
        p = &cuda->cudnn->shapes[cuda->cudnn->n++];
        DT_TRY(make_ready(dev, at, backward, p));
    }
    if (p)
        snprintf(why, why_size, "%s", p->why);
    else
        snprintf(why, why_size, "plans for %d shapes are cached, which is the maximum", MAX_SHAPES);
    if (p && p->forward.plan) *ready |= DT_READY_FORWARD;
    if (p && p->backward.plan) *ready |= DT_READY_BACKWARD;
    return DT_OK;
}

void cuda_cudnn_close(cuda_state *cuda)
{
    struct cuda_cudnn *c = cuda->cudnn;
    for (int i = 0; c && i < c->n; i++) {
        cudnn_plan_drop(&c->library, &c->shapes[i].forward);
        cudnn_plan_drop(&c->library, &c->shapes[i].backward);
    }
    if (c) cudnn_library_close(&c->library);
    free(c);
    cuda->cudnn = NULL;
}

#else

/* Without cuDNN's headers. */
dt_err cuda_cudnn_forward(dt_device *dev, const dt_attention *at, const void *q, const void *k, const void *v,
                          void *out, float *lse, dt_stream *s, bool *taken)
{
    *taken = false;
    return DT_OK;
}

dt_err cuda_cudnn_backward(dt_device *dev, const dt_attention *at, const void *q, const void *k, const void *v,
                           const void *out, const float *lse, const void *dout, void *dq, void *dk, void *dv,
                           float *scratch, dt_stream *s, bool *taken)
{
    *taken = false;
    return DT_OK;
}

dt_err cuda_attention_prepare(dt_device *dev, const dt_attention *at, bool backward, int *ready, char *why,
                              size_t why_size)
{
    *ready = 0;
    snprintf(why, why_size, "this program was built without cuDNN's headers");
    return DT_OK;
}

void cuda_cudnn_close(cuda_state *cuda) {}
#endif
