/* scoring_model.h - a reward model among the reward functions. Private to src/reward. */
#ifndef DTRAIN_REWARD_MODEL_H
#define DTRAIN_REWARD_MODEL_H

#include "dtrain/step/judge.h"
#include "dtrain/reward/reward.h"
#include "dtrain/tokenizer/tokenizer.h"

/** Initialise with {0}. A model with the policy's tokenizer scores the ids of a rollout directly, in its batches. For
 *  another model, prompt and completion are converted to text without special tokens and encoded with its own
 *  tokenizer; a finished completion is followed by the end of text. A text longer than the model's limit, or than twice
 *  the rows of a rollout, keeps only its last tokens. */
typedef struct dt_reward_model {
    char *path;
    char name[64];
    dt_judge judge;
    /* of another tokenizer; NULL: it has the policy's */
    dt_tokenizer *tokenizer;
    dt_encoder *encoder;
    dt_batch batch;
    dt_ids ids;
    int64_t n_cut; /* texts of which only the end was seen */
} dt_reward_model;

/** In open. Local. Errors of dt_judge_open. */
dt_err dt_reward_model_open(dt_reward_model *m, dt_task *t, const char *path);
dt_err dt_reward_model_plan(const dt_reward_model *m, const dt_task *t, dt_memory *memory);
dt_err dt_reward_model_begin(dt_reward_model *m, dt_task *t); /* collective, agreed */
void dt_reward_model_close(dt_reward_model *m, dt_task *t);   /* local; safe on {0} and after an error */

/** Rewards of those rows from `first` on that this rank has seen, in the batches of order (dt_rewards_score), into
 *  reward[row * stride]; the others stay as they are. Collective; a local error ends the job. */
dt_err dt_reward_model_score(dt_reward_model *m, dt_task *t, dt_rollout *r, const int64_t *order, int64_t first,
                             double *reward, int stride);

#endif
