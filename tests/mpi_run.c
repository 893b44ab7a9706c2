/* mpi_run.c - whole runs inside the test's process: allocations match the plan, and everything is freed.
 * NP: 1 2 3 4
 * DEVICES: cpu queue */
#include "cases.h"
#include "h5_change.h"
#include "run_fixture.h"
#include "dtrain/step/step.h"
#include <float.h>
#include <dirent.h>
#include <jansson.h>

static outcome run_with(struct fixture *f, const dt_optimizer_ops *optimizer, const dt_task_ops *task, const char *name,
                        int n_args, const char *const *args)
{
    return run_whole(f, optimizer, task, name, n_args, args);
}

static outcome run(struct fixture *f, const char *name, int n_args, const char *const *args)
{
    return run_with(f, NULL, NULL, name, n_args, args);
}

/* Two runs that differ by 2 * 4 micro-steps. The one event marks the classifier's results, for the metrics, when
 * backward is queued after it. On one rank: transports have waits of their own. */
TEST(a_micro_step_never_leaves_the_device_without_work)
{
    enum { MORE = 8 };
    static const char *const more[] = {"run.max_steps=2", "zero.offload_optimizer=cpu", "zero.offload_param=cpu",
                                       "log.trace=true"};
    int nranks;
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    for (int way = 0; way < 4 * 4; way++) {
        const int stage = way % 4;
        char zero[32], name[2][16];
        if (way / 4 == 2 && stage < 3) continue; /* parameters leave the device at stage 3 alone */
        snprintf(zero, sizeof zero, "zero.stage=%d", stage);
        for (int i = 0; i < 2; i++) snprintf(name[i], sizeof name[i], "micro%d-%d", way, i);
        const char *one[] = {zero, "run.max_steps=2", more[way / 4], "batch.train_batch_size=4"};
        const char *five[] = {zero, "run.max_steps=2", more[way / 4], "batch.train_batch_size=20"};
        if (nranks > 1) skip();
        const outcome a = run(*state, name[0], 4, one), b = run(*state, name[1], 4, five);
        assert_true(!a.err && !b.err);
        if (!a.on_queue) skip(); /* the device that counts */
        assert_int_equal(b.counts.host_waits - a.counts.host_waits, 0);
        assert_int_equal(b.counts.event_waits - a.counts.event_waits, MORE);
        assert_int_equal(b.counts.pageable_copies - a.counts.pageable_copies, 0);
    }
}

TEST(nothing_is_live_at_exit)
{
    const char *args[] = {"run.max_steps=1"};
    const outcome o = run(*state, "leak", 1, args);
    assert_all(MPI_COMM_WORLD, !o.err && o.left == 0);
}

TEST(planned_is_allocated_in_every_category_and_place)
{
    for (int i = 0; i < 8; i++) {
        char zero[32], name[16];
        snprintf(zero, sizeof zero, "zero.stage=%d", i % 4);
        snprintf(name, sizeof name, "plan%d", i);
        const char *args[] = {zero,
                              i < 4 ? "precision.dtype=fp32" : "precision.dtype=bf16",
                              "run.max_steps=3",
                              "checkpoint.save_steps=1",
                              i % 3 ? "checkpoint.async=true" : "checkpoint.async=false",
                              i % 2 ? "log.trace=true" : "log.wall_clock_breakdown=true"};
        const outcome o = run(*state, name, 6, args);
        assert_all(MPI_COMM_WORLD, !o.err && o.left == 0);
        assert_all(MPI_COMM_WORLD, is_planned(&o, zero));
        for (int p = DT_ON_DEVICE; p <= DT_ON_HOST; p++)
            assert_all(MPI_COMM_WORLD, dt_memory_on(&o.allocated, (dt_memspace)p) > 0);
    }
}

static bool is_in_last_block(const dt_task *t, const dt_tensor *tensor)
{
    return t->cfg && strstr(tensor->name, "layers.2.");
}

/* A tensor of the last checkpoint of a run of so many steps. */
static bool read_saved(const struct fixture *f, const char *name, int step, const char *tensor, float *x, int64_t n)
{
    char path[192];
    hid_t file;
    snprintf(path, sizeof path, "%s/%s/checkpoints/step-%08d.h5", f->dir, name, step);
    if (dt_h5_open(path, &file, NULL) != DT_OK) return false;
    const hid_t d = H5Dopen2(file, tensor, H5P_DEFAULT), space = H5Dget_space(d);
    const bool ok = d >= 0 && H5Sget_simple_extent_npoints(space) == n &&
                    H5Dread(d, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, x) >= 0;
    H5Sclose(space), H5Dclose(d), H5Fclose(file);
    return ok;
}

/* The update that comes next is held back until the states are copied. Two runs, whose saved tensors are the same. */
TEST(training_continues_after_the_copy_of_a_save)
{
    enum { N = 64 * 160 };
    static const char tensor[] = "/model/model.layers.1.mlp.up_proj.weight";
    static float at_once[N], beside[N];
    const char *waits[] = {"run.max_steps=4", "checkpoint.save_steps=2"};
    const char *goes_on[] = {"run.max_steps=4", "checkpoint.save_steps=2", "checkpoint.async=true"};
    const outcome a = run(*state, "at-once", 2, waits), b = run(*state, "beside", 3, goes_on);
    assert_all(MPI_COMM_WORLD, !a.err && !b.err);
    for (int step = 2; step <= 4; step += 2)
        assert_all(MPI_COMM_WORLD, read_saved(*state, "at-once", step, tensor, at_once, N) &&
                                       read_saved(*state, "beside", step, tensor, beside, N) &&
                                       !memcmp(at_once, beside, sizeof at_once));
}

TEST(a_task_says_what_is_trained)
{
    enum { N = 64 * 160 };
    static float one[N], four[N];
    dt_task_ops task = *dt_task_find("pretrain");
    task.is_trained = is_in_last_block;
    for (int stage = 0; stage <= 3; stage++) {
        char zero[32], name[3][16];
        snprintf(zero, sizeof zero, "zero.stage=%d", stage);
        for (int i = 0; i < 3; i++) snprintf(name[i], sizeof name[i], "part%d-%d", stage, i);
        const char *first[] = {zero, "run.max_steps=1"}, *more[] = {zero, "run.max_steps=4"};
        const outcome whole = run(*state, name[0], 2, first), a = run_with(*state, NULL, &task, name[1], 2, first),
                      b = run_with(*state, NULL, &task, name[2], 2, more);
        assert_all(MPI_COMM_WORLD, !whole.err && !a.err && !b.err && is_planned(&a, zero) && a.left == 0);
        const dt_memcat kept[] = {DT_MEM_GRADS, DT_MEM_OPTIMIZER}; /* one of three blocks, and no tables */
        for (int i = 0; i < 2; i++)
            assert_all(MPI_COMM_WORLD,
                       dt_memory_of(&a.allocated, kept[i]) < dt_memory_of(&whole.allocated, kept[i]) / 3);
        bool ok = true;
        for (int layer = 0; layer < 3 && this_rank() == 0; layer++) {
            char tensor[80];
            snprintf(tensor, sizeof tensor, "/model/model.layers.%d.mlp.up_proj.weight", layer);
            ok =
                ok && read_saved(*state, name[1], 1, tensor, one, N) && read_saved(*state, name[2], 4, tensor, four, N);
            ok = ok && (memcmp(one, four, sizeof one) != 0) == (layer == 2);
        }
        assert_all(MPI_COMM_WORLD, ok);
    }
}

/* The number of a key in the last line of a run's metrics. */
static int64_t last_metric(const struct fixture *f, const char *name, const char *key)
{
    char path[192], line[4096];
    int64_t value = -1;
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", f->dir, name);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        json_t *object = json_loads(line, 0, NULL);
        value = json_integer_value(json_object_get(object, key));
        json_decref(object);
    }
    if (file) fclose(file);
    return value;
}

static int64_t held_in(const struct fixture *f, const char *name, dt_memspace p, dt_memcat c)
{
    char key[64];
    snprintf(key, sizeof key, "memory/%s/%s", dt_memspace_name(p), dt_memcat_name(c));
    return last_metric(f, name, key); /* 0: it is missing */
}

/* Rank 0: in each category and memory space the plan equals the allocation, except for the devices' own memory
 * (other). The categories of a memory space add up to its reported total. */
static bool categories_add_up(const struct fixture *f, const char *name, const outcome *o)
{
    int64_t on[DT_N_MEMSPACE] = {0};
    bool ok = true;
    for (int p = 0; p < DT_N_MEMSPACE; p++)
        for (int c = 0; c < DT_N_MEMCAT; c++) {
            const int64_t held = held_in(f, name, (dt_memspace)p, (dt_memcat)c);
            on[p] += held;
            if (c == DT_MEM_OTHER || held == (int64_t)o->allocated.at[c][p]) continue;
            ok = false;
            print_error("%s, %s: %lld, allocated %zu\n", dt_memspace_name((dt_memspace)p), dt_memcat_name((dt_memcat)c),
                        (long long)held, o->allocated.at[c][p]);
        }
    const int64_t device = on[DT_ON_DEVICE] + (o->own_memory ? 0 : on[DT_ON_PINNED] + on[DT_ON_HOST]);
    return ok && device == last_metric(f, name, "memory_device") && on[DT_ON_HOST] > 0 &&
           on[DT_ON_PINNED] == last_metric(f, name, "memory_pinned") &&
           on[DT_IN_FILE] == last_metric(f, name, "memory_file");
}

/* All is allocated before the first step, so the peaks are what was allocated then, of the rank that has most. */
TEST(metrics_say_each_memory)
{
    struct fixture *f = *state;
    char folder[192];
    snprintf(folder, sizeof folder, "zero.nvme_path=%s", f->dir);
    const char *args[] = {"run.max_steps=1", "zero.stage=2", "log.trace=true", folder, "zero.offload_optimizer=nvme"};
    for (int offload = 0; offload < 2; offload++) {
        const char *const name = offload ? "memory-file" : "memory";
        const outcome o = run(f, name, 4 + offload, args);
        const size_t on[] = {dt_memory_on(&o.allocated, DT_ON_DEVICE) - o.overhead,
                             dt_memory_on(&o.allocated, DT_ON_PINNED), dt_memory_on(&o.allocated, DT_IN_FILE)};
        const size_t all = dt_memory_total(&o.allocated) - on[2] - o.overhead; /* what the CPU's device memory is */
        int64_t most[] = {(int64_t)(o.own_memory ? on[0] : all), (int64_t)on[1], (int64_t)on[2]};
        MPI_Allreduce(MPI_IN_PLACE, most, 3, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
        assert_all(MPI_COMM_WORLD, !o.err && (most[2] > 0) == offload);
        assert_all(MPI_COMM_WORLD, this_rank() || last_metric(f, name, "memory_device") == most[0]);
        assert_all(MPI_COMM_WORLD, this_rank() || last_metric(f, name, "memory_pinned") == most[1]);
        assert_all(MPI_COMM_WORLD, this_rank() || last_metric(f, name, "memory_file") == most[2]);
        assert_all(MPI_COMM_WORLD, this_rank() || last_metric(f, name, "memory_host") > most[1]);
        assert_all(MPI_COMM_WORLD, this_rank() || categories_add_up(f, name, &o));
    }
}

static int n_threads(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

/* Headers of datasets are read, but no batch is made, no thread started and no device memory taken. */
TEST(a_plan_opens_nothing)
{
    const struct fixture *f = *state;
    static const char text[] = "[model]\nmodel_type = llama\nhidden_size = 64\nintermediate_size = 160\n"
                               "num_hidden_layers = 3\nnum_attention_heads = 4\nvocab_size = 257\n"
                               "[data]\nseq_len = 64\nprefetch = 4\npacking = wrapped\n[batch]\nmicro_batch_size = 4\n";
    char data[200], valid[200];
    const char *args[] = {data, valid};
    snprintf(data, sizeof data, "data.train=%s/train.h5", f->dir);
    snprintf(valid, sizeof valid, "data.validation=%s/train.h5", f->dir);
    dt_run r = {0};
    const dt_plan_request req = {
        .nranks = 8, .ranks_per_node = 4, .device_memory = 1ull << 40, .host_memory = 1ull << 40};
    FILE *out = fopen("/dev/null", "w");
    const int before = n_threads();
    dt_err err = dt_config_parse(&r.cfg, "mpi_run", text, 2, args);
    if (!err) err = dt_plan_print(&r, &req, out);
    assert_all(MPI_COMM_WORLD, !err && n_threads() <= before); /* the kernel's, of a closed file, may end meanwhile */
    assert_all(MPI_COMM_WORLD, r.task.train && r.task.valid && dt_loader_nbytes(r.task.train) > 0);
    assert_all(MPI_COMM_WORLD, atomic_load(&r.ledger.n_allocs) == 0);
    dt_run_close(&r);
    dt_device_close(&r.dev);
    fclose(out);
}

/* Does every rank have an event in the file, and every event its fields? */
static bool is_whole_trace(const char *path)
{
    int nranks, n_seen = 0;
    bool seen[8] = {false}, ok = true;
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    json_t *root = json_load_file(path, 0, NULL);
    const json_t *events = json_object_get(root, "traceEvents");
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);
        const json_int_t pid = json_integer_value(json_object_get(e, "pid"));
        /* a name */
        if (json_is_string(json_object_get(e, "ph")) && !strcmp(json_string_value(json_object_get(e, "ph")), "M"))
            continue;
        ok = ok && json_is_string(json_object_get(e, "name")) && json_is_real(json_object_get(e, "ts")) &&
             json_real_value(json_object_get(e, "dur")) >= 0;
        ok = ok && pid >= 0 && pid < nranks && pid < 8;
        if (ok && !seen[pid]) seen[pid] = true, n_seen++;
    }
    json_decref(root);
    return ok && n_seen == nranks;
}

TEST(a_trace_holds_all_ranks)
{
    struct fixture *f = *state;
    char path[192];
    const char *args[] = {"log.trace=true", "run.max_steps=2"};
    const outcome o = run(f, "trace", 2, args);
    snprintf(path, sizeof path, "%s/trace/trace.json", f->dir);
    assert_all(MPI_COMM_WORLD, !o.err && (this_rank() || is_whole_trace(path)));
}

/* Unless the last vote was for the stop, main takes it for one rank's own failure and aborts the job. */
TEST(a_stop_is_agreed_on_with_and_without_trace)
{
    const char *args[] = {"run.time_limit=1", "run.max_steps=1000000", "log.trace=true"};
    for (int n_args = 2; n_args <= 3; n_args++) {
        const outcome o = run(*state, n_args == 2 ? "stop" : "stop-trace", n_args, args);
        assert_all(MPI_COMM_WORLD, o.err == DT_ERR_STOP && o.together);
        dt_error_clear();
    }
}

/* As a checkpoint made elsewhere: no checksum, and one value with which every product overflows. */
static bool spoil(const char *path)
{
    const float bad = FLT_MAX;
    const hsize_t first = 3;
    const hid_t file = open_to_change(path), dset = H5Dopen2(file, "/model/model.norm.weight", H5P_DEFAULT);
    const hid_t at = H5Dget_space(dset), one = H5Screate(H5S_SCALAR);
    H5Sselect_elements(at, H5S_SELECT_SET, 1, &first);
    const bool ok =
        H5Dwrite(dset, H5T_NATIVE_FLOAT, one, at, H5P_DEFAULT, &bad) >= 0 && H5Adelete(dset, "checksum") >= 0;
    H5Sclose(one), H5Sclose(at), H5Dclose(dset);
    return H5Fclose(file) >= 0 && ok;
}

/* Even when the run is shorter than max_skipped_steps: a run without one finite step has trained nothing. */
TEST(a_run_without_a_finite_step_says_so)
{
    const struct fixture *f = *state;
    char valid[200], from[200];
    snprintf(valid, sizeof valid, "data.validation=%s/train.h5", f->dir);
    snprintf(from, sizeof from, "model.path=%s/bad/checkpoints/step-00000001.h5", f->dir);
    const char *make[] = {"run.max_steps=1"}, *train[] = {"run.max_steps=3", from};
    const char *eval[] = {"run.task=eval", from, "data.max_validation_samples=4", valid};
    assert_all(MPI_COMM_WORLD, !run(*state, "bad", 1, make).err);
    assert_all(MPI_COMM_WORLD, this_rank() || spoil(strchr(from, '/')));
    assert_all(MPI_COMM_WORLD, run(*state, "nonfinite", 2, train).err == DT_ERR_NONFINITE);
    assert_all(MPI_COMM_WORLD, run(*state, "nonfinite-eval", 4, eval).err == DT_ERR_NONFINITE);
}

/* ---- an optimizer of one's own ----------------------------------------------------------------------------------- */

/* Aggregated momentum (Lucas et al., arXiv:1804.00325): several velocities, each with a damping of its own, and the
 * mean of their steps. Weight decay is left out. */
static dt_err aggmo_step(dt_device *dev, const dt_optimizer_step *s, const dt_update_range *r)
{
    static const float damping[] = {0, 0.9f, 0.99f};
    for (int k = 0; k < 3; k++) {
        const dt_sgd one = {.lr = (float)(s->lr / 3), .momentum = damping[k], .grad_scale = (float)s->grad_scale};
        DT_TRY(dev->ops->sgd_step(dev, &one, r->grad, r->grad_dtype, r->master, r->states[k], r->param, r->param_dtype,
                                  r->n, r->stream));
    }
    return DT_OK;
}

static const dt_optimizer_ops aggmo = {
    .name = "aggmo", .n_states = 3, .state_names = {"velocity_0", "velocity_0.9", "velocity_0.99"}, .step = aggmo_step};

/* Names and checksums of all tensors of a run's checkpoint, malloc'ed; NULL: not all are whole. */
static char *tensors_of(const struct fixture *f, const char *name, int step)
{
    char path[200], *text = NULL;
    size_t size;
    snprintf(path, sizeof path, "%s/%s/checkpoints/step-%08d.h5", f->dir, name, step);
    FILE *out = open_memstream(&text, &size);
    const dt_err err = dt_checkpoint_verify(path, out);
    fclose(out);
    if (err == DT_OK) return text;
    free(text);
    return NULL;
}

static bool same_tensors(const struct fixture *f, const char *name, const char *other, int step)
{
    char *a = tensors_of(f, name, step), *b = tensors_of(f, other, step);
    const bool same = a && b && !strcmp(a, b) && strstr(a, "optimizer/velocity_0.99/") && !strstr(a, "exp_avg");
    free(a), free(b);
    return same;
}

static bool is_aggmos(const struct fixture *f, const char *name)
{
    char path[200];
    dt_ckpt_meta meta;
    snprintf(path, sizeof path, "%s/%s/checkpoints/step-00000006.h5", f->dir, name);
    if (dt_checkpoint_read_meta(path, &meta) != DT_OK) return false;
    const bool same = !strcmp(meta.states.optimizer, "aggmo") && meta.states.updates == 6 &&
                      !strcmp(meta.states.names, "velocity_0, velocity_0.9, velocity_0.99");
    dt_ckpt_meta_free(&meta);
    return same;
}

/* Every stage trains to the same bits, in one run and in two; memory held matches the plan. */
TEST(an_optimizer_of_ones_own_is_one_table)
{
    struct fixture *f = *state;
    for (int i = 0; i < 8; i++) {
        char zero[32], whole[24], parts[24];
        const char *dtype = i < 4 ? "precision.dtype=fp32" : "precision.dtype=bf16", *first = i < 4 ? "toy0" : "toy4";
        snprintf(zero, sizeof zero, "zero.stage=%d", i % 4);
        snprintf(whole, sizeof whole, "toy%d", i);
        snprintf(parts, sizeof parts, "toy-parts%d", i);
        const char *args[] = {zero,
                              dtype,
                              "run.reproducible=true",
                              "scheduler.type=constant",
                              "optimizer.lr=0.05",
                              "checkpoint.resume=auto",
                              "run.max_steps=6"};
        const outcome o = run_with(f, &aggmo, NULL, whole, 7, args);
        assert_all(MPI_COMM_WORLD, !o.err && is_planned(&o, zero) && o.left == 0);
        args[6] = "run.max_steps=3";
        assert_all(MPI_COMM_WORLD, !run_with(f, &aggmo, NULL, parts, 7, args).err);
        args[6] = "run.max_steps=6";
        assert_all(MPI_COMM_WORLD, !run_with(f, &aggmo, NULL, parts, 7, args).err);
        assert_all(MPI_COMM_WORLD, this_rank() || same_tensors(f, whole, parts, 6));
        assert_all(MPI_COMM_WORLD, this_rank() || same_tensors(f, whole, first, 6));
        assert_all(MPI_COMM_WORLD, this_rank() || is_aggmos(f, parts));
    }
}

/* States of another optimizer are not mistaken for one's own. */
TEST(resume_with_another_optimizer_requires_allow_changes)
{
    const char *args[] = {"scheduler.type=constant", "checkpoint.resume=auto", "run.max_steps=2",
                          "checkpoint.allow_changes=optimizer.type"};
    assert_all(MPI_COMM_WORLD, !run_with(*state, &aggmo, NULL, "toy-change", 3, args).err);
    args[2] = "run.max_steps=4";
    assert_all(MPI_COMM_WORLD, run(*state, "toy-change", 3, args).err == DT_ERR_USAGE);
    assert_all(MPI_COMM_WORLD, this_rank() || strstr(dt_error_message(), "optimizer.type: aggmo -> adamw") != NULL);
    dt_error_clear();
    assert_all(MPI_COMM_WORLD, !run(*state, "toy-change", 4, args).err);
}

/* Layers and ranks of adapters determine the tensors of a checkpoint; other words for the same layers do not. */
TEST(other_adapters_are_refused_in_spite_of_allow_changes)
{
    static const char *const changed[][2] = {{"lora.r=2", "lora.target_modules=k_proj"},
                                             {"lora.r=4", "lora.target_modules=q_proj"},
                                             {"lora.r=2", "lora.target_modules=.*q_proj"}};
    const char *args[] = {"lora.r=2", "lora.target_modules=q_proj", "checkpoint.allow_changes=all",
                          "checkpoint.resume=auto", "run.max_steps=2"};
    assert_all(MPI_COMM_WORLD, !run(*state, "adapted", 5, args).err);
    args[4] = "run.max_steps=4";
    for (int i = 0; i < 3; i++) {
        memcpy(args, changed[i], sizeof changed[i]);
        assert_all(MPI_COMM_WORLD, run(*state, "adapted", 5, args).err == (i < 2 ? DT_ERR_USAGE : DT_OK));
        const bool says = i == 2 || strstr(dt_error_message(), "and its adapters do not fit the new ones");
        assert_all(MPI_COMM_WORLD, this_rank() || says);
        dt_error_clear();
    }
}

TEST(each_mistake_has_its_own_error)
{
    const char *rule[] = {"optimizer.lr_scale_rule=linear"},
               *config[] = {"model.model_type=", "model.config=/nonexistent/config.json"};
    assert_all(MPI_COMM_WORLD, run(*state, "rule", 1, rule).err == DT_ERR_USAGE);
    assert_all(MPI_COMM_WORLD, run(*state, "config", 2, config).err == DT_ERR_DATA);
}

MPI_TEST_MAIN(open_fixture, close_fixture)
