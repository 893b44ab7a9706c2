// NP: 1 2 4
// QUICK: 2 4
/* mpi_mesh.c - a model that is divided by tensor and context parallelism trains to the numbers of one rank, at every
 * stage of ZeRO on the remaining axis, and its checkpoints do not depend on the mesh. The model is this file's own: an
 * attention over a sequence whose tokens are divided on the axis cp, and two linear layers that are divided on the axis
 * tp, by rows and by columns.
 *
 *     r = x + softmax(q k^T / sqrt(C)) v,   q, k, v = x Wq^T, x Wk^T, x Wv^T
 *     y = tanh((gain r) W1^T) W2^T + bias,  loss = sum (y - target)^2 / 2 / number of tokens
 *
 * One rank computes the same, in the same functions, with undivided axes. Sums have other orders on other meshes, so
 * numbers agree up to rounding. */
#include "ranks.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "../src/task/pairs.h"

enum { C = 8, F = 16, T = 8, N_SEQUENCES = 4, N_STEPS = 6, N_SAVED = 3, N_UNITS = 3 };
enum { Q, K, V, GAIN, UP, DOWN, BIAS, N_TENSORS };

static const struct {
    const char *name;
    int unit, n_dims;
    int64_t shape[2];
    int split; /* on the axis tp */
} table[N_TENSORS] = {{"attn.q", 0, 2, {C, C}, -1}, {"attn.k", 0, 2, {C, C}, -1}, {"attn.v", 0, 2, {C, C}, -1},
                      {"up.gain", 1, 1, {C}, -1},   {"up.w", 1, 2, {F, C}, 0},    {"down.w", 2, 2, {C, F}, 1},
                      {"down.bias", 2, 1, {C}, -1}};

/** Values of all tensors, whole or a rank's part. */
typedef struct weights {
    float at[N_TENSORS][F * C];
} weights;

typedef struct model {
    const dt_axis *tp, *cp, *data; /* NULL: of one rank */
    weights w, g;                  /* g: gradients of a micro-step */
    int f, t;                      /* hidden width and tokens of this rank */
} model;

static dt_err make_units(dt_unit units[N_UNITS], const dt_axis *tp)
{
    static const char *const names[N_UNITS] = {"attn", "up", "down"};
    memset(units, 0, N_UNITS * sizeof *units);
    for (int u = 0; u < N_UNITS; u++) snprintf(units[u].name, sizeof units[u].name, "%s", names[u]);
    for (int k = 0; k < N_TENSORS; k++) {
        dt_unit *u = &units[table[k].unit];
        const int split = table[k].split;
        int64_t shape[2] = {table[k].shape[0], table[k].shape[1]};
        if (split >= 0) shape[split] /= tp->size;
        DT_TRY(dt_unit_add(u, table[k].name, table[k].n_dims, shape, true, true, 0.3f, 0));
        dt_tensor *t = &u->tensors[u->n_tensors - 1];
        t->split = split;
        if (split >= 0 && tp->size > 1)
            t->split_first = tp->rank * shape[split], t->split_whole = table[k].shape[split];
    }
    return DT_OK;
}

static float input(int sequence, int t, int c, int salt)
{
    return (float)((int)(dt_mix64((uint64_t)(((sequence * T + t) * C + c) * 4 + salt)) % 33) - 16) / 16;
}

/* ---- plain linear algebra ---------------------------------------------------------------------------------------- */

/** y[t][o] (+)= sum over i of x[t][i] w[o][i] */
static void forward(const float *x, const float *w, float *y, int n_tok, int n_out, int n_in)
{
    for (int t = 0; t < n_tok; t++)
        for (int o = 0; o < n_out; o++) {
            y[t * n_out + o] = 0;
            for (int i = 0; i < n_in; i++) y[t * n_out + o] += x[t * n_in + i] * w[o * n_in + i];
        }
}

/** dx[t][i] = sum over o of dy[t][o] w[o][i];  dw[o][i] += sum over t of dy[t][o] x[t][i] */
static void backward(const float *dy, const float *x, const float *w, float *dx, float *dw, int n_tok, int n_out,
                     int n_in)
{
    for (int t = 0; t < n_tok; t++)
        for (int i = 0; i < n_in; i++) {
            float sum = 0;
            for (int o = 0; o < n_out; o++) {
                sum += dy[t * n_out + o] * w[o * n_in + i];
                dw[o * n_in + i] += dy[t * n_out + o] * x[t * n_in + i];
            }
            if (dx) dx[t * n_in + i] = sum;
        }
}

static dt_err sum_over_tp(const model *m, float *x, int64_t n)
{
    return m->tp ? dt_comm_all_reduce(m->tp, x, DT_F32, n, false, NULL) : DT_OK;
}

/* ---- attention over divided tokens ------------------------------------------------------------------------------- */

/** The rows [t] of all ranks of an axis in rank order. whole: [T][C] */
static dt_err all_rows(const model *m, const float *own, float *whole)
{
    const size_t nbytes = (size_t)(m->t * C) * sizeof *own;
    if (m->cp) return dt_comm_all_gather(m->cp, own, whole, nbytes, NULL);
    memcpy(whole, own, nbytes);
    return DT_OK;
}

/** Probabilities of the token with index `at` over tokens 0 .. at. */
static void probabilities(const float *q, const float *k, int at, float *p)
{
    float most = -INFINITY, sum = 0;
    for (int s = 0; s <= at; s++) {
        p[s] = 0;
        for (int c = 0; c < C; c++) p[s] += q[c] * k[s * C + c];
        p[s] /= sqrtf(C);
        most = fmaxf(most, p[s]);
    }
    for (int s = 0; s <= at; s++) sum += p[s] = expf(p[s] - most);
    for (int s = 0; s <= at; s++) p[s] /= sum;
}

typedef struct attention {
    float q[T * C], k[T * C], v[T * C], own[T * C]; /* k, v: of all tokens */
} attention;

static dt_err attend(const model *m, attention *a, const float *x, float *out)
{
    const int first = m->cp ? m->cp->rank * m->t : 0;
    forward(x, m->w.at[Q], a->q, m->t, C, C);
    forward(x, m->w.at[K], a->own, m->t, C, C);
    DT_TRY(all_rows(m, a->own, a->k));
    forward(x, m->w.at[V], a->own, m->t, C, C);
    DT_TRY(all_rows(m, a->own, a->v));
    for (int t = 0; t < m->t; t++) {
        float p[T];
        probabilities(a->q + t * C, a->k, first + t, p);
        for (int c = 0; c < C; c++) {
            out[t * C + c] = 0;
            for (int s = 0; s <= first + t; s++) out[t * C + c] += p[s] * a->v[s * C + c];
        }
    }
    return DT_OK;
}

/** Sum of the contributions to each token on the rank that has it. */
static dt_err collect(const model *m, const float *whole, float *own)
{
    const int64_t n = m->t * C;
    if (m->cp) return dt_comm_reduce_scatter(m->cp, whole, DT_F32, own, DT_F32, n, false, false, NULL);
    memcpy(own, whole, (size_t)n * sizeof *own);
    return DT_OK;
}

static dt_err attend_backward(model *m, const attention *a, const float *x, const float *dout)
{
    const int first = m->cp ? m->cp->rank * m->t : 0;
    float dq[T * C] = {0}, dk[T * C] = {0}, dv[T * C] = {0}, own[T * C];
    for (int t = 0; t < m->t; t++) {
        float p[T], dp[T], mean = 0;
        probabilities(a->q + t * C, a->k, first + t, p);
        for (int s = 0; s <= first + t; s++) {
            dp[s] = 0;
            for (int c = 0; c < C; c++) {
                dp[s] += dout[t * C + c] * a->v[s * C + c];
                dv[s * C + c] += p[s] * dout[t * C + c];
            }
            mean += p[s] * dp[s];
        }
        for (int s = 0; s <= first + t; s++)
            for (int c = 0; c < C; c++) {
                const float ds = p[s] * (dp[s] - mean) / sqrtf(C);
                dq[t * C + c] += ds * a->k[s * C + c];
                dk[s * C + c] += ds * a->q[t * C + c];
            }
    }
    backward(dq, x, m->w.at[Q], NULL, m->g.at[Q], m->t, C, C);
    DT_TRY(collect(m, dk, own));
    backward(own, x, m->w.at[K], NULL, m->g.at[K], m->t, C, C);
    DT_TRY(collect(m, dv, own));
    backward(own, x, m->w.at[V], NULL, m->g.at[V], m->t, C, C);
    return DT_OK;
}

/* ---- the whole model --------------------------------------------------------------------------------------------- */

/** Add the gradients of a sequence, divided by the number of all tokens. */
static dt_err run_sequence(model *m, int sequence)
{
    const int n = m->t * C, first = m->cp ? m->cp->rank * m->t : 0;
    float x[T * C], r[T * C], scaled[T * C], hidden[T * F], y[T * C], dy[T * C], dhidden[T * F];
    attention a;
    for (int i = 0; i < n; i++) x[i] = input(sequence, first + i / C, i % C, 0);
    DT_TRY(attend(m, &a, x, r));
    for (int i = 0; i < n; i++) r[i] += x[i], scaled[i] = r[i] * m->w.at[GAIN][i % C];
    forward(scaled, m->w.at[UP], hidden, m->t, m->f, C);
    for (int i = 0; i < m->t * m->f; i++) hidden[i] = tanhf(hidden[i]);
    forward(hidden, m->w.at[DOWN], y, m->t, C, m->f);
    DT_TRY(sum_over_tp(m, y, n)); /* each rank has the sum over its columns */
    for (int i = 0; i < n; i++) {
        dy[i] = (y[i] + m->w.at[BIAS][i % C] - input(sequence, first + i / C, i % C, 1)) / (N_SEQUENCES * T);
        m->g.at[BIAS][i % C] += dy[i];
    }
    backward(dy, hidden, m->w.at[DOWN], dhidden, m->g.at[DOWN], m->t, C, m->f);
    for (int i = 0; i < m->t * m->f; i++) dhidden[i] *= 1 - hidden[i] * hidden[i];
    float d[T * C];
    backward(dhidden, scaled, m->w.at[UP], d, m->g.at[UP], m->t, m->f, C);
    DT_TRY(sum_over_tp(m, d, n)); /* of its rows */
    for (int i = 0; i < n; i++) {
        m->g.at[GAIN][i % C] += d[i] * r[i];
        d[i] *= m->w.at[GAIN][i % C];
    }
    return attend_backward(m, &a, x, d);
}

static const dt_optimizer_step settings = {
    .lr = 0.02, .weight_decay = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-3, .grad_scale = 1};

/* ---- one rank ---------------------------------------------------------------------------------------------------- */

/** Parameters before the first step and after each; sum of squares of each step's gradients. */
static struct {
    weights w[N_STEPS + 1];
    double squares[N_STEPS + 1];
} one;

static int64_t n_of(int k) { return table[k].shape[0] * (table[k].n_dims > 1 ? table[k].shape[1] : 1); }

static void train_on_one_rank(const weights *start)
{
    static model m;
    static weights moment[2];
    m = (model){.w = *start, .f = F, .t = T};
    memset(moment, 0, sizeof moment);
    one.w[0] = *start;
    for (int step = 1; step <= N_STEPS; step++) {
        memset(&m.g, 0, sizeof m.g);
        for (int s = 0; s < N_SEQUENCES; s++) assert_int_equal(run_sequence(&m, s), DT_OK);
        one.squares[step] = 0;
        for (int k = 0; k < N_TENSORS; k++)
            for (int64_t i = 0; i < n_of(k); i++) {
                const double g = m.g.at[k][i], b1 = settings.beta1, b2 = settings.beta2;
                float *m1 = &moment[0].at[k][i], *m2 = &moment[1].at[k][i], *w = &m.w.at[k][i];
                one.squares[step] += g * g;
                *m1 = (float)(b1 * *m1 + (1 - b1) * g), *m2 = (float)(b2 * *m2 + (1 - b2) * g * g);
                const double up = *m1 / (1 - pow(b1, step)) / (sqrt(*m2 / (1 - pow(b2, step))) + settings.eps);
                *w = (float)(*w - settings.lr * (up + settings.weight_decay * *w));
            }
        one.w[step] = m.w;
    }
}

/* ---- ranks on a mesh --------------------------------------------------------------------------------------------- */

typedef struct fixture {
    dt_ledger ledger;
    dt_device dev;
    dt_comm comm;
    dt_unit units[N_UNITS];
    dt_zero *z;
    model m;
} fixture;

static bool open_states(fixture *f, const dt_mesh_shape *shape, int stage, dt_dtype state_dtype)
{
    memset(f, 0, sizeof *f);
    const dt_zero_options opt = {.stage = stage,
                                 .param_dtype = DT_F32,
                                 .grad_dtype = DT_F32,
                                 .optimizer = &dt_optimizer_adamw,
                                 .state_dtype = state_dtype,
                                 .tied_unit = -1};
    bool ok = dt_comm_open(&f->comm) == DT_OK && dt_device_open(&f->dev, "cpu", 0, 1, &f->ledger) == DT_OK &&
              dt_comm_mesh(&f->comm, shape) == DT_OK && dt_comm_attach(&f->comm, &f->dev, "mpi", true) == DT_OK;
    const dt_mesh *mesh = &f->comm.mesh;
    f->m = (model){.tp = &mesh->tp, .cp = &mesh->cp, .data = &mesh->data, .f = F / shape->tp, .t = T / shape->cp};
    f->comm.check = true;
    const dt_comm_shape planned = {f->comm.nranks, f->comm.local_nranks, 1, true, *shape};
    const dt_memory held = dt_ledger_now(&f->ledger), plan = dt_comm_plan("mpi", &f->dev, &planned);
    ok = ok && held.at[DT_MEM_STAGING][DT_ON_HOST] == plan.at[DT_MEM_STAGING][DT_ON_HOST];
    ok = ok && make_units(f->units, &mesh->tp) == DT_OK;
    return ok && dt_zero_open(&f->z, &opt, f->units, N_UNITS, &f->comm, &f->dev, NULL, NULL) == DT_OK;
}

static bool open_run(fixture *f, const dt_mesh_shape *shape, int stage) { return open_states(f, shape, stage, DT_F32); }

static void close_run(fixture *f)
{
    dt_zero_close(f->z);
    for (int u = 0; u < N_UNITS; u++) dt_unit_free(&f->units[u]);
    f->comm.check = false;
    dt_comm_close(&f->comm);
    dt_device_close(&f->dev);
}

/** The tensor of table entry k in its unit. */
static const dt_tensor *tensor_of(const dt_unit *units, int k)
{
    const dt_unit *u = &units[table[k].unit];
    for (int i = 0; i < u->n_tensors; i++)
        if (!strcmp(u->tensors[i].name, table[k].name)) return &u->tensors[i];
    return NULL;
}

static dt_err fetch_weights(fixture *f, dt_param_source *src)
{
    for (int u = 0; u < N_UNITS; u++) {
        dt_param_view view;
        DT_TRY(src->params_acquire(src->self, u, &view));
        for (int k = 0; k < N_TENSORS; k++) {
            const dt_tensor *t = tensor_of(f->units, k);
            if (table[k].unit == u)
                memcpy(f->m.w.at[k], (const float *)view.part[DT_TRAINED].data + t->offset, (size_t)t->n_elems * 4);
        }
        DT_TRY(src->params_release(src->self, u));
    }
    return DT_OK;
}

static dt_err give_gradients(fixture *f, dt_param_source *src)
{
    for (int u = N_UNITS - 1; u >= 0; u--) {
        dt_grad_view view;
        DT_TRY(src->grads_acquire(src->self, u, &view));
        for (int k = 0; k < N_TENSORS; k++) {
            const dt_tensor *t = tensor_of(f->units, k);
            float *to = (float *)view.data + t->offset;
            for (int64_t i = 0; i < t->n_elems && table[k].unit == u; i++)
                to[i] = (view.accumulate ? to[i] : 0) + f->m.g.at[k][i];
        }
        DT_TRY(src->grads_release(src->self, u));
    }
    return DT_OK;
}

/** Steps first .. last; every micro-step is a sequence. squares: out, of the last step's gradients. */
static dt_err train(fixture *f, int first, int last, double *squares)
{
    dt_param_source src = dt_zero_source(f->z);
    const int n_micro = N_SEQUENCES / f->m.data->size;
    for (int step = first; step <= last; step++) {
        for (int i = 0; i < n_micro; i++) {
            dt_zero_begin_micro(f->z, i, n_micro);
            DT_TRY(fetch_weights(f, &src));
            memset(&f->m.g, 0, sizeof f->m.g);
            DT_TRY(run_sequence(&f->m, i * f->m.data->size + f->m.data->rank));
            DT_TRY(give_gradients(f, &src));
        }
        DT_TRY(dt_zero_grad_sum_squares(f->z, squares));
        DT_TRY(dt_comm_reduce_host_f64(dt_comm_all(&f->comm), squares, 1, DT_SUM));
        dt_optimizer_step one_step = settings;
        one_step.t = step;
        DT_TRY(dt_zero_update(f->z, &one_step, NULL));
    }
    return DT_OK;
}

/** Does this rank's part of every tensor equal the one rank's, up to rounding? */
static bool is_like_one(fixture *f, int step)
{
    dt_param_source src = dt_zero_source(f->z);
    dt_zero_begin_micro(f->z, 0, 1);
    bool ok = fetch_weights(f, &src) == DT_OK;
    dt_zero_discard(f->z);
    for (int k = 0; k < N_TENSORS && ok; k++) {
        const dt_tensor *t = tensor_of(f->units, k);
        for (int64_t i = 0; i < t->n_elems && ok; i++) {
            const float got = f->m.w.at[k][i], want = one.w[step].at[k][dt_tensor_run_of(t, i, 1).whole];
            ok = fabsf(got - want) <= (step == 0 ? 0 : 2e-5f);
            if (!ok)
                print_error("after step %d: %s[%lld] is %.9g, on one rank %.9g\n", step, t->name, (long long)i,
                            (double)got, (double)want);
        }
    }
    return ok;
}

static bool trains_like_one(fixture *f, int first, int last)
{
    double squares = 0;
    bool ok = train(f, first, last, &squares) == DT_OK;
    if (ok && fabs(squares - one.squares[last]) > 2e-5 * one.squares[last]) {
        print_error("step %d: the sum of squares is %.17g, on one rank %.17g\n", last, squares, one.squares[last]);
        ok = false;
    }
    return is_like_one(f, last) && ok;
}

static dt_err save(fixture *f, int64_t step, const char *path)
{
    const dt_ckpt_meta meta = {.step = step, .updates = step, .lr = -1, .config = "[run]\n", .model_config = "{}"};
    return dt_checkpoint_save_as(&f->comm, f->z, &meta, path, NULL);
}

static const dt_mesh_shape flat = {1, 1, false};

static void begin_from_random(void)
{
    static fixture f;
    static weights start;
    bool ok = open_run(&f, &flat, 0) && dt_zero_init_random(f.z, 5) == DT_OK;
    dt_param_source src = dt_zero_source(f.z);
    dt_zero_begin_micro(f.z, 0, 1);
    ok = ok && fetch_weights(&f, &src) == DT_OK;
    dt_zero_discard(f.z);
    start = f.m.w;
    close_run(&f);
    assert_all(MPI_COMM_WORLD, ok);
    train_on_one_rank(&start);
}

static dt_err load(fixture *f, const char *path)
{
    const dt_saved_model saved = {.zero = f->z, .with_states = true};
    return dt_checkpoint_load_all(&f->comm, &saved, 1, path, NULL);
}

/** Train on a mesh, save; continue without it, save; continue on the mesh. */
static void check_mesh(const dt_mesh_shape *shape, int stage)
{
    static fixture f;
    char dir[32], there[PATH_MAX], back[PATH_MAX];
    assert_all(MPI_COMM_WORLD, open_run(&f, shape, stage));
    assert_all(MPI_COMM_WORLD, make_folder(&f.comm, MPI_COMM_WORLD, "/tmp/dtrain-mesh-XXXXXX", dir));
    in_folder(dir, "mesh.h5", there), in_folder(dir, "flat.h5", back);
    assert_all(MPI_COMM_WORLD, dt_zero_init_random(f.z, 5) == DT_OK && is_like_one(&f, 0));
    assert_all(MPI_COMM_WORLD, trains_like_one(&f, 1, 1));
    assert_all(MPI_COMM_WORLD, trains_like_one(&f, 2, N_SAVED));
    assert_all(MPI_COMM_WORLD, save(&f, N_SAVED, there) == DT_OK);
    close_run(&f);
    assert_all(MPI_COMM_WORLD, open_run(&f, &flat, 3 - stage));
    assert_all(MPI_COMM_WORLD, load(&f, there) == DT_OK && is_like_one(&f, N_SAVED));
    assert_all(MPI_COMM_WORLD, trains_like_one(&f, N_SAVED + 1, N_SAVED + 1));
    assert_all(MPI_COMM_WORLD, save(&f, N_SAVED + 1, back) == DT_OK);
    close_run(&f);
    assert_all(MPI_COMM_WORLD, open_run(&f, shape, stage));
    assert_all(MPI_COMM_WORLD, load(&f, back) == DT_OK);
    assert_all(MPI_COMM_WORLD, trains_like_one(&f, N_SAVED + 2, N_STEPS));
    assert_all(MPI_COMM_WORLD, remove_folder(&f.comm, MPI_COMM_WORLD, dir));
    close_run(&f);
}

static void check_shapes(const dt_mesh_shape *shapes, int n)
{
    int nranks;
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    begin_from_random();
    for (int i = 0; i < n; i++)
        for (int stage = 0; stage <= 3 && nranks % (shapes[i].tp * shapes[i].cp) == 0; stage++)
            check_mesh(&shapes[i], stage);
}

TEST(undivided_ranks_train_like_one) { check_shapes(&flat, 1); }

TEST(a_tensor_parallel_linear_layer_trains_like_one_rank)
{
    static const dt_mesh_shape shapes[] = {{2, 1, false}, {4, 1, false}};
    check_shapes(shapes, 2);
}

TEST(a_context_parallel_attention_trains_like_one_rank)
{
    static const dt_mesh_shape shapes[] = {{1, 2, false}, {1, 4, false}};
    check_shapes(shapes, 2);
}

TEST(both_together_train_like_one_rank)
{
    static const dt_mesh_shape shapes[] = {{2, 2, false}};
    check_shapes(shapes, 1);
}

/** Three steps with gradients that depend only on the element of the whole tensor. */
static dt_err step_by_element(fixture *f)
{
    dt_param_source src = dt_zero_source(f->z);
    dt_optimizer_step step = settings;
    for (step.t = 1; step.t <= 3; step.t++) {
        dt_zero_begin_micro(f->z, 0, 1);
        DT_TRY(fetch_weights(f, &src));
        memset(&f->m.g, 0, sizeof f->m.g);
        for (int k = 0; k < N_TENSORS && f->comm.mesh.sum.rank == 0; k++) {
            const dt_tensor *t = tensor_of(f->units, k);
            for (int64_t i = 0; i < t->n_elems; i++)
                f->m.g.at[k][i] = input(k, 0, (int)dt_tensor_run_of(t, i, 1).whole, (int)step.t) + 0.013f;
        }
        DT_TRY(give_gradients(f, &src));
        DT_TRY(dt_zero_update(f->z, &step, NULL));
    }
    dt_zero_begin_micro(f->z, 0, 1);
    DT_TRY(fetch_weights(f, &src));
    dt_zero_discard(f->z);
    return DT_OK;
}

TEST(states_of_16_bits_are_rounded_by_the_element_of_the_whole_tensor)
{
    static const dt_mesh_shape shapes[] = {{1, 1, false}, {2, 1, false}, {4, 1, false}, {2, 2, false}};
    static fixture f;
    static weights first;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int stage = 0; stage <= 3; stage++) {
            int nranks;
            MPI_Comm_size(MPI_COMM_WORLD, &nranks);
            if (nranks % (shapes[s].tp * shapes[s].cp)) continue;
            bool ok = open_states(&f, &shapes[s], stage, DT_BF16) && dt_zero_init_random(f.z, 5) == DT_OK &&
                      step_by_element(&f) == DT_OK;
            if (s == 0 && stage == 0) first = f.m.w;
            for (int k = 0; k < N_TENSORS && ok; k++) {
                const dt_tensor *t = tensor_of(f.units, k);
                for (int64_t i = 0; i < t->n_elems; i++)
                    ok = ok && f.m.w.at[k][i] == first.at[k][dt_tensor_run_of(t, i, 1).whole];
                if (!ok) print_error("%s: other bits on %d x %d ranks\n", t->name, shapes[s].tp, shapes[s].cp);
            }
            close_run(&f);
            assert_all(MPI_COMM_WORLD, ok);
        }
}

/** Ranks of tp and cp have the values of the same samples. A sum over all ranks would count each several times. */
TEST(values_of_samples_are_added_once)
{
    static const dt_mesh_shape shapes[] = {{1, 1, false}, {2, 1, false}, {1, 2, false}, {2, 2, false}};
    enum { PER_RANK = 3, MAX_SAMPLES = 4 * PER_RANK };
    dt_ledger ledger = {0};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        dt_comm comm = {0};
        double x[MAX_SAMPLES] = {0};
        bool ok = dt_comm_open(&comm) == DT_OK;
        const int inner = shapes[s].tp * shapes[s].cp;
        if (comm.nranks % inner == 0) {
            ok = ok && dt_comm_mesh(&comm, &shapes[s]) == DT_OK;
            const dt_axis *data = &comm.mesh.data;
            const dt_task t = {.comm = &comm, .data = data, .ledger = &ledger};
            for (int i = 0; i < PER_RANK; i++) x[data->rank * PER_RANK + i] = 1 + data->rank * PER_RANK + i;
            ok = ok && answers_add_up(&t, x, (int64_t)data->size * PER_RANK) == DT_OK;
            for (int i = 0; i < data->size * PER_RANK; i++) ok = ok && x[i] == 1 + i;
        }
        assert_all(MPI_COMM_WORLD, ok);
        dt_comm_close(&comm);
    }
}

/** A vote is among all ranks. What the ranks of tp compute alike counts once, what is a rank's own from each. */
TEST(a_vote_counts_samples_once)
{
    static const dt_mesh_shape shapes[] = {{1, 1, false}, {2, 1, false}, {4, 1, false}};
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
        dt_comm comm = {0};
        dt_sums s = {0};
        bool ok = dt_comm_open(&comm) == DT_OK;
        if (comm.nranks % shapes[k].tp == 0) {
            ok = ok && dt_comm_mesh(&comm, &shapes[k]) == DT_OK;
            const int samples = dt_sums_declare(&s, "samples", DT_SUM_UNITS, 1),
                      loss = dt_sums_declare(&s, "loss", DT_SUM_LOSS, 1),
                      own = dt_sums_declare(&s, "own", DT_SUM_REAL, 1), n = comm.mesh.data.size;
            ok = ok && dt_sums_settle(&s, &comm) == DT_OK;
            dt_sums_count(&s, samples, 1 + comm.mesh.data.rank);
            dt_sums_add(&s, loss, 0.5 * (1 + comm.mesh.data.rank));
            dt_sums_add(&s, own, 1);
            ok = ok && dt_sums_vote(&s, &comm, &(dt_vote){0}) == DT_OK;
            ok = ok && dt_sums_value(&s, samples) == n * (n + 1) / 2 && dt_sums_value(&s, loss) == n * (n + 1) / 4.0 &&
                 dt_sums_value(&s, own) == comm.nranks;
        }
        dt_sums_close(&s);
        assert_all(MPI_COMM_WORLD, ok);
        dt_comm_close(&comm);
    }
}

MPI_TEST_MAIN(NULL, NULL)
