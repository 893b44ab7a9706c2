/* timeline.c - one listener on the phase serves both the breakdown of a step and the trace: a change of phase ends one
 * span and begins the next. */
#include "dtrain/process.h"
#include "dtrain/io.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_EVENTS = 65536 };

enum { LANE_PHASES, LANE_BESIDE };

typedef struct event {
    double begin_s, end_s;
    const char *name, *unit;
    int lane;
} event;

struct dt_timeline {
    dt_phase *phase;
    double open_s, since_s;
    const char *name, *unit; /* the span that is running */
    double group_s[DT_N_TIME];
    event *events; /* ring, NULL without trace */
    long long n_events;
};

const char *const dt_time_group_names[DT_N_TIME] = {"read", "forward", "backward", "comm", "update", "agree"};

static int group_of(const char *name)
{
    static const struct {
        const char *name;
        dt_time_group group;
    } table[] = {
        {"read", DT_TIME_READ},         {"forward", DT_TIME_FORWARD}, {"head", DT_TIME_BACKWARD},
        {"backward", DT_TIME_BACKWARD}, {"reduce", DT_TIME_COMM},     {"gather", DT_TIME_COMM},
        {"update", DT_TIME_UPDATE},     {"norm", DT_TIME_UPDATE},     {"agree", DT_TIME_AGREE},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (!strcmp(table[i].name, name)) return table[i].group;
    return -1;
}

static void add_event(dt_timeline *t, event e)
{
    if (t->events) t->events[t->n_events++ % N_EVENTS] = e;
}

static void on_phase(void *self, const char *name, const char *unit, double now_s)
{
    dt_timeline *t = self;
    const int group = group_of(t->name);
    if (group >= 0) t->group_s[group] += now_s - t->since_s;
    add_event(t, (event){t->since_s, now_s, t->name, t->unit, LANE_PHASES});
    t->name = name, t->unit = unit, t->since_s = now_s;
}

dt_err dt_timeline_open(dt_timeline **out, dt_phase *phase, bool trace)
{
    dt_timeline *t = calloc(1, sizeof *t);
    DT_CHECK(t, DT_ERR_MEMORY, "no memory for the timeline");
    if (trace && !(t->events = calloc(N_EVENTS, sizeof *t->events))) {
        free(t);
        return dt_fail(DT_ERR_MEMORY, "no memory for %d trace events", N_EVENTS);
    }
    t->phase = phase, t->open_s = t->since_s = dt_now_s(), t->name = "start", t->unit = "";
    phase->listener_self = t;
    phase->listener = on_phase;
    *out = t;
    return DT_OK;
}

void dt_timeline_add(dt_timeline *t, const char *name, const char *unit, double begin_s, double end_s)
{
    add_event(t, (event){begin_s, end_s, name, unit, LANE_BESIDE});
}

void dt_timeline_take(dt_timeline *t, double group_s[DT_N_TIME])
{
    memcpy(group_s, t->group_s, sizeof t->group_s);
    memset(t->group_s, 0, sizeof t->group_s);
}

/* What a viewer calls this rank, and its place in the order. */
static void put_names(FILE *f, const dt_comm *comm)
{
    const int rank = comm->rank;
    fprintf(f, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d on %s\"}},\n", rank,
            rank, comm->host);
    fprintf(f, "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"sort_index\":%d}},\n", rank, rank);
    fprintf(f, "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"phases\"}},\n", rank,
            LANE_PHASES);
    fprintf(f, "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"beside\"}}", rank,
            LANE_BESIDE);
}

/* This rank's events as JSON objects joined by commas; malloc'ed. Times in microseconds since the timeline was opened.
 * Names of hosts, phases and units hold nothing that JSON would have escaped. */
static char *events_text(const dt_timeline *t, const dt_comm *comm)
{
    char *text = NULL;
    size_t nbytes = 0;
    FILE *f = open_memstream(&text, &nbytes);
    if (!f) return NULL;
    put_names(f, comm);
    const long long first = t->n_events > N_EVENTS ? t->n_events - N_EVENTS : 0;
    for (long long i = first; i < t->n_events; i++) {
        const event *e = &t->events[i % N_EVENTS];
        const bool named = e->unit && *e->unit;
        fprintf(f,
                ",\n{\"name\":\"%s%s%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,\"tid\":%d}",
                e->name, named ? " " : "", named ? e->unit : "", e->name, (e->begin_s - t->open_s) * 1e6,
                (e->end_s - e->begin_s) * 1e6, comm->rank, e->lane);
    }
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
    char part[PATH_MAX], *mine = t && t->events ? events_text(t, comm) : NULL;
    FILE *f = NULL;
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

void dt_timeline_close(dt_timeline *t)
{
    if (!t) return;
    t->phase->listener = NULL;
    free(t->events);
    free(t);
}
