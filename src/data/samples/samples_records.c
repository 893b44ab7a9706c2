/* samples_records.c - samples of an sft file are its records with at least one target. One pass over the
 * masks at opening finds them and their target counts. With these, 8 bytes per record, samples are numbered
 * and steps counted without reading the file.
 *
 * The list holds the dropped records, not the kept ones, because usually few are dropped. */
#include "samples_records.h"
#include "sample_images.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CUT_IMAGE UINT32_MAX /* instead of the number of targets: drop the record */
enum { CHUNK = 1024, WINDOW = 1 << 18, MESSAGE_SIZE = 1024 };

/* ---- the scan ---------------------------------------------------------------------------------------------------- */

/* A window of the mask in memory: first .. end-1. */
typedef struct window {
    uint8_t *bytes; /* [WINDOW] */
    int64_t first, end;
} window;

typedef struct scan {
    dt_samples *set;
    dt_records *r;
    uint32_t *n_target; /* per record of a block, as the other arrays */
    uint32_t *n_lost;   /* targets after the cut */
    float *weight;
    int64_t block_alloc;
    /* error of the lowest chunk, so that the reported error does not depend on thread timing */
    dt_err err;
    int64_t err_chunk;
    char message[MESSAGE_SIZE];
} scan;

/* Count the targets of the record at tokens first .. first+n-1, excluding its first token. The mask is
 * read through the window, reading ahead up to read_end for the records that follow. */
static dt_err targets_of(dt_dataset *d, window *w, int64_t first, int64_t n, int64_t read_end, uint32_t *n_target)
{
    uint32_t count = 0;
    for (int64_t at = first + 1; at < first + n;) { /* token 0 is never a target */
        if (at < w->first || at >= w->end) {
            const int64_t left = read_end - at, k = left < WINDOW ? left : WINDOW;
            *w = (window){w->bytes, at, at + k};
            DT_TRY(dt_dataset_read_mask(d, at, k, w->bytes));
        }
        const int64_t end = first + n < w->end ? first + n : w->end;
        for (const uint8_t *m = w->bytes + (at - w->first), *last = w->bytes + (end - w->first); m < last; m++)
            count += *m;
        at = end;
    }
    *n_target = count;
    return DT_OK;
}

static int64_t cut(const scan *s, uint64_t n)
{
    return n < (uint64_t)s->set->opt.seq_len ? (int64_t)n : s->set->opt.seq_len;
}

/* A record whose cut would remove a placeholder is dropped. */
static dt_err check_lost_images(scan *s, int64_t first, int64_t end, uint32_t *n_target)
{
    int64_t n;
    DT_TRY(dt_dataset_count_placeholders(s->set->dataset, DT_SIDE_FIRST, first, end - first, &n));
    if (n > 0) *n_target = CUT_IMAGE;
    return DT_OK;
}

static dt_err scan_chunk(scan *s, const uint64_t *offset, int64_t from, int64_t to)
{
    window w = {.bytes = malloc(WINDOW)};
    DT_CHECK(w.bytes, DT_ERR_MEMORY, "%s: no memory to read the loss mask", s->set->dataset->path);
    dt_err err = DT_OK;
    for (int64_t i = from; i < to && err == DT_OK; i++) {
        const int64_t first = (int64_t)offset[i], n = cut(s, offset[i + 1] - offset[i]);
        const int64_t end = (int64_t)offset[i + 1], read_end = (int64_t)offset[to];
        s->n_lost[i] = 0;
        err = targets_of(s->set->dataset, &w, first, n, read_end, &s->n_target[i]);
        if (first + n == end || err != DT_OK) continue;
        err = targets_of(s->set->dataset, &w, first + n - 1, end - first - n + 1, read_end, &s->n_lost[i]);
        if (err == DT_OK) err = check_lost_images(s, first + n, end, &s->n_target[i]);
    }
    free(w.bytes);
    return err;
}

/* Error messages are per thread: copy the message for the thread that returns. */
static void note_error(scan *s, int64_t chunk, dt_err err)
{
#pragma omp critical(dt_records_error)
    if (s->err == DT_OK || chunk < s->err_chunk) {
        s->err = err;
        s->err_chunk = chunk;
        snprintf(s->message, sizeof s->message, "%s", dt_error_message());
    }
    dt_error_clear();
}

dt_err dt_records_drop(dt_records *r, dt_samples *set, int64_t number)
{
    if (r->n_dropped == r->dropped_alloc) {
        int64_t *const before = r->dropped;
        r->dropped_alloc = before ? 2 * r->dropped_alloc : 64;
        DT_COUNTED_ALLOC(&set->memory, r->dropped, r->dropped_alloc, "%s: no memory to list dropped samples",
                         set->dataset->path);
        if (before) memcpy(r->dropped, before, (size_t)r->n_dropped * sizeof *before);
        dt_counted_free(&set->memory, before);
    }
    r->dropped[r->n_dropped++] = number;
    return DT_OK;
}

static void count_cut(scan *s, uint64_t n_tok, uint32_t n_target, uint32_t n_lost)
{
    dt_cut_counts *c = &s->set->cut;
    if (n_tok <= (uint64_t)s->set->opt.seq_len || n_target == CUT_IMAGE) return;
    *c = (dt_cut_counts){c->n + 1, c->n_target + n_target + n_lost, c->n_lost + n_lost};
}

/* Add records first .. first+n-1: keep their lengths, or list them as dropped if no target is left. */
static dt_err keep_block(scan *s, int64_t first, int64_t n, const uint64_t *offset)
{
    dt_records *r = s->r;
    if (r->weight) DT_TRY(dt_dataset_read_weights(s->set->dataset, first, n, s->weight));
    for (int64_t i = 0; i < n; i++) {
        r->n_cut += s->n_target[i] == CUT_IMAGE;
        count_cut(s, offset[i + 1] - offset[i], s->n_target[i], s->n_lost[i]);
        if (s->n_target[i] == 0 || s->n_target[i] == CUT_IMAGE) {
            DT_TRY(dt_records_drop(r, s->set, first + i));
            continue;
        }
        if (r->weight) r->weight[r->n] = s->weight[i];
        r->len[r->n++] = (dt_record_len){(uint32_t)cut(s, offset[i + 1] - offset[i]), s->n_target[i]};
    }
    return DT_OK;
}

/* A block of /offsets: all threads read its masks. Then one thread adds its records, in order. */
static dt_err scan_block(void *arg, int64_t first, int64_t n, const uint64_t *offset)
{
    scan *s = arg;
    if (n > s->block_alloc) {
        DT_RESIZE(s->n_target, n, "%s: no memory to count targets", s->set->dataset->path);
        DT_RESIZE(s->weight, n, "%s: no memory to count targets", s->set->dataset->path);
        DT_RESIZE(s->n_lost, n, "%s: no memory to count targets", s->set->dataset->path);
        s->block_alloc = n;
    }
    const bool large = offset[n] - offset[0] > 1 << 20; /* for less, starting threads costs more than it saves */
#pragma omp parallel for schedule(dynamic) if (large)
    for (int64_t from = 0; from < n; from += CHUNK) {
        const dt_err err = scan_chunk(s, offset, from, from + CHUNK < n ? from + CHUNK : n);
        if (err != DT_OK) note_error(s, from, err);
    }
    if (s->err != DT_OK) return dt_fail(s->err, "%s", s->message);
    return keep_block(s, first, n, offset);
}

typedef struct image_scan {
    dt_records *r;
    int64_t kept, dropped, most; /* records so far; maximum images of one */
} image_scan;

static dt_err note_images(void *arg, int64_t first, int64_t n, const uint64_t *offset)
{
    image_scan *s = arg;
    for (int64_t i = 0; i < n; i++) {
        if (s->dropped < s->r->n_dropped && s->r->dropped[s->dropped] == first + i) {
            s->dropped++;
            continue;
        }
        const uint64_t n_images = offset[i + 1] - offset[i];
        DT_CHECK(n_images < UINT32_MAX, DT_ERR_DATA, "record %" PRId64 " has %" PRIu64 " images", first + i, n_images);
        s->r->n_images[s->kept++] = (uint32_t)n_images;
        s->most = dt_max_i64(s->most, (int64_t)n_images);
    }
    return DT_OK;
}

dt_err dt_records_scan_images(dt_records *r, dt_samples *set, int64_t *most)
{
    *most = 0;
    if (!set->dataset->info.has_images) return DT_OK;
    DT_COUNTED_ALLOC(&set->memory, r->n_images, r->n_alloc, "%s: out of memory for the images of %" PRId64 " samples",
                     set->dataset->path, r->n_alloc);
    image_scan s = {.r = r};
    DT_TRY(dt_dataset_each_block(set->dataset, DT_IMAGES, note_images, &s));
    *most = s.most;
    return DT_OK;
}

dt_err dt_records_scan(dt_records *r, dt_samples *set)
{
    *r = (dt_records){.n_alloc = set->dataset->info.n_documents};
    DT_COUNTED_ALLOC(&set->memory, r->len, r->n_alloc, "%s: out of memory for the lengths of %" PRId64 " samples",
                     set->dataset->path, r->n_alloc);
    if (set->dataset->info.has_weights)
        DT_COUNTED_ALLOC(&set->memory, r->weight, r->n_alloc,
                         "%s: out of memory for the lengths of %" PRId64 " samples", set->dataset->path, r->n_alloc);
    scan s = {.set = set, .r = r};
    const dt_err err = dt_dataset_each_block(set->dataset, DT_SIDE_FIRST, scan_block, &s);
    free(s.n_target);
    free(s.weight);
    free(s.n_lost);
    return err;
}

void dt_records_free(dt_records *r, dt_samples *set)
{
    dt_counted_free(&set->memory, r->len);
    dt_counted_free(&set->memory, r->weight);
    dt_counted_free(&set->memory, r->n_images);
    dt_counted_free(&set->memory, r->dropped);
    *r = (dt_records){0};
}

/* Binary search: dropped[i] - i kept records precede dropped[i], so those i with dropped[i] - i <= k
 * precede the k-th kept record. */
int64_t dt_records_number(const dt_records *r, int64_t k)
{
    int64_t lo = 0, hi = r->n_dropped;
    while (lo < hi) {
        const int64_t mid = lo + (hi - lo) / 2;
        if (r->dropped[mid] - mid <= k)
            lo = mid + 1;
        else
            hi = mid;
    }
    return k + lo;
}

/* ---- function table ---------------------------------------------------------------------------------------------- */

static dt_err records_open(dt_samples *set)
{
    dt_records *r = set->impl;
    DT_TRY(dt_records_scan(r, set));
    set->n_samples = r->n;
    set->n_dropped = r->n_dropped - r->n_cut;
    set->n_too_long = r->n_cut;
    return dt_records_scan_images(r, set, &set->max_images);
}

static void records_counts(const dt_samples *set, int64_t i, dt_sample_counts *c)
{
    const dt_records *r = set->impl;
    c->n_tok = r->len[i].n_tok;
    c->n_target = r->len[i].n_target;
    c->weight_fixed = c->n_target * dt_weight_fixed(r->weight ? r->weight[i] : 1);
    c->images = r->n_images && r->n_images[i];
}

static dt_err records_fill(const dt_samples *set, int64_t i, dt_batch *b, dt_fill_scratch *scratch)
{
    const dt_records *r = set->impl;
    const int64_t number = dt_records_number(r, i);
    const int32_t from = b->n_tok;
    int64_t first, n;
    DT_TRY(dt_dataset_document(set->dataset, number, &first, &n));
    n = n < set->opt.seq_len ? n : set->opt.seq_len;
    DT_CHECK(n == r->len[i].n_tok, DT_ERR_DATA, "%s: offsets changed while the file was open", set->dataset->path);
    DT_TRY(dt_fill_record(set, first, n, r->weight ? r->weight[i] : 1, b, scratch));
    return dt_fill_images(set, number, from, b);
}

const dt_samples_ops dt_samples_records = {
    .impl_nbytes = sizeof(dt_records), .open = records_open, .counts = records_counts, .fill = records_fill};
