/* line.h - line input: with editing and a history if the program was built with libedit, otherwise plain. */
#ifndef DTRAIN_MAIN_GENERATE_LINE_H
#define DTRAIN_MAIN_GENERATE_LINE_H

#include "dtrain/core/core.h"
#include <signal.h>

typedef struct line_reader line_reader;

/** terminal true: line editing with a prompt, which colours makes coloured. terminal false: plain lines of
 *  standard input, without a prompt. interrupted: set by the handler of SIGINT, cleared here at the start
 *  of a line. */
dt_err line_open(line_reader **l, bool terminal, bool colours, volatile sig_atomic_t *interrupted);
/** Read the next line without its end, malloc'ed; NULL at the end of input. *interrupted: a signal arrived
 *  instead (also NULL). more: the line continues an earlier one. */
char *line_read(line_reader *l, bool more, bool *interrupted);
/** Add a complete message to the history. */
void line_remember(line_reader *l, const char *text);
void line_close(line_reader *l); /* NULL is fine */

#endif
