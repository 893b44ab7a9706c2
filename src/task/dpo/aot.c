/* aot.c - pairs answers by rank in a sorted order. Ties keep the order of the data, so the pairing does not depend on
 * the distribution over ranks. */
#include "aot.h"
#include <stdlib.h>

/* Lay out the arrays starting at `block` (NULL: count only). Returns the bytes used. */
static size_t lay_out(dt_aot *a, void *block, int64_t n)
{
    size_t used = 0;
    a->number = dt_carve(block, &used, n * DT_AOT_NUMBERS, sizeof *a->number);
    a->partner = dt_carve(block, &used, n, sizeof *a->partner);
    for (int k = 0; k < 2; k++) a->key[k] = dt_carve(block, &used, n, sizeof *a->key[k]);
    return used;
}

size_t dt_aot_nbytes(int64_t n_pairs) { return lay_out(&(dt_aot){0}, NULL, n_pairs); }

dt_err dt_aot_alloc(dt_aot *a, int64_t n_pairs, dt_ledger *ledger)
{
    const size_t nbytes = dt_aot_nbytes(n_pairs);
    *a = (dt_aot){.n_alloc = n_pairs, .block = calloc(1, nbytes)};
    DT_CHECK(a->block, DT_ERR_MEMORY, "out of memory for the answers of %lld pairs", (long long)n_pairs);
    dt_ledger_add(ledger, DT_MEM_DATA, DT_ON_HOST, nbytes);
    lay_out(a, a->block, n_pairs);
    return DT_OK;
}

void dt_aot_free(dt_aot *a, dt_ledger *ledger)
{
    if (a->block) dt_ledger_sub(ledger, DT_MEM_DATA, DT_ON_HOST, dt_aot_nbytes(a->n_alloc));
    free(a->block);
    *a = (dt_aot){0};
}

static int compare(const void *x, const void *y)
{
    const dt_aot_key *a = x, *b = y;
    if (a->x != b->x) return a->x < b->x ? -1 : 1;
    return a->pair < b->pair ? -1 : a->pair > b->pair;
}

static double ratio(const dt_aot *a, int64_t pair, int side)
{
    const double *x = a->number + pair * DT_AOT_NUMBERS;
    return x[DT_AOT_POLICY + side] - x[DT_AOT_REFERENCE + side];
}

static double difference(const dt_aot *a, int64_t pair, int of)
{
    const double *x = a->number + pair * DT_AOT_NUMBERS + of;
    return x[0] - x[1];
}

/* Match the sorted arrays key[0] and key[1]: the pair at index k of one gets the value at index k of the other. */
static void take(dt_aot *a, int64_t n, int mine, int what)
{
    for (int64_t k = 0; k < n; k++) a->partner[a->key[mine][k].pair][what] = a->key[1 - mine][k].x;
}

static void sort_keys(dt_aot *a, int64_t n)
{
    for (int k = 0; k < 2; k++) qsort(a->key[k], (size_t)n, sizeof *a->key[k], compare);
}

static void match_set(dt_aot *a, int64_t first, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        a->key[0][k] = (dt_aot_key){difference(a, first + k, DT_AOT_POLICY), first + k};
        a->key[1][k] = (dt_aot_key){difference(a, first + k, DT_AOT_REFERENCE), first + k};
    }
    sort_keys(a, n);
    take(a, n, 0, DT_AOT_OF_PAIR);
    for (int64_t k = 0; k < n; k++)
        for (int side = 0; side < DT_N_SIDES; side++)
            a->key[side][k] = (dt_aot_key){ratio(a, first + k, side), first + k};
    sort_keys(a, n);
    for (int side = 0; side < DT_N_SIDES; side++) take(a, n, side, DT_AOT_OF_CHOSEN + side);
}

void dt_aot_match(dt_aot *a, int64_t n_pairs, int64_t n_of_set)
{
    for (int64_t first = 0; first < n_pairs; first += n_of_set)
        match_set(a, first, dt_min_i64(n_of_set, n_pairs - first));
}
