/* neighbours.h - do the other ranks on this host run? Each has a watchdog that wakes up several times in comm.timeout,
 * so a process whose threads were never switched to in between is stopped or suspended. Such a rank can say nothing. */
#ifndef DTRAIN_SRC_PROCESS_NEIGHBOURS_H
#define DTRAIN_SRC_PROCESS_NEIGHBOURS_H

#include "dtrain/comm/comm.h"

typedef struct neighbours {
    dt_neighbour *list; /* [n] */
    int64_t *switches;  /* [n] context switches at the last look, -1: unknown */
    int n;
    double looked_s; /* when that was, 0: never */
} neighbours;

/** Of comm, which may then be closed. Without memory for them there are none. Local. */
void neighbours_open(neighbours *all, const dt_comm *comm);
void neighbours_close(neighbours *all);
void neighbours_look(neighbours *all);
/** Since then: "; rank 2 on this host has not run for at least 9 s: its process 4711 is stopped", "" if all have run.
 *  Returns out. */
char *neighbours_missing(const neighbours *all, char *out, size_t out_size);

#endif
