/* reference.c - at stage 3 partitioned and offloaded like the parameters of the model in training, else whole on every
 * rank; both give the same numbers. */
#include "reference.h"
#include <stdlib.h>

dt_err dt_reference_open(dt_reference *r, dt_task *t, const char *path)
{
    dt_model_options *policy = t->model_opt;
    dt_memory memory;
    DT_TRY(path ? dt_frozen_model_describe(&r->frozen, path, 0) : dt_frozen_model_of_shape(&r->frozen, t->mc, 0));
    DT_CHECK(r->frozen.mc.vocab_size == t->mc->vocab_size, DT_ERR_DATA,
             "%s: vocab_size: the reference has %lld, the model in training %lld", path,
             (long long)r->frozen.mc.vocab_size, (long long)t->mc->vocab_size);
    r->opt = (dt_model_options){.dtype = policy->dtype,
                                .grad_dtype = policy->dtype,
                                .max_tok = policy->max_tok,
                                .max_seq = policy->max_seq,
                                .max_pos = policy->max_pos};
    r->nbytes = (size_t)r->opt.max_tok * sizeof *r->logp;
    if (!t->dev->ops) return DT_OK;
    DT_TRY(dt_model_plan(&r->frozen.mc, &r->opt, r->frozen.units, r->frozen.n_units, t->dev, &memory));
    const size_t lent = (size_t)memory.at[DT_MEM_ACTIVATIONS][DT_ON_DEVICE];
    if (policy->lend_nbytes < lent) policy->lend_nbytes = lent;
    r->opt.borrows = true;
    return DT_OK;
}

dt_err dt_reference_plan(const dt_reference *r, const dt_task *t, dt_memory *memory)
{
    dt_memory model;
    if (!r->frozen.units) return DT_OK; /* a mistake that was told */
    DT_TRY(dt_frozen_model_plan(&r->frozen, &t->main->zero_opt, r->opt.dtype, t->nranks, memory));
    DT_TRY(dt_model_plan(&r->frozen.mc, &r->opt, r->frozen.units, r->frozen.n_units, t->dev, &model));
    dt_memory_add(memory, &model);
    memory->at[DT_MEM_DATA][DT_ON_HOST] += r->nbytes;
    return DT_OK;
}

static dt_err begin_local(dt_reference *r, dt_task *t)
{
    r->logp = calloc(1, r->nbytes);
    DT_CHECK(r->logp, DT_ERR_MEMORY, "no memory for the log-probabilities of the reference");
    dt_ledger_add(t->ledger, DT_MEM_DATA, DT_ON_HOST, r->nbytes);
    r->opt.lender = t->model;
    return dt_model_open(&r->model, &r->frozen.mc, &r->opt, r->frozen.units, r->frozen.n_units, t->dev,
                         &r->frozen.source, t->compute, t->phase);
}

dt_err dt_reference_begin(dt_reference *r, dt_task *t)
{
    DT_TRY(dt_frozen_model_load(&r->frozen, &t->main->zero_opt, r->opt.dtype, t->comm, t->dev, t->compute, t->phase));
    return dt_comm_agree(t->comm, begin_local(r, t));
}

void dt_reference_close(dt_reference *r, dt_ledger *ledger)
{
    dt_model_close(r->model);
    dt_frozen_model_close(&r->frozen);
    if (r->logp) dt_ledger_sub(ledger, DT_MEM_DATA, DT_ON_HOST, r->nbytes);
    free(r->logp);
    *r = (dt_reference){0};
}

dt_err dt_reference_score(dt_reference *r, dt_task *t, const dt_batch *b)
{
    dt_phase_enter(t->phase, "score", "reference");
    DT_TRY(dt_model_forward(r->model, b, false, 0));
    return dt_model_logp(r->model, b, 1.0f, r->logp, NULL, NULL);
}
