/* test_jinja.c - the interpreter of chat templates: equal to transformers' Jinja environment on small templates
 * (tests/make_jinja_fixtures.py), errors that name a line, and limits. */
#include "cases.h"
#include "dtrain/jinja/jinja.h"

enum { DAY = 1721995200 }; /* 26 July 2024, 12:00 UTC */

static dt_err render_with(const char *text, size_t n, const json_t *variables, dt_jinja_result *r)
{
    dt_jinja *t;
    *r = (dt_jinja_result){0};
    dt_error_clear();
    const dt_err err = dt_jinja_parse(&t, "T", text, n, false);
    if (err != DT_OK) return err;
    const dt_err rendered = dt_jinja_render(t, variables, DAY, r);
    dt_jinja_close(t);
    return rendered;
}

static dt_err render_strict(const char *text, dt_jinja_result *r)
{
    json_t *variables = json_pack("{ss}", "x", "ab  [c] d");
    dt_jinja *t;
    dt_error_clear();
    assert_int_equal(dt_jinja_parse(&t, "T", text, strlen(text), true), DT_OK);
    const dt_err err = dt_jinja_render(t, variables, DAY, r);
    dt_jinja_close(t);
    json_decref(variables);
    return err;
}

/* Texts that Jinja2 and lm-evaluation-harness render with trim_blocks = False and StrictUndefined. */
TEST(strict_templates_keep_white_space_and_refuse_undefined_values)
{
    static const char *const equal[][2] = {
        {"a\n{% if true %}\n b {% endif %}\n", "a\n\n b \n"},
        {"  {# c #} {{x}}\n", "   ab  [c] d\n"},
        {"{{ x | regex_replace('\\[.*?\\] ', '') | replace('  ', ' ') }}", "ab d"},
        {"{{ x | regex_replace('(a)(b)', '\\\\2\\\\g<1>-') }}", "ba-  [c] d"},
        {"{{ 'abxd' | regex_replace('x*', '-') }}", "-a-b--d-"},
        {"{{ 'aXbXc' | regex_replace('X', '\\\\n', 1) }}", "a\nbXc"},
        {"{{ ['[u] v', 'w'] | map('regex_replace', '\\[.\\]', 'é') | list }}", "['é v', 'w']"},
        {"{{ y | default('z') }}{{ y is defined }}", "zFalse"},
    };
    static const char *const undefined[] = {
        "{{ y }}",        "{{ y ~ 'a' }}", "{% if y %}{% endif %}", "{% for a in y %}{% endfor %}",
        "{{ y | trim }}", "{{ 1 if y }}",  "{{ not y }}",           "{{ [y] | join }}"};
    dt_jinja_result r;
    for (size_t i = 0; i < sizeof equal / sizeof equal[0]; i++) {
        assert_int_equal(render_strict(equal[i][0], &r), DT_OK);
        assert_string_equal(r.text, equal[i][1]);
        dt_jinja_result_free(&r);
    }
    for (size_t i = 0; i < sizeof undefined / sizeof undefined[0]; i++) {
        assert_int_equal(render_strict(undefined[i], &r), DT_ERR_DATA);
        assert_non_null(strstr(dt_error_message(), "T: line 1: y is undefined"));
    }
    assert_int_equal(render_strict("{{ x | regex_replace('(', '') }}", &r), DT_ERR_DATA);
    assert_non_null(strstr(dt_error_message(), "T: line 1: regex_replace: '(' is not a valid regular expression"));
    assert_int_equal(render_strict("{{ x | regex_replace('a', '\\\\3') }}", &r), DT_ERR_DATA);
}

static dt_err render(const char *text, dt_jinja_result *r)
{
    json_t *variables = json_object();
    const dt_err err = render_with(text, strlen(text), variables, r);
    json_decref(variables);
    return err;
}

TEST(templates_give_what_jinja2_gives)
{
    setenv("TZ", "UTC0", 1); /* the fixtures say 00:00 of that day */
    json_t *root = json_load_file("tests/data/jinja/cases.json", JSON_ALLOW_NUL, NULL), *one;
    size_t i;
    int n_bad = 0;
    assert_non_null(root);
    assert_true(json_array_size(json_object_get(root, "cases")) > 500);
    json_array_foreach(json_object_get(root, "cases"), i, one)
    {
        const json_t *text = json_array_get(one, 0), *want = json_array_get(one, 1);
        dt_jinja_result r;
        const dt_err err =
            render_with(json_string_value(text), json_string_length(text), json_object_get(root, "variables"), &r);
        const bool same = json_is_null(want) ? err == DT_ERR_DATA
                                             : err == DT_OK && r.nbytes == json_string_length(want) &&
                                                   memcmp(r.text, json_string_value(want), r.nbytes) == 0;
        if (!same)
            print_message("%s\nfound:    %s\nexpected: %s\n", json_string_value(text),
                          err == DT_OK ? r.text : dt_error_message(),
                          json_is_null(want) ? "an error" : json_string_value(want));
        n_bad += !same;
        dt_jinja_result_free(&r);
    }
    json_decref(root);
    assert_int_equal(n_bad, 0);
}

TEST(errors_name_template_and_line)
{
    static const struct {
        const char *text, *says;
        bool raised;
    } cases[] = {
        {"\n\n{{ raise_exception('no such role') }}", "T: line 3: the template refuses: no such role", true},
        {"a\n{% for %}", "T: line 2: expected a name, found %}", false},
        {"{{ x.y.z }}", "T: line 1: x is undefined: cannot read its attribute y", false},
        {"{{ [1][2].y }}", "T: line 1: an item out of range is undefined: cannot read its attribute y", false},
        {"{{ 1 | nonsense }}", "unknown or unsupported filter nonsense", false},
        {"{% filter nonsense %}a{% endfilter %}", "unknown or unsupported filter nonsense", false},
        {"{% set x | nonsense %}a{% endset %}", "unknown or unsupported filter nonsense", false},
        {"\n{% include 'a' %}", "T: line 2: unknown or unsupported block include", false},
        {"{% if 1 %}", "expected endif, found the end of the template", false},
        {"{{ raise_exception() }}", "raise_exception: expected 1 argument, found 0", false},
        {"{{ raise_exception('a\\nb') }}", "the template refuses: a b", true},
        {"{{ 'a' + 1 }}", "values of types str and int have no operator +", false},
        {"{{ 'abc'.center(9) }}", "the method center is not supported", false},
        {"{{ 'abc'[' casefold']() }}", " casefold is undefined: it cannot be called",
         false}, /* also a sanitizer's case */
        {"{{ '99999999999999999999' | int }}", "integers of more than 64 bits are not supported", false},
        {"{{ 1e30 | int }}", "integers of more than 64 bits are not supported", false},
    };
    dt_jinja_result r;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_fails(render(cases[i].text, &r), DT_ERR_DATA, cases[i].says);
        assert_int_equal(r.raised, cases[i].raised);
        assert_null(r.text);
    }
    assert_fails(render("\xff", &r), DT_ERR_DATA, "UTF-8");
}

/* A template is untrusted: it can neither run for ever, nor take all memory, nor exhaust the stack. */
TEST(work_memory_and_depth_are_limited)
{
    static const char *const cases[] = {
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{{ 'a' * 9999999999 }}",
        "{{ (0 - 8) ** 0.5 }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
        "{% set ns = namespace() %}{% set ns.d = {'a': ns} %}{{ ns.d }}",
    };
    dt_jinja_result r;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) assert_int_equal(render(cases[i], &r), DT_ERR_DATA);
    static const char open[] = "([{-";
    char deep[8004];
    for (size_t i = 0; i < 4; i++) { /* of an expression */
        memset(deep, open[i], sizeof deep - 1);
        memcpy(deep, "{{ ", 3);
        deep[sizeof deep - 1] = '\0';
        assert_int_equal(render(deep, &r), DT_ERR_DATA);
    }
    static char blocks[20001]; /* and of blocks */
    for (size_t i = 0; i < sizeof blocks / 10; i++) memcpy(blocks + 10 * i, "{% if 1 %}", 10);
    assert_fails(render(blocks, &r), DT_ERR_DATA, "the nesting exceeds");
}

/* Comparing, stripping and searching long strings takes time, too, and makes nothing new. */
TEST(looking_at_long_strings_is_work)
{
    static const char *const looks[] = {
        "s.startswith(s)", "s.removesuffix(s)", "{s: 1}[s]",        "blank.strip()",
        "s.split('b')",    "s.count('b')",      "digits.isdigit()", "s.rfind('aa' ~ half ~ 'b')",
    };
    char text[400];
    dt_jinja_result r;
    for (size_t i = 0; i < sizeof looks / sizeof looks[0]; i++) {
        snprintf(text, sizeof text,
                 "{%% set s = 'a' * 2000000 %%}{%% set half = 'a' * 100 %%}{%% set blank = ' ' * 2000000 %%}{%% set "
                 "digits = '1' * 2000000 %%}{%% for i in range(9999) %%}{%% set t = %s %%}{%% endfor %%}",
                 looks[i]);
        if (render(text, &r) == DT_OK) print_message("%s\n", looks[i]);
        assert_null(r.text);
        assert_true(strstr(dt_error_message(), "steps") || strstr(dt_error_message(), "256 MiB"));
    }
}

TEST(numbers_are_rounded_as_python_does)
{
    static const char *const cases[][2] = {
        {"{{ 1234.5 | round(-2) }}", "1200.0"}, {"{{ 1.5 | round(30) }}", "1.5"},
        {"{{ 1e300 | round }}", "1e+300"},      {"{{ 1e300 | round(3) }}", "1e+300"},
        {"{{ 0.125 | round(2) }}", "0.12"},     {"{{ -150.0 | round(-2) }}", "-200.0"},
    };
    dt_jinja_result r;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(render(cases[i][0], &r), DT_OK);
        assert_string_equal(r.text, cases[i][1]);
        dt_jinja_result_free(&r);
    }
    assert_int_equal(render("{{ 1.5 | round(2, 'up') }}", &r), DT_ERR_DATA);
    assert_int_equal(render("{{ 1250 | round(-2) }}", &r), DT_ERR_DATA);
    assert_int_equal(render("{{ 1.5 | round(-400) }}", &r), DT_ERR_DATA);
}

/* As transformers' AssistantTracker counts them: not in macros, and not in captured text. */
TEST(what_generation_blocks_write_is_known)
{
    static const char text[] = "{% macro m() %}{% generation %}m{% endgeneration %}{% endmacro %}<{{ m() }}>"
                               "{% set c %}{% generation %}c{% endgeneration %}{% endset %}"
                               "{% for i in range(5) %}{{ i }}{% generation %}{% if i != 3 %}a{{ i }}{% endif %}"
                               "{% endgeneration %}.{% endfor %}";
    static const dt_jinja_part want[] = {{4, 6}, {8, 10}, {12, 14}, {16, 16}, {18, 20}};
    dt_jinja_result r;
    assert_int_equal(render(text, &r), DT_OK);
    assert_string_equal(r.text, "<m>0a0.1a1.2a2.3.4a4.");
    assert_int_equal(r.n_generated, 5);
    assert_memory_equal(r.generated, want, sizeof want);
    dt_jinja_result_free(&r);
}

TEST(nested_generation_blocks_are_one)
{
    static const char text[] = "{% generation %}{% endgeneration %}a{% for i in [1, 2] %}{% generation %}b"
                               "{% generation %}{% if i == 2 %}{% break %}{% endif %}c{% endgeneration %}d"
                               "{% endgeneration %}{% endfor %}{% generation %}e{% endgeneration %}";
    static const dt_jinja_part want[] = {{0, 0}, {1, 4}, {4, 5}, {5, 6}};
    dt_jinja_result r;
    assert_int_equal(render(text, &r), DT_OK);
    assert_string_equal(r.text, "abcdbe");
    assert_int_equal(r.n_generated, 4);
    assert_memory_equal(r.generated, want, sizeof want);
    dt_jinja_result_free(&r);
}

TEST(a_template_that_asks_for_the_date_is_known)
{
    dt_jinja_result r;
    assert_int_equal(render("{{ strftime_now('%d %b %Y') }}", &r), DT_OK);
    assert_true(r.dated && strcmp(r.text, "26 Jul 2024") == 0);
    dt_jinja_result_free(&r);
    assert_int_equal(render("{{ strftime_now is defined }}", &r), DT_OK);
    assert_true(!r.dated && strcmp(r.text, "True") == 0);
    dt_jinja_result_free(&r);
}

int main(void) { return run_listed("jinja", NULL, NULL); }
