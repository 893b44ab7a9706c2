/* grpo.h - shared declarations of task grpo. Private to src/task.
 *
 *     grpo.c             the task's functions: open to close, steps
 *     grpo_options.c     the settings of [grpo] and their validation
 *     grpo_rewards.c     reward functions
 *     grpo_items.c       support for a catalogue
 *     grpo_generation.c  a generation: completions, advantages, log-probabilities for the loss
 *     grpo_metrics.c     metrics
 *     grpo_evaluate.c    a validation
 *     grpo_loss.h        the loss of a completion; advantages.h, quantile.h */
#ifndef DTRAIN_TASK_GRPO_H
#define DTRAIN_TASK_GRPO_H

#include "../advantages.h"
#include "dtrain/reward/environment.h"
#include "dtrain/reward/reward.h"
#include "dtrain/task/task.h"
#include "grpo_loss.h"
#include "dtrain/recommend/ranking.h"
#include "../reference.h"
#include "../reward_watch.h"

enum { GRPO_MAX_FUNCS = DT_MAX_REWARDS + 2 }; /* including the environment and the penalty for long completions */
/* Log-probabilities kept for each token of a generation: by the policy before its first update, by the reference. */
typedef enum grpo_array { GRPO_OLD, GRPO_REF, GRPO_N_ARRAYS } grpo_array;

/** Results of dt_sums_declare. */
typedef struct grpo_sums {
    int loss, policy_loss, entropy_coef;
    int n_tokens, kl, entropy; /* over tokens that count in the loss */
    int n_ratios, n_low, n_high, low_min, high_max, n_clipped, phi;
    int func_mean[GRPO_MAX_FUNCS], func_std[GRPO_MAX_FUNCS], reward, reward_std, zero_std, num_tokens, rounds;
    int categorical_diversity, token_diversity; /* of a catalogue's items */
    int valid_loss, valid_rewarded, valid_rows, valid_tokens, valid_cut;
    int valid_func[GRPO_MAX_FUNCS], valid_n_func[GRPO_MAX_FUNCS];
} grpo_sums;

/** Rows and normalisation of a step. */
typedef struct grpo_step {
    int64_t first; /* index in the order of the generation */
    dt_grpo_counts counts;
    dt_micro micro;       /* all but the batch */
    float entropy_least;  /* of top_entropy_quantile */
    const int64_t *row;   /* [n_seq] rows of the current batch */
    const float *entropy; /* of the current batch: [n_tok], NULL: all tokens take part */
} grpo_step;

/** A sampled completion, sorted by grpo_items.c. */
typedef struct grpo_drawn {
    int32_t item;
    /* place: index; copy: number of equal completions before it; first: index of the first equal completion */
    int place, copy, n_copies, first;
} grpo_drawn;

typedef struct grpo {
    dt_grpo_loss loss_of;
    dt_advantage_rule rule;
    double weight[GRPO_MAX_FUNCS];
    const char *name[GRPO_MAX_FUNCS];
    dt_turns *turns; /* NULL: no environment */
    /* functions whose rewards come from dt_rewards or grpo.rollouts; these and the environment. overlong is one more */
    int n_given, n_watched;
    char given_name[DT_MAX_REWARDS][16];
    dt_reward_watch watch[GRPO_MAX_FUNCS];
    int array[GRPO_N_ARRAYS];  /* of the rollout; -1: not kept */
    dt_generation_items items; /* with a catalogue: the only valid completions */
    dt_rollout *rollout;
    dt_rollout *valid;   /* NULL: no validation, or `search` does it */
    dt_ranking *search;  /* NULL: none, or no catalogue */
    dt_rewards *rewards; /* NULL: grpo.rollouts contains the rewards, or only an environment rewards */
    dt_reference reference;
    double beta;         /* weight of the divergence, in the loss or in the reward; 0: no reference */
    bool kl_in_reward;   /* beta > 0, and the divergence is part of the reward, not of the loss */
    bool scored;         /* the arrays of the current generation are complete */
    int64_t most_tokens; /* of a completion */
    grpo_sums sums;

    /* state of the current generation, replicated; stored in checkpoints: */
    struct {
        int64_t n_generations; /* generations so far */
        int64_t n_used;        /* steps for which the last one was used */
        int64_t num_tokens;    /* prompt and completion tokens of all generations */
        int64_t n_rounds;      /* rounds of dynamic sampling for the last one */
    } place;
    double *reward; /* [n_rows, n_funcs] */
    /* derived from the state: */
    double *given;     /* [n_rows, n_given] */
    double *total;     /* [n_rows] */
    double *advantage; /* [n_rows] */
    /* grpo.kl_in_reward: [n_rows] log policy - log reference of the completion when it was generated; NULL: none */
    double *kl;
    float *token_advantage; /* [n_rows, most_tokens] of estimators that are of_tokens; NULL: none */
    int32_t *n_tok;         /* [n_rows] of completions, likewise */
    double *valid_reward;   /* [n_rows, n_funcs] of a validation */
    bool *flat;             /* [n_rows / num_generations] */
    bool *drop;             /* [n_rows] */
    int64_t *order;         /* [n_rows] */
    double share_flat;      /* share of rows without a learning signal */
    /* with a catalogue: mean over groups of distinct completions / completions; distinct tokens / tokens */
    double categorical_diversity, token_diversity;
    int32_t *tokens;   /* [n_rows, depth] scratch */
    int32_t *item;     /* [n_drawn] of a group */
    grpo_drawn *drawn; /* [n_drawn], with rec.distinct_sampling */
    int n_drawn;

    float *entropy;  /* [accumulation, max_tok] of this rank's batches in the step, for top_entropy_quantile */
    float *selected; /* the same, only tokens that take part */
    grpo_step step;
} grpo;

/* ---- [grpo] ------------------------------------------------------------------------------------------------------ */

int64_t grpo_generation_size(const dt_task *t); /* completions of a generation */
int64_t grpo_n_rows(const dt_task *t);          /* rows held at a time: one generation, or all that a step uses */
int64_t grpo_n_steps(const dt_task *t);         /* optimizer steps that use them, over all iterations */
bool grpo_makes_beams(const dt_config *cfg);    /* completions come from beam search, not from sampling */
/** Read the loss and the advantage rule, without the reward functions. Local. */
void grpo_read_options(grpo *g, const dt_config *cfg);
/** Call after grpo_read_options: reads reward_clip_range, adds errors to t->mistakes and warns of unusual settings.
 *  Local. */
void grpo_check(grpo *g, const dt_task *t);

/* ---- items of a catalogue ---------------------------------------------------------------------------------------- */

/** In open, after the rollout. DT_ERR_USAGE unless the catalogue has at least as many items as a prompt has distinct
 *  completions, and the prompts have targets. Local. */
dt_err grpo_check_items(const grpo *g, const dt_task *t);
/** With rec.distinct_sampling: sample 50 % more completions, from which grpo_items.c chooses. Local. */
void grpo_draw_more(grpo *g, const dt_config *cfg, dt_rollout_options *opt);
/** With rec.add_ground_truth: replace the last row of each group, starting at row `first`, by the prompt's target if
 *  that is an item. Collective, agreed. DT_ERR_DATA: an answer cannot be read. DT_ERR_MEMORY. */
dt_err grpo_add_targets(grpo *g, dt_task *t, int64_t first);
/** Compute the diversity of the current generation's completions; no operation without a catalogue. Local, the same on
 *  all ranks. */
void grpo_find_diversity(grpo *g);

/* ---- rewards ----------------------------------------------------------------------------------------------------- */

/** In open, after dt_rollout_open: open the functions and read their names and weights. Errors are added to
 *  t->mistakes. Local. */
void grpo_open_rewards(grpo *g, dt_task *t);
/** Store the rewards of rows starting at `first` in reward [n_rows, n_funcs], from functions or grpo.rollouts, on all
 *  ranks. Collective. order, errors and their agreement: as in dt_rewards_score. */
dt_err grpo_reward_rows(grpo *g, dt_task *t, dt_rollout *r, const int64_t *order, int64_t first, double *reward);

/* ---- a generation ------------------------------------------------------------------------------------------------ */

/** Create the next generation: completions, rewards, advantages, old and reference log-probabilities, and its lines in
 *  rollouts.jsonl. Collective and agreed, except for an error in a model's forward pass, which ends the job. After an
 *  error there is no generation, and the next call creates the same one. Errors of dt_rollout_fill (including
 *  DT_ERR_STOP), dt_rewards_score, dt_rollout_score and dt_rollout_write. */
dt_err grpo_generate(grpo *g, dt_task *t);
/** Compute order, totals and advantages from the rewards and, after scoring, the divergence. Local, the same on all
 *  ranks. */
void grpo_find_advantages(grpo *g, const dt_task *t);
/** With kl_in_reward: the sum of log policy - log reference over the first n tokens of a row's completion, when it was
 *  generated. Local. */
double grpo_reward_kl(const grpo *g, int64_t row, int32_t n);
/** Does the row count in the loss (mask_truncated_completions)? Otherwise it counts only in advantages. Local. */
bool grpo_takes_part(const grpo *g, const dt_task *t, int64_t row);

/* ---- a validation ------------------------------------------------------------------------------------------------ */

/** In open, after the rollout of training; errors are added to t->mistakes. Local. */
void grpo_open_validation(grpo *g, dt_task *t, const dt_rollout_options *training);
/** In open, after the rewards. Local. */
void grpo_declare_validation(grpo *g, dt_task *t);
/** dt_task_ops.evaluate: one rollout of validation prompts. Collective. Errors of dt_rollout_fill and
 *  dt_rewards_score, or of dt_ranking_evaluate. */
dt_err grpo_evaluate(dt_task *t, int64_t micro);

/* ---- metrics ----------------------------------------------------------------------------------------------------- */

/** In open, after the rewards: declare the metrics. Local. */
void grpo_declare(grpo *g, dt_task *t);
/** Count a completion of the current batch. loss: divided by the normaliser; entropy: [y->n], nats. Local. */
void grpo_count(grpo *g, dt_task *t, const dt_grpo_completion *y, const dt_grpo_result *result, double loss,
                const float *entropy);
/** Count the metrics of the generation, once in each step that uses it; the same on all ranks. Local. */
void grpo_count_generation(grpo *g, dt_task *t);

#endif
