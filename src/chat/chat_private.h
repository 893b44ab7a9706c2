/* chat_private.h - a template opened for a tokenizer.
 *
 * Every template is a Jinja text. dtrain's own templates and those from JSON files share templates/form.jinja. A line
 * before it sets `form` to the texts around the messages of each role. */
#ifndef DTRAIN_CHAT_PRIVATE_H
#define DTRAIN_CHAT_PRIVATE_H

#include "dtrain/chat/chat.h"
#include "dtrain/jinja/jinja.h"

/* Marks in a rendered text: noncharacters (U+FDD0 and the following ones), which do not occur in texts. They represent
 * the tokenizer's BOS and EOS, if it does not recognise these in a text. They also mark the ends of answers and of
 * other messages whose ends are searched. */
enum { DT_CHAT_MARK_NBYTES = 3 };
#define DT_CHAT_BOS_MARK "\xef\xb7\x90"
#define DT_CHAT_EOS_MARK "\xef\xb7\x91"
#define DT_CHAT_END_MARK "\xef\xb7\x92"
#define DT_CHAT_QUESTION_MARK "\xef\xb7\x93"
/** Marks that dt_chat_evaluate adds: DT_CHAT_END_MARK to answers, DT_CHAT_QUESTION_MARK to other messages that are not
 *  blank. WORDS: before the white space at the end of the content. ENDS: after it. */
enum {
    DT_CHAT_MARK_WORDS = 1,
    DT_CHAT_MARK_ENDS = 2,
    DT_CHAT_MARK_QUESTION_WORDS = 4,
    DT_CHAT_MARK_QUESTION_ENDS = 8,
    DT_CHAT_MARK_QUESTIONS = DT_CHAT_MARK_QUESTION_WORDS | DT_CHAT_MARK_QUESTION_ENDS
};

/** The id of a test conversation's tool call. Templates of some models require nine letters and digits. */
#define DT_CHAT_CALL_ID "call00001"

/** The form of a tool call. JSON: {name, arguments}, or a list of these. NAMED: the name, and a JSON object of
 *  arguments. PARTS: the name, and each argument's key and value as text. */
typedef enum dt_call_kind { DT_CALL_UNKNOWN, DT_CALL_JSON, DT_CALL_NAMED, DT_CALL_PARTS } dt_call_kind;
typedef struct dt_call_form {
    dt_call_kind kind;
    char *open;                       /* text before a call; "" or NULL: none */
    char *key_open, *between, *close; /* of PARTS: before a key, between key and value, after a value */
} dt_call_form;

struct dt_chat {
    char *name, *source;
    json_t *form;               /* NULL: the Jinja text is another program's */
    struct dt_chat *with_tools; /* the template for conversations with tools; NULL: this one */
    json_t *test_tools;         /* a template for conversations with tools receives these if there are none */
    json_t *spec;               /* a name, an object of a form, or {"jinja": TEXT} */
    const dt_tokenizer *tokenizer;
    dt_jinja *jinja;
    char *text;            /* of the template */
    const char *bos, *eos; /* in a rendered text; NULL: the tokenizer has none */
    /* of another program's template: the text after a question, and after an answer; the text that
     * add_generation_prompt adds after a question, or if it adds none, the text after a question */
    char *after_question, *after_answer, *header;
    int32_t end_token;
    dt_wrap wrap;
    bool writes_bos;                         /* the template begins with BOS */
    bool wrapped;                            /* the tokenizer's BOS is put before the text */
    bool parts;                              /* contents are passed as lists of parts */
    bool text_parts, image_parts;            /* lists of texts, or of images and texts, are passed as they are */
    bool reads_tools, reads_tools_in_system; /* without a system message, and with one */
    bool writes_calls, writes_thoughts;
    bool omits_results;      /* the text of a tool's result is not in the rendered text */
    bool has_header;         /* add_generation_prompt adds text */
    dt_content call_content; /* of an answer with calls, if the record does not say */
    bool call_text;          /* arguments of calls are passed as JSON text, not as objects */
    char *after_call;        /* text after the arguments of an answer's last call, DT_CHAT_CALL_ID; NULL: unknown */
    dt_call_form calls;
    char *result_header; /* as header, after a tool's result; NULL: unknown */
    bool dated;          /* the template uses the date */
    time_t day;          /* the date that the template receives */
};

/* ---- forms.c ----------------------------------------------------------------------------------------------------- */

/** A form by name, JSON file, or JSON text, with all texts that it inherits. form: out, new reference. spec: out, new
 *  reference, the value from which this function reads it again. DT_ERR_USAGE: no such name. DT_ERR_DATA. */
dt_err dt_form_find(const char *name, json_t **form, json_t **spec);
/** Jinja text of a form, malloc'ed. bos, eos: texts for {bos} and {eos}; NULL: "". NULL: no memory. */
char *dt_form_jinja(const json_t *form, const char *bos, const char *eos);
/** A text of a form; NULL: it has none. Borrowed. */
const char *dt_form_text(const json_t *form, const char *key);

/* ---- render.c ---------------------------------------------------------------------------------------------------- */

/** The template that renders a conversation with these tools (NULL: none). */
const dt_chat *dt_chat_for(const dt_chat *c, const json_t *tools);
/** Evaluate the template. tools: NULL: none. marks: DT_CHAT_MARK_*. DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_chat_evaluate(const dt_chat *c, const dt_message *messages, int n, const json_t *tools, unsigned flags,
                        int marks, dt_jinja_result *r);
/** Length of the special token at the start of a text that ends with a 0; 0: none. id: out; unchanged for a token that
 *  the tokenizer lacks (dt_chat_token_meant). */
size_t dt_chat_token_at(const dt_chat *c, const char *text, int32_t *id);
/** Length of <|NAME|> at the start of a text, whether or not the tokenizer has such a token; 0: none. */
size_t dt_chat_token_meant(const char *text);

/* ---- tools.c ----------------------------------------------------------------------------------------------------- */

/** Read the tool calls of a message from its fields. calls: out; NULL: none. given: out, as they are in the field.
 *  DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_message_read_calls(dt_messages *m, const json_t *message, size_t turn, dt_role role, const json_t **calls,
                             const json_t **given);
/** Read the calls from the text of a message of role function_call. DT_ERR_MEMORY. */
dt_err dt_message_read_call_text(dt_messages *m, dt_message *out);
/** Calls in OpenAI's form from a list of calls, or one call, as records have them: a new reference. NULL: neither. */
json_t *dt_calls_of(const json_t *value);
/** Give a result of ShareGPT's form the id and the name of its call. */
dt_err dt_message_find_call(dt_messages *m, dt_message *out);

/* ---- calls.c ----------------------------------------------------------------------------------------------------- */

/** Set gap[i].to of each message i with calls: the offset in text, the rendered conversation, after the arguments of
 *  its last call. lost: out, a message whose calls change other text; -1: none. DT_ERR_MEMORY, DT_ERR_DATA. */
dt_err dt_chat_find_calls(const dt_chat *c, const dt_message *messages, int n, const json_t *tools,
                          const dt_jinja_result *text, dt_jinja_part *gap, int *lost);
/** Descriptions of tools for test conversations. A new reference; NULL: no memory. */
json_t *dt_chat_test_tools(void);
/** Determine how a template writes thoughts, tools, calls and results. DT_ERR_MEMORY. */
dt_err dt_chat_look_at_tools(dt_chat *c);

/* ---- read_calls.c ------------------------------------------------------------------------------------------------ */

/** Determine the form of calls from a rendered test conversation, after its question. name, key, value: those of its
 *  only call. DT_ERR_MEMORY. */
dt_err dt_call_form_find(dt_call_form *f, const char *text, const char *header, const char *name, const char *key,
                         const char *value);
void dt_call_form_free(dt_call_form *f);

/* ---- targets.c --------------------------------------------------------------------------------------------------- */

/** Parts of a rendered text that are targets, in order. part: out, malloc'ed. DT_ERR_DATA: they cannot be determined.
 */
dt_err dt_chat_targets(const dt_chat *c, const dt_message *messages, int n, const json_t *tools,
                       const dt_jinja_result *text, dt_jinja_part **part, int *n_parts);

/* ---- chat.c ------------------------------------------------------------------------------------------------------ */

/** Location of the tokenizer's files, for messages. */
const char *dt_chat_place(const dt_tokenizer *t);
/** Return DT_OK instead of DT_ERR_DATA, and clear it: the template refuses a test conversation. Records like it will
 *  report the error. */
dt_err dt_chat_unless_refused(dt_err err);
/** As dt_chat_evaluate. r->text is NULL if the template refuses the conversation. */
dt_err dt_chat_try(const dt_chat *c, const dt_message *messages, int n, const json_t *tools, unsigned flags, int marks,
                   dt_jinja_result *r);
/** Open by name, file or spec. BOS is written only if this template says so. */
dt_err dt_chat_open_named(dt_chat **out, const char *name, const dt_tokenizer *t);

#endif
