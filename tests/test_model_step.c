// QUICK: queue cudasim
/* test_model_step.c - what a training step promises whatever the family: recomputation, packing, accumulation, empty
 * batches, memory, the order of acquiring units, mistakes in batches.
 * DEVICES: cpu queue */

#include "cases.h"
#include "../src/model/model_private.h"
#include "model_configs.h"
#include "model_fixture.h"

static void fill(const ref_model *r, dt_batch *b, int n_seq, const int32_t *lens)
{
    ref_batch_fill(b, r->mc.vocab_size, 0, n_seq, lens, 5);
}

/* ---- recomputation, packing, accumulation ---- */

static void same_gradients(ref_model *a, ref_model *b, double tolerance)
{
    for (int u = 0; u < a->n_units; u++) {
        for (int i = 0; i < a->units[u].n_tensors; i++) {
            const dt_tensor *t = &a->units[u].tensors[i];
            double norm = 0;
            for (int64_t e = t->offset; e < t->offset + t->n_elems; e++) norm += pow(ref_grad(a, u, e), 2);
            for (int64_t e = t->offset; e < t->offset + t->n_elems; e++) {
                const double x = ref_grad(a, u, e), y = ref_grad(b, u, e);
                if (!(fabs(x - y) <= tolerance * sqrt(norm)))
                    fail_msg("%s[%d]: %.9g and %.9g", t->name, (int)(e - t->offset), x, y);
            }
        }
    }
}

static const char *const ALL_CONFIGS[] = {GPT2,   QWEN3,  MISTRAL, LLAMA, OLMO2, GRANITE,    SMOLLM3,
                                          GEMMA2, GEMMA3, OLMO3,   PHI3,  GLM4,  MINISTRAL3, DEEPSEEK};
enum { N_CONFIGS = sizeof ALL_CONFIGS / sizeof ALL_CONFIGS[0] };

/* Evaluation between two steps included, which uses the first block's place. */
TEST(recomputation_is_bitwise_identical)
{
    static const int32_t LENS[] = {17, 1, 30};
    for (int k = 0; k < 2 * N_CONFIGS; k++) {
        if (!is_tried()) continue;
        dt_model_options opt = ref_options(48, 32, k % 2 ? DT_BF16 : DT_F32);
        ref_model keep, again;
        dt_batch b, c;
        double loss[4];
        opt.reproducible = true;
        open_plain_model(&keep, &b, ALL_CONFIGS[k / 2], &opt);
        fill(&keep, &b, 3, LENS);
        assert_int_equal(ref_model_grads(&keep, &b, 5, 1, &loss[0]), DT_OK);
        assert_int_equal(ref_model_loss(&keep, &b, false, 0, &loss[1], NULL), DT_OK);
        for (int how = DT_RECOMPUTE_SELECTIVE; how <= DT_RECOMPUTE_BLOCK; how++) {
            opt.recompute = (dt_recompute)how;
            open_plain_model(&again, &c, ALL_CONFIGS[k / 2], &opt);
            fill(&again, &c, 3, LENS);
            for (int step = 0; step < 2; step++) {
                ref_model_forget_grads(&again);
                assert_int_equal(ref_model_grads(&again, &c, 5, 1, &loss[2]), DT_OK);
                assert_int_equal(ref_model_loss(&again, &c, false, 0, &loss[3], NULL), DT_OK);
                assert_true(loss[2] == loss[0] && loss[3] == loss[1]);
                same_gradients(&keep, &again, 0);
            }
            close_model(&again, &c);
        }
        close_model(&keep, &b);
    }
}

/* Values of size 4 out of sums of at most 60 terms, some of them in another order: a few 2^-24 * 4. */
static const double ROUNDING = 4e-6;

TEST(packed_sequences_give_the_losses_of_separate_ones)
{
    static const int32_t LENS[] = {9, 14, 1, 24};
    for (int k = 0; k < N_CONFIGS; k++) {
        if (!is_tried()) continue;
        const dt_model_options opt = ref_options(48, 32, DT_F32);
        ref_model r;
        dt_batch b;
        float packed[48], alone[48];
        open_plain_model(&r, &b, ALL_CONFIGS[k], &opt);
        fill(&r, &b, 4, LENS);
        assert_int_equal(ref_model_loss(&r, &b, true, 2, NULL, packed),
                         DT_OK); /* dropout included: its random values belong to tokens */
        for (int s = 0, at = 0; s < 4; at += LENS[s++]) {
            int32_t lens[4] = {0};
            lens[s] = LENS[s];
            ref_batch_fill(&b, r.mc.vocab_size, 0, 4, lens, 0); /* empty sequences next to it */
            assert_int_equal(ref_model_loss(&r, &b, true, 2, NULL, alone), DT_OK);
            for (int32_t t = 0; t < LENS[s]; t++)
                if (packed[at + t] != 0 && !(fabs((double)(packed[at + t] - alone[t])) <= ROUNDING))
                    fail_msg("config %d, sequence %d, token %d: %.9g packed, %.9g alone", k, s, t,
                             (double)packed[at + t], (double)alone[t]);
        }
        close_model(&r, &b);
    }
}

TEST(dropout_draws_anew_in_each_step_and_never_in_evaluation)
{
    const dt_model_options opt = ref_options(48, 32, DT_F32);
    static const int32_t LENS[] = {20, 20};
    ref_model r;
    dt_batch b;
    double a, again, next, eval, eval_next;
    open_plain_model(&r, &b, GPT2, &opt);
    fill(&r, &b, 2, LENS);
    assert_int_equal(ref_model_loss(&r, &b, true, 1, &a, NULL), DT_OK);
    assert_int_equal(ref_model_loss(&r, &b, true, 2, &next, NULL), DT_OK);
    assert_int_equal(ref_model_loss(&r, &b, true, 1, &again, NULL), DT_OK);
    assert_int_equal(ref_model_loss(&r, &b, false, 1, &eval, NULL), DT_OK);
    assert_int_equal(ref_model_loss(&r, &b, false, 2, &eval_next, NULL), DT_OK);
    assert_true(a == again && a != next && eval == eval_next && eval != a);
    close_model(&r, &b);
}

TEST(micro_batches_add_up_to_the_gradient_of_all)
{
    static const char *const CONFIGS[] = {GPT2, LLAMA, MISTRAL, OLMO2, GRANITE, GEMMA2, GEMMA3, DEEPSEEK};
    static const int32_t LENS[] = {9, 14, 11};
    for (int k = 0; k < 5; k++) {
        const dt_model_options opt = ref_options(48, 32, DT_F32);
        ref_model all, parts;
        dt_batch b, c;
        open_plain_model(&all, &b, CONFIGS[k], &opt);
        open_plain_model(&parts, &c, CONFIGS[k], &opt);
        ref_batch_fill(&b, 61, 0, 3, LENS, 0);
        assert_int_equal(ref_model_grads(&all, &b, 2, 1, NULL), DT_OK);
        for (int s = 0; s < 3; s++) {
            int32_t lens[3] = {0};
            lens[s] = LENS[s];
            ref_batch_fill(&c, 61, 0, 3, lens, 0);
            assert_int_equal(ref_model_grads(&parts, &c, 2, LENS[s] / 34.0, NULL), DT_OK);
        }
        same_gradients(&all, &parts, 1e-5);
        close_model(&parts, &c);
        close_model(&all, &b);
    }
}

/* A micro-step without a wait: head and backward with u = (1 + k) / 100 on batch k. */
static dt_err queue_micro_step(ref_model *r, dt_batch *b, int k, float *u)
{
    static const int32_t LENS[][3] = {{9, 14, 11}, {3, 1, 40}, {16, 16, 16}};
    ref_batch_fill(b, 61, k, 3, LENS[k], 4);
    for (int32_t t = 0; t < b->n_tok; t++) u[t] = 0.01f * (float)(1 + k);
    DT_TRY(dt_model_forward(r->model, b, true, k));
    DT_TRY(dt_model_head(r->model, b, &(dt_head_pass){.inv_temperature = 1, .u = u},
                         &(dt_head_results){.hit = (uint8_t *)u, .entropy = u}));
    for (int32_t t = 0; t < b->n_tok; t++) u[t] = NAN; /* the caller's arrays are free again */
    return dt_model_backward(r->model, b);
}

/* Logits of the batch at hand take the place of the head's rows, which may still be on their way. */
TEST(logits_may_be_asked_for_between_head_and_backward)
{
    static const int32_t LENS[] = {9, 14, 11};
    const dt_model_options opt = ref_options(48, 48, DT_F32);
    float u[48], logits[3 * 61];
    ref_model plain, asks;
    dt_batch b, c;
    open_plain_model(&plain, &b, LLAMA, &opt);
    open_plain_model(&asks, &c, LLAMA, &opt);
    ref_batch_fill(&b, 61, 0, 3, LENS, 4);
    ref_batch_fill(&c, 61, 0, 3, LENS, 4);
    for (int k = 0; k < 2; k++) { /* in the first round the parameters go to the device, with waits */
        for (int32_t t = 0; t < b.n_tok; t++) u[t] = 0.01f;
        assert_int_equal(dt_model_forward(plain.model, &b, true, k), DT_OK);
        assert_int_equal(dt_model_forward(asks.model, &c, true, k), DT_OK);
        assert_int_equal(dt_model_head(plain.model, &b, &(dt_head_pass){.inv_temperature = 1, .u = u}, NULL), DT_OK);
        assert_int_equal(dt_model_head(asks.model, &c, &(dt_head_pass){.inv_temperature = 1, .u = u}, NULL), DT_OK);
        assert_int_equal(dt_model_last_logits(asks.model, &c, logits), DT_OK);
        assert_int_equal(dt_model_results(asks.model, &(dt_head_results){.logp = u}),
                         DT_ERR_ARG); /* their rows are gone */
        dt_error_clear();
        assert_int_equal(dt_model_backward(plain.model, &b), DT_OK);
        assert_int_equal(dt_model_backward(asks.model, &c), DT_OK);
    }
    same_gradients(&plain, &asks, 0);
    close_model(&asks, &c);
    close_model(&plain, &b);
}

/* A device's work on a micro-batch is queued when the host fills the next one, its weights and its rows. */
TEST(a_micro_batch_may_follow_before_the_last_one_is_done)
{
    static const char *const CONFIGS[] = {GPT2, LLAMA, MISTRAL};
    for (int k = 0; k < 3; k++) {
        const dt_model_options opt = ref_options(48, 48, DT_F32);
        float u[48], logp[2][48], entropy[2][48];
        uint8_t hit[2][48];
        ref_model waits, runs_on;
        dt_batch b, c;
        open_plain_model(&waits, &b, CONFIGS[k], &opt);
        open_plain_model(&runs_on, &c, CONFIGS[k], &opt);
        for (int a = 0; a < 3; a++) {
            assert_int_equal(queue_micro_step(&waits, &b, a, u), DT_OK);
            assert_int_equal(waits.dev.ops->stream_sync(&waits.dev, NULL), DT_OK);
            assert_int_equal(queue_micro_step(&runs_on, &c, a, u), DT_OK);
        }
        assert_int_equal(
            dt_model_results(waits.model, &(dt_head_results){.logp = logp[0], .hit = hit[0], .entropy = entropy[0]}),
            DT_OK);
        assert_int_equal(
            dt_model_results(runs_on.model, &(dt_head_results){.logp = logp[1], .hit = hit[1], .entropy = entropy[1]}),
            DT_OK);
        assert_memory_equal(logp[0], logp[1], (size_t)b.n_target * sizeof *logp[0]);
        assert_memory_equal(hit[0], hit[1], (size_t)b.n_target);
        assert_memory_equal(entropy[0], entropy[1], (size_t)b.n_target * sizeof *entropy[0]);
        same_gradients(&waits, &runs_on, 0);
        assert_int_equal(dt_model_forward(runs_on.model, &c, true, 0), DT_OK);
        assert_int_equal(dt_model_results(runs_on.model, &(dt_head_results){.logp = logp[1]}),
                         DT_ERR_ARG); /* gone with the forward */
        dt_error_clear();
        close_model(&runs_on, &c);
        close_model(&waits, &b);
    }
}

/* ---- empty batches, order of units ---- */

static void all_gradients(ref_model *r, double expected)
{
    for (int u = 0; u < r->n_units; u++)
        for (int i = 0; i < r->units[u].n_tensors; i++)
            for (int64_t e = 0; e < r->units[u].tensors[i].n_elems; e++)
                if (ref_grad(r, u, r->units[u].tensors[i].offset + e) != expected)
                    fail_msg("%s[%d] is %g", r->units[u].tensors[i].name, (int)e,
                             ref_grad(r, u, r->units[u].tensors[i].offset + e));
}

static void set_gradients(ref_model *r, float value)
{
    for (int u = 0; u < r->n_units; u++) r->grads_fresh[u] = false;
    ref_model_fill_grads(r, value);
}

TEST(an_empty_batch_contributes_zero_in_the_same_order)
{
    static const char *const CONFIGS[] = {GPT2, LLAMA, MISTRAL, QWEN3};
    static const int32_t LENS[] = {5, 6}, NONE[] = {0};
    for (int k = 0; k < 12; k++) {
        dt_model_options opt = ref_options(16, 16, DT_F32);
        opt.recompute = (dt_recompute)(k / 4);
        ref_model r;
        dt_batch b;
        float u[16] = {0}, logp[16];
        open_plain_model(&r, &b, CONFIGS[k % 4], &opt);
        fill(&r, &b, 2, LENS);
        assert_int_equal(ref_model_grads(&r, &b, 0, 1, NULL), DT_OK);
        char *order = strdup(r.calls);
        for (int without_target = 0; without_target < 2; without_target++) {
            ref_batch_fill(&b, 61, 0, without_target ? 2 : without_target, without_target ? LENS : NONE,
                           without_target);
            assert_int_equal(b.n_target, 0);
            for (int accumulate = 0; accumulate < 2; accumulate++) {
                ref_model_forget_grads(&r);
                if (accumulate) set_gradients(&r, 0.5f);
                r.calls_len = 0;
                assert_int_equal(dt_model_forward(r.model, &b, true, 0), DT_OK);
                assert_int_equal(dt_model_head(r.model, &b, &(dt_head_pass){.inv_temperature = 1, .u = u}, NULL),
                                 DT_OK);
                assert_int_equal(dt_model_backward(r.model, &b), DT_OK);
                assert_int_equal(dt_model_results(r.model, &(dt_head_results){.logp = logp}), DT_OK);
                all_gradients(&r, accumulate ? 0.5 : 0);
                assert_string_equal(r.calls, order);
            }
        }
        assert_int_equal(dt_model_forward(r.model, &b, false, 0), DT_OK);
        assert_int_equal(dt_model_logp(r.model, &b, 1, logp, NULL, NULL), DT_OK);
        free(order);
        close_model(&r, &b);
    }
}

TEST(units_are_held_only_while_needed_and_a_tied_table_until_its_gradient_is_whole)
{
    static const int32_t LENS[] = {5, 6};
    const dt_model_options opt = ref_options(16, 16, DT_F32);
    ref_model r;
    dt_batch b;
    open_plain_model(&r, &b, MISTRAL, &opt);
    fill(&r, &b, 2, LENS);
    assert_int_equal(ref_model_grads(&r, &b, 0, 1, NULL), DT_OK);
    assert_string_equal(r.calls, "p0 P0 p1 P1 p2 P2 p3 p0 g3 g0 G3 P0 P3 p2 g2 G2 P2 p1 g1 G1 P1 G0 ");
    close_model(&r, &b);
    open_plain_model(&r, &b, LLAMA, &opt);
    fill(&r, &b, 2, LENS);
    assert_int_equal(ref_model_grads(&r, &b, 0, 1, NULL), DT_OK);
    assert_string_equal(r.calls, "p0 P0 p1 P1 p2 P2 p3 g3 G3 P3 p2 g2 G2 P2 p1 g1 G1 P1 g0 G0 ");
    close_model(&r, &b);
}

/* ---- memory ---- */

TEST(open_allocates_the_planned_memory_and_steps_none)
{
    static const char *const CONFIGS[] = {GPT2, QWEN3, LLAMA};
    static const int32_t LENS[] = {17, 1, 30};
    for (int k = 0; k < 72; k++) {
        dt_model_options opt = ref_options(48, 32, k & 1 ? DT_BF16 : DT_F32);
        if (k >= 36) opt.grad_dtype = opt.dtype;
        dt_memory planned;
        ref_model r;
        dt_batch b;
        opt.training = !(k & 2);
        opt.recompute = (dt_recompute)(k / 4 % 3);
        opt.cache_seqs = k & 1 ? 3 : 0;
        opt.cache_len = k & 1 ? 17 : 0;
        opt.batch_invariant = k & 1;
        opt.cache_prompts = k & 1 ? 2 : 0;
        opt.cache_prompt_len = k & 1 ? 13 : 0;
        open_plain_model(&r, &b, CONFIGS[k % 36 / 12], &opt);
        dt_model_close(r.model);
        r.model = NULL;
        const dt_memory before = dt_ledger_now(&r.ledger);
        assert_int_equal(dt_model_plan(&r.mc, &opt, r.units, r.n_units, &r.dev, &planned), DT_OK);
        const dt_memory then = dt_ledger_now(&r.ledger);
        assert_memory_equal(&then, &before, sizeof then);
        assert_int_equal(dt_model_open(&r.model, &r.mc, &opt, r.units, r.n_units, &r.dev, &r.source, NULL, NULL),
                         DT_OK);
        assert_true(planned.at[DT_MEM_ACTIVATIONS][DT_ON_DEVICE] > 0 && planned.at[DT_MEM_STAGING][DT_ON_PINNED] > 0);
        dt_memory_add(&planned, &before);
        const dt_memory now = dt_ledger_now(&r.ledger);
        assert_memory_equal(&now, &planned, sizeof now);

        fill(&r, &b, 3, LENS);
        const size_t n_allocs = atomic_load(&r.ledger.n_allocs);
        if (opt.training) assert_int_equal(ref_model_grads(&r, &b, 0, 1, NULL), DT_OK);
        assert_int_equal(ref_model_loss(&r, &b, false, 0, NULL, NULL), DT_OK);
        assert_int_equal(atomic_load(&r.ledger.n_allocs), n_allocs);
        close_model(&r, &b);
    }
}

static size_t planned_activations(const char *config, const dt_model_options *opt, int64_t n_blocks)
{
    dt_ledger ledger = {0};
    dt_device dev;
    dt_model_config mc;
    dt_unit *units;
    dt_memory plan;
    int n_units;
    assert_int_equal(dt_device_open_to_plan(&dev, "cpu", 1, &ledger), DT_OK);
    assert_int_equal(dt_model_config_parse(&mc, "test", config), DT_OK);
    mc.num_hidden_layers = n_blocks;
    assert_int_equal(dt_model_make_units(&mc, &units, &n_units), DT_OK);
    assert_int_equal(dt_model_plan(&mc, opt, units, n_units, &dev, &plan), DT_OK);
    dt_model_free_units(units, n_units);
    dt_model_config_free(&mc);
    dt_device_close(&dev);
    return plan.at[DT_MEM_ACTIVATIONS][DT_ON_DEVICE];
}

/* The formulas of docs/algorithms.md 9.5: what a further block keeps of 64 tokens, a number that rounds no array up. */
TEST(a_block_keeps_what_the_formulas_say)
{
    static const char *const CONFIGS[] = {GPT2, QWEN3, LLAMA, MISTRAL};
    for (int k = 0; k < 8; k++) {
        dt_model_options opt = ref_options(64, 32, k & 1 ? DT_BF16 : DT_F32);
        dt_model_config mc;
        assert_int_equal(dt_model_config_parse(&mc, "test", CONFIGS[k / 2]), DT_OK);
        const int64_t C = mc.hidden_size, F = mc.intermediate_size, Hq = mc.num_attention_heads,
                      Hk = mc.num_key_value_heads, Q = Hq * mc.head_dim, K = Hk * mc.head_dim;
        const size_t e = dt_dtype_size(opt.dtype);
        const size_t cheap = e * (size_t)(2 * C + F + mc.qk_norm * (Q + 2 * K)) + 4 * (size_t)(mc.qk_norm * (Hq + Hk));
        const size_t selective =
            e * (size_t)(2 * C + 2 * Q + 2 * K + (mc.gated_mlp ? 2 : 1) * F) + 4 * (size_t)(4 + Hq);
        const size_t want[] = {64 * (selective + cheap), 64 * selective, 64 * e * (size_t)C};
        for (int how = 0; how < 3; how++) {
            opt.recompute = (dt_recompute)how;
            assert_int_equal(
                planned_activations(CONFIGS[k / 2], &opt, 5) - planned_activations(CONFIGS[k / 2], &opt, 4), want[how]);
        }
        dt_model_config_free(&mc);
    }
}

/* ---- mistakes ---- */

TEST(bad_batches_are_refused_with_what_was_expected)
{
    static const int32_t LENS[] = {5, 6};
    const dt_model_options opt = ref_options(16, 8, DT_F32);
    ref_model r;
    dt_batch b;
    float u[16] = {0}, logp[16];
    open_plain_model(&r, &b, GPT2, &opt);
    fill(&r, &b, 2, LENS);
    assert_int_equal(dt_model_logp(r.model, &b, 1, logp, NULL, NULL), DT_ERR_ARG); /* before any forward */
    assert_fails(dt_model_backward(r.model, &b), DT_ERR_ARG, "");
    b.token[3] = 61;
    assert_fails(dt_model_forward(r.model, &b, true, 0), DT_ERR_DATA, "61");
    b.token[3] = -1;
    assert_int_equal(dt_model_forward(r.model, &b, true, 0), DT_ERR_DATA);
    b.token[3] = 0;
    dt_error_clear();
    b.pos[4] = 8;
    assert_fails(dt_model_forward(r.model, &b, true, 0), DT_ERR_DATA, "position 8");
    b.pos[4] = 4;
    b.target[0] = 61;
    assert_int_equal(dt_model_forward(r.model, &b, true, 0), DT_OK);
    assert_int_equal(dt_model_head(r.model, &b, &(dt_head_pass){.inv_temperature = 1, .u = u}, NULL), DT_ERR_DATA);
    b.target[0] = 1;
    b.seq_start[1] = 12;
    assert_int_equal(dt_model_forward(r.model, &b, true, 0), DT_ERR_ARG);
    b.seq_start[1] = 5;
    b.n_tok = 17;
    assert_int_equal(dt_model_forward(r.model, &b, true, 0), DT_ERR_ARG);
    fill(&r, &b, 2, LENS);
    assert_int_equal(dt_model_forward(r.model, &b, false, 0), DT_OK);
    assert_int_equal(dt_model_head(r.model, &b, &(dt_head_pass){.inv_temperature = 1, .u = u}, NULL),
                     DT_ERR_ARG); /* nothing was kept */
    assert_int_equal(dt_model_results(r.model, &(dt_head_results){.logp = logp}),
                     DT_ERR_ARG);                                 /* and nothing computed */
    assert_int_equal(ref_model_grads(&r, &b, 0, 1, NULL), DT_OK); /* and all is well again */
    close_model(&r, &b);
}

TEST(options_that_do_not_fit_the_model_are_refused)
{
    dt_model_options opt = ref_options(16, 128, DT_F32);
    ref_model r;
    dt_batch b;
    dt_model *m;
    open_plain_model(&r, &b, GPT2, &opt);
    dt_error_clear();
    opt.max_pos = 129;
    assert_fails(dt_model_open(&m, &r.mc, &opt, r.units, r.n_units, &r.dev, &r.source, NULL, NULL), DT_ERR_DATA, "128");
    opt.max_pos = 16;
    opt.grad_dtype = DT_BF16;
    assert_int_equal(dt_model_open(&m, &r.mc, &opt, r.units, r.n_units, &r.dev, &r.source, NULL, NULL), DT_ERR_ARG);
    opt.grad_dtype = DT_F32;
    assert_int_equal(dt_model_open(&m, &r.mc, &opt, r.units, r.n_units - 1, &r.dev, &r.source, NULL, NULL), DT_ERR_ARG);
    opt.max_tok = INT32_MAX;
    opt.max_pos = 128;
    assert_int_equal(dt_model_forward(r.model, &b, true, 0), DT_OK); /* an empty batch, b as allocated */
    close_model(&r, &b);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
