/* segment.c - rewrites text while keeping track of marks. */
#include "segment.h"

dt_edit dt_edit_begin(dt_text *out, dt_segment *piece)
{
    out->n = 0;
    return (dt_edit){.out = out, .piece = piece, .mark = piece->mark};
}

void dt_edit_keep(dt_edit *e, size_t from, size_t to)
{
    for (; e->mark < e->piece->mark_end && e->mark->at < to; e->mark++)
        e->mark->at = e->mark->at < from ? e->out->n : e->out->n + e->mark->at - from;
    const size_t origin = e->piece->origin;
    if (from < to && from < origin) e->origin = e->out->n + (to < origin ? to : origin) - from;
    dt_text_append(e->out, e->piece->text + from, to - from);
}

void dt_edit_change(dt_edit *e, size_t from, size_t to, const char *bytes, size_t n)
{
    const size_t end = to > from ? to : from + 1;
    for (; e->mark < e->piece->mark_end && e->mark->at < end; e->mark++) {
        e->mark->inside = e->mark->inside || (e->mark->at > from && n > 0);
        e->mark->at = e->out->n;
    }
    dt_text_append(e->out, bytes, n);
    if (end <= e->piece->origin) e->origin = e->out->n;
}

dt_err dt_edit_end(dt_edit *e)
{
    dt_text_append(e->out, "", 0);
    DT_CHECK(!e->out->failed, DT_ERR_MEMORY, "out of memory for a text of %zu bytes", e->out->n);
    dt_segment *p = e->piece;
    for (; e->mark < p->mark_end; e->mark++) e->mark->at = e->out->n;
    p->text = e->out->bytes;
    p->from = 0;
    p->to = e->out->n;
    p->origin = e->origin;
    return DT_OK;
}

void dt_marks_pass(dt_marks *m, const dt_mark *end)
{
    for (; m->next < end; m->next++) m->ends[m->next->span] = m->next->inside ? -1 : (int64_t)m->ids->n;
}

dt_segment dt_segment_part(const dt_segment *p, const dt_marks *m, size_t from, size_t to)
{
    dt_segment part = {.text = p->text,
                       .from = from,
                       .to = to,
                       .mark = m->next,
                       .mark_end = m->next,
                       .at_start = p->at_start && from == p->from,
                       .origin = p->origin};
    while (part.mark_end < p->mark_end && part.mark_end->at < to) part.mark_end++;
    return part;
}
