/* judge.c - a scalar head on a frozen model. */
#include "dtrain/step/judge.h"
#include <math.h>
#include <stdlib.h>

/* Lay out the arrays starting at `block` (NULL: count only). Returns the bytes used. */
static size_t lay_out(dt_judge *j, void *block)
{
    size_t used = 0;
    j->value = dt_carve(block, &used, j->scorer.opt.max_tok, sizeof *j->value);
    j->score = dt_carve(block, &used, j->scorer.opt.max_seq, sizeof *j->score);
    return used;
}

dt_err dt_judge_open(dt_judge *j, dt_task *t, const char *name, const char *path)
{
    DT_TRY(dt_scorer_open(&j->scorer, t, name, path, 1));
    j->nbytes = lay_out(j, NULL);
    return DT_OK;
}

dt_err dt_judge_open_apart(dt_judge *j, dt_task *t, const char *name, const char *path, int32_t max_pos,
                           int32_t max_seq)
{
    DT_TRY(dt_scorer_open_apart(&j->scorer, t, name, path, 1, max_pos, max_seq));
    j->nbytes = lay_out(j, NULL);
    return DT_OK;
}

dt_err dt_judge_plan(const dt_judge *j, const dt_task *t, dt_memory *memory)
{
    memory->at[DT_MEM_DATA][DT_ON_HOST] += j->nbytes;
    return dt_scorer_plan(&j->scorer, t, memory);
}

static dt_err alloc(dt_judge *j, dt_ledger *ledger)
{
    j->block = calloc(1, j->nbytes);
    DT_CHECK(j->block, DT_ERR_MEMORY, "out of memory for the scores of %s", j->scorer.name);
    lay_out(j, j->block);
    dt_ledger_add(ledger, DT_MEM_DATA, DT_ON_HOST, j->nbytes);
    return DT_OK;
}

dt_err dt_judge_begin(dt_judge *j, dt_task *t)
{
    DT_TRY(dt_comm_agree(t->comm, alloc(j, t->ledger)));
    return dt_scorer_begin(&j->scorer, t);
}

void dt_judge_close(dt_judge *j, dt_ledger *ledger)
{
    dt_scorer_close(&j->scorer);
    if (j->block) dt_ledger_sub(ledger, DT_MEM_DATA, DT_ON_HOST, j->nbytes);
    free(j->block);
    *j = (dt_judge){0};
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
