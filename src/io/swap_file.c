/* swap_file.c - asynchronous requests to a swap file, their transfers and their errors. swap_uring.c and swap_posix.c
 * pass transfers to the kernel.
 *
 * A request is divided into transfers. If a transfer is short, interrupted, or temporarily lacks kernel memory, it is
 * started again in its slot for the remaining bytes. A transfer ends with its last byte, with an error, or when a call
 * moves no byte. Transfers have up to 64 MiB: one alone then keeps a disk busy. The kernel splits them for the disk
 * (docs/data/epyc-swap.csv). */
#include "swap_private.h"
#include "dtrain/io/io.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BOUNCE_NBYTES = 4 << 20, HUGE_PAGE = 2 << 20, MAX_DEPTH = 1024 };

struct dt_swap_file {
    int fd;
    bool direct; /* O_DIRECT: bypasses the page cache */
    char *dir, *what;
    size_t nbytes;
    dt_memory memory; /* as counted in the ledger */
    dt_ledger *ledger;
    char *bounce; /* [BOUNCE_NBYTES] */
    const swap_io *io;
    void *io_self;
    int depth, n_under_way;
    swap_transfer *transfers;       /* [depth] */
    dt_swap_request *first, **last; /* queue of requests with unstarted bytes; only the first has transfers */
};

/* ---- transfers --------------------------------------------------------------------------------------------------- */

ssize_t swap_move(int fd, const swap_transfer *t)
{
    const ssize_t moved = t->request->write ? pwrite(fd, t->memory, t->nbytes, (off_t)t->offset)
                                            : pread(fd, t->memory, t->nbytes, (off_t)t->offset);
    return moved < 0 ? -errno : moved;
}

static int fault_of(const dt_swap_request *r) { return dt_fault_errno(r->write ? "swap.write" : "swap.read"); }

static void start_transfer(dt_swap_file *f, swap_transfer *t)
{
    t->fault = fault_of(t->request);
    f->io->start(f->io_self, (int)(t - f->transfers), t);
}

static void start_next_of(dt_swap_file *f, dt_swap_request *r)
{
    swap_transfer *t = f->transfers;
    while (t->request) t++;
    *t = (swap_transfer){.request = r,
                         .memory = r->memory + r->started,
                         .offset = r->offset + (int64_t)r->started,
                         .nbytes = dt_min_size(r->nbytes - r->started, DT_SWAP_TRANSFER)};
    r->started += t->nbytes;
    r->under_way++;
    f->n_under_way++;
    start_transfer(f, t);
}

static void start_queued(dt_swap_file *f)
{
    while (f->first && f->n_under_way < f->depth) {
        dt_swap_request *r = f->first;
        if (r->started < r->nbytes) start_next_of(f, r);
        if (r->started == r->nbytes && !(f->first = r->next)) f->last = &f->first;
    }
}

static void end_transfer(dt_swap_file *f, swap_transfer *t, int error)
{
    dt_swap_request *r = t->request;
    if (error && !r->error) {
        r->error = error;
        r->failed_at = (size_t)(t->offset - r->offset);
    }
    *t = (swap_transfer){0};
    r->under_way--;
    f->n_under_way--;
}

/* Simulate an injected result of the kernel. A "short" transfer moves half of the bytes; another moves the rest. */
static ssize_t with_fault(const swap_transfer *t, ssize_t moved)
{
    if (t->fault > 0) return -t->fault;
    return t->fault < 0 && moved >= 2 * DT_SWAP_ALIGN ? moved / 2 / DT_SWAP_ALIGN * DT_SWAP_ALIGN : moved;
}

/* Advance past the bytes that were moved, or record an error (-errno). False: another call must move the rest. True:
 * the transfer has ended. *error: 0, an errno, or -1 if the file has ended. */
static bool advance(const dt_swap_file *f, swap_transfer *t, ssize_t moved, int *error)
{
    moved = with_fault(t, moved);
    *error = 0;
    if (moved == -EINTR || moved == -EAGAIN) return false;
    if (moved < 0) return *error = (int)-moved, true;

    /* with direct I/O, a partial block occurs only at the end of the file */
    const size_t n = f->direct ? (size_t)moved / DT_SWAP_ALIGN * DT_SWAP_ALIGN : (size_t)moved;
    t->memory += n;
    t->offset += (int64_t)n;
    t->nbytes -= n;
    if (n == 0) *error = -1;
    return n == 0 || t->nbytes == 0;
}

static void take_result(dt_swap_file *f, swap_transfer *t, ssize_t moved)
{
    int error;
    /* the kernel could not create a thread because of a limit on processes: move the bytes in this thread */
    if (moved == -ECANCELED) moved = swap_move(f->fd, t);
    if (advance(f, t, moved, &error))
        end_transfer(f, t, error);
    else
        start_transfer(f, t);
}

/* Start queued transfers, process those that have ended, and start as many as then fit. wait: wait until one has ended.
 * If no transfer can ever end, all transfers in flight end with this error. */
static void progress(dt_swap_file *f, bool wait)
{
    int found = 1, slot;
    ssize_t moved;
    start_queued(f);
    while (f->n_under_way > 0 && (found = f->io->next_ended(f->io_self, wait, &slot, &moved)) > 0) {
        take_result(f, &f->transfers[slot], moved);
        wait = false;
    }
    if (found < 0)
        for (int i = 0; i < f->depth; i++)
            if (f->transfers[i].request) end_transfer(f, &f->transfers[i], -found);
    start_queued(f);
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static bool is_inside(const dt_swap_file *f, int64_t offset, size_t nbytes)
{
    return offset >= 0 && (uint64_t)offset <= f->nbytes && nbytes <= f->nbytes - (size_t)offset;
}

static bool ended(const dt_swap_request *r) { return r->started == r->nbytes && r->under_way == 0; }

static dt_err submit(dt_swap_file *f, const dt_swap_request *asked, dt_swap_request *r)
{
    DT_EXPECT(ended(r));
    DT_EXPECT(asked->offset % DT_SWAP_ALIGN == 0 && asked->nbytes % DT_SWAP_ALIGN == 0);
    DT_EXPECT((uintptr_t)asked->memory % DT_SWAP_ALIGN == 0);
    DT_EXPECT(is_inside(f, asked->offset, asked->nbytes));
    *r = *asked;
    if (r->nbytes > 0) {
        *f->last = r;
        f->last = &r->next;
    }
    progress(f, false);
    return DT_OK;
}

dt_err dt_swap_read(dt_swap_file *f, int64_t offset, void *memory, size_t nbytes, dt_swap_request *r)
{
    return submit(f, &(dt_swap_request){.memory = memory, .offset = offset, .nbytes = nbytes}, r);
}

dt_err dt_swap_write(dt_swap_file *f, int64_t offset, const void *memory, size_t nbytes, dt_swap_request *r)
{
    /* a write request only reads the memory */
    return submit(f, &(dt_swap_request){.write = true, .memory = (char *)memory, .offset = offset, .nbytes = nbytes},
                  r);
}

bool dt_swap_done(dt_swap_file *f, const dt_swap_request *r)
{
    progress(f, false);
    return ended(r);
}

static dt_err fail_request(const dt_swap_file *f, const dt_swap_request *r)
{
    const char *why = r->error > 0 ? strerror(r->error)
                      : r->write   ? "the file system accepted no more bytes"
                                   : "the file ends there; another program may have truncated it";
    return dt_fail(DT_ERR_WRITE, "%s: cannot %s %s: %zu bytes at offset %lld of an unnamed file: %s (at offset %lld)",
                   f->dir, r->write ? "write" : "read", f->what, r->nbytes, (long long)r->offset, why,
                   (long long)r->offset + (long long)r->failed_at);
}

dt_err dt_swap_wait(dt_swap_file *f, dt_swap_request *r)
{
    while (!ended(r)) progress(f, true);
    const dt_err err = r->error ? fail_request(f, r) : DT_OK;
    *r = (dt_swap_request){0};
    return err;
}

/* ---- synchronous access to any range of bytes -------------------------------------------------------------------- */

/* The blocks that contain the first bytes of a range, as many as fit in the bounce buffer. */
typedef struct window {
    int64_t offset; /* of the first block */
    size_t nbytes;  /* of all blocks */
    size_t skip, n; /* the range has n bytes in the buffer, starting at skip */
} window;

static window window_at(int64_t offset, size_t nbytes)
{
    window w = {.skip = (size_t)(offset % DT_SWAP_ALIGN)};
    w.offset = offset - (int64_t)w.skip;
    w.n = dt_min_size(nbytes, BOUNCE_NBYTES - w.skip);
    w.nbytes = dt_swap_round_up(w.skip + w.n);
    return w;
}

/* Synchronous. On a busy machine, waking another thread would take half as long as moving a few MiB. */
static dt_err move_now(dt_swap_file *f, bool write, int64_t offset, char *memory, size_t nbytes)
{
    dt_swap_request r = {.write = write, .offset = offset, .nbytes = nbytes};
    swap_transfer t = {.request = &r, .memory = memory, .offset = offset, .nbytes = nbytes};
    do t.fault = fault_of(&r);
    while (!advance(f, &t, swap_move(f->fd, &t), &r.error));
    r.failed_at = (size_t)(t.offset - offset);
    return r.error ? fail_request(f, &r) : DT_OK;
}

dt_err dt_swap_read_bytes(dt_swap_file *f, int64_t offset, void *to, size_t nbytes)
{
    char *out = to;
    DT_EXPECT(is_inside(f, offset, nbytes));
    while (nbytes > 0) {
        const window w = window_at(offset, nbytes);
        DT_TRY(move_now(f, false, w.offset, f->bounce, w.nbytes));
        memcpy(out, f->bounce + w.skip, w.n);
        out += w.n;
        offset += (int64_t)w.n;
        nbytes -= w.n;
    }
    return DT_OK;
}

dt_err dt_swap_write_bytes(dt_swap_file *f, int64_t offset, const void *from, size_t nbytes)
{
    const char *in = from;
    DT_EXPECT(is_inside(f, offset, nbytes));
    while (nbytes > 0) {
        const window w = window_at(offset, nbytes);
        const size_t last = w.nbytes - DT_SWAP_ALIGN; /* the last block */
        /* keep the bytes of the first and last block that are outside the range */
        if (w.skip > 0) DT_TRY(move_now(f, false, w.offset, f->bounce, DT_SWAP_ALIGN));
        if (w.skip + w.n < w.nbytes && (last > 0 || w.skip == 0))
            DT_TRY(move_now(f, false, w.offset + (int64_t)last, f->bounce + last, DT_SWAP_ALIGN));
        memcpy(f->bounce + w.skip, in, w.n);
        DT_TRY(move_now(f, true, w.offset, f->bounce, w.nbytes));
        in += w.n;
        offset += (int64_t)w.n;
        nbytes -= w.n;
    }
    return DT_OK;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* In order of preference. */
static const swap_io *const backends[] = {
#ifdef DT_HAVE_LIBURING
    &swap_io_uring,
#endif
    &swap_io_posix,
    &swap_io_late,
};
enum { N_BACKENDS = sizeof backends / sizeof backends[0], N_REAL_BACKENDS = N_BACKENDS - 1 };

static size_t file_nbytes(const dt_swap_options *opt)
{
    size_t sum = 0;
    for (int c = 0; c < DT_N_MEMCAT; c++) sum += opt->nbytes[c];
    return sum;
}

void dt_swap_plan(const dt_swap_options *opt, dt_memory *memory)
{
    for (int c = 0; c < DT_N_MEMCAT; c++) memory->at[c][DT_IN_FILE] += opt->nbytes[c];
    memory->at[DT_MEM_STAGING][DT_ON_HOST] += BOUNCE_NBYTES;
}

static void count_memory(dt_swap_file *f, void (*count)(dt_ledger *, dt_memcat, dt_memspace, size_t))
{
    for (int c = 0; c < DT_N_MEMCAT; c++)
        for (int p = 0; p < DT_N_MEMSPACE; p++)
            if (f->memory.at[c][p] > 0) count(f->ledger, (dt_memcat)c, (dt_memspace)p, f->memory.at[c][p]);
}

static dt_err make_file(dt_swap_file *f)
{
    char why[512];
    const int fault = dt_fault_errno("swap.open");
    f->fd = fault ? -1 : dt_open_unnamed(f->dir);
    if (fault) errno = fault > 0 ? fault : EIO;
    snprintf(why, sizeof why, "cannot create a file for %s", f->what);
    DT_CHECK_ERRNO(f->fd >= 0, DT_ERR_WRITE, f->dir, why);
    DT_TRY(dt_check_space(f->dir, f->dir, (double)f->nbytes, f->what));
    DT_TRY(dt_reserve_blocks(f->fd, f->dir, (int64_t)f->nbytes, f->what));
    /* the file system may not support reserving blocks */
    DT_CHECK_ERRNO(ftruncate(f->fd, (off_t)f->nbytes) == 0, DT_ERR_WRITE, f->dir, why);
    return DT_OK;
}

/* Some file systems reject O_DIRECT in fcntl, others only when data is read. */
static bool open_direct(dt_swap_file *f)
{
    const int flags = fcntl(f->fd, F_GETFL);
    if (flags < 0 || fcntl(f->fd, F_SETFL, flags | O_DIRECT) != 0) return false;
    if (pread(f->fd, f->bounce, DT_SWAP_ALIGN, 0) == DT_SWAP_ALIGN) return true;
    (void)fcntl(f->fd, F_SETFL, flags);
    return false;
}

/* Parse DTRAIN_SWAP_IO: the name of an interface or "", and whether to use the page cache. */
static void read_environment(char name[16], bool *buffered)
{
    const char *p = getenv("DTRAIN_SWAP_IO");
    name[0] = '\0';
    *buffered = false;
    for (; p && *p; p += strcspn(p, ","), p += *p == ',') {
        const int len = (int)strcspn(p, ",");
        if (len == 8 && strncmp(p, "buffered", 8) == 0)
            *buffered = true;
        else
            snprintf(name, 16, "%.*s", len, p);
    }
}

static dt_err open_io(dt_swap_file *f, const char *wanted)
{
    char size[24], why[96] = "";
    if (N_REAL_BACKENDS == 1 && !*wanted) snprintf(why, sizeof why, " (built without liburing)");
    for (int i = 0; i < (*wanted ? N_BACKENDS : N_REAL_BACKENDS) && !f->io; i++) {
        if (*wanted && strcmp(wanted, backends[i]->name) != 0) continue;
        const int error = backends[i]->open(&f->io_self, f->fd, f->depth);
        if (error == 0)
            f->io = backends[i];
        else
            snprintf(why, sizeof why, " (%s: %s)", backends[i]->name, strerror(error));
    }
    DT_CHECK(f->io || !*wanted, DT_ERR_USAGE, "DTRAIN_SWAP_IO=%s is not available%s: expected %sposix_aio", wanted, why,
             N_REAL_BACKENDS > 1 ? "io_uring or " : "");
    DT_CHECK(f->io, DT_ERR_FAULT, "%s: asynchronous I/O is not available%s", f->dir, why);
    DT_INFO("swap file: %s for %s in %s, using %s%s", dt_format_bytes((double)f->nbytes, size), f->what, f->dir,
            f->io->name, why);
    DT_DEBUG("swap file: %s",
             f->direct ? "direct I/O, without the page cache" : "buffered I/O, through the page cache");
    return DT_OK;
}

static dt_err open_all(dt_swap_file *f, const dt_swap_options *opt)
{
    char wanted[16];
    bool buffered;
    f->dir = strdup(opt->dir);
    f->what = strdup(opt->what);
    f->transfers = calloc((size_t)opt->depth, sizeof *f->transfers);
    f->bounce = aligned_alloc(HUGE_PAGE, BOUNCE_NBYTES);
    DT_CHECK(f->dir && f->what && f->transfers && f->bounce, DT_ERR_MEMORY,
             "%s: out of memory for a buffer of %d bytes", opt->dir, BOUNCE_NBYTES);
    (void)madvise(f->bounce, BOUNCE_NBYTES, MADV_HUGEPAGE); /* the disk then receives few large requests */
    memset(f->bounce, 0, BOUNCE_NBYTES);                    /* allocate its pages */
    DT_TRY(make_file(f));
    read_environment(wanted, &buffered);
    f->direct = !buffered && open_direct(f);
    return open_io(f, wanted);
}

dt_err dt_swap_open(dt_swap_file **file, const dt_swap_options *opt)
{
    *file = NULL;
    DT_EXPECT(opt->depth > 0 && opt->depth <= MAX_DEPTH && file_nbytes(opt) > 0);
    for (int c = 0; c < DT_N_MEMCAT; c++) DT_EXPECT(opt->nbytes[c] % DT_SWAP_ALIGN == 0);

    dt_swap_file *f = calloc(1, sizeof *f);
    DT_CHECK(f, DT_ERR_MEMORY, "out of memory for a swap file");
    *f = (dt_swap_file){.fd = -1, .nbytes = file_nbytes(opt), .depth = opt->depth, .last = &f->first};
    const dt_err err = open_all(f, opt);
    if (err != DT_OK) {
        dt_swap_close(f);
        return err;
    }
    f->ledger = opt->ledger;
    dt_swap_plan(opt, &f->memory);
    count_memory(f, dt_ledger_add);
    *file = f;
    return DT_OK;
}

void dt_swap_close(dt_swap_file *f)
{
    if (!f) return;
    f->first = NULL;
    while (f->n_under_way > 0) progress(f, true);
    if (f->io) f->io->close(f->io_self);
    if (f->fd >= 0) close(f->fd);
    count_memory(f, dt_ledger_sub);
    free(f->dir);
    free(f->what);
    free(f->transfers);
    free(f->bounce);
    free(f);
}
