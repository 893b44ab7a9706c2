/* device.c - which backends this binary has, and buffers that know who pays for them. */
#include "dtrain/device.h"
#include "dtrain/count.h"
#include "backend.h"
#include "queue.h"
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Devices in shared objects of their own. The last two are for tests: the sources of the first on a simulator of CUDA
 * (tests/cuda_sim), and on one that looks for races. */
static const char *const OBJECTS[] = {"cuda", "cudasim", "cudasim_races"};
enum { N_OBJECTS = sizeof OBJECTS / sizeof OBJECTS[0] };

/* Tests replace the CPU by another device. */
static const char *instead(const char *name)
{
    const char *wanted = getenv("DTRAIN_DEVICE");
    return wanted && *wanted && !strcmp(name, "cpu") ? wanted : name;
}

static bool is_object(const char *name)
{
    size_t i = 0;
    while (i < N_OBJECTS && strcmp(name, OBJECTS[i]) != 0) i++;
    return i < N_OBJECTS;
}

const dt_device_ops *dt_device_backend(const char *name, bool *stale, char *why, size_t why_size)
{
    *why = '\0';
    *stale = false;
    if (!strcmp(name, "cpu")) return &dt_device_cpu_ops;
    if (!strcmp(name, "queue")) return &dt_device_queue_ops;
    if (is_object(name)) {
        char file[64];
        snprintf(file, sizeof file, "libdtrain_%s.so", name);
        return dt_object_symbol(file, "dt_device_cuda_ops", stale, why, why_size);
    }
    snprintf(why, why_size, "expected auto or one of %s", dt_device_backends());
    return NULL;
}

static const dt_device_ops *find_backend(const char *name, bool *stale, char *why, size_t why_size)
{
    return dt_device_backend(instead(name), stale, why, why_size);
}

const char *dt_device_backends(void)
{
    char why[512];
    bool stale;
    return find_backend("cuda", &stale, why, sizeof why) ? "cuda, cpu" : "cpu";
}

static bool is_there(const dt_device_ops *ops, char *why, size_t why_size)
{
    return !ops->is_there || ops->is_there(why, why_size);
}

static dt_err open_one(dt_device *dev, const char *name, int local_rank, int n_threads, dt_ledger *ledger)
{
    char why[512];
    bool stale;
    const dt_device_ops *ops = find_backend(name, &stale, why, sizeof why);
    DT_CHECK(ops && is_there(ops, why, sizeof why), DT_ERR_USAGE, "device %s is not available: %s", instead(name), why);
    *dev = (dt_device){.ops = ops, .ledger = ledger, .local_rank = local_rank};
    const dt_err err = ops->open(dev, local_rank, n_threads);
    if (err != DT_OK) *dev = (dt_device){0};
    return err;
}

/* A machine without NVIDIA's driver has no GPU to look for, and finding that out by way of our object loads cuBLASLt
 * first: 500 MiB of it with 370,000 addresses to adjust, 80 ms of each start. */
static bool has_driver(void)
{
    return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != NULL; /* stays: the runtime opens it again */
}

/* Whether auto selects a GPU. A GPU with a stale object counts, too: opening it fails with a message, which is better
 * than silently using the CPU. */
static bool cuda_is_meant(char *why, size_t why_size)
{
    bool stale;
    if (!has_driver()) {
        snprintf(why, why_size, "this machine has no NVIDIA driver");
        return false;
    }
    const dt_device_ops *ops = find_backend("cuda", &stale, why, why_size);
    return stale || (ops && is_there(ops, why, why_size));
}

/* What "auto" is; why not a GPU is worth a line for those who look for it. Where a test has put a device in the place
 * of the CPU, that is meant. */
static const char *first_there(void)
{
    char why[512];
    if (strcmp(instead("cpu"), "cpu") != 0) return "cpu";
    if (cuda_is_meant(why, sizeof why)) return "cuda";
    DT_DEBUG("run.device = auto: cuda is not available: %s", why);
    return "cpu";
}

/* ---- a device that has failed for good --------------------------------------------------------------------------- */

/* Of the process, as CUDA's own state is, whose errors come back to every thread and from every call. */
static struct {
    atomic_bool begun, told;
    char message[2048];
} failure;

dt_err dt_device_fail(const char *fmt, ...)
{
    char message[sizeof failure.message];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    if (!atomic_exchange(&failure.begun, true)) {
        memcpy(failure.message, message, sizeof message);
        atomic_store(&failure.told, true);
    }
    return dt_fail(DT_ERR_FAULT, "%s", message);
}

const char *dt_device_failure(void) { return atomic_load(&failure.told) ? failure.message : NULL; }

/* ---- opening ----------------------------------------------------------------------------------------------------- */

dt_err dt_device_open(dt_device *dev, const char *name, int local_rank, int n_threads, dt_ledger *ledger)
{
    *dev = (dt_device){0};
    DT_CHECK(ledger && n_threads >= 0, DT_ERR_ARG,
             "internal: dt_device_open: expected a ledger and n_threads of at least 0, found %p and %d", (void *)ledger,
             n_threads);
    if (strcmp(name, "auto") != 0) return open_one(dev, name, local_rank, n_threads, ledger);
    DT_TRY(open_one(dev, first_there(), local_rank, n_threads, ledger));
    DT_INFO("run.device = auto: %s", dev->ops->name);
    return DT_OK;
}

/* What a GPU holds is known without the object that drives one. */
dt_err dt_device_plan(dt_device *dev, const char *name, int n_threads, dt_ledger *ledger)
{
    char why[512];
    bool stale;
    *dev = (dt_device){0};
    if (is_object(name)) return dt_count_open(dev, NULL, ledger);
    const dt_device_ops *ops = dt_device_backend(name, &stale, why, sizeof why);
    DT_CHECK(ops, DT_ERR_USAGE, "device %s is not available: %s", name, why);
    *dev = (dt_device){.ops = ops, .ledger = ledger};
    const dt_err err = ops->plan(dev, n_threads);
    if (err != DT_OK) *dev = (dt_device){0};
    return err;
}

dt_err dt_device_open_to_plan(dt_device *dev, const char *name, int n_threads, dt_ledger *ledger)
{
    return dt_device_plan(dev, instead(strcmp(name, "auto") != 0 ? name : first_there()), n_threads, ledger);
}

dt_err dt_device_open_host(dt_device *dev, int n_threads, bool planning, dt_ledger *ledger)
{
    const dt_device_ops *ops = &dt_device_cpu_ops;
    *dev = (dt_device){.ops = ops, .ledger = ledger};
    const dt_err err = planning ? ops->plan(dev, n_threads) : ops->open(dev, 0, n_threads);
    if (err != DT_OK) *dev = (dt_device){0};
    return err;
}

void dt_quantise_row(const float *w, int64_t n, int8_t *q, float *scale)
{
    float c = 0;
    for (int64_t i = 0; i < n; i++) {
        const float size = fabsf(w[i]);
        if (size > c || isnan(size)) c = size;
    }
    const bool usual = c > 0 && c < INFINITY;
    for (int64_t i = 0; i < n; i++) q[i] = usual ? (int8_t)nearbyint(127.0 * (double)w[i] / (double)c) : 0;
    *scale = c / 127;
}

void dt_device_close(dt_device *dev)
{
    if (dev->ops) dev->ops->close(dev);
    *dev = (dt_device){0};
}

size_t dt_device_overhead(const dt_device *dev) { return dev->ops->overhead(dev); }

/* ---- streams ----------------------------------------------------------------------------------------------------- */

dt_err dt_stream_open(dt_device *dev, dt_stream **stream, const char *name)
{
    const dt_stream_listener *l = dev->listener;
    DT_TRY(dev->ops->stream_create(dev, stream));
    dt_ledger_add(dev->ledger, DT_MEM_OTHER, DT_ON_DEVICE, dev->ops->stream_nbytes);
    const dt_err err = l ? l->open(l->self, *stream, name) : DT_OK;
    if (err == DT_OK) return DT_OK;
    dt_stream_close(dev, *stream);
    *stream = NULL;
    return err;
}

void dt_stream_close(dt_device *dev, dt_stream *stream)
{
    if (!stream) return;
    if (dev->listener) dev->listener->close(dev->listener->self, stream);
    dt_ledger_sub(dev->ledger, DT_MEM_OTHER, DT_ON_DEVICE, dev->ops->stream_nbytes);
    dev->ops->stream_destroy(dev, stream);
}

void dt_stream_plan(const dt_device *dev, int n, dt_memory *memory)
{
    memory->at[DT_MEM_OTHER][DT_ON_DEVICE] += (size_t)n * dev->ops->stream_nbytes;
    if (dev->listener) memory->at[DT_MEM_OTHER][DT_ON_HOST] += (size_t)n * dev->listener->stream_nbytes;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static size_t memory_free(const dt_device *dev, dt_place place)
{
    const bool host = place != DT_ON_DEVICE || !dev->ops->own_memory;
    const size_t left = place == DT_ON_DEVICE || !dev->ops->own_memory ? dev->ops->memory_free(dev)
                                                                       : dt_host_memory_free(),
                 space = host ? dt_address_space_free() : SIZE_MAX;
    return left < space ? left : space;
}

dt_err dt_buf_alloc(dt_buf *b, dt_device *dev, dt_place place, size_t nbytes, dt_memcat category)
{
    *b = (dt_buf){0};
    DT_CHECK(dev && dev->ops && category < DT_N_MEMCAT && place < DT_IN_FILE, DT_ERR_ARG,
             "internal: dt_buf_alloc: the device is not open, or category %d or place %d is invalid", (int)category,
             (int)place);
    if (nbytes == 0) {
        *b = (dt_buf){.dev = dev, .category = category, .place = place};
        return DT_OK;
    }
    void *ptr = NULL;
    const dt_err err = dev->ops->alloc(dev, place, nbytes, &ptr);
    if (err == DT_ERR_MEMORY) {
        char asked[24], held[24], left[24];
        return dt_fail(
            err, "not enough %s memory for %s: %s requested, %s in use by this process, %s free%s",
            place == DT_ON_DEVICE ? dev->ops->name : dt_place_name(place), dt_memcat_name(category),
            dt_format_bytes((double)nbytes, asked), dt_format_bytes((double)atomic_load(&dev->ledger->total_now), held),
            dt_format_bytes((double)memory_free(dev, place), left),
            dt_address_space_free() < SIZE_MAX ? " (the address space of this process is limited: ulimit -v)" : "");
    }
    if (err != DT_OK) return err;
    dt_ledger_add(dev->ledger, category, place, nbytes);
    *b = (dt_buf){.ptr = ptr, .nbytes = nbytes, .dev = dev, .category = category, .place = place};
    return DT_OK;
}

dt_err dt_buf_alloc_zeroed(dt_buf *b, dt_device *dev, dt_place place, size_t nbytes, dt_memcat category)
{
    DT_TRY(dt_buf_alloc(b, dev, place, nbytes, category));
    if (nbytes == 0 || dev->ops->alloc_zeroes) return DT_OK;
    if (place != DT_ON_DEVICE) {
        memset(b->ptr, 0, nbytes);
        return DT_OK;
    }
    dt_err err = dev->ops->zero(dev, b->ptr, nbytes, NULL);
    if (err == DT_OK) err = dev->ops->stream_sync(dev, NULL);
    if (err != DT_OK) dt_buf_free(b);
    return err;
}

void dt_buf_free(dt_buf *b)
{
    if (b->ptr) {
        b->dev->ops->free(b->dev, b->place, b->ptr, b->nbytes);
        dt_ledger_sub(b->dev->ledger, b->category, b->place, b->nbytes);
    }
    *b = (dt_buf){0};
}
