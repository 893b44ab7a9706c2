/* fields.h - the fields of a training record, listed once for every sink. */
#ifndef DTRAIN_REPORT_FIELDS_H
#define DTRAIN_REPORT_FIELDS_H

#include "dtrain/report/report.h"

enum { DT_FIELD_SKIPPED = 13, DT_N_FIELDS };
typedef struct dt_field {
    const char *name, *tag;           /* tag: in the event file; NULL: none */
    const char *metric, *type, *help; /* for Prometheus */
    double value;
    bool known; /* false: the value is missing in this record */
} dt_field;

/** The fields in the order of metrics.jsonl. */
void dt_fields_of(const dt_train_record *rec, dt_field fields[DT_N_FIELDS]);

#endif
