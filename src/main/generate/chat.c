/* chat.c - a conversation: what was said stays in the key-value cache, and only what is new goes through the model.
 *
 * Each message is rendered by the template with all before it; as many tokens as agree with those in the cache are
 * kept. All ranks do the same work, so that a model partitioned among them can be talked to; rank 0 reads and prints,
 * and what only it knows (a line, Ctrl-C) is told to the others. */
#include "app.h"
#include "console.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

typedef struct chat {
    app *a;
    console console; /* rank 0 */
    const char *system;
    const dt_decoder *decoder;
    dt_generate_options g;
    dt_sequence seq;
    int32_t max_len;
    dt_messages messages;
    char **texts; /* of messages, ours */
    int n_texts;
    dt_generate_stats total;
    int64_t n_kept; /* tokens that did not have to go through again */
} chat;

static volatile sig_atomic_t interrupted;
static void on_interrupt(int signal_number) { interrupted = 1; }

/* Rank 0 asks, all hear: what to do, and with which text. */
static dt_err next_action(chat *c, console_action *action, char **text)
{
    app *a = c->a;
    dt_err err = DT_OK;
    *text = NULL;
    if (a->comm.rank == 0) {
        err = console_next(&c->console, &c->messages, action, text);
        interrupted = 0;
    }
    if (a->comm.nranks == 1) return err;
    int32_t number = *action;
    TOGETHER(a, err);
    DT_TRY(dt_comm_broadcast_host(&a->comm, &number, sizeof number, 0));
    *action = (console_action)number;
    return dt_comm_share_text(&a->comm, text, NULL);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* Takes over text, also in failure. */
static dt_err say(chat *c, dt_role role, char *text, size_t nbytes)
{
    char **grown = realloc(c->texts, (size_t)(c->n_texts + 1) * sizeof *grown);
    if (!grown) free(text);
    DT_CHECK(grown, DT_ERR_MEMORY, "out of memory for message %d", c->n_texts);
    c->texts = grown;
    c->texts[c->n_texts++] = text;
    return dt_messages_add(&c->messages, role, text, nbytes);
}

/* The oldest exchange behind the system message; what it said stays ours until the end. */
static bool forget_oldest(chat *c)
{
    dt_messages *m = &c->messages;
    const int first = m->n > 0 && m->item[0].role == DT_ROLE_SYSTEM;
    if (m->n - first < 3) return false;
    memmove(m->item + first, m->item + first + 2, (size_t)(m->n - first - 2) * sizeof *m->item);
    m->n -= 2;
    return true;
}

/* Ids of the conversation, which leave room for an answer. */
static dt_err render(chat *c, dt_ids *ids)
{
    app *a = c->a;
    const int64_t room = a->opt.max_new_tokens < c->max_len / 4 ? a->opt.max_new_tokens : c->max_len / 4;
    for (bool told = false;; told = true) {
        ids->n = 0;
        DT_TRY(dt_chat_encode(a->reader.chat, a->encoder, c->messages.item, c->messages.n,
                              DT_CHAT_GENERATE | a->reader.chat_flags, ids));
        if ((int64_t)ids->n + room <= c->max_len) break;
        DT_CHECK(forget_oldest(c), DT_ERR_DATA,
                 "a message makes a conversation of %zu tokens: %d fit, %" PRId64 " of them for the answer (--context)",
                 ids->n, c->max_len, room);
        if (!told && a->comm.rank == 0)
            DT_WARN("the conversation has outgrown %d tokens: its beginning is forgotten", c->max_len);
    }
    for (size_t i = 0; i < ids->n; i++)
        DT_CHECK(ids->id[i] >= 0 && ids->id[i] < a->frozen.mc.vocab_size, DT_ERR_DATA,
                 "the template gives token %" PRId32 ", but the model's vocabulary has %" PRId64 " tokens", ids->id[i],
                 a->frozen.mc.vocab_size);
    return DT_OK;
}

/* ---- an answer --------------------------------------------------------------------------------------------------- */

static dt_err on_token(void *ctx, dt_sequence *s)
{
    chat *c = ctx;
    app *a = c->a;
    int64_t stop = interrupted;
    if (a->comm.nranks > 1) DT_TRY(dt_comm_reduce_host_i64(&a->comm, &stop, 1, DT_MAX));
    if (s->finish == DT_FINISH_NONE && (stop || generate_stops(a, s))) s->finish = DT_FINISH_STOP;
    return a->comm.rank == 0 ? generate_stream(a, s, s->finish != DT_FINISH_NONE) : DT_OK;
}

static void set_prompt(chat *c, const dt_ids *ids)
{
    dt_sequence *s = &c->seq;
    int32_t same = 0;
    while (same < s->n_cached && same + 1 < (int32_t)ids->n && s->ids[same] == ids->id[same]) same++;
    memcpy(s->ids, ids->id, ids->n * sizeof *s->ids);
    const int64_t most = (int64_t)ids->n + c->a->opt.max_new_tokens;
    s->n_prompt = s->n_ids = (int32_t)ids->n;
    s->max_ids = (int32_t)(most < c->max_len ? most : c->max_len);
    s->n_cached = same;
    s->number++; /* other random numbers than before */
    s->finish = DT_FINISH_NONE;
    c->n_kept += same;
}

static dt_err answer(chat *c)
{
    app *a = c->a;
    dt_sequence *seq = &c->seq;
    dt_generate_stats stats;
    dt_ids ids = {0};
    size_t n = 0;
    bool stopped;
    dt_err err = together(&a->comm, render(c, &ids));
    if (err == DT_OK) set_prompt(c, &ids);
    free(ids.id);
    DT_TRY(err);
    interrupted = 0;
    a->shown = 0;
    TOGETHER(a, dt_watchdog_start(&a->watchdog, &a->phase, &a->comm, a->opt.timeout_s));
    err = dt_generate(c->decoder, &seq, 1, &c->g, &stats);
    dt_watchdog_stop(a->watchdog);
    a->watchdog = NULL;
    DT_TRY(c->g.lockstep ? err : together(&a->comm, err));
    c->total.n_prompt_tok += stats.n_prompt_tok;
    c->total.n_new_tok += stats.n_new_tok;
    c->total.seconds += stats.seconds;
    c->total.prompt_seconds += stats.prompt_seconds;
    if (a->comm.rank == 0) putchar('\n');
    char *text = generate_new_text(a, seq, &n, &stopped);
    TOGETHER(a, text ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the text of %d tokens", seq->n_ids));
    TOGETHER(a, say(c, DT_ROLE_ASSISTANT, text, n));
    TOGETHER(a, a->comm.rank == 0 ? generate_flush(a) : DT_OK);
    return DT_OK;
}

/* From the system message on, if there is one. What was said stays ours until the end. */
static dt_err begin_again(chat *c, const char *system)
{
    dt_messages_clear(&c->messages);
    return *system ? dt_messages_add(&c->messages, DT_ROLE_SYSTEM, system, strlen(system)) : DT_OK;
}

static dt_err change_system(chat *c, char *text)
{
    if (!*text) {
        free(text);
        return begin_again(c, c->system = "");
    }
    dt_messages_clear(&c->messages);
    c->system = text;
    return say(c, DT_ROLE_SYSTEM, text, strlen(text));
}

static dt_err talk(chat *c)
{
    app *a = c->a;
    if (a->opt.prompt) {
        char *text = strdup(a->opt.prompt);
        TOGETHER(a, text ? say(c, DT_ROLE_USER, text, strlen(text))
                         : dt_fail(DT_ERR_MEMORY, "out of memory for the prompt"));
        return answer(c);
    }
    for (;;) {
        console_action action = CONSOLE_EXIT;
        char *text;
        DT_TRY(next_action(c, &action, &text));
        if (action == CONSOLE_SAY) {
            TOGETHER(a, say(c, DT_ROLE_USER, text, strlen(text)));
            DT_TRY(answer(c));
            continue;
        }
        if (action == CONSOLE_SYSTEM) {
            TOGETHER(a, change_system(c, text));
            console_note(&c->console, *c->system ? "a new conversation with another system message"
                                                 : "a new conversation without a system message");
            continue;
        }
        free(text);
        if (action == CONSOLE_EXIT) return DT_OK;
        TOGETHER(a, begin_again(c, c->system));
        console_note(&c->console, "the conversation so far is cleared");
    }
}

static void greet(const chat *c)
{
    const app *a = c->a;
    if (a->comm.rank == 0 && !c->console.terminal)
        fprintf(stderr, "dtrain-generate: talking to %s (template %s)\n", a->frozen.from.path,
                dt_chat_name(a->reader.chat));
    console_note(&c->console, "talking to %s (template %s, at most %d tokens)", a->frozen.from.path,
                 dt_chat_name(a->reader.chat), c->max_len);
    console_note(&c->console, "/help lists the commands; Ctrl-C stops an answer, Ctrl-D or /exit leaves");
}

static void report(const chat *c)
{
    const dt_generate_stats *t = &c->total;
    const double prompt_s = t->prompt_seconds, new_s = t->seconds - t->prompt_seconds;
    fprintf(stderr,
            "dtrain-generate: %" PRId64 " new tokens at %.1f tokens/s, %" PRId64 " read at %.1f tokens/s, %" PRId64
            " kept\n",
            t->n_new_tok, new_s > 0 ? (double)t->n_new_tok / new_s : 0, t->n_prompt_tok,
            prompt_s > 0 ? (double)t->n_prompt_tok / prompt_s : 0, c->n_kept);
}

dt_err generate_chat(app *a, const dt_decoder *d, const dt_generate_options *g, int32_t max_len)
{
    chat c = {.a = a, .decoder = d, .g = *g, .max_len = max_len};
    const struct sigaction act = {.sa_handler = on_interrupt}; /* without SA_RESTART: a line under way is left */
    struct sigaction before;
    c.seq.ids = malloc((size_t)max_len * sizeof *c.seq.ids);
    dt_err err = c.seq.ids ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for %d tokens", max_len);
    c.system = a->opt.system ? a->opt.system : "";
    if (err == DT_OK) err = begin_again(&c, c.system);
    if (err == DT_OK && a->comm.rank == 0 && !a->opt.prompt) err = console_open(&c.console, &interrupted);
    c.g.on_token = on_token;
    c.g.ctx = &c;
    sigaction(SIGINT, &act, &before);
    err = together(&a->comm, err);
    if (err == DT_OK) greet(&c);
    if (err == DT_OK) err = talk(&c);
    sigaction(SIGINT, &before, NULL);
    if (err == DT_OK && a->comm.rank == 0) report(&c);
    for (int i = 0; i < c.n_texts; i++) free(c.texts[i]);
    free(c.texts);
    dt_messages_free(&c.messages);
    console_close(&c.console);
    free(c.seq.ids);
    return err;
}
