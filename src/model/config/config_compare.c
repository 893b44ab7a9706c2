/* config_compare.c - differences between two model configurations. A model can be described in several ways, so values
 * are compared, not the JSON text. Fields that do not matter once weights exist are omitted: initializer_range, the
 * special tokens, the text itself. */
#include "dtrain/model/model.h"
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef enum field_kind { FIELD_INT, FIELD_REAL, FIELD_BOOL, FIELD_FAMILY, FIELD_ACT, FIELD_ROPE } field_kind;

#define FIELD(name_, member, kind_)                                                                                    \
    {                                                                                                                  \
        name_, offsetof(dt_model_config, member), kind_                                                                \
    }
static const struct field {
    const char *name; /* as in config.json, if it has a name there */
    size_t offset;
    field_kind kind;
} FIELDS[] = {
    FIELD("model_type", family, FIELD_FAMILY),
    FIELD("hidden_size", hidden_size, FIELD_INT),
    FIELD("intermediate_size", intermediate_size, FIELD_INT),
    FIELD("num_hidden_layers", num_hidden_layers, FIELD_INT),
    FIELD("num_attention_heads", num_attention_heads, FIELD_INT),
    FIELD("num_key_value_heads", num_key_value_heads, FIELD_INT),
    FIELD("head_dim", head_dim, FIELD_INT),
    FIELD("vocab_size", vocab_size, FIELD_INT),
    FIELD("num_experts", num_experts, FIELD_INT),
    FIELD("num_experts_per_tok", num_experts_per_tok, FIELD_INT),
    FIELD("moe_intermediate_size", moe_intermediate_size, FIELD_INT),
    FIELD("shared_expert_intermediate_size", shared_expert_intermediate_size, FIELD_INT),
    FIELD("linear_num_key_heads", linear_num_key_heads, FIELD_INT),
    FIELD("linear_num_value_heads", linear_num_value_heads, FIELD_INT),
    FIELD("linear_key_head_dim", linear_key_head_dim, FIELD_INT),
    FIELD("linear_value_head_dim", linear_value_head_dim, FIELD_INT),
    FIELD("linear_conv_kernel_dim", linear_conv_kernel_dim, FIELD_INT),
    FIELD("attn_output_gate", attn_output_gate, FIELD_BOOL),
    FIELD("norm_topk_prob", norm_topk_prob, FIELD_BOOL),
    FIELD("scoring_func", sigmoid_router, FIELD_BOOL),
    FIELD("n_group", n_group, FIELD_INT),
    FIELD("topk_group", topk_group, FIELD_INT),
    FIELD("group_best", group_best, FIELD_INT),
    FIELD("routed_scaling_factor", routed_scaling_factor, FIELD_REAL),
    FIELD("q_lora_rank", q_lora_rank, FIELD_INT),
    FIELD("kv_lora_rank", kv_lora_rank, FIELD_INT),
    FIELD("qk_rope_head_dim", qk_rope_head_dim, FIELD_INT),
    FIELD("v_head_dim", v_head_dim, FIELD_INT),
    FIELD("rope_interleave", rope_neighbours, FIELD_BOOL),
    FIELD("swiglu_limit", swiglu_limit, FIELD_REAL),
    FIELD("router_aux_loss_coef", router_aux_loss_coef, FIELD_REAL),
    FIELD("max_position_embeddings", max_position_embeddings, FIELD_INT),
    FIELD("rms_norm_eps", norm_eps, FIELD_REAL),
    FIELD("norm_bias", norm_bias, FIELD_BOOL),
    FIELD("embedding_multiplier", embedding_multiplier, FIELD_REAL),
    FIELD("attention_multiplier", attention_multiplier, FIELD_REAL),
    FIELD("residual_multiplier", residual_multiplier, FIELD_REAL),
    FIELD("logits_scaling", logits_scaling, FIELD_REAL),
    FIELD("embedding_multiplier_rounded", embedding_multiplier_rounded, FIELD_BOOL),
    FIELD("attn_logit_softcapping", attn_softcap, FIELD_REAL),
    FIELD("final_logit_softcapping", final_softcap, FIELD_REAL),
    FIELD("hidden_act", act, FIELD_ACT),
    FIELD("gated_mlp", gated_mlp, FIELD_BOOL),
    FIELD("rms_norm", rms_norm, FIELD_BOOL),
    FIELD("norm_plus_one", norm_plus_one, FIELD_BOOL),
    FIELD("attention_bias", qkv_bias, FIELD_BOOL),
    FIELD("attention_output_bias", o_bias, FIELD_BOOL),
    FIELD("mlp_bias", mlp_bias, FIELD_BOOL),
    FIELD("qk_norm", qk_norm, FIELD_BOOL),
    FIELD("qk_norm_whole", qk_norm_whole, FIELD_BOOL),
    FIELD("tie_word_embeddings", tie_word_embeddings, FIELD_BOOL),
    FIELD("conv1d", conv1d, FIELD_BOOL),
    FIELD("sliding_window", sliding_window, FIELD_INT),
    FIELD("scale_attn_weights", scale_attn_weights, FIELD_BOOL),
    FIELD("scale_attn_by_inverse_layer_idx", scale_attn_by_inverse_layer_idx, FIELD_BOOL),
    FIELD("rope_scaling", rope_type, FIELD_ROPE),
    FIELD("rope_scaling.factor", rope_factor, FIELD_REAL),
    FIELD("rope_scaling.low_freq_factor", rope_low_freq_factor, FIELD_REAL),
    FIELD("rope_scaling.high_freq_factor", rope_high_freq_factor, FIELD_REAL),
    FIELD("rope_scaling.beta_fast", rope_beta_fast, FIELD_REAL),
    FIELD("rope_scaling.beta_slow", rope_beta_slow, FIELD_REAL),
    FIELD("rope_scaling.attention_factor", rope_attention_factor, FIELD_REAL),
    FIELD("rope_scaling.mscale", rope_mscale, FIELD_REAL),
    FIELD("rope_scaling.mscale_all_dim", rope_mscale_all_dim, FIELD_REAL),
    FIELD("rope_scaling.truncate", rope_truncate, FIELD_BOOL),
    FIELD("rope_scaling.original_max_position_embeddings", rope_original_max_position, FIELD_INT),
    FIELD("partial_rotary_factor", partial_rotary_factor, FIELD_REAL),
    FIELD("llama_4_scaling_beta", q_scaling_beta, FIELD_REAL),
    FIELD("rope_theta", rope_theta, FIELD_REAL),
    FIELD("mrope_section[0]", mrope_section[0], FIELD_INT),
    FIELD("mrope_section[1]", mrope_section[1], FIELD_INT),
    FIELD("mrope_section[2]", mrope_section[2], FIELD_INT),
    FIELD("mrope_interleaved", mrope_interleaved, FIELD_BOOL),
    FIELD("rope_local_base_freq", rope_local_theta, FIELD_REAL),
    FIELD("attn_pdrop", attn_pdrop, FIELD_REAL),
    FIELD("embd_pdrop", embd_pdrop, FIELD_REAL),
    FIELD("resid_pdrop", resid_pdrop, FIELD_REAL),
};
#undef FIELD

typedef union value {
    int64_t i;
    double r;
    bool b;
    const dt_family *family;
    dt_activation act;
    dt_rope_type rope;
} value;

static value value_of(const dt_model_config *mc, const struct field *f)
{
    static const size_t SIZES[] = {
        [FIELD_INT] = sizeof(int64_t),        [FIELD_REAL] = sizeof(double),       [FIELD_BOOL] = sizeof(bool),
        [FIELD_FAMILY] = sizeof(dt_family *), [FIELD_ACT] = sizeof(dt_activation), [FIELD_ROPE] = sizeof(dt_rope_type)};
    value v = {0};
    memcpy(&v, (const char *)mc + f->offset, SIZES[f->kind]);
    return v;
}

static void put_text(const value *v, field_kind kind, int n_digits, char out[32])
{
    if (kind == FIELD_INT) snprintf(out, 32, "%" PRId64, v->i);
    if (kind == FIELD_REAL) snprintf(out, 32, "%.*g", n_digits, v->r);
    if (kind == FIELD_BOOL) snprintf(out, 32, "%s", v->b ? "true" : "false");
    if (kind == FIELD_FAMILY) snprintf(out, 32, "%s", dt_family_name(v->family));
    if (kind == FIELD_ACT) snprintf(out, 32, "%s", dt_activation_name(v->act));
    if (kind == FIELD_ROPE) snprintf(out, 32, "%s", dt_rope_name(v->rope));
}

/* Two models, and who receives their differences. */
struct pair {
    const dt_model_config *before, *now;
    dt_model_visit visit;
    void *self;
};

static void compare_words(const struct pair *p, const char *name, const char *before, const char *now)
{
    if (strcmp(before, now) != 0) p->visit(p->self, name, before, now);
}

static void compare_ints(const struct pair *p, const char *name, int64_t before, int64_t now)
{
    char a[32], b[32];
    snprintf(a, sizeof a, "%" PRId64, before);
    snprintf(b, sizeof b, "%" PRId64, now);
    compare_words(p, name, a, b);
}

static void compare_reals(const struct pair *p, const char *name, double before, double now)
{
    char a[32], b[32];
    snprintf(a, sizeof a, "%.17g", before);
    snprintf(b, sizeof b, "%.17g", now);
    compare_words(p, name, a, b);
}

static const char *item(const char *name, int64_t i, char out[80])
{
    snprintf(out, 80, "%s[%" PRId64 "]", name, i);
    return out;
}

static void compare_field(const struct pair *p, const struct field *f)
{
    char a[32], b[32];
    const value x = value_of(p->before, f), y = value_of(p->now, f);
    put_text(&x, f->kind, 17, a); /* 17 digits distinguish any two doubles */
    put_text(&y, f->kind, 17, b);
    if (strcmp(a, b) == 0) return;
    char short_a[32], short_b[32];
    put_text(&x, f->kind, 9, short_a);
    put_text(&y, f->kind, 9, short_b);
    const bool enough = strcmp(short_a, short_b) != 0;
    p->visit(p->self, f->name, enough ? short_a : a, enough ? short_b : b);
}

static const char *attention_of(dt_layer l)
{
    return l.linear ? "linear_attention" : l.slides ? "sliding_attention" : "full_attention";
}
static const char *rotation_of(dt_layer l) { return l.unrotated ? "0" : "1"; }
static const char *mlp_of(dt_layer l) { return l.sparse ? "experts" : "dense"; }
static const char *windows_of(dt_layer l) { return l.windowed ? "windows" : "full attention"; }

/* Report the first of n layers whose words differ. */
static void compare_layers(const struct pair *p, const char *name, const dt_model_config *before,
                           const dt_model_config *now, int64_t n, const char *(*word_of)(dt_layer))
{
    char full[80];
    int64_t i = 0;
    while (i < n && strcmp(word_of(dt_model_layer(before, i)), word_of(dt_model_layer(now, i))) == 0) i++;
    if (i == n) return;
    p->visit(p->self, item(name, i, full), word_of(dt_model_layer(before, i)), word_of(dt_model_layer(now, i)));
}

/* Report the first divisor of a frequency that differs. The numbers of pairs are those of head_dim and of
 * partial_rotary_factor. */
static void compare_divisors(const struct pair *p, const char *name, const double *a, const double *b)
{
    char full[80];
    const int64_t n = a && b ? dt_model_rotary_dim(p->before) / 2 : 0;
    int64_t i = 0;
    while (i < n && a[i] == b[i]) i++;
    if (i < n) compare_reals(p, item(name, i, full), a[i], b[i]);
}

/* If one of the models has no preprocessor, only rescale_factor, mean and std are compared. */
static void compare_preprocessors(const struct pair *p)
{
    dt_preprocessor a = p->before->vision->preprocessor, b = p->now->vision->preprocessor;
    dt_preprocessor_words was, is;
    if (!a.out_width || !b.out_width) {
        dt_preprocessor *const both[] = {&a, &b};
        for (int i = 0; i < 2; i++) {
            dt_preprocessor only = {.rescale_factor = both[i]->rescale_factor};
            memcpy(only.mean, both[i]->mean, sizeof only.mean);
            memcpy(only.std, both[i]->std, sizeof only.std);
            *both[i] = only;
        }
    }
    const char *key = dt_preprocessor_differs(&a, &b, &was, &is);
    char name[64];
    snprintf(name, sizeof name, "preprocessor_config.%s", key ? key : "");
    if (key) p->visit(p->self, name, was.text, is.text);
}

/* Report the first block of deepstack that differs. */
static void compare_deepstack(const struct pair *p, const dt_vision_config *a, const dt_vision_config *b)
{
    char full[80];
    int k = 0;
    while (k < a->n_deepstack && a->deepstack[k] == b->deepstack[k]) k++;
    if (k < a->n_deepstack && a->n_deepstack == b->n_deepstack)
        compare_ints(p, item("vision_config.deepstack_visual_indexes", k, full), a->deepstack[k], b->deepstack[k]);
}

/* Compare what determines the features and their use. The feature layer is compared by its index from the first
 * block. */
static void compare_vision(const struct pair *p)
{
    const dt_vision_config *a = p->before->vision, *b = p->now->vision;
    compare_words(p, "vision_config", a ? "a tower" : "none", b ? "a tower" : "none");
    if (!a || !b) return;
    const struct {
        const char *name;
        int64_t a, b;
    } numbers[] = {
        {"vision_config.hidden_size", a->blocks->hidden_size, b->blocks->hidden_size},
        {"vision_config.intermediate_size", a->blocks->intermediate_size, b->blocks->intermediate_size},
        {"vision_config.num_hidden_layers", a->n_blocks, b->n_blocks},
        {"vision_config.num_attention_heads", a->blocks->num_attention_heads, b->blocks->num_attention_heads},
        {"vision_config.image_size", a->image_size, b->image_size},
        {"vision_config.patch_size", a->patch_size, b->patch_size},
        {"vision_feature_layer", a->n_used, b->n_used},
        {"vision_feature_select_strategy", a->drop_first, b->drop_first},
        {"vision_feature_norm", a->feature_norm, b->feature_norm},
        {"image_tokens", a->n_tokens, b->n_tokens},
        {"image_token_index", a->image_token, b->image_token},
        {"multimodal_projector_bias", a->projector.bias, b->projector.bias},
        {"projector_hidden_size", a->projector.hidden_size, b->projector.hidden_size},
        {"projector_shuffle", a->projector.shuffle, b->projector.shuffle},
        {"mm_tokens_per_image", a->projector.average, b->projector.average},
        {"vision_config.temporal_patch_size", a->n_frames, b->n_frames},
        {"vision_config.window_size", a->window, b->window},
        {"vision_config.num_position_embeddings", a->table_side, b->table_side},
        {"vision_config.deepstack_visual_indexes", a->n_deepstack, b->n_deepstack}};
    if (a->tower != b->tower) p->visit(p->self, "vision_config.model_type", a->tower->name, b->tower->name);
    compare_words(p, "projector_type", dt_projector_name(a->projector.type), dt_projector_name(b->projector.type));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        compare_ints(p, numbers[i].name, numbers[i].a, numbers[i].b);
    compare_words(p, "vision_config.hidden_act", dt_activation_name(a->blocks->act),
                  dt_activation_name(b->blocks->act));
    compare_words(p, "projector_hidden_act", dt_activation_name((dt_activation)a->projector.act),
                  dt_activation_name((dt_activation)b->projector.act));
    compare_reals(p, "vision_config.layer_norm_eps", a->blocks->norm_eps, b->blocks->norm_eps);
    compare_reals(p, "vision_config.rope_theta", a->blocks->rope_theta, b->blocks->rope_theta);
    if (a->n_blocks == b->n_blocks) {
        compare_deepstack(p, a, b);
        compare_layers(p, "vision_config.fullatt_block_indexes", a->blocks, b->blocks, a->n_blocks, windows_of);
    }
    compare_preprocessors(p);
}

void dt_model_config_compare(const dt_model_config *before, const dt_model_config *now, dt_model_visit visit,
                             void *self)
{
    const struct pair p = {before, now, visit, self};
    const int64_t n = before->num_hidden_layers == now->num_hidden_layers ? now->num_hidden_layers : 0;
    for (size_t i = 0; i < sizeof FIELDS / sizeof FIELDS[0]; i++) compare_field(&p, &FIELDS[i]);
    compare_layers(&p, "layer_types", before, now, n, attention_of);
    compare_layers(&p, "no_rope_layers", before, now, n, rotation_of);
    compare_layers(&p, "mlp_layers", before, now, n, mlp_of);
    if (dt_model_rotary_dim(before) == dt_model_rotary_dim(now)) {
        compare_divisors(&p, "rope_scaling.short_factor", before->rope_short, now->rope_short);
        compare_divisors(&p, "rope_scaling.long_factor", before->rope_long, now->rope_long);
    }
    compare_vision(&p);
}
