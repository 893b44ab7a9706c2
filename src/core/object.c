/* object.c - parts of the program that are shared objects of their own, because a program that is linked against a
 * library does not start where the library is missing. */
#include "dtrain/core.h"
#include <dlfcn.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

/* Beside the program (a build folder), in the folder above (tests), where make install puts it, or in the build folder
 * below (a program at the top of the tree). */
static const char *const FOLDERS[] = {"", "../", "../lib/dtrain/", "build/release/"};
enum { N_FOLDERS = sizeof FOLDERS / sizeof FOLDERS[0] };

static bool find_object(const char *file, char *path, size_t path_size)
{
    char program[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0) return false;
    program[n] = '\0';
    *strrchr(program, '/') = '\0';
    for (int i = 0; i < N_FOLDERS; i++) {
        const int len = snprintf(path, path_size, "%s/%s%s", program, FOLDERS[i], file);
        if (len > 0 && (size_t)len < path_size && access(path, R_OK) == 0) return true;
    }
    return false;
}

const void *dt_object_symbol(const char *file, const char *symbol, char *why, size_t why_size)
{
    char path[PATH_MAX + 64];
    if (!find_object(file, path, sizeof path)) {
        snprintf(why, why_size, "this program was built without it: there is no %s", file);
        return NULL;
    }
    void *object = dlopen(path, RTLD_LAZY | RTLD_LOCAL); /* again: the one that is loaded */
    const void *found = object ? dlsym(object, symbol) : NULL;
    if (!found) snprintf(why, why_size, "%s", dlerror());
    return found;
}
