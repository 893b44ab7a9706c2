/* heads.h - the tasks classify and embed without training, for task eval. Private to src/task. */
#ifndef DTRAIN_TASK_HEADS_H
#define DTRAIN_TASK_HEADS_H

#include "dtrain/step/step.h"

extern const dt_task_ops classify_evaluation, embed_evaluation;

#endif
