/* line.h - line input: with editing and a history if the program was built with libedit, otherwise plain. */
#ifndef DTRAIN_MAIN_GENERATE_LINE_H
#define DTRAIN_MAIN_GENERATE_LINE_H

#include "dtrain/core/core.h"
#include <signal.h>

typedef struct line_reader line_reader;

/** On a terminal: edited, with a prompt. terminal false: lines of standard input as they are, without a prompt.
 *  colours: of the prompt. interrupted: set by the handler of SIGINT, cleared here when a line begins. */
dt_err line_open(line_reader **l, bool terminal, bool colours, volatile sig_atomic_t *interrupted);
/** The next line without its end, malloc'ed; NULL at the end of input. *interrupted: a signal came instead (also NULL).
 *  more: the line continues an earlier one. */
char *line_read(line_reader *l, bool more, bool *interrupted);
/** Adds a whole message to the history. */
void line_remember(line_reader *l, const char *text);
void line_close(line_reader *l); /* NULL is fine */

#endif
