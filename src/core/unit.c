/* unit.c - tables of tensors. Offsets depend on the table and on which tensors are trained, but not on the number of
 * ranks. A tensor's elements in a shard are therefore one range. */
#include "dtrain/core/unit.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool count_elements(int n_dims, const int64_t *shape, int64_t *n_elems)
{
    int64_t n = 1;
    for (int d = 0; d < n_dims; d++)
        if (shape[d] < 1 || __builtin_mul_overflow(n, shape[d], &n)) return false;
    *n_elems = n;
    return n <= INT64_MAX / 64; /* sizes in bytes, including padding, stay far from overflow */
}

/* The first offset at or after n where a group may begin. */
static int64_t align_up(const dt_unit *u, dt_part part, int64_t n)
{
    const int64_t align = part == DT_TRAINED && u->trained_align > 0 ? u->trained_align : DT_GROUP_ALIGN;
    return (n + align - 1) / align * align;
}

/** Assign a tensor the next offset of its part. */
static void append(dt_unit *u, dt_tensor *t)
{
    int64_t *len = &u->flat_len[t->part];
    t->offset = t->new_group ? align_up(u, t->part, *len) : *len;
    *len = t->offset + t->n_elems;
}

dt_err dt_unit_add(dt_unit *u, const char *name, int n_dims, const int64_t *shape, bool new_group, bool decay,
                   float init_std, float init_value)
{
    dt_tensor t = {.n_dims = n_dims,
                   .part = DT_TRAINED,
                   .new_group = new_group || u->n_tensors == 0,
                   .decay = decay,
                   .trainable = true,
                   .init_std = init_std,
                   .init_value = init_value,
                   .kind = n_dims == 2 ? DT_KIND_MATRIX : DT_KIND_VECTOR,
                   .split = -1};
    DT_EXPECT(n_dims >= 1 && n_dims <= DT_MAX_DIMS);
    DT_EXPECT(strlen(name) < DT_NAME_MAX);
    DT_CHECK(count_elements(n_dims, shape, &t.n_elems), DT_ERR_ARG,
             "unit %s, tensor %s: the shape has zero or too many elements", u->name, name);
    memcpy(t.name, name, strlen(name) + 1);
    memcpy(t.shape, shape, (size_t)n_dims * sizeof shape[0]);

    int64_t end;
    DT_CHECK(!__builtin_add_overflow(align_up(u, t.part, u->flat_len[t.part]), t.n_elems, &end) &&
                 end <= INT64_MAX / 64,
             DT_ERR_ARG, "unit %s, tensor %s: the unit is too large: expected at most %" PRId64 " elements", u->name,
             name, (int64_t)(INT64_MAX / 64));
    dt_tensor *grown = realloc(u->tensors, ((size_t)u->n_tensors + 1) * sizeof *grown);
    DT_CHECK(grown, DT_ERR_MEMORY, "unit %s: out of memory for a table of %d tensors", u->name, u->n_tensors + 1);
    u->tensors = grown;
    append(u, &t);
    u->tensors[u->n_tensors++] = t;
    u->n_param += t.n_elems;
    return DT_OK;
}

void dt_unit_free(dt_unit *u)
{
    free(u->tensors);
    *u = (dt_unit){0};
}

void dt_units_free(dt_unit *units, int n_units)
{
    for (int i = 0; units && i < n_units; i++) dt_unit_free(&units[i]);
    free(units);
}

/* ---- trained and frozen ------------------------------------------------------------------------------------------ */

int dt_unit_end_of_group(const dt_unit *u, int first)
{
    int end = first + 1;
    while (end < u->n_tensors && !u->tensors[end].new_group) end++;
    return end;
}

void dt_unit_lay_out(dt_unit *u)
{
    memset(u->flat_len, 0, sizeof u->flat_len);
    for (int i = 0; i < u->n_tensors; i++) append(u, &u->tensors[i]);
}

static void choose_trained(dt_unit *u, dt_trains trained, void *self)
{
    for (int first = 0, end; first < u->n_tensors; first = end) {
        dt_part part = DT_FROZEN;
        end = dt_unit_end_of_group(u, first);
        if (u->tensors[first].part == DT_EXACT) continue;
        for (int i = first; i < end; i++) {
            u->tensors[i].trainable = trained && trained(self, &u->tensors[i]);
            if (u->tensors[i].trainable) part = DT_TRAINED;
        }
        for (int i = first; i < end; i++) u->tensors[i].part = part;
    }
    dt_unit_lay_out(u);
}

void dt_units_choose_trained(dt_unit *units, int n_units, dt_trains trained, void *self)
{
    for (int i = 0; i < n_units; i++)
        choose_trained(&units[i], units[i].role == DT_UNIT_CARRIED ? NULL : trained, self);
}

int dt_units_find(const dt_unit *units, int n_units, dt_unit_role role)
{
    for (int i = 0; i < n_units; i++)
        if (units[i].role == role) return i;
    return -1;
}

dt_tensor_run dt_tensor_run_of(const dt_tensor *t, int64_t first, int64_t n)
{
    if (t->split_whole == 0) return (dt_tensor_run){first, n};
    int64_t inner = 1; /* elements of an index of the divided dimension */
    for (int d = t->split + 1; d < t->n_dims; d++) inner *= t->shape[d];
    const int64_t row = t->shape[t->split] * inner, outer = first / row, within = first % row;
    return (dt_tensor_run){(outer * t->split_whole + t->split_first) * inner + within, dt_min_i64(n, row - within)};
}

dt_tensor dt_tensor_whole(const dt_tensor *t)
{
    dt_tensor whole = *t;
    if (t->split_whole == 0) return whole;
    whole.n_elems = t->n_elems / t->shape[t->split] * t->split_whole;
    whole.shape[t->split] = t->split_whole;
    whole.split_first = whole.split_whole = 0;
    return whole;
}

void dt_rename(const dt_renaming *r, const char *name, char *out, size_t size)
{
    while (r && r->here && strncmp(name, r->here, strlen(r->here)) != 0) r++;
    const bool found = r && r->here;
    snprintf(out, size, "%s%s", found ? r->there : "", name + (found ? strlen(r->here) : 0));
}

dt_tensor dt_tensor_fused(const dt_tensor *t)
{
    const dt_fused *f = &t->fused;
    dt_tensor fused = *t;
    const char *number = strpbrk(t->name, "0123456789"), *at = strstr(f->name, "%d"),
               *suffix = f->suffix ? f->suffix : "";
    if (at && number)
        snprintf(fused.name, sizeof fused.name, "%.*s%.*s%.*s%s%s", f->n_prefix, t->name, (int)(at - f->name), f->name,
                 (int)strspn(number, "0123456789"), number, at + 2, suffix);
    else
        snprintf(fused.name, sizeof fused.name, "%.*s%s%s", f->n_prefix, t->name, f->name, suffix);
    fused.n_dims = f->n_dims;
    fused.n_elems = 1;
    for (int d = 0; d < f->n_dims; d++) fused.n_elems *= fused.shape[d] = f->shape[d];
    return fused;
}

int64_t dt_tensor_n_trainable(const dt_tensor *t)
{
    int64_t n_rows = 0;
    if (!t->trainable) return 0;
    for (int i = 0; i < t->n_row_ranges; i++) n_rows += t->row_ranges[i].end - t->row_ranges[i].first;
    return t->n_row_ranges > 0 ? n_rows * (t->n_elems / t->shape[0]) : dt_tensor_whole(t).n_elems;
}

int64_t dt_units_n_weights(const dt_unit *units, int n_units)
{
    int64_t n = 0;
    for (int i = 0; i < n_units; i++)
        for (int t = 0; t < units[i].n_tensors; t++) n += dt_n_weights_of_whole(&units[i].tensors[t]);
    return n;
}

int64_t dt_units_n_trainable(const dt_unit *units, int n_units)
{
    int64_t n = 0;
    for (int i = 0; i < n_units; i++)
        for (int t = 0; t < units[i].n_tensors; t++) n += dt_tensor_n_trainable(&units[i].tensors[t]);
    return n;
}
