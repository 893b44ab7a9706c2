/* task_run.h - runs of a task of the test's own inside its process, under mpirun, in a folder of the test's own. */
#ifndef DTRAIN_TESTS_TASK_RUN_H
#define DTRAIN_TESTS_TASK_RUN_H

#include "mpi_test.h"
#include "dtrain/report/metrics.h"
#include "dtrain/step/step.h"
#include "dtrain/train/train.h"

static char task_run_dir[64];

static inline int this_rank(void)
{
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}

/* Is a run complete: no error, the planned memory is allocated, and all is freed? config: its file; name: of its
 * folder; args: at most 7. */
static inline bool run_task(const dt_task_ops *ops, const char *config, const char *name, int n_args,
                            const char *const *args)
{
    char out[100];
    const char *all[8] = {out};
    snprintf(out, sizeof out, "run.output_dir=%s/%s", task_run_dir, name);
    for (int i = 0; i < n_args; i++) all[i + 1] = args[i];
    dt_comm comm = {0};
    dt_run r = {.start_s = dt_now_s(), .task = {.ops = ops}};
    dt_err err = dt_comm_open(&comm);
    if (!err) err = dt_config_parse(&r.cfg, ops->name, config, n_args + 1, all);
    if (!err) err = dt_run_main(&r, &comm, DT_MODE_RUN);
    if (err) print_error("%s\n", dt_error_message());
    const bool as_planned = !memcmp(&r.planned, &r.allocated, sizeof r.planned);
    dt_run_close(&r);
    dt_comm_close(&comm);
    dt_device_close(&r.dev);
    return !err && as_planned && atomic_load(&r.ledger.total_now) == 0;
}

/* A column of a run's report, by step: [n]. NAN: no value. */
static inline void read_column(const char *name, const char *key, double *by_step, int n)
{
    char path[120];
    dt_metrics m = {0};
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", task_run_dir, name);
    for (int i = 0; i < n; i++) by_step[i] = NAN;
    if (dt_metrics_read(&m, path) == DT_OK) {
        const double *at = dt_metrics_column(&m, "step"), *value = dt_metrics_column(&m, key);
        for (int64_t i = 0; at && value && i < m.n_rows; i++)
            if (at[i] >= 0 && at[i] < n && !isnan(value[i])) by_step[(int)at[i]] = value[i];
    }
    dt_metrics_free(&m);
}

/* ---- parts of tasks ---------------------------------------------------------------------------------------------- */

static inline void check_nothing(dt_task *t) { (void)t; }

/* How long a task is. */
static inline void declare_size(dt_task *t)
{
    t->steps_per_epoch = 1000, t->samples_per_epoch = 1000 * t->batching.train_batch_size;
    t->n_validation = t->batching.accumulation;
}

static inline dt_err plan_batch(const dt_task *t, int stage, dt_memory *memory)
{
    memory->at[DT_MEM_DATA][DT_ON_HOST] += dt_batch_nbytes(t->model_opt->max_tok, t->model_opt->max_seq);
    return DT_OK;
}

/* A batch of n samples from the first on, each of len tokens below n_vocab. Where targets is set, two of three tokens
 * have one. */
static inline void fill_samples(dt_batch *b, int64_t first, int64_t n, int len, int n_vocab, bool targets)
{
    b->n_tok = b->n_seq = 0;
    b->seq_start[0] = 0;
    b->n_samples = n;
    for (int64_t k = 0; k < n; k++) {
        for (int i = 0; i < len; i++, b->n_tok++) {
            const uint64_t key = (uint64_t)((first + k) * len + i);
            const bool has_target = targets && i % 3 != 1;
            b->token[b->n_tok] = (int32_t)(dt_mix64(key) % (uint64_t)n_vocab);
            b->target[b->n_tok] = has_target ? (int32_t)(dt_mix64(key + 1) % (uint64_t)n_vocab) : -1;
            b->weight[b->n_tok] = has_target;
            b->pos[b->n_tok] = i;
            b->token_key[b->n_tok] = key;
        }
        b->full_len[b->n_seq++] = 0;
        b->seq_start[b->n_seq] = b->n_tok;
    }
    dt_batch_finish(b);
}

/* ---- set-up ------------------------------------------------------------------------------------------------------ */

static inline int make_task_run_dir(void **state)
{
    snprintf(task_run_dir, sizeof task_run_dir, "/tmp/dtrain-task-run-%d", (int)getpid());
    MPI_Bcast(task_run_dir, sizeof task_run_dir, MPI_CHAR, 0, MPI_COMM_WORLD);
    return 0;
}

static inline int remove_task_run_dir(void **state)
{
    char command[100];
    snprintf(command, sizeof command, "rm -rf '%s'", task_run_dir);
    return this_rank() ? 0 : system(command);
}

#endif
