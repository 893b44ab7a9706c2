/* judge.c - a scalar head on a frozen model. */
#include "dtrain/step/judge.h"
#include <math.h>

static size_t lay_out(void *self, const dt_task *t, void *block)
{
    dt_judge *j = self;
    size_t used = 0;
    (void)t;
    j->value = dt_carve(block, &used, j->scorer.opt.max_tok, sizeof *j->value);
    j->score = dt_carve(block, &used, j->scorer.opt.max_seq, sizeof *j->score);
    return used;
}

dt_err dt_judge_open(dt_judge *j, dt_task *t, const char *name, const char *path)
{
    static const dt_task_part_ops arrays = {.lay_out = lay_out};
    dt_task_hold(t, &arrays, j);
    return dt_scorer_open(&j->scorer, t, name, path, 1);
}

dt_err dt_judge_score(dt_judge *j, dt_task *t, const dt_batch *b)
{
    DT_TRY(dt_scorer_forward(&j->scorer, t, b));
    DT_TRY(dt_model_values(j->scorer.model, b, j->value));
    for (int32_t s = 0; s < b->n_seq; s++) {
        const int32_t end = b->seq_start[s + 1];
        j->score[s] = end > b->seq_start[s] ? j->value[end - 1] : 0;
        DT_CHECK(isfinite(j->score[s]), DT_ERR_NONFINITE,
                 "%s: the score of a text of %d tokens is %g, so the model's weights or activations are not finite",
                 j->scorer.frozen.from.path, (int)(end - b->seq_start[s]), (double)j->score[s]);
    }
    return DT_OK;
}
