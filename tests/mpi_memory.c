/* mpi_memory.c - trainings of every task: a step allocates nothing, and what the program takes between the start and
 * the end of a training is in the ledger, but for small blocks (memory_guard.h).
 *
 * NP: 1 2 */
#include "cases.h"
#include "memory_guard.h"
#include "run_fixture.h"
#include "dtrain/step/step.h"
#include <sys/stat.h>

static const char model[] =
    "[run]\nthreads = 1\n[model]\npath = tests/data/dpo/start\n[data]\nseq_len = 64\n[batch]\nmicro_batch_size = 2\n"
    "train_batch_size = 12\n[grpo]\nnum_generations = 4\nmax_completion_length = 6\nreward_funcs = length:3\n"
    "[ppo]\nresponse_length = 8\nreward_funcs = length:3\n[checkpoint]\nsave_steps = 0\nresume = none\n"
    "[log]\nreport_to = jsonl\nrollouts = true\n";

/* ---- data -------------------------------------------------------------------------------------------------------- */

static bool make_data(const struct fixture *f, const char *kind, const char *record)
{
    enum { N = 3000 }; /* lists of records are large then */
    char path[200], here[200], command[900];
    snprintf(path, sizeof path, "%s/%s.jsonl", f->dir, kind);
    FILE *out = fopen(path, "w");
    for (int i = 0; out && i < N; i++) fprintf(out, record, i, i % 7, i % 5);
    if (!out || fclose(out)) return false;
    const ssize_t n = readlink("/proc/self/exe", here, sizeof here - 1);
    if (n <= 0) return false;
    here[n] = '\0';
    char *const folder = strstr(here, "/tests/mpi_memory");
    if (folder) *folder = '\0';
    snprintf(command, sizeof command, "'%s/dtrain-data' -q --tokenizer bytes -o '%s/%s.h5' '%s'", here, f->dir, kind,
             path);
    return system(command) == 0;
}

/* A vocabulary that is large compared with the model's. */
static bool write_tokenizer(const struct fixture *f)
{
    char path[200];
    snprintf(path, sizeof path, "%s/tokenizer.json", f->dir);
    FILE *out = fopen(path, "w");
    if (!out) return false;
    fputs("{\"version\": \"1.0\", \"added_tokens\": [], \"normalizer\": null, \"pre_tokenizer\": {\"type\": "
          "\"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}, "
          "\"post_processor\": null, \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
          "\"trim_offsets\": true, \"use_regex\": false}, \"model\": {\"type\": \"BPE\", \"dropout\": null, "
          "\"unk_token\": null, \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": "
          "false, \"byte_fallback\": false, \"vocab\": {\"a\": 0",
          out);
    for (int i = 1; i < 6000; i++) fprintf(out, ", \"t%d\": %d", i, i);
    fputs("}, \"merges\": []}}", out);
    return fclose(out) == 0;
}

static int open_all(void **state)
{
    static const char sft[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"count %d\"}, {\"role\": "
                              "\"assistant\", \"content\": \"it is %d and %d\"}]}\n",
                      preference[] = "{\"prompt\": \"count %d\", \"chosen\": \"it is %d\", \"rejected\": \"no, %d\"}\n",
                      prompts[] = "{\"prompt\": \"count %d\", \"answer\": \"%d %d\"}\n";
    if (open_fixture(state)) return -1;
    const struct fixture *f = *state;
    const bool ok = this_rank() || (make_data(f, "sft", sft) && make_data(f, "preference", preference) &&
                                    make_data(f, "prompts", prompts) && write_tokenizer(f));
    return vote_ranks(MPI_COMM_WORLD, ok) ? 0 : -1;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static int n_faults; /* of the last run */
static bool prints_faults = true;

static void watch(const dt_run *r, bool begins)
{
    if (begins)
        guard_begin(r);
    else
        n_faults = guard_end(prints_faults);
}

/* Of data "train" with the model and the data of run_fixture.h. */
static outcome run(const struct fixture *f, const dt_task_ops *task, const char *name, const char *data, int n_args,
                   const char *const *args)
{
    char train[200], valid[200], out[200];
    const char *all[24] = {train, valid, out};
    snprintf(train, sizeof train, "data.train=%s/%s.h5", f->dir, data);
    snprintf(valid, sizeof valid, "data.validation=%s/%s.h5", f->dir, data);
    snprintf(out, sizeof out, "run.output_dir=%s/%s", f->dir, name);
    for (int i = 0; i < n_args; i++) all[i + 3] = args[i];
    const long large = atomic_load(&guard.n_large), noted = atomic_load(&guard.n_noted);
    run_watch = watch;
    outcome o = strcmp(data, "train") ? run_text(model, NULL, task, n_args + 3, all)
                                      : run_whole(f, NULL, task, name, n_args, args);
    o.n_large = atomic_load(&guard.n_large) - large, o.n_noted = atomic_load(&guard.n_noted) - noted;
    if (o.err) print_error("%s: %s\n", name, dt_error_message());
    return o;
}

static const struct {
    const char *task, *data;
} TASKS[] = {{"pretrain", "train"}, {"sft", "sft"},     {"rm", "preference"},
             {"dpo", "preference"}, {"ppo", "prompts"}, {"grpo", "prompts"}};
enum { N_TASKS = sizeof TASKS / sizeof TASKS[0] };

/* Few steps and many take as many blocks, of the ledger's and of all others of 1 KiB and more. Of libraries those of
 * 64 KiB count, too, where all batches have one shape: the matrix library keeps something for each. */
TEST(a_step_allocates_nothing)
{
    for (int i = 0; i < N_TASKS; i++)
        for (int stage = 0; stage <= 3; stage += i ? 3 : 1) {
            static const char *const steps[] = {"run.max_steps=2", "run.max_steps=4", "run.max_steps=12"};
            char task[32], zero[32], name[32];
            outcome o[3]; /* of them the first, of one task: libraries fill their caches once */
            snprintf(task, sizeof task, "run.task=%s", TASKS[i].task);
            snprintf(zero, sizeof zero, "zero.stage=%d", stage);
            for (int k = i > 0; k < 3; k++) {
                snprintf(name, sizeof name, "%s-%d-%d", TASKS[i].task, stage, k);
                const char *args[] = {task,
                                      zero,
                                      steps[k],
                                      stage % 2 ? "log.wall_clock_breakdown=true" : "log.wall_clock_breakdown=false",
                                      "data.max_validation_samples=12",
                                      "log.completions=0",
                                      "log.rollouts=false"};
                o[k] = run(*state, NULL, name, TASKS[i].data, 7, args);
                assert_all(MPI_COMM_WORLD, !o[k].err && o[k].left == 0 && is_planned(&o[k], name));
                assert_all(MPI_COMM_WORLD, n_faults == 0);
            }
            print_message("%s, stage %d: %zu allocations; others: %ld, %ld; of libraries: %ld, %ld\n", TASKS[i].task,
                          stage, o[2].n_allocs, o[1].n_noted, o[2].n_noted, o[1].n_large, o[2].n_large);
            assert_all(MPI_COMM_WORLD, o[1].n_allocs == o[2].n_allocs);
            assert_all(MPI_COMM_WORLD, o[1].n_noted == o[2].n_noted);
            assert_all(MPI_COMM_WORLD, i > 0 || o[1].n_large == o[2].n_large);
        }
}

/* Validations, synchronous and concurrent saves, a trace of many spans; rollouts of many rows and a tokenizer with
 * large tables. */
TEST(every_large_block_is_in_the_ledger)
{
    const struct fixture *f = *state;
    char tokenizer[200];
    snprintf(tokenizer, sizeof tokenizer, "model.tokenizer=%s/tokenizer.json", f->dir);
    for (int i = 0; i < N_TASKS; i++) {
        const bool rolls = !strcmp(TASKS[i].data, "prompts"); /* and leaves much in a checkpoint */
        for (int beside = i == 0; beside < 2 && (beside == 0 || rolls || i == 0); beside++) {
            char task[32], name[32];
            snprintf(task, sizeof task, "run.task=%s", TASKS[i].task);
            snprintf(name, sizeof name, "%s-large-%d", TASKS[i].task, beside);
            const char *args[] = {task,
                                  beside ? "checkpoint.async=true" : "checkpoint.async=false",
                                  "log.trace=true",
                                  "run.max_steps=3",
                                  "checkpoint.save_steps=1",
                                  "data.validation_steps=1",
                                  "data.max_validation_samples=12",
                                  rolls ? tokenizer : "checkpoint.export=hf",
                                  rolls ? "batch.train_batch_size=384" : "batch.train_batch_size=24",
                                  rolls ? "batch.micro_batch_size=64" : "batch.micro_batch_size=4",
                                  "grpo.max_completion_length=40",
                                  "ppo.response_length=40"};
            const outcome o = run(f, NULL, name, TASKS[i].data, 12, args);
            assert_all(MPI_COMM_WORLD, !o.err && o.left == 0 && is_planned(&o, name));
            assert_all(MPI_COMM_WORLD, n_faults == 0);
        }
    }
}

/* Frozen models, too: at stage 3 with offload_param no parameter remains on the device. */
TEST(reference_models_leave_the_device_with_the_parameters)
{
    static const char *const to[] = {"zero.offload_param=none", "zero.offload_param=cpu", "zero.offload_param=nvme"};
    const struct fixture *f = *state;
    char disk[160];
    snprintf(disk, sizeof disk, "zero.nvme_path=%s", f->dir);
    for (int k = 0; k < 3; k++) {
        const char *args[] = {"run.task=dpo", "run.max_steps=1", "zero.stage=3", disk, to[k]};
        const outcome o = run(f, NULL, to[k], "preference", 5, args);
        assert_all(MPI_COMM_WORLD, !o.err && o.left == 0 && is_planned(&o, to[k]));
        assert_all(MPI_COMM_WORLD, (o.allocated.at[DT_MEM_PARAMS][DT_ON_DEVICE] == 0) == (k > 0));
    }
}

/* The planned size of a checkpoint is at least the file's, and not much more: two pages for each of its arrays. Without
 * frozen tensors, and with a rollout of 60 samples instead of 600, both decrease by as much. */
TEST(the_size_of_a_checkpoint_is_planned)
{
    static const char *const cases[][3] = {
        {"checkpoint.save=all", "batch.train_batch_size=600", "batch.micro_batch_size=50"},
        {"checkpoint.save=trainable", "batch.train_batch_size=600", "batch.micro_batch_size=50"},
        {"checkpoint.save=all", "batch.train_batch_size=60", "batch.micro_batch_size=5"}};
    const struct fixture *f = *state;
    double nbytes[3], planned[3];
    for (int i = 0; i < 3; i++) {
        const char *args[] = {"run.task=ppo", "run.max_steps=1", "lora.r=2", cases[i][0], cases[i][1], cases[i][2]};
        struct stat st;
        char path[200], name[16];
        snprintf(name, sizeof name, "size%d", i);
        const outcome o = run(f, NULL, name, "prompts", 6, args);
        snprintf(path, sizeof path, "%s/%s/checkpoints/step-00000001.h5", f->dir, name);
        assert_all(MPI_COMM_WORLD, !o.err && stat(path, &st) == 0);
        nbytes[i] = (double)st.st_size, planned[i] = o.saved_nbytes;
        if (!this_rank()) print_message("%s: %.0f bytes, planned %.0f\n", name, nbytes[i], planned[i]);
        assert_all(MPI_COMM_WORLD, nbytes[i] <= planned[i] && planned[i] < nbytes[i] + 60 * 8192);
    }
    for (int i = 1; i < 3; i++)
        assert_all(MPI_COMM_WORLD,
                   planned[0] - planned[i] > 0.8 * (nbytes[0] - nbytes[i]) && nbytes[0] > nbytes[i] + 50000);
}

/* ---- would it be seen? ------------------------------------------------------------------------------------------- */

static void *kept;
static bool counts; /* does the task tell the ledger? */
enum { KEPT = 100000 };

static dt_err begin_and_keep(dt_task *t)
{
    kept = calloc(1, KEPT);
    if (counts) dt_ledger_add(t->ledger, DT_MEM_DATA, DT_ON_HOST, KEPT);
    return kept ? DT_OK : DT_ERR_MEMORY;
}
static dt_err plan_and_keep(const dt_task *t, int stage, dt_memory *memory)
{
    if (counts) memory->at[DT_MEM_DATA][DT_ON_HOST] += KEPT;
    return DT_OK;
}
static void close_and_give_back(dt_task *t)
{
    if (kept && counts) dt_ledger_sub(t->ledger, DT_MEM_DATA, DT_ON_HOST, KEPT);
    free(kept);
    kept = NULL;
}
static dt_err take_in_a_step(dt_task *t, int64_t step, int micro, dt_micro *m)
{
    char *volatile text = calloc(1, KEPT);
    if (!text) return DT_ERR_MEMORY;
    text[step % KEPT] = 1;
    free(text);
    return dt_task_data_micro(t, step, micro, m);
}

TEST(allocations_missing_from_the_ledger_are_found)
{
    dt_task_ops ops = *dt_task_find("pretrain");
    const char *args[] = {"run.max_steps=2"};
    if (!GUARD_SEES) skip();
    prints_faults = false;
    ops.next_micro = take_in_a_step;
    assert_all(MPI_COMM_WORLD, !run(*state, &ops, "in-a-step", "sft", 1, args).err && n_faults >= 2);
    ops = *dt_task_find("pretrain");
    ops.begin = begin_and_keep, ops.plan = plan_and_keep, ops.close = close_and_give_back;
    for (counts = false;; counts = true) {
        const outcome o = run(*state, &ops, counts ? "counted" : "kept", "sft", 1, args);
        assert_all(MPI_COMM_WORLD, !o.err && is_planned(&o, "kept") && n_faults == !counts);
        if (counts) break;
    }
    prints_faults = true;
}

MPI_TEST_MAIN(open_all, close_fixture)
