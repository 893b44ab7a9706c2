/* program.c - one process and its three pipes. */
#include "program.h"
#include "dtrain/io/json.h"
#include "dtrain/rollout/rollout.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { MOST_REMARK = 400 }; /* displayed bytes of a line of its error output */

/* ---- command ----------------------------------------------------------------------------------------------------- */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static bool is_interpreter(const char *program)
{
    static const char *const names[] = {"python", "bash", "sh", "perl", "ruby", "node", "Rscript", "env"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const size_t n = strlen(names[i]);
        if (strncmp(program, names[i], n) == 0 && strspn(program + n, "0123456789.") == strlen(program + n))
            return true;
    }
    return false;
}

/* The name to report: the first word after an interpreter that is neither an option nor a variable. */
static const char *program_of(const wordexp_t *w)
{
    size_t found = 0;
    for (size_t i = 1; i < w->we_wordc && is_interpreter(base_name(w->we_wordv[found])); i++)
        if (w->we_wordv[i][0] != '-' && !strchr(w->we_wordv[i], '=')) found = i;
    return base_name(w->we_wordv[found]);
}

static bool can_run(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* Searches PATH like execvp. */
static bool is_found(const char *program)
{
    if (strchr(program, '/')) return can_run(program);
    const char *path = getenv("PATH");
    for (const char *p = path ? path : "/bin:/usr/bin"; p; p = strchr(p, ':') ? strchr(p, ':') + 1 : NULL) {
        char *file = NULL;
        const int n = (int)strcspn(p, ":");
        const bool found = asprintf(&file, "%.*s%s%s", n, p, n ? "/" : "", program) >= 0 && can_run(file);
        free(file);
        if (found) return true;
    }
    return false;
}

static dt_err parse(dt_program *p, const char *command, bool look)
{
    const int status = wordexp(command, &p->words, WRDE_NOCMD | WRDE_UNDEF);
    p->parsed = status == 0;
    DT_CHECK(status != WRDE_NOSPACE, DT_ERR_MEMORY, "out of memory for the words of a command");
    DT_CHECK(status != WRDE_BADVAL, DT_ERR_USAGE, "command:%s: an environment variable is not set", command);
    DT_CHECK(status == 0, DT_ERR_USAGE,
             "command:%s: expected a program and its arguments, found shell syntax; quote | & ; < > ( ) { } and $( ), "
             "or put the command in a script",
             command);
    DT_CHECK(p->words.we_wordc > 0, DT_ERR_USAGE, "command:%s: expected command:PROGRAM ARGS", command);
    const char *program = p->words.we_wordv[0];
    DT_CHECK(!look || is_found(program), DT_ERR_USAGE, "command:%s: %s does not exist, or is not executable%s", command,
             program,
             access(program, F_OK) == 0 ? "; for a file in this folder, use ./NAME if it is executable, or python3 NAME"
                                        : "");
    return DT_OK;
}

dt_err dt_program_open(dt_program *p, const char *command, bool look)
{
    *p = (dt_program){.input = -1, .output = -1, .error = -1, .life = -1};
    p->command = strdup(command);
    DT_CHECK(p->command, DT_ERR_MEMORY, "out of memory for a command");
    DT_TRY(parse(p, command, look));
    snprintf(p->name, sizeof p->name, "%s", program_of(&p->words));
    return DT_OK;
}

/* ---- starting ---------------------------------------------------------------------------------------------------- */

/* Launcher variables are removed, because a program that uses MPI itself is not a rank of this job. */
static bool is_of_launcher(const char *variable)
{
    static const char *const prefixes[] = {"OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "MPI_LOCAL", "DTRAIN_"};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (strncmp(variable, prefixes[i], strlen(prefixes[i])) == 0) return true;
    return false;
}

/* Prevents Python from buffering its answers. */
static dt_err make_environment(char ***env, char own[3][40], int rank, int nranks, int local_rank)
{
    size_t n = 0, kept = 0;
    while (environ[n]) n++;
    *env = calloc(n + 5, sizeof **env);
    DT_CHECK(*env, DT_ERR_MEMORY, "out of memory for an environment");
    for (size_t i = 0; i < n; i++)
        if (!is_of_launcher(environ[i]) && strncmp(environ[i], "PYTHONUNBUFFERED=", 17) != 0)
            (*env)[kept++] = environ[i];
    snprintf(own[0], sizeof own[0], "DTRAIN_RANK=%d", rank);
    snprintf(own[1], sizeof own[1], "DTRAIN_NRANKS=%d", nranks);
    snprintf(own[2], sizeof own[2], "DTRAIN_LOCAL_RANK=%d", local_rank);
    for (int i = 0; i < 3; i++) (*env)[kept++] = own[i];
    (*env)[kept] = (char *)"PYTHONUNBUFFERED=1";
    return DT_OK;
}

/* Closes other descriptors in the new process: those of MPI, of files and of other programs' pipes. */
static int close_others(posix_spawn_file_actions_t *actions)
{
#if defined __GLIBC__ && __GLIBC_PREREQ(2, 34)
    return posix_spawn_file_actions_addclosefrom_np(actions, 3);
#else
    const int n = (int)sysconf(_SC_OPEN_MAX), most = n > 0 && n < 65536 ? n : 65536;
    for (int fd = 3; fd < most; fd++) {
        const int flags = fcntl(fd, F_GETFD);
        if (flags >= 0) fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
    }
    return 0;
#endif
}

/* The program gets its own process group and default signal handling, because this process blocks the signals that
 * request a stop. A signal that a batch system sends to every process of the job (SIGUSR1, before its end) must not
 * terminate the program. */
static int set_attributes(posix_spawnattr_t *a)
{
    sigset_t mask, by_default;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    sigemptyset(&by_default);
    static const int signals[] = {SIGPIPE, SIGXFSZ, SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGHUP};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) sigaddset(&by_default, signals[i]);
    int why = posix_spawnattr_setflags(a, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (why == 0) why = posix_spawnattr_setpgroup(a, 0);
    if (why == 0) why = posix_spawnattr_setsigmask(a, &mask);
    return why ? why : posix_spawnattr_setsigdefault(a, &by_default);
}

/* fd: the standard descriptors of the new process; none of them is 0, 1 or 2. Returns an errno. */
static int spawn(pid_t *pid, char *const argv[], char *const env[], const int fd[3])
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int why = posix_spawn_file_actions_init(&actions);
    if (why) return why;
    if ((why = posix_spawnattr_init(&attributes)) == 0) {
        why = set_attributes(&attributes);
        for (int i = 0; i < 3 && why == 0; i++) why = posix_spawn_file_actions_adddup2(&actions, fd[i], i);
        if (why == 0) why = close_others(&actions);
        if (why == 0) why = posix_spawnp(pid, argv[0], &actions, &attributes, argv, env);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return why;
}

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* A pipe whose ends are not standard descriptors, which this process may have closed. */
static bool make_pipe(int ends[2])
{
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    for (int i = 0; i < 2; i++) {
        if (ends[i] > 2) continue;
        const int higher = fcntl(ends[i], F_DUPFD_CLOEXEC, 3);
        close(ends[i]);
        ends[i] = higher;
    }
    return ends[0] >= 0 && ends[1] >= 0;
}

/* pipes: input, output, error. p takes over this process's ends and closes them. */
static dt_err start_process(dt_program *p, char *const env[], int pipes[3][2])
{
    for (int i = 0; i < 3; i++)
        if (!make_pipe(pipes[i])) return dt_fail_errno(DT_ERR_FAULT, p->name, "cannot create a pipe to it");
    const int theirs[3] = {pipes[0][0], pipes[1][1], pipes[2][1]};
    int *const ours[3] = {&p->input, &p->output, &p->error};
    const int why = spawn(&p->pid, p->words.we_wordv, env, theirs);
    if (why) p->pid = 0;
    const bool is_none = why == ENOEXEC || why == ENOENT || why == EACCES;
    DT_CHECK(why == 0, is_none ? DT_ERR_USAGE : DT_ERR_FAULT, "command:%s: cannot start it: %s%s", p->command,
             strerror(why), is_none ? "; the first line of a script must name its interpreter, such as #!/bin/sh" : "");
    for (int i = 0; i < 3; i++) {
        *ours[i] = pipes[i][i == 0];
        pipes[i][i == 0] = -1;
        fcntl(*ours[i], F_SETFL, O_NONBLOCK);
    }
    return DT_OK;
}

/* The guard's read returns when this process ends, for any reason. */
static dt_err start_guard(dt_program *p, char *const env[])
{
    static const char script[] = "read -r line || { kill -s TERM -- \"-$1\"; sleep 1; kill -s KILL -- \"-$1\"; }";
    char group[24];
    int ends[2] = {-1, -1}, nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
    snprintf(group, sizeof group, "%ld", (long)p->pid);
    char *const argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)script, (char *)"dtrain-guard", group, NULL};
    const bool made = make_pipe(ends) && nothing >= 0;
    const int why = made ? spawn(&p->guard, argv, env, (const int[3]){ends[0], nothing, nothing}) : errno;
    if (why) p->guard = 0;
    close_fd(&nothing);
    close_fd(&ends[0]);
    p->life = ends[1];
    DT_CHECK(why == 0, DT_ERR_FAULT, "command:%s: cannot start its guard process: %s", p->command, strerror(why));
    return DT_OK;
}

dt_err dt_program_start(dt_program *p, int rank, int nranks, int local_rank)
{
    char **env, own[3][40];
    int pipes[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}};
    DT_TRY(make_environment(&env, own, rank, nranks, local_rank));
    dt_err err = start_process(p, env, pipes);
    for (int i = 0; i < 3; i++) close_fd(&pipes[i][0]), close_fd(&pipes[i][1]);
    if (err == DT_OK) err = start_guard(p, env);
    free(env);
    return err;
}

/* ---- ending ------------------------------------------------------------------------------------------------------ */

static void sleep_ms(long ms) { nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL); }

/* True if it ends within most_s seconds. It stays a zombie, so that its group id is not reused. */
static bool has_ended(pid_t pid, double most_s)
{
    const double until_s = dt_now_s() + most_s;
    for (;;) {
        siginfo_t info = {0};
        if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == pid) return true;
        if (dt_now_s() >= until_s) return false;
        sleep_ms(5);
    }
}

static int reap(pid_t *pid)
{
    int status = 0;
    while (*pid > 0 && waitpid(*pid, &status, 0) < 0 && errno == EINTR) continue;
    *pid = 0;
    return status;
}

/* End the process group of a program, including its children. */
static void end_group(pid_t *pid)
{
    if (*pid <= 0) return;
    if (!has_ended(*pid, 1)) kill(-*pid, SIGTERM);
    if (!has_ended(*pid, 1)) DT_DEBUG("process %ld did not end and was killed", (long)*pid);
    kill(-*pid, SIGKILL);
    reap(pid);
}

void dt_program_close(dt_program *p)
{
    if (!p->command) return;
    close_fd(&p->input);
    end_group(&p->pid);
    if (p->guard > 0) kill(p->guard, SIGKILL);
    reap(&p->guard);
    close_fd(&p->life);
    close_fd(&p->output);
    close_fd(&p->error);
    free(p->request.text);
    free(p->answer.text);
    free(p->remark.text);
    if (p->parsed) wordfree(&p->words);
    free(p->command);
    *p = (dt_program){.input = -1, .output = -1, .error = -1, .life = -1};
}

/* ---- output of a program ----------------------------------------------------------------------------------------- */

static dt_err append(dt_program_line *l, const char *bytes, size_t n)
{
    if (l->n + n + 1 > l->n_alloc) {
        const size_t want = 2 * (l->n + n + 1);
        char *more = realloc(l->text, want);
        DT_CHECK(more, DT_ERR_MEMORY, "out of memory for a line of %zu bytes", want);
        l->text = more;
        l->n_alloc = want;
    }
    memcpy(l->text + l->n, bytes, n);
    l->n += n;
    l->text[l->n] = '\0';
    return DT_OK;
}

/* Add a line to the last lines, truncated to MOST_REMARK. */
static void remember(dt_program *p, const char *line)
{
    char kept[MOST_REMARK + 8];
    const int n = snprintf(kept, sizeof kept, "\n    %.*s", MOST_REMARK, line);
    const size_t n_kept = (size_t)(n < (int)sizeof kept ? n : (int)sizeof kept - 1);
    while (p->n_tail + n_kept >= sizeof p->tail) { /* drop the oldest lines */
        const char *next = memchr(p->tail + 1, '\n', p->n_tail - 1);
        const size_t gone = next ? (size_t)(next - p->tail) : p->n_tail;
        memmove(p->tail, p->tail + gone, p->n_tail - gone);
        p->n_tail -= gone;
    }
    memcpy(p->tail + p->n_tail, kept, n_kept + 1);
    p->n_tail += n_kept;
}

static dt_err fail(const dt_program *p, const char *what)
{
    return dt_fail(DT_ERR_DATA, "command:%s: %s%s%s", p->command, what,
                   p->n_tail ? "; its last lines:" : " (it printed nothing)", p->n_tail ? p->tail : "");
}

static dt_err take_remark(dt_program *p, const char *line)
{
    DT_INFO("%s: %s", p->name, line);
    remember(p, line);
    return DT_OK;
}

/* A reward: a number, or null. */
static dt_err take_reward(dt_program *p, const char *line, dt_complaint *what)
{
    json_t *json = NULL;
    const dt_err err = dt_json_parse(&json, "", line, strlen(line), DT_JSON_ANY | DT_JSON_RECORD);
    if (err == DT_ERR_MEMORY) return err;
    dt_error_clear();
    const double x = json_is_null(json) ? (double)NAN : json_number_value(json);
    const bool good = json_is_null(json) || (json_is_number(json) && fabs(x) <= DT_MOST_REWARD);
    if (!good)
        snprintf(what->text, sizeof what->text, "expected %s or null",
                 json_is_number(json) ? "a number from -1e30 to 1e30" : "a number");
    json_decref(json);
    p->reward[p->n_answered * p->stride] = x;
    return DT_OK;
}

static dt_err take_answer(dt_program *p, const char *line)
{
    dt_complaint what = {""};
    char full[sizeof what.text + 80];
    remember(p, line);
    if (p->n_answered == p->n_asked) return fail(p, "it sent an answer without a request");
    DT_TRY(p->take ? p->take(p->taker, line, &what) : take_reward(p, line, &what));
    snprintf(full, sizeof full, "answer %" PRId64 " of %" PRId64 ": %s", p->n_answered + 1, p->n, what.text);
    if (*what.text) return fail(p, full);
    p->n_answered++;
    p->since_s = dt_now_s();
    return DT_OK;
}

/* Pass each complete line in the new bytes to `take`; keep the incomplete rest. */
static dt_err cut_lines(dt_program *p, dt_program_line *l, const char *bytes, size_t n,
                        dt_err (*take)(dt_program *, const char *))
{
    for (const char *end; n > 0 && (end = memchr(bytes, '\n', n));) {
        const size_t k = (size_t)(end - bytes);
        DT_TRY(append(l, bytes, k));
        if (l->n > 0 && l->text[l->n - 1] == '\r') l->text[--l->n] = '\0';
        l->n = 0;
        DT_TRY(take(p, l->text));
        bytes += k + 1, n -= k + 1;
    }
    if (n > 0) DT_TRY(append(l, bytes, n));
    if (l->n <= DT_PROGRAM_LINE) return DT_OK;
    l->n = 0;
    return take(p, l->text);
}

/* Read all available output, at most the capacity of the pipe. A program that writes endlessly continues in the next
 * interval. Closes the descriptor at the end of the file. */
static dt_err read_all(dt_program *p, int *fd, dt_program_line *l, dt_err (*take)(dt_program *, const char *))
{
    enum { MOST_OF_A_PIPE = 1 << 16 };
    char bytes[1 << 14];
    for (size_t n_read = 0; *fd >= 0 && n_read < MOST_OF_A_PIPE;) {
        const ssize_t n = read(*fd, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return DT_OK;
        if (n > 0) {
            n_read += (size_t)n;
            DT_TRY(cut_lines(p, l, bytes, (size_t)n, take));
            continue;
        }
        close_fd(fd);
        if (l->n == 0) return DT_OK; /* otherwise process a last line without newline */
        l->n = 0;
        return take(p, l->text);
    }
    return DT_OK;
}

/* The program closed its output or input: reports its last lines and its exit. */
static dt_err has_gone(dt_program *p)
{
    char what[160], how[64];
    snprintf(how, sizeof how, "it closed its %s", p->output < 0 ? "output" : "input");
    const double until_s = dt_now_s() + 0.5; /* other processes that live on may hold its error output open */
    while (p->error >= 0 && dt_now_s() < until_s) {
        poll(&(struct pollfd){.fd = p->error, .events = POLLIN}, 1, 20);
        DT_TRY(read_all(p, &p->error, &p->remark, take_remark));
    }
    if (has_ended(p->pid, 0.5)) {
        kill(-p->pid, SIGKILL); /* kill the rest of its group */
        const int status = reap(&p->pid);
        if (WIFSIGNALED(status))
            snprintf(how, sizeof how, "signal %d (%s) ended it", WTERMSIG(status), strsignal(WTERMSIG(status)));
        else
            snprintf(how, sizeof how, "it ended with exit status %d", WEXITSTATUS(status));
    }
    snprintf(what, sizeof what, "%s after %" PRId64 " of %" PRId64 " answers", how, p->n_answered, p->n);
    return fail(p, what);
}

/* ---- the exchange ------------------------------------------------------------------------------------------------ */

/* Writing to a program that has exited returns an error instead of terminating this process with SIGPIPE. */
static ssize_t write_quietly(int fd, const char *bytes, size_t n)
{
    sigset_t pipe_signal, before, pending;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    sigpending(&pending);
    const bool was_pending = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    const ssize_t written = write(fd, bytes, n);
    const int why = errno;
    if (written < 0 && why == EPIPE && !was_pending) sigtimedwait(&pipe_signal, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = why;
    return written;
}

static dt_err next_request(dt_program *p, dt_request_fn request, void *self)
{
    char *line = NULL;
    DT_TRY(request(self, p->n_asked, &line));
    p->request.n = p->written = 0;
    dt_err err = append(&p->request, line, strlen(line));
    if (err == DT_OK) err = append(&p->request, "\n", 1);
    free(line);
    return err;
}

/* Writes as many requests as the pipe accepts. */
static dt_err write_all(dt_program *p, dt_request_fn request, void *self)
{
    while (p->input >= 0 && p->n_asked < p->n) {
        if (p->request.n == 0) DT_TRY(next_request(p, request, self));
        const ssize_t n = write_quietly(p->input, p->request.text + p->written, p->request.n - p->written);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return DT_OK;
        if (n < 0) {
            close_fd(&p->input); /* the remaining output is still read */
            return DT_OK;
        }
        p->written += (size_t)n;
        if (p->written < p->request.n) continue;
        p->request.n = 0;
        p->n_asked++;
    }
    return DT_OK;
}

void dt_program_begin(dt_program *p, int64_t n, double *reward, int stride)
{
    p->n = n;
    p->reward = reward, p->stride = stride;
    p->n_asked = p->n_answered = 0;
    p->since_s = dt_now_s();
}

void dt_program_add(dt_program *p, dt_answer_fn take, void *taker)
{
    if (p->n_answered == p->n) p->since_s = dt_now_s();
    p->take = take, p->taker = taker;
    p->n++;
}

dt_err dt_program_go_on(dt_program *p, dt_request_fn request, void *self, double timeout_s, bool *done)
{
    *done = false;
    DT_TRY(read_all(p, &p->error, &p->remark, take_remark));
    DT_TRY(read_all(p, &p->output, &p->answer, take_answer));
    DT_TRY(write_all(p, request, self));
    if (p->output < 0 || (p->input < 0 && p->n_asked < p->n)) {
        DT_TRY(read_all(p, &p->output, &p->answer, take_answer));
        if (p->n_answered < p->n) return has_gone(p);
    }
    *done = p->n_answered == p->n;
    if (*done || dt_now_s() - p->since_s <= timeout_s) return DT_OK;
    char what[160];
    snprintf(what, sizeof what,
             "no answer for %.0f s (comm.timeout), after %" PRId64 " of %" PRId64
             "; check that it reads each line and flushes each answer immediately",
             timeout_s, p->n_answered, p->n);
    return fail(p, what);
}

int dt_program_waits_for(const dt_program *p, struct pollfd *fds)
{
    int n = 0;
    if (p->output >= 0) fds[n++] = (struct pollfd){.fd = p->output, .events = POLLIN};
    if (p->error >= 0) fds[n++] = (struct pollfd){.fd = p->error, .events = POLLIN};
    if (p->input >= 0 && p->n_asked < p->n) fds[n++] = (struct pollfd){.fd = p->input, .events = POLLOUT};
    return n;
}
