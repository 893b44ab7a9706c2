/* optim.h - optimizers: what an update does to the parameters, and which states it keeps for that.
 *
 * An optimizer is a table: a name, the names of its states, a step. It is policy alone: zero owns the states, knows
 * them by these names and calls the step on the slices that a rank is in charge of; the arithmetic is the device's. An
 * optimizer of one's own is one more such table, given as dt_zero_options.optimizer or dt_run.optimizer. */
#ifndef DTRAIN_OPTIM_H
#define DTRAIN_OPTIM_H

#include "dtrain/device.h"

/** What an update is made with. zero sets lr and weight_decay for each run of tensors that agree on them. */
typedef struct dt_optimizer_step {
    double lr, weight_decay;
    double beta1, beta2, eps;
    double grad_scale; /* gradients are multiplied by it first: clipping */
    int64_t t;         /* updates that the states have seen, this one included: 1, 2, ... */
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

extern const dt_optimizer_ops dt_optimizer_adamw;

#endif
