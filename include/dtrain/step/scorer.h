/* scorer.h - a frozen model whose forward scores the batches of a task: common code of references and judges.
 *
 * It borrows the activation memory of the model in training, so its forward of a batch precedes the training forward.
 * At stage 3 its parameters are partitioned and offloaded like that model's, otherwise replicated; both give the same
 * results. */
#ifndef DTRAIN_SCORER_H
#define DTRAIN_SCORER_H

#include "dtrain/pretrained/frozen_model.h"
#include "dtrain/step/step.h"

/** A scorer. {0} to begin. */
typedef struct dt_scorer {
    const char *name; /* "the reference" */
    /* set before it is opened */
    bool generates;  /* it also generates, with the cache of the model in training */
    int32_t own_pos; /* its batches are the caller's, with its own tokenizer: of as many sequences as the task's, of at
                      * most own_pos tokens, limited by the model's positions; opt has the limits. 0: the task's */

    bool is_base; /* it is the model in training without its adapters; frozen is {0} */
    dt_frozen_model frozen;
    const dt_model_config *mc; /* of frozen, or of the model in training; NULL: an error was reported */
    const dt_unit *units;
    int n_units;
    dt_model_options opt;
    dt_model *model;
} dt_scorer;

/** In open, after t->model_opt has its limits for the task's batches: add it to the task's parts, describe the model at
 *  path, and increase the memory that the model in training lends. For a plan, a missing model is replaced by one with
 *  the shape of the model in training. It is loaded when the run begins. Local.
 *
 *  name      for messages; borrowed
 *  n_labels  outputs of its scalar head; 0: it predicts tokens
 *
 *  DT_ERR_DATA, without the key: no such model, or another vocabulary. */
dt_err dt_scorer_open(dt_scorer *s, dt_task *t, const char *name, const char *path, int n_labels);
/** As dt_scorer_open, for the model in training without its adapters, if only adapters are trained: it has no own
 *  parameters. */
dt_err dt_scorer_open_base(dt_scorer *s, dt_task *t, const char *name);
/** Compute its hidden states for a batch; then call a head of model.h. Collective; a local error ends the job. */
dt_err dt_scorer_forward(dt_scorer *s, dt_task *t, const dt_batch *b);

#endif
