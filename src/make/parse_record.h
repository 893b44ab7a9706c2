/* parse_record.h - parses a JSON record into one or two texts, each a list of pieces that are targets or
 * not. algorithms.md 1.1, A.1. */
#ifndef DTRAIN_DATA_MAKE_PARSE_RECORD_H
#define DTRAIN_DATA_MAKE_PARSE_RECORD_H

#include "dtrain/chat/chat.h"
#include "dtrain/data/dataset.h"

struct dt_rec;

/** Settings for parsing all records of a run. */
typedef struct dt_rules {
    const dt_make_options *opt;
    const dt_chat *chat; /* NULL: no chat template, for the reason why_no_chat */
    const char *why_no_chat;
    dt_wrap wrap;             /* for texts that no template renders */
    const char *image_text;   /* image placeholder in texts; NULL: records have no images */
    const char *image_alias;  /* another text for it in conversations; NULL: none */
    bool image_line;          /* as dt_messages */
    const struct dt_rec *rec; /* NULL, or records are rows and items of recommendation data */
} dt_rules;

/** Form of a record, which determines its fields. */
typedef enum dt_form {
    DT_FORM_TEXT,
    DT_FORM_MESSAGES,
    DT_FORM_CONVERSATION,
    DT_FORM_CONVERSATIONS,
    DT_FORM_COMPLETION,
    DT_FORM_INSTRUCTION,
    DT_FORM_PAIR,
    DT_FORM_RESPONSES,
    DT_FORM_PKU,
    DT_FORM_RANKING,
    DT_FORM_PROMPT,
    DT_FORM_REC,
    DT_FORM_LABELS,
    DT_FORM_TEXTS
} dt_form;

typedef struct dt_text_side {
    dt_pieces pieces;
    const dt_wrap *wrap; /* NULL: no prefix */
    bool apart;          /* each piece is encoded separately */
    bool units;          /* each target begins a unit (encode_units.c); apart: units are words */
    bool eos;            /* append the end of text */
    bool eos_target;
} dt_text_side;

/** One record, reused to avoid allocations. Texts are borrowed from the JSON value and from owned. */
typedef struct dt_parsed_record {
    /* inputs for recommendation data: number of the row or item, and its tasks as bits */
    int64_t number;
    uint32_t tasks;
    dt_dataset_kind kind; /* kind of the resulting sample */
    dt_form form;
    dt_text_side side[DT_N_SIDES];
    bool has_second;
    bool is_chat;
    float weight;
    dt_pair pair;  /* margin, safety, tie or label, contradicted */
    int n_records; /* samples per record: pairs of a ranking, tasks of a row; else 1 */
    dt_messages messages[DT_N_SIDES];
    dt_image_names images; /* as named in the record */
    char *owned;           /* an answer that is not text, as JSON */
    char *fields;          /* other fields of a prompt record, as JSON; NULL: none */
} dt_parsed_record;

/** Parse sample number `which` of a record, from 0. Sample 0 sets n_records to their number. DT_ERR_DATA
 *  with the reason, without file and line. */
dt_err dt_parse_record(dt_parsed_record *r, const json_t *json, const dt_rules *rules, int which);
/** Parse lists of messages that are stored as JSON text, under keys reserved for messages. DT_ERR_DATA:
 *  the text starts like a list but is invalid JSON. */
dt_err dt_open_messages(json_t *record);
void dt_parsed_record_free(dt_parsed_record *r);

/* ---- shared by parse_*.c ----------------------------------------------------------------------------------------- */

bool dt_has(const json_t *record, const char *key); /* true for null, too */
/** Begin a conversation with the system message stored next to it in the record, if any, and read the record's tools.
 *  DT_ERR_DATA: the messages begin with another system message. */
dt_err dt_begin_with_system(dt_messages *m, const json_t *record);
/** Add a text as a turn. */
dt_err dt_add_turn(dt_messages *m, dt_role role, const json_t *text);
/** Add Alpaca's history, [[question, answer], ...], as turns. */
dt_err dt_add_history(dt_messages *m, const json_t *record);
/** Add an instruction and its input as a question, joined as the template requires. *input: the record has
 *  an input. */
dt_err dt_add_instruction(dt_messages *m, const json_t *record, const dt_rules *rules, bool *input);
/** DT_ERR_DATA: the record has a history or a system message that its text cannot include. lists: a system
 *  message may accompany a list of messages. */
dt_err dt_check_context(const json_t *record, bool lists);
/** The text of a key; NULL if it is absent, null or empty. DT_ERR_DATA: another type. */
dt_err dt_optional_text(const json_t *record, const char *key, const json_t **text);
dt_err dt_required_text(const json_t *record, const char *key, const json_t **text);
dt_err dt_add_json_text(dt_pieces *p, const json_t *text, bool target);
/** Collect the images of a record in images. DT_ERR_DATA, also if the record has images but the rules have none. */
dt_err dt_list_images(dt_parsed_record *r, const json_t *json, const dt_rules *rules);
/** Render an image caption as text: the placeholder, then the answer. */
dt_err dt_render_caption(dt_parsed_record *r, const dt_rules *rules);
/** Make the messages starting at first a completion: everything is a target except the header that ends the prompt, and
 *  results of tools. */
void dt_learn_completion(dt_messages *m, int first);
/** DT_ERR_DATA: a message at or after first is excluded from the loss, which is unsupported here. why: the
 *  context, for the message. */
dt_err dt_check_no_loss(const dt_messages *m, int first, const char *why);
/** DT_ERR_DATA: a message at or after first is a tool's result, but the samples have no mask. */
dt_err dt_check_results(const dt_messages *m, int first);
/** Render the messages of a side, with its wrap and its end of text. */
dt_err dt_render_side(dt_parsed_record *r, dt_side side, const dt_rules *rules, unsigned flags);

/* Tests for record kinds, and their parsers. */
bool dt_record_is_pair(const json_t *json);
dt_form dt_pair_form(const json_t *json); /* requires dt_record_is_pair */
/** Key of the prompt; NULL: none. A `question`, an `instruction` or an `input` is a user's turn. */
const char *dt_pair_prompt_key(const json_t *json);
/** True if the key is the score of one of the record's answers. */
bool dt_is_score_of(const json_t *json, const char *key);
bool dt_record_is_completion(const json_t *json);
bool dt_record_is_chat(const json_t *json); /* or an instruction with its answer, or a completion */

/** What a label of {prompt, completion} says: 1 good (true, 1), 0 bad (false, 0), -1: another value, or none. Local. */
int dt_label_of(const json_t *label);

/** Read {prompt, completion}, texts or messages. Texts become the pieces of the first side, and *n_prompt is -1;
 *  messages are only collected, and *n_prompt is the number of those of the prompt. */
dt_err dt_read_completion(dt_parsed_record *r, const json_t *json, const dt_rules *rules, int *n_prompt);
dt_err dt_parse_pair(dt_parsed_record *r, const json_t *json, const dt_rules *rules, int which);
dt_err dt_parse_rec(dt_parsed_record *r, const json_t *json, const dt_rules *rules, int which);

/* ---- fields (record_fields.c) ------------------------------------------------------------------------------------ */

/** DT_ERR_DATA: a field contradicts the use of the record: a KTO label, a weight that no option names,
 *  half of a preference. */
dt_err dt_check_fields(const dt_parsed_record *r, const json_t *json, const dt_rules *rules);
/** Count the fields of a record and of its messages that dtrain ignores. */
void dt_count_ignored(dt_field_counts *counts, const dt_parsed_record *r, const json_t *json, const dt_rules *rules);
/** Count chats with consecutive answers or without a question. path, line: location of the record. */
void dt_count_turns(dt_field_counts *counts, const dt_parsed_record *r, const char *path, int64_t line);
void dt_add_ignored(dt_field_counts *to, const dt_field_counts *from);

#endif
