/* pair_loss.h - the loss of one pair of rewards (algorithms.md 2). Private to src/task. */
#ifndef DTRAIN_TASK_PAIR_LOSS_H
#define DTRAIN_TASK_PAIR_LOSS_H

#include "dtrain/data/dataset.h"
#include <math.h>

typedef enum dt_pair_loss_type { DT_PAIR_SIGMOID, DT_PAIR_HINGE } dt_pair_loss_type;

typedef struct dt_pair_loss {
    dt_pair_loss_type type;
    double label_smoothing; /* epsilon */
    double center;          /* c */
    double w_cls;           /* 0: no safety term */
    double w_tie;
} dt_pair_loss;

/** Labels of a pair. */
typedef struct dt_pair_labels {
    double margin;
    bool tie;                   /* neither answer is better */
    uint8_t safety[DT_N_SIDES]; /* dt_safety */
} dt_pair_labels;

/** With d = reward[0] - reward[1] - margin for the chosen and the rejected answer:
 *
 *     tie      w_tie (reward[0] - reward[1])^2                             (arXiv 2502.10391)
 *     sigmoid  -(1 - epsilon) log sigmoid(d) - epsilon log sigmoid(-d)     (Bradley and Terry; arXiv 2203.02155)
 *     hinge    max(0, -d)
 *     all      + c (reward[0] + reward[1])^2                               (arXiv 2312.09244)
 *              + w_cls sum over answers of -log sigmoid(s reward), s = 1 safe, -1 unsafe (arXiv 2310.12773)
 *
 *  Returns the loss; gradient [2]: its derivatives by the rewards. */
double dt_pair_loss_of(const dt_pair_loss *l, const double reward[DT_N_SIDES], const dt_pair_labels *labels,
                       double gradient[DT_N_SIDES]);

/** A value of a pair. */
typedef struct dt_pair_key {
    double x;
    int64_t pair;
} dt_pair_key;
/** Sort by ascending x, equal ones by pair. */
void dt_pair_keys_sort(dt_pair_key *key, int64_t n);

/** log sigmoid(x), without overflow. */
double dt_log_sigmoid(double x);
double dt_sigmoid(double x);

/** A non-negative estimator of the KL divergence at a token sampled from the policy, with d = log reference - log
 *  policy (http://joschu.net/blog/kl-approx.html): e^d - 1 - d. */
static inline double dt_k3(double d) { return expm1(d) - d; }
/** Its derivative by the policy's log-probability: 1 - e^d. */
static inline double dt_k3_slope(double d) { return -expm1(d); }
/** Another one: d^2 / 2, with the derivative -d. */
static inline double dt_k2(double d) { return d * d / 2; }

#endif
