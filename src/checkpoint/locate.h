/* locate.h - locating tensors in the safetensors files of a directory. Private to checkpoint. */
#ifndef DTRAIN_CHECKPOINT_LOCATE_H
#define DTRAIN_CHECKPOINT_LOCATE_H

#include "dtrain/checkpoint/stored.h"

/** A directory or a file, and which sections of the model come from it. */
typedef struct locate_job {
    const char *path;
    const char *prefix; /* prefix omitted from the names of tensors; NULL: none */
    bool has[DT_STORED_PROJECTOR + 1];
    bool of_tower; /* directory of a tower: may contain other components, which are ignored */
    bool text;     /* the model has no tower */
    bool own_code; /* tensors have the names of a model with its own code */
    dt_safetensors s;
    bool *used;                /* [s->n_tensors] */
    int first_file;            /* index in the map of this directory's first file */
    int n_kept, n_requantised; /* matrices of bitsandbytes that are to be quantised */
} locate_job;

/** DT_ERR_DATA naming file and tensor: it has another shape. */
dt_err locate_check_shape(const locate_job *job, const dt_st_tensor *found, int n_dims, const int64_t *shape);
/** Set the location of a tensor of codes or values, and mark it as used. scales: likewise; NULL: none. */
void locate_mark(locate_job *job, const dt_st_tensor *found, const dt_st_tensor *scales, dt_stored_location *location);

/** Locate a matrix of bitsandbytes: to be decoded when it is read (bitsandbytes.c). t: the matrix, as a file of plain
 *  weights would have it; is_there: out, is it one? DT_ERR_DATA naming file and tensor. */
dt_err locate_bitsandbytes(locate_job *job, const dt_st_tensor *found, const dt_tensor *t, dt_stored_location *location,
                           bool *is_there);
/** Of a matrix that is to be quantised to nf4: if the file has the same form, read its codes, or its scales, as they
 *  are. */
void locate_as_stored(locate_job *job, const dt_stored_slot *slot, dt_stored_location *location);
/** Log whether matrices of bitsandbytes are kept or quantised again. */
void locate_report_kept(const locate_job *job);

#endif
