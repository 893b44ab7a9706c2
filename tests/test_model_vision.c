/* test_model_vision.c - tiny vision-language models against what transformers computed (tests/make_vision_fixtures.py
 * wrote the files), and what their units see of batches with and without images.
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

static void open_with(struct fixture *f, const char *name, double dropout, dt_dtype dtype, dt_recompute recompute,
                      dt_trains trained)
{
    char path[128];
    memset(f, 0, sizeof *f);
    snprintf(path, sizeof path, "tests/data/vision/%s.json", name);
    f->root = json_load_file(path, 0, NULL);
    assert_non_null(f->root);
    if (dropout > 0) json_object_set_new(json_object_get(f->root, "config"), "projector_dropout", json_real(dropout));
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

static void open_part(struct fixture *f, const char *name, dt_dtype dtype, dt_recompute recompute, dt_trains trained)
{
    open_with(f, name, 0, dtype, recompute, trained);
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

/* ---- what is trained, what is kept, and which units take part --------------------------------------------------- */

static bool projector_alone(void *self, const dt_tensor *t) { return strncmp(t->name, "multi_modal", 11) == 0; }
static bool tower_alone(void *self, const dt_tensor *t) { return strncmp(t->name, "vision_tower", 12) == 0; }
static bool text_alone(void *self, const dt_tensor *t) { return strncmp(t->name, "language_model", 14) == 0; }
static bool second_block_of_tower(void *self, const dt_tensor *t)
{
    return strstr(t->name, "encoder.layers.1.") != NULL;
}

/* The gradients of what is trained are those of a model that trains all: the same operations, so the same bits. */
static void check_part(const char *name, dt_trains trained)
{
    struct fixture all_of, f;
    open_fixture(&all_of, name, DT_F32);
    open_part(&f, name, DT_F32, DT_RECOMPUTE_NONE, trained);
    assert_int_equal(ref_model_grads(&all_of.r, &all_of.b, 0, 1, NULL), DT_OK);
    assert_int_equal(ref_model_grads(&f.r, &f.b, 0, 1, NULL), DT_OK);
    int n = 0;
    for (int u = 0; u < f.r.n_units; u++)
        for (int i = 0; i < f.r.units[u].n_tensors; i++) {
            const dt_tensor *t = &f.r.units[u].tensors[i], *whole = &all_of.r.units[u].tensors[i];
            for (int64_t e = 0; t->trainable && e < t->n_elems; e++)
                if (ref_grad(&f.r, u, t->offset + e) != ref_grad(&all_of.r, u, whole->offset + e))
                    fail_msg("%s, %s: another gradient than with all trained", name, t->name);
            n += t->trainable;
        }
    assert_true(n > 0);
    close_fixture(&f);
    close_fixture(&all_of);
}

static void what_is_frozen_does_not_change_the_gradients_of_the_rest(void **state)
{
    static const dt_trains PARTS[] = {projector_alone, tower_alone, text_alone, second_block_of_tower};
    for (size_t i = 0; i < sizeof PARTS / sizeof PARTS[0]; i++) {
        check_part("clip_llama", PARTS[i]);
        check_part("siglip_qwen2", PARTS[i]);
    }
}

/* Frozen: the embedding and the tower; the gradient passes through blocks that are frozen, too. */
static void a_projector_alone_asks_for_its_own_gradients_and_no_others(void **state)
{
    struct fixture f;
    open_part(&f, "clip_llama", DT_F32, DT_RECOMPUTE_NONE, projector_alone);
    f.r.calls_len = 0;
    assert_int_equal(ref_model_grads(&f.r, &f.b, 0, 1, NULL), DT_OK);
    const int projector = dt_units_find(f.r.units, f.r.n_units, DT_UNIT_PROJECTOR);
    char wanted[16];
    snprintf(wanted, sizeof wanted, "g%d ", projector);
    const char *first = strchr(f.r.calls, 'g');
    assert_non_null(first);
    assert_memory_equal(first, wanted, strlen(wanted));
    assert_null(strchr(first + 1, 'g'));
    close_fixture(&f);
}

/* Under ZeRO-3 all ranks must take units in one order. */
static void units_are_taken_in_one_order_with_images_without_and_without_tokens(void **state)
{
    struct fixture f;
    char *order[3];
    open_fixture(&f, "clip_llama", DT_F32);
    for (int k = 0; k < 3; k++) {
        fill(&f, 0);
        if (k > 0) ref_batch_fill(&f.b, 60, 0, k == 1 ? f.n_seq : 0, f.lens, 0), f.b.n_images = 0;
        ref_model_forget_grads(&f.r);
        memset(f.r.calls, 0, f.r.calls_len);
        f.r.calls_len = 0;
        assert_int_equal(ref_model_grads(&f.r, &f.b, 0, 1, NULL), DT_OK);
        order[k] = strdup(f.r.calls);
        for (int u = 0; k > 0 && u < f.r.n_units; u++)
            for (int64_t e = 0; e < f.r.units[u].flat_len[DT_TRAINED] && strncmp(f.r.units[u].name, "vis", 3) == 0; e++)
                assert_true(ref_grad(&f.r, u, e) == 0);
    }
    assert_string_equal(order[0], order[1]);
    assert_string_equal(order[0], order[2]);
    for (int k = 0; k < 3; k++) free(order[k]);
    close_fixture(&f);
}

static void recomputation_leaves_the_bits_of_gradients(void **state)
{
    static const dt_recompute HOW[] = {DT_RECOMPUTE_SELECTIVE, DT_RECOMPUTE_BLOCK};
    for (int h = 0; h < 2; h++) {
        struct fixture a, b;
        open_fixture(&a, "siglip_qwen2", DT_F32);
        open_part(&b, "siglip_qwen2", DT_F32, HOW[h], all);
        assert_int_equal(ref_model_grads(&a.r, &a.b, 0, 1, NULL), DT_OK);
        assert_int_equal(ref_model_grads(&b.r, &b.b, 0, 1, NULL), DT_OK);
        for (int u = 0; u < a.r.n_units; u++)
            for (int i = 0; i < a.r.units[u].n_tensors; i++) {
                const dt_tensor *t = &a.r.units[u].tensors[i];
                for (int64_t e = t->offset; t->trainable && e < t->offset + t->n_elems; e++)
                    assert_true(ref_grad(&a.r, u, e) == ref_grad(&b.r, u, e));
            }
        close_fixture(&a);
        close_fixture(&b);
    }
}

static double loss_at(struct fixture *f, int unit, int64_t i, double value)
{
    double loss;
    ref_set_param(&f->r, unit, i, value);
    assert_int_equal(ref_model_loss(&f->r, &f->b, true, 3, &loss, NULL), DT_OK);
    return loss;
}

/* The same step drops the same numbers, so the loss has slopes; those that are tried are of size 0.1. Logits are right
 * to 1e-6, so is the loss, and its difference over 2 h to 5e-5; h^2 / 6 times third derivatives of up to 10 (7 was
 * seen: the error grows with h^2) is 2e-4. A mask that backward did not apply would be off by as much as a slope. */
static void gradients_of_a_projector_with_dropout_are_the_slopes(void **state)
{
    const double h = 0.01;
    struct fixture f;
    double kept, dropped;
    open_with(&f, "deep_mlp", 0.3, DT_F32, DT_RECOMPUTE_NONE, all);
    assert_int_equal(ref_model_loss(&f.r, &f.b, false, 3, &kept, NULL), DT_OK);
    assert_int_equal(ref_model_loss(&f.r, &f.b, true, 3, &dropped, NULL), DT_OK);
    assert_true(kept != dropped);
    assert_int_equal(ref_model_grads(&f.r, &f.b, 3, 1, NULL), DT_OK);
    const int u = dt_units_find(f.r.units, f.r.n_units, DT_UNIT_PROJECTOR);
    for (int t = 0; t < f.r.units[u].n_tensors; t++)
        for (int k = 0; k < 3; k++) {
            const dt_tensor *tensor = &f.r.units[u].tensors[t];
            const int64_t i = tensor->offset + k * (tensor->n_elems - 1) / 2;
            const double was = ref_param(&f.r, u, i), slope = ref_grad(&f.r, u, i),
                         found = (loss_at(&f, u, i, was + h) - loss_at(&f, u, i, was - h)) / (2 * h);
            ref_set_param(&f.r, u, i, was);
            assert_near("slope", tensor->name, slope, found, 2.5e-4);
        }
    close_fixture(&f);
}

/* model.dropout, and tasks that have none, mean all of a model. */
static void a_dropout_of_the_run_is_that_of_the_projector_too(void **state)
{
    struct fixture f;
    open_with(&f, "mlp", 0.3, DT_F32, DT_RECOMPUTE_NONE, all);
    dt_model_config_set_dropout(&f.r.mc, -1);
    assert_true(f.r.mc.vision->projector.dropout == 0.3);
    dt_model_config_set_dropout(&f.r.mc, 0);
    assert_true(f.r.mc.vision->projector.dropout == 0);
    close_fixture(&f);
}

/* The row of the placeholder's token learns from a tied head, and from nothing else. */
static void the_placeholder_learns_nothing_from_its_places(void **state)
{
    struct fixture f;
    open_fixture(&f, "clip_llama", DT_F32);
    assert_int_equal(ref_model_grads(&f.r, &f.b, 0, 1, NULL), DT_OK);
    const int64_t C = f.r.mc.hidden_size, token = f.r.mc.vision->image_token;
    for (int64_t c = 0; c < C; c++) assert_true(ref_grad(&f.r, 0, token * C + c) == 0);
    close_fixture(&f);
}

static void assert_refused(struct fixture *f, const char *text)
{
    assert_int_equal(dt_model_forward(f->r.model, &f->b, true, 0), DT_ERR_DATA);
    if (!strstr(dt_error_message(), text)) fail_msg("expected \"%s\" in: %s", text, dt_error_message());
    dt_error_clear();
}

static void placeholders_that_are_not_those_of_the_images_are_refused(void **state)
{
    struct fixture f;
    open_fixture(&f, "clip_llama", DT_F32);
    f.b.token[0] = f.r.mc.vision->image_token;
    assert_refused(&f, "28 placeholders (token 60) for 3 images of 9 placeholders each");
    fill(&f, 0);
    f.b.n_images = 2;
    assert_refused(&f, "27 placeholders (token 60) for 2 images");
    fill(&f, 0);
    f.b.image_nbytes -= 3;
    assert_refused(&f, "takes 14 x 14 pixels");
    f.b.image_nbytes += 3;
    close_fixture(&f);
}

/* Behind one tower features depend on their own image alone, whatever else is in the batch. */
static void an_image_is_seen_by_its_own_sequence_alone(void **state)
{
    struct fixture f;
    float before[MAX_TOK], after[MAX_TOK];
    open_fixture(&f, "clip_full", DT_F32);
    assert_int_equal(ref_model_loss(&f.r, &f.b, false, 0, NULL, before), DT_OK);
    f.b.pixels[0] ^= 0x80;
    assert_int_equal(ref_model_loss(&f.r, &f.b, false, 0, NULL, after), DT_OK);
    const int32_t end = f.b.seq_start[1];
    bool changed = false;
    for (int32_t t = 0; t < f.b.n_tok; t++) {
        if (t < end) changed = changed || before[t] != after[t];
        if (t >= end) assert_true(before[t] == after[t]);
    }
    assert_true(changed);
    close_fixture(&f);
}

/* ---- operations ---- */

/* Weights: of the kernel on pixels, a block, the projector's layers; rows: patches, the tower's; blocks that count. */
static void operations_of_an_image_are_those_of_its_rows(void **state)
{
    (void)state;
    const double kernel = 16 * 48, block = 4 * 16 * 16 + 2 * 16 * 36, first = 16 * 20, second = 20 * 20;
    const double patches = 9, rows = 10, blocks = 2, square = 16 * rows * rows;
    struct fixture f;
    open_fixture(&f, "clip_llama", DT_F32);
    dt_unit *u = f.r.units;
    const int n = f.r.n_units;
    assert_true(dt_model_image_flops(&f.r.mc, u, n) ==
                4 * kernel * patches + blocks * (6 * block * rows + 12 * square) + 6 * (first + second) * patches);
    dt_units_choose_trained(u, n, projector_alone, NULL);
    const double forward = 2 * kernel * patches + blocks * (2 * block * rows + 4 * square);
    assert_true(dt_model_image_flops(&f.r.mc, u, n) == forward + (4 * first + 6 * second) * patches);
    dt_units_choose_trained(u, n, second_block_of_tower, NULL);
    assert_true(dt_model_image_flops(&f.r.mc, u, n) ==
                forward + 4 * block * rows + 8 * square + 4 * (first + second) * patches);
    dt_units_choose_trained(u, n, NULL, NULL);
    assert_true(dt_model_image_flops(&f.r.mc, u, n) == forward + 2 * (first + second) * patches);
    dt_vision_config *v = f.r.mc.vision;
    f.r.mc.vision = NULL;
    assert_true(dt_model_image_flops(&f.r.mc, u, n) == 0);
    f.r.mc.vision = v;
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_loss_and_gradients_agree_with_transformers),
        cmocka_unit_test(ten_steps_of_adamw_give_the_losses_of_pytorch),
        cmocka_unit_test(what_is_frozen_does_not_change_the_gradients_of_the_rest),
        cmocka_unit_test(a_projector_alone_asks_for_its_own_gradients_and_no_others),
        cmocka_unit_test(units_are_taken_in_one_order_with_images_without_and_without_tokens),
        cmocka_unit_test(recomputation_leaves_the_bits_of_gradients),
        cmocka_unit_test(gradients_of_a_projector_with_dropout_are_the_slopes),
        cmocka_unit_test(a_dropout_of_the_run_is_that_of_the_projector_too),
        cmocka_unit_test(the_placeholder_learns_nothing_from_its_places),
        cmocka_unit_test(placeholders_that_are_not_those_of_the_images_are_refused),
        cmocka_unit_test(operations_of_an_image_are_those_of_its_rows),
        cmocka_unit_test(an_image_is_seen_by_its_own_sequence_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
