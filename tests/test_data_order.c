/* test_data_order.c - the order of samples as a pure function, against brute force; mixing shares. */
#include "cases.h"
#include "../src/data/order.h"

enum { MAX_N = 64 };

static dt_order make(int64_t n, int64_t G, int64_t m, int nranks, bool shuffle, bool drop_last)
{
    dt_order o = {.n = n, .G = G, .m = m, .nranks = nranks, .shuffle = shuffle, .seed = 42};
    dt_order_init(&o, drop_last);
    return o;
}

/* The definition, spelled out: walk an epoch's list of samples and deal it out by micro-batches. */
static void check_epoch(const dt_order *o, bool drop_last, int64_t epoch)
{
    int64_t list[MAX_N], n_list = o->n;
    int seen[MAX_N] = {0};
    for (int64_t i = 0; i < o->n; i++) {
        list[i] = dt_order_sample(o, epoch, i);
        assert_in_range(list[i], 0, o->n - 1);
        assert_int_equal(seen[list[i]]++, 0);
        if (!o->shuffle) assert_int_equal(list[i], i);
    }
    if (drop_last)
        while (n_list % o->m) n_list--;
    int64_t step = epoch * o->steps_per_epoch, at = 0;
    for (; at < n_list; step++) {
        const int64_t step_end = at + o->G < n_list ? at + o->G : n_list;
        const int64_t n_micro = dt_order_n_micro(o, step);
        for (int64_t a = 0; a < n_micro; a++)
            for (int r = 0; r < o->nranks; r++) {
                int64_t e, first, count;
                dt_order_micro(o, step, a, r, &e, &first, &count);
                assert_int_equal(e, epoch);
                const int64_t want = step_end - at < o->m ? step_end - at : o->m;
                assert_int_equal(count, want);
                if (count > 0) assert_int_equal(first, at);
                if (r == 0) assert_true(count > 0); /* no micro-step without any work */
                at += want;
            }
        assert_int_equal(at, step_end);
    }
    assert_int_equal(step, (epoch + 1) * o->steps_per_epoch);
}

TEST(every_sample_is_dealt_out_once_an_epoch)
{
    const int64_t sizes[] = {1, 2, 3, 7, 12, 25, 64};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
        for (int64_t G = 1; G <= 30; G += G < 6 ? 1 : 6)
            for (int64_t m = 1; m <= 5; m++)
                for (int nranks = 1; nranks <= 16; nranks = nranks < 4 ? nranks + 1 : 2 * nranks)
                    for (int flags = 0; flags < 4; flags++) {
                        const bool shuffle = flags & 1, drop_last = flags & 2;
                        const dt_order o = make(sizes[k], G, m, nranks, shuffle, drop_last);
                        assert_int_equal(o.n_eff, drop_last ? sizes[k] / m * m : sizes[k]);
                        if (o.n_eff == 0) continue;
                        check_epoch(&o, drop_last, 0);
                        check_epoch(&o, drop_last, 3);
                    }
}

TEST(the_order_does_not_depend_on_ranks_or_batches)
{
    const dt_order a = make(64, 8, 1, 1, true, false), b = make(64, 24, 3, 16, true, false);
    for (int64_t i = 0; i < 64; i++) assert_int_equal(dt_order_sample(&a, 2, i), dt_order_sample(&b, 2, i));
}

TEST(epochs_and_seeds_differ_in_order)
{
    dt_order o = make(64, 8, 1, 1, true, false), other = o;
    other.seed = 43;
    int same_epoch = 0, same_seed = 0;
    for (int64_t i = 0; i < 64; i++) {
        same_epoch += dt_order_sample(&o, 0, i) == dt_order_sample(&o, 1, i);
        same_seed += dt_order_sample(&o, 0, i) == dt_order_sample(&other, 0, i);
    }
    assert_in_range(same_epoch, 0, 10); /* one is expected */
    assert_in_range(same_seed, 0, 10);
}

TEST(sixteen_ranks_share_three_samples)
{
    const dt_order o = make(3, 16, 1, 16, false, false);
    assert_int_equal(o.steps_per_epoch, 1);
    assert_int_equal(dt_order_n_micro(&o, 0), 1);
    for (int r = 0; r < 16; r++) {
        int64_t epoch, first, count;
        dt_order_micro(&o, 5, 0, r, &epoch, &first, &count);
        assert_int_equal(epoch, 5);
        assert_int_equal(count, r < 3);
    }
}

/* ---- mixing ------------------------------------------------------------------------------------------------------ */

TEST(shares_follow_the_weights)
{
    const double weights[] = {0.5, 3, 1e-9, 1.5};
    static dt_mix mix;
    dt_mix_init(&mix, 4, weights);
    int32_t total = 0;
    for (int e = 0; e < 4; e++) {
        const double exact = weights[e] / 5.000000001 * DT_MIX_SLOTS;
        assert_true(mix.share[e] >= 1 && mix.share[e] > exact - 2 && mix.share[e] < exact + 2);
        total += mix.share[e];
    }
    assert_int_equal(total, DT_MIX_SLOTS);

    int64_t seen[4] = {0};
    for (uint64_t g = 0; g < 3 * DT_MIX_SLOTS; g++) {
        int e;
        uint64_t occurrence;
        dt_mix_find(&mix, g, &e, &occurrence);
        assert_int_equal(occurrence, seen[e]++); /* counted without a gap */
        for (int k = 0; k < 4; k++)              /* never far from its share, so that every batch is a mixture */
            assert_true(llabs(seen[k] * DT_MIX_SLOTS - (int64_t)(g + 1) * mix.share[k]) <= 2 * DT_MIX_SLOTS);
    }
}

TEST(many_tiny_weights_get_a_slot_each)
{
    enum { N = 3000 };
    static double weights[N];
    static dt_mix mix;
    for (int e = 0; e < N; e++) weights[e] = e == 0 ? 1e6 : 1;
    dt_mix_init(&mix, N, weights);
    for (int e = 1; e < N; e++) assert_int_equal(mix.share[e], 1);
    assert_int_equal(mix.share[0], DT_MIX_SLOTS - N + 1);
}

TEST(an_exhausted_entry_starts_over_in_another_order)
{
    const double weights[] = {1, 1};
    const int64_t first[] = {0, 10, 50};
    static dt_mix mix;
    dt_mix_init(&mix, 2, weights);
    dt_order o = make(50, 50, 1, 1, true, false);
    o.mix = &mix;
    o.entry_first = first;
    int seen[50] = {0}, pass[2][10], n_small = 0, n_large = 0;
    for (int64_t i = 0; i < 80; i++) { /* over an epoch's end: 40 of each entry */
        const int64_t s = dt_order_sample(&o, i / 50, i % 50);
        assert_in_range(s, 0, 49);
        seen[s]++;
        if (s < 10 && n_small < 20) pass[n_small / 10][n_small % 10] = (int)s;
        n_small += s < 10;
        n_large += s >= 10;
    }
    assert_int_equal(n_small, 40);
    assert_int_equal(n_large, 40);
    for (int s = 0; s < 50; s++) assert_int_equal(seen[s], s < 10 ? 4 : 1);
    assert_int_not_equal(memcmp(pass[0], pass[1], sizeof pass[0]), 0);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
