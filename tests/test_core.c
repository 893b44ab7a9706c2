/* test_core.c - errors, log, ledger, sizes, faults, random numbers, unit tables, batches. */

#include "cases.h"
#include "dtrain/core/core.h"
#include "dtrain/core/unit.h"
#include "dtrain/image/batch_images.h"
#include <sched.h>
#include <sys/wait.h>

/* ---- errors and log ---- */

static dt_err fails_twice(void)
{
    dt_fail(DT_ERR_DATA, "the cause is %d", 1);
    return dt_fail(DT_ERR_WRITE, "a consequence");
}

static dt_err passes_on(void)
{
    DT_TRY(fails_twice());
    return DT_OK;
}

TEST(the_first_message_wins_until_cleared)
{
    assert_string_equal(dt_error_message(), "");
    assert_int_equal(passes_on(), DT_ERR_WRITE);
    assert_string_equal(dt_error_message(), "the cause is 1");
    dt_error_clear();
    assert_int_equal(dt_fail(DT_ERR_ARG, "another"), DT_ERR_ARG);
    assert_string_equal(dt_error_message(), "another");
}

TEST(a_place_goes_before_what_is_wrong_with_data)
{
    assert_int_equal(dt_error_prefix(dt_fail(DT_ERR_DATA, "no %s", "number"), "file:%d: ", 3), DT_ERR_DATA);
    assert_string_equal(dt_error_message(), "file:3: no number");
    assert_int_equal(dt_error_prefix(DT_OK, "other: "), DT_OK);
    assert_int_equal(dt_error_prefix(DT_ERR_MEMORY, "other: "), DT_ERR_MEMORY);
    assert_string_equal(dt_error_message(), "file:3: no number");
}

TEST(a_long_message_is_cut_with_dots)
{
    char long_text[20000];
    memset(long_text, 'x', sizeof long_text);
    long_text[sizeof long_text - 1] = '\0';
    dt_fail(DT_ERR_DATA, "%s", long_text);
    const size_t n = strlen(dt_error_message());
    assert_true(n > 1000 && n < sizeof long_text - 1);
    assert_string_equal(dt_error_message() + n - 4, "x...");
}

TEST(errors_are_listed_once_and_one_may_lack_a_message)
{
    dt_mistakes m = {0};
    dt_mistakes_add(&m, dt_fail(DT_ERR_DATA, "a file"));
    dt_mistakes_add(&m, DT_ERR_USAGE);
    dt_mistakes_add(&m, dt_fail(DT_ERR_DATA, "a file"));
    dt_mistakes_add(&m, dt_fail(DT_ERR_DATA, "another file"));
    assert_int_equal(m.n, 2);
    assert_int_equal(dt_mistakes_end(&m), DT_ERR_USAGE);
    assert_string_equal(dt_error_message(), "a file\nanother file");
    dt_error_clear();
    dt_mistakes_add(&m, DT_ERR_DATA);
    assert_int_equal(dt_mistakes_end(&m), DT_ERR_DATA);
    assert_true(dt_error_message()[0] != '\0');
    dt_error_clear();
    dt_mistakes_add(&m, dt_fail(DT_ERR_STOP, "stopped while a file was read"));
    dt_mistakes_add(&m, dt_fail(DT_ERR_USAGE, "what the file has is missing"));
    assert_int_equal(dt_mistakes_end(&m), DT_ERR_STOP);
    assert_string_equal(dt_error_message(), "stopped while a file was read");
}

TEST(every_error_has_its_exit_code)
{
    const int codes[DT_N_ERR] = {0, 64, 65, 65, 70, 70, 70, 71, 74, 75, 76};
    for (int e = 0; e < DT_N_ERR; e++) assert_int_equal(dt_exit_code((dt_err)e), codes[e]);
}

/* What a child process that runs body() writes to stdout and stderr. */
static void captured(void (*body)(void), int fd, char *out, size_t size)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    fflush(stderr);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], fd);
        close(ends[0]);
        body();
        _exit(0);
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t r; n + 1 < size && (r = read(ends[0], out + n, size - 1 - n)) > 0;) n += (size_t)r;
    out[n] = '\0';
    close(ends[0]);
    waitpid(child, NULL, 0);
}

static void speak_as_rank_3(void)
{
    unsetenv("DTRAIN_LOG");
    dt_log_open(3, 4, "node7");
    DT_INFO("information of rank 3");
    DT_WARN("a warning");
    DT_DEBUG("detail");
}

static void speak_as_another_program(void)
{
    dt_log_open(0, 1, "node7");
    dt_log_name("dtrain-info");
    DT_WARN("a warning");
    dt_log_name("dtrain");
}

static void speak_in_lines(void)
{
    dt_log_open(0, 1, NULL);
    dt_log_name("dtrain");
    dt_log(DT_LOG_ERROR, "one\n%s\n", "two");
}

static void speak_at_length(void)
{
    dt_log_open(0, 1, "node7");
    char text[5000];
    memset(text, 'y', sizeof text);
    text[sizeof text - 1] = '\0';
    DT_INFO("%s", text);
}

TEST(warnings_name_the_rank_and_information_is_said_once)
{
    char out[8000];
    captured(speak_as_rank_3, STDERR_FILENO, out, sizeof out);
    assert_string_equal(out, "dtrain: [rank 3 node7] warning: a warning\n");
    captured(speak_as_rank_3, STDOUT_FILENO, out, sizeof out);
    assert_string_equal(out, "");
    captured(speak_as_another_program, STDERR_FILENO, out, sizeof out);
    assert_string_equal(out, "dtrain-info: warning: a warning\n");
    captured(speak_in_lines, STDERR_FILENO, out, sizeof out);
    assert_string_equal(out, "dtrain: error: one\ndtrain: error: two\n");
    captured(speak_at_length, STDOUT_FILENO, out, sizeof out);
    assert_int_equal(strspn(out, "y"), 4999);
    assert_string_equal(out + 4999, "\n");
}

/* ---- ledger and sizes ---- */

TEST(every_category_is_counted_in_every_place)
{
    dt_ledger l = {0};
    for (int c = 0; c < DT_N_MEMCAT; c++)
        for (int p = 0; p < DT_N_MEMSPACE; p++)
            dt_ledger_add(&l, (dt_memcat)c, (dt_memspace)p, (size_t)1 << (4 * c + p));
    const dt_memory m = dt_ledger_now(&l);
    size_t all = 0, in_files = 0;
    for (int c = 0; c < DT_N_MEMCAT; c++) {
        for (int p = 0; p < DT_N_MEMSPACE; p++) assert_int_equal(m.at[c][p], (size_t)1 << (4 * c + p));
        assert_int_equal(dt_memory_of(&m, (dt_memcat)c), (size_t)15 << (4 * c));
        all += (size_t)15 << (4 * c), in_files += (size_t)8 << (4 * c);
    }
    assert_int_equal(dt_memory_on(&m, DT_IN_FILE), in_files);
    assert_int_equal(l.on_now[DT_IN_FILE], in_files);
    assert_int_equal(dt_memory_total(&m), all);
    assert_int_equal(l.total_now, all - in_files); /* a file is no memory */
    dt_memory twice = m;
    dt_memory_add(&twice, &m);
    assert_int_equal(dt_memory_total(&twice), 2 * all);
    for (int c = 0; c < DT_N_MEMCAT; c++)
        for (int p = 0; p < DT_N_MEMSPACE; p++)
            dt_ledger_sub(&l, (dt_memcat)c, (dt_memspace)p, (size_t)1 << (4 * c + p));
    const dt_memory left = dt_ledger_now(&l);
    assert_int_equal(dt_memory_total(&left), 0);
    assert_int_equal(l.total_now + l.on_now[DT_IN_FILE], 0);
    assert_int_equal(l.on_peak[DT_IN_FILE], in_files);
    assert_int_equal(l.peak[DT_MEM_OPTIMIZER][DT_IN_FILE], 8 << (4 * DT_MEM_OPTIMIZER));
}

TEST(the_ledger_records_current_and_peak_bytes)
{
    dt_ledger l = {0};
    dt_ledger_add(&l, DT_MEM_PARAMS, DT_ON_DEVICE, 100);
    dt_ledger_add(&l, DT_MEM_DATA, DT_ON_HOST, 50);
    dt_ledger_sub(&l, DT_MEM_PARAMS, DT_ON_DEVICE, 100);
    dt_ledger_add(&l, DT_MEM_PARAMS, DT_ON_DEVICE, 30);
    assert_int_equal(l.now[DT_MEM_PARAMS][DT_ON_DEVICE], 30);
    assert_int_equal(l.peak[DT_MEM_PARAMS][DT_ON_DEVICE], 100);
    assert_int_equal(l.total_now, 80);
    assert_int_equal(l.total_peak, 150);
    assert_int_equal(l.n_allocs, 3);
    dt_ledger_add(NULL, DT_MEM_DATA, DT_ON_HOST, 1);
    assert_string_equal(dt_memcat_name(DT_MEM_OTHER), "other");
    assert_string_equal(dt_memspace_name(DT_ON_PINNED), "pinned");
}

TEST(sizes_are_shown_with_three_digits)
{
    const struct {
        double n;
        const char *text;
    } cases[] = {{0, "0 B"},
                 {17, "17 B"},
                 {1023, "1023 B"},
                 {1024, "1.00 KiB"},
                 {1.5 * 0x1p30, "1.50 GiB"},
                 {812 * 1024, "812 KiB"},
                 {1048575, "1.00 MiB"},
                 {10.2 * 1024, "10.2 KiB"},
                 {0x1p60, "1.00 EiB"},
                 {-2048, "-2.00 KiB"}};
    char out[24];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(dt_format_bytes(cases[i].n, out), cases[i].text);
    assert_true(strlen(dt_format_bytes(1e300, out)) < sizeof out);
}

TEST(sizes_are_parsed_in_common_notations)
{
    const struct {
        const char *text;
        uint64_t n;
    } good[] = {{"512", 512},
                {"64K", 64000},
                {"5G", 5000000000},
                {"5GB", 5000000000},
                {"5GiB", 5ull << 30},
                {"1.5T", 1500000000000},
                {"2kib", 2048},
                {"2Ki", 2048},
                {"3 MB", 3000000},
                {"7B", 7},
                {"0", 0},
                {" 80Gi ", 80ull << 30}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        uint64_t n = 1;
        assert_true(dt_parse_bytes(good[i].text, &n));
        assert_true(n == good[i].n);
    }
    const char *bad[] = {"", "G", "-1", "12X", "1G2", "16 EiB", "99999999E", "nan", "inf", "0x10", "1i", "1iB", "5GBi"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t n = 9;
        assert_false(dt_parse_bytes(bad[i], &n));
        assert_true(n == 9);
    }
}

TEST(choices_are_a_list_with_or)
{
    static const char *const word[] = {"a", "bc", "d"};
    char text[16], little[6];
    assert_string_equal(dt_choices(text, sizeof text, word, 0), "");
    assert_string_equal(dt_choices(text, sizeof text, word, 1), "a");
    assert_string_equal(dt_choices(text, sizeof text, word, 2), "a or bc");
    assert_string_equal(dt_choices(text, sizeof text, word, 3), "a, bc or d");
    assert_string_equal(dt_choices(little, sizeof little, word, 3), "a, bc");
}

/* ---- faults ---- */

static void pass_points(void)
{
    setenv("DTRAIN_FAULT", "save:3:2:error,write:*:1:nospace,save:4:1:kill", 1);
    dt_log_open(3, 5, "h");
    printf("%d", dt_fault("save"));
    printf("%d", dt_fault("other"));
    printf("%d", dt_fault("save"));
    printf("%d", dt_fault("save"));
    printf("%d", dt_fault("write"));
    printf("%d", dt_fault("write"));
    fflush(stdout);
}

TEST(a_fault_happens_at_the_nth_passage_on_its_rank)
{
    char out[100], want[20];
    captured(pass_points, STDOUT_FILENO, out, sizeof out);
    snprintf(want, sizeof want, "00%d0%d0", DT_ERR_FAULT, DT_ERR_WRITE);
    assert_string_equal(out, want);
}

/* ---- random numbers ---- */

TEST(philox_gives_the_published_words)
{
    /* Random123 1.09, tests/kat_vectors: "philox4x32 10" */
    const struct {
        uint64_t key, hi, lo;
        uint32_t out[4];
    } kat[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
    for (size_t i = 0; i < sizeof kat / sizeof kat[0]; i++) {
        uint32_t out[4];
        dt_philox4x32(kat[i].key, kat[i].hi, kat[i].lo, out);
        assert_memory_equal(out, kat[i].out, sizeof out);
    }
}

TEST(purposes_and_seeds_give_different_keys)
{
    uint64_t keys[24];
    int n = 0;
    for (uint64_t seed = 0; seed < 4; seed++)
        for (int p = DT_RNG_SHUFFLE; p <= DT_RNG_MIX; p++) keys[n++] = dt_rng_key(seed, (dt_rng_purpose)p);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) assert_true(keys[i] != keys[j]);
}

TEST(normal_numbers_do_not_depend_on_the_cut)
{
    enum { N = 1003 };
    float whole[N], pieces[N];
    dt_rng_normal(7, 3, 0, N, 0.02f, whole);
    const int cuts[] = {0, 1, 2, 5, 6, 8, 100, 511, 512, 1002, N};
    for (size_t c = 0; c + 1 < sizeof cuts / sizeof cuts[0]; c++)
        dt_rng_normal(7, 3, cuts[c], cuts[c + 1] - cuts[c], 0.02f, pieces + cuts[c]);
    assert_memory_equal(whole, pieces, sizeof whole);
    dt_rng_normal(7, 4, 0, N, 0.02f, pieces);
    assert_true(memcmp(whole, pieces, sizeof whole) != 0);
    dt_rng_normal(7, 3, INT64_C(1) << 40, 5, 1, pieces);
    for (int i = 0; i < 5; i++) assert_true(isfinite(pieces[i]));
}

/* Sample moments of N(0, 1) over n draws have standard deviations 1/sqrt(n), sqrt(2/n) and sqrt(96/n); six of them are
 * allowed. */
TEST(normal_numbers_have_the_moments_of_a_normal)
{
    enum { N = 200000 };
    float *x = malloc(N * sizeof *x);
    dt_rng_normal(dt_rng_key(42, DT_RNG_INIT), 1, 0, N, 1, x);
    double m1 = 0, m2 = 0, m4 = 0, lag = 0;
    for (int i = 0; i < N; i++) {
        const double v = x[i];
        m1 += v, m2 += v * v, m4 += v * v * v * v;
        if (i) lag += v * x[i - 1];
    }
    free(x);
    assert_true(fabs(m1 / N) < 6 / sqrt(N));
    assert_true(fabs(m2 / N - 1) < 6 * sqrt(2.0 / N));
    assert_true(fabs(m4 / N - 3) < 6 * sqrt(96.0 / N));
    assert_true(fabs(lag / N) < 6 / sqrt(N));
}

TEST(permute_is_a_permutation_for_every_size)
{
    char seen[4100];
    const uint64_t more[] = {1000, 1024, 1025, 4095, 4096, 4097};
    for (uint64_t k = 1; k < 206; k++) {
        const uint64_t n = k < 200 ? k : more[k - 200];
        memset(seen, 0, sizeof seen);
        for (uint64_t i = 0; i < n; i++) {
            const uint64_t j = dt_rng_permute(99 + k, n, i);
            assert_true(j < n && !seen[j]);
            seen[j] = 1;
        }
    }
    assert_true(dt_rng_permute(1, (uint64_t)1 << 62, 12345) < (uint64_t)1 << 62);
}

/* Over keys, each of n values is equally likely at each place: counts are binomial, six standard deviations are
 * allowed. */
TEST(permute_favours_no_place)
{
    enum { KEYS = 20000 };
    for (uint64_t n = 2; n <= 12; n += 5) {
        const double mean = KEYS / (double)n, tolerance = 6 * sqrt(mean * (1 - 1.0 / (double)n));
        for (uint64_t i = 0; i < n; i++) {
            int count[12] = {0};
            for (uint64_t key = 0; key < KEYS; key++) count[dt_rng_permute(dt_mix64(key), n, i)]++;
            for (uint64_t j = 0; j < n; j++) assert_true(fabs(count[j] - mean) < tolerance);
        }
    }
}

/* ---- units and batches ---- */

TEST(tensors_follow_one_another_and_groups_are_aligned)
{
    dt_unit u = {.name = "block.0"};
    const int64_t wide[] = {3, 5}, narrow[] = {7};
    assert_int_equal(dt_unit_add(&u, "q", 2, wide, true, true, 0.02f, 0), DT_OK);
    assert_int_equal(dt_unit_add(&u, "k", 1, narrow, false, false, 0, 1), DT_OK);
    assert_int_equal(dt_unit_add(&u, "v", 1, narrow, true, false, 0, 1), DT_OK);
    assert_int_equal(u.tensors[0].offset, 0);
    assert_int_equal(u.tensors[1].offset, 15);
    assert_int_equal(u.tensors[2].offset, DT_GROUP_ALIGN);
    assert_int_equal(u.n_param, 15 + 7 + 7);
    assert_int_equal(u.flat_len[DT_TRAINED], DT_GROUP_ALIGN + 7);
    assert_int_equal(u.flat_len[DT_FROZEN], 0);
    assert_true(u.tensors[1].trainable && !u.tensors[1].decay && u.tensors[0].decay);
    dt_unit_free(&u);
    assert_null(u.tensors);
}

static bool is_named_b(void *self, const dt_tensor *t)
{
    assert_ptr_equal(self, (void *)1);
    return t->name[0] == 'b';
}

TEST(frozen_groups_are_a_part_of_their_own)
{
    dt_unit u[2] = {{.name = "block.0"}, {.name = "block.1"}};
    const int64_t n = 10;
    static const struct {
        const char *name;
        bool new_group;
    } TENSORS[] = {{"a1", false}, {"b1", false}, {"a2", true}, {"a3", false}, {"b2", true}, {"a4", true}};
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(dt_unit_add(&u[0], TENSORS[i].name, 1, &n, TENSORS[i].new_group, true, 0, 0), DT_OK);
    assert_int_equal(dt_unit_add(&u[1], "a5", 1, &n, true, true, 0, 0), DT_OK);
    assert_int_equal(dt_units_n_trainable(u, 2), 70);
    const dt_tensor *t = u[0].tensors;
    const int64_t before = u[0].flat_len[DT_TRAINED];
    dt_units_choose_trained(u, 2, is_named_b, (void *)1);
    /* a1 is in the group of b1: it goes where that is, and is not trained */
    assert_true(t[0].part == DT_TRAINED && t[0].offset == 0 && !t[0].trainable);
    assert_true(t[1].part == DT_TRAINED && t[1].offset == 10 && t[1].trainable);
    assert_true(t[2].part == DT_FROZEN && t[2].offset == 0 && !t[2].trainable);
    assert_true(t[3].part == DT_FROZEN && t[3].offset == 10);
    assert_true(t[4].part == DT_TRAINED && t[4].offset == DT_GROUP_ALIGN && t[4].trainable);
    assert_true(t[5].part == DT_FROZEN && t[5].offset == DT_GROUP_ALIGN);
    assert_int_equal(u[0].flat_len[DT_TRAINED], DT_GROUP_ALIGN + 10);
    assert_int_equal(u[0].flat_len[DT_FROZEN], DT_GROUP_ALIGN + 10);
    assert_true(u[1].flat_len[DT_TRAINED] == 0 && u[1].flat_len[DT_FROZEN] == 10);
    assert_int_equal(u[0].n_param, 60);
    assert_int_equal(dt_units_n_trainable(u, 2), 20);
    static const dt_row_range rows[] = {{0, 1}, {4, 9}};
    u[0].tensors[1].row_ranges = u[0].tensors[2].row_ranges = rows;
    u[0].tensors[1].n_row_ranges = u[0].tensors[2].n_row_ranges = 2;
    assert_int_equal(dt_units_n_trainable(u, 2), 16); /* rows of a frozen tensor do not count */
    dt_units_choose_trained(u, 2, NULL, NULL);        /* a frozen model lies as one that is trained */
    assert_true(u[0].flat_len[DT_TRAINED] == 0 && u[0].flat_len[DT_FROZEN] == before);
    assert_int_equal(dt_units_n_trainable(u, 2), 0);
    for (int i = 0; i < 2; i++) dt_unit_free(&u[i]);
}

TEST(tensors_that_cannot_be_are_refused)
{
    dt_unit u = {.name = "embed"};
    const int64_t huge[] = {INT64_C(1) << 40, INT64_C(1) << 40}, none[] = {4, 0}, big[] = {INT64_C(1) << 56, 2};
    char name[DT_NAME_MAX + 1];
    memset(name, 'n', DT_NAME_MAX);
    name[DT_NAME_MAX] = '\0';
    assert_int_equal(dt_unit_add(&u, "w", 2, huge, true, true, 0, 0), DT_ERR_ARG);
    assert_int_equal(dt_unit_add(&u, "w", 2, none, true, true, 0, 0), DT_ERR_ARG);
    assert_int_equal(dt_unit_add(&u, "w", 5, none, true, true, 0, 0), DT_ERR_ARG);
    assert_int_equal(dt_unit_add(&u, name, 1, none, true, true, 0, 0), DT_ERR_ARG);
    assert_int_equal(dt_unit_add(&u, "w", 1, big, true, true, 0, 0), DT_OK);
    assert_int_equal(dt_unit_add(&u, "w", 1, big, true, true, 0, 0), DT_ERR_ARG);
    assert_int_equal(u.n_tensors, 1);
    dt_error_clear();
    dt_unit_free(&u);
}

TEST(a_batch_is_counted_and_its_arrays_do_not_overlap)
{
    dt_ledger l = {0};
    dt_batch b;
    assert_int_equal(dt_batch_alloc(&b, 33, 5, &l), DT_OK);
    assert_int_equal(l.now[DT_MEM_DATA][DT_ON_HOST], dt_batch_nbytes(33, 5));
    memset(b.token, 1, 33 * 4);
    memset(b.target, 2, 33 * 4);
    memset(b.pos, 3, 33 * 4);
    memset(b.order, 4, 33 * 4);
    memset(b.target_row, 8, 33 * 4);
    memset(b.weight, 5, 33 * 4);
    memset(b.seq_start, 6, 6 * 4);
    memset(b.seq_target, 9, 6 * 4);
    memset(b.token_key, 7, 33 * 8);
    assert_true(b.token[32] == 0x01010101 && b.target[32] == 0x02020202 && b.pos[32] == 0x03030303 &&
                b.order[32] == 0x04040404 && b.target_row[32] == 0x08080808);
    assert_true(b.seq_start[5] == 0x06060606 && b.seq_target[5] == 0x09090909);
    dt_batch_free(&b, &l);
    assert_int_equal(l.now[DT_MEM_DATA][DT_ON_HOST], 0);
    assert_fails(dt_batch_alloc(&b, 0, 1, &l), DT_ERR_ARG, "");
}

TEST(images_of_a_batch_are_counted_and_do_not_overlap)
{
    dt_ledger l = {0};
    dt_batch text, b;
    assert_int_equal(dt_batch_alloc(&text, 33, 5, &l), DT_OK);
    assert_int_equal(dt_batch_add_images(&text, 0, 10, &l), DT_OK);
    assert_null(dt_images_of(&text));
    assert_int_equal(dt_n_images_of(&text), 0);
    dt_images_clear(&text);
    dt_batch_free(&text, &l);
    assert_int_equal(dt_batch_images_nbytes(0, 10, 5), 0);
    assert_int_equal(dt_batch_alloc(&b, 33, 5, &l), DT_OK);
    assert_fails(dt_batch_add_images(&b, 2, SIZE_MAX / 2 + 1, &l), DT_ERR_ARG, "");
    assert_int_equal(dt_batch_add_images(&b, 3, 10, &l), DT_OK);
    assert_int_equal(l.now[DT_MEM_DATA][DT_ON_HOST], dt_batch_nbytes(33, 5) + dt_batch_images_nbytes(3, 10, 5));
    dt_batch_images *i = dt_images_of(&b);
    assert_true(i->max == 3 && i->image_nbytes == 10 && i->n == 0);
    for (int k = 0; k < 3; k++) memset(dt_images_append(i, 2 * k, 1), k + 1, 10);
    for (int k = 0; k < 30; k++) assert_int_equal(i->pixels[k], k / 10 + 1);
    for (int s = 0; s < 5; s++) assert_true(i->first[s] == (s % 2 ? 0 : s / 2) && i->count[s] == (s % 2 == 0));
    assert_int_equal(dt_n_images_of(&b), 3);
    i->absent = true;
    assert_null(dt_images_of(&b));
    assert_int_equal(dt_n_images_of(&b), 0);
    i->absent = false;
    dt_images_clear(&b);
    assert_int_equal(dt_n_images_of(&b), 0);
    dt_batch_free(&b, &l);
    assert_int_equal(l.now[DT_MEM_DATA][DT_ON_HOST], 0);
}

TEST(finish_sorts_stably_and_sums_exactly)
{
    enum { MAX = 3000 };
    const uint32_t ranges[] = {1, 7, 2048, 50257, 1u << 22, 1u << 30};
    dt_batch b;
    assert_int_equal(dt_batch_alloc(&b, MAX, 4, NULL), DT_OK);
    for (int n = 0; n <= MAX; n += n < 4 ? 1 : 1498) {
        for (size_t r = 0; r < sizeof ranges / sizeof ranges[0]; r++) {
            b.n_tok = n, b.n_seq = 2;
            b.seq_start[0] = 0, b.seq_start[1] = n / 3, b.seq_start[2] = n;
            int64_t fixed = 0, n_target = 0;
            for (int i = 0; i < n; i++) {
                b.token[i] = (int32_t)(dt_mix64((uint64_t)i + r) % ranges[r]);
                b.target[i] = i % 3 ? i : -1;
                b.weight[i] = i % 3 ? (float)(i % 8) / 4 : 0;
                fixed += i % 3 ? (int64_t)(i % 8) << 18 : 0;
                n_target += i % 3 != 0;
            }
            dt_batch_finish(&b);
            assert_int_equal(b.n_target, n_target);
            assert_true(b.weight_fixed == fixed);
            for (int i = 0, k = 0; i < n; i++) {
                if (i == n / 3) assert_int_equal(b.seq_target[1], k);
                if (b.target[i] >= 0) assert_int_equal(b.target_row[k++], i);
            }
            assert_int_equal(b.seq_target[2], n_target);
            for (int i = 1; i < n; i++) {
                const int32_t x = b.order[i - 1], y = b.order[i];
                assert_true(b.token[x] < b.token[y] || (b.token[x] == b.token[y] && x < y));
            }
        }
    }
    dt_batch_free(&b, NULL);
}

/* ---- arrays ---- */

TEST(an_array_grows_by_one_element_at_a_time_and_is_kept_when_there_is_no_memory)
{
    int64_t *x = NULL;
    for (int64_t i = 0; i < 1000; i++) {
        assert_int_equal(dt_grow(&x, i, sizeof *x, "no memory"), DT_OK);
        x[i] = i;
    }
    for (int64_t i = 0; i < 1000; i++) assert_int_equal(x[i], i);
    assert_int_equal(dt_resize(&x, 7, sizeof *x, "no memory"), DT_OK);
    assert_int_equal(dt_resize(&x, INT64_MAX / 2, sizeof *x, "%s: out of memory for %d", "list", 3), DT_ERR_MEMORY);
    assert_string_equal(dt_error_message(), "list: out of memory for 3");
    assert_int_equal(x[6], 6);
    dt_error_clear();
    free(x);
    assert_int_equal(dt_alloc(&x, 0, sizeof *x, "no memory"), DT_OK);
    assert_non_null(x);
    free(x);
    assert_fails(dt_alloc(&x, -1, sizeof *x, "no memory"), DT_ERR_MEMORY, "");
}

/* ---- cores ---- */

TEST(cores_are_those_of_the_affinity_mask_and_of_the_task)
{
    cpu_set_t all, one;
    CPU_ZERO(&all);
    CPU_ZERO(&one);
    unsetenv("SLURM_CPUS_PER_TASK");
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    const int n = CPU_COUNT(&all);
    assert_int_equal(dt_cores_own(), n);
    assert_true(n <= dt_cores_online());
    for (int c = 0; c < CPU_SETSIZE && CPU_COUNT(&one) == 0; c++)
        if (CPU_ISSET(c, &all)) CPU_SET(c, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    dt_cores set;
    dt_cores_of(0, &set);
    assert_int_equal(dt_cores_count(&set), 1);
    assert_int_equal(dt_cores_own(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    setenv("SLURM_CPUS_PER_TASK", "1", 1); /* where Slurm says it and binds nothing */
    assert_int_equal(dt_cores_own(), 1);
    setenv("SLURM_CPUS_PER_TASK", "1000", 1);
    assert_int_equal(dt_cores_own(), n);
    setenv("SLURM_CPUS_ON_NODE", "7", 1);
    assert_int_equal(dt_cores_of_job(), 7);
    unsetenv("SLURM_CPUS_PER_TASK"), unsetenv("SLURM_CPUS_ON_NODE");
}

int main(void) { return run_listed(NULL, NULL, NULL); }
