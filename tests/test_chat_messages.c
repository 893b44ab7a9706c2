/* test_chat_messages.c - messages read from JSON, and pieces of texts with targets as ids and masks. */
#include "chat_fixture.h"

static dt_err parse(dt_messages *m, const char *text)
{
    json_t *list = json_loads(text, 0, NULL);
    assert_non_null(list);
    dt_error_clear();
    dt_messages_clear(m);
    const dt_err err = dt_messages_parse(m, list, "messages", "role", "content");
    json_decref(list);
    return err;
}

/* Fields that other programs read: named, with the message they belong to. Empty ones say nothing. */
TEST(fields_that_change_a_conversation_are_refused)
{
    static const struct {
        const char *field, *named; /* NULL: accepted */
    } cases[] = {{"\"tool_calls\": [{\"function\": {\"name\": \"f\"}}]", NULL},
                 {"\"function_call\": {\"name\": \"f\"}", NULL},
                 {"\"tool_calls\": [{\"function\": {}}]", "message 0: tool_calls: expected"},
                 {"\"tool_calls\": [{\"name\": \"f\"}], \"function_call\": {\"name\": \"f\"}",
                  "message 0: tool_calls and function_call: expected only one"},
                 {"\"refusal\": \"no\"", "message 0: refusal: "},
                 {"\"audio\": {\"id\": \"x\"}", "message 0: audio: "},
                 {"\"tools\": \"[{}]\"", "message 0: tools: "},
                 {"\"images\": [\"a.png\"]", "message 0: images: "},
                 {"\"weight\": 0.5", "message 0: weight: expected 0 or false"},
                 {"\"loss\": \"no\"", "message 0: loss: expected 0 or false"},
                 {"\"reasoning_content\": 1", "message 0: reasoning_content: expected a text, found a number"},
                 {"\"thinking\": \"a\", \"reasoning\": \"b\"", "message 0: reasoning and thinking: expected only one"},
                 {"\"tool_calls\": null, \"refusal\": null, \"audio\": null, \"weight\": null", NULL},
                 {"\"tool_calls\": [], \"function_call\": {}, \"tools\": \"[]\", \"name\": \"n\"", NULL},
                 {"\"loss\": true, \"weight\": 1, \"train\": true", NULL}};
    dt_messages m = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        snprintf(text, sizeof text, "[{\"role\": \"assistant\", \"content\": \"\", %s}]", cases[i].field);
        assert_int_equal(parse(&m, text), cases[i].named ? DT_ERR_DATA : DT_OK);
        if (cases[i].named) says(cases[i].named);
    }
    assert_int_equal(parse(&m, "[{\"role\": \"assistant\", \"tool_calls\": [{}]}]"), DT_ERR_DATA);
    says("message 0: tool_calls: ");
    assert_int_equal(parse(&m, "[{\"role\": \"user\", \"content\": \"q\", \"train\": true}]"), DT_ERR_DATA);
    says("message 0: train: the loss covers only answers");
    assert_int_equal(parse(&m, "[{\"role\": \"user\", \"content\": \"q\", \"thinking\": \"w\"}]"), DT_ERR_DATA);
    says("message 0: thinking: only answers can have thoughts");
    assert_int_equal(parse(&m, "[{\"role\": \"user\", \"content\": null}]"), DT_ERR_DATA);
    says("message 0: content: expected a text, found null");
    assert_int_equal(parse(&m, "[{\"role\": \"user\", \"content\": [{\"type\": \"video\", \"video\": \"a\"}]}]"),
                     DT_ERR_DATA);
    says("found type video");
    dt_messages_free(&m);
}

TEST(contents_in_parts_are_joined)
{
    json_t *list = json_loads(
        "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\\u0000\"}, {\"text\": \"b\"}]}]",
        JSON_ALLOW_NUL, NULL);
    dt_messages m = {0};
    assert_int_equal(dt_messages_parse(&m, list, "messages", "role", "content"), DT_OK);
    assert_true(m.n == 1 && m.item[0].nbytes == 3 && memcmp(m.item[0].text, "a\0b", 3) == 0);
    dt_messages_clear(&m);
    dt_messages_free(&m);
    json_decref(list);
}

TEST(a_text_that_begins_with_bos_gets_no_other)
{
    dt_encoder *e;
    dt_wrap wrap;
    dt_ids ids = {0};
    dt_pieces p = {0};
    bool parted;
    assert_int_equal(dt_wrap_probe(&wrap, &wrapping), DT_OK);
    assert_true(wrap.n_before == 1 && wrap.n_after == 1);
    assert_int_equal(dt_encoder_open(&e, &wrapping), DT_OK);
    assert_int_equal(dt_pieces_text(&p, "<s>q", 4, true), DT_OK);
    assert_int_equal(dt_pieces_encode(e, &wrapping, &p, &wrap, &ids, NULL, &parted), DT_OK);
    assert_true(ids.n == 2 && ids.id[0] == BOS && ids.id[1] == 'q');
    dt_encoder_close(e);
    dt_pieces_free(&p);
    free(ids.id);
}

TEST(a_token_across_the_border_parts_the_sides)
{
    dt_encoder *e;
    dt_ids ids = {0};
    uint8_t *mask = NULL;
    dt_pieces p = {0};
    bool parted;
    assert_int_equal(dt_encoder_open(&e, &fake), DT_OK);
    assert_int_equal(dt_pieces_text(&p, "xa", 2, false), DT_OK);
    assert_int_equal(dt_pieces_text(&p, "bab", 3, true), DT_OK);
    assert_int_equal(dt_pieces_token(&p, EOS, true), DT_OK);
    assert_int_equal(dt_pieces_encode(e, &fake, &p, NULL, &ids, &mask, &parted), DT_OK);
    assert_true(parted);
    const int32_t want[] = {'x', 'a', 'b', AB, EOS};
    const uint8_t want_mask[] = {0, 0, 1, 1, 1};
    assert_int_equal(ids.n, 5);
    assert_memory_equal(ids.id, want, sizeof want);
    assert_memory_equal(mask, want_mask, sizeof want_mask);

    p.n = ids.n = 0; /* where both sides are of one kind, the token stays */
    assert_int_equal(dt_pieces_text(&p, "xa", 2, true), DT_OK);
    assert_int_equal(dt_pieces_text(&p, "b", 1, true), DT_OK);
    assert_int_equal(dt_pieces_encode(e, &fake, &p, NULL, &ids, &mask, &parted), DT_OK);
    assert_true(!parted && ids.n == 2 && ids.id[1] == AB);
    dt_encoder_close(e);
    dt_pieces_free(&p);
    free(mask);
    free(ids.id);
}

int main(void) { return run_listed("chat messages", NULL, NULL); }
