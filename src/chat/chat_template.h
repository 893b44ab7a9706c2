/* chat_template.h - a chat template as it is written down, before it meets a tokenizer. */
#ifndef DTRAIN_TEXT_CHAT_TEMPLATE_H
#define DTRAIN_TEXT_CHAT_TEMPLATE_H

#include "dtrain/chat/chat.h"

/** One turn is  prefix lead CONTENT end after. NULL: nothing. In all texts {bos} and {eos} are the tokenizer's. */
typedef struct dt_turn_template {
    const char *prefix; /* the header, never a target of its own */
    const char *lead;   /* belongs to the content: a target with it, and left to the model when it generates */
    const char *end;    /* ends the turn: a target with the content */
    const char *after;
    const char *open, *close; /* around neighbouring turns of this role */
} dt_turn_template;

typedef enum dt_system_position {
    DT_SYSTEM_TURN,       /* a turn of its own */
    DT_SYSTEM_FIRST_USER, /* its turn stands inside the next user's turn, before the words */
    DT_SYSTEM_LAST_USER   /* inside the last user's turn */
} dt_system_position;

typedef struct dt_chat_template {
    const char *name, *help;
    const char *begin;
    const char *default_system; /* of a conversation that does not begin with a system message */
    dt_turn_template turns[DT_N_ROLES];
    /* before an answer without thoughts; NULL: the template knows none, else they are written as Qwen3 writes them */
    const char *think_off;
    const char *generation;   /* after the header of an answer that is to be generated */
    const char *input_join;   /* NULL: a newline */
    const char *input_system; /* the system message of an instruction with an input; NULL: as without */
    dt_system_position system;
    bool brackets;    /* [INST] and the like are tokens */
    bool trim;        /* white space around contents is left out */
    bool trim_answer; /* the same of the assistant's alone */
} dt_chat_template;

const dt_chat_template *dt_chat_template_find(const char *name); /* NULL: none */
/** The JSON of a form with another default system message, malloc'ed; NULL: no memory. */
char *dt_chat_template_json(const dt_chat_template *form, const char *default_system, size_t nbytes);
/** From the text of a JSON object, which messages call name; texts are borrowed from *root, which the caller
 *  decrefs. */
dt_err dt_chat_template_parse(const char *name, const char *text, size_t nbytes, dt_chat_template *form, json_t **root);
/** From a JSON file; texts are borrowed from *root, which the caller decrefs. */
dt_err dt_chat_template_read(const char *path, dt_chat_template *form, json_t **root);

#endif
