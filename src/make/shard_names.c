/* shard_names.c - existing files with names of output shards. The number of shards is known only at the
 * end, and image paths are not kept until then. Therefore no image may be any of these files. */
#include "encode_records.h"
#include "dtrain/io/io.h"
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static dt_err add(dt_shard_names *s, const char *path, const struct stat *st)
{
    char *name;
    DT_GROW(s->file, s->n, "out of memory for the names of %d files", s->n + 1);
    DT_COPY_TEXT(name, path, "out of memory for the names of %d files", s->n + 1);
    s->file[s->n++] = (dt_named_file){.path = name, .device = st->st_dev, .number = st->st_ino};
    return DT_OK;
}

/* name is SHARD or SHARD.part. The latter is removed before the shard is written. */
static dt_err look_at(dt_shard_names *s, const char *folder, const char *name, const char *output)
{
    char path[PATH_MAX];
    struct stat st;
    if (!dt_join_path(path, folder, name, "") || stat(path, &st) != 0) return DT_OK;
    if (dt_has_ending(path, ".part")) path[strlen(path) - 5] = '\0';
    return dt_is_shard_of(path, output) ? add(s, path, &st) : DT_OK;
}

dt_err dt_shard_names_find(dt_shard_names *s, const char *output)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(output, '/');
    const size_t n = slash ? (size_t)(slash - output) + 1 : 0;
    if (n >= sizeof folder) return DT_OK;
    snprintf(folder, sizeof folder, "%.*s", n ? (int)n : 1, n ? output : ".");
    DIR *d = opendir(folder);
    DT_CHECK(d || errno == ENOENT, DT_ERR_USAGE, "%s: cannot be listed: %s", folder, strerror(errno));
    dt_err err = DT_OK;
    for (struct dirent *e = d ? readdir(d) : NULL; e && err == DT_OK; e = readdir(d))
        if (dt_has_ending(e->d_name, ".h5") || dt_has_ending(e->d_name, ".h5.part"))
            err = look_at(s, folder, e->d_name, output);
    if (d) closedir(d);
    return err;
}

dt_err dt_shard_names_check(const dt_shard_names *s, const char *image)
{
    struct stat st;
    if (s->n == 0 || stat(image, &st) != 0) return DT_OK;
    for (int i = 0; i < s->n; i++)
        if (s->file[i].device == st.st_dev && s->file[i].number == st.st_ino)
            return dt_check_output(s->file[i].path, true, &image, 1);
    return DT_OK;
}

void dt_shard_names_free(dt_shard_names *s)
{
    for (int i = 0; i < s->n; i++) free(s->file[i].path);
    free(s->file);
    *s = (dt_shard_names){0};
}
