/* test_device_queue.c - the contract of the queue device. Operations run late and in the order of their events. Waits
 * are distinguished by the operations queued after them. The next wait returns errors, and memory in use cannot be
 * freed. */
#include "cases.h"
#include "../src/backends/queue.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

typedef struct fixture {
    dt_device dev;
    dt_ledger ledger;
    dt_stream *other;
    dt_event *event;
    dt_buf device, pinned; /* of one number each */
} fixture;

#define OPS (f->dev.ops)

static void open_queue(fixture *f, dt_queue_order order, uint64_t seed)
{
    memset(f, 0, sizeof *f);
    assert_int_equal(dt_queue_open(&f->dev, order, seed, &f->ledger), DT_OK);
    assert_int_equal(OPS->stream_create(&f->dev, &f->other), DT_OK);
    assert_int_equal(OPS->event_create(&f->dev, &f->event), DT_OK);
    assert_int_equal(dt_buf_alloc(&f->device, &f->dev, DT_ON_DEVICE, sizeof(float), DT_MEM_OTHER), DT_OK);
    assert_int_equal(dt_buf_alloc(&f->pinned, &f->dev, DT_ON_PINNED, sizeof(float), DT_MEM_OTHER), DT_OK);
}

static void close_queue(fixture *f)
{
    dt_buf_free(&f->device);
    dt_buf_free(&f->pinned);
    OPS->event_destroy(&f->dev, f->event);
    OPS->stream_destroy(&f->dev, f->other);
    dt_device_close(&f->dev);
    assert_int_equal(atomic_load(&f->ledger.total_now), 0);
}

static dt_err queue_copy(fixture *f, void *dst, const void *src, dt_stream *s)
{
    return OPS->copy(&f->dev, dst, src, sizeof(float), s);
}

TEST(copies_happen_when_they_run)
{
    fixture own, *f = &own;
    float *number = NULL;
    open_queue(f, DT_QUEUE_LATE, 0);
    number = f->pinned.ptr;
    assert_true(*number != *number); /* fresh memory is NaN */
    *number = 1;
    assert_int_equal(queue_copy(f, f->device.ptr, number, NULL), DT_OK);
    *number = 2; /* too early: the copy has this value */
    assert_int_equal(queue_copy(f, number, f->device.ptr, NULL), DT_OK);
    assert_true(*number == 2);
    *number = 3;
    assert_int_equal(OPS->stream_sync(&f->dev, NULL), DT_OK);
    assert_true(*number == 3); /* both ran now, the first one read 3 */
    close_queue(f);
}

/* The other stream writes 1 after the event; the default stream waits for it before it reads. */
static float through_an_event(fixture *f, bool wait)
{
    float one = 1, zero = 0, got = -1;
    assert_int_equal(queue_copy(f, f->device.ptr, &zero, NULL), DT_OK);
    assert_int_equal(OPS->stream_sync(&f->dev, NULL), DT_OK);
    assert_int_equal(queue_copy(f, f->device.ptr, &one, f->other), DT_OK);
    assert_int_equal(OPS->event_record(&f->dev, f->event, f->other), DT_OK);
    if (wait) assert_int_equal(OPS->event_wait(&f->dev, f->event, NULL), DT_OK);
    assert_int_equal(queue_copy(f, &got, f->device.ptr, NULL), DT_OK);
    assert_int_equal(OPS->stream_sync(&f->dev, NULL), DT_OK);
    assert_int_equal(OPS->stream_sync(&f->dev, f->other), DT_OK);
    return got;
}

TEST(streams_are_ordered_only_by_events)
{
    bool early = false, late = false;
    for (int order = 0; order < DT_QUEUE_N_ORDERS; order++)
        for (uint64_t seed = 0; seed < (order == DT_QUEUE_ANY ? 40 : 1); seed++) {
            fixture own, *f = &own;
            open_queue(f, (dt_queue_order)order, seed);
            assert_true(through_an_event(f, true) == 1);
            const float got = through_an_event(f, false);
            if (order == DT_QUEUE_AT_ONCE || order == DT_QUEUE_LATE_DEFAULT) assert_true(got == 1);
            if (order == DT_QUEUE_LATE || order == DT_QUEUE_LATE_OTHERS) assert_true(got == 0);
            if (order == DT_QUEUE_ANY && got == 0) late = true;
            if (order == DT_QUEUE_ANY && got == 1) early = true;
            close_queue(f);
        }
    assert_true(early && late);
}

TEST(an_event_is_reached_when_its_work_is_done)
{
    fixture own, *f = &own;
    bool done = false;
    float *number = NULL;
    open_queue(f, DT_QUEUE_LATE, 0);
    number = f->pinned.ptr, *number = 7;
    assert_int_equal(OPS->event_query(&f->dev, f->event, &done), DT_OK);
    assert_true(done); /* never recorded */
    assert_int_equal(queue_copy(f, f->device.ptr, number, NULL), DT_OK);
    assert_int_equal(OPS->event_record(&f->dev, f->event, NULL), DT_OK);
    assert_int_equal(OPS->event_query(&f->dev, f->event, &done), DT_OK);
    assert_false(done);
    assert_int_equal(OPS->event_sync(&f->dev, f->event), DT_OK);
    assert_int_equal(OPS->event_query(&f->dev, f->event, &done), DT_OK);
    assert_true(done && *(float *)dt_queue_reach(f->device.ptr) == 7);
    close_queue(f);

    open_queue(f, DT_QUEUE_ANY, 1); /* a caller that polls */
    assert_int_equal(queue_copy(f, f->device.ptr, f->pinned.ptr, NULL), DT_OK);
    assert_int_equal(OPS->event_record(&f->dev, f->event, NULL), DT_OK);
    for (done = false; !done;) assert_int_equal(OPS->event_query(&f->dev, f->event, &done), DT_OK);
    assert_int_equal(OPS->stream_sync(&f->dev, NULL), DT_OK);
    close_queue(f);
}

/* A wait for a record waits for that record, even if the event was recorded since on another stream, and reached
 * earlier. */
TEST(an_event_recorded_twice_is_two_points)
{
    for (uint64_t seed = 0; seed < 40; seed++) {
        fixture own, *f = &own;
        dt_stream *third;
        float one = 1, zero = 0, got = -1;
        bool done = false;
        open_queue(f, seed ? DT_QUEUE_ANY : DT_QUEUE_LATE, seed);
        assert_int_equal(OPS->stream_create(&f->dev, &third), DT_OK);
        assert_int_equal(queue_copy(f, f->device.ptr, &zero, NULL), DT_OK);
        assert_int_equal(OPS->stream_sync(&f->dev, NULL), DT_OK);
        assert_int_equal(queue_copy(f, f->device.ptr, &one, f->other), DT_OK);
        assert_int_equal(OPS->event_record(&f->dev, f->event, f->other), DT_OK);
        assert_int_equal(OPS->event_wait(&f->dev, f->event, third), DT_OK);
        assert_int_equal(queue_copy(f, &got, f->device.ptr, third), DT_OK);
        assert_int_equal(OPS->event_record(&f->dev, f->event, NULL), DT_OK);
        assert_int_equal(OPS->event_sync(&f->dev, f->event), DT_OK);
        assert_int_equal(OPS->stream_sync(&f->dev, third), DT_OK);
        assert_true(got == 1);
        assert_int_equal(OPS->event_query(&f->dev, f->event, &done), DT_OK);
        assert_true(done); /* the newest record counts, and does not come undone */
        OPS->stream_destroy(&f->dev, third);
        close_queue(f);
    }
}

/* As on a GPU, the waiting side may know only the event. A new stream at the address of a destroyed one does not own
 * the event. */
TEST(an_event_outlives_its_stream)
{
    fixture own, *f = &own;
    open_queue(f, DT_QUEUE_LATE, 0);
    assert_int_equal(OPS->event_record(&f->dev, f->event, f->other), DT_OK);
    OPS->stream_destroy(&f->dev, f->other);
    assert_int_equal(OPS->event_sync(&f->dev, f->event), DT_OK);
    assert_int_equal(OPS->stream_create(&f->dev, &f->other), DT_OK);
    assert_int_equal(queue_copy(f, f->device.ptr, f->pinned.ptr, f->other), DT_OK);
    const dt_queue_counts before = dt_queue_counts_of(&f->dev);
    assert_int_equal(OPS->event_sync(&f->dev, f->event), DT_OK);
    const dt_queue_counts after = dt_queue_counts_of(&f->dev);
    assert_int_equal(after.host_waits + after.event_waits, before.host_waits + before.event_waits);
    assert_int_equal(OPS->stream_sync(&f->dev, f->other), DT_OK);
    close_queue(f);
}

static void expect_counts(const fixture *f, int64_t host_waits, int64_t event_waits, int64_t pageable_copies)
{
    const dt_queue_counts c = dt_queue_counts_of(&f->dev);
    assert_int_equal(c.host_waits, host_waits);
    assert_int_equal(c.event_waits, event_waits);
    assert_int_equal(c.pageable_copies, pageable_copies);
}

TEST(a_wait_is_attributed_by_the_work_queued_after_it)
{
    for (int order = 0; order < DT_QUEUE_N_ORDERS; order++) { /* whether it has run already makes no difference */
        fixture own, *f = &own;
        float pageable = 0;
        open_queue(f, (dt_queue_order)order, 3);
        assert_int_equal(OPS->event_sync(&f->dev, f->event), DT_OK);
        expect_counts(f, 0, 0, 0);
        assert_int_equal(queue_copy(f, f->device.ptr, f->pinned.ptr, NULL), DT_OK);
        assert_int_equal(OPS->event_record(&f->dev, f->event, NULL), DT_OK);
        assert_int_equal(OPS->event_sync(&f->dev, f->event), DT_OK);
        expect_counts(f, 1, 0, 0);
        assert_int_equal(queue_copy(f, f->pinned.ptr, f->device.ptr, NULL), DT_OK);
        assert_int_equal(OPS->event_sync(&f->dev, f->event), DT_OK);
        expect_counts(f, 1, 1, 0);
        assert_int_equal(queue_copy(f, &pageable, f->device.ptr, NULL), DT_OK);
        assert_int_equal(OPS->stream_sync(&f->dev, NULL), DT_OK);
        expect_counts(f, 2, 1, 1);
        close_queue(f);
    }
}

TEST(a_failed_copy_comes_back_with_the_next_wait)
{
    fixture own, *f = &own;
    open_queue(f, DT_QUEUE_LATE, 0);
    dt_queue_fail_copy(&f->dev, 2);
    for (int i = 0; i < 3; i++) assert_int_equal(queue_copy(f, f->device.ptr, f->pinned.ptr, NULL), DT_OK);
    assert_int_equal(OPS->stream_sync(&f->dev, NULL), DT_ERR_FAULT);
    assert_int_equal(OPS->stream_sync(&f->dev, NULL), DT_OK);
    dt_error_clear();
    close_queue(f);
}

static dt_err add_one(dt_device *cpu, const void *args)
{
    float *const *number = args;
    *(float *)dt_queue_reach(*number) += 1;
    return DT_OK;
}

TEST(work_of_the_test_runs_in_its_place)
{
    fixture own, *f = &own;
    open_queue(f, DT_QUEUE_LATE, 0);
    float *number = f->pinned.ptr, *on_device = f->device.ptr;
    *number = 4;
    assert_int_equal(queue_copy(f, on_device, number, NULL), DT_OK);
    assert_int_equal(dt_queue_call(&f->dev, NULL, add_one, &on_device, sizeof on_device), DT_OK);
    assert_int_equal(queue_copy(f, number, on_device, NULL), DT_OK);
    assert_int_equal(OPS->stream_sync(&f->dev, NULL), DT_OK);
    assert_true(*number == 5);
    close_queue(f);
}

/* Does it end the process? */
static bool ends(fixture *f, void (*act)(fixture *f))
{
    int status = 0;
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        const struct rlimit no_core = {0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGABRT, SIG_DFL), signal(SIGSEGV, SIG_DFL), signal(SIGBUS, SIG_DFL);
        fclose(stderr);
        act(f);
        _exit(0);
    }
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void free_both(fixture *f)
{
    dt_buf_free(&f->device);
    dt_buf_free(&f->pinned);
}
static void free_pinned(fixture *f) { dt_buf_free(&f->pinned); }
static void read_device_memory(fixture *f) { *(volatile float *)f->device.ptr; }

static void destroy_other(fixture *f) { OPS->stream_destroy(&f->dev, f->other); }

TEST(memory_in_use_is_not_freed_nor_device_memory_read)
{
    fixture own, *f = &own;
    open_queue(f, DT_QUEUE_LATE, 0);
    assert_false(ends(f, free_both));
    assert_false(ends(f, destroy_other));
    assert_int_equal(OPS->zero(&f->dev, f->device.ptr, sizeof(float), f->other), DT_OK);
    assert_false(ends(f, free_pinned));
    assert_true(ends(f, free_both));
    assert_true(ends(f, destroy_other));
    assert_true(ends(f, read_device_memory));
    assert_int_equal(OPS->stream_sync(&f->dev, f->other), DT_OK);
    assert_int_equal(OPS->zero(&f->dev, f->pinned.ptr, sizeof(float), NULL), DT_ERR_ARG); /* host memory */
    dt_error_clear();
    close_queue(f);
}

/* What the CPU does, late. From `copy` on the table holds functions alone. */
TEST(every_operation_of_the_table_is_there)
{
    typedef void (*function)(void);
    for (size_t at = offsetof(dt_device_ops, copy); at < sizeof(dt_device_ops); at += sizeof(function)) {
        function of_cpu, of_queue;
        memcpy(&of_cpu, (const char *)&dt_device_cpu_ops + at, sizeof of_cpu);
        memcpy(&of_queue, (const char *)&dt_device_queue_ops + at, sizeof of_queue);
        if (!of_cpu || (of_queue && of_queue != of_cpu)) continue;
        print_error("entry at byte %zu: %s\n", at, of_queue ? "the CPU's own" : "not there");
        fail();
    }
}

int main(void) { return run_listed(NULL, NULL, NULL); }
