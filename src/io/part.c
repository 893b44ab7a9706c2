/* part.c - files that are being written, under the name FINAL.part: created, locked, then renamed or removed.
 *
 * Two processes may be asked to write the same output. The creator of a .part holds a lock on it until it renames or
 * removes the file. A second process then reports this, and does not remove a file in use. A .part without a lock was
 * left by a killed process.
 *
 * The lock belongs to the open file. POSIX record locks would end when the process closes any descriptor of the file,
 * and HDF5 uses flock. On file systems without locks nothing is locked. Before a rename, the .part is therefore checked
 * to be the file that this process created.
 *
 * The list of held files is global, because descriptors belong to the process. */
#include "dtrain/io/io.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_HELD = 128 }; /* limits the number of descriptors; further files are not locked */

/* The file does not exist. The caller's next operation reports a better error. */
static bool is_nothing(int number) { return number == ENOENT || number == ENOTDIR || number == EROFS; }

static struct {
    pthread_mutex_t mutex;
    int n;
    struct {
        char *path;
        int fd;
    } file[MAX_HELD];
} held = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Call with the mutex held. */
static int find_held(const char *path)
{
    for (int i = 0; i < held.n; i++)
        if (strcmp(held.file[i].path, path) == 0) return i;
    return -1;
}

/* Without memory or descriptors the file is used unlocked, as on a file system without locks. */
static dt_err hold(const char *path, int fd)
{
    char *name = strdup(path);
    DT_CHECK(name, DT_ERR_MEMORY, "%s: out of memory for the file's name", path);
    pthread_mutex_lock(&held.mutex);
    const int own = held.n < MAX_HELD ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (own >= 0) held.file[held.n].path = name, held.file[held.n++].fd = own;
    pthread_mutex_unlock(&held.mutex);
    if (own < 0) free(name);
    return DT_OK;
}

static void let_go(const char *path)
{
    pthread_mutex_lock(&held.mutex);
    const int i = find_held(path);
    if (i >= 0) {
        close(held.file[i].fd);
        free(held.file[i].path);
        held.file[i] = held.file[--held.n];
    }
    pthread_mutex_unlock(&held.mutex);
}

static bool is_named(int fd, const char *path)
{
    struct stat open_one, named;
    return fstat(fd, &open_one) == 0 && lstat(path, &named) == 0 && open_one.st_dev == named.st_dev &&
           open_one.st_ino == named.st_ino;
}

/* The descriptor that holds the file; -1: not held by this process. */
static int find_fd(const char *path)
{
    pthread_mutex_lock(&held.mutex);
    const int i = find_held(path), fd = i < 0 ? -1 : held.file[i].fd;
    pthread_mutex_unlock(&held.mutex);
    return fd;
}

/* True if the file still is the one that this process created. Also true for files that it does not hold. */
static bool is_as_made(const char *path)
{
    const int fd = find_fd(path);
    return fd < 0 || is_named(fd, path);
}

static bool has_lock(int fd)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_OFD_SETLK, &whole) == 0;
}

/* Returns false if another process holds the lock. */
static bool lock(int fd) { return has_lock(fd) || (errno != EAGAIN && errno != EACCES); }

/* Remove any file of this name, unless another process is writing it: EBUSY. Only the holder of the lock may remove a
 * file, so it cannot become another process's file between check and removal. */
static int remove_left(const char *path)
{
    struct stat st;
    const bool regular = lstat(path, &st) == 0 && S_ISREG(st.st_mode);
    const int fd = regular ? open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC) : -1;
    int status = 0;
    if (fd >= 0 && (!lock(fd) || !is_named(fd, path)))
        status = EBUSY;
    else if (unlink(path) != 0 && !is_nothing(errno))
        status = errno;
    if (fd >= 0) close(fd);
    return status;
}

static dt_err fail_busy(const char *path)
{
    return dt_fail(DT_ERR_WRITE,
                   "%s: another process is writing this output; wait until it ends, or choose another name", path);
}

/* A file under its final name belongs to any process that writes it, such as a growing record of a run. */
static bool is_aside(const char *path) { return dt_has_ending(path, ".part"); }

dt_err dt_create_file(const char *path, int *fd)
{
    *fd = -1;
    let_go(path);
    errno = is_aside(path) ? remove_left(path) : unlink(path) == 0 || is_nothing(errno) ? 0 : errno;
    if (errno == EBUSY && is_aside(path)) return fail_busy(path);
    if (errno != 0) return dt_fail_errno(DT_ERR_WRITE, path, "the existing file cannot be removed");
    *fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (*fd < 0)
        return is_aside(path) && errno == EEXIST ? fail_busy(path)
                                                 : dt_fail_errno(DT_ERR_WRITE, path, "cannot be created");
    if (!is_aside(path)) return DT_OK;
    /* between creation and lock another process may have removed it as stale */
    const bool ours = lock(*fd) && is_named(*fd, path);
    const dt_err err = ours ? hold(path, *fd) : fail_busy(path);
    if (err == DT_OK) return DT_OK;
    if (ours) unlink(path);
    close(*fd);
    *fd = -1;
    return err;
}

dt_err dt_create_empty_file(const char *path)
{
    int fd;
    DT_TRY(dt_create_file(path, &fd));
    close(fd);
    return DT_OK;
}

void dt_remove_part(const char *path)
{
    if (find_fd(path) < 0)
        (void)remove_left(path);
    else if (is_as_made(path))
        unlink(path);
    let_go(path);
}

void dt_remove_left_part(const char *path)
{
    const int fd = open(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && has_lock(fd) && is_named(fd, path)) unlink(path);
    if (fd >= 0) close(fd);
}

/* A rename is stored in the directory. Until the directory is synced, a power failure may undo it. */
static dt_err sync_folder_of(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    const size_t len = slash == path ? 1 : slash ? (size_t)(slash - path) : 0;
    memcpy(folder, path, len);
    folder[len] = '\0';
    const int fd = open(len ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return dt_fail_errno(DT_ERR_WRITE, path, "cannot open the directory of the file");
    /* EINVAL, EROFS, ENOTSUP: not supported by the file system */
    const bool failed = fsync(fd) != 0 && errno != EINVAL && errno != EROFS && errno != ENOTSUP;
    const dt_err err = failed ? dt_fail_errno(DT_ERR_WRITE, path, "cannot sync the directory of the file") : DT_OK;
    close(fd);
    return err;
}

dt_err dt_rename_file(const char *from, const char *to)
{
    DT_TRY(dt_check_replaceable(to));
    DT_CHECK(strlen(to) < PATH_MAX, DT_ERR_WRITE, "%s: the path is too long", to);
    DT_CHECK(is_as_made(from), DT_ERR_WRITE,
             "%s: another process replaced or removed this file while it was written, so it is not renamed to %s", from,
             to);
    if (rename(from, to) != 0) {
        const int number = errno;
        return dt_fail(DT_ERR_WRITE, "%s: cannot be renamed to %s: %s", from, to, strerror(number));
    }
    let_go(from);
    return DT_OK;
}

dt_err dt_rename_durable(const char *from, const char *to)
{
    DT_TRY(dt_rename_file(from, to));
    return sync_folder_of(to);
}
