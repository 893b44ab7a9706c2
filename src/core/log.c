/* log.c - log output. Each line is one write(2), so that lines of several ranks do not mix in mpirun's pipe. stdio is
 * flushed first, to keep the order with the program's own output. */
#include "dtrain/core/core.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core_private.h"

static struct {
    const char *program;
    int rank, nranks;
    char host[64];
    atomic_bool stdout_lost; /* reported once */
    atomic_int level;        /* 0: the environment is not read yet; otherwise 1 + dt_log_level */
} who = {.program = "dtrain", .nranks = 1};

static int level_from_environment(void)
{
    static const char *const words[] = {"error", "warn", "info", "debug"};
    const char *asked = getenv("DTRAIN_LOG");
    for (int i = 0; asked && i < 4; i++)
        if (strcmp(asked, words[i]) == 0) return i;
    return DT_LOG_INFO;
}

bool dt_log_wants(dt_log_level level)
{
    int known = atomic_load_explicit(&who.level, memory_order_relaxed);
    if (known == 0) atomic_store_explicit(&who.level, known = 1 + level_from_environment(), memory_order_relaxed);
    return (int)level < known;
}

void dt_log_name(const char *program) { who.program = program; }

const char *dt_log_program(void) { return who.program; }

int dt_log_rank(void) { return who.rank; }

void dt_log_open(int rank, int nranks, const char *host)
{
    who.rank = rank;
    who.nranks = nranks;
    snprintf(who.host, sizeof who.host, "%s", host ? host : "");
    atomic_store(&who.level, 1 + level_from_environment());
}

static bool write_all(int fd, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t w = write(fd, text, n);
        /* the reader has exited: the run continues without a log */
        if (w < 0 && errno != EINTR && errno != EAGAIN) return false;
        if (w > 0) text += w, n -= (size_t)w;
    }
    return true;
}

void dt_log_stdout_lost(void)
{
    if (atomic_exchange(&who.stdout_lost, true)) return;
    DT_WARN("cannot write to standard output (%s): the run continues without it", strerror(errno));
}

static int print_head(dt_log_level level, char *out, size_t size)
{
    static const char *const words[] = {"error: ", "warning: ", "", "debug: "};
    if (level == DT_LOG_INFO) return 0;
    if (who.nranks == 1) return snprintf(out, size, "%s: %s", who.program, words[level]);
    return snprintf(out, size, "%s: [rank %d %s] %s", who.program, who.rank, who.host, words[level]);
}

/* Every line starts with the program's name and rank. */
static void log_each_line(dt_log_level level, const char *text)
{
    for (size_t n; *text; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        dt_log(level, "%.*s", (int)n, text);
    }
}

void dt_log(dt_log_level level, const char *fmt, ...)
{
    if (!dt_log_wants(level) || (level == DT_LOG_INFO && who.rank != 0)) return;

    char small[1024], *line = small;
    size_t size = sizeof small, head = (size_t)print_head(level, small, sizeof small);
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int body = vsnprintf(small + head, size - head, fmt, args);
    va_end(args);
    if (body < 0) body = 0;
    size_t len = head + (size_t)body;
    if (len + 2 > size) {
        line = malloc(len + 2);
        if (line) {
            memcpy(line, small, head);
            vsnprintf(line + head, len + 2 - head, fmt, again);
        } else {
            line = small;
            len = size - 2;
        }
    }
    va_end(again);
    line[len] = '\0';
    if (head > 0 && strchr(line + head, '\n')) {
        log_each_line(level, line + head);
        if (line != small) free(line);
        return;
    }
    line[len] = '\n';
    fflush(stdout);
    if (!write_all(level == DT_LOG_INFO ? STDOUT_FILENO : STDERR_FILENO, line, len + 1) && level == DT_LOG_INFO)
        dt_log_stdout_lost();
    if (line != small) free(line);
}
