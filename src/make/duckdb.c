/* duckdb.c - loads the library and resolves its functions. */
#include "duckdb.h"
#include "dtrain/data/dataset.h"
#include <dlfcn.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LIBRARY "libduckdb.so"

/* ---- names ------------------------------------------------------------------------------------------------------- */

#define DUCKDB_NAME(returns, name, arguments) {"duckdb_" #name, offsetof(duckdb_calls, name)},
static const struct {
    const char *name;
    size_t offset;
} names[] = {DUCKDB_CALLS(DUCKDB_NAME)};

static void where(char path[PATH_MAX])
{
    const char *given = getenv("DTRAIN_DUCKDB");
    struct stat st;
    if (!given || !given[0])
        snprintf(path, PATH_MAX, LIBRARY);
    else if (stat(given, &st) == 0 && S_ISDIR(st.st_mode))
        snprintf(path, PATH_MAX, "%s/" LIBRARY, given);
    else
        snprintf(path, PATH_MAX, "%s", given);
}

static dt_err find_calls(duckdb_calls *calls)
{
    char path[PATH_MAX];
    where(path);
    /* never closed: its threads and memory would outlive dlclose */
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    DT_CHECK(library, DT_ERR_DATA, "%s", dlerror());
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *found = dlsym(library, names[i].name);
        DT_CHECK(found, DT_ERR_DATA, "%s: function %s is missing", path, names[i].name);
        memcpy((char *)calls + names[i].offset, &found, sizeof found);
    }
    int major = 0, minor = 0;
    const char *version = calls->library_version();
    sscanf(version, "v%d.%d", &major, &minor);
    DT_CHECK(major > 1 || (major == 1 && minor >= 1), DT_ERR_DATA, "%s: expected DuckDB 1.1 or later, found %s", path,
             version);
    return DT_OK;
}

dt_err dt_duckdb_open(const duckdb_calls **calls)
{
    static duckdb_calls opened;
    if (!opened.library_version) {
        duckdb_calls found;
        DT_TRY(find_calls(&found));
        opened = found;
    }
    *calls = &opened;
    return DT_OK;
}

const char *dt_parquet_library(char *text, size_t size)
{
    const duckdb_calls *duck;
    if (dt_duckdb_open(&duck) == DT_OK)
        snprintf(text, size, "DuckDB %s", duck->library_version());
    else
        snprintf(text, size, "not available (%s)", dt_error_message());
    dt_error_clear();
    return text;
}
