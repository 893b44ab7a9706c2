/* http.h - an HTTP/1.1 server on libmicrohttpd, in one thread of its own. It reads whole requests and sends whole or
 * streamed answers. What is asked and answered is the caller's (src/main/generate/serve.c). Every function is Local. */
#ifndef DTRAIN_HTTP_H
#define DTRAIN_HTTP_H

#include "dtrain/core/core.h"

typedef struct dt_http dt_http;
/** A request and its answer. Owned by the server until the answer was ended and sent. */
typedef struct dt_exchange dt_exchange;

/** A request, during the call of handle. */
typedef struct dt_http_request {
    const char *method, *path;
    const char *authorization; /* the header; NULL: none */
    const char *body;
    size_t nbytes;
} dt_http_request;

typedef struct dt_http_options {
    const char *address; /* HOST:PORT, [HOST]:PORT or PORT, which is on the loopback interface; port 0: any free one */
    size_t max_body;     /* larger bodies are answered with 413 */
    int max_connections; /* others wait until one is closed */
    /* a connection is closed if it has no whole request after this time, or accepts nothing of its answer */
    double patience_s;
    /* called by the server's thread for each request. The answer may be given during the call or later */
    void (*handle)(void *ctx, dt_exchange *x, const dt_http_request *r);
    void *ctx;
} dt_http_options;

/** DT_ERR_USAGE: this build has no libmicrohttpd. */
dt_err dt_http_available(void);
/** Listen. h: out, closed with dt_http_close; NULL on error. DT_ERR_USAGE: this build has no libmicrohttpd, or the
 *  address is not one of this host, or in use. DT_ERR_MEMORY, DT_ERR_FAULT. */
dt_err dt_http_open(dt_http **h, const dt_http_options *opt);
/** The address in use, HOST:PORT. Borrowed. */
const char *dt_http_address(const dt_http *h);
/** Close connections that have been silent too long, and find those that the client has closed. To be called about four
 *  times a second, by any thread. */
void dt_http_check(dt_http *h);
/** Accept no more connections, and answer new requests with 503. */
void dt_http_quiesce(dt_http *h);
/** Are there answers that are not yet sent? */
bool dt_http_busy(dt_http *h);
/** Cut off what is not yet sent, and free the server. Safe on NULL. */
void dt_http_close(dt_http *h);

/* Answers: by any thread, and only by one that holds the exchange. After dt_exchange_end it must not be used. */

/** Begin an answer. status: of HTTP. type: Content-Type; a literal. streamed: parts are sent when they are appended. */
void dt_exchange_begin(dt_exchange *x, int status, const char *type, bool streamed);
/** Append to the answer. */
void dt_exchange_append(dt_exchange *x, const void *bytes, size_t n);
/** End the answer. */
void dt_exchange_end(dt_exchange *x);
/** Has the client closed the connection? */
bool dt_exchange_is_gone(dt_exchange *x);

#endif
