/* pairs.c - data of tasks that train on pairs of answers. */
#include "pairs.h"
#include "dtrain/step/step.h"

void pairs_open(dt_task *t, int64_t seq_len, bool truncate, bool no_ties)
{
    const int64_t n_texts = 2 * t->batching.micro_batch_size, n_tok = n_texts * seq_len;
    dt_task_open_data(t, &(dt_task_data){.training = true,
                                         .validation = true,
                                         .pairs = true,
                                         .truncate = truncate,
                                         .no_ties = no_ties,
                                         .seq_len = seq_len});
    if (n_tok > INT32_MAX) return; /* the loader reports it */
    if (t->model_opt->max_tok < n_tok) t->model_opt->max_tok = (int32_t)n_tok;
    if (t->model_opt->max_seq < n_texts) t->model_opt->max_seq = (int32_t)n_texts;
}

void pairs_show(dt_sums *s, const char *name, const char *validation, const char *top, const char *bottom)
{
    dt_sums_show(s, DT_SHOW_TRAIN, name, top, bottom, NULL);
    dt_sums_show(s, DT_SHOW_VALIDATION, validation, top, bottom, NULL);
}
