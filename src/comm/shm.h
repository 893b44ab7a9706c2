/* shm.h - a staging area per rank in memory shared by the ranks of a node, and the steps in which they fill and read
 * it.
 *
 * Steps are numbered from 1 and never start again, so a flag only grows. Each rank has two slots, used in turn. In step
 * t a rank fills its slot t%2 and publishes t; the others read it and, when done, declare t consumed. A slot is filled
 * again (t + 2) once all have consumed t. */
#ifndef DTRAIN_COMM_SHM_H
#define DTRAIN_COMM_SHM_H

#include "internal.h"

typedef struct dt_shm_flags dt_shm_flags;

typedef struct dt_shm {
    int me, n;               /* local_rank, local_nranks; n == 1: no window, no waiting */
    size_t slot_nbytes;      /* of a step, with and without a window */
    unsigned long long step; /* steps finished */
    int spins, yields;       /* turns of the wait before the processor is given up, and before it sleeps */
    dt_shm_flags **flags;    /* [n] */
    char **slots;            /* [n] two slots each */
    char **segments;         /* [n] what is mapped */
    int fd;                  /* of this rank's segment while it has a name, else -1 */
    MPI_Comm progress;       /* where messages to other nodes may be on their way while we wait; MPI_COMM_NULL: none */
    size_t window_nbytes;    /* this rank's share */
} dt_shm;

/** What a collective does in one step. slot is NULL when there is no window. consume reads what peers published by
 *  dt_shm_peer. */
typedef dt_err (*dt_shm_fill)(void *arg, int64_t step, char *slot);
typedef dt_err (*dt_shm_consume)(void *arg, int64_t step);

/** Bytes of a rank's share of the window. */
size_t dt_shm_window_nbytes(size_t slot_nbytes);

/** Make and map the segments of this node's ranks. *opened false, and a warning: some rank of any node could not (no
 *  room in /dev/shm, another container): all then exchange by messages. Collective over all ranks, agreed. */
dt_err dt_shm_open(dt_shm *shm, dt_comm *comm, size_t slot_nbytes, bool *opened);
void dt_shm_close(dt_shm *shm); /* local; safe on {.n = 1} */

/** Run steps 0 .. n_steps-1: fill(i + 1) comes before consume(i), so that ranks copy in while others still add.
 *  Collective over the node. */
dt_err dt_shm_run(dt_shm *shm, int64_t n_steps, dt_shm_fill fill, dt_shm_consume consume, void *arg);

/** Inside consume(step): wait until local rank l has published it; its slot. */
const char *dt_shm_peer(const dt_shm *shm, int l, int64_t step);

#endif
