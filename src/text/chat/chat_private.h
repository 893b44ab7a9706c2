/* chat_private.h - a template that has met its tokenizer: what chat.c renders from, and jinja.c writes out. */
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
    dt_parts begin, think_off;
    dt_turn_parts turns[DT_N_ROLES];
    dt_wrap wrap;
    char missing[256]; /* tokens that the tokenizer has not */
    bool wrapped;      /* BOS comes from the tokenizer */
};

/** The length of a text without white space at its end, as Python's str.rstrip has it. */
size_t dt_chat_trimmed(const char *text, size_t nbytes);

/** Does a Jinja text begin as those of dt_chat_jinja do, but for blanks? */
bool dt_chat_jinja_claims(const char *jinja);
/** The template that a Jinja file of dt_chat_jinja says it was written from, as dt_chat_open takes it, malloc'ed. NULL:
 *  it is none of these. What it says is to be believed only where writing that template gives the same file. */
char *dt_chat_jinja_spec(const char *jinja);
/** What stands for an image in such a file, malloc'ed. NULL: it knows no images. */
char *dt_chat_jinja_image(const char *jinja);

#endif
