/* reward.h - reward functions: built-in ones, reward models, a user's program. interface.md, "Reward functions";
 * algorithms.md 5.2 and 5.3. */
#ifndef DTRAIN_REWARD_H
#define DTRAIN_REWARD_H

#include "dtrain/rollout.h"

enum { DT_MAX_REWARDS = 16 };

/** What a function sees of a completion. Texts are "" without a tokenizer. */
typedef struct dt_reward_sample {
    const char *prompt, *completion;
    const int32_t *prompt_ids, *completion_ids;
    int32_t n_prompt, n_completion;
    const char *record; /* JSON object of the record's other fields */
} dt_reward_sample;

/** A list of functions with weights; each rank has its own programs, models are shared. */
typedef struct dt_rewards dt_rewards;

/** In open: parse and check `funcs` (grpo.reward_funcs) and `weights` (one for each, or empty: 1), describe models.
 *  section: of the keys, for messages. What is wrong joins t->mistakes. Local. NULL after no memory. */
dt_rewards *dt_rewards_open(dt_task *t, const char *section, const char *funcs, const char *weights);
dt_err dt_rewards_plan(const dt_rewards *w, const dt_task *t, dt_memory *memory); /* local */
/** Start programs, load models. Collective, agreed. */
dt_err dt_rewards_begin(dt_rewards *w, dt_task *t);
void dt_rewards_close(dt_rewards *w, dt_task *t); /* local; ends programs; safe on NULL */

int dt_rewards_n(const dt_rewards *w);
const char *dt_rewards_name(const dt_rewards *w, int k); /* in metrics: "accuracy", a program's or model's base name */
const char *const *dt_rewards_names(const dt_rewards *w);

/** Rewards of all rows by all functions, on all ranks: out [n_rows, n]; NaN: does not apply. Each rank asks for its
 *  share. Collective. A program that dies, stalls past comm.timeout or answers something else is DT_ERR_DATA on all
 *  ranks, with its last lines. */
dt_err dt_rewards_score(dt_rewards *w, dt_task *t, dt_rollout *r, const int64_t *order, double *out);
/** The weighted sum of one row's rewards, functions that do not apply left out; NaN where none applies. */
double dt_rewards_total(const dt_rewards *w, const double *rewards);
double dt_rewards_weight(const dt_rewards *w, int k);

#endif
