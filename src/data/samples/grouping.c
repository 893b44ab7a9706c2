/* grouping.c - groups are computed once, not per epoch. The lookup of a position is therefore a pure function, which
 * the prefetching thread and the main thread can call without shared state. */
#include "grouping.h"
#include <stdlib.h>

/* As in transformers' LengthGroupedSampler: at most BATCHES batches are sorted together, in at least PARTS sets. */
enum { BATCHES = 50, PARTS = 4 };

static int by_place(const void *a, const void *b)
{
    const dt_group_item *x = a, *y = b;
    if (x->images != y->images) return x->images ? -1 : 1;
    if (x->set != y->set) return x->set < y->set ? -1 : 1;
    if (x->n_tok != y->n_tok) return x->n_tok > y->n_tok ? -1 : 1;
    return x->rank < y->rank ? -1 : 1; /* ranks are distinct */
}

/* Shuffle the samples of a modality by seed and cut them into sets. */
static void shuffle(dt_group_item *item, int64_t n, bool images, int64_t G, uint64_t seed, int64_t *count)
{
    int64_t k = *count = 0;
    for (int64_t i = 0; i < n; i++) *count += item[i].images == images;
    const int64_t batches = dt_max_i64(1, dt_min_i64(BATCHES, *count / (G * PARTS)));
    const uint64_t key = dt_mix64(dt_rng_key(seed, DT_RNG_GROUP) + images);
    for (int64_t i = 0; i < n; i++) {
        if (item[i].images != images) continue;
        item[i].rank = (int64_t)dt_rng_permute(key, (uint64_t)*count, (uint64_t)k++);
        item[i].set = item[i].rank / (batches * G);
    }
}

int64_t dt_group(dt_group_item *item, int64_t n, int64_t G, uint64_t seed, int64_t *order)
{
    int64_t n_images, n_texts, at = 0;
    shuffle(item, n, true, G, seed, &n_images);
    shuffle(item, n, false, G, seed, &n_texts);
    qsort(item, (size_t)n, sizeof *item, by_place);
    const int64_t whole_images = n_images / G * G, whole_texts = n_texts / G * G;
    for (int64_t i = 0; i < whole_images; i++) order[at++] = item[i].sample;
    for (int64_t i = 0; i < whole_texts; i++) order[at++] = item[n_images + i].sample;
    for (int64_t i = whole_images; i < n_images; i++) order[at++] = item[i].sample;
    for (int64_t i = whole_texts; i < n_texts; i++) order[at++] = item[n_images + i].sample;
    return (whole_images + whole_texts) / G;
}
