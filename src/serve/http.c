/* http.c - see http.h. libmicrohttpd reads and writes in its own thread. A request that waits for its answer is
 * suspended: libmicrohttpd then ignores its connection, so dt_http_check asks the socket whether the client is still
 * there. It also bounds the time to read a request as a whole, because a timeout between bytes lets a client send one
 * byte at a time. */
#include "dtrain/serve/http.h"
#include "dtrain/text/utf8.h"

#include <string.h>

#ifdef DT_HAVE_LIBMICROHTTPD
#include <microhttpd.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PART = 16384, BACKLOG = 128 };

/* A TCP connection. */
typedef struct tcp {
    struct tcp *next, **before;
    dt_exchange *x; /* its request; NULL: none is complete */
    int fd;
    double since_s; /* start of the wait for a request */
    bool cut;
} tcp;

struct dt_exchange {
    dt_http *http;
    tcp *link; /* NULL: the connection is closed */
    struct MHD_Connection *connection;
    dt_text body, out;
    size_t n_sent;
    const char *type;
    int status; /* 0: not begun */
    bool too_large, ambiguous, asked, suspended, streamed, ended, gone;
    int holders; /* libmicrohttpd, and from `asked` to `ended` the caller */
};

struct dt_http {
    dt_http_options opt;
    struct MHD_Daemon *daemon;
    pthread_mutex_t lock; /* of links and exchanges */
    tcp *links;
    int fd;
    char address[300];
    bool quiet;
};

static void lock(dt_http *h) { pthread_mutex_lock(&h->lock); }
static void unlock(dt_http *h) { pthread_mutex_unlock(&h->lock); }

/* ---- exchanges --------------------------------------------------------------------------------------------------- */

/* With the lock. */
static void release(dt_exchange *x)
{
    if (--x->holders > 0) return;
    dt_text_free(&x->body);
    dt_text_free(&x->out);
    free(x);
}

static void suspend(dt_exchange *x)
{
    x->suspended = true;
    MHD_suspend_connection(x->connection);
}

static void wake(dt_exchange *x)
{
    if (!x->suspended) return;
    x->suspended = false;
    MHD_resume_connection(x->connection);
}

void dt_exchange_begin(dt_exchange *x, int status, const char *type, bool streamed)
{
    dt_http *h = x->http;
    lock(h);
    x->status = status, x->type = type, x->streamed = streamed;
    if (streamed) wake(x);
    unlock(h);
}

void dt_exchange_append(dt_exchange *x, const void *bytes, size_t n)
{
    dt_http *h = x->http;
    lock(h);
    dt_text_append(&x->out, bytes, n);
    if (x->streamed) wake(x);
    unlock(h);
}

void dt_exchange_end(dt_exchange *x)
{
    dt_http *h = x->http;
    lock(h);
    x->ended = true;
    wake(x);
    release(x);
    unlock(h);
}

bool dt_exchange_is_gone(dt_exchange *x)
{
    dt_http *h = x->http;
    lock(h);
    const bool gone = x->gone;
    unlock(h);
    return gone;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static ssize_t send_part(void *self, uint64_t at, char *to, size_t max)
{
    dt_exchange *x = self;
    dt_http *h = x->http;
    (void)at;
    lock(h);
    ssize_t n = (ssize_t)dt_min_size(x->out.n - x->n_sent, max);
    if (n > 0) {
        memcpy(to, x->out.bytes + x->n_sent, (size_t)n);
        x->n_sent += (size_t)n;
        if (x->n_sent == x->out.n) x->n_sent = x->out.n = 0;
    } else if (x->ended) {
        n = x->out.failed ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        suspend(x);
    }
    unlock(h);
    return n;
}

/* Headers that belong to a status. */
static void add_headers(struct MHD_Response *r, const dt_exchange *x)
{
    static const struct {
        int status;
        const char *name, *value;
    } headers[] = {{401, "WWW-Authenticate", "Bearer"}, {429, "Retry-After", "1"}, {503, "Retry-After", "1"}};
    MHD_add_response_header(r, "Content-Type", x->type);
    if (x->streamed) MHD_add_response_header(r, "Cache-Control", "no-cache");
    if (x->ambiguous) MHD_add_response_header(r, "Connection", "close");
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++)
        if (headers[i].status == x->status) MHD_add_response_header(r, headers[i].name, headers[i].value);
}

/* With the lock. */
static enum MHD_Result send_answer(dt_exchange *x)
{
    struct MHD_Response *r = x->streamed
                                 ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, PART, send_part, x, NULL)
                                 : MHD_create_response_from_buffer(x->out.n, x->out.bytes, MHD_RESPMEM_MUST_COPY);
    if (!r || x->out.failed) return MHD_NO;
    add_headers(r, x);
    const enum MHD_Result queued = MHD_queue_response(x->connection, (unsigned)x->status, r);
    MHD_destroy_response(r);
    return queued;
}

static void refuse(dt_exchange *x, int status, const char *why)
{
    x->status = status, x->type = "application/json", x->ended = true;
    dt_text_printf(&x->out, "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,\"code\":null}}", why,
                   status == 503 ? "server_error" : "invalid_request_error");
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* Of a request with two lengths, a proxy and libmicrohttpd may take different parts for the body. */
static enum MHD_Result count_length(void *self, enum MHD_ValueKind kind, const char *name, const char *value)
{
    (void)kind, (void)value;
    *(int *)self += strcasecmp(name, "Content-Length") == 0 || strcasecmp(name, "Transfer-Encoding") == 0;
    return MHD_YES;
}

static dt_exchange *begin(dt_http *h, struct MHD_Connection *connection)
{
    const char *length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Length");
    dt_exchange *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    x->http = h, x->connection = connection, x->holders = 1;
    x->link = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    x->too_large = length && strtoull(length, NULL, 10) > h->opt.max_body;
    int n_lengths = 0;
    MHD_get_connection_values(connection, MHD_HEADER_KIND, count_length, &n_lengths);
    x->ambiguous = n_lengths > 1;
    return x;
}

static void take_body(dt_exchange *x, const char *data, size_t n)
{
    x->too_large |= n > x->http->opt.max_body - x->body.n;
    if (!x->too_large) dt_text_append(&x->body, data, n);
}

/* The request is complete. The caller's answer may come from another thread before handle returns. */
static void ask(dt_exchange *x, const char *method, const char *path)
{
    dt_http *h = x->http;
    lock(h);
    x->asked = true;
    if (x->link) x->link->x = x;
    dt_text_append(&x->body, "", 0);
    if (x->body.failed)
        refuse(x, 503, "out of memory");
    else if (h->quiet)
        refuse(x, 503, "the server is shutting down");
    const bool refused = x->ended;
    x->holders += !refused;
    unlock(h);
    if (refused) return;
    const dt_http_request r = {.method = method,
                               .path = path,
                               .authorization =
                                   MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Authorization"),
                               .body = x->body.bytes ? x->body.bytes : "",
                               .nbytes = x->body.n};
    h->opt.handle(h->opt.ctx, x, &r);
}

static enum MHD_Result on_request(void *self, struct MHD_Connection *connection, const char *path, const char *method,
                                  const char *version, const char *data, size_t *n, void **of_request)
{
    dt_http *h = self;
    dt_exchange *x = *of_request;
    (void)version;
    if (!x) {
        if (!(x = *of_request = begin(h, connection))) return MHD_NO;
        if (!x->too_large && !x->ambiguous) return MHD_YES;
    } else if (*n > 0) {
        take_body(x, data, *n);
        *n = 0;
        return MHD_YES;
    }
    if (x->ambiguous && !x->asked) x->asked = true, refuse(x, 400, "expected one Content-Length or Transfer-Encoding");
    if (x->too_large && !x->asked) x->asked = true, refuse(x, 413, "the body is too large");
    if (!x->asked) ask(x, method, path);
    lock(h);
    enum MHD_Result result = MHD_YES;
    if (x->status && (x->ended || x->streamed))
        result = send_answer(x);
    else if (x->ended) /* cut off */
        result = MHD_NO;
    else
        suspend(x);
    unlock(h);
    return result;
}

static void on_completed(void *self, struct MHD_Connection *connection, void **of_request,
                         enum MHD_RequestTerminationCode why)
{
    dt_http *h = self;
    dt_exchange *x = *of_request;
    (void)connection, (void)why;
    if (!x) return;
    lock(h);
    if (x->link) x->link->x = NULL, x->link->since_s = dt_now_s();
    x->link = NULL;
    x->gone = true;
    *of_request = NULL;
    release(x);
    unlock(h);
}

static void on_connection(void *self, struct MHD_Connection *connection, void **of_socket,
                          enum MHD_ConnectionNotificationCode what)
{
    dt_http *h = self;
    tcp *l = *of_socket;
    lock(h);
    if (what == MHD_CONNECTION_NOTIFY_STARTED && (l = calloc(1, sizeof *l))) {
        l->fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        l->since_s = dt_now_s();
        l->next = h->links, l->before = &h->links;
        if (l->next) l->next->before = &l->next;
        h->links = *of_socket = l;
    } else if (what == MHD_CONNECTION_NOTIFY_CLOSED && l) {
        if ((*l->before = l->next)) l->next->before = l->before;
        if (l->x) l->x->link = NULL;
        free(l);
        *of_socket = NULL;
    }
    unlock(h);
}

void dt_http_check(dt_http *h)
{
    const double now_s = dt_now_s();
    lock(h);
    for (tcp *l = h->links; l; l = l->next) {
        struct pollfd p = {.fd = l->fd, .events = POLLRDHUP};
        if (l->x && !l->x->gone && poll(&p, 1, 0) > 0) l->x->gone = true;
        if (l->x || l->cut || now_s - l->since_s < h->opt.patience_s) continue;
        l->cut = true;
        shutdown(l->fd, SHUT_RDWR);
    }
    unlock(h);
}

/* ---- start and end ----------------------------------------------------------------------------------------------- */

/* Divide HOST:PORT. */
static dt_err divide(const char *address, char host[256], const char **port)
{
    const char *colon = strrchr(address, ':');
    size_t n = colon ? (size_t)(colon - address) : 0;
    const char *from = address;
    *port = colon ? colon + 1 : address;
    if (n >= 2 && from[0] == '[' && from[n - 1] == ']') from++, n -= 2;
    DT_CHECK(n < 256 && **port, DT_ERR_USAGE, "--serve: expected HOST:PORT, found '%.300s'", address);
    snprintf(host, 256, "%.*s", (int)n, from);
    if (!*host) strcpy(host, "127.0.0.1");
    return DT_OK;
}

static dt_err name_address(dt_http *h)
{
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    char host[256], port[16];
    DT_CHECK_ERRNO(getsockname(h->fd, (struct sockaddr *)&at, &n) == 0, DT_ERR_FAULT, h->opt.address, "no address");
    DT_CHECK(getnameinfo((struct sockaddr *)&at, n, host, sizeof host, port, sizeof port,
                         NI_NUMERICHOST | NI_NUMERICSERV) == 0,
             DT_ERR_FAULT, "--serve: the address of %s is unknown", h->opt.address);
    snprintf(h->address, sizeof h->address, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
    return DT_OK;
}

static dt_err bind_address(dt_http *h, bool *v6)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char host[256];
    const char *port;
    const int on = 1;
    DT_TRY(divide(h->opt.address, host, &port));
    const int failed = getaddrinfo(host, port, &hints, &list);
    DT_CHECK(failed == 0, DT_ERR_USAGE, "--serve: expected HOST:PORT, found '%.300s': %s", h->opt.address,
             gai_strerror(failed));
    const int family = list->ai_family;
    *v6 = AF_INET6 == family;
    h->fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = h->fd >= 0;
    ok = ok && setsockopt(h->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0;
    ok = ok && setsockopt(h->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) == 0;
    ok = ok && bind(h->fd, list->ai_addr, list->ai_addrlen) == 0 && listen(h->fd, BACKLOG) == 0;
    const int why = errno;
    freeaddrinfo(list);
    DT_CHECK(ok, DT_ERR_USAGE, "--serve: cannot listen on %.300s: %s", h->opt.address, strerror(why));
    return name_address(h);
}

dt_err dt_http_available(void) { return DT_OK; }

dt_err dt_http_open(dt_http **out, const dt_http_options *opt)
{
    bool v6 = false;
    dt_http *h = calloc(1, sizeof *h);
    *out = NULL;
    DT_CHECK(h, DT_ERR_MEMORY, "out of memory for the server");
    h->opt = *opt, h->fd = -1;
    pthread_mutex_init(&h->lock, NULL);
    dt_err err = bind_address(h, &v6);
    if (err == DT_OK) {
        const unsigned flags =
            MHD_USE_AUTO_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | (v6 ? MHD_USE_IPv6 : MHD_NO_FLAG);
        h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, h, MHD_OPTION_LISTEN_SOCKET, h->fd,
                                     MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_NOTIFY_CONNECTION,
                                     on_connection, h, MHD_OPTION_CONNECTION_LIMIT, (unsigned)opt->max_connections,
                                     MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)opt->patience_s + 1, MHD_OPTION_END);
        if (!h->daemon) err = dt_fail(DT_ERR_FAULT, "--serve: libmicrohttpd does not start on %s", h->address);
    }
    if (err == DT_OK)
        *out = h;
    else
        dt_http_close(h);
    return err;
}

const char *dt_http_address(const dt_http *h) { return h->address; }

void dt_http_quiesce(dt_http *h)
{
    const int fd = MHD_quiesce_daemon(h->daemon);
    lock(h);
    h->quiet = true;
    unlock(h);
    if (fd >= 0) close(fd);
    h->fd = -1;
}

bool dt_http_busy(dt_http *h)
{
    bool busy = false;
    lock(h);
    for (const tcp *l = h->links; l && !busy; l = l->next) busy = l->x && !l->x->gone;
    unlock(h);
    return busy;
}

void dt_http_close(dt_http *h)
{
    if (!h) return;
    lock(h);
    h->quiet = true;
    for (tcp *l = h->links; l; l = l->next) {
        if (!l->x) continue;
        l->x->ended = l->x->gone = true;
        wake(l->x);
    }
    unlock(h);
    if (h->daemon) MHD_stop_daemon(h->daemon);
    if (h->fd >= 0 && !h->daemon) close(h->fd);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

#else

dt_err dt_http_available(void)
{
    return dt_fail(DT_ERR_USAGE, "--serve: a server needs libmicrohttpd, and this program was built without it");
}
dt_err dt_http_open(dt_http **h, const dt_http_options *opt)
{
    *h = NULL;
    return dt_http_available();
}
const char *dt_http_address(const dt_http *h) { return ""; }
void dt_http_check(dt_http *h) {}
void dt_http_quiesce(dt_http *h) {}
bool dt_http_busy(dt_http *h) { return false; }
void dt_http_close(dt_http *h) {}
void dt_exchange_begin(dt_exchange *x, int status, const char *type, bool streamed) {}
void dt_exchange_append(dt_exchange *x, const void *bytes, size_t n) {}
void dt_exchange_end(dt_exchange *x) {}
bool dt_exchange_is_gone(dt_exchange *x) { return true; }

#endif
