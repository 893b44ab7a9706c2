/* nonfinite.c - steps with non-finite gradients: all ranks skip such a step and report its origin.
 *
 * The first non-finite unit is known without extra cost, because the norm has a result per unit. With several ranks,
 * those results describe a rank's shards of the sums. While steps are skipped, each rank therefore also checks its own
 * gradients before the reduction (dt_zero_watch). The rank is then known starting with the second such step. The check
 * is also on if a first non-finite step would be the run's last. */
#include "run.h"
#include <inttypes.h>
#include <math.h>

/* The first non-finite unit in the order of backward: the main model before auxiliary models, a later unit before an
 * earlier one, and the lowest rank first. Encoded as one number whose maximum the vote takes; -1: none. */
enum { MAX_UNITS = 1 << 20, MAX_RANKS = 1 << 24 };

static double rank_of_first(const dt_run *run, int model, int unit)
{
    if (unit < 0) return -1;
    const int64_t later = (int64_t)(run->n_trained - 1 - model) * MAX_UNITS + unit;
    return (double)(later * MAX_RANKS + MAX_RANKS - 1 - dt_comm_number(run->comm));
}

void run_declare_nonfinite(dt_run *run)
{
    run->counted.bad_own = dt_sums_declare(&run->sums, "nonfinite_own", DT_SUM_MAX, 1);
    run->counted.bad_sum = dt_sums_declare(&run->sums, "nonfinite_sum", DT_SUM_MAX, 1);
}

void run_note_nonfinite(dt_run *run)
{
    double own = -1, sum = -1;
    for (int i = 0; i < run->n_trained; i++) {
        const dt_nonfinite bad = dt_zero_nonfinite(run->trained[i]->zero);
        own = fmax(own, rank_of_first(run, i, bad.own_unit));
        sum = fmax(sum, rank_of_first(run, i, bad.sum_unit));
    }
    dt_sums_add(&run->sums, run->counted.bad_own, own);
    dt_sums_add(&run->sums, run->counted.bad_sum, sum);
}

/* "the gradients of unit h.3 on rank 2", from the result of the vote. */
static const char *describe(const dt_run *run, char *out, size_t size)
{
    const double own = dt_sums_value(&run->sums, run->counted.bad_own);
    const double first = own >= 0 ? own : dt_sums_value(&run->sums, run->counted.bad_sum);
    snprintf(out, size, "the gradients");
    if (first < 0) return out;
    const int64_t code = (int64_t)first, later = code / MAX_RANKS;
    const dt_trained *m = run->trained[run->n_trained - 1 - later / MAX_UNITS];
    const int len = snprintf(out, size, "the gradients of unit %s%s%s", m->units[later % MAX_UNITS].name,
                             m->name ? " of the " : "", m->name ? m->name : "");
    if (own >= 0)
        snprintf(out + len, size - (size_t)len, " on rank %d", (int)(MAX_RANKS - 1 - code % MAX_RANKS));
    else
        snprintf(out + len, size - (size_t)len, ", summed over the ranks,");
    return out;
}

/* Reports the first ten, then only powers of two. */
static bool is_reported(int64_t n) { return n <= 10 || (n & (n - 1)) == 0; }

static void report_skip(const dt_run *run, const progress *p, const char *what, double scale)
{
    char change[80] = "";
    if (!dt_comm_first(run->comm) || !is_reported(run->n_nonfinite)) return;
    if (run->scale.scaled && run->scale.scale != scale)
        snprintf(change, sizeof change, "; the loss scale is lowered from %g to %g", scale, run->scale.scale);
    else if (run->scale.scaled)
        snprintf(change, sizeof change, "; the loss scale stays %g", scale);
    DT_WARN("step %" PRId64 " is skipped: %s are not finite%s", p->step, what, change);
}

static dt_err give_up(const dt_run *run, const progress *p, const char *what, bool fits)
{
    if (!fits)
        return dt_fail(DT_ERR_NONFINITE,
                       "step %" PRId64
                       ": %s are not finite, even with the minimum loss scale of %g (precision.min_loss_scale)",
                       p->step, what, run->scale.scale);
    return dt_fail(DT_ERR_NONFINITE,
                   "loss or gradients were not finite in %" PRId64 " consecutive steps; in the last, step %" PRId64
                   ", %s were the first",
                   p->skipped_in_row, p->step, what);
}

/* True if no step of this run was finite. A short run ends before max_skipped_steps, and a dynamic scale may still be
 * decreasing to a value that works. */
static bool none_was_finite(const dt_run *run, const progress *p)
{
    return p->skipped_in_row == p->step - p->first_step && !run->scale.dynamic;
}

/* Would a non-finite next step end the run, or make run_judge_end fail? */
static bool ends_with_next(const dt_run *run, const progress *p)
{
    dt_loss_scale scale = run->scale;
    const bool fits = dt_loss_scale_next(&scale, true);
    if (p->step + 1 == run->total_steps && none_was_finite(run, p)) return true;
    return !fits || p->skipped_in_row + (scale.scale == run->scale.scale) >= run->cfg.run_max_skipped_steps;
}

void run_watch_next(dt_run *run, const progress *p, bool nonfinite)
{
    const bool on = nonfinite || ends_with_next(run, p);
    for (int i = 0; i < run->n_trained; i++) dt_zero_watch(run->trained[i]->zero, on);
}

dt_err run_judge_step(dt_run *run, progress *p, bool nonfinite)
{
    char *const what = p->bad_location;
    const double scale = run->scale.scale;
    const bool fits = dt_loss_scale_next(&run->scale, nonfinite);
    if (!nonfinite) p->skipped_in_row = 0;
    if (nonfinite) p->skipped_in_row += run->scale.scale == scale; /* lowering the scale does not count as a failure */
    run_watch_next(run, p, nonfinite);
    if (!nonfinite) return DT_OK;
    run->n_nonfinite++;
    describe(run, what, sizeof p->bad_location);
    report_skip(run, p, what, scale);
    if (fits && p->skipped_in_row < run->cfg.run_max_skipped_steps) return DT_OK;
    return dt_comm_agree(run->comm, give_up(run, p, what, fits));
}

dt_err run_judge_end(const dt_run *run, const progress *p)
{
    const int64_t n = p->step - p->first_step;
    if (n == 0 || !none_was_finite(run, p)) return DT_OK;
    return dt_comm_agree(run->comm, dt_fail(DT_ERR_NONFINITE,
                                            "loss or gradients were not finite in every step of this run (%" PRId64
                                            " in all); in the last, %s were the first",
                                            n, p->bad_location));
}
