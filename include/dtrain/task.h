/* task.h - the tasks that there are, and what language models count. What a task is: step.h. */
#ifndef DTRAIN_TASK_H
#define DTRAIN_TASK_H

#include "dtrain/step.h"

/** All tasks, to a NULL. */
extern const dt_task_ops *const dt_tasks[];
/** The one of that name, NULL: none. */
const dt_task_ops *dt_task_find(const char *name);

/* ---- language models --------------------------------------------------------------------------------------------- */

/** What a language model counts: of target tokens, but for `tokens` and `samples`. */
typedef struct dt_lm_sums {
    int loss, weight;     /* weight * -logp; weights, in 2^-20 */
    int target, hit;      /* targets; those that were the most probable token */
    int entropy;          /* of the predictions, in 2^-24 */
    int n_tok, n_samples; /* "tokens", "samples" */
} dt_lm_sums;
#define DT_WEIGHT_UNIT 0x1p-20
#define DT_ENTROPY_UNIT 0x1p-24
/** Declare them, and what is shown: "loss" (per unit of weight), "accuracy", "entropy"; of a validation
 *  "validation_loss", "perplexity", ... */
void dt_lm_declare(dt_lm_sums *l, dt_sums *sums);
void dt_lm_collect(const dt_lm_sums *l, dt_sums *sums, const dt_batch *b, const dt_predictions *p);

extern const dt_task_ops dt_task_pretrain, dt_task_sft; /* language_model.c: they differ in what the data says */
extern const dt_task_ops dt_task_eval;                  /* evaluation.c */
extern const dt_task_ops dt_task_rm;                    /* reward_model.c */
extern const dt_task_ops dt_task_dpo;                   /* dpo.c */
extern const dt_task_ops dt_task_ppo;                   /* ppo.c */
extern const dt_task_ops dt_task_grpo;                  /* grpo.c */

#endif
