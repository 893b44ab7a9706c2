/* program.h - a user's program that scores completions: a long-lived process that reads one line per completion and
 * answers with one line. Private to src/reward.
 *
 * It is started without fork(2), has its own process group and inherits no descriptors. It does not outlive this
 * process, however that ends: a guard, a shell, waits on a pipe that closes with this process and then ends the group.
 * Requests are written and answers read without blocking, so full pipes on both sides cannot deadlock. */
#ifndef DTRAIN_REWARD_PROGRAM_H
#define DTRAIN_REWARD_PROGRAM_H

#include "dtrain/core/core.h"
#include <poll.h>
#include <sys/types.h>
#include <wordexp.h>

enum { DT_PROGRAM_TAIL = 1024 }; /* bytes of its last lines that a message shows */

typedef struct dt_program_line {
    char *text;
    size_t n, n_alloc;
} dt_program_line;

/** {0} to start from. */
typedef struct dt_program {
    char *command; /* as the user wrote it */
    wordexp_t words;
    bool parsed;
    char name[64]; /* of the program, for metrics and messages */

    pid_t pid, guard;         /* 0: none */
    int input, output, error; /* its ends of the three, here; -1: closed */
    int life;                 /* the pipe on which the guard waits */
    dt_program_line request;  /* being written */
    size_t written;
    dt_program_line answer, remark; /* a line of its output, of its error output, that is not complete */
    char tail[DT_PROGRAM_TAIL];
    size_t n_tail;
    int64_t n, n_asked, n_answered; /* of the completions under way */
    double *reward;                 /* where the answer to the first goes, and the next `stride` further on */
    int stride;
    double since_s; /* of the last answer, or of the beginning */
} dt_program;

/** "PROGRAM ARGS", split into words as by a shell (quotes, ~, $NAME; no commands). Local. DT_ERR_USAGE: invalid words
 *  or, with look, no such executable program. */
dt_err dt_program_open(dt_program *p, const char *command, bool look);
/** Start it, with DTRAIN_RANK, DTRAIN_NRANKS and DTRAIN_LOCAL_RANK in its environment and without the launcher's
 *  variables. Local. DT_ERR_FAULT. */
dt_err dt_program_start(dt_program *p, int rank, int nranks, int local_rank);
/** End it: closes its input, and kills the rest of its group after 2 s. Safe on {0} and after an error. */
void dt_program_close(dt_program *p);

/** The k-th request as one line without a newline, malloc'ed. */
typedef dt_err (*dt_request_fn)(void *self, int64_t k, char **line);
/** n completions are to be judged: answer k goes to reward[k * stride], NaN for null. */
void dt_program_begin(dt_program *p, int64_t n, double *reward, int stride);
/** Write and read what goes without waiting. *done: all n answers are there.
 *  DT_ERR_DATA with its last lines: it has ended, gave no answer for timeout_s seconds, or answered something else, or
 *  unasked. */
dt_err dt_program_go_on(dt_program *p, dt_request_fn request, void *self, double timeout_s, bool *done);
/** What go_on would wait for: at most 3. Returns how many. */
int dt_program_waits_for(const dt_program *p, struct pollfd *fds);

#endif
