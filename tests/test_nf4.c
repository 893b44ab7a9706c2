/* test_nf4.c - weights in four bits as bitsandbytes stores them (make_nf4_fixtures.py), and what comes back. */
#include "cases.h"
#include "dtrain/device/nf4.h"
#include <jansson.h>

enum { BLOCK = DT_NF4_BLOCK, GROUP = DT_NF4_GROUP * BLOCK };

typedef struct tensor {
    int64_t n;
    float *w;
    uint8_t *codes, *blocks;
    float *groups;
} tensor;

static tensor tensor_of(int64_t n)
{
    const size_t n_blocks = (size_t)dt_nf4_blocks(n), n_groups = (size_t)dt_nf4_groups(n);
    tensor t = {n, malloc((size_t)n * sizeof *t.w), malloc((size_t)(n + 1) / 2), malloc(n_blocks),
                malloc(2 * n_groups * sizeof *t.groups)};
    assert_true(t.w && t.codes && t.blocks && t.groups);
    return t;
}

static void drop(tensor *t) { free(t->w), free(t->codes), free(t->blocks), free(t->groups); }

static void quantise(const tensor *t)
{
    const int64_t n_blocks = dt_nf4_blocks(t->n);
    float *most = malloc((size_t)n_blocks * sizeof *most);
    assert_non_null(most);
    for (int64_t b = 0; b < n_blocks; b++)
        most[b] =
            dt_quantise_nf4_block(t->w + b * BLOCK, dt_min_i64(BLOCK, t->n - b * BLOCK), t->codes + b * BLOCK / 2);
    dt_quantise_nf4_maxima(most, n_blocks, t->blocks, t->groups);
    free(most);
}

static float *back(const tensor *t, int64_t first, int64_t n)
{
    float *w = malloc((size_t)n * sizeof *w);
    assert_non_null(w);
    dt_dequantise_nf4(t->codes + first / 2, t->blocks, t->groups, 0, first, n, w);
    return w;
}

/* ---- against bitsandbytes ---------------------------------------------------------------------------------------- */

static float weight(int64_t i)
{
    const int bits = (int)(dt_mix64((uint64_t)i) >> 52) - 2048, size = (int)(dt_mix64((uint64_t)i / BLOCK) >> 60) + 1;
    return i / BLOCK == 7 ? 0 : (float)(bits * size) * 0x1p-15f;
}

static void expect_bytes(const json_t *fixture, const char *name, const uint8_t *got, size_t n)
{
    const char *hex = json_string_value(json_object_get(fixture, name));
    assert_true(hex && strlen(hex) == 2 * n);
    for (size_t i = 0; i < n; i++) {
        char want[3];
        snprintf(want, sizeof want, "%02x", got[i]);
        if (strncmp(want, hex + 2 * i, 2) != 0) fail_msg("%s: byte %zu is %s, not %.2s", name, i, want, hex + 2 * i);
    }
}

static double number(const json_t *text) { return strtod(json_string_value(text), NULL); }

static void expect_sum(const json_t *fixture, const float *w, int64_t n, dt_dtype dt)
{
    const char *want = json_string_value(json_object_get(json_object_get(fixture, "back"), dt_dtype_name(dt)));
    const size_t nbytes = (size_t)n * dt_dtype_size(dt);
    uint8_t *bytes = malloc(nbytes);
    uint64_t sum = 0xcbf29ce484222325;
    char got[17];
    assert_non_null(bytes);
    for (int64_t i = 0; i < n; i++) dt_set_element(bytes, dt, i, w[i]);
    for (size_t i = 0; i < nbytes; i++) sum = (sum ^ bytes[i]) * 0x100000001b3;
    snprintf(got, sizeof got, "%016llx", (unsigned long long)sum);
    assert_string_equal(got, want);
    free(bytes);
}

TEST(codes_equal_those_of_bitsandbytes)
{
    json_t *fixture = json_load_file("tests/data/nf4.json", 0, NULL), *scales = json_object_get(fixture, "scales");
    assert_non_null(fixture);
    const int64_t n =
        json_integer_value(json_object_get(fixture, "rows")) * json_integer_value(json_object_get(fixture, "cols"));
    tensor t = tensor_of(n);
    for (int64_t i = 0; i < n; i++) t.w[i] = weight(i);
    quantise(&t);
    expect_bytes(fixture, "codes", t.codes, (size_t)n / 2);
    expect_bytes(fixture, "blocks", t.blocks, (size_t)dt_nf4_blocks(n));
    assert_int_equal(json_array_size(scales), dt_nf4_groups(n));
    for (size_t g = 0; g < json_array_size(scales); g++) {
        assert_true((double)t.groups[2 * g] == number(json_array_get(scales, g)));
        assert_true((double)t.groups[2 * g + 1] == number(json_object_get(fixture, "offset")));
    }
    float *w = back(&t, 0, n);
    expect_sum(fixture, w, n, DT_F32), expect_sum(fixture, w, n, DT_BF16), expect_sum(fixture, w, n, DT_F16);
    free(w), drop(&t), json_decref(fixture);
}

/* ---- by itself --------------------------------------------------------------------------------------------------- */

/* Ends of blocks and groups anywhere: what comes back in parts is what comes back at once, and is near. Levels are at
 * most 0.3039 apart, where a weight is half of that away; a maximum is off by at most half of MAP's widest step,
 * 0.0141, of the largest of the group less the mean. */
TEST(round_trip_values_are_close)
{
    static const int64_t sizes[] = {1, 2, 63, 64, 65, 200, GROUP - 1, GROUP + 1, 2 * GROUP + 67};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        tensor t = tensor_of(sizes[s]);
        for (int64_t i = 0; i < t.n; i++) t.w[i] = weight(i);
        quantise(&t);
        float *whole = back(&t, 0, t.n);
        for (int64_t i = 0; i < t.n; i++) {
            const int64_t end = dt_min_i64(i / BLOCK * BLOCK + BLOCK, t.n);
            float most = 0;
            for (int64_t j = i / BLOCK * BLOCK; j < end; j++) most = fmaxf(most, fabsf(t.w[j]));
            const float off = 0.152f * most + 0.0071f * t.groups[2 * (i / GROUP)] + 0x1p-20f;
            if (fabsf(whole[i] - t.w[i]) > off) fail_msg("weight %lld: %g from %g", (long long)i, whole[i], t.w[i]);
        }
        for (int64_t first = 0, step = 1; first < t.n; first += step, step = step % 150 + 7) {
            const int64_t n = dt_min_i64(step, t.n - first);
            float *part = back(&t, first, n);
            assert_memory_equal(part, whole + first, (size_t)n * sizeof *part);
            free(part);
        }
        free(whole), drop(&t);
    }
}

TEST(non_finite_inputs_are_not_hidden)
{
    for (int way = 0; way < 2; way++) {
        tensor t = tensor_of(300);
        for (int64_t i = 0; i < t.n; i++) t.w[i] = i == 130 ? (way ? INFINITY : NAN) : weight(i);
        quantise(&t);
        float *w = back(&t, 0, t.n);
        bool shows = false;
        for (int64_t i = 0; i < t.n; i++) shows = shows || !isfinite(w[i]);
        assert_true(shows);
        free(w), drop(&t);
    }
}

int main(void) { return run_listed(NULL, NULL, NULL); }
