/* core.h - what every room stands on: errors, log, memory accounting, clocks, phases, faults to inject, random numbers.
 *
 * Nothing here knows MPI. The log is the only global state of the program. CUDA sources read this as C++, which has no
 * atomic types of C: what holds some is hidden from them. */
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

/** What went wrong; each value belongs to one exit code of the program (dt_exit_code). */
typedef enum dt_err {
    DT_OK = 0,
    DT_ERR_USAGE,     /* 64: configuration or command line */
    DT_ERR_DATA,      /* 65: data, model or checkpoint file missing or bad */
    DT_ERR_BASE,      /* 65: what a checkpoint leaves out has gone or was altered: the checkpoint itself may be good */
    DT_ERR_FAULT,     /* 70: a fault in the program or on the device */
    DT_ERR_ARG,       /* 70: a caller inside the program broke a contract */
    DT_ERR_MEMORY,    /* 70: out of memory; the message says what was asked for */
    DT_ERR_NONFINITE, /* 71: loss or weights non-finite and stayed so */
    DT_ERR_WRITE,     /* 74: writing failed (disk full, quota) */
    DT_ERR_STOP,      /* 75: stopped early as asked, a checkpoint is written */
    DT_ERR_COMM,      /* 76: communication failed or timed out */
    DT_N_ERR
} dt_err;

/** Exit code of the program for an error (sysexits(3) numbers where they exist). */
int dt_exit_code(dt_err err);
const char *dt_error_words(dt_err err); /* "input missing or bad" */

/** Record an error: the message is kept (per thread, the first one since dt_error_clear wins) and not printed;
 *  whoever ends the error's way (main, as a rule) prints it once with dt_error_message(). Returns err. */
dt_err dt_fail(dt_err err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#ifdef __clang_analyzer__ /* which sees one file at a time: an error is never DT_OK */
#define dt_fail(err, ...) ((dt_fail)(err, __VA_ARGS__), (err))
#endif

/** dt_fail with "PATH: WHAT: " and what errno says; what may be NULL. */
dt_err dt_fail_errno(dt_err err, const char *path, const char *what);
#ifdef __clang_analyzer__
#define dt_fail_errno(err, ...) ((dt_fail_errno)(err, __VA_ARGS__), (err))
#endif

/** Note at debug level that err passed through this place; returns err. For DT_TRY. */
dt_err dt_trace(dt_err err, const char *file, int line, const char *call);
#ifdef __clang_analyzer__
#define dt_trace(err, ...) ((dt_trace)(err, __VA_ARGS__), (err))
#endif

const char *dt_error_message(void); /* "" when nothing was recorded in this thread; valid until the next dt_fail */
void dt_error_clear(void);
/** Put where it is ("FILE:3: ") in front of the message of a DT_ERR_DATA, for callers that know more of the place;
 *  other errors, and DT_OK, stay as they are. Returns err. */
dt_err dt_error_prefix(dt_err err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define DT_TRY(call)                                                                                                   \
    do {                                                                                                               \
        dt_err dt_e_ = (call);                                                                                         \
        if (dt_e_ != DT_OK) return dt_trace(dt_e_, __FILE__, __LINE__, #call);                                         \
    } while (0)

/** Check a condition on the caller's input; on failure record err with the formatted message and return it. */
#define DT_CHECK(cond, err, ...)                                                                                       \
    do {                                                                                                               \
        if (!(cond)) return dt_fail((err), __VA_ARGS__);                                                               \
    } while (0)

/** The same after a call that has set errno. */
#define DT_CHECK_ERRNO(cond, err, path, what)                                                                          \
    do {                                                                                                               \
        if (!(cond)) return dt_fail_errno((err), (path), (what));                                                      \
    } while (0)

/** Mistakes of the user that are reported together, a line each: {0} to begin. */
typedef struct dt_mistakes {
    char *text;
    int n;
    dt_err err; /* the one of lowest exit code: what the whole list comes to */
} dt_mistakes;

/** The message that err left in this thread joins the list, unless it is there already, and is cleared, so that work
 *  can continue to the next mistake. Nothing happens for DT_OK, nor after a DT_ERR_STOP without a mistake before it. */
void dt_mistakes_add(dt_mistakes *m, dt_err err);
/** DT_OK, or the error of the list with all messages as one; the list is empty afterwards. */
dt_err dt_mistakes_end(dt_mistakes *m);

/* ---- log --------------------------------------------------------------------------------------------------------- */

typedef enum dt_log_level { DT_LOG_ERROR, DT_LOG_WARN, DT_LOG_INFO, DT_LOG_DEBUG } dt_log_level;

/** Say who speaks. Before this call the log speaks as rank 0 of 1. DTRAIN_LOG=debug|info|warn|error sets the level. */
void dt_log_open(int rank, int nranks, const char *host);

/** The program that warnings and errors come from ("dtrain" until it is said); name must stay valid. */
void dt_log_name(const char *program);
const char *dt_log_program(void);
/** To be called where a write to stdout failed (errno): a warning, once. */
void dt_log_stdout_lost(void);

/** Information: from rank 0 alone, to stdout. Warnings and errors: from the rank concerned, with "[rank R host]" where
 *  there are several ranks, to stderr. Debug: from every rank, to stderr. A newline is added. One write per line. */
void dt_log(dt_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define DT_INFO(...) dt_log(DT_LOG_INFO, __VA_ARGS__)
#define DT_WARN(...) dt_log(DT_LOG_WARN, __VA_ARGS__)
#define DT_DEBUG(...) dt_log(DT_LOG_DEBUG, __VA_ARGS__)

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static inline int64_t dt_min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t dt_max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t dt_ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); } /* a >= 0, b > 0 */
static inline size_t dt_min_size(size_t a, size_t b) { return a < b ? a : b; }

/** For printing: printf writes the sign that a NaN may have. */
static inline double dt_unsigned_nan(double x) { return x == x ? x : __builtin_nan(""); }

/** Pixels along a side of an image that a model takes: what a patch has of numbers, and an image of bytes, fits in 32
 *  bits. */
enum { DT_MAX_IMAGE_SIZE = 1 << 14 };
/** Bytes of such an image, [size, size, 3]. */
static inline size_t dt_image_nbytes(int64_t size) { return 3 * (size_t)(size * size); }

/* ---- data types -------------------------------------------------------------------------------------------------- */

/** Types in which elements are kept. An operation that does not compute in one of them says so: DT_ERR_ARG. */
typedef enum dt_dtype {
    DT_F32,
    DT_BF16,
    DT_F16,
    DT_I8,
    DT_NF4X2, /* a byte that holds two weights of four bits (nf4.h) */
    DT_U8,    /* a byte that stands for a number of a table */
    DT_N_DTYPE
} dt_dtype;

static inline size_t dt_dtype_size(dt_dtype t)
{
    static const unsigned char SIZES[DT_N_DTYPE] = {4, 2, 2, 1, 1, 1};
    return SIZES[t];
}
static inline const char *dt_dtype_name(dt_dtype t)
{
    static const char *const NAMES[DT_N_DTYPE] = {"fp32", "bf16", "fp16", "int8", "nf4", "uint8"};
    return NAMES[t];
}

/** bf16 is the upper half of a float; rounding is to nearest, ties to even; NaN stays NaN. */
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

/** IEEE's binary16: 10 bits of fraction, exponents -14 to 15, below 2^-14 multiples of 2^-24. Written as selects, and
 *  free of subnormal floats, so that loops become vectors. */
static inline __attribute__((always_inline)) float dt_f16_to_float(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } normal, small;
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, x = (uint32_t)(h & 0x7fffu) << 13;
    normal.u = x + (x < 0x0f800000u ? 0x38000000u : 0x70000000u); /* Inf and NaN stay what they are */
    small.u = x + 0x38800000u;
    small.f -= 0x1p-14f; /* 2^-14 (1 + fraction) - 2^-14 */
    normal.u = (x < 0x00800000u ? small.u : normal.u) | sign;
    return normal.f;
}
/** Rounded to nearest, ties to even; from 65520 on Inf; a NaN keeps its sign and its upper bits. */
static inline __attribute__((always_inline)) uint16_t dt_f16_from_float(float f)
{
    union {
        float f;
        uint32_t u;
    } x = {.f = f}, small;
    const uint32_t sign = (x.u >> 16) & 0x8000u, a = x.u & 0x7fffffffu, upper = a >> 13 & 0x3ffu;
    small.u = a;
    small.f += 0.5f; /* whose last place is 2^-24 */
    uint32_t h = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    h = a < 0x38800000u ? small.u - 0x3f000000u : h;
    h = a >= 0x477ff000u ? 0x7c00u : h;
    h = a > 0x7f800000u ? 0x7c00u | (upper ? upper : 0x200u) : h;
    return (uint16_t)(sign | h);
}

/** Element i of an array of a floating type, as a float. */
static inline float dt_element(const void *p, dt_dtype t, int64_t i)
{
    if (t == DT_F32) return ((const float *)p)[i];
    const uint16_t h = ((const uint16_t *)p)[i];
    return t == DT_F16 ? dt_f16_to_float(h) : dt_bf16_to_float(h);
}
/** The reverse, rounded. */
static inline void dt_set_element(void *p, dt_dtype t, int64_t i, float x)
{
    if (t == DT_F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = t == DT_F16 ? dt_f16_from_float(x) : dt_bf16_from_float(x);
}
/** Half a unit in the last place of numbers from 1 to 2: what rounding to a floating type may be off, relatively. */
static inline double dt_roundoff(dt_dtype t) { return t == DT_F32 ? 0x1p-24 : t == DT_F16 ? 0x1p-11 : 0x1p-8; }
static inline bool dt_is_float(dt_dtype t) { return t == DT_F32 || t == DT_BF16 || t == DT_F16; }

/* ---- memory accounting ------------------------------------------------------------------------------------------- */

/** What an allocation is for, and where it is. The plan, the run's report and the leak check all speak in these. */
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

/** Which of the first three are one physical memory is the device's answer (device.h, own_memory). */
typedef enum dt_place {
    DT_ON_DEVICE,
    DT_ON_PINNED, /* host memory that the device copies from and to by itself */
    DT_ON_HOST,   /* other host memory */
    DT_IN_FILE,
    DT_N_PLACE
} dt_place;

const char *dt_memcat_name(dt_memcat c); /* "parameters" */
const char *dt_place_name(dt_place p);   /* "device", "pinned", "host", "file" */

/** Bytes by category and place: what a plan says and what a ledger holds. */
typedef struct dt_memory {
    size_t at[DT_N_MEMCAT][DT_N_PLACE];
} dt_memory;

void dt_memory_add(dt_memory *sum, const dt_memory *more);
size_t dt_memory_of(const dt_memory *m, dt_memcat c); /* in all places */
size_t dt_memory_on(const dt_memory *m, dt_place p);  /* of all categories */
size_t dt_memory_total(const dt_memory *m);

/** What a process holds, in bytes. Thread-safe. One per process, in the context that is passed. */
typedef struct dt_ledger dt_ledger;
#ifndef __cplusplus
struct dt_ledger {
    atomic_size_t now[DT_N_MEMCAT][DT_N_PLACE], peak[DT_N_MEMCAT][DT_N_PLACE];
    atomic_size_t on_now[DT_N_PLACE], on_peak[DT_N_PLACE]; /* of all categories */
    atomic_size_t total_now, total_peak;                   /* of all memory: files are not counted */
    atomic_size_t n_allocs;                                /* ever made: a test holds it still during a step */
};
#endif

void dt_ledger_add(dt_ledger *l, dt_memcat c, dt_place p, size_t nbytes); /* nothing for NULL, or 0 */
void dt_ledger_sub(dt_ledger *l, dt_memcat c, dt_place p, size_t nbytes);
dt_memory dt_ledger_now(const dt_ledger *l);

/** The next array of several in one allocation: n elements from `block` + *used on, which moves behind them to a
 *  multiple of 8 bytes. block NULL: NULL, so that the same lines count what is needed and lay it out. */
static inline void *dt_carve(void *block, size_t *used, int64_t n, size_t elem_size)
{
    void *const at = block ? (char *)block + *used : NULL;
    *used += ((size_t)n * elem_size + 7) / 8 * 8;
    return at;
}

/** "1.50 GiB", "812 KiB": for people. Writes into out [at least 24] and returns it. */
char *dt_format_bytes(double nbytes, char *out);
/** 3 significant digits and a letter of 1000: "835", "12.3k", "1.20M". */
char *dt_format_count(double n, char *out);
/** "45s", "12m30s", "3h05m", "2d04h"; "?" for a negative number, a NaN and what is beyond 1e5 days. */
char *dt_format_duration(double seconds, char *out);

/** "512", "500M", "5GB" (powers of 1000), "64Ki", "2GiB" (powers of 1024), in letters of either case: bytes, fewer than
 *  2^63. False, and nbytes as it was, when it is none of these. */
bool dt_parse_bytes(const char *text, uint64_t *nbytes);

/** Free n_items malloc'ed strings and the malloc'ed list of them; nothing for NULL. */
void dt_list_free(char **items, int n_items);

/* ---- clocks, phases ---------------------------------------------------------------------------------------------- */

double dt_now_s(void); /* monotonic, seconds */

/* ---- cores ------------------------------------------------------------------------------------------------------- */

/** A set of this machine's logical processors, "cores" in what follows. */
enum { DT_CORE_WORDS = 128 };
typedef struct dt_cores {
    uint64_t word[DT_CORE_WORDS];
} dt_cores;
/** Those that a process (0: this one) may run on; none where the system does not tell. */
void dt_cores_of(int pid, dt_cores *set);
int dt_cores_count(const dt_cores *set);
/** How many this process may use: its affinity mask, and SLURM_CPUS_PER_TASK where that is less. At least 1. */
int dt_cores_own(void);
int dt_cores_per_task(void); /* SLURM_CPUS_PER_TASK, 0 where it is not given */
int dt_cores_online(void);   /* of the machine */
/** How many the job has on this machine: SLURM_CPUS_ON_NODE, else what the process that started this one may use. */
int dt_cores_of_job(void);

/** A symbol of a shared object that belongs to this program (libdtrain_cuda.so), which is loaded and stays so. NULL,
 *  and why: it was not built, a library that it needs is not here, or, *stale, it was compiled from other headers than
 *  this program, so that its tables are not what they are taken for. */
const void *dt_object_symbol(const char *file, const char *symbol, bool *stale, char *why, size_t why_size);
/** Beside such a symbol: which headers it was compiled from (DT_INTERFACE: the Makefile's sum of them). */
#define DT_OBJECT_INTERFACE(symbol)                                                                                    \
    extern const char symbol##_interface[];                                                                            \
    const char symbol##_interface[] = DT_INTERFACE

/** The build of the program or shared object in which an address lies, as its linker numbered it (GNU build id, hex);
 *  "" where it did not. Returns out. */
enum { DT_BUILD_TEXT = 80 };
char *dt_object_build(const void *address, char out[DT_BUILD_TEXT]);

/** Where a rank stands: written by the thread that works, read by the watchdog. Strings are literals or outlive the
 *  run. */
typedef struct dt_phase dt_phase;
#ifndef __cplusplus
struct dt_phase {
    _Atomic(const char *) name; /* "read", "forward", "backward", "reduce", "agree", "update", "save", ... */
    _Atomic(const char *) unit; /* unit or tensor, "" when none */
    atomic_llong step;
    _Atomic double since_s; /* dt_now_s() at the last change: progress, for the watchdog */
    /* NULL, or told of every change (trace) */
    void (*listener)(void *self, const char *name, const char *unit, double now_s);
    void *listener_self;
    /* NULL, or whether the user wants the program to end: looked at where a rank works long and alone */
    int (*stop_asked)(void);
    double stop_at_s; /* dt_now_s() from which it must end in order to save in time; 0: never */
};

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

/** DT_ERR_STOP when the user wants the program to end, or its time is over; to be carried to the next vote like any
 *  error. p may be NULL. */
dt_err dt_phase_poll(const dt_phase *p);

/* ---- faults to inject -------------------------------------------------------------------------------------------- */

/** A place where a test may make one rank fail. DTRAIN_FAULT="POINT:RANK:NTH:KIND[,...]" arms it: at the NTH (from 1)
 *  passage of POINT on RANK, KIND happens: "error" (returns DT_ERR_FAULT), "nospace" (DT_ERR_WRITE), "hang" (sleeps for
 *  ever), "slow" (sleeps for a second), "stop" (stops itself, and continues at SIGCONT), "signal" (sends SIGUSR1 to its
 *  process), "kill" (SIGKILL to itself), "exit" (_exit(3)). Unarmed (always, outside tests) it costs
 *  one load. RANK is the log's. */
dt_err dt_fault(const char *point);
/** The same in the place of a system call, which is to fail as the system fails it: 0, ENOSPC ("nospace"), EIO
 *  ("error"), or -1 ("short": it moves fewer bytes than it was asked for; DT_ERR_FAULT from dt_fault). */
int dt_fault_errno(const char *point);

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

/** Purposes keep streams apart (algorithms.md section 0). Values are part of the file format: never renumber. */
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
    DT_RNG_GROUP = 10
} dt_rng_purpose;

/** Philox 4x32-10 (Salmon et al., SC 2011): four 32-bit words as a pure function of a 64-bit key and a 128-bit
 *  counter. */
void dt_philox4x32(uint64_t key, uint64_t ctr_hi, uint64_t ctr_lo, uint32_t out[4]);

/** Key of a stream: mixes seed and purpose. */
uint64_t dt_rng_key(uint64_t seed, dt_rng_purpose purpose);

/** splitmix64's finaliser: a bijection on 64 bits that mixes well. */
static inline uint64_t dt_mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline float dt_u32_to_unit(uint32_t u) { return (float)(u >> 8) * 0x1p-24f; } /* [0, 1) */

/** out[i] = N(0, std^2), i = 0 .. n-1, drawn for the elements first .. first+n-1 of stream (key, tensor): the same
 *  numbers however a tensor is cut into pieces. Box-Muller on Philox words. */
void dt_rng_normal(uint64_t key, uint64_t tensor, int64_t first, int64_t n, float std, float *out);
/** The same with U(-bound, bound), at multiples of bound / 2^23. */
void dt_rng_uniform(uint64_t key, uint64_t tensor, int64_t first, int64_t n, float bound, float *out);

/** A permutation of 0 .. n-1 evaluated at i, in constant memory: a keyed Feistel network with cycle walking. n >= 1. */
uint64_t dt_rng_permute(uint64_t key, uint64_t n, uint64_t i);

#endif
