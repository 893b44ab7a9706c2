/* pairs.c - data of tasks that train on answers. */
#include "pairs.h"
#include "dtrain/step/step.h"
#include <string.h>

void answers_open(dt_task *t, const dt_task_data *what, int n_texts)
{
    dt_task_data data = *what;
    data.training = t->ops->trains;
    data.validation = true;
    if (!data.seq_len) data.seq_len = t->cfg->data_seq_len;
    dt_task_open_data(t, &data);
    const int64_t n = n_texts * t->batching.micro_batch_size, n_tok = n * data.seq_len;
    if (n_tok > INT32_MAX) return; /* the loader reports it */
    if (t->model_opt->max_tok < n_tok) t->model_opt->max_tok = (int32_t)n_tok;
    if (t->model_opt->max_seq < n) t->model_opt->max_seq = (int32_t)n;
}

void answers_check_policy(dt_task *t)
{
    if (!t->comm) return; /* --plan */
    dt_task_need_data(t, "train", t->cfg->data_train);
    dt_task_need(t, "model", "path", t->cfg->model_path, "a model to align");
}

dt_err answers_add_up(const dt_task *t, double *x, int64_t n)
{
    enum { MAX_VALUES = 1 << 22 }; /* MPI counts are of type int */
    for (int64_t at = 0; at < n; at += MAX_VALUES)
        DT_TRY(dt_comm_reduce_host_f64(t->data, x + at, (int)dt_min_i64(MAX_VALUES, n - at), DT_SUM));
    return DT_OK;
}

int pairs_metric(dt_sums *s, const char *name, dt_sum_kind kind, double unit, const char *bottom)
{
    char validation[2 * DT_SUM_NAME];
    const int sum = dt_sums_declare(s, name, kind, unit), n = (int)strcspn(name, "/") + 1;
    const bool of_task = name[n - 1] == '/'; /* "rm/accuracy", but not "loss" */
    snprintf(validation, sizeof validation, "%.*svalidation_%s", of_task ? n : 0, name, name + (of_task ? n : 0));
    dt_sums_show(s, DT_SHOW_TRAIN, name, name, bottom, NULL);
    dt_sums_show(s, DT_SHOW_VALIDATION, validation, name, bottom, NULL);
    return sum;
}
