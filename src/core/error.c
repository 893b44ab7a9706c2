/* error.c - the first message is kept, because the code that detects an error knows its cause. Later errors, while
 * returning or cleaning up, are consequences. One message per thread, in a fixed buffer, works even without free
 * memory. */
#include "dtrain/core/core.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core_private.h"
#include <sys/stat.h>

enum { MESSAGE_SIZE = 8192 }; /* a message may list many configuration errors */

static _Thread_local char message[MESSAGE_SIZE];

/* Exit codes are those of sysexits.h if one applies (configuration.md). */
static const struct {
    const char *name, *words;
    int exit_code;
} errors[DT_N_ERR] = {
    [DT_OK] = {"DT_OK", "ok", 0},
    [DT_ERR_USAGE] = {"DT_ERR_USAGE", "error in the configuration or command line", 64},
    [DT_ERR_DATA] = {"DT_ERR_DATA", "input missing or invalid", 65},
    [DT_ERR_BASE] = {"DT_ERR_BASE", "base of a checkpoint missing or invalid", 65},
    [DT_ERR_FAULT] = {"DT_ERR_FAULT", "fault in the program or on the device", 70},
    [DT_ERR_ARG] = {"DT_ERR_ARG", "wrong argument inside the program", 70},
    [DT_ERR_MEMORY] = {"DT_ERR_MEMORY", "out of memory", 70},
    [DT_ERR_NONFINITE] = {"DT_ERR_NONFINITE", "loss or weights are not finite", 71},
    [DT_ERR_WRITE] = {"DT_ERR_WRITE", "writing failed", 74},
    [DT_ERR_STOP] = {"DT_ERR_STOP", "stopped on request", 75},
    [DT_ERR_COMM] = {"DT_ERR_COMM", "communication failed", 76},
};

static const char *name_of(dt_err err) { return (unsigned)err < DT_N_ERR ? errors[err].name : "unknown"; }

const char *dt_error_words(dt_err err) { return (unsigned)err < DT_N_ERR ? errors[err].words : "unknown error"; }

int dt_exit_code(dt_err err)
{
    return (unsigned)err < DT_N_ERR ? errors[err].exit_code : errors[DT_ERR_FAULT].exit_code;
}

dt_err(dt_fail)(dt_err err, const char *fmt, ...)
{
    if (message[0]) return err;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    if (n >= MESSAGE_SIZE) memcpy(message + MESSAGE_SIZE - 4, "...", 4);
    if (n <= 0) snprintf(message, sizeof message, "error %s without a message", name_of(err));
    return err;
}

dt_err(dt_fail_errno)(dt_err err, const char *path, const char *what)
{
    const int number = errno;
    struct stat st;
    const char *slash = strrchr(path, '/');
    char *folder = slash && slash > path && number == ENOENT ? strndup(path, (size_t)(slash - path)) : NULL;
    const bool gone = folder && err == DT_ERR_WRITE && stat(folder, &st) != 0;
    err = dt_fail(err, "%s: %s%s%s%s", path, what ? what : "", what ? ": " : "", strerror(number),
                  gone ? " (its directory does not exist; was it removed?)" : "");
    free(folder);
    return err;
}

dt_err(dt_trace)(dt_err err, const char *file, int line, const char *call)
{
    if (dt_log_wants(DT_LOG_DEBUG)) dt_log(DT_LOG_DEBUG, "%s:%d: %s: %s", file, line, name_of(err), call);
    return err;
}

const char *dt_error_message(void) { return message; }

void dt_error_clear(void) { message[0] = '\0'; }

dt_err dt_error_replace(dt_err err, const char *fmt, ...)
{
    char text[MESSAGE_SIZE];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    dt_error_clear();
    return dt_fail(err, "%s", text);
}

static dt_err lead(dt_err err, const char *fmt, va_list args)
{
    char prefix[1024];
    vsnprintf(prefix, sizeof prefix, fmt, args);
    return dt_error_replace(err, "%s%s", prefix, message);
}

dt_err dt_error_lead(dt_err err, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (err != DT_OK) lead(err, fmt, args);
    va_end(args);
    return err;
}

dt_err dt_error_prefix(dt_err err, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (err == DT_ERR_DATA) lead(err, fmt, args);
    va_end(args);
    return err;
}

static bool is_there(const dt_mistakes *m, const char *text)
{
    const size_t n = strlen(text);
    if (n == 0) return true; /* an error without a message adds nothing to the list */
    for (const char *p = m->text; p && (p = strstr(p, text)); p += n)
        if ((p == m->text || p[-1] == '\n') && (p[n] == '\n' || p[n] == '\0')) return true;
    return false;
}

void dt_mistakes_add(dt_mistakes *m, dt_err err)
{
    if (err == DT_OK) return;
    if (m->err == DT_ERR_STOP) { /* input after a stop was not read, so errors about it are not the user's */
        dt_error_clear();
        return;
    }
    if (m->err == DT_OK || dt_exit_code(err) < dt_exit_code(m->err)) m->err = err;
    if (!is_there(m, message)) {
        const size_t have = m->text ? strlen(m->text) + 1 : 0;
        char *longer = realloc(m->text, have + strlen(message) + 1);
        if (longer) {
            if (have) longer[have - 1] = '\n';
            strcpy(longer + have, message);
            m->text = longer;
        }
        m->n++;
    }
    dt_error_clear();
}

dt_err dt_mistakes_end(dt_mistakes *m)
{
    const dt_err err = m->err;
    if (err != DT_OK)
        dt_fail(err, "%s",
                m->text ? m->text : "unknown error: its message is empty, or there was out of memory for it");
    free(m->text);
    *m = (dt_mistakes){0};
    return err;
}
