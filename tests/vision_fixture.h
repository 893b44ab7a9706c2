/* vision_fixture.h - tiny vision-language models of tests/data/vision (tests/make_vision_fixtures.py), with their
 * batches of sequences and images. */
#ifndef TESTS_VISION_FIXTURE_H
#define TESTS_VISION_FIXTURE_H

#include "model_expected.h"

enum { MAX_TOK = 96, MAX_SEQ = 4, MAX_IMAGES = 4, MAX_CELLS = 48 };
static const char *const CASES[] = {"clip_llama", "clip_full",    "siglip_qwen2",  "linear",
                                    "mlp",        "deep_mlp",     "pixel_shuffle", "normed",
                                    "pooled",     "pooled_clip",  "siglip_72",     "gemma3",
                                    "internvl",   "internvl_rms", "internvl_moe",  "internvl_gpt_oss"};
enum { N_CASES = sizeof CASES / sizeof CASES[0] };

struct fixture {
    json_t *root;
    char *config;
    int32_t lens[MAX_SEQ], images[MAX_SEQ];
    int n_seq;
    ref_model r;
    dt_batch b;
    dt_batch_images *shown; /* of b */
};

/* Images of sequence s in the file: their number, or a grid [rows, columns] of cells for each. */
static inline const json_t *images_of(const struct fixture *f, int s)
{
    return json_array_get(json_object_get(f->root, "images"), (size_t)s);
}

/* Append an image, or the cells of its grid. Returns the number of its placeholders. */
static inline int64_t put_image(struct fixture *f, int64_t image, const json_t *grid)
{
    const int64_t rows = json_integer_value(json_array_get(grid, 0)),
                  columns = json_integer_value(json_array_get(grid, 1)), n = grid ? rows * columns : 1;
    uint8_t *to = f->shown->pixels + (size_t)f->shown->n * f->shown->image_nbytes;
    for (size_t i = 0; i < (size_t)n * f->shown->image_nbytes; i++)
        to[i] = (uint8_t)(dt_mix64((uint64_t)(7919 * (image + 1)) + i) >> 20);
    for (int64_t c = 0; grid && c < n; c++) f->shown->grid[f->shown->n + c] = c == 0 ? dt_grid_code(rows, columns) : 0;
    f->shown->n += (int32_t)n;
    return grid ? n : f->r.mc.vision->n_tokens;
}

/* Sequences and images of batch k as the script has them. */
static inline void fill(struct fixture *f, int64_t k)
{
    const int32_t token = f->r.mc.vision->image_token;
    int64_t image = 10 * k;
    ref_batch_fill(&f->b, token, k, f->n_seq, f->lens, 0);
    f->shown->n = 0;
    for (int s = 0; s < f->n_seq; s++) {
        const int32_t first = f->b.seq_start[s], end = f->b.seq_start[s + 1], before = f->shown->n;
        int32_t at = first + 1;
        for (int32_t i = 0; i < f->images[s]; i++, image++, at++)
            for (int64_t n = put_image(f, image, json_array_get(images_of(f, s), (size_t)i)); n > 0; n--)
                f->b.token[at++] = token;
        f->shown->first[s] = before;
        f->shown->count[s] = f->shown->n - before;
        for (int32_t t = first; t + 1 < end; t++)
            if (f->b.token[t + 1] == token) f->b.target[t] = -1, f->b.weight[t] = 0;
    }
    dt_batch_finish(&f->b);
}

/* Every token uses all experts, so rounding cannot make it use others. */
static inline void use_all_experts(json_t *text)
{
    json_t *n = json_object_get(text, "num_experts") ? json_object_get(text, "num_experts")
                                                     : json_object_get(text, "num_local_experts");
    if (n) json_object_set(text, "num_experts_per_tok", n);
}

static inline void open_with(struct fixture *f, const char *name, double dropout, bool all_experts, dt_dtype dtype,
                             dt_recompute recompute, dt_trains trained)
{
    char path[128];
    memset(f, 0, sizeof *f);
    snprintf(path, sizeof path, "tests/data/vision/%s.json", name);
    f->root = json_load_file(path, 0, NULL);
    assert_non_null(f->root);
    if (dropout > 0) json_object_set_new(json_object_get(f->root, "config"), "projector_dropout", json_real(dropout));
    if (all_experts) use_all_experts(json_object_get(json_object_get(f->root, "config"), "text_config"));
    f->config = json_dumps(json_object_get(f->root, "config"), 0);
    const json_t *lens = json_object_get(f->root, "lens");
    for (f->n_seq = 0; f->n_seq < (int)json_array_size(lens); f->n_seq++) {
        const json_t *images = images_of(f, f->n_seq);
        f->lens[f->n_seq] = (int32_t)json_integer_value(json_array_get(lens, (size_t)f->n_seq));
        f->images[f->n_seq] =
            (int32_t)(json_is_array(images) ? (json_int_t)json_array_size(images) : json_integer_value(images));
    }
    const int32_t max_images = json_is_array(images_of(f, 0)) ? MAX_CELLS : MAX_IMAGES;
    const int32_t n_tok = f->lens[0] > MAX_TOK ? f->lens[0] : MAX_TOK; /* a long one is alone */
    dt_model_options opt = ref_options(n_tok, n_tok > MAX_TOK ? n_tok : 64, dtype);
    opt.max_images = max_images;
    opt.recompute = recompute;
    if (ref_model_open_part(&f->r, name, f->config, &opt, trained, NULL) != DT_OK)
        fail_msg("%s: %s", name, dt_error_message());
    const int64_t S = f->r.mc.vision->image_size;
    assert_int_equal(dt_batch_alloc(&f->b, n_tok, MAX_SEQ, &f->r.ledger), DT_OK);
    assert_int_equal(dt_batch_add_images(&f->b, max_images, (size_t)(S * S * 3), &f->r.ledger), DT_OK);
    f->shown = dt_images_of(&f->b);
    fill(f, 0);
}

static inline void open_part(struct fixture *f, const char *name, dt_dtype dtype, dt_recompute recompute,
                             dt_trains trained)
{
    open_with(f, name, 0, false, dtype, recompute, trained);
}

static inline bool all(void *self, const dt_tensor *t) { return true; }

static inline void open_fixture(struct fixture *f, const char *name, dt_dtype dtype)
{
    open_part(f, name, dtype, DT_RECOMPUTE_NONE, all);
}

static inline void close_fixture(struct fixture *f)
{
    dt_batch_free(&f->b, &f->r.ledger);
    ref_model_close(&f->r);
    assert_false(f->r.misused);
    assert_int_equal(ref_model_left(&f->r), 0);
    free(f->config);
    json_decref(f->root);
}

static inline bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), k = strlen(end);
    return n >= k && strcmp(name + n - k, end) == 0;
}

/* A language model that leaves its rows as they come: its blocks add nothing, and its last norm divides by 2^10 and
 * multiplies with as much, to 1e-7 of what rows of size 0.3 are. */
static inline void make_transparent(struct fixture *f)
{
    const char *const layers = "language_model.model.layers.";
    dt_model_close(f->r.model);
    f->r.mc.norm_eps = 0x1p20;
    assert_int_equal(
        dt_model_open(&f->r.model, &f->r.mc, &f->r.opt, f->r.units, f->r.n_units, &f->r.dev, &f->r.source, NULL, NULL),
        DT_OK);
    for (int u = 0; u < f->r.n_units; u++)
        for (int i = 0; i < f->r.units[u].n_tensors; i++) {
            const dt_tensor *t = &f->r.units[u].tensors[i];
            const bool norm = strcmp(t->name, "language_model.model.norm.weight") == 0;
            const bool adds = strncmp(t->name, layers, strlen(layers)) == 0 &&
                              (strstr(t->name, ".o_proj.") || strstr(t->name, ".down_proj."));
            for (int64_t e = 0; (norm || adds) && e < t->n_elems; e++)
                ref_set_param(&f->r, u, ref_at(&f->r, u, t) + e, norm ? 0x1p10 - f->r.mc.norm_plus_one : 0);
        }
}

static inline double distance_of_grads(struct fixture *a, struct fixture *of, int u)
{
    double off = 0, length = 0;
    for (int i = 0; i < of->r.units[u].n_tensors; i++) {
        const dt_tensor *t = &of->r.units[u].tensors[i];
        for (int64_t e = t->offset; t->part == DT_TRAINED && e < t->offset + t->n_elems; e++) {
            const double g = ref_grad(&of->r, u, e), d = ref_grad(&a->r, u, e) - g;
            off += d * d;
            length += g * g;
        }
    }
    return length > 0 ? sqrt(off / length) : 0;
}

/* ---- checks that hold for every model -------------------------------------------------------------------------- */

/* What rounding to nearest is at most, of a number just above a power of two. */
static const double UNIT[] = {[DT_F32] = 0x1p-24, [DT_BF16] = 0x1p-8, [DT_F16] = 0x1p-11};

static inline void check_logits(struct fixture *f, const char *name)
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

static inline void check_results(const char *name)
{
    struct fixture f;
    double loss;
    open_fixture(&f, name, DT_F32);
    check_logits(&f, name);
    ref_model_forget_grads(&f.r);
    if (ref_model_grads(&f.r, &f.b, 0, 1, &loss) != DT_OK) fail_msg("%s: %s", name, dt_error_message());
    assert_near("loss", name, number(json_object_get(f.root, "loss")), loss, 2e-6);
    /* the gradient of the keys' biases of a tower is 0 but for rounding */
    check_grads(f.root, &f.r, 2e-8);
    close_fixture(&f);
}

/* Where a gradient is of the size of its rounding error, AdamW's step may differ by lr. The difference between
 * PyTorch's losses in fp32 and in fp64 measures this for a model. Two implementations differ by as much again, by
 * chance several times as much. */
static inline void check_steps(const char *name)
{
    struct fixture f;
    open_fixture(&f, name, DT_F32);
    const json_t *losses = json_object_get(f.root, "losses");
    const double tolerance = 1e-6 + 20 * number(json_object_get(f.root, "fp32_error"));
    for (size_t step = 0; step < json_array_size(losses); step++) {
        fill(&f, (int64_t)(step % 2));
        check_step(f.root, &f.r, &f.b, name, losses, step, tolerance);
    }
    close_fixture(&f);
}

/* Gradients with recomputed activations have the same bits. */
static inline void check_recomputed(const char *name)
{
    static const dt_recompute HOW[] = {DT_RECOMPUTE_SELECTIVE, DT_RECOMPUTE_BLOCK};
    for (int h = 0; h < 2; h++) {
        struct fixture a, b;
        open_fixture(&a, name, DT_F32);
        open_part(&b, name, DT_F32, HOW[h], all);
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

/* The same weights in 16 bits and in fp32. A logit of size 3 comes out of some 45 roundings: sqrt(45) * 0.4 * 3 = 8
 * units, over some 40 tokens 8 / sqrt(40) = 1.3 of their mean; twice as much is the bound (0.7 was seen). A gradient
 * passes as many again on its way back: sqrt(90) * 0.4 = 4 units of its length, and 12 are the bound, for where
 * values nearly cancel, as in attention, the remainder is smaller than they are (6.8 was seen, of a unit). The scale
 * keeps gradients away from fp16's smallest values. */
static inline void check_16_bits(const char *name)
{
    for (int t = DT_BF16; t <= DT_F16; t++) {
        struct fixture f, wide;
        double loss, expected;
        open_with(&f, name, 0, true, (dt_dtype)t, DT_RECOMPUTE_NONE, all);
        open_with(&wide, name, 0, true, DT_F32, DT_RECOMPUTE_NONE, all);
        for (int u = 0; u < wide.r.n_units; u++)
            for (int64_t e = 0; e < wide.r.units[u].flat_len[DT_TRAINED]; e++)
                ref_set_param(&wide.r, u, e, ref_param(&f.r, u, e));
        assert_int_equal(ref_model_grads(&f.r, &f.b, 0, 1024, &loss), DT_OK);
        assert_int_equal(ref_model_grads(&wide.r, &wide.b, 0, 1024, &expected), DT_OK);
        assert_near("loss", name, expected, loss, 2.6 * UNIT[t]);
        for (int u = 0; u < f.r.n_units; u++)
            assert_near("distance of gradients", f.r.units[u].name, 0, distance_of_grads(&f, &wide, u), 12 * UNIT[t]);
        close_fixture(&wide);
        close_fixture(&f);
    }
}

#endif
