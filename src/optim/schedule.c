/* schedule.c - the learning rate is a pure function of the number of updates and of the schedule's span of steps. The
 * span follows from the configuration, unless the run was extended. */
#include "dtrain/optim/optim.h"
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

static int64_t warmup_of(const dt_config *cfg, int64_t n_steps)
{
    return cfg->scheduler_warmup_steps ? cfg->scheduler_warmup_steps
                                       : (int64_t)ceil(cfg->scheduler_warmup_ratio * (double)n_steps);
}

void dt_schedule_set_span(dt_schedule *s, const dt_config *cfg, const dt_schedule_span *span)
{
    s->span = *span;
    s->decay_steps = (int64_t)ceil(cfg->scheduler_decay_ratio * (double)(span->total - span->start));
}

void dt_schedule_make(dt_schedule *s, const dt_config *cfg, int64_t total_steps, int64_t train_batch_size)
{
    const char *type = cfg->scheduler_type, *decay = !strcmp(type, "wsd") ? cfg->scheduler_decay_type : type;
    *s = (dt_schedule){.scale = scale_of(cfg, train_batch_size), .min_ratio = cfg->scheduler_min_lr_ratio};
    s->type = !strcmp(type, "constant") ? DT_SCHED_CONSTANT : !strcmp(type, "wsd") ? DT_SCHED_WSD : DT_SCHED_FALLING;
    s->decay = !strcmp(decay, "linear") ? DT_DECAY_LINEAR : !strcmp(decay, "cosine") ? DT_DECAY_COSINE : DT_DECAY_SQRT;
    const dt_schedule_span span = {.total = total_steps, .warmup = warmup_of(cfg, total_steps), .top = 1};
    dt_schedule_set_span(s, cfg, &span);
}

/* Falls from 1 at p = 0 to 0 at p = 1. */
static double decay_shape(int decay, double p)
{
    if (decay == DT_DECAY_COSINE) return 0.5 * (1 + cos(M_PI * p));
    if (decay == DT_DECAY_SQRT) return 1 - sqrt(p);
    return 1 - p;
}

/* The step at which the rate begins to fall. */
static int64_t decay_start(const dt_schedule *s)
{
    const int64_t warm = s->span.start + s->span.warmup, late = s->span.total - s->decay_steps;
    return s->type == DT_SCHED_WSD && late > warm ? late : warm;
}

static double rate_at(const dt_schedule *s, double peak, int64_t done)
{
    const dt_schedule_span *span = &s->span;
    const int64_t k = done > span->start ? done - span->start : 0, w = span->warmup;
    if (k < w) return peak * (span->from * (double)w + (span->top - span->from) * (double)k) / (double)w;
    if (s->type == DT_SCHED_CONSTANT) return peak * span->top;

    const int64_t from = decay_start(s), length = span->total - from;
    double p = length > 0 ? (double)(done - from) / (double)length : done >= span->total;
    p = p < 0 ? 0 : p > 1 ? 1 : p;
    return peak * (s->min_ratio + (span->top - s->min_ratio) * decay_shape(s->decay, p));
}

double dt_schedule_lr(const dt_schedule *s, double lr, int64_t done) { return rate_at(s, lr * s->scale, done); }

/* A warmup in progress keeps its length. */
static dt_schedule_span continued(const dt_schedule *before, int64_t last, int64_t next)
{
    if (next < before->span.start + before->span.warmup) return before->span;
    const double reached = rate_at(before, 1, last);
    return (dt_schedule_span){.start = next, .from = reached, .top = reached};
}

void dt_schedule_extend(dt_schedule *s, const dt_config *cfg, const dt_schedule *before, int64_t last, int64_t next)
{
    dt_schedule_span span;
    if (next <= 0 || !strcmp(cfg->scheduler_on_extend, "rescale")) return;
    if (!strcmp(cfg->scheduler_on_extend, "continue"))
        span = continued(before, last, next);
    else
        span = (dt_schedule_span){
            .start = next, .warmup = warmup_of(cfg, s->span.total - next), .from = rate_at(before, 1, last), .top = 1};
    span.total = s->span.total;
    span.extended = true;
    dt_schedule_set_span(s, cfg, &span);
}
