/* chat_session.c - conversations. Earlier messages stay in the KV cache, and only new tokens pass through the
 * model.
 *
 * The template renders each message together with all earlier ones; the longest cached prefix of the
 * tokens is reused. All ranks do the same work, so a sharded model can chat, too. Rank 0 reads and prints,
 * and broadcasts what only it knows (a line, Ctrl-C). */
#include "generate_app.h"
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
    char *image_token; /* text of the placeholder's token; NULL: no images */
    char **texts;      /* owned texts of messages */
    int n_texts;
    image_list images; /* those of messages.images */
    int n_waiting;     /* the last n_waiting images belong to no message yet */
    dt_generate_stats total;
    int64_t n_kept; /* tokens reused from the cache */
} chat;

static volatile sig_atomic_t interrupted;
static void on_interrupt(int signal_number) { interrupted = 1; }

/* Rank 0 reads the next action and its text, and broadcasts them. */
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

/* Takes ownership of text, also on failure. */
static dt_err keep_text(chat *c, char *text)
{
    const dt_err err = dt_grow(&c->texts, c->n_texts, sizeof *c->texts, "out of memory for message %d", c->n_texts);
    if (err == DT_OK)
        c->texts[c->n_texts++] = text;
    else
        free(text);
    return err;
}

/* Only users attach images, so placeholders in other messages are removed. */
static void forget_places(const chat *c, char *text, size_t *nbytes)
{
    const char *const names[] = {c->messages.image_text, c->messages.image_alias, c->image_token};
    for (int k = 0; k < 3; k++) {
        const size_t n = names[k] ? strlen(names[k]) : 0;
        for (char *at = text; n > 0 && (at = memmem(at, (size_t)(text + *nbytes - at), names[k], n));) {
            memmove(at, at + n, (size_t)(text + *nbytes - at) - n);
            *nbytes -= n;
            at = text; /* the parts around it may be another one */
        }
    }
}

static dt_err say(chat *c, dt_role role, char *text, size_t nbytes)
{
    DT_TRY(keep_text(c, text));
    if (role != DT_ROLE_USER) forget_places(c, text, &nbytes);
    return dt_messages_add(&c->messages, role, text, nbytes);
}

/* ---- images ------------------------------------------------------------------------------------------------------ */

static dt_err copy_image(void *ctx, const dt_sequence *s, int32_t k, uint8_t *pixels, uint32_t *grid)
{
    const chat *c = ctx;
    generate_images_copy(c->a, &c->images, k, pixels, grid);
    return DT_OK;
}

/* Rank 0 reads the image for all ranks; *unread: error message of an unreadable image. Takes ownership of
 * path, also on failure. */
static dt_err show(chat *c, char *path, dt_err *unread)
{
    app *a = c->a;
    uint8_t *read = NULL, *pixels = NULL;
    int64_t said[3] = {0}; /* failed, cells, grid */
    uint32_t grid = 0;
    TOGETHER(a, keep_text(c, path));
    *unread = a->comm.rank == 0 ? generate_load_image(a, path, c->g.max_images, &read, &said[1], &grid) : DT_OK;
    said[0] = *unread != DT_OK, said[2] = grid;
    dt_err err = dt_comm_broadcast_host(&a->comm, said, sizeof said, 0);
    if (err == DT_OK && !said[0])
        err = together(&a->comm, generate_images_add(a, &c->images, said[1], (uint32_t)said[2], &pixels));
    const size_t nbytes = (size_t)said[1] * generate_image_nbytes(a);
    if (err == DT_OK && pixels && read) memcpy(pixels, read, nbytes);
    free(read);
    if (err != DT_OK || said[0]) return err;
    DT_TRY(dt_comm_broadcast_host(&a->comm, pixels, nbytes, 0));
    c->n_waiting++;
    return together(&a->comm, dt_image_names_add(&c->messages.images, path));
}

static int count_in(const char *text, size_t nbytes, const char *name)
{
    const char *end = text + nbytes;
    const size_t n = name ? strlen(name) : 0;
    int count = 0;
    for (const char *at = text; n > 0 && (at = memmem(at, (size_t)(end - at), name, n)); at += n) count++;
    return count;
}

static int count_placeholders(const chat *c, const char *text, size_t nbytes)
{
    return count_in(text, nbytes, c->messages.image_text) + count_in(text, nbytes, c->messages.image_alias);
}

/* The placeholder's token outside of the text that stands for an image. */
static bool has_bare_token(const chat *c, const char *text)
{
    const char *whole = c->messages.image_text;
    const size_t n = strlen(text);
    return c->image_token && count_in(text, n, c->image_token) !=
                                 count_in(text, n, whole) * count_in(whole, strlen(whole), c->image_token);
}

/* Drop the first n images and their messages. Their cache entries no longer match. */
static void forget_images(chat *c, int n)
{
    dt_messages *m = &c->messages;
    if (n == 0) return;
    generate_images_drop(c->a, &c->images, 0, n);
    m->images.n -= n;
    memmove(m->images.path, m->images.path + n, (size_t)m->images.n * sizeof *m->images.path);
    c->seq.n_cached = 0;
}

/* A message has a placeholder for each pending image, or none at all. */
static dt_err check_places(const chat *c, const char *text)
{
    dt_placeholder_words words;
    const char *whole = c->messages.image_text;
    const int n = count_placeholders(c, text, strlen(text));
    DT_CHECK(!has_bare_token(c, text), DT_ERR_DATA, "the text has the token %s, which only stands for images; write %s",
             c->image_token, c->messages.image_alias ? c->messages.image_alias : whole);
    DT_CHECK(n == 0 || n == c->n_waiting, DT_ERR_DATA, "%s",
             dt_say_placeholders(&words, whole, n, "the message", c->n_waiting));
    return DT_OK;
}

/* Add a user message. Pending images without placeholders come first. Takes ownership of text, also on failure. */
static dt_err say_with_images(chat *c, char *text)
{
    size_t nbytes = strlen(text);
    if (c->n_waiting > 0 && count_placeholders(c, text, nbytes) == 0) {
        char *with = dt_text_after_images(c->messages.image_text, c->messages.image_line, c->n_waiting, text, &nbytes);
        free(text);
        DT_CHECK(with, DT_ERR_MEMORY, "out of memory for a message");
        text = with;
    }
    c->n_waiting = 0;
    return say(c, DT_ROLE_USER, text, nbytes);
}

/* ---- rendering the conversation ---------------------------------------------------------------------------------- */

/* Drop the oldest exchange after the system message. Its texts are freed at the end. */
static bool forget_oldest(chat *c)
{
    dt_messages *m = &c->messages;
    const int first = m->n > 0 && m->item[0].role == DT_ROLE_SYSTEM;
    if (m->n - first < 3) return false;
    int n_images = 0;
    for (int i = first; i < first + 2; i++) n_images += count_placeholders(c, m->item[i].text, m->item[i].nbytes);
    forget_images(c, n_images);
    memmove(m->item + first, m->item + first + 2, (size_t)(m->n - first - 2) * sizeof *m->item);
    m->n -= 2;
    return true;
}

/* Encode messages with the last n_images of the images. */
static dt_err encode(const chat *c, const dt_messages *m, int n_images, dt_ids *ids)
{
    const app *a = c->a;
    ids->n = 0;
    DT_TRY(dt_chat_encode(a->reader.chat, a->encoder, m, DT_CHAT_GENERATE | a->reader.chat_flags, ids));
    if (a->reader.n_image_tokens == 0) return DT_OK;
    return dt_expand_placeholders(a->reader.image_token, a->reader.n_image_tokens,
                                  c->images.n_cells + c->messages.images.n - n_images, n_images, ids, NULL, 0);
}

/* The last message fits if those between the system message and it are dropped. */
static dt_err check_fits_alone(const chat *c, dt_ids *ids, int64_t most)
{
    static const char *const with[] = {"", " and the system message", " and the tools",
                                       ", the system message and the tools"};
    const int has_tools = c->a->tools != NULL, has_system = *c->system != '\0'; /* tools may be the system message */
    const dt_messages *m = &c->messages;
    const dt_message *last = &m->item[m->n - 1];
    dt_message item[2];
    dt_messages alone = *m;
    alone.item = item;
    alone.n = 0;
    if (m->n > 1 && m->item[0].role == DT_ROLE_SYSTEM) item[alone.n++] = m->item[0];
    item[alone.n++] = *last;
    DT_TRY(encode(c, &alone, count_placeholders(c, last->text, last->nbytes), ids));
    DT_CHECK((int64_t)ids->n <= most, DT_ERR_DATA,
             "with this message%s the conversation has %zu tokens: at most %d fit, %" PRId64
             " of them reserved for the answer; shorten the text, or raise --context",
             with[2 * has_tools + has_system], ids->n, c->max_len, c->max_len - most);
    return DT_OK;
}

/* Encode the conversation, leaving room for an answer. */
static dt_err render(chat *c, dt_ids *ids)
{
    app *a = c->a;
    const int64_t room = a->opt.max_new_tokens < c->max_len / 4 ? a->opt.max_new_tokens : c->max_len / 4;
    for (bool told = false;; told = true) {
        DT_TRY(encode(c, &c->messages, c->messages.images.n, ids));
        if ((int64_t)ids->n + room <= c->max_len) break;
        if (!told) DT_TRY(check_fits_alone(c, ids, c->max_len - room));
        DT_CHECK(forget_oldest(c), DT_ERR_DATA, "the template adds so many tokens that --context %d is too small",
                 c->max_len);
        if (!told && a->comm.rank == 0)
            DT_WARN("the conversation exceeds %d tokens, so its oldest messages are dropped", c->max_len);
    }
    for (size_t i = 0; i < ids->n; i++)
        DT_CHECK(ids->id[i] >= 0 && ids->id[i] < a->frozen.mc.vocab_size, DT_ERR_DATA,
                 "the chat template produced token %" PRId32 ", but the model's vocabulary has %" PRId64 " tokens",
                 ids->id[i], a->frozen.mc.vocab_size);
    return DT_OK;
}

/* ---- an answer --------------------------------------------------------------------------------------------------- */

static dt_err on_token(void *ctx, dt_sequence *s)
{
    chat *c = ctx;
    app *a = c->a;
    int64_t stop = interrupted;
    if (a->comm.nranks > 1) DT_TRY(dt_comm_reduce_host_i64(dt_comm_all(&a->comm), &stop, 1, DT_MAX));
    if (s->finish == DT_FINISH_NONE && stop) s->finish = DT_FINISH_STOP;
    return a->comm.rank == 0 ? generate_stream(a, s, s->finish != DT_FINISH_NONE) : DT_OK;
}

static void set_prompt(chat *c, const dt_ids *ids)
{
    dt_sequence *s = &c->seq;
    int32_t same = 0;
    while (same < s->n_cached && same + 1 < (int32_t)ids->n && s->ids[same] == ids->id[same]) same++;
    if (s->n_cached > c->g.recompute_at && (int32_t)ids->n <= c->g.recompute_at)
        same = 0; /* rotated as a longer text */
    memcpy(s->ids, ids->id, ids->n * sizeof *s->ids);
    const int64_t most = (int64_t)ids->n + c->a->opt.max_new_tokens;
    s->n_prompt = s->n_ids = (int32_t)ids->n;
    s->max_ids = (int32_t)(most < c->max_len ? most : c->max_len);
    s->n_cached = same;
    s->n_images = c->messages.images.n;
    s->n_cells = c->images.n_cells;
    s->number++; /* selects new random numbers */
    s->finish = DT_FINISH_NONE;
    c->n_kept += same;
}

/* The prompt that ends with the last message. */
static dt_err ask(chat *c)
{
    dt_ids ids = {0};
    const dt_err err = together(&c->a->comm, render(c, &ids));
    if (err == DT_OK) set_prompt(c, &ids);
    free(ids.id);
    return err;
}

static dt_err answer(chat *c)
{
    app *a = c->a;
    dt_sequence *seq = &c->seq;
    dt_generate_stats stats;
    size_t n = 0;
    bool stopped;
    interrupted = 0;
    a->shown = 0;
    TOGETHER(a, dt_watchdog_start(&a->watchdog, &a->phase, &a->comm, a->opt.timeout_s));
    const dt_err err = dt_generate(c->decoder, &seq, 1, &c->g, &stats);
    dt_watchdog_stop(&a->watchdog);
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

/* Restart from the system message, if any. Earlier texts are freed at the end. */
static dt_err begin_again(chat *c, const char *system)
{
    forget_images(c, c->messages.images.n);
    c->n_waiting = 0;
    dt_messages_clear(&c->messages);
    if (*system) DT_TRY(dt_messages_add(&c->messages, DT_ROLE_SYSTEM, system, strlen(system)));
    if (c->a->tools) DT_TRY(dt_messages_take_tools(&c->messages, c->a->tools));
    return dt_messages_fit(&c->messages, c->a->reader.chat);
}

static dt_err change_system(chat *c, char *text)
{
    if (!*text) {
        free(text);
        return begin_again(c, c->system = "");
    }
    size_t nbytes = strlen(text);
    DT_TRY(keep_text(c, text));
    forget_places(c, text, &nbytes);
    text[nbytes] = '\0';
    return begin_again(c, c->system = text);
}

/* Read the images of the command line, which belong to the first message. */
static dt_err show_given(chat *c)
{
    for (int i = 0; i < c->a->opt.n_images; i++) {
        char *path = strdup(c->a->opt.image[i]);
        dt_err unread;
        TOGETHER(c->a, path ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the name of an image"));
        DT_TRY(show(c, path, &unread));
        TOGETHER(c->a, unread);
    }
    return DT_OK;
}

/* Report an unreadable image, and continue the conversation. */
static dt_err show_asked(chat *c, char *path)
{
    dt_err unread = DT_OK;
    if (c->a->reader.n_image_tokens > 0 && *path) {
        DT_TRY(show(c, path, &unread));
        console_note(&c->console, "%s", unread == DT_OK ? "the image goes with your next message" : dt_error_message());
        dt_error_clear();
        return DT_OK;
    }
    console_note(&c->console, *path ? "this model does not accept images" : "/image: expected the name of a file");
    free(path);
    return DT_OK;
}

/* Report why the message is not answered, and continue the conversation. */
static void drop_message(const chat *c, int n_images)
{
    if (c->a->comm.rank == 0)
        DT_WARN("the message %s dropped: %s", n_images > 0 ? "and its images are" : "is", dt_error_message());
    dt_error_clear();
}

/* Answer a user's message. If the template refuses it or it does not fit, the conversation continues without it,
 * unless it was the only one (--prompt). */
static dt_err hear(chat *c, char *text)
{
    if (check_places(c, text) != DT_OK) {
        drop_message(c, 0);
        free(text);
        return DT_OK;
    }
    TOGETHER(c->a, say_with_images(c, text));
    const dt_err err = ask(c);
    if (err != DT_ERR_DATA || c->a->opt.prompt) return err == DT_OK ? answer(c) : err;
    const dt_message *last = &c->messages.item[--c->messages.n];
    const int n_images = count_placeholders(c, last->text, last->nbytes);
    c->messages.images.n -= n_images;
    generate_images_drop(c->a, &c->images, c->messages.images.n, n_images);
    drop_message(c, n_images);
    return DT_OK;
}

static dt_err talk(chat *c)
{
    app *a = c->a;
    DT_TRY(show_given(c));
    if (a->opt.prompt) {
        TOGETHER(a, dt_error_prefix(check_places(c, a->opt.prompt), "--prompt: "));
        char *text = strdup(a->opt.prompt);
        TOGETHER(a, text ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the prompt"));
        return hear(c, text);
    }
    for (;;) {
        console_action action = CONSOLE_EXIT;
        char *text;
        DT_TRY(next_action(c, &action, &text));
        if (action == CONSOLE_SAY) {
            DT_TRY(hear(c, text));
            continue;
        }
        if (action == CONSOLE_IMAGE) {
            DT_TRY(show_asked(c, text));
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
        console_note(&c->console, "conversation cleared");
    }
}

static void greet(const chat *c)
{
    const app *a = c->a;
    if (a->comm.rank == 0 && !c->console.terminal)
        fprintf(stderr, "dtrain-generate: talking to %s, chat template: %s\n", a->frozen.from.path,
                dt_chat_source(a->reader.chat));
    console_note(&c->console, "talking to %s, chat template: %s, at most %d tokens", a->frozen.from.path,
                 dt_chat_source(a->reader.chat), c->max_len);
    console_note(&c->console, "/help lists the commands; Ctrl-C stops an answer, Ctrl-D or /exit leaves");
}

static void report(const chat *c)
{
    const dt_generate_stats *t = &c->total;
    const double prompt_s = t->prompt_seconds, new_s = t->seconds - t->prompt_seconds;
    fprintf(stderr, "dtrain-generate: %" PRId64 " new token%s", t->n_new_tok, t->n_new_tok == 1 ? "" : "s");
    if (generate_rate(t->n_new_tok, new_s) > 0)
        fprintf(stderr, " at %.1f tokens/s", generate_rate(t->n_new_tok, new_s));
    fprintf(stderr, "; %" PRId64 " tokens of the conversation read", t->n_prompt_tok);
    if (generate_rate(t->n_prompt_tok, prompt_s) > 0)
        fprintf(stderr, " at %.1f tokens/s", generate_rate(t->n_prompt_tok, prompt_s));
    fprintf(stderr, ", %" PRId64 " reused\n", c->n_kept);
}

static dt_err name_token(chat *c)
{
    const app *a = c->a;
    size_t n;
    if (a->reader.n_image_tokens == 0) return DT_OK;
    c->image_token = dt_decode(a->tok, &a->reader.image_token, 1, false, &n);
    DT_CHECK(c->image_token, DT_ERR_MEMORY, "out of memory for the name of token %" PRId32, a->reader.image_token);
    return DT_OK;
}

static bool is_complete(void *ctx, const int32_t *ids, int32_t n_prompt, int32_t n_ids)
{
    (void)n_prompt; /* a stop text may begin in the prompt */
    return generate_stops(((const chat *)ctx)->a, ids, n_ids);
}

dt_err generate_chat(app *a, const dt_decoder *d, const dt_generate_options *g, int32_t max_len)
{
    chat c = {.a = a, .decoder = d, .g = *g, .max_len = max_len};
    const struct sigaction act = {.sa_handler = on_interrupt}; /* no SA_RESTART: a signal interrupts reading */
    struct sigaction before;
    c.seq.ids = malloc((size_t)max_len * sizeof *c.seq.ids);
    dt_err err = c.seq.ids ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for %d tokens", max_len);
    c.system = a->opt.system ? a->opt.system : "";
    c.messages.image_text = a->reader.image_text;
    c.messages.image_alias = a->reader.image_alias;
    c.messages.image_line = a->reader.image_line;
    if (err == DT_OK) err = name_token(&c);
    if (err == DT_OK) err = dt_error_prefix(check_places(&c, c.system), "--system: ");
    if (err == DT_OK) err = begin_again(&c, c.system);
    if (err == DT_OK && a->comm.rank == 0 && !a->opt.prompt) err = console_open(&c.console, &interrupted);
    c.g.on_token = on_token;
    if (c.g.is_complete) c.g.is_complete = is_complete;
    c.g.image = copy_image;
    c.g.ctx = &c;
    sigaction(SIGINT, &act, &before);
    err = together(&a->comm, err);
    if (err == DT_OK) greet(&c);
    if (err == DT_OK) err = talk(&c);
    sigaction(SIGINT, &before, NULL);
    if (err == DT_OK && a->comm.rank == 0) report(&c);
    for (int i = 0; i < c.n_texts; i++) free(c.texts[i]);
    free(c.texts);
    free(c.image_token);
    generate_images_free(&c.images);
    dt_messages_free(&c.messages);
    console_close(&c.console);
    free(c.seq.ids);
    return err;
}
