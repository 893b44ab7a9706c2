/* metrics.h - reading metrics.jsonl back. */
#ifndef DTRAIN_METRICS_H
#define DTRAIN_METRICS_H

#include "dtrain/core/core.h"

/** A table: a row per line of the file, a column per name that occurs in it; NaN where a line lacks the name or holds
 *  null. Booleans are 0 and 1. */
typedef struct dt_metrics {
    char **names;
    double **columns; /* [n_columns][n_rows] */
    int n_columns;
    int64_t n_rows, cap_rows;
} dt_metrics;

/** A last line that is not a whole record is left out (the run was killed, or is writing it now). DT_ERR_DATA naming
 *  file and line: cannot be read, a bad line elsewhere, no record at all. Free with dt_metrics_free, also after an
 *  error. */
dt_err dt_metrics_read(dt_metrics *m, const char *path);
void dt_metrics_free(dt_metrics *m); /* safe on {0} */
/** Column of a name, or NULL. */
const double *dt_metrics_column(const dt_metrics *m, const char *name);

#endif
