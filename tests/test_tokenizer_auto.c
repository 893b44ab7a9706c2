// NEEDS: PCRE2 UTF8PROC
/* test_tokenizer_auto.c - a directory whose files disagree has the ids that AutoTokenizer of transformers 5 gives
 * (tests/make_auto_tokenizer_fixtures.py), and keeps them when tokens are added. So has a directory with a
 * tokenizer.model (tests/make_spm_fixtures.py), which also keeps them in an export. */
#include "cases.h"
#include "dtrain/config/model_types.h"
#include "dtrain/io/io.h"
#include "dtrain/io/json.h"
#include "dtrain/pretrained/new_tokens.h"
#include "dtrain/tokenizer/tokenizer.h"

static char folder[] = "/tmp/dtrain_auto_XXXXXX";
static json_t *data, *spm;

static dt_err read_data(const char *file, json_t **out)
{
    char *text;
    size_t nbytes;
    DT_TRY(dt_read_file(file, 1 << 24, &text, &nbytes));
    const dt_err err = dt_json_parse(out, file, text, nbytes, DT_JSON_LAST_KEY);
    free(text);
    return err;
}

static int open_data(void **state)
{
    return !mkdtemp(folder) || read_data("tests/data/tokenizer/auto.json", &data) != DT_OK ||
                   read_data("tests/data/tokenizer/spm.json", &spm) != DT_OK
               ? -1
               : 0;
}

static int close_data(void **state)
{
    char command[80];
    json_decref(data);
    json_decref(spm);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static void write_text(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = text ? fopen(path, "wb") : NULL;
    if (f) fputs(text, f);
    assert_int_equal(f ? fclose(f) : text ? -1 : 0, 0);
    if (!text) unlink(path);
}

static void write_json(const char *name, const json_t *value)
{
    char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    write_text(name, text);
    free(text);
}

/* A file with the bytes of a text in base64. */
static void write_bytes(const char *name, const char *text)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char path[128];
    uint32_t bits = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (size_t i = 0; text[i] && text[i] != '='; i++) {
        bits = bits << 6 | (uint32_t)(strchr(digits, text[i]) - digits);
        if (i % 4 > 0) fputc((int)(bits >> (6 - 2 * (i % 4)) & 255), f);
    }
    assert_int_equal(fclose(f), 0);
}

static void write_case(const json_t *c)
{
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                                        "config.json"};
    const char *base = json_string_value(json_object_get(c, "base")),
               *model = json_string_value(json_object_get(c, "model"));
    json_t *whole = base ? json_copy(json_object_get(json_object_get(data, "bases"), base)) : NULL;
    if (base) json_object_update(whole, json_object_get(c, "tokenizer"));
    write_json("tokenizer.json", whole);
    json_decref(whole);
    write_text("tokenizer.model", NULL);
    if (model)
        write_bytes("tokenizer.model", json_string_value(json_object_get(json_object_get(spm, "models"), model)));
    for (int i = 0; i < 4; i++) write_json(names[i], json_object_get(json_object_get(c, "files"), names[i]));
}

/* dtrain puts no BOS before a text that begins with one. */
static bool same(const json_t *expected, const dt_ids *ids, int32_t bos)
{
    const size_t n = json_array_size(expected);
    const bool twice = n > 1 && bos >= 0 && json_integer_value(json_array_get(expected, 0)) == bos &&
                       json_integer_value(json_array_get(expected, 1)) == bos;
    if (n - twice != ids->n) return false;
    for (size_t i = 0; i < ids->n; i++)
        if (json_integer_value(json_array_get(expected, i + twice)) != ids->id[i]) return false;
    return true;
}

/* text: NULL: unknown */
static void text_is_decoded(const dt_tokenizer *t, const dt_ids *ids, const json_t *text, size_t number)
{
    size_t n;
    if (!text) return;
    char *decoded = dt_decode(t, ids->id, (int64_t)ids->n, false, &n);
    assert_non_null(decoded);
    if (n != json_string_length(text) || memcmp(decoded, json_string_value(text), n) != 0)
        fail_msg("case %zu: decoded \"%s\", expected \"%s\"", number, decoded, json_string_value(text));
    free(decoded);
}

static void texts_have_their_ids(const json_t *c, size_t number, const dt_tokenizer *t)
{
    dt_encoder *e;
    size_t k;
    json_t *text;
    assert_int_equal(dt_encoder_open(&e, t), DT_OK);
    json_array_foreach(json_object_get(c, "texts"), k, text)
    {
        const json_t *words = json_array_get(text, 0);
        const dt_span span = {.text = json_string_value(words), .nbytes = json_string_length(words)};
        for (unsigned wrapped = 0; wrapped < 2; wrapped++) {
            dt_ids ids = {0};
            assert_int_equal(dt_encode(e, &span, 1, wrapped ? DT_ENCODE_WRAP : 0, &ids, NULL), DT_OK);
            if (!same(json_array_get(text, 1 + wrapped), &ids, wrapped ? dt_tokenizer_get_info(t)->bos : -1))
                fail_msg("case %zu, text \"%s\"%s: other ids", number, span.text, wrapped ? ", wrapped" : "");
            if (!wrapped) text_is_decoded(t, &ids, json_array_get(text, 3), number);
            free(ids.id);
        }
    }
    dt_encoder_close(e);
}

static dt_tokenizer *open_case(size_t number)
{
    dt_tokenizer *t;
    if (dt_tokenizer_open(&t, folder) != DT_OK) fail_msg("case %zu: %s", number, dt_error_message());
    return t;
}

static bool is_id(const json_t *expected, int32_t id)
{
    return json_is_null(expected) || json_integer_value(expected) == id;
}

static void cases_have_their_ids(const json_t *cases)
{
    size_t i;
    json_t *c;
    json_array_foreach(cases, i, c)
    {
        write_case(c);
        dt_tokenizer *t = open_case(i);
        const dt_tokenizer_info *info = dt_tokenizer_get_info(t);
        assert_int_equal(info->vocab_size, json_integer_value(json_object_get(c, "vocab_size")));
        assert_true(info->n_own <= info->vocab_size && (info->pad < info->n_own || info->pad == info->eos));
        if (!is_id(json_object_get(c, "bos"), info->bos) || !is_id(json_object_get(c, "eos"), info->eos))
            fail_msg("case %zu: found bos %d and eos %d", i, (int)info->bos, (int)info->eos);
        texts_have_their_ids(c, i, t);
        dt_tokenizer_close(t);
    }
}

TEST(ids_are_those_of_auto_tokenizer) { cases_have_their_ids(json_object_get(data, "cases")); }

TEST(ids_of_a_sentencepiece_model_are_those_of_auto_tokenizer) { cases_have_their_ids(json_object_get(spm, "cases")); }

/* Files of several families name a class whose stages are not those of the model. */
TEST(model_types_have_the_classes_of_auto_tokenizer)
{
    size_t i, k;
    json_t *family, *of;
    int n_bad = 0;
    json_array_foreach(json_object_get(data, "families"), i, family)
        json_array_foreach(json_array_get(family, 1), k, of)
    {
        const char *type = json_string_value(json_array_get(of, 0)), *class = json_string_value(json_array_get(of, 1));
        json_t *c = json_pack("{s:s, s:{}, s:{s:{s:s*}, s:{s:s}}}", "base", "marks", "tokenizer", "files",
                              "tokenizer_config.json", "tokenizer_class", *class ? class : NULL, "config.json",
                              "model_type", type);
        assert_non_null(c);
        write_case(c);
        dt_tokenizer *t = open_case(i);
        const json_t *words = json_object_get(data, "text");
        const dt_span span = {.text = json_string_value(words), .nbytes = json_string_length(words)};
        dt_encoder *e;
        dt_ids ids = {0};
        assert_int_equal(dt_encoder_open(&e, t), DT_OK);
        assert_int_equal(dt_encode(e, &span, 1, 0, &ids, NULL), DT_OK);
        if (!same(json_array_get(family, 0), &ids, -1)) print_error("%s, class %s: other ids\n", type, class), n_bad++;
        free(ids.id);
        dt_encoder_close(e);
        dt_tokenizer_close(t);
        json_decref(c);
    }
    assert_int_equal(n_bad, 0);
}

/* Gemma's classes are not known here. */
TEST(every_family_has_such_a_result)
{
#define NAME(type) #type,
    static const char *const types[] = {DT_MODEL_TYPES(NAME)};
    char *all = json_dumps(json_object_get(data, "families"), JSON_COMPACT), of[64];
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        snprintf(of, sizeof of, "[\"%s\",", types[i]);
        if (strncmp(types[i], "gemma", 5) != 0 && !strstr(all, of))
            fail_msg("%s: run make_auto_tokenizer_fixtures.py again", types[i]);
    }
    free(all);
}

/* In whatever file the new token is, it comes after those that other files define. */
TEST(a_new_token_moves_no_other)
{
    char token[] = "<new>", *list[] = {token};
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(data, "cases"), i, c)
    {
        dt_new_tokens more;
        write_case(c);
        if (dt_new_tokens_make(&more, list, 1, folder) != DT_OK) fail_msg("case %zu: %s", i, dt_error_message());
        write_text("tokenizer.json", more.tokenizer);
        if (more.config) write_text("tokenizer_config.json", more.config);
        if (more.added_tokens) write_text("added_tokens.json", more.added_tokens);
        dt_tokenizer *t = open_case(i);
        const int32_t id = (int32_t)json_integer_value(json_object_get(c, "vocab_size"));
        if (dt_tokenizer_find(t, token) != id) fail_msg("case %zu: id %d", i, (int)dt_tokenizer_find(t, token));
        texts_have_their_ids(c, i, t);
        dt_tokenizer_close(t);
        dt_new_tokens_free(&more);
    }
}

/* Datasets name the tokenizer that they were made with. */
TEST(the_tokenizer_name_reflects_additions_of_other_files)
{
    static const char *const configs[] = {"{}", "{\"eos_token\":\"</s>\"}", "{\"eos_token\":\"<eot>\"}",
                                          "{\"extra_special_tokens\":[\"<eot>\",\"<x>\"]}",
                                          "{\"extra_special_tokens\":[\"<x>\",\"<eot>\"]}"};
    char names[5][64];
    write_text("tokenizer.json", "{\"added_tokens\":[{\"id\":2,\"content\":\"</s>\",\"special\":true}],"
                                 "\"model\":{\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}");
    for (int i = 1; i < 4; i++)
        write_text((const char *[]){"", "special_tokens_map.json", "added_tokens.json", "config.json"}[i], NULL);
    for (size_t i = 0; i < 5; i++) {
        write_text("tokenizer_config.json", configs[i]);
        dt_tokenizer *t = open_case(i);
        snprintf(names[i], sizeof names[i], "%s", dt_tokenizer_get_info(t)->name);
        dt_tokenizer_close(t);
    }
    assert_string_equal(names[0], names[1]);
    for (int i = 1; i < 5; i++)
        for (int k = 1; k < i; k++) assert_string_not_equal(names[i], names[k]);
}

int main(void) { return run_listed(NULL, open_data, close_data); }
