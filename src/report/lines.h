/* lines.h - selects and orders the lines of a metrics file that a resumed run keeps. */
#ifndef DTRAIN_REPORT_LINES_H
#define DTRAIN_REPORT_LINES_H

#include "record.h"

typedef struct dt_line {
    int64_t step, offset; /* offset: of the line in the file */
    int64_t nbytes;
    bool is_validation;
} dt_line;

/** The records of a file, in file order. Initialise to {0}; free line. */
typedef struct dt_lines {
    dt_line *line; /* [n] */
    int64_t n;
} dt_lines;

/** Lines to keep: steps up to last_step. redo_validation: without that step's validation. */
typedef struct dt_kept {
    int64_t last_step; /* INT64_MAX: all, for an evaluation, whose file may end at any step */
    bool redo_validation;
    bool several;  /* a step may have any number of lines, which keep their order */
    int64_t every; /* steps between two training records; 0: unknown */
} dt_kept;

/** Add a record if it is to be kept. path: for messages. DT_ERR_MEMORY. */
dt_err dt_lines_add(dt_lines *l, const char *path, const dt_kept *kept, dt_line line);
/** Order lines by step. Of each training step keep only the last record and the validations after it. A step has
 *  several records if files were merged by hand, or if a run repeated the step. */
void dt_lines_settle(dt_lines *l);
/** The first training step whose record is missing; 0: none. Adjacent records may be `every` steps apart. They may also
 *  be as far apart as the previous two records, because log.logging_steps may have been larger then. The first record
 *  is compared with the distance to the second. *at: index of the line before which the record is missing, n for the
 *  end. Call after dt_lines_settle. */
int64_t dt_lines_hole(const dt_lines *l, const dt_kept *kept, int64_t *at);
/** Warn that the file to which a resumed run would append is missing or empty. */
void dt_lines_warn_gone(const char *path, const dt_kept *kept);

/** The lines of a file format. */
typedef struct dt_line_format {
    /** Set step and is_validation of a line, which includes its newline. False: it is not a complete record. */
    bool (*parse)(const char *line, size_t nbytes, dt_line *found);
    void (*adapt)(void *self, dt_text *line); /* change a kept line; NULL: lines stay as they are */
    void *self;
    const dt_text *head; /* written before the lines; NULL: nothing */
    int n_head;          /* lines before the first record */
} dt_line_format;
/** Rewrite a file, through PATH.part and a rename, with the lines to keep, settled unless kept->several. A warning
 *  reports removed lines and a missing step. in: the file, at its first record; NULL: only write the head. DT_ERR_DATA,
 *  DT_ERR_WRITE, DT_ERR_MEMORY. */
dt_err dt_lines_rewrite(FILE *in, const char *path, const dt_kept *kept, const dt_line_format *f);

#endif
