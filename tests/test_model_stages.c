// QUICK: queue
/* test_model_stages.c - units by their roles: a scalar head, and a model with units before its language blocks: a
 * norm, and a block with bidirectional attention.
 * DEVICES: cpu queue */
#include "cases.h"
#include "forms.h"
#include "../src/model/model_private.h"
#include "model_fixture.h"
#include "slopes.h"

static const char QWEN3[] =
    "{\"model_type\": \"qwen3\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 2, "
    "\"vocab_size\": 61, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, "
    "\"max_position_embeddings\": 64, \"tie_word_embeddings\": true}";
static const char GPT2[] = "{\"model_type\": \"gpt2\", \"n_embd\": 24, \"n_layer\": 2, \"n_head\": 3, \"vocab_size\": "
                           "61, \"n_positions\": 64, \"attn_pdrop\": 0, \"embd_pdrop\": 0, \"resid_pdrop\": 0}";
enum { MAX_TOK = 25, N_LABELS = 3 };
static const int32_t LENS[] = {7, 12, 1, 5}, NONE[] = {0};

static void open_model(ref_model *r, dt_batch *b, const char *config, const dt_model_options *opt, ref_build build)
{
    dt_error_clear();
    if (ref_model_open_built(r, "test", config, opt, build) != DT_OK) fail_msg("%s", dt_error_message());
    *b = (dt_batch){0};
    assert_int_equal(dt_batch_alloc(b, MAX_TOK, MAX_TOK, &r->ledger), DT_OK);
    ref_batch_fill(b, r->mc.vocab_size, 0, 4, LENS, 4);
}

/* ---- a scalar head ---- */

static dt_err build_values(const dt_model_config *mc, dt_unit **units, int *n_units)
{
    return dt_model_make_value_units(mc, N_LABELS, units, n_units);
}

/* Half the mean of (value - wanted)^2, and its gradients. */
static double value_loss(ref_model *r, const dt_batch *b)
{
    static float value[MAX_TOK * N_LABELS];
    double sum = 0;
    if (dt_model_forward(r->model, b, true, 3) != DT_OK || dt_model_values(r->model, b, value) != DT_OK) return NAN;
    for (int i = 0; i < b->n_tok * N_LABELS; i++) sum += pow((double)value[i] - ref_number("wanted", i), 2);
    return sum / (2 * MAX_TOK * N_LABELS);
}

static double dvalue[MAX_TOK * N_LABELS]; /* of the last call of value_grads */

static dt_err value_grads(ref_model *r, const dt_batch *b)
{
    static float value[MAX_TOK * N_LABELS];
    DT_TRY(dt_model_forward(r->model, b, true, 3));
    DT_TRY(dt_model_values(r->model, b, value));
    for (int i = 0; i < b->n_tok * N_LABELS; i++) {
        dvalue[i] = ((double)value[i] - ref_number("wanted", i)) / (MAX_TOK * N_LABELS);
        value[i] = (float)dvalue[i];
    }
    DT_TRY(dt_model_value_head(r->model, b, value));
    memset(value, 0xff, sizeof value); /* the caller's again */
    return dt_model_backward(r->model, b);
}

TEST(gradients_of_a_scalar_head_are_the_slopes)
{
    for (int k = 0; k < 2; k++) {
        const dt_model_options opt = ref_options(MAX_TOK, 12, DT_F32);
        ref_model r;
        dt_batch b;
        open_model(&r, &b, k ? GPT2 : QWEN3, &opt, build_values);
        assert_int_equal(value_grads(&r, &b), DT_OK);
        check_slopes(&r, &b, value_loss);
        close_model(&r, &b);
    }
}

/* The hidden states as they are on the device, in double. */
static double *hidden_states(ref_model *r, int64_t n)
{
    const size_t size = dt_dtype_size(r->opt.dtype);
    char *host = calloc((size_t)n, size);
    double *x = calloc((size_t)n, sizeof *x);
    assert_int_equal(r->dev.ops->copy(&r->dev, host, r->model->hidden, (size_t)n * size, NULL), DT_OK);
    assert_int_equal(r->dev.ops->stream_sync(&r->dev, NULL), DT_OK);
    for (int64_t i = 0; i < n; i++)
        x[i] = (double)(r->opt.dtype == DT_F32 ? ((float *)(void *)host)[i]
                                               : dt_bf16_to_float(((uint16_t *)(void *)host)[i]));
    free(host);
    return x;
}

/* RMSNorm of weight w, and the matmul: sums of 20 terms of size 1, each rounded to 2^-24: below 4e-6. */
TEST(values_are_those_of_plain_loops)
{
    const dt_model_options opt = ref_options(MAX_TOK, 12, DT_F32);
    static float value[MAX_TOK * N_LABELS];
    ref_model r;
    dt_batch b;
    open_model(&r, &b, QWEN3, &opt, build_values);
    const dt_unit *head = &r.units[r.n_units - 1];
    const int u = r.n_units - 1, C = 20;
    assert_string_equal(head->tensors[1].name, "score.weight");
    assert_int_equal(dt_model_forward(r.model, &b, false, 0), DT_OK);
    assert_int_equal(dt_model_values(r.model, &b, value), DT_OK);
    double *x = hidden_states(&r, (int64_t)b.n_tok * C);
    for (int t = 0; t < b.n_tok; t++) {
        double squares = 0;
        for (int c = 0; c < C; c++) squares += x[t * C + c] * x[t * C + c] / C;
        for (int l = 0; l < N_LABELS; l++) {
            double want = 0;
            for (int c = 0; c < C; c++)
                want += x[t * C + c] / sqrt(squares + r.mc.norm_eps) * ref_param(&r, u, head->tensors[0].offset + c) *
                        ref_param(&r, u, head->tensors[1].offset + l * C + c);
            assert_true(fabs(want - (double)value[t * N_LABELS + l]) < 4e-6);
        }
    }
    free(x);
    close_model(&r, &b);
}

/* RMSNorm of the device's input, in double. In bf16 it is rounded before and after the weight, as in transformers,
 * by 2^-8 at most; in fp32 within 8 roundings of 2^-24: the sum of squares, the root, two products. */
TEST(hidden_states_are_taken_after_the_norm)
{
    for (int dtype = DT_F32; dtype <= DT_BF16; dtype++) {
        const dt_model_options opt = ref_options(MAX_TOK, 12, (dt_dtype)dtype);
        const double tolerance = dtype == DT_F32 ? 0x1p-21 : 0x1p-7;
        enum { C = 20 };
        static float hidden[MAX_TOK * C];
        ref_model r;
        dt_batch b;
        open_model(&r, &b, QWEN3, &opt, dt_model_make_units);
        const int64_t weight = r.units[r.n_units - 1].tensors[0].offset;
        memset(hidden, 0xff, sizeof hidden);
        r.model->h.n_rows = 4; /* rows of a pass, of which each uses the same place */
        assert_int_equal(dt_model_forward(r.model, &b, false, 0), DT_OK);
        assert_int_equal(dt_model_hidden_states(r.model, &b, hidden), DT_OK);
        double *x = hidden_states(&r, (int64_t)b.n_tok * C);
        for (int t = 0; t < b.n_tok; t++) {
            double squares = 0;
            for (int c = 0; c < C; c++) squares += x[t * C + c] * x[t * C + c] / C;
            for (int c = 0; c < C; c++) {
                const double want =
                    x[t * C + c] / sqrt(squares + r.mc.norm_eps) * ref_param(&r, r.n_units - 1, weight + c);
                assert_true(fabs(want - (double)hidden[t * C + c]) <= tolerance * fabs(want));
            }
        }
        free(x);
        close_model(&r, &b);
    }
}

/* 25 tokens in four sequences, and the first sequence alone. */
TEST(values_of_a_sequence_do_not_depend_on_the_others)
{
    for (int dtype = DT_F32; dtype <= DT_BF16; dtype++) {
        dt_model_options opt = ref_options(MAX_TOK, 12, (dt_dtype)dtype);
        static float together[MAX_TOK * N_LABELS], alone[MAX_TOK * N_LABELS];
        ref_model r;
        dt_batch b;
        opt.training = false;
        opt.batch_invariant = true;
        open_model(&r, &b, QWEN3, &opt, build_values);
        assert_int_equal(dt_model_forward(r.model, &b, false, 0), DT_OK);
        assert_int_equal(dt_model_values(r.model, &b, together), DT_OK);
        ref_batch_fill(&b, r.mc.vocab_size, 0, 1, LENS, 1);
        assert_int_equal(dt_model_forward(r.model, &b, false, 0), DT_OK);
        assert_int_equal(dt_model_values(r.model, &b, alone), DT_OK);
        assert_int_equal(b.n_tok, LENS[0]);
        assert_memory_equal(together, alone, (size_t)(b.n_tok * N_LABELS) * sizeof *alone);
        close_model(&r, &b);
    }
}

/* Three micro-batches whose gradients are given, with a wait after each or with none. */
static void value_micro_steps(ref_model *r, const dt_batch *b, bool wait)
{
    float given[MAX_TOK * N_LABELS];
    for (int a = 0; a < 3; a++) {
        assert_int_equal(dt_model_forward(r->model, b, true, a), DT_OK);
        for (int i = 0; i < b->n_tok * N_LABELS; i++) given[i] = (float)ref_number("given", a * 1000 + i);
        assert_int_equal(dt_model_value_head(r->model, b, given), DT_OK);
        assert_int_equal(dt_model_backward(r->model, b), DT_OK);
        if (wait) assert_int_equal(r->dev.ops->stream_sync(&r->dev, NULL), DT_OK);
    }
}

TEST(gradients_of_values_may_follow_before_the_last_ones_are_used)
{
    const dt_model_options opt = ref_options(MAX_TOK, 12, DT_F32);
    ref_model waits, runs_on;
    dt_batch b, c;
    open_model(&waits, &b, QWEN3, &opt, build_values);
    open_model(&runs_on, &c, QWEN3, &opt, build_values);
    value_micro_steps(&waits, &b, true);
    value_micro_steps(&runs_on, &c, false);
    for (int u = 0; u < waits.n_units; u++)
        for (int i = 0; i < waits.units[u].n_tensors; i++) {
            const dt_tensor *t = &waits.units[u].tensors[i];
            for (int64_t e = t->offset; e < t->offset + t->n_elems; e++)
                assert_true(ref_grad(&waits, u, e) == ref_grad(&runs_on, u, e));
        }
    close_model(&runs_on, &c);
    close_model(&waits, &b);
}

/* score's gradient: sums of products of dvalue, rounded to bf16, and of the norm's output, rounded twice, and a
 * rounding of the sum; each by 2^-9 of its value: together below 2^-6 of the sum of absolute values. */
TEST(a_scalar_head_works_in_bf16)
{
    dt_model_options opt = ref_options(MAX_TOK, 12, DT_BF16);
    ref_model r;
    dt_batch b;
    opt.grad_dtype = DT_BF16;
    open_model(&r, &b, QWEN3, &opt, build_values);
    assert_int_equal(value_grads(&r, &b), DT_OK);
    const int u = r.n_units - 1, C = 20;
    const dt_tensor *norm = &r.units[u].tensors[0], *score = &r.units[u].tensors[1];
    double *x = hidden_states(&r, (int64_t)b.n_tok * C), rstd[MAX_TOK];
    for (int t = 0; t < b.n_tok; t++) {
        double squares = 0;
        for (int c = 0; c < C; c++) squares += x[t * C + c] * x[t * C + c] / C;
        rstd[t] = 1 / sqrt(squares + r.mc.norm_eps);
    }
    for (int l = 0; l < N_LABELS; l++)
        for (int c = 0; c < C; c++) {
            double want = 0, size = 0;
            for (int t = 0; t < b.n_tok; t++) {
                const double y = x[t * C + c] * rstd[t] * ref_param(&r, u, norm->offset + c);
                want += dvalue[t * N_LABELS + l] * y;
                size += fabs(dvalue[t * N_LABELS + l] * y);
            }
            assert_true(fabs(ref_grad(&r, u, score->offset + l * C + c) - want) <= 0x1p-6 * size);
        }
    free(x);
    close_model(&r, &b);
}

/* ---- units before the language blocks ---- */

/* The tensors of a language block under other names. */
static dt_err copy_block(const dt_unit *from, dt_unit *to)
{
    *to = (dt_unit){.name = "encoder", .role = DT_UNIT_ENCODER};
    for (int i = 0; i < from->n_tensors; i++) {
        const dt_tensor *t = &from->tensors[i];
        char name[DT_NAME_MAX];
        snprintf(name, sizeof name, "vision.%s", strstr(t->name, "layers.0."));
        DT_TRY(dt_unit_add(to, name, t->n_dims, t->shape, t->new_group, t->decay, t->init_std, t->init_value));
    }
    return DT_OK;
}

/* embed, norm, (encoder,) block.0, block.1, head */
static dt_err build_stages(const dt_model_config *mc, bool encoder, dt_unit **units, int *n_units)
{
    const int more = 1 + encoder;
    DT_TRY(dt_model_make_units(mc, units, n_units));
    dt_unit *all = calloc((size_t)(*n_units + more), sizeof *all);
    DT_CHECK(all, DT_ERR_MEMORY, "no memory");
    all[0] = (*units)[0];
    all[1] = (dt_unit){.name = "norm", .role = DT_UNIT_NORM};
    DT_TRY(dt_unit_add(&all[1], "vision.model.norm.weight", 1, &mc->hidden_size, true, false, 0, 1));
    if (encoder) DT_TRY(copy_block(&(*units)[1], &all[2]));
    memcpy(&all[1 + more], &(*units)[1], (size_t)(*n_units - 1) * sizeof *all);
    free(*units);
    *units = all;
    *n_units += more;
    return DT_OK;
}
static dt_err build_norm(const dt_model_config *mc, dt_unit **units, int *n_units)
{
    return build_stages(mc, false, units, n_units);
}
static dt_err build_encoder(const dt_model_config *mc, dt_unit **units, int *n_units)
{
    return build_stages(mc, true, units, n_units);
}

static double language_loss(ref_model *r, const dt_batch *b)
{
    double loss;
    return ref_model_loss(r, b, true, 3, &loss, NULL) == DT_OK ? loss : NAN;
}

TEST(gradients_of_a_vision_like_model_are_the_slopes)
{
    dt_model_options opt = ref_options(MAX_TOK, 12, DT_F32);
    ref_model r;
    dt_batch b;
    open_model(&r, &b, QWEN3, &opt, build_encoder);
    assert_int_equal(ref_model_grads(&r, &b, 3, 1, NULL), DT_OK);
    assert_string_equal(
        r.calls,
        "p0 P0 p1 P1 p2 P2 p3 P3 p4 P4 p5 p0 g5 g0 G5 P0 P5 p4 g4 G4 P4 p3 g3 G3 P3 p2 g2 G2 P2 p1 g1 G1 P1 G0 ");
    check_slopes(&r, &b, language_loss);
    close_model(&r, &b);
}

TEST(a_vision_like_model_recomputes_to_the_same_bits_and_takes_empty_batches)
{
    dt_model_options opt = ref_options(MAX_TOK, 12, DT_F32);
    opt.reproducible = true;
    static double want[8192];
    ref_model r;
    dt_batch b;
    for (int recompute = 0; recompute < 3; recompute++) {
        int n = 0;
        opt.recompute = (dt_recompute)recompute;
        open_model(&r, &b, QWEN3, &opt, build_encoder);
        assert_int_equal(ref_model_grads(&r, &b, 3, 1, NULL), DT_OK);
        for (int u = 0; u < r.n_units; u++)
            for (int64_t e = 0; e < 200 && e < r.units[u].flat_len[DT_TRAINED]; e++, n++) {
                const double g = ref_grad(&r, u, e);
                if (recompute && !(isnan(g) && isnan(want[n]))) assert_true(g == want[n]);
                want[n] = g;
            }
        char *order = strdup(r.calls);
        r.calls[r.calls_len = 0] = '\0';
        ref_batch_fill(&b, 61, 0, 0, NONE, 0);
        assert_int_equal(ref_model_grads(&r, &b, 3, 1, NULL), DT_OK);
        assert_string_equal(r.calls, order);
        free(order);
        close_model(&r, &b);
    }
}

/* Another last token changes the predictions at earlier ones through the encoder, and not without it. */
TEST(only_the_encoder_attends_to_later_tokens)
{
    for (int encoder = 0; encoder < 2; encoder++) {
        const dt_model_options opt = ref_options(MAX_TOK, 12, DT_F32);
        static float before[MAX_TOK], after[MAX_TOK];
        ref_model r;
        dt_batch b;
        open_model(&r, &b, QWEN3, &opt, encoder ? build_encoder : build_norm);
        assert_int_equal(ref_model_loss(&r, &b, false, 0, NULL, before), DT_OK);
        b.token[6] = (b.token[6] + 1) % 61; /* the last of the first sequence */
        assert_int_equal(ref_model_loss(&r, &b, false, 0, NULL, after), DT_OK);
        for (int t = 0; t < 6; t++)
            if (b.target[t] >= 0) assert_true((before[t] != after[t]) == encoder);
        for (int t = 7; t < b.n_tok; t++) assert_true(before[t] == after[t]); /* other sequences */
        assert_true(before[6] != after[6]);
        close_model(&r, &b);
    }
}

/* ---- units in another order ---- */

/* block.0, block.1, head, embed */
static dt_err build_embedding_last(const dt_model_config *mc, dt_unit **units, int *n_units)
{
    DT_TRY(dt_model_make_units(mc, units, n_units));
    const dt_unit embed = (*units)[0];
    memmove(*units, *units + 1, (size_t)(*n_units - 1) * sizeof embed);
    (*units)[*n_units - 1] = embed;
    return DT_OK;
}

TEST(a_tied_embedding_may_be_in_any_unit)
{
    const dt_model_options opt = ref_options(MAX_TOK, 12, DT_F32);
    ref_model r;
    dt_batch b;
    open_model(&r, &b, QWEN3, &opt, build_embedding_last);
    assert_int_equal(dt_model_tied_unit(&r.mc, r.units, r.n_units), r.n_units - 1);
    assert_int_equal(ref_model_grads(&r, &b, 3, 1, NULL), DT_OK);
    check_slopes(&r, &b, language_loss);
    close_model(&r, &b);
}

/* ---- what cannot be ---- */

TEST(units_that_are_no_model_are_refused)
{
    dt_model_options opt = ref_options(MAX_TOK, 12, DT_F32);
    static float x[MAX_TOK * N_LABELS];
    ref_model r;
    dt_batch b;
    dt_model *m;
    open_model(&r, &b, QWEN3, &opt, build_encoder);
    assert_int_equal(dt_model_values(r.model, &b, x), DT_ERR_ARG); /* it has a vocabulary */
    opt.training = false;
    opt.cache_seqs = opt.cache_len = 4; /* nothing generates through an encoder */
    assert_int_equal(dt_model_open(&m, &r.mc, &opt, r.units, r.n_units, &r.dev, &r.source, NULL, NULL), DT_ERR_ARG);
    opt = ref_options(MAX_TOK, 12, DT_F32);
    r.units[2].role = DT_UNIT_NORM; /* it has none of that name */
    assert_int_equal(dt_model_open(&m, &r.mc, &opt, r.units, r.n_units, &r.dev, &r.source, NULL, NULL), DT_ERR_ARG);
    r.units[2].role = DT_UNIT_ENCODER;
    for (int u = 0; u < r.n_units; u++) {
        const dt_unit_role was = r.units[u].role;
        r.units[u].role =
            u == 0 ? DT_UNIT_HEAD : DT_UNIT_EMBEDDING; /* two of one, none of the other, or a block less */
        assert_int_equal(dt_model_open(&m, &r.mc, &opt, r.units, r.n_units, &r.dev, &r.source, NULL, NULL), DT_ERR_ARG);
        r.units[u].role = was;
    }
    close_model(&r, &b);
    opt = ref_options(MAX_TOK, 12, DT_F32);
    open_model(&r, &b, QWEN3, &opt, build_values);
    assert_int_equal(dt_model_values(r.model, &b, x), DT_ERR_ARG); /* before its forward */
    assert_int_equal(dt_model_forward(r.model, &b, true, 0), DT_OK);
    assert_int_equal(dt_model_head(r.model, &b, &(dt_head_pass){.inv_temperature = 1, .u = x}, NULL), DT_ERR_ARG);
    assert_int_equal(dt_model_logp(r.model, &b, 1, x, NULL, NULL), DT_ERR_ARG);
    close_model(&r, &b);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
