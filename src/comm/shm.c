/* shm.c - collectives through shared memory.
 *
 * Waiting. A rank waits for flags that only one other rank writes, each in its own cache line: no lock, no
 * read-modify-write. With a core for every thread a flag changes within microseconds, so spinning is fastest. With more
 * ranks than cores, spinning would keep the awaited rank from running, so the rank yields immediately. In both cases a
 * rank that waits for long sleeps for short intervals, so that waiting for a slow rank costs no processor time.
 *
 * Between nodes, a message may progress only while its sender is inside MPI. A rank that waits for a neighbour
 * therefore calls MPI from time to time. Otherwise two nodes could wait for each other forever. */
#include "shm.h"
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 64, HEADER = 4096, N_SLOTS = 2, SLEEP_NS = 20000 };

/* At the start of a segment. */
typedef struct flags {
    atomic_ullong published;
    char pad0[LINE - sizeof(atomic_ullong)];
    atomic_ullong consumed;
    char pad1[LINE - sizeof(atomic_ullong)];
} flags;

static flags *flags_of(const dt_shm *shm, int l) { return (flags *)(void *)shm->segments[l]; }
static char *slot_of(const dt_shm *shm, int l, unsigned long long step)
{
    return shm->segments[l] + HEADER + step % N_SLOTS * shm->slot_nbytes;
}

static void pause_core(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/** Let MPI progress pending messages. An error is reported by the call that waits for the message. */
static void progress_messages(const dt_shm *shm)
{
    int waiting;
    if (shm->progress != MPI_COMM_NULL)
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, shm->progress, &waiting, MPI_STATUS_IGNORE);
}

static void wait_until(const dt_shm *shm, atomic_ullong *flag, unsigned long long step)
{
    for (int turn = 0; atomic_load_explicit(flag, memory_order_acquire) < step; turn++) {
        if (turn < shm->spins) {
            pause_core();
        } else if (turn < shm->spins + shm->yields) {
            progress_messages(shm);
            sched_yield();
        } else {
            progress_messages(shm);
            nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
            turn--; /* remains in this state, without overflow */
        }
    }
}

static char *own_slot(const dt_shm *shm, unsigned long long step)
{
    if (shm->n == 1) return NULL;
    if (step > N_SLOTS)
        for (int l = 0; l < shm->n; l++)
            if (l != shm->me) wait_until(shm, &flags_of(shm, l)->consumed, step - N_SLOTS);
    return slot_of(shm, shm->me, step);
}

const char *dt_shm_peer(const dt_shm *shm, int l, int64_t step)
{
    const unsigned long long number = shm->step + (unsigned long long)step + 1;
    wait_until(shm, &flags_of(shm, l)->published, number);
    return slot_of(shm, l, number);
}

dt_err dt_shm_run(dt_shm *shm, int64_t n_steps, dt_shm_fill fill, dt_shm_consume consume, void *arg)
{
    flags *mine = shm->n > 1 ? flags_of(shm, shm->me) : NULL;
    for (int64_t i = 0; i <= n_steps && n_steps > 0; i++) {
        const unsigned long long number = shm->step + (unsigned long long)i; /* of the step to consume */
        if (i < n_steps) {
            DT_TRY(fill(arg, i, own_slot(shm, number + 1)));
            if (mine) atomic_store_explicit(&mine->published, number + 1, memory_order_release);
        }
        if (i > 0) {
            DT_TRY(consume(arg, i - 1));
            if (mine) atomic_store_explicit(&mine->consumed, number, memory_order_release);
        }
    }
    shm->step += (unsigned long long)n_steps;
    return DT_OK;
}

size_t dt_shm_window_nbytes(size_t slot_nbytes) { return HEADER + N_SLOTS * slot_nbytes; }

/* ---- segments ---------------------------------------------------------------------------------------------------- */

/* Each rank creates its own segment, so that its pages are local, and reserves all pages. Too little memory is then an
 * error here and not a signal later. The segment is a file in memory without a name: other ranks open it through /proc,
 * and it ends with the processes that map it. */

/** How other ranks of the node find a segment. The inode verifies that a process id identifies the same process for
 *  them. */
typedef struct segment_id {
    int64_t pid, inode;
    int fd; /* -1: none */
} segment_id;

static dt_err map_segment(int fd, size_t nbytes, char **base)
{
    void *at = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    DT_CHECK_ERRNO(at != MAP_FAILED, DT_ERR_MEMORY, "shared memory", "cannot be mapped");
    *base = at;
    return DT_OK;
}

static dt_err make_segment(dt_shm *shm, segment_id *mine)
{
    struct stat st;
    char need[24];
    mine->fd = memfd_create("dtrain", MFD_CLOEXEC);
    DT_CHECK_ERRNO(mine->fd >= 0 && fstat(mine->fd, &st) == 0, DT_ERR_MEMORY, "shared memory", "cannot be created");
    mine->pid = getpid(), mine->inode = (int64_t)st.st_ino;
    const int number = posix_fallocate(mine->fd, 0, (off_t)shm->window_nbytes);
    DT_CHECK(number == 0, DT_ERR_MEMORY, "not enough memory: %s of shared memory needed: %s",
             dt_format_bytes((double)shm->window_nbytes, need), strerror(number));
    DT_TRY(map_segment(mine->fd, shm->window_nbytes, &shm->segments[shm->me]));
    memset(shm->segments[shm->me], 0, shm->window_nbytes);
    return DT_OK;
}

static dt_err map_peer(dt_shm *shm, int l, const segment_id *id)
{
    char name[64];
    struct stat st;
    snprintf(name, sizeof name, "/proc/%lld/fd/%d", (long long)id->pid, id->fd);
    const int fd = open(name, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    DT_CHECK_ERRNO(fd >= 0, DT_ERR_MEMORY, name, "the shared memory of a rank on this node cannot be opened");
    const bool same = fstat(fd, &st) == 0 && (int64_t)st.st_ino == id->inode && st.st_size == (off_t)shm->window_nbytes;
    const dt_err err = same ? map_segment(fd, shm->window_nbytes, &shm->segments[l])
                            : dt_fail(DT_ERR_MEMORY, "%s: not the shared memory of a rank of this run", name);
    close(fd);
    return err;
}

static dt_err map_peers(dt_shm *shm, const dt_axis *axis, const segment_id *ids)
{
    DT_TRY(dt_fault("shm.map"));
    for (int l = 0; l < shm->n; l++) {
        const int r = axis->member[dt_axis_at(axis, axis->node, l)];
        if (l != shm->me) DT_TRY(map_peer(shm, l, &ids[axis->comm->mesh.world.local_of[r]]));
    }
    return DT_OK;
}

static dt_err prepare(dt_shm *shm, const dt_axis *axis, segment_id *mine)
{
    const dt_comm *comm = axis->comm;
    shm->me = axis->local_rank;
    shm->n = axis->local_size;
    shm->spins = comm->mpi->cores_per_rank > 0 ? 1000 : 0;
    shm->yields = 200;
    if (comm->mesh.world.n_nodes > 1) shm->progress = comm->mpi->world;
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers */
    DT_ALLOC(shm->segments, shm->n, "out of memory for the table of %d ranks of this node", shm->n);
    DT_TRY(dt_fault("shm.make"));
    return make_segment(shm, mine);
}

/* Agree on whether every rank succeeded. A failure is not an error here: without shared memory ranks exchange messages.
 * The first failed rank reports its reason. */
static dt_err all_succeeded(dt_comm *comm, dt_err mine, bool *all)
{
    int64_t first = mine == DT_OK ? INT64_MAX : comm->rank;
    DT_TRY(dt_comm_reduce_host_i64(dt_comm_all(comm), &first, 1, DT_MIN));
    if (first == comm->rank)
        DT_WARN("%s; ranks of a node exchange data by messages instead, which is slower (comm.shared_memory = false "
                "selects this without a warning)",
                dt_error_message());
    if (mine != DT_OK) dt_error_clear();
    *all = first == INT64_MAX;
    return DT_OK;
}

dt_err dt_shm_open(dt_shm *shm, const dt_axis *axis, size_t slot_nbytes, bool *opened)
{
    dt_comm *comm = axis->comm;
    const bool alone = axis->local_size == 1;
    segment_id mine = {.fd = -1}, *ids = calloc((size_t)comm->local_nranks, sizeof *ids);
    *shm = (dt_shm){.n = 1,
                    .progress = MPI_COMM_NULL,
                    .slot_nbytes = slot_nbytes,
                    .window_nbytes = alone ? 0 : dt_shm_window_nbytes(slot_nbytes)};
    dt_err err = alone ? DT_OK : prepare(shm, axis, &mine);
    if (err == DT_OK && !ids)
        err = dt_fail(DT_ERR_MEMORY, "out of memory for the table of %d ranks of this node", comm->local_nranks);
    dt_err agreed = all_succeeded(comm, err, opened);
    if (agreed == DT_OK && *opened) {
        const int code =
            MPI_Allgather(&mine, (int)sizeof mine, MPI_BYTE, ids, (int)sizeof mine, MPI_BYTE, comm->mpi->node);
        if (code) agreed = dt_comm_mpi_fail(code, "exchange of shared memory names", __FILE__, __LINE__);
        if (agreed == DT_OK) agreed = all_succeeded(comm, alone ? DT_OK : map_peers(shm, axis, ids), opened);
    }
    if (mine.fd >= 0) close(mine.fd);
    free(ids);
    if (agreed != DT_OK || !*opened) dt_shm_close(shm);
    return agreed;
}

void dt_shm_close(dt_shm *shm)
{
    for (int l = 0; shm->segments && l < shm->n; l++)
        if (shm->segments[l]) munmap(shm->segments[l], shm->window_nbytes);
    free(shm->segments);
    *shm = (dt_shm){.n = 1, .progress = MPI_COMM_NULL, .slot_nbytes = shm->slot_nbytes};
}
