/* recommend.h - how well a language model recommends: part of task eval (evaluation.c). Private to src/task. */
#ifndef DTRAIN_TASK_RECOMMEND_H
#define DTRAIN_TASK_RECOMMEND_H

#include "dtrain/step.h"

/* The functions of a task (step.h) where rec.catalogue is given. */
void recommend_open(dt_task *t);
dt_err recommend_plan(const dt_task *t, int stage, dt_memory *memory);
dt_err recommend_begin(dt_task *t);
dt_err recommend_evaluate(dt_task *t, int64_t micro);
void recommend_close(dt_task *t);

/** Rank of the target among n items, from 0; -1: it is not there, or is none (-1). Absent predictions are -1, too. */
int recommend_rank(int32_t target, const int32_t *item, int n);
/** 1 / log2(rank + 2) for a rank from 0 below k, else 0. */
double recommend_gain(int rank, int64_t k);

#endif
