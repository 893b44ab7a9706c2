/* backends.c - looks up devices by name: the CPU, shared objects (CUDA, and its simulators for tests), and the queue
 * device for tests. */
#include "backend.h"
#include "queue.h"
#include "dtrain/perfmodel/counting_device.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* Devices in separate shared objects. The last two are for tests: the CUDA sources on a simulator (tests/cuda_sim), and
 * on a simulator that detects races. */
static const char *const OBJECTS[] = {"cuda", "cudasim", "cudasim_races"};
enum { N_OBJECTS = sizeof OBJECTS / sizeof OBJECTS[0] };

/* DTRAIN_DEVICE replaces the CPU by another device, for tests. */
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

/* Open a backend, or open it to plan. */
static dt_err start(dt_device *dev, const dt_device_ops *ops, int local_rank, int n_threads, bool planning,
                    dt_ledger *ledger)
{
    *dev = (dt_device){.ops = ops, .ledger = ledger, .local_rank = local_rank};
    const dt_err err = planning ? ops->plan(dev, n_threads) : ops->open(dev, local_rank, n_threads);
    if (err != DT_OK) *dev = (dt_device){0};
    return err;
}

static dt_err open_one(dt_device *dev, const char *name, int local_rank, int n_threads, dt_ledger *ledger)
{
    char why[512];
    bool stale;
    const dt_device_ops *ops = find_backend(name, &stale, why, sizeof why);
    DT_CHECK(ops && is_there(ops, why, sizeof why), DT_ERR_USAGE, "device %s is not available: %s", instead(name), why);
    return start(dev, ops, local_rank, n_threads, false, ledger);
}

/* Without NVIDIA's driver there is no GPU to look for. Looking for one through our shared object would first load
 * cuBLASLt: 500 MiB with 370,000 relocations, 80 ms per start. */
static bool has_driver(void)
{
    return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != NULL; /* not closed: the CUDA runtime opens it again */
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

/* The device that "auto" selects. A debug line reports why a GPU is not available. If DTRAIN_DEVICE replaces the CPU,
 * auto selects the replacement. */
static const char *first_available(void)
{
    char why[512];
    if (strcmp(instead("cpu"), "cpu") != 0) return "cpu";
    if (cuda_is_meant(why, sizeof why)) return "cuda";
    DT_DEBUG("run.device = auto: cuda is not available: %s", why);
    return "cpu";
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

dt_err dt_device_open(dt_device *dev, const char *name, int local_rank, int n_threads, dt_ledger *ledger)
{
    *dev = (dt_device){0};
    DT_EXPECT(ledger && n_threads >= 0);
    if (strcmp(name, "auto") != 0) return open_one(dev, name, local_rank, n_threads, ledger);
    DT_TRY(open_one(dev, first_available(), local_rank, n_threads, ledger));
    DT_INFO("run.device = auto: %s", dev->ops->name);
    return DT_OK;
}

/* A GPU's sizes are known without its shared object (counting device). */
dt_err dt_device_plan(dt_device *dev, const char *name, int n_threads, dt_ledger *ledger)
{
    char why[512];
    bool stale;
    *dev = (dt_device){0};
    if (is_object(name)) return dt_count_open(dev, NULL, ledger);
    const dt_device_ops *ops = dt_device_backend(name, &stale, why, sizeof why);
    DT_CHECK(ops, DT_ERR_USAGE, "device %s is not available: %s", name, why);
    return start(dev, ops, 0, n_threads, true, ledger);
}

dt_err dt_device_open_to_plan(dt_device *dev, const char *name, int n_threads, dt_ledger *ledger)
{
    return dt_device_plan(dev, instead(strcmp(name, "auto") != 0 ? name : first_available()), n_threads, ledger);
}

dt_err dt_device_open_host(dt_device *dev, int n_threads, bool planning, dt_ledger *ledger)
{
    return start(dev, &dt_device_cpu_ops, 0, n_threads, planning, ledger);
}
