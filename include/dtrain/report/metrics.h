/* metrics.h - reads metrics.jsonl. Every function is Local. */
#ifndef DTRAIN_METRICS_H
#define DTRAIN_METRICS_H

#include "dtrain/core/core.h"

/** A table with a row per line of the file, and a column per name; NaN if a line lacks the name or has null. Booleans
 *  are 0 and 1. */
typedef struct dt_metrics {
    char **names;
    double **columns; /* [n_columns][n_rows] */
    int n_columns;
    int64_t n_rows;
} dt_metrics;

/** Read a file. An incomplete last line is ignored (the run was killed, or is writing it now). m: out, freed with
 *  dt_metrics_free, also after an error. DT_ERR_DATA naming file and line: it cannot be read, another line is invalid,
 *  or there are no records. DT_ERR_MEMORY. */
dt_err dt_metrics_read(dt_metrics *m, const char *path);
/** Free the table. Safe on {0}. */
void dt_metrics_free(dt_metrics *m);
/** Column of a name, [n_rows], borrowed; NULL: none. */
const double *dt_metrics_column(const dt_metrics *m, const char *name);

#endif
