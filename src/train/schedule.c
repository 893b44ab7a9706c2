/* schedule.c - the learning rate is a pure function of the number of updates done, so resuming needs no state. */
#include "dtrain/train.h"
#include <math.h>
#include <string.h>

int64_t dt_interval_steps(double value, int64_t total_steps)
{
    if (value <= 0) return 0;
    if (value < 1) return (int64_t)ceil(value * (double)total_steps);
    return (int64_t)value;
}

dt_err dt_intervals_check(const dt_config *cfg)
{
    const struct {
        const char *section, *key;
        double value;
    } intervals[] = {{"data", "validation_steps", cfg->data_validation_steps},
                     {"checkpoint", "save_steps", cfg->checkpoint_save_steps},
                     {"log", "logging_steps", cfg->log_logging_steps}};
    for (size_t i = 0; i < sizeof intervals / sizeof intervals[0]; i++)
        DT_CONFIG_CHECK(intervals[i].value < 1 || intervals[i].value == floor(intervals[i].value), cfg,
                        intervals[i].section, intervals[i].key,
                        "expected a whole number of steps, or a share of all steps below 1, found %g",
                        intervals[i].value);
    return DT_OK;
}

static double scaled_peak(const dt_config *cfg, int64_t train_batch_size)
{
    const double base =
        cfg->optimizer_lr_base_batch_size ? (double)cfg->optimizer_lr_base_batch_size : (double)train_batch_size;
    const double ratio = (double)train_batch_size / base;
    if (!strcmp(cfg->optimizer_lr_scale_rule, "linear")) return cfg->optimizer_lr * ratio;
    if (!strcmp(cfg->optimizer_lr_scale_rule, "sqrt")) return cfg->optimizer_lr * sqrt(ratio);
    return cfg->optimizer_lr;
}

void dt_schedule_make(dt_schedule *s, const dt_config *cfg, int64_t total_steps, int64_t train_batch_size)
{
    const char *type = cfg->scheduler_type, *decay = cfg->scheduler_decay_type;
    *s = (dt_schedule){
        .peak = scaled_peak(cfg, train_batch_size), .min_ratio = cfg->scheduler_min_lr_ratio, .total = total_steps};
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

double dt_schedule_lr(const dt_schedule *s, int64_t done)
{
    if (done < s->warmup) return s->peak * (double)done / (double)s->warmup;
    if (s->type == DT_SCHED_CONSTANT) return s->peak;

    int64_t from = s->warmup;
    if (s->type == DT_SCHED_WSD && s->total - s->decay_steps > from) from = s->total - s->decay_steps;
    const int64_t length = s->total - from;
    double p = length > 0 ? (double)(done - from) / (double)length : done >= s->total;
    p = p < 0 ? 0 : p > 1 ? 1 : p;
    const int shape = s->type == DT_SCHED_COSINE   ? DT_DECAY_COSINE
                      : s->type == DT_SCHED_LINEAR ? DT_DECAY_LINEAR
                                                   : (int)s->decay;
    return s->peak * (s->min_ratio + (1 - s->min_ratio) * decay_shape(shape, p));
}
