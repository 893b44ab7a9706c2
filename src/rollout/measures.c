/* measures.c - metrics of a rollout. Every rank holds the full rollout, so each counts only its own rows. */
#include "rollout_private.h"
#include <math.h>

static const double MOST_RATIO = 0x1p20; /* the limit of a real sum is 2^63 units of 2^-40, i.e. 2^23 */

static int declare(dt_sums *s, const char *prefix, const char *name, dt_sum_kind kind, double unit)
{
    char full[2 * DT_SUM_NAME];
    snprintf(full, sizeof full, "%s/%s", prefix, name);
    return dt_sums_declare(s, full, kind, unit);
}

static void show(dt_sums *s, const char *prefix, const char *name, int top, int bottom, double (*map)(double))
{
    char full[2 * DT_SUM_NAME];
    snprintf(full, sizeof full, "%s/%s", prefix, name);
    dt_sums_show(s, DT_SHOW_TRAIN, full, s->sum[top].name, bottom < 0 ? NULL : s->sum[bottom].name, map);
}

/* Minimum and maximum of an empty set are 0. */
static double finite_or_zero(double x) { return isfinite(x) ? x : 0; }

static void show_sampling(const dt_rollout *r, dt_sums *s, const char *prefix)
{
    show(s, prefix, "sampling/sampling_logp_difference/mean", r->sums.gap, r->sums.gap_tok, NULL);
    show(s, prefix, "sampling/sampling_logp_difference/max", r->sums.gap_largest, -1, finite_or_zero);
    show(s, prefix, "sampling/importance_sampling_ratio/min", r->sums.ratio_least, -1, finite_or_zero);
    show(s, prefix, "sampling/importance_sampling_ratio/mean", r->sums.ratio, r->sums.n_ratios, NULL);
    show(s, prefix, "sampling/importance_sampling_ratio/max", r->sums.ratio_largest, -1, finite_or_zero);
}

static void show_turns(const dt_rollout *r, dt_sums *s, const char *prefix)
{
    show(s, prefix, "environment/turns", r->sums.n_turns, r->sums.n, NULL);
    show(s, prefix, "environment/observed_tokens", r->sums.n_observed, r->sums.n, NULL);
    if (!r->opt.turns) return; /* a file of completions does not tell */
    show(s, prefix, "time/environment", r->sums.turn_seconds, -1, finite_or_zero);
    show(s, prefix, "tools/call_frequency", r->sums.n_calls, r->sums.n, NULL);
    show(s, prefix, "tools/failure_frequency", r->sums.n_failures, r->sums.n_calls, NULL);
}

void dt_rollout_declare(dt_rollout *r, dt_sums *s, const char *prefix)
{
    r->sums.n = declare(s, prefix, "completions", DT_SUM_UNITS, 1);
    r->sums.n_tok = declare(s, prefix, "completion_tokens", DT_SUM_UNITS, 1);
    r->sums.least = declare(s, prefix, "completion_least", DT_SUM_MIN, 1);
    r->sums.largest = declare(s, prefix, "completion_largest", DT_SUM_MAX, 1);
    r->sums.n_cut = declare(s, prefix, "completions_cut", DT_SUM_UNITS, 1);
    r->sums.n_ended = declare(s, prefix, "completions_ended", DT_SUM_UNITS, 1);
    r->sums.ended_tok = declare(s, prefix, "ended_tokens", DT_SUM_UNITS, 1);
    r->sums.ended_least = declare(s, prefix, "ended_least", DT_SUM_MIN, 1);
    r->sums.ended_largest = declare(s, prefix, "ended_largest", DT_SUM_MAX, 1);
    r->sums.n_turns = declare(s, prefix, "turns", DT_SUM_UNITS, 1);
    r->sums.n_calls = declare(s, prefix, "tool_calls", DT_SUM_UNITS, 1);
    r->sums.n_failures = declare(s, prefix, "tool_failures", DT_SUM_UNITS, 1);
    r->sums.n_observed = declare(s, prefix, "observed_tokens", DT_SUM_UNITS, 1);
    r->sums.turn_seconds = declare(s, prefix, "turn_seconds", DT_SUM_MAX, 1);
    r->sums.gap = declare(s, prefix, "gap", DT_SUM_UNITS, 0x1p-40);
    r->sums.gap_tok = declare(s, prefix, "gap_tokens", DT_SUM_UNITS, 1);
    r->sums.gap_largest = declare(s, prefix, "gap_largest", DT_SUM_MAX, 1);
    r->sums.ratio = declare(s, prefix, "sampling_ratio", DT_SUM_UNITS, 0x1p-40);
    r->sums.n_ratios = declare(s, prefix, "sampling_ratios", DT_SUM_UNITS, 1);
    r->sums.ratio_least = declare(s, prefix, "sampling_ratio_least", DT_SUM_MIN, 1);
    r->sums.ratio_largest = declare(s, prefix, "sampling_ratio_largest", DT_SUM_MAX, 1);
    r->sums.seconds = declare(s, prefix, "rollout_seconds", DT_SUM_MAX, 1);
    r->sums.score_seconds = declare(s, prefix, "score_seconds", DT_SUM_MAX, 1);
    r->sums.reward_seconds = declare(s, prefix, "reward_seconds", DT_SUM_MAX, 1);
    if (s->err != DT_OK) return; /* reported by dt_sums_settle */
    show(s, prefix, "completions/mean_length", r->sums.n_tok, r->sums.n, NULL);
    show(s, prefix, "completions/min_length", r->sums.least, -1, finite_or_zero);
    show(s, prefix, "completions/max_length", r->sums.largest, -1, finite_or_zero);
    show(s, prefix, "completions/clipped_ratio", r->sums.n_cut, r->sums.n, NULL);
    show(s, prefix, "completions/mean_terminated_length", r->sums.ended_tok, r->sums.n_ended, NULL);
    show(s, prefix, "completions/min_terminated_length", r->sums.ended_least, -1, finite_or_zero);
    show(s, prefix, "completions/max_terminated_length", r->sums.ended_largest, -1, finite_or_zero);
    if (rollout_has_turns(r)) show_turns(r, s, prefix);
    if (!r->opt.by_other) show_sampling(r, s, prefix); /* another model is not scored */
    show(s, prefix, "time/rollout", r->sums.seconds, -1, finite_or_zero);
    show(s, prefix, "time/score", r->sums.score_seconds, -1, finite_or_zero);
    show(s, prefix, "time/reward", r->sums.reward_seconds, -1, finite_or_zero);
}

static void count_row(const dt_rollout *r, dt_sums *s, const dt_rollout_row *row)
{
    dt_sums_count(s, r->sums.n, 1);
    dt_sums_count(s, r->sums.n_tok, row->n_new);
    dt_sums_add(s, r->sums.least, row->n_new);
    dt_sums_add(s, r->sums.largest, row->n_new);
    dt_sums_count(s, row->ended ? r->sums.n_ended : r->sums.n_cut, 1);
    dt_sums_count(s, r->sums.n_turns, row->n_turns);
    dt_sums_count(s, r->sums.n_calls, row->n_calls);
    dt_sums_count(s, r->sums.n_failures, row->n_failures);
    dt_sums_count(s, r->sums.n_observed, row->n_observed);
    if (!row->ended) return;
    dt_sums_count(s, r->sums.ended_tok, row->n_new);
    dt_sums_add(s, r->sums.ended_least, row->n_new);
    dt_sums_add(s, r->sums.ended_largest, row->n_new);
}

/* Count |log p by the sampler - log p by the scorer| of each token of a completion. Count the ratio of the whole
 * completion's probabilities, scorer over sampler. */
static void count_gap(const dt_rollout *r, dt_sums *s, int64_t row, const float *scored)
{
    const float *sampled = r->sampled.at + row * r->sampled.ld;
    double sum = 0, largest = 0, log_ratio = 0;
    if (*r->opt.from_file || isnan(sampled[0])) return; /* no sampler, or it did not generate this completion */
    for (int32_t k = 0; k < r->row[row].n_new; k++) {
        const double more = (double)scored[k] - (double)sampled[k], gap = fabs(more);
        sum += gap, largest = fmax(largest, gap), log_ratio += more;
    }
    dt_sums_add(s, r->sums.gap, sum);
    dt_sums_count(s, r->sums.gap_tok, r->row[row].n_new);
    dt_sums_add(s, r->sums.gap_largest, largest);
    const double ratio = fmin(exp(log_ratio), MOST_RATIO);
    dt_sums_add(s, r->sums.ratio, ratio);
    dt_sums_count(s, r->sums.n_ratios, 1);
    dt_sums_add(s, r->sums.ratio_least, ratio);
    dt_sums_add(s, r->sums.ratio_largest, ratio);
}

void dt_rollout_count_reward_time(dt_rollout *r, double seconds) { r->reward_seconds += seconds; }

void dt_rollout_collect(const dt_rollout *r, dt_task *t)
{
    const rollout_floats *scored = r->policy < 0 ? NULL : &r->array[r->policy];
    for (int64_t i = 0; i < r->n_rows; i++) {
        if (!dt_rollout_is_mine(r, t, i)) continue;
        count_row(r, t->sums, &r->row[i]);
        if (scored) count_gap(r, t->sums, i, scored->at + i * scored->ld);
    }
    dt_sums_add(t->sums, r->sums.seconds, r->seconds);
    dt_sums_add(t->sums, r->sums.score_seconds, r->score_seconds);
    dt_sums_add(t->sums, r->sums.reward_seconds, r->reward_seconds);
    dt_sums_add(t->sums, r->sums.turn_seconds, r->turn_seconds);
}

void dt_rollout_compare(const dt_rollout *r, dt_task *t, const dt_batch *b, const int64_t *row, const float *logp)
{
    for (int32_t s = 0; s < b->n_seq; s++) count_gap(r, t->sums, row[s], logp + b->seq_target[s]);
}
