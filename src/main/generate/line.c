/* line.c - line editing with libedit (BSD licence). The licence of GNU readline would apply to the whole program. */
#include "line.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#ifdef DT_HAVE_LIBEDIT
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <unistd.h>
#include <wchar.h>
#endif

struct line_reader {
    bool terminal, colours, more;
    volatile sig_atomic_t *interrupted;
#ifdef DT_HAVE_LIBEDIT
    EditLine *edit;
    History *history;
#endif
};

static const char *prompt_of(const line_reader *l)
{
    if (!l->terminal) return "";
    if (!l->colours) return l->more ? "... " : "> ";
    return l->more ? "\1\033[1;32m\1...\1\033[0m\1 "
                   : "\1\033[1;32m\1>\1\033[0m\1 "; /* \1 encloses characters without width */
}

static char *without_end(char *line)
{
    if (line) line[strcspn(line, "\r\n")] = '\0';
    return line;
}

static char *read_plain(line_reader *l, bool *interrupted)
{
    char *line = NULL;
    size_t room = 0;
    for (const char *p = prompt_of(l); *p; p++)
        if (*p != '\1') putchar(*p);
    fflush(stdout);
    errno = 0;
    if (getline(&line, &room, stdin) >= 0) return without_end(line);
    *interrupted = errno == EINTR;
    if (*interrupted) clearerr(stdin);
    free(line);
    return NULL;
}

#ifdef DT_HAVE_LIBEDIT
static char *edit_prompt(EditLine *edit)
{
    void *self;
    el_get(edit, EL_CLIENTDATA, &self);
    return (char *)prompt_of(self);
}

/* Poll ten times a second: a signal may arrive just before read(2) blocks, or on another thread, so the
 * handler's flag is checked. */
static bool wait_for_input(EditLine *edit)
{
    line_reader *l;
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    el_get(edit, EL_CLIENTDATA, (void **)&l);
    while (!*l->interrupted)
        if (poll(&input, 1, 100) > 0) return true;
    errno = EINTR;
    return false;
}

/* Reads a character. libedit's own function continues after a signal; here Ctrl-C ends the line. */
static int read_character(EditLine *edit, wchar_t *out)
{
    mbstate_t state = {0};
    for (;;) {
        char byte;
        if (!wait_for_input(edit)) return -1;
        const ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n <= 0) return (int)n;
        const size_t len = mbrtowc(out, &byte, 1, &state);
        if (len == (size_t)-2) continue; /* incomplete character, read more bytes */
        if (len == (size_t)-1) *out = L'?';
        return 1;
    }
}

static void open_editor(line_reader *l)
{
    HistEvent event;
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
    l->edit = el_init("dtrain-generate", stdin, stdout, stderr);
    l->history = l->edit ? history_init() : NULL;
    if (!l->history) return;
    history(l->history, &event, H_SETSIZE, 1000);
    history(l->history, &event, H_SETUNIQUE, 1);
    el_set(l->edit, EL_CLIENTDATA, l);
    el_set(l->edit, EL_PROMPT_ESC, edit_prompt, '\1');
    el_set(l->edit, EL_HIST, history, l->history);
    el_set(l->edit, EL_EDITOR, "emacs");
    el_set(l->edit, EL_SIGNAL, 0); /* the conversation handles Ctrl-C */
    el_set(l->edit, EL_GETCFN, read_character);
    el_source(l->edit, NULL); /* ~/.editrc */
}

static char *read_edited(line_reader *l, bool *interrupted)
{
    int n = 0;
    errno = 0;
    const char *line = el_gets(l->edit, &n);
    if (line && n > 0) return without_end(strdup(line));
    *interrupted = n < 0 && errno == EINTR;
    if (*interrupted) el_reset(l->edit); /* discard the line being typed */
    return NULL;
}

static void remember_edited(line_reader *l, const char *text)
{
    HistEvent event;
    if (l->history) history(l->history, &event, H_ENTER, text);
}

static void close_editor(line_reader *l)
{
    if (l->history) history_end(l->history);
    if (l->edit) el_end(l->edit);
}

static bool edits(const line_reader *l) { return l->history != NULL; }
#else
static void open_editor(line_reader *l) {}
static char *read_edited(line_reader *l, bool *interrupted) { return NULL; }
static void remember_edited(line_reader *l, const char *text) {}
static void close_editor(line_reader *l) {}
static bool edits(const line_reader *l) { return false; }
#endif

dt_err line_open(line_reader **out, bool terminal, bool colours, volatile sig_atomic_t *interrupted)
{
    line_reader *l = calloc(1, sizeof *l);
    DT_CHECK(l, DT_ERR_MEMORY, "out of memory for the line editor");
    l->terminal = terminal;
    l->colours = colours;
    l->interrupted = interrupted;
    if (terminal) open_editor(l);
    *out = l;
    return DT_OK;
}

char *line_read(line_reader *l, bool more, bool *interrupted)
{
    *interrupted = false;
    *l->interrupted = 0;
    l->more = more;
    return edits(l) ? read_edited(l, interrupted) : read_plain(l, interrupted);
}

void line_remember(line_reader *l, const char *text) { remember_edited(l, text); }

void line_close(line_reader *l)
{
    if (!l) return;
    close_editor(l);
    free(l);
}
