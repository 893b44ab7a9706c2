/* test_model_graphs.c - generation whose steps are recorded as graphs: the tokens of generation without them, and fewer
 * calls of the device.
 * DEVICES: cpu queue */
#include "cases.h"
#include "../src/backends/queue.h"
#include "../src/model/model_private.h"
#include "dtrain/generate/generate.h"
#include "ref_model.h"

enum { V = 61, LAYERS = 4, SLOTS = 3, LEN = 300, N_SEQS = 4, N_NEW = 30 };
static const char *const CONFIGS[] = {
    "{\"model_type\": \"gpt2\", \"n_embd\": 24, \"n_layer\": 4, \"n_head\": 3, \"vocab_size\": 61, \"n_positions\": "
    "320}",
    "{\"model_type\": \"qwen3\", \"hidden_size\": 24, \"intermediate_size\": 28, \"num_hidden_layers\": 4, "
    "\"vocab_size\": 61, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, "
    "\"tie_word_embeddings\": true}",
    "{\"model_type\": \"llama\", \"hidden_size\": 24, \"intermediate_size\": 28, \"num_hidden_layers\": 4, "
    "\"vocab_size\": 61, \"num_attention_heads\": 4, \"max_position_embeddings\": 200, \"rope_scaling\": {\"type\": "
    "\"dynamic\", \"factor\": 2}}",
};
enum { N_CONFIGS = sizeof CONFIGS / sizeof CONFIGS[0] };

/* Prompts of several lengths: one grows over the end of a bucket, one is short, so that the last tokens are another
 * sequence's alone; the fourth waits for a slot. */
static const int32_t PROMPT[N_SEQS] = {240, 5, 60, 7}, NEW[N_SEQS] = {N_NEW, 12, N_NEW, N_NEW};

/* Where a token takes a second, texts are short and of one model. */
static bool is_simulated(void)
{
    const char *device = getenv("DTRAIN_DEVICE");
    return device && strstr(device, "cudasim");
}

typedef struct texts {
    dt_sequence seqs[N_SEQS], *list[N_SEQS];
    int32_t ids[N_SEQS][LEN];
} texts;

static void make_texts(texts *t)
{
    for (int i = 0; i < N_SEQS; i++) {
        const int32_t n = is_simulated() ? 2 + i : PROMPT[i], more = is_simulated() ? 4 + i : NEW[i];
        for (int32_t k = 0; k < n; k++) t->ids[i][k] = (int32_t)(dt_mix64((uint64_t)(i * LEN + k)) % V);
        t->seqs[i] =
            (dt_sequence){.number = (uint64_t)i, .ids = t->ids[i], .n_prompt = n, .n_ids = n, .max_ids = n + more};
        t->list[i] = &t->seqs[i];
    }
}

static bool always(void *self) { return true; }

static void open_model(ref_model *r, const char *config, dt_dtype dtype, bool graphs)
{
    const dt_model_options opt = {.dtype = dtype,
                                  .grad_dtype = dtype,
                                  .max_tok = 260,
                                  .max_seq = SLOTS,
                                  .max_pos = LEN,
                                  .cache_seqs = SLOTS,
                                  .cache_len = LEN,
                                  .cache_prompts = SLOTS,
                                  .cache_prompt_len = LEN,
                                  .max_top = 8,
                                  .graphs = graphs,
                                  .batch_invariant = true};
    if (ref_model_open(r, "test", config, &opt) != DT_OK) fail_msg("%s", dt_error_message());
    r->source.params_resident = always;
}

static dt_generate_options options(ref_model *r, bool penalty)
{
    return (dt_generate_options){
        .sampling = {.temperature = 0.9, .top_p = 0.95, .repetition_penalty = penalty ? 1.2 : 1, .seed = 7},
        .vocab_size = V,
        .n_slots = SLOTS,
        .max_tok = 250,
        .logp = true,
        .ledger = &r->ledger};
}

static int64_t launches(const ref_model *r)
{
    return !strcmp(r->dev.ops->name, "queue") ? dt_queue_counts_of(&r->dev).launches : 0;
}

/* Twice with one model, so that graphs of the first time serve the second; launches and passes of the second. */
static void generate(const char *config, dt_dtype dtype, bool graphs, bool penalty, texts *t, int64_t *calls,
                     int64_t *passes)
{
    ref_model r;
    dt_generate_stats stats;
    open_model(&r, config, dtype, graphs);
    const dt_decoder d = dt_decoder_of_model(r.model);
    const dt_generate_options opt = options(&r, penalty);
    for (int time = 0; time < 2; time++) {
        const int64_t before = launches(&r);
        make_texts(t);
        if (dt_generate(&d, t->list, N_SEQS, &opt, &stats) != DT_OK) fail_msg("%s", dt_error_message());
        *calls = launches(&r) - before, *passes = stats.n_forward;
    }
    assert_false(r.misused);
    ref_model_close(&r);
    assert_int_equal(ref_model_left(&r), 0);
}

static bool same_texts(const texts *a, const texts *b)
{
    bool same = true;
    for (int i = 0; i < N_SEQS; i++)
        same = same && a->seqs[i].n_ids == b->seqs[i].n_ids && a->seqs[i].logp == b->seqs[i].logp &&
               !memcmp(a->ids[i], b->ids[i], (size_t)a->seqs[i].n_ids * sizeof(int32_t));
    return same;
}

/* Without graphs a token costs a launch for each operation of each block, and more for what is around them; with them
 * the copy of the batch, a graph, the copies of rows, random numbers and mask, a graph, and tokens and
 * log-probabilities back: 8, whatever the depth. Passes that come for the first or second time, or bring in a prompt,
 * are as before or cost one launch more: 70 of some 45 passes' worth in the second run, which has seen all of them. */
TEST(graphs_give_the_same_tokens_with_fewer_calls)
{
    for (int i = is_simulated() ? N_CONFIGS - 1 : 0; i < N_CONFIGS; i++)
        for (int way = is_simulated() ? 3 : 0; way < 4; way++) {
            const dt_dtype dtype = way & 1 ? DT_BF16 : DT_F32;
            texts with, without;
            int64_t calls_with, calls_without, passes, same_passes;
            generate(CONFIGS[i], dtype, false, way & 2, &without, &calls_without, &passes);
            generate(CONFIGS[i], dtype, true, way & 2, &with, &calls_with, &same_passes);
            assert_int_equal(passes, same_passes);
            assert_true(same_texts(&with, &without));
            if (calls_without == 0) continue; /* no queue to count in */
            const int64_t prompts = 4;        /* passes that are more than tokens */
            const int64_t of_a_pass = calls_without / passes;
            print_message("%s: %d launches a pass without graphs, %.1f with\n",
                          i == 0   ? "gpt2"
                          : i == 1 ? "qwen3"
                                   : "llama",
                          (int)of_a_pass, (double)calls_with / (double)passes);
            assert_true(of_a_pass >= 8 * LAYERS);
            assert_true(calls_with <= 9 * (passes - prompts) + prompts * (of_a_pass + 8));
        }
}

enum { N_ROLLOUT = 64, PROMPT_LEN = 4, N_STEPS = 256, ROLLOUT_LEN = 300 };
typedef struct rollout {
    dt_sequence seqs[N_ROLLOUT], *list[N_ROLLOUT];
    int32_t ids[N_ROLLOUT][ROLLOUT_LEN];
    int64_t n_graphs; /* recorded */
} rollout;

/* Texts of 4, 8 ... 256 new tokens, all at once, twice. */
static void roll_out(bool graphs, rollout *t)
{
    ref_model r;
    dt_generate_stats stats;
    const dt_model_options how = {.dtype = DT_BF16,
                                  .grad_dtype = DT_BF16,
                                  .max_tok = N_ROLLOUT * PROMPT_LEN,
                                  .max_seq = N_ROLLOUT,
                                  .max_pos = ROLLOUT_LEN,
                                  .cache_seqs = N_ROLLOUT,
                                  .cache_len = ROLLOUT_LEN - PROMPT_LEN,
                                  .cache_prompts = N_ROLLOUT,
                                  .cache_prompt_len = PROMPT_LEN,
                                  .graphs = graphs,
                                  .batch_invariant = true};
    if (ref_model_open(&r, "test", CONFIGS[1], &how) != DT_OK) fail_msg("%s", dt_error_message());
    r.source.params_resident = always;
    const dt_decoder d = dt_decoder_of_model(r.model);
    dt_generate_options opt = options(&r, false);
    opt.n_slots = opt.n_prompts = N_ROLLOUT, opt.max_tok = N_ROLLOUT * PROMPT_LEN;
    for (int time = 0; time < 2; time++) {
        for (int i = 0; i < N_ROLLOUT; i++) {
            for (int k = 0; k < PROMPT_LEN; k++) t->ids[i][k] = (i + k * k) % V;
            t->seqs[i] = (dt_sequence){.number = (uint64_t)i,
                                       .ids = t->ids[i],
                                       .n_prompt = PROMPT_LEN,
                                       .n_ids = PROMPT_LEN,
                                       .max_ids = PROMPT_LEN + N_STEPS / N_ROLLOUT * (i * 37 % N_ROLLOUT + 1)};
            t->list[i] = &t->seqs[i];
        }
        if (dt_generate(&d, t->list, N_ROLLOUT, &opt, &stats) != DT_OK) fail_msg("%s", dt_error_message());
        assert_int_equal(stats.n_forward, 1 + N_STEPS); /* prompts but for their last tokens, which are steps */
    }
    t->n_graphs = dt_queue_counts_of(&r.dev).graphs;
    assert_false(r.misused);
    ref_model_close(&r);
    assert_int_equal(ref_model_left(&r), 0);
}

/* Every number of texts from 64 to 1 occurs, of which steps are filled up to 64, 32 or 16. The blocks have a graph for
 * each of these and one for caches beyond 256 tokens; tokens are drawn by three. */
TEST(a_rollout_whose_texts_end_takes_few_graphs)
{
    const char *device = getenv("DTRAIN_DEVICE");
    if (!device || strcmp(device, "queue")) skip(); /* none counts or it takes long */
    static rollout with, without;
    roll_out(false, &without);
    roll_out(true, &with);
    assert_int_equal(without.n_graphs, 0);
    assert_int_equal(with.n_graphs, 7);
    assert_memory_equal(with.ids, without.ids, sizeof with.ids);
    for (int i = 0; i < N_ROLLOUT; i++) assert_true(with.seqs[i].logp == without.seqs[i].logp);
}

static void step(ref_model *r, dt_batch *b, int32_t slot, int32_t first, int32_t n)
{
    b->n_seq = 1, b->n_tok = n, b->seq_start[0] = 0, b->seq_start[1] = n, b->full_len[0] = first + n;
    for (int32_t i = 0; i < n; i++)
        b->token[i] = (7 * slot + 3 * (first + i)) % V, b->pos[i] = first + i, b->target[i] = -1;
    dt_batch_finish(b);
    assert_int_equal(dt_model_decode(r->model, b, &slot), DT_OK);
}

/* Steps of one slot, filled up with tokens of the others, between two of another. */
static void logits_after_steps_of_others(bool graphs, float logits[V])
{
    ref_model r;
    dt_batch b;
    open_model(&r, CONFIGS[0], DT_F32, graphs);
    assert_int_equal(dt_batch_alloc(&b, SLOTS, SLOTS, &r.ledger), DT_OK);
    for (int32_t slot = 0; slot < SLOTS; slot++) step(&r, &b, slot, 0, SLOTS);
    for (int32_t k = 0; k < 4; k++) step(&r, &b, 0, SLOTS + k, 1);
    step(&r, &b, 1, SLOTS, 1);
    assert_int_equal(dt_model_last_logits(r.model, &b, logits), DT_OK);
    dt_batch_free(&b, &r.ledger);
    ref_model_close(&r);
    assert_int_equal(ref_model_left(&r), 0);
}

TEST(steps_leave_what_other_slots_hold)
{
    float with[V], without[V];
    logits_after_steps_of_others(true, with);
    logits_after_steps_of_others(false, without);
    assert_memory_equal(with, without, sizeof with);
}

/* Lists of the most probable tokens, for beam search. */
TEST(beams_are_the_same_with_graphs)
{
    for (int way = is_simulated() ? 1 : 0; way < 2; way++) {
        texts found[2];
        for (int graphs = 0; graphs < 2; graphs++) {
            ref_model r;
            dt_generate_stats stats;
            open_model(&r, CONFIGS[1], DT_F32, graphs);
            const dt_decoder d = dt_decoder_of_model(r.model);
            dt_generate_options opt = options(&r, way);
            opt.n_prompts = 1;
            opt.beams = (dt_beam_options){.n_beams = 3, .n_return = 1, .length_penalty = 1};
            make_texts(&found[graphs]);
            if (dt_generate(&d, found[graphs].list, N_SEQS, &opt, &stats) != DT_OK) fail_msg("%s", dt_error_message());
            ref_model_close(&r);
        }
        assert_true(same_texts(&found[0], &found[1]));
    }
}

/* More different steps than the table holds. */
TEST(the_least_recently_used_entry_is_evicted)
{
    ref_model r;
    dt_batch b;
    int32_t token[SLOTS], first[40];
    const int32_t slot[SLOTS] = {0, 1, 2};
    open_model(&r, CONFIGS[2], DT_F32, true);
    assert_int_equal(dt_batch_alloc(&b, SLOTS, SLOTS, &r.ledger), DT_OK);
    for (int time = 0; time < 4 && !is_simulated(); time++) {
        dt_model_cache_clear(r.model, -1);
        b.n_seq = b.n_tok = 1, b.seq_start[0] = 0, b.seq_start[1] = 1, b.full_len[0] = 1;
        b.token[0] = 3, b.pos[0] = 0, b.target[0] = -1;
        dt_batch_finish(&b);
        assert_int_equal(dt_model_decode(r.model, &b, slot), DT_OK);
        for (int k = 0; k < 40; k++) { /* 40 choices, each a step of its own */
            const dt_draw d = {.how = {.repetition_penalty = 1, .greedy = true, .temperature = k + 1}, .token = token};
            assert_int_equal(dt_model_draw(r.model, &b, &d), DT_OK);
            if (time == 0)
                first[k] = token[0];
            else
                assert_int_equal(token[0], first[k]);
        }
    }
    dt_batch_free(&b, &r.ledger);
    ref_model_close(&r);
    assert_int_equal(ref_model_left(&r), 0);
}

/* ---- the device's part ------------------------------------------------------------------------------------------- */

/* A graph reads what lies at its addresses when it runs, on the device that has graphs. */
TEST(a_graph_runs_on_what_is_there)
{
    enum { N = 1000 };
    dt_device dev;
    dt_ledger ledger = {0};
    dt_buf x, y, host;
    dt_graph *graph = NULL;
    assert_int_equal(dt_device_open(&dev, "cpu", 0, 1, &ledger), DT_OK);
    if (!dev.ops->graph_begin) {
        dt_device_close(&dev);
        skip();
    }
    assert_int_equal(dt_buf_alloc(&x, &dev, DT_ON_DEVICE, N * sizeof(float), DT_MEM_OTHER), DT_OK);
    assert_int_equal(dt_buf_alloc(&y, &dev, DT_ON_DEVICE, N * sizeof(float), DT_MEM_OTHER), DT_OK);
    assert_int_equal(dt_buf_alloc(&host, &dev, DT_ON_PINNED, N * sizeof(float), DT_MEM_OTHER), DT_OK);
    float *h = host.ptr;
    for (int i = 0; i < N; i++) h[i] = (float)i;
    assert_int_equal(dev.ops->copy(&dev, x.ptr, h, x.nbytes, NULL), DT_OK);
    assert_int_equal(dev.ops->copy(&dev, y.ptr, h, y.nbytes, NULL), DT_OK);
    assert_int_equal(dev.ops->graph_begin(&dev, NULL), DT_OK); /* dropped: it never runs */
    assert_int_equal(dev.ops->zero(&dev, x.ptr, x.nbytes, NULL), DT_OK);
    assert_int_not_equal(dev.ops->stream_sync(&dev, NULL), DT_OK); /* no waits in a graph */
    dt_error_clear();
    assert_int_equal(dev.ops->graph_end(&dev, NULL, NULL), DT_OK);
    assert_int_equal(dev.ops->graph_begin(&dev, NULL), DT_OK);
    assert_int_equal(dev.ops->add(&dev, x.ptr, y.ptr, y.ptr, DT_F32, N, NULL), DT_OK);
    assert_int_equal(dev.ops->copy(&dev, x.ptr, y.ptr, x.nbytes, NULL), DT_OK);
    assert_int_equal(dev.ops->graph_end(&dev, NULL, &graph), DT_OK);
    for (int i = 0; i < 3; i++) assert_int_equal(dev.ops->graph_launch(&dev, graph, NULL), DT_OK);
    assert_int_equal(dev.ops->stream_sync(&dev, NULL), DT_OK);
    assert_int_equal(dev.ops->copy(&dev, h, y.ptr, y.nbytes, NULL), DT_OK);
    assert_int_equal(dev.ops->stream_sync(&dev, NULL), DT_OK);
    for (int i = 0; i < N; i++) assert_true(h[i] == (float)(8 * i)); /* doubled three times */
    dev.ops->graph_destroy(&dev, graph);
    dt_buf_free(&x), dt_buf_free(&y), dt_buf_free(&host);
    dt_device_close(&dev);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
