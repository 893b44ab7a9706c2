/* load.h - what the two ways of loading a tensor share: as it stands in the file, and quantised.
 * Private to checkpoint. */
#ifndef DTRAIN_CHECKPOINT_LOAD_H
#define DTRAIN_CHECKPOINT_LOAD_H

#include "file.h"

typedef struct load_job {
    dt_comm *comm;
    const dt_saved_model *models;
    int n_models;
    const char *path;
    dt_phase *phase;
    dt_stored_slot *slots;
    dt_stored_map map;
    const char **files; /* [n_files] of map */
    uint64_t *sums;
    int n_slots;
    int fd, fd_file; /* the file that is open, and its number */
    bool warned_nonfinite;
    hid_t file; /* -1 unless a tensor has to be read through HDF5: then that of number h5_file */
    int h5_file;
    dt_chunks *chunks; /* elements as in the file, and as z keeps them */
} load_job;

/** Elements first .. first+n-1 of a tensor as they stand in the file. */
dt_err load_fetch(load_job *j, const dt_stored_slot *s, const dt_stored_location *p, int64_t first, int64_t n,
                  void *out);
/** Of these elements, of `size` bytes each, those that this rank is in charge of: every element is in the sum of all
 *  ranks once. */
uint64_t load_checksum(const dt_piece *charge, const char *elems, int64_t first, int64_t n, size_t size);

/** The codes of slot i, whose file holds floats, and what goes with them (load_rows.c). own: what happened on this rank
 *  until now. Collective, agreed. DT_ERR_DATA naming file and tensor: a row has numbers that are not finite. */
dt_err load_quantised(load_job *j, int i, dt_err own);

#endif
