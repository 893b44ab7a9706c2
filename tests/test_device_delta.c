/* test_device_delta.c - the gated delta rule: chunks and single tokens against a plain loop in double, gradients,
 * states, documents, decays that underflow.
 * DEVICES: cpu queue */
#include "device_fixture.h"
#include "ref_delta.h"

static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
enum { N_TYPES = sizeof types / sizeof types[0], MAX_SEQ = 6 };

static const struct shape {
    int n_k_heads, n_v_heads, k_dim, v_dim, n_seq, len[MAX_SEQ];
} shapes[] = {{1, 1, 1, 1, 1, {1}},
              {2, 6, 5, 3, 4, {1, 0, 63, 2}},
              {1, 3, 20, 33, 3, {65, 64, 7}},
              {2, 2, 64, 64, 2, {130, 17}},
              {3, 3, 48, 16, 3, {3, 80, 0}},
              {1, 2, 128, 96, 2, {70, 66}},
              {2, 2, 16, 130, 3, {1, 1, 129}},
              {1, 1, 256, 256, 1, {66}}};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

/* Decays: about 0.6 a token; none; most vanish; one of e^-10000 among weak ones. */
enum decay { USUAL, NONE, STRONG, SUDDEN, N_DECAYS };

typedef struct arrays {
    dt_delta d; /* with arrays of the host */
    int32_t starts[MAX_SEQ + 1], rows[MAX_SEQ];
    ref_array x, g, beta, out, state, dout, dx, dg, dbeta, scratch;
    int64_t K;
} arrays;

static void make(fixture *f, arrays *a, const struct shape *s, enum decay decay, dt_dtype dt)
{
    const int64_t K = (int64_t)s->n_k_heads * s->k_dim, V = (int64_t)s->n_v_heads * s->v_dim;
    *a = (arrays){.K = K};
    int32_t longest = 0;
    for (int i = 0; i < s->n_seq; i++) {
        a->starts[i + 1] = a->starts[i] + s->len[i];
        a->rows[i] = s->n_seq - 1 - i;
        if (s->len[i] > longest) longest = s->len[i];
    }
    const int64_t T = a->starts[s->n_seq], G = T * s->n_v_heads;
    a->d = (dt_delta){s->n_seq,   s->n_k_heads, s->n_v_heads,  s->k_dim, s->v_dim, a->starts,
                      (int32_t)T, longest,      2 * K + V + 3, V + 2,    a->rows,  dt};
    a->x = ref_random(dt, T * a->d.x_ld, 1, 1), a->dout = ref_random(dt, T * a->d.o_ld, 2, 1);
    a->g = ref_random(DT_F32, G, 3, 0.5), a->beta = ref_random(DT_F32, G, 4, 0.5);
    for (int64_t i = 0; i < G; i++) {
        const double u = ref_get(&a->g, i) + 0.5;
        ref_set(&a->g, i,
                decay == NONE                    ? 0
                : decay == STRONG                ? -200 * u * u
                : decay == SUDDEN && i % 23 == 7 ? -1e4
                                                 : -u);
        ref_set(&a->beta, i, ref_get(&a->beta, i) + 0.5);
    }
    a->out = ref_new(dt, T * a->d.o_ld), a->dx = ref_new(dt, T * a->d.x_ld);
    a->dg = ref_new(DT_F32, G), a->dbeta = ref_new(DT_F32, G);
    a->state = ref_random(DT_F32, s->n_seq * s->n_v_heads * (int64_t)s->k_dim * s->v_dim, 5, 0.2);
    a->scratch = ref_new(DT_F32, OPS(f)->delta_scratch_elems(&f->dev, &a->d, true));
    assert_true(OPS(f)->delta_scratch_elems(&f->dev, &a->d, false) <= a->scratch.n);
}

static void drop(arrays *a)
{
    ref_array *const all[] = {&a->x,    &a->g,  &a->beta, &a->out,   &a->state,
                              &a->dout, &a->dx, &a->dg,   &a->dbeta, &a->scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) ref_drop(all[i]);
}

static dt_delta on_the_device(fixture *f, arrays *a)
{
    dt_delta d = a->d;
    d.q_start = ARR(a->starts, d.n_seq + 1);
    if (d.state_row) d.state_row = ARR(a->rows, d.n_seq);
    return d;
}

static void forward(fixture *f, arrays *a, bool with_state)
{
    const dt_delta d = on_the_device(f, a);
    RUN(delta_forward, &d, ON(a->x), ON_FROM(a->x, a->K), ON_FROM(a->x, 2 * a->K), ON(a->g), ON(a->beta), ON(a->out),
        with_state ? ON(a->state) : NULL, ON(a->scratch));
}
static void step(fixture *f, arrays *a)
{
    const dt_delta d = on_the_device(f, a);
    RUN(delta_step, &d, ON(a->x), ON_FROM(a->x, a->K), ON_FROM(a->x, 2 * a->K), ON(a->g), ON(a->beta), ON(a->out),
        ON(a->state));
}
static void backward(fixture *f, arrays *a)
{
    const dt_delta d = on_the_device(f, a);
    RUN(delta_backward, &d, ON(a->x), ON_FROM(a->x, a->K), ON_FROM(a->x, 2 * a->K), ON(a->g), ON(a->beta), ON(a->dout),
        ON(a->dx), ON_FROM(a->dx, a->K), ON_FROM(a->dx, 2 * a->K), ON(a->dg), ON(a->dbeta), ON(a->scratch));
}

/* The same arrays in double. */
typedef struct doubles {
    double *x, *g, *beta, *out, *state, *dout, *dx, *dg, *dbeta;
    ref_delta r;
} doubles;

static doubles in_double(const arrays *a, bool with_state)
{
    doubles w = {ref_doubles(&a->x),     ref_doubles(&a->g),
                 ref_doubles(&a->beta),  ref_doubles(&a->out),
                 ref_doubles(&a->state), ref_doubles(&a->dout),
                 ref_doubles(&a->dx),    ref_doubles(&a->dg),
                 ref_doubles(&a->dbeta), {0}};
    w.r = (ref_delta){w.x,  w.x + a->K,  w.x + 2 * a->K,  w.g,  w.beta, w.out, with_state ? w.state : NULL, w.dout,
                      w.dx, w.dx + a->K, w.dx + 2 * a->K, w.dg, w.dbeta};
    return w;
}

static void drop_doubles(doubles *w)
{
    free(w->x), free(w->g), free(w->beta), free(w->out), free(w->state), free(w->dout), free(w->dx), free(w->dg),
        free(w->dbeta);
}

/* Elements between rows: not written. */
static void clear_gaps(ref_array *a, double *want)
{
    for (int64_t i = 0; i < a->n; i++) {
        if (!isnan(want[i])) continue;
        assert_true(isnan(ref_get(a, i)));
        ref_set(a, i, 0), want[i] = 0;
    }
}

/* Rows of a chunk depend on each other through sums of up to 64 terms of float and a triangular system, whose inverse
 * is small as |k| = 1 and beta <= 1. Errors relative to the largest result. */
static void expect_near(ref_array *a, double *want, double units, const char *what)
{
    clear_gaps(a, want);
    assert_true(ref_near(a, want, units * 0x1p-24 * (0.01 + ref_largest(want, a->n)), what));
}

TEST(chunks_and_tokens_follow_the_rule)
{
    fixture *f = *state;
    for (int i = 0; i < N_SHAPES; i++)
        for (int t = 0; t < N_TYPES; t++)
            for (int way = 0; way < 3 * N_DECAYS; way++) {
                if (!is_tried()) continue;
                arrays a;
                make(f, &a, &shapes[i], way / 3, types[t]);
                if (way % 2) a.d.state_row = NULL;
                doubles w = in_double(&a, way % 3 > 0);
                ref_delta_forward(&a.d, &w.r);
                if (way % 3 == 2)
                    step(f, &a);
                else
                    forward(f, &a, way % 3 == 1);
                expect_near(&a.out, w.out, 64, "out");
                expect_near(&a.state, w.state, 64, "state");
                drop_doubles(&w), drop(&a);
            }
}

/* dg_i has the factor e^(g_i): it is small where the decay is strong, and the gradient of a_log multiplies it by g_i.
 * Its error is small relative to this factor, too. */
static void expect_decay_gradients_near(ref_array *dg, const double *want, const ref_array *g)
{
    double largest = 0; /* of dg e^-g, where that is a number */
    for (int64_t i = 0; i < dg->n; i++)
        if (ref_get(g, i) > -30) largest = fmax(largest, fabs(want[i]) * exp(-ref_get(g, i)));
    for (int64_t i = 0; i < dg->n; i++) {
        const double error = fabs(ref_get(dg, i) - want[i]), most = 256 * 0x1p-24 * exp(ref_get(g, i)) * (1 + largest);
        if (error > most + 0x1p-126)
            fail_msg("dg[%d] of g %g: %g, expected %g", (int)i, ref_get(g, i), ref_get(dg, i), want[i]);
    }
}

TEST(gradients_come_back)
{
    fixture *f = *state;
    for (int i = 0; i < N_SHAPES; i++)
        for (int t = 0; t < N_TYPES; t++)
            for (int decay = 0; decay < N_DECAYS; decay++) {
                if (!is_tried()) continue;
                arrays a;
                make(f, &a, &shapes[i], decay, types[t]);
                doubles w = in_double(&a, false);
                ref_delta_backward(&a.d, &w.r);
                backward(f, &a);
                expect_near(&a.dx, w.dx, 256, "gradients of q, k and v");
                expect_near(&a.dg, w.dg, 256, "dg");
                expect_decay_gradients_near(&a.dg, w.dg, &a.g);
                expect_near(&a.dbeta, w.dbeta, 256, "dbeta");
                drop_doubles(&w), drop(&a);
            }
}

/* The reference's gradients against differences of its results. */
static double objective(const arrays *a, doubles *w)
{
    double sum = 0;
    ref_delta_forward(&a->d, &w->r);
    for (int64_t row = 0; row < a->d.n_tok; row++)
        for (int64_t c = 0; c < a->d.n_v_heads * a->d.v_dim; c++)
            sum += w->out[row * a->d.o_ld + c] * w->dout[row * a->d.o_ld + c];
    return sum;
}

TEST(gradients_are_differences)
{
    fixture *f = *state;
    arrays a;
    make(f, &a, &shapes[2], USUAL, DT_F32);
    doubles w = in_double(&a, false);
    ref_delta_backward(&a.d, &w.r);
    const struct {
        double *x;
        const double *dx;
        int64_t n;
    } inputs[] = {{w.x, w.dx, a.x.n}, {w.g, w.dg, a.g.n}, {w.beta, w.dbeta, a.beta.n}};
    for (int i = 0; i < 3; i++)
        for (int64_t at = 0; at < inputs[i].n; at += 1 + inputs[i].n / 40) {
            const double h = 1e-5, x = inputs[i].x[at];
            inputs[i].x[at] = x + h;
            const double more = objective(&a, &w);
            inputs[i].x[at] = x - h;
            const double less = objective(&a, &w);
            inputs[i].x[at] = x;
            if (isnan(inputs[i].dx[at])) continue;
            assert_true(fabs((more - less) / (2 * h) - inputs[i].dx[at]) < 1e-6 * (1 + fabs(inputs[i].dx[at])));
        }
    drop_doubles(&w), drop(&a);
}

/* Sequence `seq` of a as the only one. */
static arrays alone(fixture *f, const arrays *a, const struct shape *s, int seq)
{
    arrays b;
    struct shape one = *s;
    one.n_seq = 1, one.len[0] = s->len[seq];
    make(f, &b, &one, USUAL, a->d.dt);
    const size_t size = dt_dtype_size(a->d.dt), heads = (size_t)s->n_v_heads * sizeof(float);
    const size_t row = (size_t)a->starts[seq];
    memcpy(b.x.p, (char *)a->x.p + row * (size_t)a->d.x_ld * size, ref_bytes(&b.x));
    memcpy(b.dout.p, (char *)a->dout.p + row * (size_t)a->d.o_ld * size, ref_bytes(&b.dout));
    memcpy(b.g.p, (char *)a->g.p + row * heads, ref_bytes(&b.g));
    memcpy(b.beta.p, (char *)a->beta.p + row * heads, ref_bytes(&b.beta));
    memcpy(b.state.p, (char *)a->state.p + (size_t)a->rows[seq] * ref_bytes(&b.state), ref_bytes(&b.state));
    return b;
}

/* A packed document has the bits of the same document in a row of its own. */
TEST(documents_are_separate)
{
    fixture *f = *state;
    for (int t = 0; t < N_TYPES; t++)
        for (int way = 0; way < 3; way++) {
            arrays a;
            const struct shape *s = &shapes[1 + t % 2];
            make(f, &a, s, USUAL, types[t]);
            if (way == 0) forward(f, &a, true);
            if (way == 1) step(f, &a);
            if (way == 2) backward(f, &a);
            arrays c;
            make(f, &c, s, USUAL, types[t]); /* as a was */
            for (int seq = 0; seq < s->n_seq; seq++) {
                arrays b = alone(f, &c, s, seq);
                if (way == 0) forward(f, &b, true);
                if (way == 1) step(f, &b);
                if (way == 2) backward(f, &b);
                const size_t row = (size_t)a.starts[seq], size = dt_dtype_size(types[t]);
                if (way == 2) {
                    assert_memory_equal(b.dx.p, (char *)a.dx.p + row * (size_t)a.d.x_ld * size, ref_bytes(&b.dx));
                    assert_memory_equal(b.dg.p, (char *)a.dg.p + row * (size_t)s->n_v_heads * 4, ref_bytes(&b.dg));
                } else {
                    assert_memory_equal(b.out.p, (char *)a.out.p + row * (size_t)a.d.o_ld * size, ref_bytes(&b.out));
                    assert_memory_equal(b.state.p, (char *)a.state.p + (size_t)a.rows[seq] * ref_bytes(&b.state),
                                        ref_bytes(&b.state));
                }
                drop(&b);
            }
            drop(&a), drop(&c);
        }
}

/* Tokens n .. of a's only sequence. */
static void run_part(fixture *f, arrays *a, int32_t first, int32_t n, bool chunks)
{
    arrays b = *a;
    const int64_t heads = a->d.n_v_heads;
    b.starts[1] = n;
    b.d.n_tok = b.d.max_len = n, b.d.q_start = b.starts, b.d.state_row = NULL;
    const dt_delta d = on_the_device(f, &b);
    const int64_t at = first * a->d.x_ld;
    if (chunks)
        RUN(delta_forward, &d, ON_FROM(a->x, at), ON_FROM(a->x, at + a->K), ON_FROM(a->x, at + 2 * a->K),
            (float *)(void *)ON_FROM(a->g, first * heads), (float *)(void *)ON_FROM(a->beta, first * heads),
            ON_FROM(a->out, first * a->d.o_ld), ON(a->state), ON(a->scratch));
    else
        RUN(delta_step, &d, ON_FROM(a->x, at), ON_FROM(a->x, at + a->K), ON_FROM(a->x, at + 2 * a->K),
            (float *)(void *)ON_FROM(a->g, first * heads), (float *)(void *)ON_FROM(a->beta, first * heads),
            ON_FROM(a->out, first * a->d.o_ld), ON(a->state));
}

/* A prompt in one call or several, then token by token. Cuts between chunks, and between single tokens, change no
 * bit. */
TEST(a_sequence_continues)
{
    fixture *f = *state;
    const struct shape s = {1, 2, 24, 17, 1, {150}};
    arrays a, b;
    for (int way = 0; way < 3; way++) {
        make(f, &a, &s, USUAL, DT_F32), make(f, &b, &s, USUAL, DT_F32);
        if (way == 0) { /* chunks */
            run_part(f, &a, 0, 150, true);
            run_part(f, &b, 0, 64, true), run_part(f, &b, 64, 86, true);
        } else if (way == 1) { /* tokens */
            run_part(f, &a, 0, 150, false);
            for (int32_t i = 0; i < 150; i++) run_part(f, &b, i, 1, false);
        } else { /* chunks, then tokens: near what tokens alone give */
            run_part(f, &a, 0, 150, false);
            run_part(f, &b, 0, 97, true), run_part(f, &b, 97, 53, false);
            double *out = ref_doubles(&a.out), *S = ref_doubles(&a.state);
            expect_near(&b.out, out, 64, "out"), expect_near(&b.state, S, 64, "state");
            free(out), free(S);
        }
        if (way < 2) {
            assert_memory_equal(a.out.p, b.out.p, ref_bytes(&a.out));
            assert_memory_equal(a.state.p, b.state.p, ref_bytes(&a.state));
        }
        drop(&a), drop(&b);
    }
}

TEST(inconsistent_values_are_refused)
{
    fixture *f = *state;
    const struct shape s = {1, 2, 4, 4, 1, {3}};
    for (int i = 0; i < 6; i++) {
        arrays a;
        make(f, &a, &s, USUAL, DT_F32);
        if (i == 0) a.d.n_v_heads = 0;
        if (i == 1) a.d.n_k_heads = 3;
        if (i == 2) a.d.k_dim = 257, a.d.x_ld = 1000;
        if (i == 3) a.d.x_ld = 3;
        if (i == 4) a.d.o_ld = 7;
        if (i == 5) a.d.max_len = 4;
        const dt_delta d = on_the_device(f, &a);
        assert_fails(TRY(delta_step, &d, ON(a.x), ON(a.x), ON(a.x), ON(a.g), ON(a.beta), ON(a.out), ON(a.state)),
                     DT_ERR_ARG, "delta");
        drop(&a);
    }
}

int main(void) { return run_with_each_isa() != 0; }
