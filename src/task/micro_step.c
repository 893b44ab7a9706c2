/* micro_step.c - the one place where a task meets the model. */
#include "dtrain/task.h"
#include <stdlib.h>

size_t dt_task_buffers_nbytes(int32_t max_tok, int n_labels)
{
    const size_t each = n_labels ? 2 * (size_t)n_labels * sizeof(float) : 3 * sizeof(float) + 1;
    return (size_t)max_tok * each;
}

dt_err dt_task_buffers_alloc(dt_task_buffers *t, int32_t max_tok, int n_labels, dt_ledger *ledger)
{
    const size_t nbytes = dt_task_buffers_nbytes(max_tok, n_labels), n = (size_t)max_tok;
    float *block = calloc(1, nbytes ? nbytes : 1);
    DT_CHECK(block, DT_ERR_MEMORY, "no memory for %zu bytes of predictions", nbytes);
    dt_ledger_add(ledger, DT_MEM_DATA, DT_ON_HOST, nbytes);
    *t = (dt_task_buffers){.block = block, .nbytes = nbytes};
    if (n_labels)
        t->value = block, t->dvalue = block + n * (size_t)n_labels;
    else
        t->u = block, t->logp = block + n, t->entropy = block + 2 * n, t->hit = (uint8_t *)(block + 3 * n);
    return DT_OK;
}

void dt_task_buffers_free(dt_task_buffers *t, dt_ledger *ledger)
{
    if (t->block) dt_ledger_sub(ledger, DT_MEM_DATA, DT_ON_HOST, t->nbytes);
    free(t->block);
    *t = (dt_task_buffers){0};
}

static dt_predictions predictions(const dt_task_buffers *b)
{
    return (dt_predictions){.logp = b->logp, .hit = b->hit, .entropy = b->entropy, .value = b->value};
}

/* A pass of the head without backward. */
static dt_err predict(dt_task *t, const dt_batch *batch)
{
    const dt_task_buffers *b = &t->buffers;
    if (t->ops->n_labels) return dt_model_values(t->model, batch, b->value);
    return dt_model_logp(t->model, batch, 1.0f, b->logp, b->hit, b->entropy);
}

/* The task's weights for the head: from the batch alone, or from what the model predicts. */
static dt_err find_weights(dt_task *t, const dt_micro *m)
{
    const dt_task_buffers *b = &t->buffers;
    const dt_predictions p = predictions(b);
    dt_weights w = {.u = b->u, .dvalue = b->dvalue};
    if (t->ops->weights_known) return t->ops->weights(t, m, NULL, &w);
    DT_TRY(predict(t, m->batch));
    return t->ops->weights(t, m, &p, &w);
}

static dt_err head(dt_task *t, const dt_micro *m)
{
    const dt_task_buffers *b = &t->buffers;
    DT_TRY(find_weights(t, m));
    if (t->ops->n_labels) return dt_model_value_head(t->model, m->batch, b->dvalue);
    return dt_model_head(t->model, m->batch, b->u, 1.0f, true);
}

dt_err dt_task_micro_step(dt_task *t, const dt_micro *m, int64_t step)
{
    const dt_task_buffers *b = &t->buffers;
    const dt_predictions p = predictions(b);
    dt_phase_enter(t->phase, "forward", "");
    DT_TRY(dt_model_forward(t->model, m->batch, true, step));
    dt_phase_enter(t->phase, "head", "");
    DT_TRY(head(t, m));
    dt_phase_enter(t->phase, "backward", "");
    DT_TRY(dt_model_backward(t->model, m->batch));
    if (t->ops->train_beside) DT_TRY(t->ops->train_beside(t, m));
    /* of a head of values they are there; else the device has backward to do meanwhile */
    if (!t->ops->n_labels) DT_TRY(dt_model_results(t->model, b->logp, b->hit, b->entropy));
    t->ops->collect(t, m, &p);
    return DT_OK;
}

dt_err dt_task_forward(dt_task *t, const dt_micro *m)
{
    const dt_predictions p = predictions(&t->buffers);
    dt_phase_enter(t->phase, "forward", "");
    DT_TRY(dt_model_forward(t->model, m->batch, false, 0));
    dt_phase_enter(t->phase, "head", "");
    DT_TRY(predict(t, m->batch));
    t->ops->collect(t, m, &p);
    return DT_OK;
}
