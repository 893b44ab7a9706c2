/* timeline_private.h - state of the timeline (timeline.c), from which the trace is written (trace.c). */
#ifndef DT_PROCESS_TIMELINE_PRIVATE_H
#define DT_PROCESS_TIMELINE_PRIVATE_H

#include "dtrain/process/process.h"

enum {
    TIMELINE_SPANS = 65536,  /* of the trace */
    TIMELINE_MARKS = 1024,   /* maximum marks by which a stream may lag behind the host */
    TIMELINE_COUNTED = 4096, /* spans of a stream that are not counted yet */
    TIMELINE_STREAMS = 64,   /* upper bound: two per model, and two more */
    TIMELINE_NAME = 32
};

/** Lanes of the trace; lanes of streams follow. */
enum { LANE_HOST, LANE_SAVER, LANE_STREAMS };

/** An event, and the span that follows it on its stream; name NULL: none. */
typedef struct timeline_mark {
    dt_event *event;
    const char *name, *unit;
    int64_t number;
    const char *work; /* dt_time_span.work */
} timeline_mark;

typedef struct timeline_stream {
    dt_stream *stream;
    char name[TIMELINE_NAME];
    timeline_mark *marks;      /* [TIMELINE_MARKS], used in turn */
    int64_t n_made, n_reached; /* marks recorded; marks known to be completed */
    dt_time_span running;      /* the span after the last completed mark */
    dt_time_span *spans;       /* [TIMELINE_COUNTED + 1] spans that ended but are not counted yet */
    int n_spans;
} timeline_stream;

struct dt_timeline {
    dt_phase *phase;
    dt_device *dev; /* NULL: none so far */
    dt_ledger *ledger;
    dt_stream_listener listener;
    bool breakdown, trace;
    double open_s;
    dt_time_span host; /* the current phase */
    timeline_stream streams[TIMELINE_STREAMS];
    int n_streams;
    double counted_s; /* group_s includes the streams' time up to here */
    double group_s[DT_N_TIME];
    dt_time_span *spans; /* ring buffer, NULL without a trace */
    long long n_spans;
    long long n_left_out; /* dropped marks: the stream lagged too far behind the host */
};

/** The purpose of model passes after this phase, given the previous purpose `before` (breakdown.c). */
const char *dt_time_work(const char *before, const char *name, const char *unit);

/** Read the progress of the streams into their spans. */
void timeline_read(dt_timeline *t);

#endif
