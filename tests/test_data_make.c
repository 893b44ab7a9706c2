/* test_data_make.c - datasets from many records: threads, memory, shards, and the reporting of errors. */
#include "cases.h"
#include "data_make_fixture.h"

/* ---- threads, order, memory -------------------------------------------------------------------------------------- */

static bool equal_files(const char *a, const char *b)
{
    FILE *f = fopen(a, "rb"), *g = fopen(b, "rb");
    assert_true(f && g);
    int c, d;
    do c = getc(f), d = getc(g);
    while (c == d && c != EOF);
    fclose(f);
    fclose(g);
    return c == d;
}

/* Enough for many chunks: chats, with one long record in the middle. */
static void write_chats(int64_t nbytes)
{
    FILE *f = fopen(input, "w");
    uint64_t x = 1;
    for (int64_t n = 0; n < nbytes;) {
        x = dt_mix64(x);
        const int len = x % 997 == 0 ? 600000 : (int)(x % 400);
        n += fprintf(f,
                     "{\"messages\": [{\"role\": \"user\", \"content\": \"%*s\"}, {\"role\": \"assistant\", "
                     "\"content\": \"%d\"}]}\n",
                     len, "q", len);
    }
    fclose(f);
}

TEST_WITH(threads_do_not_change_a_byte, clear, NULL)
{
    static const int threads[] = {2, 3, 5};
    dt_make_options o = options();
    dt_make_stats stats;
    write_chats(4 << 20);
    o.n_threads = 1;
    assert_int_equal(make(NULL, &o, &stats), DT_OK);
    assert_int_equal(stats.nbytes_read, stats.nbytes_total);
    o.output = other;
    for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++) {
        o.n_threads = threads[i];
        assert_int_equal(make(NULL, &o, &stats), DT_OK);
        assert_true(equal_files(output, other));
    }
    unlink(other);
}

TEST_WITH(a_document_in_pieces_is_the_document, clear, NULL)
{
    dt_make_options o = options();
    dt_make_stats stats;
    static char text[(1 << 20) + 77];
    for (size_t i = 0; i + 1 < sizeof text; i++) text[i] = (char)('a' + dt_mix64(i) % 26);
    text[500000] = '\n';
    write_input(text);
    static const int64_t n_documents[] = {1, 2, 1, 2}, n_less[] = {0, 1, 0, 4};
    memcpy(text + 800000, "@==@", 4);
    write_input(text);
    o.format = DT_INPUT_TEXT;
    o.separator = "@==@";
    for (int i = 0; i < 4; i++) {
        o.documents = (dt_documents)i;
        assert_int_equal(make(NULL, &o, &stats), DT_OK);
        assert_int_equal(stats.n_documents, n_documents[i]);
        assert_int_equal(stats.n_tokens, (int64_t)sizeof text - 1 - n_less[i] + n_documents[i]);
        dt_dataset *d = open_output(output);
        int32_t id[2000];
        assert_int_equal(dt_dataset_read_tokens(d, 262144 - 1000, 2000, id), DT_OK); /* around the first cut */
        for (int k = 0; k < 2000; k++) assert_int_equal(id[k], text[262144 - 1000 + k]);
        dt_dataset_close(d);
    }
    o.documents = DT_DOCUMENTS_FILES; /* the end of a long one, and a limit that it passes */
    o.max_length = 1000;
    o.truncate = DT_TRUNCATE_END;
    assert_int_equal(make(NULL, &o, &stats), DT_OK);
    dt_dataset *d = open_output(output);
    int32_t id[1000];
    assert_int_equal(dt_dataset_get_info(d)->n_tokens, 1000);
    assert_int_equal(dt_dataset_read_tokens(d, 0, 1000, id), DT_OK);
    for (size_t k = 0; k < 999; k++) assert_int_equal(id[k], text[sizeof text - 1 - 999 + k]);
    assert_int_equal(id[999], 256);
    dt_dataset_close(d);
}

TEST_WITH(the_first_error_is_the_one_reported, clear, NULL)
{
    dt_make_options o = options();
    dt_make_stats stats;
    FILE *f = fopen(input, "w");
    for (int i = 1; i <= 9000; i++) /* a record refused quickly, after one read slowly */
        fprintf(f, i > 4000 && i % 500 == 3 ? "{\"bad\": %d}\n" : "{\"prompt\": \"%0200d\", \"completion\": \"x\"}\n",
                i);
    fclose(f);
    for (int n = 1; n <= 5; n += 2) {
        o.n_threads = n;
        for (int turn = 0; turn < 5; turn++) {
            assert_fails(make(NULL, &o, &stats), DT_ERR_DATA, ":4003: ");
            assert_true(access(output, F_OK) != 0);
        }
    }
}

/* What training would refuse is not written. */
TEST_WITH(weights_that_would_be_rounded_away_are_refused, clear, NULL)
{
    static const struct {
        const char *weight;
        dt_err want;
    } cases[] = {{"0", DT_OK},           {"0.001", DT_OK},    {"1e6", DT_OK},         {"0.0009", DT_ERR_DATA},
                 {"1.1e6", DT_ERR_DATA}, {"-1", DT_ERR_DATA}, {"\"1\"", DT_ERR_DATA}, {"NaN", DT_ERR_DATA}};
    dt_make_options o = options();
    o.weight_key = "w";
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_make_stats stats;
        char record[128];
        snprintf(record, sizeof record, "{\"prompt\": \"p\", \"completion\": \"c\", \"w\": %s}\n", cases[i].weight);
        assert_int_equal(make(record, &o, &stats), cases[i].want);
        if (cases[i].want != DT_OK) assert_says("w: expected a weight of 0, or from 0.001");
    }
}

TEST_WITH(errors_are_reported_by_reason, clear, NULL)
{
    dt_make_options o = options();
    dt_make_stats stats;
    o.skip_bad = true;
    assert_int_equal(make("{\"prompt\": \"p\", \"completion\": \"c\"}\n\n{\"messages\": [{\"role\": \"user\", "
                          "\"content\": 1}]}\nnothing\n"
                          "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"user\", \"content\": "
                          "2}]}\n{\"text\": \"t\"}\n",
                          &o, &stats),
                     DT_OK);
    assert_int_equal(stats.n_bad, 4);
    assert_int_equal(stats.n_problems, 3);
    assert_int_equal(stats.problems[0].n, 2);
    assert_non_null(strstr(stats.problems[0].first, ":3"));
    assert_non_null(strstr(stats.problems[0].reason, "message 0: content"));
    assert_non_null(strstr(stats.problems[1].first, ":4"));
    assert_non_null(strstr(stats.problems[2].reason, "kind tokens"));
}

TEST_WITH(a_ranking_of_another_kind_is_one_record, clear, NULL)
{
    static const char *const ranking = "{\"prompt\": \"q\", \"responses\": [\"a\", \"b\", \"c\", \"d\"]}\n";
    char text[512];
    dt_make_options o = options();
    dt_make_stats stats;
    o.skip_bad = true;
    snprintf(text, sizeof text, "{\"text\": \"t\"}\n%s%s", ranking, ranking);
    assert_int_equal(make(text, &o, &stats), DT_OK);
    assert_int_equal(stats.n_bad, 2);
    assert_int_equal(stats.n_problems, 1);
    assert_int_equal(stats.problems[0].n, 2);
    assert_int_equal(stats.n_documents, 1);
}

/* Whether broken records are left out or not: where the next one begins, nothing says. */
TEST_WITH(an_array_ends_where_its_brackets_do_not_match, clear, NULL)
{
    static const struct {
        const char *text, *begins, *breaks;
    } cases[] = {
        {"[{\"text\": \"a\"},\n{\"text\": \"b\",\n{\"text\": \"c\"}]", ":2: ", "line 3: expected a key or }"},
        {"[{\"text\": \"a\"},\n{\"text\": \"b\"\n\n{\"text\": \"c\"}]", ":2: ", "line 4: expected a key or }"},
        {"[\n{\"text\": \"a\"\n]", ":2: ", "line 3: expected }, found ]"},
        {"[\n{\"text\": \"a\", \"b\": [\n1}]", ":2: ", "line 3: expected ], found }"},
        {"[\n{\"text\": \"a},\n{\"text\": \"b\"}]", ":2: ", "line 2: expected a closing quote"},
        {"[{\"text\": \"a\"},\n{\"text\": \"b\"}\n},\n{\"text\": \"c\"}]", ":2: ", "line 3: expected a comma or ]"},
        {"[{\"text\": \"a\"}\n{\"text\": \"b\"}]", ":1: ", "line 2: expected a comma or ]"},
        {"[{\"text\": \"a\"},\n{\"text\":\n", ":2: the file ends inside the record", ""},
        {"[{\"text\": \"a\"},\n{\"text\": \"b", ":2: the file ends inside the record", ""},
        {"[\n{\"text\": \"a\"}\n\n", ":2: the file ends after the record", ""},
        {"[{\"text\": \"a\"},\n\n", ":3: the file ends inside a JSON array", ""},
    };
    dt_make_options o = options();
    dt_make_stats stats;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int skip = 0; skip < 2; skip++) {
            o.skip_bad = skip == 1;
            assert_fails(make(cases[i].text, &o, &stats), DT_ERR_DATA, cases[i].begins, cases[i].breaks);
        }
}

TEST_WITH(an_array_continues_after_other_errors, clear, NULL)
{
    char text[1024];
    const size_t n = (size_t)snprintf(text, sizeof text,
                                      "[{\"text\": nothing}, 3, {\"text\": \"they \"said\" so\"}, {\"text\" \"a\"}, "
                                      "{\"text\": \"}]\\\"[{\", \"deep\": ");
    memset(text + n, '[', 300);
    memset(text + n + 300, ']', 300);
    strcpy(text + n + 600, "}]");
    dt_make_options o = options();
    dt_make_stats stats;
    o.skip_bad = true;
    assert_int_equal(make(text, &o, &stats), DT_OK);
    assert_int_equal(stats.n_bad, 4);
    assert_int_equal(stats.n_documents, 1);
    assert_int_equal(stats.n_tokens, (int64_t)strlen("}]\"[{") + 1);
}

TEST_WITH(memory_does_not_grow_with_the_input, clear, NULL)
{
    dt_make_options o = options();
    dt_make_stats stats;
    struct rusage before, after;
    o.format = DT_INPUT_TEXT;
    o.documents = DT_DOCUMENTS_FILES;
    FILE *f = fopen(input, "w");
    char block[1 << 16];
    memset(block, 'x', sizeof block);
    for (int i = 0; i < 16; i++) fwrite(block, 1, sizeof block, f);
    fclose(f);
    assert_int_equal(make(NULL, &o, &stats), DT_OK); /* allocations made once */
    f = fopen(input, "a");
    for (int i = 0; i < 1600; i++) fwrite(block, 1, sizeof block, f);
    fclose(f);
    getrusage(RUSAGE_SELF, &before);
    assert_int_equal(make(NULL, &o, &stats), DT_OK); /* 100 MiB of text, 200 MiB of ids */
    getrusage(RUSAGE_SELF, &after);
    assert_int_equal(stats.n_tokens, 1616 * (int64_t)sizeof block + 1);
#ifndef __SANITIZE_ADDRESS__ /* which keeps freed memory for a while */
    assert_true(after.ru_maxrss - before.ru_maxrss <
                24 * 1024); /* KiB: 6 chunks of 256 KiB of text and 1 MiB of ids, and 3 MiB of buffers, twice */
#endif
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */

TEST_WITH(shards_hold_the_samples_in_order, clear, NULL)
{
    char pattern[256], path[256];
    dt_make_options o = options();
    dt_make_stats stats;
    FILE *f = fopen(input, "w");
    for (int i = 0; i < 100; i++)
        fprintf(f, "{\"prompt\": \"%d\", \"chosen\": \"%0*d\", \"rejected\": \"r%d\", \"margin\": %d}\n", i, i, 0, i,
                i);
    fclose(f);
    for (int by_size = 0; by_size < 2; by_size++) {
        o.n_shards = by_size ? 0 : 3;
        o.shard_nbytes = by_size ? 5000 : 0;
        assert_int_equal(make(NULL, &o, &stats), DT_OK);
        assert_true(by_size ? stats.n_shards > 2 : stats.n_shards == 3);
        for (int s = 0, number = 0; s < stats.n_shards; s++) {
            snprintf(path, sizeof path, "%.*s-%05d-of-%05d.h5", (int)strlen(output) - 3, output, s, stats.n_shards);
            dt_dataset *d = open_output(path);
            const int64_t n = dt_dataset_get_info(d)->n_documents;
            assert_true(n > 0);
            for (int64_t i = 0; i < n; i++, number++) {
                char found[512], want[512];
                dt_pair pair;
                assert_int_equal(dt_dataset_read_pair(d, i, &pair), DT_OK);
                assert_true(pair.margin == (float)number);
                show(d, DT_SIDE_SECOND, i, pair.prompt_length[1], found);
                snprintf(want, sizeof want, "%d{r%d$}", number, number);
                assert_string_equal(found, want);
            }
            if (by_size) {
                struct stat st;
                assert_int_equal(stat(path, &st), 0);
                assert_true(st.st_size < 5000 + 8192); /* arrays, and what HDF5 needs for eight of them */
            }
            dt_dataset_close(d);
            unlink(path);
            assert_int_equal(number == 100, s + 1 == stats.n_shards);
        }
    }
    o.n_shards = 101;
    o.shard_nbytes = 0;
    assert_int_equal(make(NULL, &o, &stats), DT_ERR_DATA);
    snprintf(pattern, sizeof pattern, "test -z \"$(ls %s | grep -v input)\"", dir);
    assert_int_equal(system(pattern), 0);
}

/* Wherever shards end: the same samples as from one file. */
TEST_WITH(sharded_training_equals_unsharded_training, clear, NULL)
{
    char pattern[256];
    dt_make_options o = options();
    dt_make_stats stats;
    FILE *f = fopen(input, "w");
    for (int i = 0; i < 60; i++) fprintf(f, "{\"prompt\": \"%d\", \"completion\": \"%0*d\"}\n", i, 1 + i % 7, i);
    fclose(f);
    assert_int_equal(make(NULL, &o, &stats), DT_OK);
    o.n_shards = 4;
    assert_int_equal(make(NULL, &o, &stats), DT_OK);
    snprintf(pattern, sizeof pattern, "%.*s-*.h5", (int)strlen(output) - 3, output);
    dt_loader_options lo = {.files = output,
                            .where = "test",
                            .seq_len = 32,
                            .packing = "auto",
                            .train_batch_size = 5,
                            .micro_batch_size = 5,
                            .nranks = 1,
                            .vocab_size = 257};
    dt_loader *whole, *parts;
    assert_int_equal(dt_loader_open(&whole, &lo), DT_OK);
    lo.files = pattern;
    assert_int_equal(dt_loader_open(&parts, &lo), DT_OK);
    for (int s = 0; s < 12; s++) {
        const dt_batch *a, *b;
        assert_int_equal(dt_loader_batch(whole, s, 0, &a), DT_OK);
        assert_int_equal(dt_loader_batch(parts, s, 0, &b), DT_OK);
        assert_int_equal(a->n_tok, b->n_tok);
        assert_memory_equal(a->token, b->token, (size_t)a->n_tok * sizeof *a->token);
        assert_memory_equal(a->target, b->target, (size_t)a->n_tok * sizeof *a->target);
    }
    dt_loader_close(whole);
    dt_loader_close(parts);
    snprintf(pattern, sizeof pattern, "rm -f %s/out*", dir);
    assert_int_equal(system(pattern), 0);
}

TEST_WITH(training_refuses_what_it_cannot_learn_yet, clear, NULL)
{
    dt_make_options o = options();
    dt_make_stats stats;
    dt_loader *l;
    assert_int_equal(make("{\"prompt\": \"q\", \"chosen\": \"c\", \"rejected\": \"r\"}", &o, &stats), DT_OK);
    const dt_loader_options lo = {.files = output,
                                  .where = "test",
                                  .seq_len = 4,
                                  .packing = "auto",
                                  .train_batch_size = 1,
                                  .micro_batch_size = 1,
                                  .nranks = 1};
    assert_fails(dt_loader_open(&l, &lo), DT_ERR_DATA, "kind preference");
}

TEST_WITH(stopping_leaves_no_files, clear, NULL)
{
    static const atomic_bool stop = true;
    char test[128];
    dt_make_options o = options();
    dt_make_stats stats;
    write_chats(1 << 20);
    unlink(output);
    o.stop = &stop;
    assert_int_equal(make(NULL, &o, &stats), DT_ERR_STOP);
    snprintf(test, sizeof test, "test -z \"$(ls -A %s | grep -v input)\"", dir);
    assert_int_equal(system(test), 0);
}

TEST_WITH(options_that_do_not_fit_are_refused, clear, NULL)
{
    dt_make_stats stats;
    write_input("{\"text\": \"t\"}\n");
#define FAILS(change, err, says)                                                                                       \
    do {                                                                                                               \
        dt_make_options o = options();                                                                                 \
        change;                                                                                                        \
        assert_fails(make(NULL, &o, &stats), err, says);                                                               \
    } while (0)
#define REFUSED(change, says) FAILS(change, DT_ERR_USAGE, says)
    REFUSED(o.n_threads = 5000, "threads");
    REFUSED((o.n_shards = 2, o.shard_nbytes = 5), "found both");
    REFUSED(o.turn_budgets = true, "--max-length");
    REFUSED(o.weight_key = "w", "weight key");
    FAILS(o.tokenizer = "none", DT_ERR_DATA, "tokenizer");
    REFUSED(o.chat_template = "none", "template");
}

int main(void) { return run_listed("data_make", open_folder, remove_folder); }
