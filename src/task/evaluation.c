/* evaluation.c - a language model's loss over a dataset, and nothing else; or, with a catalogue of items, how well it
 * recommends them. */
#include "language_model.h"
#include "recommend.h"
#include "dtrain/step.h"

static bool recommends(const dt_task *t) { return *t->cfg->rec_catalogue; }

static void check(dt_task *t)
{
    dt_task_need_data(t, "validation", t->cfg->data_validation);
    dt_task_need(t, "model", "path", t->cfg->model_path, "a model to evaluate");
}

static void eval_open(dt_task *t)
{
    if (recommends(t))
        recommend_open(t);
    else
        lm_open(t);
}

static dt_err eval_plan(const dt_task *t, int stage, dt_memory *memory)
{
    return recommends(t) ? recommend_plan(t, stage, memory) : lm_plan(t, stage, memory);
}

static dt_err eval_begin(dt_task *t) { return recommends(t) ? recommend_begin(t) : DT_OK; }

static dt_err eval_evaluate(dt_task *t, int64_t micro)
{
    return recommends(t) ? recommend_evaluate(t, micro) : lm_evaluate(t, micro);
}

static void eval_close(dt_task *t)
{
    if (recommends(t))
        recommend_close(t);
    else
        lm_close(t);
}

const dt_task_ops dt_task_eval = {.name = "eval",
                                  .whole_rows = true,
                                  .check = check,
                                  .open = eval_open,
                                  .plan = eval_plan,
                                  .begin = eval_begin,
                                  .close = eval_close,
                                  .collect = lm_collect,
                                  .evaluate = eval_evaluate};
