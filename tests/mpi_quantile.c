/* mpi_quantile.c - a quantile of values distributed over ranks is bitwise that of all values.
 * NP: 1 2 3 4 */
#include "mpi_test.h"
#include "../src/task/dpo/quantile.h"

enum { MOST = 600 };

/* Signs, zeros, equal values, and values that differ in their last bits. */
static float number(int64_t i)
{
    static const float few[] = {0, -0.0f, 1, 1, -2.5f, 1e-40f, 3e38f};
    const uint64_t x = dt_mix64((uint64_t)i);
    if (x % 3 == 0) return few[x / 3 % 7];
    if (x % 3 == 1) return 1 + (float)(x / 3 % 9) * 0x1p-23f;
    return (float)((double)(x >> 11) * 0x1p-53 * 8 - 4);
}

static int compare(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float expected_of(int64_t n, float q)
{
    float all[MOST];
    for (int64_t i = 0; i < n; i++) all[i] = number(i);
    qsort(all, (size_t)n, sizeof *all, compare);
    const float place = q * (float)(n - 1);
    const float low = all[(int64_t)floorf(place)], high = all[(int64_t)ceilf(place)];
    return low + (high - low) * (place - floorf(place));
}

TEST(quantile_equals_that_of_all_values)
{
    dt_comm *comm = *state;
    const int64_t n_all[] = {1, 2, 5, 11, 257, MOST};
    const float share[] = {0, 0.2f, 0.5f, 0.8f, 0.999f, 1};
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 6; k++) {
            float mine[MOST], found = NAN;
            int64_t n = 0;
            for (int64_t j = 0; j < n_all[i]; j++) /* parts of different sizes, some empty */
                if ((int)(dt_mix64((uint64_t)j + 99) % 7 % (uint64_t)comm->nranks) == comm->rank) mine[n++] = number(j);
            const bool ok = dt_quantile(&comm->mesh.data, mine, n, share[k], &found) == DT_OK;
            assert_all(MPI_COMM_WORLD, ok && found == expected_of(n_all[i], share[k]));
        }
}

TEST(quantile_of_no_values_is_nan)
{
    float found = 0;
    const bool ok = dt_quantile(&((dt_comm *)*state)->mesh.data, NULL, 0, 0.5f, &found) == DT_OK;
    assert_all(MPI_COMM_WORLD, ok && isnan(found));
}

MPI_TEST_MAIN(open_comm_alone, close_comm_alone)
