/* swap_file.h - a file in which states of a model are kept instead of in memory: read and written asynchronously and
 * past the page cache, and gone when the process is, however that ends.
 *
 * A file belongs to one rank, and one thread calls. Requests complete in any order: whoever reads what is being
 * written, writes what is being read, or reuses memory of a request, waits for that request first.
 *
 * A request is cut into transfers of at most DT_SWAP_TRANSFER bytes, which the kernel carries out beside the program;
 * at most depth of them are under way. What is beyond that is queued in the order of submission, and each call on the
 * file moves the queue on: a program that wants all its requests under way at once gives a depth of at least the sum of
 * dt_swap_transfers over them.
 *
 * Transfers go through io_uring, or the POSIX AIO of the C library where this program was built without liburing or the
 * kernel refuses (an old kernel, most containers). What there is no thread for, since a limit on processes is reached,
 * is moved by the caller's. DTRAIN_SWAP_IO says otherwise, for tests: "io_uring", "posix_aio" or "late", which moves
 * nothing before somebody waits; and "buffered", after a comma, for the page cache as on a file system without
 * O_DIRECT. */
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

typedef struct dt_swap_options {
    const char *dir;            /* zero.nvme_path; must be there */
    const char *what;           /* for messages: "the optimizer states of the policy"; both are copied */
    size_t nbytes[DT_N_MEMCAT]; /* by what they hold, each a multiple of DT_SWAP_ALIGN: the file is their sum */
    int depth;                  /* transfers under way at once: 1 .. 1024 */
    dt_ledger *ledger;          /* may be NULL */
} dt_swap_options;

/** What dt_swap_open counts in the ledger, added to memory: nbytes in the file, and a buffer of the file's own for
 *  unaligned access (staging, host). */
void dt_swap_plan(const dt_swap_options *opt, dt_memory *memory);

/** Local. The file has no name, all its blocks are reserved, and it reads as zeros. Rank 0 says how transfers are made.
 *  DT_ERR_WRITE with the reason, dir and what: no such directory, no right, no space, quota. DT_ERR_ARG: sizes or
 *  depth. DT_ERR_USAGE: DTRAIN_SWAP_IO asks for what is not there. */
dt_err dt_swap_open(dt_swap_file **f, const dt_swap_options *opt);
/** Waits for what is under way, whose memory is free afterwards; drops what is queued. Safe on NULL. */
void dt_swap_close(dt_swap_file *f);

/** A read or write under way, in memory of the caller, who neither moves nor changes it before it was waited for. {0}
 *  to begin: nothing to wait for. */
typedef struct dt_swap_request dt_swap_request;
struct dt_swap_request {
    bool write;
    int error; /* errno of the first transfer that failed; -1: the file ended */
    char *memory;
    int64_t offset; /* in the file */
    size_t nbytes;
    size_t started;        /* bytes, from the beginning */
    size_t failed_at;      /* bytes from the beginning: where the transfer failed */
    int under_way;         /* transfers */
    dt_swap_request *next; /* in the queue of those that are not all started */
};

/** Begin to read or write nbytes at offset; returns at once. memory is the file's until the request was waited for. r
 *  is {0} or was waited for. nbytes may be 0. DT_ERR_ARG: misaligned, or beyond the end; whatever else fails comes with
 *  dt_swap_wait. */
dt_err dt_swap_read(dt_swap_file *f, int64_t offset, void *memory, size_t nbytes, dt_swap_request *r);
dt_err dt_swap_write(dt_swap_file *f, int64_t offset, const void *memory, size_t nbytes, dt_swap_request *r);
/** Whether dt_swap_wait would return at once. Does not wait. */
bool dt_swap_done(dt_swap_file *f, const dt_swap_request *r);
/** Wait for a request; it is {0} afterwards. DT_ERR_WRITE with errno's text, dir, offset and length; contents of the
 *  memory, or of that range of the file, are then undefined. Other requests go on. */
dt_err dt_swap_wait(dt_swap_file *f, dt_swap_request *r);

/** Any range of bytes, any address; done when it returns. Through a buffer of the file's own. Beside requests that are
 *  under way, but not on the blocks (DT_SWAP_ALIGN) that they touch. DT_ERR_WRITE as above. */
dt_err dt_swap_read_bytes(dt_swap_file *f, int64_t offset, void *to, size_t nbytes);
dt_err dt_swap_write_bytes(dt_swap_file *f, int64_t offset, const void *from, size_t nbytes);

#endif
