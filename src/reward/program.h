/* program.h - a user's program that scores completions or is an environment: a long-lived process that reads one line
 * per request and answers with one line. Private to src/reward.
 *
 * It is started without fork(2), has its own process group and inherits no descriptors. It always ends with this
 * process. A guard process (a shell) waits on a pipe that closes with this process, and then kills the group. Requests
 * and answers use non-blocking I/O, so full pipes on both sides cannot deadlock. */
#ifndef DTRAIN_REWARD_PROGRAM_H
#define DTRAIN_REWARD_PROGRAM_H

#include "dtrain/core/core.h"
#include <poll.h>
#include <sys/types.h>
#include <wordexp.h>

enum { DT_PROGRAM_TAIL = 1024, DT_PROGRAM_LINE = 1 << 16 }; /* bytes of its last lines in a message; of an answer */

typedef struct dt_program_line {
    char *text;
    size_t n, n_alloc;
} dt_program_line;

/** Take an answer. what: out, "" before: why it is invalid, for the error. DT_ERR_MEMORY. */
typedef struct dt_complaint {
    char text[200];
} dt_complaint;
typedef dt_err (*dt_answer_fn)(void *self, const char *line, dt_complaint *what);

/** Initialise to {0}. */
typedef struct dt_program {
    char *command; /* as the user wrote it */
    wordexp_t words;
    bool parsed;
    char name[64]; /* short name, for metrics and messages */

    pid_t pid, guard;         /* 0: none */
    int input, output, error; /* this process's ends of the three pipes; -1: closed */
    int life;                 /* the guard's pipe */
    dt_program_line request;  /* being written */
    size_t written;
    dt_program_line answer, remark; /* incomplete lines of its output and of its error output */
    char tail[DT_PROGRAM_TAIL];
    size_t n_tail;
    int64_t n, n_asked, n_answered; /* counts for the current completions */
    double *reward;                 /* destination of the first answer; the others follow at distance `stride` */
    int stride;
    dt_answer_fn take; /* takes the answers instead; NULL: none */
    void *taker;       /* its argument */
    double since_s;    /* time of the last answer, or of the start */
} dt_program;

/** "PROGRAM ARGS", split into words like a shell does (quotes, ~, $NAME; no command substitution). Local. DT_ERR_USAGE:
 *  invalid words or, if look is set, no such executable program. */
dt_err dt_program_open(dt_program *p, const char *command, bool look);
/** Start it, with DTRAIN_RANK, DTRAIN_NRANKS and DTRAIN_LOCAL_RANK in its environment and without the launcher's
 *  variables. Local. DT_ERR_FAULT. */
dt_err dt_program_start(dt_program *p, int rank, int nranks, int local_rank);
/** End it: closes its input, and kills the rest of its group after 2 s. Safe on {0} and after an error. */
void dt_program_close(dt_program *p);

/** The k-th request as one line without a newline, malloc'ed. */
typedef dt_err (*dt_request_fn)(void *self, int64_t k, char **line);
/** Start scoring n completions. Answer k is stored in reward[k * stride], NaN for null. */
void dt_program_begin(dt_program *p, int64_t n, double *reward, int stride);
/** Add a request after dt_program_begin of 0; its answer and those of earlier ones are passed to `take`, each once. */
void dt_program_add(dt_program *p, dt_answer_fn take, void *taker);
/** Write and read without blocking. *done: all n answers have arrived. DT_ERR_DATA with its last lines: it has exited,
 *  gave no answer for timeout_s seconds, or gave an invalid or unexpected answer. */
dt_err dt_program_go_on(dt_program *p, dt_request_fn request, void *self, double timeout_s, bool *done);
/** The descriptors that go_on waits for: at most 3. Returns their number. */
int dt_program_waits_for(const dt_program *p, struct pollfd *fds);

#endif
