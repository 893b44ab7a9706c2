/* lora_attach.c - add adapters to the tensors of units.
 *
 * A linear layer is a matrix of a block, or the vocabulary head. Layers of one group have the same input x. Their A
 * matrices are contiguous, so that one matmul computes all of them; their B matrices are separate. A table is a matrix
 * whose rows are looked up by tokens or positions. A head that is tied to a table is a layer without a matrix of its
 * own. */
#include "module_match.h"
#include <math.h>
#include <string.h>

/* ---- ranks and scales -------------------------------------------------------------------------------------------- */

/* A module, or a parameter that has adapters like one: its path here, and in transformers. */
struct path {
    char here[DT_NAME_MAX], there[DT_PEFT_NAME_MAX];
};

static void cut_part(char *path)
{
    char *dot = strrchr(path, '.');
    if (dot) *dot = '\0';
}

static struct path path_of(const dt_tensor *t)
{
    struct path p;
    module_of(t, p.here);
    dt_peft_tensor_name(t, p.there);
    cut_part(p.there);
    return p;
}

static struct path path_of_parameter(const char *name)
{
    struct path p;
    snprintf(p.here, sizeof p.here, "%s", name);
    dt_peft_name(name, p.there);
    return p;
}

static bool ends_as(const char *pattern, const struct path *p)
{
    return module_ends_as(pattern, p->here) || module_ends_as(pattern, p->there);
}

static bool is_called(const struct path *p, const char *name)
{
    return module_is_called(p->here, name) || module_is_called(p->there, name);
}

static double value_of(const dt_module_value *values, int n, const struct path *p, double otherwise)
{
    for (int i = 0; i < n; i++)
        if (ends_as(values[i].pattern, p)) return values[i].value;
    return otherwise;
}

static int64_t rank_of(const dt_lora *l, const struct path *p)
{
    return (int64_t)value_of(l->rank_pattern, l->n_rank_pattern, p, (double)l->r);
}

static double alpha_of(const dt_lora *l, const struct path *p)
{
    return value_of(l->alpha_pattern, l->n_alpha_pattern, p, l->alpha);
}

static double scale_of(const dt_lora *l, const struct path *p)
{
    const double r = (double)rank_of(l, p);
    return alpha_of(l, p) / (l->use_rslora ? sqrt(r) : r);
}

/* ---- which layers ------------------------------------------------------------------------------------------------ */

static bool may_adapt(const dt_unit *u) { return u->role != DT_UNIT_SCALAR_HEAD; }

/* The part of a vision-language model that a tensor belongs to; of another model: the language model. */
static const struct {
    const char *prefix, *word;
    unsigned part;
} PARTS[] = {{"vision_tower.", "tower", DT_LORA_TOWER},
             {"multi_modal_projector.", "projector", DT_LORA_PROJECTOR},
             {"", "llm", DT_LORA_LANGUAGE}};
enum { N_PARTS = sizeof PARTS / sizeof PARTS[0] };

static unsigned part_of(const dt_tensor *t)
{
    int i = 0;
    while (strncmp(t->name, PARTS[i].prefix, strlen(PARTS[i].prefix)) != 0) i++;
    return PARTS[i].part;
}

bool dt_lora_has_part(const char *word, unsigned *part)
{
    for (int i = 0; i < N_PARTS; i++)
        if (strcmp(PARTS[i].word, word) == 0) return *part = PARTS[i].part, true;
    return false;
}

const char *dt_lora_parts_text(unsigned parts, char text[DT_LORA_PARTS_MAX])
{
    *text = '\0';
    for (int i = 0; i < N_PARTS; i++)
        if (parts & PARTS[i].part) {
            if (*text) strcat(text, ", ");
            strcat(text, PARTS[i].word);
        }
    return text;
}

static unsigned adapted_parts(const dt_lora *l) { return l->parts ? l->parts : (unsigned)DT_LORA_LANGUAGE; }

/* May the module of this tensor have an adapter if it is named? */
static bool is_site(const dt_lora *l, const dt_tensor *t)
{
    return t->site >= DT_SITE_NAMED && adapted_parts(l) & part_of(t);
}

/* The unit of a head that is tied to the embedding, and its shape in *t; -1: the head is not tied. */
static int tied_head(const dt_model_config *mc, const dt_unit *units, int n_units, dt_tensor *t)
{
    *t = (dt_tensor){.n_dims = 2, .shape = {mc->vocab_size, mc->hidden_size}, .site = DT_SITE_NAMED};
    snprintf(t->name, sizeof t->name, "%slm_head.weight", mc->vision ? DT_LANGUAGE_PREFIX : "");
    return mc->tie_word_embeddings ? dt_units_find(units, n_units, DT_UNIT_HEAD) : -1;
}

static bool is_of_vocabulary(const char *module)
{
    bool is = false;
    module = dt_model_of_language(module);
    for (int i = 0; dt_vocabulary_module(i); i++) is = is || strcmp(module, dt_vocabulary_module(i)) == 0;
    return is;
}

/* PEFT's adapter of a head that shares its weights with the embedding: the file contains both but lists one. */
static bool is_shared(const dt_lora *l, const dt_model_config *mc, const char *module)
{
    bool any = false;
    for (int i = 0; dt_vocabulary_module(i) && l->ties && mc->tie_word_embeddings; i++)
        any = any || module_is_in(&l->target_modules, dt_vocabulary_module(i));
    return any && is_of_vocabulary(module);
}

/* The parameter of transformers that a matrix is, or that it is a part of: a router, or all experts of a slot. */
static bool parameter_of(const dt_tensor *t, dt_tensor *parameter)
{
    *parameter = t->of_expert && t->fused.name ? dt_tensor_fused(t) : *t;
    return (t->of_expert && t->fused.name) || t->site == DT_SITE_PARAMETER;
}

/* Is it in one of target_parameters? */
static bool is_parameter(const dt_lora *l, const dt_tensor *t)
{
    dt_tensor of;
    char path[DT_PEFT_NAME_MAX];
    if (l->target_parameters.n == 0 || !parameter_of(t, &of) || dt_lora_saves(l, t)) return false;
    dt_peft_name(of.name, path);
    return module_is_in(&l->target_parameters, of.name) || module_is_in(&l->target_parameters, path);
}

static bool is_target(const dt_lora *l, const dt_model_config *mc, const dt_tensor *t)
{
    const dt_modules *m = &l->target_modules;
    if (!is_site(l, t) || dt_lora_saves(l, t)) return false; /* a fully trained module needs no adapter */
    const struct path p = path_of(t);
    if (module_is_all_linear(m)) return t->site >= DT_SITE_LINEAR;
    if (!m->pattern && m->n == 0) return t->site == DT_SITE_DEFAULT && l->target_parameters.n == 0;
    return module_is_in(m, p.here) || module_is_in(m, p.there) || is_shared(l, mc, p.here);
}

/* Do both descriptions adapt the same layers of these units (target_modules without modules_to_save)? */
static bool same_layers(const dt_lora *a, const dt_lora *b, const dt_model_config *mc, const dt_unit *units,
                        int n_units)
{
    dt_tensor head;
    const int h = tied_head(mc, units, n_units, &head);
    if (h >= 0 && is_target(a, mc, &head) != is_target(b, mc, &head)) return false;
    for (int u = 0; u < n_units; u++)
        for (int i = 0; i < units[u].n_tensors; i++)
            if (is_target(a, mc, &units[u].tensors[i]) != is_target(b, mc, &units[u].tensors[i]) ||
                is_parameter(a, &units[u].tensors[i]) != is_parameter(b, &units[u].tensors[i]))
                return false;
    return true;
}

unsigned dt_lora_parts_of(const dt_lora *l, const dt_model_config *mc, const dt_unit *units, int n_units)
{
    dt_tensor head;
    unsigned parts = 0;
    if (tied_head(mc, units, n_units, &head) >= 0 && is_target(l, mc, &head)) parts = DT_LORA_LANGUAGE;
    for (int u = 0; u < n_units; u++)
        for (int i = 0; i < units[u].n_tensors; i++)
            if (is_target(l, mc, &units[u].tensors[i])) parts |= part_of(&units[u].tensors[i]);
    return parts;
}

dt_lora_alike dt_lora_compare(const dt_lora *a, const dt_lora *b, const dt_model_config *mc, const dt_unit *units,
                              int n_units)
{
    dt_lora_alike same = {same_layers(a, b, mc, units, n_units), true, true, true};
    dt_tensor head, parameter;
    const int h = tied_head(mc, units, n_units, &head);
    for (int u = 0; u < n_units; u++)
        for (int i = u == h ? -1 : 0; i < units[u].n_tensors; i++) {
            const dt_tensor *t = i < 0 ? &head : &units[u].tensors[i];
            same.saved &= dt_lora_saves(a, t) == dt_lora_saves(b, t);
            const bool of_parameter = is_parameter(b, t) && parameter_of(t, &parameter);
            if (!of_parameter && !is_target(b, mc, t)) continue;
            const struct path p = of_parameter ? path_of_parameter(parameter.name) : path_of(t);
            /* the patterns' values; lists in another order are the same unless two patterns match one module */
            same.ranks &= value_of(a->rank_pattern, a->n_rank_pattern, &p, (double)b->r) == (double)rank_of(b, &p);
            same.alphas &= value_of(a->alpha_pattern, a->n_alpha_pattern, &p, b->alpha) == alpha_of(b, &p);
        }
    return same;
}

/* ---- errors in names --------------------------------------------------------------------------------------------- */

static void list_layer(const dt_tensor *t, char *out, size_t size)
{
    char module[DT_NAME_MAX];
    const size_t n = strlen(out);
    module_of(t, module);
    const char *last = strrchr(module, '.') ? strrchr(module, '.') + 1 : module;
    if (!dt_has_word(out, last)) snprintf(out + n, size - n, "%s%s", n ? ", " : "", last);
}

/* Last components of the paths of modules that can have an adapter: "embed_tokens, q_proj, k_proj, ..." */
static const char *list_layers(const dt_lora *l, const dt_model_config *mc, const dt_unit *units, int n_units,
                               char *out, size_t size)
{
    dt_tensor head;
    *out = '\0';
    for (int u = 0; u < n_units; u++)
        for (int i = 0; may_adapt(&units[u]) && i < units[u].n_tensors; i++)
            if (is_site(l, &units[u].tensors[i])) list_layer(&units[u].tensors[i], out, size);
    if (tied_head(mc, units, n_units, &head) >= 0 && is_site(l, &head)) list_layer(&head, out, size);
    return out;
}

/* Is it the end of an expert's or a router's name? */
static bool names_expert(const char *name, const dt_unit *units, int n_units)
{
    char module[DT_NAME_MAX];
    for (int u = 0; u < n_units; u++)
        for (int i = 0; i < units[u].n_tensors; i++) {
            module_of(&units[u].tensors[i], module);
            const bool expert = units[u].tensors[i].of_expert || units[u].tensors[i].site == DT_SITE_PARAMETER;
            if (expert && module_is_called(module, name)) return true;
        }
    return false;
}

/* The parts with layers of this name, whether or not they may have adapters. */
static unsigned parts_with(const char *name, const dt_model_config *mc, const dt_unit *units, int n_units)
{
    unsigned parts = 0;
    dt_tensor head;
    for (int u = 0; u < n_units; u++)
        for (int i = 0; i < units[u].n_tensors; i++) {
            const dt_tensor *t = &units[u].tensors[i];
            const struct path p = path_of(t);
            if (t->site >= DT_SITE_NAMED && is_called(&p, name)) parts |= part_of(t);
        }
    const bool is_head = strcmp(name, "lm_head") == 0 && tied_head(mc, units, n_units, &head) >= 0;
    return is_head ? parts | DT_LORA_LANGUAGE : parts;
}

static const char *first_target(const dt_lora *l)
{
    const dt_modules *m = &l->target_modules;
    return m->pattern ? m->pattern : m->n > 0 ? m->list[0] : "those of a default";
}

static dt_err check_names(const dt_lora *l, const dt_model_config *mc, const dt_unit *units, int n_units)
{
    char layers[1024], words[DT_LORA_PARTS_MAX];
    for (int i = 0; i < l->target_modules.n && !l->lenient; i++) {
        const char *name = l->target_modules.list[i];
        const unsigned found = parts_with(name, mc, units, n_units);
        if (found & adapted_parts(l)) continue;
        DT_CHECK(!found, DT_ERR_USAGE, "'%s' is a layer of another part of the model; add %s to lora.parts", name,
                 dt_lora_parts_text(found, words));
        DT_CHECK(!names_expert(name, units, n_units), DT_ERR_USAGE,
                 "'%s' is the name of an expert's matrix or of a router; these have adapters by "
                 "lora.target_parameters, such as mlp.experts.down_proj and mlp.gate.weight; the other layers are %s",
                 name, list_layers(l, mc, units, n_units, layers, sizeof layers));
        return dt_fail(DT_ERR_USAGE, "this model has no layer '%s'; choose from %s", name,
                       list_layers(l, mc, units, n_units, layers, sizeof layers));
    }
    return DT_OK;
}

/* Does a parameter end with the name, or is there any for ""? */
static bool has_parameter(const char *name, const dt_unit *units, int n_units)
{
    dt_tensor found;
    char path[DT_PEFT_NAME_MAX];
    for (int u = 0; u < n_units; u++)
        for (int i = 0; i < units[u].n_tensors; i++) {
            if (!parameter_of(&units[u].tensors[i], &found)) continue;
            dt_peft_name(found.name, path);
            if (!*name || module_is_called(found.name, name) || module_is_called(path, name)) return true;
        }
    return false;
}

dt_err dt_lora_check_parameters(const dt_lora *l, const dt_unit *units, int n_units)
{
    const int n = l->target_parameters.n;
    DT_CHECK(n == 0 || has_parameter("", units, n_units), l->lenient ? DT_ERR_DATA : DT_ERR_USAGE,
             "'%s': this model has no experts", l->target_parameters.list[0]);
    for (int i = 0; i < n; i++)
        DT_CHECK(has_parameter(l->target_parameters.list[i], units, n_units), l->lenient ? DT_ERR_DATA : DT_ERR_USAGE,
                 "'%s' is not the name of experts or of a router; expected names such as "
                 "mlp.experts.gate_up_proj, mlp.experts.down_proj and mlp.gate.weight",
                 l->target_parameters.list[i]);
    DT_CHECK(n == 0 || l->dropout == 0, l->lenient ? DT_ERR_DATA : DT_ERR_USAGE,
             "their adapters have no dropout, as in PEFT: expected lora.dropout = 0, found %g", l->dropout);
    return DT_OK;
}

static bool names_adapted(const char *pattern, const dt_unit *units, int n_units)
{
    for (dt_adapted at = {0}; dt_adapted_next(&at, units, n_units);)
        if (module_ends_as(pattern, at.module) || module_ends_as(pattern, at.path)) return true;
    return false;
}

static dt_err check_patterns(const dt_module_value *values, int n, const dt_unit *units, int n_units)
{
    for (int i = 0; i < n; i++)
        DT_CHECK(names_adapted(values[i].pattern, units, n_units), DT_ERR_USAGE,
                 "expected the end of a layer name with an adapter, found '%s'", values[i].pattern);
    return DT_OK;
}

dt_err dt_lora_check_ranks(const dt_lora *l, const dt_unit *units, int n_units)
{
    return l->lenient ? DT_OK : check_patterns(l->rank_pattern, l->n_rank_pattern, units, n_units);
}

dt_err dt_lora_check_alphas(const dt_lora *l, const dt_unit *units, int n_units)
{
    return l->lenient ? DT_OK : check_patterns(l->alpha_pattern, l->n_alpha_pattern, units, n_units);
}

static dt_err check_target(const dt_lora *l, const dt_unit *u, const dt_tensor *t)
{
    char module[DT_NAME_MAX];
    module_of(t, module);
    DT_CHECK(!l->use_dora || (u->role != DT_UNIT_EMBEDDING && u->role != DT_UNIT_HEAD),
             l->lenient ? DT_ERR_DATA : DT_ERR_USAGE,
             "%s: adapters of embeddings and heads have no magnitudes (use_dora)", module);
    DT_CHECK(
        may_adapt(u), DT_ERR_USAGE,
        "%s: a module of this kind cannot have an adapter; a score head is trained as a whole in addition to adapters",
        module);
    return DT_OK;
}

/* ---- tables and layers ------------------------------------------------------------------------------------------- */

/* Add a tensor MODULE.part; new_group: it starts a group. */
static dt_err add(dt_unit *u, const char *module, const char *part, int64_t rows, int64_t cols, bool new_group,
                  double scale)
{
    char name[2 * DT_NAME_MAX];
    const int64_t shape[2] = {rows, cols};
    snprintf(name, sizeof name, "%s.%s", module, part);
    DT_TRY(dt_unit_add(u, name, 2, shape, new_group, true, 0, 0));
    u->tensors[u->n_tensors - 1].adapter_scale = (float)scale;
    u->tensors[u->n_tensors - 1].renamings = u->tensors[0].renamings;
    return DT_OK;
}

/* The A matrices of n adapters. */
static dt_err add_first(const dt_lora *l, dt_unit *u, const struct path *p, int64_t n, int64_t n_in, bool new_group)
{
    const int64_t r = rank_of(l, p);
    DT_TRY(add(u, p->here, "lora_A.weight", n * r, n_in, new_group, scale_of(l, p)));
    dt_tensor *a = &u->tensors[u->n_tensors - 1];
    if (l->init == DT_LORA_GAUSSIAN) a->init_std = (float)(1 / (double)r);
    if (l->init == DT_LORA_KAIMING) a->init_bound = (float)(1 / sqrt((double)n_in));
    return DT_OK;
}

/* t must not point into the unit's tensors, which may be reallocated. */
static dt_err add_a(const dt_lora *l, dt_unit *u, const dt_tensor *t, bool new_group)
{
    const struct path p = path_of(t);
    return add_first(l, u, &p, 1, t->shape[t->in_first ? 0 : 1], new_group);
}

static dt_err add_b(const dt_lora *l, dt_unit *u, const dt_tensor *t)
{
    const struct path p = path_of(t);
    const int64_t n_out = t->shape[t->in_first ? 1 : 0];
    return add(u, p.here, "lora_B.weight", n_out, rank_of(l, &p), true, scale_of(l, &p));
}

/* A vector, which weight decay never applies to. */
static dt_err add_magnitude(const dt_lora *l, dt_unit *u, const dt_tensor *t)
{
    char name[2 * DT_NAME_MAX];
    const struct path p = path_of(t);
    if (!l->use_dora) return DT_OK;
    snprintf(name, sizeof name, "%s.%s", p.here, DT_LORA_MAGNITUDE);
    DT_TRY(dt_unit_add(u, name, 1, &t->shape[t->in_first ? 1 : 0], true, false, 0, 1));
    u->tensors[u->n_tensors - 1].adapter_scale = (float)scale_of(l, &p);
    u->tensors[u->n_tensors - 1].renamings = u->tensors[0].renamings;
    return DT_OK;
}

/* Add the adapter of a router, or of all experts of a slot, of which t is one matrix. */
static dt_err add_parameter(const dt_lora *l, dt_unit *u, const dt_tensor *t)
{
    dt_tensor of;
    (void)parameter_of(t, &of);
    const struct path p = path_of_parameter(of.name);
    const int64_t n = t->of_expert ? of.shape[0] : 1, *size = &of.shape[t->of_expert];
    DT_TRY(add_first(l, u, &p, n, size[t->in_first ? 0 : 1], true));
    DT_TRY(add(u, of.name, "lora_B.weight", n * size[t->in_first ? 1 : 0], rank_of(l, &p), true, scale_of(l, &p)));
    for (int i = u->n_tensors - 2; i < u->n_tensors; i++)
        u->tensors[i].of_expert = t->of_expert, u->tensors[i].adapter_experts = n;
    return DT_OK;
}

/* PEFT nests the adapters of a module's parameters: those of the last one are outermost. */
static void count_depths(dt_unit *u)
{
    for (int i = 0; i < u->n_tensors; i++)
        for (int k = i + 1; k < u->n_tensors; k++)
            if (u->tensors[i].of_expert && u->tensors[i].adapter_experts > 0 && u->tensors[k].of_expert &&
                u->tensors[k].adapter_experts > 0 &&
                dt_peft_alternates(&u->tensors[i]) == dt_peft_alternates(&u->tensors[k]))
                u->tensors[i].adapter_depth++;
}

/* Add the adapter of a table [rows, cols]: A is zero and B is random, regardless of `init`. */
static dt_err add_table(const dt_lora *l, dt_unit *u, const dt_tensor *t)
{
    const struct path p = path_of(t);
    const int64_t r = rank_of(l, &p);
    const double scale = scale_of(l, &p);
    DT_TRY(add(u, p.here, "lora_embedding_A", r, t->shape[0], true, scale));
    DT_TRY(add(u, p.here, "lora_embedding_B", t->shape[1], r, true, scale));
    u->tensors[u->n_tensors - 1].init_std = 1;
    return DT_OK;
}

/* In PEFT a module is either a target or saved whole. Saving an embedding includes the head that is tied to it. */
static dt_err add_tied_head(const dt_lora *l, const dt_model_config *mc, dt_unit *units, int n_units, int *n_found)
{
    dt_tensor head;
    const int u = tied_head(mc, units, n_units, &head);
    if (u < 0 || !is_target(l, mc, &head)) return DT_OK;
    DT_TRY(check_target(l, &units[u], &head));
    DT_CHECK(
        !lora_saves_tied(l, mc, units, n_units), DT_ERR_USAGE,
        "lm_head cannot have an adapter, because it is tied to the embedding, which modules_to_save trains as a whole");
    DT_TRY(add_a(l, &units[u], &head, true));
    ++*n_found;
    return add_b(l, &units[u], &head);
}

static bool is_table(const dt_unit *u) { return u->role == DT_UNIT_EMBEDDING; }

static dt_err attach_group(const dt_lora *l, const dt_model_config *mc, dt_unit *u, int first, int end, int *n_found)
{
    const int found_before = *n_found;
    const dt_tensor one = u->tensors[first];
    if (is_parameter(l, &one)) {
        ++*n_found;
        return add_parameter(l, u, &one);
    }
    for (int t = first; t < end; t++) {
        if (!is_target(l, mc, &u->tensors[t])) continue;
        const dt_tensor of = u->tensors[t];
        DT_TRY(check_target(l, u, &of));
        DT_TRY(is_table(u) ? add_table(l, u, &of) : add_a(l, u, &of, *n_found == found_before));
        ++*n_found;
    }
    for (int t = first; t < end; t++) {
        const dt_tensor of = u->tensors[t];
        if (!is_table(u) && is_target(l, mc, &of)) DT_TRY(add_b(l, u, &of));
    }
    for (int t = first; t < end; t++) {
        const dt_tensor of = u->tensors[t];
        if (is_target(l, mc, &of)) DT_TRY(add_magnitude(l, u, &of));
    }
    return DT_OK;
}

dt_err dt_lora_attach(const dt_lora *l, const dt_model_config *mc, dt_unit *units, int n_units)
{
    char layers[1024], words[DT_LORA_PARTS_MAX];
    int n_found = 0;
    if (l->r == 0) return DT_OK;
    DT_TRY(check_names(l, mc, units, n_units));
    DT_TRY(dt_error_prefix(dt_lora_check_parameters(l, units, n_units), "target_parameters: "));
    for (int u = 0; u < n_units; u++) {
        const int n_own = units[u].n_tensors;
        for (int first = 0, end; first < n_own; first = end) {
            end = dt_unit_end_of_group(&units[u], first);
            DT_TRY(attach_group(l, mc, &units[u], first, end < n_own ? end : n_own, &n_found));
        }
        count_depths(&units[u]);
    }
    DT_TRY(add_tied_head(l, mc, units, n_units, &n_found));
    list_layers(l, mc, units, n_units, layers, sizeof layers);
    const bool of_whole =
        !mc->vision && (strstr(first_target(l), "language_model.") || strstr(first_target(l), "visual."));
    DT_CHECK(
        n_found > 0 || !l->lenient, DT_ERR_DATA,
        "this adapter belongs to another model: its modules (%s%s) are not layers of this one, whose layers are %s%s",
        first_target(l), l->target_modules.n > 1 ? ", ..." : "", layers,
        of_whole ? "; it is of a model with images, so keep the tower (model.vision or --vision = whole)" : "");
    DT_CHECK(n_found > 0 || *layers, DT_ERR_USAGE, "no layer in lora.parts = %s can have an adapter in this model",
             dt_lora_parts_text(adapted_parts(l), words));
    DT_CHECK(n_found > 0, DT_ERR_USAGE, "the expression matches no layer of this model; the layer names end with %s",
             layers);
    return DT_OK;
}

/* ---- fully trained modules --------------------------------------------------------------------------------------- */

/* PEFT finds the names of the file in transformers' paths, so other names of towers do not count. */
static bool is_saved_by(const char *name, const dt_tensor *t)
{
    if (t->adapter_scale != 0) return false;
    const struct path p = path_of(t);
    return module_is_within(t->renamings ? p.there : p.here, name);
}

static bool saves_any(const char *name, const dt_unit *units, int n_units)
{
    for (int u = 0; u < n_units; u++)
        for (int i = 0; i < units[u].n_tensors; i++)
            if (is_saved_by(name, &units[u].tensors[i])) return true;
    return false;
}

dt_err dt_lora_check_saved(const dt_lora *l, const dt_model_config *mc, const dt_unit *units, int n_units)
{
    for (int i = 0; i < l->modules_to_save.n && !l->lenient; i++) {
        const char *name = l->modules_to_save.list[i];
        if (saves_any(name, units, n_units)) continue;
        DT_CHECK(!module_is_called("lm_head", name) || !mc->tie_word_embeddings, DT_ERR_USAGE,
                 "lm_head is tied to the embedding (tie_word_embeddings = true) and has no weights of its own; set "
                 "model.tie_word_embeddings = false, or use embed_tokens (wte in GPT-2), which trains both");
        return dt_fail(DT_ERR_USAGE, "this model has no module '%s'", name);
    }
    return DT_OK;
}

bool dt_lora_saves(const dt_lora *l, const dt_tensor *t)
{
    for (int i = 0; i < l->modules_to_save.n; i++)
        if (is_saved_by(l->modules_to_save.list[i], t)) return true;
    return false;
}

bool lora_saves_tied(const dt_lora *l, const dt_model_config *mc, const dt_unit *units, int n_units)
{
    const int u = dt_model_tied_unit(mc, units, n_units);
    for (int i = 0; u >= 0 && i < units[u].n_tensors; i++)
        if (dt_model_is_vocabulary(&units[u].tensors[i]) && dt_lora_saves(l, &units[u].tensors[i])) return true;
    return false;
}

bool dt_lora_trains(const dt_lora *l, const dt_tensor *t)
{
    char module[DT_NAME_MAX];
    module_of(t, module);
    return t->adapter_scale != 0 || strcmp(module, "score") == 0 || dt_lora_saves(l, t);
}

/* ---- queries ----------------------------------------------------------------------------------------------------- */

/* The path of the module that this A belongs to; false: not an A. */
static bool is_a_of(const dt_tensor *t, char module[DT_NAME_MAX])
{
    static const char *const ends[] = {".lora_A.weight", ".lora_embedding_A"};
    const size_t n = strlen(t->name);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        const size_t end = strlen(ends[i]);
        if (n <= end || strcmp(t->name + n - end, ends[i]) != 0) continue;
        snprintf(module, DT_NAME_MAX, "%.*s", (int)(n - end), t->name);
        return true;
    }
    return false;
}

bool dt_adapted_next(dt_adapted *at, const dt_unit *units, int n_units)
{
    for (; at->next_unit < n_units; at->next_unit++, at->next_tensor = 0) {
        const dt_unit *u = &units[at->next_unit];
        while (at->next_tensor < u->n_tensors) {
            const dt_tensor *t = &u->tensors[at->next_tensor++];
            at->of_parameter = t->adapter_experts > 0;
            if (!is_a_of(t, at->module)) continue;
            if (at->of_parameter)
                dt_peft_name(at->module, at->path);
            else
                dt_peft_tensor_name(t, at->path), *strstr(at->path, ".lora_") = '\0';
            return true;
        }
    }
    return false;
}

bool dt_lora_unties(const dt_model_config *mc, const dt_unit *units, int n_units)
{
    const bool tied = dt_model_tied_unit(mc, units, n_units) >= 0;
    for (dt_adapted at = {0}; tied && dt_adapted_next(&at, units, n_units);)
        if (is_of_vocabulary(at.module)) return true;
    return false;
}
