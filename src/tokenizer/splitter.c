/* splitter.c - all split steps are one of three: split by an expression, replace spaces, map bytes to characters.
 *
 * Each piece passes through all steps before the next one is searched, so only pieces in progress need memory. */
#include "splitter.h"
#include "dtrain/text/utf8.h"

static void pass_marks(const dt_split_run *run, const dt_segment *p) { dt_marks_pass(run->marks, p->mark_end); }

static dt_err split_from(const dt_split_run *run, int k, dt_segment *p);

/* ---- split by an expression -------------------------------------------------------------------------------------- */

typedef struct segment {
    size_t begin, end;
    bool is_match, is_set;
} segment;

static dt_err emit(const dt_split_run *run, int k, const dt_segment *p, const segment *s)
{
    if (!s->is_set || s->begin == s->end) return DT_OK;
    if (run->splitter->step[k].behavior == DT_SPLIT_REMOVED && s->is_match) return DT_OK;
    dt_segment part = dt_segment_part(p, run->marks, s->begin, s->end);
    return split_from(run, k + 1, &part);
}

/* Add a match, or the text between matches: as a new piece, or joined to the previous one. */
static dt_err take(const dt_split_run *run, int k, const dt_segment *p, segment *last, size_t begin, size_t end,
                   bool is_match)
{
    const dt_split_step *step = &run->splitter->step[k];
    is_match = is_match != step->invert;
    const bool with_last = last->is_set && ((step->behavior == DT_SPLIT_CONTIGUOUS && last->is_match == is_match) ||
                                            (step->behavior == DT_SPLIT_WITH_PREVIOUS && is_match && !last->is_match) ||
                                            (step->behavior == DT_SPLIT_WITH_NEXT && last->is_match && !is_match));
    if (!with_last) {
        DT_TRY(emit(run, k, p, last));
        last->begin = begin;
    }
    last->end = end;
    last->is_match = is_match;
    last->is_set = true;
    return DT_OK;
}

static dt_err split_by_pattern(const dt_split_run *run, int k, const dt_segment *p)
{
    segment last = {0};
    dt_matches at;
    size_t done = p->from;
    DT_TRY(dt_matches_begin(&at, run->splitter->step[k].pattern, run->matcher, p->text + p->from, p->to - p->from,
                            &run->buffer[k]));
    for (bool found;;) {
        DT_TRY(dt_regex_next(&at, &found));
        if (!found) break;
        if (p->from + at.begin > done) DT_TRY(take(run, k, p, &last, done, p->from + at.begin, false));
        DT_TRY(take(run, k, p, &last, p->from + at.begin, p->from + at.end, true));
        done = p->from + at.end;
    }
    if (done < p->to) DT_TRY(take(run, k, p, &last, done, p->to, false));
    return emit(run, k, p, &last);
}

/* ---- other steps ------------------------------------------------------------------------------------------------- */

/* DT_PREFIX_FIRST prefixes the piece that contains the text's first character, or none if that was removed. */
static dt_err put_for_spaces(const dt_split_step *step, dt_text *out, dt_segment *p, bool goes_on)
{
    const size_t n_prefix = strlen(step->prefix);
    const bool has = p->text[p->from] == ' '
                         ? step->replaces || step->prefix[0] == ' '
                         : p->to - p->from >= n_prefix && memcmp(p->text + p->from, step->prefix, n_prefix) == 0;
    const bool wanted = step->where == DT_PREFIX_FIRST ? p->from < p->origin
                                                       : step->where == DT_PREFIX_ALWAYS && !(p->at_start && goes_on);
    dt_edit e = dt_edit_begin(out, p);
    if (wanted && !has) dt_edit_change(&e, p->from, p->from, step->prefix, n_prefix);
    for (size_t i = p->from; i < p->to;) {
        const char *space = step->replaces ? memchr(p->text + i, ' ', p->to - i) : NULL;
        const size_t end = space ? (size_t)(space - p->text) : p->to;
        dt_edit_keep(&e, i, end);
        if (space) dt_edit_change(&e, end, end + 1, step->prefix, n_prefix);
        i = end + (space != NULL);
    }
    return dt_edit_end(&e);
}

static dt_err map_bytes(dt_text *out, dt_segment *p)
{
    dt_edit e = dt_edit_begin(out, p);
    for (size_t i = p->from; i < p->to; i++) {
        char c[4];
        dt_edit_change(&e, i, i + 1, c, dt_utf8_put(dt_byte_char((unsigned char)p->text[i]), c));
    }
    return dt_edit_end(&e);
}

static dt_err split_from(const dt_split_run *run, int k, dt_segment *p)
{
    const dt_split_step *step = &run->splitter->step[k];
    if (p->from == p->to) return pass_marks(run, p), DT_OK;
    if (k == run->splitter->n_steps) {
        DT_TRY(run->visit(run->ctx, p));
    } else if (step->kind == DT_SPLIT_PATTERN) {
        DT_TRY(split_by_pattern(run, k, p));
    } else {
        if (step->kind == DT_SPLIT_SPACES)
            DT_TRY(put_for_spaces(step, &run->buffer[k], p, run->goes_on));
        else
            DT_TRY(map_bytes(&run->buffer[k], p));
        DT_TRY(split_from(run, k + 1, p));
    }
    pass_marks(run, p);
    return DT_OK;
}

dt_err dt_split(const dt_split_run *run, dt_segment *piece) { return split_from(run, 0, piece); }
