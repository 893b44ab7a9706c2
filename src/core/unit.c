/* unit.c - tables of tensors. Offsets depend on the table alone, not on the number of ranks: what a checkpoint maps to
 * a shard is a range of the flat buffer. */
#include "dtrain/unit.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool count_elements(int n_dims, const int64_t *shape, int64_t *n_elems)
{
    int64_t n = 1;
    for (int d = 0; d < n_dims; d++)
        if (shape[d] < 1 || __builtin_mul_overflow(n, shape[d], &n)) return false;
    *n_elems = n;
    return n <= INT64_MAX / 64; /* bytes, and room for padding, stay far from overflow */
}

dt_err dt_unit_add(dt_unit *u, const char *name, int n_dims, const int64_t *shape, bool new_group, bool decay,
                   float init_std, float init_value)
{
    dt_tensor t = {.n_dims = n_dims, .decay = decay, .trainable = true, .init_std = init_std, .init_value = init_value};
    DT_CHECK(n_dims >= 1 && n_dims <= DT_MAX_DIMS, DT_ERR_ARG,
             "unit %s, tensor %s: %d dimensions; 1 to %d are supported", u->name, name, n_dims, DT_MAX_DIMS);
    DT_CHECK(strlen(name) < DT_NAME_MAX, DT_ERR_ARG, "unit %s: the tensor name %s is longer than %d characters",
             u->name, name, DT_NAME_MAX - 1);
    DT_CHECK(count_elements(n_dims, shape, &t.n_elems), DT_ERR_ARG,
             "unit %s, tensor %s: its shape has no or too many elements", u->name, name);
    memcpy(t.name, name, strlen(name) + 1);
    memcpy(t.shape, shape, (size_t)n_dims * sizeof shape[0]);

    t.offset = new_group ? (u->flat_len + DT_GROUP_ALIGN - 1) / DT_GROUP_ALIGN * DT_GROUP_ALIGN : u->flat_len;
    int64_t end;
    DT_CHECK(!__builtin_add_overflow(t.offset, t.n_elems, &end) && end <= INT64_MAX / 64, DT_ERR_ARG,
             "unit %s, tensor %s: the unit would have over %" PRId64 " elements", u->name, name,
             (int64_t)(INT64_MAX / 64));
    dt_tensor *grown = realloc(u->tensors, ((size_t)u->n_tensors + 1) * sizeof *grown);
    DT_CHECK(grown, DT_ERR_MEMORY, "unit %s: no memory for a table of %d tensors", u->name, u->n_tensors + 1);
    u->tensors = grown;
    u->tensors[u->n_tensors++] = t;
    u->n_param += t.n_elems;
    u->flat_len = end;
    return DT_OK;
}

void dt_unit_free(dt_unit *u)
{
    free(u->tensors);
    *u = (dt_unit){0};
}
