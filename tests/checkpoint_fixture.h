/* checkpoint_fixture.h - a small model whose every element is a function of its name and place, so that any rank can
 * say what a file or a state must hold, whatever wrote it. */
#ifndef DTRAIN_CHECKPOINT_FIXTURE_H
#define DTRAIN_CHECKPOINT_FIXTURE_H

#include "ranks.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/config/config.h"
#include "dtrain/io/io.h"
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>

enum { N_UNITS = 3 };

static inline dt_err load_one(dt_comm *comm, dt_zero *z, const char *path, bool with_states, dt_phase *phase)
{
    const dt_saved_model one = {.zero = z, .with_states = with_states};
    return dt_checkpoint_load_all(comm, &one, 1, path, phase);
}

typedef struct fixture {
    dt_ledger ledger;
    dt_device dev;
    dt_comm comm;
    MPI_Comm mpi;
    dt_unit units[N_UNITS];
    dt_zero *z;
    char dir[32]; /* an empty folder of the test's own */
} fixture;

static inline bool make_units(dt_unit units[N_UNITS])
{
    static const struct {
        int unit, n_dims;
        int64_t shape[4];
        bool new_group;
        const char *name;
    } t[] = {
        {0, 2, {37, 8}, true, "model.embed_tokens.weight"},
        {1, 1, {5}, true, "model.layers.0.input_layernorm.weight"},
        {1, 2, {67, 33}, true, "model.layers.0.self_attn.q_proj.weight"},
        {1, 2, {1, 33}, false, "model.layers.0.self_attn.k_proj.weight"},
        {1, 4, {3, 2, 5, 7}, true, "transformer.h.0.conv.weight"},
        {1, 1, {1}, true, "model.layers.0.gate"},
        {2, 1, {4099}, true, "model.norm.weight"},
    };
    static const char *const names[N_UNITS] = {"embed", "block.0", "head"};
    for (int u = 0; u < N_UNITS; u++) {
        units[u] = (dt_unit){0};
        snprintf(units[u].name, sizeof units[u].name, "%s", names[u]);
    }
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++)
        if (dt_unit_add(&units[t[i].unit], t[i].name, t[i].n_dims, t[i].shape, t[i].new_group, true, 0.02f, 0) != DT_OK)
            return false;
    return true;
}

/* Small integers: exact in fp16 and bf16, too. salt tells two fillings apart. */
static inline float value_of(const char *name, dt_state state, int64_t i, int salt)
{
    uint64_t h = (uint64_t)state * 1000003 + (uint64_t)salt;
    for (const char *c = name; *c; c++) h = h * 31 + (uint64_t)*c;
    return (float)(dt_mix64(h + (uint64_t)i) % 257) - 128.0f;
}

static inline bool fill_states(dt_zero *z, bool with_optimizer, int salt)
{
    const dt_slice *p = dt_zero_slices(z);
    for (int k = 0; k < dt_zero_n_slices(z); k++)
        for (int s = 0; s < (with_optimizer ? dt_zero_n_states(z) : 1); s++)
            for (int64_t i = 0; i < p[k].n && dt_zero_has_state(z, s, &p[k]); i++) {
                const float f = value_of(dt_zero_tensor(z, &p[k])->name, s, p[k].first + i, salt);
                float stored[1];
                dt_set_element(stored, dt_zero_state_dtype(z, s, &p[k]), 0, f);
                if (dt_zero_state_write(z, s, &p[k], i, 1, stored) != DT_OK) return false;
            }
    return dt_zero_state_written(z) == DT_OK;
}

static inline bool states_are(dt_zero *z, bool with_optimizer, int salt)
{
    const dt_slice *p = dt_zero_slices(z);
    for (int k = 0; k < dt_zero_n_slices(z); k++)
        for (int s = 0; s < (with_optimizer ? dt_zero_n_states(z) : 1); s++)
            for (int64_t i = 0; i < p[k].n && dt_zero_has_state(z, s, &p[k]); i++) {
                float x[1];
                if (dt_zero_state_read(z, s, &p[k], i, 1, x) != DT_OK) return false;
                const float found = dt_element(x, dt_zero_state_dtype(z, s, &p[k]), 0);
                if (found != value_of(dt_zero_tensor(z, &p[k])->name, s, p[k].first + i, salt)) return false;
            }
    return true;
}

static inline dt_zero_options options_of(int stage, dt_dtype dtype, bool frozen)
{
    return (dt_zero_options){.stage = stage,
                             .param_dtype = dtype,
                             .grad_dtype = dtype,
                             .optimizer = frozen ? NULL : &dt_optimizer_adamw,
                             .reduce_bucket_size = 1 << 20,
                             .allgather_bucket_size = 1 << 20,
                             .prefetch_bucket_size = 1 << 20,
                             .max_live_parameters = 1 << 24};
}

/* Tensors and states of which a rank holds a part: so often a save passes "save.write". */
static inline int n_slots_of(int rank, int nranks)
{
    dt_unit units[N_UNITS];
    int n = 0;
    make_units(units);
    for (int u = 0; u < N_UNITS; u++) {
        const int64_t begin = rank * dt_shards_of(units[u].flat_len[DT_TRAINED], nranks, 1, DT_SHARD_ALIGN).shard_len,
                      end = begin + dt_shards_of(units[u].flat_len[DT_TRAINED], nranks, 1, DT_SHARD_ALIGN).shard_len;
        for (int t = 0; t < units[u].n_tensors; t++) {
            const int64_t first = units[u].tensors[t].offset, behind = first + units[u].tensors[t].n_elems;
            if (first < end && behind > begin) n += DT_STATE_OPTIMIZER + dt_optimizer_adamw.n_states;
        }
        dt_unit_free(&units[u]);
    }
    return n;
}

static inline bool open_zero(fixture *f, int stage, dt_dtype dtype, bool frozen)
{
    const dt_zero_options opt = options_of(stage, dtype, frozen);
    return dt_zero_open(&f->z, &opt, f->units, N_UNITS, &f->comm, &f->dev, NULL, NULL) == DT_OK;
}

static inline void close_zero(fixture *f)
{
    dt_zero_close(f->z);
    f->z = NULL;
}

/* After a save of step 2 that failed: step 1 is the newest, and nothing of step 2 is left. */
static inline bool folder_is_as_before(const fixture *f)
{
    char path[PATH_MAX], text[64] = "";
    FILE *l = fopen(in_folder(f->dir, "latest", path), "r");
    if (!l || !fgets(text, sizeof text, l)) return false;
    fclose(l);
    return strcmp(text, "step-00000001.h5") == 0 && exists_in(f->dir, "step-00000001.h5") &&
           !exists_in(f->dir, "step-00000002.h5") && !exists_in(f->dir, "step-00000002.h5.part") &&
           !exists_in(f->dir, "latest.part");
}

static inline int open_fixture(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *state = f;
    return f && open_ranks(&f->comm, &f->dev, &f->ledger, &f->mpi) && make_units(f->units) ? 0 : -1;
}

static inline int close_fixture(void **state)
{
    fixture *f = *state;
    for (int u = 0; u < N_UNITS; u++) dt_unit_free(&f->units[u]);
    dt_comm_close(&f->comm);
    dt_device_close(&f->dev);
    free(f);
    return 0;
}

/* For each test: the folder, by rank 0's name. */
static inline int make_dir(void **state)
{
    fixture *f = *state;
    return make_folder(&f->comm, f->mpi, "/tmp/dtrain-ckpt-XXXXXX", f->dir) ? 0 : -1;
}

static inline int remove_dir(void **state)
{
    fixture *f = *state;
    close_zero(f);
    return remove_folder(&f->comm, f->mpi, f->dir) ? 0 : -1;
}

static inline dt_ckpt_meta meta_of(int64_t step)
{
    return (dt_ckpt_meta){.step = step,
                          .samples = 8 * step,
                          .tokens = 512 * step,
                          .updates = step - 1,
                          .states = {.updates = step / 2},
                          .seed = UINT64_MAX - 5,
                          .scale.scale = 65536.5,
                          .config = (char *)"[run]\ntask = pretrain\n",
                          .model_config = (char *)"{\"model_type\": \"llama\"}"};
}

static inline dt_err save_step(fixture *f, int64_t step, int64_t keep)
{
    const dt_ckpt_meta meta = meta_of(step);
    const dt_err err = dt_checkpoint_save(&f->comm, f->z, &meta, f->dir, keep, NULL);
    MPI_Barrier(f->mpi); /* rank 0 deletes old files after the vote */
    return err;
}

#define IN_DIR(NAME) TEST_WITH(NAME, make_dir, remove_dir)

#endif
