/* safetensors_write.c - the files of a layout on disk: reserved completely under .part names, filled by the ranks
 * that own the values, and renamed when complete. */
#include "safetensors_private.h"
#include "dtrain/io/io.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INDEX_ENDING ".safetensors.index.json"

static dt_err join(char path[PATH_MAX], const char *dir, const char *name, const char *ending)
{
    DT_CHECK(dt_join_path(path, dir, name, ending), DT_ERR_WRITE, "%s/%s: the path is too long", dir, name);
    return DT_OK;
}

static dt_err create_one(const dt_st_layout *l, const char *dir, int f)
{
    char path[PATH_MAX];
    DT_TRY(join(path, dir, l->names[f], ".part"));
    DT_TRY(dt_create_empty_file(path));
    DT_TRY(dt_reserve_file(path, l->size[f], "a model's file"));
    const int fd = open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return dt_fail_errno(DT_ERR_WRITE, path, "cannot be opened");
    dt_err err = ftruncate(fd, (off_t)l->size[f]) == 0
                     ? DT_OK
                     : dt_fail_errno(DT_ERR_WRITE, path,
                                     "cannot be extended to its full size"); /* if nothing could be reserved */
    if (err == DT_OK) err = dt_write_at(fd, path, 0, l->headers[f], l->header_len[f]);
    if (close(fd) != 0 && err == DT_OK) err = dt_fail_errno(DT_ERR_WRITE, path, "close failed");
    return err;
}

static dt_err join_index(const dt_st_layout *l, char path[PATH_MAX], const char *dir, const char *ending)
{
    char name[NAME_MAX];
    snprintf(name, sizeof name, "%s%s", l->stem, INDEX_ENDING);
    return join(path, dir, name, ending);
}

static dt_err create_index(const dt_st_layout *l, const char *dir)
{
    char path[PATH_MAX];
    DT_TRY(join_index(l, path, dir, ".part"));
    return dt_write_file_sync(path, l->index, strlen(l->index));
}

dt_err dt_st_layout_create(const dt_st_layout *l, const char *dir)
{
    double nbytes = 1 << 16;
    for (int f = 0; f < l->n_files; f++) nbytes += (double)l->size[f];
    DT_TRY(dt_check_space(dir, dir, nbytes, "a model"));
    dt_err err = DT_OK;
    for (int f = 0; f < l->n_files && err == DT_OK; f++) err = create_one(l, dir, f);
    if (err == DT_OK && l->index) err = create_index(l, dir);
    if (err != DT_OK) dt_st_layout_discard(l, dir);
    return err;
}

dt_err dt_st_layout_sync(const dt_st_layout *l, const char *dir, int f)
{
    char path[PATH_MAX];
    DT_TRY(join(path, dir, l->names[f], ".part"));
    const int fd = open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return dt_fail_errno(DT_ERR_WRITE, path, "cannot be opened");
    const dt_err err = fsync(fd) == 0 ? DT_OK : dt_fail_errno(DT_ERR_WRITE, path, "sync failed");
    close(fd);
    return err;
}

/* Files that a reader would take for the weights of "model": "model.safetensors", "model-00001-of-00002.safetensors" or
 * the index. */
static bool is_weights(const dt_st_layout *l, const char *name)
{
    const size_t len = strlen(l->stem);
    unsigned i, n;
    int end = 0;
    if (strncmp(name, l->stem, len) != 0) return false;
    name += len;
    if (strcmp(name, ".safetensors") == 0 || strcmp(name, INDEX_ENDING) == 0) return true;
    return sscanf(name, "-%5u-of-%5u.safetensors%n", &i, &n, &end) == 2 && end > 0 && name[end] == '\0';
}

static bool is_in_layout(const dt_st_layout *l, const char *name)
{
    for (int f = 0; f < l->n_files; f++)
        if (strcmp(l->names[f], name) == 0) return true;
    return l->index && strcmp(name + strlen(l->stem), INDEX_ENDING) == 0; /* is_weights */
}

static dt_err remove_others(const dt_st_layout *l, const char *dir)
{
    char path[PATH_MAX];
    dt_err err = DT_OK;
    DIR *d = opendir(dir);
    if (!d) return dt_fail_errno(DT_ERR_WRITE, dir, "cannot be listed");
    for (struct dirent *e = readdir(d); e && err == DT_OK; e = readdir(d)) {
        if (!is_weights(l, e->d_name) || is_in_layout(l, e->d_name)) continue;
        err = join(path, dir, e->d_name, "");
        if (err == DT_OK && unlink(path) != 0)
            err = dt_fail_errno(DT_ERR_WRITE, path, "the file of an earlier model cannot be removed");
    }
    closedir(d);
    return err;
}

static dt_err publish_one(const char *dir, const char *name)
{
    char part[PATH_MAX], path[PATH_MAX];
    DT_TRY(join(part, dir, name, ".part"));
    DT_TRY(join(path, dir, name, ""));
    return dt_rename_durable(part, path);
}

static dt_err publish_index(const dt_st_layout *l, const char *dir)
{
    char part[PATH_MAX], path[PATH_MAX];
    DT_TRY(join_index(l, part, dir, ".part"));
    DT_TRY(join_index(l, path, dir, ""));
    return dt_rename_durable(part, path);
}

dt_err dt_st_layout_publish(const dt_st_layout *l, const char *dir)
{
    DT_TRY(remove_others(l, dir));
    for (int f = 0; f < l->n_files; f++) DT_TRY(publish_one(dir, l->names[f]));
    return l->index ? publish_index(l, dir) : DT_OK;
}

void dt_st_layout_discard(const dt_st_layout *l, const char *dir)
{
    char path[PATH_MAX];
    for (int f = 0; f < l->n_files; f++)
        if (join(path, dir, l->names[f], ".part") == DT_OK) dt_remove_part(path);
    if (join_index(l, path, dir, ".part") == DT_OK) dt_remove_part(path);
}
