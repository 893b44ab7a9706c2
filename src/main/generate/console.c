/* console.c - reads messages. A message ends with its line, unless the line ends in a backslash or the
 * message is enclosed in """. */
#include "console.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dtrain/io/io.h"
#include "dtrain/tokenizer/tokenizer.h"
#include "dtrain/text/utf8.h"

static const char help[] =
    "  /image FILE     attach an image to the next message; <image> in the message marks its position\n"
    "  /clear          start a new conversation with the same system message\n"
    "  /system TEXT    start a new conversation with TEXT as the system message (no TEXT: none)\n"
    "  /save FILE      write the conversation to FILE as JSON, a record for dtrain-data\n"
    "  /help           print this list\n"
    "  /exit           exit, as Ctrl-D does\n"
    "Ctrl-C stops an answer. To write a message of several lines, end each line with \\, or enclose\n"
    "the message in \"\"\". If a message begins with /, write // instead.\n";

dt_err console_open(console *c, volatile sig_atomic_t *interrupted)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    c->terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    c->colours = c->terminal && !(no_color && *no_color) && !(term && strcmp(term, "dumb") == 0);
    return line_open(&c->lines, c->terminal, c->colours, interrupted);
}

void console_close(console *c)
{
    line_close(c->lines);
    c->lines = NULL;
}

void console_note(const console *c, const char *fmt, ...)
{
    va_list args;
    if (!c->terminal) return;
    va_start(args, fmt);
    fputs(c->colours ? "\033[2m" : "", stdout);
    vprintf(fmt, args);
    fputs(c->colours ? "\033[0m\n" : "\n", stdout);
    fflush(stdout);
    va_end(args);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static dt_err append(dt_text *t, const char *line, size_t len)
{
    if (t->bytes) dt_text_append(t, "\n", 1);
    dt_text_append(t, line, len);
    DT_CHECK(!t->failed, DT_ERR_MEMORY, "out of memory for a message of %zu bytes", t->n + len);
    return DT_OK;
}

/* Append the line to the message; *more: the message continues. */
static dt_err take_line(const console *c, const char *line, dt_text *text, bool *quoted, bool *more)
{
    static const char quotes[] = "\"\"\"";
    size_t len = strlen(line);
    *more = false;
    if (!c->terminal) return append(text, line, len);
    if (!text->bytes && strncmp(line, quotes, 3) == 0) {
        *quoted = true;
        line += 3, len -= 3;
        if (len == 0) return *more = true, append(text, "", 0);
    }
    const bool closes = *quoted && len >= 3 && strcmp(line + len - 3, quotes) == 0;
    const bool joined = !*quoted && len > 0 && line[len - 1] == '\\';
    *more = joined || (*quoted && !closes);
    return append(text, line, len - (closes ? 3 : joined));
}

/* Remove the line breaks next to the quotes. */
static void trim(char *text)
{
    size_t len = strlen(text);
    if (text[0] == '\n') memmove(text, text + 1, len--);
    if (len > 0 && text[len - 1] == '\n') text[len - 1] = '\0';
}

/* Read a message or a command; NULL: the end of input. Ctrl-C starts over. */
static dt_err read_message(console *c, char **text)
{
    bool more = false, quoted = false, interrupted;
    dt_text t = {0};
    *text = NULL;
    for (;;) {
        char *line = line_read(c->lines, more, &interrupted);
        if (!line && interrupted) {
            if (c->terminal) putchar('\n');
            dt_text_free(&t);
            more = quoted = false;
            continue;
        }
        if (!line) break;
        const dt_err err = take_line(c, line, &t, &quoted, &more);
        free(line);
        if (err != DT_OK) return dt_text_free(&t), err;
        if (more) continue;
        if (quoted) trim(t.bytes);
        if (*t.bytes) return *text = t.bytes, DT_OK;
        dt_text_free(&t);
        quoted = false;
    }
    if (c->terminal) putchar('\n');
    dt_text_free(&t);
    return DT_OK;
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

static const char *role_name(dt_role role)
{
    return role == DT_ROLE_SYSTEM ? "system" : role == DT_ROLE_ASSISTANT ? "assistant" : "user";
}

static dt_err save(const char *file, const dt_messages *said)
{
    DT_CHECK(*file, DT_ERR_USAGE, "/save: expected the name of a file");
    DT_CHECK(access(file, F_OK) != 0, DT_ERR_USAGE, "/save: %s exists; choose another name", file);
    json_t *list = json_array();
    for (int i = 0; i < said->n; i++) {
        json_t *message = json_object();
        json_object_set_new(message, "role", json_string(role_name(said->item[i].role)));
        size_t n;
        /* a byte-level model may produce invalid UTF-8 */
        char *text = dt_utf8_repair(said->item[i].text, said->item[i].nbytes, &n);
        json_object_set_new(message, "content", text ? json_stringn(text, n) : json_null());
        free(text);
        json_array_append_new(list, message);
    }
    json_t *root = json_pack("{s:o}", "messages", list), *images = json_array();
    for (int i = 0; i < said->images.n; i++) {
        /* absolute, because the record is stored in another folder */
        char *path = realpath(said->images.path[i], NULL);
        json_array_append_new(images, json_string(path ? path : said->images.path[i]));
        free(path);
    }
    if (said->images.n > 0) json_object_set(root, "images", images);
    json_decref(images);
    char *text = json_dumps(root, JSON_COMPACT | JSON_ENCODE_ANY), *line = NULL;
    const int n = text ? asprintf(&line, "%s\n", text) : -1;
    const dt_err err = n < 0 ? dt_fail(DT_ERR_MEMORY, "out of memory for the conversation")
                             : dt_write_file_atomic(file, line, (size_t)n);
    if (n >= 0) free(line);
    free(text);
    json_decref(root);
    return err;
}

static void save_and_tell(const console *c, const char *file, const dt_messages *said)
{
    if (save(file, said) == DT_OK)
        console_note(c, "%d messages written to %s", said->n, file);
    else
        console_note(c, "%s", dt_error_message()); /* failing to save must not end the conversation */
    dt_error_clear();
}

/* Argument of the command word if text is that command; otherwise NULL. */
static const char *argument(const char *text, const char *word)
{
    const size_t len = strlen(word);
    if (strncmp(text, word, len) != 0 || (text[len] && !strchr(" \t\n", text[len]))) return NULL;
    return text + len + strspn(text + len, " \t\n");
}

/* false: handled here, or not a command. */
static bool command(const console *c, const dt_messages *said, const char *text, console_action *action,
                    const char **rest)
{
    const char *file = argument(text, "/save");
    *rest = "";
    if (argument(text, "/exit") || argument(text, "/quit") || argument(text, "/bye"))
        return *action = CONSOLE_EXIT, true;
    if (argument(text, "/clear")) return *action = CONSOLE_CLEAR, true;
    if ((*rest = argument(text, "/image"))) return *action = CONSOLE_IMAGE, true;
    if ((*rest = argument(text, "/system"))) return *action = CONSOLE_SYSTEM, true;
    if (argument(text, "/help"))
        fputs(help, stdout);
    else if (file)
        save_and_tell(c, file, said);
    else
        console_note(c, "%.*s: no such command; /help lists them", (int)strcspn(text, " \n"), text);
    return false;
}

dt_err console_next(console *c, const dt_messages *said, console_action *action, char **text)
{
    for (;;) {
        const char *rest;
        DT_TRY(read_message(c, text));
        *action = *text ? CONSOLE_SAY : CONSOLE_EXIT;
        if (!*text) return DT_OK;
        if (c->terminal) line_remember(c->lines, *text);
        if (!c->terminal || (*text)[0] != '/') return DT_OK;
        if ((*text)[1] == '/') return memmove(*text, *text + 1, strlen(*text)), DT_OK;
        const bool ours = command(c, said, *text, action, &rest);
        if (ours) memmove(*text, rest, strlen(rest) + 1);
        if (ours) return DT_OK;
        free(*text);
    }
}
