/* chat_private.h - a template opened for a tokenizer: chat.c renders from it, write_jinja.c exports it. */
#ifndef DTRAIN_TEXT_CHAT_PRIVATE_H
#define DTRAIN_TEXT_CHAT_PRIVATE_H

#include "chat_template.h"

/* A text of the template, cut at the tokens of the tokenizer. */
typedef struct dt_parts {
    dt_span *span;
    int n;
} dt_parts;

typedef struct dt_turn_parts {
    dt_parts prefix, lead, end, after, open, close;
} dt_turn_parts;

struct dt_chat {
    dt_chat_template form;
    json_t *root; /* owns the texts of a template read from JSON */
    const dt_tokenizer *tokenizer;
    dt_parts begin, think_off, generation;
    dt_turn_parts turns[DT_N_ROLES];
    dt_wrap wrap;
    char missing[256]; /* tokens of the template that the tokenizer lacks */
    bool writes_bos;   /* the template starts with {bos} */
    bool wrapped;      /* the tokenizer's BOS is put before the text */
    unsigned refused;  /* kinds of messages that the tokenizer's own template renders differently */
    bool dated;        /* the tokenizer's own template writes the current date */
    char *source;      /* dt_chat_source */
};

/** Kinds of messages that templates render differently. */
enum {
    DT_KIND_SYSTEM = 1,
    DT_KIND_EMPTY_SYSTEM = 2,
    DT_KIND_LATER_SYSTEM = 4, /* a system message that is not the first message */
    DT_KIND_DEVELOPER = 8,
    DT_KIND_ROW = 16, /* roles that do not alternate: consecutive questions or answers, or an answer first */
    DT_KIND_TOOL = 32,
    DT_KIND_THINK = 64,     /* <think> or </think> in an answer */
    DT_KIND_MARKS = 128,    /* the same in other messages */
    DT_KIND_THOUGHTS = 256, /* an answer with thoughts in a separate field */
    DT_KIND_NAME = 512,     /* a question or an answer with a field `name` */
    DT_KIND_SYSTEM_NAME = 1024,
    DT_KIND_TOOL_NAME = 2048
};
/** Kinds of message i in a conversation of n messages, as a bit mask. */
unsigned dt_chat_kinds(const dt_message *messages, int i, int n, unsigned flags);
/** DT_ERR_DATA: a message of the conversation has a refused kind, named in the error. */
dt_err dt_chat_check_kinds(const dt_chat *c, const dt_message *messages, int n, unsigned flags);

/** Location of the tokenizer's files, for messages. */
const char *dt_chat_place(const dt_tokenizer *t);
/** Open a template by name, JSON text or JSON file. */
dt_err dt_chat_open_named(dt_chat **out, const char *name, const dt_tokenizer *t);
/** The template equivalent to the tokenizer's own one (recognise.c). DT_ERR_USAGE: none; shows where the
 *  closest one differs. */
dt_err dt_chat_recognise(dt_chat **out, const dt_tokenizer *t);

/** True if a Jinja text starts like those of dt_chat_jinja, ignoring white space. */
bool dt_chat_jinja_claims(const char *jinja);
/** Template named in a Jinja file of dt_chat_jinja, in the form that dt_chat_open takes, malloc'ed. NULL:
 *  not such a file. Trust it only if exporting that template reproduces the file. */
char *dt_chat_jinja_spec(const char *jinja);
/** Image placeholder in such a file, malloc'ed. NULL: no images. */
char *dt_chat_jinja_image(const char *jinja);

#endif
