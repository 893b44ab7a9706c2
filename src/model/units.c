/* units.c - the tables of named tensors, and the FLOP count derived from them.
 *
 * Matrices that one matmul can compute (q, k, v; gate, up) and their biases are adjacent and form a group of the unit.
 * Every other tensor starts its own group, so that every matrix is aligned. */
#include "vision/vision_private.h"
#include "families/own_code.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How tensor parallelism divides a module: tables and the first linear layers of attention and MLP by outputs, the
 * second ones by inputs. A bias is divided like the outputs. */
enum division { WHOLE, BY_OUTPUT, BY_INPUT };

/* Properties of a module that its slot determines. Vectors have no row. */
static const struct slot_kind {
    dt_tensor_kind kind;
    dt_adapter_site site;
    enum division division;
} SLOTS[N_SLOTS] = {
    [SLOT_QKV] = {DT_KIND_MATRIX, DT_SITE_LINEAR, BY_OUTPUT},
    [SLOT_O] = {DT_KIND_MATRIX, DT_SITE_LINEAR, BY_INPUT},
    [SLOT_UP] = {DT_KIND_MATRIX, DT_SITE_LINEAR, BY_OUTPUT},
    [SLOT_DOWN] = {DT_KIND_MATRIX, DT_SITE_LINEAR, BY_INPUT},
    [SLOT_ROUTER] = {DT_KIND_MATRIX, DT_SITE_PARAMETER},
    [SLOT_EXPERT_UP] = {DT_KIND_MATRIX, DT_SITE_NONE, BY_OUTPUT},
    [SLOT_EXPERT_DOWN] = {DT_KIND_MATRIX, DT_SITE_NONE, BY_INPUT},
    [SLOT_DELTA_IN] = {DT_KIND_MATRIX, DT_SITE_LINEAR},
    [SLOT_DELTA_OUT] = {DT_KIND_MATRIX, DT_SITE_LINEAR},
    [SLOT_MLP_GATE] = {DT_KIND_MATRIX, DT_SITE_LINEAR},
    [SLOT_LATENT_IN] = {DT_KIND_MATRIX, DT_SITE_LINEAR},
    [SLOT_LATENT_Q] = {DT_KIND_MATRIX, DT_SITE_LINEAR, BY_OUTPUT},
    [SLOT_LATENT_KV] = {DT_KIND_MATRIX, DT_SITE_LINEAR, BY_OUTPUT},
    [SLOT_DELTA_NORM] = {DT_KIND_NORM},
    [SLOT_NORM1] = {DT_KIND_NORM},
    [SLOT_NORM2] = {DT_KIND_NORM},
    [SLOT_NORM3] = {DT_KIND_NORM},
    [SLOT_NORM4] = {DT_KIND_NORM},
    [SLOT_Q_NORM] = {DT_KIND_NORM},
    [SLOT_K_NORM] = {DT_KIND_NORM},
    [SLOT_TOKENS] = {DT_KIND_EMBEDDING, DT_SITE_NAMED, BY_OUTPUT},
    [SLOT_POSITIONS] = {DT_KIND_EMBEDDING, DT_SITE_NAMED},
    [SLOT_FINAL_NORM] = {DT_KIND_NORM},
    [SLOT_HEAD] = {DT_KIND_HEAD, DT_SITE_NAMED, BY_OUTPUT},
    [SLOT_SCORE] = {DT_KIND_HEAD, DT_SITE_NAMED},
    [SLOT_PATCHES] = {DT_KIND_PATCHES},
    [SLOT_PRE_NORM] = {DT_KIND_NORM},
};

static int shape_of(const struct builder *b, const struct module *k, int64_t shape[DT_MAX_DIMS])
{
    const bool turned = k->flags & IN_FIRST;
    const int64_t out = k->out == SIZE_LABELS ? b->n_labels : dt_family_size(b->mc, k->out),
                  in = dt_family_size(b->mc, k->in);
    shape[0] = turned ? in : out;
    shape[1] = k->slot == SLOT_PATCHES ? 3 : turned ? out : in;
    shape[2] = shape[3] = shape[4] = b->patch_size;
    if (b->n_frames > 0) shape[2] = b->n_frames;
    if (k->slot == SLOT_CONV) shape[1] = 1, shape[2] = in;
    if (k->flags & BATCHED) shape[0] = 1, shape[1] = k->in == NO_SIZE ? 1 : out, shape[2] = k->in == NO_SIZE ? out : in;
    if (k->slot == SLOT_CONV || k->flags & BATCHED) return 3;
    return k->slot == SLOT_PATCHES ? 4 + (b->n_frames > 0) : k->in == NO_SIZE ? 1 : 2;
}

static dt_err add_weight(const struct builder *b, const struct module *k, int64_t expert, bool new_group)
{
    char name[2 * DT_NAME_MAX], module[64];
    int64_t shape[DT_MAX_DIMS];
    const int n_dims = shape_of(b, k, shape);
    const struct slot_kind *is = &SLOTS[k->slot];
    const bool norm = is->kind == DT_KIND_NORM, ones = norm && (!b->mc->norm_plus_one || k->slot == SLOT_DELTA_NORM),
               linear = k->slot < N_LINEARS, in_first = k->flags & IN_FIRST;
    const double depth = k->flags & DEPTH_SCALED ? sqrt(2.0 * (double)b->mc->num_hidden_layers) : 1;
    dt_module_name(k, expert, module);
    snprintf(name, sizeof name, "%s%s%s", k->slot == SLOT_SCORE ? "" : b->prefix, module,
             k->flags & BARE ? "" : ".weight");
    DT_TRY(dt_unit_add(b->unit, name, n_dims, shape, new_group, !norm && k->slot != SLOT_DT_BIAS,
                       norm ? 0 : (float)(b->mc->initializer_range / depth), ones));
    dt_tensor *t = &b->unit->tensors[b->unit->n_tensors - 1];
    t->kind = is->kind;
    if (k->slot == SLOT_DT_BIAS || k->slot == SLOT_A_LOG) {
        t->init_std = 0;
        t->init_value = k->slot == SLOT_DT_BIAS ? 1 : (float)log(8); /* transformers: log of uniform in (0.01, 16) */
    }
    if (k->slot == SLOT_SCALE1 || k->slot == SLOT_SCALE2) t->init_std = 0, t->init_value = (float)b->mc->layer_scale;
    if (k->slot == SLOT_CORRECTION) {
        t->part = DT_EXACT, t->trainable = t->decay = false, t->init_std = 0;
        dt_unit_lay_out(b->unit);
    }
    t->in_first = in_first;
    t->of_expert = k->flags & PER_EXPERT;
    t->expert = expert;
    t->split = is->division == WHOLE || k->flags & BATCHED ? -1 : (is->division == BY_INPUT) != (linear && in_first);
    t->site = b->tower && !linear                     ? DT_SITE_NONE
              : b->unit->role == DT_UNIT_CARRIED      ? DT_SITE_IDLE
              : linear && k->flags & ADAPT_BY_DEFAULT ? DT_SITE_DEFAULT
                                                      : is->site;
    if (b->mc->family->peft_names_experts && (k->slot == SLOT_UP || k->slot == SLOT_DOWN)) t->site = DT_SITE_NONE;
    t->quantisable = !b->tower && linear && k->slot != SLOT_ROUTER && k->slot != SLOT_MLP_GATE;
    return DT_OK;
}

static bool is_left_out(const struct builder *b, const struct module *k)
{
    if (k->slot == SLOT_SCORE) return b->n_labels <= 0;
    if (k->slot == SLOT_HEAD) return b->n_labels != 0 || b->mc->tie_word_embeddings;
    return !dt_module_is_in(k, b->layer) || (k->only_if && !dt_family_has(b->mc, k->only_if));
}

/* Describe the tensor of files that may contain the last one: that of modules first .. end-1 of all experts. */
static void note_fused(const struct builder *b, const struct module *of, int first, int end, int i, int64_t expert,
                       bool bias)
{
    dt_tensor *t = &b->unit->tensors[b->unit->n_tensors - 1];
    const struct family_fused *fused = dt_family_fused(b->mc->family, of[i].slot);
    const bool each = of[i].flags & PER_EXPERT, turned = of[i].flags & IN_FIRST && !bias;
    const int64_t in = bias ? 1 : dt_family_size(b->mc, of[i].in);
    if (!fused || (bias && !each)) return;
    int64_t before = 0, out = 0;
    for (int k = first; k < end; k++) {
        if (is_left_out(b, &of[k])) continue;
        if (k < i) before += dt_family_size(b->mc, of[k].out);
        out += dt_family_size(b->mc, of[k].out);
    }
    t->fused = (dt_fused){.name = fused->name,
                          .n_prefix = (int)strlen(b->prefix),
                          .suffix = bias ? "_bias" : NULL,
                          .first = (expert * out + before) * in,
                          .n_dims = (each ? 3 : 2) - bias,
                          .saved = fused->saved,
                          .either = fused->either};
    t->fused.shape[0] = b->mc->num_experts;
    t->fused.shape[each] = turned ? in : out;
    t->fused.shape[each + 1] = turned ? out : in;
}

static dt_err add_bias(const struct builder *b, const struct module *k, int64_t expert, bool new_group)
{
    char name[2 * DT_NAME_MAX], module[64];
    const int64_t n = k->out == SIZE_LABELS ? b->n_labels : dt_family_size(b->mc, k->out);
    dt_module_name(k, expert, module);
    snprintf(name, sizeof name, "%s%s.bias", b->prefix, module);
    DT_TRY(dt_unit_add(b->unit, name, 1, &n, new_group, false, 0, 0));
    dt_tensor *t = &b->unit->tensors[b->unit->n_tensors - 1];
    t->split = SLOTS[k->slot].division == BY_OUTPUT ? 0 : -1;
    t->of_expert = k->flags & PER_EXPERT;
    t->expert = expert;
    return DT_OK;
}

/* Weights or biases of modules first .. end-1, which one matmul computes. The first is left out only together with the
 * others. */
static dt_err add_all(const struct builder *b, const struct module *of, int first, int end, bool bias)
{
    const int64_t n = of[first].flags & PER_EXPERT ? b->mc->num_experts : 1;
    for (int64_t e = 0; e < n; e++)
        for (int i = first; i < end; i++) {
            if (is_left_out(b, &of[i]) || (bias && !dt_family_has(b->mc, of[i].bias_if))) continue;
            DT_TRY((bias ? add_bias : add_weight)(b, &of[i], e, e == 0 && i == first));
            note_fused(b, of, first, end, i, e, bias);
        }
    return DT_OK;
}

dt_err dt_units_build(const struct builder *b, dt_unit_role role, const char *name, const struct module *of)
{
    b->unit->role = role;
    snprintf(b->unit->name, sizeof b->unit->name, "%s", name);
    for (int first = 0, end; first < MAX_MODULES && of[first].name; first = end) {
        for (end = first + 1; end < MAX_MODULES && of[end].name && of[end].slot == of[first].slot;) end++;
        DT_TRY(add_all(b, of, first, end, false));
        DT_TRY(add_all(b, of, first, end, true));
    }
    return DT_OK;
}

static dt_err build_text(const dt_model_config *mc, int64_t n_labels, int i, dt_unit *u)
{
    const int n_blocks = (int)mc->num_hidden_layers;
    const char *inside = mc->vision ? DT_LANGUAGE_PREFIX : "";
    struct builder b = {.mc = mc, .n_labels = n_labels, .unit = u};
    char name[24];
    snprintf(b.prefix, sizeof b.prefix, "%s", inside);
    if (i == 0) return dt_units_build(&b, DT_UNIT_EMBEDDING, "embed", mc->family->embed);
    if (i > n_blocks)
        return dt_units_build(&b, n_labels != 0 ? DT_UNIT_SCALAR_HEAD : DT_UNIT_HEAD, "head", mc->family->head);
    snprintf(name, sizeof name, "block.%d", i - 1);
    b.layer = dt_model_layer(mc, i - 1);
    snprintf(b.prefix, sizeof b.prefix, "%s%s%d.", inside, mc->family->blocks, i - 1);
    return dt_units_build(&b, DT_UNIT_BLOCK, name, mc->family->block);
}

static dt_err make_units(const dt_model_config *mc, int64_t n_labels, dt_unit **units, int *n_units)
{
    const int n_text = (int)mc->num_hidden_layers + 2, n = n_text + dt_vision_n_units(mc->vision);
    dt_unit *u = calloc((size_t)n, sizeof *u);
    *units = NULL;
    *n_units = 0;
    DT_CHECK(u, DT_ERR_MEMORY, "out of memory for the tables of %d units", n);
    dt_err err = DT_OK;
    for (int i = 0; i < n_text && err == DT_OK; i++) err = build_text(mc, n_labels, i, &u[i]);
    for (int i = 0; i < n_text; i++) dt_own_code_note(mc, &u[i]);
    if (err == DT_OK) err = dt_vision_build_units(mc->vision, &u[n_text]);
    if (err != DT_OK) {
        dt_model_free_units(u, n);
        return err;
    }
    for (int i = 0; mc->vision && i < n; i++)
        for (int k = 0; k < u[i].n_tensors; k++) u[i].tensors[k].renamings = mc->vision->tower->names;
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
    DT_EXPECT(n_labels > 0 || n_labels == DT_HIDDEN_STATES);
    return make_units(mc, n_labels, units, n_units);
}

void dt_model_free_units(dt_unit *units, int n_units) { dt_units_free(units, n_units); }

const char *dt_model_of_language(const char *name)
{
    static const char prefix[] = DT_LANGUAGE_PREFIX;
    return strncmp(name, prefix, sizeof prefix - 1) == 0 ? name + sizeof prefix - 1 : name;
}

bool dt_model_is_vocabulary(const dt_tensor *t)
{
    bool is = false;
    const char *name = dt_model_of_language(t->name), *module;
    for (int i = 0; (module = dt_vocabulary_module(i)) && !is; i++)
        is = strncmp(name, module, strlen(module)) == 0 && strcmp(name + strlen(module), ".weight") == 0;
    return is;
}

int dt_model_tied_unit(const dt_model_config *mc, const dt_unit *units, int n_units)
{
    const bool tied = mc->tie_word_embeddings && dt_units_find(units, n_units, DT_UNIT_HEAD) >= 0;
    return tied ? dt_units_find(units, n_units, DT_UNIT_EMBEDDING) : -1;
}

/* Does a matmul use this matrix? Embeddings are only looked up, except that of a tied model: the vocabulary head
 * multiplies it. Of an embedding's adapter, A [r, rows] is looked up and B [hidden_size, r] is multiplied. */
static bool is_matmul(const dt_model_config *mc, const dt_unit *u, const dt_tensor *t, bool predicts)
{
    if (!dt_is_matrix(t)) return false;
    if (u->role != DT_UNIT_EMBEDDING) return true;
    if (t->adapter_scale != 0) return strstr(t->name, ".lora_embedding_B") != NULL;
    return predicts && mc->tie_word_embeddings && t->shape[0] == mc->vocab_size && t == &u->tensors[0];
}

/* The share of the tokens that use an expert, on average. */
static double share_of_expert(const dt_model_config *mc)
{
    return (double)mc->num_experts_per_tok / (double)mc->num_experts;
}

int64_t dt_model_n_active(const dt_model_config *mc, const dt_unit *units, int n_units)
{
    int64_t n = 0, of_experts = 0;
    for (int u = 0; u < n_units; u++)
        for (int i = 0; i < units[u].n_tensors; i++)
            *(units[u].tensors[i].of_expert ? &of_experts : &n) += dt_n_weights_of_whole(&units[u].tensors[i]);
    return of_experts > 0 ? n + of_experts / mc->num_experts * mc->num_experts_per_tok : n;
}

/* Forward of the gated delta rule, by token and layer: the matmuls of a full chunk (count_ops.c). */
static double linear_flops(const dt_model_config *mc)
{
    const double C = DT_DELTA_CHUNK, k = (double)mc->linear_key_head_dim, v = (double)mc->linear_value_head_dim;
    return (double)mc->linear_num_value_heads * (C * (4 * k + 3 * v) + 6 * k * v);
}

/* Forward takes 2 operations per matrix element and token, backward 2 for the input's gradient and 2 for the matrix's.
 * Attention computes q k^T and p v over the causal half of len^2: 2 Q len^2 in forward, twice that in backward. Norms
 * are not counted, and windows do not reduce the count. */
double dt_model_train_flops(const dt_model_config *mc, const dt_unit *units, int n_units, int64_t n_tok,
                            double sum_seq_len_squared)
{
    const double L = (double)mc->num_hidden_layers,
                 Q = (double)(mc->num_attention_heads * (mc->head_dim + dt_model_v_dim(mc))) / 2,
                 n_linear = (double)dt_model_n_linear(mc);
    const bool predicts = dt_units_find(units, n_units, DT_UNIT_HEAD) >= 0;
    double per_token = 0;
    for (int u = 0; u < dt_vision_first_unit(units, n_units); u++)
        for (int i = 0; i < units[u].n_tensors; i++) {
            const dt_tensor *t = &units[u].tensors[i];
            if (is_matmul(mc, &units[u], t, predicts))
                per_token += (t->trainable ? 6 : 4) * (double)dt_n_weights_of_whole(t) *
                             (t->of_expert ? share_of_expert(mc) : 1);
        }
    return (per_token + 3 * n_linear * linear_flops(mc)) * (double)n_tok + 6 * (L - n_linear) * Q * sum_seq_len_squared;
}
