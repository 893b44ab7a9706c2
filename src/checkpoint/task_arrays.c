/* task_arrays.c - saved items of a task, one array each in group /task. Rank 0 has all of them and writes them as ranks
 * write tensors, at the offsets from HDF5. */
#include "file.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define GROUP "/task"
static const int64_t MOST_BYTES = INT64_C(1) << 32; /* upper bound for an item that is read */

static hid_t h5_type_of(dt_named_type type)
{
    const hid_t types[DT_N_NAMED_TYPE] = {[DT_NAMED_I32] = H5T_STD_I32LE,
                                          [DT_NAMED_I64] = H5T_STD_I64LE,
                                          [DT_NAMED_F32] = H5T_IEEE_F32LE,
                                          [DT_NAMED_F64] = H5T_IEEE_F64LE};
    return types[type];
}

static bool item_type_of(dt_h5_type found, dt_named_type *type)
{
    for (dt_named_type t = 0; t < DT_N_NAMED_TYPE; t++) {
        static const dt_h5_type types[DT_N_NAMED_TYPE] = {DT_H5_I32, DT_H5_I64, DT_H5_F32, DT_H5_F64};
        if (types[t] != found) continue;
        *type = t;
        return true;
    }
    return false;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static dt_err create_item(hid_t file, const char *path, hid_t plist, const dt_named_array *item, int64_t *offset)
{
    char name[DT_NAMED_NAME + sizeof GROUP];
    const uint64_t sum = dt_checksum(item->data, 0, item->n, dt_named_type_size(item->type));
    const ckpt_array array = {name, h5_type_of(item->type), 1, &item->n, sum, NULL};
    snprintf(name, sizeof name, GROUP "/%s", item->name);
    return ckpt_create_array(file, path, plist, &array, offset);
}

dt_err ckpt_create_task_arrays(hid_t file, const char *path, hid_t group_list, hid_t dataset_list,
                               const dt_named_arrays *items, int64_t *offsets)
{
    if (items->n_items == 0) return DT_OK;
    DT_EXPECT(items->n_items <= DT_CKPT_TASK_ITEMS);
    const hid_t group = H5Gcreate2(file, GROUP, H5P_DEFAULT, group_list, H5P_DEFAULT);
    if (group < 0 || H5Gclose(group) < 0) return dt_h5_fail(DT_ERR_WRITE, path, GROUP);
    for (int i = 0; i < items->n_items; i++)
        DT_TRY(create_item(file, path, dataset_list, &items->item[i], &offsets[i]));
    return DT_OK;
}

dt_err ckpt_write_task_arrays(int fd, const char *path, const dt_named_arrays *items, const int64_t *offsets)
{
    for (int i = 0; i < items->n_items; i++) {
        const dt_named_array *item = &items->item[i];
        const size_t nbytes = (size_t)item->n * dt_named_type_size(item->type);
        if (nbytes > 0) DT_TRY(dt_write_at(fd, path, offsets[i], item->data, nbytes));
    }
    return DT_OK;
}

double ckpt_task_arrays_nbytes(const dt_named_arrays *items)
{
    double nbytes = 0;
    for (int i = 0; i < items->n_items; i++)
        nbytes += (double)items->item[i].n * (double)dt_named_type_size(items->item[i].type) + 512 + CKPT_PAGE;
    return nbytes;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct item_reader {
    const char *path;
    dt_named_arrays *items;
} item_reader;

static dt_err read_item(hid_t dset, const char *name, void *self)
{
    const item_reader *r = self;
    dt_h5_array a;
    dt_named_type type;
    DT_CHECK(strlen(name) < DT_NAMED_NAME && !strchr(name, '/'), DT_ERR_DATA,
             "%s: `" GROUP "/%.100s`: expected a name of at most %d bytes, without a group", r->path, name,
             DT_NAMED_NAME - 1);
    DT_TRY(dt_h5_inspect(dset, r->path, name, &a));
    DT_CHECK(item_type_of(a.type, &type) && a.n_dims == 1 && a.n_elems <= MOST_BYTES / 8, DT_ERR_DATA,
             "%s: `" GROUP "/%s`: expected one dimension of int32, int64, fp32 or fp64, found %d of %s", r->path, name,
             a.n_dims, dt_h5_type_name(a.type));
    DT_TRY(dt_named_arrays_add(r->items, name, type, a.n_elems, NULL));
    void *data = r->items->item[r->items->n_items - 1].data;
    if (a.n_elems > 0) DT_TRY(dt_h5_read_run(dset, r->path, name, &a, 0, a.n_elems, data));
    const uint64_t sum = dt_checksum(data, 0, a.n_elems, a.elem_size);
    DT_CHECK(!a.has_checksum || sum == a.checksum, DT_ERR_DATA,
             "%s: `" GROUP "/%s` was altered: checksum %016" PRIx64 ", expected %016" PRIx64, r->path, name, sum,
             a.checksum);
    return DT_OK;
}

dt_err ckpt_read_task_arrays(hid_t file, const char *path, dt_named_arrays *items)
{
    H5L_info_t link;
    if (H5Lexists(file, GROUP, H5P_DEFAULT) <= 0) return DT_OK; /* the task saved nothing */
    const bool is_here = H5Lget_info(file, GROUP, &link, H5P_DEFAULT) >= 0 && link.type == H5L_TYPE_HARD;
    const hid_t group = is_here ? H5Gopen2(file, GROUP, H5P_DEFAULT) : -1;
    DT_CHECK(group >= 0, DT_ERR_DATA, "%s: expected a group " GROUP ", found something else", path);
    H5G_info_t info;
    const int n_before = items->n_items;
    dt_err err = dt_h5_each_array(group, path, read_item, &(item_reader){path, items});
    const bool all = H5Gget_info(group, &info) >= 0 && (hsize_t)(items->n_items - n_before) == info.nlinks;
    H5Gclose(group);
    if (err == DT_OK && !all)
        err = dt_fail(DT_ERR_DATA, "%s: group " GROUP ": expected arrays only, found a link or a group", path);
    return err;
}
