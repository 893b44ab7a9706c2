/* test_eval.c - benchmarks: answers that are found in texts and compared as lm-evaluation-harness does
 * (tests/make_eval_fixtures.py), and Python's random numbers. */
#include "../src/eval/eval_private.h"
#include "cases.h"
#include <math.h>

static json_t *read_answers(void)
{
    json_t *root = json_load_file("tests/data/eval/answers.json", 0, NULL);
    assert_non_null(root);
    return root;
}

static const char *text_at(const json_t *list, size_t i) { return json_string_value(json_array_get(list, i)); }

TEST(answers_of_math_are_compared_in_a_normal_form)
{
    json_t *root = read_answers(), *one;
    size_t i;
    int n_equal = 0;
    json_array_foreach(json_object_get(root, "math"), i, one)
    {
        bool equal = false;
        assert_int_equal(eval_math_equal(text_at(one, 0), text_at(one, 1), &equal), DT_OK);
        if (equal != json_is_true(json_array_get(one, 2))) fail_msg("%s and %s", text_at(one, 0), text_at(one, 1));
        n_equal += equal;
    }
    assert_true(n_equal > 50);
    json_decref(root);
}

TEST(the_last_box_of_a_solution_is_its_answer)
{
    json_t *root = read_answers(), *one;
    size_t i;
    json_array_foreach(json_object_get(root, "boxed"), i, one)
    {
        size_t n = 0;
        const char *found = eval_math_boxed(text_at(one, 0), &n), *want = text_at(one, 1);
        const bool same = found && want ? strlen(want) == n && !memcmp(found, want, n) : found == want;
        if (!same) fail_msg("%s: found %.*s", text_at(one, 0), (int)n, found ? found : "");
    }
    json_decref(root);
}

static void compare_texts(const json_t *set)
{
    eval_bench b = {.name = "b", .file = "F"};
    json_t *keys = json_object_get(set, "keys"), *one;
    size_t i;
#define TAKE(name, otherwise)                                                                                          \
    if (json_object_get(keys, #name))                                                                                  \
        b.value[EVAL_##name].text = strdup(json_string_value(json_object_get(keys, #name)));
    EVAL_KEYS(TAKE)
    assert_int_equal(eval_read_answers(&b), DT_OK);
    json_array_foreach(json_object_get(set, "cases"), i, one)
    {
        for (int f = 0; f < b.n_filters; f++) {
            bool equal = false;
            assert_int_equal(eval_is_correct(&b, f, text_at(one, 0), json_array_get(one, 1), &equal), DT_OK);
            if (equal != json_is_true(json_array_get(json_array_get(one, 2), (size_t)f)))
                fail_msg("filter %d: '%s' and '%s'", f, text_at(one, 0), text_at(one, 1));
        }
    }
    eval_free_answers(&b);
    for (int k = 0; k < EVAL_N_KEYS; k++) free(b.value[k].text);
}

TEST(answers_are_extracted_by_expressions)
{
    json_t *root = read_answers(), *set;
    size_t i;
    json_array_foreach(json_object_get(root, "text"), i, set) compare_texts(set);
    json_decref(root);
}

/* random.Random(1234): random(), sample(range(100), 3), sample(range(10), 10), sample(range(5000), 7) */
TEST(random_numbers_are_those_of_python)
{
    static const int64_t want[] = {56, 14, 0, 1, 0, 9, 8, 2, 7, 6, 3, 5, 4, 3966, 3797, 1216, 747, 1499, 937, 119};
    int64_t found[20];
    python_random r;
    python_random_seed(&r, 1234);
    assert_true(python_random_real(&r) == 0.9664535356921388);
    assert_int_equal(python_random_sample(&r, 100, 3, found), DT_OK);
    assert_int_equal(python_random_sample(&r, 10, 10, found + 3), DT_OK);
    assert_int_equal(python_random_sample(&r, 5000, 7, found + 13), DT_OK);
    assert_memory_equal(found, want, sizeof want);
}

enum { N_DOCS = 2, N_EACH = 4, N_ALL = N_DOCS * N_EACH };

/* Compute metrics of two documents with four requests each, which have the results x. */
static void measure(eval_form form, const char *names, double *x, double *others, const double *want)
{
    const dt_config cfg = {0};
    double score[N_DOCS];
    eval_item item[N_DOCS] = {{.first = 0, .n = N_EACH, .gold = 1 << 2, .answer = 2},
                              {.first = N_EACH, .n = N_EACH, .gold = 1 << 0, .answer = 0}};
    eval_filter whole = {.name = NULL};
    eval_bench b = {.name = "b",
                    .file = "F",
                    .form = form,
                    .docs.n = N_DOCS,
                    .item = item,
                    .n_requests = N_ALL,
                    .filter = &whole,
                    .n_filters = 1,
                    .n_repeats = N_EACH,
                    .logp = x,
                    .correct = x,
                    .judged = x,
                    .greedy = others,
                    .score = score};
    dt_sums sums = {0};
    b.value[EVAL_metrics].text = strdup(names);
    assert_int_equal(eval_declare(&b, &sums), DT_OK);
    assert_int_equal(eval_compute(&b, &cfg), DT_OK);
    for (int i = 0; i < b.n_results; i++)
        if (fabs(b.result[i].value - want[i]) > 1e-12) fail_msg("%s: %.15g", b.result[i].name, b.result[i].value);
    dt_sums_close(&sums);
    free(b.value[EVAL_metrics].text), free(b.result);
}

TEST(metrics_of_ranks_of_right_choices)
{
    double logp[N_ALL] = {-1, -2, -3, -4, -5, -1, -2, -3}, greedy[N_ALL] = {0}; /* ranks 3 and 4 */
    measure(EVAL_CHOICES, "mrr, hits@3, ndcg@3, acc", logp, greedy, (double[]){(1 / 3. + 1 / 4.) / 2, 0.5, 0.25, 0});
}

TEST(metrics_of_several_texts)
{
    double correct[N_ALL] = {0, 1, 1, 0, 1, 0, 0, 0};
    measure(EVAL_GENERATE, "exact_match, pass@1, pass@2, pass@4", correct, NULL,
            (double[]){0.5, (0.5 + 0.25) / 2, (5 / 6. + 0.5) / 2, 1});
}

TEST(metrics_of_scores_of_a_judge)
{
    double scores[2 * N_ALL] = {1, 0.5, -1, 0, 2, 2, 2, 2, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5};
    measure(EVAL_GENERATE, "win_rate, safety_rate, judge_score", scores, NULL,
            (double[]){(0.375 + 1) / 2, 0.75, (0.125 + 2) / 2});
}

int main(void) { return run_listed("eval", NULL, NULL); }
