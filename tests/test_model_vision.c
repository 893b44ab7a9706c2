/* test_model_vision.c - tiny vision-language models against what transformers computed (tests/make_vision_fixtures.py
 * wrote the files), and in 16 bits against themselves in fp32; their config.json.
 * DEVICES: cpu queue */
#include "cases.h"
#include "config_fixture.h"
#include "vision_fixture.h"

/* Pictures and patches of real towers. */
static const struct {
    const char *name;
    int64_t n_features;
} SIZES[] = {{"clip_b16_224", 196},      {"clip_l14_224", 256},    {"clip_l14_336", 577}, {"siglip_b16_224", 196},
             {"siglip_so400m_384", 729}, {"siglip_b16_512", 1024}, {"internvl_448", 1024}};
enum { N_SIZES = sizeof SIZES / sizeof SIZES[0] };

TEST(logits_loss_and_gradients_agree_with_transformers)
{
    for (int c = 0; c < N_CASES; c++) check_results(CASES[c]);
}

TEST(twenty_steps_of_adamw_give_the_losses_of_pytorch)
{
    for (int c = 0; c < N_CASES; c++) check_steps(CASES[c]);
}

TEST(losses_and_gradients_in_16_bits_are_those_of_fp32_but_for_rounding)
{
    for (int c = 0; c < N_CASES; c++) check_16_bits(CASES[c]);
}

/* ---- the tower's and the projector's own results; 16-bit types --------------------------------------------------- */

/* How far the rows of the first image are from transformers', as a part of their length; the largest difference. */
static double distance_of_features(struct fixture *f, double *largest)
{
    const json_t *rows = json_object_get(f->root, "features");
    const int64_t C = f->r.mc.hidden_size, N = f->r.mc.vision->n_tokens;
    float *hidden = calloc((size_t)(MAX_TOK * C), sizeof *hidden);
    double off = 0, length = 0;
    *largest = 0;
    assert_int_equal(json_array_size(rows), N);
    assert_int_equal(dt_model_forward(f->r.model, &f->b, false, 0), DT_OK);
    assert_int_equal(dt_model_hidden_states(f->r.model, &f->b, hidden), DT_OK);
    for (int64_t n = 0; n < N; n++)
        for (int64_t c = 0; c < C; c++) {
            const double want = number(json_array_get(json_array_get(rows, (size_t)n), (size_t)c));
            const double d = (double)hidden[(1 + n) * C + c] - want;
            off += d * d;
            length += want * want;
            *largest = fmax(*largest, fabs(d));
        }
    free(hidden);
    return sqrt(off / length);
}

/* A value is rounded by 0.4 times the unit of its type (2^-24, 2^-8, 2^-11) on average, some 25 times on its way
 * through blocks and projector: 2 units, as a random walk. 4 units bound what 16 bits make of it (1.1 to 2.1 were
 * seen: 4e-3 to 8e-3 in bf16). Both sides of fp32 round, and so do sums inside of matmuls, in chains that are the
 * longer the fewer values a register holds (18 units were seen with 8): 32. */
TEST(rows_of_images_are_those_of_transformers)
{
    for (int c = 0; c < N_CASES; c++)
        for (int t = DT_F32; t <= DT_F16; t++) {
            struct fixture f;
            double largest;
            open_fixture(&f, CASES[c], (dt_dtype)t);
            make_transparent(&f);
            const double found = distance_of_features(&f, &largest);
            assert_near("distance of rows", CASES[c], 0, found, t == DT_F32 ? 32 * UNIT[t] : 4 * UNIT[t]);
            if (t == DT_F32) assert_near("largest difference of rows", CASES[c], 0, largest, 1e-5);
            close_fixture(&f);
        }
}

/* ---- features alone ---------------------------------------------------------------------------------------------- */

/* Of the first n images of the batch, `at_once` of them at a time: [n, n_features, n_in]. */
static char *features_of(struct fixture *f, int n, int at_once, bool reproducible, size_t *nbytes)
{
    const size_t each = dt_vision_feature_nbytes(f->r.mc.vision, f->r.opt.dtype);
    const dt_model_options opt = {.dtype = f->r.opt.dtype,
                                  .grad_dtype = f->r.opt.dtype,
                                  .max_tok = 1,
                                  .max_seq = 1,
                                  .max_pos = 1,
                                  .max_images = at_once,
                                  .reproducible = reproducible};
    dt_model *m;
    dt_stream *stream;
    char *out = malloc((size_t)n * each);
    assert_non_null(out);
    assert_int_equal(dt_stream_open(&f->r.dev, &stream, "features"), DT_OK);
    assert_int_equal(dt_model_open(&m, &f->r.mc, &opt, f->r.units, f->r.n_units, &f->r.dev, &f->r.source, stream, NULL),
                     DT_OK);
    for (int i = 0; i < n; i += at_once) {
        const int k = n - i < at_once ? n - i : at_once;
        assert_int_equal(dt_model_features(m, f->shown->pixels + (size_t)i * f->shown->image_nbytes, NULL, k,
                                           out + (size_t)i * each),
                         DT_OK);
    }
    assert_int_equal(dt_model_features(m, NULL, NULL, 0, NULL), DT_OK); /* a rank that has no image */
    dt_model_close(m);
    dt_stream_close(&f->r.dev, stream);
    *nbytes = (size_t)n * each;
    return out;
}

/* Where number e of row r of an image's features comes from, among the tower's rows. */
static double expected_feature(const struct fixture *f, int image, int64_t r, int64_t e)
{
    const dt_vision_config *v = f->r.mc.vision;
    const int64_t C = v->blocks->hidden_size, s = v->projector.shuffle, G = v->n_side / s, ab = e / C;
    const int64_t row = s == 1 ? r : (r / G * s + ab / s) * v->n_side + r % G * s + ab % s;
    const json_t *rows = json_array_get(json_object_get(f->root, "tower_features"), (size_t)image);
    return number(json_array_get(json_array_get(rows, (size_t)row), (size_t)(e % C)));
}

TEST(features_are_those_of_transformers)
{
    for (int c = 0; c < N_CASES; c++) {
        struct fixture f;
        size_t nbytes;
        open_fixture(&f, CASES[c], DT_F32);
        const int64_t N = f.r.mc.vision->n_features, W = f.r.mc.vision->projector.n_in;
        char *features = features_of(&f, 2, 2, false, &nbytes);
        const float *found = (const float *)(const void *)features;
        for (int image = 0; image < 2; image++)
            for (int64_t r = 0; r < N; r++)
                for (int64_t e = 0; e < W; e++)
                    assert_near("a feature", CASES[c], expected_feature(&f, image, r, e),
                                (double)found[(image * N + r) * W + e], 1e-5);
        free(features);
        close_fixture(&f);
    }
}

/* Each to 1e-5, so the product of a row with values below 1/2, as a random walk, to sqrt(C) / 2 of that. */
static void check_rows(const struct fixture *f, const char *name, const float *found)
{
    const int64_t C = f->r.mc.vision->blocks->hidden_size, N = f->r.mc.vision->n_features;
    const json_t *products = json_object_get(f->root, "products"), *row;
    const char *number_of;
    json_object_foreach(json_object_get(f->root, "rows"), number_of, row)
    {
        const int64_t r = strtoll(number_of, NULL, 10);
        assert_int_equal(json_array_size(row), C);
        for (int64_t e = 0; e < C; e++)
            assert_near("a feature", name, number(json_array_get(row, (size_t)e)), (double)found[r * C + e], 1e-5);
    }
    assert_int_equal(json_array_size(products), N);
    for (int64_t r = 0; r < N; r++) {
        double product = 0;
        for (int64_t e = 0; e < C; e++) product += (double)found[r * C + e] * ref_number("row", e);
        assert_near("a row's product", name, number(json_array_get(products, (size_t)r)), product,
                    1e-5 * sqrt((double)C) / 2);
    }
}

TEST(images_and_patches_of_real_towers_agree_with_transformers)
{
    for (int c = 0; c < N_SIZES; c++) {
        struct fixture f;
        size_t nbytes;
        double loss;
        open_fixture(&f, SIZES[c].name, DT_F32);
        assert_int_equal(f.r.mc.vision->n_features, SIZES[c].n_features);
        char *features = features_of(&f, 1, 1, false, &nbytes);
        check_rows(&f, SIZES[c].name, (const float *)(const void *)features);
        free(features);
        ref_model_forget_grads(&f.r);
        assert_int_equal(ref_model_grads(&f.r, &f.b, 0, 1, &loss), DT_OK);
        assert_near("loss", SIZES[c].name, number(json_object_get(f.root, "loss")), loss, 2e-6);
        /* that of the keys' biases is a sum over patches, 0 but for rounding: 2e-8 for 16 of them */
        check_grads(f.root, &f.r, 2e-8 * sqrt((double)SIZES[c].n_features / 16));
        close_fixture(&f);
    }
}

TEST(features_have_the_same_bits_whatever_they_are_made_with)
{
    const dt_dtype types[] = {DT_F32, DT_BF16};
    for (int c = 0; c < N_CASES; c++)
        for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
            struct fixture f;
            size_t nbytes;
            open_fixture(&f, CASES[c], types[t]);
            char *alone = features_of(&f, 3, 1, true, &nbytes), *together = features_of(&f, 3, 3, true, &nbytes);
            assert_memory_equal(alone, together, nbytes);
            assert_memory_not_equal(alone, alone + nbytes / 3, nbytes / 3);
            free(alone);
            free(together);
            close_fixture(&f);
        }
}

/* ---- config.json ---- */

#define LLAVA                                                                                                          \
    "{'model_type': 'llava', 'text_config': {'model_type': 'llama', 'hidden_size': 8, "                                \
    "'num_attention_heads': 2, 'intermediate_size': 8, 'num_hidden_layers': 1}, 'vision_config': "                     \
    "{'model_type': 'clip_vision_model', 'hidden_size': 8, 'num_attention_heads': 2, 'image_size': 8, "                \
    "'patch_size': 4}, 'image_token_index': 3"

/* By the rules of dtrain-data: one number for all colours is as good as three, and another class's are its own. */
TEST(a_preprocessor_is_read_as_dtrain_data_reads_it)
{
    dt_model_config mc = parsed(LLAVA "}");
    assert_int_equal(mc.vision->preprocessor.out_width, 0);
    assert_true(mc.vision->scale[0] == (float)(1 / 255.0 / 0.26862954));
    assert_int_equal(dt_model_config_set_preprocessor(
                         &mc, "data", quoted("{'image_processor_type': 'SiglipImageProcessor', 'image_mean': 0.25}")),
                     DT_OK);
    dt_model_config again = parsed(mc.json);
    for (int i = 0; i < 2; i++) {
        const dt_vision_config *v = i ? again.vision : mc.vision;
        assert_true(v->preprocessor.out_width == 224 && !v->preprocessor.json);
        assert_true(v->scale[2] == (float)(1 / 255.0 / 0.5) && v->shift[1] == -0.5f);
    }
    assert_int_equal(n_differences(&mc, &again), 0);
    assert_int_equal(dt_model_config_set_preprocessor(&mc, "data", quoted("{'image_processor_type': 5}")), DT_ERR_DATA);
    assert_int_equal(n_differences(&mc, &again), 0);
    dt_error_clear();
    assert_int_equal(dt_model_config_set_preprocessor(
                         &mc, "data", quoted("{'image_processor_type': 'CLIPImageProcessor', 'note': '\\u0000'}")),
                     DT_ERR_DATA); /* which no config.json may have */
    assert_says("data:1:");
    dt_error_clear();
    dt_model_config_free(&again);
    dt_model_config_free(&mc);
    assert_fails(dt_model_config_parse(
                     &mc, "c", quoted(LLAVA ", 'preprocessor_config': {'image_processor_type': 'ViTImageProcessor'}}")),
                 DT_ERR_DATA, "preprocessor_config.image_processor_type");
}

/* Each size is allowed, all of them together are not. */
TEST(towers_and_projectors_beyond_any_memory_are_named)
{
    static const char *const bad[][3] = {
        {"'hidden_size': 1099511627776", "", "vision_config.hidden_size: expected an integer from 1 to 1048576"},
        {"'num_hidden_layers': 1000000000", "", "vision_config.num_hidden_layers: expected an integer from 1 to 4096"},
        {"'hidden_size': 1048576, 'num_hidden_layers': 4096", "", "vision_config.hidden_size, intermediate_size"},
        {"'intermediate_size': 4194304, 'hidden_size': 1048576", "", "vision_config.hidden_size, intermediate_size"},
        {"'hidden_size': 1048576, 'num_hidden_layers': 1, 'image_size': 16384, 'patch_size': 1", "",
         "image_size, patch_size: expected at most 17592186044416 parameters"},
        {"'hidden_size': 1200", ", 'projector_type': 'deep_mlp', 'projector_hidden_size': 4194304",
         "c: projector_hidden_size, projector_shuffle: expected a projector of at most 17592186044416 parameters"},
        {"'hidden_size': 262144, 'num_hidden_layers': 1, 'image_size': 4096, 'patch_size': 1",
         ", 'projector_type': 'pixel_shuffle', 'projector_shuffle': 4096, 'vision_feature_select_strategy': 'full'",
         "c: projector_hidden_size, projector_shuffle: expected a projector of at most"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[2048];
        dt_model_config mc;
        snprintf(text, sizeof text,
                 "{'model_type': 'llava', 'text_config': {'model_type': 'llama'}, 'vision_config': {'model_type': "
                 "'siglip_vision_model', 'num_attention_heads': 1, %s}%s}",
                 bad[i][0], bad[i][1]);
        dt_error_clear();
        assert_int_equal(dt_model_config_parse(&mc, "c", quoted(text)), DT_ERR_DATA);
        if (!strstr(dt_error_message(), bad[i][2])) fail_msg("%zu: '%s'", i, dt_error_message());
    }
}

TEST(gemma_3_is_read_and_its_mistakes_are_named)
{
    static const char *const bad[][2] = {
        {"'mm_tokens_per_image': 8", "mm_tokens_per_image: expected the square of a divisor of 6"},
        {"'mm_tokens_per_image': 16", "mm_tokens_per_image: expected the square of a divisor of 6"},
        {"'eoi_token_id': 99", "eoi_token_id: expected an id below vocab_size = 61"},
        {"'boi_token_index': 99", "boi_token_index: expected an id below vocab_size = 61"},
        {"'image_token_index': 61", "image_token_index: expected an id below vocab_size = 61"},
        {"'quantization_config': {}", "quantization_config.quant_method: expected bitsandbytes"},
        {"'vision_config': {'model_type': 'clip_vision_model'}",
         "vision_config.model_type: expected siglip_vision_model"},
        {"'vision_config': 1", "vision_config: expected an object"},
        {"'text_config': {'attn_logit_softcapping': 1}", "text_config.attn_logit_softcapping: expected null"},
        {"'text_config': {'vocab_size': 61, 'final_logit_softcapping': 30}",
         "text_config.final_logit_softcapping: expected null"},
    };
    const char *const good = "'model_type': 'gemma3', 'boi_token_index': 58, 'eoi_token_index': 59, "
                             "'image_token_index': 60, 'text_config': {'vocab_size': 61, 'hidden_size': 20}, "
                             "'vision_config': {'image_size': 25, 'patch_size': 4, 'layer_norm_eps': 0.5}, "
                             "'mm_tokens_per_image': 9";
    dt_model_config mc;
    char text[2048];
    snprintf(text, sizeof text, "{%s}", good);
    if (dt_model_config_parse(&mc, "c", quoted(text)) != DT_OK) fail_msg("%s", dt_error_message());
    const dt_vision_config *v = mc.vision;
    assert_true(v->projector.average == 2 && v->n_tokens == 9 && v->both_ways && v->feature_norm && v->n_used == 12);
    assert_true(v->around[0] == 58 && v->around[1] == 59 && dt_vision_text_token(v) == 58 && v->image_token == 60);
    assert_true(mc.tie_word_embeddings && v->projector.n_in == 768 && v->projector.n_out == 20);
    dt_model_config_free(&mc);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(text, sizeof text, "{%s, %s}", good, bad[i][0]);
        json_t *root = json_loads(quoted(text), 0, NULL); /* the last of two keys counts */
        char *once = json_dumps(root, 0);
        dt_error_clear();
        assert_int_equal(dt_model_config_parse(&mc, "c", once), DT_ERR_DATA);
        json_decref(root);
        free(once);
        if (!strstr(dt_error_message(), bad[i][1])) fail_msg("%s: '%s'", bad[i][0], dt_error_message());
    }
}

TEST(internvl_is_read_and_its_mistakes_are_named)
{
    static const char *const bad[][2] = {
        {"'downsample_ratio': 0.3", "downsample_ratio: expected 1, 0.5 or 0.25"},
        {"'downsample_ratio': 0.25", "downsample_ratio: expected 1, 0.5 or 0.25, whose inverse divides"},
        {"'vision_feature_select_strategy': 'full'", "vision_feature_select_strategy: expected default"},
        {"'vision_feature_layer': 5", "vision_feature_layer: expected an integer from -5 to 4"},
        {"'image_token_id': 61", "image_token_id: expected an id below vocab_size = 61"},
        {"'quantization_config': {}", "quantization_config.quant_method: expected bitsandbytes"},
        {"'text_config': {'model_type': 'gemma2'}", "text_config.model_type: expected llama"},
        {"'text_config': {}", "text_config.model_type: expected llama"},
        {"'vision_config': 1", "vision_config: expected an object"},
        {"'vision_config': {'model_type': 'clip_vision_model'}", "vision_config.model_type: expected internvl_vision"},
        {"'vision_config': {'image_size': [448, 449]}", "vision_config.image_size: expected two equal integers"},
        {"'vision_config': {'patch_size': [14]}", "vision_config.patch_size: expected two equal integers"},
        {"'vision_config': {'image_size': 8}", "vision_config.patch_size: expected at most image_size"},
        {"'vision_config': {'norm_type': 'none'}", "vision_config.norm_type: expected layer_norm or rms_norm"},
        {"'vision_config': {'use_qk_norm': true, 'layer_norm_eps': 1e-5}",
         "vision_config.layer_norm_eps: expected 1e-6"},
        {"'vision_config': {'use_mean_pooling': false}", "vision_config.use_mean_pooling: expected true"},
        {"'vision_config': {'use_mask_token': true}", "vision_config.use_mask_token: expected false"},
        {"'vision_config': {'use_absolute_position_embeddings': false}",
         "vision_config.use_absolute_position_embeddings: expected true"},
        {"'vision_config': {'projection_dropout': 0.1}", "vision_config.projection_dropout: expected 0"},
        {"'preprocessor_config': {'image_processor_type': 'CLIPImageProcessor'}",
         "image_processor_type: expected GotOcr2ImageProcessor for the tower internvl"},
        {"'preprocessor_config': {'image_processor_type': 'GotOcr2ImageProcessor', 'min_patches': 13}",
         "preprocessor_config.min_patches: expected at most max_patches"},
        {"'preprocessor_config': {'image_processor_type': 'GotOcr2ImageProcessor', 'size': {'height': 4, 'width': 5}}",
         "preprocessor_config.size: expected equal height and width"},
    };
    const char *const good =
        "'model_type': 'internvl', 'image_token_id': 60, 'text_config': {'model_type': 'qwen2', "
        "'vocab_size': 61, 'hidden_size': 20, 'num_attention_heads': 2, 'num_key_value_heads': 2}, 'vision_config': "
        "{'num_hidden_layers': 4, 'image_size': [84, 84]}";
    dt_model_config mc;
    char text[2048];
    snprintf(text, sizeof text, "{%s}", good);
    if (dt_model_config_parse(&mc, "c", quoted(text)) != DT_OK) fail_msg("%s", dt_error_message());
    const dt_vision_config *v = mc.vision;
    assert_true(v->tiles && !v->grids && dt_vision_has_cells(v) && v->n_tokens == 9 && v->n_rows == 37);
    assert_true(v->blocks->hidden_size == 1024 && v->blocks->intermediate_size == 4096 && !v->blocks->qkv_bias);
    assert_true(v->image_token == 60 && dt_vision_text_token(v) == 60 && v->n_used == 4 && v->drop_first);
    assert_true(mc.tie_word_embeddings && v->projector.n_in == 4096 && v->projector.hidden_size == 20);
    dt_model_config_free(&mc);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(text, sizeof text, "{%s, %s}", good, bad[i][0]);
        json_t *root = json_loads(quoted(text), 0, NULL); /* the last of two keys counts */
        char *once = json_dumps(root, 0);
        dt_error_clear();
        if (dt_model_config_parse(&mc, "c", once) != DT_ERR_DATA) fail_msg("%s is accepted", bad[i][0]);
        json_decref(root);
        free(once);
        if (!strstr(dt_error_message(), bad[i][1])) fail_msg("%s: '%s'", bad[i][0], dt_error_message());
    }
}

/* What transformers takes, too: keys of older files, and either of two that tie. */
TEST(what_llava_leaves_out_is_filled_in)
{
#define BARE(layer, tied, of_text)                                                                                     \
    "{'model_type': 'llava', 'tie_word_embeddings': " tied                                                             \
    ", 'text_config': {'model_type': 'llama', 'tie_word_embeddings': " of_text                                         \
    ", 'hidden_size': 8, 'num_attention_heads': 2, 'intermediate_size': 8, 'num_hidden_layers': 1}, "                  \
    "'vision_config': {'hidden_size': 8, 'num_attention_heads': 2, 'image_size': 8, 'patch_size': 4}, "                \
    "'image_token_index': 3, 'vision_feature_layer': " layer "}"
    dt_model_config a = parsed(BARE("[-3]", "false", "true")), b = parsed(BARE("-3", "true", "false")),
                    c = parsed(BARE("-3", "false", "false"));
    assert_ptr_equal(a.vision->tower, dt_tower_find("clip"));
    assert_int_equal(a.vision->n_used, 10);
    assert_int_equal(n_differences(&a, &b), 0);
    assert_true(a.tie_word_embeddings && b.tie_word_embeddings && !c.tie_word_embeddings);
    dt_model_config_free(&a);
    dt_model_config_free(&b);
    dt_model_config_free(&c);
    assert_fails(dt_model_config_parse(&a, "c", quoted(BARE("[-2, -3]", "true", "true"))), DT_ERR_DATA,
                 "c: vision_feature_layer: expected one hidden state");
#undef BARE
}

TEST(towers_and_projectors_are_compared)
{
    dt_model_config a = parsed(LLAVA "}");
    dt_model_config blocks = *a.vision->blocks;
    dt_vision_config v = *a.vision;
    dt_model_config b = a;
    b.vision = &v;
    v.blocks = &blocks;
#define OTHER(member, value)                                                                                           \
    do {                                                                                                               \
        v = *a.vision, v.blocks = &blocks, blocks = *a.vision->blocks;                                                 \
        assert_int_equal(n_differences(&a, &b), 0);                                                                    \
        v.member = value;                                                                                              \
        if (n_differences(&a, &b) != 1) fail_msg("%s: %d differences, expected 1", #member, n_differences(&a, &b));    \
    } while (0)
    OTHER(tower, dt_tower_find("siglip"));
    OTHER(blocks->hidden_size, 16);
    OTHER(blocks->intermediate_size, 16);
    OTHER(blocks->num_attention_heads, 1);
    OTHER(blocks->norm_eps, 1e-6);
    OTHER(blocks->act, DT_ACT_GELU);
    OTHER(n_blocks, 1);
    OTHER(image_size, 9);
    OTHER(patch_size, 1);
    OTHER(n_used, 1);
    OTHER(drop_first, false);
    OTHER(image_token, 1);
    OTHER(projector.type, DT_PROJECTOR_LINEAR);
    OTHER(projector.hidden_size, 1);
    OTHER(projector.shuffle, 2);
    OTHER(projector.bias, false);
    OTHER(projector.act, DT_ACT_RELU);
    OTHER(preprocessor.rescale_factor, 1);
    OTHER(preprocessor.mean[1], 0.5);
    OTHER(preprocessor.std[2], 0.5);
#undef OTHER
    /* one that is known against one that is not: the numbers; two that are known: all */
    v = *a.vision;
    v.preprocessor.crop_width = v.preprocessor.crop_height = v.preprocessor.out_width = v.preprocessor.out_height = 8;
    assert_int_equal(n_differences(&a, &b), 0);
    a.vision->preprocessor = v.preprocessor;
    assert_int_equal(n_differences(&a, &b), 0);
    v.preprocessor.resample = DT_BILINEAR, v.preprocessor.shortest_edge = 8;
    assert_int_equal(n_differences(&a, &b), 1);
    dt_model_config_free(&a);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
