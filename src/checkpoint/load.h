/* load.h - common to both ways of loading a tensor: as stored in the file, and quantised. Private to checkpoint. */
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
    int fd, fd_file; /* the open file and its index */
    bool warned_nonfinite;
    hid_t file; /* -1 unless a tensor needs HDF5; then file number h5_file */
    int h5_file;
    dt_chunks *chunks;          /* elements as in the file, and as z stores them */
    struct load_matrix *matrix; /* that decode_packed read last; NULL: none */
} load_job;

/** Open file number `file` for reading, as j->fd. */
dt_err load_open(load_job *j, int file);
/** load_fetch of a matrix of codes: decoded (decode_packed.c). */
dt_err decode_packed(load_job *j, const dt_stored_slot *s, const dt_stored_location *p, int64_t first, int64_t n,
                     void *out);
/** Read elements first .. first+n-1 of a tensor in the file's type. */
dt_err load_fetch(load_job *j, const dt_stored_slot *s, const dt_stored_location *p, int64_t first, int64_t n,
                  void *out);
/** Checksum of those of these elements, `size` bytes each, that this rank is in charge of. Each element is counted by
 *  exactly one rank. In the whole tensor the first is element `whole`. */
uint64_t load_checksum(const dt_slice *charge, const char *elems, int64_t first, int64_t n, int64_t whole, size_t size);

/** DT_ERR_DATA: a frozen tensor of the file is not that of the model (dt_saved_model.keeps_frozen). */
dt_err load_fail_changed(const load_job *j, const dt_stored_slot *s, const dt_stored_location *p);

/** Compute the codes of slot i from floats in its file, and their scales (load_rows.c). own: this rank's error so far.
 *  Collective, agreed. DT_ERR_DATA naming file and tensor: a row has non-finite values. */
dt_err load_quantised(load_job *j, int i, dt_err own);

#endif
