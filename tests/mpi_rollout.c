/* mpi_rollout.c - rollouts of runs: what is generated depends on no rank, stage or interruption, and one rank's failure
 * is everybody's.
 *
 * DEVICES: cpu queue */
#include "run_fixture.h"
#include "rollout_task.h"
#include "dtrain/dataset.h"

enum { N_PROMPTS = 8, VOCAB = 64 };

static const char text[] =
    "[run]\nthreads = 1\nseed = 3\n[model]\nmodel_type = llama\nhidden_size = 32\nintermediate_size = 88\n"
    "num_hidden_layers = 2\nnum_attention_heads = 4\nnum_key_value_heads = 2\nvocab_size = 64\n"
    "max_position_embeddings = 64\n[data]\nseq_len = 24\n[batch]\nmicro_batch_size = 2\ntrain_batch_size = 12\n"
    "[optimizer]\nlr = 0.02\n[scheduler]\ntype = constant\n[checkpoint]\nresume = none\nsave_steps = 0\n"
    "[log]\nreport_to = jsonl\n";

/* Prompts of 1 to 8 tokens; of a longer one the last 14 would count. */
static dt_err write_prompts(const char *path)
{
    dt_dataset_writer *w;
    DT_TRY(dt_dataset_create(&w, path, DT_DATASET_PROMPTS, VOCAB, NULL, false));
    for (int64_t i = 0; i < N_PROMPTS; i++) {
        int32_t ids[N_PROMPTS];
        char record[40];
        for (int64_t k = 0; k <= i; k++) ids[k] = (int32_t)(dt_mix64((uint64_t)(i * 100 + k)) % VOCAB);
        DT_TRY(dt_dataset_add(w, ids, NULL, i + 1));
        const int n = snprintf(record, sizeof record, "{\"number\": %d}", (int)i);
        DT_TRY(dt_dataset_add_record(w, record, (size_t)n));
        DT_TRY(dt_dataset_end_document(w, 1));
    }
    return dt_dataset_commit(w);
}

static int open_prompts(void **state)
{
    static struct fixture f;
    char path[160];
    if (!make_folder(&f)) return -1;
    snprintf(path, sizeof path, "%s/train.h5", f.dir);
    const dt_err err = this_rank() ? DT_OK : write_prompts(path);
    if (err) print_error("%s\n", dt_error_message());
    *state = &f;
    return vote_ranks(MPI_COMM_WORLD, !err) ? 0 : -1;
}

static outcome run(const struct fixture *f, const char *name, int n_args, const char *const *args)
{
    char data[200], out[200];
    const char *all[16] = {data, out};
    snprintf(data, sizeof data, "data.train=%s/train.h5", f->dir);
    snprintf(out, sizeof out, "run.output_dir=%s/%s", f->dir, name);
    for (int i = 0; i < n_args; i++) all[i + 2] = args[i];
    rollout_test.n_seen = 0, rollout_test.n_eos = rollout_test.n_rows = 0;
    return run_text(text, NULL, &policy_ops, n_args + 2, all);
}

/* The first rollout is of the weights to start from, which no number of ranks changes: what one rank alone finds is
 * written down here. */
static void the_first_rollout_is_the_same_on_any_ranks_and_stages(void **state)
{
    const char *name[] = {"stage0", "stage1", "stage2", "stage3"};
    uint64_t first = 0;
    for (int stage = 0; stage <= 3; stage++) {
        char zero[32];
        snprintf(zero, sizeof zero, "zero.stage=%d", stage);
        const char *args[] = {zero, "run.max_steps=2"};
        const outcome o = run(*state, name[stage], 2, args);
        assert_all(MPI_COMM_WORLD, !o.err && o.left == 0 && rollout_test.n_seen == 1 && is_planned(&o, zero));
        if (stage == 0) first = rollout_test.seen[0];
        assert_all(MPI_COMM_WORLD, rollout_test.seen[0] == first);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_rollout_is_the_same_on_any_ranks_and_stages),
    };
    mpi_test_begin(&argc, &argv);
    return mpi_test_end(cmocka_run_group_tests(tests, open_prompts, close_fixture));
}
