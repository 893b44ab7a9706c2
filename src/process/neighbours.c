/* neighbours.c - observes processes of the same host through /proc. */
#include "neighbours.h"
#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void neighbours_open(neighbours *all, const dt_comm *comm)
{
    const size_t n = (size_t)comm->n_neighbours;
    *all = (neighbours){.list = calloc(n, sizeof *all->list), .switches = calloc(n, sizeof *all->switches)};
    if (!all->list || !all->switches) return;
    for (int i = 0; i < comm->n_neighbours; i++)
        if (comm->neighbours[i].pid) all->list[all->n++] = comm->neighbours[i];
}

void neighbours_close(neighbours *all)
{
    free(all->list), free(all->switches);
    *all = (neighbours){0};
}

/* Both kinds of a thread's context switches. */
static int64_t switches_of_thread(int pid, const char *thread)
{
    char path[80], line[128];
    int64_t sum = 0, n;
    snprintf(path, sizeof path, "/proc/%d/task/%.20s/status", pid, thread);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "voluntary_ctxt_switches:"); /* also matches "nonvoluntary_" */
        if (at && sscanf(at, "%*[^:]: %" SCNd64, &n) == 1) sum += n;
    }
    if (f) fclose(f);
    return sum;
}

static int64_t switches_of(int pid)
{
    char path[40];
    int64_t sum = 0;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *threads = opendir(path);
    if (!threads) return -1;
    for (const struct dirent *e; (e = readdir(threads));)
        if (*e->d_name != '.') sum += switches_of_thread(pid, e->d_name);
    closedir(threads);
    return sum;
}

void neighbours_look(neighbours *all)
{
    for (int i = 0; i < all->n; i++) all->switches[i] = switches_of(all->list[i].pid);
    all->looked_s = dt_now_s();
}

bool process_stat(long long pid, char *state, long long *start)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", pid);
    FILE *f = fopen(path, "re");
    const size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = '\0';
    const char *after_name = strrchr(text, ')'); /* the name may contain any characters */
    return after_name &&
           sscanf(after_name, ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %lld",
                  state, start) == 2;
}

static bool is_stopped(int pid)
{
    char state;
    long long start;
    return process_stat(pid, &state, &start) && (state == 'T' || state == 't');
}

char *neighbours_missing(const neighbours *all, char *out, size_t out_size)
{
    size_t len = 0;
    *out = '\0';
    for (int i = 0; i < all->n && all->looked_s > 0 && len < out_size; i++) {
        const dt_neighbour *who = &all->list[i];
        const int64_t now = switches_of(who->pid);
        if (all->switches[i] < 0 || now > all->switches[i]) continue;
        len += (size_t)snprintf(out + len, out_size - len,
                                "; rank %d on this host has not run for at least %.0f s: its process %d %s", who->rank,
                                dt_now_s() - all->looked_s, who->pid,
                                now < 0                ? "has ended"
                                : is_stopped(who->pid) ? "is stopped (SIGSTOP)"
                                                       : "is suspended");
    }
    return out;
}
