/* mpi_checkpoint_faults.c - one rank fails in each step of a save or load; all ranks see the same error, no files
 * remain, the previous checkpoint is kept, and the next attempt succeeds. The faults are armed for the n-th passage,
 * so the order of the attempts below is the list's.
 * DEVICES: cpu queue */
#include "cases.h"
#include "checkpoint_fixture.h"

IN_DIR(one_failing_rank_fails_the_save_on_all_ranks)
{
    fixture *f = *state;
    char path[PATH_MAX];
    const dt_err expected[] = {DT_ERR_WRITE, DT_ERR_FAULT, DT_ERR_WRITE, DT_ERR_FAULT, DT_ERR_WRITE, DT_ERR_WRITE};
    assert_all(f->mpi, open_zero(f, 1, DT_F32, false));
    assert_all(f->mpi, fill_states(f->z, true, 1));
    assert_all(f->mpi, save_step(f, 1, 1) == DT_OK);
    for (size_t k = 0; k < sizeof expected / sizeof expected[0]; k++) {
        const dt_err err = save_step(f, 2, 1);
        if (err != expected[k]) print_error("attempt %zu: error %d\n", k, err);
        assert_all(f->mpi, err == expected[k]);
        assert_all(f->mpi, folder_is_as_before(f));
        dt_error_clear();
        MPI_Barrier(f->mpi);
    }
    assert_all_fail(f->mpi, load_one(&f->comm, f->z, in_folder(f->dir, "step-00000001.h5", path), true, NULL),
                    DT_ERR_FAULT, "");
    assert_all(f->mpi, load_one(&f->comm, f->z, path, true, NULL) == DT_OK && states_are(f->z, true, 1));
    assert_all(f->mpi, save_step(f, 2, 1) == DT_OK);
    assert_all(f->mpi, exists_in(f->dir, "step-00000002.h5") && !exists_in(f->dir, "step-00000001.h5"));
}

/* The new file has the name of the old one, and `latest` names it. */
IN_DIR(a_step_saved_again_stays_when_latest_cannot_be_written)
{
    fixture *f = *state;
    char path[PATH_MAX];
    assert_all(f->mpi, open_zero(f, 1, DT_F32, false));
    assert_all(f->mpi, fill_states(f->z, true, 1) && save_step(f, 1, 0) == DT_OK);
    assert_all(f->mpi, fill_states(f->z, true, 2) && save_step(f, 1, 0) == DT_ERR_WRITE);
    dt_error_clear();
    assert_all(f->mpi, folder_is_as_before(f));
    assert_all(f->mpi, load_one(&f->comm, f->z, in_folder(f->dir, "step-00000001.h5", path), true, NULL) == DT_OK &&
                           states_are(f->z, true, 2));
    assert_all_fail(f->mpi, save_step(f, 2, 0), DT_ERR_WRITE, "");
    assert_all(f->mpi, folder_is_as_before(f)); /* a new step goes */
}

/* Two models are loaded together: after one fails, the ranks still enter the other's collectives. */
IN_DIR(a_rank_that_cannot_finish_one_model_still_takes_part_in_the_next)
{
    fixture *f = *state;
    char path[PATH_MAX];
    const dt_ckpt_meta meta = meta_of(1);
    assert_all(f->mpi, open_zero(f, 1, DT_F32, false));
    dt_zero *first = f->z, *second;
    assert_all(f->mpi, open_zero(f, 3, DT_F32, false));
    second = f->z, f->z = first;
    const dt_saved_model models[] = {{.zero = first, .with_states = true},
                                     {.name = "second", .zero = second, .with_states = true}};
    assert_all(f->mpi, fill_states(first, true, 1) && fill_states(second, true, 2));
    assert_all(f->mpi, dt_checkpoint_save_all(&f->comm, models, 2, &meta, f->dir, 0, NULL) == DT_OK);
    in_folder(f->dir, "step-00000001.h5", path);
    assert_all(f->mpi, dt_checkpoint_load_all(&f->comm, models, 2, path, NULL) == DT_ERR_FAULT);
    assert_all(f->mpi, dt_comm_failed_together(&f->comm));
    dt_error_clear();
    assert_all(f->mpi, dt_checkpoint_load_all(&f->comm, models, 2, path, NULL) == DT_OK);
    assert_all(f->mpi, states_are(first, true, 1) && states_are(second, true, 2));
    dt_zero_close(second);
}

int main(int argc, char **argv)
{
    mpi_test_begin(&argc, &argv);
    int last;
    char list[600];
    MPI_Comm_size(MPI_COMM_WORLD, &last);
    last--;
    /* a rank that does not fail where another does continues to the next point of the same stage */
    const bool alone = last == 0;
    /* the first save passes each point once, "save.write" once for each of the last rank's tensors */
    const int n_slots = n_slots_of(last, last + 1);
    snprintf(list, sizeof list,
             "save.create:0:2:nospace,save.create:%d:%d:error,save.reserve:0:%d:nospace,save.reserve:%d:%d:error,save."
             "write:%d:%d:nospace,save.rename:0:2:nospace,load.read:%d:1:error,save.latest:0:4:nospace,save.latest:0:5:"
             "nospace,zero.gather:%d:8:error", /* once after each filling and each loading of a model */
             last, 3, alone ? 2 : 3, last, alone ? 3 : 4, last, n_slots + 1, last, last);
    setenv("DTRAIN_FAULT", list, 1);
    return mpi_test_end(run_listed(NULL, open_fixture, close_fixture));
}
