/* units.c - the tables of named tensors, and the FLOP count derived from them.
 *
 * Matrices that one matmul can compute (q, k, v; gate, up) and their biases are adjacent and form a group of the unit.
 * Every other tensor starts its own group, so that every matrix is aligned. */
#include "vision/vision_private.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/** A unit under construction, and how its tensors are initialised. */
struct builder {
    const dt_model_config *mc;
    int64_t n_labels; /* of a scalar head; 0: vocabulary head */
    dt_unit *unit;
    char prefix[64];
};

/* Prefix of all tensor names of the language model in a vision-language model. */
static const char *const INSIDE = "language_model.";

enum start { NORM_WEIGHT, BIAS, MATRIX, RESIDUAL_MATRIX };

static dt_err add(const struct builder *b, const char *name, bool new_group, enum start start, int64_t rows,
                  int64_t cols)
{
    char full[DT_NAME_MAX];
    const int64_t shape[2] = {rows, cols};
    const bool matrix = start == MATRIX || start == RESIDUAL_MATRIX;
    /* GPT-2 (Radford et al. 2019, section 2.3) scales the initial weights of residual projections by depth */
    const bool scaled = start == RESIDUAL_MATRIX && b->mc->family == DT_GPT2;
    const double std =
        scaled ? b->mc->initializer_range / sqrt(2.0 * (double)b->mc->num_hidden_layers) : b->mc->initializer_range;
    snprintf(full, sizeof full, "%s%s%s", b->mc->vision ? INSIDE : "", b->prefix, name);
    return dt_unit_add(b->unit, full, matrix ? 2 : 1, shape, new_group, matrix, matrix ? (float)std : 0,
                       start == NORM_WEIGHT ? 1 : 0);
}

static dt_err build_gpt2_block(const struct builder *b)
{
    const int64_t C = b->mc->hidden_size, F = b->mc->intermediate_size;
    DT_TRY(add(b, "ln_1.weight", true, NORM_WEIGHT, C, 0));
    DT_TRY(add(b, "ln_1.bias", true, BIAS, C, 0));
    DT_TRY(add(b, "attn.c_attn.weight", true, MATRIX, C, 3 * C));
    DT_TRY(add(b, "attn.c_attn.bias", true, BIAS, 3 * C, 0));
    DT_TRY(add(b, "attn.c_proj.weight", true, RESIDUAL_MATRIX, C, C));
    DT_TRY(add(b, "attn.c_proj.bias", true, BIAS, C, 0));
    DT_TRY(add(b, "ln_2.weight", true, NORM_WEIGHT, C, 0));
    DT_TRY(add(b, "ln_2.bias", true, BIAS, C, 0));
    DT_TRY(add(b, "mlp.c_fc.weight", true, MATRIX, C, F));
    DT_TRY(add(b, "mlp.c_fc.bias", true, BIAS, F, 0));
    DT_TRY(add(b, "mlp.c_proj.weight", true, RESIDUAL_MATRIX, F, C));
    return add(b, "mlp.c_proj.bias", true, BIAS, C, 0);
}

static dt_err build_llama_attention(const struct builder *b)
{
    const dt_model_config *mc = b->mc;
    const int64_t C = mc->hidden_size, Q = mc->num_attention_heads * mc->head_dim,
                  K = mc->num_key_value_heads * mc->head_dim;
    DT_TRY(add(b, "self_attn.q_proj.weight", true, MATRIX, Q, C));
    DT_TRY(add(b, "self_attn.k_proj.weight", false, MATRIX, K, C));
    DT_TRY(add(b, "self_attn.v_proj.weight", false, MATRIX, K, C));
    if (mc->qkv_bias) {
        DT_TRY(add(b, "self_attn.q_proj.bias", true, BIAS, Q, 0));
        DT_TRY(add(b, "self_attn.k_proj.bias", false, BIAS, K, 0));
        DT_TRY(add(b, "self_attn.v_proj.bias", false, BIAS, K, 0));
    }
    if (mc->qk_norm) {
        DT_TRY(add(b, "self_attn.q_norm.weight", true, NORM_WEIGHT, mc->head_dim, 0));
        DT_TRY(add(b, "self_attn.k_norm.weight", true, NORM_WEIGHT, mc->head_dim, 0));
    }
    DT_TRY(add(b, "self_attn.o_proj.weight", true, RESIDUAL_MATRIX, C, Q));
    return mc->o_bias ? add(b, "self_attn.o_proj.bias", true, BIAS, C, 0) : DT_OK;
}

static dt_err build_llama_block(const struct builder *b)
{
    const dt_model_config *mc = b->mc;
    const int64_t C = mc->hidden_size, F = mc->intermediate_size;
    DT_TRY(add(b, "input_layernorm.weight", true, NORM_WEIGHT, C, 0));
    DT_TRY(build_llama_attention(b));
    DT_TRY(add(b, "post_attention_layernorm.weight", true, NORM_WEIGHT, C, 0));
    DT_TRY(add(b, "mlp.gate_proj.weight", true, MATRIX, F, C));
    DT_TRY(add(b, "mlp.up_proj.weight", false, MATRIX, F, C));
    if (mc->mlp_bias) {
        DT_TRY(add(b, "mlp.gate_proj.bias", true, BIAS, F, 0));
        DT_TRY(add(b, "mlp.up_proj.bias", false, BIAS, F, 0));
    }
    DT_TRY(add(b, "mlp.down_proj.weight", true, RESIDUAL_MATRIX, C, F));
    return mc->mlp_bias ? add(b, "mlp.down_proj.bias", true, BIAS, C, 0) : DT_OK;
}

static dt_err build_embed(struct builder *b)
{
    const dt_model_config *mc = b->mc;
    snprintf(b->unit->name, sizeof b->unit->name, "embed");
    b->unit->role = DT_UNIT_EMBEDDING;
    if (mc->family != DT_GPT2)
        return add(b, "model.embed_tokens.weight", true, MATRIX, mc->vocab_size, mc->hidden_size);
    DT_TRY(add(b, "transformer.wte.weight", true, MATRIX, mc->vocab_size, mc->hidden_size));
    return add(b, "transformer.wpe.weight", true, MATRIX, mc->max_position_embeddings, mc->hidden_size);
}

static dt_err build_block(struct builder *b, int64_t layer)
{
    const bool gpt2 = b->mc->family == DT_GPT2;
    snprintf(b->unit->name, sizeof b->unit->name, "block.%" PRId64, layer);
    b->unit->role = DT_UNIT_BLOCK;
    snprintf(b->prefix, sizeof b->prefix, gpt2 ? "transformer.h.%" PRId64 "." : "model.layers.%" PRId64 ".", layer);
    return gpt2 ? build_gpt2_block(b) : build_llama_block(b);
}

static dt_err build_head(struct builder *b)
{
    const dt_model_config *mc = b->mc;
    const bool gpt2 = mc->family == DT_GPT2;
    snprintf(b->unit->name, sizeof b->unit->name, "head");
    b->unit->role = b->n_labels > 0 ? DT_UNIT_SCALAR_HEAD : DT_UNIT_HEAD;
    DT_TRY(add(b, gpt2 ? "transformer.ln_f.weight" : "model.norm.weight", true, NORM_WEIGHT, mc->hidden_size, 0));
    if (gpt2) DT_TRY(add(b, "transformer.ln_f.bias", true, BIAS, mc->hidden_size, 0));
    if (b->n_labels > 0) return add(b, "score.weight", true, MATRIX, b->n_labels, mc->hidden_size);
    return mc->tie_word_embeddings ? DT_OK : add(b, "lm_head.weight", true, MATRIX, mc->vocab_size, mc->hidden_size);
}

static dt_err make_units(const dt_model_config *mc, int64_t n_labels, dt_unit **units, int *n_units)
{
    const int n_text = (int)mc->num_hidden_layers + 2, n = n_text + dt_vision_n_units(mc->vision);
    dt_unit *u = calloc((size_t)n, sizeof *u);
    *units = NULL;
    *n_units = 0;
    DT_CHECK(u, DT_ERR_MEMORY, "out of memory for the tables of %d units", n);
    dt_err err = DT_OK;
    for (int i = 0; i < n_text && err == DT_OK; i++) {
        struct builder b = {.mc = mc, .n_labels = n_labels, .unit = &u[i]};
        err = i == 0 ? build_embed(&b) : i == n_text - 1 ? build_head(&b) : build_block(&b, i - 1);
    }
    if (err == DT_OK) err = dt_vision_build_units(mc->vision, &u[n_text]);
    if (err != DT_OK) {
        dt_model_free_units(u, n);
        return err;
    }
    *units = u;
    *n_units = n;
    return DT_OK;
}

dt_err dt_model_make_units(const dt_model_config *mc, dt_unit **units, int *n_units)
{
    return make_units(mc, 0, units, n_units);
}

dt_err dt_model_make_value_units(const dt_model_config *mc, int64_t n_labels, dt_unit **units, int *n_units)
{
    DT_EXPECT(n_labels > 0);
    DT_CHECK(!mc->vision, DT_ERR_USAGE,
             "expected a text model for a scalar head, found a vision-language model; reward models and critics accept "
             "only text");
    return make_units(mc, n_labels, units, n_units);
}

void dt_model_free_units(dt_unit *units, int n_units)
{
    for (int i = 0; units && i < n_units; i++) dt_unit_free(&units[i]);
    free(units);
}

const char *const dt_vocabulary_modules[DT_N_VOCABULARY_MODULES] = {"model.embed_tokens", "transformer.wte", "lm_head"};

bool dt_model_is_vocabulary(const dt_tensor *t)
{
    bool is = false;
    const char *name = strncmp(t->name, INSIDE, strlen(INSIDE)) == 0 ? t->name + strlen(INSIDE) : t->name;
    for (int i = 0; i < DT_N_VOCABULARY_MODULES; i++) {
        const size_t n = strlen(dt_vocabulary_modules[i]);
        is = is || (strncmp(name, dt_vocabulary_modules[i], n) == 0 && strcmp(name + n, ".weight") == 0);
    }
    return is;
}

int dt_model_tied_unit(const dt_model_config *mc, const dt_unit *units, int n_units)
{
    const bool tied = mc->tie_word_embeddings && dt_units_find(units, n_units, DT_UNIT_HEAD) >= 0;
    return tied ? dt_units_find(units, n_units, DT_UNIT_EMBEDDING) : -1;
}

/* Does a matmul use this matrix? The embedding of a tied model is also the vocabulary head. So is the A of its adapter,
 * [r, rows], but not its B [hidden_size, r]. Other embeddings are only looked up. */
static bool is_matmul(const dt_model_config *mc, const dt_unit *u, const dt_tensor *t, bool predicts)
{
    if (!dt_is_matrix(t)) return false;
    if (u->role != DT_UNIT_EMBEDDING) return true;
    if (t->adapter_scale != 0) return strstr(t->name, ".lora_embedding_B") != NULL;
    return predicts && mc->tie_word_embeddings && t->shape[0] == mc->vocab_size && t == &u->tensors[0];
}

/* Forward takes 2 operations per matrix element and token, backward 2 for the input's gradient and 2 for the matrix's.
 * Attention computes q k^T and p v over the causal half of len^2: 2 Q len^2 in forward, twice that in backward. Norms
 * are not counted, and windows do not reduce the count. */
double dt_model_train_flops(const dt_model_config *mc, const dt_unit *units, int n_units, int64_t n_tok,
                            double sum_seq_len_squared)
{
    const double L = (double)mc->num_hidden_layers, Q = (double)(mc->num_attention_heads * mc->head_dim);
    const bool predicts = dt_units_find(units, n_units, DT_UNIT_HEAD) >= 0;
    double per_token = 0;
    for (int u = 0; u < dt_vision_first_unit(units, n_units); u++)
        for (int i = 0; i < units[u].n_tensors; i++) {
            const dt_tensor *t = &units[u].tensors[i];
            if (is_matmul(mc, &units[u], t, predicts)) per_token += (t->trainable ? 6 : 4) * (double)dt_n_weights(t);
        }
    return per_token * (double)n_tok + 6 * L * Q * sum_seq_len_squared;
}
