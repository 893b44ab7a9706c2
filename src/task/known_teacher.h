/* known_teacher.h - a teacher of which only a file of log-probabilities is known (known.h). Private to src/task. */
#ifndef DTRAIN_TASK_KNOWN_TEACHER_H
#define DTRAIN_TASK_KNOWN_TEACHER_H

#include "dtrain/data/known.h"
#include "dtrain/step/step.h"

/** Initialise to {0}. */
typedef struct dt_known_teacher {
    dt_known_file file;
    int64_t key;    /* identifies the file */
    int64_t *first; /* [samples + 1] of t->train: index of each sample's first target */
    dt_known known; /* of the last batch */
} dt_known_teacher;

/** In open, after the data is open: open the file, add it to the task's parts, set t->known and the model's options.
 *  When the run begins, its checksums are verified. A resume compares the file with that at the start of the run
 *  (DT_ERR_BASE: it differs). Errors are returned without the key. Local. DT_ERR_DATA: the file
 *  does not match the data, the model or the temperature. */
dt_err dt_known_teacher_open(dt_known_teacher *k, dt_task *t, const char *path);
/** Read what is known of the targets of a batch of t->train. Local. DT_ERR_DATA. */
dt_err dt_known_teacher_read(dt_known_teacher *k, const dt_batch *b);

#endif
