/* process.h - what every run needs of its process: a watchdog, signals, the lock on a directory, where its time
 * went. */
#ifndef DTRAIN_PROCESS_H
#define DTRAIN_PROCESS_H

#include "dtrain/comm/comm.h"

typedef struct dt_watchdog dt_watchdog;
/** A thread that ends the job with exit code 76 when the phase has not changed for timeout_s, after every rank said
 *  where it stands. Time in which this process was stopped does not count. */
dt_err dt_watchdog_start(dt_watchdog **w, const dt_phase *phase, const dt_comm *comm, double timeout_s);
/** One for the end of a program, where ranks wait for each other, too, and one may not come: it was stopped, or its
 *  GPU's driver does not give memory back. It has the timeout of comm, but at least 30 s, and needs comm only in this
 *  call. Where it cannot be started the end is not watched: NULL. */
dt_watchdog *dt_watchdog_of_closing(const dt_comm *comm);
void dt_watchdog_stop(dt_watchdog *w); /* safe on NULL */

typedef struct dt_lock dt_lock;
/** Take DIR/run.lock, or wait until it is certain that a run from another host that has it is dead (at most 35 s).
 *  force: take it from whoever has it. DT_ERR_USAGE naming the holder when another run is alive, and when run.lock
 *  cannot be read. Collective, agreed. *lock is NULL on ranks other than 0. */
dt_err dt_lock_take(dt_lock **lock, dt_comm *comm, const char *dir, bool force, dt_phase *phase);
/** Is a run at work in the directory? LEFT: its lock is there, but the process is gone (on another host: the lock was
 *  not refreshed lately). UNREADABLE: it is there, and does not tell. holder: who, "" when free, or why it cannot be
 *  read. For showing only. */
typedef enum dt_lock_state { DT_LOCK_FREE, DT_LOCK_HELD, DT_LOCK_LEFT, DT_LOCK_UNREADABLE } dt_lock_state;
dt_lock_state dt_lock_look(const char *dir, char *holder, size_t size);
/** DT_ERR_WRITE: it is no longer this run's: taken over, or the directory was moved or removed. Local; safe on NULL. */
dt_err dt_lock_check(const dt_lock *lock);
void dt_lock_release(dt_lock *lock); /* local; safe on NULL */

/** Let those signals wait for dt_signals_install, also in a program that takes this one's place (exec): before it they
 *  would end the process. */
void dt_signals_hold(void);
/** SIGTERM, SIGUSR1, SIGINT ask to stop; a second SIGINT leaves at once. A write beyond the limit of file sizes fails
 *  instead of ending the process. To be called before the process has a second thread: threads inherit that these
 *  signals are not theirs. DT_ERR_FAULT without a thread. */
dt_err dt_signals_install(void);
int dt_signals_pending(void); /* the signal that asked, or 0 */

/** From begin_s to end_s a stream, or a thread, did `name` of `unit`. number: of the collective that it was, or waited
 *  for; 0: none. */
typedef struct dt_time_span {
    double begin_s, end_s;
    const char *name, *unit;
    int64_t number;
    int lane;         /* of the trace */
    const char *work; /* NULL, or what a pass of a model was for: "rollout", "score", "reward" */
} dt_time_span;

/** Where the time of a step went, on the device: what its streams did, by the phases of the host that queued it. */
typedef enum dt_time_group {
    DT_TIME_DATA, /* nothing to do before the micro-batch is there */
    DT_TIME_FORWARD,
    DT_TIME_BACKWARD,     /* with the head */
    DT_TIME_COMM_EXPOSED, /* the computation stands still for a collective */
    DT_TIME_COMM_HIDDEN,  /* a collective is under way, and the computation goes on */
    DT_TIME_UPDATE,       /* with the norm */
    DT_TIME_COPIES,       /* between device and host, beside whatever else is done */
    DT_TIME_AGREE,        /* the vote: the host waits for the slowest rank */
    DT_TIME_ROLLOUT,      /* completions are generated, with what ranks exchange of them */
    DT_TIME_SCORE,        /* models say what they make of them, before the step's own passes */
    DT_TIME_REWARD,       /* reward functions are at work */
    DT_N_TIME
} dt_time_group;
extern const char *const dt_time_group_names[DT_N_TIME];

/** The spans of a stream, in order of time, without overlap. */
typedef struct dt_stream_spans {
    const dt_time_span *span;
    int n;
} dt_stream_spans;
/** Seconds by group between two times; the first stream is that of the computation. All groups but COMM_HIDDEN and
 *  COPIES are parts of its time; those two are times of the other streams. */
void dt_time_groups(const dt_stream_spans *streams, int n_streams, double from_s, double to_s,
                    double group_s[DT_N_TIME]);

typedef struct dt_timeline dt_timeline;
/** Listen to phase, for what breakdown (seconds by group) and trace (the newest 65536 spans) want. Memory is counted in
 *  the ledger (may be NULL), DT_MEM_OTHER on the host: dt_timeline_nbytes here, and as much for each stream as the
 *  device's listener says (dt_stream_plan). */
dt_err dt_timeline_open(dt_timeline **t, dt_phase *phase, bool breakdown, bool trace, dt_ledger *ledger);
size_t dt_timeline_nbytes(bool trace);
/** Listen to the streams of a device, too, the first of which is that of the computation (dt_stream_open): an event is
 *  recorded on a stream at each change of what it does, and looked at when somebody asks, and never waited for. Tools
 *  are told of the phases (dt_device_ops.range). The device is left alone from dt_timeline_close on. */
void dt_timeline_attach(dt_timeline *t, dt_device *dev);
/** What another thread has done, for the trace: it has a lane of its own. By the thread whose phases are listened
 *  to. */
void dt_timeline_add(dt_timeline *t, const char *name, const char *unit, double begin_s, double end_s);
/** Seconds by group since the last call, up to where the computation has come. Zeros without breakdown. */
void dt_timeline_take(dt_timeline *t, double group_s[DT_N_TIME]);
/** Collective: the spans of all ranks in one file in Chrome's trace format, written by rank 0. */
dt_err dt_timeline_write(dt_timeline *t, dt_comm *comm, const char *path);
void dt_timeline_close(dt_timeline *t); /* safe on NULL */

#endif
