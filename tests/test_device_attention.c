/* test_device_attention.c - attention on every instruction set of this machine, compared with plain loops in double.
 * DEVICES: cpu queue */
#include "device_fixture.h"

enum { MAX_SEQ = 70 };

/* A case: lengths of queries and keys by sequence, heads, head_dim, window, dropout, bidirectional, soft-cap, sinks. */
typedef struct attention_case {
    int n_seq, n_q[MAX_SEQ], n_kv[MAX_SEQ]; /* n_kv 0: as n_q */
    int n_heads, n_kv_heads, head_dim, window;
    float dropout_p;
    bool bidirectional;
    float softcap;
    bool sinks;
    int v_dim, block; /* 0: as head_dim; causal */
    int image;        /* length of images, whose tokens attend to each other; 0: none */
} attention_case;

static const attention_case cases[] = {
    {1, {1}, {0}, 1, 1, 1, .window = 0},
    {1, {5}, {0}, 2, 1, 3, .window = 0},
    {2, {64, 17}, {0}, 2, 2, 64, .window = 0},
    {3, {65, 1, 130}, {0}, 4, 2, 16, .window = 0},
    {1, {200}, {0}, 3, 3, 40, .window = 33},
    {2, {129, 70}, {0}, 4, 1, 24, .window = 64},
    {1, {150}, {0}, 2, 2, 128, .window = 1},
    {3, {1, 3, 70}, {40, 200, 75}, 4, 2, 32, .window = 0}, /* a cache of keys */
    {2, {1, 2}, {300, 66}, 2, 2, 64, .window = 100},
    {2, {5, 0}, {3, 4}, 2, 1, 8, .window = 0}, /* queries that see no key; no queries */
    {2, {90, 66}, {0}, 2, 1, 20, .dropout_p = 0.25f},
    {1, {70}, {133}, 2, 2, 256, .window = 50, .dropout_p = 0.5f},
    {2, {70, 140}, {0}, 2, 1, 96, .window = 0},
    {1, {150}, {170}, 2, 1, 72, .window = 40},
    {1, {5}, {0}, 2, 1, 3, .bidirectional = true},
    {3, {65, 1, 130}, {0}, 4, 2, 16, .bidirectional = true},
    {2, {64, 17}, {0}, 2, 2, 64, .dropout_p = 0.25f, .bidirectional = true},
    {3, {1, 3, 70}, {40, 200, 65}, 4, 2, 32, .bidirectional = true}, /* fewer keys than queries, too */
    {2, {81, 144}, {0}, 2, 2, 72, .bidirectional = true},            /* SigLIP so400m's heads */
    /* soft-cap, alone and with each of the others; scores reach half of the first cap, and several times the others */
    {2, {65, 130}, {0}, 4, 2, 64, .softcap = 4.0f},
    {1, {200}, {0}, 3, 3, 40, .window = 33, .softcap = 0.5f},
    {2, {70, 140}, {0}, 2, 1, 96, .softcap = 0.25f, .sinks = true},
    {1, {150}, {0}, 2, 1, 128, .window = 64, .softcap = 1.0f, .sinks = true},
    {1, {70}, {133}, 2, 2, 256, .window = 50, .softcap = 2.0f},
    {2, {64, 17}, {0}, 2, 2, 64, .dropout_p = 0.25f, .softcap = 1.0f, .sinks = true},
    {2, {65, 81}, {0}, 4, 2, 72, .bidirectional = true, .softcap = 1.0f},
    {2, {65, 130}, {0}, 4, 2, 64, .softcap = 1000.0f}, /* an error of tanh counts times the cap */
    {1, {90}, {133}, 2, 2, 256, .window = 50, .softcap = 1000.0f},
    {3, {1, 3, 70}, {40, 200, 75}, 4, 2, 32, .softcap = 1.0f, .sinks = true},
    /* sinks: the first head's is far above the scores, the last one's is -inf */
    {2, {64, 67}, {0}, 4, 2, 64, .sinks = true},
    {1, {150}, {170}, 3, 1, 72, .window = 40, .sinks = true},
    {2, {5, 1}, {3, 4}, 4, 1, 8, .sinks = true}, /* queries that see no key */
    {1, {131}, {0}, 4, 2, 128, .dropout_p = 0.25f, .sinks = true},
    {2, {65, 30}, {0}, 4, 4, 256, .bidirectional = true, .sinks = true},
    /* values narrower and wider than keys */
    {2, {65, 30}, {0}, 4, 2, 48, .v_dim = 32},
    {2, {70, 3}, {90, 40}, 2, 1, 20, .window = 33, .v_dim = 72, .sinks = true},
    {1, {131}, {0}, 2, 2, 192, .dropout_p = 0.25f, .v_dim = 128, .softcap = 1.0f},
    {2, {3, 66}, {0}, 2, 2, 64, .bidirectional = true, .v_dim = 256},
    /* blocks of keys: shorter and longer than tiles, and not whole at the end */
    {2, {65, 130}, {0}, 4, 2, 64, .block = 16},
    {3, {5, 3, 70}, {40, 200, 75}, 2, 1, 40, .block = 7, .v_dim = 24},
    {2, {150, 5}, {200, 3}, 2, 2, 32, .block = 100, .softcap = 1.0f, .sinks = true},
    /* images: shorter and longer than tiles and windows, and not whole at the end */
    {2, {65, 130}, {0}, 4, 2, 64, .image = 16},
    {3, {5, 3, 70}, {40, 200, 75}, 2, 1, 40, .image = 7, .v_dim = 24},
    {2, {150, 5}, {200, 3}, 2, 2, 32, .window = 60, .softcap = 1.0f, .sinks = true, .image = 100},
    {1, {300}, {0}, 2, 1, 256, .window = 9, .image = 70},
    {2, {90, 66}, {0}, 2, 1, 20, .dropout_p = 0.25f, .image = 31},
    {70, /* packed documents: more than a warp has lanes, twice */
     {3, 0, 5, 1, 9, 2, 4, 0, 7, 1, 6, 2, 3, 8, 1, 0, 5, 2, 4, 1, 3, 6, 0, 2, 9, 1, 4, 2, 7, 1, 3, 8, 5,  0, 2,
      6, 1, 3, 4, 0, 7, 2, 1, 5, 3, 9, 0, 1, 4, 2, 6, 1, 3, 0, 8, 2, 5, 1, 4, 7, 2, 0, 3, 6, 9, 1, 0, 70, 2, 5},
     {0},
     2,
     1,
     64,
     .window = 0},
};

typedef struct problem {
    dt_attention at;
    int32_t q_start[MAX_SEQ + 1], kv_start[MAX_SEQ], kv_len[MAX_SEQ];
    int32_t ahead[512];
    uint64_t token_key[512];
    int64_t n_kv_rows;
    ref_array q, k, v, dout, sinks;
    double *q64, *k64, *v64, *dout64;
} problem;

/* Elements between the heads of a row and the next row, for q, k (and v), out: rows that begin anywhere, or rows and
 * heads at multiples of 16 bytes where head_dim allows. */
enum { ODD_GAPS, WHOLE_GAPS };
static const int gaps[2][3] = {{5, 3, 1}, {8, 16, 24}};

static void make_problem(problem *p, const attention_case *c, dt_dtype dt, int how)
{
    memset(p, 0, sizeof *p);
    int32_t n_tok = 0, n_kv = 3; /* key rows do not begin at 0 */
    p->at = (dt_attention){.n_seq = c->n_seq,
                           .n_heads = c->n_heads,
                           .n_kv_heads = c->n_kv_heads,
                           .head_dim = c->head_dim,
                           .v_head_dim = c->v_dim,
                           .dt = dt,
                           .window = c->window,
                           .block = c->block,
                           .bidirectional = c->bidirectional,
                           .scale = 1.0f / sqrtf((float)c->head_dim),
                           .softcap = c->softcap,
                           .dropout_p = c->dropout_p,
                           .dropout_key = 77,
                           .q_start = p->q_start,
                           .kv_start = p->kv_start,
                           .kv_len = p->kv_len,
                           .token_key = p->token_key};
    for (int s = 0; s < c->n_seq; s++) {
        p->kv_len[s] = c->n_kv[s] ? c->n_kv[s] : c->n_q[s];
        p->kv_start[s] = n_kv;
        n_kv += p->kv_len[s] + 2;
        n_tok += c->n_q[s];
        p->q_start[s + 1] = n_tok;
        if (c->n_q[s] > p->at.max_q_len) p->at.max_q_len = c->n_q[s];
        if (p->kv_len[s] > p->at.max_kv_len) p->at.max_kv_len = p->kv_len[s];
    }
    for (int t = 0; t < n_tok; t++) p->token_key[t] = dt_mix64((uint64_t)t);
    for (int s = 0; s < c->n_seq && c->image; s++)
        for (int t = p->q_start[s]; t < p->q_start[s + 1]; t++) {
            const int pos = p->kv_len[s] - (p->q_start[s + 1] - t), in = (pos + 3) % (2 * c->image),
                      left = p->q_start[s + 1] - 1 - t;
            if (pos >= 0 && in < c->image) p->ahead[t] = c->image - 1 - in < left ? c->image - 1 - in : left;
        }
    if (c->image) p->at.ahead = p->ahead, p->at.max_ahead = c->image - 1;
    const int d = c->head_dim, v_dim = dt_attention_v_dim(&p->at);
    p->at.n_tok = n_tok;
    p->at.q_ld = c->n_heads * d + gaps[how][0];
    p->at.kv_ld = c->n_kv_heads * (d > v_dim ? d : v_dim) + gaps[how][1];
    p->at.o_ld = c->n_heads * v_dim + gaps[how][2];
    p->n_kv_rows = n_kv;
    p->q = ref_random(dt, n_tok * p->at.q_ld, 1, 2.0);
    p->k = ref_random(dt, n_kv * p->at.kv_ld, 2, 2.0);
    p->v = ref_random(dt, n_kv * p->at.kv_ld, 3, 1.0);
    p->dout = ref_random(dt, n_tok * p->at.o_ld, 4, 1.0);
    p->q64 = ref_doubles(&p->q), p->k64 = ref_doubles(&p->k), p->v64 = ref_doubles(&p->v),
    p->dout64 = ref_doubles(&p->dout);
    p->sinks = ref_random(dt, c->n_heads, 5, 1.0);
    if (!c->sinks) return;
    p->at.sinks = p->sinks.p;
    if (c->n_heads < 3) return;
    ref_set(&p->sinks, 0, 20);
    ref_set(&p->sinks, c->n_heads - 1, -INFINITY);
}

static void drop_problem(problem *p)
{
    ref_drop(&p->q), ref_drop(&p->k), ref_drop(&p->v), ref_drop(&p->dout), ref_drop(&p->sinks);
    free(p->q64), free(p->k64), free(p->v64), free(p->dout64);
}

/* The description with its arrays on the device, for the next operation. */
static dt_attention described(fixture *f, const dt_attention *at)
{
    dt_attention on = *at;
    on.q_start = ARR(at->q_start, at->n_seq + 1);
    on.kv_start = ARR(at->kv_start, at->n_seq);
    on.kv_len = ARR(at->kv_len, at->n_seq);
    on.token_key = ARR(at->token_key, at->n_tok);
    if (at->ahead) on.ahead = ARR(at->ahead, at->n_tok);
    if (at->sinks) on.sinks = on_device(f, at->sinks, (size_t)at->n_heads * dt_dtype_size(at->dt));
    if (at->shared_len) {
        on.shared_start = ARR(at->shared_start, at->n_seq);
        on.shared_len = ARR(at->shared_len, at->n_seq);
    }
    return on;
}

/* Operations must leave the gap between the heads and the next row (NaN) unchanged. */
static void expect_gaps_untouched(double *want, const ref_array *got, int64_t n_rows, int64_t ld, int64_t width)
{
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t c = width; c < ld; c++) {
            assert_true(isnan(ref_get(got, r * ld + c)));
            want[r * ld + c] = 0;
        }
}

static void zero_gaps(ref_array *a, int64_t n_rows, int64_t ld, int64_t width)
{
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t c = width; c < ld; c++) ref_set(a, r * ld + c, 0);
}

static int64_t out_width(const problem *p) { return (int64_t)p->at.n_heads * dt_attention_v_dim(&p->at); }

/* Rounding. A score is a sum of d products, |q k| <= 4: its error is below d 2^-24 * 4 d scale (worst case; roundings
 * are random and much smaller, the factor 1/4 below is still generous), and a probability's relative error is that plus
 * e^x's. With dropout or a cache nothing changes. Output is a mean of |v| <= 1, so its absolute error is that relative
 * error. */
static double score_error(const attention_case *c)
{
    return 0x1p-24 * (4.0 + sqrt((double)c->head_dim)) * 4.0 * sqrt((double)c->head_dim) / 4.0;
}

static void check_forward(fixture *f, const attention_case *c, dt_dtype dt, int how)
{
    if (!is_tried()) return;
    problem p;
    make_problem(&p, c, dt, how);
    const int64_t n_out = p.at.n_tok * p.at.o_ld, n_lse = (int64_t)p.at.n_tok * c->n_heads;
    ref_array out = ref_new(dt, n_out), lse = ref_new(DT_F32, n_lse);
    double *want = calloc((size_t)n_out + 1, sizeof *want), *want_lse = calloc((size_t)n_lse + 1, sizeof *want_lse);
    ref_attention_forward(&p.at, p.q64, p.k64, p.v64, want, want_lse);
    const dt_attention at = described(f, &p.at);
    RUN(attention_forward, &at, ON(p.q), ON(p.k), ON(p.v), ON(out), ON(lse));
    expect_gaps_untouched(want, &out, p.at.n_tok, p.at.o_ld, out_width(&p));
    zero_gaps(&out, p.at.n_tok, p.at.o_ld, out_width(&p));
    const double s = c->dropout_p > 0 ? 1 / (1 - (double)c->dropout_p) : 1, err = score_error(c) * s;
    /* P rounded to 16 bits, |v| <= 1 */
    assert_true(ref_near(&out, want, 8 * err + (dt == DT_F32 ? 0 : dt_roundoff(dt) / 2 * s), "attention out"));
    assert_true(ref_near(&lse, want_lse, 8 * err, "attention lse"));
    assert_true(ref_rms_near(&out, want, dt == DT_F32 ? 0x1p-19 : 2 * dt_roundoff(dt), "attention out"));
    ref_drop(&out), ref_drop(&lse), free(want), free(want_lse), drop_problem(&p);
}

TEST(forward_is_softmax_attention)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int how = ODD_GAPS; how <= WHOLE_GAPS; how++) {
            check_forward(*state, &cases[i], DT_F32, how);
            check_forward(*state, &cases[i], DT_BF16, how);
            check_forward(*state, &cases[i], DT_F16, how);
        }
    }
}

/* A device may cut long sequences otherwise; max_q_len and max_kv_len tell it, and are bounds. */
TEST(bits_do_not_depend_on_length_bounds)
{
    enum { LONG = 4096 };
    fixture *f = *state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (dt_dtype dt = DT_F32; dt <= DT_F16; dt++) {
            if (!is_tried()) continue;
            problem p;
            make_problem(&p, &cases[i], dt, WHOLE_GAPS);
            const int64_t n_out = p.at.n_tok * p.at.o_ld;
            ref_array out = ref_new(dt, n_out), again = ref_new(dt, n_out);
            dt_attention at = described(f, &p.at);
            RUN(attention_forward, &at, ON(p.q), ON(p.k), ON(p.v), ON(out), NULL);
            at = described(f, &p.at);
            at.max_q_len = at.max_kv_len = LONG;
            RUN(attention_forward, &at, ON(p.q), ON(p.k), ON(p.v), ON(again), NULL);
            assert_memory_equal(out.p, again.p, ref_bytes(&out));
            ref_drop(&out), ref_drop(&again), drop_problem(&p);
        }
}

/* As above: scores, e^x and a mean of |v| <= 1; P stays float. */
static void check_rows(fixture *f, const attention_case *c, dt_dtype dt, int how)
{
    if (!is_tried()) return;
    problem p;
    make_problem(&p, c, dt, how);
    p.at.batch_invariant = true;
    const int64_t n_out = p.at.n_tok * p.at.o_ld;
    ref_array out = ref_new(dt, n_out), pieces = ref_new(dt, n_out);
    double *want = calloc((size_t)n_out + 1, sizeof *want),
           *want_lse = calloc((size_t)(p.at.n_tok * c->n_heads) + 1, sizeof *want_lse);
    ref_attention_forward(&p.at, p.q64, p.k64, p.v64, want, want_lse);
    const dt_attention whole = described(f, &p.at);
    RUN(attention_forward, &whole, ON(p.q), ON(p.k), ON(p.v), ON(out), NULL);
    expect_gaps_untouched(want, &out, p.at.n_tok, p.at.o_ld, out_width(&p));

    /* each sequence on its own, in pieces of one, two, three ... queries */
    for (int s = 0; s < c->n_seq; s++)
        for (int32_t first = 0, n = 1, n_q = p.q_start[s + 1] - p.q_start[s];
             first<n_q; first += c->block> 1 || c->image ? n_q : n++) {
            /* a part of a block would lack its keys */
            const bool whole_rest = c->block > 1 || c->image || n > n_q - first;
            const int32_t take = whole_rest ? n_q - first : n, q_start[2] = {0, take},
                          kv_len = p.kv_len[s] - (c->bidirectional ? 0 : n_q - first - take);
            const int64_t row = p.q_start[s] + first;
            dt_attention at = p.at;
            if (at.ahead) at.ahead += row;
            at.n_seq = 1, at.q_start = q_start, at.kv_start = &p.kv_start[s], at.kv_len = &kv_len, at.n_tok = take;
            at = described(f, &at);
            RUN(attention_forward, &at, ON_FROM(p.q, row * at.q_ld), ON(p.k), ON(p.v), ON_FROM(pieces, row * at.o_ld),
                NULL);
        }
    assert_memory_equal(out.p, pieces.p, ref_bytes(&out));
    zero_gaps(&out, p.at.n_tok, p.at.o_ld, out_width(&p));
    assert_true(ref_near(&out, want, 8 * score_error(c), "batch-invariant attention"));
    ref_drop(&out), ref_drop(&pieces), free(want), free(want_lse), drop_problem(&p);
}

TEST(rows_of_generation_do_not_depend_on_one_another)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (cases[i].dropout_p > 0) continue;
        for (int how = ODD_GAPS; how <= WHOLE_GAPS; how++) {
            check_rows(*state, &cases[i], DT_F32, how);
            check_rows(*state, &cases[i], DT_BF16, how);
            check_rows(*state, &cases[i], DT_F16, how);
        }
    }
    /* more heads of a group than rows of a tile */
    const attention_case wide = {2, {3, 1}, {70, 130}, 140, 2, 8, .window = 0};
    check_rows(*state, &wide, DT_F32, ODD_GAPS);
    check_rows(*state, &wide, DT_BF16, ODD_GAPS);
    check_rows(*state, &wide, DT_F16, ODD_GAPS);
    /* Some splits of the keys, at once for each sequence alone and one after the other for all: a window that begins
     * within one, a token of each sequence, keys of which a warp has several tiles. */
    static const attention_case longer[] = {
        {3, {1, 2, 40}, {600, 1100, 40}, 4, 2, 64, .window = 0},
        {3, {1, 1, 1}, {300, 40, 513}, 14, 2, 64, .window = 0},
        {2, {1, 5}, {700, 300}, 4, 2, 128, .window = 330},
        {2, {1, 1}, {515, 258}, 2, 2, 256, .window = 300},
    };
    for (size_t i = 0; i < sizeof longer / sizeof longer[0]; i++) check_rows(*state, &longer[i], DT_BF16, WHOLE_GAPS);
}

/* Keys of which the first shared[s] of each sequence are the same, once in one piece for each sequence (a, which
 * becomes so), once with these in one place for all, from row 2 on: to, whose other rows have no values. */
static ref_array share_rows(problem *p, ref_array *a, const int32_t *shared, const int32_t *kv_start, int64_t n_rows)
{
    const int64_t ld = p->at.kv_ld;
    ref_array to = ref_new(a->dt, n_rows * ld);
    int from = 0;
    for (int s = 1; s < p->at.n_seq; s++)
        if (shared[s] > shared[from]) from = s;
    for (int s = 0; s < p->at.n_seq; s++)
        for (int64_t j = 0; j < p->kv_len[s]; j++)
            for (int64_t c = 0; c < ld; c++) {
                const bool is_shared = j < shared[s];
                const int64_t at = (p->kv_start[s] + j) * ld + c;
                const double x = ref_get(a, is_shared ? (p->kv_start[from] + j) * ld + c : at);
                ref_set(a, at, x);
                ref_set(&to, (is_shared ? 2 + j : kv_start[s] + j - shared[s]) * ld + c, x);
            }
    return to;
}

/* Bitwise equal to keys in one piece, and equal in value to plain loops over two. */
static void check_shared(fixture *f, const attention_case *c, const int32_t *shared, dt_dtype dt, int how)
{
    if (!is_tried()) return;
    problem p;
    int32_t kv_start[MAX_SEQ], shared_start[MAX_SEQ], n_rows = 2;
    make_problem(&p, c, dt, how);
    p.at.batch_invariant = true;
    for (int s = 0; s < c->n_seq; s++) n_rows = 2 + shared[s] > n_rows ? 2 + shared[s] : n_rows;
    for (int s = c->n_seq - 1; s >= 0; s--) { /* the last sequence's come first */
        kv_start[s] = n_rows + 1, shared_start[s] = 2;
        n_rows += 1 + p.kv_len[s] - shared[s];
    }
    const int64_t n_out = p.at.n_tok * p.at.o_ld;
    ref_array k = share_rows(&p, &p.k, shared, kv_start, n_rows), v = share_rows(&p, &p.v, shared, kv_start, n_rows),
              out = ref_new(dt, n_out), apart = ref_new(dt, n_out);
    double *k64 = ref_doubles(&k), *v64 = ref_doubles(&v), *want = calloc((size_t)n_out + 1, sizeof *want);
    dt_attention at = described(f, &p.at);
    RUN(attention_forward, &at, ON(p.q), ON(p.k), ON(p.v), ON(out), NULL);
    p.at.kv_start = kv_start, p.at.shared_start = shared_start, p.at.shared_len = shared;
    at = described(f, &p.at);
    RUN(attention_forward, &at, ON(p.q), ON(k), ON(v), ON(apart), NULL);
    assert_memory_equal(out.p, apart.p, ref_bytes(&out));
    ref_attention_forward(&p.at, p.q64, k64, v64, want, NULL);
    expect_gaps_untouched(want, &apart, p.at.n_tok, p.at.o_ld, out_width(&p));
    zero_gaps(&apart, p.at.n_tok, p.at.o_ld, out_width(&p));
    assert_true(ref_near(&apart, want, 8 * score_error(c), "attention with shared keys"));
    ref_drop(&k), ref_drop(&v), ref_drop(&out), ref_drop(&apart);
    free(k64), free(v64), free(want), drop_problem(&p);
}

TEST(keys_may_lie_in_two_places)
{
    static const struct {
        attention_case c;
        int32_t shared[4];
    } shares[] = {
        {{3, {1, 3, 70}, {40, 200, 75}, 4, 2, 32, .window = 0}, {40, 133, 5}},
        {{3, {1, 3, 70}, {40, 200, 65}, 4, 2, 32, .bidirectional = true}, {0, 128, 64}},
        {{3, {1, 2, 40}, {600, 1100, 40}, 4, 2, 64, .window = 0}, {300, 513, 0}},
        {{2, {1, 5}, {700, 300}, 4, 2, 128, .window = 330}, {600, 299}}, /* a window over the border */
        {{2, {1, 1}, {515, 258}, 2, 2, 256, .window = 300}, {514, 64}},
        {{4, {1, 1, 1, 1}, {66, 65, 64, 63}, 14, 2, 72, .window = 0}, {63, 63, 63, 63}},
        {{2, {1, 2}, {70, 71}, 2, 1, 3, .window = 0}, {1, 33}},
    };
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++)
        for (int how = ODD_GAPS; how <= WHOLE_GAPS; how++) {
            check_shared(*state, &shares[i].c, shares[i].shared, DT_F32, how);
            check_shared(*state, &shares[i].c, shares[i].shared, DT_BF16, how);
            check_shared(*state, &shares[i].c, shares[i].shared, DT_F16, how);
        }
}

TEST(shared_keys_are_for_generation)
{
    fixture *f = *state;
    const attention_case c = {1, {1}, {4}, 1, 1, 4, .window = 0};
    static const int32_t shared[1] = {2}, shared_start[1] = {0};
    problem p;
    make_problem(&p, &c, DT_F32, ODD_GAPS);
    ref_array out = ref_new(DT_F32, p.at.n_tok * p.at.o_ld);
    p.at.shared_len = shared, p.at.shared_start = shared_start;
    dt_attention at = described(f, &p.at);
    assert_int_equal(TRY(attention_forward, &at, ON(p.q), ON(p.k), ON(p.v), ON(out), NULL), DT_ERR_ARG);
    at = described(f, &p.at);
    at.batch_invariant = true, at.shared_start = NULL;
    assert_fails(TRY(attention_forward, &at, ON(p.q), ON(p.k), ON(p.v), ON(out), NULL), DT_ERR_ARG, "");
    ref_drop(&out), drop_problem(&p);
}

typedef struct gradients {
    ref_array dq, dk, dv, dsinks;
} gradients;

/* out and lse are the device's own, so that rounding out to 16 bits is part of what is compared. */
static gradients device_gradients(fixture *f, problem *p)
{
    dt_attention at = described(f, &p->at);
    ref_array out = ref_new(at.dt, at.n_tok * at.o_ld), lse = ref_new(DT_F32, (int64_t)at.n_tok * at.n_heads);
    ref_array scratch = ref_new(DT_F32, OPS(f)->attention_scratch_elems(&f->dev, &at));
    gradients g = {ref_new(at.dt, at.n_tok * at.q_ld), ref_new(at.dt, p->n_kv_rows * at.kv_ld),
                   ref_new(at.dt, p->n_kv_rows * at.kv_ld), ref_new(DT_F32, at.n_heads)};
    RUN(attention_forward, &at, ON(p->q), ON(p->k), ON(p->v), ON(out), ON(lse));
    at = described(f, &p->at);
    if (at.sinks) at.dsinks = ON(g.dsinks), at.dsinks_dtype = DT_F32;
    RUN(attention_backward, &at, ON(p->q), ON(p->k), ON(p->v), ON(out), ON(lse), ON(p->dout), ON(g.dq), ON(g.dk),
        ON(g.dv), ON(scratch));
    ref_drop(&out), ref_drop(&lse), ref_drop(&scratch);
    return g;
}

static void drop_gradients(gradients *g) { ref_drop(&g->dq), ref_drop(&g->dk), ref_drop(&g->dv), ref_drop(&g->dsinks); }

/* Rows of k that belong to no sequence stay as they were. */
static void clear_unowned(problem *p, ref_array *a, int head_dim, double *want)
{
    const int64_t ld = p->at.kv_ld, width = (int64_t)p->at.n_kv_heads * head_dim;
    for (int64_t r = 0; r < p->n_kv_rows; r++) {
        bool owned = false;
        for (int s = 0; s < p->at.n_seq; s++) owned |= r >= p->kv_start[s] && r < p->kv_start[s] + p->kv_len[s];
        for (int64_t c = owned ? width : 0; c < ld; c++) {
            assert_true(isnan(ref_get(a, r * ld + c)));
            ref_set(a, r * ld + c, 0);
            want[r * ld + c] = 0;
        }
    }
}

static void check_backward(fixture *f, const attention_case *c, dt_dtype dt, int how)
{
    if (!is_tried()) return;
    problem p;
    make_problem(&p, c, dt, how);
    const int64_t n_q = p.at.n_tok * p.at.q_ld, n_k = p.n_kv_rows * p.at.kv_ld,
                  width = (int64_t)c->n_heads * c->head_dim;
    double *dq = calloc((size_t)n_q + 1, sizeof *dq), *dk = calloc((size_t)n_k + 1, sizeof *dk),
           *dv = calloc((size_t)n_k + 1, sizeof *dv), *dsinks = calloc((size_t)c->n_heads, sizeof *dsinks);
    ref_attention_backward(&p.at, p.q64, p.k64, p.v64, p.dout64, dq, dk, dv, dsinks);
    gradients g = device_gradients(f, &p);
    expect_gaps_untouched(dq, &g.dq, p.at.n_tok, p.at.q_ld, width);
    zero_gaps(&g.dq, p.at.n_tok, p.at.q_ld, width);
    clear_unowned(&p, &g.dk, c->head_dim, dk);
    clear_unowned(&p, &g.dv, dt_attention_v_dim(&p.at), dv);
    /* ds carries the relative error of p times |dp - D| <= 2 d; D is formed from out, rounded to the type: 2^-9 sqrt(d)
     * in bf16, 2^-12 sqrt(d) in fp16. dq and dk sum ds times |k|, |q| <= 2 with scale 1/sqrt(d); a key is summed over
     * all its queries, of which probabilities sum to a few: a factor 8 covers the cases here. */
    const double s = c->dropout_p > 0 ? 1 / (1 - (double)c->dropout_p) : 1;
    const double unit =
        dt == DT_F32 ? 0x1p-24 : dt_roundoff(dt) / 2; /* on 16-bit units P and ds are rounded too: as much again */
    const double err = s * (score_error(c) + unit) * 2;
    assert_true(ref_near(&g.dq, dq, 8 * err, "attention dq"));
    assert_true(ref_near(&g.dk, dk, 16 * err, "attention dk"));
    assert_true(ref_near(&g.dv, dv, 16 * s * (score_error(c) + (dt == DT_F32 ? 0 : unit)) * (1 + ref_largest(dv, n_k)),
                         "attention dv"));
    /* Worst cases are far from the usual: roundings of random sign. Where all gradients of q vanish (one key) there is
     * no size. */
    const double rms = dt == DT_F32 ? 0x1p-18 : 4 * dt_roundoff(dt);
    assert_true(ref_rms_near(&g.dv, dv, rms, "attention dv"));
    /* a sum over queries of p delta, |delta| <= d: the error of out's rounding in it is that of ds, of random sign */
    if (c->sinks)
        assert_true(ref_near(&g.dsinks, dsinks, err * sqrt((double)p.at.n_tok * c->head_dim), "attention dsinks"));
    if (p.at.max_kv_len > 1 && c->window != 1) {
        assert_true(ref_rms_near(&g.dq, dq, rms, "attention dq"));
        assert_true(ref_rms_near(&g.dk, dk, rms, "attention dk"));
    }
    drop_gradients(&g), free(dq), free(dk), free(dv), free(dsinks), drop_problem(&p);
}

TEST(backward_is_its_gradient)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int how = ODD_GAPS; how <= WHOLE_GAPS; how++) {
            check_backward(*state, &cases[i], DT_F32, how);
            check_backward(*state, &cases[i], DT_BF16, how);
            check_backward(*state, &cases[i], DT_F16, how);
        }
    }
}

/* Central differences of the reference forward: error h^2 |f'''| / 6 plus 2^-53 |f| / h, about 1e-9 at h = 1e-5. */
static void check_reference(bool bidirectional, float softcap, bool sinks, int v_dim, int block)
{
    const attention_case c = {.n_seq = 2,
                              .n_q = {4, 3},
                              .n_kv = {6, 0},
                              .n_heads = 4,
                              .n_kv_heads = 2,
                              .head_dim = 3,
                              .window = bidirectional || block ? 0 : 3,
                              .dropout_p = 0.3f,
                              .bidirectional = bidirectional,
                              .softcap = softcap,
                              .sinks = sinks,
                              .v_dim = v_dim,
                              .block = block};
    problem p;
    make_problem(&p, &c, DT_F32, ODD_GAPS);
    const int64_t n_q = p.q.n, n_k = p.k.n, n_out = p.at.n_tok * p.at.o_ld;
    double *grad = calloc((size_t)(n_q + 2 * n_k), sizeof *grad), *out = calloc((size_t)n_out, sizeof *out),
           dsinks[4] = {0};
    ref_attention_backward(&p.at, p.q64, p.k64, p.v64, p.dout64, grad, grad + n_q, grad + n_q + n_k, dsinks);
    double *const inputs[] = {p.q64, p.k64, p.v64};
    for (int64_t i = 0; i < n_q + 2 * n_k; i++) {
        double *x = i < n_q ? inputs[0] + i : i < n_q + n_k ? inputs[1] + i - n_q : inputs[2] + i - n_q - n_k, side[2];
        const double was = *x, h = 1e-5;
        for (int sign = 0; sign < 2; sign++) {
            *x = was + (sign ? h : -h);
            memset(out, 0, (size_t)n_out * sizeof *out);
            ref_attention_forward(&p.at, p.q64, p.k64, p.v64, out, NULL);
            side[sign] = 0;
            for (int64_t o = 0; o < n_out; o++) side[sign] += out[o] == 0 ? 0 : out[o] * p.dout64[o];
        }
        *x = was;
        assert_true(fabs((side[1] - side[0]) / (2 * h) - grad[i]) < 1e-7);
    }
    for (int i = 0; sinks && i < c.n_heads;
         i++) { /* sinks are floats: steps of 2^-8, whose error is 2^-16 |f'''| / 6 */
        const double was = ref_get(&p.sinks, i), h = 0x1p-8;
        double side[2];
        for (int sign = 0; sign < 2; sign++) {
            ref_set(&p.sinks, i, was + (sign ? h : -h));
            ref_attention_forward(&p.at, p.q64, p.k64, p.v64, out, NULL);
            side[sign] = 0;
            for (int64_t o = 0; o < n_out; o++) side[sign] += out[o] == 0 ? 0 : out[o] * p.dout64[o];
        }
        ref_set(&p.sinks, i, was);
        assert_true(!isfinite(was) || fabs((side[1] - side[0]) / (2 * h) - dsinks[i]) < 1e-4);
    }
    free(grad), free(out), drop_problem(&p);
}

TEST(reference_gradient_is_that_of_the_reference)
{
    check_reference(false, 0, false, 0, 0);
    check_reference(true, 0, false, 0, 0);
    check_reference(false, 0.5f, true, 0, 0);
    check_reference(true, 1.0f, false, 2, 0);
    check_reference(true, 0, true, 5, 0);
    check_reference(false, 0, true, 0, 2);
}

TEST(a_window_has_no_meaning_for_attention_in_both_directions)
{
    fixture *f = *state;
    const attention_case c = {1, {4}, {0}, 1, 1, 4, .window = 2, .bidirectional = true};
    problem p;
    make_problem(&p, &c, DT_F32, ODD_GAPS);
    const dt_attention at = described(f, &p.at);
    ref_array out = ref_new(DT_F32, p.at.n_tok * p.at.o_ld);
    assert_int_equal(TRY(attention_forward, &at, ON(p.q), ON(p.k), ON(p.v), ON(out), NULL), DT_ERR_ARG);
    ref_drop(&out);
    dt_error_clear();
    drop_problem(&p);
}

/* The gradient of sinks in each type, written and added to. */
TEST(gradients_of_sinks_are_added_to)
{
    const attention_case c = {2, {40, 3}, {0}, 6, 2, 16, .sinks = true};
    fixture *f = *state;
    for (dt_dtype type = DT_F32; type <= DT_F16; type++) {
        problem p;
        make_problem(&p, &c, DT_F32, ODD_GAPS);
        gradients g = device_gradients(f, &p);
        ref_array out = ref_new(DT_F32, p.at.n_tok * p.at.o_ld), lse = ref_new(DT_F32, (int64_t)p.at.n_tok * c.n_heads),
                  scratch = ref_new(DT_F32, OPS(f)->attention_scratch_elems(&f->dev, &p.at)),
                  dsinks = ref_new(type, c.n_heads);
        dt_attention at = described(f, &p.at);
        RUN(attention_forward, &at, ON(p.q), ON(p.k), ON(p.v), ON(out), ON(lse));
        for (int again = 0; again < 2; again++) {
            at = described(f, &p.at);
            at.dsinks = ON(dsinks), at.dsinks_dtype = type, at.accumulate_dsinks = again;
            RUN(attention_backward, &at, ON(p.q), ON(p.k), ON(p.v), ON(out), ON(lse), ON(p.dout), ON(g.dq), ON(g.dk),
                ON(g.dv), ON(scratch));
            for (int h = 0; h < c.n_heads; h++) {
                const double want = (1 + again) * ref_get(&g.dsinks, h);
                assert_true(fabs(ref_get(&dsinks, h) - want) <=
                            (1 + again) * (dt_roundoff(type) * fabs(want) + 0x1p-25));
            }
        }
        ref_drop(&out), ref_drop(&lse), ref_drop(&scratch), ref_drop(&dsinks), drop_gradients(&g), drop_problem(&p);
    }
}

TEST(a_description_that_means_nothing_is_refused)
{
    fixture *f = *state;
    const attention_case c = {1, {4}, {0}, 1, 1, 4, .window = 0};
    problem p;
    make_problem(&p, &c, DT_F32, ODD_GAPS);
    ref_array out = ref_new(DT_F32, p.at.n_tok * p.at.o_ld);
    for (int way = 0; way < 6; way++) {
        dt_attention at = described(f, &p.at);
        if (way < 2) at.softcap = way ? INFINITY : -1;
        if (way == 2) at.dsinks = ON(out); /* without sinks */
        if (way == 3) at.block = -1;
        if (way == 4) at.block = 2, at.window = 2;
        if (way == 5) at.v_head_dim = 257;
        assert_fails(TRY(attention_forward, &at, ON(p.q), ON(p.k), ON(p.v), ON(out), NULL), DT_ERR_ARG, "");
    }
    ref_drop(&out), drop_problem(&p);
}

static void check_threads(fixture *f, dt_dtype dt)
{
    const attention_case c = {1, {300}, {0}, 4, 2, 48, .softcap = dt == DT_F32 ? 0 : 1.0f, .sinks = dt == DT_F32};
    const size_t size = dt_dtype_size(dt);
    problem p;
    make_problem(&p, &c, dt, ODD_GAPS);
    gradients first = device_gradients(f, &p);
    for (int n_threads = 1; n_threads <= 5; n_threads += 2) {
        fixture other = {0};
        assert_int_equal(dt_device_open(&other.dev, "cpu", 0, n_threads, &other.ledger), DT_OK);
        gradients g = device_gradients(&other, &p);
        assert_memory_equal(g.dq.p, first.dq.p, (size_t)g.dq.n * size);
        assert_memory_equal(g.dk.p, first.dk.p, (size_t)g.dk.n * size);
        assert_memory_equal(g.dv.p, first.dv.p, (size_t)g.dv.n * size);
        assert_memory_equal(g.dsinks.p, first.dsinks.p, (size_t)g.dsinks.n * sizeof(float));
        drop_gradients(&g);
        dt_device_close(&other.dev);
    }
    drop_gradients(&first), drop_problem(&p);
}

/* One pass a sequence, or tiles on their own: which one is taken depends on the threads, its result must not. */
TEST(threads_do_not_change_bits)
{
    check_threads(*state, DT_F32);
    check_threads(*state, DT_BF16);
    check_threads(*state, DT_F16);
}

int main(void)
{
    int failed = run_with_each_isa();
    if (!ref_is_cpu()) return failed != 0;
    setenv("DTRAIN_BF16", "dot", 1); /* the last set again, without the matrix unit, then without any */
    failed += run_listed("dot", open_device, close_device);
    setenv("DTRAIN_BF16", "none", 1);
    failed += run_listed("none", open_device, close_device);
    return failed != 0;
}
