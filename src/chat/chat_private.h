/* chat_private.h - a template that has met its tokenizer: what chat.c renders from, and write_jinja.c writes out. */
#ifndef DTRAIN_TEXT_CHAT_PRIVATE_H
#define DTRAIN_TEXT_CHAT_PRIVATE_H

#include "chat_template.h"

/* A text of the template, cut at the tokens that the tokenizer has. */
typedef struct dt_parts {
    dt_span *span;
    int n;
} dt_parts;

typedef struct dt_turn_parts {
    dt_parts prefix, lead, end, after, open, close;
} dt_turn_parts;

struct dt_chat {
    dt_chat_template form;
    json_t *root; /* owns the texts of a form that was read */
    const dt_tokenizer *tokenizer;
    dt_parts begin, think_off, generation;
    dt_turn_parts turns[DT_N_ROLES];
    dt_wrap wrap;
    char missing[256]; /* tokens that the tokenizer has not */
    bool writes_bos;   /* the template has {bos} at its beginning */
    bool wrapped;      /* the tokenizer puts its BOS before the text */
    unsigned refused;  /* kinds of messages that the tokenizer's own template writes otherwise */
    bool dated;        /* the tokenizer's own template writes the current date */
    char *source;      /* dt_chat_source */
};

/** Kinds of messages that templates treat in different ways. */
enum {
    DT_KIND_SYSTEM = 1,
    DT_KIND_EMPTY_SYSTEM = 2,
    DT_KIND_LATER_SYSTEM = 4, /* a system message that is not the first message */
    DT_KIND_DEVELOPER = 8,
    DT_KIND_ROW = 16, /* roles that do not alternate: two questions or answers in a row, an answer first */
    DT_KIND_TOOL = 32,
    DT_KIND_THINK = 64,     /* <think> or </think> in an answer */
    DT_KIND_MARKS = 128,    /* the same in another message */
    DT_KIND_THOUGHTS = 256, /* an answer's thoughts in a field of their own */
    DT_KIND_NAME = 512,     /* a question or an answer with a field `name` */
    DT_KIND_SYSTEM_NAME = 1024,
    DT_KIND_TOOL_NAME = 2048
};
/** The kinds of message i of a conversation of n. */
unsigned dt_chat_kinds(const dt_message *messages, int i, int n, unsigned flags);
/** DT_ERR_DATA: a conversation has a message of a refused kind; names it. */
dt_err dt_chat_check_kinds(const dt_chat *c, const dt_message *messages, int n, unsigned flags);

/** Where the tokenizer's files are, for messages. */
const char *dt_chat_place(const dt_tokenizer *t);
/** Open a template by name, JSON text or JSON file. */
dt_err dt_chat_open_named(dt_chat **out, const char *name, const dt_tokenizer *t);
/** The template that writes what the tokenizer's own writes (recognise.c). DT_ERR_USAGE: none does; says where the
 *  nearest differs. */
dt_err dt_chat_recognise(dt_chat **out, const dt_tokenizer *t);

/** Does a Jinja text begin as those of dt_chat_jinja do, but for blanks? */
bool dt_chat_jinja_claims(const char *jinja);
/** The template that a Jinja file of dt_chat_jinja says it was written from, as dt_chat_open takes it, malloc'ed. NULL:
 *  it is none of these. What it says is to be believed only where writing that template gives the same file. */
char *dt_chat_jinja_spec(const char *jinja);
/** What stands for an image in such a file, malloc'ed. NULL: it knows no images. */
char *dt_chat_jinja_image(const char *jinja);

#endif
