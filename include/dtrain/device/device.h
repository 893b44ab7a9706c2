/* device.h - devices: memory, streams, events, copies, and the numerical operations of training.
 *
 * Each backend is one table of functions (cpu; cuda from a shared object). Callers work on raw pointers that belong to
 * a device, and pass a stream. They must not rely on the CPU's streams being synchronous.
 *
 * Conventions of all operations
 *
 * - Every function is Local. No operation allocates or communicates.
 * - Matrices are row-major. "ld" is the distance between rows in elements. Activations are [n_tok, width]: a batch is a
 *   flat list of tokens, divided into sequences by offsets, without padding and without a batch dimension.
 * - `dt` is the type of activations and parameters, `gt` that of parameter gradients: DT_F32, DT_BF16 or DT_F16.
 *   Statistics (mean, rstd, lse, logp) are float. Operations compute in float and round once when they store; values
 *   too large for DT_F16 become Inf.
 * - `accumulate` false: the output is overwritten, whatever its old content (NaN included); true: it is added to.
 * - Arrays are device memory unless stated otherwise, including arrays of offsets and tokens.
 * - Operations are asynchronous on the stream: arrays are borrowed until the stream is synchronised, and results are
 *   valid then. Descriptions (dt_matmul, dt_attention, ...: device_ops.h) are read during the call. A copy from or to
 *   host memory that is not pinned is allowed, and may be synchronous.
 * - The same call gives the same bits for the same number of threads, and for any number after make_reproducible.
 * - Errors: DT_ERR_ARG (contract), DT_ERR_FAULT (device or library, with its own message), DT_ERR_MEMORY. A permanent
 *   failure of the device is reported once per process (dt_device_fail). */
#ifndef DTRAIN_DEVICE_H
#define DTRAIN_DEVICE_H

#include "dtrain/device/op_args.h"

typedef struct dt_device dt_device;
typedef struct dt_stream dt_stream; /* opaque; NULL: the device's default stream */
typedef struct dt_event dt_event;
typedef struct dt_graph dt_graph; /* recorded operations that one call queues again */

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/** A memory allocation and its accounting category. */
typedef struct dt_buf {
    void *ptr;
    size_t nbytes;
    dt_device *dev;
    dt_memcat category;
    dt_memspace space;
} dt_buf;

/** Allocate memory, aligned to 64 bytes, in huge pages if the system provides them. The content is undefined.
 *  Synchronous.
 *
 *  b       out  owned by the caller, freed with dt_buf_free; {0} on error
 *  dev     borrowed until dt_buf_free; its ledger counts the memory
 *  space   DT_ON_DEVICE, DT_ON_PINNED or DT_ON_HOST
 *  nbytes  0: an empty buffer with ptr NULL
 *
 *  DT_ERR_MEMORY: the message names category, bytes requested, in use and free. DT_ERR_ARG, DT_ERR_FAULT. */
dt_err dt_buf_alloc(dt_buf *b, dt_device *dev, dt_memspace space, size_t nbytes, dt_memcat category);
/** As dt_buf_alloc, but the content is zero, for every stream, on return. Costs nothing if fresh memory of the backend
 *  is zero (alloc_zeroes). */
dt_err dt_buf_alloc_zeroed(dt_buf *b, dt_device *dev, dt_memspace space, size_t nbytes, dt_memcat category);
/** Free a buffer and subtract it from the ledger. No queued operation may use it: synchronise first. Safe on
 *  {0} and twice; leaves {0}. */
void dt_buf_free(dt_buf *b);

/* ---- operations of a backend ------------------------------------------------------------------------------------- */

/** Functions of a backend. Comments mark those that may be NULL. */
typedef struct dt_device_ops {
    const char *name; /* value of run.device that selects it */
    /** Does this machine have such a device now? why: out [why_size], the reason if not. For "auto". NULL: yes. Opens
     *  nothing. */
    bool (*is_there)(char *why, size_t why_size);

    dt_err (*open)(dt_device *dev, int local_rank, int n_threads);
    /** Open dev for size queries only (..._elems, dt_device_overhead, memory_free) and for attention_prepare's queries
     *  to the library. The device itself is not used. */
    dt_err (*plan)(dt_device *dev, int n_threads);
    void (*close)(dt_device *dev);
    /** Make all later results independent of the number of threads, which may cost time. NULL: they always are. */
    void (*make_reproducible)(dt_device *dev);
    /** One line for users: processor or GPU, threads, library. */
    void (*describe)(const dt_device *dev, char *out, size_t out_size);
    /** The driver's name of the chip, for dt_chip_of ("NVIDIA H100 80GB HBM3"). NULL: it has none. */
    const char *(*chip_name)(const dt_device *dev);
    /** The kernels in use, because different ones may round differently: the instruction set of a processor ("v4 with
     *  AMX"), or the chip. */
    void (*kernels)(const dt_device *dev, char *out, size_t out_size);
    /** External components that correct results depend on: chip, driver and libraries with their versions, in one line;
     *  "" if the driver does not report its version. NULL: none. */
    void (*versions)(const dt_device *dev, char *out, size_t out_size);
    /** The device has its own memory. (cpu: false; device, pinned and host memory are the node's) */
    bool own_memory;
    /** Identifier of the device, not 0: equal exactly for ranks that share the device. NULL: all ranks of a node share
     *  it. */
    uint64_t (*identity)(const dt_device *dev);
    /** Free bytes of the device's memory; SIZE_MAX if unknown, as for a GPU that was opened to plan. */
    size_t (*memory_free)(const dt_device *dev);
    /** Bytes that the backend and its libraries hold in addition to what the ledger counts. */
    size_t (*overhead)(const dt_device *dev);
    /** Growth of the device's used memory, over all processes, since before this process used it, in bytes; SIZE_MAX if
     *  unknown. NULL: unknown. The part that the ledger does not count is compared with overhead. */
    size_t (*memory_taken)(const dt_device *dev);

    /* memory; use dt_buf_* */
    dt_err (*alloc)(dt_device *dev, dt_memspace space, size_t nbytes, void **ptr);
    void (*free)(dt_device *dev, dt_memspace space, void *ptr, size_t nbytes);
    /** Memory from alloc is zero. (cpu: true, by the operating system) */
    bool alloc_zeroes;
    /** The host may access device memory through its pointer. All operations are then complete on return. (cpu:
     *  true) */
    bool host_accessible;

    /* streams and events: an event recorded on one stream and waited for on another orders the two. A run opens streams
     * with dt_stream_open, which counts their memory */
    /** Bytes of device memory that a stream holds as workspace of its operations. */
    size_t stream_nbytes;
    dt_err (*stream_create)(dt_device *dev, dt_stream **stream);
    void (*stream_destroy)(dt_device *dev, dt_stream *stream); /* nothing may be queued on it: synchronise first */
    /* the host waits; returns errors of queued operations. NULL: the default stream */
    dt_err (*stream_sync)(dt_device *dev, dt_stream *stream);
    dt_err (*event_create)(dt_device *dev, dt_event **event);
    void (*event_destroy)(dt_device *dev, dt_event *event);
    dt_err (*event_record)(dt_device *dev, dt_event *event, dt_stream *stream);
    dt_err (*event_wait)(dt_device *dev, dt_event *event, dt_stream *stream);
    /** The host waits for the last record of the event; returns errors of queued operations. Operations queued after
     *  the record continue meanwhile. */
    dt_err (*event_sync)(dt_device *dev, dt_event *event);
    /** Is the last record complete? True for an event that was never recorded. Does not wait. */
    dt_err (*event_query)(dt_device *dev, dt_event *event, bool *done);
    dt_err (*event_elapsed_ms)(dt_device *dev, dt_event *from, dt_event *to, float *ms); /* after a sync */
    /** Time of the last record, which must be complete, on the host's clock (dt_now_s). Events of all streams of a
     *  device are ordered correctly, to within the resolution of its clock. */
    dt_err (*event_time)(dt_device *dev, dt_event *event, double *at_s);
    /** For profilers (NVTX): label the operations that the calling thread queues as `what` of `unit`. The label
     *  replaces the previous one; what NULL: no label. NULL: no profiler for this device. */
    void (*range)(dt_device *dev, const char *what, const char *unit);

    /* graphs: all four or none. NULL: the device has no graphs, and the caller queues the operations itself */
    /** Start recording the operations of the stream instead of running them. Descriptions, sizes and addresses are
     *  those of the calls; memory is read when the graph runs. Only operations on device memory, and copies within it,
     *  may be recorded: no events, waits or host memory. */
    dt_err (*graph_begin)(dt_device *dev, dt_stream *stream);
    /** End recording. graph: out; NULL: discard the recording (an operation failed). */
    dt_err (*graph_end)(dt_device *dev, dt_stream *stream, dt_graph **graph);
    /** Queue the recorded operations, on the stream that they were recorded on, whose workspace they use. */
    dt_err (*graph_launch)(dt_device *dev, dt_graph *graph, dt_stream *stream);
    void (*graph_destroy)(dt_device *dev, dt_graph *graph); /* must not be queued: synchronise first. Safe on NULL */

    /** Either side may be device or (pinned) host memory. */
    dt_err (*copy)(dt_device *dev, void *dst, const void *src, size_t nbytes, dt_stream *stream);

    /* every other operation: see op_list.h */
#define DT_OP(op, ...) dt_err(*op) DT_OP_PARAMS(__VA_ARGS__);
#define DT_SIZE(type, name, ...) type(*name) DT_SIZE_PARAMS(__VA_ARGS__);
#include "dtrain/device/op_list.h"

    /* libraries that compute operations */
    /** For a library that computes matmuls of mm's form (types, transposes) incorrectly: use the backend's own kernels
     *  for this form until the device is closed. False: they were used already. NULL: there is no such library. */
    bool (*distrust)(dt_device *dev, const dt_matmul *mm);
    /** Prepare a library for calls with these sizes (by_library; the arrays are ignored). It then computes them if all
     *  arrays are aligned to 16 bytes. Its plan is verified first: repeated calls give the same bits, which match the
     *  device's own kernels within rounding; otherwise it is not used. ready: out, a sum of DT_READY_...; why: out, the
     *  reason if that is not all. Takes seconds and temporarily three times the memory of the call's arrays; call it
     *  before the first step. NULL: the device has no library. */
    dt_err (*attention_prepare)(dt_device *dev, const dt_attention *at, bool backward, int *ready, char *why,
                                size_t why_size);
} dt_device_ops;

/** An open device. {0}: not open. */
struct dt_device {
    const dt_device_ops *ops;
    void *impl;        /* the backend's own state */
    dt_ledger *ledger; /* borrowed; counts all memory of the device */
    int local_rank;
    const struct dt_stream_listener *listener; /* may be NULL */
};

/* ---- streams and their listener ---------------------------------------------------------------------------------- */

/** Receives the streams of a device and the operations queued on them. The timeline implements it, and records an event
 *  at each change. The thread that queues calls it. */
typedef struct dt_stream_listener {
    void *self;
    size_t stream_nbytes; /* host memory (DT_MEM_OTHER) per stream; the listener counts it in the ledger */
    dt_err (*open)(void *self, dt_stream *stream, const char *name);
    void (*close)(void *self, const dt_stream *stream);
    void (*begin)(void *self, dt_stream *stream, const char *what, const char *unit, int64_t number);
    void (*end)(void *self, dt_stream *stream);
} dt_stream_listener;

/** Create a stream and report it to the listener under this name ("compute", "communication", "copies"). Allocates all
 *  memory that the stream and its listener will need, counted in the device's ledger.
 *
 *  stream  out  closed with dt_stream_close; NULL on error
 *
 *  DT_ERR_MEMORY, DT_ERR_FAULT. */
dt_err dt_stream_open(dt_device *dev, dt_stream **stream, const char *name);
/** Destroy a stream, on which nothing may be queued: synchronise first. Safe on NULL. */
void dt_stream_close(dt_device *dev, dt_stream *stream);
/** Add the memory of n streams, and of the listener for them, to a plan. */
void dt_stream_plan(const dt_device *dev, int n, dt_memory *memory);
/** Label what is queued on the stream until dt_stream_end as `what` of `unit`, for the listener. The strings outlive
 *  the run. number: of the collective that is queued or waited for; 0: none. */
static inline void dt_stream_begin(const dt_device *dev, dt_stream *stream, const char *what, const char *unit,
                                   int64_t number)
{
    if (dev->listener) dev->listener->begin(dev->listener->self, stream, what, unit, number);
}
/** End the label of dt_stream_begin. */
static inline void dt_stream_end(const dt_device *dev, dt_stream *stream)
{
    if (dev->listener) dev->listener->end(dev->listener->self, stream);
}

/** Open a device. For tests, DTRAIN_DEVICE replaces the CPU by another device ("queue", "cuda").
 *
 *  dev        out  closed with dt_device_close; {0} on error
 *  name       "cpu", "cuda" or "auto": cuda if it was built and a GPU is found, else cpu; the choice is logged
 *  n_threads  0: the backend's choice
 *  ledger     borrowed until dt_device_close
 *
 *  DT_ERR_USAGE, with the reason: the device is not available. DT_ERR_FAULT, DT_ERR_MEMORY: opening it failed. */
dt_err dt_device_open(dt_device *dev, const char *name, int local_rank, int n_threads, dt_ledger *ledger);
/** Open a device for --plan: it answers size queries only, and allocates nothing. It need not exist; "auto" selects the
 *  first device that exists. "cuda" needs neither CUDA nor its shared object (gpu_sizes.h). Errors as
 *  dt_device_open. */
dt_err dt_device_open_to_plan(dt_device *dev, const char *name, int n_threads, dt_ledger *ledger);
/** Open the CPU itself, regardless of DTRAIN_DEVICE: for computation in host memory in addition to another device.
 *  planning: as dt_device_open_to_plan. */
dt_err dt_device_open_host(dt_device *dev, int n_threads, bool planning, dt_ledger *ledger);
/** Close a device. All its buffers and streams must be freed. Safe on {0}; leaves {0}. */
void dt_device_close(dt_device *dev);

/** Record that a device of this process has failed permanently. For backends; any thread. fmt: as printf; the first
 *  message is kept. Afterwards this rank enters no collective (comm.h), does not wait for the device, and frees none of
 *  its resources. dt_comm_leave then ends the job. Returns DT_ERR_FAULT. */
dt_err dt_device_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/** The message of dt_device_fail; NULL: no device has failed. Any thread. */
const char *dt_device_failure(void);

/** Compare every operation of the device with the CPU on random input; takes about a second. If a library computes
 *  wrong matmuls, the device uses its own kernels instead (distrust), and these are checked.
 *
 *  n_threads     threads of the CPU
 *  n_distrusted  out  number of matmul forms for which a library is not used while the device is open; may be NULL
 *
 *  DT_ERR_FAULT: the message lists operations that differ, where and by how much. */
dt_err dt_device_self_check(dt_device *dev, int n_threads, int *n_distrusted);
/** Quantise a row of weights to int8 with one scale (algorithms.md 6.3). With c = max |w|:
 *
 *      q = 127 w / c, rounded half to even;    scale = c / 127
 *
 *  w, q  in, out  [n], host
 *
 *  Zeros give q = 0 and scale 0; NaN or Inf in w gives q = 0 and a scale that is NaN or Inf. */
void dt_quantise_row(const float *w, int64_t n, int8_t *q, float *scale);
/** Bytes of the node's memory that this process may still allocate, as far as the system reports it. */
size_t dt_host_memory_free(void);
/** Bytes of address space that this process may still allocate, less a reserve for libraries; SIZE_MAX without a limit
 *  (ulimit -v). The reserve is needed because oneDNN and HDF5 crash, and OpenMP ends the process, if the system refuses
 *  them memory. */
enum { DT_ADDRESS_RESERVE = 64 << 20 };
size_t dt_address_space_free(void);
/** Bytes of device memory that the backend holds in addition to what the ledger counts, for the plan. */
size_t dt_device_overhead(const dt_device *dev);

/** The CPU's table. */
extern const dt_device_ops dt_device_cpu_ops;

/** Names of the available backends, comma-separated. */
const char *dt_device_backends(void);

#endif
