// NEEDS: PCRE2 UTF8PROC
/* test_new_tokens.c - a tokenizer with more tokens is the one that transformers makes: the same list, the same ids of
 * texts; the rest of its files stays as it was written. tests/make_vocabulary_fixtures.py made the data. */
#include "folder.h"
#include "dtrain/io/json.h"
#include "dtrain/pretrained/new_tokens.h"
#include "dtrain/recommend/token_list.h"
#include "dtrain/tokenizer/tokenizer.h"

#define DATA "tests/data/rec/vocabulary/"

static json_t *parse(const char *text)
{
    json_t *root;
    assert_int_equal(dt_json_parse(&root, "text", text, strlen(text), DT_JSON_LAST_KEY), DT_OK);
    return root;
}

static json_t *read_json(const char *path)
{
    char *text;
    size_t nbytes;
    assert_int_equal(dt_read_file(path, 1 << 24, &text, &nbytes), DT_OK);
    json_t *root = parse(text);
    free(text);
    return root;
}

static dt_token_list read_list(const char *path)
{
    dt_token_list l;
    if (dt_token_list_read(&l, path) != DT_OK) fail_msg("%s", dt_error_message());
    return l;
}

static void refused(const char *path, const char *words)
{
    dt_token_list l;
    assert_int_equal(dt_token_list_read(&l, path), DT_ERR_DATA);
    if (!strstr(dt_error_message(), words)) fail_msg("expected \"%s\", found \"%s\"", words, dt_error_message());
    assert_null(l.token);
    dt_error_clear();
}

TEST(lists_are_sets_by_rising_bytes)
{
    dt_token_list index = read_list(DATA "index.json"), info = read_list(DATA "info.txt");
    assert_int_equal(index.n, info.n);
    for (int32_t i = 0; i < index.n; i++) {
        assert_string_equal(index.token[i], info.token[i]);
        assert_true(i == 0 || strcmp(index.token[i - 1], index.token[i]) < 0);
    }
    dt_token_list lines = read_list(write_file("lines", "\xef\xbb\xbf<b>\r\n\n  \n<a>\n \r\n<b>\ntwo words"));
    assert_int_equal(lines.n, 3);
    assert_string_equal(lines.token[0], "<a>");
    assert_string_equal(lines.token[2], "two words");
    dt_token_list_free(&index);
    dt_token_list_free(&info);
    dt_token_list_free(&lines);
    refused(write_file("empty", "\n\n"), "empty: expected tokens, found none");
    refused(write_file("bad", "<a>\n\xff"), "bad:2: expected a token in UTF-8");
    refused(write_file("bad.json", "{\"7\": [\"<a_1>\"], \"B9\": [\"<a_1>\", \"b_1\"]}"), "B9: expected level tokens");
    refused(write_file("bad.json", "{\"7\": \"<a_1>\"}"), "7: expected a list of level tokens");
    refused(write_file("info", "<a_1>\ttitle\n"), "info:1:");
    refused("/nowhere/tokens.txt", "/nowhere/tokens.txt");
}

/* The ids of each text. */
static void check_texts(const char *dir, const json_t *expected)
{
    dt_tokenizer *t;
    dt_encoder *e;
    size_t i, k;
    json_t *text, *id;
    if (dt_tokenizer_open(&t, dir) != DT_OK) fail_msg("%s", dt_error_message());
    assert_int_equal(dt_encoder_open(&e, t), DT_OK);
    json_array_foreach(json_object_get(expected, "texts"), i, text)
    {
        const json_t *want = json_array_get(json_object_get(expected, "ids"), i);
        const dt_span span = {.text = json_string_value(text), .nbytes = strlen(json_string_value(text))};
        dt_ids ids = {0};
        assert_int_equal(dt_encode(e, &span, 1, 0, &ids, NULL), DT_OK);
        assert_int_equal(ids.n, json_array_size(want));
        json_array_foreach(want, k, id) assert_int_equal(ids.id[k], json_integer_value(id));
        free(ids.id);
    }
    dt_encoder_close(e);
    dt_tokenizer_close(t);
}

TEST(tokenizers_grow_as_in_transformers)
{
    char from[128];
    const char *name;
    json_t *all = read_json(DATA "tokenizers.json"), *expected;
    dt_token_list l = read_list(DATA "tokens.txt");
    json_object_foreach(all, name, expected)
    {
        dt_new_tokens more;
        snprintf(from, sizeof from, "tests/data/tokenizer/%s/tokenizer.json", name);
        if (dt_new_tokens_make(&more, l.token, l.n, from) != DT_OK) fail_msg("%s", dt_error_message());
        json_t *before = read_json(from), *now = parse(more.tokenizer);
        if (!json_equal(json_object_get(now, "added_tokens"), json_object_get(expected, "added_tokens")))
            fail_msg("%s: other added tokens", name);
        json_object_del(now, "added_tokens");
        json_object_del(before, "added_tokens");
        assert_true(json_equal(now, before));
        json_decref(now);
        json_decref(before);
        write_file("tokenizer.json", more.tokenizer);
        check_texts(folder, expected);
        const int32_t n = more.n_added, first = more.first_id;
        assert_int_equal(more.n_listed, l.n);
        assert_true(n > 0 && n < l.n);
        dt_new_tokens_free(&more);

        assert_int_equal(dt_new_tokens_make(&more, l.token, l.n, folder), DT_OK); /* once more */
        assert_true(more.n_added == 0 && more.first_id == first + n);
        now = parse(more.tokenizer);
        assert_true(json_equal(json_object_get(now, "added_tokens"), json_object_get(expected, "added_tokens")));
        json_decref(now);
        dt_new_tokens_free(&more);
    }
    dt_token_list_free(&l);
    json_decref(all);
}

#define MODEL                                                                                                          \
    "{\"version\": \"1.0\",\n \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\\\"{\": 1, \"c\": 7}, "         \
    "\"merges\": []}"

TEST(companion_files_are_updated)
{
    char *const tokens[] = {(char[]){"<x>"}, (char[]){"c"}};
    dt_new_tokens more;
    const char *config = "{\n  \"model_max_length\": 1000000000000000019884624838656,\n  \"added_tokens_decoder\": {\n "
                         "   \"0\": {\"content\": \"a]}\"}\n  },\n  \"note\": \"\\u20ac\"\n}\n";
    write_file("tokenizer.json", MODEL "}"); /* without the key */
    write_file("tokenizer_config.json", config);
    write_file("added_tokens.json", "{\"old\": 5}");
    if (dt_new_tokens_make(&more, tokens, 2, folder) != DT_OK) fail_msg("%s", dt_error_message());
    assert_int_equal(more.first_id, 8);
    assert_int_equal(more.n_added, 1);
    assert_non_null(strstr(more.config, "\"model_max_length\": 1000000000000000019884624838656,\n"));
    assert_non_null(strstr(more.config, ",\n  \"note\": \"\\u20ac\"\n}\n"));
    json_t *now = parse(more.config), *decoder = json_object_get(now, "added_tokens_decoder");
    assert_int_equal(json_object_size(decoder), 3);
    assert_string_equal(json_string_value(json_object_get(json_object_get(decoder, "8"), "content")), "<x>");
    assert_string_equal(json_string_value(json_object_get(json_object_get(decoder, "7"), "content")), "c");
    json_decref(now);
    now = parse(more.added_tokens);
    assert_int_equal(json_integer_value(json_object_get(now, "<x>")), 8);
    assert_int_equal(json_integer_value(json_object_get(now, "old")), 5);
    json_decref(now);
    now = parse(more.tokenizer);
    decoder = json_object_get(now, "added_tokens");
    assert_int_equal(json_array_size(decoder), 3); /* "a]}" has got an id, too */
    assert_int_equal(json_integer_value(json_object_get(json_array_get(decoder, 0), "id")), 3);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(decoder, 1), "id")), 7);
    json_decref(now);
    dt_new_tokens_free(&more);
    write_file("tokenizer_config.json", "{\"eos_token\": \"a\"}");
    assert_int_equal(dt_new_tokens_make(&more, tokens, 2, folder), DT_OK);
    assert_null(more.config);
    dt_new_tokens_free(&more);
    assert_fails(dt_new_tokens_make(&more, tokens, 2, "bytes"), DT_ERR_USAGE, "");
}

int main(void) { return run_listed(NULL, make_folder, remove_folder); }
