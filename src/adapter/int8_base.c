/* int8_base.c - the matrices of blocks that nothing trains become codes with scales in the tables of units.
 *
 * A group is taken whole or not at all: what one product serves stays one matrix, with the scales of its rows one after
 * the other. Rows are those of outputs, so codes are [out, in] also where the weight is [in, out] (Conv1D). */
#include "module_match.h"
#include <string.h>

/* Which matrices: those that these adapters leave as they are, or those that are codes in the units of a model like
 * it. */
typedef struct choice {
    const dt_lora *lora;
    const dt_unit *like;
    int n_like;
} choice;

static bool is_codes_in(const dt_unit *units, int n_units, const char *name)
{
    for (int u = 0; u < n_units; u++)
        for (int i = 0; i < units[u].n_tensors; i++)
            if (strcmp(units[u].tensors[i].name, name) == 0) return units[u].tensors[i].part == DT_CODES;
    return false;
}

static bool is_chosen(const choice *c, const dt_tensor *t)
{
    const char *dot = strrchr(t->name, '.');
    if (t->n_dims != 2 || t->part != DT_FROZEN || !dot || strcmp(dot, ".weight") != 0) return false;
    return c->lora ? !dt_lora_trains(c->lora, t) : is_codes_in(c->like, c->n_like, t->name);
}

static bool may_be_codes(const choice *c, const dt_unit *u, int first, int end)
{
    bool all = true;
    for (int t = first; t < end; t++) all = all && is_chosen(c, &u->tensors[t]);
    return all;
}

static void make_codes(dt_tensor *t, bool turned)
{
    const int64_t rows = t->shape[0];
    t->part = DT_CODES;
    t->turned = turned;
    if (turned) t->shape[0] = t->shape[1], t->shape[1] = rows;
}

/* The table may move: t is looked up by its number. */
static dt_err add_scales(dt_unit *u, int t, bool new_group)
{
    char name[DT_NAME_MAX + 8];
    const int64_t n_param = u->n_param;
    snprintf(name, sizeof name, "%s_scale", u->tensors[t].name);
    DT_TRY(dt_unit_add(u, name, 1, u->tensors[t].shape, new_group, false, 0, 0));
    dt_tensor *scales = &u->tensors[u->n_tensors - 1];
    scales->part = DT_SCALES;
    scales->trainable = false;
    scales->pair = t;
    u->tensors[t].pair = u->n_tensors - 1;
    u->n_param = n_param;
    return DT_OK;
}

static dt_err store_unit(dt_unit *u, const choice *c, bool turned, int *n_codes)
{
    const int n_own = u->n_tensors;
    for (int first = 0, end; first < n_own; first = end) {
        end = dt_unit_end_of_group(u, first);
        if (end > n_own) end = n_own;
        if (!may_be_codes(c, u, first, end)) continue;
        for (int t = first; t < end; t++, ++*n_codes) {
            make_codes(&u->tensors[t], turned);
            DT_TRY(add_scales(u, t, t == first));
        }
    }
    dt_unit_lay_out(u);
    return DT_OK;
}

static dt_err store(const choice *c, const dt_model_config *mc, dt_unit *units, int n_units, int *n_codes)
{
    for (int u = 0; u < n_units; u++)
        if (units[u].role == DT_UNIT_BLOCK) DT_TRY(store_unit(&units[u], c, mc->conv1d, n_codes));
    return DT_OK;
}

dt_err dt_lora_store_base(const dt_lora *l, const dt_model_config *mc, dt_unit *units, int n_units)
{
    int n_codes = 0;
    if (!l->int8_base) return DT_OK;
    DT_TRY(store(&(choice){.lora = l}, mc, units, n_units, &n_codes));
    DT_CHECK(n_codes > 0, DT_ERR_USAGE,
             "no linear layer of this model's blocks is left as it is: lora.modules_to_save names one of each product");
    return DT_OK;
}

dt_err dt_lora_store_like(const dt_unit *like, int n_like, const dt_model_config *mc, dt_unit *units, int n_units)
{
    int n_codes = 0;
    return store(&(choice){.like = like, .n_like = n_like}, mc, units, n_units, &n_codes);
}
