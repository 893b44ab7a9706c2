/* test_model_head.c - the head in chunks, and gradients in bf16, against plain loops in double.
 * DEVICES: cpu queue */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "../src/model/model_private.h"
#include "model_configs.h"
#include "model_fixture.h"
#include "ref_device.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* What a head is asked, and what it says: [N_HEAD]. */
struct asked {
    float u[N_HEAD], entropy_weight[N_HEAD], logp[N_HEAD], entropy[N_HEAD];
    uint8_t hit[N_HEAD];
    dt_head_pass pass;
    dt_head_results results;
};

static void ask(struct asked *a, bool more)
{
    for (int t = 0; t < N_HEAD; t++) {
        a->u[t] = (float)ref_number("u", t);
        a->entropy_weight[t] = (float)ref_number("entropy", t);
    }
    a->pass = (dt_head_pass){.inv_temperature = 0.75f, .u = a->u};
    a->results = (dt_head_results){.logp = a->logp, .hit = a->hit, .entropy = a->entropy};
    if (more) a->pass.entropy_weight = a->entropy_weight;
}

/* The row of token t, whose logits are there, as the plain classifier takes it. */
static ref_row row_of(const struct asked *a, const struct plain_head *p, int32_t target, int32_t t)
{
    return (ref_row){.n = p->V,
                     .z = p->z,
                     .target = target,
                     .inv_t = (double)a->pass.inv_temperature,
                     .weight = (double)a->u[t],
                     .entropy_weight = a->pass.entropy_weight ? (double)a->entropy_weight[t] : 0};
}

static bool is_largest(const ref_row *row)
{
    for (int64_t v = 0; v < row->n; v++)
        if (row->z[v] > row->z[row->target]) return false;
    return true;
}

/* Its results are the device's, which rounds logits of size 4 to 2^-22 and sums 24 products. */
static void check_results(const struct asked *a, const ref_row *row, int32_t t)
{
    const ref_row_values want = ref_classifier(row);
    assert_close("logp", t, want.logp, (double)a->logp[t], 4e-6);
    assert_close("entropy", t, want.entropy, (double)a->entropy[t], 1e-5);
    assert_close("hit", t, row->target >= 0 && is_largest(row), a->hit[t], 0);
}

static void check_head(const char *config, bool more)
{
    dt_model_options opt = ref_options(N_HEAD, 128, DT_F32);
    static const int32_t LENS[] = {128, 100, 128, 1, 128, 128, 87, 128, 128, 128, 128, 128, 128, 72};
    static struct asked a;
    ref_model r;
    dt_batch b;
    if (more) opt.head = DT_HEAD_ENTROPY_WEIGHT;
    open_plain_model(&r, &b, config, &opt);
    ref_batch_fill(&b, 61, 0, 14, LENS, 3);
    assert_int_equal(b.n_tok, N_HEAD);
    const struct dt_model *m = r.model;
    if (m->h.n_rows > CHUNK) r.model->h.n_rows = CHUNK; /* a GPU works on more at a time */
    assert_true(b.n_target > 2 * m->h.n_rows);
    ask(&a, more);
    assert_int_equal(dt_model_forward(r.model, &b, true, 0), DT_OK);
    assert_int_equal(dt_model_head(r.model, &b, &a.pass, &a.results), DT_OK);
    assert_int_equal(dt_model_results(r.model, &a.results), DT_OK);

    const int64_t C = m->C, V = m->V;
    float *hidden = from_device(&r, m->hidden, (size_t)(N_HEAD * C) * sizeof(float)),
          *dx_all = from_device(&r, m->s.dx, (size_t)(N_HEAD * C) * sizeof(float));
    struct plain_head p = {C,
                           V,
                           calloc((size_t)C, 8),
                           calloc((size_t)C, 8),
                           calloc((size_t)V, 8),
                           calloc((size_t)V, 8),
                           calloc((size_t)C, 8),
                           0};
    double *dw = calloc((size_t)(V * C), 8), *dnorm = calloc((size_t)C, 8), *dx = calloc((size_t)C, 8);
    for (int32_t t = 0; t < b.n_tok; t++) {
        memset(dx, 0, (size_t)C * 8);
        plain_forward(m, &r, &p, hidden + t * C);
        const ref_row row = row_of(&a, &p, b.target[t], t);
        check_results(&a, &row, t);
        if (b.target[t] >= 0) {
            ref_classifier_gradient(&row, p.dz);
            for (int64_t c = 0; c < C; c++) {
                p.dy[c] = 0;
                for (int64_t v = 0; v < V; v++) {
                    p.dy[c] += p.dz[v] * ref_param(&r, m->tied ? 0 : r.n_units - 1, m->head.w.offset + v * C + c);
                    dw[v * C + c] += p.dz[v] * p.y[c];
                }
                dnorm[c] += p.dy[c] * p.x_hat[c];
            }
            plain_norm_backward(m, &r, &p, dx);
        }
        /* gradients are below 1 and sum at most 61 terms */
        for (int64_t c = 0; c < C; c++) assert_close("dx of token", t, dx[c], (double)dx_all[t * C + c], 2e-6);
    }
    /* sums over 1027 tokens of terms below 1: a random walk of roundings, each 2^-24 of a running sum of size
     * sqrt(1027): 1027^(1/2) * 2^-24 * 32 = 6e-5, halved as the running sum grows only to that */
    for (int64_t i = 0; i < V * C; i++)
        assert_close("head gradient", i, dw[i], ref_grad(&r, m->tied ? 0 : r.n_units - 1, m->head.w.offset + i), 3e-5);
    for (int64_t c = 0; c < C; c++)
        assert_close("norm gradient", c, dnorm[c], ref_grad(&r, r.n_units - 1, m->final_norm.w.offset + c), 3e-5);
    assert_int_equal(dt_model_backward(r.model, &b), DT_OK);
    void *const all[] = {p.y, p.x_hat, p.z, p.dz, p.dy, dw, dnorm, dx, hidden, dx_all};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
    close_model(&r, &b);
}

static void the_chunked_head_is_the_plain_loop(void **state)
{
    check_head(GPT2, false);  /* tied, LayerNorm */
    check_head(LLAMA, false); /* untied, RMSNorm */
}

static void terms_of_whole_distributions_have_their_gradient(void **state)
{
    check_head(GPT2, true);
    check_head(LLAMA, true);
}

static void a_head_does_not_do_what_its_model_was_not_opened_for(void **state)
{
    static struct asked a;
    const dt_model_options opt = ref_options(64, 32, DT_F32);
    ref_model r;
    dt_batch b;
    open_plain_model(&r, &b, LLAMA, &opt);
    ref_batch_fill(&b, 61, 0, 1, (const int32_t[]){9}, 0);
    ask(&a, true);
    assert_int_equal(dt_model_forward(r.model, &b, true, 0), DT_OK);
    assert_int_equal(dt_model_head(r.model, &b, &a.pass, NULL), DT_ERR_ARG);
    assert_non_null(strstr(dt_error_message(), "was not opened for"));
    dt_error_clear();
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

/* The same products and sums in fp32, rounded at the end: each element is within 2^-8 of itself. Sums of products may
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

static void bf16_gradients_are_the_fp32_ones_rounded_once(void **state)
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

/* The CPU device, of which the factors of the vocabulary product's gradient are added up in double on the way. */
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

static void the_vocabulary_gradient_is_rounded_once(void **state)
{
    check_vocabulary_gradient(LLAMA, false, "lm_head.weight");
    check_vocabulary_gradient(MISTRAL, true, "model.embed_tokens.weight");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_chunked_head_is_the_plain_loop),
        cmocka_unit_test(terms_of_whole_distributions_have_their_gradient),
        cmocka_unit_test(a_head_does_not_do_what_its_model_was_not_opened_for),
        cmocka_unit_test(bf16_gradients_are_the_fp32_ones_rounded_once),
        cmocka_unit_test(the_vocabulary_gradient_is_rounded_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
