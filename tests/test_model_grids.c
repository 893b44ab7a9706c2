/* test_model_grids.c - tiny models whose images are grids of cells (Qwen2.5-VL, Qwen3-VL), against what transformers
 * computed (tests/make_grid_fixtures.py wrote the files).
 * DEVICES: cpu queue */
#include "cases.h"
#include "model_expected.h"

enum { MAX_TOK = 96, MAX_SEQ = 4, MAX_CELLS = 48 };
static const char *const CASES[] = {"qwen2_5_vl", "qwen3_vl"};
enum { N_CASES = sizeof CASES / sizeof CASES[0] };

struct fixture {
    json_t *root;
    char *config;
    int n_seq;
    int32_t lens[MAX_SEQ];
    ref_model r;
    dt_batch b;
    dt_batch_images *shown;
};

static json_t *grids_of(const struct fixture *f, int s)
{
    return json_array_get(json_object_get(f->root, "images"), (size_t)s);
}

static int64_t side_of(const json_t *grid, size_t i) { return json_integer_value(json_array_get(grid, i)); }

/* Append the cells of an image. */
static void put_image(struct fixture *f, int64_t image, const json_t *grid)
{
    const int64_t n = side_of(grid, 0) * side_of(grid, 1);
    uint8_t *to = f->shown->pixels + (size_t)f->shown->n * f->shown->image_nbytes;
    for (size_t i = 0; i < (size_t)n * f->shown->image_nbytes; i++)
        to[i] = (uint8_t)(dt_mix64((uint64_t)(7919 * (image + 1)) + i) >> 20);
    for (int64_t c = 0; c < n; c++)
        f->shown->grid[f->shown->n + c] = c == 0 ? dt_grid_code(side_of(grid, 0), side_of(grid, 1)) : 0;
    f->shown->n += (int32_t)n;
}

/* Sequences and images of batch k as the script has them. */
static void fill(struct fixture *f, int64_t k)
{
    const int32_t token = f->r.mc.vision->image_token;
    int64_t image = 10 * k;
    ref_batch_fill(&f->b, token, k, f->n_seq, f->lens, 0);
    f->shown->n = 0;
    for (int s = 0; s < f->n_seq; s++) {
        const int32_t first = f->b.seq_start[s], end = f->b.seq_start[s + 1];
        int32_t at = first + 1;
        f->shown->first[s] = f->shown->n;
        for (size_t i = 0; i < json_array_size(grids_of(f, s)); i++, image++, at++) {
            const json_t *grid = json_array_get(grids_of(f, s), i);
            put_image(f, image, grid);
            for (int64_t c = 0; c < side_of(grid, 0) * side_of(grid, 1); c++) f->b.token[at++] = token;
        }
        f->shown->count[s] = f->shown->n - f->shown->first[s];
        for (int32_t t = first; t + 1 < end; t++)
            if (f->b.token[t + 1] == token) f->b.target[t] = -1, f->b.weight[t] = 0;
    }
    dt_batch_finish(&f->b);
}

static void open_with(struct fixture *f, const char *name, dt_dtype dtype, dt_recompute recompute, dt_trains trained)
{
    char path[128];
    memset(f, 0, sizeof *f);
    snprintf(path, sizeof path, "tests/data/vision/%s.json", name);
    f->root = json_load_file(path, 0, NULL);
    assert_non_null(f->root);
    f->config = json_dumps(json_object_get(f->root, "config"), 0);
    const json_t *lens = json_object_get(f->root, "lens");
    for (f->n_seq = 0; f->n_seq < (int)json_array_size(lens); f->n_seq++)
        f->lens[f->n_seq] = (int32_t)json_integer_value(json_array_get(lens, (size_t)f->n_seq));
    dt_model_options opt = ref_options(MAX_TOK, 64, dtype);
    opt.max_images = MAX_CELLS;
    opt.recompute = recompute;
    if (ref_model_open_part(&f->r, name, f->config, &opt, trained, NULL) != DT_OK)
        fail_msg("%s: %s", name, dt_error_message());
    const int64_t S = f->r.mc.vision->image_size;
    assert_int_equal(dt_batch_alloc(&f->b, MAX_TOK, MAX_SEQ, &f->r.ledger), DT_OK);
    assert_int_equal(dt_batch_add_images(&f->b, MAX_CELLS, (size_t)(S * S * 3), &f->r.ledger), DT_OK);
    f->shown = dt_images_of(&f->b);
    fill(f, 0);
}

static bool all(void *self, const dt_tensor *t) { return true; }

static void open_fixture(struct fixture *f, const char *name, dt_dtype dtype)
{
    open_with(f, name, dtype, DT_RECOMPUTE_NONE, all);
}

static void close_fixture(struct fixture *f)
{
    dt_batch_free(&f->b, &f->r.ledger);
    ref_model_close(&f->r);
    assert_int_equal(ref_model_left(&f->r), 0);
    free(f->config);
    json_decref(f->root);
}

static void check_logits(struct fixture *f, const char *name)
{
    const int64_t V = f->r.mc.vocab_size;
    const json_t *rows = json_object_get(f->root, "logits");
    float *logits = calloc((size_t)(MAX_SEQ * V), sizeof *logits);
    if (dt_model_forward(f->r.model, &f->b, false, 0) != DT_OK) fail_msg("%s: %s", name, dt_error_message());
    assert_int_equal(dt_model_last_logits(f->r.model, &f->b, logits), DT_OK);
    for (int s = 0; s < f->n_seq; s++)
        for (int64_t v = 0; v < V; v++)
            assert_near("logit", name, number(json_array_get(json_array_get(rows, (size_t)s), (size_t)v)),
                        (double)logits[s * V + v], 2e-5);
    free(logits);
}

TEST(logits_loss_and_gradients_agree_with_transformers)
{
    for (int c = 0; c < N_CASES; c++) {
        struct fixture f;
        double loss;
        open_fixture(&f, CASES[c], DT_F32);
        check_logits(&f, CASES[c]);
        ref_model_forget_grads(&f.r);
        if (ref_model_grads(&f.r, &f.b, 0, 1, &loss) != DT_OK) fail_msg("%s: %s", CASES[c], dt_error_message());
        assert_near("loss", CASES[c], number(json_object_get(f.root, "loss")), loss, 2e-6);
        /* the gradient of the keys' biases of a tower is 0 but for rounding */
        check_grads(f.root, &f.r, 2e-8);
        close_fixture(&f);
    }
}

TEST(ten_steps_of_adamw_give_the_losses_of_pytorch)
{
    for (int c = 0; c < N_CASES; c++) {
        struct fixture f;
        open_fixture(&f, CASES[c], DT_F32);
        const json_t *losses = json_object_get(f.root, "losses");
        const double tolerance = 1e-6 + 20 * number(json_object_get(f.root, "fp32_error")); /* as test_model_vision.c */
        for (size_t step = 0; step < json_array_size(losses); step++) {
            fill(&f, (int64_t)(step % 2));
            check_step(f.root, &f.r, &f.b, CASES[c], losses, step, tolerance);
        }
        close_fixture(&f);
    }
}

int main(void) { return run_listed(NULL, NULL, NULL); }
