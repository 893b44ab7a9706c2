/* judge.h - a frozen model with a scalar head that scores the batches of a task: a reward or a safety model.
 *
 * When its forward may run, and where its parameters are: scorer.h. It ignores the targets of a batch. */
#ifndef DTRAIN_JUDGE_H
#define DTRAIN_JUDGE_H

#include "dtrain/step/scorer.h"

/** {0} to start from. */
typedef struct dt_judge {
    dt_scorer scorer;
    float *value; /* [max_tok] of the last batch: one for each token */
    float *score; /* [max_seq] of the last batch: that of each sequence's last token; 0 of a sequence without tokens */
    void *block;
    size_t nbytes;
} dt_judge;

/** In open, after t->model_opt has room for the task's batches. name: "the reward model", for messages; borrowed.
 *  Local. Errors of dt_scorer_open, which do not name the key; that the model has no scalar head is found by
 *  dt_judge_begin (DT_ERR_DATA). */
dt_err dt_judge_open(dt_judge *j, dt_task *t, const char *name, const char *path);
/** The same for batches that the caller makes (dt_scorer_open_apart). */
dt_err dt_judge_open_apart(dt_judge *j, dt_task *t, const char *name, const char *path, int32_t max_pos,
                           int32_t max_seq);
/** Add its memory to the plan; nothing for {0}. Local. */
dt_err dt_judge_plan(const dt_judge *j, const dt_task *t, dt_memory *memory);
/** In begin: load it. Collective, agreed. DT_ERR_MEMORY, DT_ERR_DATA. */
dt_err dt_judge_begin(dt_judge *j, dt_task *t);
void dt_judge_close(dt_judge *j, dt_ledger *ledger); /* local; safe on {0} and after an error */

/** Fill in j->value and j->score for a batch, which may be empty. Collective; a local error ends the job:
 *  DT_ERR_NONFINITE where a score is not finite, which must not pass for one that does not apply. */
dt_err dt_judge_score(dt_judge *j, dt_task *t, const dt_batch *b);

#endif
