/* cuda_load.c - where the shared objects of the CUDA device and of its simulator lie, and what is said when one cannot be
 * loaded. */
#include "cuda_load.h"
#include <dlfcn.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

/* Beside the program (a build folder), in the folder above (tests), where make install puts it, or in the build folder
 * below (a program at the top of the tree). */
static const char *const FOLDERS[] = {"", "../", "../lib/dtrain/", "build/release/"};
enum { N_FOLDERS = sizeof FOLDERS / sizeof FOLDERS[0] };

static bool find_object(const char *object, char *path, size_t path_size)
{
    char program[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0) return false;
    program[n] = '\0';
    *strrchr(program, '/') = '\0';
    for (int i = 0; i < N_FOLDERS; i++) {
        const int len = snprintf(path, path_size, "%s/%s%s", program, FOLDERS[i], object);
        if (len > 0 && (size_t)len < path_size && access(path, R_OK) == 0) return true;
    }
    return false;
}

/* Once in a process: an object stays loaded, and *ops with it. */
static const dt_device_ops *load(const char *name, const char *without, const dt_device_ops **ops, char *why,
                                 size_t why_size)
{
    char path[PATH_MAX + 64];
    if (*ops) return *ops;
    if (!find_object(name, path, sizeof path)) {
        snprintf(why, why_size, "%s: there is no %s beside this program", without, name);
        return NULL;
    }
    void *object = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (object) *ops = dlsym(object, "dt_device_cuda_ops");
    if (!*ops) snprintf(why, why_size, "%s", dlerror());
    return *ops;
}

const dt_device_ops *dt_cuda_load(char *why, size_t why_size)
{
    static const dt_device_ops *ops;
    return load("libdtrain_cuda.so", "built without CUDA", &ops, why, why_size);
}

const dt_device_ops *dt_cuda_sim_load(char *why, size_t why_size)
{
    static const dt_device_ops *ops;
    return load("libdtrain_cudasim.so", "built without the simulator of CUDA (make cudasim)", &ops, why, why_size);
}
