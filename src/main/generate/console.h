/* console.h - interactive input of --chat: messages of several lines, and commands. */
#ifndef DTRAIN_MAIN_GENERATE_CONSOLE_H
#define DTRAIN_MAIN_GENERATE_CONSOLE_H

#include "dtrain/chat/chat.h"
#include "line.h"

typedef enum console_action {
    CONSOLE_EXIT,   /* end of input, or /exit */
    CONSOLE_SAY,    /* text: a message */
    CONSOLE_IMAGE,  /* text: file of an image for the next message */
    CONSOLE_CLEAR,  /* start a new conversation */
    CONSOLE_SYSTEM, /* start a new conversation with text as system message ("": none) */
} console_action;

typedef struct console {
    line_reader *lines;
    bool terminal; /* else each line is a message, and there are no commands */
    bool colours;
} console;

/** Detect a terminal, and whether it supports colours. NO_COLOR (https://no-color.org) and TERM=dumb disable them. */
dt_err console_open(console *c, volatile sig_atomic_t *interrupted); /* interrupted: see line_open */
/** On rank 0: read the next action. *text is malloc'ed (NULL for EXIT and CLEAR). Commands that involve no
 *  other rank (/help, /save) are handled here. Ctrl-C discards the line being typed. */
dt_err console_next(console *c, const dt_messages *said, console_action *action, char **text);
/** Print a remark of the program, as opposed to the model; only on a terminal. */
void console_note(const console *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void console_close(console *c);

#endif
