/* find.c - what people name when they mean a checkpoint: the file, a run's directory, or the folder with its checkpoints. */
#include "dtrain/checkpoint.h"
#include "dtrain/config.h"
#include "dtrain/io.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What `latest` names, else the highest step; malloc'ed in *path, left alone where there is none. */
static dt_err newest_in(const char *dir, char **path)
{
    char file[PATH_MAX], name[NAME_MAX + 2] = "";
    if (snprintf(file, sizeof file, "%s/latest", dir) >= (int)sizeof file) return DT_OK;
    FILE *f = fopen(file, "re");
    if (f && fgets(name, sizeof name, f)) name[strcspn(name, "\r\n")] = 0;
    if (f) fclose(f);
    if (name[0] && snprintf(file, sizeof file, "%s/%s", dir, name) < (int)sizeof file && dt_is_file(file)) {
        *path = strdup(file);
        return *path ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the name of %s", file);
    }
    char **paths;
    int n = 0;
    DT_TRY(dt_checkpoint_list(dir, &paths, &n));
    if (n > 0) {
        *path = paths[0];
        paths[0] = NULL;
    }
    dt_config_free_list(paths, n);
    return DT_OK;
}

dt_err dt_checkpoint_find(const char *model, char **path)
{
    struct stat st;
    char dir[PATH_MAX];
    *path = NULL;
    DT_CHECK(stat(model, &st) == 0, DT_ERR_DATA, "%s: %s", model, strerror(errno));
    if (!S_ISDIR(st.st_mode)) {
        *path = strdup(model);
        return *path ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the name of %s", model);
    }
    DT_CHECK(snprintf(dir, sizeof dir, "%s/checkpoints", model) < (int)sizeof dir, DT_ERR_DATA, "%s: the name is too long", model);
    DT_TRY(newest_in(dir, path));
    if (!*path) DT_TRY(newest_in(model, path));
    DT_CHECK(*path, DT_ERR_DATA, "%s: expected a checkpoint (.h5), or a directory with checkpoints; there are none in %s", model, dir);
    return DT_OK;
}
