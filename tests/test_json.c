/* test_json.c - extensions of JSON in published files are read, and errors name file and position. */
#include "cases.h"
#include <errno.h>
#include "dtrain/io/json.h"

static json_t *parse(const char *text, unsigned flags)
{
    json_t *root;
    if (dt_json_parse(&root, "file", text, strlen(text), flags) != DT_OK) fail_msg("%s: %s", text, dt_error_message());
    return root;
}

static void refused(const char *text, unsigned flags, const char *words)
{
    json_t *root;
    dt_error_clear();
    const dt_err err = dt_json_parse(&root, "file", text, strlen(text), flags);
    if (err != DT_ERR_DATA || root || !strstr(dt_error_message(), words))
        fail_msg("%s: expected \"%s\", found %d \"%s\"", text, words, err, dt_error_message());
    dt_error_clear();
}

TEST(numbers_beyond_64_bits_are_reals)
{
    json_t *root = parse("{\"model_max_length\": 1000000000000000019884624838656, \"n\": 9223372036854775807, \"m\": "
                         "-9223372036854775809, \"e\": 1e30, \"huge\": [1e400, -1e400], \"zero\": -0, \"text\": "
                         "\"99999999999999999999\"}",
                         0);
    assert_true(json_is_real(json_object_get(root, "model_max_length")));
    assert_float_equal(json_real_value(json_object_get(root, "model_max_length")), 1e30, 0); /* the nearest double */
    assert_true(json_integer_value(json_object_get(root, "n")) ==
                INT64_MAX); /* integers that fit stay integers next to others */
    assert_true(json_is_real(json_object_get(root, "m")));
    assert_true(json_is_real(json_object_get(root, "e")));
    assert_true(json_real_value(json_array_get(json_object_get(root, "huge"), 0)) >= 1e308);
    assert_true(json_real_value(json_array_get(json_object_get(root, "huge"), 1)) <= -1e308);
    assert_true(json_is_integer(json_object_get(root, "zero")));
    assert_string_equal(json_string_value(json_object_get(root, "text")), "99999999999999999999");
    json_decref(root);
    root = parse("123456789012345678901234567890", DT_JSON_ANY);
    assert_true(json_is_real(root));
    json_decref(root);
    json_t *part;
    assert_int_equal(dt_json_parse(&part, "", "{\"a\":1e999}9999", 11, 0),
                     DT_OK); /* what follows in memory is no part of it */
    json_decref(part);
}

TEST(python_nan_and_infinity_are_strings)
{
    json_t *root = parse("{\"a\": NaN, \"b\": [Infinity, -Infinity], \"c\": \"NaN Infinity \\\" NaN\", \"d\": 1}", 0);
    assert_string_equal(json_string_value(json_object_get(root, "a")), "NaN");
    assert_string_equal(json_string_value(json_array_get(json_object_get(root, "b"), 0)), "Infinity");
    assert_string_equal(json_string_value(json_array_get(json_object_get(root, "b"), 1)), "-Infinity");
    assert_string_equal(json_string_value(json_object_get(root, "c")), "NaN Infinity \" NaN");
    assert_int_equal(json_integer_value(json_object_get(root, "d")), 1);
    json_decref(root);
}

TEST(a_byte_order_mark_is_skipped)
{
    json_t *root = parse("\xef\xbb\xbf{\"a\": 1}", 0);
    assert_int_equal(json_integer_value(json_object_get(root, "a")), 1);
    json_decref(root);
}

/* Every key comes back as it was: U+0000, the noncharacter that it is escaped by, backslashes before a "u0000" that is
 * plain text. */
TEST(keys_may_contain_nul)
{
    const struct {
        const char *json, *bytes;
        size_t n;
    } keys[] = {
        {"\\u0000", "\0", 1},
        {"a\\u0000b\\u0000", "a\0b\0", 4},
        {"\xef\xb7\x90", "\xef\xb7\x90", 3},
        {"\\ufdd0\\u0000\\uFDD0", "\xef\xb7\x90\0\xef\xb7\x90", 7},
        {"\xef\xb7\x90"
         "0",
         "\xef\xb7\x90"
         "0",
         4},
        {"\\\\u0000", "\\u0000", 6},
        {"\\\"\\u0000\\\\", "\"\0\\", 3},
        {"\\u0001\\t", "\1\t", 2},
        {"plain", "plain", 5},
    };
    enum { N = sizeof keys / sizeof keys[0] };
    char text[1024] = "{", found[64];
    for (size_t i = 0; i < N; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s\"%s\" :%zu", i ? "," : "", keys[i].json, i);
    strcat(text, ",\"value\":\"\\u0000\"}");
    json_t *root = parse(text, DT_JSON_NUL_KEYS), *value;
    const char *key;
    assert_int_equal(json_object_size(root), N + 1);
    json_object_foreach(root, key, value)
    {
        if (json_is_string(value)) {
            assert_int_equal(json_string_length(value), 1);
            continue;
        }
        const size_t i = (size_t)json_integer_value(value);
        assert_int_equal(dt_json_key(key, found), keys[i].n);
        assert_memory_equal(found, keys[i].bytes, keys[i].n);
    }
    json_decref(root);
    refused("{\"\\u0000\": 1}", 0, "file:1:");
    refused("{\"a\": \"\\u0000\"}", 0, "not valid JSON: U+0000 is not allowed in a string");
    refused("{\"\\u0000\": 1, \"\\u0000\": 2}", DT_JSON_NUL_KEYS, "duplicate");
}

TEST(what_is_wrong_is_named)
{
    static char deep[20001];
    memset(deep, '[', 20000);
    refused(deep, 0, "depth");
    refused("", 0, "file: the file is empty");
    refused("<!DOCTYPE html>\n<html>", 0, "file: found a web page instead of the file");
    refused("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n", 0,
            "file: found a Git LFS pointer instead of the file; run `git lfs pull`");
    refused("<!DOCTYPE html>", DT_JSON_RECORD, "file: not valid JSON: ");
    refused("{\"a\": 1,\n \"a\": 2}", 0, "file:2:");
    refused("{\"a\": 1,\n \"a\": 2}", 0, "duplicate object key near '\"a\"'");
    refused("{\"a\": NaM}", 0, "file:1:");
    refused("{\"a\": 01}", 0, "file:1:");
    refused("{\"a\": -}", 0, "file:1:");
    refused("{\"a\": 99999999999999999999 x}", 0, "file:1:");
    refused("3", 0, "file:1:");
    refused("{\"a", 0, "file:1:");
    refused("{\"a\\", 0, "file:1:");
    refused("{} {}", 0, "end of file expected");
    refused("{\"a\":}", DT_JSON_RECORD, "file: not valid JSON: ");
    json_t *root = parse("{\"a\": 1, \"a\": 99999999999999999999}", DT_JSON_LAST_KEY);
    assert_true(json_is_real(json_object_get(root, "a")));
    json_decref(root);
}

static int n_allocations, failing;

static void *take_or_fail(size_t nbytes)
{
    if (++n_allocations != failing) return malloc(nbytes);
    errno = ENOMEM; /* as malloc does */
    return NULL;
}

/* A record that there was no memory for is not malformed: --skip-bad must not leave it out. */
TEST(allocation_failure_is_not_a_syntax_error)
{
    static const char text[] = "{\"a\": [1, 2.5, {\"b\": \"c\\u00e4\"}], \"d\": null}";
    json_t *root;
    dt_err err = DT_ERR_MEMORY;
    json_set_alloc_funcs(take_or_fail, free);
    for (failing = 1; err != DT_OK; failing++) {
        n_allocations = 0;
        err = dt_json_parse(&root, "x", text, sizeof text - 1, DT_JSON_RECORD);
        assert_int_equal(err, n_allocations < failing ? DT_OK : DT_ERR_MEMORY);
        json_decref(root);
        dt_error_clear();
    }
    json_set_alloc_funcs(malloc, free);
    assert_true(failing > 8);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
