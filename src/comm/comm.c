/* comm.c - opens a communicator and passes public calls to the transport.
 *
 * dt_comm_open gathers one table on every rank: which ranks share a node. This table and the arguments of a collective
 * determine its steps. */
#include "dtrain/comm/comm.h"
#include "dtrain/perfmodel/chips.h"
#include "dtrain/perfmodel/counting_device.h"
#include "internal.h"
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

dt_err(dt_comm_mpi_fail)(int code, const char *call, const char *file, int line)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "unknown error";
    int len = 0;
    if (MPI_Error_string(code, text, &len) == MPI_SUCCESS) text[len] = '\0';
    return dt_fail(DT_ERR_COMM, "%s: %s (%s:%d)", call, text, file, line);
}

/* ---- ranks and nodes --------------------------------------------------------------------------------------------- */

/** For tests of several nodes on one machine: DTRAIN_FAKE_NODES=K assigns the ranks to K simulated nodes, in blocks, or
 *  with K:cyclic in turn. *color: the simulated node of this rank; -1: no simulation. */
static dt_err fake_node(const dt_comm *comm, int *color)
{
    *color = -1;
    const char *text = getenv("DTRAIN_FAKE_NODES");
    if (!text || !*text) return DT_OK;
    char *end;
    const long k = strtol(text, &end, 10);
    const bool cyclic = strcmp(end, ":cyclic") == 0;
    DT_CHECK(end != text && k > 0 && k <= INT_MAX && (!*end || cyclic), DT_ERR_USAGE,
             "DTRAIN_FAKE_NODES=%s: expected a number of nodes above 0, optionally followed by :cyclic", text);
    *color = cyclic ? (int)(comm->rank % k) : (int)(comm->rank * k / comm->nranks);
    return DT_OK;
}

static dt_err errors_return(MPI_Comm c)
{
    DT_MPI(MPI_Comm_set_errhandler(c, MPI_ERRORS_RETURN));
    return DT_OK;
}

/** Launchers bind ranks in different ways: ranks may own cores, share the job's cores, or be unbound. The union of the
 *  ranks' cores on a host, and whether their sets overlap, distinguish these cases. */
static dt_err count_cores(struct dt_comm_mpi *mpi, MPI_Comm shared)
{
    dt_cores mine, all;
    int n, sum;
    dt_cores_of(0, &mine);
    n = dt_cores_count(&mine);
    DT_MPI(MPI_Comm_size(shared, &mpi->host_ranks));
    DT_MPI(MPI_Allreduce(mine.word, all.word, DT_CORE_WORDS, MPI_UINT64_T, MPI_BOR, shared));
    DT_MPI(MPI_Allreduce(&n, &sum, 1, MPI_INT, MPI_SUM, shared));
    mpi->host_cores = dt_cores_count(&all);
    mpi->own_cores = sum == mpi->host_cores;
    mpi->cores_per_rank = mpi->host_cores / mpi->host_ranks;
    return DT_OK;
}

static dt_err find_crowd(dt_comm *comm)
{
    struct dt_comm_mpi *mpi = comm->mpi;
    struct dt_comm_crowd *crowd = &mpi->crowd;
    struct {
        int ranks_per_1000_cores, rank;
    } mine = {1000 * mpi->host_ranks / (mpi->host_cores > 0 ? mpi->host_cores : 1), comm->rank}, worst;
    *crowd = (struct dt_comm_crowd){.ranks = mpi->host_ranks, .cores = mpi->host_cores};
    snprintf(crowd->host, sizeof crowd->host, "%s", comm->host);
    DT_MPI(MPI_Allreduce(&mine, &worst, 1, MPI_2INT, MPI_MAXLOC, mpi->world));
    DT_MPI(MPI_Bcast(crowd, sizeof *crowd, MPI_BYTE, worst.rank, mpi->world));
    return DT_OK;
}

int dt_comm_cores(const dt_comm *comm)
{
    const struct dt_comm_mpi *mpi = comm->mpi;
    const int own = dt_cores_own();
    if (mpi->own_cores || own < mpi->cores_per_rank) return own;
    return mpi->cores_per_rank > 0 ? mpi->cores_per_rank : 1;
}

/* A launcher that binds each rank to one core silently leaves the other cores idle. Open MPI does so with one and two
 * ranks. */
static void warn_of_unused_cores(const dt_comm *comm)
{
    const struct dt_comm_mpi *mpi = comm->mpi;
    const int job = dt_cores_of_job(), each = job / mpi->host_ranks, used = dt_comm_cores(comm);
    if (comm->rank != 0 || comm->alone || each <= used || dt_cores_per_task() == used) return;
    DT_WARN(
        "only %d of the job's %d cores on %s are used, because the launcher bound each rank to %d. Start with mpirun "
        "--bind-to none, or srun --cpus-per-task=%d; if this is intended, set the number of threads per rank",
        used * mpi->host_ranks, job, comm->host, used, each);
}

/* Only the cores of rank 0's host are known. */
static void advise(const dt_comm *comm, char *out, size_t out_size)
{
    const struct dt_comm_crowd *crowd = &comm->mpi->crowd;
    const int job = strcmp(crowd->host, comm->host) ? 0 : dt_cores_of_job();
    if (job > crowd->cores)
        snprintf(out, out_size,
                 "the job has %d cores there, but the launcher bound the ranks to fewer: start with mpirun --bind-to "
                 "none, or srun --cpus-per-task=%d",
                 job, job / crowd->ranks > 0 ? job / crowd->ranks : 1);
    else if (crowd->ranks <= crowd->cores)
        snprintf(out, out_size, "use %d thread%s per rank to give each a core", crowd->cores / crowd->ranks,
                 crowd->cores / crowd->ranks == 1 ? "" : "s");
    else
        snprintf(out, out_size, "start at most %d rank%s there, or give the job more cores", crowd->cores,
                 crowd->cores == 1 ? "" : "s");
}

/* Warn if a host has more threads than cores that its ranks may use together. */
static bool warn_of_crowd(const dt_comm *comm, int n_threads)
{
    const struct dt_comm_crowd *crowd = &comm->mpi->crowd;
    const int64_t threads = (int64_t)crowd->ranks * n_threads;
    char advice[256];
    if (crowd->ranks == 1 || crowd->cores < 1 || threads <= crowd->cores) return false;
    advise(comm, advice, sizeof advice);
    if (comm->rank == 0)
        DT_WARN("%d ranks with %d thread%s each share %d core%s on %s, which slows down all of them: %s", crowd->ranks,
                n_threads, n_threads == 1 ? "" : "s", crowd->cores, crowd->cores == 1 ? "" : "s", crowd->host, advice);
    return true;
}

dt_err dt_comm_threads(const dt_comm *comm, int64_t wanted, const char *where, int *n_threads)
{
    enum { ABSURD = 16 };
    const int cores = dt_comm_cores(comm), online = dt_cores_online();
    *n_threads = wanted > 0 ? (int)wanted : cores;
    DT_CHECK(wanted <= (int64_t)ABSURD * online, DT_ERR_USAGE,
             "%s: expected at most %d threads on a machine of %d cores, found %" PRId64, where, ABSURD * online, online,
             wanted);
    if (warn_of_crowd(comm, *n_threads)) return DT_OK;
    if (wanted == 0) warn_of_unused_cores(comm);
    if (wanted > cores && comm->rank == 0)
        DT_WARN("%s: %" PRId64 " threads will compete for the %d core%s available to a rank", where, wanted, cores,
                cores == 1 ? "" : "s");
    return DT_OK;
}

/* Process ids belong to a namespace, and each container has its own. */
static dt_err find_neighbours(dt_comm *comm, MPI_Comm shared)
{
    struct stat space = {0};
    const int n = comm->mpi->host_ranks;
    stat("/proc/self/ns/pid", &space);
    int64_t mine[3] = {comm->rank, getpid(), (int64_t)space.st_ino}, *all = malloc((size_t)n * sizeof mine);
    comm->neighbours = malloc((size_t)n * sizeof *comm->neighbours);
    const bool room = all && comm->neighbours;
    const int code = room ? MPI_Allgather(mine, 3, MPI_INT64_T, all, 3, MPI_INT64_T, shared) : MPI_SUCCESS;
    for (int r = 0; r < n && room && !code; r++)
        if (all[3 * r] != comm->rank)
            comm->neighbours[comm->n_neighbours++] =
                (dt_neighbour){.rank = (int)all[3 * r], .pid = all[3 * r + 2] == mine[2] ? (int)all[3 * r + 1] : 0};
    free(all);
    if (code) return dt_comm_mpi_fail(code, "exchange of process ids", __FILE__, __LINE__);
    return room ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for a table of %d ranks", n);
}

static dt_err split_by_node(dt_comm *comm)
{
    struct dt_comm_mpi *mpi = comm->mpi;
    int color;
    DT_TRY(fake_node(comm, &color));
    DT_MPI(MPI_Comm_split_type(mpi->world, MPI_COMM_TYPE_SHARED, comm->rank, MPI_INFO_NULL, &mpi->node));
    DT_TRY(errors_return(mpi->node));
    DT_TRY(count_cores(mpi, mpi->node));
    DT_TRY(find_neighbours(comm, mpi->node));
    if (color >= 0) {
        MPI_Comm shared = mpi->node;
        DT_MPI(MPI_Comm_split(shared, color, comm->rank, &mpi->node));
        DT_TRY(errors_return(mpi->node));
        DT_MPI(MPI_Comm_free(&shared));
    }
    DT_MPI(MPI_Comm_rank(mpi->node, &comm->local_rank));
    DT_MPI(MPI_Comm_size(mpi->node, &comm->local_nranks));
    return DT_OK;
}

/** Identify each node by its lowest rank. */
static dt_err find_nodes(dt_comm *comm)
{
    struct dt_comm_mpi *mpi = comm->mpi;
    DT_TRY(split_by_node(comm));
    int *first_rank = malloc((size_t)comm->nranks * sizeof *first_rank);
    dt_err err = first_rank ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the table of %d ranks", comm->nranks);
    int first = comm->rank, code = MPI_SUCCESS;
    if (!err) code = MPI_Bcast(&first, 1, MPI_INT, 0, mpi->node);
    if (!err && !code) code = MPI_Allgather(&first, 1, MPI_INT, first_rank, 1, MPI_INT, mpi->world);
    if (code) err = dt_comm_mpi_fail(code, "exchange of node indices", __FILE__, __LINE__);
    if (!err) err = dt_mesh_world(comm, first_rank);
    free(first_rank);
    return err;
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* A device without an identifier counts as one device per node. A rank without a device counts as sharing with none. */
static void count_sharing(dt_comm *comm, uint64_t mine, uint64_t *ids)
{
    comm->n_sharing = mine ? 0 : comm->local_nranks;
    comm->max_sharing = mine ? 1 : comm->mesh.world.max_local;
    comm->leads = mine != 0 || comm->local_rank == 0;
    for (int r = 0; r < comm->rank && mine; r++) comm->leads &= ids[r] != mine;
    qsort(ids, (size_t)comm->nranks, sizeof *ids, by_value);
    for (int r = 0, same = 0; r < comm->nranks; r++) {
        same = r > 0 && ids[r] == ids[r - 1] ? same + 1 : 1;
        if (ids[r] && same > comm->max_sharing) comm->max_sharing = same;
        comm->n_sharing += mine && ids[r] == mine;
    }
}

dt_err dt_comm_find_devices(dt_comm *comm, const dt_device *dev)
{
    uint64_t mine = dev->ops && dev->ops->identity ? dev->ops->identity(dev) : 0;
    uint64_t *ids = NULL;
    dt_err err = dt_alloc(&ids, comm->nranks, sizeof *ids, "out of memory for %d devices", comm->nranks);
    err = dt_comm_agree(comm, err == DT_OK ? dt_fault("comm.devices") : err);
    if (err == DT_OK) ids[comm->rank] = mine;
    if (err == DT_OK) err = dt_comm_join_host(dt_comm_all(comm), ids, (size_t)comm->nranks * sizeof *ids);
    if (err == DT_OK) count_sharing(comm, mine, ids);
    free(ids);
    return err;
}

dt_err dt_comm_group(const dt_axis *axis, MPI_Comm table[DT_N_AXES], MPI_Comm *group)
{
    const struct dt_comm_mpi *mpi = axis->comm->mpi;
    MPI_Comm *at = &table[axis - axis->comm->mesh.axis];
    MPI_Group all, some;
    if (*at == MPI_COMM_NULL) {
        DT_MPI(MPI_Comm_group(mpi->world, &all));
        DT_MPI(MPI_Group_incl(all, axis->size, axis->member, &some));
        DT_MPI(MPI_Comm_create_group(mpi->world, some, 0, at));
        DT_MPI(MPI_Group_free(&some));
        DT_MPI(MPI_Group_free(&all));
        DT_TRY(errors_return(*at));
    }
    *group = *at;
    return DT_OK;
}

/* ---- open, attach, close ----------------------------------------------------------------------------------------- */

static dt_err open_mpi(dt_comm *comm)
{
    struct dt_comm_mpi *mpi = comm->mpi;
    DT_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &mpi->world));
    DT_TRY(errors_return(mpi->world));
    DT_MPI(MPI_Comm_rank(mpi->world, &comm->rank));
    DT_MPI(MPI_Comm_size(mpi->world, &comm->nranks));
    DT_TRY(find_nodes(comm));
    DT_TRY(find_crowd(comm));
    DT_TRY(dt_comm_mesh(comm, &DT_MESH_FLAT));
    DT_TRY(dt_comm_vote_open(mpi));
    return dt_roll_open(comm);
}

static void free_tables(dt_comm *comm)
{
    dt_mesh_free(comm);
    free(comm->mpi->roll_hosts);
    free(comm->mpi->reported);
    free(comm->mpi);
    free(comm->neighbours);
    comm->mpi = NULL, comm->neighbours = NULL, comm->n_neighbours = 0;
}

dt_err dt_comm_open(dt_comm *comm)
{
    DT_EXPECT(comm);
    *comm = (dt_comm){.alone = comm->alone, .timeout_s = 1800};
    int begun = 0, over = 0, provided = MPI_THREAD_SINGLE;
    MPI_Initialized(&begun);
    MPI_Finalized(&over);
    DT_CHECK(begun && !over, DT_ERR_COMM, "internal: dt_comm_open: MPI is %s",
             over ? "already finalised" : "not initialised");
    MPI_Query_thread(&provided);
    comm->threads = provided >= MPI_THREAD_MULTIPLE;
    if (gethostname(comm->host, sizeof comm->host - 1) != 0) strcpy(comm->host, "unknown");
    DT_ALLOC(comm->mpi, 1, "out of memory for a communicator");
    *comm->mpi = (struct dt_comm_mpi){.world = MPI_COMM_NULL,
                                      .node = MPI_COMM_NULL,
                                      .roll = MPI_COMM_NULL,
                                      .vote_op = MPI_OP_NULL,
                                      .vote_type = MPI_DATATYPE_NULL,
                                      .failed_rank = -1,
                                      .max_message = (size_t)1 << 30};
    for (int i = 0; i < DT_N_AXES; i++) comm->mpi->group[i] = comm->mpi->check[i] = MPI_COMM_NULL;
    const dt_err err = open_mpi(comm);
    if (err) free_tables(comm); /* MPI's handles are leaked: freeing them is collective */
    return err;
}

/* ---- the transport ----------------------------------------------------------------------------------------------- */

/* Tests replace CUDA by a simulator, which has its own NCCL. */
static const dt_comm_ops *load_nccl(char *why, size_t why_size)
{
    const char *device = getenv("DTRAIN_DEVICE");
    bool stale;
    char file[64] = "libdtrain_nccl.so";
    if (device && !strncmp(device, "cudasim", 7)) snprintf(file, sizeof file, "libdtrain_%.40s.so", device);
    return dt_object_symbol(file, "dt_comm_nccl_ops", &stale, why, why_size);
}

/* On a counting device, used for plans, a counted transport replaces nccl, whether or not nccl is available. */
static const dt_comm_ops *find_nccl(const dt_device *dev, int max_sharing, char *why, size_t why_size)
{
    const char *device = dev->ops ? dev->ops->name : "none";
    if (strcmp(device, "cuda") != 0)
        snprintf(why, why_size, "nccl needs GPUs, but the device is %s; use mpi", device);
    else if (max_sharing > 1)
        snprintf(why, why_size, "NCCL needs a GPU for each rank, but %d ranks share one; use mpi", max_sharing);
    else if (dev->ops == &dt_device_count_ops)
        return &dt_comm_count_ops;
    else
        return load_nccl(why, why_size);
    return NULL;
}

/* A MIG instance is a device, but has the PCI address of its GPU. NCCL up to 2.30 identifies GPUs by address and
 * rejects two instances as duplicates. A user who requests nccl may have a newer version, or one instance on each of
 * several GPUs. */
static bool may_be_refused(const dt_device *dev, char *why, size_t why_size)
{
    const char *name = dev->ops->chip_name ? dev->ops->chip_name(dev) : NULL;
    if (!dt_chip_is_part(name)) return false;
    snprintf(why, why_size, "NCCL may refuse two partitions of one GPU (MIG), and this device is %s; use mpi", name);
    return true;
}

/* Return the transport, or NULL with the reason in `why`. With auto, `why` explains why nccl is not used. */
static const dt_comm_ops *choose(const char *backend, const dt_device *dev, int nranks, int max_sharing, char *why,
                                 size_t why_size)
{
    const bool is_auto = strcmp(backend, "auto") == 0;
    *why = '\0';
    if (strcmp(backend, "mpi") == 0 || (is_auto && nranks == 1)) return &dt_comm_mpi_ops;
    if (!is_auto && strcmp(backend, "nccl") != 0) {
        snprintf(why, why_size, "expected auto, mpi or nccl, found %s", backend);
        return NULL;
    }
    const dt_comm_ops *nccl = find_nccl(dev, max_sharing, why, why_size);
    if (nccl && is_auto && may_be_refused(dev, why, why_size)) nccl = NULL;
    return nccl || !is_auto ? nccl : &dt_comm_mpi_ops;
}

dt_err dt_comm_has_backend(const char *backend, const dt_device *dev)
{
    char why[512];
    DT_CHECK(choose(backend, dev, 1, 1, why, sizeof why), DT_ERR_USAGE, "%s", why);
    return DT_OK;
}

/* A single rank sends to itself, so that one GPU tests the whole transport. */
size_t dt_nccl_staging_of(int nranks)
{
    enum { USUAL = 64 << 20, MIN_BLOCK = 256 << 10 };
    const int n = nranks > 1 ? nranks - 1 : 1;
    const size_t least = (size_t)n * MIN_BLOCK;
    return least > USUAL ? least : USUAL;
}

dt_memory dt_comm_plan(const char *backend, const dt_device *dev, const dt_comm_shape *shape)
{
    char why[512];
    dt_memory memory = {0};
    const dt_comm_ops *ops = choose(backend, dev, shape->nranks, shape->max_sharing, why, sizeof why);
    if (!ops || ops == &dt_comm_mpi_ops) return dt_comm_mpi_plan(shape, dev->ops->host_accessible);
    memory.at[DT_MEM_STAGING][DT_ON_DEVICE] = dt_nccl_staging_of(shape->nranks);
    return memory;
}

/* If reductions first sum inside a node, every rank sends its neighbours blocks for all nodes, and each node one
 * sum. */
dt_sent dt_comm_sent(const char *backend, const dt_device *dev, const dt_comm_shape *shape, bool ordered,
                     const dt_traffic *traffic)
{
    char why[512];
    const dt_comm_ops *ops = choose(backend, dev, shape->nranks, shape->max_sharing, why, sizeof why);
    const bool by_mpi = !ops || ops == &dt_comm_mpi_ops;
    const double n = dt_mesh_sum(&shape->mesh, shape->nranks),
                 near = dt_min_i64(dt_max_i64(1, dt_mesh_sum(&shape->mesh, shape->ranks_per_node)), (int64_t)n),
                 n_nodes = ceil(n / near);
    const bool in_nodes = near > 1 && n_nodes > 1 && near * n_nodes == n && (shape->shared_memory || !by_mpi);
    dt_sent sent = {(near - 1) * traffic->reduced_bytes, (n - near) * traffic->reduced_bytes};
    if (in_nodes && !ordered)
        sent = (dt_sent){(near - 1) * n_nodes * traffic->reduced_bytes,
                         (n_nodes - 1) * (double)sizeof(float) * traffic->reduced_elems};
    dt_sent gathers = {near - 1, n - near};
    if (shape->mesh.by_node)
        gathers.between = 0;
    else if (!by_mpi) /* a ring: data leaves each node once */
        gathers = (dt_sent){(n - 1) * (n - n_nodes) / n, n_nodes > 1 ? (n - 1) * n_nodes / n : 0};
    else if (in_nodes)
        gathers = (dt_sent){(near - 1) * n_nodes, n_nodes - 1};
    if (n_nodes == 1) gathers.within = n - 1;
    sent.within += gathers.within * traffic->gathered_bytes;
    sent.between += gathers.between * traffic->gathered_bytes;
    if (shape->mesh.by_node) sent.between += (n_nodes - 1) * traffic->replicated_bytes;
    return sent;
}

/* Do all ranks have NCCL? Otherwise why is the reason of the first rank without it. */
static dt_err all_have_nccl(dt_comm *comm, bool have, char *why, size_t why_size, bool *all)
{
    char own[512];
    int64_t first = have ? comm->nranks : comm->rank;
    DT_TRY(dt_comm_reduce_host_i64(dt_comm_all(comm), &first, 1, DT_MIN));
    *all = first == comm->nranks;
    if (*all || first == 0) return DT_OK; /* rank 0 prints it */
    snprintf(own, sizeof own, "rank %d on host %s: %.400s", comm->rank, comm->host, why);
    DT_TRY(dt_comm_broadcast_host(comm, own, sizeof own, (int)first));
    snprintf(why, why_size, "%s", own);
    return DT_OK;
}

/* All ranks choose the same transport: with auto, nccl if all have it. */
static dt_err choose_together(dt_comm *comm, const char *backend, const dt_comm_ops **ops)
{
    char why[512];
    bool all = true;
    *ops = choose(backend, comm->dev, comm->nranks, comm->max_sharing, why, sizeof why);
    DT_TRY(dt_comm_agree(comm, *ops ? DT_OK : dt_fail(DT_ERR_USAGE, "comm.backend = %s: %s", backend, why)));
    if (strcmp(backend, "auto") != 0) return DT_OK;
    DT_TRY(all_have_nccl(comm, *ops != &dt_comm_mpi_ops, why, sizeof why, &all));
    if (!all) *ops = &dt_comm_mpi_ops;
    const bool on_gpus = comm->nranks > 1 && strcmp(comm->dev->ops->name, "cuda") == 0;
    dt_log(on_gpus ? DT_LOG_INFO : DT_LOG_DEBUG, "comm.backend = auto: %s%s%s", (*ops)->name,
           on_gpus && *why ? ": " : "", on_gpus ? why : "");
    return DT_OK;
}

dt_err dt_comm_attach(dt_comm *comm, dt_device *dev, const char *backend, bool shared_memory)
{
    DT_EXPECT(comm && comm->mpi && dev && dev->ops && backend);
    DT_EXPECT(!comm->ops);
    const dt_comm_ops *ops = NULL;
    if (comm->n_sharing == 0) DT_TRY(dt_comm_find_devices(comm, dev));
    comm->dev = dev;
    comm->use_shared_memory = shared_memory;
    dt_err err = choose_together(comm, backend, &ops);
    if (err == DT_OK) {
        err = ops->open(comm);
        comm->mpi->apart = err != DT_OK && !dt_comm_failed_together(comm);
    }
    if (err) {
        comm->dev = NULL;
        return err;
    }
    comm->ops = ops;
    atomic_store(&comm->attached, true);
    return DT_OK;
}

dt_err dt_comm_poll(const dt_comm *comm)
{
    if (dt_device_failure()) return DT_OK; /* the thread that detected the failure ends the run and reports it */
    return atomic_load(&comm->attached) && comm->ops->poll ? comm->ops->poll(comm) : DT_OK;
}

char *dt_comm_where(const dt_comm *comm, char *out, size_t out_size)
{
    const int n = snprintf(out, out_size, "collective %lld", (long long)atomic_load(&comm->sequence));
    if (atomic_load(&comm->attached) && comm->ops->where) comm->ops->where(comm, out + n, out_size - (size_t)n);
    return out;
}

/* A rank that has issued fewer collectives than the others is detected here at the latest. */
static void check_end(dt_comm *comm)
{
    if (!comm->check || comm->mpi->differ) return;
    if (dt_comm_next(comm, &(dt_collective){.kind = "the end", .root = -1}) != DT_OK && dt_comm_prints_error(comm))
        dt_log(DT_LOG_ERROR, "%s", dt_error_message());
}

void dt_comm_close(dt_comm *comm)
{
    if (comm && comm->counts) free(comm->mesh.world.messages), *comm = (dt_comm){0};
    if (!comm || !comm->mpi) return;
    check_end(comm);
    if (comm->ops) comm->ops->close(comm);
    dt_comm_vote_close(comm->mpi);
    if (comm->mpi->roll != MPI_COMM_NULL) MPI_Comm_free(&comm->mpi->roll);
    for (int i = 0; i < DT_N_AXES; i++) {
        if (comm->mpi->group[i] != MPI_COMM_NULL) MPI_Comm_free(&comm->mpi->group[i]);
        if (comm->mpi->check[i] != MPI_COMM_NULL) MPI_Comm_free(&comm->mpi->check[i]);
    }
    if (comm->mpi->node != MPI_COMM_NULL) MPI_Comm_free(&comm->mpi->node);
    if (comm->mpi->world != MPI_COMM_NULL) MPI_Comm_free(&comm->mpi->world);
    free_tables(comm);
    *comm = (dt_comm){0};
}
