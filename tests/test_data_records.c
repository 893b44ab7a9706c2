// NEEDS: PCRE2 UTF8PROC
/* test_data_records.c - conversion of records to samples: every form with its ids and its mask, by hand and from
 * transformers, and truncated and omitted samples. Byte tokens: a sample is shown as its text, targets in braces, $
 * for the end of text. */
#include "data_make_fixture.h"

typedef struct form {
    const char *record, *want, *want_other; /* other: rejected, or the answer */
    const char *kind, *chat;                /* options; NULL: as usual */
    dt_mask mask;
    bool as_chat, no_eos;
} form;

static void must_give(const form *f)
{
    dt_make_options o = options();
    dt_make_stats stats;
    char found[8192];
    o.kind = kind_named(f->kind);
    o.mask = f->mask;
    if (f->chat) o.chat_template = f->chat;
    o.as_chat = f->as_chat;
    o.append_eos = !f->no_eos;
    if (make(f->record, &o, &stats) != DT_OK) print_message("%s\n%s\n", f->record, dt_error_message());
    assert_string_equal(dt_error_message(), "");
    dt_dataset *d = open_output(output);
    dt_pair pair = {.prompt_length = {(uint32_t)-1, (uint32_t)-1}};
    const bool pairs = dt_dataset_get_info(d)->kind == DT_DATASET_PREFERENCE;
    if (pairs) assert_int_equal(dt_dataset_read_pair(d, 0, &pair), DT_OK);
    show(d, DT_SIDE_FIRST, 0, pairs ? (int64_t)pair.prompt_length[0] : -1, found);
    if (strcmp(found, quoted(f->want)) != 0) print_message("%s\n", f->record);
    assert_string_equal(found, quoted(f->want));
    if (f->want_other) {
        show(d, DT_SIDE_SECOND, 0, pairs ? (int64_t)pair.prompt_length[1] : -1, found);
        assert_string_equal(found, quoted(f->want_other));
    }
    dt_dataset_close(d);
}
#define MUST_GIVE(forms)                                                                                               \
    for (size_t i_ = 0; i_ < sizeof forms / sizeof forms[0]; i_++) must_give(&forms[i_])

#define CHAT                                                                                                           \
    "[{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'a'}, {'role': 'user', "                      \
    "'content': 'r'}, "                                                                                                \
    "{'role': 'assistant', 'content': 'b'}]"

/* ---- forms ------------------------------------------------------------------------------------------------------- */

TEST_WITH(every_token_of_a_text_is_trained_on, clear, NULL)
{
    static const form forms[] = {{"{'text': 'ab'}", "ab$"},
                                 {"{'text': 'ab'}", "ab", .no_eos = true},
                                 {"{'text': 'ab'}", "a{b$}", .kind = "sft"},
                                 {"{'text': 'a\\u0000b', 'title': 't'}", "a", .no_eos = true}};
    for (int i = 0; i < 3; i++) must_give(&forms[i]);
    dt_make_options o = options();
    dt_make_stats stats;
    assert_int_equal(make(forms[3].record, &o, &stats), DT_OK); /* the zero byte is a token, too */
    assert_int_equal(stats.n_tokens, 4);
    char found[16];
    o.format = DT_INPUT_TEXT, o.kind = DT_DATASET_SFT;
    assert_int_equal(make("ab\n", &o, &stats), DT_OK);
    dt_dataset *d = open_output(output);
    show(d, DT_SIDE_FIRST, 0, -1, found);
    assert_string_equal(found, "a{b$}");
    dt_dataset_close(d);
}

TEST_WITH(chats_teach_answers_and_their_ends, clear, NULL)
{
    static const form forms[] = {
        {"{'messages': " CHAT "}", "User: q\nAssistant:{ a$}User: r\nAssistant:{ b$}"},
        {"{'conversation': " CHAT "}", "User: q\nAssistant:{ a$}User: r\nAssistant:{ b$}"},
        {"{'messages': " CHAT "}", "User: q\nAssistant: a$User: r\nAssistant:{ b$}", .mask = DT_MASK_COMPLETION},
        {"{'messages': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'a'}, {'role': 'user', "
         "'content': 'r'}]}",
         "User: q\nAssistant:{ a$}User: r\n", .mask = DT_MASK_COMPLETION},
        {"{'messages': " CHAT "}", "U{ser: q\nAssistant: a$User: r\nAssistant: b$}", .mask = DT_MASK_FULL},
        {"{'messages': " CHAT "}",
         "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{a<|im_end|>}\n<|im_start|>user\nr<|im_end|>\n<|im_"
         "start|>assistant\n"
         "{b<|im_end|>}\n{$}",
         .chat = "chatml"},
        {"{'messages': " CHAT "}",
         "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nr<|im_end|>\n<|im_start|"
         ">assistant\n"
         "{b<|im_end|>\n$}",
         .chat = "chatml", .mask = DT_MASK_COMPLETION},
        {"{'conversations': [{'from': 'human', 'value': 'q'}, {'from': 'gpt', 'value': 'a'}, {'from': 'observation', "
         "'value': 'o'}, {'from': 'gpt', 'value': 'b'}], 'system': 's'}",
         "s\n\nUser: q\nAssistant:{ a$}Tool: o\nAssistant:{ b$}"},
        {"{'conversations': [{'from': 'human', 'value': 'q'}, {'from': 'gpt', 'value': 'a'}], 'system': 's', 'tools': "
         "'t'}",
         "s\n\nt\n\nUser: q\nAssistant:{ a$}"},
        {"{'conversations': [{'from': 'human', 'value': 'q'}, {'from': 'gpt', 'value': 'a'}], 'tools': [{'n': 1}]}",
         "[{'n': 1}]\n\nUser: q\nAssistant:{ a$}"},
        {"{'conversations': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'a'}]}",
         "User: q\nAssistant:{ a$}"},
        {"{'messages': " CHAT "}", "User: q\nAssistant: a$User: r\nAssistant: b$", .kind = "tokens"},
    };
    MUST_GIVE(forms);
}

TEST_WITH(prompts_are_not_trained_on, clear, NULL)
{
    static const form forms[] = {
        {"{'prompt': '2+2=', 'completion': '4'}", "2+2={4$}"},
        {"{'prompt': '2+2=', 'completion': '4'}", "2+2={4}", .no_eos = true},
        {"{'prompt': '2+2=', 'completion': '4'}", "2{+2=4$}", .mask = DT_MASK_FULL},
        {"{'prompt': '', 'completion': 'ab'}", "a{b$}"},
        {"{'prompt': 'q', 'completion': 'a'}", "User: q\nAssistant:{ a$}", .as_chat = true},
        {"{'prompt': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'a'}, {'role': 'user', "
         "'content': 'r'}], 'completion': [{'role': 'assistant', 'content': 'b'}]}",
         "User: q\nAssistant: a$User: r\nAssistant:{ b$}"},
        {"{'prompt': [{'role': 'user', 'content': 'q'}], 'completion': [{'role': 'assistant', 'content': 'a'}, "
         "{'role': 'tool', 'content': 'o'}, {'role': 'assistant', 'content': 'b'}]}",
         "User: q\nAssistant:{ a$}Tool: o\nAssistant:{ b$}"},
        {"{'prompt': [{'role': 'user', 'content': 'q'}], 'completion': [{'role': 'assistant', 'content': 'a'}, "
         "{'role': 'tool', 'content': 'o'}, {'role': 'assistant', 'content': 'b'}]}",
         "User: q\nAssistant:{ a$}Tool: o\nAssistant:{ b$}", .mask = DT_MASK_ASSISTANT},
        {"{'instruction': 'Add', 'input': '1 2', 'output': '3'}", "User: Add\n1 2\nAssistant:{ 3$}"},
        {"{'instruction': 'Add', 'input': '', 'response': '3'}", "User: Add\nAssistant:{ 3$}"},
        {"{'instruction': 'Add', 'input': '1 2', 'output': '3'}",
         "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
         "response that appropriately completes the request.\n\n### Instruction:\nAdd\n\n### Input:\n1 2\n\n### "
         "Response:\n{3$}",
         .chat = "alpaca"},
        {"{'instruction': 'Add', 'input': '', 'output': '3'}",
         "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
         "### Instruction:\nAdd\n\n### Response:\n{3$}",
         .chat = "alpaca"},
    };
    MUST_GIVE(forms);
}

TEST_WITH(preferences_have_two_sides, clear, NULL)
{
    static const form forms[] = {
        {"{'prompt': 'Q: ', 'chosen': 'good', 'rejected': 'bad'}", "Q: {good$}", "Q: {bad$}"},
        {"{'prompt': 'Q', 'chosen': 'good', 'rejected': 'bad'}", "User: Q\nAssistant:{ good$}",
         "User: Q\nAssistant:{ bad$}", .as_chat = true},
        {"{'prompt': [{'role': 'user', 'content': 'q'}], 'chosen': [{'role': 'assistant', 'content': 'c'}], "
         "'rejected': [{'role': 'assistant', 'content': 'r'}]}",
         "User: q\nAssistant:{ c$}", "User: q\nAssistant:{ r$}"},
        {"{'prompt': 'q', 'chosen': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'c'}], "
         "'rejected': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'r'}]}",
         "User: q\nAssistant:{ c$}", "User: q\nAssistant:{ r$}"},
        {"{'prompt': 'q', 'chosen': [{'role': 'assistant', 'content': 'c'}], 'rejected': [{'role': 'assistant', "
         "'content': 'r'}]}",
         "User: q\nAssistant:{ c$}", "User: q\nAssistant:{ r$}"},
        /* the prompt is what both begin with, up to a message or white space */
        {"{'chosen': 'Human: hi there\\n\\nAssistant: yes', 'rejected': 'Human: hi there\\n\\nAssistant: yonder'}",
         "Human: hi there\n\nAssistant:{ yes$}", "Human: hi there\n\nAssistant:{ yonder$}"},
        {"{'chosen': 'ab', 'rejected': 'ac'}", "{ab$}", "{ac$}"},
        {"{'chosen': 'a b c', 'rejected': 'a b'}", "a{ b c$}", "a{ b$}"},
        {"{'chosen': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'c'}], 'rejected': [{'role': "
         "'user', 'content': 'q'}, {'role': 'assistant', 'content': 'r'}]}",
         "User: q\nAssistant:{ c$}", "User: q\nAssistant:{ r$}"},
        {"{'chosen': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'same'}], 'rejected': "
         "[{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'same'}]}\n{'prompt': 'q', 'chosen': "
         "'c', 'rejected': 'r'}",
         "User: q\nAssistant:{ same$}", "User: q\nAssistant:{ same$}"},
        {"{'conversations': [{'from': 'human', 'value': 'q'}], 'chosen': {'from': 'gpt', 'value': 'c'}, 'rejected': "
         "{'from': 'gpt', 'value': 'r'}}",
         "User: q\nAssistant:{ c$}", "User: q\nAssistant:{ r$}"},
        {"{'conversations': [{'from': 'human', 'value': 'q'}], 'chosen': 'c', 'rejected': 'r'}",
         "User: q\nAssistant:{ c$}", "User: q\nAssistant:{ r$}"},
        {"{'prompt': 'q', 'chosen_response': 'c', 'rejected_response': 'r', 'dimension': 'helpful'}", "q\n{c$}",
         "q\n{r$}"},
        {"{'prompt': 'q', 'response_0': 'x', 'response_1': 'y', 'better_response_id': 1, 'safer_response_id': 0}",
         "q\n{y$}", "q\n{x$}"},
    };
    MUST_GIVE(forms);
}

#define HISTORY "'system': 's', 'history': [['q', 'a'], ['r', 'b']]"

/* system and history of Alpaca records, and a system message next to any conversation. */
TEST_WITH(fields_next_to_a_conversation_are_used, clear, NULL)
{
    static const form forms[] = {
        {"{'instruction': 'and its capital?', 'input': '', 'output': 'Paris.', 'system': 'Answer in one word.', "
         "'history': [['Name a country.', 'France.']]}",
         "Answer in one word.\n\nUser: Name a country.\nAssistant:{ France.$}User: and its capital?\nAssistant:{ "
         "Paris.$}"},
        {"{'instruction': 'i', 'input': 'j', 'output': 'o', " HISTORY "}",
         "s\n\nUser: q\nAssistant: a$User: r\nAssistant: b$User: i\nj\nAssistant:{ o$}", .mask = DT_MASK_COMPLETION},
        {"{'instruction': 'i', 'input': 'j', 'output': 'o', " HISTORY "}",
         "s\n\nUser: q\nAssistant:{ a$}User: r\nAssistant:{ b$}User: i\nj\nAssistant:{ o$}", .mask = DT_MASK_ASSISTANT},
        {"{'instruction': 'i', 'context': 'j', 'response': 'o', 'history': null, 'system': ''}",
         "User: i\nj\nAssistant:{ o$}"},
        {"{'instruction': 'i', 'input': 'j', 'output': 'o', 'system': 's'}",
         "s\n\n### Instruction:\ni\n\n### Input:\nj\n\n### Response:\n{o$}", .chat = "alpaca"},
        {"{'messages': " CHAT ", 'system': 's'}", "s\n\nUser: q\nAssistant:{ a$}User: r\nAssistant:{ b$}"},
        {"{'messages': [{'role': 'system', 'content': 's'}, {'role': 'user', 'content': 'q'}, {'role': 'assistant', "
         "'content': 'a'}], 'system_prompt': 's'}",
         "s\n\nUser: q\nAssistant:{ a$}"},
        {"{'conversations': [{'from': 'system', 'value': 's'}, {'from': 'human', 'value': 'q'}, {'from': 'gpt', "
         "'value': 'a'}], 'tools': 't'}",
         "s\n\nt\n\nUser: q\nAssistant:{ a$}"},
        {"{'prompt': 'p', 'completion': 'c', 'system': 's'}", "s\n\nUser: p\nAssistant:{ c$}", .as_chat = true},
        {"{'prompt': [{'role': 'user', 'content': 'q'}], 'completion': [{'role': 'assistant', 'content': 'a'}], "
         "'system': 's'}",
         "s\n\nUser: q\nAssistant:{ a$}"},
        /* preferences */
        {"{'instruction': 'i', 'input': 'j', 'chosen': 'c', 'rejected': 'd', " HISTORY "}",
         "s\n\nUser: q\nAssistant: a$User: r\nAssistant: b$User: i\nj\nAssistant:{ c$}",
         "s\n\nUser: q\nAssistant: a$User: r\nAssistant: b$User: i\nj\nAssistant:{ d$}"},
        {"{'system': 's', 'question': 'q', 'chosen': 'c', 'rejected': 'd'}", "s\n\nUser: q\nAssistant:{ c$}",
         "s\n\nUser: q\nAssistant:{ d$}"},
        {"{'system': 's', 'input': 'q', 'chosen': 'c', 'rejected': 'd'}", "s\n\nUser: q\nAssistant:{ c$}",
         "s\n\nUser: q\nAssistant:{ d$}"},
        {"{'question': 'q', 'chosen': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'c'}], "
         "'rejected': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'd'}]}",
         "User: q\nAssistant:{ c$}", "User: q\nAssistant:{ d$}"},
        {"{'system': 's', 'conversations': [{'from': 'human', 'value': 'q'}], 'tools': 't', 'chosen': 'c', 'rejected': "
         "'d'}",
         "s\n\nt\n\nUser: q\nAssistant:{ c$}", "s\n\nt\n\nUser: q\nAssistant:{ d$}"},
        {"{'prompt': 'p', 'chosen': 'c', 'rejected': 'd', " HISTORY "}",
         "s\n\nUser: q\nAssistant: a$User: r\nAssistant: b$User: p\nAssistant:{ c$}", .as_chat = true},
        /* prompts */
        {"{'question': 'p', 'answer': 'x', " HISTORY "}",
         "s\n\nUser: q\nAssistant: a$User: r\nAssistant: b$User: p\nAssistant:", "x"},
        {"{'prompt': [{'role': 'user', 'content': 'q'}], 'system': 's'}", "s\n\nUser: q\nAssistant:"},
    };
    MUST_GIVE(forms);
}

/* OpenAI's weight, ms-swift's loss, Axolotl's train. */
TEST_WITH(answers_are_taken_out_of_the_loss, clear, NULL)
{
    static const form forms[] = {
        {"{'messages':[{'role':'user','content':'q'},{'role':'assistant','content':'a','weight':0},{'role':'user','"
         "content':'r'},{'role':'assistant','content':'b','weight':1}]}",
         "User: q\nAssistant: a$User: r\nAssistant:{ b$}"},
        {"{'conversations':[{'from':'human','value':'q'},{'from':'gpt','value':'a','loss':false},{'from':'human','"
         "value':'r'},{'from':'gpt','value':'b'}]}",
         "User: q\nAssistant: a$User: r\nAssistant:{ b$}"},
        {"{'prompt':[{'role':'user','content':'q'}],'completion':[{'role':'assistant','content':'a','train':false},{'"
         "role':'user','content':'r'},{'role':'assistant','content':'b'}]}",
         "User: q\nAssistant: a${User: r\nAssistant: b$}"},
        {"{'messages':[{'role':'user','content':'q','training':false},{'role':'assistant','content':'a','loss_scale':0}"
         ",{'role':'user','content':'r'},{'role':'assistant','content':'b'}]}",
         "User: q\nAssistant: a$User: r\nAssistant:{ b$}", .mask = DT_MASK_ASSISTANT},
    };
    MUST_GIVE(forms);
}

TEST_WITH(what_goes_with_a_pair_is_kept, clear, NULL)
{
    dt_make_options o = options();
    dt_make_stats stats;
    dt_pair pair;
    o.prefer = DT_PREFER_SAFER;
    assert_int_equal(make("{'prompt': 'q', 'chosen': 'c', 'rejected': 'r', 'margin': -0.5}\n{'prompt': 'q', "
                          "'chosen_response': 'c', 'rejected_response': 'r', 'safety_labels': [1, -1]}\n{'prompt': "
                          "'q', 'chosen_response': 'c', 'rejected_response': 'r', 'safety_labels': {'rejected': "
                          "false}}\n{'prompt': 'q', 'response_0': 'x', 'response_1': 'y', 'better_response_id': 1, "
                          "'safer_response_id': 0, 'is_response_0_safe': true, 'is_response_1_safe': false}\n",
                          &o, &stats),
                     DT_OK);
    dt_dataset *d = open_output(output);
    assert_true(dt_dataset_get_info(d)->has_margins && dt_dataset_get_info(d)->has_safety);
    static const struct {
        float margin;
        dt_safety safety[2];
        uint32_t n_prompt;
    } want[] = {{-0.5f, {0, 0}, 1},
                {0, {DT_SAFETY_SAFE, DT_SAFETY_UNSAFE}, 2},
                {0, {0, DT_SAFETY_UNSAFE}, 2},
                {0, {DT_SAFETY_SAFE, DT_SAFETY_UNSAFE}, 2}};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(dt_dataset_read_pair(d, i, &pair), DT_OK);
        assert_true(pair.margin == want[i].margin && pair.safety[0] == want[i].safety[0] &&
                    pair.safety[1] == want[i].safety[1]);
        assert_int_equal(pair.prompt_length[0], want[i].n_prompt);
    }
    dt_dataset_close(d);
    assert_int_equal(make("{'prompt': 'q', 'chosen': 'c', 'rejected': 'r'}", &o, &stats), DT_OK);
    d = open_output(output); /* no array of what no record has */
    assert_true(!dt_dataset_get_info(d)->has_margins && !dt_dataset_get_info(d)->has_safety);
    dt_dataset_close(d);
}

/* Texts, messages, a text as a turn, and a pair, which is two samples. */
TEST_WITH(answers_with_labels_are_samples, clear, NULL)
{
    dt_make_options o = options();
    dt_make_stats stats;
    static const struct {
        int64_t n, n_prompt;
        bool good;
    } want[] = {{5, 2, true}, {5, 2, false}, {21, 18, true}, {4, 1, true}, {5, 1, false}};
    o.kind = DT_DATASET_UNPAIRED;
    assert_int_equal(
        make("{'prompt': 'qq', 'completion': 'aa', 'label': true}\n{'prompt': 'qq', 'completion': 'aa', 'label': "
             "0}\n{'prompt': [{'role': 'user', 'content': 'q'}], 'completion': [{'role': 'assistant', 'content': "
             "'a'}], 'label': true}\n{'prompt': 'q', 'chosen': 'cc', 'rejected': 'rrr'}\n",
             &o, &stats),
        DT_OK);
    dt_dataset *d = open_output(output);
    assert_int_equal(dt_dataset_get_info(d)->kind, DT_DATASET_UNPAIRED);
    assert_int_equal(dt_dataset_get_info(d)->n_documents, 5);
    for (int i = 0; i < 5; i++) {
        int64_t first, n;
        dt_pair answer;
        assert_int_equal(dt_dataset_read_pair(d, i, &answer), DT_OK);
        assert_int_equal(dt_dataset_document(d, i, &first, &n), DT_OK);
        if (n != want[i].n || answer.prompt_length[0] != want[i].n_prompt)
            print_message("sample %d: %d tokens, %d prompt\n", i, (int)n, (int)answer.prompt_length[0]);
        assert_true(n == want[i].n && answer.prompt_length[0] == want[i].n_prompt && answer.good == want[i].good);
    }
    assert_int_equal(dt_dataset_verify(d, NULL, NULL), DT_OK);
    dt_dataset_close(d);
    o.kind = DT_ANY_KIND;
    assert_int_equal(make("{'prompt': 'qq', 'completion': 'aa', 'label': false}\n", &o, &stats), DT_OK);
    assert_int_equal(stats.kind, DT_DATASET_UNPAIRED);
}

TEST_WITH(prompts_end_where_an_answer_begins, clear, NULL)
{
    static const form forms[] = {
        {"{'prompt': 'tell'}", "tell"},
        {"{'prompt': 'tell', 'answer': 7}", "tell", "7"},
        {"{'prompt': 'q'}", "User: q\nAssistant:", .as_chat = true},
        {"{'question': 'q', 'answer': '42'}", "User: q\nAssistant:", "42"},
        {"{'prompt': [{'role': 'system', 'content': 's'}, {'role': 'user', 'content': 'q'}]}",
         "s\n\nUser: q\nAssistant:"},
        {"{'prompt': 'p', 'completion': 'c'}", "p", .kind = "prompts"},
    };
    MUST_GIVE(forms);
}

/* ---- tokenizers with merges: ids and masks as transformers gives them (tests/make_chat_fixtures.py) -------------- */

/* A folder as people have it: tokenizer.json, and a tokenizer_config.json with the tokens and the chat template. */
static void write_tokenizer(const char *name, const json_t *config)
{
    char from[512], to[256], cwd[256];
    assert_non_null(getcwd(cwd, sizeof cwd));
    snprintf(from, sizeof from, "%s/tests/data/tokenizer/%s/tokenizer.json", cwd, name);
    snprintf(to, sizeof to, "%s/tokenizer/tokenizer.json", dir);
    unlink(to);
    assert_int_equal(symlink(from, to), 0);
    snprintf(to, sizeof to, "%s/tokenizer/tokenizer_config.json", dir);
    assert_int_equal(json_dump_file(config, to, 0), 0);
}

static void must_equal(const json_t *want_ids, const json_t *want_mask, int64_t n_prompt)
{
    dt_dataset *d = open_output(output);
    int32_t ids[2000];
    uint8_t mask[2000];
    const int64_t n = dt_dataset_get_info(d)->n_tokens;
    assert_int_equal(n, json_array_size(want_ids));
    assert_int_equal(dt_dataset_read_tokens(d, 0, n, ids), DT_OK);
    assert_int_equal(dt_dataset_read_mask(d, 0, n, mask), DT_OK);
    for (int64_t i = 0; i < n; i++) {
        assert_int_equal(ids[i], json_integer_value(json_array_get(want_ids, (size_t)i)));
        const int64_t target =
            want_mask ? json_integer_value(json_array_get(want_mask, (size_t)i)) : i > 0 && i >= n_prompt;
        assert_int_equal(mask[i], target);
    }
    dt_dataset_close(d);
}

static bool has_one(const json_t *mask)
{
    for (size_t i = 0; i < json_array_size(mask); i++)
        if (json_integer_value(json_array_get(mask, i))) return true;
    return false;
}

static void check_family(const json_t *family)
{
    char tokenizer[256];
    dt_make_options o = options();
    dt_make_stats stats;
    size_t i;
    const json_t *one;
    snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer", dir);
    write_tokenizer(json_string_value(json_object_get(family, "tokenizer")), json_object_get(family, "config"));
    o.tokenizer = tokenizer;
    o.chat_template = "auto";
    json_array_foreach(json_object_get(family, "chats"), i, one)
    {
        if (!has_one(json_object_get(one, "mask"))) continue;
        assert_int_equal(json_dump_file(one, input, 0), 0);
        if (make(NULL, &o, &stats) != DT_OK) print_message("%s\n", dt_error_message());
        must_equal(json_object_get(one, "ids"), json_object_get(one, "mask"), 0);
        assert_int_equal(stats.n_parted, 0);
    }
    json_array_foreach(json_object_get(family, "pairs"), i, one)
    {
        assert_int_equal(json_dump_file(one, input, 0), 0);
        assert_int_equal(make(NULL, &o, &stats), DT_OK);
        must_equal(json_object_get(one, "ids"), NULL, json_integer_value(json_object_get(one, "n_prompt")));
        assert_int_equal(stats.n_parted, json_is_true(json_object_get(one, "parted")));
    }
}

TEST_WITH(ids_and_masks_are_those_of_transformers, clear, NULL)
{
    char folder[128];
    json_t *families = json_load_file("tests/data/chat/ids.json", 0, NULL);
    size_t i;
    const json_t *family;
    assert_true(json_array_size(families) >= 8);
    snprintf(folder, sizeof folder, "%s/tokenizer", dir);
    assert_int_equal(mkdir(folder, 0777), 0);
    json_array_foreach(families, i, family)
    {
        print_message("%s, %s\n", json_string_value(json_object_get(family, "tokenizer")),
                      json_string_value(json_object_get(family, "template")));
        check_family(family);
    }
    json_decref(families);
    snprintf(folder, sizeof folder, "rm -r %s/tokenizer", dir);
    assert_int_equal(system(folder), 0);
}

/* ---- samples that are too long
 * --------------------------------------------------------------------------------------- */

static void must_cut(const char *record, dt_truncate truncation, int64_t max_length, const char *want,
                     int64_t n_truncated, int64_t n_too_long)
{
    char found[4096], both[512];
    dt_make_options o = options();
    dt_make_stats stats;
    const bool text = record[0] != '{';
    o.max_length = max_length;
    o.truncate = truncation;
    o.format = text ? DT_INPUT_TEXT : DT_INPUT_JSON;
    snprintf(both, sizeof both, "%s\n%s", record,
             text                           ? "a"
             : strstr(record, "chosen")     ? "{'prompt': '', 'chosen': 'a', 'rejected': 'b'}"
             : strstr(record, "completion") ? "{'prompt': '', 'completion': 'ab'}"
                                            : "{'prompt': 'a'}");
    assert_int_equal(make(both, &o, &stats), DT_OK);
    assert_int_equal(stats.n_truncated, n_truncated);
    assert_int_equal(stats.n_too_long, n_too_long);
    dt_dataset *d = open_output(output);
    assert_int_equal(dt_dataset_get_info(d)->n_documents, n_too_long ? 1 : 2);
    dt_pair pair = {.prompt_length = {(uint32_t)-1}};
    const bool pairs = dt_dataset_get_info(d)->kind == DT_DATASET_PREFERENCE;
    if (pairs) assert_int_equal(dt_dataset_read_pair(d, 0, &pair), DT_OK);
    show(d, DT_SIDE_FIRST, 0, pairs ? (int64_t)pair.prompt_length[0] : -1, found);
    if (!n_too_long) assert_string_equal(found, want);
    dt_dataset_close(d);
}

TEST_WITH(what_is_too_long_is_cut_or_left_out, clear, NULL)
{
    static const char sft[] = "{'prompt': 'abc', 'completion': 'def'}",
                      pair[] = "{'prompt': 'abc', 'chosen': 'def', 'rejected': 'g'}";
    must_cut(sft, DT_TRUNCATE_AUTO, 5, "abc{de}", 1, 0); /* no end of text where there was none */
    must_cut(sft, DT_TRUNCATE_END, 5, "c{def$}", 1, 0);
    must_cut(sft, DT_TRUNCATE_END, 3, "e{f$}", 1, 0);
    must_cut(sft, DT_TRUNCATE_DROP, 5, "", 0, 1);
    must_cut(sft, DT_TRUNCATE_DROP, 7, "abc{def$}", 0, 0);
    must_cut(pair, DT_TRUNCATE_AUTO, 6, "", 0, 1);
    must_cut(pair, DT_TRUNCATE_START, 6, "abc{def}", 1, 0);
    must_cut(pair, DT_TRUNCATE_END, 6, "bc{def$}", 1, 0);
    must_cut("{'prompt': 'abcdef'}", DT_TRUNCATE_AUTO, 4, "cdef", 1, 0);
    must_cut("abcdef", DT_TRUNCATE_AUTO, 4, "abcd", 1, 0);
    must_cut("abcdef", DT_TRUNCATE_END, 4, "def$", 1, 0);
    must_cut("abcdef", DT_TRUNCATE_DROP, 4, "", 0, 1);
    must_cut("abc", DT_TRUNCATE_DROP, 4, "abc$", 0, 0);
}

TEST_WITH(samples_without_targets_are_counted, clear, NULL)
{
    dt_make_options o = options();
    dt_make_stats stats;
    assert_int_equal(
        make("{'prompt': 'p', 'completion': 'c'}\n{'messages': [{'role': 'user', 'content': 'q'}]}\n", &o, &stats),
        DT_OK);
    assert_true(stats.n_documents == 1 && stats.n_dropped == 1);
    o.append_eos = false;
    assert_int_equal(
        make("{'prompt': 'p', 'chosen': 'c', 'rejected': 'r'}\n{'prompt': 'p', 'chosen': 'c', 'rejected': ''}\n", &o,
             &stats),
        DT_OK);
    assert_true(stats.n_documents == 1 && stats.n_dropped == 1);
}

static void check_record(dt_dataset *d, int64_t i, const char *want)
{
    char *json;
    assert_int_equal(dt_dataset_read_record(d, i, &json), DT_OK);
    assert_string_equal(json, quoted(want));
    free(json);
}

/* What reward functions are given; in shards each file begins anew. */
TEST_WITH(the_other_fields_of_a_prompt_are_kept, clear, NULL)
{
    static const char records[] =
        "{'prompt': 'p', 'prompt_ids': [1], 'level': 3, 'tests': [{'in': '\\u0000\\u00e4'}], 'completion_ids': "
        "[]}\n{'question': 'q', 'answer': 0.5}\n{'prompt': [{'role': 'user', 'content': 'plain'}]}\n";
    static const char *const want[] = {"{'level':3,'tests':[{'in':'\\u0000\303\244'}]}",
                                       "{'question':'q','answer':0.5}", "{}"};
    dt_make_options o = options();
    dt_make_stats stats;
    o.kind = DT_DATASET_PROMPTS;
    for (o.n_shards = 0; o.n_shards <= 3; o.n_shards += 3) {
        assert_int_equal(make(records, &o, &stats), DT_OK);
        for (int i = 0; i < 3; i++) {
            char path[192];
            snprintf(path, sizeof path, "%.*s-%05d-of-00003.h5", (int)strlen(output) - 3, output, i);
            dt_dataset *d = open_output(o.n_shards ? path : output);
            assert_true(dt_dataset_get_info(d)->has_records);
            check_record(d, o.n_shards ? 0 : i, want[i]);
            dt_dataset_close(d);
            unlink(path);
        }
    }
    o.n_shards = 0;
    assert_int_equal(make("{'prompt': 'p'}\n", &o, &stats), DT_OK);
    dt_dataset *d = open_output(output);
    assert_false(dt_dataset_get_info(d)->has_records);
    check_record(d, 0, "{}");
    dt_dataset_close(d);
}

TEST_WITH(a_record_that_is_no_object_is_refused, clear, NULL)
{
    static const char *const bad[] = {"[1]", "{}x", "{'a':", "1", "{'a': '\xff'}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        dt_dataset_writer *w;
        dt_dataset *d;
        char *json;
        assert_int_equal(dt_dataset_create(&w, output, DT_DATASET_PROMPTS, 257, "bytes", false), DT_OK);
        assert_int_equal(dt_dataset_add(w, (const int32_t[]){1}, NULL, 1), DT_OK);
        assert_int_equal(dt_dataset_end_document(w, 1), DT_OK);
        assert_int_equal(dt_dataset_add(w, (const int32_t[]){2}, NULL, 1), DT_OK);
        assert_int_equal(dt_dataset_add_record(w, quoted(bad[i]), strlen(bad[i])), DT_OK);
        assert_int_equal(dt_datasets_commit(&w, NULL, 1), DT_OK);
        assert_int_equal(dt_dataset_open(&d, output), DT_OK);
        check_record(d, 0, "{}");
        dt_error_clear();
        assert_fails(dt_dataset_read_record(d, 1, &json), DT_ERR_DATA,
                     "record 1 in records/bytes: expected a JSON object");
        assert_int_equal(dt_dataset_verify(d, NULL, NULL), DT_ERR_DATA);
        dt_dataset_close(d);
    }
}

/* algorithms.md 1.1: of L tokens a turn of |src| and |tgt| has floor(L |src| / (|src| + |tgt|)), and floor(L |tgt| /
 * ...) with its end. */
TEST_WITH(turns_share_the_length, clear, NULL)
{
    dt_make_options o = options();
    dt_make_stats stats;
    char found[4096];
    o.turn_budgets = true;
    o.max_length = 12;
    o.chat_template = other;
    FILE *f = fopen(other, "w");
    fputs(quoted("{'user': {}, 'assistant': {'end': '{eos}'}}"), f);
    fclose(f);
    static const char turns[] = "{'messages': [{'role': 'user', 'content': '%s'}, {'role': 'assistant', 'content': "
                                "'%s'}, {'role': 'user', 'content': '%s'}, {'role': 'assistant', 'content': '%s'}]}";
    static const char *const cases[][5] = {
        /* 2 + 3 (with the end) fit, then 4 + 3 fit */
        {"ab", "AB", "cdef", "CD", "ab{AB$}cdef{CD$}"},
        /* 16 + 8 share 12: 8 and 4, of which one is the end; the second turn finds no room */
        {"abcdefghijklmnop", "ABCDEFG", "x", "y", "abcdefgh{ABC$}"},
        /* the second turn is one token too long for what is left */
        {"abc", "ABC", "xyz", "XY", "abc{ABC$}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char record[512];
        snprintf(record, sizeof record, turns, cases[i][0], cases[i][1], cases[i][2], cases[i][3]);
        assert_int_equal(make(record, &o, &stats), DT_OK);
        dt_dataset *d = open_output(output);
        show(d, DT_SIDE_FIRST, 0, -1, found);
        if (i == 2) assert_int_equal(stats.n_truncated, 1);
        assert_string_equal(found, cases[i][4]);
        dt_dataset_close(d);
    }
    unlink(other);
}

TEST_WITH(a_cut_question_keeps_the_header_of_its_answer, clear, NULL)
{
    dt_make_options o = options();
    dt_make_stats stats;
    char found[4096];
    o.turn_budgets = true;
    o.max_length = 12;
    o.chat_template = other;
    FILE *f = fopen(other, "w");
    fputs("{\"user\": {\"after\": \";\"}, \"assistant\": {\"prefix\": \"A:\", \"end\": \"{eos}\"}}", f);
    fclose(f);
    static const char *const cases[][3] = {
        {"ab", "CD", "ab;A:{CD$}"},
        {"abcdefghijklm", "ABCDEFG", "abcde;A:{ABC$}"}, /* 16 + 8 share 12 */
        {"abcde", "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
         ";A:{ABCDEFGH$}"}, /* the share of the question, 2, is below the header */
        {"xxxxxxxxxxxxx", "ABCDEFG", "xxxxx;A:{ABC$}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char record[512];
        snprintf(record, sizeof record,
                 "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": \"assistant\", "
                 "\"content\": \"%s\"}]}",
                 cases[i][0], cases[i][1]);
        assert_int_equal(make(record, &o, &stats), DT_OK);
        dt_dataset *d = open_output(output);
        show(d, DT_SIDE_FIRST, 0, -1, found);
        assert_string_equal(found, cases[i][2]);
        dt_dataset_close(d);
    }
    unlink(other);
}

int main(void) { return run_listed("data_records", open_folder, remove_folder); }
