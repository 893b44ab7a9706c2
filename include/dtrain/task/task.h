/* task.h - the list of tasks, and the metrics that language models share. What a task is: step.h. */
#ifndef DTRAIN_TASK_H
#define DTRAIN_TASK_H

#include "dtrain/step/step.h"

/** All tasks; the last entry is NULL. */
extern const dt_task_ops *const dt_tasks[];
/** The task with this value of run.task; NULL: there is none. */
const dt_task_ops *dt_task_find(const char *name);

/* ---- language models --------------------------------------------------------------------------------------------- */

/** Numbers (dt_sums_declare) of the sums that language models count, over target tokens but for n_tok and n_samples. */
typedef struct dt_lm_sums {
    int loss, weight;     /* sums of weight * -logp, in nats, and of weights, in units of DT_WEIGHT_UNIT */
    int target, hit;      /* target tokens; those of them that were the most probable token */
    int entropy;          /* of the predictions, nats in units of DT_ENTROPY_UNIT */
    int n_tok, n_samples; /* all tokens and samples: "tokens", "samples" */
} dt_lm_sums;
#define DT_WEIGHT_UNIT 0x1p-20
#define DT_ENTROPY_UNIT 0x1p-24
/** Declare them, and the metrics: "loss" (nats per unit of weight), "accuracy", "entropy"; of a validation
 *  "validation_loss", "perplexity", ... Local; mistakes as dt_sums_declare. */
void dt_lm_declare(dt_lm_sums *l, dt_sums *sums);
/** Add a micro-batch of this rank to them; p: [n_tok] of b. Local. */
void dt_lm_collect(const dt_lm_sums *l, dt_sums *sums, const dt_batch *b, const dt_predictions *p);

extern const dt_task_ops dt_task_pretrain, dt_task_sft; /* language_model.c: they differ in what the data says */
extern const dt_task_ops dt_task_eval;                  /* evaluation.c */
extern const dt_task_ops dt_task_rm;                    /* reward_model.c */
extern const dt_task_ops dt_task_dpo;                   /* dpo.c */
extern const dt_task_ops dt_task_ppo;                   /* ppo.c */
extern const dt_task_ops dt_task_grpo;                  /* grpo.c */

#endif
