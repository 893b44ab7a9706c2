/* test_model_reference.c - tiny models of every family against what transformers computed (tests/make_model_fixtures.py
 * wrote the files).
 * DEVICES: cpu queue */
#include "cases.h"
#include "model_cases.h"
#include "model_expected.h"

enum { MAX_TOK = 144 };

struct fixture {
    json_t *root;
    char *config;
    int32_t lens[8];
    int n_seq;
    int32_t longest;
    ref_model r;
    dt_batch b;
};

/* extra: by how many tokens the longest sequence that the model is opened for exceeds the longest that it gets. */
static void open_fixture(struct fixture *f, const char *name, dt_dtype dtype, int32_t extra)
{
    char path[128];
    memset(f, 0, sizeof *f);
    snprintf(path, sizeof path, "tests/data/model/%s.json", name);
    f->root = json_load_file(path, 0, NULL);
    assert_non_null(f->root);
    f->config = json_dumps(json_object_get(f->root, "config"), 0);
    const json_t *lens = json_object_get(f->root, "lens");
    for (f->n_seq = 0; f->n_seq < (int)json_array_size(lens); f->n_seq++) {
        f->lens[f->n_seq] = (int32_t)json_integer_value(json_array_get(lens, (size_t)f->n_seq));
        if (f->lens[f->n_seq] > f->longest) f->longest = f->lens[f->n_seq];
    }
    const dt_model_options opt = ref_options(MAX_TOK, f->longest + extra, dtype);
    if (ref_model_open(&f->r, name, f->config, &opt) != DT_OK) fail_msg("%s", dt_error_message());
    assert_int_equal(dt_batch_alloc(&f->b, MAX_TOK, MAX_TOK, &f->r.ledger), DT_OK);
    ref_batch_fill(&f->b, f->r.mc.vocab_size, 0, f->n_seq, f->lens, 0);
}

static void close_fixture(struct fixture *f)
{
    dt_batch_free(&f->b, &f->r.ledger);
    ref_model_close(&f->r);
    assert_false(f->r.misused);
    assert_int_equal(ref_model_left(&f->r), 0);
    free(f->config);
    json_decref(f->root);
}

/* Logits of all tokens: one sequence per token, cut so that each prefix ends where the row is wanted. */
static void check_logits(struct fixture *f, const char *name)
{
    const int64_t V = f->r.mc.vocab_size;
    const json_t *rows = json_object_get(f->root, "logits");
    float *logits = calloc((size_t)(MAX_TOK * V), sizeof *logits);
    for (int32_t cut = 1; cut <= f->longest; cut++) {
        int32_t lens[8], row = 0;
        for (int s = 0; s < f->n_seq; s++) lens[s] = f->lens[s] < cut ? f->lens[s] : cut;
        ref_batch_fill(&f->b, V, 0, f->n_seq, lens, 0);
        assert_int_equal(dt_model_forward(f->r.model, &f->b, false, 0), DT_OK);
        assert_int_equal(dt_model_last_logits(f->r.model, &f->b, logits), DT_OK);
        for (int s = 0; s < f->n_seq; row += f->lens[s++]) {
            const json_t *want = json_array_get(rows, (size_t)(row + lens[s] - 1));
            /* both sides compute in float, and a logit of size 1 to 4 comes out of some 10 roundings in a row: 4 * 10 *
             * 2^-24 = 2e-6; a factor 5 for the sums inside matmuls and norms */
            for (int64_t v = 0; v < V; v++)
                assert_near("logit", name, number(json_array_get(want, (size_t)v)), (double)logits[s * V + v], 1e-5);
        }
    }
    free(logits);
    ref_batch_fill(&f->b, V, 0, f->n_seq, f->lens, 0);
}

TEST(logits_loss_and_gradients_agree_with_transformers)
{
    for (int c = 0; c < 2 * N_CASES; c++) {
        struct fixture f;
        double loss;
        const char *name = CASES[c / 2];
        open_fixture(&f, name, DT_F32, c % 2 ? 20 : 0);
        check_logits(&f, name);
        ref_model_forget_grads(&f.r);
        if (ref_model_grads(&f.r, &f.b, 0, 1, &loss) != DT_OK) fail_msg("%s: %s", name, dt_error_message());
        assert_near("loss", name, number(json_object_get(f.root, "loss")), loss, 2e-6);
        check_grads(f.root, &f.r, 1e-9);
        close_fixture(&f);
    }
}

/* Steps to compare. A rounding changes the experts of a token whose probabilities are nearly equal, by an amount that
 * does not depend on the size of the rounding. In 16 bits the weights drift apart from then on. */
static size_t n_steps(const struct fixture *f, size_t n, bool exact)
{
    const dt_model_config *mc = &f->r.mc;
    return exact || mc->num_experts == mc->num_experts_per_tok ? n : n / 2;
}

static void train(struct fixture *f, const char *name, const char *key, double tolerance, bool exact)
{
    const json_t *losses = json_object_get(f->root, key);
    for (size_t step = 0; step < n_steps(f, json_array_size(losses), exact); step++) {
        ref_batch_fill(&f->b, f->r.mc.vocab_size, (int64_t)(step % 2), f->n_seq, f->lens, 0);
        check_step(f->root, &f->r, &f->b, name, losses, step, tolerance);
    }
}

/* Differences of 10^-6 in gradients stay so in AdamW's steps, except where a gradient itself is of the size of its
 * rounding: there an update may differ by lr, without an effect on the loss that its gradient could not have. */
TEST(twenty_steps_of_adamw_give_the_losses_of_pytorch)
{
    for (int c = 0; c < N_CASES; c++) {
        struct fixture f;
        open_fixture(&f, CASES[c], DT_F32, 0);
        train(&f, CASES[c], "losses", 1e-5, true);
        close_fixture(&f);
    }
}

/* bf16 rounds to 2^-9 relative. A logit z passes some 10 roundings of the residual stream: sqrt(10) * 2^-9 * |z| /
 * sqrt(3) = 0.4 % of values of size 2 to 3: about 0.01 each, independent between the two sides and among 13 to 25
 * tokens: 0.01 * sqrt(2) / sqrt(13) = 0.004 of a loss of 2 to 4, that is 0.2 %. Over 20 steps the weights drift apart
 * by that share of what the loss falls: 1 % bounds both. */
TEST(twenty_steps_in_bf16_stay_near_those_of_pytorch)
{
    for (int c = 0; c < N_CASES; c++) {
        struct fixture f;
        open_fixture(&f, CASES[c], DT_BF16, 0);
        train(&f, CASES[c], "bf16_losses", 1e-2, false);
        close_fixture(&f);
    }
}

/* Against PyTorch in fp32. Its own roundings are 2^-12, an eighth of those of bf16, and on one side alone: so is the
 * bound. */
TEST(twenty_steps_in_fp16_stay_near_those_of_pytorch_in_fp32)
{
    for (int c = 0; c < N_CASES; c++) {
        struct fixture f;
        open_fixture(&f, CASES[c], DT_F16, 0);
        train(&f, CASES[c], "losses", n_steps(&f, 2, false) < 2 ? 1e-2 : 1e-2 / 8, false);
        close_fixture(&f);
    }
}

int main(void) { return run_listed(NULL, NULL, NULL); }
