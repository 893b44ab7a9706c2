/* directory.c - the checkpoints of a run: step-00000500.h5 and so on, in one directory. The step is the number in the
 * name. Modification times are ignored, because copying a run changes them. */
#include "file.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The step of a path whose name is step-DIGITS<ending>, otherwise -1. */
static int64_t step_of(const char *path, const char *ending)
{
    const char *name = name_of(path);
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') return -1;
    char *end;
    errno = 0;
    const long long step = strtoll(name + 5, &end, 10);
    return errno == 0 && strcmp(end, ending) == 0 ? step : -1;
}

int64_t dt_checkpoint_step_of(const char *path) { return step_of(path, ".h5"); }

static int by_step_descending(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    const long long step_x = strtoll(name_of(x) + 5, NULL, 10), step_y = strtoll(name_of(y) + 5, NULL, 10);
    return step_x != step_y ? (step_x < step_y) - (step_x > step_y) : strcmp(x, y);
}

/* Append the files of an open directory whose name is step-DIGITS<ending>. */
static dt_err add_files(DIR *d, const char *dir, const char *ending, char ***paths, int *n)
{
    for (const struct dirent *e; (e = readdir(d));) {
        if (step_of(e->d_name, ending) < 0) continue;
        DT_GROW(*paths, *n, "%s: out of memory for its list of checkpoints", dir);
        DT_CHECK(asprintf(&(*paths)[*n], "%s/%s", dir, e->d_name) >= 0, DT_ERR_MEMORY,
                 "%s: out of memory for its list of checkpoints", dir);
        ++*n;
    }
    return DT_OK;
}

/* Files whose name is step-DIGITS<ending>, highest step first. */
static dt_err read_dir(const char *dir, const char *ending, char ***paths, int *n)
{
    *paths = NULL, *n = 0;
    DIR *d = opendir(dir);
    if (!d && errno == ENOENT) return DT_OK;
    DT_CHECK_ERRNO(d, DT_ERR_DATA, dir, "cannot be listed");
    const dt_err err = add_files(d, dir, ending, paths, n);
    closedir(d);
    if (err == DT_OK && *n > 0) qsort(*paths, (size_t)*n, sizeof **paths, by_step_descending);
    if (err == DT_OK) return DT_OK;
    dt_list_free(*paths, *n);
    *paths = NULL, *n = 0;
    return err;
}

dt_err dt_checkpoint_list(const char *dir, char ***paths, int *n_paths) { return read_dir(dir, ".h5", paths, n_paths); }

void ckpt_remove_stale(const char *dir)
{
    char **parts;
    int n;
    if (read_dir(dir, ".h5.part", &parts, &n) != DT_OK) dt_error_clear();
    for (int i = 0; i < n; i++) dt_remove_part(parts[i]);
    dt_list_free(parts, n);
}

enum { MAX_POINTER = 4096 }; /* bytes */

void ckpt_read_pointer(const char *dir, const char *pointer, char *out)
{
    char path[PATH_MAX];
    out[0] = '\0';
    char *text;
    size_t nbytes;
    if (!dt_join_path(path, dir, pointer, "") || !dt_is_file(path)) return;
    if (dt_read_file(path, MAX_POINTER, &text, &nbytes) == DT_OK) {
        snprintf(out, CKPT_NAME_SIZE, "%.*s", (int)strcspn(text, "\r\n"), text);
        free(text);
    } else {
        dt_error_clear();
    }
}

void dt_checkpoint_prune(const char *dir, int64_t keep)
{
    char latest[CKPT_NAME_SIZE] = "", best[CKPT_NAME_SIZE] = "";
    char **all;
    int n;
    if (keep <= 0) return;
    if (read_dir(dir, ".h5", &all, &n) != DT_OK) {
        DT_WARN("old checkpoints were not deleted: %s", dt_error_message());
        dt_error_clear();
        return;
    }
    ckpt_read_pointer(dir, "latest", latest);
    ckpt_read_pointer(dir, "best", best);
    int64_t left = n;
    for (int64_t i = strcmp(best, latest) ? keep : n; i < n; i++)
        if (strcmp(name_of(all[i]), best) == 0) left--; /* kept in addition */
    for (int i = n - 1; i >= 0 && left > keep; i--) {
        if (strcmp(name_of(all[i]), latest) == 0 || strcmp(name_of(all[i]), best) == 0) continue;
        if (unlink(all[i]) == 0)
            left--;
        else
            DT_WARN("%s: an old checkpoint could not be deleted: %s", all[i], strerror(errno));
    }
    dt_list_free(all, n);
}

dt_err dt_checkpoint_candidates(const char *dir, char ***paths, int *n_paths)
{
    char latest[CKPT_NAME_SIZE] = "";
    int n_newer = 0;
    DT_TRY(dt_checkpoint_list(dir, paths, n_paths));
    ckpt_read_pointer(dir, "latest", latest);
    const int64_t step = step_of(latest, ".h5");
    while (step >= 0 && n_newer < *n_paths && dt_checkpoint_step_of((*paths)[n_newer]) > step) n_newer++;
    if (n_newer == *n_paths) return DT_OK; /* the file of `latest` and all older ones are gone: ignore `latest` */
    for (int i = 0; i < n_newer; i++) free((*paths)[i]);
    *n_paths -= n_newer;
    memmove(*paths, *paths + n_newer, (size_t)*n_paths * sizeof **paths);
    return DT_OK;
}

enum { NAME_SIZE = 40 };

static void name_of_step(char name[NAME_SIZE], int64_t step)
{
    snprintf(name, NAME_SIZE, "step-%08" PRId64 ".h5", step);
}

dt_err dt_checkpoint_path(char *path, const char *dir, int64_t step)
{
    char name[NAME_SIZE];
    name_of_step(name, step);
    DT_CHECK(dt_join_path(path, dir, name, ""), DT_ERR_WRITE, "%s: the path is too long", dir);
    return DT_OK;
}

dt_err ckpt_write_pointer(dt_aside *a, const char *path, int64_t step)
{
    char name[NAME_SIZE];
    name_of_step(name, step);
    DT_TRY(dt_aside_open(a, path));
    dt_err err = dt_aside_write(a, name, strlen(name));
    if (err == DT_OK) err = dt_aside_sync(a);
    if (err != DT_OK) dt_aside_drop(a);
    return err;
}

dt_err dt_checkpoint_point(const char *dir, const char *name, int64_t step)
{
    char path[PATH_MAX];
    dt_aside a;
    DT_CHECK(dt_join_path(path, dir, name, ""), DT_ERR_WRITE, "%s: the path is too long", dir);
    DT_CHECK_ERRNO(step > 0 || unlink(path) == 0 || errno == ENOENT, DT_ERR_WRITE, path, "cannot be removed");
    if (step <= 0) return DT_OK;
    DT_TRY(ckpt_write_pointer(&a, path, step));
    return dt_aside_commit(&a);
}
