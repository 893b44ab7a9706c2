/* tool.h - common code of the programs: start-up, options, version and exit. */
#ifndef DTRAIN_MAIN_TOOL_H
#define DTRAIN_MAIN_TOOL_H

#include <getopt.h>

#include "dtrain/core/core.h"

/** Must be the first call in main. Later messages begin with NAME. SIGXFSZ and SIGPIPE are ignored:
 *  a file size limit or a closed pipe becomes an error of write(2) instead of killing the program. */
void tool_start(const char *name);

/** For programs that compute; call before MPI and the first parallel loop. Idle threads then spin briefly
 *  and release their core. User settings (OMP_WAIT_POLICY, GOMP_SPINCOUNT, KMP_BLOCKTIME) take precedence.
 *  May execute the program again. */
void tool_wait_fairly(char **argv);

/** Must be the last call in main, on the rank that reports. Flushes standard output and prints the error
 *  message, if any. Returns the exit code. A reader that closed the pipe (`... | head -1`) is not an
 *  error. */
int tool_end(dt_err err);

/** Rows for every program's table of long options, and the matching letters for getopt's short options. */
#define TOOL_OPTIONS                                                                                                   \
    {"help", no_argument, NULL, 'h'}, { "version", no_argument, NULL, 'V' }
#define TOOL_LETTERS "hV"

/** getopt_long with error messages. shorts must begin with ':'. *which: the result of getopt_long, -1
 *  after the last option. *at: the row of `longs`, -1 for a short option. DT_ERR_USAGE names the option:
 *  unknown, ambiguous, with an unexpected value, or without a required one. */
dt_err tool_option(int argc, char **argv, const char *shorts, const struct option *longs, int *which, int *at);

/** Parse an integer from low to high, a finite number, or a number from low to high. name: of the option,
 *  without dashes. DT_ERR_USAGE. */
dt_err tool_parse_int(const char *name, const char *text, int64_t low, int64_t high, int64_t *value);
dt_err tool_parse_real(const char *name, const char *text, double *value);
dt_err tool_parse_between(const char *name, const char *text, double low, double high, double *value);
/* positive; units as in dt_parse_bytes */
dt_err tool_parse_bytes(const char *name, const char *text, uint64_t *nbytes);

/** Print version, commit, compiler and flags, devices and libraries on standard output. */
void tool_print_version(void);
/** Print the help and the version if requested. false: neither was requested. */
bool tool_answers(bool help, const char *usage, bool version);

#endif
