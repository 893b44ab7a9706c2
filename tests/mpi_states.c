// QUICK: 2 3 queue
/* mpi_states.c - optimizer states in bf16 and in 8 bits: updates against plain loops, the same bits at every stage,
 * with every offload and number of groups, the memory of the plan, and other layouts that continue.
 * NP: 1 2 3 4
 * DEVICES: cpu queue */
#include "zero_fixture.h"
#include "dtrain/device/block8.h"
#include "ref_muon.h"

enum { N_STEPS = 3, N_UNITS = 3, N_TENSORS = 7, MAX_ELEMS = 10000, MAX_BLOCKS = MAX_ELEMS / DT_BLOCK8 + 1 };

static const dt_optimizer_ops *optimizer = &dt_optimizer_adamw;

static const dt_row_range some_rows[] = {{3, 5}, {60, 90}};

/** Matrices whose size is and is not a multiple of a block, small tensors between them, one that follows another
 *  without a gap, and one of which only rows are trained. Muon updates the four of the block. */
static dt_err make_units(dt_unit units[N_UNITS])
{
    static const char *const names[N_UNITS] = {"embed", "block.0", "head"};
    const int64_t wide[] = {70, 100}, q[] = {64, 100}, k[] = {16, 100}, v[] = {51, 101}, norm[] = {100},
                  o[] = {100, 100};
    for (int u = 0; u < N_UNITS; u++) {
        snprintf(units[u].name, sizeof units[u].name, "%s", names[u]);
        units[u].trained_align = DT_BLOCK8;
    }
    DT_TRY(dt_unit_add(&units[0], "embed", 2, wide, true, true, 0, 0));
    units[0].tensors[0].kind = DT_KIND_EMBEDDING;
    DT_TRY(dt_unit_add(&units[1], "norm", 1, norm, true, false, 0, 0));
    DT_TRY(dt_unit_add(&units[1], "q", 2, q, true, true, 0, 0));
    DT_TRY(dt_unit_add(&units[1], "k", 2, k, false, true, 0, 0));
    DT_TRY(dt_unit_add(&units[1], "v", 2, v, false, true, 0, 0));
    DT_TRY(dt_unit_add(&units[1], "o", 2, o, true, true, 0, 0));
    DT_TRY(dt_unit_add(&units[2], "head", 2, o, true, false, 0, 0));
    units[2].tensors[0].kind = DT_KIND_HEAD;
    units[2].tensors[0].row_ranges = some_rows, units[2].tensors[0].n_row_ranges = 2;
    return DT_OK;
}

static int setup(void **state)
{
    if (open_ranks(state) != 0) return -1;
    return make_units(((fixture *)*state)->units) == DT_OK ? 0 : -1;
}

/* ---- layouts ----------------------------------------------------------------------------------------------------- */

static const struct layout {
    int stage;
    dt_offload optimizer, param;
    dt_dtype dtype;
    int64_t bucket; /* allgather_bucket_size; 0: no limit. No multiple of a block of 8-bit states */
} layouts[] = {
    {0, DT_OFFLOAD_NONE, DT_OFFLOAD_NONE, DT_F32, 0},  {1, DT_OFFLOAD_NONE, DT_OFFLOAD_NONE, DT_F32, 0},
    {2, DT_OFFLOAD_NONE, DT_OFFLOAD_NONE, DT_BF16, 0}, {3, DT_OFFLOAD_NONE, DT_OFFLOAD_NONE, DT_F32, 0},
    {0, DT_OFFLOAD_NONE, DT_OFFLOAD_NONE, DT_BF16, 0}, {1, DT_OFFLOAD_CPU, DT_OFFLOAD_NONE, DT_F32, 0},
    {2, DT_OFFLOAD_NVME, DT_OFFLOAD_NONE, DT_F32, 0},  {3, DT_OFFLOAD_CPU, DT_OFFLOAD_CPU, DT_BF16, 0},
    {3, DT_OFFLOAD_NVME, DT_OFFLOAD_NVME, DT_F32, 0},  {0, DT_OFFLOAD_NONE, DT_OFFLOAD_NONE, DT_F32, 1100},
    {0, DT_OFFLOAD_NONE, DT_OFFLOAD_NONE, DT_F32, 20},
};
enum { N_LAYOUTS = sizeof layouts / sizeof layouts[0] };

static dt_zero_options options(const fixture *f, const struct layout *l, dt_dtype state_dtype)
{
    return (dt_zero_options){.stage = l->stage,
                             .n_groups = n_groups,
                             .param_dtype = l->dtype,
                             .grad_dtype = DT_F32,
                             .optimizer = optimizer,
                             .state_dtype = state_dtype,
                             .seed = 5,
                             .reproducible = true,
                             .allgather_bucket_size = l->bucket,
                             .overlap_comm = l->stage & 1,
                             .tied_unit = -1,
                             .offload_optimizer = l->optimizer,
                             .offload_param = l->param,
                             .host = (dt_device *)&f->host,
                             .sub_group_size = 4096,
                             .buffer_count = 2,
                             .nvme_path = "/tmp"};
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

/** Element i of a tensor's gradient in a step, or of its start (step 0): a few binary orders. */
static float number_of(int tensor, int64_t step, int64_t i)
{
    const uint64_t h = dt_mix64((uint64_t)(i + 100000 * tensor + 10000000 * step));
    return ldexpf((float)(h % 4096) / 2048 - 1, -(int)(h >> 40) % 8);
}

static dt_err start(dt_zero *z)
{
    static float x[MAX_ELEMS];
    for (int k = 0; k < N_TENSORS; k++) {
        const dt_slice *p = &dt_zero_owned(z)[k];
        for (int64_t i = 0; i < p->n; i++) x[i] = number_of(k, 0, p->first + i);
        DT_TRY(dt_zero_state_write(z, DT_STATE_PARAM, p, 0, p->n, x));
    }
    return dt_zero_state_written(z);
}

/** Gradients of one unit, whose first tensor is the first-th of all: rank 0 contributes the values. */
static dt_err write_grads(fixture *f, dt_zero *z, int u, int first, int64_t step)
{
    const dt_unit *unit = &f->units[u];
    const dt_param_source s = dt_zero_source(z);
    dt_grad_view view;
    float *grad = calloc((size_t)unit->flat_len[DT_TRAINED], sizeof *grad);
    for (int k = 0; k < unit->n_tensors && f->comm.rank == 0; k++)
        for (int64_t i = 0; i < unit->tensors[k].n_elems; i++)
            grad[unit->tensors[k].offset + i] = number_of(first + k, step, i);
    dt_err err = s.grads_acquire(s.self, u, &view);
    if (err == DT_OK) err = ref_zero_write(&f->dev, view.data, unit->flat_len[DT_TRAINED], view.dtype, grad);
    if (err == DT_OK) err = f->dev.ops->stream_sync(&f->dev, NULL);
    free(grad);
    return err == DT_OK ? s.grads_release(s.self, u) : err;
}

static const dt_config muon_keys = {.optimizer_muon_momentum = 0.95,
                                    .optimizer_muon_nesterov = true,
                                    .optimizer_muon_ns_steps = 5,
                                    .optimizer_muon_lr_scale = "match_rms_adamw"};

static dt_optimizer_step step_at(int64_t step)
{
    return (dt_optimizer_step){.lr = 1e-2,
                               .weight_decay = 0.1,
                               .beta1 = 0.9,
                               .beta2 = 0.99,
                               .eps = 1e-6,
                               .grad_scale = 0.25,
                               .t = step,
                               .cfg = &muon_keys};
}

static dt_err take_step(fixture *f, dt_zero *z, int64_t step)
{
    double sum;
    const dt_optimizer_step with = step_at(step);
    dt_zero_begin_micro(z, 0, 1);
    for (int u = 0, first = 0; u < N_UNITS; first += f->units[u++].n_tensors) DT_TRY(write_grads(f, z, u, first, step));
    DT_TRY(dt_zero_grad_sum_squares_reproducible(z, &sum));
    return dt_zero_update(z, &with, NULL);
}

/* ---- states of all tensors, whole, on every rank ----------------------------------------------------------------- */

/** As stored, in the type of each state; 8-bit states also with their scales. */
typedef struct tensor_states {
    float param[MAX_ELEMS];
    uint8_t state[3][MAX_ELEMS * sizeof(float)];
    float scale[3][MAX_BLOCKS];
} tensor_states;
typedef struct results {
    tensor_states t[N_TENSORS];
} results;
_Static_assert(sizeof(results) % sizeof(uint64_t) == 0, "joined as words");

/** Where element i of a state of a tensor is kept, if elements have so many bytes. */
static void *element_of(results *r, dt_state s, int k, int64_t i, size_t size)
{
    if (s == DT_STATE_PARAM) return &r->t[k].param[i];
    const int which = s - DT_STATE_OPTIMIZER, n = optimizer->n_states;
    return which < n ? (void *)&r->t[k].state[which][(size_t)i * size] : &r->t[k].scale[which - n][i];
}

/** Read this rank's slices in two calls each, and join them with the other ranks'. */
static dt_err collect(fixture *f, dt_zero *z, results *r)
{
    memset(r, 0, sizeof *r);
    for (dt_state s = 0; s < dt_zero_n_states(z); s++)
        for (int k = 0; k < N_TENSORS; k++) {
            const dt_slice *p = &dt_zero_slices_of(z, s)[k];
            if (!dt_zero_has_state(z, s, p)) continue;
            const size_t size = dt_dtype_size(dt_zero_state_dtype(z, s, p));
            const int64_t some = p->n / 3;
            DT_TRY(dt_zero_state_read(z, s, p, 0, some, element_of(r, s, k, p->first, size)));
            DT_TRY(dt_zero_state_read(z, s, p, some, p->n - some, element_of(r, s, k, p->first + some, size)));
        }
    MPI_Allreduce(MPI_IN_PLACE, r, (int)(sizeof *r / sizeof(uint64_t)), MPI_UINT64_T, MPI_BOR, world(f));
    return DT_OK;
}

/** Write them, in two calls each. */
static dt_err put(dt_zero *z, results *r)
{
    for (dt_state s = 0; s < dt_zero_n_states(z); s++)
        for (int k = 0; k < N_TENSORS; k++) {
            const dt_slice *p = &dt_zero_owned_of(z, s)[k];
            if (!dt_zero_has_state(z, s, p)) continue;
            const size_t size = dt_dtype_size(dt_zero_state_dtype(z, s, p));
            const int64_t some = p->n / 3;
            DT_TRY(dt_zero_state_write(z, s, p, 0, some, element_of(r, s, k, p->first, size)));
            DT_TRY(dt_zero_state_write(z, s, p, some, p->n - some, element_of(r, s, k, p->first + some, size)));
        }
    return dt_zero_state_written(z);
}

/* Of the last call of train: calls of dt_matrix_optimizer.matrix on all ranks; elements that a step sends, of a rank in
 * the mean. */
static int64_t n_calls;
static double sent;

static dt_err train(fixture *f, const struct layout *l, dt_dtype state_dtype, results *r)
{
    const dt_zero_options opt = options(f, l, state_dtype);
    dt_zero *z;
    DT_TRY(dt_zero_open(&z, &opt, f->units, N_UNITS, &f->comm, &f->dev, NULL, NULL));
    dt_err err = start(z);
    const double before = f->comm.traffic_bytes;
    for (int64_t step = 1; step <= N_STEPS && err == DT_OK; step++) err = take_step(f, z, step);
    sent = (f->comm.traffic_bytes - before) / N_STEPS / f->comm.nranks;
    MPI_Allreduce(MPI_IN_PLACE, &sent, 1, MPI_DOUBLE, MPI_SUM, world(f));
    if (err == DT_OK) err = collect(f, z, r);
    n_calls = dt_zero_matrix_calls(z);
    MPI_Allreduce(MPI_IN_PLACE, &n_calls, 1, MPI_INT64_T, MPI_SUM, world(f));
    dt_zero_close(z);
    return err;
}

/* ---- plain loops ------------------------------------------------------------------------------------------------- */

static float loaded(const results *r, const dt_map8 *map, dt_dtype dtype, int k, int which, int64_t i)
{
    const uint8_t *at = r->t[k].state[which];
    return dtype == DT_I8 ? map->value[at[i]] * r->t[k].scale[which][i / DT_BLOCK8] : dt_element(at, dtype, i);
}

/** Rounded up or down with word e % 4 of this counter. The key has FNV-1a of the tensor's name. */
static uint16_t rounded(float x, const char *name, uint64_t e, int which, int64_t step)
{
    uint32_t w[4], bits;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    dt_philox4x32(dt_mix64(dt_rng_key(5, DT_RNG_STATES) + hash), (uint64_t)which << 56 | (uint64_t)step, e / 4, w);
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + (w[e % 4] & 0xffff)) >> 16);
}

static void stored(results *r, const dt_map8 *map, int k, int which, const float *x, int64_t n)
{
    for (int64_t b = 0; b * DT_BLOCK8 < n; b++) {
        const int64_t begin = b * DT_BLOCK8, end = dt_min_i64(begin + DT_BLOCK8, n);
        float most = 0;
        for (int64_t i = begin; i < end; i++) most = fmaxf(most, fabsf(x[i]));
        r->t[k].scale[which][b] = most;
        for (int64_t i = begin; i < end; i++) {
            int best = 0;
            for (int c = 1; c < 256; c++)
                if (fabs((double)x[i] / most - map->value[c]) < fabs((double)x[i] / most - map->value[best])) best = c;
            if (which == 0 && x[i] < 0 && map->value[best] == 0) best--;
            r->t[k].state[which][i] = (uint8_t)best;
        }
    }
}

static bool is_trained(const dt_tensor *t, int64_t i)
{
    const int64_t row = i / (t->n_elems / t->shape[0]);
    return t->n_row_ranges == 0 || (row >= 3 && row < 5) || (row >= 60 && row < 90);
}

/** One update of a tensor in place, from the states that r stores. */
static void plain_update(results *r, const dt_tensor *t, int k, dt_dtype dtype, int64_t step)
{
    static float x[2][MAX_ELEMS];
    dt_map8 map[2];
    const bool plain = dt_zero_keeps_fp32(dtype, t);
    const dt_dtype kept = plain ? DT_F32 : dtype;
    const double fix1 = 1 - pow(0.9, (double)step), fix2 = 1 - pow(0.99, (double)step);
    dt_map8_make(&map[0], false), dt_map8_make(&map[1], true);
    for (int64_t i = 0; i < t->n_elems; i++) {
        if (!is_trained(t, i)) continue;
        const float g = 0.25f * number_of(k, step, i);
        x[0][i] = 0.9f * loaded(r, &map[0], kept, k, 0, i) + (1 - 0.9f) * g;
        x[1][i] = 0.99f * loaded(r, &map[1], kept, k, 1, i) + (1 - 0.99f) * g * g;
        float *p = &r->t[k].param[i];
        *p = (float)(*p * (1 - (t->decay ? 1e-3 : 0)) - 1e-2 * (x[0][i] / fix1) / (sqrt(x[1][i] / fix2) + 1e-6));
        for (int w = 0; w < 2 && kept != DT_I8; w++) {
            const uint16_t half = rounded(x[w][i], t->name, (uint64_t)i, w, step);
            memcpy(element_of(r, DT_STATE_OPTIMIZER + w, k, i, dt_dtype_size(kept)),
                   kept == DT_F32 ? (const void *)&x[w][i] : &half, dt_dtype_size(kept));
        }
    }
    for (int w = 0; w < 2 && kept == DT_I8; w++) stored(r, &map[w], k, w, x[w], t->n_elems);
}

/** Parameters and states are those of the plain loops, or neighbours of them: float sums may differ in the last bit,
 *  and then round to the other neighbour, rarely. */
static bool is_near(const results *a, const results *b, const dt_tensor *t, int k, dt_dtype dtype)
{
    dt_map8 map[2];
    const dt_dtype kept = dt_zero_keeps_fp32(dtype, t) ? DT_F32 : dtype;
    int64_t n_other = 0;
    dt_map8_make(&map[0], false), dt_map8_make(&map[1], true);
    for (int64_t i = 0; i < t->n_elems; i++) {
        if (fabsf(a->t[k].param[i] - b->t[k].param[i]) > 2e-3f) return false; /* a fifth of one step's length */
        for (int w = 0; w < 2; w++) {
            const double x = loaded(a, &map[w], kept, k, w, i), y = loaded(b, &map[w], kept, k, w, i);
            n_other += fabs(x - y) > 1e-5 * fabs(y);
        }
    }
    if (n_other > t->n_elems / 100) print_error("%s: %lld states differ\n", t->name, (long long)n_other);
    return n_other <= t->n_elems / 100;
}

static bool trains_like_plain_loops(const fixture *f, const results *got, dt_dtype dtype)
{
    results *ref = calloc(1, sizeof *ref);
    bool ok = true;
    for (int u = 0, k = 0; u < N_UNITS; u++)
        for (int i = 0; i < f->units[u].n_tensors; i++, k++) {
            const dt_tensor *t = &f->units[u].tensors[i];
            for (int64_t e = 0; e < t->n_elems; e++) ref->t[k].param[e] = number_of(k, 0, e);
            for (int64_t step = 1; step <= N_STEPS; step++) plain_update(ref, t, k, dtype, step);
            ok = is_near(got, ref, t, k, dtype) && ok;
        }
    free(ref);
    return ok;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static const dt_dtype types[] = {DT_F32, DT_BF16, DT_I8};
enum { N_TYPES = sizeof types / sizeof types[0] };

TEST_OF(ALWAYS | BY_NODE, states_of_fewer_bits_have_the_same_bits_in_every_layout)
{
    fixture *f = *state;
    results *first = calloc(1, sizeof *first), *r = calloc(1, sizeof *r);
    for (int t = 0; t < N_TYPES; t++)
        for (int l = 0; l < N_LAYOUTS; l++) {
            assert_all(world(f), train(f, &layouts[l], types[t], l ? r : first) == DT_OK);
            assert_all(world(f), l || trains_like_plain_loops(f, first, types[t]));
            assert_all(world(f), !l || !memcmp(first, r, sizeof *r));
        }
    free(first), free(r);
}

/** Parameters and momentum of the matrices are those of the plain loops: |a - b| / |b| of the changes. Sums in another
 *  order round to another bf16: errors of 0.4 % of an element, in five iterations. */
static bool is_muon_of_plain_loops(const fixture *f, const results *r)
{
    bool ok = true;
    for (int i = 1; i < f->units[1].n_tensors; i++) {
        static float start[MAX_ELEMS], param[MAX_ELEMS], momentum[MAX_ELEMS], grad[MAX_ELEMS];
        const dt_tensor *t = &f->units[1].tensors[i];
        double error = 0, all = 0, of_momentum = 0;
        if (!dt_is_hidden_matrix(t)) continue;
        for (int64_t e = 0; e < t->n_elems; e++) param[e] = start[e] = number_of(1 + i, 0, e), momentum[e] = 0;
        for (int64_t step = 1; step <= N_STEPS; step++) {
            dt_optimizer_step s = step_at(step);
            if (!t->decay) s.weight_decay = 0;
            for (int64_t e = 0; e < t->n_elems; e++) grad[e] = number_of(1 + i, step, e);
            ref_muon_step(&s, t->shape[0], t->shape[1], grad, param, momentum);
        }
        for (int64_t e = 0; e < t->n_elems; e++) {
            error += pow((double)(r->t[1 + i].param[e] - param[e]), 2), all += pow((double)(param[e] - start[e]), 2);
            of_momentum = fmax(of_momentum, fabs((double)(dt_element(r->t[1 + i].state[2], DT_F32, e) - momentum[e])));
        }
        if (error > 4e-4 * all || of_momentum > 1e-6) {
            print_error("%s: error %g, of momentum %g\n", t->name, sqrt(error / all), of_momentum);
            ok = false;
        }
    }
    return ok;
}

/** The same bits in every layout with these types of states, and each matrix changed once a step. */
static void check_muon(fixture *f, int n_matrices, int n_types)
{
    results *first = calloc(1, sizeof *first), *r = calloc(1, sizeof *r);
    optimizer = &dt_optimizer_muon;
    for (int t = 0; t < n_types; t++)
        for (int l = 0; l < N_LAYOUTS; l++) {
            assert_all(world(f), train(f, &layouts[l], types[t], l ? r : first) == DT_OK);
            assert_all(world(f), l || t || is_muon_of_plain_loops(f, first));
            assert_all(world(f), !l || !memcmp(first, r, sizeof *r));
            assert_all(world(f), n_calls == n_matrices * N_STEPS);
        }
    free(first), free(r);
    optimizer = &dt_optimizer_adamw;
}

enum { N_MATRICES = 4 /* q, k, v, o */ };

TEST_OF(ALWAYS | BY_NODE, muon_is_that_of_plain_loops_and_has_the_same_bits_in_every_layout)
{
    check_muon(*state, N_MATRICES, N_TYPES);
}

/** Ranks without a matrix; tensors of other kinds in a block are AdamW's. */
TEST_OF(ALWAYS | BY_NODE, one_matrix_is_enough_for_all_ranks)
{
    fixture *f = *state;
    for (int i = 2; i < f->units[1].n_tensors; i++) f->units[1].tensors[i].kind = DT_KIND_EMBEDDING;
    check_muon(f, 1, 1);
    for (int i = 2; i < f->units[1].n_tensors; i++) f->units[1].tensors[i].kind = DT_KIND_MATRIX;
}

/** Directions go to one owner and results back to the shards: a byte moves once each way. At stage 0 only results
 *  move, to all ranks. */
TEST(muon_sends_what_the_plan_says)
{
    fixture *f = *state;
    const double n = f->comm.nranks;
    results *r = calloc(1, sizeof *r);
    for (int l = 0; l < 4; l++) {
        double without = 0, matrices = 0;
        for (int muon = 0; muon < 2; muon++) {
            optimizer = muon ? &dt_optimizer_muon : &dt_optimizer_adamw;
            const dt_zero_options opt = options(f, &layouts[l], DT_F32);
            dt_zero_plan plan;
            bool ok = dt_zero_plan_make(&opt, f->units, N_UNITS, f->comm.nranks, &plan) == DT_OK;
            ok = ok && train(f, &layouts[l], DT_F32, r) == DT_OK;
            const double planned = plan.sent_bytes_per_micro_step + plan.sent_bytes_per_step;
            ok = ok && (opt.stage < 3 ? fabs(sent - planned) < 1e-6 * (1 + planned) : sent <= planned * (1 + 1e-9));
            if (!ok) print_error("stage %d: %.17g bytes sent, %.17g planned\n", opt.stage, sent, planned);
            assert_all(world(f), ok);
            if (!muon) without = sent;
            for (int i = 1; muon && i < f->units[1].n_tensors; i++)
                matrices += (double)(f->units[1].tensors[i].n_elems * (int64_t)sizeof(uint16_t));
        }
        const double more = sent - without, most = layouts[l].stage == 0 ? (n - 1) / n * matrices : 2 * matrices / n;
        if (more > most * (1 + 1e-9)) print_error("layout %d: %g bytes more, at most %g\n", l, more, most);
        assert_all(world(f), more <= most * (1 + 1e-9) && (n == 1 || more > 0));
    }
    free(r);
    optimizer = &dt_optimizer_adamw;
}

/** Trained for two steps, the third gives the same in another layout. */
static bool continues_in(fixture *f, const struct layout *from, const struct layout *to, dt_dtype dtype)
{
    results *mid = calloc(1, sizeof *mid), *want = calloc(1, sizeof *want), *got = calloc(1, sizeof *got);
    const dt_zero_options a = options(f, from, dtype), b = options(f, to, dtype);
    dt_zero *z;
    bool ok = dt_zero_open(&z, &a, f->units, N_UNITS, &f->comm, &f->dev, NULL, NULL) == DT_OK && start(z) == DT_OK;
    ok = ok && take_step(f, z, 1) == DT_OK && take_step(f, z, 2) == DT_OK && collect(f, z, mid) == DT_OK;
    ok = ok && take_step(f, z, 3) == DT_OK && collect(f, z, want) == DT_OK;
    dt_zero_close(z);
    ok = dt_zero_open(&z, &b, f->units, N_UNITS, &f->comm, &f->dev, NULL, NULL) == DT_OK && ok && start(z) == DT_OK;
    ok = ok && take_step(f, z, 1) == DT_OK && put(z, mid) == DT_OK && collect(f, z, got) == DT_OK;
    ok = ok && !memcmp(mid, got, sizeof *mid) && take_step(f, z, 3) == DT_OK && collect(f, z, got) == DT_OK;
    ok = ok && !memcmp(want, got, sizeof *want);
    dt_zero_close(z);
    free(mid), free(want), free(got);
    return ok;
}

TEST_OF(ALWAYS | BY_NODE, states_of_fewer_bits_move_to_other_layouts)
{
    fixture *f = *state;
    for (int t = 1; t < N_TYPES; t++)
        for (int l = 0; l < N_LAYOUTS; l++)
            assert_all(world(f), continues_in(f, &layouts[l], &layouts[(l + 4) % N_LAYOUTS], types[t]));
}

TEST_OF(ALWAYS | BY_NODE, states_of_muon_move_to_other_layouts)
{
    fixture *f = *state;
    optimizer = &dt_optimizer_muon;
    for (int t = 0; t < N_TYPES; t++)
        for (int l = 0; l < N_LAYOUTS; l++)
            assert_all(world(f), continues_in(f, &layouts[l], &layouts[(l + 4) % N_LAYOUTS], types[t]));
    optimizer = &dt_optimizer_adamw;
}

static bool holds_what_was_planned(fixture *f, const struct layout *l, dt_dtype dtype)
{
    const dt_zero_options opt = options(f, l, dtype);
    dt_memory expected = dt_ledger_now(&f->ledger);
    dt_zero_plan plan;
    dt_zero *z;
    if (dt_zero_plan_make(&opt, f->units, N_UNITS, f->comm.nranks, &plan) != DT_OK) return false;
    dt_memory_add(&expected, &plan.memory);
    dt_stream_plan(&f->dev, plan.n_streams, &expected);
    if (dt_zero_open(&z, &opt, f->units, N_UNITS, &f->comm, &f->dev, NULL, NULL) != DT_OK) return false;
    const dt_memory now = dt_ledger_now(&f->ledger);
    const size_t n_allocs = atomic_load(&f->ledger.n_allocs);
    size_t saved = 0;
    for (dt_state s = 0; s < dt_zero_n_states(z); s++)
        for (int k = 0; k < N_TENSORS; k++) {
            const dt_slice *p = &dt_zero_slices_of(z, s)[k];
            if (dt_zero_has_state(z, s, p)) saved += (size_t)p->n * dt_dtype_size(dt_zero_state_dtype(z, s, p));
        }
    bool ok = !memcmp(&now, &expected, sizeof now) && saved <= plan.saved_nbytes[DT_TRAINED];
    ok = ok && take_step(f, z, 1) == DT_OK && atomic_load(&f->ledger.n_allocs) == n_allocs;
    dt_zero_close(z);
    return ok;
}

TEST_OF(ALWAYS | BY_NODE, memory_held_matches_the_plan)
{
    fixture *f = *state;
    for (int t = 0; t < N_TYPES; t++)
        for (int l = 0; l < 2 * N_LAYOUTS; l++) {
            optimizer = l % 2 ? &dt_optimizer_muon : &dt_optimizer_adamw;
            assert_all(world(f), holds_what_was_planned(f, &layouts[l / 2], types[t]));
        }
    optimizer = &dt_optimizer_adamw;
}

/** Gradient descent without momentum has no states, so their type changes nothing. */
TEST(an_optimizer_without_states_takes_any_type)
{
    fixture *f = *state;
    static results whole, r;
    optimizer = &dt_optimizer_sgd_plain;
    assert_all(world(f), train(f, &layouts[0], DT_F32, &whole) == DT_OK);
    for (int t = 0; t < N_TYPES; t++) {
        assert_all(world(f), train(f, &layouts[0], types[t], &r) == DT_OK);
        assert_all(world(f), memcmp(&r, &whole, sizeof r) == 0);
    }
    optimizer = &dt_optimizer_adamw;
}

/** The states of matrices take a half and about a quarter of the memory of fp32. */
TEST(fewer_bits_take_less_memory)
{
    fixture *f = *state;
    double nbytes[N_TYPES];
    for (int t = 0; t < N_TYPES; t++) {
        const dt_zero_options opt = options(f, &layouts[1], types[t]);
        dt_zero_plan plan;
        assert_all(world(f), dt_zero_plan_make(&opt, f->units, N_UNITS, 1, &plan) == DT_OK);
        nbytes[t] = (double)dt_memory_of(&plan.memory, DT_MEM_OPTIMIZER);
    }
    double elems = 0, plain = 0;
    for (int u = 0; u < N_UNITS; u++)
        for (int i = 0; i < f->units[u].n_tensors; i++) {
            const dt_tensor *t = &f->units[u].tensors[i];
            elems += (double)t->n_elems;
            if (dt_zero_keeps_fp32(DT_I8, t)) plain += (double)t->n_elems;
        }
    assert_all(world(f), fabs(nbytes[1] / nbytes[0] - 0.5) < 0.01);
    assert_all(world(f), fabs(nbytes[2] - 2 * (elems * (1 + 4.0 / DT_BLOCK8) + 4 * plain)) < 0.1 * nbytes[2]);
}

int main(int argc, char **argv) { return run_zero_tests(argc, argv, setup); }
