/* pairs.h - what tasks share that learn from pairs of answers. Private to src/task. */
#ifndef DTRAIN_TASK_PAIRS_H
#define DTRAIN_TASK_PAIRS_H

#include "dtrain/task.h"

/** In open: [data] as pairs of texts of at most seq_len tokens, and room for a micro-batch of them also where no file
 *  says how long they are (--plan). truncate: longer texts are cut; else their pairs are left out. no_ties: so are
 *  pairs of which neither text is better. */
void pairs_open(dt_task *t, int64_t seq_len, bool truncate, bool no_ties);

/** The same number of training steps and of validations, by two names. */
void pairs_show(dt_sums *s, const char *name, const char *validation, const char *top, const char *bottom);

#endif
