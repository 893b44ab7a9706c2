// NEEDS: PCRE2 UTF8PROC
/* test_tokenizer_files.c - files that are not tokenizers are refused with an error naming the file; companion files;
 * regular expressions. */
#include "folder.h"
#include <sys/stat.h>
#include "dtrain/tokenizer/tokenizer.h"
#include "../src/tokenizer/regex.h"

/* A file with one part given. */
#define MODEL                                                                                                          \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"</"                                             \
    "s>\":3,\"<s>\":4},\"merges\":[[\"a\",\"b\"]]}"
#define ADDED                                                                                                          \
    "\"added_tokens\":[{\"id\":3,\"content\":\"</"                                                                     \
    "s>\",\"special\":true,\"normalized\":false},{\"id\":4,\"content\":\"<s>\",\"special\":true,"                      \
    "\"normalized\":false},{\"id\":9,\"content\":\"<|reserved_0|>\",\"special\":true}]"

static void whole_file(const char *part)
{
    char text[4096];
    snprintf(text, sizeof text, "{%s%s" MODEL "}", part, part[0] ? "," : "");
    write_file("tokenizer.json", text);
}

static void refused(dt_err expected, const char *name, const char *words)
{
    dt_tokenizer *t;
    dt_error_clear();
    const dt_err err = dt_tokenizer_open(&t, name);
    if (err != expected || !strstr(dt_error_message(), words))
        fail_msg("expected error %d with \"%s\", found %d \"%s\"", expected, words, err, dt_error_message());
    assert_null(t);
    dt_error_clear();
}

TEST(a_bad_file_is_refused_by_name)
{
    const struct {
        const char *text, *words;
    } whole[] = {
        {"", "tokenizer.json:"},
        {"[]", "an object"},
        {"{", "tokenizer.json:1"},
        {"{}", "model: expected an object"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "model.vocab: expected 1 to 4194303 tokens"},
        {"{\"model\":{\"type\":\"WordPiece\"}}", "\"WordPiece\""},
        {"{\"model\":{\"type\":\"WordLevel\"}}", "\"WordLevel\""},
        {"{\"model\":{\"vocab\":{}, \"merges\":[]}}", "model.vocab: expected tokens"},
        {"{\"model\":{\"vocab\":{\"a\":0,\"b\":0}, \"merges\":[]}}", "one token for id 0, found \"a\" and \"b\""},
        {"{\"model\":{\"vocab\":{\"a\":-1}, \"merges\":[]}}", "for \"a\""},
        {"{\"model\":{\"vocab\":{\"a\":4194304}, \"merges\":[]}}", "4194303"},
        {"{\"model\":{\"vocab\":{\"a\":1e3}, \"merges\":[]}}", "an id"},
        {"{\"model\":{\"vocab\":{\"a\":0}}}", "model.merges: expected an array"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a c\"]}}",
         "model.merges[0]: expected two tokens of the vocabulary, found \"a c\""},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", "whose concatenation is"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", "two tokens"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", "two tokens"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\",3]]}}", "two tokens"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}", "model.dropout: expected null, found 0.1"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"speed\":1}}", "model.speed: expected a known key"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"<unk>\"}}", "model.unk_token"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"fuse_unk\":1}}", "model.fuse_unk: expected true or false"},
    };
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++) {
        write_file("tokenizer.json", whole[i].text);
        refused(DT_ERR_DATA, folder, whole[i].words);
    }
    refused(DT_ERR_DATA, "/nowhere/at/all", "a tokenizer.json or a directory with one, found \"/nowhere/at/all\"");
    unlink(in_folder("tokenizer.json"));
    refused(DT_ERR_DATA, folder, "tokenizer.json: cannot be opened: No such file or directory");
    write_file("tokenizer.model", "");
    refused(DT_ERR_DATA, folder, "tokenizer.model: ");
    unlink(in_folder("tokenizer.model"));
    char checkpoints[300];
    snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", folder);
    assert_int_equal(mkdir(checkpoints, 0700), 0);
    refused(DT_ERR_DATA, folder, "the tokenizer of a run is stored in its export");
    rmdir(checkpoints);
    refused(DT_ERR_DATA, "/dev/null", "/dev/null: expected a file");
}

/* A tokenizer.model: pieces of these types, then the bytes of trainer_spec. */
static void put_piece(FILE *f, const char *text, size_t n, int type)
{
    fprintf(f, "\n%c\n%c%.*s\x18%c", (int)n + 4, (int)n, (int)n, text, type);
}

static void begin_model(FILE **f)
{
    *f = fopen(in_folder("tokenizer.model"), "wb");
    assert_non_null(*f);
    put_piece(*f, "<unk>", 5, 2);
}

static void model_is_refused(FILE *f, const char *trainer, const char *words)
{
    fprintf(f, "\x12%c%s", (int)strlen(trainer), trainer);
    assert_int_equal(fclose(f), 0);
    refused(DT_ERR_DATA, folder, words);
}

TEST(a_bad_sentencepiece_model_is_refused)
{
    static const struct {
        const char *piece;
        int type;
        const char *trainer, *words;
    } bad[] = {
        {"", 1, "\x18\x02", "piece 1: expected 1 to 512 bytes of UTF-8"},
        {"\xff", 1, "\x18\x02", "piece 1: expected"},
        {"a", 7, "\x18\x02", "piece 1: expected"},
        {"a", 1, "\x18\x03", "model_type: expected 1 (unigram) or 2 (BPE), found 3"},
        {"a", 1, "\xc0\x02\x05", "unk_id: expected the id of one of 2 pieces, found 5"},
        {"a", 1, "\x18\x02\xea\x02\x01\xff", "unk_piece: expected UTF-8, found other bytes"},
        {"a", 1, "\x18\x02\xf2\x02\x01\xff", "bos_piece: expected UTF-8"},
        {"<unk>", 1, "\x18\x02", "one id for \"<unk>\", found 0 and 1"},
    };
    FILE *f;
    unlink(in_folder("tokenizer.json"));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        begin_model(&f);
        put_piece(f, bad[i].piece, strlen(bad[i].piece), bad[i].type);
        model_is_refused(f, bad[i].trainer, bad[i].words);
    }
    unlink(in_folder("tokenizer.model"));
}

/* All parts of a long text: the number of merges grows with the third power of its length. */
TEST(a_model_with_too_many_merges_is_refused)
{
    enum { LENGTH = 120 };
    char text[LENGTH];
    FILE *f;
    for (int i = 0; i < LENGTH; i++) text[i] = (char)(i + 1);
    begin_model(&f);
    for (int i = 0; i < LENGTH; i++)
        for (int n = 1; i + n <= LENGTH; n++) put_piece(f, text + i, (size_t)n, 1);
    model_is_refused(f, "\x18\x02", "pairs of pieces that form a piece");
    unlink(in_folder("tokenizer.model"));
}

/* As transformers writes tokenizer_config.json where no length is set, and vocabularies of characters that begin at
 * U+0000. */
TEST(what_published_files_contain_is_read)
{
    dt_tokenizer *t;
    dt_encoder *e;
    dt_ids ids = {0};
    write_file("tokenizer.json",
               "\xef\xbb\xbf{\"added_tokens\":[{\"id\":4,\"content\":\"</"
               "s>\",\"special\":true},{\"id\":5,\"content\":\"z\\u0000\"}],"
               "\"model\":{\"vocab\":{\"\\u0000\":0,\"a\":1,\"a\\u0000\":2,\"\\u0000a\\u0000\":3},"
               "\"merges\":[\"a \\u0000\",[\"\\u0000\",\"a\\u0000\"]]},\"decoder\":{\"type\":\"Fuse\"}}");
    write_file("tokenizer_config.json",
               "{\"eos_token\":\"</"
               "s>\",\"model_max_length\":1000000000000000019884624838656,\"sp_model_kwargs\":{\"\\u0000\":NaN}}");
    if (dt_tokenizer_open(&t, folder) != DT_OK) fail_msg("%s", dt_error_message());
    assert_int_equal(dt_tokenizer_get_info(t)->eos, 4);
    assert_int_equal(dt_encoder_open(&e, t), DT_OK);
    assert_int_equal(dt_encode(e, &(dt_span){.text = "a\0\0a\0z\0\0", .nbytes = 8}, 1, 0, &ids, NULL), DT_OK);
    const int32_t expected[] = {2, 3, 5, 0};
    assert_int_equal(ids.n, 4);
    assert_memory_equal(ids.id, expected, sizeof expected);
    size_t n;
    char *text = dt_decode(t, ids.id, (int64_t)ids.n, false, &n);
    assert_int_equal(n, 8);
    assert_memory_equal(text, "a\0\0a\0z\0\0", 8);
    free(text);
    free(ids.id);
    dt_encoder_close(e);
    dt_tokenizer_close(t);
    unlink(in_folder("tokenizer_config.json"));
}

TEST(what_is_not_supported_is_named)
{
    const struct {
        const char *part, *words;
    } parts[] = {
        {"\"normalizer\":{\"type\":\"Nmt\"}", "normalizer.type: expected NFC"},
        {"\"normalizer\":{\"type\":\"Precompiled\"}", "normalizer.precompiled_charsmap: expected a string"},
        {"\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAA\"}", "expected a table in base64"},
        {"\"normalizer\":{\"type\":\"NFC\",\"x\":1}", "normalizer.x"},
        {"\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Bert\"}]}",
         "normalizer.normalizers[1].type"},
        {"\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(\"},\"content\":\"\"}",
         "normalizer.pattern: "},
        {"\"normalizer\":{\"type\":\"Replace\",\"pattern\":\"a\",\"content\":\"\"}",
         "normalizer.pattern: expected an object"},
        {"\"normalizer\":3", "expected a string"},
        {"\"pre_tokenizer\":{\"type\":\"CharDelimiterSplit\"}", "pre_tokenizer.type"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Never\"}",
         "behavior: expected Removed"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[[:alpha:]]\"},\"behavior\":\"Removed\"}",
         "[ within a set is not supported"},
        {"\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}",
         "pre_tokenizer.replacement: expected one character"},
        {"\"pre_tokenizer\":{\"type\":\"Metaspace\",\"prepend_scheme\":\"often\"}", "always, first or never"},
        {"\"decoder\":{\"type\":\"CTC\"}", "decoder.type"},
        {"\"decoder\":{\"type\":\"Strip\",\"content\":\"\"}", "decoder.content"},
        {"\"post_processor\":{\"type\":\"Other\"}", "post_processor.type"},
        {"\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}",
         "post_processor.single: expected the sequence A"},
        {"\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}],\"special_"
         "tokens\":{}}",
         "special_tokens.x"},
        {"\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}],\"special_"
         "tokens\":{\"x\":{\"ids\":[77]}}}",
         "ids of the vocabulary"},
        {"\"added_tokens\":{}", "added_tokens: expected an array"},
        {"\"added_tokens\":[{\"content\":\"x\"}]", "added_tokens[0].id"},
        {"\"added_tokens\":[{\"id\":7,\"content\":\"\"}]", "added_tokens[0].content"},
        {"\"added_tokens\":[{\"id\":7,\"content\":\"a\"}]", "added_tokens[0]: expected one id for \"a\""},
        {"\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]", "one token for id 1"},
        {"\"added_tokens\":[{\"id\":7,\"content\":\"x\"},{\"id\":7,\"content\":\"x\"}]", "no other added token"},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        whole_file(parts[i].part);
        refused(DT_ERR_DATA, folder, parts[i].words);
    }
}

/* What a file may make of a text is bounded: long contents, and steps that double what the steps before made. */
TEST(growth_is_bounded)
{
    char x[1026], part[2048];
    memset(x, 'x', 1025);
    x[1025] = 0;
    snprintf(part, sizeof part, "\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"%s\"}", x);
    whole_file(part);
    refused(DT_ERR_DATA, folder, "normalizer.prepend: expected at most 1024 bytes, found 1025");
    snprintf(part, sizeof part, "\"added_tokens\":[{\"id\":7,\"content\":\"%s\"}]", x);
    whole_file(part);
    refused(DT_ERR_DATA, folder, "an added token of at most 1024 bytes, found 1025");
    snprintf(part, sizeof part,
             "\"added_tokens\":[{\"id\":7,\"content\":\"c\"}],\"normalizer\":{\"type\":\"Replace\",\"pattern\":{"
             "\"Regex\":\"c\"},\"content\":\"%s\"}",
             x + 1);
    whole_file(part);
    dt_tokenizer *t;
    if (dt_tokenizer_open(&t, folder) != DT_OK) fail_msg("%s", dt_error_message());
    dt_tokenizer_close(t);

    char steps[2048] = "";
    for (int i = 0; i < 31; i++) {
        const size_t n = strlen(steps);
        snprintf(steps + n, sizeof steps - n,
                 "%s{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aa\"}", i ? "," : "");
    }
    char whole[3072];
    snprintf(whole, sizeof whole, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[%s]}", steps);
    whole_file(whole);
    if (dt_tokenizer_open(&t, folder) != DT_OK) fail_msg("%s", dt_error_message());
    dt_encoder *e;
    dt_ids ids = {0};
    assert_int_equal(dt_encoder_open(&e, t), DT_OK);
    const dt_span text = {.text = "a", .nbytes = 1};
    assert_fails(dt_encode(e, &text, 1, 0, &ids, NULL), DT_ERR_DATA, "more than 64 times as long");
    dt_encoder_close(e);
    dt_tokenizer_close(t);
    free(ids.id);
}

TEST(deep_nesting_is_read)
{
    char *text = malloc(200000);
    char *p = text + sprintf(text, "{\"normalizer\":");
    for (int i = 0; i < 900; i++) p += sprintf(p, "{\"type\":\"Sequence\",\"normalizers\":[");
    p += sprintf(p, "{\"type\":\"NFC\"}");
    for (int i = 0; i < 900; i++) p += sprintf(p, "]}");
    sprintf(p, "," MODEL "}");
    write_file("tokenizer.json", text);
    dt_tokenizer *t;
    assert_int_equal(dt_tokenizer_open(&t, folder), DT_OK);
    dt_tokenizer_close(t);
    free(text);
}

/* ---- companion files
 * ------------------------------------------------------------------------------------------------ */

typedef struct facts {
    int32_t bos, eos, pad;
    const char *chat;
    size_t n_wrapped; /* ids of "ab" with the added special tokens */
    int n_more;       /* tokens that have a name alone */
} facts;

static void opens_with(const char *config, const char *map, const facts *f)
{
    dt_tokenizer *t;
    dt_encoder *e;
    dt_ids ids = {0};
    if (config) write_file("tokenizer_config.json", config);
    if (map) write_file("special_tokens_map.json", map);
    if (dt_tokenizer_open(&t, folder) != DT_OK) fail_msg("%s: %s", config ? config : "", dt_error_message());
    const dt_tokenizer_info *i = dt_tokenizer_get_info(t);
    if (i->bos != f->bos || i->eos != f->eos || i->pad != f->pad)
        fail_msg("%s: found %d %d %d", config, i->bos, i->eos, i->pad);
    if (f->chat)
        assert_string_equal(i->chat_template, f->chat);
    else
        assert_null(i->chat_template);
    assert_int_equal(i->n_own, 10);
    assert_int_equal(i->vocab_size, 10 + f->n_more);
    assert_string_equal(i->directory, folder);
    assert_memory_equal(i->name, "tokenizer.json:", 15);
    assert_int_equal(dt_encoder_open(&e, t), DT_OK);
    assert_int_equal(dt_encode(e, &(dt_span){.text = "ab", .nbytes = 2}, 1, DT_ENCODE_WRAP, &ids, NULL), DT_OK);
    assert_int_equal(ids.n, f->n_wrapped);
    ids.n = 0;
    assert_int_equal(dt_encode(e, &(dt_span){.text = "<s>ab", .nbytes = 5}, 1, DT_ENCODE_WRAP, &ids, NULL), DT_OK);
    if (f->bos >= 0)
        assert_int_equal(ids.n - (f->n_wrapped - 1),
                         f->n_wrapped > 1 && ids.id[0] == f->bos && f->n_wrapped == 2 ? 1 : ids.n - (f->n_wrapped - 1));
    free(ids.id);
    dt_encoder_close(e);
    dt_tokenizer_close(t);
    unlink(in_folder("tokenizer_config.json"));
    unlink(in_folder("special_tokens_map.json"));
}

TEST(config_says_what_tokens_are_for)
{
    whole_file(ADDED);
    opens_with(NULL, NULL, &(facts){-1, 3, 9, NULL, 1, 0});
    opens_with("{\"eos_token\":\"<s>\",\"pad_token\":\"</s>\",\"bos_token\":null}", NULL,
               &(facts){-1, 4, 3, NULL, 1, 0});
    opens_with("{\"eos_token\":{\"content\":\"</s>\"},\"bos_token\":{\"content\":\"<s>\"},\"add_bos_token\":true}",
               NULL, &(facts){4, 3, 9, NULL, 1, 0}); /* the post-processor decides */
    opens_with("{\"eos_token\":\"</s>\",\"bos_token\":\"<s>\",\"add_bos_token\":true,\"add_eos_token\":true}", NULL,
               &(facts){4, 3, 9, NULL, 1, 0});
    opens_with("{\"bos_token\":\"<s>\"}", "{\"eos_token\":{\"content\":\"a\"},\"bos_token\":\"b\"}",
               &(facts){1, 0, 9, NULL, 2, 0}); /* the map decides; both are found in the text now */
    opens_with("{\"bos_token\":\"<s>\",\"added_tokens_decoder\":{}}", "{\"bos_token\":\"b\"}",
               &(facts){4, -1, 9, NULL, 1, 0}); /* but not together with added_tokens_decoder */
    opens_with("{\"pad_token\":\"<new>\",\"eos_token\":\"</s>\"}", NULL, &(facts){-1, 3, 9, NULL, 1, 1});
    opens_with("{\"eos_token\":\"<none>\",\"bos_token\":\"<none>\"}", NULL, &(facts){10, 10, 9, NULL, 1, 1});
    opens_with("{\"chat_template\":\"{{ x }}\"}", NULL, &(facts){-1, -1, 9, "{{ x }}", 1, 0});
    opens_with(
        "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"t\"},{\"name\":\"default\",\"template\":\"d\"}]}",
        NULL, &(facts){-1, -1, 9, "d", 1, 0});
    write_file("chat_template.jinja", "from a file");
    opens_with("{\"chat_template\":\"x\",\"eos_token\":\"</s>\"}", NULL, &(facts){-1, 3, 9, "from a file", 1, 0});
    unlink(in_folder("chat_template.jinja"));
    whole_file(ADDED ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>"
                     "\",\"type_id\":0}},"
                     "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":\"<"
                     "s>\",\"ids\":[4],\"tokens\":[\"<s>\"]}}}");
    opens_with(NULL, NULL, &(facts){4, 3, 9, NULL, 2, 0});
    opens_with("{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"add_bos_token\":false}", NULL,
               &(facts){4, 3, 9, NULL, 2, 0});
    const struct {
        const char *config, *words;
    } bad[] = {{"{\"eos_token\":3}", "tokenizer_config.json: eos_token: expected a token: a string, or an object"},
               {"{\"eos_token\":\"\"}", "tokenizer_config.json: eos_token: expected a token that is not empty"},
               {"{\"added_tokens_decoder\":[]}", "added_tokens_decoder: expected an object"},
               {"{\"added_tokens_decoder\":{\"x\":{}}}", "an id as its key"},
               {"{\"added_tokens_decoder\":{\"9\":{}}}", "added_tokens_decoder.9.content"},
               {"{\"additional_special_tokens\":[3]}", "additional_special_tokens[0]: expected a token"},
               {"{\"extra_special_tokens\":3}", "extra_special_tokens: expected a list of tokens"},
               {"{", "tokenizer_config.json:1"},
               {"{\"add_eos_token\":3}", "add_eos_token: expected true or false"},
               {"{\"chat_template\":[3]}", "chat_template[0]"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_file("tokenizer_config.json", bad[i].config);
        refused(DT_ERR_DATA, folder, bad[i].words);
    }
    unlink(in_folder("tokenizer_config.json"));
}

/* ---- expressions ------------------------------------------------------------------------------------------------- */

/* All matches, as "begin-end " each. */
static void matches(const char *pattern, const char *text, const char *expected)
{
    dt_regex *r;
    dt_matcher *m;
    dt_matches at;
    char found[256] = "";
    bool more = true;
    if (dt_regex_compile(&r, pattern, strlen(pattern), DT_REGEX_ONIGURUMA) != DT_OK)
        fail_msg("%s: %s", pattern, dt_error_message());
    assert_int_equal(dt_matcher_open(&m), DT_OK);
    assert_int_equal(dt_matches_begin(&at, r, m, text, strlen(text), NULL), DT_OK);
    while (strlen(found) < 200) {
        assert_int_equal(dt_regex_next(&at, &more), DT_OK);
        if (!more) break;
        sprintf(found + strlen(found), "%zu-%zu ", at.begin, at.end);
    }
    if (strcmp(found, expected) != 0) fail_msg("%s on \"%s\": expected %s, found %s", pattern, text, expected, found);
    dt_matcher_close(m);
    dt_regex_free(r);
}

TEST(expressions_mean_what_they_mean_to_oniguruma)
{
    matches("\\s", "a\xc2\x85\xe1\xa0\x8e\xe3\x80\x80", "1-3 6-9 "); /* U+0085 and U+3000, not U+180E */
    matches("[\\s-]", "-x y", "0-1 2-3 ");
    matches("[^\\S]", "a b", "1-2 ");
    /* letters, marks, _, digits, U+00B2; not U+20AC */
    matches("\\w+",
            "a\xcc\x81_\xe2\x82\xac"
            "1\xc2\xb2",
            "0-4 7-10 ");
    matches("\\d+", "1\xd9\xa1\xc2\xb2", "0-3 ");
    matches("\\h+", "xfF0 g", "1-4 ");
    matches("a\\b", "a\xcc\x81 a", "4-5 ");
    matches("(?i:'s|'LL)", "'S 'll '\xc5\xbf", "0-2 3-6 7-10 ");
    matches("(?i)ab", "AB", "0-2 ");
    matches("a.b", "a\nb", "");
    matches("(?m:a.b)", "a\nb", "0-3 ");
    matches("^b$", "a\nb\n", "2-3 ");
    matches("a++a|a", "aaa", "0-1 1-2 2-3 ");
    matches("a{,2}b", "aaab", "1-4 ");
    matches("a{b", "a{b", "0-3 ");
    matches("\\p{Han}+", "\xe4\xb8\xad\xe3\x83\xbc", "0-3 "); /* U+30FC only extends to it */
    matches("\\p{^L}", "a1", "1-2 ");
    matches("\\x41\\u0042\\x{43}", "ABC", "0-3 ");
    matches("x*", "xxaxx", "0-2 3-5 ");
    matches("|a", "ba", "0-0 1-1 2-2 ");
    static const char *const refused_ones[] = {
        "a{1,3}+", "a{2}?",         "(?<n>a)\\k<n>", "(a)\\1",  "[a&&b]",
        "[a[b]]",  "[[:alpha:]]",   "[]a]",          "\\X",     "\\R",
        "a(?i)b",  "(*UTF)",        "(?#x)",         "(?i:ss)", "(?i:[a]|\xc3\xa9)",
        "(?i:f+)", "[z-a]",         "[a-\\d]",       "a)",      "(a",
        "\\xff",   "\\p{Nonsense}", "\\pL",          "\\",      "[a",
        "(?i",     "(?s:a)",        "\\G",           "\\Qa",    "[\\s-x]"};
    for (size_t i = 0; i < sizeof refused_ones / sizeof refused_ones[0]; i++) {
        dt_regex *r;
        dt_error_clear();
        if (dt_regex_compile(&r, refused_ones[i], strlen(refused_ones[i]), DT_REGEX_ONIGURUMA) != DT_ERR_DATA)
            fail_msg("%s is not refused", refused_ones[i]);
        assert_null(r);
    }
}

TEST(a_hostile_expression_ends_in_an_error)
{
    char text[4000];
    memset(text, 'a', sizeof text);
    static const char *const hostile[] = {"(a+)+b", "(?:a|a)*b", "(?:a*)*(?:a*)*b", "(a|aa)+$b"};
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        dt_regex *r;
        dt_matcher *m;
        dt_matches at;
        bool found;
        assert_int_equal(dt_regex_compile(&r, hostile[i], strlen(hostile[i]), DT_REGEX_ONIGURUMA), DT_OK);
        assert_int_equal(dt_matcher_open(&m), DT_OK);
        assert_int_equal(dt_matches_begin(&at, r, m, text, sizeof text, NULL), DT_OK);
        if (dt_regex_next(&at, &found) == DT_OK)
            assert_false(found);
        else
            assert_says("the tokenizer's regular expression fails at byte 0");
        dt_error_clear();
        dt_matcher_close(m);
        dt_regex_free(r);
    }
    dt_tokenizer *t;
    dt_encoder *e;
    dt_ids ids = {0};
    whole_file("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a+)+b\"},\"behavior\":\"Removed\"}");
    assert_int_equal(dt_tokenizer_open(&t, folder), DT_OK);
    assert_int_equal(dt_encoder_open(&e, t), DT_OK);
    text[sizeof text - 1] = 'c';
    assert_int_equal(dt_encode(e, &(dt_span){.text = "aab", .nbytes = 3}, 1, 0, &ids, NULL), DT_OK);
    free(ids.id);
    dt_encoder_close(e);
    dt_tokenizer_close(t);
}

int main(void) { return run_listed(NULL, make_folder, remove_folder); }
