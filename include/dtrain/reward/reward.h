/* reward.h - reward functions: built-in functions, reward models, a user's program. docs/rewards.md. */
#ifndef DTRAIN_REWARD_H
#define DTRAIN_REWARD_H

#include "dtrain/recommend/item_vectors.h"
#include "dtrain/rollout/rollout.h"

enum { DT_MAX_REWARDS = 16 };

/** Input of a reward function for a completion. All borrowed; texts are "" without a tokenizer. */
typedef struct dt_reward_sample {
    const char *prompt, *completion;            /* UTF-8, without special tokens */
    const int32_t *prompt_ids, *completion_ids; /* [n_prompt], [n_completion]; with the token that ended it, if any */
    int32_t n_prompt, n_completion;
    const char *record;           /* JSON object of the record's other fields */
    const dt_item_vectors *items; /* for rec_semantic; NULL: no function needs them */
} dt_reward_sample;

/** A list of functions with weights. Each rank starts its own programs; models are collective. */
typedef struct dt_rewards dt_rewards;

/** In open, after dt_rollout_open: add it to the task's parts, parse and check functions and weights, and describe
 *  models. When the run begins, programs start (DT_ERR_FAULT: one cannot be started). Local.
 *
 *  section  of the keys reward_path, reward_funcs and reward_weights, for messages; borrowed
 *  model    directory of a reward model, the first function (ppo.reward_path); "": none
 *  funcs    grpo.reward_funcs
 *  weights  as dt_reward_weights
 *  items    catalogue of the completions, for rec_semantic; borrowed; may be NULL
 *
 *  Errors are added to t->mistakes. Returns NULL if there is no memory. When the task is closed,
 *  its programs end, which may take 2 s. */
dt_rewards *dt_rewards_open(dt_task *t, const char *section, const char *model, const char *funcs, const char *weights,
                            const dt_catalogue *items);
/** Number of functions. Local. */
int dt_rewards_n(const dt_rewards *w);
/** Names in metrics: "accuracy", the base name of a program or model, "rm" for runs/rm/hf; unique. [n], borrowed.
 *  Local. */
const char *const *dt_rewards_names(const dt_rewards *w);

/** Compute the rewards of the rows first .. n_rows-1 of a rollout by all functions, on all ranks. Each rank queries its
 *  own programs for its part of these rows. Collective; agreed, except for an error in a model's forward, which ends
 *  the job.
 *
 *  order  a permutation [n_rows] for the models' micro-batches (dt_rollout_micro), with these rows at positions from
 *         first; NULL: the order of rows
 *  out    out  [n_rows, n]; rows below first are unchanged. NaN: the function does not apply
 *
 *  DT_ERR_DATA, with a program's last lines: it ended, gave no answer for comm.timeout seconds, or answered neither a
 *  number nor null. DT_ERR_STOP: as dt_rollout_fill, within half a second while programs work. */
dt_err dt_rewards_score(dt_rewards *w, dt_task *t, dt_rollout *r, const int64_t *order, int64_t first, double *out);
/** The functions' weights: [n], borrowed. Local. */
const double *dt_rewards_weights(const dt_rewards *w);

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/** Parse reward_weights of a section: n numbers from -1e6 to 1e6; an empty text means 1 for each. of: for messages,
 *  "reward functions". weight: out [n]. Local. DT_ERR_USAGE naming the key. */
dt_err dt_reward_weights(const dt_config *cfg, const char *section, const char *text, int n, const char *of,
                         double *weight);
/** Weighted sum of a completion's n rewards (weight NULL: 1 for each), without those that do not apply (NaN); NaN if
 *  none applies. Local. */
double dt_reward_total(int n, const double *weight, const double *reward);

#endif
