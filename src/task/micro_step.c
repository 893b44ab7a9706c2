/* micro_step.c - the one place where an objective meets a model. */
#include "dtrain/task.h"
#include <stdlib.h>

static size_t buffers_nbytes(int32_t max_tok) { return (size_t)max_tok * (3 * sizeof(float) + 1); }

dt_err dt_task_buffers_alloc(dt_task_buffers *t, int32_t max_tok, dt_ledger *ledger)
{
    const size_t nbytes = buffers_nbytes(max_tok);
    float *block = calloc(1, nbytes ? nbytes : 1);
    DT_CHECK(block, DT_ERR_MEMORY, "no memory for %zu bytes of log-probabilities", nbytes);
    dt_ledger_add(ledger, DT_MEM_DATA, DT_ON_HOST, nbytes);
    *t = (dt_task_buffers){.u = block,
                           .logp = block + max_tok,
                           .entropy = block + 2 * (size_t)max_tok,
                           .hit = (uint8_t *)(block + 3 * (size_t)max_tok),
                           .max_tok = max_tok};
    return DT_OK;
}

void dt_task_buffers_free(dt_task_buffers *t, dt_ledger *ledger)
{
    if (t->u) dt_ledger_sub(ledger, DT_MEM_DATA, DT_ON_HOST, buffers_nbytes(t->max_tok));
    free(t->u);
    *t = (dt_task_buffers){0};
}

size_t dt_task_buffers_nbytes(int32_t max_tok) { return buffers_nbytes(max_tok); }

dt_err dt_task_micro_step(dt_model *m, const dt_objective *o, const dt_batch *b, dt_task_buffers *t, double inv_norm,
                          int64_t step, const dt_lm_sums *sums, dt_phase *phase)
{
    dt_phase_enter(phase, "forward", "");
    DT_TRY(dt_model_forward(m, b, true, step));
    dt_phase_enter(phase, "head", "");
    if (!o->weights_known) DT_TRY(dt_model_logp(m, b, 1.0f, t->logp, NULL, NULL));
    DT_TRY(o->weights(o, b, o->weights_known ? NULL : t->logp, inv_norm, t->u));
    DT_TRY(dt_model_head(m, b, t->u, 1.0f, true));
    dt_phase_enter(phase, "backward", "");
    DT_TRY(dt_model_backward(m, b));
    DT_TRY(dt_model_results(m, t->logp, t->hit, t->entropy)); /* the device has backward to do while the host waits */
    o->metrics(o, b, t->logp, t->hit, t->entropy, sums);
    return DT_OK;
}

dt_err dt_task_evaluate(dt_model *m, const dt_objective *o, const dt_batch *b, dt_task_buffers *t,
                        const dt_lm_sums *sums, dt_phase *phase)
{
    dt_phase_enter(phase, "forward", "");
    DT_TRY(dt_model_forward(m, b, false, 0));
    dt_phase_enter(phase, "head", "");
    DT_TRY(dt_model_logp(m, b, 1.0f, t->logp, t->hit, t->entropy));
    o->metrics(o, b, t->logp, t->hit, t->entropy, sums);
    return DT_OK;
}
