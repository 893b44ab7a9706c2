/* eval.h - evaluates a language model on benchmarks: the metrics of [eval] tasks. docs/evaluation.md.
 *
 * All texts are encoded when the run is opened, on every rank. Micro-batches are the same for any number of ranks, and
 * micro-batch j belongs to rank j mod N of the axis data. After the last one every rank has all log-probabilities, and
 * all compute the same metrics. */
#ifndef DTRAIN_EVAL_H
#define DTRAIN_EVAL_H

#include "dtrain/step/step.h"

/** The benchmarks of a run. */
typedef struct dt_evals dt_evals;

/** After a task is opened: add the benchmarks to its parts, read their files, encode their texts, and declare the
 *  metrics "eval/BENCHMARK/METRIC" as the last of DT_SHOW_VALIDATION. Increases limits in t->model_opt. Returns NULL
 *  without eval.tasks, or after an error, which is added to t->mistakes. Freed when the task is closed. Local, with the
 *  same result on all ranks. */
dt_evals *dt_evals_open(dt_task *t);
/** Number of micro-steps of an evaluation, the same on all ranks; 0 for NULL. Local. */
int64_t dt_evals_n_micro(const dt_evals *e);
/** Index of the first of its metrics in DT_SHOW_VALIDATION. Local. */
int dt_evals_first_shown(const dt_evals *e);
/** Micro-step `micro` of an evaluation. The last one adds the metrics to t->sums. Collective; a local error ends the
 *  job. DT_ERR_NONFINITE: a log-probability; DT_ERR_WRITE: eval.log_samples. */
dt_err dt_evals_micro(dt_evals *e, dt_task *t, int64_t micro);
/** Log the results of the last evaluation as a table; nothing without one. Local. */
void dt_evals_say(const dt_evals *e);

#endif
