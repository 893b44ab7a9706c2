/* parse_record.h - a JSON record as what it says: one or two texts, each as pieces that are targets or not.
 * algorithms.md 1.1, A.1. */
#ifndef DTRAIN_DATA_MAKE_PARSE_RECORD_H
#define DTRAIN_DATA_MAKE_PARSE_RECORD_H

#include "dtrain/chat/chat.h"
#include "dtrain/data/dataset.h"

struct dt_rec;

typedef enum dt_mask { DT_MASK_AUTO, DT_MASK_FULL, DT_MASK_COMPLETION, DT_MASK_ASSISTANT } dt_mask;

/** What all records of a run are read by. */
typedef struct dt_rules {
    const dt_chat *chat; /* NULL: there is none, for the reason why_no_chat */
    const char *why_no_chat;
    dt_wrap wrap;  /* of texts that no template writes */
    bool any_kind; /* else kind is what was asked for */
    dt_dataset_kind kind;
    dt_mask mask;
    bool as_chat, safer;
    const char *weight_key;
    const char *image_text;   /* what stands for an image in a text; NULL: records have none */
    bool captions;            /* chats are an image and its caption, without a template */
    const struct dt_rec *rec; /* NULL, or records are rows and items of recommendation data */
} dt_rules;

/** Which form a record has: by it, its fields are known. */
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
    DT_FORM_REC
} dt_form;

typedef struct dt_text_side {
    dt_pieces pieces;
    const dt_wrap *wrap; /* NULL: nothing is put in front */
    bool apart;          /* each piece is encoded as a text of its own */
    bool eos;            /* the end of text belongs behind it */
    bool eos_target;
} dt_text_side;

/** One record; kept from record to record for its memory. Texts are borrowed from the JSON value and from owned. */
typedef struct dt_parsed_record {
    /* in, of recommendation data: the number of the row or item, and its tasks as bits */
    int64_t number;
    uint32_t tasks;
    dt_dataset_kind kind; /* what it makes */
    dt_form form;
    dt_text_side side[DT_N_SIDES];
    bool has_second;
    bool is_chat;
    float weight;
    dt_pair pair;  /* margin, safety, tie, contradicted */
    int n_records; /* samples that the record makes: the pairs of a ranking, the tasks of a row; else 1 */
    dt_messages messages[DT_N_SIDES];
    dt_image_names images; /* as the record names them */
    char *owned;           /* an answer that is no text, as JSON */
    char *fields;          /* of a prompt's record, as JSON; NULL: it has none besides the prompt */
} dt_parsed_record;

/** Its sample number `which`, from 0 on; the first says in n_records how many there are. DT_ERR_DATA with the reason,
 *  without file and line. */
dt_err dt_parse_record(dt_parsed_record *r, const json_t *json, const dt_rules *rules, int which);
/** A list of messages that is written as JSON text becomes the list, under the keys that hold nothing else.
 *  DT_ERR_DATA: it begins as a list does, and is no JSON. */
dt_err dt_open_messages(json_t *record);
void dt_parsed_record_free(dt_parsed_record *r);

/* ---- shared by the files parse_*.c ----------------------------------------------------------------------------- */

bool dt_has(const json_t *record, const char *key); /* also when null */
/** Begin a conversation with the system message that its record has next to it, if any; tools (ShareGPT's) are added to
 *  it. DT_ERR_DATA: the messages begin with another one. */
dt_err dt_begin_with_system(dt_messages *m, const json_t *record, bool tools);
/** Add Alpaca's history, [[question, answer], ...], as turns. */
dt_err dt_add_history(dt_messages *m, const json_t *record);
/** Add the question of an instruction and its input, joined as the template has it; *input: there is one. */
dt_err dt_add_instruction(dt_messages *m, const json_t *record, const dt_rules *rules, bool *input);
/** DT_ERR_DATA: the record has a history, or a system message (lists: which may stand next to a list of messages), that
 *  has no place in its text. */
dt_err dt_check_context(const json_t *record, bool lists);
/** The text of a key; NULL when it is absent, null or empty. DT_ERR_DATA: another type. */
dt_err dt_optional_text(const json_t *record, const char *key, const json_t **text);
dt_err dt_required_text(const json_t *record, const char *key, const json_t **text);
dt_err dt_add_json_text(dt_pieces *p, const json_t *text, bool target);
/** The images that a record lists, in images. DT_ERR_DATA, also where the rules say of none how they are prepared. */
dt_err dt_list_images(dt_parsed_record *r, const json_t *json, const dt_rules *rules);
/** An image's caption as a text: what stands for the image, the answer. */
dt_err dt_render_caption(dt_parsed_record *r, const dt_rules *rules);
/** Messages from first on are a completion: everything is trained on but the header that the prompt ends with. */
void dt_learn_completion(dt_messages *m, int first);
/** DT_ERR_DATA: one of the messages from first on is taken out of the loss, which is not possible here. why: where. */
dt_err dt_check_no_loss(const dt_messages *m, int first, const char *why);
/** Render the messages of a side, with its wrap and its end of text. */
dt_err dt_render_side(dt_parsed_record *r, dt_side side, const dt_rules *rules, unsigned flags);

/* Is it a record of this kind? And reading one. */
bool dt_record_is_pair(const json_t *json);
dt_form dt_pair_form(const json_t *json); /* of one that is */
/** The key of its prompt; NULL: it has none. A `question`, an `instruction` or an `input` is a user's turn. */
const char *dt_pair_prompt_key(const json_t *json);
/** Is it the score of one of its answers? */
bool dt_is_score_of(const json_t *json, const char *key);
bool dt_record_is_prompt(const json_t *json);
dt_err dt_parse_pair(dt_parsed_record *r, const json_t *json, const dt_rules *rules, int which);
dt_err dt_parse_prompt(dt_parsed_record *r, const json_t *json, const dt_rules *rules);
dt_err dt_parse_rec(dt_parsed_record *r, const json_t *json, const dt_rules *rules, int which);

/* ---- fields (record_fields.c) ------------------------------------------------------------------------------------ */

/** DT_ERR_DATA: a field of the record says something else than the record is used for: a label of KTO, a weight that no
 *  option names, half of a preference. */
dt_err dt_check_fields(const dt_parsed_record *r, const json_t *json, const dt_rules *rules);
/** Count the fields of a record, and of its messages, that nothing reads. */
void dt_count_ignored(dt_field_counts *counts, const dt_parsed_record *r, const json_t *json, const dt_rules *rules);
/** Count a chat that has answers in a row or no question; path, line: of its record. */
void dt_count_turns(dt_field_counts *counts, const dt_parsed_record *r, const char *path, int64_t line);
void dt_add_ignored(dt_field_counts *to, const dt_field_counts *from);

#endif
