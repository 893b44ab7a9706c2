/* reward.h - reward functions: built-in ones, reward models, a user's program. docs/rewards.md. */
#ifndef DTRAIN_REWARD_H
#define DTRAIN_REWARD_H

#include "dtrain/rollout.h"

enum { DT_MAX_REWARDS = 16 };

/** What a function sees of a completion. Texts are "" without a tokenizer. */
typedef struct dt_reward_sample {
    const char *prompt, *completion;            /* without special tokens */
    const int32_t *prompt_ids, *completion_ids; /* the one that ends it included */
    int32_t n_prompt, n_completion;
    const char *record; /* JSON object of the record's other fields */
} dt_reward_sample;

/** A list of functions with weights; each rank has its own programs, models are shared. */
typedef struct dt_rewards dt_rewards;

/** In open, behind dt_rollout_open: parse and check `funcs` (grpo.reward_funcs) and `weights` (dt_reward_weights),
 *  describe models. model: the directory of one that comes before these functions (ppo.reward_path); "": none. section:
 *  of the keys reward_path, reward_funcs and reward_weights, for messages; borrowed. What is wrong joins t->mistakes.
 *  Local. NULL after no memory. */
dt_rewards *dt_rewards_open(dt_task *t, const char *section, const char *model, const char *funcs, const char *weights);
dt_err dt_rewards_plan(const dt_rewards *w, const dt_task *t, dt_memory *memory); /* local; models */
/** Start programs, load models. Collective, agreed. */
dt_err dt_rewards_begin(dt_rewards *w, dt_task *t);
/** Local; ends programs, which may take 2 s; safe on NULL. */
void dt_rewards_close(dt_rewards *w, dt_task *t);

int dt_rewards_n(const dt_rewards *w);
/** In metrics: "accuracy", a program's or model's base name, "rm" for runs/rm/hf; no two are alike. */
const char *dt_rewards_name(const dt_rewards *w, int k);
const char *const *dt_rewards_names(const dt_rewards *w);

/** Rewards of the rows from `first` on by all functions, on all ranks: out [n_rows, n], of which those rows count; NaN:
 *  does not apply. Each rank asks about a share of them; models see these rows alone, in the batches of order
 *  (dt_rollout_micro): [n_rows], whose places from `first` on hold them; NULL: as they follow each other. Collective.
 *  DT_ERR_DATA on all ranks, with its last lines: a program has died, was silent longer than comm.timeout, or has
 *  answered something else. DT_ERR_STOP: as dt_rollout_fill, heard within half a second while programs work. Agreed,
 *  but for what fails in a model's pass, which ends the job. */
dt_err dt_rewards_score(dt_rewards *w, dt_task *t, dt_rollout *r, const int64_t *order, int64_t first, double *out);
/** [n] of the functions. */
const double *dt_rewards_weights(const dt_rewards *w);

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/** reward_weights of a section for n rewards, numbers from -1e6 to 1e6; an empty text: 1 each. of: what they weigh, for
 *  messages: "reward functions". weight [n]. DT_ERR_USAGE, which names the key. Local. */
dt_err dt_reward_weights(const dt_config *cfg, const char *section, const char *text, int n, const char *of,
                         double *weight);
/** The sum of one completion's n rewards by weight (NULL: 1 each), those that do not apply (NaN) left out; NaN where
 *  none applies. */
double dt_reward_total(int n, const double *weight, const double *reward);

#endif
