// NEEDS: PCRE2
/* test_adapter.c - what [lora] puts into the tables of a model's units (algorithms.md 6.1). */

#include "cases.h"
#include "dtrain/adapter/adapter.h"

static const char LLAMA[] = "{\"model_type\": \"llama\", \"hidden_size\": 8, \"intermediate_size\": 12, "
                            "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
                            "\"vocab_size\": 16, \"max_position_embeddings\": 8, \"tie_word_embeddings\": true}";
static const char GPT2[] =
    "{\"model_type\": \"gpt2\", \"n_embd\": 8, \"n_layer\": 2, \"n_head\": 2, \"vocab_size\": 16, \"n_positions\": 8}";

static void assert_ok(dt_err err)
{
    if (err != DT_OK) fail_msg("%s", dt_error_message());
}

struct adapted {
    dt_model_config mc;
    dt_unit *units;
    int n_units;
    dt_lora lora;
    dt_err err;
};

static bool trains(void *self, const dt_tensor *t) { return dt_lora_trains(self, t); }

/* A model with the adapters that the lines of [lora] ask for; err: what the first that went wrong said. */
static void adapt(struct adapted *a, const char *json, int n_labels, const char *lora)
{
    char text[1024];
    dt_config cfg;
    *a = (struct adapted){0};
    snprintf(text, sizeof text, "[lora]\n%s", lora);
    assert_ok(dt_config_parse(&cfg, "input.ini", text, 0, NULL));
    assert_ok(dt_model_config_parse(&a->mc, "config.json", json));
    assert_ok(n_labels ? dt_model_make_value_units(&a->mc, n_labels, &a->units, &a->n_units)
                       : dt_model_make_units(&a->mc, &a->units, &a->n_units));
    a->err = dt_lora_from_keys(&a->lora, &cfg);
    if (a->err == DT_OK) a->err = dt_lora_attach(&a->lora, &a->mc, a->units, a->n_units);
    if (a->err == DT_OK) a->err = dt_lora_check_saved(&a->lora, &a->mc, a->units, a->n_units);
    if (a->err == DT_OK) dt_units_choose_trained(a->units, a->n_units, trains, &a->lora);
    if (a->err == DT_OK) a->err = dt_lora_store_base(&a->lora, a->units, a->n_units);
    dt_config_free(&cfg);
}

static void drop(struct adapted *a)
{
    dt_model_free_units(a->units, a->n_units);
    dt_model_config_free(&a->mc);
    dt_lora_free(&a->lora);
}

static const dt_tensor *find(const struct adapted *a, const char *name)
{
    for (int u = 0; u < a->n_units; u++)
        for (int i = 0; i < a->units[u].n_tensors; i++)
            if (strcmp(a->units[u].tensors[i].name, name) == 0) return &a->units[u].tensors[i];
    return NULL;
}

static int n_adapted(const struct adapted *a)
{
    dt_adapted at = {0};
    int n = 0;
    while (dt_adapted_next(&at, a->units, a->n_units)) n++;
    return n;
}

TEST(the_a_of_one_matmul_lie_together_and_the_base_is_frozen)
{
    struct adapted a;
    adapt(&a, LLAMA, 0, "r = 4\nalpha = 16\n");
    assert_ok(a.err);
    assert_int_equal(n_adapted(&a), 4); /* q and v of two blocks */
    const dt_tensor *qa = find(&a, "model.layers.1.self_attn.q_proj.lora_A.weight"),
                    *va = find(&a, "model.layers.1.self_attn.v_proj.lora_A.weight"),
                    *qb = find(&a, "model.layers.1.self_attn.q_proj.lora_B.weight"),
                    *vb = find(&a, "model.layers.1.self_attn.v_proj.lora_B.weight");
    assert_true(qa && va && qb && vb);
    assert_true(qa->shape[0] == 4 && qa->shape[1] == 8 && vb->shape[0] == 4 && vb->shape[1] == 4);
    assert_true(va->offset == qa->offset + qa->n_elems);
    assert_true(fabsf(qa->init_bound - 1 / sqrtf(8)) < 1e-7f && vb->init_bound == 0 && vb->init_value == 0);
    assert_true(qa->adapter_scale == 4 && vb->adapter_scale == 4 && qa->decay && vb->decay);
    for (int u = 0; u < a.n_units; u++)
        for (int i = 0; i < a.units[u].n_tensors; i++) {
            const dt_tensor *t = &a.units[u].tensors[i];
            assert_true(t->trainable == (t->adapter_scale != 0) && (t->part == DT_TRAINED) == t->trainable);
        }
    assert_true(dt_units_n_trainable(a.units, a.n_units) == 2 * (4 * 8 + 8 * 4 + 4 * 8 + 4 * 4));
    drop(&a);
}

TEST(a_layer_stored_the_other_way_round_has_the_same_shapes)
{
    struct adapted a;
    adapt(&a, GPT2, 0, "r = 2\ntarget_modules = c_attn, h.1.mlp.c_proj\ninit = gaussian\nuse_rslora = true\n");
    assert_ok(a.err);
    assert_int_equal(n_adapted(&a), 3);
    const dt_tensor *x = find(&a, "transformer.h.1.mlp.c_proj.lora_A.weight"),
                    *y = find(&a, "transformer.h.0.attn.c_attn.lora_B.weight");
    assert_true(x && y && !find(&a, "transformer.h.0.mlp.c_proj.lora_A.weight"));
    assert_true(x->shape[0] == 2 && x->shape[1] == 32 && y->shape[0] == 24 && y->shape[1] == 2);
    assert_true(x->init_std == 0.5f && x->init_bound == 0);
    assert_true(fabsf(x->adapter_scale - 8 / sqrtf(2)) < 1e-6f);
    drop(&a);
}

/* The messages about [lora] keys next to an adapter that has `of`. NULL: no contradiction; else the key that
 * contradicts it. */
static void assert_settles(const char *of, const char *lora, const char *key)
{
    char text[1024], *message = NULL;
    struct adapted plain = {0};
    dt_config cfg[2];
    dt_lora found;
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text, "[lora]\n%s", i ? lora : of);
        assert_ok(dt_config_parse(&cfg[i], "input.ini", text, 0, NULL));
    }
    assert_ok(dt_model_config_parse(&plain.mc, "config.json", LLAMA));
    assert_ok(dt_model_make_units(&plain.mc, &plain.units, &plain.n_units));
    assert_ok(dt_lora_from_keys(&found, &cfg[0]));
    const dt_err err = dt_lora_settle_keys(&cfg[1], &found, "there", &plain.mc, plain.units, plain.n_units);
    assert_int_equal(err, key ? DT_ERR_USAGE : DT_OK);
    if (key) assert_true(asprintf(&message, "[lora] %s: the adapter of there has", key) > 0);
    if (key && !strstr(dt_error_message(), message)) fail_msg("%s", dt_error_message());
    dt_error_clear();
    free(message);
    dt_lora_free(&found);
    dt_config_free(&cfg[0]);
    dt_config_free(&cfg[1]);
    drop(&plain);
}

TEST(magnitudes_are_vectors_of_outputs)
{
    struct adapted a;
    adapt(&a, GPT2, 0, "r = 2\nuse_dora = true\n");
    assert_ok(a.err);
    const dt_tensor *m = find(&a, "transformer.h.1.attn.c_attn.lora_magnitude_vector");
    assert_true(m && m->n_dims == 1 && m->shape[0] == 24 && m->part == DT_TRAINED && m->trainable && !m->decay);
    assert_int_equal(n_adapted(&a), 2);
    drop(&a);
    assert_settles("r = 4\nuse_dora = true\n", "use_dora = false\n", "use_dora");
}

TEST(ranks_and_alphas_follow_patterns)
{
    struct adapted a;
    adapt(&a, LLAMA, 0,
          "r = 4\nalpha = 8\ntarget_modules = all-linear\nrank_pattern = layers.1.self_attn.q_proj:2, q_proj:3, "
          "layers\\.0\\..*_proj:5\nalpha_pattern = down_proj:1\n");
    assert_ok(a.err);
    assert_int_equal(n_adapted(&a), 14);
    assert_true(find(&a, "model.layers.1.self_attn.q_proj.lora_A.weight")->shape[0] == 2);
    assert_true(find(&a, "model.layers.0.self_attn.q_proj.lora_B.weight")->shape[1] == 3);
    assert_true(find(&a, "model.layers.0.mlp.up_proj.lora_A.weight")->shape[0] == 5);
    assert_true(find(&a, "model.layers.1.mlp.up_proj.lora_A.weight")->shape[0] == 4);
    assert_true(find(&a, "model.layers.1.mlp.down_proj.lora_A.weight")->adapter_scale == 0.25f);
    drop(&a);
    adapt(&a, LLAMA, 0,
          "r = 4\ntarget_modules = all-linear\nrank_pattern = (^q|k)_proj:3, (?<=layers.1.mlp.)up_proj:2\n");
    assert_ok(a.err);
    assert_true(find(&a, "model.layers.0.self_attn.q_proj.lora_A.weight")->shape[0] == 4); /* no path begins with it */
    assert_true(find(&a, "model.layers.0.self_attn.k_proj.lora_A.weight")->shape[0] == 3);
    assert_true(find(&a, "model.layers.0.mlp.up_proj.lora_A.weight")->shape[0] == 4);
    assert_true(find(&a, "model.layers.1.mlp.up_proj.lora_A.weight")->shape[0] == 2);
    drop(&a);
}

/* PEFT takes gate_proj, up_proj and down_proj of a mixture for names of experts, also in layers without experts. */
TEST(mixtures_have_adapters_on_attention_only)
{
    static const char moe[] =
        "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 8, \"intermediate_size\": 12, \"num_hidden_layers\": 2, "
        "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"vocab_size\": 16, \"num_experts\": 2, "
        "\"num_experts_per_tok\": 1, \"moe_intermediate_size\": 4, \"mlp_only_layers\": [0]}";
    struct adapted a;
    adapt(&a, moe, 0, "r = 4\ntarget_modules = all-linear\n");
    assert_ok(a.err);
    assert_int_equal(n_adapted(&a), 8);
    assert_true(!find(&a, "model.layers.0.mlp.down_proj.lora_A.weight"));
    drop(&a);
    adapt(&a, moe, 0, "r = 4\ntarget_modules = q_proj, layers.0.mlp.down_proj\n");
    assert_fails(a.err, DT_ERR_USAGE,
                 "this model has no layer 'layers.0.mlp.down_proj'; choose from embed_tokens, q_proj");
    drop(&a);
}

TEST(regular_expressions_match_full_paths)
{
    struct adapted a;
    adapt(&a, LLAMA, 0, "r = 4\ntarget_modules = .*\\.1\\.self_attn\\.(q|o)_proj\n");
    assert_ok(a.err);
    assert_int_equal(n_adapted(&a), 2);
    assert_true(find(&a, "model.layers.1.self_attn.o_proj.lora_B.weight"));
    drop(&a);
}

static void assert_shape(const struct adapted *a, const char *name, int64_t rows, int64_t cols)
{
    const dt_tensor *t = find(a, name);
    if (!t || t->shape[0] != rows || t->shape[1] != cols) fail_msg("%s", name);
    assert_true(t->trainable && t->decay && t->part == DT_TRAINED);
}

/* A is zero and B is drawn; a head that is tied has an adapter in its own unit, or none. */
TEST(tables_and_heads_have_adapters_of_their_own)
{
    struct adapted a;
    adapt(&a, GPT2, 0, "r = 2\ntarget_modules = wte, wpe, lm_head\nrank_pattern = wpe:3\nalpha_pattern = wpe:6\n");
    assert_ok(a.err);
    assert_int_equal(n_adapted(&a), 3);
    assert_shape(&a, "transformer.wte.lora_embedding_A", 2, 16);
    assert_shape(&a, "transformer.wte.lora_embedding_B", 8, 2);
    assert_shape(&a, "transformer.wpe.lora_embedding_A", 3, 8);
    assert_shape(&a, "lm_head.lora_A.weight", 2, 8);
    assert_shape(&a, "lm_head.lora_B.weight", 16, 2);
    const dt_tensor *zero = find(&a, "transformer.wpe.lora_embedding_A"),
                    *drawn = find(&a, "transformer.wpe.lora_embedding_B");
    assert_true(zero->init_std == 0 && zero->init_bound == 0 && zero->init_value == 0 && drawn->init_std == 1);
    assert_true(zero->adapter_scale == 2 && drawn->adapter_scale == 2);
    assert_true(a.units[3].role == DT_UNIT_HEAD && a.units[3].flat_len[DT_TRAINED] > 0);
    assert_true(dt_lora_unties(&a.mc, a.units, a.n_units));
    drop(&a);
    adapt(&a, LLAMA, 0, "r = 2\ntarget_modules = embed_tokens, q_proj\n");
    assert_ok(a.err);
    assert_true(dt_lora_unties(&a.mc, a.units, a.n_units) && !find(&a, "lm_head.lora_A.weight"));
    drop(&a);
    adapt(&a, LLAMA, 0, "r = 2\ntarget_modules = all-linear\n");
    assert_ok(a.err);
    assert_false(dt_lora_unties(&a.mc, a.units, a.n_units));
    drop(&a);
    adapt(&a, LLAMA, 1, "r = 2\ntarget_modules = lm_head\n");
    assert_fails(a.err, DT_ERR_USAGE, "this model has no layer 'lm_head'");
    drop(&a);
    adapt(&a, LLAMA, 1, "r = 2\ntarget_modules = q_proj, score\n");
    assert_fails(a.err, DT_ERR_USAGE, "score: a module of this kind cannot have an adapter");
    drop(&a);
}

TEST(the_score_head_and_named_tensors_are_fully_trained)
{
    struct adapted a;
    adapt(&a, LLAMA, 1, "r = 4\nmodules_to_save = embed_tokens\n");
    assert_ok(a.err);
    assert_true(find(&a, "score.weight")->trainable && find(&a, "model.embed_tokens.weight")->trainable);
    assert_false(find(&a, "model.norm.weight")->trainable);
    drop(&a);
}

/* Where the table of tokens is trained the head that is tied to it goes into the file, too; positions have none. */
TEST(a_file_has_the_head_of_the_embedding_that_it_saves)
{
    static const char *const saved[] = {"wte", "wpe"};
    for (int i = 0; i < 2; i++) {
        struct adapted a;
        char lora[64], *text = NULL;
        snprintf(lora, sizeof lora, "r = 4\nmodules_to_save = %s\n", saved[i]);
        adapt(&a, GPT2, 0, lora);
        assert_ok(a.err);
        assert_ok(dt_lora_text(&a.lora, NULL, &a.mc, a.units, a.n_units, &text));
        assert_true(strstr(text, saved[i]) && (strstr(text, "lm_head") != NULL) == (i == 0));
        free(text);
        drop(&a);
    }
}

/* q, k and v are one matrix of codes with one array of scales. Trained tensors, and all that are no matrices of a
 * block, stay unquantised. */
TEST(an_int8_base_is_codes_with_scales)
{
    struct adapted a;
    adapt(&a, LLAMA, 0, "r = 2\nmodules_to_save = layers.1.self_attn.k_proj\nbase_quantization = int8\n");
    assert_ok(a.err);
    const char *names[] = {"q", "k", "v"};
    int64_t codes = 0, scales = 0;
    for (int i = 0; i < 3; i++) {
        char name[2][64];
        for (int k = 0; k < 2; k++)
            snprintf(name[k], sizeof name[k], "model.layers.0.self_attn.%s_proj.weight%s", names[i], k ? "_scale" : "");
        const dt_tensor *q = find(&a, name[0]), *s = find(&a, name[1]);
        assert_true(q && s && q->part == DT_CODES && s->part == DT_SCALES && !q->trainable && !s->trainable);
        assert_true(q->offset == codes && s->offset == scales && s->n_dims == 1 && s->shape[0] == q->shape[0]);
        assert_true(&a.units[1].tensors[q->coded.scales] == s && &a.units[1].tensors[s->coded.codes] == q &&
                    !q->coded.turned);
        codes += q->n_elems, scales += s->n_elems;
    }
    assert_true(find(&a, "model.layers.1.self_attn.q_proj.weight")->part == DT_TRAINED);
    assert_false(find(&a, "model.layers.1.self_attn.q_proj.weight_scale"));
    assert_true(find(&a, "model.layers.1.mlp.down_proj.weight")->part == DT_CODES);
    assert_true(find(&a, "model.embed_tokens.weight")->part == DT_FROZEN);
    assert_true(find(&a, "model.layers.0.input_layernorm.weight")->part == DT_FROZEN);
    assert_true(a.units[0].flat_len[DT_CODES] == 0 && a.units[3].flat_len[DT_CODES] == 0);
    assert_true(a.units[1].n_param == 2 * 8 + 8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 8 * 12 + 2 * 2 * 8 + (8 + 4) * 2);
    drop(&a);
    adapt(&a, GPT2, 0, "r = 2\nbase_quantization = int8\n");
    assert_ok(a.err);
    const dt_tensor *turned = find(&a, "transformer.h.1.attn.c_attn.weight");
    assert_true(turned->coded.turned && turned->shape[0] == 24 && turned->shape[1] == 8);
    assert_int_equal(find(&a, "transformer.h.1.attn.c_attn.weight_scale")->shape[0], 24);
    assert_true(find(&a, "transformer.h.1.attn.c_attn.bias")->part == DT_FROZEN);
    drop(&a);
}

/* 576 blocks of q and 288 of k are whole numbers of 32: an eighth of a group. v's are 288, too, but nothing follows. */
TEST(an_nf4_base_is_codes_with_blocks_and_pairs)
{
    static const char json[] =
        "{\"model_type\": \"llama\", \"hidden_size\": 192, \"intermediate_size\": 256, \"num_hidden_layers\": 1, "
        "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"vocab_size\": 16, \"max_position_embeddings\": 8}";
    static const char *const names[] = {"q", "k", "v"}, *const suffixes[] = {"", "_blocks", "_scale"};
    static const dt_part parts[] = {DT_CODES, DT_BLOCKS, DT_SCALES};
    struct adapted a;
    adapt(&a, json, 0, "r = 2\nbase_quantization = nf4\n");
    assert_ok(a.err);
    int64_t end[3] = {0};
    for (int i = 0; i < 3; i++) {
        const int64_t n = (i ? 96 : 192) * 192, want[] = {n / 2, n / 64, n / 64 / 32 * 2};
        for (int k = 0; k < 3; k++) {
            char name[64];
            snprintf(name, sizeof name, "model.layers.0.self_attn.%s_proj.weight%s", names[i], suffixes[k]);
            const dt_tensor *t = find(&a, name);
            assert_true(t && t->part == parts[k] && !t->trainable && t->n_elems == want[k] && t->offset == end[k]);
            assert_true(t->coded.type == DT_NF4X2 && t->coded.finer == 3 && t->coded.n_out * t->coded.n_in == n);
            const int at[] = {t->coded.codes, t->coded.blocks, t->coded.scales};
            assert_ptr_equal(&a.units[1].tensors[at[k]], t);
            assert_int_equal(dt_n_weights(t), k ? 0 : n);
            end[k] += want[k];
        }
    }
    const dt_tensor *whole = find(&a, "model.layers.0.mlp.up_proj.weight_scale"),
                    *alone = find(&a, "model.layers.0.self_attn.o_proj.weight_scale");
    assert_true(whole->coded.finer == 0 && whole->shape[0] == 3 && whole->shape[1] == 2);
    assert_true(alone->coded.finer == 0 && alone->shape[0] == 3);
    drop(&a);
    adapt(&a, GPT2, 0, "r = 2\nbase_quantization = nf4\n");
    assert_ok(a.err);
    const dt_tensor *turned = find(&a, "transformer.h.1.attn.c_attn.weight");
    assert_true(turned->coded.turned && turned->coded.n_out == 24 && turned->coded.n_in == 8 && turned->n_elems == 96);
    drop(&a);
}

TEST(unadaptable_tensors_are_refused_by_name)
{
    static const struct {
        const char *lora, *message;
    } CASES[] = {
        {"r = 4\ntarget_modules = q_proj, q_prj\n",
         "this model has no layer 'q_prj'; choose from embed_tokens, q_proj, k_proj, v_proj, o_proj, gate_proj, "
         "up_proj, down_proj, lm_head"},
        {"r = 4\ntarget_modules = q_proj, norm\n", "this model has no layer 'norm'"},
        {"r = 4\ntarget_modules = .*c_attn\n", "the expression matches no layer of this model"},
        {"r = 4\ntarget_modules = (q_proj\n",
         "'(q_proj' is not a valid regular expression: missing closing parenthesis"},
        {"r = 4\nmodules_to_save = lm_head\n", "lm_head is tied to the embedding"},
        {"r = 4\ntarget_modules = lm_head, q_proj\nmodules_to_save = embed_tokens\n",
         "lm_head cannot have an adapter, because it is tied to the embedding, which modules_to_save trains as a "
         "whole"},
        {"r = 4\nuse_dora = true\ndropout = 0.1\n", "dropout: adapters with magnitudes (use_dora) have no dropout"},
        {"r = 4\nuse_dora = true\ntarget_parameters = mlp.experts.down_proj\n",
         "use_dora: adapters of experts and routers (target_parameters) have no magnitudes"},
        {"r = 4\nuse_dora = true\ntarget_modules = embed_tokens\n",
         "model.embed_tokens: adapters of embeddings and heads have no magnitudes"},
        {"r = 4\nuse_dora = true\ntarget_modules = lm_head\n", "lm_head: adapters of embeddings and heads have no"},
        {"r = 4\nmodules_to_save = scores\n", "this model has no module 'scores'"},
        {"r = 4\nrank_pattern = q_proj:2.5\n", "expected module:rank, such as q_proj:16, found 'q_proj:2.5'"},
        {"r = 4\nalpha_pattern = q_proj\n", "expected module:alpha, such as q_proj:16, found 'q_proj'"},
        {"alpha = 4\n", "input.ini:2: [lora] alpha: needs lora.r, because without it there are no adapters"},
        {"base_quantization = int8\n", "[lora] base_quantization: int8 needs lora.r, because it stores frozen weights"},
        {"r = 4\nbase_quantization = nf4\n",
         "nf4 needs blocks of 64 weights, but model.layers.0.self_attn.k_proj.weight has 32, which is not a multiple"},
        {"r = 4\nbase_quantization = int8\n"
         "modules_to_save = k_proj, o_proj, mlp\n",
         "no linear layer of the blocks remains to be quantised"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        struct adapted a;
        adapt(&a, LLAMA, 0, CASES[i].lora);
        assert_int_equal(a.err, DT_ERR_USAGE);
        if (!strstr(dt_error_message(), CASES[i].message)) fail_msg("%s", dt_error_message());
        dt_error_clear();
        drop(&a);
    }
}

TEST(keys_in_other_words_say_the_same)
{
    static const char of[] = "r = 4\ntarget_modules = q_proj, v_proj, up_proj\n"
                             "rank_pattern = layers.0.mlp.up_proj:6, v_proj:2, up_proj:3\n"
                             "alpha_pattern = v_proj:3, up_proj:5\nmodules_to_save = embed_tokens, norm\n";
    assert_settles(of, "target_modules = up_proj, q_proj, v_proj\n", NULL);
    assert_settles(of, "target_modules = .*[.](q|v|up)_proj\n", NULL);
    assert_settles(of, "target_modules = q_proj\n", "target_modules");
    assert_settles(of, "rank_pattern = v_proj:2, layers.0.mlp.up_proj:6, up_proj:3\n", NULL);
    assert_settles(of, "rank_pattern = layers.1.mlp.up_proj:3, (v)_proj:2, up_proj:6\n", NULL);
    /* the first that matches counts */
    assert_settles(of, "rank_pattern = up_proj:3, layers.0.mlp.up_proj:6, v_proj:2\n", "rank_pattern");
    assert_settles(of, "rank_pattern = layers.0.mlp.up_proj:6, v_proj:2\n", "rank_pattern");
    assert_settles(of, "rank_pattern = layers.0.mlp.up_proj:6, v_proj:2, up_proj:3, q_proj:4\n", NULL); /* which is r */
    assert_settles(of, "rank_pattern = layers.0.mlp.up_proj:6, v_proj:2, up_proj:3, q_proj:5\n", "rank_pattern");
    assert_settles(of, "alpha_pattern = up_proj:5, v_proj:3\n", NULL);
    assert_settles(of, "alpha_pattern = up_proj:3, v_proj:5\n", "alpha_pattern");
    assert_settles(of, "modules_to_save = norm, embed_tokens\n", NULL);
    assert_settles(of, "modules_to_save = embed_tokens\n", "modules_to_save");
}

int main(void) { return run_listed(NULL, NULL, NULL); }
