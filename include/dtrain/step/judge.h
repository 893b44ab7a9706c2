/* judge.h - a frozen model with a scalar head that scores the batches of a task: a reward or a safety model. It ignores
 * the targets of a batch. When its forward may run, and how its parameters are stored: scorer.h. */
#ifndef DTRAIN_JUDGE_H
#define DTRAIN_JUDGE_H

#include "dtrain/step/scorer.h"

/** A judge. {0} to begin; scorer.own_pos may be set. */
typedef struct dt_judge {
    dt_scorer scorer;
    float *value; /* [max_tok] value of each token of the last batch */
    float *score; /* [max_seq] value of each sequence's last token; 0 for a sequence without tokens */
} dt_judge;

/** In open, after t->model_opt has its limits for the task's batches: add it to the task's parts. name: "the reward
 *  model", for messages; borrowed. Local. Errors of dt_scorer_open, without the key; loading it finds a missing scalar
 *  head (DT_ERR_DATA). */
dt_err dt_judge_open(dt_judge *j, dt_task *t, const char *name, const char *path);
/** Compute j->value and j->score of a batch, which may be empty. Collective; a local error ends the job.
 *  DT_ERR_NONFINITE: a score is not finite; NaN would mean that it does not apply. */
dt_err dt_judge_score(dt_judge *j, dt_task *t, const dt_batch *b);

#endif
