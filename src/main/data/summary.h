/* summary.h - progress and summary of dtrain-data. */
#ifndef DTRAIN_SRC_MAIN_DATA_SUMMARY_H
#define DTRAIN_SRC_MAIN_DATA_SUMMARY_H

#include "dtrain/data/dataset.h"

typedef struct meter {
    double start_s, last_s, every_s; /* time between lines */
    bool terminal, shown;            /* terminal: overwrite one line; shown: it is on the screen */
} meter;

/** A dt_make_options progress function; self: a meter. */
void data_show_progress(void *self, const dt_make_stats *s);
void data_report(const dt_make_options *o, const dt_make_stats *s, double seconds);

#endif
