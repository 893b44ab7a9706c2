/* reward.h - reward functions: built-in ones, reward models, a user's program. docs/rewards.md. */
#ifndef DTRAIN_REWARD_H
#define DTRAIN_REWARD_H

#include "dtrain/recommend/item_vectors.h"
#include "dtrain/rollout/rollout.h"

enum { DT_MAX_REWARDS = 16 };

/** What a reward function is given of a completion. All borrowed; texts are "" without a tokenizer. */
typedef struct dt_reward_sample {
    const char *prompt, *completion;            /* UTF-8, without special tokens */
    const int32_t *prompt_ids, *completion_ids; /* [n_prompt], [n_completion]: with the token that ended it, if any */
    int32_t n_prompt, n_completion;
    const char *record;           /* JSON object of the record's other fields */
    const dt_item_vectors *items; /* NULL: no function asks for them (rec_semantic) */
} dt_reward_sample;

/** A list of functions with weights; each rank has its own programs, models are shared. */
typedef struct dt_rewards dt_rewards;

/** In open, after dt_rollout_open: parse and check `funcs` (grpo.reward_funcs) and `weights` (dt_reward_weights), and
 *  describe models. model: directory of a reward model that counts as the first function (ppo.reward_path); "": none.
 *  section: of the keys reward_path, reward_funcs and reward_weights, for messages; borrowed. items: the catalogue that
 *  completions are of, for rec_semantic, or NULL; borrowed. Errors are added to t->mistakes. Local. NULL: no memory.
 *  Freed by dt_rewards_close. */
dt_rewards *dt_rewards_open(dt_task *t, const char *section, const char *model, const char *funcs, const char *weights,
                            const dt_catalogue *items);
/** Add the memory of its models, and of the embeddings of items, to the plan. Local. */
dt_err dt_rewards_plan(const dt_rewards *w, const dt_task *t, dt_memory *memory);
/** Start programs, load models. Collective, agreed. DT_ERR_FAULT: a program cannot be started. DT_ERR_MEMORY and
 *  DT_ERR_DATA: models. */
dt_err dt_rewards_begin(dt_rewards *w, dt_task *t);
/** End the programs, which may take 2 s, and free all. Local; safe on NULL. */
void dt_rewards_close(dt_rewards *w, dt_task *t);

int dt_rewards_n(const dt_rewards *w); /* functions */
/** The name of function k in metrics: "accuracy", a program's or model's base name, "rm" for runs/rm/hf; unique. */
const char *dt_rewards_name(const dt_rewards *w, int k);
const char *const *dt_rewards_names(const dt_rewards *w);

/** Rewards of the rows first .. n_rows-1 of a rollout by all functions, on all ranks, into out [n_rows, n]; rows below
 *  first stay as they are. NaN: the function does not apply. Each rank asks for its part of these rows. order: a
 *  permutation [n_rows] in whose micro-batches (dt_rollout_micro) models score, with these rows at the positions from
 *  first on; NULL: the order of rows.
 *  Collective; agreed, but for an error in a model's forward, which ends the job. DT_ERR_DATA, with a program's last
 *  lines: it died, gave no answer for comm.timeout seconds, or answered neither a number nor null. DT_ERR_STOP: as
 *  dt_rollout_fill, within half a second while programs work. */
dt_err dt_rewards_score(dt_rewards *w, dt_task *t, dt_rollout *r, const int64_t *order, int64_t first, double *out);
/** The functions' weights: [n], borrowed. */
const double *dt_rewards_weights(const dt_rewards *w);

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/** Parse reward_weights of a section: n numbers from -1e6 to 1e6; an empty text: 1 each. of: what they weigh, for
 *  messages: "reward functions". weight: out [n]. Local. DT_ERR_USAGE, which names the key. */
dt_err dt_reward_weights(const dt_config *cfg, const char *section, const char *text, int n, const char *of,
                         double *weight);
/** The sum of one completion's n rewards by weight (NULL: 1 each), those that do not apply (NaN) left out; NaN where
 *  none applies. */
double dt_reward_total(int n, const double *weight, const double *reward);

#endif
