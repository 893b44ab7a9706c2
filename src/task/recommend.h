/* recommend.h - recommendation quality of a language model: the validation of tasks eval (evaluation.c) and grpo
 * (grpo_evaluate.c) with a catalogue. Private to src/task. */
#ifndef DTRAIN_TASK_RECOMMEND_H
#define DTRAIN_TASK_RECOMMEND_H

#include "items.h"

typedef struct recommend recommend;

/* Like the functions of the same names of a task (step.h). plan, begin and close do nothing for NULL. */
/** Open the prompts of data.validation and declare their metrics. items: the catalogue's; borrowed. writes: every
 *  validation writes OUTPUT_DIR/predictions.json. NULL: out of memory. */
recommend *recommend_open(dt_task *t, const task_items *items, bool writes);
dt_err recommend_plan(const recommend *m, const dt_task *t, int stage, dt_memory *memory);
dt_err recommend_begin(recommend *m, dt_task *t);
dt_err recommend_evaluate(recommend *m, dt_task *t, int64_t micro);
void recommend_close(recommend *m, dt_task *t);

/** Rank of the target among n items, from 0; -1: not found, or the target is not an item (-1). Missing predictions are
 *  -1, too. */
int recommend_rank(int32_t target, const int32_t *item, int n);
/** 1 / log2(rank + 2) if 0 <= rank < k, otherwise 0. */
double recommend_gain(int rank, int64_t k);

#endif
