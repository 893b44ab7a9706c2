/* test_device_classifier.c - the classifier on every instruction set, compared with double: log-probabilities, entropy,
 * divergence, smoothed loss and z-loss, sums of squared probabilities and mean logits. The gradient of each term is
 * also compared with finite differences.
 * DEVICES: cpu queue */
#include "device_fixture.h"

static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
enum { N_TYPES = sizeof types / sizeof types[0] };

enum { ROWS = 4 };
enum { LOGP, ENTROPY, KL, LOSS, SQUARES, MEAN, N_VALUES };
static const float weights[ROWS] = {1, -0.5f, 3, 0}, entropy_weights[ROWS] = {0.3f, 2, 1, 0},
                   kl_weights[ROWS] = {1, 0.1f, 1, 0.7f};

/* Rows of logits of two models, and the requested outputs. */
typedef struct rows {
    dt_classifier cl; /* without pointers */
    bool weight, entropy, kl, squares;
    int32_t target[ROWS];
    ref_array z, q;
} rows;

static rows make_rows(int64_t n, float inv_t, double scale, dt_dtype out)
{
    rows x = {.cl = {.n_rows = ROWS, .n_vocab = n, .logits_ld = n + 3, .ref_ld = n + 1},
              .target = {0, (int32_t)(n - 1), -1, (int32_t)(n / 2)},
              .weight = true};
    x.cl.inv_temperature = inv_t, x.cl.dlogits_dtype = out;
    x.z = ref_random(DT_F32, ROWS * x.cl.logits_ld, 1, scale);
    x.q = ref_random(DT_F32, ROWS * x.cl.ref_ld, 2, scale);
    return x;
}

static void drop_rows(rows *x) { ref_drop(&x->z), ref_drop(&x->q); }

static ref_row ref_of(const rows *x, const double *z, const double *q, int r)
{
    ref_row row = {.n = x->cl.n_vocab,
                   .z = z + r * x->cl.logits_ld,
                   .q = x->kl ? q + r * x->cl.ref_ld : NULL,
                   .target = x->target[r],
                   .inv_t = (double)x->cl.inv_temperature,
                   .smoothing = (double)x->cl.label_smoothing,
                   .z_loss = (double)x->cl.z_loss,
                   .softcap = (double)x->cl.softcap,
                   .weight = x->weight ? (double)weights[r] : 0,
                   .entropy_weight = x->entropy ? (double)entropy_weights[r] : 0,
                   .kl_weight = x->kl ? (double)kl_weights[r] : 0,
                   .kl_mix = (double)x->cl.kl_mix};
    if (x->cl.weight_by_p && row.target >= 0) row.weight *= exp(ref_classifier(&row).logp);
    return row;
}

/* Results into values and hit, and, with gradient, dlogits over z. */
static void run_rows(fixture *f, const rows *x, const ref_array *z, bool gradient, ref_array values[N_VALUES],
                     uint8_t *hit)
{
    dt_classifier cl = x->cl;
    cl.target = ARR(x->target, ROWS);
    if (x->kl) cl.ref_logits = ON(x->q), cl.kl = ON(values[KL]);
    if (gradient && x->weight) cl.weight = ARR(weights, ROWS);
    if (gradient && x->entropy) cl.entropy_weight = ARR(entropy_weights, ROWS);
    if (gradient && x->kl) cl.kl_weight = ARR(kl_weights, ROWS);
    cl.logp = ON(values[LOGP]), cl.entropy = ON(values[ENTROPY]), cl.loss = ON(values[LOSS]);
    if (x->squares) cl.log_sum_squares = ON(values[SQUARES]);
    cl.mean_logit = ON(values[MEAN]);
    cl.hit = ARR(hit, ROWS);
    RUN(classifier, &cl, ON(*z));
}

/* ---- against the plain loop -------------------------------------------------------------------------------------- */

static void check_hits(const rows *x, const double *z, const uint8_t *hit)
{
    for (int r = 0; r < ROWS; r++) {
        const double *row = z + r * x->cl.logits_ld;
        const int32_t t = x->target[r];
        bool first = t >= 0;
        for (int64_t v = 0; v < x->cl.n_vocab && first; v++) first = v < t ? row[v] < row[t] : row[v] <= row[t];
        assert_int_equal(hit[r], first);
    }
}

/* e^(s-m) has a relative error of (|s - m| + 2) 2^-24 (the argument rounds once), sums of n of them average it; logp <=
 * 60 rounds once; gradients are at most |w|/T <= 2. Terms of whole distributions multiply it by logarithms of
 * probabilities, at most `most`; a mean of those adds up 256 of them in a row in float. The logarithm of a sum of
 * squares has the errors of four such values. */
static void check_rows(fixture *f, rows *x, double scale)
{
    const int64_t n = x->cl.n_vocab, ld = x->cl.logits_ld;
    const double s = scale * (double)x->cl.inv_temperature, err = 0x1p-24 * (8 + 4 * s), most = 2 * s + log((double)n),
                 eps = (double)x->cl.label_smoothing, zeta = (double)x->cl.z_loss;
    const double beyond = (1 + 2 * zeta * most) + (x->entropy || x->kl ? 2 * most : 0);
    double *z64 = ref_doubles(&x->z), *q64 = ref_doubles(&x->q), want[N_VALUES][ROWS], *grad = calloc((size_t)n, 8);
    ref_array values[N_VALUES], was = ref_copy(&x->z);
    uint8_t hit[ROWS];
    for (int r = 0; r < ROWS; r++) {
        const ref_row row = ref_of(x, z64, q64, r);
        const ref_row_values v = ref_classifier(&row);
        want[LOGP][r] = v.logp, want[ENTROPY][r] = v.entropy, want[KL][r] = v.kl, want[LOSS][r] = v.loss;
        want[SQUARES][r] = v.log_sum_squares, want[MEAN][r] = v.mean_logit;
    }
    for (int i = 0; i < N_VALUES; i++) values[i] = ref_new(DT_F32, ROWS);
    for (int gradient = 0; gradient < 2; gradient++) {
        memset(hit, 2, ROWS);
        run_rows(f, x, &x->z, gradient, values, hit);
        assert_true(ref_near(&values[LOGP], want[LOGP], err, "logp") &&
                    ref_near(&values[ENTROPY], want[ENTROPY], err * 4, "entropy"));
        if (x->kl) assert_true(ref_near(&values[KL], want[KL], err * (2 + most), "kl"));
        assert_true(
            ref_near(&values[LOSS], want[LOSS], err + 256 * 0x1p-24 * eps * most + zeta * 2 * most * err, "loss"));
        assert_true(ref_near(&values[MEAN], want[MEAN], 256 * 0x1p-24 * most, "mean logit"));
        if (x->squares) assert_true(ref_near(&values[SQUARES], want[SQUARES], 4 * err, "sum of squares"));
        check_hits(x, z64, hit);
        if (!gradient) assert_memory_equal(x->z.p, was.p, ref_bytes(&was));
    }
    for (int r = 0; r < ROWS; r++) {
        const ref_row row = ref_of(x, z64, q64, r);
        ref_array got = ref_new(x->cl.dlogits_dtype, n);
        ref_classifier_gradient(&row, grad);
        memcpy(got.p, (float *)x->z.p + r * ld, ref_bytes(&got));
        assert_true(ref_near(&got, grad, err * 2 * beyond, "dlogits"));
        for (int64_t v = n; v < ld; v++) assert_true(((float *)x->z.p)[r * ld + v] == ((float *)was.p)[r * ld + v]);
        ref_drop(&got);
    }
    for (int i = 0; i < N_VALUES; i++) ref_drop(&values[i]);
    ref_drop(&was), free(z64), free(q64), free(grad);
}

enum { GPT2 = 50257 };
static const int64_t sizes[] = {1, 3, 17, 1024, 5001};

TEST(log_probabilities_and_their_gradient)
{
    for (int i = 0; i < 5; i++)
        for (int way = 0; way < 2 * N_TYPES; way++) {
            if (!is_tried()) continue;
            rows x = make_rows(sizes[i], way & 1 ? 0.7f : 1, way & 1 ? 30 : 5, types[way >> 1]);
            x.squares = way & 1, x.cl.weight_by_p = i & 1;
            if (sizes[i] > 4) ref_set(&x.z, 3, -INFINITY); /* a class that cannot be */
            check_rows(*state, &x, way & 1 ? 30 : 5);
            drop_rows(&x);
        }
}

/* Each term alone and all together; way & 8: without the loss itself, if there is another term. */
TEST(all_terms_and_their_gradients)
{
    for (int i = 0; i < 5; i++)
        for (int way = 1; way < 32 * N_TYPES; way++) {
            if (!is_tried()) continue;
            rows x = make_rows(sizes[i], way & 16 ? 0.7f : 1, way & 16 ? 15 : 4, types[way >> 5]);
            x.entropy = way & 1, x.kl = way & 2, x.squares = way % 3 == 0, x.cl.weight_by_p = way % 5 == 0;
            x.cl.label_smoothing = way & 4 ? 0.1f : 0, x.cl.z_loss = way & 4 ? 1e-3f : 0;
            x.weight = !(way & 8 && way & 3);
            if (sizes[i] > 4 && !(way & 4)) ref_set(&x.z, 3, -INFINITY), ref_set(&x.q, 3, -INFINITY);
            check_rows(*state, &x, way & 16 ? 15 : 4);
            drop_rows(&x);
        }
}

/* Forward divergences and mixtures, with and without the loss; some classes are impossible for either model. */
TEST(divergences_of_mixtures)
{
    static const float mixes[] = {1e-4f, 0.1f, 0.5f, 0.9f, 1};
    for (int i = 0; i < 5; i++)
        for (int way = 0; way < 5 * 4 * N_TYPES; way++) {
            if (!is_tried()) continue;
            rows x = make_rows(sizes[i], way & 1 ? 0.7f : 1, way & 1 ? 15 : 4, types[way / 4 / 5]);
            x.kl = true, x.weight = way & 2, x.cl.kl_mix = mixes[way / 4 % 5];
            if (sizes[i] > 4) ref_set(&x.q, 1, -INFINITY), ref_set(&x.z, 3, -INFINITY), ref_set(&x.q, 3, -INFINITY);
            if (sizes[i] > 4 && x.cl.kl_mix < 1) ref_set(&x.z, 2, -INFINITY);
            check_rows(*state, &x, way & 1 ? 15 : 4);
            drop_rows(&x);
        }
}

/* With the loss and squared probabilities, and with all terms. */
TEST(the_vocabulary_of_gpt2)
{
    for (int all = 0; all < 2; all++)
        for (int t = 0; t < N_TYPES; t++) {
            rows x = make_rows(GPT2, all ? 0.7f : 1, 5, types[t]);
            x.squares = true, x.entropy = x.kl = all;
            x.cl.label_smoothing = all ? 0.1f : 0, x.cl.z_loss = all ? 1e-3f : 0;
            check_rows(*state, &x, 5);
            drop_rows(&x);
        }
}

/* ---- against differences ----------------------------------------------------------------------------------------- */

/* (L(z + h) - L(z - h)) / 2h in double: its error is h^2/6 times a third derivative, below 40 for these weights, and
 * what the objective (below 50) rounds, 2^-52 * 50 / h. The device's own error is 2^-24 times values below 100. */
TEST(gradients_are_those_of_the_objective)
{
    fixture *f = *state;
    const double h = 1e-4, error = h * h * 40 / 6 + 0x1p-52 * 50 / h + 0x1p-24 * 100;
    for (int way = 1; way < 32; way++) {
        rows x = make_rows(29, way & 1 ? 0.7f : 1.3f, 3, DT_F32);
        x.entropy = way & 2, x.kl = way & 4;
        x.cl.kl_mix = way & 16 ? (way & 3 ? 0.3f : 1) : 0;
        x.cl.weight_by_p = way % 3 == 0;
        x.cl.label_smoothing = way & 8 ? 0.2f : 0, x.cl.z_loss = way & 8 ? 0.05f : 0;
        double *z64 = ref_doubles(&x.z), *q64 = ref_doubles(&x.q), grad[29];
        ref_array values[N_VALUES];
        uint8_t hit[ROWS];
        for (int i = 0; i < N_VALUES; i++) values[i] = ref_new(DT_F32, ROWS);
        run_rows(f, &x, &x.z, true, values, hit);
        for (int r = 0; r < ROWS; r++) {
            const ref_row row = ref_of(&x, z64, q64, r);
            ref_classifier_gradient(&row, grad);
            for (int v = 0; v < 29; v++) {
                double *at = z64 + r * x.cl.logits_ld + v, z = *at;
                *at = z + h;
                const double up = ref_classifier(&row).objective;
                *at = z - h;
                const double slope = (up - ref_classifier(&row).objective) / (2 * h);
                *at = z;
                assert_true(fabs(grad[v] - slope) <= error);
                assert_true(fabs((double)((float *)x.z.p)[r * x.cl.logits_ld + v] - slope) <= error);
            }
        }
        for (int i = 0; i < N_VALUES; i++) ref_drop(&values[i]);
        drop_rows(&x), free(z64), free(q64);
    }
}

/* ---- properties -------------------------------------------------------------------------------------------------- */

/* A policy that has not moved from its reference: exact zeros. */
TEST(nothing_diverges_from_itself)
{
    fixture *f = *state;
    static const float mixes[] = {0, 0.1f, 0.7f, 1};
    for (int i = 0; i < 4; i++) {
        rows x = make_rows(3000, 0.7f, 8, DT_F32);
        float kl[ROWS] = {1, 1, 1, 1};
        ref_array q = ref_copy(&x.z);
        dt_classifier cl = x.cl;
        cl.ref_ld = cl.logits_ld, cl.ref_logits = ON(q), cl.kl = ARR(kl, ROWS), cl.kl_weight = ARR(kl_weights, ROWS);
        cl.target = ARR(x.target, ROWS), cl.kl_mix = mixes[i];
        RUN(classifier, &cl, ON(x.z));
        for (int r = 0; r < ROWS; r++) {
            assert_true(kl[r] == 0);
            for (int v = 0; v < 3000; v++) assert_true(((float *)x.z.p)[r * x.cl.logits_ld + v] == 0);
        }
        drop_rows(&x), ref_drop(&q);
    }
}

/* Terms whose weights are zero change nothing but roundings, and results do not depend on what else is asked. */
TEST(results_do_not_depend_on_what_else_is_asked)
{
    fixture *f = *state;
    rows x = make_rows(2000, 1, 6, DT_F32);
    ref_array all[N_VALUES];
    float logp[ROWS], entropy[ROWS], kl[ROWS], loss[ROWS], squares[ROWS], mean[ROWS];
    uint8_t hit[ROWS];
    for (int i = 0; i < N_VALUES; i++) all[i] = ref_new(DT_F32, ROWS);
    x.kl = x.squares = true;
    run_rows(f, &x, &x.z, false, all, hit);
    dt_classifier cl = x.cl;
    cl.target = ARR(x.target, ROWS), cl.logp = ARR(logp, ROWS);
    RUN(classifier, &cl, ON(x.z));
    cl.target = ARR(x.target, ROWS), cl.logp = NULL, cl.entropy = ARR(entropy, ROWS);
    RUN(classifier, &cl, ON(x.z));
    cl.target = ARR(x.target, ROWS), cl.entropy = NULL, cl.kl = ARR(kl, ROWS), cl.ref_logits = ON(x.q);
    RUN(classifier, &cl, ON(x.z));
    cl.target = ARR(x.target, ROWS), cl.kl = NULL, cl.ref_logits = NULL, cl.loss = ARR(loss, ROWS);
    RUN(classifier, &cl, ON(x.z));
    cl.target = ARR(x.target, ROWS), cl.loss = NULL, cl.log_sum_squares = ARR(squares, ROWS);
    RUN(classifier, &cl, ON(x.z));
    cl.target = ARR(x.target, ROWS), cl.log_sum_squares = NULL, cl.mean_logit = ARR(mean, ROWS);
    RUN(classifier, &cl, ON(x.z));
    assert_memory_equal(all[SQUARES].p, squares, sizeof squares);
    assert_memory_equal(all[MEAN].p, mean, sizeof mean);
    assert_memory_equal(all[LOGP].p, logp, sizeof logp);
    assert_memory_equal(all[KL].p, kl, sizeof kl);
    assert_memory_equal(all[LOSS].p, loss, sizeof loss);
    assert_memory_equal(all[ENTROPY].p, entropy, sizeof entropy);
    for (int i = 0; i < N_VALUES; i++) ref_drop(&all[i]);
    drop_rows(&x);
}

/* A maximum that grows from block to block: the running sum is rescaled each time; and ties for the maximum. */
TEST(the_maximum_may_grow)
{
    fixture *f = *state;
    enum { N = 4000 };
    float *z = malloc(N * sizeof *z), logp = 0, entropy = 0;
    double *z64 = malloc(N * sizeof *z64);
    for (int i = 0; i < N; i++) z64[i] = (double)(z[i] = (float)i * 0.05f);
    z64[N - 2] = (double)(z[N - 2] = z[N - 1]);
    for (int32_t target = N - 2; target < N; target++) {
        uint8_t hit = 2;
        const ref_row row = {.n = N, .z = z64, .target = target, .inv_t = 1};
        const ref_row_values want = ref_classifier(&row);
        dt_classifier cl = {.n_rows = 1, .n_vocab = N, .logits_ld = N, .inv_temperature = 1};
        cl.target = ARR(&target, 1), cl.logp = ARR(&logp, 1), cl.hit = ARR(&hit, 1), cl.entropy = ARR(&entropy, 1);
        RUN(classifier, &cl, ARR(z, N));
        assert_true(fabs((double)logp - want.logp) < 1e-5 && fabs((double)entropy - want.entropy) < 1e-5);
        assert_int_equal(hit, target == N - 2);
    }
    free(z), free(z64);
}

/* Capped logits, by the plain loop; their gradient, for each set of terms. Rows end within a vector and within a row's
 * distance. The error of tanh is 2^-22 of the cap: half of that of a float tanh that is not correctly rounded, doubled
 * by the product. */
TEST(capped_logits_and_their_gradient)
{
    fixture *f = *state;
    for (int i = 0; i < 5; i++)
        for (int way = 0; way < 2 * N_TYPES; way++) {
            const float cap = way & 1 ? 30 : 4;
            const double scale = way & 1 ? 5 : 30;
            rows x = make_rows(sizes[i], 1, scale, types[way >> 1]);
            double *want = ref_doubles(&x.z);
            for (int r = 0; r < ROWS; r++)
                for (int64_t v = 0; v < sizes[i]; v++) {
                    double *at = &want[r * x.cl.logits_ld + v];
                    *at = (double)cap * tanh(*at / (double)cap);
                }
            RUN(softcap, ON(x.z), cap, ROWS, sizes[i], x.cl.logits_ld);
            assert_true(ref_near(&x.z, want, 0x1p-22 * (double)cap, "capped logits"));
            x.cl.softcap = cap;
            x.entropy = x.kl = way >> 1 == 1;
            check_rows(f, &x, way & 1 ? scale : (double)cap);
            free(want), drop_rows(&x);
        }
    ref_array z = ref_random(DT_F32, 8, 1, 0x1p-10);
    double *same = ref_doubles(&z);
    RUN(softcap, ON(z), 50, 1, 8, 8); /* small logits stay as exact as they were */
    for (int i = 0; i < 8; i++) assert_true(fabs(ref_get(&z, i) - same[i]) <= 0x1p-22 * fabs(same[i]));
    assert_fails(TRY(softcap, ON(z), 0, 1, 8, 8), DT_ERR_ARG, "softcap");
    assert_fails(TRY(softcap, ON(z), 1, 1, 8, 7), DT_ERR_ARG, "softcap");
    free(same), ref_drop(&z);
}

/* ---- known log-probabilities ------------------------------------------------------------------------------------- */

/* The softmax of y has the known probabilities, and the rest in proportion to the logits. Logits round: z and shift are
 * at most 40. */
static void check_rest(fixture *f, int64_t n, int64_t k, float inv_t, double known)
{
    rows x = make_rows(n, inv_t, 5, DT_F32);
    const dt_token_rows at = {.n_rows = ROWS, .n_vocab = n, .logits_ld = x.cl.logits_ld};
    const size_t n_known = (size_t)(ROWS * k);
    int32_t *token = malloc(n_known * sizeof *token);
    float *logp = malloc(n_known * sizeof *logp);
    double *z = ref_doubles(&x.z), *p = calloc((size_t)n, sizeof *p);
    ref_array y = ref_new(DT_F32, ROWS * x.cl.logits_ld);
    for (int64_t i = 0; i < ROWS * k; i++) {
        token[i] =
            i == 1 ? -1 : (int32_t)((7 * i + 3) % n); /* different within a row, as k < n and 7 does not divide n */
        logp[i] = (float)log(known / (double)k);
    }
    RUN(fill_rest, &at, ON(x.z), inv_t, k, ARR(token, ROWS * k), ARR(logp, ROWS * k), ON(y));
    for (int64_t r = 0; r < ROWS; r++) {
        double sum = 0, rest = 0, all = 0;
        for (int64_t v = 0; v < n; v++) p[v] = exp(z[r * at.logits_ld + v] * (double)inv_t);
        for (int64_t i = r * k; i < (r + 1) * k; i++)
            if (token[i] >= 0) p[token[i]] = 0, sum += exp((double)logp[i]);
        for (int64_t v = 0; v < n; v++) rest += p[v];
        for (int64_t v = 0; v < n; v++) p[v] *= fmax(1 - sum, 1e-7) / rest;
        for (int64_t i = r * k; i < (r + 1) * k; i++)
            if (token[i] >= 0) p[token[i]] = exp((double)logp[i]);
        for (int64_t v = 0; v < n; v++) all += exp(ref_get(&y, r * at.logits_ld + v) * (double)inv_t);
        assert_true(fabs(all - 1) < 1e-5);
        for (int64_t v = 0; v < n; v++)
            assert_true(fabs(ref_get(&y, r * at.logits_ld + v) * (double)inv_t - log(p[v])) < 40 * 0x1p-22);
    }
    free(token), free(logp), free(z), free(p), ref_drop(&y), drop_rows(&x);
}

TEST(known_log_probabilities_and_the_rest)
{
    fixture *f = *state;
    float z[8] = {0}, logp[1] = {0}, y[8] = {0};
    const int32_t token[1] = {0};
    const dt_token_rows at = {.n_rows = 1, .n_vocab = 8, .logits_ld = 8};
    check_rest(f, 17, 1, 1, 0.5);
    check_rest(f, 17, 16, 0.7f, 0.9);
    check_rest(f, 5001, 64, 1.3f, 0.99);
    check_rest(f, 5001, 64, 1, 1); /* nothing is left but 1e-7 */
    check_rest(f, GPT2, 100, 1, 0.7);
    assert_fails(TRY(fill_rest, &at, ARR(z, 8), 1, 9, ARR(token, 1), ARR(logp, 1), ARR(y, 8)), DT_ERR_ARG, "fill_rest");
    assert_fails(TRY(fill_rest, &at, ARR(z, 8), 0, 1, ARR(token, 1), ARR(logp, 1), ARR(y, 8)), DT_ERR_ARG, "fill_rest");
}

TEST(impossible_values_are_refused)
{
    fixture *f = *state;
    float z[8] = {0}, x[1] = {0};
    const int32_t target[1] = {0};
    const dt_classifier good = {.n_rows = 1, .n_vocab = 8, .logits_ld = 8, .inv_temperature = 1};
    for (int i = 0; i < 7; i++) {
        dt_classifier cl = good;
        cl.target = ARR(target, 1);
        if (i == 0) cl.label_smoothing = 1;
        if (i == 1) cl.z_loss = -1;
        if (i == 2) cl.kl_weight = ARR(x, 1);
        if (i == 3) cl.kl = ARR(x, 1), cl.ref_logits = ARR(z, 8), cl.ref_ld = 7;
        if (i == 4) cl.softcap = -1;
        if (i == 5) cl.kl_mix = 1.5f;
        if (i == 6) cl.kl_mix = 0.5f, cl.log_sum_squares = ARR(x, 1);
        assert_fails(TRY(classifier, &cl, ARR(z, 8)), DT_ERR_ARG,
                     i > 4    ? "kl_mix"
                     : i == 4 ? "softcap"
                     : i < 2  ? "label_smoothing"
                              : "ref_logits");
    }
}

int main(void) { return run_with_each_isa() != 0; }
