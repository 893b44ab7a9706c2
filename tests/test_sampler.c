/* test_sampler.c - draws on the host against a plain loop that sorts everything, and against cases worked by hand. */

#include "cases.h"

#include "host_sampler.h"

enum { MAX_VOCAB = 600 };

/* ---- the definition: every transform on the whole list ----------------------------------------------------------- */

struct ref_token {
    int32_t id;
    double score, weight;
};

static int by_falling_score(const void *a, const void *b)
{
    const struct ref_token *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static void ref_distribution(const dt_sampling *how, int n, const float *logits, const int32_t *seen, int n_seen,
                             double *p)
{
    struct ref_token list[MAX_VOCAB];
    bool was_seen[MAX_VOCAB] = {false};
    for (int i = 0; i < n_seen; i++) was_seen[seen[i]] = true;
    for (int v = 0; v < n; v++) {
        double z = logits[v];
        /* a logit is a float */
        if (was_seen[v]) z = (float)(z > 0 ? z / how->repetition_penalty : z * how->repetition_penalty);
        list[v] = (struct ref_token){.id = v, .score = z};
    }
    qsort(list, (size_t)n, sizeof list[0], by_falling_score);
    const double top = list[0].score;
    for (int i = 0; i < n; i++) list[i].weight = exp((list[i].score - top) / how->temperature);
    int kept = how->top_k > 0 && how->top_k < n ? (int)how->top_k : n;
    if (how->top_p < 1) {
        double total = 0, sum = 0;
        for (int i = 0; i < kept; i++) total += list[i].weight;
        int m = 0;
        do sum += list[m++].weight;
        while (m < kept && sum < how->top_p * total);
        kept = m;
    }
    double total = 0;
    memset(p, 0, (size_t)n * sizeof *p);
    for (int i = 0; i < kept; i++)
        if (list[i].weight >= how->min_p) total += p[list[i].id] = list[i].weight;
    for (int v = 0; v < n; v++) p[v] /= total;
}

/* ---- helpers ----------------------------------------------------------------------------------------------------- */

static void distribution(const dt_sampling *how, int n, const float *logits, const int32_t *seen, int n_seen, double *p)
{
    host_sampler s = host_sampler_open(how, n);
    host_sampler_distribution(&s, logits, seen, n_seen, p);
    host_sampler_close(&s);
}

static int32_t draw(const dt_sampling *how, int n, const float *logits, const int32_t *seen, int n_seen,
                    uint64_t sequence, uint64_t position)
{
    host_sampler s = host_sampler_open(how, n);
    const int32_t token = host_sampler_draw(&s, logits, seen, n_seen, sequence, position);
    host_sampler_close(&s);
    return token;
}

/* Logits are floats: relative error of exp(z) is |z| 2^-24 at most, with |z| < 4 below 2.4e-7. */
static void assert_p(const double *p, const double *expected, int n)
{
    for (int v = 0; v < n; v++)
        if (!(fabs(p[v] - expected[v]) <= 1e-6 * expected[v]))
            fail_msg("p[%d] = %.9g, expected %.9g", v, p[v], expected[v]);
}

/* The sum of floats in double, by the library: 2^-50 for each of the two. */
TEST(log_sum_exp_is_that)
{
    float z[MAX_VOCAB];
    for (int n = 1; n <= MAX_VOCAB; n += 7)
        for (int wide = 1; wide < 2000; wide *= 5) {
            double sum = 0, top = -INFINITY;
            for (int v = 0; v < n; v++)
                z[v] = (float)wide * ((float)(dt_mix64((uint64_t)(n * 1000 + v)) >> 40) * 0x1p-24f - 0.5f);
            for (int v = 0; v < n; v++) top = z[v] > top ? z[v] : top;
            for (int v = 0; v < n; v++) sum += exp((double)z[v] - top);
            assert_true(fabs(dt_logits_log_sum_exp(z, n, 1) - (top + log(sum))) <= 0x1p-49 * (1 + fabs(top)));
        }
    z[0] = z[1] = -INFINITY;
    assert_true(dt_logits_log_sum_exp(z, 2, 1) == -INFINITY);
}

/* ---- worked by hand ---------------------------------------------------------------------------------------------- */

TEST(each_transform_does_what_it_says)
{
    const float z[5] = {logf(0.05f), logf(0.5f), logf(0.15f), logf(0.3f), -INFINITY};
    double p[5];
    dt_sampling how = dt_sampling_default();
    distribution(&how, 5, z, NULL, 0, p);
    assert_p(p, (double[]){0.05, 0.5, 0.15, 0.3, 0}, 5);

    how.temperature = 0.5; /* squares: 0.0025 0.25 0.0225 0.09, sum 0.365 */
    distribution(&how, 5, z, NULL, 0, p);
    assert_p(p, (double[]){0.0025 / 0.365, 0.25 / 0.365, 0.0225 / 0.365, 0.09 / 0.365, 0}, 5);

    how = dt_sampling_default();
    how.top_k = 2;
    distribution(&how, 5, z, NULL, 0, p);
    assert_p(p, (double[]){0, 0.625, 0, 0.375, 0}, 5);

    how = dt_sampling_default();
    how.top_p = 0.79;
    distribution(&how, 5, z, NULL, 0, p);
    assert_p(p, (double[]){0, 0.625, 0, 0.375, 0}, 5);
    how.top_p = 0.81;
    distribution(&how, 5, z, NULL, 0, p);
    assert_p(p, (double[]){0, 0.5 / 0.95, 0.15 / 0.95, 0.3 / 0.95, 0}, 5);
    how.top_p = 1e-9; /* at least one */
    distribution(&how, 5, z, NULL, 0, p);
    assert_p(p, (double[]){0, 1, 0, 0, 0}, 5);

    how = dt_sampling_default();
    how.min_p = 0.2; /* from 0.1 on */
    distribution(&how, 5, z, NULL, 0, p);
    assert_p(p, (double[]){0, 0.5 / 0.95, 0.15 / 0.95, 0.3 / 0.95, 0}, 5);
}

TEST(top_p_counts_within_top_k_and_after_the_temperature)
{
    const float z[4] = {logf(0.4f), logf(0.3f), logf(0.2f), logf(0.1f)};
    double p[4];
    dt_sampling how = dt_sampling_default();
    how.top_k = 2; /* 4/7 and 3/7: 0.55 is reached by the first alone; without top_k it would take two */
    how.top_p = 0.55;
    distribution(&how, 4, z, NULL, 0, p);
    assert_p(p, (double[]){1, 0, 0, 0}, 4);
    how.temperature = 2; /* roots: 0.632 and 0.548; the first has 0.536 of them, so the second is needed */
    distribution(&how, 4, z, NULL, 0, p);
    assert_true(p[1] > 0 && p[2] == 0);
}

TEST(ties_go_to_the_lowest_id)
{
    const float z[4] = {1, 1, 1, 1};
    double p[4];
    dt_sampling how = dt_sampling_default();
    how.top_p = 0.5; /* weights are exactly 1, so 0.5 is reached exactly by two */
    distribution(&how, 4, z, NULL, 0, p);
    assert_p(p, (double[]){0.5, 0.5, 0, 0}, 4);
    how = dt_sampling_default();
    how.top_k = 3;
    distribution(&how, 4, z, NULL, 0, p);
    assert_p(p, (double[]){1.0 / 3, 1.0 / 3, 1.0 / 3, 0}, 4);
    how.greedy = true;
    assert_int_equal(draw(&how, 4, z, NULL, 0, 0, 0), 0);
    assert_int_equal(draw(&how, 4, (float[]){0, 2, 1, 2}, NULL, 0, 0, 0), 1);
    how = dt_sampling_default();
    how.temperature = 0;
    assert_int_equal(draw(&how, 4, (float[]){0, 1, 3, 2}, NULL, 0, 0, 0), 2);
    how.temperature = 0x1p-1050; /* of which 1/T is inf */
    for (uint64_t position = 0; position < 20; position++)
        assert_int_equal(draw(&how, 4, (float[]){0, 3, 1, 3}, NULL, 0, 0, position), 1);
}

TEST(repetition_is_penalised_once_a_token_and_first_of_all)
{
    const float z[4] = {2, -1, 1.5f, -1};
    const int32_t seen[] = {0, 1, 0, 0};
    dt_sampling how = dt_sampling_default();
    how.repetition_penalty = 2; /* 1, -2, 1.5, -1 */
    how.temperature = 0.5;      /* 2, -4, 3, -2 */
    double p[4];
    distribution(&how, 4, z, seen, 4, p);
    const double e[4] = {exp(2), exp(-4), exp(3), exp(-2)}, sum = e[0] + e[1] + e[2] + e[3];
    assert_p(p, (double[]){e[0] / sum, e[1] / sum, e[2] / sum, e[3] / sum}, 4);
    how.greedy = true;
    assert_int_equal(draw(&how, 4, z, seen, 4, 0, 0), 2);
    /* and is forgotten afterwards */
    host_sampler s = host_sampler_open(&how, 4);
    assert_int_equal(host_sampler_draw(&s, z, seen, 4, 0, 0), 2);
    assert_int_equal(host_sampler_draw(&s, z, NULL, 0, 0, 0), 0);
    host_sampler_close(&s);
}

TEST(a_draw_inverts_the_cumulative_distribution_in_id_order)
{
    const float z[3] = {0, 0, 0}; /* thirds: which one is a matter of u alone */
    const dt_sampling how = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 7};
    for (uint64_t sequence = 0; sequence < 20; sequence++)
        for (uint64_t position = 0; position < 20; position++) {
            const double u = dt_sampler_uniform(7, sequence, position);
            assert_true(u >= 0 && u < 1);
            assert_int_equal(draw(&how, 3, z, NULL, 0, sequence, position), (int)(3 * u));
        }
}

TEST(non_finite_logits_give_no_token)
{
    const float bad[][3] = {{0, NAN, 0}, {0, INFINITY, 0}, {-INFINITY, -INFINITY, -INFINITY}};
    const dt_sampling how = dt_sampling_default();
    for (int i = 0; i < 3; i++) {
        assert_int_equal(draw(&how, 3, bad[i], NULL, 0, 0, 0), -1);
    }
}

TEST(values_out_of_range_are_named)
{
    const struct {
        dt_sampling how;
        const char *name;
    } cases[] = {{{.temperature = -1, .top_p = 1, .repetition_penalty = 1}, "temperature"},
                 {{.temperature = NAN, .top_p = 1, .repetition_penalty = 1}, "temperature"},
                 {{.top_k = -1, .top_p = 1, .repetition_penalty = 1}, "top_k"},
                 {{.top_p = 0, .repetition_penalty = 1}, "top_p"},
                 {{.top_p = 1.5, .repetition_penalty = 1}, "top_p"},
                 {{.top_p = 1, .min_p = 2, .repetition_penalty = 1}, "min_p"},
                 {{.top_p = 1, .repetition_penalty = 0}, "repetition_penalty"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_error_clear();
        assert_int_equal(dt_sampling_check(&cases[i].how), DT_ERR_USAGE);
        assert_ptr_equal(strstr(dt_error_message(), cases[i].name), dt_error_message());
    }
}

/* ---- against the definition -------------------------------------------------------------------------------------- */

static double uniform(int i, int purpose) { return dt_sampler_uniform(99, (uint64_t)i, (uint64_t)purpose); }

TEST(any_mixture_agrees_with_the_plain_loop)
{
    for (int i = 0; i < 400; i++) {
        const int n = 1 + (int)(uniform(i, 0) * (i % 4 ? 40 : MAX_VOCAB - 1)), n_seen = (int)(uniform(i, 1) * 8);
        float z[MAX_VOCAB];
        int32_t seen[8];
        double p[MAX_VOCAB], q[MAX_VOCAB];
        /* coarse in a third of the cases, for ties */
        for (int v = 0; v < n; v++) z[v] = (float)((uniform(i, 100 + v) - 0.5) * 10);
        for (int v = 0; v < n && i % 3 == 0; v++) z[v] = rintf(z[v]);
        for (int k = 0; k < n_seen; k++) seen[k] = (int32_t)(uniform(i, 10 + k) * n);
        const dt_sampling how = {.temperature = 0.2 + 2 * uniform(i, 2),
                                 .top_k = uniform(i, 3) < 0.5 ? 0 : (int64_t)(uniform(i, 4) * n * 1.2),
                                 .top_p = uniform(i, 5) < 0.4 ? 1 : fmax(1e-3, uniform(i, 6)),
                                 .min_p = uniform(i, 7) < 0.5 ? 0 : uniform(i, 8) * 0.3,
                                 .repetition_penalty = i % 2 ? 1 : 0.5 + uniform(i, 9)};
        distribution(&how, n, z, seen, n_seen, p);
        ref_distribution(&how, n, z, seen, n_seen, q);
        /* The same terms in double, summed in another order: 600 roundings of 2^-53 are below 1e-12. */
        for (int v = 0; v < n; v++)
            if (!(fabs(p[v] - q[v]) <= 1e-12)) fail_msg("case %d: p[%d] = %.17g, expected %.17g", i, v, p[v], q[v]);

        const double u = dt_sampler_uniform(how.seed, (uint64_t)i, 3);
        double sum = 0;
        int expected = 0;
        while (expected < n - 1 && (sum += q[expected]) <= u) expected++;
        assert_int_equal(draw(&how, n, z, seen, n_seen, (uint64_t)i, 3), expected);
    }
}

TEST(frequencies_follow_the_probabilities)
{
    enum { N = 4, DRAWS = 40000 };
    const float z[N] = {logf(0.1f), logf(0.2f), logf(0.3f), logf(0.4f)};
    const double p[N] = {0.1, 0.2, 0.3, 0.4};
    const dt_sampling how = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 1};
    int64_t count[N] = {0};
    host_sampler s = host_sampler_open(&how, N);
    for (int i = 0; i < DRAWS; i++) count[host_sampler_draw(&s, z, NULL, 0, (uint64_t)i / 200, (uint64_t)i % 200)]++;
    host_sampler_close(&s);
    /* 5 standard deviations of a binomial count; the draws are fixed by the seed, so this passes always or never */
    for (int v = 0; v < N; v++)
        assert_true(fabs((double)count[v] - DRAWS * p[v]) < 5 * sqrt(DRAWS * p[v] * (1 - p[v])));
}

int main(void) { return run_listed("sampler", NULL, NULL); }
