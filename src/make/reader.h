/* reader.h - the inputs of a run: files and folders, read into chunks. */
#ifndef DTRAIN_DATA_MAKE_READER_H
#define DTRAIN_DATA_MAKE_READER_H

#include "pipeline.h"
#include "rec/rec.h"
#include "rec/rec_rows.h"

typedef struct dt_reader {
    const dt_make_options *opt;
    const dt_tokenizer *tokenizer;
    char **paths; /* of all files, in order; they outlive the chunks */
    int n_paths, paths_alloc;
    int64_t nbytes_total; /* -1: not known */
    int chunk_items;      /* most records of a chunk */
    const dt_rec *rec;    /* NULL: inputs are text and JSON */
    dt_rec_rows rows;
    dt_csv_header *headers; /* [n_paths] */
    /* of the thread that reads */
    dt_pipeline *pipeline;
    dt_chunk *chunk; /* being filled */
    const char *path;
    bool begun; /* a document that comes in pieces, or rows below a header */
    dt_csv_header *header;
    int64_t row, n_kept; /* so far: of all rows */
    int64_t n_read;
} dt_reader;

/** List the files of the inputs, those of a folder by name, and add up their sizes. DT_ERR_DATA: one cannot be
 *  found. rec: NULL, or inputs are its rows. */
dt_err dt_reader_open(dt_reader *r, const dt_make_options *opt, const dt_tokenizer *tokenizer, const dt_rec *rec);
/** Read them all. */
dt_err dt_reader_run(dt_reader *r, dt_pipeline *pipeline);
void dt_reader_close(dt_reader *r);

#endif
