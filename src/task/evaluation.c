/* evaluation.c - task eval: a language model's loss over a dataset, or, with a catalogue of items, the quality of its
 * recommendations. */
#include "language_model.h"
#include "dtrain/recommend/ranking.h"
#include "dtrain/step/step.h"

#include <stdlib.h>

/* t->self with a catalogue. */
typedef struct evaluation {
    dt_generation_items items;
    dt_ranking *search; /* NULL: out of memory, which was reported */
} evaluation;

static bool recommends(const dt_task *t) { return *t->cfg->rec_catalogue; }

static void check(dt_task *t)
{
    dt_task_need_data(t, "validation", t->cfg->data_validation);
    dt_task_need(t, "model", "path", t->cfg->model_path, "a model to evaluate");
}

static void eval_open(dt_task *t)
{
    if (!recommends(t)) {
        lm_open(t);
        return;
    }
    evaluation *e = calloc(1, sizeof *e);
    if (!e) {
        dt_mistakes_add(t->mistakes, dt_fail(DT_ERR_MEMORY, "out of memory for the task"));
        return;
    }
    t->self = e;
    dt_generation_items_open(&e->items, t);
    e->search = dt_ranking_open(t, &e->items, true);
}

static dt_err eval_plan(const dt_task *t, int stage, dt_memory *memory)
{
    const evaluation *e = t->self;
    if (!recommends(t)) return lm_plan(t, stage, memory);
    memory->at[DT_MEM_DATA][DT_ON_HOST] += dt_generation_items_nbytes(&e->items);
    return dt_ranking_plan(e->search, t, stage, memory);
}

static dt_err eval_begin(dt_task *t)
{
    return recommends(t) ? dt_ranking_begin(((evaluation *)t->self)->search, t) : DT_OK;
}

static dt_err eval_evaluate(dt_task *t, int64_t micro)
{
    return recommends(t) ? dt_ranking_evaluate(((evaluation *)t->self)->search, t, micro) : lm_evaluate(t, micro);
}

static void eval_close(dt_task *t)
{
    evaluation *e = t->self;
    if (!recommends(t)) lm_close(t);
    if (!recommends(t) || !e) return;
    dt_ranking_close(e->search, t);
    dt_generation_items_close(&e->items, t->ledger);
    free(e);
    t->self = NULL;
}

const dt_task_ops dt_task_eval = {.name = "eval",
                                  .images = true,
                                  .whole_rows = true,
                                  .check = check,
                                  .open = eval_open,
                                  .plan = eval_plan,
                                  .begin = eval_begin,
                                  .close = eval_close,
                                  .collect = lm_collect,
                                  .evaluate = eval_evaluate};
