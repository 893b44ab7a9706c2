/* ranking.h - ranking metrics of a recommending language model: the validation of the tasks eval (evaluation.c) and
 * grpo (grpo_evaluate.c) with a catalogue. */
#ifndef DTRAIN_TASK_RECOMMEND_H
#define DTRAIN_TASK_RECOMMEND_H

#include "dtrain/recommend/generation_items.h"

typedef struct dt_ranking dt_ranking;

/** In open: add it to the task's parts, open the prompts of data.validation, and declare the metrics. items: borrowed.
 *  writes: every validation writes OUTPUT_DIR/predictions.json. NULL: no memory. */
dt_ranking *dt_ranking_open(dt_task *t, const dt_generation_items *items, bool writes);
/** As dt_task_ops.evaluate. Collective. */
dt_err dt_ranking_evaluate(dt_ranking *m, dt_task *t, int64_t micro);

/** Rank of the target among n items, from 0; -1: not among them, or the target is -1. Missing predictions are -1 as
 *  well. Local. */
int dt_ranking_rank(int32_t target, const int32_t *item, int n);
/** 1 / log2(rank + 2) for 0 <= rank < k, else 0. Local. */
double dt_ranking_gain(int rank, int64_t k);

#endif
