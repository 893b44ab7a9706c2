/* test_model_frozen.c - with some tensors frozen the others have the gradients that they have when all are trained, bit
 * for bit; for frozen ones no matmul is formed, no unit is asked for gradients that has none, and backward ends at the
 * lowest unit that has something to train.
 * DEVICES: cpu queue */

#include "cases.h"
#include "../src/model/model_private.h"
#include "model_fixture.h"

static const char GPT2[] = "{\"model_type\": \"gpt2\", \"n_embd\": 24, \"n_layer\": 3, \"n_head\": 3, \"vocab_size\": "
                           "61, \"n_positions\": 64, \"attn_pdrop\": 0.2, \"embd_pdrop\": 0.1, \"resid_pdrop\": 0.3}";
static const char QWEN3[] = "{\"model_type\": \"qwen3\", \"hidden_size\": 20, \"intermediate_size\": 28, "
                            "\"num_hidden_layers\": 3, \"vocab_size\": 61, \"num_attention_heads\": 4, "
                            "\"num_key_value_heads\": 2, \"head_dim\": 8, \"max_position_embeddings\": 64}";
static const char LLAMA[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 3, "
    "\"vocab_size\": 61, \"num_attention_heads\": 5, \"attention_bias\": true, \"mlp_bias\": true, "
    "\"max_position_embeddings\": 64, \"tie_word_embeddings\": true}";
static const char *const CONFIGS[] = {GPT2, QWEN3, LLAMA};
enum { N_CONFIGS = 3, MAX_TOK = 48 };
static const int32_t LENS[] = {17, 1, 30};

/* The trained tensors are those whose names contain one of these words. GPT-2's and Llama's names are listed side by
 * side. */
typedef struct choice {
    const char *what;
    const char *words[4];
} choice;
static const choice CHOICES[] = {
    {"norms", {"norm", "ln_"}},
    {"attention of block 1", {"h.1.attn", "layers.1.self_attn"}},
    {"the second matmul of the MLP", {"mlp.c_proj", "down_proj"}},
    {"queries alone of what one matmul serves", {"q_proj", "c_attn"}},
    {"biases", {".bias"}},
    {"the token table", {"wte", "embed_tokens"}},
    {"positions, or key norms", {"wpe", "k_norm"}},
    {"the last unit's norm", {"ln_f", "model.norm"}},
    {"the last unit's matmul", {"lm_head"}},
    {"blocks alone", {"h.", "layers."}},
    {"nothing", {"no such tensor"}},
};
enum { N_CHOICES = sizeof CHOICES / sizeof CHOICES[0] };

static bool is_chosen(void *self, const dt_tensor *t)
{
    const choice *c = self;
    for (int i = 0; i < 4 && c->words[i]; i++)
        if (strstr(t->name, c->words[i])) return true;
    return false;
}

static void open_model(ref_model *r, dt_batch *b, const char *config, const dt_model_options *opt, const choice *c)
{
    dt_error_clear();
    const dt_err err =
        c ? ref_model_open_part(r, "test", config, opt, is_chosen, (void *)c) : ref_model_open(r, "test", config, opt);
    if (err != DT_OK) fail_msg("%s", dt_error_message());
    *b = (dt_batch){0};
    assert_int_equal(dt_batch_alloc(b, opt->max_tok, opt->max_seq, &r->ledger), DT_OK);
    ref_batch_fill(b, r->mc.vocab_size, 0, 3, LENS, 5);
}

static dt_model_options options(int variant)
{
    dt_model_options opt = ref_options(MAX_TOK, 32, variant & 1 ? DT_BF16 : DT_F32);
    if (variant & 1) opt.grad_dtype = DT_BF16;
    opt.recompute = (dt_recompute)(variant / 2);
    return opt;
}

/* ---- gradients ---- */

static int compare(ref_model *all, ref_model *some, const char *what)
{
    int n = 0;
    for (int u = 0; u < all->n_units; u++)
        for (int i = 0; i < all->units[u].n_tensors; i++) {
            const dt_tensor *a = &all->units[u].tensors[i], *b = &some->units[u].tensors[i];
            n += b->trainable;
            for (int64_t e = 0; b->trainable && e < a->n_elems; e++) {
                const double want = ref_grad(all, u, a->offset + e), got = ref_grad(some, u, b->offset + e);
                if (want != got) fail_msg("%s: %s[%d] is %.9g, not %.9g", what, a->name, (int)e, got, want);
            }
        }
    return n;
}

TEST(trained_tensors_have_the_gradients_of_a_whole_model)
{
    int n_compared = 0;
    for (int k = 0; k < N_CONFIGS * 6; k++) {
        const dt_model_options opt = options(k % 6);
        ref_model all, some;
        dt_batch b, c;
        double loss[2];
        open_model(&all, &b, CONFIGS[k / 6], &opt, NULL);
        assert_int_equal(ref_model_grads(&all, &b, 5, 1, &loss[0]), DT_OK);
        for (int i = 0; i < N_CHOICES; i++) {
            open_model(&some, &c, CONFIGS[k / 6], &opt, &CHOICES[i]);
            assert_int_equal(ref_model_grads(&some, &c, 5, 1, &loss[1]), DT_OK);
            assert_true(loss[0] == loss[1]);
            n_compared += compare(&all, &some, CHOICES[i].what);
            close_model(&some, &c);
        }
        close_model(&all, &b);
    }
    assert_true(n_compared > 400);
}

TEST(an_empty_batch_passes_through_the_same_units)
{
    static const int32_t NONE[] = {0};
    for (int k = 0; k < N_CONFIGS * N_CHOICES; k++) {
        const dt_model_options opt = options(k % 6);
        ref_model r;
        dt_batch b;
        open_model(&r, &b, CONFIGS[k / N_CHOICES], &opt, &CHOICES[k % N_CHOICES]);
        assert_int_equal(ref_model_grads(&r, &b, 0, 1, NULL), DT_OK);
        char *order = strdup(r.calls);
        r.calls[r.calls_len = 0] = '\0';
        ref_model_forget_grads(&r);
        ref_batch_fill(&b, r.mc.vocab_size, 0, 0, NONE, 0);
        assert_int_equal(ref_model_grads(&r, &b, 0, 1, NULL), DT_OK);
        assert_string_equal(r.calls, order);
        for (int u = 0; u < r.n_units; u++)
            for (int i = 0; i < r.units[u].n_tensors; i++) {
                const dt_tensor *t = &r.units[u].tensors[i];
                for (int64_t e = 0; t->trainable && e < t->n_elems; e++)
                    assert_true(ref_grad(&r, u, t->offset + e) == 0);
            }
        free(order);
        close_model(&r, &b);
    }
}

/* ---- what it costs ---- */

static struct {
    const dt_device_ops *real;
    int n_weight, n_all; /* matmuls: of gradients of matrices, and all */
} counted;

static dt_err count_matmul(dt_device *dev, const dt_matmul *mm, const void *a, const void *b, void *c,
                           dt_stream *stream)
{
    counted.n_all++;
    counted.n_weight += mm->trans_a; /* no other matmul is over rows */
    return counted.real->matmul(dev, mm, a, b, c, stream);
}

/* The matmuls of a step: forward, towards the input, and of matrices' gradients, from the tables alone. */
static void expect_matmuls(const ref_model *r, const dt_batch *b, int *n_weight, int *n_all)
{
    const struct dt_model *m = r->model;
    const int n_chunks = (int)((b->n_target + m->h.n_rows - 1) / m->h.n_rows);
    const int n_layers = (int)r->mc.num_hidden_layers, each = 4; /* of a block */
    int lowest = r->n_units;
    *n_weight = dt_is_trained(m->head.w) ? n_chunks : 0;
    for (int u = r->n_units - 1; u >= 0; u--) {
        if (r->units[u].flat_len[DT_TRAINED] > 0) lowest = u;
        for (int i = 0; u > 0 && u <= n_layers && i < r->units[u].n_tensors; i++) {
            const dt_tensor *t = &r->units[u].tensors[i];
            *n_weight += t->n_dims == 2 && t->new_group && t->part == DT_TRAINED;
        }
    }
    const int below = lowest <= n_layers ? n_layers + 1 - (lowest > 1 ? lowest : 1) : 0;
    const bool head_too = lowest <= n_layers || dt_is_trained(m->final_norm.w) || dt_is_trained(m->final_norm.b);
    *n_all = *n_weight + n_layers * each + below * each + (1 + head_too) * n_chunks;
}

TEST(no_matmul_is_formed_for_what_is_frozen)
{
    for (int k = 0; k < N_CONFIGS * N_CHOICES; k++) {
        const dt_model_options opt = options(0);
        const choice *c = &CHOICES[k % N_CHOICES];
        ref_model r;
        dt_batch b;
        int n_weight, n_all;
        open_model(&r, &b, CONFIGS[k / N_CHOICES], &opt, c);
        dt_model_close(r.model);
        dt_device_ops ops = *r.dev.ops;
        counted.real = r.dev.ops;
        ops.matmul = count_matmul;
        r.dev.ops = &ops;
        assert_int_equal(dt_model_open(&r.model, &r.mc, &opt, r.units, r.n_units, &r.dev, &r.source, NULL, NULL),
                         DT_OK);
        counted.n_weight = counted.n_all = 0;
        assert_int_equal(ref_model_grads(&r, &b, 0, 1, NULL), DT_OK);
        expect_matmuls(&r, &b, &n_weight, &n_all);
        if (counted.n_weight != n_weight || counted.n_all != n_all)
            fail_msg("%s: %d matmuls, %d of gradients of matrices; expected %d and %d", c->what, counted.n_all,
                     counted.n_weight, n_all, n_weight);
        r.dev.ops = counted.real;
        close_model(&r, &b);
    }
}

static int n_remade; /* outputs of norms and activations */

static dt_err count_norm(dt_device *dev, const void *x, const void *weight, const void *bias, void *y, float *mean,
                         float *rstd, int64_t n_rows, int64_t width, float eps, dt_dtype dt, dt_stream *stream)
{
    n_remade++;
    return counted.real->layernorm_forward(dev, x, weight, bias, y, mean, rstd, n_rows, width, eps, dt, stream);
}

static dt_err count_act(dt_device *dev, dt_activation act, const void *x, void *y, dt_dtype dt, int64_t n,
                        dt_stream *stream)
{
    n_remade++;
    return counted.real->act_forward(dev, act, x, y, dt, n, stream);
}

/* GPT-2's backward with selective recomputation. */
static int count_remade(const choice *c)
{
    const dt_model_options opt = options(2);
    ref_model r;
    dt_batch b;
    int forward;
    open_model(&r, &b, GPT2, &opt, c);
    dt_model_close(r.model);
    dt_device_ops ops = *r.dev.ops;
    counted.real = r.dev.ops;
    ops.layernorm_forward = count_norm, ops.act_forward = count_act;
    r.dev.ops = &ops;
    assert_int_equal(dt_model_open(&r.model, &r.mc, &opt, r.units, r.n_units, &r.dev, &r.source, NULL, NULL), DT_OK);
    n_remade = 0;
    assert_int_equal(dt_model_forward(r.model, &b, true, 0), DT_OK);
    forward = n_remade;
    assert_int_equal(ref_model_grads(&r, &b, 0, 1, NULL), DT_OK);
    r.dev.ops = counted.real;
    close_model(&r, &b);
    return n_remade - 2 * forward;
}

TEST(frozen_tensors_need_no_recomputation)
{
    static const choice SMALL = {"norms and biases", {"ln_", ".bias"}},
                        MATRICES[] = {{"the first of attention", {"c_attn.weight"}},
                                      {"the second of attention", {"attn.c_proj.weight"}},
                                      {"the first of the MLP", {"mlp.c_fc.weight"}},
                                      {"the second of the MLP", {"mlp.c_proj.weight"}}};
    static const int EACH[] = {1, 0, 1, 1}; /* in three blocks: a norm, nothing, a norm, an activation */
    const int of_head = count_remade(&SMALL);
    for (int i = 0; i < 4; i++) assert_int_equal(count_remade(&MATRICES[i]) - of_head, 3 * EACH[i]);
    assert_int_equal(count_remade(NULL) - of_head, 3 * 3);
}

TEST(backward_ends_at_the_lowest_unit_with_something_to_train)
{
    static const struct {
        const char *word, *calls;
    } CASES[] = {
        {"layers.2.mlp", "p3 g3 G3 P3 "},
        {"layers.1.mlp", "p3 P3 p2 g2 G2 P2 "}, /* the block below needs the backward of the last, untrained one */
        {"embed", "p3 P3 p2 P2 p1 P1 g0 G0 "},
        {"norm.w", "p3 g3 G3 P3 p2 g2 G2 P2 p1 g1 G1 P1 "},
        {"lm_head", ""},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        const dt_model_options opt = options(0);
        const choice c = {.words = {CASES[i].word}};
        static float u[MAX_TOK];
        ref_model r;
        dt_batch b;
        open_model(&r, &b, QWEN3, &opt, &c);
        assert_int_equal(dt_model_forward(r.model, &b, true, 0), DT_OK);
        assert_int_equal(dt_model_head(r.model, &b, &(dt_head_pass){.inv_temperature = 1, .u = u}, NULL), DT_OK);
        const size_t before = r.calls_len;
        assert_int_equal(dt_model_backward(r.model, &b), DT_OK);
        assert_string_equal(r.calls + before, CASES[i].calls);
        close_model(&r, &b);
    }
}

TEST(layers_that_backward_does_not_reach_keep_no_activations)
{
    static const char *const WORDS[] = {"layers.", "layers.1.", "layers.2.", "lm_head"};
    size_t before = SIZE_MAX;
    for (int i = 0; i < 4; i++) {
        const dt_model_options opt = options(0);
        const choice c = {.words = {WORDS[i]}};
        ref_model r;
        dt_batch b;
        dt_memory planned;
        open_model(&r, &b, QWEN3, &opt, &c);
        dt_model_close(r.model);
        assert_int_equal(dt_model_plan(&r.mc, &opt, r.units, r.n_units, &r.dev, &planned), DT_OK);
        dt_memory expected = dt_ledger_now(&r.ledger);
        dt_memory_add(&expected, &planned);
        assert_int_equal(dt_model_open(&r.model, &r.mc, &opt, r.units, r.n_units, &r.dev, &r.source, NULL, NULL),
                         DT_OK);
        const dt_memory now = dt_ledger_now(&r.ledger);
        assert_memory_equal(&now, &expected, sizeof now);
        const size_t bytes = dt_memory_of(&planned, DT_MEM_ACTIVATIONS);
        /* at least the block's input and what its attention reads; one set serves blocks that keep nothing */
        if (i > 0 && i < 3) assert_true(before - bytes >= MAX_TOK * (20 + 64) * sizeof(float));
        if (i == 3) assert_true(before > bytes);
        before = bytes;
        close_model(&r, &b);
    }
}

int main(void) { return run_listed(NULL, NULL, NULL); }
