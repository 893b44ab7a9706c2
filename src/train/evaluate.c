/* evaluate.c - the loss over a whole set, each sample once: exact sums over micro-batches and ranks, divided at the
 * end.
 *
 * A validation may take longer than a run has left. Every so many micro-steps, as many as take about half a second,
 * the ranks vote on whether to go on, so that all leave at the same one. A part of a validation is no result. */
#include "run.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

static const double VOTE_EVERY_S = 0.5;

static dt_err sum_over_ranks(dt_comm *comm, dt_lm_sums *s)
{
    dt_vote vote = {.nonfinite = s->nonfinite};
    dt_lm_sums_to_counts(s, vote.counts);
    DT_TRY(dt_comm_vote(comm, &vote));
    *s = dt_lm_sums_from_counts(vote.counts, vote.nonfinite != 0);
    return DT_OK;
}

/* When the next vote is: all ranks count alike, for they go by the slowest. */
typedef struct pace {
    int64_t next, interval;
    double since_s, gap_s;
} pace;

static dt_err vote_on_stop(dt_run *run, pace *p, int64_t done, int *stop)
{
    if (done < p->next) return DT_OK;
    dt_vote vote = {.err = dt_fault("validate.vote"),
                    .stop = run_stop_request(run, 2 * p->gap_s),
                    .maxs = {dt_now_s() - p->since_s}};
    dt_phase_enter(&run->phase, "agree", "validation");
    DT_TRY(dt_comm_vote(run->comm, &vote));
    if (vote.err != DT_OK) return (dt_err)vote.err;
    *stop = vote.stop;
    if (vote.maxs[0] > VOTE_EVERY_S)
        p->interval = p->interval > 1 ? p->interval / 2 : 1;
    else if (vote.maxs[0] < VOTE_EVERY_S / 2)
        p->interval *= 2;
    p->gap_s = vote.maxs[0];
    p->next = done + p->interval;
    p->since_s = dt_now_s();
    return DT_OK;
}

static dt_err sum_all(dt_run *run, dt_lm_sums *sums, validation_end *end)
{
    pace p = {.interval = 1, .since_s = dt_now_s()};
    *end = (validation_end){.n = dt_loader_n_eval(run->valid)};
    while (end->n_done < end->n) {
        const dt_batch *b = NULL;
        DT_TRY(vote_on_stop(run, &p, end->n_done, &end->stop));
        if (end->stop) return DT_OK;
        dt_phase_enter(&run->phase, "read", "validation");
        DT_TRY(dt_loader_eval_batch(run->valid, end->n_done, &b));
        DT_TRY(dt_task_evaluate(run->model, &dt_objective_lm, b, &run->buffers, sums, &run->phase));
        end->n_done++;
    }
    return DT_OK;
}

static void fill(validation *v, const dt_lm_sums *sums, double begin_s)
{
    const double loss = dt_lm_mean_loss(sums);
    *v = (validation){.n = 7,
                      .metrics = {{"validation_loss", loss},
                                  {"perplexity", exp(loss > 700 ? 700 : loss)},
                                  {"validation_accuracy", dt_lm_accuracy(sums)},
                                  {"validation_entropy", dt_lm_mean_entropy(sums)},
                                  {"validation_targets", (double)sums->n_target},
                                  {"validation_samples", (double)sums->n_samples},
                                  {"validation_time", dt_now_s() - begin_s}}};
}

dt_err run_validate(dt_run *run, int64_t step, validation *v, validation_end *end)
{
    dt_lm_sums sums = {0};
    const double begin_s = dt_now_s();
    *v = (validation){0};
    DT_TRY(sum_all(run, &sums, end));
    if (end->stop) return DT_OK;
    dt_phase_enter(&run->phase, "agree", "validation");
    DT_TRY(sum_over_ranks(run->comm, &sums));
    if (sums.weight_fixed <= 0)
        return dt_comm_agree(run->comm, dt_fail(DT_ERR_DATA, "[data] validation: there is no target token in it"));

    fill(v, &sums, begin_s);
    const double loss = v->metrics[0].value;
    const bool eval = run_is_eval(&run->cfg);
    if (eval && !strstr(run->cfg.log_report_to, "stdout")) /* the one result must be seen somewhere */
        DT_INFO("validation loss %.9g over %" PRId64 " targets", loss, sums.n_target);
    DT_TRY(dt_report_validation(run->report, step, loss, v->metrics + 1, v->n - 1));
    if (!sums.nonfinite || !eval) return DT_OK;
    return dt_comm_agree(run->comm, dt_fail(DT_ERR_NONFINITE, "the validation loss is not finite"));
}

dt_err run_evaluate(dt_run *run, int64_t step)
{
    validation v;
    validation_end end;
    DT_TRY(run_validate(run, step, &v, &end));
    if (!end.stop) return DT_OK;
    return dt_comm_agree(
        run->comm, dt_fail(DT_ERR_STOP,
                           "stopped by %s after %.0f %% of the validation (%" PRId64 " of %" PRId64
                           " micro-batches per rank): there is no result; start it again to evaluate anew",
                           run_stop_name(run, end.stop), 100 * (double)end.n_done / (double)end.n, end.n_done, end.n));
}
