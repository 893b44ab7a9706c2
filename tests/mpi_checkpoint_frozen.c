/* mpi_checkpoint_frozen.c - a checkpoint holds all parameters, and the states of trained tensors. It loads into a
 * run that trains other tensors, whose states start at zero where the file has none.
 * DEVICES: cpu queue */
#include "cases.h"
#include "h5_change.h"
#include "checkpoint_fixture.h"

static const char STATE[] = "/optimizer/exp_avg_sq/model.layers.0.input_layernorm.weight",
                  FIRST_STATE[] = "/optimizer/exp_avg/model.layers.0.input_layernorm.weight";

static bool is_block(void *self, const dt_tensor *t) { return !strncmp(t->name, "model.layers.", 13); }
static bool is_no_gate(void *self, const dt_tensor *t)
{
    return !strstr(t->name, "gate") && !strstr(t->name, "q_proj");
}
static bool is_any(void *self, const dt_tensor *t) { return true; }
static dt_trains const trains[] = {NULL, is_block, is_no_gate, is_any};
enum { N_TRAINS = sizeof trains / sizeof trains[0] };

static bool open_with(fixture *f, dt_trains t, int stage)
{
    close_zero(f);
    dt_units_choose_trained(f->units, N_UNITS, t, NULL);
    return open_zero(f, stage, stage % 2 ? DT_BF16 : DT_F32, false);
}

/* States of tensors that the file's run trained are its own, others are zero; parameters are its own. */
static bool came_back(fixture *f, dt_trains saved, int salt)
{
    for (int k = 0; k < dt_zero_n_slices(f->z); k++)
        for (dt_state s = 0; s < dt_zero_n_states(f->z); s++) {
            const dt_slice *p = &dt_zero_slices(f->z)[k];
            const dt_tensor *t = dt_zero_tensor(f->z, p);
            const bool in_file = s == DT_STATE_PARAM || (saved && saved(NULL, t));
            for (int64_t i = 0; i < p->n && dt_zero_has_state(f->z, s, p); i++) {
                union {
                    float f;
                    uint16_t h;
                } x;
                if (dt_zero_state_read(f->z, s, p, i, 1, &x) != DT_OK) return false;
                const float found = dt_zero_state_dtype(f->z, s, p) == DT_F32 ? x.f : dt_bf16_to_float(x.h);
                if (found != (in_file ? value_of(t->name, s, p->first + i, salt) : 0)) return false;
            }
        }
    return true;
}

IN_DIR(states_of_what_was_frozen_start_at_zero)
{
    fixture *f = *state;
    char path[PATH_MAX];
    for (int from = 1; from < N_TRAINS; from++)
        for (int to = 0; to < N_TRAINS; to++) {
            bool ok = open_with(f, trains[from], (from + to) % 4) && fill_states(f->z, true, from);
            ok = ok && save_step(f, from, 0) == DT_OK;
            ok = ok && dt_checkpoint_path(path, f->dir, from) == DT_OK;
            ok = ok && (f->comm.rank != 0 || dt_checkpoint_verify(path, NULL) == DT_OK);
            assert_all(f->mpi, ok);
            ok = open_with(f, trains[to], to) && fill_states(f->z, true, 77); /* what was there before must not stay */
            ok = ok && load_one(&f->comm, f->z, path, true, NULL) == DT_OK && came_back(f, trains[from], from);
            assert_all(f->mpi, ok);
        }
}

static bool lose(const char *path, const char *name)
{
    dt_h5_lock();
    const hid_t file = open_to_change(path);
    const bool ok = H5Ldelete(file, name, H5P_DEFAULT) >= 0;
    H5Fclose(file);
    dt_h5_unlock();
    return ok;
}

/* As a file in which the tensor has another optimizer's state. */
static bool rename_state(const char *path)
{
    dt_h5_lock();
    const hid_t file = open_to_change(path),
                group = H5Gcreate2(file, "/optimizer/momentum_buffer", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    const bool ok = H5Lmove(file, STATE, group, strrchr(STATE, '/') + 1, H5P_DEFAULT, H5P_DEFAULT) >= 0;
    H5Gclose(group), H5Fclose(file);
    dt_h5_unlock();
    return ok && lose(path, FIRST_STATE);
}

/** Lost: one of the two states that a tensor has; all states of all tensors; or both of a tensor, which has another. */
IN_DIR(a_state_that_was_lost_is_missed)
{
    fixture *f = *state;
    char path[PATH_MAX];
    for (int what = 0; what < 3; what++) {
        static const char *const named[] = {STATE, "/optimizer/exp_avg/", FIRST_STATE};
        bool ok = open_with(f, is_block, 1) && fill_states(f->z, true, 1) && save_step(f, 1, 0) == DT_OK;
        ok = ok && dt_checkpoint_path(path, f->dir, 1) == DT_OK;
        if (f->comm.rank == 0)
            ok = ok && (what == 0   ? lose(path, STATE)
                        : what == 1 ? lose(path, "/optimizer/exp_avg") && lose(path, "/optimizer/exp_avg_sq")
                                    : rename_state(path));
        MPI_Barrier(f->mpi);
        const dt_err err = ok ? load_one(&f->comm, f->z, path, true, NULL) : DT_OK;
        ok = ok && err == DT_ERR_DATA;
        if (f->comm.rank == 0) ok = ok && strstr(dt_error_message(), named[what]);
        dt_error_clear();
        assert_all(f->mpi, ok);
    }
}

/* Of another model in the file, what is lost is missed likewise, and what it does not know is refused. */
IN_DIR(so_it_is_in_a_model_beside)
{
    static const char state_of_it[] = "/other/optimizer/exp_avg/model.norm.weight";
    fixture *f = *state;
    const char *const lost[] = {NULL, state_of_it, "/other/model/model.norm.weight", "/other"};
    const char *const named[] = {"", state_of_it, "/other/model/model.norm.weight", "other"};
    close_zero(f);
    dt_units_choose_trained(f->units, N_UNITS, is_any, NULL);
    for (int k = 0; k < 4; k++) {
        char path[PATH_MAX];
        const dt_ckpt_meta meta = meta_of(4);
        dt_ckpt_states states = {0};
        dt_zero *own = NULL;
        bool ok = open_zero(f, 1, DT_F32, false) && fill_states(f->z, true, 1);
        own = f->z, f->z = NULL;
        ok = ok && open_zero(f, 0, DT_F32, false) && fill_states(f->z, true, 2);
        dt_saved_model both[] = {{.zero = own, .with_states = true, .state_updates = 3},
                                 {.name = "other", .zero = f->z, .with_states = true, .state_updates = 1}};
        ok = ok && dt_checkpoint_save_all(&f->comm, both, 2, &meta, f->dir, 0, NULL) == DT_OK &&
             dt_checkpoint_path(path, f->dir, 4) == DT_OK;
        if (f->comm.rank == 0 && lost[k]) ok = ok && lose(path, lost[k]);
        ok = ok && fill_states(own, true, 3) && fill_states(f->z, true, 3);
        MPI_Barrier(f->mpi);
        const dt_err err = ok ? dt_checkpoint_load_all(&f->comm, both, 2, path, NULL) : DT_ERR_FAULT;
        if (k == 0)
            ok = ok && err == DT_OK && states_are(own, true, 1) && states_are(f->z, true, 2) &&
                 dt_checkpoint_read_states(path, "other", &states) == DT_OK && states.updates == 1 &&
                 dt_checkpoint_has_states(&states, &dt_optimizer_adamw);
        else
            ok = ok && err == DT_ERR_DATA && (f->comm.rank || strstr(dt_error_message(), named[k]));
        if (k == 3)
            ok = ok && dt_checkpoint_read_states(path, "other", &states) == DT_ERR_DATA &&
                 dt_checkpoint_load_all(&f->comm, both, 1, path, NULL) == DT_OK;
        dt_ckpt_states_free(&states);
        dt_error_clear();
        dt_zero_close(own);
        close_zero(f);
        assert_all(f->mpi, ok);
    }
}

MPI_TEST_MAIN(open_fixture, close_fixture)
