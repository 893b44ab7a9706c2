/* memory_guard.h - checks that the ledger counts every large heap block of the program.
 *
 * Every caller's heap functions pass through here: the program, MPI, HDF5, the matrix library. A block is the
 * program's own when the first caller outside the C library and the parsers of JSON and patterns is the program's
 * code. It is counted when a dt_ledger_add of the same thread reports as many bytes; blocks reported together count
 * together. An uncounted block that lives between the start and the end of a training is a fault, and is reported
 * with its call stack. Devices' own memory (dt_device_overhead) and mapped memory are excluded. One file of a
 * program may include this; the linker must wrap dt_ledger_add (Makefile). The sanitizers have taken the heap's
 * functions already: under them the guard sees nothing. */
#ifndef DTRAIN_TESTS_MEMORY_GUARD_H
#define DTRAIN_TESTS_MEMORY_GUARD_H

#include "dtrain/train/train.h"
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    GUARD_LARGE = 64 << 10,
    GUARD_NOTED = 1 << 10,               /* smaller ones are not looked at */
    GUARD_SMALL_PARTS = 2 * GUARD_LARGE, /* small parts reported with large blocks */
    GUARD_PADDING = 64,                  /* that a block may exceed its reported size by */
    GUARD_BLOCKS = 4096,
    GUARD_FRAMES = 32,
    GUARD_FAULTS = 8
};

typedef struct guard_block {
    void *ptr;
    size_t nbytes;
    pthread_t thread;
    bool counted;
    int n_frames;
    void *frame[GUARD_FRAMES];
} guard_block;

static struct {
    const dt_run *run; /* that is looked at; NULL: none is */
    pthread_mutex_t mutex;
    guard_block block[GUARD_BLOCKS]; /* the program's own that live, oldest first */
    int n_blocks;
    guard_block fault[GUARD_FAULTS];
    int n_faults;
    /* ever taken, by anyone; without aligned ones, since the matrix library packs operands into some in each matmul */
    atomic_long n_large;
    atomic_long n_noted; /* the program's own, taken in trainings */
} guard = {.mutex = PTHREAD_MUTEX_INITIALIZER};
static _Thread_local bool guard_is_inside;

/* ---- whose is it? ------------------------------------------------------------------------------------------------ */

static bool guard_begins(const char *text, const char *const *heads)
{
    for (; *heads; heads++)
        if (!strncmp(text, *heads, strlen(*heads))) return true;
    return false;
}

/* The program's, and no device's: what it has opened, and the lists of the queue device. */
static bool guard_is_own(const guard_block *b)
{
    static const char *const passed[] = {"libc.so", "libjansson", "libpcre2", "libinih", "ld-linux", NULL},
                             *const devices[] = {"dt_device_open", "queue_", NULL};
    static const char here;
    Dl_info own, at;
    bool found = false;
    if (!dladdr(&here, &own)) return false;
    for (int i = 0; i < b->n_frames; i++) {
        if (!dladdr(b->frame[i], &at)) return false;
        const bool mine = at.dli_fbase == own.dli_fbase;
        const char *slash = strrchr(at.dli_fname, '/');
        if (!found && !mine && !guard_begins(slash ? slash + 1 : at.dli_fname, passed)) return false;
        found = found || mine;
        if (mine && at.dli_sname && guard_begins(at.dli_sname, devices)) return false;
    }
    return found;
}

/* ---- allocations, reports and frees ------------------------------------------------------------------------------ */

static bool guard_is_training(void) { return guard.run && dt_memory_total(&guard.run->allocated) > 0; }

static void guard_note_fault(const guard_block *b)
{
    if (guard.n_faults < GUARD_FAULTS) guard.fault[guard.n_faults] = *b;
    guard.n_faults++;
}

static void guard_took(void *ptr, size_t nbytes)
{
    if (!ptr || nbytes < GUARD_NOTED) return;
    if (!guard.run || guard_is_inside) return;
    guard_is_inside = true; /* what follows may take memory, too */
    guard_block b = {.ptr = ptr, .nbytes = nbytes, .thread = pthread_self()};
    void *frame[GUARD_FRAMES + 2];
    const int n = backtrace(frame, GUARD_FRAMES + 2);
    b.n_frames = n > 2 ? n - 2 : 0; /* without this function and the heap's */
    memcpy(b.frame, frame + 2, (size_t)b.n_frames * sizeof *frame);
    const bool own = guard_is_own(&b);
    if (own && guard_is_training()) atomic_fetch_add(&guard.n_noted, 1);
    if (own && nbytes >= GUARD_LARGE) {
        pthread_mutex_lock(&guard.mutex);
        if (guard.n_blocks < GUARD_BLOCKS)
            guard.block[guard.n_blocks++] = b;
        else
            guard_note_fault(&b);
        pthread_mutex_unlock(&guard.mutex);
    }
    guard_is_inside = false;
}

static inline void guard_took_plain(void *ptr, size_t nbytes)
{
    if (ptr && nbytes >= GUARD_LARGE) atomic_fetch_add(&guard.n_large, 1);
    guard_took(ptr, nbytes);
}

static inline void guard_gave(const void *ptr)
{
    if (!ptr || !guard.run || guard_is_inside) return;
    pthread_mutex_lock(&guard.mutex);
    for (int i = guard.n_blocks - 1; i >= 0; i--) {
        if (guard.block[i].ptr != ptr) continue;
        if (!guard.block[i].counted && guard_is_training()) guard_note_fault(&guard.block[i]);
        guard.n_blocks--;
        memmove(&guard.block[i], &guard.block[i + 1], (size_t)(guard.n_blocks - i) * sizeof *guard.block);
        break;
    }
    pthread_mutex_unlock(&guard.mutex);
}

/* The newest blocks of this thread that make so many bytes together; none where none do. */
static void guard_told(size_t nbytes)
{
    size_t sum = 0;
    int n_found = 0, found[GUARD_FRAMES];
    if (!guard.run) return;
    pthread_mutex_lock(&guard.mutex);
    for (int i = guard.n_blocks - 1; i >= 0 && n_found < GUARD_FRAMES; i--) {
        const guard_block *b = &guard.block[i];
        if (b->counted || !pthread_equal(b->thread, pthread_self())) continue;
        if (sum + b->nbytes > nbytes + GUARD_PADDING) break;
        sum += b->nbytes;
        found[n_found++] = i;
    }
    for (int i = 0; i < n_found && sum + GUARD_SMALL_PARTS >= nbytes; i++) guard.block[found[i]].counted = true;
    pthread_mutex_unlock(&guard.mutex);
}

extern void __real_dt_ledger_add(dt_ledger *l, dt_memcat c, dt_memspace p, size_t nbytes);
extern void __wrap_dt_ledger_add(dt_ledger *l, dt_memcat c, dt_memspace p, size_t nbytes);
void __wrap_dt_ledger_add(dt_ledger *l, dt_memcat c, dt_memspace p, size_t nbytes)
{
    __real_dt_ledger_add(l, c, p, nbytes);
    guard_told(nbytes);
}

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { GUARD_SEES = 0 };
#else
enum { GUARD_SEES = 1 };
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

void *malloc(size_t n)
{
    void *const p = __libc_malloc(n);
    guard_took_plain(p, n);
    return p;
}
void *calloc(size_t n, size_t size)
{
    void *const p = __libc_calloc(n, size);
    guard_took_plain(p, n * size);
    return p;
}
void *realloc(void *p, size_t n)
{
    guard_gave(p);
    void *const grown = __libc_realloc(p, n);
    guard_took_plain(grown, n);
    return grown;
}
void *aligned_alloc(size_t align, size_t n)
{
    void *const p = __libc_memalign(align, n);
    guard_took(p, n);
    return p;
}
int posix_memalign(void **p, size_t align, size_t n)
{
    *p = __libc_memalign(align, n);
    guard_took(*p, n);
    return *p ? 0 : 12; /* ENOMEM */
}
void free(void *p)
{
    guard_gave(p);
    __libc_free(p);
}
#endif

/* ---- a run that is looked at ------------------------------------------------------------------------------------- */

/** From here on; before the run is opened. */
static inline void guard_begin(const dt_run *run)
{
    void *frame[1];
    backtrace(frame, 1); /* loads what it needs */
    guard.n_blocks = guard.n_faults = 0;
    guard.run = run;
}

/* "take_a_block at there.c:12" for each call, where addr2line is; else addresses within files. */
static inline void guard_print(const guard_block *b)
{
    char command[4096] = "";
    size_t len = 0;
    fprintf(stderr, "%zu bytes that the ledger does not know of:\n", b->nbytes);
    for (int i = 0; i < b->n_frames && i < 12; i++) {
        Dl_info at;
        if (!dladdr(b->frame[i], &at) || len > sizeof command - 512) continue;
        const size_t offset = (size_t)((const char *)b->frame[i] - (const char *)at.dli_fbase) - 1;
        len += (size_t)snprintf(command + len, sizeof command - len,
                                "addr2line -f -s -p -e '%.200s' 0x%zx 2>/dev/null || echo '%.200s+0x%zx'; ",
                                at.dli_fname, offset, at.dli_fname, offset);
    }
    snprintf(command + len, sizeof command - len, ":");
    FILE *names = popen(command, "r");
    for (char line[512]; names && fgets(line, sizeof line, names);) fprintf(stderr, "    %s", line);
    if (names) pclose(names);
}

/** At the end of the training, before the run is closed: how many blocks the ledger did not know of. prints: names
 *  them. */
static inline int guard_end(bool prints)
{
    for (int i = 0; i < guard.n_blocks && guard_is_training(); i++)
        if (!guard.block[i].counted) guard_note_fault(&guard.block[i]);
    guard.run = NULL;
    for (int i = 0; i < guard.n_faults && i < GUARD_FAULTS && prints; i++) guard_print(&guard.fault[i]);
    return guard.n_faults;
}

#endif
