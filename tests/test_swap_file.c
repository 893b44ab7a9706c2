/* test_swap_file.c - the file of offloaded states: data read equal data written, by every way that transfers can
 * take, and no file remains on the disk. */
#include "swap_fixture.h"
#include <sched.h>

TEST(a_fresh_file_reads_as_zeros_and_is_what_the_plan_says)
{
    dt_ledger ledger = {0};
    dt_memory plan = {0};
    dt_swap_options opt = options(3 * BLOCK, 4);
    opt.nbytes[DT_MEM_PARAMS] = 5 * BLOCK;
    opt.ledger = &ledger;
    dt_swap_plan(&opt, &plan);
    assert_int_equal(plan.at[DT_MEM_PARAMS][DT_IN_FILE], 5 * BLOCK);
    assert_int_equal(plan.at[DT_MEM_OPTIMIZER][DT_IN_FILE], 3 * BLOCK);

    dt_swap_file *f = NULL;
    is_ok(dt_swap_open(&f, &opt));
    const dt_memory now = dt_ledger_now(&ledger);
    assert_memory_equal(&now, &plan, sizeof now);
    assert_int_equal(n_files(folder), 0); /* it has no name */

    char found[8 * BLOCK];
    static const char zeros[8 * BLOCK];
    memset(found, 1, sizeof found);
    is_ok(dt_swap_read_bytes(f, 0, found, sizeof found));
    assert_memory_equal(found, zeros, sizeof zeros);
    dt_swap_close(f);
    const dt_memory after = dt_ledger_now(&ledger), nothing = {0};
    assert_memory_equal(&after, &nothing, sizeof after);
    dt_swap_close(NULL);
}

/* Requests that do not touch each other, more than the depth, waited for in any order. */
enum { FILE_BLOCKS = 1024, IN_FLIGHT = 12 };

typedef struct traffic {
    dt_swap_file *f;
    char *copy;   /* what the file holds */
    char *memory; /* [IN_FLIGHT][FILE_BLOCKS / IN_FLIGHT] blocks */
    dt_swap_request request[IN_FLIGHT];
    uint64_t seed;
} traffic;

enum { REACH = FILE_BLOCKS / IN_FLIGHT }; /* blocks: request k stays within its REACH, which move from round to round */

static void submit_one(traffic *t, int k, int first_block)
{
    const size_t skip = draw(&t->seed, REACH), n = draw(&t->seed, REACH - skip + 1);
    const int64_t offset = (int64_t)((size_t)first_block + skip) * BLOCK;
    char *memory = t->memory + (size_t)k * REACH * BLOCK;
    if (draw(&t->seed, 2)) {
        fill(memory, n * BLOCK, t->seed);
        memcpy(t->copy + offset, memory, n * BLOCK);
        is_ok(dt_swap_write(t->f, offset, memory, n * BLOCK, &t->request[k]));
    } else {
        memset(memory, 0x55, n * BLOCK);
        is_ok(dt_swap_read(t->f, offset, memory, n * BLOCK, &t->request[k]));
    }
}

static void wait_one(traffic *t, int k)
{
    const dt_swap_request r = t->request[k];
    if (draw(&t->seed, 2))
        while (!dt_swap_done(t->f, &t->request[k])) sched_yield();
    is_ok(dt_swap_wait(t->f, &t->request[k]));
    is_ok(dt_swap_wait(t->f, &t->request[k])); /* nothing to wait for */
    if (r.nbytes > 0 && !r.write)
        assert_memory_equal(t->memory + (size_t)k * REACH * BLOCK, t->copy + r.offset, r.nbytes);
}

static int n_under_way(const traffic *t)
{
    int n = 0;
    for (int k = 0; k < IN_FLIGHT; k++) n += t->request[k].under_way;
    return n;
}

TEST(traffic_of_any_depth_agrees_with_a_plain_copy)
{
    const int depths[] = {1, 5, 64};
    const bool late = strstr(*state, "late"); /* the others may have ended what was begun just now */
    traffic t = {.copy = calloc(FILE_BLOCKS, BLOCK), .memory = blocks((size_t)FILE_BLOCKS * BLOCK), .seed = 1};
    for (int d = 0; d < 3; d++) {
        t.f = open_file((size_t)FILE_BLOCKS * BLOCK, depths[d]);
        memset(t.copy, 0, (size_t)FILE_BLOCKS * BLOCK);
        int most = 0;
        for (int round = 0; round < 20; round++) {
            const int first = (int)draw(&t.seed, FILE_BLOCKS - IN_FLIGHT * REACH + 1);
            for (int k = 0; k < IN_FLIGHT; k++) {
                submit_one(&t, k, first + k * REACH);
                assert_in_range(n_under_way(&t), 0, depths[d]);
            }
            most = n_under_way(&t) > most ? n_under_way(&t) : most;
            for (int k = 0, at = (int)draw(&t.seed, IN_FLIGHT); k < IN_FLIGHT; k++)
                wait_one(&t, (at + 5 * k) % IN_FLIGHT); /* 5 and 12 have no divisor in common */
        }
        if (late && depths[d] > 1) assert_in_range(most, 2, depths[d]);
        is_ok(dt_swap_read_bytes(t.f, 0, t.memory, (size_t)FILE_BLOCKS * BLOCK));
        assert_memory_equal(t.memory, t.copy, (size_t)FILE_BLOCKS * BLOCK);
        dt_swap_close(t.f);
    }
    free(t.copy);
    free(t.memory);
}

TEST(a_request_of_several_transfers_is_whole)
{
    const size_t nbytes = 2 * (size_t)DT_SWAP_TRANSFER + 3 * BLOCK;
    assert_int_equal(dt_swap_transfers(nbytes), 3);
    char *out = blocks(nbytes), *in = blocks(nbytes);
    fill(out, nbytes, 7);
    for (int depth = 1; depth <= 4; depth += 3) {
        dt_swap_request write = {0}, small = {0}, read = {0};
        dt_swap_file *f = open_file(nbytes + BLOCK, depth);
        memset(in, 0, nbytes);
        is_ok(dt_swap_write(f, BLOCK, out, nbytes, &write));
        is_ok(dt_swap_read(f, 0, in, BLOCK, &small)); /* queued after it */
        is_ok(dt_swap_wait(f, &small));
        is_ok(dt_swap_wait(f, &write));
        is_ok(dt_swap_read(f, BLOCK, in, nbytes, &read));
        is_ok(dt_swap_wait(f, &read));
        assert_memory_equal(in, out, nbytes);
        dt_swap_close(f);
    }
    free(in);
    free(out);
}

TEST(any_range_of_bytes_is_read_and_written_and_no_other)
{
    const size_t nbytes = 10 * MIB, edge = 4 * MIB; /* the length of the buffer that such a range goes through */
    const size_t offsets[] = {0, 1, 777, BLOCK - 1, BLOCK, BLOCK + 1, edge - 1, edge, edge + 9};
    const size_t lengths[] = {0, 1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 3 * BLOCK, edge - 1, edge, edge + 1};
    char *copy = calloc(1, nbytes), *found = malloc(nbytes), *bytes = malloc(nbytes);
    fill(bytes, nbytes, 3);
    dt_swap_file *f = open_file(nbytes, 2);
    for (size_t o = 0; o < sizeof offsets / sizeof *offsets; o++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            const char *from = bytes + 1 + 13 * l + 8 * o;
            memcpy(copy + offsets[o], from, lengths[l]);
            is_ok(dt_swap_write_bytes(f, (int64_t)offsets[o], from, lengths[l]));
            memset(found, 0x55, lengths[l] + 1);
            is_ok(dt_swap_read_bytes(f, (int64_t)offsets[o], found + 1, lengths[l]));
            assert_int_equal(found[0], 0x55);
            assert_memory_equal(found + 1, from, lengths[l]);
        }
    is_ok(dt_swap_read_bytes(f, 0, found, nbytes));
    assert_memory_equal(found, copy, nbytes);
    is_ok(dt_swap_write_bytes(f, (int64_t)nbytes - 3, bytes, 3)); /* to the last byte */
    is_ok(dt_swap_read_bytes(f, (int64_t)nbytes - 3, found, 3));
    assert_memory_equal(found, bytes, 3);
    dt_swap_close(f);
    free(copy);
    free(found);
    free(bytes);
}

/* Nothing may be moved into the memory when the file was closed: it may be freed. */
TEST(a_file_is_closed_with_requests_in_flight)
{
    enum { N = 8 };
    char *memory = blocks(N * MIB);
    for (int depth = 1; depth <= N; depth += N - 1) {
        dt_swap_request r[N] = {0};
        dt_swap_file *f = open_file(N * MIB, depth);
        for (int k = 0; k < N; k++) is_ok(dt_swap_read(f, k * MIB, memory + k * MIB, MIB, &r[k]));
        dt_swap_close(f);
        for (int k = 0; k < N; k++) assert_int_equal(r[k].under_way, 0);
        assert_int_equal(r[0].started, MIB);
    }
    free(memory);
}

TEST(misuse_is_refused)
{
    dt_swap_file *f = NULL;
    dt_swap_request r = {0};
    char *memory = blocks(2 * BLOCK);
    dt_swap_options opt = options(BLOCK + 1, 1);
    fails(dt_swap_open(&f, &opt), DT_ERR_ARG, "% DT_SWAP_ALIGN");
    opt = options(0, 1);
    fails(dt_swap_open(&f, &opt), DT_ERR_ARG, "file_nbytes(opt) > 0");
    opt = options(BLOCK, 0);
    fails(dt_swap_open(&f, &opt), DT_ERR_ARG, "depth > 0");
    f = open_file(2 * BLOCK, 1);
    fails(dt_swap_read(f, 1, memory, BLOCK, &r), DT_ERR_ARG, "offset % DT_SWAP_ALIGN");
    fails(dt_swap_read(f, 0, memory + 8, BLOCK, &r), DT_ERR_ARG, "memory % DT_SWAP_ALIGN");
    fails(dt_swap_write(f, 0, memory, BLOCK - 1, &r), DT_ERR_ARG, "nbytes % DT_SWAP_ALIGN");
    fails(dt_swap_write(f, BLOCK, memory, 2 * BLOCK, &r), DT_ERR_ARG, "is_inside");
    fails(dt_swap_read(f, -BLOCK, memory, BLOCK, &r), DT_ERR_ARG, "is_inside");
    fails(dt_swap_read_bytes(f, 2 * BLOCK - 1, memory, 2), DT_ERR_ARG, "is_inside");
    fails(dt_swap_write_bytes(f, -1, memory, 1), DT_ERR_ARG, "is_inside");
    is_ok(dt_swap_wait(f, &r)); /* none was begun */
    dt_swap_close(f);
    free(memory);
}

int main(void) { return make_folder() ? run_by_each_way() : 1; }
