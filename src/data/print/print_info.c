/* print_info.c - text report on a dataset file: sizes, lengths, targets, packing. */
#include "../kinds/kinds.h"
#include "dtrain/core/plural.h"
#include <inttypes.h>
#include <string.h>

enum { N_BINS = 41 }; /* bin k > 0: lengths 2^(k-1) .. 2^k - 1; bin 0: empty */

typedef struct lengths {
    int64_t bin[N_BINS], longest, most;
} lengths;

static dt_err count_lengths(void *arg, int64_t first, int64_t n, const uint64_t *offset)
{
    lengths *l = arg;
    for (int64_t i = 0; i < n; i++) {
        const int64_t len = (int64_t)(offset[i + 1] - offset[i]);
        int k = 0;
        while (k < N_BINS - 1 && len >> k) k++;
        if (++l->bin[k] > l->most) l->most = l->bin[k];
        if (len > l->longest) l->longest = len;
    }
    return DT_OK;
}

static dt_err print_lengths(dt_dataset *d, dt_side side, const char *what)
{
    lengths l = {.most = 1};
    DT_TRY(dt_dataset_each_block(d, side, count_lengths, &l));
    printf("longest      %" PRId64 " token%s%s%s\nlengths\n", l.longest, dt_plural(l.longest), what[0] ? " of " : "",
           what);
    for (int k = 0; k < N_BINS; k++) {
        if (!l.bin[k]) continue;
        const int64_t lo = k ? INT64_C(1) << (k - 1) : 0, hi = k ? (INT64_C(1) << k) - 1 : 0;
        const int width = (int)(40 * l.bin[k] / l.most);
        printf("  %10" PRId64 " to %-10" PRId64 " %10" PRId64 "  %.*s\n", lo, hi, l.bin[k], width > 0 ? width : 1,
               "########################################");
    }
    return DT_OK;
}

static dt_err print_rows(dt_dataset *d, int64_t seq_len)
{
    printf("rows of %" PRId64 " tokens\n", seq_len);
    for (int i = 0; i < DT_N_PACKINGS; i++) {
        dt_packing_info p;
        const dt_err err = dt_dataset_packing(d, dt_packings[i].name, seq_len, &p);
        if (err == DT_ERR_USAGE) {
            dt_error_clear(); /* not applicable to this kind */
            continue;
        }
        DT_TRY(err);
        printf("  %-10s %10" PRId64 " rows  %5.1f %% full  %12" PRId64 " targets  %" PRId64 " left out\n",
               dt_packings[i].name, p.n_rows,
               p.n_rows ? 100.0 * (double)p.n_tok / ((double)p.n_rows * (double)seq_len) : 0.0, p.n_target,
               p.n_dropped);
    }
    return DT_OK;
}

dt_err dt_count_mask(dt_dataset *d, int64_t *n)
{
    uint8_t chunk[1 << 16];
    *n = 0;
    for (int64_t first = 0; first < d->info.n_tokens; first += (int64_t)sizeof chunk) {
        const int64_t k = dt_min_i64((int64_t)sizeof chunk, d->info.n_tokens - first);
        DT_TRY(dt_dataset_read_mask(d, first, k, chunk));
        for (int64_t i = 0; i < k; i++) *n += chunk[i];
    }
    return DT_OK;
}

static dt_err print_images(dt_dataset *d)
{
    lengths images = {0}; /* of samples, in images */
    const dt_image_form *form = &d->info.images;
    if (!d->info.has_images) return DT_OK;
    DT_TRY(dt_dataset_each_block(d, DT_IMAGES, count_lengths, &images));
    const int64_t n_with = d->info.n_documents - images.bin[0];
    printf("images       %" PRId64 "%s of %" PRId64 " x %" PRId64 " pixels, each %" PRId64 " token%s of id %" PRId32
           "; in %" PRId64 " sample%s, at most %" PRId64 " in one\n",
           d->info.n_images, form->grids ? " cells" : "", form->size, form->size, form->n_tokens,
           dt_plural(form->n_tokens), form->token, n_with, dt_plural(n_with), images.longest);
    return DT_OK;
}

/* If the file does not store the size, print the largest token id. */
static dt_err print_vocabulary(dt_dataset *d)
{
    int32_t ids[1 << 14], largest = -1;
    const int64_t n = d->info.n_tokens, most = sizeof ids / sizeof ids[0];
    if (d->info.vocab_size > 0) {
        printf("vocab_size   %" PRId64 "\n", d->info.vocab_size);
        return DT_OK;
    }
    for (int64_t first = 0; first < n; first += most) {
        const int64_t k = dt_min_i64(n - first, most);
        DT_TRY(dt_dataset_read_tokens(d, first, k, ids));
        for (int64_t i = 0; i < k; i++)
            if (ids[i] > largest) largest = ids[i];
    }
    printf("vocab_size   not stored; the largest token id is %" PRId32 "\n", largest);
    return DT_OK;
}

dt_err dt_dataset_print_info(dt_dataset *d, int64_t seq_len)
{
    const dt_dataset_info *i = &d->info;
    printf("%s\nkind         %s\ntokens       %" PRId64 " (%s)\n", i->path, dt_dataset_kind_name(i->kind),
           i->n_tokens + i->n_second_tokens, i->token_type);
    DT_TRY(print_vocabulary(d));
    printf("tokenizer    %s\n", i->tokenizer[0] ? i->tokenizer : "not named");
    if (i->chat_template[0]) printf("template     %.200s\n", i->chat_template);
    if (i->n_documents >= 0)
        printf("%ss%*s%" PRId64 "\n", d->kind->noun, 12 - (int)strlen(d->kind->noun), "", i->n_documents);
    else
        printf("documents    not separated\n");
    for (int s = 0; s < dt_max_i64(1, d->kind->n_sequences) && i->n_documents > 0; s++)
        DT_TRY(print_lengths(d, (dt_side)s, d->kind->side[s]));
    if (d->kind->print_info) DT_TRY(d->kind->print_info(d));
    DT_TRY(print_images(d));
    if (seq_len > 0 && !d->kind->samples) DT_TRY(print_rows(d, seq_len));
    DT_TRY(dt_dataset_verify(d, NULL, NULL));
    printf("verified     %s\n",
           i->has_checksums ? "offsets, token ids, checksums" : "offsets, token ids (the file carries no checksums)");
    return DT_OK;
}
