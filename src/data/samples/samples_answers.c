/* samples_answers.c - samples are prompts with answers: the two texts of a pair, or one text, each its own
 * sequence in the batch. Targets are the tokens of the answers (algorithms.md 2, 3). A sample is dropped if
 * an answer is empty, or if a text exceeds T tokens and must not be cut. Lengths are kept in memory: samples
 * are numbered and steps counted without reading the file. */
#include "../kinds/kinds.h"
#include "samples_records.h"
#include "dtrain/core/plural.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Reason for dropping a sample, stored instead of n_target. Kept samples store n_target + STAYS. */
enum { NO_ANSWER, TOO_LONG, TIE, STAYS };

typedef struct answers {
    dt_records r;       /* all texts of a sample together */
    uint32_t *n_chosen; /* [r.n_alloc], r.n used: targets of the first text */
} answers;

typedef struct scan {
    dt_samples *set;
    answers *p;
    dt_side side;
    uint32_t *prompt; /* [n_alloc]: prompt lengths of a block */
    uint8_t *flag;    /* [n_alloc] */
    int64_t n_alloc;
} scan;

/* With prompt_targets, all tokens of a first text are targets but token 0. */
static bool prompt_is_target(const dt_samples *set, dt_side side)
{
    return set->opt.prompt_targets && side == DT_SIDE_FIRST;
}

/* Add one side of a sample: its tokens after the cut, and the targets among them (token 0 is never one). */
static void add_side(const scan *s, int64_t i, uint64_t n, uint32_t prompt, bool tie)
{
    dt_record_len *len = &s->p->r.len[i];
    const uint64_t T = (uint64_t)s->set->opt.seq_len, kept = n < T ? n : T, first = prompt > 0 ? prompt : 1;
    if (s->side == DT_SIDE_FIRST) *len = (dt_record_len){0, STAYS};
    if (len->n_target < STAYS) return; /* already dropped */
    if (tie)
        len->n_target = TIE;
    else if (n > T && !s->set->opt.truncate)
        len->n_target = TOO_LONG;
    else if (kept <= first)
        len->n_target = NO_ANSWER;
    else
        *len = (dt_record_len){len->n_tok + (uint32_t)kept,
                               len->n_target + (uint32_t)(kept - (prompt_is_target(s->set, s->side) ? 1 : first))};
    if (s->side == DT_SIDE_FIRST && len->n_target >= STAYS) s->p->n_chosen[i] = len->n_target - STAYS;
}

static dt_err scan_block(void *arg, int64_t first, int64_t n, const uint64_t *offset)
{
    scan *s = arg;
    const dt_dataset *d = s->set->dataset;
    if (n > s->n_alloc) {
        DT_RESIZE(s->prompt, n, "%s: no memory to read the lengths of prompts", d->path);
        DT_RESIZE(s->flag, n, "%s: no memory to read the lengths of prompts", d->path);
        s->n_alloc = n;
    }
    const bool last = (int)s->side == d->kind->n_sequences - 1;
    DT_TRY(dt_array_read(&d->column[DT_COL_PROMPT + (int)s->side], first, n, s->prompt));
    if (d->info.has_flags)
        DT_TRY(dt_array_read(&d->column[DT_COL_FLAGS], first, n, s->flag));
    else
        memset(s->flag, 0, (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        const uint64_t n_tok = offset[i + 1] - offset[i];
        DT_CHECK(s->prompt[i] <= n_tok, DT_ERR_DATA,
                 "%s: %s[%" PRId64 "] = %" PRIu32 ", but the text has %" PRIu64 " token%s", d->path,
                 d->column[DT_COL_PROMPT + (int)s->side].name, first + i, s->prompt[i], n_tok,
                 dt_plural((int64_t)n_tok));
        add_side(s, first + i, n_tok, s->prompt[i], s->set->opt.no_ties && s->flag[i]);
        s->set->n_flagged += last && s->flag[i] && s->p->r.len[first + i].n_target >= STAYS;
    }
    return DT_OK;
}

/* Compact the kept samples, in file order. */
static dt_err keep(dt_samples *set, answers *p)
{
    dt_records *r = &p->r;
    for (int64_t i = 0; i < r->n_alloc; i++) {
        dt_record_len len = r->len[i];
        if (len.n_target >= STAYS) {
            len.n_target -= STAYS;
            p->n_chosen[r->n] = p->n_chosen[i];
            r->len[r->n++] = len;
            continue;
        }
        set->n_too_long += len.n_target == TOO_LONG;
        set->n_ties += len.n_target == TIE;
        set->n_dropped += len.n_target == NO_ANSWER;
        DT_TRY(dt_records_drop(r, set, i));
    }
    return DT_OK;
}

static dt_err answers_open(dt_samples *set)
{
    answers *p = set->impl;
    dt_records *r = &p->r;
    r->n_alloc = set->dataset->info.n_documents;
    DT_COUNTED_ALLOC(&set->memory, r->len, r->n_alloc, "%s: out of memory for the lengths of %" PRId64 " samples",
                     set->dataset->path, r->n_alloc);
    DT_COUNTED_ALLOC(&set->memory, p->n_chosen, r->n_alloc, "%s: out of memory for the lengths of %" PRId64 " samples",
                     set->dataset->path, r->n_alloc);
    scan s = {.set = set, .p = p};
    dt_err err = DT_OK;
    for (int side = 0; side < set->dataset->kind->n_sequences && err == DT_OK; side++) {
        s.side = (dt_side)side;
        err = dt_dataset_each_block(set->dataset, s.side, scan_block, &s);
    }
    free(s.prompt);
    free(s.flag);
    DT_TRY(err);
    DT_TRY(keep(set, p));
    set->n_samples = r->n;
    set->max_seq = set->dataset->kind->n_sequences;
    set->max_tok = set->max_seq * set->opt.seq_len;
    return dt_records_scan_images(r, set, &set->max_images);
}

static void answers_counts(const dt_samples *set, int64_t i, dt_sample_counts *c)
{
    const answers *p = set->impl;
    const dt_record_len *len = &p->r.len[i];
    *c = (dt_sample_counts){len->n_tok, len->n_target, len->n_target * dt_weight_fixed(1), p->n_chosen[i],
                            p->r.n_images && p->r.n_images[i]};
}

static size_t lay_out_labels(void *self, int32_t max_seq, void *block)
{
    dt_batch_labels *l = self;
    size_t used = 0;
    l->margin = dt_carve(block, &used, max_seq, sizeof *l->margin);
    l->flag = dt_carve(block, &used, max_seq, sizeof *l->flag);
    l->safety = dt_carve(block, &used, max_seq, sizeof *l->safety);
    l->n_prompt = dt_carve(block, &used, max_seq, sizeof *l->n_prompt);
    return used;
}

static const dt_extension_form labels = {"labels of answers", sizeof(dt_batch_labels), lay_out_labels};

const dt_batch_labels *dt_labels_of(const dt_batch *b) { return dt_batch_extension(b, &labels); }

static void label(const dt_samples *set, dt_batch *b, const dt_pair *pair)
{
    const dt_batch_labels *l = dt_labels_of(b);
    const int32_t n_prompt = (int32_t)pair->prompt_length[0];
    l->n_prompt[b->n_samples] = prompt_is_target(set, DT_SIDE_FIRST) && n_prompt > 1 ? n_prompt - 1 : 0;
    l->margin[b->n_samples] = pair->margin;
    l->flag[b->n_samples] = pair->flag;
    for (int side = 0; side < set->max_seq; side++) l->safety[b->n_seq + side] = (uint8_t)pair->safety[side];
}

static dt_err fill_side(const dt_samples *set, int64_t number, dt_side side, const dt_pair *pair, dt_batch *b,
                        dt_fill_scratch *scratch)
{
    int64_t first, n;
    DT_TRY(dt_dataset_part(set->dataset, side, number, &first, &n));
    n = n < set->opt.seq_len ? n : set->opt.seq_len;
    int32_t *ids = b->token + b->n_tok;
    DT_TRY(dt_dataset_read_side(set->dataset, side, first, n, ids));
    for (int64_t t = 0; t < n; t++)
        scratch->mask[t] = prompt_is_target(set, side) || t >= (int64_t)pair->prompt_length[side];
    const int32_t from = b->n_tok;
    dt_fill_document(b, ids, scratch->mask, n, 1);
    return (side == DT_SIDE_FIRST ? dt_fill_images : dt_fill_same_images)(set, number, from, b);
}

static dt_err answers_fill(const dt_samples *set, int64_t i, dt_batch *b, dt_fill_scratch *scratch)
{
    const dt_records *r = &((const answers *)set->impl)->r;
    const int64_t number = dt_records_number(r, i);
    const int32_t before = b->n_tok;
    dt_pair pair;
    DT_TRY(dt_dataset_read_pair(set->dataset, number, &pair));
    label(set, b, &pair);
    for (int side = 0; side < set->max_seq; side++) DT_TRY(fill_side(set, number, (dt_side)side, &pair, b, scratch));
    DT_CHECK(b->n_tok - before == (int32_t)r->len[i].n_tok, DT_ERR_DATA, "%s: offsets changed while the file was open",
             set->dataset->path);
    return DT_OK;
}

/* The tokens of sample i in its file; *n_prompt: the length of its prompt. */
static dt_err find_text(const dt_samples *set, int64_t i, int64_t *first, int64_t *n, int64_t *n_prompt)
{
    const int64_t number = dt_records_number(&((const answers *)set->impl)->r, i);
    dt_pair answer;
    DT_TRY(dt_dataset_read_pair(set->dataset, number, &answer));
    *n_prompt = answer.prompt_length[0];
    return dt_dataset_document(set->dataset, number, first, n);
}

static dt_err answers_fill_mismatched(const dt_samples *set, int64_t i, const dt_samples *other, int64_t j, dt_batch *b,
                                      dt_fill_scratch *scratch)
{
    const int64_t T = set->opt.seq_len;
    const int32_t from = b->n_tok;
    int64_t first, n, n_prompt, other_first, other_n, other_prompt;
    DT_TRY(find_text(set, i, &first, &n, &n_prompt));
    DT_TRY(find_text(other, j, &other_first, &other_n, &other_prompt));
    const int64_t n_answer = dt_min_i64(other_n - other_prompt, T - n_prompt);
    DT_CHECK(n_answer >= 0, DT_ERR_DATA, "%s: offsets changed while the file was open", set->dataset->path);
    int32_t *ids = b->token + b->n_tok;
    DT_TRY(dt_dataset_read_tokens(set->dataset, first, n_prompt, ids));
    DT_TRY(dt_dataset_read_tokens(other->dataset, other_first + other_prompt, n_answer, ids + n_prompt));
    for (int64_t t = 0; t < n_prompt + n_answer; t++) scratch->mask[t] = t >= n_prompt;
    dt_fill_document(b, ids, scratch->mask, n_prompt + n_answer, 1);
    return dt_fill_images(set, dt_records_number(&((const answers *)set->impl)->r, i), from, b);
}

const dt_samples_ops dt_samples_answers = {.impl_nbytes = sizeof(answers),
                                           .extension = &labels,
                                           .open = answers_open,
                                           .counts = answers_counts,
                                           .fill = answers_fill,
                                           .fill_mismatched = answers_fill_mismatched};
