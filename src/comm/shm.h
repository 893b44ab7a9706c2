/* shm.h - one staging area per rank in shared memory of a node, and the steps in which ranks fill and read them.
 *
 * Steps are numbered from 1 and never restart, so a flag only increases. Each rank has two slots, used in turn. In step
 * t a rank fills its slot t%2 and publishes t. The others read it and then declare t consumed. A slot is refilled (t +
 * 2) once all have consumed t. */
#ifndef DTRAIN_COMM_SHM_H
#define DTRAIN_COMM_SHM_H

#include "internal.h"

typedef struct dt_shm {
    int me, n;               /* local_rank and local_size of its axis; n == 1: no window, no waiting */
    size_t slot_nbytes;      /* bytes per step, with and without a window */
    unsigned long long step; /* number of completed steps */
    int spins, yields;       /* iterations of a wait before yielding, and before sleeping */
    char **segments;         /* [n] mapped: flags, then two slots */
    MPI_Comm progress;       /* communicator whose messages may be in flight during a wait; MPI_COMM_NULL: none */
    size_t window_nbytes;    /* size of this rank's share */
} dt_shm;

/** The work of a collective in one step. slot is NULL without a window. consume reads data of other ranks by
 *  dt_shm_peer. */
typedef dt_err (*dt_shm_fill)(void *arg, int64_t step, char *slot);
typedef dt_err (*dt_shm_consume)(void *arg, int64_t step);

/** Bytes of a rank's share of the window. */
size_t dt_shm_window_nbytes(size_t slot_nbytes);

/** Create and map the segments of the axis' members on this node. *opened false, with a warning, if some rank of any
 *  node failed (no memory, another container); all ranks then exchange messages. Collective over all ranks, agreed. */
dt_err dt_shm_open(dt_shm *shm, const dt_axis *axis, size_t slot_nbytes, bool *opened);
void dt_shm_close(dt_shm *shm); /* local; safe on {.n = 1} */

/** Run steps 0 .. n_steps-1. fill(i + 1) runs before consume(i), so that ranks copy in while others still add.
 *  Collective over the node. */
dt_err dt_shm_run(dt_shm *shm, int64_t n_steps, dt_shm_fill fill, dt_shm_consume consume, void *arg);

/** In consume(step): wait until local rank l has published the step. Returns its slot. */
const char *dt_shm_peer(const dt_shm *shm, int l, int64_t step);

#endif
