/* input.c - a record of a JSON array is found by counting brackets outside of strings, and only then given to the parser: an array of any length is read
 * with the memory of one record, and a message names the line where the record begins. */
#include "input.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_NBYTES = 1 << 16 };

typedef struct text_buffer {
    char *text;
    size_t n, n_alloc;
} text_buffer;

static dt_err append(text_buffer *b, const char *text, size_t n)
{
    if (n == 0) return DT_OK;
    if (b->n + n > b->n_alloc) {
        const size_t want = 2 * b->n_alloc > b->n + n ? 2 * b->n_alloc : b->n + n + 256;
        char *more = realloc(b->text, want);
        DT_CHECK(more, DT_ERR_MEMORY, "no memory for a document of %zu bytes", want);
        b->text = more;
        b->n_alloc = want;
    }
    memcpy(b->text + b->n, text, n);
    b->n += n;
    return DT_OK;
}

static bool is_blank(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isspace((unsigned char)text[i])) return false;
    return true;
}

static dt_err check_read(const dt_input *in)
{
    DT_CHECK(!ferror(in->file), DT_ERR_DATA, "%s: reading failed: %s", in->path, strerror(errno));
    return DT_OK;
}

dt_err dt_input_open(dt_input *in, const char *path, int64_t *n_read)
{
    const bool is_stdin = strcmp(path, "-") == 0;
    *in = (dt_input){
        .path = is_stdin ? "standard input" : path, .file = is_stdin ? stdin : fopen(path, "re"), .line = 1, .n_read = n_read};
    DT_CHECK(in->file, DT_ERR_DATA, "%s: cannot be opened: %s", path, strerror(errno));
    static const unsigned char mark[3] = {0xef, 0xbb, 0xbf};
    unsigned char head[3];
    size_t n = 0;
    for (int c; n < 3 && (c = getc(in->file)) != EOF;) {
        head[n++] = (unsigned char)c;
        if (c != mark[n - 1]) break;
    }
    const bool marked = n == 3 && memcmp(head, mark, 3) == 0;
    while (!marked && n > 0) /* what has just been read can be put back (three bytes of the first block) */
        DT_CHECK(ungetc(head[--n], in->file) != EOF, DT_ERR_FAULT, "%s: cannot put back its first bytes", path);
    return check_read(in);
}

void dt_input_close(dt_input *in)
{
    if (in->file && in->file != stdin) fclose(in->file);
    in->file = NULL;
}

/* ---- text ------------------------------------------------------------------------------------------------------------------- */

static dt_err whole_file(dt_input *in, dt_text_fn *fn, void *self)
{
    char *block = malloc(BLOCK_NBYTES);
    DT_CHECK(block, DT_ERR_MEMORY, "%s: no memory to read it", in->path);
    dt_err err = DT_OK;
    bool any = false;
    for (size_t n; err == DT_OK && (n = fread(block, 1, BLOCK_NBYTES, in->file)) > 0; any = true) {
        *in->n_read += (int64_t)n;
        err = fn(self, block, n, false);
    }
    free(block);
    if (err == DT_OK) err = check_read(in);
    return err == DT_OK && any ? fn(self, "", 0, true) : err;
}

static dt_err emit(text_buffer *document, dt_text_fn *fn, void *self)
{
    const size_t n = document->n;
    document->n = 0;
    return n == 0 || is_blank(document->text, n) ? DT_OK : fn(self, document->text, n, true);
}

static size_t without_newline(const char *line, size_t n)
{
    if (n > 0 && line[n - 1] == '\n') n--;
    return n > 0 && line[n - 1] == '\r' ? n - 1 : n;
}

/* One line more: true in *done when it ends the document. */
static dt_err take_line(const char *documents, const char *separator, text_buffer *document, const char *line, size_t n,
                        bool *done)
{
    *done = false;
    if (strcmp(documents, "lines") == 0) {
        *done = true;
        return append(document, line, without_newline(line, n));
    }
    if (strcmp(documents, "paragraphs") == 0) {
        *done = is_blank(line, n);
        if (*done) document->n = without_newline(document->text, document->n);
        return *done ? DT_OK : append(document, line, n);
    }
    DT_TRY(append(document, line, n)); /* a separator ends where its last byte is met */
    const size_t len = strlen(separator);
    *done = document->n >= len && memcmp(document->text + document->n - len, separator, len) == 0;
    if (*done) document->n -= len;
    return DT_OK;
}

dt_err dt_input_each_document(dt_input *in, const char *documents, const char *separator, dt_text_fn *fn, void *self)
{
    if (strcmp(documents, "files") == 0) return whole_file(in, fn, self);
    const bool separated = strcmp(documents, "separator") == 0;
    const int delimiter = separated ? (unsigned char)separator[strlen(separator) - 1] : '\n';
    text_buffer document = {0};
    char *line = NULL;
    size_t cap = 0;
    dt_err err = DT_OK;
    for (ssize_t n; err == DT_OK && (n = getdelim(&line, &cap, delimiter, in->file)) > 0;) {
        bool done;
        *in->n_read += n;
        err = take_line(documents, separator, &document, line, (size_t)n, &done);
        if (err == DT_OK && done) err = emit(&document, fn, self);
    }
    if (err == DT_OK) err = check_read(in);
    if (err == DT_OK && document.n) {
        if (!separated) document.n = without_newline(document.text, document.n);
        err = emit(&document, fn, self);
    }
    free(line);
    free(document.text);
    return err;
}

/* ---- JSON ------------------------------------------------------------------------------------------------------------------- */

static int next_byte(dt_input *in)
{
    const int c = getc_unlocked(in->file);
    if (c == EOF) return EOF;
    ++*in->n_read;
    in->line += c == '\n';
    return c;
}

static int next_visible(dt_input *in)
{
    int c;
    do c = next_byte(in);
    while (c != EOF && isspace(c));
    return c;
}

static dt_err each_line(dt_input *in, dt_json_fn *fn, void *self)
{
    char *line = NULL;
    size_t cap = 0;
    dt_err err = DT_OK;
    for (ssize_t n; err == DT_OK && (n = getline(&line, &cap, in->file)) > 0; in->line++) {
        *in->n_read += n;
        if (!is_blank(line, (size_t)n)) err = fn(self, line, (size_t)n, in->line);
    }
    free(line);
    return err == DT_OK ? check_read(in) : err;
}

/* The rest of an element whose first byte is c: up to a comma or bracket on the level of the array, which *c becomes. */
static dt_err read_element(dt_input *in, text_buffer *record, int *c)
{
    int depth = 0;
    bool in_string = false, escaped = false;
    for (; *c != EOF; *c = next_byte(in)) {
        if (!in_string && depth == 0 && (*c == ',' || *c == ']')) return DT_OK;
        const char byte = (char)*c;
        DT_TRY(append(record, &byte, 1));
        if (in_string) {
            in_string = escaped || *c != '"';
            escaped = !escaped && *c == '\\';
        } else {
            in_string = *c == '"';
            depth += (*c == '{' || *c == '[') - (*c == '}' || *c == ']');
        }
    }
    DT_TRY(check_read(in));
    return dt_fail(DT_ERR_DATA, "%s: the file ends inside a JSON array", in->path);
}

static dt_err each_element(dt_input *in, text_buffer *record, dt_json_fn *fn, void *self)
{
    int c = next_visible(in);
    if (c != ']') {
        for (;;) {
            const int64_t line = in->line;
            record->n = 0;
            DT_TRY(read_element(in, record, &c));
            DT_TRY(fn(self, record->text ? record->text : "", record->n, line));
            if (c == ']') break;
            c = next_visible(in);
        }
    }
    c = next_visible(in);
    DT_CHECK(c == EOF, DT_ERR_DATA, "%s:%" PRId64 ": expected the end of the file after the JSON array, found '%c'", in->path,
             in->line, c);
    return check_read(in);
}

dt_err dt_input_each_record(dt_input *in, dt_json_fn *fn, void *self)
{
    const int c = next_visible(in);
    if (c == EOF) return check_read(in);
    if (c != '[') {
        ungetc(c, in->file);
        --*in->n_read;
        return each_line(in, fn, self);
    }
    text_buffer record = {0};
    const dt_err err = each_element(in, &record, fn, self);
    free(record.text);
    return err;
}
