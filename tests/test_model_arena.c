/* test_model_arena.c - one memory arena shared in turn by backward, the KV cache and other models. No user sees
 * another's leftovers, and the plan takes the maximum and not the sum.
 * DEVICES: cpu queue */

#include "cases.h"
#include "model_fixture.h"

enum { V = 61, LEN = 12, SEQS = 3, MAX_TOK = SEQS * LEN };
static const int32_t LENS[SEQS] = {LEN, 7, 10}, SLOT[SEQS] = {2, 0, 1};

static const char *const CONFIGS[] = {
    "{\"model_type\": \"gpt2\", \"n_embd\": 24, \"n_layer\": 3, \"n_head\": 3, \"vocab_size\": 61, \"n_positions\": "
    "32}",
    "{\"model_type\": \"qwen3\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 3, "
    "\"vocab_size\": 61, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, "
    "\"tie_word_embeddings\": true}",
};
enum { N_CONFIGS = sizeof CONFIGS / sizeof CONFIGS[0], N_WAYS = 6 * N_CONFIGS };

/* Ways: configuration, type, recomputation. */
static const char *config_of(int way) { return CONFIGS[way / 6]; }
static dt_model_options options_of(int way)
{
    dt_model_options opt = ref_options(MAX_TOK, 16, way & 1 ? DT_BF16 : DT_F32);
    opt.recompute = (dt_recompute)(way / 2 % 3);
    opt.cache_seqs = SEQS;
    opt.cache_len = LEN;
    opt.batch_invariant = true;
    return opt;
}

/* Token i of each text. */
static void put_token(dt_batch *b, int32_t i)
{
    b->n_tok = b->n_seq = SEQS;
    for (int32_t s = 0; s < SEQS; s++) {
        b->token[s] = (int32_t)(dt_mix64((uint64_t)(s * 100 + i)) % V);
        b->target[s] = -1;
        b->pos[s] = i;
        b->seq_start[s + 1] = s + 1;
        b->full_len[s] = LEN;
    }
    b->seq_start[0] = 0;
    dt_batch_finish(b);
}

/* In a separate pass, and the logits after it. */
static void decode_token(dt_model *m, dt_batch *b, int32_t i, float *logits)
{
    put_token(b, i);
    if (dt_model_decode(m, b, SLOT) != DT_OK) fail_msg("%s", dt_error_message());
    assert_int_equal(dt_model_last_logits(m, b, logits), DT_OK);
}

static void decode_all(dt_model *m, dt_batch *b, float *all)
{
    dt_model_cache_clear(m, -1);
    for (int32_t i = 0; i < LEN; i++) decode_token(m, b, i, all + i * SEQS * V);
}

static void train(ref_model *r, dt_batch *b, int64_t k, double *grads, double *loss)
{
    int64_t n = 0;
    ref_batch_fill(b, V, k, SEQS, LENS, 0);
    ref_model_forget_grads(r);
    assert_int_equal(ref_model_grads(r, b, 0, 1, loss), DT_OK);
    for (int u = 0; u < r->n_units; u++)
        for (int t = 0; t < r->units[u].n_tensors; t++)
            for (int64_t i = 0; i < r->units[u].tensors[t].n_elems; i++)
                grads[n++] = ref_grad(r, u, ref_at(r, u, &r->units[u].tensors[t]) + i);
}

static int64_t n_param(const ref_model *r)
{
    int64_t n = 0;
    for (int u = 0; u < r->n_units; u++) n += r->units[u].n_param;
    return n;
}

/* Neither generating nor training sees that the other uses the same memory. */
TEST(a_model_generates_between_its_steps)
{
    enum { ALL = LEN * SEQS * V };
    float *want = malloc(ALL * sizeof *want), *found = malloc(ALL * sizeof *found);
    for (int way = 0; way < N_WAYS; way++) {
        dt_model_options opt = options_of(way);
        ref_model r;
        dt_batch b;
        double loss[3];
        opt.training = false;
        open_plain_model(&r, &b, config_of(way), &opt);
        decode_all(r.model, &b, want);
        close_model(&r, &b);

        opt.training = true;
        open_plain_model(&r, &b, config_of(way), &opt);
        double *grads[2] = {malloc((size_t)n_param(&r) * sizeof(double)), malloc((size_t)n_param(&r) * sizeof(double))};
        train(&r, &b, 1, grads[0], &loss[0]);
        for (int again = 0; again < 2; again++) {
            decode_all(r.model, &b, found);
            assert_memory_equal(found, want, ALL * sizeof *want);
            train(&r, &b, 1, grads[1], &loss[1]);
            assert_memory_equal(grads[1], grads[0], (size_t)n_param(&r) * sizeof(double));
            assert_true(loss[1] == loss[0]);
            put_token(&b, LEN - 1); /* training has forgotten the texts */
            assert_fails(dt_model_decode(r.model, &b, SLOT), DT_ERR_ARG, "");
        }
        free(grads[0]), free(grads[1]);
        assert_false(r.misused);
        close_model(&r, &b);
    }
    free(want), free(found);
}

static size_t activations(ref_model *r, const dt_model_options *opt)
{
    dt_memory plan;
    assert_int_equal(dt_model_plan(&r->mc, opt, r->units, r->n_units, &r->dev, &plan), DT_OK);
    return plan.at[DT_MEM_ACTIVATIONS][DT_ON_DEVICE];
}

TEST(the_plan_takes_the_maximum)
{
    for (int way = 0; way < N_WAYS; way++) {
        dt_model_options opt = options_of(way), without = opt;
        ref_model r;
        dt_batch b;
        open_plain_model(&r, &b, config_of(way), &opt);
        without.cache_seqs = without.cache_len = 0;
        const size_t backward = activations(&r, &without);
        opt.cache_seqs = 1, opt.cache_len = 2;
        assert_true(activations(&r, &opt) == backward); /* a small cache is free */
        opt.cache_seqs = 100, opt.cache_len = 100;
        const size_t row = 2 * (size_t)(r.mc.num_key_value_heads * r.mc.head_dim) * dt_dtype_size(opt.dtype);
        const size_t cache = (size_t)r.mc.num_hidden_layers * ((10000 * row + 63) / 64 * 64),
                     large = activations(&r, &opt);
        assert_true(large > cache && large < backward + cache);
        close_model(&r, &b);
    }
}

static void logp_of(dt_model *m, dt_batch *b, int64_t k, float *logp)
{
    ref_batch_fill(b, V, k, SEQS, LENS, 0);
    if (dt_model_forward(m, b, false, 0) != DT_OK) fail_msg("%s", dt_error_message());
    assert_int_equal(dt_model_logp(m, b, 1.0f, logp, NULL, NULL), DT_OK);
}

static dt_err open_borrower(dt_model **m, ref_model *r, const dt_model_options *opt)
{
    return dt_model_open(m, &r->mc, opt, r->units, r->n_units, &r->dev, &r->source, NULL, NULL);
}

/* Sixteen sequences at a time in a lender that needs less itself. */
TEST(a_model_works_in_the_memory_of_another)
{
    for (int way = 0; way < N_WAYS; way++) {
        dt_model_options opt = options_of(way), judge_opt = opt;
        float want[MAX_TOK], found[MAX_TOK], logits[SEQS * V];
        double loss[2];
        ref_model r;
        dt_batch b;
        judge_opt.training = false, judge_opt.cache_seqs = judge_opt.cache_len = 0;
        open_plain_model(&r, &b, config_of(way), &judge_opt);
        logp_of(r.model, &b, 3, want);
        judge_opt.max_tok = 16 * MAX_TOK;
        opt.lend_nbytes = activations(&r, &judge_opt);
        close_model(&r, &b);

        open_plain_model(&r, &b, config_of(way), &opt);
        assert_true(r.dev.ops && activations(&r, &opt) >= opt.lend_nbytes);
        double *grads[2] = {malloc((size_t)n_param(&r) * sizeof(double)), malloc((size_t)n_param(&r) * sizeof(double))};
        dt_model *judge = NULL;
        judge_opt.borrows = true;
        assert_int_equal(open_borrower(&judge, &r, &judge_opt), DT_ERR_ARG); /* from nobody */
        judge_opt.lender = r.model;
        assert_true(activations(&r, &judge_opt) == 0);
        if (open_borrower(&judge, &r, &judge_opt) != DT_OK) fail_msg("%s", dt_error_message());

        train(&r, &b, 1, grads[0], &loss[0]);
        logp_of(judge, &b, 3, found);
        assert_memory_equal(found, want, (size_t)b.n_target * sizeof *want);
        train(&r, &b, 1, grads[1], &loss[1]);
        assert_memory_equal(grads[1], grads[0], (size_t)n_param(&r) * sizeof(double));

        ref_batch_fill(&b, V, 1, SEQS, LENS, 0); /* what the other has computed is gone, and that is noticed */
        assert_int_equal(dt_model_forward(r.model, &b, true, 0), DT_OK);
        logp_of(judge, &b, 3, found);
        ref_batch_fill(&b, V, 1, SEQS, LENS, 0);
        assert_int_equal(dt_model_logp(r.model, &b, 1.0f, found, NULL, NULL), DT_ERR_ARG);
        dt_model_cache_clear(r.model, -1);
        decode_token(r.model, &b, 0, logits);
        logp_of(judge, &b, 3, found);
        b.n_tok = b.n_seq = 1, b.token[0] = 1, b.target[0] = -1, b.pos[0] = 1, b.seq_start[1] = 1;
        dt_batch_finish(&b);
        assert_fails(dt_model_decode(r.model, &b, SLOT), DT_ERR_ARG, "");

        dt_model_close(judge);
        judge_opt.max_tok *= 8;
        assert_int_equal(open_borrower(&judge, &r, &judge_opt), DT_ERR_ARG); /* more than is lent */
        dt_error_clear();
        free(grads[0]), free(grads[1]);
        close_model(&r, &b);
    }
}

int main(void) { return run_listed(NULL, NULL, NULL); }
