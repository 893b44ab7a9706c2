/* test_model_decode.c - generation with the cache against the forward of the whole text.
 * DEVICES: cpu queue */

#include "cases.h"
#include "../src/model/model_private.h"
#include "host_sampler.h"
#include "model_configs.h"
#include "model_fixture.h"

enum { V = 61, LEN = 12, SEQS = 3, SLOTS = 4 };
static const int32_t SLOT[SEQS] = {2, 0, 3};

static const char *const CONFIGS[] = {
    "{\"model_type\": \"gpt2\", \"n_embd\": 24, \"n_layer\": 2, \"n_head\": 3, \"vocab_size\": 61, \"n_positions\": "
    "32}",
    "{\"model_type\": \"mistral\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 2, "
    "\"vocab_size\": 61, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, \"sliding_window\": "
    "4}",
    "{\"model_type\": \"qwen2\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 2, "
    "\"vocab_size\": 61, \"num_attention_heads\": 10, \"num_key_value_heads\": 5}",
    "{\"model_type\": \"qwen3\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 2, "
    "\"vocab_size\": 61, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, "
    "\"tie_word_embeddings\": true}",
    "{\"model_type\": \"llama\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 2, "
    "\"vocab_size\": 61, \"num_attention_heads\": 5, \"max_position_embeddings\": 8, \"rope_scaling\": {\"type\": "
    "\"dynamic\", \"factor\": 2}}",
    OLMO2,
    GRANITE,
    SMOLLM3,
    GEMMA2,
    GEMMA3,
    OLMO3,
    GLM4,
    MINISTRAL3,
    DEEPSEEK,
};
enum { N_CONFIGS = sizeof CONFIGS / sizeof CONFIGS[0] };

static int32_t text(int s, int i) { return (int32_t)(dt_mix64((uint64_t)(s * 100 + i)) % V); }

/* Tokens from[s] .. to[s]-1 of each text: a piece of a prompt of LEN tokens. */
static void fill(dt_batch *b, const int32_t *from, const int32_t *to)
{
    int32_t t = 0;
    b->seq_start[0] = 0;
    for (int s = 0; s < SEQS; s++) {
        for (int32_t i = from[s]; i < to[s]; i++, t++) {
            b->token[t] = text(s, i);
            b->target[t] = -1;
            b->pos[t] = i;
        }
        b->seq_start[s + 1] = t;
        b->full_len[s] = LEN;
    }
    b->n_seq = SEQS;
    b->n_tok = t;
    dt_batch_finish(b);
}

static void open_model_by(ref_model *r, dt_batch *b, const char *config, dt_dtype dtype, bool batch_invariant)
{
    dt_model_options opt = ref_options(SEQS * LEN, 16, dtype);
    opt.training = false;
    opt.batch_invariant = batch_invariant;
    opt.cache_seqs = SLOTS;
    opt.max_top = V;
    opt.max_listed = V + 9;
    opt.cache_len = LEN;
    dt_error_clear();
    if (ref_model_open(r, "test", config, &opt) != DT_OK) fail_msg("%s", dt_error_message());
    *b = (dt_batch){0};
    assert_int_equal(dt_batch_alloc(b, opt.max_tok, opt.max_seq, &r->ledger), DT_OK);
}

static void open_model(ref_model *r, dt_batch *b, const char *config, dt_dtype dtype)
{
    open_model_by(r, b, config, dtype, false);
}

static void whole_text_logits(ref_model *r, dt_batch *b, const int32_t *to, float *logits)
{
    static const int32_t ZERO[SEQS] = {0};
    fill(b, ZERO, to);
    assert_int_equal(dt_model_forward(r->model, b, false, 0), DT_OK);
    assert_int_equal(dt_model_last_logits(r->model, b, logits), DT_OK);
}

static void decoded_logits(ref_model *r, dt_batch *b, const int32_t *from, const int32_t *to, const int32_t *slot,
                           float *logits)
{
    fill(b, from, to);
    if (dt_model_decode(r->model, b, slot) != DT_OK) fail_msg("%s", dt_error_message());
    assert_int_equal(dt_model_last_logits(r->model, b, logits), DT_OK);
}

static void assert_same(const float *a, const float *b, double tolerance)
{
    for (int i = 0; i < SEQS * V; i++)
        if (!(fabs((double)(a[i] - b[i])) <= tolerance))
            fail_msg("sequence %d, token %d: %.9g whole, %.9g decoded", i / V, i % V, (double)a[i], (double)b[i]);
}

/* The same sums in other tiles: a few 2^-24 of logits of size 4. In bf16 the projections of q and of k, v are the same
 * matmuls with one rounding each; what differs is the order inside float sums, which now and then turns a rounding of
 * 2^-9. */
static double tolerance_of(dt_dtype dtype) { return dtype == DT_F32 ? 4e-6 : 0.08; }

TEST(decoding_gives_the_logits_of_the_whole_text)
{
    static const int32_t START[SEQS] = {0}, PROMPT[SEQS] = {5, 1, 3};
    for (int k = 0; k < 2 * N_CONFIGS; k++) {
        const dt_dtype dtype = k % 2 ? DT_BF16 : DT_F32;
        ref_model r;
        dt_batch b;
        float whole[SEQS * V], decoded[SEQS * V];
        int32_t from[SEQS], to[SEQS];
        open_model(&r, &b, CONFIGS[k / 2], dtype);
        memcpy(to, PROMPT, sizeof to);
        decoded_logits(&r, &b, START, to, SLOT, decoded);
        whole_text_logits(&r, &b, to, whole);
        assert_same(whole, decoded, tolerance_of(dtype));
        while (to[0] < LEN) {
            memcpy(from, to, sizeof from);
            for (int s = 0; s < SEQS; s++) /* one, two or three tokens at a time, later none */
                to[s] += s + 1 <= LEN - to[s] ? s + 1 : LEN - to[s];
            if (to[2] == from[2]) {
                float none[SEQS * V];
                decoded_logits(&r, &b, from, to, SLOT, none);
                whole_text_logits(&r, &b, to, whole);
                assert_same(whole, none, 1e9); /* sequences at their end have no row; the others are compared next */
                for (int v = 0; v < V; v++)
                    assert_true(fabs((double)(whole[v] - none[v])) <= tolerance_of(dtype) && none[2 * V + v] == 0);
                continue;
            }
            decoded_logits(&r, &b, from, to, SLOT, decoded);
            whole_text_logits(&r, &b, to, whole);
            assert_same(whole, decoded, tolerance_of(dtype));
        }
        close_model(&r, &b);
    }
}

/* Logits after every token of the three texts, [SEQS][LEN][V], from each text on its own, one token at a time. */
static void logits_one_by_one(ref_model *r, dt_batch *b, float *all)
{
    float logits[SEQS * V];
    for (int s = 0; s < SEQS; s++)
        for (int32_t i = 0; i < LEN; i++) {
            int32_t from[SEQS] = {0}, to[SEQS] = {0};
            from[s] = i, to[s] = i + 1;
            decoded_logits(r, b, from, to, SLOT, logits);
            memcpy(all + (s * LEN + i) * V, logits + s * V, V * sizeof *all);
        }
    dt_model_cache_clear(r->model, -1);
}

/* The same texts in a batch, in pieces that a random number cuts: every logit must have the same bits. */
static void check_random_pieces(ref_model *r, dt_batch *b, const float *all, uint64_t seed)
{
    int32_t from[SEQS] = {0}, to[SEQS] = {0}, slot[SEQS];
    float logits[SEQS * V];
    for (int s = 0; s < SEQS; s++) slot[s] = (int32_t)((uint64_t)SLOT[s] + seed) % SLOTS;
    for (bool more = true; more;) {
        more = false;
        for (int s = 0; s < SEQS; s++) {
            const int32_t n = (int32_t)(dt_mix64(seed++) % 6), left = LEN - to[s];
            from[s] = to[s];
            to[s] += n < left ? n : left;
            more |= to[s] < LEN;
        }
        decoded_logits(r, b, from, to, slot, logits);
        for (int s = 0; s < SEQS; s++)
            if (to[s] > from[s]) assert_memory_equal(logits + s * V, all + (s * LEN + to[s] - 1) * V, V * sizeof *all);
    }
    dt_model_cache_clear(r->model, -1);
}

TEST(batch_invariant_logits_do_not_depend_on_batch_or_chunks)
{
    for (int k = 0; k < 2 * N_CONFIGS; k++) {
        const dt_dtype dtype = k % 2 ? DT_BF16 : DT_F32;
        static const int32_t ZERO[SEQS] = {0}, ALL[SEQS] = {LEN, LEN, LEN};
        ref_model r;
        dt_batch b;
        float *all = malloc(SEQS * LEN * V * sizeof *all), whole[SEQS * V], decoded[SEQS * V];
        open_model_by(&r, &b, CONFIGS[k / 2], dtype, true);
        logits_one_by_one(&r, &b, all);
        for (uint64_t seed = 1; seed < 200; seed += 20) check_random_pieces(&r, &b, all, seed);
        decoded_logits(&r, &b, ZERO, ALL, SLOT, decoded);
        whole_text_logits(&r, &b, ALL, whole); /* without the cache */
        for (int s = 0; s < SEQS; s++)
            assert_memory_equal(decoded + s * V, all + (s * LEN + LEN - 1) * V, V * sizeof *all);
        assert_memory_equal(whole, decoded, sizeof whole);
        close_model(&r, &b);

        open_model(&r, &b, CONFIGS[k / 2], dtype); /* the matmuls of training: the same but for rounding */
        whole_text_logits(&r, &b, ALL, whole);
        assert_same(whole, decoded, tolerance_of(dtype));
        close_model(&r, &b);
        free(all);
    }
}

/* What the device draws is what the host would draw from the same logits: a sequence without a token gets none. The
 * log-probability is a sum of 61 terms in double, in any order. */
static void check_draws(ref_model *r, const dt_batch *b, const dt_choice *how, uint64_t seed)
{
    enum { WORDS = (V + 31) / 32 };
    float logits[SEQS * V];
    double uniform[SEQS], logp[SEQS], want_logp;
    uint32_t seen[SEQS * WORDS];
    int32_t token[SEQS], want;
    for (int s = 0; s < SEQS; s++) uniform[s] = (double)(dt_mix64(seed + (uint64_t)s) >> 11) * 0x1p-53;
    for (int i = 0; i < SEQS * WORDS; i++) seen[i] = (uint32_t)dt_mix64(seed * 100 + (uint64_t)i);
    const dt_draw d = {.how = *how,
                       .uniform = how->greedy ? NULL : uniform,
                       .seen = how->repetition_penalty != 1 ? seen : NULL,
                       .token = token,
                       .logp = logp};
    assert_int_equal(dt_model_last_logits(r->model, b, logits), DT_OK);
    assert_int_equal(dt_model_draw(r->model, b, &d), DT_OK);
    for (int s = 0; s < SEQS; s++) {
        if (b->seq_start[s + 1] == b->seq_start[s]) {
            assert_true(token[s] == -1 && isnan(logp[s]));
            continue;
        }
        host_draw(how, logits + s * V, d.seen ? seen + s * WORDS : NULL, V, uniform[s], &want, &want_logp);
        assert_int_equal(token[s], want);
        assert_true(fabs(logp[s] - want_logp) <= 0x1p-40);
    }
}

TEST(draws_are_those_of_the_logits)
{
    static const dt_choice HOW[] = {
        {.repetition_penalty = 1, .greedy = true},
        {.repetition_penalty = 1.5, .greedy = true},
        {.repetition_penalty = 1, .temperature = 1, .top_p = 1},
        {.repetition_penalty = 1.2, .temperature = 2, .top_k = 30, .top_p = 0.9, .min_p = 0.01},
    };
    static const int32_t START[SEQS] = {0}, PROMPT[SEQS] = {5, 0, 3};
    for (int k = 0; k < 2 * N_CONFIGS; k++) {
        ref_model r;
        dt_batch b;
        open_model(&r, &b, CONFIGS[k / 2], k % 2 ? DT_BF16 : DT_F32);
        fill(&b, START, PROMPT);
        assert_int_equal(dt_model_decode(r.model, &b, SLOT), DT_OK);
        for (int chunks = 0; chunks < 2; chunks++) {
            if (chunks) r.model->h.n_rows = 1; /* rows of a pass of the head */
            for (uint64_t i = 0; i < 20; i++) check_draws(&r, &b, &HOW[i % 4], i * 1000 + (uint64_t)k);
        }
        close_model(&r, &b);
    }
}

/* The same for lists of the most probable tokens, whole and short, with one mask or none. */
static void check_lists(ref_model *r, const dt_batch *b, int32_t k, bool masked, uint64_t seed)
{
    enum { WORDS = (V + 31) / 32 };
    float logits[SEQS * V];
    uint32_t seen[SEQS * WORDS];
    int32_t token[SEQS * 2 * V], want[SEQS * 2 * V];
    double logp[SEQS * 2 * V], want_logp[SEQS * 2 * V];
    for (int i = 0; i < SEQS * WORDS; i++) seen[i] = (uint32_t)dt_mix64(seed * 100 + (uint64_t)i);
    const dt_top t = {.k = k, .seen = masked ? seen : NULL, .token = token, .logp = logp},
                 wanted = {.k = k, .seen = t.seen, .token = want, .logp = want_logp};
    assert_int_equal(dt_model_last_logits(r->model, b, logits), DT_OK);
    assert_int_equal(dt_model_top(r->model, b, &t), DT_OK);
    for (int s = 0; s < SEQS; s++) {
        const bool any = b->seq_start[s + 1] > b->seq_start[s];
        host_top(&wanted, s, logits + s * V, V);
        for (int i = s * k * (1 + masked); i < (s + 1) * k * (1 + masked); i++) {
            assert_int_equal(token[i], any ? want[i] : -1);
            assert_true(!any ? isnan(logp[i]) : logp[i] == want_logp[i] || fabs(logp[i] - want_logp[i]) <= 0x1p-40);
        }
    }
}

TEST(lists_are_those_of_the_logits)
{
    static const int32_t START[SEQS] = {0}, PROMPT[SEQS] = {5, 0, 3};
    for (int i = 0; i < N_CONFIGS; i++) {
        ref_model r;
        dt_batch b;
        int32_t token[SEQS * (V + 1)];
        double logp[SEQS * (V + 1)];
        open_model(&r, &b, CONFIGS[i], i % 2 ? DT_BF16 : DT_F32);
        fill(&b, START, PROMPT);
        assert_int_equal(dt_model_decode(r.model, &b, SLOT), DT_OK);
        for (int chunks = 0; chunks < 2; chunks++) {
            if (chunks) r.model->h.n_rows = 1; /* rows of a pass of the head */
            for (int32_t k = 1; k <= V; k += 12)
                for (int masked = 0; masked < 2; masked++) check_lists(&r, &b, k, masked, (uint64_t)(i * V + k));
        }
        const dt_top too_long = {.k = V + 1, .token = token, .logp = logp};
        assert_fails(dt_model_top(r.model, &b, &too_long), DT_ERR_ARG, "");
        close_model(&r, &b);
    }
}

/* With lists tokens are those of the logits that are left where all others are -inf, and log-probabilities those among
 * all. */
static void check_listed(ref_model *r, const dt_batch *b, const int32_t *list, const int32_t *start, const int32_t *len,
                         bool masked)
{
    enum { WORDS = (V + 31) / 32, K = 7 };
    float logits[SEQS * V];
    int32_t token[SEQS * 2 * K], want[SEQS * 2 * K], drawn[SEQS], want_drawn;
    double logp[SEQS * 2 * K], want_logp[SEQS * 2 * K], drawn_logp[SEQS], ignored;
    const double uniform[SEQS] = {0.2, 0.5, 0.8};
    uint32_t seen[SEQS * WORDS];
    for (int i = 0; i < SEQS * WORDS; i++) seen[i] = (uint32_t)dt_mix64((uint64_t)i + 77);
    const dt_top t = {.k = K,
                      .seen = masked ? seen : NULL,
                      .token = token,
                      .logp = logp,
                      .list_start = start,
                      .list_len = len},
                 wanted = {.k = K, .seen = t.seen, .token = want, .logp = want_logp};
    const dt_draw d = {.how = {.repetition_penalty = 1, .temperature = 1.5, .top_p = 1},
                       .uniform = uniform,
                       .token = drawn,
                       .logp = drawn_logp,
                       .list_start = start,
                       .list_len = len};
    assert_int_equal(dt_model_last_logits(r->model, b, logits), DT_OK);
    assert_int_equal(dt_model_top(r->model, b, &t), DT_OK);
    assert_int_equal(dt_model_draw(r->model, b, &d), DT_OK);
    for (int s = 0; s < SEQS; s++) {
        if (b->seq_start[s + 1] == b->seq_start[s]) continue;
        const float *z = logits + s * V;
        const double sum = dt_logits_log_sum_exp(z, V, 1);
        float left[V];
        for (int v = 0; v < V; v++) left[v] = -INFINITY;
        for (int32_t i = start[s]; i < start[s] + len[s]; i++) left[list[i]] = z[list[i]];
        host_top(&wanted, s, left, V);
        for (int i = s * K * (1 + masked); i < (s + 1) * K * (1 + masked); i++) {
            assert_int_equal(token[i], want[i]);
            assert_true(want[i] < 0 ? logp[i] == -INFINITY : fabs(logp[i] - ((double)z[want[i]] - sum)) <= 0x1p-40);
        }
        host_draw(&d.how, left, NULL, V, uniform[s], &want_drawn, &ignored);
        assert_int_equal(drawn[s], want_drawn);
        assert_true(fabs(drawn_logp[s] - ((double)z[want_drawn] - sum)) <= 0x1p-40);
    }
}

TEST(tokens_from_lists_are_those_of_the_logits)
{
    static const int32_t START[SEQS] = {0}, PROMPT[SEQS] = {5, 0, 3}, at[SEQS] = {2, 0, 30}, len[SEQS] = {5, 1, 28};
    int32_t list[V];
    for (int32_t v = 0; v < V; v++) list[v] = v < 30 ? 2 * v : 2 * (v - 30) + 1; /* ascending in each half */
    for (int i = 0; i < N_CONFIGS; i++) {
        ref_model r;
        dt_batch b;
        open_model(&r, &b, CONFIGS[i], i % 2 ? DT_BF16 : DT_F32);
        int32_t given[58];
        memcpy(given, list, sizeof given);
        assert_int_equal(dt_model_set_lists(r.model, given, 58), DT_OK);
        memset(given, 0xff, sizeof given); /* the caller's again */
        fill(&b, START, PROMPT);
        assert_int_equal(dt_model_decode(r.model, &b, SLOT), DT_OK);
        for (int chunks = 0; chunks < 2; chunks++) {
            if (chunks) r.model->h.n_rows = 1; /* rows of a pass of the head */
            for (int masked = 0; masked < 2; masked++) check_listed(&r, &b, list, at, len, masked);
        }
        static const int32_t beyond[SEQS] = {31, 31, 31};
        int32_t token[SEQS];
        const dt_draw d = {
            .how = {.repetition_penalty = 1, .greedy = true}, .token = token, .list_start = beyond, .list_len = len};
        assert_fails(dt_model_draw(r.model, &b, &d), DT_ERR_ARG, "");
        list[3] = V;
        assert_fails(dt_model_set_lists(r.model, list, V), DT_ERR_ARG, "");
        assert_fails(dt_model_set_lists(r.model, list, V + 10), DT_ERR_ARG, "");
        list[3] = 6;
        close_model(&r, &b);
    }
}

enum { PROMPTS = 2, OWN = 7 };

/* A cache whose sequences have OWN tokens after prompts of up to LEN. */
static void open_with_prompts(ref_model *r, dt_batch *b, const char *config, dt_dtype dtype)
{
    dt_model_options opt = ref_options(SEQS * LEN, 16, dtype);
    opt.training = false, opt.batch_invariant = true;
    opt.cache_seqs = SLOTS, opt.cache_len = OWN, opt.cache_prompts = PROMPTS, opt.cache_prompt_len = LEN;
    if (ref_model_open(r, "test", config, &opt) != DT_OK) fail_msg("%s", dt_error_message());
    *b = (dt_batch){0};
    assert_int_equal(dt_batch_alloc(b, opt.max_tok, opt.max_seq, &r->ledger), DT_OK);
}

/* Text 0 after a prompt of 5 tokens that two sequences share, one of them less its last token, and a move after 8:
 * bitwise the result of one slot. max_tok: rows that move at a time. */
static void check_shared_prompt(const char *config, dt_dtype dtype, int32_t max_tok)
{
    static const int32_t START[SEQS] = {0}, AT[][SEQS] = {{4}, {5}, {6}, {7}, {8}, {9}, {10}};
    static const int32_t FIRST[SEQS] = {1, 0, 3}, SECOND[SEQS] = {2, 0, 3}, MOVED[SEQS] = {3, 0, 1};
    ref_model r, alone;
    dt_batch b, c;
    float want[SEQS * V], got[SEQS * V];
    open_with_prompts(&r, &b, config, dtype);
    open_model_by(&alone, &c, config, dtype, true);
    const int32_t prompt[SEQS] = {dt_model_cache_prompt(r.model, 1), 0, 3};
    decoded_logits(&r, &b, START, AT[0], prompt, got);
    decoded_logits(&r, &b, AT[0], AT[1], prompt, got);
    decoded_logits(&alone, &c, START, AT[1], SLOT, want);
    assert_memory_equal(want, got, V * sizeof *want);
    assert_int_equal(dt_model_cache_share(r.model, FIRST[0], prompt[0], 5), DT_OK);
    assert_int_equal(dt_model_cache_share(r.model, SECOND[0], prompt[0], 4), DT_OK);
    decoded_logits(&r, &b, AT[0], AT[1], SECOND, got);
    assert_memory_equal(want, got, V * sizeof *want);
    for (int i = 1; i + 1 < (int)(sizeof AT / sizeof AT[0]); i++) {
        if (i == 4) {
            const int32_t kept = r.model->opt.max_tok, src[2] = {FIRST[0], FIRST[0]}, dst[2] = {MOVED[0], 0};
            r.model->opt.max_tok = max_tok;
            assert_int_equal(dt_model_cache_move(r.model, 2, src, dst), DT_OK);
            r.model->opt.max_tok = kept;
            dt_model_cache_keep(r.model, 0, 0);
        }
        decoded_logits(&alone, &c, AT[i], AT[i + 1], SLOT, want);
        decoded_logits(&r, &b, AT[i], AT[i + 1], FIRST, got);
        assert_memory_equal(want, got, V * sizeof *want);
        decoded_logits(&r, &b, AT[i], AT[i + 1], SECOND, got);
        assert_memory_equal(want, got, V * sizeof *want);
        if (i < 4) continue;
        decoded_logits(&r, &b, AT[i], AT[i + 1], MOVED, got);
        assert_memory_equal(want, got, V * sizeof *want);
    }
    close_model(&alone, &c), close_model(&r, &b);
}

TEST(sequences_go_on_from_a_prompt_that_lies_there_once)
{
    for (int i = 0; i < N_CONFIGS; i++)
        for (int32_t max_tok = 1; max_tok < 8; max_tok += 3) {
            check_shared_prompt(CONFIGS[i], DT_F32, max_tok);
            check_shared_prompt(CONFIGS[i], DT_BF16, max_tok);
        }
}

/* The memory of the cache is that of its slots, and accesses to slots that do not exist are refused. */
TEST(a_cache_with_prompts_is_as_large_as_its_slots)
{
    static const int32_t START[SEQS] = {0}, PROMPT[SEQS] = {5, 0, 0}, NEXT[SEQS] = {6, 0, 0},
                         SEQUENCE[SEQS] = {1, 0, 3};
    ref_model r;
    dt_batch b;
    float logits[SEQS * V];
    open_with_prompts(&r, &b, CONFIGS[3], DT_F32);
    dt_model *m = r.model;
    const int32_t p = dt_model_cache_prompt(m, 0), prompt[SEQS] = {p, 0, 3}, none = SLOTS;
    assert_int_equal(dt_model_cache_nbytes(&r.mc, &m->opt), (SLOTS * OWN + PROMPTS * LEN) * 2 * 2 * 8 * sizeof(float) *
                                                                2); /* K and V, heads, of 8, 2 layers */
    decoded_logits(&r, &b, START, PROMPT, prompt, logits);
    assert_int_equal(dt_model_cache_share(m, 1, p, 6), DT_ERR_ARG);
    assert_int_equal(dt_model_cache_share(m, 1, 0, 0), DT_ERR_ARG);
    assert_int_equal(dt_model_cache_share(m, p, p, 1), DT_ERR_ARG);
    assert_int_equal(dt_model_cache_share(m, 1, p + PROMPTS, 0), DT_ERR_ARG);
    assert_int_equal(dt_model_cache_share(m, 1, p, 5), DT_OK);
    assert_int_equal(dt_model_cache_move(m, 1, &SEQUENCE[0], &none), DT_ERR_ARG);
    assert_int_equal(dt_model_cache_move(m, 1, &none, &SEQUENCE[0]), DT_ERR_ARG);
    dt_model_cache_keep(m, p, 4); /* the cache entries that the sequence continues from are gone */
    fill(&b, PROMPT, NEXT);
    assert_fails(dt_model_decode(m, &b, SEQUENCE), DT_ERR_ARG, "");
    dt_model_options opt = m->opt;
    opt.batch_invariant = false;
    close_model(&r, &b);
    assert_fails(ref_model_open(&r, "test", CONFIGS[3], &opt), DT_ERR_ARG, "");
    ref_model_close(&r);
}

TEST(an_empty_step_passes_every_unit_and_changes_nothing)
{
    static const int32_t START[SEQS] = {0}, PROMPT[SEQS] = {5, 4, 3}, NEXT[SEQS] = {6, 5, 4};
    ref_model r;
    dt_batch b;
    float whole[SEQS * V], decoded[SEQS * V];
    open_model(&r, &b, CONFIGS[0], DT_F32);
    r.calls_len = 0;
    decoded_logits(&r, &b, START, PROMPT, SLOT, decoded);
    char *order = strdup(r.calls);
    r.calls_len = 0;
    decoded_logits(&r, &b, PROMPT, PROMPT, SLOT, decoded);
    assert_string_equal(r.calls, order);
    free(order);
    decoded_logits(&r, &b, PROMPT, NEXT, SLOT, decoded);
    whole_text_logits(&r, &b, NEXT, whole);
    assert_same(whole, decoded, 4e-6);
    close_model(&r, &b);
}

TEST(a_full_cache_and_wrong_slots_are_refused)
{
    static const int32_t START[SEQS] = {0}, FULL[SEQS] = {LEN, 1, 1}, MORE[SEQS] = {LEN + 1, 1, 1},
                         TWICE[SEQS] = {1, 1, 0}, SECOND[SEQS] = {0, 1, 0}, OUTSIDE[SEQS] = {0, 1, SLOTS};
    ref_model r;
    dt_batch b;
    float logits[SEQS * V];
    open_model(&r, &b, CONFIGS[0], DT_F32);
    decoded_logits(&r, &b, START, FULL, SLOT, logits);
    dt_error_clear();
    fill(&b, FULL, MORE);
    assert_fails(dt_model_decode(r.model, &b, SLOT), DT_ERR_DATA, "12");
    fill(&b, START, TWICE);
    assert_int_equal(dt_model_decode(r.model, &b, TWICE), DT_ERR_ARG);
    assert_int_equal(dt_model_decode(r.model, &b, OUTSIDE), DT_ERR_ARG);
    fill(&b, START, SECOND);
    assert_int_equal(dt_model_decode(r.model, &b, SLOT), DT_ERR_ARG); /* slot 0 holds a token, the text starts at 0 */
    close_model(&r, &b);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
