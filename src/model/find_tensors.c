/* find_tensors.c - find each unit by its role and its tensors by the end of their names, once at open. Blocks may
 * differ: a tensor may be trained in one block and frozen in the next. */
#include "model_private.h"
#include <inttypes.h>
#include <string.h>

/* The tensor with this name, or with a name that ends in "." and this name. The rest is the unit's prefix. */
static const dt_tensor *find(const dt_unit *u, const char *name)
{
    const size_t n = strlen(name);
    for (int i = 0; i < u->n_tensors; i++) {
        const char *full = u->tensors[i].name;
        const size_t len = strlen(full);
        if (len >= n && strcmp(full + len - n, name) == 0 && (len == n || full[len - n - 1] == '.'))
            return &u->tensors[i];
    }
    return NULL;
}

static struct tensor_at at(const dt_tensor *t)
{
    return t ? (struct tensor_at){t->offset, t->part} : (struct tensor_at){.offset = -1};
}

static struct tensor_at locate(const dt_unit *u, const char *name) { return at(find(u, name)); }

/* Layers that one matmul computes: adjacent in memory and in the columns of the output. */
struct fused {
    const char *name[MAX_LOW];
    int64_t n_out[MAX_LOW];
};

enum { HEAD_LAYER = -1 }; /* for the dropout key: block numbers start at 0 */

static const dt_tensor *find_part(const dt_unit *u, const char *name, const char *part)
{
    char full[64];
    snprintf(full, sizeof full, "%s.%s", name, part);
    return find(u, full);
}

static void add_adapter(struct linear *l, const dt_tensor *a, const dt_tensor *b, int64_t first_out)
{
    struct low_rank *low = l->n_low > 0 ? &l->low[l->n_low - 1] : NULL;
    const int64_t r = a->shape[0];
    if (!low || low->scale != a->adapter_scale) {
        low = &l->low[l->n_low++];
        *low = (struct low_rank){.a = at(a), .scale = a->adapter_scale};
    }
    low->part[low->n_parts++] =
        (struct low_part){.b = at(b), .r = r, .first_r = low->r, .n_out = b->shape[0], .first_out = first_out};
    low->r += r;
    l->low_r += r;
}

static void find_adapters(struct linear *l, const dt_unit *u, const struct fused *of)
{
    int64_t first_out = 0;
    for (int i = 0; i < MAX_LOW && of->name[i]; first_out += of->n_out[i++]) {
        const dt_tensor *a = find_part(u, of->name[i], "lora_A.weight"),
                        *b = find_part(u, of->name[i], "lora_B.weight");
        if (a && b) add_adapter(l, a, b, first_out);
    }
}

static struct linear linear_at(const dt_model *m, const dt_unit *u, enum linear_site site, int64_t layer, int64_t n_in,
                               struct fused of)
{
    const int64_t n_out = of.n_out[0] + of.n_out[1] + of.n_out[2];
    const dt_tensor *w = find_part(u, of.name[0], "weight");
    const bool coded = w && w->part == DT_CODES, conv1d = m->mc->conv1d && !coded;
    struct linear l = {.n_in = n_in,
                       .n_out = n_out,
                       .w = at(w),
                       .b = at(find_part(u, of.name[0], "bias")),
                       .blocks = at(find_part(u, of.name[0], "weight_blocks")),
                       .scale = at(find_part(u, of.name[0], "weight_scale")),
                       .finer = coded ? w->coded.finer : 0,
                       .w_ld = conv1d ? n_out : n_in,
                       .conv1d = conv1d,
                       .layer = layer,
                       .site = site};
    if (!m->opt.no_adapters) find_adapters(&l, u, &of);
    return l;
}

struct linear dt_linear_at(const dt_model *m, const dt_unit *u, const char *name, int64_t n_in, int64_t n_out)
{
    return linear_at(m, u, LINEAR_UP, HEAD_LAYER, n_in, (struct fused){{name}, {n_out}});
}

struct norm dt_norm_at(const dt_unit *u, const char *weight, const char *bias)
{
    return (struct norm){locate(u, weight), locate(u, bias)};
}

static void find_gpt2_block(const dt_model *m, const dt_unit *u, struct block *b)
{
    b->norm1 = dt_norm_at(u, "ln_1.weight", "ln_1.bias");
    b->norm2 = dt_norm_at(u, "ln_2.weight", "ln_2.bias");
    b->q_norm = b->k_norm = (struct tensor_at){.offset = -1};
    b->qkv = linear_at(m, u, LINEAR_QKV, b->layer, m->C, (struct fused){{"attn.c_attn"}, {m->W}});
    b->o = linear_at(m, u, LINEAR_O, b->layer, m->Q, (struct fused){{"attn.c_proj"}, {m->C}});
    b->up = linear_at(m, u, LINEAR_UP, b->layer, m->C, (struct fused){{"mlp.c_fc"}, {m->U}});
    b->down = linear_at(m, u, LINEAR_DOWN, b->layer, m->F, (struct fused){{"mlp.c_proj"}, {m->C}});
}

static void find_llama_block(const dt_model *m, const dt_unit *u, struct block *b)
{
    b->norm1 = dt_norm_at(u, "input_layernorm.weight", "input_layernorm.bias");
    b->norm2 = dt_norm_at(u, "post_attention_layernorm.weight", "post_attention_layernorm.bias");
    b->q_norm = locate(u, "self_attn.q_norm.weight");
    b->k_norm = locate(u, "self_attn.k_norm.weight");
    const struct fused qkv = {{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, {m->Q, m->K, m->K}},
                       up = {{"mlp.gate_proj", "mlp.up_proj"}, {m->F, m->F}};
    b->qkv = linear_at(m, u, LINEAR_QKV, b->layer, m->C, qkv);
    b->o = linear_at(m, u, LINEAR_O, b->layer, m->Q, (struct fused){{"self_attn.o_proj"}, {m->C}});
    b->up = linear_at(m, u, LINEAR_UP, b->layer, m->C, up);
    b->down = linear_at(m, u, LINEAR_DOWN, b->layer, m->F, (struct fused){{"mlp.down_proj"}, {m->C}});
}

static void find_tower_block(const dt_model *m, const dt_unit *u, struct block *b)
{
    const struct fused qkv = {{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, {m->Q, m->K, m->K}};
    b->norm1 = dt_norm_at(u, "layer_norm1.weight", "layer_norm1.bias");
    b->norm2 = dt_norm_at(u, "layer_norm2.weight", "layer_norm2.bias");
    b->q_norm = b->k_norm = (struct tensor_at){.offset = -1};
    b->qkv = linear_at(m, u, LINEAR_QKV, b->layer, m->C, qkv);
    b->o = linear_at(m, u, LINEAR_O, b->layer, m->Q, (struct fused){{"self_attn.out_proj"}, {m->C}});
    b->up = linear_at(m, u, LINEAR_UP, b->layer, m->C, (struct fused){{"mlp.fc1"}, {m->U}});
    b->down = linear_at(m, u, LINEAR_DOWN, b->layer, m->F, (struct fused){{"mlp.fc2"}, {m->C}});
}

static dt_err find_block(const dt_model *m, const dt_unit *u, struct block *b)
{
    if (m->mc->family == DT_TOWER)
        find_tower_block(m, u, b);
    else
        (m->mc->family == DT_GPT2 ? find_gpt2_block : find_llama_block)(m, u, b);
    const bool complete = dt_exists(b->norm1.w) && dt_exists(b->norm2.w) && dt_exists(b->qkv.w) && dt_exists(b->o.w) &&
                          dt_exists(b->up.w) && dt_exists(b->down.w) &&
                          (!m->mc->qk_norm || (dt_exists(b->q_norm) && dt_exists(b->k_norm)));
    DT_EXPECT(complete);
    return DT_OK;
}

/* Offsets of A's elements are 32-bit, like token ids. */
static dt_err find_low_table(dt_model *m, const dt_unit *u, enum low_of of, const char *name)
{
    const dt_tensor *a = find_part(u, name, "lora_embedding_A"), *b = find_part(u, name, "lora_embedding_B");
    if (m->opt.no_adapters || !a || !b) return DT_OK;
    const int64_t r = a->shape[0], n_rows = a->shape[1];
    DT_CHECK(r * dt_max_i64(n_rows, m->opt.max_tok) <= INT32_MAX, DT_ERR_USAGE,
             "%s: an adapter of rank %" PRId64 " needs more than 2^31 values for %" PRId64 " rows, or for %d tokens",
             a->name, r, n_rows, m->opt.max_tok);
    m->low_table[of] = (struct low_table){.low = {.a = at(a),
                                                  .r = r,
                                                  .scale = a->adapter_scale,
                                                  .part = {{.b = at(b), .r = r, .n_out = m->C}},
                                                  .n_parts = 1},
                                          .n_rows = n_rows};
    return DT_OK;
}

/* A tower looks up positions, and its patches are in the same unit. */
static dt_err find_patches(dt_model *m, const dt_unit *u)
{
    struct tower_input *k = &m->patches;
    const dt_vision_config *v = m->opt.tower;
    DT_EXPECT(v);
    k->config = v;
    k->n_rows = v->n_rows;
    k->image_nbytes = dt_image_nbytes(v->image_size);
    k->conv = linear_at(m, u, LINEAR_UP, HEAD_LAYER, 3 * v->patch_size * v->patch_size,
                        (struct fused){{"patch_embedding"}, {m->C}});
    k->token = locate(u, "class_embedding");
    k->pre = dt_norm_at(u, "pre_layrnorm.weight", "pre_layrnorm.bias");
    m->wte = locate(u, "position_embedding.weight");
    m->wpe.offset = -1;
    const bool clip = v->tower == DT_TOWER_CLIP;
    DT_EXPECT(dt_exists(m->wte) && dt_exists(k->conv.w) && dt_exists(k->token) == clip && dt_exists(k->pre.w) == clip);
    return DT_OK;
}

static dt_err find_embedding(dt_model *m, const dt_unit *u)
{
    if (u->role == DT_UNIT_PATCHES) return find_patches(m, u);
    const bool gpt2 = m->mc->family == DT_GPT2;
    m->wte = locate(u, gpt2 ? "wte.weight" : "embed_tokens.weight");
    m->wpe = locate(u, "wpe.weight");
    DT_EXPECT(dt_exists(m->wte) && (!gpt2 || dt_exists(m->wpe)));
    DT_TRY(find_low_table(m, u, LOW_TOKENS, gpt2 ? "wte" : "embed_tokens"));
    return gpt2 ? find_low_table(m, u, LOW_POSITIONS, "wpe") : DT_OK;
}

/* A vocabulary head, which may be tied to the embedding, or a scalar head. */
static dt_err find_head(dt_model *m, const dt_unit *u)
{
    const bool scalar = u->role == DT_UNIT_SCALAR_HEAD;
    const dt_tensor *score = scalar ? find(u, "score.weight") : NULL;
    m->tied = m->mc->tie_word_embeddings && !scalar;
    m->n_labels = score ? score->shape[0] : 0;
    m->final_norm = m->mc->family == DT_GPT2 ? dt_norm_at(u, "ln_f.weight", "ln_f.bias")
                                             : dt_norm_at(u, "norm.weight", "norm.bias");
    m->head = (struct linear){
        .n_in = m->C, .n_out = scalar ? m->n_labels : m->V, .w_ld = m->C, .in_fp32 = true, .layer = HEAD_LAYER};
    m->head.b.offset = m->head.blocks.offset = m->head.scale.offset = -1;
    m->head.w = m->tied ? m->wte : locate(u, scalar ? "score.weight" : "lm_head.weight");
    if (!scalar && !m->opt.no_adapters) find_adapters(&m->head, u, &(struct fused){{"lm_head"}, {m->V}});
    DT_EXPECT(dt_exists(m->final_norm.w) && dt_exists(m->head.w));
    return DT_OK;
}

static dt_err add_stage(dt_model *m, int unit, int64_t *n_blocks, int64_t *n_encoders)
{
    const dt_unit *u = &m->units[unit];
    struct stage *s = &m->stages[m->n_stages++];
    *s = (struct stage){.role = u->role, .unit = unit};
    DT_EXPECT(u->role != DT_UNIT_OWN || m->opt.own_stage);
    if (u->role == DT_UNIT_OWN) return DT_OK;
    s->block.bidirectional = u->role == DT_UNIT_ENCODER;
    s->block.layer = u->role == DT_UNIT_ENCODER ? m->mc->num_hidden_layers + (*n_encoders)++ : (*n_blocks)++;
    return find_block(m, u, &s->block);
}

static dt_err find_stages(dt_model *m)
{
    const int64_t L = m->mc->num_hidden_layers;
    int64_t n_blocks = 0, n_encoders = 0;
    m->embed_unit = m->head_unit = -1;
    for (int u = 0; u < m->n_units; u++) {
        const dt_unit_role role = m->units[u].role;
        const bool head = role == DT_UNIT_HEAD || role == DT_UNIT_SCALAR_HEAD,
                   embed = role == DT_UNIT_EMBEDDING || role == DT_UNIT_PATCHES;
        int *only = embed ? &m->embed_unit : head ? &m->head_unit : NULL;
        DT_EXPECT((int)role >= 0 && role < DT_N_UNIT_ROLES && (!only || *only < 0));
        if (only) *only = u;
        if (!only && role != DT_UNIT_CARRIED) DT_TRY(add_stage(m, u, &n_blocks, &n_encoders));
    }
    DT_EXPECT(m->embed_unit >= 0 && (m->head_unit >= 0 || m->opt.tower) && n_blocks == L);
    return DT_OK;
}

static bool has_trained(const dt_model *m, int unit) { return m->units[unit].flat_len[DT_TRAINED] > 0; }

/* Determine which stages backward reaches, and assign each its set of activations. */
static void number_sets(dt_model *m)
{
    int64_t n = 0;
    m->first_trained = has_trained(m, m->embed_unit) || m->placeholders_learn ? -1 : 0;
    while (m->first_trained >= 0 && m->first_trained < m->n_stages && !has_trained(m, m->stages[m->first_trained].unit))
        m->first_trained++;
    m->first_kept = m->first_trained < 0 ? 0 : m->first_trained;
    for (int64_t i = m->first_kept; i < m->n_stages; i++)
        if (m->stages[i].role != DT_UNIT_OWN) m->stages[i].set = n++;
    m->n_x = m->opt.training ? m->n_stages - m->first_kept + 1 : 1;
    m->n_sets = m->opt.training && m->opt.recompute != DT_RECOMPUTE_BLOCK && n > 0 ? n : 1;
}

dt_err dt_model_find_tensors(dt_model *m)
{
    DT_TRY(find_stages(m));
    DT_TRY(find_embedding(m, &m->units[m->embed_unit]));
    if (m->head_unit >= 0) DT_TRY(find_head(m, &m->units[m->head_unit]));
    number_sets(m);
    return DT_OK;
}
