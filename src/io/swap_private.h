/* swap_private.h - how the transfers of a swap file reach the kernel: a table of functions for each way. */
#ifndef DTRAIN_IO_SWAP_PRIVATE_H
#define DTRAIN_IO_SWAP_PRIVATE_H

#include "dtrain/io/swap_file.h"
#include <sys/types.h>

/** What is still to be moved for a part of a request. */
typedef struct swap_transfer {
    dt_swap_request *request; /* NULL: not in use */
    char *memory;
    int64_t offset; /* in the file */
    size_t nbytes;
    int fault; /* dt_fault_errno */
} swap_transfer;

/** slot: 0 .. depth-1, the caller's name for a transfer in flight. */
typedef struct swap_io {
    const char *name;
    /** errno where the kernel or the C library refuses. */
    int (*open)(void **self, int fd, int depth);
    /** No transfer is in flight. */
    void (*close)(void *self);
    /** Begin; next_ended reports failures. The call does not wait for the disk. */
    void (*start)(void *self, int slot, const swap_transfer *t);
    /** 1: a transfer has ended, moved: bytes or -errno. 0: none has, only without wait. -errno: none ever will. At
     * least one transfer is in flight. */
    int (*next_ended)(void *self, bool wait, int *slot, ssize_t *moved);
} swap_io;

/** Move it now, in this thread: bytes or -errno. */
ssize_t swap_move(int fd, const swap_transfer *t);

extern const swap_io swap_io_uring, swap_io_posix, swap_io_late; /* the last for tests: where it is asked for */

#endif
