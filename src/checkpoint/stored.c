/* stored.c - lists of expected tensors, and their shapes (algorithms.md 8.3). Names in files: names.c; reading:
 * load.c. */
#include "dtrain/checkpoint/stored.h"
#include "dtrain/model/model.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- lists of slots ---------------------------------------------------------------------------------------------- */

static int n_tensors(const dt_saved_model *of)
{
    int n = 0;
    for (int u = 0; u < of->n_units; u++) n += of->units[u].n_tensors;
    return of->zero ? dt_zero_n_slices(of->zero) : n;
}

static int n_states(const dt_saved_model *of)
{
    return of->zero && of->with_states ? dt_zero_n_states(of->zero) : DT_STATE_OPTIMIZER;
}

static dt_stored_slot *add_slices(dt_stored_slot *slot, const dt_saved_model *of)
{
    dt_zero *z = of->zero;
    for (dt_state s = 0; s < n_states(of); s++)
        for (int i = 0; i < dt_zero_n_slices(z); i++) {
            const dt_slice *slices = dt_zero_slices_of(z, s);
            if (!dt_zero_has_state(z, s, &slices[i])) continue;
            *slot++ = (dt_stored_slot){.of = of,
                                       .state = s,
                                       .state_name = dt_zero_state_name(z, s),
                                       .slice = &slices[i],
                                       .owned = &dt_zero_owned_of(z, s)[i],
                                       .unit = dt_zero_unit(z, &slices[i]),
                                       .held = dt_zero_tensor(z, &slices[i])};
        }
    return slot;
}

static dt_stored_slot *add_tensors(dt_stored_slot *slot, const dt_saved_model *of)
{
    for (int u = 0; u < of->n_units; u++)
        for (int t = 0; t < of->units[u].n_tensors; t++)
            *slot++ = (dt_stored_slot){.of = of, .unit = &of->units[u], .held = &of->units[u].tensors[t]};
    return slot;
}

/* Append the whole tensors of divided ones to the allocation of the slots. */
static dt_err add_wholes(dt_stored_slot **slots, int n)
{
    size_t n_divided = 0;
    for (int i = 0; i < n; i++) n_divided += (*slots)[i].held->split_whole > 0;
    const size_t nbytes = ((size_t)n + 1) * sizeof **slots;
    dt_stored_slot *all = n_divided ? realloc(*slots, nbytes + n_divided * sizeof(dt_tensor)) : *slots;
    if (!all) {
        free(*slots);
        *slots = NULL;
        return dt_fail(DT_ERR_MEMORY, "out of memory for a list of %d tensors", n);
    }
    dt_tensor *whole = (dt_tensor *)(void *)((char *)all + nbytes);
    for (int i = 0; i < n; i++) {
        all[i].tensor = all[i].held;
        if (all[i].held->split_whole == 0) continue;
        *whole = dt_tensor_whole(all[i].held);
        all[i].tensor = whole++;
    }
    *slots = all;
    return DT_OK;
}

dt_err dt_stored_slots(const dt_saved_model *models, int n_models, dt_stored_slot **slots, int *n_slots)
{
    int n = 0; /* upper bound */
    for (int k = 0; k < n_models; k++) n += n_tensors(&models[k]) * n_states(&models[k]);
    *n_slots = 0;
    DT_ALLOC(*slots, n + 1, "out of memory for a list of %d tensors", n);
    dt_stored_slot *end = *slots;
    for (int k = 0; k < n_models; k++)
        end = models[k].zero ? add_slices(end, &models[k]) : add_tensors(end, &models[k]);
    *n_slots = (int)(end - *slots);
    return add_wholes(slots, *n_slots);
}

dt_stored_slot dt_stored_plain(const dt_stored_slot *s, dt_tensor *tensor)
{
    dt_stored_slot plain = *s;
    *tensor = *s->tensor;
    plain.tensor = tensor;
    if (tensor->part < DT_CODES) return plain;
    const dt_coded c = tensor->coded;
    *tensor = s->unit->tensors[c.codes];
    tensor->part = DT_FROZEN;
    tensor->n_dims = 2;
    tensor->shape[0] = c.turned ? c.n_in : c.n_out, tensor->shape[1] = c.turned ? c.n_out : c.n_in;
    tensor->n_elems = c.n_out * c.n_in;
    tensor->in_first = c.turned;
    return plain;
}

/* ---- shapes and roles -------------------------------------------------------------------------------------------- */

char *dt_stored_shape_text(int n_dims, const int64_t *shape, char *out, size_t out_size)
{
    size_t len = (size_t)snprintf(out, out_size, "[");
    for (int d = 0; d < n_dims && len < out_size; d++)
        len += (size_t)snprintf(out + len, out_size - len, "%s%" PRId64, d ? ", " : "", shape[d]);
    if (len < out_size) snprintf(out + len, out_size - len, "]");
    return out;
}

dt_err dt_stored_check_shape(const char *path, const char *name, const dt_tensor *t, int n_dims, const int64_t *shape)
{
    char expected[128], found[256];
    bool same = t->n_dims == n_dims;
    for (int d = 0; same && d < n_dims; d++) same = t->shape[d] == shape[d];
    DT_CHECK(same, DT_ERR_DATA, "%s: tensor `%s`: expected the shape %s of this model, found %s", path, name,
             dt_stored_shape_text(t->n_dims, t->shape, expected, sizeof expected),
             dt_stored_shape_text(n_dims, shape, found, sizeof found));
    return DT_OK;
}

int32_t dt_stored_tied_embedding(const dt_stored_slot *slots, int n_slots)
{
    int32_t embed = -1;
    bool predicts = false; /* has a vocabulary head */
    for (int i = 0; i < n_slots; i++) {
        if (slots[i].state != DT_STATE_PARAM || slots[i].of->name) continue;
        const char *name = dt_stored_of_language(slots[i].tensor->name);
        if (strcmp(name, DT_STORED_HEAD) == 0) return -1;
        if (dt_model_is_vocabulary(slots[i].tensor)) embed = i;
        predicts |= slots[i].unit->role == DT_UNIT_HEAD;
    }
    return predicts ? embed : -1;
}

bool dt_stored_may_stay(const dt_stored_slot *s)
{
    if (s->state != DT_STATE_PARAM) return false;
    if (s->of->new_adapters && s->tensor->adapter_scale != 0) return true;
    if (s->of->new_head && strcmp(dt_stored_of_language(s->tensor->name), DT_STORED_HEAD) == 0) return true;
    if (s->of->parts && s->of->parts->new_projector && dt_stored_section_of(s->tensor->name) == DT_STORED_PROJECTOR)
        return true;
    return s->of->new_score && dt_stored_is_score(s->tensor->name);
}

bool dt_stored_is_replaced(const dt_stored_slot *slots, int n_slots, const char *name)
{
    static const char head[] = "lm_head."; /* and its adapters */
    if (n_slots == 0 || !slots[0].of->new_score) return false;
    const char *own = slots[0].tensor->fused.head;
    return strncmp(dt_stored_of_language(name), head, sizeof head - 1) == 0 ||
           (own && strncmp(name, own, strlen(own)) == 0 && name[strlen(own)] == '.');
}

const char *dt_stored_head_hint(const char *name, bool has_score)
{
    const bool score = strcmp(name, DT_STORED_SCORE) == 0,
               head = strcmp(dt_stored_of_language(name), DT_STORED_HEAD) == 0;
    if (has_score && (score || head)) return ": this is a reward model or a classifier, which does not predict tokens";
    return score ? ": this is not a reward model or a classifier; train one with task = rm or classify" : "";
}

dt_err dt_stored_add_file(dt_stored_map *map, const char *path)
{
    const size_t n = strlen(path) + 1;
    DT_RESIZE(map->files, map->files_len + n, "%s: out of memory for its name", path);
    memcpy(map->files + map->files_len, path, n);
    map->files_len += n;
    return DT_OK;
}

int dt_stored_n_files(const dt_stored_map *map)
{
    int n = 0;
    for (size_t i = 0; i < map->files_len; i++) n += map->files[i] == '\0';
    return n;
}
