/* host.cc - checks of the host's accesses to memory that the device uses. Device memory is closed to it (memory.cc).
 * Pages of pinned memory are closed while streams use any of their bytes: to writes while an operation may read
 * them, to all while one may write. A fault then shows the byte. If no stream uses that byte, the instruction runs
 * and the page is closed again after it. A call of the system on a page that is closed fails with EFAULT. */
#include "block.h"
#include "host.h"
#include "memory.h"
#include "streams.h"
#include "thread.h"
#include <algorithm>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

static const size_t PAGE = 4096;

/* ---- pages ------------------------------------------------------------------------------------------------------ */

/* A stream_use for each page of pinned memory: how far it is closed. */
static uint8_t *closed()
{
    static uint8_t *table;
    const sim_range range = sim_pinned_memory();
    if (table) return table;
    void *p = mmap(nullptr, (size_t)(range.to - range.from) / PAGE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) sim_wrong("no room for the pages of pinned memory");
    return table = static_cast<uint8_t *>(p);
}
static size_t number_of(const void *p)
{
    return (size_t)(static_cast<const char *>(p) - sim_pinned_memory().from) / PAGE;
}
static char *page(size_t number) { return sim_pinned_memory().from + number * PAGE; }

static void protect(size_t first, size_t n, int use)
{
    const int allowed[] = {PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE};
    mprotect(page(first), n * PAGE, allowed[use]);
}

/* Pages from `first` on: closed as use(number) says, with a call of the system for each run that changes. */
template <class Use> static bool close_as(const void *p, size_t nbytes, Use use)
{
    const size_t end = number_of(static_cast<const char *>(p) + nbytes - 1) + 1;
    bool any = false;
    for (size_t i = number_of(p), n; i < end; i += n) {
        const int wanted = use(i), is = closed()[i];
        for (n = 1; i + n < end && closed()[i + n] == is && use(i + n) == wanted; n++) {
        }
        any = any || wanted != UNUSED;
        if (wanted == is) continue;
        protect(i, n, wanted);
        std::fill_n(closed() + i, n, (uint8_t)wanted);
    }
    if (any) host_watches_faults();
    return any;
}

bool host_review(const void *p, size_t nbytes)
{
    return close_as(p, nbytes, [](size_t i) { return (int)streams_use(page(i), page(i + 1)); });
}
void host_opens(const void *p, size_t nbytes)
{
    close_as(p, nbytes, [](size_t) { return (int)UNUSED; });
}

/* ---- faults ----------------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
enum { TRAP_FLAG = 0x100, WRITE_FAULT = 2 };
static bool is_write(const ucontext_t *u) { return u->uc_mcontext.gregs[REG_ERR] & WRITE_FAULT; }
static void step(ucontext_t *u, bool on)
{
    if (on)
        u->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
    else
        u->uc_mcontext.gregs[REG_EFL] &= ~(greg_t)TRAP_FLAG;
}
#else /* elsewhere a page stays open until streams use it again, and a write is known where reads are allowed */
static bool is_write(const ucontext_t *) { return false; }
static void step(ucontext_t *, bool) { sim_this_thread()->n_stepping = 0; }
#endif

static struct sigaction before[2];

/* Nothing of ours: what was there before us is asked, when the instruction is tried again. */
static void leave_to_others(int signal) { sigaction(signal, &before[signal == SIGTRAP], nullptr); }

static void on_step(int signal, siginfo_t *, void *context)
{
    sim_thread *thread = sim_this_thread();
    if (thread->n_stepping == 0) leave_to_others(signal);
    while (thread->n_stepping > 0) {
        const size_t i = thread->stepping[--thread->n_stepping];
        protect(i, 1, closed()[i]);
    }
    step(static_cast<ucontext_t *>(context), false);
}

/* The host touches a page of pinned memory that is closed. */
static void let_through(const char *p, ucontext_t *u)
{
    const size_t i = number_of(p);
    const bool write = is_write(u) || closed()[i] == READ_BY_STREAMS;
    streams_host_touches(p, write);
    sim_thread *thread = sim_this_thread();
    const int most = sizeof thread->stepping / sizeof thread->stepping[0];
    if (thread->n_stepping == most) sim_wrong("an instruction touches more than %d pages", most);
    protect(i, 1, UNUSED);
    thread->stepping[thread->n_stepping++] = i;
    step(u, true);
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    const char *p = static_cast<const char *>(info->si_addr);
    const bool is_closed = sim_is_pinned(p) && closed()[number_of(p)] != UNUSED;
    if (is_closed && sim_is_the_device()) {
        host_opens(p, 1);
    } else if (is_closed) {
        let_through(p, static_cast<ucontext_t *>(context));
    } else if (sim_is_the_device()) {
        sim_wrong("address %p is not there", p);
    } else if (sim_is_device(p) || sim_is_pinned(p)) {
        sim_wrong("the host touches %s", sim_name_place(p).text);
    } else {
        leave_to_others(signal);
    }
}

static void handle(int signal, void (*handler)(int, siginfo_t *, void *))
{
    struct sigaction ours = {}, is;
    sigaction(signal, nullptr, &is);
    if (is.sa_sigaction == handler) return;
    before[signal == SIGTRAP] = is;
    ours.sa_sigaction = handler;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(signal, &ours, nullptr);
}

/* Frameworks of tests put handlers of their own in our place. */
void host_watches_faults()
{
    handle(SIGSEGV, on_fault);
    handle(SIGTRAP, on_step);
}
