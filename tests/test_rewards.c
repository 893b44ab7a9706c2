// NEEDS: PCRE2 UTF8PROC
/* test_rewards.c - reward functions on plain cases: extraction and comparison of answers, formats, lengths, words;
 * and errors in a list of functions. */
#include "cases.h"
#include "../src/reward/answer.h"
#include "../src/reward/builtin.h"
#include "dtrain/io/matrix_file.h"

static const dt_item_vectors *items; /* NULL: none */

/* NaN: does not apply. */
static double reward_of(const char *function, const char *completion, int32_t n_tokens, const char *record)
{
    dt_builtin *b;
    json_t *json;
    double reward = -99;
    const dt_reward_sample s = {
        .prompt = "", .completion = completion, .n_completion = n_tokens, .record = record, .items = items};
    dt_error_clear();
    assert_int_equal(dt_json_parse(&json, "record", record, strlen(record), 0), DT_OK);
    assert_int_equal(dt_builtin_open(&b, function), DT_OK);
    assert_non_null(b);
    if (dt_builtin_of(b)->score(b, &s, json, &reward) != DT_OK) reward = -1;
    dt_builtin_close(b);
    json_decref(json);
    return reward;
}

static void same(const char *function, const char *completion, int32_t n_tokens, const char *record, double want)
{
    const double found = reward_of(function, completion, n_tokens, record);
    if (isnan(want) ? !isnan(found) : found != want)
        fail_msg("%s of \"%s\" (%d tokens, record %s): expected %g, found %g: %s", function, completion, (int)n_tokens,
                 record, want, found, dt_error_message());
}

TEST(the_answer_of_a_text_is_found)
{
    static const struct {
        const char *text, *answer;
    } cases[] = {
        {"12", "12"},
        {"  two words \n", "two words"},
        {"so 3+4 is\n#### 7\nthat is all", "7"},
        {"#### 1\n#### 2", "2"},
        {"<think>#### 5</think><answer> 6 </answer> #### 8", "6"},
        {"<answer>1</answer> no, <answer>2</answer>", "2"},
        {"<answer>it is\n#### 9</answer>", "9"},
        {"<answer>3", "<answer>3"}, /* never closed: no answer in tags */
        {"</answer>4", "</answer>4"},
        {"<answer>1 <answer>2</answer>", "2"},
        {"thus \\boxed{1} or \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"},
        {"\\boxed{1", "\\boxed{1"},
        {"####", ""},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const dt_answer a = dt_answer_in(cases[i].text);
        char found[64];
        snprintf(found, sizeof found, "%.*s", (int)a.n, a.at);
        assert_string_equal(found, cases[i].answer);
    }
}

TEST(answers_are_compared_by_what_they_say)
{
    static const struct {
        const char *a, *b;
        bool equal;
    } cases[] = {
        {"7", "7", true},
        {"7", "8", false},
        {"7", "7.0", true},
        {"1,000", "1000", true},
        {"1,234,567.5", "1234567.5", true},
        {"1,00", "100", false}, /* not thousands */
        {"1e3", "1000", true},
        {"+5", "5", true},
        {"-5", "5", false},
        {"$5.00", "5", true},
        {"-$5", "-5", true},
        {"1/2", "0.5", true},
        {"3 / 4", "0.75", true},
        {"1/3", "0.3333", false},
        {"0.3/0.1", "3", true}, /* three roundings: 2.9999999999999996 */
        {"0.1", ".1", true},
        {"0.1", "1e-1", true},
        {"1/0", "1/0", true}, /* no number, and the same text */
        {"12.", "12", true},
        {"12 apples", "12", false},
        {"nan", "nan", true},
        {"nan", "0", false},
        {"0x10", "16", false},
        {"inf", "1e999", false},
        {"Paris", "paris.", true},
        {"new  york", "New\nYork", true},
        {"Stra\303\237e", "STRASSE", true},
        {"\357\274\221\357\274\222", "12", true}, /* full-width digits */
        {"\303\244", "a\314\210", true},          /* composed and not */
        {"a", "b", false},
        {"", "0", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int swapped = 0; swapped < 2; swapped++) {
            const char *x = swapped ? cases[i].b : cases[i].a, *y = swapped ? cases[i].a : cases[i].b;
            bool equal;
            assert_int_equal(dt_answers_equal((dt_answer){x, strlen(x)}, (dt_answer){y, strlen(y)}, &equal), DT_OK);
            if (equal != cases[i].equal) fail_msg("\"%s\" and \"%s\"", x, y);
        }
}

TEST(accuracy_compares_with_the_record)
{
    same("accuracy", "it is\n#### 12", 5, "{\"answer\": \"6 + 6 = 12\\n#### 12\"}", 1);
    same("accuracy", "<think>hm</think><answer>12</answer>", 5, "{\"answer\": 12}", 1);
    same("accuracy", "13", 5, "{\"answer\": 12}", 0);
    same("accuracy", "12", 5, "{\"solution\": \"12\"}", 1);
    same("accuracy", "true", 5, "{\"answer\": true}", 1);
    same("accuracy", "12", 5, "{\"answer\": null, \"solution\": \"12\"}", 1);
    same("accuracy", "", 0, "{\"answer\": \"12\"}", 0);
    same("accuracy", "12", 5, "{}", (double)NAN);
    same("accuracy", "12", 5, "{\"answer\": \" \"}", (double)NAN);
}

TEST(format_is_detected_from_the_whole_text)
{
    same("format", "<think>a</think><answer>b</answer>", 5, "{}", 1);
    same("format", "\n<think>\na\n</think>\n<answer>b\n</answer>\n", 5, "{}", 1);
    same("format", "<think></think><answer></answer>", 5, "{}", 1);
    same("format", "x<think>a</think><answer>b</answer>", 5, "{}", 0);
    same("format", "<think>a</think><answer>b</answer>x", 5, "{}", 0);
    same("format", "<think>a</think> and <answer>b</answer>", 5, "{}", 0);
    same("format", "<think>a</think></think><answer>b</answer>", 5, "{}", 0);
    same("format", "<think>a</think><answer>b<answer>c</answer>", 5, "{}", 0);
    same("format", "<think>a</think>", 5, "{}", 0);
    same("format:\\d+", "123", 5, "{}", 1);
    same("format:\\d+", "123 ", 5, "{}", 0);
    same("format:a.b", "a\nb", 5, "{}", 1);
    same("format:(a+)+", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", 5, "{}", 0); /* a limit */
    char *text = malloc(1000064);
    memset(text, 'x', 1000000);
    memcpy(text, "<think>", 7);
    strcpy(text + 1000000, "</think><answer>1</answer>");
    same("format", text, 5, "{}", 1);
    free(text);
}

TEST(lengths_fall_off_outside_of_their_range)
{
    static const struct {
        const char *function;
        int32_t n;
        double want;
    } cases[] = {{"length:10", 10, 1},    {"length:10", 5, 0.5},    {"length:10", 15, 0.5}, {"length:10", 0, 0},
                 {"length:10", 20, 0},    {"length:10", 30, 0},     {"length:4:8", 4, 1},   {"length:4:8", 8, 1},
                 {"length:4:8", 3, 0.75}, {"length:4:8", 10, 0.75}, {"length:4:8", 16, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        same(cases[i].function, "", cases[i].n, "{\"length\": 3}", cases[i].want);
    same("length", "", 3, "{\"length\": 3}", 1);
    same("length", "", 8, "{\"length\": [2, 4]}", 0);
    same("length", "", 8, "{}", (double)NAN);
    same("length", "", 8, "{\"length\": 0}", -1); /* an error */
    same("length", "", 8, "{\"length\": [4, 2]}", -1);
    same("length", "", 8, "{\"length\": \"4\"}", -1);
}

TEST(each_keyword_is_counted_once)
{
    same("keywords:yes|no", "Yes, yes", 5, "{}", 0.5);
    same("keywords: yes | no ", "NO and YES", 5, "{}", 1);
    same("keywords:yes", "maybe", 5, "{\"keywords\": \"maybe\"}", 0);
    same("keywords", "maybe", 5, "{\"keywords\": \"maybe|x y\"}", 0.5);
    same("keywords", "a b c d", 5, "{\"keywords\": [\"a\", \"b c\", \"e\", \"f\"]}", 0.5);
    same("keywords", "a", 5, "{}", (double)NAN);
    same("keywords", "a", 5, "{\"keywords\": []}", (double)NAN);
    same("keywords", "a", 5, "{\"keywords\": [1]}", -1);
}

TEST(an_item_is_what_stands_between_quotes_and_blanks)
{
    same("rec", "<a_1><b_2>\n", 3, "{\"answer\": \"<a_1><b_2>\"}", 1);
    same("rec_rule", " \"<a_1><b_2>\" \n", 3, "{\"answer\": \"\\n\\\"<a_1><b_2>\"}", 1);
    same("rec_rank", "<a_1><b_2>", 3, "{\"answer\": \"<a_1><b_20>\"}", 0);
    same("rec", "<a_1> <b_2>", 3, "{\"answer\": \"<a_1><b_2>\"}", 0);
    same("rec", "<a_1>", 3, "{}", (double)NAN);
}

static void put_file(const char *path, const void *text, size_t nbytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, nbytes, f), nbytes);
    assert_int_equal(fclose(f), 0);
}

/* Embeddings (1, 0), (0, 2) and (-3, -3) of the items 0, 1 and 2, of which the last two have one SID. */
TEST(items_are_alike_as_their_embeddings_are)
{
    char catalogue[] = "/tmp/dtrain_rewards_XXXXXX", vectors[] = "/tmp/dtrain_vectors_XXXXXX";
    static const char lines[] = "<a>\tA\t0\n<b>\tB\t1\n<b>\tC\t2\n";
    struct {
        char head[DT_NPY_HEADER];
        float row[3][2];
    } file = {.row = {{1, 0}, {0, 2}, {-3, -3}}};
    dt_catalogue *c;
    dt_item_vectors *v;
    const int fds[] = {mkstemp(catalogue), mkstemp(vectors)};
    assert_true(fds[0] >= 0 && fds[1] >= 0 && close(fds[0]) == 0 && close(fds[1]) == 0);
    dt_npy_header(3, 2, file.head);
    put_file(catalogue, lines, sizeof lines - 1);
    put_file(vectors, &file, sizeof file);
    assert_int_equal(dt_catalogue_open(&c, catalogue, NULL), DT_OK);
    assert_int_equal(dt_item_vectors_open(&v, c, vectors, "", false, NULL), DT_OK);
    items = v;
    same("rec_semantic", "<a>\n", 2, "{\"answer\": \"<a>\"}", 1);
    same("rec_semantic", "\"<b>\"", 2, "{\"answer\": \" <b>\"}", 1);
    same("rec_semantic", "<a>\n", 2, "{\"answer\": \"<b>\"}", 0); /* at a right angle to the first of them */
    same("rec_semantic", "<c>\n", 2, "{\"answer\": \"<a>\"}", 0);
    same("rec_semantic", "<a>\n", 2, "{\"answer\": \"<c>\"}", (double)NAN);
    same("rec_semantic", "<a>\n", 2, "{}", (double)NAN);
    items = NULL;
    dt_item_vectors_close(v);
    dt_catalogue_close(c);
    assert_int_equal(remove(catalogue) | remove(vectors), 0);
}

/* The rewards of a group by hand: 1/log2(i + 2) is 1, 0.63093, 0.5 for i = 0, 1, 2; together 2.13093. */
TEST(misses_in_a_group_with_a_hit_are_penalised_by_rank)
{
    static const struct {
        const char *function;
        double hits[3], want[3];
    } cases[] = {{"rec", {0, 1, 0}, {-1 / 2.13093, 1, -0.5 / 2.13093}},
                 {"rec_rank", {0, 1, 0}, {-1 / 2.13093, 0, -0.5 / 2.13093}},
                 {"rec_rank", {1, 0, 1}, {0, -0.63093 / 2.13093, 0}},
                 {"rec_rule", {0, 1, 0}, {0, 1, 0}},
                 {"rec", {0, 0, 0}, {0, 0, 0}},
                 {"rec", {1, 1, 1}, {1, 1, 1}},
                 {"rec", {NAN, NAN, NAN}, {NAN, NAN, NAN}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_builtin *b;
        double reward[6]; /* every second is another function's */
        for (int k = 0; k < 6; k++) reward[k] = k % 2 ? 7 : cases[i].hits[k / 2];
        assert_int_equal(dt_builtin_open(&b, cases[i].function), DT_OK);
        if (dt_builtin_of(b)->of_group) dt_builtin_of(b)->of_group(reward, 3, 2);
        dt_builtin_close(b);
        for (int k = 0; k < 3; k++) {
            const double found = reward[2 * k], want = cases[i].want[k];
            if (isnan(want) ? !isnan(found) : !(fabs(found - want) < 1e-5)) /* digits of the numbers above */
                fail_msg("case %zu, completion %d: expected %g, found %g", i, k, want, found);
            assert_true(reward[2 * k + 1] == 7);
        }
    }
}

TEST(parameters_that_do_not_fit_are_refused)
{
    static const struct {
        const char *function, *says;
    } cases[] = {{"accuracy:1", "accuracy has no parameters"}, {"length:", "expected length:TARGET"},
                 {"length:0", "expected length:TARGET"},       {"length:2.5", "expected length:TARGET"},
                 {"length:8:4", "expected length:TARGET"},     {"length:4:8:9", "expected length:TARGET"},
                 {"length:long", "expected length:TARGET"},    {"keywords:", "expected words"},
                 {"keywords: | ", "expected words"},           {"format:(", "not a valid regular expression"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_builtin *b;
        dt_error_clear();
        assert_int_equal(dt_builtin_open(&b, cases[i].function), DT_ERR_USAGE);
        assert_null(b);
        assert_says(cases[i].function, cases[i].says);
    }
    dt_builtin *b;
    assert_int_equal(dt_builtin_open(&b, "accurate"), DT_OK);
    assert_null(b);
}

/* t: a task that has nothing but a configuration; closed with dt_task_close. */
static dt_rewards *open_list(dt_task *t, const dt_config *cfg, dt_mistakes *mistakes, const char *funcs,
                             const char *weights)
{
    static const dt_task_ops no_task = {.name = "test"};
    *t = (dt_task){.ops = &no_task, .cfg = cfg, .mistakes = mistakes};
    return dt_rewards_open(t, "grpo", "", funcs, weights, NULL);
}

TEST(lists_of_functions_have_names_and_weights)
{
    dt_config cfg;
    dt_mistakes mistakes = {0};
    assert_int_equal(dt_config_parse(&cfg, "test.ini", "", 0, NULL), DT_OK);
    dt_task t;
    dt_rewards *w = open_list(&t, &cfg, &mistakes,
                              "accuracy, length:4, length:8, command:python3 -u /x/judge.py --port 1, command:./a b=c, "
                              "command:env A=1 sh 'my judge.sh'",
                              "1, 0.5, -2, 0, 1, 1");
    assert_int_equal(mistakes.n, 0);
    assert_int_equal(dt_rewards_n(w), 6);
    static const char *const names[] = {"accuracy", "length", "length-2", "judge.py", "a", "my_judge.sh"};
    for (int k = 0; k < 6; k++) {
        assert_string_equal(dt_rewards_names(w)[k], names[k]);
        assert_string_equal(dt_rewards_names(w)[k], names[k]);
    }
    const double nan = (double)NAN;
    assert_true(dt_reward_total(6, dt_rewards_weights(w), (const double[]){1, 1, 1, 5, 0, 0}) == -0.5);
    assert_true(dt_reward_total(6, dt_rewards_weights(w), (const double[]){1, nan, 0.25, nan, nan, nan}) == 0.5);
    assert_true(isnan(dt_reward_total(6, dt_rewards_weights(w), (const double[]){nan, nan, nan, nan, nan, nan})));
    assert_true(dt_rewards_weights(w)[2] == -2);
    dt_task_close(&t);
    w = open_list(&t, &cfg, &mistakes, "format", "");
    assert_true(dt_rewards_weights(w)[0] == 1);
    dt_task_close(&t);
    dt_config_free(&cfg);
}

TEST(what_is_wrong_with_a_list_names_the_key)
{
    static const struct {
        const char *funcs, *weights, *says;
    } cases[] = {
        {"correct", "",
         "reward_funcs (default): expected accuracy, format, length, keywords, rec, rec_rule, rec_rank, rec_semantic, "
         "model:DIRECTORY or command:PROGRAM ARGS, found correct"},
        {"length:0", "", "reward_funcs (default): length:0: expected length:TARGET"},
        {"accuracy, format", "1",
         "reward_weights (default): expected a weight for each of 2 reward functions, found 1"},
        {"accuracy", "nan", "reward_weights (default): expected a number from -1e6 to 1e6, found nan"},
        {"accuracy", "1x", "found 1x"},
        {"command:", "", "expected command:PROGRAM ARGS"},
        {"command:a | b", "", "found shell syntax"},
        {"command:\"a", "", "expected a program and its arguments"},
        {"command:$DTRAIN_TEST_NO_SUCH_NAME", "", "an environment variable is not set"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_config cfg;
        dt_mistakes mistakes = {0};
        assert_int_equal(dt_config_parse(&cfg, "test.ini", "", 0, NULL), DT_OK);
        dt_error_clear();
        dt_task t;
        (void)open_list(&t, &cfg, &mistakes, cases[i].funcs, cases[i].weights);
        assert_int_equal(mistakes.n, 1);
        if (!strstr(mistakes.text, cases[i].says)) fail_msg("expected %s, found %s", cases[i].says, mistakes.text);
        assert_fails(dt_mistakes_end(&mistakes), DT_ERR_USAGE, "");
        dt_task_close(&t);
        dt_config_free(&cfg);
    }
}

TEST(a_task_reads_no_more_files_than_there_is_room_for)
{
    dt_task t = {0};
    const dt_pretrained from = {.path = "model"};
    for (int i = 0; i < DT_MAX_TASK_FILES; i++) {
        assert_int_equal(dt_task_reads(&t, "file", 1), DT_OK);
        assert_int_equal(dt_task_verifies(&t, &from, NULL, 0), DT_OK);
    }
    assert_int_equal(dt_task_reads(&t, "file", 1), DT_ERR_ARG);
    assert_fails(dt_task_verifies(&t, &from, NULL, 0), DT_ERR_ARG, "");
}

int main(void) { return run_listed("rewards", NULL, NULL); }
