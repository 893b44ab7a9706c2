/* test_device_nonfinite.c - non-finite values propagate to the loss and to the norm of the gradients, where the ranks'
 * vote on a step checks for them. A NaN or an infinity in any input of any operation appears in an output, on every
 * instruction set. One in any parameter of a model appears in the loss or in a gradient.
 * DEVICES: cpu queue */
#include "device_fixture.h"
#include "ref_model.h"

enum { ROWS = 5, WIDTH = 67, MAX_ARRAYS = 6 };
static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
enum { N_TYPES = sizeof types / sizeof types[0] };

/* A call: inputs that are poisoned in turn, what it writes. */
typedef struct call {
    fixture *f;
    dt_dtype dt;
    int how; /* the operation's own choice */
    ref_array in[MAX_ARRAYS], out[MAX_ARRAYS];
} call;

typedef struct operation {
    const char *name;
    int n_ways;
    bool inf_may_vanish; /* one of the infinities has a limit that is a number, such as gelu(-inf) = 0 */
    void (*make)(call *c);
    void (*run)(call *c);
} operation;

static const int32_t ids[ROWS] = {3, 0, 2, 2, 1}, order[ROWS] = {1, 4, 2, 3, 0};
static const uint64_t keys[ROWS] = {1, 2, 3, 4, 5};

static void must(dt_err err) { assert_int_equal(err, DT_OK); }
#define CALL(op, ...)                                                                                                  \
    do {                                                                                                               \
        fixture *f = c->f;                                                                                             \
        RUN(op, __VA_ARGS__);                                                                                          \
    } while (0)

/* ---- the operations ---------------------------------------------------------------------------------------------- */

static void make_elements(call *c)
{
    for (int i = 0; i < 2; i++) c->in[i] = ref_random(c->dt, ROWS * WIDTH, (uint64_t)i, 1);
    c->out[0] = ref_new(c->dt, ROWS * WIDTH);
}
static void make_two_to_one(call *c)
{
    make_elements(c);
    ref_drop(&c->in[1]);
    c->in[1] = ref_random(DT_F32, ROWS * WIDTH, 3, 1);
}
static void make_one(call *c)
{
    c->in[0] = ref_random(c->dt, ROWS * WIDTH, 1, 1);
    c->out[0] = ref_new(c->dt, ROWS * WIDTH);
}
static void make_to_other(call *c)
{
    c->in[0] = ref_random(c->dt, ROWS * WIDTH, 1, 1);
    c->out[0] = ref_new(c->how ? DT_F32 : c->dt == DT_F16 ? DT_F16 : DT_BF16, ROWS * WIDTH);
}
static void run_convert(call *c) { CALL(convert, ON(c->in[0]), c->dt, ON(c->out[0]), c->out[0].dt, ROWS * WIDTH); }
static void run_add(call *c) { CALL(add, ON(c->in[0]), ON(c->in[1]), ON(c->out[0]), c->dt, ROWS * WIDTH); }
static void run_scale(call *c) { CALL(scale, ON(c->in[0]), 0.5f, ON(c->out[0]), c->dt, ROWS * WIDTH); }
static void run_add_into(call *c)
{
    memcpy(c->out[0].p, c->in[0].p, (size_t)(ROWS * WIDTH) * dt_dtype_size(c->dt));
    CALL(add_into, ON(c->in[1]), DT_F32, ON(c->out[0]), c->dt, true, ROWS * WIDTH);
}
static void run_act_forward(call *c)
{
    CALL(act_forward, (dt_activation)c->how, ON(c->in[0]), ON(c->out[0]), c->dt, ROWS * WIDTH);
}
static void run_act_backward(call *c)
{
    CALL(act_backward, (dt_activation)c->how, ON(c->in[0]), ON(c->in[1]), ON(c->out[0]), c->dt, ROWS * WIDTH);
}
static void make_glu(call *c)
{
    c->in[0] = ref_random(c->dt, 2 * ROWS * WIDTH, 1, 1);
    c->in[1] = ref_random(c->dt, ROWS * WIDTH, 2, 1);
    c->out[0] = ref_new(c->dt, 2 * ROWS * WIDTH);
}
static void make_glu_forward(call *c)
{
    c->in[0] = ref_random(c->dt, 2 * ROWS * WIDTH, 1, 1);
    c->out[0] = ref_new(c->dt, ROWS * WIDTH);
}
static void run_glu_forward(call *c)
{
    CALL(glu_forward, (dt_activation)c->how, 0, ON(c->in[0]), ON(c->out[0]), c->dt, ROWS, WIDTH);
}
static void run_glu_backward(call *c)
{
    CALL(glu_backward, (dt_activation)c->how, 0, ON(c->in[0]), ON(c->in[1]), ON(c->out[0]), c->dt, ROWS, WIDTH);
}
static void make_dropout(call *c)
{
    make_one(c);
    if (c->how) c->in[1] = ref_random(c->dt, ROWS * WIDTH, 2, 1);
}
/* so rare that every element is kept */
static void run_dropout(call *c)
{
    CALL(dropout, ON(c->in[0]), c->how ? ON(c->in[1]) : NULL, ON(c->out[0]), 1e-7f, 1, ARR(keys, ROWS), ROWS, WIDTH,
         c->dt);
}
/* q, k and v of 2, 1 and 1 heads of 64, with a table of angles and the norms' weights where how says so. */
enum { HEADS_LD = 4 * 64 };
static void make_heads(call *c)
{
    c->in[0] = ref_random(c->dt, ROWS * HEADS_LD, 1, 1);
    c->in[1] = ref_random(DT_F32, 4 * 64, 2, 1);
    for (int i = 2; c->how && i < 4; i++) c->in[i] = ref_random(c->dt, 64, (uint64_t)i, 1);
    c->out[0] = ref_new(c->dt, ROWS * HEADS_LD);
}
static dt_heads heads_of(const call *c)
{
    fixture *f = c->f;
    return (dt_heads){.n_tok = ROWS,
                      .n_heads = 2,
                      .n_kv_heads = 1,
                      .head_dim = 64,
                      .x_ld = HEADS_LD,
                      .q_ld = HEADS_LD,
                      .kv_ld = HEADS_LD,
                      .q_norm = c->how ? ON(c->in[2]) : NULL,
                      .k_norm = c->how ? ON(c->in[3]) : NULL,
                      .eps = 1e-5f,
                      .pos = ARR(ids, ROWS),
                      .cos_sin = ON(c->in[1]),
                      .dt = c->dt};
}
static void run_heads_forward(call *c)
{
    fixture *f = c->f;
    const dt_heads h = heads_of(c);
    RUN(heads_forward, &h, ON(c->in[0]), ON(c->out[0]), ON_FROM(c->out[0], 2 * 64), ON_FROM(c->out[0], 3 * 64), NULL,
        NULL);
}
static void make_heads_backward(call *c)
{
    c->in[0] = ref_random(c->dt, ROWS * 3 * 64, 1, 1);
    c->in[1] = ref_random(DT_F32, 4 * 64, 2, 1);
    c->out[0] = ref_new(c->dt, ROWS * 3 * 64);
}
/* without norms, whose backward norm_backward shows */
static void run_heads_backward(call *c)
{
    fixture *f = c->f;
    memcpy(c->out[0].p, c->in[0].p, ref_bytes(&c->in[0]));
    dt_heads h = heads_of(c);
    h.x_ld = h.q_ld = h.kv_ld = 3 * 64;
    RUN(heads_backward, &h, NULL, NULL, NULL, ON(c->out[0]), ON_FROM(c->out[0], 2 * 64), NULL, NULL, DT_F32, false,
        NULL);
}
static void make_embedding(call *c)
{
    for (int i = 0; i < 2; i++) c->in[i] = ref_random(c->dt, 4 * WIDTH, (uint64_t)i, 1);
    c->out[0] = ref_new(c->dt, ROWS * WIDTH);
}
static void run_embedding_forward(call *c)
{
    CALL(embedding_forward, ARR(ids, ROWS), ARR(ids, ROWS), ON(c->in[0]), ON(c->in[1]), ON(c->out[0]), ROWS, WIDTH,
         c->dt);
}
static void make_table(call *c)
{
    c->in[0] = ref_random(c->dt, ROWS * WIDTH, 1, 1);
    c->in[1] = ref_random(DT_F32, 4 * WIDTH, 2, 1);
    c->out[0] = ref_new(DT_F32, 4 * WIDTH);
}
static void run_embedding_backward(call *c)
{
    memcpy(c->out[0].p, c->in[1].p, 4 * WIDTH * sizeof(float));
    CALL(embedding_backward, ON(c->in[0]), ARR(ids, ROWS), ARR(order, ROWS), ON(c->out[0]), ROWS, WIDTH, c->dt, DT_F32);
}
static void make_bias(call *c)
{
    c->in[0] = ref_random(c->dt, ROWS * WIDTH, 1, 1);
    c->out[0] = ref_new(c->dt, WIDTH);
}
static void run_bias_backward(call *c)
{
    CALL(bias_backward, ON(c->in[0]), ROWS, WIDTH, WIDTH, c->dt, ON(c->out[0]), c->dt, false);
}

/* Forms of matmuls: A B, A' B, A B', then A B and A B' with batch-invariant rows; m, k and n with rests of every
 * width. */
enum { M = 37, N = 53, K = 71 };
static void make_matmul(call *c)
{
    c->in[0] = ref_random(c->dt, M * K, 1, 1);
    c->in[1] = ref_random(c->dt, K * N, 2, 1);
    c->in[2] = ref_random(c->dt, N, 3, 1);
    c->in[3] = ref_random(DT_F32, M * N, 4, 1);
    c->out[0] = ref_new(DT_F32, M * N);
}
static dt_matmul matmul_form(const call *c)
{
    const bool ta = c->how == 1, tb = c->how == 2 || c->how == 4;
    dt_matmul mm = dt_dense_matmul(M, N, K, ta, tb, c->dt, DT_F32);
    mm.batch_invariant = c->how > 2;
    return mm;
}
static void run_matmul(call *c)
{
    fixture *f = c->f;
    dt_matmul mm = matmul_form(c);
    mm.bias = ON(c->in[2]);
    mm.accumulate = true;
    memcpy(c->out[0].p, c->in[3].p, M * N * sizeof(float));
    RUN(matmul, &mm, ON(c->in[0]), ON(c->in[1]), ON(c->out[0]));
}

/* The same with what may go with a matmul: an addend, the derivative of an activation, sums. */
static void make_epilogue(call *c)
{
    make_matmul(c);
    ref_drop(&c->out[0]);
    c->in[4] = ref_random(c->dt, M * N, 5, 1);
    c->out[0] = ref_new(c->dt, M * N);
    c->out[1] = ref_new(DT_F32, N);
}
static void run_epilogue(call *c)
{
    fixture *f = c->f;
    dt_matmul mm = matmul_form(c);
    mm.c_dtype = c->dt;
    mm.bias = ON(c->in[2]);
    mm.addend = ON(c->in[3]), mm.ldd = N;
    mm.epilogue = DT_EPILOGUE_ACT_BACKWARD, mm.act = DT_ACT_GELU_TANH;
    mm.aux = ON(c->in[4]), mm.ld_aux = N;
    mm.sums_of = DT_SUMS_OF_C, mm.sums = ON(c->out[1]);
    RUN(matmul, &mm, ON(c->in[0]), ON(c->in[1]), ON(c->out[0]));
}

/* Norms: x, weight, bias, dy. */
static void make_norm(call *c)
{
    c->in[0] = ref_random(c->dt, ROWS * WIDTH, 1, 1);
    c->in[1] = ref_random(c->dt, WIDTH, 2, 1);
    if (c->how) c->in[2] = ref_random(c->dt, WIDTH, 3, 1);
    c->out[0] = ref_new(c->dt, ROWS * WIDTH);
}
static dt_rmsnorm rows_of(const call *c)
{
    return (dt_rmsnorm){ROWS, WIDTH, 1, WIDTH, WIDTH, 1e-5f, false, c->dt, false};
}
static void norm_forward(call *c, const ref_array *y, float *mean, float *rstd)
{
    const dt_rmsnorm n = rows_of(c);
    if (c->how)
        CALL(layernorm_forward, ON(c->in[0]), ON(c->in[1]), ON(c->in[2]), ON(*y), ARR(mean, ROWS), ARR(rstd, ROWS),
             ROWS, WIDTH, 1e-5f, c->dt);
    else
        CALL(rmsnorm_forward, &n, ON(c->in[0]), ON(c->in[1]), ON(*y), ARR(rstd, ROWS));
}
static void run_norm_forward(call *c)
{
    float mean[ROWS] = {0}, rstd[ROWS] = {0};
    norm_forward(c, &c->out[0], mean, rstd);
}
static void make_norm_backward(call *c)
{
    c->in[0] = ref_random(c->dt, ROWS * WIDTH, 1, 1);
    c->in[1] = ref_random(c->dt, WIDTH, 2, 1);
    c->in[3] = ref_random(c->dt, ROWS * WIDTH, 4, 1);
    c->out[0] = ref_new(c->dt, ROWS * WIDTH);
    c->out[1] = ref_new(DT_F32, WIDTH);
    if (c->how) c->out[2] = ref_new(DT_F32, WIDTH);
}
static void run_norm_backward(call *c)
{
    float mean[ROWS] = {0}, rstd[ROWS] = {0};
    const dt_rmsnorm n = rows_of(c);
    ref_array scratch = ref_new(DT_F32, OPS(c->f)->norm_scratch_elems(&c->f->dev, WIDTH));
    ref_array y = ref_new(c->dt, ROWS * WIDTH), bias = ref_random(c->dt, WIDTH, 3, 1);
    c->in[2] = bias;
    norm_forward(c, &y, mean, rstd);
    c->in[2] = (ref_array){0};
    if (c->how)
        CALL(layernorm_backward, ON(c->in[0]), ON(c->in[1]), ARR(mean, ROWS), ARR(rstd, ROWS), ON(c->in[3]),
             ON(c->out[0]), false, ON(c->out[1]), ON(c->out[2]), DT_F32, false, ROWS, WIDTH, ON(scratch), c->dt);
    else
        CALL(rmsnorm_backward, &n, ON(c->in[0]), ON(c->in[1]), ARR(rstd, ROWS), ON(c->in[3]), ON(c->out[0]), false,
             ON(c->out[1]), DT_F32, false, ON(scratch));
    ref_drop(&y), ref_drop(&bias), ref_drop(&scratch);
}

/* Attention over 70 tokens, two tiles: q, k, v, dout, sinks. A score of -inf is a key that cannot be seen, and
 * soft-capping bounds all scores. */
enum { TOK = 70, HEADS = 2, DIM = 24 };
static const int32_t q_start[2] = {0, TOK}, kv_start[1] = {0}, kv_len[1] = {TOK};
static dt_attention attention_of(const call *c)
{
    fixture *f = c->f;
    return (dt_attention){.n_seq = 1,
                          .n_heads = HEADS,
                          .n_kv_heads = 1,
                          .head_dim = DIM,
                          .q_start = ARR(q_start, 2),
                          .kv_start = ARR(kv_start, 1),
                          .kv_len = ARR(kv_len, 1),
                          .n_tok = TOK,
                          .max_q_len = TOK,
                          .max_kv_len = TOK,
                          .q_ld = HEADS * DIM,
                          .kv_ld = DIM,
                          .o_ld = HEADS * DIM,
                          .scale = 0.2f,
                          .softcap = c->in[4].n ? 0.5f : 0,
                          .sinks = c->in[4].n ? ON(c->in[4]) : NULL,
                          .dt = c->dt};
}
static void make_attention(call *c)
{
    if (c->how > 1) c->in[4] = ref_random(c->dt, HEADS, 5, 1);
    c->in[0] = ref_random(c->dt, TOK * HEADS * DIM, 1, 1);
    c->in[1] = ref_random(c->dt, TOK * DIM, 2, 1);
    c->in[2] = ref_random(c->dt, TOK * DIM, 3, 1);
    c->out[0] = ref_new(c->dt, TOK * HEADS * DIM);
}
static void run_attention_forward(call *c)
{
    dt_attention at = attention_of(c);
    float lse[TOK * HEADS] = {0};
    at.batch_invariant = c->how % 2;
    CALL(attention_forward, &at, ON(c->in[0]), ON(c->in[1]), ON(c->in[2]), ON(c->out[0]),
         c->how % 2 ? NULL : ARR(lse, TOK * HEADS));
}
static void make_attention_backward(call *c)
{
    make_attention(c);
    c->in[3] = ref_random(c->dt, TOK * HEADS * DIM, 4, 1);
    c->out[1] = ref_new(c->dt, TOK * DIM);
    c->out[2] = ref_new(c->dt, TOK * DIM);
    if (c->how) c->in[4] = ref_random(c->dt, HEADS, 5, 1), c->out[3] = ref_new(DT_F32, HEADS);
}
static void run_attention_backward(call *c)
{
    dt_attention at = attention_of(c);
    ref_array scratch = ref_new(DT_F32, OPS(c->f)->attention_scratch_elems(&c->f->dev, &at));
    ref_array out = ref_new(c->dt, TOK * HEADS * DIM), lse = ref_new(DT_F32, TOK * HEADS);
    CALL(attention_forward, &at, ON(c->in[0]), ON(c->in[1]), ON(c->in[2]), ON(out), ON(lse));
    at = attention_of(c);
    if (at.sinks) at.dsinks = on_device(c->f, c->out[3].p, ref_bytes(&c->out[3]));
    CALL(attention_backward, &at, ON(c->in[0]), ON(c->in[1]), ON(c->in[2]), ON(out), ON(lse), ON(c->in[3]),
         ON(c->out[0]), ON(c->out[1]), ON(c->out[2]), ON(scratch));
    ref_drop(&out), ref_drop(&lse), ref_drop(&scratch);
}

/* The classifier: logits of a row of two blocks, and the weights of the rows; the third way with all its terms. A logit
 * of -inf is a token that cannot be. */
enum { VOCAB = 1500 };
static void make_classifier(call *c)
{
    c->in[0] = ref_random(DT_F32, 2 * VOCAB, 1, 5);
    c->in[1] = ref_random(DT_F32, 2, 2, 1);
    if (c->how >= 2) c->in[2] = ref_random(DT_F32, 2 * VOCAB, 3, 5), c->in[3] = ref_random(DT_F32, 2, 4, 1);
    c->out[0] = ref_new(DT_F32, 2 * VOCAB); /* dlogits of type dt: as many as there are */
    c->out[1] = ref_new(DT_F32, 2);         /* logp */
}
static void run_classifier(call *c)
{
    static const int32_t target[2] = {7, 1300};
    fixture *f = c->f;
    const dt_classifier plain = {
        .n_rows = 2, .n_vocab = VOCAB, .logits_ld = VOCAB, .inv_temperature = 1, .dlogits_dtype = c->dt};
    float entropy[2] = {0}, logp[2] = {0};
    memcpy(c->out[0].p, c->in[0].p, 2 * VOCAB * sizeof(float));
    dt_classifier cl = plain;
    cl.target = ARR(target, 2), cl.weight = ON(c->in[1]), cl.logp = ON(c->out[1]);
    if (c->how) cl.entropy = ARR(entropy, 2);
    if (c->how >= 2) cl.label_smoothing = 0.1f, cl.z_loss = 0.01f, cl.entropy_weight = ON(c->in[3]);
    if (c->how >= 2) cl.ref_logits = ON(c->in[2]), cl.ref_ld = VOCAB, cl.kl_weight = ON(c->in[3]);
    if (c->how > 2) cl.kl_mix = c->how == 3 ? 0.5f : 1;
    RUN(classifier, &cl, ON(c->out[0]));
    ref_array z = ref_copy(&c->in[0]); /* without gradients logp must tell on its own */
    cl = plain;
    cl.target = ARR(target, 2), cl.logp = ARR(logp, 2);
    RUN(classifier, &cl, ON(z));
    const bool poisoned = isnan(logp[0]) || isnan(logp[1]);
    assert_true(poisoned || (isfinite(((float *)c->out[1].p)[0]) && isfinite(((float *)c->out[1].p)[1])));
    ref_drop(&z);
    if (c->dt != DT_F32) /* one value of each row's gradients for the check, which reads floats */
        for (int r = 0; r < 2; r++) {
            float sum = 0;
            const void *d = (const float *)c->out[0].p + r * VOCAB;
            for (int v = 0; v < VOCAB; v++) sum += dt_element(d, c->dt, v);
            for (int v = 0; v < VOCAB; v++) ((float *)c->out[0].p)[r * VOCAB + v] = sum;
        }
}

/* AdamW: grad, master, m, v. A moment of -inf in v is no square. */
static void make_adamw(call *c)
{
    c->in[0] = ref_random(c->dt, WIDTH, 1, 1);
    for (int i = 1; i < 4; i++) {
        c->in[i] = ref_random(DT_F32, WIDTH, (uint64_t)i, 1);
        c->out[i] = ref_new(DT_F32, WIDTH);
    }
    for (int64_t i = 0; i < WIDTH; i++) ref_set(&c->in[3], i, fabs(ref_get(&c->in[3], i)));
    c->out[0] = ref_new(c->dt, WIDTH);
}
static void run_adamw(call *c)
{
    dt_adamw opt = usual_adamw(1e-3f, 0.1f, 0.01f);
    if (c->how) opt.weight_decay = 0, opt.l2 = 0.1f;
    for (int i = 1; i < 4; i++) memcpy(c->out[i].p, c->in[i].p, WIDTH * sizeof(float));
    CALL(adamw_step, &opt, ON(c->in[0]), c->dt, ON(c->out[1]), ON(c->out[2]), ON(c->out[3]), ON(c->out[0]), c->dt,
         WIDTH);
}

/* Gradient descent: grad, master, momentum. */
static void make_sgd(call *c)
{
    c->in[0] = ref_random(c->dt, WIDTH, 1, 1);
    for (int i = 1; i < (c->how ? 3 : 2); i++) {
        c->in[i] = ref_random(DT_F32, WIDTH, (uint64_t)i, 1);
        c->out[i] = ref_new(DT_F32, WIDTH);
    }
    c->out[0] = ref_new(c->dt, WIDTH);
}
static void run_sgd(call *c)
{
    const dt_sgd opt = {.lr = 1e-3f, .momentum = 0.9f, .l2 = 0.1f, .grad_scale = 1};
    for (int i = 1; i < (c->how ? 3 : 2); i++) memcpy(c->out[i].p, c->in[i].p, WIDTH * sizeof(float));
    CALL(sgd_step, &opt, ON(c->in[0]), c->dt, ON(c->out[1]), c->how ? ON(c->out[2]) : NULL, ON(c->out[0]), c->dt,
         WIDTH);
}

static const operation operations[] = {
    {"convert", 2, false, make_to_other, run_convert},
    {"add", 1, false, make_elements, run_add},
    {"scale", 1, false, make_one, run_scale},
    {"add_into", 1, false, make_two_to_one, run_add_into},
    {"act_forward", 4, true, make_one, run_act_forward},
    {"act_backward", 4, true, make_elements, run_act_backward},
    {"glu_forward", 4, true, make_glu_forward, run_glu_forward},
    {"glu_backward", 4, true, make_glu, run_glu_backward},
    {"dropout", 2, false, make_dropout, run_dropout},
    {"heads_forward", 2, false, make_heads, run_heads_forward},
    {"heads_backward", 1, false, make_heads_backward, run_heads_backward},
    {"embedding_forward", 1, false, make_embedding, run_embedding_forward},
    {"embedding_backward", 1, false, make_table, run_embedding_backward},
    {"bias_backward", 1, false, make_bias, run_bias_backward},
    {"matmul", 5, false, make_matmul, run_matmul},
    {"matmul with epilogue", 5, true, make_epilogue, run_epilogue},
    {"norm_forward", 2, false, make_norm, run_norm_forward},
    {"norm_backward", 2, false, make_norm_backward, run_norm_backward},
    {"attention_forward", 4, true, make_attention, run_attention_forward},
    {"attention_backward", 2, true, make_attention_backward, run_attention_backward},
    {"classifier", 5, true, make_classifier, run_classifier},
    {"adamw_step", 2, false, make_adamw, run_adamw},
    {"sgd_step", 2, false, make_sgd, run_sgd},
};

/* ---- the property ------------------------------------------------------------------------------------------------ */

/* 0x7fffffff: a NaN whose low bits are set, as damaged files have them; arithmetic keeps such bits. bf16 takes the
 * upper half of each, fp16 sign and upper bits of the fraction. */
static const uint32_t BAD[] = {0x7fc00000u, 0x7fffffffu, 0xffffffffu, 0x7f800000u, 0xff800000u};
enum { N_NANS = 3, N_BAD = 5 };

static void poison(ref_array *a, int64_t i, uint32_t bits)
{
    if (a->dt == DT_F32)
        ((uint32_t *)a->p)[i] = bits;
    else if (a->dt == DT_BF16)
        ((uint16_t *)a->p)[i] = (uint16_t)(bits >> 16);
    else
        ((uint16_t *)a->p)[i] = (uint16_t)((bits >> 16 & 0x8000u) | 0x7c00u | (bits >> 13 & 0x3ffu));
}

static bool shows(const call *c)
{
    for (int o = 0; o < MAX_ARRAYS; o++)
        for (int64_t i = 0; i < c->out[o].n; i++)
            if (!isfinite(ref_get(&c->out[o], i))) return true;
    return false;
}

static void check_input(const operation *op, call *c, int input)
{
    ref_array *a = &c->in[input], was = ref_copy(a);
    const size_t nbytes = (size_t)a->n * dt_dtype_size(a->dt);
    for (int k = 0; k < 5; k++)
        for (int b = 0; b < N_BAD; b++) {
            if ((b >= N_NANS && op->inf_may_vanish) || !is_tried()) continue;
            const int64_t at = k == 0 ? 0 : k == 1 ? a->n - 1 : (int64_t)(dt_mix64((uint64_t)k) % (uint64_t)a->n);
            poison(a, at, BAD[b]);
            op->run(c);
            if (!shows(c))
                fail_msg("%s, way %d, %s: 0x%08x at %lld of input %d does not show", op->name, c->how,
                         dt_dtype_name(c->dt), BAD[b], (long long)at, input);
            memcpy(a->p, was.p, nbytes);
        }
    ref_drop(&was);
}

TEST(nan_propagates_to_the_output)
{
    for (size_t o = 0; o < sizeof operations / sizeof operations[0]; o++)
        for (int t = 0; t < N_TYPES; t++)
            for (int how = 0; how < operations[o].n_ways; how++) {
                call c = {.f = *state, .dt = types[t], .how = how};
                operations[o].make(&c);
                operations[o].run(&c);
                if (shows(&c))
                    fail_msg("%s, way %d, %s: not finite without cause", operations[o].name, how,
                             dt_dtype_name(types[t]));
                for (int i = 0; i < MAX_ARRAYS; i++)
                    if (c.in[i].n > 0) check_input(&operations[o], &c, i);
                for (int i = 0; i < MAX_ARRAYS; i++) ref_drop(&c.in[i]), ref_drop(&c.out[i]);
            }
}

/* An infinite logit, gate or score that would be the largest has no finite softmax; and act(inf) = inf. */
TEST(a_positive_infinity_shows_where_the_negative_has_a_limit)
{
    for (size_t o = 0; o < sizeof operations / sizeof operations[0]; o++) {
        const bool forward = !strcmp(operations[o].name, "act_forward") || !strcmp(operations[o].name, "classifier");
        for (int t = 0; forward && t < N_TYPES; t++) {
            call c = {.f = *state, .dt = types[t]};
            operations[o].make(&c);
            poison(&c.in[0], 11, 0x7f800000u);
            operations[o].run(&c);
            assert_true(shows(&c));
            for (int i = 0; i < MAX_ARRAYS; i++) ref_drop(&c.in[i]), ref_drop(&c.out[i]);
        }
    }
}

/* Nor has such a row a gradient, whichever of its terms are asked for. */
TEST(an_infinite_logit_shows_in_the_gradient)
{
    for (int t = 0; t < N_TYPES; t++)
        for (int how = 0; how < 5; how++) {
            call c = {.f = *state, .dt = types[t], .how = how};
            make_classifier(&c);
            poison(&c.in[0], 11, 0x7f800000u);
            run_classifier(&c);
            bool in_gradient = false;
            for (int64_t i = 0; i < VOCAB; i++) in_gradient = in_gradient || !isfinite(ref_get(&c.out[0], i));
            assert_true(in_gradient);
            for (int i = 0; i < MAX_ARRAYS; i++) ref_drop(&c.in[i]), ref_drop(&c.out[i]);
        }
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

static bool gradient_is_finite(ref_model *r)
{
    for (int u = 0; u < r->n_units; u++)
        for (int i = 0; i < r->units[u].n_tensors; i++) {
            const dt_tensor *t = &r->units[u].tensors[i];
            for (int64_t e = t->offset; e < t->offset + t->n_elems; e++)
                if (!isfinite(ref_grad(r, u, e))) return false;
        }
    return true;
}

/* Rows of tables that the batch does not use are not looked at: the row of its first token, or of position 0. */
static int64_t used_element(const dt_tensor *t, const dt_batch *b)
{
    const bool table = strstr(t->name, "embed_tokens") || strstr(t->name, "wte");
    if (strstr(t->name, "wpe")) return 3;
    return table ? b->token[0] * t->shape[1] + 3 : t->n_elems / 2;
}

/* Each parameter takes a NaN and an infinity in turn; each operation above has all of them. */
static void check_model(const char *name, const char *config, dt_dtype dtype)
{
    static const int32_t lens[] = {7, 12, 1};
    const dt_model_options opt = ref_options(32, 12, dtype);
    ref_model r;
    dt_batch b;
    must(ref_model_open(&r, name, config, &opt));
    must(dt_batch_alloc(&b, 32, 32, &r.ledger));
    ref_batch_fill(&b, r.mc.vocab_size, 0, 3, lens, 0);
    for (int u = 0; u < r.n_units; u++)
        for (int i = 0; i < r.units[u].n_tensors; i++)
            for (int kind = 0; kind < 2; kind++) {
                if (!is_tried()) continue;
                const int k = kind ? N_NANS + i % (N_BAD - N_NANS) : i % N_NANS;
                const dt_tensor *t = &r.units[u].tensors[i];
                const int64_t at = t->offset + used_element(t, &b);
                const double was = ref_param(&r, u, at);
                ref_array p = {.dt = dtype, .n = at + 1, .p = r.host_params[u]};
                double loss;
                poison(&p, at, BAD[k]);
                r.params_changed[u] = true;
                ref_model_forget_grads(&r);
                must(ref_model_grads(&r, &b, 0, 1, &loss));
                if (isfinite(loss) && gradient_is_finite(&r))
                    fail_msg("%s: 0x%08x in %s: loss %g, finite gradients", name, BAD[k], t->name, loss);
                if (k < N_NANS && isfinite(loss)) fail_msg("%s: a NaN in %s: loss %g", name, t->name, loss);
                ref_set_param(&r, u, at, was);
            }
    dt_batch_free(&b, &r.ledger);
    ref_model_close(&r);
}

TEST(a_non_finite_parameter_shows_in_the_loss)
{
    static const char *const names[] = {"gpt2", "gpt2_variant", "llama", "mistral", "qwen2", "qwen3"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[128];
        snprintf(path, sizeof path, "tests/data/model/%s.json", names[i]);
        char *text = ref_read_file(path), *config = text ? strstr(text, "\"config\":") + 9 : NULL;
        assert_non_null(config);
        char *end = config;
        for (int depth = 0; *end; end++) {
            depth += (*end == '{') - (*end == '}');
            if (depth == 0) break;
        }
        end[1] = '\0';
        for (int t = 0; t < N_TYPES; t++) check_model(names[i], config, types[t]);
        free(text);
    }
}

/* An argument: those tests alone. */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    int failed = run_with_each_isa();
    return failed != 0;
}
