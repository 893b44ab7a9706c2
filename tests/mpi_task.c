/* mpi_task.c - an external task runs in the program: its memory is planned, its steps allocate nothing, and
 * everything is freed.
 *
 * With arguments it is dtrain with that task: `mpi_task INPUT [section.key=value ...]` (tests/e2e_task.sh).
 * NP: 1 2 3
 * DEVICES: cpu queue */
#include "cases.h"
#include "run_fixture.h"
#include "toy_task.h"
#include <sys/stat.h>

static const char model[] =
    "[run]\nthreads = 1\nseed = 3\n[model]\nmodel_type = llama\nhidden_size = 32\nintermediate_size = 88\n"
    "num_hidden_layers = 2\nnum_attention_heads = 4\nnum_key_value_heads = 2\nvocab_size = 64\n"
    "max_position_embeddings = 32\n[data]\nseq_len = 16\n[batch]\nmicro_batch_size = 2\ntrain_batch_size = 12\n"
    "[optimizer]\nlr = 0.02\n[scheduler]\ntype = constant\n[checkpoint]\nresume = none\nsave_steps = 0\n"
    "[log]\nreport_to = jsonl\n";

/* A model to begin with, of random weights: a run of no step. */
static dt_err write_start(dt_comm *comm, const char *path)
{
    dt_config cfg = {0};
    dt_model_config mc = {0};
    dt_device dev = {0};
    dt_ledger ledger = {0};
    dt_unit *units = NULL;
    int n_units = 0;
    dt_zero *z = NULL;
    DT_TRY(dt_config_parse(&cfg, "mpi_task", model, 0, NULL));
    DT_TRY(dt_model_config_from_keys(&mc, &cfg));
    DT_TRY(dt_model_make_units(&mc, &units, &n_units));
    DT_TRY(dt_device_open(&dev, "cpu", comm->local_rank, 1, &ledger));
    DT_TRY(dt_comm_attach(comm, &dev, "auto", true));
    const dt_zero_options opt = {.param_dtype = DT_F32, .grad_dtype = DT_F32};
    DT_TRY(dt_zero_open(&z, &opt, units, n_units, comm, &dev, NULL, NULL));
    DT_TRY(dt_zero_init_random(z, 17));
    const dt_ckpt_meta meta = {.config = (char *)"", .model_config = mc.json};
    DT_TRY(dt_checkpoint_save_as(comm, z, &meta, path, NULL));
    dt_zero_close(z);
    dt_model_free_units(units, n_units);
    dt_model_config_free(&mc);
    dt_config_free(&cfg);
    dt_comm_close(comm);
    dt_device_close(&dev);
    return DT_OK;
}

static int write_fixture(void **state)
{
    static struct fixture f;
    char path[160];
    dt_comm comm = {0};
    if (!make_folder(&f)) return -1;
    snprintf(path, sizeof path, "%s/start.h5", f.dir);
    dt_err err = dt_comm_open(&comm);
    if (!err) err = write_start(&comm, path);
    if (err) print_error("%s\n", dt_error_message());
    *state = &f;
    return vote_ranks(MPI_COMM_WORLD, !err) ? 0 : -1;
}

/* ---- runs inside the test's process ------------------------------------------------------------------------------ */

static outcome run(const struct fixture *f, const char *name, int n_args, const char *const *args)
{
    char path[200], out[200];
    const char *all[16] = {path, out};
    snprintf(path, sizeof path, "model.path=%s/start.h5", f->dir);
    snprintf(out, sizeof out, "run.output_dir=%s/%s", f->dir, name);
    for (int i = 0; i < n_args; i++) all[i + 2] = args[i];
    const outcome o = run_text(model, NULL, &toy_ops, n_args + 2, all);
    if (o.err) print_error("%s\n", dt_error_message());
    return o;
}

/* With the judge model, the table trained next to the model and, at stage 3, all parameters gathered in a rollout. */
TEST(task_memory_is_planned)
{
    static const char *const WAYS[] = {"precision.dtype=bf16", "model.activation_checkpointing=selective",
                                       "model.activation_checkpointing=block", "zero.offload_optimizer=cpu",
                                       "zero.offload_optimizer=nvme"};
    const struct fixture *f = *state;
    char zero[32], disk[160], name[32];
    snprintf(disk, sizeof disk, "zero.nvme_path=%s", f->dir);
    for (int stage = 0; stage <= 3; stage++)
        for (int way = 0; way < (int)(sizeof WAYS / sizeof WAYS[0]); way++)
            for (int gathered = 0; gathered <= (stage == 3); gathered++) {
                snprintf(zero, sizeof zero, "zero.stage=%d", stage);
                snprintf(name, sizeof name, "plan%d-%d-%d", stage, way, gathered); /* of WAYS the second number */
                const char *args[] = {zero, "run.max_steps=1", WAYS[way], disk,
                                      way == 3 ? "zero.offload_param=cpu" : "zero.offload_param=nvme"};
                if (gathered) setenv("TOY_KEEP_GATHERED", "1", 1);
                const outcome o = run(f, name, stage == 3 && way >= 3 ? 5 : 4, args);
                unsetenv("TOY_KEEP_GATHERED");
                assert_all(MPI_COMM_WORLD, !o.err && o.left == 0 && is_planned(&o, name));
            }
}

/* At stage 3 with offload_param no parameter stays on the device, of the judge neither; it judges the same. */
TEST(frozen_models_leave_the_device_with_the_parameters)
{
    static const char *const TO[] = {"zero.offload_param=none", "zero.offload_param=cpu", "zero.offload_param=nvme"};
    static const char *const KEYS[] = {"loss", "toy/frozen_logp"};
    const struct fixture *f = *state;
    char disk[160], name[3][16];
    snprintf(disk, sizeof disk, "zero.nvme_path=%s", f->dir);
    for (int k = 0; k < 3; k++) {
        const char *args[] = {"zero.stage=3", "run.max_steps=3", "run.reproducible=true", disk, TO[k]};
        snprintf(name[k], sizeof name[k], "frozen%d", k);
        const outcome o = run(f, name[k], 5, args);
        const bool left = o.allocated.at[DT_MEM_PARAMS][DT_ON_DEVICE] == 0;
        assert_all(MPI_COMM_WORLD, !o.err && o.left == 0 && is_planned(&o, TO[k]) && left == (k > 0));
        for (int64_t step = 1; step <= 3; step++)
            for (int i = 0; i < 2; i++)
                assert_all(MPI_COMM_WORLD,
                           this_rank() || reported(f, name[k], step, KEYS[i]) == reported(f, name[0], step, KEYS[i]));
    }
}

/* The table as a run's checkpoint has it. */
static bool read_table(const struct fixture *f, const char *name, int64_t step, float table[64])
{
    char path[200];
    dt_h5_array a;
    hid_t file;
    snprintf(path, sizeof path, "%s/%s/checkpoints/step-%08d.h5", f->dir, name, (int)step);
    dt_h5_lock();
    bool ok = dt_h5_open(path, &file, NULL) == DT_OK;
    const hid_t dset = ok ? dt_h5_open_array(file, "/table/model/table.weight") : -1;
    ok = dset >= 0 && dt_h5_inspect(dset, path, "table", &a) == DT_OK && a.n_elems == 64 &&
         dt_h5_read_run(dset, path, "table", &a, 0, 64, table) == DT_OK;
    if (dset >= 0) H5Dclose(dset);
    if (file >= 0) H5Fclose(file);
    dt_h5_unlock();
    return ok;
}

/* The table's norm is linear in a factor, up to what float rounds (2^-24 of each element) and nine digits in the
 * report; the model's does not know of it. A step of plain gradient descent is as long as rate times bound, whatever
 * the gradient: what is stored rounds by 2^-24 of weights below 0.3, each of 64. */
TEST(each_model_has_its_own_norm_rate_and_bound)
{
    const char *args[] = {"run.max_steps=1"};
    float table[4][64] = {{0}};
    double norm[4] = {0}, own[4] = {0}, lr[4] = {0};
    setenv("TOY_TABLE_SGD", "1", 1);
    for (int k = 0; k < 4; k++) { /* 0: it does not move; 1, 2: another factor; 3: another bound */
        char name[16], factor[8];
        snprintf(name, sizeof name, "own%d", k);
        snprintf(factor, sizeof factor, "%s",
                 k == 2 ? "6e9" : "3e9"); /* at the start both models agree but for rounding */
        setenv("TOY_TABLE_SCALE", factor, 1);
        setenv("TOY_TABLE_LR", k == 0 ? "0" : "0.5", 1);
        setenv("TOY_TABLE_CLIP", k == 3 ? "0.125" : "0.25", 1);
        assert_all(MPI_COMM_WORLD, !run(*state, name, 1, args).err);
        if (this_rank()) continue;
        norm[k] = reported(*state, name, 1, "grad_norm");
        own[k] = reported(*state, name, 1, "table/grad_norm");
        lr[k] = reported(*state, name, 1, "table/lr");
        if (!read_table(*state, name, 1, table[k])) norm[k] = NAN;
    }
    unsetenv("TOY_TABLE_SGD"), unsetenv("TOY_TABLE_SCALE"), unsetenv("TOY_TABLE_LR"), unsetenv("TOY_TABLE_CLIP");
    bool ok = norm[0] > 0 && own[0] > 1 && fabs(own[2] - 2 * own[1]) < 1e-6 * own[2];
    for (int k = 1; k < 4; k++) {
        const double length = lr[k] * (k == 3 ? 0.125 : 0.25);
        double squares = 0;
        for (int i = 0; i < 64; i++) squares += pow((double)table[k][i] - (double)table[0][i], 2);
        ok = ok && norm[k] == norm[0] && lr[k] == 0.5 && fabs(sqrt(squares) - length) < 1e-5 * length;
    }
    assert_all(MPI_COMM_WORLD, ok || this_rank());
}

/* At stage 3 a rollout gathers each unit once, where there is room for all; and nothing else changes. */
TEST(parameters_may_stay_gathered_for_a_rollout)
{
    const char *args[] = {"zero.stage=3", "run.max_steps=3"};
    int nranks;
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    const outcome one = run(*state, "gathered-0", 2, args);
    setenv("TOY_KEEP_GATHERED", "1", 1);
    const outcome two = run(*state, "gathered-1", 2, args);
    const char *little[] = {"zero.stage=3", "run.max_steps=3", "zero.max_live_parameters=20000"};
    dt_error_clear();
    const outcome three = run(*state, "gathered-2", 3, little);
    unsetenv("TOY_KEEP_GATHERED");
    assert_all(MPI_COMM_WORLD, !one.err && !two.err && three.err == (nranks > 1 ? DT_ERR_USAGE : DT_OK));
    dt_error_clear();
    assert_all(MPI_COMM_WORLD, nranks == 1 || two.sent_nbytes < 0.6 * one.sent_nbytes);
    assert_all(MPI_COMM_WORLD, !memcmp(&two.planned, &two.allocated, sizeof two.planned));
    for (int64_t step = 1; step <= 3; step++)
        assert_all(MPI_COMM_WORLD, this_rank() || reported(*state, "gathered-0", step, "loss") ==
                                                      reported(*state, "gathered-1", step, "loss"));
}

TEST(neither_steps_nor_rollouts_allocate)
{
    for (int stage = 0; stage <= 3; stage += 3) {
        char zero[32], name[2][16];
        snprintf(zero, sizeof zero, "zero.stage=%d", stage);
        for (int i = 0; i < 2; i++) snprintf(name[i], sizeof name[i], "steps%d-%d", stage, i);
        const char *few[] = {zero, "run.max_steps=2"}, *many[] = {zero, "run.max_steps=8"};
        const outcome a = run(*state, name[0], 2, few), b = run(*state, name[1], 2, many);
        assert_all(MPI_COMM_WORLD, !a.err && !b.err && a.n_allocs == b.n_allocs);
    }
}

/* In the first step of a rollout nothing has changed since it was scored; in the second the weights have. */
TEST(a_rollout_serves_two_steps)
{
    const char *args[] = {"run.max_steps=4"};
    const outcome o = run(*state, "four", 1, args);
    bool ok = !o.err;
    for (int64_t step = 1; ok && this_rank() == 0 && step <= 4; step++) {
        const double ratio = reported(*state, "four", step, "toy/largest_ratio");
        const double n = reported(*state, "four", step, "toy/new_tokens");
        ok = (step % 2 ? ratio == 1 : ratio > 1) && n > 0;
        if (step % 2 == 0) ok = ok && n == reported(*state, "four", step - 1, "toy/new_tokens");
    }
    assert_all(MPI_COMM_WORLD, ok);
}

/* What is asked of the disk for a checkpoint is enough for all that is in it, and not much more: two pages for each of
 * its arrays, and for the root. A rollout of 600 samples takes 245 kB. */
TEST(what_a_task_saves_is_counted)
{
    const struct fixture *f = *state;
    const char *args[] = {"run.max_steps=1", "batch.train_batch_size=600", "batch.micro_batch_size=50"};
    struct stat st;
    char path[200];
    const outcome o = run(f, "bytes", 3, args);
    snprintf(path, sizeof path, "%s/bytes/checkpoints/step-00000001.h5", f->dir);
    assert_all(MPI_COMM_WORLD, !o.err);
    const bool fits = stat(path, &st) == 0 && (double)st.st_size <= o.saved_nbytes &&
                      o.saved_nbytes < (double)st.st_size + 160 * 8192;
    assert_all(MPI_COMM_WORLD, fits);
}

/* If a checkpoint omits frozen tensors, the estimate decreases by their size. */
TEST(what_a_task_leaves_out_is_not_counted)
{
    const struct fixture *f = *state;
    const char *dirs[] = {"with", "without"}, *saves[] = {"checkpoint.save=all", "checkpoint.save=trainable"};
    double nbytes[2], planned[2];
    for (int i = 0; i < 2; i++) {
        const char *args[] = {"run.max_steps=1", "lora.r=2", saves[i]};
        struct stat st;
        char path[200];
        const outcome o = run(f, dirs[i], 3, args);
        snprintf(path, sizeof path, "%s/%s/checkpoints/step-00000001.h5", f->dir, dirs[i]);
        assert_all(MPI_COMM_WORLD, !o.err && stat(path, &st) == 0);
        nbytes[i] = (double)st.st_size, planned[i] = o.saved_nbytes;
        assert_all(MPI_COMM_WORLD, nbytes[i] <= planned[i]);
    }
    assert_all(MPI_COMM_WORLD, planned[0] - planned[1] > 0.8 * (nbytes[0] - nbytes[1]) && nbytes[1] < nbytes[0]);
}

/* It rolls out with the weights that judge it, so both say the same of every token. fp32 of two kinds of passes: the
 * judge's is batch-invariant. */
TEST(the_start_does_not_differ_from_its_judge)
{
    const char *args[] = {"run.max_steps=1"};
    const outcome o = run(*state, "judge", 1, args);
    assert_all(MPI_COMM_WORLD, !o.err);
    assert_all(MPI_COMM_WORLD, this_rank() || fabs(reported(*state, "judge", 1, "toy/divergence")) < 1e-5);
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

static int run_program(int n_args, char **args)
{
    dt_comm comm = {0};
    dt_run r = {.start_s = dt_now_s(), .task = {.ops = &toy_ops}};
    char start[200], path[220];
    int n = 0;
    const char *all[16] = {path};
    dt_err err = dt_signals_install();
    if (!err) err = dt_comm_open(&comm);
    if (!err) dt_log_open(comm.rank, comm.nranks, comm.host);
    snprintf(start, sizeof start, "%s/start.h5", args[0]);
    snprintf(path, sizeof path, "model.path=%s", start);
    int64_t missing = !err && comm.rank == 0 && !dt_is_file(start);
    if (!err) err = dt_comm_broadcast_host(&comm, &missing, sizeof missing, 0);
    if (!err && missing) {
        err = write_start(&comm, start);
        comm = (dt_comm){0};
        if (!err) err = dt_comm_open(&comm);
    }
    for (n = 1; n < n_args && n < 16; n++) all[n] = args[n];
    if (!err) err = dt_config_parse(&r.cfg, "mpi_task", model, n, all);
    return end_program(&r, &comm, err);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        dt_comm comm;
        if (dt_comm_start(&comm) != DT_OK) return 70;
        return run_program(argc - 1, argv + 1);
    }
    mpi_test_begin(&argc, &argv);
    return mpi_test_end(run_listed(NULL, write_fixture, close_fixture));
}
