/* breakdown.c - computes the breakdown of a step's time from stream spans.
 *
 * A stream's spans carry the phase of the host that queued them. A communication phase on the compute stream means that
 * the stream waits, for a collective or for the host that is busy with one. This is the exposed cost of communication.
 * Computation hides the rest of a collective's time.
 *
 * A model's pass counts towards its purpose: forward and head of a scoring model do not count as training. */
#include "timeline_private.h"
#include <math.h>
#include <string.h>

const char *const dt_time_group_names[DT_N_TIME] = {"data",        "forward", "backward", "comm_exposed",
                                                    "comm_hidden", "update",  "copies",   "agree",
                                                    "rollout",     "score",   "reward"};

static int group_of_name(const char *name)
{
    static const struct {
        const char *name;
        dt_time_group group;
    } table[] = {
        {"read", DT_TIME_DATA},
        {"forward", DT_TIME_FORWARD},
        {"head", DT_TIME_BACKWARD},
        {"backward", DT_TIME_BACKWARD},
        {"gather", DT_TIME_COMM_EXPOSED},
        {"reduce", DT_TIME_COMM_EXPOSED},
        {"wait", DT_TIME_COMM_EXPOSED},
        {"all_gather", DT_TIME_COMM_EXPOSED},
        {"reduce_scatter", DT_TIME_COMM_EXPOSED},
        {"broadcast", DT_TIME_COMM_EXPOSED},
        {"update", DT_TIME_UPDATE},
        {"norm", DT_TIME_UPDATE},
        {"up", DT_TIME_COPIES},
        {"down", DT_TIME_COPIES},
        {"copy", DT_TIME_COPIES},
        {"agree", DT_TIME_AGREE},
        {"rollout", DT_TIME_ROLLOUT},
        {"decode", DT_TIME_ROLLOUT},
        {"score", DT_TIME_SCORE},
        {"reward", DT_TIME_REWARD},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (!strcmp(table[i].name, name)) return table[i].group;
    return -1;
}

static int group_of(const dt_time_span *s)
{
    const int group = group_of_name(s->name);
    return s->work && (group == DT_TIME_FORWARD || group == DT_TIME_BACKWARD) ? group_of_name(s->work) : group;
}

/* The purpose of model passes after this phase. The step's own phases have no unit when they begin. before: the
 * previous purpose. */
const char *dt_time_work(const char *before, const char *name, const char *unit)
{
    const int group = group_of_name(name);
    if (group >= DT_TIME_ROLLOUT) return dt_time_group_names[group];
    const bool pass = *unit && (group == DT_TIME_FORWARD || group == DT_TIME_BACKWARD);
    return pass || group == DT_TIME_COMM_EXPOSED || group == DT_TIME_COPIES ? before : NULL;
}

/* The part of a span between two times. */
static double part_of(const dt_time_span *s, double from_s, double to_s)
{
    const double begin_s = fmax(s->begin_s, from_s), end_s = fmin(s->end_s, to_s);
    return end_s > begin_s ? end_s - begin_s : 0;
}

/* The time between two points during which the compute stream waited for communication. *first: first relevant span; it
 * only increases. */
static double waited_s(const dt_stream_spans *compute, int *first, double from_s, double to_s)
{
    double still_s = 0;
    while (*first < compute->n && compute->span[*first].end_s <= from_s) ++*first;
    for (int i = *first; i < compute->n && compute->span[i].begin_s < to_s; i++)
        if (group_of(&compute->span[i]) == DT_TIME_COMM_EXPOSED) still_s += part_of(&compute->span[i], from_s, to_s);
    return still_s;
}

/* Count the copies of another stream, and the communication that the compute stream does not wait for. */
static void count_stream(const dt_stream_spans *compute, const dt_stream_spans *stream, double from_s, double to_s,
                         double group_s[DT_N_TIME])
{
    int first = 0;
    for (int i = 0; i < stream->n; i++) {
        const dt_time_span *s = &stream->span[i];
        const int group = group_of(s);
        const double busy_s = part_of(s, from_s, to_s);
        if (group == DT_TIME_COPIES) group_s[DT_TIME_COPIES] += busy_s;
        if (group != DT_TIME_COMM_EXPOSED || busy_s == 0) continue;
        group_s[DT_TIME_COMM_HIDDEN] +=
            busy_s - waited_s(compute, &first, fmax(s->begin_s, from_s), fmin(s->end_s, to_s));
    }
}

void dt_time_groups(const dt_stream_spans *streams, int n_streams, double from_s, double to_s,
                    double group_s[DT_N_TIME])
{
    memset(group_s, 0, DT_N_TIME * sizeof *group_s);
    for (int i = 0; i < streams[0].n; i++) {
        const int group = group_of(&streams[0].span[i]);
        if (group >= 0) group_s[group] += part_of(&streams[0].span[i], from_s, to_s);
    }
    for (int k = 1; k < n_streams; k++) count_stream(&streams[0], &streams[k], from_s, to_s, group_s);
}
