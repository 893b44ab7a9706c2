/* optimizer.c - AdamW, Adam and SGD; selection of an optimizer and its settings. */
#include "dtrain/optim/optim.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Bias corrections are computed in double, but from the float betas of the device. There 1 - 0.999f is 1.3e-5 less than
 * 0.001 in relative terms. A correction from another beta would lengthen each of the first steps by half of that. */
static dt_err adam(dt_device *dev, const dt_optimizer_step *s, double decay, double l2, const dt_update_range *r)
{
    const float beta1 = (float)s->beta1, beta2 = (float)s->beta2;
    const dt_adamw opt = {.lr = (float)s->lr,
                          .beta1 = beta1,
                          .beta2 = beta2,
                          .eps = (float)s->eps,
                          .weight_decay = (float)decay,
                          .l2 = (float)l2,
                          .fix1 = (float)(1 - pow((double)beta1, (double)s->t)),
                          .fix2 = (float)(1 - pow((double)beta2, (double)s->t)),
                          .grad_scale = (float)s->grad_scale};
    return dev->ops->adamw_step(dev, &opt, r->grad, r->grad_dtype, r->master, r->states[0], r->states[1], r->param,
                                r->param_dtype, r->n, r->stream);
}

/* Decays the weight itself, in addition to Adam's step. */
dt_err dt_adamw_step(dt_device *dev, const dt_optimizer_step *s, const dt_update_range *r)
{
    return adam(dev, s, s->weight_decay, 0, r);
}

/* Adds the decay to the gradient, so it enters both moments. */
static dt_err adam_step(dt_device *dev, const dt_optimizer_step *s, const dt_update_range *r)
{
    return adam(dev, s, 0, s->weight_decay, r);
}

/* states[0] NULL: no momentum. */
static dt_err sgd_step(dt_device *dev, const dt_optimizer_step *s, const dt_update_range *r)
{
    const dt_sgd opt = {.lr = (float)s->lr,
                        .momentum = (float)s->momentum,
                        .l2 = (float)s->weight_decay,
                        .grad_scale = (float)s->grad_scale};
    return dev->ops->sgd_step(dev, &opt, r->grad, r->grad_dtype, r->master, r->states[0], r->param, r->param_dtype,
                              r->n, r->stream);
}

/* State names are PyTorch's. */
const dt_optimizer_ops dt_optimizer_adamw = {.name = "adamw",
                                             .n_states = 2,
                                             .state_names = {"exp_avg", "exp_avg_sq"},
                                             .positive_states = 2,
                                             .step = dt_adamw_step};
const dt_optimizer_ops dt_optimizer_adam = {
    .name = "adam", .n_states = 2, .state_names = {"exp_avg", "exp_avg_sq"}, .positive_states = 2, .step = adam_step};
const dt_optimizer_ops dt_optimizer_sgd = {
    .name = "sgd", .n_states = 1, .state_names = {"momentum_buffer"}, .step = sgd_step};
const dt_optimizer_ops dt_optimizer_sgd_plain = {.name = "sgd", .step = sgd_step};

bool dt_is_hidden_matrix(const dt_tensor *t)
{
    return t->kind == DT_KIND_MATRIX && t->trainable && t->n_row_ranges == 0 && t->adapter_scale == 0 &&
           t->split_whole == 0;
}

unsigned dt_optimizer_states_of(const dt_optimizer_ops *o, const dt_tensor *t)
{
    const unsigned all = (1u << o->n_states) - 1;
    if (!o->matrices) return all;
    return dt_is_hidden_matrix(t) ? o->matrices->states : all & ~o->matrices->states;
}

const dt_optimizer_ops *dt_optimizer_of(const dt_config *cfg)
{
#define ADDRESS(name) &dt_optimizer_##name,
    static const dt_optimizer_ops *const all[] = {DT_OPTIMIZERS(ADDRESS)};
    if (!strcmp(cfg->optimizer_type, "sgd") && cfg->optimizer_momentum == 0) return &dt_optimizer_sgd_plain;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!strcmp(cfg->optimizer_type, all[i]->name)) return all[i];
    return NULL;
}

dt_err dt_optimizer_settings(dt_optimizer_step *s, const dt_config *cfg)
{
    char rest;
    *s = (dt_optimizer_step){.weight_decay = cfg->optimizer_weight_decay,
                             .eps = cfg->optimizer_eps,
                             .momentum = cfg->optimizer_momentum,
                             .cfg = cfg};
    const int n = sscanf(cfg->optimizer_betas, " %lf , %lf %c", &s->beta1, &s->beta2, &rest);
    DT_CONFIG_CHECK(n == 2 && s->beta1 >= 0 && s->beta1 < 1 && s->beta2 >= 0 && s->beta2 < 1, cfg, "optimizer", "betas",
                    "expected two numbers of at least 0 and below 1, such as 0.9, 0.95, found '%s'",
                    cfg->optimizer_betas);
    return DT_OK;
}
