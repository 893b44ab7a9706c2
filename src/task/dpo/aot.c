/* aot.c - matches answers by their index in sorted order. Ties keep the order of the data, so the matching does not
 * depend on the distribution over ranks. */
#include "aot.h"

void dt_aot_lay_out(dt_aot *a, int64_t n, void *block, size_t *used)
{
    a->number = dt_carve(block, used, n * DT_AOT_NUMBERS, sizeof *a->number);
    a->partner = dt_carve(block, used, n, sizeof *a->partner);
    for (int k = 0; k < 2; k++) a->key[k] = dt_carve(block, used, n, sizeof *a->key[k]);
    a->n_alloc = n;
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

/* Give the pair at index k of the sorted array key[mine] the value at index k of the other array. */
static void take(dt_aot *a, int64_t n, int mine, int what)
{
    for (int64_t k = 0; k < n; k++) a->partner[a->key[mine][k].pair][what] = a->key[1 - mine][k].x;
}

static void sort_keys(dt_aot *a, int64_t n)
{
    for (int k = 0; k < 2; k++) dt_pair_keys_sort(a->key[k], n);
}

static void match_set(dt_aot *a, int64_t first, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        a->key[0][k] = (dt_pair_key){difference(a, first + k, DT_AOT_POLICY), first + k};
        a->key[1][k] = (dt_pair_key){difference(a, first + k, DT_AOT_REFERENCE), first + k};
    }
    sort_keys(a, n);
    take(a, n, 0, DT_AOT_OF_PAIR);
    for (int64_t k = 0; k < n; k++)
        for (int side = 0; side < DT_N_SIDES; side++)
            a->key[side][k] = (dt_pair_key){ratio(a, first + k, side), first + k};
    sort_keys(a, n);
    for (int side = 0; side < DT_N_SIDES; side++) take(a, n, side, DT_AOT_OF_CHOSEN + side);
}

void dt_aot_match(dt_aot *a, int64_t n_pairs, int64_t n_of_set)
{
    for (int64_t first = 0; first < n_pairs; first += n_of_set)
        match_set(a, first, dt_min_i64(n_of_set, n_pairs - first));
}
