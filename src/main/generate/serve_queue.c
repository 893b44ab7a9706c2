/* serve_queue.c - the requests of dtrain-generate --serve on rank 0: which run or wait, and when one is given up. */
#include "serve.h"
#include "dtrain/process/process.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOOKS_PER_S = 4 };

/* ---- the end of jobs --------------------------------------------------------------------------------------------- */

static void leave_queue(server *s, const choice *c)
{
    for (choice **at = &s->queue; *at; at = &(*at)->next) {
        if (*at != c) continue;
        *at = c->next;
        atomic_fetch_sub(&s->n_waiting, 1);
        return;
    }
}

/* Answer, or what can still be said to the client. */
static void finish_job(server *s, job *j)
{
    const double now_s = dt_now_s();
    j->answered = true;
    serve_answer(s, j);
    atomic_fetch_add(&s->answer_us, (uint64_t)(1e6 * (now_s - j->since_s)));
    atomic_fetch_sub(&s->n_running, 1);
}

static void give_up(server *s, job *j, const char *finish, dt_text *message)
{
    for (choice *c = j->choices; c < j->choices + j->n_choices; c++) {
        if (c->finish) continue;
        if (c->live >= 0)
            serve_live_cancel(s, c, message);
        else
            leave_queue(s, c);
        c->finish = finish;
        j->n_left--;
    }
    atomic_fetch_add(&s->n_cut, 1);
    j->failed = true;
    finish_job(s, j);
}

static void remove_answered(server *s)
{
    for (job **at = &s->jobs; *at;) {
        job *j = *at;
        if (!j->answered) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        serve_job_free(j);
    }
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

static void append(const server *s, choice *c, int32_t token, double logp, const uint64_t *top)
{
    const int32_t n_top = c->s.n_top;
    for (int32_t i = 0; c->s.logps && i < n_top; i++) {
        double value;
        memcpy(&value, &top[2 * i + 1], sizeof value);
        c->s.top_token[(int64_t)c->s.n_ids * n_top + i] = (int32_t)top[2 * i];
        c->s.top_logp[(int64_t)c->s.n_ids * n_top + i] = (float)value;
    }
    if (c->s.logps) c->s.logps[c->s.n_ids] = (float)logp;
    c->s.ids[c->s.n_ids++] = token;
    (void)s;
}

static const char *reason(const server *s, const choice *c, int32_t token, dt_finish finish)
{
    if (finish == DT_FINISH_FAILED) return "error";
    if (finish == DT_FINISH_EOS || (c->of->r.chat && token == s->turn)) return "stop";
    return finish == DT_FINISH_LENGTH ? "length" : NULL;
}

bool serve_queue_token(server *s, choice *c, int32_t token, double logp, dt_finish finish, const uint64_t *top)
{
    job *j = c->of;
    if (finish != DT_FINISH_FAILED) append(s, c, token, logp, top);
    if (c->s.n_ids == c->s.n_prompt + 1) {
        atomic_fetch_add(&s->first_us, (uint64_t)(1e6 * (dt_now_s() - j->since_s)));
        atomic_fetch_add(&s->n_first, 1);
    }
    atomic_fetch_add(&s->n_new_tok, 1);
    c->finish = reason(s, c, token, finish);
    if (c->n_dropped == 0 && serve_text_grow(s->a, c, c->finish != NULL)) c->finish = "stop";
    j->failed |= finish == DT_FINISH_FAILED;
    if (c->finish) j->n_left--;
    if (j->r.stream && !j->failed) serve_stream(s, c);
    if (j->n_left == 0) finish_job(s, j);
    return c->finish != NULL;
}

/* ---- a turn ------------------------------------------------------------------------------------------------------ */

/* Wait until a job arrives or it is time to look at the connections. */
static void wait_for_jobs(server *s)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 1000000000 / LOOKS_PER_S;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&s->lock);
    if (!s->arrived) pthread_cond_timedwait(&s->arrival, &s->lock, &until);
    pthread_mutex_unlock(&s->lock);
}

/* Jobs in the order of arrival; their choices join the queue. */
static void take_arrived(server *s)
{
    pthread_mutex_lock(&s->lock);
    job *list = s->arrived, *in_order = NULL;
    s->arrived = NULL;
    pthread_mutex_unlock(&s->lock);
    while (list) {
        job *j = list;
        list = j->next;
        j->next = in_order;
        in_order = j;
    }
    choice **end = &s->queue;
    while (*end) end = &(*end)->next;
    for (job *j = in_order, *next; j; j = next) {
        next = j->next;
        j->next = s->jobs;
        s->jobs = j;
        atomic_fetch_add(&s->n_running, 1);
        for (choice *c = j->choices; c < j->choices + j->n_choices; c++) {
            if (c->finish) continue;
            *end = c;
            end = &c->next;
        }
        if (j->n_left == 0) finish_job(s, j);
    }
}

static void give_up_late(server *s, double now_s, dt_text *message)
{
    const bool cut = s->stop_s > 0 && now_s >= s->stop_s + s->a->opt.grace_s;
    for (job *j = s->jobs; j; j = j->next)
        if (!j->answered && (cut || now_s > j->end_s || dt_exchange_is_gone(j->x)))
            give_up(s, j, cut ? "shutdown" : now_s > j->end_s ? "timeout" : "gone", message);
}

static void look(server *s, double now_s)
{
    if (now_s - s->checked_s < 1.0 / LOOKS_PER_S) return;
    s->checked_s = now_s;
    dt_http_check(s->http);
    if (s->stop_s > 0 || !dt_signals_pending()) return;
    s->stop_s = now_s;
    dt_http_quiesce(s->http);
    DT_WARN("stop requested: no new requests are accepted; answers in progress have %g s", s->a->opt.grace_s);
}

dt_err serve_queue_turn(server *s, bool idle, dt_text *message)
{
    for (;;) {
        const double now_s = dt_now_s();
        look(s, now_s);
        take_arrived(s);
        give_up_late(s, now_s, message);
        while (s->queue && serve_live_begin(s, s->queue, message)) {
            s->queue = s->queue->next;
            atomic_fetch_sub(&s->n_waiting, 1);
        }
        remove_answered(s);
        s->over = s->stop_s > 0 && !s->jobs;
        if (!idle) atomic_fetch_add(&s->n_passes, 1);
        if (!idle || s->over || message->n > 0) return DT_OK;
        wait_for_jobs(s);
        if (s->a->comm.nranks > 1 && now_s - s->told_s > 1)
            return s->told_s = now_s, DT_OK; /* other ranks' watchdogs */
        dt_phase_enter(&s->a->phase, "wait for requests", "");
    }
}

static void cut_off(job *j)
{
    for (job *next; j; j = next) {
        next = j->next;
        if (!j->answered) dt_exchange_end(j->x);
        serve_job_free(j);
    }
}

void serve_queue_close(server *s)
{
    pthread_mutex_lock(&s->lock);
    job *const arrived = s->arrived;
    s->arrived = NULL;
    pthread_mutex_unlock(&s->lock);
    cut_off(s->jobs);
    cut_off(arrived);
    s->jobs = NULL;
}
