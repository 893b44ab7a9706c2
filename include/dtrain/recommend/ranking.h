/* ranking.h - how well a language model recommends: the validation of tasks eval (evaluation.c) and grpo
 * (grpo_evaluate.c) where there is a catalogue. */
#ifndef DTRAIN_TASK_RECOMMEND_H
#define DTRAIN_TASK_RECOMMEND_H

#include "dtrain/recommend/generation_items.h"

typedef struct dt_ranking dt_ranking;

/* The functions of a task (step.h) with the same names; plan, begin and close do nothing for NULL. */
/** The prompts of data.validation and their metrics. items: of the catalogue; borrowed. writes: every validation leaves
 *  OUTPUT_DIR/predictions.json. NULL: no memory. */
dt_ranking *dt_ranking_open(dt_task *t, const dt_generation_items *items, bool writes);
dt_err dt_ranking_plan(const dt_ranking *m, const dt_task *t, int stage, dt_memory *memory);
dt_err dt_ranking_begin(dt_ranking *m, dt_task *t);
dt_err dt_ranking_evaluate(dt_ranking *m, dt_task *t, int64_t micro);
void dt_ranking_close(dt_ranking *m, dt_task *t);

/** Rank of the target among n items, from 0; -1: it is not there, or is none (-1). Absent predictions are -1, too. */
int dt_ranking_rank(int32_t target, const int32_t *item, int n);
/** 1 / log2(rank + 2) for a rank from 0 below k, else 0. */
double dt_ranking_gain(int rank, int64_t k);

#endif
