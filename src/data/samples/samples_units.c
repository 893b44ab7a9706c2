/* samples_units.c - samples of units: words with labels, or texts of a group. The mask marks the first token of each
 * unit. With labels a sample is one sequence, and its targets are the marked tokens; without marks the label is one of
 * the whole text, and its target is the last token. With texts every text is a sequence, and the target is the first
 * token of the first one. A batch's target[t] is the number of the unit in its sample; of texts it is their number.
 * Sequences are cut after T tokens. No sample is dropped, so that numbers in the file are those of samples. */
#include "../kinds/kinds.h"
#include "samples_records.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool of_texts(const dt_samples *set) { return set->dataset->info.kind == DT_DATASET_TEXTS; }

/* The first marked token after `at`, or `end`. mask: scratch [T]. */
static dt_err next_start(const dt_samples *set, int64_t at, int64_t end, uint8_t *mask, int64_t *start)
{
    for (at++; at < end;) {
        const int64_t n = dt_min_i64(end - at, set->opt.seq_len);
        DT_TRY(dt_dataset_read_mask(set->dataset, at, n, mask));
        const uint8_t *mark = memchr(mask, 1, (size_t)n);
        if (mark) return *start = at + (mark - mask), DT_OK;
        at += n;
    }
    *start = end;
    return DT_OK;
}

static dt_err scan_texts(dt_samples *set, int64_t first, int64_t end, uint8_t *mask, dt_record_len *len)
{
    int64_t n_texts = 0;
    for (int64_t at = first, next; at < end; at = next, n_texts++) {
        DT_TRY(next_start(set, at, end, mask, &next));
        len->n_tok += (uint32_t)dt_min_i64(next - at, set->opt.seq_len);
    }
    len->n_target = 1;
    set->max_seq = dt_max_i64(set->max_seq, n_texts);
    return DT_OK;
}

static dt_err scan_labels(dt_samples *set, int64_t first, int64_t end, uint8_t *mask, dt_record_len *len)
{
    const int64_t n = dt_min_i64(end - first, set->opt.seq_len);
    uint32_t n_units = 0;
    DT_TRY(dt_dataset_read_mask(set->dataset, first, n, mask));
    for (int64_t i = 0; i < n; i++) n_units += mask[i];
    *len = (dt_record_len){(uint32_t)n, n_units ? n_units : 1};
    return DT_OK;
}

typedef struct scan {
    dt_samples *set;
    dt_records *r;
    uint8_t *mask;
} scan;

static dt_err scan_block(void *arg, int64_t first, int64_t n, const uint64_t *offset)
{
    const scan *s = arg;
    for (int64_t i = 0; i < n; i++) {
        DT_CHECK(offset[i + 1] > offset[i], DT_ERR_DATA,
                 "%s: sample %" PRId64 ": expected at least one token, found none", s->set->dataset->path, first + i);
        DT_TRY((of_texts(s->set) ? scan_texts : scan_labels)(s->set, (int64_t)offset[i], (int64_t)offset[i + 1],
                                                             s->mask, &s->r->len[first + i]));
    }
    return DT_OK;
}

static dt_err units_open(dt_samples *set)
{
    dt_records *r = set->impl;
    r->n = r->n_alloc = set->n_samples = set->dataset->info.n_documents;
    DT_COUNTED_ALLOC(&set->memory, r->len, r->n_alloc, "%s: out of memory for the lengths of %" PRId64 " samples",
                     set->dataset->path, r->n_alloc);
    scan s = {.set = set, .r = r, .mask = malloc((size_t)set->opt.seq_len)};
    DT_CHECK(s.mask, DT_ERR_MEMORY, "%s: no memory to read its units", set->dataset->path);
    set->max_seq = 1;
    const dt_err err = dt_dataset_each_block(set->dataset, DT_SIDE_FIRST, scan_block, &s);
    free(s.mask);
    set->max_tok = set->max_seq * set->opt.seq_len;
    return err;
}

static void units_counts(const dt_samples *set, int64_t i, dt_sample_counts *c)
{
    const dt_record_len *len = &((const dt_records *)set->impl)->len[i];
    *c = (dt_sample_counts){len->n_tok, len->n_target, len->n_target * dt_weight_fixed(1), 0, false};
}

/* Append a sequence without targets. */
static dt_err fill_sequence(const dt_samples *set, int64_t first, int64_t n, dt_batch *b)
{
    int32_t *ids = b->token + b->n_tok;
    DT_TRY(dt_dataset_read_tokens(set->dataset, first, n, ids));
    b->seq_start[b->n_seq++] = b->n_tok;
    for (int64_t t = 0; t < n; t++, b->n_tok++) {
        b->target[b->n_tok] = -1;
        b->weight[b->n_tok] = 0;
        b->pos[b->n_tok] = (int32_t)t;
    }
    return DT_OK;
}

static void set_target(dt_batch *b, int64_t row, int64_t unit)
{
    b->target[row] = (int32_t)unit;
    b->weight[row] = dt_weight_counted(1);
}

static dt_err fill_texts(const dt_samples *set, int64_t first, int64_t end, dt_batch *b, dt_fill_scratch *scratch)
{
    const int32_t row = b->n_tok, before = b->n_seq;
    for (int64_t at = first, next; at < end; at = next) {
        DT_TRY(next_start(set, at, end, scratch->mask, &next));
        DT_TRY(fill_sequence(set, at, dt_min_i64(next - at, set->opt.seq_len), b));
    }
    set_target(b, row, b->n_seq - before);
    return DT_OK;
}

static dt_err fill_labels(const dt_samples *set, int64_t first, int64_t end, dt_batch *b, dt_fill_scratch *scratch)
{
    const int32_t row = b->n_tok;
    const int64_t n = dt_min_i64(end - first, set->opt.seq_len);
    int64_t n_units = 0;
    DT_TRY(fill_sequence(set, first, n, b));
    DT_TRY(dt_dataset_read_mask(set->dataset, first, n, scratch->mask));
    for (int64_t t = 0; t < n; t++)
        if (scratch->mask[t]) set_target(b, row + t, n_units++);
    if (n_units == 0) set_target(b, row + n - 1, 0);
    return DT_OK;
}

static dt_err units_fill(const dt_samples *set, int64_t i, dt_batch *b, dt_fill_scratch *scratch)
{
    int64_t first, n;
    DT_TRY(dt_dataset_document(set->dataset, i, &first, &n));
    return (of_texts(set) ? fill_texts : fill_labels)(set, first, first + n, b, scratch);
}

const dt_samples_ops dt_samples_units = {
    .impl_nbytes = sizeof(dt_records), .open = units_open, .counts = units_counts, .fill = units_fill};
