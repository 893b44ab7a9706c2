/* test_model_gradients.c - gradients of every family, with dropout and with adapters, against central differences of
 * the loss (slopes.h).
 * DEVICES: cpu queue */

#include "cases.h"
#include "model_configs.h"
#include "dtrain/adapter/adapter.h"
#include "slopes.h"
#include <jansson.h>

static double language_loss(ref_model *r, const dt_batch *b)
{
    double loss;
    return ref_model_loss(r, b, true, 3, &loss, NULL) == DT_OK ? loss : NAN;
}

static void check_built(const char *name, const char *config, float adapter_dropout, ref_build build)
{
    static const int32_t LENS[] = {7, 12, 1, 5};
    dt_model_options opt = ref_options(25, 12, DT_F32);
    ref_model r;
    dt_batch b = {0};
    opt.adapter_dropout = adapter_dropout;
    if (ref_model_open_built(&r, name, config, &opt, build) != DT_OK) fail_msg("%s", dt_error_message());
    assert_int_equal(dt_batch_alloc(&b, 25, 4, &r.ledger), DT_OK);
    ref_batch_fill(&b, r.mc.vocab_size, 0, 4, LENS, 4);
    assert_int_equal(ref_model_grads(&r, &b, 3, 1, NULL), DT_OK);
    check_slopes(&r, &b, language_loss);
    dt_batch_free(&b, &r.ledger);
    ref_model_close(&r);
    assert_false(r.misused);
    assert_int_equal(ref_model_left(&r), 0);
}

static void check_model(const char *name, const char *config) { check_built(name, config, 0, dt_model_make_units); }

/* Of mixtures of experts, one in which every token uses every expert: otherwise the loss has steps, where a token
 * changes its experts. */
TEST(gradients_are_the_slopes_of_the_loss_in_every_family)
{
    static const char *const CASES[] = {"gpt2",    "gpt2_variant", "llama",       "llama_linear", "llama_dynamic",
                                        "mistral", "qwen2",        "qwen3",       "olmo2",        "granite",
                                        "smollm3", "gemma2",       "gemma3_text", "olmo3",        "seed_oss",
                                        "phi3",    "phi3_partial", "glm",         "glm4",         "mixtral_all",
                                        "qwen3_5", "qwen3_5_long", "internlm3",   "ministral3",   "gpt_oss_all"};
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
    check_model("deepseek_v3", DEEPSEEK);
}

TEST(gradients_are_the_slopes_with_dropout_too)
{
    check_model("gpt2 with dropout",
                "{\"model_type\": \"gpt2\", \"n_embd\": 24, \"n_layer\": 2, \"n_head\": 3, \"vocab_size\": 61, "
                "\"n_positions\": 32, \"attn_pdrop\": 0.2, \"embd_pdrop\": 0.1, \"resid_pdrop\": 0.3}");
}

/* Of everything that can have one: linear layers, the head, tables of tokens and positions. */
static dt_err adapt(const dt_model_config *mc, dt_unit **units, int *n_units)
{
    static char all[] = ".*(attn|proj|fc|embed_tokens|wte|wpe|lm_head)", twice[] = "lm_head|.*e|.*k_proj";
    dt_module_value rank = {twice, 5};
    const dt_lora lora = {
        .r = 3, .alpha = 2, .target_modules = {.pattern = all}, .rank_pattern = &rank, .n_rank_pattern = 1};
    const dt_err err = dt_model_make_units(mc, units, n_units);
    return err == DT_OK ? dt_lora_attach(&lora, mc, *units, *n_units) : err;
}

TEST(gradients_are_the_slopes_with_adapters)
{
    static const char *const CASES[] = {
        "{\"model_type\": \"gpt2\", \"n_embd\": 24, \"n_layer\": 1, \"n_head\": 3, \"vocab_size\": 61, "
        "\"n_positions\": 32, \"embd_pdrop\": 0.1}",
        "{\"model_type\": \"llama\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 1, "
        "\"vocab_size\": 61, \"num_attention_heads\": 5, \"max_position_embeddings\": 64}",
        "{\"model_type\": \"gemma3_text\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 2, "
        "\"vocab_size\": 61, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, "
        "\"rms_norm_eps\": 1, "
        "\"query_pre_attn_scalar\": 20, \"sliding_window\": 5, \"sliding_window_pattern\": 2, "
        "\"final_logit_softcapping\": 3, \"tie_word_embeddings\": false}"};
    for (size_t c = 0; c < sizeof CASES / sizeof CASES[0]; c++) check_built("adapters", CASES[c], 0.2f, adapt);
}

#define SMALL                                                                                                          \
    "\"model_type\": \"llama\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 2, "            \
    "\"vocab_size\": 61, \"num_attention_heads\": 5, \"max_position_embeddings\": 64"

/* As torch.nn.Embedding has it with padding_idx, which transformers gives it. */
TEST(the_padding_embedding_gets_no_gradient)
{
    static const int32_t LENS[] = {9, 3};
    const dt_model_options opt = ref_options(12, 12, DT_F32);
    ref_model plain, pads;
    dt_batch b = {0};
    assert_int_equal(ref_model_open(&plain, "plain", "{" SMALL "}", &opt), DT_OK);
    assert_int_equal(dt_batch_alloc(&b, 12, 2, &plain.ledger), DT_OK);
    ref_batch_fill(&b, plain.mc.vocab_size, 0, 2, LENS, 4);
    const int32_t pad = b.token[4];
    char config[512];
    snprintf(config, sizeof config, "{" SMALL ", \"pad_token_id\": %d}", pad);
    assert_int_equal(ref_model_open(&pads, "pads", config, &opt), DT_OK);
    assert_int_equal(ref_model_grads(&plain, &b, 0, 1, NULL), DT_OK);
    assert_int_equal(ref_model_grads(&pads, &b, 0, 1, NULL), DT_OK);
    for (int u = 0; u < plain.n_units; u++)
        for (int k = 0; k < plain.units[u].n_tensors; k++) {
            const dt_tensor *t = &plain.units[u].tensors[k];
            const bool table = strstr(t->name, "embed_tokens") != NULL;
            for (int64_t i = 0; i < t->n_elems; i++) {
                const double want = ref_grad(&plain, u, t->offset + i), found = ref_grad(&pads, u, t->offset + i);
                const bool is_pad = table && i / plain.mc.hidden_size == pad;
                assert_true(is_pad ? want != 0 && found == 0 : found == want);
            }
        }
    dt_batch_free(&b, &plain.ledger);
    ref_model_close(&pads);
    ref_model_close(&plain);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
