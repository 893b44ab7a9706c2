/* checkpoint.h - checkpoints: one HDF5 file that stores each tensor whole under its name. files.md, "Checkpoint
 * files". */
#ifndef DTRAIN_CHECKPOINT_H
#define DTRAIN_CHECKPOINT_H

#include "dtrain/core/named_arrays.h"
#include "dtrain/optim/optim.h"
#include "dtrain/checkpoint/stored.h"

/** The optimizer states of a model in a file. */
typedef struct dt_ckpt_states {
    char *optimizer; /* name, "none" for a frozen model; malloc'ed */
    char *names;     /* names of its states, comma-separated; malloc'ed */
    char *dtype;     /* optimizer.state_dtype of the run that wrote them; malloc'ed */
    int64_t updates; /* number of updates of these states: all, unless the optimizer was changed */
} dt_ckpt_states;
/** Free the texts. Local. Safe on {0}; leaves {0}. */
void dt_ckpt_states_free(dt_ckpt_states *s);

/** Root attributes of a checkpoint. Text fields that were read are malloc'ed; freed with dt_ckpt_meta_free. */
typedef struct dt_ckpt_meta {
    int64_t step, samples, tokens; /* optimizer steps, samples and tokens so far */
    int64_t updates;               /* steps that changed the weights */
    dt_schedule_span schedule;     /* total 0: unknown */
    double lr;                     /* of the last update; negative: unknown */
    uint64_t seed;
    dt_loss_scale scale;       /* as read: scale, iter, last and overflows_left; overflows_left 0: it was not dynamic */
    uint64_t data_fingerprint; /* of the training data (dt_loader_fingerprint); 0: unknown */
    bool validation_due;       /* this step's validation was postponed or interrupted */
    /* step of the best validation, 0: none; its metric; number of validations since that were not better */
    int64_t best_step;
    double best_metric;
    int64_t n_not_better;
    dt_named_arrays items; /* state of the task (step.h); when saving, rank 0's */
    char *config;          /* resolved INI */
    char *model_config;    /* config.json */
    dt_base base;          /* frozen parameters of the run's own model that the file omits, as read; path NULL: none */
    /* of the run's own model, as read; a save writes the states of z, and updates from here */
    dt_ckpt_states states;
} dt_ckpt_meta;
/** Free texts, items and base. Local. Safe on {0}; leaves {0}. */
void dt_ckpt_meta_free(dt_ckpt_meta *m);

/** Save a model as DIR/step-%08d.h5: create a .part, reserve its space, write, checksum, sync, rename, and update
 *  `latest`. Then delete the oldest checkpoints beyond `keep` (0: keep all). Collective, agreed, synchronous. phase:
 *  may be NULL.
 *
 *  DT_ERR_WRITE (disk full, ...): the .part is removed, older files are unchanged. DT_ERR_MEMORY, DT_ERR_COMM. */
dt_err dt_checkpoint_save(dt_comm *comm, dt_zero *z, const dt_ckpt_meta *meta, const char *dir, int64_t keep,
                          dt_phase *phase);

/** As dt_checkpoint_save for several models, the run's own first. A model with a name is stored in a group of that
 *  name. Each has its own number of updates. */
dt_err dt_checkpoint_save_all(dt_comm *comm, const dt_saved_model *models, int n_models, const dt_ckpt_meta *meta,
                              const char *dir, int64_t keep, dt_phase *phase);

/** As dt_checkpoint_save, into one file of any name, whose directory is created if it is missing. No other file
 *  changes. */
dt_err dt_checkpoint_save_as(dt_comm *comm, dt_zero *z, const dt_ckpt_meta *meta, const char *path, dt_phase *phase);

/* ---- asynchronous saving ----------------------------------------------------------------------------------------- */

/** Saves a checkpoint while training continues: a thread writes a copy of the states, one save at a time. The threads
 *  of different ranks do not communicate. A save has stages; at the end of each the ranks synchronise in a vote that
 *  they hold anyway.
 *
 *      dt_saver_begin    copies the states and begins the first stage
 *      dt_saver_hold     orders the next change of the states after the copy
 *      dt_saver_poll     has this rank completed its part of the stage? The vote combines the answers
 *      dt_saver_continue    if all ranks have: begins the next stage, or publishes the checkpoint
 *      dt_saver_finish   instead of the last two: waits for the whole save
 *
 *  Only the training thread calls these functions. The writer uses neither MPI nor the device. */
typedef struct dt_saver dt_saver;

/** Add the memory of the copy (DT_MEM_STAGING, pinned if the device has its own memory) and of its stream to the plan.
 *  nbytes: dt_zero_plan.saved_nbytes of all models together. Local. */
void dt_saver_plan(const dt_device *dev, size_t nbytes, dt_memory *memory);
/** Allocate the copy and start the thread. s: out, closed with dt_saver_close; NULL on error. compute: the stream on
 *  which the states change. Local. DT_ERR_MEMORY, DT_ERR_FAULT (no thread). */
dt_err dt_saver_open(dt_saver **s, dt_comm *comm, dt_device *dev, dt_stream *compute, size_t nbytes);
/** Abandon a save in flight, remove its .part, and free everything. Local. Safe on NULL. */
void dt_saver_close(dt_saver *s);

/** Begin a save as dt_checkpoint_save_all. On return the states are copied, or, if the device has its own memory, the
 *  copy is queued. models and what they point to, meta and dir are borrowed until the save has ended. Collective,
 *  agreed. DT_ERR_ARG: a save is in flight. */
dt_err dt_saver_begin(dt_saver *s, const dt_saved_model *models, int n_models, const dt_ckpt_meta *meta,
                      const char *dir, int64_t keep);
/** Order all work that is queued on the compute stream from now on after the copy. Local; safe on NULL. */
dt_err dt_saver_hold(dt_saver *s);
/** Query this rank's part of the stage. Local, does not wait.
 *
 *  done    out  it is complete, or no save is in flight
 *  work_s  out  seconds that it took
 *
 *  Returns the error of the part, in every call. */
dt_err dt_saver_poll(dt_saver *s, bool *done, double *work_s);
/** Continue after all ranks have answered done; work_s: of the slowest. ended: out, the checkpoint is published.
 *  Collective, agreed. Errors as dt_checkpoint_save. */
dt_err dt_saver_continue(dt_saver *s, double work_s, bool *ended);
/** Wait for the save in flight, if any. Collective, agreed. After an error the save is abandoned on all ranks: the
 *  .part is removed, older files are unchanged. phase: changes while the writer progresses. */
dt_err dt_saver_finish(dt_saver *s, dt_phase *phase);

/** State of the save in flight, or of the last one. */
enum { DT_SAVE_STAGES = 3 };
typedef struct dt_saver_state {
    bool in_progress;
    size_t nbytes;         /* copied by this rank */
    double copy_s;         /* seconds of the copy; known after the first stage */
    double work_s;         /* seconds of all stages so far, each on the slowest rank */
    double begin_s, end_s; /* dt_now_s() when it began, and when this rank's thread ended */
    struct {
        const char *name;
        double begin_s, end_s; /* of this rank's thread */
    } stage[DT_SAVE_STAGES];
    int n_stages; /* that have ended */
} dt_saver_state;
/** The state. Local. s may be NULL. */
dt_saver_state dt_saver_state_of(const dt_saver *s);

/* ---- reading, finding and deleting files ------------------------------------------------------------------------- */

/** Maximum bytes of a checkpoint file, without models: texts_len bytes of configurations, and task_nbytes in up to
 *  DT_CKPT_TASK_ITEMS arrays of its task. Add dt_checkpoint_model_nbytes for each model. A save reserves as much, and
 *  releases what it does not use. Local. */
enum { DT_CKPT_TASK_ITEMS = 64 };
double dt_checkpoint_nbytes(size_t texts_len, double task_nbytes);
/** Maximum bytes of a model, with the states of this optimizer, stored as state_dtype, for each trained tensor.
 *  optimizer NULL: no states. trained_alone: frozen tensors are omitted, except their names and checksums. Local. */
double dt_checkpoint_model_nbytes(const dt_unit *units, int n_units, const dt_optimizer_ops *optimizer,
                                  dt_dtype state_dtype, bool trained_alone);

/** The labels of the scalar head of the run's own model in the file; 0: it has none. n: out. Local. DT_ERR_DATA. */
dt_err dt_checkpoint_n_labels(const char *path, int64_t *n);

/** Check that the parameters in the file have the names and shapes of these models' units, without loading them. Local.
 *  DT_ERR_DATA naming file and tensor. */
dt_err dt_checkpoint_fits(const char *path, const dt_saved_model *models, int n_models);

/** Read the root attributes of a file, after checking format and version. meta: out, freed with dt_ckpt_meta_free.
 *  Local. DT_ERR_DATA naming file and attribute. */
dt_err dt_checkpoint_read_meta(const char *path, dt_ckpt_meta *meta);

/** Read the states of the model with this name. states: out, freed with dt_ckpt_states_free. Local. DT_ERR_DATA: the
 *  file does not contain it. */
dt_err dt_checkpoint_read_states(const char *path, const char *name, dt_ckpt_states *states);

/** Does a file with these states contain every state of the optimizer? Local. */
bool dt_checkpoint_has_states(const dt_ckpt_states *states, const dt_optimizer_ops *optimizer);

/** Can these states be loaded as state_dtype? fp32 and bf16 are converted, int8 only loads as int8. Local. */
bool dt_checkpoint_fits_type(const dt_ckpt_states *states, dt_dtype state_dtype);

/** Load models that were saved together: their parameters, and with_states also their states. Verify every checksum (a
 *  tensor without one: a warning). Collective, agreed. On error the content of the models is undefined. phase: may be
 *  NULL.
 *
 *  DT_ERR_DATA naming file and tensor: missing, of another shape, or altered. DT_ERR_BASE: likewise, for the model that
 *  contains what the file omits. DT_ERR_MEMORY, DT_ERR_COMM. */
dt_err dt_checkpoint_load_all(dt_comm *comm, const dt_saved_model *models, int n_models, const char *path,
                              dt_phase *phase);

/** A dt_stored_locator (stored.h): path is the file. */
dt_err dt_checkpoint_locate(const char *path, const dt_stored_slot *slots, int n_slots, dt_stored_map *map);

/** List the checkpoints in a directory, newest (highest step) first, without .part files. paths: out, full paths, freed
 *  with dt_list_free. n_paths 0: none, or no directory. Local. DT_ERR_MEMORY. */
dt_err dt_checkpoint_list(const char *dir, char ***paths, int *n_paths);

/** List the checkpoints from which a run may resume, best first: the one that `latest` names, then those of lower
 *  steps. Higher steps belong to an abandoned branch and are omitted. Otherwise as dt_checkpoint_list. */
dt_err dt_checkpoint_candidates(const char *dir, char ***paths, int *n_paths);

/** The step in a checkpoint's file name; -1: none. Local. */
int64_t dt_checkpoint_step_of(const char *path);

/** Path of a run's checkpoint: DIR/step-%08d.h5. path: out [PATH_MAX]. Local. DT_ERR_WRITE: too long. */
dt_err dt_checkpoint_path(char *path, const char *dir, int64_t step);

/** Make DIR/NAME ("latest", "best") name the file of a step, durably; step 0: remove it. Local. DT_ERR_WRITE. */
dt_err dt_checkpoint_point(const char *dir, const char *name, int64_t step);

/** Delete the oldest checkpoints until `keep` are left (0: keep all). The file that `latest` names is kept, and in
 *  addition the one that `best` names. A file that cannot be deleted is a warning. dt_checkpoint_save calls it; call it
 *  again when `best` has changed. Local. */
void dt_checkpoint_prune(const char *dir, int64_t keep);

/** Find the checkpoint that a path means: the file itself; in a run's directory or a directory of checkpoints the one
 *  that `latest` names, else the highest step; for a file `latest` or `best` what it names. file: out, malloc'ed.
 *  Local. DT_ERR_DATA: none. */
dt_err dt_checkpoint_find(const char *path, char **file);

/** Verify the checksums of what a file omits of these models (dt_base), in the files that contain it, and check that
 *  all weights and states are finite. Local. DT_ERR_BASE; DT_ERR_DATA: of the file itself. */
dt_err dt_checkpoint_verify_models(const char *path, const dt_saved_model *models, int n_models, dt_phase *phase);

/** Verify every checksum of a file. out: prints a line per tensor; may be NULL. Local. DT_ERR_DATA. */
dt_err dt_checkpoint_verify(const char *path, FILE *out);

#endif
