/* loop.c - the superstep: read, compute, exchange, agree, update, report, checkpoint.
 *
 * Ranks meet in one vote. What a rank learns alone (a signal, a time limit, a number that is not finite) becomes
 * everybody's decision there; what fails between votes and before the units' collectives are done cannot be voted on
 * and ends the job through main. */
#include "run.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/resource.h>

/* what the vote carries, besides err, stop, nonfinite and the objective's sums */
enum { SUM_SQUARES, SUM_TIME };
enum { MAX_STEP_TIME, MAX_DEVICE_MEMORY, MAX_HOST_MEMORY, MAX_TIME, MAX_MINUS_TIME = MAX_TIME + DT_N_TIME };

/* What is averaged between two records. */
typedef struct interval {
    double loss, seconds;
    dt_lm_sums sums; /* counts alone: the loss is a mean over steps */
    int64_t n_steps, n_skipped;
} interval;

typedef struct cadence {
    int64_t log, validate, save;
} cadence;

static double host_memory_peak(void)
{
    struct rusage ru;
    getrusage(RUSAGE_SELF, &ru);
    return (double)ru.ru_maxrss * 1024;
}

/* Room for one more step: steps differ in length, so twice a long one. */
static double next_step_s(dt_run *run, double step_s)
{
    run->step_s = fmax(step_s, 0.9 * run->step_s);
    return 2 * run->step_s;
}

static dt_err compute_step(dt_run *run, const progress *p, dt_lm_sums *sums)
{
    dt_step_counts counts;
    DT_TRY(dt_loader_step_counts(run->train, p->data_step, &counts));
    const int n_micro = dt_loader_n_micro(run->train, p->data_step);
    const double inv_norm = counts.weight_fixed > 0 ? 1 / ((double)counts.weight_fixed * DT_WEIGHT_UNIT) : 0;
    for (int a = 0; a < n_micro; a++) {
        const dt_batch *b = NULL;
        dt_phase_enter(&run->phase, "read", "train");
        DT_TRY(dt_loader_batch(run->train, p->data_step, a, &b));
        dt_zero_begin_micro(run->zero, a, n_micro);
        DT_TRY(
            dt_task_micro_step(run->model, &dt_objective_lm, b, &run->buffers, inv_norm, p->step, sums, &run->phase));
    }
    return DT_OK;
}

static dt_err agree_on_step(dt_run *run, dt_err err, const dt_lm_sums *sums, double sum_squares, double begin_s,
                            dt_vote *vote)
{
    double group_s[DT_N_TIME];
    dt_phase_enter(&run->phase, "agree", "");
    dt_timeline_take(run->timeline, group_s);
    const double step_s = dt_now_s() - begin_s;
    *vote = (dt_vote){.err = err,
                      .stop = run_stop_request(run, next_step_s(run, step_s)),
                      .nonfinite = sums->nonfinite || !isfinite(sum_squares)};
    dt_lm_sums_to_counts(sums, vote->counts);
    vote->sums[SUM_SQUARES] = sum_squares;
    vote->maxs[MAX_STEP_TIME] = step_s;
    vote->maxs[MAX_DEVICE_MEMORY] = (double)atomic_load(&run->ledger.total_peak);
    vote->maxs[MAX_HOST_MEMORY] = host_memory_peak();
    for (int g = 0; g < DT_N_TIME; g++) {
        vote->sums[SUM_TIME + g] = group_s[g];
        vote->maxs[MAX_TIME + g] = group_s[g];
        vote->maxs[MAX_MINUS_TIME + g] = -group_s[g];
    }
    DT_TRY(dt_comm_vote(run->comm, vote));
    return (dt_err)vote->err;
}

static dt_err update(dt_run *run, const progress *p, double lr, double norm)
{
    const dt_config *cfg = &run->cfg;
    double beta1, beta2;
    dt_phase_enter(&run->phase, "update", "");
    DT_TRY(run_betas(cfg, &beta1, &beta2));
    const double clip = cfg->optimizer_max_grad_norm > 0 ? fmin(1, cfg->optimizer_max_grad_norm / (norm + 1e-6)) : 1;
    const dt_optimizer_step step = {.lr = lr,
                                    .weight_decay = cfg->optimizer_weight_decay,
                                    .beta1 = beta1,
                                    .beta2 = beta2,
                                    .eps = cfg->optimizer_eps,
                                    .grad_scale = clip,
                                    .t = p->updates + 1};
    return dt_zero_update(run->zero, &step, NULL);
}

/* The metrics that go beside the fixed fields of a record; returns how many. */
static int more_metrics(const dt_run *run, const progress *p, const interval *in, const dt_vote *vote, dt_metric *more,
                        char names[][40])
{
    int n = 0;
    more[n++] = (dt_metric){"accuracy", dt_lm_accuracy(&in->sums)};
    more[n++] = (dt_metric){"entropy", dt_lm_mean_entropy(&in->sums)};
    more[n++] = (dt_metric){"epoch", (double)p->samples / (double)dt_loader_info(run->train)->n_samples};
    if (!run->cfg.log_wall_clock_breakdown) return n;
    for (int g = 0; g < DT_N_TIME; g++) {
        const double ms[3] = {-vote->maxs[MAX_MINUS_TIME + g] * 1e3, vote->sums[SUM_TIME + g] / run->nranks * 1e3,
                              vote->maxs[MAX_TIME + g] * 1e3};
        const char *const kind[3] = {"min", "mean", "max"};
        for (int k = 0; k < 3; k++, n++) {
            snprintf(names[n], sizeof names[n], "ms/%s_%s", dt_time_group_names[g], kind[k]);
            more[n] = (dt_metric){names[n], ms[k]};
        }
    }
    return n;
}

static dt_err report_step(dt_run *run, const progress *p, interval *in, const dt_vote *vote, double lr, double norm)
{
    dt_metric more[3 + 3 * DT_N_TIME];
    char names[3 + 3 * DT_N_TIME][40];
    const int n_more = more_metrics(run, p, in, vote, more, names);
    const dt_train_record rec = {.step = p->step,
                                 .loss = in->loss / (double)in->n_steps,
                                 .lr = lr,
                                 .grad_norm = norm,
                                 .tokens = p->tokens,
                                 .samples = p->samples,
                                 .step_time = in->seconds / (double)in->n_steps,
                                 .tokens_per_second = (double)in->sums.n_tok / in->seconds,
                                 .memory_device = (int64_t)vote->maxs[MAX_DEVICE_MEMORY],
                                 .memory_host = (int64_t)vote->maxs[MAX_HOST_MEMORY],
                                 .skipped = in->n_skipped > 0,
                                 .more = more,
                                 .n_more = n_more};
    *in = (interval){0};
    return dt_report_train(run->report, &rec);
}

static bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

/* One superstep; *stop: what the ranks agreed on. */
static dt_err superstep(dt_run *run, progress *p, interval *in, const cadence *every, int *stop)
{
    const double begin_s = dt_now_s();
    dt_lm_sums sums = {0};
    dt_vote vote;
    double sum_squares = 0;

    atomic_store(&run->phase.step, p->step + 1);
    dt_phase_enter(&run->phase, "read", "train");
    DT_TRY(dt_fault("step.begin"));
    DT_TRY(compute_step(run, p, &sums));
    dt_phase_enter(&run->phase, "norm", "");
    DT_TRY(dt_zero_grad_sum_squares(run->zero, &sum_squares));
    dt_err err = agree_on_step(run, dt_fault("step.agree"), &sums, sum_squares, begin_s, &vote);
    if (err != DT_OK) return err;
    *stop = vote.stop;

    const double norm = sqrt(vote.sums[SUM_SQUARES]), lr = dt_schedule_lr(&run->schedule, p->updates);
    const dt_lm_sums all = dt_lm_sums_from_counts(vote.counts, vote.nonfinite != 0);
    const bool skip = vote.nonfinite || all.weight_fixed == 0;
    if (skip)
        dt_zero_discard(run->zero);
    else
        DT_TRY(update(run, p, lr, norm));

    p->step++, p->data_step++, p->updates += !skip;
    p->samples += all.n_samples, p->tokens += all.n_tok;
    if (vote.nonfinite)
        p->skipped_in_row++;
    else if (!skip)
        p->skipped_in_row = 0; /* a step without targets says nothing about the numbers */
    in->loss += dt_lm_mean_loss(&all);
    in->seconds += dt_now_s() - begin_s, in->n_steps++;
    in->sums.n_tok += all.n_tok, in->sums.n_target += all.n_target, in->sums.n_hit += all.n_hit;
    in->sums.entropy_fixed += all.entropy_fixed, in->n_skipped += skip;

    err = DT_OK; /* rank 0's report may fail (disk full): as any failure between votes it ends the job through main */
    if (due(every->log, p->step) || p->step == run->total_steps || *stop)
        err = report_step(run, p, in, &vote, lr, norm);
    if (err == DT_OK && p->skipped_in_row >= run->cfg.run_max_skipped_steps)
        return dt_comm_agree(run->comm, dt_fail(DT_ERR_NONFINITE,
                                                "loss or gradients were not finite in %" PRId64
                                                " steps in a row, the last is step %" PRId64,
                                                p->skipped_in_row, p->step));
    return err;
}

/* ---- between supersteps ------------------------------------------------------------------------------------------ */

/* A save or a validation took its time: was there a request meanwhile? */
static dt_err vote_on_stop(dt_run *run, int *stop)
{
    dt_vote vote = {.err = dt_fault("loop.vote"), .stop = run_stop_request(run, 2 * run->step_s)};
    DT_TRY(dt_comm_vote(run->comm, &vote));
    *stop = vote.stop;
    return (dt_err)vote.err;
}

/* Interrupted: it stays due. */
static dt_err validate(dt_run *run, progress *p, int *stop)
{
    validation v;
    validation_end end;
    DT_TRY(run_validate(run, p->step, &v, &end));
    p->validation_due = end.stop != STOP_NO;
    *stop = end.stop;
    if (end.stop)
        DT_INFO("the validation of step %" PRId64 " was interrupted after %" PRId64 " of %" PRId64
                " micro-batches per rank and will be done again",
                p->step, end.n_done, end.n);
    else
        run_best_take(run, p, &v);
    return DT_OK;
}

/* What is left to do when the last step is done, besides a validation. */
static bool work_follows(const dt_run *run) { return strcmp(run->cfg.checkpoint_export, "none") != 0; }

/* Validate and save where it is time to. Whoever asked for a stop waits for a save alone: a validation is put off. */
static dt_err after_step(dt_run *run, progress *p, const cadence *every, bool last, int *stop)
{
    const bool validate_now = run->valid && (due(every->validate, p->step) || last);
    p->validation_due = validate_now;
    if (last && !validate_now && !work_follows(run)) *stop = STOP_NO; /* all is done: there is nothing left to stop */
    if (validate_now && !*stop) DT_TRY(validate(run, p, stop));
    const bool save = last || due(every->save, p->step) || run_best_is_new(run, p) || run_best_gives_up(run, p) ||
                      (*stop && run->cfg.checkpoint_save_on_signal);
    const bool saves = save && p->saved_step != p->step;
    if (saves) DT_TRY(run_save(run, p));
    return (saves || validate_now) && !last && !*stop ? vote_on_stop(run, stop) : DT_OK;
}

/* Do the validation that the previous run postponed. If it does not fit even at the start of a run, it never will. */
static dt_err validate_first(dt_run *run, progress *p, int *stop)
{
    if (!p->validation_due) return DT_OK;
    DT_INFO("the validation of step %" PRId64 " comes first: it was due when the run was stopped", p->step);
    DT_TRY(validate(run, p, stop));
    if (*stop == STOP_TIME_LIMIT)
        return dt_comm_agree(run->comm, dt_fail(DT_ERR_USAGE,
                                                "the validation of step %" PRId64
                                                " does not fit into %s although the run began with it: give "
                                                "more time, or a smaller data.max_validation_samples",
                                                p->step, run_stop_name(run, *stop)));
    return *stop ? DT_OK : run_save(run, p);
}

static dt_err say_stop(dt_run *run, const progress *p, int stop)
{
    return dt_comm_agree(run->comm,
                         dt_fail(DT_ERR_STOP,
                                 "stopped by %s at step %" PRId64 " of %" PRId64 "%s%s; start it again to continue",
                                 run_stop_name(run, stop), p->step, run->total_steps,
                                 p->saved_step == p->step ? ", a checkpoint is written" : "",
                                 p->validation_due ? ", its validation is still due" : ""));
}

dt_err run_loop(dt_run *run, progress *p)
{
    interval in = {0};
    const cadence every = {.log = dt_interval_steps(run->cfg.log_logging_steps, run->total_steps),
                           .validate = dt_interval_steps(run->cfg.data_validation_steps, run->total_steps),
                           .save = dt_interval_steps(run->cfg.checkpoint_save_steps, run->total_steps)};
    const int64_t first = p->step;
    int stop = STOP_NO;
    if (p->step >= run->total_steps && !p->validation_due)
        DT_INFO("nothing to do: step %" PRId64 " of %" PRId64 " is done", p->step, run->total_steps);
    DT_TRY(validate_first(run, p, &stop));
    while (p->step < run->total_steps && !stop && !run_best_gives_up(run, p)) {
        DT_TRY(superstep(run, p, &in, &every, &stop));
        DT_TRY(after_step(run, p, &every, p->step == run->total_steps, &stop));
    }
    if (p->step > first && p->skipped_in_row == p->step - first) /* a short run would end before max_skipped_steps */
        return dt_comm_agree(run->comm,
                             dt_fail(DT_ERR_NONFINITE,
                                     "loss or gradients were not finite in any of this run's %" PRId64 " steps",
                                     p->step - first));
    if (stop) return say_stop(run, p, stop);
    if (run_best_gives_up(run, p))
        DT_INFO("ended at step %" PRId64 " of %" PRId64 ": %" PRId64
                " validations were not better than that of step %" PRId64 " (run.early_stopping_patience)",
                p->step, run->total_steps, p->n_not_better, p->best_step);
    return run_best_load(run, p);
}
