/* samples_packed.c - rows of whole documents (kind tokens) or records (kind sft), packed best-fit
 * decreasing when the file is opened. The position of each segment is kept in row order, 12 bytes per segment
 * (16 with weights). Filling a row then needs no search.
 *
 * Segments with nothing to predict are dropped: single-token documents, single-token last segments of split
 * documents, and records without targets. */
#include "samples.h"
#include "best_fit.h"
#include "samples_records.h"
#include <inttypes.h>
#include <stdlib.h>

typedef struct segments {
    int64_t *first; /* first token in the file */
    uint32_t *len;
    uint32_t *n_target;
    float *weight; /* NULL: all 1 */
    /* only for a file with images, else NULL: number of the record and of its images */
    int64_t *record;
    uint32_t *n_images;
    int64_t n;
} segments;

typedef struct packed {
    int64_t *row_start; /* [n_rows + 1] */
    int64_t *first;     /* [n_segments], in row order; likewise len and weight */
    uint32_t *len;
    float *weight;
    int64_t *record;          /* NULL: the file has no images */
    dt_sample_counts *counts; /* [n_rows] */
} packed;

static void free_segments(segments *p)
{
    free(p->first);
    free(p->len);
    free(p->n_target);
    free(p->weight);
    free(p->record);
    free(p->n_images);
    *p = (segments){0};
}

/* Append a segment with room for its weight and images, which the caller sets. */
static dt_err add_segment(segments *p, const dt_records *r, const char *path, int64_t first, uint32_t len,
                          uint32_t n_target)
{
    DT_CHECK(p->n < UINT32_MAX - 1, DT_ERR_DATA,
             "%s: expected at most %u documents to pack, found more; split the dataset into several files", path,
             UINT32_MAX - 1);
    DT_GROW(p->first, p->n, "%s: no memory to pack %" PRId64 " documents", path, p->n);
    DT_GROW(p->len, p->n, "%s: no memory to pack %" PRId64 " documents", path, p->n);
    DT_GROW(p->n_target, p->n, "%s: no memory to pack %" PRId64 " documents", path, p->n);
    if (r && r->weight) DT_GROW(p->weight, p->n, "%s: no memory to pack %" PRId64 " documents", path, p->n);
    if (r && r->n_images) {
        DT_GROW(p->record, p->n, "%s: no memory to pack the images of %" PRId64 " records", path, p->n);
        DT_GROW(p->n_images, p->n, "%s: no memory to pack the images of %" PRId64 " records", path, p->n);
    }
    p->first[p->n] = first;
    p->len[p->n] = len;
    p->n_target[p->n++] = n_target;
    return DT_OK;
}

/* ---- collecting segments ----------------------------------------------------------------------------------------- */

typedef struct collect {
    dt_samples *set;
    segments *p;
    const dt_records *records; /* sft */
    int64_t kept, dropped;     /* sft: cursors in records and in its list of dropped ones */
} collect;

/* Documents of kind tokens. A document longer than T is split into segments of T (bfd_split) or truncated (bfd). */
static dt_err collect_documents(void *arg, int64_t first, int64_t n, const uint64_t *offset)
{
    collect *c = arg;
    const int64_t T = c->set->opt.seq_len;
    for (int64_t i = 0; i < n; i++) {
        const int64_t end = (int64_t)offset[i + 1], whole = end - (int64_t)offset[i];
        if (whole < 2) c->set->n_dropped++;
        if (whole < 2) continue;
        if (whole > T && !c->set->opt.split) {
            dt_cut_counts *cut = &c->set->cut;
            *cut = (dt_cut_counts){cut->n + 1, cut->n_target + whole - 1, cut->n_lost + whole - dt_max_i64(T, 1)};
        }
        const int64_t n_segments = c->set->opt.split ? (whole + T - 1) / T : 1;
        for (int64_t k = 0; k < n_segments; k++) {
            const int64_t at = (int64_t)offset[i] + k * T, len = end - at < T ? end - at : T;
            if (len >= 2) DT_TRY(add_segment(c->p, NULL, c->set->dataset->path, at, (uint32_t)len, (uint32_t)len - 1));
        }
    }
    return DT_OK;
}

/* Records of kind sft that have a target, with their lengths after the cut at T. */
static dt_err collect_records(void *arg, int64_t first, int64_t n, const uint64_t *offset)
{
    collect *c = arg;
    const dt_records *r = c->records;
    for (int64_t i = 0; i < n; i++) {
        if (c->dropped < r->n_dropped && r->dropped[c->dropped] == first + i) {
            c->dropped++;
            continue;
        }
        const int64_t k = c->kept++, at = c->p->n;
        DT_TRY(add_segment(c->p, r, c->set->dataset->path, (int64_t)offset[i], r->len[k].n_tok, r->len[k].n_target));
        if (r->weight) c->p->weight[at] = r->weight[k];
        if (r->n_images) c->p->record[at] = first + i, c->p->n_images[at] = r->n_images[k];
    }
    return DT_OK;
}

static dt_err collect_segments(dt_samples *set, segments *p)
{
    collect c = {.set = set, .p = p};
    if (set->dataset->info.kind == DT_DATASET_TOKENS)
        return dt_dataset_each_block(set->dataset, DT_SIDE_FIRST, collect_documents, &c);
    dt_records records;
    dt_err err = dt_records_scan(&records, set);
    int64_t most;
    c.records = &records;
    if (err == DT_OK) err = dt_records_scan_images(&records, set, &most);
    if (err == DT_OK) err = dt_dataset_each_block(set->dataset, DT_SIDE_FIRST, collect_records, &c);
    set->n_dropped = records.n_dropped - records.n_cut;
    set->n_too_long = records.n_cut;
    dt_records_free(&records, set);
    return err;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static dt_err alloc_rows(dt_samples *set, packed *k, const segments *p, const dt_row_list *packing)
{
    const int64_t n_rows = packing->n_rows, n = packing->n_items;
    dt_counted *m = &set->memory;
    set->n_samples = n_rows;
    const bool ok = dt_counted_add(m, &k->row_start, n_rows + 1, sizeof *k->row_start) &&
                    dt_counted_add(m, &k->counts, n_rows, sizeof *k->counts) &&
                    dt_counted_add(m, &k->first, n, sizeof *k->first) &&
                    dt_counted_add(m, &k->len, n, sizeof *k->len) &&
                    (!p->weight || dt_counted_add(m, &k->weight, n, sizeof *k->weight)) &&
                    (!p->record || dt_counted_add(m, &k->record, n, sizeof *k->record));
    DT_CHECK(ok, DT_ERR_MEMORY, "%s: out of memory for %" PRId64 " packed rows", set->dataset->path, n_rows);
    return DT_OK;
}

/* Store the position of each segment in row order, and the counts of each row. Steps are then counted without
 * reading. */
static void fill_rows(dt_samples *set, packed *k, const segments *p, const dt_row_list *packing)
{
    for (int64_t row = 0; row < set->n_samples; row++) {
        dt_sample_counts *c = &k->counts[row];
        int64_t n_images = 0;
        k->row_start[row + 1] = packing->row_start[row + 1];
        for (int64_t i = k->row_start[row]; i < k->row_start[row + 1]; i++) {
            const uint32_t item = packing->item[i];
            k->first[i] = p->first[item];
            k->len[i] = p->len[item];
            if (k->weight) k->weight[i] = p->weight[item];
            if (k->record) k->record[i] = p->record[item], n_images += p->n_images[item];
            c->n_tok += p->len[item];
            c->n_target += p->n_target[item];
            c->weight_fixed += p->n_target[item] * dt_weight_fixed(k->weight ? k->weight[i] : 1);
        }
        const int64_t n_seq = k->row_start[row + 1] - k->row_start[row];
        if (n_seq > set->max_seq) set->max_seq = n_seq;
        c->images = n_images > 0;
        if (n_images > set->max_images) set->max_images = n_images;
    }
}

static dt_err packed_open(dt_samples *set)
{
    packed *k = set->impl;
    segments p = {0};
    dt_row_list packing = {0};
    dt_err err = collect_segments(set, &p);
    if (err == DT_OK) err = dt_best_fit(&packing, p.len, p.n, (uint32_t)set->opt.seq_len);
    if (err == DT_OK) err = alloc_rows(set, k, &p, &packing);
    if (err == DT_OK) fill_rows(set, k, &p, &packing);
    dt_row_list_free(&packing);
    free_segments(&p);
    return err;
}

static void packed_counts(const dt_samples *set, int64_t i, dt_sample_counts *c)
{
    const packed *k = set->impl;
    *c = k->counts[i];
}

static dt_err packed_fill(const dt_samples *set, int64_t i, dt_batch *b, dt_fill_scratch *scratch)
{
    const packed *k = set->impl;
    for (int64_t j = k->row_start[i]; j < k->row_start[i + 1]; j++) {
        const int32_t from = b->n_tok;
        DT_TRY(dt_fill_record(set, k->first[j], k->len[j], k->weight ? k->weight[j] : 1, b, scratch));
        if (k->record) DT_TRY(dt_fill_images(set, k->record[j], from, b));
    }
    return DT_OK;
}

const dt_samples_ops dt_samples_packed = {
    .impl_nbytes = sizeof(packed), .open = packed_open, .counts = packed_counts, .fill = packed_fill};
