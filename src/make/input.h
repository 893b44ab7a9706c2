/* input.h - reads text and JSON files and cuts them into documents and records. */
#ifndef DTRAIN_DATA_MAKE_INPUT_H
#define DTRAIN_DATA_MAKE_INPUT_H

#include "dtrain/data/dataset.h"
#include "dtrain/tokenizer/tokenizer.h"
#include <stdatomic.h>

/** Receives a document in one or several pieces; last is set for the final piece. An error ends reading. */
typedef dt_err dt_text_fn(void *self, const char *text, size_t nbytes, bool last);
/** Receives a record: nbytes of JSON text, or a row of a table as it is in the file; after it n_binary bytes that the
 *  JSON refers to (parquet.h), and the line or row it begins on. An error ends reading. */
typedef dt_err dt_json_fn(void *self, const char *text, size_t nbytes, size_t n_binary, int64_t line);

typedef struct dt_input {
    const char *path; /* name for messages */
    int fd;
    char *buffer;
    size_t at, end;          /* unread bytes of the buffer */
    int64_t line;            /* of the next byte, from 1 (JSON arrays) */
    int64_t n_gone;          /* bytes of the input before the buffer */
    int64_t line_start;      /* input offset of the current line (JSON arrays) */
    int64_t *n_read;         /* total bytes read, incremented */
    const atomic_bool *stop; /* polled ten times a second: DT_ERR_STOP; NULL: never stop */
} dt_input;

/** Open an input; "-" is standard input. Waits for the first bytes, to skip a byte order mark. n_read
 *  accumulates over several inputs. DT_ERR_DATA: it cannot be opened, or is a Git LFS pointer. */
dt_err dt_input_open(dt_input *in, const char *path, int64_t *n_read, const atomic_bool *stop);
/** Check the content before anything is read. DT_ERR_DATA, with advice, if it is neither text nor JSON:
 *  compressed, a known binary format, zero bytes, or mostly invalid UTF-8. automatic: the user did not
 *  name the format; JSON records and tables are then refused as plain text, too. */
dt_err dt_input_check_content(dt_input *in, bool json, bool automatic);
void dt_input_close(dt_input *in);

/** How plain text is cut into documents. Blank documents are skipped, but not blank files. A long document comes in
 *  pieces. Encoded separately, they give the ids of the whole (dt_text_cut). */
typedef struct dt_document_rules {
    dt_documents documents;
    const char *separator;
    const dt_tokenizer *tokenizer;
    size_t piece_nbytes; /* approximate */
} dt_document_rules;
dt_err dt_input_each_document(dt_input *in, const dt_document_rules *rules, dt_text_fn *fn, void *self);
/** Read JSON lines, one array, or concatenated records that span several lines (if the first line ends
 *  inside a record). Blank lines are skipped. */
dt_err dt_input_each_record(dt_input *in, dt_json_fn *fn, void *self);
/** Read the rows of a comma-separated table, header first. Blank lines between rows are skipped. After an
 *  unclosed quote, the rest of the file is one row. */
dt_err dt_input_each_row(dt_input *in, dt_json_fn *fn, void *self);

#endif
