/* serve_live.c - the sequences of dtrain-generate --serve, the same list on all ranks. Before each pass the ranks
 * exchange what happened: rank 0 receives the tokens of all, then sends which sequences begin at which rank, and which
 * end early. A rank that fails ends the job as in other runs, because it never enters the exchange. */
#include "serve.h"
#include "dtrain/process/process.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Words of an event: present, token, log-probability, finish, then n_top tokens and log-probabilities. */
enum { EVENT, TOKEN, LOGP, FINISH, TOP };

static size_t width(int32_t n_top) { return TOP + 2 * (size_t)n_top; }

/* What rank 0 sends about a sequence; addresses are NULL. ids follow a start. */
typedef struct note {
    int32_t live, owner; /* owner -1: the sequence ends */
    uint64_t n_pixels;
    dt_choice how;
    dt_sequence seq;
} note;

/* Bytes after a note: ids, then cells, grids and pixels of images. */
static size_t nbytes_after(const note *n)
{
    return (size_t)n->seq.n_ids * sizeof(int32_t) + (size_t)n->seq.n_images * (sizeof(int32_t) + sizeof(uint32_t)) +
           n->n_pixels;
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

dt_err serve_sequence_alloc(dt_sequence *q, bool logps)
{
    const int64_t n = q->max_ids, n_top = logps ? n * q->n_top : 0;
    DT_ALLOC(q->ids, n, "out of memory for a sequence of %" PRId64 " tokens", n);
    if (logps) DT_ALLOC(q->logps, n, "out of memory for a sequence of %" PRId64 " tokens", n);
    DT_ALLOC(q->top_token, n_top, "out of memory for a sequence of %" PRId64 " tokens", n);
    DT_ALLOC(q->top_logp, n_top, "out of memory for a sequence of %" PRId64 " tokens", n);
    return DT_OK;
}

void serve_sequence_free(dt_sequence *q)
{
    free(q->ids), free(q->logps), free(q->top_token), free(q->top_logp);
    q->ids = q->top_token = NULL, q->logps = q->top_logp = NULL;
}

static dt_err take_images(live *l, const note *n, const char *from)
{
    const size_t count = (size_t)n->seq.n_images;
    image_list *i = &l->images;
    if (count == 0) return DT_OK;
    DT_ALLOC(i->n_cells, count, "out of memory for %zu images", count);
    DT_ALLOC(i->grid, count, "out of memory for %zu images", count);
    DT_ALLOC(i->pixels, n->n_pixels, "out of memory for %zu images", count);
    memcpy(i->n_cells, from, count * sizeof *i->n_cells);
    memcpy(i->grid, from + count * sizeof *i->n_cells, count * sizeof *i->grid);
    memcpy(i->pixels, from + count * (sizeof *i->n_cells + sizeof *i->grid), n->n_pixels);
    l->seq.n_cells = i->n_cells;
    return DT_OK;
}

static const live *live_of(const dt_sequence *q)
{
    return (const live *)(const void *)((const char *)q - offsetof(live, seq));
}

dt_err serve_live_image(void *ctx, const dt_sequence *q, int32_t k, uint8_t *pixels, uint32_t *grid)
{
    generate_images_copy(ctx, &live_of(q)->images, k, pixels, grid);
    return DT_OK;
}

static void forget(live *l)
{
    generate_images_free(&l->images);
    serve_sequence_free(&l->seq);
    *l = (live){0};
}

static dt_err begin(server *s, const note *n, const char *ids)
{
    live *l = &s->live[n->live];
    const bool mine = n->owner == s->a->comm.rank;
    *l = (live){.used = true, .owner = n->owner, .how = n->how, .of = l->of, .seq = n->seq};
    if (!mine && !n->seq.of_prompt) return DT_OK;
    DT_TRY(serve_sequence_alloc(&l->seq, true));
    memcpy(l->seq.ids, ids, (size_t)n->seq.n_ids * sizeof *l->seq.ids);
    return mine ? take_images(l, n, ids + (size_t)n->seq.n_ids * sizeof *l->seq.ids) : DT_OK;
}

/* The sequence leaves its slot before the next pass; then its entry is free. */
static void end(live *l)
{
    l->leaves = true;
    l->seq.finish = DT_FINISH_STOP;
}

static dt_err apply(server *s, const char *message, size_t nbytes)
{
    for (size_t at = 0; at < nbytes;) {
        note n;
        memcpy(&n, message + at, sizeof n);
        at += sizeof n;
        if (n.owner < 0)
            end(&s->live[n.live]);
        else
            DT_TRY(begin(s, &n, message + at));
        at += nbytes_after(&n);
    }
    return DT_OK;
}

static bool same_choice(const dt_choice *a, const dt_choice *b)
{
    return a->repetition_penalty == b->repetition_penalty && a->greedy == b->greedy &&
           a->temperature == b->temperature && a->top_k == b->top_k && a->top_p == b->top_p && a->min_p == b->min_p;
}

static void update_feed(server *s)
{
    dt_feed *f = &s->feed;
    dt_choice *list = (dt_choice *)f->choice;
    f->n_choices = f->n_top = 0;
    f->more = f->of_prompt = false;
    for (live *l = s->live; l < s->live + s->n_live; l++) {
        f->more |= l->used;
        if (!l->used || l->leaves) continue;
        int i = 0;
        while (i < f->n_choices && !same_choice(&list[i], &l->how)) i++;
        if (i == f->n_choices) list[f->n_choices++] = l->how;
        l->seq.choice = i;
        if (l->seq.n_top > f->n_top) f->n_top = l->seq.n_top;
        f->of_prompt |= l->seq.of_prompt && !l->prompt_read;
    }
}

static dt_sequence *next(void *ctx)
{
    app *a = ctx;
    server *s = a->server;
    for (live *l = s->live; l < s->live + s->n_live; l++)
        if (l->used && !l->begun && !l->leaves && l->owner == a->comm.rank) return l->begun = true, &l->seq;
    return NULL;
}

/* ---- rank 0 ------------------------------------------------------------------------------------------------------ */

bool serve_live_begin(server *s, choice *c, dt_text *message)
{
    const int nranks = s->a->comm.nranks;
    int best = -1, fewest = s->n_slots, spare = -1;
    for (int r = 0; r < nranks; r++) {
        int n = 0;
        for (int i = 0; i < s->n_live; i++) n += (s->live[i].used || s->live[i].of) && s->live[i].owner == r;
        if (n < fewest) fewest = n, best = r;
    }
    for (int i = s->n_live - 1; i >= 0; i--)
        if (!s->live[i].used && !s->live[i].of) spare = i;
    if (best < 0 || spare < 0) return false;
    const dt_api_request *r = &c->of->r;
    const image_list *i = &c->of->images;
    note n = {
        .live = spare, .owner = best, .n_pixels = i->nbytes, .how = dt_sampling_choice(&r->sampling), .seq = c->s};
    if (n.how.greedy) n.how = (dt_choice){.repetition_penalty = n.how.repetition_penalty, .greedy = true};
    if (!r->has_seed) n.seq.number = atomic_fetch_add(&s->next_number, 1);
    n.seq.n_images = i->n;
    n.seq.ids = n.seq.top_token = NULL, n.seq.logps = n.seq.top_logp = NULL;
    s->live[spare].of = c, s->live[spare].owner = best;
    c->live = spare;
    dt_text_append(message, &n, sizeof n);
    dt_text_append(message, c->s.ids, (size_t)c->s.n_prompt * sizeof *c->s.ids);
    if (i->n == 0) return true;
    dt_text_append(message, i->n_cells, (size_t)i->n * sizeof *i->n_cells);
    dt_text_append(message, i->grid, (size_t)i->n * sizeof *i->grid);
    dt_text_append(message, i->pixels, i->nbytes);
    return true;
}

void serve_live_cancel(server *s, choice *c, dt_text *message)
{
    const note n = {.live = c->live, .owner = -1};
    if (c->live < 0) return;
    dt_text_append(message, &n, sizeof n);
    s->live[c->live].of = NULL;
    c->live = -1;
}

/* ---- the exchange ------------------------------------------------------------------------------------------------ */

dt_err serve_live_on_token(void *ctx, dt_sequence *q)
{
    const app *a = ctx;
    server *s = a->server;
    const live *l = live_of(q);
    uint64_t *e = s->event + (size_t)(l - s->live) * width(s->feed.n_top);
    const int32_t at = q->n_ids - 1;
    const double logp = q->finish == DT_FINISH_FAILED ? 0 : (double)q->logps[at];
    e[EVENT] = 1, e[TOKEN] = (uint64_t)q->ids[at], e[FINISH] = q->finish;
    memcpy(&e[LOGP], &logp, sizeof logp);
    for (int32_t j = 0; j < q->n_top && q->finish != DT_FINISH_FAILED; j++) {
        const double top = (double)q->top_logp[(int64_t)at * q->n_top + j];
        e[TOP + 2 * j] = (uint64_t)q->top_token[(int64_t)at * q->n_top + j];
        memcpy(&e[TOP + 2 * j + 1], &top, sizeof top);
    }
    return DT_OK;
}

/* Rank 0 receives what belongs to the prompt, when its last pass is over. */
static dt_err fetch_prompt(server *s, live *l)
{
    dt_sequence *q = &l->seq;
    const size_t n = (size_t)q->n_prompt, n_top = (size_t)q->n_top;
    choice *c = l->of;
    l->prompt_read = true;
    if (s->a->comm.nranks > 1) {
        DT_TRY(dt_comm_broadcast_host(&s->a->comm, q->logps, n * sizeof *q->logps, l->owner));
        DT_TRY(dt_comm_broadcast_host(&s->a->comm, q->top_token, n * n_top * sizeof *q->top_token, l->owner));
        DT_TRY(dt_comm_broadcast_host(&s->a->comm, q->top_logp, n * n_top * sizeof *q->top_logp, l->owner));
    }
    if (!c || s->a->comm.rank > 0) return DT_OK;
    memcpy(c->s.logps, q->logps, n * sizeof *q->logps);
    memcpy(c->s.top_token, q->top_token, n * n_top * sizeof *q->top_token);
    memcpy(c->s.top_logp, q->top_logp, n * n_top * sizeof *q->top_logp);
    return DT_OK;
}

/* Tokens of the last pass, of all ranks. */
static dt_err take_events(server *s, dt_text *message)
{
    const app *a = s->a;
    const size_t w = width(s->feed.n_top);
    if (a->comm.nranks > 1) DT_TRY(dt_comm_sum_host_u64(dt_comm_all(&a->comm), s->event, (int)(w * (size_t)s->n_live)));
    for (int i = 0; i < s->n_live; i++) {
        live *l = &s->live[i];
        const uint64_t *e = s->event + (size_t)i * w;
        double logp;
        if (l->leaves) {
            forget(l);
            continue;
        }
        if (!l->used || !e[EVENT]) continue;
        if (l->seq.of_prompt && !l->prompt_read) DT_TRY(fetch_prompt(s, l));
        memcpy(&logp, &e[LOGP], sizeof logp);
        choice *c = l->of;
        if (a->comm.rank == 0 && c) {
            const bool ended = serve_queue_token(s, c, (int32_t)e[TOKEN], logp, (dt_finish)e[FINISH], e + TOP);
            if (ended && e[FINISH] == DT_FINISH_NONE) serve_live_cancel(s, c, message);
            if (e[FINISH] != DT_FINISH_NONE) c->live = -1;
        }
        if (e[FINISH] != DT_FINISH_NONE) forget(l);
    }
    return DT_OK;
}

static dt_err share(server *s, dt_text *message, bool idle)
{
    dt_comm *comm = &s->a->comm;
    int64_t head[2] = {(int64_t)message->n, s->over};
    if (comm->nranks == 1) return DT_OK;
    DT_TRY(idle ? dt_comm_broadcast_late(comm, head, sizeof head) : dt_comm_broadcast_host(comm, head, sizeof head, 0));
    s->over = head[1];
    if (comm->rank > 0) {
        dt_text_reserve(message, (size_t)head[0]);
        message->n = (size_t)head[0];
        DT_CHECK(!message->failed, DT_ERR_MEMORY, "out of memory for %zu bytes of requests", message->n);
    }
    return dt_comm_broadcast_host(comm, message->bytes, message->n, 0);
}

static dt_err exchange(server *s, dt_text *message)
{
    app *a = s->a;
    bool idle = !s->feed.more;
    if (!idle) DT_TRY(take_events(s, message));
    memset(s->event, 0, (size_t)s->n_live * width(DT_MAX_LOGPROBS) * sizeof *s->event);
    do {
        if (idle) dt_phase_enter(&a->phase, "wait for requests", "");
        if (a->comm.rank == 0) DT_TRY(serve_queue_turn(s, idle, message));
        DT_CHECK(!message->failed, DT_ERR_MEMORY, "out of memory for the requests");
        DT_TRY(share(s, message, idle));
        DT_TRY(apply(s, message->bytes, message->n));
        message->n = 0;
        update_feed(s);
        idle = true;
    } while (!s->feed.more && !s->over);
    return DT_OK;
}

dt_err serve_live_on_pass(void *ctx)
{
    app *a = ctx;
    dt_text message = {0};
    const dt_err err = exchange(a->server, &message);
    dt_text_free(&message);
    return err;
}

dt_err serve_live_open(server *s)
{
    const app *a = s->a;
    s->n_live = a->comm.nranks * s->n_slots;
    s->feed.next = next;
    DT_ALLOC(s->live, s->n_live, "out of memory for %d sequences", s->n_live);
    DT_ALLOC(s->feed.choice, s->n_live, "out of memory for %d sequences", s->n_live);
    DT_ALLOC(s->event, (size_t)s->n_live * width(DT_MAX_LOGPROBS), "out of memory for %d sequences", s->n_live);
    return DT_OK;
}

void serve_live_close(server *s)
{
    for (int i = 0; s->live && i < s->n_live; i++) forget(&s->live[i]);
    free(s->live);
    free((dt_choice *)s->feed.choice);
    free(s->event);
}
