/* test_model_vision_units.c - the units of vision-language models with batches with and without images: trained and
 * kept tensors, dropout, placeholders, operations.
 * DEVICES: cpu queue */
#include "cases.h"
#include "vision_fixture.h"

/* ---- trained tensors, kept activations, and the units that take part
 * ----------------------------------------------- */

static bool projector_alone(void *self, const dt_tensor *t) { return strncmp(t->name, "multi_modal", 11) == 0; }
static bool tower_alone(void *self, const dt_tensor *t) { return strncmp(t->name, "vision_tower", 12) == 0; }
static bool text_alone(void *self, const dt_tensor *t) { return strncmp(t->name, "language_model", 14) == 0; }
static bool second_block_of_tower(void *self, const dt_tensor *t)
{
    return strstr(t->name, "encoder.layers.1.") != NULL;
}

/* The gradients of trained tensors equal those of a fully trained model: the same operations, so the same bits. */
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

TEST(frozen_tensors_do_not_change_other_gradients)
{
    static const dt_trains PARTS[] = {projector_alone, tower_alone, text_alone, second_block_of_tower};
    for (size_t i = 0; i < sizeof PARTS / sizeof PARTS[0]; i++) {
        check_part("clip_llama", PARTS[i]);
        check_part("siglip_qwen2", PARTS[i]);
    }
}

/* Frozen: the embedding and the tower; the gradient passes through blocks that are frozen, too. */
TEST(a_projector_alone_asks_for_its_own_gradients_and_no_others)
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

static size_t activations_of(const struct fixture *f, int32_t max_tok, int32_t max_images)
{
    dt_memory plan;
    dt_model_options opt = ref_options(max_tok, 64, DT_F32);
    opt.max_images = max_images;
    assert_int_equal(dt_model_plan(&f->r.mc, &opt, f->r.units, f->r.n_units, &f->r.dev, &plan), DT_OK);
    return plan.at[DT_MEM_ACTIVATIONS][DT_ON_DEVICE];
}

/* Frozen, it needs no more than the rows that the projector gets and makes, each in lines of 64 bytes, unless it needs
 * more than the language model has. */
TEST(a_frozen_tower_works_in_the_activations_of_the_language_model)
{
    enum { IMAGES = 8, ROWS = 9, SMALL = 2 };
    static const size_t widths[] = {1, 16, 20, 20, 20}; /* which features; these; before and after the activation; y */
    struct fixture f;
    size_t rows = 0;
    open_part(&f, "clip_llama", DT_F32, DT_RECOMPUTE_NONE, text_alone);
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
        rows += (IMAGES * ROWS * widths[i] * sizeof(float) + 63) / 64 * 64;
    assert_int_equal(activations_of(&f, MAX_TOK, IMAGES) - activations_of(&f, MAX_TOK, 0), rows);
    assert_true(activations_of(&f, SMALL, IMAGES) - activations_of(&f, SMALL, 0) > rows);
    dt_units_choose_trained(f.r.units, f.r.n_units, all, NULL);
    assert_true(activations_of(&f, MAX_TOK, IMAGES) - activations_of(&f, MAX_TOK, 0) > 2 * rows); /* gradients, too */
    close_fixture(&f);
}

/* Under ZeRO-3 all ranks must take units in one order. */
TEST(units_are_taken_in_one_order_with_images_without_and_without_tokens)
{
    struct fixture f;
    char *order[3];
    open_fixture(&f, "clip_llama", DT_F32);
    for (int k = 0; k < 3; k++) {
        fill(&f, 0);
        if (k > 0) ref_batch_fill(&f.b, 60, 0, k == 1 ? f.n_seq : 0, f.lens, 0), f.shown->n = 0;
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

TEST(recomputation_leaves_the_bits_of_gradients) { check_recomputed("siglip_qwen2"); }

static double loss_at(struct fixture *f, int unit, int64_t i, double value)
{
    double loss;
    ref_set_param(&f->r, unit, i, value);
    assert_int_equal(ref_model_loss(&f->r, &f->b, true, 3, &loss, NULL), DT_OK);
    return loss;
}

/* The last image is that of the first sequence, too: in the batch twice, or shared. */
static void show_again(struct fixture *f, bool shared)
{
    const size_t n = f->shown->image_nbytes;
    fill(f, 0);
    memcpy(f->shown->pixels, f->shown->pixels + 2 * n, n);
    if (!shared) return;
    memmove(f->shown->pixels, f->shown->pixels + n, 2 * n);
    f->shown->n = 2;
    f->shown->first[0] = 1;
    f->shown->first[2] = 0;
}

/* Rounding alone: features of 2 images and of 3 are rows of other matmuls, and gradients are added up in another
 * order. */
TEST(sequences_that_share_an_image_have_the_gradients_of_copies)
{
    for (int c = 0; c < N_CASES; c++) {
        struct fixture copied, f;
        double loss[2];
        open_fixture(&copied, CASES[c], DT_F32);
        open_fixture(&f, CASES[c], DT_F32);
        show_again(&copied, false);
        show_again(&f, true);
        assert_int_equal(ref_model_grads(&copied.r, &copied.b, 0, 1, &loss[0]), DT_OK);
        assert_int_equal(ref_model_grads(&f.r, &f.b, 0, 1, &loss[1]), DT_OK);
        assert_near("loss", CASES[c], loss[0], loss[1], 2e-6);
        for (int u = 0; u < f.r.n_units; u++)
            for (int i = 0; i < f.r.units[u].n_tensors; i++) {
                const dt_tensor *t = &f.r.units[u].tensors[i];
                double sum = 0;
                for (int64_t e = 0; t->trainable && e < t->n_elems; e++)
                    sum += pow(ref_grad(&copied.r, u, t->offset + e), 2);
                for (int64_t e = 0; t->trainable && e < t->n_elems; e++) /* as in check_grad */
                    assert_near("gradient", t->name, ref_grad(&copied.r, u, t->offset + e),
                                ref_grad(&f.r, u, t->offset + e), 6e-6 * sqrt(sum) + 2e-8);
            }
        close_fixture(&f);
        close_fixture(&copied);
    }
}

/* The same step drops the same elements, so the loss is differentiable; the tested slopes are of size 0.1. Logits
 * are right to 1e-6, so is the loss, and its difference over 2 h to 1e-4; h^2 / 6 times third derivatives of up to
 * 30 (17 was seen, where two sequences share an image: the error grows with h^2) is 1.3e-4. A mask that backward did
 * not apply, or one of two places forgotten, would be off by as much as a slope. */
static void check_slopes(bool shared)
{
    const double h = 0.005;
    struct fixture f;
    double kept, dropped;
    open_with(&f, "deep_mlp", 0.3, false, DT_F32, DT_RECOMPUTE_NONE, all);
    if (shared) show_again(&f, true);
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

TEST(gradients_of_a_projector_with_dropout_are_the_slopes)
{
    check_slopes(false);
    check_slopes(true);
}

/* The rows of an image in a pass with dropout: [n_tokens, hidden_size], the first being that of token `first`. */
static float *rows_of(struct fixture *f, int32_t first)
{
    const int64_t C = f->r.mc.hidden_size, n = f->r.mc.vision->n_tokens * C;
    float *hidden = calloc((size_t)(MAX_TOK * C), sizeof *hidden), *rows = calloc((size_t)n, sizeof *rows);
    assert_int_equal(dt_model_forward(f->r.model, &f->b, true, 3), DT_OK);
    assert_int_equal(dt_model_hidden_states(f->r.model, &f->b, hidden), DT_OK);
    memcpy(rows, hidden + first * C, (size_t)n * sizeof *rows);
    free(hidden);
    return rows;
}

/* What is dropped goes by the sample, not by the place in a batch: the same image twice, of which one is dropped
 * otherwise than the other, and one as in a batch of its own. */
TEST(dropout_of_a_projector_goes_by_the_sample)
{
    struct fixture f;
    open_with(&f, "deep_mlp", 0.3, false, DT_F32, DT_RECOMPUTE_NONE, all);
    make_transparent(&f);
    const int32_t second = f.b.seq_start[2] + 1;
    const size_t nbytes = (size_t)(f.r.mc.vision->n_tokens * f.r.mc.hidden_size) * sizeof(float);
    uint64_t key[MAX_TOK];
    memcpy(f.shown->pixels + f.shown->image_nbytes, f.shown->pixels, f.shown->image_nbytes);
    memcpy(key, f.b.token_key, sizeof key);
    float *here = rows_of(&f, 1), *there = rows_of(&f, second);
    assert_memory_not_equal(here, there, nbytes);
    for (int32_t n = 0; n < f.r.mc.vision->n_tokens; n++) f.b.token_key[second + n] = key[1 + n];
    float *as_here = rows_of(&f, second);
    assert_memory_equal(here, as_here, nbytes);
    free(here), free(there), free(as_here);
    close_fixture(&f);
}

/* Images and what is dropped of them are on their way to the device when the next batch comes. */
TEST(the_next_batch_waits_until_the_images_of_this_one_are_on_the_device)
{
    struct fixture f, alone;
    float u[MAX_TOK];
    open_with(&alone, "deep_mlp", 0.3, false, DT_F32, DT_RECOMPUTE_NONE, all);
    open_with(&f, "deep_mlp", 0.3, false, DT_F32, DT_RECOMPUTE_NONE, all);
    assert_int_equal(ref_model_grads(&alone.r, &alone.b, 0, 1, NULL), DT_OK);
    assert_int_equal(ref_model_loss(&f.r, &f.b, false, 0, NULL, NULL), DT_OK); /* weights are there: no more waits */
    for (int64_t i = 0; i < f.b.n_target; i++)
        u[i] = (float)((double)f.b.weight[f.b.target_row[i]] / (double)f.b.n_target);
    assert_int_equal(dt_model_forward(f.r.model, &f.b, true, 0), DT_OK);
    assert_int_equal(dt_model_head(f.r.model, &f.b, &(dt_head_pass){.inv_temperature = 1, .u = u}, NULL), DT_OK);
    assert_int_equal(dt_model_backward(f.r.model, &f.b), DT_OK);
    fill(&f, 1);
    assert_int_equal(dt_model_forward(f.r.model, &f.b, true, 0), DT_OK);
    for (int k = 0; k < f.r.n_units; k++)
        assert_near("distance of gradients", f.r.units[k].name, 0, distance_of_grads(&f, &alone, k), 0);
    close_fixture(&f);
    close_fixture(&alone);
}

/* model.dropout, and tasks that have none, mean all of a model. */
TEST(the_dropout_of_the_run_applies_to_the_projector)
{
    struct fixture f;
    open_with(&f, "mlp", 0.3, false, DT_F32, DT_RECOMPUTE_NONE, all);
    dt_model_config_set_dropout(&f.r.mc, -1);
    assert_true(f.r.mc.vision->projector.dropout == 0.3);
    dt_model_config_set_dropout(&f.r.mc, 0);
    assert_true(f.r.mc.vision->projector.dropout == 0);
    close_fixture(&f);
}

/* The row of the placeholder's token gets a gradient only from a tied head. */
TEST(the_placeholder_embedding_gets_no_gradient)
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

/* One placeholder is enough for a whole image here. */
TEST(a_text_does_not_take_the_images_of_its_neighbours)
{
    struct fixture f;
    open_fixture(&f, "pooled", DT_F32);
    assert_true(f.images[1] == 0 && f.images[2] == 2 && f.r.mc.vision->n_tokens == 1);
    f.b.token[f.b.seq_start[1] + 1] = f.r.mc.vision->image_token;
    assert_refused(&f, "1 placeholder (token 60) for 0 images");
    close_fixture(&f);
}

TEST(placeholders_that_are_not_those_of_the_images_are_refused)
{
    struct fixture f;
    open_fixture(&f, "clip_llama", DT_F32);
    f.b.token[0] = f.r.mc.vision->image_token;
    assert_refused(&f, "10 placeholders (token 60) for 1 image: expected 9 for each image");
    fill(&f, 0);
    f.shown->n = 2;
    assert_refused(&f, "18 placeholders (token 60) for 2 images, from image 1 of 2");
    fill(&f, 0);
    f.shown->count[2] = 1;
    assert_refused(&f, "18 placeholders (token 60) for 1 image: expected 9");
    fill(&f, 0);
    f.shown->n = 4;
    assert_refused(&f, "image 3 of a batch of 4 has no placeholders");
    fill(&f, 0);
    f.shown->first[2] = -1;
    assert_refused(&f, "18 placeholders (token 60) for 2 images, from image -1 of 3");
    fill(&f, 0);
    f.shown->image_nbytes -= 3;
    assert_refused(&f, "expects 14 x 14 pixels");
    f.shown->image_nbytes += 3;
    close_fixture(&f);
}

/* With one tower, features depend only on their own image, not on the rest of the batch. */
TEST(an_image_is_visible_only_to_its_own_sequence)
{
    struct fixture f;
    float before[MAX_TOK], after[MAX_TOK];
    open_fixture(&f, "clip_full", DT_F32);
    assert_int_equal(ref_model_loss(&f.r, &f.b, false, 0, NULL, before), DT_OK);
    f.shown->pixels[0] ^= 0x80;
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
TEST(operations_of_an_image_are_those_of_its_rows)
{
    const double kernel = 16 * 48, block = 4 * 16 * 16 + 2 * 16 * 36, first = 16 * 20, second = 20 * 20;
    const double patches = 9, rows = 10, blocks = 2, square = 16 * rows * rows;
    struct fixture f;
    open_fixture(&f, "clip_llama", DT_F32);
    dt_unit *u = f.r.units;
    const int n = f.r.n_units;
    assert_true(dt_model_image_flops(&f.r.mc, u, n, false) ==
                4 * kernel * patches + blocks * (6 * block * rows + 12 * square) + 6 * (first + second) * patches);
    dt_units_choose_trained(u, n, projector_alone, NULL);
    const double forward = 2 * kernel * patches + blocks * (2 * block * rows + 4 * square);
    assert_true(dt_model_image_flops(&f.r.mc, u, n, false) == forward + (4 * first + 6 * second) * patches);
    dt_units_choose_trained(u, n, second_block_of_tower, NULL);
    assert_true(dt_model_image_flops(&f.r.mc, u, n, false) ==
                forward + 4 * block * rows + 8 * square + 4 * (first + second) * patches);
    dt_units_choose_trained(u, n, NULL, NULL);
    assert_true(dt_model_image_flops(&f.r.mc, u, n, false) == forward + 2 * (first + second) * patches);
    dt_vision_config *v = f.r.mc.vision;
    f.r.mc.vision = NULL;
    assert_true(dt_model_image_flops(&f.r.mc, u, n, false) == 0);
    f.r.mc.vision = v;
    close_fixture(&f);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
