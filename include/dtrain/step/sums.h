/* sums.h - named sums: what a step accumulates over micro-steps and ranks, and the metrics computed from them.
 *
 * Each counter is declared by name at the start, and added to during a step. One vote (comm.h) then combines all of
 * them over the ranks. A metric is a sum, or the quotient of two sums. Both are first summed over
 * all ranks and micro-steps, then divided once (algorithms.md, section 0). The metric therefore does not depend on how
 * samples are distributed over ranks and micro-steps.
 *
 * Functions are Local unless stated otherwise. A sum is identified by the index that dt_sums_declare returned. */
#ifndef DTRAIN_SUMS_H
#define DTRAIN_SUMS_H

#include "dtrain/comm/comm.h"

/** How a sum is accumulated and combined. UNITS and LOSS are of samples: of the ranks of the axis tp, which compute the
 *  same, the first adds them. The other kinds are of ranks. */
typedef enum dt_sum_kind {
    DT_SUM_UNITS, /* a whole number of units, of any size: exact, independent of order */
    DT_SUM_LOSS,  /* exact for values below 2^50; a non-finite or larger value marks the sums */
    DT_SUM_REAL,  /* doubles, added in rank order */
    DT_SUM_MAX,   /* maximum over all ranks; NaN if any value is NaN */
    DT_SUM_MIN,   /* minimum, likewise */
    DT_SUM_MEAN   /* mean of the values added; NaN values are skipped; NaN if there is none */
} dt_sum_kind;

/** A DT_SUM_LOSS is stored as two integers: the remainder modulo 16 in units of 2^-28, and the rest in units of 16.
 *  Both are exact for a value below 2^50, and a sum of 2^17 such values fits, so that neither a diverging loss nor
 *  10^19 nats of validation overflow. Larger and non-finite values are omitted and mark the sums. */
#define DT_LOSS_UNIT 0x1p-28
#define DT_LOSS_HIGH 0x1p4

enum { DT_SUM_NAME = 96 };
/** A declared sum. */
typedef struct dt_sum {
    char name[DT_SUM_NAME];
    dt_sum_kind kind;
    double unit; /* of DT_SUM_UNITS; else 1 */
    int at;      /* index of its value, or of the first of two */
} dt_sum;

/** A metric: top / bottom, 0 if bottom is 0; or, without bottom, the sum itself; or a variance; or a difference. */
typedef struct dt_shown {
    char name[DT_SUM_NAME];
    int top, bottom;       /* bottom -1: none */
    int mean;              /* -1, or a sum: (mean / bottom)^2 is subtracted from top / bottom */
    int less, less_bottom; /* -1, or two sums: less / less_bottom is subtracted */
    double (*map)(double); /* applied to the result; may be NULL */
} dt_shown;
/** Where a metric appears: in training steps or in validations. */
typedef enum dt_show_when { DT_SHOW_TRAIN, DT_SHOW_VALIDATION, DT_N_SHOW } dt_show_when;

/** All sums and metrics of a run. {0} to begin; closed with dt_sums_close. */
typedef struct dt_sums {
    dt_sum *sum;
    int n_sums;
    dt_shown *shown[DT_N_SHOW]; /* in the order in which they were declared */
    int n_shown[DT_N_SHOW];
    dt_vote_value *step;  /* [n_values] this rank's; after dt_sums_vote the combined values */
    dt_vote_value *total; /* [n_values] of the steps since dt_sums_clear_total */
    int n_values;
    int64_t n_steps; /* in total */
    bool nonfinite;  /* of step: a DT_SUM_LOSS */
    bool total_nonfinite;
    dt_err err; /* first error of a declaration; returned by dt_sums_settle */
} dt_sums;

/** Declare a sum, before dt_sums_settle. unit: of DT_SUM_UNITS, else 1. Returns its index. An error (name used twice or
 *  too long, no memory) is kept for dt_sums_settle. */
int dt_sums_declare(dt_sums *s, const char *name, dt_sum_kind kind, double unit);
/** Declare the metric map(top / bottom), of sums that are declared already. bottom NULL: top only. map may be NULL.
 *  Errors are kept for dt_sums_settle. */
void dt_sums_show(dt_sums *s, dt_show_when when, const char *name, const char *top, const char *bottom,
                  double (*map)(double));
/** Declare a sum of unit 1 and, with the same name, the metric sum / bottom. Returns the index of the sum. */
int dt_sums_metric(dt_sums *s, dt_show_when when, const char *name, dt_sum_kind kind, const char *bottom);
/** Declare a biased variance: squares / n - (sum / n)^2, of three declared sums. */
void dt_sums_show_variance(dt_sums *s, dt_show_when when, const char *name, const char *squares, const char *sum,
                           const char *n);
/** Declare the difference of two declared metrics that are quotients. */
void dt_sums_show_difference(dt_sums *s, dt_show_when when, const char *name, const char *first, const char *second);
/** Index of a sum; -1: none of this name. */
int dt_sums_find(const dt_sums *s, const char *name);

/** End the declarations: allocate values and space for the vote, and check that all ranks declared the same. Collective
 *  on comm, agreed; comm NULL: this rank only. DT_ERR_FAULT, naming the first difference; DT_ERR_ARG or DT_ERR_MEMORY
 *  of a declaration. */
dt_err dt_sums_settle(dt_sums *s, dt_comm *comm);
/** Free everything. Safe on {0}; leaves {0}. */
void dt_sums_close(dt_sums *s);

/** Reset the step's values, before a step or a validation. */
void dt_sums_clear(dt_sums *s);
/** Add a value to a sum of the step. DT_SUM_UNITS: rounded to whole units; non-finite values are omitted. */
void dt_sums_add(dt_sums *s, int sum, double x);
/** Add whole units to a DT_SUM_UNITS of the step. */
void dt_sums_count(dt_sums *s, int sum, int64_t n_units);

/** Values of dt_vote.nonfinite; the maximum counts. An overflow of scaled gradients does not affect the loss. */
enum { DT_NONFINITE_GRADS = 1, DT_NONFINITE_LOSS };
/** Combine the step's values over all ranks, and report in vote->nonfinite if a loss is non-finite. Collective on comm,
 *  synchronous. vote carries the rest of the status; see dt_comm_vote, also for errors. */
dt_err dt_sums_vote(dt_sums *s, dt_comm *comm, dt_vote *vote);

/** Value of a sum in the step; NaN for a marked DT_SUM_LOSS. */
double dt_sums_value(const dt_sums *s, int sum);
/** Value of a metric in the step. */
double dt_sums_shown(const dt_sums *s, const dt_shown *what);
/** The metric of this name; NULL: none. */
const dt_shown *dt_sums_find_shown(const dt_sums *s, dt_show_when when, const char *name);

/** Add the step's values, after its vote, to the total. */
void dt_sums_add_to_total(dt_sums *s);
/** Reset the total. */
void dt_sums_clear_total(dt_sums *s);
/** Value of a sum in the total, which adds over the steps. Maxima and minima are over all steps. */
double dt_sums_total(const dt_sums *s, int sum);
/** Value of a metric over the steps of the total. Quotients are of the sums over these steps. A metric without bottom
 *  is the mean over the steps, except maxima, minima and means, which are over all values. */
double dt_sums_shown_of_total(const dt_sums *s, const dt_shown *what);

#endif
