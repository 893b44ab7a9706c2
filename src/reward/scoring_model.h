/* scoring_model.h - a reward model used as a reward function. Private to src/reward. */
#ifndef DTRAIN_REWARD_MODEL_H
#define DTRAIN_REWARD_MODEL_H

#include "dtrain/step/judge.h"
#include "dtrain/reward/reward.h"
#include "dtrain/tokenizer/tokenizer.h"

/** Initialise to {0}. A model with the policy's tokenizer scores the ids of a rollout directly, in its batches. For
 *  another model, prompt and completion are converted to text without special tokens and encoded with its own
 *  tokenizer. An end of text is appended to a finished completion. A text keeps only its last tokens if it exceeds the
 *  model's limit or twice the row length of a rollout. */
typedef struct dt_reward_model {
    char *path;
    char name[64];
    dt_judge judge;
    /* for another tokenizer; NULL: the policy's */
    dt_tokenizer *tokenizer;
    dt_encoder *encoder;
    dt_batch batch;
    dt_ids ids;
    int64_t n_cut; /* number of truncated texts */
} dt_reward_model;

/** In open: add it to the task's parts. Local. Errors of dt_judge_open. */
dt_err dt_reward_model_open(dt_reward_model *m, dt_task *t, const char *path);

/** Store the rewards of rows starting at `first` that this rank has scored, in the batches of order (dt_rewards_score),
 *  in reward[row * stride]. Other entries are unchanged. Collective; a local error ends the job. */
dt_err dt_reward_model_score(dt_reward_model *m, dt_task *t, dt_rollout *r, const int64_t *order, int64_t first,
                             double *reward, int stride);

#endif
