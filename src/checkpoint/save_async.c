/* save_async.c - asynchronous saves: a copy of the states, a thread that runs the stages of save.c on it, and the
 * collective steps between stages.
 *
 * For device memory the copy uses its own stream. It starts after the last update and the next update waits for it, so
 * it overlaps with a whole step's forward and backward. The thread reads the copy one stage later, when it is complete.
 * If the host can access the states, all threads copy them while training waits.
 *
 * A waiting rank votes at intervals. As long as each writer makes progress, every rank reports progress to its
 * watchdog. If a writer hangs, its rank does not vote, and the watchdogs of all ranks expire. */
#include "save.h"
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_SIZE = 2048 };
static const double VOTE_EVERY_S = 0.5;

struct dt_saver {
    dt_comm *comm;
    dt_device *dev;
    dt_stream *compute, *copies; /* copies: own stream */
    dt_event *updated, *copy_began, *copied;
    dt_buf copy;
    bool is_copying; /* the copy is not yet known to be complete */
    save_job job;
    dt_saver_state state;
    atomic_bool given_up;

    pthread_t thread;
    bool has_thread;
    dt_phase phase;      /* of the thread */
    double seen_since_s; /* start time of that phase when the waiting thread last looked */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* under mutex */
    const save_stage *stage; /* current stage, or the last completed one */
    bool works, stop;
    dt_err err; /* result of the stage */
    char message[MESSAGE_SIZE];
    double begin_s, end_s;
};

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static void *work(void *arg)
{
    dt_saver *s = arg;
    omp_set_num_threads(1); /* computes checksums with one thread: training uses the cores */
    pthread_mutex_lock(&s->mutex);
    while (!s->stop) {
        if (!s->works) {
            pthread_cond_wait(&s->changed, &s->mutex);
            continue;
        }
        pthread_mutex_unlock(&s->mutex);
        dt_error_clear();
        const double begin_s = dt_now_s();
        const dt_err err = s->stage->work(&s->job);
        pthread_mutex_lock(&s->mutex);
        s->begin_s = begin_s, s->end_s = dt_now_s();
        s->err = err;
        if (err != DT_OK) snprintf(s->message, sizeof s->message, "%s", dt_error_message());
        s->works = false;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

static void start(dt_saver *s, const save_stage *stage)
{
    pthread_mutex_lock(&s->mutex);
    s->stage = stage;
    s->err = DT_OK;
    s->works = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

/* Wait until the thread is idle, at most for most_s seconds. */
static bool wait_for_work(dt_saver *s, double most_s)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t ns = until.tv_nsec + (int64_t)(most_s * 1e9);
    until.tv_sec += (time_t)(ns / 1000000000), until.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&s->mutex);
    while (s->works && pthread_cond_timedwait(&s->changed, &s->mutex, &until) == 0) {
    }
    const bool idle = !s->works;
    pthread_mutex_unlock(&s->mutex);
    return idle;
}

/* Signals are delivered to the thread that runs the steps. */
static dt_err start_thread(dt_saver *s)
{
    sigset_t all, before;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, &attr);
    pthread_condattr_destroy(&attr);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int status = pthread_create(&s->thread, NULL, work, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    s->has_thread = status == 0;
    DT_CHECK(s->has_thread, DT_ERR_FAULT,
             "cannot start the thread that writes checkpoints: %s; set checkpoint.async = false, which needs no thread",
             strerror(status));
    return DT_OK;
}

static void stop_thread(dt_saver *s)
{
    if (s->has_thread) {
        pthread_mutex_lock(&s->mutex);
        s->stop = true;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->mutex);
        pthread_join(s->thread, NULL);
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->mutex);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static dt_memspace space_of_copy(const dt_device *dev) { return dev->ops->host_accessible ? DT_ON_HOST : DT_ON_PINNED; }

void dt_saver_plan(const dt_device *dev, size_t nbytes, dt_memory *memory)
{
    memory->at[DT_MEM_STAGING][space_of_copy(dev)] += nbytes;
    dt_stream_plan(dev, 1, memory);
}

static dt_err open_copy(dt_saver *s, size_t nbytes)
{
    const dt_device_ops *ops = s->dev->ops;
    DT_TRY(dt_buf_alloc(&s->copy, s->dev, space_of_copy(s->dev), nbytes, DT_MEM_STAGING));
    DT_TRY(dt_stream_open(s->dev, &s->copies, "saved copies"));
    DT_TRY(ops->event_create(s->dev, &s->updated));
    DT_TRY(ops->event_create(s->dev, &s->copy_began));
    return ops->event_create(s->dev, &s->copied);
}

dt_err dt_saver_open(dt_saver **out, dt_comm *comm, dt_device *dev, dt_stream *compute, size_t nbytes)
{
    dt_saver *s = *out = calloc(1, sizeof *s);
    DT_CHECK(s, DT_ERR_MEMORY, "out of memory to write checkpoints during training");
    s->comm = comm, s->dev = dev, s->compute = compute;
    s->job.image.fd = -1;
    dt_err err = start_thread(s);
    if (err == DT_OK) err = open_copy(s, nbytes);
    if (err != DT_OK) {
        dt_saver_close(s);
        *out = NULL;
    }
    return err;
}

/* Cancel: wait until the thread is idle and no queued operation writes to the copy. */
static void give_up(dt_saver *s)
{
    if (!s->state.in_progress) return;
    atomic_store(&s->given_up, true);
    while (!wait_for_work(s, VOTE_EVERY_S)) {
    }
    if (s->is_copying) (void)s->dev->ops->event_sync(s->dev, s->copied);
    s->is_copying = false;
    save_close(&s->job, false);
    s->state.in_progress = false;
}

void dt_saver_close(dt_saver *s)
{
    if (!s) return;
    give_up(s);
    stop_thread(s);
    dt_event *const events[] = {s->updated, s->copy_began, s->copied};
    for (int i = 0; i < 3; i++)
        if (events[i]) s->dev->ops->event_destroy(s->dev, events[i]);
    dt_stream_close(s->dev, s->copies);
    dt_buf_free(&s->copy);
    free(s);
}

/* ---- the copy ---------------------------------------------------------------------------------------------------- */

/* In slot order, which is the writer's order. */
static dt_err queue_copy(dt_saver *s)
{
    const dt_device_ops *ops = s->dev->ops;
    DT_TRY(ops->event_record(s->dev, s->updated, s->compute));
    DT_TRY(ops->event_wait(s->dev, s->updated, s->copies));
    dt_stream_begin(s->dev, s->copies, "copy", "of states", 0);
    DT_TRY(ops->event_record(s->dev, s->copy_began, s->copies));
    size_t used = 0;
    for (int i = 0; i < s->job.n_slots; i++) {
        const dt_stored_slot *slot = &s->job.slots[i];
        const size_t nbytes = save_slot_nbytes(slot);
        DT_EXPECT(nbytes <= s->copy.nbytes - used);
        DT_TRY(dt_zero_state_fetch(slot->of->zero, slot->state, slot->slice, (char *)s->copy.ptr + used, s->copies));
        used += nbytes;
    }
    s->state.nbytes = used;
    return DT_OK;
}

/* After an error, wait for the copies that were queued before it. */
static dt_err copy_states(dt_saver *s)
{
    dt_err err = dt_fault("save.copy");
    if (err == DT_OK) err = queue_copy(s);
    dt_stream_end(s->dev, s->copies);
    const dt_err recorded = s->dev->ops->event_record(s->dev, s->copied, s->copies);
    s->is_copying = recorded == DT_OK;
    return err == DT_OK ? recorded : err;
}

/* wait: for the copy to complete; otherwise only poll. */
static dt_err see_copy(dt_saver *s, bool wait)
{
    const dt_device_ops *ops = s->dev->ops;
    float ms = 0;
    bool complete = true;
    if (!s->is_copying) return DT_OK;
    DT_TRY(wait ? ops->event_sync(s->dev, s->copied) : ops->event_query(s->dev, s->copied, &complete));
    s->is_copying = !complete;
    if (complete) DT_TRY(ops->event_elapsed_ms(s->dev, s->copy_began, s->copied, &ms));
    if (complete) s->state.copy_s = ms * 1e-3;
    return DT_OK;
}

/* ---- a save ------------------------------------------------------------------------------------------------------ */

static dt_err begin(dt_saver *s)
{
    DT_TRY(save_open_in_dir(&s->job));
    return copy_states(s);
}

dt_err dt_saver_begin(dt_saver *s, const dt_saved_model *models, int n_models, const dt_ckpt_meta *meta,
                      const char *dir, int64_t keep)
{
    DT_EXPECT(!s->state.in_progress);
    s->state = (dt_saver_state){.in_progress = true, .begin_s = dt_now_s()};
    s->given_up = false;
    s->job = (save_job){.comm = s->comm,
                        .models = models,
                        .n_models = n_models,
                        .meta = meta,
                        .dir = dir,
                        .keep = keep,
                        .phase = &s->phase,
                        .copy = s->copy.ptr,
                        .given_up = &s->given_up,
                        .image.fd = -1};
    const dt_err err = dt_comm_agree(s->comm, begin(s));
    if (err == DT_OK)
        start(s, save_stages);
    else
        give_up(s);
    return err;
}

dt_err dt_saver_hold(dt_saver *s)
{
    if (!s || !s->is_copying) return DT_OK;
    return s->dev->ops->event_wait(s->dev, s->copied, s->compute);
}

dt_err dt_saver_poll(dt_saver *s, bool *done, double *work_s)
{
    *done = true, *work_s = 0;
    if (!s || !s->state.in_progress) return DT_OK;
    DT_TRY(see_copy(s, false));
    pthread_mutex_lock(&s->mutex);
    *done = !s->works && !s->is_copying;
    if (*done) *work_s = s->end_s - s->begin_s;
    const dt_err err = s->works ? DT_OK : s->err;
    pthread_mutex_unlock(&s->mutex);
    return err == DT_OK ? DT_OK : dt_fail(err, "%s", s->message);
}

static void note_stage(dt_saver *s)
{
    dt_saver_state *state = &s->state;
    state->stage[state->n_stages].name = s->stage->name;
    state->stage[state->n_stages].begin_s = s->begin_s;
    state->stage[state->n_stages++].end_s = state->end_s = s->end_s;
}

dt_err dt_saver_continue(dt_saver *s, double work_s, bool *ended)
{
    const save_stage *stage = s->stage;
    s->state.work_s += work_s;
    note_stage(s);
    *ended = false;
    if (stage->meet) DT_TRY(stage->meet(&s->job));
    if (s->state.n_stages < DT_SAVE_STAGES) {
        start(s, stage + 1);
        return DT_OK;
    }
    save_close(&s->job, true);
    s->state.in_progress = false;
    *ended = true;
    return DT_OK;
}

/* Wait until this rank's work is done, or for VOTE_EVERY_S if the writer makes progress. */
static dt_err wait_a_while(dt_saver *s, dt_phase *phase)
{
    const double until_s = dt_now_s() + VOTE_EVERY_S;
    DT_TRY(see_copy(s, true));
    for (;;) {
        const bool idle = wait_for_work(s, VOTE_EVERY_S);
        const double since_s = atomic_load(&s->phase.since_s);
        const bool progressed = since_s != s->seen_since_s;
        s->seen_since_s = since_s;
        if (progressed || idle) dt_phase_enter(phase, "save", atomic_load(&s->phase.unit));
        if (idle || (progressed && dt_now_s() >= until_s)) return DT_OK;
    }
}

static dt_err finish_stage(dt_saver *s, dt_phase *phase, bool *ended)
{
    bool done = false;
    double work_s = 0;
    dt_err err = wait_a_while(s, phase);
    const dt_err looked = dt_saver_poll(s, &done, &work_s);
    if (err == DT_OK) err = looked;
    dt_vote_value values[] = {{.kind = DT_VOTE_MIN, .real = done}, {.kind = DT_VOTE_MAX, .real = work_s}};
    dt_vote vote = {.err = err, .values = values, .n_values = 2};
    DT_TRY(dt_comm_vote(s->comm, &vote));
    DT_TRY(vote.err == DT_OK ? DT_OK : dt_comm_agree(s->comm, err)); /* reports the error text on all ranks */
    return values[0].real != 0 ? dt_saver_continue(s, values[1].real, ended) : DT_OK;
}

dt_err dt_saver_finish(dt_saver *s, dt_phase *phase)
{
    bool ended = !s || !s->state.in_progress;
    dt_err err = DT_OK;
    while (!ended && err == DT_OK) err = finish_stage(s, phase, &ended);
    if (err != DT_OK && err != DT_ERR_COMM) give_up(s);
    return err;
}

dt_saver_state dt_saver_state_of(const dt_saver *s) { return s ? s->state : (dt_saver_state){0}; }
