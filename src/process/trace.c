/* trace.c - the spans of all ranks in one file in Chrome's trace format: a process for each rank, a lane for the host,
 * each stream of the device and the thread that writes checkpoints. */
#include "timeline_private.h"
#include "dtrain/io.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a viewer calls a lane, and its place in the order. */
static void put_lane(FILE *f, int rank, int lane, const char *name)
{
    fprintf(f, ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}", rank,
            lane, name);
    fprintf(f, ",\n{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}}",
            rank, lane, lane == LANE_SAVER ? LANE_STREAMS + TIMELINE_STREAMS : lane);
}

static void put_names(FILE *f, const dt_timeline *t, const dt_comm *comm)
{
    const int rank = comm->rank;
    fprintf(f, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d on %s\"}},\n", rank,
            rank, comm->host);
    fprintf(f, "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"sort_index\":%d}}", rank, rank);
    put_lane(f, rank, LANE_HOST, "host");
    put_lane(f, rank, LANE_SAVER, "saver");
    for (int k = 0; k < t->n_streams; k++) put_lane(f, rank, LANE_STREAMS + k, t->streams[k].name);
}

static void put_span(FILE *f, const dt_timeline *t, const dt_time_span *s, int rank)
{
    const bool named = s->unit && *s->unit;
    fprintf(f, ",\n{\"name\":\"%s%s%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,\"tid\":%d",
            s->name, named ? " " : "", named ? s->unit : "", s->name, (s->begin_s - t->open_s) * 1e6,
            (s->end_s - s->begin_s) * 1e6, rank, s->lane);
    if (s->number) fprintf(f, ",\"args\":{\"collective\":%" PRId64 "}", s->number);
    fputc('}', f);
}

/* This rank's spans as JSON objects joined by commas; malloc'ed. Times in microseconds since the timeline was opened.
 * Names of hosts, phases and units hold nothing that JSON would have escaped. */
static char *spans_text(const dt_timeline *t, const dt_comm *comm)
{
    char *text = NULL;
    size_t nbytes = 0;
    FILE *f = open_memstream(&text, &nbytes);
    if (!f) return NULL;
    put_names(f, t, comm);
    const long long first = t->n_spans > TIMELINE_SPANS ? t->n_spans - TIMELINE_SPANS : 0;
    for (long long i = first; i < t->n_spans; i++) put_span(f, t, &t->spans[i % TIMELINE_SPANS], comm->rank);
    if (fclose(f) == 0) return text;
    free(text);
    return NULL;
}

typedef struct merged {
    FILE *f;
    int rank;
} merged; /* rank: of the text that was added last */

/* Rank 0: one rank's text after the other goes to the file. Whether it could be written is asked when it is closed. */
static dt_err add_text(void *ctx, int rank, const char *part, size_t nbytes)
{
    merged *m = ctx;
    if (rank > 0 && m->rank != rank) fputs(",\n", m->f); /* no text is empty */
    m->rank = rank;
    fwrite(part, 1, nbytes, m->f);
    return DT_OK;
}

static dt_err finish_file(FILE *f, const char *part, const char *path)
{
    const bool bad = ferror(f) != 0;
    if (fclose(f) != 0 || bad) return dt_fail_errno(DT_ERR_WRITE, part, "write failed");
    return dt_rename_durable(part, path);
}

static dt_err create_part(const char *path, char part[PATH_MAX], FILE **f)
{
    DT_CHECK(snprintf(part, PATH_MAX, "%s.part", path) < PATH_MAX, DT_ERR_WRITE, "%s: the path is too long", path);
    int fd;
    DT_TRY(dt_create_file(part, &fd));
    *f = fdopen(fd, "w");
    if (!*f) close(fd);
    DT_CHECK(*f, DT_ERR_MEMORY, "%s: no memory to write it", part);
    return DT_OK;
}

dt_err dt_timeline_write(dt_timeline *t, dt_comm *comm, const char *path)
{
    char part[PATH_MAX], *mine = NULL;
    if (t && t->spans) {
        timeline_read(t);
        mine = spans_text(t, comm);
    }
    FILE *f = NULL;
    if (t && t->n_left_out)
        DT_WARN("trace: %lld changes of what streams do are left out: they were too far behind the host",
                t->n_left_out);
    dt_err err = mine ? DT_OK : dt_fail(DT_ERR_MEMORY, "no memory to write the trace");
    if (err == DT_OK && comm->rank == 0) err = create_part(path, part, &f);
    if ((err = dt_comm_agree(comm, err)) != DT_OK) goto done;
    merged m = {.f = f};
    if (f) fputs("{\"traceEvents\":[", f);
    if ((err = dt_comm_gather_text(comm, mine, strlen(mine), add_text, &m)) != DT_OK) goto done;
    if (f) {
        fputs("]}\n", f);
        err = finish_file(f, part, path);
        f = NULL;
    }
    err = dt_comm_agree(comm, err);
done:
    if (f) fclose(f), unlink(part);
    free(mine);
    return err;
}
