/* forms.h - a JSON record as what it says: one or two texts, each as pieces that are targets or not. algorithms.md 1.1,
 * A.1. */
#ifndef DTRAIN_DATA_MAKE_FORMS_H
#define DTRAIN_DATA_MAKE_FORMS_H

#include "dtrain/chat.h"
#include "dtrain/dataset.h"

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
} dt_rules;

typedef struct dt_text_side {
    dt_pieces pieces;
    const dt_wrap *wrap; /* NULL: nothing is put in front */
    bool eos;            /* the end of text belongs behind it */
    bool eos_target;
} dt_text_side;

/** One record; kept from record to record for its memory. Texts are borrowed from the JSON value and from owned. */
typedef struct dt_form {
    dt_dataset_kind kind; /* what it makes */
    dt_text_side side[DT_N_SIDES];
    bool has_other;
    bool is_chat;
    float weight;
    dt_pair pair; /* margin and safety */
    dt_messages messages[DT_N_SIDES];
    char *owned; /* JSON written out: tools, an answer that is no text */
} dt_form;

/** DT_ERR_DATA with the reason, without file and line. */
dt_err dt_form_read(dt_form *r, const json_t *json, const dt_rules *rules);
void dt_form_free(dt_form *r);

/* ---- what the forms share (forms.c, pairs.c) --------------------------------------------------------------------- */

bool dt_has(const json_t *record, const char *key); /* also when null */
/** The text of a key; NULL when it is absent, null or empty. DT_ERR_DATA: another type. */
dt_err dt_optional_text(const json_t *record, const char *key, const json_t **text);
dt_err dt_required_text(const json_t *record, const char *key, const json_t **text);
dt_err dt_add_json_text(dt_pieces *p, const json_t *text, bool target);
/** Messages from first on are a completion: everything is trained on but the header that the prompt ends with. */
void dt_learn_completion(dt_messages *m, int first);
/** Render the messages of a side, with its wrap and its end of text. */
dt_err dt_render_side(dt_form *r, dt_side side, const dt_rules *rules, unsigned flags);

/* Is it a record of this kind? And reading one. */
bool dt_form_is_pair(const json_t *json);
bool dt_form_is_prompt(const json_t *json);
dt_err dt_form_read_pair(dt_form *r, const json_t *json, const dt_rules *rules);
dt_err dt_form_read_prompt(dt_form *r, const json_t *json, const dt_rules *rules);

#endif
