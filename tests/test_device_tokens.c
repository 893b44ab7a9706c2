/* test_device_tokens.c - token selection on the device. Sampled tokens match the host's sampler and a plain loop that
 * sorts all tokens. The largest logits, and log-probabilities of given tokens, match plain loops.
 * DEVICES: cpu queue */
#include "device_fixture.h"
#include "host_sampler.h"

enum { MAX_ROWS = 5, MAX_DRAWN = 3000, MAX_VOCAB = 50257 /* GPT-2's */, MAX_WORDS = (MAX_VOCAB + 31) / 32 };

static double uniform(int i, int purpose) { return dt_sampler_uniform(99, (uint64_t)i, (uint64_t)purpose); }

/* Rows of logits with ties, excluded tokens and masks. */
typedef struct rows {
    dt_token_rows at; /* without pointers */
    ref_array z;
    uint32_t allowed[MAX_ROWS * MAX_WORDS], seen[MAX_ROWS * MAX_WORDS];
    bool masked, penalised, listed;
    int32_t list[MAX_VOCAB + MAX_ROWS], list_start[MAX_ROWS], list_len[MAX_ROWS];
    uint32_t possible[MAX_ROWS * MAX_WORDS]; /* allowed and listed; rows are MAX_WORDS apart */
} rows;

/* Rows share one list: row r has what lies between its r-th token and its r-th last, or all from there on. */
static void make_lists(rows *x, int i)
{
    int32_t n = 1;
    for (int32_t v = 1; v < x->at.n_vocab; v++)                                        /* list[0] is 0 */
        if ((int)(dt_mix64((uint64_t)(i * 70000 + v)) % 3) <= i % 2) x->list[n++] = v; /* a third or two of all */
    for (int32_t r = 0; r < x->at.n_rows; r++) {
        const int32_t start = r < n ? r : n;
        x->list_start[r] = i % 9 == 1 ? 0 : start;
        x->list_len[r] = i % 9 == 1 ? (r < n ? n - r : 1) : n - start;
    }
}

static void find_possible(rows *x)
{
    for (int64_t r = 0; r < x->at.n_rows; r++)
        for (int32_t k = 0; k < (x->listed ? x->list_len[r] : x->at.n_vocab); k++) {
            const int32_t v = x->listed ? x->list[x->list_start[r] + k] : k;
            if (!x->masked || x->allowed[r * x->at.allowed_ld + v / 32] >> v % 32 & 1)
                x->possible[r * MAX_WORDS + v / 32] |= 1u << v % 32;
        }
}

static int64_t draw_vocab(int i) { return 1 + (int64_t)(uniform(i, 0) * (i % 3 ? 70 : MAX_DRAWN - 1)); }

static rows make_rows(int i, int64_t n)
{
    const int64_t words = (n + 31) / 32;
    rows x = {.at = {.n_rows = 1 + i % MAX_ROWS, .n_vocab = n, .logits_ld = n + i % 4},
              .masked = i & 1,
              .penalised = i % 5 == 2,
              .listed = i % 3 == 1};
    x.at.allowed_ld = i & 2 ? words : 0;
    x.at.seen_ld = i & 4 ? words : 0;
    x.z = ref_random(DT_F32, x.at.n_rows * x.at.logits_ld, (uint64_t)i, 6);
    float *z = x.z.p;
    for (int64_t k = 0; k < x.z.n; k++) {
        if (i % 4 == 0) z[k] = rintf(z[k]); /* ties */
        if (uniform(i, (int)k) < 0.05) z[k] = -INFINITY;
    }
    for (int k = 0; k < MAX_ROWS * words; k++) {
        x.allowed[k] = (uint32_t)dt_mix64((uint64_t)(i * 10000 + k));
        x.seen[k] = (uint32_t)(dt_mix64((uint64_t)(i * 10000 + k)) >> 32);
    }
    for (int64_t r = 0; r < x.at.n_rows; r++) { /* something to choose in every row */
        z[r * x.at.logits_ld] = 1;
        x.allowed[r * x.at.allowed_ld] |= 1;
    }
    make_lists(&x, i);
    for (int64_t r = 0; r < x.at.n_rows && x.listed; r++) { /* likewise */
        const int32_t first = x.list_len[r] > 0 ? x.list[x.list_start[r]] : 0;
        z[r * x.at.logits_ld + first] = 1;
        x.allowed[r * x.at.allowed_ld + first / 32] |= 1u << first % 32;
    }
    find_possible(&x);
    return x;
}

static bool has_choice(const rows *x, int64_t r) { return !x->listed || x->list_len[r] > 0; }

static const uint32_t *mask_of(const rows *x, int64_t r)
{
    return x->masked || x->listed ? x->possible + r * MAX_WORDS : NULL;
}

static dt_token_rows on_device_rows(fixture *f, const rows *x)
{
    dt_token_rows at = x->at;
    const int64_t words = (at.n_vocab + 31) / 32;
    if (x->masked) at.allowed = ARR(x->allowed, at.allowed_ld ? at.n_rows * at.allowed_ld : words);
    if (x->penalised) at.seen = ARR(x->seen, at.seen_ld ? at.n_rows * at.seen_ld : words);
    if (!x->listed) return at;
    at.list = ARR(x->list, at.n_vocab + MAX_ROWS);
    at.list_start = ARR(x->list_start, MAX_ROWS);
    at.list_len = ARR(x->list_len, MAX_ROWS);
    return at;
}

/* Temperatures at which all tokens but the first hardly count, and at which all are nearly the same, among them. */
static dt_choice make_choice(int i)
{
    const double scale = i % 13 == 1 ? 0.02 : i % 17 == 1 ? 50 : 1;
    return (dt_choice){.repetition_penalty = 0.5 + uniform(i, 7),
                       .greedy = i % 11 == 0,
                       .temperature = scale * (0.2 + 2 * uniform(i, 1)),
                       .top_k = i % 5 ? (int64_t)(uniform(i, 2) * (i % 7 == 1 ? MAX_DRAWN : 20)) : 0,
                       .top_p = i % 3 ? uniform(i, 3) + 1e-3 < 1 ? uniform(i, 3) + 1e-3 : 1 : 1,
                       .min_p = i % 7 ? 0 : 0.3 * uniform(i, 4)};
}

/* Row r as the plain loops take it: after the penalty, as floats. */
static void penalised_row(const rows *x, const dt_choice *how, int64_t r, float *row)
{
    memcpy(row, (float *)x->z.p + r * x->at.logits_ld, (size_t)x->at.n_vocab * sizeof *row);
    for (int64_t v = 0; v < x->at.n_vocab && x->penalised; v++)
        if (x->seen[r * x->at.seen_ld + v / 32] >> v % 32 & 1)
            row[v] = (float)(row[v] > 0 ? row[v] / how->repetition_penalty : row[v] * how->repetition_penalty);
}

static void draw(fixture *f, const rows *x, const dt_choice *how, const double *u, int32_t *token)
{
    const dt_token_rows sizes = x->at;
    ref_array scratch = ref_new(DT_F32, (int64_t)(OPS(f)->draw_scratch_nbytes(&f->dev, &sizes) / sizeof(float)));
    const dt_token_rows at = on_device_rows(f, x);
    RUN(draw_tokens, &at, how, ON(x->z), ARR(u, at.n_rows), ARR(token, at.n_rows), ON(scratch));
    ref_drop(&scratch);
}

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

static void check_sampler(fixture *f, int i, int64_t n)
{
    rows x = make_rows(i, n);
    const dt_choice how = make_choice(i);
    dt_sampling sampling = dt_sampling_default();
    sampling.greedy = how.greedy, sampling.temperature = how.temperature;
    sampling.top_k = how.top_k, sampling.top_p = how.top_p, sampling.min_p = how.min_p, sampling.seed = 5;
    double u[MAX_ROWS];
    int32_t token[MAX_ROWS] = {0};
    for (uint64_t r = 0; r < MAX_ROWS; r++) u[r] = dt_sampler_uniform(5, (uint64_t)i, r);
    draw(f, &x, &how, u, token);
    host_sampler s = host_sampler_open(&sampling, n);
    for (int64_t r = 0; r < x.at.n_rows; r++) {
        float row[MAX_VOCAB];
        const uint32_t *mask = mask_of(&x, r);
        penalised_row(&x, &how, r, row);
        for (int64_t v = 0; v < n && mask; v++)
            if (!(mask[v / 32] >> v % 32 & 1)) row[v] = -INFINITY;
        assert_int_equal(token[r], host_sampler_draw(&s, row, NULL, 0, (uint64_t)i, (uint64_t)r));
    }
    host_sampler_close(&s);
    ref_drop(&x.z);
}

TEST(draws_are_those_of_the_sampler)
{
    for (int i = 0; i < 300; i++) check_sampler(*state, i, draw_vocab(i));
}

/* The id whose share of [0, 1) holds u; -1 where u is so near a border that roundings decide: sums of 50257 terms in
 * another order differ by less than 50257 2^-53. */
static int32_t ref_draw(const double *p, int64_t n, double u)
{
    double sum = 0;
    for (int32_t v = 0; v < n; v++) {
        sum += p[v];
        if (p[v] > 0 && fabs(sum - u) < 6e-12) return -1;
        if (p[v] > 0 && sum > u) return v;
    }
    return -1;
}

/* How many of the rows have a token that roundings do not decide. */
static int check_plain(fixture *f, int i, int64_t n)
{
    rows x = make_rows(i, n);
    const dt_choice how = make_choice(i);
    double p[MAX_VOCAB], u[MAX_ROWS];
    int32_t token[MAX_ROWS] = {0};
    int n_drawn = 0;
    for (int r = 0; r < MAX_ROWS; r++) u[r] = uniform(i, 100 + r);
    draw(f, &x, &how, u, token);
    for (int64_t r = 0; r < x.at.n_rows; r++) {
        float z[MAX_VOCAB];
        penalised_row(&x, &how, r, z);
        assert_int_equal(ref_choice(&how, z, mask_of(&x, r), n, p), has_choice(&x, r));
        if (!has_choice(&x, r)) assert_int_equal(token[r], -1);
        if (!has_choice(&x, r)) continue;
        const int32_t want = ref_draw(p, n, u[r]);
        if (want >= 0) assert_int_equal(token[r], want);
        n_drawn += want >= 0;
    }
    ref_drop(&x.z);
    return n_drawn;
}

TEST(draws_are_those_of_the_plain_loop)
{
    int n_drawn = 0;
    for (int i = 0; i < 300; i++) n_drawn += check_plain(*state, i, draw_vocab(i));
    assert_true(n_drawn > 800);
}

/* Borders at thirds, by hand; an excluded token's share goes to the others. */
TEST(a_draw_inverts_the_distribution_in_the_order_of_ids)
{
    rows x = {.at = {.n_rows = 3, .n_vocab = 3, .logits_ld = 3}};
    const dt_choice how = {.temperature = 1, .top_p = 1};
    const double u[] = {0.3, 0.34, 0.999999};
    int32_t token[3] = {0};
    x.z = ref_new(DT_F32, 9);
    for (int64_t i = 0; i < 9; i++) ref_set(&x.z, i, 0.5);
    draw(*state, &x, &how, u, token);
    assert_true(token[0] == 0 && token[1] == 1 && token[2] == 2);
    x.masked = true;
    x.allowed[0] = 6; /* 1 and 2, for all rows */
    draw(*state, &x, &how, u, token);
    assert_true(token[0] == 1 && token[1] == 1 && token[2] == 2);
    x.masked = false, x.listed = true;
    static const int32_t list[] = {1, 2, 0, 1}, start[] = {1, 0, 2}, len[] = {1, 2, 2}; /* {2}, {1, 2}, {0, 1} */
    memcpy(x.list, list, sizeof list);
    memcpy(x.list_start, start, sizeof start);
    memcpy(x.list_len, len, sizeof len);
    draw(*state, &x, &how, u, token);
    assert_true(token[0] == 2 && token[1] == 1 && token[2] == 1);
    ref_drop(&x.z);
}

/* The sum of all weights may be rounded below the share that is asked for, as with a number of 1: then it is the last
 * token that has a weight, not the last of all. */
TEST(rounded_weight_sums_select_the_last_weighted_token)
{
    static const int last[] = {0, 5, 31, 32, 199, 298};
    enum { N = 299 };
    for (size_t n = 0; n < sizeof last / sizeof last[0]; n++) {
        rows x = {.at = {.n_rows = 1, .n_vocab = N, .logits_ld = N}};
        const dt_choice how = {.temperature = 1, .top_p = 1};
        const double u = 1;
        int32_t token = -1;
        x.z = ref_random(DT_F32, N, 1, 3);
        for (int64_t i = last[n] + 1; i < N; i++) ref_set(&x.z, i, -INFINITY);
        draw(*state, &x, &how, &u, &token);
        assert_int_equal(token, last[n]);
        ref_drop(&x.z);
    }
}

/* ---- the largest, log-probabilities ------------------------------------------------------------------------------ */

static void check_top(fixture *f, int i, int64_t n)
{
    rows x = make_rows(i, n);
    const int64_t k = i % 10 == 0 ? n : 1 + (int64_t)(uniform(i, 5) * (double)(n < 60 ? n : 60));
    const dt_token_rows at = on_device_rows(f, &x);
    int32_t *token = calloc((size_t)(x.at.n_rows * k), sizeof *token), id[MAX_VOCAB];
    float *logit = calloc((size_t)(x.at.n_rows * k), sizeof *logit);
    RUN(top_tokens, &at, ON(x.z), k, ARR(token, x.at.n_rows * k), ARR(logit, x.at.n_rows * k));
    for (int64_t r = 0; r < x.at.n_rows; r++) {
        const float *z = (float *)x.z.p + r * x.at.logits_ld;
        const int64_t found = ref_order(z, mask_of(&x, r), n, id);
        for (int64_t j = 0; j < k; j++) {
            assert_int_equal(token[r * k + j], j < found ? id[j] : -1);
            assert_true(logit[r * k + j] == (j < found ? z[id[j]] : -INFINITY));
        }
    }
    free(token), free(logit), ref_drop(&x.z);
}

TEST(the_largest_fall_and_ties_go_to_the_lower_id)
{
    for (int i = 0; i < 200; i++) check_top(*state, i, draw_vocab(i));
}

/* Double throughout; logarithms: some 2^-50 of |z|/T <= 12; and a sum of n terms in a row, each of which rounds it by
 * at most 2^-54 of it, equal terms to the same side. At T = 1 the host's own number where sums have its order. */
static void check_log(fixture *f, int i, int64_t n)
{
    enum { K = 4 };
    const bool host_order = strcmp(OPS(f)->name, "cuda") != 0;
    rows x = make_rows(i, n);
    const double inv_t = i & 4 ? 1 : 0.5 + uniform(i, 6), error = 0x1p-47 + 0x1p-54 * (double)n;
    const dt_token_rows at = on_device_rows(f, &x);
    int32_t token[MAX_ROWS * K] = {0};
    double logp[MAX_ROWS * K] = {0};
    for (int k = 0; k < MAX_ROWS * K; k++) token[k] = k % K == 3 ? -1 : (int32_t)(uniform(i, 20 + k) * (double)n);
    RUN(log_softmax_at, &at, ON(x.z), inv_t, K, ARR(token, MAX_ROWS * K), ARR(logp, MAX_ROWS * K));
    for (int64_t r = 0; r < x.at.n_rows; r++) {
        const float *z = (float *)x.z.p + r * x.at.logits_ld;
        double sum = 0;
        for (int64_t v = 0; v < n; v++) sum += exp((double)z[v] * inv_t);
        for (int64_t k = r * K; k < (r + 1) * K; k++) {
            const double want = token[k] < 0 ? -INFINITY : (double)z[token[k]] * inv_t - log(sum);
            assert_true(logp[k] == want || fabs(logp[k] - want) <= error);
            if (token[k] >= 0 && inv_t == 1 && host_order)
                assert_true(logp[k] == (double)z[token[k]] - dt_logits_log_sum_exp(z, n, 1));
        }
    }
    ref_drop(&x.z);
}

TEST(log_probabilities_of_chosen_tokens)
{
    for (int i = 0; i < 100; i++) check_log(*state, i, draw_vocab(i));
}

/* Plain, masked, penalised and from a list, with ties and without: make_rows. */
TEST(all_of_it_with_the_vocabulary_of_gpt2)
{
    for (int i = 1; i <= 4; i *= 2) {
        check_sampler(*state, i, MAX_VOCAB);
        assert_true(check_plain(*state, i, MAX_VOCAB) > 0);
        check_top(*state, i, MAX_VOCAB);
        check_log(*state, i, MAX_VOCAB);
    }
}

/* ---- what cannot be chosen from ---------------------------------------------------------------------------------- */

TEST(a_row_of_nan_logits_gives_no_token)
{
    fixture *f = *state;
    enum { V = 40, ROWS = 5 };
    rows x = {.at = {.n_rows = ROWS, .n_vocab = V, .logits_ld = V, .allowed_ld = 2}, .masked = true};
    const double u[ROWS] = {0.1, 0.2, 0.3, 0.4, 0.5};
    x.z = ref_random(DT_F32, ROWS * V, 1, 1);
    for (int64_t k = 0; k < ROWS * 2; k++) x.allowed[k] = ~0u;
    ref_set(&x.z, 7, NAN);
    ref_set(&x.z, V + 39, INFINITY);
    for (int v = 0; v < V; v++) ref_set(&x.z, 2 * V + v, -INFINITY);
    x.allowed[6] = x.allowed[7] = 0;
    ref_set(&x.z, 4 * V + 33, NAN);
    x.allowed[9] = ~2u; /* it is not allowed: nothing wrong with the row */
    for (int greedy = 0; greedy < 2; greedy++) {
        const dt_choice how = {.greedy = greedy, .temperature = 1, .top_p = 1};
        int32_t token[ROWS] = {0}, first[ROWS] = {0};
        float logit[ROWS] = {0};
        double logp[ROWS] = {0};
        draw(f, &x, &how, u, token);
        const dt_token_rows at = on_device_rows(f, &x);
        RUN(top_tokens, &at, ON(x.z), 1, ARR(first, ROWS), ARR(logit, ROWS));
        assert_true(token[0] == -1 && token[1] == -1 && token[2] == -1 && token[3] == -1 && token[4] >= 0);
        assert_true(first[0] == -1 && first[1] == -1 && first[2] == -1 && first[3] == -1 && first[4] >= 0);
        assert_true(isnan(logit[0]) && isnan(logit[1]) && logit[2] == -INFINITY && logit[3] == -INFINITY);
        const dt_token_rows all = x.at;
        const int32_t zero[ROWS] = {0};
        RUN(log_softmax_at, &all, ON(x.z), 1.0, 1, ARR(zero, ROWS), ARR(logp, ROWS));
        assert_true(isnan(logp[0]) && isnan(logp[1]) && isnan(logp[2]) && isfinite(logp[3]) && isnan(logp[4]));
    }
    ref_drop(&x.z);
}

TEST(impossible_values_are_refused)
{
    fixture *f = *state;
    rows x = make_rows(2, draw_vocab(2));
    const dt_choice cold = {.temperature = 0, .top_p = 1};
    double u[MAX_ROWS] = {0};
    int32_t token[64] = {0};
    float logit[64] = {0};
    dt_token_rows at = x.at;
    assert_fails(TRY(draw_tokens, &at, &cold, ON(x.z), ARR(u, MAX_ROWS), ARR(token, 64), ON(x.z)), DT_ERR_ARG,
                 "temperature > 0");
    assert_int_equal(TRY(top_tokens, &at, ON(x.z), 0, ARR(token, 64), ARR(logit, 64)), DT_ERR_ARG);
    at.logits_ld = at.n_vocab - 1;
    assert_fails(TRY(top_tokens, &at, ON(x.z), 1, ARR(token, 64), ARR(logit, 64)), DT_ERR_ARG, "");
    ref_drop(&x.z);
}

int main(void) { return run_listed(NULL, open_device, close_device); }
