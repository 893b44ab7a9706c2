/* cases.h - tests that list themselves: TEST(name) { ... } defines one, run_listed() runs those of a file in order. */
#ifndef CASES_H
#define CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

__attribute__((unused)) static struct CMUnitTest listed_tests[128];
__attribute__((unused)) static size_t n_listed_tests;

#define TEST_WITH(NAME, SETUP, TEARDOWN)                                                                               \
    static void NAME(void **state);                                                                                    \
    __attribute__((constructor)) static void list_##NAME(void)                                                         \
    {                                                                                                                  \
        listed_tests[n_listed_tests++] = (struct CMUnitTest){#NAME, NAME, SETUP, TEARDOWN, NULL};                      \
    }                                                                                                                  \
    static void NAME(__attribute__((unused)) void **state)
#define TEST(NAME) TEST_WITH(NAME, NULL, NULL)

/** The number of tests that failed. name: of the group in the output, or NULL; setup, teardown: of the group, or
 *  NULL. */
static inline int run_listed(const char *name, CMFixtureFunction setup, CMFixtureFunction teardown)
{
    return _cmocka_run_group_tests(name ? name : "tests", listed_tests, n_listed_tests, setup, teardown);
}

#endif
