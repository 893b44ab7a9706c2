/* reader.h - reads the inputs of a run, files and folders, into chunks. */
#ifndef DTRAIN_DATA_MAKE_READER_H
#define DTRAIN_DATA_MAKE_READER_H

#include "pipeline.h"
#include "rec/rec.h"
#include "rec/rec_rows.h"

typedef struct dt_reader {
    const dt_make_options *opt;
    const dt_tokenizer *tokenizer;
    char **paths; /* all files, in order; valid longer than the chunks */
    int n_paths;
    int64_t nbytes_total; /* -1: unknown */
    int chunk_items;      /* maximum records per chunk */
    const dt_rec *rec;    /* NULL: inputs are text and JSON */
    dt_rec_rows rows;
    bool scanned;     /* rows were counted in a first pass */
    json_t **headers; /* [n_paths] names of columns */
    /* only used by the reading thread */
    dt_pipeline *pipeline;
    dt_chunk *chunk; /* being filled */
    const char *path;
    bool begun; /* inside a document that comes in pieces, or below a table header */
    json_t **header;
    int64_t row, n_kept; /* over all files */
    int64_t n_read;
} dt_reader;

/** List the input files, in each folder sorted by name, and sum up their sizes. DT_ERR_DATA: a file does
 *  not exist. rec: the inputs are its rows, or NULL. */
dt_err dt_reader_open(dt_reader *r, const dt_make_options *opt, const dt_tokenizer *tokenizer, const dt_rec *rec);
/** Read all files. */
dt_err dt_reader_run(dt_reader *r, dt_pipeline *pipeline);
void dt_reader_close(dt_reader *r);

#endif
