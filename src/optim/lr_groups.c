/* lr_groups.c - learning rates of tensors by name. */
#include "dtrain/optim/optim.h"
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* With the message prefix of [optimizer] lr_groups. */
#define FAIL(...) dt_config_fail(cfg, "optimizer", "lr_groups", __VA_ARGS__)
#define CHECK(cond, ...) DT_CONFIG_CHECK(cond, cfg, "optimizer", "lr_groups", __VA_ARGS__)

static const char *pattern_of(const dt_lr_groups *g, int k) { return g->group[k].metric + strlen("lr/"); }

/* ---- parsing ----------------------------------------------------------------------------------------------------- */

/* "pattern:rate" */
static dt_err read_group(dt_lr_groups *g, const dt_config *cfg, const char *item)
{
    const char *colon = strrchr(item, ':');
    char *end = NULL;
    const double lr = colon ? strtod(colon + 1, &end) : -1;
    CHECK(colon > item && end > colon + 1 && *end == '\0' && lr >= 0 && lr <= 10,
          "expected pattern:rate with a rate from 0 to 10, such as lm_head:1e-4, found '%s'", item);
    CHECK(g->n <= DT_MAX_LR_PATTERNS, "expected at most %d groups, found more at '%s'", DT_MAX_LR_PATTERNS, item);
    char *metric = g->group[g->n].metric;
    while (colon > item + 1 && colon[-1] == ' ') colon--;
    const int n = snprintf(metric, sizeof g->group[0].metric, "lr/%.*s", (int)(colon - item), item);
    CHECK(n < DT_NAME_MAX, "'%s' is longer than any tensor name", item);
    g->group[g->n++].lr = lr;
    return DT_OK;
}

dt_err dt_lr_groups_make(dt_lr_groups *g, const dt_config *cfg)
{
    char **items;
    int n;
    *g = (dt_lr_groups){.n = 1, .group = {{.lr = cfg->optimizer_lr, .metric = "lr"}}};
    DT_TRY(dt_config_split(cfg->optimizer_lr_groups, &items, &n));
    dt_err err = DT_OK;
    for (int i = 0; i < n && err == DT_OK; i++) err = read_group(g, cfg, items[i]);
    if (err != DT_OK) g->n = 1;
    dt_list_free(items, n);
    return err;
}

/* ---- matching ---------------------------------------------------------------------------------------------------- */

/* Visit all runs of complete components of a name ("a.b.c": a, a.b, a.b.c, b, b.c, c) until visit returns true. */
static bool any_run(const char *name, bool (*visit)(void *self, const char *run), void *self)
{
    char run[DT_NAME_MAX];
    for (const char *from = name; from; from = strchr(from, '.') ? strchr(from, '.') + 1 : NULL)
        for (const char *to = from; *to;) {
            to += *to == '.';
            to += strcspn(to, ".");
            snprintf(run, sizeof run, "%.*s", (int)(to - from), from);
            if (visit(self, run)) return true;
        }
    return false;
}

static bool is_named(void *pattern, const char *run) { return fnmatch(pattern, run, 0) == 0; }

/* ---- suggestions ------------------------------------------------------------------------------------------------- */

enum { NEAREST = 3 };
typedef struct nearest {
    const char *pattern;
    struct {
        char run[DT_NAME_MAX];
        int distance;
    } at[NEAREST];
    int n;
} nearest;

/* Insert into the sorted list; for equal distances the first found comes first. A name that contains the pattern has a
 * smaller distance than any misspelling. */
static bool see_run(void *self, const char *run)
{
    nearest *l = self;
    for (int i = 0; i < l->n; i++)
        if (!strcmp(l->at[i].run, run)) return false;
    const int d = strstr(run, l->pattern) ? (int)strlen(run) - 2 * DT_NAME_MAX : dt_edit_distance(l->pattern, run);
    int at = l->n;
    while (at > 0 && l->at[at - 1].distance > d) at--;
    if (at == NEAREST) return false;
    l->n += l->n < NEAREST;
    memmove(&l->at[at + 1], &l->at[at], (size_t)(l->n - 1 - at) * sizeof l->at[0]);
    l->at[at].distance = d;
    snprintf(l->at[at].run, sizeof l->at[at].run, "%s", run);
    return false;
}

bool dt_lr_pattern_matches(const char *pattern, const char *name) { return any_run(name, is_named, (void *)pattern); }

/* The first tensor that the pattern would match if all were trained; NULL: none. */
static const char *frozen_name(const char *pattern, const dt_unit *units, int n_units)
{
    for (int u = 0; u < n_units; u++)
        for (int i = 0; i < units[u].n_tensors; i++)
            if (any_run(units[u].tensors[i].name, is_named, (void *)pattern)) return units[u].tensors[i].name;
    return NULL;
}

static dt_err is_frozen(const dt_config *cfg, const char *pattern, const char *name)
{
    static const char *const parts[][2] = {{"vision_tower.", "tower"}, {"multi_modal_projector.", "projector"}};
    const char *part = strncmp(name, "language_model.", strlen("language_model.")) == 0 ? "llm" : NULL;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strncmp(name, parts[i][0], strlen(parts[i][0])) == 0) part = parts[i][1];
    if (part && cfg->lora_r > 0)
        return FAIL(
            "'%s' matches frozen tensors: vision.train = %s, lora.parts = %s; remove the group or train these tensors",
            pattern, *cfg->vision_train ? cfg->vision_train : "none", cfg->lora_parts);
    if (part)
        return FAIL(
            "'%s' matches frozen tensors: vision.train = %s, without %s; remove the group or train these tensors",
            pattern, cfg->vision_train, part);
    return FAIL("'%s' matches only frozen tensors", pattern);
}

/* Translate a component's name in LLaVA and other programs; NULL: unknown or not in the model. */
static const char *part_meant(const char *pattern, const dt_unit *units, int n_units, bool trained)
{
    static const char *const parts[][2] = {{"projector", "multi_modal_projector"},
                                           {"vision", "vision_tower"},
                                           {"visual", "vision_tower"},
                                           {"tower", "vision_tower"},
                                           {"llm", "language_model"},
                                           {"expert", "experts"},
                                           {"router", "mlp.gate"},
                                           {"gate", "mlp.router"}};
    for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++)
        for (int u = 0; u < n_units && strstr(pattern, parts[k][0]); u++)
            for (int i = 0; i < units[u].n_tensors; i++)
                if ((units[u].tensors[i].trainable || !trained) &&
                    dt_lr_pattern_matches(parts[k][1], units[u].tensors[i].name))
                    return parts[k][1];
    return NULL;
}

void dt_lr_suggest(const char *pattern, const dt_unit *units, int n_units, bool trained, char *out, size_t size)
{
    nearest l = {.pattern = pattern};
    const char *part = part_meant(pattern, units, n_units, trained);
    for (int u = 0; u < n_units; u++)
        for (int i = 0; i < units[u].n_tensors; i++)
            if (units[u].tensors[i].trainable || !trained) any_run(units[u].tensors[i].name, see_run, &l);
    if (part)
        snprintf(out, size, "use %s", part);
    else
        snprintf(out, size, "the nearest names are %s, %s, %s", l.at[0].run, l.at[1].run, l.at[2].run);
}

static dt_err no_tensor(const dt_config *cfg, const char *pattern, const dt_unit *units, int n_units)
{
    char names[DT_LR_SUGGESTION];
    const char *frozen = frozen_name(pattern, units, n_units);
    if (frozen) return is_frozen(cfg, pattern, frozen);
    dt_lr_suggest(pattern, units, n_units, true, names, sizeof names);
    return FAIL("'%s' matches no trained tensor; %s", pattern, names);
}

/* ---- assigning --------------------------------------------------------------------------------------------------- */

/* Matrices B of linear layers, and vectors. */
static bool has_ratio(const dt_tensor *t) { return t->trainable && (t->n_dims == 1 || strstr(t->name, ".lora_B.")); }

static void apply_ratio(dt_lr_groups *g, double ratio, dt_unit *units, int n_units)
{
    int moved[DT_MAX_LR_GROUPS] = {0};
    for (int u = 0; u < n_units; u++)
        for (int i = 0; i < units[u].n_tensors; i++) {
            dt_tensor *t = &units[u].tensors[i];
            const int k = t->lr_group;
            if (!has_ratio(t)) continue;
            if (!moved[k]) {
                g->group[g->n] = g->group[k];
                g->group[g->n].lr *= ratio;
                strcat(g->group[g->n].metric, "/lora_B"); /* metric has room for it */
                moved[k] = g->n++;
            }
            t->lr_group = moved[k];
        }
}

dt_err dt_lr_groups_assign(dt_lr_groups *g, const dt_config *cfg, dt_unit *units, int n_units)
{
    int64_t n_named[DT_MAX_LR_GROUPS] = {0}, n_taken[DT_MAX_LR_GROUPS] = {0};
    for (int u = 0; u < n_units; u++)
        for (int i = 0; i < units[u].n_tensors; i++) {
            dt_tensor *t = &units[u].tensors[i];
            t->lr_group = 0;
            for (int k = 1; k < g->n && t->trainable; k++) {
                if (!any_run(t->name, is_named, (void *)pattern_of(g, k))) continue;
                n_named[k]++;
                if (t->lr_group) continue;
                t->lr_group = k;
                n_taken[k]++;
            }
        }
    for (int k = 1; k < g->n; k++) {
        if (n_named[k] == 0) return no_tensor(cfg, pattern_of(g, k), units, n_units);
        CHECK(n_taken[k] > 0, "every tensor that '%s' matches belongs to an earlier group", pattern_of(g, k));
    }
    if (cfg->lora_lr_ratio != 1) apply_ratio(g, cfg->lora_lr_ratio, units, n_units);
    return DT_OK;
}
