/* timeline.c - records the activity of the host and of the device's streams over time.
 *
 * A change of the host's phase ends one host span and begins the next. An event marks the change on the compute stream:
 * work queued after it belongs to the new phase. Other streams have the spans that their users declare
 * (dt_stream_begin); so has the compute stream while it waits.
 *
 * No thread waits for a mark. Completed marks are read in two cases: when the step computes its breakdown, because the
 * host has waited by then, and when a stream has no free mark. If it still has none, the mark is dropped. All memory is
 * allocated when a stream is opened. */
#include "timeline_private.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Marks and spans of a stream. */
static const size_t STREAM_NBYTES =
    TIMELINE_MARKS * sizeof(timeline_mark) + (TIMELINE_COUNTED + 1) * sizeof(dt_time_span);

static void add_span(dt_timeline *t, dt_time_span s)
{
    if (t->spans) t->spans[t->n_spans++ % TIMELINE_SPANS] = s;
}

/* ---- seconds by group -------------------------------------------------------------------------------------------- */

/* Drop the spans that ended before before_s. */
static void drop_spans(timeline_stream *l, double before_s)
{
    int n = 0;
    for (int i = 0; i < l->n_spans; i++)
        if (l->spans[i].end_s > before_s) l->spans[n++] = l->spans[i];
    l->n_spans = n;
}

/* Count all streams up to the time that the compute stream has reached. */
static void count_spans(dt_timeline *t)
{
    const double to_s = t->streams[0].running.begin_s;
    dt_stream_spans all[TIMELINE_STREAMS];
    double group_s[DT_N_TIME];
    if (!t->breakdown || to_s <= t->counted_s) return;
    for (int k = 0; k < t->n_streams; k++) {
        timeline_stream *l = &t->streams[k];
        const bool runs = k > 0 && l->running.name;
        if (runs) l->spans[l->n_spans] = l->running;
        all[k] = (dt_stream_spans){l->spans, l->n_spans + runs};
    }
    dt_time_groups(all, t->n_streams, t->counted_s, to_s, group_s);
    for (int g = 0; g < DT_N_TIME; g++) t->group_s[g] += group_s[g];
    for (int k = 0; k < t->n_streams; k++) drop_spans(&t->streams[k], to_s);
    t->counted_s = to_s;
}

/* ---- marks ------------------------------------------------------------------------------------------------------- */

/* The trace shows the work of the device and its waits for communication. Other work of the host has its own lane. */
static bool is_of_stream(const char *name)
{
    return !dt_has_word("start, open, read, agree, report, save, load, export, lock, verify, end", name);
}

static void end_running(dt_timeline *t, timeline_stream *l, double at_s)
{
    dt_time_span s = l->running;
    s.end_s = at_s;
    if (!s.name) return;
    if (is_of_stream(s.name)) add_span(t, s);
    if (!t->breakdown) return;
    if (l->n_spans == TIMELINE_COUNTED) count_spans(t);
    if (l->n_spans < TIMELINE_COUNTED)
        l->spans[l->n_spans++] = s;
    else
        t->n_left_out++;
}

/* Read the marks that the stream has passed. */
static void read_marks(dt_timeline *t, timeline_stream *l)
{
    const dt_device_ops *ops = t->dev->ops;
    while (l->n_reached < l->n_made) {
        const timeline_mark *m = &l->marks[l->n_reached % TIMELINE_MARKS];
        bool reached = false;
        double at_s = 0;
        if (ops->event_query(t->dev, m->event, &reached) != DT_OK || !reached) return;
        if (ops->event_time(t->dev, m->event, &at_s) != DT_OK) return;
        at_s = fmax(at_s, l->running.begin_s); /* device and host clocks are only synchronised occasionally */
        end_running(t, l, at_s);
        l->running = (dt_time_span){at_s, INFINITY, m->name, m->unit, m->number, l->running.lane, m->work};
        l->n_reached++;
    }
}

static bool same_text(const char *a, const char *b) { return a == b || (a && b && !strcmp(a, b)); }

/* Does the running span continue? Units and numbers matter only with a trace. */
static bool continues(const dt_timeline *t, const timeline_mark *m, const char *name, const char *unit, int64_t number)
{
    return same_text(m->name, name) && m->work == t->host.work &&
           (!t->trace || (same_text(m->unit, unit) && m->number == number));
}

static void set_mark(dt_timeline *t, timeline_stream *l, const char *name, const char *unit, int64_t number)
{
    if (l->n_made > 0 && continues(t, &l->marks[(l->n_made - 1) % TIMELINE_MARKS], name, unit, number)) return;
    if (l->n_made - l->n_reached == TIMELINE_MARKS) read_marks(t, l);
    if (l->n_made - l->n_reached == TIMELINE_MARKS) {
        t->n_left_out++;
        return;
    }
    timeline_mark *m = &l->marks[l->n_made % TIMELINE_MARKS];
    if (t->dev->ops->event_record(t->dev, m->event, l->stream) != DT_OK) return;
    *m = (timeline_mark){m->event, name, unit, number, t->host.work};
    l->n_made++;
}

/* ---- phases and spans -------------------------------------------------------------------------------------------- */

static void on_phase(void *self, const char *name, const char *unit, double now_s)
{
    dt_timeline *t = self;
    t->host.end_s = now_s;
    add_span(t, t->host);
    const char *const work = dt_time_work(t->host.work, name, unit);
    t->host = (dt_time_span){.begin_s = now_s, .name = name, .unit = unit, .lane = LANE_HOST, .work = work};
    if (t->streams[0].stream) set_mark(t, &t->streams[0], name, unit, 0);
    if (t->dev && t->dev->ops->range) t->dev->ops->range(t->dev, name, unit);
}

static timeline_stream *find_stream(dt_timeline *t, const dt_stream *stream)
{
    for (int k = 0; stream && k < t->n_streams; k++)
        if (t->streams[k].stream == stream) return &t->streams[k];
    return NULL;
}

static void on_begin(void *self, dt_stream *stream, const char *what, const char *unit, int64_t number)
{
    timeline_stream *l = find_stream(self, stream);
    if (l) set_mark(self, l, what, unit, number);
}

/* On the compute stream the host's phase continues. */
static void on_end(void *self, dt_stream *stream)
{
    dt_timeline *t = self;
    timeline_stream *l = find_stream(t, stream);
    if (!l) return;
    if (l == &t->streams[0])
        set_mark(t, l, t->host.name, t->host.unit, 0);
    else
        set_mark(t, l, NULL, NULL, 0);
}

/* The stream's name and its spans in the trace are kept. */
static void close_stream(const dt_timeline *t, timeline_stream *l)
{
    for (int i = 0; l->marks && i < TIMELINE_MARKS; i++)
        if (l->marks[i].event) t->dev->ops->event_destroy(t->dev, l->marks[i].event);
    if (l->marks) dt_ledger_sub(t->ledger, DT_MEM_OTHER, DT_ON_HOST, STREAM_NBYTES);
    free(l->marks);
    l->stream = NULL, l->marks = NULL, l->spans = NULL;
    l->n_made = l->n_reached = l->n_spans = 0;
    l->running.name = NULL;
}

static dt_err open_stream(dt_timeline *t, timeline_stream *l)
{
    l->marks = calloc(1, STREAM_NBYTES);
    DT_CHECK(l->marks, DT_ERR_MEMORY, "out of memory for stream events");
    l->spans = (dt_time_span *)(l->marks + TIMELINE_MARKS);
    dt_ledger_add(t->ledger, DT_MEM_OTHER, DT_ON_HOST, STREAM_NBYTES);
    for (int i = 0; i < TIMELINE_MARKS; i++) DT_TRY(t->dev->ops->event_create(t->dev, &l->marks[i].event));
    return DT_OK;
}

/* A number distinguishes streams of the same name. */
static void name_stream(const dt_timeline *t, timeline_stream *l, const char *name)
{
    int n = 1;
    const size_t len = strlen(name);
    for (int k = 0; k < t->n_streams; k++)
        if (!strncmp(t->streams[k].name, name, len) && strchr(" ", t->streams[k].name[len])) n++;
    snprintf(l->name, sizeof l->name, n > 1 ? "%.20s %d" : "%.20s", name, n);
}

static dt_err on_open(void *self, dt_stream *stream, const char *name)
{
    dt_timeline *t = self;
    if (find_stream(t, stream) || t->n_streams == TIMELINE_STREAMS) return DT_OK;
    timeline_stream *l = &t->streams[t->n_streams];
    *l = (timeline_stream){.stream = stream, .running = {.begin_s = dt_now_s(), .lane = LANE_STREAMS + t->n_streams}};
    name_stream(t, l, name);
    const dt_err err = open_stream(t, l);
    if (err != DT_OK) {
        close_stream(t, l);
        return err;
    }
    if (t->n_streams++ == 0) t->counted_s = l->running.begin_s;
    return DT_OK;
}

/* The caller has synchronised the stream, so it is idle. */
static void on_close(void *self, const dt_stream *stream)
{
    timeline_stream *l = find_stream(self, stream);
    if (!l) return;
    read_marks(self, l);
    close_stream(self, l);
}

/* ---- the public functions ---------------------------------------------------------------------------------------- */

size_t dt_timeline_nbytes(bool trace) { return trace ? TIMELINE_SPANS * sizeof(dt_time_span) : 0; }

dt_err dt_timeline_open(dt_timeline **out, dt_phase *phase, bool breakdown, bool trace, dt_ledger *ledger)
{
    dt_timeline *t = calloc(1, sizeof *t);
    DT_CHECK(t, DT_ERR_MEMORY, "out of memory for the timeline");
    if (trace && !(t->spans = calloc(1, dt_timeline_nbytes(true)))) {
        free(t);
        return dt_fail(DT_ERR_MEMORY, "out of memory for %d spans of the trace", TIMELINE_SPANS);
    }
    t->ledger = ledger;
    dt_ledger_add(ledger, DT_MEM_OTHER, DT_ON_HOST, dt_timeline_nbytes(trace));
    t->phase = phase, t->breakdown = breakdown, t->trace = trace, t->open_s = dt_now_s();
    t->host = (dt_time_span){.begin_s = t->open_s, .name = "start", .unit = "", .lane = LANE_HOST};
    t->listener = (dt_stream_listener){.self = t,
                                       .stream_nbytes = STREAM_NBYTES,
                                       .open = on_open,
                                       .close = on_close,
                                       .begin = on_begin,
                                       .end = on_end};
    phase->listener_self = t;
    phase->listener = on_phase;
    *out = t;
    return DT_OK;
}

void dt_timeline_attach(dt_timeline *t, dt_device *dev)
{
    t->dev = dev;
    if (t->breakdown || t->trace) dev->listener = &t->listener;
}

void dt_timeline_add(dt_timeline *t, const char *name, const char *unit, double begin_s, double end_s)
{
    add_span(t, (dt_time_span){.begin_s = begin_s, .end_s = end_s, .name = name, .unit = unit, .lane = LANE_SAVER});
}

void timeline_read(dt_timeline *t)
{
    for (int k = 0; k < t->n_streams; k++) read_marks(t, &t->streams[k]);
}

void dt_timeline_take(dt_timeline *t, double group_s[DT_N_TIME])
{
    timeline_read(t);
    if (t->n_streams) count_spans(t);
    memcpy(group_s, t->group_s, sizeof t->group_s);
    memset(t->group_s, 0, sizeof t->group_s);
}

void dt_timeline_close(dt_timeline *t)
{
    if (!t) return;
    t->phase->listener = NULL;
    if (t->dev && t->dev->ops && t->dev->ops->range) t->dev->ops->range(t->dev, NULL, NULL);
    for (int k = 0; k < t->n_streams; k++) close_stream(t, &t->streams[k]);
    if (t->dev) t->dev->listener = NULL;
    if (t->spans) dt_ledger_sub(t->ledger, DT_MEM_OTHER, DT_ON_HOST, dt_timeline_nbytes(true));
    free(t->spans);
    free(t);
}
