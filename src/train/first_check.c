/* first_check.c - the self-check of a GPU (dt_device_self_check) before its first run. The user's cache records success
 * in a file per chip, driver, library and build. If that file or its directory cannot be used, the check is repeated,
 * with no other effect. */
#include "dtrain/io/io.h"
#include "run.h"
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

enum { KEY_TEXT = 1024, MOST_READ = 4096 };

/* Everything that a result depends on. Returns false if some of it is unknown; the result is then not cached. */
static bool make_key(const dt_run *run, char key[KEY_TEXT])
{
    const dt_device *dev = &run->dev;
    char versions[512] = "", program[DT_BUILD_TEXT], object[DT_BUILD_TEXT];
    if (dev->ops->versions) dev->ops->versions(dev, versions, sizeof versions);
    dt_object_build(&dt_device_cpu_ops, program);
    dt_object_build(dev->ops, object);
    snprintf(key, KEY_TEXT, "dtrain self-check passed\ndevice: %s, %s\nprogram: %s\nobject: %s\n", dev->ops->name,
             versions, program, object);
    return *versions && *program && *object;
}

/* ${XDG_CACHE_HOME:-~/.cache}/dtrain; NULL: none exists. The caller frees it. */
static char *cache_dir(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *dir = NULL;
    int len = -1;
    if (cache && *cache == '/')
        len = asprintf(&dir, "%s/dtrain", cache);
    else if (home && *home == '/')
        len = asprintf(&dir, "%s/.cache/dtrain", home);
    return len < 0 ? NULL : dir;
}

static char *path_in(const char *dir, const char *key)
{
    char *path = NULL;
    return dir && asprintf(&path, "%s/self-check-%016" PRIx64, dir, dt_hash_text(key)) >= 0 ? path : NULL;
}

static bool is_remembered(const char *path, const char *key)
{
    char *text = NULL;
    size_t nbytes = 0;
    const bool read = path && access(path, R_OK) == 0 && dt_read_file(path, MOST_READ, &text, &nbytes) == DT_OK;
    const bool same = read && nbytes == strlen(key) && !memcmp(text, key, nbytes);
    dt_error_clear();
    free(text);
    return same;
}

static void remember(const char *dir, const char *path, const char *key)
{
    dt_err err =
        path ? dt_fault("self_check.remember") : dt_fail(DT_ERR_WRITE, "neither XDG_CACHE_HOME nor HOME is set");
    if (err == DT_OK) err = dt_make_dirs(dir);
    if (err == DT_OK) err = dt_write_file_atomic(path, key, strlen(key));
    if (err != DT_OK)
        DT_INFO("self-check: the result cannot be cached, so the next start repeats the check: %s", dt_error_message());
    dt_error_clear();
}

static dt_err check(dt_run *run, int *n_distrusted)
{
    DT_TRY(dt_fault("device.self_check"));
    return dt_device_self_check(&run->dev, dt_comm_cores(run->comm), n_distrusted);
}

static dt_err check_once(dt_run *run)
{
    char key[KEY_TEXT];
    const bool lasts = make_key(run, key), always = run->only_check || !strcmp(run->cfg.run_self_check, "always");
    if (!lasts && !always) return DT_OK; /* a test device without a driver */
    char *dir = cache_dir(), *path = path_in(dir, key);
    int n_distrusted = 0;
    dt_err err = DT_OK;
    if (always || !is_remembered(path, key)) {
        err = check(run, &n_distrusted);
        /* a library that failed its check must be checked again in each run */
        if (err == DT_OK && lasts && n_distrusted == 0 && !run->only_check) remember(dir, path, key);
    }
    free(dir), free(path);
    return err;
}

dt_err run_check_device(dt_run *run)
{
    const bool never = !run->only_check && !strcmp(run->cfg.run_self_check, "never");
    return never || !run->comm->leads ? DT_OK : check_once(run);
}
