/* find_checkpoint.c - resolve a user's checkpoint path: the file, a run's directory, or the directory with its
 * checkpoints. */
#include "file.h"
#include "dtrain/config/config.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The file that DIR/POINTER names, malloc'ed in *path; unchanged if there is none. */
static dt_err follow(const char *dir, const char *pointer, char **path)
{
    char file[PATH_MAX], name[CKPT_NAME_SIZE];
    ckpt_read_pointer(dir, pointer, name);
    if (!name[0] || !dt_join_path(file, dir, name, "") || !dt_is_file(file)) return DT_OK;
    return dt_copy_text(path, file, "out of memory for the name of %s", file);
}

/* The file that `latest` names, otherwise the first candidate; malloc'ed in *path, unchanged if there is none. */
static dt_err newest_in(const char *dir, char **path)
{
    char **paths;
    int n = 0;
    DT_TRY(follow(dir, "latest", path));
    if (*path) return DT_OK;
    DT_TRY(dt_checkpoint_candidates(dir, &paths, &n));
    if (n > 0) {
        *path = paths[0];
        paths[0] = NULL;
    }
    dt_list_free(paths, n);
    return DT_OK;
}

dt_err dt_checkpoint_find(const char *path, char **file)
{
    struct stat st;
    char dir[PATH_MAX];
    *file = NULL;
    DT_CHECK_ERRNO(stat(path, &st) == 0, DT_ERR_DATA, path, NULL);
    if (!S_ISDIR(st.st_mode)) {
        const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
        if (strcmp(name, "latest") == 0 || strcmp(name, "best") == 0) {
            snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
            DT_TRY(follow(slash == path ? "/" : dir, name, file));
            DT_CHECK(*file, DT_ERR_DATA, "%s: expected the name of a checkpoint in the same folder, found none", path);
            return DT_OK;
        }
        return dt_copy_text(file, path, "out of memory for the name of %s", path);
    }
    DT_CHECK(snprintf(dir, sizeof dir, "%s/checkpoints", path) < (int)sizeof dir, DT_ERR_DATA,
             "%s: the name is too long", path);
    DT_TRY(newest_in(dir, file));
    if (!*file) DT_TRY(newest_in(path, file));
    DT_CHECK(*file, DT_ERR_DATA, "%s: expected a checkpoint (.h5) or a directory with checkpoints, found none in %s",
             path, dir);
    return DT_OK;
}
