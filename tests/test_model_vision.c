/* test_model_vision.c - tiny vision-language models against what transformers computed (tests/make_vision_fixtures.py
 * wrote the files), against finite differences, and what their units see of batches with and without images.
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

enum { MAX_TOK = 96, MAX_SEQ = 4, MAX_IMAGES = 4 };
static const char *const CASES[] = {"clip_llama", "clip_full", "siglip_qwen2", "linear",
                                    "mlp",        "deep_mlp",  "pixel_shuffle"};
enum { N_CASES = sizeof CASES / sizeof CASES[0] };

struct fixture {
    json_t *root;
    char *config;
    int32_t lens[MAX_SEQ], images[MAX_SEQ];
    int n_seq;
    ref_model r;
    dt_batch b;
};

static void read_list(const json_t *list, int32_t *out, int *n)
{
    for (*n = 0; *n < (int)json_array_size(list); (*n)++)
        out[*n] = (int32_t)json_integer_value(json_array_get(list, (size_t)*n));
}

static void put_pixels(struct fixture *f, int64_t image)
{
    uint8_t *to = f->b.pixels + (size_t)f->b.n_images++ * f->b.image_nbytes;
    for (size_t i = 0; i < f->b.image_nbytes; i++)
        to[i] = (uint8_t)(dt_mix64((uint64_t)(7919 * (image + 1)) + i) >> 20);
}

/* Sequences and images of batch k as the script has them. */
static void fill(struct fixture *f, int64_t k)
{
    const int32_t token = f->r.mc.vision->image_token, N = (int32_t)f->r.mc.vision->n_tokens;
    int64_t image = 10 * k;
    ref_batch_fill(&f->b, token, k, f->n_seq, f->lens, 0);
    f->b.n_images = 0;
    for (int s = 0; s < f->n_seq; s++) {
        const int32_t first = f->b.seq_start[s], end = f->b.seq_start[s + 1];
        for (int32_t i = 0; i < f->images[s]; i++, image++) {
            for (int32_t t = 0; t < N; t++) f->b.token[first + 1 + i * (N + 1) + t] = token;
            put_pixels(f, image);
        }
        for (int32_t t = first; t + 1 < end; t++)
            if (f->b.token[t + 1] == token) f->b.target[t] = -1, f->b.weight[t] = 0;
    }
    dt_batch_finish(&f->b);
}

static void open_part(struct fixture *f, const char *name, dt_dtype dtype, dt_recompute recompute, dt_trains trained)
{
    char path[128];
    memset(f, 0, sizeof *f);
    snprintf(path, sizeof path, "tests/data/vision/%s.json", name);
    f->root = json_load_file(path, 0, NULL);
    assert_non_null(f->root);
    f->config = json_dumps(json_object_get(f->root, "config"), 0);
    read_list(json_object_get(f->root, "lens"), f->lens, &f->n_seq);
    read_list(json_object_get(f->root, "images"), f->images, &f->n_seq);
    dt_model_options opt = ref_options(MAX_TOK, 64, dtype);
    opt.max_images = MAX_IMAGES;
    opt.recompute = recompute;
    if (ref_model_open_part(&f->r, name, f->config, &opt, trained, NULL) != DT_OK)
        fail_msg("%s: %s", name, dt_error_message());
    const int64_t S = f->r.mc.vision->image_size;
    assert_int_equal(dt_batch_alloc(&f->b, MAX_TOK, MAX_SEQ, &f->r.ledger), DT_OK);
    assert_int_equal(dt_batch_alloc_images(&f->b, MAX_IMAGES, (size_t)(S * S * 3), &f->r.ledger), DT_OK);
    fill(f, 0);
}

static bool all(void *self, const dt_tensor *t) { return true; }

static void open_fixture(struct fixture *f, const char *name, dt_dtype dtype)
{
    open_part(f, name, dtype, DT_RECOMPUTE_NONE, all);
}

static void close_fixture(struct fixture *f)
{
    dt_batch_free(&f->b, &f->r.ledger);
    ref_model_close(&f->r);
    assert_false(f->r.misused);
    assert_int_equal(ref_model_left(&f->r), 0);
    free(f->config);
    json_decref(f->root);
}

static double number(const json_t *v)
{
    assert_true(json_is_number(v));
    return json_number_value(v);
}

static void assert_near(const char *what, const char *which, double expected, double found, double tolerance)
{
    if (!(fabs(found - expected) <= tolerance))
        fail_msg("%s of %s: expected %.9g, found %.9g: off by %.2g, allowed %.2g", what, which, expected, found,
                 fabs(found - expected), tolerance);
}

static void check_logits(struct fixture *f, const char *name)
{
    const int64_t V = f->r.mc.vocab_size;
    const json_t *rows = json_object_get(f->root, "logits");
    float *logits = calloc((size_t)(MAX_SEQ * V), sizeof *logits);
    assert_int_equal(dt_model_forward(f->r.model, &f->b, false, 0), DT_OK);
    assert_int_equal(dt_model_last_logits(f->r.model, &f->b, logits), DT_OK);
    assert_int_equal(json_array_size(rows), f->n_seq);
    /* as in test_model_reference.c; the tower's roundings come before the language model's */
    for (int s = 0; s < f->n_seq; s++)
        for (int64_t v = 0; v < V; v++)
            assert_near("logit", name, number(json_array_get(json_array_get(rows, (size_t)s), (size_t)v)),
                        (double)logits[s * V + v], 2e-5);
    free(logits);
}

static void check_tensor(struct fixture *f, int u, const dt_tensor *t)
{
    double sum = 0, dot = 0;
    char name[DT_NAME_MAX + 8];
    snprintf(name, sizeof name, "dot.%s", t->name);
    for (int64_t e = 0; e < t->n_elems; e++) {
        const double g = ref_grad(&f->r, u, t->offset + e);
        sum += g * g;
        dot += g * ref_number(name, e);
    }
    /* as in test_model_reference.c; the gradient of the keys' biases of a tower is 0 but for rounding */
    const double norm = number(json_object_get(json_object_get(f->root, "grad_norm"), t->name)),
                 tolerance = 6e-6 * norm + 2e-8;
    assert_near("gradient norm", t->name, norm, sqrt(sum), tolerance);
    assert_near("gradient", t->name, number(json_object_get(json_object_get(f->root, "grad_dot"), t->name)), dot,
                tolerance * fmax(1, sqrt((double)t->n_elems) / 4));
}

static void check_grads(struct fixture *f)
{
    size_t n_found = 0;
    for (int u = 0; u < f->r.n_units; u++)
        for (int i = 0; i < f->r.units[u].n_tensors; i++) {
            const dt_tensor *t = &f->r.units[u].tensors[i];
            if (t->part == DT_TRAINED) check_tensor(f, u, t), n_found++;
        }
    assert_int_equal(n_found, json_object_size(json_object_get(f->root, "grad_norm")));
}

static void logits_loss_and_gradients_agree_with_transformers(void **state)
{
    for (int c = 0; c < N_CASES; c++) {
        struct fixture f;
        double loss;
        open_fixture(&f, CASES[c], DT_F32);
        assert_int_equal(f.r.mc.vision->n_tokens, json_integer_value(json_object_get(f.root, "n_tokens")));
        check_logits(&f, CASES[c]);
        ref_model_forget_grads(&f.r);
        if (ref_model_grads(&f.r, &f.b, 0, 1, &loss) != DT_OK) fail_msg("%s: %s", CASES[c], dt_error_message());
        assert_near("loss", CASES[c], number(json_object_get(f.root, "loss")), loss, 2e-6);
        check_grads(&f);
        close_fixture(&f);
    }
}

/* Where a gradient is of the size of its rounding, AdamW's step may differ by lr: how much that is for a model,
 * PyTorch's own losses in fp32 tell, beside those in fp64 of the file. Two that differ so differ as much again, by
 * chance several times as much. */
static void train(struct fixture *f, const char *name)
{
    const json_t *losses = json_object_get(f->root, "losses");
    const double tolerance = 1e-6 + 20 * number(json_object_get(f->root, "fp32_error"));
    for (size_t step = 0; step < json_array_size(losses); step++) {
        double loss;
        fill(f, (int64_t)(step % 2));
        ref_model_forget_grads(&f->r);
        assert_int_equal(ref_model_grads(&f->r, &f->b, (int64_t)step, 1, &loss), DT_OK);
        ref_model_adamw(&f->r, number(json_object_get(f->root, "lr")), number(json_object_get(f->root, "weight_decay")),
                        number(json_object_get(f->root, "clip")));
        char what[48];
        snprintf(what, sizeof what, "loss of step %zu", step);
        assert_near(what, name, number(json_array_get(losses, step)), loss, tolerance * loss);
    }
}

static void ten_steps_of_adamw_give_the_losses_of_pytorch(void **state)
{
    for (int c = 0; c < N_CASES; c++) {
        struct fixture f;
        open_fixture(&f, CASES[c], DT_F32);
        train(&f, CASES[c]);
        close_fixture(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_loss_and_gradients_agree_with_transformers),
        cmocka_unit_test(ten_steps_of_adamw_give_the_losses_of_pytorch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
