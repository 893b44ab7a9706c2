/* mpi_rollout.c - rollouts of runs: completions depend on neither the ZeRO stage nor interruptions.
 *
 * With arguments it is dtrain with the task of rollout_task.h: `mpi_rollout DIR [section.key=value ...]`
 * (tests/e2e_rollout.sh: numbers of ranks, faults, kills).
 * NP: 1 2 4
 * DEVICES: cpu queue */
#include "cases.h"
#include "run_fixture.h"
#include "rollout_task.h"
#include "dtrain/data/dataset.h"
#include "dtrain/process/process.h"

enum { N_PROMPTS = 8, VOCAB = 64 };

static const char text[] =
    "[run]\nthreads = 1\nseed = 3\n[model]\nmodel_type = llama\nhidden_size = 32\nintermediate_size = 88\n"
    "num_hidden_layers = 2\nnum_attention_heads = 4\nnum_key_value_heads = 2\nvocab_size = 64\n"
    "max_position_embeddings = 64\n[data]\nseq_len = 16\n[batch]\nmicro_batch_size = 2\ntrain_batch_size = 24\n"
    "[optimizer]\nlr = 0.02\n[scheduler]\ntype = constant\n[checkpoint]\nresume = none\nsave_steps = 0\n"
    "[log]\nreport_to = jsonl\ncompletions = 0\n";

/* Prompts of 1 to 8 tokens, of which a row of 16 has room for the last 6. */
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
    return dt_datasets_commit(&w, NULL, 1);
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
    rollout_test.n_seen = rollout_test.n_asked = 0;
    rollout_test.n_eos = rollout_test.n_rows = 0;
    dt_error_clear();
    return run_text(text, NULL, &policy_ops, n_args + 2, all);
}

static char *read_lines(const struct fixture *f, const char *name)
{
    char path[200], *lines = NULL;
    size_t nbytes;
    snprintf(path, sizeof path, "%s/%s/rollouts.jsonl", f->dir, name);
    return dt_read_file(path, 1 << 24, &lines, &nbytes) == DT_OK ? lines : NULL;
}

static bool same_lines(const struct fixture *f, const char *a, const char *b)
{
    char *x = read_lines(f, a), *y = read_lines(f, b);
    const bool same = x && y && *x && !strcmp(x, y);
    free(x), free(y);
    return same;
}

/* ---- completions ------------------------------------------------------------------------------------------------- */

/* Two rollouts, the second by weights that the first has made, at every stage with the bits of stage 0; what is planned
 * is allocated. Some completions end and some are cut, or little would be shown. */
TEST(rollouts_depend_on_no_stage)
{
    uint64_t seen[2] = {0};
    double sent[5];
    int nranks;
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    for (int way = 0; way < 5; way++) {
        char zero[32], name[16];
        const char *few = way == 4 ? "zero.max_live_parameters=20000" : "zero.max_live_parameters=40000";
        snprintf(zero, sizeof zero, "zero.stage=%d", way < 4 ? way : 3); /* 4: gathered for each pass */
        snprintf(name, sizeof name, "stage%d", way);
        const char *args[] = {zero, "run.max_steps=3", "run.reproducible=true", few};
        const outcome o = run(*state, name, 4, args);
        assert_all(MPI_COMM_WORLD, !o.err && o.left == 0 && is_planned(&o, name));
        assert_all(MPI_COMM_WORLD, rollout_test.n_seen == 2);
        assert_all(MPI_COMM_WORLD, rollout_test.n_eos > 0 && rollout_test.n_eos < rollout_test.n_rows);
        if (way == 0) memcpy(seen, rollout_test.seen, sizeof seen);
        assert_all(MPI_COMM_WORLD, !memcmp(seen, rollout_test.seen, sizeof seen));
        sent[way] = o.sent_nbytes;
    }
    assert_all(MPI_COMM_WORLD, nranks == 1 || sent[3] < sent[4]);
}

/* A pass of tokens costs some 10 calls for each of the two blocks and some for what is around them; as two graphs it
 * costs 8, once its step has come twice. Graphs of the first rollout serve the second, whose weights are others. They
 * need parameters that stay: there are none where each pass gathers them, at stage 3 of several ranks. */
TEST(graphs_make_the_same_rollouts_with_fewer_calls)
{
    int nranks;
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    for (int way = 0; way < 5; way++) {
        uint64_t seen[2];
        int64_t without = 0;
        char zero[32], name[24];
        snprintf(zero, sizeof zero, "zero.stage=%d", way < 4 ? way : 3);
        for (int graphs = 0; graphs < 2; graphs++) {
            const char *args[] = {zero, "run.max_steps=3", graphs ? "run.cuda_graphs=true" : "run.cuda_graphs=false",
                                  way == 4 ? "zero.max_live_parameters=20000" : "zero.max_live_parameters=40000"};
            snprintf(name, sizeof name, "graphs%d-%d", way, graphs);
            const outcome o = run(*state, name, 4, args);
            assert_all(MPI_COMM_WORLD, !o.err && o.left == 0 && is_planned(&o, name) && rollout_test.n_seen == 2);
            if (!graphs) memcpy(seen, rollout_test.seen, sizeof seen), without = rollout_test.n_launches;
        }
        const int64_t with = rollout_test.n_launches;
        if (without > 0 && !this_rank())
            print_message("%s: %lld launches without graphs, %lld with\n", zero, (long long)without, (long long)with);
        assert_all(MPI_COMM_WORLD, !memcmp(seen, rollout_test.seen, sizeof seen));
        const bool none = way == 4 && nranks > 1;
        assert_all(MPI_COMM_WORLD, without == 0 || (none ? with == without : with < without));
    }
}

TEST(neither_steps_nor_rollouts_allocate)
{
    const char *few[] = {"run.max_steps=2"}, *many[] = {"run.max_steps=6"};
    const outcome a = run(*state, "few", 1, few), b = run(*state, "many", 1, many);
    assert_all(MPI_COMM_WORLD, !a.err && !b.err && a.n_allocs == b.n_allocs);
}

/* The sampler and the scorer agree on every token's log-probability, at any temperature, except for fp32 rounding in
 * two kinds of passes. That is a few units of 2^-24 of sums of up to 64 values of size 10, so 1e-4 is ample.
 * Omitting the temperature would change results by some tenths. */
TEST(the_sampler_and_the_scorer_agree)
{
    const char *args[] = {"run.max_steps=1"};
    static const double temperatures[] = {1, 0.6};
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "gap1" : "gap0";
        rollout_test.temperature = temperatures[i];
        const outcome o = run(*state, name, 1, args);
        rollout_test.temperature = 0;
        assert_all(MPI_COMM_WORLD, !o.err);
        const double gap = reported(*state, name, 1, "test/sampling/sampling_logp_difference/mean");
        assert_all(MPI_COMM_WORLD, this_rank() || (gap > 0 && gap < 1e-4));
    }
}

/* Lengths as they are in the run's own words, from all rows at once, to the nine digits that metrics have. */
TEST(lengths_are_measured)
{
    const char *args[] = {"run.max_steps=1"};
    assert_all(MPI_COMM_WORLD, !run(*state, "lengths", 1, args).err);
    if (this_rank()) return;
    const struct fixture *f = *state;
    const double cut = reported(f, "lengths", 1, "test/completions/clipped_ratio"),
                 mean = reported(f, "lengths", 1, "test/completions/mean_length"),
                 ended = reported(f, "lengths", 1, "test/completions/mean_terminated_length"),
                 targets = reported(f, "lengths", 1, "test/completions/max_length");
    const double n = (double)rollout_test.n_rows, n_eos = (double)rollout_test.n_eos;
    assert_true(fabs(cut - (n - n_eos) / n) < 1e-8 && targets == ROLLOUT_NEW);
    assert_true(fabs(mean * n - (ended * n_eos + ROLLOUT_NEW * (n - n_eos))) < 1e-6);
}

/* Groups that are left out make room for others; what stays is moved whole. */
TEST(dropped_groups_are_replaced)
{
    const char *args[] = {"run.max_steps=2", "run.reproducible=true"}, *third[] = {args[0], args[1], "zero.stage=3"};
    rollout_test.drops = true;
    const outcome one = run(*state, "drop0", 2, args);
    const uint64_t seen = rollout_test.seen[0];
    const outcome two = run(*state, "drop3", 3, third);
    rollout_test.drops = false;
    assert_all(MPI_COMM_WORLD, !one.err && !two.err && rollout_test.n_seen == 1 && seen == rollout_test.seen[0]);
    assert_all(MPI_COMM_WORLD, !run(*state, "drop1", 2, args).err && seen != rollout_test.seen[0]);
}

/* ---- resuming ---------------------------------------------------------------------------------------------------- */

/* In the middle of a rollout, and between two: at another stage, the same losses, the same lines once each. */
TEST(a_resumed_run_is_the_same)
{
    const char *whole[] = {"run.max_steps=5", "run.reproducible=true", "log.rollouts=true"};
    assert_all(MPI_COMM_WORLD, !run(*state, "whole", 3, whole).err);
    for (int at = 1; at <= 2; at++) {
        char name[16], first[32];
        snprintf(name, sizeof name, "part%d", at);
        snprintf(first, sizeof first, "run.max_steps=%d", at);
        const char *part[] = {first, whole[1], whole[2], "zero.stage=3"};
        const char *rest[] = {whole[0], whole[1], whole[2], "checkpoint.resume=auto"};
        assert_all(MPI_COMM_WORLD, !run(*state, name, 4, part).err && !run(*state, name, 4, rest).err);
        for (int64_t step = 1; step <= 5; step++)
            assert_all(MPI_COMM_WORLD,
                       this_rank() || reported(*state, name, step, "loss") == reported(*state, "whole", step, "loss"));
        assert_all(MPI_COMM_WORLD, this_rank() || same_lines(*state, "whole", name));
    }
}

/* A rank that hears of a stop within a rollout tells the others; the resumed run makes the same rollout. Each number of
 * times that it asks before it hears is another place: while it generates, while it scores. */
TEST(a_stop_request_interrupts_a_rollout)
{
    int nranks;
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    for (int after = 1; after <= 3; after++) {
        char name[16];
        snprintf(name, sizeof name, "stop%d", after);
        const char *args[] = {"run.max_steps=5", "run.reproducible=true", "log.rollouts=true",
                              after == 3 ? "zero.stage=3" : "zero.stage=0", "checkpoint.resume=auto"};
        rollout_test.stop_rank = nranks - 1, rollout_test.stop_after = after;
        const outcome o = run(*state, name, 5, args);
        rollout_test.stop_after = 0;
        assert_all(MPI_COMM_WORLD, o.err == DT_ERR_STOP && o.together && o.left == 0);
        assert_all(MPI_COMM_WORLD, !run(*state, name, 5, args).err);
        assert_all(MPI_COMM_WORLD, this_rank() || same_lines(*state, "whole", name));
    }
}

TEST(a_rollout_of_another_size_is_made_anew)
{
    const char *first[] = {"run.max_steps=1"};
    const char *then[] = {"run.max_steps=3", "checkpoint.resume=auto", "batch.train_batch_size=48",
                          "checkpoint.allow_changes=all"};
    assert_all(MPI_COMM_WORLD, !run(*state, "size", 1, first).err);
    assert_all(MPI_COMM_WORLD, !run(*state, "size", 4, then).err && rollout_test.n_seen > 0);
}

TEST(a_row_without_room_for_a_prompt_is_refused)
{
    const char *args[] = {"data.seq_len=10"};
    const outcome o = run(*state, "short", 1, args);
    assert_all(MPI_COMM_WORLD, o.err == DT_ERR_USAGE && o.left == 0);
    assert_all(MPI_COMM_WORLD,
               this_rank() || strstr(dt_error_message(), "seq_len = 10 tokens leave none for the prompt"));
}

/* ---- from a file ------------------------------------------------------------------------------------------------- */

/* What a run has written down it can be given: the same completions, so the same steps, and the same records. */
TEST(what_was_written_is_read_again)
{
    const struct fixture *f = *state;
    const char *args[] = {"run.max_steps=4", "run.reproducible=true", "log.rollouts=true"};
    char path[200];
    assert_all(MPI_COMM_WORLD, !run(f, "written", 3, args).err);
    snprintf(path, sizeof path, "%s/written/rollouts.jsonl", f->dir);
    rollout_test.from_file = path;
    const outcome o = run(f, "again", 3, args);
    rollout_test.from_file = NULL;
    assert_all(MPI_COMM_WORLD, !o.err && o.left == 0 && is_planned(&o, "from a file"));
    for (int64_t step = 1; step <= 4; step++)
        assert_all(MPI_COMM_WORLD,
                   this_rank() || reported(f, "again", step, "loss") == reported(f, "written", step, "loss"));
    char *lines = this_rank() ? NULL : read_lines(f, "again");
    assert_all(MPI_COMM_WORLD, this_rank() || (lines && strstr(lines, "\"record\": {\"number\":")));
    free(lines);
}

static bool refuses(const struct fixture *f, const char *line, const char *why)
{
    const char *args[] = {"run.max_steps=1"};
    char path[200];
    snprintf(path, sizeof path, "%s/bad.jsonl", f->dir);
    dt_err wrote = this_rank() ? DT_OK : dt_write_file_atomic(path, line, strlen(line));
    if (!vote_ranks(MPI_COMM_WORLD, !wrote)) return false;
    rollout_test.from_file = path;
    const outcome o = run(f, "bad", 1, args);
    rollout_test.from_file = NULL;
    const bool says = this_rank() || strstr(dt_error_message(), why);
    if (!says) print_error("%s: %s\n", line, dt_error_message());
    return vote_ranks(MPI_COMM_WORLD, o.err == DT_ERR_DATA && o.left == 0 && says);
}

TEST(lines_that_are_no_groups_are_refused)
{
    static const struct {
        const char *line, *why;
    } BAD[] = {
        {"\n\n", "expected a group of completions per line, found none"},
        {"{\"prompt_ids\": [1]}\n", ":1: completion_ids: expected 3 completions per prompt, found 0"},
        {"{\"prompt_ids\": [1], \"completion_ids\": [[1], [2]]}\n", "expected 3 completions per prompt, found 2"},
        {"\n{\"prompt_ids\": [64], \"completion_ids\": [[1], [2], [3]]}\n", ":2: prompt_ids[0]: expected a token id"},
        {"{\"prompt_ids\": [], \"completion_ids\": [[1], [2], [3]]}\n", "prompt_ids: expected a list of token ids"},
        {"{\"prompt_ids\": [1], \"completion_ids\": [[1], [], [3]]}\n", "completion_ids[1]: expected a list"},
        {"{\"prompt_ids\": [1], \"completion_ids\": [[1], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], [3]]}\n",
         "completion_ids[1]: expected at most the 10 tokens"},
        {"{\"prompt_ids\": [1], \"completion_ids\": [[1], [2], [3]], \"rewards\": [1, 2]}\n", "rewards: expected"},
        {"{\"prompt_ids\": [1], \"completion_ids\": [[1], [2], [3]], \"rewards\": [[1], [2], [\"x\"]]}\n",
         "rewards[2]: expected numbers or null"},
        {"{\"prompt_ids\": [1], \"completion_ids\": [[1], [2], [3]], \"rewards\": [1, 2, 1e999]}\n",
         "rewards[2]: expected numbers or null"},
        {"{\"prompt_ids\": [1], \"completion_ids\": [[1], [2], [3]]\n", ":1"},
    };
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++)
        assert_all(MPI_COMM_WORLD, refuses(*state, BAD[i].line, BAD[i].why));
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

static int run_program(int n_args, char **args)
{
    dt_comm comm = {0};
    dt_run r = {.start_s = dt_now_s(), .task = {.ops = &policy_ops}};
    char path[200], data[220];
    const char *all[16] = {data};
    int n = 1;
    snprintf(path, sizeof path, "%s/train.h5", args[0]);
    snprintf(data, sizeof data, "data.train=%s", path);
    rollout_test.from_file = getenv("ROLLOUT_FROM");
    dt_err err = dt_comm_open(&comm);
    if (!err) dt_log_open(comm.rank, comm.nranks, comm.host);
    if (!err) err = dt_comm_agree(&comm, comm.rank || dt_is_file(path) ? DT_OK : write_prompts(path));
    for (; n < n_args && n < 16; n++) all[n] = args[n];
    if (!err) err = dt_config_parse(&r.cfg, "mpi_rollout", text, n, all);
    return end_program(&r, &comm, err);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        dt_comm comm;
        if (dt_signals_install() != DT_OK) return 70; /* before MPI has threads */
        if (dt_comm_start(&comm) != DT_OK) return 70;
        return run_program(argc - 1, argv + 1);
    }
    mpi_test_begin(&argc, &argv);
    return mpi_test_end(run_listed(NULL, open_prompts, close_fixture));
}
