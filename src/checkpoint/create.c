/* create.c - the checkpoint file's metadata, written by one process before and after the data.
 *
 * Only rank 0 calls HDF5, on a file in memory (file_image.c). It creates every dataset contiguous, with early
 * allocation and without fill values, so every offset is fixed before data is written. It then closes the file, and the
 * metadata is copied to the disk once. Checksums are created as zeros and overwritten in place later, so opening the
 * file again moves nothing.
 *
 * HDF5 does not write the data, because every rank would then enter every metadata operation, a few hundred
 * collectives per save. MPI-IO also reports success on a full disk (Open MPI 4.1, HDF5 1.10).
 *
 * The file uses the 1.8 format, because its object headers and B-trees have checksums. */
#include "file.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* bytes of metadata, an upper bound; all metadata is contiguous */
enum { META_FIXED = 16 << 10, META_PER_SLOT = 512 };

/* ---- root -------------------------------------------------------------------------------------------------------- */

/* Write the attributes of the root or of a model's group. */
static dt_err write_states(hid_t group, const char *path, const dt_saved_model *of)
{
    const dt_optimizer_ops *o = dt_zero_optimizer(of->zero);
    char names[DT_MAX_STATES * DT_NAME_MAX] = "";
    size_t len = 0;
    for (int k = 0; o && k < o->n_states && len < sizeof names; k++)
        len += (size_t)snprintf(names + len, sizeof names - len, "%s%s", k ? ", " : "", o->state_names[k]);
    DT_TRY(dt_h5_write_i64(group, path, "state_updates", of->state_updates));
    DT_TRY(dt_h5_write_text(group, path, "optimizer", o ? o->name : "none"));
    if (o && dt_zero_state_type(of->zero) != DT_F32)
        DT_TRY(dt_h5_write_text(group, path, "state_dtype", dt_dtype_name(dt_zero_state_type(of->zero))));
    return dt_h5_write_text(group, path, "optimizer_states", names);
}

/* Write the texts of the root and their joint checksum. base NULL: nothing is omitted. */
static dt_err write_texts(hid_t file, const char *path, const dt_ckpt_meta *m, const char *base)
{
    const char *config = m->config ? m->config : "", *model = m->model_config ? m->model_config : "";
    DT_TRY(dt_h5_write_text(file, path, "config", config));
    DT_TRY(dt_h5_write_text(file, path, "model_config", model));
    if (base) DT_TRY(dt_h5_write_text(file, path, "base", base));
    return dt_h5_write_u64(file, path, "checksum", ckpt_sum_texts(config, model, base ? base : ""));
}

static dt_err write_schedule(hid_t file, const char *path, const dt_ckpt_meta *m)
{
    const dt_schedule_span *s = &m->schedule;
    DT_TRY(dt_h5_write_i64(file, path, "schedule_total", s->total));
    if (m->lr >= 0) DT_TRY(dt_h5_write_f64(file, path, "lr", m->lr));
    if (!s->extended) return DT_OK;
    DT_TRY(dt_h5_write_i64(file, path, "schedule_start", s->start));
    DT_TRY(dt_h5_write_i64(file, path, "schedule_warmup", s->warmup));
    DT_TRY(dt_h5_write_f64(file, path, "schedule_from", s->from));
    return dt_h5_write_f64(file, path, "schedule_top", s->top);
}

static dt_err write_meta(hid_t file, const char *path, const dt_ckpt_meta *m, const dt_saved_model *own)
{
    char *base = NULL;
    DT_TRY(dt_h5_write_text(file, path, "format", "dtrain-checkpoint"));
    DT_TRY(dt_h5_write_i64(file, path, "version", own->base ? CKPT_VERSION : CKPT_VERSION_WHOLE));
    DT_TRY(dt_h5_write_i64(file, path, "sealed", 1)); /* a file with this attribute but without a seal was modified */
    DT_TRY(dt_h5_write_i64(file, path, "step", m->step));
    DT_TRY(dt_h5_write_i64(file, path, "samples", m->samples));
    DT_TRY(dt_h5_write_i64(file, path, "tokens", m->tokens));
    DT_TRY(dt_h5_write_i64(file, path, "updates", m->updates));
    DT_TRY(write_schedule(file, path, m));
    DT_TRY(write_states(file, path, own));
    DT_TRY(dt_h5_write_u64(file, path, "seed", m->seed));
    DT_TRY(dt_h5_write_f64(file, path, "loss_scale", m->scale.scale));
    DT_TRY(dt_h5_write_i64(file, path, "loss_scale_iter", m->scale.iter));
    DT_TRY(dt_h5_write_i64(file, path, "loss_scale_last_overflow", m->scale.last));
    DT_TRY(dt_h5_write_i64(file, path, "loss_scale_overflows_left", m->scale.overflows_left));
    DT_TRY(dt_h5_write_u64(file, path, "data_fingerprint", m->data_fingerprint));
    DT_TRY(dt_h5_write_i64(file, path, "validation_due", m->validation_due));
    DT_TRY(dt_h5_write_i64(file, path, "best_step", m->best_step));
    DT_TRY(dt_h5_write_f64(file, path, "best_metric", m->best_metric));
    DT_TRY(dt_h5_write_i64(file, path, "not_better", m->n_not_better));
    if (own->base) DT_TRY(ckpt_base_text(own->base, &base));
    const dt_err err = write_texts(file, path, m, base);
    free(base);
    return err;
}

/* The property list, or -1, with the list closed, if it could not be set. */
static hid_t checked(hid_t plist, bool is_set)
{
    if (plist < 0 || is_set) return plist;
    H5Pclose(plist);
    return -1;
}

/* Omits creation times everywhere, so that equal states give equal bytes. */
static hid_t properties_without_times(hid_t of)
{
    const hid_t plist = H5Pcreate(of);
    return checked(plist, plist >= 0 && H5Pset_obj_track_times(plist, false) >= 0);
}

/* of: the model of this group; NULL: a group inside a model's group. */
static dt_err make_group(hid_t file, const char *path, hid_t plist, const char *name, const dt_saved_model *of)
{
    const hid_t group = H5Gcreate2(file, name, H5P_DEFAULT, plist, H5P_DEFAULT);
    if (group < 0) return dt_h5_fail(DT_ERR_WRITE, path, name);
    const dt_err err = of ? write_states(group, path, of) : DT_OK;
    return H5Gclose(group) < 0 && err == DT_OK ? dt_h5_fail(DT_ERR_WRITE, path, name) : err;
}

static dt_err make_groups_of(hid_t file, const char *path, hid_t plist, const dt_saved_model *of)
{
    char head[64] = "", name[256];
    if (of->name) {
        snprintf(head, sizeof head, "/%s", of->name);
        DT_TRY(make_group(file, path, plist, head, of));
    }
    snprintf(name, sizeof name, "%s/model", head);
    DT_TRY(make_group(file, path, plist, name, NULL));
    snprintf(name, sizeof name, "%s/optimizer", head);
    DT_TRY(make_group(file, path, plist, name, NULL));
    for (dt_state s = DT_STATE_OPTIMIZER; s < dt_zero_n_states(of->zero); s++) {
        snprintf(name, sizeof name, "%s/optimizer/%s", head, dt_zero_state_name(of->zero, s));
        DT_TRY(make_group(file, path, plist, name, NULL));
    }
    return DT_OK;
}

static dt_err make_groups(hid_t file, const char *path, const dt_saved_model *models, int n_models)
{
    const hid_t plist = properties_without_times(H5P_GROUP_CREATE);
    dt_err err = plist < 0 ? dt_h5_fail(DT_ERR_FAULT, path, "group properties") : DT_OK;
    for (int k = 0; k < n_models && err == DT_OK; k++) err = make_groups_of(file, path, plist, &models[k]);
    if (plist >= 0) H5Pclose(plist);
    return err;
}

/* ---- datasets ---------------------------------------------------------------------------------------------------- */

/* The HDF5 type of a tensor's elements; the caller closes it. Negative on error. HDF5 has no predefined fp16. */
static hid_t element_type(dt_dtype dtype)
{
    const hid_t type = H5Tcopy(dtype == DT_BF16                      ? H5T_STD_U16LE
                               : dtype == DT_I8                      ? H5T_STD_I8LE
                               : dtype == DT_NF4X2 || dtype == DT_U8 ? H5T_STD_U8LE
                                                                     : H5T_IEEE_F32LE);
    if (dtype != DT_F16 || type < 0) return type;
    if (H5Tset_fields(type, 15, 10, 5, 0, 10) >= 0 && H5Tset_size(type, 2) >= 0 && H5Tset_ebias(type, 15) >= 0)
        return type;
    H5Tclose(type);
    return -1;
}

dt_err ckpt_create_array(hid_t file, const char *path, hid_t plist, const ckpt_array *array, int64_t *offset)
{
    hsize_t dims[DT_MAX_DIMS];
    bool empty = false;
    for (int d = 0; d < array->n_dims; d++) dims[d] = (hsize_t)array->shape[d], empty = empty || dims[d] == 0;
    const hid_t space = H5Screate_simple(array->n_dims, dims, NULL), type = array->type;
    const hid_t dset =
        space < 0 || type < 0 ? -1 : H5Dcreate2(file, array->name, type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    dt_err err = dset < 0 ? dt_h5_fail(DT_ERR_WRITE, path, array->name)
                          : dt_h5_write_u64(dset, path, "checksum", array->checksum);
    if (err == DT_OK && array->dtype) err = dt_h5_write_text(dset, path, "dtype", array->dtype);
    const haddr_t at = dset < 0 ? HADDR_UNDEF : H5Dget_offset(dset);
    if (err == DT_OK && at == HADDR_UNDEF && !empty) err = dt_h5_fail(DT_ERR_WRITE, path, array->name);
    *offset = at == HADDR_UNDEF ? -1 : (int64_t)at;
    if (dset >= 0 && H5Dclose(dset) < 0 && err == DT_OK) err = dt_h5_fail(DT_ERR_WRITE, path, array->name);
    if (space >= 0) H5Sclose(space);
    return err;
}

/* The checksum is 0 until the data is written. */
static dt_err create_tensor(hid_t file, const char *path, hid_t plist, const dt_stored_slot *slot, int64_t *offset)
{
    char name[256];
    const dt_dtype dtype = ckpt_slot_dtype(slot);
    const hid_t type = element_type(dtype);
    const dt_tensor *t = slot->tensor;
    ckpt_slot_name(slot, name, sizeof name);
    const ckpt_array array = {name, type, t->n_dims, t->shape, 0, dtype == DT_BF16 ? "bf16" : NULL};
    const dt_err err = ckpt_create_array(file, path, plist, &array, offset);
    if (type >= 0) H5Tclose(type);
    return err;
}

/* Creation properties of arrays that are allocated early and not filled. */
static hid_t array_properties(void)
{
    const hid_t plist = properties_without_times(H5P_DATASET_CREATE);
    return checked(plist, plist >= 0 && H5Pset_layout(plist, H5D_CONTIGUOUS) >= 0 &&
                              H5Pset_alloc_time(plist, H5D_ALLOC_TIME_EARLY) >= 0 &&
                              H5Pset_fill_time(plist, H5D_FILL_TIME_NEVER) >= 0);
}

static dt_err create_arrays(hid_t file, const char *path, const dt_stored_slot *slots, int n_slots,
                            const dt_named_arrays *items, int64_t *offsets)
{
    const hid_t group = properties_without_times(H5P_GROUP_CREATE), dataset = array_properties();
    dt_err err = group < 0 || dataset < 0 ? dt_h5_fail(DT_ERR_FAULT, path, "dataset properties") : DT_OK;
    for (int i = 0; i < n_slots && err == DT_OK; i++) err = create_tensor(file, path, dataset, &slots[i], &offsets[i]);
    if (err == DT_OK) err = ckpt_create_task_arrays(file, path, group, dataset, items, offsets + n_slots);
    if (group >= 0) H5Pclose(group);
    if (dataset >= 0) H5Pclose(dataset);
    return err;
}

/* The in-memory file has no real path, which HDF5's default driver would require. */
static hid_t access_list(int n_slots)
{
    const hsize_t meta = META_FIXED + (hsize_t)n_slots * META_PER_SLOT;
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    return checked(access, access >= 0 && H5Pset_fapl_stdio(access) >= 0 &&
                               H5Pset_file_locking(access, false, true) >= 0 &&
                               H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18) >= 0 &&
                               H5Pset_alignment(access, CKPT_ALIGN_FROM, CKPT_PAGE) >= 0 &&
                               H5Pset_meta_block_size(access, meta) >= 0);
}

/* Register the arrays with the image: they are written directly to the file, and copying the image skips them. */
static dt_err leave_out_arrays(ckpt_image *image, const dt_stored_slot *slots, int n_slots,
                               const dt_named_arrays *items, const int64_t *offsets)
{
    const int n = n_slots + items->n_items;
    dt_byte_range *arrays;
    DT_ALLOC(arrays, n + 1, "out of memory for the offsets of %d arrays", n);
    for (int i = 0; i < n_slots; i++) {
        const int64_t size = (int64_t)dt_dtype_size(ckpt_slot_dtype(&slots[i]));
        arrays[i] = (dt_byte_range){.offset = offsets[i], .nbytes = slots[i].tensor->n_elems * size};
    }
    for (int i = n_slots; i < n; i++) {
        const dt_named_array *item = &items->item[i - n_slots];
        arrays[i] = (dt_byte_range){.offset = offsets[i], .nbytes = item->n * (int64_t)dt_named_type_size(item->type)};
    }
    ckpt_image_leave_out(image, arrays, n);
    return DT_OK;
}

dt_err ckpt_file_create(ckpt_image *image, const char *path, const dt_ckpt_meta *meta, const dt_saved_model *models,
                        int n_models, const dt_stored_slot *slots, int n_slots, int64_t *offsets, int64_t *file_size)
{
    hid_t access = access_list(n_slots);
    hid_t create = properties_without_times(H5P_FILE_CREATE);
    hid_t file = access < 0 || create < 0 ? -1 : H5Fcreate(image->path, H5F_ACC_TRUNC, create, access);
    dt_err err = file < 0 ? dt_h5_fail(DT_ERR_WRITE, path, "cannot be created") : DT_OK;
    if (access >= 0) H5Pclose(access);
    if (create >= 0) H5Pclose(create);
    if (file < 0) return err;
    err = write_meta(file, path, meta, &models[0]);
    if (err == DT_OK) err = make_groups(file, path, models, n_models);
    if (err == DT_OK) err = create_arrays(file, path, slots, n_slots, &meta->items, offsets);
    if (H5Fclose(file) < 0 && err == DT_OK) err = dt_h5_fail(DT_ERR_WRITE, path, "close failed");
    if (err == DT_OK) err = ckpt_image_size(image, file_size); /* closing extended it to its full length */
    return err == DT_OK ? leave_out_arrays(image, slots, n_slots, &meta->items, offsets) : err;
}

dt_err ckpt_file_set_checksums(const ckpt_image *image, const char *path, const dt_stored_slot *slots, int n_slots,
                               const uint64_t *sums)
{
    char name[256];
    hid_t access = access_list(n_slots);
    hid_t file = access < 0 ? -1 : H5Fopen(image->path, H5F_ACC_RDWR, access);
    dt_err err = file < 0 ? dt_h5_fail(DT_ERR_WRITE, path, "cannot be opened again") : DT_OK;
    if (access >= 0) H5Pclose(access);
    if (file < 0) return err;
    for (int i = 0; i < n_slots && err == DT_OK; i++) {
        ckpt_slot_name(&slots[i], name, sizeof name);
        hid_t dset = H5Dopen2(file, name, H5P_DEFAULT);
        err = dset < 0 ? dt_h5_fail(DT_ERR_WRITE, path, name) : dt_h5_write_u64(dset, path, "checksum", sums[i]);
        if (dset >= 0) H5Dclose(dset);
    }
    if (H5Fclose(file) < 0 && err == DT_OK) err = dt_h5_fail(DT_ERR_WRITE, path, "close failed");
    return err;
}
