/* backends.c - the devices by name: the CPU, shared objects (CUDA, and its simulators for tests), the queue device of
 * tests. */
#include "backend.h"
#include "queue.h"
#include "dtrain/perfmodel/counting_device.h"
#include <dlfcn.h>
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
