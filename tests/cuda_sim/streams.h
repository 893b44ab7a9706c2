/* streams.h - detects accesses by streams or the host to what another stream writes, without an event between the
 * two.
 *
 * A stream runs each operation immediately; clocks tell what a GPU might have done instead. Each stream counts its
 * operations, and a clock says for each stream up to which of its operations all is known to be done:
 *
 *     an operation begins     its stream's clock takes in the host's (it was asked for after what the host had seen)
 *     record, wait            the event takes the stream's clock, the stream that waits takes in the event's
 *     the host waits          for a stream, an event, the device, or asks and hears that it is done: it takes in theirs
 *
 * A query of an event that the host has not waited for returns "not done" up to twice.
 *
 * Each segment of device and pinned memory records its last write and the reads since. An access that another
 * stream's clock does not know ends the program; so does freeing memory while an operation that the host has not
 * waited for may use it. Threads of the host count as one: how they wait for each other is not seen.
 *
 * A kernel's accesses are known where they are compiled in (race.h), those of copies and libraries always. */
#ifndef CUDA_SIM_STREAMS_H
#define CUDA_SIM_STREAMS_H

#include <cuda_runtime_api.h>

enum { MAX_STREAMS = 64 }; /* at a time */
struct stream_clock {
    uint64_t at[MAX_STREAMS];
};

struct stream_op {
    int slot;      /* of its stream */
    uint64_t time; /* of that: its operations are counted from 1 on */
    unsigned stream;
    const char *name;
    const void *kernel; /* or NULL */
};

/** One that the next calls are about; for a kernel the accesses that streams_touch has been told of are its own. */
stream_op streams_begin(cudaStream_t stream, const char *name, const void *kernel);
void streams_access(const stream_op &op, const void *p, size_t nbytes, bool write);
void streams_end(const stream_op &op);
/** An access of the kernel that runs. */
void streams_touch(const void *p, size_t nbytes, bool write);

/** Memory is freed. */
void streams_forget(const void *p, size_t nbytes);

/** What the host may not do with memory from..to-1 now: nothing, write, or touch it at all. */
enum stream_use { UNUSED, READ_BY_STREAMS, WRITTEN_BY_STREAMS };
stream_use streams_use(const char *from, const char *to);
/** Ends the program where the host may not touch the byte at p. */
void streams_host_touches(const char *p, bool write);

#endif
