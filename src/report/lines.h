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
/** Keep each training step once, its newest record and the validations after it, ordered by step. A file holds steps
 * twice if it was merged by hand, or if a run wrote them again. */
void dt_lines_settle(dt_lines *l);
/** The first training step whose record is missing. Two records may be `every` steps apart, or as many as the two
 * before them, if log.logging_steps was larger then (before the first record: as many as after it). 0: no record is
 * missing. *at: index of the line before which it is missing, n for the end. Call after dt_lines_settle. */
int64_t dt_lines_hole(const dt_lines *l, const dt_kept *kept, int64_t *at);
/** Warn that the file which a resumed run would append to does not exist, or is empty. */
void dt_lines_tell_gone(const char *path, const dt_kept *kept);
/** Settle, and warn of removed lines and of a missing step. n_bad: lines that are not records; n_head: lines of the
 * file before its records. */
void dt_lines_settle_and_tell(dt_lines *l, const char *path, const dt_kept *kept, int64_t n_bad, int64_t n_head);
/** Read line i into out (replacing its contents) from the file of the lines. DT_ERR_DATA. */
dt_err dt_lines_read(const dt_lines *l, int64_t i, FILE *in, const char *path, dt_record *out);
void dt_lines_free(dt_lines *l);

#endif
