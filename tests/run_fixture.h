/* run_fixture.h - whole runs of a small model inside the test's process, under mpirun. */
#ifndef DTRAIN_TESTS_RUN_FIXTURE_H
#define DTRAIN_TESTS_RUN_FIXTURE_H

#include "mpi_test.h"
#include "../src/backends/queue.h"
#include "../src/train/run.h"
#include "dtrain/io/io.h"
#include "dtrain/report/metrics.h"

struct fixture {
    char dir[128];
};
static inline int this_rank(void)
{
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}

static inline dt_err write_tokens(const char *path, const uint16_t *tokens, hsize_t n, uint64_t n_vocab)
{
    const hid_t f = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), space = H5Screate_simple(1, &n, NULL);
    const hid_t d = H5Dcreate2(f, "tokens", H5T_STD_U16LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(d, H5T_NATIVE_UINT16, H5S_ALL, H5S_ALL, H5P_DEFAULT, tokens);
    H5Dclose(d), H5Sclose(space);
    DT_TRY(dt_h5_write_text(f, path, "format", "dtrain-dataset"));
    DT_TRY(dt_h5_write_u64(f, path, "version", 1));
    DT_TRY(dt_h5_write_text(f, path, "kind", "tokens"));
    DT_TRY(dt_h5_write_u64(f, path, "vocab_size", n_vocab));
    return H5Fclose(f) < 0 ? dt_fail(DT_ERR_WRITE, "%s: cannot close", path) : DT_OK;
}

static inline dt_err write_data(const char *path)
{
    enum { N = 20000 };
    static uint16_t tokens[N];
    for (int i = 0; i < N; i++) tokens[i] = (uint16_t)(dt_mix64((uint64_t)i) % 250);
    return write_tokens(path, tokens, N, 257);
}

/* A folder of the test's own, the same on all ranks. */
static inline bool make_folder(struct fixture *f)
{
    dt_err err = DT_OK;
    snprintf(f->dir, sizeof f->dir, "/tmp/dtrain-run-%d", (int)getpid());
    MPI_Bcast(f->dir, sizeof f->dir, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (this_rank() == 0) err = dt_make_dirs(f->dir);
    return vote_ranks(MPI_COMM_WORLD, !err);
}

static inline int open_fixture(void **state)
{
    static struct fixture f;
    char path[160];
    if (!make_folder(&f)) return -1;
    snprintf(path, sizeof path, "%s/train.h5", f.dir);
    const dt_err err = this_rank() ? DT_OK : write_data(path);
    *state = &f;
    return vote_ranks(MPI_COMM_WORLD, !err) ? 0 : -1;
}

static inline int close_fixture(void **state)
{
    struct fixture *f = *state;
    char command[192];
    snprintf(command, sizeof command, "rm -rf '%s'", f->dir);
    return this_rank() ? 0 : system(command);
}

/* What a run leaves to look at. */
typedef struct outcome {
    dt_err err;
    bool together; /* was the end agreed on? */
    size_t n_allocs, left;
    dt_memory planned, allocated;
    size_t overhead; /* of the device, in both */
    int stage;
    dt_offload offload_optimizer, offload_param;
    double saved_nbytes; /* the checkpoint's planned bytes */
    double sent_nbytes;
    long n_large, n_noted; /* blocks of the heap, where the test counts them (memory_guard.h) */
    bool on_queue, own_memory;
    dt_queue_counts counts;
} outcome;

/* NULL, or called for each run before it is opened and, when its training has ended, before it is closed. */
static void (*run_watch)(const dt_run *run, bool begins);

/* text: the configuration file; optimizer, task: NULL for the configuration's. */
static inline outcome run_text(const char *text, const dt_optimizer_ops *optimizer, const dt_task_ops *task, int n_args,
                               const char *const *args)
{
    outcome o = {0};
    dt_comm comm = {0};
    dt_run r = {.start_s = dt_now_s(), .optimizer = optimizer, .task.ops = task};
    if (run_watch) run_watch(&r, true);
    o.err = dt_comm_open(&comm);
    if (!o.err) o.err = dt_config_parse(&r.cfg, "run_fixture", text, n_args, args);
    if (!o.err) o.err = dt_run_main(&r, &comm, DT_MODE_RUN);
    if (run_watch) run_watch(&r, false);
    o.together = dt_comm_failed_together(&comm);
    o.n_allocs = atomic_load(&r.ledger.n_allocs);
    o.planned = r.planned, o.allocated = r.allocated;
    o.overhead = r.dev.ops ? dt_device_overhead(&r.dev) : 0;
    o.stage = r.main.zero_opt.stage;
    o.offload_optimizer = r.main.zero_opt.offload_optimizer, o.offload_param = r.main.zero_opt.offload_param;
    o.saved_nbytes = r.total_steps > 0 ? run_checkpoint_nbytes(&r) : 0;
    o.sent_nbytes = comm.traffic_bytes;
    o.on_queue = r.dev.ops == &dt_device_queue_ops;
    o.own_memory = r.dev.ops && r.dev.ops->own_memory;
    if (o.on_queue) o.counts = dt_queue_counts_of(&r.dev);
    dt_run_close(&r);
    dt_comm_close(&comm);
    dt_device_close(&r.dev);
    const dt_memory left = dt_ledger_now(&r.ledger);
    o.left = dt_memory_total(&left);
    return o;
}

/* The small model. args: settings; the output directory is called `name`. */
static inline outcome run_whole(const struct fixture *f, const dt_optimizer_ops *optimizer, const dt_task_ops *task,
                                const char *name, int n_args, const char *const *args)
{
    static const char text[] =
        "[run]\nthreads = 1\n[model]\nmodel_type = llama\nhidden_size = 64\nintermediate_size = 160\nnum_hidden_layers "
        "= 3\n"
        "num_attention_heads = 4\nnum_key_value_heads = 2\nvocab_size = 257\nmax_position_embeddings = 64\n"
        "[data]\nseq_len = 64\n[batch]\nmicro_batch_size = 4\n[checkpoint]\nsave_steps = 0\nresume = "
        "none\n[log]\nreport_to = jsonl\n";
    char data[200], out[200];
    const char *all[24] = {data, out};
    snprintf(data, sizeof data, "data.train=%s/train.h5", f->dir);
    snprintf(out, sizeof out, "run.output_dir=%s/%s", f->dir, name);
    for (int i = 0; i < n_args; i++) all[i + 2] = args[i];
    return run_text(text, optimizer, task, n_args + 2, all);
}

/* The same bytes in every category and space? */
static inline bool same_memory(const char *what, const dt_memory *planned, const dt_memory *allocated)
{
    bool ok = true;
    for (int c = 0; c < DT_N_MEMCAT; c++)
        for (int p = 0; p < DT_N_MEMSPACE; p++) {
            if (planned->at[c][p] == allocated->at[c][p]) continue;
            ok = false;
            print_error("%s: %s, %s: planned %zu, allocated %zu\n", what, dt_memcat_name((dt_memcat)c),
                        dt_memspace_name((dt_memspace)p), planned->at[c][p], allocated->at[c][p]);
        }
    return ok;
}
static inline bool is_planned(const outcome *o, const char *what)
{
    return same_memory(what, &o->planned, &o->allocated);
}

/* A number of a run's step, as it is in the report; on rank 0. */
static inline double reported(const struct fixture *f, const char *name, int64_t step, const char *key)
{
    char path[200];
    double x = NAN;
    dt_metrics m = {0};
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", f->dir, name);
    if (dt_metrics_read(&m, path) == DT_OK) {
        const double *at = dt_metrics_column(&m, "step"), *value = dt_metrics_column(&m, key);
        for (int64_t i = 0; at && value && i < m.n_rows; i++)
            if (at[i] == (double)step && !isnan(value[i])) x = value[i];
    }
    dt_metrics_free(&m);
    return x;
}

/* The end of a test that is started as a program: the run, and the exit code. */
static inline int end_program(dt_run *r, dt_comm *comm, dt_err err)
{
    if (!err) err = dt_run_main(r, comm, DT_MODE_RUN);
    if (err && dt_comm_prints_error(comm)) dt_log(DT_LOG_ERROR, "%s", dt_error_message());
    dt_comm_leave(comm, err);
    dt_run_close(r);
    dt_comm_close(comm);
    dt_device_close(&r->dev);
    MPI_Finalize();
    return dt_exit_code(err);
}

/* Sets a variable of the environment for as long as a test needs it. */
static inline void set_or_clear(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

#endif
