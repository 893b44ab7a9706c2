/* step.h - what tasks are made of: micro-steps, models that are trained beside the run's own, datasets. The table of a
 * task, and what it works with: task.h. */
#ifndef DTRAIN_STEP_H
#define DTRAIN_STEP_H

#include "dtrain/task.h"

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
 *  change; NULL after a mistake, which joins t->mistakes. units are borrowed until the task is closed. */
dt_trained *dt_task_train_beside(dt_task *t, const char *name, dt_unit *units, int n_units);

/* ---- for tasks that read datasets -------------------------------------------------------------------------------- */

/** A key that is needed and not given joins the mistakes. expected: "a model to evaluate". */
void dt_task_need(dt_task *t, const char *section, const char *key, const char *value, const char *expected);
/** The same for a dataset. */
void dt_task_need_data(dt_task *t, const char *key, const char *value);
/** What a task reads of [data]. */
typedef struct dt_task_data {
    bool training, validation;
    bool pairs, truncate, no_ties; /* dt_loader_options */
    int64_t seq_len;               /* 0: data.seq_len */
} dt_task_data;
/** [data] train or validation into t->train or t->valid, where it is given; widens the model to its micro-batches. */
void dt_task_open_data(dt_task *t, const dt_task_data *what);
/** Bytes that these hold, or would hold for full rows where nothing could be read (--plan). */
size_t dt_task_data_nbytes(const dt_task *t);
void dt_task_close_data(dt_task *t);
/** Samples in the order of t->train, a batch each step. */
int64_t dt_task_data_step_after(const dt_task *t, int64_t samples);

#endif
