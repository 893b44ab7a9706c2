/* encode.c - passes text through the stages of a tokenizer.json.
 *
 * Adjacent spans are first joined to one text, because a token may extend from one span into the next. Marks track the
 * ends of spans. Invalid UTF-8 is replaced first (dt_utf8_repair), as callers of the reference do. */
#include "tokenizer_json.h"
#include "dtrain/text/space.h"
#include "dtrain/text/utf8.h"

#include <stdlib.h>

typedef struct json_encoder {
    const dt_json_tokenizer *tokenizer;
    dt_matcher *matcher;
    dt_bpe_work *work;
    dt_text joined, repaired, normal[2], step[DT_SPLIT_MAX];
    dt_mark *mark;
    int n_mark_alloc;
    /* of the current call */
    dt_marks marks;
    dt_ids *ids;
    bool goes_on;
} json_encoder;

dt_err dt_json_encoder_open(dt_encoder *e)
{
    json_encoder *x = e->impl = calloc(1, sizeof *x);
    DT_CHECK(x, DT_ERR_MEMORY, "out of memory for an encoder");
    x->tokenizer = e->tokenizer->impl;
    DT_TRY(dt_matcher_open(&x->matcher));
    return dt_bpe_work_open(&x->work);
}

void dt_json_encoder_close(dt_encoder *e)
{
    json_encoder *x = e->impl;
    if (!x) return;
    dt_matcher_close(x->matcher);
    dt_bpe_work_close(x->work);
    free(x->joined.bytes);
    free(x->repaired.bytes);
    free(x->normal[0].bytes);
    free(x->normal[1].bytes);
    for (int i = 0; i < DT_SPLIT_MAX; i++) free(x->step[i].bytes);
    free(x->mark);
    free(x);
}

static dt_err append_id(dt_ids *ids, int32_t id)
{
    DT_TRY(dt_ids_reserve(ids, 1));
    ids->id[ids->n++] = id;
    return DT_OK;
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

/* Encode a piece that contains marks. The number of ids at a mark is known only if a token ends there. */
static dt_err encode_marked(json_encoder *x, const dt_segment *p)
{
    const uint32_t *lens;
    const size_t first = x->ids->n;
    DT_TRY(dt_bpe_encode(&x->tokenizer->bpe, x->work, p->text + p->from, p->to - p->from, x->ids, &lens));
    size_t i = first, at = p->from;
    for (; x->marks.next < p->mark_end; x->marks.next++) {
        const dt_mark *m = x->marks.next;
        while (i < x->ids->n && at < m->at) at += lens[i++ - first];
        x->marks.ends[m->span] = at == m->at && !m->inside ? (int64_t)i : -1;
    }
    return DT_OK;
}

static dt_err encode_piece(void *ctx, dt_segment *p)
{
    json_encoder *x = ctx;
    dt_mark *before = x->marks.next;
    while (before < p->mark_end && before->at <= p->from) before++;
    dt_marks_pass(&x->marks, before);
    if (x->marks.next < p->mark_end) return encode_marked(x, p);
    return dt_bpe_encode(&x->tokenizer->bpe, x->work, p->text + p->from, p->to - p->from, x->ids, NULL);
}

/* ---- added tokens, before the normaliser (which = 0) and after it ------------------------------------------------ */

static dt_err encode_between(json_encoder *x, int which, dt_segment *p);

static dt_err encode_added(json_encoder *x, const dt_segment *p, const dt_added_match *match)
{
    dt_mark *m = x->marks.next;
    while (m < p->mark_end && m->at <= match->begin) m++;
    dt_marks_pass(&x->marks, m);
    for (; x->marks.next < p->mark_end && x->marks.next->at < match->end; x->marks.next++)
        x->marks.ends[x->marks.next->span] = -1;
    return append_id(x->ids, match->id);
}

static dt_err encode_with_added(json_encoder *x, int which, dt_segment *p)
{
    dt_added_match match = {.from = p->from, .text_from = p->from};
    for (;;) {
        const bool found = dt_added_next(&x->tokenizer->added, which, p, &match);
        const size_t end = found ? match.begin : p->to;
        if (match.text_from < end) {
            dt_segment part = dt_segment_part(p, &x->marks, match.text_from, end);
            DT_TRY(encode_between(x, which, &part));
        }
        if (!found) break;
        DT_TRY(encode_added(x, p, &match));
        match.text_from = match.end;
    }
    dt_marks_pass(&x->marks, p->mark_end);
    return DT_OK;
}

static dt_err encode_between(json_encoder *x, int which, dt_segment *p)
{
    const dt_json_tokenizer *j = x->tokenizer;
    const dt_mark *end = p->mark_end;
    if (which == 0) {
        DT_TRY(dt_normalize(&j->normalizer, x->matcher, x->normal, p, p->at_start && x->goes_on));
        if (p->to > p->from) DT_TRY(encode_with_added(x, 1, p));
    } else {
        const dt_split_run run = {.splitter = &j->splitter,
                                  .matcher = x->matcher,
                                  .buffer = x->step,
                                  .goes_on = x->goes_on,
                                  .marks = &x->marks,
                                  .visit = encode_piece,
                                  .ctx = x};
        DT_TRY(dt_split(&run, p));
    }
    dt_marks_pass(&x->marks, end);
    return DT_OK;
}

/* ---- spans ------------------------------------------------------------------------------------------------------- */

static dt_err repair(json_encoder *x, dt_segment *p)
{
    size_t i = dt_utf8_valid(p->text, p->to);
    if (i == p->to) return DT_OK;
    dt_edit e = dt_edit_begin(&x->repaired, p);
    size_t kept = 0;
    while (kept < p->to) {
        dt_edit_keep(&e, kept, i);
        if (i == p->to) break;
        const size_t bad = dt_utf8_bad(p->text + i, p->to - i);
        dt_edit_change(&e, i, i + bad, "\xef\xbf\xbd", 3);
        kept = i + bad;
        i = kept + dt_utf8_valid(p->text + kept, p->to - kept);
    }
    return dt_edit_end(&e);
}

/* True if a token given as an id strips the white space of an adjacent text, as it does when matched in a text. */
static bool strips(const dt_json_tokenizer *j, const dt_span *span, unsigned side)
{
    for (int i = 0; i < j->added.n_tokens; i++)
        if (j->added.token[i].id == span->id) return j->added.token[i].flags & side;
    return false;
}

/* Strip the text of spans first .. end-1, next to token spans on either side. */
static void strip(const json_encoder *x, const dt_span *spans, int first, int end, int n_spans, dt_segment *p)
{
    const dt_json_tokenizer *j = x->tokenizer;
    if (first > 0 && strips(j, &spans[first - 1], DT_ADDED_RSTRIP)) p->from = dt_white_before(p->text, p->to);
    if (end < n_spans && strips(j, &spans[end], DT_ADDED_LSTRIP))
        p->to = p->from + dt_white_trimmed(p->text + p->from, p->to - p->from);
}

/* Encode adjacent text spans as one text. */
static dt_err encode_spans(json_encoder *x, const dt_span *spans, int first, int end, int n_spans, int64_t *ends)
{
    const bool at_start = first == 0;
    dt_segment p = {.text = spans[first].text,
                    .to = spans[first].nbytes,
                    .mark = x->mark,
                    .mark_end = x->mark,
                    .at_start = at_start};
    if (end > first + 1) {
        x->joined.n = 0;
        for (int s = first; s < end; s++) {
            dt_text_append(&x->joined, spans[s].text, spans[s].nbytes);
            if (ends) *p.mark_end++ = (dt_mark){.at = x->joined.n, .span = s};
        }
        DT_CHECK(!x->joined.failed, DT_ERR_MEMORY, "out of memory for a text");
        p.text = x->joined.bytes;
        p.to = x->joined.n;
    }
    x->marks = (dt_marks){.next = x->mark, .end = p.mark_end, .ids = x->ids, .ends = ends};
    DT_TRY(repair(x, &p));
    strip(x, spans, first, end, n_spans, &p);
    p.origin = at_start && !x->goes_on ? dt_utf8_length(p.text, p.to) : 0;
    if (p.to > p.from) DT_TRY(encode_with_added(x, 0, &p));
    dt_marks_pass(&x->marks, x->marks.end);
    if (ends) ends[end - 1] = (int64_t)x->ids->n;
    return DT_OK;
}

/* Remove the tokenizer's BOS if the text already begins with one. */
static void drop_second_bos(const dt_tokenizer *t, const dt_post_processor *w, dt_ids *ids, size_t first, int64_t *ends,
                            int n_spans)
{
    const size_t text = first + (size_t)w->n_before;
    if (w->n_before == 0 || t->info.bos < 0 || ids->n <= text || ids->id[text] != t->info.bos ||
        ids->id[text - 1] != t->info.bos)
        return;
    memmove(ids->id + text - 1, ids->id + text, (ids->n - text) * sizeof *ids->id);
    ids->n--;
    for (int s = 0; ends && s < n_spans; s++)
        if (ends[s] >= (int64_t)text) ends[s]--;
}

static dt_err encode_all(json_encoder *x, const dt_span *spans, int n_spans, int64_t *ends)
{
    for (int s = 0; s < n_spans;) {
        int end = s + 1;
        if (!spans[s].text) {
            DT_TRY(append_id(x->ids, spans[s].id));
            if (ends) ends[s] = (int64_t)x->ids->n;
        } else {
            while (end < n_spans && spans[end].text) end++;
            DT_TRY(encode_spans(x, spans, s, end, n_spans, ends));
        }
        s = end;
    }
    return DT_OK;
}

dt_err dt_json_encode(dt_encoder *e, const dt_span *spans, int n_spans, unsigned flags, dt_ids *ids, int64_t *ends)
{
    json_encoder *x = e->impl;
    const dt_post_processor *w = &x->tokenizer->wrap;
    const size_t first = ids->n;
    const bool begins = (flags & DT_ENCODE_WRAP) && !(flags & DT_ENCODE_GOES_ON);
    if (x->n_mark_alloc < n_spans) {
        free(x->mark);
        x->n_mark_alloc = 0;
        DT_CHECK((x->mark = malloc(2 * (size_t)n_spans * sizeof *x->mark)), DT_ERR_MEMORY, "out of memory for %d spans",
                 n_spans);
        x->n_mark_alloc = 2 * n_spans;
    }
    x->ids = ids;
    x->goes_on = flags & DT_ENCODE_GOES_ON;
    for (int i = 0; begins && i < w->n_before; i++) DT_TRY(append_id(ids, w->before[i]));
    DT_TRY(encode_all(x, spans, n_spans, ends));
    if (begins) drop_second_bos(e->tokenizer, w, ids, first, ends, n_spans);
    for (int i = 0; (flags & DT_ENCODE_WRAP) && !(flags & DT_ENCODE_MORE) && i < w->n_after; i++)
        DT_TRY(append_id(ids, w->after[i]));
    return DT_OK;
}
