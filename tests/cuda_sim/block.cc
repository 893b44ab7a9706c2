/* block.cc - launches: blocks in random order, lanes as fibers, the barrier, and error messages. */
#include "block.h"
#include "faults.h"
#include "graphs.h"
#include "host.h"
#include "race.h"
#include "streams.h"
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
sim_block_state block = {};

/* One kernel runs at a time in a process. */
static pthread_mutex_t one_kernel = PTHREAD_MUTEX_INITIALIZER;
static uint64_t n_launches;

/* ---- chance ----------------------------------------------------------------------------------------------------- */

static uint64_t random_state;

/* splitmix64 */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint32_t sim_random()
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

static uint64_t seed()
{
    const char *text = getenv("DTRAIN_SIM_SEED");
    return text ? strtoull(text, nullptr, 10) : 1;
}

/* ---- messages --------------------------------------------------------------------------------------------------- */

const char *sim_kernel_name(const void *kernel)
{
    Dl_info of = {};
    return dladdr(kernel, &of) && of.dli_saddr == kernel ? of.dli_sname : nullptr;
}

static void print_where()
{
    const char *kernel = sim_kernel_name(block.launch->kernel);
    fprintf(stderr, "cuda simulator: %s (%s)", block.launch->op, kernel ? kernel : "a kernel");
    if (block.current >= 0)
        fprintf(stderr, ", block (%u,%u,%u) of (%u,%u,%u), thread %d of %d", blockIdx.x, blockIdx.y, blockIdx.z,
                gridDim.x, gridDim.y, gridDim.z, block.current, block.launch->threads);
    fprintf(stderr, ": ");
}

static void print_calls()
{
    void *calls[24];
    backtrace_symbols_fd(calls, backtrace(calls, 24), STDERR_FILENO);
}

/* Of a kernel: which, and its thread. Of the host: the calls that led there. */
void sim_wrong(const char *format, ...)
{
    const bool of_kernel = block.launch && sim_is_the_device();
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (of_kernel)
        print_where();
    else
        print_calls();
    fprintf(stderr, "%s%s\n", of_kernel ? "" : "cuda simulator: ", text); /* one write: ranks share a terminal */
    fflush(stderr);
    signal(SIGABRT, SIG_DFL);
    abort();
}

/* What a lane waits for, where nothing can go on. */
static void print_waiting(const char *what, int warp, uint32_t lanes)
{
    if (lanes) fprintf(stderr, "\n  warp %d, lanes %08x: %s", warp, lanes, what);
}

[[noreturn]] static void deadlock()
{
    block.current = -1;
    print_where();
    fprintf(stderr, "block (%u,%u,%u) cannot go on", blockIdx.x, blockIdx.y, blockIdx.z);
    for (int w = 0; w < block.n_warps; w++) {
        const sim_warp_state *warp = &block.warps[w];
        print_waiting("ended", w, warp->ended);
        print_waiting("at __syncthreads", w, warp->at_barrier);
        for (uint32_t left = warp->meeting; left; left &= left - 1) {
            const sim_lane_state *lane = &block.lanes[w * WARP + __builtin_ctz(left)];
            fprintf(stderr, "\n  warp %d, lane %d: at %s with mask %08x", w, __builtin_ctz(left), lane->name,
                    lane->mask);
        }
    }
    fprintf(stderr, "\n");
    sim_wrong("a deadlock");
}

/* ---- shared memory ---------------------------------------------------------------------------------------------- */

__shared__ char in_shared;

static int find_shared(struct dl_phdr_info *object, size_t, void *data)
{
    sim_range *range = static_cast<sim_range *>(data);
    if (!object->dlpi_tls_data) return 0;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        if (object->dlpi_phdr[i].p_type != PT_TLS) continue;
        char *from = static_cast<char *>(object->dlpi_tls_data), *to = from + object->dlpi_phdr[i].p_memsz;
        if (&in_shared < from || &in_shared >= to) continue;
        *range = {from, to};
        return 1;
    }
    return 0;
}

sim_range sim_static_shared()
{
    static sim_range range;
    static pthread_t of;
    if (range.from && pthread_equal(of, pthread_self())) return range;
    in_shared = 1;
    dl_iterate_phdr(find_shared, &range);
    of = pthread_self();
    return range;
}

static const size_t PAGE = 4096, DYNAMIC_ROOM = 256 << 10;

/* Between guard pages. */
static char *dynamic_end()
{
    static char *end;
    if (end) return end;
    char *room = static_cast<char *>(
        mmap(nullptr, DYNAMIC_ROOM + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (room == MAP_FAILED || mprotect(room + PAGE, DYNAMIC_ROOM, PROT_READ | PROT_WRITE))
        sim_wrong("no memory for shared memory");
    return end = room + PAGE + DYNAMIC_ROOM;
}

sim_range sim_dynamic_shared() { return {dynamic_end() - DYNAMIC_ROOM, dynamic_end()}; }

static char *dynamic_begin() { return dynamic_end() - ((block.launch->shared_nbytes + 15) & ~(size_t)15); }

void *simulated_shared() { return dynamic_begin(); }

bool sim_is_shared(const void *p, size_t nbytes)
{
    const char *at = static_cast<const char *>(p);
    const sim_range fixed = sim_static_shared();
    return (at >= fixed.from && at + nbytes <= fixed.to) ||
           (at >= dynamic_begin() && at + nbytes <= dynamic_begin() + block.launch->shared_nbytes);
}

void *sim_shared_address(const void *p)
{
    if (!sim_is_shared(p, 1)) sim_wrong("%p is not in shared memory", p);
    return const_cast<void *>(p);
}

/* Bytes of 0xff are NaNs in all types of elements. What kernels declare is the sum over all kernels, so it is filled
 * now and then only. */
static void spoil_shared(bool all)
{
    const sim_range fixed = sim_static_shared();
    if (all) memset(fixed.from, 0xff, (size_t)(fixed.to - fixed.from));
    memset(dynamic_begin(), 0xff, (size_t)(dynamic_end() - dynamic_begin()));
}

/* ---- lanes ------------------------------------------------------------------------------------------------------ */

#ifndef CUDA_SIM_STACK
#define CUDA_SIM_STACK (64 << 10)
#endif

/* Stacks begin at different places of their pages, so that they do not all compete for the same lines of a cache. */
static void give_stack(sim_lane_state *lane, int number)
{
    const size_t colour = (size_t)(number % 61) * 5 * 64;
    char *room = static_cast<char *>(mmap(nullptr, CUDA_SIM_STACK + 6 * PAGE, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (room == MAP_FAILED || mprotect(room, PAGE, PROT_NONE)) sim_wrong("no memory for the stack of a lane");
    lane->stack = room + PAGE;
    lane->top = room + CUDA_SIM_STACK + 6 * PAGE - colour;
}

static sim_warp_state *warp_of(int lane) { return &block.warps[lane / WARP]; }
static uint32_t bit_of(int lane) { return 1u << lane % WARP; }

/* All groups of lanes that have come together do their work and run on. */
static bool settle(int w)
{
    sim_warp_state *warp = &block.warps[w];
    sim_lane_state *lanes = &block.lanes[w * WARP];
    bool any = false;
    for (uint32_t left = warp->meeting; left; left &= left - 1) {
        const int l = __builtin_ctz(left);
        const uint32_t group = lanes[l].mask & ~warp->ended;
        if (group & ~warp->meeting) continue;
        void *brought[WARP];
        bool together = true;
        for (uint32_t rest = group; rest; rest &= rest - 1) {
            const int i = __builtin_ctz(rest);
            together = together && lanes[i].work == lanes[l].work && lanes[i].mask == lanes[l].mask;
            brought[i] = lanes[i].mine;
        }
        if (!together) continue;
        lanes[l].work(brought, group);
        warp->meeting &= ~group;
        warp->running |= group;
        left &= ~group | (1u << l); /* the loop takes the bit of l away */
        any = true;
    }
    return any;
}

/* The lane of the warp that runs next, or -1: the warp must wait, or another has its turn. */
static int next_of(int w)
{
    sim_warp_state *warp = &block.warps[w];
    if (!warp->running) {
        if (!warp->meeting || !settle(w)) return -1;
        block.first = (int)(sim_random() % WARP);
        if (--block.burst <= 0) return -1;
    }
    const uint32_t turned = warp->running >> block.first | (block.first ? warp->running << (WARP - block.first) : 0);
    return w * WARP + (__builtin_ctz(turned) + block.first) % WARP;
}

/* The lane that runs was taken out of its warp's running ones: let others run until it is among them again. */
static void leave()
{
    const int me = block.current, next = next_of(me / WARP);
    if (next != me) {
        block.current = next;
        threadIdx.x = (unsigned)next;
        fiber_switch(&block.lanes[me].at, next < 0 ? &block.host : &block.lanes[next].at);
    }
}

void sim_meet(sim_together *work, const char *name, uint32_t mask, void *mine)
{
    const int me = block.current;
    sim_lane_state *lane = &block.lanes[me];
    if (!(mask & bit_of(me))) sim_wrong("%s with mask %08x, which does not name lane %d", name, mask, me % WARP);
    lane->work = work;
    lane->name = name;
    lane->mask = mask;
    lane->mine = mine;
    lane->pc = __builtin_return_address(0);
    warp_of(me)->running &= ~bit_of(me);
    warp_of(me)->meeting |= bit_of(me);
    leave();
}

void sim_block_barrier()
{
    const int me = block.current;
    warp_of(me)->running &= ~bit_of(me);
    warp_of(me)->at_barrier |= bit_of(me);
    leave();
}

int sim_block_count(bool predicate)
{
    block.votes += predicate;
    sim_block_barrier();
    const int count = block.count;
    sim_block_barrier(); /* so that no next count is taken before all have read this one */
    return count;
}

static void run_lane()
{
    block.launch->lane(block.launch->context);
    const int me = block.current;
    sim_copies_forget(&block.lanes[me].copies);
    block.lanes[me].hides_copies = false;
    sim_matmuls_end(me / WARP);
    warp_of(me)->running &= ~bit_of(me);
    warp_of(me)->ended |= bit_of(me);
    leave();
    sim_wrong("a lane that ended runs");
}

/* ---- blocks ----------------------------------------------------------------------------------------------------- */

static bool pass_barrier()
{
    uint32_t waiting = 0;
    for (int w = 0; w < block.n_warps; w++) {
        waiting |= block.warps[w].at_barrier;
        if (block.warps[w].meeting) return false;
    }
    for (int w = 0; w < block.n_warps; w++) {
        block.warps[w].running = block.warps[w].at_barrier;
        block.warps[w].at_barrier = 0;
    }
    race_barrier();
    block.count = block.votes;
    block.votes = 0;
    return waiting != 0;
}

static void start_lanes()
{
    const int n = block.launch->threads;
    block.n_warps = (n + WARP - 1) / WARP;
    for (int w = 0; w < block.n_warps; w++) {
        const uint32_t there = n - w * WARP >= WARP ? 0xffffffffu : (1u << (n - w * WARP)) - 1;
        block.warps[w] = {there, 0, 0, ~there};
    }
    for (int i = 0; i < n; i++) {
        sim_lane_state *lane = &block.lanes[i];
        if (!lane->stack) give_stack(lane, i);
        fiber_start(&lane->at, lane->stack, lane->top, run_lane);
    }
    block.votes = block.count = 0;
}

static int draw_warp()
{
    int able[MAX_WARPS], n = 0;
    for (int w = 0; w < block.n_warps; w++)
        if (block.warps[w].running || (block.warps[w].meeting && settle(w))) able[n++] = w;
    return n ? able[sim_random() % (unsigned)n] : -1;
}

static void run_block()
{
    start_lanes();
    race_begin_block(block.launch->threads);
    for (;;) {
        const int w = draw_warp();
        if (w < 0) {
            if (pass_barrier()) continue;
            for (int i = 0; i < block.n_warps; i++)
                if (~block.warps[i].ended) deadlock();
            return;
        }
        block.first = (int)(sim_random() % WARP);
        block.burst = 1 << sim_random() % 8;
        block.current = next_of(w);
        threadIdx.x = (unsigned)block.current;
        fiber_switch(&block.host, &block.lanes[block.current].at);
    }
}

static uint64_t common_divisor(uint64_t a, uint64_t b) { return b ? common_divisor(b, a % b) : a; }

/* Blocks first, first + step, first + 2 step, ... of the grid: every one once, as step and their number have no common
 * divisor. */
static void run_grid(dim3 grid)
{
    const uint64_t n = (uint64_t)grid.x * grid.y * grid.z, first = sim_random() % n;
    uint64_t step = sim_random() % n;
    while (common_divisor(n, step) != 1) step++;
    for (uint64_t i = 0, b = first; i < n; i++, b = (b + step) % n) {
        blockIdx = {(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y), (unsigned)(b / grid.x / grid.y)};
        spoil_shared(i == 0 || sim_random() % 16 == 0);
        run_block();
    }
}

static void *signal_stack()
{
    static char stack[64 << 10];
    return stack;
}

static void launch_kernel(const sim_launch &launch)
{
    stack_t other = {}, stack_before;
    other.ss_sp = signal_stack();
    other.ss_size = 64 << 10;
    sigaltstack(&other, &stack_before);
    host_watches_faults();
    random_state = mix(seed() * 1000003 + n_launches++);
    block.launch = &launch;
    blockDim = dim3((unsigned)launch.threads);
    gridDim = launch.grid;
    race_begin_launch();
    run_grid(launch.grid);
    block.launch = nullptr;
    block.current = -1;
    sigaltstack(&stack_before, nullptr);
}

void sim_run(const sim_launch &launch)
{
    sim_uses_gpu("a launch");
    cudaError_t error = sim_passes("launch");
    if (error == cudaSuccess) error = sim_check_launch(launch);
    if (error != cudaSuccess) {
        sim_fail(error);
        return;
    }
    if (sim_keep_launch(launch)) return;
    pthread_mutex_lock(&one_kernel);
    const stream_op op = streams_begin(launch.stream, launch.op, launch.kernel);
    {
        const sim_as_device hands;
        launch_kernel(launch);
    }
    streams_end(op);
    pthread_mutex_unlock(&one_kernel);
}
