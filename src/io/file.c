/* file.c - plain files: written under a temporary name, synced, renamed. After a crash at any time, and for every
 * reader, the name refers to the old file or to the new one, never to a partial file. */
#include "dtrain/io/io.h"
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool dt_join_path(char *out, const char *dir, const char *name, const char *ending)
{
    return (size_t)snprintf(out, PATH_MAX, "%s/%s%s", dir, name, ending) < PATH_MAX;
}

bool dt_is_in(char *out, const char *dir, const char *name)
{
    return dt_join_path(out, dir, name, "") && access(out, F_OK) == 0;
}

bool dt_has_ending(const char *name, const char *ending)
{
    const size_t n = strlen(name), m = strlen(ending);
    return n > m && strcmp(name + n - m, ending) == 0;
}

static bool is_of(mode_t kind, const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && (st.st_mode & S_IFMT) == kind;
}

bool dt_is_file(const char *path) { return is_of(S_IFREG, path); }
bool dt_is_directory(const char *path) { return is_of(S_IFDIR, path); }

/* Returns the file name without its directory; *folder: the directory's status. */
static const char *place_of(const char *path, struct stat *folder)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (!slash) return stat(".", folder) == 0 ? name : NULL;
    const int n = snprintf(dir, sizeof dir, "%.*s", (int)(name - path), path);
    return n < PATH_MAX && stat(dir, folder) == 0 ? name : NULL;
}

bool dt_is_same_place(const char *a, const char *b)
{
    struct stat x, y;
    if (strcmp(a, b) == 0) return true; /* even if the directory does not exist yet */
    const char *name = place_of(a, &x), *other = place_of(b, &y);
    return name && other && !strcmp(name, other) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static dt_err check_regular(const char *path, const struct stat *st)
{
    DT_CHECK(S_ISREG(st->st_mode), DT_ERR_DATA, "%s: expected a file, found %s", path,
             S_ISDIR(st->st_mode) ? "a directory" : "a device, pipe or socket");
    return DT_OK;
}

/* Errors of the machine, not of the file: code that skips damaged files must return these. */
static dt_err code_of(int number)
{
    static const int machine[] = {EIO, ESTALE, EMFILE, ENFILE, ETIMEDOUT, EREMOTEIO};
    for (size_t i = 0; i < sizeof machine / sizeof machine[0]; i++)
        if (number == machine[i]) return DT_ERR_FAULT;
    return number == ENOMEM ? DT_ERR_MEMORY : DT_ERR_DATA;
}

/* O_NONBLOCK: opening a pipe without a writer must not block. */
static dt_err open_regular(const char *path, int *fd, struct stat *st)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return dt_fail_errno(code_of(errno), path, "cannot be opened");
    const dt_err err =
        fstat(*fd, st) == 0 ? check_regular(path, st) : dt_fail_errno(code_of(errno), path, "cannot be read");
    if (err != DT_OK) close(*fd);
    return err;
}

dt_err dt_open_text(const char *path, FILE **f)
{
    int fd;
    struct stat st;
    *f = NULL;
    DT_TRY(open_regular(path, &fd, &st));
    if ((*f = fdopen(fd, "r"))) return DT_OK;
    const dt_err err = dt_fail_errno(DT_ERR_MEMORY, path, "cannot be read");
    close(fd);
    return err;
}

static dt_err read_open_file(int fd, const struct stat *st, const char *path, size_t max_bytes, char **text,
                             size_t *nbytes)
{
    DT_CHECK((uintmax_t)st->st_size <= max_bytes, DT_ERR_DATA, "%s: expected at most %zu bytes, found %lld", path,
             max_bytes, (long long)st->st_size);
    *nbytes = (size_t)st->st_size;
    *text = malloc(*nbytes + 1);
    DT_CHECK(*text, DT_ERR_MEMORY, "%s: out of memory for the file's %zu bytes", path, *nbytes);
    (*text)[*nbytes] = '\0';
    errno = 0; /* also for a file that is too short */
    dt_err err = dt_read_at(fd, path, 0, *text, *nbytes);
    if (err != DT_OK) err = code_of(errno);
    if (err == DT_OK) err = dt_refuse_pointer(path, *text, *nbytes);
    if (err == DT_OK) return DT_OK;
    free(*text);
    *text = NULL;
    return err;
}

dt_err dt_read_file(const char *path, size_t max_bytes, char **text, size_t *nbytes)
{
    int fd;
    struct stat st;
    *text = NULL;
    *nbytes = 0;
    DT_TRY(open_regular(path, &fd, &st));
    const dt_err err = read_open_file(fd, &st, path, max_bytes, text, nbytes);
    close(fd);
    return err;
}

static dt_err make_dir(const char *path)
{
    if (mkdir(path, 0777) == 0) return DT_OK;
    const int number = errno;
    if (dt_is_directory(path)) return DT_OK; /* exists already, or another rank created it */
    errno = number;
    return dt_fail_errno(DT_ERR_WRITE, path, "cannot create the directory");
}

dt_err dt_make_dirs(const char *path)
{
    char part[PATH_MAX];
    const size_t len = strlen(path);
    DT_CHECK(len > 0 && len < sizeof part, DT_ERR_WRITE,
             "cannot create a directory: its path has %zu bytes, expected 1 to %zu", len, sizeof part - 1);
    memcpy(part, path, len + 1);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        DT_TRY(make_dir(part));
        *slash = '/';
    }
    return make_dir(part);
}

dt_err dt_make_folder_of(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path) return DT_OK;
    DT_CHECK(slash - path < PATH_MAX, DT_ERR_WRITE, "%s: the path is too long", path);
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    return dt_make_dirs(folder);
}

static dt_err write_all(int fd, const char *path, const char *bytes, size_t nbytes)
{
    for (size_t done = 0; done < nbytes;) {
        const ssize_t n = write(fd, bytes + done, nbytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return dt_fail_errno(DT_ERR_WRITE, path, "write failed");
        done += (size_t)n;
    }
    return DT_OK;
}

int dt_open_unnamed(const char *folder)
{
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;

    char name[PATH_MAX]; /* some file systems (NFS) do not support it */
    if (!dt_join_path(name, folder, ".dtrain-", "XXXXXX")) return errno = ENAMETOOLONG, -1;
    fd = mkostemp(name, O_CLOEXEC);
    if (fd >= 0) unlink(name);
    return fd;
}

dt_err dt_close_written(int fd, const char *path, bool sync, dt_err err)
{
    if (err == DT_OK && sync && fsync(fd) != 0) err = dt_fail_errno(DT_ERR_WRITE, path, "sync failed");
    /* NFS reports a full disk here */
    if (close(fd) != 0 && err == DT_OK) err = dt_fail_errno(DT_ERR_WRITE, path, "close failed");
    return err;
}

dt_err dt_write_file_sync(const char *path, const char *text, size_t nbytes)
{
    int fd;
    DT_TRY(dt_create_file(path, &fd));
    const dt_err err = dt_close_written(fd, path, true, write_all(fd, path, text, nbytes));
    if (err != DT_OK) dt_remove_part(path);
    return err;
}

dt_err dt_aside_open(dt_aside *a, const char *path)
{
    *a = (dt_aside){.path = path, .fd = -1};
    DT_TRY(dt_check_replaceable(path));
    if (asprintf(&a->part, "%s.part", path) < 0) {
        a->part = NULL;
        return dt_fail(DT_ERR_MEMORY, "%s: out of memory for the file's name", path);
    }
    const dt_err err = dt_create_file(a->part, &a->fd);
    if (err == DT_OK) return DT_OK;
    free(a->part);
    a->part = NULL;
    return err;
}

dt_err dt_aside_write(dt_aside *a, const void *bytes, size_t nbytes)
{
    return write_all(a->fd, a->part, bytes, nbytes);
}

dt_err dt_aside_sync(dt_aside *a)
{
    return fsync(a->fd) == 0 ? DT_OK : dt_fail_errno(DT_ERR_WRITE, a->part, "sync failed");
}

dt_err dt_aside_commit(dt_aside *a)
{
    dt_err err = dt_close_written(a->fd, a->part, true, DT_OK);
    a->fd = -1;
    if (err == DT_OK) err = dt_rename_durable(a->part, a->path);
    if (err != DT_OK) dt_remove_part(a->part);
    free(a->part);
    a->part = NULL;
    return err;
}

void dt_aside_drop(dt_aside *a)
{
    if (!a->part) return;
    close(a->fd);
    dt_remove_part(a->part);
    free(a->part);
    *a = (dt_aside){.fd = -1};
}

dt_err dt_write_file_atomic(const char *path, const char *text, size_t nbytes)
{
    dt_aside a;
    DT_TRY(dt_aside_open(&a, path));
    const dt_err err = dt_aside_write(&a, text, nbytes);
    if (err == DT_OK) return dt_aside_commit(&a);
    dt_aside_drop(&a);
    return err;
}

static dt_err copy_pieces(int in, const char *from, int out, const char *to)
{
    enum { CHUNK = 1 << 15 };
    char *chunk = malloc(CHUNK);
    dt_err err = chunk ? DT_OK : dt_fail(DT_ERR_MEMORY, "no memory to copy %s", from);
    while (err == DT_OK) {
        const ssize_t n = read(in, chunk, CHUNK);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) err = dt_fail_errno(DT_ERR_DATA, from, "cannot be read");
        if (n <= 0) break;
        err = write_all(out, to, chunk, (size_t)n);
    }
    free(chunk);
    return err;
}

dt_err dt_copy_file(const char *from, const char *to)
{
    int in, out;
    struct stat st;
    DT_TRY(open_regular(from, &in, &st));
    dt_err err = dt_create_file(to, &out);
    if (err == DT_OK) {
        err = dt_close_written(out, to, true, copy_pieces(in, from, out, to));
        if (err != DT_OK) dt_remove_part(to);
    }
    close(in);
    return err;
}

static bool same_file(const char *path, const char *input)
{
    struct stat a, b;
    if (stat(path, &a) != 0) return false;
    const int found = strcmp(input, "-") == 0 ? fstat(STDIN_FILENO, &b) : stat(input, &b);
    return found == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

dt_err dt_check_output(const char *path, bool force, const char *const *inputs, int n_inputs)
{
    char part[PATH_MAX];
    struct stat st;
    DT_CHECK((size_t)snprintf(part, sizeof part, "%s.part", path) < sizeof part, DT_ERR_USAGE,
             "%s: the path is too long", path);
    for (int i = 0; i < n_inputs; i++) {
        DT_CHECK(!same_file(path, inputs[i]), DT_ERR_USAGE,
                 "%s: is an input (%s) and would be overwritten; choose another name for the output", path, inputs[i]);
        DT_CHECK(!same_file(part, inputs[i]), DT_ERR_USAGE,
                 "%s: is an input (%s), but it is also the temporary name of the output %s; choose another name for "
                 "the output",
                 part, inputs[i], path);
    }
    DT_CHECK(force || lstat(path, &st) != 0, DT_ERR_USAGE,
             "%s: exists; choose another name, or replace it with --force", path);
    return DT_OK;
}

dt_err dt_check_replaceable(const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0 || S_ISREG(st.st_mode) || S_ISLNK(st.st_mode)) return DT_OK;
    return dt_fail(DT_ERR_WRITE, "%s: expected a regular file or no file, found %s", path,
                   S_ISDIR(st.st_mode) ? "a directory" : "a device, pipe or socket");
}

/* ---- file name patterns ------------------------------------------------------------------------------------------ */

static dt_err copy_files(const glob_t *g, char ***paths, int *n_paths)
{
    char **list = calloc(g->gl_pathc, sizeof *list);
    DT_CHECK(list, DT_ERR_MEMORY, "out of memory for the names of %zu files", (size_t)g->gl_pathc);
    int n = 0;
    for (size_t i = 0; i < g->gl_pathc; i++) {
        if (dt_is_directory(g->gl_pathv[i])) continue;
        if (!(list[n] = strdup(g->gl_pathv[i]))) {
            dt_list_free(list, n);
            return dt_fail(DT_ERR_MEMORY, "out of memory for the names of %zu files", (size_t)g->gl_pathc);
        }
        n++;
    }
    *paths = list;
    *n_paths = n;
    return DT_OK;
}

dt_err dt_glob(const char *pattern, char ***paths, int *n_paths)
{
    glob_t g = {0};
    struct stat st;
    *paths = NULL;
    *n_paths = 0;
    if (stat(pattern, &st) == 0) { /* an existing path is used literally, even with brackets in its name */
        DT_CHECK(!S_ISDIR(st.st_mode), DT_ERR_DATA, "%s: expected a file, found a directory", pattern);
        char *only[] = {(char *)pattern};
        return copy_files(&(glob_t){.gl_pathc = 1, .gl_pathv = only}, paths, n_paths);
    }
    if (!strpbrk(pattern, "*?[")) return dt_fail_errno(DT_ERR_DATA, pattern, "cannot be opened");

    const int status = glob(pattern, GLOB_ERR, NULL, &g);
    dt_err err = DT_OK;
    if (status == 0 && g.gl_pathc < INT_MAX)
        err = copy_files(&g, paths, n_paths);
    else if (status == GLOB_ABORTED)
        err = dt_fail_errno(DT_ERR_DATA, pattern, "a directory cannot be read");
    else if (status != GLOB_NOMATCH)
        err = dt_fail(DT_ERR_MEMORY, "%s: out of memory for the list of matching files", pattern);
    if (status == 0) globfree(&g);
    if (err == DT_OK && *n_paths == 0) {
        free(*paths);
        *paths = NULL;
        err = dt_fail(DT_ERR_DATA, "%s: no file matches", pattern);
    }
    return err;
}
