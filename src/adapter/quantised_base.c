/* quantised_base.c - replace frozen matrices of blocks by codes and scales, in the tensors of units.
 *
 * A group is quantised as a whole or not at all, so that a matrix of one matmul stays one matrix. Codes of its tensors
 * are contiguous, and so are their blocks and their scales. For int8 any shapes are possible. For nf4 each tensor but
 * the last must consist of whole groups of the second quantisation; the group size is reduced until this holds. Rows
 * are outputs: codes are [out, in] even if the weight is [in, out] (Conv1D). */
#include "module_match.h"
#include "dtrain/device/nf4.h"
#include <inttypes.h>
#include <string.h>

/* Selects matrices: those that these adapters do not train, or those that are codes in the units of a similar model. */
typedef struct choice {
    const dt_lora *lora;
    const dt_unit *like;
    int n_like;
    dt_dtype type;
    int n_codes; /* so far */
} choice;

static const dt_tensor *codes_in(const dt_unit *units, int n_units, const char *name)
{
    for (int u = 0; u < n_units; u++)
        for (int i = 0; i < units[u].n_tensors; i++) {
            const dt_tensor *t = &units[u].tensors[i];
            if (strcmp(t->name, name) == 0) return t->part == DT_CODES ? t : NULL;
        }
    return NULL;
}

static bool is_chosen(const choice *c, const dt_tensor *t)
{
    if (!t->quantisable || t->part != DT_FROZEN) return false;
    return c->lora ? !dt_lora_trains(c->lora, t) : codes_in(c->like, c->n_like, t->name) != NULL;
}

static bool may_be_codes(const choice *c, const dt_unit *u, int first, int end)
{
    bool all = true;
    for (int t = first; t < end; t++) all = all && is_chosen(c, &u->tensors[t]);
    return all;
}

/* Find the group size of nf4 at which these tensors form one matrix. */
static dt_err choose_finer(const dt_unit *u, int first, int end, int *finer)
{
    *finer = 0;
    for (int t = first; t < end - 1; t++) {
        const dt_tensor *w = &u->tensors[t];
        DT_CHECK(w->n_elems % DT_NF4_BLOCK == 0, DT_ERR_USAGE,
                 "nf4 needs blocks of %d weights, but %s has %" PRId64
                 ", which is not a multiple, and shares one matmul with %s; use int8, which has no such limit",
                 (int)DT_NF4_BLOCK, w->name, w->n_elems, u->tensors[t + 1].name);
        const int its = dt_nf4_finer(w->n_elems / DT_NF4_BLOCK);
        if (its > *finer) *finer = its;
    }
    return DT_OK;
}

static void make_codes(dt_tensor *t, const choice *c, int finer)
{
    const int rows = t->in_first ? 1 : 0;
    t->part = DT_CODES;
    t->coded = (dt_coded){.type = c->type, .n_out = t->shape[rows], .n_in = t->shape[!rows], .turned = t->in_first};
    t->in_first = false;
    t->coded.finer = finer;
    t->coded.blocks = -1;
    t->shape[0] = t->coded.n_out, t->shape[1] = t->coded.n_in;
    if (c->type == DT_I8) return;
    t->n_dims = 1;
    t->shape[0] = t->n_elems = dt_ceil_div(t->n_elems, 2);
}

/* Add blocks or scales for the codes of tensor t. t is an index because the array may be reallocated. */
static dt_err add_scales(dt_unit *u, int t, dt_part part, const char *suffix, bool new_group)
{
    char name[DT_NAME_MAX + 8];
    const int64_t n_param = u->n_param;
    const dt_coded c = u->tensors[t].coded;
    const int64_t n = c.n_out * c.n_in, pairs = dt_nf4_pairs(n, c.finer);
    const bool is_pairs = part == DT_SCALES && c.type == DT_NF4X2;
    const int64_t shape[2] = {part == DT_BLOCKS ? dt_nf4_blocks(n) : is_pairs ? pairs : c.n_out, 2};
    snprintf(name, sizeof name, "%s%s", u->tensors[t].name, suffix);
    DT_TRY(dt_unit_add(u, name, is_pairs ? 2 : 1, shape, new_group, false, 0, 0));
    u->tensors[u->n_tensors - 1].part = part;
    u->tensors[u->n_tensors - 1].trainable = false;
    u->tensors[u->n_tensors - 1].of_expert = u->tensors[t].of_expert;
    u->tensors[u->n_tensors - 1].expert = u->tensors[t].expert;
    u->n_param = n_param;
    return DT_OK;
}

/* Add all blocks, then all scales, for the codes of tensors first .. end-1. */
static dt_err add_all_scales(dt_unit *u, int first, int end)
{
    const bool with_blocks = u->tensors[first].coded.type == DT_NF4X2;
    const int n = end - first, blocks = u->n_tensors, scales = with_blocks ? blocks + n : blocks;
    for (int t = first; t < end && with_blocks; t++) DT_TRY(add_scales(u, t, DT_BLOCKS, "_blocks", t == first));
    for (int t = first; t < end; t++) DT_TRY(add_scales(u, t, DT_SCALES, "_scale", t == first));
    for (int k = 0; k < n; k++) {
        dt_coded *c = &u->tensors[first + k].coded;
        c->codes = first + k, c->scales = scales + k;
        if (with_blocks) c->blocks = blocks + k, u->tensors[blocks + k].coded = *c;
        u->tensors[scales + k].coded = *c;
    }
    return DT_OK;
}

static dt_err store_unit(dt_unit *u, choice *c)
{
    const int n_own = u->n_tensors;
    for (int first = 0, end, finer = 0; first < n_own; first = end) {
        end = dt_unit_end_of_group(u, first);
        if (end > n_own) end = n_own;
        if (!may_be_codes(c, u, first, end)) continue;
        if (c->type == DT_NF4X2) DT_TRY(choose_finer(u, first, end, &finer));
        for (int t = first; t < end; t++) make_codes(&u->tensors[t], c, finer);
        DT_TRY(add_all_scales(u, first, end));
        c->n_codes += end - first;
    }
    dt_unit_lay_out(u);
    return DT_OK;
}

static dt_err store(choice *c, dt_unit *units, int n_units)
{
    for (int u = 0; u < n_units; u++) DT_TRY(store_unit(&units[u], c));
    return DT_OK;
}

dt_err dt_lora_store_base(const dt_lora *l, dt_unit *units, int n_units)
{
    choice c = {.lora = l, .type = l->base};
    if (l->base == DT_F32) return DT_OK;
    DT_TRY(store(&c, units, n_units));
    DT_CHECK(c.n_codes > 0, DT_ERR_USAGE,
             "no linear layer of the blocks remains to be quantised, because lora.modules_to_save lists one of "
             "each matmul");
    return DT_OK;
}

/* All codes of a model have one type. */
dt_err dt_lora_store_like(const dt_unit *like, int n_like, dt_unit *units, int n_units)
{
    choice c = {.like = like, .n_like = n_like};
    for (int u = 0; u < n_like; u++)
        for (int t = 0; t < like[u].n_tensors; t++)
            if (like[u].tensors[t].part == DT_CODES) c.type = like[u].tensors[t].coded.type;
    return store(&c, units, n_units);
}
