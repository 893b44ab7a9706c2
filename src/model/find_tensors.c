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

static const struct linear NO_LINEAR = {.w = {.offset = -1}, .b = {.offset = -1}};

static struct tensor_at at(const dt_tensor *t)
{
    return t ? (struct tensor_at){t->offset, t->part} : (struct tensor_at){.offset = -1};
}

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

static void add_adapter(struct linear *l, const dt_tensor *a, const dt_tensor *b, const dt_tensor *m, int64_t first_out)
{
    struct low_rank *low = l->n_low > 0 ? &l->low[l->n_low - 1] : NULL;
    const int64_t r = a->shape[0];
    if (!low || low->scale != a->adapter_scale) {
        const int first = low ? low->first + low->n_parts : 0;
        low = &l->low[l->n_low++];
        *low = (struct low_rank){.a = at(a), .scale = a->adapter_scale, .first = first};
    }
    l->part[low->first + low->n_parts++] =
        (struct low_part){at(b), at(m), .r = r, .first_r = low->r, .n_out = b->shape[0], .first_out = first_out};
    l->scaled = l->scaled || m;
    low->r += r;
    l->low_r += r;
}

static void find_adapters(struct linear *l, const dt_unit *u, const struct fused *of)
{
    int64_t first_out = 0;
    for (int i = 0; i < MAX_LOW && of->name[i]; first_out += of->n_out[i++]) {
        const dt_tensor *a = find_part(u, of->name[i], "lora_A.weight"),
                        *b = a ? find_part(u, of->name[i], "lora_B.weight") : NULL;
        if (b) add_adapter(l, a, b, find_part(u, of->name[i], "lora_magnitude_vector"), first_out);
    }
}

/* The adapter of a router, or of all experts of a slot, by the name of the parameter. */
static void find_parameter_adapter(struct linear *l, const dt_unit *u, const char *name)
{
    const dt_tensor *a = find_part(u, name, "lora_A.weight"), *b = a ? find_part(u, name, "lora_B.weight") : NULL;
    if (!b) return;
    const int64_t r = b->shape[1];
    l->low[0] = (struct low_rank){.a = at(a), .r = r, .scale = a->adapter_scale, .n_parts = 1};
    l->part[0] = (struct low_part){at(b), at(NULL), .r = r, .n_out = l->n_out};
    l->n_low = 1;
    l->low_r = r;
}

static struct linear linear_at(const dt_model *m, const dt_unit *u, enum slot slot, int64_t layer, int64_t n_in,
                               const struct fused *of)
{
    int64_t n_out = 0;
    for (int i = 0; i < MAX_LOW; i++) n_out += of->n_out[i];
    char whole[64];
    snprintf(whole, sizeof whole, "%s_weight", of->name[0]);
    const dt_tensor *with = find_part(u, of->name[0], "weight"), *w = with ? with : find(u, whole);
    const bool coded = w && w->part == DT_CODES, in_first = w && w->in_first;
    struct linear l = {.n_in = n_in,
                       .n_out = n_out,
                       .w = at(w),
                       .b = at(find_part(u, of->name[0], "bias")),
                       .blocks = at(coded && w->coded.blocks >= 0 ? &u->tensors[w->coded.blocks] : NULL),
                       .scale = at(coded ? &u->tensors[w->coded.scales] : NULL),
                       .finer = coded ? w->coded.finer : 0,
                       .w_ld = in_first ? n_out : n_in,
                       .in_first = in_first,
                       .n_rows = 1,
                       .layer = layer,
                       .site = slot};
    if (!m->opt.no_adapters) find_adapters(&l, u, of);
    return l;
}

struct linear dt_linear_at(const dt_model *m, const dt_unit *u, const char *name, int64_t n_in, int64_t n_out)
{
    return linear_at(m, u, SLOT_UP, HEAD_LAYER, n_in, &(struct fused){{name}, {n_out}});
}

struct norm dt_norm_at(const dt_model *m, const dt_unit *u, const char *name)
{
    return (struct norm){.w = at(find_part(u, name, "weight")),
                         .b = at(find_part(u, name, "bias")),
                         .width = m->C,
                         .x_ld = m->C,
                         .y_ld = m->C,
                         .eps = (float)m->mc->norm_eps,
                         .rms = m->mc->rms_norm,
                         .plus_one = m->mc->norm_plus_one};
}

/* The location of a module's weight, or of no tensor. */
static struct tensor_at weight_of(const dt_unit *u, const struct module *of, enum slot slot)
{
    const struct module *k = dt_family_find(of, slot);
    return at(!k ? NULL : k->flags & BARE ? find(u, k->name) : find_part(u, k->name, "weight"));
}

static const struct norm NO_NORM = {.w = {.offset = -1}, .b = {.offset = -1}};

static struct norm norm_of(const dt_model *m, const dt_unit *u, const struct module *of, enum slot slot)
{
    const struct module *k = dt_family_find(of, slot);
    struct norm n = k ? dt_norm_at(m, u, k->name) : NO_NORM;
    n.w = weight_of(u, of, slot);
    n.only_scales = slot == SLOT_SCALE1 || slot == SLOT_SCALE2;
    n.rms = n.rms || n.only_scales;
    return n;
}

/* Of queries or keys: compressed rows in rows of A, or all heads at once in rows of W. Norms of single heads are part
 * of heads_forward. The eps of compressed rows does not depend on rms_norm_eps, as in transformers. */
static struct norm find_qk_norm(const dt_model *m, const dt_unit *u, enum slot slot)
{
    const struct module *k = dt_family_find(m->mc->family->block, slot);
    struct norm n = norm_of(m, u, m->mc->family->block, slot);
    n.width = k ? dt_family_size(m->mc, k->out) : 0;
    n.rms = true;
    n.x_ld = m->A > 0 ? m->A : m->W;
    n.y_ld = m->A > 0 ? n.width : m->W;
    if (m->A > 0) n.eps = 1e-6f;
    return n;
}

/* The linear layer of a slot: one matmul computes its modules. Experts: found by the first one's in this unit. */
static struct linear linear_of(const dt_model *m, const dt_unit *u, const struct block *b, enum slot slot,
                               int64_t expert)
{
    const struct module *first = dt_family_find_in(m->mc->family->block, slot, b->traits);
    char names[MAX_LOW][64];
    struct fused of = {{NULL}, {0}};
    int64_t n_in = 0;
    int n = 0;
    for (const struct module *k = first; k->slot == slot && k->name; k++) {
        if (k->only_if && !dt_family_has(m->mc, k->only_if)) continue;
        dt_module_name(k, expert, names[n]);
        of.name[n] = names[n];
        of.n_out[n++] = dt_family_size(m->mc, k->out);
        n_in = dt_family_size(m->mc, k->in);
    }
    struct linear l = linear_at(m, u, slot, b->layer, n_in, &of);
    const struct family_fused *fused = dt_family_fused(m->mc->family, slot);
    l.n_groups = first->flags & PER_EXPERT ? (int)m->E : 0;
    if (l.n_groups > 0) l.n_rows = m->k;
    if (l.n_groups > 0 && fused && !m->opt.no_adapters) find_parameter_adapter(&l, u, fused->name);
    if (slot == SLOT_ROUTER && !m->opt.no_adapters) {
        char name[80];
        snprintf(name, sizeof name, "%s.weight", names[0]);
        find_parameter_adapter(&l, u, name);
    }
    l.in_fp32 = slot == SLOT_ROUTER || slot == SLOT_MLP_GATE;
    return l;
}

/* A norm before the mixer is the branch's `pre`, a norm after it its `post`. False: a norm is missing. */
static bool find_branches(const dt_model *m, const dt_unit *u, struct block *b)
{
    const dt_family *f = m->mc->family;
    bool complete = true;
    struct branch *of = b->branch;
    for (int i = 0; i < N_BRANCHES; i++) of[i] = (struct branch){STEP_END, NO_NORM, NO_NORM};
    for (const enum step *s = f->steps; *s != STEP_END; s++) {
        if (*s == STEP_ADD) {
            of++;
        } else if (*s == STEP_ATTENTION || *s == STEP_LATENT || *s == STEP_MLP) {
            of->mixer = *s == STEP_MLP && b->traits.sparse         ? STEP_EXPERTS
                        : *s == STEP_ATTENTION && b->traits.linear ? STEP_DELTA
                                                                   : *s;
        } else {
            struct norm *n = of->mixer == STEP_END ? &of->pre : &of->post;
            *n = norm_of(m, u, f->block, SLOT_NORM1 + (*s - STEP_NORM1));
            complete = complete && dt_exists(n->w);
        }
    }
    return complete;
}

static bool find_delta(const dt_unit *u, const struct module *of, struct block *b)
{
    b->conv = weight_of(u, of, SLOT_CONV);
    b->delta_norm = weight_of(u, of, SLOT_DELTA_NORM);
    b->dt_bias = weight_of(u, of, SLOT_DT_BIAS);
    b->a_log = weight_of(u, of, SLOT_A_LOG);
    return dt_exists(b->conv) && dt_exists(b->delta_norm) && dt_exists(b->dt_bias) && dt_exists(b->a_log);
}

/* Find the units of the block's experts, which follow its own. */
static dt_err find_parts(const dt_model *m, int unit, struct block *b)
{
    int n = 0;
    while (unit + 1 + n < m->n_units && m->units[unit + 1 + n].role == DT_UNIT_EXPERTS) n++;
    DT_EXPECT(n % 2 == 0);
    b->parts = &m->parts[unit], b->n_parts = n / 2;
    for (int i = 0; i < n; i++) {
        struct expert_part *p = &m->parts[unit + i];
        const dt_unit *u = &m->units[unit + 1 + i];
        const enum slot slot = i < n / 2 ? SLOT_EXPERT_UP : SLOT_EXPERT_DOWN;
        const int64_t first = u->tensors[0].expert;
        const struct linear l = linear_of(m, u, b, slot, first);
        struct linear *whole = &b->linear[slot];
        int64_t end = first;
        for (int t = 0; t < u->n_tensors; t++) end = dt_max_i64(end, u->tensors[t].expert + 1);
        DT_EXPECT(dt_exists(l.w) && end <= m->E);
        *p = (struct expert_part){.unit = unit + 1 + i, .first = (int)first, .linear = l};
        p->linear.n_groups = (int)(end - first);
        /* for sizes, and for what backward needs; matmuls use those of the parts */
        if (first == 0) whole->w = l.w, whole->w_ld = l.w_ld, whole->in_first = l.in_first;
        if (dt_is_trained(l.w)) whole->w = l.w;
    }
    return DT_OK;
}

static bool has_slot(const dt_model *m, enum slot slot, dt_layer layer)
{
    const struct module *first = dt_family_find_in(m->mc->family->block, slot, layer);
    return first && (!first->only_if || dt_family_has(m->mc, first->only_if));
}

static dt_err find_block(const dt_model *m, const dt_unit *u, struct block *b)
{
    const struct module *of = m->mc->family->block;
    bool complete = find_branches(m, u, b);
    b->q_norm = find_qk_norm(m, u, SLOT_Q_NORM);
    b->k_norm = find_qk_norm(m, u, SLOT_K_NORM);
    b->correction = weight_of(u, of, SLOT_CORRECTION);
    b->sinks = weight_of(u, of, SLOT_SINKS);
    for (enum slot s = SLOT_QKV; s < N_LINEARS; s++)
        b->linear[s] = has_slot(m, s, b->traits) ? linear_of(m, u, b, s, 0) : NO_LINEAR;
    DT_TRY(find_parts(m, (int)(u - m->units), b));
    for (enum slot s = SLOT_QKV; s < N_LINEARS; s++)
        complete = complete && has_slot(m, s, b->traits) == dt_exists(b->linear[s].w);
    const bool normed = m->mc->qk_norm && !b->traits.linear;
    complete = complete && (!normed || (dt_exists(b->q_norm.w) && dt_exists(b->k_norm.w)));
    if (b->traits.linear) complete = complete && find_delta(u, of, b);
    DT_EXPECT(complete);
    return DT_OK;
}

/* Find a table, and its adapter. Offsets of A's elements are 32-bit, like token ids. */
static dt_err find_table(dt_model *m, const dt_unit *u, enum slot slot, enum low_of of, struct tensor_at *table)
{
    const struct module *k = dt_family_find(m->mc->family->embed, slot);
    *table = weight_of(u, m->mc->family->embed, slot);
    const dt_tensor *a = k ? find_part(u, k->name, "lora_embedding_A") : NULL,
                    *b = k ? find_part(u, k->name, "lora_embedding_B") : NULL;
    DT_EXPECT(!k || dt_exists(*table));
    if (m->opt.no_adapters || !a || !b) return DT_OK;
    const int64_t r = a->shape[0], n_rows = a->shape[1];
    DT_CHECK(r * dt_max_i64(n_rows, m->opt.max_tok) <= INT32_MAX, DT_ERR_USAGE,
             "%s: an adapter of rank %" PRId64 " needs more than 2^31 values for %" PRId64 " rows, or for %d tokens",
             a->name, r, n_rows, m->opt.max_tok);
    m->low_table[of] = (struct low_table){.low = {.a = at(a), .r = r, .scale = a->adapter_scale, .n_parts = 1},
                                          .part = {at(b), at(NULL), .r = r, .n_out = m->C},
                                          .n_rows = n_rows};
    return DT_OK;
}

/* The patches of a tower are in the same unit as its table of positions. */
static dt_err find_patches(dt_model *m, const dt_unit *u)
{
    struct tower_input *k = &m->patches;
    const dt_vision_config *v = m->opt.tower;
    const struct module *of = m->mc->family->embed, *patches = dt_family_find(of, SLOT_PATCHES);
    if (u->role != DT_UNIT_PATCHES) return DT_OK;
    DT_EXPECT(v && patches);
    k->config = v;
    k->n_rows = v->n_rows;
    k->image_nbytes = dt_image_nbytes(v->image_size);
    k->conv = dt_linear_at(m, u, patches->name, 3 * (v->grids ? v->n_frames : 1) * v->patch_size * v->patch_size, m->C);
    k->token = weight_of(u, of, SLOT_CLASS);
    k->pre = norm_of(m, u, of, SLOT_PRE_NORM);
    DT_EXPECT(dt_exists(k->conv.w) && dt_exists(k->token) == (dt_family_find(of, SLOT_CLASS) != NULL) &&
              dt_exists(k->pre.w) == (dt_family_find(of, SLOT_PRE_NORM) != NULL));
    return DT_OK;
}

static dt_err find_embedding(dt_model *m, const dt_unit *u)
{
    DT_TRY(find_table(m, u, SLOT_TOKENS, LOW_TOKENS, &m->wte));
    DT_TRY(find_table(m, u, SLOT_POSITIONS, LOW_POSITIONS, &m->wpe));
    return find_patches(m, u);
}

/* A vocabulary head, which may be tied to the embedding, or a scalar head. */
static dt_err find_head(dt_model *m, const dt_unit *u)
{
    const bool scalar = u->role == DT_UNIT_SCALAR_HEAD;
    const struct module *of = m->mc->family->head, *k = dt_family_find(of, scalar ? SLOT_SCORE : SLOT_HEAD);
    const dt_tensor *w = find_part(u, k->name, "weight");
    m->tied = m->mc->tie_word_embeddings && !scalar;
    m->n_labels = !scalar ? 0 : w ? w->shape[0] : m->C;
    m->final_norm = norm_of(m, u, of, SLOT_FINAL_NORM);
    m->head = dt_linear_at(m, u, k->name, m->C, scalar ? m->n_labels : m->V);
    m->head.in_fp32 = true;
    m->head.site = SLOT_QKV; /* key of dropout */
    if (m->tied) m->head.w = m->wte;
    DT_EXPECT(dt_exists(m->final_norm.w) && (scalar || dt_exists(m->head.w)));
    return DT_OK;
}

static dt_err add_stage(dt_model *m, int unit, int64_t *n_blocks, int64_t *n_encoders)
{
    const dt_unit *u = &m->units[unit];
    struct stage *s = &m->stages[m->n_stages++];
    *s = (struct stage){.role = u->role, .unit = unit};
    if (u->role == DT_UNIT_NORM) {
        m->has_norm_stage = true;
        s->norm = norm_of(m, u, m->mc->family->head, SLOT_FINAL_NORM);
        DT_EXPECT(dt_exists(s->norm.w));
        return DT_OK;
    }
    s->block.bidirectional = u->role == DT_UNIT_ENCODER;
    s->block.layer = u->role == DT_UNIT_ENCODER ? m->mc->num_hidden_layers + (*n_encoders)++ : (*n_blocks)++;
    if (!s->block.bidirectional || m->opt.tower) s->block.traits = dt_model_layer(m->mc, s->block.layer);
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
        if (!only && role != DT_UNIT_CARRIED && role != DT_UNIT_EXPERTS)
            DT_TRY(add_stage(m, u, &n_blocks, &n_encoders));
    }
    for (int i = 0; i < N_BRANCHES; i++) m->stages[m->n_stages].block.branch[i].post = NO_NORM; /* the empty one */
    DT_EXPECT(m->embed_unit >= 0 && (m->head_unit >= 0 || m->opt.tower) && n_blocks == L);
    return DT_OK;
}

/* Is there a trained part in the unit, or in those of its experts? */
static bool has_trained(const dt_model *m, int unit)
{
    bool has = m->units[unit].flat_len[DT_TRAINED] > 0;
    while (++unit < m->n_units && m->units[unit].role == DT_UNIT_EXPERTS)
        has = has || m->units[unit].flat_len[DT_TRAINED] > 0;
    return has;
}

/* Determine which stages backward reaches, and assign each its set of activations. */
static void number_sets(dt_model *m)
{
    int64_t n = 0;
    m->first_trained = has_trained(m, m->embed_unit) || m->placeholders_learn ? -1 : 0;
    while (m->first_trained >= 0 && m->first_trained < m->n_stages && !has_trained(m, m->stages[m->first_trained].unit))
        m->first_trained++;
    m->first_kept = m->first_trained < 0 ? 0 : m->first_trained;
    for (int64_t i = m->first_kept; i < m->n_stages; i++)
        if (m->stages[i].role != DT_UNIT_NORM) m->stages[i].set = n++;
    m->n_x = m->opt.training ? m->n_stages - m->first_kept + 1 : 1;
    m->n_sets = m->opt.training && m->opt.recompute != DT_RECOMPUTE_BLOCK && n > 0 ? n : 1;
}

dt_err dt_model_find_tensors(dt_model *m)
{
    DT_TRY(find_stages(m));
    DT_TRY(find_embedding(m, &m->units[m->embed_unit]));
    if (m->head_unit >= 0) DT_TRY(find_head(m, &m->units[m->head_unit]));
    number_sets(m);
    for (int64_t i = 0; i < m->n_stages; i++)
        for (int k = 0; k < N_LINEARS; k++) m->has_magnitudes |= m->stages[i].block.linear[k].scaled;
    return DT_OK;
}
