/* safetensors_write.c - the files of a layout on disk: reserved completely under .part names, filled by the ranks
 * that own the values, and renamed when complete. */
#include "safetensors_private.h"
#include "dtrain/io/io.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

static dt_err join(char path[PATH_MAX], const char *dir, const char *name, const char *ending)
{
    DT_CHECK(dt_join_path(path, dir, name, ending), DT_ERR_WRITE, "%s/%s: the path is too long", dir, name);
    return DT_OK;
}

static int n_names(const dt_st_layout *l) { return l->n_files + (l->index ? 1 : 0); }

static dt_err create_one(const dt_st_layout *l, const char *dir, int f)
{
    char path[PATH_MAX];
    int fd;
    DT_TRY(join(path, dir, l->names[f], ".part"));
    if (f == l->n_files) return dt_write_file_sync(path, l->index, strlen(l->index));
    DT_TRY(dt_create_file(path, &fd));
    dt_err err = dt_reserve_blocks(fd, path, l->size[f], "a model's file");
    if (err == DT_OK && ftruncate(fd, (off_t)l->size[f]) != 0) /* if nothing could be reserved */
        err = dt_fail_errno(DT_ERR_WRITE, path, "cannot be extended to its full size");
    if (err == DT_OK) err = dt_write_at(fd, path, 0, l->headers[f], l->header_len[f]);
    return dt_close_written(fd, path, false, err);
}

dt_err dt_st_layout_create(const dt_st_layout *l, const char *dir)
{
    double nbytes = 1 << 16;
    for (int f = 0; f < l->n_files; f++) nbytes += (double)l->size[f];
    DT_TRY(dt_check_space(dir, dir, nbytes, "a model"));
    dt_err err = DT_OK;
    for (int f = 0; f < n_names(l) && err == DT_OK; f++) err = create_one(l, dir, f);
    if (err != DT_OK) dt_st_layout_discard(l, dir);
    return err;
}

dt_err dt_st_layout_sync(const dt_st_layout *l, const char *dir, int f)
{
    char path[PATH_MAX];
    DT_TRY(join(path, dir, l->names[f], ".part"));
    const int fd = open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return dt_fail_errno(DT_ERR_WRITE, path, "cannot be opened");
    return dt_close_written(fd, path, true, DT_OK);
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
    if (strcmp(name, ".safetensors") == 0 || strcmp(name, ST_INDEX_ENDING) == 0) return true;
    return sscanf(name, "-%5u-of-%5u.safetensors%n", &i, &n, &end) == 2 && end > 0 && name[end] == '\0';
}

static bool is_in_layout(const dt_st_layout *l, const char *name)
{
    for (int f = 0; f < n_names(l); f++)
        if (strcmp(l->names[f], name) == 0) return true;
    return false;
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

dt_err dt_st_layout_publish(const dt_st_layout *l, const char *dir)
{
    DT_TRY(remove_others(l, dir));
    for (int f = 0; f < n_names(l); f++) DT_TRY(publish_one(dir, l->names[f]));
    return DT_OK;
}

void dt_st_layout_discard(const dt_st_layout *l, const char *dir)
{
    char path[PATH_MAX];
    for (int f = 0; f < n_names(l); f++)
        if (join(path, dir, l->names[f], ".part") == DT_OK) dt_remove_part(path);
}
