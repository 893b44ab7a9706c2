/* segment.h - a range of a text being encoded, with marks: positions for which the number of ids is requested. */
#ifndef DTRAIN_TEXT_SEGMENT_H
#define DTRAIN_TEXT_SEGMENT_H

#include "tokenizer_ops.h"
#include "dtrain/text/utf8.h"

/** The end of a span. */
typedef struct dt_mark {
    size_t at; /* offset in the current form of the text */
    int span;
    bool inside; /* it was inside a range that was replaced as a whole, which now spans `at` */
} dt_mark;

/** Bytes from .. to of a text, valid UTF-8, and the marks before `to`, in order. */
typedef struct dt_segment {
    const char *text;
    size_t from, to;
    dt_mark *mark, *mark_end;
    bool at_start; /* the input text begins here */
    size_t origin; /* bytes before this offset stem from the input's first character; 0: none do */
} dt_segment;

/** A segment being rewritten from left to right; marks are moved along. */
typedef struct dt_edit {
    dt_text *out; /* cleared at the beginning */
    dt_segment *piece;
    dt_mark *mark;
    size_t origin; /* of the output */
} dt_edit;
dt_edit dt_edit_begin(dt_text *out, dt_segment *piece);
void dt_edit_keep(dt_edit *e, size_t from, size_t to);
/** Replace from .. to. from == to inserts, and the insertion belongs to the following text. A replacement
 *  of several characters counts as stemming from the last. */
void dt_edit_change(dt_edit *e, size_t from, size_t to, const char *bytes, size_t n);
/** The segment becomes the output, borrowed from out. DT_ERR_MEMORY. */
dt_err dt_edit_end(dt_edit *e);

/** Marks of a text, resolved in order as ids are appended. */
typedef struct dt_marks {
    dt_mark *next, *end; /* not resolved yet */
    const dt_ids *ids;
    int64_t *ends; /* by span */
} dt_marks;
/** Resolve the marks before `end` to the current number of ids. */
void dt_marks_pass(dt_marks *m, const dt_mark *end);
/** The range from .. to of a segment, with its unresolved marks. */
dt_segment dt_segment_part(const dt_segment *p, const dt_marks *m, size_t from, size_t to);

#endif
