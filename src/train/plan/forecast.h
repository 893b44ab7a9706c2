/* forecast.h - predict the time of a step on a chip, by running one on a device that computes nothing
 * (dtrain/perfmodel/counting_device.h). */
#ifndef DTRAIN_SRC_TRAIN_FORECAST_H
#define DTRAIN_SRC_TRAIN_FORECAST_H

#include "dtrain/perfmodel/chips.h"
#include "dtrain/perfmodel/counting_device.h"
#include "../run.h"

/** Parts of a step. Exchanges are collectives between ranks and the copies around them, in any part of the step. */
typedef enum step_part { PART_FORWARD, PART_HEAD, PART_BACKWARD, PART_UPDATE, PART_EXCHANGE, N_PARTS } step_part;
/** The resource that limits a launch. */
typedef enum bound { BOUND_ARITHMETIC, BOUND_MEMORY, BOUND_HOST, BOUND_NVLINK, BOUND_NETWORK, N_BOUNDS } bound;
/** The two clocks: at the chip's peak rates, and at measured fractions of them. */
enum { AT_PEAK, AT_MEASURED };

/** All launches of an operation in a part of the step. */
typedef struct forecast_row {
    const char *op;
    step_part part;
    double launches, flops, bytes; /* bytes: in memory, or over a link if that takes longer */
    double seconds[DT_COUNT_CLOCKS];
    double bound_s[N_BOUNDS]; /* at peak rates, by limiting resource */
    double latency_s;         /* part of the time at peak rates that does not depend on bytes */
} forecast_row;

enum { MAX_FORECAST_ROWS = 128 };
typedef struct forecast {
    const dt_chip *chip;
    forecast_row row[MAX_FORECAST_ROWS];
    int n_rows;
    double (*unit_s)[N_PARTS]; /* [n_units] at the peaks; those of experts are in the unit of their block */
    int n_units;
    double step_s[DT_COUNT_CLOCKS]; /* with overlap and waiting */
    double interference_s;          /* part of step_s[AT_MEASURED]: exchanges slow the kernels that they overlap */
    double tokens, images;          /* of all ranks */
    dt_unit *units;                 /* [n_units], with groups of experts */
    const dt_phase *phase;
    double weight; /* of the following launches: 0 if they do not count */
} forecast;

/** Run one step of full rows, as planned, with a strategy without offload. */
dt_err run_forecast(dt_run *run, const plan_setting *with, const dt_chip *chip, forecast *f);
void run_forecast_free(forecast *f);
/** Sum of a column of rows; part N_PARTS: all. */
forecast_row run_forecast_sum(const forecast *f, step_part part);
/** The resource that limits most of a row's time. */
bound run_forecast_bound(const forecast_row *row);
/** The fraction of a chip's peak for launches of this kind at AT_MEASURED. */
double run_measured_fraction(const char *op, bound b);

/** The table of --plan --gpu. */
dt_err run_print_forecast(dt_run *run, const plan_setting *with, const dt_chip *chip, FILE *out);

#endif
