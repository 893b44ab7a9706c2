/* step.h - what a run optimises or measures, a task: a table of functions, and what they work with and are made of.
 *
 * The loop (train.h) knows a task through this table alone. A task owns where its batches come from (datasets,
 * rollouts), its extra models and its metrics (sums.h). Its objective sees log-probabilities and returns weights: every
 * language-model objective is a function L of token log-probabilities, it gives u[t] = -dL/dlogp_t, and the head turns
 * that into gradients (docs/architecture.md, idea 3). Where u does not depend on logp (pre-training, SFT) head forward
 * and backward are one pass. A new algorithm is one more such table. */
#ifndef DTRAIN_STEP_H
#define DTRAIN_STEP_H

#include "dtrain/data/data.h"
#include "dtrain/pretrained/frozen_model.h"
#include "dtrain/core/named_arrays.h"
#include "dtrain/model/model.h"
#include "dtrain/report/report.h"
#include "dtrain/step/sums.h"
#include "dtrain/zero/zero.h"

/** train_batch_size = micro_batch_size * gradient_accumulation_steps * nranks. */
typedef struct dt_batching {
    int64_t train_batch_size, micro_batch_size, accumulation;
} dt_batching;

/** A model that a run trains: its own, or one that the task trains beside it (the critic of a policy). Each has updates
 *  of its own: its learning rates are in groups of its own, its optimizer keeps its own states, its gradients are
 *  clipped by their own norm unless they share one. All follow [scheduler], from their own peaks, and take or leave a
 *  step together. */
typedef struct dt_trained {
    const char *name; /* in checkpoints, metrics and messages; NULL: the run's own model */
    dt_unit *units;   /* [n_units] */
    int n_units;
    dt_zero_options zero_opt;   /* the optimizer among them; stage, offload and max_live_parameters are the run's */
    dt_optimizer_step settings; /* lr, grad_scale and t are set for each update */
    dt_lr_groups groups;        /* peak rates by dt_tensor.lr_group */
    double max_grad_norm;       /* 0: gradients are not clipped */
    /* beside the run's own model: clipped by one norm, of its gradients and those of the run's own model and of all
     * others that share it */
    bool shares_norm;
    /* beside: the key of the task's section that asks for it; NULL: there is always one */
    const char *key;
    const char *model_config; /* beside: config.json of what is exported to OUTPUT_DIR/name; NULL: it is not */

    /* the run's */
    dt_zero *zero;         /* from begin on */
    int64_t state_updates; /* updates that the optimizer's states have seen */
    int sum_squares;       /* number of the sum: of its gradients */
    char norm_metric[DT_SUM_NAME];
} dt_trained;
enum { DT_MAX_TRAINED = 4, DT_MAX_SAVED = DT_MAX_TRAINED + 1 /* dt_task.kept */ };

/** What one micro-step trains on. */
typedef struct dt_micro {
    const dt_batch *batch; /* of this rank; borrowed until the next call; empty (n_tok 0) where it has none */
    int n_micro;           /* micro-steps of the step: the same on all ranks and in all calls of the step */
    double inv_norm;       /* 1 / the divisor of the whole step's loss, all ranks together; 0: the step is empty */
} dt_micro;

/** What the model predicts for the tokens of a batch, with logits divided by the task's temperature: [n_tok] each, 0
 *  where there is no target. */
typedef struct dt_predictions {
    const float *logp;
    const uint8_t *hit; /* the target was the most probable token */
    const float *entropy;
    /* NULL unless the task has asked for them in t->model_opt->head */
    const float *log_sum_squares;
    const float *mean_logit, *kl; /* and then there for collect alone, not yet for weights */
    const float *value;           /* of a scalar head, and then nothing else: [n_tok, n_labels] */
} dt_predictions;

/** The derivatives of the loss L that a task makes of them. */
typedef struct dt_weights {
    float *u; /* [n_tok]: -dL/dlogp_t */
    /* [n_tok]: kappa_t, where - kappa_t times the entropy is a part of L; NULL unless the task has asked for them
     * (DT_HEAD_ENTROPY_WEIGHT in t->model_opt->head), and then all are to be written */
    float *entropy;
    float *kl;     /* [n_tok]: likewise of + kl_t times the divergence from t->reference (DT_HEAD_DIVERGENCE) */
    float *dvalue; /* of a scalar head, and then nothing else: [n_tok, n_labels], dL/dvalue */
} dt_weights;

/** Host arrays of one micro-batch of a model, allocated once. */
typedef struct dt_task_buffers {
    float *u, *entropy_weight, *kl_weight;
    dt_head_results results;
    float *value, *dvalue;
    void *block;
    size_t nbytes;
} dt_task_buffers;

typedef struct dt_task dt_task;

/** The table. Functions that may be NULL say what that means. */
typedef struct dt_task_ops {
    const char *name; /* the value of run.task */
    /* true: it takes optimizer steps, saves and resumes. false: a run is one validation, without gradients and states;
     * next_micro, weights and step_after may be NULL */
    bool trains;
    /** Is this tensor of the main model trained? Asked once, before open; the same on all ranks. Frozen tensors have no
     *  gradients and no states. NULL: all are trained, of a task that trains. */
    bool (*is_trained)(const dt_task *t, const dt_tensor *tensor);
    int n_labels;       /* outputs of a scalar head in the place of the vocabulary's (reward models); 0: none */
    bool weights_known; /* u depends on the batch alone: weights gets no predictions. See dt_task.weights_known */
    bool no_dropout;    /* dropout of config.json and of an adapter is off; model.dropout and lora.dropout count */
    bool images;        /* samples of [data] may have images */
    bool whole_rows;    /* with data.packing = wrapped or auto every sequence has data.seq_len tokens */
    /* NULL-terminated: training metrics that the progress line and dtrain-info show beside the loss */
    const char *watch[3];
    const char *num_tokens; /* name of the metric that counts tokens from the start on, as TRL's num_tokens; or NULL */

    /** Check that required keys are given: mistakes are added to t->mistakes. Local. */
    void (*check)(dt_task *t);
    /** Read the configuration, open and check what batches come from, declare metrics: "loss", "tokens" and "samples"
     *  if it trains, "validation_loss" first of a validation's. Says in t what it has found, and widens t->model_opt to
     *  what it needs. Local: errors are added to t->mistakes, and the rest is opened all the same. The device may not
     *  be open (t->dev->ops NULL). */
    void (*open)(dt_task *t);
    /** Add the memory that it would hold at a ZeRO stage, including what open has allocated. The ranks, batch, model
     *  options and main model in t are those of the plan, which may differ from those at open. Local. */
    dt_err (*plan)(const dt_task *t, int stage, dt_memory *memory);
    /** Open extra models, allocate: nothing is allocated after it. t->model, t->zero and the zero of each model in
     *  t->beside are there; of these the task fills in the weights to start from, of t->model the run. Collective,
     *  agreed. NULL: nothing to do. */
    dt_err (*begin)(dt_task *t);
    void (*close)(dt_task *t); /* local; also after an error in any of these, and twice */

    /** Micro-step `micro` of step `step` (counted over all epochs). May roll out: generate, score. Collective where it
     *  uses a model; a local error ends the job. */
    dt_err (*next_micro)(dt_task *t, int64_t step, int micro, dt_micro *m);
    dt_err (*weights)(dt_task *t, const dt_micro *m, const dt_predictions *p, dt_weights *w); /* local */
    /** The forward and backward of all models in t->beside, as often as the run's own. Collective. NULL: there are
     *  none. */
    dt_err (*train_beside)(dt_task *t, const dt_micro *m);
    void (*collect)(dt_task *t, const dt_micro *m, const dt_predictions *p); /* into t->sums; local */
    /** One of t->n_validation micro-steps of a validation, into t->sums. Collective inside. */
    dt_err (*evaluate)(dt_task *t, int64_t micro);

    /** After the step's vote: its sums are reduced over all ranks (dt_sums_value), and its update is done, or skipped
     *  where applied is false. step: steps done, this one included. State that the next step uses may change now,
     *  identically on all ranks. Called before the step is reported and saved: what every rank adds now to a
     *  DT_SUM_REAL or DT_SUM_MEAN is reported with it. Collective; a local error ends the job. NULL: nothing to do. */
    dt_err (*after_step)(dt_task *t, int64_t step, bool applied);

    /** For dtrain-info: the steps of a whole run, from the samples_per_epoch and samples_per_step in its records; 0:
     *  not known before its end. NULL: run.epochs decides. Local. */
    int64_t (*count_steps)(const dt_config *cfg, double samples_per_epoch, double samples_per_step);
    /** The step at which a run goes on that has seen so many samples, whatever its batch size was. Local. */
    int64_t (*step_after)(const dt_task *t, int64_t samples);
    /** Add what a resume needs besides the position in the data; rank 0's items are stored. Collective, agreed. NULL
     *  (of load, too): nothing. */
    dt_err (*save)(dt_task *t, dt_named_arrays *items);
    /** Take items as save left them, on every rank, after the weights are loaded. Collective, agreed. */
    dt_err (*load)(dt_task *t, const dt_named_arrays *items);
} dt_task_ops;

enum { DT_MAX_TASK_FILES = 8 };

/** A task of a run. What is lent is there from before `check`, unless another time is named. */
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
    int nranks;
    dt_sums *sums;
    dt_batching batching;
    dt_model_config *mc; /* of the model that is trained or evaluated; without units after a mistake in it */
    const dt_unit *units;
    int n_units;
    const dt_trained *main;      /* the run's own model as it is trained; the stage as `plan` is told, and in `begin` */
    dt_model_options *model_opt; /* as the configuration has it; open may ask for more */
    /* from `open` on: whose ids the model's are, [model] tokenizer or what came with the model; "": not known. Where
     * prompts are of bytes rollouts say so */
    const char *tokenizer;
    const dt_generation_defaults *generation; /* of the model to start from; of a new one nothing is given */

    /* lent from `begin` on */
    int stage;
    dt_stream *compute;
    dt_zero *zero;
    dt_model *model;
    dt_task_buffers buffers; /* of the run, for micro-steps */
    dt_report *report;       /* from the first step on, on rank 0; else NULL */

    /* the task's answers in open. Datasets: the run tells of them, compares them over the ranks and verifies them;
     * NULL: none, also after a mistake */
    dt_loader *train, *valid;
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
    int64_t total_steps;                        /* where run.max_steps does not say; 0: run.epochs tells */
    int64_t schedule_steps;                     /* that [scheduler] counts as one: of a rollout; 0: 1 */
    double temperature;                         /* logits are divided by it; 0: by 1 */
    bool weights_known;                         /* as in the table, where it depends on the configuration */
    /* dt_zero_options.keep_gathered of the model: it rolls out. wants: where there is room for it; the run says, before
     * begin */
    bool keep_gathered, wants_gathered;
    int64_t n_validation;  /* micro-steps a rank; 0: there is no validation */
    dt_features *features; /* vision.feature_cache: what batches read; NULL: there are none */
    uint64_t tower_hash;   /* of the tower that made them */
    /* frozen models beside the run's own that get the same batches, and so must have the same tower (dt_scorer) */
    dt_frozen_model *same_tower[DT_MAX_TASK_FILES];
    int n_same_tower;
    int images; /* number of the sum "images", which is there where model_opt->max_images > 0 */
    /* in begin: what divergences are from (DT_HEAD_DIVERGENCE); its forward of a batch comes before the micro-step's.
     * NULL: there are none */
    dt_model *reference;
    double saved_nbytes;                   /* of the arrays that save leaves, together, at most */
    dt_trained beside[DT_MAX_TRAINED - 1]; /* dt_task_train_beside */
    int n_beside;
    /* a frozen model that the task changes in after_step: in checkpoints like those that are trained. The task loads
     * it; a resume then finds in it what the checkpoint has. NULL: there is none */
    dt_frozen_model *kept;
    const char *kept_name;

    /* set in after_step, 0 before: the number of following steps to skip. Skipped steps are not counted, the run is
     * shorter by as many, and their samples count as done */
    int64_t left_out;
};

/* ---- micro-steps ------------------------------------------------------------------------------------------------- */

/** n_labels: of a scalar head; 0: the head is the vocabulary's. Local. DT_ERR_MEMORY. */
dt_err dt_task_buffers_alloc(dt_task_buffers *t, const dt_model_options *opt, int n_labels, dt_ledger *ledger);
void dt_task_buffers_free(dt_task_buffers *t, dt_ledger *ledger);
size_t dt_task_buffers_nbytes(const dt_model_options *opt, int n_labels); /* for the plan */

/** 1 / t->temperature, as heads are told. */
float dt_task_inv_temperature(const dt_task *t);
/** One micro-step: forward, weights, head, backward, metrics; also with an empty batch. Collective inside (the units'
 *  acquire and release). */
dt_err dt_task_micro_step(dt_task *t, const dt_micro *m, int64_t step);
/** Forward and metrics alone. */
dt_err dt_task_forward(dt_task *t, const dt_micro *m);

/* ---- models beside the run's own --------------------------------------------------------------------------------- */

/** Train these units beside the model, in open: the run plans, opens and closes their zero, counts them in checkpoints
 *  and updates them. Returns what the run's own model has ([optimizer] without lr_groups, [zero]), for the task to
 *  change; NULL after a mistake, which is added to t->mistakes. units are borrowed until the task is closed. */
dt_trained *dt_task_train_beside(dt_task *t, const char *name, dt_unit *units, int n_units);

/* ---- for tasks that read datasets -------------------------------------------------------------------------------- */

/** Add a mistake where a required key is not given (value ""). expected: "a model to evaluate". Local. */
void dt_task_need(dt_task *t, const char *section, const char *key, const char *value, const char *expected);
/** The same for a dataset. */
void dt_task_need_data(dt_task *t, const char *key, const char *value);
/** In open: every rank has read its own copy of a file other than datasets, whose path lives as long as t; the run
 *  compares fingerprints over the ranks (dt_comm_same_file). Local. DT_ERR_ARG: more than DT_MAX_TASK_FILES. */
dt_err dt_task_reads(dt_task *t, const char *path, uint64_t fingerprint);
/** In open: a model is read from files when training begins; --check verifies them. All are borrowed until the task is
 *  closed. Local. DT_ERR_ARG: more than DT_MAX_TASK_FILES. */
dt_err dt_task_verifies(dt_task *t, const dt_pretrained *from, const dt_unit *units, int n_units);
/** dt_loader_open for the files of data.key, which is opt->where: what is wrong with a file is told behind that key.
 *  Local. */
dt_err dt_task_open_loader(const dt_task *t, const char *key, dt_loader **l, const dt_loader_options *opt);
/** What a task reads of [data]. */
typedef struct dt_task_data {
    bool training, validation;
    bool pairs, truncate, no_ties; /* dt_loader_options */
    int64_t seq_len;               /* 0: data.seq_len */
} dt_task_data;
/** [data] train or validation into t->train or t->valid, where it is given; enlarges t->model_opt for its
 *  micro-batches, and where these have images declares the sum "images". Errors are added to t->mistakes. Local. */
void dt_task_open_data(dt_task *t, const dt_task_data *what);
/** Do the images of these files fit what a model takes: their size, placeholders, preprocessing? A model that does not
 *  know the last (dt_model_config_set_preprocessor) takes it from them, before it is opened; so files of validation
 *  are held to what those of training say. where: head of messages; name: of the model; dir: the directory that says
 *  how its images are made, for messages (NULL: there is none). Files without images fit.
 *  Local, alike on all ranks. DT_ERR_DATA naming file and attribute. */
dt_err dt_settle_images(const char *where, const dt_data_info *info, dt_model_config *mc, const char *name,
                        const char *dir);
/** Add a micro-batch of this rank to the sum "images", where there is one. Local. */
void dt_task_count_images(dt_task *t, const dt_batch *b);
/** Bytes of an image's features where vision.feature_cache has batches bring them; 0: they bring images. Local. */
size_t dt_task_feature_nbytes(const dt_task *t);
/** Where batches bring features: make those that vision.feature_cache does not have yet, by the tower of the weights
 *  that t->zero has now, and give them to t->train and t->valid; again when other weights are loaded. Collective,
 *  agreed. DT_ERR_DATA, DT_ERR_WRITE, DT_ERR_STOP. */
dt_err dt_task_make_features(dt_task *t);
void dt_task_drop_features(dt_task *t); /* behind dt_task_close_data; local */
/** A number for the parameters that are in a model, of units for which is_one is true (NULL: all), on all ranks the
 *  same, whatever their number and the stage are. Collective, agreed. */
dt_err dt_hash_parameters(dt_zero *z, dt_comm *comm, bool (*is_one)(const dt_unit *u), uint64_t *sum);
/** Host bytes of their batches; where nothing could be read (--plan) of batches of full rows. */
size_t dt_task_data_nbytes(const dt_task *t);
void dt_task_close_data(dt_task *t);
/** Samples in the order of t->train, a batch each step. */
int64_t dt_task_data_step_after(const dt_task *t, int64_t samples);

#endif
