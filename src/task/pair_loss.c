/* pair_loss.c - the loss of one pair of rewards, and its derivatives. */
#include "pair_loss.h"
#include <math.h>
#include <stdlib.h>

static int compare(const void *x, const void *y)
{
    const dt_pair_key *a = x, *b = y;
    if (a->x != b->x) return a->x < b->x ? -1 : 1;
    return a->pair < b->pair ? -1 : a->pair > b->pair;
}

void dt_pair_keys_sort(dt_pair_key *key, int64_t n) { qsort(key, (size_t)n, sizeof *key, compare); }

double dt_log_sigmoid(double x) { return fmin(x, 0) - log1p(exp(-fabs(x))); }
double dt_sigmoid(double x) { return exp(dt_log_sigmoid(x)); }

/* The term that depends only on the difference of the rewards; *slope: its derivative. */
static double preference(const dt_pair_loss *l, double difference, const dt_pair_labels *labels, double *slope)
{
    const double e = l->label_smoothing, d = difference - labels->margin;
    if (labels->tie) {
        *slope = 2 * l->w_tie * difference;
        return l->w_tie * difference * difference;
    }
    if (l->type == DT_PAIR_HINGE) {
        *slope = d < 0 ? -1 : 0;
        return fmax(0, -d);
    }
    *slope = -(1 - e) * dt_sigmoid(-d) + e * dt_sigmoid(d);
    return -(1 - e) * dt_log_sigmoid(d) - e * dt_log_sigmoid(-d);
}

double dt_pair_loss_of(const dt_pair_loss *l, const double reward[DT_N_SIDES], const dt_pair_labels *labels,
                       double gradient[DT_N_SIDES])
{
    const double sum = reward[0] + reward[1];
    double slope;
    double loss = preference(l, reward[0] - reward[1], labels, &slope) + l->center * sum * sum;
    gradient[0] = slope + 2 * l->center * sum;
    gradient[1] = -slope + 2 * l->center * sum;
    for (int side = 0; side < DT_N_SIDES; side++) {
        if (labels->safety[side] == DT_SAFETY_UNKNOWN) continue;
        const double s = labels->safety[side] == DT_SAFETY_SAFE ? 1 : -1;
        loss -= l->w_cls * dt_log_sigmoid(s * reward[side]);
        gradient[side] -= l->w_cls * s * dt_sigmoid(-s * reward[side]);
    }
    return loss;
}
