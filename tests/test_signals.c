/* test_signals.c - a signal in the middle of a matmul leaves the process whole (signals.c says what happens
 * otherwise). */

#include "cases.h"
#include "dtrain/process/process.h"
#include <dnnl.h>
#include <signal.h>
#include <sys/wait.h>

/* Small matmuls of all shapes, as a tiny model has them, and what they allocate: a second's work. Sums of small
 * integers are exact, so that each result is the same however often it is computed. */
static int multiply(void)
{
    const int sizes[] = {32, 88, 257, 64, 16, 8, 1, 33};
    enum { N_SIZES = sizeof sizes / sizeof sizes[0], ELEMS = 257 * 257 };
    float *a = malloc(ELEMS * sizeof *a), *b = malloc(ELEMS * sizeof *b), *c = malloc(ELEMS * sizeof *c),
          *first = malloc(ELEMS * sizeof *first);
    for (int i = 0; i < ELEMS; i++) a[i] = (float)(i % 7 - 3), b[i] = (float)(i % 5 - 2);
    for (int s = 0; s < N_SIZES * N_SIZES * N_SIZES; s++) {
        const int m = sizes[s % N_SIZES], n = sizes[s / N_SIZES % N_SIZES], k = sizes[s / N_SIZES / N_SIZES];
        for (int repeat = 0; repeat < 100; repeat++) {
            dnnl_sgemm('N', 'N', m, n, k, 1, a, k, b, n, 0, c, n);
            if (repeat == 0) memcpy(first, c, (size_t)(m * n) * sizeof *c);
            if (memcmp(first, c, (size_t)(m * n) * sizeof *c) != 0) return 1;
        }
    }
    free(a), free(b), free(c), free(first);
    return 0;
}

TEST(a_matmul_survives_signals)
{
    sigset_t early;
    sigemptyset(&early), sigaddset(&early, SIGUSR1);
    sigprocmask(SIG_BLOCK, &early, NULL); /* a worker that is late must not die of the first */
    fflush(stdout);
    const pid_t worker = fork();
    if (worker == 0) {
        _exit(dt_signals_install() == DT_OK ? multiply() : 1);
    }
    int status = 0;
    while (waitpid(worker, &status, WNOHANG) == 0) {
        kill(worker, SIGUSR1);
        usleep(50);
    }
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* A signal that comes before the handler is installed, and before the program has re-executed itself. */
TEST(an_early_signal_is_kept)
{
    const int signals[] = {SIGUSR1, SIGTERM, SIGINT};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        int status = 0;
        char number[16];
        snprintf(number, sizeof number, "%d", signals[i]);
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            dt_signals_hold();
            kill(getpid(), signals[i]); /* raise() would be for this thread alone */
            execl("/proc/self/exe", "test_signals", "--again", number, (char *)NULL);
            _exit(2);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

static int started_anew(int expected)
{
    if (dt_signals_install() != DT_OK) return 3;
    for (int i = 0; i < 6000 && !dt_signals_pending(); i++) usleep(10000);
    return dt_signals_pending() == expected ? 0 : 4;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--again") == 0) return started_anew(atoi(argv[2]));
    return run_listed(NULL, NULL, NULL);
}
