/* test_device_attention_library.c - attention that a library of the device may compute (dt_attention.by_library). The
 * library matches plain loops in double, gives the same bits in a repeated call, and writes nothing outside its
 * outputs. Without a library the device's own kernels compute the call.
 * DEVICES: cpu queue */
#include "device_fixture.h"
#include "dtrain/device/device_check.h"
#include "../src/backends/backend.h"
#include <dlfcn.h>

enum { MAX_SEQ = 4 };

/* Sequences of one length, q, k and v side by side in rows with a gap after them, as the model stores them. */
typedef struct library_case {
    int n_seq, len, n_heads, n_kv_heads, head_dim, gap;
    bool bidirectional;
} library_case;

static const library_case cases[] = {
    {2, 128, 2, 2, 64, 0, false}, {1, 200, 4, 2, 128, 0, false}, {3, 72, 4, 1, 64, 16, false},
    {2, 136, 2, 2, 72, 0, false}, {2, 64, 4, 2, 80, 0, false},   {1, 160, 2, 1, 96, 8, false},
    {2, 97, 4, 4, 64, 0, false}, /* no multiple of anything */
    {2, 130, 4, 2, 64, 0, true},  {1, 128, 2, 2, 128, 0, true},
};

typedef struct problem {
    dt_attention at;
    int32_t q_start[MAX_SEQ + 1], kv_len[MAX_SEQ];
    int64_t k, v; /* columns of qkv */
    ref_array qkv, dout;
} problem;

typedef struct results {
    ref_array out, lse, dqkv;
} results;

static void make_problem(problem *p, const library_case *c, dt_dtype dt)
{
    memset(p, 0, sizeof *p);
    const int64_t d = c->head_dim, width = (c->n_heads + 2 * c->n_kv_heads) * d + c->gap;
    for (int s = 0; s <= c->n_seq; s++) p->q_start[s] = s * c->len;
    for (int s = 0; s < c->n_seq; s++) p->kv_len[s] = c->len;
    p->k = c->n_heads * d, p->v = p->k + c->n_kv_heads * d;
    p->at = (dt_attention){.n_seq = c->n_seq,
                           .n_heads = c->n_heads,
                           .n_kv_heads = c->n_kv_heads,
                           .head_dim = c->head_dim,
                           .q_start = p->q_start,
                           .kv_start = p->q_start,
                           .kv_len = p->kv_len,
                           .n_tok = c->n_seq * c->len,
                           .max_q_len = c->len,
                           .max_kv_len = c->len,
                           .q_ld = width,
                           .kv_ld = width,
                           .o_ld = c->n_heads * d,
                           .scale = 1.0f / sqrtf((float)c->head_dim),
                           .bidirectional = c->bidirectional,
                           .dt = dt,
                           .by_library = true};
    p->qkv = ref_random(dt, p->at.n_tok * width, 1, 2.0);
    p->dout = ref_random(dt, p->at.n_tok * p->at.o_ld, 4, 1.0);
}

static void drop_problem(problem *p) { ref_drop(&p->qkv), ref_drop(&p->dout); }
static void drop_results(results *r) { ref_drop(&r->out), ref_drop(&r->lse), ref_drop(&r->dqkv); }

static results compute(fixture *f, problem *p)
{
    dt_attention at = p->at;
    results r = {ref_new(at.dt, at.n_tok * at.o_ld), ref_new(DT_F32, (int64_t)at.n_tok * at.n_heads),
                 ref_new(at.dt, at.n_tok * at.q_ld)};
    ref_array scratch = ref_new(DT_F32, OPS(f)->attention_scratch_elems(&f->dev, &at));
    for (int backward = 0; backward < 2; backward++) {
        at.q_start = at.kv_start = ARR(p->q_start, at.n_seq + 1);
        at.kv_len = ARR(p->kv_len, at.n_seq);
        if (!backward)
            RUN(attention_forward, &at, ON(p->qkv), ON_FROM(p->qkv, p->k), ON_FROM(p->qkv, p->v), ON(r.out), ON(r.lse));
        else
            RUN(attention_backward, &at, ON(p->qkv), ON_FROM(p->qkv, p->k), ON_FROM(p->qkv, p->v), ON(r.out), ON(r.lse),
                ON(p->dout), ON(r.dqkv), ON_FROM(r.dqkv, p->k), ON_FROM(r.dqkv, p->v), ON(scratch));
    }
    ref_drop(&scratch);
    return r;
}

/* Says what the library will do, so that a log shows what was tested. */
static int make_ready(fixture *f, const library_case *c, const dt_attention *at)
{
    int ready = 0;
    char why[512] = "the device has no library";
    if (OPS(f)->attention_prepare)
        assert_int_equal(OPS(f)->attention_prepare(&f->dev, at, true, &ready, why, sizeof why), DT_OK);
    assert_true(*why || ready == (DT_READY_FORWARD | DT_READY_BACKWARD));
    print_message("%s, %d x %d, %d/%d heads of %d%s: forward by %s, backward by %s%s%s\n", dt_dtype_name(at->dt),
                  c->n_seq, c->len, c->n_heads, c->n_kv_heads, c->head_dim, c->bidirectional ? ", both directions" : "",
                  ready & DT_READY_FORWARD ? "the library" : "the device",
                  ready & DT_READY_BACKWARD ? "the library" : "the device", *why ? "; " : "", why);
    return ready;
}

static void same_bits(const ref_array *a, const ref_array *b) { assert_memory_equal(a->p, b->p, ref_bytes(a)); }

/* The gap after v must stay NaN. */
static void clear_gaps(const problem *p, const library_case *c, ref_array *dqkv, double *want)
{
    const int64_t ld = p->at.q_ld;
    for (int64_t r = 0; r < p->at.n_tok; r++)
        for (int64_t i = ld - c->gap; i < ld; i++) {
            assert_true(isnan(ref_get(dqkv, r * ld + i)));
            ref_set(dqkv, r * ld + i, 0);
            want[r * ld + i] = 0;
        }
}

/* Scores are below 4 sqrt(d) in size, and their errors those of sums of d products (test_device_attention.c); P, and
 * backward its gradient and out, are rounded to the type before they meet |v|, |k|, |q| <= 2, and a key is summed over
 * its queries. */
static void check(fixture *f, const library_case *c, dt_dtype dt)
{
    problem p;
    make_problem(&p, c, dt);
    const int64_t n_out = p.at.n_tok * p.at.o_ld, n_lse = (int64_t)p.at.n_tok * c->n_heads,
                  n_qkv = p.at.n_tok * p.at.q_ld;
    double *qkv = ref_doubles(&p.qkv), *dout = ref_doubles(&p.dout), *out = calloc((size_t)n_out, sizeof *out),
           *lse = calloc((size_t)n_lse, sizeof *lse), *dqkv = calloc((size_t)n_qkv, sizeof *dqkv);
    make_ready(f, c, &p.at);
    results r = compute(f, &p), again = compute(f, &p);
    same_bits(&r.out, &again.out);
    same_bits(&r.lse, &again.lse);
    same_bits(&r.dqkv, &again.dqkv);
    ref_attention_forward(&p.at, qkv, qkv + p.k, qkv + p.v, out, lse);
    ref_attention_backward(&p.at, qkv, qkv + p.k, qkv + p.v, dout, dqkv, dqkv + p.k, dqkv + p.v, NULL);
    clear_gaps(&p, c, &r.dqkv, dqkv);
    const double unit = dt_roundoff(dt), scores = 0x1p-24 * (4 + sqrt((double)c->head_dim)) * sqrt((double)c->head_dim);
    assert_true(ref_near(&r.out, out, 2 * (8 * scores + unit), "out"));
    assert_true(ref_near(&r.lse, lse, 8 * scores, "lse"));
    assert_true(ref_rms_near(&r.out, out, 2 * unit, "out"));
    assert_true(ref_near(&r.dqkv, dqkv, 32 * (scores + unit) * (1 + ref_largest(dqkv, n_qkv)), "dqkv"));
    assert_true(ref_rms_near(&r.dqkv, dqkv, 4 * unit, "dqkv"));
    free(qkv), free(dout), free(out), free(lse), free(dqkv);
    drop_results(&r), drop_results(&again), drop_problem(&p);
}

TEST(a_library_computes_attention_and_its_gradient)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check(*state, &cases[i], DT_BF16);
        check(*state, &cases[i], DT_F16);
    }
}

/* What the flag promises is what a library relies on: without it nothing of a library is asked for. */
TEST(what_a_library_refuses_it_names)
{
    fixture *f = *state;
    const library_case c = cases[0];
    problem p;
    int ready;
    char why[512];
    make_problem(&p, &c, DT_BF16);
    if (!OPS(f)->attention_prepare) {
        print_message("SKIPPED: the device %s has no library\n", OPS(f)->name);
        drop_problem(&p);
        return;
    }
    enum { REFUSED = 9 };
    dt_attention refused[REFUSED] = {p.at, p.at, p.at, p.at, p.at, p.at, p.at, p.at, p.at};
    refused[0].dt = DT_F32;
    refused[1].dropout_p = 0.1f;
    refused[2].window = 5;
    refused[3].n_tok--;
    refused[4].head_dim = 60;
    refused[5].softcap = 50;
    refused[6].sinks = p.qkv.p;
    refused[7].block = 4;
    refused[8].v_head_dim = 8;
    assert_null(dt_attention_obstacle(&p.at));
    for (int i = 0; i < REFUSED; i++) {
        ready = -1;
        assert_int_equal(OPS(f)->attention_prepare(&f->dev, &refused[i], true, &ready, why, sizeof why), DT_OK);
        assert_int_equal(ready, 0);
        assert_string_equal(why, dt_attention_obstacle(&refused[i])); /* what --check says without a GPU */
    }
    drop_problem(&p);
}

static void plans_are_left(const char *how, const char *because)
{
    const char *name = getenv("DTRAIN_DEVICE");
    dt_device dev;
    dt_ledger ledger = {0};
    problem p;
    int ready = -1;
    char why[512];
    if (!name || !strstr(name, "cudasim")) skip();
    setenv("CUDA_SIM_CUDNN", how, 1);
    assert_int_equal(dt_device_open(&dev, "cpu", 0, 1, &ledger), DT_OK);
    const library_case small = {1, 16, 2, 1, 16, 0, false};
    make_problem(&p, &small, DT_BF16);
    for (int backward = 0; backward < 2; backward++) {
        p.at.bidirectional = backward; /* another shape */
        assert_int_equal(dev.ops->attention_prepare(&dev, &p.at, backward, &ready, why, sizeof why), DT_OK);
        assert_int_equal(ready, 0);
        assert_string_equal(why, because);
    }
    assert_string_equal(dt_error_message(), "");
    drop_problem(&p);
    dt_device_close(&dev);
    unsetenv("CUDA_SIM_CUDNN");
}

/* Plans of the simulator's cuDNN. */
TEST(plans_that_fail_are_rejected)
{
    plans_are_left("fails", "forward cannot run: cuDNN: CUDNN_STATUS_EXECUTION_FAILED");
}
TEST(plans_that_compute_nothing_are_rejected)
{
    plans_are_left("idle", "forward differs from dtrain's own kernels by more than rounding");
}

/* lse lies by token and head in dtrain, by head and token in the library. */
TEST(an_order_of_lse_becomes_the_other)
{
    enum { N = 3, ROWS = 5, COLS = 37 };
    fixture *f = *state;
    Dl_info info;
    dt_err (*turn)(const float *, float *, int64_t, int64_t, int64_t, dt_stream *) = NULL;
    void *object = dladdr(OPS(f), &info) ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *found = object ? dlsym(object, "cuda_turn") : NULL;
    if (!found) {
        print_message("SKIPPED: the device %s has no library\n", OPS(f)->name);
        skip();
    }
    memcpy(&turn, &found, sizeof turn);
    ref_array from = ref_random(DT_F32, N * ROWS * COLS, 1, 1.0), to = ref_new(DT_F32, N * ROWS * COLS);
    dt_stream *s;
    assert_int_equal(dt_stream_open(&f->dev, &s, "turn"), DT_OK);
    const float *there = ON(from);
    float *result = ON(to);
    assert_int_equal(OPS(f)->stream_sync(&f->dev, NULL), DT_OK);
    const dt_err err = turn(there, result, N, ROWS, COLS, s);
    assert_int_equal(OPS(f)->stream_sync(&f->dev, s), DT_OK);
    assert_int_equal(back_to_host(f, "turn", err), DT_OK);
    dt_stream_close(&f->dev, s);
    for (int i = 0; i < N; i++)
        for (int row = 0; row < ROWS; row++)
            for (int col = 0; col < COLS; col++)
                assert_true(ref_get(&to, (i * COLS + col) * ROWS + row) ==
                            ref_get(&from, (i * ROWS + row) * COLS + col));
    ref_drop(&from), ref_drop(&to);
}

/* cuDNN's heuristics ask for a driver: on a machine without one the toolkit's stub will do. */
static bool find_driver(void)
{
    static const char *const names[] = {"libcuda.so.1", "/usr/local/cuda/lib64/stubs/libcuda.so"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (dlopen(names[i], RTLD_LAZY | RTLD_GLOBAL)) return true;
    return false;
}

/* No GPU is needed to ask the library whether it knows the graphs on an H100. */
TEST(an_h100_has_engines_for_all_graphs)
{
    dt_ledger ledger = {0};
    int ready = 0;
    bool stale;
    char why[512];
    dt_device dev = {.ops = dt_device_backend("cuda", &stale, why, sizeof why), .ledger = &ledger};
    const bool asks = dev.ops && find_driver();
    if (asks) assert_int_equal(dev.ops->plan(&dev, 1), DT_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && (i == 0 || ready); i++)
        for (dt_dtype dt = DT_BF16; asks && dt <= DT_F16; dt++) {
            problem p;
            make_problem(&p, &cases[i], dt);
            assert_int_equal(dev.ops->attention_prepare(&dev, &p.at, true, &ready, why, sizeof why), DT_OK);
            if (ready != (DT_READY_FORWARD | DT_READY_BACKWARD) && !strstr(why, "libcudnn.so.9: cannot open") &&
                !strstr(why, "without cuDNN's headers"))
                fail_msg("case %zu in %s: %s", i, dt_dtype_name(dt), why);
            drop_problem(&p);
        }
    if (!ready) print_message("SKIPPED: %s\n", asks || !dev.ops ? why : "no driver, nor its stub");
    dt_device_close(&dev);
    if (!ready) skip();
}

/* An argument: the one test that is wanted. */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return run_listed(NULL, open_device, close_device);
}
