/* test_model_gradients.c - gradients of every family, and with dropout, against central differences of the loss.
 *
 * For a direction d (a unit vector inside one tensor) the slope of f(e) = loss(w + e d) at 0 is compared with g.d. With
 * the five-point formula
 *     D(h) = (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / (12 h)
 * the truncation error is c h^4, so |D(2h) - D(h)| / 15 estimates it; and a rounding error r of f becomes at most 18 r
 * / (12 h). h starts wide and is halved until truncation is the smaller of the two: a direction that lies in a few rows
 * of the embedding bends fast.
 * DEVICES: cpu queue */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ref_model.h"
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double H_WIDEST = 0.01, H_NARROWEST = 0.0025;
/* A mean over 25 tokens of logp with about ten roundings of 2^-24 * 4 each, partly shared: 10^-6 is a generous
 * bound. */
static double rounding(double h) { return 18 * 1e-6 / (12 * h); }

enum direction { RANDOM_SIGNS, ALONG_GRADIENT, ONE_ELEMENT };

static double component(ref_model *r, int u, const dt_tensor *t, enum direction kind, int64_t i, double norm)
{
    if (kind == RANDOM_SIGNS) return (ref_number(t->name, i) < 0 ? -1 : 1) / sqrt((double)t->n_elems);
    if (kind == ALONG_GRADIENT) return norm > 0 ? ref_grad(r, u, t->offset + i) / norm : 0;
    return i == t->n_elems / 3;
}

/* The loss with e * d added to tensor t, whose weights are w0. */
static double loss_at(ref_model *r, const dt_batch *b, int u, const dt_tensor *t, const double *w0, const double *d,
                      double e)
{
    double loss = NAN;
    for (int64_t i = 0; i < t->n_elems; i++) ref_set_param(r, u, t->offset + i, w0[i] + e * d[i]);
    assert_int_equal(ref_model_loss(r, b, true, 3, &loss, NULL), DT_OK);
    return loss;
}

struct slope {
    double value, tolerance;
};

static struct slope slope_along(ref_model *r, const dt_batch *b, int u, const dt_tensor *t, const double *w0,
                                const double *d)
{
    for (double h = H_WIDEST;; h /= 2) {
        double diff[3];
        for (int k = 0; k < 3; k++) {
            const double e = h * (double)(1 << k);
            diff[k] = loss_at(r, b, u, t, w0, d, e) - loss_at(r, b, u, t, w0, d, -e);
        }
        const double fine = (8 * diff[0] - diff[1]) / (12 * h), coarse = (8 * diff[1] - diff[2]) / (24 * h);
        const double truncation = fabs(coarse - fine) / 15;
        if (truncation < rounding(h) || h <= H_NARROWEST) return (struct slope){fine, rounding(h) + 2 * truncation};
    }
}

static void check_tensor(ref_model *r, const dt_batch *b, int u, const dt_tensor *t, enum direction kind)
{
    double *w0 = calloc((size_t)t->n_elems, sizeof *w0), *d = calloc((size_t)t->n_elems, sizeof *d), norm = 0,
           expected = 0;
    for (int64_t i = 0; i < t->n_elems; i++) norm += pow(ref_grad(r, u, t->offset + i), 2);
    for (int64_t i = 0; i < t->n_elems; i++) {
        w0[i] = ref_param(r, u, t->offset + i);
        d[i] = component(r, u, t, kind, i, sqrt(norm));
        expected += d[i] * ref_grad(r, u, t->offset + i);
    }
    const struct slope s = slope_along(r, b, u, t, w0, d);
    loss_at(r, b, u, t, w0, d, 0);
    free(w0);
    free(d);
    if (!(fabs(s.value - expected) <= s.tolerance))
        fail_msg("%s, direction %d: slope %.7g, gradient says %.7g: off by %.2g, allowed %.2g", t->name, kind, s.value,
                 expected, fabs(s.value - expected), s.tolerance);
}

static void check_model(const char *name, const char *config)
{
    static const int32_t LENS[] = {7, 12, 1, 5};
    const dt_model_options opt = ref_options(25, 12, DT_F32);
    ref_model r;
    dt_batch b = {0};
    if (ref_model_open(&r, name, config, &opt) != DT_OK) fail_msg("%s", dt_error_message());
    assert_int_equal(dt_batch_alloc(&b, 25, 4, &r.ledger), DT_OK);
    ref_batch_fill(&b, r.mc.vocab_size, 0, 4, LENS, 4);
    assert_int_equal(ref_model_grads(&r, &b, 3, 1, NULL), DT_OK);
    for (int u = 0; u < r.n_units; u++)
        for (int i = 0; i < r.units[u].n_tensors; i++)
            for (int kind = RANDOM_SIGNS; kind <= ONE_ELEMENT; kind++)
                check_tensor(&r, &b, u, &r.units[u].tensors[i], kind);
    dt_batch_free(&b, &r.ledger);
    ref_model_close(&r);
    assert_false(r.misused);
    assert_int_equal(ref_model_left(&r), 0);
}

static void gradients_are_the_slopes_of_the_loss_in_every_family(void **state)
{
    static const char *const CASES[] = {"gpt2",          "gpt2_variant", "llama", "llama_linear",
                                        "llama_dynamic", "mistral",      "qwen2", "qwen3"};
    for (size_t c = 0; c < sizeof CASES / sizeof CASES[0]; c++) {
        char path[128];
        snprintf(path, sizeof path, "tests/data/model/%s.json", CASES[c]);
        json_t *root = json_load_file(path, 0, NULL);
        assert_non_null(root);
        char *config = json_dumps(json_object_get(root, "config"), 0);
        check_model(CASES[c], config);
        free(config);
        json_decref(root);
    }
}

static void gradients_are_the_slopes_with_dropout_too(void **state)
{
    check_model("gpt2 with dropout",
                "{\"model_type\": \"gpt2\", \"n_embd\": 24, \"n_layer\": 2, \"n_head\": 3, \"vocab_size\": 61, "
                "\"n_positions\": 32, \"attn_pdrop\": 0.2, \"embd_pdrop\": 0.1, \"resid_pdrop\": 0.3}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_the_slopes_of_the_loss_in_every_family),
        cmocka_unit_test(gradients_are_the_slopes_with_dropout_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
