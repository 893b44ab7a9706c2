/* schedule.c - the learning rate is a pure function of the number of updates done, so resuming needs no state. */
#include "dtrain/optim.h"
#include <math.h>
#include <string.h>

static double scale_of(const dt_config *cfg, int64_t train_batch_size)
{
    const double base =
        cfg->optimizer_lr_base_batch_size ? (double)cfg->optimizer_lr_base_batch_size : (double)train_batch_size;
    const double ratio = (double)train_batch_size / base;
    if (!strcmp(cfg->optimizer_lr_scale_rule, "linear")) return ratio;
    if (!strcmp(cfg->optimizer_lr_scale_rule, "sqrt")) return sqrt(ratio);
    return 1;
}

void dt_schedule_make(dt_schedule *s, const dt_config *cfg, int64_t total_steps, int64_t train_batch_size)
{
    const char *type = cfg->scheduler_type, *decay = cfg->scheduler_decay_type;
    *s = (dt_schedule){
        .scale = scale_of(cfg, train_batch_size), .min_ratio = cfg->scheduler_min_lr_ratio, .total = total_steps};
    s->type = !strcmp(type, "constant") ? DT_SCHED_CONSTANT
              : !strcmp(type, "linear") ? DT_SCHED_LINEAR
              : !strcmp(type, "cosine") ? DT_SCHED_COSINE
                                        : DT_SCHED_WSD;
    s->decay = !strcmp(decay, "linear") ? DT_DECAY_LINEAR : !strcmp(decay, "cosine") ? DT_DECAY_COSINE : DT_DECAY_SQRT;
    s->warmup = cfg->scheduler_warmup_steps ? cfg->scheduler_warmup_steps
                                            : (int64_t)ceil(cfg->scheduler_warmup_ratio * (double)total_steps);
    s->decay_steps = (int64_t)ceil(cfg->scheduler_decay_ratio * (double)total_steps);
}

/* From 1 at p = 0 to 0 at p = 1. */
static double decay_shape(int decay, double p)
{
    if (decay == DT_DECAY_COSINE) return 0.5 * (1 + cos(M_PI * p));
    if (decay == DT_DECAY_SQRT) return 1 - sqrt(p);
    return 1 - p;
}

double dt_schedule_lr(const dt_schedule *s, double lr, int64_t done)
{
    const double peak = lr * s->scale;
    if (done < s->warmup) return peak * (double)done / (double)s->warmup;
    if (s->type == DT_SCHED_CONSTANT) return peak;

    int64_t from = s->warmup;
    if (s->type == DT_SCHED_WSD && s->total - s->decay_steps > from) from = s->total - s->decay_steps;
    const int64_t length = s->total - from;
    double p = length > 0 ? (double)(done - from) / (double)length : done >= s->total;
    p = p < 0 ? 0 : p > 1 ? 1 : p;
    const int shape = s->type == DT_SCHED_COSINE   ? DT_DECAY_COSINE
                      : s->type == DT_SCHED_LINEAR ? DT_DECAY_LINEAR
                                                   : (int)s->decay;
    return peak * (s->min_ratio + (1 - s->min_ratio) * decay_shape(shape, p));
}
