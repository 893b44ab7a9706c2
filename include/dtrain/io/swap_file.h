/* swap_file.h - a file for offloaded states of a model: asynchronous reads and writes that bypass the page cache. The
 * file has no name and disappears when the process ends, also after a kill. Every function is Local.
 *
 * A file belongs to one rank and is used by one thread. Requests complete in any order: to read what is being written,
 * write what is being read, or reuse memory of a request, wait for that request first.
 *
 * A request is divided into transfers of at most DT_SWAP_TRANSFER bytes, which the kernel executes concurrently with
 * the program. At most `depth` transfers are in flight; the others are queued in the order of submission, and each call
 * on the file starts queued transfers. To have all requests in flight at once, set depth to at least the sum of
 * dt_swap_transfers over them.
 *
 * Transfers use io_uring, or the C library's POSIX AIO if the program was built without liburing or the kernel refuses
 * io_uring (old kernels, most containers). If no thread can be created (process limit), the calling thread does the
 * transfer. For tests, DTRAIN_SWAP_IO selects "io_uring", "posix_aio" or "late", which transfers nothing until it is
 * waited for; ",buffered" uses the page cache, as on a file system without O_DIRECT. */
#ifndef DTRAIN_SWAP_FILE_H
#define DTRAIN_SWAP_FILE_H

#include "dtrain/core/core.h"

typedef struct dt_swap_file dt_swap_file;

/** Offset, length and address of a request are multiples of DT_SWAP_ALIGN. */
enum { DT_SWAP_ALIGN = 4096, DT_SWAP_TRANSFER = 64 << 20 };

static inline size_t dt_swap_round_up(size_t nbytes)
{
    return (nbytes + DT_SWAP_ALIGN - 1) / DT_SWAP_ALIGN * DT_SWAP_ALIGN;
}
static inline size_t dt_swap_transfers(size_t nbytes) { return (nbytes + DT_SWAP_TRANSFER - 1) / DT_SWAP_TRANSFER; }

/** Options of dt_swap_open. */
typedef struct dt_swap_options {
    const char *dir;            /* zero.nvme_path; must exist */
    const char *what;           /* for messages: "the optimizer states of the policy"; both are copied */
    size_t nbytes[DT_N_MEMCAT]; /* size by category, each a multiple of DT_SWAP_ALIGN; the file's size is the sum */
    int depth;                  /* maximum transfers in flight: 1 .. 1024 */
    dt_ledger *ledger;          /* may be NULL */
} dt_swap_options;

/** Add what dt_swap_open counts in the ledger to a plan: nbytes in the file, and a buffer for unaligned access
 *  (DT_MEM_STAGING, host). */
void dt_swap_plan(const dt_swap_options *opt, dt_memory *memory);

/** Create the file, without a name, with all blocks reserved; it reads as zeros. Rank 0 logs how transfers are done. f:
 *  out, closed with dt_swap_close; NULL on error. DT_ERR_WRITE naming reason, dir and what: no such directory, no
 *  permission, no space, quota. DT_ERR_ARG: sizes or depth. DT_ERR_USAGE: DTRAIN_SWAP_IO is not available.
 *  DT_ERR_FAULT: no asynchronous I/O. DT_ERR_MEMORY. */
dt_err dt_swap_open(dt_swap_file **f, const dt_swap_options *opt);
/** Wait for transfers in flight, discard queued ones, and close the file. Safe on NULL. */
void dt_swap_close(dt_swap_file *f);

/** A read or write in flight, in the caller's memory, which must not be moved or changed until it was waited for. {0}:
 *  none. */
typedef struct dt_swap_request dt_swap_request;
struct dt_swap_request {
    bool write;
    int error; /* errno of the first transfer that failed; -1: the file ended */
    char *memory;
    int64_t offset; /* in the file */
    size_t nbytes;
    size_t started;        /* bytes started, from the beginning */
    size_t failed_at;      /* byte at which the transfer failed */
    int under_way;         /* transfers in flight */
    dt_swap_request *next; /* in the queue of requests that are not fully started */
};

/** Begin to read nbytes at offset; returns immediately. memory must not be used until dt_swap_wait. r: {0} or waited
 *  for. nbytes may be 0. DT_ERR_ARG: misaligned, or beyond the end; dt_swap_wait returns other errors. */
dt_err dt_swap_read(dt_swap_file *f, int64_t offset, void *memory, size_t nbytes, dt_swap_request *r);
/** Begin to write; otherwise as dt_swap_read. memory must not change until dt_swap_wait. */
dt_err dt_swap_write(dt_swap_file *f, int64_t offset, const void *memory, size_t nbytes, dt_swap_request *r);
/** Would dt_swap_wait return immediately? Does not wait. */
bool dt_swap_done(dt_swap_file *f, const dt_swap_request *r);
/** Wait for a request, which becomes {0}. Other requests continue. DT_ERR_WRITE naming errno's text, dir, offset and
 *  length: the content of the memory, or of that range of the file, is then undefined. */
dt_err dt_swap_wait(dt_swap_file *f, dt_swap_request *r);

/** Read any range of bytes to any address, synchronously, through the file's buffer. Requests in flight must not
 *  overlap its blocks (DT_SWAP_ALIGN). DT_ERR_WRITE as dt_swap_wait. */
dt_err dt_swap_read_bytes(dt_swap_file *f, int64_t offset, void *to, size_t nbytes);
/** Write any range of bytes; otherwise as dt_swap_read_bytes. */
dt_err dt_swap_write_bytes(dt_swap_file *f, int64_t offset, const void *from, size_t nbytes);

#endif
