/* samples_prompts.c - samples of a prompts file are its prompts. They are not batched but read one by one
 * (dt_loader_prompt), because each starts a sequence that the model completes. */
#include "samples.h"
#include <inttypes.h>

dt_err dt_samples_cut_answer(dt_dataset *d, int64_t record, int64_t first, int64_t *n_tok)
{
    uint8_t mask[1024];
    bool in_answer = false;
    if (d->info.kind != DT_DATASET_SFT) return DT_OK;
    for (int64_t end = *n_tok; end > 0;) {
        const int64_t n = dt_min_i64(end, sizeof mask), from = end - n;
        DT_TRY(dt_dataset_read_mask(d, first + from, n, mask));
        for (; end > from && (mask[end - 1 - from] || !in_answer); end--) in_answer |= mask[end - 1 - from];
        if (end > from) return *n_tok = end, DT_OK;
    }
    DT_CHECK(!in_answer, DT_ERR_DATA, "%s: record %" PRId64 ": expected a prompt before its answer, found none",
             d->path, record);
    return DT_OK;
}

/* Does prompt i, whose tokens end before `end`, end with an image? */
static dt_err find_tail(dt_samples *set, int64_t i, int64_t end)
{
    dt_dataset *d = set->dataset;
    int64_t first_image, n_images;
    int32_t last;
    if (!d->info.has_images) return DT_OK;
    DT_TRY(dt_dataset_read_tokens(d, end - 1, 1, &last));
    if (last != d->info.images.token) return DT_OK;
    DT_TRY(dt_dataset_images_of(d, i, &first_image, &n_images));
    set->max_tail = dt_max_i64(set->max_tail, n_images * d->info.images.n_tokens);
    return DT_OK;
}

static dt_err find_longest(void *arg, int64_t first, int64_t n, const uint64_t *offset)
{
    dt_samples *set = arg;
    for (int64_t i = 0; i < n; i++) {
        int64_t n_tok = (int64_t)(offset[i + 1] - offset[i]);
        DT_TRY(dt_samples_cut_answer(set->dataset, first + i, (int64_t)offset[i], &n_tok));
        DT_CHECK(n_tok > 0, DT_ERR_DATA, "%s: prompt %" PRId64 ": expected at least one token, found none",
                 set->dataset->path, first + i);
        DT_TRY(find_tail(set, first + i, (int64_t)offset[i] + n_tok));
        set->max_tok = dt_max_i64(set->max_tok, n_tok);
    }
    return DT_OK;
}

static dt_err find_most_images(void *arg, int64_t first, int64_t n, const uint64_t *offset)
{
    dt_samples *set = arg;
    for (int64_t i = 0; i < n; i++) set->max_images = dt_max_i64(set->max_images, (int64_t)(offset[i + 1] - offset[i]));
    return DT_OK;
}

static dt_err prompts_open(dt_samples *set)
{
    set->n_samples = set->dataset->info.n_documents;
    set->max_tok = 0;
    if (set->dataset->info.has_images) DT_TRY(dt_dataset_each_block(set->dataset, DT_IMAGES, find_most_images, set));
    return dt_dataset_each_block(set->dataset, DT_SIDE_FIRST, find_longest, set);
}

const dt_samples_ops dt_samples_prompts = {.open = prompts_open};
