/* core.h - shared by all modules: errors, log, memory accounting, clocks, cores, phases, fault injection, random
 * numbers.
 *
 * core does not use MPI: every function is Local. The log, the last error of a thread and the injected faults are the
 * only global state. CUDA sources include this header as C++, which lacks C's atomic types, so types that contain them
 * are hidden there. */
#ifndef DTRAIN_CORE_H
#define DTRAIN_CORE_H

#include <stdarg.h>
#ifndef __cplusplus
#include <stdatomic.h>
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/** Error codes. Each maps to one exit code of the program (dt_exit_code). */
typedef enum dt_err {
    DT_OK = 0,
    DT_ERR_USAGE,     /* 64: configuration or command line */
    DT_ERR_DATA,      /* 65: data, model or checkpoint file is missing or invalid */
    DT_ERR_BASE,      /* 65: the base model of a checkpoint is missing or was changed; the checkpoint may be valid */
    DT_ERR_FAULT,     /* 70: a fault in the program or on the device */
    DT_ERR_ARG,       /* 70: a caller inside the program violated a contract */
    DT_ERR_MEMORY,    /* 70: out of memory; the message names the size */
    DT_ERR_NONFINITE, /* 71: loss or weights are non-finite */
    DT_ERR_WRITE,     /* 74: writing failed (disk full, quota) */
    DT_ERR_STOP,      /* 75: stopped on request, after saving a checkpoint */
    DT_ERR_COMM,      /* 76: communication failed or timed out */
    DT_N_ERR
} dt_err;

/** Exit code of the program for an error, from sysexits(3) where one fits. An unknown code gives 70. */
int dt_exit_code(dt_err err);
/** Name of an error for messages: "input missing or invalid". A literal. */
const char *dt_error_words(dt_err err);

/** Record an error message of this thread, without printing it. Only the first message since dt_error_clear is kept;
 *  main prints it (dt_error_message).
 *
 *  fmt  as printf; longer than 8191 bytes: truncated, ending in "..."
 *
 *  Returns err. */
dt_err dt_fail(dt_err err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#ifdef __clang_analyzer__ /* it analyses one file at a time, so it must know that an error is never DT_OK */
#define dt_fail(err, ...) ((dt_fail)(err, __VA_ARGS__), (err))
#endif

/** As dt_fail, with the message "PATH: WHAT: <strerror(errno)>". what may be NULL. Returns err. */
dt_err dt_fail_errno(dt_err err, const char *path, const char *what);
#ifdef __clang_analyzer__
#define dt_fail_errno(err, ...) ((dt_fail_errno)(err, __VA_ARGS__), (err))
#endif

/** Log at debug level that err passed this call. For DT_TRY. Returns err. */
dt_err dt_trace(dt_err err, const char *file, int line, const char *call);
#ifdef __clang_analyzer__
#define dt_trace(err, ...) ((dt_trace)(err, __VA_ARGS__), (err))
#endif

/** The recorded message of this thread, "" if there is none. Valid until the next dt_fail or dt_error_clear. */
const char *dt_error_message(void);
/** Discard this thread's message, so that the next dt_fail records its own. */
void dt_error_clear(void);
/** Replace this thread's message. Its text, dt_error_message, may be an argument. Returns err. */
dt_err dt_error_replace(dt_err err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/** Prepend a location ("FILE: ") to the message of err, if it is an error. Returns err. */
dt_err dt_error_lead(dt_err err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/** Prepend a location ("FILE:3: ") to the message of a DT_ERR_DATA. Other errors and DT_OK are unchanged. Returns
 *  err. */
dt_err dt_error_prefix(dt_err err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** Call, and return the error from the calling function. */
#define DT_TRY(call)                                                                                                   \
    do {                                                                                                               \
        dt_err dt_e_ = (call);                                                                                         \
        if (dt_e_ != DT_OK) return dt_trace(dt_e_, __FILE__, __LINE__, #call);                                         \
    } while (0)

/** Unless cond holds, record err with the formatted message and return it from the calling function. */
#define DT_CHECK(cond, err, ...)                                                                                       \
    do {                                                                                                               \
        if (!(cond)) return dt_fail((err), __VA_ARGS__);                                                               \
    } while (0)

/** As DT_CHECK with DT_ERR_ARG, for a condition that only a mistake in dtrain can violate: the message is the
 *  condition. */
#define DT_EXPECT(cond) DT_CHECK(cond, DT_ERR_ARG, "internal: %s:%d: expected %s", __FILE__, __LINE__, #cond)

/** As DT_CHECK, with dt_fail_errno's message. */
#define DT_CHECK_ERRNO(cond, err, path, what)                                                                          \
    do {                                                                                                               \
        if (!(cond)) return dt_fail_errno((err), (path), (what));                                                      \
    } while (0)

/** Mistakes of the user that are reported together, one per line. {0} to begin; ended by dt_mistakes_end. */
typedef struct dt_mistakes {
    char *text; /* messages joined by newlines; owned */
    int n;      /* number of different messages */
    dt_err err; /* the error with the lowest exit code */
} dt_mistakes;

/** Move this thread's message to the list, unless the list contains it, and clear it, so that the caller can look for
 *  further mistakes. err DT_OK: nothing. After a DT_ERR_STOP without an earlier mistake, later errors are dropped. */
void dt_mistakes_add(dt_mistakes *m, dt_err err);
/** Record all messages of the list as one. Returns the list's error, DT_OK if it is empty. Leaves {0}. */
dt_err dt_mistakes_end(dt_mistakes *m);

/* ---- log --------------------------------------------------------------------------------------------------------- */

/** Levels of the log. */
typedef enum dt_log_level { DT_LOG_ERROR, DT_LOG_WARN, DT_LOG_INFO, DT_LOG_DEBUG } dt_log_level;

/** Set rank, number of ranks and host of this process. Until then the log acts as rank 0 of 1. DTRAIN_LOG =
 *  debug|info|warn|error sets the level. host is copied; may be NULL. */
void dt_log_open(int rank, int nranks, const char *host);

/** Set the program's name in warnings and errors ("dtrain" by default). Borrowed for the life of the process. */
void dt_log_name(const char *program);
/** The program's name. */
const char *dt_log_program(void);
/** Warn once that a write to stdout failed; call it with errno set. */
void dt_log_stdout_lost(void);

/** Print one message, as one write(2) per line. Thread-safe.
 *
 *  - DT_LOG_INFO: rank 0 only, to stdout.
 *  - DT_LOG_WARN, DT_LOG_ERROR: any rank, to stderr, preceded by "PROGRAM: " or, with several ranks, "PROGRAM: [rank R
 *    HOST] ".
 *  - DT_LOG_DEBUG: any rank, to stderr, likewise.
 *
 *  fmt  as printf, without the newline; each line of a multi-line warning or error gets the prefix
 *
 *  Nothing is printed if DTRAIN_LOG excludes the level. A failed write is ignored, except for a warning about
 *  stdout. */
void dt_log(dt_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define DT_INFO(...) dt_log(DT_LOG_INFO, __VA_ARGS__)
#define DT_WARN(...) dt_log(DT_LOG_WARN, __VA_ARGS__)
#define DT_DEBUG(...) dt_log(DT_LOG_DEBUG, __VA_ARGS__)

/* ---- arithmetic -------------------------------------------------------------------------------------------------- */

static inline int64_t dt_min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t dt_max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t dt_ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); } /* a >= 0, b > 0 */
static inline size_t dt_min_size(size_t a, size_t b) { return a < b ? a : b; }

/** x, or a NaN without sign: printf would print the sign. */
static inline double dt_unsigned_nan(double x) { return x == x ? x : __builtin_nan(""); }

/** Maximum side length of a model's input image, in pixels: the bytes of an image fit in 32 bits. */
enum { DT_MAX_IMAGE_SIZE = 1 << 14 };
/** Bytes of an image [size, size, 3] of uint8. */
static inline size_t dt_image_nbytes(int64_t size) { return 3 * (size_t)(size * size); }

/* ---- data types -------------------------------------------------------------------------------------------------- */

/** Element types in memory. An operation that does not support a type returns DT_ERR_ARG. */
typedef enum dt_dtype {
    DT_F32,
    DT_BF16,
    DT_F16,
    DT_I8,
    DT_NF4X2, /* two 4-bit weights in a byte (nf4.h) */
    DT_U8,    /* an index into a table of values */
    DT_N_DTYPE
} dt_dtype;

/** Bytes of an element (of DT_NF4X2: of two). */
static inline size_t dt_dtype_size(dt_dtype t)
{
    static const unsigned char SIZES[DT_N_DTYPE] = {4, 2, 2, 1, 1, 1};
    return SIZES[t];
}
/** "fp32", "bf16", ... */
static inline const char *dt_dtype_name(dt_dtype t)
{
    static const char *const NAMES[DT_N_DTYPE] = {"fp32", "bf16", "fp16", "int8", "nf4", "uint8"};
    return NAMES[t];
}

/** bf16 is the upper half of a float. Conversion rounds to nearest, ties to even; NaN stays NaN. */
static inline float dt_bf16_to_float(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } x = {.u = (uint32_t)h << 16};
    return x.f;
}
static inline uint16_t dt_bf16_from_float(float f)
{
    union {
        float f;
        uint32_t u;
    } x = {.f = f};
    if ((x.u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((x.u >> 16) | 0x40u);
    return (uint16_t)((x.u + 0x7fffu + ((x.u >> 16) & 1u)) >> 16);
}

/** IEEE binary16: 10 bits of fraction, exponents -14 to 15, below 2^-14 multiples of 2^-24. Written with selects and
 *  without subnormal floats, so that compilers vectorise loops over it. */
static inline __attribute__((always_inline)) float dt_f16_to_float(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } normal, small;
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, x = (uint32_t)(h & 0x7fffu) << 13;
    normal.u = x + (x < 0x0f800000u ? 0x38000000u : 0x70000000u); /* Inf and NaN are kept */
    small.u = x + 0x38800000u;
    small.f -= 0x1p-14f; /* 2^-14 (1 + fraction) - 2^-14 */
    normal.u = (x < 0x00800000u ? small.u : normal.u) | sign;
    return normal.f;
}
/** Round to nearest, ties to even; 65520 and above give Inf; a NaN keeps its sign and upper bits. */
static inline __attribute__((always_inline)) uint16_t dt_f16_from_float(float f)
{
    union {
        float f;
        uint32_t u;
    } x = {.f = f}, small;
    const uint32_t sign = (x.u >> 16) & 0x8000u, a = x.u & 0x7fffffffu, upper = a >> 13 & 0x3ffu;
    small.u = a;
    small.f += 0.5f; /* one unit in the last place of 0.5 .. 1 is 2^-24 */
    uint32_t h = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    h = a < 0x38800000u ? small.u - 0x3f000000u : h;
    h = a >= 0x477ff000u ? 0x7c00u : h;
    h = a > 0x7f800000u ? 0x7c00u | (upper ? upper : 0x200u) : h;
    return (uint16_t)(sign | h);
}

/** Element i of an array of a floating-point type, as a float. */
static inline float dt_element(const void *p, dt_dtype t, int64_t i)
{
    if (t == DT_F32) return ((const float *)p)[i];
    const uint16_t h = ((const uint16_t *)p)[i];
    return t == DT_F16 ? dt_f16_to_float(h) : dt_bf16_to_float(h);
}
/** Set element i, rounded to the type. */
static inline void dt_set_element(void *p, dt_dtype t, int64_t i, float x)
{
    if (t == DT_F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = t == DT_F16 ? dt_f16_from_float(x) : dt_bf16_from_float(x);
}
/** Maximum relative error of rounding to a floating-point type: half a unit in the last place of 1. */
static inline double dt_roundoff(dt_dtype t) { return t == DT_F32 ? 0x1p-24 : t == DT_F16 ? 0x1p-11 : 0x1p-8; }
static inline bool dt_is_float(dt_dtype t) { return t == DT_F32 || t == DT_BF16 || t == DT_F16; }

/* ---- arrays in host memory --------------------------------------------------------------------------------------- */

/* array is the address of the pointer to the elements, which the caller frees. fmt is the message of DT_ERR_MEMORY, as
 * in dt_fail. The macros return the error from the calling function, as DT_TRY does. */

/** Allocate n zeroed elements; for n = 0 the address is not NULL either. NULL on error. */
dt_err dt_alloc(void *array, int64_t n, size_t elem_size, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/** Change the number of elements to n; new ones are not initialised. Unchanged on error, as with dt_grow. */
dt_err dt_resize(void *array, int64_t n, size_t elem_size, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/** Make space for element n of an array that has n elements. The capacity is a power of two that follows from n, so the
 *  caller does not store it. The array must not be allocated in another way. */
dt_err dt_grow(void *array, int64_t n, size_t elem_size, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/** Copy a text. NULL on error. */
dt_err dt_copy_text(char **copy, const char *text, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#define DT_ALLOC(pointer, n, ...) DT_TRY(dt_alloc(&(pointer), (int64_t)(n), sizeof *(pointer), __VA_ARGS__))
#define DT_RESIZE(pointer, n, ...) DT_TRY(dt_resize(&(pointer), (int64_t)(n), sizeof *(pointer), __VA_ARGS__))
#define DT_GROW(pointer, n, ...) DT_TRY(dt_grow(&(pointer), (int64_t)(n), sizeof *(pointer), __VA_ARGS__))
#define DT_COPY_TEXT(pointer, text, ...) DT_TRY(dt_copy_text(&(pointer), (text), __VA_ARGS__))

/* ---- memory accounting ------------------------------------------------------------------------------------------- */

/** Category of an allocation. The plan, the run's report and the leak check use the same categories. */
typedef enum dt_memcat {
    DT_MEM_PARAMS,
    DT_MEM_GRADS,
    DT_MEM_OPTIMIZER,
    DT_MEM_ACTIVATIONS,
    DT_MEM_STAGING, /* buffers of collectives, gathered units, reduction, offload */
    DT_MEM_DATA,
    DT_MEM_OTHER,
    DT_N_MEMCAT
} dt_memcat;

/** Memory space of an allocation. Whether the first three share physical memory depends on the device (device.h,
 *  own_memory). */
typedef enum dt_memspace {
    DT_ON_DEVICE,
    DT_ON_PINNED, /* page-locked host memory that the device can copy from and to */
    DT_ON_HOST,   /* other host memory */
    DT_IN_FILE,
    DT_N_MEMSPACE
} dt_memspace;

/** "parameters", ... */
const char *dt_memcat_name(dt_memcat c);
/** "device", "pinned", "host", "file" */
const char *dt_memspace_name(dt_memspace p);

/** Bytes by category and memory space, of a plan or of a ledger. */
typedef struct dt_memory {
    size_t at[DT_N_MEMCAT][DT_N_MEMSPACE];
} dt_memory;

/** sum += more, for every category and memory space. */
void dt_memory_add(dt_memory *sum, const dt_memory *more);
/** Bytes of a category in all memory spaces. */
size_t dt_memory_of(const dt_memory *m, dt_memcat c);
/** Bytes in a memory space, of all categories. */
size_t dt_memory_on(const dt_memory *m, dt_memspace p);
/** Bytes of all categories in all memory spaces. */
size_t dt_memory_total(const dt_memory *m);

/** Bytes that a process holds now, and the maximum so far. {0} to begin; one per process, passed to all that allocate.
 *  Thread-safe. */
typedef struct dt_ledger dt_ledger;
#ifndef __cplusplus
struct dt_ledger {
    atomic_size_t now[DT_N_MEMCAT][DT_N_MEMSPACE], peak[DT_N_MEMCAT][DT_N_MEMSPACE];
    atomic_size_t on_now[DT_N_MEMSPACE], on_peak[DT_N_MEMSPACE]; /* of all categories */
    atomic_size_t total_now, total_peak;                         /* all memory spaces except files */
    /* allocations so far: a test checks that a step makes none */
    atomic_size_t n_allocs;
};
#endif

/** Count an allocation of nbytes. Thread-safe. Nothing for l NULL or nbytes 0. */
void dt_ledger_add(dt_ledger *l, dt_memcat c, dt_memspace p, size_t nbytes);
/** Count the release of nbytes that dt_ledger_add counted with the same category and memory space. Thread-safe. Nothing
 *  for l NULL. */
void dt_ledger_sub(dt_ledger *l, dt_memcat c, dt_memspace p, size_t nbytes);
/** The bytes that the ledger holds now. */
dt_memory dt_ledger_now(const dt_ledger *l);

/** The next of several arrays in one allocation: n elements at block + *used. *used then advances past them, to a
 *  multiple of 8 bytes. block NULL: returns NULL, so that the same code first computes the size and then assigns
 *  addresses. */
static inline void *dt_carve(void *block, size_t *used, int64_t n, size_t elem_size)
{
    void *const at = block ? (char *)block + *used : NULL;
    *used += ((size_t)n * elem_size + 7) / 8 * 8;
    return at;
}

/** Format a size for users: "1.50 GiB", "812 KiB". out: out [24]. Returns out. */
char *dt_format_bytes(double nbytes, char *out);
/** Format a count with 3 significant digits and a power of 1000: "835", "12.3k", "1.20M". out: out [24]. Returns
 *  out. */
char *dt_format_count(double n, char *out);
/** Format a duration: "45s", "12m30s", "3h05m", "2d04h"; "?" if it is negative, NaN or over 1e5 days. out: out [24].
 *  Returns out. */
char *dt_format_duration(double seconds, char *out);

/** Parse a size: "512", "500M", "5GB" (powers of 1000), "64Ki", "2GiB" (powers of 1024), upper or lower case; below
 *  2^63 bytes. False, and *nbytes unchanged, if the text is no such size. */
bool dt_parse_bytes(const char *text, uint64_t *nbytes);

/** Is the word in a list such as "first, second" or "first second"? */
bool dt_has_word(const char *list, const char *word);
/** Write n words as "a, b or c", for messages; what does not fit is cut. out: [size]. Returns out. */
const char *dt_choices(char *out, size_t size, const char *const *word, int n);

/** Free n_items malloc'ed strings and the malloc'ed array of them. Safe on NULL. */
void dt_list_free(char **items, int n_items);

/* ---- clocks ------------------------------------------------------------------------------------------------------ */

/** Seconds of a monotonic clock. Any thread. */
double dt_now_s(void);

/* ---- cores ------------------------------------------------------------------------------------------------------- */

/** A set of this machine's logical processors, here called cores. */
enum { DT_CORE_WORDS = 128 };
typedef struct dt_cores {
    uint64_t word[DT_CORE_WORDS];
} dt_cores;
/** The affinity mask of a process (pid 0: this one); empty if the system does not report it. */
void dt_cores_of(int pid, dt_cores *set);
/** Number of cores in the set. */
int dt_cores_count(const dt_cores *set);
/** Cores that this process may use: its affinity mask, at most SLURM_CPUS_PER_TASK. At least 1. */
int dt_cores_own(void);
/** SLURM_CPUS_PER_TASK; 0 if it is not set. */
int dt_cores_per_task(void);
/** Cores of the machine that are online. */
int dt_cores_online(void);
/** Cores of the job on this machine: SLURM_CPUS_ON_NODE, else the affinity mask of the parent process. */
int dt_cores_of_job(void);

/* ---- shared objects ---------------------------------------------------------------------------------------------- */

/** Load a shared object of this program (libdtrain_cuda.so) and return the address of a symbol. It stays loaded.
 *
 *  file    file name without directory
 *  stale   out  the object was compiled from other headers than this program, so its tables may differ
 *  why     out  [why_size] reason of a failure
 *
 *  Returns NULL if the object was not built, cannot be loaded, or is stale. */
const void *dt_object_symbol(const char *file, const char *symbol, bool *stale, char *why, size_t why_size);
/** Define next to such a symbol which headers it was compiled from (DT_INTERFACE: the Makefile's checksum of them). */
#define DT_OBJECT_INTERFACE(symbol)                                                                                    \
    extern const char symbol##_interface[];                                                                            \
    const char symbol##_interface[] = DT_INTERFACE

/** The GNU build ID, in hex, of the program or shared object that contains an address; "" if it has none. Returns
 *  out. */
enum { DT_BUILD_TEXT = 80 };
char *dt_object_build(const void *address, char out[DT_BUILD_TEXT]);

/* ---- phases ------------------------------------------------------------------------------------------------------ */

/** Current phase of a rank: written by the working thread, read by the watchdog. Strings are literals or outlive the
 *  run. */
typedef struct dt_phase dt_phase;
#ifndef __cplusplus
struct dt_phase {
    _Atomic(const char *) name; /* "read", "forward", "backward", "reduce", "agree", "update", "save", ... */
    _Atomic(const char *) unit; /* unit or tensor, "" for none */
    atomic_llong step;
    _Atomic double since_s; /* dt_now_s() at the last change: progress, for the watchdog */
    /* called at every change (trace); may be NULL */
    void (*listener)(void *self, const char *name, const char *unit, double now_s);
    void *listener_self;
    /* non-zero: a stop was requested; polled during long work without votes (dt_phase_poll); may be NULL */
    int (*stop_asked)(void);
    double stop_at_s; /* dt_now_s() after which the program must stop to save in time; 0: never */
};

/** Enter a phase. unit may be NULL. Nothing for p NULL. */
static inline void dt_phase_enter(dt_phase *p, const char *name, const char *unit)
{
    if (!p) return;
    const double now_s = dt_now_s();
    atomic_store_explicit(&p->name, name, memory_order_relaxed);
    atomic_store_explicit(&p->unit, unit ? unit : "", memory_order_relaxed);
    atomic_store_explicit(&p->since_s, now_s, memory_order_relaxed);
    if (p->listener) p->listener(p->listener_self, name, unit ? unit : "", now_s);
}
#endif

/** DT_ERR_STOP if a stop was requested or the time limit is over, with a message that names the phase; else DT_OK. The
 *  caller carries it to the next vote like any error. p may be NULL. */
dt_err dt_phase_poll(const dt_phase *p);

/* ---- fault injection --------------------------------------------------------------------------------------------- */

/** Fault injection: let a test make one rank fail at a named point. Without DTRAIN_FAULT a call costs one load.
 *
 *  DTRAIN_FAULT="POINT:RANK:NTH:KIND[,...]" triggers KIND at the NTH passage (from 1) of POINT on RANK, the rank of
 *  dt_log_open, or "*" for every rank. Kinds:
 *
 *  - error: returns DT_ERR_FAULT; nospace: returns DT_ERR_WRITE
 *  - hang: sleeps forever; slow: sleeps for a second
 *  - stop: SIGSTOP to itself, continues at SIGCONT; signal: SIGUSR1 to its process; kill: SIGKILL to itself; exit:
 *    _exit(3) */
dt_err dt_fault(const char *point);
/** As dt_fault, instead of a system call. Returns 0, ENOSPC ("nospace"), EIO ("error"), or -1 ("short"): the caller
 *  then transfers fewer bytes than requested. dt_fault returns DT_ERR_FAULT for "short". */
int dt_fault_errno(const char *point);

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

/** Purpose of a random stream: different purposes give independent streams (algorithms.md section 0). The values are
 *  part of the file format and never change. */
typedef enum dt_rng_purpose {
    DT_RNG_SHUFFLE = 1,
    DT_RNG_DROPOUT = 2,
    DT_RNG_INIT = 3,
    DT_RNG_SAMPLING = 4,
    DT_RNG_NOISE = 5,
    DT_RNG_MIX = 6,
    DT_RNG_MINIBATCH = 7,
    DT_RNG_FILTER = 8,
    DT_RNG_LORA_DROPOUT = 9,
    DT_RNG_GROUP = 10,
    DT_RNG_STATES = 11,
    DT_RNG_ON_POLICY = 12,
    DT_RNG_NEFTUNE = 13
} dt_rng_purpose;

/** Philox 4x32-10 (Salmon et al., SC 2011): four 32-bit words as a pure function of a 64-bit key and a 128-bit
 *  counter. */
void dt_philox4x32(uint64_t key, uint64_t ctr_hi, uint64_t ctr_lo, uint32_t out[4]);

/** Key of a random stream, mixed from seed and purpose. A pure function. */
uint64_t dt_rng_key(uint64_t seed, dt_rng_purpose purpose);

/** Finaliser of splitmix64: a well-mixing bijection on 64 bits. */
static inline uint64_t dt_mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline float dt_u32_to_unit(uint32_t u) { return (float)(u >> 8) * 0x1p-24f; } /* [0, 1) */

/** out[i] = N(0, std^2), 0 <= i < n, for the elements first .. first + n - 1 of a tensor: the same values for any
 *  division of the tensor. Box-Muller on Philox words. Uses OpenMP threads if n is large.
 *
 *  key, tensor  the random stream
 *  out          out  [n], host */
void dt_rng_normal(uint64_t key, uint64_t tensor, int64_t first, int64_t n, float std, float *out);
/** As dt_rng_normal, but U(-bound, bound), in multiples of bound / 2^23. */
void dt_rng_uniform(uint64_t key, uint64_t tensor, int64_t first, int64_t n, float bound, float *out);

/** Element i of a pseudo-random permutation of 0 .. n-1, in constant memory: a keyed Feistel network with cycle
 *  walking. A pure function. n >= 1, i < n. */
uint64_t dt_rng_permute(uint64_t key, uint64_t n, uint64_t i);

#endif
