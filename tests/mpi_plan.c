/* mpi_plan.c - allocations equal the plan, to the byte, in every category and memory space. This covers the model
 * states and whole runs, at every stage and with every option that changes memory. zero.stage = auto chooses one
 * stage that fits on every rank.
 * NP: 1 2 3 4
 * DEVICES: cpu queue */
#include "ref_zero.h"
#include "run_fixture.h"

static int n_ranks(void)
{
    int n;
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    return n;
}

/* ---- the grid ---------------------------------------------------------------------------------------------------- */

typedef struct place_of_states {
    int stage;
    dt_offload optimizer, param;
} place_of_states;

static const dt_offload offloads[] = {DT_OFFLOAD_NONE, DT_OFFLOAD_CPU, DT_OFFLOAD_NVME};
static const char *const offload_words[] = {"none", "cpu", "nvme"};
enum { N_OFFLOADS = sizeof offloads / sizeof offloads[0], MAX_PLACES = 4 * 9 };

static int list_places(place_of_states list[MAX_PLACES])
{
    int n = 0;
    for (int stage = 0; stage <= 3; stage++)
        for (int o = 0; o < N_OFFLOADS; o++)
            for (int p = 0; p < (stage == 3 ? N_OFFLOADS : 1); p++)
                list[n++] = (place_of_states){stage, offloads[o], offloads[p]};
    return n;
}

static const char *place_name(const place_of_states *s, char out[64])
{
    snprintf(out, 64, "stage %d, optimizer %s, parameters %s", s->stage, offload_words[s->optimizer],
             offload_words[s->param]);
    return out;
}

/* ---- model states ------------------------------------------------------------------------------------------------ */

typedef struct states {
    dt_comm comm;
    dt_device dev, host;
    dt_ledger ledger;
    dt_unit units[REF_ZERO_UNITS], partly_frozen[REF_ZERO_UNITS];
} states;

static bool open_states(states *s)
{
    bool ok = dt_comm_open(&s->comm) == DT_OK;
    ok = ok && dt_device_open(&s->dev, "cpu", s->comm.local_rank, 1, &s->ledger) == DT_OK;
    ok = ok && dt_device_open_host(&s->host, 1, false, &s->ledger) == DT_OK;
    ok = ok && dt_comm_attach(&s->comm, &s->dev, "mpi", true) == DT_OK;
    return ok && ref_zero_make_units(s->units, false) == DT_OK && ref_zero_make_units(s->partly_frozen, true) == DT_OK;
}

static void close_states(states *s)
{
    ref_zero_free_units(s->units);
    ref_zero_free_units(s->partly_frozen);
    dt_comm_close(&s->comm);
    dt_device_close(&s->host);
    dt_device_close(&s->dev);
}

/* What the bits of `variant` ask for; each changes what some stage holds. */
enum {
    OVERLAPS = 1,
    REPRODUCIBLE = 2,
    GATHERED = 4,
    UNTIED = 8,
    IN_PIECES = 16,
    PERSISTS = 32,
    FROZEN = 64,
    N_VARIANTS = 128
};
static const dt_dtype dtypes[][2] = {{DT_F32, DT_F32}, {DT_BF16, DT_BF16}, {DT_BF16, DT_F32}};
enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

static dt_zero_options options_of(states *s, const place_of_states *at, int dtype, int variant, const char *dir)
{
    const bool pieces = variant & IN_PIECES;
    return (dt_zero_options){.stage = at->stage,
                             .param_dtype = dtypes[dtype][0],
                             .grad_dtype = dtypes[dtype][1],
                             .optimizer = dtype == 1 && pieces ? &dt_optimizer_sgd : &dt_optimizer_adamw,
                             .reproducible = variant & REPRODUCIBLE,
                             .overlap_comm = variant & OVERLAPS,
                             .tied_unit = variant & UNTIED ? -1 : 0,
                             .reduce_bucket_size = pieces ? 300 : 0,
                             .allgather_bucket_size = pieces ? 700 : 0,
                             .prefetch_bucket_size = pieces ? 1700 : 1 << 20,
                             .param_persistence_threshold = variant & PERSISTS ? 1700 : 0,
                             .keep_gathered = variant & GATHERED,
                             .offload_optimizer = at->optimizer,
                             .offload_param = at->param,
                             .host = s->dev.ops == &dt_device_cpu_ops ? &s->dev : &s->host,
                             .sub_group_size = pieces ? 1024 : 0,
                             .buffer_count = pieces ? 3 : 2,
                             .pin_memory = !(variant & UNTIED),
                             .nvme_path = dir};
}

static bool holds_what_was_planned(states *s, const dt_zero_options *opt, const dt_unit *units)
{
    dt_memory expected = dt_ledger_now(&s->ledger);
    dt_zero_plan plan;
    dt_zero *z = NULL;
    bool ok = dt_zero_plan_make(opt, units, REF_ZERO_UNITS, s->comm.nranks, &plan) == DT_OK;
    ok = dt_zero_open(&z, opt, units, REF_ZERO_UNITS, &s->comm, &s->dev, NULL, NULL) == DT_OK && ok;
    if (ok) dt_memory_add(&expected, &plan.memory);
    if (ok) dt_stream_plan(&s->dev, plan.n_streams, &expected);
    const dt_memory now = dt_ledger_now(&s->ledger);
    ok = ok && same_memory("model states", &expected, &now);
    dt_zero_close(z);
    return ok;
}

TEST(model_states_are_where_they_were_planned)
{
    const struct fixture *f = *state;
    states s = {0};
    place_of_states list[MAX_PLACES];
    char name[64];
    const int n = list_places(list);
    assert_all(MPI_COMM_WORLD, open_states(&s));
    for (int i = 0; i < n; i++) {
        const bool in_file =
            list[i].optimizer == DT_OFFLOAD_NVME || list[i].param == DT_OFFLOAD_NVME; /* takes longer */
        bool ok = true;
        for (int t = 0; t < N_DTYPES; t++)
            for (int variant = in_file ? t : 0; variant < N_VARIANTS; variant += in_file ? 9 : 1) {
                const dt_zero_options opt = options_of(&s, &list[i], t, variant, f->dir);
                const bool held = holds_what_was_planned(&s, &opt, variant & FROZEN ? s.partly_frozen : s.units);
                if (!held) print_error("%s, dtype %d, variant %d\n", place_name(&list[i], name), t, variant);
                ok = ok && held;
            }
        assert_all(MPI_COMM_WORLD, ok);
    }
    close_states(&s);
}

/* ---- whole runs -------------------------------------------------------------------------------------------------- */

enum { MAX_ARGS = 14 };
/* What runs of the grid differ in besides stage, offload and type, by turns; the last on two nodes, or three. */
static const char *const settings[][3] = {
    {"model.tie_word_embeddings=false", "model.activation_checkpointing=none", "batch.gradient_accumulation_steps=1"},
    {"model.tie_word_embeddings=true", "model.activation_checkpointing=selective",
     "batch.gradient_accumulation_steps=2"},
    {"model.tie_word_embeddings=true", "model.activation_checkpointing=block", "zero.overlap_comm=false"},
    {"zero.prefetch_bucket_size=0", "zero.reduce_bucket_size=5000", "zero.allgather_bucket_size=3000"},
    {"zero.param_persistence_threshold=20000", "run.reproducible=true", "data.prefetch=0"},
    {"zero.pin_memory=false", "zero.buffer_count=2", "comm.shared_memory=false"},
    {"checkpoint.async=true", "model.activation_checkpointing=none", "data.prefetch=4"},
    {"zero.sub_group_size=4096", "optimizer.type=sgd", "zero.max_live_parameters=60000"},
    {"zero.shard_group=node", "batch.gradient_accumulation_steps=2", "zero.reduce_bucket_size=5000"},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0], OF_NODES = N_SETTINGS - 1 };

static outcome run_at(struct fixture *f, const place_of_states *s, const char *dtype, const char *const *more,
                      int number)
{
    char name[16], stage[32], optimizer[40], param[40], path[160], type[40];
    const char *args[MAX_ARGS] = {stage, optimizer, param, path, type, "run.max_steps=1", more[0], more[1], more[2]};
    snprintf(name, sizeof name, "grid%d", number);
    snprintf(stage, sizeof stage, "zero.stage=%d", s->stage);
    snprintf(optimizer, sizeof optimizer, "zero.offload_optimizer=%s", offload_words[s->optimizer]);
    snprintf(param, sizeof param, "zero.offload_param=%s", offload_words[s->param]);
    snprintf(path, sizeof path, "zero.nvme_path=%s", f->dir);
    snprintf(type, sizeof type, "precision.dtype=%s", dtype);
    return run_whole(f, NULL, NULL, name, 9, args);
}

/* Each stage and offload in fp32 and a shorter type; with another of these and other settings on another number of
 * ranks. */
TEST(runs_hold_what_was_planned)
{
    place_of_states list[MAX_PLACES];
    char what[64];
    const int n = list_places(list);
    for (int i = 0; i < n; i++)
        for (int t = 0; t < 2; t++) {
            const char *type = t == 0 ? "fp32" : (i + n_ranks()) % 2 ? "bf16" : "fp16";
            const int k = (i + 3 * t + 2 * n_ranks()) % N_SETTINGS;
            if (k == OF_NODES) set_or_clear("DTRAIN_FAKE_NODES", n_ranks() == 3 ? "3" : "2");
            const outcome o = run_at(*state, &list[i], type, settings[k], 2 * i + t);
            set_or_clear("DTRAIN_FAKE_NODES", NULL);
            place_name(&list[i], what);
            if (o.err != DT_OK) print_error("%s, %s, settings %d\n", what, type, k);
            assert_all(MPI_COMM_WORLD, o.err == DT_OK && is_planned(&o, what) && o.left == 0);
        }
}

/* ---- zero.stage = auto ------------------------------------------------------------------------------------------- */

static char device_asked_for[32];
static const double usable = 0.9;
static void set_memory(double nbytes)
{
    char memory[32];
    snprintf(memory, sizeof memory, "%.0f", nbytes);
    set_or_clear("DTRAIN_QUEUE_MEMORY", memory);
}

/* Bytes of the device's memory that a rank needs in addition to what is allocated already. `name` is new. */
static size_t needs_with(struct fixture *f, const char *name, int n_args, const char *const *args)
{
    const outcome o = run_whole(f, NULL, NULL, name, n_args, args);
    assert_all(MPI_COMM_WORLD, !o.err);
    return dt_memory_on(&o.planned, DT_ON_DEVICE) - o.overhead;
}

static size_t needs_at(struct fixture *f, int stage, const char *prefix)
{
    char zero[32], name[32];
    const char *args[] = {zero, "run.max_steps=1"};
    snprintf(zero, sizeof zero, "zero.stage=%d", stage);
    snprintf(name, sizeof name, "%s%d", prefix, stage);
    return needs_with(f, name, 2, args);
}

static int on_own_devices(void **state)
{
    char devices[16];
    snprintf(devices, sizeof devices, "%d", n_ranks());
    set_or_clear("DTRAIN_DEVICE", "queue");
    set_or_clear("DTRAIN_QUEUE_DEVICES", devices);
    return 0;
}
/* As it was when the test began. */
static int on_the_device_asked_for(void **state)
{
    set_or_clear("DTRAIN_QUEUE_DEVICES", NULL);
    set_or_clear("DTRAIN_QUEUE_MEMORY", NULL);
    set_or_clear("DTRAIN_DEVICE", *device_asked_for ? device_asked_for : NULL);
    return 0;
}

/* What a rank needs of the device's memory lies between stages 0 and 1, if all ranks share a device; with a device for
 * each there is enough for stage 0. */
TEST_WITH(auto_counts_the_ranks_that_share_a_device, on_own_devices, on_the_device_asked_for)
{
    size_t needs[2];
    for (int stage = 0; stage < 2; stage++) needs[stage] = needs_at(*state, stage, "shared-needs");
    set_memory((double)(needs[0] + needs[1]) / 2 / usable * n_ranks());
    for (int shared = 0; shared < 2 && n_ranks() > 1; shared++) {
        const char *args[] = {"zero.stage=auto", "run.max_steps=1"};
        if (shared) set_or_clear("DTRAIN_QUEUE_DEVICES", "1");
        const outcome o = run_whole(*state, NULL, NULL, shared ? "shared" : "own", 2, args);
        assert_all(MPI_COMM_WORLD, !o.err && o.stage == shared);
    }
    set_memory((double)(needs[1] / 8)); /* too little for any stage */
    const char *args[] = {"zero.stage=auto", "run.max_steps=1"}, *named[] = {"zero.stage=1", "run.max_steps=1"};
    const outcome o = run_whole(*state, NULL, NULL, "small", 2, args);
    assert_all(MPI_COMM_WORLD, o.err == DT_ERR_MEMORY && o.together && o.left == 0);
    assert_all(MPI_COMM_WORLD,
               this_rank() ||
                   strstr(dt_error_message(),
                          "even zero.stage = 3, zero.offload_optimizer = cpu, zero.offload_param = cpu needs"));
    dt_error_clear();
    assert_all(MPI_COMM_WORLD, run_whole(*state, NULL, NULL, "small", 2, named).err == DT_ERR_MEMORY);
    assert_all(MPI_COMM_WORLD, this_rank() || strstr(dt_error_message(), "of device memory per rank"));
}

/* A device for each rank; what there is free on one of them, and on the others. */
static void set_memories(int poor, double there, double elsewhere)
{
    set_memory((this_rank() == poor ? there : elsewhere) / usable + 1024);
}

/* In the order of auto, without files: whatever needs less of the device than all before it is taken where there is
 * room for it alone, and trains. */
TEST_WITH(auto_offloads_what_no_stage_has_room_for, on_own_devices, on_the_device_asked_for)
{
    static const place_of_states order[] = {{0, 0, 0}, {1, 0, 0}, {2, 0, 0}, {3, 0, 0},
                                            {1, 1, 0}, {2, 1, 0}, {3, 1, 0}, {3, 1, 1}};
    enum { N = sizeof order / sizeof order[0] };
    size_t least = SIZE_MAX;
    int n_offloaded = 0;
    for (int i = 0; i < N; i++) {
        char name[2][32], stage[32], optimizer[40], param[40];
        const char *named[] = {stage, optimizer, param, "run.max_steps=1"};
        const char *automatic[] = {"zero.stage=auto", "run.max_steps=1"};
        for (int k = 0; k < 2; k++) snprintf(name[k], sizeof name[k], "order%d-%d", i, k);
        snprintf(stage, sizeof stage, "zero.stage=%d", order[i].stage);
        snprintf(optimizer, sizeof optimizer, "zero.offload_optimizer=%s", offload_words[order[i].optimizer]);
        snprintf(param, sizeof param, "zero.offload_param=%s", offload_words[order[i].param]);
        const size_t needs = needs_with(*state, name[0], 4, named);
        if (needs + 4096 > least) continue; /* on a lone rank all stages are the same */
        least = needs;
        set_memories(0, (double)needs, (double)needs);
        const outcome o = run_whole(*state, NULL, NULL, name[1], 2, automatic);
        set_or_clear("DTRAIN_QUEUE_MEMORY", NULL);
        assert_all(MPI_COMM_WORLD, !o.err && is_planned(&o, name[1]));
        assert_all(MPI_COMM_WORLD, o.stage == order[i].stage && o.offload_optimizer == order[i].optimizer &&
                                       o.offload_param == order[i].param);
        n_offloaded += order[i].optimizer != DT_OFFLOAD_NONE;
    }
    assert_all(MPI_COMM_WORLD, n_offloaded > 0);
}

/* The device of one rank has less free memory than those of the others: what fits there is taken by all. */
TEST_WITH(ranks_with_different_memory_take_the_same, on_own_devices, on_the_device_asked_for)
{
    size_t needs[2];
    char name[32];
    skip_all_if(n_ranks() == 1, "on one rank stages 0 and 1 are the same");
    for (int stage = 0; stage < 2; stage++) needs[stage] = needs_at(*state, stage, "needs");
    for (int poor = 0; poor < n_ranks(); poor++)
        for (int stage = 0; stage < 2; stage++) {
            const char *args[] = {"zero.stage=auto", "run.max_steps=1"};
            set_memories(poor, (double)needs[stage], 2 * (double)needs[0]);
            snprintf(name, sizeof name, "poor%d-%d", poor, stage);
            const outcome o = run_whole(*state, NULL, NULL, name, 2, args);
            set_or_clear("DTRAIN_QUEUE_MEMORY", NULL);
            assert_all(MPI_COMM_WORLD, !o.err && o.stage == stage);
        }
}

static int64_t groups_taken;
static void note_groups(const dt_run *run, bool begins)
{
    if (!begins) groups_taken = run->main.zero_opt.expert_group_size;
}

/* One rank has room for groups of 2 of 8 experts, but not of 3; the others have plenty. All take groups of 2, and all
 * experts together where they fit. */
TEST_WITH(auto_groups_experts_that_do_not_fit, on_own_devices, on_the_device_asked_for)
{
    static const int64_t sizes[] = {0, 3, 2};
    const char *args[] = {"model.model_type=qwen2_moe",
                          "model.num_experts=8",
                          "model.num_experts_per_tok=2",
                          "model.moe_intermediate_size=96",
                          "zero.stage=3",
                          "model.shared_expert_intermediate_size=32",
                          "run.max_steps=1",
                          "zero.expert_group_size=auto"};
    enum { N_ARGS = sizeof args / sizeof args[0], N = sizeof sizes / sizeof sizes[0] };
    char name[32], size[48];
    size_t needs[N];
    skip_all_if(n_ranks() == 1, "one rank gathers nothing");
    for (int i = 0; i < N; i++) {
        const char *given[N_ARGS];
        memcpy(given, args, sizeof given);
        snprintf(size, sizeof size, "zero.expert_group_size=%d", (int)sizes[i]);
        given[N_ARGS - 1] = size;
        snprintf(name, sizeof name, "experts%d", i);
        needs[i] = needs_with(*state, name, N_ARGS, given);
        assert_all(MPI_COMM_WORLD, i == 0 || needs[i] < needs[i - 1]);
    }
    run_watch = note_groups;
    for (int poor = 0; poor < n_ranks(); poor++)
        for (int i = 0; i < N; i += 2) {
            set_memories(poor, (double)needs[i], 2 * (double)needs[0]);
            snprintf(name, sizeof name, "groups%d-%d", poor, i);
            const outcome o = run_whole(*state, NULL, NULL, name, N_ARGS, args);
            set_or_clear("DTRAIN_QUEUE_MEMORY", NULL);
            assert_all(MPI_COMM_WORLD, !o.err && is_planned(&o, name) && groups_taken == sizes[i]);
        }
    run_watch = NULL;
}

/* The keys in a message of rank 0, as arguments; returns how many. */
static int read_keys(char text[256], const char *args[4])
{
    static const char before[] = "the smallest change that fits is ";
    const char *at = strstr(dt_error_message(), before);
    int n = 0;
    snprintf(text, 256, "%s", at ? at + strlen(before) : "");
    text[strcspn(text, ";")] = '\0'; /* what auto takes then */
    MPI_Bcast(text, 256, MPI_CHAR, 0, MPI_COMM_WORLD);
    char *from = text, *to = text;
    for (; *from; from++) /* "a = b, c = d" to "a=b" and "c=d" */
        if (*from != ' ') *to++ = *from == ',' ? '\0' : *from;
    *to = '\0';
    for (char *key = text; key < to && n < 4; key += strlen(key) + 1) args[n++] = key;
    return n;
}

/* One rank has too little for micro-batches of 2, whatever auto tries, and enough for 1; the others have plenty. */
TEST_WITH(a_refusal_names_what_fits_on_every_rank, on_own_devices, on_the_device_asked_for)
{
    static const char *const sizes[] = {"batch.micro_batch_size=1", "batch.micro_batch_size=2"};
    const char *least[] = {"zero.stage=3",
                           "zero.offload_optimizer=cpu",
                           "zero.offload_param=cpu",
                           "model.activation_checkpointing=block",
                           "batch.train_batch_size=48",
                           "run.max_steps=1",
                           NULL};
    size_t needs[2];
    for (int i = 0; i < 2; i++) {
        least[6] = sizes[i];
        needs[i] = needs_with(*state, i ? "two" : "one", 7, least);
    }
    assert_all(MPI_COMM_WORLD, needs[0] < needs[1]);
    for (int poor = 0; poor < n_ranks(); poor++) {
        char text[256], name[2][32];
        const char *args[12] = {"zero.stage=auto", "model.activation_checkpointing=block", "batch.train_batch_size=48",
                                "batch.micro_batch_size=4", "run.max_steps=1"};
        for (int i = 0; i < 2; i++) snprintf(name[i], sizeof name[i], "refused%d-%d", poor, i);
        set_memories(poor, (double)(needs[0] + needs[1]) / 2, 100 * (double)needs[1]);
        const outcome o = run_whole(*state, NULL, NULL, name[0], 5, args);
        const int n = read_keys(text, args + 5);
        dt_error_clear();
        const outcome then = run_whole(*state, NULL, NULL, name[1], 5 + n, args);
        set_or_clear("DTRAIN_QUEUE_MEMORY", NULL);
        assert_all(MPI_COMM_WORLD, o.err == DT_ERR_MEMORY && o.together && n > 0 && then.err == DT_OK);
    }
}

int main(int argc, char **argv)
{
    const char *device = getenv("DTRAIN_DEVICE");
    if (device) snprintf(device_asked_for, sizeof device_asked_for, "%s", device);
    mpi_test_begin(&argc, &argv);
    return mpi_test_end(run_listed(NULL, open_fixture, close_fixture));
}
