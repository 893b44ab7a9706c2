/* optim.h - optimizers: how an update changes the parameters, which states it needs, and its learning rates.
 *
 * An optimizer is a table: a name, the names of its states, a step. It only decides what to compute: ZeRO owns the
 * states, identifies them by name and calls the step on the slices that a rank owns; the device does the arithmetic. To
 * add an optimizer: its table in a file of src/optim, its name in DT_OPTIMIZERS, its name and keys in config_keys.h.
 * Every function is Local. */
#ifndef DTRAIN_OPTIM_H
#define DTRAIN_OPTIM_H

#include "dtrain/config/config.h"
#include "dtrain/device/device.h"
#include "dtrain/core/unit.h"

/** Settings of an update. ZeRO sets lr and weight_decay for each range of tensors with equal values. */
typedef struct dt_optimizer_step {
    double lr, weight_decay;
    double beta1, beta2, eps; /* of Adam */
    double momentum;          /* of gradient descent */
    double grad_scale;        /* factor of the gradients: clipping, and 1 / the loss scale */
    int64_t t;                /* number of updates of the states, including this one: 1, 2, ... */
    const dt_config *cfg;     /* keys that only one optimizer reads; borrowed */
} dt_optimizer_step;

enum { DT_MAX_STATES = 4 };

/** n elements with the same settings: any range of a tensor, or of several. */
typedef struct dt_update_range {
    const void *grad; /* in [n] of grad_dtype: gradients before grad_scale */
    dt_dtype grad_dtype;
    float *master;                /* inout [n]: the parameters */
    float *states[DT_MAX_STATES]; /* inout [n] each, as state_names; NULL: the tensor does not have it */
    void *param;                  /* NULL, or out [n] of param_dtype: receives the parameters, rounded */
    dt_dtype param_dtype;
    uint16_t *direction; /* [n] bf16, of matrices that an optimizer needs whole */
    int64_t n;
    dt_stream *stream;
} dt_update_range;

/** What an optimizer does with matrices that it needs whole. ZeRO calls direction on ranges of any length, sends the
 *  directions of each matrix to one rank, which calls matrix, and calls apply on ranges again. All are asynchronous on
 *  their stream. */
typedef struct dt_matrix_optimizer {
    unsigned states; /* bit k: matrices have state k; other tensors have the other states */
    /** Update the states, and compute directions from gradients and states. */
    dt_err (*direction)(dt_device *dev, const dt_optimizer_step *s, const dt_update_range *r);
    /** Bytes of scratch of `matrix`, and its arithmetic operations in any unit. */
    size_t (*scratch_nbytes)(int64_t rows, int64_t cols);
    double (*work)(int64_t rows, int64_t cols);
    /** Change a matrix of directions x [rows, cols] in place. sum_squares: of its elements. */
    dt_err (*matrix)(dt_device *dev, const dt_optimizer_step *s, void *x, int64_t rows, int64_t cols,
                     double sum_squares, void *scratch, dt_stream *stream);
    /** Update parameters in a matrix [rows, cols] from directions that `matrix` has changed. */
    dt_err (*apply)(dt_device *dev, const dt_optimizer_step *s, int64_t rows, int64_t cols, const dt_update_range *r);
} dt_matrix_optimizer;

/** An optimizer. */
typedef struct dt_optimizer_ops {
    const char *name; /* in checkpoints */
    /* each has one element per parameter; zero before the first update. ZeRO stores them as fp32 or in fewer bits
     * (dt_zero_options.state_dtype), checkpoints as /optimizer/NAME */
    int n_states;
    const char *state_names[DT_MAX_STATES];
    unsigned positive_states; /* bit k: state k is never negative, which 8 bits store more precisely */
    /** Update parameters and states. Asynchronous on the stream. Each element is updated independently, so that results
     *  do not depend on how parameters are divided. */
    dt_err (*step)(dt_device *dev, const dt_optimizer_step *s, const dt_update_range *r);
    /** NULL: step updates all tensors. Otherwise it updates those for which dt_is_hidden_matrix is false. */
    const dt_matrix_optimizer *matrices;
} dt_optimizer_ops;
/** The step of adamw, for tensors that are not matrices. */
dt_err dt_adamw_step(dt_device *dev, const dt_optimizer_step *s, const dt_update_range *r);

/** Does a matrix optimizer update it? True for trained tensors of kind DT_KIND_MATRIX. False for adapters, tensors of
 *  which only rows are trained, and those divided on the axis tp. */
bool dt_is_hidden_matrix(const dt_tensor *t);
/** The states that a trained tensor has: bit k for state k. */
unsigned dt_optimizer_states_of(const dt_optimizer_ops *o, const dt_tensor *t);

/** The values of [optimizer] type: AdamW; Adam with weight decay in the gradient; gradient descent with momentum,
 *  likewise; Muon for matrices and AdamW for other tensors (algorithms.md 0). */
#define DT_OPTIMIZERS(OPTIMIZER) OPTIMIZER(adamw) OPTIMIZER(adam) OPTIMIZER(sgd) OPTIMIZER(muon)
#define DT_OPTIMIZER_TABLE(name) extern const dt_optimizer_ops dt_optimizer_##name;
DT_OPTIMIZERS(DT_OPTIMIZER_TABLE)
extern const dt_optimizer_ops dt_optimizer_sgd_plain; /* without momentum */

/** The optimizer that [optimizer] type and momentum select. */
const dt_optimizer_ops *dt_optimizer_of(const dt_config *cfg);
/** Read the settings of [optimizer]; lr, grad_scale and t are 0. DT_ERR_USAGE: betas. */
dt_err dt_optimizer_settings(dt_optimizer_step *s, const dt_config *cfg);

/* ---- schedule ---------------------------------------------------------------------------------------------------- */

/** The steps that a schedule covers. It starts at the fraction `from` of the peak, warms up to `top` and ends after
 *  `total` steps. A new run has start 0, from 0 and top 1. Checkpoints store it. */
typedef struct dt_schedule_span {
    int64_t total, start, warmup;
    double from, top;
    bool extended; /* the run was extended: start, warmup, from and top do not follow from the configuration */
} dt_schedule_span;

/** Learning rate as a function of the number of earlier updates (algorithms.md 9.4). */
typedef struct dt_schedule {
    enum { DT_SCHED_CONSTANT, DT_SCHED_FALLING, DT_SCHED_WSD } type; /* FALLING: after the warmup */
    enum { DT_DECAY_LINEAR, DT_DECAY_COSINE, DT_DECAY_SQRT } decay;
    double scale, min_ratio; /* scale: of lr_scale_rule */
    dt_schedule_span span;
    int64_t decay_steps;
} dt_schedule;
/** The schedule of [scheduler] for total_steps. */
void dt_schedule_make(dt_schedule *s, const dt_config *cfg, int64_t total_steps, int64_t train_batch_size);
/** Replace the span by that of a checkpoint. */
void dt_schedule_set_span(dt_schedule *s, const dt_config *cfg, const dt_schedule_span *span);
/** Apply scheduler.on_extend to a schedule s with a new number of steps (algorithms.md 9.4). before: the schedule so
 *  far; last, next: number of updates before the last one and before the next one. */
void dt_schedule_extend(dt_schedule *s, const dt_config *cfg, const dt_schedule *before, int64_t last, int64_t next);
/** Learning rate after updates_done updates. lr: the peak, of optimizer.lr or of a group. */
double dt_schedule_lr(const dt_schedule *s, double lr, int64_t updates_done);

/* ---- loss scale -------------------------------------------------------------------------------------------------- */

/** Factor of the loss before backward, so that small gradients do not vanish in fp16 (algorithms.md 9.3). All models of
 *  a run share it, and apply or skip a step together. */
typedef struct dt_loss_scale {
    double scale;
    bool scaled;  /* false: the type is not fp16, and scale is 1 */
    bool dynamic; /* false: the scale is constant */
    /* steps so far; the last one that overflowed, -1: none; overflows until the scale is halved, including that one */
    int64_t iter, last, overflows_left;
    double least;
    int64_t window, hysteresis;
    bool consecutive; /* every clean step restores the whole hysteresis; false: only a clean window does */
} dt_loss_scale;

/** The loss scale of [precision]. DT_ERR_USAGE: min_loss_scale is above the initial scale. */
dt_err dt_loss_scale_make(dt_loss_scale *s, const dt_config *cfg);
/** Adjust the scale after a step that was clean or overflowed (algorithms.md 9.3). False: the step overflowed at the
 *  minimum scale. */
bool dt_loss_scale_next(dt_loss_scale *s, bool overflow);
/** Restore scale, iter, last and overflows_left of a checkpoint. overflows_left 0: it had no dynamic scale. */
void dt_loss_scale_resume(dt_loss_scale *s, const dt_loss_scale *saved);

/* ---- learning rates by name -------------------------------------------------------------------------------------- */

enum { DT_MAX_LR_PATTERNS = 15, DT_MAX_LR_GROUPS = 2 * (DT_MAX_LR_PATTERNS + 1) };

/** [optimizer] lr and lr_groups. Group 0 contains the tensors that no pattern matches. With lora.lr_ratio, tensors of a
 *  group to which it applies form another group. */
typedef struct dt_lr_groups {
    int n; /* group 0 included */
    struct {
        double lr;                    /* before the schedule */
        char metric[DT_NAME_MAX + 8]; /* "lr/PATTERN"; group 0: "lr"; with lora.lr_ratio: these and "/lora_B" */
    } group[DT_MAX_LR_GROUPS];
} dt_lr_groups;

/** Parse [optimizer] lr and lr_groups. DT_ERR_USAGE: not a list of pattern:rate. */
dt_err dt_lr_groups_make(dt_lr_groups *g, const dt_config *cfg);
/** Set lr_group of every trained tensor to the first pattern that matches its name. A pattern matches whole
 *  dot-separated components: "layers.1" does not match "layers.10.mlp". * and ? match any characters, including dots.
 *  Then move the B of adapters, and trained vectors, to groups with lora.lr_ratio times the rate (LoRA+, Hayou et al.,
 *  arXiv:2402.12354; vectors as in PEFT's create_loraplus_optimizer).
 *  DT_ERR_USAGE, with the nearest names: a pattern matches no tensor, or none that an earlier pattern left. */
dt_err dt_lr_groups_assign(dt_lr_groups *g, const dt_config *cfg, dt_unit *units, int n_units);
/** Does a pattern match the name of a tensor? */
bool dt_lr_pattern_matches(const char *pattern, const char *name);
enum { DT_LR_SUGGESTION = 3 * DT_NAME_MAX + 40 }; /* bytes */
/** What to write instead of a pattern that matches no tensor: "use mlp.gate", "the nearest names are ...".
 *  trained: only trained tensors count. */
void dt_lr_suggest(const char *pattern, const dt_unit *units, int n_units, bool trained, char *out, size_t size);

#endif
