/* micro_step.c - one micro-step of a task: its batch, forward, weights, head, backward. */
#include "dtrain/step/step.h"
#include <stdlib.h>

/* Lay out the arrays starting at `block` (NULL: count only). Returns the bytes used. */
static size_t lay_out(dt_task_buffers *t, void *block, const dt_model_options *opt, int64_t each)
{
    const int64_t n = opt->max_tok, n_values = n * each;
    const struct {
        float **at;
        bool wanted;
    } arrays[] = {{&t->u, true},
                  {&t->results.logp, true},
                  {&t->results.entropy, true},
                  {&t->entropy_weight, opt->head & DT_HEAD_ENTROPY_WEIGHT},
                  {&t->results.log_sum_squares, opt->head & DT_HEAD_SUM_SQUARES},
                  {&t->results.mean_logit, opt->head & DT_HEAD_MEAN_LOGIT},
                  {&t->kl_weight, opt->head & DT_HEAD_DIVERGENCE},
                  {&t->results.kl, opt->head & DT_HEAD_DIVERGENCE}};
    size_t used = 0;
    if (each) {
        t->value = dt_carve(block, &used, n_values, sizeof *t->value);
        t->dvalue = dt_carve(block, &used, n_values, sizeof *t->dvalue);
        return used;
    }
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        if (arrays[i].wanted) *arrays[i].at = dt_carve(block, &used, n, sizeof(float));
    t->results.hit = dt_carve(block, &used, n, sizeof *t->results.hit);
    return used;
}

size_t dt_task_buffers_nbytes(const dt_model_options *opt, int64_t n_values)
{
    return lay_out(&(dt_task_buffers){0}, NULL, opt, n_values);
}

dt_err dt_task_buffers_alloc(dt_task_buffers *t, const dt_model_options *opt, int64_t n_values, dt_ledger *ledger)
{
    const size_t nbytes = dt_task_buffers_nbytes(opt, n_values);
    void *block = calloc(1, nbytes ? nbytes : 1);
    DT_CHECK(block, DT_ERR_MEMORY, "out of memory for %zu bytes of predictions", nbytes);
    dt_ledger_add(ledger, DT_MEM_DATA, DT_ON_HOST, nbytes);
    *t = (dt_task_buffers){.block = block, .nbytes = nbytes};
    lay_out(t, block, opt, n_values);
    return DT_OK;
}

void dt_task_buffers_free(dt_task_buffers *t, dt_ledger *ledger)
{
    if (t->block) dt_ledger_sub(ledger, DT_MEM_DATA, DT_ON_HOST, t->nbytes);
    free(t->block);
    *t = (dt_task_buffers){0};
}

float dt_task_inv_temperature(const dt_task *t) { return t->temperature > 0 ? (float)(1 / t->temperature) : 1.0f; }

/* Results of a head pass over a batch. With two passes, only the last one computes results that need the reference's
 * logits or serve only metrics. */
static dt_head_results results_of(const dt_task *t, bool last)
{
    dt_head_results r = t->buffers.results;
    if (!last) r.mean_logit = NULL;
    if (!last || (!t->reference && !t->known)) r.kl = NULL;
    return r;
}

static dt_head_pass pass_of(const dt_task *t, bool last)
{
    const dt_task_buffers *b = &t->buffers;
    dt_head_pass p = {.inv_temperature = dt_task_inv_temperature(t),
                      .weight_by_p = t->weight_by_p,
                      .u = b->u,
                      .entropy_weight = b->entropy_weight};
    if (last && t->reference) p.reference = t->reference, p.kl_weight = b->kl_weight, p.kl_mix = (float)t->kl_mix;
    if (last && t->known) p.known = t->known, p.kl_weight = b->kl_weight, p.kl_mix = (float)t->kl_mix;
    return p;
}

static dt_predictions predictions(const dt_task *t, bool last)
{
    const dt_head_results r = results_of(t, last);
    return (dt_predictions){.logp = r.logp,
                            .hit = r.hit,
                            .entropy = r.entropy,
                            .log_sum_squares = r.log_sum_squares,
                            .mean_logit = r.mean_logit,
                            .kl = r.kl,
                            .value = t->buffers.value};
}

/* Run the head without backward. */
static dt_err predict(dt_task *t, const dt_batch *batch, bool last)
{
    const dt_head_pass pass = pass_of(t, last);
    const dt_head_results results = results_of(t, last);
    if (t->n_labels) return dt_model_values(t->model, batch, t->buffers.value);
    return dt_model_predict(t->model, batch, &pass, &results);
}

/* Compute the task's weights for the head, from the batch only or from the model's predictions. */
static dt_err find_weights(dt_task *t, const dt_micro *m)
{
    const dt_task_buffers *b = &t->buffers;
    const dt_predictions p = predictions(t, false);
    dt_weights w = {.u = b->u, .entropy = b->entropy_weight, .kl = b->kl_weight, .dvalue = b->dvalue};
    if (t->ops->weights_known || t->weights_known) return t->ops->weights(t, m, NULL, &w);
    DT_TRY(predict(t, m->batch, false));
    return t->ops->weights(t, m, &p, &w);
}

static dt_err head(dt_task *t, const dt_micro *m)
{
    const dt_head_pass pass = pass_of(t, true);
    const dt_head_results wanted = results_of(t, true);
    DT_TRY(find_weights(t, m));
    if (t->n_labels) return dt_model_value_head(t->model, m->batch, t->buffers.dvalue);
    return dt_model_head(t->model, m->batch, &pass, &wanted);
}

static void add_sum(const dt_task *t, const char *name, double value)
{
    if (t->sums) dt_sums_add(t->sums, dt_sums_find(t->sums, name), value);
}

/* Count units of a sum that may not exist. */
static void count(const dt_task *t, const char *name, int64_t n)
{
    const int sum = t->sums ? dt_sums_find(t->sums, name) : -1;
    if (sum >= 0) dt_sums_count(t->sums, sum, n);
}

static void collect(dt_task *t, const dt_micro *m, const dt_predictions *p)
{
    const dt_batch_images *images = dt_images_of(m->batch);
    count(t, "tokens", m->batch->n_tok);
    count(t, "samples", m->batch->n_samples);
    count(t, "images", dt_n_images_of(m->batch));
    count(t, "cells", images ? images->n : 0);
    t->ops->collect(t, m, p);
}

/* The losses of the routers in this micro-step, of the tokens of all ranks. */
static dt_err balance_experts(dt_task *t, const dt_micro *m)
{
    const dt_model_config *mc = t->mc;
    double load[2 * DT_MAX_EXPERTS + 1], all = 0, most = 0;
    float dload[DT_MAX_EXPERTS + 1];
    const int64_t E = mc ? mc->num_experts : 0;
    if (!mc || !dt_model_counts_experts(mc)) return DT_OK;
    DT_TRY(dt_fault("task.experts"));
    DT_TRY(dt_model_expert_load(t->model, load));
    if (t->comm && t->sum->size > 1) DT_TRY(dt_comm_reduce_host_f64(t->sum, load, (int)(2 * E + 1), DT_SUM));
    const double balance = dt_model_balance_loss(mc, load, 1.0 / m->n_micro, dload),
                 z = dt_model_z_loss(mc, load, 1.0 / m->n_micro, &dload[E]);
    for (int64_t e = 0; e < E; e++) all += load[e], most = load[e] > most ? load[e] : most;
    if (mc->router_aux_loss_coef > 0) add_sum(t, "router/aux_loss", balance);
    if (mc->router_z_loss_coef > 0) add_sum(t, "router/z_loss", z / (double)dt_model_n_sparse(mc));
    add_sum(t, "router/max_load", all > 0 ? most * (double)E / all : 1);
    return dt_model_balance(t->model, dload);
}

dt_err dt_task_micro_step(dt_task *t, const dt_micro *m, int64_t step)
{
    const dt_head_results results = results_of(t, true);
    const dt_predictions p = predictions(t, true);
    dt_phase_enter(t->phase, "forward", "");
    DT_TRY(dt_model_forward(t->model, m->batch, true, step));
    DT_TRY(balance_experts(t, m));
    dt_phase_enter(t->phase, "head", "");
    DT_TRY(head(t, m));
    dt_phase_enter(t->phase, "backward", "");
    DT_TRY(dt_model_backward(t->model, m->batch));
    if (t->ops->train_auxiliary) DT_TRY(t->ops->train_auxiliary(t, m));
    /* values of a scalar head are already on the host; otherwise wait only now, with backward queued */
    if (!t->n_labels) DT_TRY(dt_model_results(t->model, &results));
    collect(t, m, &p);
    return DT_OK;
}

dt_err dt_task_forward(dt_task *t, const dt_batch *batch)
{
    const dt_micro m = {.batch = batch, .n_micro = 1, .validation = true};
    const dt_predictions p = predictions(t, true);
    dt_phase_enter(t->phase, "forward", "");
    DT_TRY(dt_model_forward(t->model, batch, false, 0));
    dt_phase_enter(t->phase, "head", "");
    DT_TRY(predict(t, batch, true));
    collect(t, &m, &p);
    return DT_OK;
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

dt_err dt_task_data_micro(dt_task *t, int64_t step, int micro, dt_micro *m)
{
    if (micro == 0) {
        dt_step_counts counts;
        DT_TRY(dt_loader_step_counts(t->train, step, &counts));
        t->micro =
            (dt_micro){.n_micro = (int)dt_loader_n_micro(t->train, step), .inv_norm = 1 / (double)counts.n_samples};
        if (t->ops->begin_step) DT_TRY(t->ops->begin_step(t, step, &counts));
    }
    t->first_sample = dt_task_first_sample(t, micro);
    DT_TRY(dt_loader_batch(t->train, step, micro, &t->micro.batch));
    *m = t->micro;
    return t->ops->score ? t->ops->score(t, m->batch) : DT_OK;
}

dt_err dt_task_evaluate(dt_task *t, int64_t micro)
{
    const dt_batch *b;
    if (t->ops->evaluate) return t->ops->evaluate(t, micro);
    dt_phase_enter(t->phase, "read", "validation");
    if (micro == 0 && t->ops->begin_validation) DT_TRY(t->ops->begin_validation(t));
    t->first_sample = dt_task_first_sample(t, micro);
    DT_TRY(dt_loader_batch(t->valid, DT_EVALUATION, micro, &b));
    if (t->ops->score) DT_TRY(t->ops->score(t, b));
    DT_TRY(dt_task_forward(t, b));
    return t->ops->end_validation && micro + 1 == t->n_validation ? t->ops->end_validation(t) : DT_OK;
}

dt_err dt_task_look_ahead(dt_task *t, dt_loader *l, int64_t step, bool mismatched,
                          dt_err (*each)(dt_task *t, const dt_batch *b, int64_t step, int64_t first))
{
    const dt_batch *b;
    for (int64_t micro = 0; micro < dt_loader_n_micro(l, step); micro++) {
        DT_TRY((mismatched ? dt_loader_mismatched_batch : dt_loader_batch)(l, step, micro, &b));
        DT_TRY(each(t, b, step, dt_task_first_sample(t, micro)));
    }
    return DT_OK;
}

dt_err dt_task_next_micro(dt_task *t, int64_t step, int micro, dt_micro *m)
{
    return t->ops->next_micro ? t->ops->next_micro(t, step, micro, m) : dt_task_data_micro(t, step, micro, m);
}

dt_err dt_task_logp(dt_task *t, const dt_batch *b)
{
    dt_phase_enter(t->phase, "score", "policy");
    DT_TRY(dt_model_forward(t->model, b, false, 0));
    return dt_model_logp(t->model, b, 1.0f, t->buffers.results.logp, NULL, NULL);
}
