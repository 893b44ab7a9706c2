/* swap_uring.c - transfers by io_uring.
 *
 * With IOSQE_ASYNC, a kernel thread starts the transfer. Without it, the submitting call looks up the pages of 64 MiB,
 * and copies them if the file is in the page cache (docs/data/epyc-swap.csv). */
#ifdef DT_HAVE_LIBURING
#include "swap_private.h"
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>

typedef struct uring {
    struct io_uring ring;
    int fd;
} uring;

/* Without COOP_TASKRUN, completions interrupt the thread, and its other system calls (MPI's poll) return early with
 * EINTR. Kernels before 5.19 lack the flags, kernels before 5.6 the operations. */
static int open_ring(struct io_uring *ring, int depth)
{
    int status = io_uring_queue_init((unsigned)depth, ring, IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);
    if (status == -EINVAL) status = io_uring_queue_init((unsigned)depth, ring, 0);
    if (status != 0) return -status;
    struct io_uring_probe *known = io_uring_get_probe_ring(ring);
    if (known && io_uring_opcode_supported(known, IORING_OP_READ) && io_uring_opcode_supported(known, IORING_OP_WRITE))
        status = 0;
    else
        status = ENOSYS;
    io_uring_free_probe(known);
    if (status != 0) io_uring_queue_exit(ring);
    return status;
}

static int uring_open(void **self, int fd, int depth)
{
    uring *u = calloc(1, sizeof *u);
    if (!u) return ENOMEM;
    u->fd = fd;
    const int error = open_ring(&u->ring, depth);
    if (error) {
        free(u);
        return error;
    }
    *self = u;
    return 0;
}

static void uring_close(void *self)
{
    uring *u = self;
    io_uring_queue_exit(&u->ring);
    free(u);
}

static void uring_start(void *self, int slot, const swap_transfer *t)
{
    uring *u = self;
    struct io_uring_sqe *e = io_uring_get_sqe(&u->ring); /* never NULL: the ring has depth entries */
    if (t->request->write)
        io_uring_prep_write(e, u->fd, t->memory, (unsigned)t->nbytes, (uint64_t)t->offset);
    else
        io_uring_prep_read(e, u->fd, t->memory, (unsigned)t->nbytes, (uint64_t)t->offset);
    io_uring_sqe_set_flags(e, IOSQE_ASYNC);
    io_uring_sqe_set_data64(e, (uint64_t)slot);
    (void)io_uring_submit(&u->ring); /* if the kernel has no memory now, uring_next_ended submits again */
}

static int uring_next_ended(void *self, bool wait, int *slot, ssize_t *moved)
{
    uring *u = self;
    struct io_uring_cqe *e = NULL;
    int status;
    while ((status = io_uring_peek_cqe(&u->ring, &e)) != 0 || !e) {
        if (status != 0 && status != -EAGAIN && status != -EINTR) return status;
        if (!wait) return 0;
        status = io_uring_submit_and_wait(&u->ring, 1);
        if (status < 0 && status != -EAGAIN && status != -EINTR && status != -EBUSY) return status;
    }
    *slot = (int)io_uring_cqe_get_data64(e);
    *moved = e->res;
    io_uring_cqe_seen(&u->ring, e);
    return 1;
}

const swap_io swap_io_uring = {
    .name = "io_uring", .open = uring_open, .close = uring_close, .start = uring_start, .next_ended = uring_next_ended};
#else
typedef int no_liburing; /* ISO C requires a declaration in a file */
#endif
