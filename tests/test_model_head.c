/* test_model_head.c - the head in chunks, and gradients in bf16, against plain loops in double; gradients of all that a
 * head can be asked for against differences.
 * DEVICES: cpu queue */

#include "cases.h"
#include "../src/model/model_private.h"
#include "model_configs.h"
#include "model_fixture.h"
#include "ref_device.h"

/* ---- chunks ---- */

struct plain_head {
    int64_t C, V;
    double *y, *x_hat, *z, *dz, *dy, rstd;
};

/* Final norm and logits of hidden state x, in double. */
static void plain_forward(const struct dt_model *m, const ref_model *r, struct plain_head *p, const float *x)
{
    const int head = r->n_units - 1, out = m->tied ? 0 : head;
    double mean = 0, var = 0;
    for (int64_t c = 0; c < p->C; c++) mean += m->mc->rms_norm ? 0 : (double)x[c] / (double)p->C;
    for (int64_t c = 0; c < p->C; c++) var += pow((double)x[c] - mean, 2) / (double)p->C;
    p->rstd = 1 / sqrt(var + m->mc->norm_eps);
    for (int64_t c = 0; c < p->C; c++) {
        p->x_hat[c] = ((double)x[c] - mean) * p->rstd;
        p->y[c] = p->x_hat[c] * ref_param(r, head, m->final_norm.w.offset + c);
        if (dt_exists(m->final_norm.b)) p->y[c] += ref_param(r, head, m->final_norm.b.offset + c);
    }
    for (int64_t v = 0; v < p->V; v++) {
        p->z[v] = 0;
        for (int64_t c = 0; c < p->C; c++) p->z[v] += p->y[c] * ref_param(r, out, m->head.w.offset + v * p->C + c);
    }
}

/* Gradient of the norm's input, from p->dy. */
static void plain_norm_backward(const struct dt_model *m, const ref_model *r, const struct plain_head *p, double *dx)
{
    double mean_g = 0, mean_gx = 0;
    for (int64_t c = 0; c < p->C; c++) {
        const double g = p->dy[c] * ref_param(r, r->n_units - 1, m->final_norm.w.offset + c);
        mean_g += m->mc->rms_norm ? 0 : g / (double)p->C;
        mean_gx += g * p->x_hat[c] / (double)p->C;
    }
    for (int64_t c = 0; c < p->C; c++) {
        const double g = p->dy[c] * ref_param(r, r->n_units - 1, m->final_norm.w.offset + c);
        dx[c] = p->rstd * (g - mean_g - p->x_hat[c] * mean_gx);
    }
}

static void assert_close(const char *what, int64_t i, double expected, double found, double tolerance)
{
    if (!(fabs(expected - found) <= tolerance))
        fail_msg("%s %d: expected %.9g, found %.9g", what, (int)i, expected, found);
}

static void *from_device(ref_model *r, const void *src, size_t nbytes)
{
    void *host = malloc(nbytes);
    assert_int_equal(r->dev.ops->copy(&r->dev, host, src, nbytes, NULL), DT_OK);
    assert_int_equal(r->dev.ops->stream_sync(&r->dev, NULL), DT_OK);
    return host;
}

enum { N_HEAD = 1540, CHUNK = 512 }; /* 1027 rows with a target: three chunks */

/* What a head is asked, and its results, per target: at most N_HEAD. */
struct asked {
    float u[N_HEAD], entropy_weight[N_HEAD], kl_weight[N_HEAD];
    float logp[N_HEAD], entropy[N_HEAD], squares[N_HEAD], mean[N_HEAD], kl[N_HEAD];
    uint8_t hit[N_HEAD];
    dt_head_pass pass;
    dt_head_results results;
};
enum { ALL_OF_IT = DT_HEAD_ENTROPY_WEIGHT | DT_HEAD_SUM_SQUARES | DT_HEAD_MEAN_LOGIT | DT_HEAD_DIVERGENCE };

/* reference NULL: what needs no more than logp, hit and entropy. */
static void ask(struct asked *a, dt_model *reference)
{
    for (int t = 0; t < N_HEAD; t++) {
        a->u[t] = (float)ref_number("u", t);
        a->entropy_weight[t] = (float)ref_number("entropy", t);
        a->kl_weight[t] = (float)ref_number("kl", t);
    }
    a->pass = (dt_head_pass){.inv_temperature = 0.75f, .u = a->u};
    a->results = (dt_head_results){.logp = a->logp, .hit = a->hit, .entropy = a->entropy};
    if (!reference) return;
    a->pass.entropy_weight = a->entropy_weight, a->pass.kl_weight = a->kl_weight, a->pass.reference = reference;
    a->results.log_sum_squares = a->squares, a->results.mean_logit = a->mean, a->results.kl = a->kl;
}

/* The row of target i as the plain classifier takes it, z and q: logits of the model and of its reference, [V]. */
static ref_row row_of(const struct asked *a, int64_t V, const double *z, const double *q, int32_t target, int64_t i)
{
    return (ref_row){.n = V,
                     .z = z,
                     .q = q,
                     .target = target,
                     .inv_t = (double)a->pass.inv_temperature,
                     .weight = (double)a->u[i],
                     .entropy_weight = a->pass.entropy_weight ? (double)a->entropy_weight[i] : 0,
                     .kl_weight = a->pass.kl_weight ? (double)a->kl_weight[i] : 0};
}

static bool is_largest(const ref_row *row)
{
    for (int64_t v = 0; v < row->n; v++)
        if (row->z[v] > row->z[row->target]) return false;
    return true;
}

/* Its results are the device's, which rounds logits of size 4 to 2^-22 and sums 24 products. */
static void check_results(const struct asked *a, const ref_row *row, int64_t t)
{
    const ref_row_values want = ref_classifier(row);
    assert_close("logp", t, want.logp, (double)a->logp[t], 4e-6);
    assert_close("entropy", t, want.entropy, (double)a->entropy[t], 1e-5);
    assert_close("hit", t, row->target >= 0 && is_largest(row), a->hit[t], 0);
    if (!a->pass.reference) return;
    assert_close("sum of squares", t, want.log_sum_squares, (double)a->squares[t], 1e-5);
    assert_close("mean logit", t, want.mean_logit, (double)a->mean[t], 4e-6);
    assert_close("divergence", t, want.kl, (double)a->kl[t], 1e-5);
}

static struct plain_head make_plain(const struct dt_model *m)
{
    const size_t C = (size_t)m->C, V = (size_t)m->V;
    return (struct plain_head){m->C, m->V, calloc(C, 8), calloc(C, 8), calloc(V, 8), calloc(V, 8), calloc(C, 8), 0};
}

static void free_plain(struct plain_head *p) { free(p->y), free(p->x_hat), free(p->z), free(p->dz), free(p->dy); }

/* What the head of m has made of hidden states, and its gradients. ref: the reference and its hidden states; NULL. */
static void check_against_plain(ref_model *r, const dt_batch *b, const struct asked *a, const ref_model *ref,
                                const float *hidden, const float *ref_hidden, const float *dx_all)
{
    const struct dt_model *m = r->model;
    const int64_t C = m->C, V = m->V;
    const int out = m->tied ? 0 : r->n_units - 1;
    struct plain_head p = make_plain(m), q = make_plain(ref ? ref->model : m);
    double *dw = calloc((size_t)(V * C), 8), *dnorm = calloc((size_t)C, 8), *dx = calloc((size_t)C, 8);
    for (int32_t t = 0, i = 0; t < b->n_tok; t++) {
        memset(dx, 0, (size_t)C * 8);
        plain_forward(m, r, &p, hidden + t * C);
        if (ref) plain_forward(ref->model, ref, &q, ref_hidden + t * ref->model->C);
        if (b->target[t] >= 0) {
            const ref_row row = row_of(a, V, p.z, ref ? q.z : NULL, b->target[t], i);
            check_results(a, &row, i++);
            ref_classifier_gradient(&row, p.dz);
            for (int64_t c = 0; c < C; c++) {
                p.dy[c] = 0;
                for (int64_t v = 0; v < V; v++) {
                    p.dy[c] += p.dz[v] * ref_param(r, out, m->head.w.offset + v * C + c);
                    dw[v * C + c] += p.dz[v] * p.y[c];
                }
                dnorm[c] += p.dy[c] * p.x_hat[c];
            }
            plain_norm_backward(m, r, &p, dx);
        }
        /* gradients are below 1 and sum at most 61 terms */
        for (int64_t c = 0; c < C; c++) assert_close("dx of token", t, dx[c], (double)dx_all[t * C + c], 2e-6);
    }
    /* sums over 1027 tokens of terms below 1: a random walk of roundings, each 2^-24 of a running sum of size
     * sqrt(1027): 1027^(1/2) * 2^-24 * 32 = 6e-5, halved as the running sum grows only to that */
    for (int64_t i = 0; i < V * C; i++)
        assert_close("head gradient", i, dw[i], ref_grad(r, out, m->head.w.offset + i), 3e-5);
    for (int64_t c = 0; c < C; c++)
        assert_close("norm gradient", c, dnorm[c], ref_grad(r, r->n_units - 1, m->final_norm.w.offset + c), 3e-5);
    free_plain(&p), free_plain(&q);
    free(dw), free(dnorm), free(dx);
}

/* A reference that works in the activations of r, before it. */
static void open_reference(ref_model *q, ref_model *r, const char *config)
{
    dt_model_options opt = r->opt;
    opt.training = false, opt.head = 0, opt.lend_nbytes = 0;
    opt.borrows = true, opt.lender = r->model, opt.keeps_hidden = true;
    if (ref_model_open_beside(q, r, config, &opt) != DT_OK) fail_msg("%s", dt_error_message());
}

/* reference: the configuration of a model to diverge from; NULL: nothing is asked that needs more memory. */
static void check_head(const char *config, const char *reference)
{
    static const int32_t LENS[] = {128, 100, 128, 1, 128, 128, 87, 128, 128, 128, 128, 128, 128, 72};
    static struct asked a;
    dt_model_options opt = ref_options(N_HEAD, 128, DT_F32);
    ref_model r, q = {0};
    dt_batch b;
    if (reference) opt.head = ALL_OF_IT, opt.lend_nbytes = 1 << 24;
    open_plain_model(&r, &b, config, &opt);
    ref_batch_fill(&b, 61, 0, 14, LENS, 3);
    assert_int_equal(b.n_tok, N_HEAD);
    struct dt_model *m = r.model;
    if (m->h.n_rows > CHUNK) m->h.n_rows = CHUNK; /* a GPU works on more at a time */
    assert_true(b.n_target > 2 * m->h.n_rows);
    if (reference) {
        open_reference(&q, &r, reference);
        assert_int_equal(dt_model_forward(q.model, &b, false, 0), DT_OK);
    }
    ask(&a, q.model);
    assert_int_equal(dt_model_forward(m, &b, true, 0), DT_OK);
    assert_int_equal(dt_model_head(m, &b, &a.pass, &a.results), DT_OK);
    assert_int_equal(dt_model_results(m, &a.results), DT_OK);
    float *hidden = from_device(&r, m->hidden, (size_t)(N_HEAD * m->C) * sizeof(float)),
          *dx = from_device(&r, m->s.dx, (size_t)(N_HEAD * m->C) * sizeof(float)), *of_q = NULL;
    if (reference) of_q = from_device(&r, q.model->hidden, (size_t)(N_HEAD * q.model->C) * sizeof(float));
    check_against_plain(&r, &b, &a, reference ? &q : NULL, hidden, of_q, dx);
    assert_int_equal(dt_model_backward(m, &b), DT_OK);
    free(hidden), free(dx), free(of_q);
    if (reference) ref_model_close(&q);
    assert_false(q.misused);
    close_model(&r, &b);
}

TEST(the_chunked_head_is_the_plain_loop)
{
    check_head(GPT2, NULL);  /* tied, LayerNorm */
    check_head(LLAMA, NULL); /* untied, RMSNorm */
}

TEST(terms_of_whole_distributions_are_those_of_the_plain_loop)
{
    check_head(GPT2, LLAMA); /* another width, too */
    check_head(LLAMA, MISTRAL);
}

TEST(a_head_does_not_do_what_its_model_was_not_opened_for)
{
    static struct asked a;
    dt_model_options opt = ref_options(64, 32, DT_F32);
    ref_model r, q;
    dt_batch b;
    opt.lend_nbytes = 1 << 20;
    open_plain_model(&r, &b, LLAMA, &opt);
    open_reference(&q, &r, LLAMA);
    ref_batch_fill(&b, 61, 0, 1, (const int32_t[]){9}, 0);
    assert_int_equal(dt_model_forward(r.model, &b, true, 0), DT_OK);
    for (int i = 0; i < 5; i++) {
        ask(&a, NULL);
        if (i == 0) a.pass.entropy_weight = a.u;
        if (i == 1) a.pass.kl_weight = a.u, a.pass.reference = q.model;
        if (i == 2) a.results.log_sum_squares = a.squares;
        if (i == 3) a.results.mean_logit = a.mean;
        if (i == 4) a.results.kl = a.kl, a.pass.reference = q.model;
        assert_fails(dt_model_head(r.model, &b, &a.pass, &a.results), DT_ERR_ARG, "was not opened for");
    }
    ref_model_close(&q);
    close_model(&r, &b);
}

/* Another model may use the activations in between; a batch that it has not seen it cannot be asked for. */
TEST(a_reference_serves_only_its_last_batch)
{
    static struct asked a;
    dt_model_options opt = ref_options(64, 32, DT_F32);
    float logp[2][64];
    ref_model r, q;
    dt_batch b;
    opt.head = ALL_OF_IT, opt.lend_nbytes = 1 << 20;
    open_plain_model(&r, &b, LLAMA, &opt);
    open_reference(&q, &r, GPT2);
    ref_batch_fill(&b, 61, 0, 2, (const int32_t[]){9, 20}, 0);
    ask(&a, q.model);
    assert_int_equal(dt_model_forward(r.model, &b, true, 0), DT_OK);
    assert_fails(dt_model_predict(r.model, &b, &a.pass, &a.results), DT_ERR_ARG,
                 "the reference's forward pass of the same batch");
    assert_int_equal(dt_model_forward(q.model, &b, false, 0), DT_OK);
    assert_int_equal(dt_model_logp(q.model, &b, 1, logp[0], NULL, NULL), DT_OK);
    assert_int_equal(dt_model_forward(r.model, &b, true, 0), DT_OK);
    assert_int_equal(dt_model_logp(q.model, &b, 1, logp[1], NULL, NULL), DT_OK);
    assert_memory_equal(logp[0], logp[1], (size_t)b.n_target * sizeof(float));
    assert_int_equal(dt_model_predict(r.model, &b, &a.pass, &a.results), DT_OK);
    ref_batch_fill(&b, 61, 0, 1, (const int32_t[]){9}, 0);
    assert_int_equal(dt_model_forward(r.model, &b, true, 0), DT_OK);
    assert_fails(dt_model_predict(r.model, &b, &a.pass, &a.results), DT_ERR_ARG, "");
    ref_model_close(&q);
    close_model(&r, &b);
}

/* ---- against differences ---- */

/* What the head's results say of L = sum over tokens of - u logp - entropy_weight H + kl_weight K. */
static double objective(ref_model *r, const dt_batch *b, struct asked *a)
{
    double sum = 0;
    assert_int_equal(dt_model_forward(r->model, b, false, 0), DT_OK);
    assert_int_equal(dt_model_predict(r->model, b, &a->pass, &a->results), DT_OK);
    for (int64_t t = 0; t < b->n_target; t++)
        sum += (double)a->kl_weight[t] * (double)a->kl[t] - (double)a->u[t] * (double)a->logp[t] -
               (double)a->entropy_weight[t] * (double)a->entropy[t];
    return sum;
}

/* Move a unit by h along its own gradient; grad and was: [of the unit]. */
static void move_unit(ref_model *r, int unit, const double *grad, const double *was, double h)
{
    int64_t n = 0;
    for (int i = 0; i < r->units[unit].n_tensors; i++) {
        const dt_tensor *t = &r->units[unit].tensors[i];
        for (int64_t e = t->offset; e < t->offset + t->n_elems; e++, n++)
            ref_set_param(r, unit, e, was[n] + h * grad[n]);
    }
}

/* The slope of L along a unit's gradient by a difference, and by the gradient itself. */
static void check_slope(ref_model *r, const dt_batch *b, struct asked *a, int unit)
{
    const double step = 4e-3;
    const size_t n = (size_t)r->units[unit].n_param;
    double *grad = malloc(n * sizeof *grad), *was = malloc(n * sizeof *was), side[2], square = 0;
    int64_t k = 0;
    for (int i = 0; i < r->units[unit].n_tensors; i++) {
        const dt_tensor *t = &r->units[unit].tensors[i];
        for (int64_t e = t->offset; e < t->offset + t->n_elems; e++, k++) {
            grad[k] = ref_grad(r, unit, e), was[k] = ref_param(r, unit, e);
            square += grad[k] * grad[k];
        }
    }
    for (int i = 0; i < 2; i++) {
        move_unit(r, unit, grad, was, (i ? -step : step) / sqrt(square));
        side[i] = objective(r, b, a);
    }
    move_unit(r, unit, grad, was, 0);
    /* 66 values, each rounded by 4e-6 (check_results) and weighed by less than 1/2: 1.6e-5 over a difference of 2 step
     * |g|, |g| above 4, is 5e-4; a third derivative of 6 step^2 of it is 1e-4 */
    assert_true(square > 16);
    assert_close("slope of unit", unit, sqrt(square), (side[0] - side[1]) / (2 * step), 1e-3 * sqrt(square));
    free(grad), free(was);
}

TEST(gradients_of_all_units_are_differences)
{
    static struct asked a;
    dt_model_options opt = ref_options(64, 32, DT_F32);
    ref_model r, q;
    dt_batch b;
    opt.head = ALL_OF_IT, opt.lend_nbytes = 1 << 20;
    open_plain_model(&r, &b, LLAMA, &opt);
    open_reference(&q, &r, GPT2);
    ref_batch_fill(&b, 61, 0, 2, (const int32_t[]){9, 20}, 4);
    ask(&a, q.model);
    assert_int_equal(dt_model_forward(q.model, &b, false, 0), DT_OK);
    assert_int_equal(dt_model_forward(r.model, &b, true, 0), DT_OK);
    assert_int_equal(dt_model_head(r.model, &b, &a.pass, NULL), DT_OK);
    assert_int_equal(dt_model_backward(r.model, &b), DT_OK);
    for (int unit = 0; unit < r.n_units; unit++) check_slope(&r, &b, &a, unit);
    ref_model_close(&q);
    close_model(&r, &b);
}

/* ---- bf16 gradients ---- */

/* So many rows that the head takes three chunks, or few, in one. */
enum { MANY_TOK = 1200, MANY_SEQ = 40, MANY_LEN = 30 };
static void fill_many(const ref_model *r, dt_batch *b, int n_seq)
{
    int32_t lens[MANY_SEQ];
    for (int s = 0; s < n_seq; s++) lens[s] = MANY_LEN;
    ref_batch_fill(b, r->mc.vocab_size, 0, n_seq, lens, 0);
}

/* The same matmuls and sums in fp32, rounded at the end: each element is within 2^-8 of itself. Sums of products may
 * be in another order where oneDNN stores another type: 1200 of them, each rounded by at most 2^-24 of a partial sum,
 * which stays below the tensor's norm. */
static void expect_rounded(ref_model *wide, ref_model *narrow)
{
    for (int u = 0; u < wide->n_units; u++)
        for (int i = 0; i < wide->units[u].n_tensors; i++) {
            const dt_tensor *t = &wide->units[u].tensors[i];
            double norm = 0;
            for (int64_t e = t->offset; e < t->offset + t->n_elems; e++) norm += pow(ref_grad(wide, u, e), 2);
            for (int64_t e = t->offset; e < t->offset + t->n_elems; e++) {
                const double x = ref_grad(wide, u, e), y = ref_grad(narrow, u, e);
                if (!(fabs(x - y) <= 0x1p-8 * fabs(x) + MANY_TOK * 0x1p-24 * sqrt(norm) / 8))
                    fail_msg("%s[%d]: %.9g in fp32, %.9g in bf16", t->name, (int)(e - t->offset), x, y);
            }
        }
}

TEST(bf16_gradients_are_the_fp32_ones_rounded_once)
{
    for (int k = 0; k < 6; k++) {
        dt_model_options opt = ref_options(MANY_TOK, 32, DT_BF16);
        ref_model wide, narrow;
        dt_batch b, c;
        const char *config = k % 3 == 0 ? GPT2 : k % 3 == 1 ? LLAMA : MISTRAL; /* the second is not tied */
        opt.max_seq = MANY_SEQ;
        open_plain_model(&wide, &b, config, &opt);
        opt.grad_dtype = DT_BF16;
        open_plain_model(&narrow, &c, config, &opt);
        fill_many(&wide, &b, k < 3 ? MANY_SEQ : 2);
        fill_many(&narrow, &c, k < 3 ? MANY_SEQ : 2);
        assert_int_equal(ref_model_grads(&wide, &b, 0, 1, NULL), DT_OK);
        assert_int_equal(ref_model_grads(&narrow, &c, 0, 1, NULL), DT_OK);
        expect_rounded(&wide, &narrow);
        close_model(&narrow, &c);
        close_model(&wide, &b);
    }
}

/* The CPU device, of which the factors of the vocabulary matmul's gradient are added up in double on the way. */
static struct {
    const dt_device_ops *cpu;
    int64_t n_vocab, width;
    double *sum, *size; /* [n_vocab, width]: of products, and of their absolute values */
    int n_calls;
} spied;

static dt_err spy_matmul(dt_device *dev, const dt_matmul *mm, const void *a, const void *b, void *c, dt_stream *stream)
{
    const uint16_t *x = a, *y = b;
    if (mm->trans_a && mm->m == spied.n_vocab && mm->n == spied.width) {
        spied.n_calls++;
        for (int64_t r = 0; r < mm->k; r++)
            for (int64_t v = 0; v < mm->m; v++)
                for (int64_t i = 0; i < mm->n; i++) {
                    const double product =
                        (double)dt_bf16_to_float(x[r * mm->lda + v]) * (double)dt_bf16_to_float(y[r * mm->ldb + i]);
                    spied.sum[v * mm->n + i] += product;
                    spied.size[v * mm->n + i] += fabs(product);
                }
    }
    return spied.cpu->matmul(dev, mm, a, b, c, stream);
}

/* And of the rows that are added to the embedding's. */
static dt_err spy_embedding_backward(dt_device *dev, const void *dout, const int32_t *id, const int32_t *order,
                                     void *table_grad, int64_t n_tok, int64_t width, dt_dtype dt, dt_dtype gt,
                                     dt_stream *stream)
{
    const uint16_t *rows = dout;
    for (int64_t t = 0; t < n_tok * width; t++) {
        const double x = (double)dt_bf16_to_float(rows[t]);
        spied.sum[id[t / width] * width + t % width] += x;
        spied.size[id[t / width] * width + t % width] += fabs(x);
    }
    return spied.cpu->embedding_backward(dev, dout, id, order, table_grad, n_tok, width, dt, gt, stream);
}

/* One rounding to bf16, 2^-8 of the value, and sums of n terms in fp32, n 2^-24 of their absolute values at most. */
static void check_vocabulary_gradient(const char *config, bool tied, const char *name)
{
    dt_model_options opt = ref_options(MANY_TOK, 32, DT_BF16);
    ref_model r;
    dt_batch b;
    opt.max_seq = MANY_SEQ;
    opt.grad_dtype = DT_BF16;
    open_plain_model(&r, &b, config, &opt);
    if (!r.dev.ops->host_accessible) { /* the spies read what the device computes */
        close_model(&r, &b);
        skip();
    }
    dt_device_ops ops = *r.dev.ops;
    spied.cpu = r.dev.ops;
    spied.n_calls = 0;
    spied.n_vocab = r.mc.vocab_size;
    spied.width = r.mc.hidden_size;
    const int64_t n = spied.n_vocab * spied.width;
    spied.sum = calloc((size_t)n, sizeof *spied.sum);
    spied.size = calloc((size_t)n, sizeof *spied.size);
    ops.matmul = spy_matmul;
    if (tied) ops.embedding_backward = spy_embedding_backward;
    dt_model_close(r.model);
    r.dev.ops = &ops;
    assert_int_equal(dt_model_open(&r.model, &r.mc, &opt, r.units, r.n_units, &r.dev, &r.source, NULL, NULL), DT_OK);
    fill_many(&r, &b, MANY_SEQ);
    assert_int_equal(ref_model_grads(&r, &b, 0, 1, NULL), DT_OK);
    assert_true(spied.n_calls > 2);
    const int unit = tied ? 0 : r.n_units - 1;
    int found = 0;
    for (int i = 0; i < r.units[unit].n_tensors; i++) {
        const dt_tensor *t = &r.units[unit].tensors[i];
        if (strcmp(t->name, name) != 0) continue;
        found++;
        for (int64_t e = 0; e < n; e++) {
            const double want = spied.sum[e], got = ref_grad(&r, unit, t->offset + e);
            const double sums = 2.0 * MANY_TOK * 0x1p-24 * spied.size[e];
            if (!(fabs(got - want) <= 0x1p-8 * (fabs(want) + sums) + sums))
                fail_msg("%s[%d]: expected %.9g, found %.9g", name, (int)e, want, got);
        }
    }
    assert_int_equal(found, 1);
    r.dev.ops = spied.cpu;
    free(spied.sum), free(spied.size);
    close_model(&r, &b);
}

TEST(the_vocabulary_gradient_is_rounded_once)
{
    check_vocabulary_gradient(LLAMA, false, "lm_head.weight");
    check_vocabulary_gradient(MISTRAL, true, "model.embed_tokens.weight");
}

int main(void) { return run_listed(NULL, NULL, NULL); }
