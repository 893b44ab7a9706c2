/* micro_step.c - the one place where a task meets the model. */
#include "dtrain/task.h"
#include <stdlib.h>

/* Lay the arrays out from `block` on (NULL: count only); bytes used. */
static size_t place(dt_task_buffers *t, float *block, const dt_model_options *opt, int n_labels)
{
    const size_t n = (size_t)opt->max_tok, n_values = n * (size_t)n_labels;
    float **const reals[] = {&t->u, &t->results.logp, &t->results.entropy, &t->entropy_weight};
    const bool wanted[] = {true, true, true, opt->head & DT_HEAD_ENTROPY_WEIGHT};
    size_t used = 0;
    if (n_labels) {
        if (block) t->value = block, t->dvalue = block + n_values;
        return 2 * n_values * sizeof *block;
    }
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++) {
        if (!wanted[i]) continue;
        if (block) *reals[i] = block + used;
        used += n;
    }
    if (block) t->results.hit = (uint8_t *)(block + used);
    return used * sizeof *block + n;
}

size_t dt_task_buffers_nbytes(const dt_model_options *opt, int n_labels)
{
    return place(&(dt_task_buffers){0}, NULL, opt, n_labels);
}

dt_err dt_task_buffers_alloc(dt_task_buffers *t, const dt_model_options *opt, int n_labels, dt_ledger *ledger)
{
    const size_t nbytes = dt_task_buffers_nbytes(opt, n_labels);
    float *block = calloc(1, nbytes ? nbytes : 1);
    DT_CHECK(block, DT_ERR_MEMORY, "no memory for %zu bytes of predictions", nbytes);
    dt_ledger_add(ledger, DT_MEM_DATA, DT_ON_HOST, nbytes);
    *t = (dt_task_buffers){.block = block, .nbytes = nbytes};
    place(t, block, opt, n_labels);
    return DT_OK;
}

void dt_task_buffers_free(dt_task_buffers *t, dt_ledger *ledger)
{
    if (t->block) dt_ledger_sub(ledger, DT_MEM_DATA, DT_ON_HOST, t->nbytes);
    free(t->block);
    *t = (dt_task_buffers){0};
}

float dt_task_inv_temperature(const dt_task *t) { return t->temperature > 0 ? (float)(1 / t->temperature) : 1.0f; }

static dt_predictions predictions(const dt_task_buffers *b)
{
    return (dt_predictions){
        .logp = b->results.logp, .hit = b->results.hit, .entropy = b->results.entropy, .value = b->value};
}

/* A pass of the head without backward. */
static dt_err predict(dt_task *t, const dt_batch *batch)
{
    const dt_task_buffers *b = &t->buffers;
    if (t->ops->n_labels) return dt_model_values(t->model, batch, b->value);
    return dt_model_predict(t->model, batch, &(dt_head_pass){.inv_temperature = dt_task_inv_temperature(t)},
                            &b->results);
}

/* The task's weights for the head: from the batch alone, or from what the model predicts. */
static dt_err find_weights(dt_task *t, const dt_micro *m)
{
    const dt_task_buffers *b = &t->buffers;
    const dt_predictions p = predictions(b);
    dt_weights w = {.u = b->u, .entropy = b->entropy_weight, .dvalue = b->dvalue};
    if (t->ops->weights_known) return t->ops->weights(t, m, NULL, &w);
    DT_TRY(predict(t, m->batch));
    return t->ops->weights(t, m, &p, &w);
}

static dt_err head(dt_task *t, const dt_micro *m)
{
    const dt_task_buffers *b = &t->buffers;
    const dt_head_pass pass = {
        .inv_temperature = dt_task_inv_temperature(t), .u = b->u, .entropy_weight = b->entropy_weight};
    DT_TRY(find_weights(t, m));
    if (t->ops->n_labels) return dt_model_value_head(t->model, m->batch, b->dvalue);
    return dt_model_head(t->model, m->batch, &pass, &b->results);
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
    if (!t->ops->n_labels) DT_TRY(dt_model_results(t->model, &b->results));
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
