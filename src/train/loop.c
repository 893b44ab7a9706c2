/* loop.c - the superstep: read, compute, exchange, agree, update, report, checkpoint.
 *
 * The ranks agree in one vote per step. Anything that only one rank knows (a signal, a time limit, a non-finite value)
 * becomes a common decision there. A failure between the vote and the end of the units' collectives cannot be voted on;
 * it ends the job through main. */
#include "run.h"
#include "dtrain/step/step.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Averages between two records, in addition to run->sums. The loss is a mean over steps. */
typedef struct interval {
    double loss, seconds;
    int64_t n_skipped;
} interval;

typedef struct cadence {
    int64_t log, validate, evaluate, save;
} cadence;

static double host_memory_peak(void)
{
    struct rusage ru;
    getrusage(RUSAGE_SELF, &ru);
    return (double)ru.ru_maxrss * 1024;
}

/* If device and node share one memory, all memory spaces count. */
static double device_memory_peak(const dt_run *run)
{
    return (double)atomic_load(run->dev.ops->own_memory ? &run->ledger.on_peak[DT_ON_DEVICE] : &run->ledger.total_peak);
}

/* ---- metrics ----------------------------------------------------------------------------------------------------- */

static int declare_time(dt_sums *s, int group, const char *kind, dt_sum_kind how)
{
    char name[DT_SUM_NAME];
    snprintf(name, sizeof name, "ms/%s_%s", dt_time_group_names[group], kind); /* displayed in milliseconds */
    return dt_sums_declare(s, name, how, 1);
}

/* "memory/device/parameters": memory of a rank at the end of a step. */
static void declare_memory(dt_sums *s, dt_loop_sums *c)
{
    char name[DT_SUM_NAME];
    for (int k = 0; k < DT_N_MEMCAT; k++)
        for (int p = 0; p < DT_N_MEMSPACE; p++) {
            snprintf(name, sizeof name, "memory/%s/%s", dt_memspace_name((dt_memspace)p), dt_memcat_name((dt_memcat)k));
            c->memory[k][p] = dt_sums_declare(s, name, DT_SUM_MAX, 1);
        }
}

static void declare(dt_sums *s, dt_loop_sums *c, bool with_time)
{
    declare_memory(s, c);
    c->memory_device = dt_sums_declare(s, "memory_device", DT_SUM_MAX, 1);
    c->memory_pinned = dt_sums_declare(s, "memory_pinned", DT_SUM_MAX, 1);
    c->memory_host = dt_sums_declare(s, "memory_host", DT_SUM_MAX, 1);
    c->memory_file = dt_sums_declare(s, "memory_file", DT_SUM_MAX, 1);
    c->save_done = dt_sums_declare(s, "save_done", DT_SUM_MIN, 1);
    c->save_work = dt_sums_declare(s, "save_work", DT_SUM_MAX, 1);
    for (int g = 0; with_time && g < DT_N_TIME; g++) {
        c->time_min[g] = declare_time(s, g, "min", DT_SUM_MIN);
        c->time_mean[g] = declare_time(s, g, "mean", DT_SUM_REAL);
        c->time_max[g] = declare_time(s, g, "max", DT_SUM_MAX);
    }
}

/* Of the losses of routers (dt_task_micro_step). Returns the number of metrics. */
static int declare_router(dt_sums *s, const dt_model_config *mc)
{
    const struct {
        const char *name;
        bool is_in;
    } metrics[] = {{"router/aux_loss", mc->router_aux_loss_coef > 0},
                   {"router/z_loss", mc->router_z_loss_coef > 0},
                   {"router/max_load", dt_model_counts_experts(mc)}};
    int n = 0;
    for (size_t i = 0; i < sizeof metrics / sizeof metrics[0]; i++) {
        if (!metrics[i].is_in) continue;
        dt_sums_declare(s, metrics[i].name, DT_SUM_MEAN, 1);
        dt_sums_show(s, DT_SHOW_TRAIN, metrics[i].name, metrics[i].name, NULL, NULL);
        n++;
    }
    return n;
}

/* The gradient norm of a trained model, and the names of its metrics: "critic/grad_norm", "critic/lr". */
static void declare_trained(dt_sums *s, dt_trained *m)
{
    const char *const head = m->name ? m->name : "", *const slash = m->name ? "/" : "";
    char name[DT_NAME_MAX];
    snprintf(name, sizeof name, "%s%ssum_squares", head, slash);
    m->sum_squares = dt_sums_declare(s, name, DT_SUM_REAL, 1);
    snprintf(m->norm_metric, sizeof m->norm_metric, "%s%sgrad_norm", head, slash);
    for (int k = 0; k < m->groups.n && m->name; k++) {
        snprintf(name, sizeof name, "%s", m->groups.group[k].metric);
        snprintf(m->groups.group[k].metric, sizeof name, "%s/%.64s", head, name);
    }
}

/* The metrics that every task must declare. */
static dt_err check_declared(const dt_run *run)
{
    const dt_sums *s = &run->sums;
    const dt_loop_sums *c = &run->counted;
    const dt_task *t = &run->task;
    DT_EXPECT(!run_trains(run) || (c->loss && c->tokens >= 0 && c->samples >= 0));
    DT_EXPECT(t->n_validation == 0 ||
              (s->n_shown[DT_SHOW_VALIDATION] > 0 && !strcmp(s->shown[DT_SHOW_VALIDATION][0].name, "validation_loss")));
    return DT_OK;
}

dt_err run_open_sums(dt_run *run)
{
    dt_sums *s = &run->sums;
    dt_loop_sums *c = &run->counted;
    int n = 0;
    for (int i = 0; i < run->n_trained; i++) {
        declare_trained(s, run->trained[i]);
        n += run->trained[i]->groups.n + 1;
    }
    declare(s, c, run->cfg.log_wall_clock_breakdown);
    n += declare_router(s, &run->mc);
    run_declare_nonfinite(run);
    DT_TRY(dt_sums_settle(s, run->comm));
    c->tokens = dt_sums_find(s, "tokens"), c->samples = dt_sums_find(s, "samples");
    c->images = dt_sums_find(s, "images");
    c->cells = dt_sums_find(s, "cells");
    c->loss = dt_sums_find_shown(s, DT_SHOW_TRAIN, "loss");
    DT_TRY(dt_comm_agree(run->comm, check_declared(run)));
    n += s->n_shown[DT_SHOW_TRAIN] + s->n_shown[DT_SHOW_VALIDATION] + s->n_sums + RUN_SAVE_METRICS;
    n += 4; /* loss_scale, num_tokens, images_per_second, epoch */
    run->shown = calloc((size_t)n, sizeof *run->shown);
    return dt_comm_agree(run->comm, run->shown ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for %d metrics", n));
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* Time to reserve for one more step. Steps differ in length, so twice a long one. */
static double next_step_s(dt_time_limit *l, double step_s)
{
    l->step_s = fmax(step_s, 0.9 * l->step_s);
    return 2 * l->step_s;
}

static void begin_micro(const dt_run *run, int micro, int n_micro)
{
    for (int i = 0; i < run->n_trained; i++) dt_zero_begin_micro(run->trained[i]->zero, micro, n_micro);
}

dt_err run_grad_sum_squares(const dt_run *run, dt_zero *zero, double *squares)
{
    if (run->cfg.run_reproducible) return dt_zero_grad_sum_squares_reproducible(zero, squares);
    return dt_zero_grad_sum_squares(zero, squares);
}

static dt_err add_sums_of_squares(dt_run *run, bool *nonfinite)
{
    *nonfinite = false;
    for (int i = 0; i < run->n_trained; i++) {
        double squares;
        DT_TRY(run_grad_sum_squares(run, run->trained[i]->zero, &squares));
        dt_sums_add(&run->sums, run->trained[i]->sum_squares, squares);
        *nonfinite |= !isfinite(squares);
    }
    run_note_nonfinite(run);
    return DT_OK;
}

static dt_err compute_step(dt_run *run, const progress *p)
{
    dt_task *t = &run->task;
    dt_micro m = {.n_micro = 1};
    for (int a = 0; a < m.n_micro; a++) {
        dt_phase_enter(&run->phase, "read", "train");
        DT_TRY(dt_task_next_micro(t, p->data_step, a, &m));
        begin_micro(run, a, m.n_micro);
        DT_TRY(dt_task_micro_step(t, &m, p->step));
    }
    return DT_OK;
}

static void count_memory(dt_run *run)
{
    dt_sums *s = &run->sums;
    const dt_loop_sums *c = &run->counted;
    const dt_memory held = dt_ledger_now(&run->ledger);
    dt_sums_add(s, c->memory_device, device_memory_peak(run));
    dt_sums_add(s, c->memory_pinned, (double)atomic_load(&run->ledger.on_peak[DT_ON_PINNED]));
    dt_sums_add(s, c->memory_host, host_memory_peak());
    dt_sums_add(s, c->memory_file, (double)atomic_load(&run->ledger.on_peak[DT_IN_FILE]));
    for (int k = 0; k < DT_N_MEMCAT; k++)
        for (int p = 0; p < DT_N_MEMSPACE; p++) dt_sums_add(s, c->memory[k][p], (double)held.at[k][p]);
}

static dt_err agree_on_step(dt_run *run, dt_err err, bool nonfinite, double begin_s, dt_vote *vote)
{
    dt_sums *s = &run->sums;
    const dt_loop_sums *c = &run->counted;
    double group_s[DT_N_TIME];
    dt_timeline_take(run->timeline, group_s); /* the host has waited for the norm */
    dt_phase_enter(&run->phase, "agree", "");
    const double step_s = dt_now_s() - begin_s;
    const dt_err saved = run_save_look(run);
    *vote = (dt_vote){.err = err == DT_OK ? saved : err,
                      .stop = run_stop_request(run, next_step_s(&run->limit, step_s)),
                      .nonfinite = nonfinite ? DT_NONFINITE_GRADS : 0};
    count_memory(run);
    for (int g = 0; run->cfg.log_wall_clock_breakdown && g < DT_N_TIME; g++) {
        dt_sums_add(s, c->time_min[g], group_s[g]);
        dt_sums_add(s, c->time_mean[g], group_s[g]);
        dt_sums_add(s, c->time_max[g], group_s[g]);
    }
    DT_TRY(dt_sums_vote(s, run->comm, vote));
    return (dt_err)vote->err;
}

/* Global norm of the step's gradients, which are still scaled by the loss scale. */
static double norm_of(const dt_run *run, const dt_trained *m)
{
    return sqrt(dt_sums_value(&run->sums, m->sum_squares)) / run->scale.scale;
}

/* The norm that clips a model's gradients: its own, or the common norm of all models that share it. */
static double clip_norm_of(const dt_run *run, const dt_trained *m)
{
    double squares = 0;
    if (m->name && !m->shares_norm) return norm_of(run, m);
    for (int i = 0; i < run->n_trained; i++) {
        const dt_trained *other = run->trained[i];
        if (!other->name || other->shares_norm) squares += dt_sums_value(&run->sums, other->sum_squares);
    }
    return sqrt(squares) / run->scale.scale;
}

static double lr_of(const dt_run *run, const dt_trained *m, int group, int64_t position)
{
    return dt_schedule_lr(&run->schedule, m->groups.group[group].lr, position);
}

/* Updates every model with its norm, rates and states, or no model at all. */
static dt_err update(dt_run *run, const progress *p)
{
    dt_phase_enter(&run->phase, "update", "");
    for (int i = 0; i < run->n_trained; i++) {
        dt_trained *m = run->trained[i];
        const double largest = m->max_grad_norm;
        double lr[DT_MAX_LR_GROUPS];
        dt_optimizer_step step = m->settings;
        for (int k = 0; k < m->groups.n; k++) lr[k] = lr_of(run, m, k, run_schedule_position(run, p));
        step.grad_scale = (largest > 0 ? fmin(1, largest / (clip_norm_of(run, m) + 1e-6)) : 1) / run->scale.scale;
        step.t = ++m->state_updates;
        DT_TRY(dt_zero_update(m->zero, &step, lr));
    }
    return DT_OK;
}

static void discard(const dt_run *run)
{
    for (int i = 0; i < run->n_trained; i++) dt_zero_discard(run->trained[i]->zero);
}

/* ---- the record of a step ---------------------------------------------------------------------------------------- */

/* Rates and norms of auxiliary models; the main model has fixed fields. position: position in the schedule. */
static int metrics_of_trained(const dt_run *run, int64_t position, dt_metric *more)
{
    int n = 0;
    for (int i = 0; i < run->n_trained; i++) {
        const dt_trained *m = run->trained[i];
        for (int k = i ? 0 : 1; k < m->groups.n; k++)
            more[n++] = (dt_metric){m->groups.group[k].metric, lr_of(run, m, k, position)};
        if (i) more[n++] = (dt_metric){m->norm_metric, norm_of(run, m)};
    }
    return n;
}

/* Zero entries are omitted. */
static int metrics_of_memory(const dt_run *run, dt_metric *more)
{
    const dt_sums *s = &run->sums;
    const dt_loop_sums *c = &run->counted;
    int n = 0;
    if (dt_sums_value(s, c->memory_file) > 0) more[n++] = (dt_metric){"memory_file", dt_sums_value(s, c->memory_file)};
    for (int p = 0; p < DT_N_MEMSPACE; p++)
        for (int k = 0; k < DT_N_MEMCAT; k++) {
            const double held = dt_sums_value(s, c->memory[k][p]);
            if (held > 0) more[n++] = (dt_metric){s->sum[c->memory[k][p]].name, held};
        }
    return n;
}

/* The metrics of a record in addition to its fixed fields, in run->shown; returns their number. seconds: duration of
 * the record's steps. */
static int more_metrics(dt_run *run, const progress *p, int64_t position, double seconds)
{
    const dt_sums *s = &run->sums;
    const dt_loop_sums *c = &run->counted;
    dt_metric *more = run->shown;
    int n = metrics_of_trained(run, position, more);
    for (int i = 0; i < s->n_shown[DT_SHOW_TRAIN]; i++) {
        const dt_shown *what = &s->shown[DT_SHOW_TRAIN][i];
        if (what != c->loss) more[n++] = (dt_metric){what->name, dt_sums_shown_of_total(s, what)};
    }
    if (run->scale.scaled) more[n++] = (dt_metric){"loss_scale", run->scale.scale};
    if (run->task.ops->num_tokens) more[n++] = (dt_metric){run->task.ops->num_tokens, (double)p->tokens};
    if (c->images >= 0) more[n++] = (dt_metric){"images_per_second", dt_sums_total(s, c->images) / seconds};
    more[n++] = (dt_metric){"epoch", (double)p->samples / (double)run->task.samples_per_epoch};
    n += metrics_of_memory(run, more + n);
    for (int g = 0; run->cfg.log_wall_clock_breakdown && g < DT_N_TIME; g++) {
        const int sum[3] = {c->time_min[g], c->time_mean[g], c->time_max[g]};
        for (int k = 0; k < 3; k++) {
            const double value = dt_sums_value(s, sum[k]);
            more[n++] = (dt_metric){s->sum[sum[k]].name, (k == 1 ? value / dt_comm_ranks(run->comm) : value) * 1e3};
        }
    }
    n += run_save_metrics(run, more + n);
    return n;
}

/* The images or cells of the interval. */
static double images_for_flops(const dt_sums *s, const dt_loop_sums *c)
{
    if (c->images < 0) return 0;
    return dt_sums_total(s, c->cells >= 0 ? c->cells : c->images);
}

static dt_err report_step(dt_run *run, const progress *p, int64_t position, interval *in)
{
    const dt_sums *s = &run->sums;
    const dt_loop_sums *c = &run->counted;
    const int n_more = more_metrics(run, p, position, in->seconds);
    const double n_steps = (double)s->n_steps, rate = dt_sums_total(s, c->tokens) / in->seconds,
                 flops = run_flops(run, rate, images_for_flops(s, c) / in->seconds);
    const dt_train_record rec = {.step = p->step,
                                 .total_steps = run->total_steps,
                                 .loss = in->loss / n_steps,
                                 .lr = lr_of(run, &run->main, 0, position),
                                 .grad_norm = norm_of(run, &run->main),
                                 .tokens = p->tokens,
                                 .samples = p->samples,
                                 .step_time = in->seconds / n_steps,
                                 .tokens_per_second = rate,
                                 .flops_per_second = flops,
                                 .memory_device = (int64_t)dt_sums_value(s, c->memory_device),
                                 .memory_pinned = (int64_t)dt_sums_value(s, c->memory_pinned),
                                 .memory_host = (int64_t)dt_sums_value(s, c->memory_host),
                                 .mfu = run->peak_flops > 0 ? flops / run->peak_flops : 0,
                                 .skipped = in->n_skipped > 0,
                                 .more = run->shown,
                                 .n_more = n_more,
                                 .watch = run->task.ops->watch};
    *in = (interval){0};
    dt_sums_clear_total(&run->sums);
    dt_phase_enter(&run->phase, "report", "");
    return dt_report_train(run->report, &rec);
}

static bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

/* True if the step has no target tokens, so no loss. */
static bool is_empty(const dt_sums *s, const dt_shown *loss)
{
    return loss->bottom >= 0 && dt_sums_value(s, loss->bottom) == 0;
}

/* Micro-steps, gradient norms, and the vote of all ranks. */
static dt_err compute_and_agree(dt_run *run, const progress *p, dt_vote *vote)
{
    const double begin_s = dt_now_s();
    bool nonfinite;
    atomic_store(&run->phase.step, p->step + 1);
    dt_phase_enter(&run->phase, "read", "train");
    dt_sums_clear(&run->sums);
    DT_TRY(dt_fault("step.begin"));
    DT_TRY(compute_step(run, p));
    dt_phase_enter(&run->phase, "norm", "");
    DT_TRY(add_sums_of_squares(run, &nonfinite));
    return agree_on_step(run, dt_fault("step.agree"), nonfinite, begin_s, vote);
}

static void count_step(const dt_run *run, progress *p, bool skip)
{
    const dt_sums *s = &run->sums;
    p->step++, p->data_step++, p->updates += !skip;
    p->samples += (int64_t)dt_sums_value(s, run->counted.samples);
    p->tokens += (int64_t)dt_sums_value(s, run->counted.tokens);
}

/* Steps that the task skips: the data position advances past them, and the run ends correspondingly earlier. */
static void leave_out(dt_run *run, progress *p)
{
    const int64_t n = run->task.left_out;
    run->task.left_out = 0;
    p->data_step += n;
    p->samples += n * run->batching.train_batch_size;
    run->total_steps = dt_max_i64(p->step, run->total_steps - n);
}

static dt_err finish_task_step(dt_run *run, progress *p, bool applied)
{
    dt_task *t = &run->task;
    if (!t->ops->after_step) return DT_OK;
    dt_phase_enter(&run->phase, "update", "task");
    DT_TRY(t->ops->after_step(t, p->step, applied));
    leave_out(run, p);
    return DT_OK;
}

/* Check for stop requests during a save, a validation or a rollout. */
static dt_err vote_on_stop(dt_run *run, int *stop)
{
    const dt_err err = dt_fault("loop.vote");
    dt_vote vote = {.err = err, .stop = run_stop_request(run, 2 * run->limit.step_s)};
    DT_TRY(dt_comm_vote(run->comm, &vote));
    *stop = vote.stop;
    return (dt_err)vote.err;
}

/* The task was asked to stop before the step's first gradient, for example in a rollout, on all ranks. The step does
 * not count, and its partial work is discarded. Finally the ranks agree on the reason for the stop. */
static dt_err leave_step(dt_run *run, progress *p, int *stop)
{
    dt_error_clear();
    DT_TRY(vote_on_stop(run, stop));
    if (!*stop) *stop = STOP_SIGNAL;
    if (*stop != STOP_TIME_LIMIT || p->step > p->first_step) return DT_OK;
    return dt_comm_agree(run->comm, dt_fail(DT_ERR_USAGE,
                                            "the rollout of step %" PRId64
                                            " does not finish before %s, although the run started with it; give the "
                                            "run more time, or generate fewer or shorter completions",
                                            p->step + 1, run_stop_name(&run->limit, *stop)));
}

/* One superstep; *stop: the agreed reason to stop. An abandoned step is not counted. */
static dt_err superstep(dt_run *run, progress *p, interval *in, const cadence *every, int *stop)
{
    const double begin_s = dt_now_s();
    const int64_t position = run_schedule_position(run, p);
    dt_vote vote;
    const dt_err err = compute_and_agree(run, p, &vote);
    if (err == DT_ERR_STOP && dt_comm_failed_together(run->comm)) return leave_step(run, p, stop);
    DT_TRY(err);
    *stop = vote.stop;
    const bool skip = vote.nonfinite || is_empty(&run->sums, run->counted.loss);
    DT_TRY(dt_saver_hold(run->saving.saver)); /* before the loop or the task changes what a save copies */
    if (skip)
        discard(run);
    else
        DT_TRY(update(run, p));
    count_step(run, p, skip);
    DT_TRY(finish_task_step(run, p, !skip));
    in->loss += dt_sums_shown(&run->sums, run->counted.loss);
    in->seconds += dt_now_s() - begin_s, in->n_skipped += skip;
    dt_sums_add_to_total(&run->sums);

    /* rank 0's report may fail (disk full); like any failure between votes it ends the job through main */
    if (due(every->log, p->step) || p->step == run->total_steps || *stop) DT_TRY(report_step(run, p, position, in));
    if (skip && !vote.nonfinite) return DT_OK; /* a step without targets is no evidence of non-finite values */
    return run_judge_step(run, p, vote.nonfinite);
}

/* ---- between supersteps ------------------------------------------------------------------------------------------ */

/* The parts of a validation that are due after this step. */
static int due_parts(const dt_run *run, const progress *p, const cadence *every)
{
    const bool last = p->step == run->total_steps;
    return run_validation_parts(run) & ((due(every->validate, p->step) || last ? VALIDATE_DATA : 0) |
                                        (due(every->evaluate, p->step) || last ? VALIDATE_TASKS : 0));
}

/* An interrupted validation stays due. */
static dt_err validate(dt_run *run, progress *p, int parts, int *stop)
{
    validation_end end;
    DT_TRY(run_validate(run, p->step, parts, &end));
    p->validation_due = end.stop != STOP_NO;
    *stop = end.stop;
    if (end.stop)
        DT_INFO("the validation of step %" PRId64 " was interrupted after %" PRId64 " of %" PRId64
                " micro-batches per rank, and will be repeated",
                p->step, end.n_done, end.n);
    else
        run_best_take(run, parts, p);
    return DT_OK;
}

/* True if work other than a validation remains after the last step. */
static bool work_follows(const dt_run *run)
{
    return run->lora.r > 0 || strcmp(run->cfg.checkpoint_export, "none") != 0;
}

/* True if no step follows this one. */
static bool ends(const dt_run *run, const progress *p)
{
    return p->step >= run->total_steps || run_best_gives_up(run, p);
}

/* Validate and save if due. A stop request postpones a validation and leaves the loop; leave() then saves the state. */
static dt_err after_step(dt_run *run, progress *p, const cadence *every, int *stop)
{
    const bool last = p->step == run->total_steps;
    DT_TRY(run_save_go_on(run, p));
    const int parts = due_parts(run, p, every);
    const bool validate_now = parts != 0;
    p->validation_due = validate_now;
    if (last && !validate_now && !work_follows(run)) *stop = STOP_NO; /* the run is complete: nothing is left to stop */
    if (validate_now && !*stop) DT_TRY(validate(run, p, parts, stop));
    const bool done = ends(run, p), save = done || due(every->save, p->step) || run_best_is_new(run, p);
    const bool saves = save && p->saved_step != p->step;
    if (saves) DT_TRY(run_save(run, p, done || *stop));
    return (saves || validate_now) && !done && !*stop ? vote_on_stop(run, stop) : DT_OK;
}

/* A run without time for its first step would not get further in another start. */
static dt_err check_time_left(dt_run *run, const progress *p)
{
    return ends(run, p) ? DT_OK : dt_comm_agree(run->comm, run_stop_too_late(run));
}

/* Run the validation that the previous run postponed. If it does not fit even at the start of a run, it never will. */
static dt_err validate_first(dt_run *run, progress *p, const cadence *every, int *stop)
{
    const int parts = due_parts(run, p, every);
    if (!p->validation_due) return check_time_left(run, p);
    DT_INFO("the run starts with the validation of step %" PRId64 ", which was due when the run stopped", p->step);
    DT_TRY(validate(run, p, parts ? parts : run_validation_parts(run), stop)); /* 0: the intervals have changed */
    if (*stop == STOP_TIME_LIMIT)
        return dt_comm_agree(run->comm, dt_fail(DT_ERR_USAGE,
                                                "the validation of step %" PRId64
                                                " does not finish before %s, although the run started with it; give "
                                                "the run more time, or lower data.max_validation_samples",
                                                p->step, run_stop_name(&run->limit, *stop)));
    if (*stop) return DT_OK;
    run_count_progress(run);
    return run_save(run, p, false);
}

static dt_err say_stop(dt_run *run, const progress *p, int stop)
{
    char saved[120] = ", a checkpoint is written";
    if (p->saved_step < 0)
        snprintf(saved, sizeof saved, ", no checkpoint is written (checkpoint.save_on_signal = false)");
    else if (p->saved_step != p->step)
        snprintf(saved, sizeof saved,
                 ", no checkpoint is written (checkpoint.save_on_signal = false): the newest is of step %" PRId64,
                 p->saved_step);
    return dt_comm_agree(run->comm,
                         dt_fail(DT_ERR_STOP,
                                 "stopped by %s at step %" PRId64 " of %" PRId64 "%s%s; start it again to continue",
                                 run_stop_name(&run->limit, stop), p->step, run->total_steps, saved,
                                 p->validation_due ? ", its validation is still due" : ""));
}

/* The single exit of the loop for a stop request: saves the state unless it is already saved. */
static dt_err leave(dt_run *run, progress *p, int stop)
{
    DT_TRY(run_save_finish(run, p));
    if (run->cfg.checkpoint_save_on_signal && p->saved_step != p->step) DT_TRY(run_save(run, p, true));
    DT_TRY(run_judge_end(run, p));
    return say_stop(run, p, stop);
}

/* All steps are done, or early stopping has ended the loop. */
static dt_err complete(dt_run *run, progress *p)
{
    DT_TRY(run_save_finish(run, p));
    DT_TRY(run_judge_end(run, p));
    if (run_best_gives_up(run, p))
        DT_INFO("early stopping at step %" PRId64 " of %" PRId64 ": %" PRId64
                " validations did not improve on step %" PRId64 " (run.early_stopping_patience)",
                p->step, run->total_steps, p->n_not_better, p->best_step);
    return run_best_load(run, p);
}

static dt_err take_steps(dt_run *run, progress *p)
{
    interval in = {0};
    const cadence every = {.log = dt_interval_steps(run->cfg.log_logging_steps, run->total_steps),
                           .validate = dt_interval_steps(run->cfg.data_validation_steps, run->total_steps),
                           .evaluate = dt_interval_steps(run->cfg.eval_steps, run->total_steps),
                           .save = dt_interval_steps(run->cfg.checkpoint_save_steps, run->total_steps)};
    const int64_t first = p->first_step = p->step;
    int stop = STOP_NO;
    if (p->step > run->total_steps)
        DT_INFO("nothing to train: the checkpoint of step %" PRId64
                " is already past the end of the run at step %" PRId64,
                p->step, run->total_steps);
    else if (p->step == run->total_steps && !p->validation_due)
        DT_INFO("nothing to do: step %" PRId64 " of %" PRId64
                " is already done; to train on, raise run.max_steps or run.epochs; to start anew, set another "
                "run.output_dir",
                p->step, run->total_steps);
    DT_TRY(validate_first(run, p, &every, &stop));
    run_watch_next(run, p, false);
    while (!stop && !ends(run, p)) {
        const int64_t before = p->step;
        run->phase.stop_at_s = run_stop_at(run);
        DT_TRY(superstep(run, p, &in, &every, &stop));
        run->phase.stop_at_s = 0; /* the code after the loop handles the time limit itself */
        if (p->step == first + 1) run_say_overhead(run);
        if (p->step > before) DT_TRY(after_step(run, p, &every, &stop)); /* otherwise the step was abandoned */
    }
    return stop ? leave(run, p, stop) : complete(run, p);
}

/* However the loop ends, a stop must not lose a completed step. */
dt_err run_loop(dt_run *run, progress *p)
{
    const dt_err err = take_steps(run, p);
    if (err != DT_ERR_STOP || p->saved_step == p->step || !run->cfg.checkpoint_save_on_signal) return err;
    return dt_comm_agree(run->comm, dt_fail(DT_ERR_FAULT,
                                            "internal: run_loop: stopped at step %" PRId64
                                            " without a checkpoint of it; the newest is of step %" PRId64,
                                            p->step, p->saved_step));
}
