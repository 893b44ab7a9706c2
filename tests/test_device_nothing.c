/* test_device_nothing.c - every operation accepts zero rows, elements or sequences, and then writes only empty sums. A
 * micro-batch may have no tokens, and a rank may own no element of a unit.
 * DEVICES: cpu queue */
#include "device_fixture.h"

static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
enum { N_TYPES = sizeof types / sizeof types[0], N_ARRAYS = 9, N = 64 };

/* Arrays of bytes 0xff: NaN in all types, and indices that are nowhere. */
static uint8_t arrays[N_ARRAYS][N];

#define A(i) ((void *)ARR(arrays[i], N))
#define RUN_ON_NOTHING(op, ...)                                                                                        \
    do {                                                                                                               \
        spoil();                                                                                                       \
        RUN(op, __VA_ARGS__);                                                                                          \
        if (!are_as_they_were()) fail_msg("%s writes where nothing was asked for", #op);                               \
    } while (0)

static void spoil(void) { memset(arrays, 0xff, sizeof arrays); }
static bool are_as_they_were(void)
{
    const uint8_t *all = arrays[0];
    size_t i = 0;
    while (i < sizeof arrays && all[i] == 0xff) i++;
    return i == sizeof arrays;
}

/* Scratch on the device; freed by scratch_free. */
static float *scratch;
static void *scratch_of(fixture *f, int64_t n)
{
    free(scratch);
    scratch = calloc((size_t)n + 1, sizeof *scratch);
    assert_non_null(scratch);
    return ARR(scratch, n + 1);
}
static int scratch_free(void **state)
{
    free(scratch);
    scratch = NULL;
    return 0;
}

TEST(elements)
{
    fixture *f = *state;
    for (int t = 0; t < N_TYPES; t++) {
        const dt_dtype dt = types[t];
        RUN_ON_NOTHING(zero, A(0), 0);
        RUN_ON_NOTHING(convert, A(0), dt, A(1), DT_F32, 0);
        RUN_ON_NOTHING(add_into, A(0), dt, A(1), DT_F32, true, 0);
        RUN_ON_NOTHING(add, A(0), A(1), A(2), dt, 0);
        RUN_ON_NOTHING(scale, A(0), 2, A(1), dt, 0);
        RUN_ON_NOTHING(act_forward, DT_ACT_SILU, A(0), A(1), dt, 0);
        RUN_ON_NOTHING(act_backward, DT_ACT_SILU, A(0), A(1), A(2), dt, 0);
        RUN_ON_NOTHING(glu_forward, DT_ACT_SILU, A(0), A(1), dt, 0, 8);
        RUN_ON_NOTHING(glu_backward, DT_ACT_SILU, A(0), A(1), A(2), dt, 0, 8);
        RUN_ON_NOTHING(dropout, A(0), A(1), A(2), 0.5f, 7, A(3), 0, 8, dt);
    }
}

TEST(rows)
{
    fixture *f = *state;
    for (int t = 0; t < N_TYPES; t++) {
        const dt_dtype dt = types[t];
        const dt_patches p = {.size = 4, .patch = 2, .dt = dt};
        const dt_rmsnorm n = {0, 8, 1, 8, 8, 1e-5f, false, dt};
        const dt_heads h = {
            .n_heads = 2, .n_kv_heads = 1, .head_dim = 2, .x_ld = 8, .q_ld = 4, .kv_ld = 2, .eps = 1, .dt = dt};
        RUN_ON_NOTHING(gather_rows, A(0), A(1), A(2), 0, 8, dt);
        RUN_ON_NOTHING(scatter_rows, A(0), A(1), A(2), 0, 8, dt);
        RUN_ON_NOTHING(patches, &p, A(0), A(1));
        RUN_ON_NOTHING(embedding_forward, A(0), A(1), A(2), A(3), A(4), 0, 8, dt);
        RUN_ON_NOTHING(embedding_backward, A(0), A(1), A(2), A(3), 0, 8, dt, DT_F32);
        RUN_ON_NOTHING(softcap, A(0), 1, 0, 8, 8);
        RUN_ON_NOTHING(rmsnorm_forward, &n, A(0), A(1), A(2), A(3));
        RUN_ON_NOTHING(layernorm_forward, A(0), A(1), A(2), A(3), A(4), A(5), 0, 8, 1e-5f, dt);
        RUN_ON_NOTHING(heads_forward, &h, A(0), A(1), A(2), A(3), NULL, NULL);
        RUN_ON_NOTHING(heads_backward, &h, A(0), NULL, NULL, A(1), A(2), NULL, NULL, DT_F32, false, NULL);
    }
}

/* Gradients of weights over no rows: added to, they stay; else they are 0. */
TEST_WITH(gradients_of_weights, NULL, scratch_free)
{
    fixture *f = *state;
    const int64_t n = OPS(f)->norm_scratch_elems(&f->dev, 8);
    for (int t = 0; t < N_TYPES; t++) {
        const dt_dtype dt = types[t];
        const dt_rmsnorm none = {0, 8, 1, 8, 8, 1e-5f, false, dt};
        RUN_ON_NOTHING(rmsnorm_backward, &none, A(0), A(1), A(2), A(3), A(4), false, A(5), DT_F32, true,
                       scratch_of(f, n));
        RUN_ON_NOTHING(layernorm_backward, A(0), A(1), A(2), A(3), A(4), A(5), false, A(6), A(7), DT_F32, true, 0, 8,
                       scratch_of(f, n), dt);
        RUN_ON_NOTHING(bias_backward, A(0), 0, 8, 8, dt, A(1), DT_F32, true);
        RUN_ON_NOTHING(bias_backward, A(0), 4, 0, 8, dt, A(1), DT_F32, false);
        float sums[4][8];
        memset(sums, 0xff, sizeof sums);
        RUN(rmsnorm_backward, &none, A(0), A(1), A(2), A(3), A(4), false, ARR(sums[0], 8), DT_F32, false,
            scratch_of(f, n));
        RUN(layernorm_backward, A(0), A(1), A(2), A(3), A(4), A(5), false, ARR(sums[1], 8), ARR(sums[2], 8), DT_F32,
            false, 0, 8, scratch_of(f, n), dt);
        RUN(bias_backward, A(0), 0, 8, 8, dt, ARR(sums[3], 8), DT_F32, false);
        for (int i = 0; i < 32; i++) assert_true(sums[i / 8][i % 8] == 0);
    }
}

TEST(matmuls)
{
    fixture *f = *state;
    for (int t = 0; t < N_TYPES; t++) {
        dt_matmul mm = {.n = 4, .k = 4, .lda = 4, .ldb = 4, .ldc = 4, .dt = types[t], .c_dtype = DT_F32};
        float c[16];
        RUN_ON_NOTHING(matmul, &mm, A(0), A(1), A(2));
        mm.m = 4, mm.n = 0;
        RUN_ON_NOTHING(matmul, &mm, A(0), A(1), A(2));
        for (int accumulate = 1; accumulate >= 0; accumulate--) { /* no terms */
            for (int i = 0; i < 16; i++) c[i] = 1;
            mm.n = 4, mm.k = 0, mm.accumulate = accumulate;
            RUN(matmul, &mm, A(0), A(1), ARR(c, 16));
            for (int i = 0; i < 16; i++) assert_true(c[i] == (float)accumulate);
        }
    }
}

/* No sequences, and one without tokens. */
TEST_WITH(attention, NULL, scratch_free)
{
    static const int32_t zeros[2];
    fixture *f = *state;
    for (int way = 0; way < 2 * N_TYPES; way++) {
        dt_attention at = {.n_seq = way % 2,
                           .n_heads = 2,
                           .n_kv_heads = 1,
                           .head_dim = 2,
                           .q_ld = 4,
                           .kv_ld = 2,
                           .o_ld = 4,
                           .scale = 1,
                           .dt = types[way / 2]};
        const int64_t n = OPS(f)->attention_scratch_elems(&f->dev, &at);
        at.q_start = at.kv_start = at.kv_len = ARR(zeros, 2);
        RUN_ON_NOTHING(attention_forward, &at, A(0), A(1), A(2), A(3), A(4));
        at.q_start = at.kv_start = at.kv_len = ARR(zeros, 2);
        RUN_ON_NOTHING(attention_backward, &at, A(0), A(1), A(2), A(3), A(4), A(5), A(6), A(7), A(8), scratch_of(f, n));
    }
}

TEST(logits)
{
    fixture *f = *state;
    dt_classifier cl = {.n_vocab = 8, .logits_ld = 8, .inv_temperature = 1, .dlogits_dtype = DT_F32};
    const dt_token_rows none = {.n_vocab = 8, .logits_ld = 8};
    const dt_choice how = {.greedy = true, .temperature = 1, .top_p = 1};
    spoil();
    cl.target = A(1), cl.weight = A(2), cl.logp = A(3);
    RUN_ON_NOTHING(classifier, &cl, A(0));
    RUN_ON_NOTHING(draw_tokens, &none, &how, A(0), NULL, A(1), A(2));
    RUN_ON_NOTHING(top_tokens, &none, A(0), 2, A(1), A(2));
    RUN_ON_NOTHING(log_softmax_at, &none, A(0), 1, 2, A(1), A(2));
}

TEST(optimizers_and_sums)
{
    fixture *f = *state;
    const dt_adamw adamw = {.lr = 1, .fix1 = 1, .fix2 = 1, .grad_scale = 1};
    const dt_sgd sgd = {.lr = 1, .grad_scale = 1};
    double squares = 7;
    float most = 7;
    uint64_t fixed[2] = {7, 7};
    RUN_ON_NOTHING(adamw_step, &adamw, A(0), DT_F32, A(1), A(2), A(3), A(4), DT_BF16, 0);
    RUN_ON_NOTHING(sgd_step, &sgd, A(0), DT_F32, A(1), A(2), A(3), DT_BF16, 0);
    RUN_ON_NOTHING(add_scaled, 1, A(0), DT_F32, 2, A(1), DT_BF16, A(2), DT_F32, 0);
    RUN_ON_NOTHING(round_stochastic, A(0), A(1), 1, 2, 3, 0);
    RUN_ON_NOTHING(quantise_blocks, A(0), A(1), A(2), true, 0);
    RUN_ON_NOTHING(dequantise_blocks, A(0), A(1), A(2), true, 0);
    RUN(sum_squares, A(0), DT_F32, 0, ARR(&squares, 1));
    RUN(abs_max, A(0), DT_F32, 0, ARR(&most, 1));
    RUN(sum_squares_fixed, A(0), DT_F32, 0, 20, ARR(fixed, 2));
    assert_true(squares == 0 && most == 0 && fixed[0] == 0 && fixed[1] == 0);
}

int main(void) { return run_listed(NULL, open_device, close_device); }
