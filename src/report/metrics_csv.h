/* metrics_csv.h - metrics.csv: a table of records for spreadsheets and data frames. */
#ifndef DTRAIN_REPORT_CSV_H
#define DTRAIN_REPORT_CSV_H

#include "dtrain/report/report.h"
#include "lines.h"

/** Columns keep their positions: step, the fixed fields, then other metrics in the order of first use. Cells without a
 *  value are empty. Initialise to {0} with file.fd = -1. */
typedef struct dt_csv {
    dt_record_file file;
    char *path;
    char **names;
    double *cells; /* of the current row */
    bool *set;
    int n_columns;
    dt_text row;
} dt_csv;

/** kept->last_step > 0: keep these rows, each training step once, and their columns; 0: start a new table.
 *  DT_ERR_WRITE, DT_ERR_DATA (the existing file is not such a table). */
dt_err dt_csv_open(dt_csv *c, const char *path, const dt_kept *kept);
/** Check whether the existing table can be opened. Nothing changes. */
dt_err dt_csv_look(const char *path, const dt_kept *kept);
/** Append a record. A metric without a column causes a rewrite of the table with one more column, through PATH.part.
 *  DT_ERR_WRITE. */
dt_err dt_csv_train(dt_csv *c, const dt_train_record *rec);
dt_err dt_csv_validation(dt_csv *c, int64_t step, double loss, const dt_metric *more, int n_more);
void dt_csv_close(dt_csv *c); /* safe if already closed */

#endif
