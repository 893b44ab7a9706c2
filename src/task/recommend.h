/* recommend.h - how well a language model recommends: the validation of tasks eval (evaluation.c) and grpo
 * (grpo_evaluate.c) where there is a catalogue. Private to src/task. */
#ifndef DTRAIN_TASK_RECOMMEND_H
#define DTRAIN_TASK_RECOMMEND_H

#include "items.h"

typedef struct recommend recommend;

/* The functions of a task (step.h) with the same names; plan, begin and close do nothing for NULL. */
/** The prompts of data.validation and their metrics. items: of the catalogue; borrowed. writes: every validation leaves
 *  OUTPUT_DIR/predictions.json. NULL: no memory. */
recommend *recommend_open(dt_task *t, const task_items *items, bool writes);
dt_err recommend_plan(const recommend *m, const dt_task *t, int stage, dt_memory *memory);
dt_err recommend_begin(recommend *m, dt_task *t);
dt_err recommend_evaluate(recommend *m, dt_task *t, int64_t micro);
void recommend_close(recommend *m, dt_task *t);

/** Rank of the target among n items, from 0; -1: it is not there, or is none (-1). Absent predictions are -1, too. */
int recommend_rank(int32_t target, const int32_t *item, int n);
/** 1 / log2(rank + 2) for a rank from 0 below k, else 0. */
double recommend_gain(int rank, int64_t k);

#endif
