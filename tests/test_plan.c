/* test_plan.c - the memory that bounds a plan: with one shared memory or two separate ones, and with ranks that
 * share a device. mpi_run.c compares the plan with allocations. */
#include "cases.h"
#include "../src/train/run.h"

enum { MIB = 1 << 20 };

static void open_device(dt_run *run, const char *backend, const char *memory)
{
    setenv("DTRAIN_DEVICE", backend, 1);
    setenv("DTRAIN_QUEUE_MEMORY", memory, 1);
    assert_int_equal(dt_device_open(&run->dev, "cpu", 0, 1, &run->ledger), DT_OK);
}

TEST(ranks_share_the_memory_of_their_device_and_not_of_all)
{
    static const struct {
        int ranks, sharing;
    } cases[] = {{8, 1}, {8, 2}, {8, 8}, {9, 2}, {3, 1}, {4, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_comm comm = {.n_sharing = cases[i].sharing};
        dt_run run = {.comm = &comm};
        budget b;
        open_device(&run, "queue", "96MiB");
        run_budget(&run, cases[i].ranks, &b);
        assert_int_equal(b.n, 2);
        assert_int_equal(b.memory[0].n_sharing, cases[i].sharing);
        assert_int_equal(b.memory[0].nbytes, 96 * MIB / cases[i].sharing);
        assert_int_equal(b.memory[1].n_sharing, cases[i].ranks);
        dt_device_close(&run.dev);
    }
}

TEST(on_the_cpu_all_places_are_one_memory_of_the_node)
{
    dt_run run = {0};
    budget b;
    open_device(&run, "cpu", "96MiB");
    run_budget(&run, 8, &b);
    assert_int_equal(b.n, 1);
    assert_int_equal(b.memory[0].n_sharing, 8);
    for (int p = 0; p < DT_N_MEMSPACE; p++) assert_int_equal(b.memory[0].holds[p], p != DT_IN_FILE);
    dt_device_close(&run.dev);
}

TEST(a_disk_is_a_separate_memory_space_of_the_node)
{
    static const char *const backends[] = {"cpu", "queue"};
    for (int i = 0; i < 2; i++) {
        dt_run run = {.cfg.zero_nvme_path = "/tmp"};
        budget one, four;
        open_device(&run, backends[i], "96MiB");
        run_budget(&run, 1, &one);
        run_budget(&run, 4, &four);
        assert_int_equal(one.n, i + 2);
        const rank_memory *disk = &four.memory[four.n - 1];
        for (int p = 0; p < DT_N_MEMSPACE; p++) assert_int_equal(disk->holds[p], p == DT_IN_FILE);
        assert_int_equal(disk->n_sharing, 4);
        assert_true(disk->nbytes > 0 && disk->nbytes < one.memory[one.n - 1].nbytes / 2); /* it is in use meanwhile */
        run.cfg.zero_nvme_path = "/tmp/nowhere";
        run_budget(&run, 1, &one);
        assert_true(one.memory[i + 1].nbytes == SIZE_MAX);
        dt_device_close(&run.dev);
    }
}

static dt_memory bytes(size_t device, size_t pinned, size_t host, size_t file)
{
    dt_memory m = {0};
    m.at[DT_MEM_PARAMS][DT_ON_DEVICE] = device / 2, m.at[DT_MEM_STAGING][DT_ON_DEVICE] = device - device / 2;
    m.at[DT_MEM_STAGING][DT_ON_PINNED] = pinned;
    m.at[DT_MEM_DATA][DT_ON_HOST] = host;
    m.at[DT_MEM_OPTIMIZER][DT_IN_FILE] = file;
    return m;
}

TEST(a_plan_fits_when_each_memory_holds_its_part)
{
    const budget one = {.n = 1, .memory = {{.nbytes = 100, .holds = {true, true, true}}}},
                 two = {.n = 2,
                        .memory = {{.nbytes = 100, .holds = {true}}, {.nbytes = 50, .holds = {false, true, true}}}};
    static const struct {
        size_t device, pinned, host, file;
        int fits_one, short_of; /* of two: -1 fits */
    } cases[] = {
        {90, 0, 0, 0, true, -1},       {91, 0, 0, 0, false, 0},     {60, 20, 10, 0, true, -1},
        {60, 20, 11, 0, false, -1},    {90, 20, 25, 0, false, -1},  {10, 20, 26, 0, true, 1},
        {0, 46, 0, 0, true, 1},        {0, 0, 46, 0, true, 1},      {100, 50, 50, 0, false, 0},
        {90, 0, 0, 1 << 30, true, -1}, {0, 0, 45, 99999, true, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const dt_memory m = bytes(cases[i].device, cases[i].pinned, cases[i].host, cases[i].file);
        assert_int_equal(run_exceeds(&one, 0.9, &m) == NULL, cases[i].fits_one);
        const rank_memory *small = run_exceeds(&two, 0.9, &m);
        assert_ptr_equal(small, cases[i].short_of < 0 ? NULL : &two.memory[cases[i].short_of]);
    }
}

/* More than the device has is refused before the host's memory is taken for it; the host's places are not bounded. */
TEST(the_queue_device_has_the_memory_that_it_is_given)
{
    dt_run run = {0};
    dt_buf a, b, c;
    open_device(&run, "queue", "1MiB");
    assert_int_equal(dt_buf_alloc(&a, &run.dev, DT_ON_DEVICE, MIB / 2, DT_MEM_PARAMS), DT_OK);
    assert_fails(dt_buf_alloc(&b, &run.dev, DT_ON_DEVICE, MIB / 2 + 1, DT_MEM_PARAMS), DT_ERR_MEMORY, "512 KiB free");
    assert_int_equal(dt_buf_alloc(&b, &run.dev, DT_ON_PINNED, MIB, DT_MEM_STAGING), DT_OK);
    assert_int_equal(dt_buf_alloc(&c, &run.dev, DT_ON_DEVICE, MIB / 2, DT_MEM_PARAMS), DT_OK);
    const dt_memory held = run_held(&run);
    assert_int_equal(held.at[DT_MEM_PARAMS][DT_ON_DEVICE], MIB);
    assert_int_equal(held.at[DT_MEM_STAGING][DT_ON_PINNED], MIB);
    dt_buf_free(&a), dt_buf_free(&b), dt_buf_free(&c);
    dt_device_close(&run.dev);
}

TEST(groups_of_experts_have_a_reason)
{
    static const rank_memory memory = {.name = "device memory"};
    const struct {
        trial t;
        const char *why;
    } cases[] = {{{.n_experts = 0}, ""},
                 {{.n_experts = 7, .whole_short_of = &memory}, "all are too large for the device memory"},
                 {{.n_experts = 7, .whole_needs_live = 99}, "all need zero.max_live_parameters >= 99"},
                 {{.n_experts = 7}, "larger groups are too large for the memory of another rank"}}; /* share_groups */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[GROUPS_TEXT], want[GROUPS_TEXT] = "";
        trial t = cases[i].t;
        t.expert_group_size = 2;
        if (t.n_experts)
            snprintf(want, sizeof want, "zero.expert_group_size = auto takes 2 of 7 experts, because %s", cases[i].why);
        assert_string_equal(run_groups_text(&t, text), want);
    }
}

int main(void) { return run_listed(NULL, NULL, NULL); }
