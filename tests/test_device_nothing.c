/* test_device_nothing.c - every operation accepts zero rows, elements or sequences, and then writes only empty sums. A
 * micro-batch may have no tokens, and a rank may own no element of a unit.
 * DEVICES: cpu queue */
#include "device_fixture.h"

static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
enum { N_TYPES = sizeof types / sizeof types[0], N = 64, N_SCRATCH = 1 << 13 };

/* Each array has a byte value of its own. The bytes are finite in all types and invalid as indices. */
static uint8_t arrays[MAX_COPIES][N];
static float scratch[N_SCRATCH];
static uint64_t result[2]; /* of reductions */
static int32_t start[3];   /* of order_experts */

#define A(i) ((void *)ARR(arrays[i], N))
#define SCRATCH ((void *)ARR(scratch, N_SCRATCH))
#define RUN_ON_NOTHING(op, ...)                                                                                        \
    do {                                                                                                               \
        fill();                                                                                                        \
        expect_nothing(#op, TRY(op, __VA_ARGS__));                                                                     \
    } while (0)

static void fill(void)
{
    for (int i = 0; i < MAX_COPIES; i++) memset(arrays[i], 0xfb - i, N);
}
static void expect_nothing(const char *op, dt_err err)
{
    int i = 0;
    if (err != DT_OK) fail_msg("%s: %s", op, dt_error_message());
    while (i < MAX_COPIES * N && arrays[i / N][i % N] == 0xfb - i / N) i++;
    if (i < MAX_COPIES * N) fail_msg("%s writes where nothing was asked for", op);
}

/* ---- each operation of the list, with arguments by name and type ------------------------------------------------- */

static void *array_of(fixture *f, const char *name)
{
    if (!strcmp(name, "result")) return ARR(result, 2);
    if (!strcmp(name, "start")) return ARR(start, 3);
    return !strcmp(name, "scratch") ? SCRATCH : A(f->n_copies); /* the next array */
}

/* The next type: the digits of `way` in base N_TYPES, and zeros. */
static int way;
static dt_dtype next_type(void)
{
    const dt_dtype dt = types[way % N_TYPES];
    way /= N_TYPES;
    return dt;
}

/* Numbers of rows, elements and tokens are 0. */
static double value_of(const char *name)
{
    static const char *const counts[] = {"n", "n_rows", "n_tok", "m", "nbytes"};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (!strcmp(name, counts[i])) return 0;
    return !strcmp(name, "width") || !strcmp(name, "ld") || !strcmp(name, "z_group_ld") ? 8
           : !strcmp(name, "p")                                                         ? 0.5
                                                                                        : 1;
}

static dt_routing none_dt_routing(fixture *f, dt_dtype dt) { return (dt_routing){.n_experts = 2, .k = 1}; }
static dt_patches none_dt_patches(fixture *f, dt_dtype dt) { return (dt_patches){.size = 4, .patch = 2, .dt = dt}; }
static dt_matmul none_dt_matmul(fixture *f, dt_dtype dt)
{
    return (dt_matmul){.n = 4, .k = 4, .lda = 4, .ldb = 4, .ldc = 4, .dt = dt, .c_dtype = DT_F32};
}
static dt_rmsnorm none_dt_rmsnorm(fixture *f, dt_dtype dt)
{
    return (dt_rmsnorm){0, 8, 1, 8, 8, 1e-5f, false, dt, false};
}
static dt_row_lengths none_dt_row_lengths(fixture *f, dt_dtype dt)
{
    return (dt_row_lengths){.n_in = 4, .r = 1, .w_ld = 4, .dt = dt};
}
static dt_heads none_dt_heads(fixture *f, dt_dtype dt)
{
    return (dt_heads){
        .n_heads = 2, .n_kv_heads = 1, .head_dim = 2, .x_ld = 8, .q_ld = 4, .kv_ld = 2, .eps = 1, .dt = dt};
}
static dt_latent none_dt_latent(fixture *f, dt_dtype dt)
{
    return (dt_latent){.n_heads = 2,
                       .nope_dim = 1,
                       .rope_dim = 2,
                       .v_dim = 1,
                       .xq_ld = 6,
                       .xkv_ld = 4,
                       .xr_ld = 2,
                       .q_ld = 6,
                       .kv_ld = 6,
                       .dt = dt};
}
static dt_attention none_dt_attention(fixture *f, dt_dtype dt)
{
    static const int32_t zeros[2];
    dt_attention at = {
        .n_heads = 2, .n_kv_heads = 1, .head_dim = 2, .q_ld = 4, .kv_ld = 2, .o_ld = 4, .scale = 1, .dt = dt};
    at.q_start = at.kv_start = at.kv_len = ARR(zeros, 2);
    return at;
}
static dt_conv none_dt_conv(fixture *f, dt_dtype dt)
{
    static const int32_t zeros[2];
    return (dt_conv){.q_start = ARR(zeros, 2), .width = 4, .kernel = 2, .x_ld = 4, .y_ld = 4, .dt = dt};
}
static dt_delta none_dt_delta(fixture *f, dt_dtype dt)
{
    static const int32_t zeros[2];
    return (dt_delta){.n_k_heads = 1,
                      .n_v_heads = 2,
                      .k_dim = 2,
                      .v_dim = 2,
                      .q_start = ARR(zeros, 2),
                      .x_ld = 8,
                      .o_ld = 4,
                      .dt = dt};
}
static dt_delta_gates none_dt_delta_gates(fixture *f, dt_dtype dt)
{
    return (dt_delta_gates){.width = 4, .ld = 4, .dt = dt};
}
static dt_blocks none_dt_blocks(fixture *f, dt_dtype dt) { return (dt_blocks){0, 2, 2, 4, 2, 4, 2, dt}; }
static dt_classifier none_dt_classifier(fixture *f, dt_dtype dt)
{
    return (dt_classifier){.n_vocab = 8,
                           .logits_ld = 8,
                           .inv_temperature = 1,
                           .dlogits_dtype = DT_F32,
                           .target = A(MAX_COPIES - 1),
                           .weight = A(MAX_COPIES - 2),
                           .logp = A(MAX_COPIES - 3)};
}
static dt_token_rows none_dt_token_rows(fixture *f, dt_dtype dt)
{
    return (dt_token_rows){.n_vocab = 8, .logits_ld = 8};
}
static dt_choice none_dt_choice(fixture *f, dt_dtype dt)
{
    return (dt_choice){.greedy = true, .temperature = 1, .top_p = 1};
}
static dt_adamw none_dt_adamw(fixture *f, dt_dtype dt)
{
    return (dt_adamw){.lr = 1, .fix1 = 1, .fix2 = 1, .grad_scale = 1};
}
static dt_sgd none_dt_sgd(fixture *f, dt_dtype dt) { return (dt_sgd){.lr = 1, .grad_scale = 1}; }

#define NONE_IN(type, name) , array_of(f, #name)
#define NONE_OUT NONE_IN
#define NONE_INOUT NONE_IN
#define NONE_DESC(type, name)                                                                                          \
    , (type[]) { none_##type(f, next_type()) }
#define NONE_VAL(type, name) , _Generic((type){0}, dt_dtype : next_type(), default : (type)value_of(#name))
#define NONE_CHECK(call)

TEST(every_operation)
{
    fixture *f = *state;
    for (int types_of = 0; types_of < N_TYPES * N_TYPES * N_TYPES; types_of++) {
#define DT_OP(op, ...)                                                                                                 \
    fill();                                                                                                            \
    way = types_of;                                                                                                    \
    expect_nothing(#op, back_to_host(f, #op, OPS(f)->op(&f->dev DT_EACH(NONE_, __VA_ARGS__), NULL)));
#include "dtrain/device/op_list.h"
    }
}

/* ---- other empty cases ------------------------------------------------------------------------------------------ */

/* Gradients of weights over no rows are 0, unless they are added to. */
TEST(gradients_of_weights)
{
    fixture *f = *state;
    assert_true(OPS(f)->norm_scratch_elems(&f->dev, 8) <= N_SCRATCH);
    for (int t = 0; t < N_TYPES; t++) {
        const dt_dtype dt = types[t];
        const dt_rmsnorm none = none_dt_rmsnorm(f, dt);
        float sums[4][8];
        RUN_ON_NOTHING(bias_backward, A(0), 0, 8, 8, dt, A(1), DT_F32, true);
        RUN_ON_NOTHING(bias_backward, A(0), 4, 0, 8, dt, A(1), DT_F32, false);
        memset(sums, 0xff, sizeof sums);
        RUN(rmsnorm_backward, &none, A(0), A(1), A(2), A(3), A(4), false, ARR(sums[0], 8), DT_F32, false, SCRATCH);
        RUN(layernorm_backward, A(0), A(1), A(2), A(3), A(4), A(5), false, ARR(sums[1], 8), ARR(sums[2], 8), DT_F32,
            false, 0, 8, SCRATCH, dt);
        RUN(bias_backward, A(0), 0, 8, 8, dt, ARR(sums[3], 8), DT_F32, false);
        for (int i = 0; i < 32; i++) assert_true(sums[i / 8][i % 8] == 0);
    }
}

TEST(matmuls)
{
    fixture *f = *state;
    for (int t = 0; t < N_TYPES; t++) {
        dt_matmul mm = none_dt_matmul(f, types[t]);
        float c[16];
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

TEST(a_sequence_without_tokens)
{
    fixture *f = *state;
    for (int t = 0; t < N_TYPES; t++) {
        for (int backward = 0; backward < 2; backward++) {
            dt_attention at = none_dt_attention(f, types[t]);
            at.n_seq = 1;
            assert_true(OPS(f)->attention_scratch_elems(&f->dev, &at) <= N_SCRATCH);
            if (backward)
                RUN_ON_NOTHING(attention_backward, &at, A(0), A(1), A(2), A(3), A(4), A(5), A(6), A(7), A(8), SCRATCH);
            else
                RUN_ON_NOTHING(attention_forward, &at, A(0), A(1), A(2), A(3), A(4));
        }
    }
}

TEST(sums)
{
    fixture *f = *state;
    double squares = 7;
    float most = 7;
    uint64_t fixed[2] = {7, 7};
    RUN(sum_squares, A(0), DT_F32, 0, ARR(&squares, 1));
    RUN(abs_max, A(0), DT_F32, 0, ARR(&most, 1));
    RUN(sum_squares_fixed, A(0), DT_F32, 0, 20, ARR(fixed, 2));
    assert_true(squares == 0 && most == 0 && fixed[0] == 0 && fixed[1] == 0);
}

int main(void) { return run_listed(NULL, open_device, close_device); }
