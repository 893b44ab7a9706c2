/* judge.h - a frozen model with a scalar head that scores the batches of a task: a reward or a safety model.
 *
 * When it works, and how it is kept: scorer.h. Targets of a batch do not matter to it. */
#ifndef DTRAIN_JUDGE_H
#define DTRAIN_JUDGE_H

#include "dtrain/scorer.h"

/** {0} to start from. */
typedef struct dt_judge {
    dt_scorer scorer;
    float *value; /* [max_tok] of the last batch: one for each token */
    float *score; /* [max_seq] of the last batch: that of each sequence's last token; 0 of a sequence without tokens */
    void *block;
    size_t nbytes;
} dt_judge;

/** In open, when t->model_opt is as wide as the batches. name, in messages: "the reward model". What is wrong is
 *  returned, without the key; what dt_judge_begin finds too is that the model has no scalar head. Local. */
dt_err dt_judge_open(dt_judge *j, dt_task *t, const char *name, const char *path);
/** The same for batches of the caller's own (dt_scorer_open_apart). */
dt_err dt_judge_open_apart(dt_judge *j, dt_task *t, const char *name, const char *path, int32_t max_pos,
                           int32_t max_seq);
/** Add what it holds; nothing for {0}. Local. */
dt_err dt_judge_plan(const dt_judge *j, const dt_task *t, dt_memory *memory);
/** In begin. Collective, agreed. */
dt_err dt_judge_begin(dt_judge *j, dt_task *t);
void dt_judge_close(dt_judge *j, dt_ledger *ledger); /* local; safe on {0} and after an error */

/** j->value and j->score of a batch, which may be empty. Collective. */
dt_err dt_judge_score(dt_judge *j, dt_task *t, const dt_batch *b);

#endif
