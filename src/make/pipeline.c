/* pipeline.c - a ring of chunks. The reader fills chunk n mod size, workers process chunks in any order,
 * and the writer waits for the next in sequence. The ring bounds memory: a reader that is ahead waits for
 * the writer. */
#include "pipeline.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TICK_NS = 100 * 1000 * 1000, MESSAGE_SIZE = 1024 };

struct dt_pipeline {
    const dt_pipeline_jobs *jobs;
    pthread_mutex_t lock;
    pthread_cond_t room, todo, done;
    dt_chunk *chunk; /* [size] */
    bool *ready;     /* [size]: processed */
    int64_t size, n_submitted, n_taken, n_written;
    bool ended;
    atomic_bool stop;
    dt_err read_err;
    char read_message[MESSAGE_SIZE];
};

typedef struct worker {
    dt_pipeline *p;
    int number;
} worker;

/* ---- the reader -------------------------------------------------------------------------------------------------- */

dt_chunk *dt_pipeline_chunk(dt_pipeline *p)
{
    pthread_mutex_lock(&p->lock);
    while (p->n_submitted - p->n_written >= p->size && !p->stop) pthread_cond_wait(&p->room, &p->lock);
    dt_chunk *chunk = p->stop ? NULL : &p->chunk[p->n_submitted % p->size];
    pthread_mutex_unlock(&p->lock);
    return chunk;
}

void dt_pipeline_submit(dt_pipeline *p)
{
    pthread_mutex_lock(&p->lock);
    p->n_submitted++;
    pthread_cond_signal(&p->todo);
    pthread_mutex_unlock(&p->lock);
}

const atomic_bool *dt_pipeline_stop(const dt_pipeline *p) { return &p->stop; }

static void *read_all(void *self)
{
    dt_pipeline *p = self;
    dt_error_clear();
    const dt_err err = p->jobs->read(p->jobs->self, p);
    pthread_mutex_lock(&p->lock);
    p->read_err = err;
    snprintf(p->read_message, sizeof p->read_message, "%s", dt_error_message());
    p->ended = true;
    pthread_cond_broadcast(&p->todo);
    pthread_cond_broadcast(&p->done);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- workers ----------------------------------------------------------------------------------------------------- */

/* Worker thread: processes the next submitted chunk, and wakes the writer if it waits for that chunk. */
static void *work(void *self)
{
    worker *w = self;
    dt_pipeline *p = w->p;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->n_taken == p->n_submitted && !p->ended && !p->stop) pthread_cond_wait(&p->todo, &p->lock);
        if (p->stop || p->n_taken == p->n_submitted) break;
        const int64_t mine = p->n_taken++;
        pthread_mutex_unlock(&p->lock);
        p->jobs->work(p->jobs->self, w->number, &p->chunk[mine % p->size]);
        pthread_mutex_lock(&p->lock);
        p->ready[mine % p->size] = true;
        if (mine == p->n_written) pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- the writer -------------------------------------------------------------------------------------------------- */

/* Wait for the next chunk in order. NULL: after the last one, or with an error of tick. */
static dt_err next(dt_pipeline *p, dt_chunk **chunk)
{
    dt_err err = DT_OK;
    *chunk = NULL;
    pthread_mutex_lock(&p->lock);
    while (err == DT_OK && !*chunk && !(p->ended && p->n_written == p->n_submitted)) {
        if (p->n_written < p->n_submitted && p->ready[p->n_written % p->size]) {
            *chunk = &p->chunk[p->n_written % p->size];
            break;
        }
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += TICK_NS;
        if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
        if (pthread_cond_timedwait(&p->done, &p->lock, &until) != ETIMEDOUT || !p->jobs->tick) continue;
        pthread_mutex_unlock(&p->lock);
        err = p->jobs->tick(p->jobs->self);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return err;
}

/* Release the chunk to the reader, which may be waiting for it. */
static void hand_back(dt_pipeline *p, dt_chunk *chunk)
{
    dt_chunk_clear(chunk);
    pthread_mutex_lock(&p->lock);
    p->ready[p->n_written % p->size] = false;
    p->n_written++;
    pthread_cond_signal(&p->room);
    pthread_mutex_unlock(&p->lock);
}

/* Write chunks in order until the input ends. A reader error is returned last, after all chunks submitted
 * before it. */
static dt_err write_all(dt_pipeline *p)
{
    for (dt_chunk *chunk;;) {
        DT_TRY(next(p, &chunk));
        if (!chunk) break;
        DT_TRY(p->jobs->write(p->jobs->self, chunk));
        hand_back(p, chunk);
        if (p->jobs->tick) DT_TRY(p->jobs->tick(p->jobs->self));
    }
    return p->read_err == DT_OK ? DT_OK : dt_fail(p->read_err, "%s", p->read_message);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

/* Make all threads return: wake them with stop set. */
static void give_up(dt_pipeline *p)
{
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->room);
    pthread_cond_broadcast(&p->todo);
    pthread_mutex_unlock(&p->lock);
}

/* Start a thread with all signals blocked: the caller's thread handles them. */
static bool start(pthread_t *t, void *(*fn)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool ok = pthread_create(t, NULL, fn, arg) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ok;
}

/* The caller's thread is the writer. */
static dt_err run_threads(dt_pipeline *p, pthread_t *threads, worker *workers, int n_threads)
{
    int n_started = 0;
    const bool reads = start(&threads[0], read_all, p);
    if (reads)
        while (n_started < n_threads) {
            workers[n_started] = (worker){p, n_started};
            if (!start(&threads[1 + n_started], work, &workers[n_started])) break;
            n_started++;
        }
    dt_err err =
        n_started == n_threads ? write_all(p) : dt_fail(DT_ERR_FAULT, "cannot start %d threads", n_threads + 1);
    if (err != DT_OK) give_up(p);
    for (int i = reads ? 0 : 1; i <= n_started; i++) pthread_join(threads[i], NULL);
    return err;
}

dt_err dt_pipeline_run(const dt_pipeline_jobs *jobs, int n_threads)
{
    const int64_t size = 2 * (int64_t)n_threads + 2;
    dt_pipeline p = {.jobs = jobs,
                     .size = size,
                     .chunk = calloc((size_t)size, sizeof *p.chunk),
                     .ready = calloc((size_t)size, sizeof *p.ready)};
    pthread_t *threads = calloc((size_t)n_threads + 1, sizeof *threads);
    worker *workers = calloc((size_t)n_threads, sizeof *workers);
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.room, NULL);
    pthread_cond_init(&p.todo, NULL);
    pthread_cond_init(&p.done, NULL);
    const dt_err err = p.chunk && p.ready && threads && workers
                           ? run_threads(&p, threads, workers, n_threads)
                           : dt_fail(DT_ERR_MEMORY, "out of memory for %d threads", n_threads);
    for (int64_t i = 0; p.chunk && i < size; i++) dt_chunk_free(&p.chunk[i]);
    pthread_cond_destroy(&p.room);
    pthread_cond_destroy(&p.todo);
    pthread_cond_destroy(&p.done);
    pthread_mutex_destroy(&p.lock);
    free(p.chunk);
    free(p.ready);
    free(threads);
    free(workers);
    return err;
}
