/* ranks.c - see ranks.h. */
#include "ranks.h"

#include "dtrain/process/process.h"
#include "tool.h"

int ranks_main(dt_comm *comm, dt_device *dev, void *app, dt_err parsed, dt_err (*run)(void *app, dt_err parsed),
               void (*close)(void *app), int (*end)(dt_err err))
{
    const dt_err started = dt_comm_start(comm);
    if (started != DT_OK) return end(started);
    const dt_err err = run(app, parsed);
    const int code = dt_comm_prints_error(comm) ? end(err) : dt_exit_code(err);
    dt_comm_leave(comm, err);
    dt_watchdog *watchdog = dt_watchdog_of_closing(comm);
    close(app);
    dt_comm_close(comm);
    dt_device_close(dev);
    dt_comm_stop();
    dt_watchdog_stop(&watchdog);
    return code;
}

dt_err ranks_open(dt_comm *comm, dt_phase *phase, double timeout_s, dt_err parsed)
{
    DT_TRY(dt_comm_open(comm));
    comm->timeout_s = timeout_s;
    dt_log_open(comm->rank, comm->nranks, comm->host);
    dt_phase_enter(phase, "start", "");
    return together(comm, parsed);
}

dt_err ranks_open_device(dt_comm *comm, dt_device *dev, dt_ledger *ledger, const char *name, int64_t threads)
{
    int n_threads = 0;
    DT_TRY(dt_comm_threads(comm, threads, "--threads", &n_threads));
    return dt_device_open(dev, name, comm->local_rank, n_threads, ledger);
}
