/* model_config.c - parse and validate config.json.
 *
 * Defaults are those of each family (algorithms.md 8.2), because published files omit keys. A key whose value requests
 * an unsupported computation is an error. A key that dtrain does not read is ignored, because files contain keys for
 * other programs. */
#include "../families/family.h"
#include "../families/own_code.h"
#include "dtrain/io/io.h"
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Limits are far above any model, and products of two of them fit in 63 bits. check_total limits the total size. */
enum { MAX_WIDTH = 1 << 24, MAX_LAYERS = 1 << 16, MAX_POSITIONS = 1 << 30, MAX_EXPERT_TENSORS = 1 << 20 };

/* "gpt2, llama, ... or llava", or the language models of LLaVA. */
static const char *list_types(bool in_llava, char *out, size_t size)
{
    enum { MOST = 64 };
    const char *word[MOST];
    int n = 0;
    for (int i = 0; dt_family_at(i) && n < MOST - 1; i++)
        if (!in_llava || dt_family_at(i)->in_llava) word[n++] = dt_family_name(dt_family_at(i));
    for (int i = 0; !in_llava && dt_own_code_type(i) && n < MOST - 1; i++) word[n++] = dt_own_code_type(i);
    if (!in_llava) word[n++] = "llava";
    return dt_choices(out, size, word, n);
}

/* The first spelling of each activation is dtrain's own. */
static const struct {
    const char *word;
    dt_activation act;
} ACTIVATIONS[] = {{"silu", DT_ACT_SILU},          {"swish", DT_ACT_SILU},
                   {"gelu", DT_ACT_GELU},          {"gelu_pytorch_tanh", DT_ACT_GELU_TANH},
                   {"gelu_new", DT_ACT_GELU_TANH}, {"quick_gelu", DT_ACT_QUICK_GELU},
                   {"relu", DT_ACT_RELU}};
enum { N_ACTIVATION_WORDS = sizeof ACTIVATIONS / sizeof ACTIVATIONS[0] };

const char *dt_activation_name(dt_activation act)
{
    for (int i = 0; i < N_ACTIVATION_WORDS; i++)
        if (ACTIVATIONS[i].act == act) return ACTIVATIONS[i].word;
    return "";
}

dt_err dt_model_read_activation(const dt_spec *root, const char *key, dt_activation *act)
{
    const char *word = NULL;
    DT_TRY(dt_spec_string(root, key, &word));
    if (!word) return DT_OK;
    for (int i = 0; i < N_ACTIVATION_WORDS; i++) {
        if (strcmp(word, ACTIVATIONS[i].word) == 0) {
            *act = ACTIVATIONS[i].act;
            return DT_OK;
        }
    }
    return dt_spec_bad(root, key, "silu, gelu, gelu_new, gelu_pytorch_tanh, quick_gelu or relu");
}

/* Quantised weights in MXFP4, in FP8 and of bitsandbytes are decoded when they are read, in the form that the files
 * have (decode_packed.c). compressed-tensors has other forms, too. transformers once omitted the method of
 * bitsandbytes. */
static dt_err check_quantised(const dt_spec *root)
{
    dt_spec v, size;
    if (!dt_spec_get(root, "quantization_config", &v) || json_is_null(v.value)) return DT_OK;
    if (!json_is_object(v.value)) return dt_spec_bad(&v, NULL, "an object");
    const char *method = json_string_value(json_object_get(v.value, "quant_method")),
               *format = json_string_value(json_object_get(v.value, "format")),
               *code = json_string_value(json_object_get(v.value, "fmt"));
    if (!method && (json_is_true(json_object_get(v.value, "load_in_4bit")) ||
                    json_is_true(json_object_get(v.value, "load_in_8bit"))))
        return DT_OK;
    if (method && (strcmp(method, "mxfp4") == 0 || strcmp(method, "bitsandbytes") == 0)) return DT_OK;
    if (method && strcmp(method, "compressed-tensors") == 0)
        return format && strcmp(format, "float-quantized") == 0 ? DT_OK : dt_spec_bad(&v, "format", "float-quantized");
    if (!method || strcmp(method, "fp8") != 0)
        return dt_spec_bad(&v, "quant_method",
                           "bitsandbytes, fp8, mxfp4 or compressed-tensors (other weights are not read)");
    if (code && strcmp(code, "e4m3") != 0) return dt_spec_bad(&v, "fmt", "e4m3");
    if (!dt_spec_get(&v, "weight_block_size", &size) || json_is_null(size.value)) return DT_OK;
    bool fits = json_array_size(size.value) == 2;
    for (size_t i = 0; i < 2 && fits; i++) fits = json_integer_value(json_array_get(size.value, i)) == 128;
    return fits ? DT_OK : dt_spec_bad(&size, NULL, "[128, 128] or null");
}

/* Keys that select an unsupported computation, with their only supported value. */
static dt_err refuse_unsupported(const dt_spec *root, const dt_family *f)
{
    const bool has_experts = dt_family_find(f->block, SLOT_ROUTER) != NULL;
    static const char *const EXPERTS[] = {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"};
    static const char *const SWITCHES[] = {"add_cross_attention", "is_encoder_decoder", "use_bidirectional_attention"};
    dt_spec v;
    DT_TRY(check_quantised(root));
    for (size_t i = 0; i < sizeof EXPERTS / sizeof EXPERTS[0]; i++) {
        if (!has_experts && dt_spec_get(root, EXPERTS[i], &v) &&
            !(json_is_number(v.value) && json_number_value(v.value) == 0))
            return dt_spec_bad(&v, NULL, "nothing (a model of this type has no experts)");
    }
    for (size_t i = 0; i < sizeof SWITCHES / sizeof SWITCHES[0]; i++) {
        if (dt_spec_get(root, SWITCHES[i], &v) && !json_is_false(v.value)) return dt_spec_bad(&v, NULL, "false");
    }
    return DT_OK;
}

static dt_err read_token_ids(const dt_spec *root, dt_model_config *mc)
{
    int64_t bos = mc->bos_token_id;
    DT_TRY(dt_spec_int(root, "bos_token_id", 0, INT32_MAX, &bos));
    const json_t *pad = json_object_get(root->value, "pad_token_id");
    int64_t row = mc->vocab_size;
    mc->pad_token_id = !pad && mc->family->missing.pad < mc->vocab_size ? mc->family->missing.pad : -1;
    DT_TRY(dt_spec_int(root, "pad_token_id", INT32_MIN, INT32_MAX, &row));
    if (row >= -mc->vocab_size && row < mc->vocab_size) /* torch counts negative rows from the end */
        mc->pad_token_id = (int32_t)(row < 0 ? row + mc->vocab_size : row);
    const json_t *v = json_object_get(root->value, "eos_token_id");
    if (v && json_is_null(v)) mc->n_eos = 0;
    if (v && !json_is_null(v)) {
        const size_t n = json_is_array(v) ? json_array_size(v) : 1;
        if (n > DT_MAX_EOS) return dt_spec_bad(root, "eos_token_id", "at most 16 token ids");
        for (size_t i = 0; i < n; i++) {
            const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
            if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
                return dt_spec_bad(root, "eos_token_id", "a token id or a list of them");
            mc->eos_token_id[i] = (int32_t)json_integer_value(id);
        }
        mc->n_eos = (int)n;
    }
    /* An id outside the vocabulary cannot occur. The family's default may be outside of a small vocabulary. */
    mc->bos_token_id = bos < mc->vocab_size ? (int32_t)bos : -1;
    int kept = 0;
    for (int i = 0; i < mc->n_eos; i++)
        if (mc->eos_token_id[i] < mc->vocab_size) mc->eos_token_id[kept++] = mc->eos_token_id[i];
    mc->n_eos = kept;
    return DT_OK;
}

/* The family's own name of the key, or the common one. */
static dt_err read_size(const dt_spec *root, const dt_family *f, const char *key, int64_t hi, int64_t *out)
{
    const char *own = dt_family_key_name(f, key);
    return dt_spec_int(root, dt_spec_has(root, own) ? own : key, 1, hi, out);
}

/* Each size may be plausible while their product is not. Computed in double, which cannot overflow. Norms and biases
 * are negligible. */
static dt_err check_total(const dt_spec *root, const dt_model_config *mc)
{
    const double C = (double)mc->hidden_size, D = (double)mc->head_dim;
    const double attention = 2 * C * D * (double)(mc->num_attention_heads + mc->num_key_value_heads),
                 dense = 3 * C * (double)mc->intermediate_size,
                 experts = (double)mc->num_experts * C * (1 + 3 * (double)mc->moe_intermediate_size) +
                           3 * C * (double)mc->shared_expert_intermediate_size,
                 mlp = dense > experts ? dense : experts;
    const double n =
        (double)mc->num_hidden_layers * (attention + mlp) +
        C * (2 * (double)mc->vocab_size + (mc->learned_positions ? (double)mc->max_position_embeddings : 0));
    DT_CHECK(n <= DT_MAX_PARAMETERS, root->err,
             "%s: hidden_size, intermediate_size, vocab_size, num_hidden_layers%s: expected at most %.0f parameters, "
             "found about %.3g",
             root->file, mc->num_experts > 0 ? ", num_experts" : "", DT_MAX_PARAMETERS, n);
    DT_CHECK(mc->num_hidden_layers * mc->num_experts * 3 <= MAX_EXPERT_TENSORS, root->err,
             "%s: num_hidden_layers, num_experts: expected at most %d matrices of experts, found %" PRId64, root->file,
             MAX_EXPERT_TENSORS, mc->num_hidden_layers * mc->num_experts * 3);
    return DT_OK;
}

static dt_err read_sizes(const dt_spec *root, const dt_family *f, dt_model_config *mc)
{
    mc->hidden_size = f->missing.hidden_size;
    mc->num_hidden_layers = f->missing.num_hidden_layers;
    mc->num_attention_heads = f->missing.num_attention_heads;
    mc->vocab_size = f->missing.vocab_size;
    mc->max_position_embeddings = f->missing.max_position_embeddings;
    DT_TRY(read_size(root, f, "hidden_size", MAX_WIDTH, &mc->hidden_size));
    DT_TRY(read_size(root, f, "num_hidden_layers", MAX_LAYERS, &mc->num_hidden_layers));
    DT_TRY(read_size(root, f, "num_attention_heads", MAX_WIDTH, &mc->num_attention_heads));
    DT_TRY(read_size(root, f, "max_position_embeddings", MAX_POSITIONS, &mc->max_position_embeddings));
    DT_TRY(read_size(root, f, "vocab_size", MAX_POSITIONS, &mc->vocab_size));

    mc->intermediate_size = f->missing.intermediate_size ? f->missing.intermediate_size : 4 * mc->hidden_size;
    DT_TRY(read_size(root, f, "intermediate_size", MAX_WIDTH, &mc->intermediate_size));

    mc->num_key_value_heads = mc->num_attention_heads;
    if (f->missing.num_key_value_heads && !json_object_get(root->value, "num_key_value_heads"))
        mc->num_key_value_heads = f->missing.num_key_value_heads;
    DT_TRY(read_size(root, f, "num_key_value_heads", MAX_WIDTH, &mc->num_key_value_heads));

    mc->head_dim = f->missing.head_dim ? f->missing.head_dim : mc->hidden_size / mc->num_attention_heads;
    const bool by_division = !dt_spec_has(root, "head_dim") && !f->missing.head_dim;
    DT_TRY(read_size(root, f, "head_dim", MAX_WIDTH, &mc->head_dim));
    DT_CHECK(!by_division || mc->hidden_size % mc->num_attention_heads == 0, root->err,
             "%s: hidden_size: expected a multiple of num_attention_heads=%" PRId64 ", found %" PRId64, root->file,
             mc->num_attention_heads, mc->hidden_size);
    DT_CHECK(mc->num_attention_heads % mc->num_key_value_heads == 0, root->err,
             "%s: num_key_value_heads: expected a divisor of num_attention_heads=%" PRId64 ", found %" PRId64,
             root->file, mc->num_attention_heads, mc->num_key_value_heads);
    DT_CHECK(mc->num_attention_heads * mc->head_dim <= MAX_WIDTH, root->err,
             "%s: head_dim: expected num_attention_heads * head_dim of at most %d, found %" PRId64, root->file,
             MAX_WIDTH, mc->num_attention_heads * mc->head_dim);
    return DT_OK;
}

/* Layers that are all as {0} need no list. */
static void drop_layers(dt_model_config *mc)
{
    static const dt_layer usual;
    for (int64_t i = 0; i < mc->num_hidden_layers; i++)
        if (memcmp(&mc->layers[i], &usual, sizeof usual) != 0) return;
    free(mc->layers);
    mc->layers = NULL;
}

/* tower: that of a model with images; NULL: a language model. */
static dt_err read_family(const dt_spec *root, const dt_family *f, const dt_tower *tower, dt_model_config *mc)
{
    *mc = (dt_model_config){.family = f,
                            .initializer_range = 0.02,
                            .embedding_multiplier = 1,
                            .residual_multiplier = 1,
                            .logits_scaling = 1,
                            .norm_eps = f->missing.norm_eps,
                            .rope_axes = tower && tower->sections[0] > 0 ? 3 : 0,
                            .bos_token_id = f->missing.bos,
                            .n_eos = f->missing.eos >= 0};
    mc->eos_token_id[0] = f->missing.eos;
    DT_TRY(refuse_unsupported(root, f));
    DT_TRY(read_sizes(root, f, mc));
    DT_TRY(dt_spec_real(root, "initializer_range", 0, 100, &mc->initializer_range));
    DT_TRY(read_token_ids(root, mc));
    mc->layers = calloc((size_t)mc->num_hidden_layers, sizeof *mc->layers);
    DT_CHECK(mc->layers, DT_ERR_MEMORY, "%s: out of memory for %" PRId64 " layers", root->file, mc->num_hidden_layers);
    DT_TRY(f->read(root, mc));
    drop_layers(mc);
    return check_total(root, mc);
}

static dt_err read_language_model(const dt_spec *root, const char *types, dt_model_config *mc)
{
    const dt_family *f = dt_family_find_type(root->value);
    return f ? read_family(root, f, NULL, mc) : dt_spec_bad(root, "model_type", types);
}

/* A language model that may be joined with a tower. */
static dt_err read_any_text(const dt_spec *text, dt_model_config *mc)
{
    char types[128];
    list_types(true, types, sizeof types);
    DT_TRY(read_language_model(text, types, mc));
    return mc->family->in_llava ? DT_OK : dt_spec_bad(text, "model_type", types);
}

/* tie_word_embeddings may be set in either object, as in transformers. */
static dt_err read_llava(const dt_spec *root, dt_model_config *mc)
{
    dt_spec text;
    bool tied = false;
    DT_TRY(check_quantised(root));
    DT_TRY(dt_spec_need(root, "text_config", JSON_OBJECT, &text));
    DT_TRY(read_any_text(&text, mc));
    DT_TRY(dt_spec_bool(root, "tie_word_embeddings", &tied));
    mc->tie_word_embeddings |= tied;
    return dt_model_read_vision(root, NULL, mc);
}

/* Is it a family of the text model of this multimodal model? */
static bool is_within(const dt_family *f, const json_t *root)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));
    return f && type && f->name.multimodal && strcmp(type, f->name.multimodal) == 0;
}

/* The family whose text model is read out of this multimodal model: that of text_config, or the first. NULL: none. */
static const dt_family *find_within(const json_t *root)
{
    const dt_family *f = dt_family_find_type(json_object_get(root, "text_config"));
    for (int i = 0; !is_within(f, root) && (i == 0 || f); i++) f = dt_family_at(i);
    return f;
}

static const dt_tower *joined_tower(const json_t *config)
{
    return dt_tower_of_model(json_string_value(json_object_get(config, "model_type")));
}

bool dt_model_ties_outside(const json_t *config)
{
    const json_t *ties = json_object_get(config, "tie_word_embeddings");
    const dt_family *f = find_within(config);
    const dt_tower *tower = joined_tower(config);
    return json_is_boolean(ties) ? json_is_true(ties) : (f && f->multimodal_tied) || (tower && tower->tiles);
}

/* The family that the text model of a model with images has alone; NULL: the same. */
static const dt_family *plain_family(const dt_tower *tower) { return tower && tower->text ? tower->text->plain : NULL; }

static dt_err take_plain(const dt_spec *root, const dt_tower *tower, json_t **own)
{
    dt_model_config mc;
    dt_spec text;
    if (!dt_spec_get(root, "text_config", &text)) text = *root; /* old files */
    if (!json_is_object(text.value)) return dt_spec_bad(&text, NULL, "an object");
    dt_err err = read_family(&text, tower->text, tower, &mc);
    if (err == DT_OK) err = dt_model_plain_text(&text, &mc, own);
    dt_model_config_free(&mc);
    return err;
}

/* *own: out, the text model's configuration, as its own config.json has it. Published files have some keys outside of
 * text_config, too. */
static dt_err take_text(const dt_spec *root, const dt_family *f, json_t **own)
{
    static const char *const SHARED[] = {"dtype", "torch_dtype"};
    const dt_tower *tower = joined_tower(root->value);
    dt_spec text;
    DT_TRY(check_quantised(root));
    if (f == plain_family(tower)) {
        DT_TRY(take_plain(root, tower, own));
    } else {
        DT_TRY(dt_spec_need(root, "text_config", JSON_OBJECT, &text));
        if (dt_spec_has(&text, "model_type") && f != dt_family_find_type(text.value))
            return dt_spec_bad(&text, "model_type", f->name.model_type);
        *own = json_copy((json_t *)text.value);
    }
    DT_CHECK(*own, DT_ERR_MEMORY, "%s: out of memory for text_config", root->file);
    for (size_t i = 0; i < sizeof SHARED / sizeof SHARED[0]; i++)
        if (json_object_get(root->value, SHARED[i]))
            json_object_set(*own, SHARED[i], json_object_get(root->value, SHARED[i]));
    if (dt_model_ties_outside(root->value)) json_object_set_new(*own, "tie_word_embeddings", json_true());
    json_object_set_new(*own, "model_type", json_string(f->name.model_type));
    json_object_set_new(*own, "architectures", json_pack("[s]", f->name.architecture));
    return DT_OK;
}

bool dt_model_is_llava(const json_t *config)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    return type && (strcmp(type, "llava") == 0 || strcmp(type, DT_OWN_LLAVA) == 0);
}

/* own: root translated (own_code.h), or NULL. Messages about values name both types. */
static dt_err read_own_code(const dt_spec *root, const json_t *own, dt_model_config *mc)
{
    char file[PATH_MAX + 64];
    snprintf(file, sizeof file, "%s (%s, read as %s)", root->file,
             json_string_value(json_object_get(root->value, "model_type")),
             json_string_value(json_object_get(own, "model_type")));
    return dt_model_config_from_json(mc, &(dt_spec){.file = file, .err = root->err, .value = own});
}

/* Replace *root by its translation, if it is of a model with its own code. */
static dt_err translate(const char *name, json_t **root, bool *changed)
{
    const dt_spec whole = {.file = name, .err = DT_ERR_DATA, .value = *root};
    dt_model_config mc;
    json_t *own;
    DT_TRY(dt_own_code_translate(&whole, &own));
    if (!own) return DT_OK;
    const dt_err err = read_own_code(&whole, own, &mc);
    dt_model_config_free(&mc);
    json_decref(err == DT_OK ? *root : own);
    if (err == DT_OK) *root = own, *changed = true;
    return err;
}

bool dt_model_has_vision(const json_t *config) { return dt_model_is_llava(config) || joined_tower(config); }

dt_err dt_model_choose_part(dt_model_part part, const char *name, json_t **root, bool *chosen, bool *changed)
{
    json_t *own = NULL;
    DT_TRY(translate(name, root, changed));
    const dt_tower *tower = joined_tower(*root);
    const dt_spec whole = {.file = name, .err = DT_ERR_DATA, .value = *root};
    const dt_family *f = find_within(*root);
    *chosen =
        part == DT_MODEL_TEXT ? f || dt_model_has_vision(*root) : part == DT_MODEL_USUAL && tower && tower->text_alone;
    if (!*chosen) return DT_OK;
    *changed = true;
    if (!f) f = plain_family(tower);
    if (!f && dt_model_has_vision(*root)) f = dt_family_find_type(json_object_get(*root, "text_config"));
    if (!f) return dt_spec_bad(&whole, "model_type", "a model with images whose text model can be used alone");
    DT_TRY(take_text(&whole, f, &own));
    json_decref(*root);
    *root = own;
    return DT_OK;
}

static dt_err read_within(const dt_spec *root, const dt_family *f, const char *types, dt_model_config *mc)
{
    json_t *own = NULL;
    dt_err err = take_text(root, f, &own);
    const dt_spec text = {.file = root->file, .err = root->err, .value = own, .where = "text_config"};
    if (err == DT_OK) err = read_language_model(&text, types, mc);
    if (err == DT_OK) err = dt_json_store(&mc->json, root->file, own);
    json_decref(own);
    return err;
}

/* A model whose tower and language model belong together. The language model is in text_config, in old files in the
 * object itself. */
static dt_err read_joined(const dt_spec *root, const dt_tower *tower, dt_model_config *mc)
{
    dt_spec text;
    bool tied = false;
    DT_TRY(check_quantised(root));
    if (tower->text_alone) DT_TRY(dt_spec_need(root, "text_config", JSON_OBJECT, &text));
    if (!dt_spec_get(root, "text_config", &text)) text = *root;
    DT_TRY(tower->text ? read_family(&text, tower->text, tower, mc) : read_any_text(&text, mc));
    DT_TRY(dt_spec_bool(root, "tie_word_embeddings", &tied));
    mc->tie_word_embeddings |= dt_model_ties_outside(root->value);
    if (mc->rope_axes > 0) DT_TRY(dt_model_read_axes(&text, tower, mc));
    return dt_model_read_vision(root, tower, mc);
}

/* The head by the name of the architecture. */
static void read_head(const json_t *root, dt_model_config *mc)
{
    const char *name = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    mc->score_bias = name && strstr(name, "ForTokenClassification");
    mc->headless = name && !strstr(name, "For") && !strstr(name, "Head") && dt_has_ending(name, "Model");
}

dt_err dt_model_config_from_json(dt_model_config *mc, const dt_spec *root)
{
    *mc = (dt_model_config){0};
    if (!json_is_object(root->value)) {
        dt_spec whole = *root;
        snprintf(whole.where, sizeof whole.where, "the file");
        return dt_spec_bad(&whole, NULL, "one JSON object");
    }
    json_t *own;
    DT_TRY(dt_own_code_translate(root, &own));
    if (own) {
        const dt_err err = read_own_code(root, own, mc);
        json_decref(own);
        return err;
    }
    char types[512];
    list_types(false, types, sizeof types);
    const dt_tower *tower = joined_tower(root->value);
    const dt_family *within = tower ? NULL : find_within(root->value);
    dt_err err = within                           ? read_within(root, within, types, mc)
                 : tower                          ? read_joined(root, tower, mc)
                 : dt_model_is_llava(root->value) ? read_llava(root, mc)
                                                  : read_language_model(root, types, mc);
    if (err == DT_OK) read_head(root->value, mc);
    if (err == DT_OK && !within) err = dt_json_store(&mc->json, root->file, root->value);
    if (err != DT_OK) dt_model_config_free(mc);
    return err;
}

dt_err dt_model_config_parse(dt_model_config *mc, const char *name, const char *json_text)
{
    json_t *root;
    *mc = (dt_model_config){0};
    DT_TRY(dt_json_parse(&root, name, json_text, strlen(json_text), 0));
    const dt_err err = dt_model_config_from_json(mc, &(dt_spec){.file = name, .err = DT_ERR_DATA, .value = root});
    json_decref(root);
    return err;
}

void dt_model_config_set_dropout(dt_model_config *mc, double dropout)
{
    if (dropout < 0) return;
    mc->attn_pdrop = mc->embd_pdrop = mc->resid_pdrop = dropout;
    if (mc->vision) mc->vision->blocks->attn_pdrop = mc->vision->projector.dropout = dropout;
}

void dt_model_config_free(dt_model_config *mc)
{
    dt_vision_config_free(mc->vision);
    free(mc->json);
    free(mc->layers);
    free(mc->rope_short);
    free(mc->rope_long);
    *mc = (dt_model_config){0};
}
