/* evaluate.c - the loss over a whole set, each sample once: exact sums over micro-batches and ranks, divided at the end. */
#include "run.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

static dt_err sum_over_ranks(dt_comm *comm, dt_lm_sums *s)
{
    dt_vote vote = {.nonfinite = s->nonfinite};
    dt_lm_sums_to_counts(s, vote.counts);
    DT_TRY(dt_comm_vote(comm, &vote));
    *s = dt_lm_sums_from_counts(vote.counts, vote.nonfinite != 0);
    return DT_OK;
}

dt_err run_validate(dt_run *run, int64_t step)
{
    dt_lm_sums sums = {0};
    const double begin_s = dt_now_s();
    const int64_t n = dt_loader_n_eval(run->valid);
    for (int64_t i = 0; i < n; i++) {
        const dt_batch *b = NULL;
        dt_phase_enter(&run->phase, "read", "validation");
        DT_TRY(dt_loader_eval_batch(run->valid, i, &b));
        DT_TRY(dt_task_evaluate(run->model, &dt_objective_lm, b, &run->buffers, &sums, &run->phase));
    }
    dt_phase_enter(&run->phase, "agree", "validation");
    DT_TRY(sum_over_ranks(run->comm, &sums));
    if (sums.weight_fixed <= 0) return dt_comm_agree(run->comm, dt_fail(DT_ERR_DATA, "[data] validation: there is no target token in it"));

    const double loss = dt_lm_mean_loss(&sums);
    const dt_metric more[] = {{"perplexity", exp(loss > 700 ? 700 : loss)},
                              {"validation_accuracy", dt_lm_accuracy(&sums)},
                              {"validation_entropy", dt_lm_mean_entropy(&sums)},
                              {"validation_targets", (double)sums.n_target},
                              {"validation_samples", (double)sums.n_samples},
                              {"validation_time", dt_now_s() - begin_s}};
    if (!strcmp(run->cfg.run_task, "eval") && !strstr(run->cfg.log_report_to, "stdout")) /* the one result must be seen somewhere */
        DT_INFO("validation loss %.9g over %" PRId64 " targets", loss, sums.n_target);
    DT_TRY(dt_report_validation(run->report, step, loss, more, sizeof more / sizeof more[0]));
    DT_CHECK(!sums.nonfinite || strcmp(run->cfg.run_task, "eval") != 0, DT_ERR_NONFINITE, "the validation loss is not finite");
    return DT_OK;
}
