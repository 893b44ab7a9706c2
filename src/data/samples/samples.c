/* samples.c - code shared by the five layouts. The shift of targets for whole documents is implemented only here. */
#include "samples.h"
#include <stdlib.h>
#include <string.h>

const dt_packing dt_packings[DT_N_PACKINGS] = {{"none", &dt_samples_records, .of_sft = true},
                                               {"wrapped", &dt_samples_wrapped, .of_tokens = true},
                                               {"bfd", &dt_samples_packed, .of_tokens = true, .of_sft = true},
                                               {"bfd_split", &dt_samples_packed, .of_tokens = true, .split = true}};

const dt_packing *dt_packing_find(const char *name)
{
    for (int i = 0; i < DT_N_PACKINGS; i++)
        if (strcmp(name, dt_packings[i].name) == 0) return &dt_packings[i];
    return NULL;
}

dt_err dt_samples_open(dt_samples *set, const dt_samples_ops *ops, dt_dataset *dataset, const dt_samples_options *opt,
                       dt_ledger *ledger)
{
    *set = (dt_samples){.ops = ops,
                        .dataset = dataset,
                        .opt = *opt,
                        .max_tok = opt->seq_len,
                        .max_seq = 1,
                        .impl = calloc(1, ops->impl_nbytes + 1),
                        .memory.ledger = ledger};
    const dt_err err = set->impl ? ops->open(set) : dt_fail(DT_ERR_MEMORY, "%s: no memory", dataset->path);
    if (err != DT_OK) dt_samples_close(set);
    return err;
}

void dt_samples_close(dt_samples *set)
{
    dt_counted_free_all(&set->memory);
    free(set->impl);
    *set = (dt_samples){0};
}

void dt_fill_document(dt_batch *b, const int32_t *ids, const uint8_t *mask, int64_t n, float weight)
{
    dt_batch_images *images = dt_images_of(b);
    b->seq_start[b->n_seq++] = b->n_tok;
    if (images) dt_images_append(images, b->n_seq - 1, 0);
    int32_t *token = b->token + b->n_tok, *target = b->target + b->n_tok, *pos = b->pos + b->n_tok;
    float *w = b->weight + b->n_tok;
    const float counted = dt_weight_counted(weight);
    if (token != ids) memcpy(token, ids, (size_t)n * sizeof *token);
    for (int64_t t = 0; t < n; t++) {
        const bool predicts = t + 1 < n && (!mask || mask[t + 1]);
        target[t] = predicts ? ids[t + 1] : -1;
        w[t] = predicts ? counted : 0;
        pos[t] = (int32_t)t;
    }
    b->n_tok += (int32_t)n;
}

dt_err dt_fill_record(const dt_samples *set, int64_t first, int64_t n, float weight, dt_batch *b,
                      dt_fill_scratch *scratch)
{
    int32_t *ids = b->token + b->n_tok;
    const bool masked = set->dataset->column[DT_COL_MASK].path;
    DT_TRY(dt_dataset_read_tokens(set->dataset, first, n, ids));
    if (masked) DT_TRY(dt_dataset_read_mask(set->dataset, first, n, scratch->mask));
    dt_fill_document(b, ids, masked ? scratch->mask : NULL, n, weight);
    return DT_OK;
}
