/* test_generate.c - the scheduling of sequences over slots, and decoding through a real model with its cache.
 *
 * `test_generate --make-checkpoint DIR` writes a small random model to DIR/checkpoints instead, for
 * tests/e2e_generate.sh.
 * DEVICES: cpu queue */

#include "cases.h"
#include <mpi.h>

#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/generate/generate.h"
#include "host_sampler.h"

/* ---- a decoder that is a pure function of a sequence's tokens ---------------------------------------------------- */

enum { VOCAB = 50, MAX_SLOTS = 8, MAX_LEN = 64 };

struct fake {
    int32_t held[MAX_SLOTS][MAX_LEN], n[MAX_SLOTS];
    int32_t slot[MAX_SLOTS]; /* of the last batch's sequences */
    int32_t max_tok;
    int n_calls, n_bad; /* n_bad: broken promises of dt_generate */
    bool bad;           /* are any logits non-finite? */
};

static void fake_logits(const int32_t *ids, int32_t n, float *logits)
{
    uint64_t h = 1;
    for (int32_t i = 0; i < n; i++) h = dt_mix64(h ^ (uint64_t)ids[i]);
    for (int v = 0; v < VOCAB; v++) logits[v] = (float)(dt_mix64(h + (uint64_t)v) >> 40) * 0x1p-22f;
}

static dt_err fake_decode(void *self, const dt_batch *b, const int32_t *slot)
{
    struct fake *f = self;
    f->n_calls++;
    memcpy(f->slot, slot, (size_t)b->n_seq * sizeof *slot);
    f->n_bad += b->n_tok > f->max_tok || b->seq_start[0] != 0 || b->seq_start[b->n_seq] != b->n_tok;
    for (int32_t s = 0; s < b->n_seq; s++) {
        const int32_t k = slot[s];
        f->n_bad += b->seq_start[s + 1] <= b->seq_start[s] || (s > 0 && slot[s - 1] >= k);
        for (int32_t t = b->seq_start[s]; t < b->seq_start[s + 1]; t++) {
            f->n_bad += b->pos[t] != f->n[k];
            f->held[k][f->n[k]++] = b->token[t];
        }
    }
    return DT_OK;
}

static dt_err fake_draw(void *self, const dt_batch *b, const dt_draw *d)
{
    const struct fake *f = self;
    for (int32_t s = 0; s < b->n_seq; s++) {
        float logits[VOCAB];
        fake_logits(f->held[f->slot[s]], f->n[f->slot[s]], logits);
        if (f->bad && s == 0) logits[7] = NAN;
        host_draw(&d->how, logits, d->seen ? d->seen + s * ((VOCAB + 31) / 32) : NULL, VOCAB, d->uniform[s],
                  &d->token[s], d->logp ? &d->logp[s] : NULL);
    }
    return DT_OK;
}

static int32_t fake_keep(void *self, int32_t slot, int32_t n) { return ((struct fake *)self)->n[slot] = n; }

/* ---- the same sequences by a plain loop -------------------------------------------------------------------------- */

enum { N_SEQS = 11 };
static const int32_t eos[] = {3, 17};
static const dt_sampling how = {.temperature = 0.7, .top_k = 20, .top_p = 0.95, .repetition_penalty = 1.1, .seed = 5};

struct work {
    dt_sequence seqs[N_SEQS], *list[N_SEQS];
    int32_t ids[N_SEQS][MAX_LEN];
};

static void make_work(struct work *w)
{
    for (int i = 0; i < N_SEQS; i++) {
        const int32_t n_prompt = 1 + (int32_t)(dt_mix64((uint64_t)i) % 23); /* some longer than a pass */
        for (int32_t t = 0; t < n_prompt; t++) w->ids[i][t] = (int32_t)(dt_mix64((uint64_t)(100 * i + t)) % VOCAB);
        /* number 4 has no room at all */
        const int32_t max_ids = n_prompt + (i == 4 ? 0 : 1 + (int32_t)(dt_mix64((uint64_t)i + 77) % 40));
        w->seqs[i] = (dt_sequence){
            .number = (uint64_t)i, .ids = w->ids[i], .n_prompt = n_prompt, .n_ids = n_prompt, .max_ids = max_ids};
        w->list[i] = &w->seqs[i];
    }
}

static void ref_generate(dt_sequence *q)
{
    host_sampler s = host_sampler_open(&how, VOCAB);
    float logits[VOCAB];
    while (q->finish == DT_FINISH_NONE && q->n_ids < q->max_ids) {
        fake_logits(q->ids, q->n_ids, logits);
        const int32_t token = host_sampler_draw(&s, logits, q->ids, q->n_ids, q->number, (uint64_t)q->n_ids);
        q->ids[q->n_ids++] = token;
        if (token == eos[0] || token == eos[1]) q->finish = DT_FINISH_EOS;
    }
    if (q->finish == DT_FINISH_NONE) q->finish = DT_FINISH_LENGTH;
    host_sampler_close(&s);
}

struct heard {
    int64_t n_tokens, n_ends;
};

static dt_err hear(void *ctx, dt_sequence *s)
{
    struct heard *h = ctx;
    h->n_tokens++;
    h->n_ends += s->finish != DT_FINISH_NONE;
    return DT_OK;
}

/* Slots, and tokens of a pass. */
static const int32_t SHAPES[][2] = {{1, 1}, {1, 64}, {2, 3}, {3, 5}, {4, 4}, {5, 16}, {8, 9}, {8, 1000}};
enum { N_SHAPES = sizeof SHAPES / sizeof SHAPES[0] };

/* dt_generate makes the expected sequences of w, and frees its memory. Returns the number of passes. */
static int assert_generates(const struct work *expected, struct work *w, const int32_t shape[2],
                            dt_generate_options opt, dt_generate_stats *stats)
{
    struct fake f = {.max_tok = shape[1]};
    dt_ledger ledger = {0};
    const dt_decoder d = {.self = &f, .decode = fake_decode, .draw = fake_draw, .keep = fake_keep};
    opt.sampling = how, opt.eos = eos, opt.n_eos = 2, opt.vocab_size = VOCAB, opt.ledger = &ledger;
    opt.n_slots = shape[0], opt.max_tok = shape[1];
    assert_int_equal(dt_generate(&d, w->list, N_SEQS, &opt, stats), DT_OK);
    assert_int_equal(f.n_bad, 0);
    for (int i = 0; i < N_SEQS; i++) {
        const dt_sequence *is = &w->seqs[i], *want = &expected->seqs[i];
        assert_int_equal(is->n_ids, want->n_ids);
        assert_int_equal(is->finish, want->finish);
        assert_memory_equal(is->ids, want->ids, (size_t)is->n_ids * sizeof(int32_t));
    }
    assert_int_equal(atomic_load(&ledger.total_now), 0);
    return f.n_calls;
}

TEST(tokens_do_not_depend_on_slots_and_passes)
{
    struct work expected;
    int64_t n_new = 0, n_prompt = 0;
    make_work(&expected);
    for (int i = 0; i < N_SEQS; i++) {
        ref_generate(&expected.seqs[i]);
        n_new += expected.seqs[i].n_ids - expected.seqs[i].n_prompt;
        n_prompt += i == 4 ? 0 : expected.seqs[i].n_prompt;
    }
    for (size_t k = 0; k < N_SHAPES; k++) {
        struct work w;
        struct heard heard = {0};
        dt_generate_stats stats;
        make_work(&w);
        const dt_generate_options opt = {.on_token = hear, .ctx = &heard};
        const int n_calls = assert_generates(&expected, &w, SHAPES[k], opt, &stats);
        assert_int_equal(stats.n_new_tok, n_new);
        assert_int_equal(stats.n_prompt_tok, n_prompt);
        assert_int_equal(stats.n_forward, n_calls);
        assert_int_equal(heard.n_tokens, n_new);
        assert_int_equal(heard.n_ends, N_SEQS - 1); /* all but the one without room */
    }
}

/* ---- sequences that wait for an answer --------------------------------------------------------------------------- */

enum { N_INSERTED = 3, MAX_WAITS = 2 };

/* An answer comes after some calls, later for some sequences. */
struct answers {
    dt_sequence *seqs;
    int n_seqs, n_waits[N_SEQS], left[N_SEQS], n_idle;
};

static void wait_for(struct answers *a, dt_sequence *s)
{
    const int i = (int)(s - a->seqs);
    if (s->finish != DT_FINISH_EOS || a->n_waits[i] == MAX_WAITS) return;
    a->left[i] = 1 + (7 * i + 3 * a->n_waits[i]) % 5;
    s->finish = DT_FINISH_WAIT;
}

static dt_err wait_at_end(void *ctx, dt_sequence *s)
{
    wait_for(ctx, s);
    return DT_OK;
}

/* The tokens of an answer, if they fit. */
static void take_in(struct answers *a, dt_sequence *s)
{
    const int i = (int)(s - a->seqs);
    a->n_waits[i]++;
    s->finish = DT_FINISH_EOS;
    if (s->n_ids + N_INSERTED >= s->max_ids) return;
    for (int k = 0; k < N_INSERTED; k++) s->ids[s->n_ids++] = 20 + (i + k) % 8;
    s->finish = DT_FINISH_NONE;
}

static dt_err answer_some(void *ctx, bool idle)
{
    struct answers *a = ctx;
    a->n_idle += idle;
    for (int i = 0; i < a->n_seqs; i++)
        if (a->seqs[i].finish == DT_FINISH_WAIT && --a->left[i] == 0) take_in(a, &a->seqs[i]);
    return DT_OK;
}

/* They keep their slots or lose them, and tokens are the same. */
TEST(sequences_that_wait_continue_with_the_answer)
{
    struct work expected;
    struct answers a = {.seqs = expected.seqs, .n_seqs = N_SEQS};
    int n_waits = 0, n_idle = 0;
    make_work(&expected);
    for (int i = 0; i < N_SEQS; i++) {
        dt_sequence *q = &expected.seqs[i];
        do {
            ref_generate(q);
            if (q->finish == DT_FINISH_EOS) wait_for(&a, q);
            if (q->finish == DT_FINISH_WAIT) take_in(&a, q);
        } while (q->finish == DT_FINISH_NONE);
        n_waits += a.n_waits[i];
    }
    assert_true(n_waits > 5);
    for (size_t k = 0; k < N_SHAPES; k++) {
        struct work w;
        dt_generate_stats stats;
        make_work(&w);
        a = (struct answers){.seqs = w.seqs, .n_seqs = N_SEQS};
        const dt_generate_options opt = {.on_token = wait_at_end, .on_wait = answer_some, .ctx = &a};
        assert_generates(&expected, &w, SHAPES[k], opt, &stats);
        n_idle += a.n_idle;
    }
    assert_true(n_idle > 0);
}

static bool ends_in_a_seventh(void *ctx, const int32_t *ids, int32_t n_prompt, int32_t n_ids)
{
    return n_ids > n_prompt && ids[n_ids - 1] % 7 == 3;
}

/* An end token (3 and 17) wins over is_complete, and is_complete over the maximum length. */
TEST(sequences_end_when_they_are_complete)
{
    struct work expected, w;
    dt_generate_stats stats;
    int n_complete = 0;
    make_work(&expected);
    for (int i = 0; i < N_SEQS; i++) {
        dt_sequence *q = &expected.seqs[i];
        ref_generate(q);
        for (int32_t n = q->n_prompt + 1; n <= q->n_ids && q->finish != DT_FINISH_STOP; n++)
            if (ends_in_a_seventh(NULL, q->ids, q->n_prompt, n) && (n < q->n_ids || q->finish != DT_FINISH_EOS))
                q->n_ids = n, q->finish = DT_FINISH_STOP;
        n_complete += q->finish == DT_FINISH_STOP;
    }
    assert_true(n_complete > 5);
    make_work(&w);
    for (int i = 0; i < N_SEQS; i += 2) /* these are complete with their last token */
        if (expected.seqs[i].finish == DT_FINISH_STOP) w.seqs[i].max_ids = expected.seqs[i].n_ids;
    assert_generates(&expected, &w, SHAPES[4], (dt_generate_options){.is_complete = ends_in_a_seventh}, &stats);
}

static dt_err refuse(void *ctx, dt_sequence *s)
{
    return s->n_ids - s->n_prompt == 2 ? dt_fail(DT_ERR_WRITE, "no more") : DT_OK;
}

/* A text that is continued: cached tokens are not processed again, and the new tokens equal those of a fresh start. */
TEST(a_cached_beginning_is_not_run_again)
{
    dt_ledger ledger = {0};
    struct fake f = {.max_tok = 4};
    const dt_decoder d = {.self = &f, .decode = fake_decode, .draw = fake_draw, .keep = fake_keep};
    const dt_generate_options opt = {
        .sampling = how, .vocab_size = VOCAB, .n_slots = 1, .max_tok = 4, .ledger = &ledger};
    dt_generate_stats stats;
    int32_t ids[2][MAX_LEN] = {{5, 6, 7, 8}};
    dt_sequence talk = {.number = 3, .ids = ids[0], .n_prompt = 4, .n_ids = 4, .max_ids = 10}, *one = &talk, fresh,
                *other = &fresh;
    assert_int_equal(dt_generate(&d, &one, 1, &opt, &stats), DT_OK);
    assert_true(stats.n_prompt_tok == 4 && talk.n_cached == 9 && talk.n_ids == 10);
    talk.n_cached = 7; /* the rest was said otherwise */
    for (int32_t t = 7; t < 12; t++) talk.ids[t] = t;
    talk.n_prompt = talk.n_ids = 12, talk.max_ids = 20;
    memcpy(ids[1], ids[0], sizeof ids[0]);
    fresh = talk;
    fresh.ids = ids[1], fresh.n_cached = 0;
    assert_int_equal(dt_generate(&d, &one, 1, &opt, &stats), DT_OK);
    assert_true(stats.n_prompt_tok == 5 && talk.finish == DT_FINISH_LENGTH);
    assert_int_equal(dt_generate(&d, &other, 1, &opt, &stats), DT_OK);
    assert_true(stats.n_prompt_tok == 12);
    assert_memory_equal(ids[0], ids[1], 20 * sizeof ids[0][0]);
    talk.n_prompt = talk.n_ids = talk.n_cached = 12;
    assert_int_equal(dt_generate(&d, &one, 1, &opt, &stats), DT_ERR_ARG); /* nothing left to decode */
    assert_int_equal(f.n_bad, 0);
}

TEST(errors_come_back)
{
    struct fake f = {.max_tok = 64}, f_bad = {.max_tok = 64, .bad = true};
    struct work w;
    dt_ledger ledger = {0};
    dt_generate_stats stats;
    make_work(&w);
    dt_generate_options opt = {.sampling = how, .vocab_size = VOCAB, .n_slots = 2, .max_tok = 64, .ledger = &ledger};
    const dt_decoder bad = {.self = &f_bad, .decode = fake_decode, .draw = fake_draw, .keep = fake_keep},
                     good = {.self = &f, .decode = fake_decode, .draw = fake_draw, .keep = fake_keep};
    assert_int_equal(dt_generate(&bad, w.list, N_SEQS, &opt, &stats), DT_ERR_NONFINITE);
    make_work(&w);
    opt.on_token = refuse;
    assert_int_equal(dt_generate(&good, w.list, N_SEQS, &opt, &stats), DT_ERR_WRITE);
    opt.sampling.top_p = 2;
    assert_int_equal(dt_generate(&good, w.list, 0, &opt, &stats), DT_ERR_USAGE);
    assert_int_equal(atomic_load(&ledger.total_now), 0);
}

/* ---- a small model on the CPU ------------------------------------------------------------------------------------ */

static const char *const configs[] = {
    "{\"model_type\": \"llama\", \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 2, "
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 257, \"max_position_embeddings\": 64, "
    "\"eos_token_id\": 256, \"bos_token_id\": null, \"tie_word_embeddings\": false, \"initializer_range\": 0.3}",
    "{\"model_type\": \"gpt2\", \"n_embd\": 32, \"n_layer\": 2, \"n_head\": 4, \"vocab_size\": 60, \"n_positions\": "
    "64, \"eos_token_id\": 59, \"bos_token_id\": 59, \"initializer_range\": 0.3}"};

struct stack {
    dt_comm comm;
    dt_ledger ledger;
    dt_device dev;
    dt_model_config mc;
    dt_unit *units;
    int n_units;
    dt_zero *zero;
    dt_param_source source;
    dt_model *model;
};

/* cache_len: tokens of a sequence in the cache, after one of n_prompts prompts if there are any. */
static void open_stack(struct stack *k, const char *config, int32_t cache_len, int32_t n_prompts)
{
    *k = (struct stack){0};
    assert_int_equal(dt_comm_open(&k->comm), DT_OK);
    assert_int_equal(dt_device_open(&k->dev, "cpu", 0, 1, &k->ledger), DT_OK);
    assert_int_equal(dt_comm_attach(&k->comm, &k->dev, "auto", true), DT_OK);
    assert_int_equal(dt_model_config_parse(&k->mc, "test", config), DT_OK);
    assert_int_equal(dt_model_make_units(&k->mc, &k->units, &k->n_units), DT_OK);
    const dt_zero_options zo = {.param_dtype = DT_F32, .grad_dtype = DT_F32};
    assert_int_equal(dt_zero_open(&k->zero, &zo, k->units, k->n_units, &k->comm, &k->dev, NULL, NULL), DT_OK);
    assert_int_equal(dt_zero_init_random(k->zero, 1), DT_OK);
    const dt_model_options mo = {.max_tok = MAX_LEN,
                                 .max_seq = 4,
                                 .max_pos = MAX_LEN,
                                 .cache_seqs = 4,
                                 .cache_len = cache_len,
                                 .cache_prompts = n_prompts,
                                 .cache_prompt_len = n_prompts ? MAX_LEN - cache_len : 0,
                                 .batch_invariant = true};
    k->source = dt_zero_source(k->zero);
    assert_int_equal(dt_model_open(&k->model, &k->mc, &mo, k->units, k->n_units, &k->dev, &k->source, NULL, NULL),
                     DT_OK);
}

static void close_stack(struct stack *k)
{
    dt_model_close(k->model);
    dt_zero_close(k->zero);
    dt_model_free_units(k->units, k->n_units);
    dt_model_config_free(&k->mc);
    dt_comm_close(&k->comm);
    dt_device_close(&k->dev);
    assert_int_equal(atomic_load(&k->ledger.total_now), 0);
}

/* Logits of the token after ids, without a cache. */
static void full_logits(struct stack *k, const int32_t *ids, int32_t n, float *logits)
{
    dt_batch b;
    assert_int_equal(dt_batch_alloc(&b, n, 1, &k->ledger), DT_OK);
    b.n_tok = n;
    b.n_seq = 1;
    b.seq_start[0] = 0;
    b.seq_start[1] = n;
    for (int32_t t = 0; t < n; t++) {
        b.token[t] = ids[t];
        b.pos[t] = t;
        b.target[t] = -1;
    }
    dt_batch_finish(&b);
    assert_int_equal(dt_model_forward(k->model, &b, false, 0), DT_OK);
    assert_int_equal(dt_model_last_logits(k->model, &b, logits), DT_OK);
    dt_batch_free(&b, &k->ledger);
}

/* Greedy tokens through the cache are those of the whole sequence run anew for each, unless the two best logits are so
 * close that rounding may turn them: sums of at most 64 products of floats in another order differ by less than 64 *
 * 2^-24 = 4e-6 of their size, a few layers deep; 1e-3 is far above. */
TEST(the_cache_gives_the_tokens_of_full_passes)
{
    for (size_t c = 0; c < sizeof configs / sizeof configs[0]; c++) {
        struct stack k;
        open_stack(&k, configs[c], MAX_LEN, 0);
        const int32_t lengths[] = {1, 5, 17, 30, 2, 9};
        int32_t ids[6][MAX_LEN];
        dt_sequence seqs[6], *list[6];
        for (int i = 0; i < 6; i++) {
            for (int32_t t = 0; t < lengths[i]; t++) ids[i][t] = (int32_t)(dt_mix64((uint64_t)(64 * i + t)) % 59);
            seqs[i] = (dt_sequence){.number = (uint64_t)i,
                                    .ids = ids[i],
                                    .n_prompt = lengths[i],
                                    .n_ids = lengths[i],
                                    .max_ids = MAX_LEN - 3 * i};
            list[i] = &seqs[i];
        }
        dt_generate_stats stats;
        const dt_decoder d = dt_decoder_of_model(k.model);
        const dt_generate_options opt = {.sampling = {.greedy = true, .top_p = 1, .repetition_penalty = 1},
                                         .eos = k.mc.eos_token_id,
                                         .n_eos = k.mc.n_eos,
                                         .vocab_size = k.mc.vocab_size,
                                         .n_slots = 4,
                                         .max_tok = 12,
                                         .ledger = &k.ledger};
        assert_int_equal(dt_generate(&d, list, 6, &opt, &stats), DT_OK);
        float logits[257];
        for (int i = 0; i < 6; i++) {
            assert_true(seqs[i].finish == DT_FINISH_EOS || seqs[i].n_ids == seqs[i].max_ids);
            for (int32_t n = seqs[i].n_prompt; n < seqs[i].n_ids; n++) {
                full_logits(&k, ids[i], n, logits);
                float best = -INFINITY;
                for (int64_t v = 0; v < k.mc.vocab_size; v++) best = fmaxf(best, logits[v]);
                if (!(logits[ids[i][n]] >= best - 1e-3f))
                    fail_msg("model %zu, sequence %d, token %d: %g, best %g", c, i, n, logits[ids[i][n]], best);
            }
        }
        close_stack(&k);
    }
}

/* Completions of one prompt, which lie in memory with them, or once for all of them that run: the same tokens, and the
 * same bits of their log-probabilities. With one place for prompts those of the second wait for the last of the
 * first. */
TEST(a_prompt_that_is_shared_gives_the_same_bits)
{
    enum { N = 7, PROMPT = 11, LONGEST = 3 + N - 1 };
    static const struct {
        int32_t n_slots, n_prompts;
        bool numbered;
    } ways[] = {{4, 0, true}, {2, 0, false}, {2, 1, true}, {4, 1, true}, {4, 2, true}, {4, 4, true}, {4, 4, false}};
    static float logps[2][N][MAX_LEN];
    static int32_t ids[2][N][MAX_LEN];
    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
        struct stack k;
        const int to = w > 0; /* the first way is what all are compared with */
        const bool apart = ways[w].n_prompts > 0;
        dt_sequence seqs[N], *list[N];
        memset(logps[to], 0, sizeof logps[to]), memset(ids[to], 0, sizeof ids[to]);
        open_stack(&k, configs[0], apart ? LONGEST : MAX_LEN, ways[w].n_prompts);
        for (int i = 0; i < N; i++) {
            for (int32_t t = 0; t < PROMPT; t++) ids[to][i][t] = (int32_t)(dt_mix64((uint64_t)(t + i / 4 * 64)) % 59);
            seqs[i] = (dt_sequence){.number = (uint64_t)i,
                                    .ids = ids[to][i],
                                    .n_prompt = PROMPT,
                                    .n_ids = PROMPT,
                                    .max_ids = PROMPT + 3 + i,
                                    .logps = logps[to][i],
                                    .prompt_number = ways[w].numbered ? 1 + i / 4 : 0};
            list[i] = &seqs[i];
        }
        dt_generate_stats stats;
        const dt_decoder d = dt_decoder_of_model(k.model);
        const dt_generate_options opt = {.sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
                                         .vocab_size = k.mc.vocab_size,
                                         .n_slots = ways[w].n_slots,
                                         .n_prompts = ways[w].n_prompts,
                                         .max_tok = 8,
                                         .logp = true,
                                         .ledger = &k.ledger};
        assert_int_equal(dt_generate(&d, list, N, &opt, &stats), DT_OK);
        assert_memory_equal(ids[0], ids[to], sizeof ids[0]);
        assert_memory_equal(logps[0], logps[to], sizeof logps[0]);
        /* of those that have theirs in common the last token alone */
        assert_int_equal(stats.n_prompt_tok, apart && ways[w].numbered ? 2 * PROMPT + (N - 2) : N * PROMPT);
        close_stack(&k);
    }
}

/* Tokens that follow a wait are computed from the slot's cache, or the whole text again if it has lost the slot: the
 * same bits. */
TEST(waiting_in_a_slot_or_without_gives_the_same_bits)
{
    enum { N = 7, PROMPT = 11, LONGEST = 20 };
    static const int32_t ends[] = {0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42, 45, 48, 51, 54, 57};
    static const int32_t ways[][2] = {{4, 0}, {2, 0}, {1, 0}, {4, 4}, {2, 1}, {3, 2}};
    static float logps[2][N][MAX_LEN];
    static int32_t ids[2][N][MAX_LEN];
    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
        struct stack k;
        const int to = w > 0;
        dt_sequence seqs[N], *list[N];
        struct answers a = {.seqs = seqs, .n_seqs = N};
        int n_waits = 0;
        memset(logps[to], 0, sizeof logps[to]), memset(ids[to], 0, sizeof ids[to]);
        open_stack(&k, configs[0], ways[w][1] ? LONGEST : MAX_LEN, ways[w][1]);
        for (int i = 0; i < N; i++) {
            for (int32_t t = 0; t < PROMPT; t++) ids[to][i][t] = (int32_t)(dt_mix64((uint64_t)(t + i / 2 * 64)) % 59);
            seqs[i] = (dt_sequence){.number = (uint64_t)i,
                                    .ids = ids[to][i],
                                    .n_prompt = PROMPT,
                                    .n_ids = PROMPT,
                                    .max_ids = PROMPT + LONGEST - 1 - i,
                                    .logps = logps[to][i],
                                    .prompt_number = 1 + i / 2};
            list[i] = &seqs[i];
        }
        dt_generate_stats stats;
        const dt_decoder d = dt_decoder_of_model(k.model);
        const dt_generate_options opt = {.sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
                                         .eos = ends,
                                         .n_eos = sizeof ends / sizeof ends[0],
                                         .vocab_size = k.mc.vocab_size,
                                         .n_slots = ways[w][0],
                                         .n_prompts = ways[w][1],
                                         .max_tok = 8,
                                         .logp = true,
                                         .on_token = wait_at_end,
                                         .on_wait = answer_some,
                                         .ctx = &a,
                                         .ledger = &k.ledger};
        assert_int_equal(dt_generate(&d, list, N, &opt, &stats), DT_OK);
        for (int i = 0; i < N; i++) n_waits += a.n_waits[i];
        assert_true(n_waits > 4);
        assert_memory_equal(ids[0], ids[to], sizeof ids[0]);
        assert_memory_equal(logps[0], logps[to], sizeof logps[0]);
        close_stack(&k);
    }
}

static int make_checkpoint(const char *dir)
{
    struct stack k;
    char path[4096];
    snprintf(path, sizeof path, "%s/checkpoints", dir);
    open_stack(&k, configs[0], MAX_LEN, 0);
    dt_ckpt_meta meta = {.step = 7, .seed = 1, .config = "", .model_config = k.mc.json};
    const dt_err err = dt_checkpoint_save(&k.comm, k.zero, &meta, path, 0, NULL);
    if (err != DT_OK) fprintf(stderr, "%s\n", dt_error_message());
    close_stack(&k);
    return dt_exit_code(err);
}

int main(int argc, char **argv)
{
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    const int status = argc == 3 && strcmp(argv[1], "--make-checkpoint") == 0 ? make_checkpoint(argv[2])
                                                                              : run_listed("generate", NULL, NULL);
    MPI_Finalize();
    return status;
}
