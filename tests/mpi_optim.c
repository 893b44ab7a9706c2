/* mpi_optim.c - every optimizer, with groups, decay, clipping and schedule, against torch.optim in double precision
 * (make_optimizer_fixtures.py): at every stage and number of ranks, with the same bits.
 * NP: 1 2 3
 * DEVICES: cpu queue */
#include "mpi_test.h"
#include "dtrain/zero/zero.h"
#include "ref_zero.h"
#include <jansson.h>

enum { N_STEPS = 12, TOTAL = 20, N_UNITS = 3, N_TENSORS = 5, MAX_ELEMS = 36, MAX_KEPT = 1 + DT_MAX_STATES };

typedef struct fixture {
    dt_comm comm;
    dt_device dev;
    dt_ledger ledger;
    dt_unit units[N_UNITS];
    json_t *cases;
} fixture;

static MPI_Comm world(const fixture *f) { return *(MPI_Comm *)dt_comm_mpi_handle(&f->comm); }

static dt_err make_units(dt_unit units[N_UNITS])
{
    static const char *const names[N_UNITS] = {"embed", "block.0", "head"};
    const int64_t wide[] = {9, 4}, square[] = {5, 4}, norm[] = {4};
    for (int u = 0; u < N_UNITS; u++) snprintf(units[u].name, sizeof units[u].name, "%s", names[u]);
    DT_TRY(dt_unit_add(&units[0], "model.embed_tokens.weight", 2, wide, true, true, 0, 0));
    DT_TRY(dt_unit_add(&units[1], "model.layers.0.input_layernorm.weight", 1, norm, true, false, 0, 0));
    DT_TRY(dt_unit_add(&units[1], "model.layers.0.self_attn.q_proj.weight", 2, square, true, true, 0, 0));
    DT_TRY(dt_unit_add(&units[1], "model.layers.0.self_attn.k_proj.weight", 2, square, false, true, 0, 0));
    return dt_unit_add(&units[2], "lm_head.weight", 2, wide, true, true, 0, 0);
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *state = f;
    if (!f || dt_comm_open(&f->comm) != DT_OK) return -1;
    if (dt_device_open(&f->dev, "cpu", f->comm.local_rank, 1, &f->ledger) != DT_OK) return -1;
    if (dt_comm_attach(&f->comm, &f->dev, "mpi", true) != DT_OK || make_units(f->units) != DT_OK) return -1;
    f->cases = json_load_file("tests/data/optimizers.json", 0, NULL);
    return f->cases ? 0 : -1;
}

static int teardown(void **state)
{
    fixture *f = *state;
    for (int u = 0; u < N_UNITS; u++) dt_unit_free(&f->units[u]);
    json_decref(f->cases);
    dt_comm_close(&f->comm);
    const size_t live = atomic_load(&f->ledger.total_now);
    dt_device_close(&f->dev);
    free(f);
    return live == 0 ? 0 : -1;
}

/** Element i of a tensor's gradient in a step, or of its start (step 0). */
static float number_of(int tensor, int step, int64_t i)
{
    return (float)(dt_mix64((uint64_t)(i + 1000 * tensor + 100000 * step)) % 4096) / 2048 - 1;
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

typedef struct trainer {
    fixture *f;
    dt_config cfg;
    dt_lr_groups groups;
    dt_optimizer_step settings;
    dt_schedule schedule;
    dt_zero *z;
} trainer;

static dt_err open_trainer(trainer *t, fixture *f, const char *config, int stage)
{
    *t = (trainer){.f = f};
    DT_TRY(dt_config_parse(&t->cfg, "case", config, 0, NULL));
    DT_TRY(dt_lr_groups_make(&t->groups, &t->cfg));
    DT_TRY(dt_lr_groups_assign(&t->groups, &t->cfg, f->units, N_UNITS));
    DT_TRY(dt_optimizer_settings(&t->settings, &t->cfg));
    dt_schedule_make(&t->schedule, &t->cfg, TOTAL, 1);
    const dt_zero_options opt = {
        .stage = stage, .param_dtype = DT_F32, .grad_dtype = DT_F32, .optimizer = dt_optimizer_of(&t->cfg)};
    return dt_zero_open(&t->z, &opt, f->units, N_UNITS, &f->comm, &f->dev, NULL, NULL);
}

static void close_trainer(trainer *t)
{
    dt_zero_close(t->z);
    dt_config_free(&t->cfg);
}

static dt_err start(trainer *t)
{
    for (int k = 0; k < N_TENSORS; k++) {
        const dt_slice *p = &dt_zero_slices(t->z)[k];
        float x[MAX_ELEMS];
        for (int64_t i = 0; i < p->n; i++) x[i] = number_of(k, 0, p->first + i);
        DT_TRY(dt_zero_state_write(t->z, DT_STATE_PARAM, p, 0, p->n, x));
    }
    return dt_zero_state_written(t->z);
}

/** Gradients of one unit, whose first tensor is the first-th of all: rank 0 contributes the values, the other ranks
 *  zeros. */
static dt_err write_grads(trainer *t, int u, int first, int step)
{
    const dt_unit *unit = &t->f->units[u];
    const dt_param_source s = dt_zero_source(t->z);
    dt_grad_view view;
    float grad[4 * MAX_ELEMS + 4 * DT_GROUP_ALIGN] = {0};
    for (int k = 0; k < unit->n_tensors && t->f->comm.rank == 0; k++)
        for (int64_t i = 0; i < unit->tensors[k].n_elems; i++)
            grad[unit->tensors[k].offset + i] = number_of(first + k, step, i);
    DT_TRY(s.grads_acquire(s.self, u, &view));
    DT_TRY(ref_zero_write(&t->f->dev, view.data, unit->flat_len[DT_TRAINED], view.dtype, grad));
    DT_TRY(t->f->dev.ops->stream_sync(&t->f->dev, NULL));
    return s.grads_release(s.self, u);
}

static dt_err take_step(trainer *t, int step)
{
    double sum_squares, lr[DT_MAX_LR_GROUPS];
    dt_zero_begin_micro(t->z, 0, 1);
    for (int u = 0, first = 0; u < N_UNITS; first += t->f->units[u++].n_tensors) DT_TRY(write_grads(t, u, first, step));
    DT_TRY(dt_zero_grad_sum_squares(t->z, &sum_squares));
    DT_TRY(dt_comm_reduce_host_f64(dt_comm_all(&t->f->comm), &sum_squares, 1, DT_SUM));
    dt_optimizer_step with = t->settings;
    const double largest = t->cfg.optimizer_max_grad_norm;
    with.grad_scale = largest > 0 ? fmin(1, largest / (sqrt(sum_squares) + 1e-6)) : 1;
    with.t = step;
    for (int k = 0; k < t->groups.n; k++) lr[k] = dt_schedule_lr(&t->schedule, t->groups.group[k].lr, step - 1);
    return dt_zero_update(t->z, &with, lr);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/** All states of all tensors, whole, on every rank. */
typedef struct results {
    float x[MAX_KEPT][N_TENSORS][MAX_ELEMS];
} results;

static dt_err collect(trainer *t, results *r)
{
    *r = (results){0};
    for (dt_state s = 0; s < dt_zero_n_states(t->z); s++)
        for (int k = 0; k < N_TENSORS; k++) {
            const dt_slice *p = &dt_zero_slices(t->z)[k];
            DT_TRY(dt_zero_state_read(t->z, s, p, 0, p->n, r->x[s][k] + p->first));
        }
    MPI_Allreduce(MPI_IN_PLACE, r->x, sizeof r->x / sizeof(float), MPI_FLOAT, MPI_SUM, world(t->f));
    return DT_OK;
}

/** Rounding. A step adds to a parameter at most a few units of 2^-24 of itself and of its step, which is below 10 lr
 *  here (Adam: mhat / sqrt(vhat) <= 8; gradient descent: momentum 0.9 sums up 10 gradients below 1), lr <= 0.05. States
 *  are below 10 and are averages or sums of what has a few roundings. 16 units a step leave room for another order. */
static bool is_near(const trainer *t, const results *r, const json_t *tensors)
{
    const double unit = N_STEPS * 16 * 0x1p-24;
    for (dt_state s = 0; s < dt_zero_n_states(t->z); s++)
        for (int k = 0; k < N_TENSORS; k++) {
            const dt_tensor *tensor = dt_zero_tensor(t->z, &dt_zero_slices(t->z)[k]);
            const char *name = s == DT_STATE_PARAM ? "param" : dt_zero_state_name(t->z, s);
            const json_t *want = json_object_get(json_object_get(tensors, tensor->name), name);
            if (json_array_size(want) != (size_t)tensor->n_elems) return false;
            for (int64_t i = 0; i < tensor->n_elems; i++) {
                const double w = json_number_value(json_array_get(want, (size_t)i)), x = (double)r->x[s][k][i];
                const double room = unit * (s == DT_STATE_PARAM ? fabs(w) + 10 * 0.05 : 10);
                if (fabs(x - w) <= room) continue;
                print_error("%s of %s, element %d: %.9g, expected %.9g\n", name, tensor->name, (int)i, x, w);
                return false;
            }
        }
    return true;
}

TEST_WITH(updates_are_pytorchs_at_every_stage, setup, teardown)
{
    fixture *f = *state;
    for (size_t c = 0; c < json_array_size(f->cases); c++) {
        const json_t *one = json_array_get(f->cases, c);
        results first, r;
        for (int stage = 0; stage <= 3; stage++) {
            trainer t;
            dt_err err = open_trainer(&t, f, json_string_value(json_object_get(one, "config")), stage);
            assert_all(world(f), err == DT_OK && start(&t) == DT_OK);
            for (int step = 1; step <= N_STEPS; step++) assert_all(world(f), take_step(&t, step) == DT_OK);
            assert_all(world(f), collect(&t, &r) == DT_OK && is_near(&t, &r, json_object_get(one, "tensors")));
            if (stage == 0) first = r;
            assert_all(world(f), !memcmp(&first, &r, sizeof r));
            close_trainer(&t);
        }
    }
}

TEST_WITH(cleared_states_are_those_of_the_start, setup, teardown)
{
    fixture *f = *state;
    const char *config = json_string_value(json_object_get(json_array_get(f->cases, 0), "config"));
    for (int stage = 0; stage <= 3; stage++) {
        results r, zero = {0};
        trainer t;
        assert_all(world(f), open_trainer(&t, f, config, stage) == DT_OK && start(&t) == DT_OK);
        assert_all(world(f), take_step(&t, 1) == DT_OK && dt_zero_clear_states(t.z) == DT_OK);
        assert_all(world(f), collect(&t, &r) == DT_OK);
        assert_all(world(f), !memcmp(r.x[DT_STATE_OPTIMIZER], zero.x[0], 2 * sizeof zero.x[0]));
        close_trainer(&t);
    }
}

MPI_TEST_MAIN(NULL, NULL)
