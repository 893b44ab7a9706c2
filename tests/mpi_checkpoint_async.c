// QUICK: 2 queue
/* mpi_checkpoint_async.c - a save concurrent with training. The file equals, byte for byte, that of a synchronous
 * save when the copy was taken, whatever happens to the states meanwhile. A single rank's failure at any point fails
 * the save on all ranks and damages no existing file. The faults are armed for the n-th passage, so the order of the
 * attempts below is the list's.
 * DEVICES: cpu queue */
#include "cases.h"
#include "checkpoint_fixture.h"

static size_t saved_nbytes(const dt_zero_plan *p) { return p->saved_nbytes[DT_TRAINED] + p->saved_nbytes[DT_FROZEN]; }

static dt_saver *open_saver(fixture *f, int stage, dt_dtype dtype)
{
    const dt_zero_options opt = options_of(stage, dtype, false);
    dt_zero_plan plan;
    dt_saver *s = NULL;
    if (dt_zero_plan_make(&opt, f->units, N_UNITS, f->comm.nranks, &plan) != DT_OK) return NULL;
    return dt_saver_open(&s, &f->comm, &f->dev, NULL, saved_nbytes(&plan)) == DT_OK ? s : NULL;
}

static dt_saved_model model_of(const fixture *f, const dt_ckpt_meta *meta)
{
    return (dt_saved_model){.zero = f->z, .with_states = true, .state_updates = meta->states.updates};
}

static bool same_file(const fixture *f, const char *a, const char *b)
{
    char command[200];
    snprintf(command, sizeof command, "cmp '%s/%s' '%s/%s'", f->dir, a, f->dir, b);
    return f->comm.rank != 0 || system(command) == 0;
}

/* As in a run: each step has a vote, and ends with an update after the copy and a wait for the device. But the first
 * step is a long one. */
static dt_err drive(fixture *f, dt_saver *s)
{
    enum { LONG = 200 };
    bool ended = false;
    for (int i = 0; !ended; i++) {
        bool done = false;
        double work_s = 0;
        const dt_err err = dt_saver_poll(s, &done, &work_s);
        dt_vote_value values[] = {{.kind = DT_VOTE_MIN, .real = done}, {.kind = DT_VOTE_MAX, .real = work_s}};
        dt_vote vote = {.err = err, .values = values, .n_values = 2};
        DT_TRY(dt_comm_vote(&f->comm, &vote));
        DT_TRY((dt_err)vote.err);
        if (values[0].real != 0) DT_TRY(dt_saver_continue(s, values[1].real, &ended));
        usleep(100);
        if (i < LONG) continue;
        DT_TRY(dt_saver_hold(s));
        DT_TRY(f->dev.ops->stream_sync(&f->dev, NULL));
    }
    return DT_OK;
}

/* The result of a step: the device sets the moments to zero when it reaches the step. */
static bool change_states(fixture *f, int salt)
{
    return fill_states(f->z, true, salt) && dt_zero_clear_states(f->z) == DT_OK;
}

static bool is_valid_as_before(const fixture *f)
{
    char path[PATH_MAX];
    return folder_is_as_before(f) && dt_checkpoint_verify(in_folder(f->dir, "step-00000001.h5", path), NULL) == DT_OK;
}

TEST_WITH(one_failing_rank_fails_the_save_on_all_ranks, make_dir, remove_dir)
{
    fixture *f = *state;
    const dt_err expected[] = {DT_ERR_FAULT, DT_ERR_WRITE, DT_ERR_FAULT, DT_ERR_WRITE,
                               DT_ERR_FAULT, DT_ERR_WRITE, DT_ERR_WRITE, DT_ERR_WRITE};
    enum { N = sizeof expected / sizeof expected[0] };
    const dt_ckpt_meta meta = meta_of(2);
    dt_saver *s = open_saver(f, 1, DT_F32);
    assert_all(f->mpi, s && open_zero(f, 1, DT_F32, false) && fill_states(f->z, true, 1));
    assert_all(f->mpi, dt_checkpoint_save(&f->comm, f->z, &(dt_ckpt_meta){.step = 1}, f->dir, 0, NULL) == DT_OK);
    const dt_saved_model model = model_of(f, &meta);
    for (int k = 0; k < N; k++) {
        dt_err err = dt_saver_begin(s, &model, 1, &meta, f->dir, 0);
        if (err == DT_OK) err = k % 2 ? dt_saver_finish(s, NULL) : drive(f, s);
        if (err != expected[k]) print_error("attempt %d: error %d %s\n", k, err, dt_error_message());
        assert_all(f->mpi, err == expected[k]);
        assert_all(f->mpi, !dt_comm_prints_error(&f->comm) || strstr(dt_error_message(), "injected"));
        dt_error_clear();
        const dt_err again =
            dt_saver_state_of(s).in_progress ? expected[k] : DT_OK; /* a failed look gives nothing up */
        assert_all(f->mpi, dt_saver_finish(s, NULL) == again);
        dt_error_clear();
        MPI_Barrier(f->mpi);
        assert_all(f->mpi, is_valid_as_before(f));
    }
    assert_all(f->mpi, dt_saver_begin(s, &model, 1, &meta, f->dir, 0) == DT_OK && dt_saver_finish(s, NULL) == DT_OK);
    assert_all(f->mpi, exists_in(f->dir, "step-00000002.h5"));
    dt_saver_close(s);
}

/* The last change before the copy may still be queued. The next change comes immediately after the copy was
 * requested, or only once the file exists. */
TEST_WITH(the_file_is_that_of_the_moment_of_the_copy, make_dir, remove_dir)
{
    fixture *f = *state;
    char path[PATH_MAX];
    for (int i = 0; i < 16; i++) {
        const int stage = i % 4;
        const bool finish = i / 4 % 2, change = i / 8;
        const dt_dtype dtype = i % 3 ? DT_BF16 : DT_F32;
        const dt_ckpt_meta meta = meta_of(2);
        assert_all(f->mpi, open_zero(f, stage, dtype, false) && change_states(f, i));
        const dt_saved_model model = model_of(f, &meta);
        assert_all(f->mpi,
                   dt_checkpoint_save_as(&f->comm, f->z, &meta, in_folder(f->dir, "at-once.h5", path), NULL) == DT_OK);
        dt_saver *s = open_saver(f, stage, dtype);
        assert_all(f->mpi, s && change_states(f, i) && dt_saver_begin(s, &model, 1, &meta, f->dir, 0) == DT_OK);
        assert_all(f->mpi, !exists_in(f->dir, "step-00000002.h5") || i > 0);
        if (change) assert_all(f->mpi, dt_saver_hold(s) == DT_OK && fill_states(f->z, true, 100 + i));
        assert_all(f->mpi, (finish ? dt_saver_finish(s, NULL) : drive(f, s)) == DT_OK);
        assert_all(f->mpi, !dt_saver_state_of(s).in_progress && dt_saver_state_of(s).n_stages == DT_SAVE_STAGES);
        assert_all(f->mpi, same_file(f, "at-once.h5", "step-00000002.h5"));
        assert_all(f->mpi, !change || states_are(f->z, true, 100 + i));
        dt_saver_close(s);
        close_zero(f);
    }
}

/* The second save is refused while the first is in progress; after it, the second stores the states as the first
 * left them. */
TEST_WITH(one_save_is_in_progress_at_a_time, make_dir, remove_dir)
{
    fixture *f = *state;
    const dt_ckpt_meta first = meta_of(1), second = meta_of(2);
    assert_all(f->mpi, open_zero(f, 1, DT_F32, false) && fill_states(f->z, true, 1));
    dt_saver *s = open_saver(f, 1, DT_F32);
    const dt_saved_model model = model_of(f, &first);
    assert_all(f->mpi, s && dt_saver_begin(s, &model, 1, &first, f->dir, 1) == DT_OK);
    assert_all_fail(f->mpi, dt_saver_begin(s, &model, 1, &second, f->dir, 1), DT_ERR_ARG, "");
    assert_all(f->mpi, dt_saver_finish(s, NULL) == DT_OK && exists_in(f->dir, "step-00000001.h5"));
    assert_all(f->mpi, dt_saver_finish(s, NULL) == DT_OK); /* nothing to wait for */
    assert_all(f->mpi, dt_saver_begin(s, &model, 1, &second, f->dir, 1) == DT_OK && dt_saver_finish(s, NULL) == DT_OK);
    MPI_Barrier(f->mpi);
    assert_all(f->mpi, exists_in(f->dir, "step-00000002.h5") && !exists_in(f->dir, "step-00000001.h5"));
    dt_saver_close(s);
}

/* A run that ends by an error does not wait for it. */
TEST_WITH(a_save_that_is_given_up_leaves_nothing, make_dir, remove_dir)
{
    fixture *f = *state;
    const dt_ckpt_meta meta = meta_of(1);
    assert_all(f->mpi, open_zero(f, 2, DT_BF16, false) && fill_states(f->z, true, 1));
    dt_saver *s = open_saver(f, 2, DT_BF16);
    const dt_saved_model model = model_of(f, &meta);
    assert_all(f->mpi, s && dt_saver_begin(s, &model, 1, &meta, f->dir, 1) == DT_OK);
    dt_saver_close(s);
    MPI_Barrier(f->mpi);
    assert_all(f->mpi, !exists_in(f->dir, "step-00000001.h5") && !exists_in(f->dir, "step-00000001.h5.part") &&
                           !exists_in(f->dir, "latest.part"));
}

/* The plan contains the copy, in its category and memory space. States larger than the planned copy are refused. */
TEST_WITH(the_copy_is_planned, make_dir, remove_dir)
{
    fixture *f = *state;
    const dt_zero_options opt = options_of(1, DT_BF16, false);
    const dt_ckpt_meta meta = meta_of(1);
    dt_zero_plan plan;
    dt_memory planned = {0}, before = dt_ledger_now(&f->ledger);
    dt_saver *s = NULL;
    assert_all(f->mpi, dt_zero_plan_make(&opt, f->units, N_UNITS, f->comm.nranks, &plan) == DT_OK);
    dt_saver_plan(&f->dev, saved_nbytes(&plan), &planned);
    assert_all(f->mpi, dt_saver_open(&s, &f->comm, &f->dev, NULL, saved_nbytes(&plan)) == DT_OK);
    const dt_memory held = dt_ledger_now(&f->ledger);
    for (int c = 0; c < DT_N_MEMCAT; c++)
        for (int p = 0; p < DT_N_MEMSPACE; p++) assert_all(f->mpi, held.at[c][p] - before.at[c][p] == planned.at[c][p]);
    dt_saver_close(s);
    assert_all(f->mpi, dt_saver_open(&s, &f->comm, &f->dev, NULL, 64) == DT_OK && open_zero(f, 1, DT_BF16, false));
    const dt_saved_model model = model_of(f, &meta);
    assert_all(f->mpi, dt_saver_begin(s, &model, 1, &meta, f->dir, 0) == DT_ERR_ARG);
    assert_all(f->mpi, !dt_saver_state_of(s).in_progress);
    dt_saver_close(s);
}

int main(int argc, char **argv)
{
    mpi_test_begin(&argc, &argv);
    int last;
    char list[600];
    MPI_Comm_size(MPI_COMM_WORLD, &last);
    last--;
    /* The first, synchronous save passes each point and writes n_slots blocks. Then each attempt fails at a later
     * point than the one before, or on another rank. A rank that does not fail where another does continues to the
     * next point of the same stage. */
    const bool alone = last == 0;
    const int n_slots = n_slots_of(last, last + 1);
    snprintf(list, sizeof list,
             "save.copy:%d:1:error,save.create:0:2:nospace,save.create:%d:%d:error,save.reserve:0:%d:nospace,save."
             "reserve:%d:%d:error,save.write:%d:%d:nospace,save.rename:0:2:nospace,save.latest:0:2:nospace",
             last, last, 3, alone ? 2 : 3, last, alone ? 3 : 4, last, n_slots + 1);
    setenv("DTRAIN_FAULT", list, 1);
    return mpi_test_end(run_listed(NULL, open_fixture, close_fixture));
}
