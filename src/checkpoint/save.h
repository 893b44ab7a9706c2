/* save.h - a save as stages of local work with collective exchanges between them, common to synchronous and
 * asynchronous saves. Private to checkpoint. */
#ifndef DTRAIN_CHECKPOINT_SAVE_H
#define DTRAIN_CHECKPOINT_SAVE_H

#include "file.h"
#include <stdatomic.h>

/** Initialise to {.image.fd = -1} and the borrowed fields. */
typedef struct save_job {
    /* borrowed */
    dt_comm *comm;
    const dt_saved_model *models;
    int n_models;
    const dt_ckpt_meta *meta;
    const char *dir;
    int64_t keep;
    dt_phase *phase;             /* of the thread that does the work */
    const char *copy;            /* copy of this rank's slices, in slot order; NULL: read from the states */
    const atomic_bool *given_up; /* set: the save is cancelled; may be NULL */

    char path[PATH_MAX], part[PATH_MAX], folder[PATH_MAX];
    char latest[PATH_MAX]; /* "": a single file without pointer */
    dt_aside pointer;      /* rank 0: the new `latest` */
    dt_stored_slot *slots;
    int n_slots;
    int64_t *offsets; /* file offset of each slot's array, bytes; on rank 0 followed by those of the task's items */
    uint64_t *sums;   /* per slot: this rank's partial sum, then the total */
    int64_t file_size;
    ckpt_image image;  /* rank 0 */
    dt_chunks *chunks; /* for states that the host cannot access, and for the image */
} save_job;

/** Set up names and lists for a checkpoint in a run's directory. Local; call save_close even after an error. */
dt_err save_open_in_dir(save_job *j);
/** published false: deletes the .part file. Local. */
void save_close(save_job *j, bool published);

/** One stage. */
typedef struct save_stage {
    const char *name;
    dt_err (*work)(save_job *j); /* local; with a copy it uses neither MPI nor the device, so any thread may run it */
    dt_err (*meet)(save_job *j); /* collective, after all ranks have done the work; NULL: nothing to exchange */
} save_stage;
extern const save_stage save_stages[DT_SAVE_STAGES];

/** Bytes of this rank's slice. */
static inline size_t save_slot_nbytes(const dt_stored_slot *s)
{
    return (size_t)s->slice->n * dt_dtype_size(ckpt_slot_dtype(s));
}

#endif
