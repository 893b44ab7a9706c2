/* timeline_private.h - what the timeline (timeline.c) keeps, which the trace is written from (trace.c). */
#ifndef DT_PROCESS_TIMELINE_PRIVATE_H
#define DT_PROCESS_TIMELINE_PRIVATE_H

#include "dtrain/process/process.h"

enum {
    TIMELINE_SPANS = 65536,  /* of the trace */
    TIMELINE_MARKS = 1024,   /* that a stream may lag the host */
    TIMELINE_COUNTED = 4096, /* spans of a stream that wait to be counted */
    TIMELINE_STREAMS = 64,   /* more than a run can have: two of each model, and two */
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
    timeline_mark *marks;      /* [TIMELINE_MARKS], by turns */
    int64_t n_made, n_reached; /* marks recorded, and those that the stream was seen to have passed */
    dt_time_span running;      /* after the last of these */
    dt_time_span *spans;       /* [TIMELINE_COUNTED + 1] of breakdown: ended, not counted yet */
    int n_spans;
} timeline_stream;

struct dt_timeline {
    dt_phase *phase;
    dt_device *dev; /* NULL: none yet */
    dt_ledger *ledger;
    dt_stream_listener listener;
    bool breakdown, trace;
    double open_s;
    dt_time_span host; /* the phase that is running */
    timeline_stream streams[TIMELINE_STREAMS];
    int n_streams;
    double counted_s; /* up to here the streams' time is in group_s */
    double group_s[DT_N_TIME];
    dt_time_span *spans; /* ring, NULL without trace */
    long long n_spans;
    long long n_left_out; /* dropped marks: the stream lagged too far behind the host */
};

/** What passes of models are for from this phase on, where they were for `before` until now (breakdown.c). */
const char *dt_time_work(const char *before, const char *name, const char *unit);

/** Look how far the streams have come; what they have done is in the spans then. */
void timeline_read(dt_timeline *t);

#endif
