/* test_count.c - the counting device: its clocks order concurrent work, and the number of launches per block is
 * unchanged. On the simulator of CUDA (DTRAIN_DEVICE=cudasim) the CUDA device has the same launches, and the plan's
 * sizes. */
#include "cases.h"
#include "model_fixture.h"
#include "dtrain/perfmodel/chips.h"
#include "dtrain/comm/comm.h"
#include "dtrain/perfmodel/counting_device.h"
#include "../src/perfmodel/count_private.h"
#include <dlfcn.h>

/* ---- a sink that records the events it receives
 * ------------------------------------------------------------------- */

enum { MOST_LAUNCHES = 4096 };
typedef struct fixture {
    dt_ledger ledger;
    dt_device dev;
    dt_count_sink sink;
    dt_launch launch[MOST_LAUNCHES];
    int n;
} fixture;

/* A second for each byte, and half of one by the other clock. */
static void take(void *self, const dt_launch *l, double seconds[DT_COUNT_CLOCKS])
{
    fixture *f = self;
    assert_true(f->n < MOST_LAUNCHES);
    f->launch[f->n++] = *l;
    seconds[0] = l->memory;
    seconds[1] = l->memory / 2;
}

static int open_count(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *state = f;
    f->sink = (dt_count_sink){take, f};
    return dt_count_open(&f->dev, &f->sink, &f->ledger) == DT_OK ? 0 : -1;
}

static int close_count(void **state)
{
    fixture *f = *state;
    dt_device_close(&f->dev);
    const bool all = atomic_load(&f->ledger.total_now) == 0;
    free(f);
    return all ? 0 : -1;
}

/* Every operation that the CPU has: words of the table from the memory's on. */
TEST(no_operation_is_missing)
{
    for (size_t at = offsetof(dt_device_ops, alloc); at + sizeof(void *) <= sizeof(dt_device_ops);
         at += sizeof(void *)) {
        uintptr_t cpu, count;
        memcpy(&cpu, (const char *)&dt_device_cpu_ops + at, sizeof cpu);
        memcpy(&count, (const char *)&dt_device_count_ops + at, sizeof count);
        if (cpu && !count) fail_msg("the entry at byte %zu of dt_device_ops is missing", at);
    }
}

/* ---- clocks ------------------------------------------------------------------------------------------------------ */

static double now(const fixture *f)
{
    double s[DT_COUNT_CLOCKS];
    dt_count_now(&f->dev, s);
    assert_true(s[1] == s[0] / 2);
    return s[0];
}

TEST_WITH(waiting_work_runs_later_and_other_work_concurrently, open_count, close_count)
{
    fixture *f = *state;
    const dt_device_ops *ops = f->dev.ops;
    dt_stream *other;
    dt_event *event;
    dt_buf b;
    assert_int_equal(dt_buf_alloc(&b, &f->dev, DT_ON_DEVICE, (size_t)1 << 50, DT_MEM_OTHER), DT_OK); /* a petabyte */
    assert_int_equal(ops->stream_create(&f->dev, &other), DT_OK);
    assert_int_equal(ops->event_create(&f->dev, &event), DT_OK);
    ops->zero(&f->dev, b.ptr, 100, NULL);
    ops->event_record(&f->dev, event, NULL);
    ops->zero(&f->dev, b.ptr, 50, NULL);
    ops->zero(&f->dev, b.ptr, 30, other); /* concurrent with the others */
    assert_true(now(f) == 150);
    ops->event_wait(&f->dev, event, other);
    ops->zero(&f->dev, b.ptr, 70, other); /* from 100 on */
    assert_true(now(f) == 170);
    ops->event_sync(&f->dev, event); /* the host is at 100 */
    ops->zero(&f->dev, b.ptr, 10, NULL);
    assert_true(now(f) == 170);
    ops->stream_sync(&f->dev, other);
    ops->zero(&f->dev, b.ptr, 10, NULL); /* not queued before 170, when the stream has long been idle */
    assert_true(now(f) == 180);
    ops->event_destroy(&f->dev, event);
    ops->stream_destroy(&f->dev, other);
    dt_buf_free(&b);
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

static bool is_exchange(dt_exchange x, dt_exchange_kind kind, double near, double far, double rounds)
{
    return x.kind == kind && x.near == near && x.far == far && x.rounds == rounds;
}

TEST_WITH(a_collective_sends_what_its_formula_says, open_count, close_count)
{
    fixture *f = *state;
    dt_comm comm = {0};
    dt_buf b, big;
    assert_int_equal(dt_buf_alloc(&b, &f->dev, DT_ON_DEVICE, 1 << 20, DT_MEM_OTHER), DT_OK);
    assert_int_equal(dt_buf_alloc(&big, &f->dev, DT_ON_DEVICE, 1 << 28, DT_MEM_OTHER), DT_OK);
    float *at = b.ptr;
    assert_int_equal(dt_comm_open_counted(&comm, &f->dev, 16, 8, &(dt_mesh_shape){1, 1, false}), DT_OK);
    assert_int_equal(dt_comm_reduce_scatter(&comm.mesh.sum, at, DT_F32, at + 50000, DT_F32, 100, false, true, NULL),
                     DT_OK);
    assert_true(f->launch[0].node == 7 * 400 && f->launch[0].net == 8 * 400);
    assert_true(is_exchange(f->launch[0].exchange, DT_MESSAGES, 1, 8, 1));
    assert_true(f->launch[0].node + f->launch[0].net == comm.traffic_bytes);
    f->n = 0;
    assert_int_equal(dt_comm_all_gather(&comm.mesh.shard, at, at, 400, NULL), DT_OK);
    /* a piece of the other node's 8 ranks comes by each adapter, and all others' by NVLink at most */
    assert_true(f->launch[0].node == 15 * 400 && f->launch[0].net == 400);
    assert_true(is_exchange(f->launch[0].exchange, DT_RING, 14, 1, 1));
    f->n = 0; /* in any order: of each neighbour the pieces for both nodes, then one sum for the other */
    assert_int_equal(dt_comm_reduce_scatter(&comm.mesh.sum, at, DT_F32, at + 50000, DT_F32, 100, false, false, NULL),
                     DT_OK);
    assert_true(f->launch[0].node == 7 * 2 * 400 && f->launch[0].net == 0 && f->launch[2].net == 400);
    assert_true(is_exchange(f->launch[0].exchange, DT_MESSAGES, 2, 0, 1));
    assert_true(is_exchange(f->launch[2].exchange, DT_MESSAGES, 0, 1, 1));
    f->n = 0; /* blocks of 8 MiB, 15 of them: the staging buffer of 64 MiB is full twice */
    const int64_t count = 2 << 20;
    float *blocks = big.ptr;
    assert_int_equal(
        dt_comm_reduce_scatter(&comm.mesh.sum, blocks, DT_F32, blocks + 16 * count, DT_F32, count, false, true, NULL),
        DT_OK);
    assert_true(is_exchange(f->launch[0].exchange, DT_MESSAGES, 1, 16, 2));
    f->n = 0; /* an empty block is no message, and a broadcast of few bytes is one to every rank */
    const size_t give[16] = {[1] = 400, [9] = 800}, take[16] = {[2] = 100};
    assert_int_equal(dt_comm_all_to_all_v(&comm.mesh.shard, at, give, at + 1000, take, NULL), DT_OK);
    assert_int_equal(dt_comm_broadcast(&comm.mesh.sum, at, 400, 0, NULL), DT_OK);
    assert_true(f->launch[0].node == 400 && f->launch[0].net == 800);
    assert_true(is_exchange(f->launch[0].exchange, DT_MESSAGES, 1, 1, 1));
    assert_true(f->launch[1].node == 7 * 400 && f->launch[1].net == 8 * 400);
    assert_int_equal(dt_comm_agree(&comm, DT_ERR_FAULT), DT_ERR_FAULT);
    dt_comm_close(&comm);
    assert_int_equal(dt_comm_open_counted(&comm, &f->dev, 16, 8, &(dt_mesh_shape){1, 1, true}), DT_OK);
    f->n = 0;
    assert_int_equal(dt_comm_all_gather(&comm.mesh.shard, at, at, 400, NULL), DT_OK);
    assert_int_equal(dt_comm_replicate(&comm.mesh.replicate, at, 400, 400, NULL), DT_OK);
    assert_true(f->launch[0].node == 7 * 400 && f->launch[0].net == 0 && f->launch[1].net == 400);
    assert_true(is_exchange(f->launch[0].exchange, DT_MESSAGES, 1, 0, 1));
    assert_true(is_exchange(f->launch[1].exchange, DT_MESSAGES, 0, 1, 1));
    dt_comm_close(&comm);
    assert_int_equal(dt_comm_open_counted(&comm, &f->dev, 1, 1, &(dt_mesh_shape){1, 1, false}), DT_OK);
    f->n = 0;
    assert_int_equal(dt_comm_all_gather(&comm.mesh.shard, at, at, 400, NULL), DT_OK);
    assert_int_equal(f->n, 0);
    assert_int_equal(dt_comm_all_gather(&comm.mesh.shard, at, at + 1000, 400, NULL), DT_OK); /* its own, elsewhere */
    assert_true(f->n == 1 && f->launch[0].memory == 2 * 400 && f->launch[0].node == 0 && f->launch[0].net == 0);
    dt_comm_close(&comm);
    dt_buf_free(&big);
    dt_buf_free(&b);
}

/* Blocks beyond 2^31 elements and 2^32 bytes. */
TEST_WITH(counts_above_31_bits_do_not_wrap, open_count, close_count)
{
    fixture *f = *state;
    enum { N_RANKS = 8 };
    const int64_t n = INT64_C(3) << 31; /* elements, divisible by the ranks */
    const double bytes = (double)n * sizeof(float), others = N_RANKS - 1;
    dt_comm comm = {0};
    dt_buf b;
    assert_int_equal(dt_buf_alloc(&b, &f->dev, DT_ON_DEVICE, (size_t)1 << 50, DT_MEM_OTHER), DT_OK);
    assert_int_equal(dt_comm_open_counted(&comm, &f->dev, N_RANKS, 4, &(dt_mesh_shape){1, 1, false}), DT_OK);
    const dt_axis *a = &comm.mesh.data;
    char *const x = b.ptr, *const y = x + ((size_t)1 << 49);
    size_t sizes[N_RANKS];
    for (int r = 0; r < N_RANKS; r++) sizes[r] = (size_t)bytes;
    const struct {
        dt_err err;
        double sent;
    } calls[] = {{dt_comm_all_reduce(a, x, DT_F32, n, false, NULL), 2 * others / N_RANKS * bytes},
                 {dt_comm_reduce_scatter(a, x, DT_F32, y, DT_F32, n, false, false, NULL), others * bytes},
                 {dt_comm_all_gather(a, y, x, (size_t)bytes, NULL), others * bytes},
                 {dt_comm_all_to_all_v(a, x, sizes, y, sizes, NULL), others * bytes}};
    double sent = 0;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        assert_int_equal(calls[i].err, DT_OK);
        sent += calls[i].sent;
    }
    assert_true(comm.traffic_bytes == sent);
    dt_comm_close(&comm);
    dt_buf_free(&b);
}

/* ---- time of exchanges ------------------------------------------------------------------------------------------- */

#define US 1e-6

static double seconds_of(const dt_chip *chip, dt_exchange x, double node, double net, bool fractions)
{
    const dt_exchange_time t = dt_exchange_seconds(chip, &x, node, net, fractions);
    return t.latency + fmax(t.node, t.net);
}

static void assert_near(double found, double expected)
{
    if (fabs(found - expected) > 1e-9 * expected) fail_msg("expected %.9g, found %.9g", expected, found);
}

/* 16 ranks on 2 nodes: 14 steps over NVLink and one over the network. */
TEST(a_ring_takes_the_fastest_protocol)
{
    const dt_chip *h100 = dt_chip_named("h100");
    const dt_exchange x = {DT_RING, 14, 1, 1}, near = {DT_RING, 7, 0, 1};
    const struct {
        double nbytes, expected; /* nbytes of a rank's block */
    } several[] = {{64, 6.6 * US + 14 * 1 * US + 2.7 * US + 15 * 64 / (450e9 * 20.4 / 400)},   /* LL, steps as posts */
                   {1 << 20, 14 * US + 14 * 1.9 * US + 4 * US + 15 * 0x1p20 / (0.92 * 450e9)}, /* LL128 */
                   {1 << 28, 8.4 * US + 14 * 3.4 * US + 14 * US + 15 * 0x1p28 / 450e9}},       /* Simple */
        one[] = {{64, 6.6 * US + 7 * 0.6 * US + 7 * 64 / 87.7e9},
                 {1 << 20, 14 * US + 7 * 1.9 * US + 7 * 0x1p20 / (0.92 * 450e9)},
                 {1 << 28, 8.4 * US + 7 * 3.4 * US + 7 * 0x1p28 / 450e9}};
    for (int i = 0; i < 3; i++) {
        /* each adapter takes one of the 8 blocks of the other node, and NVLink all others */
        assert_near(seconds_of(h100, x, 15 * several[i].nbytes, several[i].nbytes, false), several[i].expected);
        assert_near(seconds_of(h100, near, 7 * one[i].nbytes, 0, false), one[i].expected);
    }
    assert_near(seconds_of(h100, near, 7 * 0x1p28, 0, true), 8.4 * US + 7 * 3.4 * US + 7 * 0x1p28 / (0.78 * 450e9));
    /* 32 nodes: at peak rates the adapters limit, at published fractions of them NVLink */
    const dt_exchange far = {DT_RING, 224, 31, 1};
    const double latency = 8.4 * US + 224 * 3.4 * US + 31 * 14 * US;
    assert_near(seconds_of(h100, far, 255 * 0x1p26, 31 * 0x1p26, false), latency + 31 * 0x1p26 / 50e9);
    assert_near(seconds_of(h100, far, 255 * 0x1p26, 31 * 0x1p26, true), latency + 255 * 0x1p26 / (0.78 * 450e9));
    assert_near(seconds_of(h100, (dt_exchange){0}, 450e9, 0, false), 1);
}

TEST(messages_wait_for_their_posts)
{
    const dt_chip *h100 = dt_chip_named("h100");
    assert_near(seconds_of(h100, (dt_exchange){DT_MESSAGES, 1, 0, 1}, 4500, 0, false), 8.4 * US + 3.4 * US + 1e-8);
    /* two rounds with two messages to each neighbour */
    assert_near(seconds_of(h100, (dt_exchange){DT_MESSAGES, 2, 0, 2}, 0, 0, false), 2 * (8.4 * US + 2 * 3.4 * US));
    /* one round with messages to 100 ranks of other nodes */
    assert_near(seconds_of(h100, (dt_exchange){DT_MESSAGES, 0, 100, 1}, 0, 50e3, true),
                8.4 * US + 14 * US + 100 * 3 * US + 1e-6 / 0.94);
}

/* 0.189 of the kernels' time for exchanges of 1.189 x 1.102 - 1 of it */
TEST(exchanges_take_time_from_kernels_by_their_bytes)
{
    const dt_chip *h100 = dt_chip_named("h100");
    const dt_exchange ring = {DT_RING, 14, 1, 1}, one_per_node = {DT_RING, 0, 1, 1}, messages = {DT_MESSAGES, 1, 8, 1};
    const double of_1 = 0.189 / (1.189 * 1.102 - 1) / 0.78;
    assert_near(dt_exchange_interference(h100, &ring, 450e9, 30e9), of_1);
    assert_near(dt_exchange_interference(h100, &one_per_node, 0, 450e9), of_1);
    assert_near(dt_exchange_interference(h100, &messages, 400e9, 50e9), of_1);
    assert_true(dt_exchange_interference(h100, &(dt_exchange){0}, 0, 0) == 0);
}

/* docs/data/published-collectives.csv: bus bandwidths of rings as others measured them. */
TEST(rings_are_as_fast_as_published_ones)
{
    char line[512], chip[32], within[8];
    double nodes, nbytes, published, predicted;
    int n = 0, n_outside = 0;
    FILE *in = fopen("docs/data/published-collectives.csv", "r");
    assert_non_null(in);
    while (fgets(line, sizeof line, in)) {
        if (sscanf(line, "%*[^,],%*[^,],%31[^,],%lf,%lf,%lf,%lf,%*[^,],%7s", chip, &nodes, &nbytes, &published,
                   &predicted, within) != 6)
            continue;
        const double N = 8 * nodes, share = nbytes / N;
        const double s = seconds_of(dt_chip_named(chip), (dt_exchange){DT_RING, N - nodes, nodes - 1, 1},
                                    (N - 1) * share, (N - 8) / 8 * share, true);
        const double found = nbytes / s * (N - 1) / N * 1e-9;
        const bool inside = fabs(found / published - 1) <= 0.1;
        if (fabs(found / predicted - 1) > 0.005) fail_msg("%s: found %.1f GB/s", line, found);
        if (inside != !strcmp(within, "yes")) fail_msg("%s: the deviation is %.3f", line, found / published - 1);
        n++, n_outside += !inside;
    }
    fclose(in);
    assert_true(n >= 8 && n_outside <= 1);
}

/* ---- a model on it ----------------------------------------------------------------------------------------------- */

#define PLAIN(family)                                                                                                  \
    "\"model_type\": \"" family "\", \"hidden_size\": 128, \"intermediate_size\": 320, \"num_attention_heads\": 4, "   \
    "\"num_key_value_heads\": 2, \"vocab_size\": 264"
#define LLAMA PLAIN("llama")
#define GPT2                                                                                                           \
    "\"model_type\": \"gpt2\", \"n_embd\": 128, \"n_head\": 4, \"vocab_size\": 257, \"n_positions\": 64, "             \
    "\"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0"
#define QWEN3 PLAIN("qwen3") ", \"head_dim\": 32"
#define EXPERTS PLAIN("qwen3_moe") ", \"num_experts\": 6, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 64"

#define GEMMA(family) PLAIN(family) ", \"head_dim\": 256"

typedef struct launches {
    int forward, head, backward, token;
} launches;

typedef struct plain_source {
    dt_buf params, grads; /* of the largest unit: every unit's */
    dt_dtype dtype;
    const dt_unit *units;
} plain_source;

static dt_err params_acquire(void *self, int unit, dt_param_view *view)
{
    const plain_source *s = self;
    *view = (dt_param_view){.part[DT_TRAINED] = {s->params.ptr, s->dtype}};
    return DT_OK;
}
static dt_err grads_acquire(void *self, int unit, dt_grad_view *view)
{
    const plain_source *s = self;
    *view = (dt_grad_view){s->grads.ptr, DT_F32, false};
    return DT_OK;
}
static dt_err release(void *self, int unit) { return DT_OK; }

static void json_of(char *out, size_t size, const char *shape, int n_layers)
{
    snprintf(out, size, "{%s, \"%s\": %d}", shape, strstr(shape, "n_embd") ? "n_layer" : "num_hidden_layers", n_layers);
}

static void fill_batch(dt_batch *b, dt_ledger *ledger, int64_t n_vocab)
{
    const int32_t lens[] = {32, 32};
    assert_int_equal(dt_batch_alloc(b, 64, 64, ledger), DT_OK);
    ref_batch_fill(b, n_vocab, 0, 2, lens, 0);
}

static launches of_step(dt_model *m, const dt_batch *b, long long (*count)(void *), void *self)
{
    float u[64];
    for (int i = 0; i < 64; i++) u[i] = 1;
    const long long from = count(self);
    assert_int_equal(dt_model_forward(m, b, true, 0), DT_OK);
    const long long head = count(self);
    assert_int_equal(
        dt_model_head(m, b, &(dt_head_pass){.inv_temperature = 1, .u = u}, &(dt_head_results){.entropy = u}), DT_OK);
    const long long backward = count(self);
    assert_int_equal(dt_model_backward(m, b), DT_OK);
    return (launches){
        .forward = (int)(head - from), .head = (int)(backward - head), .backward = (int)(count(self) - backward)};
}

static long long counted(void *self) { return ((const fixture *)self)->n; }

/* Of the next token of two sequences. */
static int of_token(fixture *f, dt_model *m, const dt_batch *like)
{
    dt_batch b;
    assert_int_equal(dt_batch_alloc(&b, 2, 2, &f->ledger), DT_OK);
    for (int i = 0; i < 2; i++) b.token[i] = like->token[i], b.target[i] = -1, b.seq_start[i + 1] = i + 1;
    b.n_tok = b.n_seq = 2;
    dt_batch_finish(&b);
    const int from = f->n;
    assert_int_equal(dt_model_decode(m, &b, (const int32_t[]){0, 1}), DT_OK);
    dt_batch_free(&b, &f->ledger);
    return f->n - from;
}

static launches launches_of(fixture *f, const char *shape, int n_layers, dt_dtype dtype, dt_recompute recompute)
{
    char json[512];
    dt_model_config mc = {0};
    dt_unit *units;
    dt_model *m;
    dt_batch b;
    int n_units;
    int64_t largest = 0;
    dt_model_options opt = ref_options(64, 64, dtype);
    opt.recompute = recompute, opt.cache_seqs = 2, opt.cache_len = 64;
    json_of(json, sizeof json, shape, n_layers);
    assert_int_equal(dt_model_config_parse(&mc, "test", json), DT_OK);
    assert_int_equal(dt_model_make_units(&mc, &units, &n_units), DT_OK);
    for (int u = 0; u < n_units; u++) largest = dt_max_i64(largest, units[u].flat_len[DT_TRAINED]);
    plain_source s = {.dtype = dtype, .units = units};
    const dt_param_source source = {&s, params_acquire, release, grads_acquire, release, false};
    const size_t nbytes = (size_t)largest * sizeof(float);
    assert_int_equal(dt_buf_alloc(&s.params, &f->dev, DT_ON_DEVICE, nbytes, DT_MEM_PARAMS), DT_OK);
    assert_int_equal(dt_buf_alloc(&s.grads, &f->dev, DT_ON_DEVICE, nbytes, DT_MEM_GRADS), DT_OK);
    assert_int_equal(dt_model_open(&m, &mc, &opt, units, n_units, &f->dev, &source, NULL, NULL), DT_OK);
    fill_batch(&b, &f->ledger, mc.vocab_size);
    f->n = 0;
    launches n = of_step(m, &b, counted, f);
    n.token = of_token(f, m, &b);
    dt_batch_free(&b, &f->ledger);
    dt_model_close(m);
    dt_buf_free(&s.params), dt_buf_free(&s.grads);
    dt_model_free_units(units, n_units);
    dt_model_config_free(&mc);
    return n;
}

/* Of one block of the model, by the difference that a block makes. */
static launches of_block(fixture *f, const char *shape, dt_recompute recompute)
{
    const launches two = launches_of(f, shape, 2, DT_BF16, recompute),
                   one = launches_of(f, shape, 1, DT_BF16, recompute);
    assert_int_equal(two.head, one.head);
    return (launches){two.forward - one.forward, 0, two.backward - one.backward, two.token - one.token};
}

/* A number that grows is a kernel that was fused and is not any more; one that falls is to be written here and in
 * docs/gpu.md.
 *
 * Forward: norm, qkv, heads (rotation; norms of heads, too), attention, matmul with the residual, norm, gate and up,
 * activation, matmul with the residual. GPT-2 has no rotation, and its activation is the matmul's. Backward: of each
 * matmul two, of each norm two, the sums of blocks apart, of attention three. Experts: logits, routing, order, rows of
 * tokens, gate and up, activation, down, sums with the residual. */
TEST_WITH(a_block_has_the_launches_that_it_had, open_count, close_count)
{
    static const struct {
        const char *shape;
        int forward, backward, recomputed, token;
    } blocks[] = {{LLAMA, 9, 17, 3, 9},
                  {GPT2, 7, 23, 4, 8},
                  {QWEN3, 9, 18, 4, 9},
                  {PLAIN("olmo2"), 13, 23, 4, 13},
                  {PLAIN("granite"), 9, 17, 3, 9},
                  {PLAIN("smollm3"), 9, 17, 3, 9},
                  {PLAIN("olmo3"), 13, 23, 4, 13},
                  {PLAIN("phi3"), 9, 17, 3, 9},
                  {PLAIN("glm"), 9, 19, 3, 9},
                  {PLAIN("qwen2"), 9, 19, 3, 9},
                  {PLAIN("ministral3"), 9, 17, 3, 9},
                  {PLAIN("glm4"), 13, 23, 3, 13},
                  {GEMMA("gemma2"), 13, 22, 3, 13},
                  {GEMMA("gemma3_text"), 13, 23, 4, 13},
                  {EXPERTS, 14, 25, 4, 14}};
    bool ok = true;
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        const launches all = of_block(*state, blocks[i].shape, DT_RECOMPUTE_NONE),
                       some = of_block(*state, blocks[i].shape, DT_RECOMPUTE_SELECTIVE);
        const int recomputed = some.forward + some.backward - all.forward - all.backward;
        if (all.forward == blocks[i].forward && all.backward == blocks[i].backward &&
            recomputed == blocks[i].recomputed && all.token == blocks[i].token)
            continue;
        print_error(
            "a block of {%s}: %d launches forward, %d backward, %d recomputed, %d for a token; expected %d, %d, "
            "%d, %d\n",
            blocks[i].shape, all.forward, all.backward, recomputed, all.token, blocks[i].forward, blocks[i].backward,
            blocks[i].recomputed, blocks[i].token);
        ok = false;
    }
    assert_true(ok);
}

/* ---- the CUDA device makes as many ------------------------------------------------------------------------------- */

/* sim_n_launches of the object that the device came from; NULL: it is another device. */
static long long (*find_counter(const dt_device *dev))(void)
{
    Dl_info info;
    long long (*counter)(void) = NULL;
    void *object = dladdr(dev->ops, &info) ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *found = object ? dlsym(object, "sim_n_launches") : NULL;
    memcpy(&counter, &found, sizeof counter);
    return counter;
}

static long long simulated(void *self)
{
    long long (*const *counter)(void) = self;
    return (*counter)();
}

TEST_WITH(a_step_has_the_launches_of_the_cuda_device, open_count, close_count)
{
    static const struct {
        const char *shape;
        dt_dtype dtype;
    } cases[] = {{LLAMA, DT_BF16}, {GPT2, DT_BF16}, {QWEN3, DT_BF16},   {LLAMA, DT_F32},
                 {GPT2, DT_F32},   {GPT2, DT_F16},  {EXPERTS, DT_BF16}, {EXPERTS, DT_F32}};
    fixture *f = *state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char json[512];
        ref_model r;
        dt_batch b;
        const dt_model_options opt = ref_options(64, 64, cases[i].dtype);
        json_of(json, sizeof json, cases[i].shape, 1);
        assert_int_equal(ref_model_open(&r, "test", json, &opt), DT_OK);
        long long (*counter)(void) = find_counter(&r.dev);
        if (!counter) {
            ref_model_close(&r);
            skip();
        }
        fill_batch(&b, &r.ledger, r.mc.vocab_size);
        (void)of_step(r.model, &b, simulated, &counter); /* the library's forms are tried, weights are copied */
        ref_model_forget_grads(&r);
        const launches cuda = of_step(r.model, &b, simulated, &counter);
        const launches mine = launches_of(f, cases[i].shape, 1, cases[i].dtype, DT_RECOMPUTE_NONE);
        if (cuda.forward != mine.forward || cuda.head != mine.head || cuda.backward != mine.backward)
            fail_msg("{%s} in %s: the CUDA device makes %d, %d, %d launches, %d, %d, %d are counted", cases[i].shape,
                     dt_dtype_name(cases[i].dtype), cuda.forward, cuda.head, cuda.backward, mine.forward, mine.head,
                     mine.backward);
        close_model(&r, &b);
    }
}

/* Which way a matmul takes: what the library has not in one kernel; odd extents, which are cut where they are large,
 * and then take the simulator some tenths of a second. */
enum { ROOM = 4 << 20 };

static dt_matmul matmul(char *at, const int64_t size[3], dt_dtype dt, int form, int way)
{
    const int64_t m = size[0], n = size[1], k = size[2];
    const bool ta = form & 1, tb = form >> 1;
    dt_matmul mm = {.m = m, .n = n, .k = k, .trans_a = ta, .trans_b = tb, .act = DT_ACT_GELU_TANH};
    mm.lda = ta ? m : k, mm.ldb = tb ? k : n, mm.ldc = mm.ldd = mm.ld_aux = n;
    mm.dt = mm.addend_dtype = mm.c_dtype = dt;
    if (way == 1) mm.c_dtype = DT_F32, mm.accumulate = true;
    if (way == 2) mm.bias = at + 3 * ROOM, mm.addend = at + 2 * ROOM;
    if (way == 3) mm.bias = at + 3 * ROOM, mm.epilogue = DT_EPILOGUE_ACT, mm.aux = at + 3 * ROOM + 65536;
    if (way == 4) mm.epilogue = DT_EPILOGUE_ACT_BACKWARD, mm.aux = at + 3 * ROOM, mm.sums_of = DT_SUMS_OF_B;
    mm.sums = at + 3 * ROOM + ROOM / 2, mm.sums_dtype = DT_F32;
    return mm;
}

static void expect_launches(fixture *f, dt_device *cuda, long long (*counter)(void), char *at, const dt_matmul *mm)
{
    void *a = at, *b = at + ROOM, *c = at + 2 * ROOM;
    const bool small = mm->m < 500;
    if (small && cuda->ops->matmul(cuda, mm, a, b, c, NULL) != DT_OK) fail_msg("%s", dt_error_message());
    const long long from = counter(); /* now the form was tried */
    assert_int_equal(cuda->ops->matmul(cuda, mm, a, b, c, NULL), DT_OK);
    const long long made = counter() - from;
    f->n = 0;
    assert_int_equal(f->dev.ops->matmul(&f->dev, mm, a, b, c, NULL), DT_OK);
    if (f->n == made) return;
    fail_msg("%dx%dx%d, A%s, B%s, %s, epilogue %d%s: %d launches are counted, the CUDA device makes %d", (int)mm->m,
             (int)mm->n, (int)mm->k, mm->trans_a ? "'" : "", mm->trans_b ? "'" : "", dt_dtype_name(mm->dt),
             (int)mm->epilogue, mm->bias ? ", bias" : "", f->n, (int)made);
}

TEST_WITH(a_matmul_has_the_launches_of_the_cuda_device, open_count, close_count)
{
    static const int64_t small[][3] = {{64, 64, 64}, {77, 131, 95}, {1, 8, 8}},
                         large[][3] = {{512, 521, 520}, {513, 520, 519}};
    static const dt_dtype types[] = {DT_BF16, DT_F16, DT_F32};
    fixture *f = *state;
    dt_device cuda;
    dt_buf b;
    assert_int_equal(dt_device_open(&cuda, "cpu", 0, 1, &f->ledger), DT_OK);
    long long (*counter)(void) = find_counter(&cuda);
    assert_int_equal(dt_buf_alloc_zeroed(&b, &cuda, DT_ON_DEVICE, (size_t)4 * ROOM, DT_MEM_OTHER), DT_OK);
    for (int i = 0; counter && i < 3 * 3 * 3 * 5; i++) {
        const dt_matmul mm = matmul(b.ptr, small[i % 3], types[i / 3 % 3], i / 9 % 3, i / 27);
        expect_launches(f, &cuda, counter, b.ptr, &mm);
    }
    for (int i = 0; counter && i < 2 * 3 * 2; i++) {
        const dt_matmul mm = matmul(b.ptr, large[i % 2], DT_BF16, i / 2 % 3, i / 6);
        expect_launches(f, &cuda, counter, b.ptr, &mm);
    }
    assert_int_equal(cuda.ops->stream_sync(&cuda, NULL), DT_OK);
    for (int i = 0; counter && i < 2 * 3 * 2 * 2; i++) { /* B of int8, of nf4 */
        dt_matmul mm = matmul(b.ptr, i % 2 ? large[1] : small[1], types[i / 2 % 3], i / 6 % 2 * 2, 0);
        mm.b_scaled = (dt_scaled){.how = DT_SCALE_ROWS, .stored = DT_I8, .scale = (const float *)b.ptr};
        if (i / 12) mm.b_scaled = (dt_scaled){.how = DT_SCALE_NF4, .stored = DT_NF4X2, .scale = b.ptr, .blocks = b.ptr};
        expect_launches(f, &cuda, counter, b.ptr, &mm);
    }
    assert_int_equal(cuda.ops->stream_sync(&cuda, NULL), DT_OK);
    dt_buf_free(&b);
    dt_device_close(&cuda);
    if (!counter) skip();
}

/* Each expert's matrix is decoded once, and the others' rows are not moved for it. */
TEST_WITH(quantised_experts_move_each_matrix_once, open_count, close_count)
{
    enum { E = 16, M = 4096, N = 256, K = 512 };
    fixture *f = *state;
    const int32_t start[E + 1] = {0};
    float table[4] = {0};
    dt_matmul mm = {.m = M, .n = N, .k = K, .lda = K, .ldb = K, .ldc = N, .trans_b = true, .dt = DT_BF16};
    mm.c_dtype = DT_BF16, mm.n_groups = E, mm.group_start = start, mm.group_stride = N * K;
    mm.b_scaled = (dt_scaled){.how = DT_SCALE_NF4, .stored = DT_NF4X2, .scale = table};
    mm.b_scaled.blocks = (const uint8_t *)table;
    assert_int_equal(f->dev.ops->matmul(&f->dev, &mm, table, table, table, NULL), DT_OK);
    double nbytes = 0;
    for (int i = 0; i < f->n; i++) nbytes += f->launch[i].memory;
    const double rows = 2.0 * M * (K + N), matrices = (0.5 + 2 * 2) * E * N * K; /* read in 4 bits, written, read */
    assert_true(f->n == 2 * E && nbytes > rows + matrices && nbytes < 1.05 * (rows + matrices));
}

/* ---- and has the sizes of a plan --------------------------------------------------------------------------------- */

static void expect_sizes(const dt_device *planned, const dt_device *cuda, int64_t n)
{
    const dt_device_ops *p = planned->ops, *c = cuda->ops;
    const dt_token_rows rows = {.n_rows = n, .n_vocab = 1000 * n, .logits_ld = 1000 * n};
    dt_attention at = {.n_seq = 2, .n_heads = 8, .n_kv_heads = 2, .head_dim = 64, .dt = DT_BF16};
    at.n_tok = 2 * (int32_t)n, at.max_q_len = at.max_kv_len = (int32_t)n;
    assert_int_equal(p->norm_scratch_elems(planned, n), c->norm_scratch_elems(cuda, n));
    assert_int_equal(p->classifier_rows(planned, 1000 * n, n), c->classifier_rows(cuda, 1000 * n, n));
    assert_int_equal(p->draw_scratch_nbytes(planned, &rows), c->draw_scratch_nbytes(cuda, &rows));
    for (int by_library = 0; by_library < 2; by_library++) {
        at.by_library = by_library;
        assert_int_equal(p->attention_scratch_elems(planned, &at), c->attention_scratch_elems(cuda, &at));
    }
}

TEST(a_plan_has_the_sizes_of_the_cuda_device)
{
    dt_ledger ledger = {0};
    dt_device planned, cuda;
    assert_int_equal(dt_device_open_to_plan(&planned, "cuda", 1, &ledger), DT_OK); /* everywhere */
    assert_string_equal(planned.ops->name, "cuda");
    assert_true(planned.ops->own_memory && dt_device_overhead(&planned) > (size_t)512 << 20);
    assert_int_equal(dt_device_open(&cuda, "cpu", 0, 1, &ledger), DT_OK);
    const bool is_cuda = find_counter(&cuda) != NULL;
    for (int64_t n = 1; is_cuda && n < 20000; n = 3 * n + 5) expect_sizes(&planned, &cuda, n);
    if (is_cuda) {
        assert_int_equal(planned.ops->stream_nbytes, cuda.ops->stream_nbytes);
        assert_int_equal(dt_device_overhead(&planned), dt_device_overhead(&cuda));
    }
    dt_device_close(&cuda);
    dt_device_close(&planned);
    if (!is_cuda) skip();
}

int main(void) { return run_listed(NULL, NULL, NULL); }
