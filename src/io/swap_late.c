/* swap_late.c - transfers that happen as late as possible, for tests, like those of the queue device.
 *
 * A transfer is executed when a caller waits, the newest first. Until then every float of a destination in memory is
 * NaN, and a source in memory may still change. A missing wait therefore causes wrong results. For a caller that only
 * polls, the newest transfer ends after two polls: the call that began it, and one that found it in flight. */
#include "swap_private.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct late {
    int fd, depth;
    int64_t serial;
    struct late_slot {
        swap_transfer transfer;
        int64_t begun; /* serial number; 0: not in flight */
        int asked;     /* number of polls */
    } slot[];
} late;

static int late_open(void **self, int fd, int depth)
{
    late *l = calloc(1, sizeof *l + (size_t)depth * sizeof l->slot[0]);
    if (!l) return ENOMEM;
    l->fd = fd, l->depth = depth;
    *self = l;
    return 0;
}

static void late_start(void *self, int slot, const swap_transfer *t)
{
    late *l = self;
    l->slot[slot] = (struct late_slot){.transfer = *t, .begun = ++l->serial};
    if (!t->request->write) memset(t->memory, 0xff, t->nbytes);
}

static int late_next_ended(void *self, bool wait, int *slot, ssize_t *moved)
{
    late *l = self;
    int newest = -1;
    for (int i = 0; i < l->depth; i++)
        if (l->slot[i].begun > 0 && (newest < 0 || l->slot[i].begun > l->slot[newest].begun)) newest = i;
    if (newest < 0 || (!wait && l->slot[newest].asked++ < 2)) return 0;
    *moved = swap_move(l->fd, &l->slot[newest].transfer);
    l->slot[newest].begun = 0;
    *slot = newest;
    return 1;
}

const swap_io swap_io_late = {
    .name = "late", .open = late_open, .close = free, .start = late_start, .next_ended = late_next_ended};
