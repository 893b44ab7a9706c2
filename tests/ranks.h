/* ranks.h - what tests of several ranks begin and end with: a communicator with a device, and an empty folder that all
 * ranks know. */
#ifndef DTRAIN_TESTS_RANKS_H
#define DTRAIN_TESTS_RANKS_H

#include "mpi_test.h"
#include "dtrain/comm/comm.h"
#include <limits.h>

static inline bool open_ranks(dt_comm *comm, dt_device *dev, dt_ledger *ledger, MPI_Comm *mpi)
{
    if (dt_comm_open(comm) != DT_OK || dt_device_open(dev, "cpu", comm->local_rank, 1, ledger) != DT_OK ||
        dt_comm_attach(comm, dev, "mpi", true) != DT_OK) {
        print_error("fixture: %s\n", dt_error_message());
        return false;
    }
    *mpi = *(MPI_Comm *)dt_comm_mpi_handle(comm);
    return true;
}

/* stem: "/tmp/dtrain-NAME-XXXXXX" */
static inline bool make_folder(const dt_comm *comm, MPI_Comm mpi, const char *stem, char dir[32])
{
    snprintf(dir, 32, "%s", stem);
    if (comm->rank == 0 && !mkdtemp(dir)) dir[0] = '\0';
    MPI_Bcast(dir, 32, MPI_CHAR, 0, mpi);
    dt_error_clear();
    return dir[0] != '\0';
}

static inline bool remove_folder(const dt_comm *comm, MPI_Comm mpi, const char *dir)
{
    char command[64];
    dt_error_clear();
    MPI_Barrier(mpi);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return comm->rank != 0 || system(command) == 0;
}

static inline char *in_folder(const char *dir, const char *name, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/%.2000s", dir, name);
    return out;
}

static inline bool exists_in(const char *dir, const char *name)
{
    char path[PATH_MAX];
    return access(in_folder(dir, name, path), F_OK) == 0;
}

/* Does the command, made as by printf, succeed in a shell? */
__attribute__((format(printf, 1, 2))) static inline bool shell(const char *format, ...)
{
    char command[3 * PATH_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    return system(command) == 0;
}

#endif
