/* shm.c - collectives through shared memory.
 *
 * Waiting. A rank waits for flags that only one other rank writes, each in its own cache line: no lock, no
 * read-modify-write. With a core for every thread a flag changes within microseconds, so spinning is fastest. With more
 * ranks than cores, spinning would keep the awaited rank from running, so the rank yields immediately. In both cases a
 * long wait continues in short sleeps, so that waiting for a slow rank costs nothing.
 *
 * Between nodes, a message may progress only while its sender is inside MPI. A rank that waits for a neighbour
 * therefore calls MPI from time to time. Otherwise two nodes could wait for each other forever. */
#include "shm.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 64, HEADER = 4096, N_SLOTS = 2, SLEEP_NS = 20000, SEGMENT_NAME = 512 };
#define PREFIX "dtrain-"
/* stored after the flags; with the name, it identifies a segment of dtrain */
static const char MAGIC[16] = "dtrain segment 1";
enum { MAGIC_AT = HEADER - sizeof MAGIC };

typedef struct segment_id {
    long pid;
    unsigned long long nonce;
} segment_id;

struct dt_shm_flags {
    atomic_ullong published;
    char pad0[LINE - sizeof(atomic_ullong)];
    atomic_ullong consumed;
    char pad1[LINE - sizeof(atomic_ullong)];
};

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
            if (l != shm->me) wait_until(shm, &shm->flags[l]->consumed, step - N_SLOTS);
    return shm->slots[shm->me] + step % N_SLOTS * shm->slot_nbytes;
}

const char *dt_shm_peer(const dt_shm *shm, int l, int64_t step)
{
    const unsigned long long number = shm->step + (unsigned long long)step + 1;
    wait_until(shm, &shm->flags[l]->published, number);
    return shm->slots[l] + number % N_SLOTS * shm->slot_nbytes;
}

dt_err dt_shm_run(dt_shm *shm, int64_t n_steps, dt_shm_fill fill, dt_shm_consume consume, void *arg)
{
    dt_shm_flags *mine = shm->n > 1 ? shm->flags[shm->me] : NULL;
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

/* Each rank creates its own segment, so that its pages are local, and reserves all pages. If /dev/shm is too small (64
 * MiB in a container), this gives an error here instead of a signal later. The segment is unlinked immediately after
 * the ranks of the node have mapped it, so a killed job leaves nothing. Until then its creator holds a lock on it,
 * which ends with the process. */

static const char *segment_dir(void)
{
    const char *asked = getenv("DTRAIN_SHM_DIR"); /* for tests */
    return asked && *asked ? asked : "/dev/shm";
}

static bool segment_name(char out[SEGMENT_NAME], const segment_id *id)
{
    return snprintf(out, SEGMENT_NAME, "%s/" PREFIX "%ld-%016llx", segment_dir(), id->pid, id->nonce) < SEGMENT_NAME;
}

/* Does the name have exactly the form of segment_name? */
static bool is_segment_name(const char *name)
{
    const size_t prefix = strlen(PREFIX);
    if (strncmp(name, PREFIX, prefix) != 0) return false;
    const size_t digits = strspn(name + prefix, "0123456789");
    const char *nonce = name + prefix + digits;
    return digits > 0 && *nonce == '-' && strspn(nonce + 1, "0123456789abcdef") == 16 && nonce[17] == '\0';
}

/* Is it a segment of this user that is old enough? A young one may not be locked yet. */
static bool is_old_segment(int fd)
{
    enum { YOUNG_S = 60 };
    struct stat st;
    char magic[sizeof MAGIC];
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || time(NULL) - st.st_mtime <= YOUNG_S)
        return false;
    return pread(fd, magic, sizeof magic, MAGIC_AT) == (ssize_t)sizeof magic && memcmp(magic, MAGIC, sizeof magic) == 0;
}

/* Remove segments that killed jobs of this user left: no process holds their locks. */
static void remove_stale_segments(void)
{
    DIR *d = opendir(segment_dir());
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!is_segment_name(e->d_name)) continue;
        const int fd = openat(dirfd(d), e->d_name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0) continue;
        if (is_old_segment(fd) && flock(fd, LOCK_EX | LOCK_NB) == 0) unlinkat(dirfd(d), e->d_name, 0);
        close(fd);
    }
    if (d) closedir(d);
}

static dt_err fail_segment(const char *name, const char *what, int number)
{
    return dt_fail(DT_ERR_MEMORY, "%s: %s: %s", name, what, strerror(number));
}

/* Reserve all pages, and require as much free space again, for MPI: it fills its own segments later. */
static dt_err reserve_segment(int fd, size_t nbytes)
{
    struct statvfs disk;
    char need[24], left[24];
    const int number = posix_fallocate(fd, 0, (off_t)nbytes);
    const bool known = fstatvfs(fd, &disk) == 0 && disk.f_blocks > 0;
    const double room = known ? (double)disk.f_bavail * (double)disk.f_frsize : 0;
    DT_CHECK(!number && (!known || room >= (double)nbytes), DT_ERR_MEMORY,
             "not enough space in %s: %s of shared memory needed, %s left%s%s", segment_dir(),
             dt_format_bytes((double)nbytes, need), dt_format_bytes(room, left), number && number != ENOSPC ? ": " : "",
             number && number != ENOSPC ? strerror(number) : "");
    return DT_OK;
}

static dt_err map_segment(int fd, const char *name, size_t nbytes, char **base)
{
    void *at = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return fail_segment(name, "cannot be mapped", errno);
    *base = at;
    return DT_OK;
}

static dt_err make_segment(dt_shm *shm, segment_id *mine)
{
    char name[SEGMENT_NAME];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *mine =
        (segment_id){.pid = (long)getpid(),
                     .nonce = dt_mix64((uint64_t)now.tv_nsec ^ dt_mix64((uint64_t)now.tv_sec + (uint64_t)getpid()))};
    DT_CHECK(segment_name(name, mine), DT_ERR_MEMORY, "%s: the name is too long", segment_dir());
    shm->fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (shm->fd < 0) return fail_segment(name, "cannot be created", errno);
    dt_err err = flock(shm->fd, LOCK_SH) == 0 ? DT_OK : fail_segment(name, "cannot be locked", errno);
    /* written before the space is reserved, so that a killed job leaves a recognisable file; without any space the
     * reservation reports the error */
    if (err == DT_OK && pwrite(shm->fd, MAGIC, sizeof MAGIC, MAGIC_AT) < 0 && errno != ENOSPC)
        err = fail_segment(name, "cannot be written", errno);
    if (err == DT_OK) err = reserve_segment(shm->fd, shm->window_nbytes);
    if (err == DT_OK) err = map_segment(shm->fd, name, shm->window_nbytes, &shm->segments[shm->me]);
    /* except for the magic, the header is new and therefore zero */
    if (err == DT_OK) memset(shm->segments[shm->me] + HEADER, 0, shm->window_nbytes - HEADER);
    return err;
}

static dt_err map_peer(dt_shm *shm, int l, const segment_id *id)
{
    char name[SEGMENT_NAME];
    struct stat st;
    segment_name(name, id);
    const int fd = open(name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return fail_segment(name, "the shared memory of a rank on this node cannot be opened", errno);
    const bool whole = fstat(fd, &st) == 0 && st.st_size == (off_t)shm->window_nbytes && st.st_uid == geteuid();
    const dt_err err = whole ? map_segment(fd, name, shm->window_nbytes, &shm->segments[l])
                             : dt_fail(DT_ERR_MEMORY, "%s: not the shared memory of a rank of this run", name);
    close(fd);
    return err;
}

/* ids: of all ranks of the node. */
static dt_err map_peers(dt_shm *shm, const dt_axis *axis, const segment_id *ids)
{
    DT_TRY(dt_fault("shm.map"));
    for (int l = 0; l < shm->n; l++) {
        const int r = axis->member[dt_axis_at(axis, axis->node, l)];
        if (l != shm->me) DT_TRY(map_peer(shm, l, &ids[axis->comm->mesh.world.local_of[r]]));
    }
    for (int l = 0; l < shm->n; l++) {
        shm->flags[l] = (dt_shm_flags *)(void *)shm->segments[l];
        shm->slots[l] = shm->segments[l] + HEADER;
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
    if (comm->n_nodes > 1) shm->progress = comm->mpi->world;
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers */
    shm->flags = calloc((size_t)shm->n, sizeof *shm->flags);
    shm->slots = calloc((size_t)shm->n, sizeof *shm->slots);
    shm->segments = calloc((size_t)shm->n, sizeof *shm->segments);
    DT_CHECK(shm->flags && shm->slots && shm->segments, DT_ERR_MEMORY,
             "out of memory for the table of %d ranks of this node", shm->n);
    if (comm->local_rank == 0) remove_stale_segments();
    DT_TRY(dt_fault("shm.make"));
    return make_segment(shm, mine);
}

/* Unlink the segment, whether or not it was mapped. */
static void unlink_segment(dt_shm *shm, const segment_id *mine)
{
    char name[SEGMENT_NAME];
    if (shm->fd < 0) return;
    if (segment_name(name, mine)) unlink(name);
    close(shm->fd);
    shm->fd = -1;
}

/* Agree on whether every rank succeeded. A failure is not an error here: without shared memory ranks exchange messages.
 * The first failed rank reports its reason. */
static dt_err all_succeeded(dt_comm *comm, dt_err mine, bool *all)
{
    int64_t first = mine == DT_OK ? INT64_MAX : comm->rank;
    DT_TRY(dt_comm_reduce_host_i64(comm, &first, 1, DT_MIN));
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
    segment_id mine = {0}, *ids = calloc((size_t)comm->local_nranks, sizeof *ids);
    *shm = (dt_shm){.n = 1,
                    .progress = MPI_COMM_NULL,
                    .slot_nbytes = slot_nbytes,
                    .fd = -1,
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
    unlink_segment(shm, &mine);
    free(ids);
    if (agreed != DT_OK || !*opened) dt_shm_close(shm);
    return agreed;
}

void dt_shm_close(dt_shm *shm)
{
    for (int l = 0; shm->segments && l < shm->n; l++)
        if (shm->segments[l]) munmap(shm->segments[l], shm->window_nbytes);
    free(shm->flags);
    free(shm->slots);
    free(shm->segments);
    *shm = (dt_shm){.n = 1, .fd = -1, .progress = MPI_COMM_NULL, .slot_nbytes = shm->slot_nbytes};
}
