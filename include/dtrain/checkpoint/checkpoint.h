/* checkpoint.h - what survives: one HDF5 file in which each tensor stands whole under its name. files.md,
 * "Checkpoint files". */
#ifndef DTRAIN_CHECKPOINT_H
#define DTRAIN_CHECKPOINT_H

#include "dtrain/core/named_arrays.h"
#include "dtrain/optim/optim.h"
#include "dtrain/checkpoint/stored.h"

/** What a file says of the optimizer of a model in it. */
typedef struct dt_ckpt_states {
    char *optimizer; /* its name, "none" of a frozen model; malloc'ed */
    char *names;     /* of its states, comma separated; malloc'ed */
    int64_t updates; /* that these have seen: all, unless the optimizer was changed */
} dt_ckpt_states;
void dt_ckpt_states_free(dt_ckpt_states *s);

/** Root attributes. Text fields are malloc'ed when read; free with dt_ckpt_meta_free. */
typedef struct dt_ckpt_meta {
    int64_t step, samples, tokens; /* optimizer steps done, samples and tokens seen */
    int64_t updates;               /* steps that changed the weights */
    dt_schedule_span schedule;     /* total 0: not known */
    double lr;                     /* of the last update; negative: not known */
    uint64_t seed;
    double loss_scale;
    /* of a dynamic loss scale (dt_loss_scale); scale_overflows_left 0: it was none */
    int64_t scale_iter, scale_last, scale_overflows_left;
    uint64_t data_fingerprint; /* of the training data (dt_loader_fingerprint); 0: not known */
    bool validation_due;       /* this step's validation was put off or interrupted */
    /* the step of the best validation, 0: none; its metric; and validations without a better one since */
    int64_t best_step;
    double best_metric;
    int64_t n_not_better;
    dt_named_arrays items; /* what the task left (task.h); when saving, of rank 0 */
    char *config;          /* resolved INI */
    char *model_config;    /* config.json */
    dt_base base;          /* of the run's own model, as read: what the file leaves out; path NULL: nothing */
    /* of the run's own model, as read; a save writes what z keeps, and of these the number of updates */
    dt_ckpt_states states;
} dt_ckpt_meta;
void dt_ckpt_meta_free(dt_ckpt_meta *m);

/** Write DIR/step-%08d.h5 by way of .part: create, reserve the space, write, checksum, sync, rename, then `latest`;
 *  then delete the oldest beyond keep (0: keep all). Collective; all ranks return the same code. DT_ERR_WRITE (disk
 *  full, ...): the .part is removed, everything older untouched. */
dt_err dt_checkpoint_save(dt_comm *comm, dt_zero *z, const dt_ckpt_meta *meta, const char *dir, int64_t keep,
                          dt_phase *phase);

/** The same for several models, the run's own first: those with a name stand in a group of that name, as the run's own
 *  does in the file. Each has its own number of updates. */
dt_err dt_checkpoint_save_all(dt_comm *comm, const dt_saved_model *models, int n_models, const dt_ckpt_meta *meta,
                              const char *dir, int64_t keep, dt_phase *phase);

/** The same into one file of any name, whose folder is made when it is not there; no other file is touched.
 *  Collective. */
dt_err dt_checkpoint_save_as(dt_comm *comm, dt_zero *z, const dt_ckpt_meta *meta, const char *path, dt_phase *phase);

/* ---- saving while training goes on ------------------------------------------------------------------------------- */

/** One save at a time, written by a thread of its own from a copy of the states. The threads of the ranks know nothing
 *  of each other: a save has stages, and where one ends the ranks meet in a vote that they have anyway.
 *
 *      dt_saver_begin    the states are copied, the first stage begins
 *      dt_saver_hold     before the states change: the copy comes first
 *      dt_saver_look     has this rank done its part of the stage? The vote brings all answers together
 *      dt_saver_go_on    all ranks have: the next stage begins, or the checkpoint is published
 *      dt_saver_finish   instead of the last two: waits for all that is left
 *
 *  All calls are the training thread's. The writer uses neither MPI nor the device. */
typedef struct dt_saver dt_saver;

/** The memory of the copy, category DT_MEM_STAGING, in pinned memory where the device is apart, and of its stream.
 *  nbytes: dt_zero_plan.saved_nbytes of all models together. For the plan. */
void dt_saver_plan(const dt_device *dev, size_t nbytes, dt_memory *memory);
/** compute: the stream on which the states change. Local. DT_ERR_MEMORY, DT_ERR_FAULT (no thread). */
dt_err dt_saver_open(dt_saver **s, dt_comm *comm, dt_device *dev, dt_stream *compute, size_t nbytes);
/** Local; safe on NULL. A save under way is given up, and its .part goes. */
void dt_saver_close(dt_saver *s);

/** As dt_checkpoint_save_all, but all there is when it returns is the copy, and where the device is apart not even
 *  that. models, what they point to, meta and dir are borrowed until the save has ended. Collective, agreed.
 *  DT_ERR_ARG: one is under way. */
dt_err dt_saver_begin(dt_saver *s, const dt_saved_model *models, int n_models, const dt_ckpt_meta *meta,
                      const char *dir, int64_t keep);
/** What is queued on the compute stream from now on comes behind the copy. Local; safe on NULL. */
dt_err dt_saver_hold(dt_saver *s);
/** *done: this rank has done its part of the stage, or no save is under way; *work_s: how long that took. Returns what
 *  went wrong there, again with each call. Local, does not wait. */
dt_err dt_saver_look(dt_saver *s, bool *done, double *work_s);
/** All ranks have answered done, and the slowest took work_s. *ended: the checkpoint is published. Collective. */
dt_err dt_saver_go_on(dt_saver *s, double work_s, bool *ended);
/** Collective, agreed; nothing to do without a save under way. After an error the save is given up on all ranks: the
 *  .part is removed, everything older untouched. phase: the caller's; it changes while the writer gets on. */
dt_err dt_saver_finish(dt_saver *s, dt_phase *phase);

/** The save under way, or the last. */
enum { DT_SAVE_STAGES = 3 };
typedef struct dt_saver_state {
    bool under_way;
    size_t nbytes;         /* copied by this rank */
    double copy_s;         /* that the copy took; once the first stage is done */
    double work_s;         /* of all stages so far, each of the slowest rank */
    double begin_s, end_s; /* dt_now_s() when it began, and when this rank's thread was done */
    struct {
        const char *name;
        double begin_s, end_s; /* of this rank's thread */
    } stage[DT_SAVE_STAGES];
    int n_stages; /* that have ended */
} dt_saver_state;
dt_saver_state dt_saver_state_of(const dt_saver *s); /* s may be NULL */

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/** Bytes on the disk that a checkpoint takes at most: with texts_len bytes of configurations, and task_nbytes in up to
 *  DT_CKPT_TASK_ITEMS arrays of its task; for each model in it those of dt_checkpoint_model_nbytes come on top. A save
 *  reserves as much, and gives back what is over. */
enum { DT_CKPT_TASK_ITEMS = 64 };
double dt_checkpoint_nbytes(size_t texts_len, double task_nbytes);
/** Those of a model: with n_states of the optimizer for each tensor that is trained, all in fp32. trained_alone: what
 *  is frozen is left out, but for its names and checksums. */
double dt_checkpoint_model_nbytes(const dt_unit *units, int n_units, int n_states, bool trained_alone);

/** Has the run's own model a scalar head there? Local. DT_ERR_DATA. */
dt_err dt_checkpoint_is_scored(const char *path, bool *is);

/** Do the parameters in the file have the names and shapes of these models' units? Nothing is loaded. Local.
 *  DT_ERR_DATA naming file and tensor. */
dt_err dt_checkpoint_fits(const char *path, const dt_saved_model *models, int n_models);

/** Root attributes of a file, after checking format and version. Local. DT_ERR_DATA naming file and attribute. */
dt_err dt_checkpoint_read_meta(const char *path, dt_ckpt_meta *meta);

/** The same of a model with a name alone. Local. DT_ERR_DATA: it is not in the file. */
dt_err dt_checkpoint_read_states(const char *path, const char *name, dt_ckpt_states *states);

/** Does a file that says this hold every state of the optimizer? */
bool dt_checkpoint_has_states(const dt_ckpt_states *states, const dt_optimizer_ops *optimizer);

/** Load parameters, and the optimizer's states when with_optimizer, into z; verifies every checksum (a tensor without
 *  one: a warning). Tensors must be there with the right shape; DT_ERR_DATA names file and tensor, DT_ERR_BASE those
 *  of the model that has what the file leaves out. Collective; all ranks return the same code; on failure z's contents
 *  are undefined. */
dt_err dt_checkpoint_load(dt_comm *comm, dt_zero *z, const char *path, bool with_optimizer, dt_phase *phase);

/** The same for several that were saved together, each with its states or without. */
dt_err dt_checkpoint_load_all(dt_comm *comm, const dt_saved_model *models, int n_models, const char *path,
                              dt_phase *phase);

/** A dt_stored_locator: path is the file. */
dt_err dt_checkpoint_locate(const char *path, const dt_stored_slot *slots, int n_slots, dt_stored_map *map);

/** Checkpoints in a directory, newest (highest step) first, malloc'ed full paths; free with dt_list_free. None, or no
 *  directory: n 0. Stale .part files are not listed. Local. */
dt_err dt_checkpoint_list(const char *dir, char ***paths, int *n_paths);

/** The checkpoints of a directory that a run may go on from, best choice first: the one that `latest` names, then those
 *  of lower steps. What has a higher step than `latest` belongs to a branch that was left, and does not count. Local;
 *  free with dt_list_free. */
dt_err dt_checkpoint_candidates(const char *dir, char ***paths, int *n_paths);

/** The step in a checkpoint's file name, -1 where it has none. */
int64_t dt_checkpoint_step_of(const char *path);

/** DIR/step-%08d.h5 into path [PATH_MAX]: the name of a run's checkpoint. DT_ERR_WRITE: too long. */
dt_err dt_checkpoint_path(char *path, const char *dir, int64_t step);

/** Let DIR/NAME ("latest", "best") name the file of a step, durably; step 0: remove it. Local. DT_ERR_WRITE. */
dt_err dt_checkpoint_point(const char *dir, const char *name, int64_t step);

/** Delete the oldest checkpoints until `keep` are left, 0: all; what `latest` names stays, and what `best` names, in
 *  addition to those where it is older. A file that will not go is a warning. Local. dt_checkpoint_save does so; again
 *  when `best` has moved since. */
void dt_checkpoint_prune(const char *dir, int64_t keep);

/** The checkpoint that a path means: a file is itself; in a run's directory or a folder of checkpoints the one that
 *  `latest` names, else the highest step; of the files `latest` and `best` what they name. malloc'ed. DT_ERR_DATA when
 *  there is none. Local. */
dt_err dt_checkpoint_find(const char *path, char **file);

/** Recompute the checksums of what a file leaves out of these models (dt_base), where it is, and check that all weights
 *  and states are finite. Local. DT_ERR_BASE, and DT_ERR_DATA of the file itself. */
dt_err dt_checkpoint_verify_models(const char *path, const dt_saved_model *models, int n_models, dt_phase *phase);

/** Recompute every checksum of a file. Prints a line per tensor to out when out is not NULL. Local. */
dt_err dt_checkpoint_verify(const char *path, FILE *out);

#endif
