/* start_adapters.c - initial values of new adapters that depend on the weights of the model. */
#include "dtrain/pretrained/pretrained.h"
#include "merge.h"
#include <stdlib.h>

/* The part of the magnitudes that this rank owns: the slice at the same index of the owned ones. */
static dt_err write_magnitudes(dt_zero *z, const dt_slice *charged, const float *length)
{
    const dt_slice *p = dt_zero_owned(z) + (charged - dt_zero_slices(z));
    const dt_st_type type = dt_st_type_of(dt_zero_state_dtype(z, DT_STATE_PARAM, p));
    void *kept = malloc((size_t)p->n * sizeof(float) + 1);
    DT_CHECK(kept, DT_ERR_MEMORY, "out of memory for magnitudes");
    dt_st_convert(length + p->first, DT_ST_F32, kept, type, p->n);
    const dt_err err = dt_zero_state_write(z, DT_STATE_PARAM, p, 0, p->n, kept);
    free(kept);
    return err;
}

static dt_err start_magnitudes(merge_delta *d, dt_comm *comm, const dt_stored_slot *s, const dt_slice *magnitude)
{
    float *length = NULL;
    DT_TRY(merge_gather_update(d, comm, s, s->tensor->name, DT_OK));
    dt_err err = merge_lengths(d, comm, s, DT_OK, &length);
    if (err == DT_OK) err = dt_comm_agree(comm, write_magnitudes(d->z, magnitude, length));
    free(length);
    return err;
}

dt_err dt_adapters_start(dt_comm *comm, dt_zero *z)
{
    const dt_saved_model of = {.zero = z};
    dt_stored_slot *slots = NULL;
    int n = 0;
    merge_delta d = {0};
    dt_err err = dt_stored_slots(&of, 1, &slots, &n);
    if (err == DT_OK) err = merge_open(&d, z);
    err = dt_comm_agree(comm, err);
    for (int i = 0; i < n && err == DT_OK; i++) {
        const dt_slice *magnitude = merge_magnitude(&d, slots[i].tensor->name);
        if (!magnitude) continue;
        err = start_magnitudes(&d, comm, &slots[i], magnitude);
        merge_free(&d);
    }
    merge_close(&d);
    free(slots);
    return err == DT_OK ? dt_comm_agree(comm, dt_zero_state_written(z)) : err;
}
