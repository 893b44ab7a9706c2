/* dataset.h - dataset files as files: looking into one, checking one, writing one, making one from text or JSON records. interface.md, "Dataset file".
 *
 * What feeds a training step from them is in data.h. */
#ifndef DTRAIN_DATASET_H
#define DTRAIN_DATASET_H

#include "dtrain/core.h"

/* ---- looking into a file --------------------------------------------------------------------------------------------- */

typedef enum dt_dataset_kind { DT_DATASET_TOKENS, DT_DATASET_SFT } dt_dataset_kind;
const char *dt_dataset_kind_name(dt_dataset_kind kind); /* "tokens", "sft": the attribute's words */

typedef struct dt_dataset dt_dataset;

/** Open for reading and check all that costs little: format, version, kind, shapes and types, sizes that fit each other and the file, the ends of
 *  /offsets. DT_ERR_DATA naming file, dataset and what is wrong. Local. */
dt_err dt_dataset_open(dt_dataset **d, const char *path);
void dt_dataset_close(dt_dataset *d); /* NULL is fine */

typedef struct dt_dataset_info {
    const char *path, *tokenizer; /* tokenizer "" when the file names none; strings live as long as the dataset */
    dt_dataset_kind kind;
    int64_t vocab_size;
    int64_t n_tokens;
    int64_t n_documents; /* documents or samples; -1: the file has no /offsets */
    int token_nbytes;    /* 2 or 4 */
    bool has_weights, has_checksums;
} dt_dataset_info;
const dt_dataset_info *dt_dataset_get_info(const dt_dataset *d);

/** Read everything once: offsets never decrease, every token id is below vocab_size, masks are 0 or 1, weights finite and not negative, checksums
 *  (where the file carries them) agree. DT_ERR_DATA naming the first thing that is wrong and its index. */
dt_err dt_dataset_verify(dt_dataset *d);

/** Where document i lies: tokens first .. first+n-1. */
dt_err dt_dataset_document(dt_dataset *d, int64_t i, int64_t *first, int64_t *n);
/** Token ids (checked against vocab_size), and loss mask of an sft file. */
dt_err dt_dataset_read_tokens(dt_dataset *d, int64_t first, int64_t n, int32_t *ids);
dt_err dt_dataset_read_mask(dt_dataset *d, int64_t first, int64_t n, uint8_t *mask);
dt_err dt_dataset_read_weight(dt_dataset *d, int64_t i, float *weight); /* 1 where the file has none */

/* ---- writing a file -------------------------------------------------------------------------------------------------- */

typedef struct dt_dataset_writer dt_dataset_writer;

/** Begin PATH. Arrays grow in unnamed files beside it (memory stays fixed) and become one HDF5 file, PATH.part, renamed to PATH, at the commit.
 *  Tokens are stored as uint16 when vocab_size <= 65536, else uint32. tokenizer: NULL or "" for none. with_weights: sft only.
 *  DT_ERR_WRITE when the folder cannot be written. */
dt_err dt_dataset_create(dt_dataset_writer **w, const char *path, dt_dataset_kind kind, int64_t vocab_size, const char *tokenizer,
                         bool with_weights);
/** Add n tokens to the document (sample) under way. mask: n values 0 or 1 for sft, NULL for tokens. */
dt_err dt_dataset_add(dt_dataset_writer *w, const int32_t *ids, const uint8_t *mask, int64_t n);
/** End the document under way (an empty one counts, too). weight is stored if the writer was opened with_weights. */
dt_err dt_dataset_end_document(dt_dataset_writer *w, float weight);
/** Write the file whole, with checksums, make it durable, free w (whatever the outcome; PATH is touched by success alone). A document under way is
 *  ended first. DT_ERR_WRITE. */
dt_err dt_dataset_commit(dt_dataset_writer *w);
void dt_dataset_discard(dt_dataset_writer *w); /* give up: nothing stays behind; NULL is fine */

/* ---- making one from text or records (dtrain-data) ------------------------------------------------------------------- */

typedef struct dt_make_stats {
    int64_t nbytes_read, nbytes_total; /* total -1: not known (standard input) */
    int64_t n_documents, n_tokens;     /* training file */
    int64_t n_validation_documents, n_validation_tokens;
    int64_t n_dropped;   /* sft records without any target */
    int64_t n_truncated; /* cut at max_length */
    int64_t n_bad;       /* malformed records left out (skip_bad) */
    dt_dataset_kind kind;
} dt_make_stats;

typedef struct dt_make_options {
    const char *output, *validation; /* validation NULL: none */
    double validation_fraction;      /* share of documents, chosen by a hash of what they say: equal ones go to the same side */
    const char *const *inputs; /* files, folders (their .txt, .jsonl, .ndjson and .json files, by name), "-": standard input */
    int n_inputs;
    const char *kind;                      /* auto (by the first document), tokens, sft */
    const char *format;                    /* auto (by the end of the name), text, json (lines or an array) */
    const char *documents;                 /* of plain text: files, lines, paragraphs, or separator */
    const char *separator;                 /* for documents = separator */
    const char *tokenizer, *chat_template; /* "bytes"; "plain", "chatml", "alpaca" */
    const char *weight_key;                /* NULL, or the field of a record that holds its weight (sft) */
    bool all_targets;                      /* sft: every token but the first is a target */
    int64_t max_length;                    /* tokens of a document or sample; 0: no limit */
    bool append_eos, skip_bad;
    void (*progress)(void *self, const dt_make_stats *stats); /* NULL, or called every few thousand documents */
    void *progress_self;
} dt_make_options;

/** Make one dataset, or two. Memory: one record, or one document (a block of one when documents are whole files). Errors: DT_ERR_DATA "FILE:LINE: reason"
 *  for a malformed record, DT_ERR_USAGE for options that do not fit, DT_ERR_WRITE; the outputs are then as they were. */
dt_err dt_make_datasets(const dt_make_options *opt, dt_make_stats *stats);
/** Names of the chat templates with a line of help each, for --help. */
const char *dt_make_template_help(void);

#endif
