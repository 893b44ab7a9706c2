/* critic.h - a model with a scalar head that is trained together with a policy and predicts the return of each state.
 * Private to src/task.
 *
 * Its parameters and optimizer states belong to the run (dt_task_train_auxiliary). It has its own activations, because
 * its forward and backward run while the policy's activations are kept. It is exported to OUTPUT_DIR/NAME. */
#ifndef DTRAIN_TASK_CRITIC_H
#define DTRAIN_TASK_CRITIC_H

#include "dtrain/pretrained/pretrained.h"
#include "dtrain/task/task.h"

/** Initialise to {0}. */
typedef struct dt_critic {
    const char *name; /* NULL: none */
    double sign;      /* value = sign * output; -1 if the model scores safety and values are costs */
    dt_pretrained from;
    dt_lora lora; /* adapters in `from`, merged into its weights */
    dt_model_config mc;
    dt_unit *units;
    int n_units;
    dt_trained *trained;
    dt_model_options opt;
    dt_param_source source;
    dt_model *model;
    float *value;  /* [max_tok] of the last batch, including the sign */
    float *dvalue; /* [max_tok] dL/dvalue; the caller fills it for the whole batch */
} dt_critic;

/** Call in open, when t->model_opt covers the batches: add it to the task's parts, which load its initial weights.
 *  path: the starting model, a reward model or a language model that gets a new head. If path does not exist and a run
 *  is planned, the shape of the model in training is used. name is borrowed. Errors are returned without the key:
 *  DT_ERR_DATA for another vocabulary. Local. */
dt_err dt_critic_open(dt_critic *c, dt_task *t, const char *name, const char *path, double sign);

/** Forward: c->value of a batch, which may be empty; dt_critic_backward may follow. Collective; a local error ends the
 *  job. */
dt_err dt_critic_forward(dt_critic *c, dt_task *t, const dt_batch *b);
/** Backward for c->dvalue, which may be overwritten. Collective; a local error ends the job. */
dt_err dt_critic_backward(dt_critic *c, dt_task *t, const dt_batch *b);

#endif
