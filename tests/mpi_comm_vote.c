// NP: 1 2 3 4 8
/* mpi_comm_vote.c - all ranks agree on the error, whichever rank fails, and small host values arrive intact. */
#include "mpi_test.h"
#include "../src/comm/internal.h"

TEST(agreement_without_failure_is_ok)
{
    dt_comm *c = *state;
    assert_all(MPI_COMM_WORLD, dt_comm_agree(c, DT_OK) == DT_OK);
    assert_all(MPI_COMM_WORLD, !dt_comm_failed_together(c) && dt_error_message()[0] == '\0');
}

TEST(each_rank_that_fails_alone_is_named_on_all)
{
    dt_comm *c = *state;
    for (int bad = 0; bad < c->nranks; bad++) {
        char want[32];
        snprintf(want, sizeof want, "rank %d failed: ", bad);
        dt_error_clear();
        dt_fail(DT_ERR_ARG, "something overcome earlier");
        if (c->rank == bad) dt_error_clear();
        dt_err err = c->rank == bad ? dt_fail(DT_ERR_WRITE, "my own words") : DT_OK;
        err = dt_comm_agree(c, err);
        assert_all(MPI_COMM_WORLD, err == DT_ERR_WRITE);
        assert_all(MPI_COMM_WORLD, dt_comm_prints_error(c) == (c->rank == bad));
        assert_all(MPI_COMM_WORLD, c->rank == bad ? strcmp(dt_error_message(), "my own words") == 0
                                                  : strncmp(dt_error_message(), want, strlen(want)) == 0 &&
                                                        strstr(dt_error_message(), "writing failed"));
    }
    dt_error_clear();
    assert_all(MPI_COMM_WORLD, dt_comm_agree(c, DT_OK) == DT_OK && !dt_comm_failed_together(c));
}

/** An error may be voted on again by each caller: every rank that has its message still reports it. */
TEST(a_repeated_vote_keeps_the_failing_rank)
{
    dt_comm *c = *state;
    for (int how = 0; how < 2; how++) {
        const int bad = c->nranks - 1;
        dt_error_clear();
        dt_err err = c->rank == bad ? dt_fail(DT_ERR_MEMORY, "my own words") : DT_OK;
        if (how == 0) {
            err = dt_comm_agree(c, err);
        } else {
            dt_vote vote = {.err = err};
            assert_all(MPI_COMM_WORLD, dt_comm_vote(c, &vote) == DT_OK);
            err = (dt_err)vote.err;
        }
        for (int again = 0; again < 2; again++) err = dt_comm_agree(c, err);
        assert_all(MPI_COMM_WORLD, err == DT_ERR_MEMORY && dt_comm_prints_error(c) == (c->rank == bad));
        assert_all(MPI_COMM_WORLD, c->rank != bad || strcmp(dt_error_message(), "my own words") == 0);
    }
    dt_error_clear();
    assert_all(MPI_COMM_WORLD, dt_comm_agree(c, DT_OK) == DT_OK);
}

/** Rank 0 has the highest code: the order is that of ranks, not of codes. */
TEST(the_lowest_of_several_failing_ranks_wins)
{
    dt_comm *c = *state;
    const dt_err mine = c->rank == 0 ? DT_ERR_COMM : DT_ERR_USAGE;
    assert_all(MPI_COMM_WORLD, dt_comm_agree(c, mine) == DT_ERR_COMM);
    assert_all(MPI_COMM_WORLD, dt_comm_prints_error(c) == (c->rank == 0));
}

enum { N_VALUES = 500, N_KINDS = 4 }; /* of all kinds by turns, and of any number */

/* What rank r brings, and what comes of all. */
static dt_vote_value brought(int i, int r)
{
    const dt_vote_kind kind = (dt_vote_kind)(i % N_KINDS);
    if (kind == DT_VOTE_COUNT) return (dt_vote_value){.kind = kind, .count = ((int64_t)1 << 40) + i * (r + 1)};
    if (kind == DT_VOTE_SUM) return (dt_vote_value){.kind = kind, .real = ldexp(1.0, -r) * (i + 1)};
    return (dt_vote_value){.kind = kind, .real = i % 3 ? r - 100.0 : -(double)r};
}

static bool is_combined(const dt_vote_value *v, int i, int64_t n)
{
    switch (i % N_KINDS) {
    case DT_VOTE_COUNT:
        return v->count == n * ((int64_t)1 << 40) + i * n * (n + 1) / 2;
    case DT_VOTE_SUM:
        return v->real == (2.0 - ldexp(1.0, 1 - (int)n)) * (i + 1);
    case DT_VOTE_MAX:
        return v->real == (i % 3 ? (double)n - 101.0 : 0.0);
    default:
        return v->real == (i % 3 ? -100.0 : 1.0 - (double)n);
    }
}

TEST(a_vote_combines_any_number_of_values_and_names_the_failing_rank)
{
    dt_comm *c = *state;
    static dt_vote_value values[N_VALUES];
    const int sizes[] = {0, 1, 8, 37, N_VALUES};
    assert_all(MPI_COMM_WORLD, dt_comm_vote_reserve(c, N_VALUES) == DT_OK);
    for (int k = 0; k < 5; k++)
        for (int bad = -1; bad < c->nranks; bad++) {
            dt_error_clear();
            dt_vote v = {.err = bad >= 0 && c->rank >= bad ? dt_fail(DT_ERR_DATA + (c->rank - bad) % 2, "mine") : DT_OK,
                         .failed_rank = 12345,
                         .stop = c->rank == 1,
                         .nonfinite = c->rank == c->nranks - 1 ? 2 : 0,
                         .values = sizes[k] ? values : NULL,
                         .n_values = sizes[k]};
            for (int i = 0; i < sizes[k]; i++) values[i] = brought(i, c->rank);
            assert_all(MPI_COMM_WORLD, dt_comm_vote(c, &v) == DT_OK);
            assert_all(MPI_COMM_WORLD, v.err == (bad < 0 ? DT_OK : DT_ERR_DATA) && v.failed_rank == bad);
            assert_all(MPI_COMM_WORLD, v.stop == (c->nranks > 1) && v.nonfinite == 2);
            assert_all(MPI_COMM_WORLD, dt_comm_prints_error(c) == (bad == c->rank || bad < 0));
            bool ok = true;
            for (int i = 0; i < sizes[k]; i++) ok = ok && is_combined(&values[i], i, c->nranks);
            assert_all(MPI_COMM_WORLD, ok);
        }
    dt_vote large = {.values = values, .n_values = N_VALUES + 1};
    assert_all_fail(MPI_COMM_WORLD, dt_comm_vote(c, &large), DT_ERR_ARG, "");
}

TEST(a_nan_in_a_vote_reaches_all)
{
    dt_comm *c = *state;
    for (int bad = 0; bad < c->nranks; bad++) {
        dt_vote_value values[4] = {{DT_VOTE_MAX, .real = c->rank == bad ? NAN : 1e300},
                                   {DT_VOTE_MIN, .real = c->rank == bad ? NAN : -1e300},
                                   {DT_VOTE_SUM, .real = c->rank == bad ? NAN : 1},
                                   {DT_VOTE_MAX, .real = 0}};
        dt_vote v = {.values = values, .n_values = 4};
        assert_all(MPI_COMM_WORLD, dt_comm_vote(c, &v) == DT_OK);
        assert_all(MPI_COMM_WORLD,
                   isnan(values[0].real) && isnan(values[1].real) && isnan(values[2].real) && values[3].real == 0.0);
    }
}

TEST(sums_of_a_vote_are_the_same_bits_on_all_ranks)
{
    dt_comm *c = *state;
    static dt_vote_value values[N_VALUES], first[N_VALUES];
    for (int i = 0; i < N_VALUES; i++)
        values[i] =
            (dt_vote_value){DT_VOTE_SUM, .real = sin(1.0 + c->rank * 17 + i) * ldexp(1.0, (c->rank * 13 + i) % 40)};
    dt_vote v = {.values = values, .n_values = N_VALUES};
    assert_all(MPI_COMM_WORLD, dt_comm_vote(c, &v) == DT_OK);
    memcpy(first, values, sizeof first);
    assert_all(MPI_COMM_WORLD, dt_comm_broadcast_host(c, first, sizeof first, 0) == DT_OK);
    assert_all(MPI_COMM_WORLD, memcmp(first, values, sizeof values) == 0);
}

TEST(host_values_are_reduced)
{
    dt_comm *c = *state;
    const int64_t n = c->nranks;
    int64_t i64[2] = {c->rank, -c->rank};
    assert_all(MPI_COMM_WORLD, dt_comm_reduce_host_i64(dt_comm_all(c), i64, 2, DT_SUM) == DT_OK &&
                                   i64[0] == n * (n - 1) / 2 && i64[1] == -i64[0]);
    i64[0] = c->rank;
    assert_all(MPI_COMM_WORLD, dt_comm_reduce_host_i64(dt_comm_all(c), i64, 1, DT_MAX) == DT_OK && i64[0] == n - 1);
    i64[0] = c->rank + 5;
    assert_all(MPI_COMM_WORLD, dt_comm_reduce_host_i64(dt_comm_all(c), i64, 1, DT_MIN) == DT_OK && i64[0] == 5);
    double f64 = c->rank + 0.5;
    assert_all(MPI_COMM_WORLD,
               dt_comm_reduce_host_f64(dt_comm_all(c), &f64, 1, DT_SUM) == DT_OK && f64 == (double)n * (double)n / 2.0);
    uint64_t u64 = UINT64_MAX - 1; /* -2 modulo 2^64 */
    assert_all(MPI_COMM_WORLD, dt_comm_sum_host_u64(dt_comm_all(c), &u64, 1) == DT_OK && u64 == 0 - 2 * (uint64_t)n);
    double parts[8] = {0}; /* one number of each rank, NaN and -0 among them */
    for (int i = 0; i < 8; i++)
        if (i % c->nranks == c->rank) parts[i] = i == 3 ? (double)NAN : i == 5 ? -0.0 : 0.1 * i;
    bool joined = dt_comm_join_host(dt_comm_all(c), parts, sizeof parts) == DT_OK;
    for (int i = 0; i < 8; i++)
        joined &= i == 3 ? isnan(parts[i]) : parts[i] == (i == 5 ? 0 : 0.1 * i) && signbit(parts[i]) == (i == 5);
    assert_all(MPI_COMM_WORLD, joined);
    assert_all(MPI_COMM_WORLD, dt_comm_reduce_host_i64(dt_comm_all(c), NULL, 0, DT_SUM) == DT_OK);
}

/** The same loop splits above INT_MAX; a limit of a few bytes shows it at sizes on both sides of every boundary. */
TEST(a_broadcast_above_the_limit_is_split)
{
    dt_comm *c = *state;
    const size_t limit = c->mpi->max_message;
    assert_true(limit <= INT32_MAX);
    c->mpi->max_message = 7;
    for (size_t n = 0; n < 30; n++)
        for (int root = 0; root < c->nranks; root++) {
            unsigned char b[32];
            for (size_t i = 0; i < sizeof b; i++) b[i] = (unsigned char)(c->rank == root ? i + 1 : 0);
            bool ok = dt_comm_broadcast_host(c, b, n, root) == DT_OK;
            for (size_t i = 0; i < sizeof b; i++) ok = ok && b[i] == (i < n || c->rank == root ? i + 1 : 0);
            assert_all(MPI_COMM_WORLD, ok);
        }
    c->mpi->max_message = limit;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static const size_t text_sizes[] = {0, 1, 65536, 200000};
enum { N_TEXTS = sizeof text_sizes / sizeof text_sizes[0] };

static char *make_text(int seed, size_t n)
{
    char *text = malloc(n + 1);
    for (size_t i = 0; i < n; i++) text[i] = (char)('a' + (i * 7 + (size_t)seed) % 26);
    text[n] = '\0';
    return text;
}

/** The last shared one fails on the last rank (see main). */
TEST(a_text_of_rank_0_reaches_all)
{
    dt_comm *c = *state;
    for (int i = 0; i < N_TEXTS; i++) {
        char *want = make_text(i, text_sizes[i]), *text = c->rank ? (char *)"not read" : make_text(i, text_sizes[i]);
        size_t n = c->rank ? 12345 : text_sizes[i];
        dt_err err = dt_comm_share_text(c, &text, i % 2 ? &n : NULL);
        assert_all(MPI_COMM_WORLD, err == DT_OK && !strcmp(text, want) && (i % 2 == 0 || n == text_sizes[i]));
        free(text);
        free(want);
    }
    char *none = c->rank ? (char *)"not read" : NULL;
    assert_all(MPI_COMM_WORLD, dt_comm_share_text(c, &none, NULL) == DT_OK && !none);

    char *own = make_text(0, 5), *text = own;
    const dt_err err = dt_comm_share_text(c, &text, NULL);
    assert_all(MPI_COMM_WORLD, err == DT_ERR_FAULT && text == (c->rank ? NULL : own) &&
                                   dt_comm_prints_error(c) == (c->rank == c->nranks - 1));
    free(own);
}

/* What this rank sends, and what rank 0 gets. */
typedef struct exchange {
    const char *mine;
    size_t n_sent;
    char *text;
    size_t n;
    int rank, fails_at;
} exchange;

static size_t next_part(void *ctx, char part[DT_TEXT_PART])
{
    exchange *s = ctx;
    const size_t left = strlen(s->mine) - s->n_sent, n = left < DT_TEXT_PART ? left : DT_TEXT_PART;
    memcpy(part, s->mine + s->n_sent, n);
    s->n_sent += n;
    return n;
}

static dt_err add_part(void *ctx, int rank, const char *part, size_t nbytes)
{
    exchange *s = ctx;
    s->rank = rank >= s->rank ? rank : 99;
    memcpy(s->text + s->n, part, nbytes);
    s->n += nbytes;
    return rank == s->fails_at ? dt_fail(DT_ERR_WRITE, "the sink is full") : DT_OK;
}

TEST(the_texts_of_all_ranks_reach_rank_0_in_order)
{
    dt_comm *c = *state;
    char *mine = make_text(c->rank, text_sizes[c->rank % N_TEXTS]);
    size_t total = 0;
    for (int r = 0; r < c->nranks; r++) total += text_sizes[r % N_TEXTS];
    exchange s = {.mine = mine, .text = malloc(total + 1), .fails_at = -1};
    assert_all(MPI_COMM_WORLD, dt_comm_gather_text(c, next_part, add_part, &s) == DT_OK);
    bool ok = s.n == (c->rank ? 0 : total);
    size_t at = 0;
    for (int r = 0; r < c->nranks && c->rank == 0; r++) {
        char *want = make_text(r, text_sizes[r % N_TEXTS]);
        ok = ok && !memcmp(s.text + at, want, strlen(want));
        at += strlen(want);
        free(want);
    }
    assert_all(MPI_COMM_WORLD, ok);

    s = (exchange){.mine = mine, .text = s.text, .fails_at = c->nranks > 1 ? 1 : -1};
    const dt_err full = dt_comm_gather_text(c, next_part, add_part, &s);
    assert_all(MPI_COMM_WORLD, full == (c->nranks > 1 ? DT_ERR_WRITE : DT_OK));
    s = (exchange){.mine = mine, .text = s.text, .fails_at = -1};
    assert_all(MPI_COMM_WORLD, dt_comm_gather_text(c, next_part, add_part, &s) == DT_ERR_FAULT && s.n == 0);
    dt_error_clear();
    free(s.text);
    free(mine);
}

TEST(an_error_of_mpi_comes_back_with_its_text)
{
    dt_comm *c = *state;
    const dt_err err = dt_comm_mpi_fail(MPI_ERR_COUNT, "MPI_Something(n)", "there.c", 12);
    assert_all(MPI_COMM_WORLD, err == DT_ERR_COMM && strstr(dt_error_message(), "MPI_ERR_COUNT") &&
                                   strstr(dt_error_message(), "MPI_Something(n)"));
    dt_error_clear();
    assert_all_fail(MPI_COMM_WORLD, dt_comm_broadcast_host(c, NULL, 1, 0), DT_ERR_ARG, "");
    assert_all(MPI_COMM_WORLD, dt_comm_mpi_handle(c) != NULL);
}

int main(int argc, char **argv)
{
    int nranks;
    char faults[96];
    mpi_test_begin(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    snprintf(faults, sizeof faults, "comm.share_text:%d:%d:error,comm.gather_text:%d:3:error", nranks - 1, N_TEXTS + 1,
             nranks - 1);
    setenv("DTRAIN_FAULT", faults, 1);
    return mpi_test_end(run_listed(NULL, open_comm_alone, close_comm_alone));
}
