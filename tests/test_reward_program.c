/* test_reward_program.c - a reward program on one rank: its answers, its environment, its termination, and that no
 * process or file of it remains. */
#include "cases.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include "reward_scripts.h"

enum { MANY = 600 };

/* To the end of n completions of so many bytes. */
static dt_err ask(dt_program *p, int64_t n, int nbytes, double *reward, double timeout_s)
{
    bool done = false;
    dt_program_begin(p, n, reward, 1);
    for (;;) {
        struct pollfd fds[3];
        DT_TRY(dt_program_go_on(p, numbered, &nbytes, timeout_s, &done));
        if (done) return DT_OK;
        poll(fds, (nfds_t)dt_program_waits_for(p, fds), 50);
    }
}

static bool is_gone(pid_t group) { return kill(-group, 0) != 0 && errno == ESRCH; }

static bool goes_within(pid_t group, double most_s)
{
    for (const double until_s = dt_now_s() + most_s; dt_now_s() < until_s && !is_gone(group);)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    return is_gone(group);
}

TEST(answers_come_in_order)
{
    static double reward[MANY];
    dt_program p;
    assert_int_equal(start_script(&p, ECHO_NUMBERS), DT_OK);
    for (int turn = 0; turn < 2; turn++) {
        memset(reward, 0, sizeof reward);
        assert_int_equal(ask(&p, MANY, 1000, reward, 60), DT_OK); /* far more than pipes hold */
        for (int k = 0; k < MANY; k++) assert_true(reward[k] == k);
    }
    assert_int_equal(ask(&p, 0, 0, reward, 60), DT_OK);
    const pid_t group = p.pid;
    dt_program_close(&p);
    assert_true(is_gone(group));
}

/* It reads 500 requests before it answers the first, and says more on its error output than a pipe holds. */
TEST(a_program_that_reads_far_ahead_does_not_deadlock)
{
    double reward[1000];
    dt_program p;
    assert_int_equal(
        start_script(&p,
                     "yes warning | head -20000 >&2\n"
                     "while IFS= read -r l; do n=$((n + 1)); [ $((n % 500)) != 0 ] || yes -- -0.5 | head -500; done"),
        DT_OK);
    assert_int_equal(ask(&p, 1000, 300, reward, 60), DT_OK);
    for (int k = 0; k < 1000; k++) assert_true(reward[k] == -0.5);
    dt_program_close(&p);
}

/* A turn reads only the available output: a program may write faster than it is read. */
TEST(a_program_with_endless_output_is_handled)
{
    double reward[3];
    dt_program p;
    assert_int_equal(start_script(&p, "yes warning >&2 &\nwhile IFS= read -r l; do echo 1; done"), DT_OK);
    assert_int_equal(ask(&p, 3, 10, reward, 60), DT_OK);
    for (int k = 0; k < 3; k++) assert_true(reward[k] == 1);
    dt_program_close(&p);
}

TEST(numbers_and_null_are_answers)
{
    const double want[] = {1, -2.5, 0.001, (double)NAN, 0, 7};
    double reward[6];
    dt_program p;
    assert_int_equal(start_script(&p, "printf '1\\n-2.5\\r\\n 1e-3 \\nnull\\n-0\\n' >\"$0.lines\"\n"
                                      "while IFS= read -r l && IFS= read -r answer <&3; do printf '%s\\n' \"$answer\"; "
                                      "done 3<\"$0.lines\"\nprintf 7; exec >&-; cat >&2"),
                     DT_OK);
    /* the last one without the end of its line */
    assert_int_equal(ask(&p, 6, 10, reward, 60), DT_OK);
    for (int k = 0; k < 6; k++) assert_true(isnan(want[k]) ? isnan(reward[k]) : reward[k] == want[k]);
    dt_program_close(&p);
}

TEST(program_errors_are_reported_with_its_last_lines)
{
    static const struct {
        const char *script, *says[3];
    } cases[] = {
        {"read -r a; echo 1; read -r a; echo oh dear >&2; exit 3",
         {"it ended with exit status 3 after 1 of 4 answers", "oh dear", "its last lines:\n    1\n"}},
        {"read -r a; kill -9 $$", {"signal 9 (Killed) ended it", "after 0 of 4 answers", "it printed nothing"}},
        {"exit 0", {"it ended with exit status 0 after 0 of 4"}},
        {"read -r a; echo hello; cat >/dev/null", {"answer 1 of 4: expected a number or null", "    hello"}},
        {"read -r a; echo nan; cat >/dev/null", {"answer 1 of 4: expected a number or null"}},
        {"read -r a; echo NaN; cat >/dev/null", {"answer 1 of 4: expected a number or null"}},
        {"read -r a; echo Infinity; cat >/dev/null", {"answer 1 of 4: expected a number or null"}},
        {"read -r a; echo 1e999; cat >/dev/null", {"answer 1 of 4: expected a number from -1e30 to 1e30 or null"}},
        {"read -r a; echo true; cat >/dev/null", {"answer 1 of 4: expected a number or null"}},
        {"read -r a; echo '\"1\"'; cat >/dev/null", {"answer 1 of 4: expected a number or null"}},
        {"read -r a; echo 1; read -r a; echo 1 2; cat >/dev/null", {"answer 2 of 4", "    1\n    1 2"}},
        {"read -r a; echo; cat >/dev/null", {"answer 1 of 4: expected a number or null"}},
        {"read -r a; yes | tr -d '\\n'", {"answer 1 of 4: expected a number or null"}}, /* a line without an end */
        {"echo loading; cat >/dev/null", {"it sent an answer without a request", "loading"}},
        {"for i in 1 2 3 4 5; do read -r a; echo 1; done; cat >/dev/null",
         {"no answer for 1 s"}}, /* 4 fit, see below */
        {"read -r a; exec <&-; sleep 100", {"it closed its input after 0 of 4"}},
        {"exec >&-; sleep 100", {"it closed its output after 0 of 4"}},
        {"read -r a; echo 1; cat >/dev/null",
         {"no answer for 1 s (comm.timeout), after 1 of 4", "flushes each answer immediately"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const bool stalls = strstr(cases[i].says[0], "no answer") != NULL;
        double reward[4];
        dt_program p;
        dt_error_clear();
        assert_int_equal(start_script(&p, cases[i].script), DT_OK);
        if (strncmp(cases[i].script, "echo", 4) == 0) /* before it is asked */
            for (struct pollfd fd = {.fd = p.output, .events = POLLIN}; poll(&fd, 1, 5000) < 1;) continue;
        /* requests of 100 KB: not all of them can be waiting in the pipe */
        dt_err err = ask(&p, 4, 100000, reward, stalls ? 1 : 60);
        if (err == DT_OK) err = ask(&p, 4, 100000, reward, stalls ? 1 : 60);
        assert_int_equal(err, DT_ERR_DATA);
        for (int k = 0; k < 3 && cases[i].says[k]; k++)
            if (!strstr(dt_error_message(), cases[i].says[k]))
                fail_msg("%s\nexpected: %s\nfound: %s", cases[i].script, cases[i].says[k], dt_error_message());
        assert_non_null(strstr(dt_error_message(), script_path));
        dt_program_close(&p);
    }
}

/* More answers than questions: seen when the next are asked, at the latest. */
TEST(an_extra_answer_is_detected)
{
    double reward[4];
    dt_program p;
    assert_int_equal(start_script(&p, "while read -r a; do echo 1; n=$((n + 1)); [ $n != 4 ] || echo 5; done"), DT_OK);
    dt_err err = ask(&p, 4, 10, reward, 60);
    for (int turn = 0; turn < 100 && err == DT_OK; turn++) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        err = ask(&p, 0, 10, reward, 60);
    }
    assert_fails(err, DT_ERR_DATA, "it sent an answer without a request");
    dt_program_close(&p);
}

/* It sees three descriptors, no variable of a launcher, its rank, and signals as a shell's children do. */
TEST(a_program_starts_in_the_state_that_a_shell_gives)
{
    static const char script[] = "n=$(ls /proc/self/fd | wc -l)\n" /* ls has one of its own */
                                 "ign=$(sed -n 's/^SigIgn:[[:space:]]*//p' /proc/self/status)\n"
                                 "blk=$(sed -n 's/^SigBlk:[[:space:]]*//p' /proc/self/status)\n"
                                 "[ $((0x$blk & 0x5203)) = 512 ] || echo \"blocked $blk\" >&2\n"
                                 "group=$(sed 's/.*) . [0-9]* \\([0-9]*\\) .*/\\1/' /proc/$$/stat)\n"
                                 "[ \"$n\" = 4 ] || echo \"$n descriptors\" >&2\n"
                                 "[ \"$group\" = $$ ] || echo \"group $group\" >&2\n"
                                 "[ $((0x$ign & 0x5003)) = 0 ] || echo \"ignored $ign\" >&2\n"
                                 "[ -z \"$(env | grep '^OMPI_\\|^PMIX_')\" ] || echo launcher >&2\n"
                                 "[ \"$DTRAIN_RANK $DTRAIN_NRANKS $DTRAIN_LOCAL_RANK\" = '2 5 1' ] || echo ranks >&2\n"
                                 "[ \"$PYTHONUNBUFFERED\" = 1 ] || echo python >&2\n"
                                 "while read -r a; do echo 1; done";
    const int inherited = open("/dev/null", O_RDONLY); /* without FD_CLOEXEC */
    sigset_t held, before;
    double reward[1];
    dt_program p;
    setenv("OMPI_COMM_WORLD_RANK", "2", 1);
    sigemptyset(&held);
    sigaddset(&held, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &held, &before); /* as the program that trains has it */
    signal(SIGPIPE, SIG_IGN);
    assert_int_equal(start_script(&p, script), DT_OK);
    signal(SIGPIPE, SIG_DFL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    assert_int_equal(ask(&p, 1, 10, reward, 60), DT_OK);
    if (p.n_tail && strcmp(p.tail, "\n    1") != 0) fail_msg("%s", p.tail);
    dt_program_close(&p);
    unsetenv("OMPI_COMM_WORLD_RANK");
    close(inherited);
}

/* One that does not hear the end of its input, with children of its own. */
TEST(a_program_that_ignores_its_end_is_killed_with_its_children)
{
    double reward[1];
    dt_program p;
    assert_int_equal(start_script(&p, "trap '' TERM\n(trap '' TERM; sleep 1000) &\nread -r a; echo 1\n"
                                      "while :; do sleep 1000; done"),
                     DT_OK);
    assert_int_equal(ask(&p, 1, 10, reward, 60), DT_OK);
    const pid_t group = p.pid, guard = p.guard;
    assert_false(is_gone(group));
    dt_program_close(&p);
    assert_true(goes_within(group, 5)); /* its children are init's to bury */
    assert_true(kill(guard, 0) != 0 && errno == ESRCH);
}

/* The process that has started it is killed: there is no time to end anything. */
TEST(a_program_ends_with_its_rank)
{
    int ends[2];
    pid_t group = 0;
    assert_int_equal(pipe(ends), 0);
    const pid_t rank = fork();
    if (rank == 0) {
        dt_program p;
        double reward[1];
        if (start_script(&p, "read -r a; echo 1; while :; do sleep 1000; done") != DT_OK) _exit(1);
        if (ask(&p, 1, 10, reward, 60) != DT_OK || write(ends[1], &p.pid, sizeof p.pid) < 0) _exit(1);
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(read(ends[0], &group, sizeof group), sizeof group);
    waitpid(rank, NULL, 0);
    assert_true(goes_within(group, 20));
    close(ends[0]), close(ends[1]);
}

TEST(what_cannot_be_started_is_refused)
{
    static const struct {
        const char *command, *says;
    } cases[] = {{"/no/such/judge.sh 1", "/no/such/judge.sh does not exist"},
                 {"no-such-program-of-dtrain", "does not exist, or is not executable"},
                 {"/tmp", "does not exist, or is not executable"},
                 {"/etc/passwd", "is not executable"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_program p;
        dt_error_clear();
        assert_int_equal(dt_program_open(&p, cases[i].command, true), DT_ERR_USAGE);
        if (!strstr(dt_error_message(), cases[i].says)) fail_msg("%s", dt_error_message());
        dt_program_close(&p);
    }
    dt_program p; /* it is found, and is no program */
    dt_error_clear();
    FILE *f = fopen(script_path, "w");
    fputs("\177ELF what is this", f);
    fclose(f);
    chmod(script_path, 0700);
    assert_int_equal(dt_program_open(&p, script_path, true), DT_OK);
    assert_int_equal(dt_program_start(&p, 0, 1, 0), DT_ERR_USAGE);
    assert_non_null(strstr(dt_error_message(), "cannot start it"));
    assert_non_null(strstr(dt_error_message(), "the first line of a script must name its interpreter"));
    dt_program_close(&p);
}

int main(void)
{
    dt_log_open(0, 1, "test");
    setenv("DTRAIN_LOG", "warn", 1);
    return run_listed("reward_program", open_scripts, remove_scripts);
}
