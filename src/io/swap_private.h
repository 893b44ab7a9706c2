/* swap_private.h - interface between a swap file and the kernel: a table of functions per implementation. */
#ifndef DTRAIN_IO_SWAP_PRIVATE_H
#define DTRAIN_IO_SWAP_PRIVATE_H

#include "dtrain/io/swap_file.h"
#include <sys/types.h>

/** The remaining bytes of one transfer of a request. */
typedef struct swap_transfer {
    dt_swap_request *request; /* NULL: not in use */
    char *memory;
    int64_t offset; /* in the file */
    size_t nbytes;
    int fault; /* dt_fault_errno */
} swap_transfer;

/** slot: 0 .. depth-1, chosen by the caller to identify a transfer in flight. */
typedef struct swap_io {
    const char *name;
    /** Returns 0, or errno if the kernel or the C library does not support it. */
    int (*open)(void **self, int fd, int depth);
    /** Called when no transfer is in flight. */
    void (*close)(void *self);
    /** Start a transfer without waiting for the disk. next_ended reports failures. */
    void (*start)(void *self, int slot, const swap_transfer *t);
    /** Called with at least one transfer in flight. 1: a transfer has ended; *moved: bytes or -errno. 0, only without
     *  wait: none has ended. -errno: none will ever end. */
    int (*next_ended)(void *self, bool wait, int *slot, ssize_t *moved);
} swap_io;

/** Execute the transfer synchronously. Returns bytes or -errno. */
ssize_t swap_move(int fd, const swap_transfer *t);

extern const swap_io swap_io_uring, swap_io_posix, swap_io_late; /* late: for tests, only on request */

#endif
