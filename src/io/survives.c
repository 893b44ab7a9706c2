/* survives.c - HDF5 1.10 may crash, or loop forever, on corrupt metadata. For a file without a seal, a child process
 * therefore lists it first; only the child crashes. */
#include "dtrain/io/io.h"
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIMIT_S = 60 };

static dt_err inspect(hid_t dset, const char *name, void *path)
{
    dt_h5_array a;
    if (dt_h5_inspect(dset, path, name, &a) != DT_OK) dt_error_clear();
    return DT_OK;
}

/* Detects only crashes: errors that HDF5 reports are reported again in the parent. */
static void list(const char *path)
{
    hid_t file;
    signal(SIGSEGV, SIG_DFL);
    alarm(LIMIT_S);
    if (dt_h5_open(path, &file, NULL) == DT_OK) dt_h5_each_array(file, path, inspect, (void *)path);
    _exit(0);
}

dt_err dt_h5_survives(const char *path)
{
    int status = 0;
    bool sealed;
    DT_TRY(dt_h5_check_seal(path, &sealed));
    if (sealed) return DT_OK;
    fflush(NULL);
    const pid_t child = fork();
    DT_CHECK(child >= 0, DT_ERR_FAULT, "%s: cannot start a process to test the file: %s", path, strerror(errno));
    if (child == 0) list(path);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    DT_CHECK(!WIFSIGNALED(status), DT_ERR_DATA,
             "%s: the file is damaged: HDF5 %s while listing it, and it has no header checksum", path,
             WTERMSIG(status) == SIGALRM ? "hangs" : "crashes");
    return DT_OK;
}
