/* named_arrays.c - see named_arrays.h. */
#include "dtrain/core/named_arrays.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t size;
} TYPES[DT_N_NAMED_TYPE] = {[DT_NAMED_I32] = {"int32", 4},
                            [DT_NAMED_I64] = {"int64", 8},
                            [DT_NAMED_F32] = {"fp32", 4},
                            [DT_NAMED_F64] = {"fp64", 8}};

size_t dt_named_type_size(dt_named_type type) { return TYPES[type].size; }

const dt_named_array *dt_named_arrays_find(const dt_named_arrays *items, const char *name)
{
    for (int i = 0; i < items->n_items; i++)
        if (!strcmp(items->item[i].name, name)) return &items->item[i];
    return NULL;
}

/* Zeroed memory from the borrowed buffer, or allocated. */
static void *take(dt_named_arrays *items, size_t nbytes)
{
    const size_t padded = (nbytes + 7) / 8 * 8;
    if (nbytes == 0 || padded > items->room_nbytes - items->used) return calloc(1, nbytes ? nbytes : 1);
    void *const at = items->room + items->used;
    items->used += padded;
    return memset(at, 0, nbytes);
}

static bool is_lent(const dt_named_arrays *items, const void *data)
{
    const uintptr_t at = (uintptr_t)data, room = (uintptr_t)items->room;
    return at >= room && at < room + items->room_nbytes;
}

dt_err dt_named_arrays_add(dt_named_arrays *items, const char *name, dt_named_type type, int64_t n, const void *data)
{
    DT_EXPECT(*name && strlen(name) < DT_NAMED_NAME && !strchr(name, '/') && !dt_named_arrays_find(items, name));
    DT_EXPECT(n >= 0 && n < INT64_MAX / 8);
    const size_t nbytes = (size_t)n * TYPES[type].size;
    dt_named_array *item = realloc(items->item, (size_t)(items->n_items + 1) * sizeof *item);
    if (item) items->item = item;
    void *copy = item ? take(items, nbytes) : NULL;
    DT_CHECK(copy, DT_ERR_MEMORY, "out of memory for the item %s of %zu bytes", name, nbytes);
    if (data && nbytes) memcpy(copy, data, nbytes);
    item += items->n_items++;
    *item = (dt_named_array){.type = type, .n = n, .data = copy};
    snprintf(item->name, sizeof item->name, "%s", name);
    return DT_OK;
}

dt_err dt_named_arrays_get(const dt_named_arrays *items, const char *name, dt_named_type type, int64_t n, void *data)
{
    const dt_named_array *item = dt_named_arrays_find(items, name);
    DT_CHECK(item, DT_ERR_DATA, "the checkpoint has no task item `%s`", name);
    DT_CHECK(item->type == type && item->n == n, DT_ERR_DATA,
             "task item `%s` of the checkpoint: expected %" PRId64 " values of type %s, found %" PRId64 " of type %s",
             name, n, TYPES[type].name, item->n, TYPES[item->type].name);
    if (n > 0) memcpy(data, item->data, (size_t)n * TYPES[type].size);
    return DT_OK;
}

void dt_named_arrays_free(dt_named_arrays *items)
{
    for (int i = 0; i < items->n_items; i++)
        if (!is_lent(items, items->item[i].data)) free(items->item[i].data);
    free(items->item);
    *items = (dt_named_arrays){0};
}
