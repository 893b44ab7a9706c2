/* evaluation.c - task eval: a language model's loss over a dataset, or, with a catalogue of items, the quality of its
 * recommendations. Datasets of labels and of texts are evaluated by the tables of their tasks. */
#include "heads.h"
#include "language_model.h"
#include "dtrain/recommend/ranking.h"
#include "dtrain/step/step.h"

/* With a catalogue. */
typedef struct recommender {
    dt_generation_items items;
    dt_ranking *search;
} recommender;

static void recommend_open(dt_task *t)
{
    recommender *r = t->self;
    dt_generation_items_open(&r->items, t);
    r->search = dt_ranking_open(t, &r->items, true);
}

static dt_err recommend_evaluate(dt_task *t, int64_t micro)
{
    return dt_ranking_evaluate(((recommender *)t->self)->search, t, micro);
}

static void eval_open(dt_task *t) { lm_open(t, false, NULL); }

static void check(dt_task *t);

#define EVALUATION .name = "eval", .images = true, .whole_rows = true, .check = check

static const dt_task_ops recommend_evaluation = {EVALUATION, .self_nbytes = sizeof(recommender), .open = recommend_open,
                                                 .evaluate = recommend_evaluate};
const dt_task_ops dt_task_eval = {EVALUATION, .self_nbytes = sizeof(dt_lm_sums), .open = eval_open,
                                  .collect = lm_collect};

static void check(dt_task *t)
{
    const dt_dataset_kind kind = *t->cfg->eval_tasks ? DT_N_DATASET_KINDS : dt_data_kind(t->cfg->data_validation);
    if (*t->cfg->rec_catalogue) t->ops = &recommend_evaluation;
    if (kind == DT_DATASET_LABELS) t->ops = &classify_evaluation;
    if (kind == DT_DATASET_TEXTS) t->ops = &embed_evaluation;
    if (!*t->cfg->eval_tasks)
        dt_task_need(t, "data", "validation", t->cfg->data_validation,
                     "dataset files (create them with dtrain-data), or benchmarks in eval.tasks");
    dt_task_need(t, "model", "path", t->cfg->model_path, "a model to evaluate");
}
