/* neighbours.h - detects stopped ranks on the same host. Every rank's watchdog wakes up several times per comm.timeout.
 * A process without any context switch in that time is stopped or suspended, and cannot report this itself. */
#ifndef DTRAIN_SRC_PROCESS_NEIGHBOURS_H
#define DTRAIN_SRC_PROCESS_NEIGHBOURS_H

#include "dtrain/comm/comm.h"

typedef struct neighbours {
    dt_neighbour *list; /* [n] */
    int64_t *switches;  /* [n] context switches at the last check, -1: unknown */
    int n;
    double looked_s; /* time of the last check, 0: never */
} neighbours;

/** Record the ranks of comm on this host; comm may be closed afterwards. If out of memory, the list is empty. Local. */
void neighbours_open(neighbours *all, const dt_comm *comm);
void neighbours_close(neighbours *all);
void neighbours_look(neighbours *all);
/** Ranks that have not run since the last check: "; rank 2 on this host has not run for at least 9 s: its process 4711
 *  is stopped"; "" if all have run. Returns out. */
char *neighbours_missing(const neighbours *all, char *out, size_t out_size);
/** State and start time (in ticks since boot) of a process. False: it does not exist, or /proc is not available. */
bool process_stat(long long pid, char *state, long long *start);

#endif
