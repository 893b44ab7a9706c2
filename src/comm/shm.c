/* shm.c - why waiting looks as it does.
 *
 * A rank waits for flags that only one other rank writes, each in its own cache line: no lock, no read-modify-write. While there is a core for
 * every thread the flag turns within microseconds, so spinning wins. With more ranks than cores spinning would keep the awaited rank from
 * running: then the processor is offered at once. In both cases a long wait ends in short sleeps, so a rank that waits for a slow one costs
 * nothing. The watchdog thread needs no help from here: it ends the process.
 *
 * Between nodes a message may leave this rank only while it is inside MPI. A rank that waits for a neighbour therefore looks into MPI now and
 * then; otherwise two nodes could wait for each other through a message that its sender believes gone. */
#include "shm.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LINE = 64, HEADER = 4096, N_SLOTS = 2, SLEEP_NS = 20000 };

struct dt_shm_flags {
    atomic_ullong published;
    char pad0[LINE - sizeof(atomic_ullong)];
    atomic_ullong consumed;
    char pad1[LINE - sizeof(atomic_ullong)];
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/** Let MPI move what it holds. An error surfaces in the call that waits for the message. */
static void push_messages(const dt_shm *shm)
{
    int waiting;
    if (shm->progress != MPI_COMM_NULL) MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, shm->progress, &waiting, MPI_STATUS_IGNORE);
}

static void wait_until(const dt_shm *shm, atomic_ullong *flag, unsigned long long step)
{
    for (int turn = 0; atomic_load_explicit(flag, memory_order_acquire) < step; turn++) {
        if (turn < shm->spins) {
            relax();
        } else if (turn < shm->spins + shm->yields) {
            push_messages(shm);
            sched_yield();
        } else {
            push_messages(shm);
            nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
            turn--; /* stays here, and cannot overflow */
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

static dt_err map_peers(dt_shm *shm)
{
    for (int l = 0; l < shm->n; l++) {
        MPI_Aint nbytes;
        int unit;
        char *base = NULL;
        DT_MPI(MPI_Win_shared_query(shm->win, l, &nbytes, &unit, &base));
        DT_CHECK(base && (size_t)nbytes == shm->window_nbytes, DT_ERR_COMM,
                 "shared memory of local rank %d has %lld bytes instead of %zu", l, (long long)nbytes, shm->window_nbytes);
        shm->flags[l] = (dt_shm_flags *)(void *)base;
        shm->slots[l] = base + HEADER;
    }
    return DT_OK;
}

size_t dt_shm_window_nbytes(size_t slot_nbytes) { return HEADER + N_SLOTS * slot_nbytes; }

static dt_err open_window(dt_shm *shm, const dt_comm *comm)
{
    shm->window_nbytes = dt_shm_window_nbytes(shm->slot_nbytes);
    MPI_Info info;
    char *base = NULL;
    DT_MPI(MPI_Info_create(&info));
    DT_MPI(MPI_Info_set(info, "alloc_shared_noncontig", "true")); /* each rank's share on its own pages: near its owner */
    const int code = MPI_Win_allocate_shared((MPI_Aint)shm->window_nbytes, 1, info, comm->mpi->node, &base, &shm->win);
    MPI_Info_free(&info);
    DT_MPI(code);
    DT_MPI(MPI_Win_set_errhandler(shm->win, MPI_ERRORS_RETURN));
    DT_MPI(MPI_Win_lock_all(MPI_MODE_NOCHECK, shm->win));
    memset(base, 0, shm->window_nbytes); /* flags at 0, and the first touch by the owner */
    DT_TRY(map_peers(shm));
    DT_MPI(MPI_Win_sync(shm->win));
    DT_MPI(MPI_Barrier(comm->mpi->node));
    return DT_OK;
}

dt_err dt_shm_prepare(dt_shm *shm, const dt_comm *comm, bool shared, size_t slot_nbytes)
{
    *shm = (dt_shm){.n = 1, .win = MPI_WIN_NULL, .progress = MPI_COMM_NULL, .slot_nbytes = slot_nbytes};
    if (!shared || comm->local_nranks == 1) return DT_OK;
    shm->me = comm->local_rank;
    shm->n = comm->local_nranks;
    shm->spins = comm->mpi->cores_per_rank > 0 ? 1000 : 0;
    shm->yields = 200;
    if (comm->n_nodes > 1) shm->progress = comm->mpi->world;
    shm->flags = calloc((size_t)shm->n, sizeof *shm->flags);
    shm->slots = calloc((size_t)shm->n, sizeof *shm->slots);
    DT_CHECK(shm->flags && shm->slots, DT_ERR_MEMORY, "no memory for the table of %d ranks of this node", shm->n);
    return DT_OK;
}

dt_err dt_shm_open(dt_shm *shm, const dt_comm *comm) { return shm->n > 1 ? open_window(shm, comm) : DT_OK; }

void dt_shm_forget(dt_shm *shm)
{
    free(shm->flags);
    free(shm->slots);
    *shm = (dt_shm){.n = 1, .win = MPI_WIN_NULL, .progress = MPI_COMM_NULL};
}

void dt_shm_close(dt_shm *shm)
{
    if (shm->win != MPI_WIN_NULL && shm->n > 1) {
        MPI_Win_unlock_all(shm->win);
        MPI_Win_free(&shm->win);
    }
    dt_shm_forget(shm);
}
