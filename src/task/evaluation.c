/* evaluation.c - task eval: a language model's loss over a dataset, or, with a catalogue of items, the quality of its
 * recommendations. Datasets of labels and of texts are evaluated by the tables of their tasks. */
#include "heads.h"
#include "language_model.h"
#include "dtrain/recommend/ranking.h"
#include "dtrain/step/step.h"

typedef struct evaluation {
    language_model of_tokens; /* first: t->self without a catalogue */
    dt_generation_items items;
    dt_ranking *search; /* with a catalogue */
} evaluation;

static bool recommends(const dt_task *t) { return *t->cfg->rec_catalogue; }

static void check(dt_task *t)
{
    const dt_dataset_kind kind = *t->cfg->eval_tasks ? DT_N_DATASET_KINDS : dt_data_kind(t->cfg->data_validation);
    if (kind == DT_DATASET_LABELS) t->ops = &classify_evaluation;
    if (kind == DT_DATASET_TEXTS) t->ops = &embed_evaluation;
    if (!*t->cfg->eval_tasks)
        dt_task_need(t, "data", "validation", t->cfg->data_validation,
                     "dataset files (create them with dtrain-data), or benchmarks in eval.tasks");
    dt_task_need(t, "model", "path", t->cfg->model_path, "a model to evaluate");
}

static void eval_open(dt_task *t)
{
    evaluation *e = t->self;
    if (!recommends(t)) {
        lm_open(t, false, NULL);
        return;
    }
    dt_generation_items_open(&e->items, t);
    e->search = dt_ranking_open(t, &e->items, true);
}

static dt_err eval_evaluate(dt_task *t, int64_t micro)
{
    return recommends(t) ? dt_ranking_evaluate(((evaluation *)t->self)->search, t, micro) : lm_evaluate(t, micro);
}

const dt_task_ops dt_task_eval = {.name = "eval",
                                  .images = true,
                                  .whole_rows = true,
                                  .self_nbytes = sizeof(evaluation),
                                  .check = check,
                                  .open = eval_open,
                                  .collect = lm_collect,
                                  .evaluate = eval_evaluate};
