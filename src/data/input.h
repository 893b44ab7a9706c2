/* input.h - text and JSON files, cut into documents and records as they are read. */
#ifndef DTRAIN_DATA_INPUT_H
#define DTRAIN_DATA_INPUT_H

#include "dtrain/core.h"

/** Receives a document in one piece or several; ends with last. An error ends the reading. */
typedef dt_err dt_text_fn(void *self, const char *text, size_t nbytes, bool last);
/** Receives a record as JSON text, with the line it begins on. */
typedef dt_err dt_json_fn(void *self, const char *text, size_t nbytes, int64_t line);

typedef struct dt_input {
    const char *path; /* "-": standard input */
    FILE *file;
    int64_t line;    /* of the next byte, from 1 */
    int64_t *n_read; /* bytes, added to while reading */
} dt_input;

/** A byte order mark is skipped. n_read: counts on, over several inputs. */
dt_err dt_input_open(dt_input *in, const char *path, int64_t *n_read);
void dt_input_close(dt_input *in);

/** documents: "files", "lines", "paragraphs", "separator". Blank ones are left out. */
dt_err dt_input_each_document(dt_input *in, const char *documents, const char *separator, dt_text_fn *fn, void *self);
/** JSON lines, or one array; blank lines are skipped. */
dt_err dt_input_each_record(dt_input *in, dt_json_fn *fn, void *self);

#endif
