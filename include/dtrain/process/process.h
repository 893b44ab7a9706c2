/* process.h - per-process services: watchdog, signals, run lock, timeline. */
#ifndef DTRAIN_PROCESS_H
#define DTRAIN_PROCESS_H

#include "dtrain/comm/comm.h"

typedef struct dt_watchdog dt_watchdog;
/** Start a thread that ends the job with exit code 76 if the phase does not change for timeout_s seconds, after every
 *  rank has logged its phase. Time in which this process was stopped does not count. Local.
 *
 *  w            out  stopped with dt_watchdog_stop; unchanged on error
 *  phase, comm  borrowed until then
 *
 *  DT_ERR_MEMORY; DT_ERR_FAULT: no thread. */
dt_err dt_watchdog_start(dt_watchdog **w, const dt_phase *phase, const dt_comm *comm, double timeout_s);
/** Start a watchdog for the end of a program, where a rank may wait for one that was stopped or whose GPU driver hangs.
 *  Its timeout is comm->timeout_s, at least 30 s. comm: used during this call only. Local. NULL: it could not be
 *  started. */
dt_watchdog *dt_watchdog_of_closing(const dt_comm *comm);
/** End the thread and free the watchdog. Local. Safe if *w is NULL; leaves NULL. */
void dt_watchdog_stop(dt_watchdog **w);

typedef struct dt_lock dt_lock;
/** Take DIR/run.lock. If a run on another host holds it, wait until that run is certainly dead, at most 35 s.
 *  Collective, agreed.
 *
 *  lock   out  released with dt_lock_release; NULL on ranks other than 0
 *  force  take it from any holder
 *
 *  DT_ERR_USAGE: another run is alive (names it), or run.lock cannot be read. DT_ERR_WRITE. */
dt_err dt_lock_take(dt_lock **lock, dt_comm *comm, const char *dir, bool force, dt_phase *phase);
/** State of a directory's lock. LEFT: the lock exists, but its process has ended (on another host: it was not refreshed
 *  recently). UNREADABLE: it exists and cannot be read. */
typedef enum dt_lock_state { DT_LOCK_FREE, DT_LOCK_HELD, DT_LOCK_LEFT, DT_LOCK_UNREADABLE } dt_lock_state;
/** State of a directory's lock, for display only. holder: out [size], the run that holds it, "" if free, or why it
 *  cannot be read. Local. */
dt_lock_state dt_lock_look(const char *dir, char *holder, size_t size);
/** DT_ERR_WRITE: this run no longer holds the lock: it was taken over, or the directory was moved or removed. Local;
 *  safe on NULL. */
dt_err dt_lock_check(const dt_lock *lock);
/** Remove the lock. Local; safe on NULL. */
void dt_lock_release(dt_lock *lock);

/** Block the signals of dt_signals_install until then, also in a program that replaces this one (exec), so that they do
 *  not end the process. Local. */
void dt_signals_hold(void);
/** Handle signals: SIGTERM, SIGUSR1 and SIGINT request a stop; a second SIGINT ends the process immediately. A write
 *  beyond the file size limit fails instead of ending the process. Call it before the process has a second thread,
 *  because threads inherit the blocked signals. Local. DT_ERR_FAULT: no thread. */
dt_err dt_signals_install(void);
/** The signal that requested a stop, or 0. Local; any thread. */
int dt_signals_pending(void);

/** A time span in which a stream or a thread executed `name` of `unit`. number: of the collective that it was or waited
 *  for; 0: none. */
typedef struct dt_time_span {
    double begin_s, end_s;
    const char *name, *unit;
    int64_t number;
    int lane;         /* row of the trace */
    const char *work; /* purpose of a model's pass: "rollout", "score", "reward"; may be NULL */
} dt_time_span;

/** Groups of a step's device time, by the host's phase in which the work was queued. */
typedef enum dt_time_group {
    DT_TIME_DATA, /* idle: waiting for the micro-batch */
    DT_TIME_FORWARD,
    DT_TIME_BACKWARD,     /* and the head */
    DT_TIME_COMM_EXPOSED, /* computation waits for a collective */
    DT_TIME_COMM_HIDDEN,  /* a collective runs concurrently with computation */
    DT_TIME_UPDATE,       /* and the norm */
    DT_TIME_COPIES,       /* between device and host, concurrent with other work */
    DT_TIME_AGREE,        /* the vote: the host waits for the slowest rank */
    DT_TIME_ROLLOUT,      /* generation of completions, with their exchange between ranks */
    DT_TIME_SCORE,        /* models score completions, before the step's own passes */
    DT_TIME_REWARD,       /* reward functions */
    DT_N_TIME
} dt_time_group;
extern const char *const dt_time_group_names[DT_N_TIME];

/** The spans of a stream, in order of time, not overlapping. */
typedef struct dt_stream_spans {
    const dt_time_span *span;
    int n;
} dt_stream_spans;
/** Compute seconds by group between two times; the first stream is the compute stream. COMM_HIDDEN and COPIES are times
 *  of other streams; all other groups divide the compute stream's time. Local. */
void dt_time_groups(const dt_stream_spans *streams, int n_streams, double from_s, double to_s,
                    double group_s[DT_N_TIME]);

typedef struct dt_timeline dt_timeline;
/** Record the phases, for breakdown (seconds by group) and trace (the newest 65536 spans). Memory is counted in the
 *  ledger (DT_MEM_OTHER, host): dt_timeline_nbytes, and more for each stream (dt_stream_plan). t: out, closed with
 *  dt_timeline_close. ledger: may be NULL. Local. DT_ERR_MEMORY. */
dt_err dt_timeline_open(dt_timeline **t, dt_phase *phase, bool breakdown, bool trace, dt_ledger *ledger);
/** Bytes of a timeline without streams. Local. */
size_t dt_timeline_nbytes(bool trace);
/** Also record the streams of a device, the first of which is the compute stream (dt_stream_open): an event is recorded
 *  at each change of a stream's work, and queried on demand, without waiting. Profilers receive the phases
 *  (dt_device_ops.range). The device is not used after dt_timeline_close. Local. */
void dt_timeline_attach(dt_timeline *t, dt_device *dev);
/** Add a span of another thread to the trace, in its own row. Called by the thread whose phases are recorded. Local. */
void dt_timeline_add(dt_timeline *t, const char *name, const char *unit, double begin_s, double end_s);
/** Seconds by group since the last call, up to the current position of the computation. Zeros without breakdown. Local,
 *  does not wait. */
void dt_timeline_take(dt_timeline *t, double group_s[DT_N_TIME]);
/** Write the spans of all ranks to a file in Chrome's trace format; rank 0 writes. Collective, agreed. DT_ERR_WRITE,
 *  DT_ERR_COMM. */
dt_err dt_timeline_write(dt_timeline *t, dt_comm *comm, const char *path);
/** Free the timeline. Local. Safe on NULL. */
void dt_timeline_close(dt_timeline *t);

#endif
