/* tool.h - common code of the programs: start-up, options, version and exit. */
#ifndef DTRAIN_MAIN_TOOL_H
#define DTRAIN_MAIN_TOOL_H

#include "dtrain/core/core.h"
#include <getopt.h>

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

typedef enum tool_kind {
    TOOL_SET,    /* bool */
    TOOL_CLEAR,  /* bool */
    TOOL_STRING, /* const char * */
    TOOL_INT,    /* int, from low to high */
    TOOL_INT64,  /* int64_t or uint64_t, from low to high */
    TOOL_REAL,   /* double, from low to high; any if both are 0 */
    TOOL_BYTES,  /* int64_t or uint64_t, above 0; units as in dt_parse_bytes */
    TOOL_WORD,   /* an enum of int's size: low is the first of the words, which commas separate */
    TOOL_CALL
} tool_kind;

/** A row of a program's table of options, which ends with a row {0}. A row without a name is a heading of the help. */
typedef struct tool_row tool_row;
struct tool_row {
    const char *name, *value; /* long name; name of the value in the help, NULL: takes none */
    tool_kind kind;
    dt_err (*take)(void *options, const tool_row *row, char *text); /* of TOOL_CALL */
    size_t at;        /* where the value is stored in the program's options */
    const char *help; /* NULL: listed with the next row; "": not listed */
    double low, high;
    const char *words;
    size_t given; /* of a const char * that receives the option's name; 0: none */
    char letter;
    bool text; /* the value is not a path: a leading ~ or $ is not expanded */
};

/* TOOL_FIELD sets kind and at of a row from the type of a field. */
#define TOOL_NO_LIMIT 0x1p63 /* upper limit that allows any int64_t */
#define TOOL_FIELD(TYPE, FIELD)                                                                                        \
    .kind = _Generic(((TYPE *)0)->FIELD, bool                                                                          \
                     : TOOL_SET, const char *                                                                          \
                     : TOOL_STRING, int                                                                                \
                     : TOOL_INT, int64_t                                                                               \
                     : TOOL_INT64, uint64_t                                                                            \
                     : TOOL_INT64, double                                                                              \
                     : TOOL_REAL),                                                                                     \
    .at = offsetof(TYPE, FIELD)
#define TO(FIELD) TOOL_FIELD(options, FIELD)
#define CLEAR(FIELD) .kind = TOOL_CLEAR, .at = offsetof(options, FIELD)
#define BYTES(FIELD) .kind = TOOL_BYTES, .at = offsetof(options, FIELD)
#define WORD(FIELD)                                                                                                    \
    .kind = TOOL_WORD, .at = offsetof(options, FIELD) + 0 / (sizeof(((options *)0)->FIELD) == sizeof(int))
#define CALL(FUNCTION) .kind = TOOL_CALL, .take = FUNCTION, .at = 0
#define HEADING(TEXT) .help = TEXT
/** The last rows of every program. */
#define TOOL_ROWS                                                                                                      \
    {"help", NULL, TO(help), "print this text", .letter = 'h'},                                                        \
        {"version", NULL, TO(version), "print version, commit, build, devices and libraries", .letter = 'V'},          \
    {                                                                                                                  \
        0                                                                                                              \
    }

/** Store the options of a command line; optind is then the index of its first argument. DT_ERR_USAGE names the option:
 *  it is unknown (with the nearest one) or ambiguous, or its value is unexpected, missing or invalid. */
dt_err tool_parse(const tool_row *rows, void *options, int argc, char **argv);

/** Parse an integer from low to high. name: the option's, without dashes. DT_ERR_USAGE. */
dt_err tool_parse_int(const char *name, const char *text, int64_t low, int64_t high, int64_t *value);

/** Contents of --help: the head, one or more lines for each row, the notes, the exit codes. */
typedef struct tool_help {
    const char *head;
    const tool_row *rows;
    const char *notes;  /* NULL: none */
    void (*more)(void); /* prints further notes; NULL: none */
    unsigned codes;     /* bit mask of dt_err: errors of this program, in addition to those of every program */
} tool_help;

/** Print the help and the version if requested. false: neither was requested. */
bool tool_answers(const tool_help *what, bool help, bool version);

#endif
