/* scorer.c - a frozen model beside the one in training. */
#include "dtrain/scorer.h"
#include <unistd.h>

dt_err dt_scorer_open(dt_scorer *s, dt_task *t, const char *name, const char *path, int n_labels)
{
    dt_model_options *trained = t->model_opt;
    const bool planned = !t->comm && (!*path || access(path, F_OK) != 0);
    dt_memory memory;
    s->name = name;
    DT_TRY(planned ? dt_frozen_model_of_shape(&s->frozen, t->mc, n_labels)
                   : dt_frozen_model_describe(&s->frozen, path, n_labels));
    DT_CHECK(s->frozen.mc.vocab_size == t->mc->vocab_size, DT_ERR_DATA,
             "%s: vocab_size: %s has %lld, the model in training %lld", path, name, (long long)s->frozen.mc.vocab_size,
             (long long)t->mc->vocab_size);
    s->opt = (dt_model_options){.dtype = trained->dtype,
                                .grad_dtype = trained->dtype,
                                .max_tok = trained->max_tok,
                                .max_seq = trained->max_seq,
                                .max_pos = trained->max_pos};
    if (!t->dev->ops) return DT_OK;
    DT_TRY(dt_model_plan(&s->frozen.mc, &s->opt, s->frozen.units, s->frozen.n_units, t->dev, &memory));
    const size_t lent = (size_t)memory.at[DT_MEM_ACTIVATIONS][DT_ON_DEVICE];
    if (trained->lend_nbytes < lent) trained->lend_nbytes = lent;
    s->opt.borrows = true;
    return DT_OK;
}

dt_err dt_scorer_plan(const dt_scorer *s, const dt_task *t, dt_memory *memory)
{
    dt_memory model;
    if (!s->frozen.units) return DT_OK; /* a mistake that was told */
    DT_TRY(dt_frozen_model_plan(&s->frozen, &t->main->zero_opt, s->opt.dtype, t->nranks, memory));
    DT_TRY(dt_model_plan(&s->frozen.mc, &s->opt, s->frozen.units, s->frozen.n_units, t->dev, &model));
    dt_memory_add(memory, &model);
    return DT_OK;
}

dt_err dt_scorer_begin(dt_scorer *s, dt_task *t)
{
    dt_frozen_model *f = &s->frozen;
    DT_TRY(dt_frozen_model_load(f, &t->main->zero_opt, s->opt.dtype, t->comm, t->dev, t->compute, t->phase));
    s->opt.lender = t->model;
    return dt_comm_agree(t->comm, dt_model_open(&s->model, &f->mc, &s->opt, f->units, f->n_units, t->dev, &f->source,
                                                t->compute, t->phase));
}

void dt_scorer_close(dt_scorer *s)
{
    dt_model_close(s->model);
    dt_frozen_model_close(&s->frozen);
    *s = (dt_scorer){0};
}

dt_err dt_scorer_forward(dt_scorer *s, dt_task *t, const dt_batch *b)
{
    dt_phase_enter(t->phase, "score", s->name);
    DT_TRY(dt_fault("task.score"));
    return dt_model_forward(s->model, b, false, 0);
}
