// NP: 1 2 4
/* mpi_rewards.c - programs of all ranks at the same time: what one rank's program does wrong all ranks hear, and none
 * is waited for. */
#include "mpi_test.h"
#include "../src/reward/program_exchange.h"
#include "reward_scripts.h"
#include <signal.h>

enum { MOST = 300, TWO = 2 };

static dt_comm comm;
static dt_phase phase;
static int n_entered;
static bool stop;

static void count_phases(void *self, const char *name, const char *unit, double now_s) { n_entered++; }
static int asked_to_stop(void) { return stop ? SIGTERM : 0; }
static MPI_Comm world(void) { return MPI_COMM_WORLD; }
static bool is_last(void) { return comm.rank == comm.nranks - 1; }

/* Two programs per rank: this script, and one that answers the number of the request. Each rank has its own number
 * of questions, the first rank none. */
static dt_err ask(const char *script, dt_err before, double timeout_s, double reward[TWO][MOST], int64_t n)
{
    dt_program p[TWO] = {{0}};
    int nbytes = 2000;
    const dt_questions q = {.n = n, .request = numbered, .self = &nbytes, .stride = 1};
    dt_err err = start_script(&p[0], script);
    if (err == DT_OK) err = start_script(&p[1], ECHO_NUMBERS);
    if (err == DT_OK) err = before;
    n_entered = 0;
    err = dt_programs_ask((dt_program *[]){&p[0], &p[1]}, TWO, &q, (double *[]){reward[0], reward[1]}, timeout_s, err,
                          &comm, &phase);
    for (int k = 0; k < TWO; k++) dt_program_close(&p[k]);
    return err;
}

static bool in_order(const double *reward, int64_t n)
{
    int64_t k = 0;
    while (k < n && reward[k] == (double)k) k++;
    return k == n;
}

TEST(each_rank_has_answers_of_its_own)
{
    static double reward[TWO][MOST];
    for (int first = 0; first < 2; first++) {
        const int64_t n = (int64_t)((comm.rank + first) % 4) * 75;
        dt_error_clear();
        const dt_err err = ask("while IFS= read -r l; do echo $DTRAIN_RANK; done", DT_OK, 60, reward, n);
        assert_all(world(), err == DT_OK && in_order(reward[1], n));
        int64_t k = 0;
        while (k < n && reward[0][k] == 2) k++; /* what start_script calls the rank */
        assert_all(world(), k == n);
    }
}

/* The message is the failing rank's, and the others, whose programs would take for ever, do not wait. */
TEST(an_error_of_one_program_stops_all_ranks)
{
    static const char *const wrong[] = {"read -r a; echo oh dear >&2; exit 3", "read -r a; echo hello; cat >/dev/null",
                                        "cat >/dev/null"};
    static double reward[TWO][MOST];
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        dt_error_clear();
        const dt_err err = ask(is_last() ? wrong[i] : "cat >/dev/null", DT_OK, is_last() ? 1 : 600, reward, 10);
        assert_all(world(), err == DT_ERR_DATA && dt_comm_prints_error(&comm) == is_last());
        assert_all(world(), !strstr(dt_error_message(), "command:") == !is_last());
        dt_error_clear();
    }
}

TEST(a_rank_that_fails_before_is_not_waited_for)
{
    static double reward[TWO][MOST];
    const dt_err before = is_last() ? dt_fail(DT_ERR_MEMORY, "no memory, says the test") : DT_OK;
    const dt_err err = ask("cat >/dev/null", before, 600, reward, 10);
    assert_all(world(), err == DT_ERR_MEMORY);
}

/* Also when the same signal has ended its program. */
TEST(a_signal_on_one_rank_reaches_all)
{
    static double reward[TWO][MOST];
    for (int dies = 0; dies < 2; dies++) {
        dt_error_clear();
        stop = is_last();
        const dt_err err = ask(dies && is_last() ? "kill -TERM $$" : "cat >/dev/null", DT_OK, 600, reward, 10);
        stop = false;
        assert_all(world(), err == DT_ERR_STOP);
        dt_error_clear();
    }
}

/* Ranks that are done show that they live while another's program works: a watchdog sees them. */
TEST(waiting_ranks_report_progress)
{
    static double reward[TWO][MOST];
    const dt_err err = ask(is_last() ? "while IFS= read -r l; do sleep 1; echo 1; done" : "sed -u 's/.*/1/'", DT_OK, 60,
                           reward, is_last() ? 2 : 1);
    assert_all(world(), err == DT_OK && n_entered > 2); /* two seconds in turns of at most half of one */
}

TEST(none_is_needed)
{
    const dt_questions q = {0};
    dt_err err = dt_programs_ask(NULL, 0, &q, NULL, 60, DT_OK, &comm, &phase);
    assert_all(world(), err == DT_OK);
    err = dt_programs_ask(NULL, 0, &q, NULL, 60, is_last() ? dt_fail(DT_ERR_DATA, "the test's") : DT_OK, &comm, &phase);
    assert_all(world(), err == DT_ERR_DATA);
}

int main(int argc, char **argv)
{
    phase.listener = count_phases;
    phase.stop_asked = asked_to_stop;
    mpi_test_begin(&argc, &argv);
    if (open_scripts(NULL) != 0 || dt_comm_open(&comm) != DT_OK) MPI_Abort(MPI_COMM_WORLD, 70);
    const int n_failed = run_listed("rewards", NULL, NULL);
    dt_comm_close(&comm);
    remove_scripts(NULL);
    return mpi_test_end(n_failed);
}
