/* timeline.c - one listener on the phase serves both the breakdown of a step and the trace: a change of phase ends one span and begins the next. */
#include "dtrain/train.h"
#include "dtrain/io.h"
#include <errno.h>
#include <limits.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* What a viewer calls this rank, and its place in the order. */
static void put_names(FILE *f, const dt_comm *comm)
{
    const int rank = comm->rank;
    fprintf(f, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d on %s\"}},\n", rank, rank, comm->host);
    fprintf(f, "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"sort_index\":%d}},\n", rank, rank);
    fprintf(f, "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":\"phases\"}}", rank);
}

/* This rank's events as JSON objects joined by commas; malloc'ed. Times in microseconds since the timeline was opened. Names of hosts, phases and units hold
 * nothing that JSON would have escaped. */
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
        fprintf(f, ",\n{\"name\":\"%s%s%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,\"tid\":0}", e->name, named ? " " : "",
                named ? e->unit : "", e->name, (e->begin_s - t->open_s) * 1e6, (e->end_s - e->begin_s) * 1e6, comm->rank);
    }
    if (fclose(f) == 0) return text;
    free(text);
    return NULL;
}

enum { TAG_LENGTH = 11, TAG_TEXT };

static dt_err no_exchange(void) { return dt_fail(DT_ERR_COMM, "the traces of the ranks cannot be merged"); }

static dt_err send_text(dt_comm *comm, const char *text)
{
    const MPI_Comm world = *(MPI_Comm *)dt_comm_mpi_handle(comm);
    const int n = (int)strlen(text); /* of N_EVENTS lines: far below 2^31 */
    if (MPI_Send(&n, 1, MPI_INT, 0, TAG_LENGTH, world) || MPI_Send(text, n, MPI_CHAR, 0, TAG_TEXT, world)) return no_exchange();
    return DT_OK;
}

static dt_err receive_text(dt_comm *comm, int rank, char **text, int *n)
{
    const MPI_Comm world = *(MPI_Comm *)dt_comm_mpi_handle(comm);
    if (MPI_Recv(n, 1, MPI_INT, rank, TAG_LENGTH, world, MPI_STATUS_IGNORE)) return no_exchange();
    char *grown = realloc(*text, (size_t)*n + 1);
    DT_CHECK(grown, DT_ERR_MEMORY, "no memory for the trace of rank %d (%d bytes)", rank, *n);
    *text = grown;
    return MPI_Recv(*text, *n, MPI_CHAR, rank, TAG_TEXT, world, MPI_STATUS_IGNORE) ? no_exchange() : DT_OK;
}

/* Rank 0: one rank's text after the other goes to the file, so that memory and counts are those of one rank, however many there are. */
static dt_err collect_texts(dt_comm *comm, const char *own, FILE *f)
{
    dt_err err = DT_OK;
    char *text = NULL;
    bool some = *own;
    fprintf(f, "{\"traceEvents\":[%s", own);
    for (int r = 1; r < comm->nranks && err == DT_OK; r++) {
        int n = 0;
        err = receive_text(comm, r, &text, &n);
        if (err == DT_OK && n > 0) {
            fprintf(f, "%s%.*s", some ? ",\n" : "", n, text);
            some = true;
        }
    }
    fputs("]}\n", f);
    free(text);
    return err;
}

static dt_err finish_file(FILE *f, const char *part, const char *path)
{
    const bool bad = ferror(f) != 0;
    if (fclose(f) != 0 || bad) return dt_fail(DT_ERR_WRITE, "%s: write failed: %s", part, strerror(errno));
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
    err = comm->rank ? send_text(comm, mine) : collect_texts(comm, mine, f);
    if (err != DT_OK) goto done; /* this rank alone, with others waiting: ends the job through main */
    if (comm->rank == 0) {
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
