/* evaluate.c - the loss over a whole dataset, each sample once: exact sums over micro-batches and ranks, divided at the
 * end.
 *
 * A validation may take longer than the remaining time. About every half second, the ranks vote on whether to continue,
 * so that all stop at the same micro-step. A partial validation has no result. */
#include "run.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

static const double VOTE_EVERY_S = 0.5;

/* The next vote. All ranks compute the same value, because it depends on the slowest rank. */
typedef struct pace {
    int64_t next, interval;
    double since_s, gap_s;
} pace;

static dt_err vote_on_stop(dt_run *run, pace *p, int64_t done, int *stop)
{
    if (done < p->next) return DT_OK;
    dt_vote_value gap_s = {.kind = DT_VOTE_MAX, .real = dt_now_s() - p->since_s};
    const dt_err err = dt_fault("validate.vote");
    dt_vote vote = {.err = err, .stop = run_stop_request(run, 2 * p->gap_s), .values = &gap_s, .n_values = 1};
    dt_phase_enter(&run->phase, "agree", "validation");
    DT_TRY(dt_comm_vote(run->comm, &vote));
    if (vote.err != DT_OK) return (dt_err)vote.err;
    *stop = vote.stop;
    if (gap_s.real > VOTE_EVERY_S)
        p->interval = p->interval > 1 ? p->interval / 2 : 1;
    else if (gap_s.real < VOTE_EVERY_S / 2)
        p->interval *= 2;
    p->gap_s = gap_s.real;
    p->next = done + p->interval;
    p->since_s = dt_now_s();
    return DT_OK;
}

/* The task was asked to stop during the validation, on all ranks. */
static dt_err leave(validation_end *end)
{
    dt_error_clear();
    end->stop = STOP_SIGNAL;
    return DT_OK;
}

int run_validation_parts(const dt_run *run)
{
    return (run->task.n_validation > 0 ? VALIDATE_DATA : 0) | (run->evals ? VALIDATE_TASKS : 0);
}

static dt_err sum_all(dt_run *run, int parts, validation_end *end)
{
    pace p = {.interval = 1, .since_s = dt_now_s()};
    const int64_t n_data = parts & VALIDATE_DATA ? run->task.n_validation : 0;
    *end = (validation_end){.n = n_data + (parts & VALIDATE_TASKS ? dt_evals_n_micro(run->evals) : 0)};
    while (end->n_done < end->n) {
        DT_TRY(vote_on_stop(run, &p, end->n_done, &end->stop));
        if (end->stop) return DT_OK;
        const dt_err err = end->n_done < n_data ? dt_task_evaluate(&run->task, end->n_done)
                                                : dt_evals_micro(run->evals, &run->task, end->n_done - n_data);
        if (err == DT_ERR_STOP && dt_comm_failed_together(run->comm)) return leave(end);
        DT_TRY(err);
        end->n_done++;
    }
    return DT_OK;
}

/* The first metric is the loss; NaN without the part VALIDATE_DATA. Metrics of benchmarks are the last ones. */
static dt_err report(dt_run *run, int64_t step, int parts, double begin_s)
{
    const dt_sums *s = &run->sums;
    const int n_shown = s->n_shown[DT_SHOW_VALIDATION],
              n_data = run->evals ? dt_evals_first_shown(run->evals) : n_shown;
    int n = 0;
    if (!(parts & VALIDATE_DATA)) run->shown[n++] = (dt_metric){"validation_loss", NAN};
    for (int i = 0; i < n_shown; i++) {
        const dt_shown *what = &s->shown[DT_SHOW_VALIDATION][i];
        if (parts & (i < n_data ? VALIDATE_DATA : VALIDATE_TASKS))
            run->shown[n++] = (dt_metric){what->name, dt_sums_shown(s, what)};
    }
    dt_phase_enter(&run->phase, "report", "validation");
    DT_TRY(dt_fault("validate.report"));
    run->shown[n++] = (dt_metric){"validation_time", dt_now_s() - begin_s};
    return dt_report_validation(run->report, step, run->shown[0].value, run->shown + 1, n - 1);
}

/* With a catalogue the loss is minus the gain of all items found, so HR and NDCG are printed instead. */
static bool say_items(const dt_sums *s)
{
    char text[1024] = "";
    for (int i = 0; i < s->n_shown[DT_SHOW_VALIDATION]; i++) {
        const dt_shown *x = &s->shown[DT_SHOW_VALIDATION][i];
        const bool hit = strncmp(x->name, "rec/hr@", 7) == 0, gain = strncmp(x->name, "rec/ndcg@", 9) == 0;
        const size_t n = strlen(text);
        if (hit || gain)
            snprintf(text + n, sizeof text - n, "  %s@%s %.6g", hit ? "HR" : "NDCG", strchr(x->name, '@') + 1,
                     dt_unsigned_nan(dt_sums_shown(s, x)));
    }
    if (*text) DT_INFO("validation%s", text);
    return *text;
}

static void say_result(const dt_sums *s, const dt_shown *loss)
{
    if (say_items(s)) return;
    const int targets = dt_sums_find(s, "targets");
    if (targets >= 0)
        DT_INFO("validation loss %.9g over %.0f targets", dt_unsigned_nan(dt_sums_shown(s, loss)),
                dt_sums_value(s, targets));
    else
        DT_INFO("validation loss %.9g", dt_unsigned_nan(dt_sums_shown(s, loss)));
}

dt_err run_validate(dt_run *run, int64_t step, int parts, validation_end *end)
{
    dt_sums *s = &run->sums;
    dt_vote vote = {0};
    const double begin_s = dt_now_s();
    dt_sums_clear(s);
    DT_TRY(sum_all(run, parts, end));
    if (end->stop) return DT_OK;
    dt_phase_enter(&run->phase, "agree", "validation");
    DT_TRY(dt_sums_vote(s, run->comm, &vote));
    const dt_shown *loss = &s->shown[DT_SHOW_VALIDATION][0];
    if (parts & VALIDATE_DATA && loss->bottom >= 0 && dt_sums_value(s, loss->bottom) <= 0)
        return dt_comm_agree(run->comm, dt_fail(DT_ERR_DATA, "[data] validation: expected target tokens, found none"));

    const bool alone = !run_trains(run);
    if (alone && parts & VALIDATE_DATA &&
        !strstr(run->cfg.log_report_to, "stdout")) /* the only result must be visible */
        say_result(s, loss);
    DT_TRY(report(run, step, parts, begin_s));
    if (!s->nonfinite || !alone) return DT_OK;
    return dt_comm_agree(run->comm, dt_fail(DT_ERR_NONFINITE, "the validation loss is not finite"));
}

dt_err run_evaluate(dt_run *run, int64_t step)
{
    validation_end end;
    DT_TRY(run_validate(run, step, run_validation_parts(run), &end));
    if (!end.stop) return DT_OK;
    const bool limit = end.stop == STOP_TIME_LIMIT; /* known since the start */
    return dt_comm_agree(run->comm, dt_fail(limit ? DT_ERR_USAGE : DT_ERR_STOP,
                                            "stopped by %s after %.0f %% of the validation (%" PRId64 " of %" PRId64
                                            " micro-batches per rank), without a result; %s",
                                            run_stop_name(&run->limit, end.stop),
                                            100 * (double)end.n_done / (double)end.n, end.n_done, end.n,
                                            limit ? "give the run more time, or lower data.max_validation_samples"
                                                  : "start it again to repeat the evaluation"));
}
