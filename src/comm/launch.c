/* launch.c - starts and ends MPI. At the start it verifies that MPI sees the processes that the launcher started. With
 * the launcher of another MPI, N processes form N worlds of one rank each. N trainings would then silently share one
 * directory. */
#include "internal.h"
#include <dirent.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct launcher {
    const char *name, *size, *rank;
} launcher;

/* Environment variables with the number of started processes, and the index of this one. */
static const launcher launchers[] = {
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
    {"mpiexec of MPICH or Intel MPI, or srun --mpi=pmi2", "PMI_SIZE", "PMI_RANK"},
    {"MVAPICH's mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},
    {"Slurm's srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
};
enum { N_LAUNCHERS = sizeof launchers / sizeof launchers[0], SLURM = N_LAUNCHERS - 1 };

static long number(const char *variable)
{
    const char *text = getenv(variable);
    char *end;
    const long n = text ? strtol(text, &end, 10) : -1;
    return text && end != text && !*end ? n : -1;
}

/* All processes of a job step, such as a shell or mpirun's daemons, inherit srun's variables. The variables describe
 * the task only. */
static bool describes_this_process(int l) { return l != SLURM || number("SLURM_TASK_PID") == (long)getpid(); }

static bool is_launched(void)
{
    static const char *const marks[] = {"PMIX_RANK", "PMIX_NAMESPACE", "PMI_FD",
                                        "PMI_PORT",  "PALS_RANKID",    "FLUX_TASK_RANK"};
    for (int l = 0; l < N_LAUNCHERS; l++)
        if (getenv(launchers[l].size) && describes_this_process(l)) return true;
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
        if (getenv(marks[i])) return true;
    return false;
}

static dt_err compare(int size)
{
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "an MPI";
    int len;
    for (int l = 0; l < N_LAUNCHERS && size == 1; l++) {
        const long n = number(launchers[l].size);
        if (n <= 1 || !describes_this_process(l)) continue;
        /* Only the first process prints. The others wait, because the launcher may kill it when one of them exits. */
        if (number(launchers[l].rank) > 0) {
            sleep(2);
            _exit(dt_exit_code(DT_ERR_USAGE));
        }
        MPI_Get_library_version(library, &len);
        library[strcspn(library, ",\n")] = '\0';
        return dt_fail(
            DT_ERR_USAGE,
            "%s started %ld processes (%s), but MPI sees only this one, so each process would run a separate job. This "
            "program was built with %s: start it with the launcher of that MPI, or under Slurm with an srun --mpi=... "
            "that it supports (srun --mpi=list). To run one rank on purpose: env -u %s",
            launchers[l].name, n, launchers[l].size, library, launchers[l].size);
    }
    return DT_OK;
}

/* ---- threads of Open MPI ----------------------------------------------------------------------------------------- */

#if defined OMPI_MAJOR_VERSION && OMPI_MAJOR_VERSION == 4
/* Is a thread of this process running, or waiting for a core or for a page fault? thread: its directory in
 * /proc/self/task. */
static bool has_work(const char *thread)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%.20s/stat", thread);
    FILE *f = fopen(path, "r");
    const bool read = f && fgets(text, sizeof text, f);
    if (f) fclose(f);
    const char *name_end = read ? strrchr(text, ')') : NULL;
    return name_end && (strncmp(name_end, ") R", 3) == 0 || strncmp(name_end, ") D", 3) == 0);
}

/* The highest thread id of this process. newer_work: out, may be NULL: a thread with an id above `before` has work. */
static long look_at_threads(long before, bool *newer_work)
{
    long highest = 0;
    DIR *threads = opendir("/proc/self/task");
    for (const struct dirent *e; threads && (e = readdir(threads));) {
        const long id = atol(e->d_name);
        if (id > highest) highest = id;
        if (newer_work && id > before && has_work(e->d_name)) *newer_work = true;
    }
    if (threads) closedir(threads);
    return highest;
}

/* MPI_Init leaves an event to a thread of Open MPI 4, and MPI_Finalize unloads the plugin with its handler before it
 * joins that thread. In a short run on an overloaded machine the thread may not have run until then, and would call
 * unloaded code. Therefore all threads that MPI_Init has started must be seen idle first. They are checked twice,
 * because one may have given work to another that was checked before it. before: the highest thread id before
 * MPI_Init. */
static void let_threads_rest(long before)
{
    enum { AT_MOST_MS = 5000 };
    int seen = 0;
    for (int ms = 0; seen < 2 && ms < AT_MOST_MS; ms++) {
        bool work = false;
        look_at_threads(before, &work);
        seen = work ? 0 : seen + 1;
        if (seen == 0) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    if (seen < 2) DT_DEBUG("MPI threads were still busy %d ms after MPI_Init", AT_MOST_MS);
}
#else
static long look_at_threads(long before, bool *newer_work) { return 0; }
static void let_threads_rest(long before) {}
#endif

dt_err dt_comm_start(dt_comm *comm)
{
    int provided = 0, size = 1;
    const bool alone = !is_launched(); /* checked before MPI starts, because MPI then sets a launcher's variables */
    *comm = (dt_comm){.alone = alone};
    /* alone: Open MPI 4 would start its own daemon for features that dtrain does not use, and the daemon may outlive
     * the program */
    if (comm->alone) setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
    const long before = look_at_threads(0, NULL);
    DT_MPI(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided));
    let_threads_rest(before);
    DT_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size));
    comm->threads = provided >= MPI_THREAD_MULTIPLE;
    const dt_err err = compare(size);
    if (err != DT_OK) MPI_Finalize();
    return err;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

static void *give_up(void *code)
{
    enum { PATIENCE_S = 5 };
    sleep(PATIENCE_S); /* MPI_Abort may hang in a broken library, or wait for a thread of this process that hangs */
    _exit((int)(intptr_t)code);
}

_Noreturn void dt_comm_abort(int code)
{
    pthread_t last_resort;
    pthread_create(&last_resort, NULL, give_up, (void *)(intptr_t)code);
    MPI_Abort(MPI_COMM_WORLD, code);
    _exit(code);
}

void dt_comm_leave(const dt_comm *comm, dt_err err)
{
    int nranks = 0;
    if (err == DT_OK || dt_comm_failed_together(comm)) return;
    if (dt_device_failure()) dt_comm_abort(dt_exit_code(DT_ERR_FAULT));
    /* comm may not be open */
    if (MPI_Comm_size(MPI_COMM_WORLD, &nranks) != MPI_SUCCESS || nranks > 1) dt_comm_abort(dt_exit_code(err));
}

void dt_comm_stop(void) { MPI_Finalize(); }

char *dt_comm_library(char *out, size_t out_size)
{
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int major, minor, len;
    MPI_Get_version(&major, &minor);
    MPI_Get_library_version(library, &len);
    snprintf(out, out_size, "%.*s (standard %d.%d)", (int)strcspn(library, ",\n"), library, major, minor);
    return out;
}
