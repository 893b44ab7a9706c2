/* input.h - text and JSON files, cut into documents and records as they are read. */
#ifndef DTRAIN_DATA_MAKE_INPUT_H
#define DTRAIN_DATA_MAKE_INPUT_H

#include "dtrain/tokenizer/tokenizer.h"

/** Receives a document in one piece or several; the last one with last. An error ends the reading. */
typedef dt_err dt_text_fn(void *self, const char *text, size_t nbytes, bool last);
/** Receives a record as JSON text, or a row of a table as it stands, with the line it begins on. */
typedef dt_err dt_json_fn(void *self, const char *text, size_t nbytes, int64_t line);

/** Asked while reading waits, ten times a second: is it to end, with DT_ERR_STOP? */
typedef bool dt_stopped_fn(void *self);

typedef struct dt_input {
    const char *path; /* as messages call it */
    int fd;
    char *buffer;
    size_t at, end;         /* what is in the buffer and not yet taken */
    int64_t line;           /* of the next byte, from 1 (JSON arrays) */
    int64_t n_gone;         /* bytes of the input before the buffer */
    int64_t line_start;     /* byte of the input that the line begins with (JSON arrays) */
    int64_t *n_read;        /* bytes, added to while reading */
    dt_stopped_fn *stopped; /* NULL: reading goes on */
    void *stopped_self;
} dt_input;

/** "-": standard input. A byte order mark is skipped, so it waits for the first bytes. n_read: counts on, over several
 *  inputs. DT_ERR_DATA: it cannot be opened, or is a Git LFS pointer. */
dt_err dt_input_open(dt_input *in, const char *path, int64_t *n_read, dt_stopped_fn *stopped, void *stopped_self);
/** Before anything is read: DT_ERR_DATA, with the next step, where this is neither text nor JSON: compressed, a known
 *  binary format, zero bytes, mostly not UTF-8. automatic: nobody has said that it is text, so JSON records and tables
 *  are refused as text, too. */
dt_err dt_input_check_content(dt_input *in, bool json, bool automatic);
void dt_input_close(dt_input *in);

/** How plain text is cut into documents: "files", "lines", "paragraphs", "separator". Blank documents are left out, but
 *  for files. A long document comes in pieces that t encodes one by one as it would the whole (dt_text_cut). */
typedef struct dt_document_rules {
    const char *documents, *separator;
    const dt_tokenizer *tokenizer;
    size_t piece_nbytes; /* about */
} dt_document_rules;
dt_err dt_input_each_document(dt_input *in, const dt_document_rules *rules, dt_text_fn *fn, void *self);
/** JSON lines, one array, or records over several lines one after the other, whose first line ends inside a record;
 *  blank lines are skipped. */
dt_err dt_input_each_record(dt_input *in, dt_json_fn *fn, void *self);
/** Rows of a comma-separated table, the header first; blank lines between them are skipped. A quote that is never
 *  closed makes the rest of the file one row. */
dt_err dt_input_each_row(dt_input *in, dt_json_fn *fn, void *self);

#endif
