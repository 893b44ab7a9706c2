/* metrics_csv.h - metrics.csv: a table of the records, for spreadsheets and data frames. */
#ifndef DTRAIN_REPORT_CSV_H
#define DTRAIN_REPORT_CSV_H

#include "dtrain/report/report.h"
#include "lines.h"

/** A column keeps its place: step first, then the fixed fields, then the others in the order in which they first came.
 *  A cell that a record does not have is empty. {0} with file.fd = -1 to start from. */
typedef struct dt_csv {
    dt_record_file file;
    char *path;
    char **names;
    double *cells; /* of the row that is put together */
    bool *set;
    int n_columns, room;
    dt_record row;
} dt_csv;

/** kept->last_step > 0: keep these rows, each training step once, and their columns; 0: start a new table.
 * DT_ERR_WRITE, DT_ERR_DATA (the existing file is not such a table). */
dt_err dt_csv_open(dt_csv *c, const char *path, const dt_kept *kept);
/** Check whether the existing table can be opened. Nothing changes. */
dt_err dt_csv_look(const char *path, const dt_kept *kept);
/** A metric that the table has no column for yet makes it be written again with one more (by way of PATH.part).
 *  DT_ERR_WRITE. */
dt_err dt_csv_train(dt_csv *c, const dt_train_record *rec);
dt_err dt_csv_validation(dt_csv *c, int64_t step, double loss, const dt_metric *more, int n_more);
void dt_csv_close(dt_csv *c); /* safe on a closed one */

#endif
