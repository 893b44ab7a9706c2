/* message_fields.c - fields of records and messages that other programs read and dtrain does not. A field that changes
 * the training target or the prompt is refused by name: if it were ignored, training would silently use something
 * else. */
#include "dtrain/chat/chat.h"

#include <string.h>

bool dt_field_is_set(const json_t *value)
{
    static const char *const empty[] = {"", "[]", "{}", "null"};
    if (!value || json_is_null(value)) return false;
    if (json_is_array(value)) return json_array_size(value) > 0;
    if (json_is_object(value)) return json_object_size(value) > 0;
    if (!json_is_string(value)) return true;
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++)
        if (strcmp(json_string_value(value), empty[i]) == 0) return false;
    return true;
}

#define NO_ARGUMENTS                                                                                                   \
    "chat template arguments are not supported; write their effect into the messages (prompts without thinking: "      \
    "--no-think), or remove the field"
#define NOT_READ "only texts and images are supported; drop the record or remove the field"
#define THOUGHTS "thoughts must be in an assistant message or in the text of the answer; move them or remove the field"
#define BY_TOKEN                                                                                                       \
    "--mask selects the targets, and in messages weight, loss or train; remove the field, or rename it if it means "   \
    "something else"

typedef struct refused_field {
    unsigned which;
    const char *key, *reason;
} refused_field;

static const refused_field of_records[] = {
    {DT_FIELDS_MEDIA, "videos", NOT_READ},
    {DT_FIELDS_MEDIA, "video", NOT_READ},
    {DT_FIELDS_MEDIA, "audios", NOT_READ},
    {DT_FIELDS_MEDIA, "audio", NOT_READ},
    {DT_FIELDS_CHAT, "chat_template_kwargs", NO_ARGUMENTS},
    {DT_FIELDS_CHAT, "enable_thinking", NO_ARGUMENTS},
    {DT_FIELDS_HISTORY, "history", "the record has a list of messages: put earlier turns into it"},
    {DT_FIELDS_THOUGHTS, "reasoning_content", THOUGHTS},
    {DT_FIELDS_THOUGHTS, "reasoning", THOUGHTS},
    {DT_FIELDS_THOUGHTS, "thinking", THOUGHTS},
    {DT_FIELDS_TARGETS, "input_ids", BY_TOKEN},
    {DT_FIELDS_TARGETS, "labels", BY_TOKEN},
    {DT_FIELDS_TARGETS, "loss_mask", BY_TOKEN},
    {DT_FIELDS_TARGETS, "completion_mask", BY_TOKEN},
    {DT_FIELDS_TARGETS, "assistant_masks", BY_TOKEN},
};

static const refused_field of_messages[] = {
    {0, "tools", "descriptions of tools belong to the record, next to its messages; move the field"},
    {0, "functions", "descriptions of tools belong to the record, next to its messages; move the field"},
    {0, "refusal", "refusals are not supported as answers; write the text into content, or drop the record"},
    {0, "audio", NOT_READ},
    {0, "audios", NOT_READ},
    {0, "video", NOT_READ},
    {0, "videos", NOT_READ},
    {0, "images", "put the images of a message into its content, as {\"type\": \"image\", \"image\": PATH}"},
    {0, "train_detail", "an answer cannot be excluded from the loss in part; split the record or drop it"},
    {0, "training_detail", "an answer cannot be excluded from the loss in part; split the record or drop it"},
};

dt_err dt_record_check_fields(const json_t *record, unsigned which)
{
    for (size_t i = 0; i < sizeof of_records / sizeof of_records[0]; i++) {
        const refused_field *f = &of_records[i];
        const json_t *value = f->which & which ? json_object_get(record, f->key) : NULL;
        /* a single number or word under these keys is not a mask */
        if (f->which == DT_FIELDS_TARGETS && !json_is_array(value)) continue;
        const bool argument = f->which == DT_FIELDS_THOUGHTS && json_is_boolean(value); /* thinking: true */
        DT_CHECK(!dt_field_is_set(value), DT_ERR_DATA, "%s: %s", f->key, argument ? NO_ARGUMENTS : f->reason);
    }
    return DT_OK;
}

dt_err dt_message_check_fields(const json_t *message, size_t turn)
{
    for (size_t i = 0; i < sizeof of_messages / sizeof of_messages[0]; i++)
        DT_CHECK(!dt_field_is_set(json_object_get(message, of_messages[i].key)), DT_ERR_DATA, "message %zu: %s: %s",
                 turn, of_messages[i].key, of_messages[i].reason);
    return DT_OK;
}

bool dt_message_field_is_known(const char *key)
{
    static const char *const read[] = {"role",      "content",  "from",       "value",         "reasoning_content",
                                       "reasoning", "thinking", "weight",     "loss_scale",    "loss",
                                       "train",     "training", "tool_calls", "function_call", "tool_call_id"};
    for (size_t i = 0; i < sizeof read / sizeof read[0]; i++)
        if (strcmp(read[i], key) == 0) return true;
    for (size_t i = 0; i < sizeof of_messages / sizeof of_messages[0]; i++)
        if (strcmp(of_messages[i].key, key) == 0) return true;
    return false;
}

dt_err dt_record_system(const json_t *record, const json_t **system)
{
    static const char *const keys[] = {"system", "system_prompt"};
    *system = NULL;
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        const json_t *value = json_object_get(record, keys[k]);
        if (!value || json_is_null(value)) continue;
        DT_CHECK(json_is_string(value), DT_ERR_DATA, "%s: expected a text", keys[k]);
        if (json_string_length(value) == 0) continue;
        DT_CHECK(!*system, DT_ERR_DATA, "system and system_prompt: expected only one of them");
        *system = value;
    }
    return DT_OK;
}
