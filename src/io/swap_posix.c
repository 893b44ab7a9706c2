/* swap_posix.c - transfers by the C library's POSIX AIO: threads that call pread and pwrite.
 *
 * glibc executes the transfers of one descriptor sequentially, so the file has several descriptors. */
#include "swap_private.h"
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_DESCRIPTORS = 16 };

typedef struct posix {
    int depth, n_fds;
    int fd[MAX_DESCRIPTORS];
    struct posix_slot {
        struct aiocb cb;
        bool in_flight;
        bool synchronous;      /* the library had no thread for it */
        ssize_t moved;         /* result, if synchronous */
    } * slots;                 /* [depth] */
    const struct aiocb **list; /* [depth] transfers in flight, for aio_suspend */
} posix;

static void posix_close(void *self)
{
    posix *p = self;
    for (int i = 0; i < p->n_fds; i++) close(p->fd[i]);
    free(p->slots);
    free(p->list);
    free(p);
}

static int fill(posix *p, int fd, int depth)
{
    p->depth = depth;
    p->slots = calloc((size_t)depth, sizeof *p->slots);
    p->list = calloc((size_t)depth, sizeof(void *));
    if (!p->slots || !p->list) return ENOMEM;
    while (p->n_fds < depth && p->n_fds < MAX_DESCRIPTORS) {
        const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        if (copy < 0) return errno;
        p->fd[p->n_fds++] = copy;
    }
    return 0;
}

static int posix_open(void **self, int fd, int depth)
{
    posix *p = calloc(1, sizeof *p);
    if (!p) return ENOMEM;
    const int error = fill(p, fd, depth);
    if (error) {
        posix_close(p);
        return error;
    }
    *self = p;
    return 0;
}

static void posix_start(void *self, int slot, const swap_transfer *t)
{
    posix *p = self;
    struct posix_slot *s = &p->slots[slot];
    memset(s, 0, sizeof *s);
    s->in_flight = true;
    s->cb.aio_fildes = p->fd[slot % p->n_fds];
    s->cb.aio_buf = t->memory;
    s->cb.aio_nbytes = t->nbytes;
    s->cb.aio_offset = (off_t)t->offset;
    s->cb.aio_sigevent.sigev_notify = SIGEV_NONE;
    if ((t->request->write ? aio_write(&s->cb) : aio_read(&s->cb)) == 0) return;
    s->synchronous = true;
    s->moved = swap_move(s->cb.aio_fildes, t);
}

/* Has a transfer in flight ended? *moved: its result. */
static bool has_ended(struct posix_slot *s, ssize_t *moved)
{
    if (s->synchronous) return *moved = s->moved, true;
    const int error = aio_error(&s->cb);
    if (error == EINPROGRESS) return false;
    *moved = aio_return(&s->cb);
    if (error != 0) *moved = -error;
    return true;
}

static int posix_next_ended(void *self, bool wait, int *slot, ssize_t *moved)
{
    posix *p = self;
    for (;;) {
        int n = 0;
        for (int i = 0; i < p->depth; i++) {
            struct posix_slot *s = &p->slots[i];
            if (!s->in_flight) continue;
            if (has_ended(s, moved)) return s->in_flight = false, *slot = i, 1;
            p->list[n++] = &s->cb;
        }
        if (!wait) return 0;
        if (aio_suspend(p->list, n, NULL) != 0 && errno != EINTR && errno != EAGAIN) return -errno;
    }
}

const swap_io swap_io_posix = {.name = "posix_aio",
                               .open = posix_open,
                               .close = posix_close,
                               .start = posix_start,
                               .next_ended = posix_next_ended};
