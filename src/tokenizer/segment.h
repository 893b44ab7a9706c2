/* segment.h - a part of a text on its way to the model, with marks: positions whose number of ids is wanted. */
#ifndef DTRAIN_TEXT_SEGMENT_H
#define DTRAIN_TEXT_SEGMENT_H

#include "tokenizer_ops.h"
#include "dtrain/text/utf8.h"

/** The end of a span. */
typedef struct dt_mark {
    size_t at; /* in the text that it is in at the time */
    int span;
    bool inside; /* it stood within something that was changed as a whole: what is at `at` now reaches across it */
} dt_mark;

/** The bytes from .. to of a text, which is valid UTF-8, and the marks before `to`, in order. */
typedef struct dt_segment {
    const char *text;
    size_t from, to;
    dt_mark *mark, *mark_end;
    bool at_start; /* does the whole text, as its user gave it, begin here? */
    size_t origin; /* the bytes before this one were made of the whole text's first character; 0: none was */
} dt_segment;

/** A piece written anew, from left to right: marks move with it. */
typedef struct dt_edit {
    dt_text *out; /* emptied at the beginning */
    dt_segment *piece;
    dt_mark *mark;
    size_t origin; /* of what is written */
} dt_edit;
dt_edit dt_edit_begin(dt_text *out, dt_segment *piece);
void dt_edit_keep(dt_edit *e, size_t from, size_t to);
/** Instead of from .. to; with from == to an insertion, which belongs to what follows it. What replaces several
 *  characters was made of the last. */
void dt_edit_change(dt_edit *e, size_t from, size_t to, const char *bytes, size_t n);
/** The piece becomes what was written, borrowed from out. DT_ERR_MEMORY. */
dt_err dt_edit_end(dt_edit *e);

/** The marks of a text, which are passed in order as ids are appended. */
typedef struct dt_marks {
    dt_mark *next, *end; /* not passed yet */
    const dt_ids *ids;
    int64_t *ends; /* by span */
} dt_marks;
/** Marks before `end` are passed: what stands before them are the ids that there are now. */
void dt_marks_pass(dt_marks *m, const dt_mark *end);
/** The part from .. to of a piece, with its marks that are not passed yet. */
dt_segment dt_segment_part(const dt_segment *p, const dt_marks *m, size_t from, size_t to);

/** Characters with the property White_Space; bytes of it at the start and at the end of a text. */
bool dt_is_space(uint32_t code);
size_t dt_spaces_at_start(const char *text, size_t n);
size_t dt_spaces_at_end(const char *text, size_t n);

#endif
