/* tool.h - common code of the programs: start-up, options, version and exit. */
#ifndef DTRAIN_MAIN_TOOL_H
#define DTRAIN_MAIN_TOOL_H

#include <getopt.h>

#include "dtrain/core/core.h"

/** First thing in main. Messages begin with NAME from here on. A file size limit is then an error of write(2), and so
 *  is a reader of standard output that has left: neither ends the program by a signal in the middle of its work. */
void tool_start(const char *name);

/** For programs that compute, before MPI and the first parallel loop: idle threads spin briefly, then release their
 *  core. Settings of the user (OMP_WAIT_POLICY, GOMP_SPINCOUNT, KMP_BLOCKTIME) take precedence. May execute the program
 *  again. */
void tool_wait_fairly(char **argv);

/** Last call in main, on the rank that reports: flushes standard output and prints the error message, if any. Returns
 *  the exit code. A reader that has closed the pipe (`... | head -1`) is not an error. */
int tool_end(dt_err err);

/** The rows that every program has in its table of long options, and their letters for getopt's short ones. */
#define TOOL_OPTIONS                                                                                                   \
    {"help", no_argument, NULL, 'h'}, { "version", no_argument, NULL, 'V' }
#define TOOL_LETTERS "hV"

/** getopt_long with messages. shorts begins with ':'. *which: the result of getopt_long, -1 after the last option; *at:
 *  the row of `longs`, -1 for a letter. DT_ERR_USAGE naming the option: unknown, ambiguous, with an unexpected value,
 *  or without a required one. */
dt_err tool_option(int argc, char **argv, const char *shorts, const struct option *longs, int *which, int *at);

/** A whole number from low to high, a finite one, and one from low to high. name: the option's, without dashes.
 *  DT_ERR_USAGE. */
dt_err tool_parse_int(const char *name, const char *text, int64_t low, int64_t high, int64_t *value);
dt_err tool_parse_real(const char *name, const char *text, double *value);
dt_err tool_parse_between(const char *name, const char *text, double low, double high, double *value);
dt_err tool_parse_bytes(const char *name, const char *text, uint64_t *nbytes); /* above 0; units as in dt_parse_bytes */

/** Version, commit, compiler and its flags, devices and libraries, on standard output. */
void tool_print_version(void);
/** Print the help, the version, or both, as they are asked for; false: neither is, and there is work to do. */
bool tool_answers(bool help, const char *usage, bool version);

#endif
