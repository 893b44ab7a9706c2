/* extend.c - the learning rate of a resumed run. A checkpoint contains the span of its schedule. If the number of steps
 * has changed since, scheduler.on_extend defines how the rate continues to the new end (algorithms.md 9.4). */
#include "run.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

static int64_t steps_per_position(const dt_run *run) { return dt_max_i64(1, run->task.schedule_steps); }

int64_t run_schedule_position(const dt_run *run, const progress *p)
{
    const int64_t n = steps_per_position(run);
    return n > 1 ? p->data_step / n : p->updates;
}

int64_t run_last_schedule_position(const dt_run *run, const progress *p)
{
    const int64_t n = steps_per_position(run);
    if (p->updates == 0) return -1;
    return n > 1 ? (p->data_step - 1) / n : p->updates - 1;
}

/* Checkpoints of earlier versions do not contain the total; 0: unknown. */
static int64_t total_before(const dt_run *run, const dt_ckpt_meta *meta, const dt_config *before)
{
    const int64_t n = steps_per_position(run);
    if (meta->schedule.total) return meta->schedule.total;
    if (before->run_max_steps) return dt_ceil_div(before->run_max_steps, n);
    if (run->task.total_steps || before->batch_train_batch_size != run->batching.train_batch_size) return 0;
    return (int64_t)ceil(before->run_epochs * (double)run->task.steps_per_epoch);
}

/* The schedule up to the checkpoint. */
static void make_before(const dt_run *run, const dt_ckpt_meta *meta, const dt_config *before, int64_t total,
                        dt_schedule *s)
{
    const int64_t batch = before->batch_train_batch_size;
    dt_schedule_make(s, before, total, batch ? batch : run->batching.train_batch_size);
    if (meta->schedule.extended) dt_schedule_set_span(s, before, &meta->schedule);
}

static double lr_at(const dt_run *run, int64_t position)
{
    return dt_schedule_lr(&run->schedule, run->main.groups.group[0].lr, position);
}

/* The unit of the schedule. */
static const char *unit_of(const dt_run *run) { return steps_per_position(run) > 1 ? "rollout" : "step"; }

/* For on_extend = rescale, or other changed settings of the schedule. */
static void say_jump(const dt_run *run, int64_t total, double from, int64_t next)
{
    const dt_schedule_span *now = &run->schedule.span;
    const char *unit = unit_of(run);
    char why[120] = "[scheduler] has changed", warm[80] = "", rest[160] = "";
    if (total != now->total) {
        snprintf(why, sizeof why, "the schedule is recomputed for %" PRId64 " %ss instead of %" PRId64, now->total,
                 unit, total);
        snprintf(rest, sizeof rest,
                 "; scheduler.on_extend = continue would decay from %.3g, and rewarm would warm up from it", from);
    }
    if (next < now->start + now->warmup)
        snprintf(warm, sizeof warm, ", within the warm-up, which ends after %s %" PRId64, unit,
                 now->start + now->warmup);
    DT_WARN("the learning rate jumps from %.3g at %s %" PRId64 " to %.3g at %s %" PRId64 "%s, because %s%s", from, unit,
            next, lr_at(run, next), unit, next + 1, warm, why, rest);
}

static void say_extended(const dt_run *run, double from, int64_t next)
{
    const dt_schedule *s = &run->schedule;
    const dt_schedule_span *span = &s->span;
    const char *unit = unit_of(run);
    const double peak = lr_at(run, span->start + span->warmup), end = lr_at(run, span->total);
    if (next < span->start + span->warmup)
        DT_INFO("the learning rate rises from %.3g at %s %" PRId64 " to %.3g at %s %" PRId64
                ", then changes to %.3g at %s %" PRId64 " (scheduler.on_extend)",
                from, unit, next, peak, unit, span->start + span->warmup + 1, end, unit, span->total);
    else
        DT_INFO("the learning rate continues from %.3g at %s %" PRId64 " to %.3g at %s %" PRId64
                " (scheduler.on_extend)",
                from, unit, next, end, unit, span->total);
    if (span->top < 0.01)
        DT_WARN("the learning rate stays below 1 %% of optimizer.lr, because the schedule had already ended there; use "
                "scheduler.on_extend = rewarm or rescale to raise it");
}

static bool differs(double a, double b) { return fabs(a - b) > 1e-9 * fmax(fabs(a), fabs(b)); }

/* Compared as fractions of optimizer.lr, because a change of that key is reported separately. */
static bool jumps(const dt_schedule *before, const dt_schedule *now, int64_t next)
{
    dt_schedule a = *before, b = *now;
    a.scale = b.scale = 1;
    return differs(dt_schedule_lr(&a, 1, next), dt_schedule_lr(&b, 1, next));
}

void run_extend_schedule(dt_run *run, const dt_ckpt_meta *meta, const dt_config *before, const progress *p)
{
    dt_schedule was;
    const int64_t known = total_before(run, meta, before), total = known ? known : run->schedule.span.total;
    const int64_t next = run_schedule_position(run, p), last = run_last_schedule_position(run, p);
    const bool changed = total != run->schedule.span.total;
    if (last < 0) return;
    make_before(run, meta, before, total, &was);
    if (changed)
        dt_schedule_extend(&run->schedule, &run->cfg, &was, last, next);
    else if (meta->schedule.extended)
        dt_schedule_set_span(&run->schedule, &run->cfg, &meta->schedule);
    if (!dt_comm_first(run->comm) || p->step >= run->total_steps) return;
    const double from = meta->lr >= 0 ? meta->lr : dt_schedule_lr(&was, before->optimizer_lr, last);
    if (changed && run->schedule.span.extended)
        say_extended(run, from, next);
    else if (jumps(&was, &run->schedule, next))
        say_jump(run, total, from, next);
}
