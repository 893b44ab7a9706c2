/* step.h - a task: what a run optimises or measures, as a table of functions, and the state that the functions work
 * with.
 *
 * The training loop (train.h) only uses this table. A task owns the source of its batches (datasets, rollouts), its
 * extra models and its metrics (sums.h). Its objective maps log-probabilities to weights: every language-model
 * objective is a function L of token log-probabilities. The task returns u[t] = -dL/dlogp_t, and the head computes
 * gradients from it (docs/architecture.md, principle 3). If u does not depend on logp (pre-training, SFT), forward and
 * backward of the head are one pass. A new algorithm is one more such table. */
#ifndef DTRAIN_STEP_H
#define DTRAIN_STEP_H

#include "dtrain/data/data.h"
#include "dtrain/pretrained/frozen_model.h"
#include "dtrain/core/named_arrays.h"
#include "dtrain/io/json.h"
#include "dtrain/model/model.h"
#include "dtrain/report/report.h"
#include "dtrain/step/sums.h"
#include "dtrain/zero/zero.h"

/** Batch sizes: train_batch_size = micro_batch_size * accumulation * size of the axis data. */
typedef struct dt_batching {
    int64_t train_batch_size, micro_batch_size, accumulation;
} dt_batching;

/** A model that a run trains: its main model, or an auxiliary model of the task, such as the critic of a policy. Each
 *  model has its own learning rate groups and optimizer states. Its gradients are clipped by their own norm unless
 *  shares_norm is set. All models follow [scheduler], from their own peaks, and apply or skip a step together. */
typedef struct dt_trained {
    const char *name; /* in checkpoints, metrics and messages; NULL: the main model */
    dt_unit *units;   /* [n_units] */
    int n_units;
    dt_zero_options zero_opt;   /* with the optimizer; stage, offload and max_live_parameters are the run's */
    dt_optimizer_step settings; /* lr, grad_scale and t are set for each update */
    dt_lr_groups groups;        /* peak rates by dt_tensor.lr_group */
    double max_grad_norm;       /* 0: gradients are not clipped */
    /* auxiliary model: clipped by the joint norm of its gradients, those of the main model and of all models that set
     * shares_norm */
    bool shares_norm;
    /* auxiliary model: the key of the task's section that enables it; NULL: always enabled */
    const char *key;
    const char *model_config; /* auxiliary model: config.json of the export to OUTPUT_DIR/name; NULL: no export */

    /* the run's */
    dt_zero *zero;         /* set before `begin` */
    int64_t state_updates; /* number of updates of the optimizer's states */
    int sum_squares;       /* index of the sum of squares of its gradients (sums.h) */
    char norm_metric[DT_SUM_NAME];
} dt_trained;
enum { DT_MAX_TRAINED = 4, DT_MAX_SAVED = DT_MAX_TRAINED + 1 /* dt_task.kept */ };

/** Input of a micro-step. */
typedef struct dt_micro {
    const dt_batch *batch; /* of this rank; borrowed until the next call; empty (n_tok 0) if it has none */
    int n_micro;           /* number of micro-steps of the step: the same on all ranks and in all calls of the step */
    double inv_norm;       /* 1 / the divisor of the step's loss over all ranks; 0: an empty step */
    bool validation;       /* forward and metrics only (dt_task_forward) */
} dt_micro;

/** The model's predictions for the targets of a batch, with logits divided by the task's temperature: [n_target] each,
 *  in the order of batch->target_row. */
typedef struct dt_predictions {
    const float *logp;
    const uint8_t *hit; /* the target was the most probable token */
    const float *entropy;
    /* NULL unless the task requested them in t->model_opt->head */
    const float *log_sum_squares;
    const float *mean_logit, *kl; /* likewise; only for `collect`, not yet for `weights` */
    const float *value;           /* of a scalar head, which has no other predictions: [n_tok, n_labels] */
} dt_predictions;

/** Derivatives of the task's loss L, of which `weights` writes every element: one per target, as of dt_predictions. */
typedef struct dt_weights {
    float *u; /* [n_target]: -dL/dlogp_t */
    /* [n_target] kappa_t, if - kappa_t times the entropy is a term of L; NULL unless the task requested it
     * (DT_HEAD_ENTROPY_WEIGHT in t->model_opt->head) */
    float *entropy;
    float *kl;     /* [n_target]: likewise of + kl_t times the divergence from t->reference (DT_HEAD_DIVERGENCE) */
    float *dvalue; /* of a scalar head, which has no other derivatives: [n_tok, n_labels] dL/dvalue */
} dt_weights;

/** Host arrays for one micro-batch of a model, allocated once. */
typedef struct dt_task_buffers {
    float *u, *entropy_weight, *kl_weight;
    dt_head_results results;
    float *value, *dvalue;
    void *block;
    size_t nbytes;
} dt_task_buffers;

typedef struct dt_task dt_task;

/** A task. Comments mark functions that may be NULL. */
typedef struct dt_task_ops {
    const char *name; /* the value of run.task */
    /* true: it takes optimizer steps, saves and resumes. false: a run is one validation, without gradients and
     * optimizer states; weights may be NULL */
    bool trains;
    /** Is this tensor of the main model trained? Called once, before open; the same on all ranks. NULL: all tensors
     *  are, if the task trains. */
    bool (*is_trained)(const dt_task *t, const dt_tensor *tensor);
    int n_labels; /* outputs of a scalar head instead of the vocabulary's (reward models); 0: none, or `describe` */
    bool weights_known; /* u depends only on the batch: `weights` gets no predictions. See dt_task.weights_known */
    bool no_dropout;    /* ignore the dropout of config.json and of an adapter; model.dropout and lora.dropout apply */
    bool images;        /* samples of [data] may have images */
    bool whole_rows;    /* with data.packing = wrapped or auto every sequence has data.seq_len tokens */
    /* NULL-terminated: training metrics that the progress line and dtrain-info show in addition to the loss */
    const char *watch[4];
    const char *num_tokens; /* name of the metric that counts tokens since the start, as TRL's num_tokens; or NULL */
    size_t self_nbytes;     /* bytes of dt_task.self, which the run allocates, zeroed, and frees; 0: the task does */

    /** Check that required keys are given, and add mistakes to t->mistakes. Local. NULL: data.train is required, except
     *  for --plan. */
    void (*check)(dt_task *t);
    /** Set t->n_labels, and edit the model's config.json to describe the head, before the model's units are made. May
     *  read the data. Local, with the same result on all ranks. NULL: the head is that of n_labels. */
    dt_err (*describe)(dt_task *t, json_t *config);
    /** Read the configuration, open and check the source of batches, and declare metrics: "loss" if it trains; the
     *  first validation metric is "validation_loss". The sums "tokens" and "samples" are declared before, and counted
     *  for each batch. Sets fields of t, and increases limits in t->model_opt. Local: errors are added to t->mistakes,
     *  and opening continues. The device may not be open (t->dev->ops NULL). */
    void (*open)(dt_task *t);
    /** Like the functions of dt_task_part_ops, for memory that belongs to no part; called after those of all parts.
     *  NULL: nothing to do. close: safe after an error in any of these, and twice. */
    dt_err (*plan)(const dt_task *t, int stage, dt_memory *memory);
    dt_err (*begin)(dt_task *t);
    void (*close)(dt_task *t);

    /** Provide micro-step `micro` of step `step` (counted over all epochs). May generate and score rollouts. Collective
     *  if it uses a model; a local error ends the job. NULL: batches come from t->train (dt_task_data_micro). */
    dt_err (*next_micro)(dt_task *t, int64_t step, int micro, dt_micro *m);
    /** The next three are called by dt_task_data_micro and by a validation without `evaluate`. Collective if they use a
     *  model; a local error ends the job. NULL: nothing to do.
     *
     *  begin_step: before the step's first batch; may set t->micro.inv_norm, which is 1 / counts->n_samples.
     *  begin_validation: before the first batch of a validation.
     *  score: run other models on a batch, before the forward of the model in training. */
    dt_err (*begin_step)(dt_task *t, int64_t step, const dt_step_counts *counts);
    dt_err (*begin_validation)(dt_task *t);
    dt_err (*score)(dt_task *t, const dt_batch *b);
    dt_err (*weights)(dt_task *t, const dt_micro *m, const dt_predictions *p, dt_weights *w); /* local */
    /** Forward and backward of all models in t->auxiliary, once per micro-step. Collective. NULL: there are none. */
    dt_err (*train_auxiliary)(dt_task *t, const dt_micro *m);
    void (*collect)(dt_task *t, const dt_micro *m, const dt_predictions *p); /* into t->sums; local */
    /** Micro-step `micro` of t->n_validation of a validation, into t->sums. Collective, as it uses the model. NULL: a
     *  batch of t->valid, its score, and dt_task_forward. */
    dt_err (*evaluate)(dt_task *t, int64_t micro);
    /** After the last batch of such a validation: add sums that need all of them. Collective. NULL: nothing to do. */
    dt_err (*end_validation)(dt_task *t);

    /** Called after the step's vote, when its sums are combined over all ranks (dt_sums_value) and its update is done,
     *  or skipped if applied is false. step: number of steps done, including this one. The task may change state for
     *  the next step, identically on all ranks. Called before the step is reported and saved: values added to a
     *  DT_SUM_REAL or DT_SUM_MEAN on every rank are reported with it. Collective; a local error ends the job. NULL:
     *  nothing to do. */
    dt_err (*after_step)(dt_task *t, int64_t step, bool applied);

    /** For dtrain-info: number of steps of a whole run, from samples_per_epoch and samples_per_step in its records; 0:
     *  unknown before its end. NULL: run.epochs decides. Local. */
    int64_t (*count_steps)(const dt_config *cfg, double samples_per_epoch, double samples_per_step);
    /** The step at which a run resumes after this many samples, for any earlier batch size. Local. NULL: that of the
     *  position in t->train, or with next_micro the number of whole batches. */
    int64_t (*step_after)(const dt_task *t, int64_t samples);
    /** Add the state that a resume needs in addition to the data position and to dt_task_state; rank 0's items are
     *  stored. Collective, agreed. NULL, also for load: none. */
    dt_err (*save)(dt_task *t, dt_named_arrays *items);
    /** Restore the items of save, on every rank, after the weights are loaded. Collective, agreed. */
    dt_err (*load)(dt_task *t, const dt_named_arrays *items);
} dt_task_ops;

/** A part of a task: a model, a rollout, datasets, host arrays. It plans, allocates and frees its memory. Functions
 *  that are NULL do nothing. */
typedef struct dt_task_part_ops {
    /** Assign its arrays on the host, zeroed, with dt_carve. Returns their bytes. The plan calls it with block NULL,
     *  and the run again with the memory, before any begin. Local. */
    size_t (*lay_out)(void *self, const dt_task *t, void *block);
    /** Add the rest of its memory, including allocations of open. Ranks, batch sizes, model options
     *  and main model in t are those of the plan, which may differ from those at open. Local. */
    dt_err (*plan)(const void *self, const dt_task *t, dt_memory *memory);
    /** Open extra models and allocate: nothing is allocated afterwards. t->model, t->zero and the zero of each model in
     *  t->auxiliary exist. The task sets the initial weights of models in t->auxiliary, the run those of t->model.
     *  Collective, agreed. */
    dt_err (*begin)(void *self, dt_task *t);
    void (*close)(void *self, dt_task *t); /* local; safe after an error in open or begin */
} dt_task_part_ops;

enum { DT_MAX_TASK_FILES = 8, DT_MAX_TASK_PARTS = 48, DT_MAX_TASK_STATE = 24 };

/** A task of a run. The run lends its objects before `check`, except where noted. */
struct dt_task {
    const dt_task_ops *ops;
    void *self; /* the task's own */

    /* lent by the run */
    const dt_config *cfg;
    dt_mistakes *mistakes;
    dt_comm *comm; /* NULL for --plan */
    dt_device *dev;
    dt_ledger *ledger;
    dt_phase *phase;
    const dt_axis *data; /* the axis that distributes samples; a plan sets only its size */
    const dt_axis *sum;  /* the axis that divides states (zero); likewise */
    dt_sums *sums;
    dt_batching batching;
    int64_t n_labels;    /* dt_model_make_parts: that of ops, or set by `describe` */
    dt_model_config *mc; /* of the model that is trained or evaluated; n_units 0 after a mistake in it */
    const dt_unit *units;
    int n_units;
    const dt_trained *main;      /* the main model; its stage is that of `plan`, and set in `begin` */
    dt_model_options *model_opt; /* from the configuration; open may increase limits */
    /* set before `open`: the model's tokenizer, from [model] tokenizer or the model's files; "": unknown. Rollouts set
     * it if prompts are bytes */
    const char *tokenizer;
    const dt_generation_defaults *generation; /* of the initial model; empty for a new one */

    /* lent in `begin` */
    int stage;
    dt_stream *compute;
    dt_zero *zero;
    dt_model *model;
    dt_task_buffers buffers; /* the run's, for micro-steps */
    dt_report *report;       /* since the first step, on rank 0; else NULL */

    struct dt_task_part {
        const dt_task_part_ops *ops;
        void *self, *block; /* block: of lay_out */
        size_t nbytes;
    } part[DT_MAX_TASK_PARTS]; /* dt_task_hold */
    int n_parts;
    /* set by open. Datasets: the run reports them, compares them over the ranks and verifies them; NULL: none, or a
     * mistake */
    dt_loader *train, *valid;
    dt_loader *prompts;        /* borrowed: another one of the files of train, for rollouts; NULL: none */
    dt_dataset_kind data_kind; /* of these datasets (dt_task_data) */
    struct {
        const char *path;
        uint64_t fingerprint;
    } file[DT_MAX_TASK_FILES]; /* dt_task_reads */
    int n_files;
    struct dt_task_model {
        const dt_pretrained *from;
        const dt_unit *units;
        int n_units;
    } models[DT_MAX_TASK_FILES]; /* dt_task_verifies */
    int n_models;
    int64_t steps_per_epoch, samples_per_epoch; /* as steps and "samples" count */
    int64_t total_steps;                        /* if run.max_steps is not given; 0: from run.epochs */
    int64_t schedule_steps;                     /* steps that [scheduler] counts as one (those of a rollout); 0: 1 */
    double temperature;                         /* divides the logits; 0: 1 */
    bool weights_known;                         /* as in the table, if it depends on the configuration */
    bool weight_by_p;                           /* of dt_head_pass */
    /* keep_gathered: dt_zero_options.keep_gathered of the model, set by the run before begin. wants_gathered: the task
     * requests it, if there is enough memory */
    bool keep_gathered, wants_gathered;
    int64_t n_validation;  /* micro-steps per rank; 0: no validation */
    dt_features *features; /* vision.feature_cache: features that batches read; NULL: none */
    uint64_t tower_hash;   /* of the tower that computed them */
    struct dt_same_tower {
        const dt_model_config *mc;
        dt_zero *zero;
        const char *name;
    } same_tower[DT_MAX_TASK_FILES]; /* dt_task_share_tower */
    int n_same_tower;
    /* set in begin: the reference of divergences (DT_HEAD_DIVERGENCE); its forward of a batch precedes the
     * micro-step's. NULL: none */
    dt_model *reference;
    const dt_known *known; /* instead of it: what is known of its distributions of the next batch */
    double kl_mix;         /* of these divergences (dt_head_pass) */
    double saved_nbytes;   /* maximum bytes of its items in a checkpoint */
    struct dt_task_state {
        const char *name;
        dt_named_type type;
        int64_t n;
        void *data;
        bool optional;
        dt_err (*compare)(const void *self, const int64_t *found); /* of an identity; NULL: a value */
        const void *self;
    } state[DT_MAX_TASK_STATE]; /* dt_task_state, dt_task_identity */
    int n_state;
    dt_trained auxiliary[DT_MAX_TRAINED - 1]; /* dt_task_train_auxiliary */
    int n_auxiliary;
    /* a frozen model that the task changes in after_step: stored in checkpoints like trained models. The task loads it;
     * a resume restores it from the checkpoint. NULL: none */
    dt_frozen_model *kept;
    const char *kept_name;

    dt_micro micro;       /* of dt_task_data_micro: the current step, with its last batch */
    int64_t first_sample; /* number of this rank's first sample of the batch, in the step or in the validation */

    /* set in after_step, 0 before: the number of following steps to skip. Skipped steps are not counted, the run is
     * shorter by as many, and their samples count as processed */
    int64_t left_out;
};

/* ---- parts ------------------------------------------------------------------------------------------------------- */

/** Add a part, in open. plan and begin handle the parts in this order, and close in the reverse order. self: borrowed
 *  until it is closed. An error is added to t->mistakes. Local. */
void dt_task_hold(dt_task *t, const dt_task_part_ops *ops, void *self);
/** Call ops->check, or its default. Local; errors are added to t->mistakes. */
void dt_task_check(dt_task *t);
/** Open a task: t->self, the sums "tokens" and "samples", then ops->open. Local; errors are added to t->mistakes. */
void dt_task_open(dt_task *t);
/** The functions of dt_task_part_ops for all parts, then that of the task. */
dt_err dt_task_plan(const dt_task *t, int stage, dt_memory *memory);
dt_err dt_task_begin(dt_task *t);
void dt_task_close(dt_task *t);

/* ---- state in checkpoints ---------------------------------------------------------------------------------------- */

/** In open: store the n values of `data` in each checkpoint as `name`, and restore them at a resume. Adds their bytes
 *  to t->saved_nbytes. name, data: borrowed until the task is closed. optional: without the item, the values are
 *  unchanged; otherwise that is DT_ERR_DATA. An error is added to t->mistakes. Local. */
void dt_task_state(dt_task *t, const char *name, dt_named_type type, int64_t n, void *data, bool optional);
/** Store what identifies an input of the run, such as a hash. key[0] is 0 if it is unknown; it is then neither stored
 *  nor compared. At a resume `compare` returns an error unless the identity that is found is the key. Otherwise as
 *  dt_task_state, optional. */
void dt_task_identity(dt_task *t, const char *name, int64_t n, int64_t *key,
                      dt_err (*compare)(const void *self, const int64_t *found), const void *self);
/** Add this state to the items of a checkpoint. Local. DT_ERR_MEMORY. */
dt_err dt_task_save_state(const dt_task *t, dt_named_arrays *items);
/** Restore and compare it. Local. DT_ERR_DATA: an item is missing or has another type. Errors of `compare`. */
dt_err dt_task_load_state(const dt_task *t, const dt_named_arrays *items);
/** This state, then ops->save or ops->load. Collective, agreed. */
dt_err dt_task_save(dt_task *t, dt_named_arrays *items);
dt_err dt_task_load(dt_task *t, const dt_named_arrays *items);

/* ---- micro-steps ------------------------------------------------------------------------------------------------- */

/** Values of a token in dt_predictions.value; 0: the vocabulary's head. Local. */
static inline int64_t dt_task_n_values(const dt_task *t)
{
    return t->n_labels == DT_HIDDEN_STATES ? t->mc->hidden_size : t->n_labels;
}
/** Allocate the buffers of micro-batches. n_values: of a token. Local. DT_ERR_MEMORY. */
dt_err dt_task_buffers_alloc(dt_task_buffers *t, const dt_model_options *opt, int64_t n_values, dt_ledger *ledger);
/** Free the buffers. Local. Safe on {0}; leaves {0}. */
void dt_task_buffers_free(dt_task_buffers *t, dt_ledger *ledger);
/** Bytes of the buffers, for the plan. Local. */
size_t dt_task_buffers_nbytes(const dt_model_options *opt, int64_t n_values);

/** 1 / t->temperature, for heads. Local. */
float dt_task_inv_temperature(const dt_task *t);
/** Call ops->next_micro, or its default. Collective if it uses a model; a local error ends the job. */
dt_err dt_task_next_micro(dt_task *t, int64_t step, int micro, dt_micro *m);
/** Call ops->evaluate, or its default. Collective; a local error ends the job. */
dt_err dt_task_evaluate(dt_task *t, int64_t micro);
/** Run one micro-step: forward, weights, head, backward, metrics; also with an empty batch. step: key of dropout.
 *  Collective, as the model's units are acquired and released. A local error ends the job. */
dt_err dt_task_micro_step(dt_task *t, const dt_micro *m, int64_t step);
/** Run forward and metrics of one micro-step of a validation, without dropout and gradients. batch: as dt_micro.batch.
 *  Otherwise as dt_task_micro_step. DT_ERR_DATA: as dt_model_forward. */
dt_err dt_task_forward(dt_task *t, const dt_batch *batch);

/* ---- auxiliary models -------------------------------------------------------------------------------------------- */

/** Declare an auxiliary model, in open. The run plans, opens and closes its zero, updates it and includes it in
 *  checkpoints. Local. units: borrowed until `begin`. The run may replace them, so the task then frees those of the
 *  result.
 *
 *  Returns a copy of the main model's settings ([optimizer] without lr_groups, [zero]), which the task may change; NULL
 *  after an error, which is added to t->mistakes. */
dt_trained *dt_task_train_auxiliary(dt_task *t, const char *name, dt_unit *units, int n_units);

/* ---- for tasks that read datasets -------------------------------------------------------------------------------- */

/** Add a mistake if a required key is not given (value is ""), unless it is doubted. expected: for the message, "a
 *  model to evaluate". Local. */
void dt_task_need(dt_task *t, const char *section, const char *key, const char *value, const char *expected);
/** As dt_task_need for a dataset, [data] key. Local. */
void dt_task_need_data(dt_task *t, const char *key, const char *value);
/** The part that is used of further models with images, in Hugging Face directories: as of the task's model. */
dt_model_part dt_task_model_part(const dt_task *t);
/** Register a file other than a dataset that every rank has read; in open. The run compares
 *  fingerprints over the ranks (dt_comm_same_file). path: borrowed for t's life. Local. DT_ERR_ARG: more than
 *  DT_MAX_TASK_FILES files. */
dt_err dt_task_reads(dt_task *t, const char *path, uint64_t fingerprint);
/** Register a model that is read when training begins; in open. --check verifies its files. All arguments are borrowed
 *  until the task is closed. Local. DT_ERR_ARG: more than DT_MAX_TASK_FILES models. */
dt_err dt_task_verifies(dt_task *t, const dt_pretrained *from, const dt_unit *units, int n_units);
/** dt_loader_open for the files of data.key, which is opt->where, and dt_settle_images with the task's model. Errors
 *  name that key. Local. */
dt_err dt_task_open_loader(const dt_task *t, const char *key, dt_loader **l, const dt_loader_options *opt);
/** The parts of [data] that a task reads. */
typedef struct dt_task_data {
    bool training, validation;
    dt_dataset_kind kind;                               /* dt_loader_options */
    bool truncate, no_ties, prompt_targets, mismatched; /* likewise */
    int64_t seq_len;                                    /* 0: data.seq_len */
} dt_task_data;
/** Open [data] train and validation, if given, as t->train and t->valid, a part of the task. Increases limits of
 *  t->model_opt for their micro-batches, and declares the sum "images" if they have images. Errors are added to
 *  t->mistakes. Local. */
void dt_task_open_data(dt_task *t, const dt_task_data *what);
/** Check that the images of files fit a model: size, placeholders, preprocessing. A model without preprocessing
 *  (dt_model_config_set_preprocessor) takes that of the first files, before it is opened; validation files must then
 *  match training files. Files without images always fit. Local, with the same result on all ranks.
 *
 *  where  location for messages
 *  name   of the model
 *  dir    directory with the model's preprocessing, for messages; NULL: none
 *
 *  DT_ERR_DATA naming file and attribute. */
dt_err dt_settle_images(const char *where, const dt_data_info *info, dt_model_config *mc, const char *name,
                        const char *dir);
/** Information on the training data for a warning of this rank; NULL: no data, or another rank warns. Local. */
const dt_data_info *dt_task_warned_data(const dt_task *t);
/** Images of a sample, of grids cells, that --plan assumes without files; the model has a tower. Local. */
int64_t dt_task_planned_images(const dt_task *t);
/** Number of this rank's first sample of micro-batch `micro`, in a step of t->train or in a validation. Local. */
static inline int64_t dt_task_first_sample(const dt_task *t, int64_t micro)
{
    return (micro * t->data->size + t->data->rank) * t->batching.micro_batch_size;
}
/** Provide micro-step `micro` of a step of t->train: ops->begin_step, the batch, ops->score. Sets t->micro and
 *  t->first_sample. Collective if these use a model; a local error ends the job. */
dt_err dt_task_data_micro(dt_task *t, int64_t step, int micro, dt_micro *m);
/** Call `each` with every micro-batch of a step of l, or of DT_EVALUATION, and with the number of its first sample:
 *  for values of the whole step that its first weights depend on. mismatched: of dt_loader_mismatched_batch. Collective
 *  if `each` uses a model; a local error ends the job. */
dt_err dt_task_look_ahead(dt_task *t, dt_loader *l, int64_t step, bool mismatched,
                          dt_err (*each)(dt_task *t, const dt_batch *b, int64_t step, int64_t first));
/** Log-probabilities of the targets of a batch by the model in training, without dropout, into
 *  t->buffers.results.logp. Collective; a local error ends the job. */
dt_err dt_task_logp(dt_task *t, const dt_batch *b);
/** Declare the sum "images", and for images that are grids "cells", once model_opt->max_images is known, for tasks
 *  without dt_task_open_data. Batches are counted like in "tokens". Local. */
void dt_task_declare_images(dt_task *t);
/** Bytes of an image's features, if vision.feature_cache makes batches contain them; 0: they contain images. Local. */
size_t dt_task_feature_nbytes(const dt_task *t);
/** Bytes of an image in a batch, or of its features; 0: the model has no vision tower. Local. */
size_t dt_task_image_nbytes(const dt_task *t);
/** If batches contain features: compute those that vision.feature_cache lacks, with the tower's current weights in
 *  t->zero, and pass them to t->train and t->valid. Call it again when other weights are loaded. Collective, agreed.
 *  DT_ERR_DATA, DT_ERR_WRITE, DT_ERR_STOP. */
dt_err dt_task_make_features(dt_task *t);
/** Register another model that receives batches with features, and therefore must have the main model's tower; in begin
 *  of a part. name: for messages. All are borrowed. Local. DT_ERR_ARG: more than DT_MAX_TASK_FILES models. */
dt_err dt_task_share_tower(dt_task *t, const dt_model_config *mc, dt_zero *zero, const char *name);
/** Free the features, after dt_task_close_data. Local. */
void dt_task_drop_features(dt_task *t);
/** Hash of a model's parameters in units for which is_one is true (NULL: all), the same for any number of ranks and
 *  stage. sum: out. Collective, agreed. */
dt_err dt_hash_parameters(dt_zero *z, dt_comm *comm, bool (*is_one)(const dt_unit *u), uint64_t *sum);
/** Close t->train and t->valid, before the task is closed. Local. */
void dt_task_close_data(dt_task *t);
/** Call ops->step_after, or its default. Local. */
int64_t dt_task_step_after(const dt_task *t, int64_t samples);
/** The same for tasks that take the samples of t->train in order, a batch per step. Local. */
int64_t dt_task_data_step_after(const dt_task *t, int64_t samples);

#endif
