/* checkpoint.h - what survives: one HDF5 file in which each tensor stands whole under its name. interface.md, "Checkpoint file". */
#ifndef DTRAIN_CHECKPOINT_H
#define DTRAIN_CHECKPOINT_H

#include "dtrain/zero.h"

/** Root attributes. Text fields are malloc'ed when read; free with dt_ckpt_meta_free. */
typedef struct dt_ckpt_meta {
    int64_t step, samples, tokens; /* optimizer steps done, samples and tokens seen */
    int64_t adam_steps;            /* updates applied (attribute `updates`) */
    uint64_t seed;
    double loss_scale;
    char *config;       /* resolved INI */
    char *model_config; /* config.json */
} dt_ckpt_meta;
void dt_ckpt_meta_free(dt_ckpt_meta *m);

/** Write DIR/step-%08d.h5 by way of .part: create, reserve the space, write, checksum, sync, rename, then `latest`; then delete the oldest beyond keep
 *  (0: keep all). Collective; all ranks return the same code. DT_ERR_WRITE (disk full, ...): the .part is removed, everything older untouched. */
dt_err dt_checkpoint_save(dt_comm *comm, dt_zero *z, const dt_ckpt_meta *meta, const char *dir, int64_t keep, dt_phase *phase);

/** The same into one file of any name, whose folder is made when it is not there; no other file is touched. Collective. */
dt_err dt_checkpoint_save_as(dt_comm *comm, dt_zero *z, const dt_ckpt_meta *meta, const char *path, dt_phase *phase);

/** Root attributes of a file, after checking format and version. Local. DT_ERR_DATA naming file and attribute. */
dt_err dt_checkpoint_read_meta(const char *path, dt_ckpt_meta *meta);

/** Load parameters, and moments when with_optimizer, into z; verifies every checksum (a tensor without one: a warning). Tensors must be there with the
 *  right shape; DT_ERR_DATA names file and tensor. Collective; all ranks return the same code; on failure z's contents are undefined. */
dt_err dt_checkpoint_load(dt_comm *comm, dt_zero *z, const char *path, bool with_optimizer, dt_phase *phase);

/** Checkpoints in a directory, newest (highest step) first, malloc'ed full paths; free with dt_config_free_list. None, or no directory: n 0. Stale .part
 *  files are not listed. Local. */
dt_err dt_checkpoint_list(const char *dir, char ***paths, int *n_paths);

/** The checkpoint that a path means: a file is itself; in a run's directory or a folder of checkpoints the one that `latest` names, else the highest
 *  step. malloc'ed. DT_ERR_DATA when there is none. Local. */
dt_err dt_checkpoint_find(const char *path, char **file);

/** Recompute every checksum of a file. Prints a line per tensor to out when out is not NULL. Local. */
dt_err dt_checkpoint_verify(const char *path, FILE *out);

#endif
