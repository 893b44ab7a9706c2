/* test_model_grids.c - tiny models whose images are grids of cells (Qwen2.5-VL, Qwen3-VL, Qwen3.5), against what
 * transformers computed (tests/make_grid_fixtures.py wrote the files).
 * DEVICES: cpu queue */
#include "cases.h"
#include "config_fixture.h"
#include "vision_fixture.h"
#include "dtrain/io/io.h"
#include <inttypes.h>

static const char *const GRIDS[] = {"qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"};
enum { N_GRIDS = sizeof GRIDS / sizeof GRIDS[0] };

TEST(logits_loss_and_gradients_agree_with_transformers)
{
    for (int c = 0; c < N_GRIDS; c++) check_results(GRIDS[c]);
}

TEST(twenty_steps_of_adamw_give_the_losses_of_pytorch)
{
    for (int c = 0; c < N_GRIDS; c++) check_steps(GRIDS[c]);
}

TEST(recomputed_activations_give_the_same_gradients)
{
    for (int c = 0; c < N_GRIDS; c++) check_recomputed(GRIDS[c]);
}

TEST(losses_and_gradients_in_16_bits_are_those_of_fp32_but_for_rounding)
{
    for (int c = 0; c < N_GRIDS; c++) check_16_bits(GRIDS[c]);
}

/* ---- frozen parts ------------------------------------------------------------------------------------------------ */

static bool projector_only(void *self, const dt_tensor *t)
{
    return strncmp(t->name, "multi_modal_projector.", strlen("multi_modal_projector.")) == 0;
}

TEST(a_projector_trains_alone)
{
    for (int c = 0; c < N_GRIDS; c++) {
        struct fixture f;
        double loss;
        size_t n_checked = 0;
        open_part(&f, GRIDS[c], DT_F32, DT_RECOMPUTE_NONE, projector_only);
        ref_model_forget_grads(&f.r);
        assert_int_equal(ref_model_grads(&f.r, &f.b, 0, 1, &loss), DT_OK);
        for (int u = 0; u < f.r.n_units; u++)
            for (int i = 0; i < f.r.units[u].n_tensors; i++)
                if (f.r.units[u].tensors[i].part == DT_TRAINED)
                    check_grad(f.root, &f.r, u, &f.r.units[u].tensors[i], 2e-8), n_checked++;
        assert_true(n_checked >= 4);
        close_fixture(&f);
    }
}

/* ---- images that two sequences share, batches that do not fit ---------------------------------------------------- */

/* Leave only the images of sequence s in the batch. */
static void keep_images(struct fixture *f, int s)
{
    const size_t first = (size_t)f->shown->first[s], n = (size_t)f->shown->count[s], nbytes = f->shown->image_nbytes;
    memmove(f->shown->pixels, f->shown->pixels + first * nbytes, n * nbytes);
    memmove(f->shown->grid, f->shown->grid + first, n * sizeof *f->shown->grid);
    f->shown->n = (int32_t)n;
    f->shown->first[s] = 0;
}

/* Both texts of a pair: the same tokens and images, so twice the same logits. */
TEST(sequences_share_images)
{
    for (int c = 0; c < N_GRIDS; c++) {
        struct fixture f;
        open_fixture(&f, GRIDS[c], DT_F32);
        const int64_t V = f.r.mc.vocab_size;
        const int32_t lens[] = {f.lens[2], f.lens[2]}, from = f.b.seq_start[2], n = f.lens[2];
        int32_t token[MAX_TOK];
        float *logits = calloc((size_t)(2 * V), sizeof *logits);
        memcpy(token, f.b.token + from, (size_t)n * sizeof *token);
        const int32_t count = f.shown->count[2];
        keep_images(&f, 2);
        ref_batch_fill(&f.b, 60, 0, 2, lens, 0);
        for (int s = 0; s < 2; s++) {
            memcpy(f.b.token + s * n, token, (size_t)n * sizeof *token);
            f.shown->first[s] = 0, f.shown->count[s] = count;
        }
        dt_batch_finish(&f.b);
        if (dt_model_forward(f.r.model, &f.b, false, 0) != DT_OK) fail_msg("%s", dt_error_message());
        assert_int_equal(dt_model_last_logits(f.r.model, &f.b, logits), DT_OK);
        const json_t *row = json_array_get(json_object_get(f.root, "logits"), 2);
        for (int s = 0; s < 2; s++)
            for (int64_t v = 0; v < V; v++)
                assert_near("logit", GRIDS[c], number(json_array_get(row, (size_t)v)), (double)logits[s * V + v], 2e-5);
        free(logits);
        close_fixture(&f);
    }
}

#define assert_refused(f, says) assert_fails(dt_model_forward((f)->r.model, &(f)->b, false, 0), DT_ERR_DATA, says)

TEST(grids_and_placeholders_that_do_not_fit_are_refused)
{
    struct fixture f;
    open_fixture(&f, GRIDS[0], DT_F32);
    f.shown->grid[0] = 0;
    assert_refused(&f, "an image of 0 x 0 cells begins at cell 0");
    f.shown->grid[0] = dt_grid_code(3, 4);
    assert_refused(&f, "begins at cell 12");
    f.shown->grid[0] = dt_grid_code(40, 4);
    assert_refused(&f, "expected all of its cells in the batch");
    fill(&f, 0);
    f.shown->grid[3] = 1;
    assert_refused(&f, "expected all of its cells in the batch");
    fill(&f, 0);
    f.b.token[3] = 1;
    dt_batch_finish(&f.b);
    assert_refused(&f, "placeholder");
    fill(&f, 0);
    f.b.token[3] = 1, f.b.token[20] = f.r.mc.vision->image_token;
    dt_batch_finish(&f.b);
    assert_refused(&f, "not contiguous");
    close_fixture(&f);
}

/* ---- generation -------------------------------------------------------------------------------------------------- */

/* One batch of tokens from .. to-1 of sequence 2, whose images are with its first tokens. */
static void decode_part(struct fixture *f, dt_model *m, const int32_t *token, int32_t from, int32_t to, int32_t slot)
{
    dt_batch b = f->b;
    int32_t start[2] = {0, to - from}, pos[MAX_TOK], full[1] = {0}, prompt[1] = {0};
    b.n_seq = 1, b.n_tok = to - from;
    b.seq_start = start, b.token = (int32_t *)token + from, b.pos = pos, b.full_len = full, b.prompt_len = prompt;
    for (int32_t i = from; i < to; i++) pos[i - from] = i;
    int32_t order[MAX_TOK];
    for (int32_t i = 0; i < to - from; i++) order[i] = i;
    b.order = order;
    const int32_t n = f->shown->n, first = f->shown->first[0], count = f->shown->count[0];
    if (from > 0) f->shown->n = f->shown->count[0] = 0;
    if (from == 0) f->shown->first[0] = f->shown->first[2], f->shown->count[0] = f->shown->count[2];
    if (dt_model_decode(m, &b, &slot) != DT_OK) fail_msg("%s", dt_error_message());
    f->shown->n = n, f->shown->first[0] = first, f->shown->count[0] = count;
}

/* The prompt with its images at once, then token by token; from a shared prompt, too. Logits are those of transformers
 * for the whole text. */
TEST(tokens_after_images_are_decoded_at_their_positions)
{
    for (int c = 0; c < N_GRIDS; c++) {
        struct fixture f;
        dt_model *m;
        dt_stream *stream;
        open_fixture(&f, GRIDS[c], DT_F32);
        const int64_t V = f.r.mc.vocab_size;
        const int32_t n = f.lens[2], n_prompt = n - 4;
        const dt_model_options opt = {.dtype = DT_F32,
                                      .grad_dtype = DT_F32,
                                      .max_tok = MAX_TOK,
                                      .max_seq = 2,
                                      .max_pos = 64,
                                      .max_images = MAX_CELLS,
                                      .cache_seqs = 2,
                                      .cache_len = 64,
                                      .cache_prompts = 1,
                                      .cache_prompt_len = 64,
                                      .batch_invariant = true};
        int32_t token[MAX_TOK];
        float *logits = calloc((size_t)V, sizeof *logits);
        memcpy(token, f.b.token + f.b.seq_start[2], (size_t)n * sizeof *token);
        keep_images(&f, 2);
        assert_int_equal(dt_stream_open(&f.r.dev, &stream, "decode"), DT_OK);
        assert_int_equal(dt_model_open(&m, &f.r.mc, &opt, f.r.units, f.r.n_units, &f.r.dev, &f.r.source, stream, NULL),
                         DT_OK);
        for (int way = 0; way < 2; way++) {
            const int32_t prompt = way == 0 ? 0 : dt_model_cache_prompt(m, 0), slot = way;
            decode_part(&f, m, token, 0, n_prompt, prompt);
            if (way == 1) {
                assert_int_equal(dt_model_cache_share(m, slot, prompt, n_prompt - 1), DT_ERR_USAGE);
                dt_error_clear();
                assert_int_equal(dt_model_cache_share(m, slot, prompt, n_prompt), DT_OK);
            }
            for (int32_t t = n_prompt; t < n; t++) decode_part(&f, m, token, t, t + 1, slot);
            dt_batch last = f.b;
            int32_t start[2] = {0, 1};
            last.n_seq = last.n_tok = 1, last.seq_start = start;
            assert_int_equal(dt_model_last_logits(m, &last, logits), DT_OK);
            const json_t *row = json_array_get(json_object_get(f.root, "logits"), 2);
            for (int64_t v = 0; v < V; v++)
                assert_near("logit", GRIDS[c], number(json_array_get(row, (size_t)v)), (double)logits[v], 2e-5);
        }
        assert_int_equal(dt_model_cache_keep(m, 0, n), n);
        assert_int_equal(dt_model_cache_keep(m, 0, n - 1), 0); /* positions before the images are not known */
        dt_model_close(m);
        dt_stream_close(&f.r.dev, stream);
        free(logits);
        close_fixture(&f);
    }
}

/* ---- images ------------------------------------------------------------------------------------------------------ */

static uint64_t fnv(const uint8_t *bytes, size_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++) h = (h ^ bytes[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* Sizes, pixels and their order, of files and settings of make_grid_run_fixtures.py. */
TEST(cells_are_those_of_transformers)
{
    json_t *all = json_load_file("tests/data/vision/grids/cells.json", 0, NULL), *one;
    size_t i;
    assert_true(json_array_size(all) >= 20);
    json_array_foreach(all, i, one)
    {
        char path[128], hash[17];
        dt_preprocessor p;
        dt_image image;
        int64_t rows, columns;
        const char *file = json_string_value(json_object_get(one, "file"));
        snprintf(path, sizeof path, "tests/data/image/files/%s", file);
        const dt_spec object = {.file = file, .value = json_object_get(one, "config")};
        assert_int_equal(dt_preprocessor_from(&object, &p), DT_OK);
        assert_int_equal(dt_image_read(path, &image), DT_OK);
        assert_int_equal(dt_image_grid(&p, file, &image, &rows, &columns), DT_OK);
        assert_int_equal(rows, json_integer_value(json_object_get(one, "rows")));
        assert_int_equal(columns, json_integer_value(json_object_get(one, "columns")));
        const size_t nbytes = (size_t)(rows * columns * p.cell * p.cell * 3);
        uint8_t *cells = malloc(nbytes);
        assert_int_equal(dt_image_prepare(&p, file, &image, cells), DT_OK);
        snprintf(hash, sizeof hash, "%016" PRIx64, fnv(cells, nbytes));
        if (strcmp(hash, json_string_value(json_object_get(one, "fnv"))) != 0)
            fail_msg("%s: %d x %d cells: other pixels", file, (int)rows, (int)columns);
        free(cells);
        dt_image_free(&image);
        dt_preprocessor_free(&p);
    }
    json_decref(all);
}

#define assert_no_preprocessor(object, says)                                                                           \
    assert_fails(dt_preprocessor_parse("p.json", quoted(object), strlen(object), &p), DT_ERR_DATA, says)

TEST(sizes_and_settings_that_do_not_fit_are_refused)
{
    dt_preprocessor p;
    int64_t rows, columns;
    const char *usual = quoted("{'image_processor_type': 'Qwen2VLImageProcessorFast'}");
    assert_int_equal(dt_preprocessor_parse("p.json", usual, strlen(usual), &p), DT_OK);
    assert_int_equal(dt_image_grid(&p, "long", &(dt_image){.width = 2010, .height = 10}, &rows, &columns), DT_ERR_DATA);
    dt_error_clear();
    assert_int_equal(dt_image_grid(&p, "long", &(dt_image){.width = 2000, .height = 10}, &rows, &columns), DT_OK);
    assert_true(rows == 1 && columns == 29);
    dt_preprocessor_free(&p);
    assert_no_preprocessor("{'image_processor_type': 'Qwen2VLImageProcessor', 'do_resize': false}", "do_resize");
    assert_no_preprocessor("{'image_processor_type': 'Qwen2VLImageProcessor', 'size': {'height': 3}}", "size");
    assert_no_preprocessor("{'image_processor_type': 'Qwen2VLImageProcessor', 'min_pixels': 9, 'max_pixels': 8}",
                           "shortest_edge");
    assert_no_preprocessor("{'image_processor_type': 'Qwen2VLImageProcessor', 'patch_size': 1000}",
                           "cells of at most 1024 pixels");
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

/* The first as published, with the keys of the language model in the object itself. */
TEST(published_models_have_their_numbers_of_parameters)
{
    assert_int_equal(n_parameters("{'model_type': 'qwen2_5_vl', 'hidden_size': 3584, 'intermediate_size': 18944, "
                                  "'num_hidden_layers': 28, 'num_attention_heads': 28, 'num_key_value_heads': 4, "
                                  "'vocab_size': 152064, 'max_position_embeddings': 128000, 'rope_theta': 1000000.0, "
                                  "'rms_norm_eps': 1e-06, 'use_sliding_window': false, 'sliding_window': 32768, "
                                  "'tie_word_embeddings': false, 'vision_config': {'depth': 32, 'in_chans': 3, "
                                  "'hidden_size': 1280, 'intermediate_size': 3420, 'num_heads': 16, 'patch_size': 14, "
                                  "'window_size': 112, 'out_hidden_size': 3584, 'fullatt_block_indexes': [7, 15, 23, "
                                  "31]}, 'rope_scaling': {'type': 'mrope', 'mrope_section': [16, 24, 24]}}"),
                     INT64_C(8292166656));
    assert_int_equal(n_parameters("{'model_type': 'qwen3_vl', 'tie_word_embeddings': false, 'text_config': "
                                  "{'model_type': 'qwen3_vl_text', 'hidden_size': 4096, 'intermediate_size': 12288, "
                                  "'num_hidden_layers': 36, 'num_attention_heads': 32, 'num_key_value_heads': 8, "
                                  "'head_dim': 128, 'vocab_size': 151936, 'rope_scaling': {'mrope_interleaved': true, "
                                  "'mrope_section': [24, 20, 20], 'rope_type': 'default'}}, 'vision_config': "
                                  "{'model_type': 'qwen3_vl', 'depth': 27, 'hidden_size': 1152, 'out_hidden_size': "
                                  "4096, 'intermediate_size': 4304, 'num_heads': 16, 'patch_size': 16, "
                                  "'deepstack_visual_indexes': [8, 16, 24], 'num_position_embeddings': 2304}}"),
                     INT64_C(8767123696));
    size_t nbytes;
    char *config;
    assert_int_equal(dt_read_file("input/models/qwen3-vl-30b-a3b.json", 1 << 16, &config, &nbytes), DT_OK);
    assert_int_equal(n_parameters(config), INT64_C(31070754032));
    free(config);
}

#define JOINED(kind, text, vision)                                                                                     \
    "{'model_type': '" kind "', 'image_token_id': 9, 'vision_start_token_id': 8, 'vision_end_token_id': 7, "           \
    "'text_config': {'hidden_size': 16, 'num_attention_heads': 2, 'num_key_value_heads': 1, 'head_dim': 8, "           \
    "'intermediate_size': 8, 'num_hidden_layers': 2, 'vocab_size': 10, 'rope_parameters': {"                           \
    "'mrope_section': " text "}}, 'vision_config': {'hidden_size': 16, 'depth': 3" vision "}}"

#define assert_bad(config, says)                                                                                       \
    assert_fails(dt_model_config_parse(&mc, "config.json", quoted(config)), DT_ERR_DATA, says)

TEST(bad_configurations_are_named)
{
    dt_model_config mc = parsed(JOINED("qwen2_5_vl", "[2, 1, 1]", ", 'num_heads': 2, 'out_hidden_size': 16"));
    assert_int_equal(mc.vision->window, 4);
    assert_int_equal(mc.vision->image_size, 28);
    dt_model_config_free(&mc);
    assert_bad(JOINED("qwen2_5_vl", "[2, 1, 2]", ""), "mrope_section");
    assert_bad(JOINED("qwen2_5_vl", "[2, 1]", ""), "three numbers of rotated pairs");
    assert_bad(JOINED("qwen2_5_vl", "[2, 1, 1], 'type': 'dynamic', 'factor': 2.0", ""), "several axes");
    assert_bad(JOINED("qwen2_5_vl", "[2, 1, 1]", ", 'num_heads': 2, 'out_hidden_size': 8"),
               "vision_config.out_hidden_size");
    assert_bad(JOINED("qwen2_5_vl", "[2, 1, 1]", ", 'num_heads': 8"), "a multiple of 4 elements");
    assert_bad(JOINED("qwen2_5_vl", "[2, 1, 1]", ", 'num_heads': 2, 'fullatt_block_indexes': [1, 1]"),
               "fullatt_block_indexes");
    assert_bad(JOINED("qwen2_5_vl", "[2, 1, 1]", ", 'num_heads': 2, 'in_channels': 1"), "in_channels");
    assert_bad(JOINED("qwen2_5_vl", "[2, 1, 1]", ", 'num_heads': 2, 'rope_parameters': {'rope_type': 'default'}"),
               "axial");
    assert_bad(JOINED("qwen3_vl", "[2, 1, 1]", ", 'num_heads': 2, 'deepstack_visual_indexes': [0, 1, 2]"),
               "deepstack_visual_indexes");
    assert_bad(JOINED("qwen3_vl", "[2, 1, 1]", ", 'num_heads': 2, 'deepstack_visual_indexes': [2, 1]"),
               "deepstack_visual_indexes");
    assert_bad(JOINED("qwen3_vl", "[2, 1, 1]",
                      ", 'num_heads': 2, 'deepstack_visual_indexes': [0], 'num_position_embeddings': 10"),
               "the square of an integer");
    assert_bad(
        "{'model_type': 'qwen2_5_vl', 'image_token_id': 9, 'vision_start_token_id': 8, 'vision_end_token_id': 7, "
        "'hidden_size': 16, 'num_attention_heads': 2, 'num_key_value_heads': 1, 'intermediate_size': 8, "
        "'num_hidden_layers': 1, 'vocab_size': 10, 'rope_scaling': {'type': 'mrope', 'mrope_section': [2, 1, 1]}, "
        "'vision_config': {'hidden_size': 16, 'num_heads': 2, 'out_hidden_size': 16, 'depth': 1}, "
        "'preprocessor_config': {'image_processor_type': 'Qwen2VLImageProcessor', 'patch_size': 7, "
        "'merge_size': 4}}",
        "patch_size, merge_size");
}

int main(void) { return run_listed(NULL, NULL, NULL); }
