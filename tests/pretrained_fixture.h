/* pretrained_fixture.h - the directories of tests/data/hf (make_hf_fixtures.py) opened as models on several ranks, and
 * altered copies of them. */
#ifndef DTRAIN_PRETRAINED_FIXTURE_H
#define DTRAIN_PRETRAINED_FIXTURE_H

#include "ranks.h"
#include "ref_model.h"
#include "dtrain/pretrained/export.h"
#include "dtrain/io/io.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

typedef struct fixture {
    dt_ledger ledger;
    dt_device dev;
    dt_comm comm;
    MPI_Comm mpi;
    char dir[32]; /* an empty folder of the test's own */
    /* a model */
    dt_pretrained from;
    dt_model_config mc;
    dt_unit *units;
    int n_units;
    dt_zero *z;
} fixture;

static inline void close_model(fixture *f)
{
    dt_zero_close(f->z);
    dt_model_free_units(f->units, f->n_units);
    dt_model_config_free(&f->mc);
    dt_pretrained_free(&f->from);
    f->z = NULL;
    f->units = NULL;
    f->n_units = 0;
}

/* Collective; the verdict is the same on all ranks. Close also after an error. */
static inline dt_err open_model(fixture *f, const char *path, int stage, dt_dtype dtype, bool frozen)
{
    close_model(f);
    dt_error_clear();
    DT_TRY(dt_pretrained_describe(&f->from, path, DT_MODEL_USUAL));
    DT_TRY(dt_model_config_parse(&f->mc, f->from.config_name, f->from.model_config));
    DT_TRY(dt_model_make_units(&f->mc, &f->units, &f->n_units));
    const dt_zero_options opt = {.stage = stage,
                                 .param_dtype = dtype,
                                 .grad_dtype = DT_F32,
                                 .optimizer = frozen ? NULL : &dt_optimizer_adamw,
                                 .tied_unit = dt_model_tied_unit(&f->mc, f->units, f->n_units)};
    DT_TRY(dt_zero_open(&f->z, &opt, f->units, f->n_units, &f->comm, &f->dev, NULL, NULL));
    return dt_pretrained_load(&f->comm, f->z, &f->from, NULL);
}

/* Do this rank's elements have the formula's values, rounded to what the files held? */
static inline bool weights_are(fixture *f, dt_st_type file_type)
{
    const dt_slice *p = dt_zero_slices(f->z);
    for (int k = 0; k < dt_zero_n_slices(f->z); k++)
        for (int64_t i = 0; i < p[k].n; i++) {
            const dt_tensor *t = dt_zero_tensor(f->z, &p[k]);
            const dt_st_type kept = dt_st_type_of(dt_zero_state_dtype(f->z, DT_STATE_PARAM, &p[k])),
                             in_file = t->part == DT_EXACT ? DT_ST_F32 : file_type;
            const float exact = (float)ref_weight(t, p[k].first + i);
            uint32_t stored = 0, want = 0, found = 0;
            dt_st_convert(&exact, DT_ST_F32, &stored, in_file, 1);
            dt_st_convert(&stored, in_file, &want, kept, 1);
            if (dt_zero_state_read(f->z, DT_STATE_PARAM, &p[k], i, 1, &found) != DT_OK) return false;
            if (want == found) continue;
            print_error("%s: element %lld: %08x, expected %08x\n", t->name, (long long)(p[k].first + i), found, want);
            return false;
        }
    return true;
}

/* Rank 0's work that the others wait for. */
static inline bool on_first(const fixture *f, bool (*work)(const fixture *f, const void *what), const void *what)
{
    return vote_ranks(f->mpi, f->comm.rank != 0 || work(f, what));
}

static inline int open_fixture(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *state = f;
    return f && open_ranks(&f->comm, &f->dev, &f->ledger, &f->mpi) ? 0 : -1;
}

static inline int close_fixture(void **state)
{
    fixture *f = *state;
    dt_comm_close(&f->comm);
    dt_device_close(&f->dev);
    free(f);
    return 0;
}

static inline int make_dir(void **state)
{
    fixture *f = *state;
    return make_folder(&f->comm, f->mpi, "/tmp/dtrain-hf-XXXXXX", f->dir) ? 0 : -1;
}

static inline int remove_dir(void **state)
{
    fixture *f = *state;
    close_model(f);
    return remove_folder(&f->comm, f->mpi, f->dir) ? 0 : -1;
}

#define IN_DIR(NAME) TEST_WITH(NAME, make_dir, remove_dir)

#endif
