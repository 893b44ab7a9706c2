/* race.cc - see race.h. Each two bytes of memory have a shadow cell: the last writer and two of the last readers, as
 * far apart as possible.
 *
 * Time of a block: each thread has a clock, which advances where threads synchronise. A barrier sets all clocks
 * beyond all earlier ones, so an access with an earlier clock precedes it. Within a warp, seen[a][b] is the last
 * clock of lane b whose accesses lie before what lane a does now. */
#ifdef CUDA_SIM_RACES
#include "block.h"
#include "race.h"
#include "streams.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

struct access {
    uint32_t block; /* counted over all launches, from 1 on */
    uint32_t clock;
    uint32_t at; /* return address in our object, from its begin */
    uint16_t lane;
    uint8_t bytes; /* of the two: a set */
    uint8_t kind;
};
enum { READ = 1, WRITE = 2, ATOMIC = 4, UNDER_WAY = 8 };
struct cell {
    access written, read, read_before;
};

static struct {
    uint32_t first_block, block; /* of this launch; the one that runs */
    uint32_t barrier, latest;    /* clocks: at the last barrier, and the largest of all */
    uint32_t clock[MAX_THREADS];
    uint32_t seen[MAX_THREADS][WARP];
} now;

/* ---- shadows: dynamic shared memory, what kernels declare of it, device memory, pinned memory -------------------- */

static cell *new_shadow(size_t nbytes)
{
    const size_t n = (nbytes / 2 + 1) * sizeof(cell);
    void *p = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) sim_wrong("no room for %zu bytes of the race checker", n);
    return static_cast<cell *>(p);
}

struct shadow {
    const char *from, *to;
    cell *cells;
};
enum { DYNAMIC, FIXED, DEVICE, PINNED, N_SHADOWS };
static shadow shadows[N_SHADOWS];

static void find_memory()
{
    const sim_range ranges[N_SHADOWS] = {sim_dynamic_shared(), sim_static_shared(), sim_device_memory(),
                                         sim_pinned_memory()};
    for (int i = 0; i < N_SHADOWS; i++) {
        if (shadows[i].from == ranges[i].from) continue;
        shadows[i] = {ranges[i].from, ranges[i].to, new_shadow((size_t)(ranges[i].to - ranges[i].from))};
    }
}

static cell *cell_of(const char *p, uint32_t *first_block)
{
    *first_block = now.block;
    for (int i = 0; i < N_SHADOWS; i++) {
        if (p < shadows[i].from || p >= shadows[i].to) continue;
        if (i >= DEVICE) *first_block = now.first_block;
        return shadows[i].cells + (p - shadows[i].from) / 2;
    }
    return nullptr;
}

void race_forget(void *p, size_t nbytes)
{
    const size_t PAGE = 4096;
    uint32_t first_block;
    cell *first = cell_of(static_cast<char *>(p), &first_block);
    if (!first) return;
    const size_t from = ((size_t)first + PAGE - 1) & ~(PAGE - 1), to = (size_t)(first + nbytes / 2) & ~(PAGE - 1);
    if (from < to) madvise(reinterpret_cast<void *>(from), to - from, MADV_DONTNEED);
}

/* ---- time ------------------------------------------------------------------------------------------------------- */

void race_begin_launch()
{
    find_memory();
    now.first_block = now.block + 1;
}

void race_begin_block(int n_threads)
{
    now.block++;
    now.barrier = now.latest = 1;
    memset(now.seen, 0, (size_t)n_threads * sizeof now.seen[0]);
    for (int i = 0; i < n_threads; i++) now.clock[i] = 1;
}

void race_barrier()
{
    now.barrier = ++now.latest;
    for (int i = 0; i < block.launch->threads; i++) now.clock[i] = now.barrier;
}

void race_syncwarp(int warp, uint32_t lanes)
{
    uint32_t seen[WARP] = {};
    const int first = warp * WARP;
    for (uint32_t left = lanes; left; left &= left - 1) {
        const int i = __builtin_ctz(left);
        for (int k = 0; k < WARP; k++)
            if (now.seen[first + i][k] > seen[k]) seen[k] = now.seen[first + i][k];
    }
    for (uint32_t left = lanes; left; left &= left - 1) {
        const int i = __builtin_ctz(left);
        seen[i] = now.clock[first + i];
        if (++now.clock[first + i] > now.latest) now.latest = now.clock[first + i];
    }
    for (uint32_t left = lanes; left; left &= left - 1)
        memcpy(now.seen[first + __builtin_ctz(left)], seen, sizeof seen);
}

static bool same_thread(const access &a, const access &b) { return a.block == b.block && a.lane == b.lane; }

/* Does the access of before lie before what lane does now, whatever the hardware does? What has an earlier block than
 * the first has nothing to do with it: of an earlier launch, or, in shared memory, of another block. */
static bool ordered(const access &before, int lane, uint32_t first_block)
{
    if (before.block < first_block) return true;
    if (before.block != now.block) return false;
    return before.lane == lane || before.clock < now.barrier ||
           (before.lane / WARP == lane / WARP && before.clock <= now.seen[lane][before.lane % WARP]);
}

/* ---- accesses --------------------------------------------------------------------------------------------------- */

static uintptr_t object_base()
{
    static uintptr_t base;
    Dl_info of;
    if (!base && dladdr(reinterpret_cast<void *>(race_barrier), &of)) base = reinterpret_cast<uintptr_t>(of.dli_fbase);
    return base;
}

/* The source line of an access, by addr2line where it is installed. */
static void print_line(const char *what, const access &a)
{
    Dl_info of;
    char line[512] = "", command[1024];
    if (dladdr(reinterpret_cast<void *>(race_barrier), &of)) {
        snprintf(command, sizeof command, "addr2line -s -i -e '%s' %#x 2>/dev/null", of.dli_fname, a.at - 1);
        FILE *f = popen(command, "r");
        do /* the innermost of the calls that were inlined, but for the simulator's own */
            if (f && !fgets(line, sizeof line, f)) break;
        while (f && !strncmp(line, "sim_", 4));
        if (f) pclose(f);
    }
    line[strcspn(line, "\n")] = '\0';
    fprintf(stderr, "  %s of thread %d%s, %s\n", what, a.lane, a.block == now.block ? "" : " of another block",
            *line ? line : "place unknown");
}

[[noreturn]] static void race(const char *p, const access &before, const access &mine)
{
    const char *kinds[] = {"", "read", "write", "", "", "atomic read", "atomic write"};
    print_line(before.kind & UNDER_WAY ? "copy under way" : kinds[before.kind & 7], before);
    print_line(mine.kind & UNDER_WAY ? "copy" : kinds[mine.kind & 7], mine);
    sim_wrong("a race at %p in %s memory", p, sim_is_shared(p, 1) ? "shared" : "device");
}

static bool conflict(const access &before, const access &mine, uint32_t first_block)
{
    if (!(before.bytes & mine.bytes)) return false;
    if (before.kind & mine.kind & ATOMIC) return false;
    if ((before.kind & UNDER_WAY) && before.block == now.block) return true;
    return !ordered(before, mine.lane, first_block);
}

static int distance(const access &a, const access &b)
{
    return a.block < now.first_block        ? -1
           : a.block != b.block             ? 3
           : a.lane / WARP != b.lane / WARP ? 2
                                            : a.lane != b.lane;
}

static void note_read(cell *c, const access &mine)
{
    if (!same_thread(c->read, mine) && distance(c->read, mine) >= distance(c->read_before, mine))
        c->read_before = c->read;
    c->read = mine;
}

extern __attribute__((visibility("hidden"))) const char __ehdr_start, _end; /* of our object: constants */

static bool within(const void *p, const void *from, size_t nbytes) { return (uintptr_t)p - (uintptr_t)from < nbytes; }

/* What else a lane may touch: its stack, its arguments and constants. */
static void not_the_host(const void *p, int lane)
{
    const sim_lane_state *l = &block.lanes[lane];
    if (within(p, l->stack, (size_t)(l->top - l->stack)) ||
        within(p, block.launch->context, block.launch->context_nbytes) ||
        within(p, &__ehdr_start, (size_t)(&_end - &__ehdr_start)))
        return;
    sim_wrong("address %p is not there, or memory of the host", p);
}

static void touch(const void *at, size_t nbytes, int kind, int lane, const void *pc)
{
    if (!block.launch || lane < 0) return;
    const char *p = static_cast<const char *>(at);
    uint32_t first_block;
    cell *c = cell_of(p, &first_block);
    if (!c) {
        not_the_host(p, lane);
        return;
    }
    streams_touch(p, nbytes, kind & WRITE);
    access mine = {
        now.block, now.clock[lane], (uint32_t)(reinterpret_cast<uintptr_t>(pc) - object_base()), (uint16_t)lane,
        0,         (uint8_t)kind};
    for (const char *end = p + nbytes; p < end; c++) {
        const bool odd = (size_t)p & 1;
        mine.bytes = odd ? 2 : end - p > 1 ? 3 : 1;
        if (conflict(c->written, mine, first_block)) race(p, c->written, mine);
        if (kind & WRITE) {
            if (conflict(c->read, mine, first_block)) race(p, c->read, mine);
            if (conflict(c->read_before, mine, first_block)) race(p, c->read_before, mine);
            c->written = mine;
        } else {
            note_read(c, mine);
        }
        p += odd ? 1 : 2;
    }
}

void race_read(const void *p, size_t nbytes, int lane, const void *pc) { touch(p, nbytes, READ, lane, pc); }
void race_copy_begins(void *p, size_t nbytes, int lane, const void *pc)
{
    touch(p, nbytes, WRITE | UNDER_WAY, lane, pc);
}
void race_copy_ended(void *p, size_t nbytes, int lane)
{
    uint32_t first_block;
    cell *c = cell_of(static_cast<char *>(p), &first_block);
    for (size_t i = 0; i < nbytes / 2; i++) {
        c[i].written.kind = WRITE;
        c[i].written.clock = now.clock[lane];
    }
}
void sim_race_atomic(void *p, size_t nbytes)
{
    touch(p, nbytes, WRITE | ATOMIC, block.current, __builtin_return_address(0));
}

/* ---- what the compiler calls ------------------------------------------------------------------------------------ */

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
#define HOOKS(n)                                                                                                       \
    void __tsan_read##n(void *p) { touch(p, n, READ, block.current, __builtin_return_address(0)); }                    \
    void __tsan_write##n(void *p) { touch(p, n, WRITE, block.current, __builtin_return_address(0)); }                  \
    void __tsan_unaligned_read##n(void *p) { touch(p, n, READ, block.current, __builtin_return_address(0)); }          \
    void __tsan_unaligned_write##n(void *p) { touch(p, n, WRITE, block.current, __builtin_return_address(0)); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void *p, size_t n) { touch(p, n, READ, block.current, __builtin_return_address(0)); }
void __tsan_write_range(void *p, size_t n) { touch(p, n, WRITE, block.current, __builtin_return_address(0)); }
/* Of the host: what cuda_stream notes. */
void __tsan_atomic64_store(volatile int64_t *p, int64_t x, int) { __atomic_store_n(p, x, __ATOMIC_SEQ_CST); }
}
#endif
