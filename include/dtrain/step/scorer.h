/* scorer.h - a frozen model whose forward scores the batches of a task: what a reference and a judge have in common.
 *
 * It borrows the activation memory of the model in training, so its forward of a batch comes before the training
 * forward. At stage 3 its parameters are partitioned and offloaded like that model's, else replicated; both give the
 * same numbers. */
#ifndef DTRAIN_SCORER_H
#define DTRAIN_SCORER_H

#include "dtrain/pretrained/frozen_model.h"
#include "dtrain/step/step.h"

/** {0} to start from. */
typedef struct dt_scorer {
    const char *name; /* "the reference" */
    bool is_base;     /* it is the model in training without its adapters; frozen is {0} then */
    dt_frozen_model frozen;
    dt_model_options opt;
    dt_model *model;
} dt_scorer;

/** In open, after t->model_opt has room for the task's batches: describe the model at path, and enlarge what the model
 *  in training lends. n_labels: outputs of its scalar head; 0: it predicts tokens. Where a run is planned and path does
 *  not exist, a model of the shape of the one in training is planned for. name: for messages; borrowed. Local.
 *  DT_ERR_DATA, without the key: no such model, or one with another vocabulary. */
dt_err dt_scorer_open(dt_scorer *s, dt_task *t, const char *name, const char *path, int n_labels);
/** The same for batches that the caller makes with the scorer's own tokenizer: at most max_seq sequences of at most
 *  max_pos tokens, or of as many as the model has positions if that is less; s->opt has the limits. */
dt_err dt_scorer_open_apart(dt_scorer *s, dt_task *t, const char *name, const char *path, int n_labels, int32_t max_pos,
                            int32_t max_seq);
/** The same for the model in training without its adapters, where only adapters are trained: it has no parameters of
 *  its own. */
dt_err dt_scorer_open_base(dt_scorer *s, dt_task *t, const char *name);
/** Add its memory to the plan. Local. */
dt_err dt_scorer_plan(const dt_scorer *s, const dt_task *t, dt_memory *memory);
/** In begin: load it and open it on the lent memory. Collective, agreed. DT_ERR_MEMORY, DT_ERR_DATA. */
dt_err dt_scorer_begin(dt_scorer *s, dt_task *t);
void dt_scorer_close(dt_scorer *s); /* local; safe on {0} and after an error */
/** Compute its hidden states for the batch; a head of model.h follows. Collective; a local error ends the job. */
dt_err dt_scorer_forward(dt_scorer *s, dt_task *t, const dt_batch *b);

#endif
