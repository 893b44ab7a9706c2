/* lock.c - allows one run per directory at a time, also on NFS and Lustre, where flock(2) is unreliable. The lock is a
 * file whose text describes its holder. open(2) with O_EXCL is atomic there, so only one process creates it.
 *
 * After a crash the file remains. It counts as stale in these cases:
 * - same host, boot and pid namespace: the process has ended, or its pid belongs to another process (other start
 *   time);
 * - same batch job before a requeue (same id, lower restart count): the scheduler has ended that process;
 * - otherwise, on other hosts: the file's time has not changed for OBSERVE_S, though a holder refreshes it every
 *   REFRESH_S. Only changes of that time matter, so clocks need not agree. A file older than SURELY_OLD_S is stale
 *   immediately.
 *
 * A process takes over a stale file by writing its own text into it. Several processes may do so. Each reads the file
 * again after SETTLE_S, and the one whose text it contains is the holder. A holder may lose the file by mistake:
 * through --force, or while it was suspended. It notices this at its next refresh and ends. */
#include "dtrain/io/io.h"
#include "dtrain/process/process.h"
#include "neighbours.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { REFRESH_S = 10, OBSERVE_S = 3 * REFRESH_S + 5, SURELY_OLD_S = 600, SETTLE_S = 1, TEXT_SIZE = 1024 };

typedef struct holder {
    /* boot: the kernel's id of this boot; job: "Slurm job 12", "" for none */
    char host[256], boot[64], job[128];
    long long pid, start, space; /* start: start time of the process, in ticks since boot; space: its pid namespace */
    long long restart, since;    /* restart: number of requeues of the job; since: wall-clock time, in seconds */
} holder;

struct dt_lock {
    char dir[PATH_MAX], path[PATH_MAX]; /* path: run.lock */
    char text[TEXT_SIZE];               /* of the file, while this process holds the lock */
    pthread_t thread;
    int stop[2];                     /* pipe; a write ends the thread */
    bool has_thread, written, taken; /* written: path has this process's text; taken: and it has settled */
    /* while another holder is observed */
    struct timespec seen; /* time of the holder's file at the first look */
    double seen_s;
    int n_unread;     /* attempts in which the holder's file could not be read */
    double written_s; /* when this process wrote into a stale file; 0: it did not */
    bool lost;        /* another process took over faster; --force does not apply again */
};

/* ---- holders ----------------------------------------------------------------------------------------------------- */

static void find_job(holder *h)
{
    static const struct {
        const char *name, *id, *restart;
    } schedulers[] = {
        {"Slurm", "SLURM_JOB_ID", "SLURM_RESTART_COUNT"}, {"PBS", "PBS_JOBID", NULL}, {"LSF", "LSB_JOBID", NULL}};
    for (size_t i = 0; i < sizeof schedulers / sizeof schedulers[0]; i++) {
        const char *id = getenv(schedulers[i].id),
                   *restart = schedulers[i].restart ? getenv(schedulers[i].restart) : NULL;
        if (!id || !*id) continue;
        snprintf(h->job, sizeof h->job, "%s job %.100s", schedulers[i].name, id);
        h->restart = restart ? strtoll(restart, NULL, 10) : 0;
        return;
    }
}

static void describe_self(holder *h)
{
    struct stat st;
    char state;
    *h = (holder){.pid = getpid(), .since = (long long)time(NULL)};
    if (gethostname(h->host, sizeof h->host - 1) != 0) snprintf(h->host, sizeof h->host, "unknown");
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!f || fscanf(f, "%63s", h->boot) != 1) snprintf(h->boot, sizeof h->boot, "unknown");
    if (f) fclose(f);
    process_stat(h->pid, &state, &h->start);
    if (stat("/proc/self/ns/pid", &st) == 0) h->space = (long long)st.st_ino;
    find_job(h);
}

static void format(const holder *h, char text[TEXT_SIZE])
{
    snprintf(text, TEXT_SIZE, "host %s\npid %lld\nstart %lld\nboot %s\nspace %lld\njob %s\nrestart %lld\nsince %lld\n",
             h->host, h->pid, h->start, h->boot, h->space, h->job, h->restart, h->since);
}

/* Parse a lock file. Missing entries stay empty; the holder then counts as a process on another host. */
static void parse(const char *text, holder *h)
{
    *h = (holder){.host = "an unknown host"};
    for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        sscanf(line, "host %255[^\n]", h->host);
        sscanf(line, "pid %lld", &h->pid);
        sscanf(line, "start %lld", &h->start);
        sscanf(line, "boot %63[^\n]", h->boot);
        sscanf(line, "space %lld", &h->space);
        sscanf(line, "job%*1[ ]%127[^\n]", h->job); /* may be empty */
        sscanf(line, "restart %lld", &h->restart);
        sscanf(line, "since %lld", &h->since);
    }
}

/* Read a lock file, as text and parsed. If it cannot be read, the text is empty and the holder unknown. */
static dt_err read_lock(const char *path, char text[TEXT_SIZE], holder *h)
{
    char *found = NULL;
    size_t n;
    const dt_err err = dt_read_file(path, TEXT_SIZE, &found, &n);
    snprintf(text, TEXT_SIZE, "%s", err == DT_OK ? found : "");
    free(found);
    parse(text, h);
    return err;
}

/* ---- detection of stale locks ------------------------------------------------------------------------------------ */

typedef enum verdict { ALIVE, STALE, UNSURE } verdict;

static verdict judge_process(const holder *h)
{
    char state;
    long long start;
    if (kill((pid_t)h->pid, 0) != 0 && errno == ESRCH) return STALE;
    if (!process_stat(h->pid, &state, &start)) return ALIVE; /* a process of another user, if /proc hides it */
    return start != h->start || state == 'Z' || state == 'X' ? STALE : ALIVE;
}

/* Judge a holder on another host by its file's time. The file is opened each time: NFS then asks its server, not a
 * cache. */
static verdict judge_time(dt_lock *l)
{
    struct stat st, now;
    const int fd = open(l->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    const bool known = fd >= 0 && fstat(fd, &st) == 0;
    if (fd >= 0) close(fd);
    if (!known) return UNSURE;
    /* touching the directory gives it the file server's present time */
    if (utimensat(AT_FDCWD, l->dir, NULL, 0) == 0 && stat(l->dir, &now) == 0 &&
        now.st_mtim.tv_sec - st.st_mtim.tv_sec > SURELY_OLD_S)
        return STALE;
    if (l->seen_s == 0) {
        l->seen = st.st_mtim, l->seen_s = dt_now_s();
        return UNSURE;
    }
    if (st.st_mtim.tv_sec != l->seen.tv_sec || st.st_mtim.tv_nsec != l->seen.tv_nsec) return ALIVE;
    return dt_now_s() - l->seen_s > OBSERVE_S ? STALE : UNSURE;
}

/* True for a holder on this host, in this boot and pid namespace: its pid is valid here. */
static bool is_here(const holder *mine, const holder *h)
{
    return !strcmp(mine->host, h->host) && !strcmp(mine->boot, h->boot) && mine->space == h->space && h->pid > 0;
}

static verdict judge(dt_lock *l, const holder *mine, const holder *h)
{
    if (*mine->job && !strcmp(mine->job, h->job) && mine->restart > h->restart) return STALE;
    return is_here(mine, h) ? judge_process(h) : judge_time(l);
}

static const char *who(const holder *h, char *out, size_t size)
{
    char when[64] = "an unknown time";
    const time_t since = (time_t)h->since;
    struct tm t;
    if (h->since > 0 && gmtime_r(&since, &t)) strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", &t);
    snprintf(out, size, "process %lld on %s%s%s%s, since %s", h->pid, h->host, *h->job ? " (" : "", h->job,
             *h->job ? ")" : "", when);
    return out;
}

/* Refuse anything but a regular file. Runs create only files, so waiting would not help. */
static dt_err check_is_file(const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0 || S_ISREG(st.st_mode)) return DT_OK;
    const char *kind = S_ISDIR(st.st_mode) ? "a directory" : S_ISLNK(st.st_mode) ? "a symbolic link" : "a special file";
    return dt_fail(DT_ERR_USAGE, "%s: expected the lock file of a run, found %s; remove it, because no run created it",
                   path, kind);
}

dt_lock_state dt_lock_look(const char *dir, char *holder_text, size_t size)
{
    char path[PATH_MAX], text[TEXT_SIZE];
    struct stat st;
    holder mine, h;
    *holder_text = '\0';
    if ((size_t)snprintf(path, sizeof path, "%s/run.lock", dir) >= sizeof path || lstat(path, &st) != 0)
        return DT_LOCK_FREE;
    if (check_is_file(path) != DT_OK || read_lock(path, text, &h) != DT_OK) {
        snprintf(holder_text, size, "%s", dt_error_message());
        dt_error_clear();
        return DT_LOCK_UNREADABLE;
    }
    describe_self(&mine);
    who(&h, holder_text, size);
    const double age_s = difftime(time(NULL), st.st_mtime); /* from two clocks: accurate enough for display */
    const bool alive = is_here(&mine, &h) ? judge_process(&h) == ALIVE : age_s < OBSERVE_S;
    return alive ? DT_LOCK_HELD : DT_LOCK_LEFT;
}

/* ---- taking, on rank 0 ------------------------------------------------------------------------------------------- */

/* Write this process's text into the lock file. create: it must not exist; *exists: it does. */
static dt_err write_text(dt_lock *l, bool create, bool *exists)
{
    const int fd =
        open(l->path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | (create ? O_CREAT | O_EXCL : O_TRUNC), 0666);
    *exists = fd < 0 && create && errno == EEXIST;
    if (*exists) return DT_OK;
    DT_CHECK_ERRNO(fd >= 0, DT_ERR_WRITE, l->path, create ? "cannot be created" : "the lock cannot be taken over");
    l->written = true;
    const dt_err err = dt_close_written(fd, l->path, true, dt_write_at(fd, l->path, 0, l->text, strlen(l->text)));
    if (err != DT_OK && create) unlink(l->path);
    return err;
}

/* Write our text into the stale file. settle checks the result after a while. */
static dt_err take_over(dt_lock *l, const char *judged, const holder *h, bool force)
{
    char text[TEXT_SIZE], name[512];
    holder now;
    bool exists;
    const bool same = read_lock(l->path, text, &now) == DT_OK && !strcmp(text, judged);
    dt_error_clear();
    if (!same && !force) return DT_OK; /* another process was faster */
    DT_TRY(dt_fault("lock.write"));
    DT_TRY(write_text(l, false, &exists));
    l->written_s = dt_now_s();
    who(h, name, sizeof name);
    if (force)
        DT_WARN("--force: taking over %s from %s", l->path, name);
    else
        DT_INFO("taking over %s: its run has ended (%s)", l->path, name);
    return dt_fault("lock.written");
}

/* An unreadable lock gives no information, and waiting for it would never end. A file server may fail to answer
 * temporarily, so a few attempts are made. */
static dt_err cannot_be_read(dt_lock *l)
{
    enum { TURNS = 4 };
    char why[512];
    struct stat st;
    snprintf(why, sizeof why, "%s", dt_error_message());
    dt_error_clear();
    const bool gone = lstat(l->path, &st) != 0 && errno == ENOENT;
    DT_CHECK(gone || ++l->n_unread < TURNS, DT_ERR_USAGE,
             "%s; dtrain needs this file to check whether another run uses this output_dir. If no other run does, "
             "remove the file, or start with --force",
             why);
    return DT_OK;
}

static dt_err look_at_holder(dt_lock *l, const holder *mine, bool force)
{
    char text[TEXT_SIZE], name[512];
    holder h;
    DT_TRY(check_is_file(l->path));
    if (read_lock(l->path, text, &h) != DT_OK && !force) return cannot_be_read(l);
    dt_error_clear();
    l->n_unread = 0;
    const verdict v = force ? STALE : judge(l, mine, &h);
    if (v == STALE) return take_over(l, text, &h, force);
    who(&h, name, sizeof name);
    DT_CHECK(v == UNSURE, DT_ERR_USAGE,
             "another run uses this output_dir: %s (%s). Wait for it, stop it, or choose another run.output_dir. If "
             "that run is certainly dead, take over with --force",
             name, l->path);
    if (l->seen_s > 0 && dt_now_s() - l->seen_s < 0.5)
        DT_INFO("%s was written by %s; checking for %d s whether that run is alive", l->path, name, OBSERVE_S);
    return DT_OK;
}

/* ---- holding ----------------------------------------------------------------------------------------------------- */

static bool is_ours(const dt_lock *l)
{
    char text[TEXT_SIZE + 1] = "";
    const int fd = open(l->path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return errno != ENOENT && errno != ELOOP; /* no conclusion while a file server does not respond */
    const bool known = read(fd, text, TEXT_SIZE) >= 0 || errno == EISDIR;
    close(fd);
    return !known || !strcmp(text, l->text);
}

dt_err dt_lock_check(const dt_lock *l)
{
    DT_CHECK(
        !l || is_ours(l), DT_ERR_WRITE,
        "%s was taken over by another run, moved or removed: this run ends, because both would write to the same files",
        l->path);
    return DT_OK;
}

/* ---- attempts, on rank 0 ----------------------------------------------------------------------------------------- */

/* Has this process's text remained in the file that it took over? */
static void settle(dt_lock *l)
{
    l->written = is_ours(l);
    l->taken = l->written && dt_now_s() - l->written_s > SETTLE_S;
    if (l->written) return;
    l->lost = true;
    l->written_s = 0; /* the next attempt checks the present holder */
}

/* One attempt; l->taken: the lock is taken. */
static dt_err try_to_take(dt_lock *l, const holder *mine, bool force)
{
    bool exists;
    if (l->written_s > 0) return settle(l), DT_OK;
    DT_TRY(write_text(l, true, &exists));
    l->taken = !exists;
    return exists ? look_at_holder(l, mine, force && !l->lost) : DT_OK;
}

/* ---- refreshing -------------------------------------------------------------------------------------------------- */

static void *refresh(void *arg)
{
    dt_lock *l = arg;
    struct pollfd stop = {.fd = l->stop[0], .events = POLLIN};
    while (poll(&stop, 1, 1000 * REFRESH_S) != 1) {
        if (dt_lock_check(l) != DT_OK) {
            dt_log(DT_LOG_ERROR, "%s", dt_error_message());
            dt_comm_abort(dt_exit_code(DT_ERR_WRITE));
        }
        utimensat(AT_FDCWD, l->path, NULL, AT_SYMLINK_NOFOLLOW);
    }
    return NULL;
}

static dt_err hold(dt_lock *l)
{
    DT_CHECK(is_ours(l), DT_ERR_USAGE,
             "%s: another run locked this output_dir at the same moment; start again when that run has ended", l->path);
    l->has_thread = pipe2(l->stop, O_CLOEXEC) == 0 && pthread_create(&l->thread, NULL, refresh, l) == 0;
    DT_CHECK(l->has_thread, DT_ERR_FAULT, "%s: cannot start the thread that refreshes the lock", l->path);
    return DT_OK;
}

static dt_err prepare(dt_lock *l, const char *dir, holder *mine)
{
    describe_self(mine);
    format(mine, l->text);
    DT_CHECK((size_t)snprintf(l->dir, sizeof l->dir, "%s", dir) < sizeof l->dir &&
                 (size_t)snprintf(l->path, sizeof l->path, "%s/run.lock", dir) < sizeof l->path,
             DT_ERR_WRITE, "%s: the path is too long", dir);
    return dt_make_dirs(dir);
}

dt_err dt_lock_take(dt_lock **out, dt_comm *comm, const char *dir, bool force, dt_phase *phase)
{
    holder mine;
    dt_err err = dt_fault("lock.take");
    dt_lock *l = dt_comm_first(comm) && err == DT_OK ? calloc(1, sizeof *l) : NULL;
    if (dt_comm_first(comm) && err == DT_OK)
        err = l ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the lock of %s", dir);
    if (l) l->stop[0] = l->stop[1] = -1;
    *out = l;
    if (err == DT_OK && l) err = prepare(l, dir, &mine);
    err = dt_comm_agree(comm, err);
    /* All ranks take part in every attempt: a rank that waits long must show progress to its watchdog. */
    for (bool taken = false; err == DT_OK && !taken;) {
        dt_phase_enter(phase, "lock", "");
        if (l) err = try_to_take(l, &mine, force), taken = l->taken;
        if (err == DT_OK) err = dt_phase_poll(phase); /* a waiting process may be asked to end */
        if ((err = dt_comm_agree(comm, err)) == DT_OK) err = dt_comm_broadcast_host(comm, &taken, sizeof taken, 0);
        if (err == DT_OK && !taken) nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
    }
    if (err == DT_OK) err = dt_comm_agree(comm, l ? hold(l) : DT_OK);
    return err;
}

void dt_lock_release(dt_lock *l)
{
    if (!l) return;
    if (l->has_thread && write(l->stop[1], "", 1) == 1) pthread_join(l->thread, NULL);
    for (int i = 0; i < 2; i++)
        if (l->stop[i] >= 0) close(l->stop[i]);
    if (l->written && is_ours(l)) unlink(l->path);
    free(l);
}
