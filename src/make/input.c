/* input.c - a record of a JSON array is located by matching brackets outside of strings, and then parsed
 * separately. An array of any length thus needs the memory of one record, and errors name the line where
 * the record begins. Mismatched brackets end reading immediately, because everything after them would be
 * read as one record. Brackets that are never closed end reading at a size limit. */
#include "input.h"
#include "dtrain/io/io.h"
#include "csv_reader.h"
#include "dtrain/text/utf8.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK_NBYTES = 1 << 16, POLL_MS = 100, ELEMENT_NBYTES = 1 << 28 };

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* Read more bytes into the buffer, interruptibly. No new bytes: end of file. */
static dt_err more(dt_input *in)
{
    for (;;) {
        struct pollfd p = {.fd = in->fd, .events = POLLIN};
        const int ready = poll(&p, 1, POLL_MS);
        DT_CHECK(!in->stop || !atomic_load(in->stop), DT_ERR_STOP, "%s: stopped while reading", in->path);
        if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
        const ssize_t got = read(in->fd, in->buffer + in->end, BLOCK_NBYTES - in->end);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        DT_CHECK_ERRNO(got >= 0, DT_ERR_DATA, in->path, "reading failed");
        in->end += (size_t)got;
        *in->n_read += got;
        return DT_OK;
    }
}

/* Refill the buffer if it is empty. at == end on return: end of file. */
static dt_err fill(dt_input *in)
{
    if (in->at < in->end) return DT_OK;
    in->n_gone += (int64_t)in->end;
    in->at = in->end = 0;
    return more(in);
}

static dt_err skip_mark(dt_input *in)
{
    static const char mark[] = "\xef\xbb\xbf";
    size_t before;
    do { /* a pipe may deliver fewer than three bytes per read */
        before = in->end;
        DT_TRY(more(in));
    } while (in->end > before && in->end < 3 && memcmp(in->buffer, mark, in->end) == 0);
    if (in->end >= 3 && memcmp(in->buffer, mark, 3) == 0) in->at = 3;
    return DT_OK;
}

/* O_NONBLOCK: opening a pipe without a writer must not block. */
dt_err dt_input_open(dt_input *in, const char *path, int64_t *n_read, const atomic_bool *stop)
{
    const bool is_stdin = strcmp(path, "-") == 0;
    *in = (dt_input){.path = is_stdin ? "standard input" : path,
                     .fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK),
                     .buffer = malloc(BLOCK_NBYTES),
                     .line = 1,
                     .n_read = n_read,
                     .stop = stop};
    DT_CHECK_ERRNO(in->fd >= 0, DT_ERR_DATA, path, "cannot be opened");
    DT_CHECK(in->buffer, DT_ERR_MEMORY, "%s: no memory to read it", path);
    DT_TRY(skip_mark(in));
    return dt_refuse_pointer(in->path, in->buffer + in->at, in->end - in->at);
}

void dt_input_close(dt_input *in)
{
    if (in->fd > STDIN_FILENO) close(in->fd);
    free(in->buffer);
    *in = (dt_input){.fd = -1};
}

static dt_err append(dt_text *b, const char *text, size_t n)
{
    dt_text_append(b, text, n);
    DT_CHECK(!b->failed, DT_ERR_MEMORY, "out of memory for a document of %zu bytes", b->n + n);
    return DT_OK;
}

static void drop(dt_text *b, size_t n)
{
    b->n -= n;
    if (n > 0 && b->n > 0) memmove(b->bytes, b->bytes + n, b->n);
}

static bool is_blank(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isspace((unsigned char)text[i])) return false;
    return true;
}

static size_t without_newline(const char *line, size_t n)
{
    if (n > 0 && line[n - 1] == '\n') n--;
    return n > 0 && line[n - 1] == '\r' ? n - 1 : n;
}

/* ---- documents of plain text ------------------------------------------------------------------------------------- */

/* The document in progress: its bytes that were not delivered yet. */
typedef struct assembly {
    const dt_document_rules *rules;
    dt_text b;
    bool begun; /* a piece was delivered */
    dt_text_fn *fn;
    void *self;
} assembly;

static dt_err hand_on(assembly *a, size_t n, bool last)
{
    const bool empty = last && !a->begun && is_blank(a->b.bytes, n);
    const dt_err err = empty ? DT_OK : a->fn(a->self, a->b.bytes, n, last);
    a->begun = !last;
    drop(&a->b, n);
    return err;
}

/* Deliver pieces while more than one is buffered. The last `keep` bytes are retained, because they may not
 * belong to the document. */
static dt_err hand_on_pieces(assembly *a, size_t keep)
{
    const size_t piece = a->rules->piece_nbytes;
    while (a->b.n > piece + keep) DT_TRY(hand_on(a, dt_text_cut(a->rules->tokenizer, a->b.bytes, piece), false));
    return DT_OK;
}

static dt_err whole_file(dt_input *in, assembly *a)
{
    bool any = false;
    for (;;) {
        DT_TRY(fill(in));
        if (in->at == in->end) break;
        any = true;
        DT_TRY(append(&a->b, in->buffer + in->at, in->end - in->at));
        in->at = in->end;
        DT_TRY(hand_on_pieces(a, 0));
    }
    if (!any) return DT_OK;
    const size_t n = a->b.n; /* with "files" a blank document counts, too */
    a->b.n = 0;
    return a->fn(a->self, a->b.bytes, n, true);
}

/* Append up to and including the next newline; *whole: a newline was found. At the end of the file nothing
 * is appended and *whole is false. */
static dt_err take_line(dt_input *in, dt_text *b, bool *whole, size_t *n_taken)
{
    DT_TRY(fill(in));
    const char *from = in->buffer + in->at, *newline = in->at < in->end ? memchr(from, '\n', in->end - in->at) : NULL;
    *n_taken = newline ? (size_t)(newline - from) + 1 : in->end - in->at;
    *whole = newline != NULL;
    in->at += *n_taken;
    return append(b, from, *n_taken);
}

static dt_err each_line_document(dt_input *in, assembly *a)
{
    for (;;) {
        bool whole;
        size_t n;
        DT_TRY(take_line(in, &a->b, &whole, &n));
        if (whole || n == 0) {
            const size_t len = without_newline(a->b.bytes, a->b.n);
            DT_TRY(a->b.n > 0 || a->begun ? hand_on(a, len, true) : DT_OK);
            a->b.n = 0;
        } else {
            DT_TRY(hand_on_pieces(a, 2));
        }
        if (n == 0) return DT_OK;
    }
}

/* A blank line ends a paragraph. `line` is the buffer offset of the current line. A line that may still be
 * blank is retained, and so is the newline before it. */
static dt_err each_paragraph(dt_input *in, assembly *a)
{
    enum { NEWLINE = 2 };
    for (size_t line = 0;;) {
        bool whole;
        size_t n;
        DT_TRY(take_line(in, &a->b, &whole, &n));
        const bool blank = is_blank(a->b.bytes + line, a->b.n - line);
        if (n == 0 || (whole && blank)) {
            if (blank) a->b.n = line;
            const size_t len = without_newline(a->b.bytes, a->b.n);
            DT_TRY(a->b.n > 0 || a->begun ? hand_on(a, len, true) : DT_OK);
            a->b.n = line = 0;
            if (n == 0) return DT_OK;
            continue;
        }
        const size_t before = a->b.n,
                     keep = blank && before - line + NEWLINE < BLOCK_NBYTES ? before - line + NEWLINE : NEWLINE;
        DT_TRY(hand_on_pieces(a, keep));
        const size_t gone = before - a->b.n;
        line = whole ? a->b.n : line > gone ? line - gone : 0;
    }
}

static dt_err each_separated(dt_input *in, assembly *a)
{
    const char *separator = a->rules->separator;
    const size_t len = strlen(separator);
    for (;;) {
        DT_TRY(fill(in));
        if (in->at == in->end) break;
        size_t from = a->b.n < len - 1 ? 0 : a->b.n - (len - 1); /* everything before was searched */
        DT_TRY(append(&a->b, in->buffer + in->at, in->end - in->at));
        in->at = in->end;
        for (const char *found; (found = memmem(a->b.bytes + from, a->b.n - from, separator, len)); from = 0) {
            DT_TRY(hand_on(a, (size_t)(found - a->b.bytes), true));
            drop(&a->b, len);
        }
        DT_TRY(hand_on_pieces(a, len - 1));
    }
    return a->b.n > 0 || a->begun ? hand_on(a, a->b.n, true) : DT_OK;
}

dt_err dt_input_each_document(dt_input *in, const dt_document_rules *rules, dt_text_fn *fn, void *self)
{
    assembly a = {.rules = rules, .fn = fn, .self = self};
    DT_TRY(append(&a.b, "", 0)); /* a blank document has an address, too */
    static dt_err (*const each[])(dt_input *, assembly *) = {[DT_DOCUMENTS_FILES] = whole_file,
                                                             [DT_DOCUMENTS_LINES] = each_line_document,
                                                             [DT_DOCUMENTS_PARAGRAPHS] = each_paragraph,
                                                             [DT_DOCUMENTS_SEPARATOR] = each_separated};
    const dt_err err = each[rules->documents](in, &a);
    dt_text_free(&a.b);
    return err;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static dt_err each_line(dt_input *in, dt_text *record, dt_json_fn *fn, void *self)
{
    for (;;) {
        bool whole;
        size_t n;
        DT_TRY(take_line(in, record, &whole, &n));
        if (n > 0 && !whole) continue;
        if (record->n > 0 && !is_blank(record->bytes, record->n))
            DT_TRY(fn(self, record->bytes, record->n, 0, in->line));
        record->n = 0;
        in->line++;
        if (n == 0) return DT_OK;
    }
}

/* Count lines and record where the current one begins. */
static void note_byte(dt_input *in, const char *byte)
{
    if (*byte != '\n') return;
    in->line++;
    in->line_start = in->n_gone + (byte - in->buffer) + 1;
}

/* Peek at the next byte that is not white space; EOF at the end. */
static dt_err peek(dt_input *in, int *c)
{
    for (;;) {
        DT_TRY(fill(in));
        if (in->at == in->end) return *c = EOF, DT_OK;
        *c = (unsigned char)in->buffer[in->at];
        if (!isspace(*c)) return DT_OK;
        note_byte(in, in->buffer + in->at++);
    }
}

/* Name of the input format, for messages. */
static const char *kind_of(bool array) { return array ? "a JSON array" : "records of several lines"; }

static dt_err ends_inside(const dt_input *in, const dt_json_nesting *at, int64_t line, bool array)
{
    const bool whole = at->depth == 0 && !at->in_string;
    DT_CHECK(at->last, DT_ERR_DATA, "%s:%" PRId64 ": the file ends inside a JSON array", in->path, in->line);
    return dt_fail(DT_ERR_DATA, "%s:%" PRId64 ": the file ends %s the record that begins here (input: %s)", in->path,
                   line, whole ? "after" : "inside", kind_of(array));
}

static dt_err breaks(const dt_input *in, int64_t line, const char *wrong, bool array)
{
    return dt_fail(
        DT_ERR_DATA,
        "%s:%" PRId64 ": the record that begins here is invalid in line %" PRId64
        ": %s; the next record cannot be located in %s; convert the file to JSON lines to skip invalid records",
        in->path, line, in->line, wrong, kind_of(array));
}

/* True if a record ends before this byte, at the array's level. */
static bool is_end(const dt_json_nesting *at, char c)
{
    return at->depth == 0 && !at->in_string && (c == ',' || c == ']');
}

/* Read a record. In an array it ends before the comma or bracket at its level, else with its last bracket. */
static dt_err read_value(dt_input *in, dt_text *record, bool array)
{
    const int64_t line = in->line;
    dt_json_nesting at = {0};
    for (bool done = false; !done;) {
        DT_TRY(fill(in));
        if (in->at == in->end) return ends_inside(in, &at, line, array);
        const char *from = in->buffer + in->at, *p = from, *end = in->buffer + in->end;
        while (p < end && !done) {
            if (array && (done = is_end(&at, *p))) break;
            const char *wrong = dt_json_step(&at, *p);
            if (wrong) return breaks(in, line, wrong, array);
            note_byte(in, p++);
            done = !array && at.depth == 0;
        }
        DT_TRY(append(record, from, (size_t)(p - from)));
        in->at += (size_t)(p - from);
        DT_CHECK(record->n <= ELEMENT_NBYTES, DT_ERR_DATA,
                 "%s:%" PRId64 ": the record that begins here is longer than %d MiB; use JSON lines for longer records",
                 in->path, line, ELEMENT_NBYTES >> 20);
    }
    return DT_OK;
}

static int64_t column(const dt_input *in) { return in->n_gone + (int64_t)in->at - in->line_start + 1; }

static dt_err each_element(dt_input *in, dt_text *record, dt_json_fn *fn, void *self)
{
    int c;
    in->at++; /* the closing bracket */
    DT_TRY(peek(in, &c));
    while (c != ']') {
        const int64_t line = in->line;
        record->n = 0;
        DT_TRY(read_value(in, record, true));
        DT_CHECK(!is_blank(record->bytes, record->n), DT_ERR_DATA,
                 "%s:%" PRId64 ":%" PRId64 ": expected a record of the JSON array, found a comma", in->path, in->line,
                 column(in));
        DT_TRY(fn(self, record->bytes, record->n, 0, line));
        c = (unsigned char)in->buffer[in->at];
        if (c == ']') break;
        const int64_t comma_line = in->line, comma_column = column(in);
        in->at++;
        DT_TRY(peek(in, &c));
        DT_CHECK(c != ']', DT_ERR_DATA,
                 "%s:%" PRId64 ":%" PRId64
                 ": a trailing comma: expected another record of the JSON array after it, found ]; remove the comma",
                 in->path, comma_line, comma_column);
    }
    in->at++;
    DT_TRY(peek(in, &c));
    DT_CHECK(c == EOF, DT_ERR_DATA, "%s:%" PRId64 ": expected the end of the file after the JSON array, found '%c'",
             in->path, in->line, c);
    return DT_OK;
}

/* Buffer the whole first line, if it fits: a pipe may deliver less per read. */
static dt_err fill_line(dt_input *in)
{
    for (size_t before = 0; in->end < BLOCK_NBYTES && in->end > before;) {
        if (memchr(in->buffer + in->at, '\n', in->end - in->at)) return DT_OK;
        before = in->end;
        DT_TRY(more(in));
    }
    return DT_OK;
}

static dt_err each_printed(dt_input *in, dt_text *record, dt_json_fn *fn, void *self)
{
    int c;
    DT_TRY(peek(in, &c));
    while (c != EOF) {
        const int64_t line = in->line;
        DT_CHECK(c == '{', DT_ERR_DATA, "%s:%" PRId64 ":%" PRId64 ": expected the next record, found '%c'", in->path,
                 in->line, column(in), c);
        record->n = 0;
        DT_TRY(read_value(in, record, false));
        DT_TRY(fn(self, record->bytes, record->n, 0, line));
        DT_TRY(peek(in, &c));
    }
    return DT_OK;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

/* Append bytes up to and including the newline that ends a row, or up to the end of the file. */
static dt_err take_row(dt_input *in, dt_text *row)
{
    dt_csv_state state = DT_CSV_START;
    for (bool whole = false; !whole;) {
        DT_TRY(fill(in));
        if (in->at == in->end) return DT_OK;
        const char *from = in->buffer + in->at, *p = from, *end = in->buffer + in->end;
        for (; p < end && !whole; p++) {
            whole = *p == '\n' && state != DT_CSV_QUOTED;
            in->line += *p == '\n';
            state = dt_csv_step(state, *p);
        }
        DT_TRY(append(row, from, (size_t)(p - from)));
        in->at += (size_t)(p - from);
    }
    return DT_OK;
}

static dt_err each_row(dt_input *in, dt_text *row, dt_json_fn *fn, void *self)
{
    for (;;) {
        const int64_t line = in->line;
        row->n = 0;
        DT_TRY(take_row(in, row));
        if (row->n == 0) return DT_OK;
        if (!is_blank(row->bytes, row->n)) DT_TRY(fn(self, row->bytes, row->n, 0, line));
    }
}

dt_err dt_input_each_row(dt_input *in, dt_json_fn *fn, void *self)
{
    dt_text row = {0};
    const dt_err err = each_row(in, &row, fn, self);
    dt_text_free(&row);
    return err;
}

dt_err dt_input_each_record(dt_input *in, dt_json_fn *fn, void *self)
{
    int c;
    dt_text record = {0};
    DT_TRY(peek(in, &c));
    DT_TRY(fill_line(in));
    const bool printed = dt_json_is_printed(in->buffer + in->at, in->buffer + in->end);
    const dt_err err = c == EOF   ? DT_OK
                       : c == '[' ? each_element(in, &record, fn, self)
                       : printed  ? each_printed(in, &record, fn, self)
                                  : each_line(in, &record, fn, self);
    dt_text_free(&record);
    return err;
}
