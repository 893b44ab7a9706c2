/* serve.h - shared declarations of dtrain-generate --serve. Rank 0 has the clients; every rank has the sequences.
 *
 * A request is a job with one or more choices. Two threads of rank 0 work on it: the HTTP server's parses and encodes
 * it (serve.c), then the main thread, which runs the model, owns it (serve_queue.c, serve_live.c) and writes its answer
 * (serve_answer.c). */
#ifndef DTRAIN_MAIN_GENERATE_SERVE_H
#define DTRAIN_MAIN_GENERATE_SERVE_H

#include "generate_app.h"
#include "dtrain/serve/http.h"
#include "dtrain/serve/request.h"
#include "dtrain/text/utf8.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct job job;
typedef struct server server;

/* A completion of a prompt. */
typedef struct choice {
    job *of;
    struct choice *next; /* in the queue */
    int index;
    dt_sequence s;     /* prompt and completion; logps NULL: not wanted */
    int32_t n_dropped; /* new tokens that were only computed for the prompt's log-probabilities */
    /* the text of the completion: tokens first .. read - 1 and earlier ones are whole; of the text of tokens first ..
     * n_ids - 1, `shown` bytes are in text */
    dt_text text;
    int32_t first, read;
    size_t shown, sent; /* sent: bytes of text that were streamed */
    int32_t n_streamed; /* tokens whose log-probabilities were streamed */
    int64_t offset;     /* characters of these tokens */
    const char *finish; /* finish_reason; NULL: runs or waits */
    int live;           /* index of its sequence on the ranks; -1: none */
} choice;

struct job {
    job *next;
    dt_exchange *x;
    dt_api_request r;
    const char *stop[DT_MAX_REQUEST_STOPS + DT_MAX_STOPS]; /* of the request and of the server */
    int n_stop;
    dt_prompts prompts;
    choice *choices;
    int n_choices, n_left; /* n_left: those that have not finished */
    image_list images;     /* of a conversation */
    char id[48];
    int64_t created, n_prompt_tok;
    double since_s, end_s; /* end_s: it is given up */
    bool answered, failed, begun;
};

/* A sequence on all ranks; one of them, its owner, runs it. */
typedef struct live {
    bool used, leaves, begun, prompt_read;
    int owner;
    dt_choice how;
    dt_sequence seq;
    image_list images; /* at its owner */
    choice *of;        /* rank 0 */
} live;

struct server {
    app *a;
    int32_t max_len, n_slots;
    live *live; /* [n_live] */
    int n_live;
    dt_feed feed;
    uint64_t *event; /* [n_live, width] of the last pass: serve_live.c */
    bool over;
    double stop_s; /* when a stop was requested; 0: not */

    /* rank 0 */
    dt_http *http;
    int32_t turn; /* token that ends an answer in a conversation; -1: none */
    bool can_chat;
    char *keys;
    size_t n_keys;
    double begin_s, checked_s, told_s;
    job *jobs;     /* that are not answered */
    choice *queue; /* without a sequence, in order */
    pthread_mutex_t lock;
    pthread_cond_t arrival;
    job *arrived; /* with the lock, in reverse order */
    atomic_int n_waiting, n_running;
    _Atomic uint64_t n_requests, n_answers[6], n_prompt_tok, n_new_tok, n_passes, n_cut, next_number;
    _Atomic uint64_t answer_us, first_us, n_first;
};

/* serve_queue.c: rank 0, main thread */
/** Take new jobs, give up those whose client is gone or whose time is over, and start what can run: appends to the
 *  message to all ranks. May wait, if nothing runs. */
dt_err serve_queue_turn(server *s, bool idle, dt_text *message);
/** A token of a choice, and its list. Returns true if the choice has now ended although its sequence has not. */
bool serve_queue_token(server *s, choice *c, int32_t token, double logp, dt_finish finish, const uint64_t *top);
void serve_queue_close(server *s);

/* serve_live.c: all ranks */
dt_err serve_live_open(server *s);
void serve_live_close(server *s);
dt_err serve_live_on_pass(void *ctx);
/** Allocate a sequence's arrays; logps: with those of log-probabilities. Free them: leaves NULL. */
dt_err serve_sequence_alloc(dt_sequence *q, bool logps);
void serve_sequence_free(dt_sequence *q);
dt_err serve_live_on_token(void *ctx, dt_sequence *q);
dt_err serve_live_image(void *ctx, const dt_sequence *q, int32_t k, uint8_t *pixels, uint32_t *grid);
/** Append to the message: a choice begins at a rank that has room; false: none has. A sequence ends. */
bool serve_live_begin(server *s, choice *c, dt_text *message);
void serve_live_cancel(server *s, choice *c, dt_text *message);

/* serve_answer.c: rank 0 */
void serve_job_free(job *j);
/** Answer with OpenAI's form of an error. param, code: may be NULL. */
void serve_refuse(server *s, dt_exchange *x, int status, const char *param, const char *code, const char *message);
/** The text of a choice has grown. last: nothing follows. Returns true at a stop text, before which the text ends. */
bool serve_text_grow(const app *a, choice *c, bool last);
/** Stream what is new in a choice. */
void serve_stream(server *s, choice *c);
/** Answer a job whose choices have all finished. */
void serve_answer(server *s, job *j);

#endif
