/* reference.c - the vocabulary's head behind a frozen model. */
#include "reference.h"
#include <stdlib.h>

dt_err dt_reference_open(dt_reference *r, dt_task *t, const char *path)
{
    DT_TRY(dt_scorer_open(&r->scorer, t, "the reference", path ? path : "", 0));
    r->nbytes = (size_t)r->scorer.opt.max_tok * sizeof *r->logp;
    return DT_OK;
}

dt_err dt_reference_plan(const dt_reference *r, const dt_task *t, dt_memory *memory)
{
    memory->at[DT_MEM_DATA][DT_ON_HOST] += r->nbytes;
    return dt_scorer_plan(&r->scorer, t, memory);
}

static dt_err alloc(dt_reference *r, dt_ledger *ledger)
{
    r->logp = calloc(1, r->nbytes);
    DT_CHECK(r->logp, DT_ERR_MEMORY, "no memory for the log-probabilities of the reference");
    dt_ledger_add(ledger, DT_MEM_DATA, DT_ON_HOST, r->nbytes);
    return DT_OK;
}

dt_err dt_reference_begin(dt_reference *r, dt_task *t)
{
    DT_TRY(dt_comm_agree(t->comm, alloc(r, t->ledger)));
    return dt_scorer_begin(&r->scorer, t);
}

void dt_reference_close(dt_reference *r, dt_ledger *ledger)
{
    dt_scorer_close(&r->scorer);
    if (r->logp) dt_ledger_sub(ledger, DT_MEM_DATA, DT_ON_HOST, r->nbytes);
    free(r->logp);
    *r = (dt_reference){0};
}

dt_err dt_reference_score(dt_reference *r, dt_task *t, const dt_batch *b)
{
    DT_TRY(dt_scorer_forward(&r->scorer, t, b));
    return dt_model_logp(r->scorer.model, b, dt_task_inv_temperature(t), r->logp, NULL, NULL);
}
