/* trace.c - writes the spans of all ranks to one file in Chrome's trace format. Each rank is a process. Its lanes are
 * the host, each stream of the device, and the checkpoint writer thread. */
#include "timeline_private.h"
#include "dtrain/io/io.h"
#include <inttypes.h>

/* State of writing a trace: the next object of this rank and, on rank 0, the file. */
typedef struct trace {
    const dt_timeline *t;
    const dt_comm *comm;
    long long next; /* number of this rank's next object */
    dt_aside file;  /* rank 0 */
    int rank;       /* the rank whose text was added last */
} trace;

/* ---- objects ----------------------------------------------------------------------------------------------------- */

/* Each function writes one object to out [room], preceded by ",\n" unless it is the rank's first, and returns its
 * length like snprintf. Names of hosts, phases and units contain no characters that JSON would escape. */

static int put_process(const trace *w, char *out, size_t room)
{
    const int rank = dt_comm_number(w->comm);
    return snprintf(out, room,
                    "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d on %s\"}},\n"
                    "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"sort_index\":%d}}",
                    rank, rank, w->comm->host, rank, rank);
}

/* Name and sort index of a lane. */
static int put_lane(const trace *w, int lane, char *out, size_t room)
{
    const int rank = dt_comm_number(w->comm);
    const char *name = lane == LANE_HOST    ? "host"
                       : lane == LANE_SAVER ? "saver"
                                            : w->t->streams[lane - LANE_STREAMS].name;
    return snprintf(
        out, room,
        ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}"
        ",\n{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}}",
        rank, lane, name, rank, lane, lane == LANE_SAVER ? LANE_STREAMS + TIMELINE_STREAMS : lane);
}

/* Times in microseconds since the timeline was opened. */
static int put_span(const trace *w, const dt_time_span *s, char *out, size_t room)
{
    const bool named = s->unit && *s->unit;
    char number[64] = "";
    if (s->number) snprintf(number, sizeof number, ",\"args\":{\"collective\":%" PRId64 "}", s->number);
    return snprintf(
        out, room,
        ",\n{\"name\":\"%s%s%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,\"tid\":%d%s}",
        s->name, named ? " " : "", named ? s->unit : "", s->name, (s->begin_s - w->t->open_s) * 1e6,
        (s->end_s - s->begin_s) * 1e6, dt_comm_number(w->comm), s->lane, number);
}

/* The process, its lanes, and the spans that fit in the ring. */
static int n_lanes(const trace *w) { return LANE_STREAMS + w->t->n_streams; }
static long long n_kept(const trace *w) { return w->t->n_spans < TIMELINE_SPANS ? w->t->n_spans : TIMELINE_SPANS; }

static int put_object(const trace *w, long long i, char *out, size_t room)
{
    const long long span = i - 1 - n_lanes(w);
    if (i == 0) return put_process(w, out, room);
    if (span < 0) return put_lane(w, (int)i - 1, out, room);
    return put_span(w, &w->t->spans[(w->t->n_spans - n_kept(w) + span) % TIMELINE_SPANS], out, room);
}

/* Fill a part with whole objects; an object that does not fit starts the next part. */
static size_t next_part(void *ctx, char part[DT_TEXT_PART])
{
    trace *w = ctx;
    size_t n = 0;
    for (; w->next < 1 + n_lanes(w) + n_kept(w); w->next++) {
        const int len = put_object(w, w->next, part + n, DT_TEXT_PART - n);
        if (len < 0 || (size_t)len >= DT_TEXT_PART - n) break;
        n += (size_t)len;
    }
    return n;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* On rank 0: append a rank's text. */
static dt_err add_text(void *ctx, int rank, const char *part, size_t nbytes)
{
    trace *w = ctx;
    if (w->rank != rank) DT_TRY(dt_aside_write(&w->file, ",\n", 2)); /* texts are never empty */
    w->rank = rank;
    return dt_aside_write(&w->file, part, nbytes);
}

static dt_err begin_file(trace *w, const char *path)
{
    static const char begin[] = "{\"traceEvents\":[";
    DT_CHECK(w->t && w->t->spans, DT_ERR_ARG, "internal: dt_timeline_write: %s: the timeline has no spans", path);
    if (w->t->n_left_out) DT_WARN("trace: dropped %lld stream events (buffer full)", w->t->n_left_out);
    if (!dt_comm_first(w->comm)) return DT_OK;
    DT_TRY(dt_aside_open(&w->file, path));
    return dt_aside_write(&w->file, begin, sizeof begin - 1);
}

static dt_err end_file(trace *w)
{
    if (!dt_comm_first(w->comm)) return DT_OK;
    DT_TRY(dt_aside_write(&w->file, "]}\n", 3));
    return dt_aside_commit(&w->file);
}

dt_err dt_timeline_write(dt_timeline *t, dt_comm *comm, const char *path)
{
    trace w = {.t = t, .comm = comm};
    if (t) timeline_read(t);
    dt_err err = dt_comm_agree(comm, begin_file(&w, path));
    if (err == DT_OK) err = dt_comm_gather_text(comm, next_part, add_text, &w);
    if (err == DT_OK) err = dt_comm_agree(comm, end_file(&w));
    dt_aside_drop(&w.file);
    return err;
}
