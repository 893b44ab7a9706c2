/* cpu.c - the CPU device: opens it, chooses the fastest kernels for this processor, and fills the table.
 *
 * Operations run immediately in the caller's thread and the device's OpenMP threads, so streams are always in order
 * and events only hold the time. Only one thread at a time may call operations of a device, because they share
 * scratch memory. */
#include "cpu.h"
#include "cpu_onednn.h"
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

struct dt_stream {
    int unused;
};
struct dt_event {
    double at_s;
};

/* ---- choice of kernels ------------------------------------------------------------------------------------------- */

/* Does this processor run a set of kernels? A build may lack some of the sets. */
#if defined(__x86_64__)
static inline bool runs_v4(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
static inline bool runs_v3(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("fma");
}
static inline bool runs_v2(void) { return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt"); }
#elif defined(__aarch64__)
/* Bits of AT_HWCAP and AT_HWCAP2, which older system headers do not define. */
enum { HAS_SVE = 1 << 22, HAS_BF16 = 1 << 14 };
static inline bool runs_neon(void) { return true; }
static inline bool runs_neon_bf16(void) { return getauxval(AT_HWCAP2) & HAS_BF16; }
static inline bool runs_sve(void) { return getauxval(AT_HWCAP) & HAS_SVE; }
static inline bool runs_sve_bf16(void) { return runs_sve() && runs_neon_bf16(); }
#endif
static inline bool runs_base(void) { return true; }

static const struct {
    const dt_cpu_kernels *kernels;
    bool (*runs)(void);
} choices[] = {
#ifdef DT_HAVE_ISA_v4
    {&dt_cpu_kernels_v4, runs_v4},
#endif
#ifdef DT_HAVE_ISA_v3
    {&dt_cpu_kernels_v3, runs_v3},
#endif
#ifdef DT_HAVE_ISA_v2
    {&dt_cpu_kernels_v2, runs_v2},
#endif
#ifdef DT_HAVE_ISA_sve_bf16
    {&dt_cpu_kernels_sve_bf16, runs_sve_bf16},
#endif
#ifdef DT_HAVE_ISA_neon_bf16
    {&dt_cpu_kernels_neon_bf16, runs_neon_bf16},
#endif
#ifdef DT_HAVE_ISA_sve
    {&dt_cpu_kernels_sve, runs_sve},
#endif
#ifdef DT_HAVE_ISA_neon
    {&dt_cpu_kernels_neon, runs_neon},
#endif
#ifdef DT_HAVE_ISA_base
    {&dt_cpu_kernels_base, runs_base},
#endif
};

/* The first of the choices that this processor supports. DTRAIN_ISA names another, for tests. */
static dt_err choose_kernels(const dt_cpu_kernels **k)
{
    const char *wanted = getenv("DTRAIN_ISA");
    *k = NULL;
    for (size_t i = 0; i < sizeof choices / sizeof choices[0] && !*k; i++) {
        const bool named = !wanted || !*wanted || !strcmp(wanted, choices[i].kernels->isa);
        if (named && choices[i].runs()) *k = choices[i].kernels;
    }
    DT_CHECK(*k, DT_ERR_USAGE, "%s%s: this processor does not run %s", wanted ? "DTRAIN_ISA=" : "cpu device",
             wanted ? wanted : "",
             wanted ? "these kernels, or the program has no kernels of this name"
                    : "even the baseline kernels; build the program on this machine");
    return DT_OK;
}

/* Linux grants a process the state of AMX tiles on request (arch_prctl(2), ARCH_REQ_XCOMP_PERM). */
static bool runs_amx(void)
{
#if defined(__x86_64__) && defined(SYS_arch_prctl) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
    enum { REQUEST = 0x1023, TILE_DATA = 18 };
    const unsigned need = 1u << 22 | 1u << 24; /* AMX-BF16, AMX-TILE: older compilers have no names for them */
    unsigned eax, ebx, ecx, edx = 0;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & need) == need &&
           syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return false;
#endif
}

/* Are pairwise bf16 dot products faster than a conversion to float? They run at the rate of float multiply-adds on
 * Intel, and at twice that rate on AMD. */
static bool runs_bf16_dot(bool wanted)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512bf16") && (wanted || __builtin_cpu_is("amd"));
#else
    return true; /* Arm's kernel sets with bf16 run only on processors that have it */
#endif
}

/* The unit for bf16 tiles; NULL: none. DTRAIN_BF16 = amx, dot or none limits the choice, for tests. */
static const dt_bf16_unit *choose_unit(const dt_cpu_kernels *k)
{
    const char *most = getenv("DTRAIN_BF16");
    if (most && !strcmp(most, "none")) return NULL;
    const bool dot = most && !strcmp(most, "dot");
    if (k->amx_unit && !dot && runs_amx()) return k->amx_unit;
    return k->dot_unit && runs_bf16_dot(dot) ? k->dot_unit : NULL;
}

/* ---- open, close ------------------------------------------------------------------------------------------------- */

static void read_processor_name(char *out, size_t out_size)
{
    snprintf(out, out_size, "processor");
    FILE *f = fopen("/proc/cpuinfo", "r");
    if (!f) return;
    char line[256];
    while (fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(out, out_size, "%s", colon + 2);
        break;
    }
    fclose(f);
}

static void cpu_close(dt_device *dev)
{
    cpu_state *cpu = cpu_of(dev);
    if (!cpu) return;
    cpu_matmul_close(cpu);
    cpu_drop(cpu->panel, cpu->panel_nbytes);
    cpu_matmul_bf16_close(cpu);
    cpu_drop(cpu->attention_scratch, (size_t)cpu->attention_scratch_elems * sizeof(float) * (size_t)cpu->n_threads);
    free(cpu);
    dev->impl = NULL;
}

static void cpu_make_reproducible(dt_device *dev) { cpu_of(dev)->reproducible = true; }

static dt_err open_parts(cpu_state *cpu)
{
    DT_TRY(choose_kernels(&cpu->k));
    cpu->unit = choose_unit(cpu->k);
    cpu->pairs = cpu_rows_use_pairs(cpu->k);
    cpu->attention_scratch_elems = cpu->k->attention_scratch(DT_ATTENTION_MAX_HEAD_DIM);
    const size_t nbytes = (size_t)cpu->attention_scratch_elems * sizeof(float) * (size_t)cpu->n_threads;
    void *scratch = NULL;
    DT_CHECK(cpu->planning || cpu_grab(nbytes, cpu->n_threads, &scratch) == DT_OK, DT_ERR_MEMORY,
             "cpu device: out of memory for %zu bytes of attention scratch", nbytes);
    cpu->attention_scratch = scratch;
    cpu->nbytes_held = nbytes + sizeof *cpu;
    DT_TRY(cpu_matmul_bf16_open(cpu));
    return cpu_matmul_open(cpu);
}

static dt_err open_as(dt_device *dev, int n_threads, bool planning)
{
    cpu_state *cpu = calloc(1, sizeof *cpu);
    DT_CHECK(cpu, DT_ERR_MEMORY, "cpu device: out of memory for %zu bytes of device state", sizeof *cpu);
    dev->impl = cpu;
    cpu->planning = planning;
    cpu->n_threads = n_threads > 0 ? n_threads : omp_get_max_threads();
    read_processor_name(cpu->processor, sizeof cpu->processor);
    const dt_err err = open_parts(cpu);
    if (err != DT_OK) cpu_close(dev);
    return err;
}

static dt_err cpu_open(dt_device *dev, int local_rank, int n_threads) { return open_as(dev, n_threads, false); }
static dt_err cpu_plan(dt_device *dev, int n_threads) { return open_as(dev, n_threads, true); }

static void cpu_kernels(const dt_device *dev, char *out, size_t out_size)
{
    const cpu_state *cpu = cpu_of(dev);
    snprintf(out, out_size, "%s%s%s", cpu->k->isa, cpu->unit ? " with " : "", cpu->unit ? cpu->unit->name : "");
}

static void cpu_describe(const dt_device *dev, char *out, size_t out_size)
{
    const cpu_state *cpu = cpu_of(dev);
    char kernels[64], library[ONEDNN_NAME];
    cpu_kernels(dev, kernels, sizeof kernels);
    snprintf(out, out_size, "%s, %d thread%s, kernels %s, %s", cpu->processor, cpu->n_threads,
             cpu->n_threads == 1 ? "" : "s", kernels, onednn_name(library));
}

static size_t cpu_memory_free(const dt_device *dev) { return dt_host_memory_free(); }
static size_t cpu_overhead(const dt_device *dev)
{
    return cpu_of(dev)->nbytes_held + cpu_of(dev)->panel_nbytes + cpu_matmul_held(cpu_of(dev));
}

/* ---- streams and events ------------------------------------------------------------------------------------------ */

static dt_err cpu_stream_create(dt_device *dev, dt_stream **stream)
{
    *stream = calloc(1, sizeof **stream);
    DT_CHECK(*stream, DT_ERR_MEMORY, "out of memory for a stream");
    return DT_OK;
}
static void cpu_stream_destroy(dt_device *dev, dt_stream *stream) { free(stream); }
static dt_err cpu_stream_sync(dt_device *dev, dt_stream *stream) { return DT_OK; }

static dt_err cpu_event_create(dt_device *dev, dt_event **event)
{
    *event = calloc(1, sizeof **event);
    DT_CHECK(*event, DT_ERR_MEMORY, "out of memory for an event");
    return DT_OK;
}
static void cpu_event_destroy(dt_device *dev, dt_event *event) { free(event); }
static dt_err cpu_event_record(dt_device *dev, dt_event *event, dt_stream *stream)
{
    event->at_s = dt_now_s();
    return DT_OK;
}
static dt_err cpu_event_wait(dt_device *dev, dt_event *event, dt_stream *stream) { return DT_OK; }
static dt_err cpu_event_sync(dt_device *dev, dt_event *event) { return DT_OK; }
static dt_err cpu_event_query(dt_device *dev, dt_event *event, bool *done)
{
    *done = true;
    return DT_OK;
}
static dt_err cpu_event_elapsed_ms(dt_device *dev, dt_event *from, dt_event *to, float *ms)
{
    *ms = (float)((to->at_s - from->at_s) * 1e3);
    return DT_OK;
}

static dt_err cpu_event_time(dt_device *dev, dt_event *event, double *at_s)
{
    *at_s = event->at_s;
    return DT_OK;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

#define COPY_CHUNK ((size_t)1 << 18)

static dt_err cpu_copy(dt_device *dev, void *dst, const void *src, size_t nbytes, dt_stream *stream)
{
    if (dst == src || nbytes == 0) return DT_OK;
    CPU_PARALLEL_FOR (cpu_of(dev), i, cpu_n_chunks((int64_t)nbytes, (int64_t)COPY_CHUNK)) {
        const size_t at = (size_t)i * COPY_CHUNK, len = nbytes - at < COPY_CHUNK ? nbytes - at : COPY_CHUNK;
        memcpy((char *)dst + at, (const char *)src + at, len);
    }
    return DT_OK;
}

CPU_OP(zero)
{
    CPU_PARALLEL_FOR (cpu, i, cpu_n_chunks((int64_t)x->nbytes, (int64_t)COPY_CHUNK)) {
        const size_t at = (size_t)i * COPY_CHUNK, len = x->nbytes - at < COPY_CHUNK ? x->nbytes - at : COPY_CHUNK;
        memset((char *)x->dst + at, 0, len);
    }
    return DT_OK;
}

const dt_device_ops dt_device_cpu_ops = {
    .name = "cpu",
    .open = cpu_open,
    .plan = cpu_plan,
    .close = cpu_close,
    .make_reproducible = cpu_make_reproducible,
    .describe = cpu_describe,
    .kernels = cpu_kernels,
    .memory_free = cpu_memory_free,
    .overhead = cpu_overhead,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .alloc_zeroes = true,
    .host_accessible = true,
    .stream_create = cpu_stream_create,
    .stream_destroy = cpu_stream_destroy,
    .stream_sync = cpu_stream_sync,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_sync = cpu_event_sync,
    .event_query = cpu_event_query,
    .event_elapsed_ms = cpu_event_elapsed_ms,
    .event_time = cpu_event_time,
    .copy = cpu_copy,
#define DT_OP(op, ...) .op = cpu_##op,
#define DT_SIZE(type, name, ...) .name = cpu_##name,
#include "dtrain/device/op_list.h"
};
