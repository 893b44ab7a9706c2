/* sums.h - named sums: what a step adds up over micro-steps and ranks, and the numbers that people are shown of them.
 *
 * Whoever counts something declares it by name at the start, and adds to it while a step runs. One vote (comm.h) then
 * brings all of it together, however much it is. A number that is shown is a sum, or one sum divided by another: both
 * are added up over all ranks and micro-steps first and divided once (algorithms.md, section 0), so that it depends on
 * neither. */
#ifndef DTRAIN_SUMS_H
#define DTRAIN_SUMS_H

#include "dtrain/comm/comm.h"

typedef enum dt_sum_kind {
    DT_SUM_UNITS,   /* an integer number of units, of any size: exact, so free of order */
    DT_SUM_LOSS,    /* exact, too, of numbers below 2^50 (see below); one that is not finite marks the sums */
    DT_SUM_REAL,    /* doubles, in the order of ranks */
    DT_SUM_LARGEST, /* of all ranks; a NaN wins */
    DT_SUM_LEAST,
    DT_SUM_MEAN /* the mean of the numbers that were added; a NaN says that there is none, and is the mean of none */
} dt_sum_kind;

/** A DT_SUM_LOSS is kept in two integers, what is below 16 in units of 2^-28 and the rest in units of 16, so that
 *  neither a diverging loss nor 10^19 nats of validation overflow: both parts of a number below 2^50 are exact, and a
 *  sum of 2^17 such numbers still fits. One beyond that, and one that is not finite, is left out and marks the sums. */
#define DT_LOSS_UNIT 0x1p-28
#define DT_LOSS_HIGH 0x1p4

enum { DT_SUM_NAME = 48 };
typedef struct dt_sum {
    char name[DT_SUM_NAME];
    dt_sum_kind kind;
    double unit; /* of DT_SUM_UNITS; else 1 */
    int at;      /* its value, or the first of two */
} dt_sum;

/** What is shown: top / bottom, 0 where bottom is 0; or without bottom the sum itself; or a variance. */
typedef struct dt_shown {
    char name[DT_SUM_NAME];
    int top, bottom;       /* bottom -1: none */
    int mean;              /* -1, or a sum: (mean / bottom)^2 is taken off top / bottom */
    double (*map)(double); /* NULL, or what is shown is this function of it */
} dt_shown;
typedef enum dt_show_when { DT_SHOW_TRAIN, DT_SHOW_VALIDATION, DT_N_SHOW } dt_show_when;

/** {0} to start from. */
typedef struct dt_sums {
    dt_sum *sum;
    int n_sums;
    dt_shown *shown[DT_N_SHOW]; /* in the order in which they were declared */
    int n_shown[DT_N_SHOW];
    dt_vote_value *step;  /* [n_values] this rank's, and after dt_sums_vote everybody's */
    dt_vote_value *total; /* [n_values] of the steps since dt_sums_clear_total */
    int n_values;
    int64_t n_steps; /* in total */
    bool nonfinite;  /* of step: a DT_SUM_LOSS */
    bool total_nonfinite;
    dt_err err; /* of a declaration; dt_sums_settle returns it */
} dt_sums;

/** Declare a sum, before dt_sums_settle; its number for dt_sums_add. A mistake (a name twice, or too long) is kept for
 *  dt_sums_settle. Local. */
int dt_sums_declare(dt_sums *s, const char *name, dt_sum_kind kind, double unit);
/** Declare what is shown of sums that were declared before; bottom NULL: of top alone. */
void dt_sums_show(dt_sums *s, dt_show_when when, const char *name, const char *top, const char *bottom,
                  double (*map)(double));
/** Of n numbers with these sums of their squares and of themselves the variance is shown, biased: squares / n - (sum /
 *  n)^2. */
void dt_sums_show_variance(dt_sums *s, dt_show_when when, const char *name, const char *squares, const char *sum,
                           const char *n);
/** The number of a sum, -1: there is none of that name. */
int dt_sums_find(const dt_sums *s, const char *name);

/** After the last declaration: all ranks have declared the same. Collective, agreed; comm NULL: this rank is alone.
 *  DT_ERR_FAULT naming the first that differs. Allocates the values, and room for the vote. */
dt_err dt_sums_settle(dt_sums *s, dt_comm *comm);
void dt_sums_close(dt_sums *s);

void dt_sums_clear(dt_sums *s);                  /* a new step, or a validation */
void dt_sums_add(dt_sums *s, int sum, double x); /* DT_SUM_UNITS: rounded to whole units, left out when not finite */
void dt_sums_count(dt_sums *s, int sum, int64_t n_units); /* DT_SUM_UNITS */

/** What a vote says of numbers that are not finite; the largest counts. An overflow of scaled gradients leaves the loss
 *  as it is. */
enum { DT_NONFINITE_GRADS = 1, DT_NONFINITE_LOSS };
/** Bring the step's values together, and in vote->nonfinite whether a loss is not finite. Collective; vote carries the
 *  rest. */
dt_err dt_sums_vote(dt_sums *s, dt_comm *comm, dt_vote *vote);

double dt_sums_value(const dt_sums *s, int sum); /* of the step; NAN for a marked DT_SUM_LOSS */
double dt_sums_shown(const dt_sums *s, const dt_shown *what);
const dt_shown *dt_sums_find_shown(const dt_sums *s, dt_show_when when, const char *name); /* NULL: none */

void dt_sums_add_to_total(dt_sums *s); /* the step, after its vote */
void dt_sums_clear_total(dt_sums *s);
/** Over the steps in total: quotients are of the sums over these steps; what has no bottom is the mean over the steps,
 *  but for a largest and a least, and a mean, which is over those steps that have one. */
double dt_sums_total(const dt_sums *s, int sum);
double dt_sums_shown_of_total(const dt_sums *s, const dt_shown *what);

#endif
