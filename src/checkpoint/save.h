/* save.h - a save as stages of local work, between which the ranks meet: what writing at once and writing while
 * training goes on have in common. Private to checkpoint. */
#ifndef DTRAIN_CHECKPOINT_SAVE_H
#define DTRAIN_CHECKPOINT_SAVE_H

#include "file.h"
#include <stdatomic.h>

/** {.image.fd = -1} to start from, with what the caller lends. */
typedef struct save_job {
    /* lent */
    dt_comm *comm;
    const dt_saved_model *models;
    int n_models;
    const dt_ckpt_meta *meta;
    const char *dir;
    int64_t keep;
    dt_phase *phase;             /* of the thread that works */
    const char *copy;            /* of this rank's pieces, slot after slot; NULL: they are read where they are kept */
    const atomic_bool *given_up; /* true: the file is not wanted any more; may be NULL */

    char path[PATH_MAX], part[PATH_MAX], folder[PATH_MAX];
    char latest[PATH_MAX]; /* "": the file stands alone */
    dt_aside pointer;      /* rank 0: the new `latest` */
    dt_stored_slot *slots;
    int n_slots;
    int64_t *offsets; /* of each slot's array in the file, in bytes; rank 0: behind them of each of the task's items */
    uint64_t *sums;   /* of each slot: this rank's part, then the whole */
    int64_t file_size;
    ckpt_image image;  /* rank 0 */
    dt_chunks *chunks; /* for states out of the host's reach, and for the image */
} save_job;

/** Names and lists for a checkpoint in a run's directory. Local; save_close also after an error. */
dt_err save_open_in_dir(save_job *j);
/** Not published: the .part goes. Local. */
void save_close(save_job *j, bool published);

/** One stage. */
typedef struct save_stage {
    const char *name;
    dt_err (*work)(save_job *j); /* local, and without MPI and the device where there is a copy: in any thread */
    dt_err (*meet)(save_job *j); /* collective, when all ranks have done the work; NULL: nothing is to be told */
} save_stage;
extern const save_stage save_stages[DT_SAVE_STAGES];

/** Bytes of this rank's piece. */
static inline size_t save_slot_nbytes(const dt_stored_slot *s)
{
    return (size_t)s->piece->n * dt_dtype_size(ckpt_slot_dtype(s));
}

#endif
