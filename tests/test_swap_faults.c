/* test_swap_faults.c - the file of offloaded states when the disk, the kernel or the system fails, for real or by
 * injection; by every way that transfers can take.
 *
 * Faults of DTRAIN_FAULT are read once in a process and seccomp's filters cannot be taken back, so these are other
 * processes: this program again, with the name of a child (children[]) in its command line. */
#include "swap_fixture.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static const char *program;

/* ---- failures that are real -------------------------------------------------------------------------------------- */

/* "/proc/self/fd/N" of the only open file in the folder. */
static void behind_its_back(char *path)
{
    char target[PATH_MAX];
    for (int fd = 3; fd < 256; fd++) {
        snprintf(path, 40, "/proc/self/fd/%d", fd);
        const ssize_t n = readlink(path, target, sizeof target);
        if (n > 0 && strncmp(target, folder, strlen(folder)) == 0 && strstr(target, "(deleted)")) return;
    }
    fail_msg("the file is not among the open ones");
}

/* One request to each quarter: half is cut off in the middle of the third. */
TEST(a_file_that_was_cut_short_fails_what_reads_there)
{
    enum { Q = MIB };
    char path[40], *memory = blocks(4 * Q), *zeros = calloc(1, 2 * Q);
    dt_swap_request r[4] = {0};
    memset(memory, 1, 4 * Q);
    dt_swap_file *f = open_file(4 * Q, 4);
    behind_its_back(path);
    assert_int_equal(truncate(path, 2 * Q + 5 * BLOCK + 100), 0);
    for (int k = 0; k < 4; k++) is_ok(dt_swap_read(f, k * Q, memory + k * Q, Q, &r[k]));
    is_ok(dt_swap_wait(f, &r[0]));
    fails(dt_swap_wait(f, &r[3]), DT_ERR_WRITE,
          "the moments: 1048576 bytes at offset 3145728 of an unnamed file: the file ends there");
    is_ok(dt_swap_wait(f, &r[1]));
    fails(dt_swap_wait(f, &r[2]), DT_ERR_WRITE, "the file ends there");
    is_ok(dt_swap_wait(f, &r[2])); /* it was told */
    assert_memory_equal(memory, zeros, 2 * Q);
    is_ok(dt_swap_read(f, 0, memory + Q, Q, &r[3])); /* it continues */
    is_ok(dt_swap_wait(f, &r[3]));
    fails(dt_swap_read_bytes(f, 2 * Q, memory, Q), DT_ERR_WRITE, "cannot read");
    dt_swap_close(f);
    free(memory);
    free(zeros);
}

TEST(a_limit_on_files_fails_the_write_with_its_reason)
{
    char *memory = blocks(2 * MIB);
    dt_swap_request r[2] = {0};
    struct rlimit old, low;
    dt_swap_file *f = open_file(2 * MIB, 2);
    fill(memory, 2 * MIB, 5);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN); /* as the programs have it */
    getrlimit(RLIMIT_FSIZE, &old);
    low = (struct rlimit){.rlim_cur = MIB + 16 * BLOCK, .rlim_max = old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &low);
    is_ok(dt_swap_write(f, MIB, memory + MIB, MIB, &r[1]));
    is_ok(dt_swap_write(f, 0, memory, MIB, &r[0]));
    const dt_err second = dt_swap_wait(f, &r[1]);
    setrlimit(RLIMIT_FSIZE, &old);
    fails(second, DT_ERR_WRITE,
          "cannot write the moments: 1048576 bytes at offset 1048576 of an unnamed file: File too large (at offset "
          "1114112)");
    is_ok(dt_swap_wait(f, &r[0]));
    signal(SIGXFSZ, handler);
    char *found = blocks(MIB);
    is_ok(dt_swap_read_bytes(f, 0, found, MIB));
    assert_memory_equal(found, memory, MIB);
    dt_swap_close(f);
    free(memory);
    free(found);
}

TEST(a_folder_that_cannot_be_used_is_named_with_the_reason)
{
    dt_swap_file *f = NULL;
    char file[80], missing[80];
    dt_swap_options opt = options(BLOCK, 1);
    snprintf(missing, sizeof missing, "%s/missing", folder);
    opt.dir = missing;
    fails(dt_swap_open(&f, &opt), DT_ERR_WRITE,
          "missing: cannot create a file for the moments: No such file or directory");
    snprintf(file, sizeof file, "%s/file", folder);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    opt.dir = file;
    fails(dt_swap_open(&f, &opt), DT_ERR_WRITE, "file: cannot create a file for the moments: Not a directory");
    unlink(file);
    opt = options((size_t)1 << 60, 1);
    fails(dt_swap_open(&f, &opt), DT_ERR_WRITE, "not enough space for the moments of");
    assert_null(f);
    setenv("DTRAIN_SWAP_IO", "pigeons", 1);
    opt = options(BLOCK, 1);
    fails(dt_swap_open(&f, &opt), DT_ERR_USAGE, "DTRAIN_SWAP_IO=pigeons");
    setenv("DTRAIN_SWAP_IO", *state, 1);
}

/* ---- other processes --------------------------------------------------------------------------------------------- */

/* This program again with arguments and a fault; its status. */
static int run_child(const char *name, const char *fault)
{
    const pid_t pid = fork();
    if (pid == 0) {
        if (fault) setenv("DTRAIN_FAULT", fault, 1);
        execl(program, program, name, folder, (char *)NULL);
        _exit(126);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return status;
}

static void child_succeeds(const char *name, const char *fault)
{
    const int status = run_child(name, fault);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        print_message("%s: not permitted here\n", name);
        skip();
    }
    if (status != 0) fail_msg("%s with %s: status %#x", name, fault ? fault : "no fault", status);
}

#define EXPECT(cond)                                                                                                   \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "%s:%d: %s; %s\n", __FILE__, __LINE__, #cond, dt_error_message());                         \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static bool failed(dt_err err, const char *words)
{
    const bool ok = err == DT_ERR_WRITE && strstr(dt_error_message(), words);
    if (!ok) fprintf(stderr, "expected \"%s\", found %d and \"%s\"\n", words, err, dt_error_message());
    dt_error_clear();
    return ok;
}

/* Four writes, four reads; those of the second quarter fail as DTRAIN_FAULT has it, the others do not. */
static int child_fault(void)
{
    dt_swap_file *f = NULL;
    dt_swap_request r[4] = {0};
    const dt_swap_options opt = options(4 * MIB, 1); /* one after the other: the second is the second */
    char *out = aligned_alloc(BLOCK, 4 * MIB), *in = aligned_alloc(BLOCK, 4 * MIB);
    EXPECT(dt_swap_open(&f, &opt) == DT_OK);
    fill(out, 4 * MIB, 11);
    for (int k = 0; k < 4; k++) EXPECT(dt_swap_write(f, k * MIB, out + k * MIB, MIB, &r[k]) == DT_OK);
    EXPECT(dt_swap_wait(f, &r[0]) == DT_OK);
    EXPECT(failed(dt_swap_wait(f, &r[1]), "cannot write the moments: 1048576 bytes at offset 1048576 of an unnamed "
                                          "file: No space left on device (at offset 1048576)"));
    for (int k = 2; k < 4; k++) EXPECT(dt_swap_wait(f, &r[k]) == DT_OK);
    EXPECT(dt_swap_write(f, MIB, out + MIB, MIB, &r[1]) == DT_OK && dt_swap_wait(f, &r[1]) == DT_OK);

    for (int k = 0; k < 4; k++) EXPECT(dt_swap_read(f, k * MIB, in + k * MIB, MIB, &r[k]) == DT_OK);
    for (int k = 3; k >= 0; k--)
        EXPECT(k == 1 ? failed(dt_swap_wait(f, &r[1]), "Input/output error") : dt_swap_wait(f, &r[k]) == DT_OK);
    EXPECT(failed(dt_swap_write_bytes(f, 1, "x", 1), "cannot read the moments: 4096 bytes at offset 0"));
    EXPECT(dt_swap_read_bytes(f, MIB, in + MIB, MIB) == DT_OK);
    EXPECT(memcmp(in, out, 4 * MIB) == 0);
    dt_swap_close(f);
    free(in);
    free(out);
    return 0;
}

/* Each read and write moves half of what it was asked for, and then half of the rest. */
static int child_short(void)
{
    dt_swap_file *f = NULL;
    dt_swap_request r = {0};
    const dt_swap_options opt = options(MIB, 3);
    char *out = aligned_alloc(BLOCK, MIB), *in = aligned_alloc(BLOCK, MIB);
    EXPECT(dt_swap_open(&f, &opt) == DT_OK);
    fill(out, MIB, 12);
    EXPECT(dt_swap_write(f, 0, out, MIB, &r) == DT_OK && dt_swap_wait(f, &r) == DT_OK);
    EXPECT(dt_swap_read(f, 0, in, MIB, &r) == DT_OK && dt_swap_wait(f, &r) == DT_OK);
    EXPECT(memcmp(in, out, MIB) == 0);
    dt_swap_close(f);
    free(in);
    free(out);
    return 0;
}

static int child_open(void)
{
    dt_swap_file *f = NULL;
    const dt_swap_options opt = options(BLOCK, 1);
    EXPECT(failed(dt_swap_open(&f, &opt), "cannot create a file for the moments: No space left on device"));
    EXPECT(dt_swap_open(&f, &opt) == DT_OK);
    dt_swap_close(f);
    return 0;
}

static int child_killed(void)
{
    dt_swap_file *f = NULL;
    dt_swap_request r[4] = {0};
    const dt_swap_options opt = options(4 * MIB, 4);
    char *memory = aligned_alloc(BLOCK, 4 * MIB);
    EXPECT(memory && dt_swap_open(&f, &opt) == DT_OK);
    for (int k = 0; k < 4; k++) EXPECT(dt_swap_write(f, k * MIB, memory + k * MIB, MIB, &r[k]) == DT_OK);
    raise(SIGKILL);
    return 1;
}

TEST(injected_errors_fail_only_their_request)
{
    child_succeeds("fault", "swap.write:0:2:nospace,swap.read:0:2:error,swap.read:0:5:error");
}

TEST(short_transfers_are_continued)
{
    child_succeeds("short", "swap.write:0:1:short,swap.write:0:2:short,swap.read:0:1:short,swap.read:0:2:short");
}

TEST(opening_can_fail) { child_succeeds("open", "swap.open:0:1:nospace"); }

TEST(a_kill_leaves_no_files)
{
    const int status = run_child("killed", NULL);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(n_files(folder), 0);
}

/* A disk of our own: a few MiB in memory, in a mount namespace that ends with this process. 77: not permitted. */
static int mount_small_disk(void)
{
    if (unshare(geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) != 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || mount("none", folder, "tmpfs", 0, "size=6m") != 0)
        return 77;
    return 0;
}

static int child_full_disk(void)
{
    dt_swap_file *f = NULL;
    dt_swap_request r[2] = {0};
    char path[40], balloon[80];
    const dt_swap_options large = options(7 * MIB, 2), opt = options(4 * MIB, 2);
    char *memory = aligned_alloc(BLOCK, 4 * MIB);
    const int status = mount_small_disk();
    if (status != 0) return status;
    EXPECT(failed(dt_swap_open(&f, &large), "not enough space for the moments of 7.00 MiB"));
    EXPECT(dt_swap_open(&f, &opt) == DT_OK);
    EXPECT(!dt_free_space(folder, &(double){0}) || n_files(folder) == 0);

    /* what was reserved is taken away from the second half, and the disk filled up */
    behind_its_back(path);
    int fd = open(path, O_RDWR);
    EXPECT(fd >= 0 && fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2 * MIB, 2 * MIB) == 0);
    close(fd);
    snprintf(balloon, sizeof balloon, "%s/balloon", folder);
    fd = open(balloon, O_CREAT | O_WRONLY, 0600);
    while (write(fd, memory, BLOCK) == BLOCK) {
    }
    close(fd);
    EXPECT(dt_swap_write(f, 2 * MIB, memory, 2 * MIB, &r[1]) == DT_OK);
    EXPECT(dt_swap_write(f, 0, memory, 2 * MIB, &r[0]) == DT_OK);
    EXPECT(failed(dt_swap_wait(f, &r[1]), "bytes at offset 2097152 of an unnamed file: No space left on device"));
    EXPECT(dt_swap_wait(f, &r[0]) == DT_OK);
    unlink(balloon);
    EXPECT(dt_swap_write(f, 2 * MIB, memory, 2 * MIB, &r[1]) == DT_OK && dt_swap_wait(f, &r[1]) == DT_OK);
    dt_swap_close(f);

    EXPECT(mount("none", folder, NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
    EXPECT(failed(dt_swap_open(&f, &opt), "Read-only file system"));
    free(memory);
    return 0;
}

TEST(a_full_disk_fails_the_open_or_the_write) { child_succeeds("full_disk", NULL); }

/* A system call that fails from now on, as in a container. 77: not permitted. */
static int refuse(int number, int error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog code = {.len = sizeof filter / sizeof *filter, .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &code) != 0)
        return 77;
    return 0;
}

/* The line about the file that open prints, into said. */
static dt_err open_and_listen(dt_swap_file **f, char *said, size_t size)
{
    int ends[2];
    const dt_swap_options opt = options(MIB, 2);
    const int old = dup(STDOUT_FILENO);
    if (pipe(ends) != 0) return DT_ERR_FAULT;
    dup2(ends[1], STDOUT_FILENO);
    const dt_err err = dt_swap_open(f, &opt);
    dup2(old, STDOUT_FILENO);
    close(ends[1]);
    const ssize_t n = read(ends[0], said, size - 1);
    said[n > 0 ? n : 0] = '\0';
    close(ends[0]);
    close(old);
    return err;
}

static int write_and_read(dt_swap_file *f)
{
    dt_swap_request r[2] = {0};
    char *memory = aligned_alloc(BLOCK, MIB), *found = malloc(MIB);
    fill(memory, MIB, 13);
    for (int k = 0; k < 2; k++) EXPECT(dt_swap_write(f, k * MIB / 2, memory + k * MIB / 2, MIB / 2, &r[k]) == DT_OK);
    for (int k = 0; k < 2; k++) EXPECT(dt_swap_wait(f, &r[k]) == DT_OK);
    EXPECT(dt_swap_read_bytes(f, 0, found, MIB) == DT_OK && memcmp(memory, found, MIB) == 0);
    free(memory);
    free(found);
    return 0;
}

static int child_no_io_uring(void)
{
    char said[400];
    dt_swap_file *f = NULL;
    unsetenv("DTRAIN_SWAP_IO");
    const int status = refuse(SYS_io_uring_setup, EPERM);
    if (status != 0) return status;
    EXPECT(open_and_listen(&f, said, sizeof said) == DT_OK);
    EXPECT(strstr(said, "swap file: 1.00 MiB for the moments in") && strstr(said, "using posix_aio ("));
    EXPECT(strstr(said, "Operation not permitted") || strstr(said, "built without liburing"));
    EXPECT(write_and_read(f) == 0);
    dt_swap_close(f);
    return 0;
}

static int child_no_threads(void)
{
    dt_swap_file *f = NULL;
    const dt_swap_options opt = options(MIB, 2);
    setenv("DTRAIN_SWAP_IO", "posix_aio", 1);
    int status = refuse(SYS_clone, EAGAIN);
    if (status == 0) status = refuse(SYS_clone3, EAGAIN);
    if (status != 0) return status;
    EXPECT(dt_swap_open(&f, &opt) == DT_OK);
    EXPECT(write_and_read(f) == 0);
    dt_swap_close(f);
    _exit(0); /* a sanitizer's look at what leaked needs a thread */
}

/* Nor has the kernel one for io_uring, where the user has as many processes as the limit allows: it cancels what it was
 * given. Root is above that limit. */
static int child_no_kernel_threads(void)
{
    const struct rlimit one = {1, 1};
    const uid_t nobody = 65534;
    dt_swap_file *f = NULL;
    const dt_swap_options opt = options(MIB, 2);
    setenv("DTRAIN_SWAP_IO", "io_uring", 1);
    if (dt_swap_open(&f, &opt) == DT_ERR_USAGE) return 77;
    EXPECT(f && setrlimit(RLIMIT_NPROC, &one) == 0);
    if (geteuid() == 0 && setresuid(nobody, nobody, nobody) != 0) return 77;
    EXPECT(write_and_read(f) == 0);
    dt_swap_close(f);
    _exit(0);
}

TEST_OF(REFUSALS, kernels_without_io_uring_are_reported_and_supported) { child_succeeds("no_io_uring", NULL); }
TEST_OF(REFUSALS, systems_without_threads_are_supported) { child_succeeds("no_threads", NULL); }
TEST_OF(REFUSALS, kernels_without_threads_are_supported) { child_succeeds("no_kernel_threads", NULL); }

static const struct {
    const char *name;
    int (*run)(void);
} children[] = {
    {"fault", child_fault},
    {"short", child_short},
    {"open", child_open},
    {"killed", child_killed},
    {"full_disk", child_full_disk},
    {"no_io_uring", child_no_io_uring},
    {"no_threads", child_no_threads},
    {"no_kernel_threads", child_no_kernel_threads},
};

int main(int argc, char **argv)
{
    program = argv[0];
    if (argc == 3) {
        snprintf(folder, sizeof folder, "%s", argv[2]);
        for (size_t i = 0; i < sizeof children / sizeof *children; i++)
            if (strcmp(argv[1], children[i].name) == 0) return children[i].run();
        return 64;
    }
    if (!make_folder()) return 1;
    return run_groups(REFUSALS, "refusals", NULL, NULL) + run_by_each_way() != 0;
}
