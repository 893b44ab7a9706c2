/* samples_wrapped.c - wrapped rows: row i has inputs tokens[i*T .. i*T+T-1] and targets shifted by one.
 * Neighbouring rows share one token, and n tokens give (n - 1) / T rows.
 *
 * With document_mask a row is cut where a document starts. Row i depends on the starts p in (i*T, i*T+T].
 * The target across each of them is dropped, and each except p = i*T+T begins a sequence. These ranges are
 * disjoint. Therefore one number per row is enough for the target count and for where to read: the index
 * in /offsets of the first start after the row's first token. */
#include "samples.h"
#include <stdlib.h>

typedef struct rows {
    int64_t *first_start; /* with document_mask: [n_rows + 1], index of the first distinct start > i*T; else NULL */
    int64_t max_starts;   /* maximum elements of /offsets for one row */
    uint64_t *starts;     /* [max_starts]: scratch of the thread that fills */
    int64_t *n_distinct;  /* [n_rows]: distinct starts in (i*T, i*T+T] */
} rows;

typedef struct walk {
    dt_samples *set;
    rows *r;
    int64_t row; /* first_start is filled up to this row */
    uint64_t previous;
} walk;

/* Record document starts, in ascending order. Equal starts (empty documents) count once. The last offset,
 * n, is not a start; a target there would be outside the file. */
static dt_err note_starts(void *arg, int64_t first, int64_t n, const uint64_t *offset)
{
    walk *w = arg;
    const uint64_t T = (uint64_t)w->set->opt.seq_len;
    for (int64_t k = 0; k < n; k++) {
        const uint64_t p = offset[k];
        if (p == 0) continue;
        const int64_t row = (int64_t)((p - 1) / T); /* row*T < p <= row*T + T */
        while (w->row <= row && w->row <= w->set->n_samples) w->r->first_start[w->row++] = first + k;
        if (row >= w->set->n_samples) continue;
        if (p != w->previous) w->r->n_distinct[row]++;
        w->previous = p;
    }
    return DT_OK;
}

/* Scan /offsets once and fill first_start. */
static dt_err find_starts(dt_samples *set, rows *r)
{
    DT_COUNTED_ALLOC(&set->memory, r->first_start, set->n_samples + 1,
                     "%s: out of memory for the document starts of its rows", set->dataset->path);
    DT_COUNTED_ALLOC(&set->memory, r->n_distinct, set->n_samples,
                     "%s: out of memory for the document starts of its rows", set->dataset->path);
    walk w = {.set = set, .r = r};
    DT_TRY(dt_dataset_each_block(set->dataset, DT_SIDE_FIRST, note_starts, &w));
    while (w.row <= set->n_samples) r->first_start[w.row++] = set->dataset->info.n_documents;

    for (int64_t i = 0; i < set->n_samples; i++) {
        const int64_t n = r->first_start[i + 1] - r->first_start[i];
        if (n > r->max_starts) r->max_starts = n;
        if (r->n_distinct[i] + 1 > set->max_seq) set->max_seq = r->n_distinct[i] + 1;
    }
    DT_COUNTED_ALLOC(&set->memory, r->starts, r->max_starts, "%s: out of memory for the document starts of a row",
                     set->dataset->path);
    return DT_OK;
}

static dt_err rows_open(dt_samples *set)
{
    const int64_t n = set->dataset->info.n_tokens;
    set->n_samples = n > 0 ? (n - 1) / set->opt.seq_len : 0;
    if (set->opt.document_mask) return find_starts(set, set->impl);
    return set->dataset->info.n_documents >= 0 ? dt_dataset_each_block(set->dataset, DT_SIDE_FIRST, NULL, NULL)
                                               : DT_OK; /* validated although unused */
}

static void rows_counts(const dt_samples *set, int64_t i, dt_sample_counts *c)
{
    const rows *r = set->impl;
    c->n_tok = set->opt.seq_len;
    c->n_target = set->opt.seq_len - (r->n_distinct ? r->n_distinct[i] : 0);
    c->weight_fixed = c->n_target << 20;
}

/* Begin a new sequence at each start in row i. The token before it predicts nothing. */
static dt_err cut_at_starts(const dt_samples *set, int64_t i, dt_batch *b)
{
    const rows *r = set->impl;
    const int64_t T = set->opt.seq_len, n = r->first_start[i + 1] - r->first_start[i];
    const int32_t base = b->n_tok;
    DT_TRY(dt_array_read(&set->dataset->column[DT_COL_OFFSETS], r->first_start[i], n, r->starts));
    int64_t previous = 0;
    for (int64_t k = 0; k < n; k++) {
        const int64_t at = (int64_t)r->starts[k] - i * T; /* in the row: 1 .. T */
        DT_CHECK(at >= 1 && at <= T, DT_ERR_DATA, "%s: offsets[%lld] changed while the file was open",
                 set->dataset->path, (long long)(r->first_start[i] + k));
        if (at == previous) continue;
        previous = at;
        b->target[base + at - 1] = -1;
        b->weight[base + at - 1] = 0;
        if (at < T) b->seq_start[b->n_seq++] = base + (int32_t)at;
    }
    return DT_OK;
}

static dt_err rows_fill(const dt_samples *set, int64_t i, dt_batch *b, dt_fill_scratch *scratch)
{
    const rows *r = set->impl;
    const int64_t T = set->opt.seq_len;
    const int32_t base = b->n_tok, seq = b->n_seq;
    DT_TRY(dt_dataset_read_tokens(set->dataset, i * T, T + 1, scratch->ids));
    b->seq_start[b->n_seq++] = b->n_tok;
    for (int64_t t = 0; t < T; t++) {
        b->token[base + t] = scratch->ids[t];
        b->target[base + t] = scratch->ids[t + 1];
        b->weight[base + t] = 1;
    }
    if (r->first_start) DT_TRY(cut_at_starts(set, i, b));
    b->n_tok += (int32_t)T;
    for (int32_t s = seq; s < b->n_seq; s++) {
        const int32_t end = s + 1 < b->n_seq ? b->seq_start[s + 1] : b->n_tok;
        for (int32_t t = b->seq_start[s]; t < end; t++) b->pos[t] = t - b->seq_start[s];
    }
    return DT_OK;
}

const dt_samples_ops dt_samples_wrapped = {
    .impl_nbytes = sizeof(rows), .open = rows_open, .counts = rows_counts, .fill = rows_fill};
