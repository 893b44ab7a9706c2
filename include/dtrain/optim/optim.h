/* optim.h - optimizers: what an update does to the parameters, which states it keeps for that, and the learning rates
 * that it is made with.
 *
 * An optimizer is a table: a name, the names of its states, a step. It is policy alone: zero owns the states, knows
 * them by these names and calls the step on the slices that a rank is in charge of; the arithmetic is the device's. An
 * optimizer of one's own is one more such table, given as dt_zero_options.optimizer or dt_run.optimizer. */
#ifndef DTRAIN_OPTIM_H
#define DTRAIN_OPTIM_H

#include "dtrain/config/config.h"
#include "dtrain/device/device.h"
#include "dtrain/core/unit.h"

/** What an update is made with. zero sets lr and weight_decay for each run of tensors that agree on them. */
typedef struct dt_optimizer_step {
    double lr, weight_decay;
    double beta1, beta2, eps; /* of Adam */
    double momentum;          /* of gradient descent */
    double grad_scale;        /* gradients are multiplied by it first: clipping, and 1 / the loss scale */
    int64_t t;                /* updates that the states have seen, this one included: 1, 2, ... */
} dt_optimizer_step;

enum { DT_MAX_STATES = 4 };

typedef struct dt_optimizer_ops {
    const char *name; /* in checkpoints */
    /* fp32, as many elements as there are parameters; zero before the first update. The names are a checkpoint's:
     * /optimizer/NAME */
    int n_states;
    const char *state_names[DT_MAX_STATES];
    /** Update n elements. Queues work on stream; every element by itself, so that bits do not depend on where a slice
     *  begins.
     *
     *  grad    in      [n] of gt: gradients before grad_scale
     *  master  in/out  float [n]: the parameters
     *  states  in/out  n_states arrays, float [n], as state_names
     *  param   out     NULL, or [n] of param_dt: receives the parameters, rounded */
    dt_err (*step)(dt_device *dev, const dt_optimizer_step *s, const void *grad, dt_dtype gt, float *master,
                   float *const states[], void *param, dt_dtype param_dt, int64_t n, dt_stream *stream);
} dt_optimizer_ops;

/** AdamW; Adam, whose weight decay is added to the gradient; gradient descent with momentum and without, decay likewise
 *  (algorithms.md 0). */
extern const dt_optimizer_ops dt_optimizer_adamw, dt_optimizer_adam, dt_optimizer_sgd, dt_optimizer_sgd_plain;

/** The one that [optimizer] type and momentum ask for: each word that type may have names one. */
const dt_optimizer_ops *dt_optimizer_of(const dt_config *cfg);
/** What [optimizer] says of every update; lr, grad_scale and t are 0. DT_ERR_USAGE: betas. */
dt_err dt_optimizer_settings(dt_optimizer_step *s, const dt_config *cfg);

/* ---- schedule ---------------------------------------------------------------------------------------------------- */

/** The steps that a schedule covers. It starts at the fraction `from` of the peak, warms up to `top` and ends after
 *  `total` steps. A new run has start 0, from 0 and top 1. Checkpoints hold it. */
typedef struct dt_schedule_span {
    int64_t total, start, warmup;
    double from, top;
    bool extended; /* the run was extended: start, warmup, from and top do not follow from the configuration */
} dt_schedule_span;

/** Learning rate as a function of updates done before this one (algorithms.md 9.4). */
typedef struct dt_schedule {
    enum { DT_SCHED_CONSTANT, DT_SCHED_LINEAR, DT_SCHED_COSINE, DT_SCHED_WSD } type;
    enum { DT_DECAY_LINEAR, DT_DECAY_COSINE, DT_DECAY_SQRT } decay;
    double scale, min_ratio; /* scale: of lr_scale_rule */
    dt_schedule_span span;
    int64_t decay_steps;
} dt_schedule;
void dt_schedule_make(dt_schedule *s, const dt_config *cfg, int64_t total_steps, int64_t train_batch_size);
/** Restore the span of a checkpoint. */
void dt_schedule_set_span(dt_schedule *s, const dt_config *cfg, const dt_schedule_span *span);
/** s was made for a new number of steps: apply scheduler.on_extend (algorithms.md 9.4). before: the schedule up to now;
 *  last, next: updates done before the last update and before the next one. */
void dt_schedule_extend(dt_schedule *s, const dt_config *cfg, const dt_schedule *before, int64_t last, int64_t next);
/** lr: the peak, optimizer.lr or that of a group. */
double dt_schedule_lr(const dt_schedule *s, double lr, int64_t updates_done);

/* ---- loss scale -------------------------------------------------------------------------------------------------- */

/** What the loss is multiplied by before backward, so that small gradients do not vanish in fp16 (algorithms.md 9.3).
 *  One for all models of a run, which take or leave a step together. */
typedef struct dt_loss_scale {
    double scale;
    bool scaled;  /* false: not in fp16, and scale is 1 */
    bool dynamic; /* else the scale stays what it is, and so does the rest */
    /* steps judged; the last of them that overflowed, -1: none; overflows up to the one that halves the scale, that
     * one included */
    int64_t iter, last, overflows_left;
    double least;
    int64_t window, hysteresis;
    bool consecutive; /* every clean step brings all of the hysteresis back, not a clean window alone */
} dt_loss_scale;

/** As [precision] has it. DT_ERR_USAGE: min_loss_scale is above the initial scale. */
dt_err dt_loss_scale_make(dt_loss_scale *s, const dt_config *cfg);
/** A step was clean, or its gradients were not finite (algorithms.md 9.3). False: they were not with the smallest
 *  scale, which cannot be lowered. */
bool dt_loss_scale_next(dt_loss_scale *s, bool overflow);
/** Go on where a run left off: its scale, iter, last and overflows_left (0: it had no dynamic scale). */
void dt_loss_scale_resume(dt_loss_scale *s, const dt_loss_scale *saved);

/* ---- learning rates by name -------------------------------------------------------------------------------------- */

enum { DT_MAX_LR_GROUPS = 16 };

/** [optimizer] lr and lr_groups. Group 0 are the tensors that no pattern names. */
typedef struct dt_lr_groups {
    int n; /* group 0 included */
    struct {
        double lr;                /* before the schedule */
        char metric[DT_NAME_MAX]; /* "lr/PATTERN"; of group 0 "lr" */
    } group[DT_MAX_LR_GROUPS];
} dt_lr_groups;

/** DT_ERR_USAGE: what is not a list of pattern:rate. */
dt_err dt_lr_groups_make(dt_lr_groups *g, const dt_config *cfg);
/** Set lr_group of every tensor that is trained: of the patterns that name it, the first. A pattern is matched with
 *  whole parts of the name, what is between its dots: "layers.1" is not in "layers.10.mlp". * and ? stand for any
 *  characters, dots included. DT_ERR_USAGE, with the nearest names, for a pattern that no tensor is left for. */
dt_err dt_lr_groups_assign(const dt_lr_groups *g, const dt_config *cfg, dt_unit *units, int n_units);

#endif
