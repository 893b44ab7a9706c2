/* best.c - determine the best validation, and decide when early stopping ends the run. As in the Trainer of
 * transformers, the best validation is the first with the best metric, regardless of the threshold. A validation counts
 * as an improvement only if it improves on the best by more than the threshold. */
#include "run.h"
#include "dtrain/io/io.h"
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *metric_of(const dt_config *cfg) { return cfg->checkpoint_metric_for_best_model; }

static bool greater_wins(const dt_config *cfg)
{
    static const char *const least[] = {"loss", "perplexity", "entropy",       "cost",
                                        "kl",   "clipped",    "bits_per_byte", "stderr"};
    const char *word = cfg->checkpoint_greater_is_better;
    bool greater = true;
    if (strcmp(word, "auto") != 0) return !strcmp(word, "true");
    for (size_t i = 0; i < sizeof least / sizeof least[0]; i++) greater &= !strstr(metric_of(cfg), least[i]);
    return greater;
}

/* The metric by its name in validation lines, or without the prefix of the task or of benchmarks; NULL: no such
 * metric. */
static const dt_shown *find_metric(const dt_run *run)
{
    const char *const prefixes[] = {"", run->task.ops->name, "eval"};
    const dt_shown *what = NULL;
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0] && !what; i++) {
        char name[2 * DT_NAME_MAX];
        snprintf(name, sizeof name, "%s%s%s", prefixes[i], i ? "/" : "", metric_of(&run->cfg));
        what = dt_sums_find_shown(&run->sums, DT_SHOW_VALIDATION, name);
    }
    return what;
}

/* The part of a validation that has the metric. */
static int part_of_metric(const dt_run *run)
{
    const dt_shown *what = find_metric(run);
    const bool of_tasks =
        what && run->evals && what - run->sums.shown[DT_SHOW_VALIDATION] >= dt_evals_first_shown(run->evals);
    return of_tasks ? VALIDATE_TASKS : VALIDATE_DATA;
}

bool run_best_same_metric(const dt_config *a, const dt_config *b)
{
    return !strcmp(metric_of(a), metric_of(b)) && greater_wins(a) == greater_wins(b);
}

/* ---- keys ------------------------------------------------------------------------------------------------------- */

dt_err dt_best_intervals_check(const dt_config *cfg, int64_t total_steps, const char *key, double interval)
{
    const int64_t save = dt_interval_steps(cfg->checkpoint_save_steps, total_steps);
    const int64_t validate = dt_interval_steps(interval, total_steps);
    if (!cfg->checkpoint_load_best_model_at_end || save == 0 || (validate > 0 && save % validate == 0)) return DT_OK;
    if (save >= total_steps) return DT_OK; /* saves only at the end, where a validation also takes place */
    DT_CONFIG_CHECK(validate > 0, cfg, "checkpoint", "save_steps",
                    "load_best_model_at_end needs a validation at every save, but %s = 0; set %s = %" PRId64
                    " or a divisor of it",
                    key, key, save);
    if (save < validate)
        return dt_config_fail(cfg, "checkpoint", "save_steps",
                              "with load_best_model_at_end, expected a multiple of %s = %" PRId64 ", found %" PRId64
                              "; the nearest is %" PRId64,
                              key, validate, save, validate);
    return dt_config_fail(cfg, "checkpoint", "save_steps",
                          "with load_best_model_at_end, expected a multiple of %s = %" PRId64 ", found %" PRId64
                          "; the nearest are %" PRId64 " and %" PRId64,
                          key, validate, save, save / validate * validate, (save / validate + 1) * validate);
}

static dt_err check_metric(const dt_run *run)
{
    char names[1024] = "";
    const dt_sums *s = &run->sums;
    for (int i = 0; i < s->n_shown[DT_SHOW_VALIDATION]; i++) {
        const size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", s->shown[DT_SHOW_VALIDATION][i].name);
    }
    DT_CONFIG_CHECK(find_metric(run), &run->cfg, "checkpoint", "metric_for_best_model",
                    "expected a validation metric of this task: %s", names);
    return DT_OK;
}

dt_err run_best_check(const dt_run *run)
{
    const dt_config *cfg = &run->cfg;
    const char *section = cfg->checkpoint_load_best_model_at_end ? "checkpoint" : "run";
    const char *key = cfg->checkpoint_load_best_model_at_end ? "load_best_model_at_end" : "early_stopping_patience";
    const int parts = run_validation_parts(run);
    const bool wanted = cfg->checkpoint_load_best_model_at_end || cfg->run_early_stopping_patience;
    if (run->total_steps == 0) return DT_OK;
    /* validations are compared even if neither key is set */
    if (parts & VALIDATE_DATA || (parts && wanted)) DT_TRY(check_metric(run));
    if (!wanted) return DT_OK;
    const bool of_tasks = part_of_metric(run) == VALIDATE_TASKS, has = parts & part_of_metric(run);
    const double interval = of_tasks ? cfg->eval_steps : cfg->data_validation_steps;
    const char *steps = of_tasks ? "eval.steps" : "data.validation_steps";
    DT_CONFIG_CHECK(has || !*cfg->data_validation, cfg, section, key, "task %s has no validation", cfg->run_task);
    DT_CONFIG_CHECK(has || !parts, cfg, "checkpoint", "metric_for_best_model",
                    "%s needs data.validation, which is empty; set it to a metric of eval.tasks", metric_of(cfg));
    DT_CONFIG_CHECK(has, cfg, section, key, "needs data.validation, which is empty");
    DT_CONFIG_CHECK(!cfg->run_early_stopping_patience || interval > 0, cfg, "run", "early_stopping_patience",
                    "needs validations during the run; set %s", steps);
    return dt_best_intervals_check(cfg, run->total_steps, steps, interval);
}

/* ---- after a validation ----------------------------------------------------------------------------------------- */

/* A NaN is never the best and never an improvement. */
void run_best_take(const dt_run *run, int parts, progress *p)
{
    if (!find_metric(run) || !(parts & part_of_metric(run))) return;
    const double x = dt_sums_shown(&run->sums, find_metric(run)),
                 gain = greater_wins(&run->cfg) ? x - p->best_metric : p->best_metric - x;
    const bool first = p->best_step == 0 && !isnan(x), better = p->best_step > 0 && gain > 0;
    if (first || (better && fabs(gain) > run->cfg.run_early_stopping_threshold))
        p->n_not_better = 0;
    else
        p->n_not_better++;
    if (first || better) p->best_step = p->step, p->best_metric = x;
}

bool run_best_is_new(const dt_run *run, const progress *p)
{
    return run->cfg.checkpoint_load_best_model_at_end && p->best_step == p->step && p->step > 0;
}

bool run_best_gives_up(const dt_run *run, const progress *p)
{
    return run->cfg.run_early_stopping_patience > 0 && p->n_not_better >= run->cfg.run_early_stopping_patience;
}

/* ---- the best checkpoint ---------------------------------------------------------------------------------------- */

dt_err run_best_publish(dt_run *run, int64_t step)
{
    const char *dir = run->checkpoint_dir;
    dt_err err = dt_fault("best.publish");
    if (err == DT_OK && dt_comm_first(run->comm)) err = dt_checkpoint_point(dir, "best", step);
    err = dt_comm_agree(run->comm, err);
    if (err == DT_OK && dt_comm_first(run->comm)) dt_checkpoint_prune(dir, run->cfg.checkpoint_save_total_limit);
    return err;
}

dt_err run_best_settle(dt_run *run, progress *p)
{
    char path[PATH_MAX];
    const char *dir = run->checkpoint_dir;
    int64_t there = 1;
    dt_err err = DT_OK;
    if (!run->cfg.checkpoint_load_best_model_at_end) return DT_OK;
    if (dt_comm_first(run->comm) && p->best_step > 0) {
        err = dt_checkpoint_path(path, dir, p->best_step);
        there = err == DT_OK && dt_is_file(path);
        if (err == DT_OK && !there)
            DT_WARN("%s, the best checkpoint so far, is missing; the next validation sets a new best", path);
    }
    DT_TRY(dt_comm_agree(run->comm, err));
    DT_TRY(dt_comm_broadcast_host(run->comm, &there, sizeof there, 0));
    if (!there) p->best_step = 0, p->n_not_better = 0;
    if (dt_comm_first(run->comm) && dt_is_directory(dir)) err = dt_checkpoint_point(dir, "best", p->best_step);
    return dt_comm_agree(run->comm, err);
}

dt_err run_best_load(dt_run *run, const progress *p)
{
    if (!run->cfg.checkpoint_load_best_model_at_end || p->best_step == 0 || p->best_step == p->step) return DT_OK;
    char path[PATH_MAX];
    const dt_err err = dt_checkpoint_path(path, run->checkpoint_dir, p->best_step);
    DT_TRY(dt_comm_agree(run->comm, err == DT_OK ? dt_fault("best.load") : err));
    dt_saved_model models[DT_MAX_SAVED];
    const int n = run_list_saved(run, path, models);
    models[0].has_base = true;
    DT_TRY(dt_checkpoint_load_all(run->comm, models, n, path, &run->phase));
    DT_INFO("the best model is that of step %" PRId64 " (%s %.9g); its weights are loaded as the result", p->best_step,
            metric_of(&run->cfg), p->best_metric);
    return DT_OK;
}
