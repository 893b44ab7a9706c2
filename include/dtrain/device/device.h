/* device.h - where tensors live and kernels run: memory, streams, events, copies and the numerical operations of
 * training.
 *
 * One table of functions per backend (cpu; cuda from a shared object). Everything above this header works on raw
 * pointers that belong to a device and passes a stream; it must not rely on the CPU's streams being synchronous.
 *
 * Conventions
 *   - Matrices are row-major. "ld" is the distance between rows in elements. Activations are [n_tok, width]: a
 *     batch is a flat list of tokens, cut into sequences by offsets (padding-free); there is no batch dimension.
 *   - `dt` is the type of activations and parameters (DT_F32, DT_BF16 or DT_F16); statistics (mean, rstd, lse, logp)
 *     are float. Every operation computes in float and rounds once on storing, what is too large for DT_F16 to Inf.
 *     `gt` is the type of gradients of parameters, one of the same three.
 *   - `accumulate` false: the output is overwritten (its old content may be anything, NaN too); true: it is added to.
 *   - No operation allocates or communicates. Arrays of offsets and tokens are device memory unless said otherwise.
 *   - Operations are asynchronous on the stream: arrays are borrowed until the stream is synchronised; descriptions
 *     (dt_matmul, dt_attention, ...: device_ops.h) are read during the call. A copy from or to host memory that is
 *     not pinned is allowed, and may be synchronous.
 *   - The same call gives the same bits on the same number of threads, and on any number once the device was made
 *     reproducible.
 *   - Errors: DT_ERR_ARG (contract), DT_ERR_FAULT (device or library; its own text in the message), DT_ERR_MEMORY.
 *     A device that has failed for good says so once for the process (dt_device_fail).
 */
#ifndef DTRAIN_DEVICE_H
#define DTRAIN_DEVICE_H

#include "dtrain/device/device_ops.h"

typedef struct dt_device dt_device;
typedef struct dt_stream dt_stream; /* opaque; NULL is the device's default stream */
typedef struct dt_event dt_event;
typedef struct dt_graph dt_graph; /* operations that were recorded, to be queued again with one call */

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/** A piece of memory, not in a file, and who pays for it. Views are not owned and must not outlive their buffer. */
typedef struct dt_buf {
    void *ptr;
    size_t nbytes;
    dt_device *dev;
    dt_memcat category;
    dt_place place;
    bool owned;
} dt_buf;

/** Allocate, aligned to 64 bytes, in huge pages where the system gives them; counted in the device's ledger. The
 *  content may be anything, NaN too. nbytes 0 leaves an empty buffer. DT_ERR_MEMORY names category, bytes requested and
 *  bytes held. */
dt_err dt_buf_alloc(dt_buf *b, dt_device *dev, dt_place place, size_t nbytes, dt_memcat category);
/** The same, and zero for every stream when it returns. Costs nothing more where fresh memory is zero anyway. */
dt_err dt_buf_alloc_zeroed(dt_buf *b, dt_device *dev, dt_place place, size_t nbytes, dt_memcat category);
dt_buf dt_buf_view(const dt_buf *b, size_t offset, size_t nbytes);
/** Safe on {0}, on a view and twice; leaves {0} behind. Nothing that is queued may work on it: wait first. */
void dt_buf_free(dt_buf *b);

/* ---- the table --------------------------------------------------------------------------------------------------- */

typedef struct dt_device_ops {
    const char *name; /* value of run.device that selects it */
    /** Has this machine such a device, now? Else why not: for "auto". NULL: yes. Opens nothing. */
    bool (*is_there)(char *why, size_t why_size);

    dt_err (*open)(dt_device *dev, int local_rank, int n_threads);
    /** As much of open as the questions for sizes need (..._elems, dt_device_overhead, memory_free), or, of a device
     *  with a library for attention, what attention_prepare asks that: the device itself is not touched. */
    dt_err (*plan)(dt_device *dev, int n_threads);
    void (*close)(dt_device *dev);
    /** From now on results do not depend on the number of threads, which may cost time. NULL: they never do. */
    void (*make_reproducible)(dt_device *dev);
    /** One line for people: processor or GPU, threads, library. */
    void (*describe)(const dt_device *dev, char *out, size_t out_size);
    /** What the driver calls the chip, for dt_chip_of ("NVIDIA H100 80GB HBM3"). NULL: it has no such name. */
    const char *(*chip_name)(const dt_device *dev);
    /** Which kernels compute, where some round in other ways than others do: the instruction set of a processor
     *  ("v4 with AMX"), the chip. */
    void (*kernels)(const dt_device *dev, char *out, size_t out_size);
    /** What decides, beside this program, whether it computes right: chip, driver, libraries, with their versions, in a
     *  line; "" where the driver does not tell its version. NULL: nothing that is not this program's. */
    void (*versions)(const dt_device *dev, char *out, size_t out_size);
    /** Has the device memory of its own? (cpu: false, its memory is the node's, so device, pinned and host are one) */
    bool own_memory;
    /** Which device this is: the same number, not 0, for the ranks that share one, and for no others. NULL: the ranks
     *  of a node do. */
    uint64_t (*identity)(const dt_device *dev);
    /** Bytes of the device's memory that are free now, as far as the system tells; SIZE_MAX where nothing does, as when
     *  a device with memory of its own was opened to plan. */
    size_t (*memory_free)(const dt_device *dev);
    /** Bytes that the backend holds besides what passes through the ledger (scratch of its own and of its
     *  libraries). */
    size_t (*overhead)(const dt_device *dev);
    /** Bytes of the device's memory that are gone since before this process touched it, whoever took them; SIZE_MAX
     *  where nobody tells. NULL: likewise. What is not in the ledger is to be compared with overhead. */
    size_t (*memory_taken)(const dt_device *dev);

    /* memory; use dt_buf_* */
    dt_err (*alloc)(dt_device *dev, dt_place place, size_t nbytes, void **ptr);
    void (*free)(dt_device *dev, dt_place place, void *ptr, size_t nbytes);
    /** Is memory from alloc zero? (cpu: true, the system hands it out so) */
    bool alloc_zeroes;
    /** May the host read and write device memory through its pointer? Then all work is done when its call returns.
     *  (cpu: true) */
    bool host_accessible;

    /* streams and events: an event recorded on one stream and waited for on another orders the two. Those of a run are
     * opened by dt_stream_open, which counts their memory */
    /** Bytes of the device's memory that a stream holds, for what operations need while they run. */
    size_t stream_nbytes;
    dt_err (*stream_create)(dt_device *dev, dt_stream **stream);
    void (*stream_destroy)(dt_device *dev, dt_stream *stream); /* nothing is queued on it: wait first */
    /* surfaces errors of queued work; NULL: the default stream */
    dt_err (*stream_sync)(dt_device *dev, dt_stream *stream);
    dt_err (*event_create)(dt_device *dev, dt_event **event);
    void (*event_destroy)(dt_device *dev, dt_event *event);
    dt_err (*event_record)(dt_device *dev, dt_event *event, dt_stream *stream);
    dt_err (*event_wait)(dt_device *dev, dt_event *event, dt_stream *stream);
    /** The host waits for the last record of the event; surfaces errors of queued work. What is queued behind the
     *  record goes on meanwhile. */
    dt_err (*event_sync)(dt_device *dev, dt_event *event);
    /** Has the last record been reached? True for an event that was never recorded. Does not wait. */
    dt_err (*event_query)(dt_device *dev, dt_event *event, bool *done);
    dt_err (*event_elapsed_ms)(dt_device *dev, dt_event *from, dt_event *to, float *ms); /* after a sync */
    /** When the last record was reached, by the host's clock (dt_now_s); it must have been. Events of one device, of
     *  whichever streams, are in the right order, to within the resolution of its clock. */
    dt_err (*event_time)(dt_device *dev, dt_event *event, double *at_s);
    /** For tools that show what a device does (NVTX): what the calling thread queues from now on is `what` of `unit`,
     *  which ends what was before; what NULL: nothing. NULL: there is no such tool for this device. */
    void (*range)(dt_device *dev, const char *what, const char *unit);

    /* graphs, all four or none: NULL where the device has no use for them, and who asks runs the operations */
    /** Operations on the stream are recorded from now on, and do not run. Descriptions, sizes and addresses are those
     *  of the calls; what lies at the addresses is read when the graph runs. Recorded are operations on device memory
     *  alone, copies within it too: no event, no wait, nothing of the host's. */
    dt_err (*graph_begin)(dt_device *dev, dt_stream *stream);
    /** The end of it. graph NULL: what was recorded is dropped (an operation failed). */
    dt_err (*graph_end)(dt_device *dev, dt_stream *stream, dt_graph **graph);
    /** Queue all of it, on the stream that it was recorded on, whose scratch its operations share. */
    dt_err (*graph_launch)(dt_device *dev, dt_graph *graph, dt_stream *stream);
    void (*graph_destroy)(dt_device *dev, dt_graph *graph); /* it is not queued: wait first. Safe on NULL */

    /* moving and filling; any of host (pinned) and device on either side */
    dt_err (*copy)(dt_device *dev, void *dst, const void *src, size_t nbytes, dt_stream *stream);
    dt_err (*zero)(dt_device *dev, void *dst, size_t nbytes, dt_stream *stream);
    /** dst[i] = src[i] from one type to another; dst == src only for equal types. */
    dt_err (*convert)(dt_device *dev, const void *src, dt_dtype src_dt, void *dst, dt_dtype dst_dt, int64_t n,
                      dt_stream *stream);
    /** dst[i] = (accumulate ? dst[i] : 0) + src[i], in float, rounded on storing. */
    dt_err (*add_into)(dt_device *dev, const void *src, dt_dtype src_dt, void *dst, dt_dtype dst_dt, bool accumulate,
                       int64_t n, dt_stream *stream);
    /** c = a + b (c may be a or b). */
    dt_err (*add)(dt_device *dev, const void *a, const void *b, void *c, dt_dtype dt, int64_t n, dt_stream *stream);
    /** y = factor x (y may be x). */
    dt_err (*scale)(dt_device *dev, const void *x, float factor, void *y, dt_dtype dt, int64_t n, dt_stream *stream);
    /** dst[i,:] = src[index[i],:], i < n_rows (gather); zeros where index[i] < 0. */
    dt_err (*gather_rows)(dt_device *dev, const void *src, const int32_t *index, void *dst, int64_t n_rows,
                          int64_t width, dt_dtype dt, dt_stream *stream);
    /** dst[index[i],:] = src[i,:] (scatter; indices distinct; other rows untouched); rows with index[i] < 0 are left
     *  out. Rows that are to be added up go through embedding_backward. */
    dt_err (*scatter_rows)(dt_device *dev, const void *src, const int32_t *index, void *dst, int64_t n_rows,
                           int64_t width, dt_dtype dt, dt_stream *stream);

    /** See dt_patches. pixels: [n_images, size, size, 3], red, green, blue; out: [n_images * dt_patches_rows,
     *  dt_patches_width]. */
    dt_err (*patches)(dt_device *dev, const dt_patches *p, const uint8_t *pixels, void *out, dt_stream *stream);

    /* matrix products, see dt_matmul */
    dt_err (*matmul)(dt_device *dev, const dt_matmul *mm, const void *a, const void *b, void *c, dt_stream *stream);
    /** A library was seen to compute products wrong: those that are stored as mm has it (types, transposes) are left to
     *  kernels of the backend's own from now on. False: they were before. NULL: there is no such library. */
    bool (*distrust)(dt_device *dev, const dt_matmul *mm);
    /** dbias[n] (+)= column sums of dy [m,n] with row distance ld. */
    dt_err (*bias_backward)(dt_device *dev, const void *dy, int64_t m, int64_t n, int64_t ld, dt_dtype dt, void *dbias,
                            dt_dtype gt, bool accumulate, dt_stream *stream);

    /* embedding: out[t,:] = wte[token[t],:] (+ wpe[pos[t],:] where wpe is not NULL) */
    dt_err (*embedding_forward)(dt_device *dev, const int32_t *token, const int32_t *pos, const void *wte,
                                const void *wpe, void *out, int64_t n_tok, int64_t width, dt_dtype dt,
                                dt_stream *stream);
    /** table_grad[id[t],:] += dout[t,:] for all t that order[n_tok] lists, with id[order[.]] ascending and equal ids in
     *  ascending t, so each row is summed in float, in order, and touched once. Always accumulates. */
    dt_err (*embedding_backward)(dt_device *dev, const void *dout, const int32_t *id, const int32_t *order,
                                 void *table_grad, int64_t n_tok, int64_t width, dt_dtype dt, dt_dtype gt,
                                 dt_stream *stream);

    /* norms over the last axis. Row r of x lies at x + (r / group) * group_ld + (r % group) * width, y likewise with
     * y_group_ld: group 1 is an ordinary matrix with row distance group_ld; group = heads normalises each head inside a
     * wider row. y == x is allowed with equal layout (not when a backward needs x). */
    dt_err (*rmsnorm_forward)(dt_device *dev, const void *x, const void *weight, void *y, float *rstd, int64_t n_rows,
                              int64_t width, int64_t group, int64_t group_ld, int64_t y_group_ld, float eps,
                              dt_dtype dt, dt_stream *stream);
    /** (forward rounds x * rstd to dt before the weight: algorithms.md 8.4) dx = (add_to_dx ? dx : 0) + gradient, x and
     *  dx in x's layout, dy in y's layout (dx may be dy when the layouts are equal and add_to_dx is false); dweight
     *  (+)= per accumulate, NULL: not wanted. scratch: float [norm_scratch_elems(width)]. */
    dt_err (*rmsnorm_backward)(dt_device *dev, const void *x, const void *weight, const float *rstd, const void *dy,
                               void *dx, bool add_to_dx, void *dweight, dt_dtype gt, bool accumulate, int64_t n_rows,
                               int64_t width, int64_t group, int64_t group_ld, int64_t y_group_ld, float *scratch,
                               dt_dtype dt, dt_stream *stream);
    /** LayerNorm with weight and bias, rows contiguous. */
    dt_err (*layernorm_forward)(dt_device *dev, const void *x, const void *weight, const void *bias, void *y,
                                float *mean, float *rstd, int64_t n_rows, int64_t width, float eps, dt_dtype dt,
                                dt_stream *stream);
    /** dweight and dbias each may be NULL: not wanted. dx may be dy where add_to_dx is false. */
    dt_err (*layernorm_backward)(dt_device *dev, const void *x, const void *weight, const float *mean,
                                 const float *rstd, const void *dy, void *dx, bool add_to_dx, void *dweight,
                                 void *dbias, dt_dtype gt, bool accumulate, int64_t n_rows, int64_t width,
                                 float *scratch, dt_dtype dt, dt_stream *stream);
    /** Floats of scratch that a norm's backward wants for rows of this width (both norms). */
    int64_t (*norm_scratch_elems)(const dt_device *dev, int64_t width);

    /** See dt_heads. q, k and v may be where x has them, in its rows. v NULL: it stays there. rstd_q [n_tok, n_heads],
     *  rstd_k [n_tok, n_kv_heads]: of the norms, for backward; NULL: not wanted. */
    dt_err (*heads_forward)(dt_device *dev, const dt_heads *h, const void *x, void *q, void *k, void *v, float *rstd_q,
                            float *rstd_k, dt_stream *stream);
    /** dq, dk: in the gradients of q' and k', out those of q and k, in rows q_ld and kv_ld apart (kv_row is not looked
     *  at). With norms: x as forward had it; dq_norm, dk_norm (+)= per accumulate, NULL: not wanted; scratch: float
     *  [norm_scratch_elems(head_dim)]. */
    dt_err (*heads_backward)(dt_device *dev, const dt_heads *h, const void *x, const float *rstd_q, const float *rstd_k,
                             void *dq, void *dk, void *dq_norm, void *dk_norm, dt_dtype gt, bool accumulate,
                             float *scratch, dt_stream *stream);

    /* attention; lse: float [n_tok, n_heads], logsumexp of scaled scores, may be NULL in forward */
    dt_err (*attention_forward)(dt_device *dev, const dt_attention *at, const void *q, const void *k, const void *v,
                                void *out, float *lse, dt_stream *stream);
    /** dq, dk, dv in the layouts of q, k, v, overwritten. scratch: float [attention_scratch_elems(at)]. */
    dt_err (*attention_backward)(dt_device *dev, const dt_attention *at, const void *q, const void *k, const void *v,
                                 const void *out, const float *lse, const void *dout, void *dq, void *dk, void *dv,
                                 float *scratch, dt_stream *stream);
    /* looks at the numbers, not the arrays; by_library: for the library, too, whether it is there or not */
    int64_t (*attention_scratch_elems)(const dt_device *dev, const dt_attention *at);
    /** Make a library ready for calls with these numbers (by_library; the arrays are not looked at), which it then
     *  takes, where all arrays lie at multiples of 16 bytes. What it does is tried: it gives the same bits each time,
     *  and the numbers of the device's own kernels, or is left. *ready: a sum of DT_READY_...; why: where that is not
     *  all, what is missing. Takes seconds and, while it runs, memory as the call's arrays three times; before the
     *  first step. NULL: the device has no library. */
    dt_err (*attention_prepare)(dt_device *dev, const dt_attention *at, bool backward, int *ready, char *why,
                                size_t why_size);

    /* activations, elementwise */
    dt_err (*act_forward)(dt_device *dev, dt_activation act, const void *x, void *y, dt_dtype dt, int64_t n,
                          dt_stream *stream);
    dt_err (*act_backward)(dt_device *dev, dt_activation act, const void *x, const void *dy, void *dx, dt_dtype dt,
                           int64_t n, dt_stream *stream); /* dx may be dy */
    /** gate_up: [n_rows, 2*width], gate first. y = act(gate) * up, y [n_rows, width]. */
    dt_err (*glu_forward)(dt_device *dev, dt_activation act, const void *gate_up, void *y, dt_dtype dt, int64_t n_rows,
                          int64_t width, dt_stream *stream);
    dt_err (*glu_backward)(dt_device *dev, dt_activation act, const void *gate_up, const void *dy, void *dgate_up,
                           dt_dtype dt, int64_t n_rows, int64_t width, dt_stream *stream); /* dgate_up may be gate_up */
    /** Inverted dropout: y[t,c] = x[t,c]/(1-p) if u(key, token_key[t], c) >= p else 0, plus addend[t,c] where addend is
     *  not NULL; without, the same call on gradients is its backward. u: word c%4 of philox(key, token_key[t], c/4) as
     *  dt_u32_to_unit. y may be x or addend. */
    dt_err (*dropout)(dt_device *dev, const void *x, const void *addend, void *y, float p, uint64_t key,
                      const uint64_t *token_key, int64_t n_tok, int64_t width, dt_dtype dt, dt_stream *stream);

    /** See dt_classifier. Without weights the logits stay as they are. */
    dt_err (*classifier)(dt_device *dev, const dt_classifier *cl, float *logits, dt_stream *stream);

    /** Rows of logits, n_vocab wide, that the head should work on at a time, of at most n_tok: enough for its products
     *  to run at full speed, few enough that the logits of a large micro-batch are never there whole. From 1 to
     *  n_tok. */
    int64_t (*classifier_rows)(const dt_device *dev, int64_t n_vocab, int64_t n_tok);

    /* choosing tokens from rows of float logits; see dt_token_rows, dt_choice */
    /** token[r] is what dt_token_weights_draw gives for uniform[r] (NULL where greedy). -1 where an allowed logit is
     *  NaN or +inf, or none is above -inf. Sums are double: devices that add in another order may differ where
     *  uniform[r] is within 2^-40 of a border. scratch: draw_scratch_nbytes(rows) bytes. */
    dt_err (*draw_tokens)(dt_device *dev, const dt_token_rows *rows, const dt_choice *how, const float *logits,
                          const double *uniform, int32_t *token, void *scratch, dt_stream *stream);
    size_t (*draw_scratch_nbytes)(const dt_device *dev, const dt_token_rows *rows);
    /** token[r, i], logit[r, i], i < k: the k largest allowed logits, falling, of equal ones the lower id first. Where
     *  fewer are above -inf the rest is -1 and -inf; where one is NaN or +inf the row is -1 and NaN. */
    dt_err (*top_tokens)(dt_device *dev, const dt_token_rows *rows, const float *logits, int64_t k, int32_t *token,
                         float *logit, dt_stream *stream);
    /** logp[r, i] = log softmax(logits[r] inv_temperature)[token[r, i]], i < k, over the whole vocabulary, allowed
     *  (listed) or not; -inf where token[r, i] < 0; NaN in a row that has no finite sum. */
    dt_err (*log_softmax_at)(dt_device *dev, const dt_token_rows *rows, const float *logits, double inv_temperature,
                             int64_t k, const int32_t *token, double *logp, dt_stream *stream);

    /* optimizer and reductions. Results of reductions are written to device memory: copy, sync, then read. */
    /** master: float [n], updated. param: NULL, or [n] of type param_dt which receives the rounded master. */
    dt_err (*adamw_step)(dt_device *dev, const dt_adamw *opt, const void *grad, dt_dtype gt, float *master, float *m,
                         float *v, void *param, dt_dtype param_dt, int64_t n, dt_stream *stream);
    /** As adamw_step. momentum: float [n], updated; NULL: b is g. */
    dt_err (*sgd_step)(dt_device *dev, const dt_sgd *opt, const void *grad, dt_dtype gt, float *master, float *momentum,
                       void *param, dt_dtype param_dt, int64_t n, dt_stream *stream);
    /** *result (double) = sum of squares, summed in a fixed order; non-finite elements make it non-finite. */
    dt_err (*sum_squares)(dt_device *dev, const void *x, dt_dtype dt, int64_t n, double *result, dt_stream *stream);
    /** *result (float) = largest |x|; NaN or Inf in x gives Inf. */
    dt_err (*abs_max)(dt_device *dev, const void *x, dt_dtype dt, int64_t n, float *result, dt_stream *stream);
    /** result[0..1]: the exact integer sum of (int64) rint(x^2 * 2^shift) as low and high 64 bits: free of order, so
     *  the same however x is cut. The caller picks shift so that each term is below 2^52. */
    dt_err (*sum_squares_fixed)(dt_device *dev, const void *x, dt_dtype dt, int64_t n, int shift, uint64_t result[2],
                                dt_stream *stream);
} dt_device_ops;

struct dt_device {
    const dt_device_ops *ops;
    void *impl; /* the backend's own state */
    dt_ledger *ledger;
    int local_rank;
    const struct dt_stream_listener *listener; /* NULL: nobody */
};

/* ---- what streams do, for whoever wants to know ------------------------------------------------------------------ */

/** Is told which streams there are and what is queued on them: the timeline, which records an event at each change. By
 *  the thread that queues. */
typedef struct dt_stream_listener {
    void *self;
    size_t
        stream_nbytes; /* of host memory (DT_MEM_OTHER), for each stream: whoever listens counts them in the ledger */
    dt_err (*open)(void *self, dt_stream *stream, const char *name);
    void (*close)(void *self, const dt_stream *stream);
    void (*begin)(void *self, dt_stream *stream, const char *what, const char *unit, int64_t number);
    void (*end)(void *self, dt_stream *stream);
} dt_stream_listener;

/** Create a stream and tell the listener of it by this name ("compute", "communication", "copies"). All memory that the
 *  stream, and what the listener keeps of it, will ever need is allocated here and counted in the device's ledger.
 *  *stream is NULL after an error. */
dt_err dt_stream_open(dt_device *dev, dt_stream **stream, const char *name);
/** Nothing may be queued on it: wait first. Safe on NULL. */
void dt_stream_close(dt_device *dev, dt_stream *stream);
/** Add what n streams hold, with what the listener that is there keeps of them. */
void dt_stream_plan(const dt_device *dev, int n, dt_memory *memory);
/** What is queued on the stream from here to dt_stream_end is `what` of `unit`: strings that outlive the run. number:
 *  of the collective that it is, or waits for; 0: of none. */
static inline void dt_stream_begin(const dt_device *dev, dt_stream *stream, const char *what, const char *unit,
                                   int64_t number)
{
    if (dev->listener) dev->listener->begin(dev->listener->self, stream, what, unit, number);
}
static inline void dt_stream_end(const dt_device *dev, dt_stream *stream)
{
    if (dev->listener) dev->listener->end(dev->listener->self, stream);
}

/** Open "auto" (cuda where one is built and found, else cpu), "cpu" or "cuda". n_threads 0: the backend's choice.
 *  DT_ERR_USAGE naming what is missing when the backend is not there. Logs what auto took. For tests, DTRAIN_DEVICE
 *  puts another device ("queue", "cuda") in the place of the CPU. */
dt_err dt_device_open(dt_device *dev, const char *name, int local_rank, int n_threads, dt_ledger *ledger);
/** For --plan: a device that answers questions for sizes and does nothing else; nothing is allocated on it, and it need
 *  not be there ("auto": the first that is). For "cuda" neither CUDA nor its object is needed:
 * dtrain/device/gpu_sizes.h. */
dt_err dt_device_open_to_plan(dt_device *dev, const char *name, int n_threads, dt_ledger *ledger);
/** The CPU itself, whatever DTRAIN_DEVICE says: for what is computed in host memory beside another device. planning: as
 *  dt_device_open_to_plan. */
dt_err dt_device_open_host(dt_device *dev, int n_threads, bool planning, dt_ledger *ledger);
void dt_device_close(dt_device *dev); /* safe on {0} */

/** For a backend: a device of this process has failed for good. None of its numbers can be trusted, and whatever it is
 *  asked for fails or never returns. From then on no collective begins (comm.h), nothing waits for the device or is
 *  given back to it, and dt_comm_leave ends the job. The first message is kept. Any thread. Returns DT_ERR_FAULT. */
dt_err dt_device_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/** That message; NULL: none has failed. Any thread. */
const char *dt_device_failure(void);

/** Does the device compute what the CPU computes? Runs every operation on random numbers on both, n_threads for the
 * CPU, in about a second. DT_ERR_FAULT lists those that differ, where and by how much. Products that a library
 * computes wrong are left to the device's own kernels (distrust), and what these compute counts; *n_distrusted: how
 * many forms were, for as long as the device is open; may be NULL. */
dt_err dt_device_self_check(dt_device *dev, int n_threads, int *n_distrusted);
/** A row of weights as int8 with a scale, in host memory (algorithms.md 6.3): with c the largest |w|
 *
 *      q = 127 w / c, rounded, halves to even;  scale = c / 127
 *
 *  A row of zeros has zeros and the scale 0; one that holds a NaN or inf has a scale that is neither. */
void dt_quantise_row(const float *w, int64_t n, int8_t *q, float *scale);
/** Bytes of the node's memory that this process may still take, as far as the system tells. */
size_t dt_host_memory_free(void);
/** Bytes of address space that this process may still take, less a reserve for libraries; SIZE_MAX without a limit
 *  (ulimit -v). oneDNN and HDF5 crash, and OpenMP ends the process, where the system refuses them memory. */
enum { DT_ADDRESS_RESERVE = 64 << 20 };
size_t dt_address_space_free(void);
/** Bytes on the device that the backend itself holds besides what passes through the ledger: for the plan. */
size_t dt_device_overhead(const dt_device *dev);

extern const dt_device_ops dt_device_cpu_ops;

/** Names of the backends in this binary, comma separated. */
const char *dt_device_backends(void);

#endif
