/* cases.h - tests that list themselves: TEST(name) { ... } defines one, run_listed() runs those of a file in order.
 * A test begins without an error message.
 * Tests that a program runs under other conditions are TEST_OF(groups, name), with groups a sum of bits that the file
 * names, and run_groups() runs them. */
#ifndef CASES_H
#define CASES_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "dtrain/core/core.h"

__attribute__((unused)) static struct CMUnitTest listed_tests[128];
__attribute__((unused)) static unsigned listed_groups[128];
__attribute__((unused)) static size_t n_listed_tests;

enum { ALWAYS = 1 }; /* the group of TEST, which run_listed() runs */

#define TEST_IN(GROUPS, NAME, SETUP, TEARDOWN)                                                                         \
    static void test_##NAME(void **state);                                                                             \
    static void NAME(void **state)                                                                                     \
    {                                                                                                                  \
        dt_error_clear();                                                                                              \
        test_##NAME(state);                                                                                            \
    }                                                                                                                  \
    __attribute__((constructor)) static void list_##NAME(void)                                                         \
    {                                                                                                                  \
        listed_groups[n_listed_tests] = GROUPS;                                                                        \
        listed_tests[n_listed_tests++] = (struct CMUnitTest){#NAME, NAME, SETUP, TEARDOWN, NULL};                      \
    }                                                                                                                  \
    static void test_##NAME(__attribute__((unused)) void **state)
#define TEST_WITH(NAME, SETUP, TEARDOWN) TEST_IN(ALWAYS, NAME, SETUP, TEARDOWN)
#define TEST_OF(GROUPS, NAME) TEST_IN(GROUPS, NAME, NULL, NULL)
#define TEST(NAME) TEST_IN(ALWAYS, NAME, NULL, NULL)

#define TEXTS(...) (const char *const[]){__VA_ARGS__}, sizeof(const char *const[]){__VA_ARGS__} / sizeof(char *)
/** err is `want`, and the message, which this clears, contains each of the texts ("": any). */
#define assert_fails(err, want, ...) assert_failed((err), (want), TEXTS(__VA_ARGS__), __FILE__, __LINE__)
/** The message contains each of the texts; it is cleared. */
#define assert_says(...) assert_said(TEXTS(__VA_ARGS__), __FILE__, __LINE__)
static inline void assert_said(const char *const *texts, size_t n, const char *file, int line)
{
    for (size_t i = 0; i < n; i++)
        if (!strstr(dt_error_message(), texts[i])) {
            print_error("expected \"%s\", found: %s\n", texts[i], dt_error_message());
            _fail(file, line);
        }
    dt_error_clear();
}
static inline void assert_failed(dt_err err, dt_err want, const char *const *texts, size_t n, const char *file,
                                 int line)
{
    if (err != want) {
        print_error("expected error %d, found %d: %s\n", (int)want, (int)err, dt_error_message());
        _fail(file, line);
    }
    assert_said(texts, n, file, line);
}

/** The text with quotation marks for its apostrophes: JSON in C without escapes. The last four texts remain. */
static inline const char *quoted(const char *text)
{
    static char buffer[4][8192];
    static int next;
    char *to = buffer[next++ % 4];
    assert_true(strlen(text) < sizeof buffer[0]);
    for (size_t i = 0; i == 0 || text[i - 1]; i++) to[i] = text[i] == '\'' ? '"' : text[i];
    return to;
}

/* Of the cases of a test all are tried, or one in TEST_EVERY where a device is slow. They are counted in the order of
 * their loops: a number below that of the ways in which each shape is tried, and prime to it, takes every shape, and
 * other ways with each. */
static inline bool is_tried(void)
{
    static int turn;
    const char *every = getenv("TEST_EVERY");
    return turn++ % (every ? atoi(every) : 1) == 0;
}

/** Runs the tests of any of the groups and returns the number that failed. name: in the output, or NULL; setup,
 *  teardown: of them all, or NULL. */
__attribute__((unused)) static int run_groups(unsigned groups, const char *name, CMFixtureFunction setup,
                                              CMFixtureFunction teardown)
{
    static struct CMUnitTest chosen[128];
    size_t n = 0;
    for (size_t i = 0; i < n_listed_tests; i++)
        if (listed_groups[i] & groups) chosen[n++] = listed_tests[i];
    return _cmocka_run_group_tests(name ? name : "tests", chosen, n, setup, teardown);
}
static inline int run_listed(const char *name, CMFixtureFunction setup, CMFixtureFunction teardown)
{
    return run_groups(ALWAYS, name, setup, teardown);
}

#endif
