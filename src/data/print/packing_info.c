/* packing_info.c - packing statistics of a file: opens its samples as training does and sums their counts. */
#include "../kinds/kinds.h"

dt_err dt_dataset_packing(dt_dataset *d, const char *packing, int64_t seq_len, dt_packing_info *info)
{
    const dt_packing *p = dt_packing_find(packing);
    const bool sft = d->info.kind == DT_DATASET_SFT;
    *info = (dt_packing_info){0};
    DT_CHECK(seq_len >= 1 && seq_len <= 1 << 26, DT_ERR_USAGE, "seq_len: expected 1 to %d, found %lld", 1 << 26,
             (long long)seq_len);
    DT_CHECK(p && !d->kind->samples && (sft ? p->of_sft : p->of_tokens), DT_ERR_USAGE,
             "%s: packing %s does not support kind %s", d->path, packing, dt_dataset_kind_name(d->info.kind));
    DT_CHECK(p->ops == &dt_samples_wrapped || d->info.n_documents >= 0, DT_ERR_USAGE,
             "%s: packing %s needs document offsets", d->path, packing);
    dt_ledger ledger = {0};
    dt_samples set;
    DT_TRY(dt_samples_open(&set, p->ops, d, &(dt_samples_options){.seq_len = seq_len, .split = p->split}, &ledger));
    info->n_rows = set.n_samples;
    info->n_dropped = set.n_dropped;
    for (int64_t i = 0; i < set.n_samples; i++) {
        dt_sample_counts c;
        set.ops->counts(&set, i, &c);
        info->n_tok += c.n_tok;
        info->n_target += c.n_target;
    }
    dt_samples_close(&set);
    return DT_OK;
}
