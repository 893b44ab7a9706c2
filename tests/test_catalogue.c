/* test_catalogue.c - an info file is read whole, in its order, and what is wrong in it is refused by file and line. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "dtrain/catalogue.h"

static char path[] = "/tmp/dtrain_catalogue_XXXXXX";

static void write_file(const char *text, size_t nbytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, nbytes, f), nbytes);
    assert_int_equal(fclose(f), 0);
}

static int make_file(void **state)
{
    (void)state;
    const int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}
static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static void items_are_read_in_the_order_of_the_file(void **state)
{
    (void)state;
    dt_ledger ledger = {0};
    dt_catalogue *c;
    static const char text[] = "\xef\xbb\xbf<b_2><x>\tTwo\twords, a tab\t7\r\n\n  \n<a_1><x>\tcaf\xc3\xa9\t12\n"
                               "<b_2><x>\t\tB0-09\n<a_10><y>\tlast";
    write_file(text, sizeof text - 1);
    assert_int_equal(dt_catalogue_open(&c, path, &ledger), DT_ERR_DATA);
    assert_non_null(strstr(dt_error_message(), ":6: expected three fields"));
    dt_error_clear();
    write_file(text, sizeof text - 1 - strlen("<a_10><y>\tlast"));
    assert_int_equal(dt_catalogue_open(&c, path, &ledger), DT_OK);
    assert_true(atomic_load(&ledger.total_now) >= sizeof text - 20);
    assert_string_equal(dt_catalogue_path(c), path);
    assert_int_equal(dt_catalogue_n_items(c), 3);
    dt_catalogue_item i = dt_catalogue_get(c, 0);
    assert_string_equal(i.sid, "<b_2><x>");
    assert_string_equal(i.title, "Two\twords, a tab");
    assert_string_equal(i.id, "7");
    assert_int_equal(i.line, 1);
    i = dt_catalogue_get(c, 2);
    assert_string_equal(i.title, "");
    assert_string_equal(i.id, "B0-09");
    assert_int_equal(i.line, 5);
    dt_catalogue_close(c);
    assert_int_equal(atomic_load(&ledger.total_now), 0);
}

static void items_are_found_by_their_sid_and_id(void **state)
{
    (void)state;
    dt_catalogue *c;
    static const char text[] = "<b_2><x>\tA\t7\n<a_1><x>\tB\t12\n<b_2><x>\tC\t9\n<b_2>\tD\t1\n<a_10><y>\tE\t70\n";
    write_file(text, sizeof text - 1);
    assert_int_equal(dt_catalogue_open(&c, path, NULL), DT_OK);
    assert_int_equal(dt_catalogue_find(c, "<b_2><x>", 8), 0);
    assert_int_equal(dt_catalogue_find(c, "<b_2><x>?", 8), 0); /* of so many bytes */
    assert_int_equal(dt_catalogue_find(c, "<b_2><x>", 5), 3);
    assert_int_equal(dt_catalogue_find(c, "<a_10><y>", 9), 4);
    assert_int_equal(dt_catalogue_find(c, "<a_10>", 6), -1);
    assert_int_equal(dt_catalogue_find(c, "", 0), -1);
    assert_int_equal(dt_catalogue_find(c, "<c>", 3), -1);
    assert_int_equal(dt_catalogue_find_id(c, "70", 2), 4);
    assert_int_equal(dt_catalogue_find_id(c, "70", 1), 0);
    assert_int_equal(dt_catalogue_find_id(c, "8", 1), -1);
    static const int32_t order[] = {4, 1, 3, 0, 2}; /* "<a_10>" < "<a_1>": '0' < '>' */
    assert_memory_equal(dt_catalogue_by_sid(c), order, sizeof order);
    assert_int_equal(dt_catalogue_n_sids(c), 4);
    dt_catalogue_close(c);
}

static void level_tokens_are_a_sorted_set(void **state)
{
    (void)state;
    dt_catalogue *c;
    static char text[1 << 20];
    size_t n = 0;
    for (int i = 0; i < 20000; i++) /* more distinct prefixes than the list first has room for */
        n += (size_t)snprintf(text + n, sizeof text - n, "<a_%d><b_%d><c_%d>\tT\t%d\n", i / 40, i * 7 % 5003, i % 3, i);
    write_file(text, n);
    assert_int_equal(dt_catalogue_open(&c, path, NULL), DT_OK);
    assert_int_equal(dt_catalogue_n_levels(c), 500 + 5003 + 3);
    for (int32_t i = 1; i < dt_catalogue_n_levels(c); i++)
        assert_true(strcmp(dt_catalogue_level(c, i - 1), dt_catalogue_level(c, i)) < 0);
    assert_string_equal(dt_catalogue_level(c, 0), "<a_0>");
    assert_string_equal(dt_catalogue_level(c, 5505), "<c_2>");
    dt_catalogue_close(c);
}

static void what_is_wrong_is_named_by_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", ": expected items"},
        {"\n \n", ": expected items"},
        {"<a>\tT\t1\n<b> T 1\n",
         ":2: expected three fields with tabs between them (SID, title, item id), found no tab"},
        {"<a>\tT\n", ":1: expected three fields with tabs between them (SID, title, item id), found one tab"},
        {"<a>\tT\t\n", ":1: expected an item id"},
        {"\tT\t1\n", ":1: expected a semantic ID such as <a_17><b_203><c_5>, found \"\""},
        {"<a>\tT\t1\n\na_1\tT\t2\n", ":3: expected a semantic ID"},
        {"<>\tT\t1\n", "found \"<>\""},
        {"<a><b\tT\t1\n", "found \"<a><b\""},
        {"<a>b<c>\tT\t1\n", "found \"<a>b<c>\""},
        {"<a <b>\tT\t1\n", "found \"<a <b>\""},
        {"<a>\tT\xff\t1\n", ":1: expected text in UTF-8"},
        {"<a>\tT\t1\n<b>\tT\t2\n<c>\tT\t1\n", ":3: item id 1 has been given already, in line 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_catalogue *c;
        write_file(cases[i].text, strlen(cases[i].text));
        if (dt_catalogue_open(&c, path, NULL) != DT_ERR_DATA || c || !strstr(dt_error_message(), path) ||
            !strstr(dt_error_message(), cases[i].words))
            fail_msg("case %zu: expected \"%s\", found \"%s\"", i, cases[i].words, dt_error_message());
        dt_error_clear();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_are_read_in_the_order_of_the_file),
        cmocka_unit_test(items_are_found_by_their_sid_and_id),
        cmocka_unit_test(level_tokens_are_a_sorted_set),
        cmocka_unit_test(what_is_wrong_is_named_by_line),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
