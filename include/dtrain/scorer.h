/* scorer.h - a frozen model that gives the tokens of a task's batches a number each: what a reference and a judge have
 * in common.
 *
 * It works in the activations of the model in training, so it has its pass before the training forward of a batch. At
 * stage 3 it is partitioned and offloaded like the parameters of that model, else whole on every rank; both give the
 * same numbers. */
#ifndef DTRAIN_SCORER_H
#define DTRAIN_SCORER_H

#include "dtrain/frozen_model.h"
#include "dtrain/step.h"

/** {0} to start from. */
typedef struct dt_scorer {
    const char *name; /* "the reference" */
    bool is_base;     /* it is the model in training without its adapters; frozen is {0} then */
    dt_frozen_model frozen;
    dt_model_options opt;
    dt_model *model;
} dt_scorer;

/** In open, when t->model_opt is as wide as the batches: describe the model at path, and make the model in training
 *  lend it what it needs. n_labels: of its scalar head; 0: it predicts tokens. Where there is no model yet and a run is
 *  planned, one like that in training is planned for. name is borrowed. What is wrong is returned, without the key: no
 *  such model, DT_ERR_DATA for another vocabulary. Local. */
dt_err dt_scorer_open(dt_scorer *s, dt_task *t, const char *name, const char *path, int n_labels);
/** The same for batches of the caller's own, whose tokens are those of the other model: at most max_seq sequences, each
 *  of at most max_pos tokens, or as many as the model has positions; s->opt says what there is room for. */
dt_err dt_scorer_open_apart(dt_scorer *s, dt_task *t, const char *name, const char *path, int n_labels, int32_t max_pos,
                            int32_t max_seq);
/** The same of the model in training without its adapters, which alone are trained: no memory but what it borrows. */
dt_err dt_scorer_open_base(dt_scorer *s, dt_task *t, const char *name);
/** Add what it holds. Local. */
dt_err dt_scorer_plan(const dt_scorer *s, const dt_task *t, dt_memory *memory);
/** In begin. Collective, agreed. */
dt_err dt_scorer_begin(dt_scorer *s, dt_task *t);
void dt_scorer_close(dt_scorer *s); /* local; safe on {0} and after an error */
/** Its hidden states of the batch, for the head. Collective. */
dt_err dt_scorer_forward(dt_scorer *s, dt_task *t, const dt_batch *b);

#endif
