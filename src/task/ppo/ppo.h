/* ppo.h - shared declarations of task ppo. Private to src/task.
 *
 * A rollout of num_mini_batches * train_batch_size completions is scored once. It is then trained on for num_ppo_epochs
 * epochs, with a minibatch of train_batch_size completions per step. Every rank holds the full rollout. */
#ifndef DTRAIN_TASK_PPO_H
#define DTRAIN_TASK_PPO_H

#include "critic.h"
#include "dtrain/step/judge.h"
#include "dtrain/reward/reward.h"
#include "../dpo/multiplier.h"
#include "ppo_control.h"
#include "ppo_loss.h"
#include "../reference.h"
#include "../reward_watch.h"

/* Arrays of a rollout, with one value per token. A critic's values and their targets, the returns, are consecutive. */
enum { PPO_OLD, PPO_REFERENCE, PPO_ADVANTAGE, PPO_VALUE, PPO_RETURN, PPO_COST_VALUE, PPO_COST_RETURN, PPO_N_ARRAYS };

/* Metrics of a whole rollout. */
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
    dt_rewards *rewards; /* NULL: a file of rollouts has the rewards */
    bool with_costs;
    double kl_coef, score_clip, cliprange_value; /* values of keys; HUGE_VAL: null */
    dt_judge cost;
    dt_critic critic[PPO_MAX_CRITICS];

    dt_kl_controller kl;
    dt_running running;
    dt_multiplier lambda;
    dt_window costs;
    double number[PPO_N_NUMBERS]; /* metrics of the rollout */
    double mean[DT_MAX_REWARDS];  /* mean reward of each function over the completions that it applies to */

    /* for n_rows completions */
    int64_t *order;  /* [n_rows] permutation of rows in the current epoch */
    double *reward;  /* [n_rows, n_funcs]; NaN: the function does not apply */
    double *score;   /* [n_rows] weighted sums of rewards, with penalties, scaled and clipped */
    double *cost_of; /* [n_rows], with costs */
    float **tokens;  /* [n_rows] pointers to the values of each row that are whitened */
    int32_t *len;    /* [n_rows] number of these values */
    int n_funcs;     /* at least 1 */
    dt_reward_watch watch[DT_MAX_REWARDS];

    /* of the current step */
    int64_t epoch, first; /* its minibatch: order[first .. first + train_batch_size - 1] */
    dt_micro step;        /* all but the batch */
    double inv_states;    /* 1 / (number of its states that have a value) */
    const int64_t *row;   /* [n_seq] rows of the current micro-batch */
    double epoch_kl[2];   /* of the current epoch: sum of the terms of approxkl, and number of tokens */

    struct {
        int loss, n_tok, policy, approxkl, clipped, entropy, ratio, ratio_squares, n_states, episode;
        int value[PPO_MAX_CRITICS], value_clipped[PPO_MAX_CRITICS], number[PPO_N_NUMBERS], mean[DT_MAX_REWARDS];
    } sums;
} ppo;

static inline ppo *ppo_of(const dt_task *t) { return t->self; }

static inline int64_t ppo_n_rows(const dt_task *t)
{
    return t->cfg->ppo_num_mini_batches * t->batching.train_batch_size;
}
/** Number of reward functions; 0: a file of rollouts has the rewards. */
static inline int ppo_n_functions(const ppo *p) { return p->rewards ? dt_rewards_n(p->rewards) : 0; }
/** Optimizer steps per rollout. */
static inline int64_t ppo_n_steps(const dt_config *cfg) { return cfg->ppo_num_ppo_epochs * cfg->ppo_num_mini_batches; }

/** A completion of a batch. */
typedef struct ppo_completion {
    int64_t row;
    int32_t first, first_target; /* token of the batch that predicts the completion's first token; its target */
    int32_t n, n_states;         /* number of tokens; number of states that have a value (dt_ppo_n_states) */
} ppo_completion;
ppo_completion ppo_completion_of(const dt_task *t, const dt_batch *b, int32_t sequence);

/* ppo_rollout.c */
/** Generate or read a rollout, score it, compute advantages and returns. Collective, agreed, except for an error in a
 *  model's forward, which ends the job. Errors of dt_rollout_fill (including DT_ERR_STOP), dt_rewards_score,
 *  dt_rollout_score and dt_rollout_write. */
dt_err ppo_roll_out(dt_task *t, int64_t number);

/* ppo_metrics.c; all local */
/** In open, after the rewards: declare all metrics. */
void ppo_declare(dt_task *t);
/** Count a micro-step of the policy, or of a critic (critic->value belongs to b). */
void ppo_collect(dt_task *t, const dt_micro *m, const dt_predictions *predicted);
void ppo_collect_critic(dt_task *t, const dt_batch *b, int critic);
/** In after_step: count the metrics of the rollout. */
void ppo_collect_numbers(dt_task *t);

#endif
