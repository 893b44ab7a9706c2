/* test_train.c - batch sizes and intervals, pure functions of the configuration; and the words of its keys that name
 * tables. */
#include "cases.h"
#include "dtrain/train/train.h"

static dt_config config(const char *text)
{
    dt_config cfg = {0};
    assert_int_equal(dt_config_parse(&cfg, "test.ini", text, 0, NULL), DT_OK);
    return cfg;
}

TEST(any_two_batch_sizes_give_the_third)
{
    const struct {
        const char *text;
        int nranks;
        int64_t G, m, A;
    } cases[] = {
        {"[batch]\ntrain_batch_size = 24\nmicro_batch_size = 2\n", 3, 24, 2, 4},
        {"[batch]\ntrain_batch_size = 24\ngradient_accumulation_steps = 2\n", 4, 24, 3, 2},
        {"[batch]\nmicro_batch_size = 5\ngradient_accumulation_steps = 2\n", 7, 70, 5, 2},
        {"[batch]\ntrain_batch_size = 24\nmicro_batch_size = 2\ngradient_accumulation_steps = 4\n", 3, 24, 2, 4},
        {"[batch]\ntrain_batch_size = 24\n", 3, 24, 8, 1},
        {"[batch]\nmicro_batch_size = 4\n", 3, 12, 4, 1},
        {"[batch]\ngradient_accumulation_steps = 4\n", 3, 12, 1, 4},
        {"", 5, 5, 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_config cfg = config(cases[i].text);
        dt_batching b;
        assert_int_equal(dt_batching_resolve(&b, &cfg, cases[i].nranks), DT_OK);
        assert_int_equal(b.train_batch_size, cases[i].G);
        assert_int_equal(b.micro_batch_size, cases[i].m);
        assert_int_equal(b.accumulation, cases[i].A);
        dt_config_free(&cfg);
    }
}

TEST(sizes_that_do_not_multiply_name_what_would)
{
    const struct {
        const char *text;
        int nranks;
        const char *must_say[3];
    } cases[] = {
        {"[batch]\ntrain_batch_size = 25\nmicro_batch_size = 2\n", 3, {"test.ini:2", "24", "30"}},
        {"[batch]\ntrain_batch_size = 3\nmicro_batch_size = 2\n", 4, {"test.ini:2", "is less than", "8"}},
        {"[batch]\ntrain_batch_size = 10\ngradient_accumulation_steps = 2\n", 2, {"test.ini:2", "8", "12"}},
        {"[batch]\ntrain_batch_size = 32\nmicro_batch_size = 4\ngradient_accumulation_steps = 8\n",
         2,
         {"test.ini:2", "contradicts", "64"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_config cfg = config(cases[i].text);
        dt_batching b;
        dt_error_clear();
        assert_int_equal(dt_batching_resolve(&b, &cfg, cases[i].nranks), DT_ERR_USAGE);
        for (int k = 0; k < 3; k++) assert_non_null(strstr(dt_error_message(), cases[i].must_say[k]));
        dt_config_free(&cfg);
    }
}

TEST(an_evaluation_takes_any_batch_sizes)
{
    const struct {
        const char *text;
        int nranks;
        int64_t m;
    } cases[] = {
        {"[run]\ntask = eval\n[batch]\ntrain_batch_size = 25\nmicro_batch_size = 2\n", 3, 2},
        {"[run]\ntask = eval\n[batch]\ntrain_batch_size = 6\nmicro_batch_size = 2\ngradient_accumulation_steps = 3\n",
         4, 2},
        {"[run]\ntask = eval\n[batch]\ntrain_batch_size = 24\ngradient_accumulation_steps = 2\n", 3, 4},
        {"[run]\ntask = eval\n[batch]\ntrain_batch_size = 3\n", 16, 1},
        {"[run]\ntask = eval\n", 5, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_config cfg = config(cases[i].text);
        dt_batching b;
        dt_batching_for_evaluation(&b, &cfg, cases[i].nranks);
        assert_int_equal(b.micro_batch_size, cases[i].m);
        assert_int_equal(b.train_batch_size, cases[i].m * cases[i].nranks);
        assert_int_equal(b.accumulation, 1);
        dt_config_free(&cfg);
    }
}

TEST(intervals_below_one_are_shares)
{
    assert_int_equal(dt_interval_steps(0, 100), 0);
    assert_int_equal(dt_interval_steps(0.25, 101), 26);
    assert_int_equal(dt_interval_steps(7, 100), 7);
}

TEST(an_interval_is_a_fraction_or_an_integer)
{
    const struct {
        const char *text;
        dt_err want;
        const char *say;
    } cases[] = {
        {"[checkpoint]\nsave_steps = 0.5\n[log]\nlogging_steps = 10\n[data]\nvalidation_steps = 1\n", DT_OK, ""},
        {"[checkpoint]\nsave_steps = 1.5\n", DT_ERR_USAGE, "test.ini:2: [checkpoint] save_steps"},
        {"[log]\nlogging_steps = 2.25\n", DT_ERR_USAGE, "test.ini:2: [log] logging_steps"},
        {"[data]\nvalidation_steps = 100.1\n", DT_ERR_USAGE, "test.ini:2: [data] validation_steps"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_config cfg = config(cases[i].text);
        dt_error_clear();
        assert_int_equal(dt_intervals_check(&cfg), cases[i].want);
        assert_says(cases[i].say);
        dt_config_free(&cfg);
    }
}

TEST(saves_of_the_best_come_with_validations)
{
    const char *on = "[data]\nvalidation_steps = %g\n[checkpoint]\nload_best_model_at_end = true\nsave_steps = %g\n";
    const struct {
        double validate, save;
        dt_err want;
        const char *say;
    } cases[] = {
        {50, 100, DT_OK, ""},
        {100, 100, DT_OK, ""},
        {0.1, 0.2, DT_OK, ""},
        {0, 0, DT_OK, ""},
        {70, 0, DT_OK, ""},
        {0, 1000, DT_OK, ""}, /* both at the end */
        {60, 100, DT_ERR_USAGE, "the nearest are 60 and 120"},
        {100, 60, DT_ERR_USAGE, "the nearest is 100"},
        {0, 100, DT_ERR_USAGE, "data.validation_steps = 100 or a divisor"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[200];
        snprintf(text, sizeof text, on, cases[i].validate, cases[i].save);
        dt_config cfg = config(text);
        dt_error_clear();
        assert_int_equal(dt_best_intervals_check(&cfg, 1000, "data.validation_steps", cfg.data_validation_steps),
                         cases[i].want);
        assert_says(cases[i].say);
        dt_config_free(&cfg);
    }
}

/* ---- words that name tables -------------------------------------------------------------------------------------- */

/** The words that a key may have, as config_keys.h lists them: "a|b|c". */
static const char *words_of(const char *wanted)
{
    const char *words = "";
#define PASS(...)
#define LOOK(section, key, otherwise, words_, help)                                                                    \
    if (!strcmp(wanted, #section "." #key)) words = words_;
    DT_CONFIG_KEYS(PASS, PASS, PASS, LOOK, PASS, PASS)
#undef LOOK
#undef PASS
    return words;
}

/** The next of them, and the remainder; false: none is left. */
static bool next_word(const char **words, char word[32])
{
    const int len = (int)strcspn(*words, "|");
    snprintf(word, 32, "%.*s", len, *words);
    *words += len + ((*words)[len] == '|');
    return len > 0;
}

TEST(every_task_that_can_be_named_has_a_table_and_every_table_a_name)
{
    char word[32];
    int n = 0, n_tables = 0;
    for (const char *words = words_of("run.task"); next_word(&words, word); n++)
        if (!dt_task_find(word)) fail_msg("run.task = %s is in no table", word);
    while (dt_tasks[n_tables]) n_tables++;
    assert_int_equal(n, n_tables);
}

TEST(every_optimizer_that_can_be_named_has_a_table)
{
    char word[32], text[64];
    int n = 0;
    for (const char *words = words_of("optimizer.type"); next_word(&words, word); n++) {
        snprintf(text, sizeof text, "[optimizer]\ntype = %s\n", word);
        dt_config cfg = config(text);
        const dt_optimizer_ops *o = dt_optimizer_of(&cfg);
        if (!o || strcmp(o->name, word) != 0) fail_msg("optimizer.type = %s is %s", word, o ? o->name : "no table");
        dt_config_free(&cfg);
    }
    assert_true(n >= 3);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
