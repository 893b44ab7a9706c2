/* prefetch.c - a ring of batches: [held by the caller] [ready ...] [being built] [free ...]. The thread
 * predicts the next request. The prediction affects when a batch is built, never its content. The slot of a batch also
 * stores its error. After an error the thread pauses until the caller requests another batch. */
#include "prefetch.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_SIZE = 1024 };

typedef struct slot {
    dt_request what;
    dt_err err;
    char message[MESSAGE_SIZE]; /* copied, because error messages are per thread */
} slot;

struct dt_prefetch {
    dt_maker maker;
    dt_batch *batches;
    slot *slots;
    int n_slots;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* protected by mutex */
    int first_ready, n_ready, n_held; /* the held batch is just before first_ready */
    dt_request next;                  /* request in progress, or the next one */
    bool resting, stop;
    uint64_t generation; /* incremented when prefetched batches are discarded */
};

static bool same(const dt_request *a, const dt_request *b)
{
    return a->step == b->step && a->micro == b->micro && a->mismatched == b->mismatched;
}

static void make_one(dt_prefetch *p, int at, const dt_request *what)
{
    slot *s = &p->slots[at];
    dt_error_clear();
    s->what = *what;
    s->err = p->maker.make(p->maker.self, what, &p->batches[at]);
    if (s->err != DT_OK) snprintf(s->message, sizeof s->message, "%s", dt_error_message());
}

static void *work(void *arg)
{
    dt_prefetch *p = arg;
    pthread_mutex_lock(&p->mutex);
    while (!p->stop) {
        if (p->resting || p->n_held + p->n_ready == p->n_slots) {
            pthread_cond_wait(&p->changed, &p->mutex);
            continue;
        }
        const dt_request what = p->next;
        const uint64_t generation = p->generation;
        const int at = (p->first_ready + p->n_ready) % p->n_slots;
        pthread_mutex_unlock(&p->mutex);
        make_one(p, at, &what);
        const dt_request next = p->maker.next(p->maker.self, &what);
        pthread_mutex_lock(&p->mutex);
        if (generation != p->generation) continue;
        p->resting = p->slots[at].err != DT_OK;
        p->next = next;
        p->n_ready++;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

/* Block signals: the thread that runs the steps handles them. */
static int start_thread(dt_prefetch *p)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int status = pthread_create(&p->thread, NULL, work, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

dt_err dt_prefetch_open(dt_prefetch **out, const dt_maker *maker, dt_batch *batches, int n_batches)
{
    *out = NULL;
    dt_prefetch *p = calloc(1, sizeof *p);
    slot *slots = calloc((size_t)n_batches, sizeof *slots);
    if (!p || !slots) {
        free(p);
        free(slots);
        return dt_fail(DT_ERR_MEMORY, "no memory to read ahead");
    }
    *p = (dt_prefetch){.maker = *maker, .batches = batches, .slots = slots, .n_slots = n_batches, .resting = true};
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->changed, NULL);
    const int status = start_thread(p);
    if (status != 0) {
        pthread_cond_destroy(&p->changed);
        pthread_mutex_destroy(&p->mutex);
        free(slots);
        free(p);
        return dt_fail(DT_ERR_FAULT, "cannot start the prefetch thread: %s (data.prefetch = 0 avoids it)",
                       strerror(status));
    }
    *out = p;
    return DT_OK;
}

void dt_prefetch_close(dt_prefetch *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->mutex);
    p->stop = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->mutex);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->mutex);
    free(p->slots);
    free(p);
}

dt_err dt_prefetch_take(dt_prefetch *p, const dt_request *what, const dt_batch **b)
{
    pthread_mutex_lock(&p->mutex);
    p->n_held = 0;
    const bool expected =
        p->n_ready > 0 ? same(&p->slots[p->first_ready].what, what) : !p->resting && same(&p->next, what);
    if (!expected) {
        p->generation++;
        p->n_ready = 0;
        p->next = *what;
        p->resting = false;
    }
    pthread_cond_broadcast(&p->changed);
    while (p->n_ready == 0) pthread_cond_wait(&p->changed, &p->mutex);
    slot *s = &p->slots[p->first_ready];
    *b = &p->batches[p->first_ready];
    p->first_ready = (p->first_ready + 1) % p->n_slots;
    p->n_ready--;
    p->n_held = 1;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->mutex);
    return s->err == DT_OK ? DT_OK : dt_fail(s->err, "%s", s->message);
}
