/* chat.h - conversations as text: templates, messages, and the spans that they produce. algorithms.md 1.1 (which tokens
 * are targets), A.3.
 *
 * A template is a Jinja text, the tokenizer's own or one of dtrain's. Rendering gives spans of text and tokens, each a
 * target or not; encoding spans gives ids and a mask. Special tokens in a text (<|im_start|>, BOS) become ids if the
 * tokenizer has them. Every function is Local. */
#ifndef DTRAIN_CHAT_H
#define DTRAIN_CHAT_H

#include "dtrain/tokenizer/tokenizer.h"
#include "dtrain/io/json.h"

/* ---- spans with targets ------------------------------------------------------------------------------------------ */

/** A sequence of text spans and tokens, each a target or not. {0} to begin; freed with dt_pieces_free. Texts are
 *  borrowed. */
typedef struct dt_pieces {
    dt_span *span; /* [n] */
    bool *target;  /* [n] */
    int n;
    char *owned; /* malloc'ed, a rendered text */
} dt_pieces;
/** Append a text of nbytes bytes, borrowed until dt_pieces_free. An empty text adds nothing. DT_ERR_MEMORY. */
dt_err dt_pieces_text(dt_pieces *p, const char *text, size_t nbytes, bool target);
/** Append a token. An id below 0 adds nothing. DT_ERR_MEMORY. */
dt_err dt_pieces_token(dt_pieces *p, int32_t id, bool target);
/** Remove all spans, but keep the memory for the next text. */
void dt_pieces_clear(dt_pieces *p);
/** Free the lists, but no borrowed texts. Safe on {0}; leaves {0}. */
void dt_pieces_free(dt_pieces *p);

/** Tokens that DT_ENCODE_WRAP of a tokenizer adds before and after a text. */
typedef struct dt_wrap {
    int n_before, n_after;
    int32_t last_before; /* the last token before a text; -1: none */
} dt_wrap;
/** Determine them by encoding. w: out. DT_ERR_MEMORY, DT_ERR_DATA: as dt_encode. */
dt_err dt_wrap_probe(dt_wrap *w, const dt_tokenizer *t);

/** Append the ids of the spans, encoded as one text, and 0 or 1 for each id to mask.
 *
 *  If a token would cross the border between target and non-target spans, the two sides are encoded separately, and
 *  *parted is set.
 *
 *  wrap  put the tokenizer's BOS first, unless the spans begin with it; the caller appends what follows a text. NULL:
 *        nothing
 *  mask  inout  malloc'ed, as long as ids->n_alloc, and grown with it; NULL: no mask. Token 0 may be marked; callers
 *        clear it
 *
 *  DT_ERR_MEMORY, DT_ERR_DATA: as dt_encode. */
dt_err dt_pieces_encode(dt_encoder *e, const dt_tokenizer *t, const dt_pieces *p, const dt_wrap *wrap, dt_ids *ids,
                        uint8_t **mask, bool *parted);

/** Message for a text whose number of image placeholders differs from the number of images: "the text has 2 <image> and
 *  the record has 1 image". image_text: the placeholder's text; NULL: unknown. owner: "the record". Returns
 *  out->text. */
typedef struct dt_placeholder_words {
    char text[256];
} dt_placeholder_words;
const char *dt_say_placeholders(dt_placeholder_words *out, const char *image_text, int64_t n_placeholders,
                                const char *owner, int64_t n_images);

/** Replace each image placeholder in the ids starting at `first` by n_tokens of them for each of its cells, and its
 *  element of mask likewise (NULL: no mask; as long as ids->n_alloc). n_cells: in [n_images], at least 1; NULL: 1 each.
 *  DT_ERR_DATA: the number of placeholders is not n_images. */
dt_err dt_expand_placeholders(int32_t token, int64_t n_tokens, const int32_t *n_cells, int n_images, dt_ids *ids,
                              uint8_t **mask, size_t first);

/** The tokens of an image: the placeholder, and those around its placeholders. */
typedef struct dt_image_wrap {
    int32_t token, around[2];
    const char *name[2]; /* texts of the tokens around it; NULL: known by their ids */
} dt_image_wrap;
/** Make an encoder replace the token that templates and messages have for an image by the text of an image with one
 *  placeholder. That token is the placeholder if those around it have names (InternVL). Else it is around[0], and two
 *  line ends are added before and after the text (Gemma 3). text: out, of that token, malloc'ed; NULL on error.
 *  DT_ERR_DATA: the tokenizer lacks one of them. DT_ERR_MEMORY. */
dt_err dt_wrap_images(dt_encoder *e, const dt_tokenizer *t, const dt_image_wrap *wrap, char **text);

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/** Roles of messages. */
typedef enum dt_role { DT_ROLE_SYSTEM, DT_ROLE_USER, DT_ROLE_ASSISTANT, DT_ROLE_TOOL, DT_N_ROLES } dt_role;
/** Parse a role: system, user, assistant, tool, or an alias (developer, human, gpt, function_call, function,
 *  observation). */
bool dt_role_parse(const char *name, dt_role *role);

/** Parts of a turn that are targets. */
enum {
    DT_LEARN_HEADER = 1,
    DT_LEARN_CONTENT = 2, /* the content and the end of the turn */
    DT_LEARN_AFTER = 4    /* what the template appends after the end of a turn */
};

/** Content of a message: a text, a JSON null, none, or any of these, as the template needs it. A null of a record is
 *  none, as in transformers. */
typedef enum dt_content { DT_CONTENT_TEXT, DT_CONTENT_NULL, DT_CONTENT_NONE, DT_CONTENT_ANY } dt_content;

/** A message of a conversation. Texts and JSON values are borrowed. */
typedef struct dt_message {
    dt_role role;
    const char *text;
    size_t nbytes;
    unsigned learn;
    /* an assistant's reasoning from a separate field, and the field's name; NULL: the text may contain it */
    const char *thoughts, *thoughts_key;
    size_t n_thoughts;
    const char *no_loss;       /* the field that excludes this answer from the loss; NULL: none */
    bool developer;            /* a system message whose role was written `developer` */
    const char *name;          /* the field `name`, for templates that write it; NULL: none */
    const json_t *calls;       /* tool calls of an answer, [{function: {name, arguments}}, ...]; NULL: none */
    const json_t *given_calls; /* as the record has them, one or a list */
    const char *call_id;       /* of a tool's result: the call's id; NULL: none */
    const json_t *parts;       /* the content as a list of parts, from which text was joined; NULL: it was a text */
    dt_content content;        /* of an answer with calls. ANY: the text is the calls, and there is no content */
    bool call_is_text;         /* calls are written as text, because the template writes none, or they are no JSON */
    bool left_out;             /* the template does not write this message, which is not an answer */
} dt_message;

/** Names of images (paths, or bytes in a Parquet row), borrowed. {0} to begin. */
typedef struct dt_image_names {
    const char **path; /* [n] */
    int n;
} dt_image_names;

/** A conversation. {0} to begin; freed with dt_messages_free. */
typedef struct dt_messages {
    dt_message *item;
    int n;
    char **owned; /* malloc'ed texts, joined from parts */
    int n_owned;
    const char *image_text;  /* in: text of an image placeholder; NULL: parts of type image are refused */
    const char *image_alias; /* in: another text for it in messages, which is replaced; NULL: none */
    bool image_line;         /* in: a line end follows a placeholder that is put before a text */
    dt_image_names images;   /* images named by parts of type image; NULL for one without a name */
    json_t *tools;           /* descriptions of tools, [{type: function, function: {...}}, ...]; NULL: none */
    const char *tools_text;  /* the same as the record has them, for templates without tools; NULL: none */
    bool tools_are_text;     /* they end the system message (dt_messages_fit) */
    json_t *values;          /* owned list of JSON values that messages refer to; NULL: none */
    int n_calls, n_results;  /* calls and results of ShareGPT's form so far */
} dt_messages;
/** Append a message with learn 0. text: borrowed until dt_messages_clear. DT_ERR_MEMORY. */
dt_err dt_messages_add(dt_messages *m, dt_role role, const char *text, size_t nbytes);
/** As dt_messages_add, but before all other messages. */
dt_err dt_messages_add_first(dt_messages *m, dt_role role, const char *text, size_t nbytes);
/** Take ownership of a malloc'ed text, also on failure; it lives as long as the messages. DT_ERR_MEMORY: also if text
 *  is NULL. */
dt_err dt_messages_own(dt_messages *m, char *text);
/** Append a JSON list of messages. Texts are borrowed from it, or joined from [{"type": "text", "text": ...}] and
 *  owned. Images of a message, {"type": "image"}, come first in its text, each as image_text and a newline, as
 *  llava-hf's templates write them.
 *
 *  what                name of the list in errors
 *  role_key, text_key  "role", "content", or ShareGPT's "from", "value"
 *
 *  Fields of a message: reasoning_content, reasoning or thinking contain the reasoning of an answer; weight,
 *  loss_scale, loss, train or training with 0 or false exclude it from the loss; tool_calls or function_call are the
 *  tool calls of an answer, as is the content of a message of role function_call; name and tool_call_id are passed to
 *  templates.
 *
 *  DT_ERR_DATA, naming the message: also for unsupported fields that change the conversation, such as refusal.
 *  DT_ERR_MEMORY. */
dt_err dt_messages_parse(dt_messages *m, const json_t *list, const char *what, const char *role_key,
                         const char *text_key);
/** Read the descriptions of tools, from `tools` or `functions` of a record: a list of {type: function, function: {...}}
 *  or of {name, parameters, ...}, one of these, or its JSON text. Any other text is only tools_text. DT_ERR_DATA:
 *  another type, or both fields. DT_ERR_MEMORY. */
dt_err dt_messages_take_tools(dt_messages *m, const json_t *record);
/** Remove all messages, but keep the memory for the next conversation. */
void dt_messages_clear(dt_messages *m);
/** Free the messages and owned texts. Safe on {0}; leaves {0}. */
void dt_messages_free(dt_messages *m);

/* ---- fields of records ------------------------------------------------------------------------------------------- */

/** Does a field have a value? Not if it is absent (NULL), null, "", [], {}, "[]", "{}" or "null". */
bool dt_field_is_set(const json_t *value);
/** Fields of a record to check: videos and audio, arguments of chat templates, targets by token, earlier turns in
 *  addition to messages, reasoning in addition to an answer. */
enum { DT_FIELDS_MEDIA = 1, DT_FIELDS_CHAT = 2, DT_FIELDS_TARGETS = 4, DT_FIELDS_HISTORY = 8, DT_FIELDS_THOUGHTS = 16 };
/** DT_ERR_DATA, naming the field: the record has a field that would change training or prompts and is not supported
 *  (videos, tools, labels, ...). which: sum of DT_FIELDS_*. */
dt_err dt_record_check_fields(const json_t *record, unsigned which);
/** The same for a field of a message. turn: its index, for the error. */
dt_err dt_message_check_fields(const json_t *message, size_t turn);
/** Does dt_messages_parse read or refuse this field of a message? */
bool dt_message_field_is_known(const char *key);
/** The system message of a record, from `system` or `system_prompt`. system: out, borrowed; NULL: none. DT_ERR_DATA:
 *  not a text, or both fields. */
dt_err dt_record_system(const json_t *record, const json_t **system);

/* ---- images of records ------------------------------------------------------------------------------------------- */

/** Append a name, borrowed. DT_ERR_MEMORY. */
dt_err dt_image_names_add(dt_image_names *names, const char *path);
/** Free the list. Safe on {0}; leaves {0}. */
void dt_image_names_free(dt_image_names *names);
/** Key of an object that refers to bytes in a row of a Parquet file; its value is the image's name
 *  (src/make/parquet.h). */
#define DT_IMAGE_OF_ROW "bytes_of_row"
/** The name of an image, borrowed: a path, {path}, bytes of a row, or {bytes} with such. NULL: none of these, or it
 *  contains U+0000. */
const char *dt_image_name_of(const json_t *image);
/** True if a value of a Parquet row has binary values in it, which are no texts. */
bool dt_json_has_bytes(const json_t *value);
/** List only the images that a record names under `image`, `images` or `image_bytes`: one image (dt_image_name_of) or a
 *  list, borrowed from it. DT_ERR_DATA: a value that names no image; two of the keys. */
dt_err dt_image_names_list(dt_image_names *names, const json_t *record);
/** The key of a record that names an image; NULL: none. */
const char *dt_image_key(const json_t *record);
/** Add the images that parts of a record's messages name. DT_ERR_DATA: the record lists images as well, which names
 *  contains already; or only some parts have names. */
dt_err dt_image_names_take(dt_image_names *names, const dt_messages *m);
/** If no message contains placeholders of the record's n images, put them before the first user message, as parts of it
 *  would be. DT_ERR_MEMORY. */
dt_err dt_messages_place_images(dt_messages *m, int n);
/** A text after n images, each image_text and, if `line`, a newline, as llava-hf's templates write them: malloc'ed,
 *  0-terminated. nbytes: in length of text, out of the result. NULL: no memory. */
char *dt_text_after_images(const char *image_text, bool line, int n, const char *text, size_t *nbytes);
/** Path of an image. A relative name is relative to folder, or if that is NULL, to the directory of the file that names
 *  it (NULL: the current directory). A file: URL is a path, with %20 and the like decoded. path: out [PATH_MAX].
 *  DT_ERR_DATA: too long, or another URL such as http:, which is not fetched. */
dt_err dt_image_path(const char *folder, const char *file, const char *name, char *path);
/** Is the name the image itself, a data: URI? */
bool dt_image_is_data(const char *name);
/** Decode a base64 data: URI. bytes: out, malloc'ed; n: out. DT_ERR_DATA, without the name; DT_ERR_MEMORY. */
dt_err dt_image_data(const char *name, uint8_t **bytes, size_t *n);

/* ---- templates --------------------------------------------------------------------------------------------------- */

typedef struct dt_chat dt_chat;

/** Open a template. c: out, closed with dt_chat_close; NULL on error. Borrows t.
 *
 *  name  a name of dt_chat_named (mistral is mistral-v1), a JSON file (a name with a slash, or that ends in .json), a
 *        result of dt_chat_spec, or auto: the tokenizer's own chat template; plain if it has none
 *
 *  DT_ERR_USAGE: no such name; the tokenizer's template cannot be evaluated, or leaves out a question. DT_ERR_DATA,
 *  naming key and expectation: the file. DT_ERR_MEMORY. */
dt_err dt_chat_open(dt_chat **c, const char *name, const dt_tokenizer *t);
/** Free a template. Safe on NULL. */
void dt_chat_close(dt_chat *c);
/** The template's name and origin: "qwen2.5 (by name)", "models/x/tokenizer_config.json". Borrowed. */
const char *dt_chat_source(const dt_chat *c);
/** Warn of tokens that the template writes and the tokenizer lacks: <|NAME|>, and [NAME] if they are tokens. */
void dt_chat_warn(const dt_chat *c);
/** The template, as dt_chat_spec, from which dtrain wrote the chat_template.jinja next to the tokenizer: malloc'ed.
 *  NULL: none, or it was changed since. */
char *dt_chat_written(const dt_tokenizer *t);
/** The template as one line for attributes and configurations: its name, the JSON object of a user's template, or
 *  {"jinja": TEXT} with a tokenizer's own. dt_chat_open accepts it. spec: out, malloc'ed. DT_ERR_MEMORY. */
dt_err dt_chat_spec(const dt_chat *c, char **spec);
/** The template as chat_template.jinja for transformers: apply_chat_template then writes the text of dt_chat_render,
 *  after what the tokenizer puts before it. dt_chat_open recognises the template in it.
 *
 *  image_text  text of an image, written for parts {type: image} of a message as in dt_messages_parse; NULL: such parts
 *              write nothing. A tokenizer's own template stays as it is
 *  jinja       out  malloc'ed
 *
 *  DT_ERR_MEMORY. */
dt_err dt_chat_jinja(const dt_chat *c, const char *image_text, char **jinja);
/** As dt_chat_jinja, for a template by name (dt_chat_open) and a tokenizer by name (dt_tokenizer_open).
 *
 *  image_token  the model's placeholder, whose text is used for images; -1: no images
 *  spec         out  as dt_chat_spec; may be NULL
 *  jinja        out  NULL if it is the tokenizer's own, in a file that is copied: keep it
 *
 *  Errors of the two functions. */
dt_err dt_chat_jinja_for(const char *name, const char *tokenizer, int32_t image_token, char **spec, char **jinja);
/** The token that ends an assistant's turn, at which generation stops; -1: none, the turn ends by text. */
int32_t dt_chat_end_token(const dt_chat *c);
/** Text between instruction and input of an Alpaca record. Borrowed. */
const char *dt_chat_input_join(const dt_chat *c);
/** System message of an Alpaca record with an input; NULL: the template has none. Borrowed. */
const char *dt_chat_input_system(const dt_chat *c);
/** Named template i, from 0, with a line of help. False: there are no more. */
bool dt_chat_named(int i, const char **name, const char **help);

enum {
    DT_CHAT_GENERATE = 1, /* append the beginning of an assistant's turn */
    DT_CHAT_NO_THINK = 2  /* with GENERATE: turn reasoning off, if the template supports it */
};
/** Does the template write descriptions of tools, if there is a system message or none, and calls of tools? */
bool dt_chat_reads_tools(const dt_chat *c, bool system);
bool dt_chat_writes_calls(const dt_chat *c);
/** Make tools and calls that the template does not write texts: tools_text ends the system message, calls end their
 *  answer, as JSON. Call it before dt_chat_render. DT_ERR_MEMORY. */
dt_err dt_messages_fit(dt_messages *m, const dt_chat *c);
/** Replace the spans by those of a conversation; out owns their text. tools: descriptions of tools; NULL: none.
 *  DT_ERR_DATA: messages that the template refuses; or the targets cannot be determined (src/chat/targets.c).
 *  DT_ERR_MEMORY. */
dt_err dt_chat_render(const dt_chat *c, const dt_message *messages, int n, const json_t *tools, unsigned flags,
                      dt_pieces *out);
/** What the tokenizer adds around the conversation. NULL: nothing, because the template writes BOS itself, or because
 *  it is the tokenizer's own, whose text apply_chat_template encodes unchanged. */
const dt_wrap *dt_chat_wrap(const dt_chat *c);
/** Use the template for a model with images: a processor's apply_chat_template lets the tokenizer add BOS to a text
 *  that does not begin with it. */
void dt_chat_for_images(dt_chat *c);

/** Render and encode a conversation: append its ids. For generation. Errors of dt_chat_render and dt_pieces_encode. */
dt_err dt_chat_encode(const dt_chat *c, dt_encoder *e, const dt_messages *m, unsigned flags, dt_ids *ids);
/** Append what follows the last token of an answer if a list of messages follows it: the end of its turn, the messages,
 *  and the begin of the next answer. Results of tools come first, or none. As TRL computes it, from a conversation of
 *  its own, so that the answer's tokens are kept. flags: DT_CHAT_NO_THINK. DT_ERR_DATA: the messages, or the template
 *  changes an answer when messages follow. DT_ERR_MEMORY. */
dt_err dt_chat_continue(const dt_chat *c, dt_encoder *e, const json_t *messages, unsigned flags, dt_ids *ids);
/** False if the template writes calls in a form that dt_chat_read_calls does not know: it then finds none. */
bool dt_chat_knows_calls(const dt_chat *c);
/** Read the tool calls in the text of an answer, with its special tokens, in the template's form. If the template
 *  writes no calls: JSON objects {name, arguments} at the begin of lines, with or without <tool_call> before them.
 *
 *  tools  descriptions of tools (dt_messages.tools): arguments that are strings are taken as they are, if the form does
 *         not tell them from numbers; NULL: none
 *  calls  out  new reference: [{type: function, function: {name, arguments: {...}}}, ...], possibly empty
 *  n_bad  out  calls that begin in the template's form, but cannot be read
 *
 *  DT_ERR_MEMORY. */
dt_err dt_chat_read_calls(const dt_chat *c, const json_t *tools, const char *text, json_t **calls, int *n_bad);

#endif
