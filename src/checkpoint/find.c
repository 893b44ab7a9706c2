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

dt_err dt_checkpoint_find(const char *path, char **file)
{
    struct stat st;
    char dir[PATH_MAX];
    *file = NULL;
    DT_CHECK(stat(path, &st) == 0, DT_ERR_DATA, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode)) {
        *file = strdup(path);
        return *file ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the name of %s", path);
    }
    DT_CHECK(snprintf(dir, sizeof dir, "%s/checkpoints", path) < (int)sizeof dir, DT_ERR_DATA, "%s: the name is too long", path);
    DT_TRY(newest_in(dir, file));
    if (!*file) DT_TRY(newest_in(path, file));
    DT_CHECK(*file, DT_ERR_DATA, "%s: expected a checkpoint (.h5), or a directory with checkpoints; there are none in %s", path, dir);
    return DT_OK;
}
