/* chat.h - conversations as text: templates, messages, and the pieces that both make together. algorithms.md 1.1 (which
 * tokens are targets), A.3.
 *
 * A template is data: what stands around the words of each role. Rendering gives pieces of text and tokens, each a
 * target or not; encoding pieces gives ids and a mask. Tokens of the template (<|im_start|>, BOS) become ids where the
 * tokenizer has them, and stay text where it has not. */
#ifndef DTRAIN_CHAT_H
#define DTRAIN_CHAT_H

#include "dtrain/tokenizer/tokenizer.h"
#include "dtrain/io/json.h"

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

/** Text and tokens in a row, each a target or not. {0} to start from; texts are borrowed. */
typedef struct dt_pieces {
    dt_span *span; /* [n] */
    bool *target;  /* [n] */
    int n, n_alloc;
} dt_pieces;
dt_err dt_pieces_text(dt_pieces *p, const char *text, size_t nbytes, bool target); /* an empty text adds nothing */
dt_err dt_pieces_token(dt_pieces *p, int32_t id, bool target);                     /* likewise an id below 0 */
void dt_pieces_free(dt_pieces *p);

/** What DT_ENCODE_WRAP of a tokenizer puts before and after a text, in tokens. */
typedef struct dt_wrap {
    int n_before, n_after;
    int32_t last_before; /* the last token before a text; -1: none */
} dt_wrap;
dt_err dt_wrap_probe(dt_wrap *w, const dt_tokenizer *t);

/** Append the ids of pieces, and 0 or 1 for each id to mask (NULL: none wanted) [as long as ids->n_alloc; grown as ids
 *  are].
 *
 *  All is encoded as one text. Where a token would reach from pieces that are targets into pieces that are not, or the
 *  other way, the two sides are encoded one by one instead, and *parted is set. wrap (NULL: never) puts the tokenizer's
 *  BOS first, unless the pieces begin with it; what it would put behind is left to the caller. Token 0 may be marked;
 *  callers clear it. DT_ERR_MEMORY, DT_ERR_DATA as dt_encode. */
dt_err dt_pieces_encode(dt_encoder *e, const dt_tokenizer *t, const dt_pieces *p, const dt_wrap *wrap, dt_ids *ids,
                        uint8_t **mask, bool *parted);

/** In words, for a text that has not as many places as there are images: "the text has 2 <image> and the record has 1
 *  image". image_text: what marks a place; NULL: it is not known. owner: "the record". Returns out. */
typedef struct dt_place_words {
    char text[256];
} dt_place_words;
const char *dt_say_places(dt_place_words *out, const char *image_text, int64_t n_places, const char *owner,
                          int64_t n_images);

/** Ids from first on, in which each image has one placeholder: each becomes a run of n_tokens, and so does its place in
 *  mask (NULL: there is none), which is as long as ids->n_alloc. DT_ERR_DATA: there are more or fewer than n_images. */
dt_err dt_expand_placeholders(int32_t token, int64_t n_tokens, int n_images, dt_ids *ids, uint8_t **mask, size_t first);

/* ---- messages ---------------------------------------------------------------------------------------------------- */

typedef enum dt_role { DT_ROLE_SYSTEM, DT_ROLE_USER, DT_ROLE_ASSISTANT, DT_ROLE_TOOL, DT_N_ROLES } dt_role;
/** system, user, assistant, tool, and the names that others give them (developer, human, gpt, function_call, function,
 *  observation). */
bool dt_role_parse(const char *name, dt_role *role);
/** The i-th of these names, i from 0; false: there are no more. */
bool dt_role_named(int i, const char **name, dt_role *role);

/** Which parts of a turn are targets. */
enum {
    DT_LEARN_HEADER = 1,
    DT_LEARN_CONTENT = 2, /* the words and what ends the turn */
    DT_LEARN_AFTER = 4    /* what the template puts behind a turn that has ended */
};

typedef struct dt_message {
    dt_role role;
    const char *text;
    size_t nbytes;
    unsigned learn;
    /* of an assistant, from a field of their own; NULL: the text may contain them. The key is for messages */
    const char *thoughts, *thoughts_key;
    size_t n_thoughts;
    const char *no_loss; /* the field that takes this answer out of the loss; NULL: none does */
    bool developer;      /* a system message whose role was written `developer` */
    bool named;          /* it has a field `name`, which dtrain's templates do not write */
} dt_message;

/** Names of images, paths or bytes of a row, borrowed. {0} to start from. */
typedef struct dt_image_names {
    const char **path; /* [n] */
    int n, n_alloc;
} dt_image_names;

typedef struct dt_messages {
    dt_message *item;
    int n, n_alloc;
    char **owned; /* texts put together from parts */
    int n_owned;
    const char *image_text; /* in: what stands for an image in a text; NULL: parts of type image are refused */
    dt_image_names images;  /* those that parts of type image name, NULL for one without a name */
} dt_messages;
dt_err dt_messages_add(dt_messages *m, dt_role role, const char *text, size_t nbytes); /* learn 0; text borrowed */
/** The same in front of the others. */
dt_err dt_messages_add_first(dt_messages *m, dt_role role, const char *text, size_t nbytes);
/** A malloc'ed text that lives as long as the messages; taken over, also in failure. DT_ERR_MEMORY, also of NULL. */
dt_err dt_messages_own(dt_messages *m, char *text);
/** Add a JSON list of messages; texts are borrowed from it, or joined from [{"type": "text", "text": ...}] and owned.
 *  Images of a message, {"type": "image"}, come first in its text, each as image_text and a line's end, as llava-hf's
 *  templates write them.
 *  role_key and text_key: "role", "content", or ShareGPT's "from", "value". Fields of a message: reasoning_content,
 *  reasoning or thinking are the thoughts of an answer; weight, loss_scale, loss, train or training of 0 or false take
 *  it out of the loss; name marks the message as named. DT_ERR_DATA saying what in which message, also for fields that
 *  are not supported and change what a conversation says, such as tool_calls; what names the list. */
dt_err dt_messages_parse(dt_messages *m, const json_t *list, const char *what, const char *role_key,
                         const char *text_key);
void dt_messages_clear(dt_messages *m); /* keeps the memory for the next conversation */
void dt_messages_free(dt_messages *m);

/* ---- fields of records ------------------------------------------------------------------------------------------- */

/** Does a field hold anything? Null, "", [] and {} do not, nor do the texts "[]", "{}" and "null"; NULL: absent. */
bool dt_field_is_set(const json_t *value);
/** Which fields of a record are looked at: videos and audio, arguments of a chat template, descriptions of tools, those
 *  that name targets by token, earlier turns next to a list of messages, thoughts next to an answer. */
enum {
    DT_FIELDS_MEDIA = 1,
    DT_FIELDS_CHAT = 2,
    DT_FIELDS_TOOLS = 4,
    DT_FIELDS_TARGETS = 8,
    DT_FIELDS_HISTORY = 16,
    DT_FIELDS_THOUGHTS = 32
};
/** DT_ERR_DATA naming a field that would change what is trained on or asked, and is not supported: videos, tools,
 *  labels, ... */
dt_err dt_record_check_fields(const json_t *record, unsigned which);
/** The same for a field of a message. turn: its number, for the error. */
dt_err dt_message_check_fields(const json_t *message, size_t turn);
/** Does dt_messages_parse read this field of a message, or refuse it? */
bool dt_message_field_is_known(const char *key);
/** The system message of a record, from `system` or `system_prompt`; NULL: none. DT_ERR_DATA: no text, or both. */
dt_err dt_record_system(const json_t *record, const json_t **system);

/* ---- images of records ------------------------------------------------------------------------------------------- */

dt_err dt_image_names_add(dt_image_names *names, const char *path); /* DT_ERR_MEMORY */
void dt_image_names_free(dt_image_names *names);                    /* safe on {0}; leaves {0} behind */
/** In rows of Parquet files, bytes are an object with this key, and their name is its value: the reader knows what it
 *  means (src/make/parquet.h). */
#define DT_IMAGE_OF_ROW "bytes_of_row"
/** What a value calls its image, borrowed: a path, {path}, bytes of a row, or {bytes} with such. NULL: none of them, or
 *  it contains U+0000, which no path does and at which it would end. */
const char *dt_image_name_of(const json_t *image);
/** Only the images that a record lists, under `image`, `images` or `image_bytes`: one as dt_image_name_of has it, or a
 *  list of these, borrowed from it. DT_ERR_DATA: what names none; two of the keys. */
dt_err dt_image_names_list(dt_image_names *names, const json_t *record);
/** The key of a record that names an image; NULL: there is none. */
const char *dt_image_key(const json_t *record);
/** Add the images that parts of a record's messages name. DT_ERR_DATA: the record lists images as well, which names
 *  already holds; one part has a name and another has none. */
dt_err dt_image_names_take(dt_image_names *names, const dt_messages *m);
/** Where no message says where the record's n images stand: in front of the first one of a user, as parts of it would.
 *  DT_ERR_MEMORY. */
dt_err dt_messages_place_images(dt_messages *m, int n);
/** A text of *nbytes bytes behind n images, each image_text and a line's end, as llava-hf's templates have it:
 *  malloc'ed, with a 0 behind it, and *nbytes its length. NULL: no memory. */
char *dt_text_after_images(const char *image_text, int n, const char *text, size_t *nbytes);
/** Where the image is: a relative name begins in folder or, where that is NULL, in the folder of the file (NULL: the
 *  current one) that names it. A file: URL is a path, in which %20 and the like are bytes. path [PATH_MAX].
 *  DT_ERR_DATA: too long, another address such as http:, whose image is not fetched. */
dt_err dt_image_path(const char *folder, const char *file, const char *name, char *path);
/** Is the name the image itself, a data: URI? */
bool dt_image_is_data(const char *name);
/** The bytes of a data: URI in base64, malloc'ed. DT_ERR_DATA, without the name; DT_ERR_MEMORY. */
dt_err dt_image_data(const char *name, uint8_t **bytes, size_t *n);

/* ---- templates --------------------------------------------------------------------------------------------------- */

typedef struct dt_chat dt_chat;

/** name: one of dt_chat_named's (mistral is mistral-v1), a JSON file (a name with a slash, or one that ends in .json),
 *  what dt_chat_spec gave, or auto: the one that writes what the tokenizer's own chat template writes, plain if it has
 *  none. The tokenizer's template is evaluated on a set of conversations (src/chat/probe.c) and must give the same
 *  texts. If it differs for some kinds of messages only, dt_chat_render refuses these kinds. Borrows t.
 *  DT_ERR_USAGE: no such name, or no template writes the same; DT_ERR_DATA: the file, naming key and what was
 *  expected. */
dt_err dt_chat_open(dt_chat **c, const char *name, const dt_tokenizer *t);
void dt_chat_close(dt_chat *c); /* safe on NULL */
const char *dt_chat_name(const dt_chat *c);
/** The name and where the template comes from: "qwen2.5 (models/x/tokenizer_config.json)". */
const char *dt_chat_source(const dt_chat *c);
/** Warn of tokens that the template writes and the tokenizer has not: <|NAME|>, and [NAME] where they are tokens. */
void dt_chat_warn(const dt_chat *c);
/** The template, as dt_chat_spec, that a chat_template.jinja of dtrain's beside the tokenizer was written from,
 *  malloc'ed; NULL: there is none, or it was changed since. */
char *dt_chat_written(const dt_tokenizer *t);
/** The template in one line for attributes and configurations, malloc'ed: its name, or the JSON object of the user's
 *  own. dt_chat_open takes it. */
dt_err dt_chat_spec(const dt_chat *c, char **spec);
/** The template as transformers reads it, chat_template.jinja, malloc'ed: apply_chat_template then writes the text of
 *  dt_chat_render, with what the tokenizer puts before it. dt_chat_open finds the template in it again.
 *  image_text: what stands for an image in a text, which parts {type: image} of a message then become as they do in
 *  dt_messages_read; NULL: such parts write nothing. DT_ERR_MEMORY. */
dt_err dt_chat_jinja(const dt_chat *c, const char *image_text, char **jinja);
/** The same for a template by name (as dt_chat_open) and a tokenizer by name (as dt_tokenizer_open). image_token: the
 *  placeholder of the model, whose text stands for an image; -1: it takes none. *jinja is NULL where the tokenizer's
 *  own template says the same, and knows images if the model does, and is to be kept. spec (NULL: not wanted) as
 *  dt_chat_spec. Errors of the two. */
dt_err dt_chat_jinja_for(const char *name, const char *tokenizer, int32_t image_token, char **spec, char **jinja);
/** The token that ends an assistant's turn, -1: there is none, the turn ends by text. Generation stops at it. */
int32_t dt_chat_end_token(const dt_chat *c);
/** What stands between instruction and input of an Alpaca record. */
const char *dt_chat_input_join(const dt_chat *c);
/** The system message of an Alpaca record with an input. NULL: the template has none of its own for these. */
const char *dt_chat_input_system(const dt_chat *c);
/** The i-th named template, i from 0, with a line about it; false: there are no more. */
bool dt_chat_named(int i, const char **name, const char **help);

enum {
    DT_CHAT_GENERATE = 1, /* end with what an assistant's turn begins with */
    DT_CHAT_NO_THINK = 2  /* with GENERATE: thinking is off, where the template knows it */
};
/** Append the pieces of a conversation. They borrow from messages and c. DT_ERR_DATA: a system message that the
 *  template has no place for, or a kind of message that the tokenizer's own template writes otherwise. */
dt_err dt_chat_render(const dt_chat *c, const dt_message *messages, int n, unsigned flags, dt_pieces *out);
/** What the tokenizer puts around the conversation. NULL: nothing, because the template writes BOS itself, or because
 *  it is the tokenizer's own: apply_chat_template then encodes its text as it is. */
const dt_wrap *dt_chat_wrap(const dt_chat *c);
/** The template is for a model that takes images: a processor's apply_chat_template lets the tokenizer put BOS before
 *  a text that does not begin with it. */
void dt_chat_for_images(dt_chat *c);

/** Render and encode: ids of a conversation, appended. For generation. */
dt_err dt_chat_encode(const dt_chat *c, dt_encoder *e, const dt_message *messages, int n, unsigned flags, dt_ids *ids);

#endif
