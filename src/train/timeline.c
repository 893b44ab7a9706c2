/* timeline.c - one listener on the phase serves both the breakdown of a step and the trace: a change of phase ends one span and begins the next. */
#include "dtrain/train.h"
#include "dtrain/io.h"
#include <jansson.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

enum { N_EVENTS = 65536 };

typedef struct event { double begin_s, end_s; const char *name, *unit; } event;

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
    static const struct { const char *name; dt_time_group group; } table[] = {
        {"read", DT_TIME_READ},     {"forward", DT_TIME_FORWARD}, {"head", DT_TIME_BACKWARD}, {"backward", DT_TIME_BACKWARD}, {"reduce", DT_TIME_COMM},
        {"gather", DT_TIME_COMM},   {"update", DT_TIME_UPDATE},   {"norm", DT_TIME_UPDATE},   {"agree", DT_TIME_AGREE},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (!strcmp(table[i].name, name)) return table[i].group;
    return -1;
}

static void on_phase(void *self, const char *name, const char *unit, double now_s)
{
    dt_timeline *t = self;
    const int group = group_of(t->name);
    if (group >= 0) t->group_s[group] += now_s - t->since_s;
    if (t->events) t->events[t->n_events++ % N_EVENTS] = (event){t->since_s, now_s, t->name, t->unit};
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

void dt_timeline_take(dt_timeline *t, double group_s[DT_N_TIME])
{
    memcpy(group_s, t->group_s, sizeof t->group_s);
    memset(t->group_s, 0, sizeof t->group_s);
}

/* This rank's events as the inside of a JSON array; malloc'ed. Times in microseconds since the timeline was opened. */
static char *events_json(const dt_timeline *t, int rank)
{
    json_t *list = json_array();
    const long long first = t->n_events > N_EVENTS ? t->n_events - N_EVENTS : 0;
    for (long long i = first; i < t->n_events; i++) {
        const event *e = &t->events[i % N_EVENTS];
        const bool named = e->unit && *e->unit;
        json_array_append_new(list, json_pack("{s:s+, s:s, s:s, s:f, s:f, s:i, s:i}", "name", e->name, named ? " " : "", named ? e->unit : "",
                                              "cat", e->name, "ph", "X", "ts", (e->begin_s - t->open_s) * 1e6, "dur",
                                              (e->end_s - e->begin_s) * 1e6, "pid", rank, "tid", 0));
    }
    char *text = json_dumps(list, JSON_COMPACT | JSON_REAL_PRECISION(12));
    json_decref(list);
    return text;
}

dt_err dt_timeline_write(dt_timeline *t, dt_comm *comm, const char *path)
{
    char *mine = t && t->events ? events_json(t, comm->rank) : NULL;
    dt_err err = mine ? DT_OK : dt_fail(DT_ERR_MEMORY, "no memory to write the trace");
    if ((err = dt_comm_agree(comm, err)) != DT_OK) {
        free(mine);
        return err;
    }
    /* "[a,b]" of each rank becomes "a,b": ranks are joined by commas, in order */
    const size_t len = strlen(mine);
    char *body = mine + 1;
    body[len - 2] = '\0';

    const MPI_Comm world = *(MPI_Comm *)dt_comm_mpi_handle(comm);
    const int n = (int)strlen(body);
    int *counts = comm->rank ? NULL : calloc(2 * (size_t)comm->nranks, sizeof *counts);
    MPI_Gather(&n, 1, MPI_INT, counts, 1, MPI_INT, 0, world);
    char *all = NULL;
    if (comm->rank == 0) {
        int *starts = counts + comm->nranks, total = 0;
        for (int r = 0; r < comm->nranks; r++) starts[r] = total, total += counts[r];
        all = malloc((size_t)total + 1);
    }
    MPI_Gatherv(body, n, MPI_CHAR, all, counts, counts ? counts + comm->nranks : NULL, MPI_CHAR, 0, world);
    if (comm->rank == 0) {
        char *text = NULL;
        size_t nbytes = 0;
        FILE *f = open_memstream(&text, &nbytes);
        bool some = false;
        fputs("{\"traceEvents\":[", f);
        for (int r = 0; r < comm->nranks; r++) {
            if (!counts[r]) continue;
            fprintf(f, "%s%.*s", some ? ",\n" : "", counts[r], all + counts[comm->nranks + r]);
            some = true;
        }
        fputs("]}\n", f);
        fclose(f);
        err = dt_write_file_atomic(path, text, nbytes);
        free(text);
    }
    free(all), free(counts), free(mine);
    return dt_comm_agree(comm, err);
}

void dt_timeline_close(dt_timeline *t)
{
    if (!t) return;
    t->phase->listener = NULL;
    free(t->events);
    free(t);
}
