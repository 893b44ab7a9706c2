/* task_run.h - runs of a task of the test's own inside its process, under mpirun, in a folder of the test's own. */
#ifndef DTRAIN_TESTS_TASK_RUN_H
#define DTRAIN_TESTS_TASK_RUN_H

#include "mpi_test.h"
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
