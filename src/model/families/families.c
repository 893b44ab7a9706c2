/* families.c - the list of families, and lookups in their tables. */
#include "family.h"
#include "dtrain/config/model_types.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DECLARE(type) extern const dt_family dt_family_##type;
DT_MODEL_TYPES(DECLARE)
#define ADDRESS(type) &dt_family_##type,
static const dt_family *const FAMILIES[] = {DT_MODEL_TYPES(ADDRESS) NULL};
enum { N_FAMILIES = sizeof FAMILIES / sizeof FAMILIES[0] - 1 };

const dt_family *dt_family_at(int i) { return i >= 0 && i < N_FAMILIES ? FAMILIES[i] : NULL; }

const dt_family *dt_family_find_type(const json_t *root)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));
    for (int i = 0; type && dt_family_at(i); i++)
        if (strcmp(type, dt_family_at(i)->name.model_type) == 0) return dt_family_at(i);
    return NULL;
}

const char *dt_family_name(const dt_family *family) { return family ? family->name.model_type : ""; }

const char *dt_classifier_architecture(const dt_family *family) { return family->name.classifier; }

bool dt_model_has_token_classes(const dt_model_config *mc)
{
    return dt_family_find(mc->family->head, SLOT_SCORE)->bias_if;
}

const char *dt_model_architecture(const dt_model_config *mc)
{
    const char *own = mc->vision ? mc->vision->tower->architecture : NULL;
    return own ? own : mc->vision ? "LlavaForConditionalGeneration" : mc->family->name.architecture;
}

const char *dt_family_key_name(const dt_family *f, const char *key)
{
    for (int i = 0; i < MAX_RENAMED && f->names[i].key; i++)
        if (strcmp(f->names[i].key, key) == 0) return f->names[i].name;
    return key;
}

bool dt_family_reads(const dt_family *f, const char *key) { return f->keys && dt_has_word(f->keys, key); }

int64_t dt_family_size(const dt_model_config *mc, enum size_of size)
{
    const int64_t H = mc->num_attention_heads, Q = H * mc->head_dim, K = mc->num_key_value_heads * mc->head_dim,
                  V = dt_model_v_dim(mc), R = mc->qk_rope_head_dim,
                  Z = mc->linear_num_value_heads * mc->linear_value_head_dim;
    const int64_t sizes[] = {[SIZE_C] = mc->hidden_size,
                             [SIZE_Q] = Q,
                             [SIZE_K] = K,
                             [SIZE_O] = H * V,
                             [SIZE_W] = Q + K + mc->num_key_value_heads * V,
                             [SIZE_F] = mc->intermediate_size,
                             [SIZE_U] = (mc->gated_mlp ? 2 : 1) * mc->intermediate_size,
                             [SIZE_V] = mc->vocab_size,
                             [SIZE_E] = mc->num_experts,
                             [SIZE_X] = mc->moe_intermediate_size,
                             [SIZE_S] = mc->shared_expert_intermediate_size,
                             [SIZE_ONE] = 1,
                             [SIZE_XX] = 2 * mc->moe_intermediate_size,
                             [SIZE_HEADS] = mc->num_attention_heads,
                             [SIZE_QG] = 2 * Q,
                             [SIZE_M] = 2 * mc->linear_num_key_heads * mc->linear_key_head_dim + Z,
                             [SIZE_Z] = Z,
                             [SIZE_H] = mc->linear_num_value_heads,
                             [SIZE_MZ] = 2 * mc->linear_num_key_heads * mc->linear_key_head_dim + 2 * Z,
                             [SIZE_HH] = 2 * mc->linear_num_value_heads,
                             [SIZE_VALUE] = mc->linear_value_head_dim,
                             [SIZE_KERNEL] = mc->linear_conv_kernel_dim,
                             [SIZE_LQ] = mc->q_lora_rank,
                             [SIZE_LK] = mc->kv_lora_rank,
                             [SIZE_LKR] = mc->kv_lora_rank + R,
                             [SIZE_LKV] = H * (mc->head_dim - R + V),
                             [SIZE_HEAD] = mc->head_dim,
                             [SIZE_POSITIONS] = mc->max_position_embeddings,
                             [SIZE_LABELS] = 0};
    return sizes[size];
}

const enum step dt_steps_pre_norm[] = {STEP_NORM1, STEP_ATTENTION, STEP_ADD, STEP_NORM2, STEP_MLP, STEP_ADD, STEP_END};

const enum step dt_steps_four_norms[] = {STEP_NORM1, STEP_ATTENTION, STEP_NORM2, STEP_ADD, STEP_NORM3,
                                         STEP_MLP,   STEP_NORM4,     STEP_ADD,   STEP_END};

int64_t dt_model_n_sparse(const dt_model_config *mc)
{
    int64_t n = 0;
    for (int64_t i = 0; i < mc->num_hidden_layers; i++) n += dt_model_layer(mc, i).sparse;
    return n;
}

int64_t dt_model_n_linear(const dt_model_config *mc)
{
    int64_t n = 0;
    for (int64_t i = 0; mc->layers && i < mc->num_hidden_layers; i++) n += mc->layers[i].linear;
    return n;
}

const struct module *dt_family_find(const struct module *of, enum slot slot)
{
    for (int i = 0; i < MAX_MODULES && of[i].name; i++)
        if (of[i].slot == slot) return &of[i];
    return NULL;
}

const struct module *dt_family_find_in(const struct module *of, enum slot slot, dt_layer layer)
{
    for (int i = 0; i < MAX_MODULES && of[i].name; i++)
        if (of[i].slot == slot && dt_module_is_in(&of[i], layer)) return &of[i];
    return NULL;
}

const struct family_fused *dt_family_fused(const dt_family *f, enum slot slot)
{
    for (int i = 0; i < MAX_FUSED && f->fused[i].name; i++)
        if (f->fused[i].slot == slot) return &f->fused[i];
    return NULL;
}

void dt_module_name(const struct module *k, int64_t expert, char name[64])
{
    const char *at = strstr(k->name, "%d");
    if (at)
        snprintf(name, 64, "%.*s%" PRId64 "%s", (int)(at - k->name), k->name, expert, at + 2);
    else
        snprintf(name, 64, "%s", k->name);
}

const char *dt_vocabulary_module(int i)
{
    const dt_family *f = dt_family_at(i / 2);
    if (!f) return NULL;
    return (i % 2 == 0 ? dt_family_find(f->embed, SLOT_TOKENS) : dt_family_find(f->head, SLOT_HEAD))->name;
}

int64_t dt_model_layer_of(const dt_model_config *mc, const char *name)
{
    const size_t n = strlen(mc->family->blocks);
    int64_t layer;
    return strncmp(name, mc->family->blocks, n) == 0 && sscanf(name + n, "%" SCNd64, &layer) == 1 ? layer : -1;
}
