// NEEDS: PCRE2 UTF8PROC
/* test_data_rec.c - datasets of recommendation data: the samples that a loop in Python makes of the same files
 * (tests/make_rec_data_fixtures.py), lists as Python writes them, sampled rows, and every kind of broken file with
 * its line. */
#include "cases.h"
#include "data_make_fixture.h"
#include "dtrain/make/rec_files.h"
#include "../src/make/csv_reader.h"
#include "../src/make/reader.h"

#define FILES "tests/data/rec/"

static dt_make_options rec_options(const char *recipe)
{
    dt_make_options o = options();
    o.format = DT_INPUT_MINIONEREC;
    o.tokenizer = FILES "qwen2";
    o.chat_template = "auto";
    o.rec = (dt_rec_options){.recipe = recipe, .index = FILES "x.index.json", .items = FILES "x.item.json", .seed = 42};
    return o;
}

static void must_make(const char *text, const dt_make_options *o, dt_make_stats *stats)
{
    if (make(text, o, stats) != DT_OK) print_message("%s\n", dt_error_message());
    assert_string_equal(dt_error_message(), "");
}

/* ---- the samples of the recipe ----------------------------------------------------------------------------------- */

static uint64_t checksum(const int32_t *ids, const uint8_t *mask, int64_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < n; i++) {
        h = (h ^ (uint64_t)ids[i]) * 0x100000001b3u;
        h = (h ^ mask[i]) * 0x100000001b3u;
    }
    return h;
}

static void check_sample(dt_dataset *d, int64_t i, const json_t *want, const dt_tokenizer *t)
{
    const bool sft = dt_dataset_get_info(d)->kind == DT_DATASET_SFT;
    int32_t ids[2048];
    uint8_t mask[2048] = {0};
    int64_t first, n;
    char sum[32];
    assert_int_equal(dt_dataset_document(d, i, &first, &n), DT_OK);
    assert_int_equal(n, json_integer_value(json_object_get(want, "n")));
    assert_int_equal(dt_dataset_read_tokens(d, first, n, ids), DT_OK);
    if (sft) {
        assert_int_equal(dt_dataset_read_mask(d, first, n, mask), DT_OK);
        const uint8_t *one = memchr(mask, 1, (size_t)n);
        assert_int_equal(one ? one - mask : n, json_integer_value(json_object_get(want, "n_prompt")));
    }
    snprintf(sum, sizeof sum, "%016llx", (unsigned long long)checksum(ids, mask, n));
    assert_string_equal(sum, json_string_value(json_object_get(want, "sum")));
    if (sft) return;
    assert_int_equal(dt_dataset_part(d, DT_SIDE_SECOND, i, &first, &n), DT_OK);
    assert_int_equal(dt_dataset_read_side(d, DT_SIDE_SECOND, first, n, ids), DT_OK);
    char *answer = dt_decode(t, ids, n, false, &(size_t){0});
    assert_string_equal(answer, json_string_value(json_object_get(want, "answer")));
    free(answer);
}

static void check_recipe(const char *key, const json_t *samples)
{
    char folder[64];
    const char *recipe = strchr(key, ' ') + 1;
    dt_make_options o = rec_options(recipe);
    dt_make_stats stats;
    dt_tokenizer *t;
    snprintf(folder, sizeof folder, FILES "%.*s", (int)(recipe - key - 1), key);
    o.tokenizer = folder;
    o.rec.category = "Office_Products"; /* the template's categories have a text for it */
    o.max_length = strcmp(recipe, "sft") == 0 ? 300 : 0;
    o.inputs = (const char *const[]){FILES "x.csv"};
    must_make(NULL, &o, &stats);
    assert_int_equal(dt_tokenizer_open(&t, folder), DT_OK);
    dt_dataset *d = open_output(output);
    assert_int_equal(stats.n_documents, json_array_size(samples));
    const json_t *want;
    size_t i;
    json_array_foreach(samples, i, want) check_sample(d, (int64_t)i, want, t);
    dt_dataset_close(d);
    dt_tokenizer_close(t);
}

TEST(samples_are_those_of_the_recipe)
{
    json_t *all = json_load_file(FILES "expected.json", 0, NULL), *samples;
    const char *key;
    assert_int_equal(json_object_size(all), 6);
    json_object_foreach(all, key, samples) check_recipe(key, samples);
    json_decref(all);
}

/* ---- lists of Python --------------------------------------------------------------------------------------------- */

TEST(lists_are_read_as_python_writes_them)
{
    static const struct {
        const char *text, *want; /* want NULL: refused, for `why` */
        const char *why;
    } cases[] = {
        {"[]", "[]"},
        {" [ ] ", "[]"},
        {"['a']", "[\"a\"]"},
        {"['a', \"b's\", '\"']", "[\"a\",\"b's\",\"\\\"\"]"},
        {"[1, -2, 3.5e+7,]", "[\"1\",\"-2\",\"3.5e+7\"]"},
        {"['a,]\\n\\t\\\\\\'\\x41\\101\\u00e9\\U0001f600\\q']", "[\"a,]\\n\\t\\\\'AA\u00e9\U0001f600\\\\q\"]"},
        {"", NULL, "expected [ at byte 1 of a list, found its end"},
        {"'a'", NULL, "expected [ at byte 1"},
        {"['a'", NULL, "a comma or ] at byte 5"},
        {"['a' 'b']", NULL, "a comma or ] at byte 6 of a list, found \"'b']\""},
        {"['a', nan]", NULL, "a string or a number at byte 7"},
        {"[[1]]", NULL, "a string or a number at byte 2"},
        {"['a'] x", NULL, "the end of the text after ]"},
        {"['a", NULL, "a closing quote"},
        {"['\\", NULL, "the rest of an escape"},
        {"['\\x4']", NULL, "a hexadecimal digit"},
        {"['\\ud83d\\ude00']", NULL, "escape U+D83D"},
        {"['\\U00110000']", NULL, "escape U+110000"},
        {"['\\N{DASH}']", NULL, "character names"},
        {"['\\0']", NULL, "without zero characters"},
        {"[__import__('os')]", NULL, "a string or a number"},
        {"[,]", NULL, "a string or a number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *list;
        dt_error_clear();
        const dt_err err = dt_python_list(&list, cases[i].text, strlen(cases[i].text));
        assert_int_equal(err, cases[i].want ? DT_OK : DT_ERR_DATA);
        if (!cases[i].want && !strstr(dt_error_message(), cases[i].why))
            print_message("%s: %s\n", cases[i].text, dt_error_message());
        if (!cases[i].want) {
            assert_says(cases[i].why);
            continue;
        }
        char *found = json_dumps(list, JSON_COMPACT);
        assert_string_equal(found, cases[i].want);
        free(found);
        json_decref(list);
    }
}

/* ---- broken files ------------------------------------------------------------------------------------------------ */

#define HEADER "user_id,history_item_sid,item_id,item_sid\n"
#define GOOD "u,['<a_3><b_1><c_0>'],2,<a_3><b_1><c_2>\n"

TEST_WITH(broken_rows_are_named_by_their_line, clear, NULL)
{
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"", "no document"},
        {"user_id,item_sid\n" GOOD, ":1: expected column names in the first line, including history_item_sid"},
        {"item_sid,item_sid\n", ":1: column item_sid occurs twice"},
        {"item_sid,\xff\n", ":1: expected column names in UTF-8, found another name in column 2"},
        {HEADER GOOD "\n\n" GOOD "u,[]\n" GOOD, ":6: expected 4 fields as in the first line, found 2"},
        {HEADER "u,[],2,<a_3><b_1><c_2>,\n", ":2: expected 4 fields as in the first line, found 5"},
        {HEADER "u,\"[\n\n]\",2,<a_3><b_1><c_2>\nu\n", ":5: expected 4 fields"},
        {HEADER "\"u\"x,[],2,<a_3><b_1><c_2>\n", ":2: expected a comma after the closing quote, found 'x' at byte 4"},
        {HEADER GOOD "u,\"[],2,<a_3><b_1><c_2>\n" GOOD, ":3: the file ends inside a quoted field of this row"},
        {HEADER "u,['<a_3><b_1><c_0>',2,<a_3><b_1><c_2>\n",
         ":2: history_item_sid: expected a comma or ] at byte 19 of a list, found its end"},
        {HEADER "u,nan,2,<a_3><b_1><c_2>\n", ":2: history_item_sid: expected [ at byte 1 of a list, found \"nan\""},
        {HEADER "u\xff,[],2,<a_3><b_1><c_2>\n", ":2: user_id: expected UTF-8 text"},
        {HEADER "u,[],2,<a_3><b_1><c_9>\n",
         ":2: item_sid: \"<a_3><b_1><c_9>\" is not an item of tests/data/rec/x.index"},
        {HEADER "u,['<a_3>'],2,<a_3><b_1><c_2>\n", ":2: history_item_sid: \"<a_3>\" is not an item of"},
        {HEADER "u,[],2,<a_3><b_1><c_0>\n",
         ":2: item_sid: expected <a_3><b_1><c_2> as in tests/data/rec/x.index.json for item 2"},
        {HEADER "u,[],2,\n", ":2: item_sid: \"\" is not an item of"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_make_options o = rec_options("eval");
        dt_make_stats stats;
        assert_fails(make(cases[i].text, &o, &stats), DT_ERR_DATA, cases[i].why);
        assert_int_equal(access(output, F_OK), -1);
    }
}

TEST(broken_rows_are_left_out_and_counted)
{
    dt_make_options o = rec_options("eval");
    dt_make_stats stats;
    o.skip_bad = true;
    must_make(HEADER "u,[]\n" GOOD "u,[]\nu,[,2,<a_3><b_1><c_2>\n" GOOD, &o, &stats);
    assert_int_equal(stats.n_documents, 2);
    assert_int_equal(stats.n_bad, 3);
    assert_int_equal(stats.n_problems, 2);
    assert_int_equal(stats.problems[0].n, 2);
}

TEST(carriage_returns_and_a_missing_last_newline_are_no_text)
{
    dt_make_options o = rec_options("eval");
    dt_make_stats stats;
    must_make("\xef\xbb\xbfitem_sid,\"history_item_sid\"\r\n\r\n<a_3><b_1><c_2>,[]", &o, &stats);
    assert_int_equal(stats.n_documents, 1);
}

TEST(other_columns_are_strings)
{
    dt_make_options o = rec_options("eval");
    dt_make_stats stats;
    must_make("history_note,history_item_sid,item_sid\nold,[],<a_3><b_1><c_2>\n", &o, &stats);
    assert_int_equal(stats.n_documents, 1);
}

/* Without an index a SID is checked by the tokenizer alone. */
TEST(a_sid_of_unknown_tokens_is_refused)
{
    dt_make_options o = rec_options("eval");
    dt_make_stats stats;
    o.rec.index = o.rec.items = NULL;
    must_make("item_sid,history_item_sid\n<a_3><b_1>,[]\n", &o, &stats);
    static const char *const texts[][2] = {
        {"item_sid,history_item_sid\n<a_3><b_999>,[]\n",
         "item_sid: <b_999> is not one token of the tokenizer: use a model with the level tokens (add them with "
         "dtrain-convert --add-tokens"},
        {"item_sid,history_item_sid\n<a_3>,['<a_3>x']\n", "history_item_sid: expected a SID such as"},
        {"item_sid,history_item_sid\n<a_3,[]\n", "item_sid: expected a SID such as"},
        {"item_sid,history_item_sid\n<>,[]\n", "item_sid: expected a SID such as"}};
    for (int i = 0; i < 4; i++) {
        assert_fails(make(texts[i][0], &o, &stats), DT_ERR_DATA, texts[i][1]);
    }
    o.rec.index = FILES "x.index.json";
    o.tokenizer = "tests/data/tokenizer/qwen2"; /* it has no level tokens */
    assert_fails(make("item_sid,history_item_sid\n", &o, &stats), DT_ERR_DATA, "dtrain-convert --add-tokens");
}

static void write_other(const char *text)
{
    FILE *f = fopen(other, "w");
    fputs(text, f);
    fclose(f);
}

/* As add_tokens of transformers adds plain texts to a tokenizer that puts a space before each text. */
TEST(level_tokens_that_are_found_in_normalised_text_are_refused)
{
    dt_make_options o = rec_options("eval");
    dt_make_stats stats;
    json_t *tokenizer = json_load_file(FILES "llama2/tokenizer.json", 0, NULL), *token;
    size_t i;
    json_array_foreach(json_object_get(tokenizer, "added_tokens"), i, token)
        json_object_set_new(token, "normalized", json_boolean(!json_is_true(json_object_get(token, "special"))));
    char *text = json_dumps(tokenizer, 0);
    write_other(text);
    o.tokenizer = other;
    for (int with_index = 1; with_index >= 0; with_index--) {
        if (!with_index) o.rec.index = o.rec.items = NULL;
        assert_fails(make("item_sid,history_item_sid\n<a_3><b_1><c_2>,[]\n", &o, &stats), DT_ERR_DATA,
                     "expected <a_3> among the tokenizer's added tokens, with \"normal");
    }
    free(text);
    json_decref(tokenizer);
}

TEST(broken_catalogues_and_templates_are_refused)
{
    static const struct {
        const char *text, *why;
        char what; /* i: index, t: items, m: template */
    } cases[] = {
        {"[]", "expected an object of items", 'i'},
        {"{}", "the file contains no items", 'i'},
        {"{\"1\": []}", "item 1: expected a list of level tokens", 'i'},
        {"{\"1\": [\"<a_3>\", 7]}", "item 1: expected a list of level tokens", 'i'},
        {"{\"1\": [\"<a_77>\"]}", "item 1: <a_77> is not one token", 'i'},
        {"{\"1\": [\"<a_3>\", \"b\"]}", "item 1: expected a SID such as <a_1><b_2><c_3>, found \"b\"", 'i'},
        {"{\"\": [\"<a_3>\"]}", "expected item ids that are not empty", 'i'},
        {"{\"1\\t2\": [\"<a_3>\"]}", "expected item ids that are not empty and contain no tabs", 'i'},
        {"{\"17\": {\"title\": 1}}", "item 17: expected an object with a string title", 't'},
        {"{\"17\": \"t\"}", "item 17: expected an object with a string title", 't'},
        {"{\"tasks\": 1}", "tasks: expected an object", 'm'},
        {"{\"task\": {}}", "task: unknown template key", 'm'},
        {"{\"tasks\": {\"a\": {}}}", "a.of: expected \"rows\" or \"items\"", 'm'},
        {"{\"tasks\": {\"a\": {\"of\": \"rows\", \"inptu\": \"\"}}}", "a.inptu: unknown template key", 'm'},
        {"{\"tasks\": {\"a\": {\"of\": \"rows\", \"preamble\": \"\"}}}", "a.prompt: expected a text", 'm'},
        {"{\"tasks\": {\"a\": {\"of\": \"rows\", \"preamble\": \"{input}\"}}}",
         "a.preamble: expected {category} {instruction}, or {{ and }} for braces, found \"{input}\"", 'm'},
        {"{\"quote\": \"\", \"separator\": \"\", \"preamble\": \"\", \"prompt\": \"{input}\", \"response\": "
         "\"{target}\", \"tasks\": {\"a\": {\"of\": \"items\", \"input\": \"{sids}\"}}}",
         "a.input: expected {category} {sid} {title} {description}", 'm'},
        {"{\"quote\": \"\", \"separator\": \"\", \"preamble\": \"\", \"prompt\": \"{input}\", \"response\": "
         "\"{target}\", \"tasks\": {\"a\": {\"of\": \"items\", \"input\": \"\", \"target\": \"\", \"instruction\": "
         "[]}}}",
         "a.instruction: expected a text or a list of texts", 'm'},
        {"{\"quote\": \"\", \"separator\": \"\", \"preamble\": \"\", \"prompt\": \"{input}\", \"response\": "
         "\"{target}\", \"tasks\": {\"a\": {\"of\": \"items\", \"input\": \"\", \"target\": \"\", \"instruction\": "
         "\"\"}}}",
         "sft: expected a list of tasks", 'm'},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_make_options o = rec_options("sft");
        dt_make_stats stats;
        write_other(cases[i].text);
        *(cases[i].what == 'i' ? &o.rec.index : cases[i].what == 't' ? &o.rec.items : &o.chat_template) = other;
        assert_fails(make(HEADER GOOD, &o, &stats), DT_ERR_DATA, cases[i].why);
    }
}

TEST(options_that_do_not_fit_are_refused)
{
    static const struct {
        const char *why, *recipe, *tasks, *kind, *index;
    } cases[] = {
        {"recipe: expected sft, rl or eval, found dpo", "dpo", NULL, "auto", FILES "x.index.json"},
        {"kind: expected sft for the recipe sft, found prompts", "sft", NULL, "prompts", FILES "x.index.json"},
        {"tasks: expected one or more of sids-sid, title-sid,", "sft", "sids", "auto", FILES "x.index.json"},
        {"tasks: expected NAME or NAME:NUMBER, found sids-sid:0", "sft", "sids-sid:0", "auto", FILES "x.index.json"},
        {"task title-sid: expected the index file (--index)", "sft", NULL, "auto", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_make_options o = rec_options(cases[i].recipe);
        dt_make_stats stats;
        o.rec.tasks = cases[i].tasks;
        o.kind = kind_named(cases[i].kind);
        o.rec.index = cases[i].index;
        assert_fails(make(HEADER GOOD, &o, &stats), DT_ERR_USAGE, cases[i].why);
    }
}

/* ---- sampled and kept rows
 * ----------------------------------------------------------------------------------------- */

enum { N_ROWS = 500 };

/* Rows whose history has as many items as their number in hundreds; user i % n_users. */
static char *many_rows(int n_users)
{
    char *text = malloc(1 << 20), *p = text + sprintf(text, "user_id,history_item_title,item_title,item_sid\n");
    for (int i = 0; i < N_ROWS; i++) {
        p += sprintf(p, "u%d,\"['%d'", i % n_users, i);
        for (int k = 0; k < i / 100; k++) p += sprintf(p, ", 'x'");
        p += sprintf(p, "]\",t,<a_3><b_1><c_%d>\n", i % 2 ? 0 : 2);
    }
    return text;
}

/* The indices of the rows that samples of a file are made of, as bits of `rows`; returns the number of samples. */
static int64_t rows_of(const dt_make_options *o, const char *path, bool rows[N_ROWS])
{
    dt_dataset *d = open_output(path);
    dt_tokenizer *t;
    assert_int_equal(dt_tokenizer_open(&t, o->tokenizer), DT_OK);
    const int64_t n_samples = dt_dataset_get_info(d)->n_documents;
    memset(rows, 0, N_ROWS);
    for (int64_t i = 0; i < n_samples; i++) {
        int64_t first, n;
        int32_t ids[1024];
        assert_int_equal(dt_dataset_document(d, i, &first, &n), DT_OK);
        assert_int_equal(dt_dataset_read_tokens(d, first, n, ids), DT_OK);
        char *prompt = dt_decode(t, ids, n, false, &(size_t){0}), *number = strstr(prompt, ": \"");
        assert_non_null(number);
        rows[atoi(number + 3)] = true;
        free(prompt);
    }
    dt_dataset_close(d);
    dt_tokenizer_close(t);
    return n_samples;
}

static int64_t drawn_rows(const dt_make_options *o, const char *text, bool drawn[N_ROWS])
{
    dt_make_stats stats;
    must_make(text, o, &stats);
    return rows_of(o, output, drawn);
}

TEST(sampled_rows_depend_only_on_the_seed)
{
    bool a[N_ROWS], b[N_ROWS];
    char *text = many_rows(N_ROWS);
    dt_make_options o = rec_options("rl");
    o.rec.index = o.rec.items = NULL;
    o.rec.tasks = "titles-sid-rl:100";
    o.n_threads = 1;
    assert_int_equal(drawn_rows(&o, text, a), 100);
    o.n_threads = 4;
    assert_int_equal(drawn_rows(&o, text, b), 100);
    assert_memory_equal(a, b, sizeof a);
    o.rec.seed = 43;
    assert_int_equal(drawn_rows(&o, text, b), 100);
    assert_memory_not_equal(a, b, sizeof a);
    int n = 0;
    for (int i = 0; i < N_ROWS; i++) n += a[i];
    assert_int_equal(n, 100); /* none twice */
    free(text);
}

TEST(the_longest_history_of_each_user_is_kept)
{
    bool a[N_ROWS];
    char *text = many_rows(7);
    dt_make_options o = rec_options("rl");
    o.rec.index = o.rec.items = NULL;
    o.rec.tasks = "titles-sid-rl";
    o.rec.longest = true;
    assert_int_equal(drawn_rows(&o, text, a), 7);
    for (int i = N_ROWS - 7; i < N_ROWS; i++) assert_true(a[i]); /* of equal ones the last */
    o.rec.tasks = "titles-sid-rl:3";
    assert_int_equal(drawn_rows(&o, text, a), 3); /* of those that stay */
    free(text);
    dt_make_stats stats;
    assert_fails(make("item_sid,history_item_title\n", &o, &stats), DT_ERR_DATA, ":1: expected the column user_id");
    o.inputs = (const char *const[]){"-"};
    assert_fails(make(NULL, &o, &stats), DT_ERR_USAGE, "standard input can be read only once");
    assert_int_equal(unlink(input), 0);
    assert_int_equal(mkfifo(input, 0600), 0);
    o.inputs = (const char *const[]){input};
    assert_fails(make(NULL, &o, &stats), DT_ERR_USAGE, "can be read only once");
    assert_int_equal(unlink(input), 0);
}

static dt_err read_rows(void *reader, dt_pipeline *p) { return dt_reader_run(reader, p); }
static void leave(void *self, int thread, dt_chunk *chunk) {}
static dt_err drop(void *self, dt_chunk *chunk) { return DT_OK; }

static void write_rows(const char *path, int n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("user_id,history_item_title,item_title,item_sid\n", f);
    for (int i = 0; i < n; i++) fprintf(f, "u%d,['a'],t,<a_3><b_1><c_2>\n", i);
    fclose(f);
}

TEST(files_that_change_between_the_two_passes_are_refused)
{
    static const struct {
        int n_rows;
        const char *why; /* NULL: accepted */
    } cases[] = {{5, NULL},
                 {4, ": the inputs have shrunk since their rows were counted: expected 10 rows, found 9"},
                 {6, ": the file has grown since its rows were counted"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_make_options o = rec_options("rl");
        dt_tokenizer *t;
        dt_rec rec;
        dt_reader r;
        o.rec.index = o.rec.items = NULL;
        o.rec.tasks = "titles-sid-rl";
        o.rec.longest = true;
        o.inputs = (const char *const[]){input, other};
        o.n_inputs = 2;
        write_rows(input, 5);
        write_rows(other, 5);
        assert_int_equal(dt_tokenizer_open(&t, o.tokenizer), DT_OK);
        assert_int_equal(dt_rec_open(&rec, &o, t), DT_OK);
        assert_int_equal(dt_reader_open(&r, &o, t, &rec), DT_OK);
        write_rows(input, cases[i].n_rows);
        const dt_err err = dt_pipeline_run(&(dt_pipeline_jobs){read_rows, leave, drop, .self = &r}, 1);
        assert_int_equal(err, cases[i].why ? DT_ERR_DATA : DT_OK);
        if (cases[i].why) assert_says(cases[i].why);
        dt_error_clear();
        dt_reader_close(&r);
        dt_rec_close(&rec);
        dt_tokenizer_close(t);
    }
}

TEST(rows_are_held_out_with_all_their_samples)
{
    bool trained[N_ROWS], held_out[N_ROWS];
    char *text = many_rows(N_ROWS);
    dt_make_options o = rec_options("rl");
    dt_make_stats stats;
    o.rec.index = o.rec.items = NULL;
    o.rec.tasks = "titles-sid-rl,titles-sid";
    o.validation = other;
    o.validation_fraction = 0.5;
    must_make(text, &o, &stats);
    assert_int_equal(rows_of(&o, output, trained) + rows_of(&o, other, held_out), 2 * N_ROWS);
    for (int i = 0; i < N_ROWS; i++) assert_true(trained[i] != held_out[i]);
    free(text);
}

TEST_WITH(the_catalogue_is_written_for_evaluation, clear, NULL)
{
    dt_make_options o = rec_options("eval");
    dt_make_stats stats;
    o.rec.catalogue = other;
    must_make(HEADER GOOD, &o, &stats);
    char text[512] = "";
    FILE *f = fopen(other, "r");
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    assert_string_equal(text, "<a_3><b_1><c_0>\tPipe \"5in\", steel\t17\n<a_3><b_1><c_2>\tBob's screws (100)\t2\n"
                              "<a_0><b_0><c_0>\tcaf\u00e9 \U0001f600 \u4e16\u754c\tx-5\n<a_0><b_4><c_2>\t\t40\n"
                              "<a_0><b_4><c_2>\t{title} {{ }\t41\n<a_10><b_4><c_2>\t\t50\n");
    o.force = false;
    unlink(output);
    assert_int_equal(make(HEADER GOOD, &o, &stats), DT_ERR_USAGE);
}

int main(void) { return run_listed(NULL, open_folder, remove_folder); }
