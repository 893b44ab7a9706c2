/* ppo.h - what the files of proximal policy optimisation share. Private to src/task.
 *
 * A rollout of num_mini_batches * train_batch_size completions is scored once and then trained on for num_ppo_epochs
 * epochs, a minibatch of train_batch_size completions in each step. All ranks hold all of it. */
#ifndef DTRAIN_TASK_PPO_H
#define DTRAIN_TASK_PPO_H

#include "critic.h"
#include "dtrain/judge.h"
#include "dtrain/reward.h"
#include "multiplier.h"
#include "ppo_control.h"
#include "ppo_loss.h"
#include "reference.h"

/* Numbers of each token of a rollout. A critic's values, and what they should be, follow each other. */
enum { PPO_OLD, PPO_REFERENCE, PPO_ADVANTAGE, PPO_VALUE, PPO_RETURN, PPO_COST_VALUE, PPO_COST_RETURN, PPO_N_ARRAYS };

/* Numbers of a rollout that are shown. */
typedef enum ppo_number {
    PPO_KL,
    PPO_ENTROPY,
    PPO_NON_SCORE,
    PPO_RLHF,
    PPO_SCORES,
    PPO_EOS,
    PPO_KL_COEF,
    PPO_N_WITHOUT_COSTS, /* those that follow are PPO-Lagrangian's */
    PPO_COSTS = PPO_N_WITHOUT_COSTS,
    PPO_EPISODE_COST,
    PPO_LAMBDA,
    PPO_N_NUMBERS
} ppo_number;

enum { PPO_MAX_CRITICS = 2 }; /* of rewards, of costs */

typedef struct ppo {
    dt_rollout *rollout;
    dt_reference reference;
    dt_rewards *rewards; /* NULL: a file of rollouts gives them */
    bool with_costs;
    double kl_coef, score_clip, cliprange_value; /* their keys; HUGE_VAL: null */
    dt_judge cost;
    dt_critic critic[PPO_MAX_CRITICS];

    dt_kl_controller kl;
    dt_running running;
    dt_multiplier lambda;
    dt_window costs;
    double number[PPO_N_NUMBERS]; /* of the rollout */
    double mean[DT_MAX_REWARDS];  /* of each function, where it applies */

    /* one block, for n_rows completions */
    void *block;
    size_t nbytes;
    int64_t *order;  /* [n_rows] of the epoch */
    double *reward;  /* [n_rows, n_funcs] */
    double *score;   /* [n_rows] */
    double *cost_of; /* [n_rows], with costs */
    float **tokens;  /* [n_rows] numbers that are whitened, */
    int32_t *len;    /* [n_rows] and how many */
    int n_funcs;     /* at least 1 */

    /* of the step at work */
    int64_t epoch, first; /* minibatch: order[first ..] */
    dt_micro step;        /* but for the batch */
    double inv_states;    /* 1 / its states with a value */
    const int64_t *row;   /* of the micro-batch */
    double epoch_kl[2];   /* of the epoch so far: sum of the terms of approxkl, and tokens */

    struct {
        int loss, n_tok, policy, approxkl, clipped, entropy, ratio, ratio_squares, n_states, tokens, samples, episode;
        int value[PPO_MAX_CRITICS], value_clipped[PPO_MAX_CRITICS], number[PPO_N_NUMBERS], mean[DT_MAX_REWARDS];
    } sums;
} ppo;

static inline ppo *ppo_of(const dt_task *t) { return t->self; }

static inline int64_t ppo_n_rows(const dt_task *t)
{
    return t->cfg->ppo_num_mini_batches * t->batching.train_batch_size;
}
/** Reward functions; 0: a file of rollouts gives rewards. */
static inline int ppo_n_functions(const ppo *p) { return p->rewards ? dt_rewards_n(p->rewards) : 0; }
/** Optimizer steps that a rollout serves. */
static inline int64_t ppo_n_steps(const dt_config *cfg) { return cfg->ppo_num_ppo_epochs * cfg->ppo_num_mini_batches; }

/** A completion of a batch: its row, and the token of the batch that predicts its first. */
typedef struct ppo_completion {
    int64_t row;
    int32_t first, n, n_states;
} ppo_completion;
ppo_completion ppo_completion_of(const dt_task *t, const dt_batch *b, int32_t sequence);

/* ppo_rollout.c */
/** Generate or read a rollout, score it, find its advantages. Collective, agreed. */
dt_err ppo_roll_out(dt_task *t, int64_t number);

/* ppo_metrics.c */
void ppo_declare(dt_task *t);
void ppo_collect(dt_task *t, const dt_micro *m, const dt_predictions *predicted);
void ppo_collect_critic(dt_task *t, const dt_batch *b, int critic);
/** In after_step: the numbers of the rollout. */
void ppo_collect_numbers(dt_task *t);

#endif
