/* test_timeline.c - where the time of a step went follows from what streams did, and what they did is seen as the
 * device did it, with the host far ahead. */
#include "cases.h"
#include "../src/backends/queue.h"
#include "../src/process/timeline_private.h"

/* ---- from made-up intervals to seconds --------------------------------------------------------------------------- */

#define SPANS(list)                                                                                                    \
    {                                                                                                                  \
        list, sizeof list / sizeof list[0]                                                                             \
    }
#define SPAN(what, from, to)                                                                                           \
    {                                                                                                                  \
        .begin_s = from, .end_s = to, .name = what, .unit = ""                                                         \
    }

static const dt_time_span compute_spans[] = {
    SPAN("forward", 0, 10), SPAN("wait", 10, 14),  SPAN("backward", 14, 20), SPAN("reduce", 20, 21),
    SPAN("update", 21, 25), SPAN("agree", 25, 26), SPAN("read", 26, 30),     SPAN("save", 30, 31),
};
static const dt_time_span comm_spans[] = {
    SPAN("all_gather", 5, 13),      /* 5 concurrent with forward, 3 waited for */
    SPAN("reduce_scatter", 16, 22), /* 4 overlap backward, 1 the update */
    SPAN("all_gather", 27, 28),     /* no wait: there is no data yet */
};
static const dt_time_span copy_spans[] = {SPAN("down", 18, 24), SPAN("up", 24, 25)};
static const dt_stream_spans made_up[] = {SPANS(compute_spans), SPANS(comm_spans), SPANS(copy_spans)};
static const double made_up_s[DT_N_TIME] = {
    [DT_TIME_DATA] = 4,         [DT_TIME_FORWARD] = 10, [DT_TIME_BACKWARD] = 6, [DT_TIME_COMM_EXPOSED] = 4 + 1,
    [DT_TIME_COMM_HIDDEN] = 11, [DT_TIME_UPDATE] = 4,   [DT_TIME_COPIES] = 7,   [DT_TIME_AGREE] = 1};

TEST(intervals_become_seconds)
{
    double group_s[DT_N_TIME];
    dt_time_groups(made_up, 3, 0, 31, group_s);
    for (int g = 0; g < DT_N_TIME; g++) assert_true(group_s[g] == made_up_s[g]);
}

/* However a step is cut, its parts add up to the whole: all values are multiples of a quarter, so sums are exact. */
TEST(parts_add_up)
{
    for (double step_s = 0.25; step_s < 32; step_s *= 2) {
        double sum_s[DT_N_TIME] = {0}, group_s[DT_N_TIME];
        for (double at_s = 0; at_s < 31; at_s += step_s) {
            dt_time_groups(made_up, 3, at_s, at_s + step_s, group_s);
            for (int g = 0; g < DT_N_TIME; g++) sum_s[g] += group_s[g];
        }
        for (int g = 0; g < DT_N_TIME; g++) assert_true(sum_s[g] == made_up_s[g]);
    }
}

/* Without a stream of its own communication overlaps no computation. */
TEST(one_stream_overlaps_no_communication)
{
    static const dt_time_span all[] = {SPAN("forward", 0, 2), SPAN("all_gather", 2, 5), SPAN("backward", 5, 6)};
    const dt_stream_spans one = SPANS(all);
    double group_s[DT_N_TIME];
    dt_time_groups(&one, 1, 0, 6, group_s);
    assert_true(group_s[DT_TIME_COMM_EXPOSED] == 3 && group_s[DT_TIME_COMM_HIDDEN] == 0);
}

/* What a model computes counts for what it is for: until the step's own pass begins, also across the waits of a
 * model that is gathered. */
TEST(passes_are_attributed_to_their_purpose)
{
    static const struct {
        const char *name, *unit;
        dt_time_group group;
    } phases[] = {{"rollout", "prompts", DT_TIME_ROLLOUT},
                  {"decode", "block.0", DT_TIME_ROLLOUT},
                  {"head", "head", DT_TIME_ROLLOUT},
                  {"rollout", "agree", DT_TIME_ROLLOUT},
                  {"reward", "program", DT_TIME_REWARD},
                  {"score", "policy", DT_TIME_SCORE},
                  {"forward", "embed", DT_TIME_SCORE},
                  {"gather", "block.0", DT_TIME_COMM_EXPOSED},
                  {"forward", "block.0", DT_TIME_SCORE},
                  {"head", "head", DT_TIME_SCORE},
                  {"forward", "", DT_TIME_FORWARD},
                  {"forward", "embed", DT_TIME_FORWARD},
                  {"head", "", DT_TIME_BACKWARD},
                  {"score", "judge", DT_TIME_SCORE},
                  {"forward", "block.0", DT_TIME_SCORE},
                  {"head", "", DT_TIME_BACKWARD},
                  {"head", "head", DT_TIME_BACKWARD},
                  {"backward", "", DT_TIME_BACKWARD},
                  {"norm", "", DT_TIME_UPDATE},
                  {"forward", "embed", DT_TIME_FORWARD}};
    const char *work = NULL;
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++) {
        double group_s[DT_N_TIME];
        work = dt_time_work(work, phases[i].name, phases[i].unit);
        const dt_time_span span = {.end_s = 1, .name = phases[i].name, .unit = phases[i].unit, .work = work};
        const dt_stream_spans one = {&span, 1};
        dt_time_groups(&one, 1, 0, 1, group_s);
        for (int g = 0; g < DT_N_TIME; g++) assert_true(group_s[g] == ((dt_time_group)g == phases[i].group));
    }
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

enum { N_UNITS = 3, N_STEPS = 4, N_BYTES = 4096 };
static const char *const units[N_UNITS] = {"a", "b", "c"};

typedef struct rig {
    dt_ledger ledger;
    dt_device dev;
    dt_phase phase;
    dt_timeline *timeline;
    dt_stream *compute, *comm;
    dt_event *made[N_UNITS], *sent[N_UNITS];
    dt_buf memory;
    int64_t number;
} rig;

static void open_rig(rig *r, dt_queue_order order, uint64_t seed, bool breakdown, bool trace)
{
    memset(r, 0, sizeof *r);
    assert_int_equal(dt_queue_open(&r->dev, order, seed, &r->ledger), DT_OK);
    dt_phase_enter(&r->phase, "start", "");
    assert_int_equal(dt_timeline_open(&r->timeline, &r->phase, breakdown, trace, &r->ledger), DT_OK);
    dt_timeline_attach(r->timeline, &r->dev);
    assert_int_equal(dt_stream_open(&r->dev, &r->compute, "compute"), DT_OK);
    assert_int_equal(dt_stream_open(&r->dev, &r->comm, "communication"), DT_OK);
    dt_memory planned = {0};
    dt_stream_plan(&r->dev, 2, &planned);
    planned.at[DT_MEM_OTHER][DT_ON_HOST] += dt_timeline_nbytes(trace);
    const dt_memory held = dt_ledger_now(&r->ledger);
    assert_memory_equal(&planned, &held, sizeof held);
    assert_true(held.at[DT_MEM_OTHER][DT_ON_HOST] > 0 || !(breakdown || trace));
    for (int u = 0; u < N_UNITS; u++) {
        assert_int_equal(r->dev.ops->event_create(&r->dev, &r->made[u]), DT_OK);
        assert_int_equal(r->dev.ops->event_create(&r->dev, &r->sent[u]), DT_OK);
    }
    assert_int_equal(dt_buf_alloc(&r->memory, &r->dev, DT_ON_DEVICE, N_BYTES, DT_MEM_OTHER), DT_OK);
}

static void close_rig(rig *r)
{
    assert_int_equal(r->dev.ops->stream_sync(&r->dev, r->compute), DT_OK);
    assert_int_equal(r->dev.ops->stream_sync(&r->dev, r->comm), DT_OK);
    dt_timeline_close(r->timeline);
    assert_null(r->dev.listener);
    for (int u = 0; u < N_UNITS; u++) {
        r->dev.ops->event_destroy(&r->dev, r->made[u]);
        r->dev.ops->event_destroy(&r->dev, r->sent[u]);
    }
    dt_buf_free(&r->memory);
    dt_stream_close(&r->dev, r->compute);
    dt_stream_close(&r->dev, r->comm);
    dt_device_close(&r->dev);
    const dt_memory left = dt_ledger_now(&r->ledger), nothing = {0};
    assert_memory_equal(&left, &nothing, sizeof left);
}

static void work(rig *r, dt_stream *stream)
{
    assert_int_equal(r->dev.ops->zero(&r->dev, r->memory.ptr, N_BYTES, stream), DT_OK);
}

/* A unit's gradients are sent after its backward, and waited for before the unit is used again. */
static void queue_step(rig *r)
{
    const dt_device_ops *ops = r->dev.ops;
    for (int u = 0; u < N_UNITS; u++) {
        dt_phase_enter(&r->phase, "backward", units[u]);
        if (r->number >= N_UNITS) {
            dt_stream_begin(&r->dev, r->compute, "wait", units[u], r->number - N_UNITS + 1);
            assert_int_equal(ops->event_wait(&r->dev, r->sent[u], r->compute), DT_OK);
            dt_stream_end(&r->dev, r->compute);
        }
        work(r, r->compute);
        dt_phase_enter(&r->phase, "reduce", units[u]);
        assert_int_equal(ops->event_record(&r->dev, r->made[u], r->compute), DT_OK);
        assert_int_equal(ops->event_wait(&r->dev, r->made[u], r->comm), DT_OK);
        dt_stream_begin(&r->dev, r->comm, "reduce_scatter", units[u], ++r->number);
        work(r, r->comm);
        dt_stream_end(&r->dev, r->comm);
        assert_int_equal(ops->event_record(&r->dev, r->sent[u], r->comm), DT_OK);
    }
}

/* The span of a name and a number, or for a unit the nth. */
static const dt_time_span *find(const rig *r, const char *name, const char *unit, int64_t number, int nth)
{
    const dt_timeline *t = r->timeline;
    for (int i = 0; i < t->n_spans; i++) {
        const dt_time_span *s = &t->spans[i];
        if (s->lane < LANE_STREAMS || strcmp(s->name, name) != 0) continue;
        if ((number && s->number == number) || (!number && !strcmp(s->unit, unit) && nth-- == 0)) return s;
    }
    return NULL;
}

static bool lanes_are_in_order(const rig *r)
{
    double end_s[LANE_STREAMS + 2] = {0};
    for (int i = 0; i < r->timeline->n_spans; i++) {
        const dt_time_span *s = &r->timeline->spans[i];
        if (s->begin_s < end_s[s->lane] || s->end_s < s->begin_s) return false;
        end_s[s->lane] = s->end_s;
    }
    return true;
}

/* The times are those of the host's clock, to the bit: nothing is allowed for. */
TEST(work_starts_after_what_it_waits_for)
{
    for (int order = 0; order < DT_QUEUE_N_ORDERS; order++)
        for (uint64_t seed = 1; seed <= 5; seed++) {
            rig r;
            open_rig(&r, (dt_queue_order)order, seed, false, true);
            for (int k = 0; k < N_STEPS; k++) queue_step(&r);
            dt_phase_enter(&r.phase, "agree", "");
            assert_int_equal(r.dev.ops->stream_sync(&r.dev, r.compute), DT_OK);
            assert_int_equal(r.dev.ops->stream_sync(&r.dev, r.comm), DT_OK);
            timeline_read(r.timeline);
            assert_true(lanes_are_in_order(&r));
            for (int64_t n = 1; n <= r.number; n++) {
                const dt_time_span *sent = find(&r, "reduce_scatter", NULL, n, 0), *wait = find(&r, "wait", NULL, n, 0);
                const int unit = (int)((n - 1) % N_UNITS), step = (int)((n - 1) / N_UNITS);
                /* from the second step on a wait comes between the phase and its work */
                const dt_time_span *made = find(&r, "backward", units[unit], 0, step ? 2 * step : 0);
                assert_non_null(sent);
                assert_non_null(made);
                assert_true(sent->begin_s >= made->end_s);
                assert_true(n > r.number - N_UNITS ? !wait : wait && wait->end_s >= sent->end_s);
            }
            close_rig(&r);
        }
}

/* The groups of all steps are those of all spans at once: times are multiples of the clock's last place, so sums are
 * exact. */
static bool is_sum_of_spans(const rig *r, double from_s, const double sum_s[DT_N_TIME])
{
    static dt_time_span spans[2][TIMELINE_SPANS];
    dt_stream_spans streams[2] = {{spans[0], 0}, {spans[1], 0}};
    double group_s[DT_N_TIME];
    for (int i = 0; i < r->timeline->n_spans; i++) {
        const dt_time_span s = r->timeline->spans[i];
        if (s.lane >= LANE_STREAMS) spans[s.lane - LANE_STREAMS][streams[s.lane - LANE_STREAMS].n++] = s;
    }
    dt_time_groups(streams, 2, from_s, r->timeline->counted_s, group_s);
    for (int g = 0; g < DT_N_TIME; g++)
        if (group_s[g] != sum_s[g]) return false;
    return group_s[DT_TIME_BACKWARD] > 0 && group_s[DT_TIME_COMM_EXPOSED] > 0;
}

/* Looking costs no wait, whatever the order, and nothing is counted twice or lost between two looks. */
TEST(polling_does_not_wait)
{
    for (int i = 0; i < 20 * DT_QUEUE_N_ORDERS; i++) {
        rig r;
        double group_s[DT_N_TIME], sum_s[DT_N_TIME] = {0};
        open_rig(&r, (dt_queue_order)(i % DT_QUEUE_N_ORDERS), (uint64_t)i, true, true);
        const double from_s = r.timeline->counted_s;
        for (int k = 0; k < N_STEPS; k++) {
            queue_step(&r);
            assert_int_equal(r.dev.ops->stream_sync(&r.dev, r.compute), DT_OK);
            dt_timeline_take(r.timeline, group_s);
            for (int g = 0; g < DT_N_TIME; g++) sum_s[g] += group_s[g];
        }
        const dt_queue_counts counts = dt_queue_counts_of(&r.dev);
        assert_int_equal(counts.host_waits, N_STEPS);
        assert_int_equal(counts.event_waits, 0);
        assert_int_equal(r.dev.ops->stream_sync(&r.dev, r.comm), DT_OK);
        timeline_read(r.timeline);
        assert_true(is_sum_of_spans(&r, from_s, sum_s));
        close_rig(&r);
    }
}

/* A stream that lags too far behind the host keeps its last marks: others are dropped, and counted. */
TEST(a_stream_far_behind_the_host_drops_marks)
{
    rig r;
    open_rig(&r, DT_QUEUE_LATE, 0, false, true);
    for (int k = 0; k < 2 * TIMELINE_MARKS; k++) dt_phase_enter(&r.phase, "forward", units[k % 2]);
    assert_int_equal(r.timeline->streams[0].n_made, TIMELINE_MARKS);
    assert_int_equal(r.timeline->n_left_out, TIMELINE_MARKS / 2); /* the others go back to what the last mark says */
    assert_int_equal(r.dev.ops->stream_sync(&r.dev, r.compute), DT_OK);
    for (int k = 0; k < TIMELINE_MARKS; k++) dt_phase_enter(&r.phase, "forward", units[k % 2]);
    assert_int_equal(r.timeline->n_left_out, TIMELINE_MARKS / 2);
    close_rig(&r);
}

/* A stream that has more spans in a step than are kept: what was counted early is not counted again. */
TEST(many_spans_are_counted_once)
{
    rig r;
    double group_s[DT_N_TIME];
    open_rig(&r, DT_QUEUE_AT_ONCE, 1, true, false);
    const double from_s = dt_now_s();
    for (int k = 0; k < 3 * TIMELINE_COUNTED; k++) dt_phase_enter(&r.phase, k % 2 ? "forward" : "backward", "");
    dt_phase_enter(&r.phase, "agree", "");
    const double to_s = dt_now_s();
    dt_timeline_take(r.timeline, group_s);
    assert_int_equal(r.timeline->n_left_out, 0);
    const double sum_s = group_s[DT_TIME_FORWARD] + group_s[DT_TIME_BACKWARD];
    assert_true(sum_s > 0 && sum_s <= to_s - from_s);
    close_rig(&r);
}

TEST(streams_of_the_same_name_are_distinguished)
{
    rig r;
    dt_stream *more[2];
    open_rig(&r, DT_QUEUE_ANY, 1, false, true);
    for (int i = 0; i < 2; i++) assert_int_equal(dt_stream_open(&r.dev, &more[i], "communication"), DT_OK);
    assert_string_equal(r.timeline->streams[1].name, "communication");
    assert_string_equal(r.timeline->streams[2].name, "communication 2");
    assert_string_equal(r.timeline->streams[3].name, "communication 3");
    for (int i = 0; i < 2; i++) dt_stream_close(&r.dev, more[i]);
    close_rig(&r);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
