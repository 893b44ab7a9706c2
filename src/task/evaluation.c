/* evaluation.c - a language model's loss over a dataset, and nothing else. */
#include "language_model.h"
#include "dtrain/step.h"

static void check(dt_task *t)
{
    dt_task_need_data(t, "validation", t->cfg->data_validation);
    dt_task_need(t, "model", "path", t->cfg->model_path, "a model to evaluate");
}

const dt_task_ops dt_task_eval = {.name = "eval",
                                  .whole_rows = true,
                                  .check = check,
                                  .open = lm_open,
                                  .plan = lm_plan,
                                  .close = lm_close,
                                  .collect = lm_collect,
                                  .evaluate = lm_evaluate};
