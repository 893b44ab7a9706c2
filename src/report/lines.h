/* lines.h - which lines of a file of metrics a resumed run keeps, in which order. */
#ifndef DTRAIN_REPORT_LINES_H
#define DTRAIN_REPORT_LINES_H

#include "record.h"

typedef struct dt_line {
    int64_t step, offset; /* offset: where it begins in the file */
    int64_t nbytes;
    bool is_validation;
} dt_line;

/** The records that a file holds, in its order. {0} to start from. */
typedef struct dt_lines {
    dt_line *line; /* [n] */
    int64_t n, room;
} dt_lines;

/** What is kept: steps up to last_step, with redo_validation without that step's validation. */
typedef struct dt_kept {
    int64_t last_step; /* INT64_MAX: all, of an evaluation, whose file ends anywhere */
    bool redo_validation;
    bool several;  /* a step has any number of lines, in the order in which they were written */
    int64_t every; /* steps between two training records; 0: not known */
} dt_kept;

/** Add a record, unless it is none to keep. path is for messages. DT_ERR_MEMORY. */
dt_err dt_lines_add(dt_lines *l, const char *path, const dt_kept *kept, dt_line line);
/** Leave each training step once, its newest record, and the validations behind it; order by step. Files may hold steps
 *  twice that were put together by hand, or that a run wrote again. */
void dt_lines_settle(dt_lines *l);
/** The first training step that should have a record and has none: at most every steps lie between two, or as many as
 *  between the two before, where log.logging_steps was larger then (before the first: as many as behind it). 0: there
 *  is none. *at: the index of the line before which it is missing, n for the end. To be called after
 *  dt_lines_settle. */
int64_t dt_lines_hole(const dt_lines *l, const dt_kept *kept, int64_t *at);
/** Warn that the file which a resumed run would append to does not exist, or is empty. */
void dt_lines_tell_gone(const char *path, const dt_kept *kept);
/** Settle, and warn of what was left out and of a step that is missing. n_bad: lines that were no records; n_head:
 *  lines of the file before its records. */
void dt_lines_settle_and_tell(dt_lines *l, const char *path, const dt_kept *kept, int64_t n_bad, int64_t n_head);
/** Read line i into out (replacing what is there), from the file that the lines were found in. DT_ERR_DATA. */
dt_err dt_lines_read(const dt_lines *l, int64_t i, FILE *in, const char *path, dt_record *out);
void dt_lines_free(dt_lines *l);

#endif
