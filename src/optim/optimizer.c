/* optimizer.c - the optimizers that there are. */
#include "dtrain/optim.h"
#include <math.h>

static dt_err adamw_step(dt_device *dev, const dt_optimizer_step *s, const void *grad, dt_dtype gt, float *master,
                         float *const states[], void *param, dt_dtype param_dt, int64_t n, dt_stream *stream)
{
    const dt_adamw opt = {.lr = (float)s->lr,
                          .beta1 = (float)s->beta1,
                          .beta2 = (float)s->beta2,
                          .eps = (float)s->eps,
                          .weight_decay = (float)s->weight_decay,
                          .fix1 = (float)(1 - pow(s->beta1, (double)s->t)),
                          .fix2 = (float)(1 - pow(s->beta2, (double)s->t)),
                          .grad_scale = (float)s->grad_scale};
    return dev->ops->adamw_step(dev, &opt, grad, gt, master, states[0], states[1], param, param_dt, n, stream);
}

const dt_optimizer_ops dt_optimizer_adamw = {
    .name = "adamw", .n_states = 2, .state_names = {"exp_avg", "exp_avg_sq"}, .step = adamw_step};
