/* test_data_fields.c - fields of records that nothing reads: those that would change the training are refused by name,
 * the others are counted. Pairs that teach nothing. Files that are not what their name says. */
#include "cases.h"
#include "data_make_fixture.h"
#include "dtrain/core/core.h"
#include "dtrain/io/io.h"
#include <hdf5.h>

#define Q "{'role': 'user', 'content': 'q'}"
#define A "{'role': 'assistant', 'content': 'a'}"
#define CHAT "'messages': [" Q ", " A "]"
#define WITHOUT(field) "'messages': [" Q ", {'role': 'assistant', 'content': 'a', " field "}]"
#define SHAREGPT "'conversations': [{'from': 'human', 'value': 'q'}, {'from': 'gpt', 'value': 'a'}]"
#define COMPLETION "'prompt': 'p', 'completion': 'c'"
#define PAIR "'prompt': 'p', 'chosen': 'c', 'rejected': 'd'"

typedef struct refusal {
    const char *record, *named; /* NULL: accepted */
    const char *kind;
    dt_mask mask;
    bool as_chat;
} refusal;

static void must_refuse(const refusal *r)
{
    dt_make_options o = options();
    dt_make_stats stats;
    char want[256];
    o.kind = kind_named(r->kind);
    o.mask = r->mask;
    o.as_chat = r->as_chat;
    const dt_err err = make(r->record, &o, &stats);
    snprintf(want, sizeof want, "%s:1: %s", input, r->named ? quoted(r->named) : "");
    if (err != (r->named ? DT_ERR_DATA : DT_OK) || (r->named && !strstr(dt_error_message(), want)))
        print_message("%s\n%s\n", r->record, dt_error_message());
    assert_int_equal(err, r->named ? DT_ERR_DATA : DT_OK);
    if (r->named) assert_says(want);
    dt_error_clear();
}
#define MUST_REFUSE(cases)                                                                                             \
    for (size_t i_ = 0; i_ < sizeof cases / sizeof cases[0]; i_++) must_refuse(&cases[i_])

TEST_WITH(fields_that_change_the_training_are_refused, clear, NULL)
{
    static const refusal cases[] = {
        {"{" CHAT ", 'tools': [1]}", "tools: expected a list of {\"name\""},
        {"{" CHAT ", 'tools': [{'name': 'f'}], 'functions': [{'name': 'f'}]}",
         "tools and functions: expected only one"},
        {"{" CHAT ", 'videos': ['a.mp4']}", "videos: only texts and images are supported"},
        {"{" SHAREGPT ", 'audios': ['a.wav']}", "audios: only texts and images are supported"},
        {"{" COMPLETION ", 'video': 'a.mp4'}", "video: "},
        {"{" CHAT ", 'chat_template_kwargs': {'enable_thinking': false}}", "chat_template_kwargs: "},
        {"{" CHAT ", 'enable_thinking': false}", "enable_thinking: "},
        {"{" COMPLETION ", 'loss_mask': [0, 1]}", "loss_mask: --mask selects the targets"},
        {"{" COMPLETION ", 'labels': [-100, 1]}", "labels: "},
        {"{" COMPLETION ", 'completion_mask': [0, 1]}", "completion_mask: "},
        {"{" CHAT ", 'input_ids': [1, 2]}", "input_ids: "},
        {"{" CHAT ", 'assistant_masks': [0, 1]}", "assistant_masks: "},
        {"{'instruction': 'i', 'output': 'o', 'reasoning_content': 'why'}",
         "reasoning_content: thoughts must be in an assistant message"},
        {"{'instruction': 'i', 'output': 'o', 'thinking': 'why'}",
         "thinking: thoughts must be in an assistant message"},
        {"{" SHAREGPT ", 'reasoning': 'why'}", "reasoning: thoughts must be in an assistant message"},
        {"{" COMPLETION ", 'reasoning': 'why'}", "reasoning: thoughts must be in an assistant message"},
        {"{" CHAT ", 'thinking': true}", "thinking: chat template arguments"},
        {"{" PAIR ", 'thinking': 'why'}", "thinking: thoughts must be in an assistant message"},
        {"{'chosen': [" Q ", " A "], 'rejected': [{'role': 'user', 'content': 'other'}, " A "]}",
         "chosen and rejected have different prompts: expected the same messages up to an answer of each, found in "
         "message 0 the question 'q' and the question 'other'"},
        {"{'chosen': [" Q ", " A ", " Q ", " A "], 'rejected': [" Q ", " A ", {'role': 'tool', 'content': 'r'}, " A
         "]}",
         "chosen and rejected have different prompts: expected the same messages up to an answer of each, found in "
         "message 2 the question 'q' and the tool result 'r'"},
        {"{'chosen': [{'role': 'system', 'content': 's'}, " Q ", " A "], 'rejected': [" Q ", " A "]}",
         "chosen and rejected have different prompts: expected the same messages up to an answer of each, found in "
         "message 0 the system message 's' and the question 'q'"},
        {"{'messages': [{'role': 'user', 'content': [{'type': 'image'}]}]}",
         "message 0: part 0 of its content: expected {'type': 'text', 'text': ...}, found type image (images need "
         "--images"},
        {"{" COMPLETION ", 'weight': 0.5}", "weight: the record has a weight; use it with --weight-key weight"},
        {"{" CHAT ", 'sample_weight': 0}", "sample_weight: the record has a weight"},
        {"{" PAIR ", 'weight': 2}", "weight: pairs have no weights"},
        {"{" PAIR ", 'videos': ['a']}", "videos: "},
        {"{" PAIR ", 'tools': [{'name': 'f'}]}", "tools: plain text cannot have tools"},
        {"{'prompt': [" Q "], 'tools': [1]}", "tools: expected a list"},
        {"{'question': 'q', 'answer': 'a', 'tools': 1}", "tools: expected a list"},
        {"{'prompt': [" Q "], 'chosen': [" A ", {'role': 'tool', 'content': 'r'}, " A "], 'rejected': [" A "]}",
         "message 2: the result of a tool in an answer would be compared"},
        {"{'prompt': [" Q "], 'completion': [" A ", {'role': 'tool', 'content': 'r'}, " A "], 'label': true}",
         "message 2: the result of a tool in an answer would be compared"},
        {"{'prompt': [" Q "], 'videos': ['a']}", "videos: "},
        {"{" CHAT ", 'history': [['q', 'a']]}", "history: the record has a list of messages"},
        {"{" COMPLETION ", 'system': 's'}",
         "system: plain text cannot have a system message; write the record as a conversation with --as-chat"},
        {"{" PAIR ", 'system': 's'}",
         "system: plain text cannot have a system message; write the record as a conversation with --as-chat"},
        {"{'prompt': 'p', 'history': [['q', 'a']]}", "history: plain text cannot have earlier turns"},
        {"{'messages': [{'role': 'system', 'content': 't'}, " Q ", " A "], 'system': 's'}",
         "system: the messages already begin with a system message"},
        {"{" CHAT ", 'system': 's', 'system_prompt': 't'}", "system and system_prompt: expected only one"},
        {"{'instruction': 'i', 'output': 'o', 'history': [['q']]}", "history: turn 0: expected [question, answer]"},
        {"{'instruction': 'i', 'output': 'o', 'history': 'q'}", "history: expected [[question, answer], ...]"},
        {"{'instruction': 'i', 'input': 'j', 'context': 'k', 'output': 'o'}", "input and context: expected only one"},
        {"{'instruction': 'i', 'output': 'o', 'response': 'p'}", "output and response: expected only one"},
        {"{" CHAT ", 'rejected_response': 'r'}", "rejected_response: found one answer of a preference"},
        {"{" WITHOUT("'weight': 0") "}", "message 1: weight excludes the answer from the loss, but --mask full",
         .mask = DT_MASK_FULL},
        {"{" WITHOUT("'loss': false") "}", "message 1: loss excludes the answer from the loss, but --mask full",
         .kind = "tokens"},
        {"{'prompt': [" Q "], 'chosen': [{'role': 'assistant', 'content': 'a', 'train': false}], 'rejected': [" A "]}",
         "message 1: train excludes the answer from the loss, but a preference"},
        {"{'prompt': [" Q "], 'chosen': [{'role': 'assistant', 'content': '', 'tool_calls': [{}]}], 'rejected': [" A
         "]}",
         "message 0: tool_calls: expected"},
        {"{" WITHOUT("'tool_calls': [{}]") "}", "message 1: tool_calls: expected"},
        {"{" WITHOUT("'reasoning_content': 'why'") "}",
         "message 1: reasoning_content: the template plain has no block"},
        /* not these */
        {"{" CHAT ", 'tools': [{'type': 'function'}]}", NULL},
        {"{" CHAT ", 'functions': [{'name': 'f'}]}", NULL},
        {"{" CHAT ", 'tools': null, 'videos': [], 'system': '', 'history': [], 'chat_template_kwargs': {}}", NULL},
        {"{" CHAT ", 'tools': '[]', 'weight': 1, 'labels': 'good', 'label': 3, 'input_ids': null}", NULL},
        {"{'text': 't', 'label': 0, 'weight': 2.5, 'video': 'v', 'tools': [1], 'system': 's'}", NULL},
        {"{'prompt': 'p', 'tools': [1], 'label': false, 'weight': 2, 'reasoning': 'why'}", NULL},
        {"{'chosen': [" Q ", " A "], 'rejected': [" Q
         ", {'role': 'assistant', 'content': 'b'}, {'role': 'user', 'content': 'other'}, " A "]}",
         NULL},
    };
    MUST_REFUSE(cases);
}

TEST_WITH(labels_of_kto_are_no_plain_answers, clear, NULL)
{
    static const refusal cases[] = {
        {"{" COMPLETION ", 'label': false}", NULL}, /* kind unpaired */
        {"{" COMPLETION ", 'label': 0}", NULL},
        {"{" COMPLETION ", 'label': 1.0}", NULL}, /* as tables write labels */
        {"{" COMPLETION ", 'label': 'False'}", "label: expected true or false"},
        {"{" COMPLETION ", 'label': 'good'}",
         "label: expected true or false (is the completion good?), found \"good\"; --kind sft"},
        {"{" COMPLETION ", 'label': ['good']}", "label: expected true or false"},
        {"{" COMPLETION ", 'label': {'good': true}}", "label: expected true or false"},
        {"{" COMPLETION ", 'label': [{'bytes_of_row': '0:4'}]}",
         "label: expected true or false (is the completion good?), found binary values;"},
        {"{" COMPLETION ", 'label': ''}", NULL},
        {"{" COMPLETION ", 'label': -1}", "label: expected true or false"},
        {"{" COMPLETION ", 'label': 0.0}", "label: the record labels its answer as bad", .kind = "sft"},
        {"{" COMPLETION "}", "label: expected true or false", .kind = "unpaired"},
        {"{" COMPLETION ", 'label': 0.5}", "label: expected true or false", .kind = "unpaired"},
        {"{" COMPLETION ", 'label': 'good'}", "label: expected true or false", .kind = "unpaired"},
        {"{" COMPLETION ", 'label': true, 'weight': 2}", "weight: answers with labels have no weights"},
        {"{" CHAT ", 'label': true}", "found a record for sft, but the dataset is of kind unpaired",
         .kind = "unpaired"},
        {"{" CHAT ", 'kto_tag': false}", "kto_tag: the record labels its answer as bad", .kind = "sft"},
        {"{" COMPLETION ", 'label': false}", "label: the record labels its answer as bad", .kind = "sft"},
        {"{'prompt': 'p', 'chosen': 'c', 'rejected': 'r', 'tie': true}", "tie: neither answer is better",
         .kind = "unpaired"},
        {"{" CHAT ", 'label': true}", "label: the record has a KTO label"},
        {"{'instruction': 'i', 'output': 'o', 'kto_tag': true}", "kto_tag: the record has a KTO label"},
        {"{" COMPLETION ", 'label': true}", NULL, .kind = "sft"},
        {"{" COMPLETION ", 'label': true}", NULL, .kind = "prompts"},
        {"{" COMPLETION ", 'label': 'sport'}", NULL, .kind = "sft"},
    };
    MUST_REFUSE(cases);
    dt_make_options o = options();
    dt_make_stats stats;
    o.kind = DT_DATASET_SFT;
    o.skip_bad = true;
    assert_int_equal(make("{" COMPLETION ", 'label': true}\n{" COMPLETION ", 'label': false}\n", &o, &stats), DT_OK);
    assert_true(stats.n_documents == 1 && stats.n_bad == 1);
}

static int64_t count_of(const dt_field_counts *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->field[i].name, name) == 0) return c->field[i].n;
    return 0;
}

TEST_WITH(fields_that_nothing_reads_are_counted, clear, NULL)
{
    dt_make_options o = options();
    dt_make_stats stats;
    assert_int_equal(
        make("{" CHAT ", 'source': 'x', 'id': 1}\n{" WITHOUT(
                 "'name': 'n', 'weight': 1") ", 'id': 2}\n{" SHAREGPT
                                             ", 'tools': 't', 'system': 's', 'id': 3, 'note': null}\n{'instruction': "
                                             "'i', 'input': '', 'output': 'o', 'history': [], 'id': 4, 'text': 't'}\n",
             &o, &stats),
        DT_OK);
    assert_int_equal(stats.ignored.n, 4);
    assert_int_equal(count_of(&stats.ignored, "id"), 4);
    assert_int_equal(count_of(&stats.ignored, "source"), 1);
    assert_int_equal(count_of(&stats.ignored, "messages[].name"), 1);
    assert_int_equal(count_of(&stats.ignored, "text"), 1);
    assert_int_equal(make("{" PAIR
                          ", 'score_chosen': 2, 'score_rejected': 1, 'margin': 1, 'messages': []}\n{'instruction': "
                          "'i', 'input': 'j', 'chosen': 'c', 'rejected': 'd', 'prompt_id': 1}\n{'prompt': 'p', "
                          "'responses': ['a', 'b', 'c'], 'ranks': [1, 2, 3], 'lang': 'en'}\n",
                          &o, &stats),
                     DT_OK);
    assert_int_equal(stats.ignored.n, 2); /* a ranking of three pairs is one record */
    assert_true(count_of(&stats.ignored, "prompt_id") == 1 && count_of(&stats.ignored, "lang") == 1);
    assert_int_equal(make("{'prompt': 'p', 'answer': 'a', 'level': 3}\n", &o, &stats), DT_OK);
    assert_int_equal(stats.ignored.n, 0); /* kept for reward functions */
    o.kind = DT_DATASET_SFT;
    assert_int_equal(make("{" COMPLETION ", 'label': 'sport'}\n", &o, &stats), DT_OK);
    assert_int_equal(count_of(&stats.ignored, "label"), 1);
    o.kind = options().kind;
    assert_int_equal(make("{'conversations': [{'from': 'human', 'value': 'q'}, {'from': 'function_call', 'value': "
                          "'c'}, {'from': 'observation', 'value': 'o'}, {'from': 'gpt', 'value': 'a'}]}\n",
                          &o, &stats),
                     DT_OK);
    assert_true(stats.ignored.n == 0 && stats.ignored.n_calls == 1);
}

/* The same for any number of threads, and no more names than there is room for. */
TEST_WITH(counts_do_not_depend_on_threads, clear, NULL)
{
    dt_make_options o = options();
    dt_make_stats stats[2];
    FILE *f = fopen(input, "w");
    for (int i = 0; i < 9000; i++)
        fprintf(f, "{\"text\": \"t\", \"all\": 1, \"f%d\": 1, \"%0100d\": 2}\n", i % 100, i < 8000);
    fclose(f);
    for (int k = 0; k < 2; k++) {
        memset(&stats[k], 0, sizeof stats[k]);
        o.n_threads = 1 + 3 * k;
        assert_int_equal(make(NULL, &o, &stats[k]), DT_OK);
    }
    assert_memory_equal(&stats[0].ignored, &stats[1].ignored, sizeof stats[0].ignored);
    assert_int_equal(stats[0].ignored.n, DT_MAX_FIELDS);
    assert_int_equal(count_of(&stats[0].ignored, "all"), 9000);
    assert_true(stats[0].ignored.n_others > 0);
}

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

static void must_count(const char *records, int64_t n_pairs, int64_t n_equal, int64_t n_contradicted)
{
    dt_make_options o = options();
    dt_make_stats stats;
    const dt_err err = make(records, &o, &stats);
    if (err != DT_OK) print_message("%s\n", dt_error_message());
    assert_int_equal(err, DT_OK);
    if (stats.contradicted.n != n_contradicted) print_message("%s\n", records);
    assert_int_equal(stats.n_pairs, n_pairs);
    assert_int_equal(stats.equal.n, n_equal);
    assert_int_equal(stats.contradicted.n, n_contradicted);
    dt_dataset *d = open_output(output);
    int64_t counted = -1;
    assert_int_equal(dt_dataset_get_info(d)->n_equal_pairs, n_equal);
    assert_int_equal(dt_dataset_get_info(d)->n_contradicted_pairs, n_contradicted);
    assert_int_equal(dt_dataset_count_equal(d, NULL, NULL, &counted), DT_OK);
    assert_int_equal(counted, n_equal);
    dt_dataset_close(d);
}

#define SAME "{'prompt': 'p', 'chosen': 'c', 'rejected': 'c'}\n"
#define TIE "{'prompt': 'p', 'chosen': 'c', 'rejected': 'c', 'tie': true}\n"

TEST_WITH(equal_pairs_are_counted, clear, NULL)
{
    must_count("{" PAIR "}\n" SAME SAME, 3, 2, 0);
    must_count("{" PAIR "}\n" TIE SAME, 2, 1, 0);
    dt_make_options o = options();
    dt_make_stats stats;
    unlink(output);
    assert_fails(make(SAME SAME SAME, &o, &stats), DT_ERR_DATA, "every pair has equal answers (3)");
    assert_true(access(output, F_OK) != 0);
    assert_int_equal(make(TIE, &o, &stats), DT_OK);
    o.max_length = 2; /* equal after the cut */
    o.truncate = DT_TRUNCATE_START;
    assert_fails(make("{'prompt': 'p', 'chosen': 'abc', 'rejected': 'abd'}\n", &o, &stats), DT_ERR_DATA, "");
}

TEST_WITH(pairs_that_scores_contradict_are_counted, clear, NULL)
{
    static const char *const contradicted[] = {
        "'score_chosen': 1, 'score_rejected': 2",     "'chosen_score': 1, 'rejected_score': 1.5",
        "'chosen_rating': 1, 'rejected_rating': 5",   "'chosen-rating': 1, 'rejected-rating': 5",
        "'reward_chosen': -2, 'reward_rejected': -1", "'margin': -0.5"};
    static const char *const agreed[] = {"'score_chosen': 2, 'score_rejected': 2", "'score_chosen': 3",
                                         "'score_chosen': '1', 'score_rejected': 2",
                                         "'score_chosen': 1, 'score_rejected': 2, 'tie': true", "'margin': 0"};
    char record[256];
    for (size_t i = 0; i < sizeof contradicted / sizeof contradicted[0]; i++) {
        snprintf(record, sizeof record, "{" PAIR ", %s}\n", contradicted[i]);
        must_count(record, 1, 0, 1);
    }
    for (size_t i = 0; i < sizeof agreed / sizeof agreed[0]; i++) {
        snprintf(record, sizeof record, "{" PAIR ", %s}\n", agreed[i]);
        must_count(record, i != 3, 0, 0);
    }
    must_count("{'prompt': 'p', 'responses': ['a', 'b', 'c'], 'ranks': [1, 2, 3], 'scores': [3, 1, 2]}\n", 3, 0, 1);
}

/* Each shard counts its own. */
TEST_WITH(shards_count_their_pairs, clear, NULL)
{
    char path[256];
    dt_make_options o = options();
    dt_make_stats stats;
    o.n_shards = 2;
    assert_int_equal(make(SAME "{" PAIR "}\n{" PAIR ", 'margin': -1}\n{" PAIR ", 'margin': -1}\n", &o, &stats), DT_OK);
    for (int k = 0; k < 2; k++) {
        snprintf(path, sizeof path, "%.*s-0000%d-of-00002.h5", (int)strlen(output) - 3, output, k);
        dt_dataset *d = open_output(path);
        assert_int_equal(dt_dataset_get_info(d)->n_documents, 2);
        assert_int_equal(dt_dataset_get_info(d)->n_equal_pairs, k == 0);
        assert_int_equal(dt_dataset_get_info(d)->n_contradicted_pairs, k == 0 ? 0 : 2);
        dt_dataset_close(d);
        unlink(path);
    }
}

static void add_number(hid_t file, const char *name, int64_t value)
{
    const hid_t space = H5Screate(H5S_SCALAR),
                a = H5Acreate2(file, name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(H5Awrite(a, H5T_NATIVE_INT64, &value) >= 0);
    H5Aclose(a), H5Sclose(space);
}

static void add_text(hid_t file, const char *name, const char *value)
{
    const hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    H5Tset_size(type, strlen(value));
    const hid_t a = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(H5Awrite(a, type, value) >= 0);
    H5Aclose(a), H5Sclose(space), H5Tclose(type);
}

static void add_array(hid_t file, const char *name, hid_t type, hid_t memory, hsize_t n, const void *data)
{
    const hid_t space = H5Screate_simple(1, &n, NULL);
    const hid_t d = H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(H5Dwrite(d, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
    H5Dclose(d), H5Sclose(space);
}

/* A file of another program: two pairs of three tokens, without counts; the last token of the second one is given. */
static void craft_pairs(uint16_t last)
{
    const uint64_t offsets[3] = {0, 3, 6};
    const uint32_t prompts[2] = {1, 1};
    const uint16_t chosen[6] = {1, 2, 3, 4, 5, 6}, rejected[6] = {1, 2, 3, 4, 5, last};
    dt_h5_lock();
    const hid_t f = H5Fcreate(output, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    add_text(f, "format", "dtrain-dataset");
    add_text(f, "kind", "preference");
    add_number(f, "version", 1);
    add_number(f, "vocab_size", 257);
    for (int side = 0; side < 2; side++) {
        const char *group = side ? "rejected" : "chosen";
        const hid_t g = H5Gcreate2(f, group, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
        add_array(g, "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT16, 6, side ? rejected : chosen);
        add_array(g, "offsets", H5T_STD_U64LE, H5T_NATIVE_UINT64, 3, offsets);
        add_array(g, "prompt_length", H5T_STD_U32LE, H5T_NATIVE_UINT32, 2, prompts);
        H5Gclose(g);
    }
    H5Fclose(f);
    dt_h5_unlock();
}

static dt_err open_pairs(dt_loader **l)
{
    static dt_ledger kept;
    dt_error_clear();
    return dt_loader_open(l, &(dt_loader_options){.files = output,
                                                  .where = "x.ini",
                                                  .seq_len = 16,
                                                  .kind = DT_DATASET_PREFERENCE,
                                                  .train_batch_size = 1,
                                                  .micro_batch_size = 1,
                                                  .nranks = 1,
                                                  .vocab_size = 257,
                                                  .ledger = &kept});
}

/* Counted by --check, which verifies; a file with counts is judged when it is opened. */
TEST_WITH(training_refuses_pairs_that_are_all_equal, clear, NULL)
{
    dt_loader *l;
    craft_pairs(7);
    assert_int_equal(open_pairs(&l), DT_OK);
    assert_int_equal(dt_loader_verify(l, NULL, NULL), DT_OK);
    dt_loader_close(l);
    craft_pairs(6);
    assert_int_equal(open_pairs(&l), DT_OK);
    assert_fails(dt_loader_verify(l, NULL, NULL), DT_ERR_DATA, "every pair has equal texts (2)");
    dt_loader_close(l);
    dt_dataset_writer *w;
    const dt_pair pair = {.prompt_length = {1, 1}, .equal = true};
    assert_int_equal(dt_dataset_create(&w, output, DT_DATASET_PREFERENCE, 257, "bytes", false), DT_OK);
    for (int side = 0; side < DT_N_SIDES; side++)
        assert_int_equal(dt_dataset_add_side(w, (dt_side)side, (const int32_t[]){1, 2}, 2), DT_OK);
    assert_int_equal(dt_dataset_end_pair(w, &pair), DT_OK);
    assert_int_equal(dt_datasets_commit(&w, NULL, 1), DT_OK);
    assert_fails(open_pairs(&l), DT_ERR_DATA, "every pair has equal texts (1)");
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

TEST_WITH(a_git_lfs_pointer_is_not_data, clear, NULL)
{
    static const dt_input_format formats[] = {DT_INPUT_JSON, DT_INPUT_TEXT, DT_INPUT_AUTO};
    dt_make_options o = options();
    dt_make_stats stats;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        o.format = formats[i];
        assert_fails(make("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n", &o, &stats),
                     DT_ERR_DATA, "Git LFS pointer", "git lfs pull");
    }
}

TEST_WITH(printed_json_is_records, clear, NULL)
{
    static const struct {
        const char *text;
        int64_t n;
        const char *named;
    } cases[] = {
        {"{\n 'text': 'a'\n}\n{\n 'text':\n  'b }{ \\' '\n}\n", 2, NULL},
        {"\n{'text':\n'a',\n'b': [\n1,\n2]} {'text': 'c'}", 2, NULL},
        {"{'text': 'a'}\n{'text': 'b'}\n", 2, NULL},
        {"{\n'text': 'a'\n}\n{\n'text': nothing\n}\n", 0, ":4: not valid JSON"},
        {"{\n'text': 'a'\n}\n{\n'text': 1\n}\n", 0, ":4: text: expected a text"},
        {"{\n'text': 'a'\n},\n{\n'text': 'b'\n}\n", 0, ":3:2: expected the next record, found ','"},
        {"{\n'text': 'a'\n}\n{\n'text': 'b'\n", 0,
         ":4: the file ends inside the record that begins here (input: records of several lines)"},
        {"{\n'text': ['a'\n}\n", 0, ":1: the record that begins here is invalid in line 3: expected ], found }"},
        {"{'text': 'a\n\n{'text': 'b'}\n", 0, ":1: not valid JSON"}, /* cut short, in JSON lines */
    };
    dt_make_options o = options();
    dt_make_stats stats;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const dt_err err = make(cases[i].text, &o, &stats);
        if (err != DT_OK && !cases[i].named) print_message("%s\n", dt_error_message());
        assert_int_equal(err, cases[i].named ? DT_ERR_DATA : DT_OK);
        if (!cases[i].named) assert_int_equal(stats.n_documents, cases[i].n);
        if (cases[i].named) assert_says(cases[i].named);
    }
}

TEST_WITH(extra_commas_are_reported, clear, NULL)
{
    static const struct {
        const char *text, *named;
    } cases[] = {
        {"[{'text': 'a'},\n]", ":1:15: a trailing comma"},
        {"[\n {'text': 'a'}\n  ,\n]\n", ":3:3: a trailing comma"},
        {"[{'text': 'a'},\n ,{'text': 'b'}]", ":2:2: expected a record of the JSON array, found a comma"},
        {"{'text': 'a',}\n", ":1: not valid JSON: string or '}' expected near '}', after a trailing comma"},
        {"{'text': 'a', 'b': [1, 2 , ]}\n", "after a trailing comma"},
    };
    dt_make_options o = options();
    dt_make_stats stats;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_fails(make(cases[i].text, &o, &stats), DT_ERR_DATA, cases[i].named);
    }
}

int main(void) { return run_listed("data_fields", open_folder, remove_folder); }
