/* token_batch.c - one allocation per batch: a prefetcher owns a ring of batches, and a step allocates nothing. */
#include "dtrain/core/token_batch.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64, RADIX_BITS = 11, RADIX = 1 << RADIX_BITS };

static size_t padded(size_t nbytes) { return (nbytes + ALIGN - 1) / ALIGN * ALIGN; }

/* Assign the arrays in block (NULL: only count). Returns their bytes. */
static size_t lay_out(dt_batch *b, void *block)
{
    const int64_t T = b->max_tok, S = b->max_seq;
    size_t used = 0;
    b->token = dt_carve(block, &used, T, sizeof *b->token); /* first: the address that dt_batch_free frees */
    b->target = dt_carve(block, &used, T, sizeof *b->target);
    b->pos = dt_carve(block, &used, T, sizeof *b->pos);
    b->order = dt_carve(block, &used, T, sizeof *b->order);
    b->weight = dt_carve(block, &used, T, sizeof *b->weight);
    b->target_row = dt_carve(block, &used, T, sizeof *b->target_row);
    b->seq_start = dt_carve(block, &used, S + 1, sizeof *b->seq_start);
    b->seq_target = dt_carve(block, &used, S + 1, sizeof *b->seq_target);
    b->full_len = dt_carve(block, &used, S, sizeof *b->full_len);
    b->prompt_len = dt_carve(block, &used, S, sizeof *b->prompt_len);
    b->sample = dt_carve(block, &used, S, sizeof *b->sample);
    b->token_key = dt_carve(block, &used, T, sizeof *b->token_key);
    return used;
}

size_t dt_batch_nbytes(int32_t max_tok, int32_t max_seq)
{
    return padded(lay_out(&(dt_batch){.max_tok = max_tok, .max_seq = max_seq}, NULL));
}

dt_err dt_batch_alloc(dt_batch *b, int32_t max_tok, int32_t max_seq, dt_ledger *ledger)
{
    *b = (dt_batch){0};
    DT_EXPECT(max_tok > 0 && max_seq > 0);
    const size_t nbytes = dt_batch_nbytes(max_tok, max_seq);
    char text[24];
    void *block = aligned_alloc(ALIGN, nbytes);
    DT_CHECK(block, DT_ERR_MEMORY, "out of memory for a batch of %d tokens (%s)", max_tok,
             dt_format_bytes((double)nbytes, text));
    memset(block, 0, nbytes);
    dt_ledger_add(ledger, DT_MEM_DATA, DT_ON_HOST, nbytes);
    b->max_tok = max_tok, b->max_seq = max_seq;
    lay_out(b, block);
    return DT_OK;
}

struct dt_extension {
    const dt_extension_form *form;
    dt_extension *next;
    size_t nbytes;
    _Alignas(16) char self[]; /* the form's structure, then its arrays */
};

static size_t place_of_arrays(const dt_extension_form *form)
{
    return padded(sizeof(dt_extension) + form->self_nbytes);
}

size_t dt_extension_nbytes(const dt_extension_form *form, const void *sizes, int32_t max_seq)
{
    _Alignas(16) char self[DT_EXTENSION_NBYTES] = {0};
    if (!form) return 0;
    if (sizes) memcpy(self, sizes, form->self_nbytes);
    return place_of_arrays(form) + padded(form->lay_out(self, max_seq, NULL));
}

dt_err dt_batch_extend(dt_batch *b, const dt_extension_form *form, const void *sizes, dt_ledger *ledger)
{
    DT_EXPECT(form->self_nbytes <= DT_EXTENSION_NBYTES);
    const size_t nbytes = dt_extension_nbytes(form, sizes, b->max_seq);
    dt_extension *e = aligned_alloc(ALIGN, nbytes);
    DT_CHECK(e, DT_ERR_MEMORY, "out of memory for the %s of a batch of %d sequences", form->name, b->max_seq);
    memset(e, 0, nbytes);
    *e = (dt_extension){.form = form, .next = b->extensions, .nbytes = nbytes};
    if (sizes) memcpy(e->self, sizes, form->self_nbytes);
    form->lay_out(e->self, b->max_seq, (char *)e + place_of_arrays(form));
    b->extensions = e;
    dt_ledger_add(ledger, DT_MEM_DATA, DT_ON_HOST, nbytes);
    return DT_OK;
}

void *dt_batch_extension(const dt_batch *b, const dt_extension_form *form)
{
    dt_extension *e = b->extensions;
    while (e && e->form != form) e = e->next;
    return e ? e->self : NULL;
}

static void free_extensions(dt_batch *b, dt_ledger *ledger)
{
    for (dt_extension *e = b->extensions, *next; e; e = next) {
        next = e->next;
        dt_ledger_sub(ledger, DT_MEM_DATA, DT_ON_HOST, e->nbytes);
        free(e);
    }
}

void dt_batch_free(dt_batch *b, dt_ledger *ledger)
{
    free_extensions(b, ledger);
    if (b->token) dt_ledger_sub(ledger, DT_MEM_DATA, DT_ON_HOST, dt_batch_nbytes(b->max_tok, b->max_seq));
    free(b->token);
    *b = (dt_batch){0};
}

void dt_batch_clear(dt_batch *b)
{
    b->n_tok = b->n_seq = 0;
    b->n_samples = 0;
    b->seq_start[0] = 0;
}

void dt_batch_append(dt_batch *b, const int32_t *ids, int32_t n, int32_t n_context)
{
    for (int32_t i = 0; i < n; i++, b->n_tok++) {
        const bool predicts = i + 1 >= n_context;
        b->token[b->n_tok] = ids[i];
        b->target[b->n_tok] = predicts ? ids[i + 1] : -1;
        b->weight[b->n_tok] = predicts;
        b->pos[b->n_tok] = i;
        b->token_key[b->n_tok] = 0;
    }
    b->full_len[b->n_seq++] = 0;
    b->seq_start[b->n_seq] = b->n_tok;
    b->n_samples = b->n_seq;
}

/* One stable counting sort by the digit at `shift`; from NULL is the identity. */
static void sort_by_digit(const int32_t *token, int32_t n, int shift, const int32_t *from, int32_t *to)
{
    int32_t start[RADIX + 1] = {0};
    for (int32_t i = 0; i < n; i++) start[1 + (((uint32_t)token[i] >> shift) & (RADIX - 1))]++;
    for (int d = 0; d < RADIX; d++) start[d + 1] += start[d];
    for (int32_t i = 0; i < n; i++) {
        const int32_t t = from ? from[i] : i;
        to[start[((uint32_t)token[t] >> shift) & (RADIX - 1)]++] = t;
    }
}

/* Least significant digit first. Only the digits of the largest token are sorted: two for vocabularies up to 4
 * million. */
static void sort_tokens(dt_batch *b)
{
    uint32_t all_bits = 0;
    for (int32_t i = 0; i < b->n_tok; i++) all_bits |= (uint32_t)b->token[i];
    int n_digits = 1;
    while (n_digits < 3 && all_bits >> (n_digits * RADIX_BITS)) n_digits++;

    int32_t *const other = b->target_row, *from = NULL; /* target_row is computed afterwards */
    for (int d = 0; d < n_digits; d++) {
        int32_t *to = (n_digits - 1 - d) % 2 == 0 ? b->order : other; /* the last pass writes to order */
        sort_by_digit(b->token, b->n_tok, d * RADIX_BITS, from, to);
        from = to;
    }
}

void dt_batch_finish(dt_batch *b)
{
    sort_tokens(b);
    int32_t n = 0;
    b->weight_fixed = 0;
    for (int32_t s = 0; s < b->n_seq; s++) {
        b->seq_target[s] = n;
        for (int32_t i = b->seq_start[s]; i < b->seq_start[s + 1]; i++) {
            if (b->target[i] < 0) continue;
            b->target_row[n++] = i;
            b->weight_fixed += llrint((double)b->weight[i] * 0x1p20);
        }
    }
    b->seq_target[b->n_seq] = n;
    b->n_target = n;
}
